//! The other side: native drivers of virtio-net and virtio-blk behind a vhost-user front end, and a vfio-user
//! client for drivers of emulated PCI devices.
//!
//! Written to be read, and used wherever something must stand in for a guest: tests, fuzzers, the
//! packet generator and the benchmarks. A backend cannot tell it from a VMM with a guest: it negotiates,
//! shares memory, drives split or packed rings, and reconnects.
//!
//! | module | contents |
//! |---|---|
//! | [`raw`] | vhost-user messages as bytes, well-formed or not |
//! | [`frontend`] | the orderly conversation, in both roles |
//! | [`memory`] | one shared region, three address spaces |
//! | [`queue`], [`split`], [`packed`] | the rings: chains, indirect tables, batches, notification suppression |
//! | [`session`] | negotiation, set-up, stop and reconnect |
//! | [`running`] | a ring with its eventfds: kick, sleep |
//! | [`net`] | frames: send, receive, wait |
//! | [`blk`] | a disk: submit, poll, wait; what was not answered survives the backend |
//! | [`vfio`] | vfio-user: regions, mapped registers, interrupts, memory of a PCI device |
//! | [`e1000`] | a driver for the Intel NICs behind such a device |
//! | [`rtl8169`] | a driver for the Realtek NIC behind such a device |
//! | [`ptnet`] | a driver for netmap's rings as a guest's NIC, behind two of them |
//! | [`bound`], [`load`] | the packet generator: two ports, both ways, one thread |
//! | [`guest_router`] | a router between two of these drivers, with a thread as its vCPU |
//! | [`lying`] | a driver that breaks the rules on purpose |
//!
//! The driver trusts its device, as a guest must; what a device does wrong is still noticed and named.

pub mod blk;
pub mod bound;
mod csb;
pub mod e1000;
pub mod error;
pub mod frontend;
pub mod guest_router;
pub mod load;
pub mod lying;
pub mod memory;
pub mod net;
pub mod packed;
pub mod ptnet;
pub mod queue;
pub mod raw;
pub mod rtl8169;
pub mod running;
pub mod session;
pub mod split;
pub mod vfio;

pub use blk::{Disk, DiskOptions, Request, Status, Tag};
pub use error::{Error, Result};
pub use frontend::{Frontend, Listener};
pub use net::{NetDriver, NetHdr, Shape, Stats};
pub use session::{Config, Session, Want};
