//! A memory file that is cut short under us: the port dies, the daemon lives.
//!
//! Theory of operation. Touching a page that its file no longer backs raises SIGBUS on the thread that
//! touched it, in the middle of a copy. The handler looks the address up in a fixed table of watched
//! mappings. A hit: it puts an anonymous page over the hole, raises the map's flag and returns, and the
//! copy goes on with zeros; the queue sees the flag after its batch and stops with
//! `Fault::MemoryTruncated`. A miss: the default action, death, as for any other bug.
//!
//! Invariants: the handler calls nothing but `mmap` and `signal`, and touches nothing but atomics in
//! statics (both are async-signal-safe). An entry's `flag` points into an `Arc` that the entry itself
//! keeps alive until `forget`, and `forget` runs before the mapping goes away.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};

/// Raised when memory was truncated.
#[derive(Clone, Debug, Default)]
pub struct Flag(Arc<AtomicBool>);

impl Flag {
    /// Whether it is raised.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Watched mappings: 509 memory slots a guest (what vhost allows) for a good number of guests.
const ENTRIES: usize = 8192;

struct Entry {
    start: AtomicUsize,
    len: AtomicUsize,
    flag: AtomicPtr<AtomicBool>,
}

impl Entry {
    const fn free() -> Entry {
        Entry {
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            flag: AtomicPtr::new(std::ptr::null_mut()),
        }
    }
}

static TABLE: [Entry; ENTRIES] = [const { Entry::free() }; ENTRIES];
static WRITER: Mutex<()> = Mutex::new(());
static INSTALL: Once = Once::new();

/// Watches the mapping `start..start + len`.
///
/// # Errors
/// The table is full. The mapping must not be used then: whoever has its file could end the whole daemon.
pub fn watch(start: usize, len: usize, flag: &Flag) -> io::Result<()> {
    INSTALL.call_once(install);
    let _writer = WRITER.lock().unwrap_or_else(PoisonError::into_inner);
    enter(&TABLE, start, len, flag)
}

fn enter(table: &[Entry], start: usize, len: usize, flag: &Flag) -> io::Result<()> {
    let free = table.iter().find(|entry| entry.start.load(Ordering::Relaxed) == 0);
    let entry = free.ok_or_else(|| {
        io::Error::other(format!(
            "all guests together have {} mappings, and no more \
        can be watched for files that are cut short",
            table.len()
        ))
    })?;
    entry.len.store(len, Ordering::Relaxed);
    entry.flag.store(Arc::into_raw(Arc::clone(&flag.0)).cast_mut(), Ordering::Relaxed);
    entry.start.store(start, Ordering::Release);
    Ok(())
}

/// Ends the watch over the mapping that starts at `start`.
pub fn forget(start: usize) {
    let _writer = WRITER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(entry) = TABLE.iter().find(|entry| entry.start.load(Ordering::Relaxed) == start) {
        entry.start.store(0, Ordering::Release);
        let flag = entry.flag.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if !flag.is_null() {
            // SAFETY: the pointer came from `Arc::into_raw` in `watch` and is taken back once.
            drop(unsafe { Arc::from_raw(flag.cast_const()) });
        }
    }
}

fn install() {
    // SAFETY: a zeroed sigaction is a valid one; the handler keeps to what a handler may do.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigbus as extern "C" fn(_, _, _) as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

extern "C" fn on_sigbus(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel hands a valid siginfo to an SA_SIGINFO handler.
    let at = unsafe { (*info).si_addr() } as usize;
    for entry in &TABLE {
        let start = entry.start.load(Ordering::Acquire);
        if start == 0 || at < start || at - start >= entry.len.load(Ordering::Relaxed) {
            continue;
        }
        let flag = entry.flag.load(Ordering::Relaxed);
        // A hole is seldom one page: cover the rest of the mapping, so that a batch faults once.
        let page = at & !0xfff;
        let rest = start + entry.len.load(Ordering::Relaxed) - page;
        // SAFETY: the range lies in a mapping of ours that is watched, hence still mapped; replacing it
        // by anonymous memory keeps every pointer into it valid. `flag` is kept alive by the entry.
        unsafe {
            let new = libc::mmap(
                page as *mut libc::c_void,
                rest,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            );
            if new != libc::MAP_FAILED {
                if !flag.is_null() {
                    (*flag).store(true, Ordering::Relaxed);
                }
                return;
            }
        }
    }
    // Not ours: the default action, when the faulting instruction runs again.
    // SAFETY: resetting a signal's disposition is always allowed.
    unsafe {
        libc::signal(libc::SIGBUS, libc::SIG_DFL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{GuestMap, RegionSpec};
    use rustix::fs::{ftruncate, memfd_create, MemfdFlags};

    #[test]
    fn a_file_cut_short_raises_the_flag_and_reads_as_zero() {
        let fd = memfd_create(c"cut", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 0x10000).unwrap();
        let file: std::fs::File = fd.into();
        let spec =
            RegionSpec { gpa: 0, size: 0x10000, user_addr: 0, offset: 0, file: file.try_clone().unwrap() };
        let map = GuestMap::new(&[spec]).unwrap();
        let piece = map.translate(0x8000, 8, &mut 0).unwrap();
        piece.write(&[7; 8]);
        assert!(!map.is_truncated());
        ftruncate(&file, 0x4000).unwrap();
        let mut bytes = [1; 8];
        piece.read(&mut bytes);
        assert_eq!(bytes, [0; 8]);
        assert!(map.is_truncated());
        let whole = map.translate(0, 8, &mut 0).unwrap();
        assert_eq!(whole.write(&[1; 8]), 8);
    }

    #[test]
    fn a_mapping_that_cannot_be_watched_is_refused() {
        let (table, flag) = ([const { Entry::free() }; 2], Flag::default());
        assert!(enter(&table, 0x1000, 1, &flag).is_ok() && enter(&table, 0x2000, 1, &flag).is_ok());
        let error = enter(&table, 0x3000, 1, &flag).unwrap_err();
        assert!(error.to_string().contains("2 mappings"), "{error}");
        for entry in &table {
            // SAFETY: the pointer that `enter` made, taken back once.
            drop(unsafe { Arc::from_raw(entry.flag.load(Ordering::Relaxed).cast_const()) });
        }
    }
}
