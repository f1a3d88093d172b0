//! The mapped region.
//!
//! Invariant: `base .. + info.total` is one shared mapping that lives as long as the `Map`, of a file that
//! the engine sealed against being cut short; `check` found every part that `info` names inside it and
//! aligned. RingStatus and slots are accessed as atomics. Buffers are given out as slices: only such as the
//! protocol says are the client's at that time (slots between `head` and `tail`), and only one at a time, by
//! methods that borrow their ring. The engine is trusted to keep the protocol, as the kernel is for netmap;
//! it sees every frame anyway.

use std::io;
use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{fcntl_get_seals, fstat, SealFlags};
use rustix::mm::{madvise, mmap, munmap, Advice, MapFlags, ProtFlags};
use sidecore_abi::netmap::{RingHead, SlotWord, RESERVED_BUFS};
use sidecore_abi::ring::{End, Info, RingStatus, BUF_SIZES, MAX_PIPES, MAX_RINGS, MAX_SLOTS};

/// A mapped region.
#[derive(Debug)]
pub struct Map {
    base: NonNull<u8>,
    info: Info,
}

// SAFETY: an address of shared memory that is accessed through atomics, or by slices under the rules above.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps `file`, which is laid out as `info` says.
    ///
    /// # Errors
    /// The layout contradicts itself or the file, or the system refuses to map it.
    pub(crate) fn new(file: &OwnedFd, info: Info) -> io::Result<Map> {
        let size = fstat(file)?.st_size;
        let sealed = fcntl_get_seals(file)?.contains(SealFlags::SHRINK);
        if !check(&info) || u64::try_from(size) != Ok(info.total) || !sealed {
            return Err(io::Error::other("the memory that came with the answer is not as the answer says"));
        }
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                length(&info),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        let map = Map { base: NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?, info };
        // What the engine has made present shall cost no fault later: all but the buffers of pipes.
        let bufs = |count: u32| u64::from(count) * u64::from(info.buf_size);
        map.populate(info.ring_pool, u64::from(rings(&info)) * u64::from(info.ring_size));
        map.populate(info.buf_pool + bufs(info.first_buf), bufs(info.own_bufs));
        Ok(map)
    }

    /// Has the pages of `len` bytes from `offset` on present.
    fn populate(&self, offset: u64, len: u64) {
        let (from, to) = (offset & !4095, offset + len);
        if len == 0 || to > self.info.total {
            return;
        }
        #[allow(clippy::cast_possible_truncation, reason = "inside the mapping")]
        // SAFETY: advice on our own mapping, inside it as just seen; refused by kernels that do not know it.
        let _ = unsafe { madvise(self.at(from).cast(), (to - from) as usize, Advice::LinuxPopulateWrite) };
    }

    /// Where everything is.
    #[inline]
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Where the region starts: the `netmap_if` of a netmap program.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    #[inline]
    fn at(&self, offset: u64) -> *mut u8 {
        assert!(offset < self.info.total);
        #[allow(clippy::cast_possible_truncation, reason = "was mapped, so it fits")]
        // SAFETY: inside the mapping, as just checked.
        unsafe {
            self.base.as_ptr().add(offset as usize)
        }
    }

    /// The words of ring `number`, counted over both directions, or among the four of a pipe.
    #[inline]
    pub(crate) fn words(&self, number: u32) -> &RingStatus {
        assert!(number < rings(&self.info));
        // SAFETY: `check` found these words inside and aligned; they are atomics throughout.
        unsafe { &*self.at(self.info.words).cast::<RingStatus>().add(number as usize) }
    }

    /// Whether the region was taken away, as it is with a port of another user's that is removed: where any
    /// of it reads as zero for that, all of it does.
    #[cold]
    pub(crate) fn is_taken(&self, number: u32) -> bool {
        assert!(number < rings(&self.info));
        let object = self.info.ring_pool + u64::from(number) * u64::from(self.info.ring_size);
        let at = self.at(object + offset_of!(RingHead, num_slots) as u64).cast::<AtomicU32>();
        // SAFETY: `check` found ring objects inside and aligned to 128 bytes.
        unsafe { &*at }.load(Ordering::Relaxed) == 0
    }

    /// Slots of ring `number`.
    #[inline]
    pub(crate) fn num_slots(&self, number: u32) -> u32 {
        if number < self.info.tx_rings {
            self.info.tx_slots
        } else {
            self.info.rx_slots
        }
    }

    /// The first words of ring `number`'s slots; every second one belongs to a slot's `ptr`.
    #[inline]
    pub(crate) fn slots(&self, number: u32) -> &[AtomicU64] {
        assert!(number < rings(&self.info));
        let offset = self.info.ring_pool
            + u64::from(number) * u64::from(self.info.ring_size)
            + size_of::<RingHead>() as u64;
        let count = 2 * self.num_slots(number) as usize;
        // SAFETY: `check` found that a ring object holds its slots; they are 8-byte aligned words.
        unsafe { std::slice::from_raw_parts(self.at(offset).cast(), count) }
    }

    /// Where buffer `index` is, if there is one with that number.
    #[inline]
    pub(crate) fn buffer(&self, index: u32) -> Option<NonNull<u8>> {
        if index < RESERVED_BUFS || index >= self.info.bufs {
            return None;
        }
        let offset = self.info.buf_pool + u64::from(index) * u64::from(self.info.buf_size);
        #[allow(clippy::cast_possible_truncation, reason = "was mapped, so it fits")]
        // SAFETY: `check` found that all buffers are inside.
        Some(unsafe { self.base.add(offset as usize) })
    }

    /// The first `len` bytes of the buffer that `word` names; none if it names none or the slot claims more
    /// than a buffer holds.
    ///
    /// # Safety
    /// The slot belongs to the client for as long as the slice lives, and there is no mutable slice of it.
    #[inline]
    pub(crate) unsafe fn bytes(&self, word: SlotWord) -> Option<&[u8]> {
        let len = usize::from(word.len());
        let start = self.buffer(word.buf_idx()).filter(|_| len <= self.info.buf_size as usize)?;
        // SAFETY: the buffer is inside the mapping; the caller vouches for the rest.
        Some(unsafe { std::slice::from_raw_parts(start.as_ptr(), len) })
    }

    /// The whole buffer that `word` names.
    ///
    /// # Safety
    /// The slot belongs to the client for as long as the slice lives, and there is no other slice of it.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "the caller vouches for it")]
    pub(crate) unsafe fn bytes_mut(&self, word: SlotWord) -> Option<&mut [u8]> {
        let start = self.buffer(word.buf_idx())?;
        // A slot counts in 16 bits.
        let len = (self.info.buf_size as usize).min(usize::from(u16::MAX));
        // SAFETY: the buffer is inside the mapping; the caller vouches for the rest.
        Some(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) })
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made; each user of it holds an `Arc` of the map.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), length(&self.info)) };
    }
}

#[allow(clippy::cast_possible_truncation, reason = "checked against the file's size, and mmap refuses more")]
fn length(info: &Info) -> usize {
    info.total as usize
}

/// Rings whose words and slots are ours to use: the port's, or the four of a pipe.
#[inline]
fn rings(info: &Info) -> u32 {
    if info.end == 0 {
        info.tx_rings.saturating_add(info.rx_rings)
    } else {
        4
    }
}

/// Whether all parts are inside the file, aligned, and large enough for what they hold.
fn check(info: &Info) -> bool {
    let pipe = info.end != 0;
    let alike = info.tx_slots == info.rx_slots && info.tx_rings == 1 && info.rx_rings == 1;
    let rings = u64::from(rings(info));
    let slots = u64::from(info.tx_slots.max(info.rx_slots));
    let part = |start: u64, count: u64, size: u64| {
        count.checked_mul(size).and_then(|len| start.checked_add(len)).is_some_and(|end| end <= info.total)
    };
    // A monitor has no rings to send on. Of the others at least one pair is no host ring.
    let pairs = if info.tx_rings == 0 { info.rx_rings } else { info.tx_rings.min(info.rx_rings) };
    [info.tx_rings, info.rx_rings].iter().all(|n| *n as usize <= MAX_RINGS)
        && info.host_rings < pairs
        && [info.tx_slots, info.rx_slots].iter().all(|n| (2..=MAX_SLOTS).contains(n))
        && BUF_SIZES.contains(&info.buf_size)
        && info.pipes as usize <= MAX_PIPES
        && (!pipe || End::from_code(info.end).is_some() && alike)
        && u64::from(info.ring_size) >= size_of::<RingHead>() as u64 + 16 * slots
        && info.ring_size % 128 == 0
        && [info.ring_pool, info.words].iter().all(|at| at % 128 == 0)
        && part(info.ring_pool, rings, u64::from(info.ring_size))
        && part(info.buf_pool, u64::from(info.bufs), u64::from(info.buf_size))
        && part(info.words, rings, size_of::<RingStatus>() as u64)
}

/// A slot's first word.
#[inline]
pub(crate) fn load(slots: &[AtomicU64], slot: u32) -> SlotWord {
    SlotWord(slots[2 * slot as usize].load(Ordering::Relaxed))
}

/// Changes a slot's first word.
#[inline]
pub(crate) fn store(slots: &[AtomicU64], slot: u32, word: SlotWord) {
    slots[2 * slot as usize].store(word.0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidecore_engine::ring::{pipe_end, Geometry};

    #[test]
    fn a_layout_that_leaves_the_file_is_refused() {
        let good = Geometry::default().layout().unwrap();
        assert!(check(&good));
        let bad = |change: fn(&mut Info)| {
            let mut info = good;
            change(&mut info);
            check(&info)
        };
        assert!(!bad(|i| i.bufs *= 2));
        assert!(!bad(|i| i.buf_pool = u64::MAX - 1));
        assert!(!bad(|i| i.words = i.total));
        assert!(!bad(|i| i.ring_size -= 128));
        assert!(!bad(|i| i.tx_rings = 17));
        assert!(!bad(|i| i.rx_slots = 0));
        assert!(!bad(|i| i.ring_pool += 8));
        assert!(!bad(|i| i.total /= 2));
        assert!(!bad(|i| i.end = 3));
        assert!(!bad(|i| i.pipes = 65));
        // Four rings from here on would be beyond the last.
        let last = pipe_end(&good, good.pipes - 1, End::Slave);
        assert!(check(&last));
        assert!(!check(&Info { words: last.total - 768, ..last }));
    }
}
