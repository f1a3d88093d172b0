//! Frames in rings of netmap's slots. The other side of the ring is a native program (`host::ring`) or a
//! guest (`device::ptnet`).
//!
//! [`Drain`] turns the slots that a client gives up into frames, [`Fill`] turns frames that it receives into
//! slots. Their owner decides how the client is woken, and what happens to a client with invalid indices.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod drain;
mod fill;
pub mod pipe;

pub use drain::{Drain, Header};
pub use fill::Fill;
