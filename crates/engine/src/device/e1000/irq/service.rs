//! How much of its time a guest spends on receive interrupts.
//!
//! Theory of operation. A guest whose interrupt work goes before everything else can be kept busy by frames
//! that no program takes from it any more: receive livelock (Mogul and Ramakrishnan 1997). If the operator
//! gives receiving a share of the guest's time, we tell when the guest serves a receive interrupt: from the
//! message, or from masking the pin, until the driver enables the cause again. In that time it gets one ring
//! of frames and no more, so that it comes to an end; and if that held frames back, the next interrupt waits
//! until the guest has had its time for the rest.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::state::IrqState;
use super::{routed, Irq, LONGEST_HOLD, QUEUES, RXQ0, VECTORS};

/// What a device knows of it outside of the lock.
#[derive(Default)]
pub(super) struct Services {
    /// Percent of its time that the guest may spend on receive interrupts; 100: all.
    pub(super) share: u32,
    /// Odd while the guest serves a queue's receive interrupt; one more at each beginning and end.
    count: [AtomicU64; QUEUES],
    /// Frames were held back in this service.
    overload: [AtomicBool; QUEUES],
}

impl Services {
    pub(super) fn new(share: u32) -> Services {
        Services { share: share.clamp(1, 100), ..Services::default() }
    }
}

impl Irq {
    /// Which receive interrupt of queue `queue` the guest is serving, if receiving has a share.
    #[inline]
    pub(in super::super) fn service(&self, queue: usize) -> Option<u64> {
        if self.beside.services.share == 100 {
            return None;
        }
        let service = self.beside.services.count[self.server(queue)].load(Ordering::Relaxed);
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
    pub(in super::super) fn overloaded(&self, queue: usize) {
        self.beside.services.overload[self.server(queue)].store(true, Ordering::Relaxed);
    }

    /// The guest begins to serve a receive interrupt of queue `queue`.
    pub(super) fn begin(&self, state: &mut IrqState, queue: usize, now: u64) {
        let Services { share, count, overload } = &self.beside.services;
        if *share < 100 && state.rang[queue] && state.serving[queue].is_none() {
            state.serving[queue] = Some(now);
            overload[queue].store(false, Ordering::Relaxed);
            count[queue].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// It has served it: the rest of its time is its own, if there were more frames than it could take.
    pub(super) fn end(&self, state: &mut IrqState, queue: usize, now: u64) {
        state.rang[queue] = false;
        let Some(since) = state.serving[queue].take() else { return };
        let Services { share, count, overload } = &self.beside.services;
        count[queue].fetch_add(1, Ordering::Relaxed);
        if overload[queue].swap(false, Ordering::Relaxed) {
            let rest = (now - since).min(LONGEST_HOLD) * u64::from(100 - share) / u64::from(*share);
            let by_queue = self.by_queue();
            for vector in 0..VECTORS {
                if if by_queue {
                    routed(state.registers.ivar, vector) & RXQ0 << queue != 0
                } else {
                    vector == 0
                } {
                    state.gates[vector].not_before = now + rest.min(LONGEST_HOLD);
                }
            }
        }
    }
}
