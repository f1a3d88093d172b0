//! ptnet: a NIC whose rings are a host's netmap rings ("Flexible virtual machine networking using netmap
//! passthrough", Garzarella, Lettieri, Rizzo 2015). The layouts are those of the published Linux and FreeBSD
//! drivers.
//!
//! Two PCI functions make one NIC. The *memory device* ([`memdev`]) has the memory with interface, rings and
//! buffers (`crate::netmap`) as BAR 1; a guest maps it whole. The *ptnet device* ([`reg`]) has registers, and
//! for each ring a pair of blocks in the guest's own memory by which slots change hands: [`Atok`], written by
//! the guest, and [`Ktoa`], written by the host. The `head`, `cur` and `tail` in the rings themselves are the
//! guest's private affair.
//!
//! When two indices are published, the one that depends on the other is stored first: a guest stores `cur`,
//! then `head`, a host `hwcur`, then `hwtail`, each with what came before it visible; readers load them the
//! other way round. A side that wants to be woken sets its flag, and looks at the other's index once more
//! behind a full barrier.
//!
//! A guest says where the blocks are ([`reg::CSB_GH_BAL`] and its neighbours) and writes [`CREATE`] to
//! [`reg::PTCTL`]. Before that is answered the host has filled in all blocks: rings go on where they were,
//! and a guest takes over the indices that it finds. [`DELETE`] ends it: when that is answered the host does
//! not touch the blocks any more.

use core::mem::{offset_of, size_of};

/// PCI vendor of both functions.
pub const VENDOR: u16 = 0x1b36;
/// PCI device number of the ptnet device.
pub const DEVICE: u16 = 0x000d;
/// PCI device number of the memory device.
pub const MEMORY_DEVICE: u16 = 0x000c;

/// Most rings, both directions added: for each there is a register by which its guest kicks.
pub const MAX_RINGS: usize = 32;
/// [`reg::PTFEAT`]: frames begin with a virtio-net header.
pub const VNET_HDR: u32 = 1;
/// Ours, as are the two that follow; hosts without them do not grant them. With [`VNET_HDR`]: the host takes
/// UDP that is to be cut into datagrams (virtio's `gso_type` 5).
pub const HOST_USO: u32 = 1 << 1;
/// With [`VNET_HDR`]: the guest takes it.
pub const GUEST_USO: u32 = 1 << 2;
/// [`Ktoa::link`] of the first ring on which the guest receives says whether the link is up: from before
/// [`CREATE`] is answered, and each change is followed by that ring's interrupt.
pub const LINK: u32 = 1 << 3;
/// Bytes of that header.
pub const VNET_HDR_LEN: u32 = 12;
/// [`reg::PTCTL`]: begin.
pub const CREATE: u32 = 1;
/// [`reg::PTCTL`]: end.
pub const DELETE: u32 = 2;

/// Registers of the ptnet device in BAR 0, an I/O BAR; all have 32 bits.
pub mod reg {
    /// Bytes of the BAR.
    pub const SIZE: u64 = 256;
    /// Features: the guest writes those that it wants, and reads those that it has.
    pub const PTFEAT: u64 = 0x00;
    /// Command; what is read is 0 if the last one was carried out, else an errno.
    pub const PTCTL: u64 = 0x04;
    /// The last four bytes of the MAC address, the first of them in the highest byte.
    pub const MAC_LO: u64 = 0x08;
    /// Its first two.
    pub const MAC_HI: u64 = 0x0c;
    /// Where in the memory the `netmap_if` is.
    pub const NIFP_OFS: u64 = 0x18;
    /// Rings on which the guest sends.
    pub const NUM_TX_RINGS: u64 = 0x1c;
    /// Rings on which it receives.
    pub const NUM_RX_RINGS: u64 = 0x20;
    /// Slots of each ring on which it sends.
    pub const NUM_TX_SLOTS: u64 = 0x24;
    /// Slots of each ring on which it receives.
    pub const NUM_RX_SLOTS: u64 = 0x28;
    /// Bytes of header before each frame: the guest writes 0 or 12, and reads what holds.
    pub const VNET_HDR_LEN: u64 = 0x2c;
    /// Number of the memory, as its device says it, too.
    pub const HOSTMEMID: u64 = 0x30;
    /// Address of the guest's blocks, high half.
    pub const CSB_GH_BAH: u64 = 0x34;
    /// Low half; writing it is what counts.
    pub const CSB_GH_BAL: u64 = 0x38;
    /// Address of the host's blocks, high half.
    pub const CSB_HG_BAH: u64 = 0x3c;
    /// Low half; writing it is what counts.
    pub const CSB_HG_BAL: u64 = 0x40;
    /// Ours; zero where it is not known: largest Ethernet payload of a frame.
    pub const MTU: u64 = 0x44;
    /// The kick of ring 0, and of the others behind it: those on which the guest sends, then those on which
    /// it receives.
    pub const KICKS: u64 = 0x80;
    /// BAR of the message table.
    pub const MSIX_BAR: u8 = 2;
    /// Where in it the pending bits are.
    pub const PENDING: u32 = 0x800;
}

/// Registers of the memory device in BAR 0, an I/O BAR; all have 32 bits and are read only.
pub mod memdev {
    /// Bytes of the BAR.
    pub const SIZE: u64 = 128;
    /// The BAR that is the memory.
    pub const MEMORY_BAR: usize = 1;
    /// Bytes of the memory, low half; the BAR may be larger.
    pub const MEMSIZE_LO: u64 = 0x00;
    /// High half.
    pub const MEMSIZE_HI: u64 = 0x04;
    /// Its number.
    pub const MEMID: u64 = 0x08;
    /// Where the pool of interfaces begins; how many objects it has, and the bytes of one, follow.
    pub const IF_POOL: u64 = 0x40;
    /// Where the pool of rings begins; its number of objects, and the bytes of one, follow.
    pub const RING_POOL: u64 = 0x4c;
    /// Where the pool of buffers begins; its number of objects, and the bytes of one, follow.
    pub const BUF_POOL: u64 = 0x58;
}

/// What a guest tells of one ring.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Atok {
    /// First slot that the guest has not given up.
    pub head: u32,
    /// The guest waits until the host's index has gone beyond this.
    pub cur: u32,
    /// Not 0: the guest wants an interrupt.
    pub appl_need_kick: u32,
    /// Flags of its last sync: 1 it shall read, 2 it shall take back.
    pub sync_flags: u32,
    /// Up to a cache line.
    pub pad: [u32; 12],
}

/// What a host tells of one ring.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ktoa {
    /// First slot that the host has not dealt with.
    pub hwcur: u32,
    /// First slot that is the host's.
    pub hwtail: u32,
    /// Not 0: the host wants a kick.
    pub kern_need_kick: u32,
    /// See [`LINK`].
    pub link: u32,
    /// Up to a cache line.
    pub pad: [u32; 12],
}

/// Bytes of a block.
pub const BLOCK: u32 = 64;

const _: () = {
    assert!(size_of::<Atok>() == BLOCK as usize && size_of::<Ktoa>() == BLOCK as usize);
    assert!(offset_of!(Atok, head) == 0 && offset_of!(Atok, cur) == 4);
    assert!(offset_of!(Atok, appl_need_kick) == 8 && offset_of!(Atok, sync_flags) == 12);
    assert!(offset_of!(Ktoa, hwcur) == 0 && offset_of!(Ktoa, hwtail) == 4);
    assert!(offset_of!(Ktoa, kern_need_kick) == 8 && offset_of!(Ktoa, link) == 12);
    // The kicks of all rings fit the BAR, and their blocks a page.
    assert!(reg::KICKS + 4 * MAX_RINGS as u64 == reg::SIZE);
    assert!(MAX_RINGS * BLOCK as usize <= 4096);
    assert!(memdev::BUF_POOL + 12 <= memdev::SIZE);
};
