//! What can go wrong on the driver's side of a device.

use std::io;

/// Why a conversation or a ring cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, with its object.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The backend lacks features that the configuration requires.
    #[error("the backend does not offer {0}; do not require it, or enable it there")]
    Missing(String),
    /// The backend broke the protocol or refused a message.
    #[error("vhost-user: {0}")]
    Backend(String),
    /// A vfio-user device broke the protocol.
    #[error("vfio-user: {0}")]
    Vfio(String),
    /// A vfio-user device refused a command.
    #[error("vfio-user: the device refused command {command} with errno {errno}")]
    Refused {
        /// The command.
        command: u16,
        /// The device's reason.
        errno: u32,
    },
    /// An emulated device does not behave like the part that it says it is.
    #[error("the device is at fault: {0}")]
    Device(String),
    /// The device gave back something that it was never given.
    #[error("queue {queue}: the device {what}")]
    Ring {
        /// Virtio queue number.
        queue: u16,
        /// What the device did.
        what: String,
    },
    /// The configuration asks for something impossible.
    #[error("configuration: {0}")]
    Config(String),
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Wraps a system call's error with what was being done.
    pub fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { what: what.into(), source: source.into() }
    }
}
