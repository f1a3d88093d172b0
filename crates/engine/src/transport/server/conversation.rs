//! One conversation with one client: the thread sleeps until the client, the port's fault or its owner has
//! something to say.
//!
//! A client is given [`PATIENCE`] over the rest of a message or over reading our answers, and [`FIRST_WORD`]
//! over its first one. While its messages are held back (`port::message_limit`) the owner is heard, and the
//! protocol's own descriptors are.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::socket::Listener;
use super::OwnerLine;
use crate::port::{AttachmentStatus, Port};
use crate::util::fault::Fault;
use crate::util::wait;

/// How long a peer may take over the rest of a message, or over reading our answers.
pub(in crate::transport) const PATIENCE: Duration = Duration::from_secs(2);
/// How long until we look again whether the rest of a message has come: a socket that is readable cannot
/// tell.
const NEXT_LOOK: Duration = Duration::from_millis(1);
/// How long a peer may take over its first message.
const FIRST_WORD: Duration = Duration::from_secs(10);

/// How a conversation ended.
#[derive(Debug)]
pub(in crate::transport) enum ConversationEnd {
    /// The peer closed it.
    Closed,
    /// Its owner wants something.
    Called,
    /// Another daemon goes on with it.
    Left,
    /// The peer did not begin to speak.
    Silent,
    /// A rule was broken; the words say which.
    Fault(Fault, String),
}

impl ConversationEnd {
    /// The peer broke the protocol.
    pub(in crate::transport) fn bad(why: impl Into<String>) -> ConversationEnd {
        ConversationEnd::Fault(Fault::BadMessage, why.into())
    }
}

/// What has come of a peer's messages.
pub(in crate::transport) enum Heard {
    /// All were handled.
    All,
    /// There may be more.
    More,
    /// The peer has to read or write first; the words say what it did instead.
    Part(&'static str),
}

/// What a conversation waits for beside its owner and the port.
pub(in crate::transport) struct Awaited<'a> {
    pub(in crate::transport) stream: &'a UnixStream,
    /// Whether messages are listened to; else only that the peer leaves.
    pub(in crate::transport) listens: bool,
    /// Descriptors of the protocol's own, and when it will wait for more of them.
    pub(in crate::transport) also: [Option<BorrowedFd<'a>>; ALSO],
    pub(in crate::transport) rest: Option<Duration>,
}

/// Most descriptors of a protocol's own.
pub(in crate::transport) const ALSO: usize = 3;

/// A protocol's part of a conversation.
pub(in crate::transport) trait Exchange {
    /// What to wait for. `held`: the peer's messages are held back.
    fn waits(&mut self, held: bool) -> Awaited<'_>;

    /// Some of its own descriptors are readable. True: whatever the peer's says, it is to be listened to now.
    fn ready(&mut self, also: [bool; ALSO]) -> bool {
        let _ = also;
        false
    }

    /// Handles messages that have come, not too many in a row.
    fn listen(&mut self) -> Result<Heard, ConversationEnd>;

    /// Whether the first word was said.
    fn has_begun(&self) -> bool;

    /// Whether the peer has come for anything.
    fn has_asked(&self) -> bool;

    /// A queue has found a fault: the end, unless its guest can get over it.
    fn stopped(&mut self, fault: Fault) -> Option<ConversationEnd>;

    /// What `show` says beside `detail`, if that is news.
    fn status(&mut self, detail: &str) -> Option<AttachmentStatus>;

    /// Leaves the peer to the next daemon. False: it cannot be.
    fn leave(&mut self) -> bool {
        false
    }

    /// The end, by a fault or not: first no core touches the guest's memory any more, then the peer learns
    /// that we are gone. What is returned is readable when a file of the peer's has been closed
    /// (`descriptors::Refused`).
    fn end(self, faulty: bool) -> Option<OwnedFd>;
}

/// Talks at `port` until there is an end. Other clients connect at `listener`; the first word has to come in
/// time if that is to be limited; `show` is told after messages were handled.
pub(in crate::transport) fn run<T: Exchange>(
    exchange: &mut T,
    port: &Port,
    line: &OwnerLine,
    mut listener: Option<&Listener>,
    limits_first_word: bool,
    show: impl Fn(&mut T),
) -> ConversationEnd {
    let hold = || port.messages.hold().map(|time| Instant::now() + time);
    let begun = Instant::now();
    let mut waiting: Option<(Instant, &str)> = None;
    show(exchange);
    let mut held_until = hold();
    loop {
        let held = held_until.map(|until| until.saturating_duration_since(Instant::now()));
        let held = held.filter(|left| !left.is_zero());
        let silence =
            (limits_first_word && !exchange.has_begun()).then(|| FIRST_WORD.saturating_sub(begun.elapsed()));
        let patience = waiting.map(|(since, _)| PATIENCE.saturating_sub(since.elapsed()));
        let waits = exchange.waits(held.is_some());
        let limit = held.or(patience.map(|left| left.min(NEXT_LOOK))).or(silence);
        let limit = [limit, waits.rest].into_iter().flatten().min();
        let mut fds = vec![
            PollFd::new(line, PollFlags::IN),
            PollFd::from_borrowed_fd(port.fault.event(), PollFlags::IN),
        ];
        // A part of a message leaves the socket readable: then only time helps, and what is waited for is
        // that it ends.
        let listens = if waiting.is_none() && waits.listens { PollFlags::IN } else { PollFlags::empty() };
        let stream = held.is_none().then(|| PollFd::new(waits.stream, listens));
        let newcomers =
            listener.filter(|_| held.is_none()).map(|listener| PollFd::new(listener, PollFlags::IN));
        let [a, b, c] = waits.also.map(|fd| fd.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        // Where each is among those that are polled. The listener comes first: a VMM that has left and calls
        // again is seen to have left.
        let indices = [newcomers, stream, a, b, c].map(|fd| {
            let index = fd.is_some().then_some(fds.len());
            fds.extend(fd);
            index
        });
        if wait(&mut fds, limit).is_err() {
            return ConversationEnd::Closed;
        }
        let is_ready = |at: Option<usize>| at.is_some_and(|at| !fds[at].revents().is_empty());
        let (called, stopped) = (is_ready(Some(0)), is_ready(Some(1)));
        let [newcomer, heard, also @ ..] = indices.map(is_ready);
        let left = heard && !waits.listens;
        drop(fds);
        if called {
            return if line.wishes().leave && exchange.leave() {
                ConversationEnd::Left
            } else {
                ConversationEnd::Called
            };
        }
        if left {
            return ConversationEnd::Closed;
        }
        let again = also.contains(&true) && exchange.ready(also);
        if stopped {
            // The next fault makes it readable again.
            let _ = rustix::io::read(port.fault.event(), &mut [0; 8]);
            if let Some(fault) = port.fault.get() {
                if let Some(end) = exchange.stopped(fault) {
                    return end;
                }
                show(exchange);
            }
        }
        let mut all_heard = true;
        if held.is_none() && (heard || again || waiting.is_some()) {
            match exchange.listen() {
                Ok(Heard::Part(what)) => {
                    waiting.get_or_insert_with(|| (Instant::now(), what));
                }
                Ok(heard) => (waiting, all_heard) = (None, matches!(heard, Heard::All)),
                Err(end) => return end,
            }
            show(exchange);
            held_until = hold();
        }
        if all_heard && silence.is_some_and(|left| left.is_zero()) && !exchange.has_begun() {
            return ConversationEnd::Silent;
        }
        if let Some((_, what)) = waiting.filter(|(since, _)| since.elapsed() >= PATIENCE) {
            return ConversationEnd::bad(format!("the VMM {what} for {PATIENCE:?}"));
        }
        // Only when all is heard: a peer that has left and calls again is no second one.
        if newcomer && all_heard {
            let refused = listener.is_some_and(Listener::refuse);
            if refused && port.messages.refused_second() {
                tracing::warn!(event = "peer", port = %port.name, "a second VMM has called and was refused: give each VMM a port of its own");
            }
            // It is still readable.
            listener = listener.filter(|_| refused);
        }
    }
}
