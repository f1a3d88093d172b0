//! Time that an I/O core's thread lost: another program had its processor, or a hypervisor below did.
//!
//! Theory of operation. An act that took long may have been slow, or its thread was not run. The kernel knows
//! how long a thread has waited for a processor (proc(5), `schedstat`), and how many pages it had to find for
//! it. A thread of the control plane (`core::watch`) writes that down every [`EVERY`], while the core is at
//! work. A core compares with the last note from before an act, and only after an act that took long; acts
//! within one another, which end together, share what it reads ([`FRESH`]). So a core at work makes no system
//! call for this, unless a visit was longer than its turn.
//!
//! A reservation that is used up, or a limit of a control group, is no waiting to the kernel. So the length
//! of a visit ([`lost_of`]) is compared with the thread's time on processors, which the core asks for behind
//! each visit that counts. What is missing it has lost, if it did not give its processor up: a thread that
//! slept, or had to wait for a page, did.
//!
//! A process that is stopped (SIGSTOP) makes no notes: an act in which one is missing is entered in no
//! account.
//!
//! A hypervisor takes processors away without telling anyone. But touching memory takes long only where a
//! page is missing: where the kernel found none, the time was the hypervisor's.

use std::cell::{Cell, OnceCell};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::ticks::{thread_time, ticks, ticks_in, time_of};

/// How often a note is made.
pub const EVERY: Duration = Duration::from_millis(10);
/// An act that took longer without a note in it: the thread that makes notes did not run either, so the whole
/// process was stopped.
const UNNOTED: Duration = Duration::from_millis(15);
/// What was read so long ago still holds for an act that took long.
const FRESH: Duration = Duration::from_micros(250);
/// What the thread was asked this long before a visit is near enough to its begin.
const LATELY: Duration = Duration::from_millis(1);
/// Notes that are kept: an act that took longer is compared with the first one.
const KEPT: usize = 64;

/// What the kernel has counted of a thread.
#[derive(Clone, Copy, Debug, Default)]
struct Note {
    /// When: ticks.
    at: u64,
    /// Nanoseconds that it had a processor, and that it waited for one.
    ran_ns: u64,
    waited_ns: u64,
    /// Pages that were found for it, and those of them that had to be read from somewhere.
    pages: u64,
    read: u64,
}

/// A thread's time, asked by itself.
#[derive(Clone, Copy, Debug)]
struct Asked {
    /// When: ticks.
    at: u64,
    had_ns: u64,
    /// How often it has given its processor up.
    waits: u64,
}

/// An I/O core's thread, as the kernel sees it.
pub struct CoreTime {
    schedstat: File,
    stat: File,
    notes: Mutex<Vec<Note>>,
}

thread_local! {
    /// That of the calling thread, if it is an I/O core.
    static OWN: OnceCell<Arc<CoreTime>> = const { OnceCell::new() };
    /// What it has read last of itself.
    static LAST: Cell<Note> = const { Cell::new(Note { at: 0, ran_ns: 0, waited_ns: 0, pages: 0, read: 0 }) };
    /// What it had when it was asked last.
    static ASKED: Cell<Asked> = const { Cell::new(Asked { at: 0, had_ns: 0, waits: 0 }) };
}

impl CoreTime {
    /// That of the calling thread, which is an I/O core from now on.
    ///
    /// # Errors
    /// There is no /proc.
    pub fn of_this_thread() -> io::Result<Arc<CoreTime>> {
        // Opened once: later there may be no permission to.
        let open = |name| File::open(format!("/proc/thread-self/{name}"));
        let (schedstat, stat) = (open("schedstat")?, open("stat")?);
        let time = Arc::new(CoreTime { schedstat, stat, notes: Mutex::new(Vec::with_capacity(KEPT)) });
        time.note();
        OWN.with(|own| drop(own.set(Arc::clone(&time))));
        Ok(time)
    }

    /// Writes down where the thread is: for another thread, now and then.
    pub fn note(&self) {
        let Some(note) = self.look() else { return };
        let mut notes = crate::lock(&self.notes);
        if notes.len() == KEPT {
            notes.remove(0);
        }
        notes.push(note);
    }

    fn look(&self) -> Option<Note> {
        let at = ticks();
        // "time on the processor, time waited for one, turns"
        let [ran_ns, waited_ns] = word(&self.schedstat, |text| {
            let mut words = text.split(' ');
            Some([words.next()?.parse().ok()?, words.next()?.parse().ok()?])
        })?;
        // "number (name) state ppid pgrp session tty tpgid flags minflt cminflt majflt …": the name may hold
        // anything.
        let [found, read] = word(&self.stat, |text| {
            let mut words = text.rsplit_once(") ")?.1.split(' ');
            Some([words.nth(7)?.parse().ok()?, words.nth(1)?.parse().ok()?])
        })?;
        Some(Note { at, ran_ns, waited_ns, pages: found + read, read })
    }

    /// The last note from before `begun`, and what the kernel says now.
    fn since(&self, begun: u64) -> Option<(Note, Note)> {
        let mut now = LAST.get();
        let since = now.at.wrapping_sub(begun);
        if since > u64::MAX / 2 || ticks().wrapping_sub(now.at) > ticks_in(FRESH) {
            now = self.look()?;
            LAST.set(now);
        }
        let notes = crate::lock(&self.notes);
        let before =
            notes.iter().rev().find(|note| note.at.wrapping_sub(begun) > u64::MAX / 2 || note.at == begun);
        Some((*before.or(notes.first())?, now))
    }
}

/// What `read` finds in the first bytes of `file`.
fn word<T>(file: &File, read: impl FnOnce(&str) -> Option<T>) -> Option<T> {
    let mut text = [0; 512];
    let got = file.read_at(&mut text, 0).ok()?;
    read(std::str::from_utf8(text.get(..got)?).ok()?.trim_end())
}

/// Ticks of what the calling I/O core did since `begun` that were spent on that, at most. `touch`: it waited
/// for pages, if for anything; else it had the processor all the time. `None`: this thread is no I/O core.
pub fn own(begun: u64, touch: bool) -> Option<u64> {
    let took = ticks().wrapping_sub(begun);
    OWN.with(|own| {
        let (before, now) = own.get()?.since(begun)?;
        let noted = crate::lock(&own.get()?.notes).last().map_or(0, |note| note.at);
        if took > ticks_in(UNNOTED) && noted.wrapping_sub(begun) > u64::MAX / 2 {
            return Some(0);
        }
        // Pages from swap are the host's matter. Where no page was missing, no memory was slow.
        if touch && (now.read != before.read || now.pages == before.pages) {
            return Some(0);
        }
        let passed = |now: u64, before: u64| ticks_in(Duration::from_nanos(now.saturating_sub(before)));
        let had = took.saturating_sub(passed(now.waited_ns, before.waited_ns));
        Some(if touch { had } else { had.min(passed(now.ran_ns, before.ran_ns)) })
    })
}

/// Nanoseconds of the last `ns`, at most, in which the calling I/O core had no processor.
pub fn lost_of(ns: u64) -> u64 {
    let (had_ns, waits) = thread_time();
    let now = Asked { at: ticks(), had_ns, waits };
    let before = ASKED.replace(now);
    let passed = time_of(now.at.wrapping_sub(before.at));
    let ran = Duration::from_nanos(now.had_ns.saturating_sub(before.had_ns));
    if now.waits == before.waits && passed <= Duration::from_nanos(ns) + LATELY {
        return u64::try_from(passed.saturating_sub(ran).as_nanos()).unwrap_or(u64::MAX).min(ns);
    }
    let begun = now.at.wrapping_sub(ticks_in(Duration::from_nanos(ns)));
    let waited = OWN.with(|own| {
        let (before, now) = own.get()?.since(begun)?;
        Some(now.waited_ns.saturating_sub(before.waited_ns))
    });
    waited.unwrap_or(0).min(ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two threads share a processor, and neither waits for anything: each has lost what the other one had.
    #[test]
    fn time_in_which_another_thread_ran_is_lost_and_ones_own_work_is_not() {
        use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};
        let all = sched_getaffinity(None).unwrap();
        let cpu = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap();
        let busy = move || {
            let mut one = CpuSet::new();
            one.set(cpu);
            sched_setaffinity(None, &one).unwrap();
            CoreTime::of_this_thread().unwrap();
            let (begun, long) = (ticks(), ticks_in(Duration::from_millis(400)));
            while ticks().wrapping_sub(begun) < long {
                std::hint::spin_loop();
            }
            (own(begun, false).unwrap(), lost_of(400_000_000))
        };
        let threads = [std::thread::spawn(busy), std::thread::spawn(busy)];
        let each = threads.map(|thread| thread.join().unwrap());
        let (most, least) = (ticks_in(Duration::from_millis(380)), 20_000_000);
        assert!(each.iter().any(|(own, lost)| *own < most && *lost > least), "{each:?}");
    }

    #[test]
    fn memory_is_slow_only_where_pages_were_missing() {
        std::thread::spawn(|| {
            let time = CoreTime::of_this_thread().unwrap();
            let wait = || std::thread::sleep(Duration::from_millis(5));
            let begun = ticks();
            wait();
            // A hypervisor has the processor, say.
            let quiet = (0..20).any(|_| {
                time.note();
                let begun = ticks();
                wait();
                own(begun, true) == Some(0)
            });
            assert!(quiet);
            assert!(
                own(begun, false).unwrap() < ticks_in(Duration::from_millis(4)),
                "it slept, and was not run"
            );
            time.note();
            let begun = ticks();
            drop(std::hint::black_box(vec![1u8; 8 << 20]));
            wait();
            time.note();
            assert!(own(begun, true).unwrap() > 0);
        })
        .join()
        .unwrap();
        assert_eq!(own(0, false), None, "this thread is no core");
    }

    /// Memory that the host has taken back, and reads again when it is touched: a file's page, as a page of
    /// swap would be.
    #[test]
    fn pages_that_had_to_be_read_are_the_hosts_matter() {
        use rustix::fs::{fadvise, fsync, Advice};
        use std::sync::atomic::Ordering;
        const PAGES: usize = 64;
        // On a disk: what is in tmpfs is not read from anywhere.
        let path = std::env::current_exe().unwrap().with_file_name(format!("lost-{}", std::process::id()));
        std::fs::write(&path, vec![1; PAGES * 4096]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        fsync(&file).unwrap();
        std::thread::spawn(move || {
            let time = CoreTime::of_this_thread().unwrap();
            fadvise(&file, 0, None, Advice::DontNeed).unwrap();
            let map = super::super::SharedFile::map(&file, 0, (PAGES * 4096) as u64).unwrap();
            time.note();
            let (begun, before) = (ticks(), time.look().unwrap());
            assert_eq!(map.word(0).unwrap().load(Ordering::Relaxed), 0x0101_0101_0101_0101);
            std::thread::sleep(Duration::from_millis(5));
            let after = time.look().unwrap();
            time.note();
            assert!(after.read > before.read, "{} is on no disk", path.display());
            assert_eq!(own(begun, true), Some(0));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn only_what_came_before_an_act_is_compared_with() {
        std::thread::spawn(|| {
            let time = CoreTime::of_this_thread().unwrap();
            (0..2 * KEPT).for_each(|_| time.note());
            assert_eq!(time.notes.lock().unwrap().len(), KEPT);
            let begun = ticks();
            time.note();
            let (before, _) = time.since(begun).unwrap();
            assert!(before.at <= begun);
            assert_eq!(
                time.since(0).unwrap().0.at,
                time.notes.lock().unwrap()[0].at,
                "the first one there is"
            );
        })
        .join()
        .unwrap();
    }
}
