//! The tenants' shares of a core: an account for each tenant that has tasks on it.
//!
//! Theory of operation. When a visit is over, its time in nanoseconds, divided by the tenant's weight, is
//! added to the tenant's *tag*. The core's virtual clock is the least tag of all tenants that have work. A
//! tenant may be ahead of that clock by [`SLACK`]; beyond it its tasks are passed over until the others have
//! caught up. So among tenants that always have work, shares go by weight, within a visit and the slack. A
//! tenant alone is its own clock, and never waits. Two rules keep sleepers from gaining: a tag is never
//! behind the clock, so silence saves up nothing; and an account outlives its tasks until the clock has
//! reached its tag, so leaving sheds nothing (start-time fair queueing, charged afterwards).
//!
//! A tenant with several tasks has one account, so more queues and ports bring it no more of the core. One
//! with a budget (`server`) goes before all others while some of it is left, and is throttled when it is used
//! up; one that may reclaim has what others leave by its tag, as they do.
//!
//! A visit beyond [`LONG`] is paid for even if no other tenant had work: the tenant rests for as long as it
//! took, if others have tasks here. So a guest that rarely needs the core finds it busy for half of the time
//! at most.
//!
//! A budget inside the loop: a constant-bandwidth server.
//!
//! Theory of operation. An owner with a budget has `runtime` nanoseconds of the core in each `period`,
//! guaranteed: while any are left it goes before all that have no budget, the earliest deadline first. When
//! they are used up it waits for the deadline, which then moves on by a period. A visit that took longer than
//! what was left is carried over as debt. An owner that was idle and comes back late in its period would get
//! more than its share until the deadline: then a new period begins (Abeni and Buttazzo 1998; the Linux
//! kernel's documentation of `SCHED_DEADLINE`).
//!
//! An owner that may reclaim is served beyond its runtime as those without a budget are, and pays for that as
//! they do ([`BudgetServer::pays`]). Charged here as well it would be debt: after a minute alone on the core
//! its guarantee would be gone for many minutes.

use std::sync::{Arc, Weak};

use super::task::SLOW_VISIT;
use super::tenant::{Class, CpuBudget, Service, Tenant, DEFAULT_WEIGHT};
use crate::util::bucket::{self, Allowed, Bucket};

/// Nanoseconds at its rate that a tenant may take at once after a while of silence,
const SAVED: u64 = 2_000_000;
/// and what that is at least: a batch of the usual size,
const LEAST_ITEMS: u64 = 32;
/// or the bits of a frame of 64 KiB.
const LEAST_BITS: u64 = 8 * 65_536;
/// How far a tenant's tag may be ahead of the clock: some turns, so that most rounds visit all.
pub(super) const SLACK: u64 = 100_000;
/// What looking in vain took is charged when it is more than this, or with the next visit.
const LOOKED: u64 = 2_000;
/// A visit that takes longer is followed by rest.
const LONG: u64 = SLOW_VISIT;

/// One tenant on one core.
#[derive(Default)]
pub(super) struct Account {
    /// As long as it has tasks here.
    tenant: Option<Arc<Tenant>>,
    /// Whose it is, to know it again: what it owes must not keep it.
    known: Weak<Tenant>,
    /// Tasks that the core has of it.
    tasks: usize,
    /// The service as it was when it was last looked at.
    version: u32,
    pub(super) service: Service,
    tag: u64,
    /// Virtual nanoseconds of a nanosecond, in 2⁻¹⁶.
    scale: u64,
    server: Option<BudgetServer>,
    /// Nanoseconds in which its tasks were looked at in vain, which it has not been charged for.
    looked: u64,
    /// Its tasks that are looked at between two visits of others, and the round of which that is.
    checked: (u64, u8),
    /// It had work in this round, or in the one before.
    busy: bool,
    was_busy: bool,
    /// It is left alone until then: a visit was long, or its rate is used up.
    rests_until: u64,
    /// Since when it has been throttled.
    throttled: Option<u64>,
}

/// Where a task stands at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Right {
    /// Its tenant's budget has this number of nanoseconds left, until this deadline.
    Reserved { left: u64, deadline: u64 },
    /// It has its turn.
    Turn,
    /// Others come first in this round.
    Passed,
    /// Not before this time.
    Throttled { until: u64 },
}

/// The accounts of a core.
#[derive(Default)]
pub(super) struct Accounts {
    core: usize,
    list: Vec<Option<Account>>,
    /// The virtual clock.
    clock: u64,
    /// The least tag of those that had work in this round.
    least: u64,
    /// The tenants that had work in this round, and in the one before.
    busy: Vec<usize>,
    were_busy: Vec<usize>,
    /// Tenants with tasks here.
    tenants: usize,
    rounds: u64,
}

impl Accounts {
    pub(super) fn new(core: usize) -> Accounts {
        Accounts { core, least: u64::MAX, ..Accounts::default() }
    }

    /// The place of `tenant`'s account, which has a task more; it brings `debt` along, and what is left of
    /// its budget, from another core.
    pub(super) fn join(&mut self, tenant: &Arc<Tenant>, carried: CarriedAccount, now: u64) -> usize {
        let same = |account: &Account| std::ptr::eq(account.known.as_ptr(), Arc::as_ptr(tenant));
        let known = self.list.iter().position(|account| account.as_ref().is_some_and(same));
        let place = known.unwrap_or_else(|| {
            self.forget_settled();
            let free = self.list.iter().position(Option::is_none);
            let place = free.unwrap_or(self.list.len());
            if free.is_none() {
                self.list.push(None);
            }
            self.list[place] = Some(Account::new(tenant, self.clock));
            place
        });
        let clock = self.clock;
        if let Some(account) = &mut self.list[place] {
            self.tenants += usize::from(account.tasks == 0);
            account.tasks += 1;
            account.tenant = Some(Arc::clone(tenant));
            account.refresh(now);
            account.tag = account.tag.max(clock.saturating_add(carried.debt));
            if carried.server.is_some() && account.server.is_some() && account.tasks == 1 {
                account.server = carried.server;
            }
        }
        place
    }

    /// It has a task less. What it takes along to another core.
    pub(super) fn leave(&mut self, place: usize) -> CarriedAccount {
        let (clock, core) = (self.clock, self.core);
        let Some(account) = self.get_mut(place) else { return CarriedAccount::default() };
        account.tasks = account.tasks.saturating_sub(1);
        let carried = CarriedAccount { debt: account.tag.saturating_sub(clock), server: account.server };
        if account.tasks == 0 {
            if let Some(tenant) = account.tenant.take().filter(|_| account.throttled.take().is_some()) {
                tenant.set_throttled(core, false);
            }
            self.tenants -= 1;
        }
        carried
    }

    /// Forgets those that have left and owe nothing.
    fn forget_settled(&mut self) {
        let clock = self.clock;
        for account in &mut self.list {
            let paid = |account: &Account| account.tag <= clock || account.known.strong_count() == 0;
            let unused = |account: &Account| account.tasks == 0 && !account.busy && !account.was_busy;
            if account.as_ref().is_some_and(|account| unused(account) && paid(account)) {
                *account = None;
            }
        }
    }

    pub(super) fn get(&self, place: usize) -> Option<&Account> {
        self.list.get(place)?.as_ref()
    }

    fn get_mut(&mut self, place: usize) -> Option<&mut Account> {
        self.list.get_mut(place)?.as_mut()
    }

    /// Whose account it is.
    pub(super) fn tenant(&self, place: usize) -> Option<&Tenant> {
        self.get(place)?.tenant.as_deref()
    }

    /// Tenants that had work in the last round.
    pub(super) fn busy_tenants(&self) -> usize {
        self.were_busy.len()
    }

    /// Whether tasks of the tenant may be visited at `now`.
    #[inline]
    pub(super) fn right(&mut self, place: usize, now: u64) -> Right {
        let (clock, core) = (self.clock, self.core);
        let Some(account) = self.get_mut(place) else { return Right::Turn };
        let Some(tenant) = &account.tenant else { return Right::Turn };
        if tenant.overrun.rests() {
            let left = u64::try_from(tenant.overrun.left().as_nanos()).unwrap_or(u64::MAX);
            return account.throttle(core, now.saturating_add(left), now);
        }
        if tenant.version() != account.version {
            account.refresh(now);
        }
        if now < account.rests_until {
            return account.throttle(core, account.rests_until, now);
        }
        if let Some(server) = &mut account.server {
            let (left, deadline) = (server.left(now), server.deadline);
            if left > 0 {
                account.resume(core, now);
                return Right::Reserved { left, deadline };
            }
            if !server.reclaim {
                return account.throttle(core, deadline, now);
            }
        }
        account.resume(core, now);
        if account.tag > clock.saturating_add(SLACK) {
            return Right::Passed;
        }
        Right::Turn
    }

    /// It is passed over in this round, though it may have work.
    #[inline]
    pub(super) fn passed(&mut self, place: usize) {
        if let Some(account) = self.get_mut(place) {
            let tag = account.tag;
            let before = std::mem::replace(&mut account.busy, true);
            self.note(place, before, tag);
        }
    }

    /// The tenant has work in this round; `before`: that is known.
    #[inline]
    fn note(&mut self, place: usize, before: bool, tag: u64) {
        if !before {
            self.busy.push(place);
        }
        self.least = self.least.min(tag);
    }

    /// What its rate allows now: most items and bytes of a visit. `None`: nothing yet.
    #[inline]
    pub(super) fn allowed(&mut self, place: usize, now: u64) -> Option<(u64, u64)> {
        let free = (u64::MAX, u64::MAX);
        let Some(account) = self.get_mut(place) else { return Some(free) };
        let rate = account.service.rate;
        if rate.items.is_none() && rate.bits.is_none() {
            return Some(free);
        }
        let tenant = account.tenant.as_deref()?;
        let ask = |bucket: &Bucket, rate: Option<u64>, least| {
            rate.map_or(Allowed::Now(u64::MAX), |rate| bucket.allowed(rate, least, SAVED, now))
        };
        let items = ask(&tenant.items, rate.items, LEAST_ITEMS);
        let bits = ask(&tenant.bits, rate.bits, LEAST_BITS);
        let at = match (items, bits) {
            (Allowed::Now(items), Allowed::Now(bits)) => return Some((items, bits.div_ceil(8))),
            (Allowed::At(a), Allowed::At(b)) => a.max(b),
            (Allowed::At(at), _) | (_, Allowed::At(at)) => at,
        };
        account.rests_until = account.rests_until.max(at);
        None
    }

    /// Its visit took so long, until `now`, and so much.
    #[inline]
    pub(super) fn charge(&mut self, place: usize, ns: u64, items: u64, bytes: u64, now: u64) {
        let (clock, core) = (self.clock, self.core);
        let others = ns > LONG && self.tenants > 1;
        let Some(account) = self.get_mut(place) else { return };
        let Some(tenant) = &account.tenant else { return };
        let ns = ns.saturating_add(tenant.take_caused()).saturating_add(std::mem::take(&mut account.looked));
        tenant.add_busy(core, ns);
        let mut reserved = false;
        if let Some(server) = &mut account.server {
            let begun = now.saturating_sub(ns);
            if !account.was_busy && !account.busy {
                server.wake(begun);
            }
            reserved = server.left(begun) > 0;
            if server.pays() {
                server.charge(ns);
            }
        }
        account.tag = account.tag.max(clock);
        // What was guaranteed is not a part of what others share: it neither counts there, nor does their
        // clock wait for it.
        if !reserved {
            let cost = (u128::from(ns) * u128::from(account.scale)) >> 16;
            account.tag = account.tag.saturating_add(u64::try_from(cost).unwrap_or(u64::MAX));
        }
        if let Some(rate) = account.service.rate.items {
            tenant.items.add(bucket::time_of(items, rate), u64::MAX, bucket::parts(now));
        }
        if let Some(rate) = account.service.rate.bits {
            let time = bucket::time_of(bytes.saturating_mul(8), rate);
            tenant.bits.add(time, u64::MAX, bucket::parts(now));
        }
        if others {
            account.rests_until = now.saturating_add(ns);
        }
        let tag = if reserved { u64::MAX } else { account.tag };
        let before = std::mem::replace(&mut account.busy, true);
        self.note(place, before, tag);
    }

    /// Its tasks were looked at for so long, and had no work. That is charged as visits are, but it does not
    /// make the tenant one that has work.
    #[inline]
    pub(super) fn looked(&mut self, place: usize, ns: u64) {
        let (clock, core) = (self.clock, self.core);
        let Some(account) = self.get_mut(place) else { return };
        account.looked = account.looked.saturating_add(ns);
        if account.looked > LOOKED {
            account.pay_looks(core, clock);
        }
    }

    /// Whether one more task of the tenant may be looked at between the visits of this round: `most` may.
    pub(super) fn one_more_check(&mut self, place: usize, most: u8) -> bool {
        let round = self.rounds;
        let Some(account) = self.get_mut(place) else { return false };
        let before = if account.checked.0 == round { account.checked.1 } else { 0 };
        account.checked = (round, before.saturating_add(1).min(most));
        before < most
    }

    /// A round is over: the clock goes on to the least tag of those that had work.
    pub(super) fn end_round(&mut self) {
        if self.least != u64::MAX {
            self.clock = self.clock.max(self.least);
        }
        self.least = u64::MAX;
        self.rounds = self.rounds.wrapping_add(1);
        std::mem::swap(&mut self.busy, &mut self.were_busy);
        // Those of the round before, unless they are among those of this one, too.
        while let Some(place) = self.busy.pop() {
            if let Some(account) = self.get_mut(place) {
                account.was_busy = false;
            }
        }
        for at in 0..self.were_busy.len() {
            let place = self.were_busy[at];
            if let Some(account) = self.get_mut(place) {
                (account.busy, account.was_busy) = (false, true);
            }
        }
    }
}

/// What a tenant takes along from one core to another.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CarriedAccount {
    debt: u64,
    server: Option<BudgetServer>,
}

impl Account {
    fn new(tenant: &Arc<Tenant>, clock: u64) -> Account {
        Account { known: Arc::downgrade(tenant), tag: clock, scale: 1 << 16, ..Account::default() }
    }

    /// Its service has changed.
    #[cold]
    fn refresh(&mut self, now: u64) {
        let Some(tenant) = self.tenant.as_deref() else { return };
        let version = tenant.version();
        if self.version == version {
            return;
        }
        let service = tenant.service();
        // What was taken at another rate is no debt at this one. An account that is new has seen no other:
        // its tenant's debt stays.
        if self.version > 0 && service.rate != self.service.rate {
            tenant.items.forgive();
            tenant.bits.forgive();
            self.rests_until = 0;
        }
        (self.version, self.scale) =
            (version, (u64::from(DEFAULT_WEIGHT) << 16) / u64::from(service.weight.max(1)));
        if service.budget != self.service.budget {
            self.server = service.budget.as_ref().map(|budget| BudgetServer::new(budget, now));
        }
        self.service = service;
    }

    #[cold]
    fn pay_looks(&mut self, core: usize, clock: u64) {
        let ns = std::mem::take(&mut self.looked);
        if let Some(tenant) = &self.tenant {
            tenant.add_busy(core, ns);
        }
        match &mut self.server {
            Some(server) if server.pays() => server.charge(ns),
            _ => {
                let cost = (u128::from(ns) * u128::from(self.scale)) >> 16;
                let cost = u64::try_from(cost).unwrap_or(u64::MAX);
                self.tag = self.tag.max(clock).saturating_add(cost);
            }
        }
    }

    pub(super) fn is_urgent(&self) -> bool {
        self.service.class == Class::Latency
    }

    pub(super) fn has_budget(&self) -> bool {
        self.server.is_some()
    }

    #[cold]
    fn throttle(&mut self, core: usize, until: u64, now: u64) -> Right {
        if self.throttled.is_none() {
            self.throttled = Some(now);
            if let Some(tenant) = &self.tenant {
                tenant.set_throttled(core, true);
            }
        }
        Right::Throttled { until }
    }

    #[inline]
    fn resume(&mut self, core: usize, now: u64) {
        if let Some(since) = self.throttled.take() {
            if let Some(tenant) = &self.tenant {
                tenant.add_throttled(core, now.saturating_sub(since));
                tenant.set_throttled(core, false);
            }
        }
    }
}

/// What is left of one owner's budget.
#[derive(Clone, Copy, Debug)]
pub(super) struct BudgetServer {
    runtime: i64,
    period: u64,
    pub(super) reclaim: bool,
    left: i64,
    /// End of the period, in nanoseconds of the core's clock.
    pub(super) deadline: u64,
}

impl BudgetServer {
    /// A full budget from `now` on.
    pub(super) fn new(budget: &CpuBudget, now: u64) -> BudgetServer {
        let ns = |time: std::time::Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        let (runtime, period) = (ns(budget.runtime).max(1), ns(budget.period).max(1).unsigned_abs());
        BudgetServer {
            runtime,
            period,
            reclaim: budget.reclaim,
            left: runtime,
            deadline: now.saturating_add(period),
        }
    }

    /// Nanoseconds that it may have now; none: it is throttled until its deadline.
    #[inline]
    pub(super) fn left(&mut self, now: u64) -> u64 {
        if now >= self.deadline {
            self.renew(now);
        }
        u64::try_from(self.left).unwrap_or(0)
    }

    #[cold]
    fn renew(&mut self, now: u64) {
        // A whole number of periods has passed, each of which pays a runtime of debt; nothing is saved up.
        let periods = (now - self.deadline) / self.period + 1;
        let paid = self.runtime.saturating_mul(i64::try_from(periods).unwrap_or(i64::MAX));
        self.left = self.left.min(0).saturating_add(paid).min(self.runtime);
        self.deadline = self.deadline.saturating_add(periods.saturating_mul(self.period));
    }

    /// It has work after it had none.
    pub(super) fn wake(&mut self, now: u64) {
        let left = i128::from(self.left(now));
        let until = i128::from(self.deadline - now.min(self.deadline));
        if left * i128::from(self.period) > until * i128::from(self.runtime) {
            (self.left, self.deadline) = (self.runtime, now.saturating_add(self.period));
        }
    }

    /// It was served for so long.
    pub(super) fn charge(&mut self, ns: u64) {
        self.left = self.left.saturating_sub(i64::try_from(ns).unwrap_or(i64::MAX));
    }

    /// Whether what is done now is paid from the budget: some of it was left when it was last asked for, or
    /// the owner has nothing else to pay with.
    pub(super) fn pays(&self) -> bool {
        self.left > 0 || !self.reclaim
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn server(runtime_us: u64, period_ms: u64) -> BudgetServer {
        let budget = CpuBudget {
            runtime: Duration::from_micros(runtime_us),
            period: Duration::from_millis(period_ms),
            reclaim: false,
        };
        BudgetServer::new(&budget, 0)
    }

    /// What an owner that always has work gets of `time`, in visits of `visit` nanoseconds that may last
    /// longer than what is left.
    fn got(mut server: BudgetServer, visit: u64, time: u64) -> u64 {
        let (mut now, mut got) = (0, 0);
        while now < time {
            if server.left(now) > 0 {
                server.charge(visit);
                got += visit;
                now += visit;
            } else {
                now = server.deadline;
            }
        }
        got
    }

    #[test]
    fn a_busy_owner_gets_its_share_and_no_more() {
        for percent in [1, 5, 25, 50, 95] {
            let got = got(server(percent * 100, 10), 7_777, 10_000_000_000);
            let due = percent * 100_000_000;
            assert!(got.abs_diff(due) < 10_000_000, "{percent} %: {got} of {due}");
        }
    }

    #[test]
    fn a_long_visit_is_paid_back() {
        let mut server = server(1_000, 10);
        server.charge(25_000_000);
        assert_eq!(server.left(9_999_999), 0);
        assert_eq!(server.left(10_000_000), 0, "24 ms of debt, a runtime each period");
        assert_eq!(server.left(239_999_999), 0);
        assert_eq!(server.left(250_000_000), 1_000_000);
    }

    #[test]
    fn idle_time_is_not_saved_up_and_a_late_wake_gets_no_more_than_its_share() {
        let mut idle = server(1_000, 10);
        assert_eq!(idle.left(3_600_000_000_000), 1_000_000);
        // Ten milliseconds' budget, and one left until the deadline: it would have the whole core until then
        // and all of the next runtime behind it.
        let mut late = server(5_000, 10);
        late.wake(9_000_000);
        assert_eq!((late.left(9_000_000), late.deadline), (5_000_000, 19_000_000));
        // Having used most of it, it goes on in its period.
        let mut used = server(5_000, 10);
        used.charge(4_900_000);
        used.wake(9_000_000);
        assert_eq!((used.left(9_000_000), used.deadline), (100_000, 10_000_000));
    }

    #[test]
    fn clocks_that_jump_do_no_harm() {
        let mut server = server(1_000, 10);
        server.charge(u64::MAX);
        server.charge(u64::MAX);
        assert_eq!(server.left(0), 0);
        server.left(u64::MAX);
        server.wake(0);
        server.wake(u64::MAX);
        assert!(server.left(u64::MAX) <= 1_000_000);
    }
}
