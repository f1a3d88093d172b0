//! What a thread spent, by running or by waiting: what tells that from time that another program had the processor for.
//!
//! Invariant of the `unsafe` here: the kernel fills in the whole structure that it is given.

use std::mem::MaybeUninit;
use std::time::Duration;

use rustix::time::{clock_gettime, ClockId};

use super::ticks::{ticks, ticks_in};

/// Where the calling thread stands.
#[derive(Clone, Debug)]
pub struct Effort {
    /// Times that it waited for something, and pages that had to be found for it.
    waits: libc::c_long,
    pages: libc::c_long,
    /// Its processor time: of the clock, which is exact. That of getrusage(2) is up to a tick old.
    time: Duration,
    at: u64,
}

/// What became of the ticks since then.
struct Account {
    passed: u64,
    /// At most as many.
    spent: u64,
    waited: bool,
    /// Pages were found or cleared for it.
    pages: bool,
}

impl Effort {
    /// Now. Two system calls: where something has taken long already.
    pub fn now() -> Effort {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: room for the structure; zeros are a value of it, should the call fail.
        let usage = unsafe {
            libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
            usage.assume_init()
        };
        let time = clock_gettime(ClockId::ThreadCPUTime);
        let (secs, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
        let time = Duration::new(secs.unwrap_or(0), nanos.unwrap_or(0));
        let pages = usage.ru_minflt.wrapping_add(usage.ru_majflt);
        Effort { waits: usage.ru_nvcsw, pages, time, at: ticks() }
    }

    /// Ticks that were spent since then, by running or by waiting for memory; without those that others had the processor for.
    pub fn spent(&self) -> u64 {
        self.account().spent
    }

    /// The others: ticks since then in which it neither ran nor waited for memory. And whether pages had to be found for it.
    pub fn lost(&self) -> (u64, bool) {
        let it = self.account();
        (it.passed - it.spent, it.pages)
    }

    /// Ticks since then in which it could have run and others did. None are known where it waited for anything meanwhile.
    pub fn kept(&self) -> u64 {
        let it = self.account();
        if it.waited {
            0
        } else {
            it.passed - it.spent
        }
    }

    fn account(&self) -> Account {
        let passed = ticks().wrapping_sub(self.at);
        let now = Effort::now();
        let (waited, pages) = (now.waits != self.waits, now.pages != self.pages);
        // Without a page it waited for a lock, whose owner was kept from running.
        if waited && pages {
            return Account { passed, spent: passed, waited, pages };
        }
        Account { passed, spent: passed.min(ticks_in(now.time.saturating_sub(self.time))), waited, pages }
    }

    /// Ticks since then, whatever was done with them.
    #[inline]
    pub fn age(&self) -> u64 {
        ticks().wrapping_sub(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_counts_and_so_does_a_wait_but_not_what_others_do() {
        let before = Effort::now();
        let begun = ticks();
        while Effort::now().time < before.time + Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let (spent, passed) = (before.spent(), ticks().wrapping_sub(begun));
        assert!(spent >= ticks_in(Duration::from_millis(19)), "{spent}");
        // Another thread runs meanwhile, or none. What is done for the first time may have to wait for a page.
        let found = (0..5).any(|_| {
            let before = Effort::now();
            std::thread::sleep(Duration::from_millis(20));
            before.lost().0 >= ticks_in(Duration::from_millis(15))
        });
        assert!(found, "a thread that did not run has lost no time");
        assert!(spent <= passed + ticks_in(Duration::from_millis(1)), "{spent} of {passed}");
    }

    /// Two threads share a processor, and neither waits for anything.
    #[test]
    fn time_in_which_another_thread_ran_is_known() {
        use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};
        let all = sched_getaffinity(None).unwrap();
        let cpu = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap();
        let busy = move || {
            let mut one = CpuSet::new();
            one.set(cpu);
            sched_setaffinity(None, &one).unwrap();
            let start = Effort::now();
            while start.age() < ticks_in(Duration::from_millis(200)) {
                std::hint::spin_loop();
            }
            (start.kept(), start.lost().0)
        };
        let threads = [std::thread::spawn(busy), std::thread::spawn(busy)];
        let kept = threads.map(|thread| thread.join().unwrap());
        let enough = ticks_in(Duration::from_millis(20));
        assert!(kept.iter().any(|(kept, lost)| *kept >= enough && lost >= kept), "{kept:?}");
    }
}
