//! How a native program attaches to a ring port.
//!
//! Theory of operation. Each port listens at a socket of its own, so a process that may open that file may
//! use that port and no other: a container gets a port by a bind mount. A client sends requests
//! (`sidecore_abi::ring::Ask`), messages of one fixed size. On a request to attach, the port makes a new
//! memory region and puts its queues live, then answers with descriptors. The connection stays open for as
//! long as the client is attached. When it ends, for whatever reason, the queues are taken back and the
//! region goes, so nothing of one client is left for the next. One client is attached at a time. Others may
//! ask about the port; be the ends of its pipes (`pipes`), which lie in the same region, so that the region
//! goes with the last of them; or be monitors, which get copies of frames in memory of their own.
//!
//! A port may be an end of a pipe to another port instead (`slots::pipe`). Its client then gets the pipe's
//! memory (`end`), and continues at the pipe's positions. Such a port has no pipes of its own and no
//! monitors.
//!
//! A thread for each port does all this. Nothing that a client sends or leaves unsent makes it wait: it reads
//! what has arrived, and answers fit into a socket's buffer or the client is dropped.

mod common;
mod device;
mod group;
mod host;
mod pipes;
mod port;
mod server;
mod taps;

pub use common::{device_path, set_directory, socket_path, RingPortConfig, EXTRA_LIMIT};
pub use device::{Asker, Clients, Device, Verbs};
pub use host::{HostRingsPort, HOST};
pub use port::RingPort;
pub use server::MONITORS;
