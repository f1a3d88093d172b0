//! Netmap's data path as programs see it: the interface, its rings and their slots, API version 14.
//!
//! Every offset in a region is relative to the structure that holds it, so the same bytes are valid at
//! any address: `netmap_if` leads to the rings by `ring_ofs`, a ring to its buffers by `buf_ofs`. Pools
//! lie in this order: interface, rings, buffers. Sizes and offsets were checked against the published
//! headers; `include/net/netmap.h` has the same in C, and a test compares the two.

/// API version of this layout.
pub const API: u32 = 14;
/// Objects start at multiples of this in their structures (`NM_CACHE_ALIGN`).
pub const ALIGN: usize = 128;
/// Longest name in `netmap_if`, with its closing zero.
pub const IF_NAME: usize = 16;
/// Most slots of one packet (`NETMAP_MAX_FRAGS`).
pub const MAX_FRAGS: usize = 64;
/// Buffers 0 and 1 belong to no ring; 0 also means "no buffer" and ends a list of extra buffers.
pub const RESERVED_BUFS: u32 = 2;

/// A slot names a buffer and says how much of it is a packet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// Which buffer.
    pub buf_idx: u32,
    /// Bytes in it.
    pub len: u16,
    /// `NS_*`.
    pub flags: u16,
    /// Address of the bytes under [`NS_INDIRECT`]; otherwise under the ring's `offset_mask` the offset in the
    /// buffer at which they start.
    pub ptr: u64,
}

/// The buffer of the slot was changed.
pub const NS_BUF_CHANGED: u16 = 1;
/// Tell when this slot has been sent.
pub const NS_REPORT: u16 = 2;
/// Pass this slot on to the ring at the other side of the interface.
pub const NS_FORWARD: u16 = 4;
/// Do not learn from this packet.
pub const NS_NO_LEARN: u16 = 8;
/// The bytes are at `ptr` in the program's own memory.
pub const NS_INDIRECT: u16 = 0x10;
/// The packet continues in the next slot.
pub const NS_MOREFRAG: u16 = 0x20;
/// A monitor's slot that was transmitted.
pub const NS_TXMON: u16 = 0x40;
/// Number of slots of a received packet, in the high byte of the flags.
pub const NS_RFRAGS_SHIFT: u16 = 8;

/// The head of a ring; `num_slots` slots follow it.
#[repr(C, align(128))]
#[derive(Clone, Copy, Debug)]
pub struct RingHead {
    /// From the ring to buffer 0.
    pub buf_ofs: i64,
    /// Slots.
    pub num_slots: u32,
    /// Bytes of a buffer.
    pub nr_buf_size: u32,
    /// Number within its direction.
    pub ringid: u16,
    /// 0: the program sends; 1: it receives.
    pub dir: u16,
    /// First slot that the program keeps.
    pub head: u32,
    /// The program sleeps until `tail` has gone past this.
    pub cur: u32,
    /// First slot that the program does not own.
    pub tail: u32,
    /// `NR_*`.
    pub flags: u32,
    /// Padding, zero.
    pub pad: u32,
    /// Seconds and microseconds of the last sync that received, under [`NR_TIMESTAMP`].
    pub ts: [i64; 2],
    /// Bits of `Slot::ptr` that are an offset.
    pub offset_mask: u64,
    /// Alignment that the port asks of buffers.
    pub buf_align: u64,
    /// Padding, zero.
    pub pad2: [u64; 7],
    /// The program's own.
    pub sem: [u8; 128],
}

/// Stamp `ts` at every sync that receives.
pub const NR_TIMESTAMP: u32 = 2;
/// Slots marked [`NS_FORWARD`] are passed on.
pub const NR_FORWARD: u32 = 4;

/// The interface; `ring_ofs` follows it: program's TX rings, TX rings to the host, RX rings, RX rings from
/// the host, each an `i64` from the interface to the ring, 0 if not bound.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct If {
    /// Name, closed by a zero.
    pub ni_name: [u8; IF_NAME],
    /// [`API`].
    pub ni_version: u32,
    /// `NI_*`.
    pub ni_flags: u32,
    /// Rings on which the program sends.
    pub ni_tx_rings: u32,
    /// Rings on which it receives.
    pub ni_rx_rings: u32,
    /// First of a list of extra buffers: the first word of each is the number of the next, 0 ends it.
    pub ni_bufs_head: u32,
    /// Rings on which the program sends to the host's stack.
    pub ni_host_tx_rings: u32,
    /// Rings on which it receives from the host's stack.
    pub ni_host_rx_rings: u32,
    /// Padding, zero.
    pub ni_spare1: [u32; 3],
}

/// The memory is this port's alone.
pub const NI_PRIV_MEM: u32 = 1;

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<Slot>() == 16 && align_of::<Slot>() == 8);
    assert!(offset_of!(Slot, len) == 4 && offset_of!(Slot, flags) == 6 && offset_of!(Slot, ptr) == 8);
    assert!(size_of::<RingHead>() == 256 && align_of::<RingHead>() == ALIGN);
    assert!(offset_of!(RingHead, num_slots) == 8 && offset_of!(RingHead, nr_buf_size) == 12);
    assert!(offset_of!(RingHead, ringid) == 16 && offset_of!(RingHead, dir) == 18);
    assert!(
        offset_of!(RingHead, head) == 20
            && offset_of!(RingHead, cur) == 24
            && offset_of!(RingHead, tail) == 28
    );
    assert!(offset_of!(RingHead, flags) == 32 && offset_of!(RingHead, ts) == 40);
    assert!(offset_of!(RingHead, offset_mask) == 56 && offset_of!(RingHead, buf_align) == 64);
    assert!(offset_of!(RingHead, sem) == 128);
    assert!(size_of::<If>() == 56);
    assert!(offset_of!(If, ni_version) == 16 && offset_of!(If, ni_flags) == 20);
    assert!(offset_of!(If, ni_tx_rings) == 24 && offset_of!(If, ni_rx_rings) == 28);
    assert!(offset_of!(If, ni_bufs_head) == 32 && offset_of!(If, ni_host_tx_rings) == 36);
    assert!(offset_of!(If, ni_host_rx_rings) == 40 && offset_of!(If, ni_spare1) == 44);
};

/// The first eight bytes of a slot, read and written as one word: no reader sees half of it changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotWord(pub u64);

impl SlotWord {
    /// The word of these fields.
    #[inline]
    pub const fn new(buf_idx: u32, len: u16, flags: u16) -> SlotWord {
        SlotWord(buf_idx as u64 | (len as u64) << 32 | (flags as u64) << 48)
    }

    /// Which buffer.
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "cut out of a word")]
    pub const fn buf_idx(self) -> u32 {
        self.0 as u32
    }

    /// Bytes in it.
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "cut out of a word")]
    pub const fn len(self) -> u16 {
        (self.0 >> 32) as u16
    }

    /// Whether there are none.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// `NS_*`.
    #[inline]
    pub const fn flags(self) -> u16 {
        (self.0 >> 48) as u16
    }
}
