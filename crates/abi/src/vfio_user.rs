//! vfio-user: the messages by which a VMM drives a device in another process.
//!
//! After QEMU's `docs/interop/vfio-user.rst` (protocol 0.1) and `linux/vfio.h`, whose structures travel in
//! the messages. Integers are in the host's byte order, which is little endian here.

/// Declares a structure of integers with their byte offsets, and its way from and to bytes.
macro_rules! layout {
    ($(#[$doc:meta])* $name:ident, $size:literal { $($(#[$about:meta])* $offset:literal $field:ident: $int:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$about])* pub $field: $int,)*
        }

        impl $name {
            /// Bytes in a message.
            pub const SIZE: usize = $size;
            /// [`SIZE`](Self::SIZE) in the type that the messages' own fields of lengths have.
            pub const LEN: u32 = $size;

            /// Reads it from the start of `bytes`, if there are enough of them.
            pub fn parse(bytes: &[u8]) -> Option<Self> {
                let bytes = bytes.get(..$size)?;
                Some(Self {
                    $($field: {
                        let mut raw = [0; size_of::<$int>()];
                        raw.copy_from_slice(&bytes[$offset..$offset + size_of::<$int>()]);
                        <$int>::from_le_bytes(raw)
                    },)*
                })
            }

            /// It as bytes.
            pub fn bytes(&self) -> [u8; $size] {
                let mut bytes = [0; $size];
                $(bytes[$offset..$offset + size_of::<$int>()].copy_from_slice(&self.$field.to_le_bytes());)*
                bytes
            }
        }

        // Fields without gaps or overlaps: their sizes add up, and each starts where the sum stands.
        const _: () = {
            let mut end = 0;
            $(assert!($offset == end); end += size_of::<$int>();)*
            assert!(end == $size);
        };
    };
}

layout!(
    /// In front of every message.
    Header, 16 {
        /// Chosen by the sender; the reply repeats it.
        0 id: u16,
        /// What is asked: [`command`].
        2 command: u16,
        /// Bytes of the message, this header included.
        4 size: u32,
        /// [`flags`].
        8 flags: u32,
        /// In a reply with [`flags::ERROR`]: why, as an errno.
        12 error: u32,
    }
);

layout!(
    /// VERSION; a JSON text that ends in a zero byte may follow.
    Version, 4 {
        /// Major version: 0.
        0 major: u16,
        /// Minor version: 1 at most.
        2 minor: u16,
    }
);

layout!(
    /// DMA_MAP.
    DmaMap, 32 {
        /// Bytes of this structure.
        0 argsz: u32,
        /// [`dma`].
        4 flags: u32,
        /// Where the stretch starts in the file that comes along.
        8 offset: u64,
        /// Guest address of its first byte.
        16 address: u64,
        /// Bytes.
        24 size: u64,
    }
);

layout!(
    /// DMA_UNMAP, and its reply.
    DmaUnmap, 24 {
        /// Bytes of the reply.
        0 argsz: u32,
        /// [`dma`].
        4 flags: u32,
        /// Guest address of the first byte.
        8 address: u64,
        /// Bytes.
        16 size: u64,
    }
);

layout!(
    /// DEVICE_GET_INFO, and its reply.
    DeviceInfo, 16 {
        /// Bytes of the reply.
        0 argsz: u32,
        /// [`device`].
        4 flags: u32,
        /// Number of regions.
        8 regions: u32,
        /// Number of kinds of interrupts.
        12 irqs: u32,
    }
);

layout!(
    /// DEVICE_GET_REGION_INFO, and its reply; capabilities may follow.
    RegionInfo, 32 {
        /// Bytes that the reply may have; in the reply: that it would have if all of it were sent.
        0 argsz: u32,
        /// [`region`].
        4 flags: u32,
        /// Which region.
        8 index: u32,
        /// Where the first capability is, from the start of this structure; 0: none.
        12 cap_offset: u32,
        /// Bytes of the region.
        16 size: u64,
        /// Where the region starts in the file that comes along.
        24 offset: u64,
    }
);

layout!(
    /// The sparse-mmap capability of a region; [`SparseArea`]s follow.
    SparseCap, 16 {
        /// [`region::CAP_SPARSE`].
        0 id: u16,
        /// 1.
        2 version: u16,
        /// Where the next capability is; 0: none.
        4 next: u32,
        /// How many areas follow.
        8 areas: u32,
        /// Nothing.
        12 reserved: u32,
    }
);

layout!(
    /// A stretch of a region that can be mapped.
    SparseArea, 16 {
        /// From the region's start.
        0 offset: u64,
        /// Bytes.
        8 size: u64,
    }
);

layout!(
    /// DEVICE_GET_IRQ_INFO, and its reply; also the request of DEVICE_GET_REGION_IO_FDS.
    IrqInfo, 16 {
        /// Bytes of the reply.
        0 argsz: u32,
        /// [`irq`].
        4 flags: u32,
        /// Which kind of interrupts.
        8 index: u32,
        /// How many there are.
        12 count: u32,
    }
);

layout!(
    /// DEVICE_SET_IRQS; booleans, a byte each, may follow.
    SetIrqs, 20 {
        /// Bytes of this structure and what follows.
        0 argsz: u32,
        /// [`irq`]: one of the `DATA_…` and one of the `ACTION_…` bits.
        4 flags: u32,
        /// Which kind of interrupts.
        8 index: u32,
        /// The first one.
        12 start: u32,
        /// How many.
        16 count: u32,
    }
);

layout!(
    /// REGION_READ and REGION_WRITE, and their replies; the data follow.
    RegionAccess, 16 {
        /// From the region's start.
        0 offset: u64,
        /// Which region.
        8 region: u32,
        /// Bytes.
        12 count: u32,
    }
);

layout!(
    /// REGION_WRITE_MULTI starts with this number; as many [`OneWrite`]s follow. Also its reply.
    WriteMulti, 8 {
        /// How many writes.
        0 count: u64,
    }
);

layout!(
    /// One write of a REGION_WRITE_MULTI.
    OneWrite, 24 {
        /// From the region's start.
        0 offset: u64,
        /// Which region.
        8 region: u32,
        /// Bytes, 8 at most.
        12 count: u32,
        /// The bytes, from the lowest on.
        16 data: u64,
    }
);

/// Most bytes of data in one REGION_READ or REGION_WRITE unless a smaller number was agreed.
pub const DEFAULT_MAX_TRANSFER: u32 = 1 << 20;
/// Most descriptors that the kernel lets pass in one message.
pub const MAX_FDS: usize = 253;

/// Commands.
pub mod command {
    /// The version that each side speaks, and what it can do.
    pub const VERSION: u16 = 1;
    /// Guest memory appears.
    pub const DMA_MAP: u16 = 2;
    /// Guest memory goes.
    pub const DMA_UNMAP: u16 = 3;
    /// How many regions and kinds of interrupts.
    pub const DEVICE_GET_INFO: u16 = 4;
    /// What a region is.
    pub const DEVICE_GET_REGION_INFO: u16 = 5;
    /// Which parts of a region are reached by descriptors.
    pub const DEVICE_GET_REGION_IO_FDS: u16 = 6;
    /// What a kind of interrupts is.
    pub const DEVICE_GET_IRQ_INFO: u16 = 7;
    /// Interrupts are wired, masked, fired.
    pub const DEVICE_SET_IRQS: u16 = 8;
    /// A read.
    pub const REGION_READ: u16 = 9;
    /// A write.
    pub const REGION_WRITE: u16 = 10;
    /// Server to client: a read of guest memory.
    pub const DMA_READ: u16 = 11;
    /// Server to client: a write of guest memory.
    pub const DMA_WRITE: u16 = 12;
    /// Back to the state after power on.
    pub const DEVICE_RESET: u16 = 13;
    /// Dirty page tracking of an early draft.
    pub const DIRTY_PAGES: u16 = 14;
    /// Several small writes.
    pub const REGION_WRITE_MULTI: u16 = 15;
    /// Features such as migration.
    pub const DEVICE_FEATURE: u16 = 16;
    /// A read of migration data.
    pub const MIG_DATA_READ: u16 = 17;
    /// A write of migration data.
    pub const MIG_DATA_WRITE: u16 = 18;
}

/// Flags of the header.
pub mod flags {
    /// The bits that say what kind of message it is.
    pub const TYPE: u32 = 0xf;
    /// Kind: a command.
    pub const COMMAND: u32 = 0;
    /// Kind: a reply.
    pub const REPLY: u32 = 1;
    /// In a command: no reply is wanted.
    pub const NO_REPLY: u32 = 1 << 4;
    /// In a reply: it went wrong.
    pub const ERROR: u32 = 1 << 5;
}

/// Flags of DMA_MAP and DMA_UNMAP.
pub mod dma {
    /// May be read.
    pub const READ: u32 = 1 << 0;
    /// May be written.
    pub const WRITE: u32 = 1 << 1;
    /// DMA_UNMAP: everything.
    pub const UNMAP_ALL: u32 = 1 << 1;
}

/// Flags of DEVICE_GET_INFO.
pub mod device {
    /// Knows DEVICE_RESET.
    pub const RESET: u32 = 1 << 0;
    /// Is a PCI device.
    pub const PCI: u32 = 1 << 1;
}

/// Flags and numbers of regions.
pub mod region {
    /// Can be read.
    pub const READ: u32 = 1 << 0;
    /// Can be written.
    pub const WRITE: u32 = 1 << 1;
    /// Can be mapped.
    pub const MMAP: u32 = 1 << 2;
    /// Capabilities follow.
    pub const CAPS: u32 = 1 << 3;
    /// Number of the sparse-mmap capability.
    pub const CAP_SPARSE: u16 = 1;
    /// The expansion ROM; regions 0 to 5 are the BARs.
    pub const ROM: u32 = 6;
    /// Configuration space.
    pub const CONFIG: u32 = 7;
    /// How many regions a PCI device has; the last is VGA's.
    pub const COUNT: u32 = 9;
}

/// Flags and numbers of interrupts.
pub mod irq {
    /// Information: can be told by an eventfd.
    pub const EVENTFD: u32 = 1 << 0;
    /// Information: can be masked.
    pub const MASKABLE: u32 = 1 << 1;
    /// Information: masks itself when it fires.
    pub const AUTOMASKED: u32 = 1 << 2;
    /// Information: all are wired together or none.
    pub const NO_RESIZE: u32 = 1 << 3;

    /// Set: nothing comes along.
    pub const DATA_NONE: u32 = 1 << 0;
    /// Set: booleans come along.
    pub const DATA_BOOL: u32 = 1 << 1;
    /// Set: eventfds come along.
    pub const DATA_EVENTFD: u32 = 1 << 2;
    /// Set: mask.
    pub const ACTION_MASK: u32 = 1 << 3;
    /// Set: unmask.
    pub const ACTION_UNMASK: u32 = 1 << 4;
    /// Set: fire.
    pub const ACTION_TRIGGER: u32 = 1 << 5;

    /// The interrupt pin.
    pub const INTX: u32 = 0;
    /// MSI.
    pub const MSI: u32 = 1;
    /// MSI-X.
    pub const MSIX: u32 = 2;
    /// Bus errors.
    pub const ERROR: u32 = 3;
    /// The device wants to be given up.
    pub const REQUEST: u32 = 4;
    /// How many kinds a PCI device has.
    pub const COUNT: u32 = 5;
}
