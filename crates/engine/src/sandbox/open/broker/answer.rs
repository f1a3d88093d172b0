//! What a broker answers, and how requests and answers are sent and received.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt::{set_socket_timeout, Timeout};
use serde::{Deserialize, Serialize};

use super::request::{NoRequest, Request};
use crate::sandbox::open::passing::{hear, say, Record};

/// Most descriptors of a request.
const MAX_FDS: usize = 2;
/// The first word of each record: the protocol's number above, what it is below.
const PROTOCOL: u64 = 0x7363_6272 << 32;
const REQUEST: u64 = PROTOCOL | 1;
const DONE: u64 = PROTOCOL | 2;
const FAILED: u64 = PROTOCOL | 3;

/// An answer of a broker.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Answer {
    /// A number, as the request has it.
    pub number: u64,
    /// A text, as the request has it.
    pub text: String,
    /// What was asked for.
    #[serde(skip)]
    pub fd: Option<OwnedFd>,
}

impl Answer {
    /// With a descriptor.
    pub fn fd(fd: impl Into<OwnedFd>) -> Answer {
        Answer { fd: Some(fd.into()), ..Answer::default() }
    }
}

/// Why a broker did not do what it was asked for: what the system said, and where that matters, at which
/// step.
#[derive(Debug)]
pub struct Refusal {
    /// What the system, or the code that was called, said.
    pub error: io::Error,
    /// At which step, as the request has it.
    pub step: String,
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Refusal {
        Refusal { error, step: String::new() }
    }
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> io::Error {
        refusal.error
    }
}

/// A refusal as a record has it.
#[derive(Serialize, Deserialize)]
struct Refused {
    errno: Option<i32>,
    kind: usize,
    text: String,
    step: String,
}

/// Kinds of errors without a number of the system's.
const KINDS: [io::ErrorKind; 10] = [
    io::ErrorKind::Other,
    io::ErrorKind::NotFound,
    io::ErrorKind::PermissionDenied,
    io::ErrorKind::InvalidInput,
    io::ErrorKind::InvalidData,
    io::ErrorKind::UnexpectedEof,
    io::ErrorKind::WouldBlock,
    io::ErrorKind::ConnectionRefused,
    io::ErrorKind::ConnectionReset,
    io::ErrorKind::BrokenPipe,
];

/// Most characters of an error's text.
const MAX_ERROR: usize = 1000;

/// Sends `request`, whose answer is known by `number`.
///
/// # Errors
/// It cannot be made into a record, or what the system says of the socket.
pub fn request(socket: impl AsFd, number: u64, request: &Request, fds: &[BorrowedFd]) -> io::Result<()> {
    say(socket, REQUEST, number, &request.encode()?, fds)
}

/// Sends an answer to the request `number`.
///
/// # Errors
/// The other end is gone.
pub fn answer(socket: impl AsFd, number: u64, answer: Result<Answer, Refusal>) -> io::Result<()> {
    match answer {
        Ok(answer) => {
            let fds: Vec<BorrowedFd> = answer.fd.iter().map(AsFd::as_fd).collect();
            say(socket, DONE, number, &serde_json::to_vec(&answer)?, &fds)
        }
        Err(Refusal { error, step }) => {
            let errno = error.raw_os_error();
            let kind = KINDS.iter().position(|kind| *kind == error.kind()).unwrap_or(0);
            let text = if errno.is_none() { error.to_string() } else { String::new() };
            let text = text.chars().take(MAX_ERROR).collect();
            say(socket, FAILED, number, &serde_json::to_vec(&Refused { errno, kind, text, step })?, &[])
        }
    }
}

/// The next request, with its number and descriptors. `UnexpectedEof`: the other end is gone.
///
/// # Errors
/// What the system says.
pub fn receive(socket: impl AsFd) -> io::Result<(u64, Result<Request, NoRequest>, Vec<OwnedFd>)> {
    let Record { what, number, text, fds, cut } = hear(socket, MAX_FDS)?;
    let request = if what == REQUEST && !cut { Request::decode(&text) } else { Err(NoRequest) };
    Ok((number, request, fds))
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
    let answer = match hear(socket, 1) {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        got => understood(got?, number),
    };
    answer.map(Some).ok_or_else(|| io::Error::other("the process that was asked has ended"))
}

/// What `record` says. `None`: it is no answer to the request `number`.
pub(super) fn understood(mut record: Record, number: u64) -> Option<Result<Answer, Refusal>> {
    match record.what {
        _ if record.number != number || record.cut => None,
        DONE => {
            let answer: Answer = serde_json::from_slice(&record.text).ok()?;
            Some(Ok(Answer { fd: record.fds.pop(), ..answer }))
        }
        FAILED => {
            let Refused { errno, kind, text, step } = serde_json::from_slice(&record.text).ok()?;
            let kind = KINDS.get(kind).copied().unwrap_or(io::ErrorKind::Other);
            let error = errno.map_or_else(|| io::Error::new(kind, text), io::Error::from_raw_os_error);
            Some(Err(Refusal { error, step }))
        }
        _ => None,
    }
}
