//! One I/O core: the loop.
//!
//! Theory of operation. A round looks into the mailbox and polls each of the core's queues once; a queue
//! with frames has one batch taken, delivered and given back before the next queue is looked at, so a
//! busy queue waits for at most one batch of each other, and for no more copies than that has frames (`share`). Two kinds of queues are asked less often: those
//! whose poll is a system call, after they came up empty, and those that have been silent for many
//! rounds while others are busy; both bounds are constants below.
//!
//! A core without work for `spin` asks all queues for kicks, looks once more, and sleeps in `epoll_wait`.
//! The queues that wake it are served before anything else, so the first frame does not wait for a look at all ports.
//! Time is accounted in three parts: busy (rounds that moved frames), idle (rounds that did not), asleep.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::deliver::Delivery;
use super::gate::Gate;
use super::mailbox::{Letter, Mailbox, LETTERS_A_ROUND};
use super::pause::{self, Pause};
use super::poller::{Poller, Watch, EVENTS};
use super::share::Share;
use super::status::Meter;
use super::topology::Topology;
use super::watch::Beat;
use super::CoreOptions;
use crate::frame::Batch;
use crate::port::{IngressQueue, Port, QueueKey, Tally, SLOW_BATCH};
use crate::switch::Verdicts;

/// A queue whose poll is a system call is left alone for this long after it came up empty.
const COSTLY_PAUSE: Duration = Duration::from_micros(5);
/// Empty polls in a row after which a queue counts as silent.
const SILENT_AFTER: u32 = 256;
/// A silent queue is polled every so many rounds: at full load a round is some 10 µs, so its first frame
/// waits for some 160 µs more at worst.
const SILENT_EVERY: u64 = 16;
/// Longest sleep: kicks and letters wake us, this only bounds the damage of a lost one.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// A queue that this core serves.
struct Served {
    key: QueueKey,
    port: Arc<Port>,
    /// Its number among the port's.
    index: usize,
    queue: Box<dyn IngressQueue>,
    watch: Option<Watch>,
    costly: bool,
    empty_polls: u32,
    not_before: Instant,
    pause: Pause,
    /// For frames that wait for one of several queues at the other end of a wire; present where there is a wire.
    hold: Option<Box<Hold>>,
    /// Some do.
    holding: bool,
    share: Share,
    /// It had frames in the last round.
    moved: bool,
}

/// A batch that is not delivered whole.
struct Hold {
    gate: Option<Box<Gate>>,
    batch: Batch,
    tally: Tally,
}

/// An I/O core's private state.
pub(super) struct Core {
    number: usize,
    mailbox: Arc<Mailbox>,
    meter: Arc<Meter>,
    topology: Arc<Topology>,
    queues: Vec<Served>,
    batch: Batch,
    verdicts: Verdicts,
    delivery: Delivery,
    poller: Poller,
    /// Places of the queues that were kicked while the core slept.
    kicked: Vec<usize>,
    /// Queues that had frames in the last round.
    crowd: usize,
    spin: Duration,
    patience: Duration,
    epoch: Instant,
    /// What it is at, for the watch.
    beat: Arc<Beat>,
    /// When the last batch ended, or the round began: the clock as it was read last.
    clock: Instant,
    /// No queue is served.
    resting: bool,
}

impl Core {
    pub(super) fn new(
        number: usize,
        mailbox: Arc<Mailbox>,
        meter: Arc<Meter>,
        beat: Arc<Beat>,
        options: &CoreOptions,
        epoch: Instant,
    ) -> std::io::Result<Core> {
        let poller = Poller::new(mailbox.event())?;
        Ok(Core {
            number,
            mailbox,
            meter,
            topology: Arc::default(),
            queues: Vec::new(),
            batch: Batch::new(),
            verdicts: Verdicts::new(),
            delivery: Delivery::new(number, Arc::clone(&beat)),
            poller,
            kicked: Vec::with_capacity(EVENTS),
            crowd: 0,
            spin: options.spin,
            patience: options.patience,
            epoch,
            beat,
            clock: epoch,
            resting: false,
        })
    }

    /// Runs until a letter stops it.
    pub(super) fn run(mut self) {
        let mut round = 0u64;
        let mut before = Instant::now();
        let mut last_work = before;
        loop {
            if self.mailbox.is_raised() {
                self.beat.pause();
                if !self.read_mail() {
                    return;
                }
            }
            if self.resting {
                if self.mailbox.is_raised() {
                    continue;
                }
                self.beat.pause();
                // A kick that comes now is not missed: queues are looked at when they are served again.
                self.poller.wait(LONGEST_SLEEP, |_| ());
                last_work = Instant::now();
                self.meter.asleep(last_work - before);
                before = last_work;
                continue;
            }
            let frames = self.round(round, before);
            round = round.wrapping_add(1);
            let now = Instant::now();
            if frames > 0 {
                self.meter.busy(now - before, frames);
                last_work = now;
            } else {
                self.meter.idle(now - before);
                // Mail that was left for the next round has drained its eventfd: it would not wake us.
                if now - last_work >= self.spin && !self.mailbox.is_raised() {
                    let woken = self.sleep();
                    before = Instant::now();
                    self.meter.asleep(before - now);
                    // A nap that ended by itself is followed by one round, not by another spell of spinning.
                    if woken {
                        last_work = before;
                    }
                    let frames = self.wake_up(before);
                    if frames > 0 {
                        let now = Instant::now();
                        self.meter.busy(now - before, frames);
                        before = now;
                    }
                    continue;
                }
                std::hint::spin_loop();
            }
            before = now;
        }
    }

    /// Polls every queue that is due; returns how many frames were moved.
    fn round(&mut self, round: u64, now: Instant) -> u64 {
        let mut frames = 0;
        let mut crowd = 0;
        self.clock = now;
        for index in 0..self.queues.len() {
            let served = &mut self.queues[index];
            let silent = served.empty_polls >= SILENT_AFTER;
            // Silent queues take turns, so that a round never polls them all.
            if silent && (round.wrapping_add(index as u64)) % SILENT_EVERY != 0 {
                continue;
            }
            if served.costly && now < served.not_before {
                continue;
            }
            // Who made more copies than a turn has lets the others go first.
            if served.share.passes(self.crowd > usize::from(served.moved)) {
                served.moved = true;
                crowd += 1;
                continue;
            }
            let moved = self.serve(index);
            let served = &mut self.queues[index];
            served.moved = moved > 0;
            crowd += usize::from(served.moved);
            if moved == 0 {
                served.empty_polls = served.empty_polls.saturating_add(1);
                if served.costly {
                    served.not_before = now + COSTLY_PAUSE;
                }
            } else {
                served.empty_polls = 0;
            }
            frames += moved;
        }
        self.crowd = crowd;
        frames
    }

    /// Moves one batch of queue `index`: fetch, decide, deliver, give back.
    #[inline]
    fn serve(&mut self, index: usize) -> u64 {
        let served = &mut self.queues[index];
        if served.holding {
            return self.deliver_held(index, false);
        }
        self.beat.begin(served.port.id);
        let mut tally = Tally::default();
        self.batch.clear();
        let wired = Delivery::wired(&self.topology, &served.port);
        let several = wired.is_some_and(|port| port.egress_queues() > 1) && served.hold.is_some();
        let limit = match wired {
            // Nobody asks a receiver for room who has nothing for it: that takes its lock.
            Some(_) if !served.queue.has_frames() => 0,
            Some(port) if !several => {
                // The receiver's memory.
                self.beat.elsewhere();
                let limit = served.pause.limit(Delivery::room(port, 0), Instant::now);
                self.beat.towards(None);
                limit
            }
            _ => served.pause.limit(None, Instant::now),
        };
        self.batch.set_limit(limit.min(served.share.limit()));
        served.queue.fetch(&mut self.batch, &mut tally);
        if let Some(wait) = served.pause.over(&self.batch) {
            served.port.waits.add(served.index, wait);
        }
        if !self.batch.is_empty() {
            let now = seconds(self.epoch);
            if several {
                self.delivery.gate = served.hold.as_mut().and_then(|hold| hold.gate.take());
            }
            self.beat.elsewhere();
            let deliveries =
                self.delivery.forward(&self.topology, &served.port, &self.batch, now, &mut self.verdicts);
            served.share.took(self.batch.len(), deliveries);
            self.beat.towards(None);
            served.pause.took(&self.batch);
            if let Some(gate) = self.delivery.gate.take() {
                let held = gate.held();
                if let Some(hold) = &mut served.hold {
                    hold.gate = Some(gate);
                    if held > 0 {
                        // The queue gives nothing back, and is asked for nothing, until these are delivered.
                        served.holding = true;
                        hold.tally = tally;
                        std::mem::swap(&mut hold.batch, &mut self.batch);
                        return tally.frames.saturating_sub(held as u64);
                    }
                }
            }
        }
        if tally.frames > 0 {
            served.queue.release(&mut tally);
            let now = Instant::now();
            let took = now - self.clock;
            self.clock = now;
            if took > SLOW_BATCH {
                served.port.slow.batch(took);
            }
        }
        if tally.frames > 0 || tally.interrupts > 0 {
            served.port.counters.block(self.number).add_tally(&tally);
        }
        tally.frames
    }

    /// Delivers what queue `index` holds, as far as its receiver has room; all of it if it is `open`. When nothing is left
    /// the batch is given back. Returns how many frames were moved.
    #[cold]
    fn deliver_held(&mut self, index: usize, open: bool) -> u64 {
        let served = &mut self.queues[index];
        let Some(hold) = &mut served.hold else { return 0 };
        let Some(gate) = hold.gate.take() else { return 0 };
        self.beat.begin(served.port.id);
        if !open {
            served.queue.tend(&mut hold.tally);
        }
        self.beat.elsewhere();
        let before = gate.held();
        self.delivery.gate = Some(gate);
        self.delivery.again(&self.topology, &served.port, &hold.batch, open);
        self.beat.towards(None);
        hold.gate = self.delivery.gate.take();
        let left = hold.gate.as_ref().map_or(0, |gate| gate.held());
        if left == 0 {
            served.holding = false;
            served.queue.release(&mut hold.tally);
            served.port.counters.block(self.number).add_tally(&hold.tally);
            hold.batch.clear();
        }
        before.saturating_sub(left) as u64
    }

    /// Delivers all that queues hold: after this no batch is under way.
    fn settle(&mut self) {
        for index in 0..self.queues.len() {
            if self.queues[index].holding {
                self.deliver_held(index, true);
            }
        }
    }

    /// Gives the queues that are on a wire by now what they need to hold frames.
    fn prepare_holds(&mut self) {
        for served in &mut self.queues {
            if served.hold.is_none() && Delivery::wired(&self.topology, &served.port).is_some() {
                let gate = Box::new(Gate::new(&served.port, served.index, self.patience));
                let (batch, tally) = (Batch::new(), Tally::default());
                served.hold = Some(Box::new(Hold { gate: Some(gate), batch, tally }));
            }
        }
    }

    /// Reads a round's share of the letters; false if one of them ends the thread.
    fn read_mail(&mut self) -> bool {
        for _ in 0..LETTERS_A_ROUND {
            let Some(letter) = self.mailbox.open() else { break };
            match letter {
                Letter::Serve { key, port, index, mut queue } => {
                    queue.want_kicks(false);
                    let watch = queue.kick_fd().and_then(|fd| self.poller.watch(key, fd));
                    let costly = queue.poll_is_costly();
                    let not_before = Instant::now();
                    let pause = Pause::new(self.patience);
                    self.queues.push(Served {
                        key,
                        port,
                        index,
                        queue,
                        watch,
                        costly,
                        empty_polls: 0,
                        not_before,
                        pause,
                        hold: None,
                        holding: false,
                        share: Share::new(),
                        moved: false,
                    });
                    self.prepare_holds();
                }
                Letter::TakeBack { key, answer } => {
                    let place = self.queues.iter().position(|served| served.key == key);
                    if let Some(place) = place.filter(|place| self.queues[*place].holding) {
                        self.deliver_held(place, true);
                    }
                    let served = place.map(|place| self.queues.remove(place));
                    let queue = served.map(|served| {
                        if let Some(watch) = &served.watch {
                            self.poller.unwatch(watch);
                        }
                        served.queue
                    });
                    // The asker may have given up: then the queue ends here.
                    let _ = answer.send(queue);
                }
                Letter::Topology { topology, answer } => {
                    self.topology = topology;
                    self.prepare_holds();
                    let _ = answer.send(());
                }
                Letter::Rest { rest, answer } => {
                    self.settle();
                    self.resting = rest;
                    let _ = answer.send(());
                }
                Letter::Stop => return false,
            }
        }
        true
    }

    /// Sleeps until a kick, a frame from the host or a letter arrives, or for as long as a queue allows that
    /// nothing will wake us for. True unless it was only that.
    fn sleep(&mut self) -> bool {
        let mut waiting = false;
        let mut longest = LONGEST_SLEEP;
        for served in &mut self.queues {
            self.beat.begin(served.port.id);
            let frames = served.queue.want_kicks(true);
            if served.holding || served.pause.is_on() {
                longest = pause::NAP;
            } else {
                waiting |= frames;
            }
            // A queue that stopped itself gives no descriptor any more: it must not keep us awake.
            if served.watch.is_some() && served.queue.kick_fd().is_none() {
                if let Some(watch) = served.watch.take() {
                    self.poller.unwatch(&watch);
                }
            }
        }
        let mut woken = waiting;
        self.beat.pause();
        if !waiting {
            let naps = self.queues.iter().filter_map(|served| served.queue.longest_sleep());
            let longest = naps.fold(longest, Duration::min);
            let (queues, kicked) = (&self.queues, &mut self.kicked);
            let number = self.number;
            woken = self.poller.wait(longest, |key| {
                if let Some(place) = queues.iter().position(|served| served.key == key) {
                    let tally = Tally { kicks: 1, ..Tally::default() };
                    queues[place].port.counters.block(number).add_tally(&tally);
                    kicked.push(place);
                }
            });
        }
        woken
    }

    /// What follows a sleep: the queues that woke us are served at once, before the memory of all others is touched,
    /// which is cold by now; then no queue needs to kick any more. Returns how many frames were moved.
    fn wake_up(&mut self, now: Instant) -> u64 {
        let mut frames = 0;
        self.clock = now;
        while let Some(place) = self.kicked.pop() {
            frames += self.serve(place);
        }
        for served in &mut self.queues {
            self.beat.begin(served.port.id);
            served.queue.want_kicks(false);
            served.empty_polls = 0;
            served.not_before = now;
        }
        frames
    }
}

/// The clock of the MAC table: seconds since the engine started, from 1 on.
pub(super) fn seconds(epoch: Instant) -> u32 {
    u32::try_from(epoch.elapsed().as_secs()).unwrap_or(u32::MAX - 1) + 1
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod turns;
