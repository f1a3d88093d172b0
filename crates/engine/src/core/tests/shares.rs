//! Shares: by weight, whatever visits cost; what is saved up, owed and charged; clocks that are wrong.

use super::*;

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
fn ports_of_a_tenant_have_one_share_one_budget_and_one_rate() {
    let mut rig = Rig::new();
    let (card, alone) = (guest(1, Service::default()), guest(2, Service::default()));
    let disk = beside(&card, 3);
    let (_, frames) = rig.add(&card, 100, true);
    let (_, requests) = rig.add_of(&disk, 6_500, 4_096, true, None);
    rig.add(&alone, 100, true);
    rig.core.run(50 * MS);
    let before = [Rig::had(&card), Rig::had(&alone)];
    rig.core.run(100 * MS);
    let had = Rig::had(&card) - before[0];
    assert!(had.abs_diff(50 * MS) < 2 * MS && Rig::had(&disk) == Rig::had(&card), "{had}");
    let done = || requests.done.load(Ordering::Relaxed);
    assert!(done() > 4_000, "both are served: {}", done());
    let budget =
        CpuBudget { runtime: Duration::from_millis(70), period: Duration::from_millis(200), reclaim: false };
    card.tenant.set(Service { budget: Some(budget), ..Service::default() });
    rig.core.run(200 * MS);
    let before = (Rig::had(&disk), done());
    rig.core.run(2_000 * MS);
    let (had, requests) = (Rig::had(&disk) - before.0, done() - before.1);
    assert!(had.abs_diff(700 * MS) < 10 * MS, "{had} of 700 ms");
    assert!(requests > 25_000, "{requests}: a half of that is 54,000");
    let rate = Rate { items: Some(10_000), bits: None };
    card.tenant.set(Service { rate, ..Service::default() });
    rig.core.run(100 * MS);
    let both = || done() + frames.done.load(Ordering::Relaxed);
    let before = both();
    rig.core.run(1_000 * MS);
    assert!((9_900..10_100).contains(&(both() - before)), "{}", both() - before);
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
    guests[0].tenant.set(Service { weight: 1000, ..Service::default() });
    let before = Rig::had(&guests[0]);
    rig.core.run(240 * MS);
    assert!(Rig::had(&guests[0]) - before > 90 * MS);
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
        toggler.tenant.caused(Duration::from_micros(500));
        rig.core.run(MS);
    }
    let (had, others) = (Rig::had(&toggler), Rig::had(&other));
    // 50 ms of control work, and half of what there was.
    assert!(had.abs_diff(others + 2 * MS) < 54 * MS && others > 70 * MS, "{had} against {others}");
}

#[test]
fn clocks_that_jump_starve_nobody() {
    let mut rig = Rig::new();
    let guests: Vec<_> = (0..3).map(|number| guest(number, Service::default())).collect();
    let budget =
        CpuBudget { runtime: Duration::from_millis(1), period: Duration::from_millis(5), reclaim: false };
    guests[2].tenant.set(Service { budget: Some(budget), ..Service::default() });
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
fn an_owner_that_left_with_debt_is_let_go() {
    let mut rig = Rig::new();
    let (owner, other) = (guest(1, Service::default()), guest(2, Service::default()));
    let (id, _) = rig.add(&owner, 50_000, true);
    rig.add(&other, 100, true);
    rig.core.run(MS);
    rig.core.give_back(id);
    // The core holds nothing of it any more; ours is the other one.
    assert_eq!(Arc::strong_count(&owner), 1);
}

/// An item costs what the core did for it, not the time in which another program had the processor: visits
/// stay full.
#[test]
fn other_programs_on_the_processor_make_no_items_dear() {
    let items_a_visit = |others: Option<Others>| {
        let mut rig = Rig::new();
        let (number, _) = rig.add(&guest(1, Service::default()), 100, true);
        if let Some(others) = others {
            rig.core.share_with(others);
        }
        rig.core.run(200 * MS);
        let status = rig.core.status(number);
        status.items / (status.visits - status.empty)
    };
    let alone = items_a_visit(None);
    for theirs in [MS / 4, MS / 2, 3 * MS] {
        let shared = items_a_visit(Some(Others::new(MS / 3, theirs, true)));
        assert!(shared > alone * 9 / 10, "{theirs} ns: {shared} of {alone}");
    }
}

/// Visits that are short, because one was dear, do not stay so where others have the processor in each of
/// them.
#[test]
fn visits_are_full_again_while_other_programs_come_in_each() {
    let mut rig = Rig::new();
    let numbers: Vec<u64> =
        (0..4).map(|number| rig.add(&guest(number, Service::default()), 100, true).0).collect();
    rig.core.share_with(Others::new(0, MS / 5, false));
    rig.core.run(20 * MS);
    rig.core.share_with(Others::new(0, 22_000, true));
    are_full(&mut rig, &numbers);
}

/// Others come in where the core asks what they had: an owner neither pays for that nor rests as long.
#[test]
fn what_others_have_while_the_core_asks_for_it_is_nobodys() {
    let mut rig = Rig::new();
    let guests = [1, 2].map(|number| guest(number, Service::default()));
    // One has dear items, so that it is asked for behind each of its visits.
    let (_, queue) = rig.add(&guests[0], 50_000, true);
    rig.add(&guests[1], 100, true);
    rig.core.run(20 * MS);
    let (had, done) = (Rig::had(&guests[0]), queue.done.load(Ordering::Relaxed));
    rig.core.lose_while_asking(2_000 * MS);
    rig.core.run(2_020 * MS);
    let (had, done) = (Rig::had(&guests[0]) - had, queue.done.load(Ordering::Relaxed) - done);
    assert!(had < 12 * MS && done > 100, "{done} items, {had} ns");
}

/// A signal that takes longer than a turn is no reason to send one for each item.
#[test]
fn visits_are_full_again_while_each_ends_with_a_slow_signal() {
    let mut rig = Rig::new();
    let numbers: Vec<u64> =
        (0..10).map(|number| rig.add(&guest(number, Service::default()), 50, true).0).collect();
    rig.core.share_with(Others::new(0, MS / 5, false));
    rig.core.signals_take(20_000, 0);
    rig.core.run(20 * MS);
    rig.core.share_with(Others::new(MS, 0, true));
    are_full(&mut rig, &numbers);
}

/// What a signal outside of visits takes, such as an interrupt that had to wait, does not hide what items
/// cost.
#[test]
fn dear_items_are_dear_beside_slow_signals_of_others() {
    let mut rig = Rig::new();
    let (number, _) = rig.add(&guest(1, Service::default()), 50_000, true);
    rig.core.signals_take(0, MS);
    rig.core.run(100 * MS);
    let status = rig.core.status(number);
    let each = status.items / (status.visits - status.empty);
    assert!(each < 8, "{each} items of 50 µs a visit");
}

/// After a while, visits to these tasks are of more than 100 items.
fn are_full(rig: &mut Rig, numbers: &[u64]) {
    rig.core.run(200 * MS);
    let before: Vec<_> = numbers.iter().map(|number| rig.core.status(*number)).collect();
    rig.core.run(100 * MS);
    for (number, before) in numbers.iter().zip(before) {
        let now = rig.core.status(*number);
        let each = (now.items - before.items) / (now.visits - before.visits).max(1);
        assert!(each > 100, "{each} items a visit");
    }
}
