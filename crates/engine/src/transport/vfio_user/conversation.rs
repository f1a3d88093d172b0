//! One conversation on a socket: messages in, answers out, and everything else that the thread waits for.
//!
//! Theory of operation. Never is a byte read beyond the message at hand: the descriptors that arrive with its
//! bytes are its own then, whatever the kernel glues together. A message may come in parts; a peer that stops
//! in the middle of one, or that does not read our answers, is given [`PATIENCE`] and then up.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use sidecore_abi::vfio_user::{Header, MAX_FDS};

use super::super::wait::wait;
use super::messages::{payload_size, Answer};
use super::session::{lock, Session, SharedDevice};
use crate::port::Port;

/// How long a peer may take over the rest of a message, or over reading our answers.
const PATIENCE: Duration = Duration::from_secs(2);
/// Messages that are handled before the thread looks at what else waits.
const IN_A_ROW: usize = 32;

/// How a conversation ended.
#[derive(Debug)]
pub(super) enum End {
    /// The peer closed it.
    Closed,
    /// Its owner wants something.
    Called,
    /// The peer broke a rule; the words say which.
    Fault(String),
}

/// A message on its way in.
#[derive(Default)]
struct Inbox {
    head: [u8; Header::SIZE],
    /// Bytes that have come of the header, then of the whole message.
    have: usize,
    header: Option<Header>,
    payload: Vec<u8>,
    fds: Vec<OwnedFd>,
}

enum Read {
    Whole(Header),
    Nothing,
    Waiting,
}

/// A conversation.
pub(super) struct Conversation<'a> {
    /// Before the socket: first nobody touches the guest's memory any more, then the VMM learns that we are
    /// gone.
    session: Session,
    stream: UnixStream,
    port: &'a Port,
    device: &'a SharedDevice,
    inbox: Inbox,
    answer: Answer,
    /// When the peer began to keep us waiting.
    waiting_since: Option<Instant>,
}

/// What the thread waits for beside the peer.
pub(super) struct Others<'a> {
    /// Readable when the owner calls.
    pub(super) wake: BorrowedFd<'a>,
    /// Readable when another peer knocks.
    pub(super) door: Option<BorrowedFd<'a>>,
    /// Told of a knock. False: nobody could be let in or turned away, and the door is still readable.
    pub(super) knocked: &'a mut dyn FnMut() -> bool,
    /// Told after messages were handled.
    pub(super) changed: &'a mut dyn FnMut(&Session),
}

impl<'a> Conversation<'a> {
    pub(super) fn new(
        stream: UnixStream,
        port: &'a Port,
        device: &'a SharedDevice,
    ) -> std::io::Result<Conversation<'a>> {
        stream.set_nonblocking(true)?;
        Ok(Conversation {
            session: Session::new(&port.name, device),
            stream,
            port,
            device,
            inbox: Inbox::default(),
            answer: Answer::default(),
            waiting_since: None,
        })
    }

    /// Talks until there is an end. Everything that the peer gave us is gone when this returns.
    pub(super) fn run(mut self, mut others: Others) -> End {
        loop {
            let resample = self.session.resample();
            let mut fds = vec![
                PollFd::from_borrowed_fd(others.wake, PollFlags::IN),
                PollFd::new(&self.stream, PollFlags::IN),
                PollFd::from_borrowed_fd(self.port.fault.event(), PollFlags::IN),
            ];
            let resample_at = resample.as_ref().map(|_| fds.len());
            fds.extend(resample.as_deref().map(|fd| PollFd::new(fd, PollFlags::IN)));
            let door_at = others.door.map(|_| fds.len());
            fds.extend(others.door.map(|door| PollFd::from_borrowed_fd(door, PollFlags::IN)));
            let patience = self.waiting_since.map(|since| PATIENCE.saturating_sub(since.elapsed()));
            if wait(&mut fds, patience).is_err() {
                return End::Closed;
            }
            let ready = |at: Option<usize>| at.is_some_and(|at| !fds[at].revents().is_empty());
            let (called, spoken, stopped) = (ready(Some(0)), ready(Some(1)), ready(Some(2)));
            let (resampled, knocked) = (ready(resample_at), ready(door_at));
            if called {
                return End::Called;
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
                }
            }
            let mut all_heard = true;
            if spoken {
                match self.listen() {
                    Ok(all) => all_heard = all,
                    Err(end) => return end,
                }
                (others.changed)(&self.session);
            }
            if self.waiting_since.is_some_and(|since| since.elapsed() >= PATIENCE) {
                return End::Fault(format!("the client stopped in the middle of a message for {PATIENCE:?}"));
            }
            // Only when all is heard: a peer that has left and calls again is no second one.
            if knocked && all_heard && !(others.knocked)() {
                others.door = None;
            }
        }
    }

    /// Handles what has come. False: there may be more.
    fn listen(&mut self) -> Result<bool, End> {
        for _ in 0..IN_A_ROW {
            let header = match self.read()? {
                Read::Whole(header) => header,
                Read::Nothing => {
                    self.waiting_since = None;
                    return Ok(true);
                }
                Read::Waiting => {
                    self.waiting_since.get_or_insert_with(Instant::now);
                    return Ok(true);
                }
            };
            self.waiting_since = None;
            let fds = std::mem::take(&mut self.inbox.fds);
            let (due, result) = self.session.handle(&header, &self.inbox.payload, fds, &mut self.answer);
            if due {
                self.send()?;
            }
            result.map_err(End::Fault)?;
            if due {
                // A client that waits for its answer has sent nothing more: looking would be in vain.
                return Ok(false);
            }
        }
        Ok(false)
    }

    /// Reads on at the message at hand.
    fn read(&mut self) -> Result<Read, End> {
        loop {
            if let Some(header) = self.inbox.header {
                if self.inbox.have == Header::SIZE + self.inbox.payload.len() {
                    (self.inbox.have, self.inbox.header) = (0, None);
                    return Ok(Read::Whole(header));
                }
            } else if let Some(header) = Header::parse(&self.inbox.head[..self.inbox.have]) {
                let size = payload_size(&header).map_err(End::Fault)?;
                self.inbox.payload.resize(size, 0);
                self.inbox.header = Some(header);
                continue;
            }
            let inbox = &mut self.inbox;
            let into = match inbox.header {
                None => &mut inbox.head[inbox.have..],
                Some(_) => &mut inbox.payload[inbox.have - Header::SIZE..],
            };
            match receive(&self.stream, into, &mut inbox.fds) {
                Ok(0) if inbox.have == 0 => return Err(End::Closed),
                Ok(0) => return Err(End::Fault("the client left in the middle of a message".to_owned())),
                Ok(n) => inbox.have += n,
                Err(Errno::AGAIN) if inbox.have == 0 => return Ok(Read::Nothing),
                Err(Errno::AGAIN) => return Ok(Read::Waiting),
                Err(Errno::INTR) => {}
                Err(Errno::MSGSIZE) => {
                    return Err(End::Fault("more descriptors came along than can be taken".to_owned()))
                }
                Err(_) => return Err(End::Closed),
            }
        }
    }

    /// Sends the answer whole.
    fn send(&mut self) -> Result<(), End> {
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
                Err(Errno::AGAIN) => {
                    let left = PATIENCE.saturating_sub(begun.elapsed());
                    if left.is_zero() {
                        return Err(End::Fault(format!(
                            "the client did not read our answers for {PATIENCE:?}"
                        )));
                    }
                    let mut ready = [PollFd::new(&self.stream, PollFlags::OUT)];
                    wait(&mut ready, Some(left)).map_err(|_| End::Closed)?;
                }
                Err(_) => return Err(End::Closed),
            }
        }
        Ok(())
    }
}

/// Reads some bytes and the descriptors that come with them. `MSGSIZE`: there was no room for all of them.
fn receive(stream: &UnixStream, into: &mut [u8], fds: &mut Vec<OwnedFd>) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(stream, &mut [IoSliceMut::new(into)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            fds.extend(received);
        }
    }
    if got.flags.contains(ReturnFlags::CTRUNC) || fds.len() > MAX_FDS {
        return Err(Errno::MSGSIZE);
    }
    Ok(got.bytes)
}
