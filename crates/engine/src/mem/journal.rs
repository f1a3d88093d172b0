//! Journals: what a thread is about to do to memory that others watch, written down where it outlives us.
//!
//! Theory of operation. A queue that gives a batch of descriptors back writes several things, and its process
//! can be killed between any two of them. So first the whole batch goes into a [`JournalSlot`] of a shared
//! file, and then the word that *opens* it; then the batch is carried out; then the same word *closes* it. A
//! successor that finds the slot open finds the batch whole: it looks at the descriptors to tell how far it
//! came, and makes good the rest. Found closed, nothing is to be done. What a slot says and how that is told
//! is the business of the ring (`virtq::journal`, `device::e1000::journal`).
//!
//! A killed process has made its stores in the order of the program; this module keeps that order, and only
//! the same machine reads them. The other side may be able to write into the file, so what is read from it is
//! compared with what can be.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{compiler_fence, Ordering};
use std::sync::Arc;

use rustix::fs::{fallocate, ftruncate, memfd_create, FallocateFlags, MemfdFlags};

use super::foreign::BadFile;
use super::shared::SharedFile;
use super::terms::Terms;

/// A file of `bytes` zeros in memory, with all its pages: where the system does not give more memory than it
/// has (`vm.overcommit_memory=2`), a page that is missing is an error here, and no SIGBUS later.
///
/// # Errors
/// What the system says.
pub fn memory_file(name: &CStr, bytes: usize) -> io::Result<File> {
    let file = sparse_file(name, bytes)?;
    fallocate(&file, FallocateFlags::empty(), 0, bytes as u64)?;
    Ok(file)
}

/// A file of `bytes` zeros in memory without pages, where most of it may never be used. All that is mapped of
/// such files is watched (`sigbus`).
///
/// # Errors
/// What the system says.
pub fn sparse_file(name: &CStr, bytes: usize) -> io::Result<File> {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC)?;
    ftruncate(&fd, bytes as u64)?;
    Ok(fd.into())
}

/// Slots of one size, one behind the other in a file.
pub struct JournalSlots {
    file: Arc<SharedFile>,
    bytes: usize,
    count: usize,
}

impl JournalSlots {
    /// Those in `file`, which is our own and long enough.
    ///
    /// # Errors
    /// What the system says of mapping it.
    pub fn open(file: &File, bytes: usize, count: usize) -> io::Result<JournalSlots> {
        let file = Arc::new(SharedFile::map(file, 0, (bytes * count) as u64)?);
        Ok(JournalSlots { file, bytes, count })
    }

    /// Those in the `len` bytes from `offset` on in `file`, which a peer gives on `terms`.
    ///
    /// # Errors
    /// There is no room for them, or the file is none that may be given.
    pub fn lent(
        (file, offset, len): (&File, u64, u64),
        bytes: usize,
        count: usize,
        terms: &Terms,
    ) -> Result<JournalSlots, BadFile> {
        if len < (bytes * count) as u64 || offset % 8 != 0 {
            let why = format!("{count} slots of {bytes} bytes do not fit into {len} bytes at {offset:#x}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why).into());
        }
        Ok(JournalSlots { file: Arc::new(SharedFile::lent(file, offset, len, terms)?), bytes, count })
    }

    /// One of them, if there is that many.
    pub fn slot(&self, index: usize) -> Option<JournalSlot> {
        (index < self.count).then(|| JournalSlot::at(&self.file, index * self.bytes))
    }
}

/// `N` slots of `bytes` bytes each, those in `file` or in a new one called `name`, and that file.
///
/// # Errors
/// What the system says of making or mapping it.
pub fn journals<const N: usize>(
    name: &CStr,
    bytes: usize,
    file: Option<OwnedFd>,
) -> io::Result<(File, [JournalSlot; N])> {
    let file = file.map_or_else(|| memory_file(name, N * bytes), |file| Ok(file.into()))?;
    let shared = Arc::new(SharedFile::map(&file, 0, (N * bytes) as u64)?);
    Ok((file, std::array::from_fn(|at| JournalSlot::at(&shared, at * bytes))))
}

/// Words of a file, from some byte on.
#[derive(Clone, Debug)]
pub struct JournalSlot {
    file: Arc<SharedFile>,
    at: usize,
}

impl JournalSlot {
    /// Those from byte `at` of `file` on.
    pub fn at(file: &Arc<SharedFile>, at: usize) -> JournalSlot {
        JournalSlot { file: Arc::clone(file), at }
    }

    /// Word `index`; zero beyond the end.
    pub fn get(&self, index: usize) -> u64 {
        self.file.word(self.at + 8 * index).map_or(0, |word| u64::from_le(word.load(Ordering::Acquire)))
    }

    /// Sets word `index`, if there is one.
    pub fn set(&self, index: usize, value: u64) {
        #[cfg(test)]
        if last_store::is_behind() {
            return;
        }
        if let Some(word) = self.file.word(self.at + 8 * index) {
            word.store(value.to_le(), Ordering::Release);
        }
    }

    /// Opens the slot by a word, when all that it shall say stands in it. What is done next is done later.
    pub fn open(&self, index: usize, value: u64) {
        self.set(index, value);
        compiler_fence(Ordering::SeqCst);
    }

    /// Closes it by that word. All that was done before was done earlier.
    pub fn close(&self, index: usize, value: u64) {
        compiler_fence(Ordering::SeqCst);
        self.set(index, value);
    }
}

/// For tests of what a kill leaves behind: the thread's stores into memory that outlives a process are made
/// up to some store, and all later ones are lost.
#[cfg(test)]
pub(crate) mod last_store {
    use std::cell::Cell;

    thread_local! {
        static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
    }

    /// The number of `stores` that will be made, and no more.
    pub(crate) fn after(stores: u64) {
        LEFT.set(stores);
    }

    /// How many are left.
    pub(crate) fn left() -> u64 {
        LEFT.get()
    }

    /// Asked before each store: whether it is lost.
    pub(crate) fn is_behind() -> bool {
        match LEFT.get() {
            0 => true,
            left => {
                LEFT.set(left - 1);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_file_has_all_its_pages_and_a_sparse_one_none() {
        let blocks = |file: File| file.metadata().unwrap().blocks() * 512;
        assert_eq!(blocks(memory_file(c"ours", 5 << 12).unwrap()), 5 << 12);
        assert_eq!(blocks(sparse_file(c"lent", 5 << 12).unwrap()), 0);
    }
}
