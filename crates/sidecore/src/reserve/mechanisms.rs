//! Which mechanism a thread gets: the first of several that the kernel grants, and why it was not an earlier one.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::thread::{capabilities, CapabilitySet};
use sidecore_engine::mem::SchedulingPolicy;

use super::groups::{self, Group};
use super::record::{Grant, Mechanism, Refusal, Reservation, Step};
use super::threads::{Thread, ThreadId};
use crate::place::Cpus;

/// Ahead of all ordinary threads, and in turn with others of this priority. So two such vCPUs can share a processor.
const TURNS: u32 = 1;

/// What was asked for.
#[derive(Debug, Default)]
pub struct Wish {
    /// A runtime in each period.
    pub time: Option<(Duration, Duration)>,
    /// A priority of SCHED_FIFO.
    pub fifo: Option<u32>,
    pub cpus: Option<Cpus>,
}

impl fmt::Display for Wish {
    /// As on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = self.time.map(|(runtime, period)| format!("--runtime {runtime:?} --period {period:?}"));
        let fifo = self.fifo.map(|priority| format!("--fifo {priority}"));
        let cpus = self.cpus.as_ref().map(|cpus| format!("--cpus {cpus}"));
        let words: Vec<String> = [time, fifo, cpus].into_iter().flatten().collect();
        f.write_str(&words.join(" "))
    }
}

/// Whether this process may change any thread's policy.
pub fn may_schedule_all() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_NICE))
}

/// The processors of the machine.
pub fn online() -> Cpus {
    let list = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    Cpus::read(list.trim()).unwrap_or_default()
}

impl Wish {
    /// Mechanisms for it, the best first.
    fn mechanisms(&self) -> Vec<Mechanism> {
        let mut all = match (self.time, self.fifo) {
            (Some(_), _) => vec![Mechanism::Deadline, Mechanism::Rr, Mechanism::CpuMax],
            (None, Some(_)) => vec![Mechanism::Fifo],
            (None, None) => vec![],
        };
        all.extend(self.cpus.as_ref().map(|_| Mechanism::Affinity));
        all
    }

    /// Whether a thread with this mechanism has what was asked for: a cap guarantees nothing.
    pub fn is_met_by(&self, mechanism: Option<Mechanism>) -> bool {
        match mechanism {
            Some(Mechanism::Deadline | Mechanism::Fifo | Mechanism::Rr) => true,
            Some(Mechanism::Affinity) => self.time.is_none() && self.fifo.is_none(),
            Some(Mechanism::CpuMax) | None => false,
        }
    }

    /// Gives a thread the best that the kernel grants.
    pub fn grant(&self, proc: &Path, thread: Thread, reservation: &mut Reservation) -> Grant {
        let (mut refused, mut granted) = (Vec::new(), None);
        for mechanism in self.mechanisms() {
            let kept = reservation.steps.len();
            let reason = match self.attempt(proc, mechanism, thread.id, reservation) {
                Ok(()) => {
                    granted = Some(mechanism);
                    break;
                }
                Err(_) if !thread.id.is_there(proc) => "it has ended".to_owned(),
                Err(reason) => reason,
            };
            let reason = match reservation.undo_to(kept) {
                Ok(()) => reason,
                Err(left) => format!("{reason}; {left}"),
            };
            refused.push(Refusal { mechanism, reason });
        }
        let cpus = thread.id.allowed(proc).unwrap_or_default();
        Grant {
            share_ppm: granted.and_then(|it| self.share(proc, it)),
            mechanism: granted,
            thread,
            cpus,
            refused,
        }
    }

    fn attempt(
        &self,
        proc: &Path,
        mechanism: Mechanism,
        thread: ThreadId,
        reservation: &mut Reservation,
    ) -> Result<(), String> {
        let time = self.time.unwrap_or_default();
        if let Some(cpus) = &self.cpus {
            let from = thread.allowed(proc).ok_or("it has ended")?;
            let step = Step::Pin { thread, to: cpus.clone(), from };
            reservation.take(step).map_err(|e| format!("processors {cpus}: {e}"))?;
            if mechanism == Mechanism::Deadline && *cpus != online() {
                groups::exclusive(proc, reservation, thread, cpus)
                    .map_err(|why| format!("there is no exclusive cpuset of {cpus}: {why}"))?;
            }
        }
        let to = match mechanism {
            Mechanism::Deadline => SchedulingPolicy::deadline(time.0, time.1),
            Mechanism::Fifo => SchedulingPolicy::fifo(self.fifo.unwrap_or_default()),
            Mechanism::Rr => SchedulingPolicy::round_robin(TURNS),
            Mechanism::CpuMax => return groups::cap(proc, reservation, thread, time),
            Mechanism::Affinity => return Ok(()),
        };
        let from = SchedulingPolicy::of(thread.thread).map_err(|e| e.to_string())?;
        let done = reservation.take(Step::Policy { thread, to, from });
        done.map_err(|e| self.explain(proc, mechanism, thread, &e))
    }

    /// Why the kernel refuses a policy (sched_setattr(2), and the kernel's sched-deadline.rst).
    fn explain(&self, proc: &Path, mechanism: Mechanism, thread: ThreadId, e: &io::Error) -> String {
        let (allowed, online) = (thread.allowed(proc).unwrap_or_default(), online());
        let deadline = mechanism == Mechanism::Deadline;
        match e.raw_os_error() {
            Some(libc::EPERM) if !may_schedule_all() => match deadline {
                true => "it takes CAP_SYS_NICE (root has it)".to_owned(),
                false => format!(
                    "it takes CAP_SYS_NICE (root has it), or a VMM whose RLIMIT_RTPRIO is {} at least: it is {}",
                    self.fifo.unwrap_or(TURNS),
                    priority_limit(proc, thread).unwrap_or_else(|| "unknown".to_owned())
                ),
            },
            Some(libc::EPERM) if deadline => format!(
                "it may run on {allowed} only, and the kernel demands all of {online}, or of an exclusive cpuset, \
                 which --cpus makes where one can be made"
            ),
            Some(libc::EPERM) => {
                let group = Group::of(proc, &thread, "cpu");
                match group.ok().filter(|group| !group.is_top()) {
                    Some(group) => format!(
                        "the kernel has RT_GROUP_SCHED, and its control group {} has no real-time runtime \
                         (cpu.rt_runtime_us: {})",
                        group.title(),
                        group.get("cpu.rt_runtime_us").unwrap_or_else(|| "none in version 2".to_owned())
                    ),
                    None => format!("{e}"),
                }
            }
            Some(libc::EBUSY) if deadline => format!(
                "admission control: with this one, deadline threads would have more than {} % of processors {allowed}",
                rt_limit(proc) / 10_000
            ),
            Some(libc::EINVAL) if deadline => {
                let limit = |name: &str| kernel(proc, &format!("sched_deadline_period_{name}_us"));
                let [least, most] = ["min", "max"].map(|name| limit(name).unwrap_or_default());
                format!("{e}: the kernel takes periods from {least} us to {most} us, and runtimes from 2 us")
            }
            _ => e.to_string(),
        }
    }

    fn share(&self, proc: &Path, mechanism: Mechanism) -> Option<u64> {
        match mechanism {
            Mechanism::Deadline | Mechanism::CpuMax => {
                let (runtime, period) = self.time?;
                u64::try_from(runtime.as_nanos() * 1_000_000 / period.as_nanos().max(1)).ok()
            }
            Mechanism::Fifo | Mechanism::Rr => Some(rt_limit(proc)),
            Mechanism::Affinity => None,
        }
    }
}

fn kernel(proc: &Path, name: &str) -> Option<i64> {
    fs::read_to_string(proc.join("sys/kernel").join(name)).ok()?.trim().parse().ok()
}

/// Millionths of a processor that the kernel leaves to real-time threads.
fn rt_limit(proc: &Path) -> u64 {
    let [runtime, period] = ["sched_rt_runtime_us", "sched_rt_period_us"].map(|name| kernel(proc, name));
    // -1 is no limit.
    let [runtime, period] = [runtime, period].map(|time| time.and_then(|time| u64::try_from(time).ok()));
    runtime
        .zip(period)
        .and_then(|(runtime, period)| (runtime * 1_000_000).checked_div(period))
        .unwrap_or(1_000_000)
}

/// The RLIMIT_RTPRIO of a thread's process, in proc(5)'s words.
fn priority_limit(proc: &Path, thread: ThreadId) -> Option<String> {
    let limits = fs::read_to_string(proc.join(format!("{}/limits", thread.process))).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max realtime priority"))?;
    line.split_whitespace().next().map(str::to_owned)
}
