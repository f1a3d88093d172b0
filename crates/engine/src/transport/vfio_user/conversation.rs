//! One conversation on a socket: messages in, answers out, and everything else that the thread waits for.
//!
//! Theory of operation. A message is looked at before it is taken: until it has been handled and written down (`keep`)
//! it stays in the socket, where the next daemon finds it if this one is killed. Here descriptors are never received: a look
//! tells that there are some, and the door (`crate::door`) hands out duplicates of them, if they are what a VMM may give. The
//! descriptors of a message are those that come with its bytes and with no others. A look ends behind the first piece (what
//! one `sendmsg` sent) that has any, so if it goes beyond the message, they belong to a later one; from how many pieces some are
//! lost when the message is taken has to be the same number. (A look for exactly the bytes of a message would not do: the kernel then
//! looks at the next piece, too, and tells of its descriptors with no byte of it.) Taking bytes drops the descriptors that go with them, which may have to wait
//! where the last reference to a socket goes: so the door looks at those of later messages, too, which it keeps until a message is
//! taken, in case that they go with it. A message may come in parts; a peer that stops in the middle of one, or that does not read our answers, is given
//! [`PATIENCE`] and then up.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::sendfile;
use rustix::io::Errno;
use rustix::net::{sendmsg, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use sidecore_abi::vfio_user::{command, Header, MAX_FDS};

use super::super::connection::Connection;
use super::super::wait::{wait, FIRST_WORD};
use super::super::without_fds::receive;
use super::keep::{Keep, Pending};
use super::messages::{payload_size, Answer, Refusal};
use super::session::{lock, Session, SharedDevice};
use crate::door::{self, Closing, Wanted, Why};
use crate::mem::{peeked, set_peeked, BadFile, Files};
use crate::port::{Fault, Port};

/// How long a peer may take over the rest of a message, or over reading our answers.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long until we look again whether the rest of a message has come.
const NEXT_LOOK: Duration = Duration::from_millis(1);
/// Bytes that are looked at before a message's length is known: more than most messages have.
const FIRST_LOOK: usize = 4096;
/// What a file that does not pass the door costs its port, in changes: the time of another process.
const STRANGER: usize = 100;
/// Messages that are handled before the thread looks at what else waits.
const IN_A_ROW: usize = 32;

/// How a conversation ended.
#[derive(Debug)]
pub(super) enum End {
    /// The peer closed it.
    Closed,
    /// Its owner wants something.
    Called,
    /// Another daemon goes on with it.
    Left,
    /// The peer did not begin to talk.
    Silent,
    /// The peer broke a rule; the words say which.
    Fault(String),
    /// A queue found a fault that its owner does not get over by a reset.
    Stopped(Fault),
}

/// A message on its way in: what is in the socket, up to its end or beyond.
#[derive(Default)]
struct Inbox {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
    /// Pieces of it that have descriptors.
    pieces: usize,
    /// What the kernel calls a file that did not pass the door.
    stranger: Option<String>,
}

enum Read {
    /// A message of so many bytes.
    Whole(Header, usize),
    Nothing,
    Waiting,
    /// One with descriptors, and those of an earlier one are still being closed.
    Closing,
}

/// A conversation.
pub(super) struct Conversation<'a> {
    /// Before the socket: first nobody touches the guest's memory any more, then the VMM learns that we are
    /// gone.
    session: Session,
    stream: Connection,
    port: &'a Port,
    device: &'a SharedDevice,
    inbox: Inbox,
    answer: Answer,
    /// When the peer began to keep us waiting.
    waiting_since: Option<Instant>,
    /// How much of the socket was looked at, and not taken.
    peeked: usize,
    /// Where a file is closed that did not pass.
    closing: Option<Closing>,
    /// A message waits for that.
    blocked: bool,
    /// When the peer came.
    begun: Instant,
    /// Until when its messages are held back.
    held_until: Option<Instant>,
}

/// What the thread waits for beside the peer.
pub(super) struct Others<'a> {
    /// Readable when the owner calls.
    pub(super) wake: BorrowedFd<'a>,
    /// Readable when another peer knocks.
    pub(super) door: Option<BorrowedFd<'a>>,
    /// Told of a knock. False: nobody could be let in or turned away, and the door is still readable.
    pub(super) knocked: &'a mut dyn FnMut() -> bool,
    /// Whether the owner calls because another daemon will go on.
    pub(super) leaving: &'a dyn Fn() -> bool,
    /// Told after messages were handled.
    pub(super) changed: &'a mut dyn FnMut(&Session),
}

impl<'a> Conversation<'a> {
    pub(super) fn new(
        stream: Connection,
        session: Session,
        port: &'a Port,
        device: &'a SharedDevice,
    ) -> std::io::Result<Conversation<'a>> {
        stream.set_nonblocking(true)?;
        set_peeked(&stream, 0)?;
        Ok(Conversation {
            session,
            stream,
            port,
            device,
            inbox: Inbox { bytes: vec![0; FIRST_LOOK], ..Inbox::default() },
            answer: Answer::default(),
            waiting_since: None,
            peeked: 0,
            closing: None,
            blocked: false,
            begun: Instant::now(),
            held_until: None,
        })
    }

    /// The conversation of a session that another daemon left: what was under way is ended first.
    pub(super) fn resume(
        stream: Connection,
        mut session: Session,
        port: &'a Port,
        device: &'a SharedDevice,
    ) -> std::io::Result<Conversation<'a>> {
        stream.set_nonblocking(true)?;
        let left = peeked(&stream)?;
        let pending = session.kept().map_or(Ok(None), Keep::pending)?;
        let mut talk = Conversation::new(stream, session, port, device)?;
        if let Some(Pending { taken, unsent, with_fd }) = pending {
            let untouched = left == taken;
            if with_fd && !untouched {
                return Err(std::io::Error::other(
                    "nobody knows whether an answer with a descriptor was sent",
                ));
            }
            // Such an answer is made again, of a question that changes nothing.
            if !with_fd {
                let ended =
                    talk.pass_by().and_then(|()| talk.take(left)).and_then(|_| talk.send_kept(unsent));
                ended.map_err(|end| std::io::Error::other(format!("the client is gone: {end:?}")))?;
            }
        }
        talk.session.done();
        set_peeked(&talk.stream, 0)?;
        Ok(talk)
    }

    /// Talks until there is an end. Everything that the peer gave us is gone when this returns, or is the next daemon's; but
    /// for a file that did not pass the door, which may still be being closed there.
    pub(super) fn run(mut self, others: Others) -> (End, Option<Closing>) {
        let end = self.talk(others);
        (end, self.closing.take())
    }

    fn talk(&mut self, mut others: Others) -> End {
        (others.changed)(&self.session);
        self.hold();
        loop {
            let (resample, rest) = self.session.resample();
            let held = self.held_until.map(|until| until.saturating_duration_since(Instant::now()));
            let held = held.filter(|left| !left.is_zero());
            // A part of a message leaves the socket readable: then only time helps.
            let waiting =
                self.waiting_since.map(|since| NEXT_LOOK.min(PATIENCE.saturating_sub(since.elapsed())));
            let first_word =
                (!self.session.is_agreed()).then(|| FIRST_WORD.saturating_sub(self.begun.elapsed()));
            let limit = [held.or(waiting).or(first_word), rest].into_iter().flatten().min();
            let listens = if waiting.is_none() && !self.blocked { PollFlags::IN } else { PollFlags::empty() };
            let mut fds = vec![
                PollFd::from_borrowed_fd(others.wake, PollFlags::IN),
                PollFd::from_borrowed_fd(self.port.fault.event(), PollFlags::IN),
            ];
            let spoken_at = held.is_none().then_some(fds.len());
            fds.extend(spoken_at.map(|_| PollFd::new(&self.stream, listens)));
            let resample_at = resample.as_ref().map(|_| fds.len());
            fds.extend(resample.as_deref().map(|fd| PollFd::new(fd, PollFlags::IN)));
            // Nothing is said to these before all is heard, which it is not while the peer is held.
            let door = others.door.filter(|_| held.is_none());
            let door_at = door.map(|_| fds.len());
            fds.extend(door.map(|door| PollFd::from_borrowed_fd(door, PollFlags::IN)));
            let holder = self.session.holder().filter(|_| held.is_none());
            let holder_at = holder.as_ref().map(|_| fds.len());
            fds.extend(holder.map(|holder| PollFd::from_borrowed_fd(holder, PollFlags::IN)));
            let closing_at = self.closing.as_ref().map(|_| fds.len());
            fds.extend(self.closing.as_ref().map(|closing| PollFd::new(closing, PollFlags::IN)));
            if wait(&mut fds, limit).is_err() {
                return End::Closed;
            }
            let ready = |at: Option<usize>| at.is_some_and(|at| !fds[at].revents().is_empty());
            let (called, stopped, closed) = (ready(Some(0)), ready(Some(1)), ready(closing_at));
            let left = self.blocked && ready(spoken_at);
            let spoken = held.is_none() && (ready(spoken_at) || waiting.is_some() || closed);
            let (resampled, knocked, unheld) = (ready(resample_at), ready(door_at), ready(holder_at));
            drop(fds);
            if called {
                if (others.leaving)() && self.hand_over() {
                    return End::Left;
                }
                return End::Called;
            }
            if left {
                return End::Closed;
            }
            if closed {
                self.closing.take().into_iter().for_each(Closing::done);
                self.blocked = false;
            }
            if resampled {
                if let Some(fd) = &resample {
                    self.session.resampled(fd);
                }
            }
            if stopped {
                // A fault stops the queues, not the conversation: the guest can reset the device. The next
                // fault after that makes the event readable again.
                let _ = rustix::io::read(self.port.fault.event(), &mut [0; 8]);
                if let Some(fault) = self.port.fault.get() {
                    tracing::warn!(port = %self.port.name, fault = %fault.name(), "the device was stopped: {fault}");
                    lock(self.device).faulted(fault);
                    (others.changed)(&self.session);
                    // A reset by the guest mends nothing then.
                    if !fault.penalty().is_zero() {
                        return End::Stopped(fault);
                    }
                }
            }
            let mut all_heard = true;
            if spoken {
                match self.listen() {
                    Ok(all) => all_heard = all,
                    Err(end) => return end,
                }
                (others.changed)(&self.session);
                self.hold();
            }
            let too_late = || self.begun.elapsed() >= FIRST_WORD;
            if all_heard && !self.session.is_agreed() && too_late() {
                return End::Silent;
            }
            if self.waiting_since.is_some_and(|since| since.elapsed() >= PATIENCE) {
                return End::Fault(format!("the client stopped in the middle of a message for {PATIENCE:?}"));
            }
            // Only when all is heard: the holder of a peer that has left goes, too.
            if unheld && all_heard {
                self.session.lost("the holder is gone");
                (others.changed)(&self.session);
            }
            // Only when all is heard: a peer that has left and calls again is no second one.
            if knocked && all_heard && !(others.knocked)() {
                others.door = None;
            }
        }
    }

    /// Leaves the client to the next daemon, if that can go on.
    fn hand_over(&mut self) -> bool {
        let left = self.session.hand_over();
        if left {
            self.stream.leave();
        }
        left
    }

    /// Charges the port for what messages have changed, and holds the next ones back if there were too many.
    fn hold(&mut self) {
        let changes = self.session.take_changes();
        if changes > 0 {
            self.port.talk.changed(changes);
        }
        self.held_until = self.port.talk.hold().map(|time| Instant::now() + time);
    }

    /// Handles what has come. False: there may be more.
    fn listen(&mut self) -> Result<bool, End> {
        for _ in 0..IN_A_ROW {
            let (header, size) = match self.look()? {
                Read::Whole(header, size) => (header, size),
                Read::Nothing => {
                    self.waiting_since = None;
                    return Ok(true);
                }
                Read::Waiting => {
                    self.waiting_since.get_or_insert_with(Instant::now);
                    return Ok(true);
                }
                Read::Closing => {
                    (self.waiting_since, self.blocked) = (None, true);
                    return Ok(true);
                }
            };
            self.waiting_since = None;
            let fds = std::mem::take(&mut self.inbox.fds);
            let pieces = self.inbox.pieces;
            let (due, result) = match self.inbox.stranger.take() {
                Some(name) => {
                    self.port.talk.changed(STRANGER);
                    self.session.refuse(&header, strange(header.command, name), &mut self.answer)
                }
                None => {
                    let payload = &self.inbox.bytes[Header::SIZE..size];
                    self.session.handle(&header, payload, fds, &mut self.answer)
                }
            };
            self.session.keep(&self.stream);
            self.session.commit(size, due.then_some(&self.answer));
            let taken = self.take(size)?;
            self.closing.iter().for_each(Closing::begin);
            if taken != pieces {
                return Err(End::Fault(
                    "one piece held a message with descriptors and another one".to_owned(),
                ));
            }
            if due {
                self.send()?;
            }
            self.session.done();
            result.map_err(End::Fault)?;
            if due {
                // A client that waits for its answer has sent nothing more: looking would be in vain.
                return Ok(false);
            }
        }
        Ok(false)
    }

    /// Looks for a whole message, and lets it be.
    fn look(&mut self) -> Result<Read, End> {
        self.inbox = Inbox { bytes: std::mem::take(&mut self.inbox.bytes), ..Inbox::default() };
        let (mut have, mut end) = (0, FIRST_LOOK);
        loop {
            self.look_from(have)?;
            let began = have;
            let bytes = &mut self.inbox.bytes;
            let got = match receive(&self.stream, &mut bytes[have..end], RecvFlags::PEEK) {
                Ok(got) if got.bytes == 0 && have == 0 => return Err(End::Closed),
                Ok(got) if got.bytes == 0 => {
                    return Err(End::Fault("the client left in the middle of a message".to_owned()))
                }
                Ok(got) => got,
                Err(Errno::AGAIN) if have == 0 => return Ok(Read::Nothing),
                Err(Errno::AGAIN) => return Ok(Read::Waiting),
                Err(Errno::INTR) => continue,
                Err(_) => return Err(End::Closed),
            };
            have += got.bytes;
            self.peeked = have;
            let header = Header::parse(&bytes[..have.min(Header::SIZE)]);
            let whole = header.as_ref().map(payload_size).transpose().map_err(End::Fault)?;
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

    /// Has the door fetch the descriptors of the next piece that has any, `at` bytes behind the first that was not taken or later. Unless
    /// they are `ours`, the door only looks at them.
    fn fetch(&mut self, at: usize, header: Option<&Header>, ours: bool) -> Result<(), End> {
        self.inbox.pieces += usize::from(ours);
        self.look_from(at)?;
        let for_memory = !ours || header.is_none_or(|header| header.command == command::DMA_MAP);
        let any = for_memory && self.port.terms.files() == Files::Any;
        match door::look(self.stream.as_fd(), Wanted { most: MAX_FDS, any }) {
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
                    why => return Err(End::Fault(why.to_string())),
                }
            }
        }
        if self.inbox.fds.len() > MAX_FDS {
            return Err(End::Fault("more descriptors came along than can be taken".to_owned()));
        }
        Ok(())
    }

    /// Has the door look at what was looked at by an earlier daemon's.
    fn pass_by(&mut self) -> Result<(), End> {
        match receive(&self.stream, &mut [0], RecvFlags::PEEK) {
            Ok(got) if got.with_fds => self.fetch(0, None, false),
            _ => self.look_from(0),
        }
    }

    /// The next look begins `at` bytes behind the first that was not taken.
    fn look_from(&mut self, at: usize) -> Result<(), End> {
        if self.peeked != at {
            set_peeked(&self.stream, at).map_err(|_| End::Closed)?;
            self.peeked = at;
        }
        Ok(())
    }

    /// Takes `size` bytes that were looked at; returns from how many pieces the descriptors went with them.
    fn take(&mut self, size: usize) -> Result<usize, End> {
        let (mut left, mut pieces) = (size, 0);
        while left > 0 {
            let end = left.min(self.inbox.bytes.len());
            match receive(&self.stream, &mut self.inbox.bytes[..end], RecvFlags::empty()) {
                Ok(got) if got.bytes == 0 => return Err(End::Closed),
                Ok(got) => {
                    left -= got.bytes;
                    pieces += usize::from(got.with_fds);
                }
                Err(Errno::INTR) => {}
                Err(_) => return Err(End::Closed),
            }
        }
        self.peeked = self.peeked.saturating_sub(size);
        Ok(pieces)
    }

    /// Waits until the client reads. `begun`: when we began to send.
    fn wait_for_reader(&self, begun: Instant) -> Result<(), End> {
        let left = PATIENCE.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return Err(End::Fault(format!("the client did not read our answers for {PATIENCE:?}")));
        }
        let mut ready = [PollFd::new(&self.stream, PollFlags::OUT)];
        wait(&mut ready, Some(left)).map_err(|_| End::Closed)
    }

    /// Sends the next `left` bytes of the answers that are kept.
    fn send_kept(&mut self, mut left: usize) -> Result<(), End> {
        let begun = Instant::now();
        while left > 0 {
            let Some(keep) = self.session.kept() else { return Err(End::Closed) };
            match sendfile(&self.stream, keep.answers(), None, left) {
                Ok(0) => return Err(End::Closed),
                Ok(sent) => left -= sent,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait_for_reader(begun)?,
                Err(_) => return Err(End::Closed),
            }
        }
        Ok(())
    }

    /// Sends the answer whole.
    fn send(&mut self) -> Result<(), End> {
        if self.session.kept().is_some() && self.answer.fd.is_none() {
            return self.send_kept(self.answer.bytes().len());
        }
        let begun = Instant::now();
        let fds: Vec<BorrowedFd> = self.answer.fd.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            // There is room: it was made for one.
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        let mut bytes = self.answer.bytes();
        while !bytes.is_empty() {
            match sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
                Ok(n) => {
                    bytes = &bytes[n..];
                    control.clear();
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait_for_reader(begun)?,
                Err(_) => return Err(End::Closed),
            }
        }
        Ok(())
    }
}

/// What is said of a command with a file that did not pass the door.
fn strange(of: u16, name: String) -> Refusal {
    match of {
        command::DEVICE_SET_IRQS => Refusal::invalid(BadFile::NotEvent(name).to_string()),
        command::DMA_MAP => Refusal::invalid(BadFile::NotMemory(name).to_string()),
        _ => Refusal::invalid(format!("{name} came along; no descriptor belongs to it")),
    }
}

#[cfg(test)]
mod tests;
