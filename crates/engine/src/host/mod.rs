//! Ports of the host: its interfaces, and native programs.

mod describe;
pub(crate) mod interface;
mod mapping;
pub mod netlink;
pub mod netns;
pub mod nic;
pub mod packet;
mod process;
pub mod ring;
pub mod tap;
pub mod xdp;

pub use process::{close_others, passed};
