//! What engine and client of a ring port share beyond netmap's layout: the words by which slots change
//! hands without a system call, and the messages by which a client attaches.
//!
//! # The words
//!
//! Behind the buffers, outside what a netmap program maps, each ring has a pair of blocks: [`Client`],
//! written by the client alone, and [`Engine`], written by the engine alone, on cache lines of their own.
//! They are the analogue of netmap's CSB. The `head`, `cur` and `tail` in a `netmap_ring` are between a
//! program and its library, as they are between a program and the kernel in netmap: the engine never looks
//! at them, so a program may move them as it likes before it syncs.
//!
//! Slots `hwcur .. hwtail` belong to the client. It gives up those before `head` by storing `head`; the
//! engine gives slots by moving `hwtail`. The side that stores an index has written the slots and buffers
//! before ([`publish`]); the side that reads it ([`observe`]) sees them.
//!
//! # Sleeping and waking
//!
//! A side that wants to sleep puts a *ticket* (any number but 0, a new one each time) into its block, and
//! looks at the other side's index once more ([`ask`]); if that has moved, it withdraws the ticket and
//! goes on. The other side, after moving its index, looks for a ticket that it has not answered yet
//! ([`due`]), and answers it once with a write to the descriptor. Between storing one word and loading the
//! other both sides have a full fence, so that at least one of them sees what the other has done: no
//! wake-up is lost. Tickets instead of a flag, because each side writes only its own block: a flag
//! that its owner has not yet lowered would cost a system call for every batch until it does.

use core::sync::atomic::{fence, AtomicU32, Ordering};

use crate::bytes::{Reader, Writer};

/// A shared word. Real ones are [`AtomicU32`]; the model checker brings its own.
pub trait Word {
    /// Reads it.
    fn load(&self, order: Ordering) -> u32;
    /// Writes it.
    fn store(&self, value: u32, order: Ordering);
    /// A fence between all earlier and all later accesses.
    fn full_fence();
}

impl Word for AtomicU32 {
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        AtomicU32::load(self, order)
    }

    #[inline]
    fn store(&self, value: u32, order: Ordering) {
        AtomicU32::store(self, value, order);
    }

    #[inline]
    fn full_fence() {
        fence(Ordering::SeqCst);
    }
}

/// Stores an index: everything written before is visible to the side that observes it.
#[inline]
pub fn publish<W: Word>(index: &W, value: u32) {
    index.store(value, Ordering::Release);
}

/// Loads an index, and with it everything that was written before it was stored.
#[inline]
pub fn observe<W: Word>(index: &W) -> u32 {
    index.load(Ordering::Acquire)
}

/// Puts `number` as ticket and looks at the other side's index again. After that, if the index is still
/// what it was, sleeping is safe.
#[inline]
pub fn ask<W: Word>(ticket: &W, number: u32, index: &W) -> u32 {
    ticket.store(number, Ordering::Relaxed);
    W::full_fence();
    observe(index)
}

/// Takes the ticket back.
#[inline]
pub fn withdraw<W: Word>(ticket: &W) {
    ticket.store(0, Ordering::Relaxed);
}

/// Whether the other side's ticket wants an answer, after an index was published. The caller answers, and
/// keeps `answered` for the next time.
#[inline]
pub fn due<W: Word>(ticket: &W, answered: &mut u32) -> bool {
    W::full_fence();
    is_asked(ticket, answered)
}

/// As [`due`], after a full barrier of the caller's, which may serve for several rings.
#[inline]
pub fn is_asked<W: Word>(ticket: &W, answered: &mut u32) -> bool {
    let number = ticket.load(Ordering::Relaxed);
    if number == 0 || number == *answered {
        return false;
    }
    *answered = number;
    true
}

/// The ticket after `number`.
#[inline]
pub fn next_ticket(number: u32) -> u32 {
    number.wrapping_add(1).max(1)
}

/// Written by the client: the fields of netmap's `nm_csb_atok`.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct Client {
    /// First slot that it keeps.
    pub head: AtomicU32,
    /// Where it waits; for people, the engine does not need it.
    pub cur: AtomicU32,
    /// Its ticket: not 0 while it sleeps or is about to.
    pub ticket: AtomicU32,
    /// Between processes that share the client's descriptor: the last ticket that one of them took.
    pub tickets: AtomicU32,
    /// As above: the `resets` that one of them has seen.
    pub seen: AtomicU32,
}

/// Written by the engine: the fields of netmap's `nm_csb_ktoa`, and resets.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct Engine {
    /// First slot that the engine has not given back.
    pub hwcur: AtomicU32,
    /// First slot that the client does not own.
    pub hwtail: AtomicU32,
    /// Its ticket: not 0 while it sleeps or is about to.
    pub ticket: AtomicU32,
    /// Raised whenever the engine found nonsense in `head` and fell back to `hwcur`: the client shall do
    /// the same.
    pub resets: AtomicU32,
    /// Why, as [`Nonsense`].
    pub reason: AtomicU32,
}

/// The words of one ring.
#[repr(C)]
#[derive(Debug, Default)]
pub struct RingStatus {
    /// The client's.
    pub client: Client,
    /// The engine's.
    pub engine: Engine,
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<RingStatus>() == 256 && offset_of!(RingStatus, engine) == 128);
    assert!(offset_of!(Client, head) == 0 && offset_of!(Client, cur) == 4 && offset_of!(Client, ticket) == 8);
    assert!(offset_of!(Client, tickets) == 12 && offset_of!(Client, seen) == 16);
    assert!(offset_of!(Engine, hwcur) == 0 && offset_of!(Engine, hwtail) == 4);
    assert!(offset_of!(Engine, ticket) == 8 && offset_of!(Engine, resets) == 12);
};

/// Why a ring was reset.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nonsense {
    /// `head` is no slot of the ring.
    HeadOutOfRing = 1,
    /// `head` went back, or beyond what the client owns.
    HeadOutOfTurn = 2,
}

impl Nonsense {
    /// The name that `show` prints.
    pub const fn name(self) -> &'static str {
        match self {
            Nonsense::HeadOutOfRing => "head_out_of_ring",
            Nonsense::HeadOutOfTurn => "head_out_of_turn",
        }
    }

    /// The reason with this number.
    pub const fn from_code(code: u32) -> Option<Nonsense> {
        match code {
            1 => Some(Nonsense::HeadOutOfRing),
            2 => Some(Nonsense::HeadOutOfTurn),
            _ => None,
        }
    }
}

/// Most rings of a direction.
pub const MAX_RINGS: usize = 16;
/// Most slots of a ring.
pub const MAX_SLOTS: u32 = 4096;
/// Most pipes of a port.
pub const MAX_PIPES: usize = 64;
/// Longest name of a pipe, with its closing zero.
pub const PIPE_NAME: usize = 64;
/// Smallest and largest buffer.
pub const BUF_SIZES: core::ops::RangeInclusive<u32> = 64..=65_536;

/// Bytes of every message, either way, on a stream socket.
pub const MESSAGE: usize = 128;
/// First word of a message.
pub const MAGIC: u32 = u32::from_le_bytes(*b"ring");
/// Version of the messages and of the words.
pub const VERSION: u32 = 3;

/// What a client asks.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// To be attached. The answer brings descriptors: the memory; for each TX ring of the client the
    /// eventfd of its kicks; for each TX ring, then for each RX ring, the pipe from which it reads wake-ups.
    Attach = 1,
    /// What the port is like, without attaching.
    Info = 2,
    /// A virtio-net header of `value` bytes (0, 10 or 12) in front of every frame from now on.
    SetHeader = 3,
    /// To be one end of the pipe that `pipe` names, as [`End`] in `value`. The answer brings descriptors: the
    /// memory, then the eventfds that wake the asker's TX and RX ring, then those of the other end's.
    Pipe = 4,
    /// To receive copies of what the port's client sends, receives, or both, as [`SEES_SENT`] and
    /// [`SEES_RECEIVED`] in `value`, with [`SEES_RELEASED`] and [`SEES_END_SHIFT`]. The answer is as that of
    /// [`Ask::Attach`], about memory of the asker's own, in which there are no rings to send on: a monitor's
    /// `netmap_if` has one all the same, as in netmap, which leads nowhere.
    Monitor = 5,
}

/// A monitor sees what the port's client sends.
pub const SEES_SENT: u32 = 1;
/// A monitor sees what the port's client receives.
pub const SEES_RECEIVED: u32 = 2;
/// A monitor sees what is received when its receiver has released it, not before: as netmap's zero-copy
/// monitors do.
pub const SEES_RELEASED: u32 = 4;
/// From this bit on the [`End`] that a monitor of a pipe watches, of the pipe that `pipe` names; 0: it
/// watches the port.
pub const SEES_END_SHIFT: u32 = 8;

/// With [`Ask::Pipe`]: no other client has the end, or gets it.
pub const EXCLUSIVE: u32 = 1;

/// An end of a pipe.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Netmap's `{`.
    Master = 1,
    /// Netmap's `}`.
    Slave = 2,
}

impl End {
    /// The end with this number.
    pub const fn from_code(code: u32) -> Option<End> {
        match code {
            1 => Some(End::Master),
            2 => Some(End::Slave),
            _ => None,
        }
    }

    /// The end's rings among the four of its pipe: the one on which it sends, the one on which it receives.
    pub const fn rings(self) -> [u32; 2] {
        match self {
            End::Master => [0, 1],
            End::Slave => [2, 3],
        }
    }
}

/// The ring that exchanges slots with ring `number` of a pipe: what one end sends the other receives.
pub const fn across(number: u32) -> u32 {
    3 - number
}

impl Ask {
    /// The request with this number.
    pub const fn from_code(code: u32) -> Option<Ask> {
        match code {
            1 => Some(Ask::Attach),
            2 => Some(Ask::Info),
            3 => Some(Ask::SetHeader),
            4 => Some(Ask::Pipe),
            5 => Some(Ask::Monitor),
            _ => None,
        }
    }
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is asked, as [`Ask`].
    pub ask: u32,
    /// With [`Ask::SetHeader`], bytes; with [`Ask::Pipe`], which [`End`]; with [`Ask::Monitor`], what it
    /// sees.
    pub value: u32,
    /// With [`Ask::Pipe`], its name among those of the port, ended by a zero.
    pub pipe: [u8; PIPE_NAME],
    /// With [`Ask::Attach`] and [`Ask::Pipe`], how many extra buffers the asker would like. There are as
    /// many, and more if the port has more, unless others use the memory already.
    pub extra_bufs: u32,
    /// With [`Ask::Pipe`], [`EXCLUSIVE`] or 0: others may open the end, too, and share its rings.
    pub flags: u32,
}

/// What a port is like, and where everything in its memory is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Bytes of memory that a netmap program may see: pools and slack.
    pub memsize: u64,
    /// Bytes of the memory file.
    pub total: u64,
    /// Where the [`RingStatus`] blocks start: those of the TX rings, then those of the RX rings.
    pub words: u64,
    /// Where the ring pool starts, and bytes of a ring in it.
    pub ring_pool: u64,
    /// Where buffer 0 is.
    pub buf_pool: u64,
    /// Bytes of a ring object.
    pub ring_size: u32,
    /// Buffers, with the two reserved ones.
    pub bufs: u32,
    /// Bytes of a buffer.
    pub buf_size: u32,
    /// Extra buffers that are the asker's, listed from `ni_bufs_head`.
    pub extra_bufs: u32,
    /// Rings on which the client sends, host rings among them.
    pub tx_rings: u32,
    /// Rings on which it receives, host rings among them.
    pub rx_rings: u32,
    /// Slots of a ring on which the client sends.
    pub tx_slots: u32,
    /// Slots of a ring on which it receives.
    pub rx_slots: u32,
    /// Bytes of the virtio-net header in front of each frame.
    pub header: u32,
    /// Bytes of Ethernet payload that a frame may have.
    pub mtu: u32,
    /// Number of the memory, as netmap's `mem_id`: ports that have the same may exchange buffers.
    pub mem_id: u32,
    /// Pipes for which the memory has room: their buffers are the last ones of the pool, both rings of a
    /// direction sharing one set.
    pub pipes: u32,
    /// 0, or which [`End`] of a pipe this is. Then `ring_pool` and `words` lead to the four rings of the
    /// pipe: the master's TX and RX ring, the slave's TX and RX ring. Both ends use only the [`Client`]
    /// halves of the words: each reads the other's `head` for what its own `hwcur` or `hwtail` would be.
    /// While a ring is watched by monitors, the `ticket` of its [`Engine`] half is not 0, and a sender keeps
    /// the slots from its `hwcur` on, whichever of the two rings across from each other it is.
    pub end: u32,
    /// Where the `netmap_if` is.
    pub interface: u64,
    /// How many of the rings of each direction are host rings: the last ones.
    pub host_rings: u32,
    /// The first buffer that was made for the asker's port, and how many were without those of pipes: these
    /// are present from the start. Where ports share memory, others have the rest.
    pub first_buf: u32,
    /// See `first_buf`.
    pub own_bufs: u32,
    /// How many others have this end of a pipe.
    pub users: u32,
}

/// An answer: 0 or an errno, and what the port is like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// 0, or why not: `EBUSY` another client is attached, `EINVAL` an impossible request, `EPROTO` another
    /// version, `ENOMEM` no memory.
    pub errno: u32,
    /// What the port is like; of no meaning unless `errno` is 0.
    pub info: Info,
}

impl Request {
    /// A request that is not about a pipe.
    pub fn new(ask: Ask, value: u32) -> Request {
        Request { ask: ask as u32, value, pipe: [0; PIPE_NAME], extra_bufs: 0, flags: 0 }
    }

    /// As a message.
    pub fn to_bytes(self) -> [u8; MESSAGE] {
        let mut writer = Writer::<MESSAGE>::new(MAGIC, VERSION);
        writer.u32(self.ask);
        writer.u32(self.value);
        writer.raw(&self.pipe);
        writer.u32(self.extra_bufs);
        writer.u32(self.flags);
        writer.bytes
    }

    /// From a message; `None` if it is of another length, kind or version.
    pub fn from_bytes(bytes: &[u8]) -> Option<Request> {
        let mut reader = Reader::<MESSAGE>::new(bytes, MAGIC, VERSION)?;
        Some(Request {
            ask: reader.u32(),
            value: reader.u32(),
            pipe: reader.raw(),
            extra_bufs: reader.u32(),
            flags: reader.u32(),
        })
    }
}

impl Answer {
    /// As a message.
    pub fn to_bytes(self) -> [u8; MESSAGE] {
        let mut writer = Writer::<MESSAGE>::new(MAGIC, VERSION);
        writer.u32(self.errno);
        let i = self.info;
        writer.u32(i.ring_size);
        for long in [i.memsize, i.total, i.words, i.ring_pool, i.buf_pool, i.interface] {
            writer.u64(long);
        }
        for word in [
            i.bufs,
            i.buf_size,
            i.extra_bufs,
            i.tx_rings,
            i.rx_rings,
            i.tx_slots,
            i.rx_slots,
            i.header,
            i.mtu,
            i.mem_id,
            i.pipes,
            i.end,
            i.host_rings,
            i.first_buf,
            i.own_bufs,
            i.users,
        ] {
            writer.u32(word);
        }
        writer.bytes
    }

    /// From a message; `None` if it is of another length, kind or version.
    pub fn from_bytes(bytes: &[u8]) -> Option<Answer> {
        let mut r = Reader::<MESSAGE>::new(bytes, MAGIC, VERSION)?;
        let errno = r.u32();
        let ring_size = r.u32();
        let [memsize, total, words, ring_pool, buf_pool, interface] = core::array::from_fn(|_| r.u64());
        let [bufs, buf_size, extra_bufs, tx_rings, rx_rings, tx_slots, rx_slots, header, mtu] =
            core::array::from_fn(|_| r.u32());
        let [mem_id, pipes, end, host_rings, first_buf, own_bufs, users] = core::array::from_fn(|_| r.u32());
        let info = Info {
            memsize,
            total,
            words,
            ring_pool,
            buf_pool,
            ring_size,
            bufs,
            buf_size,
            extra_bufs,
            tx_rings,
            rx_rings,
            tx_slots,
            rx_slots,
            header,
            mtu,
            mem_id,
            pipes,
            end,
            interface,
            host_rings,
            first_buf,
            own_bufs,
            users,
        };
        Some(Answer { errno, info })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_journey() {
        let info = Info {
            memsize: 1 << 40,
            total: 2,
            words: 3,
            ring_pool: 4,
            buf_pool: 5,
            ring_size: 6,
            bufs: 7,
            buf_size: 8,
            extra_bufs: 9,
            tx_rings: 10,
            rx_rings: 11,
            tx_slots: 12,
            rx_slots: 13,
            header: 14,
            mtu: 15,
            mem_id: 16,
            pipes: 18,
            end: 19,
            interface: 20,
            host_rings: 21,
            first_buf: 22,
            own_bufs: 23,
            users: 24,
        };
        let answer = Answer { errno: 17, info };
        assert_eq!(Answer::from_bytes(&answer.to_bytes()), Some(answer));
        let request =
            Request { pipe: [7; PIPE_NAME], extra_bufs: 8, flags: 9, ..Request::new(Ask::SetHeader, 12) };
        assert_eq!(Request::from_bytes(&request.to_bytes()), Some(request));
    }

    #[test]
    fn other_messages_are_refused() {
        let good = Request::new(Ask::Attach, 0).to_bytes();
        assert_eq!(Request::from_bytes(&good[..MESSAGE - 1]), None);
        for place in [0, 4] {
            let mut bad = good;
            bad[place] ^= 1;
            assert_eq!(Request::from_bytes(&bad), None);
        }
    }

    #[test]
    fn a_ticket_is_answered_once() {
        let ticket = AtomicU32::new(0);
        let mut answered = 0;
        assert!(!due(&ticket, &mut answered));
        let index = AtomicU32::new(7);
        assert_eq!(ask(&ticket, next_ticket(u32::MAX), &index), 7);
        assert!(due(&ticket, &mut answered));
        assert!(!due(&ticket, &mut answered));
        withdraw(&ticket);
        assert!(!due(&ticket, &mut answered));
        ask(&ticket, next_ticket(1), &index);
        assert!(due(&ticket, &mut answered));
    }
}
