//! What a broker answers, and how records are sent and received.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt::{set_socket_timeout, Timeout};
use rustix::net::{RecvFlags, SendFlags};

use super::record::{parts, record, DONE, FAILED, MAX_FDS, MAX_TEXT, RECORD};
use crate::open::passing;

/// How long a broker may take over an answer: it may have to wait for a driver, or for a holder.
pub(super) const ANSWER: Duration = Duration::from_secs(30);

/// An answer of a broker.
#[derive(Debug, Default)]
pub struct Answer {
    /// A number, as the request has it.
    pub number: u64,
    /// A text, as the request has it.
    pub text: String,
    /// What was asked for.
    pub fd: Option<OwnedFd>,
}

impl Answer {
    /// With a descriptor.
    pub fn fd(fd: impl Into<OwnedFd>) -> Answer {
        Answer { fd: Some(fd.into()), ..Answer::default() }
    }
}

/// Why a broker did not do what it was asked for: what the system said, and where that matters, at which step.
#[derive(Debug)]
pub struct Refusal {
    /// What the system, or the code that was called, said.
    pub error: io::Error,
    /// At which step, as the request has it.
    pub step: u64,
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Refusal {
        Refusal { error, step: 0 }
    }
}

/// Kinds of errors without a number of the system's.
const KINDS: [io::ErrorKind; 7] = [
    io::ErrorKind::Other,
    io::ErrorKind::NotFound,
    io::ErrorKind::PermissionDenied,
    io::ErrorKind::InvalidInput,
    io::ErrorKind::InvalidData,
    io::ErrorKind::UnexpectedEof,
    io::ErrorKind::WouldBlock,
];

/// Sends an answer to the request `number`.
///
/// # Errors
/// The other end is gone.
pub fn answer(socket: impl AsFd, number: u64, answer: Result<Answer, Refusal>) -> io::Result<()> {
    let (bytes, fd) = match answer {
        Ok(Answer { number: value, text, fd }) => {
            (record(DONE, number, [value, 0, 0, 0, 0], text.as_bytes())?, fd)
        }
        Err(Refusal { error, step }) => {
            let errno = error.raw_os_error().map_or(0, |errno| u64::from(errno.unsigned_abs()));
            let kind = KINDS.iter().position(|kind| *kind == error.kind()).unwrap_or(0) as u64;
            let text = if errno == 0 { error.to_string() } else { String::new() };
            let text = &text.as_bytes()[..text.len().min(MAX_TEXT)];
            (record(FAILED, number, [errno, kind, step, 0, 0], text)?, None)
        }
    };
    let fds: Vec<BorrowedFd> = fd.iter().map(AsFd::as_fd).collect();
    passing::send(socket, &bytes, &fds, SendFlags::empty())?;
    Ok(())
}

/// The next record and its descriptors. Zero bytes: the other end is gone.
///
/// # Errors
/// What the system says.
pub fn receive(socket: impl AsFd, bytes: &mut [u8; RECORD]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let got = passing::receive(socket, bytes, MAX_FDS, RecvFlags::empty())?;
    // What was cut off, of either, is no record.
    Ok((if got.cut { 1 } else { got.bytes }, got.fds))
}

/// The answer to the request `number` that comes from `socket`, if it comes within `most`.
///
/// # Errors
/// The other end has gone, or says something else.
pub fn await_answer(
    socket: &OwnedFd,
    number: u64,
    most: Duration,
) -> io::Result<Option<Result<Answer, Refusal>>> {
    set_socket_timeout(socket, Timeout::Recv, Some(most))?;
    let mut bytes = [0; RECORD];
    let (len, mut fds) = match receive(socket, &mut bytes) {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        got => got?,
    };
    let answer = understood(&bytes[..len], number, fds.pop());
    answer.map(Some).ok_or_else(|| io::Error::other("the process that was asked has ended"))
}

/// What the record `bytes` says, which came with `fd`. `None`: it is no answer to the request `number`.
pub(super) fn understood(bytes: &[u8], number: u64, fd: Option<OwnedFd>) -> Option<Result<Answer, Refusal>> {
    let (what, to, words, text) = parts(bytes)?;
    if to != number {
        return None;
    }
    let text = String::from_utf8_lossy(text).into_owned();
    let [value, kind, step, ..] = words;
    match what {
        DONE => Some(Ok(Answer { number: value, text, fd })),
        FAILED => {
            let error = match i32::try_from(value) {
                Ok(errno) if errno > 0 => io::Error::from_raw_os_error(errno),
                _ => {
                    let kind = usize::try_from(kind).ok().and_then(|kind| KINDS.get(kind));
                    io::Error::new(*kind.unwrap_or(&io::ErrorKind::Other), text)
                }
            };
            Some(Err(Refusal { error, step }))
        }
        _ => None,
    }
}
