//! Transports: how rings and registers reach us from a VMM or a native program.

pub mod functions;
pub mod ring;
mod server;
pub mod vfio_user;
pub mod vhost_user;

pub use self::server::socket::{check_path, Endpoint, SocketError, MAX_PATH};
