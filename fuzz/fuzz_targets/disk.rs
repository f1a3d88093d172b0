//! A disk's requests, cut into buffers anywhere: what an honest one does is known from a model of the disk,
//! and any bytes may be written over ring, tables and requests at any time.
//!
//! Theory of operation. The input is a list of steps. An *ask* offers one request, its parts cut where the
//! input says, has the device visited, and compares status, data and disk with what the specification says of
//! it (virtio 1.2 §5.2.6). A *lie* writes bytes anywhere; from then on nothing is compared but that the
//! device goes on or stops with a name, until the ring begins anew. The ring is split or packed, its
//! descriptors stand in it or in a table. A request may be cut off in the middle, as by a kill: the ring's
//! successor does it again, by what the ring or its in-flight region says.
//!
//! The disk is memory, a file in tmpfs, or a file in the folder for temporary ones: the kernel reads and
//! writes those, and an ask may have it fail, or do less at a time.
#![cfg_attr(feature = "libfuzzer", no_main)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
#[cfg(not(feature = "libfuzzer"))]
use std::sync::atomic::AtomicI32;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use sidecore_abi::virtio::{features, DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE};
use sidecore_engine::core::{Budget, Task};
use sidecore_engine::device::virtio_blk::{BlkQueue, Limits};
#[cfg(feature = "libfuzzer")]
use sidecore_engine::disk::ENDS;
use sidecore_engine::disk::{Disk, Medium};
use sidecore_engine::mem::{memory_file, JournalSlots};
use sidecore_engine::port::Port;
use sidecore_engine::virtq::{PackedJournal, Position, Queue, Region, RingConfig, Whose};
use sidecore_fuzz::fuzz_target;
use sidecore_fuzz::{port, Guest, ENTRIES, GPA, MEMORY, PARTS};

/// Without the fuzzer's build of the engine, requests end as the kernel ends them.
#[cfg(not(feature = "libfuzzer"))]
static ENDS: AtomicI32 = AtomicI32::new(0);

/// Bytes of the disk, and of its sectors.
const CAPACITY: usize = 32 << 10;
const SECTOR: usize = 512;
/// Where a table of descriptors lies.
const TABLE: u64 = 0x1000;
/// What its front end calls a request in a packed ring.
const NAMED: u16 = 7;
/// Where what the device reads lies, and what it writes; and bytes of either at most.
const OUT: u64 = 0x2000;
const IN: u64 = 0x9000;
const MOST: usize = 0x6000;
/// Pieces of either at most.
const PIECES: usize = 5;
/// Larger than any visit.
const ALL: Budget = Budget { items: 1 << 10, bytes: 1 << 30, ns: u64::MAX };
/// So small that most requests take several.
const LITTLE: Budget = Budget { items: 1, bytes: 1, ns: u64::MAX };
const NAME: [u8; 20] = *b"a disk that is asked";

/// What stays from input to input.
struct Keep {
    guest: Guest,
    port: Arc<Port>,
    slots: JournalSlots,
    /// Files as disks, by the bits of an input that choose one.
    files: RefCell<BTreeMap<u8, Arc<Disk>>>,
}

/// The bits: read only, a file, that of the folder for temporary ones.
const WHICH: u8 = 1 | 32 | 64;

/// How the kernel's next request may end.
const END: [i32; 16] = [
    0,
    0,
    0,
    0,
    512,
    1024,
    4096,
    -Errno::INTR.raw_os_error(),
    -Errno::AGAIN.raw_os_error(),
    -Errno::IO.raw_os_error(),
    -Errno::IO.raw_os_error(),
    -Errno::NOSPC.raw_os_error(),
    -Errno::FAULT.raw_os_error(),
    -Errno::INVAL.raw_os_error(),
    -Errno::OPNOTSUPP.raw_os_error(),
    0,
];

/// The disk that an input chooses.
fn disk(keep: &Keep, which: u8) -> Arc<Disk> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let make = || {
        let folder = if which & 64 == 0 { Path::new("/dev/shm").to_owned() } else { std::env::temp_dir() };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("sidecore-fuzz-{}-{number}", std::process::id()));
        File::create_new(&path).unwrap().set_len(CAPACITY as u64).unwrap();
        let disk = Disk::file(&path, 512, which & 1 != 0);
        std::fs::remove_file(&path).unwrap();
        Arc::new(disk.unwrap())
    };
    match which & 32 {
        0 => Arc::new(Disk::ram(CAPACITY as u64, 512, which & 1 != 0).unwrap()),
        _ => Arc::clone(keep.files.borrow_mut().entry(which).or_insert_with(make)),
    }
}

thread_local!(static KEEP: Keep = {
    let bytes = PackedJournal::bytes(ENTRIES.into());
    let slots = JournalSlots::open(&memory_file(c"region", bytes).unwrap(), bytes, 1).unwrap();
    Keep { guest: Guest::new(), port: port(), slots, files: RefCell::default() }
});

fuzz_target!(|data: &[u8]| {
    let [flags, data @ ..] = data else { return };
    KEEP.with(|keep| {
        let mut world = World::new(keep, *flags);
        for step in data.chunks(16) {
            world.step(step);
        }
        let position = world.queue.take().map(BlkQueue::close);
        assert!(world.lied || position == Some(world.position()));
    });
});

struct World<'k> {
    keep: &'k Keep,
    disk: Arc<Disk>,
    which: u8,
    limits: Limits,
    packed: bool,
    table: bool,
    region: bool,
    /// What the disk holds.
    model: Vec<u8>,
    queue: Option<BlkQueue>,
    asked: u16,
    /// Where the next request begins in a packed ring: the descriptor, and whether the driver's lap is an
    /// even one.
    place: (u16, bool),
    /// The next request is cut off.
    cut: bool,
    lied: bool,
}

/// A request, and what the device is to do with it.
struct Ask {
    out: Vec<u8>,
    room: usize,
    cuts: [u8; 4],
}

impl World<'_> {
    fn new(keep: &Keep, flags: u8) -> World<'_> {
        let read_only = flags & 1 != 0;
        let bits = if flags & 2 == 0 { features::BLK_DISCARD | features::BLK_WRITE_ZEROES } else { 0 };
        let limits = Limits { capacity: CAPACITY as u64, read_only, features: bits, id: NAME };
        let which = flags & WHICH;
        let disk = disk(keep, which);
        disk.set_write_through(flags & 128 != 0);
        let mut world = World {
            keep,
            disk,
            which,
            limits,
            packed: flags & 4 != 0,
            table: flags & 8 != 0,
            region: flags & 16 != 0,
            model: vec![0; CAPACITY],
            queue: None,
            asked: 0,
            place: (0, true),
            cut: false,
            // What a file holds is not known.
            lied: flags & 32 != 0,
        };
        world.begin();
        world
    }

    /// Where the ring stands between two requests.
    fn position(&self) -> Position {
        let bits = self.place.0 | u16::from(self.place.1) << 15;
        if self.packed {
            Position::Packed { avail: bits, used: bits }
        } else {
            Position::Split(self.asked)
        }
    }

    /// The ring begins anew, over memory that says nothing.
    fn begin(&mut self) {
        self.end();
        self.keep.guest.write(0, &[0; MEMORY as usize]);
        let slot = self.keep.slots.slot(0).unwrap();
        (0..PackedJournal::bytes(ENTRIES.into()) / 8).for_each(|word| slot.set(word, 0));
        (self.asked, self.place, self.cut) = (0, (0, true), false);
        let lied = std::mem::replace(&mut self.lied, false);
        self.keep.port.fault.clear();
        assert!(self.start(self.position()));
        let all = self.read_all();
        // What lies did to the disk is what it holds.
        assert!(lied || all == self.model);
        self.model = all;
    }

    /// The queue goes, as if it was killed; but what the kernel has of a file's requests is over before.
    fn end(&mut self) {
        let queue = self.queue.take();
        if self.is_file() {
            queue.map(BlkQueue::close);
        }
    }

    fn is_file(&self) -> bool {
        matches!(self.disk.medium, Medium::File(_))
    }

    /// A queue on the ring as it is; false if there can be none.
    fn start(&mut self, at: Position) -> bool {
        let packed = if self.packed { features::RING_PACKED } else { 0 };
        let region = self.region.then(|| Region::new(self.keep.slots.slot(0).unwrap(), Whose::Ours));
        let config = self.keep.guest.config(features::VERSION_1 | features::INDIRECT_DESC | packed, at);
        let Ok(queue) = Queue::requests(RingConfig { region, ..config }) else { return false };
        let (port, disk) = (Arc::clone(&self.keep.port), Arc::clone(&self.disk));
        let way = match &disk.medium {
            Medium::File(file) => Some(file.way(ENTRIES, Arc::clone(&self.keep.guest.map)).unwrap()),
            _ => None,
        };
        self.queue = Some(BlkQueue::new(port, disk, 0, (queue, way), None, self.limits));
        true
    }

    /// The device is killed, and another one goes on.
    fn replace(&mut self) {
        // Where the ring stands in memory: the used index, or what the region says.
        let mut used = [0; 2];
        self.keep.guest.read(PARTS[2] + 2, &mut used);
        let at = if self.packed { self.position() } else { Position::Split(u16::from_le_bytes(used)) };
        self.end();
        let started = self.start(at);
        assert!(started || self.lied);
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

    fn visit(&mut self, budget: Budget) {
        if let Some(queue) = &mut self.queue {
            let visit = Task::<()>::visit(queue, &mut (), budget);
            assert!(visit.items <= usize::from(ENTRIES));
        }
    }

    /// Visits until all is over, as an I/O core does.
    fn visit_until_over(&mut self) {
        let limit = Instant::now() + Duration::from_secs(15);
        self.visit(ALL);
        while self.disk.sums().in_flight > 0 && self.keep.port.fault.get().is_none() {
            let Some(queue) = &mut self.queue else { return };
            assert!(Instant::now() < limit, "a request has no end");
            if !Task::<()>::has_work(queue) && !Task::<()>::arm(queue) {
                let mut events = Vec::new();
                Task::<()>::events(queue, &mut |event| events.push(event));
                let mut events: Vec<_> =
                    events.iter().map(|event| PollFd::new(event, PollFlags::IN)).collect();
                // The fuzzer's own timer interrupts it.
                let _ = poll(&mut events, Some(&Timespec { tv_sec: 1, tv_nsec: 0 }));
            }
            self.visit(ALL);
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
                // After a lie nothing is compared, and another input would have a disk that has lost
                // something.
                let tells = cfg!(feature = "libfuzzer") && self.is_file() && !self.lied;
                let end = if tells { END[usize::from(what >> 3) % END.len()] } else { 0 };
                ENDS.store(end, Ordering::Relaxed);
                self.compare(&ask, end);
                ENDS.store(0, Ordering::Relaxed);
            }
            5 if kind & 1 != 0 => self.begin(),
            // A packed ring without a region has nothing to go on from.
            // What the kernel has of a file's requests cannot be cut off.
            5 => self.cut = (self.region || !self.packed) && !self.is_file(),
            _ => {
                self.lied = true;
                let at = u64::from(u16::from_le_bytes([kind, sector]));
                let at = if what & 0x80 == 0 { at & 0xfff } else { at };
                if self.region && what & 0x40 != 0 {
                    let word = u64::from_le_bytes(*bytes[3..].first_chunk().unwrap());
                    self.keep.slots.slot(0).unwrap().set(usize::from(kind) % 48, word);
                    self.replace();
                } else {
                    self.keep.guest.write(at, &bytes[3..]);
                }
                self.visit(ALL);
            }
        }
    }

    /// Offers a request and has it done: its status, and what was written before that. `None`: there is none,
    /// after a lie, or if it has no byte.
    fn ask(&mut self, ask: &Ask) -> Option<(u8, Vec<u8>)> {
        let Ask { out, room, cuts } = ask;
        self.keep.guest.write(OUT, out);
        self.keep.guest.write(IN, &vec![0xa5; room + 1]);
        let readable = cut(OUT, out.len(), &cuts[..2]);
        let writable = cut(IN, *room, &cuts[2..]);
        let read = readable.len();
        let pieces: Vec<_> = readable.into_iter().chain(writable).collect();
        if pieces.is_empty() {
            return None;
        }
        let flags = |n: usize| if n < read { 0 } else { DESC_F_WRITE };
        let offered = if self.table {
            for (n, (at, len)) in pieces.iter().enumerate() {
                let next = if !self.packed && n + 1 < pieces.len() { DESC_F_NEXT } else { 0 };
                let last = if self.packed { [NAMED, flags(n)] } else { [flags(n) | next, n as u16 + 1] };
                self.describe(TABLE + 16 * n as u64, *at, *len, last);
            }
            vec![(TABLE, 16 * pieces.len(), DESC_F_INDIRECT)]
        } else {
            let all = pieces.iter().enumerate();
            all.map(|(n, (at, len))| {
                (*at, *len, flags(n) | if n + 1 < pieces.len() { DESC_F_NEXT } else { 0 })
            })
            .collect()
        };
        self.offer(&offered);
        if std::mem::take(&mut self.cut) {
            self.visit(LITTLE);
            self.replace();
        }
        for _ in 0..if self.lied || self.is_file() { 1 } else { 3 } {
            self.visit(ALL);
        }
        if self.is_file() {
            self.visit_until_over();
        }
        if self.lied {
            return None;
        }
        assert!(
            self.is_answered(offered.len() as u16),
            "a request has no answer: {:?}",
            self.keep.port.fault.get()
        );
        let mut data = vec![0; room + 1];
        self.keep.guest.read(IN, &mut data);
        assert_eq!(data.pop(), Some(0xa5), "behind what it may write");
        Some((data.pop().unwrap_or(0xa5), data))
    }

    /// A descriptor in the guest's memory; its last two words differ by format.
    fn describe(&self, to: u64, at: u64, len: usize, last: [u16; 2]) {
        let mut bytes = (GPA + at).to_le_bytes().to_vec();
        bytes.extend((len as u32).to_le_bytes());
        bytes.extend(last.iter().flat_map(|word| word.to_le_bytes()));
        self.keep.guest.write(to, &bytes);
    }

    /// Puts descriptors into the ring, and has them be seen.
    fn offer(&mut self, offered: &[(u64, usize, u16)]) {
        for (n, (at, len, flags)) in offered.iter().enumerate() {
            if self.packed {
                // Flags AVAIL and USED by the lap (virtio 1.2 §2.8.1).
                let place = self.place.0 + n as u16;
                let lap = if self.place.1 == (place < ENTRIES) { 1 << 7 } else { 1 << 15 };
                self.describe(PARTS[0] + 16 * u64::from(place % ENTRIES), *at, *len, [NAMED, flags | lap]);
            } else {
                self.describe(PARTS[0] + 16 * n as u64, *at, *len, [*flags, n as u16 + 1]);
            }
        }
        if !self.packed {
            self.keep.guest.write(PARTS[1] + 4 + 2 * u64::from(self.asked % ENTRIES), &[0, 0]);
        }
        self.asked = self.asked.wrapping_add(1);
        if !self.packed {
            self.keep.guest.write(PARTS[1] + 2, &self.asked.to_le_bytes());
        }
    }

    /// Whether the request of so many descriptors was given back; the next one begins behind it then.
    fn is_answered(&mut self, count: u16) -> bool {
        if !self.packed {
            let mut used = [0; 2];
            self.keep.guest.read(PARTS[2] + 2, &mut used);
            return u16::from_le_bytes(used) == self.asked;
        }
        let mut end = [0; 4];
        self.keep.guest.read(PARTS[0] + 16 * u64::from(self.place.0) + 12, &mut end);
        let (id, flags) = (u16::from_le_bytes([end[0], end[1]]), u16::from_le_bytes([end[2], end[3]]));
        let lap = if self.place.1 { 1 << 7 | 1 << 15 } else { 0 };
        let next = self.place.0 + count;
        self.place = (next % ENTRIES, self.place.1 == (next < ENTRIES));
        id == NAMED && flags & (1 << 7 | 1 << 15) == lap
    }

    /// Asks, and compares with the model. `end`: how the kernel's first request for it ends.
    fn compare(&mut self, ask: &Ask, end: i32) {
        let Some((status, data)) = self.ask(ask) else { return };
        let was_asked = end != 0 && ENDS.load(Ordering::Relaxed) == 0;
        let wanted = self.expect(ask);
        if was_asked && end < 0 && end != END[7] && end != END[8] {
            assert!(wanted.is_ok(), "{wanted:?}");
            let kind = ask.out[0];
            match (kind, Errno::from_raw_os_error(-end)) {
                (11, Errno::OPNOTSUPP) => assert_eq!(status, 2),
                // It goes another way, if there is one.
                (13, Errno::OPNOTSUPP | Errno::INVAL) => assert!(status < 2),
                _ => assert_eq!(status, 1),
            }
            if kind == 4 {
                let flush = Ask { out: header(4, 0), room: 1, cuts: [0; 4] };
                assert_eq!(self.ask(&flush), Some((1, Vec::new())), "what is lost stays lost");
            }
            // Another disk, which has done nothing yet, and knows nothing of what was lost.
            self.end();
            self.keep.files.borrow_mut().remove(&self.which);
            let write_through = self.disk.is_write_through();
            self.disk = disk(self.keep, self.which);
            self.disk.set_write_through(write_through);
            self.lied = true;
            return self.begin();
        }
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
                let is_file = self.is_file();
                for place in places.into_iter().filter(|_| kind == 13 || is_file) {
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
