//! The boundary between a sender's offloads and a receiver that lacks them.
//!
//! Theory of operation. A frame that needs more than its receiver accepts becomes one or several plain
//! frames in a batch of our own: its headers are rewritten in private memory (`wire::Plan`), and the
//! payload is described where it is, in the sender's memory, so it is still copied once. The checksum
//! has to read the payload once more; a sender that changes it meanwhile spoils its own checksum.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use crate::mem::Arena;
use crate::packet::{
    stretch, sum, BadOffload, Batch, Frame, Offload, Offloads, Picked, Plan, Segment, Sum, HEAD, MAX_HEADER,
};
use crate::util::slice::{behind, behind_mut, put, upto, upto_mut};

/// Plain frames in one of our batches.
const SLOTS: usize = 64;
/// Headers of a segment and what payload lies in the original's head.
const SLOT: usize = MAX_HEADER + HEAD;

/// Makes plain frames of one that needs offloads.
pub(super) struct Boundary {
    batch: Batch,
    arena: Arena,
    ident: u32,
    /// What is said about the frames that are made: that their checksums are good, to receivers that believe
    /// it.
    said: Offload,
}

impl Default for Boundary {
    fn default() -> Boundary {
        Boundary { batch: Batch::new(), arena: Arena::new(SLOTS, SLOT), ident: 0, said: Offload::NONE }
    }
}

impl Boundary {
    /// Makes plain frames of `frame`, which is of `from`, for a receiver that `accepts` less than they need,
    /// and hands them to `send`, in order, some at a time. Returns how many there were.
    pub(super) fn convert(
        &mut self,
        from: &Batch,
        frame: &Frame,
        accepts: Offloads,
        mut send: impl FnMut(Picked),
    ) -> Result<u64, BadOffload> {
        let whole = Whole { batch: from, frame };
        self.batch.clear();
        // The checksum in the first of several fragments covers the others, too: it must not be called
        // checked.
        let valid = accepts.contains(Offloads::VALID) && frame.offload.gso != crate::packet::Gso::Ufo;
        self.said = Offload { flags: if valid { Offload::DATA_VALID } else { 0 }, ..Offload::NONE };
        if frame.offload.gso == crate::packet::Gso::None {
            self.complete(&whole)?;
            send(self.batch.all());
            return Ok(1);
        }
        let mut header = [0; MAX_HEADER];
        let bound = frame.offload.header_bound(frame.len as usize);
        whole.read(0, upto_mut(&mut header, bound));
        self.ident = self.ident.wrapping_add(1);
        let plan = Plan::new(upto(&header, bound), frame.len as usize, frame.offload, self.ident)?;
        let mut made = 0;
        for index in 0..plan.count {
            let mut out = [0; MAX_HEADER];
            let Some(segment) = plan.segment(index, &mut out) else { break };
            segment.seal(&mut out, whole.sum(segment.summed.start, segment.summed.end));
            if !self.add(&whole, &segment, &out) {
                send(self.batch.all());
                self.batch.clear();
                if !self.add(&whole, &segment, &out) {
                    return Err(BadOffload::TooManySegments);
                }
            }
            made += 1;
        }
        if !self.batch.is_empty() {
            send(self.batch.all());
        }
        Ok(made)
    }

    /// Completes the checksum of a frame that needs no cutting.
    fn complete(&mut self, whole: &Whole) -> Result<(), BadOffload> {
        let len = whole.frame.len as usize;
        let offload = whole.frame.offload;
        let (at, checksum) = offload.checksum(whole.sum(usize::from(offload.csum_start), len));
        let mut bytes = [0; SLOT];
        let end = (at + 2).max(HEAD).min(len);
        let copied = bytes.get_mut(..end).ok_or(BadOffload::HeaderTooLong)?;
        whole.read(0, copied);
        // Headers that lie behind the head were not judged when the frame came, or not in private memory.
        if end > HEAD {
            offload.check(copied, len, Offloads::ALL)?;
        }
        copied.get_mut(at..at + 2).ok_or(BadOffload::CsumOutside)?.copy_from_slice(&checksum);
        if self.push(whole, upto(&bytes, end), end, len) {
            Ok(())
        } else {
            Err(BadOffload::TooManySegments)
        }
    }

    /// Adds one segment; false if there is no room for it in this batch.
    fn add(&mut self, whole: &Whole, segment: &Segment, header: &[u8; MAX_HEADER]) -> bool {
        // Payload that lies in the original's head is private memory already: it goes into the slot.
        let mut bytes = [0; SLOT];
        let mut end = segment.header_len;
        put(&mut bytes, 0, upto(header, end));
        let (mut from, to) = (segment.payload.start, segment.payload.end);
        if from < HEAD {
            let near = HEAD.min(to) - from;
            put(&mut bytes, end, behind(upto(&whole.frame.head, from + near), from));
            end += near;
            from += near;
        }
        self.push(whole, upto(&bytes, end), from, to)
    }

    /// Adds the frame that consists of `bytes` and the original's bytes `from..to`, where `from` is not
    /// inside the original's head unless nothing follows.
    fn push(&mut self, whole: &Whole, bytes: &[u8], mut from: usize, to: usize) -> bool {
        let slot = self.batch.len();
        if slot == self.arena.slots() {
            return false;
        }
        let Some((frame, pieces)) = self.batch.next_frame() else { return false };
        let head = bytes.len().min(HEAD);
        put(&mut frame.head, 0, upto(bytes, head));
        // Short headers do not fill a head, and pieces begin where it ends.
        let more = (HEAD - head).min(to.saturating_sub(from));
        whole.read(from, behind_mut(upto_mut(&mut frame.head, head + more), head));
        from += more;
        let start = pieces.len();
        let mut fits = true;
        let mut len = bytes.len() + more;
        if bytes.len() > HEAD {
            fits = pieces.push(self.arena.put(slot, bytes, HEAD));
        }
        for piece in stretch(whole.batch.body(whole.frame), from, to) {
            len += piece.len();
            fits &= pieces.push(piece);
        }
        if !fits {
            pieces.truncate(start);
            return false;
        }
        let (Ok(len), Ok(piece), Ok(count)) =
            (u32::try_from(len), u32::try_from(start), u16::try_from(pieces.len() - start))
        else {
            return false;
        };
        (frame.len, frame.piece, frame.pieces) = (len, piece, count);
        frame.offload = self.said;
        self.batch.commit();
        true
    }
}

/// A frame seen as one row of bytes.
struct Whole<'a> {
    batch: &'a Batch,
    frame: &'a Frame,
}

impl Whole<'_> {
    /// Reads the frame's bytes from `from` on into `to`.
    fn read(&self, from: usize, to: &mut [u8]) {
        self.batch.read(self.frame, from, to);
    }

    /// The checksum's sum over bytes `from..to` of the frame.
    fn sum(&self, from: usize, to: usize) -> Sum {
        sum(self.frame.head(), self.batch.body(self.frame), from, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Piece;
    use crate::packet::Gso;
    use proptest::prelude::*;

    /// TCP over IPv4 with `options` bytes of options, to be cut into segments of `size`.
    fn frame(options: usize, payload: usize, size: u16) -> (Vec<u8>, Offload) {
        let header = 54 + options;
        let mut bytes = vec![0; header];
        bytes[12] = 8;
        bytes[14] = 0x45;
        let total = u16::try_from(40 + options + payload).unwrap();
        bytes[16..18].copy_from_slice(&total.to_be_bytes());
        (bytes[22], bytes[23]) = (64, 6);
        bytes[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        bytes[46] = u8::try_from((20 + options) * 4).unwrap();
        bytes.extend((0..payload).map(|n| u8::try_from(n % 251).unwrap()));
        let offload = Offload {
            flags: Offload::NEEDS_CSUM,
            gso: Gso::Tcp4,
            ecn: false,
            gso_size: size,
            hdr_len: u16::try_from(header).unwrap(),
            csum_start: 34,
            csum_offset: 16,
        };
        (bytes, offload)
    }

    /// Headers that lead behind the head are judged when a checksum is completed there: a sender can have
    /// changed them.
    #[test]
    fn a_checksum_behind_the_head_is_the_transports_or_none() {
        for extensions in 2..=10 {
            let start = 54 + 8 * extensions;
            let next = |at: usize| if at + 8 < start { 60 } else { 17 };
            let mut bytes = [&[2; 12][..], &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 60, 64], &[1; 32]].concat();
            (54..start).step_by(8).for_each(|at| bytes.extend([next(at), 0, 1, 4, 0, 0, 0, 0]));
            bytes.extend([0x12, 0x34, 0, 80, 0, 60, 0, 0]);
            bytes.extend([7; 52]);
            let mut memory = Arena::new(1, bytes.len() + HEAD);
            let far = memory.put(0, &bytes, HEAD);
            let convert = |csum_offset: u16| {
                let csum_start = u16::try_from(start).unwrap();
                let asked = Offload { flags: Offload::NEEDS_CSUM, csum_start, csum_offset, ..Offload::NONE };
                let mut original = Batch::new();
                assert!(original.push_with(&bytes, bytes.len(), asked, |pieces| pieces.push(far)));
                Boundary::default().convert(&original, original.frame(0), Offloads::NONE, |_| {})
            };
            assert_eq!(convert(6), Ok(1), "{extensions}");
            assert_eq!(convert(2), Err(BadOffload::CsumElsewhere), "{extensions}");
        }
    }

    proptest! {
        /// Headers shorter and longer than a frame's private head; every byte of the payload, once, in order.
        #[test]
        fn segments_carry_the_payload(options in 0usize..=10, payload in 1usize..6_000, size in 8u16..1500) {
            let (bytes, offload) = frame(options * 4, payload, size);
            let header = 54 + options * 4;
            let mut memory = Arena::new(1, bytes.len().max(HEAD) + HEAD);
            let mut original = Batch::new();
            let (first, pieces) = original.next_frame().unwrap();
            let head = bytes.len().min(HEAD);
            first.head[..head].copy_from_slice(&bytes[..head]);
            (first.len, first.offload) = (u32::try_from(bytes.len()).unwrap(), offload);
            if bytes.len() > HEAD {
                assert!(pieces.push(memory.put(0, &bytes, HEAD)));
                (first.piece, first.pieces) = (0, 1);
            }
            original.commit();
            let mut boundary = Boundary::default();
            let mut carried = Vec::new();
            let mut sums = true;
            boundary.convert(&original, &original.frames()[0], Offloads::NONE, |Picked { batch, .. }| {
                for frame in batch.frames() {
                    let mut segment = vec![0; frame.len as usize];
                    batch.read(frame, 0, &mut segment);
                    let pieces: usize = batch.body(frame).iter().map(Piece::len).sum();
                    assert_eq!(frame.head_len() + pieces, segment.len());
                    let mut sum = Sum::pseudo(&segment[26..30], &segment[30..34], 6, segment.len() - 34);
                    sum.add(&segment[34..]);
                    sums &= sum.checksum() == 0;
                    carried.extend_from_slice(&segment[header..]);
                }
            }).unwrap();
            prop_assert!(sums, "a wrong checksum");
            prop_assert_eq!(&carried[..], &bytes[header..]);
        }
    }
}
