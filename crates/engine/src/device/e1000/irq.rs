//! Interrupts: causes, masks, messages, and how often (8254x SDM §13.4.17–13.4.21; 82574 §7.4, §10.2.4).
//!
//! Theory of operation. I/O cores raise causes, at most once a batch; the driver reads, clears and masks them
//! by trapped accesses. Both meet under one lock, which is held for some tens of nanoseconds (and for the
//! write of one eventfd).
//!
//! *Pin and MSI.* The level is up while an enabled cause is set. *MSI-X* (82574 only). Each queue cause and
//! `OTHER` goes to the message that `IVAR` names. Sending it clears the causes in `EIAC`, and masks them unless
//! `CTRL_EXT.IAME` is set. A receive cause stays held after its message until the driver writes `IMS`, which
//! every driver does when it has emptied its ring: silicon would go on interrupting a driver that polls. For
//! one that never does, the hold ends by itself ([`LONGEST_HOLD`]).
//!
//! *Moderation.* Each message, and the pin, has a gate: interrupts may come `gap` apart, but a gate that was
//! quiet lets the next `gate::BURST` through at once, so that a single ping waits for nothing: neither for its own
//! gap nor for the one that the completion of its request began. The gap is the driver's (ITR, EITR), at least
//! our own floor, which grows while interrupts keep having to wait and which the operator sets. RDTR, RADV, TIDV
//! and TADV delay causes before they are set, for pin and MSI, as on silicon.
//!
//! *Sent frames* are no news to anybody but the driver, which wants its buffers back, and it can wait for them as long
//! as its ring has room. So while our floor holds, reports of them wait until the guest stops sending, for a
//! millisecond at most, or until half of the ring is to be given back: then at once, so that the ring is never full
//! while the interrupt is on its way. A driver that enables the report again has just looked: waiting begins anew.
//!
//! *Receive livelock.* A guest whose interrupt work goes before everything else can be kept busy by frames that
//! nobody takes from it any more (Mogul and Ramakrishnan 1997). If the operator gives receiving a share of the
//! guest's time, we tell when the guest serves a receive interrupt: from the message, or from masking the pin, until
//! the driver enables the cause again. In that time it gets one ring of frames and no more, so that it comes to an
//! end; and if that held frames back, the next interrupt waits until the guest has had its time for the rest.
//!
//! *Time.* Nothing here has a timer, and tests turn the clock by hand. What waits is written down as one deadline, which the transmit queue
//! compares with the clock whenever it is polled, and which bounds the nap of its I/O core.

mod gate;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{fence, AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{eventfd, EventfdFlags};

use self::gate::{Delayed, Gate, NEVER};
use super::regs::{
    self, CTRL_EXT_EIAME, CTRL_EXT_IAME, INT_ASSERTED, OTHER, OTHER_CAUSES, QUEUES, RXQ0, RXQ1, RXT0, TXDW,
    TXQ0, TXQ1, VECTORS,
};
use super::Model;
use crate::device::pci::{Interrupts, Mode};
use crate::port::InterruptCount;

/// Smallest gap between two interrupts, if the operator does not say otherwise.
pub(super) const FLOOR: Duration = Duration::from_micros(8);
/// Longest hold of a receive cause after its message, in nanoseconds.
const LONGEST_HOLD: u64 = 5_000_000;
/// Longest time for which the driver is not told again of sent frames, in nanoseconds.
const LONGEST_WAIT: u64 = 1_000_000;
/// Units of ITR and EITR, and of the four delays, in nanoseconds (8254x SDM §13.4.18, §13.4.30).
const ITR_UNIT: u64 = 256;
const DELAY_UNIT: u64 = 1_024;
/// How long a report of sent frames waits while the operator's floor holds, in `DELAY_UNIT`: for silence, and at
/// most.
const PATIENCE: (u32, u32) = (250, 1_000);

/// What can be delayed, with the ring's delay registers (in 1.024 µs).
#[derive(Clone, Copy)]
pub(super) enum Delay {
    /// At once.
    None,
    /// A receive cause: RDTR, RADV.
    Receive(u32, u32),
    /// A transmit cause: TIDV, TADV.
    Transmit(u32, u32),
}

#[derive(Default)]
struct Words {
    icr: u32,
    ims: u32,
    iam: u32,
    eiac: u32,
    ivar: u32,
    ext: u32,
    itr: u32,
    eitr: [u32; VECTORS],
}

/// The driver has been told of a queue's sent frames and has not enabled such reports since; whether it ever does, and
/// until when it is not told again.
#[derive(Clone, Copy, Default)]
struct Report {
    told: bool,
    answers: bool,
    after: u64,
}

struct State {
    words: Words,
    /// Causes that are set and have not been sent as a message.
    unsent: u32,
    /// Receive causes that wait for the driver to write `IMS`, and until when at most, of each queue.
    held: u32,
    held_until: [u64; QUEUES],
    /// The pin's level.
    level: bool,
    gates: [Gate; VECTORS],
    receive: Delayed,
    /// Of each queue; by the pin all go with the first one's.
    transmit: [Delayed; QUEUES],
    /// What the driver has enabled since the last reset, whether or not it is now.
    wanted: u32,
    /// What is known of reports of sent frames, of each queue.
    reports: [Report; QUEUES],
    /// A receive interrupt was sent since the driver enabled its cause, of each queue; the pin's is the first one's.
    rang: [bool; QUEUES],
    /// Since when the guest has been serving it.
    serving: [Option<u64>; QUEUES],
}

impl State {
    fn new() -> State {
        State {
            words: Words::default(),
            unsent: 0,
            held: 0,
            held_until: [NEVER; QUEUES],
            level: false,
            gates: [Gate::default(); VECTORS],
            receive: Delayed::NONE,
            transmit: [Delayed::NONE; QUEUES],
            wanted: 0,
            reports: [Report::default(); QUEUES],
            rang: [false; QUEUES],
            serving: [None; QUEUES],
        }
    }

    /// When the first delay ends.
    fn due(&self) -> u64 {
        let [first, second] = &self.transmit;
        self.receive.due().min(first.due()).min(second.due())
    }

    /// Whether a cause waits for its delay to end.
    fn delays(&self) -> bool {
        self.due() != NEVER
    }

    fn set(&mut self, causes: u32) {
        self.words.icr |= causes;
        self.unsent |= causes;
    }
}

/// Words that are saved.
pub(super) const SAVED: usize = 6 + VECTORS;

/// Nanoseconds since the device came to be.
enum Clock {
    System(Instant),
    /// Stands until somebody turns it.
    #[cfg(test)]
    Manual(AtomicU64),
}

/// A device's interrupts.
pub(super) struct Irq {
    model: Model,
    pub(super) interrupts: Arc<Interrupts>,
    state: Mutex<State>,
    deadline: AtomicU64,
    /// Interrupts that accesses of the driver, or the link, have brought, and that no I/O core has counted yet.
    uncounted: AtomicU64,
    clock: Clock,
    /// The operator's gap.
    floor: u64,
    /// Percent of its time that the guest may spend on receive interrupts; 100: all.
    share: u32,
    /// Odd while the guest serves a queue's receive interrupt; one more at each beginning and end.
    service: [AtomicU64; QUEUES],
    /// Frames were held back in this service.
    overload: [AtomicBool; QUEUES],
    /// How often the driver has taken back what it sent by each queue, as far as we can tell.
    taken_back: [AtomicU64; QUEUES],
    /// The I/O core that watches the deadline is about to sleep.
    sleeping: AtomicBool,
    wake: OwnedFd,
}

impl Irq {
    pub(super) fn new(model: Model, interrupts: Arc<Interrupts>, floor: Duration) -> std::io::Result<Irq> {
        Ok(Irq {
            model,
            interrupts,
            state: Mutex::new(State::new()),
            deadline: AtomicU64::new(NEVER),
            uncounted: AtomicU64::new(0),
            clock: Clock::System(Instant::now()),
            share: 100,
            service: [const { AtomicU64::new(0) }; QUEUES],
            overload: [const { AtomicBool::new(false) }; QUEUES],
            taken_back: [const { AtomicU64::new(0) }; QUEUES],
            floor: u64::try_from(floor.as_nanos()).unwrap_or(u64::MAX >> 16),
            sleeping: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Nanoseconds since the device came to be.
    pub(super) fn now(&self) -> u64 {
        match &self.clock {
            Clock::System(start) => u64::try_from(start.elapsed().as_nanos()).unwrap_or(NEVER - 1),
            #[cfg(test)]
            Clock::Manual(now) => now.load(Ordering::Relaxed),
        }
    }

    /// What was let through and what was not on the way of `cause`, a queue's, or by the pin.
    pub(super) fn passed(&self, cause: u32) -> InterruptCount {
        let state = self.lock();
        let mut vectors = 0..VECTORS;
        let vector = if self.by_queue() {
            vectors.find(|v| routed(state.words.ivar, *v) & cause != 0)
        } else {
            Some(0)
        };
        vector.map_or_else(InterruptCount::default, |vector| state.gates[vector].passed)
    }

    /// Gives receive interrupts `percent` of the guest's time.
    pub(super) fn limit(mut self, percent: u32) -> Irq {
        self.share = percent.clamp(1, 100);
        self
    }

    /// Which receive interrupt of queue `queue` the guest is serving, if receiving has a share.
    #[inline]
    pub(super) fn service(&self, queue: usize) -> Option<u64> {
        if self.share == 100 {
            return None;
        }
        let service = self.service[self.server(queue)].load(Ordering::Relaxed);
        (service & 1 != 0).then_some(service)
    }

    /// Whose service a receive queue's is: without messages there is one for both.
    fn server(&self, queue: usize) -> usize {
        if self.by_queue() {
            queue
        } else {
            0
        }
    }

    /// Frames for queue `queue` were held back because the guest has had what it gets in one service.
    pub(super) fn overloaded(&self, queue: usize) {
        self.overload[self.server(queue)].store(true, Ordering::Relaxed);
    }

    /// The guest begins to serve a receive interrupt of queue `queue`.
    fn begin(&self, state: &mut State, queue: usize, now: u64) {
        if self.share < 100 && state.rang[queue] && state.serving[queue].is_none() {
            state.serving[queue] = Some(now);
            self.overload[queue].store(false, Ordering::Relaxed);
            self.service[queue].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// It has served it: the rest of its time is its own, if there were more frames than it could take.
    fn end(&self, state: &mut State, queue: usize, now: u64) {
        state.rang[queue] = false;
        let Some(since) = state.serving[queue].take() else { return };
        self.service[queue].fetch_add(1, Ordering::Relaxed);
        if self.overload[queue].swap(false, Ordering::Relaxed) {
            let rest = (now - since).min(LONGEST_HOLD) * u64::from(100 - self.share) / u64::from(self.share);
            let by_queue = self.by_queue();
            for vector in 0..VECTORS {
                if if by_queue { routed(state.words.ivar, vector) & RXQ0 << queue != 0 } else { vector == 0 }
                {
                    state.gates[vector].not_before = now + rest.min(LONGEST_HOLD);
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No step under the lock leaves it half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether causes go to messages of their own.
    #[inline]
    pub(super) fn by_queue(&self) -> bool {
        self.model == Model::E1000e && self.interrupts.mode() == Mode::Msix
    }

    /// How long reports of sent frames wait, whatever the driver says: until the guest is silent, and at most. The
    /// unit is that of TIDV and TADV. Nothing if the operator leaves it to the driver.
    #[inline]
    pub(super) fn patience(&self) -> Option<(u32, u32)> {
        (self.floor != 0).then_some(PATIENCE)
    }

    /// Changes when the driver has taken back what it sent by transmit queue `queue`.
    #[inline]
    pub(super) fn taken_back(&self, queue: usize) -> u64 {
        self.taken_back[queue].load(Ordering::Relaxed)
    }

    /// The driver enables reports of sent frames, as it does when it has just taken back all that was done: what has
    /// been done in between is not worth an interrupt of its own, unless nothing more comes.
    fn answer(&self, state: &mut State, queue: usize, cause: u32, now: u64) {
        let report = &mut state.reports[queue];
        report.answers |= std::mem::take(&mut report.told);
        report.after = 0;
        self.taken_back[queue].fetch_add(1, Ordering::Relaxed);
        if state.words.icr & cause != 0 {
            state.words.icr &= !cause;
            state.unsent &= !cause;
            let after = |units: u32| now + u64::from(units) * DELAY_UNIT;
            state.transmit[queue] = Delayed { last: after(PATIENCE.0), first: after(PATIENCE.1) };
        }
    }

    /// Raises causes, and `delayable` ones after their delay; returns how many interrupts were sent.
    pub(super) fn raise(&self, causes: u32, delayable: u32, delay: Delay) -> u64 {
        let mut state = self.lock();
        state.set(causes);
        let at_once = match delay {
            // Receive causes of MSI-X are not delayed (82574 §7.4.4).
            Delay::Receive(..) if self.by_queue() => true,
            Delay::Receive(last, _) | Delay::Transmit(last, _) => last & 0xffff == 0,
            Delay::None => true,
        } || state.wanted & delayable == 0;
        if at_once && (state.words.icr | delayable) & state.words.ims == 0 && !state.delays() {
            // A driver that polls: nothing comes of it, and not even the clock is looked at.
            state.set(delayable);
            return 0;
        }
        let now = self.now();
        if delayable != 0 {
            let (timer, (after_last, after_first)) = match delay {
                Delay::Receive(..) if self.by_queue() => (None, (0, 0)),
                Delay::Receive(last, first) => (Some(&mut state.receive), (last, first)),
                Delay::Transmit(last, first) => {
                    (Some(&mut state.transmit[usize::from(delayable & TXQ1 != 0)]), (last, first))
                }
                Delay::None => (None, (0, 0)),
            };
            let ns = |units: u32| now + u64::from(units & 0xffff) * DELAY_UNIT;
            match timer {
                Some(timer) if after_last & 0xffff != 0 => {
                    timer.last = ns(after_last);
                    if timer.first == NEVER && after_first & 0xffff != 0 {
                        timer.first = ns(after_first);
                    }
                }
                _ => state.set(delayable),
            }
        }
        self.settle(&mut state, now, true)
    }

    /// Sends what may be sent now and notes when to look again. `news`: causes were raised.
    fn settle(&self, state: &mut State, now: u64, news: bool) -> u64 {
        let mut next = NEVER;
        let mut sent = 0;
        let by_queue = self.by_queue();
        // A cause that is set at once takes those along that were delayed (8254x SDM §3.2.7.1.2).
        let immediate = !by_queue && state.words.icr & state.words.ims != 0;
        if state.receive.due() != NEVER && (immediate || state.receive.due() <= now) {
            state.receive = Delayed::NONE;
            state.set(RXT0);
        }
        for queue in 0..QUEUES {
            let due = state.transmit[queue].due();
            if due != NEVER && (immediate || due <= now) {
                state.transmit[queue] = Delayed::NONE;
                state.set(if by_queue { TXQ0 << queue } else { TXDW });
            }
        }
        next = next.min(state.due());
        for queue in 0..QUEUES {
            match state.serving[queue] {
                // A driver that never enables it again, or not as others do.
                Some(since) if now - since >= LONGEST_HOLD => self.end(state, queue, now),
                Some(since) => next = next.min(since + LONGEST_HOLD),
                None => {}
            }
        }
        if by_queue {
            sent += self.messages(state, now, news, &mut next);
        } else {
            sent += self.pin(state, now, news, &mut next);
        }
        let earlier = next < self.deadline.swap(next, Ordering::AcqRel);
        if earlier {
            self.wake_sleeper();
        }
        sent
    }

    fn pin(&self, state: &mut State, now: u64, news: bool, next: &mut u64) -> u64 {
        let pending = state.words.icr & state.words.ims != 0;
        if !pending {
            if state.level {
                state.level = false;
                self.interrupts.set_level(false);
            }
            return 0;
        }
        if state.level {
            return 0;
        }
        let gap = u64::from(state.words.itr & 0xffff) * ITR_UNIT;
        match state.gates[0].pass(now, gap, self.floor, news) {
            Err(opens) => {
                *next = opens.min(*next);
                0
            }
            Ok(()) => {
                state.level = true;
                state.unsent = 0;
                state.rang[0] |= state.words.icr & state.words.ims & RXT0 != 0;
                let sent = match self.interrupts.mode() {
                    Mode::Intx => self.interrupts.set_level(true),
                    Mode::Msi | Mode::Msix => self.interrupts.message(0),
                };
                u64::from(sent)
            }
        }
    }

    fn messages(&self, state: &mut State, now: u64, news: bool, next: &mut u64) -> u64 {
        if state.unsent & state.words.ims & OTHER_CAUSES != 0 {
            state.unsent &= !OTHER_CAUSES;
            state.set(OTHER);
        }
        let waiting = state.unsent & state.words.icr & state.words.ims;
        for (queue, until) in state.held_until.iter().enumerate() {
            if now >= *until {
                state.held &= !(RXQ0 << queue);
            }
            if waiting & state.held & RXQ0 << queue != 0 {
                *next = (*until).min(*next);
            }
        }
        let mut ready = waiting & !state.held;
        for (queue, Report { after, .. }) in state.reports.iter().enumerate() {
            if ready & TXQ0 << queue != 0 && now < *after {
                ready &= !(TXQ0 << queue);
                *next = (*after).min(*next);
            }
        }
        let mut sent = 0;
        for vector in 0..VECTORS {
            let causes = ready & routed(state.words.ivar, vector);
            if causes == 0 {
                continue;
            }
            let gap = u64::from(state.words.eitr[vector] & 0xffff) * ITR_UNIT;
            match state.gates[vector].pass(now, gap, self.floor, news) {
                Err(opens) => *next = opens.min(*next),
                Ok(()) => {
                    #[expect(clippy::cast_possible_truncation, reason = "below VECTORS")]
                    let went = self.interrupts.message(vector as u16);
                    sent += u64::from(went);
                    Self::sent(state, causes, now);
                    for queue in (0..QUEUES).filter(|queue| causes & RXQ0 << queue != 0) {
                        state.rang[queue] = true;
                        self.begin(state, queue, now);
                    }
                }
            }
        }
        sent
    }

    /// What sending a message does to causes and masks (82574 §7.4.3, §10.2.4.6).
    fn sent(state: &mut State, causes: u32, now: u64) {
        let words = &mut state.words;
        state.unsent &= !causes;
        words.icr &= !(causes & words.eiac);
        if words.ext & CTRL_EXT_IAME == 0 {
            words.ims &= !(causes & words.eiac);
        }
        if words.ext & CTRL_EXT_EIAME != 0 {
            words.iam &= !causes;
        }
        for (queue, until) in state.held_until.iter_mut().enumerate() {
            if causes & RXQ0 << queue != 0 {
                state.held |= RXQ0 << queue;
                *until = now + LONGEST_HOLD;
            }
        }
        for (queue, report) in state.reports.iter_mut().enumerate() {
            if causes & TXQ0 << queue != 0 {
                // Held, too, where the driver is known to write `IMS` afterwards: not every version does.
                if report.answers {
                    report.after = now + LONGEST_WAIT;
                }
                report.told = true;
            }
        }
    }

    /// Sends what has become due. Cheap when nothing has.
    #[inline]
    pub(super) fn poll(&self) -> u64 {
        let deadline = self.deadline.load(Ordering::Acquire);
        if deadline == NEVER || self.now() < deadline {
            return 0;
        }
        let mut state = self.lock();
        self.settle(&mut state, self.now(), false)
    }

    /// Interrupts that came without an I/O core: the next one to look counts them.
    pub(super) fn note(&self, interrupts: u64) {
        self.uncounted.fetch_add(interrupts, Ordering::Relaxed);
    }

    /// Takes what was noted.
    #[inline]
    pub(super) fn noted(&self) -> u64 {
        match self.uncounted.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.uncounted.swap(0, Ordering::Relaxed),
        }
    }

    /// How long until something becomes due.
    pub(super) fn due_in(&self) -> Option<Duration> {
        let deadline = self.deadline.load(Ordering::Acquire);
        (deadline != NEVER).then(|| Duration::from_nanos(deadline.saturating_sub(self.now())))
    }

    /// The watching core is about to sleep, or is awake. After `true`, a look at the deadline must follow.
    pub(super) fn set_sleeping(&self, sleeping: bool) {
        self.sleeping.store(sleeping, Ordering::Relaxed);
        if sleeping {
            fence(Ordering::SeqCst);
        }
    }

    /// Wakes the core that serves the transmit queue if it sleeps: there is a deadline, or a tail, that it may not
    /// have seen.
    pub(super) fn wake_sleeper(&self) {
        // Either the core sees it before it sleeps, or we see that it sleeps.
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    fn wake(&self) {
        // Fails only when the counter is full, and then the core is awake.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Readable when the core has been woken.
    pub(super) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Whether `offset` is one of the registers kept here.
    pub(super) fn owns(&self, offset: u32) -> bool {
        match offset {
            regs::ICR | regs::ITR | regs::ICS | regs::IMS | regs::IMC | regs::CTRL_EXT => true,
            regs::EIAC | regs::IAM | regs::IVAR => self.model == Model::E1000e,
            _ => self.vector(offset).is_some(),
        }
    }

    fn vector(&self, offset: u32) -> Option<usize> {
        let index = (offset.checked_sub(regs::EITR0)? / 4) as usize;
        (self.model == Model::E1000e && index < VECTORS).then_some(index)
    }

    /// The driver reads one of these registers.
    pub(super) fn read(&self, offset: u32) -> u32 {
        let mut state = self.lock();
        let words = &mut state.words;
        match offset {
            regs::ICR => {
                let asserted = words.icr & words.ims != 0;
                let value = words.icr | if asserted { INT_ASSERTED } else { 0 };
                if asserted && words.ext & CTRL_EXT_IAME != 0 && self.model == Model::E1000e {
                    words.ims &= !words.iam;
                }
                // With messages of their own, causes are cleared by reading only under these two conditions
                // (82574 §10.2.4.1). Linux relies on the first one without IAME: it never clears LSC otherwise, and
                // would look at its link whenever anything else happens.
                if !self.by_queue() || asserted || words.ims == 0 {
                    words.icr = 0;
                    state.unsent = 0;
                }
                self.note(self.settle(&mut state, self.now(), false));
                value
            }
            regs::ICS => words.icr,
            regs::IMS => words.ims,
            regs::ITR => words.itr,
            regs::EIAC => words.eiac,
            regs::IAM => words.iam,
            regs::IVAR => words.ivar,
            regs::CTRL_EXT => words.ext,
            _ => self.vector(offset).map_or(0, |vector| words.eitr[vector]),
        }
    }

    /// The driver writes one of these registers.
    pub(super) fn write(&self, offset: u32, value: u32) {
        let mut state = self.lock();
        let receive = if self.by_queue() { [RXQ0, RXQ1] } else { [RXT0, 0] };
        for queue in (0..QUEUES).filter(|queue| value & receive[*queue] != 0) {
            match offset {
                regs::IMS => self.end(&mut state, queue, self.now()),
                regs::IMC => self.begin(&mut state, queue, self.now()),
                _ => {}
            }
        }
        if offset == regs::IMS && self.floor != 0 {
            let causes = if self.by_queue() { [TXQ0, TXQ1] } else { [TXDW, TXDW] };
            for (queue, cause) in causes.into_iter().enumerate() {
                if value & cause != 0 {
                    self.answer(&mut state, queue, cause, self.now());
                }
            }
        }
        let words = &mut state.words;
        match offset {
            regs::ICR => {
                if self.model == Model::E1000e && words.icr & words.ims != 0 && words.ext & CTRL_EXT_IAME != 0
                {
                    words.ims &= !words.iam;
                }
                // Windows clears everything that OTHER stands for by clearing OTHER.
                let others = if value & OTHER != 0 { OTHER_CAUSES } else { 0 };
                words.icr &= !(value | others);
            }
            regs::ICS => state.set(value & !INT_ASSERTED),
            regs::IMS => {
                // A cause that was set while it was masked interrupts now.
                let unmasked = value & !words.ims;
                words.ims |= value & !INT_ASSERTED;
                state.wanted |= value;
                state.unsent |= unmasked & state.words.icr;
                state.held &= !value;
            }
            regs::IMC => words.ims &= !value,
            regs::ITR => words.itr = value,
            regs::EIAC => words.eiac = value,
            regs::IAM => words.iam = value,
            regs::IVAR => words.ivar = value,
            regs::CTRL_EXT => words.ext = value & !regs::CTRL_EXT_EE_RST,
            _ => {
                if let Some(vector) = self.vector(offset) {
                    words.eitr[vector] = value;
                }
            }
        }
        self.note(self.settle(&mut state, self.now(), false));
    }

    /// The registers, to be saved. Causes are not among them: see [`resume`](Irq::resume).
    pub(super) fn words(&self) -> [u32; SAVED] {
        let Words { ims, iam, eiac, ivar, ext, itr, eitr, .. } = &self.lock().words;
        let mut words = [0; SAVED];
        words[..6].copy_from_slice(&[*ims, *iam, *eiac, *ivar, *ext, *itr]);
        words[6..].copy_from_slice(eitr);
        words
    }

    /// Goes on for a device of another process, whose registers were `words`. Which causes were set then, and which
    /// interrupts were sent, nobody knows: so all are set that frames and the link have, and every message is sent.
    /// An interrupt for nothing is harmless, one that is missed is not.
    pub(super) fn resume(&self, words: [u32; SAVED]) {
        let mut state = self.lock();
        let eitr = std::array::from_fn(|vector| words[6 + vector]);
        let [ims, iam, eiac, ivar, ext, itr, ..] = words;
        state.words = Words { icr: 0, ims, iam, eiac, ivar, ext, itr, eitr };
        // Whether it waits for reports of sent frames, too.
        state.wanted = ims | TXDW | TXQ0 | TXQ1;
        let queues = if self.model == Model::E1000e { RXQ0 | RXQ1 | TXQ0 | TXQ1 | OTHER } else { 0 };
        state.set(TXDW | RXT0 | regs::LSC | queues);
        match self.interrupts.mode() {
            Mode::Msix if self.model == Model::E1000e => {
                for vector in (0..VECTORS).filter(|vector| routed(ivar, *vector) != 0) {
                    #[expect(clippy::cast_possible_truncation, reason = "below VECTORS")]
                    self.interrupts.message(vector as u16);
                }
            }
            Mode::Msix | Mode::Msi => drop(self.interrupts.message(0)),
            Mode::Intx => {}
        }
        self.note(self.settle(&mut state, self.now(), true));
    }

    /// Reset values. Gates stay: a driver that resets in a loop is not let through faster.
    pub(super) fn reset(&self) {
        let mut state = self.lock();
        let gates = state.gates;
        (0..QUEUES).for_each(|queue| self.end(&mut state, queue, self.now()));
        *state = State { gates, ..State::new() };
        self.interrupts.set_level(false);
        self.settle(&mut state, self.now(), false);
    }
}

/// The causes that `ivar` sends to message `vector` (82574 §10.2.4.9).
fn routed(ivar: u32, vector: usize) -> u32 {
    let fields = [(RXQ0, 0), (RXQ1, 4), (TXQ0, 8), (TXQ1, 12), (OTHER, 16)];
    let here = |shift: u32| {
        let field = ivar >> shift & 0xf;
        field & 8 != 0 && (field & 7) as usize == vector
    };
    fields.iter().filter(|(_, shift)| here(*shift)).fold(0, |all, (cause, _)| all | cause)
}

#[cfg(test)]
mod tests;
