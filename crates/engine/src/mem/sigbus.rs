//! A memory file that gives no page any more: the port dies, the daemon lives.
//!
//! Theory of operation. Touching a page that its file no longer backs raises SIGBUS on the thread that
//! touched it, in the middle of a copy: the file was cut short, its pool of huge pages is exhausted, or the
//! page itself has failed. The handler looks the address up in a fixed table of watched mappings. A hit: it
//! raises the map's flag, puts anonymous pages over the rest of the mapping and returns, and the copy goes
//! on with zeros; the queue sees the flag after its batch and stops with `Fault::MemoryTruncated`. A miss:
//! the default action, death, as for any other bug. (A disk's own file is watched, too: there the kernel does
//! the copy again, see `resident`.)
//!
//! The kernel replaces a mapping of huge pages in whole huge pages only (mmap(2): EINVAL otherwise), and
//! reports the very byte that was touched. So an entry keeps its mapping's page size.
//!
//! A reader of the table may be interrupted by a writer. Each entry has a sequence lock: an entry that
//! changed while it was read is passed over. It cannot be the one that is looked for, since a mapping that is
//! being touched is neither new nor on its way out.
//!
//! Each mapping may need a second one when it is repaired, and a process may have `vm.max_map_count` of them
//! (65,530 by default): that bounds the table. A port that wants very many leaves room for others
//! ([`share`]).
//!
//! Invariants: the handler calls nothing but `mmap` and `signal`, and touches nothing but atomics in
//! statics (both are async-signal-safe). An entry's `flag` points into an `Arc` that the entry itself
//! keeps alive until its [`WatchedMapping`] ends, and that is before the mapping goes away.

use std::sync::atomic::{fence, AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once};

use super::terms::Terms;

/// Raised when memory was lost.
#[derive(Clone, Debug, Default)]
pub struct Flag(Arc<AtomicBool>);

impl Flag {
    /// Whether it is raised.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Most watched mappings. Repaired, they are twice as many, half of what a process may have.
const ENTRIES: usize = 16_384;
/// Bytes that are repaired at once where not all can be.
const PART: usize = 2 << 20;
/// Mappings that the rest of the process may need.
const RESERVE: usize = 4_096;
/// Most mappings of one port: two tables of 509 regions (what vhost in Linux allows), the old one and the new
/// one during a change, and some small files.
const PORT: usize = 1_088;
/// What a port may have when half of the table is taken, and when a quarter is left. VMMs have ten or twenty.
const SHARES: [usize; 2] = [128, 32];

/// How many mappings a port may have while `taken` of `all` entries are: as many as vhost allows while the
/// table is half empty, enough for any usual VMM until it is full. So a few ports that want all there is keep
/// no other out.
fn share(taken: usize, all: usize) -> usize {
    match all.saturating_sub(taken) {
        free if free > all / 2 => PORT,
        free if free > all / 4 => SHARES[0],
        _ => SHARES[1],
    }
}

/// Why a mapping cannot be watched.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum WatchError {
    /// The port has its share.
    #[error("memory_share: this port has {has} mappings; while all ports have {taken} of {all}, one may have {share}")]
    Share {
        /// Mappings of this port.
        has: usize,
        /// Mappings of all ports.
        taken: usize,
        /// Mappings that there can be.
        all: usize,
        /// Mappings that this port may have.
        share: usize,
    },
    /// No port can have more.
    #[error("memory_mappings: all ports together have {0} mappings, and no more can be watched")]
    Full(usize),
}

struct Entry {
    /// Odd while the entry is written.
    sequence: AtomicU32,
    /// Zero: the entry is free.
    start: AtomicUsize,
    len: AtomicUsize,
    page: AtomicUsize,
    flag: AtomicPtr<AtomicBool>,
}

/// An entry, as it was at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EntrySnapshot {
    start: usize,
    len: usize,
    page: usize,
    flag: *mut AtomicBool,
}

impl Entry {
    const fn free() -> Entry {
        Entry {
            sequence: AtomicU32::new(0),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            page: AtomicUsize::new(0),
            flag: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// One writer at a time: the holder of the table's lock.
    fn write(&self, new: EntrySnapshot) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.start.store(new.start, Ordering::Relaxed);
        self.len.store(new.len, Ordering::Relaxed);
        self.page.store(new.page, Ordering::Relaxed);
        self.flag.store(new.flag, Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }

    /// What stands there; none if it is free or changes at this moment.
    fn read(&self) -> Option<EntrySnapshot> {
        let before = self.sequence.load(Ordering::Acquire);
        let seen = EntrySnapshot {
            start: self.start.load(Ordering::Relaxed),
            len: self.len.load(Ordering::Relaxed),
            page: self.page.load(Ordering::Relaxed),
            flag: self.flag.load(Ordering::Relaxed),
        };
        fence(Ordering::Acquire);
        let same = before % 2 == 0 && self.sequence.load(Ordering::Relaxed) == before;
        (same && seen.start != 0).then_some(seen)
    }
}

/// Numbers of entries that were given back; those from `used` on were never taken.
struct Places {
    back: Vec<usize>,
    taken: usize,
}

struct Table<const N: usize> {
    entries: [Entry; N],
    /// Entries that were ever taken: the handler looks at no more.
    used: AtomicUsize,
    places: Mutex<Places>,
}

impl<const N: usize> Table<N> {
    const fn new() -> Self {
        let places = Places { back: Vec::new(), taken: 0 };
        Table { entries: [const { Entry::free() }; N], used: AtomicUsize::new(0), places: Mutex::new(places) }
    }

    fn enter(&self, all: usize, terms: &Terms, seen: EntrySnapshot) -> Result<usize, WatchError> {
        let mut places = crate::lock(&self.places);
        let (taken, all) = (places.taken, all.min(N));
        if taken >= all {
            return Err(WatchError::Full(taken));
        }
        let (has, share) = (terms.watched(), share(taken, all));
        if has >= share {
            return Err(WatchError::Share { has, taken, all, share });
        }
        let place = places.back.pop().unwrap_or_else(|| self.used.load(Ordering::Relaxed));
        let Some(entry) = self.entries.get(place) else { return Err(WatchError::Full(taken)) };
        places.taken += 1;
        terms.watch(1);
        entry.write(seen);
        self.used.fetch_max(place + 1, Ordering::Release);
        Ok(place)
    }

    fn leave(&self, place: usize, terms: &Terms) {
        let mut places = crate::lock(&self.places);
        let Some(entry) = self.entries.get(place) else { return };
        let flag = entry.flag.load(Ordering::Relaxed);
        entry.write(EntrySnapshot { start: 0, len: 0, page: 0, flag: std::ptr::null_mut() });
        places.back.push(place);
        places.taken = places.taken.saturating_sub(1);
        terms.watch(-1);
        if !flag.is_null() {
            // SAFETY: the pointer came from `Arc::into_raw` in `watch` and is taken back once.
            drop(unsafe { Arc::from_raw(flag.cast_const()) });
        }
    }

    /// The entry that `at` lies in.
    fn find(&self, at: usize) -> Option<EntrySnapshot> {
        let entries = self.entries.get(..self.used.load(Ordering::Acquire))?;
        let inside = |seen: &EntrySnapshot| at >= seen.start && at - seen.start < seen.len;
        entries.iter().filter_map(Entry::read).find(inside)
    }
}

static TABLE: Table<ENTRIES> = Table::new();
static ALL: AtomicUsize = AtomicUsize::new(ENTRIES);
static INSTALL: Once = Once::new();
static NOTED: AtomicU64 = AtomicU64::new(0);

/// A watched mapping. Ends when it is dropped, which has to be before the mapping does.
#[derive(Debug)]
pub struct WatchedMapping {
    place: usize,
    terms: Terms,
}

impl Drop for WatchedMapping {
    fn drop(&mut self) {
        TABLE.leave(self.place, &self.terms);
    }
}

/// Watches the mapping `start..start + len` of pages of `page` bytes, for the port that `terms` are those of.
///
/// # Errors
/// There are too many. The mapping must not be used then: a process that has its file could end the whole
/// daemon.
pub fn watch(
    start: usize,
    len: usize,
    page: usize,
    flag: &Flag,
    terms: &Terms,
) -> Result<WatchedMapping, WatchError> {
    prepare();
    let raw = Arc::into_raw(Arc::clone(&flag.0)).cast_mut();
    let entered =
        TABLE.enter(ALL.load(Ordering::Relaxed), terms, EntrySnapshot { start, len, page, flag: raw });
    match entered {
        Ok(place) => Ok(WatchedMapping { place, terms: terms.clone() }),
        Err(e) => {
            // SAFETY: the pointer of above, of which there is no copy.
            drop(unsafe { Arc::from_raw(raw.cast_const()) });
            Err(e)
        }
    }
}

/// Memory errors that the machine has reported and that no thread has run into yet.
pub fn noted() -> u64 {
    NOTED.load(Ordering::Relaxed)
}

/// Does once what the first mapping that is watched needs.
pub fn prepare() {
    INSTALL.call_once(install);
}

fn install() {
    let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    if let Some(most) = most.and_then(|text| text.trim().parse::<usize>().ok()) {
        ALL.store((most.saturating_sub(RESERVE) / 2).clamp(64, ENTRIES), Ordering::Relaxed);
    }
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
    let (at, code) = unsafe { ((*info).si_addr() as usize, (*info).si_code) };
    if code == libc::BUS_MCEERR_AO {
        // "Action optional" (sigaction(2)): a page has failed that no thread touched. A thread that does gets
        // a SIGBUS of its own.
        NOTED.fetch_add(1, Ordering::Relaxed);
        return;
    }
    if let Some(seen) = TABLE.find(at) {
        // First of all: a thread that reads the page put there finds the flag up.
        if !seen.flag.is_null() {
            // SAFETY: the entry keeps it alive.
            unsafe { (*seen.flag).store(true, Ordering::SeqCst) };
        }
        // A hole is seldom one page: cover the rest of the mapping, so that a batch faults once. It may be
        // terabytes, which counts for nothing if they are shared memory; as private memory they would leave
        // nothing for anything else (RLIMIT_DATA). Where they are too many all the same
        // (vm.overcommit_memory=2) a batch gets what it touches, bit by bit.
        let page = at & !(seen.page - 1);
        let rest = seen.start + seen.len - page;
        for len in [rest, rest.min(seen.page.max(PART)), seen.page] {
            // SAFETY: the range lies in a mapping of ours that is watched, hence still mapped; replacing it
            // by anonymous memory keeps every pointer into it valid.
            unsafe {
                let new = libc::mmap(
                    page as *mut libc::c_void,
                    len,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_FIXED | libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                    -1,
                    0,
                );
                if new != libc::MAP_FAILED {
                    return;
                }
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
mod tests;
