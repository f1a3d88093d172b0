//! The holder's side: a table of descriptors, the process of our own user that asks for it, and who answers
//! its peer meanwhile.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{fstat, FileType};
use rustix::io::Errno;
use rustix::net::sockopt::socket_acceptconn;
use rustix::net::{accept_with, SocketFlags};

use crate::sandbox::open::passing::{self, Record};
use crate::sandbox::open::socket::SocketFile;
use crate::util::wait;

use super::program::{read_secret, remove_secret};

/// Most descriptors that one holder keeps.
pub const MAX_KEYS: usize = 4096;
/// How long a holder waits for a daemon while it keeps no socket, whose other end could tell it to end.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The name of a holder's process while a daemon is there, by which `show holders` tells.
pub const ATTENDED: &CStr = c"sidecore-hold";
/// The name of a holder's process while no daemon is there.
pub const ALONE: &CStr = c"sidecore-alone";

/// Most callers; one more takes the place of the oldest that has not said the secret.
const MAX_CALLERS: usize = 8;

/// Who has called, and asked for nothing yet.
struct Caller {
    socket: OwnedFd,
    /// It has said the secret.
    told: bool,
}

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

/// What a holder had: descriptors by their keys.
pub type Found = BTreeMap<u64, OwnedFd>;

/// What is kept: shared with who stands in for the daemon.
#[derive(Clone, Debug, Default)]
pub struct Store(Arc<Mutex<BTreeMap<u64, OwnedFd>>>);

/// Who answers a peer in the daemon's place while there is none.
pub trait StandIn {
    /// Under which key its connection is kept.
    fn connection(&self) -> u64;

    /// Answers the peer of what is kept in `store`, until `called` is readable. False: the peer is not to be
    /// answered any more.
    fn answer(&mut self, store: &Store, called: OwnedFd) -> bool;
}

/// Serves at `listener` until there is nothing to keep any more. Removes the socket's file, `path`, at the
/// end. `confine` is called when all that has to be read was read: from then on it looks at names, removes
/// its own two, and opens nothing. It returns who stands in for the daemon, if anybody can.
///
/// # Errors
/// `InvalidInput`: `listener` is no listening socket. Else what the system says of it.
pub fn serve(
    listener: &OwnedFd,
    path: &Path,
    confine: impl FnOnce() -> Option<Box<dyn StandIn>>,
) -> io::Result<()> {
    if !socket_acceptconn(listener).unwrap_or(false) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // Without it we would end with the daemon's session; fails only if we lead one already.
    let _ = rustix::process::setsid();
    // The one that was made for us. Without it we hold as well.
    let file = SocketFile::at(path).ok();
    let secret = read_secret(path)?;
    let mut stand_in = confine();
    let store = Store::default();
    let mut callers = Vec::new();
    let end = loop {
        // The name is for people: a holder that cannot set it serves as well.
        let _ = rustix::thread::set_name(ALONE);
        match next_daemon(listener, &mut callers, secret, &store, stand_in.as_deref_mut()) {
            Ok(Some(daemon)) => {
                let _ = rustix::thread::set_name(ATTENDED);
                store.attend(&daemon);
                if crate::lock(&store.0).is_empty() {
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

/// Waits until a daemon wants something: one of `callers`, or a new one. A caller may be silent for as long
/// as it likes: a daemon on a busy machine is slow to speak, and one that has many ports calls all holders
/// before it comes to each. Nothing waits for it: `stand_in` answers the peer meanwhile. `None`: there is no
/// sense in waiting any longer.
fn next_daemon(
    listener: &OwnedFd,
    callers: &mut Vec<Caller>,
    secret: u64,
    store: &Store,
    mut stand_in: Option<&mut (dyn StandIn + 'static)>,
) -> io::Result<Option<OwnedFd>> {
    let begun = Instant::now();
    loop {
        if let Some(stand_in) = stand_in.as_deref_mut().filter(|it| store.has(it.connection())) {
            if !stand_in.answer(store, any_of(listener, callers)?) {
                return Ok(None);
            }
        }
        let kept = crate::lock(&store.0);
        let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
        fds.extend(callers.iter().map(|caller| PollFd::new(&caller.socket, PollFlags::IN)));
        // No events are asked for: what is always told is that the other end is gone.
        let sockets = kept.values().filter(|fd| is_socket(fd));
        fds.extend(sockets.map(|fd| PollFd::new(fd, PollFlags::empty())));
        // With a peer it waits for as long as the peer lives.
        let left = (fds.len() == 1 + callers.len()).then(|| PATIENCE.saturating_sub(begun.elapsed()));
        let ends = left.is_some_and(|left| left.is_zero());
        if !wait(&mut fds, left)? && ends {
            return Ok(None);
        }
        let called = !fds[0].revents().is_empty();
        let speaks = fds[1..=callers.len()].iter().position(|fd| !fd.revents().is_empty());
        let hung_up = fds[callers.len() + 1..].iter().any(|fd| !fd.revents().is_empty());
        drop(fds);
        drop(kept);
        // A caller that speaks is heard before any has to make room.
        if let Some(at) = speaks {
            let Caller { socket, told } = callers.remove(at);
            if told {
                return Ok(Some(socket));
            }
            if is_told(&socket, secret) {
                callers.push(Caller { socket, told: true });
            }
        } else if called {
            match accept_with(listener, SocketFlags::CLOEXEC) {
                Ok(caller) if is_ours(&caller) => {
                    if callers.len() == MAX_CALLERS {
                        callers.remove(callers.iter().position(|it| !it.told).unwrap_or(0));
                    }
                    callers.push(Caller { socket: caller, told: false });
                }
                Ok(_) | Err(Errno::INTR | Errno::AGAIN | Errno::CONNABORTED) => {}
                // A daemon that finds no place here yet goes on trying; what is kept must not go for that.
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    if ends {
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

/// Readable when `listener` or one of `callers` is.
fn any_of(listener: &OwnedFd, callers: &[Caller]) -> io::Result<OwnedFd> {
    let all = epoll::create(CreateFlags::CLOEXEC)?;
    for fd in callers.iter().map(|caller| &caller.socket).chain([listener]) {
        epoll::add(&all, fd, EventData::new_u64(0), EventFlags::IN)?;
    }
    Ok(all)
}

fn is_socket(fd: &OwnedFd) -> bool {
    fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket)
}

impl Store {
    fn has(&self, key: u64) -> bool {
        crate::lock(&self.0).contains_key(&key)
    }

    /// Keeps `fd` under `key`. False: it is full.
    pub(super) fn put(&self, key: u64, fd: OwnedFd) -> bool {
        let mut kept = crate::lock(&self.0);
        let room = kept.len() < MAX_KEYS || kept.contains_key(&key);
        if room {
            kept.insert(key, fd);
        }
        room
    }

    /// A duplicate of what is kept under `key`.
    pub fn get(&self, key: u64) -> Option<OwnedFd> {
        crate::lock(&self.0).get(&key)?.try_clone().ok()
    }

    pub(super) fn forget(&self, key: u64) {
        crate::lock(&self.0).remove(&key);
    }

    /// Duplicates of all that is kept.
    pub(super) fn found(&self) -> io::Result<Found> {
        crate::lock(&self.0).iter().map(|(key, fd)| Ok((*key, fd.try_clone()?))).collect()
    }

    /// Does what a daemon says until it hangs up.
    fn attend(&self, daemon: &OwnedFd) {
        while let Ok(mut record) = hear(daemon) {
            let key = record.number;
            let answer = match (record.what, record.fds.pop()) {
                (PUT, Some(fd)) => {
                    if self.put(key, fd) {
                        DONE
                    } else {
                        REFUSED
                    }
                }
                (DROP, _) => {
                    self.forget(key);
                    DONE
                }
                (LIST, _) => {
                    let kept = crate::lock(&self.0);
                    let told = kept.iter().all(|(key, fd)| say(daemon, HERE, *key, Some(fd.as_fd())).is_ok());
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
