//! One conversation on a socket: messages in, answers out, and everything else that the thread waits for.
//!
//! Theory of operation. A message is looked at before it is taken: until it has been handled and written down (`keep`)
//! it stays in the socket, where the next daemon finds it if this one is killed. Here descriptors are never received: a look
//! tells that there are some, and the descriptor helper (`crate::sandbox::descriptors`) hands out duplicates of them, if they are what a VMM may give. The
//! descriptors of a message are those that come with its bytes and with no others. A look ends behind the first piece (what
//! one `sendmsg` sent) that has any, so if it goes beyond the message, they belong to a later one; from how many pieces some are
//! lost when the message is taken has to be the same number. (A look for exactly the bytes of a message would not do: the kernel then
//! looks at the next piece, too, and tells of its descriptors with no byte of it.) Taking bytes drops the descriptors that go with them,
//! which may have to wait where the last reference to a socket goes: so the helper looks at those of later messages, too, which it keeps until
//! a message is taken, in case that they go with it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::sendfile;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use sidecore_abi::vfio_user::{command, Header, MAX_FDS};

use super::super::server::connection::receive;
use super::super::server::connection::Connection;
use super::super::server::conversation::{Awaited, ConversationEnd, Exchange, Heard, ALSO, PATIENCE};
use super::super::server::wait::wait;
use super::commands;
use super::keep::{Keep, Pending};
use super::messages::{payload_size, Answer, Refusal};
use super::session::{Session, SharedDevice};
use crate::mem::{peeked, set_peeked, BadFile, Files};
use crate::port::{AttachmentStatus, Fault, Lack, Peer, Port};
use crate::sandbox::descriptors::{self, WantedFds, Why};
use crate::sandbox::open::passing;

/// Bytes that are looked at before a message's length is known: more than most messages have.
const FIRST_LOOK: usize = 4096;
/// What a file that does not pass the descriptor helper costs its port, in changes: the helper ends with it, and another one is started.
const STRANGER: usize = 1000;
/// Messages that are handled before the thread looks at what else waits.
const IN_A_ROW: usize = 32;

/// A message on its way in: what is in the socket, up to its end or beyond.
#[derive(Default)]
struct Inbox {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
    /// Pieces of it that have descriptors.
    pieces: usize,
    /// What the kernel calls a file that did not pass the descriptor helper.
    stranger: Option<String>,
}

enum Read {
    /// A message of this number of bytes.
    Whole(Header, usize),
    Nothing,
    Waiting,
    /// One with descriptors, and those of an earlier one are still being closed.
    Closing,
}

/// A conversation.
pub(super) struct Conversation {
    /// Before the socket: first no core touches the guest's memory any more, then the VMM learns that we are gone.
    session: Session,
    stream: Connection,
    port: Arc<Port>,
    device: SharedDevice,
    inbox: Inbox,
    answer: Answer,
    /// How much of the socket was looked at, and not taken.
    peeked: usize,
    /// Where a file is closed that did not pass.
    closing: Option<OwnedFd>,
    /// A message waits for that.
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
        stream.set_nonblocking(true)?;
        set_peeked(&stream, 0)?;
        Ok(Conversation {
            session,
            stream,
            port: Arc::clone(port),
            device: Arc::clone(device),
            inbox: Inbox { bytes: vec![0; FIRST_LOOK], ..Inbox::default() },
            answer: Answer::default(),
            peeked: 0,
            closing: None,
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
        stream.set_nonblocking(true)?;
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
            // Such an answer is made again, of a question that changes nothing.
            if !with_fd {
                let ended = exchange
                    .pass_by()
                    .and_then(|()| exchange.take(left))
                    .and_then(|_| exchange.send_kept(unsent));
                ended.map_err(|end| std::io::Error::other(format!("the client is gone: {end:?}")))?;
            }
        }
        exchange.session.done();
        set_peeked(&exchange.stream, 0)?;
        Ok(exchange)
    }

    /// Handles what has come, up to a message after which it is better to wait.
    fn handle(&mut self) -> Result<Heard, ConversationEnd> {
        for handled in 0..IN_A_ROW {
            let (header, size) = match self.look()? {
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
            let (pieces, answer, session) = (self.inbox.pieces, &mut self.answer, &mut self.session);
            let (due, result) = match self.inbox.stranger.take() {
                Some(name) => {
                    self.port.messages.changed(STRANGER);
                    commands::refuse(session, &header, strange(header.command, name), answer)
                }
                None => {
                    let payload = &self.inbox.bytes[Header::SIZE..size];
                    commands::handle(session, &header, payload, fds, answer)
                }
            };
            self.session.keep(&self.stream);
            self.session.commit(size, due.then_some(&self.answer));
            let taken = self.take(size)?;
            self.closing.iter().for_each(descriptors::dropped);
            if taken != pieces {
                return Err(ConversationEnd::bad(
                    "one piece held a message with descriptors and another one",
                ));
            }
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

    /// Looks for a whole message, and lets it be.
    fn look(&mut self) -> Result<Read, ConversationEnd> {
        self.inbox = Inbox { bytes: std::mem::take(&mut self.inbox.bytes), ..Inbox::default() };
        let (mut have, mut end) = (0, FIRST_LOOK);
        loop {
            self.look_from(have)?;
            let began = have;
            let bytes = &mut self.inbox.bytes;
            let got = match receive(&self.stream, &mut bytes[have..end], RecvFlags::PEEK) {
                Ok(got) if got.bytes == 0 && have == 0 => return Err(ConversationEnd::Closed),
                Ok(got) if got.bytes == 0 => {
                    return Err(ConversationEnd::bad("the client left in the middle of a message"))
                }
                Ok(got) => got,
                Err(Errno::AGAIN) if have == 0 => return Ok(Read::Nothing),
                Err(Errno::AGAIN) => return Ok(Read::Waiting),
                Err(Errno::INTR) => continue,
                Err(_) => return Err(ConversationEnd::Closed),
            };
            have += got.bytes;
            self.peeked = have;
            let header = Header::parse(&bytes[..have.min(Header::SIZE)]);
            let whole = header.as_ref().map(payload_size).transpose().map_err(ConversationEnd::bad)?;
            let whole = whole.map(|payload| Header::SIZE + payload);
            if got.with_fds {
                if self.closing.is_some() {
                    return Ok(Read::Closing);
                }
                // A look ends behind the first piece with descriptors: one that goes too far ended behind a later message's.
                let ours = whole.is_none_or(|whole| have <= whole);
                self.fetch(began, header.as_ref(), ours)?;
                self.look_from(have)?;
            }
            let (Some(header), Some(whole)) = (header, whole) else { continue };
            if have >= whole {
                self.look_from(whole)?;
                return Ok(Read::Whole(header, whole));
            }
            // One byte more, so that a look that goes too far shows.
            end = end.max(whole + 1);
            self.inbox.bytes.resize(self.inbox.bytes.len().max(end), 0);
        }
    }

    /// Has the descriptor helper fetch the descriptors of the next piece that has any, `at` bytes behind the first that was not taken or later. Unless
    /// they are `ours`, the helper only looks at them.
    fn fetch(&mut self, at: usize, header: Option<&Header>, ours: bool) -> Result<(), ConversationEnd> {
        self.inbox.pieces += usize::from(ours);
        self.look_from(at)?;
        let for_memory = !ours || header.is_none_or(|header| header.command == command::DMA_MAP);
        let any = for_memory && self.port.terms.files() == Files::Any;
        match descriptors::look(self.stream.as_fd(), WantedFds { most: MAX_FDS, any, sockets: false }) {
            Ok(fds) if ours => self.inbox.fds.extend(fds),
            Ok(_) => {}
            Err(refused) => {
                self.closing = refused.closing;
                match refused.why {
                    Why::Stranger(_) if !ours => {}
                    Why::Stranger(name) => {
                        self.port.terms.refused();
                        self.inbox.stranger.get_or_insert(name);
                    }
                    why => return Err(ConversationEnd::bad(why.to_string())),
                }
            }
        }
        if self.inbox.fds.len() > MAX_FDS {
            return Err(ConversationEnd::bad("more descriptors came along than can be taken"));
        }
        Ok(())
    }

    /// Has the descriptor helper look at what was looked at by an earlier daemon's.
    fn pass_by(&mut self) -> Result<(), ConversationEnd> {
        match receive(&self.stream, &mut [0], RecvFlags::PEEK) {
            Ok(got) if got.with_fds => self.fetch(0, None, false),
            _ => self.look_from(0),
        }
    }

    /// The next look begins `at` bytes behind the first that was not taken.
    fn look_from(&mut self, at: usize) -> Result<(), ConversationEnd> {
        if self.peeked != at {
            set_peeked(&self.stream, at).map_err(|_| ConversationEnd::Closed)?;
            self.peeked = at;
        }
        Ok(())
    }

    /// Takes `size` bytes that were looked at; returns from how many pieces the descriptors went with them.
    fn take(&mut self, size: usize) -> Result<usize, ConversationEnd> {
        let (mut left, mut pieces) = (size, 0);
        while left > 0 {
            let end = left.min(self.inbox.bytes.len());
            match receive(&self.stream, &mut self.inbox.bytes[..end], RecvFlags::empty()) {
                Ok(got) if got.bytes == 0 => return Err(ConversationEnd::Closed),
                Ok(got) => {
                    left -= got.bytes;
                    pieces += usize::from(got.with_fds);
                }
                Err(Errno::INTR) => {}
                Err(_) => return Err(ConversationEnd::Closed),
            }
        }
        self.peeked = self.peeked.saturating_sub(size);
        Ok(pieces)
    }

    /// Waits until the client reads. `begun`: when we began to send.
    fn wait_for_reader(&self, begun: Instant) -> Result<(), ConversationEnd> {
        let left = PATIENCE.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return Err(ConversationEnd::bad(format!(
                "the client did not read our answers for {PATIENCE:?}"
            )));
        }
        let mut ready = [PollFd::new(&self.stream, PollFlags::OUT)];
        wait(&mut ready, Some(left)).map_err(|_| ConversationEnd::Closed)
    }

    /// Sends the next `left` bytes of the answers that are kept.
    fn send_kept(&mut self, mut left: usize) -> Result<(), ConversationEnd> {
        let begun = Instant::now();
        while left > 0 {
            let Some(keep) = &self.session.keep else { return Err(ConversationEnd::Closed) };
            match sendfile(&self.stream, keep.answers(), None, left) {
                Ok(0) => return Err(ConversationEnd::Closed),
                Ok(sent) => left -= sent,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait_for_reader(begun)?,
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
        let begun = Instant::now();
        let mut fds: Vec<BorrowedFd> = self.answer.fd.iter().map(AsFd::as_fd).collect();
        let mut bytes = self.answer.bytes();
        while !bytes.is_empty() {
            match passing::send(&self.stream, bytes, &fds, SendFlags::empty()) {
                Ok(sent) => {
                    bytes = &bytes[sent..];
                    fds.clear();
                }
                Err(Errno::AGAIN) => self.wait_for_reader(begun)?,
                Err(_) => return Err(ConversationEnd::Closed),
            }
        }
        Ok(())
    }
}

impl Exchange for Conversation {
    fn waits(&mut self, held: bool) -> Awaited<'_> {
        let (resample, rest) = self.session.resample();
        self.resample = resample;
        let also = [
            self.resample.as_ref().map(|fd| fd.as_fd()),
            self.closing.as_ref().map(AsFd::as_fd),
            self.session.keep.as_ref().map(AsFd::as_fd).filter(|_| !held),
        ];
        Awaited { stream: &self.stream, listens: !self.blocked, also, rest }
    }

    fn ready(&mut self, [resampled, closed, unheld]: [bool; ALSO]) -> bool {
        if let Some(fd) = self.resample.take().filter(|_| resampled) {
            self.session.resampled(&fd);
        }
        if closed {
            (self.closing, self.blocked) = (None, false);
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
        tracing::warn!(port = %self.port.name, fault = %fault.name(), "the device was stopped: {fault}");
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
            self.stream.leave();
        }
        left
    }

    fn end(mut self, _: bool) -> Option<OwnedFd> {
        self.closing.take()
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
