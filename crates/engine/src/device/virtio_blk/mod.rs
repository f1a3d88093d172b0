//! virtio-blk (virtio 1.2 §5.2) as the device.
//!
//! Theory of operation. `features` is the table of what is offered, and the configuration space. `request`
//! reads a guest's request once, finds it sound or says why not, and makes a job of it. `queue` is a ring as
//! a task of an I/O core: it takes requests, has the disk carry them out, and gives each back when it is
//! over, in any order. `state` is the control side.

mod features;
mod queue;
mod request;
mod state;

pub use queue::BlkQueue;
pub use request::Limits;
pub use state::{BlkConfig, VirtioBlk};

/// The names of all features that can be offered.
pub fn feature_names() -> Vec<String> {
    features::OFFERED.names(u64::MAX)
}
