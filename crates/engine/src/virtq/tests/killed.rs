//! The device is killed after every single store that it makes into the ring or its region, in one life after
//! the other; each request is answered exactly once.

use super::{Dice, Queue, Request, Whose, World};
use crate::mem::last_store;
use crate::virtq::Position;

/// A life of so many steps, which ends early with its last store. What is told to the driver is always its
/// own number.
fn live(world: &mut World, dice: &mut Dice, steps: usize) {
    let mut queue = world.start().unwrap();
    let mut flying: Vec<(Request, u32)> = Vec::new();
    let mut newest = None;
    for _ in 0..steps {
        if last_store::left() == 0 {
            break;
        }
        match dice.roll(8) {
            0..=2 => {
                let _ = world.offer(1 + dice.roll(4) as u32, dice.roll(3) == 0);
            }
            3 => {
                for (request, number) in world.pick(&mut queue, 1 + dice.roll(4)) {
                    assert!(world.waits.values().any(|waits| *waits == number), "{number} was answered");
                    // Offered in this order, picked in this order, the first time and again.
                    assert!(newest.replace(number) < Some(number), "{number} behind {newest:?}");
                    flying.push((request, number));
                }
            }
            4 | 5 if !flying.is_empty() => {
                let (request, number) = flying.swap_remove(dice.roll(flying.len()));
                queue.finish(request.token, number);
            }
            6 => {
                let _ = queue.publish();
            }
            _ => {
                let _ = world.reap();
            }
        }
    }
}

fn worlds() -> impl Iterator<Item = (u16, bool, Whose)> {
    [(4, false), (4, true), (7, true), (16, false), (16, true)]
        .into_iter()
        .flat_map(|(entries, packed)| [Whose::FrontEnds, Whose::Ours].map(|whose| (entries, packed, whose)))
}

/// The lives of a device: killed after so many stores each, and a last one that goes on to the end.
fn lives(world: (u16, bool, Whose), seed: u64, kills: &[u64]) -> u64 {
    let (entries, packed, whose) = world;
    let mut world = World::new(entries, packed, whose);
    let mut dice = Dice(seed);
    let mut made = 0;
    for stores in kills {
        last_store::after(*stores);
        live(&mut world, &mut dice, 60);
        made = stores - last_store::left();
        // The driver goes on while no daemon is there.
        if dice.roll(2) == 0 {
            world.reap();
            world.offer(1, false);
        }
    }
    last_store::after(u64::MAX);
    let mut queue = world.start().unwrap();
    world.finish_all(&mut queue);
    made
}

#[test]
fn each_request_is_answered_once_wherever_the_device_is_killed() {
    let mut killed = 0;
    for world in worlds() {
        for seed in 0..12 {
            let stores = lives(world, seed, &[u64::MAX]);
            assert!(stores > 30, "{stores}");
            for kill in 0..=stores {
                lives(world, seed, &[kill]);
                killed += 1;
            }
        }
    }
    assert!(killed > 10_000, "{killed}");
}

/// Killed again while it recovers, and again soon after.
#[test]
fn a_recovery_that_is_killed_is_made_again() {
    let mut dice = Dice(7);
    for world in worlds() {
        for seed in 0..40 {
            let first = 20 + dice.roll(200) as u64;
            for second in 0..30 {
                let third = dice.roll(60) as u64;
                lives(world, seed, &[first, second, third, second, 80]);
            }
        }
    }
}

/// A batch that is a whole lap ends where it began, but for the wrap counter.
#[test]
fn a_batch_of_a_whole_lap_is_not_taken_for_none() {
    for packed in [false, true] {
        let mut stores = 0;
        // The first time all stores are made, and counted from the publishing on.
        let run = |kill: Option<u64>| {
            let mut world = World::new(8, packed, Whose::FrontEnds);
            let mut queue = world.start().unwrap();
            while world.offer(1, false).is_some() {}
            let all = world.pick(&mut queue, 8);
            assert_eq!(all.len(), 8);
            for (request, number) in all.iter().rev() {
                queue.finish(request.token, *number);
            }
            last_store::after(kill.unwrap_or(u64::MAX));
            queue.publish();
            let made = u64::MAX - last_store::left();
            last_store::after(u64::MAX);
            let seen = world.reap();
            let mut queue = world.start().unwrap();
            assert_eq!(queue.in_flight(), 8 - seen, "kill after {kill:?}");
            world.finish_all(&mut queue);
            made
        };
        stores += run(None);
        for kill in 0..=stores {
            run(Some(kill));
        }
    }
}

/// A batch of several requests, the first of several descriptors, is cut off before it is visible; the next
/// batch ends in front of what the first one left.
#[test]
fn used_descriptors_of_a_batch_that_never_was_are_not_seen() {
    for kill in 0..40 {
        let mut world = World::new(8, true, Whose::FrontEnds);
        let mut queue = world.start().unwrap();
        for buffers in [3, 1, 2] {
            world.offer(buffers, false);
        }
        let all = world.pick(&mut queue, 8);
        for (request, number) in &all[..2] {
            queue.finish(request.token, *number);
        }
        last_store::after(kill);
        queue.publish();
        last_store::after(u64::MAX);
        world.reap();
        let mut queue = world.start().unwrap();
        let mut again = world.pick(&mut queue, 8);
        // The last one first: it is as long as what lies before the stale one, or not.
        again.reverse();
        for (request, number) in again {
            queue.finish(request.token, number);
            queue.publish();
            assert_eq!(world.reap(), 1);
        }
        world.finish_all(&mut queue);
    }
}

/// Stopped while idle and started elsewhere with another region: nothing is lost, though entry 0 is where an
/// empty list of the last batch points to.
#[test]
fn a_new_region_for_an_old_ring_loses_nothing() {
    for packed in [false, true] {
        let mut world = World::new(8, packed, Whose::FrontEnds);
        let mut queue = world.start().unwrap();
        for _ in 0..3 {
            world.offer(1, false);
            world.finish_all(&mut queue);
        }
        // As after a migration: the ring has run, its new region never.
        let fresh = World::new(8, packed, Whose::FrontEnds);
        world.slots = fresh.slots;
        let mut queue = world.start().unwrap();
        while world.offer(1, false).is_some() {}
        let all = world.pick(&mut queue, 8);
        assert_eq!(all.len(), 8);
        let mut queue = world.start().unwrap();
        assert_eq!(queue.owed(), 8);
        world.finish_all(&mut queue);
    }
}

/// In our own file stands what was about another driver's ring.
#[test]
fn our_own_region_says_nothing_about_another_ring() {
    for packed in [false, true] {
        for done in [0, 1, 5] {
            let mut world = World::new(8, packed, Whose::Ours);
            let mut queue = world.start().unwrap();
            for _ in 0..done {
                world.offer(1, false);
                world.finish_all(&mut queue);
            }
            world.offer(2, false);
            world.offer(1, false);
            assert_eq!(world.pick(&mut queue, 8).len(), 2);
            let mut other = World::new(8, packed, Whose::Ours);
            other.slots = world.slots;
            // As many wait in it from the beginning.
            for _ in 0..3 {
                other.offer(1, false).unwrap();
            }
            let mut queue: Queue = other.start().unwrap();
            assert_eq!((queue.in_flight(), queue.owed()), (0, 0));
            let start =
                if packed { Position::Packed { avail: 0x8000, used: 0x8000 } } else { Position::Split(0) };
            assert_eq!(queue.position(), start);
            other.finish_all(&mut queue);
        }
    }
}
