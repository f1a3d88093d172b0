//! Frames that go into the tunnel.
//!
//! Theory of operation. A batch's frames are put in the order of the socket and the endpoint to which they
//! go; the flow chooses the socket, and so the source port, by which routers between the endpoints spread
//! flows (RFC 7348 §5). Frames of equal length that go the same way become one message, which the kernel cuts
//! into datagrams (UDP_SEGMENT of udp(7)): headers, heads and bodies are gathered from where they lie. Each
//! socket in use costs one sendmmsg(2).
//!
//! The outer header says that nobody can answer to marks of congestion (RFC 6040 §4.1, compatibility mode):
//! an endpoint is not known to pass them on, and routers drop for one that does not.
//!
//! A frame for several endpoints counts as delivered when all copies went out, and else as dropped for the
//! last reason.
//!
//! Invariant of the `unsafe` here: messages, vectors and control buffers are scratch space that is filled
//! anew before each call and used by nothing else. Vectors lead to the header, which lives as long as the
//! queue, to heads of frames of the batch, and to pieces that the batch keeps mapped; the kernel copies, and
//! answers EFAULT rather than raise a signal if memory has vanished.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use libc::{iovec, mmsghdr, msghdr};
use rustix::io::Errno;
use rustix::net::SocketAddrAny;

use super::socket::{HAS_VNI, HEADER};
use super::vteps::{Known, Vteps};
use crate::host::describe::gather;
use crate::packet::{flow_hash, Batch, MAX_BATCH, MAX_PIECES};
use crate::port::{DropReason, EgressQueue, Outcome};
use crate::util::slice::behind;

/// Most messages of one call.
const MESSAGES: usize = 64;
/// Most datagrams of one message (UDP_MAX_SEGMENTS), and bytes.
const TRAIN: usize = 64;
const TRAIN_BYTES: usize = 64_000;
/// Vectors of one call: most of one message (UIO_MAXIOV), and as many again.
const MOST_VECTORS: usize = 1024;
const VECTORS: usize = 2 * MOST_VECTORS;
/// Copies that are put in order at a time: floods may make more.
const COPIES: usize = 16 * MAX_BATCH;

/// A control message with a 16-bit number: its length, its level and kind, and the number, in words of 8
/// bytes.
const CONTROL_LEN: u64 = 18;

/// A copy of a frame, on its way: where it goes in the high half, in the order in which copies are sent, and
/// its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Copy {
    socket: u16,
    vtep: u16,
    place: u16,
    pick: u16,
}

/// Frames that go into the tunnel.
pub(super) struct VxlanEgress {
    sockets: Vec<OwnedFd>,
    vteps: Arc<Vteps>,
    /// The UDP port of all endpoints.
    port: u16,
    header: Box<[u8; HEADER]>,
    copies: Vec<Copy>,
    /// The first copy of each message, and that behind its last.
    spans: Vec<(usize, usize)>,
    /// By pick: why a copy did not go out.
    failed: Box<[Option<DropReason>]>,
    messages: Box<[mmsghdr]>,
    vectors: Box<[iovec]>,
    names: Box<[SocketAddrAny]>,
    controls: Box<[[u64; 3]]>,
    /// The kernel cuts messages for this interface.
    cuts: bool,
}

// SAFETY: no pointer in the scratch space is used after the call that it was filled in for.
unsafe impl Send for VxlanEgress {}

impl VxlanEgress {
    pub(super) fn new(sockets: Vec<OwnedFd>, vteps: Arc<Vteps>, port: u16, vni: u32) -> VxlanEgress {
        // SAFETY: all-zero bytes are a valid message.
        let message: mmsghdr = unsafe { std::mem::zeroed() };
        let [_, a, b, c] = vni.to_be_bytes();
        VxlanEgress {
            sockets,
            vteps,
            port,
            header: Box::new([HAS_VNI, 0, 0, 0, a, b, c, 0]),
            copies: Vec::with_capacity(COPIES),
            spans: Vec::with_capacity(MESSAGES),
            failed: vec![None; MAX_BATCH].into(),
            messages: vec![message; MESSAGES].into(),
            vectors: vec![iovec { iov_base: ptr::null_mut(), iov_len: 0 }; VECTORS].into(),
            names: (0..MESSAGES).map(|_| to(None, port)).collect(),
            controls: vec![[0; 3]; MESSAGES].into(),
            cuts: true,
        }
    }

    /// Notes the copies that frame `pick`, the one at `place`, needs.
    fn note(&mut self, known: &Known, batch: &Batch, (place, pick): (u16, u16)) {
        let frame = batch.frame(pick);
        let socket = flow_hash(frame.head()) as usize % self.sockets.len();
        let socket = u16::try_from(socket).unwrap_or(0);
        let copy = |vtep| Copy { socket, vtep, place, pick };
        let found = known.find(self.vteps.key(frame, frame.dst()));
        if let Some(vtep) = found.or_else(|| self.vteps.asked(known, batch, frame)) {
            return self.copies.push(copy(vtep));
        }
        let before = self.copies.len();
        self.copies.extend(known.floods().map(copy));
        if self.copies.len() == before {
            self.failed[usize::from(pick)] = Some(DropReason::NoDestination);
        }
    }

    /// Sends the copies that were noted.
    fn flush(&mut self, batch: &Batch) {
        self.copies.sort_unstable();
        let mut next = 0;
        while next < self.copies.len() {
            let first = next;
            next = self.fill(batch, first);
            self.send_filled(batch, self.copies[first].socket);
        }
        self.copies.clear();
    }

    /// Fills in messages with the copies from `next` on that go by one socket; returns the first one that
    /// they do not hold.
    fn fill(&mut self, batch: &Batch, mut next: usize) -> usize {
        self.spans.clear();
        let socket = self.copies[next].socket;
        let vteps = Arc::clone(&self.vteps);
        let known = vteps.read();
        let mut vectors = 0;
        while self.spans.len() < MESSAGES {
            let Some(copy) = self.copies.get(next).copied().filter(|copy| copy.socket == socket) else {
                break;
            };
            let (first, begin) = (next, vectors);
            let size = batch.frame(copy.pick).len;
            let mut bytes = 0;
            while let Some(other) =
                self.copies.get(next).filter(|it| (it.socket, it.vtep) == (socket, copy.vtep))
            {
                let frame = batch.frame(other.pick);
                let needed = 2 + usize::from(frame.pieces);
                let long = bytes + frame.len as usize + HEADER;
                // Only the last one may be shorter than the others.
                let joins = self.cuts && next - first < TRAIN && long <= TRAIN_BYTES && frame.len <= size;
                let fits = vectors + needed - begin <= MOST_VECTORS && vectors + needed <= VECTORS;
                if next > first && !joins || !fits {
                    break;
                }
                vectors += gather(&mut self.vectors[vectors..], &self.header[..], frame, batch.body(frame));
                bytes = long;
                next += 1;
                if frame.len < size {
                    break;
                }
            }
            if next == first {
                break;
            }
            let index = self.spans.len();
            self.names[index] = to(known.address(copy.vtep), self.port);
            let train = if next - first > 1 { size as usize + HEADER } else { 0 };
            self.address(index, begin..vectors, train);
            self.spans.push((first, next));
        }
        next
    }

    /// Has message `index` consist of these vectors, and be cut into datagrams of `train` bytes, if that is
    /// not 0.
    fn address(&mut self, index: usize, vectors: std::ops::Range<usize>, train: usize) {
        let header = &mut self.messages[index].msg_hdr;
        set_name(header, &self.names[index]);
        (header.msg_iovlen, header.msg_iov) = (vectors.len() as _, self.vectors[vectors].as_mut_ptr());
        (header.msg_control, header.msg_controllen) = (ptr::null_mut(), 0);
        if train > 0 {
            let [a, b, c, d] = libc::SOL_UDP.to_ne_bytes();
            let [e, f, g, h] = libc::UDP_SEGMENT.to_ne_bytes();
            let [low, high] = u16::try_from(train).unwrap_or(u16::MAX).to_ne_bytes();
            let kind = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
            self.controls[index] = [CONTROL_LEN, kind, u64::from_ne_bytes([low, high, 0, 0, 0, 0, 0, 0])];
            header.msg_control = self.controls[index].as_mut_ptr().cast();
            header.msg_controllen = size_of::<[u64; 3]>() as _;
        }
    }

    /// Sends the messages that were filled in.
    fn send_filled(&mut self, batch: &Batch, socket: u16) {
        let mut done = 0;
        while done < self.spans.len() {
            let messages = &mut self.messages[done..self.spans.len()];
            match send(&self.sockets[usize::from(socket)], messages) {
                Ok(sent) => {
                    done += sent;
                    continue;
                }
                Err(Errno::INTR) => continue,
                // Nothing of the rest would fit either.
                Err(Errno::AGAIN | Errno::NOBUFS) => {
                    let rest = self.spans[done].0..self.spans.last().map_or(0, |span| span.1);
                    return self.fail(rest, DropReason::RingFull);
                }
                Err(error) => {
                    let (first, end) = self.spans[done];
                    match end - first {
                        1 => self.fail(first..end, why(error)),
                        _ => {
                            // The interface cannot have messages cut, or one of the datagrams is too long for
                            // the way.
                            self.cuts &= error != Errno::IO;
                            (first..end).for_each(|at| self.alone(batch, at));
                        }
                    }
                    done += 1;
                }
            }
        }
    }

    /// Sends copy `at` by itself.
    #[cold]
    fn alone(&mut self, batch: &Batch, at: usize) {
        let Copy { socket, vtep, pick, .. } = self.copies[at];
        let mut vectors = [iovec { iov_base: ptr::null_mut(), iov_len: 0 }; 2 + MAX_PIECES];
        let frame = batch.frame(pick);
        let used = gather(&mut vectors, &self.header[..], frame, batch.body(frame));
        // SAFETY: all-zero bytes are a valid message.
        let mut message: mmsghdr = unsafe { std::mem::zeroed() };
        let name = to(self.vteps.read().address(vtep), self.port);
        set_name(&mut message.msg_hdr, &name);
        (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (vectors.as_mut_ptr(), used as _);
        if let Err(error) = send(&self.sockets[usize::from(socket)], std::slice::from_mut(&mut message)) {
            self.fail(at..at + 1, why(error));
        }
    }

    fn fail(&mut self, copies: std::ops::Range<usize>, why: DropReason) {
        for copy in &self.copies[copies] {
            self.failed[usize::from(copy.pick)] = Some(why);
        }
    }
}

/// Where a datagram goes. To an endpoint that has gone meanwhile the kernel sends none.
fn to(at: Option<IpAddr>, port: u16) -> SocketAddrAny {
    SocketAddr::new(at.unwrap_or(Ipv4Addr::BROADCAST.into()), port).into()
}

fn set_name(header: &mut msghdr, name: &SocketAddrAny) {
    (header.msg_name, header.msg_namelen) = (name.as_ptr().cast_mut().cast(), name.addr_len());
}

/// Why a datagram was refused.
fn why(error: Errno) -> DropReason {
    match error {
        Errno::MSGSIZE => DropReason::TooLong,
        Errno::AGAIN | Errno::NOBUFS => DropReason::RingFull,
        Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::NETDOWN => DropReason::LinkDown,
        _ => DropReason::HostRefused,
    }
}

/// Hands messages to the kernel; returns how many it took.
fn send(socket: &OwnedFd, messages: &mut [mmsghdr]) -> Result<usize, Errno> {
    let (count, flags) = (u32::try_from(messages.len()).unwrap_or(0), libc::MSG_DONTWAIT);
    // SAFETY: `count` messages whose vectors lead to readable memory (module invariant).
    let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), count, flags as _) };
    usize::try_from(sent).map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}

impl EgressQueue for VxlanEgress {
    fn send(&mut self, batch: &Batch, picks: &[u16], outcome: &mut Outcome) {
        let vteps = Arc::clone(&self.vteps);
        let mut done = 0;
        while done < picks.len() {
            let known = vteps.read();
            let most = known.floods().count().max(1);
            let room = |egress: &Self| egress.copies.capacity() - egress.copies.len() >= most;
            for (place, pick) in (0..).zip(behind(picks, done)) {
                if place > 0 && !room(self) {
                    break;
                }
                self.note(&known, batch, (place, *pick));
                done += 1;
            }
            drop(known);
            self.flush(batch);
        }
        for pick in picks {
            match self.failed[usize::from(*pick)].take() {
                None => outcome.delivered(batch.frame(*pick).len),
                Some(why) => outcome.dropped(*pick, why),
            }
        }
    }

    fn is_a_peers(&self) -> bool {
        false
    }
}
