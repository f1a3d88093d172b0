//! A peer's messages on their way in, with their descriptors, and the answers to them.
//!
//! Theory of operation. A message is looked at before it is taken: until it is taken it stays in the socket,
//! where the next daemon finds it if this one is killed. Here descriptors are never received: a look tells
//! that there are some, and the descriptor helper (`crate::sandbox::descriptors`) hands out duplicates of
//! them, if they are what a VMM may give. The descriptors of a message are those that come with its bytes and
//! with no others. A look ends behind the first piece (what one `sendmsg` sent) that has any, so if it goes
//! beyond the message, they belong to a later one; from how many pieces some are lost when the message is
//! taken has to be the same number. (A look for exactly the bytes of a message would not do: the kernel then
//! looks at the next piece, too, and tells of its descriptors with no byte of it.) Taking bytes drops the
//! descriptors that go with them, which may have to wait where the last reference to a socket goes: so the
//! helper looks at those of later messages, too, which it keeps until a message is taken, in case that they
//! go with it.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::server::connection::{receive, Connection};
use super::server::conversation::{ConversationEnd, PATIENCE};
use crate::mem::{set_peeked, Files, Terms};
use crate::sandbox::descriptors::{self, WantedFds, Why};
use crate::sandbox::open::passing;
use crate::util::fault::Fault;
use crate::util::wait;

/// Bytes that are looked at before a message's length is known: more than most messages have.
const FIRST_LOOK: usize = 4096;

/// What messages of a protocol begin with.
pub(super) trait MessageHeader: Sized {
    /// Most descriptors of a message.
    const MAX_FDS: usize;

    /// The header that `bytes` begin with, if enough of it is there, and the bytes of the whole message.
    ///
    /// # Errors
    /// It is none. It is unknown then where the next message begins.
    fn read(bytes: &[u8]) -> Result<Option<(Self, usize)>, String>;

    /// Whether `bytes` begin as the first message of a VMM that has another kind of device at this socket.
    fn is_foreign(bytes: &[u8]) -> bool;

    /// Whether memory comes with a message, and whether a socket does. `None`: any may be meant, since a
    /// descriptor came before the header was whole.
    fn gives(header: Option<&Self>, terms: &Terms) -> (bool, bool);
}

/// What a look has found.
pub(super) enum Read<H> {
    /// A message of this number of bytes.
    Whole(H, usize),
    Nothing,
    Waiting,
    /// One with descriptors, and those of an earlier one are still being closed.
    Closing,
}

/// What is done, or the end of the conversation.
type Done<T = ()> = Result<T, ConversationEnd>;

/// A socket, and the message that was looked at last.
pub(super) struct Inbox {
    pub(super) stream: Connection,
    terms: Terms,
    /// What is in the socket, up to the message's end or beyond.
    pub(super) bytes: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
    /// Pieces of it that have descriptors.
    pieces: usize,
    /// What the kernel calls a file that did not pass the descriptor helper, and whether it belongs to this
    /// message, not to a later one.
    pub(super) stranger: Option<(String, bool)>,
    /// How much of the socket the look saw; and how much was looked at, and not taken.
    pub(super) seen: usize,
    peeked: usize,
    /// Where a file is closed that did not pass.
    pub(super) closing: Option<OwnedFd>,
}

impl Inbox {
    /// That of `stream`, on which descriptors are given on `terms`.
    pub(super) fn new(stream: Connection, terms: &Terms) -> std::io::Result<Inbox> {
        stream.set_nonblocking(true)?;
        set_peeked(&stream, 0)?;
        Ok(Inbox {
            stream,
            terms: terms.clone(),
            bytes: vec![0; FIRST_LOOK],
            fds: Vec::new(),
            pieces: 0,
            stranger: None,
            seen: 0,
            peeked: 0,
            closing: None,
        })
    }

    /// Looks for a whole message, and lets it be.
    pub(super) fn look<H: MessageHeader>(&mut self) -> Done<Read<H>> {
        self.fds.clear();
        (self.pieces, self.stranger) = (0, None);
        let (mut have, mut end) = (0, FIRST_LOOK);
        loop {
            self.look_from(have)?;
            let began = have;
            let got = match receive(&self.stream, &mut self.bytes[have..end], RecvFlags::PEEK) {
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
            (self.seen, self.peeked) = (have, have);
            if H::is_foreign(&self.bytes[..have]) {
                let wrong = Fault::WrongClient;
                return Err(ConversationEnd::Fault(wrong, wrong.to_string()));
            }
            let message = H::read(&self.bytes[..have]).map_err(ConversationEnd::bad)?;
            if got.with_fds {
                if self.closing.is_some() {
                    return Ok(Read::Closing);
                }
                // A look ends behind the first piece with descriptors: one that goes too far ended behind a
                // later message's.
                let ours = message.as_ref().is_none_or(|(_, whole)| have <= *whole);
                self.fetch(began, message.as_ref().map(|(header, _)| header), ours)?;
                self.look_from(have)?;
            }
            let Some((header, whole)) = message else { continue };
            if have >= whole {
                self.look_from(whole)?;
                return Ok(Read::Whole(header, whole));
            }
            // One byte more, so that a look that goes too far shows.
            end = end.max(whole + 1);
            self.bytes.resize(self.bytes.len().max(end), 0);
        }
    }

    /// Has the descriptor helper fetch the descriptors of the next piece that has any, `at` bytes behind the
    /// first that was not taken or later. Unless they are `ours`, the helper only looks at them.
    fn fetch<H: MessageHeader>(&mut self, at: usize, header: Option<&H>, ours: bool) -> Done {
        self.pieces += usize::from(ours);
        self.look_from(at)?;
        let (memory, sockets) = H::gives(header.filter(|_| ours), &self.terms);
        let any = memory && self.terms.files() == Files::Any;
        match descriptors::look(self.stream.as_fd(), WantedFds { most: H::MAX_FDS, any, sockets }) {
            Ok(fds) if ours => self.fds.extend(fds),
            // A later message's stay where they are: to drop their duplicates does not wait, and hangs up on
            // no peer.
            Ok(_) => {}
            Err(refused) => {
                self.closing = refused.closing;
                let Why::Stranger(name) = refused.why else {
                    return Err(ConversationEnd::bad(refused.why.to_string()));
                };
                self.stranger.get_or_insert((name, ours));
            }
        }
        if self.fds.len() > H::MAX_FDS {
            return Err(ConversationEnd::bad("more descriptors came along than can be taken"));
        }
        Ok(())
    }

    /// Takes the `size` bytes that an earlier daemon has looked at, whatever they are, once the descriptor
    /// helper has seen what goes with them.
    pub(super) fn pass_by<H: MessageHeader>(&mut self, size: usize) -> Done {
        match receive(&self.stream, &mut [0], RecvFlags::PEEK) {
            Ok(got) if got.with_fds => self.fetch::<H>(0, None, false)?,
            _ => self.look_from(0)?,
        }
        self.drain(size).map(drop)
    }

    /// The next look begins `at` bytes behind the first that was not taken.
    fn look_from(&mut self, at: usize) -> Done {
        if self.peeked != at {
            set_peeked(&self.stream, at).map_err(|_| ConversationEnd::Closed)?;
            self.peeked = at;
        }
        Ok(())
    }

    /// Takes the message of `size` bytes that was looked at.
    pub(super) fn take(&mut self, size: usize) -> Done {
        let taken = self.drain(size)?;
        self.closing.iter().for_each(descriptors::dropped);
        if taken != self.pieces {
            return Err(ConversationEnd::bad("one piece held a message with descriptors and another one"));
        }
        Ok(())
    }

    /// Takes `size` bytes that were looked at; returns from how many pieces the descriptors went with them.
    fn drain(&mut self, size: usize) -> Done<usize> {
        let (mut left, mut pieces) = (size, 0);
        while left > 0 {
            let end = left.min(self.bytes.len());
            match receive(&self.stream, &mut self.bytes[..end], RecvFlags::empty()) {
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

    /// Waits until the peer reads. `begun`: when we began to send.
    pub(super) fn wait_for_reader(&self, begun: Instant) -> Done {
        let left = PATIENCE.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return Err(ConversationEnd::bad(format!(
                "the client did not read our answers for {PATIENCE:?}"
            )));
        }
        let mut ready = [PollFd::new(&self.stream, PollFlags::OUT)];
        wait(&mut ready, Some(left)).map(drop).map_err(|_| ConversationEnd::Closed)
    }

    /// Sends an answer whole, and a descriptor with the first of its bytes.
    pub(super) fn send(&self, mut bytes: &[u8], fd: Option<&OwnedFd>) -> Done {
        let begun = Instant::now();
        let mut fd = fd.map(AsFd::as_fd);
        while !bytes.is_empty() {
            match passing::send(&self.stream, bytes, fd.as_slice(), SendFlags::empty()) {
                Ok(sent) => (bytes, fd) = (&bytes[sent..], None),
                Err(Errno::AGAIN) => self.wait_for_reader(begun)?,
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(ConversationEnd::Closed),
                // A peer would wait for it for ever.
                Err(e) => return Err(ConversationEnd::bad(format!("an answer cannot be sent: {e}"))),
            }
        }
        Ok(())
    }
}
