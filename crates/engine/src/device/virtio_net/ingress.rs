//! The guest's transmit ring: chains in, frames out.
//!
//! Each chain is the network header (virtio 1.2 §5.1.6) and a frame, cut anywhere. Header and first 64
//! bytes are read once into private memory; what follows stays where it is. The chains are given back
//! when the batch has been delivered.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use sidecore_abi::virtio::{features, NET_HDR_LEN, NET_HDR_LEN_LEGACY};

use super::features::host_offloads;
use super::moderated::Looks;
use crate::mem::{gather, Piece};
use crate::packet::{Batch, Frame, Offload, Offloads, HEAD, MAX_BATCH, MAX_FRAME, MIN_FRAME};
use crate::port::{DropReason, IngressQueue, Port, Tally};
use crate::util::fault::Fault;
use crate::util::slice::upto_mut;
use crate::virtq::{Access, Chain, Position, Queue};

/// Bytes of the network header with `num_buffers`.
pub(super) const HEADER_LEN: u32 = 12;
const HEADER_LEN_LEGACY: u32 = 10;
const _: () = assert!(HEADER_LEN as usize == NET_HDR_LEN && HEADER_LEN_LEGACY as usize == NET_HDR_LEN_LEGACY);

/// Bytes of the network header under these features (virtio 1.2 §5.1.6.1).
pub(super) fn header_len(feature_bits: u64) -> u32 {
    if feature_bits & (features::VERSION_1 | features::NET_MRG_RXBUF) != 0 {
        HEADER_LEN
    } else {
        HEADER_LEN_LEGACY
    }
}

/// What became of a chain that is no plain frame.
enum Described {
    /// It is the next frame.
    Added,
    /// It is left in the ring: its pages have to be found first, and that takes too long.
    Later,
}

/// A guest's transmit ring.
pub struct IngressRing {
    port: Arc<Port>,
    queue: Queue,
    kick: Option<OwnedFd>,
    header_len: u32,
    /// Offloads that the driver may ask for.
    allowed: Offloads,
    /// Chains that `fetch` took, and `release` has to give back.
    taken: usize,
    /// Chains to ask the ring for: as many as a batch takes of such frames as come.
    want: usize,
    /// A fault was found: nothing is fetched any more.
    stopped: bool,
    /// For interrupts that come some time apart (`moderated`): the core looks when one is due.
    looks: Option<Box<Looks>>,
}

impl IngressRing {
    /// The ring `queue` of `port`, with the features that were negotiated.
    pub fn new(port: Arc<Port>, queue: Queue, kick: Option<OwnedFd>, feature_bits: u64) -> IngressRing {
        IngressRing {
            port,
            queue,
            kick,
            header_len: header_len(feature_bits),
            allowed: host_offloads(feature_bits),
            taken: 0,
            want: MAX_BATCH,
            stopped: false,
            looks: None,
        }
    }

    /// This ring, looking in time at the interrupts of its pair, which come some time apart.
    pub(super) fn moderated(mut self, looks: Option<Box<Looks>>) -> IngressRing {
        self.looks = looks;
        self
    }

    /// It stops: nothing that the driver has to be told stays behind. Where the ring stands.
    pub fn close(mut self) -> Position {
        if let Some(mut looks) = self.looks.take() {
            looks.end(&self.queue);
        }
        self.queue.position()
    }

    fn stop(&mut self, fault: Fault) {
        self.stopped = true;
        self.port.fault.set_unless(self.queue.is_truncated(), fault);
    }

    /// Describes one chain as the next frame of `batch` if it is as nearly all are: one piece, no offloads.
    /// False: it is something else, and nothing has been done.
    #[inline]
    fn describe_plain(&self, chain: &Chain, batch: &mut Batch) -> bool {
        let Some((frame, pieces)) = batch.next_frame() else { return false };
        let Some(first) = pieces.get_mut(chain.start as usize) else { return false };
        let len = chain.len.wrapping_sub(HEADER_LEN);
        let head_len = (len as usize).min(HEAD);
        let odd = first.len() < NET_HDR_LEN + head_len || !(MIN_FRAME..=MAX_FRAME).contains(&len);
        // Pages behind the first may have to be found.
        if odd || self.header_len != HEADER_LEN || chain.count != 1 || first.is_in_two_blocks() {
            return false;
        }
        // Without flags and type the header says nothing more (virtio 1.2 §5.1.6.2).
        if first.read_array::<2>() != Some([0, 0]) {
            return false;
        }
        first.advance(NET_HDR_LEN);
        first.read(upto_mut(&mut frame.head, head_len));
        first.advance(head_len);
        let used_up = u16::from(first.is_empty());
        frame.len = len;
        frame.piece = chain.start + u32::from(used_up);
        frame.pieces = chain.count - used_up;
        frame.offload = Offload::NONE;
        batch.commit_plain();
        true
    }

    /// Describes any chain as the next frame of `batch`, and adds it unless it has to be dropped, or takes
    /// too long.
    #[inline(never)]
    fn describe(&self, chain: Chain, batch: &mut Batch) -> Result<Described, DropReason> {
        // `fetch` has checked that the chain holds a header.
        let len = chain.len - self.header_len;
        if len < MIN_FRAME {
            return Err(DropReason::TooShort);
        }
        if len > MAX_FRAME {
            return Err(DropReason::TooLong);
        }
        // `take` is never asked for more chains than a batch has frames.
        let deadline = batch.deadline();
        let Some((frame, pieces)) = batch.next_frame() else { return Err(DropReason::TooManyPieces) };
        let list = pieces.range_mut(chain.start as usize, usize::from(chain.count));
        // How many pieces the header and the head lie in: those that begin within their bytes.
        let mut near = 0;
        let begins = |piece: &&Piece| {
            let behind = near >= NET_HDR_LEN + HEAD;
            near += piece.len();
            !behind
        };
        let count = list.iter().take_while(begins).count();
        // A header and a frame are read now. Of all other pieces the pages are found by the clock: delivery,
        // segmentation and checksums cannot stop in the middle of a frame and go on.
        let far = count > 2 || list.len() > count || list.iter().any(Piece::is_in_two_blocks);
        if far && !deadline.find(list, u64::MAX) {
            return Ok(Described::Later);
        }
        let mut header = [0u8; NET_HDR_LEN];
        let at = gather(list, 0, upto_mut(&mut header, self.header_len as usize));
        frame.len = len;
        let head_len = frame.head_len();
        let at = gather(list, at, upto_mut(&mut frame.head, head_len));
        #[expect(clippy::cast_possible_truncation, reason = "at is at most MAX_PIECES")]
        {
            frame.piece = chain.start + at as u32;
            frame.pieces = chain.count - at as u16;
        }
        frame.offload = Offload::NONE;
        if header[..2] != [0, 0] {
            frame.offload = self.offload(&header, frame)?;
        }
        batch.commit_odd();
        Ok(Described::Added)
    }

    #[cold]
    fn offload(&self, header: &[u8; NET_HDR_LEN], frame: &Frame) -> Result<Offload, DropReason> {
        Offload::parse(header, frame.head(), frame.len as usize, self.allowed)
            .map_err(|_| DropReason::BadOffload)
    }
}

impl IngressQueue for IngressRing {
    fn fetch(&mut self, batch: &mut Batch, tally: &mut Tally) {
        if let Some(looks) = &mut self.looks {
            looks.tend(&self.queue, tally);
        }
        if self.stopped {
            return;
        }
        let want = batch.room().min(self.want);
        match self.queue.take(Access::Read, want, &mut batch.pieces) {
            Ok(n) => self.taken = n,
            Err(fault) => return self.stop(fault),
        }
        let mut good = 0;
        let mut spent = false;
        for chain in self.queue.taken() {
            // This chain and those behind it stay in the ring.
            spent = batch.is_spent();
            if spent {
                break;
            }
            if !self.describe_plain(chain, batch) {
                // A fault: the ring stops behind the good chains, below.
                if chain.len < self.header_len {
                    break;
                }
                match self.describe(*chain, batch) {
                    Ok(Described::Added) => {}
                    Ok(Described::Later) => {
                        spent = true;
                        break;
                    }
                    // Its chain counts as good, so that the driver gets it back.
                    Err(reason) => {
                        tally.drops.add(reason, 1);
                        batch.skip();
                    }
                }
            }
            good += 1;
            tally.bytes += u64::from(chain.len - self.header_len);
        }
        tally.frames += good as u64;
        if spent {
            // The other chains are taken again next time, but no more than about as many as a batch has room
            // for.
            self.want = (2 * good).clamp(1, MAX_BATCH);
            self.taken = good;
        } else if good < self.taken {
            self.taken = good;
            return self.stop(Fault::NoHeader);
        } else if good == self.want {
            self.want = (2 * good).clamp(1, MAX_BATCH);
        }
        if self.queue.is_truncated() {
            self.stop(Fault::MemoryTruncated);
        }
    }

    fn has_frames(&mut self) -> bool {
        !self.stopped && !self.queue.is_empty()
    }

    fn release(&mut self, tally: &mut Tally) {
        tally.occasions += u64::from(self.taken > 0);
        let interrupted = match &mut self.looks {
            None => self.queue.complete_read(self.taken),
            Some(looks) => {
                let before = self.queue.complete_quietly(self.taken, true, |_| 0);
                self.taken > 0 && looks.tell(&self.queue, before)
            }
        };
        tally.interrupts += u64::from(interrupted);
        self.taken = 0;
    }

    fn tend(&mut self, tally: &mut Tally) {
        if let Some(looks) = &mut self.looks {
            looks.tend(&self.queue, tally);
        }
    }

    fn want_kicks(&mut self, on: bool) -> bool {
        if let Some(looks) = &self.looks {
            looks.set_sleeping(on);
        }
        !self.stopped && self.queue.want_kicks(on)
    }

    fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        self.kick.as_ref().map(AsFd::as_fd)
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.looks.as_ref().map(|looks| looks.wake_fd())
    }

    fn longest_sleep(&self) -> Option<Duration> {
        self.looks.as_ref().and_then(|looks| looks.due_in())
    }
}
