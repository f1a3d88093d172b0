//! One conversation with one VMM, from the first message to the last.
//!
//! Theory of operation. The thread sleeps until the socket, the port's fault or its owner has something
//! to say. A message is read only when all of it has arrived, and answered only when the answer fits in
//! the socket: so nothing here blocks on the peer, and a peer that stops in the middle of a message is
//! given [`PATIENCE`] and then up.

use std::io::{IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::net::{recv, recvmsg, send, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags};
use vhost::vhost_user::BackendReqHandler;

use super::super::wait::wait;
use super::backend::{in_words, Backend};
use super::messages::{By, Header, HEADER};
use crate::device::VirtioDevice;
use crate::fault::Fault;

/// How long a peer may take over the rest of a message, or over reading our answers.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// How often the rest of a message is looked for: a readable socket cannot tell us that more has come.
const GLANCE: Duration = Duration::from_millis(2);

/// How a conversation ended.
#[derive(Debug)]
pub(super) enum End {
    /// The peer closed it.
    Closed,
    /// Its owner wants something.
    Called,
    /// Somebody broke a rule; the words say what.
    Fault(Fault, String),
}

/// The backend behind its lock. Nobody but the conversation's thread ever holds it for long.
pub(super) fn lock<D>(backend: &Mutex<Backend<D>>) -> MutexGuard<'_, Backend<D>> {
    backend.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A conversation.
pub(super) struct Conversation<D: VirtioDevice> {
    stream: UnixStream,
    handler: BackendReqHandler<Mutex<Backend<D>>>,
    backend: Arc<Mutex<Backend<D>>>,
    /// When the peer began to keep us waiting.
    waiting_since: Option<Instant>,
}

enum Step {
    /// A message was handled.
    Done,
    /// There is none.
    Nothing,
    /// The peer has to read or write first.
    Wait(&'static str),
    End(End),
}

impl<D: VirtioDevice> Conversation<D> {
    /// # Errors
    /// The socket's descriptor cannot be duplicated.
    pub(super) fn new(stream: UnixStream, backend: Arc<Mutex<Backend<D>>>) -> std::io::Result<Self> {
        stream.set_nonblocking(false)?;
        let handler = BackendReqHandler::from_stream(stream.try_clone()?, Arc::clone(&backend));
        Ok(Conversation { stream, handler, backend, waiting_since: None })
    }

    /// Talks until there is an end. `wake` is readable when the owner calls, `door` when another peer
    /// knocks. `knocked` is told of that, and says whether it could do something about it; `changed` is
    /// told of each message that was handled.
    pub(super) fn run(
        &mut self,
        wake: BorrowedFd,
        mut door: Option<BorrowedFd>,
        knocked: &mut dyn FnMut() -> bool,
        changed: &mut dyn FnMut(&Backend<D>),
    ) -> End {
        let port = Arc::clone(lock(&self.backend).device.port());
        loop {
            let patient = self.waiting_since.is_none();
            let mut fds = vec![PollFd::from_borrowed_fd(wake, PollFlags::IN)];
            fds.push(PollFd::from_borrowed_fd(port.fault.event(), PollFlags::IN));
            fds.extend(door.map(|door| PollFd::from_borrowed_fd(door, PollFlags::IN)));
            if patient {
                fds.push(PollFd::new(&self.stream, PollFlags::IN));
            }
            if wait(&mut fds, (!patient).then_some(GLANCE)).is_err() {
                return End::Closed;
            }
            let ready = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
            if ready(0) {
                return End::Called;
            }
            if ready(1) {
                if let Some(fault) = port.fault.get() {
                    return End::Fault(fault, fault.to_string());
                }
            }
            let knocks = door.is_some() && ready(2);
            match self.step() {
                Step::Done => {
                    self.waiting_since = None;
                    changed(&lock(&self.backend));
                }
                Step::Nothing => {
                    self.waiting_since = None;
                    // Only now: a peer that has left and calls again is no second one.
                    if knocks && !knocked() {
                        door = None;
                    }
                }
                Step::Wait(what) => {
                    if self.waiting_since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                        return End::Fault(Fault::BadMessage, format!("the VMM {what} for {PATIENCE:?}"));
                    }
                }
                Step::End(end) => return end,
            }
        }
    }

    /// Handles one message if one is there.
    fn step(&mut self) -> Step {
        let mut states = [PollFd::new(&self.stream, PollFlags::IN | PollFlags::OUT)];
        let flags = match wait(&mut states, Some(Duration::ZERO)) {
            Ok(()) => states[0].revents(),
            Err(_) => return Step::End(End::Closed),
        };
        if !flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            return Step::Nothing;
        }
        let waiting = rustix::io::ioctl_fionread(&self.stream).unwrap_or(0);
        let stopped = "stopped in the middle of a message";
        match waiting {
            0 => return Step::End(End::Closed),
            n if n < HEADER as u64 && flags.contains(PollFlags::HUP) => {
                return Step::End(bad("the VMM left in the middle of a message".to_owned()))
            }
            n if n < HEADER as u64 => return Step::Wait(stopped),
            _ => {}
        }
        let mut bytes = [0; HEADER];
        let header = match recv(&self.stream, &mut bytes, RecvFlags::PEEK) {
            Ok((_, HEADER)) => match Header::parse(bytes) {
                Ok(header) => header,
                Err(why) => return Step::End(bad(why)),
            },
            Ok(_) => return Step::End(bad("descriptors are attached to the middle of a message".to_owned())),
            Err(_) => return Step::End(End::Closed),
        };
        if waiting < HEADER as u64 + u64::from(header.size) {
            if flags.contains(PollFlags::HUP) {
                return Step::End(bad(format!("the VMM left in the middle of {}", header.message.name)));
            }
            return Step::Wait(stopped);
        }
        // A socket that is writable has room for far more than the longest answer.
        if !flags.contains(PollFlags::OUT) {
            return Step::Wait("did not read our answers");
        }
        let result = match header.message.by {
            By::Us(_) => self.answer(&header),
            By::Crate | By::Nobody => self.handler.handle_request().map_err(|e| in_words(&e)),
        };
        match result {
            Ok(()) => Step::Done,
            Err(why) => Step::End(bad(format!("{}: {why}", header.message.name))),
        }
    }

    /// Reads a message that the `vhost` crate does not, and answers it.
    fn answer(&mut self, header: &Header) -> Result<(), String> {
        let mut message = [0; HEADER + 8];
        let message = &mut message[..HEADER + header.size as usize];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got =
            recvmsg(&self.stream, &mut [IoSliceMut::new(message)], &mut control, RecvFlags::CMSG_CLOEXEC)
                .map_err(|e| format!("it cannot be read: {e}"))?;
        let files = control.drain().any(|part| matches!(part, RecvAncillaryMessage::ScmRights(_)));
        if files && header.message.code != super::messages::SET_LOG_FD {
            return Err("a descriptor is attached, but none belongs to it".to_owned());
        }
        // All of it is there, but a message may have been sent in parts.
        self.stream.read_exact(&mut message[got.bytes..]).map_err(|e| format!("it cannot be read: {e}"))?;
        let mut backend = lock(&self.backend);
        let result = backend.handle(header.message.code, &message[HEADER..]);
        let wants_answer = header.need_reply && backend.acknowledges();
        drop(backend);
        let reply = match &result {
            Ok(Some(number)) => Some(*number),
            Ok(None) => wants_answer.then_some(0),
            Err(_) => wants_answer.then_some(1),
        };
        if let Some(number) = reply {
            // To a peer that has left: the next look at the socket finds out.
            let _ = send(&self.stream, &header.reply(number), SendFlags::NOSIGNAL);
        }
        result.map(drop)
    }
}

fn bad(why: String) -> End {
    End::Fault(Fault::BadMessage, why)
}
