//! The holder: a tiny process that keeps descriptors, so that they outlive the daemon.
//!
//! Theory of operation. Some peers cannot connect again (QEMU over vfio-user), so their connection has to survive a
//! daemon that is restarted or killed. What such a connection consists of, sockets, memory and eventfds, are
//! descriptors; a process that holds a duplicate of each keeps them alive. So each such connection gets a process
//! of its own ([`serve`]) that knows nothing but numbers and descriptors: the daemon puts them there ([`Holder`]) while
//! it lives, and the next daemon finds them again at the same path ([`Holder::find`]).
//!
//! One daemon at a time talks to a holder; another one waits until the first is gone. A holder ends by itself: when it
//! is asked to keep nothing any more, when the daemon is gone and a socket that it keeps has no other end any more, or
//! when no daemon comes back within [`PATIENCE`].
//!
//! Trust. Both ends check that the other one has the same user id, and the daemon has to know the holder's [`secret`]: whoever
//! could lie here can also trace the daemon, or read its files.
//! The number of descriptors is bounded by [`MAX_KEYS`]; what they are is never looked at.
//!
//! The protocol is one of records (SOCK_SEQPACKET), two words each: what, and which key; a descriptor goes along. Each
//! request is answered before the next one is sent.

mod client;
mod secret;
mod server;
#[cfg(test)]
pub(crate) mod tests;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::net::{RecvFlags, SendFlags};

use crate::open::passing;

pub(crate) use client::{connect, introduce, refusal, spawn};
pub use client::{Found, HoldError, Holder};
pub use server::serve;

/// Most descriptors that one holder keeps.
pub const MAX_KEYS: usize = 4096;
/// How long a holder waits for the next daemon.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The first word of each record: the protocol's number above, what is asked or answered below.
const PROTOCOL: u64 = 0x7363_686c << 32;
const PUT: u64 = PROTOCOL | 1;
const DROP: u64 = PROTOCOL | 2;
const LIST: u64 = PROTOCOL | 3;
const DONE: u64 = PROTOCOL | 4;
const HERE: u64 = PROTOCOL | 5;
const REFUSED: u64 = PROTOCOL | 6;
const SECRET: u64 = PROTOCOL | 7;
const RECORD: usize = 16;

static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Names the program that is a holder when it is run with the one argument `hold`. Without it nothing is held.
pub fn set_program(path: PathBuf) {
    // Said once, at the start of a daemon.
    let _ = PROGRAM.set(path);
}

/// That program: it is other processes of ours, too.
pub(crate) fn program() -> Option<&'static Path> {
    PROGRAM.get().map(PathBuf::as_path)
}

/// The path at which the holder of what belongs to the socket at `path` is found; `None`: nothing is held here.
pub fn path_beside(path: &Path) -> Option<PathBuf> {
    PROGRAM.get()?;
    let mut name = path.as_os_str().to_owned();
    name.push(".hold");
    Some(name.into())
}

/// A record, as it came.
struct Record {
    what: u64,
    key: u64,
    fd: Option<OwnedFd>,
}

fn say(socket: impl AsFd, what: u64, key: u64, fd: Option<BorrowedFd>) -> io::Result<()> {
    let mut bytes = [0; RECORD];
    bytes[..8].copy_from_slice(&what.to_ne_bytes());
    bytes[8..].copy_from_slice(&key.to_ne_bytes());
    passing::send(socket, &bytes, fd.as_slice(), SendFlags::empty())?;
    Ok(())
}

/// The next record; an end of the connection is an error.
fn hear(socket: impl AsFd) -> io::Result<Record> {
    let mut bytes = [0; RECORD];
    let got = passing::receive(socket, &mut bytes, 1, RecvFlags::empty())?;
    if got.bytes != RECORD {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        u64::from_ne_bytes(word)
    };
    Ok(Record { what: word(0), key: word(8), fd: got.fds.into_iter().next() })
}

/// Whether the other end of `socket` is of our own user.
fn is_ours(socket: impl AsFd) -> bool {
    socket_peercred(socket).is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}
