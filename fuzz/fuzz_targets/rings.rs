//! Both ring formats with arbitrary contents, as a transmit and as a receive ring: nothing may panic, and
//! every frame lies inside guest memory (reading it would fault otherwise). The memory is rewritten while the
//! ring runs. Frames for a receive ring are of any length and ask for offloads, as honest senders do.
//!
//! Some rings write a dirty log: each page that has changed is in it. Some packed rings have a journal, which
//! the front end writes into, too; the ring is left and begun anew in the middle, where the journal says, or
//! where it stood.
#![cfg_attr(feature = "libfuzzer", no_main)]

use std::cell::RefCell;
use std::sync::{Arc, Mutex};

use sidecore_abi::virtio::features;
use sidecore_engine::device::virtio_net::{EgressRing, IngressRing};
use sidecore_engine::mem::{memory_file, Arena, JournalSlots, MAX_BATCH};
use sidecore_engine::packet::{Batch, Offload, Offloads, HEAD};
use sidecore_engine::port::{EgressQueue, IngressQueue, Outcome, Port, Tally};
use sidecore_engine::virtq::{PackedJournal, Position, Queue, RingConfig, WriteLog};
use sidecore_fuzz::fuzz_target;
use sidecore_fuzz::packets::{packet, Packet, Station};
use sidecore_fuzz::{port, Guest, ENTRIES, GPA, MEMORY, PARTS};

const PAGE: usize = 4096;
const PAGES: usize = MEMORY as usize / PAGE;
/// Bytes of the longest frame.
const LONGEST: usize = 8192;

struct World {
    guest: Guest,
    port: Arc<Port>,
    batch: Batch,
    arena: Arena,
    slots: JournalSlots,
    log: Arc<Log>,
    /// What the memory was.
    before: Vec<u8>,
}

/// Pages that were logged.
#[derive(Default)]
struct Log(Mutex<[bool; PAGES]>);

impl WriteLog for Log {
    fn wrote(&self, gpa: u64, len: u32) {
        let end = gpa + u64::from(len);
        assert!(gpa >= GPA && end <= GPA + MEMORY, "what was written is not the guest's");
        let page = |gpa: u64| (gpa - GPA) as usize / PAGE;
        if len > 0 {
            self.0.lock().unwrap()[page(gpa)..=page(end - 1)].fill(true);
        }
    }
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::new(World {
        guest: Guest::new(),
        port: port(),
        batch: Batch::new(),
        arena: Arena::new(32, LONGEST),
        slots: {
            let bytes = PackedJournal::bytes(MAX_BATCH);
            JournalSlots::open(&memory_file(c"journal", bytes).unwrap(), bytes, 1).unwrap()
        },
        log: Arc::default(),
        before: vec![0; MEMORY as usize],
    });
}

fuzz_target!(|data: &[u8]| {
    let [flags, more, data @ ..] = data else { return };
    WORLD.with_borrow_mut(|world| world.run([*flags, *more], data));
});

/// What stays while a ring is left and begun anew.
struct Setup {
    packed: bool,
    bits: u64,
    logs: bool,
    journals: bool,
}

impl World {
    fn run(&mut self, [flags, more]: [u8; 2], data: &[u8]) {
        let bit = |n: u8, feature: u64| if flags & 1 << n != 0 { feature } else { 0 };
        let packed = flags & 1 != 0;
        let bits = bit(0, features::RING_PACKED)
            | bit(1, features::NET_MRG_RXBUF)
            | bit(2, features::INDIRECT_DESC)
            | bit(3, features::EVENT_IDX)
            | bit(4, features::IN_ORDER)
            | bit(5, features::VERSION_1)
            | bit(6, features::NET_CSUM | features::NET_HOST_TSO4 | features::NET_HOST_USO);
        let setup = Setup { packed, bits, logs: more & 9 == 9, journals: packed && more & 2 != 0 };
        // The first half is there when the ring starts, the second is written while it runs.
        let (first, second) = data.split_at(data.len() / 2);
        self.guest.write(0, &[0; 0x1000]);
        self.guest.write(PARTS[0], first);
        self.port.fault.clear();
        if setup.journals {
            let slot = self.slots.slot(0).unwrap();
            (0..PackedJournal::bytes(MAX_BATCH) / 8).for_each(|word| slot.set(word, 0));
        }
        let start =
            if packed { Position::Packed { avail: 0x8000, used: 0x8000 } } else { Position::Split(0) };
        let steps = second.chunks(16).take(16);
        if flags & 0x80 == 0 {
            self.transmits(&setup, start, steps);
        } else {
            self.receives(&setup, start, steps);
        }
    }

    /// A ring that begins at `at`, or where its journal says.
    fn ring(&self, setup: &Setup, at: Position) -> Option<Queue> {
        let Setup { packed, bits, logs, journals } = *setup;
        let mut config = self.guest.config(bits, at);
        if logs {
            config.log = Some(Arc::clone(&self.log) as Arc<dyn WriteLog>);
            config.used_log = Some(GPA + PARTS[if packed { 0 } else { 2 }]);
        }
        if journals {
            // As the conversation does.
            let journal = PackedJournal::new(self.slots.slot(0).unwrap());
            let kept = journal.recover(&config.desc, &config.device, ENTRIES);
            self.log.wrote(GPA + PARTS[0], 16 * u32::from(ENTRIES));
            config.position = kept.unwrap_or(at);
            let Position::Packed { used, .. } = config.position else { unreachable!() };
            config.journal = Some(journal.begin(bits, ENTRIES, used, &config.device));
            self.log.wrote(GPA + PARTS[2], RingConfig::part_sizes(ENTRIES, bits)[2] as u32);
        }
        Queue::new(config).ok()
    }

    fn transmits<'d>(&mut self, setup: &Setup, start: Position, steps: impl Iterator<Item = &'d [u8]>) {
        let new = |world: &World, at| {
            Some(IngressRing::new(Arc::clone(&world.port), world.ring(setup, at)?, None, setup.bits))
        };
        let Some(mut ring) = new(self, start) else { return };
        for step in steps {
            self.watch(setup);
            let World { batch, .. } = self;
            batch.clear();
            let mut tally = Tally::default();
            ring.fetch(batch, &mut tally);
            for frame in batch.frames() {
                let body: usize = batch.body(frame).iter().map(|piece| piece.len()).sum();
                assert_eq!(frame.head_len() + body, frame.len as usize);
                batch.body(frame).iter().for_each(|piece| {
                    piece.read(&mut [0; 64]);
                });
            }
            let drops: u32 = tally.drops.counts.iter().sum();
            assert_eq!(tally.frames, batch.len() as u64 + u64::from(drops));
            // Killed before it gives them back, now and then.
            let leaves = step[0] & 0xe0 == 0x20;
            if !leaves || step[0] & 1 == 0 {
                ring.release(&mut tally);
            }
            let _ = (ring.has_frames(), ring.want_kicks(step[0] & 2 == 0));
            self.is_logged(setup);
            if leaves {
                let at = ring.close();
                self.change(setup, step);
                let Some(next) = new(self, at) else { return };
                ring = next;
                continue;
            }
            self.change(setup, step);
        }
    }

    fn receives<'d>(&mut self, setup: &Setup, start: Position, steps: impl Iterator<Item = &'d [u8]>) {
        let new = |world: &World, at| {
            Some(EgressRing::new(Arc::clone(&world.port), world.ring(setup, at)?, setup.bits))
        };
        let Some(mut ring) = new(self, start) else { return };
        for step in steps {
            let picks: Vec<u16> = (0..u16::from(step[0] % 32)).collect();
            self.frames(step, picks.len());
            self.watch(setup);
            let mut outcome = Outcome::new();
            let _ = (ring.is_full(), ring.room());
            ring.send(&self.batch, &picks, &mut outcome);
            let drops: u32 = outcome.drops.counts.iter().sum();
            assert_eq!(outcome.frames + u64::from(drops), picks.len() as u64);
            self.is_logged(setup);
            if step[0] & 0xe0 == 0x20 {
                let at = ring.close();
                let Some(next) = new(self, at) else { return };
                ring = next;
            }
            self.change(setup, step);
        }
    }

    /// So many frames for a receive ring; their kinds and lengths follow from `step`.
    fn frames(&mut self, step: &[u8], count: usize) {
        const FROM: Station = Station { mac: [2, 0, 0, 0, 0, 1], four: [10, 0, 0, 1], six: [1; 16] };
        let byte = |at: usize| step.get(at).copied().unwrap_or(0);
        self.batch.clear();
        for n in 0..count {
            let (kind, shape) = (byte(3 + n % 3), byte(6 + n % 5));
            let len = usize::from(byte(11 + n % 2)) * if kind & 0x80 == 0 { 1 } else { 24 };
            let Packet { bytes, header } = packet(kind & 15, &FROM, (FROM.mac, &FROM), shape, len);
            let near = bytes.len().min(HEAD);
            let (frame, pieces) = self.batch.next_frame().unwrap();
            frame.head[..near].copy_from_slice(&bytes[..near]);
            (frame.len, frame.piece, frame.pieces) = (bytes.len() as u32, pieces.len() as u32, 0);
            let offload = Offload::parse(&header, &bytes[..near], bytes.len(), Offloads::ALL);
            frame.offload = offload.unwrap_or(Offload::NONE);
            if bytes.len() > HEAD {
                let mut rest = self.arena.put(n, &bytes, HEAD);
                let first = rest.first(usize::from(shape) % (rest.len() + 1));
                rest.advance(first.len());
                for part in [first, rest].into_iter().filter(|part| !part.is_empty()) {
                    assert!(pieces.push(part));
                    frame.pieces += 1;
                }
            }
            self.batch.commit();
        }
    }

    /// From here on what changes is logged.
    fn watch(&mut self, setup: &Setup) {
        if setup.logs {
            *self.log.0.lock().unwrap() = [false; PAGES];
            self.guest.read(0, &mut self.before);
        }
    }

    /// All pages that the device has changed are in the log.
    fn is_logged(&self, setup: &Setup) {
        if setup.logs {
            let mut after = vec![0; MEMORY as usize];
            self.guest.read(0, &mut after);
            let logged = self.log.0.lock().unwrap();
            // The first page has the ring, and flags in it that no log has to have.
            for page in 1..PAGES {
                let at = page * PAGE..(page + 1) * PAGE;
                assert!(
                    logged[page] || self.before[at.clone()] == after[at],
                    "page {page} was written, and not logged"
                );
            }
        }
    }

    /// The driver, or the front end, writes anything.
    fn change(&self, setup: &Setup, step: &[u8]) {
        let [what, low, high, bytes @ ..] = step else { return };
        if setup.journals && what & 0xc0 == 0x80 {
            let slot = self.slots.slot(0).unwrap();
            let mut word = [0; 8];
            word.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
            slot.set(usize::from(*low) % 80, u64::from_le_bytes(word));
            return;
        }
        self.guest.write(u64::from(u16::from_le_bytes([*low, *high]) & 0xfff), bytes);
    }
}
