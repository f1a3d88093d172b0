//! Frames that the interface sends: up to 64 of them with one system call, out of the sender's memory.
//!
//! Invariant of the `unsafe` here: messages and vectors are scratch space that is filled anew before each
//! call and used by nothing else. The vectors lead into headers of ours and frames of the batch, which
//! outlive the call, and into pieces that the batch keeps mapped; the kernel copies, and answers EFAULT
//! rather than raise a signal if memory has vanished.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::{io, ptr};

use libc::{iovec, mmsghdr};
use rustix::io::Errno;
use sidecore_abi::virtio::NET_HDR_LEN;

use super::ring::HEADER;
use crate::host::describe::gather;
use crate::mem::Piece;
use crate::packet::{Batch, Frame, MAX_PIECES};
use crate::port::{DropReason, EgressQueue, Fault, Outcome, Port};
use crate::util::slice::{behind, upto};

/// Most frames of one call.
const MESSAGES: usize = 64;
/// Vectors of one call: a header, a head and a body for each, or one frame of as many pieces as can be.
const VECTORS: usize = 2 + MAX_PIECES + 3 * MESSAGES;

/// Frames that the interface sends.
pub(super) struct PacketEgress {
    fd: Arc<OwnedFd>,
    port: Arc<Port>,
    messages: Box<[mmsghdr]>,
    vectors: Box<[iovec]>,
    headers: Box<[[u8; NET_HDR_LEN]]>,
}

// SAFETY: no pointer in the scratch space is used after the call that it was filled in for.
unsafe impl Send for PacketEgress {}

impl PacketEgress {
    pub(super) fn new(fd: Arc<OwnedFd>, port: Arc<Port>) -> PacketEgress {
        // SAFETY: all-zero bytes are a valid message: no name, no vectors.
        let message: mmsghdr = unsafe { std::mem::zeroed() };
        let vector = iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        PacketEgress {
            fd,
            port,
            messages: vec![message; MESSAGES].into(),
            vectors: vec![vector; VECTORS].into(),
            headers: vec![[0; NET_HDR_LEN]; MESSAGES].into(),
        }
    }

    /// Fills in message `index` with a frame; its vectors begin at `at`. Returns where they end.
    fn fill(&mut self, index: usize, at: usize, frame: &Frame, body: &[Piece]) -> usize {
        self.headers[index] = frame.offload.to_bytes(0);
        let end = at + gather(&mut self.vectors[at..], upto(&self.headers[index], HEADER), frame, body);
        let message = &mut self.messages[index].msg_hdr;
        message.msg_iov = self.vectors[at..end].as_mut_ptr();
        message.msg_iovlen = (end - at) as _;
        end
    }

    /// Hands the first `count` messages to the kernel; returns how many it took.
    fn call(&mut self, from: usize, count: usize) -> Result<usize, Errno> {
        let messages = &mut self.messages[from..count];
        let n = u32::try_from(messages.len()).unwrap_or(0);
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: `n` messages whose vectors lead to readable memory (module invariant).
        let sent = unsafe { libc::sendmmsg(self.fd.as_raw_fd(), messages.as_mut_ptr(), n, flags as _) };
        usize::try_from(sent)
            .map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
    }

    /// Sends the frames `picks`, whose messages are filled in. False: the link is down, no more will go.
    fn flush(&mut self, batch: &Batch, picks: &[u16], outcome: &mut Outcome) -> bool {
        let mut done = 0;
        while done < picks.len() {
            match self.call(done, picks.len()) {
                Ok(sent) => {
                    for &pick in &picks[done..done + sent] {
                        outcome.delivered(batch.frame(pick).len);
                    }
                    done += sent;
                    continue;
                }
                Err(Errno::INTR) => continue,
                // Nothing of the rest would fit either.
                Err(Errno::AGAIN | Errno::NOBUFS) => {
                    outcome.dropped_all(behind(picks, done), DropReason::RingFull);
                    return true;
                }
                Err(Errno::NETDOWN) => {}
                Err(Errno::NXIO | Errno::NODEV) => self.port.fault.set(Fault::InterfaceGone),
                Err(_) => {
                    outcome.dropped(picks[done], DropReason::HostRefused);
                    done += 1;
                    continue;
                }
            }
            outcome.dropped_all(behind(picks, done), DropReason::LinkDown);
            return false;
        }
        true
    }
}

impl EgressQueue for PacketEgress {
    fn send(&mut self, batch: &Batch, picks: &[u16], outcome: &mut Outcome) {
        let mut first = 0;
        let mut vectors = 0;
        for (i, &pick) in picks.iter().enumerate() {
            let frame = batch.frame(pick);
            let body = batch.body(frame);
            if i - first == MESSAGES || vectors + 2 + body.len() > VECTORS {
                if !self.flush(batch, &picks[first..i], outcome) {
                    return outcome.dropped_all(behind(picks, i), DropReason::LinkDown);
                }
                (first, vectors) = (i, 0);
            }
            vectors = self.fill(i - first, vectors, frame, body);
        }
        self.flush(batch, behind(picks, first), outcome);
    }

    fn is_a_peers(&self) -> bool {
        false
    }
}
