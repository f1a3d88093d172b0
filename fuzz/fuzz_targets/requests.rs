//! Rings of requests, in both formats, with or without an in-flight region: the driver and the front end
//! write anything into ring and region, at any time; the device picks, finishes in any order, publishes, and
//! is started anew. Nothing may panic; no more is in flight than the ring has entries; a request lies inside
//! guest memory; what is published is what was finished, and no more.
#![cfg_attr(feature = "libfuzzer", no_main)]

use sidecore_abi::virtio::{features, DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE};
use sidecore_engine::mem::{memory_file, JournalSlots, Pieces, MAX_BATCH};
use sidecore_engine::virtq::{PackedJournal, Position, Queue, Region, Request, RingConfig, Whose};
use sidecore_fuzz::fuzz_target;
use sidecore_fuzz::{Guest, ENTRIES, GPA, PARTS};

/// Where honest buffers and tables lie.
const BUFFERS: u64 = 0x2000;
const TABLES: u64 = 0x3000;
/// All that a ring consists of.
const RING: usize = 0x1000;

struct World {
    guest: Guest,
    slots: JournalSlots,
    pieces: Pieces,
    out: Vec<Request>,
}

thread_local! {
    static WORLD: std::cell::RefCell<World> = std::cell::RefCell::new(World {
        guest: Guest::new(),
        slots: {
            let bytes = PackedJournal::bytes(ENTRIES.into());
            JournalSlots::open(&memory_file(c"region", bytes).unwrap(), bytes, 1).unwrap()
        },
        pieces: Pieces::new(1024),
        out: Vec::new(),
    });
}

fuzz_target!(|data: &[u8]| {
    let [flags, data @ ..] = data else { return };
    WORLD.with_borrow_mut(|world| run(world, *flags, data));
});

fn run(world: &mut World, flags: u8, data: &[u8]) {
    let bit = |n: u8, feature: u64| if flags & 1 << n != 0 { feature } else { 0 };
    let packed = flags & 1 != 0;
    let bits = features::VERSION_1
        | bit(0, features::RING_PACKED)
        | bit(1, features::INDIRECT_DESC)
        | bit(2, features::EVENT_IDX);
    let whose = match flags >> 3 & 3 {
        0 => None,
        1 => Some(Whose::Ours),
        _ => Some(Whose::FrontEnds),
    };
    let words = PackedJournal::bytes(ENTRIES.into()) / 8;
    let slot = world.slots.slot(0).unwrap();
    (0..words).for_each(|i| slot.set(i, 0));
    world.guest.write(0, &[0; RING]);
    let mut at = if packed { Position::Packed { avail: 0x8000, used: 0x8000 } } else { Position::Split(0) };
    // With this flag the front end's lies stand there from the beginning.
    let data = if flags & 0x20 == 0 {
        data
    } else {
        let (first, rest) = data.split_at(data.len().min(8 * words));
        first
            .chunks_exact(8)
            .enumerate()
            .for_each(|(i, word)| slot.set(i, u64::from_le_bytes(word.try_into().unwrap())));
        rest
    };
    let start = |world: &World, at: Position| {
        let region = whose.map(|whose| Region::new(slot.clone(), whose));
        Queue::requests(RingConfig { region, ..world.guest.config(bits, at) })
    };
    let Ok(mut queue) = start(world, at) else { return };
    let mut flying: Vec<Request> = Vec::new();
    let mut finished = 0;
    for step in data.chunks(8).take(256) {
        let [what, a, b, bytes @ ..] = step else { break };
        match what % 8 {
            0 | 1 => offer(world, &queue, *a, *b),
            2 => pick(world, &mut queue, usize::from(*a), &mut flying),
            3 if !flying.is_empty() => {
                let request = flying.swap_remove(usize::from(*a) % flying.len());
                queue.finish(request.token, u32::from(*b));
                finished += 1;
            }
            4 => publish(world, &mut queue, packed, &mut finished),
            5 => world.guest.write(u64::from(u16::from_le_bytes([*a, *b]) & 0xfff), bytes),
            6 => {
                let index = usize::from(*a) % words;
                let shift = u32::from(*b % 8) * 8;
                let byte = u64::from(bytes.first().copied().unwrap_or(0));
                slot.set(index, slot.get(index) & !(0xff << shift) | byte << shift);
            }
            7 if *a % 4 == 0 => {
                at = queue.position();
                let Ok(next) = start(world, at) else { return };
                queue = next;
                flying.clear();
                finished = 0;
                assert!(whose.is_some() || queue.owed() == 0);
            }
            _ => {
                let _ = (queue.want_kicks(*a % 2 == 0), queue.is_empty());
            }
        }
        assert!(queue.in_flight() <= ENTRIES.into());
        assert_eq!(queue.in_flight(), flying.len() + queue.owed());
    }
    // All that is in flight can be given back.
    for _ in 0..ENTRIES {
        pick(world, &mut queue, MAX_BATCH, &mut flying);
        for request in flying.drain(..) {
            queue.finish(request.token, 0);
            finished += 1;
        }
        publish(world, &mut queue, packed, &mut finished);
    }
}

/// The driver offers a good chain at the right place: `shape` has the numbers of buffers of either direction,
/// and whether they lie in a table.
fn offer(world: &World, queue: &Queue, name: u8, shape: u8) {
    let guest = &world.guest;
    let (readable, writable) = (u16::from(shape & 3), u16::from(shape >> 2 & 3));
    let count = (readable + writable).max(1);
    let name = u16::from(name) % ENTRIES;
    let descriptor = |i: u16, id: Option<u16>, lap: u16| {
        let flags = if i < readable { 0 } else { DESC_F_WRITE };
        let flags = flags | lap | if i + 1 < count { DESC_F_NEXT } else { 0 };
        let next = (name + i + 1) % ENTRIES;
        let words = id.map_or([flags, next], |id| [id, flags]);
        let mut bytes = (GPA + BUFFERS + 64 * u64::from(i)).to_le_bytes().to_vec();
        bytes.extend(48u32.to_le_bytes());
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        bytes
    };
    let table = shape & 0x10 != 0;
    match queue.position() {
        Position::Split(_) => {
            let mut idx = [0; 2];
            guest.read(PARTS[1] + 2, &mut idx);
            let idx = u16::from_le_bytes(idx);
            for i in 0..count {
                guest.write(PARTS[0] + 16 * u64::from((name + i) % ENTRIES), &descriptor(i, None, 0));
            }
            if table {
                let at = TABLES + 128 * u64::from(name);
                for i in 0..count {
                    let mut bytes = descriptor(i, None, 0);
                    bytes[14..].copy_from_slice(&(i + 1).to_le_bytes());
                    guest.write(at + 16 * u64::from(i), &bytes);
                }
                let mut bytes = (GPA + at).to_le_bytes().to_vec();
                bytes.extend((16 * u32::from(count)).to_le_bytes());
                bytes.extend([DESC_F_INDIRECT, 0].iter().flat_map(|word| word.to_le_bytes()));
                guest.write(PARTS[0] + 16 * u64::from(name), &bytes);
            }
            guest.write(PARTS[1] + 4 + 2 * u64::from(idx % ENTRIES), &name.to_le_bytes());
            guest.write(PARTS[1] + 2, &idx.wrapping_add(1).to_le_bytes());
        }
        Position::Packed { avail, .. } => {
            for i in 0..count {
                let at = (avail & 0x7fff) + i;
                let wrap = (avail >> 15 != 0) != (at >= ENTRIES);
                let lap = if wrap { 1 << 7 } else { 1 << 15 };
                guest.write(PARTS[0] + 16 * u64::from(at % ENTRIES), &descriptor(i, Some(name), lap));
            }
        }
    }
}

fn pick(world: &mut World, queue: &mut Queue, want: usize, flying: &mut Vec<Request>) {
    world.pieces.clear();
    world.out.clear();
    let Ok(picked) = queue.pick(want, &mut world.pieces, &mut world.out) else {
        assert!(world.out.is_empty());
        return;
    };
    assert!(picked == world.out.len() && picked <= want);
    for request in &world.out {
        let (readable, writable) = (usize::from(request.readable), usize::from(request.writable));
        let pieces = world.pieces.range(request.start as usize, readable + writable);
        assert_eq!(pieces.len(), readable + writable);
        let bytes =
            |pieces: &[sidecore_engine::mem::Piece]| pieces.iter().map(|piece| piece.len()).sum::<usize>();
        assert_eq!(bytes(&pieces[..readable]), request.read_len as usize);
        assert_eq!(bytes(&pieces[readable..]), request.write_len as usize);
        for piece in pieces {
            // It is there to its last byte, or reading it would fault.
            let mut last = *piece;
            last.advance(piece.len() - 1);
            assert!(last.read_array::<1>().is_some());
        }
        assert!(flying.iter().all(|other| other.token != request.token));
        flying.push(*request);
    }
}

fn publish(world: &World, queue: &mut Queue, packed: bool, finished: &mut usize) {
    let (mut before, mut after) = ([0; RING], [0; RING]);
    world.guest.read(0, &mut before);
    queue.publish();
    world.guest.read(0, &mut after);
    let changed = |part: u64, size: usize, count: usize| {
        let at = part as usize;
        let elements = before[at..].chunks(size).zip(after[at..].chunks(size)).take(count);
        elements.filter(|(before, after)| before != after).count()
    };
    let entries = usize::from(ENTRIES);
    if packed {
        assert!(changed(PARTS[0], 16, entries) <= *finished);
    } else {
        assert_eq!(changed(PARTS[0], 16, entries), 0);
        assert!(changed(PARTS[2] + 4, 8, entries) <= *finished);
        // A driver may have written the index; the device writes where it stands itself.
        if *finished == 0 {
            assert_eq!(before, after);
        }
    }
    *finished = 0;
}
