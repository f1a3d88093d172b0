//! The holder's side: a table of descriptors, and the process of our own user that asks for it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{fstat, FileType};
use rustix::io::Errno;
use rustix::net::sockopt::socket_acceptconn;
use rustix::net::{accept_with, SocketFlags};

use crate::open::socket::SocketFile;

use super::record::{hear, is_ours, say, DONE, DROP, HERE, LIST, PUT, REFUSED, SECRET};
use super::secret;

/// Most descriptors that one holder keeps.
pub const MAX_KEYS: usize = 4096;
/// How long a holder waits for the next daemon.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Most callers that have said nothing yet; one more takes the place of the oldest.
const MAX_CALLERS: usize = 8;

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
    let secret = secret::read(path)?.ok_or(io::ErrorKind::NotFound)?;
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
    secret::remove(path);
    end
}

/// Whether `caller`, which has sent something, sends our `secret`.
fn is_told(caller: &OwnedFd, secret: u64) -> bool {
    hear(caller).is_ok_and(|record| record.what == SECRET && record.key == secret)
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
        let time = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(0),
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut fds, Some(&time)) {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(e) => return Err(e.into()),
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
                    let pause = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
                    // Only time can help.
                    let _ = poll(&mut [], Some(&pause));
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
        while let Ok(record) = hear(daemon) {
            let answer = match (record.what, record.fd) {
                (PUT, Some(fd)) if self.0.len() < MAX_KEYS || self.0.contains_key(&record.key) => {
                    self.0.insert(record.key, fd);
                    DONE
                }
                (DROP, _) => {
                    self.0.remove(&record.key);
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
            if say(daemon, answer, record.key, None).is_err() {
                return;
            }
        }
    }
}
