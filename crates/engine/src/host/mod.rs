//! The host's own as ports: its interfaces, and native programs.

pub(crate) mod broker;
mod describe;
mod interface;
mod mapping;
pub mod netlink;
pub mod netns;
pub mod nic;
pub mod packet;
mod passed;
mod process;
pub mod ring;
pub mod tap;
pub mod xdp;

pub use passed::passed;
pub use process::close_others;
