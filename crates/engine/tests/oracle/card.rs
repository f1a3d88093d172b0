//! Cards behind ports, with a driver's rings in guest memory: the 82540EM and the 82574L (8254x SDM §3, 82574
//! §7), which tell frames by legacy and by extended descriptors, and the RTL8169. Registers are written as a
//! VMM hands a driver's writes over.

use std::sync::Arc;

use sidecore_driver::memory::{Memory, Page};
use sidecore_engine::device::e1000::{E1000Config, Model, E1000};
use sidecore_engine::device::pci::{write_config, PciDevice};
use sidecore_engine::device::rtl8169::{Rtl8169, Rtl8169Config};
use sidecore_engine::graph::Scheduler;
use sidecore_engine::mem::{GuestMap, RegionSpec};
use sidecore_engine::packet::Mac;
use sidecore_engine::port::Port;

use super::config::Setup;
use super::frames::{station, Sent};
use super::headers::tags;
use super::plain::Asked;
use super::work::{Span, Work};

/// Descriptors of a ring, and bytes of a buffer.
const ENTRIES: usize = 1024;
const BUFFER: usize = 2048;
const RING: usize = ENTRIES * 16;
/// The registers as memory, by their number.
const INTEL: usize = 0;
const REALTEK: usize = 1;

/// Which card it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    E1000,
    E1000e,
    Rtl8169,
}

/// A driver's ring, and where it goes on.
struct CardRing {
    descriptors: usize,
    buffers: usize,
    next: usize,
}

/// A card and what its driver has of it.
pub struct Card {
    kind: Kind,
    device: Box<dyn PciDevice>,
    memory: Arc<Memory>,
    receives: CardRing,
    sends: CardRing,
    /// It puts tags in: an Intel only while it takes tags out (8254x SDM §13.4.1, VME).
    tags: bool,
    /// The contexts of which the card was told last: for checksums, and for segments.
    contexts: [[u64; 2]; 2],
}

/// What a descriptor that is done says: bytes, whether the frame ends, and the tag that was taken out.
struct Done {
    len: usize,
    ends: bool,
    tag: Option<u16>,
}

impl Card {
    /// One behind `port`.
    pub fn new(kind: Kind, port: &Arc<Port>, scheduler: &Arc<dyn Scheduler>) -> Card {
        let (own, port, scheduler) =
            (Mac(station(port.id.0.into(), 0)), Arc::clone(port), Arc::clone(scheduler));
        let device: Box<dyn PciDevice> = match kind {
            Kind::Rtl8169 => Box::new(Rtl8169::new(Rtl8169Config::new(own), port, scheduler).unwrap()),
            Kind::E1000 => {
                Box::new(E1000::new(E1000Config::new(Model::E1000, own), port, scheduler).unwrap())
            }
            Kind::E1000e => {
                Box::new(E1000::new(E1000Config::new(Model::E1000e, own), port, scheduler).unwrap())
            }
        };
        let memory = Memory::new(2 * (RING + ENTRIES * BUFFER) + (1 << 20), Page::Small).unwrap();
        let ring = || CardRing {
            descriptors: memory.alloc(RING, 4096).unwrap(),
            buffers: memory.alloc(ENTRIES * BUFFER, 4096).unwrap(),
            next: 0,
        };
        let (receives, sends) = (ring(), ring());
        let mut card = Card { kind, device, receives, sends, memory, tags: false, contexts: [[0; 2]; 2] };
        card.start();
        card
    }

    fn start(&mut self) {
        let file = self.memory.fd().try_clone_to_owned().unwrap().into();
        let (size, first) = (self.memory.size() as u64, self.memory.gpa(0));
        let spec = RegionSpec { gpa: first, size, user_addr: first, offset: 0, file };
        self.device.dma_changed(Arc::new(GuestMap::new(&[spec]).unwrap()));
        // It may reach memory.
        write_config(&mut *self.device, 4, &[7, 0]);
        (0..ENTRIES).for_each(|place| self.offer(place));
        let [receives, sends] = [&self.receives, &self.sends].map(|ring| self.memory.gpa(ring.descriptors));
        if self.kind == Kind::Rtl8169 {
            // RDSAR, TNPDS, and their upper halves.
            for (register, base) in [(0xe4, receives), (0x20, sends)] {
                self.write(register + 4, &((base >> 32) as u32).to_le_bytes());
                self.write(register, &(base as u32).to_le_bytes());
            }
            // Transmitter and receiver are on.
            self.write(0x37, &[0x0c]);
            self.write(0x40, &0x0300_0700u32.to_le_bytes());
        } else {
            // Base, length, head and tail of the rings.
            for (at, base) in [(0x2800, receives), (0x3800, sends)] {
                let [low, high] = [base, base >> 32].map(|half| half as u32);
                for (register, value) in [(0, low), (4, high), (8, RING as u32), (0x10, 0), (0x18, 0)] {
                    self.write(at + register, &value.to_le_bytes());
                }
            }
            self.write(0x2818, &(ENTRIES as u32 - 1).to_le_bytes());
            if self.kind == Kind::E1000e {
                // RFCTL: extended descriptors.
                self.write(0x5008, &(1u32 << 15).to_le_bytes());
            }
            // RXCSUM: checksums are looked at. TCTL: on, and short frames are padded.
            self.write(0x5000, &0x300u32.to_le_bytes());
            self.write(0x400, &0x0au32.to_le_bytes());
        }
    }

    /// Has it be what its driver wants.
    pub fn set_up(&mut self, setup: Setup, up: bool) {
        let Setup { long, strips, filters } = setup;
        self.tags = strips || self.kind == Kind::Rtl8169;
        if self.kind == Kind::Rtl8169 {
            // CPCR: checksums are looked at, tags are taken out. RMS: the longest frame. Groups, RCR.
            let bits = if strips { 0x60u16 } else { 0x20 };
            self.write(0xe0, &bits.to_le_bytes());
            self.write(0xda, &if long { 0x3fffu16 } else { 1522 }.to_le_bytes());
            for at in [8, 12] {
                self.write(at, &if filters { 0u32 } else { u32::MAX }.to_le_bytes());
            }
            self.write(0x44, &(0xe700u32 | if filters { 0x0e } else { 0x0f }).to_le_bytes());
        } else {
            // CTRL: link up, tags are taken out. RCTL: on, long frames, every address, broadcast, no FCS.
            self.write(0, &(1u32 << 6 | u32::from(strips) << 30).to_le_bytes());
            let control = 1 << 1 | u32::from(long) << 5 | if filters { 0 } else { 3 << 3 };
            self.write(0x100, &(control | 1 << 15 | 1 << 26).to_le_bytes());
        }
        self.device.set_link(up);
    }

    fn write(&mut self, register: u64, bytes: &[u8]) {
        let region = if self.kind == Kind::Rtl8169 { REALTEK } else { INTEL };
        self.device.write(region, register, bytes);
    }

    /// The two words of descriptor `place`.
    fn words(&self, ring: &CardRing, place: usize) -> [u64; 2] {
        let mut bytes = [0; 16];
        self.memory.read(ring.descriptors + 16 * place, &mut bytes);
        [0, 8].map(|at| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()))
    }

    fn describe(&self, ring: &CardRing, place: usize, [first, second]: [u64; 2]) {
        self.memory
            .write(ring.descriptors + 16 * place, &[first.to_le_bytes(), second.to_le_bytes()].concat());
    }

    /// The mark of the last descriptor of an RTL8169's ring, and that it is the card's.
    fn mark(place: usize) -> u64 {
        1 << 31 | u64::from(place + 1 == ENTRIES) << 30
    }

    /// Gives the card the buffer of a descriptor.
    fn offer(&self, place: usize) {
        let address = self.memory.gpa(self.receives.buffers + BUFFER * place);
        let words = match self.kind {
            Kind::Rtl8169 => [Card::mark(place) | BUFFER as u64, address],
            _ => [address, 0],
        };
        self.describe(&self.receives, place, words);
    }

    /// What the card says of the next descriptor, if that is done.
    fn done(&self) -> Option<Done> {
        let [first, second] = self.words(&self.receives, self.receives.next);
        // Status, length and the tag's place.
        let (status, len, tag) = match self.kind {
            Kind::Rtl8169 => {
                let tag = (first >> 48 & 1 != 0).then(|| ((first >> 32) as u16).swap_bytes());
                let (ends, len) = (first >> 28 & 1 != 0, (first & 0x3fff) as usize);
                return (first >> 31 & 1 == 0).then_some(Done { len, ends, tag });
            }
            Kind::E1000e => (second, second >> 32, second >> 48),
            Kind::E1000 => (second >> 32, second, second >> 48),
        };
        let tag = (status & 8 != 0).then_some(tag as u16);
        (status & 1 != 0).then_some(Done { len: (len & 0xffff) as usize, ends: status & 2 != 0, tag })
    }

    /// The frames that came since the last time, with the tags that were taken out of them.
    pub fn receive(&mut self) -> Vec<Vec<u8>> {
        let (mut frames, mut parts) = (Vec::new(), Vec::new());
        let begun = self.receives.next;
        while let Some(Done { len, ends, tag }) = self.done() {
            let place = self.receives.next;
            // The RTL8169 tells the length of all of it, and its check sequence has four bytes.
            let len = match self.kind {
                Kind::Rtl8169 if ends => (len - 4).saturating_sub(parts.len()),
                Kind::Rtl8169 => BUFFER,
                _ => len,
            };
            let at = parts.len();
            parts.resize(at + len, 0);
            self.memory.read(self.receives.buffers + BUFFER * place, &mut parts[at..]);
            self.offer(place);
            self.receives.next = (place + 1) % ENTRIES;
            if ends {
                let mut frame = std::mem::take(&mut parts);
                if let Some(tag) = tag {
                    frame.splice(12..12, [[0x81, 0], tag.to_be_bytes()].concat());
                }
                frames.push(frame);
            }
        }
        assert!(parts.is_empty(), "a part of a frame");
        if self.kind != Kind::Rtl8169 && self.receives.next != begun {
            let tail = (self.receives.next + ENTRIES - 1) % ENTRIES;
            self.write(0x2818, &(tail as u32).to_le_bytes());
        }
        frames
    }

    /// Has the card send a frame from two buffers. Some of those that have a tag get it from the card.
    pub fn send(&mut self, sent: &Sent) {
        let Sent { bytes: frame, work, .. } = sent;
        let tag = frame.get(12..16).filter(|tag| self.tags && tag[..2] == [0x81, 0]);
        // Places are counted without it.
        let room = work.is_none_or(|work| work.without_tag().is_some());
        let tag = tag.filter(|_| frame.len() >= 64 && frame[11] & 1 == 1 && room);
        let tag = tag.map(|tag| u64::from(u16::from_be_bytes([tag[2], tag[3]])));
        let work = work.map(|work| if tag.is_some() { work.without_tag().unwrap() } else { work });
        let options = work.map_or(0, |work| self.options(work, sent));
        let bytes = [&frame[..12], &frame[if tag.is_some() { 16 } else { 12 }..]].concat();
        let cut = bytes.len().div_ceil(BUFFER).max(2);
        let parts: Vec<&[u8]> = bytes.chunks(bytes.len().div_ceil(cut)).collect();
        for (n, part) in parts.iter().enumerate() {
            let at = self.sends.buffers + BUFFER * self.sends.next;
            self.memory.write(at, part);
            let (len, last, address) = (part.len() as u64, n + 1 == parts.len(), self.memory.gpa(at));
            let words = match self.kind {
                Kind::Rtl8169 => {
                    let tag = tag.map_or(0, |tag| 1 << 49 | u64::from((tag as u16).swap_bytes()) << 32);
                    let ends = u64::from(n == 0) << 29 | u64::from(last) << 28;
                    [Card::mark(self.sends.next) | ends | len | tag | options, address]
                }
                // Insert the tag, report, end of packet.
                _ => {
                    let tag = tag.map_or(0, |tag| 1 << 30 | tag << 48);
                    [address, len | u64::from(last) << 24 | 1 << 27 | tag | options]
                }
            };
            self.put(words);
        }
        match self.kind {
            Kind::Rtl8169 => self.write(0x38, &[1 << 6]),
            _ => self.write(0x3818, &(self.sends.next as u32).to_le_bytes()),
        }
    }

    /// The next descriptor that the card is to read.
    fn put(&mut self, words: [u64; 2]) {
        self.describe(&self.sends, self.sends.next, words);
        self.sends.next = (self.sends.next + 1) % ENTRIES;
    }

    /// Tells the card of `work` on a frame (8254x SDM §3.3.6), unless it remembers that, and says what is to
    /// be in the frame's own descriptors.
    fn options(&mut self, work: Work, sent: &Sent) -> u64 {
        let word =
            |span: Span| u64::from(span.start) | u64::from(span.store) << 8 | u64::from(span.end) << 16;
        let v6 = sent.bytes.get(tags(&sent.bytes).1..).is_some_and(|rest| rest.starts_with(&[0x86, 0xdd]));
        // DEXT; of data DTYP, IXSM and TXSM.
        let (extended, data, ixsm, txsm) = (1u64 << 29, 1u64 << 20, 1u64 << 40, 1u64 << 41);
        let (kind, context, options) = match work {
            Work::Legacy(span) => {
                return 1 << 26 | u64::from(span.store) << 16 | u64::from(span.start) << 40;
            }
            Work::Sums { ip, transport, tcp } => {
                let places = word(ip.unwrap_or_default()) | word(transport.unwrap_or_default()) << 32;
                let asked = ip.map_or(0, |_| ixsm) | transport.map_or(0, |_| txsm);
                (0, [places, u64::from(tcp) << 24 | u64::from(!v6) << 25], asked)
            }
            Work::Found { ip, tcp, udp } => {
                return u64::from(ip) << 18 | u64::from(udp) << 17 | u64::from(tcp) << 16;
            }
            Work::Segments { .. } if self.kind == Kind::Rtl8169 => {
                return 1 << 27 | u64::from(sent.asked.size) << 16;
            }
            Work::Segments { header, payload, transport, .. } => {
                let Asked { gso, size, .. } = sent.asked;
                let (tcp, v4) = (gso != 5, if gso == 5 { !v6 } else { gso == 1 });
                let is = u64::from(tcp) << 24 | u64::from(v4) << 25 | 1 << 26;
                let lengths = u64::from(payload) | u64::from(header) << 40 | u64::from(size) << 48;
                (1, [word(transport) << 32, is | lengths], 1 << 26 | ixsm | txsm)
            }
        };
        if self.contexts[kind] != context {
            self.contexts[kind] = context;
            self.put([context[0], context[1] | extended]);
        }
        extended | data | options
    }
}
