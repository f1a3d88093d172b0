//! What a daemon and its door tell each other: records of two words, a text, and descriptors.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{RecvFlags, SendFlags};

use crate::open::passing::{self, MAX_FDS};

/// Longest text of an answer.
const MAX_TEXT: usize = 512;
/// The first word of each record: the protocol's number above, what is asked or answered below.
const PROTOCOL: u64 = 0x7363_6472 << 32;
pub(super) const LOOK: u64 = PROTOCOL | 1;
pub(super) const GIVEN: u64 = PROTOCOL | 2;
pub(super) const STRANGER: u64 = PROTOCOL | 3;
pub(super) const TOO_MANY: u64 = PROTOCOL | 4;
pub(super) const CUT: u64 = PROTOCOL | 5;
pub(super) const FAILED: u64 = PROTOCOL | 6;
pub(super) const CLOSE: u64 = PROTOCOL | 7;
pub(super) const KEEP: u64 = PROTOCOL | 8;
pub(super) const CLOSED: u64 = PROTOCOL | 9;
/// Words in front of a record's text.
const WORDS: usize = 2;
const RECORD: usize = 8 * WORDS + MAX_TEXT;
/// The second word of a request: any file may pass; how many may, above.
pub(super) const ANY: u64 = 1;
/// The same: connected stream sockets of this host may.
pub(super) const SOCKETS: u64 = 2;

/// A record, as it came.
pub(super) struct Record {
    pub(super) what: u64,
    pub(super) number: u64,
    pub(super) text: String,
    pub(super) fds: Vec<OwnedFd>,
    /// There was no room for all descriptors.
    pub(super) cut: bool,
}

pub(super) fn say(
    socket: &OwnedFd,
    what: u64,
    number: u64,
    text: &str,
    fds: &[BorrowedFd],
) -> io::Result<()> {
    let mut bytes = [what.to_ne_bytes(), number.to_ne_bytes()].concat();
    bytes.extend_from_slice(&text.as_bytes()[..text.len().min(MAX_TEXT)]);
    passing::send(socket, &bytes, fds, SendFlags::empty())?;
    Ok(())
}

/// The next record. `None`: the other end is gone, or makes no sense.
pub(super) fn hear(socket: &OwnedFd) -> io::Result<Option<Record>> {
    let mut bytes = [0; RECORD];
    let got = passing::receive(socket, &mut bytes, MAX_FDS, RecvFlags::empty())?;
    let Some((words, text)) = bytes.get(..got.bytes).and_then(|all| all.split_at_checked(8 * WORDS)) else {
        return Ok(None);
    };
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&words[8 * at..8 * at + 8]);
        u64::from_ne_bytes(word)
    };
    let text = String::from_utf8_lossy(text).into_owned();
    Ok(Some(Record { what: word(0), number: word(1), text, fds: got.fds, cut: got.cut }))
}
