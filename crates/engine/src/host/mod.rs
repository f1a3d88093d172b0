//! The host's own as ports: its interfaces, and native programs.

mod passed;
pub mod ring;
pub mod tap;

pub use passed::passed;
