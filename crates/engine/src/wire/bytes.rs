//! Numbers in the bytes of a frame.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

/// The big-endian number at `at`, if the bytes reach that far.
#[inline]
pub(super) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|b| u16::from_be_bytes(*b))
}
