//! Frames that the interface sends on one queue.
//!
//! Invariant of the `unsafe` here: a chunk is ours from the entry of the completion ring that hands it over
//! until the entry of the transmit ring that gives it away. Only this side's chunks, the upper half of the
//! frame memory, go round in these two rings.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use super::rings::{Descriptor, XdpSocket, XskRing, SLOTS};
use super::sys;
use crate::mem::Piece;
use crate::packet::{Batch, Frame};
use crate::port::{DropReason, EgressQueue, Fault, Outcome};

/// Bytes of an Ethernet header and two VLAN tags.
const HEADERS: u32 = 14 + 8;
/// System calls after which a kernel that takes nothing is left alone; it takes up to 32 frames with each.
const CALLS: u32 = SLOTS / 32 + 4;

/// Frames that the interface sends.
pub(super) struct XdpEgress {
    socket: Arc<XdpSocket>,
    tx: XskRing<16>,
    completion: XskRing<8>,
    /// Chunks that are ours; the one used last is used next, while it is still in the cache.
    free: Vec<u64>,
}

impl XdpEgress {
    pub(super) fn new(socket: Arc<XdpSocket>, tx: XskRing<16>, completion: XskRing<8>) -> XdpEgress {
        let free = (SLOTS..2 * SLOTS).rev().map(|i| u64::from(i) * u64::from(socket.chunk)).collect();
        XdpEgress { socket, tx, completion, free }
    }

    /// Takes the chunks back whose frames were sent.
    fn reap(&mut self) {
        let count = self.completion.filled();
        for _ in 0..count {
            self.free.push(self.completion.pop_address());
        }
        if count > 0 {
            self.completion.release();
        }
    }

    /// Puts one frame into the transmit ring.
    #[inline]
    fn put(&mut self, frame: &Frame, body: &[Piece]) -> Result<(), DropReason> {
        let longest = (self.socket.state.mtu.load(Ordering::Relaxed) + HEADERS).min(self.socket.chunk);
        if frame.len > longest {
            return Err(DropReason::HostRefused);
        }
        if self.tx.free() == 0 {
            return Err(DropReason::RingFull);
        }
        let address = self.free.pop().ok_or(DropReason::RingFull)?;
        let mut to = self.socket.umem.piece(usize::try_from(address).unwrap_or(usize::MAX), frame.len);
        let head = to.write(frame.head());
        to.advance(head);
        for piece in body {
            let done = to.write_from(piece);
            to.advance(done);
        }
        self.tx.push_frame(Descriptor { address, len: frame.len });
        Ok(())
    }

    /// Shows the kernel what was put in, and wakes it as often as it needs. An error: it will not send.
    fn flush(&mut self) -> Result<(), DropReason> {
        self.tx.publish();
        let mut calls = 0;
        while self.tx.wants_wakeup() && self.tx.free() < SLOTS && calls < CALLS {
            calls += 1;
            match sys::kick_tx(&self.socket.fd) {
                Ok(()) => {}
                Err(e) => match e.raw_os_error() {
                    // It takes some frames with each call, or has others on the way: what it does not take
                    // now goes with the next batch.
                    Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR) => {}
                    Some(libc::ENETDOWN) => return Err(DropReason::LinkDown),
                    Some(libc::ENXIO | libc::ENODEV) => {
                        self.socket.port.fault.set(Fault::InterfaceGone);
                        return Err(DropReason::LinkDown);
                    }
                    _ => return Err(DropReason::HostRefused),
                },
            }
        }
        self.reap();
        Ok(())
    }
}

impl EgressQueue for XdpEgress {
    fn send(&mut self, batch: &Batch, picks: &[u16], outcome: &mut Outcome) {
        self.reap();
        let mut put = false;
        for &pick in picks {
            let frame = batch.frame(pick);
            match self.put(frame, batch.body(frame)) {
                Ok(()) => {
                    put = true;
                    outcome.delivered(frame.len);
                }
                Err(reason) => outcome.dropped(pick, reason),
            }
        }
        if put {
            // The frames are in the ring, and leave it when the interface is up again.
            let _ = self.flush();
        }
    }

    fn is_a_peers(&self) -> bool {
        false
    }
}
