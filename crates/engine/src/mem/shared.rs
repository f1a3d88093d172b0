//! Small shared files that are not guest memory: the dirty log and the journal of ring positions.
//!
//! Invariant: `host + delta .. + len` is inside one mapping that lives exactly as long as the
//! `SharedFile`. The other side reads and writes at will, so every access is a whole atomic word at an
//! offset that was compared with `len`. A file that is cut short reads as zeros from then on (`sigbus`).

use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicU8};

use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};

/// A stretch of a file, mapped shared, accessed by atomic bytes and words.
#[derive(Debug)]
pub struct SharedFile {
    host: NonNull<u8>,
    mapped: usize,
    delta: usize,
    len: usize,
}

// SAFETY: an address and a length of shared memory that is accessed through atomics only.
unsafe impl Send for SharedFile {}
// SAFETY: as above.
unsafe impl Sync for SharedFile {}

impl SharedFile {
    /// Maps `len` bytes of `file` from byte `offset` on.
    ///
    /// # Errors
    /// The stretch is empty, wraps or ends behind the file; or what the system says of mapping it.
    pub fn map(file: &File, offset: u64, len: u64) -> io::Result<SharedFile> {
        let bad = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, why.to_owned());
        let end = offset.checked_add(len).ok_or_else(|| bad("offset and length wrap around"))?;
        if len == 0 {
            return Err(bad("it is empty"));
        }
        if file.metadata()?.len() < end {
            return Err(bad("the file is shorter than that"));
        }
        let align = super::page_size_of(file)?;
        let delta = offset % align;
        let mapped = usize::try_from((len + delta).next_multiple_of(align))
            .map_err(|_| bad("it is larger than the address space"))?;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let host = unsafe {
            mmap(
                std::ptr::null_mut(),
                mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                offset - delta,
            )
        }?;
        let host = NonNull::new(host.cast()).ok_or_else(|| bad("it was mapped at address zero"))?;
        #[expect(clippy::cast_possible_truncation, reason = "both are at most `mapped`, a usize")]
        let shared = SharedFile { host, mapped, delta: delta as usize, len: len as usize };
        super::sigbus::watch(host.as_ptr() as usize, mapped, &super::sigbus::Flag::default())?;
        Ok(shared)
    }

    /// Bytes in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: an empty stretch cannot be mapped.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The byte at `offset`, if it is inside.
    #[inline]
    pub fn byte(&self, offset: usize) -> Option<&AtomicU8> {
        // SAFETY: `offset < len`, so the byte is inside the mapping, which lives as long as `self`.
        (offset < self.len)
            .then(|| unsafe { AtomicU8::from_ptr(self.host.as_ptr().add(self.delta + offset)) })
    }

    /// The eight bytes at `offset`, if they are inside and aligned.
    #[inline]
    pub fn word(&self, offset: usize) -> Option<&AtomicU64> {
        let end = offset.checked_add(8)?;
        if end > self.len || (self.delta + offset) % 8 != 0 {
            return None;
        }
        // SAFETY: inside the mapping as just checked, and aligned because mappings start on a page.
        Some(unsafe { AtomicU64::from_ptr(self.host.as_ptr().add(self.delta + offset).cast()) })
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        super::sigbus::forget(self.host.as_ptr() as usize);
        // SAFETY: the mapping that `map` made; every borrow of its words has ended.
        let _ = unsafe { munmap(self.host.as_ptr().cast(), self.mapped) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
    use std::sync::atomic::Ordering;

    #[test]
    fn bounds_and_alignment_hold() {
        let fd = memfd_create(c"shared", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 0x3000).unwrap();
        let file: File = fd.into();
        assert!(SharedFile::map(&file, 0, 0).is_err());
        assert!(SharedFile::map(&file, 0x2001, 0x1000).is_err());
        assert!(SharedFile::map(&file, u64::MAX, 2).is_err());
        let shared = SharedFile::map(&file, 0x1008, 20).unwrap();
        shared.word(8).unwrap().store(u64::MAX, Ordering::Relaxed);
        assert_eq!(shared.byte(15).unwrap().load(Ordering::Relaxed), 0xff);
        assert!(shared.word(4).is_none() && shared.word(16).is_none() && shared.word(usize::MAX).is_none());
        assert!(shared.byte(19).is_some() && shared.byte(20).is_none());
        ftruncate(&file, 0).unwrap();
        assert_eq!(shared.word(8).unwrap().load(Ordering::Relaxed), 0);
    }
}
