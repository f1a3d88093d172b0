//! The socket at which a VMM is met: listening at a path, or calling one, or one that was opened before.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::net::{shutdown, AddressFamily, Shutdown, SocketType};

pub use crate::sandbox::open::socket::{check_path, SocketError, MAX_PATH};

use super::connection::Connection;
use crate::sandbox::descriptors;
use crate::sandbox::open::reserve;
use crate::sandbox::open::socket::{self, SocketFile, SocketSpec};

/// Connections that may wait; we talk to one at a time.
const BACKLOG: i32 = 4;

/// Where a VMM is met.
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

/// A listening socket; its file goes when it goes.
pub(in crate::transport) struct Listener {
    socket: UnixListener,
    /// The file that we made.
    file: Option<SocketFile>,
    /// Peers that were hung up on, and that were not reported yet.
    turned_away: AtomicU64,
}

impl Listener {
    fn new(socket: UnixListener, file: Option<SocketFile>) -> Listener {
        reserve::keep();
        Listener { socket, file, turned_away: AtomicU64::new(0) }
    }

    /// Listens at `path`.
    pub(in crate::transport) fn bind(
        path: &Path,
        mode: Option<u32>,
        owner: (Option<u32>, Option<u32>),
    ) -> Result<Listener, SocketError> {
        let kind = SocketType::STREAM;
        let wanted = SocketSpec { path: path.to_owned(), kind, mode, owner, backlog: BACKLOG };
        let (socket, file) = socket::listen_at(&wanted)?;
        Ok(Listener::new(socket.into(), Some(file)))
    }

    /// A peer, if one waits. Where there is no descriptor for it, it is turned away.
    pub(in crate::transport) fn accept(&self) -> io::Result<Option<Connection>> {
        match reserve::accept(&self.socket) {
            Ok(stream) => Ok(Some(stream.into())),
            // The last one: it has left again.
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted) => {
                Ok(None)
            }
            Err(e) => {
                let turned_away =
                    reserve::turn_away(&self.socket, &e, |client| descriptors::hang_up(client)).ok_or(e)?;
                self.turned_away.fetch_add(turned_away, Ordering::Relaxed);
                Ok(None)
            }
        }
    }

    /// Turns the peer away that waits, because there is one already. False: it could not be done.
    pub(in crate::transport) fn refuse(&self) -> bool {
        // Closing it is the answer.
        matches!(self.accept(), Ok(Some(_))) || self.turned_away.load(Ordering::Relaxed) > 0
    }

    /// How many peers were turned away since this was asked last.
    pub(in crate::transport) fn turned_away(&self) -> u64 {
        self.turned_away.swap(0, Ordering::Relaxed)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Some(file) = &self.file else {
            // Another process may go on listening there.
            descriptors::keep(&self.socket);
            return;
        };
        file.remove();
        // No client comes any more, and waiting clients may have sent something.
        let _ = shutdown(&self.socket, Shutdown::Both);
        let end = loop {
            match self.socket.accept() {
                Ok((stream, _)) => drop(Connection::from(stream)),
                Err(e) => break e,
            }
        };
        if !matches!(end.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::InvalidInput) {
            descriptors::keep(&self.socket);
        }
    }
}

/// Calls a listener at `path`, without waiting for it to have time.
pub(in crate::transport) fn call(path: &Path) -> io::Result<Connection> {
    Ok(UnixStream::from(socket::call(path)?).into())
}

/// Where the next peer comes from.
pub(in crate::transport) enum PeerSource {
    Listen { path: PathBuf, mode: Option<u32>, owner: (Option<u32>, Option<u32>), open: Option<Listener> },
    Call { path: PathBuf },
    Adopted { listener: Listener },
    Once { stream: Option<Connection> },
}

impl PeerSource {
    /// Opens what can be opened at once, so that errors reach the caller.
    pub(in crate::transport) fn new(endpoint: Endpoint) -> Result<PeerSource, SocketError> {
        match endpoint {
            Endpoint::Listen { path, mode, owner } => {
                let open = Some(Listener::bind(&path, mode, owner)?);
                Ok(PeerSource::Listen { path, mode, owner, open })
            }
            Endpoint::Connect { path } => check_path(&path).map(|()| PeerSource::Call { path }),
            Endpoint::Opened(fd) => {
                use rustix::net::sockopt::{socket_acceptconn, socket_domain, socket_type};
                if socket_domain(&fd) != Ok(AddressFamily::UNIX) || socket_type(&fd) != Ok(SocketType::STREAM)
                {
                    return Err(SocketError::BadDescriptor);
                }
                if socket_acceptconn(&fd) == Ok(true) {
                    let socket = UnixListener::from(fd);
                    socket.set_nonblocking(true).map_err(|_| SocketError::BadDescriptor)?;
                    return Ok(PeerSource::Adopted { listener: Listener::new(socket, None) });
                }
                Ok(PeerSource::Once { stream: Some(UnixStream::from(fd).into()) })
            }
        }
    }

    /// Listens again after `close`.
    pub(in crate::transport) fn open(&mut self) -> Result<(), SocketError> {
        if let PeerSource::Listen { path, mode, owner, open: open @ None } = self {
            *open = Some(Listener::bind(path, *mode, *owner)?);
        }
        Ok(())
    }

    /// Listens no more: peers are refused by the system.
    pub(in crate::transport) fn close(&mut self) {
        if let PeerSource::Listen { open, .. } = self {
            *open = None;
        }
    }

    /// The listening socket, if there is one.
    pub(in crate::transport) fn listener(&self) -> Option<&Listener> {
        match self {
            PeerSource::Listen { open, .. } => open.as_ref(),
            PeerSource::Adopted { listener } => Some(listener),
            _ => None,
        }
    }

    /// What it waits for, for people.
    pub(in crate::transport) fn describe(&self) -> String {
        match self {
            PeerSource::Listen { path, .. } => format!("listens at {}", path.display()),
            PeerSource::Call { path } => format!("calls {}", path.display()),
            PeerSource::Adopted { .. } => "listens at the socket that it was given".to_owned(),
            PeerSource::Once { .. } => "uses the connection that it was given".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::open::tests::Dir;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    /// Tries of the race; the old code, which set mode and owner by path, lost within a few dozen.
    const TRIES: usize = 2000;

    /// In a folder that strangers may write in, a name is what they want it to be at any moment: a link to a
    /// file of ours, now and then. That file keeps its owner and its permissions, however often they try.
    #[test]
    fn a_link_in_the_sockets_place_gives_nothing_away() {
        let dir = Dir::new("race");
        std::fs::create_dir(dir.at("theirs")).unwrap();
        std::fs::set_permissions(dir.at("theirs"), std::fs::Permissions::from_mode(0o777)).unwrap();
        std::fs::write(dir.at("victim"), "root's").unwrap();
        std::fs::set_permissions(dir.at("victim"), std::fs::Permissions::from_mode(0o600)).unwrap();
        let (victim, path) = (dir.at("victim"), dir.at("theirs/vm.sock"));
        let root = rustix::process::geteuid().is_root();
        let owner = if root { (Some(65534), Some(65534)) } else { (None, None) };
        let over = AtomicBool::new(false);
        let (mut made, mut tries) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let link = dir.at("theirs/link");
                while !over.load(Relaxed) {
                    let _ = std::os::unix::fs::symlink(&victim, &link);
                    let _ = std::fs::rename(&link, &path);
                    let _ = std::fs::remove_file(&path);
                }
            });
            while tries < TRIES {
                tries += 1;
                made += usize::from(Listener::bind(&path, Some(0o666), owner).is_ok());
                let stat = std::fs::metadata(&victim).unwrap();
                let lost = stat.permissions().mode() & 0o777 != 0o600 || (root && stat.uid() != 0);
                if lost {
                    over.store(true, Relaxed);
                    panic!("after {tries} tries: mode {:o}, user {}", stat.permissions().mode(), stat.uid());
                }
            }
            over.store(true, Relaxed);
        });
        assert!(made > 0, "no socket was ever made, so nothing was tried");
    }
}
