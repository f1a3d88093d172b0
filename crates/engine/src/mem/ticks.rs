//! A clock that costs next to nothing to read: the processor's time stamp counter (Intel SDM vol. 3B §19.17),
//! where there is one. Its rate is measured once, and nothing is said about other processors' counters.
//!
//! Invariant of the `unsafe` here: reading the counter, and asking what the processor has, touches no memory;
//! the kernel is asked for times with places of ours.

use std::mem::MaybeUninit;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// For so long the counter's rate is measured.
const MEASURE: Duration = Duration::from_millis(1);

static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Ticks a second.
static RATE: LazyLock<u64> = LazyLock::new(|| {
    let (start, first) = pair();
    while start.elapsed() < MEASURE {
        std::hint::spin_loop();
    }
    let (end, last) = pair();
    let (ticks, time) = (u128::from(last.wrapping_sub(first)), (end - start).as_nanos());
    u64::try_from(ticks * 1_000_000_000 / time.max(1)).unwrap_or(u64::MAX).max(1)
});

/// Both clocks at one moment: read again where the thread was kept from running in between.
fn pair() -> (Instant, u64) {
    let mut best = (Instant::now(), ticks(), u64::MAX);
    for _ in 0..16 {
        let (before, now, after) = (ticks(), Instant::now(), ticks());
        let gap = after.wrapping_sub(before);
        if gap < best.2 {
            best = (now, before.wrapping_add(gap / 2), gap);
        }
    }
    (best.0, best.1)
}

/// The counter now.
#[inline]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of this architecture has the counter, and no user is kept from reading it.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    u64::try_from(EPOCH.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Processor time that process `pid` has had, if it is there.
pub fn process_time(pid: u32) -> Option<Duration> {
    // The process's, and the scheduler's kind of it (clock_getcpuclockid(3)).
    let pid = i32::try_from(pid).ok().filter(|pid| (1..=1 << 22).contains(pid))?;
    let clock = !pid << 3 | 2;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to a place of ours.
    let done = unsafe { libc::clock_gettime(clock, &raw mut time) } == 0;
    done.then(|| Some(Duration::new(time.tv_sec.try_into().ok()?, time.tv_nsec.try_into().ok()?)))?
}

/// Nanoseconds of processors that the calling thread has had, and how often it has given one up to wait for
/// something.
pub fn thread_time() -> (u64, u64) {
    let had = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let had = u64::try_from(had.tv_sec * 1_000_000_000 + had.tv_nsec).unwrap_or(0);
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call writes to a place of ours, and zeros are a value of it.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    (had, u64::try_from(usage.ru_nvcsw).unwrap_or(0))
}

/// How far the counter goes in `time`. Measures its rate when it is called first: not for hot paths.
pub fn ticks_in(time: Duration) -> u64 {
    LazyLock::force(&EPOCH);
    u64::try_from(u128::from(*RATE) * time.as_nanos() / 1_000_000_000).unwrap_or(u64::MAX)
}

/// Whether the counter runs at one rate whatever the processor does, also while it sleeps (Intel SDM vol. 3B
/// §19.17.1).
pub fn ticks_are_steady() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        const POWER: u32 = 0x8000_0007;
        const INVARIANT: u32 = 1 << 8;
        #[allow(unused_unsafe, reason = "newer compilers call it safe")]
        // SAFETY: every processor of this architecture has the instruction; a leaf that there is not is not
        // asked for.
        unsafe {
            std::arch::x86_64::__cpuid(0x8000_0000).eax >= POWER
                && std::arch::x86_64::__cpuid(POWER).edx & INVARIANT != 0
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// The time in which the counter goes so far; the reverse of [`ticks_in`].
pub fn time_of(ticks: u64) -> Duration {
    LazyLock::force(&EPOCH);
    Duration::from_nanos(
        u64::try_from(u128::from(ticks) * 1_000_000_000 / u128::from(*RATE)).unwrap_or(u64::MAX),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_pass_as_time_does() {
        let (start, first) = (Instant::now(), ticks());
        while start.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let passed = ticks().wrapping_sub(first);
        // No other thread may have run meanwhile on a loaded machine; the rate is no secret.
        assert!(passed >= ticks_in(Duration::from_millis(10)), "{passed}");
    }
}
