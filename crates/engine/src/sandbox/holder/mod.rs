//! The holder: a tiny process that keeps descriptors, so that they outlive the daemon.
//!
//! Theory of operation. Some peers cannot connect again (QEMU over vfio-user), so their connection has to
//! survive a daemon that is restarted or killed. A connection consists of descriptors: sockets, memory and
//! eventfds. A process that holds a duplicate of each keeps them alive. So each such connection gets a
//! process of its own ([`serve`]) that knows only numbers and descriptors. A running daemon puts them there
//! ([`Holder`]), and the next daemon finds them again at the same path ([`Holder::find`]).
//!
//! One daemon at a time talks to a holder; another one waits until the first is gone. A holder ends by
//! itself: when the daemon tells it to keep nothing, and when the daemon is gone and a socket that it keeps
//! has lost its other end. However long no daemon comes, it stays while its peer lives.
//!
//! Some peers do not bear to wait for an answer. While there is no daemon a [`StandIn`] answers them, in the
//! holder's process and by what is kept there.
//!
//! Trust. Both ends check that the other one has the same user id, and the daemon has to know the holder's
//! secret (`program`). A process that passes both checks can also trace the daemon, or read its files. The
//! number of descriptors is bounded by [`MAX_KEYS`].
//!
//! The protocol has records (`open::passing`) without a text: a command and a key, and a descriptor if the
//! command takes one. Each request is answered before the next one is sent.

mod client;
mod program;
mod server;
#[cfg(test)]
pub(crate) mod tests;

pub use client::Holder;
pub(crate) use client::{call_with_secret, connect, spawn, SoughtHolders};
pub(crate) use program::helper;
pub use program::{path_beside, set_program};
pub use server::{serve, Found, StandIn, Store, ALONE, ATTENDED, MAX_KEYS, PATIENCE};
