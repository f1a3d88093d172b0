//! The device driven by hand: registers through the regions, rings and buffers in a memory file, the queues
//! polled by the test instead of a core.

#![allow(clippy::cast_possible_truncation)]

mod hostile;

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{eventfd, EventfdFlags};

use super::irq::Irq;
use super::journal::RingJournal;
use super::regs::{self, cause, desc};
use super::{Rtl8169, Rtl8169Config, REST};
use crate::core::Recall;
use crate::device::moderation::Clock;
use crate::device::pci::{self, write_config, Image, Index, Interrupts, PciDevice, Persist};
use crate::device::written_tests::Written;
use crate::graph::{QueueHandle, Scheduler};
use crate::mem::{memory_file, Arena, GuestMap, Overrun, RegionSpec, Words};
use crate::observe::CounterFile;
use crate::packet::{Batch, Frame, Gso, Mac, Offload, Sum};
use crate::port::{DropReason, Outcome, Port, PortId, Tally, DEFAULT_MTU};
use crate::util::fault::Fault;

const MAC: Mac = Mac([0x52, 0x54, 0, 1, 2, 3]);
const PEER: [u8; 6] = [0x52, 0x54, 0, 9, 9, 9];
const MEMORY: u64 = 0x10_0000;
const TX_RING: u64 = 0x1000;
const RX_RING: u64 = 0x3000;
const TX_BUFFERS: u64 = 0x1_0000;
const RX_BUFFERS: u64 = 0x8_0000;
const SIZE: u64 = 16;
const ONE: u64 = desc::FS | desc::LS;

/// Holds the queue that a core would have.
#[derive(Default)]
struct Desk {
    queues: Mutex<HashMap<u64, QueueHandle>>,
    next: AtomicU64,
}

impl Scheduler for Desk {
    fn serve_queue(self: Arc<Self>, mut seat: QueueHandle) -> Recall {
        seat.queue().want_kicks(false);
        let key = self.next.fetch_add(1, Ordering::Relaxed);
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
    device: Rtl8169,
    desk: Arc<Desk>,
    port: Arc<Port>,
    file: File,
    /// Where the guest's memory begins in it.
    base: u64,
    map: Arc<GuestMap>,
    counters: CounterFile,
    pin: OwnedFd,
}

/// One that interrupts as the driver programs it: at once.
fn rig() -> Rig {
    rig_with(Rtl8169Config { moderation: Duration::ZERO, ..Rtl8169Config::new(MAC) })
}

fn device(
    settings: Rtl8169Config,
    counters: &CounterFile,
    id: u16,
    pin: &OwnedFd,
) -> (Rtl8169, Arc<Desk>, Arc<Port>) {
    let slot = counters.open_slot(PortId(id), "nic");
    let port = Arc::new(Port::new(PortId(id), "nic", slot, DEFAULT_MTU).unwrap());
    let desk = Arc::new(Desk::default());
    let scheduler = Arc::clone(&desk) as Arc<dyn Scheduler>;
    let device = Rtl8169::new(settings, Arc::clone(&port), scheduler).unwrap();
    device.interrupts().set_trigger(Index::Intx, 0, Some(pin.try_clone().unwrap()));
    (device, desk, port)
}

fn rig_with(settings: Rtl8169Config) -> Rig {
    let counters = CounterFile::anonymous().unwrap();
    let pin = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
    let (mut device, desk, port) = device(settings, &counters, 0, &pin);
    let file = memory_file(c"guest", MEMORY as usize).unwrap();
    let spec = RegionSpec { gpa: 0, size: MEMORY, user_addr: 0, offset: 0, file: file.try_clone().unwrap() };
    let map = Arc::new(GuestMap::new(&[spec]).unwrap());
    device.dma_changed(Arc::clone(&map));
    let mut rig = Rig { device, desk, port, file, base: 0, map, counters, pin };
    rig.bring_up();
    rig
}

impl Rig {
    /// What a driver does before it moves frames.
    fn bring_up(&mut self) {
        write_config(&mut self.device, 4, &[0b111, 0]);
        for place in 0..SIZE {
            self.describe(TX_RING, place, [0, 0]);
        }
        self.post(0, SIZE, 0x800);
        for (register, base) in [(regs::TNPDS, TX_RING), (regs::RDSAR, RX_RING)] {
            self.write(register + 4, 0);
            self.write(register, base as u32);
        }
        self.device.write(1, 0xda, &0x4000u16.to_le_bytes());
        self.device.write(1, 0x37, &[0xc]);
        self.write(regs::RCR, regs::RCR_APM | regs::RCR_AB);
        self.device.write(1, 0x3c, &((cause::ROK | cause::TOK | cause::LINK) as u16).to_le_bytes());
    }

    fn write(&mut self, offset: u32, value: u32) {
        self.device.write(1, u64::from(offset), &value.to_le_bytes());
    }

    fn read(&mut self, offset: u32) -> u32 {
        let mut bytes = [0; 4];
        self.device.read(1, u64::from(offset), &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn isr(&mut self) -> u32 {
        self.read(regs::INTERRUPTS) >> 16
    }

    fn store(&self, gpa: u64, bytes: &[u8]) {
        assert_eq!(rustix::io::pwrite(self.file.as_fd(), bytes, self.base + gpa).unwrap(), bytes.len());
    }

    fn load(&self, gpa: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        rustix::io::pread(self.file.as_fd(), &mut bytes, self.base + gpa).unwrap();
        bytes
    }

    fn word(&self, ring: u64, place: u64) -> u64 {
        u64::from_le_bytes(self.load(ring + 16 * place, 8).try_into().unwrap())
    }

    fn describe(&self, ring: u64, place: u64, [word, buffer]: [u64; 2]) {
        let end = if place + 1 == SIZE { desc::EOR } else { 0 };
        self.store(ring + 16 * place + 8, &buffer.to_le_bytes());
        self.store(ring + 16 * place, &(word | end).to_le_bytes());
    }

    /// Posts receive buffers of `size` bytes at places `from..to`.
    fn post(&self, from: u64, to: u64, size: u64) {
        for place in from..to {
            let place = place % SIZE;
            self.describe(RX_RING, place, [desc::OWN | size, RX_BUFFERS + place * 0x1000]);
        }
    }

    /// Sends `frame` in as many parts as there are `words`, from `place` on.
    fn transmit(&self, place: u64, frame: &[u8], words: &[u64]) {
        let part = frame.len().div_ceil(words.len());
        for (at, (chunk, word)) in (place..).zip(frame.chunks(part).zip(words)) {
            let at = at % SIZE;
            self.store(TX_BUFFERS + at * 0x1000, chunk);
            self.describe(TX_RING, at, [desc::OWN | word | chunk.len() as u64, TX_BUFFERS + at * 0x1000]);
        }
    }

    /// One poll of the transmit queue: the frames with their offloads, and what was counted.
    fn poll(&self) -> (Vec<(Vec<u8>, Offload)>, Tally) {
        let mut desk = self.desk.queues.lock().unwrap();
        let queue = desk.values_mut().next().expect("the transmit queue is not served").queue();
        let (mut batch, mut tally) = (Batch::new(), Tally::default());
        queue.fetch(&mut batch, &mut tally);
        let frames = batch.frames().iter().map(|f| (bytes(&batch, f), f.offload)).collect();
        queue.release(&mut tally);
        (frames, tally)
    }

    fn may_sleep(&self) -> bool {
        let mut desk = self.desk.queues.lock().unwrap();
        !desk.values_mut().next().expect("the transmit queue is not served").queue().want_kicks(true)
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

    fn interrupted(&self) -> bool {
        rustix::io::read(&self.pin, &mut [0; 8]).is_ok()
    }

    /// This guest, and another process's device.
    fn taken_over(mut self) -> Rig {
        let mut image = Image::new(self.device.format().size);
        self.device.save(&mut image);
        let files = self.device.files().into_iter().map(|file| file.try_clone_to_owned().unwrap()).collect();
        let settings = self.device.settings;
        (self.device, self.desk, self.port) = device(settings, &self.counters, 1, &self.pin);
        self.device.adopt(files, &image).unwrap();
        self.device.interrupts().set_trigger(Index::Intx, 0, Some(self.pin.try_clone().unwrap()));
        self.device.dma_changed(Arc::clone(&self.map));
        pci::resume(&mut self.device);
        self
    }
}

/// What its guest had told the card, where its rings were, and all that is saved: each word has the meaning
/// that it had.
#[test]
fn what_an_older_program_left_is_read_as_it_was_meant() {
    let mut rig = rig();
    let written = Written(include_str!("../tests/rtl8169.txt"));
    let changed = written.adopt(&mut rig.device, &["journal"]);
    // The mask of interrupts is set by `resume`.
    assert!(changed.iter().all(|at| *at == REST), "{changed:?}");
    assert_eq!(rig.read(regs::THPDS), 0x0102_0304);
    assert_eq!((rig.read(regs::TNPDS), rig.read(regs::TNPDS + 4)), (0x4000_0000, 1));
    let mut config = [0; 8];
    pci::read_config(&mut rig.device, 0, &mut config);
    assert_eq!(config, [0xec, 0x10, 0x69, 0x81, 7, 0, 0x10, 0]);
    let (_, journals) = RingJournal::open(Some(rig.device.journal_file.try_clone().unwrap().into())).unwrap();
    let table = Words::new(&rig.map.translate(TX_RING, 128 * 16, &mut 0).unwrap()).unwrap();
    let places: Vec<_> = journals
        .iter()
        .zip([0x1_4000_0000, 0x1_4004_4800])
        .map(|(journal, base)| journal.recover(base, &table))
        .collect();
    assert_eq!(places, [0x4c, 0x15]);
}

fn bytes(batch: &Batch, frame: &Frame) -> Vec<u8> {
    let mut all = frame.head[..frame.head_len()].to_vec();
    for piece in batch.body(frame) {
        let mut part = vec![0; piece.len()];
        piece.read(&mut part);
        all.extend(part);
    }
    assert_eq!(all.len(), frame.len as usize);
    all
}

/// A UDP or TCP packet over IPv4 with nothing in its checksum fields.
fn packet(tcp: bool, payload: usize) -> Vec<u8> {
    let header = if tcp { 20 } else { 8 };
    let mut frame = [&PEER[..], &MAC.0, &[8, 0, 0x45, 0]].concat();
    frame.extend((20 + header as u16 + payload as u16).to_be_bytes());
    frame.extend([0, 7, 0x40, 0, 64, if tcp { 6 } else { 17 }, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let mut transport = vec![0; header];
    transport[..4].copy_from_slice(&[0x12, 0x34, 0, 80]);
    if tcp {
        (transport[12], transport[13]) = (0x50, 0x18);
    } else {
        transport[4..6].copy_from_slice(&(8 + payload as u16).to_be_bytes());
    }
    frame.extend(transport);
    frame.extend((0..payload).map(|i| i as u8));
    frame
}

/// Whether the checksums of an IPv4 packet that begins at `at` of `frame` are right, when what is left to do
/// is done.
fn is_right(frame: &[u8], offload: Offload, at: usize) -> bool {
    let mut frame = frame.to_vec();
    offload.complete(&mut frame).unwrap();
    let ip = &frame[at..];
    let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let l4 = &ip[20..total];
    let mut sum = Sum::pseudo(&ip[12..16], &ip[16..20], ip[9], l4.len());
    sum.add(l4);
    Sum::of(&ip[..20]).checksum() == 0 && matches!(sum.checksum(), 0 | 0xffff)
}

#[test]
fn identity_eeprom_phy_and_locks() {
    let mut rig = rig();
    let mut id = [0; 4];
    rig.device.config().read(0, &mut id);
    assert_eq!(u32::from_le_bytes(id), 0x8169_10ec);
    assert_eq!(rig.read(regs::TCR) & 0xfcf0_0000, 0x1000_0000);
    assert_eq!((rig.read(regs::IDR), rig.read(4)), (0x0100_5452, 0x0302));
    // Locked, and not.
    rig.write(regs::IDR, 1);
    assert_eq!(rig.read(regs::IDR), 0x0100_5452);
    rig.device.write(1, 0x50, &[0xc0]);
    rig.write(regs::IDR, 1);
    assert_eq!(rig.read(regs::IDR), 1);
    rig.device.write(1, 0x37, &[0x10]);
    assert_eq!((rig.read(regs::IDR), rig.read(regs::CR) >> 24), (1, 0), "the chip's reset keeps the address");
    // Bit by bit, by I/O ports: word 7.
    let mut word = 0u16;
    for bit in [1, 1, 0, 0, 0, 0, 1, 1, 1u8] {
        for lines in [0x88 | bit << 1, 0x8c | bit << 1, 0x88 | bit << 1] {
            rig.device.write(0, 0x50, &[lines]);
        }
    }
    for _ in 0..16 {
        rig.device.write(0, 0x50, &[0x8c]);
        let mut byte = [0];
        rig.device.read(0, 0x50, &mut byte);
        word = word << 1 | u16::from(byte[0] & 1);
        rig.device.write(0, 0x50, &[0x88]);
    }
    assert_eq!(word.to_le_bytes(), [MAC.0[0], MAC.0[1]]);
    // The PHY, and that writes to other pages do nothing.
    let mut phy = |register: u32| {
        rig.write(regs::PHYAR, register << 16);
        rig.read(regs::PHYAR)
    };
    assert_eq!((phy(2) & 0x8000_ffff, phy(3) & 0xffff), (0x8000_001c, 0xc910));
    assert_eq!(phy(1) & 0x24, 0x24);
    for (register, value) in [(31, 2), (0, 0x8000), (4, 0), (31, 0)] {
        rig.write(regs::PHYAR, 1 << 31 | register << 16 | value);
        assert_eq!(rig.read(regs::PHYAR) >> 31, 0);
    }
    rig.write(regs::PHYAR, 4 << 16);
    assert_eq!(rig.read(regs::PHYAR) & 0xffff, 0x0de1);
}

/// IEEE 802.3 §28.2.3.2. Linux's phylib does not read again what was negotiated where the link was up all
/// the time: a speed that was forced before stayed.
#[test]
fn the_link_is_down_while_the_phy_negotiates() {
    /// The driver writes the PHY's control register; what it learns then of the links of PHY and MAC, and of
    /// causes.
    fn control(rig: &mut Rig, value: u32) -> [bool; 3] {
        let isr = rig.isr();
        rig.write(regs::INTERRUPTS, isr << 16 | cause::LINK);
        rig.write(regs::PHYAR, 1 << 31 | value);
        // Until it is over by the hand of the test.
        let mut irq = rig.device.nic.irq.state.lock().unwrap();
        irq.negotiated = irq.negotiated.map(|_| u64::MAX - 1);
        drop(irq);
        state(rig)
    }
    fn state(rig: &mut Rig) -> [bool; 3] {
        rig.write(regs::PHYAR, 1 << 16);
        let phy = rig.read(regs::PHYAR) & 0x24;
        assert!(matches!(phy, 0 | 0x24), "{phy:#x}");
        [phy != 0, rig.read(regs::PHYSTATUS) & 2 != 0, rig.isr() & cause::LINK != 0]
    }
    fn end(rig: &mut Rig) {
        let irq = &rig.device.nic.irq;
        irq.state.lock().unwrap().negotiated = Some(0);
        irq.alarm.lower(0);
        rig.poll();
    }
    let mut rig = rig();
    // Auto-negotiation is turned on, whether it is restarted expressly or not; and a reset turns it on, too.
    for value in [0x1000, 0x1200, 0x9000] {
        // 100 Mb/s, forced: nothing is negotiated.
        assert_eq!(control(&mut rig, 0x2100), [true, true, false]);
        assert_eq!(control(&mut rig, value), [false, false, true], "{value:#x}");
        // It goes on while the chip is reset.
        rig.device.write(1, 0x37, &[0x10]);
        assert_eq!(state(&mut rig), [false, false, false]);
        rig.bring_up();
        end(&mut rig);
        assert_eq!(state(&mut rig), [true, true, true]);
    }
    // Written again without a restart, it goes on as it is.
    assert_eq!(control(&mut rig, 0x1140), [true, true, false]);
    // The daemon is killed meanwhile: its successor has the link, and says so.
    assert_eq!(control(&mut rig, 0x1200), [false, false, true]);
    let mut rig = rig.taken_over();
    assert_eq!(state(&mut rig), [true, true, true]);
    // Without a carrier there is nobody to negotiate with.
    rig.device.set_link(false);
    control(&mut rig, 0x1200);
    end(&mut rig);
    assert_eq!(state(&mut rig), [false, false, true]);
}

#[test]
fn frames_leave_in_the_order_of_the_ring() {
    let mut rig = rig();
    let frame = packet(false, 300);
    rig.transmit(0, &frame, &[desc::FS, 0, desc::LS]);
    let (frames, tally) = rig.poll();
    assert_eq!(frames, [(frame.clone(), Offload::NONE)]);
    assert_eq!((tally.frames, tally.bytes), (1, frame.len() as u64));
    assert!((0..3).all(|place| rig.word(TX_RING, place) & desc::OWN == 0));
    assert!(rig.interrupted() && rig.isr() & cause::TOK != 0);
    // Round the end of the ring, several at a time, and short ones padded.
    let mut place = 3;
    for count in [1, 5, 16, 2, 15] {
        for at in place..place + count {
            rig.transmit(at, &frame[..20 + at as usize % 16], &[ONE]);
        }
        let (frames, _) = rig.poll();
        assert_eq!(frames.len() as u64, count);
        for ((bytes, _), at) in frames.iter().zip(place..) {
            assert_eq!((bytes.len(), &bytes[..20]), (60, &frame[..20]), "{at}");
        }
        assert!(rig.may_sleep());
        place += count;
    }
    assert_eq!(rig.port.fault.get(), None);
}

#[test]
fn a_packet_without_its_end_waits_and_an_endless_one_is_dropped() {
    let rig = rig();
    let frame = packet(false, 100);
    rig.transmit(0, &frame[..50], &[desc::FS]);
    assert!(!rig.may_sleep(), "nobody has looked at it yet");
    assert_eq!(rig.poll().1.frames, 0);
    assert!(rig.may_sleep());
    rig.transmit(1, &frame[50..], &[desc::LS]);
    assert!(!rig.may_sleep());
    assert_eq!(rig.poll().0[0].0, frame);
    // The whole ring, and nothing ends.
    for place in 0..SIZE {
        rig.describe(TX_RING, place, [desc::OWN | 4, TX_BUFFERS]);
    }
    let (frames, tally) = rig.poll();
    assert_eq!((frames.len(), tally.drops.counts[DropReason::TooManyPieces as usize]), (0, 1));
    assert!((0..SIZE).all(|place| rig.word(TX_RING, place) & desc::OWN == 0));
    // It is over with the next end, and the one after it passes.
    rig.transmit(2, &frame, &[ONE]);
    rig.transmit(3, &frame, &[ONE]);
    assert_eq!(rig.poll().0.len(), 1);
    assert_eq!(rig.port.fault.get(), None);
}

/// No release follows a fetch without a frame: what it took goes back at once.
#[test]
fn descriptors_without_a_frame_are_given_back_by_the_fetch_that_took_them() {
    let rig = rig();
    for place in 0..SIZE {
        rig.describe(TX_RING, place, [desc::OWN | 4, TX_BUFFERS]);
    }
    assert_eq!(rig.poll().1.frames, 1, "a packet without an end, which is dropped");
    // Its end.
    rig.transmit(0, &packet(false, 100), &[ONE]);
    let (mut batch, mut tally) = (Batch::new(), Tally::default());
    let mut desk = rig.desk.queues.lock().unwrap();
    desk.values_mut().next().unwrap().queue().fetch(&mut batch, &mut tally);
    assert_eq!((batch.len(), tally.frames, rig.word(TX_RING, 0) & desc::OWN), (0, 0, 0));
}

#[test]
fn checksums_tags_and_segments_are_what_the_descriptor_says() {
    let rig = rig();
    let tag = desc::TAGC | u64::from(0x2007u16.swap_bytes()) << desc::TAG_SHIFT;
    for (place, (tcp, tagged)) in
        [(false, false), (true, false), (false, true), (true, true)].iter().enumerate()
    {
        let mut frame = packet(*tcp, 201);
        // Whatever stands in the fields counts for nothing.
        frame[24..26].copy_from_slice(&[0xaa, 0xbb]);
        let checksums = desc::IPCS | if *tcp { desc::TCPCS } else { desc::UDPCS };
        let wishes = checksums | if *tagged { tag } else { 0 };
        rig.transmit(2 * place as u64, &frame, &[wishes | desc::FS, wishes | desc::LS]);
        let (frames, _) = rig.poll();
        let (sent, offload) = &frames[0];
        assert!(offload.needs_csum());
        let at = if *tagged { 18 } else { 14 };
        assert!(is_right(sent, *offload, at), "{tcp} {tagged}: {sent:02x?}");
        if *tagged {
            assert_eq!(sent[12..16], [0x81, 0, 0x20, 0x07]);
        }
    }
    // Bytes behind the packet are not part of it: made at once.
    let mut frame = packet(false, 10);
    frame.extend([0x55; 20]);
    rig.transmit(8, &frame, &[ONE | desc::IPCS | desc::UDPCS]);
    let (sent, offload) = rig.poll().0.remove(0);
    assert!(!offload.needs_csum() && is_right(&sent, offload, 14));
    // Segmentation.
    let frame = packet(true, 5000);
    let wishes = desc::LGSEN | 1400 << desc::MSS_SHIFT;
    rig.transmit(9, &frame, &[wishes | desc::FS, wishes, wishes | desc::LS]);
    let (sent, offload) = rig.poll().0.remove(0);
    assert_eq!((offload.gso, offload.gso_size, sent.len()), (Gso::Tcp4, 1400, frame.len()));
    assert!(is_right(&sent, Offload { gso: Gso::None, ..offload }, 14));
    // What cannot be cut is dropped by name.
    for bad in [packet(false, 3000), [&PEER[..], &MAC.0, &[0x88, 0xb5], &[7; 100]].concat()] {
        rig.transmit(12, &bad, &[ONE | wishes]);
        let (frames, tally) = rig.poll();
        assert_eq!((frames.len(), tally.drops.counts[DropReason::BadOffload as usize]), (0, 1));
        rig.transmit(13, &frame[..60], &[ONE]);
        rig.transmit(14, &frame[..60], &[ONE]);
        rig.transmit(15, &frame[..60], &[ONE]);
        assert_eq!(rig.poll().0.len(), 3);
        for place in 0..12 {
            rig.transmit(place, &frame[..60], &[ONE]);
        }
        assert_eq!(rig.poll().0.len(), 12);
    }
}

#[test]
fn frames_are_received_whole_and_said_to_be_what_they_are() {
    let mut rig = rig();
    let plain = [&MAC.0[..], &PEER, &[0x88, 0xb5], &[7; 26]].concat();
    let outcome = rig.deliver(&[(&plain, Offload::NONE)]);
    assert_eq!((outcome.frames, rig.interrupted()), (1, true));
    assert_eq!(rig.word(RX_RING, 0), ONE | desc::PAM | 64);
    assert_eq!(rig.load(RX_BUFFERS, 60), [&plain[..], &[0; 20]].concat());
    assert_ne!(rig.isr() & cause::ROK, 0);
    // Checked, tagged, for a group, and without being asked for either.
    let mut tcp = packet(true, 100);
    tcp[..6].copy_from_slice(&[0xff; 6]);
    let mut tagged = tcp.clone();
    tagged.splice(12..12, [0x81, 0, 0x20, 0x07]);
    let valid = Offload { flags: Offload::DATA_VALID, ..Offload::NONE };
    assert_eq!(rig.deliver(&[(&tagged, valid)]).frames, 1);
    assert_eq!(rig.word(RX_RING, 1), ONE | desc::BAR | (tagged.len() as u64 + 4));
    rig.write(regs::CPCR, regs::CPCR_RXCHKSUM | regs::CPCR_RXVLAN);
    assert_eq!(rig.deliver(&[(&tagged, valid), (&tagged, Offload::NONE)]).frames, 2);
    let tag = desc::TAVA | u64::from(0x2007u16.swap_bytes()) << desc::TAG_SHIFT;
    let length = tcp.len() as u64 + 4;
    assert_eq!(rig.word(RX_RING, 2), ONE | desc::BAR | desc::TCP | tag | length);
    assert_eq!(rig.word(RX_RING, 3), ONE | desc::BAR | tag | length, "nobody has checked it");
    assert_eq!(rig.load(RX_BUFFERS + 0x2000, tcp.len()), tcp);
    // Longer than a buffer: as many as it takes, round the end.
    rig.post(4, 20, 0x200);
    let long = [&MAC.0[..], &PEER, &[0x88, 0xb5], &[9; 6000]].concat();
    assert_eq!(rig.deliver(&[(&long, Offload::NONE)]).frames, 1);
    let words: Vec<_> = (4..16).map(|place| rig.word(RX_RING, place)).collect();
    assert!(
        words[0] & ONE == desc::FS && words[11] & (ONE | desc::EOR) == desc::LS | desc::EOR,
        "{words:x?}"
    );
    assert!(words[1..11].iter().all(|word| word & (ONE | desc::OWN) == 0));
    assert_eq!(rig.load(RX_BUFFERS + 0x5000, 0x200), long[0x200..0x400]);
    // Four are left, which are too few; and then one that fits.
    let outcome = rig.deliver(&[(&long, Offload::NONE)]);
    assert_eq!(outcome.drops.counts[DropReason::RingFull as usize], 1);
    assert_eq!(rig.deliver(&[(&plain, Offload::NONE)]).frames, 1);
    assert_eq!(rig.read(regs::MPC), 1);
    let room = rig.port.egress(0).unwrap().as_mut().unwrap().room().unwrap();
    assert_eq!((room.free, room.size), (3, SIZE as u32));
}

#[test]
fn only_what_the_driver_asked_for_is_received() {
    let mut rig = rig();
    let to = |address: [u8; 6]| [&address[..], &PEER, &[0x88, 0xb5], &[7; 50]].concat();
    let group = [1, 0, 0x5e, 0, 0, 1];
    let cases = [
        (regs::RCR_APM, 0, [true, false, false, false]),
        (regs::RCR_AAP, 0, [true, true, false, false]),
        (regs::RCR_AM, u32::MAX, [false, false, true, false]),
        (regs::RCR_AM, 0, [false, false, false, false]),
        (regs::RCR_AB, 0, [false, false, false, true]),
    ];
    for (rcr, table, wanted) in cases {
        rig.post(0, SIZE, 0x800);
        rig.write(regs::RCR, rcr);
        rig.write(regs::MAR, table);
        rig.write(regs::MAR + 4, table);
        for (address, wanted) in [MAC.0, [2; 6], group, [0xff; 6]].into_iter().zip(wanted) {
            let outcome = rig.deliver(&[(&to(address), Offload::NONE)]);
            assert_eq!(outcome.frames == 1, wanted, "{rcr:#x} {address:x?}");
        }
    }
    // Longer than it may be.
    rig.write(regs::RCR, regs::RCR_APM);
    rig.device.write(1, 0xda, &1518u16.to_le_bytes());
    for (len, frames) in [(1514, 1), (1515, 0)] {
        let mut frame = to(MAC.0);
        frame.resize(len, 0);
        assert_eq!(rig.deliver(&[(&frame, Offload::NONE)]).frames, frames, "{len}");
    }
}

#[test]
fn the_driver_says_when_it_is_interrupted() {
    let mut rig = rig();
    let frame = [&MAC.0[..], &PEER, &[0x88, 0xb5], &[7; 50]].concat();
    let one = [(&frame[..], Offload::NONE)];
    // Masked: the cause stands, and interrupts when it is let.
    rig.device.write(1, 0x3c, &[0, 0]);
    rig.deliver(&one);
    assert!(!rig.interrupted() && rig.isr() & cause::ROK != 0);
    rig.device.write(1, 0x3c, &[1, 0]);
    assert!(rig.interrupted());
    rig.device.write(1, 0x3e, &[1, 0]);
    rig.device.interrupts().unmask();
    assert!(!rig.interrupted() && rig.isr() & cause::ROK == 0);
    // The timer, and a wish.
    rig.device.write(1, 0x3e, &[0xff; 2]);
    rig.device.interrupts().unmask();
    rig.device.write(1, 0x3c, &0x4100u16.to_le_bytes());
    rig.write(regs::TIMER_INT, 1000);
    rig.write(regs::TCTR, 0);
    while rig.isr() & cause::TIMEOUT == 0 {
        rig.poll();
    }
    assert!(rig.interrupted() && rig.read(regs::TCTR) >= 1000);
    rig.device.write(1, 0x38, &[1]);
    assert_ne!(rig.isr() & cause::SWINT, 0);
}

/// A VMM sends the write by which a driver acknowledges without waiting for an answer. A frame that comes
/// after the driver has emptied its ring, and before that write, still interrupts.
#[test]
fn a_late_acknowledgement_takes_no_cause_that_the_driver_has_not_read() {
    let mut rig = rig();
    let frame = [&MAC.0[..], &PEER, &[0x88, 0xb5], &[7; 50]].concat();
    let one = [(&frame[..], Offload::NONE)];
    rig.device.write(1, 0x3c, &[1, 0]);
    rig.deliver(&one);
    assert!(rig.interrupted() && rig.isr() & cause::ROK != 0);
    rig.device.write(1, 0x3c, &[0, 0]);
    rig.deliver(&one);
    rig.device.write(1, 0x3e, &[1, 0]);
    rig.device.interrupts().unmask();
    rig.device.write(1, 0x3c, &[1, 0]);
    assert!(rig.interrupted() && rig.isr() & cause::ROK != 0);
    rig.device.write(1, 0x3e, &[1, 0]);
    assert_eq!(rig.isr() & cause::ROK, 0);
}

/// After eight frames, or 153 µs behind the first of fewer.
#[test]
fn the_drivers_mitigation_waits_for_frames_or_time() {
    let mut irq = Irq::new(Interrupts::new(true, 0, 0, &Overrun::default()), Duration::ZERO).unwrap();
    irq.alarm.clock = Clock::Manual(AtomicU64::new(0));
    let turn = |irq: &Irq, to: u64| match &irq.alarm.clock {
        Clock::Manual(now) => now.store(to, Ordering::Relaxed),
        Clock::System(_) => unreachable!(),
    };
    let isr = |irq: &Irq| irq.look() >> 16;
    irq.set_mask(cause::ROK | cause::TOK);
    irq.mitigate(0x10f2, 3);
    for _ in 0..7 {
        irq.received(1);
    }
    assert_eq!(isr(&irq), 0);
    irq.received(1);
    assert_eq!(isr(&irq), cause::ROK);
    irq.acknowledge(cause::ROK);
    irq.received(1);
    // The interrupt for frames sent comes after a sixteenth of it, however many there are.
    irq.sent(100, false);
    turn(&irq, 10_240);
    irq.poll();
    assert_eq!(isr(&irq), cause::TOK | cause::ROK, "one takes the other along");
    irq.acknowledge(cause::ROK | cause::TOK);
    irq.received(7);
    turn(&irq, 10_240 + 153_599);
    irq.poll();
    assert_eq!(isr(&irq), 0);
    turn(&irq, 10_240 + 153_600);
    irq.poll();
    assert_eq!(isr(&irq), cause::ROK);
}

#[test]
fn reports_of_sent_frames_wait_for_silence_or_half_a_ring() {
    let mut rig = rig_with(Rtl8169Config::new(MAC));
    let frame = packet(false, 100);
    // The ring's length is known when it has been walked.
    (0..SIZE).for_each(|place| rig.transmit(place, &frame, &[ONE]));
    rig.poll();
    while rig.isr() & cause::TOK == 0 {
        rig.poll();
    }
    assert!(rig.interrupted());
    rig.device.write(1, 0x3e, &[0xff; 2]);
    rig.device.write(1, 0x3c, &[5, 0]);
    rig.device.interrupts().unmask();
    rig.transmit(0, &frame, &[ONE]);
    rig.poll();
    assert_eq!(rig.isr() & cause::TOK, 0);
    (1..SIZE / 2).for_each(|place| rig.transmit(place, &frame, &[ONE]));
    assert_eq!(rig.poll().1.interrupts, 1);
}

#[test]
fn faults_stop_the_card_until_its_reset() {
    let mut rig = rig();
    rig.transmit(0, &packet(false, 50), &[ONE]);
    rig.describe(TX_RING, 1, [desc::OWN | ONE | 60, MEMORY - 10]);
    assert_eq!(rig.poll().0.len(), 1);
    assert_eq!(rig.port.fault.get(), Some(Fault::AddressOutOfRange));
    assert!(rig.word(TX_RING, 0) & desc::OWN == 0 && rig.word(TX_RING, 1) & desc::OWN != 0);
    rig.device.write(1, 0x37, &[0x10]);
    assert_eq!(rig.port.fault.get(), None);
    rig.bring_up();
    rig.describe(RX_RING, 0, [desc::OWN | 0x800, MEMORY - 10]);
    let frame = [&MAC.0[..], &PEER, &[8, 0], &[0xa5; 300]].concat();
    let outcome = rig.deliver(&[(&frame, Offload::NONE)]);
    assert_eq!(outcome.drops.counts[DropReason::RingBroken as usize], 1);
    assert_ne!(rig.word(RX_RING, 0) & desc::OWN, 0);
    // A ring that runs out of memory at its end, and one that is nowhere.
    for base in [MEMORY - 256, MEMORY * 16] {
        rig.device.write(1, 0x37, &[0x10]);
        rig.bring_up();
        rig.write(regs::TNPDS, base as u32);
        for place in 0..16 {
            if base < MEMORY {
                let words = [(desc::OWN | ONE | 60).to_le_bytes(), TX_BUFFERS.to_le_bytes()].concat();
                rig.store(base + 16 * place, &words);
            }
        }
        let sent = rig.poll().0.len();
        assert_eq!(sent, if base < MEMORY { 16 } else { 0 });
        rig.poll();
        assert_eq!(rig.port.fault.get(), Some(Fault::AddressOutOfRange));
    }
    // Memory that is cut short.
    rig.device.write(1, 0x37, &[0x10]);
    rig.bring_up();
    rig.transmit(0, &packet(false, 50), &[ONE]);
    rustix::fs::ftruncate(&rig.file, 0).unwrap();
    rig.poll();
    assert_eq!(rig.port.fault.get(), Some(Fault::MemoryTruncated));
}

#[test]
fn a_card_that_is_taken_over_goes_on_where_it_was() {
    let mut rig = rig();
    let frame = packet(false, 50);
    let received = [&MAC.0[..], &PEER, &[8, 0], &[0xa5; 300]].concat();
    for place in 0..5 {
        rig.transmit(place, &frame, &[ONE]);
        assert_eq!(rig.poll().0.len(), 1);
        assert_eq!(rig.deliver(&[(&received, Offload::NONE)]).frames, 1);
    }
    rig.write(regs::THPDS, 0x1234);
    rig.write(regs::PHYAR, 1 << 31 | 16 << 16 | 0x4321);
    while rig.interrupted() {}
    let mut rig = rig.taken_over();
    assert!(rig.interrupted(), "what it may have missed is told");
    assert_eq!((rig.read(regs::THPDS), rig.read(regs::INTERRUPTS) & 0xffff), (0x1234, 0x25));
    rig.write(regs::PHYAR, 16 << 16);
    assert_eq!(rig.read(regs::PHYAR) & 0xffff, 0x4321);
    assert_eq!(rig.poll().1.frames, 0);
    rig.transmit(5, &frame, &[ONE]);
    assert_eq!(rig.poll().0.len(), 1);
    assert_eq!(rig.deliver(&[(&received, Offload::NONE)]).frames, 1);
    assert_eq!(rig.word(RX_RING, 5) & (desc::OWN | ONE), ONE);
    assert_ne!(rig.word(RX_RING, 6) & desc::OWN, 0);
}
