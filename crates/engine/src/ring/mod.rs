//! Rings in netmap's format, shared with a native program.
//!
//! Theory of operation. A client gets one memory file of its own ([`Region`]). It has interface, rings and
//! buffers as a netmap program expects them, and behind them the fields by which slots change hands
//! (`sidecore_abi::ring`). The engine's side is [`ClientTx`] and [`ClientRx`]. They do what netmap's kernel
//! does in txsync and rxsync, but no system call starts them: an I/O core polls. Clients share no region
//! unless the operator wants that, so a buffer number can only name the client's own memory. Frames are
//! copied once, from the sender's buffer into the receiver's.
//!
//! Pipes of a port lie in the same region, so that buffers can be exchanged with the port and between the
//! ends. The two ends move frames themselves: each copies its slots into the other's ring, and no I/O core is
//! involved (`sidecore_abi::ring::Info::end`), except for monitors, which follow the rings
//! ([`ClientTx::follow`], [`PipeGate`]). A user of a port's pipe shares memory with the port's user.
//!
//! Ports with the option `memory` share one memory ([`SharedMemory`]), in which each has a part of its own.
//! Their clients can exchange buffers, and see all of each other's frames. A buffer number can name any of
//! these buffers.
//!
//! Limits. Slots are given back in order. A region has one client and the users of its pipes. Zero copy
//! (exchange of buffers) is possible only inside a region. The engine cannot read `NS_INDIRECT` addresses,
//! which are of the client's address space: the client library copies such slots into their buffers before it
//! gives them up. Offsets (`offset_mask`) are not offered: the mask is zero.
//!
//! The two ends of a pipe between ports also have one memory ([`Joined`]): frames that one end sends arrive
//! at the other in the same buffers.
//!
//! A ptnet guest, whose NIC has a region as its memory, keeps its indices elsewhere ([`Block`]). All else is
//! the same.
//!
//! `unsafe` is in `region` only; the rest works through bounds-checked accessors.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod block;
mod hand;
mod joined;
mod layout;
mod region;
mod sync;
#[cfg(test)]
mod tests;
mod tickets;

pub use block::Block;
pub use hand::Hand;
pub use joined::{Joined, Side};
pub use layout::{pipe_end, Geometry, MAX_EXTRA};
pub use region::{leave_memory, Region, SharedMemory};
pub use sync::{ClientRx, ClientTx, ReleaseGate, RingAccess, RingStats};
pub use tickets::{Hands, PipeGate, Tickets};
