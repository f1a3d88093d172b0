//! By what a packed ring is known again: a random number in its device event area, in the field that counts only with
//! `EVENT_F_DESC` (virtio 1.2 §2.8.14), which we do not use. What is kept of the ring elsewhere has the same number. A driver
//! that sets its ring up anew clears it.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::Ordering;

use sidecore_abi::virtio::packed;

use super::raw::Raw;
use crate::mem::Piece;

/// The number, if it is that of the ring with event area `device`.
pub(super) fn held(number: u64, device: &Piece) -> Option<u16> {
    let there = Raw::new(device).load_u16(packed::EVENT_OFF_WRAP, Ordering::Relaxed);
    (there != 0 && u64::from(there) == number).then_some(there)
}

/// A new number.
pub(super) fn any() -> u16 {
    u16::try_from(1 + RandomState::new().build_hasher().finish() % 0xffff).unwrap_or(1)
}

/// Gives it to the ring with event area `device`.
pub(super) fn write(number: u16, device: &Piece) {
    Raw::new(device).store_u16(packed::EVENT_OFF_WRAP, number, Ordering::Relaxed);
}
