//! Transports: how rings and registers reach us from a VMM or a native program.

mod backoff;
mod connection;
pub mod ring;
mod socket;
mod supervise;
pub mod vfio_user;
pub mod vhost_user;
mod wait;
mod without_fds;

pub use self::socket::{check_path, Endpoint, SocketError, MAX_PATH};
