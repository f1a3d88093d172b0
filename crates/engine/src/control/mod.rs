//! The control plane of a router: an unmodified routing daemon (FRR) in its own network namespace, and the state that
//! the router takes over from it.
//!
//! Theory of operation. Each port of such a router has a TAP in the namespace, with the port's name, station address,
//! MTU and addresses. So the routing daemon sees an ordinary host with these interfaces. Frames for the router itself
//! go to that TAP (`router/punt.rs`), frames that the namespace sends there go out of the port, and no other frames
//! pass it. One thread for each such router ([`Session`]) does the rest:
//!
//! * **Routes** come from zebra's FPM (`fpm`): zebra connects to port 2620 of the namespace's loopback, sends all its
//!   routes, and then each change. FPM has no end of a table, no sequence numbers and no answers, and some deletions
//!   get lost. So the session compares these routes with the kernel's table from time to time ([`Session`] says when),
//!   and a route that zebra sends again replaces the earlier one.
//! * **Neighbours, links and addresses** come from the namespace's kernel (`kernel`). In the other direction, each TAP
//!   gets the addresses that the configuration gives to its port. Addresses of the namespace's loopback and dummy
//!   interfaces become the router's own.
//!
//! When the routing daemon ends, its routes stay for a while (`grace`). Routes that it does not send again within the
//! same time after it came back are removed. So forwarding continues without it.
//!
//! A program in the namespace may send anything. It can only harm the routes of this router. Everything else is
//! bounded: one connection at a time, one unfinished frame, limited numbers of routes, objects and hops
//! (`router/feed.rs`). Malformed messages are counted.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub mod fpm;
mod kernel;
pub mod say;
mod session;
mod view;

pub use session::{Config, Session};
pub use view::{ClassView, ControlView};
