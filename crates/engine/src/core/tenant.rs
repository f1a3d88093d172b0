//! Who pays for the work of I/O cores, with what it was granted and what cores write down about it.
//!
//! A port is its own tenant unless the operator names one for it: then all ports of that name share one
//! [`Service`], one account on each core and one account of overruns. A change of the service is seen by a
//! core at the tenant's next visit: it compares a number that is raised with each change, so a visit costs
//! one load of a line that is hardly ever written.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Mutex;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sidecore_abi::counters::MAX_CORES;

use crate::count;
use crate::mem::Overrun;
use crate::util::bucket::Bucket;

/// How urgent a tenant's work is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Class {
    /// Served between two visits of others as soon as it has work, while it has not had more than its share.
    Latency,
    /// Served in turn. A queue that waits with little work is served early all the same.
    #[default]
    Throughput,
}

/// A part of one core: so much of each period, guaranteed, and no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuBudget {
    /// Time of the core in each period.
    pub runtime: Duration,
    /// From 1 ms to 1 s.
    pub period: Duration,
    /// It may also have what others leave.
    pub reclaim: bool,
}

impl CpuBudget {
    /// Its part of a core, in millionths.
    pub fn share(&self) -> u64 {
        let period = self.period.as_nanos().max(1);
        u64::try_from(self.runtime.as_nanos() * 1_000_000 / period).unwrap_or(u64::MAX)
    }
}

/// Limits of what is taken from a tenant's queues, a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    /// Items: frames, requests.
    pub items: Option<u64>,
    /// Bits of those.
    pub bits: Option<u64>,
}

/// What a tenant is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// How urgent its work is.
    pub class: Class,
    /// Its share beside others that have work, 1 to [`MAX_WEIGHT`].
    pub weight: u16,
    /// What it is guaranteed, and bound to.
    pub budget: Option<CpuBudget>,
    /// What may be taken from it.
    pub rate: Rate,
}

/// The weight of a tenant that was given none.
pub const DEFAULT_WEIGHT: u16 = 100;
/// Most weight.
pub const MAX_WEIGHT: u16 = 1000;
/// Most that all budgets on a core may have of it, in millionths: control work and one visit of another
/// tenant have to fit between.
pub const MOST_RESERVED: u64 = 950_000;

impl Default for Service {
    fn default() -> Service {
        Service { class: Class::default(), weight: DEFAULT_WEIGHT, budget: None, rate: Rate::default() }
    }
}

/// What one core wrote down: a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Used {
    busy: AtomicU64,
    throttled: AtomicU64,
    /// It is at the moment.
    is_throttled: AtomicBool,
}

/// What a tenant had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Nanoseconds of I/O cores that its visits took, and what it caused besides.
    pub busy_ns: u64,
    /// Nanoseconds in which it had used its budget, or its rate, up.
    pub throttled_ns: u64,
}

/// Who pays for tasks: a port, or all ports of a virtual machine.
#[derive(Debug, Default)]
pub struct Tenant {
    /// What it costs I/O cores beyond what is usual: while that has it rest its tasks are not visited.
    pub overrun: Overrun,
    /// Changes of the service so far.
    changes: AtomicU32,
    service: Mutex<Service>,
    /// Nanoseconds that it cost cores outside its visits, and has not been charged for.
    caused: AtomicU64,
    pub(super) items: Bucket,
    pub(super) bits: Bucket,
    used: [Used; MAX_CORES],
}

impl Tenant {
    /// One that is granted what is usual, called `name` in the log.
    pub fn new(name: &str) -> Tenant {
        Tenant { overrun: Overrun::new(name), ..Tenant::default() }
    }

    /// The service that holds.
    pub fn service(&self) -> Service {
        *crate::lock(&self.service)
    }

    /// Changes it.
    pub fn set(&self, service: Service) {
        let mut now = crate::lock(&self.service);
        if *now != service {
            *now = service;
            self.changes.fetch_add(1, Ordering::Release);
        }
    }

    /// What it had so far.
    pub fn usage(&self) -> Usage {
        let sum =
            |of: fn(&Used) -> &AtomicU64| self.used.iter().map(|used| of(used).load(Ordering::Relaxed)).sum();
        Usage { busy_ns: sum(|used| &used.busy), throttled_ns: sum(|used| &used.throttled) }
    }

    /// Its peer made a core do something outside of its visits that took so long; it is charged with its next
    /// visit.
    pub fn caused(&self, time: Duration) {
        self.caused.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// What it caused and has not been charged for; from now on it is.
    pub(super) fn take_caused(&self) -> u64 {
        // Mostly nothing: the line is not written then.
        if self.caused.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.caused.swap(0, Ordering::Relaxed)
    }

    /// Another one with each change of the service; zero for none.
    pub(super) fn version(&self) -> u32 {
        self.changes.load(Ordering::Acquire).wrapping_add(1)
    }

    /// Core `core`, which alone calls this with its number, was busy with it for `ns` nanoseconds.
    #[inline]
    pub(super) fn add_busy(&self, core: usize, ns: u64) {
        self.used.get(core).into_iter().for_each(|used| count(&used.busy, ns));
    }

    /// It was throttled there for so long.
    pub(super) fn add_throttled(&self, core: usize, ns: u64) {
        self.used.get(core).into_iter().for_each(|used| count(&used.throttled, ns));
    }

    /// It is throttled there from now on, or not any more.
    pub(super) fn set_throttled(&self, core: usize, throttled: bool) {
        if let Some(used) = self.used.get(core) {
            used.is_throttled.store(throttled, Ordering::Relaxed);
        }
    }

    /// Whether it is throttled on core `core`: it has used up its budget or its rate, or rests after a long
    /// visit.
    pub(super) fn is_throttled(&self, core: usize) -> bool {
        self.used.get(core).is_some_and(|used| used.is_throttled.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budgets_share_is_its_part_of_a_period() {
        let budget = CpuBudget {
            runtime: Duration::from_micros(500),
            period: Duration::from_millis(10),
            reclaim: false,
        };
        assert_eq!(budget.share(), 50_000);
    }

    #[test]
    fn a_change_is_seen_by_its_number() {
        let tenant = Tenant::new("t");
        let (before, service) = (tenant.version(), tenant.service());
        tenant.set(service);
        assert_eq!(tenant.version(), before);
        tenant.set(Service { weight: 7, ..service });
        assert!(tenant.version() != before && tenant.service().weight == 7);
    }

    #[test]
    fn what_cores_write_down_adds_up() {
        let tenant = Tenant::new("t");
        tenant.add_busy(0, 5);
        tenant.add_busy(3, 7);
        tenant.add_busy(MAX_CORES, 9);
        tenant.add_throttled(1, 2);
        assert_eq!(tenant.usage(), Usage { busy_ns: 12, throttled_ns: 2 });
        tenant.caused(Duration::from_nanos(4));
        assert_eq!((tenant.take_caused(), tenant.take_caused()), (4, 0));
    }
}
