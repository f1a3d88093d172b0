//! The owners' shares of a core, and their order: rounds by hand, with a clock that goes on by what visits did, so that
//! each test does the same each time. Those of `threads` have real cores.

mod threads;

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use super::by_hand::{ByHand, Others, DELIVERY};
use super::*;

/// The owner of tasks.
#[derive(Default)]
pub(super) struct Guest {
    pub(super) number: u16,
    pub(super) served: Served,
    pub(super) slow: Slow,
    pub(super) stopped: AtomicBool,
}

impl Owner for Guest {
    fn number(&self) -> u16 {
        self.number
    }
    fn name(&self) -> &str {
        "guest"
    }
    fn served(&self) -> &Served {
        &self.served
    }
    fn slow(&self) -> &Slow {
        &self.slow
    }
    fn stop_stalling(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}

fn guest(number: u16, service: Service) -> Arc<Guest> {
    let guest = Guest { number, ..Guest::default() };
    guest.served.set(service);
    Arc::new(guest)
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
        Visit { moved: n, items, bytes: n * self.bytes, cost, elsewhere_ns: 0, end }
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
    leases: Vec<Home<Work>>,
    /// What a look takes of those that are added.
    look: u64,
}

impl Rig {
    fn new() -> Rig {
        Rig { core: ByHand::new(()), leases: Vec::new(), look: 0 }
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
        let (lent, home) = Lent::new(work);
        self.leases.push(home);
        (self.core.take(Box::new(lent)), queue)
    }

    /// Nanoseconds of the core that a guest had.
    fn had(guest: &Guest) -> u64 {
        guest.served.usage().busy_ns
    }
}

const MS: u64 = 1_000_000;

/// How far from equal these shares are: 1 at best (Jain, Chiu and Hawe 1984).
fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|n| *n as f64).sum();
    let squares: f64 = shares.iter().map(|n| (*n as f64).powi(2)).sum();
    sum * sum / (shares.len() as f64 * squares)
}

#[test]
fn time_is_shared_whatever_items_cost_and_however_many_queues_bring_them() {
    let mut rig = Rig::new();
    let guests: Vec<_> = (0..4).map(|number| guest(number, Service::default())).collect();
    rig.add(&guests[0], 100, true);
    rig.add_of(&guests[1], 6_500, 65_536, true, None);
    rig.add(&guests[2], 40_000, true);
    (0..16).for_each(|_| _ = rig.add(&guests[3], 300, true));
    // The first visits are surprises, and paid for.
    rig.core.run(50 * MS);
    // In any window of some length, not only in the end.
    for _ in 0..20 {
        let before: Vec<u64> = guests.iter().map(|guest| Rig::had(guest)).collect();
        rig.core.run(20 * MS);
        let shares: Vec<u64> =
            guests.iter().zip(before).map(|(guest, before)| Rig::had(guest) - before).collect();
        assert!(jain(&shares) > 0.995, "{shares:?}");
    }
}

#[test]
fn shares_go_by_weight() {
    let mut rig = Rig::new();
    let weights = [50u16, 100, 300, 1000];
    let guests = weights.map(|weight| guest(weight, Service { weight, ..Service::default() }));
    guests.iter().for_each(|guest| _ = rig.add(guest, 100, true));
    rig.core.run(500 * MS);
    let all: u64 = guests.iter().map(|guest| Rig::had(guest)).sum();
    for (guest, weight) in guests.iter().zip(weights) {
        let due = all * u64::from(weight) / 1450;
        assert!(Rig::had(guest).abs_diff(due) < due / 20 + MS / 5, "{weight}: {} of {due}", Rig::had(guest));
    }
    // A change holds from the next visit on.
    guests[0].served.set(Service { weight: 1000, ..Service::default() });
    let before = Rig::had(&guests[0]);
    rig.core.run(240 * MS);
    assert!(Rig::had(&guests[0]) - before > 90 * MS);
}

#[test]
fn a_budget_is_guaranteed_and_is_the_limit() {
    for percent in [5, 20, 50, 80, 95] {
        let budget = CpuBudget {
            runtime: Duration::from_micros(percent * 50),
            period: Duration::from_millis(5),
            reclaim: false,
        };
        let mut rig = Rig::new();
        let bound = guest(1, Service { budget: Some(budget), ..Service::default() });
        rig.add(&bound, 100, true);
        // Alone, it has no more than that.
        rig.core.run(200 * MS);
        let due = percent * 2 * MS;
        assert!(Rig::had(&bound).abs_diff(due) < 3 * MS, "{percent} %: {} of {due}", Rig::had(&bound));
        assert!(bound.served.usage().throttled_ns > 0);
        // It is seen to be throttled now and then, for the rest of each period.
        let mut seen = [0, 0];
        for _ in 0..500 {
            rig.core.run(MS / 10);
            seen[usize::from(bound.served.is_throttled(0))] += 1;
        }
        assert!(seen.iter().all(|times| *times > 0), "{percent} %: {seen:?}");
        // Beside nine that want all there is, no less.
        let others: Vec<_> = (2..11).map(|number| guest(number, Service::default())).collect();
        others.iter().for_each(|other| _ = rig.add(other, 100, true));
        let before = Rig::had(&bound);
        rig.core.run(200 * MS);
        let got = Rig::had(&bound) - before;
        // A window of so many periods has the beginning of one more.
        assert!(got.abs_diff(due) < percent * 50_000 + MS, "{percent} %: {got} of {due} beside others");
    }
}

/// A guest with so many of 100 parts of a core in each 10 ms, that may reclaim.
fn reclaimer(percent: u64) -> Arc<Guest> {
    let (runtime, period) = (Duration::from_micros(100 * percent), Duration::from_millis(10));
    guest(1, Service { budget: Some(CpuBudget { runtime, period, reclaim: true }), ..Service::default() })
}

#[test]
fn who_may_reclaim_has_what_others_leave() {
    for percent in [10, 60] {
        let mut rig = Rig::new();
        let bound = reclaimer(percent);
        rig.add(&bound, 100, true);
        // Long enough for a debt of many periods, if what it reclaims were one.
        rig.core.run(1_000 * MS);
        assert!(Rig::had(&bound) > 990 * MS, "alone it has all");
        let other = guest(2, Service::default());
        rig.add(&other, 100, true);
        // The period in which it comes has begun already.
        rig.core.run(20 * MS);
        let before = Rig::had(&bound);
        rig.core.run(100 * MS);
        let got = Rig::had(&bound) - before;
        // Its budget, and of the rest a share as the other's.
        let due = (percent + (100 - percent) / 2) * MS;
        // A window of so many periods has the beginning of one more. With a debt it would have half of the core.
        assert!(got.abs_diff(due) < percent * MS / 10 + 2 * MS, "{percent} %: {got} of {due}");
    }
}

/// Other programs on the core's processor take their time, and none of what is left: on a machine that does other things, too, a
/// guest that may reclaim has all that the core has.
#[test]
fn who_may_reclaim_has_all_that_other_programs_leave_of_the_core() {
    let shares = [(10, 10), (1, 4), (3, 1), (4, 12)];
    for (core, theirs, known) in shares.iter().flat_map(|(a, b)| [(a, b, true), (a, b, false)]) {
        let mut rig = Rig::new();
        let bound = reclaimer(20);
        let (_, queue) = rig.add(&bound, 100, true);
        // There is another owner on the core, as in real life: an owner alone needs no rest.
        rig.add(&guest(2, Service::default()), 100, false);
        rig.core.share_with(Others::new(core * MS, theirs * MS, known));
        rig.core.run(2_000 * MS);
        let ran = rig.core.now() - rig.core.others_had();
        let did = 100 * queue.done.load(Ordering::Relaxed);
        // What others had is charged as a long visit where it is unknown: it is followed by a rest of its length.
        let least = if known { 95 } else { 45 };
        assert!(did > ran * least / 100, "{core}:{theirs} ms, known: {known}: {did} of {ran}");
    }
}

#[test]
fn a_rate_holds_for_all_queues_of_an_owner_together() {
    let rate = Rate { items: Some(100_000), bits: None };
    let mut rig = Rig::new();
    let bound = guest(1, Service { rate, ..Service::default() });
    let queues: Vec<_> = (0..4).map(|_| rig.add(&bound, 100, true).1).collect();
    rig.core.run(1_000 * MS);
    let done: u64 = queues.iter().map(|queue| queue.done.load(Ordering::Relaxed)).sum();
    assert!((99_000..=101_500).contains(&done), "{done}");
    // Bits: 100 Mbit/s of frames of 60 bytes.
    let rate = Rate { items: None, bits: Some(100_000_000) };
    bound.served.set(Service { rate, ..Service::default() });
    rig.core.run(1_000 * MS);
    let more: u64 = queues.iter().map(|queue| queue.done.load(Ordering::Relaxed)).sum::<u64>() - done;
    assert!((200_000..=220_000).contains(&more), "{more}");
}

/// One request in 100 µs beside ten floods: what it waits for, with these rules.
fn wait_beside_floods(tuning: &Tuning, class: Class) -> (u64, u64) {
    let mut rig = Rig { core: ByHand::tuned((), tuning), leases: Vec::new(), look: 0 };
    for number in 0..10 {
        rig.add(&guest(number, Service::default()), 100, true);
    }
    let victim = guest(99, Service { class, ..Service::default() });
    let (id, queue) = rig.add(&victim, 400, false);
    for _ in 0..2_000 {
        queue.waiting.fetch_add(1, Ordering::Relaxed);
        rig.core.run(100_000);
    }
    assert_eq!(queue.waiting.load(Ordering::Relaxed), 0);
    let status = rig.core.status(id);
    (status.wait_p99_ns, status.early)
}

#[test]
fn a_request_among_floods_is_served_early() {
    let (stuck, early) = wait_beside_floods(&Tuning::default(), Class::Throughput);
    assert!(stuck <= 26_000 && early > 1_000, "{stuck} ns, {early} early");
    let (urgent, early) = wait_beside_floods(&Tuning::default(), Class::Latency);
    assert!(urgent <= 16_000 && early > 1_000, "{urgent} ns, {early} early");
    // Without the rule it waits for all the others: the rule is what did it.
    let off = Tuning { urgent: false, ..Tuning::default() };
    let (wait, early) = wait_beside_floods(&off, Class::Latency);
    assert!(wait > 3 * stuck && early == 0, "{wait} ns");
}

/// A look may wait for a page of the guest's.
#[test]
fn whoever_has_looks_wait_pays_for_them() {
    for class in [Class::Throughput, Class::Latency] {
        let mut rig = Rig::new();
        let others: Vec<_> = (2..5).map(|number| guest(number, Service::default())).collect();
        others.iter().for_each(|other| _ = rig.add(other, 100, true));
        let evil = guest(1, Service { class, ..Service::default() });
        rig.look = 100_000;
        let (_, queue) = rig.add(&evil, 100, false);
        // One of them comes before it is known.
        for _ in 0..1_000 {
            queue.waiting.store(1, Ordering::Relaxed);
            rig.core.run(MS);
        }
        let (evil, others) = (Rig::had(&evil), others.iter().map(|other| Rig::had(other)));
        let least = others.clone().min().unwrap();
        assert!(jain(&others.collect::<Vec<_>>()) > 0.999);
        assert!(evil < least + 2 * MS && least > 240 * MS, "{evil} against {least}");
    }
}

#[test]
fn a_flood_that_calls_itself_urgent_has_its_share_and_no_more() {
    let mut rig = Rig::new();
    let urgent = guest(1, Service { class: Class::Latency, ..Service::default() });
    rig.add(&urgent, 100, true);
    let others: Vec<_> = (2..5).map(|number| guest(number, Service::default())).collect();
    others.iter().for_each(|other| _ = rig.add(other, 100, true));
    rig.core.run(400 * MS);
    let had = Rig::had(&urgent);
    assert!((99 * MS..=102 * MS).contains(&had), "{had} of 400 ms");
}

#[test]
fn silence_is_not_saved_up_and_debt_is_not_shed_by_leaving() {
    let mut rig = Rig::new();
    let (sleeper, other) = (guest(1, Service::default()), guest(2, Service::default()));
    let (_, queue) = rig.add(&sleeper, 100, false);
    rig.add(&other, 100, true);
    rig.core.run(100 * MS);
    rig.core.pass(3_600_000 * MS);
    // An hour later it has as much to do as it likes.
    queue.waiting.store(u64::MAX / 2, Ordering::Relaxed);
    let before = Rig::had(&sleeper);
    rig.core.run(20 * MS);
    // It was cold, and its event is not part of this test: it is found by hand.
    let had = Rig::had(&sleeper) - before;
    assert!(had <= 10 * MS + MS / 5, "{had}");
    // One whose items are dear leaves with its debt, and comes back.
    let thief = guest(3, Service::default());
    let mut had = 0;
    let before = Rig::had(&other);
    for _ in 0..100 {
        let (id, _) = rig.add(&thief, 50_000, true);
        rig.core.run(MS);
        rig.core.give_back(id);
        had = Rig::had(&thief);
    }
    let others = Rig::had(&other) - before;
    assert!(had > MS && had <= others + 13 * MS, "{had} against {others}");
}

#[test]
fn a_guest_is_charged_for_what_it_makes_others_do() {
    let mut rig = Rig::new();
    let (toggler, other) = (guest(1, Service::default()), guest(2, Service::default()));
    rig.add(&toggler, 100, true);
    rig.add(&other, 100, true);
    for _ in 0..100 {
        toggler.served.caused(Duration::from_micros(500));
        rig.core.run(MS);
    }
    let (had, others) = (Rig::had(&toggler), Rig::had(&other));
    // 50 ms of control work, and half of what there was.
    assert!(had.abs_diff(others + 2 * MS) < 54 * MS && others > 70 * MS, "{had} against {others}");
}

#[test]
fn silent_tasks_cost_nothing_until_they_have_work() {
    let mut rig = Rig::new();
    let busy = guest(1, Service::default());
    rig.add(&busy, 100, true);
    let silent: Vec<_> = (0..300).map(|n| rig.add(&guest(100 + n, Service::default()), 100, false)).collect();
    let napper = guest(50, Service::default());
    let (nap_id, nap) = rig.add_of(&napper, 100, 60, false, Some(Duration::from_millis(1)));
    rig.core.run(200 * MS);
    let empty = |rig: &Rig| silent.iter().map(|(id, _)| rig.core.status(*id).empty).sum::<u64>();
    assert!(silent.iter().all(|(_, queue)| queue.armed.load(Ordering::Relaxed)), "all wake the core");
    let (before, arms) =
        (empty(&rig), silent.iter().map(|(_, q)| q.arms.load(Ordering::Relaxed)).sum::<u64>());
    rig.core.run(200 * MS);
    assert_eq!(empty(&rig), before, "none was looked at");
    assert_eq!(arms, 300, "and each was armed once");
    assert_eq!(rig.core.status(silent[0].0).heat, Heat::Cold);
    // One that asked for it is looked at in time.
    nap.waiting.store(5, Ordering::Relaxed);
    rig.core.run(2 * MS);
    assert_eq!(nap.done.load(Ordering::Relaxed), 5);
    assert_eq!(rig.core.status(nap_id).heat, Heat::Polled, "and polled from now on");
}

#[test]
fn a_rule_that_is_off_does_nothing() {
    // Silent tasks stay polled.
    let off = Tuning { cold: false, ..Tuning::default() };
    let mut rig = Rig { core: ByHand::tuned((), &off), leases: Vec::new(), look: 0 };
    rig.add(&guest(1, Service::default()), 100, true);
    let (id, queue) = rig.add(&guest(2, Service::default()), 100, false);
    rig.core.run(200 * MS);
    assert_eq!((queue.arms.load(Ordering::Relaxed), rig.core.status(id).heat), (0, Heat::Polled));
    queue.waiting.store(1, Ordering::Relaxed);
    rig.core.run(MS);
    assert_eq!(queue.done.load(Ordering::Relaxed), 1, "it is looked at, though it has no event");
    // Without weights, budgets and rates all have the same, though others were told so a moment ago.
    let mut rig = Rig::new();
    let graded = guest(1, Service { weight: 1000, ..Service::default() });
    let plain = guest(2, Service::default());
    [&graded, &plain].iter().for_each(|guest| _ = rig.add(guest, 100, true));
    rig.core.run(110 * MS);
    assert!(Rig::had(&graded) > 9 * Rig::had(&plain), "the policy in force is seen by its effect");
    graded.served.set(Service::default());
    let before = [&graded, &plain].map(|guest| Rig::had(guest));
    rig.core.run(100 * MS);
    let had = [Rig::had(&graded) - before[0], Rig::had(&plain) - before[1]];
    assert!(jain(&had) > 0.999, "{had:?}");
}

#[test]
fn clocks_that_jump_starve_nobody() {
    let mut rig = Rig::new();
    let guests: Vec<_> = (0..3).map(|number| guest(number, Service::default())).collect();
    let budget =
        CpuBudget { runtime: Duration::from_millis(1), period: Duration::from_millis(5), reclaim: false };
    guests[2].served.set(Service { budget: Some(budget), ..Service::default() });
    guests.iter().for_each(|guest| _ = rig.add(guest, 100, true));
    for jump in [0, 10_000 * MS, 1, 3_600_000 * MS] {
        rig.core.pass(jump);
        let before: Vec<u64> = guests.iter().map(|guest| Rig::had(guest)).collect();
        rig.core.run(50 * MS);
        let had: Vec<u64> =
            guests.iter().zip(&before).map(|(guest, before)| Rig::had(guest) - before).collect();
        assert!(had.iter().all(|had| *had > 8 * MS), "{had:?} after {jump}");
    }
    assert!(rig.core.now() > 0);
}

#[test]
fn a_clock_of_the_wrong_rate_changes_no_share_and_starves_nobody() {
    let mut rig = Rig::new();
    let budget =
        CpuBudget { runtime: Duration::from_millis(1), period: Duration::from_millis(5), reclaim: false };
    let bound = guest(1, Service { budget: Some(budget), ..Service::default() });
    let (_, of_bound) = rig.add(&bound, 100, true);
    let floods = [2, 3].map(|number| rig.add(&guest(number, Service::default()), 100, true).1);
    rig.core.run(50 * MS);
    let (light_id, light) = rig.add(&guest(4, Service::default()), 400, false);
    // What was done is the measure: all items of the three take as long.
    let done = |queue: &Queue| queue.done.load(Ordering::Relaxed);
    // Right, at half the rate and at twice the rate, and from one to the other.
    for halves in [2, 1, 4, 1, 2] {
        rig.core.set_rate(halves);
        let before = [&of_bound, &floods[0], &floods[1]].map(|queue| done(queue));
        for _ in 0..1_000 {
            light.waiting.fetch_add(1, Ordering::Relaxed);
            // 100 µs of the right time.
            rig.core.run(50_000 * halves);
        }
        let [bound, a, b] = [&of_bound, &floods[0], &floods[1]].map(|queue| done(queue));
        let [bound, a, b] = [bound - before[0], a - before[1], b - before[2]];
        // The light one's 1,000 requests took four times as long each.
        let all = bound + a + b + 4_000;
        assert!(bound.abs_diff(all / 5) < all / 50, "rate {halves}: {bound} beside {a} and {b}");
        assert!(jain(&[a, b]) > 0.999 && all > 990_000, "rate {halves}: {a} and {b}");
        assert_eq!(light.waiting.load(Ordering::Relaxed), 0, "rate {halves}");
    }
    assert!(rig.core.status(light_id).wait_p99_ns < 100_000);
}

#[test]
fn what_goes_to_a_core_whose_clock_is_a_microsecond_behind_gains_and_loses_nothing() {
    use super::accounts::{Accounts, Luggage, Right};
    let budget =
        CpuBudget { runtime: Duration::from_millis(1), period: Duration::from_millis(5), reclaim: false };
    let bound = guest(1, Service { budget: Some(budget), ..Service::default() });
    let owner = Arc::clone(&bound) as Arc<dyn Owner>;
    let mut cores = [Accounts::new(0), Accounts::new(1)];
    let (mut luggage, mut had, mut left) = (Luggage::default(), 0, 0);
    // Core 1 is behind by a microsecond; the budget goes to and fro each 10 µs, and is used as fast as it may be.
    for turn in 0..100_000u64 {
        let core = usize::try_from(turn % 2).unwrap();
        let now = 10_000 + turn * 10_000 - 1_000 * (turn % 2);
        let place = cores[core].join(&owner, luggage, now);
        if let Right::Reserved { left: most, .. } = cores[core].right(place, now) {
            assert!(most <= MS, "{most} left of a runtime");
            cores[core].charge(place, 9_000, 1, 60, now + 9_000);
            had += 9_000;
            left = most;
        }
        luggage = cores[core].leave(place);
    }
    // A second of it: 200 periods of a millisecond each.
    assert!(u64::abs_diff(had, 200 * MS) <= 2 * MS + left, "{had} of {}", 200 * MS);
}

#[test]
fn a_nap_of_nothing_hangs_no_core() {
    let mut rig = Rig::new();
    let (napper, other) = (guest(1, Service::default()), guest(2, Service::default()));
    let (id, queue) = rig.add_of(&napper, 100, 60, false, Some(Duration::ZERO));
    rig.add(&other, 100, true);
    rig.core.run(100 * MS);
    assert_eq!(rig.core.status(id).heat, Heat::Cold);
    assert!(Rig::had(&other) > 90 * MS);
    queue.waiting.store(1, Ordering::Relaxed);
    rig.core.run(MS);
    assert_eq!(queue.done.load(Ordering::Relaxed), 1);
}

/// A queue full of what is no work: each visit takes this long and finds nothing.
struct Junk(Arc<Guest>, u64);

impl Task<()> for Junk {
    fn owner(&self) -> Arc<dyn Owner> {
        Arc::clone(&self.0) as Arc<dyn Owner>
    }
    fn visit(&mut self, (): &mut (), _: Budget) -> Visit {
        Visit { cost: usize::try_from(self.1 / DELIVERY).unwrap(), ..Visit::default() }
    }
    fn arm(&mut self) -> bool {
        true
    }
    fn disarm(&mut self) {}
    fn events<'t>(&'t self, _: &mut dyn FnMut(BorrowedFd<'t>)) {}
    fn next_look(&self) -> Option<Duration> {
        None
    }
    fn settle(&mut self, (): &mut ()) {}
}

#[test]
fn looking_for_work_in_vain_is_paid_for() {
    let mut rig = Rig::new();
    let (junk, other) = (guest(1, Service::default()), guest(2, Service::default()));
    rig.core.take(Box::new(Lent::new(Junk(Arc::clone(&junk), 50_000)).0));
    let (_, queue) = rig.add(&other, 100, false);
    // The other has little at a time, so that each round is short for it.
    for _ in 0..10_000 {
        queue.waiting.fetch_add(100, Ordering::Relaxed);
        rig.core.run(10_000);
    }
    let (had, others) = (Rig::had(&junk), Rig::had(&other));
    assert!(others > 45 * MS && had > MS, "{had} against {others} of 100 ms");
}

#[test]
fn what_a_budget_guaranteed_is_no_debt_and_holds_no_clock() {
    let mut rig = Rig::new();
    let budget =
        CpuBudget { runtime: Duration::from_millis(5), period: Duration::from_millis(10), reclaim: false };
    let bound = guest(1, Service { budget: Some(budget), ..Service::default() });
    rig.add(&bound, 100, true);
    let floods = [2, 3].map(|number| guest(number, Service::default()));
    floods.iter().for_each(|flood| _ = rig.add(flood, 100, true));
    rig.core.run(500 * MS);
    // Without its budget it is one of three, at once.
    bound.served.set(Service::default());
    let before = Rig::had(&bound);
    rig.core.run(60 * MS);
    let got = Rig::had(&bound) - before;
    assert!((17 * MS..=23 * MS).contains(&got), "{got} of 60 ms");
    // An owner that uses little of its budget leaves the rest to others, and floods are equals beside it.
    let light = guest(4, Service { budget: Some(budget), ..Service::default() });
    let (_, queue) = rig.add(&light, 100, false);
    let before = floods.each_ref().map(|flood| Rig::had(flood));
    for _ in 0..200 {
        queue.waiting.fetch_add(10, Ordering::Relaxed);
        rig.core.run(MS);
    }
    let had: Vec<u64> = floods.iter().zip(before).map(|(flood, before)| Rig::had(flood) - before).collect();
    assert!(jain(&had) > 0.999 && had.iter().sum::<u64>() > 125 * MS, "{had:?} of 200 ms");
}

#[test]
fn messages_do_not_wait_for_a_runtime() {
    let mut rig = Rig::new();
    let budget =
        CpuBudget { runtime: Duration::from_millis(9), period: Duration::from_millis(10), reclaim: false };
    let bound = guest(1, Service { budget: Some(budget), ..Service::default() });
    rig.add(&bound, 100, true);
    rig.add(&guest(2, Service::default()), 100, true);
    rig.core.run(100 * MS);
    for _ in 0..20 {
        let before = rig.core.now();
        rig.core.post();
        rig.core.round(0);
        assert!(rig.core.now() - before < MS / 2, "{} ns", rig.core.now() - before);
        rig.core.rest(false);
    }
}

#[test]
fn an_owner_that_left_with_debt_is_let_go() {
    let mut rig = Rig::new();
    let (owner, other) = (guest(1, Service::default()), guest(2, Service::default()));
    let (id, _) = rig.add(&owner, 50_000, true);
    rig.add(&other, 100, true);
    rig.core.run(MS);
    rig.core.give_back(id);
    // Its lease holds the task, which knows it; ours is the other one.
    rig.leases.clear();
    assert_eq!(Arc::strong_count(&owner), 1);
}

#[test]
fn a_bit_rate_bounds_the_bytes_of_a_visit() {
    let mut rig = Rig::new();
    let rate = Rate { items: None, bits: Some(80_000_000) };
    let bound = guest(1, Service { rate, ..Service::default() });
    let (_, queue) = rig.add_of(&bound, 1_000, 65_536, true, None);
    rig.core.round(0);
    // A burst of 2 ms is 20,000 bytes: the frame of 64 KiB that may be first is the only one.
    assert!(queue.done.load(Ordering::Relaxed) <= 2, "{queue:?}");
}

/// A queue that has to be looked at often, and has nothing: each look takes this long.
struct Idle(Arc<Guest>, u64, Option<Duration>);

impl Task<()> for Idle {
    fn owner(&self) -> Arc<dyn Owner> {
        Arc::clone(&self.0) as Arc<dyn Owner>
    }
    fn visit(&mut self, (): &mut (), _: Budget) -> Visit {
        Visit { cost: usize::try_from(self.1 / DELIVERY).unwrap(), end: VisitEnd::Waits, ..Visit::default() }
    }
    fn arm(&mut self) -> bool {
        self.2.is_none()
    }
    fn disarm(&mut self) {}
    fn events<'t>(&'t self, _: &mut dyn FnMut(BorrowedFd<'t>)) {}
    fn next_look(&self) -> Option<Duration> {
        self.2
    }
    fn settle(&mut self, (): &mut ()) {}
}

#[test]
fn many_short_looks_are_paid_for() {
    let mut rig = Rig::new();
    let (idler, other) = (guest(1, Service::default()), guest(2, Service::default()));
    for _ in 0..15 {
        rig.core.take(Box::new(Lent::new(Idle(Arc::clone(&idler), 400, None)).0));
    }
    // It always has a little, so none of its queues is ever silent for long.
    let (_, little) = rig.add(&idler, 100, false);
    let (_, queue) = rig.add(&other, 100, false);
    for _ in 0..20_000 {
        little.waiting.store(1, Ordering::Relaxed);
        queue.waiting.store(100, Ordering::Relaxed);
        rig.core.run(5_000);
    }
    let (time, had, others) = (rig.core.now(), Rig::had(&idler), Rig::had(&other));
    assert!(others > time * 45 / 100 && had + others > time * 9 / 10, "{had} and {others} of {time}");
}

#[test]
fn naps_that_end_together_hold_nobody_up() {
    let mut rig = Rig::new();
    let (napper, other) = (guest(1, Service::default()), guest(2, Service::default()));
    // Looking at all of them takes longer than each of them sleeps.
    let nap = Some(Duration::from_micros(50));
    for _ in 0..256 {
        rig.core.take(Box::new(Lent::new(Idle(Arc::clone(&napper), 1_000, nap)).0));
    }
    rig.add(&other, 100, true);
    rig.core.run(100 * MS);
    let before = Rig::had(&other);
    rig.core.run(100 * MS);
    let got = Rig::had(&other) - before;
    assert!(got > 45 * MS, "{got} of 100 ms");
}
