//! The device driven by hand: registers through the regions, rings and buffers in a memory file, the queues
//! polled by the test instead of a core.

#![allow(clippy::cast_possible_truncation)]

mod csb;
mod diagnostics;
mod hostile;
mod livelock;
mod pair;
mod persist;

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use rustix::event::{eventfd, EventfdFlags};
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};

use super::regs::{self, ring};
use super::{E1000Config, Model, E1000};
use crate::core::Recall;
use crate::device::pci::{write_config, Index, PciDevice};
use crate::fabric::{NetSeat, Scheduler};
use crate::fault::Fault;
use crate::frame::Batch;
use crate::mem::{Arena, GuestMap, RegionSpec};
use crate::observe::CounterFile;
use crate::port::{DropReason, IngressQueue, Outcome, Port, PortId, Tally, DEFAULT_MTU};
use crate::wire::{Gso, Mac, Offload, Plan, Sum, MAX_HEADER};

const MAC: Mac = Mac([0x52, 0x54, 0, 1, 2, 3]);
const PEER: [u8; 6] = [0x52, 0x54, 0, 9, 9, 9];
/// Guest memory: one region that begins and ends inside of pages of its file.
const MEMORY: u64 = 0x10_0000;
const SKIP: u64 = 0x230;
const TX_RING: u64 = 0x1000;
const RX_RING: u64 = 0x3000;
const TX_BUFFERS: u64 = 0x1_0000;
const RX_BUFFERS: u64 = 0x8_0000;
const RING_SIZE: u64 = 32;
/// Sent frames whose report does not wait.
const REPORT_AT: u64 = RING_SIZE / 2;

/// Holds the queue that a core would have.
#[derive(Default)]
struct Desk {
    queues: Mutex<HashMap<u64, Box<dyn NetSeat>>>,
    next: Mutex<u64>,
}

impl Scheduler for Desk {
    fn seat(self: Arc<Self>, mut seat: Box<dyn NetSeat>) -> Recall {
        let mut next = self.next.lock().unwrap();
        *next += 1;
        let key = *next;
        drop(next);
        seat.queue().want_kicks(false);
        self.queues.lock().unwrap().insert(key, seat);
        Box::new(move || {
            let seat = self.queues.lock().unwrap().remove(&key);
            if let Some(seat) = seat {
                seat.go_home();
            }
        })
    }
}

struct Rig {
    device: E1000,
    desk: Arc<Desk>,
    port: Arc<Port>,
    file: std::fs::File,
    map: Arc<GuestMap>,
    _counters: CounterFile,
    events: Vec<OwnedFd>,
}

/// One that interrupts as the driver programs it: at once.
fn rig(model: Model) -> Rig {
    rig_with(E1000Config { pcix: false, moderation: Duration::ZERO, ..E1000Config::new(model, MAC) })
}

fn rig_with(settings: E1000Config) -> Rig {
    let model = settings.model;
    let counters = CounterFile::anonymous().unwrap();
    let port =
        Arc::new(Port::new(PortId(0), "nic", counters.open_slot(PortId(0), "nic"), DEFAULT_MTU).unwrap());
    let desk = Arc::new(Desk::default());
    let mut device =
        E1000::new(settings, Arc::clone(&port), Arc::clone(&desk) as Arc<dyn Scheduler>).unwrap();
    let fd = memfd_create(c"guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, MEMORY + 0x2000).unwrap();
    let file: std::fs::File = fd.into();
    let spec =
        RegionSpec { gpa: 0, size: MEMORY, user_addr: 0, offset: SKIP, file: file.try_clone().unwrap() };
    let map = Arc::new(GuestMap::new(&[spec]).unwrap());
    device.dma_changed(Arc::clone(&map));
    let mut events = Vec::new();
    for number in 0..5 {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        let index = if model == Model::E1000 { Index::Intx } else { Index::Msix };
        if model == Model::E1000e || number == 0 {
            device.interrupts().set_trigger(index, number, Some(event.try_clone().unwrap()));
        }
        events.push(event);
    }
    let mut rig = Rig { device, desk, port, file, map, _counters: counters, events };
    rig.bring_up();
    rig
}

impl Rig {
    /// What a driver does before it moves frames; the ring registers are not written by traps.
    fn bring_up(&mut self) {
        write_config(&mut self.device, 4, &[0b111, 0]);
        if self.device.settings.model == Model::E1000e {
            write_config(&mut self.device, 0xa2, &[0, 0x80]);
            // Receive, transmit and the rest on messages 0, 1 and 2.
            self.write(regs::IVAR, 0x000a_0908);
            self.write(regs::EIAC, regs::RXQ0 | regs::TXQ0);
            self.write(regs::RFCTL, regs::RFCTL_EXTEN);
        }
        self.program(regs::TX_RING, TX_RING, RING_SIZE);
        self.program(regs::RX_RING, RX_RING, RING_SIZE);
        self.write(regs::TCTL, regs::TCTL_EN | regs::TCTL_PSP);
        self.write(regs::RCTL, regs::RCTL_EN | regs::RCTL_BAM | regs::RCTL_SECRC);
        self.write(regs::IMS, regs::RXT0 | regs::TXDW | regs::RXQ0 | regs::TXQ0 | regs::OTHER | regs::LSC);
    }

    /// A register written by a trap.
    fn write(&mut self, offset: u32, value: u32) {
        self.device.write(0, u64::from(offset), &value.to_le_bytes());
    }

    fn read(&mut self, offset: u32) -> u32 {
        let mut bytes = [0; 4];
        self.device.read(0, u64::from(offset), &mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// A register on a shared page, written as the guest does: into the memory file.
    fn poke(&self, offset: u32, value: u32) {
        let file = self.device.shared.regs.pages.file();
        rustix::io::pwrite(file, &value.to_ne_bytes(), u64::from(offset)).unwrap();
    }

    fn program(&self, at: u32, base: u64, size: u64) {
        self.poke(at + ring::LEN, (size * 16) as u32);
        self.poke(at + ring::BAH, (base >> 32) as u32);
        self.poke(at + ring::BAL, base as u32);
        self.poke(at + ring::TAIL, 0);
        self.poke(at + ring::HEAD, 0);
    }

    fn store(&self, gpa: u64, bytes: &[u8]) {
        assert_eq!(rustix::io::pwrite(self.file.as_fd(), bytes, SKIP + gpa).unwrap(), bytes.len());
    }

    fn load(&self, gpa: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        rustix::io::pread(self.file.as_fd(), &mut bytes, SKIP + gpa).unwrap();
        bytes
    }

    fn load_u64(&self, gpa: u64) -> u64 {
        u64::from_le_bytes(self.load(gpa, 8).try_into().unwrap())
    }

    fn describe(&self, ring: u64, place: u64, words: [u64; 2]) {
        self.store(ring + 16 * place, &words[0].to_le_bytes());
        self.store(ring + 16 * place + 8, &words[1].to_le_bytes());
    }

    /// One poll of the transmit queue: the frames with their offloads, and what was counted.
    fn poll(&self) -> (Vec<(Vec<u8>, Offload)>, Tally) {
        let mut queues = self.desk.queues.lock().unwrap();
        let queue = queues.values_mut().next().expect("the transmit queue is not served").queue();
        let (mut batch, mut tally) = (Batch::new(), Tally::default());
        queue.fetch(&mut batch, &mut tally);
        let frames = batch.frames().iter().map(|f| (bytes(&batch, f), f.offload)).collect();
        queue.release(&mut tally);
        (frames, tally)
    }

    /// Sends `frame` with the given second words of its descriptors, cut into as many parts, from `place` on.
    fn transmit(&self, place: u64, frame: &[u8], words: &[u64]) {
        let part = frame.len().div_ceil(words.len());
        for (i, (chunk, word)) in frame.chunks(part).zip(words).enumerate() {
            let at = (place + i as u64) % RING_SIZE;
            let buffer = TX_BUFFERS + at * 0x1000;
            self.store(buffer, chunk);
            self.describe(TX_RING, at, [buffer, word | chunk.len() as u64]);
        }
        self.poke(regs::TX_RING + ring::TAIL, ((place + words.len() as u64) % RING_SIZE) as u32);
    }

    /// Posts receive buffers at places `from..to`.
    fn post(&self, from: u64, to: u64) {
        for place in from..to {
            self.describe(RX_RING, place % RING_SIZE, [RX_BUFFERS + (place % RING_SIZE) * 0x1000, 0]);
        }
        self.poke(regs::RX_RING + ring::TAIL, (to % RING_SIZE) as u32);
    }

    fn deliver(&self, frames: &[(&[u8], Offload)]) -> Outcome {
        let mut batch = Batch::new();
        let mut bodies = Arena::new(frames.len(), 16_384);
        for (slot, (frame, offload)) in frames.iter().enumerate() {
            let (next, pieces) = batch.next_frame().unwrap();
            let n = frame.len().min(64);
            next.head[..n].copy_from_slice(&frame[..n]);
            (next.len, next.piece, next.pieces) = (frame.len() as u32, pieces.len() as u32, 1);
            next.offload = *offload;
            assert!(pieces.push(bodies.put(slot, frame.get(64..).unwrap_or(&[]), 0)));
            batch.commit();
        }
        let picks: Vec<u16> = (0..frames.len() as u16).collect();
        let mut outcome = Outcome::new();
        let mut slot = self.port.egress(0).unwrap();
        slot.as_mut().expect("the receiver is off").send(&batch, &picks, &mut outcome);
        outcome
    }

    fn interrupted(&self, event: usize) -> bool {
        rustix::io::read(&self.events[event], &mut [0; 8]).is_ok()
    }
}

fn bytes(batch: &Batch, frame: &crate::frame::Frame) -> Vec<u8> {
    let mut all = frame.head[..frame.head_len()].to_vec();
    for piece in batch.body(frame) {
        let mut part = vec![0; piece.len()];
        piece.read(&mut part);
        all.extend(part);
    }
    assert_eq!(all.len(), frame.len as usize);
    all
}

/// A UDP or TCP packet over IPv4 or IPv6 with lengths and checksums as drivers leave them for the device.
fn packet(v6: bool, tcp: bool, payload: usize, large: bool) -> Vec<u8> {
    let mut frame = [PEER, MAC.0].concat();
    let l4_header = if tcp { 20 } else { 8 };
    let l4_len = l4_header + payload;
    let (src, dst) = ([10u8; 16], [11u8; 16]);
    let width = if v6 { 16 } else { 4 };
    let protocol = if tcp { 6 } else { 17 };
    if v6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(if large { [0; 2] } else { (l4_len as u16).to_be_bytes() });
        frame.extend([protocol, 64]);
    } else {
        frame.extend([0x08, 0x00, 0x45, 0]);
        frame.extend(if large { [0; 2] } else { (20 + l4_len as u16).to_be_bytes() });
        frame.extend([0, 7, 0x40, 0, 64, protocol, 0, 0]);
    }
    frame.extend(&src[..width]);
    frame.extend(&dst[..width]);
    let seed = Sum::pseudo(&src[..width], &dst[..width], protocol, if large { 0 } else { l4_len }).value();
    let mut l4 = vec![0; l4_header];
    l4[..4].copy_from_slice(&[0x12, 0x34, 0, 80]);
    if tcp {
        (l4[12], l4[13]) = (0x50, 0x18);
        l4[16..18].copy_from_slice(&seed.to_be_bytes());
    } else {
        l4[4..6].copy_from_slice(&(l4_len as u16).to_be_bytes());
        l4[6..8].copy_from_slice(&seed.to_be_bytes());
    }
    frame.extend(l4);
    frame.extend((0..payload).map(|i| i as u8));
    frame
}

/// The words of a context descriptor.
fn context(v6: bool, tcp: bool, mss: u64, tse: bool) -> [u64; 2] {
    let l4 = if v6 { 54 } else { 34 };
    let store = l4 + if tcp { 16 } else { 6 };
    let header = l4 + if tcp { 20 } else { 8 };
    let ip = 14 | 24 << 8 | (l4 - 1) << 16;
    let flags = regs::tx::DEXT
        | if tcp { regs::tx::TCP } else { 0 }
        | if v6 { 0 } else { regs::tx::IP }
        | if tse { regs::tx::TSE } else { 0 };
    [ip | (l4 | store << 8) << 32, flags | header << 40 | mss << 48]
}

const LEGACY: u64 = regs::tx::EOP | regs::tx::RS;
const DATA: u64 = regs::tx::DEXT | regs::tx::DTYP_DATA;
const LAST: u64 = DATA | regs::tx::EOP | regs::tx::RS;

fn both(test: impl Fn(Model)) {
    test(Model::E1000);
    test(Model::E1000e);
}

#[test]
fn identity_and_reset_values() {
    both(|model| {
        let mut rig = rig(model);
        let mut id = [0; 4];
        rig.device.config().read(0, &mut id);
        assert_eq!(u32::from_le_bytes(id), u32::from(model.device_id()) << 16 | 0x8086);
        rig.write(regs::MTA, 7);
        rig.write(regs::CTRL, regs::CTRL_RST);
        assert_eq!(rig.read(regs::CTRL) & regs::CTRL_RST, 0);
        assert_eq!(rig.read(regs::MTA), 0);
        assert_eq!(rig.read(regs::RA), 0x0100_5452);
        assert_eq!(rig.read(regs::RA + 4), regs::RAH_AV | 0x0302);
        assert_ne!(rig.read(regs::STATUS) & regs::STATUS_LU, 0);
        // The shared pages are zeroed before the write is answered.
        assert_eq!(rig.read(regs::TX_RING + ring::LEN), 0);
        assert!(rig.desk.queues.lock().unwrap().is_empty());
        assert!(!rig.port.link());
    });
}

#[test]
fn the_io_window_resets_the_82540em() {
    let mut rig = rig(Model::E1000);
    rig.write(regs::MTA, 7);
    rig.device.write(1, 0, &regs::CTRL.to_le_bytes());
    rig.device.write(1, 4, &regs::CTRL_RST.to_le_bytes());
    assert_eq!(rig.read(regs::MTA), 0);
    // Old addresses of the 82542 lead to the same registers.
    rig.write(0x0438, 3);
    assert_eq!(rig.read(0x3818), 3);
}

#[test]
fn frames_leave_by_a_store_to_the_shared_page() {
    both(|model| {
        let mut rig = rig(model);
        let traps = rig.device.features();
        let frame = packet(false, false, 300, false);
        let last = LEGACY;
        rig.transmit(0, &frame, &[0, 0, last]);
        let (frames, tally) = rig.poll();
        assert_eq!(frames, [(frame.clone(), Offload::NONE)]);
        assert_eq!((tally.frames, tally.bytes), (1, frame.len() as u64));
        // Done only where the driver asked for it.
        let done = |place: u64| rig.load_u64(TX_RING + 16 * place + 8) & regs::tx::DD != 0;
        assert_eq!([done(0), done(1), done(2)], [false, false, true]);
        assert!(rig.interrupted(usize::from(model == Model::E1000e)));
        assert_eq!(rig.device.features(), traps, "nothing trapped");
        assert_eq!(rig.read(regs::TX_RING + ring::HEAD), 3);
        // Round the end of the ring, and short ones padded.
        for place in (3..).take(70) {
            rig.transmit(place % RING_SIZE, &frame[..20], &[LEGACY]);
            let (frames, _) = rig.poll();
            assert_eq!(frames[0].0.len(), 60);
            assert_eq!(frames[0].0[..20], frame[..20]);
            assert!(frames[0].0[20..].iter().all(|b| *b == 0));
        }
        assert_eq!(rig.read(0x4080), 71);
        assert_eq!(rig.read(0x4080), 0, "cleared by reading");
    });
}

#[test]
fn reports_of_sent_frames_wait_for_silence_or_half_a_ring() {
    both(|model| {
        let rig = rig_with(E1000Config::new(model, MAC));
        let event = usize::from(model == Model::E1000e);
        let frame = packet(false, false, 300, false);
        rig.transmit(0, &frame, &[LEGACY]);
        assert_eq!(rig.poll().1.interrupts, 0);
        // Silence: it comes by itself.
        while rig.poll().1.interrupts == 0 {}
        assert!(rig.interrupted(event));
        rig.device.shared.irq.read(regs::ICR);
        rig.device.shared.irq.write(regs::IMS, regs::TXDW | regs::TXQ0);
        rig.device.interrupts().unmask();
        // As many as shall not wait, since the driver has looked.
        for place in 1..=REPORT_AT {
            rig.describe(TX_RING, place, [TX_BUFFERS, LEGACY | 60]);
        }
        rig.poke(regs::TX_RING + ring::TAIL, REPORT_AT as u32 + 1);
        assert_eq!(rig.poll().1.interrupts, 1);
    });
}

#[test]
fn a_packet_without_its_end_waits_and_an_endless_one_is_dropped() {
    let mut rig = rig(Model::E1000e);
    let frame = packet(false, false, 100, false);
    rig.transmit(0, &frame[..50], &[DATA]);
    assert_eq!(rig.poll().1.frames, 0);
    rig.transmit(1, &frame[50..], &[LAST]);
    assert_eq!(rig.poll().0[0].0, frame);
    // A longer ring whose descriptors never end a packet.
    rig.write(regs::TCTL, 0);
    let size = 0x400;
    rig.program(regs::TX_RING, 0x4_0000, size);
    rig.write(regs::TCTL, regs::TCTL_EN);
    for place in 0..size {
        rig.describe(0x4_0000, place, [TX_BUFFERS, DATA | 4]);
    }
    rig.poke(regs::TX_RING + ring::TAIL, 1000);
    let dropped: u64 = (0..4).map(|_| rig.poll().1).map(|tally| tally.frames).sum();
    assert_eq!(dropped, 1);
    // It is over with the next end, and the one after it passes.
    rig.describe(0x4_0000, 1000, [TX_BUFFERS, LAST | 4]);
    rig.describe(0x4_0000, 1001, [TX_BUFFERS, LAST | 64]);
    rig.poke(regs::TX_RING + ring::TAIL, 1002);
    assert_eq!(rig.poll().0.len(), 1);
    assert_eq!(rig.port.fault.get(), None);
}

#[test]
fn checksums_become_facts_or_are_made() {
    for v6 in [false, true] {
        for tcp in [false, true] {
            let rig = rig(Model::E1000);
            let frame = packet(v6, tcp, 200, false);
            let [low, high] = context(v6, tcp, 0, false);
            rig.describe(TX_RING, 0, [low, high]);
            rig.transmit(1, &frame, &[DATA | regs::tx::TXSM, LAST]);
            let (frames, _) = rig.poll();
            let (sent, offload) = &frames[0];
            assert!(offload.needs_csum() && offload.gso == Gso::None);
            assert_eq!(*sent, frame);
            let mut whole = sent.clone();
            offload.complete(&mut whole).unwrap();
            // The same by the other road: a span that ends before the packet does is summed here.
            let (l4, store) =
                if v6 { (54, if tcp { 70 } else { 60 }) } else { (34, if tcp { 50 } else { 40 }) };
            let mut longer = frame.clone();
            longer.extend([0xee; 30]);
            let span = l4 | store << 8 | (frame.len() as u64 - 1) << 16;
            rig.describe(TX_RING, 3, [span << 32, high]);
            rig.transmit(4, &longer, &[DATA | regs::tx::TXSM, DATA, LAST]);
            let (frames, _) = rig.poll();
            assert!(frames[0].1.is_none());
            assert_eq!(frames[0].0[..frame.len()], whole);
            assert_eq!(frames[0].0[frame.len()..], [0xee; 30]);
            // And by a legacy descriptor.
            rig.transmit(7, &frame, &[LEGACY | regs::tx::IC | store << 16 | l4 << 40]);
            let (frames, _) = rig.poll();
            let mut legacy = frames[0].0.clone();
            frames[0].1.complete(&mut legacy).unwrap();
            assert_eq!(legacy, whole);
        }
    }
}

#[test]
fn segmentation_crosses_the_switch_whole_and_well_formed() {
    for (v6, tcp, tagged) in
        [(false, true, false), (true, true, false), (false, true, true), (true, false, true)]
    {
        let mut rig = rig(Model::E1000e);
        let large = packet(v6, tcp, 9000, true);
        rig.describe(TX_RING, 0, context(v6, tcp, 1400, true));
        let vlan = if tagged { regs::tx::VLE } else { 0 };
        rig.write(regs::CTRL, regs::CTRL_VME);
        let first = DATA | regs::tx::TSE | regs::tx::TXSM | regs::tx::IXSM;
        rig.transmit(1, &large, &[first, DATA | regs::tx::TSE, LAST | regs::tx::TSE | vlan | 0x0123 << 48]);
        let (frames, _) = rig.poll();
        let (mut sent, offload) = frames[0].clone();
        if tagged {
            assert_eq!(sent[12..16], [0x81, 0, 0x01, 0x23]);
        }
        let expected = packet(v6, tcp, 9000, false);
        let kind = [[Gso::Udp4, Gso::Tcp4], [Gso::Udp6, Gso::Tcp6]][usize::from(v6)][usize::from(tcp)];
        assert_eq!((offload.gso, offload.gso_size), (kind, 1400));
        // Every segment verifies.
        let bound = offload.header_bound(sent.len());
        let header = sent[..bound].to_vec();
        let plan = Plan::new(&header, sent.len(), offload, 0).unwrap();
        assert_eq!(plan.count(), 9000usize.div_ceil(1400));
        let mut out = [0; MAX_HEADER];
        assert!(plan.segment(0, &mut out).is_some());
        // Untagged it is what a virtio driver would have sent: lengths, IP checksum, seed.
        if tagged {
            sent.drain(12..16);
        }
        let ip_sum = if v6 { [0, 0] } else { Sum::of(&expected[14..34]).checksum().to_be_bytes() };
        let mut expected = expected;
        if !v6 {
            expected[24..26].copy_from_slice(&ip_sum);
        }
        if !tcp {
            // UDP's own length field is the driver's.
            let at = if v6 { 58 } else { 38 };
            expected[at..at + 2].copy_from_slice(&sent[at..at + 2]);
        }
        assert_eq!(sent, expected);
    }
}

#[test]
fn absurd_requests_cost_the_frame_only() {
    let rig = rig(Model::E1000);
    let large = packet(false, true, 3000, true);
    let first = LAST | regs::tx::TSE | regs::tx::TXSM;
    let [low, high] = context(false, true, 1400, true);
    let absurd = [
        [low, high & 0xffff_ffff_ffff], // no segment size
        [low | 0xff << 40, high],       // the checksum behind every header
        [low & !(0xff << 40), high],    // … before the headers
        [low, high ^ regs::tx::IP],     // the other IP
        [u64::MAX, high],
    ];
    for (i, words) in absurd.iter().enumerate() {
        let place = 2 * i as u64;
        rig.describe(TX_RING, place, *words);
        rig.transmit(place + 1, &large, &[first]);
        let (frames, tally) = rig.poll();
        assert!(frames.is_empty(), "request {i}");
        assert_eq!(tally.drops.counts()[DropReason::BadOffload as usize], 1, "request {i}");
    }
    rig.transmit(10, &large[..10], &[LEGACY]);
    assert_eq!(rig.poll().1.drops.counts()[DropReason::TooShort as usize], 1);
    assert_eq!(rig.port.fault.get(), None);
}

#[test]
fn memory_outside_stops_the_port_until_the_driver_resets_it() {
    both(|model| {
        let mut rig = rig(model);
        rig.describe(TX_RING, 0, [MEMORY - 10, LAST | 60]);
        rig.poke(regs::TX_RING + ring::TAIL, 1);
        assert_eq!(rig.poll().1.frames, 0);
        assert_eq!(rig.port.fault.get(), Some(Fault::AddressOutOfRange));
        rig.device.faulted(Fault::AddressOutOfRange);
        assert!(!rig.port.link());
        assert!(rig.device.queues()[0].state.contains("fault"), "{:?}", rig.device.queues());
        rig.write(regs::CTRL, regs::CTRL_RST);
        assert_eq!(rig.port.fault.get(), None);
        rig.bring_up();
        let frame = packet(false, false, 20, false);
        rig.transmit(0, &frame, &[LEGACY]);
        assert_eq!(rig.poll().0.len(), 1);
    });
}

#[test]
fn the_rings_follow_their_registers() {
    let mut rig = rig(Model::E1000e);
    let frame = packet(false, false, 50, false);
    rig.transmit(0, &frame, &[LEGACY]);
    assert_eq!(rig.poll().0.len(), 1);
    // Tails out of range are nothing to do, and are counted.
    rig.poke(regs::TX_RING + ring::TAIL, 5000);
    assert_eq!(rig.poll().1.frames, 0);
    assert!(rig.device.features().contains(&"bad-tails=1".to_owned()), "{:?}", rig.device.features());
    // Programmed anew while it is on, without a trap: base, length, head, and the tail last.
    rig.program(regs::TX_RING, 0x2000, 8);
    rig.store(TX_BUFFERS, &frame);
    rig.describe(0x2000, 0, [TX_BUFFERS, LEGACY | frame.len() as u64]);
    rig.poke(regs::TX_RING + ring::TAIL, 1);
    assert_eq!(rig.poll().0[0].0, frame);
    // Off and on again: from the head that the driver wrote.
    rig.write(regs::TCTL, 0);
    rig.poke(regs::TX_RING + ring::TAIL, 4);
    assert_eq!(rig.poll().1.frames, 0, "the transmitter is off");
    rig.describe(0x2000, 3, [TX_BUFFERS, LEGACY | frame.len() as u64]);
    rig.poke(regs::TX_RING + ring::HEAD, 3);
    rig.write(regs::TCTL, regs::TCTL_EN);
    assert_eq!(rig.poll().0.len(), 1);
    // Other memory: the ring goes on where it was.
    rig.device.dma_changed(Arc::clone(&rig.map));
    rig.describe(0x2000, 4, [TX_BUFFERS, LEGACY | frame.len() as u64]);
    rig.poke(regs::TX_RING + ring::TAIL, 5);
    assert_eq!(rig.poll().0.len(), 1);
}

#[test]
fn a_ring_goes_on_where_it_was_when_the_link_or_the_driver_turned_it_off() {
    both(|model| {
        let mut rig = rig(model);
        let frame = [&MAC.0[..], &PEER, &[8, 0], &[0; 60]].concat();
        let sent = packet(false, false, 50, false);
        rig.post(0, 31);
        let done = |rig: &Rig| {
            let bit = if model == Model::E1000 { regs::rx::DD << 32 } else { regs::rx::DD };
            let words = (0..RING_SIZE).map(|place| rig.load_u64(RX_RING + 16 * place + 8));
            words.filter(|word| word & bit != 0).count() as u64
        };
        let rctl = rig.read(regs::RCTL);
        for round in 0..6 {
            for place in 0..3 {
                assert_eq!(rig.deliver(&[(&frame, Offload::NONE)]).frames, 1);
                rig.transmit((3 * round + place) % RING_SIZE, &sent, &[LEGACY]);
                assert_eq!(rig.poll().0.len(), 1);
            }
            assert_eq!(done(&rig), 3 * (round + 1), "the next descriptor each time");
            if round % 2 == 0 {
                rig.device.set_link(false);
                assert!(!rig.port.link());
                rig.device.set_link(true);
            } else {
                rig.write(regs::RCTL, rctl & !regs::RCTL_EN);
                rig.write(regs::TCTL, regs::TCTL_PSP);
                assert_eq!(u64::from(rig.read(regs::RX_RING + ring::HEAD)), 3 * (round + 1));
                rig.write(regs::TCTL, regs::TCTL_EN | regs::TCTL_PSP);
                rig.write(regs::RCTL, rctl);
            }
        }
    });
}

#[test]
fn trapped_doorbells_are_counted_and_wake() {
    let mut rig = rig(Model::E1000);
    let state = |rig: &Rig| rig.device.queues()[0].kind;
    assert_eq!(state(&rig), "exitless");
    let frame = packet(false, false, 50, false);
    rig.transmit(0, &frame, &[LEGACY]);
    rig.poke(regs::TX_RING + ring::TAIL, 0);
    // Only a core that sleeps is woken.
    for asleep in [false, true] {
        rig.desk.queues.lock().unwrap().values_mut().map(|seat| seat.queue()).for_each(|queue| {
            queue.want_kicks(asleep);
        });
        rig.write(regs::TX_RING + ring::TAIL, 1);
        assert_eq!(rustix::io::read(rig.device.shared.irq.alarm.wake_fd(), &mut [0; 8]).is_ok(), asleep);
    }
    assert_eq!(rig.poll().0.len(), 1);
    assert_eq!(state(&rig), "trapping");
    rig.transmit(1, &frame, &[LEGACY]);
    assert_eq!(state(&rig), "exitless");
}

#[test]
fn frames_are_received_in_every_format() {
    let frame = [&MAC.0[..], &PEER, &[8, 0], &[0x5a; 1000]].concat();
    for (model, format) in [(Model::E1000, 0), (Model::E1000e, 0), (Model::E1000e, 1), (Model::E1000e, 2)] {
        let mut rig = rig(model);
        rig.write(regs::RFCTL, if format > 0 { regs::RFCTL_EXTEN } else { 0 });
        let split = if format == 2 { regs::RCTL_DTYP_SPLIT } else { 0 };
        rig.poke(regs::PSRCTL, 1 | 1 << 8 | 4 << 16);
        // Without SECRC the length counts the FCS, too.
        rig.write(regs::RCTL, regs::RCTL_EN | split);
        if format == 2 {
            for place in 0..4 {
                rig.describe(RX_RING, 2 * place, [RX_BUFFERS, RX_BUFFERS + 0x1000]);
                rig.describe(RX_RING, 2 * place + 1, [RX_BUFFERS + 0x2000, 0]);
            }
            rig.poke(regs::RX_RING + ring::TAIL, 8);
        } else {
            rig.post(0, 4);
        }
        let outcome = rig.deliver(&[(&frame, Offload { flags: Offload::DATA_VALID, ..Offload::NONE })]);
        assert_eq!((outcome.frames, outcome.bytes), (1, frame.len() as u64), "{model:?} {format}");
        let words: Vec<u64> = (0..4).map(|i| rig.load_u64(RX_RING + 8 * i)).collect();
        let len = frame.len() as u64 + 4;
        let status = regs::rx::DD | regs::rx::EOP | if model == Model::E1000 { regs::rx::IXSM } else { 0 };
        let checked = if model == Model::E1000 { 0 } else { regs::rx::TCPCS | regs::rx::UDPCS };
        match format {
            0 => assert_eq!(words[1], len | (status | checked) << 32),
            1 => assert_eq!(words[..2], [0, status | checked | len << 32]),
            _ => {
                assert_eq!(words[..2], [0, status | checked | 128 << 32]);
                assert_eq!(words[2], (len - 128) << 16);
            }
        }
        if format == 2 {
            assert_eq!(rig.load(RX_BUFFERS, 128), frame[..128]);
            assert_eq!(rig.load(RX_BUFFERS + 0x1000, frame.len() - 128), frame[128..]);
        } else {
            assert_eq!(rig.load(RX_BUFFERS, frame.len()), frame);
        }
        assert!(rig.interrupted(0));
        assert_eq!(rig.read(0x4074), 1);
        assert_eq!(rig.read(0x4088), frame.len() as u32 + 4);
        rig.read(0x408c);
        assert_eq!(rig.read(0x4088), 0);
    }
}

#[test]
fn long_frames_take_several_descriptors_and_empty_ones_take_none() {
    let mut rig = rig(Model::E1000);
    rig.write(regs::RCTL, regs::RCTL_EN | regs::RCTL_LPE | regs::RCTL_SECRC);
    rig.post(0, 8);
    // A descriptor without an address in the middle of it.
    rig.describe(RX_RING, 1, [0, 0]);
    let frame = [&MAC.0[..], &PEER, &[8, 0], &[0xa5; 5000]].concat();
    let outcome = rig.deliver(&[(&frame, Offload::NONE), (&frame[..30], Offload::NONE)]);
    assert_eq!(outcome.frames, 2);
    let word = |place: u64| rig.load_u64(RX_RING + 16 * place + 8);
    let status = (regs::rx::DD | regs::rx::IXSM) << 32;
    assert_eq!([word(0), word(1), word(2)], [2048 | status, status, 2048 | status]);
    assert_eq!(word(3), 918 | status | regs::rx::EOP << 32);
    assert_eq!(word(4), 60 | status | regs::rx::EOP << 32);
    let got =
        [rig.load(RX_BUFFERS, 2048), rig.load(RX_BUFFERS + 0x2000, 2048), rig.load(RX_BUFFERS + 0x3000, 918)];
    assert_eq!(got.concat(), frame);
    // Three descriptors are left: one frame of 5014 bytes, and none for the next.
    let outcome = rig.deliver(&[(&frame, Offload::NONE), (&frame, Offload::NONE)]);
    assert_eq!((outcome.frames, outcome.drops.counts()[DropReason::RingFull as usize]), (1, 1));
    assert_eq!(rig.read(0x4010), 1);
    assert_ne!(rig.read(regs::ICR) & regs::RXO, 0);
    // Longer than allowed.
    rig.write(regs::RCTL, regs::RCTL_EN);
    assert_eq!(
        rig.deliver(&[(&frame, Offload::NONE)]).drops.counts()[DropReason::BufferTooSmall as usize],
        1
    );
}

#[test]
fn filters() {
    let mut rig = rig(Model::E1000);
    rig.post(0, 31);
    let to = |dst: [u8; 6]| [&dst[..], &PEER, &[8, 0], &[0; 60]].concat();
    let tagged = |vid: u16| [&MAC.0[..], &PEER, &[0x81, 0], &vid.to_be_bytes(), &[8, 0], &[7; 60]].concat();
    let taken = |rig: &Rig, frame: &[u8]| rig.deliver(&[(frame, Offload::NONE)]).frames == 1;
    let multicast = [0x01, 0, 0x5e, 0x12, 0x34, 0x56];
    assert!(taken(&rig, &to(MAC.0)));
    assert!(taken(&rig, &to([0xff; 6])));
    assert!(!taken(&rig, &to(PEER)) && !taken(&rig, &to(multicast)));
    let outcome = rig.deliver(&[(&to(PEER), Offload::NONE)]);
    assert_eq!(outcome.drops.counts()[DropReason::Filtered as usize], 1);
    // The second receive address; the multicast table by bits 47 to 36 of the address.
    rig.write(regs::RA + 8, u32::from_le_bytes([PEER[0], PEER[1], PEER[2], PEER[3]]));
    rig.write(regs::RA + 12, u32::from(u16::from_le_bytes([PEER[4], PEER[5]])) | regs::RAH_AV);
    assert!(taken(&rig, &to(PEER)));
    let hash = (0x5634u32 >> 4) & 0xfff;
    rig.write(regs::MTA + 4 * (hash >> 5), 1 << (hash & 31));
    assert!(taken(&rig, &to(multicast)));
    let base = regs::RCTL_EN;
    rig.write(regs::RCTL, base);
    assert!(!taken(&rig, &to([0xff; 6])));
    rig.write(regs::RCTL, base | regs::RCTL_UPE | regs::RCTL_MPE);
    assert!(taken(&rig, &to([2, 2, 2, 2, 2, 2])) && taken(&rig, &to([3, 2, 2, 2, 2, 2])));
    // VLANs.
    assert!(taken(&rig, &tagged(5)));
    rig.write(regs::RCTL, base | regs::RCTL_VFE);
    assert!(!taken(&rig, &tagged(5)));
    rig.write(regs::VFTA, 1 << 5);
    assert!(taken(&rig, &tagged(5)) && !taken(&rig, &tagged(6)));
    rig.write(regs::CTRL, regs::CTRL_VME);
    assert!(taken(&rig, &tagged(0x6005)));
    let words: Vec<u64> = (0..RING_SIZE).map(|place| rig.load_u64(RX_RING + 16 * place + 8)).collect();
    let place = words.iter().position(|word| word >> 32 & regs::rx::VP != 0).expect("a stripped tag") as u64;
    assert_eq!(words[place as usize] >> 48, 0x6005);
    assert_eq!(rig.load(RX_BUFFERS + place * 0x1000, 16), [&MAC.0[..], &PEER, &[8, 0, 7, 7]].concat());
}

#[test]
fn the_pin_follows_causes_and_masks() {
    let mut rig = rig(Model::E1000);
    rig.write(regs::IMC, u32::MAX);
    rig.write(regs::ICS, regs::RXT0);
    assert!(!rig.interrupted(0), "masked");
    assert_eq!(rig.read(regs::ICS), regs::RXT0);
    rig.write(regs::IMS, regs::RXT0);
    assert!(rig.interrupted(0) && rig.device.interrupts().level());
    // The end of the interrupt without its cause being gone: again.
    assert!(rig.device.interrupts().unmask() && rig.interrupted(0));
    assert_ne!(rig.read(regs::ICR) & regs::RXT0, 0);
    assert_eq!(rig.read(regs::ICR), 0);
    assert!(!rig.device.interrupts().level());
    rig.device.interrupts().unmask();
    assert!(!rig.interrupted(0));
    // The link.
    rig.device.set_link(false);
    assert!(!rig.port.link());
    rig.write(regs::IMS, regs::LSC);
    assert!(rig.interrupted(0));
    assert_eq!(rig.read(regs::STATUS) & regs::STATUS_LU, 0);
}

#[test]
fn messages_go_where_ivar_says_and_receive_causes_are_held() {
    let mut rig = rig(Model::E1000e);
    let frame = [&MAC.0[..], &PEER, &[8, 0], &[0; 60]].concat();
    rig.post(0, 20);
    rig.deliver(&[(&frame, Offload::NONE)]);
    assert!(rig.interrupted(0) && !rig.interrupted(1));
    // EIAC took the cause, and until the driver writes IMS another frame says nothing.
    assert_eq!(rig.read(regs::ICS) & regs::RXQ0, 0);
    rig.deliver(&[(&frame, Offload::NONE)]);
    assert!(!rig.interrupted(0));
    rig.write(regs::IMS, regs::RXQ0);
    assert!(rig.interrupted(0));
    rig.device.set_link(false);
    assert!(rig.interrupted(2));
    assert_ne!(rig.read(regs::ICR) & regs::LSC, 0);
}

#[test]
fn the_clock_of_the_82574_runs_by_its_increment() {
    let mut rig = rig(Model::E1000e);
    assert_eq!(rig.read(regs::SYSTIML), 0);
    rig.write(regs::TIMINCA, 1 << 24 | 3);
    let now = |rig: &mut Rig| u64::from(rig.read(regs::SYSTIML)) | u64::from(rig.read(regs::SYSTIMH)) << 32;
    let first = now(&mut rig);
    assert_eq!(first % 3, 0);
    while now(&mut rig) == first {}
}

/// Registers that are worth hitting, and any others.
fn offset() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => (0u32..10, 0u32..2).prop_map(|(i, ring)| regs::TX_RINGS[ring as usize] + 4 * i),
        4 => (0u32..10, 0u32..2).prop_map(|(i, ring)| regs::RX_RINGS[ring as usize] + 4 * i),
        4 => prop_oneof![
            Just(regs::RCTL), Just(regs::TCTL), Just(regs::IMS), Just(regs::ICS), Just(regs::CTRL),
            Just(regs::CTRL_EXT), Just(regs::EECD), Just(regs::MDIC), Just(regs::IVAR), Just(regs::RFCTL),
            Just(regs::PSRCTL), Just(regs::VET), Just(regs::MRQC), Just(regs::RETA), Just(regs::RSSRK),
        ],
        2 => (0u32..0x8000).prop_map(|i| i * 4),
    ]
}

/// Numbers that look like something, and any others.
fn value() -> impl Strategy<Value = u32> {
    prop_oneof![3 => 0u32..128, 2 => (0u32..0x10_0000).prop_map(|v| v & !0x7f), 1 => any::<u32>(), 2 => Just(3u32 << 1)]
}

fn descriptor() -> impl Strategy<Value = [u64; 2]> {
    let address = prop_oneof![4 => 0..MEMORY, 1 => any::<u64>(), 1 => Just(0u64)];
    (address, any::<u64>(), 0u64..0x1_0000).prop_map(|(address, word, len)| {
        let len = if word & 1 << 63 == 0 { word & 0xff } else { len };
        [address, word & !0xf_ffff | len]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn no_guest_harms_more_than_its_port(
        e1000e in any::<bool>(),
        pair in any::<bool>(),
        steps in prop::collection::vec((offset(), value(), 0u8..6), 1..60),
        tx in prop::collection::vec(descriptor(), 64),
        rx in prop::collection::vec(descriptor(), 64),
        frame in prop::collection::vec(any::<u8>(), 14..3000),
    ) {
        let mut rig = rig(if e1000e { Model::E1000e } else { Model::E1000 });
        // What lies around guest memory in its file.
        let outside = [vec![0xaa; SKIP as usize], vec![0xbb; (0x2000 - SKIP) as usize]];
        rustix::io::pwrite(rig.file.as_fd(), &outside[0], 0).unwrap();
        rustix::io::pwrite(rig.file.as_fd(), &outside[1], SKIP + MEMORY).unwrap();
        for (place, words) in tx.iter().enumerate() {
            rig.describe(TX_RING, place as u64, *words);
        }
        for (place, words) in rx.iter().enumerate() {
            rig.describe(RX_RING, place as u64, *words);
        }
        if pair {
            // The second rings lie where the first ones do, and receive side scaling is on.
            rig.program(regs::TX_RING_1, TX_RING, RING_SIZE);
            rig.program(regs::RX_RING_1, RX_RING, RING_SIZE);
            for (register, value) in [(regs::RETA, 0x8000_8000), (regs::RSSRK, 7), (regs::MRQC, !2)] {
                rig.write(register, value);
            }
        }
        let flow = [&MAC.0[..], &packet(frame[0] & 1 != 0, frame[1] & 1 != 0, 9, false)[6..]].concat();
        for (offset, value, how) in steps {
            match how {
                0 | 1 if regs::SHARED.contains(&offset) => rig.poke(offset, value),
                0 | 1 => rig.write(offset, value),
                2 => { rig.read(offset); }
                3 => rig.poke(regs::TX_RINGS[(value >> 6 & 1) as usize] + ring::TAIL, value % 64),
                4 => rig.poke(regs::RX_RINGS[(value >> 6 & 1) as usize] + ring::TAIL, value % 64),
                _ => {
                    let served = !rig.desk.queues.lock().unwrap().is_empty();
                    if served {
                        let (frames, tally) = rig.poll();
                        let dropped: u32 = tally.drops.counts().iter().sum();
                        prop_assert_eq!(tally.frames, frames.len() as u64 + u64::from(dropped));
                        for (sent, offload) in frames {
                            prop_assert!(sent.len() >= 14 && sent.len() <= 65_535 + 26);
                            prop_assert!(usize::from(offload.csum_start) < sent.len());
                        }
                    }
                    if rig.port.link() {
                        let frames = [&frame[..], &frame[..14], &flow].map(|frame| (frame, Offload::NONE));
                        let outcome = rig.deliver(&frames);
                        let dropped: u32 = outcome.drops.counts().iter().sum();
                        prop_assert_eq!(outcome.frames + u64::from(dropped), 3);
                    }
                    if let Some(fault) = rig.port.fault.get() {
                        rig.device.faulted(fault);
                    }
                }
            }
        }
        let mut around = [vec![0; SKIP as usize], vec![0; (0x2000 - SKIP) as usize]];
        rustix::io::pread(rig.file.as_fd(), &mut around[0], 0).unwrap();
        rustix::io::pread(rig.file.as_fd(), &mut around[1], SKIP + MEMORY).unwrap();
        prop_assert_eq!(around, outside);
        rig.device.detached();
        prop_assert!(rig.desk.queues.lock().unwrap().is_empty() && !rig.port.link());
    }
}
