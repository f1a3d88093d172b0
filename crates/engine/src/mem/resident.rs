//! A file in tmpfs as memory: its bytes are copied where they lie, without a system call.
//!
//! Theory of operation. The file is mapped, with room to grow. A page that the file cannot give (it was cut
//! short, or its file system is full) raises SIGBUS in the middle of a copy; the handler (`sigbus`) raises
//! the flag, puts other memory there, and the copy goes on with that. So a copy counts only if the flag is
//! down behind it. Once it is up, the mapping is used no more: the kernel reads and writes the file, and
//! knows what the error is.
//!
//! To read a hole through a mapping takes room, for a page of zeros. So there is a bit for each page that was
//! seen to have room, when the file was opened or when it was written here; all other pages are the kernel's
//! to read. A bit that is wrong costs room or time, and no byte.
//!
//! Invariant: the mapping is watched until just before its end. Any process that has the file may write its
//! bytes at any time, so they are only ever copied as those of a [`Piece`].
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::fs::File;
use std::io;
use std::sync::atomic::{fence, AtomicU64, Ordering};

use rustix::fs::{seek, SeekFrom};
use rustix::mm::MapFlags;

use super::mapping::Mapping;
use super::piece::Piece;
use super::sigbus::{self, Flag, WatchedMapping};
use super::terms::Terms;

/// Bytes of a page, as bits are kept of them.
const PAGE: u64 = 4096;
/// Stretches of a file that are looked for, each some microsecond. A guest that has written every other page
/// of its disk made a start of the daemon wait for a tenth of a second a GiB, and what was not looked for the
/// kernel reads.
const STRETCHES: usize = 4096;
/// What is mapped for each byte that the file has: it may grow. Addresses cost nothing.
const ROOM: u64 = 4;

/// A file that is mapped.
pub struct Resident {
    /// Ends before the mapping does.
    _watch: WatchedMapping,
    memory: Mapping,
    len: u64,
    /// Some of it was lost.
    lost: Flag,
    /// A bit for each page: it has room.
    present: Box<[AtomicU64]>,
}

impl Resident {
    /// The `len` bytes of `file`, which lies in tmpfs, and what it may grow by.
    ///
    /// # Errors
    /// It cannot be mapped, or not be watched.
    pub fn new(file: &File, len: u64, writable: bool) -> io::Result<Resident> {
        let len = len.saturating_mul(ROOM).next_multiple_of(PAGE);
        let bytes = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let memory = Mapping::of_part(file, 0, bytes, writable, MapFlags::NORESERVE)?;
        let words = usize::try_from(len.div_ceil(64 * PAGE)).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let (present, lost) = (zeros(words), Flag::default());
        let (start, page) = (memory.base().as_ptr() as usize, rustix::param::page_size());
        let watch = sigbus::watch(start, bytes, page, &lost, &Terms::default());
        let _watch = watch.map_err(io::Error::other)?;
        let resident = Resident { _watch, memory, len, lost, present };
        resident.look(file);
        Ok(resident)
    }

    /// Marks what of `file` has room, as far as it says so within [`STRETCHES`] questions: a guest decides
    /// how many there would be.
    fn look(&self, file: &File) {
        let mut at = 0;
        for _ in 0..STRETCHES {
            let Ok(data) = seek(file, SeekFrom::Data(at)) else { return };
            let Ok(hole) = seek(file, SeekFrom::Hole(data)) else { return };
            if hole <= data {
                return;
            }
            self.mark(data, hole - data, true);
            at = hole;
        }
    }

    /// Reads the bytes from `at` on into `to`. False: that is the kernel's to do.
    #[inline]
    pub fn read(&self, at: u64, to: &Piece) -> bool {
        let Some(here) = self.piece(at, to).filter(|_| self.is_present(at, to.len() as u64)) else {
            return false;
        };
        to.write_from(&here);
        self.is_whole()
    }

    /// Writes `from` to the bytes from `at` on. False: that is the kernel's to do, whatever is there by now.
    #[inline]
    pub fn write(&self, at: u64, from: &Piece) -> bool {
        let Some(here) = self.piece(at, from) else { return false };
        here.write_from(from);
        let whole = self.is_whole();
        if whole && !self.is_present(at, from.len() as u64) {
            self.mark(at, from.len() as u64, true);
        }
        whole
    }

    /// The `len` bytes from `at` on are about to be given back.
    pub fn forget(&self, at: u64, len: u64) {
        self.mark(at, len, false);
    }

    /// As many bytes from `at` on as `other` has.
    #[inline]
    fn piece(&self, at: u64, other: &Piece) -> Option<Piece> {
        let len = u32::try_from(other.len()).ok()?;
        self.memory.piece(at, len).filter(|_| !self.lost.is_set())
    }

    /// Whether all that was copied so far was the file's. The handler raises the flag before it puts other
    /// memory there, so a thread that met that memory sees the flag behind this fence.
    #[inline]
    fn is_whole(&self) -> bool {
        fence(Ordering::SeqCst);
        !self.lost.is_set()
    }

    /// The words with the bits of these bytes, and which bits of each.
    #[inline]
    fn bits(&self, at: u64, len: u64) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let (first, end) = (at / PAGE, at.saturating_add(len).min(self.len).div_ceil(PAGE));
        let from = usize::try_from(first / 64).unwrap_or(usize::MAX);
        let words = self.present.get(from..).unwrap_or(&[]).iter().zip(first / 64..end.div_ceil(64));
        words.map(move |(word, number)| {
            let start = number * 64;
            let low = u64::MAX << first.saturating_sub(start).min(63);
            let high = u64::MAX >> (start + 64).saturating_sub(end).min(63);
            (word, low & high)
        })
    }

    #[inline]
    fn is_present(&self, at: u64, len: u64) -> bool {
        self.bits(at, len).all(|(word, bits)| word.load(Ordering::Relaxed) & bits == bits)
    }

    fn mark(&self, at: u64, len: u64, present: bool) {
        for (word, bits) in self.bits(at, len) {
            match present {
                true => word.fetch_or(bits, Ordering::Relaxed),
                false => word.fetch_and(!bits, Ordering::Relaxed),
            };
        }
    }
}

/// Words that take room when they are written.
fn zeros(words: usize) -> Box<[AtomicU64]> {
    const { assert!(align_of::<AtomicU64>() == align_of::<u64>()) };
    let zeros = Box::into_raw(vec![0u64; words].into_boxed_slice());
    // SAFETY: what was just allocated, and has no other owner; both types have the same size, bits, and
    // alignment.
    unsafe { Box::from_raw(zeros as *mut [AtomicU64]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
    use std::os::unix::fs::{FileExt, MetadataExt};

    const LEN: u64 = 64 * PAGE;

    fn file(len: u64) -> File {
        let fd = memfd_create(c"resident", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, len).unwrap();
        fd.into()
    }

    /// Opening a disk waits for some of its stretches, and not for as many as its guest has made.
    #[test]
    fn a_file_of_very_many_stretches_is_looked_at_in_part() {
        let pages = 2 * STRETCHES as u64 + 2;
        let file = file(pages * PAGE);
        (0..pages).step_by(2).for_each(|page| file.write_all_at(&[7], page * PAGE).unwrap());
        let resident = Resident::new(&file, pages * PAGE, true).unwrap();
        let there = |page: u64| resident.is_present(page * PAGE, PAGE);
        assert!(there(0) && there(pages - 4) && !there(1) && !there(pages - 2));
    }

    /// The bytes of a piece of 512.
    fn bytes(piece: &Piece) -> [u8; 512] {
        piece.read_array().unwrap()
    }

    #[test]
    fn what_has_room_is_read_and_the_rest_takes_none() {
        let file = file(ROOM * LEN);
        file.write_all_at(&[7; 8192], 2 * PAGE).unwrap();
        let resident = Resident::new(&file, LEN, true).unwrap();
        let store = Mapping::anonymous(1 << 20).unwrap();
        let piece = store.piece(0, 512).unwrap();
        for (at, there) in
            [(0, false), (2 * PAGE, true), (4 * PAGE - 512, true), (4 * PAGE - 256, false), (LEN, false)]
        {
            assert_eq!(resident.read(at, &piece), there, "{at}");
        }
        assert_eq!(bytes(&piece), [7; 512]);
        assert_eq!(file.metadata().unwrap().blocks(), 16);
        // What is written has room from then on, over the ends of words, too, until it is given back.
        let long = store.piece(4096, 1 << 19).unwrap();
        assert!(resident.write(9 * PAGE, &long) && resident.read(9 * PAGE, &long));
        assert!(!resident.read(8 * PAGE, &piece));
        resident.forget(63 * PAGE, 2 * PAGE);
        assert!(!resident.read(63 * PAGE, &piece) && !resident.read(64 * PAGE, &piece));
        assert!(resident.read(62 * PAGE, &piece) && resident.read(65 * PAGE, &piece));
    }

    /// Nothing that a page other than the file's had part in is taken for done.
    #[test]
    fn what_the_file_has_no_more_is_not_ours() {
        let file = file(LEN);
        let resident = Resident::new(&file, LEN, true).unwrap();
        let store = Mapping::anonymous(1 << 16).unwrap();
        let piece = store.piece(0, 512).unwrap();
        piece.write(&[5; 512]);
        assert!(resident.write(0, &piece) && resident.write(PAGE, &piece));
        ftruncate(&file, PAGE).unwrap();
        assert!(!resident.read(PAGE, &piece));
        // From now on all is the kernel's: what was put there is not the file's.
        assert!(!resident.write(PAGE, &piece) && !resident.read(0, &piece) && !resident.write(0, &piece));
        let mut kept = [0; 512];
        file.read_exact_at(&mut kept, 0).unwrap();
        assert_eq!(kept, [5; 512]);
    }

    #[test]
    fn a_file_may_grow_and_what_is_outside_is_not_ours() {
        let file = file(LEN);
        let resident = Resident::new(&file, LEN, true).unwrap();
        let store = Mapping::anonymous(1 << 16).unwrap();
        let piece = store.piece(0, 512).unwrap();
        for at in [ROOM * LEN - 256, ROOM * LEN, u64::MAX - 511, u64::MAX] {
            assert!(!resident.write(at, &piece) && !resident.read(at, &piece), "{at}");
            resident.forget(at, u64::MAX);
        }
        file.set_len(2 * LEN).unwrap();
        assert!(resident.write(2 * LEN - 512, &piece) && resident.read(2 * LEN - 512, &piece));
    }
}
