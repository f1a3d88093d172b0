//! Which mechanism a thread gets: the first of several that the kernel grants, and why it was not an earlier
//! one.

use std::fs;
use std::io;
use std::path::Path;

use rustix::thread::{capabilities, CapabilitySet};
use sidecore_engine::mem::SchedulingPolicy;

use super::groups::{self, Group};
use super::record::{Grant, Reservation, Step};
use super::threads::{Thread, ThreadId};
use crate::cli::ReserveArgs;
use crate::place::Cpus;
use crate::table::percent;

/// Ahead of all ordinary threads, and in turn with others of this priority. So two such vCPUs can share a
/// processor.
const TURNS: u32 = 1;

/// A mechanism that gives a thread time of a processor.
struct Offer {
    mechanism: &'static str,
    /// What it takes, beside a place on the processors that were asked for.
    policy: Option<SchedulingPolicy>,
    share_ppm: Option<u64>,
    meaning: String,
}

const DEADLINE: &str = "SCHED_DEADLINE";
const CAP: &str = "cpu.max";

/// Mechanisms for what was asked for, the best first.
fn offers(root: &Path, args: &ReserveArgs) -> Vec<Offer> {
    let offer = |mechanism, policy, share_ppm: Option<u64>, most: &str, worth: &str| {
        let share = share_ppm.map_or_else(String::new, |ppm| percent(ppm, 1_000_000));
        Offer { mechanism, policy, share_ppm, meaning: format!("{most}{share}{worth}") }
    };
    let ahead = |mechanism, policy, priority| {
        let policy = Some(SchedulingPolicy::real_time(policy, priority));
        offer(mechanism, policy, Some(rt_limit(root)), "up to ", " of a processor, ahead of ordinary threads")
    };
    let mut offers = Vec::new();
    if let Some((runtime, period)) = args.runtime.zip(args.period) {
        let share = (runtime.as_nanos() * 1_000_000).checked_div(period.as_nanos());
        let share = share.and_then(|share| u64::try_from(share).ok());
        let policy = Some(SchedulingPolicy::deadline(runtime, period));
        offers.push(offer(DEADLINE, policy, share, "", " of a processor, guaranteed in each period"));
        offers.push(ahead("SCHED_RR", libc::SCHED_RR, TURNS));
        offers.push(offer(CAP, None, share, "at most ", " of a processor, nothing guaranteed"));
    }
    offers.extend(args.fifo.map(|priority| ahead("SCHED_FIFO", libc::SCHED_FIFO, priority)));
    if args.cpus.is_some() {
        offers.push(offer("affinity", None, None, "what other threads leave", ""));
    }
    offers
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

/// Gives a thread the best that the kernel grants.
pub fn grant(root: &Path, args: &ReserveArgs, thread: Thread, reservation: &mut Reservation) -> Grant {
    let (mut refused, mut granted) = (Vec::new(), None);
    for offer in offers(root, args) {
        let kept = reservation.steps.len();
        let Err(mut reason) = attempt(root, args, &offer, thread.id, reservation) else {
            granted = Some(offer);
            break;
        };
        if !thread.id.is_there(&root.join("proc")) {
            reason = "it has ended".to_owned();
        }
        if let Err(left) = reservation.undo_to(kept) {
            reason += &format!("; {left}");
        }
        refused.push(format!("{}: {reason}", offer.mechanism));
    }
    let cpus = thread.id.allowed(&root.join("proc")).unwrap_or_default();
    match granted {
        // Neither a cap nor affinity guarantees time.
        Some(Offer { mechanism, policy, share_ppm, meaning }) => {
            let enough = policy.is_some() || args.runtime.is_none() && args.fifo.is_none();
            Grant { thread, mechanism: mechanism.to_owned(), enough, share_ppm, meaning, cpus, refused }
        }
        None => {
            let (mechanism, meaning) = ("none".to_owned(), "as before".to_owned());
            Grant { thread, mechanism, enough: false, share_ppm: None, meaning, cpus, refused }
        }
    }
}

fn attempt(
    root: &Path,
    args: &ReserveArgs,
    offer: &Offer,
    thread: ThreadId,
    reservation: &mut Reservation,
) -> Result<(), String> {
    if let Some(cpus) = &args.cpus {
        let from = thread.allowed(&root.join("proc")).ok_or("it has ended")?;
        let step = Step::Pin { thread, to: cpus.clone(), from };
        reservation.take(step).map_err(|e| format!("processors {cpus}: {e}"))?;
        if offer.mechanism == DEADLINE && *cpus != online() {
            groups::exclusive(root, reservation, thread, cpus)
                .map_err(|why| format!("there is no exclusive cpuset of {cpus}: {why}"))?;
        }
    }
    if let (CAP, Some(time)) = (offer.mechanism, args.runtime.zip(args.period)) {
        return groups::cap(root, reservation, thread, time);
    }
    let Some(to) = offer.policy else { return Ok(()) };
    let from = SchedulingPolicy::of(thread.thread).map_err(|e| e.to_string())?;
    let done = reservation.take(Step::Policy { thread, to, from });
    done.map_err(|e| explain(root, args, offer, thread, &e))
}

/// Why the kernel refuses a policy (sched_setattr(2), and the kernel's sched-deadline.rst).
fn explain(root: &Path, args: &ReserveArgs, offer: &Offer, thread: ThreadId, e: &io::Error) -> String {
    let allowed = thread.allowed(&root.join("proc")).unwrap_or_default();
    match (e.raw_os_error(), offer.mechanism) {
        (Some(libc::EPERM), DEADLINE) if !may_schedule_all() => "it takes CAP_SYS_NICE (root has it)".to_owned(),
        (Some(libc::EPERM), _) if !may_schedule_all() => format!(
            "it takes CAP_SYS_NICE (root has it), or a VMM whose RLIMIT_RTPRIO is {} at least: it is {}",
            args.fifo.unwrap_or(TURNS),
            priority_limit(root, thread).unwrap_or_else(|| "unknown".to_owned())
        ),
        (Some(libc::EPERM), DEADLINE) => format!(
            "it may run on {allowed} only, and the kernel demands all of {}, or of an exclusive cpuset, which \
             --cpus makes where one can be made",
            online()
        ),
        (Some(libc::EPERM), _) => match Group::of(root, &thread, "cpu") {
            Ok(group) if !group.is_top() => format!(
                "the kernel has RT_GROUP_SCHED, and its control group no real-time runtime: {}",
                group.get("cpu.rt_runtime_us").map_or_else(|e| e, |us| format!("cpu.rt_runtime_us is {us}"))
            ),
            _ => e.to_string(),
        },
        (Some(libc::EBUSY), DEADLINE) => format!(
            "admission control: with it, deadline threads would have more than {} of each of {allowed}",
            percent(rt_limit(root), 1_000_000)
        ),
        _ => e.to_string(),
    }
}

/// Millionths of a processor that the kernel leaves to real-time threads.
fn rt_limit(root: &Path) -> u64 {
    let read =
        |name: &str| fs::read_to_string(root.join("proc/sys/kernel").join(name)).ok()?.trim().parse().ok();
    // A runtime of -1 is no limit.
    let [runtime, period]: [Option<u64>; 2] = ["sched_rt_runtime_us", "sched_rt_period_us"].map(read);
    let part = runtime.zip(period).and_then(|(runtime, period)| (runtime * 1_000_000).checked_div(period));
    part.unwrap_or(1_000_000)
}

/// The RLIMIT_RTPRIO of a thread's process, in proc(5)'s words.
fn priority_limit(root: &Path, thread: ThreadId) -> Option<String> {
    let limits = fs::read_to_string(root.join(format!("proc/{}/limits", thread.process))).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max realtime priority"))?;
    line.split_whitespace().next().map(str::to_owned)
}
