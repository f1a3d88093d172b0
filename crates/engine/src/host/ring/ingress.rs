//! A ring on which a native program sends.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{eventfd, EventfdFlags};

use super::settings::{RingPortSettings, Wake, OFFLOADS};
use crate::frame::Batch;
use crate::port::{DropReason, IngressQueue, Tally};
use crate::ring::{ClientTx, RingStats, Tickets};
use crate::slots::{Drain, Header};

/// A ring on which the client sends.
pub struct RingIngress {
    slots: Drain<Tickets>,
    settings: Arc<RingPortSettings>,
    kick: OwnedFd,
    wake: Wake,
}

impl RingIngress {
    /// The queue of `ring`, which wakes the client by `wake`.
    ///
    /// # Errors
    /// What the system says of making an eventfd.
    pub(super) fn new(
        ring: ClientTx,
        settings: Arc<RingPortSettings>,
        wake: Wake,
    ) -> std::io::Result<RingIngress> {
        let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(RingIngress { slots: Drain::new(ring), settings, kick, wake })
    }

    /// What went wrong so far.
    pub(super) fn stats(&self) -> &Arc<RingStats> {
        self.slots.stats()
    }

    /// The first slot that has not been released.
    pub(super) fn first(&self) -> u32 {
        self.slots.first()
    }

    /// Slots that wait.
    pub(super) fn waiting(&mut self) -> u32 {
        self.slots.waiting()
    }

    /// The eventfd by which the client kicks.
    pub(super) fn kick(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }
}

impl IngressQueue for RingIngress {
    fn fetch(&mut self, batch: &mut Batch, tally: &mut Tally) {
        let header = Header { bytes: self.settings.header(), offloads: OFFLOADS };
        self.slots.fetch(header, batch, tally);
        if self.settings.is_down() && !batch.is_empty() {
            #[expect(clippy::cast_possible_truncation, reason = "at most MAX_BATCH")]
            tally.drops.add(DropReason::LinkDown, batch.len() as u32);
            batch.clear();
        }
    }

    fn has_frames(&mut self) -> bool {
        self.slots.waiting() > 0
    }

    fn release(&mut self, tally: &mut Tally) {
        tally.occasions += 1;
        if self.slots.release() {
            self.wake.wake();
            tally.interrupts += 1;
        }
    }

    fn want_kicks(&mut self, on: bool) -> bool {
        self.slots.want_kicks(on)
    }

    fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.kick.as_fd())
    }
}
