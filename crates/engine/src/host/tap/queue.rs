//! The two directions of one TAP queue.
//!
//! Invariant of the `unsafe` here: the arena is one private mapping that lives as long as its ingress
//! queue and that only [`TapIngress::fetch`] writes, when no batch of the queue is under way (the contract
//! of `IngressQueue`: `release` comes after every `fetch`, and the batch's pieces die with it). Every
//! read into it, and every piece made of it, ends inside it. The vectors of a `writev` lead into locals
//! that outlive the call and into pieces that the batch keeps mapped; the kernel copies, and answers
//! EFAULT rather than raise a signal if memory has vanished.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use libc::iovec;
use rustix::io::Errno;

use crate::host::describe::{describe, gather, Facts};
use crate::host::mapping::Mapping;
use crate::mem::Piece;
use crate::packet::{Batch, Frame, Offloads, HEAD, MAX_PIECES};
use crate::port::{DropReason, EgressQueue, Fault, IngressQueue, Outcome, Port, Tally};
use crate::util::slice::{behind, upto};

/// Longest frame that a TAP hands over: 64 KiB of IP, Ethernet and two VLAN tags, rounded up. Longer
/// ones are cut by the kernel and dropped by us.
const MAX_FRAME: usize = (1 << 16) + 2 * HEAD;
/// Most frames of one batch: each costs a system call, and the port's neighbours wait meanwhile.
const MAX_FETCH: usize = 64;
/// Frames are read one behind the other: 64 short ones lie in a few KiB, and after seven of 64 KiB the
/// batch ends. The second-level cache holds all of it until the receiver has copied it out.
const ARENA: usize = 8 * MAX_FRAME;

/// What both directions of a queue share.
pub(super) struct TapQueue {
    /// The queue's descriptor.
    pub(super) fd: OwnedFd,
    /// The port that it belongs to.
    pub(super) port: Arc<Port>,
    /// Bytes of the virtio-net header before each frame: 12, or 0 if the interface has none.
    pub(super) header: usize,
    /// Whether the operator has left the carrier up.
    pub(super) carrier: Arc<AtomicBool>,
}

/// Frames that the host sends.
pub(super) struct TapIngress {
    queue: Arc<TapQueue>,
    arena: Mapping,
    allowed: Offloads,
    stopped: bool,
}

impl TapIngress {
    /// The ingress side of a queue whose interface asks for `allowed` at most.
    pub(super) fn new(queue: Arc<TapQueue>, allowed: Offloads) -> io::Result<TapIngress> {
        Ok(TapIngress { queue, arena: Mapping::private(ARENA)?, allowed, stopped: false })
    }

    fn stop(&mut self) {
        self.stopped = true;
        self.queue.port.fault.set(Fault::InterfaceGone);
    }

    /// Makes a frame of the `len` bytes at `at`, header and all.
    fn describe(&mut self, at: usize, len: usize, batch: &mut Batch) -> Result<(), DropReason> {
        let header_len = self.queue.header;
        // SAFETY: `fetch`, which alone writes to the arena, has just done so and waits for us.
        let (header, bytes) = unsafe { self.arena.bytes(at, len) }.split_at(header_len.min(len));
        let facts = Facts {
            header: header.first_chunk().copied().unwrap_or_default(),
            tag: None,
            allowed: self.allowed,
        };
        describe(batch, bytes, &facts, |from, len| self.arena.piece(at + header_len + from, len))
    }
}

impl IngressQueue for TapIngress {
    fn fetch(&mut self, batch: &mut Batch, tally: &mut Tally) {
        // The frame itself begins on a cache line, behind a header that ends there.
        let mut line = HEAD;
        for _ in 0..batch.room().min(MAX_FETCH) {
            if self.stopped || batch.is_spent() || line + MAX_FRAME > ARENA {
                return;
            }
            let at = line - self.queue.header;
            // SAFETY: the batch is empty beyond what this call put in, which lies before `at`.
            let room = unsafe { self.arena.bytes_mut(at, MAX_FRAME) };
            let wanted = room.len();
            let len = match rustix::io::read(&self.queue.fd, room) {
                // A read that fills all of the room may have been cut.
                Ok(len) => len,
                Err(Errno::AGAIN | Errno::INTR) => return,
                // The kernel had a frame that its own header cannot describe (an offload that has just
                // been switched off): it is lost, the next ones are not.
                Err(Errno::INVAL) => {
                    tally.frames += 1;
                    tally.drops.add(DropReason::BadOffload, 1);
                    batch.skip();
                    continue;
                }
                // EBADFD: the interface was deleted. Nothing else is known to come, and nothing else
                // could be mended here.
                Err(_) => return self.stop(),
            };
            tally.frames += 1;
            tally.bytes += len.saturating_sub(self.queue.header) as u64;
            let result = if len == wanted { Err(DropReason::TooLong) } else { self.describe(at, len, batch) };
            match result {
                Ok(()) => line = (at + len + self.queue.header).next_multiple_of(HEAD),
                Err(reason) => {
                    tally.drops.add(reason, 1);
                    batch.skip();
                }
            }
        }
    }

    fn release(&mut self, _: &mut Tally) {}

    /// The descriptor is readable whenever frames wait, asked or not: no notification has to be asked for.
    fn want_kicks(&mut self, _: bool) -> bool {
        false
    }

    /// The queue's own descriptor. A core that watches it has to be given the same one when it stops, so
    /// it stays, although it is readable for ever once the interface is gone: the port's fault makes the
    /// attachment take the queue back.
    fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.queue.fd.as_fd())
    }

    fn poll_is_costly(&self) -> bool {
        true
    }
}

/// Frames that the host receives.
pub(super) struct TapEgress {
    queue: Arc<TapQueue>,
    vectors: Box<[iovec; 2 + MAX_PIECES]>,
}

// SAFETY: the vectors are scratch space that is filled anew for each call; no pointer in it is used later.
unsafe impl Send for TapEgress {}

impl TapEgress {
    /// The egress side of a queue.
    pub(super) fn new(queue: Arc<TapQueue>) -> TapEgress {
        let blank = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        TapEgress { queue, vectors: Box::new([blank; 2 + MAX_PIECES]) }
    }

    /// Hands one frame to the host.
    fn write(&mut self, frame: &Frame, body: &[Piece]) -> Result<(), Errno> {
        let header = frame.offload.to_bytes(0);
        let used = gather(&mut self.vectors[..], upto(&header, self.queue.header), frame, body);
        let first = usize::from(self.queue.header == 0);
        let vectors = &self.vectors[first..used];
        // SAFETY: at most 258 vectors, fewer than IOV_MAX; each leads to readable memory (module
        // invariant), and `writev` only reads.
        let result = unsafe {
            libc::writev(
                self.queue.fd.as_raw_fd(),
                vectors.as_ptr(),
                libc::c_int::try_from(vectors.len()).unwrap_or(0),
            )
        };
        if result < 0 {
            Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
        } else {
            Ok(())
        }
    }
}

impl EgressQueue for TapEgress {
    fn send(&mut self, batch: &Batch, picks: &[u16], outcome: &mut Outcome) {
        if !self.queue.carrier.load(Ordering::Relaxed) {
            return outcome.dropped_all(picks, DropReason::LinkDown);
        }
        for (i, &pick) in picks.iter().enumerate() {
            let Some(frame) = batch.frames().get(usize::from(pick)) else { continue };
            match self.write(frame, batch.body(frame)) {
                Ok(()) => outcome.delivered(frame.len),
                Err(Errno::AGAIN) => outcome.dropped(pick, DropReason::RingFull),
                // EIO: the interface is down (`ip link set … down`); it stays so for this batch.
                Err(Errno::IO | Errno::NETDOWN) => {
                    return outcome.dropped_all(behind(picks, i), DropReason::LinkDown)
                }
                // EBADFD: it was deleted.
                Err(Errno::BADFD | Errno::NODEV) => {
                    self.queue.port.fault.set(Fault::InterfaceGone);
                    return outcome.dropped_all(behind(picks, i), DropReason::LinkDown);
                }
                Err(_) => outcome.dropped(pick, DropReason::HostRefused),
            }
        }
    }

    fn is_a_peers(&self) -> bool {
        false
    }
}
