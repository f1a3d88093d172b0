//! The counters file, written. Layout and law: `sidecore_abi::counters`.
//!
//! Invariant of the `unsafe` here: the file is exactly `FILE_SIZE` bytes long and mapped shared for as
//! long as any `Arc<Map>` lives; every offset is computed from a port number below `MAX_PORTS` and a
//! core number below `MAX_CORES`, so every access is inside it and aligned (`Block` is 64-byte aligned
//! and both `HEADER_SIZE` and `SLOT_SIZE` are multiples of 64). Each block has one writer, its core;
//! everything is accessed as `AtomicU64`/`AtomicU32`, so readers in other processes see no torn word.
//! Only its owner may cut the file short (mode 0644); then the daemon dies by SIGBUS.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use rustix::fs::ftruncate;
use sidecore_abi::counters::{
    header, slot, Block, DROPS, DROP_PLACES, FILE_SIZE, HEADER_SIZE, MAGIC, MAX_CORES, MAX_NAME, MAX_PORTS,
    SLOT_HEAD, SLOT_SIZE, VERSION,
};

use crate::count;
use crate::mem::{sparse_file, Mapping};
use crate::observe::account::{Drops, Outcome, PortId, Tally};
use crate::sandbox::open::{allocate, own_file};

const _: () = assert!(HEADER_SIZE % 64 == 0 && SLOT_SIZE % 64 == 0 && SLOT_HEAD % 64 == 0);

struct Map {
    memory: Mapping,
    /// The interrupts that each core sent to all peers: beside the file, whose blocks have no room for it.
    interrupts: [InterruptCounts; MAX_CORES],
}

/// The interrupts that one core sent to all peers. A cache line of its own, which that core alone writes.
#[derive(Default)]
#[repr(align(64))]
struct InterruptCounts {
    occasions: AtomicU64,
    interrupts: AtomicU64,
}

impl InterruptCounts {
    #[inline]
    fn add(&self, occasions: u64, interrupts: u64) {
        if occasions + interrupts > 0 {
            count(&self.occasions, occasions);
            count(&self.interrupts, interrupts);
        }
    }
}

impl Map {
    fn u32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset % 4 == 0 && offset + 4 <= FILE_SIZE);
        // SAFETY: in bounds and aligned, as just checked; atomics tolerate other writers.
        unsafe { AtomicU32::from_ptr(self.memory.base().as_ptr().add(offset).cast()) }
    }

    fn u64(&self, offset: usize) -> &AtomicU64 {
        assert!(offset % 8 == 0 && offset + 8 <= FILE_SIZE);
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.memory.base().as_ptr().add(offset).cast()) }
    }
}

/// The counters file of one daemon.
pub struct CounterFile {
    map: Arc<Map>,
}

impl CounterFile {
    /// Creates the file at `path`, or empties the one that is there, if it is ours alone (`open::own_file`).
    ///
    /// # Errors
    /// What the system says of opening, sizing or mapping it.
    pub fn create(path: &Path) -> io::Result<CounterFile> {
        Self::on(own_file(path, 0o644)?.file)
    }

    /// A counters file in `file`, which is ours; what stood in it goes. It takes all its room now: a full
    /// file system is an error here, and no SIGBUS later.
    ///
    /// # Errors
    /// What the system says of sizing or mapping it.
    pub fn on(file: File) -> io::Result<CounterFile> {
        ftruncate(&file, 0)?;
        allocate(&file, FILE_SIZE as u64)?;
        ftruncate(&file, FILE_SIZE as u64)?;
        Self::map(file)
    }

    /// Whether a process has the file open to write, as its daemon has. `file` is open to read only: the
    /// kernel grants a lease for it if there is no writer. A process that may only read the file cannot make
    /// it look written.
    pub fn is_written(file: &File) -> bool {
        // SAFETY: no pointers. The lease goes when the file is closed.
        let granted = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) };
        granted < 0 && io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock
    }

    /// A counters file without a name, for tests and benchmarks.
    ///
    /// # Errors
    /// What the system says of making or mapping it.
    pub fn anonymous() -> io::Result<CounterFile> {
        Self::map(sparse_file(c"sidecore-counters", FILE_SIZE)?)
    }

    fn map(file: File) -> io::Result<CounterFile> {
        let memory = Mapping::of_file(&file, FILE_SIZE)?;
        let map = Arc::new(Map { memory, interrupts: Default::default() });
        map.u32(header::VERSION).store(VERSION, Ordering::Relaxed);
        map.u32(header::PID).store(std::process::id(), Ordering::Relaxed);
        map.u32(header::REASONS).store(u32::try_from(DROPS.len()).unwrap_or(0), Ordering::Relaxed);
        map.u64(header::MAGIC).store(MAGIC, Ordering::Release);
        Ok(CounterFile { map })
    }

    /// Takes slot `id` for a port: its counters start at zero.
    ///
    /// # Panics
    /// If `id` is not below `MAX_PORTS`; the caller hands out the numbers.
    pub fn open_slot(&self, id: PortId, name: &str) -> PortCounters {
        assert!(usize::from(id.0) < MAX_PORTS);
        let counters =
            PortCounters { map: Arc::clone(&self.map), slot: HEADER_SIZE + usize::from(id.0) * SLOT_SIZE };
        let at = counters.slot;
        for word in (SLOT_HEAD..SLOT_SIZE).step_by(8) {
            self.map.u64(at + word).store(0, Ordering::Relaxed);
        }
        let mut bytes = [0u8; MAX_NAME + 1];
        let len = name.len().min(MAX_NAME);
        bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
        for (i, word) in bytes.chunks_exact(8).enumerate() {
            let mut chunk = [0; 8];
            chunk.copy_from_slice(word);
            self.map.u64(at + slot::NAME + 8 * i).store(u64::from_le_bytes(chunk), Ordering::Relaxed);
        }
        self.map.u32(at + slot::GENERATION).fetch_add(1, Ordering::Relaxed);
        self.map.u32(at + slot::STATE).store(1, Ordering::Release);
        counters
    }

    /// Interrupts that core `core` sent so far, and those that it saved: the peer polled, or one told of
    /// several events.
    pub fn interrupts(&self, core: usize) -> (u64, u64) {
        let Some(counts) = self.map.interrupts.get(core) else { return (0, 0) };
        let sent = counts.interrupts.load(Ordering::Relaxed);
        (sent, counts.occasions.load(Ordering::Relaxed).saturating_sub(sent))
    }

    /// Frees the slot; its last values stay readable until it is taken again.
    pub fn close_slot(&self, counters: &PortCounters) {
        self.map.u32(counters.slot + slot::STATE).store(0, Ordering::Release);
    }
}

/// The counters of one port.
#[derive(Clone)]
pub struct PortCounters {
    map: Arc<Map>,
    slot: usize,
}

impl PortCounters {
    /// The block that I/O core `core` writes. Callers keep to one writer per block.
    #[inline]
    pub fn block(&self, core: usize) -> CoreBlock<'_> {
        let core = core.min(MAX_CORES - 1);
        let at = self.slot + SLOT_HEAD + core * size_of::<Block>();
        // SAFETY: inside the slot and aligned (module invariant); `AtomicU64` has the layout of u64.
        let words = unsafe { &*self.map.memory.base().as_ptr().add(at).cast::<[AtomicU64; WORDS]>() };
        CoreBlock { words, interrupts: &self.map.interrupts[core] }
    }

    /// The sum over all cores.
    pub fn totals(&self) -> Totals {
        let mut sum = [0u64; WORDS];
        for core in 0..MAX_CORES {
            for (total, word) in sum.iter_mut().zip(self.block(core).words) {
                *total += word.load(Ordering::Relaxed);
            }
        }
        Totals::of(sum)
    }
}

const WORDS: usize = size_of::<Block>() / 8;
const DROPS_AT: usize = std::mem::offset_of!(Block, drops) / 8;

/// One core's block: plain loads and stores, since it has one writer.
pub struct CoreBlock<'a> {
    words: &'a [AtomicU64; WORDS],
    interrupts: &'a InterruptCounts,
}

impl CoreBlock<'_> {
    fn add(&self, word: usize, n: u64) {
        count(&self.words[word], n);
    }

    fn add_drops(&self, drops: &Drops) {
        if drops.any() {
            for (place, &n) in drops.counts.iter().enumerate() {
                self.add(DROPS_AT + place, u64::from(n));
            }
        }
    }

    /// Adds what a fetch took.
    #[inline]
    pub fn add_tally(&self, tally: &Tally) {
        self.add(0, tally.frames);
        self.add(1, tally.bytes);
        self.interrupts.add(tally.occasions, tally.interrupts);
        if tally.kicks > 0 {
            self.add(5, tally.kicks);
        }
        if tally.interrupts > 0 {
            self.add(6, tally.interrupts);
        }
        if tally.frames > 0 {
            self.add(7, 1);
        }
        self.add_drops(&tally.drops);
    }

    /// Adds what a delivery did.
    #[inline]
    pub fn add_outcome(&self, outcome: &Outcome) {
        self.add(2, outcome.frames);
        self.add(3, outcome.bytes);
        self.interrupts.add(outcome.occasions, outcome.interrupts);
        if outcome.interrupts > 0 {
            self.add(6, outcome.interrupts);
        }
        self.add_drops(&outcome.drops);
    }

    /// Adds frames that came into being by flooding or segmentation.
    pub fn add_made(&self, n: u64) {
        self.add(4, n);
    }
}

/// A port's counters, all cores together. The words: `sidecore_abi::counters::Block`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of the abi's Block")]
pub struct Totals {
    pub in_frames: u64,
    pub in_bytes: u64,
    pub out_frames: u64,
    pub out_bytes: u64,
    pub made: u64,
    pub kicks: u64,
    pub interrupts: u64,
    pub batches: u64,
    pub drops: [u64; DROP_PLACES],
}

impl Default for Totals {
    fn default() -> Totals {
        Totals::of([0; WORDS])
    }
}

impl Totals {
    /// The words of a block.
    fn of(words: [u64; WORDS]) -> Totals {
        let [in_frames, in_bytes, out_frames, out_bytes, made, kicks, interrupts, batches, drops @ ..] =
            words;
        Totals { in_frames, in_bytes, out_frames, out_bytes, made, kicks, interrupts, batches, drops }
    }

    /// Adds what another port counted.
    pub fn add(&mut self, other: &Totals) {
        self.in_frames += other.in_frames;
        self.in_bytes += other.in_bytes;
        self.out_frames += other.out_frames;
        self.out_bytes += other.out_bytes;
        self.made += other.made;
        self.kicks += other.kicks;
        self.interrupts += other.interrupts;
        self.batches += other.batches;
        for (sum, n) in self.drops.iter_mut().zip(other.drops) {
            *sum += n;
        }
    }

    /// The drops that happened, with their names.
    pub fn named_drops(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        DROPS.iter().zip(self.drops).filter(|(_, n)| *n > 0).map(|((_, name, _), n)| (*name, n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::account::DropReason;

    #[test]
    fn totals_are_the_sum_over_cores() {
        let file = CounterFile::anonymous().unwrap();
        let port = file.open_slot(PortId(3), "a");
        let mut tally = Tally { frames: 2, bytes: 128, ..Tally::default() };
        tally.drops.add(DropReason::TooShort, 1);
        port.block(0).add_tally(&tally);
        port.block(15).add_tally(&tally);
        let mut outcome = Outcome::new();
        outcome.delivered(60);
        outcome.dropped(0, DropReason::RingFull);
        port.block(1).add_outcome(&outcome);
        port.block(1).add_made(7);
        let sum = port.totals();
        assert_eq!(
            (sum.in_frames, sum.in_bytes, sum.out_frames, sum.out_bytes, sum.made),
            (4, 256, 1, 60, 7)
        );
        assert_eq!(sum.named_drops().collect::<Vec<_>>(), [("ring_full", 1), ("too_short", 2)]);
        assert_eq!(file.open_slot(PortId(3), "b").totals(), Totals::default());
    }

    #[test]
    fn interrupts_that_were_not_sent_are_saved() {
        let file = CounterFile::anonymous().unwrap();
        let (a, b) = (file.open_slot(PortId(1), "a"), file.open_slot(PortId(2), "b"));
        a.block(0).add_tally(&Tally { occasions: 5, interrupts: 1, ..Tally::default() });
        let mut outcome = Outcome::new();
        (outcome.occasions, outcome.interrupts) = (2, 1);
        b.block(0).add_outcome(&outcome);
        (outcome.occasions, outcome.interrupts) = (0, 4);
        b.block(3).add_outcome(&outcome);
        let told = [0, 3, 1, MAX_CORES].map(|core| file.interrupts(core));
        assert_eq!(told, [(2, 5), (4, 0), (0, 0), (0, 0)]);
    }
}
