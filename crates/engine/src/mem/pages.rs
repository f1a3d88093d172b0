//! Device pages that a guest maps: memory of ours that the VMM puts into the guest's address space, so that
//! the guest's stores to registers there reach us without a trap.
//!
//! Invariant: the mapping is one of `file`, which is sealed against shrinking and growing,
//! and lives exactly as long as the `SharedPages`. The bytes change at the guest's will, so they are only
//! reached as aligned atomic words and never borrowed.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{
    fallocate, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create, FallocateFlags, MemfdFlags,
    SealFlags,
};

use super::mapping::Mapping;

/// Takes the pages of a memory file of `len` bytes away, which a peer has had and may keep for ever: they
/// counted as ours. It reads as zeros from now on, and a process that writes there pays for new pages.
///
/// It may take as long as others can make it take, so it is not for I/O cores.
pub fn take_pages(file: BorrowedFd<'_>, len: u64) {
    // Fails where the file is sealed against it, which ours are not.
    let _ = fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, len);
}

/// Zeroed pages in a memory file of fixed size.
#[derive(Debug)]
pub struct SharedPages {
    file: File,
    memory: Mapping,
}

impl SharedPages {
    /// `len` bytes, rounded up to whole pages, which are all there; `name` shows up in `/proc/PID/maps`.
    ///
    /// # Errors
    /// What the system says: here, and not by SIGBUS when a page is first touched.
    pub fn new(name: &CStr, len: usize) -> io::Result<SharedPages> {
        let pages = SharedPages::sparse(name, len)?;
        fallocate(&pages.file, FallocateFlags::empty(), 0, pages.size() as u64)?;
        Ok(pages)
    }

    /// Shared pages, none of which is there yet.
    ///
    /// # Errors
    /// What the system says.
    pub fn sparse(name: &CStr, len: usize) -> io::Result<SharedPages> {
        let len = len.max(1).next_multiple_of(rustix::param::page_size());
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, len as u64)?;
        // The VMM holds this file, too: it must not be able to pull the pages away under us.
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(SharedPages { memory: Mapping::of_file(&fd, len)?, file: fd.into() })
    }

    /// Pages that another process made so, with what stands in them.
    ///
    /// # Errors
    /// It is not such a file, or not `len` bytes long.
    pub fn adopt(file: OwnedFd, len: usize) -> io::Result<SharedPages> {
        let len = len.max(1).next_multiple_of(rustix::param::page_size());
        let file = File::from(file);
        let sealed = fcntl_get_seals(&file)?.contains(SealFlags::SHRINK | SealFlags::GROW);
        if !sealed || file.metadata()?.len() != len as u64 {
            let why = format!("these are no sealed pages of {len} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Ok(SharedPages { memory: Mapping::of_file(&file, len)?, file })
    }

    /// The memory file, to be given to the VMM.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The VMM that had them has gone: see [`take_pages`].
    pub fn give_up(&self) {
        take_pages(self.file(), self.size() as u64);
    }

    /// Bytes, a multiple of the page size.
    pub fn size(&self) -> usize {
        self.memory.size()
    }

    /// Where they begin.
    pub fn base(&self) -> NonNull<u8> {
        self.memory.base()
    }

    /// The word at byte `offset`, in the processor's byte order. None if it is misaligned or outside.
    #[inline]
    pub fn word(&self, offset: usize) -> Option<&AtomicU32> {
        if offset % 4 != 0 || offset >= self.size() {
            return None;
        }
        // SAFETY: inside the mapping and aligned (the mapping is page-aligned and a multiple of four long);
        // shared memory that others write is what atomics are for.
        Some(unsafe { &*self.base().as_ptr().add(offset).cast::<AtomicU32>() })
    }

    /// Sets the words from byte `start` to byte `end` to zero; what lies outside is left out.
    pub fn clear(&self, start: usize, end: usize) {
        for word in (start..end.min(self.size())).step_by(4).filter_map(|offset| self.word(offset)) {
            word.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_mappings_see_the_same_words() {
        let pages = SharedPages::new(c"test", 5000).unwrap();
        assert_eq!((pages.size(), rustix::fs::fstat(pages.file()).unwrap().st_blocks), (8192, 8192 / 512));
        assert!(pages.word(8192).is_none() && pages.word(2).is_none());
        pages.word(8188).unwrap().store(0x1234_5678, Ordering::Relaxed);
        let mut bytes = [0; 4];
        rustix::io::pread(pages.file(), &mut bytes, 8188).unwrap();
        assert_eq!(u32::from_ne_bytes(bytes), 0x1234_5678);
        pages.clear(8184, usize::MAX);
        assert_eq!(pages.word(8188).unwrap().load(Ordering::Relaxed), 0);
    }

    #[test]
    fn another_process_finds_what_was_there() {
        let pages = SharedPages::new(c"test", 4096).unwrap();
        pages.word(8).unwrap().store(7, Ordering::Relaxed);
        let file = || pages.file().try_clone_to_owned().unwrap();
        assert!(SharedPages::adopt(file(), 8192).is_err());
        let again = SharedPages::adopt(file(), 4096).unwrap();
        assert_eq!(again.word(8).unwrap().load(Ordering::Relaxed), 7);
        let open = memfd_create(c"open", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&open, 4096).unwrap();
        assert!(SharedPages::adopt(open, 4096).is_err(), "it can be cut short");
    }

    #[test]
    fn nobody_can_cut_them_short() {
        let pages = SharedPages::new(c"test", 4096).unwrap();
        assert!(ftruncate(pages.file(), 0).is_err());
        assert!(ftruncate(pages.file(), 8192).is_err());
    }
}
