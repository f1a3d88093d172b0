//! The control plane of a router: a routing daemon (FRR) in a network namespace of its own, as it is, and what this router takes over
//! from it.
//!
//! Theory of operation. Each port of such a router has a TAP in the namespace, which carries its name, station address, MTU and
//! addresses: to the routing daemon the router is an ordinary host with these interfaces. What is for the router itself goes to that TAP
//! (`router/punt.rs`), what the namespace sends there goes out of the port, and nothing else passes it. One thread for each such
//! router ([`Session`]) does the rest:
//!
//! * **Routes** come from zebra's FPM (`fpm`): zebra connects to port 2620 of the namespace's loopback and says all that it has, and from then on
//!   each change. FPM has no end of a table, no numbers and no answer, and some deletions get lost. So what was said
//!   is compared with the kernel's table now and then ([`Session`] says when), and what zebra says anew replaces what it said before.
//! * **Neighbours, links and addresses** come from the namespace's kernel (`kernel`). Addresses go the other way, too: those that the configuration
//!   gives a port are given to its TAP.
//!
//! When the routing daemon goes away, its routes stay for a while (`grace`); what it does not say again in as long a time
//! after it came back is swept. So forwarding outlives it.
//!
//! Whoever is in the namespace may say what he likes. It costs the routes of this router; the rest is bounded: one connection at a
//! time, one frame kept, so many routes, objects and hops (`router/feed.rs`), and each thing that is not sound is counted.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub mod fpm;
mod kernel;
pub mod say;
mod session;
mod view;

pub use session::{Config, Session};
pub use view::{ClassView, ControlView};
