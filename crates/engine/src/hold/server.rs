//! The holder's side: a table of descriptors, and whoever of our own user asks for it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{fstat, FileType};
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_timeout, socket_acceptconn, Timeout};
use rustix::net::{accept_with, SocketFlags};
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};

use crate::open::socket::SocketFile;

use super::{hear, is_ours, say, secret, DONE, DROP, HERE, LIST, MAX_KEYS, PATIENCE, PUT, REFUSED, SECRET};

/// What is kept.
#[derive(Default)]
struct Store(BTreeMap<u64, OwnedFd>);

/// Serves at `listener` until there is nothing to keep any more. Removes the socket's file, `path`, at the end.
///
/// # Errors
/// `InvalidInput`: `listener` is no listening socket. Else what the system says of it.
pub fn serve(listener: &OwnedFd, path: &Path) -> io::Result<()> {
    if !socket_acceptconn(listener).unwrap_or(false) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // Without it we would end with the daemon's session; fails only if we lead one already.
    let _ = rustix::process::setsid();
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // What does not fit is refused when it comes.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    // The one that was made for us. Without it we hold as well.
    let file = SocketFile::at(path).ok();
    let secret = secret::read(path)?.ok_or(io::ErrorKind::NotFound)?;
    let mut store = Store::default();
    let end = loop {
        match next_daemon(listener, &store) {
            Ok(Some(daemon)) => {
                if !is_told(&daemon, secret) {
                    continue;
                }
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

/// Whether `daemon` begins with our `secret`.
fn is_told(daemon: &OwnedFd, secret: u64) -> bool {
    // Whoever says nothing must not keep the next daemon waiting, which says it at once.
    let limit = Some(Duration::from_millis(200));
    let told = set_socket_timeout(daemon, Timeout::Recv, limit).is_ok()
        && hear(daemon).is_ok_and(|record| record.what == SECRET && record.key == secret)
        && say(daemon, DONE, 0, None).is_ok();
    told && set_socket_timeout(daemon, Timeout::Recv, None).is_ok()
}

/// Waits for a daemon. `None`: there is no sense in waiting any longer.
fn next_daemon(listener: &OwnedFd, store: &Store) -> io::Result<Option<OwnedFd>> {
    let begun = Instant::now();
    loop {
        let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
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
            Ok(_) if fds[0].revents().is_empty() => return Ok(None),
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        if fds[0].revents().is_empty() {
            continue;
        }
        match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(daemon) if is_ours(&daemon) => return Ok(Some(daemon)),
            Ok(_) | Err(Errno::INTR | Errno::AGAIN | Errno::CONNABORTED) => {}
            Err(e) => return Err(e.into()),
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
