//! Interrupts: causes, masks, messages, and how often (8254x SDM §13.4.17–13.4.21; 82574 §7.4, §10.2.4).
//!
//! Theory of operation. I/O cores and the driver meet under the lock that every card's interrupts have
//! (`device::moderation`).
//!
//! *Pin and MSI.* The level is up while an enabled cause is set. *MSI-X* (82574 only). Each queue cause and
//! `OTHER` goes to the message that `IVAR` names. Sending it clears the causes in `EIAC`, and masks them
//! unless `CTRL_EXT.IAME` is set. A receive cause stays held after its message until the driver writes `IMS`,
//! which every driver does when it has emptied its ring: silicon would go on interrupting a driver that
//! polls. For one that never does, the hold ends by itself ([`LONGEST_HOLD`]).
//!
//! *Moderation.* Each message, and the pin, has a gate: interrupts may come `gap` apart, but a gate that was
//! quiet lets the next few (`moderation`) through at once, so that a single ping waits for nothing: neither
//! for its own gap nor for the one that the completion of its request began. The gap is the driver's (ITR,
//! EITR), at least our own floor, which grows while interrupts keep having to wait and which the operator
//! sets. RDTR, RADV, TIDV and TADV delay causes before they are set, for pin and MSI, as on silicon.
//!
//! Files: `state` what is behind the lock, and how long sent frames wait for their interrupt, `registers`
//! what the driver does to it, `service` how a guest is kept out of receive livelock. The gates' arithmetic,
//! and when all of this is looked at again, are every NIC's (`device::moderation`).

mod registers;
mod service;
mod state;

use std::sync::Arc;
use std::time::Duration;

pub(super) use self::registers::SAVED;
use self::service::Services;
pub(super) use self::state::IrqState;
use self::state::Report;
use super::config::Model;
use super::regs::{
    self, CTRL_EXT_EIAME, CTRL_EXT_IAME, OTHER, OTHER_CAUSES, QUEUES, RXQ0, RXQ1, RXT0, TXDW, TXQ0, TXQ1,
    VECTORS,
};
use crate::device::moderation::{self, Causes, Delayed, NEVER};
use crate::device::pci::{Interrupts, Mode};
use crate::port::InterruptCount;

/// Longest hold of a receive cause after its message, in nanoseconds.
const LONGEST_HOLD: u64 = 5_000_000;
/// Units of ITR and EITR, and of the four delays, in nanoseconds (8254x SDM §13.4.18, §13.4.30).
const ITR_UNIT: u64 = 256;
const DELAY_UNIT: u64 = 1_024;

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

/// A device's interrupts.
pub(super) type Irq = moderation::Irq<IrqState>;

/// What a device knows of its interrupts without the lock.
pub struct Fixed {
    model: Model,
    services: Services,
}

impl Irq {
    /// `share`: percent of its time that the guest may spend on receive interrupts.
    pub(super) fn new(
        model: Model,
        interrupts: Arc<Interrupts>,
        floor: Duration,
        share: u32,
    ) -> std::io::Result<Irq> {
        Irq::with(interrupts, floor, Fixed { model, services: Services::new(share) })
    }

    /// What was let through and what was not on the way of `cause`, a queue's, or by the pin.
    pub(super) fn passed(&self, cause: u32) -> InterruptCount {
        let state = crate::lock(&self.state);
        let mut vectors = 0..VECTORS;
        let vector = if self.by_queue() {
            vectors.find(|v| routed(state.registers.ivar, *v) & cause != 0)
        } else {
            Some(0)
        };
        vector.map_or_else(InterruptCount::default, |vector| state.gates[vector].passed)
    }

    /// Whether causes go to messages of their own.
    pub(super) fn by_queue(&self) -> bool {
        self.beside.model == Model::E1000e && self.interrupts.mode() == Mode::Msix
    }

    /// Raises causes, and `delayable` ones after their delay; returns how many interrupts were sent.
    pub(super) fn raise(&self, causes: u32, delayable: u32, delay: Delay) -> u64 {
        let mut state = crate::lock(&self.state);
        state.set(causes);
        let at_once = match delay {
            // Receive causes of MSI-X are not delayed (82574 §7.4.4).
            Delay::Receive(..) if self.by_queue() => true,
            Delay::Receive(last, _) | Delay::Transmit(last, _) => last & 0xffff == 0,
            Delay::None => true,
        } || state.wanted & delayable == 0;
        if at_once && (state.registers.icr | delayable) & state.registers.ims == 0 && !state.delays() {
            // A driver that polls: nothing comes of it, and not even the clock is looked at.
            state.set(delayable);
            return 0;
        }
        let now = self.alarm.now();
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
        state.settle(self, now, true)
    }
}

impl Causes for IrqState {
    type Beside = Fixed;

    fn settle(&mut self, irq: &Irq, now: u64, news: bool) -> u64 {
        let by_queue = irq.by_queue();
        // A cause that is set at once takes those along that were delayed (8254x SDM §3.2.7.1.2).
        let immediate = !by_queue && self.registers.icr & self.registers.ims != 0;
        if self.receive.due() != NEVER && (immediate || self.receive.due() <= now) {
            self.receive = Delayed::default();
            self.set(RXT0);
        }
        for queue in 0..QUEUES {
            let due = self.transmit[queue].due();
            if due != NEVER && (immediate || due <= now) {
                self.transmit[queue] = Delayed::default();
                self.set(if by_queue { TXQ0 << queue } else { TXDW });
            }
        }
        let mut next = self.due();
        for queue in 0..QUEUES {
            match self.serving[queue] {
                // A driver that never enables it again, or not as others do.
                Some(since) if now - since >= LONGEST_HOLD => irq.end(self, queue, now),
                Some(since) => next = next.min(since + LONGEST_HOLD),
                None => {}
            }
        }
        let send = if by_queue { Irq::messages } else { Irq::message };
        let sent = send(irq, self, now, news, &mut next);
        irq.alarm.set(next);
        sent
    }
}

impl Irq {
    /// By the pin, or the one message of MSI.
    fn message(&self, state: &mut IrqState, now: u64, news: bool, next: &mut u64) -> u64 {
        let pending = state.registers.icr & state.registers.ims;
        let gap = u64::from(state.registers.itr & 0xffff) * ITR_UNIT;
        if !self.pin(&mut state.gates[0], pending != 0, gap, (now, news), next) {
            return 0;
        }
        state.unsent = 0;
        state.rang[0] |= pending & RXT0 != 0;
        let sent = match self.interrupts.mode() {
            Mode::Intx => self.interrupts.set_level(true),
            Mode::Msi | Mode::Msix => self.interrupts.message(0),
        };
        u64::from(sent)
    }

    fn messages(&self, state: &mut IrqState, now: u64, news: bool, next: &mut u64) -> u64 {
        if state.unsent & state.registers.ims & OTHER_CAUSES != 0 {
            state.unsent &= !OTHER_CAUSES;
            state.set(OTHER);
        }
        let waiting = state.unsent & state.registers.icr & state.registers.ims;
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
            let causes = ready & routed(state.registers.ivar, vector);
            if causes == 0 {
                continue;
            }
            let gap = u64::from(state.registers.eitr[vector] & 0xffff) * ITR_UNIT;
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
    fn sent(state: &mut IrqState, causes: u32, now: u64) {
        let registers = &mut state.registers;
        state.unsent &= !causes;
        registers.icr &= !(causes & registers.eiac);
        if registers.ext & CTRL_EXT_IAME == 0 {
            registers.ims &= !(causes & registers.eiac);
        }
        if registers.ext & CTRL_EXT_EIAME != 0 {
            registers.iam &= !causes;
        }
        for (queue, until) in state.held_until.iter_mut().enumerate() {
            if causes & RXQ0 << queue != 0 {
                state.held |= RXQ0 << queue;
                *until = now + LONGEST_HOLD;
            }
        }
        for (queue, report) in state.reports.iter_mut().enumerate() {
            if causes & TXQ0 << queue != 0 {
                report.tell(now);
            }
        }
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
