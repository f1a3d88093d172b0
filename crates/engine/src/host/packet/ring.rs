//! The ring of slots that the kernel puts received frames into: TPACKET_V2 of linux/if_packet.h.
//!
//! Invariant of the `unsafe` here: a slot is ours from the moment that its status says so (an acquiring
//! load) until we give it back (a releasing store); in between the kernel does not write to it.
//!
//! ```text
//! 0   status     u32   0 the kernel's, otherwise ours
//! 4   len        u32   bytes of the frame
//! 8   snaplen    u32   bytes of it that are in the slot
//! 12  mac        u16   where they are; the virtio-net header stands right before
//! 24  vlan_tci   u16   a tag that was taken out of the frame
//! 26  vlan_tpid  u16
//! ```
//!
//! The system calls that make a packet socket (packet(7)).
//!
//! Invariant of the `unsafe` here: every option gets a value of exactly the type that it calls for, and
//! the kernel keeps none of them after the call.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use libc::{c_int, sockaddr_ll, tpacket_req, tpacket_stats, SOL_PACKET};

use crate::host::interface::{done, option, packet_socket, set_option};
use crate::host::mapping::Mapping;
use crate::mem::Piece;

/// Bytes of all slots together.
const BYTES: usize = 4 << 20;
/// Bytes of a block: the kernel allocates in these, and slots must not cross their ends.
const BLOCK: usize = 64 << 10;
/// The smallest and the largest slot.
const SLOT: (usize, usize) = (2048, 16 << 10);
/// What a slot holds beside the frame: its head, an address, the virtio-net header, and their alignment.
const OVERHEAD: usize = 128;

const OURS: u32 = 1;
const COPIED: u32 = 1 << 1;
const LOSING: u32 = 1 << 2;
const TAGGED: u32 = 1 << 4;
const TYPED: u32 = 1 << 6;

/// What a slot says of its frame.
#[derive(Clone, Copy)]
pub(super) struct SlotFacts {
    /// Bytes of the frame, without a tag that was taken out.
    pub(super) len: usize,
    /// Whether all of them are in the slot.
    pub(super) whole: bool,
    /// Whether the frame waits at the socket, since it does not fit.
    pub(super) copied: bool,
    /// Whether frames were lost.
    pub(super) losing: bool,
    /// The tag that was taken out.
    pub(super) tag: Option<[u8; 4]>,
    /// Where the frame is in the ring.
    at: usize,
}

/// The ring.
pub(super) struct PacketRing {
    memory: Mapping,
    slot_size: usize,
    slots: usize,
    /// The next slot to look at.
    next: usize,
    /// How many of ours before it are to be given back.
    taken: usize,
}

impl PacketRing {
    /// Makes the ring of a socket for an interface of this MTU.
    pub(super) fn new(fd: &OwnedFd, mtu: u32) -> io::Result<PacketRing> {
        let frame = (mtu as usize).saturating_add(OVERHEAD);
        let slot_size = frame.clamp(SLOT.0, SLOT.1).next_power_of_two().min(SLOT.1);
        let slots = BYTES / slot_size;
        let size = |n: usize| u32::try_from(n).map_err(|_| io::ErrorKind::InvalidInput);
        let request = libc::tpacket_req {
            tp_block_size: size(BLOCK)?,
            tp_block_nr: size(BYTES / BLOCK)?,
            tp_frame_size: size(slot_size)?,
            tp_frame_nr: size(slots)?,
        };
        set_ring(fd, &request)?;
        Ok(PacketRing { memory: Mapping::shared(fd, 0, BYTES)?, slot_size, slots, next: 0, taken: 0 })
    }

    /// How many slots it has.
    pub(super) fn slots(&self) -> u32 {
        u32::try_from(self.slots).unwrap_or(u32::MAX)
    }

    fn at(&self, index: usize) -> usize {
        (index % self.slots) * self.slot_size
    }

    /// Whether a frame waits.
    pub(super) fn is_ready(&self) -> bool {
        self.memory.word(self.at(self.next)).load(Ordering::Acquire) != 0
    }

    /// The next slot, if it is ours; [`PacketRing::take`] goes on to the one behind it.
    #[inline]
    pub(super) fn look(&self) -> Option<SlotFacts> {
        // A full ring has no slot that is the kernel's.
        if self.taken == self.slots {
            return None;
        }
        let at = self.at(self.next);
        let status = self.memory.word(at).load(Ordering::Acquire);
        if status & OURS == 0 {
            return None;
        }
        let following = self.memory.piece(self.at(self.next + 1), 128);
        following.prefetch(0);
        following.prefetch(64);
        // SAFETY: the status says that the slot is ours.
        let head: [u8; 28] = unsafe { self.memory.read(at) };
        let word =
            |from: usize| u32::from_ne_bytes([head[from], head[from + 1], head[from + 2], head[from + 3]]);
        let half = |from: usize| u16::from_ne_bytes([head[from], head[from + 1]]);
        let (len, kept) = (word(4) as usize, word(8) as usize);
        let mac = usize::from(half(12));
        let inside = mac >= HEADER && mac + kept <= self.slot_size;
        // Without its type a tag is 802.1Q's.
        let kind = if status & TYPED != 0 { half(26) } else { 0x8100 };
        let tag = (status & TAGGED != 0).then(|| {
            let ([a, b], [c, d]) = (kind.to_be_bytes(), half(24).to_be_bytes());
            [a, b, c, d]
        });
        Some(SlotFacts {
            len,
            whole: kept == len && inside,
            copied: status & COPIED != 0,
            losing: status & LOSING != 0,
            tag,
            at: at + mac,
        })
    }

    /// The header and the bytes of the frame in `slot`, which [`PacketRing::look`] has just shown and which
    /// is whole.
    pub(super) fn frame(&self, slot: &SlotFacts) -> ([u8; HEADER], &[u8]) {
        // SAFETY: the slot is ours until `give_back`, which needs the ring to itself.
        unsafe { (self.memory.read(slot.at - HEADER), self.memory.bytes(slot.at, slot.len)) }
    }

    /// The bytes of that frame from `from` on as a piece, good until [`PacketRing::give_back`].
    pub(super) fn piece(&self, slot: &SlotFacts, from: usize, len: u32) -> Piece {
        self.memory.piece(slot.at + from, len)
    }

    /// Goes on behind the slot that [`PacketRing::look`] showed.
    pub(super) fn take(&mut self) {
        self.next = (self.next + 1) % self.slots;
        self.taken += 1;
    }

    /// Gives all slots back that were taken.
    #[inline]
    pub(super) fn give_back(&mut self) {
        let first = self.next + self.slots - self.taken;
        for index in first..first + self.taken {
            self.memory.word(self.at(index)).store(0, Ordering::Release);
        }
        self.taken = 0;
    }
}

/// Room for frames too large for a slot, and for frames on their way out.
const BUFFER: u32 = 8 << 20;

/// Bytes of the virtio-net header before each frame (PACKET_VNET_HDR): the one without a number of buffers.
pub(super) const HEADER: usize = 10;

fn set(fd: &OwnedFd, name: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: all options that this module sets in this way take an int.
    unsafe { set_option(fd, SOL_PACKET, name, &value) }
}

/// A socket of the kind that we want for the interface `name`, bound to nothing.
pub(super) fn open(name: &str) -> io::Result<OwnedFd> {
    let fd = packet_socket(name, BUFFER)?;
    set(&fd, libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as c_int)?;
    set(&fd, libc::PACKET_VNET_HDR, 1)?;
    set(&fd, libc::PACKET_IGNORE_OUTGOING, 1)?;
    set(&fd, libc::PACKET_COPY_THRESH, 1)?;
    Ok(fd)
}

/// Gives the socket its receive ring.
pub(super) fn set_ring(fd: &OwnedFd, request: &tpacket_req) -> io::Result<()> {
    // SAFETY: PACKET_RX_RING takes a tpacket_req.
    unsafe { set_option(fd, SOL_PACKET, libc::PACKET_RX_RING, request) }
}

/// Lets no frame pass to the socket, or all.
pub(super) fn set_deaf(fd: &OwnedFd, deaf: bool) -> io::Result<()> {
    if !deaf {
        let none: c_int = 0;
        // SAFETY: SO_DETACH_FILTER takes an int, which it does not look at.
        return unsafe { set_option(fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &none) };
    }
    // BPF_RET with a constant: keep no byte.
    let mut nothing = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &mut nothing };
    // SAFETY: SO_ATTACH_FILTER takes a sock_fprog, which leads to a program that outlives the call.
    unsafe { set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program) }
}

/// Binds the socket to the interface with number `index`, for frames of every protocol.
pub(super) fn bind(fd: &OwnedFd, index: c_int) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid address.
    let mut address: sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = u16::try_from(libc::AF_PACKET).map_err(|_| io::ErrorKind::InvalidInput)?;
    address.sll_protocol = u16::try_from(libc::ETH_P_ALL).map_err(|_| io::ErrorKind::InvalidInput)?.to_be();
    address.sll_ifindex = index;
    let len = libc::socklen_t::try_from(size_of::<sockaddr_ll>()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: a live address of that length.
    done(unsafe { libc::bind(fd.as_raw_fd(), std::ptr::from_ref(&address).cast(), len) })
}

/// Makes the kernel spread flows over the sockets.
pub(super) fn fan_out(fds: &[Arc<OwnedFd>]) -> io::Result<()> {
    let hash = libc::PACKET_FANOUT_HASH;
    let mut group: c_int = 0;
    for (index, fd) in fds.iter().enumerate() {
        // The first gets a number that no other group has, and the others join it.
        let unique = if index == 0 { libc::PACKET_FANOUT_FLAG_UNIQUEID } else { 0 };
        // The number in the low half, kind and flags in the high one.
        set(fd, libc::PACKET_FANOUT, group | c_int::from_ne_bytes(((hash | unique) << 16).to_ne_bytes()))?;
        if index == 0 {
            // SAFETY: PACKET_FANOUT fills in an int.
            unsafe { option(fd, SOL_PACKET, libc::PACKET_FANOUT, &mut group)? };
            group &= 0xffff;
        }
    }
    Ok(())
}

/// Frames that found no room since this was asked last.
pub(super) fn lost(fd: &OwnedFd) -> u32 {
    let mut stats = tpacket_stats { tp_packets: 0, tp_drops: 0 };
    // SAFETY: PACKET_STATISTICS fills in a tpacket_stats.
    match unsafe { option(fd, SOL_PACKET, libc::PACKET_STATISTICS, &mut stats) } {
        Ok(()) => stats.tp_drops,
        Err(_) => 0,
    }
}
