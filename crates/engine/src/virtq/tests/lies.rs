//! A front end that writes what it likes into the in-flight region.

use super::{Dice, Pieces, Whose, World};
use crate::virtq::{BadRegion, RingConfigError};

const SIZE: u16 = 8;

/// Sets the 16-bit field at this byte of the region.
fn field(world: &World, at: usize, value: u16) {
    let (slot, shift) = (world.slot(), at % 8 * 8);
    let word = slot.get(at / 8) & !(0xffff << shift);
    slot.set(at / 8, word | u64::from(value) << shift);
}

/// Three requests were done, three are in flight: of one, two and three descriptors.
fn world(packed: bool) -> World {
    let mut world = World::new(SIZE, packed, Whose::FrontEnds);
    let mut queue = world.start().unwrap();
    for _ in 0..3 {
        world.offer(1, false);
        world.finish_all(&mut queue);
    }
    for buffers in 1..=3 {
        world.offer(buffers, false).unwrap();
    }
    assert_eq!(world.pick(&mut queue, 8).len(), 3);
    world
}

fn refused(world: &World) -> BadRegion {
    match world.start().map(drop) {
        Err(RingConfigError::BadRegion(bad)) => bad,
        other => panic!("{other:?}"),
    }
}

#[test]
fn lies_about_the_ring_are_named() {
    for packed in [false, true] {
        let lie = |at, value| {
            let world = world(packed);
            field(&world, at, value);
            refused(&world)
        };
        assert_eq!(lie(8, 2), BadRegion::Version(2));
        assert_eq!(lie(10, 16), BadRegion::Size(16));
        assert_eq!(lie(10, u16::MAX), BadRegion::Size(u16::MAX));
        if packed {
            assert_eq!(lie(16, SIZE), BadRegion::Cursor);
            assert_eq!(lie(18, 0x7fff), BadRegion::Cursor);
        } else {
            // An older index, and a batch that cannot have been.
            assert_eq!(lie(14, 3u16.wrapping_sub(9)), BadRegion::Batch);
            assert_eq!(lie(14, 4), BadRegion::Batch);
        }
    }
}

/// A used index that was never written, a list of zeros, and the request with head 0 in flight.
#[test]
fn an_index_that_was_never_written_clears_nothing() {
    let mut world = World::new(SIZE, false, Whose::FrontEnds);
    let mut queue = world.start().unwrap();
    for _ in 0..2 {
        world.offer(1, false);
        world.offer(1, false);
        world.finish_all(&mut queue);
    }
    world.offer(1, false);
    world.pick(&mut queue, 8);
    field(&world, 12, 0);
    field(&world, 14, 0);
    for head in 0..usize::from(SIZE) {
        field(&world, 16 + 16 * head + 6, 0);
    }
    let before: Vec<u64> = (0..20).map(|i| world.slot().get(i)).collect();
    assert_eq!(refused(&world), BadRegion::Batch);
    assert_eq!((0..20).map(|i| world.slot().get(i)).collect::<Vec<_>>(), before);
}

#[test]
fn lists_that_cannot_be_are_named() {
    let entry = |i: usize| 32 + 32 * i;
    let lie = |at, value| {
        let world = world(true);
        field(&world, at, value);
        refused(&world)
    };
    // Entries of the three: 0; 1, 2; 3, 4, 5. Free: 6, 7. (After three that were alone in entry 0.)
    assert_eq!(lie(14, SIZE), BadRegion::Lists, "two are in no list");
    assert_eq!(lie(entry(7) + 2, 6), BadRegion::Lists, "free ones in a circle");
    assert_eq!(lie(entry(1) + 2, 1), BadRegion::Lists, "a request in a circle");
    assert_eq!(lie(entry(1) + 2, 3), BadRegion::Lists, "into another");
    assert_eq!(lie(entry(1) + 2, u16::MAX), BadRegion::Lists, "out of the region");
    assert_eq!(lie(entry(1) + 4, 5), BadRegion::Lists, "another's last");
    for num in [0, 1, 3, u16::MAX] {
        assert_eq!(lie(entry(1) + 6, num), BadRegion::Lists, "{num} entries instead of 2");
    }
    assert_eq!(lie(entry(0), 0), BadRegion::Lists, "one that is neither free nor in flight");
    let world = world(true);
    let id = world.slot().get(entry(0) / 8 + 2) as u16;
    field(&world, entry(2) + 16, id);
    assert_eq!(refused(&world), BadRegion::SameId(id));
}

/// Counters only say what comes first.
#[test]
fn counters_may_be_any() {
    for packed in [false, true] {
        for counter in [0, 1, u64::MAX] {
            let mut world = world(packed);
            let (head, words) = if packed { (4, 4) } else { (2, 2) };
            for i in 0..usize::from(SIZE) {
                world.slot().set(head + words * i + 1, counter);
            }
            let mut queue = world.start().unwrap();
            assert_eq!(queue.owed(), 3);
            world.offer(1, false);
            world.finish_all(&mut queue);
        }
    }
}

/// What a packed request's copies say is as good as what any descriptor says.
#[test]
fn copies_are_descriptors_like_any() {
    use crate::util::fault::Fault;
    let lies: [(usize, u16, Fault); 4] = [
        // What the request with two descriptors says: no more follows; more follows; the other way; far away.
        (32 + 32 + 18, 0, Fault::ChainTooLong),
        (32 + 64 + 18, 3, Fault::ChainTooLong),
        (32 + 64 + 18, 4, Fault::BadIndirect),
        (32 + 64 + 30, 0x7fff, Fault::AddressOutOfRange),
    ];
    for (at, value, fault) in lies {
        let world = world(true);
        field(&world, at, value);
        let mut queue = world.start().unwrap();
        let (mut pieces, mut out) = (Pieces::new(64), Vec::new());
        assert_eq!(queue.pick(8, &mut pieces, &mut out), Ok(1), "the one before it is good");
        assert_eq!(queue.pick(8, &mut pieces, &mut out), Err(fault));
    }
}

/// Any words at all: the ring is refused, or it runs and gives back no more than the driver offered.
#[test]
fn any_words_are_survived() {
    let mut dice = Dice(1);
    let (mut ran, mut named) = (0, Vec::new());
    for round in 0..10_000 {
        let packed = round % 2 == 0;
        let whose = if round % 3 == 0 { Whose::Ours } else { Whose::FrontEnds };
        let world = World { whose, ..world(packed) };
        for _ in 0..=dice.roll(4) {
            // One field, most often with a number that could be one.
            let at = dice.roll(if packed { 32 + 32 * 8 } else { 16 + 16 * 8 }) & !1;
            let value = [dice.roll(10), dice.roll(0x1_0000)][usize::from(dice.roll(4) == 0)];
            field(&world, at, value as u16);
        }
        let mut queue = match world.start() {
            Ok(queue) => queue,
            Err(RingConfigError::BadRegion(bad)) => {
                named.push(bad);
                continue;
            }
            Err(other) => panic!("{other:?}"),
        };
        ran += 1;
        assert!(queue.in_flight() <= SIZE.into());
        let (mut pieces, mut out) = (Pieces::new(64), Vec::new());
        while queue.pick(8, &mut pieces, &mut out).is_ok_and(|n| n > 0) {}
        assert!(out.len() <= SIZE.into());
        for request in out.iter().rev() {
            queue.finish(request.token, 0);
        }
        queue.publish();
    }
    let has = |bad: &dyn Fn(&BadRegion) -> bool| named.iter().any(bad);
    assert!(
        ran > 500 && has(&|bad| *bad == BadRegion::Lists) && has(&|bad| *bad == BadRegion::Batch),
        "{ran}"
    );
    assert!(has(&|bad| matches!(bad, BadRegion::SameId(_))) && has(&|bad| *bad == BadRegion::Cursor));
}
