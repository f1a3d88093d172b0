//! Frames that the interface receives on one queue.
//!
//! Invariant of the `unsafe` here: a chunk that the receive ring hands over is ours until `release` puts it
//! back into the fill ring; the kernel does not write there meanwhile.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use super::rings::{XdpSocket, XskRing, SLOTS};
use super::sys;
use crate::host::describe::{describe, Facts};
use crate::packet::{Batch, Offload, Offloads, MAX_BATCH};
use crate::port::{DropReason, IngressQueue, Tally};

/// Rounds with frames after which the kernel is asked what it lost.
const ASK_EVERY: u32 = 4096;
/// Frames ahead that are fetched into the cache.
const AHEAD: usize = 8;

/// Frames that the interface receives.
pub(super) struct XdpIngress {
    socket: Arc<XdpSocket>,
    rx: XskRing<16>,
    fill: XskRing<8>,
    /// Checksums may be half made: the frames do not come off a wire.
    suspicious: bool,
    /// Chunks of the batch that is under way.
    taken: Vec<u64>,
    rounds: u32,
    /// Frames lost, as far as they were counted.
    lost: u64,
    /// Frames lost that are still to be counted.
    pending: u64,
}

impl XdpIngress {
    pub(super) fn new(
        socket: Arc<XdpSocket>,
        rx: XskRing<16>,
        mut fill: XskRing<8>,
        suspicious: bool,
    ) -> XdpIngress {
        (0..SLOTS).for_each(|i| fill.push_address(u64::from(i) * u64::from(socket.chunk)));
        fill.publish();
        let taken = Vec::with_capacity(MAX_BATCH);
        XdpIngress { socket, rx, fill, suspicious, taken, rounds: 0, lost: 0, pending: 0 }
    }

    /// Asks the kernel what it lost.
    fn ask(&mut self) {
        self.rounds = 0;
        let lost = sys::lost(&self.socket.fd);
        self.pending += lost.saturating_sub(self.lost);
        self.lost = lost;
    }

    #[inline]
    fn describe(&self, at: usize, len: usize, batch: &mut Batch) -> Result<(), DropReason> {
        // SAFETY: the chunk is ours.
        let bytes = unsafe { self.socket.umem.bytes(at, len) };
        let mut facts = Facts::default();
        if self.suspicious {
            if let Some(offload) = Offload::half_made(bytes) {
                facts.header = offload.to_bytes(0);
                facts.allowed = Offloads::CSUM;
            }
        }
        describe(batch, bytes, &facts, |from, len| self.socket.umem.piece(at + from, len))
    }
}

impl IngressQueue for XdpIngress {
    fn fetch(&mut self, batch: &mut Batch, tally: &mut Tally) {
        let count = (self.rx.filled() as usize).min(batch.room());
        if count > 0 {
            self.rounds += 1;
        }
        if self.rounds == ASK_EVERY {
            self.ask();
        }
        if self.pending > 0 {
            let lost = u32::try_from(self.pending).unwrap_or(u32::MAX);
            self.pending -= u64::from(lost);
            tally.frames += u64::from(lost);
            tally.drops.add(DropReason::HostOverrun, lost);
        }
        for i in 0..count {
            if batch.is_spent() {
                break;
            }
            if i + AHEAD < count {
                let ahead = self.rx.peek_frame(AHEAD);
                self.socket.umem.piece(usize::try_from(ahead.address).unwrap_or(0), 64).prefetch(0);
            }
            let frame = self.rx.pop_frame();
            self.taken.push(frame.address & !(u64::from(self.socket.chunk) - 1));
            tally.frames += 1;
            tally.bytes += u64::from(frame.len);
            let at = usize::try_from(frame.address).unwrap_or(usize::MAX);
            if let Err(reason) = self.describe(at, frame.len as usize, batch) {
                tally.drops.add(reason, 1);
                batch.skip();
            }
        }
        if !self.socket.state.wanted.load(Ordering::Relaxed) {
            tally.drops.add(DropReason::LinkDown, u32::try_from(batch.len()).unwrap_or(0));
            batch.clear();
        }
    }

    fn has_frames(&mut self) -> bool {
        self.rx.filled() > 0
    }

    fn release(&mut self, _: &mut Tally) {
        if self.taken.is_empty() {
            return;
        }
        self.rx.release();
        // As many chunks as the ring has places are ours or in it: there is room.
        for address in self.taken.drain(..) {
            self.fill.push_address(address);
        }
        self.fill.publish();
        if self.fill.wants_wakeup() {
            sys::kick_rx(&self.socket.fd);
        }
    }

    /// The socket is readable while frames wait, asked or not. A driver that wants to be woken for the fill
    /// ring is, before the core sleeps.
    fn want_kicks(&mut self, on: bool) -> bool {
        if !on || self.socket.port.fault.get().is_some() {
            return false;
        }
        if self.fill.wants_wakeup() {
            sys::kick_rx(&self.socket.fd);
        }
        if self.rounds > 0 {
            self.ask();
        }
        self.pending > 0 || self.rx.filled() > 0
    }

    fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.fd.as_fd())
    }
}
