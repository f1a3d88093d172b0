//! Frames in rings of netmap's slots, whoever has the other side of the ring: a native program (`host::ring`) or a guest
//! (`device::ptnet`).
//!
//! [`Drain`] makes frames of the slots that a client gives up, [`Fill`] slots of the frames that it receives. Both leave to
//! their owner how the client is woken, and what becomes of one whose indices make no sense.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod drain;
mod fill;
mod header;
pub mod pipe;

pub use drain::Drain;
pub use fill::Fill;
pub use header::Header;
