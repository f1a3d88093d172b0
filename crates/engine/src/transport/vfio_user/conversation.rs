//! One conversation on a socket: messages in, answers out, and everything else that the thread waits for.
//!
//! Theory of operation. A message stays in the socket until it has been handled and written down (`keep`):
//! there the next daemon finds it if this one is killed (`super::super::inbox`).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::sendfile;
use rustix::io::Errno;
use sidecore_abi::vfio_user::{command, Header};

use super::super::inbox::{Inbox, Read};
use super::super::server::connection::Connection;
use super::super::server::conversation::{Awaited, ConversationEnd, Exchange, Heard, ALSO};
use super::commands;
use super::keep::{Keep, Pending};
use super::messages::{Answer, Refusal};
use super::session::{Session, SharedDevice};
use crate::mem::{peeked, set_peeked, BadFile};
use crate::port::{AttachmentStatus, Fault, Lack, Peer, Port};

/// What a file that does not pass the descriptor helper costs its port, in changes: the helper ends with it,
/// and another one is started.
const STRANGER: usize = 1000;
/// Messages that are handled before the thread looks at what else waits.
const IN_A_ROW: usize = 32;

/// A conversation.
pub(super) struct Conversation {
    /// Before the socket: first no core touches the guest's memory any more, then the VMM learns that we are
    /// gone.
    session: Session,
    inbox: Inbox,
    port: Arc<Port>,
    device: SharedDevice,
    answer: Answer,
    /// A message waits until a file is closed that did not pass the descriptor helper.
    blocked: bool,
    /// The eventfd by which the ends of interrupts are told, while they are heard.
    resample: Option<Arc<OwnedFd>>,
    /// The holder is gone.
    unheld: bool,
    /// What was told last.
    shown: Option<News>,
}

/// What of a conversation is worth telling.
type News = (Option<Fault>, bool, u64, Option<&'static str>, Option<Lack>);

impl Conversation {
    pub(super) fn new(
        stream: Connection,
        session: Session,
        port: &Arc<Port>,
        device: &SharedDevice,
    ) -> std::io::Result<Conversation> {
        Ok(Conversation {
            session,
            inbox: Inbox::new(stream, &port.terms)?,
            port: Arc::clone(port),
            device: Arc::clone(device),
            answer: Answer::default(),
            blocked: false,
            resample: None,
            unheld: false,
            shown: None,
        })
    }

    /// The conversation of a session that another daemon left: what was under way is ended first.
    pub(super) fn resume(
        stream: Connection,
        mut session: Session,
        port: &Arc<Port>,
        device: &SharedDevice,
    ) -> std::io::Result<Conversation> {
        let left = peeked(&stream)?;
        let pending = session.keep.as_mut().map_or(Ok(None), Keep::pending)?;
        let mut exchange = Conversation::new(stream, session, port, device)?;
        if let Some(Pending { taken, unsent, with_fd }) = pending {
            let untouched = left == taken;
            if with_fd && !untouched {
                return Err(std::io::Error::other(
                    "it is unknown whether an answer with a descriptor was sent",
                ));
            }
            // An answer with a descriptor is made again, since its question changes nothing.
            if !with_fd {
                let taken = exchange.inbox.pass_by::<Header>(left);
                let ended = taken.and_then(|()| exchange.send_kept(unsent));
                ended.map_err(|end| std::io::Error::other(format!("the client is gone: {end:?}")))?;
            }
        }
        exchange.session.done();
        set_peeked(&exchange.inbox.stream, 0)?;
        Ok(exchange)
    }

    /// Handles what has come, up to a message after which it is better to wait.
    fn handle(&mut self) -> Result<Heard, ConversationEnd> {
        for handled in 0..IN_A_ROW {
            let (header, size) = match self.inbox.look()? {
                Read::Whole(header, size) => (header, size),
                Read::Nothing => return Ok(Heard::All),
                // The patience with it begins now: an earlier message may have kept us waiting, too.
                Read::Waiting if handled > 0 => return Ok(Heard::More),
                Read::Waiting => return Ok(Heard::Part("stopped in the middle of a message")),
                Read::Closing => {
                    self.blocked = true;
                    return Ok(Heard::All);
                }
            };
            let fds = std::mem::take(&mut self.inbox.fds);
            let (answer, session) = (&mut self.answer, &mut self.session);
            let (due, result) = match self.inbox.stranger.take() {
                Some((name, true)) => {
                    self.port.terms.refused();
                    self.port.messages.changed(STRANGER);
                    commands::refuse(session, &header, strange(header.command, name), answer)
                }
                // What belongs to a later message is looked at again with that.
                _ => {
                    let payload = &self.inbox.bytes[Header::SIZE..size];
                    commands::handle(session, &header, payload, fds, answer)
                }
            };
            self.session.keep(&self.inbox.stream);
            self.session.commit(size, due.then_some(&self.answer));
            self.inbox.take(size)?;
            if due {
                self.send()?;
            }
            self.session.done();
            result.map_err(ConversationEnd::bad)?;
            if due {
                // A client that waits for its answer has sent nothing more: looking would be in vain.
                break;
            }
        }
        Ok(Heard::More)
    }

    /// Sends the next `left` bytes of the answers that are kept.
    fn send_kept(&mut self, mut left: usize) -> Result<(), ConversationEnd> {
        let begun = Instant::now();
        while left > 0 {
            let Some(keep) = &self.session.keep else { return Err(ConversationEnd::Closed) };
            match sendfile(&self.inbox.stream, keep.answers(), None, left) {
                Ok(0) => return Err(ConversationEnd::Closed),
                Ok(sent) => left -= sent,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.inbox.wait_for_reader(begun)?,
                Err(_) => return Err(ConversationEnd::Closed),
            }
        }
        Ok(())
    }

    /// Sends the answer whole.
    fn send(&mut self) -> Result<(), ConversationEnd> {
        if self.session.keep.is_some() && self.answer.fd.is_none() {
            return self.send_kept(self.answer.bytes().len());
        }
        self.inbox.send(self.answer.bytes(), self.answer.fd.as_ref())
    }
}

impl Exchange for Conversation {
    fn waits(&mut self, held: bool) -> Awaited<'_> {
        let (resample, rest) = self.session.resample();
        self.resample = resample;
        let also = [
            self.resample.as_ref().map(|fd| fd.as_fd()),
            self.inbox.closing.as_ref().map(AsFd::as_fd),
            self.session.keep.as_ref().and_then(Keep::end_of_holder).filter(|_| !held),
        ];
        Awaited { stream: &self.inbox.stream, listens: !self.blocked, also, rest }
    }

    fn ready(&mut self, [resampled, closed, unheld]: [bool; ALSO]) -> bool {
        if let Some(fd) = self.resample.take().filter(|_| resampled) {
            self.session.resampled(&fd);
        }
        if closed {
            (self.inbox.closing, self.blocked) = (None, false);
        }
        self.unheld |= unheld;
        closed || unheld
    }

    fn listen(&mut self) -> Result<Heard, ConversationEnd> {
        let heard = self.handle()?;
        let changes = std::mem::take(&mut self.session.changes);
        if changes > 0 {
            self.port.messages.changed(changes);
        }
        // Only when all is heard: the holder of a peer that has left goes, too.
        if self.unheld && !matches!(heard, Heard::More) {
            self.session.lost("the holder is gone");
            self.unheld = false;
        }
        Ok(heard)
    }

    fn has_begun(&self) -> bool {
        self.session.agreed.is_some()
    }

    fn has_asked(&self) -> bool {
        // For more than a conversation.
        self.session.handled > 1
    }

    /// A fault stops the queues, not the conversation: the guest can reset the device.
    fn stopped(&mut self, fault: Fault) -> Option<ConversationEnd> {
        tracing::warn!(event = "fault", port = %self.port.name, fault = %fault.name(), "the device was stopped: {fault}");
        crate::lock(&self.device).faulted(fault);
        // But for those that a reset does not mend.
        (!fault.penalty().is_zero()).then(|| ConversationEnd::Fault(fault, fault.to_string()))
    }

    fn status(&mut self, detail: &str) -> Option<AttachmentStatus> {
        if let Some(map) = self.session.unlooked() {
            self.port.look_at_memory(&map);
            if !self.port.memory_seems_private() {
                self.session.looks = 0;
            }
        }
        let session = &self.session;
        // After every message: only what is news costs anything.
        let lack = session.lack();
        let news = (self.port.fault.get(), session.agreed.is_some(), session.refused, session.hint(), lack);
        if self.shown.replace(news) == Some(news) {
            return None;
        }
        let (fault, agreed, refused, hint, _) = news;
        let mut detail = detail.to_owned();
        if let Some(fault) = fault {
            detail = format!("{detail}; stopped until the guest resets it: {fault}");
        }
        if refused > 0 {
            detail = format!("{detail}; commands refused: {refused}");
        }
        let peer = match fault {
            Some(_) => Peer::Faulted,
            None if agreed => Peer::Connected,
            None => Peer::Waiting,
        };
        let hint = hint.map(str::to_owned);
        Some(AttachmentStatus { peer, detail, hint, lack, ..AttachmentStatus::default() })
    }

    fn leave(&mut self) -> bool {
        let left = self.session.hand_over();
        if left {
            self.inbox.stream.leave();
        }
        left
    }

    fn end(mut self, _: bool) -> Option<OwnedFd> {
        self.inbox.closing.take()
    }
}

/// What is said of a command with a file that did not pass the descriptor helper.
fn strange(of: u16, name: String) -> Refusal {
    match of {
        command::DEVICE_SET_IRQS => Refusal::invalid(BadFile::NotEvent(name).to_string()),
        command::DMA_MAP => Refusal::invalid(BadFile::NotMemory(name).to_string()),
        _ => Refusal::invalid(format!("{name} came along; no descriptor belongs to it")),
    }
}

#[cfg(test)]
mod tests;
