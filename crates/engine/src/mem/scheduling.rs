//! How the kernel schedules a thread: sched_setattr(2), the only call that sets SCHED_DEADLINE.
//!
//! Invariant of the `unsafe` here: both calls get a `sched_attr` of ours with its size. The kernel reads or writes no more than
//! that, and keeps no pointer to it.

use std::io;
use std::time::Duration;

use libc::sched_attr;
use serde::{Deserialize, Serialize};

/// A policy with its parameters (sched(7)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedulingPolicy {
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

impl SchedulingPolicy {
    /// SCHED_DEADLINE. Threads that this one makes are ordinary ones: without that flag it could make none.
    pub fn deadline(runtime: Duration, period: Duration) -> SchedulingPolicy {
        let [runtime, period] =
            [runtime, period].map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        SchedulingPolicy {
            policy: libc::SCHED_DEADLINE.unsigned_abs(),
            flags: libc::SCHED_FLAG_RESET_ON_FORK.unsigned_abs().into(),
            runtime,
            deadline: period,
            period,
            ..SchedulingPolicy::default()
        }
    }

    /// SCHED_FIFO.
    pub fn fifo(priority: u32) -> SchedulingPolicy {
        let policy = libc::SCHED_FIFO.unsigned_abs();
        SchedulingPolicy { policy, priority, ..SchedulingPolicy::default() }
    }

    /// SCHED_RR.
    pub fn round_robin(priority: u32) -> SchedulingPolicy {
        SchedulingPolicy { policy: libc::SCHED_RR.unsigned_abs(), ..SchedulingPolicy::fifo(priority) }
    }

    /// That of a thread.
    pub fn of(thread: u32) -> io::Result<SchedulingPolicy> {
        let mut policy = get(thread)?;
        // The kernel tells its usual slice of ordinary threads, too, and takes a slice that it is given for a wish.
        if policy.deadline == 0 && get(0).is_ok_and(|own| own.runtime == policy.runtime) {
            policy.runtime = 0;
        }
        Ok(policy)
    }

    /// Has the kernel schedule a thread so.
    pub fn apply(&self, thread: u32) -> io::Result<()> {
        let attr = self.attr();
        // SAFETY: as the invariant says.
        done(unsafe { libc::syscall(libc::SYS_sched_setattr, thread, &raw const attr, 0) })
    }

    fn attr(&self) -> sched_attr {
        sched_attr {
            size: SIZE,
            sched_policy: self.policy,
            sched_flags: self.flags,
            sched_nice: self.nice,
            sched_priority: self.priority,
            sched_runtime: self.runtime,
            sched_deadline: self.deadline,
            sched_period: self.period,
        }
    }
}

/// Of the call's first version, which all kernels know that this program runs on.
#[allow(clippy::cast_possible_truncation, reason = "48")]
const SIZE: u32 = size_of::<sched_attr>() as u32;

fn get(thread: u32) -> io::Result<SchedulingPolicy> {
    let mut attr = SchedulingPolicy::default().attr();
    // SAFETY: as the invariant says.
    done(unsafe { libc::syscall(libc::SYS_sched_getattr, thread, &raw mut attr, SIZE, 0) })?;
    Ok(SchedulingPolicy {
        policy: attr.sched_policy,
        flags: attr.sched_flags,
        nice: attr.sched_nice,
        priority: attr.sched_priority,
        runtime: attr.sched_runtime,
        deadline: attr.sched_deadline,
        period: attr.sched_period,
    })
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
