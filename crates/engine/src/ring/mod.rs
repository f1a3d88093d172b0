//! Rings in netmap's format, shared with a native program.
//!
//! Theory of operation. A client gets one memory file of its own ([`Region`]): interface, rings and buffers as a
//! netmap program expects them, and behind them the words by which slots change hands
//! (`sidecore_abi::ring`). The engine works on it from [`ClientTx`] and [`ClientRx`], which do what netmap's kernel
//! does in txsync and rxsync, except that nobody calls them: an I/O core looks. Since no two clients share a
//! region unless they are told to, a buffer number can only name the client's own memory, and frames are copied once, from the
//! sender's buffer into the receiver's.
//!
//! Pipes of a port lie in the same region, so that buffers can be exchanged with it and between their ends. Frames in
//! them are the ends' affair alone: each copies its slots into the other's ring, and no I/O core is involved
//! (`sidecore_abi::ring::Info::end`) but for monitors, which look on ([`ClientTx::follow`], [`PipeGate`]). Who may use a pipe of a port shares its memory with who has the port.
//!
//! Ports whose operator wants that share one memory ([`SharedMemory`]), each with a part of its own: then their clients
//! can exchange buffers, and see all of each other's frames. A buffer number can name any of them.
//!
//! Limits. Slots are given back in order. One region, one client and the users of its pipes. Zero copy (exchange of buffers) is the
//! client's affair inside its own region; between regions there is none, since that would mean to share them.
//! `NS_INDIRECT` addresses are of the client's address space, where the engine cannot read: the client
//! library copies such slots into their buffers before it gives them up. Offsets (`offset_mask`) are not
//! offered: the mask is zero.
//!
//! The two ends of a pipe between ports have one memory, too ([`Joined`]): what one sends in its buffers the other receives in them.
//!
//! A guest whose NIC has a region as its memory keeps its indices elsewhere ([`Block`]). All else is the same.
//!
//! `unsafe` is in `region` only; the rest works through bounds-checked accessors.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod block;
mod hand;
mod hands;
mod joined;
mod layout;
mod region;
mod sync;
#[cfg(test)]
mod tests;
mod tickets;

pub use block::Block;
pub use hand::Hand;
pub use hands::Hands;
pub use joined::{Joined, Side};
pub use layout::{pipe_end, Geometry, GeometryError, MAX_EXTRA};
pub use region::{leave_memory, Region, SharedMemory};
pub use sync::{ClientRx, ClientTx, ReleaseGate, RingStats};
pub use tickets::{PipeGate, Tickets};
