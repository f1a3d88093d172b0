//! Interrupts: causes, their mask, the timer, and how often (`IMR`, `ISR`, `TimerInt`, and the mitigation
//! beside `C+CR`).
//!
//! Theory of operation. I/O cores and the driver meet under the lock that every card's interrupts have
//! (`device::moderation`). The pin's level is up while a cause is set that is not masked.
//!
//! *Moderation.* The pin has a gate (`device::moderation`): interrupts come at least the operator's floor
//! apart, but a gate that was quiet lets the next few through at once. The driver's own mitigation delays
//! causes until a number of frames has come or a while has passed. While the floor holds, reports of sent
//! frames wait beside that until the guest stops sending, or half of its ring is to be given back: they are
//! news to the driver alone, and each interrupt costs it five traps.
//!
//! *Acknowledgements* clear what the driver has read, and no cause that was set since. VMMs send writes
//! without waiting for an answer, so one may come long after the driver has emptied its ring, and a frame
//! before it: that frame's cause would go unheard, and the driver would not look until the next one.

use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use super::regs::cause::{LINK, ROK, TIMEOUT, TOK};
use crate::device::moderation::{self, Causes, Delayed, InterruptGate, NEVER};
use crate::device::pci::Interrupts;
use crate::port::InterruptCount;

/// How long reports of sent frames wait while the operator's floor holds, in nanoseconds: for silence, and at
/// most.
const SILENCE: u64 = 250_000;
const PATIENCE: u64 = 1_000_000;
/// A tick of `TCTR`, in nanoseconds: 125 MHz.
pub(super) const TICK: u64 = 8;
/// How long the PHY negotiates, in nanoseconds: long enough for its driver to see that the link is down.
const NEGOTIATION: u64 = 250_000_000;
/// Units of mitigation at 1000 Mb/s, in nanoseconds, by `C+CR`.
const UNITS: [u64; 4] = [320, 2_560, 5_120, 10_240];
/// Frames that a number of mitigation stands for.
const FRAMES: u32 = 4;

/// The driver's mitigation in one direction: how long a cause waits, in nanoseconds (zero: not at all), and
/// for how many frames at most (zero: however many).
#[derive(Clone, Copy, Default)]
struct Mitigation {
    time: u64,
    frames: u32,
}

impl Mitigation {
    fn new(time: u32, frames: u32, unit: u64) -> Mitigation {
        Mitigation { time: u64::from(time & 0xf) * unit, frames: (frames & 0xf) * FRAMES }
    }
}

/// What a cause waits for.
#[derive(Clone, Copy, Default)]
struct Waiting {
    due: Delayed,
    frames: u32,
}

/// Everything behind the lock.
#[derive(Default)]
pub struct IrqState {
    isr: u32,
    /// Causes that were set since the driver has read `isr`.
    unread: u32,
    imr: u32,
    gate: InterruptGate,
    receive: Waiting,
    transmit: Waiting,
    mitigation: [Mitigation; 2],
    /// When `TCTR` was at zero, and when it interrupts.
    counted_from: u64,
    timer: Option<u64>,
    /// When the PHY will have negotiated.
    pub(super) negotiated: Option<u64>,
}

impl IrqState {
    fn set(&mut self, causes: u32) {
        self.isr |= causes;
        self.unread |= causes;
    }

    fn due(&self) -> u64 {
        let timers = [self.timer, self.negotiated].into_iter().flatten().min().unwrap_or(NEVER);
        self.receive.due.due().min(self.transmit.due.due()).min(timers)
    }
}

/// A device's interrupts.
pub(super) type Irq = moderation::Irq<IrqState>;

impl Irq {
    pub(super) fn new(interrupts: Arc<Interrupts>, floor: Duration) -> std::io::Result<Irq> {
        Irq::with(interrupts, floor, ())
    }

    /// What was let through and what was not.
    pub(super) fn passed(&self) -> InterruptCount {
        crate::lock(&self.state).gate.passed
    }

    /// Sets causes; returns how many interrupts were sent.
    pub(super) fn raise(&self, causes: u32) -> u64 {
        let mut state = crate::lock(&self.state);
        state.set(causes);
        self.settle_if_heard(&mut state)
    }

    /// `frames` were received.
    pub(super) fn received(&self, frames: u32) -> u64 {
        let mut state = crate::lock(&self.state);
        let Mitigation { time, frames: most } = state.mitigation[0];
        let waiting = &mut state.receive;
        waiting.frames = waiting.frames.saturating_add(frames);
        if time == 0 || most != 0 && waiting.frames >= most {
            *waiting = Waiting::default();
            state.set(ROK);
            return self.settle_if_heard(&mut state);
        }
        let now = self.alarm.now();
        waiting.due.first = waiting.due.first.min(now + time);
        state.settle(self, now, true)
    }

    /// `frames` were sent. `at_once`: the driver needs its buffers back.
    pub(super) fn sent(&self, frames: u32, at_once: bool) -> u64 {
        let mut state = crate::lock(&self.state);
        let Mitigation { time, frames: most } = state.mitigation[1];
        let waiting = &mut state.transmit;
        waiting.frames = waiting.frames.saturating_add(frames);
        let enough = time == 0 || most != 0 && waiting.frames >= most;
        if at_once || self.floor == 0 && enough {
            *waiting = Waiting::default();
            state.set(TOK);
            return self.settle_if_heard(&mut state);
        }
        let now = self.alarm.now();
        if self.floor == 0 {
            waiting.due.first = waiting.due.first.min(now + time);
        } else {
            waiting.due.last = now + time.max(SILENCE);
            waiting.due.first = waiting.due.first.min(now + time.max(PATIENCE));
        }
        state.settle(self, now, true)
    }

    /// A driver that polls has masked everything: nothing comes of it, and not even the clock is looked at.
    fn settle_if_heard(&self, state: &mut IrqState) -> u64 {
        if state.imr == 0 && state.due() == NEVER && !state.gate.level {
            return 0;
        }
        state.settle(self, self.alarm.now(), true)
    }
}

impl Causes for IrqState {
    type Beside = ();

    fn settle(&mut self, irq: &Irq, now: u64, news: bool) -> u64 {
        // A cause that is set at once takes those along that wait.
        let ripe = |waiting: &Waiting, cause: u32| waiting.due.due() <= now && self.imr & cause != 0;
        let immediate = self.isr & self.imr != 0 || ripe(&self.receive, ROK) || ripe(&self.transmit, TOK);
        let take = |waiting: &mut Waiting, cause: u32| {
            let due = waiting.due.due();
            if due != NEVER && (immediate || due <= now) {
                *waiting = Waiting::default();
                cause
            } else {
                0
            }
        };
        let taken = take(&mut self.receive, ROK) | take(&mut self.transmit, TOK);
        let over = |at: &mut Option<u64>, cause| at.take_if(|at| *at <= now).map_or(0, |_| cause);
        let over = over(&mut self.timer, TIMEOUT) | over(&mut self.negotiated, LINK);
        self.set(taken | over);
        let mut next = self.due();
        let rises = irq.pin(&mut self.gate, self.isr & self.imr != 0, 0, (now, news), &mut next);
        irq.alarm.set(next);
        u64::from(rises && irq.interrupts.set_level(true))
    }
}

/// What the driver does.
impl Irq {
    /// `IMR` and, in the upper half, `ISR`.
    pub(super) fn read(&self) -> u32 {
        let state = crate::lock(&self.state);
        state.imr | state.isr << 16
    }

    /// The driver reads both: it knows of all causes now.
    pub(super) fn look(&self) -> u32 {
        let mut state = crate::lock(&self.state);
        state.unread = 0;
        state.imr | state.isr << 16
    }

    /// Ones clear causes that the driver has read.
    pub(super) fn acknowledge(&self, causes: u32) {
        let mut state = crate::lock(&self.state);
        state.isr &= !causes | state.unread;
        self.changed(&mut state);
    }

    /// Which causes interrupt.
    pub(super) fn set_mask(&self, mask: u32) {
        let mut state = crate::lock(&self.state);
        let now = self.alarm.now();
        if mask & TOK != 0 && self.floor != 0 {
            // It has just looked. What was sent in between is not worth an interrupt of its own, unless
            // nothing more comes.
            self.taken_back[0].fetch_add(1, Ordering::Relaxed);
            if state.isr & TOK != 0 {
                state.isr &= !TOK;
                state.transmit =
                    Waiting { due: Delayed { last: now + SILENCE, first: now + PATIENCE }, frames: 0 };
            }
        }
        state.imr = mask;
        self.changed(&mut state);
    }

    /// The word of mitigation, and the unit of its times (`C+CR`).
    pub(super) fn mitigate(&self, word: u32, unit: u32) {
        let unit = UNITS[(unit & 3) as usize];
        let receive = Mitigation::new(word >> 4, word, unit);
        let transmit = Mitigation::new(word >> 12, word >> 8, unit);
        crate::lock(&self.state).mitigation = [receive, transmit];
    }

    /// `TCTR`: ticks since it was at zero.
    pub(super) fn ticks(&self) -> u32 {
        let from = crate::lock(&self.state).counted_from;
        #[expect(clippy::cast_possible_truncation, reason = "it wraps")]
        let ticks = (self.alarm.now().saturating_sub(from) / TICK) as u32;
        ticks
    }

    /// The timer interrupts after `ticks` ticks from zero; zero: never. `restart`: it is at zero now.
    pub(super) fn set_timer(&self, ticks: u32, restart: bool) {
        let mut state = crate::lock(&self.state);
        let now = self.alarm.now();
        if restart {
            state.counted_from = now;
        }
        state.timer = match (ticks, state.counted_from + u64::from(ticks) * TICK) {
            (0, _) => None,
            (_, at) if at > now => Some(at),
            // It is past, and comes around.
            (_, at) => Some(at + (1 << 32) * TICK),
        };
        self.changed(&mut state);
    }

    /// The PHY begins to negotiate: the driver hears that the link goes, and in the end that it is back.
    pub(super) fn negotiate(&self) {
        crate::lock(&self.state).negotiated = Some(self.alarm.now() + NEGOTIATION);
        self.alarm.note(self.raise(LINK));
    }

    /// Whether it still does.
    pub(super) fn negotiates(&self) -> bool {
        crate::lock(&self.state).negotiated.is_some_and(|at| self.alarm.now() < at)
    }

    /// Goes on for a device of another process, whose mask was `imr`. Which causes were set then is unknown:
    /// all are set that frames and the link have. An interrupt for nothing is harmless, one that is missed is
    /// not.
    pub(super) fn resume(&self, imr: u32) {
        let mut state = crate::lock(&self.state);
        state.imr = imr;
        state.set(ROK | TOK | LINK);
        self.alarm.note(state.settle(self, self.alarm.now(), true));
    }

    /// Reset values. The gate stays: a driver that resets in a loop is not let through faster. The chip's
    /// reset is none of the PHY, which goes on to negotiate.
    pub(super) fn reset(&self) {
        let mut state = crate::lock(&self.state);
        let (mut gate, negotiated) = (state.gate, state.negotiated);
        gate.level = false;
        *state = IrqState { gate, counted_from: self.alarm.now(), negotiated, ..IrqState::default() };
        self.interrupts.set_level(false);
        state.settle(self, self.alarm.now(), false);
    }
}
