//! Budgets and rates: what is guaranteed, what is the limit, and what an owner may reclaim.

use super::super::accounts::{Accounts, CarriedAccount, Right};
use super::*;

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
        assert!(bound.tenant.usage().throttled_ns > 0);
        // It is seen to be throttled now and then, for the rest of each period.
        let mut seen = [0, 0];
        for _ in 0..500 {
            rig.core.run(MS / 10);
            seen[usize::from(bound.tenant.is_throttled(0))] += 1;
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
        // A window of so many periods has the beginning of one more. With a debt it would have half of the
        // core.
        assert!(got.abs_diff(due) < percent * MS / 10 + 2 * MS, "{percent} %: {got} of {due}");
    }
}

/// Other programs on the core's processor take their time, and none of what is left: on a machine that does
/// other things, too, a guest that may reclaim has all that the core has.
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
        // What others had is charged as a long visit where it is unknown: it is followed by a rest of its
        // length.
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
    bound.tenant.set(Service { rate, ..Service::default() });
    rig.core.run(1_000 * MS);
    let more: u64 = queues.iter().map(|queue| queue.done.load(Ordering::Relaxed)).sum::<u64>() - done;
    assert!((200_000..=220_000).contains(&more), "{more}");
}

#[test]
fn what_goes_to_a_core_whose_clock_is_a_microsecond_behind_gains_and_loses_nothing() {
    let budget =
        CpuBudget { runtime: Duration::from_millis(1), period: Duration::from_millis(5), reclaim: false };
    let bound = guest(1, Service { budget: Some(budget), ..Service::default() });
    let mut cores = [Accounts::new(0), Accounts::new(1)];
    let (mut carried, mut had, mut left) = (CarriedAccount::default(), 0, 0);
    // Core 1 is behind by a microsecond; the budget goes to and fro each 10 µs, and is used as fast as it may
    // be.
    for turn in 0..100_000u64 {
        let core = usize::try_from(turn % 2).unwrap();
        let now = 10_000 + turn * 10_000 - 1_000 * (turn % 2);
        let place = cores[core].join(&bound.tenant, carried, now);
        if let Right::Reserved { left: most, .. } = cores[core].right(place, now) {
            assert!(most <= MS, "{most} left of a runtime");
            cores[core].charge(place, 9_000, 1, 60, now + 9_000);
            had += 9_000;
            left = most;
        }
        carried = cores[core].leave(place);
    }
    // A second of it: 200 periods of a millisecond each.
    assert!(u64::abs_diff(had, 200 * MS) <= 2 * MS + left, "{had} of {}", 200 * MS);
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
    bound.tenant.set(Service::default());
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
fn a_bit_rate_bounds_the_bytes_of_a_visit() {
    let mut rig = Rig::new();
    let rate = Rate { items: None, bits: Some(80_000_000) };
    let bound = guest(1, Service { rate, ..Service::default() });
    let (_, queue) = rig.add_of(&bound, 1_000, 65_536, true, None);
    rig.core.round(0);
    // A burst of 2 ms is 20,000 bytes: the frame of 64 KiB that may be first is the only one.
    assert!(queue.done.load(Ordering::Relaxed) <= 2, "{queue:?}");
}

#[test]
fn what_was_taken_at_another_rate_is_no_debt_at_a_new_one_or_at_none() {
    let bits = |bits: Option<u64>| Service { rate: Rate { items: None, bits }, ..Service::default() };
    for then in [None, Some(8_000_000_000)] {
        let mut rig = Rig::new();
        let bound = guest(1, bits(Some(10_000)));
        // A disk's request: 400 s at that rate.
        let (_, queue) = rig.add_of(&bound, 1_000, 512 << 10, true, None);
        rig.core.run(100 * MS);
        let before = queue.done.load(Ordering::Relaxed);
        assert!(before == 1 && bound.tenant.is_throttled(0), "{queue:?}");
        bound.tenant.set(bits(then));
        rig.core.run(100 * MS);
        let done = queue.done.load(Ordering::Relaxed) - before;
        // 8 Gbit/s are 100 MB in this time.
        assert!(done > 150 && (then.is_none() || done < 250), "{then:?}: {done}");
        // What is taken at a rate stays a debt while that is the rate, whatever else changes, and on another
        // core, too.
        bound.tenant.set(bits(Some(10_000)));
        rig.core.run(100 * MS);
        let before = queue.done.load(Ordering::Relaxed);
        bound.tenant.set(Service { weight: 7, ..bits(Some(10_000)) });
        let mut other = Accounts::new(1);
        let place = other.join(&bound.tenant, CarriedAccount::default(), rig.core.now());
        assert_eq!(other.allowed(place, rig.core.now()), None);
        rig.core.run(100 * MS);
        assert_eq!(queue.done.load(Ordering::Relaxed), before);
    }
}
