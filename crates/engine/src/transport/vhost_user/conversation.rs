//! One conversation with one VMM, from the first message to the last.
//!
//! Theory of operation. A message is taken only when all of it has arrived, and answered only when the answer
//! fits in the socket: so nothing here blocks on the peer. Where the descriptor helper refuses something that
//! waits in the socket (`super::super::inbox`), the message stays unread and the conversation ends.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use super::super::inbox::{Inbox, MessageHeader, Read};
use super::super::server::connection::Connection;
use super::super::server::conversation::{Awaited, ConversationEnd, Exchange, Heard, ALSO};
use super::backend::Backend;
use super::channel::Descriptors;
use super::messages::{protocol, Given, Header, HEADER};
use crate::device::VirtioDevice;
use crate::mem::BadFile;
use crate::port::{AttachmentStatus, Peer};
use crate::util::fault::Fault;
use crate::util::wait;

/// A conversation.
pub(super) struct Conversation<D: VirtioDevice> {
    inbox: Inbox,
    backend: Arc<Mutex<Backend<D>>>,
    /// A message was handled; and a ring has run.
    begun: bool,
    ran: bool,
}

impl<D: VirtioDevice> Conversation<D> {
    /// # Errors
    /// There are no descriptors left for it.
    pub(super) fn new(stream: Connection, backend: Arc<Mutex<Backend<D>>>) -> std::io::Result<Self> {
        let inbox = Inbox::new(stream, &crate::lock(&backend).terms)?;
        Ok(Conversation { inbox, backend, begun: false, ran: false })
    }

    /// Takes the message of `size` bytes that was looked at; its descriptors.
    fn take(&mut self, header: &Header, size: usize) -> Result<Descriptors, ConversationEnd> {
        let fds = Descriptors(std::mem::take(&mut self.inbox.fds));
        if let Some((name, ours)) = self.inbox.stranger.take() {
            crate::lock(&self.backend).terms.refused();
            let (mut of, mut end, mut which) = (*header, size, header.message.name.to_owned());
            if !ours {
                // The one in which the first piece with descriptors ends.
                let seen = |end| self.inbox.bytes.get(end..self.inbox.seen).unwrap_or_default();
                while let Ok(Some((later, whole))) = Header::read(seen(end)) {
                    (of, end) = (later, end + whole);
                }
                which = format!("{which}: behind it: {}", of.message.name);
            }
            let fault = if of.message.given == Given::Memory { Fault::MemoryFile } else { Fault::BadMessage };
            return Err(ConversationEnd::Fault(fault, format!("{which}: {}", strange(&of, name))));
        }
        self.inbox.take(size)?;
        Ok(fds)
    }

    /// Handles a message that was taken, and answers it.
    fn answer(&self, header: &Header, message: &[u8], fds: Descriptors) -> Result<(), ConversationEnd> {
        let mut backend = crate::lock(&self.backend);
        let result = backend.handle(header.message, message, fds);
        let may_ask = header.need_reply && backend.protocol & protocol::REPLY_ACK != 0;
        let acknowledges = may_ask && !header.message.is_answered();
        drop(backend);
        let (answer, ended) = match result {
            Ok(answer) => (answer, Ok(())),
            Err(why) => (None, Err(ConversationEnd::bad(format!("{}: {why}", header.message.name)))),
        };
        let acknowledgement = (u64::from(ended.is_err()).to_le_bytes().to_vec(), None);
        let sent = match answer.or(acknowledges.then_some(acknowledgement)) {
            Some((payload, fd)) => self.inbox.send(&header.reply(&payload), fd.as_ref()),
            None => Ok(()),
        };
        ended.and(sent)
    }
}

/// Why a message is refused with which the file `name` came, which did not pass the descriptor helper.
fn strange(header: &Header, name: String) -> String {
    match header.message.given {
        Given::Memory => BadFile::NotMemory(name).to_string(),
        Given::Event | Given::Call => BadFile::NotEvent(name).to_string(),
        Given::Socket => format!("{name} is no connected stream socket of this host"),
        Given::Nothing => format!("{name} came along, but no descriptor belongs to it"),
    }
}

impl<D: VirtioDevice> Exchange for Conversation<D> {
    fn waits(&mut self, _: bool) -> Awaited<'_> {
        Awaited { stream: &self.inbox.stream, listens: true, also: [None; ALSO], rest: None }
    }

    fn listen(&mut self) -> Result<Heard, ConversationEnd> {
        let mut states = [PollFd::new(&self.inbox.stream, PollFlags::IN | PollFlags::OUT)];
        wait(&mut states, Some(Duration::ZERO)).map_err(|_| ConversationEnd::Closed)?;
        let flags = states[0].revents();
        if !flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            return Ok(Heard::All);
        }
        // A socket that is writable has room for far more than the longest answer. A peer that has shut it
        // down reads none.
        if !flags.contains(PollFlags::OUT) {
            let left = flags.contains(PollFlags::HUP);
            return if left {
                Err(ConversationEnd::Closed)
            } else {
                Ok(Heard::Part("did not read our answers"))
            };
        }
        let (header, size) = match self.inbox.look::<Header>()? {
            Read::Whole(header, size) => (header, size),
            Read::Nothing => return Ok(Heard::All),
            Read::Waiting | Read::Closing => return Ok(Heard::Part("stopped in the middle of a message")),
        };
        let fds = self.take(&header, size)?;
        self.answer(&header, &self.inbox.bytes[HEADER..size], fds)?;
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
        self.inbox.closing.take()
    }
}
