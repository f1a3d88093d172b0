//! The service manager, if there is one: it is told how far the daemon is (sd_notify(3)).
//!
//! Its socket is connected at the start. Later the daemon may be a user whom it does not admit, and kept from
//! sockets that it is not connected to.

use std::fmt::Write;
use std::io;
use std::os::unix::net::UnixDatagram;

use rustix::net::{connect, SocketAddrUnix};
use sd_notify::NotifyState;
use tracing::error;

/// The way to the service manager.
pub struct Manager(Option<UnixDatagram>);

impl Manager {
    /// The one that `NOTIFY_SOCKET` names.
    pub fn of_environment() -> Manager {
        let Some(place) = std::env::var_os("NOTIFY_SOCKET") else { return Manager(None) };
        let connected = || {
            let bytes = place.as_encoded_bytes();
            let address = match bytes.strip_prefix(b"@") {
                Some(name) => SocketAddrUnix::new_abstract_name(name)?,
                None => SocketAddrUnix::new(bytes)?,
            };
            let socket = UnixDatagram::unbound()?;
            connect(&socket, &address)?;
            Ok(socket)
        };
        let socket: io::Result<UnixDatagram> = connected();
        Manager(socket.inspect_err(|e| error!("cannot reach the service manager: {e}")).ok())
    }

    /// Whether it ends a daemon of which it hears nothing (`WatchdogSec=`).
    pub fn watches(&self) -> bool {
        self.0.is_some() && std::env::var_os("WATCHDOG_USEC").is_some()
    }

    /// Tells it.
    pub fn tell(&self, states: &[NotifyState<'_>]) {
        let Some(socket) = &self.0 else { return };
        let mut text = String::new();
        for state in states {
            // Into memory.
            let _ = writeln!(text, "{state}");
        }
        if let Err(e) = socket.send(text.as_bytes()) {
            error!("cannot notify the service manager: {e}");
        }
    }
}
