//! A disk's requests, cut into buffers anywhere: what an honest one does is known from a model of the disk, and any bytes may be
//! written over ring, tables and requests at any time.
//!
//! Theory of operation. The input is a list of steps. An *ask* offers one request, its parts cut where the input says, has the
//! device visited, and compares status, data and disk with what the specification says of it (virtio 1.2 §5.2.6). A *lie* writes
//! bytes anywhere; from then on nothing is compared but that the device goes on or stops with a name, until the ring begins anew.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use sidecore_abi::virtio::{features, DESC_F_NEXT, DESC_F_WRITE};
use sidecore_engine::core::{Budget, Task};
use sidecore_engine::device::virtio_blk::{BlkQueue, Limits};
use sidecore_engine::disk::Disk;
use sidecore_engine::port::Port;
use sidecore_engine::virtq::{Position, Queue};
use sidecore_fuzz::{port, Guest, ENTRIES, GPA, MEMORY, PARTS};

/// Bytes of the disk, and of its sectors.
const CAPACITY: usize = 32 << 10;
const SECTOR: usize = 512;
/// Where what the device reads lies, and what it writes; and bytes of either at most.
const OUT: u64 = 0x2000;
const IN: u64 = 0x9000;
const MOST: usize = 0x6000;
/// Pieces of either at most.
const PIECES: usize = 5;
/// Larger than any visit.
const ALL: Budget = Budget { items: 1 << 10, bytes: 1 << 30, ns: u64::MAX };
const NAME: [u8; 20] = *b"a disk that is asked";

fuzz_target!(|data: &[u8]| {
    let [flags, data @ ..] = data else { return };
    let mut world = World::new(*flags);
    for step in data.chunks(16) {
        world.step(step);
    }
    let position = world.queue.map(BlkQueue::close);
    assert!(world.lied || position == Some(Position::Split(world.asked)));
});

struct World {
    guest: Guest,
    port: Arc<Port>,
    disk: Arc<Disk>,
    limits: Limits,
    /// What the disk holds.
    model: Vec<u8>,
    queue: Option<BlkQueue>,
    asked: u16,
    lied: bool,
}

/// A request, and what the device is to do with it.
struct Ask {
    out: Vec<u8>,
    room: usize,
    cuts: [u8; 4],
}

impl World {
    fn new(flags: u8) -> World {
        let read_only = flags & 1 != 0;
        let bits = if flags & 2 == 0 { features::BLK_DISCARD | features::BLK_WRITE_ZEROES } else { 0 };
        let limits = Limits { capacity: CAPACITY as u64, read_only, features: bits, id: NAME };
        let disk = Arc::new(Disk::ram(CAPACITY as u64, 512, read_only).unwrap());
        let (guest, port) = (Guest::new(), port());
        let mut world =
            World { guest, port, disk, limits, model: vec![0; CAPACITY], queue: None, asked: 0, lied: false };
        world.begin();
        world
    }

    /// The ring begins anew, over memory that says nothing.
    fn begin(&mut self) {
        self.guest.write(0, &[0; MEMORY as usize]);
        self.asked = 0;
        let lied = std::mem::replace(&mut self.lied, false);
        self.port.fault.clear();
        let queue = Queue::requests(self.guest.config(features::VERSION_1, Position::Split(0))).unwrap();
        let (port, disk) = (Arc::clone(&self.port), Arc::clone(&self.disk));
        self.queue = Some(BlkQueue::new(port, disk, 0, (queue, None), None, self.limits));
        let all = self.read_all();
        // What lies did to the disk is what it holds.
        assert!(lied || all == self.model);
        self.model = all;
    }

    fn read_all(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        for half in [0, CAPACITY / 2] {
            let out = header(0, (half / SECTOR) as u64);
            let (status, data) = self.ask(&Ask { out, room: CAPACITY / 2 + 1, cuts: [0; 4] }).unwrap();
            assert_eq!(status, 0);
            all.extend(data);
        }
        all
    }

    fn visit(&mut self) {
        if let Some(queue) = &mut self.queue {
            let visit = Task::<()>::visit(queue, &mut (), ALL);
            assert!(visit.items <= usize::from(ENTRIES));
        }
    }

    fn step(&mut self, step: &[u8]) {
        let mut bytes = [0; 16];
        bytes[..step.len()].copy_from_slice(step);
        let [what, kind, sector, len, room, fine, a, b, c, d, rest @ ..] = bytes;
        match what % 8 {
            0..=4 => {
                let kind = [0, 1, 4, 8, 11, 13, u32::from(kind), u32::MAX][usize::from(kind) % 8];
                // Mostly whole sectors; some bytes more or less, sometimes.
                let odd = |n: u8, more: u8| (usize::from(n % 48) * SECTOR + usize::from(more)).min(MOST);
                let (len, room) = match kind {
                    1 => (odd(len, fine & 0x11), usize::from(room)),
                    0 => (usize::from(len % 3), odd(room, fine & 0x11) + usize::from(fine & 0x80 == 0)),
                    _ => (usize::from(len), usize::from(room)),
                };
                let sector = if sector == 255 { u64::MAX - u64::from(fine) } else { sector.into() };
                let mut out = header(kind, sector);
                if kind == 11 || kind == 13 {
                    // Ranges, of which the last may not be whole.
                    let range =
                        [&[rest[0], 0, 0, 0, 0, 0, 0, 0, rest[1], 0, 0, rest[2]][..], &[rest[3], 0, 0, 0]];
                    out.extend(range.concat().into_iter().cycle().take(len));
                } else {
                    out.extend(rest.iter().copied().cycle().take(len));
                }
                if fine & 0x60 == 0x60 {
                    out.truncate(len % 17);
                }
                let ask = Ask { out, room, cuts: [a, b, c, d] };
                self.compare(&ask);
            }
            5 => self.begin(),
            _ => {
                self.lied = true;
                let at = u64::from(u16::from_le_bytes([kind, sector]));
                let at = if what & 0x80 == 0 { at & 0xfff } else { at };
                self.guest.write(at, &bytes[3..]);
                self.visit();
            }
        }
    }

    /// Offers a request and has it done: its status, and what was written before that. `None`: there is none, after a lie, or if it has no
    /// byte.
    fn ask(&mut self, ask: &Ask) -> Option<(u8, Vec<u8>)> {
        let Ask { out, room, cuts } = ask;
        self.guest.write(OUT, out);
        self.guest.write(IN, &vec![0xa5; room + 1]);
        let readable = cut(OUT, out.len(), &cuts[..2]);
        let writable = cut(IN, *room, &cuts[2..]);
        let count = readable.len() + writable.len();
        if count == 0 {
            return None;
        }
        for (n, (addr, len)) in readable.iter().chain(&writable).enumerate() {
            let write = if n < readable.len() { 0 } else { DESC_F_WRITE };
            let flags = write | if n + 1 < count { DESC_F_NEXT } else { 0 };
            let mut bytes = (GPA + addr).to_le_bytes().to_vec();
            bytes.extend((*len as u32).to_le_bytes());
            bytes.extend([flags, n as u16 + 1].iter().flat_map(|word| word.to_le_bytes()));
            self.guest.write(PARTS[0] + 16 * n as u64, &bytes);
        }
        self.guest.write(PARTS[1] + 4 + 2 * u64::from(self.asked % ENTRIES), &[0, 0]);
        self.asked = self.asked.wrapping_add(1);
        self.guest.write(PARTS[1] + 2, &self.asked.to_le_bytes());
        self.visit();
        if self.lied {
            return None;
        }
        let mut used = [0; 2];
        self.guest.read(PARTS[2] + 2, &mut used);
        assert_eq!(
            u16::from_le_bytes(used),
            self.asked,
            "a request has no answer: {:?}",
            self.port.fault.get()
        );
        let mut data = vec![0; room + 1];
        self.guest.read(IN, &mut data);
        assert_eq!(data.pop(), Some(0xa5), "behind what it may write");
        Some((data.pop().unwrap_or(0xa5), data))
    }

    /// Asks, and compares with the model.
    fn compare(&mut self, ask: &Ask) {
        let Some((status, data)) = self.ask(ask) else { return };
        let wanted = self.expect(ask);
        assert_eq!(
            status,
            wanted.as_ref().map_or_else(|status| *status, |_| 0),
            "{:?}",
            self.disk.sums().errors
        );
        match wanted {
            Ok(Some(bytes)) => assert_eq!(data[..bytes.len()], bytes),
            _ => assert!(data.iter().all(|byte| *byte == 0xa5)),
        }
    }

    /// What comes of a request: its data, or its status. The model does it, too.
    fn expect(&mut self, ask: &Ask) -> Result<Option<Vec<u8>>, u8> {
        let Some(room) = ask.room.checked_sub(1) else { return Err(0xa5) };
        let Some((header, out)) = ask.out.split_first_chunk::<16>() else { return Err(1) };
        let kind = u32::from_le_bytes(header[..4].try_into().unwrap());
        let sector = u64::from_le_bytes(header[8..].try_into().unwrap());
        let stretch = |sector: u64, len: usize| -> Result<std::ops::Range<usize>, u8> {
            let from = usize::try_from(sector).ok().and_then(|sector| sector.checked_mul(SECTOR)).ok_or(1)?;
            let end = from.checked_add(len).filter(|end| *end <= CAPACITY).ok_or(1)?;
            Ok(from..end)
        };
        let whole = |len: usize| -> Result<usize, u8> {
            if len > 0 && len % SECTOR == 0 {
                Ok(len)
            } else {
                Err(1)
            }
        };
        match kind {
            0 => Ok(Some(self.model[stretch(sector, whole(room)?)?].to_vec())),
            1 if self.limits.read_only => Err(1),
            1 => {
                let place = stretch(sector, whole(out.len())?)?;
                self.model[place].copy_from_slice(out);
                Ok(None)
            }
            4 => Ok(None),
            8 => Ok(Some(NAME[..room.min(NAME.len())].to_vec())),
            11 | 13 if self.limits.features == 0 => Err(2),
            11 | 13 if self.limits.read_only => Err(1),
            11 | 13 if out.is_empty() || out.len() % 16 != 0 || out.len() / 16 > 32 => Err(1),
            11 | 13 => {
                let mut places = Vec::new();
                for range in out.chunks(16) {
                    let word = |at: usize| u32::from_le_bytes(range[at..at + 4].try_into().unwrap());
                    let sectors = word(8);
                    if word(12) & !u32::from(kind == 13) != 0 {
                        return Err(2);
                    }
                    if sectors > 1 << 21 {
                        return Err(1);
                    }
                    places.push(stretch(word(0).into(), sectors as usize * SECTOR)?);
                }
                // A disk in memory keeps what is discarded.
                for place in places.into_iter().filter(|_| kind == 13) {
                    self.model[place].fill(0);
                }
                Ok(None)
            }
            _ => Err(2),
        }
    }
}

fn header(kind: u32, sector: u64) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat()
}

/// `len` bytes at `at`, cut at some places, as places and lengths; some are empty.
fn cut(at: u64, len: usize, cuts: &[u8]) -> Vec<(u64, usize)> {
    if len == 0 {
        return Vec::new();
    }
    // Near the beginning, where the header is, or near the end, where the status is.
    let place = |cut: &u8| {
        if cut & 1 == 0 {
            usize::from(cut >> 1)
        } else {
            len.saturating_sub(usize::from(cut >> 1))
        }
    };
    let mut ends: Vec<usize> = cuts.iter().map(|cut| place(cut).min(len)).collect();
    ends.push(len);
    ends.sort_unstable();
    assert!(ends.len() <= PIECES);
    let mut from = 0;
    let mut pieces = Vec::new();
    for end in ends {
        pieces.push((at + from as u64, end - from));
        from = end;
    }
    pieces
}
