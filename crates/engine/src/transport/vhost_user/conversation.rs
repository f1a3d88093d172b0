//! One conversation with one VMM, from the first message to the last.
//!
//! Theory of operation. The thread sleeps until the socket, the port's fault or its owner has something
//! to say. A message is read only when all of it has arrived, and answered only when the answer fits in
//! the socket: so nothing here blocks on the peer, and a peer that stops in the middle of a message is
//! given [`PATIENCE`] and then up.
//!
//! Descriptors of the VMM are never received here: the door (`crate::door`) hands out duplicates, if they are what a VMM may give,
//! and then the message is read without them. Reading drops them, which may have to wait where the last reference to a socket
//! goes; so nothing is read before the door has seen what could go with it, and where it refuses something, the message stays
//! unread and the conversation ends. What the `vhost` crate is to read goes to it through a pair of sockets of ours, with
//! those duplicates, and so do its answers come back.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::net::{
    recvmsg, send, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use vhost::vhost_user::BackendReqHandler;

use super::super::connection::Connection;
use super::super::wait::{wait, FIRST_WORD};
use super::super::without_fds::receive;
use super::backend::{in_words, Backend};
use super::messages::{By, Given, Header, HEADER, MAX_PAYLOAD};
use crate::device::VirtioDevice;
use crate::door::{self, Closing, Wanted, Why};
use crate::fault::Fault;
use crate::mem::{BadFile, Files};

/// How long a peer may take over the rest of a message, or over reading our answers.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// How often the rest of a message is looked for: a readable socket cannot tell us that more has come.
const GLANCE: Duration = Duration::from_millis(2);
/// Most descriptors of a message, as the `vhost` crate limits them.
const MAX_FDS: usize = 32;

/// How a conversation ended.
#[derive(Debug)]
pub(super) enum End {
    /// The peer closed it.
    Closed,
    /// Its owner wants something.
    Called,
    /// The peer did not begin to talk.
    Silent,
    /// Somebody broke a rule; the words say what.
    Fault(Fault, String),
}

/// The backend behind its lock. Nobody but the conversation's thread ever holds it for long.
pub(super) fn lock<D>(backend: &Mutex<Backend<D>>) -> MutexGuard<'_, Backend<D>> {
    backend.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A conversation.
pub(super) struct Conversation<D: VirtioDevice> {
    stream: Connection,
    handler: BackendReqHandler<Mutex<Backend<D>>>,
    /// The way to the handler.
    inner: UnixStream,
    backend: Arc<Mutex<Backend<D>>>,
    /// When the peer began to keep us waiting.
    waiting_since: Option<Instant>,
    /// Where a file is closed that did not pass the door.
    closing: Option<Closing>,
    /// Until when its messages are held back.
    held_until: Option<Instant>,
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
    /// There are no descriptors left for it.
    pub(super) fn new(stream: Connection, backend: Arc<Mutex<Backend<D>>>) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        let (inner, theirs) = UnixStream::pair()?;
        // Whole messages are in it, and whole answers fit: nobody waits there.
        inner.set_nonblocking(true)?;
        theirs.set_nonblocking(true)?;
        let handler = BackendReqHandler::from_stream(theirs, Arc::clone(&backend));
        let (waiting_since, closing, held_until) = (None, None, None);
        Ok(Conversation { stream, handler, inner, backend, waiting_since, closing, held_until })
    }

    /// Where a file is still being closed that did not pass the door.
    pub(super) fn closing(&mut self) -> Option<Closing> {
        self.closing.take()
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
        let hold = || port.talk.hold().map(|time| Instant::now() + time);
        self.held_until = hold();
        // Where peers come to us, each has to say what it came for: others may want its place.
        let mut first_word = door.map(|_| Instant::now() + FIRST_WORD);
        loop {
            let held = self.held_until.map(|until| until.saturating_duration_since(Instant::now()));
            let held = held.filter(|left| !left.is_zero());
            let patient = self.waiting_since.is_none();
            let mut fds = vec![PollFd::from_borrowed_fd(wake, PollFlags::IN)];
            fds.push(PollFd::from_borrowed_fd(port.fault.event(), PollFlags::IN));
            if held.is_none() {
                fds.extend(door.map(|door| PollFd::from_borrowed_fd(door, PollFlags::IN)));
                if patient {
                    fds.push(PollFd::new(&self.stream, PollFlags::IN));
                }
            }
            let silence = first_word.map(|until| until.saturating_duration_since(Instant::now()));
            if wait(&mut fds, held.or((!patient).then_some(GLANCE)).or(silence)).is_err() {
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
            if held.is_some() {
                continue;
            }
            let knocks = door.is_some() && ready(2);
            match self.step() {
                Step::Done => {
                    (self.waiting_since, first_word) = (None, None);
                    self.held_until = hold();
                    changed(&lock(&self.backend));
                }
                Step::Nothing => {
                    self.waiting_since = None;
                    if silence.is_some_and(|left| left.is_zero()) {
                        return End::Silent;
                    }
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
        let header = match receive(&self.stream, &mut bytes, RecvFlags::PEEK) {
            Ok(got) if got.bytes == HEADER => match Header::parse(bytes) {
                Ok(header) => header,
                Err(why) => return Step::End(bad(why)),
            },
            Ok(_) => return Step::End(bad("a message's header comes in pieces".to_owned())),
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
        match self.take(&header).and_then(|(message, fds)| match header.message.by {
            By::Us(_) => self.answer(&header, &message, &fds),
            By::Crate | By::Nobody => self.pass_on(&message, &fds),
        }) {
            Ok(()) => Step::Done,
            Err(why) => Step::End(bad(format!("{}: {why}", header.message.name))),
        }
    }

    /// Takes a message, all of which is there, and duplicates of its descriptors.
    fn take(&mut self, header: &Header) -> Result<(Vec<u8>, Vec<OwnedFd>), String> {
        let unread = |e: rustix::io::Errno| format!("it cannot be read: {e}");
        let size = HEADER + header.size as usize;
        // One byte more, so that a look that goes too far shows.
        let mut message = vec![0; size + 1];
        let (mut have, mut fds) = (0, None);
        while have < size {
            let into = &mut message[have..];
            let seen =
                rustix::io::retry_on_intr(|| receive(&self.stream, into, RecvFlags::PEEK)).map_err(unread)?;
            // It ends behind the first piece with descriptors, if any are there; one that goes too far ended behind a later
            // message's, or behind one that has a part of this message: nobody can tell before it is read.
            let (ours, end) = (have + seen.bytes <= size, size.min(have + seen.bytes));
            let passed = if seen.with_fds { self.look(header, ours)? } else { Vec::new() };
            if seen.with_fds && ours && fds.replace(passed).is_some() {
                return Err("descriptors are attached to more than one piece of it".to_owned());
            }
            let into = &mut message[have..end];
            let got = rustix::io::retry_on_intr(|| receive(&self.stream, into, RecvFlags::empty()))
                .map_err(unread)?;
            if got.bytes == 0 {
                return Err("the VMM left in the middle of it".to_owned());
            }
            if got.with_fds && !(seen.with_fds && ours) {
                return Err("one piece held it and another message, with descriptors".to_owned());
            }
            have += got.bytes;
        }
        message.truncate(size);
        Ok((message, fds.unwrap_or_default()))
    }

    /// Has the door look at the first descriptors that wait: those of the message, or, unless they are `ours`, maybe those of a
    /// later one.
    fn look(&mut self, header: &Header, ours: bool) -> Result<Vec<OwnedFd>, String> {
        let files = lock(&self.backend).terms.files();
        let any = (!ours || header.message.given == Given::Memory) && files == Files::Any;
        door::look(self.stream.as_fd(), Wanted { most: MAX_FDS, any }).map_err(|refused| {
            self.closing = refused.closing;
            match ours {
                true => self.strange(header, refused.why),
                false => format!("behind it: {}", self.behind(refused.why)),
            }
        })
    }

    /// What is said of a later message of which a descriptor did not pass: the one in which the first piece with any ends.
    fn behind(&self, why: Why) -> String {
        let mut bytes = [0; 4096];
        let seen = receive(&self.stream, &mut bytes, RecvFlags::PEEK).map_or(0, |got| got.bytes);
        let mut rest = &bytes[..seen];
        while let Some(Ok(header)) = rest.first_chunk().map(|head| Header::parse(*head)) {
            match rest.get(HEADER + header.size as usize..).filter(|rest| !rest.is_empty()) {
                Some(later) => rest = later,
                None => return format!("{}: {}", header.message.name, self.strange(&header, why)),
            }
        }
        why.to_string()
    }

    /// Why a message is refused of which a descriptor did not pass.
    fn strange(&self, header: &Header, why: Why) -> String {
        let Why::Stranger(name) = why else { return why.to_string() };
        lock(&self.backend).terms.refused();
        match header.message.given {
            Given::Memory => BadFile::NotMemory(name).to_string(),
            Given::Event => BadFile::NotEvent(name).to_string(),
            Given::Nothing => format!("{name} came along, but no descriptor belongs to it"),
        }
    }

    /// Has the `vhost` crate handle a message, and passes its answers on.
    fn pass_on(&mut self, message: &[u8], fds: &[OwnedFd]) -> Result<(), String> {
        let broken = |e: rustix::io::Errno| format!("it cannot be passed on: {e}");
        let fds: Vec<BorrowedFd> = fds.iter().map(AsFd::as_fd).collect();
        // There is room for all of it.
        send_with(&self.inner, message, &fds).map_err(broken)?;
        let result = self.handler.handle_request().map_err(|e| in_words(&e));
        let mut bytes = [0; HEADER + MAX_PAYLOAD as usize];
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut into = [IoSliceMut::new(&mut bytes)];
            let got = match recvmsg(&self.inner, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(got) if got.bytes == 0 => break,
                Ok(got) => got.bytes,
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => break,
            };
            let mut fds = Vec::new();
            for part in control.drain() {
                if let RecvAncillaryMessage::ScmRights(ours) = part {
                    fds.extend(ours);
                }
            }
            let fds: Vec<BorrowedFd> = fds.iter().map(AsFd::as_fd).collect();
            // To a peer that has left: the next look at the socket finds out.
            let _ = send_with(&self.stream, &bytes[..got], &fds);
        }
        result
    }

    /// Handles a message that the `vhost` crate does not, and answers it.
    fn answer(&mut self, header: &Header, message: &[u8], fds: &[OwnedFd]) -> Result<(), String> {
        if !fds.is_empty() && header.message.given == Given::Nothing {
            return Err("a descriptor is attached, but none belongs to it".to_owned());
        }
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

/// Sends `bytes`, and the descriptors with the first of them.
fn send_with(stream: &UnixStream, mut bytes: &[u8], fds: &[BorrowedFd]) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        // There is room for as many as there can be.
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    while !bytes.is_empty() {
        match sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Ok(sent) => {
                bytes = &bytes[sent..];
                control.clear();
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn bad(why: String) -> End {
    End::Fault(Fault::BadMessage, why)
}
