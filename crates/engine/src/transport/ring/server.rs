//! The thread of a ring port: conversations, one of which may be attached, others ends of its pipes.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{recv, sendmsg, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use sidecore_abi::ring::{Answer, Ask, End, Info, Request, MAX_RINGS, MESSAGE, PIPE_NAME};

use super::pipes::{Memory, OpenEnd};
use super::{Inner, Listener};
use crate::host::ring::RingPair;
use crate::port::QueueKey;
use crate::ring::{pipe_end, Region};

/// Conversations at a time; one more takes the place of the oldest that is not attached.
const CONVERSATIONS: usize = 8;
/// Most descriptors of an answer: the memory, and for each pair of rings a kick and two pipes.
const MAX_FDS: usize = 1 + 3 * MAX_RINGS;

pub(super) struct Server {
    inner: Arc<Inner>,
    listener: Listener,
    stop: Arc<OwnedFd>,
    conversations: Vec<Conversation>,
    /// There while somebody is attached, or has an end of a pipe.
    memory: Option<Memory>,
}

struct Conversation {
    socket: UnixStream,
    /// What has arrived of the next request.
    request: [u8; MESSAGE],
    arrived: usize,
    role: Role,
}

/// What a conversation has.
enum Role {
    /// Nothing: it asked something.
    None,
    /// The port's rings.
    Client(Client),
    /// An end of a pipe.
    End(OpenEnd),
}

/// An attached client: its queues, in the hands of cores and port.
struct Client {
    inner: Arc<Inner>,
    keys: Vec<QueueKey>,
}

impl Drop for Client {
    fn drop(&mut self) {
        // Egress first: the link goes down before frames cease to come.
        for index in (0..self.keys.len()).rev() {
            drop(self.inner.port.swap_egress(index, None));
        }
        for key in self.keys.drain(..) {
            drop(self.inner.scheduler.take_back(key));
        }
        self.inner.state().rings.clear();
    }
}

/// What comes after a request.
enum Next {
    Wait,
    HangUp,
}

impl Server {
    pub(super) fn new(inner: Arc<Inner>, listener: Listener, stop: Arc<OwnedFd>) -> Server {
        Server { inner, listener, stop, conversations: Vec::new(), memory: None }
    }

    pub(super) fn run(mut self) {
        loop {
            let mut fds = vec![
                PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN),
            ];
            fds.extend(self.conversations.iter().map(|c| PollFd::new(&c.socket, PollFlags::IN)));
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!("port {}: poll: {error}", self.inner.port.name);
                    return;
                }
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            if ready[0] {
                return;
            }
            // From the end, so that places stay right.
            for place in (0..self.conversations.len()).rev().filter(|place| ready[2 + place]) {
                if let Next::HangUp = self.hear(place) {
                    self.hang_up(place);
                }
            }
            if self.conversations.iter().all(|c| matches!(c.role, Role::None)) {
                self.memory = None;
            }
            if ready[1] {
                self.admit();
            }
        }
    }

    fn admit(&mut self) {
        loop {
            match self.listener.accept() {
                Ok(Some(socket)) => self.welcome(socket),
                Ok(None) => return,
                Err(error) => {
                    // Out of descriptors, or of memory: the client waits in the backlog until some are free.
                    tracing::warn!("port {}: cannot take a client in: {error}", self.inner.port.name);
                    let pause = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
                    let _ = poll(&mut [PollFd::new(&*self.stop, PollFlags::IN)], Some(&pause));
                    return;
                }
            }
        }
    }

    fn welcome(&mut self, socket: UnixStream) {
        let idle = |c: &Conversation| matches!(c.role, Role::None);
        if self.conversations.iter().filter(|c| idle(c)).count() == CONVERSATIONS {
            if let Some(oldest) = self.conversations.iter().position(idle) {
                self.conversations.remove(oldest);
            }
        }
        self.conversations.push(Conversation { socket, request: [0; MESSAGE], arrived: 0, role: Role::None });
    }

    fn hang_up(&mut self, place: usize) {
        match self.conversations.remove(place).role {
            Role::None => {}
            Role::Client(client) => {
                drop(client);
                tracing::info!("port {}: its client is gone", self.inner.port.name);
            }
            Role::End(end) => {
                if let Some(memory) = &mut self.memory {
                    memory.close(end);
                }
                self.inner.state().ends -= 1;
            }
        }
    }

    /// Reads what has arrived, and answers whole requests.
    fn hear(&mut self, place: usize) -> Next {
        let conversation = &mut self.conversations[place];
        let room = &mut conversation.request[conversation.arrived..];
        let n = match recv(&conversation.socket, room, RecvFlags::DONTWAIT) {
            Ok((n, _)) if n > 0 => n,
            Err(Errno::AGAIN | Errno::INTR) => return Next::Wait,
            Ok(_) | Err(_) => return Next::HangUp,
        };
        conversation.arrived += n;
        if conversation.arrived < MESSAGE {
            return Next::Wait;
        }
        conversation.arrived = 0;
        let request = Request::from_bytes(&conversation.request);
        let Some((ask, value, pipe)) = request.and_then(|r| Some((Ask::from_code(r.ask)?, r.value, r.pipe)))
        else {
            tracing::warn!("port {}: a client speaks another language or version", self.inner.port.name);
            // It may be gone.
            let _ = self.answer(place, Err(Errno::PROTO), &[]);
            return Next::HangUp;
        };
        let sent = match ask {
            Ask::Attach => self.attach(place),
            Ask::Info => self.answer(place, Ok(()), &[]),
            Ask::SetHeader => {
                let possible = self.inner.traits.set_header(value, &self.inner.port);
                self.answer(place, if possible { Ok(()) } else { Err(Errno::INVAL) }, &[])
            }
            Ask::Pipe => self.open_end(place, value, pipe),
        };
        match sent {
            Ok(()) => Next::Wait,
            Err(_) => Next::HangUp,
        }
    }

    fn attach(&mut self, place: usize) -> io::Result<()> {
        let attached = |c: &Conversation| matches!(c.role, Role::Client(_));
        if self.conversations.iter().any(attached) || !matches!(self.conversations[place].role, Role::None) {
            return self.answer(place, Err(Errno::BUSY), &[]);
        }
        let (region, pairs) = match self.make() {
            Ok(made) => made,
            Err(error) => {
                tracing::warn!("port {}: cannot make rings: {error}", self.inner.port.name);
                return self.answer(place, Err(Errno::NOMEM), &[]);
            }
        };
        // Our copies of what the client gets; the queues go live, and then it is told.
        let kicks: Vec<OwnedFd> =
            pairs.iter().map(|pair| pair.kick().try_clone_to_owned()).collect::<io::Result<_>>()?;
        let mut client = Client { inner: Arc::clone(&self.inner), keys: Vec::new() };
        let (mut wakes_tx, mut wakes_rx) = (Vec::new(), Vec::new());
        {
            let mut state = self.inner.state();
            state.rings = pairs.iter().map(RingPair::stats).collect();
            state.attaches += 1;
        }
        for (index, pair) in pairs.into_iter().enumerate() {
            drop(self.inner.port.swap_egress(index, Some(Box::new(pair.egress))));
            let key = self.inner.scheduler.serve(&self.inner.port, Box::new(pair.ingress));
            client.keys.push(key);
            wakes_tx.push(pair.wake_tx);
            wakes_rx.push(pair.wake_rx);
        }
        self.conversations[place].role = Role::Client(client);
        let mut fds = vec![region.file()];
        fds.extend(kicks.iter().chain(&wakes_tx).chain(&wakes_rx).map(AsFd::as_fd));
        self.answer(place, Ok(()), &fds)
    }

    /// The memory, made if nobody has it yet.
    fn memory(&mut self) -> io::Result<&mut Memory> {
        if self.memory.is_none() {
            let region = Region::new(&self.inner.config.geometry, &self.inner.port.name)?;
            self.memory = Some(Memory::new(region));
        }
        self.memory.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn make(&mut self) -> io::Result<(Arc<Region>, Vec<RingPair>)> {
        let used = self.memory.is_some();
        let region = Arc::clone(&self.memory()?.region);
        if used {
            region.restart();
        }
        let pairs = (0..self.inner.info.tx_rings)
            .map(|index| RingPair::new(&region, index, &self.inner.traits))
            .collect::<io::Result<_>>()?;
        Ok((region, pairs))
    }

    /// Makes the conversation an end of the pipe `name`.
    fn open_end(&mut self, place: usize, end: u32, name: [u8; PIPE_NAME]) -> io::Result<()> {
        let Some(end) = End::from_code(end) else { return self.answer(place, Err(Errno::INVAL), &[]) };
        if !matches!(self.conversations[place].role, Role::None) {
            return self.answer(place, Err(Errno::BUSY), &[]);
        }
        let opened = self.memory().and_then(|memory| memory.open(name, end));
        let open = match opened {
            Ok(Some(open)) => open,
            Ok(None) => return self.answer(place, Err(Errno::NOSPC), &[]),
            Err(error) => {
                return self.answer(place, Err(Errno::from_io_error(&error).unwrap_or(Errno::NOMEM)), &[])
            }
        };
        self.conversations[place].role = Role::End(open);
        self.inner.state().ends += 1;
        let Some(memory) = &self.memory else { return Ok(()) };
        let mut fds = vec![memory.region.file()];
        fds.extend(memory.wakes(open).into_iter().map(AsFd::as_fd));
        let info = pipe_end(&self.inner.info, open.pipe, open.end);
        self.send(place, None, info, &fds)
    }

    fn answer(&self, place: usize, result: Result<(), Errno>, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let info = Info { header: self.inner.traits.header(), ..self.inner.info };
        self.send(place, result.err(), info, fds)
    }

    fn send(
        &self,
        place: usize,
        errno: Option<Errno>,
        mut info: Info,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let errno = errno.map_or(0, |errno| errno.raw_os_error().unsigned_abs());
        info.mtu = self.inner.port.mtu();
        // Memory of its own for each port: 1 is netmap's global allocator.
        info.mem_id = u32::from(self.inner.port.id.0) + 2;
        let bytes = Answer { errno, info }.to_bytes();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::Error::other("more descriptors than a message may carry"));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let socket = &self.conversations[place].socket;
        let sent = sendmsg(socket, &[io::IoSlice::new(&bytes)], &mut ancillary, flags)?;
        if sent == MESSAGE {
            Ok(())
        } else {
            Err(io::Error::other("the client reads no answers"))
        }
    }
}
