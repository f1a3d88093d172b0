//! The socket at which a VMM is met: listening at a path, or calling one, or one that was opened before.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::net::{
    bind, connect, listen, socket_with, AddressFamily, SocketAddrUnix, SocketFlags, SocketType,
};

/// Longest path of a Unix socket: `sun_path` less its final zero.
pub const MAX_PATH: usize = 107;
/// Connections that may wait; we talk to one at a time.
const BACKLOG: i32 = 4;

/// Where a VMM is met.
#[derive(Debug)]
pub enum Endpoint {
    /// We listen (QEMU: `-chardev socket,path=…`).
    Listen {
        /// The socket file, which is made.
        path: PathBuf,
        /// Its permissions; by default those that the umask leaves.
        mode: Option<u32>,
        /// Its user and group; by default ours.
        owner: (Option<u32>, Option<u32>),
    },
    /// The VMM listens (QEMU: `-chardev socket,path=…,server=on,wait=off`) and we call.
    Connect {
        /// Its socket file, which may not be there yet.
        path: PathBuf,
    },
    /// A socket that is connected, or that listens, already.
    Opened(OwnedFd),
}

/// Why a socket cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The kernel would cut it off.
    #[error("socket path \"{}\" has {} bytes; Unix sockets allow {MAX_PATH}", .0.display(), .0.as_os_str().len())]
    PathTooLong(PathBuf),
    /// Something else bears that name.
    #[error("\"{}\" exists and is no socket; remove it or choose another path", .0.display())]
    NoSocket(PathBuf),
    /// Another process has it.
    #[error("somebody listens at \"{}\" already; stop that process or choose another path", .0.display())]
    InUse(PathBuf),
    /// There is nothing that it could be made in.
    #[error("there is no folder for the socket \"{}\"; make it, or choose another path", .0.display())]
    NoFolder(PathBuf),
    /// The system refused.
    #[error("cannot {what} at \"{}\": {source}", path.display())]
    System {
        /// What was tried.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A descriptor that is something else.
    #[error("the descriptor that was passed is no Unix stream socket")]
    BadDescriptor,
}

/// Checks a socket's path as far as that is possible without touching the file system.
///
/// # Errors
/// It is too long.
pub fn check_path(path: &Path) -> Result<(), SocketError> {
    if path.as_os_str().len() > MAX_PATH {
        return Err(SocketError::PathTooLong(path.to_owned()));
    }
    Ok(())
}

/// A listening socket; its file goes when it goes.
#[derive(Debug)]
pub(in crate::transport) struct Listener {
    socket: UnixListener,
    /// The file that we made, with its device and inode: another may have taken its place.
    file: Option<(PathBuf, u64, u64)>,
}

impl Listener {
    /// Listens at `path`.
    pub(in crate::transport) fn bind(
        path: &Path,
        mode: Option<u32>,
        owner: (Option<u32>, Option<u32>),
    ) -> Result<Listener, SocketError> {
        check_path(path)?;
        let system = |what, source: io::Error| SocketError::System { what, path: path.to_owned(), source };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(|e| system("make a socket", e.into()))?;
        let address = SocketAddrUnix::new(path).map_err(|e| system("listen", e.into()))?;
        if let Err(e) = bind(&socket, &address) {
            match e {
                rustix::io::Errno::ADDRINUSE => remove_stale(path)?,
                rustix::io::Errno::NOENT => return Err(SocketError::NoFolder(path.to_owned())),
                e => return Err(system("listen", e.into())),
            }
            bind(&socket, &address).map_err(|e| system("listen", e.into()))?;
        }
        let meta = std::fs::symlink_metadata(path).map_err(|e| system("listen", e))?;
        let listener =
            Listener { socket: socket.into(), file: Some((path.to_owned(), meta.dev(), meta.ino())) };
        // Before `listen`: nobody can connect while the file has the wrong owner or permissions.
        if let Some(mode) = mode {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
                .map_err(|e| system("set the mode of the socket", e))?;
        }
        if owner != (None, None) {
            std::os::unix::fs::chown(path, owner.0, owner.1)
                .map_err(|e| system("set the owner of the socket", e))?;
        }
        listen(&listener.socket, BACKLOG).map_err(|e| system("listen", e.into()))?;
        Ok(listener)
    }

    /// A peer, if one waits.
    pub(in crate::transport) fn accept(&self) -> io::Result<Option<UnixStream>> {
        match self.socket.accept() {
            Ok((stream, _)) => Ok(Some(stream)),
            // The last one: it has left again.
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted) => {
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Some((path, dev, ino)) = &self.file else { return };
        if std::fs::symlink_metadata(path).is_ok_and(|meta| (meta.dev(), meta.ino()) == (*dev, *ino)) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Removes a socket file that a process left behind when it died.
fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let system =
        |source| SocketError::System { what: "replace the old socket", path: path.to_owned(), source };
    if !std::fs::symlink_metadata(path).map_err(system)?.file_type().is_socket() {
        return Err(SocketError::NoSocket(path.to_owned()));
    }
    match call(path) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path).map_err(system),
        // A full backlog is a listener, too.
        Ok(_) => Err(SocketError::InUse(path.to_owned())),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err(SocketError::InUse(path.to_owned())),
        Err(e) => Err(system(e)),
    }
}

/// Calls a listener at `path`, without waiting for it to have time.
pub(in crate::transport) fn call(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// Where the next peer comes from.
#[derive(Debug)]
pub(in crate::transport) enum Door {
    Listen { path: PathBuf, mode: Option<u32>, owner: (Option<u32>, Option<u32>), open: Option<Listener> },
    Call { path: PathBuf },
    Adopted { listener: Listener },
    Once { stream: Option<UnixStream> },
}

impl Door {
    /// Opens what can be opened at once, so that errors reach whoever asked.
    pub(in crate::transport) fn new(endpoint: Endpoint) -> Result<Door, SocketError> {
        match endpoint {
            Endpoint::Listen { path, mode, owner } => {
                let open = Some(Listener::bind(&path, mode, owner)?);
                Ok(Door::Listen { path, mode, owner, open })
            }
            Endpoint::Connect { path } => check_path(&path).map(|()| Door::Call { path }),
            Endpoint::Opened(fd) => {
                use rustix::net::sockopt::{socket_acceptconn, socket_domain, socket_type};
                if socket_domain(&fd) != Ok(AddressFamily::UNIX) || socket_type(&fd) != Ok(SocketType::STREAM)
                {
                    return Err(SocketError::BadDescriptor);
                }
                if socket_acceptconn(&fd) == Ok(true) {
                    let socket = UnixListener::from(fd);
                    socket.set_nonblocking(true).map_err(|_| SocketError::BadDescriptor)?;
                    return Ok(Door::Adopted { listener: Listener { socket, file: None } });
                }
                Ok(Door::Once { stream: Some(fd.into()) })
            }
        }
    }

    /// Listens again after `close`.
    pub(in crate::transport) fn open(&mut self) -> Result<(), SocketError> {
        if let Door::Listen { path, mode, owner, open: open @ None } = self {
            *open = Some(Listener::bind(path, *mode, *owner)?);
        }
        Ok(())
    }

    /// Listens no more: peers are refused by the system.
    pub(in crate::transport) fn close(&mut self) {
        if let Door::Listen { open, .. } = self {
            *open = None;
        }
    }

    /// The listening socket, if there is one.
    pub(in crate::transport) fn listener(&self) -> Option<&Listener> {
        match self {
            Door::Listen { open, .. } => open.as_ref(),
            Door::Adopted { listener } => Some(listener),
            _ => None,
        }
    }

    /// What it waits for, for people.
    pub(in crate::transport) fn describe(&self) -> String {
        match self {
            Door::Listen { path, .. } => format!("listens at {}", path.display()),
            Door::Call { path } => format!("calls {}", path.display()),
            Door::Adopted { .. } => "listens at the socket that it was given".to_owned(),
            Door::Once { .. } => "uses the connection that it was given".to_owned(),
        }
    }
}
