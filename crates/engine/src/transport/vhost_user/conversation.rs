//! One conversation with one VMM, from the first message to the last.
//!
//! Theory of operation. A message is read only when all of it has arrived, and answered only when the answer fits in
//! the socket: so nothing here blocks on the peer.
//!
//! Descriptors of the VMM are never received here: the descriptor helper (`crate::sandbox::descriptors`) hands out duplicates, if they are what a VMM may give,
//! and then the message is read without them. Reading drops them, which may have to wait where the last reference to a socket
//! goes; so nothing is read before the helper has seen what could go with it, and where it refuses something, the message stays
//! unread and the conversation ends.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::net::{RecvFlags, SendFlags};

use super::super::server::connection::receive;
use super::super::server::connection::Connection;
use super::super::server::conversation::{Awaited, ConversationEnd, Exchange, Heard, ALSO};
use super::super::server::wait::wait;
use super::backend::Backend;
use super::channel::Descriptors;
use super::messages::{Given, Header, HEADER};
use crate::device::VirtioDevice;
use crate::fault::Fault;
use crate::mem::{BadFile, Files};
use crate::port::{AttachmentStatus, Peer};
use crate::sandbox::descriptors::{self, WantedFds, Why};
use crate::sandbox::open::passing;

/// Most descriptors of a message: of one that gives memory, most regions.
const MAX_FDS: usize = 32;

/// A conversation.
pub(super) struct Conversation<D: VirtioDevice> {
    stream: Connection,
    backend: Arc<Mutex<Backend<D>>>,
    /// Where a file is closed that did not pass the descriptor helper.
    closing: Option<OwnedFd>,
    /// A message was handled; and a ring has run.
    begun: bool,
    ran: bool,
}

impl<D: VirtioDevice> Conversation<D> {
    /// # Errors
    /// There are no descriptors left for it.
    pub(super) fn new(stream: Connection, backend: Arc<Mutex<Backend<D>>>) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Conversation { stream, backend, closing: None, begun: false, ran: false })
    }

    /// Takes a message, all of which is there, and duplicates of its descriptors.
    fn take(&mut self, header: &Header) -> Result<(Vec<u8>, Descriptors), String> {
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
            // message's, or behind one that has a part of this message: which one is unknown before it is read.
            let (ours, end) = (have + seen.bytes <= size, size.min(have + seen.bytes));
            let passed = if seen.with_fds { self.look(header, ours)? } else { Descriptors::default() };
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

    /// Has the descriptor helper look at the first descriptors that wait: those of the message, or, unless they are `ours`, maybe those of a
    /// later one.
    fn look(&mut self, header: &Header, ours: bool) -> Result<Descriptors, String> {
        let files = crate::lock(&self.backend).terms.files();
        let given = header.message.given;
        let any = (!ours || given == Given::Memory) && files == Files::Any;
        let sockets = !ours || given == Given::Socket;
        match descriptors::look(self.stream.as_fd(), WantedFds { most: MAX_FDS, any, sockets }) {
            // A later message's stay where they are: to drop their duplicates does not wait, and hangs up on no peer.
            Ok(list) => Ok(Descriptors { list, sockets: sockets && ours }),
            Err(refused) => {
                self.closing = refused.closing;
                Err(match ours {
                    true => self.strange(header, refused.why),
                    false => format!("behind it: {}", self.behind(refused.why)),
                })
            }
        }
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
        crate::lock(&self.backend).terms.refused();
        match header.message.given {
            Given::Memory => BadFile::NotMemory(name).to_string(),
            Given::Event => BadFile::NotEvent(name).to_string(),
            Given::Socket => format!("{name} is no connected stream socket of this host"),
            Given::Nothing => format!("{name} came along, but no descriptor belongs to it"),
        }
    }

    /// Handles a message, and answers it.
    fn answer(&mut self, header: &Header, message: &[u8], fds: Descriptors) -> Result<(), String> {
        let mut backend = crate::lock(&self.backend);
        let result = backend.handle(header.message, &message[HEADER..], fds);
        let acknowledges = header.need_reply && backend.acknowledges() && !header.message.is_answered();
        drop(backend);
        let (answer, ended) = match result {
            Ok(answer) => (answer, Ok(())),
            Err(why) => (None, Err(why)),
        };
        let acknowledgement = (u64::from(ended.is_err()).to_le_bytes().to_vec(), None);
        if let Some((payload, fd)) = answer.or(acknowledges.then_some(acknowledgement)) {
            // To a peer that has left: the next look at the socket finds out.
            let fds: Vec<BorrowedFd> = fd.iter().map(AsFd::as_fd).collect();
            let _ = send_with(&self.stream, &header.reply(&payload), &fds);
        }
        ended
    }
}

impl<D: VirtioDevice> Exchange for Conversation<D> {
    fn waits(&mut self, _: bool) -> Awaited<'_> {
        Awaited { stream: &self.stream, listens: true, also: [None; ALSO], rest: None }
    }

    fn listen(&mut self) -> Result<Heard, ConversationEnd> {
        const STOPPED: Heard = Heard::Part("stopped in the middle of a message");
        let mut states = [PollFd::new(&self.stream, PollFlags::IN | PollFlags::OUT)];
        wait(&mut states, Some(Duration::ZERO)).map_err(|_| ConversationEnd::Closed)?;
        let flags = states[0].revents();
        if !flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            return Ok(Heard::All);
        }
        let left = flags.contains(PollFlags::HUP);
        let waiting = rustix::io::ioctl_fionread(&self.stream).unwrap_or(0);
        match waiting {
            0 => return Err(ConversationEnd::Closed),
            n if n < HEADER as u64 && left => {
                return Err(ConversationEnd::bad("the VMM left in the middle of a message"))
            }
            n if n < HEADER as u64 => return Ok(STOPPED),
            _ => {}
        }
        let mut bytes = [0; HEADER];
        let got = receive(&self.stream, &mut bytes, RecvFlags::PEEK).map_err(|_| ConversationEnd::Closed)?;
        if got.bytes < HEADER {
            return Err(ConversationEnd::bad("a message's header comes in pieces"));
        }
        let header = Header::parse(bytes).map_err(ConversationEnd::bad)?;
        if waiting < HEADER as u64 + u64::from(header.size) {
            if left {
                return Err(ConversationEnd::bad(format!(
                    "the VMM left in the middle of {}",
                    header.message.name
                )));
            }
            return Ok(STOPPED);
        }
        // A socket that is writable has room for far more than the longest answer. A peer that has shut it down reads
        // none.
        if !flags.contains(PollFlags::OUT) && left {
            return Err(ConversationEnd::Closed);
        }
        if !flags.contains(PollFlags::OUT) {
            return Ok(Heard::Part("did not read our answers"));
        }
        let done = self.take(&header).and_then(|(message, fds)| self.answer(&header, &message, fds));
        done.map_err(|why| ConversationEnd::bad(format!("{}: {why}", header.message.name)))?;
        self.begun = true;
        Ok(Heard::More)
    }

    fn has_begun(&self) -> bool {
        self.begun
    }

    fn has_asked(&self) -> bool {
        self.ran
    }

    fn stopped(&mut self, fault: Fault) -> Option<ConversationEnd> {
        Some(ConversationEnd::Fault(fault, fault.to_string()))
    }

    fn status(&mut self, detail: &str) -> Option<AttachmentStatus> {
        let status = crate::lock(&self.backend).status(detail.to_owned());
        self.ran |= status.peer == Peer::Running;
        Some(status)
    }

    fn end(mut self, faulty: bool) -> Option<OwnedFd> {
        crate::lock(&self.backend).disconnect(faulty);
        self.closing.take()
    }
}

/// Sends `bytes`, and the descriptors with the first of them.
fn send_with(stream: &UnixStream, mut bytes: &[u8], mut fds: &[BorrowedFd]) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        let sent = passing::send(stream, bytes, fds, SendFlags::empty())?;
        (bytes, fds) = (&bytes[sent..], &[]);
    }
    Ok(())
}
