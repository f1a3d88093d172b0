//! The driver's "guest memory": one shared file, mapped once, handed to the device.
//!
//! Three address spaces name the same byte, and they differ on purpose so that a device that mixes
//! them up fails at once: the offset in the file, the guest physical address (in descriptors) and the
//! front end's user address (in SET_VRING_ADDR).
//!
//! Invariant kept by the `unsafe` here: every access lies inside the mapping, checked on each call;
//! the mapping lives as long as any [`View`], and 16-, 32- and 64-bit accesses are naturally aligned
//! atomics because a view starts on a 16-byte boundary and is indexed in units of the access.
//! The device on the other side is trusted to write only into buffers that it holds.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};

use crate::error::{Error, Result};

/// Guest physical address of the first byte: above 4 GiB, so that 32-bit truncation shows.
pub const GPA_BASE: u64 = 0x1_4000_0000;
/// User address of the first byte, as told to the backend. Nothing is mapped there.
pub const USER_BASE: u64 = 0x7a00_0000_0000;

/// Size of the pages behind the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Page {
    /// 4 KiB, always available.
    #[default]
    Small,
    /// 2 MiB, from the pool of `vm.nr_hugepages`.
    Huge,
}

/// One shared memory region.
#[derive(Debug)]
pub struct Memory {
    fd: OwnedFd,
    base: NonNull<u8>,
    len: usize,
    next: AtomicUsize,
}

// SAFETY: the mapping is shared memory that other processes write anyway; every access goes through
// atomics or through buffers that exactly one side owns at a time.
unsafe impl Send for Memory {}
// SAFETY: as above; the only own state is an atomic.
unsafe impl Sync for Memory {}

/// `count` buffers of `size` bytes, `stride` bytes apart.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    /// Offset of the first.
    pub first: usize,
    /// Bytes from one buffer to the next.
    pub stride: usize,
    /// Usable bytes in each.
    pub size: usize,
    /// How many there are.
    pub count: usize,
}

impl Buffers {
    /// Offset of buffer `index`.
    #[inline]
    pub fn offset(&self, index: u16) -> usize {
        self.first + usize::from(index) * self.stride
    }
}

impl Memory {
    /// Makes and maps a region of at least `len` bytes.
    pub fn new(len: usize, page: Page) -> Result<Arc<Self>> {
        let (unit, flags) = match page {
            Page::Small => (4096, MemfdFlags::CLOEXEC),
            Page::Huge => (2 << 20, MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB),
        };
        let len = len.next_multiple_of(unit);
        let fd = memfd_create("sidecore-driver", flags).map_err(|e| Error::io("memfd_create", e))?;
        ftruncate(&fd, len as u64).map_err(|e| Error::io(format!("ftruncate of the memory to {len}"), e))?;
        // SAFETY: a fresh mapping at an address that the kernel chooses; nothing else refers to it.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                &fd,
                0,
            )
        }
        .map_err(|e| Error::io(format!("mmap of {len} bytes ({page:?} pages; see vm.nr_hugepages)"), e))?;
        let base = NonNull::new(base.cast()).ok_or_else(|| Error::Config("mmap returned null".into()))?;
        Ok(Arc::new(Self { fd, base, len, next: AtomicUsize::new(0) }))
    }

    /// Bytes in the region.
    pub fn size(&self) -> usize {
        self.len
    }

    /// The file behind the region.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Guest physical address of an offset.
    #[inline]
    pub fn gpa(&self, offset: usize) -> u64 {
        GPA_BASE + offset as u64
    }

    /// User address of an offset.
    pub fn user(&self, offset: usize) -> u64 {
        USER_BASE + offset as u64
    }

    /// Takes `len` bytes at a multiple of `align`, which is a power of two. Nothing is ever given back.
    pub fn alloc(&self, len: usize, align: usize) -> Result<usize> {
        let mut start = 0;
        self.next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
                start = next.next_multiple_of(align);
                start.checked_add(len).filter(|end| *end <= self.len)
            })
            .map_err(|_| {
                Error::Config(format!("memory of {} bytes is too small for {len} more", self.len))
            })?;
        Ok(start)
    }

    /// Takes `count` buffers of `size` bytes. The stride is an odd number of 128-byte line pairs:
    /// a power of two would put the first line of every buffer into the same few cache sets.
    pub fn alloc_buffers(&self, count: usize, size: usize) -> Result<Buffers> {
        let stride = (size.div_ceil(128) | 1) * 128;
        let first = self.alloc(stride * count, 128)?;
        Ok(Buffers { first, stride, size, count })
    }

    /// Bytes that [`Memory::alloc_buffers`] takes.
    pub fn buffers_size(count: usize, size: usize) -> usize {
        (size.div_ceil(128) | 1) * 128 * count + 128
    }

    /// Address of `offset`, for `len` bytes.
    #[inline]
    pub(crate) fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(
            offset <= self.len && len <= self.len - offset,
            "{offset}+{len} is outside the driver's memory"
        );
        // SAFETY: inside the mapping by the check above.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Copies bytes out.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        let from = self.at(offset, into.len());
        // SAFETY: `from` has that many bytes; `into` is private memory, so they cannot overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) }
    }

    /// Copies bytes in.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// The bytes of a buffer.
    ///
    /// # Safety
    /// The device must not hold the buffer, and no other reference to it may be alive.
    #[inline]
    #[allow(clippy::mut_from_ref)] // Interior mutability across processes; the caller answers for it.
    pub unsafe fn bytes_mut(&self, offset: usize, len: usize) -> &mut [u8] {
        // SAFETY: inside the mapping; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.at(offset, len), len) }
    }

    /// A window for atomic access. `offset` must be a multiple of 16.
    pub fn view(self: &Arc<Self>, offset: usize, len: usize) -> View {
        assert!(offset % 16 == 0, "a view starts on a 16-byte boundary");
        let base = self.at(offset, len);
        View { base, len, offset, memory: Arc::clone(self) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; no view outlives the region.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A window into [`Memory`], read and written with atomics, indexed in units of the access.
#[derive(Clone, Debug)]
pub struct View {
    base: *mut u8,
    len: usize,
    offset: usize,
    memory: Arc<Memory>,
}

// SAFETY: as for `Memory`, which it keeps alive.
unsafe impl Send for View {}

macro_rules! access {
    ($load:ident, $store:ident, $at:ident, $int:ty, $atomic:ty) => {
        #[inline(always)]
        fn $at(&self, index: usize) -> &$atomic {
            assert!(index < self.len / size_of::<$int>(), "index outside the view");
            // SAFETY: inside the mapping, naturally aligned (see the invariant above), and only ever
            // accessed by atomics while the view is in use.
            unsafe { <$atomic>::from_ptr(self.base.cast::<$int>().add(index)) }
        }

        /// Loads the integer at `index`, counted in units of its size.
        #[inline(always)]
        pub fn $load(&self, index: usize, order: Ordering) -> $int {
            self.$at(index).load(order)
        }

        /// Stores the integer at `index`, counted in units of its size.
        #[inline(always)]
        pub fn $store(&self, index: usize, value: $int, order: Ordering) {
            self.$at(index).store(value, order);
        }
    };
}

impl View {
    access!(load16, store16, at16, u16, AtomicU16);
    access!(load32, store32, at32, u32, AtomicU32);
    access!(load64, store64, at64, u64, AtomicU64);

    /// Prefetches the line at byte `offset`; a hint, never an access.
    #[inline(always)]
    pub fn prefetch(&self, offset: usize) {
        prefetch(self.base.wrapping_add(offset));
    }

    /// Prefetches the line at byte `offset` for writing; a hint, never an access.
    #[inline(always)]
    pub(crate) fn prefetch_write(&self, offset: usize) {
        prefetch_write(self.base.wrapping_add(offset));
    }

    /// Offset of the view in its memory.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Bytes in the view.
    pub fn size(&self) -> usize {
        self.len
    }

    /// The memory behind it.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }
}

/// Prefetches the line that holds `at`, which may be any address.
#[inline(always)]
pub(crate) fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch does not access memory and never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Prefetches the line that holds `at` for writing: takes it from the other side ahead of time.
#[inline(always)]
pub(crate) fn prefetch_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch does not access memory and never faults; processors without it do nothing.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
