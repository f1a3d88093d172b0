//! A driver of `sidecore-driver` and rings of requests with an in-flight region, one life after the other.

#![allow(clippy::cast_possible_truncation)]

mod killed;
mod lies;

use std::collections::BTreeMap;
use std::sync::Arc;

use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use sidecore_abi::virtio::features;
use sidecore_driver::memory::{Memory, Page, View};
use sidecore_driver::queue::{Buf, Options, Parts, Queue as Driver, Table};

use super::{PackedJournal, Position, Queue, Region, Request, RingConfig, RingConfigError, Whose};
use crate::mem::{GuestMap, JournalSlot, JournalSlots, Piece, Pieces, RegionSpec, Signal, MAX_BATCH};

const MEMORY: usize = 1 << 18;

struct World {
    options: Options,
    whose: Whose,
    memory: Arc<Memory>,
    parts: Parts,
    driver: Driver,
    tables: Vec<Table>,
    /// Each request has its number where its first buffer is, by its name.
    headers: usize,
    map: Arc<GuestMap>,
    slots: JournalSlots,
    /// The next request's number.
    number: u32,
    /// The numbers of those that the driver waits for, by their names.
    waits: BTreeMap<u16, u32>,
}

impl World {
    fn new(entries: u16, packed: bool, whose: Whose) -> World {
        let options = Options { entries, packed, event_idx: false, in_order: false };
        let memory = Memory::new(MEMORY, Page::Small).unwrap();
        let parts = Parts::new(&memory, options).unwrap();
        let driver = Driver::new(0, options, parts.clone()).unwrap();
        let headers = memory.alloc(64 * usize::from(entries), 64).unwrap();
        let tables = (0..entries).map(|_| Table::new(&memory, 4).unwrap()).collect();
        let file = memory.fd().try_clone_to_owned().unwrap().into();
        let (gpa, user) = (memory.gpa(0), memory.user(0));
        let spec = RegionSpec { gpa, size: MEMORY as u64, user_addr: user, offset: 0, file };
        let map = Arc::new(GuestMap::new(&[spec]).unwrap());
        let bytes = PackedJournal::bytes(entries.into());
        let file = memfd_create(c"region", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, bytes as u64).unwrap();
        let slots = JournalSlots::open(&file.into(), bytes, 1).unwrap();
        let waits = BTreeMap::new();
        World { options, whose, memory, parts, driver, tables, headers, map, slots, number: 0, waits }
    }

    fn slot(&self) -> JournalSlot {
        self.slots.slot(0).unwrap()
    }

    fn part(&self, view: &View) -> Piece {
        let len = u32::try_from(view.size()).unwrap();
        self.map.translate(self.memory.gpa(view.offset()), len, &mut 0).unwrap()
    }

    /// Where the ring starts without a region: a split one where its used index is, a packed one where the
    /// driver has reaped.
    fn position(&self) -> Position {
        if self.options.packed {
            let base = self.driver.base();
            Position::Packed { avail: base as u16, used: (base >> 16) as u16 }
        } else {
            let mut used = [0; 2];
            self.memory.read(self.parts.used.offset() + 2, &mut used);
            Position::Split(u16::from_le_bytes(used))
        }
    }

    /// The device begins a life.
    fn start(&self) -> Result<Queue, RingConfigError> {
        Queue::requests(RingConfig {
            size: self.options.entries,
            desc: self.part(&self.parts.desc),
            driver: self.part(&self.parts.avail),
            device: self.part(&self.parts.used),
            used_log: None,
            map: Arc::clone(&self.map),
            features: features::VERSION_1
                | features::INDIRECT_DESC
                | if self.options.packed { features::RING_PACKED } else { 0 },
            position: self.position(),
            notifier: Arc::new(Signal::default()),
            log: None,
            journal: None,
            region: Some(Region::new(self.slot(), self.whose)),
        })
    }

    /// The driver offers a request of so many buffers, in a table of its own or not.
    fn offer(&mut self, buffers: u32, indirect: bool) -> Option<u16> {
        if self.driver.room() < if indirect { 1 } else { u16::try_from(buffers).unwrap() } {
            return None;
        }
        let name = self.driver.next_free(0);
        let header = self.headers + 64 * usize::from(name);
        let gpa = self.memory.gpa(header);
        let writable = (1..buffers).map(|i| Buf { addr: gpa + 4 * u64::from(i), len: 4, write: true });
        let bufs: Vec<Buf> =
            std::iter::once(Buf { addr: gpa, len: 4, write: false }).chain(writable).collect();
        self.memory.write(header, &self.number.to_le_bytes());
        let added = if indirect {
            self.driver.add_indirect(&self.tables[usize::from(name)], &bufs)
        } else {
            self.driver.add(&bufs)
        };
        assert_eq!((added, self.waits.insert(name, self.number)), (Some(name), None));
        self.number += 1;
        self.driver.publish();
        added
    }

    /// The driver takes back what it finds: each once, with the answer that is its own.
    fn reap(&mut self) -> usize {
        let waits = &mut self.waits;
        self.driver.reap(usize::MAX, |name, len| assert_eq!(waits.remove(&name), Some(len))).unwrap()
    }

    /// Picks, and tells the number of each.
    fn pick(&self, queue: &mut Queue, want: usize) -> Vec<(Request, u32)> {
        let (mut pieces, mut out) = (Pieces::new(1024), Vec::new());
        queue.pick(want, &mut pieces, &mut out).unwrap();
        let number = |request: &Request| {
            let header = pieces.range(request.start as usize, 1);
            u32::from_le_bytes(header[0].read_array().unwrap())
        };
        out.iter().map(|request| (*request, number(request))).collect()
    }

    /// All that the driver waits for is done, and nothing is left.
    fn finish_all(&mut self, queue: &mut Queue) {
        loop {
            let picked = self.pick(queue, MAX_BATCH);
            if picked.is_empty() {
                break;
            }
            for (request, number) in picked {
                queue.finish(request.token, number);
            }
        }
        queue.publish();
        self.reap();
        assert_eq!((queue.in_flight(), queue.owed()), (0, 0));
        assert!(self.waits.is_empty(), "lost: {:?}", self.waits);
        assert_eq!(self.driver.room(), self.options.entries);
    }
}

/// Numbers that look random.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % sides
    }
}
