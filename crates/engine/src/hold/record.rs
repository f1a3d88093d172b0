//! What daemon and holder tell each other: records of two words, and a descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::sockopt::socket_peercred;
use rustix::net::{RecvFlags, SendFlags};

use crate::open::passing;

/// The first word of each record: the protocol's number above, what is asked or answered below.
const PROTOCOL: u64 = 0x7363_686c << 32;
pub(super) const PUT: u64 = PROTOCOL | 1;
pub(super) const DROP: u64 = PROTOCOL | 2;
pub(super) const LIST: u64 = PROTOCOL | 3;
pub(super) const DONE: u64 = PROTOCOL | 4;
pub(super) const HERE: u64 = PROTOCOL | 5;
pub(super) const REFUSED: u64 = PROTOCOL | 6;
pub(super) const SECRET: u64 = PROTOCOL | 7;
const RECORD: usize = 16;

/// A record, as it came.
pub(super) struct Record {
    pub(super) what: u64,
    pub(super) key: u64,
    pub(super) fd: Option<OwnedFd>,
}

pub(super) fn say(socket: impl AsFd, what: u64, key: u64, fd: Option<BorrowedFd>) -> io::Result<()> {
    let mut bytes = [0; RECORD];
    bytes[..8].copy_from_slice(&what.to_ne_bytes());
    bytes[8..].copy_from_slice(&key.to_ne_bytes());
    passing::send(socket, &bytes, fd.as_slice(), SendFlags::empty())?;
    Ok(())
}

/// The next record; an end of the connection is an error.
pub(super) fn hear(socket: impl AsFd) -> io::Result<Record> {
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
pub(super) fn is_ours(socket: impl AsFd) -> bool {
    socket_peercred(socket).is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}
