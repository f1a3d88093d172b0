//! What keeps strangers' files, descriptors and system calls away from the daemon.
//!
//! * [`open`]: files, folders and sockets that the daemon makes or opens by name;
//! * [`holder`]: the process that keeps a conversation's descriptors between two daemons;
//! * [`filters`]: the system calls that each kind of thread may make;
//! * [`descriptors`]: the process that receives the descriptors which VMMs send.
//!
//! The parts that belong to the daemon's program (user, capabilities, landlock) are in
//! `crates/sidecore/src/sandbox`.

pub mod descriptors;
pub mod filters;
pub mod holder;
pub mod open;
