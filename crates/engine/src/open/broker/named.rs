//! What operators tell a broker itself.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::answer::ANSWER;
use super::record::{name, path, NoRequest, MAX_TEXT};

/// What an operator allows a broker whose daemon has given its privileges up: a user who may open the broker's socket
/// names it to the broker itself. That socket is beside those of ring ports, with the control socket's permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// A socket of ours at this path, and its holder's beside it.
    Socket(PathBuf),
    /// Sockets of ours in this folder, and in none below it.
    Folder(PathBuf),
    /// Calls to the listener at this path.
    Call(PathBuf),
    /// A journal at this path.
    Journal(PathBuf),
    /// A disk's file or block device at this path.
    Disk(PathBuf),
    /// The interface of this name.
    Interface(String),
    /// The network namespace at this path: TAPs, addresses and sockets in it.
    Namespace(PathBuf),
}

impl Named {
    /// Where the broker of the daemon with this control socket hears of it.
    pub fn place(control_socket: &Path) -> PathBuf {
        let folder = control_socket.parent().unwrap_or(Path::new("."));
        folder.join("ring").join(sidecore_abi::vale::OPERATORS)
    }

    /// What it is, as text.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, text) = match self {
            Named::Socket(path) => (b's', path.as_os_str()),
            Named::Folder(path) => (b'f', path.as_os_str()),
            Named::Call(path) => (b'c', path.as_os_str()),
            Named::Journal(path) => (b'j', path.as_os_str()),
            Named::Disk(path) => (b'd', path.as_os_str()),
            Named::Interface(name) => (b'i', name.as_ref()),
            Named::Namespace(path) => (b'n', path.as_os_str()),
        };
        [&[kind], text.as_bytes()].concat()
    }

    /// What `bytes` say.
    ///
    /// # Errors
    /// Nothing that is known.
    pub fn decode(bytes: &[u8]) -> Result<Named, NoRequest> {
        let (kind, text) = bytes.split_first().filter(|(_, text)| text.len() <= MAX_TEXT).ok_or(NoRequest)?;
        match kind {
            b's' => Ok(Named::Socket(path(text)?)),
            b'f' => Ok(Named::Folder(path(text)?)),
            b'c' => Ok(Named::Call(path(text)?)),
            b'j' => Ok(Named::Journal(path(text)?)),
            b'd' => Ok(Named::Disk(path(text)?)),
            b'i' => Ok(Named::Interface(name(text)?)),
            b'n' => Ok(Named::Namespace(path(text)?)),
            _ => Err(NoRequest),
        }
    }

    /// Tells the broker of the daemon with this control socket.
    ///
    /// # Errors
    /// No broker is there, or this user is no operator.
    pub fn tell(&self, control_socket: &Path) -> io::Result<()> {
        let socket = std::os::unix::net::UnixDatagram::unbound()?;
        // A broker that is busy is waited for, not for ever.
        socket.set_write_timeout(Some(ANSWER))?;
        socket.send_to(&self.encode(), Named::place(control_socket)).map(drop)
    }
}
