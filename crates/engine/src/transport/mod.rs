//! Transports: the conversations with VMMs and native programs, by which rings and registers reach the
//! engine.

mod inbox;
pub mod ring;
mod server;
pub mod vfio_user;
pub mod vhost_user;

pub use self::server::socket::{check_path, Endpoint, SocketError, MAX_PATH};

/// Why a port cannot be what it is to be, for people.
pub type Unable = Box<dyn std::error::Error + Send + Sync>;
