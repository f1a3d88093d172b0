//! From bytes that the host has handed over to a frame in a batch, and from there to what the kernel gathers.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use libc::iovec;
use sidecore_abi::virtio::NET_HDR_LEN;

use crate::mem::Piece;
use crate::packet::{Batch, Frame, Offload, Offloads, HEAD};
use crate::port::DropReason;
use crate::util::slice::{behind, put, upto};

/// Shortest Ethernet frame that a switch can look at: two addresses and a type.
const MIN_FRAME: usize = 14;
/// Where a VLAN tag stands in a frame: behind the addresses (802.1Q §9.3).
const TAG_AT: usize = 12;
const TAG: usize = 4;

/// What the host says of a frame beside its bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct Facts {
    /// The virtio-net header, zeros if there is none.
    pub(super) header: [u8; NET_HDR_LEN],
    /// A VLAN tag that the host has taken out of the bytes.
    pub(super) tag: Option<[u8; TAG]>,
    /// The offloads that the host may ask of us.
    pub(super) allowed: Offloads,
}

/// Adds the frame that consists of `bytes` and `facts` to `batch`; `piece` makes a piece of the bytes from an
/// offset on, of that length.
#[inline]
pub(super) fn describe(
    batch: &mut Batch,
    bytes: &[u8],
    facts: &Facts,
    piece: impl FnOnce(usize, u32) -> Piece,
) -> Result<(), DropReason> {
    if bytes.len() < MIN_FRAME {
        return Err(DropReason::TooShort);
    }
    let mut header = facts.header;
    let Some((frame, pieces)) = batch.next_frame() else { return Err(DropReason::TooManyPieces) };
    // How many of `bytes` go into the head.
    let near;
    let len;
    match facts.tag {
        None => {
            near = bytes.len().min(HEAD);
            len = bytes.len();
            put(&mut frame.head, 0, upto(bytes, near));
        }
        Some(tag) => {
            near = bytes.len().min(HEAD - TAG);
            len = bytes.len() + TAG;
            put(&mut frame.head, 0, upto(bytes, TAG_AT));
            frame.head[TAG_AT..TAG_AT + TAG].copy_from_slice(&tag);
            put(&mut frame.head, TAG_AT + TAG, behind(upto(bytes, near), TAG_AT));
            shift(&mut header);
        }
    }
    frame.len = u32::try_from(len).map_err(|_| DropReason::TooLong)?;
    let head_len = frame.head_len();
    frame.offload = Offload::parse(&header, upto(&frame.head, head_len), len, facts.allowed)
        .map_err(|_| DropReason::BadOffload)?;
    frame.pieces = 0;
    if near < bytes.len() {
        let body = u32::try_from(bytes.len() - near).map_err(|_| DropReason::TooLong)?;
        frame.piece = u32::try_from(pieces.len()).unwrap_or(u32::MAX);
        frame.pieces = 1;
        if !pieces.push(piece(near, body)) {
            return Err(DropReason::TooManyPieces);
        }
    }
    batch.commit();
    Ok(())
}

/// Has `vectors` lead to `header`, the head of `frame` and its body; returns how many that takes.
#[inline]
pub(super) fn gather(vectors: &mut [iovec], header: &[u8], frame: &Frame, body: &[Piece]) -> usize {
    let head = frame.head();
    let mut rest = frame.len as usize - head.len();
    let near = [header, head].map(|bytes| (bytes.as_ptr().cast_mut(), bytes.len()));
    let far = body.iter().map(|piece| {
        let len = piece.len().min(rest);
        rest -= len;
        (piece.as_ptr(), len)
    });
    let mut used = 0;
    for (to, (base, len)) in vectors.iter_mut().zip(near.into_iter().chain(far)) {
        *to = iovec { iov_base: base.cast(), iov_len: len };
        used += 1;
    }
    debug_assert_eq!(rest, 0, "the pieces of a frame hold all of it");
    used
}

/// Moves the offsets of a header behind a tag that was put back; offsets that mean nothing do no harm.
fn shift(header: &mut [u8; NET_HDR_LEN]) {
    for at in [2, 6] {
        let Some(place) = header.get_mut(at..).and_then(|bytes| bytes.first_chunk_mut()) else { continue };
        let tag = u16::try_from(TAG).unwrap_or(0);
        *place = u16::from_le_bytes(*place).saturating_add(tag).to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever the length: the bytes come out as they went in, with the tag where it belongs.
        #[test]
        fn a_frame_is_its_bytes_and_its_tag(
            mut bytes in prop::collection::vec(any::<u8>(), 0..200),
            tag in proptest::option::of(any::<[u8; 4]>()),
        ) {
            let mut expected = bytes.clone();
            if let Some(tag) = tag {
                expected.splice(12.min(bytes.len())..12.min(bytes.len()), tag);
            }
            let mut batch = Batch::new();
            let base = bytes.as_mut_ptr();
            let facts = Facts { tag, ..Facts::default() };
            let result = describe(&mut batch, &bytes, &facts, |at, len| {
                // SAFETY: inside `bytes`, which outlives the batch.
                unsafe { Piece::new(base.add(at), len) }
            });
            if bytes.len() < 14 {
                prop_assert_eq!(result, Err(DropReason::TooShort));
                return Ok(());
            }
            prop_assert_eq!(result, Ok(()));
            let frame = &batch.frames()[0];
            let mut got = frame.head[..frame.head_len()].to_vec();
            for piece in batch.body(frame) {
                let mut part = vec![0; piece.len()];
                piece.read(&mut part);
                got.extend(part);
            }
            prop_assert_eq!(got.len(), frame.len as usize);
            prop_assert_eq!(got, expected);
        }
    }
}
