//! Ports of the host: its interfaces, and native programs.

mod describe;
mod inherited;
pub(crate) mod interface;
mod mapping;
pub mod netlink;
pub mod netns;
mod nic;
pub mod packet;
pub mod ring;
pub mod shadow;
pub mod tap;
pub mod vxlan;
mod watcher;
pub mod xdp;

pub use inherited::{close_others, passed};
