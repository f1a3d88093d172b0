//! The device driven by hand: registers through the regions, blocks in a memory file, the queues polled by
//! the test instead of a core.

#![allow(clippy::cast_possible_truncation)]

mod frames;
mod interrupts;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{eventfd, EventfdFlags};
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use sidecore_abi::netmap::{SlotWord, NS_MOREFRAG};
use sidecore_abi::ptnet::{memdev, reg, CREATE, DELETE, GUEST_USO, HOST_USO, LINK, VNET_HDR};

use super::{functions, persist, MemoryDevice, Ptnet, PtnetConfig};
use crate::core::Recall;
use crate::device::pci::{self, write_config, Image, Index, PciDevice, Persist};
use crate::graph::{QueueHandle, Scheduler};
use crate::mem::{GuestMap, RegionSpec};
use crate::observe::CounterFile;
use crate::packet::{Batch, Mac};
use crate::port::{DropReason, Outcome, Port, PortId, Tally, DEFAULT_MTU};
use crate::util::fault::Fault;

const MAC: Mac = Mac([0x52, 0x54, 0, 1, 2, 3]);
const MEMORY: u64 = 0x10000;
/// Where the guest puts its blocks.
const GUEST: u64 = 0x2000;
const HOST: u64 = 0x3000;
const SLOTS: u32 = 8;
const PAIRS: usize = 2;

/// Holds the queues that a core would have, by the number of their ring.
#[derive(Default)]
struct Desk(Mutex<BTreeMap<usize, QueueHandle>>);

impl Scheduler for Desk {
    fn serve_queue(self: Arc<Self>, mut seat: QueueHandle) -> Recall {
        seat.queue().want_kicks(false);
        let mut queues = self.0.lock().unwrap();
        // The device serves its rings in order.
        let number = (0..PAIRS).find(|number| !queues.contains_key(number)).unwrap();
        queues.insert(number, seat);
        drop(queues);
        Box::new(move || {
            let seat = self.0.lock().unwrap().remove(&number);
            seat.into_iter().for_each(|seat| seat.return_to_owner());
        })
    }
}

struct Rig {
    nic: Ptnet,
    memory: MemoryDevice,
    desk: Arc<Desk>,
    port: Arc<Port>,
    guest: File,
    map: Arc<GuestMap>,
    events: Vec<OwnedFd>,
    _counters: CounterFile,
}

impl Rig {
    fn new() -> Rig {
        Rig::with(PtnetConfig {
            pairs: PAIRS,
            slots: SLOTS,
            buf_size: 128,
            moderation: Duration::ZERO,
            ..PtnetConfig::new(MAC)
        })
    }

    fn with(settings: PtnetConfig) -> Rig {
        let counters = CounterFile::anonymous().unwrap();
        let slot = counters.open_slot(PortId(0), "nic");
        let port = Arc::new(Port::new(PortId(0), "nic", slot, DEFAULT_MTU).unwrap());
        let desk = Arc::new(Desk::default());
        let scheduler = Arc::clone(&desk) as Arc<dyn Scheduler>;
        let (mut nic, mut memory, _) = functions(settings, &port, scheduler).unwrap();
        nic.attached().unwrap();
        memory.attached().unwrap();
        let fd = memfd_create(c"guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, MEMORY).unwrap();
        let guest: File = fd.into();
        let file = guest.try_clone().unwrap();
        let spec = RegionSpec { gpa: 0, size: MEMORY, user_addr: 0, offset: 0, file };
        let map = Arc::new(GuestMap::new(&[spec]).unwrap());
        nic.dma_changed(Arc::clone(&map));
        let mut events = Vec::new();
        for vector in 0..2 * PAIRS {
            let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
            nic.interrupts().set_trigger(Index::Msix, vector, Some(event.try_clone().unwrap()));
            events.push(event);
        }
        // Bus master, and messages.
        write_config(&mut nic, 4, &[0b101, 0]);
        write_config(&mut nic, 0x42, &[0, 0x80]);
        Rig { nic, memory, desk, port, guest, map, events, _counters: counters }
    }

    /// One whose driver has begun.
    fn running() -> Rig {
        let mut rig = Rig::new();
        rig.place_blocks(GUEST, HOST);
        assert_eq!(rig.command(CREATE), 0);
        rig
    }

    fn write(&mut self, register: u64, value: u32) {
        self.nic.write(0, register, &value.to_le_bytes());
    }

    fn read(&mut self, register: u64) -> u32 {
        let mut bytes = [0; 4];
        self.nic.read(0, register, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn place_blocks(&mut self, guest: u64, host: u64) {
        for (high, low, at) in
            [(reg::CSB_GH_BAH, reg::CSB_GH_BAL, guest), (reg::CSB_HG_BAH, reg::CSB_HG_BAL, host)]
        {
            self.write(high, (at >> 32) as u32);
            self.write(low, at as u32);
        }
    }

    fn command(&mut self, command: u32) -> u32 {
        self.write(reg::PTCTL, command);
        self.read(reg::PTCTL)
    }

    /// Where the interface says that the rings are, from itself.
    fn places(&self) -> [u64; 6] {
        let region = &self.nic.bar.region;
        std::array::from_fn(|place| {
            let mut bytes = [0; 8];
            let at = region.info().interface + (size_of::<sidecore_abi::netmap::If>() + 8 * place) as u64;
            rustix::io::pread(region.file(), &mut bytes, at).unwrap();
            u64::from_le_bytes(bytes)
        })
    }

    fn poke(&self, at: u64, value: u32) {
        rustix::io::pwrite(self.guest.as_fd(), &value.to_le_bytes(), at).unwrap();
    }

    fn peek(&self, at: u64) -> u32 {
        let mut bytes = [0; 4];
        rustix::io::pread(self.guest.as_fd(), &mut bytes, at).unwrap();
        u32::from_le_bytes(bytes)
    }

    /// Word `word` of ring `ring`'s block, the guest's half.
    fn theirs(ring: usize, word: u64) -> u64 {
        GUEST + 64 * ring as u64 + 4 * word
    }

    fn indices(&self, ring: usize) -> (u32, u32) {
        let at = HOST + 64 * ring as u64;
        (self.peek(at), self.peek(at + 4))
    }

    /// Where slot `slot` of ring `ring` is, counted over all rings, the host's among them.
    fn slot_at(&self, ring: u64, slot: u32) -> u64 {
        let info = self.nic.bar.region.info();
        info.ring_pool + ring * u64::from(info.ring_size) + 256 + 16 * u64::from(slot)
    }

    fn slot(&self, ring: u64, slot: u32) -> SlotWord {
        let mut bytes = [0; 8];
        rustix::io::pread(self.nic.bar.region.file(), &mut bytes, self.slot_at(ring, slot)).unwrap();
        SlotWord(u64::from_le_bytes(bytes))
    }

    fn set_slot(&self, ring: u64, slot: u32, word: SlotWord) {
        rustix::io::pwrite(self.nic.bar.region.file(), &word.0.to_le_bytes(), self.slot_at(ring, slot))
            .unwrap();
    }

    fn buffer(&self, index: u32) -> u64 {
        let info = self.nic.bar.region.info();
        info.buf_pool + u64::from(index) * u64::from(info.buf_size)
    }

    /// Puts `bytes` into slot `slot` of sending ring 0, with these flags.
    fn fill(&self, slot: u32, bytes: &[u8], flags: u16) {
        let index = self.slot(0, slot).buf_idx();
        rustix::io::pwrite(self.nic.bar.region.file(), bytes, self.buffer(index)).unwrap();
        self.set_slot(0, slot, SlotWord::new(index, bytes.len() as u16, flags));
    }

    /// One poll of sending ring `ring`.
    fn poll(&self, ring: usize) -> (Vec<Vec<u8>>, Tally) {
        let (mut batch, mut tally) = (Batch::new(), Tally::default());
        let mut queues = self.desk.0.lock().unwrap();
        let queue = queues.get_mut(&ring).expect("the ring is not served").queue();
        queue.fetch(&mut batch, &mut tally);
        let frame = |frame: &crate::packet::Frame| {
            let mut bytes = frame.head[..frame.head_len()].to_vec();
            for piece in batch.body(frame) {
                let mut part = vec![0; piece.len()];
                piece.read(&mut part);
                bytes.extend(part);
            }
            bytes
        };
        let frames = batch.frames().iter().map(frame).collect();
        if tally.frames > 0 {
            queue.release(&mut tally);
        }
        (frames, tally)
    }

    fn deliver(&self, ring: usize, frames: &[&[u8]]) -> Outcome {
        let mut batch = Batch::new();
        for bytes in frames {
            assert!(batch.push_short(bytes));
        }
        let picks: Vec<u16> = (0..frames.len() as u16).collect();
        let mut outcome = Outcome::new();
        let mut slot = self.port.egress(ring).unwrap();
        slot.as_mut().expect("the ring does not receive").send(&batch, &picks, &mut outcome);
        outcome
    }

    fn interrupted(&self, vector: usize) -> bool {
        rustix::io::read(&self.events[vector], &mut [0; 8]).is_ok()
    }

    fn is_served(&self) -> bool {
        !self.desk.0.lock().unwrap().is_empty() || self.port.egress_queues() > 0
    }
}

fn drops(tally: &Tally, reason: DropReason) -> u32 {
    tally.drops.counts[reason as usize]
}

#[test]
fn registers_say_what_is_there() {
    let mut rig = Rig::new();
    assert_eq!((rig.read(reg::MAC_HI), rig.read(reg::MAC_LO)), (0x5254, 0x0001_0203));
    assert_eq!([reg::NUM_TX_RINGS, reg::NUM_RX_RINGS].map(|r| rig.read(r)), [PAIRS as u32; 2]);
    assert_eq!([reg::NUM_TX_SLOTS, reg::NUM_RX_SLOTS].map(|r| rig.read(r)), [SLOTS; 2]);
    // A header only for guests that announced it.
    rig.write(reg::VNET_HDR_LEN, 12);
    assert_eq!(rig.read(reg::VNET_HDR_LEN), 0);
    rig.write(reg::PTFEAT, u32::MAX);
    assert_eq!(rig.read(reg::PTFEAT), VNET_HDR | HOST_USO | GUEST_USO | LINK);
    // What is about frames with headers goes with these.
    rig.write(reg::PTFEAT, !VNET_HDR);
    assert_eq!((rig.read(reg::PTFEAT), rig.read(reg::MTU)), (LINK, DEFAULT_MTU));
    rig.write(reg::PTFEAT, VNET_HDR);
    assert_eq!(rig.read(reg::PTFEAT), VNET_HDR);
    for (asked, held) in [(12, 12), (10, 12), (u32::MAX, 12), (0, 0), (12, 12)] {
        rig.write(reg::VNET_HDR_LEN, asked);
        assert_eq!(rig.read(reg::VNET_HDR_LEN), held);
    }
    rig.write(reg::PTFEAT, 0);
    assert_eq!(rig.read(reg::VNET_HDR_LEN), 0);
    // The memory device describes the same region.
    let id = rig.read(reg::HOSTMEMID);
    let info = *rig.nic.bar.region.info();
    let mut read = |register: u64| {
        let mut bytes = [0; 4];
        rig.memory.read(0, register, &mut bytes);
        u32::from_le_bytes(bytes)
    };
    assert_eq!(read(memdev::MEMID), id);
    assert_eq!(u64::from(read(memdev::MEMSIZE_LO)) | u64::from(read(memdev::MEMSIZE_HI)) << 32, info.memsize);
    let pools = [(memdev::IF_POOL, info.interface, 1), (memdev::RING_POOL, info.ring_pool, 6)];
    for (pool, offset, count) in pools {
        assert_eq!((u64::from(read(pool)), read(pool + 4)), (offset, count));
    }
    assert_eq!(
        [0, 4, 8].map(|n| u64::from(read(memdev::BUF_POOL + n))),
        [info.buf_pool, info.bufs.into(), info.buf_size.into()]
    );
    // All rings that the interface mentions are there, those of the host among them.
    let bar = rig.memory.regions()[memdev::MEMORY_BAR].clone().unwrap();
    assert!(bar.size.is_power_of_two() && bar.size >= info.memsize);
    for (place, ring) in (0..).zip(rig.places()) {
        let ring = ring.wrapping_add(info.interface);
        assert_eq!(ring, info.ring_pool + place * u64::from(info.ring_size));
    }
}

/// netmap's kernel looks for host rings before it begins, its programs afterwards.
#[test]
fn host_rings_are_mentioned_while_the_driver_has_not_begun() {
    let mut rig = Rig::new();
    let all = rig.places();
    assert!(all.iter().all(|place| *place != 0), "{all:?}");
    rig.place_blocks(GUEST, HOST);
    for _ in 0..2 {
        assert_eq!(rig.command(CREATE), 0);
        let [a, b, _, c, d, _] = all;
        assert_eq!(rig.places(), [a, b, 0, c, d, 0]);
        assert_eq!(rig.command(DELETE), 0);
        assert_eq!(rig.places(), all);
    }
    assert_eq!(rig.command(CREATE), 0);
    rig.nic.reset();
    assert_eq!(rig.places(), all);
}

#[test]
fn parts_of_the_memory_are_reached_without_a_mapping() {
    let mut rig = Rig::new();
    let bar = memdev::MEMORY_BAR;
    rig.memory.write(bar, 0x101, &[0xaa]);
    rig.memory.write(bar, 0x102, &[0xbb, 0xcc]);
    let mut word = [0; 4];
    rig.memory.read(bar, 0x100, &mut word);
    assert_eq!(word[1..], [0xaa, 0xbb, 0xcc]);
    let mut half = [0; 2];
    rig.memory.read(bar, 0x102, &mut half);
    assert_eq!(half, [0xbb, 0xcc]);
}

#[test]
fn a_driver_begins_and_ends_as_often_as_it_likes() {
    let mut rig = Rig::new();
    assert_eq!(rig.command(CREATE), 6, "ENXIO: no blocks");
    for (guest, host) in [(GUEST, MEMORY - 64), (MEMORY, HOST), (GUEST + 8, HOST), (u64::MAX - 63, HOST)] {
        rig.place_blocks(guest, host);
        assert_eq!(rig.command(CREATE), 14, "EFAULT: {guest:#x} {host:#x}");
        assert!(!rig.is_served());
    }
    rig.place_blocks(GUEST, HOST);
    assert_eq!(rig.command(99), 22);
    (0..32).for_each(|word| rig.poke(HOST + 4 * word, u32::MAX));
    assert_eq!(rig.command(CREATE), 0);
    for ring in 0..2 * PAIRS {
        let tail = if ring < PAIRS { SLOTS - 1 } else { 0 };
        assert_eq!(rig.indices(ring), (0, tail));
        let at = |word| rig.peek(Rig::theirs(ring, word));
        assert_eq!([at(0), at(1), at(2), at(3)], [0, 0, 1, 1]);
    }
    assert!(rig.is_served());
    rig.fill(0, &[1; 60], 0);
    rig.poke(Rig::theirs(0, 0), 1);
    assert_eq!(rig.poll(0).0, [[1; 60]]);
    assert_eq!(rig.command(CREATE), 0, "it runs already, and nothing changes");
    assert_eq!(rig.indices(0), (1, 0));
    // When it has ended, nothing is written to the blocks any more, and it goes on where it was.
    assert_eq!(rig.command(DELETE), 0);
    assert!(!rig.is_served());
    rig.poke(HOST, 77);
    rig.write(reg::KICKS, 0);
    assert_eq!((rig.command(DELETE), rig.peek(HOST)), (0, 77));
    assert_eq!(rig.command(CREATE), 0);
    assert_eq!((rig.indices(0), rig.peek(Rig::theirs(0, 0))), ((1, 0), 1));
    // Moving a block ends it, too; a reset puts all back.
    rig.write(reg::CSB_HG_BAL, HOST as u32);
    assert!(!rig.is_served());
    assert_eq!(rig.command(CREATE), 0);
    let before = rig.slot(0, 0);
    rig.set_slot(0, 0, SlotWord::new(7777, 1, 1));
    rig.nic.reset();
    assert!(!rig.is_served() && rig.read(reg::VNET_HDR_LEN) == 0);
    assert_eq!((rig.slot(0, 0).buf_idx(), rig.slot(0, 0).len()), (before.buf_idx(), 128));
    assert_eq!(rig.command(CREATE), 6);
}

#[test]
fn what_was_given_up_or_released_before_the_end_counts_afterwards() {
    let mut rig = Rig::running();
    assert_eq!(rig.deliver(0, &[&[1; 60], &[2; 60]]).frames, 2);
    rig.fill(0, &[3; 60], 0);
    rig.poke(Rig::theirs(0, 0), 1);
    rig.poke(Rig::theirs(PAIRS, 0), 2);
    assert_eq!((rig.command(DELETE), rig.command(CREATE)), (0, 0));
    assert_eq!(rig.peek(Rig::theirs(0, 0)), 1);
    assert_eq!((rig.peek(Rig::theirs(PAIRS, 0)), rig.indices(PAIRS)), (2, (2, 2)));
    assert_eq!(rig.poll(0).0, [[3; 60]]);
}

#[test]
fn memory_that_goes_ends_the_service_until_it_is_back() {
    let mut rig = Rig::running();
    rig.fill(0, &[1; 60], 0);
    rig.poke(Rig::theirs(0, 0), 1);
    assert_eq!(rig.poll(0).0.len(), 1);
    rig.nic.dma_changed(Arc::default());
    assert!(!rig.is_served());
    assert_eq!(Arc::strong_count(&rig.map), 1, "somebody still holds the memory");
    assert!(rig.nic.queues()[0].state.contains("status blocks"));
    let map = Arc::clone(&rig.map);
    rig.nic.dma_changed(map);
    rig.fill(1, &[2; 60], 0);
    rig.poke(Rig::theirs(0, 0), 2);
    assert_eq!(rig.poll(0).0, [[2; 60]]);
    assert_eq!(rig.port.fault.get(), None);
    // So does a driver that takes the right away to reach memory.
    write_config(&mut rig.nic, 4, &[0b001, 0]);
    assert!(!rig.is_served());
    write_config(&mut rig.nic, 4, &[0b101, 0]);
    assert!(rig.is_served());
}

impl Rig {
    /// This guest, and another process's device.
    fn taken_over(mut self) -> Rig {
        let settings = self.nic.settings.clone();
        let (mut image, mut other) =
            (Image::new(self.nic.format().size), Image::new(self.memory.format().size));
        self.nic.save(&mut image);
        self.memory.save(&mut other);
        let own = |device: &dyn Persist| -> Vec<OwnedFd> {
            device.files().into_iter().map(|file| file.try_clone_to_owned().unwrap()).collect()
        };
        let files = [own(&self.nic), own(&self.memory)];
        let slot = self._counters.open_slot(PortId(1), "again");
        self.port = Arc::new(Port::new(PortId(1), "again", slot, DEFAULT_MTU).unwrap());
        self.desk = Arc::new(Desk::default());
        let scheduler = Arc::clone(&self.desk) as Arc<dyn Scheduler>;
        let (nic, memory, _) = functions(settings, &self.port, scheduler).unwrap();
        (self.nic, self.memory) = (nic, memory);
        let [first, second] = files;
        // The memory alone is of no use.
        let copy = second.iter().map(|file| file.try_clone().unwrap()).collect();
        assert!(self.memory.adopt(copy, &other).is_err());
        self.nic.adopt(first, &image).unwrap();
        self.memory.adopt(second, &other).unwrap();
        for (vector, event) in self.events.iter().enumerate() {
            let event = event.try_clone().unwrap();
            self.nic.interrupts().set_trigger(Index::Msix, vector, Some(event));
        }
        self.nic.dma_changed(Arc::clone(&self.map));
        pci::resume(&mut self.nic);
        pci::resume(&mut self.memory);
        self
    }
}

/// An image is checked as what a guest writes is: a header of another length would be added to each frame's.
/// A device that refuses one is what it was, so that both functions still have the same memory.
#[test]
fn an_image_that_no_guest_can_have_left_is_refused_and_changes_nothing() {
    let mut rig = Rig::running();
    rig.write(reg::PTFEAT, VNET_HDR | LINK);
    rig.write(reg::VNET_HDR_LEN, 12);
    let settings = rig.nic.settings.clone();
    let mut image = Image::new(rig.nic.format().size);
    rig.nic.save(&mut image);
    let features = persist::REGISTERS;
    let word = image.get(features);
    let header = persist::REST + 1;
    assert_eq!((word & 0xffff_ffff, image.get(header)), (u64::from(VNET_HDR | LINK), 12));
    let adopt = |image: &Image, settings: &PtnetConfig| {
        let scheduler = Arc::new(Desk::default());
        let (mut nic, memory, _) = functions(settings.clone(), &rig.port, scheduler).unwrap();
        let files = rig.nic.files().iter().map(|file| file.try_clone_to_owned().unwrap()).collect();
        let words = |nic: &mut Ptnet| {
            let mut image = Image::new(nic.format().size);
            nic.save(&mut image);
            (0..image.size()).map(|at| image.get(at)).collect::<Vec<_>>()
        };
        let before = words(&mut nic);
        let adopted = nic.adopt(files, image);
        if adopted.is_err() {
            assert_eq!(words(&mut nic), before);
            let own = rustix::fs::fstat(nic.bar.region.file()).unwrap().st_ino;
            assert_eq!(own, mapped(&memory), "the NIC alone has other memory");
        }
        adopted.map(|()| nic.nic.header().bytes)
    };
    assert_eq!(adopt(&image, &settings), Ok(12));
    for bad in [1, 11, 13, 0xffff, u64::from(u32::MAX), 12 | 1 << 32] {
        image.put(header, bad);
        assert!(adopt(&image, &settings).is_err(), "a header of {bad} bytes");
    }
    image.put(header, 12);
    for bad in [u64::from(LINK), word | 1 << 31] {
        image.put(features, bad);
        assert!(adopt(&image, &settings).is_err(), "features {bad:x}");
    }
    image.put(features, word);
    let places = persist::PLACES;
    let word = image.get(places);
    image.put(places, 4711);
    assert!(adopt(&image, &settings).is_err(), "a ring has no such slot");
    image.put(places, word);
    assert_eq!(adopt(&image, &settings), Ok(12));
    let without = PtnetConfig { header: false, ..settings };
    assert!(adopt(&image, &without).is_err(), "the operator has switched headers off");
}

#[test]
fn rings_go_on_in_another_process() {
    let mut rig = Rig::running();
    rig.write(reg::PTFEAT, VNET_HDR);
    rig.write(reg::VNET_HDR_LEN, 12);
    let id = rig.read(reg::HOSTMEMID);
    let with_header = |n: u8| [&[0; 12][..], &[n; 60]].concat();
    (0..3).for_each(|slot| rig.fill(slot, &with_header(slot as u8), 0));
    rig.poke(Rig::theirs(0, 0), 2);
    assert_eq!(rig.poll(0).0, [[0; 60], [1; 60]]);
    assert_eq!(rig.deliver(1, &[&[7; 60], &[8; 60]]).frames, 2);
    let _told: Vec<bool> = (0..2 * PAIRS).map(|vector| rig.interrupted(vector)).collect();
    let mut rig = rig.taken_over();
    assert!((0..2 * PAIRS).all(|vector| rig.interrupted(vector)), "what it may have missed is told");
    assert_eq!((rig.read(reg::VNET_HDR_LEN), rig.read(reg::HOSTMEMID)), (12, id));
    assert_eq!(rig.port.accepts().to_string(), "csum,tso4,tso6,ecn");
    let mut word = [0; 4];
    rig.memory.read(0, memdev::MEMID, &mut word);
    assert_eq!(u32::from_le_bytes(word), id);
    // The slot that it had given up, and the next ones of both directions.
    rig.poke(Rig::theirs(0, 0), 3);
    assert_eq!(rig.poll(0).0, [[2; 60]]);
    assert_eq!(rig.indices(PAIRS + 1), (0, 2));
    assert_eq!(rig.deliver(1, &[&[9; 60]]).frames, 1);
    assert_eq!(rig.indices(PAIRS + 1), (0, 3));
    // One that had ended begins where it was.
    assert_eq!(rig.command(DELETE), 0);
    let mut rig = rig.taken_over();
    assert!(!rig.is_served());
    assert_eq!(rig.command(CREATE), 0);
    assert_eq!((rig.indices(0), rig.indices(PAIRS + 1)), ((3, 2), (0, 3)));
    // Nonsense in a block, which the guest can write, is its own loss.
    rig.poke(HOST, 4711);
    let mut rig = rig.taken_over();
    assert_eq!((rig.port.fault.get(), rig.is_served()), (Some(Fault::BadHead), false));
    assert_eq!(rig.command(CREATE), 0);
    assert!(rig.is_served() && rig.port.fault.get().is_none());
}

impl Rig {
    /// A VMM has come to the NIC: bus master, memory and blocks.
    fn come(&mut self) {
        write_config(&mut self.nic, 4, &[0, 0]);
        write_config(&mut self.nic, 4, &[0b101, 0]);
        self.nic.dma_changed(Arc::clone(&self.map));
        self.place_blocks(GUEST, HOST);
    }
}

/// What a VMM gets to map.
fn mapped(memory: &MemoryDevice) -> u64 {
    let bar = memory.regions()[memdev::MEMORY_BAR].clone().unwrap();
    rustix::fs::fstat(bar.mappable.unwrap().pages.file()).unwrap().st_ino
}

fn served(rig: &Rig) -> u64 {
    rustix::fs::fstat(rig.nic.bar.region.file()).unwrap().st_ino
}

/// A VMM that has had a port's memory may keep a mapping of it: the next VMM has other memory, in whichever
/// order two VMMs' four connections end and begin.
#[test]
fn each_vmm_has_memory_of_its_own() {
    let ends: [fn(&mut Rig); 2] = [|rig| rig.nic.detached(), |rig| rig.memory.detached()];
    let begins: [fn(&mut Rig); 2] = [|rig| rig.nic.attached().unwrap(), |rig| rig.memory.attached().unwrap()];
    for (first, second) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        for overlap in [false, true] {
            let mut rig = Rig::running();
            let before = served(&rig);
            assert_eq!(before, mapped(&rig.memory));
            rig.fill(0, &[0xee; 60], 0);
            let former = rig.nic.bar.region.file().try_clone_to_owned().unwrap();
            let pages = || rustix::fs::fstat(&former).unwrap().st_blocks;
            assert!(pages() > 0);
            ends[first](&mut rig);
            // A function's next VMM can come as soon as the former one has left that function.
            let (early, late) = if overlap { (first, 1 - first) } else { (second, 1 - second) };
            if overlap {
                begins[early](&mut rig);
                ends[1 - first](&mut rig);
            } else {
                ends[1 - first](&mut rig);
                begins[early](&mut rig);
            }
            begins[late](&mut rig);
            assert_eq!(served(&rig), mapped(&rig.memory), "{first} {second} {overlap}");
            assert_ne!(served(&rig), before, "{first} {second} {overlap}");
            assert_eq!(pages(), 0, "{first} {second} {overlap}: what the former VMM may keep");
            rig.come();
            assert_eq!(rig.command(CREATE), 0, "{first} {second} {overlap}");
            assert_ne!(rig.poll(0).0, [[0xee; 60]]);
        }
    }
}

/// A stranger at the memory device's socket shares no memory with a guest that runs, and a VMM that comes
/// anew is rid of it.
#[test]
fn a_guest_whose_memory_is_not_its_nics_does_not_begin() {
    let mut rig = Rig::running();
    rig.memory.detached();
    rig.memory.attached().unwrap();
    assert_ne!(served(&rig), mapped(&rig.memory));
    // The guest that runs goes on with what it has.
    assert!(rig.is_served());
    assert_eq!((rig.command(DELETE), rig.command(CREATE)), (0, 19), "ENODEV");
    assert!(!rig.is_served());
    for nic_first in [true, false] {
        rig.nic.detached();
        rig.memory.detached();
        if nic_first {
            rig.nic.attached().unwrap();
            rig.memory.attached().unwrap();
        } else {
            rig.memory.attached().unwrap();
            rig.nic.attached().unwrap();
        }
        assert_eq!(served(&rig), mapped(&rig.memory));
    }
    // Without any VMM at the memory device.
    rig.nic.detached();
    rig.memory.detached();
    rig.nic.attached().unwrap();
    rig.come();
    assert_eq!(rig.command(CREATE), 19);
}
