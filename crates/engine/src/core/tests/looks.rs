//! When tasks are looked at (early, late, not at all), and that their owners pay for looks.

use super::*;

/// One request in 100 µs beside ten floods: what it waits for, with these rules.
fn wait_beside_floods(tuning: &Tuning, class: Class) -> (u64, u64) {
    let mut rig = Rig { core: ByHand::tuned((), tuning), look: 0 };
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
    // So is one whose memory shows work, though none of them has an event here.
    silent[17].1.waiting.store(5, Ordering::Relaxed);
    rig.core.run(MS / 2);
    assert_eq!(silent[17].1.done.load(Ordering::Relaxed), 5);
}

#[test]
fn looks_at_cold_tasks_that_take_long_are_paid_for() {
    let mut rig = Rig::new();
    let (evil, other) = (guest(1, Service::default()), guest(2, Service::default()));
    rig.add(&other, 100, true);
    rig.look = 100_000;
    (0..64).for_each(|_| _ = rig.add(&evil, 100, false));
    rig.core.run(100 * MS);
    let before = Rig::had(&other);
    rig.core.run(100 * MS);
    let got = Rig::had(&other) - before;
    assert!(got > 45 * MS, "{got} of 100 ms");
}

#[test]
fn a_rule_that_is_off_does_nothing() {
    // Silent tasks stay polled.
    let off = Tuning { cold: false, ..Tuning::default() };
    let mut rig = Rig { core: ByHand::tuned((), &off), look: 0 };
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
    graded.tenant.set(Service::default());
    let before = [&graded, &plain].map(|guest| Rig::had(guest));
    rig.core.run(100 * MS);
    let had = [Rig::had(&graded) - before[0], Rig::had(&plain) - before[1]];
    assert!(jain(&had) > 0.999, "{had:?}");
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
    rig.take(Junk(Arc::clone(&junk), 50_000));
    let (_, queue) = rig.add(&other, 100, false);
    // The other has little at a time, so that each round is short for it.
    for _ in 0..10_000 {
        queue.waiting.fetch_add(100, Ordering::Relaxed);
        rig.core.run(10_000);
    }
    let (had, others) = (Rig::had(&junk), Rig::had(&other));
    assert!(others > 45 * MS && had > MS, "{had} against {others} of 100 ms");
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
        rig.take(Idle(Arc::clone(&idler), 400, None));
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
        rig.take(Idle(Arc::clone(&napper), 1_000, nap));
    }
    rig.add(&other, 100, true);
    rig.core.run(100 * MS);
    let before = Rig::had(&other);
    rig.core.run(100 * MS);
    let got = Rig::had(&other) - before;
    assert!(got > 45 * MS, "{got} of 100 ms");
}
