//! Memory of a table: zeroed, in huge pages where the kernel has them, and taken as it is touched.
//!
//! Invariant of the `unsafe` here: `map` is a mapping of `bytes` bytes that this value alone knows; `at` is
//! aligned for `T` and lies in it with `len` values behind it. `T` is a type for which zeros are a value
//! ([`Zeroable`] is implemented in this file alone).

use std::ffi::c_void;
use std::ops::{Deref, DerefMut};
use std::ptr::{null_mut, NonNull};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use rustix::mm::{madvise, mmap_anonymous, munmap, Advice, MapFlags, ProtFlags};

/// Types of which zeros are a value.
///
/// # Safety
/// All-zero bytes are a valid value, and dropping one does nothing.
pub(crate) unsafe trait Zeroable {}
// SAFETY: integers without padding.
unsafe impl Zeroable for AtomicU16 {}
// SAFETY: integers without padding.
unsafe impl Zeroable for AtomicU32 {}
// SAFETY: integers without padding.
unsafe impl Zeroable for AtomicU64 {}
// SAFETY: integers without padding.
unsafe impl Zeroable for u8 {}

/// A huge page of x86-64, and of arm64 with pages of 4 KiB.
const HUGE: usize = 2 << 20;

/// `len` values that were zero at first.
pub(crate) struct Zeroed<T: Zeroable> {
    map: *mut c_void,
    bytes: usize,
    at: NonNull<T>,
    len: usize,
}

// SAFETY: it owns the values, like a `Box<[T]>`.
unsafe impl<T: Zeroable + Send> Send for Zeroed<T> {}
// SAFETY: as above.
unsafe impl<T: Zeroable + Sync> Sync for Zeroed<T> {}

impl<T: Zeroable> Zeroed<T> {
    /// `len` values.
    ///
    /// # Errors
    /// The kernel has no room for them.
    pub fn new(len: usize) -> rustix::io::Result<Zeroed<T>> {
        let size = len.max(1).checked_mul(size_of::<T>()).ok_or(rustix::io::Errno::NOMEM)?;
        // Room to begin at a huge page's first byte.
        let bytes = size.checked_add(HUGE).ok_or(rustix::io::Errno::NOMEM)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at a place of the kernel's choice.
        let map = unsafe { mmap_anonymous(null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags)? };
        // SAFETY: advice on the mapping above; it changes no byte. A kernel without huge pages refuses, and
        // all is well.
        let _ = unsafe { madvise(map, bytes, Advice::LinuxHugepage) };
        let at = map.wrapping_byte_add(map.align_offset(HUGE)).cast::<T>();
        let at = NonNull::new(at).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Zeroed { map, bytes, at, len })
    }
}

impl<T: Zeroable> Deref for Zeroed<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the invariant above.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl<T: Zeroable> DerefMut for Zeroed<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: the invariant above; `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl<T: Zeroable> Drop for Zeroed<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone, and nothing borrows from it any more.
        let _ = unsafe { munmap(self.map, self.bytes) };
    }
}
