//! Watching for I/O cores that stand still because of an owner's memory.
//!
//! Theory of operation. Each core publishes what it is doing ([`Beat`]): a number that changes with every task that it
//! turns to, the owner of the task, and the owner that it copies to. A thread of the control plane reads these fields
//! ([`LOOK`]). A core is stalled if its number has not changed for [`STALL`], and the kernel says at each look of that
//! time that it waits for a page, or is busy with pages (its time in the kernel grows). A core that merely has no
//! processor is not stalled. A stall counts at its owner: at the sender if its own task was visited, at both owners during a copy,
//! because the thread cannot tell in whose memory the core waits. An owner whose own memory stalls cores again and
//! again is stopped ([`Owner::stop_stalling`]). A task that touches only another owner's memory says so ([`at_owner`]):
//! then the stall counts at that owner.
//!
//! While no core has worked since the last look, the thread looks less and less often, at last once a second, so an
//! idle engine sleeps.
//!
//! A page fault cannot be interrupted, and tasks cannot be taken from a core in the middle of a visit. So the core's
//! other tasks wait, too. The core gets no new tasks meanwhile (`balance`).

use std::cell::{Cell, OnceCell};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::task::Owner;

/// How often cores are looked at while one is at work.
const LOOK: Duration = Duration::from_millis(20);
/// And while none has been for a while.
const IDLE_LOOK: Duration = Duration::from_secs(1);
/// A visit that waits for as long is a stall.
const STALL: Duration = Duration::from_millis(50);
/// How often the log says of one owner that it is slow.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// What a core is at: 16 bits of its owner and one, 16 of the receiver and one, 32 of a number. Written by the core alone.
#[derive(Debug, Default)]
pub struct Beat(AtomicU64);

thread_local! {
    /// That of the calling thread, if it is an I/O core.
    static OWN: OnceCell<Arc<Beat>> = const { OnceCell::new() };
}

/// Runs `work`, which touches memory of `owner` and nothing of the owner whose task the calling I/O core is at. On other threads it just runs.
#[inline]
pub(crate) fn at_owner<T>(owner: u16, work: impl FnOnce() -> T) -> T {
    OWN.with(|own| {
        let Some(beat) = own.get() else { return work() };
        let before = beat.word();
        beat.begin(owner);
        let done = work();
        beat.go_on(before);
        done
    })
}

impl Beat {
    /// The calling thread is the core that writes it.
    pub(super) fn adopt(self: &Arc<Beat>) {
        OWN.with(|own| drop(own.set(Arc::clone(self))));
    }

    /// The core is again at what `before` says.
    #[inline]
    fn go_on(&self, before: u64) {
        let number = (self.word() >> 32).wrapping_add(1);
        self.0.store((number << 32) | (before & 0xffff_ffff), Ordering::Relaxed);
    }

    /// The core turns to a task of `owner`.
    #[inline]
    pub(super) fn begin(&self, owner: u16) {
        let number = (self.0.load(Ordering::Relaxed) >> 32).wrapping_add(1);
        self.0.store((number << 32) | (u64::from(owner) + 1), Ordering::Relaxed);
    }

    /// It copies to `owner` from now on; `None`: to none.
    #[inline]
    pub(crate) fn towards(&self, owner: Option<u16>) {
        let word = self.0.load(Ordering::Relaxed) & !0xffff_0000;
        let owner = owner.map_or(0, |owner| u64::from(owner) + 1);
        self.0.store(word | ((owner & 0xffff) << 16), Ordering::Relaxed);
    }

    /// It looks at the receivers of what the owner sends.
    #[inline]
    pub(crate) fn elsewhere(&self) {
        self.towards(Some(u16::MAX - 1));
    }

    /// It is at nothing that belongs to an owner.
    #[inline]
    pub(super) fn pause(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) & !0xffff_ffff, Ordering::Relaxed);
    }

    fn word(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Whether it is at something that belongs to an owner.
    pub(super) fn is_at_work(&self) -> bool {
        owners_of(self.word())[0].is_some()
    }
}

#[expect(clippy::cast_possible_truncation, reason = "16 bits of a word")]
fn owners_of(word: u64) -> [Option<u16>; 2] {
    [word as u16, (word >> 16) as u16].map(|number| number.checked_sub(1))
}

/// A core, as the thread sees it.
struct WatchedCore {
    beat: Arc<Beat>,
    word: u64,
    /// Its number has not changed since then, and it has waited for a page at every look behind it.
    since: Instant,
    told: bool,
}

type Owners = Arc<Mutex<HashMap<u16, Weak<dyn Owner>>>>;

/// What the thread knows.
struct Looker {
    cores: Vec<WatchedCore>,
    owners: Owners,
    said: HashMap<u16, (Instant, u64)>,
}

impl Looker {
    fn new(beats: Vec<Arc<Beat>>, owners: Owners, now: Instant) -> Looker {
        let seen = |beat| WatchedCore { beat, word: 0, since: now, told: false };
        Looker { cores: beats.into_iter().map(seen).collect(), owners, said: HashMap::new() }
    }

    /// Looks at all cores at `now`; `waits` tells whether a core waits for a page. True if one is at work, or has been since the last look.
    fn look(&mut self, now: Instant, mut waits: impl FnMut(usize) -> bool) -> bool {
        let mut busy = false;
        let mut stalls = Vec::new();
        for (number, core) in self.cores.iter_mut().enumerate() {
            let word = core.beat.word();
            let [source, receiver] = owners_of(word);
            busy |= source.is_some() || core.word >> 32 != word >> 32;
            let Some(source) = source else {
                core.word = word;
                continue;
            };
            if core.word != word {
                // A core that moves raises no question.
                (core.word, core.since, core.told) = (word, now, false);
                continue;
            }
            if !waits(number) {
                core.since = now;
            }
            let time = now.saturating_duration_since(core.since);
            if !core.told && time >= STALL {
                core.told = true;
                stalls.push((number, source, receiver, time));
            }
        }
        for (core, source, receiver, time) in stalls {
            self.stalled(core, source, receiver, time, now);
        }
        busy
    }

    fn owner(&self, id: u16) -> Option<Arc<dyn Owner>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner).get(&id)?.upgrade()
    }

    fn stalled(&mut self, core: usize, source: u16, receiver: Option<u16>, time: Duration, now: Instant) {
        let Some(owner) = self.owner(source) else { return };
        if let Some(receiver) = receiver.filter(|receiver| *receiver != source) {
            owner.slow().stalled_with_another();
            let other = self.owner(receiver);
            let name = other.as_ref().map_or("?", |other| other.name());
            if let Some(other) = &other {
                other.slow().stalled_with_another();
            }
            tracing::warn!(port = %owner.name(), core, to = name, "the core has waited {time:?} for the memory of one of the two ports");
            return;
        }
        tracing::warn!(port = %owner.name(), core, "the core has waited {time:?} for the port's memory");
        if owner.slow().stalled(now) {
            owner.stop_stalling();
        }
    }

    /// Says which owners were slow, of each once a minute.
    fn tell_slow(&mut self, now: Instant) {
        let owners: Vec<Arc<dyn Owner>> = {
            let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
            owners.retain(|_, owner| owner.strong_count() > 0);
            owners.values().filter_map(Weak::upgrade).collect()
        };
        self.said.retain(|id, _| owners.iter().any(|owner| owner.number() == *id));
        for owner in owners {
            let count = owner.slow().count();
            let (at, before) = self.said.get(&owner.number()).copied().unwrap_or((now, 0));
            if count.batches == before || (before > 0 && now.saturating_duration_since(at) < SAY_EVERY) {
                continue;
            }
            self.said.insert(owner.number(), (now, count.batches));
            let (more, longest) = (count.batches - before, count.longest_us);
            tracing::info!(port = %owner.name(), more, longest_us = longest, "batches took longer than 1 ms of an I/O core");
        }
    }
}

/// A thread, as the kernel sees it: whether it waits for a page (or a disk), or has the kernel find and clear pages.
struct ThreadState {
    file: Option<File>,
    /// Its time in the kernel, as it was last.
    system: Cell<u64>,
}

impl ThreadState {
    fn of(thread: i32) -> ThreadState {
        // Opened once: later there may be no permission to.
        let file = File::open(format!("/proc/self/task/{thread}/stat")).ok();
        let state = ThreadState { file, system: Cell::new(0) };
        state.waits();
        state
    }

    /// Whether it waits now, or has been in the kernel since the last look: what it does there for its tasks takes microseconds.
    fn waits(&self) -> bool {
        let mut text = [0; 512];
        let Some(got) = self.file.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()) else {
            return false;
        };
        // "number (name) state ppid pgrp session tty tpgid flags minflt cminflt majflt cmajflt utime stime …" (proc(5)): the
        // name may hold anything.
        let text = text.get(..got).unwrap_or_default();
        let name_end = text.iter().rposition(|byte| *byte == b')');
        let Some(rest) = name_end.and_then(|end| text.get(end + 2..)) else { return false };
        let system = rest.split(|byte| *byte == b' ').nth(12).and_then(|word| std::str::from_utf8(word).ok());
        let system = system.and_then(|word| word.parse().ok()).unwrap_or(0);
        let grown = self.system.replace(system) < system;
        rest.first() == Some(&b'D') || grown
    }
}

/// The thread.
pub(super) struct Watchdog {
    owners: Owners,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Watches cores by their words and the numbers of their threads.
    pub(super) fn start(cores: Vec<(Arc<Beat>, i32)>) -> io::Result<Watchdog> {
        let owners = Owners::default();
        let (stop, stopped) = channel();
        let states: Vec<ThreadState> = cores.iter().map(|(_, thread)| ThreadState::of(*thread)).collect();
        let beats = cores.into_iter().map(|(beat, _)| beat).collect();
        let looker = Looker::new(beats, Arc::clone(&owners), Instant::now());
        let thread = std::thread::Builder::new().name("core-watch".to_owned());
        let thread = thread.spawn(move || {
            crate::mem::first_act();
            run(looker, &states, &stopped);
        })?;
        Ok(Watchdog { owners, stop: Some(stop), thread: Some(thread) })
    }

    /// An owner that cores will serve.
    pub(super) fn add(&self, owner: &Arc<dyn Owner>) {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        owners.insert(owner.number(), Arc::downgrade(owner));
    }
}

fn run(mut looker: Looker, states: &[ThreadState], stopped: &Receiver<()>) {
    let (mut pause, mut told) = (IDLE_LOOK, Instant::now());
    while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let now = Instant::now();
        let busy = looker.look(now, |core| states.get(core).is_some_and(ThreadState::waits));
        if now.saturating_duration_since(told) >= IDLE_LOOK {
            looker.tell_slow(now);
            told = now;
        }
        pause = if busy { LOOK } else { (2 * pause).min(IDLE_LOOK) };
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by the thread itself.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Guest;
    use super::*;

    struct Rig {
        beat: Arc<Beat>,
        guests: [Arc<Guest>; 2],
        looker: Looker,
        now: Instant,
    }

    impl Rig {
        fn new() -> Rig {
            let guests = [3, 7].map(|number| Arc::new(Guest { number, ..Guest::default() }));
            let (beat, now) = (Arc::<Beat>::default(), Instant::now());
            let owner = |guest: &Arc<Guest>| {
                let owner: Weak<dyn Owner> = Arc::<Guest>::downgrade(guest);
                (guest.number, owner)
            };
            let known = guests.iter().map(owner).collect();
            let looker = Looker::new(vec![Arc::clone(&beat)], Arc::new(Mutex::new(known)), now);
            Rig { beat, guests, looker, now }
        }

        /// So many looks at a core that does not move.
        fn looks(&mut self, count: u32, waits: bool) -> bool {
            (0..count).fold(false, |_, _| {
                self.now += LOOK;
                self.looker.look(self.now, |_| waits)
            })
        }

        fn stalls(&self) -> [(u64, u64); 2] {
            self.guests.each_ref().map(|guest| {
                let count = guest.slow.count();
                (count.stalls, count.shared_stalls)
            })
        }

        fn stopped(&self) -> [bool; 2] {
            self.guests.each_ref().map(|guest| guest.stopped.load(Ordering::Relaxed))
        }
    }

    #[test]
    fn a_core_that_waits_in_an_owners_memory_is_a_stall() {
        let mut rig = Rig::new();
        rig.beat.begin(3);
        assert!(rig.looks(3, true));
        assert_eq!(rig.stalls(), [(0, 0), (0, 0)], "not yet");
        assert!(rig.looks(100, true));
        assert_eq!(rig.stalls(), [(1, 0), (0, 0)], "and then once");
        // The next one, which is not the owner's fault: the core is not being run.
        rig.beat.begin(3);
        rig.looks(100, false);
        // And one that copies.
        rig.beat.begin(3);
        rig.beat.towards(Some(7));
        rig.looks(100, true);
        assert_eq!(rig.stalls(), [(1, 1), (0, 1)]);
        rig.beat.towards(None);
        rig.looks(100, true);
        assert_eq!(rig.stalls(), [(2, 1), (0, 1)], "what it holds is given back");
        rig.beat.pause();
        assert!(!rig.looks(100, true));
        assert_eq!(rig.stalls(), [(2, 1), (0, 1)]);
        assert_eq!(rig.stopped(), [false, false]);
    }

    #[test]
    fn a_core_that_waits_after_it_had_no_processor_is_a_stall() {
        let mut rig = Rig::new();
        rig.beat.begin(3);
        rig.looks(5, false);
        rig.looks(2, true);
        assert_eq!(rig.stalls(), [(0, 0), (0, 0)], "not yet");
        rig.looks(2, true);
        assert_eq!(rig.stalls(), [(1, 0), (0, 0)]);
    }

    /// It sleeps between two frames, and each look finds it asleep.
    #[test]
    fn a_core_that_was_at_work_since_the_last_look_is_at_work() {
        let mut rig = Rig::new();
        assert!(!rig.looks(1, false));
        for _ in 0..3 {
            rig.beat.begin(3);
            rig.beat.pause();
            assert!(rig.looks(1, false));
        }
        assert!(!rig.looks(1, false), "nothing since");
    }

    #[test]
    fn who_stalls_again_and_again_is_stopped_and_its_partner_is_not() {
        let mut rig = Rig::new();
        for _ in 0..20 {
            rig.beat.begin(3);
            rig.beat.towards(Some(7));
            rig.looks(10, true);
        }
        assert_eq!(rig.stopped(), [false, false]);
        for _ in 0..20 {
            rig.beat.begin(7);
            rig.looks(10, true);
        }
        assert_eq!(rig.stopped(), [false, true]);
    }

    /// The receiver of a pipe, in whose memory its sender's task looks.
    #[test]
    fn a_stall_in_anothers_memory_is_that_ones() {
        let mut rig = Rig::new();
        at_owner(7, || assert!(!rig.beat.is_at_work(), "this thread is no core yet"));
        rig.beat.adopt();
        for _ in 0..20 {
            let beat = Arc::clone(&rig.beat);
            beat.begin(3);
            at_owner(7, || rig.looks(10, true));
            // Both together would be a stall.
            rig.looks(2, true);
        }
        assert_eq!((rig.stalls(), rig.stopped()), ([(0, 0), (20, 0)], [false, true]));
        rig.looks(10, true);
        assert_eq!(rig.stalls(), [(1, 0), (20, 0)], "it is at its own again");
    }

    #[test]
    fn the_state_of_a_thread_is_read() {
        let state = ThreadState::of(rustix::thread::gettid().as_raw_nonzero().get());
        assert!(state.file.is_some() && (0..100).any(|_| !state.waits()), "it runs");
        assert!(!ThreadState::of(0).waits());
        // A thread that has its pages cleared all the time.
        let end = Instant::now() + Duration::from_secs(20);
        while !state.waits() {
            assert!(Instant::now() < end, "no time in the kernel");
            drop(std::hint::black_box(vec![1u8; 64 << 20]));
        }
    }
}
