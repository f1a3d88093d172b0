//! How the kernel schedules a thread: sched_setattr(2), the only call that sets SCHED_DEADLINE.
//!
//! Invariant of the `unsafe` here: `SchedulingPolicy` is the call's `struct sched_attr` in its first version, which all kernels
//! know that this program runs on. The kernel reads or writes no more than its size, and keeps no pointer to it.

use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A policy with its parameters (sched(7)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C)]
pub struct SchedulingPolicy {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

#[allow(clippy::cast_possible_truncation, reason = "48")]
const SIZE: u32 = size_of::<SchedulingPolicy>() as u32;

impl SchedulingPolicy {
    /// SCHED_DEADLINE. Threads that this one makes are ordinary ones: without that flag it could make none.
    pub fn deadline(runtime: Duration, period: Duration) -> SchedulingPolicy {
        let [runtime, period] =
            [runtime, period].map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let flags = libc::SCHED_FLAG_RESET_ON_FORK.unsigned_abs().into();
        let deadline = period;
        SchedulingPolicy { flags, runtime, deadline, period, ..Self::real_time(libc::SCHED_DEADLINE, 0) }
    }

    /// SCHED_FIFO, SCHED_RR.
    pub fn real_time(policy: i32, priority: u32) -> SchedulingPolicy {
        let (size, policy) = (SIZE, policy.unsigned_abs());
        SchedulingPolicy { size, policy, priority, ..Self::default() }
    }

    /// That of a thread.
    pub fn of(thread: u32) -> io::Result<SchedulingPolicy> {
        let mut policy = SchedulingPolicy::default();
        // SAFETY: as the invariant says.
        done(unsafe { libc::syscall(libc::SYS_sched_getattr, thread, &raw mut policy, SIZE, 0) })?;
        if policy.deadline == 0 {
            // The kernel tells its usual slice of ordinary threads here, and would take it for a wish.
            policy.runtime = 0;
        }
        Ok(policy)
    }

    /// Has the kernel schedule a thread so.
    pub fn apply(&self, thread: u32) -> io::Result<()> {
        // SAFETY: as the invariant says.
        done(unsafe { libc::syscall(libc::SYS_sched_setattr, thread, std::ptr::from_ref(self), 0) })
    }
}

fn done(result: libc::c_long) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_scheduled_as_it_was_told() {
        let before = SchedulingPolicy::of(0).unwrap();
        assert_eq!((before.policy, before.runtime), (libc::SCHED_OTHER.unsigned_abs(), 0));
        let milder = SchedulingPolicy { nice: before.nice + 1, ..before };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                milder.apply(0).unwrap();
                assert_eq!(SchedulingPolicy::of(0).unwrap(), milder);
            });
        });
        assert_eq!(SchedulingPolicy::of(0).unwrap(), before);
        assert_eq!(SchedulingPolicy::of(u32::MAX / 4).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        let wrong = SchedulingPolicy::deadline(Duration::from_millis(2), Duration::from_millis(1));
        assert_eq!(wrong.apply(0).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
}
