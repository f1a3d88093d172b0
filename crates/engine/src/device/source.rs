//! The bytes of a frame on their way into receive buffers: first its head, without a tag that is stripped and
//! padded to what a wire would have carried, then the pieces of its body.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use super::packet;
use crate::mem::{GuestMap, Piece};
use crate::packet::{Frame, HEAD};
use crate::util::fault::Fault;
use crate::util::slice::{behind, behind_mut, upto, upto_mut};

const MIN_PADDED: usize = packet::MIN_PADDED as usize;
const TAG: usize = packet::TAG as usize;

/// Why a frame was not filled into descriptors.
pub(super) enum Shortage {
    /// There are too few.
    Ring,
    /// It takes more than a frame may take.
    Frame,
    Fault(Fault),
}

/// The tag of a frame: its EtherType is `kind`.
pub(super) fn tag(frame: &Frame, kind: u16) -> Option<u16> {
    let [.., kind_high, kind_low, high, low] = *frame.head.first_chunk::<16>()?;
    let tagged = frame.len >= 18 && u16::from_be_bytes([kind_high, kind_low]) == kind;
    tagged.then(|| u16::from_be_bytes([high, low]))
}

/// A frame's bytes, to be copied out from first to last.
pub(super) struct FrameBytes<'a> {
    /// Head, without a stripped tag and with padding.
    head: [u8; HEAD],
    head_len: usize,
    head_done: usize,
    body: &'a [Piece],
    body_len: usize,
    /// Bytes of the first piece of `body` that were taken.
    piece_done: usize,
}

impl FrameBytes<'_> {
    /// The bytes of `frame`, whose body is `body`; without its tag if that is to be taken out (`strip`).
    #[inline]
    pub(super) fn new<'a>(frame: &Frame, body: &'a [Piece], strip: bool) -> FrameBytes<'a> {
        let mut head = frame.head;
        let mut head_len = frame.head_len();
        let body_len = frame.len as usize - head_len;
        if strip {
            head.copy_within(12 + TAG..head_len, 12);
            head_len -= TAG;
        }
        if head_len + body_len < MIN_PADDED {
            // The body is empty then, or the head is full.
            behind_mut(upto_mut(&mut head, MIN_PADDED), head_len).fill(0);
            head_len = MIN_PADDED - body_len;
        }
        FrameBytes { head, head_len, head_done: 0, body, body_len, piece_done: 0 }
    }

    /// How many there are.
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.head_len + self.body_len).unwrap_or(u32::MAX)
    }

    /// Copies the next `len` bytes to a buffer at `address`, which may span regions that are adjacent in the
    /// guest.
    pub(super) fn copy_to(
        &mut self,
        map: &GuestMap,
        (address, len): (u64, u32),
        hint: &mut usize,
    ) -> Result<(), Shortage> {
        if let Some(to) = map.translate(address, len, hint) {
            self.copy(to);
            return Ok(());
        }
        for to in map.parts(address, len) {
            self.copy(to.ok_or(Shortage::Fault(Fault::AddressOutOfRange))?);
        }
        Ok(())
    }

    /// Copies the next bytes to `to`, as many as there are and fit.
    #[inline]
    pub(super) fn copy(&mut self, mut to: Piece) {
        if self.head_done < self.head_len {
            let n = to.write(behind(upto(&self.head, self.head_len), self.head_done));
            to.advance(n);
            self.head_done += n;
        }
        while !to.is_empty() {
            let Some(mut from) = self.body.first().copied() else { return };
            from.advance(self.piece_done);
            let n = to.write_from(&from);
            to.advance(n);
            if n < from.len() {
                self.piece_done += n;
                return;
            }
            self.body = behind(self.body, 1);
            self.piece_done = 0;
        }
    }
}
