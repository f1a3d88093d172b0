//! The four rings of an AF_XDP socket (Documentation/networking/af_xdp.rst), and the memory for frames.
//!
//! Invariant of the `unsafe` here: an entry belongs to the side that the two indices say; we read or write
//! entries only between an acquiring load of the kernel's index and a releasing store of ours. A chunk of
//! the frame memory is ours from the entry that hands it over until the entry by which we give it away; in
//! between the kernel does not touch it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use crate::host::mapping::Mapping;
use crate::host::nic::InterfaceState;
use crate::port::Port;

/// Entries of each ring, and chunks for each direction of a queue.
pub(super) const SLOTS: u32 = 2048;

/// Where a ring's parts lie in its mapping.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub(super) producer: usize,
    pub(super) consumer: usize,
    pub(super) entries: usize,
    pub(super) flags: usize,
}

/// A ring; we are its producer or its consumer, the kernel is the other one.
pub(super) struct XskRing<const ENTRY: usize> {
    memory: Mapping,
    layout: Layout,
    size: u32,
    /// Our index.
    own: u32,
}

/// A frame's place and length: `struct xdp_desc`.
#[derive(Clone, Copy)]
pub(super) struct Descriptor {
    pub(super) address: u64,
    pub(super) len: u32,
}

impl<const ENTRY: usize> XskRing<ENTRY> {
    /// Maps the ring of `size` entries, a power of two, that `fd` shows at `offset`.
    pub(super) fn map(fd: &OwnedFd, offset: u64, layout: Layout, size: u32) -> io::Result<XskRing<ENTRY>> {
        let len = layout.entries + size as usize * ENTRY;
        Ok(XskRing { memory: Mapping::shared(fd, offset, len)?, layout, size, own: 0 })
    }

    fn at(&self, index: u32) -> usize {
        self.layout.entries + (index & (self.size - 1)) as usize * ENTRY
    }

    /// Entries that the kernel has put in for us.
    pub(super) fn filled(&self) -> u32 {
        let producer = self.memory.word(self.layout.producer).load(Ordering::Acquire);
        producer.wrapping_sub(self.own).min(self.size)
    }

    /// Entries that we may put in.
    pub(super) fn free(&self) -> u32 {
        let consumer = self.memory.word(self.layout.consumer).load(Ordering::Acquire);
        self.size.saturating_sub(self.own.wrapping_sub(consumer))
    }

    /// The next of the filled entries. The caller knows that there is one.
    fn pop(&mut self) -> [u8; ENTRY] {
        // SAFETY: filled, so ours until `release`.
        let entry = unsafe { self.memory.read(self.at(self.own)) };
        self.own = self.own.wrapping_add(1);
        entry
    }

    /// Puts an entry in. The caller knows that there is room.
    fn push(&mut self, entry: [u8; ENTRY]) {
        // SAFETY: free, so ours until `publish`.
        unsafe { self.memory.write(self.at(self.own), entry) };
        self.own = self.own.wrapping_add(1);
    }

    /// Gives back all entries that were taken out.
    pub(super) fn release(&self) {
        self.memory.word(self.layout.consumer).store(self.own, Ordering::Release);
    }

    /// Shows the kernel all entries that were put in.
    pub(super) fn publish(&self) {
        self.memory.word(self.layout.producer).store(self.own, Ordering::Release);
    }

    /// Whether the kernel looks at the ring only after a system call.
    pub(super) fn wants_wakeup(&self) -> bool {
        self.memory.word(self.layout.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

impl XskRing<8> {
    pub(super) fn pop_address(&mut self) -> u64 {
        u64::from_ne_bytes(self.pop())
    }

    pub(super) fn push_address(&mut self, address: u64) {
        self.push(address.to_ne_bytes());
    }
}

impl XskRing<16> {
    /// The frame `ahead` of the next one. The caller knows that there is one.
    pub(super) fn peek_frame(&self, ahead: usize) -> Descriptor {
        let index = self.own.wrapping_add(u32::try_from(ahead).unwrap_or(0));
        // SAFETY: filled, so ours until `release`.
        descriptor(unsafe { self.memory.read(self.at(index)) })
    }

    pub(super) fn pop_frame(&mut self) -> Descriptor {
        descriptor(self.pop())
    }
    #[inline]
    pub(super) fn push_frame(&mut self, frame: Descriptor) {
        let mut entry = [0; 16];
        entry[..8].copy_from_slice(&frame.address.to_ne_bytes());
        entry[8..12].copy_from_slice(&frame.len.to_ne_bytes());
        self.push(entry);
    }
}

#[inline]
fn descriptor(entry: [u8; 16]) -> Descriptor {
    let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = entry;
    Descriptor {
        address: u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        len: u32::from_ne_bytes([i, j, k, l]),
    }
}

/// The four rings of one socket.
pub(super) struct Rings {
    /// Frames received.
    pub(super) rx: XskRing<16>,
    /// Chunks for frames to be received.
    pub(super) fill: XskRing<8>,
    /// Frames to be sent.
    pub(super) tx: XskRing<16>,
    /// Chunks of frames that were sent.
    pub(super) completion: XskRing<8>,
}

/// A socket, as both of its directions have it.
pub(super) struct XdpSocket {
    pub(super) fd: Arc<OwnedFd>,
    pub(super) umem: Mapping,
    /// Bytes of each of its chunks.
    pub(super) chunk: u32,
    pub(super) port: Arc<Port>,
    pub(super) state: Arc<InterfaceState>,
}
