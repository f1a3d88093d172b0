//! The device driven by hand: registers through the regions, rings and buffers in a memory file, the queues
//! polled by the test instead of a core.

#![allow(clippy::cast_possible_truncation)]

mod any_guest;
mod csb;
mod diagnostics;
mod hostile;
mod interrupts;
mod livelock;
mod pair;
mod persist;
mod receive;
mod transmit;

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{eventfd, EventfdFlags};
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};

use super::regs::{self, ring};
use super::{E1000Config, Model, E1000};
use crate::core::Recall;
use crate::device::pci::{write_config, Index, PciDevice};
use crate::graph::{QueueHandle, Scheduler};
use crate::mem::{Arena, GuestMap, RegionSpec};
use crate::observe::CounterFile;
use crate::packet::{Batch, Gso, Mac, Offload, Plan, Sum, MAX_HEADER};
use crate::port::{DropReason, IngressQueue, Outcome, Port, PortId, Tally, DEFAULT_MTU};
use crate::util::fault::Fault;

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
    queues: Mutex<HashMap<u64, QueueHandle>>,
    next: Mutex<u64>,
}

impl Scheduler for Desk {
    fn serve_queue(self: Arc<Self>, mut seat: QueueHandle) -> Recall {
        let mut next = self.next.lock().unwrap();
        *next += 1;
        let key = *next;
        drop(next);
        seat.queue().want_kicks(false);
        self.queues.lock().unwrap().insert(key, seat);
        Box::new(move || {
            let seat = self.queues.lock().unwrap().remove(&key);
            if let Some(seat) = seat {
                seat.return_to_owner();
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
        let file = self.device.nic.regs.pages.file();
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

fn bytes(batch: &Batch, frame: &crate::packet::Frame) -> Vec<u8> {
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
fn the_clock_of_the_82574_runs_by_its_increment() {
    let mut rig = rig(Model::E1000e);
    assert_eq!(rig.read(regs::SYSTIML), 0);
    rig.write(regs::TIMINCA, 1 << 24 | 3);
    let now = |rig: &mut Rig| u64::from(rig.read(regs::SYSTIML)) | u64::from(rig.read(regs::SYSTIMH)) << 32;
    let first = now(&mut rig);
    assert_eq!(first % 3, 0);
    while now(&mut rig) == first {}
}
