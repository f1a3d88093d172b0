//! Virtio 1.2 as both sides of a ring see it: descriptors, ring offsets, feature bits, the network header;
//! [`blk`] has the block device's. Section numbers are those of "Virtual I/O Device (VIRTIO) Version 1.2".

pub mod blk;

/// The largest queue either ring format allows (§2.7, §2.8.10.1).
pub const MAX_QUEUE_SIZE: u16 = 32_768;

/// A descriptor of the split ring (§2.7.5).
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SplitDesc {
    /// Guest physical address of the buffer.
    pub addr: u64,
    /// Bytes in the buffer.
    pub len: u32,
    /// `DESC_F_*`.
    pub flags: u16,
    /// The next descriptor of the chain, if `DESC_F_NEXT`.
    pub next: u16,
}

/// An element of the split ring's used ring (§2.7.8).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsedElem {
    /// Head descriptor of the chain that is given back.
    pub id: u32,
    /// Bytes that the device wrote.
    pub len: u32,
}

/// A descriptor of the packed ring (§2.8.13).
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackedDesc {
    /// Guest physical address of the buffer.
    pub addr: u64,
    /// Bytes in the buffer, or bytes written when the device gives it back.
    pub len: u32,
    /// The driver's name for the chain.
    pub id: u16,
    /// `DESC_F_*` and `PACKED_F_*`.
    pub flags: u16,
}

const _: () = assert!(size_of::<SplitDesc>() == 16);
const _: () = assert!(size_of::<UsedElem>() == 8);
const _: () = assert!(size_of::<PackedDesc>() == 16);
const _: () = assert!(core::mem::offset_of!(PackedDesc, flags) == 14);

/// The chain continues (§2.7.5).
pub const DESC_F_NEXT: u16 = 1;
/// The device writes this buffer (§2.7.5).
pub const DESC_F_WRITE: u16 = 2;
/// The buffer is a table of descriptors (§2.7.5.3).
pub const DESC_F_INDIRECT: u16 = 4;
/// Packed ring: the driver's available bit (§2.8.1).
pub const PACKED_F_AVAIL: u16 = 1 << 7;
/// Packed ring: the device's used bit (§2.8.1).
pub const PACKED_F_USED: u16 = 1 << 15;

/// Split ring: the driver asks for no interrupts, without EVENT_IDX (§2.7.6).
pub const AVAIL_F_NO_INTERRUPT: u16 = 1;
/// Split ring: the device asks for no kicks, without EVENT_IDX (§2.7.8).
pub const USED_F_NO_NOTIFY: u16 = 1;

/// Packed ring event suppression (§2.8.14): always notify.
pub const EVENT_F_ENABLE: u16 = 0;
/// Packed ring event suppression: never notify.
pub const EVENT_F_DISABLE: u16 = 1;
/// Packed ring event suppression: notify at a descriptor; needs EVENT_IDX.
pub const EVENT_F_DESC: u16 = 2;

/// Byte offsets inside the split ring's three parts (§2.7).
pub mod split {
    /// Bytes of a descriptor table.
    pub const fn desc_size(queue: u16) -> usize {
        16 * queue as usize
    }
    /// `avail.flags`.
    pub const AVAIL_FLAGS: usize = 0;
    /// `avail.idx`.
    pub const AVAIL_IDX: usize = 2;
    /// `avail.ring[0]`.
    pub const AVAIL_RING: usize = 4;
    /// `avail.used_event`.
    pub const fn avail_used_event(queue: u16) -> usize {
        AVAIL_RING + 2 * queue as usize
    }
    /// Bytes of the available ring, `used_event` included.
    pub const fn avail_size(queue: u16) -> usize {
        avail_used_event(queue) + 2
    }
    /// `used.flags`.
    pub const USED_FLAGS: usize = 0;
    /// `used.idx`.
    pub const USED_IDX: usize = 2;
    /// `used.ring[0]`.
    pub const USED_RING: usize = 4;
    /// `used.avail_event`.
    pub const fn used_avail_event(queue: u16) -> usize {
        USED_RING + 8 * queue as usize
    }
    /// Bytes of the used ring, `avail_event` included.
    pub const fn used_size(queue: u16) -> usize {
        used_avail_event(queue) + 2
    }
}

/// Byte offsets of the packed ring's event suppression structures (§2.8.14).
pub mod packed {
    /// Descriptor offset and wrap counter.
    pub const EVENT_OFF_WRAP: usize = 0;
    /// `EVENT_F_*`.
    pub const EVENT_FLAGS: usize = 2;
    /// Bytes of the structure.
    pub const EVENT_SIZE: usize = 4;
}

/// Feature bits, as masks of the 64-bit feature word (§5.1.3 for network devices, §5.2.3 for block devices,
/// §6 for the rest).
pub mod features {
    /// The longest segment is in the configuration space.
    pub const BLK_SIZE_MAX: u64 = 1 << 1;
    /// The most segments of a request are in the configuration space.
    pub const BLK_SEG_MAX: u64 = 1 << 2;
    /// Cylinders, heads and sectors are in the configuration space.
    pub const BLK_GEOMETRY: u64 = 1 << 4;
    /// The device cannot be written.
    pub const BLK_RO: u64 = 1 << 5;
    /// The size of a block is in the configuration space.
    pub const BLK_BLK_SIZE: u64 = 1 << 6;
    /// The device takes flushes.
    pub const BLK_FLUSH: u64 = 1 << 9;
    /// Alignment and best sizes are in the configuration space.
    pub const BLK_TOPOLOGY: u64 = 1 << 10;
    /// The driver may change between write-back and write-through.
    pub const BLK_CONFIG_WCE: u64 = 1 << 11;
    /// Several queues.
    pub const BLK_MQ: u64 = 1 << 12;
    /// The device takes discards.
    pub const BLK_DISCARD: u64 = 1 << 13;
    /// The device takes requests to write zeroes.
    pub const BLK_WRITE_ZEROES: u64 = 1 << 14;
    /// The device reports its lifetime.
    pub const BLK_LIFETIME: u64 = 1 << 15;
    /// The device erases for good.
    pub const BLK_SECURE_ERASE: u64 = 1 << 16;
    /// The device completes partial checksums.
    pub const NET_CSUM: u64 = 1 << 0;
    /// The driver takes partial checksums.
    pub const NET_GUEST_CSUM: u64 = 1 << 1;
    /// Offloads can be changed through the control queue.
    pub const NET_CTRL_GUEST_OFFLOADS: u64 = 1 << 2;
    /// The device reports its MTU.
    pub const NET_MTU: u64 = 1 << 3;
    /// The device has a MAC address.
    pub const NET_MAC: u64 = 1 << 5;
    /// The driver takes TCPv4 segments beyond the MTU.
    pub const NET_GUEST_TSO4: u64 = 1 << 7;
    /// The driver takes TCPv6 segments beyond the MTU.
    pub const NET_GUEST_TSO6: u64 = 1 << 8;
    /// The driver takes segments with ECN.
    pub const NET_GUEST_ECN: u64 = 1 << 9;
    /// The driver takes fragmentable UDP.
    pub const NET_GUEST_UFO: u64 = 1 << 10;
    /// The device takes TCPv4 segments beyond the MTU.
    pub const NET_HOST_TSO4: u64 = 1 << 11;
    /// The device takes TCPv6 segments beyond the MTU.
    pub const NET_HOST_TSO6: u64 = 1 << 12;
    /// The device takes segments with ECN.
    pub const NET_HOST_ECN: u64 = 1 << 13;
    /// The device takes fragmentable UDP.
    pub const NET_HOST_UFO: u64 = 1 << 14;
    /// A frame may span several receive buffers.
    pub const NET_MRG_RXBUF: u64 = 1 << 15;
    /// Link status in the configuration space.
    pub const NET_STATUS: u64 = 1 << 16;
    /// A control queue exists.
    pub const NET_CTRL_VQ: u64 = 1 << 17;
    /// Receive modes through the control queue.
    pub const NET_CTRL_RX: u64 = 1 << 18;
    /// VLAN filtering through the control queue.
    pub const NET_CTRL_VLAN: u64 = 1 << 19;
    /// The driver announces itself when asked.
    pub const NET_GUEST_ANNOUNCE: u64 = 1 << 21;
    /// Several queue pairs.
    pub const NET_MQ: u64 = 1 << 22;
    /// MAC address through the control queue.
    pub const NET_CTRL_MAC_ADDR: u64 = 1 << 23;
    /// vhost: log dirty pages.
    pub const VHOST_LOG_ALL: u64 = 1 << 26;
    /// Indirect descriptors.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// Event indices.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// vhost-user: protocol features exist.
    pub const VHOST_USER_PROTOCOL: u64 = 1 << 30;
    /// Virtio 1.0 or later.
    pub const VERSION_1: u64 = 1 << 32;
    /// Addresses go through an IOMMU.
    pub const ACCESS_PLATFORM: u64 = 1 << 33;
    /// The packed ring.
    pub const RING_PACKED: u64 = 1 << 34;
    /// Buffers come back in the order in which they were offered.
    pub const IN_ORDER: u64 = 1 << 35;
    /// Memory accesses are ordered by the platform.
    pub const ORDER_PLATFORM: u64 = 1 << 36;
    /// A queue can be reset alone.
    pub const RING_RESET: u64 = 1 << 40;
    /// The driver takes UDPv4 segmentation.
    pub const NET_GUEST_USO4: u64 = 1 << 54;
    /// The driver takes UDPv6 segmentation.
    pub const NET_GUEST_USO6: u64 = 1 << 55;
    /// The device takes UDP segmentation.
    pub const NET_HOST_USO: u64 = 1 << 56;
    /// Speed and duplex in the configuration space.
    pub const NET_SPEED_DUPLEX: u64 = 1 << 63;
}

/// The network header (§5.1.6) with `num_buffers`: VERSION_1 or MRG_RXBUF was negotiated.
pub const NET_HDR_LEN: usize = 12;
/// The legacy network header without `num_buffers`.
pub const NET_HDR_LEN_LEGACY: usize = 10;

/// Bits and values of the network header (§5.1.6).
pub mod net_hdr {
    /// `flags`: the checksum must be completed from `csum_start` on.
    pub const F_NEEDS_CSUM: u8 = 1;
    /// `flags`: the checksum was seen to be right.
    pub const F_DATA_VALID: u8 = 2;
    /// `flags`: coalesced segment information.
    pub const F_RSC_INFO: u8 = 4;
    /// `gso_type`: an ordinary frame.
    pub const GSO_NONE: u8 = 0;
    /// `gso_type`: TCP over IPv4.
    pub const GSO_TCPV4: u8 = 1;
    /// `gso_type`: UDP by IP fragmentation.
    pub const GSO_UDP: u8 = 3;
    /// `gso_type`: TCP over IPv6.
    pub const GSO_TCPV6: u8 = 4;
    /// `gso_type`: UDP datagrams.
    pub const GSO_UDP_L4: u8 = 5;
    /// `gso_type`, or-ed in: the segment carries ECN.
    pub const GSO_ECN: u8 = 0x80;
    /// Offset of `flags`.
    pub const FLAGS: usize = 0;
    /// Offset of `gso_type`.
    pub const GSO_TYPE: usize = 1;
    /// Offset of `hdr_len`.
    pub const HDR_LEN: usize = 2;
    /// Offset of `gso_size`.
    pub const GSO_SIZE: usize = 4;
    /// Offset of `csum_start`.
    pub const CSUM_START: usize = 6;
    /// Offset of `csum_offset`.
    pub const CSUM_OFFSET: usize = 8;
    /// Offset of `num_buffers`.
    pub const NUM_BUFFERS: usize = 10;
}
