//! The owners' shares of a core, and their order: rounds by hand, with a clock that goes on by what visits
//! did, so that each test does the same each time. Those of `threads` have real cores. This file is what the
//! tests have in common.

mod budgets;
pub(crate) mod by_hand;
mod looks;
mod shares;
mod threads;

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use self::by_hand::{ByHand, Others, DELIVERY};
use super::*;

/// The owner of tasks.
#[derive(Default)]
pub(super) struct Guest {
    pub(super) number: u16,
    pub(super) tenant: Arc<Tenant>,
    pub(super) slow: Slow,
}

impl Owner for Guest {
    fn number(&self) -> u16 {
        self.number
    }
    fn name(&self) -> &str {
        "guest"
    }
    fn tenant(&self) -> &Arc<Tenant> {
        &self.tenant
    }
    fn slow(&self) -> &Slow {
        &self.slow
    }
}

fn guest(number: u16, service: Service) -> Arc<Guest> {
    let guest = Guest { number, ..Guest::default() };
    guest.tenant.set(service);
    Arc::new(guest)
}

/// Another owner, for which the tenant of `guest` pays, too.
fn beside(guest: &Guest, number: u16) -> Arc<Guest> {
    Arc::new(Guest { number, tenant: Arc::clone(&guest.tenant), ..Guest::default() })
}

/// What a test sees of a queue, and does to it.
#[derive(Debug, Default)]
struct Queue {
    waiting: AtomicU64,
    done: AtomicU64,
    armed: AtomicBool,
    arms: AtomicU64,
}

/// A queue whose items take `each` nanoseconds. One without end always has more.
struct Work {
    guest: Arc<Guest>,
    queue: Arc<Queue>,
    each: u64,
    bytes: u64,
    endless: bool,
    /// It asks to be looked at so often while it is armed.
    naps: Option<Duration>,
    /// What a look takes, and the sum of all looks.
    look: (u64, Arc<AtomicU64>),
}

impl Task<()> for Work {
    fn owner(&self) -> Arc<dyn Owner> {
        Arc::clone(&self.guest) as Arc<dyn Owner>
    }

    fn has_work(&mut self) -> bool {
        self.look.1.fetch_add(self.look.0, Ordering::Relaxed);
        self.endless || self.queue.waiting.load(Ordering::Relaxed) > 0
    }

    fn visit(&mut self, (): &mut (), budget: Budget) -> Visit {
        let waiting = self.queue.waiting.load(Ordering::Relaxed);
        let most = budget.items.min(usize::try_from(budget.bytes / self.bytes.max(1)).unwrap() + 1);
        let items = if self.endless { most } else { most.min(usize::try_from(waiting).unwrap()) };
        if items == 0 {
            return Visit::default();
        }
        let n = items as u64;
        if !self.endless {
            self.queue.waiting.fetch_sub(n, Ordering::Relaxed);
        }
        self.queue.done.fetch_add(n, Ordering::Relaxed);
        let end = if items == most { VisitEnd::Budget } else { VisitEnd::Drained };
        let cost = usize::try_from(n * self.each / DELIVERY).unwrap();
        Visit { moved: n, items, bytes: n * self.bytes, cost, others_ns: 0, end }
    }

    fn arm(&mut self) -> bool {
        self.queue.armed.store(true, Ordering::Relaxed);
        self.queue.arms.fetch_add(1, Ordering::Relaxed);
        self.has_work()
    }

    fn disarm(&mut self) {
        self.queue.armed.store(false, Ordering::Relaxed);
    }

    fn events<'t>(&'t self, _: &mut dyn FnMut(BorrowedFd<'t>)) {}

    fn next_look(&self) -> Option<Duration> {
        self.naps
    }

    fn settle(&mut self, (): &mut ()) {}
}

struct Rig {
    core: ByHand<()>,
    /// What a look takes of those that are added.
    look: u64,
}

impl Rig {
    fn new() -> Rig {
        Rig { core: ByHand::new(()), look: 0 }
    }

    fn add(&mut self, guest: &Arc<Guest>, each: u64, endless: bool) -> (u64, Arc<Queue>) {
        self.add_of(guest, each, 60, endless, None)
    }

    fn add_of(
        &mut self,
        guest: &Arc<Guest>,
        each: u64,
        bytes: u64,
        endless: bool,
        naps: Option<Duration>,
    ) -> (u64, Arc<Queue>) {
        let queue = Arc::<Queue>::default();
        let (guest, look) = (Arc::clone(guest), (self.look, self.core.looks()));
        let work = Work { guest, queue: Arc::clone(&queue), each, bytes, endless, naps, look };
        (self.take(work), queue)
    }

    /// Gives the core a task for good.
    fn take(&mut self, task: impl Task<()> + 'static) -> u64 {
        self.core.take(Home::<()>::default().lend(Box::new(task) as _))
    }

    /// Nanoseconds of the core that a guest had.
    fn had(guest: &Guest) -> u64 {
        guest.tenant.usage().busy_ns
    }
}

const MS: u64 = 1_000_000;

/// How far from equal these shares are: 1 at best (Jain, Chiu and Hawe 1984).
fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|n| *n as f64).sum();
    let squares: f64 = shares.iter().map(|n| (*n as f64).powi(2)).sum();
    sum * sum / (shares.len() as f64 * squares)
}
