//! The holder's side: a table of descriptors, and the process of our own user that asks for it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{fstat, FileType};
use rustix::io::Errno;
use rustix::net::sockopt::socket_acceptconn;
use rustix::net::{accept_with, SocketFlags};

use crate::sandbox::open::passing::{self, Record};
use crate::sandbox::open::socket::SocketFile;
use crate::wait::wait;

use super::program::{read_secret, remove_secret};

/// Most descriptors that one holder keeps.
pub const MAX_KEYS: usize = 4096;
/// How long a holder waits for the next daemon.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Most callers that have said nothing yet; one more takes the place of the oldest.
const MAX_CALLERS: usize = 8;

/// The first word of each record: the protocol's number above, what is asked or answered below.
const PROTOCOL: u64 = 0x7363_686c << 32;
pub(super) const PUT: u64 = PROTOCOL | 1;
pub(super) const DROP: u64 = PROTOCOL | 2;
pub(super) const LIST: u64 = PROTOCOL | 3;
pub(super) const DONE: u64 = PROTOCOL | 4;
pub(super) const HERE: u64 = PROTOCOL | 5;
const REFUSED: u64 = PROTOCOL | 6;
pub(super) const SECRET: u64 = PROTOCOL | 7;

pub(super) fn say(socket: impl AsFd, what: u64, key: u64, fd: Option<BorrowedFd>) -> io::Result<()> {
    passing::say(socket, what, key, &[], fd.as_slice())
}

pub(super) fn hear(socket: impl AsFd) -> io::Result<Record> {
    passing::hear(socket, 1)
}

/// Whether the other end of `socket` is of our own user.
pub(super) fn is_ours(socket: impl AsFd) -> bool {
    rustix::net::sockopt::socket_peercred(socket).is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

/// What is kept.
#[derive(Default)]
struct Store(BTreeMap<u64, OwnedFd>);

/// Serves at `listener` until there is nothing to keep any more. Removes the socket's file, `path`, at the end. `confine` is
/// called when all that has to be read was read: from then on it looks at names, removes its own two, and opens nothing.
///
/// # Errors
/// `InvalidInput`: `listener` is no listening socket. Else what the system says of it.
pub fn serve(listener: &OwnedFd, path: &Path, confine: impl FnOnce()) -> io::Result<()> {
    if !socket_acceptconn(listener).unwrap_or(false) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // Without it we would end with the daemon's session; fails only if we lead one already.
    let _ = rustix::process::setsid();
    // The one that was made for us. Without it we hold as well.
    let file = SocketFile::at(path).ok();
    let secret = read_secret(path)?;
    confine();
    let mut store = Store::default();
    let mut callers = Vec::new();
    let end = loop {
        match next_daemon(listener, &mut callers, secret, &store) {
            Ok(Some(daemon)) => {
                store.attend(&daemon);
                if store.0.is_empty() {
                    break Ok(());
                }
            }
            Ok(None) => break Ok(()),
            Err(e) => break Err(e),
        }
    };
    if let Some(file) = file {
        file.remove();
    }
    remove_secret(path);
    end
}

/// Whether `caller`, which has sent something, sends our `secret`.
fn is_told(caller: &OwnedFd, secret: u64) -> bool {
    hear(caller).is_ok_and(|record| record.what == SECRET && record.number == secret)
        && say(caller, DONE, 0, None).is_ok()
}

/// Waits for a daemon: one of `callers`, which have said nothing yet, or a new one. A caller may be silent for as long as it
/// likes, since a daemon on a busy machine is slow to speak; nothing waits for it. `None`: there is no sense in waiting
/// any longer.
fn next_daemon(
    listener: &OwnedFd,
    callers: &mut Vec<OwnedFd>,
    secret: u64,
    store: &Store,
) -> io::Result<Option<OwnedFd>> {
    let begun = Instant::now();
    loop {
        let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
        fds.extend(callers.iter().map(|caller| PollFd::new(caller, PollFlags::IN)));
        // No events are asked for: what is always told is that the other end is gone.
        let sockets = store.0.values().filter(|fd| is_socket(fd));
        fds.extend(sockets.map(|fd| PollFd::new(fd, PollFlags::empty())));
        let left = PATIENCE.saturating_sub(begun.elapsed());
        if !wait(&mut fds, Some(left))? && left.is_zero() {
            return Ok(None);
        }
        let called = !fds[0].revents().is_empty();
        let speaks = fds[1..=callers.len()].iter().position(|fd| !fd.revents().is_empty());
        let hung_up = fds[callers.len() + 1..].iter().any(|fd| !fd.revents().is_empty());
        drop(fds);
        // A caller that speaks is heard before any has to make room.
        if let Some(at) = speaks {
            let caller = callers.remove(at);
            if is_told(&caller, secret) {
                return Ok(Some(caller));
            }
        } else if called {
            match accept_with(listener, SocketFlags::CLOEXEC) {
                Ok(caller) if is_ours(&caller) => {
                    if callers.len() == MAX_CALLERS {
                        callers.remove(0);
                    }
                    callers.push(caller);
                }
                Ok(_) | Err(Errno::INTR | Errno::AGAIN | Errno::CONNABORTED) => {}
                // A daemon that finds no place here yet goes on trying; what is kept must not go for that.
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    if left.is_zero() {
                        return Ok(None);
                    }
                    // Only time can help.
                    let _ = wait(&mut [], Some(Duration::from_millis(100)));
                }
                Err(e) => return Err(e.into()),
            }
        } else if hung_up {
            return Ok(None);
        }
    }
}

fn is_socket(fd: &OwnedFd) -> bool {
    fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket)
}

impl Store {
    /// Does what a daemon says until it hangs up.
    fn attend(&mut self, daemon: &OwnedFd) {
        while let Ok(mut record) = hear(daemon) {
            let key = record.number;
            let answer = match (record.what, record.fds.pop()) {
                (PUT, Some(fd)) if self.0.len() < MAX_KEYS || self.0.contains_key(&key) => {
                    self.0.insert(key, fd);
                    DONE
                }
                (DROP, _) => {
                    self.0.remove(&key);
                    DONE
                }
                (LIST, _) => {
                    let told =
                        self.0.iter().all(|(key, fd)| say(daemon, HERE, *key, Some(fd.as_fd())).is_ok());
                    if !told {
                        return;
                    }
                    DONE
                }
                _ => REFUSED,
            };
            if say(daemon, answer, key, None).is_err() {
                return;
            }
        }
    }
}
