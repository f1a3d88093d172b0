//! A client of a ring port that writes anything into its memory while the engine serves its rings: words,
//! slots and buffers, between batches and in the middle of one. Nothing may panic; every frame that is taken
//! has the bytes that it claims; frames in are frames out and named drops; whatever stands in the client's
//! words, the engine's own indices stay in the ring and in turn; and the engine writes to no buffer that the
//! client cannot have named. Monitors may look on: at what the port sends and receives, at what the client
//! releases, and at the rings of a pipe between two clients, which no core serves.
#![cfg_attr(feature = "libfuzzer", no_main)]

use std::sync::atomic::Ordering;
use std::sync::Arc;

use rustix::event::{eventfd, EventfdFlags};
use sidecore_abi::ring::{across, SEES_RECEIVED, SEES_SENT};
use sidecore_engine::host::ring::{Lookers, Monitor, RingPair, RingPortSettings, RingTap, Sees, SentOnly};
use sidecore_engine::mem::SharedFile;
use sidecore_engine::observe::capture::Watcher;
use sidecore_engine::packet::Batch;
use sidecore_engine::port::{EgressQueue, IngressQueue, Outcome, Port, Tally};
use sidecore_engine::ring::{Geometry, Region};
use sidecore_fuzz::anonymous_port;
use sidecore_fuzz::fuzz_target;

const SLOTS: u32 = 8;
const BUF_SIZE: u32 = 128;
/// The client's words in a ring's block: head, cur, ticket. The engine's start at `ENGINE`.
const CLIENT_WORDS: u64 = 3;
const ENGINE: u64 = 128;
/// Bytes of a ring's block of words.
const BLOCK: u64 = 256;
/// Buffers without an owner.
const RESERVED: u64 = 2;

/// A region, and its bytes as a client has them.
#[derive(Clone)]
struct Shared {
    region: Arc<Region>,
    bytes: Arc<SharedFile>,
}

impl Shared {
    fn new(geometry: &Geometry) -> Shared {
        let region = Arc::new(Region::new(geometry, "fuzz").unwrap());
        let file = std::fs::File::from(region.file().try_clone_to_owned().unwrap());
        let len = file.metadata().unwrap().len();
        Shared { region, bytes: Arc::new(SharedFile::map(&file, 0, len).unwrap()) }
    }

    /// As it was made; nobody uses it.
    fn restart(&self) {
        self.region.fill("fuzz");
        self.region.restart();
        (0..self.region.info().pipes).for_each(|pipe| self.region.restart_pipe(pipe));
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        for (at, byte) in (offset as usize..).zip(bytes) {
            self.bytes.byte(at).unwrap().store(*byte, Ordering::Relaxed);
        }
    }

    fn read<const N: usize>(&self, offset: u64) -> [u8; N] {
        std::array::from_fn(|i| self.bytes.byte(offset as usize + i).unwrap().load(Ordering::Relaxed))
    }

    fn word(&self, offset: u64) -> u32 {
        u32::from_ne_bytes(self.read(offset))
    }

    /// The engine's `hwcur` and `hwtail` of ring `number`.
    fn indices(&self, number: u64) -> (u32, u32) {
        let engine = self.region.info().words + number * BLOCK + ENGINE;
        (self.word(engine), self.word(engine + 4))
    }
}

/// What stays from input to input: the client's memory, and a monitor with its own.
struct Keep {
    client: Shared,
    monitors: Shared,
    monitor: Arc<Monitor>,
}

thread_local!(static KEEP: Keep = {
    let geometry = Geometry { slots: SLOTS, buf_size: BUF_SIZE, extra_bufs: 2, pipes: 1, ..Geometry::default() };
    let client = Shared::new(&geometry);
    let monitors = Shared::new(&Geometry { slots: 64, buf_size: BUF_SIZE, sends: false, ..Geometry::default() });
    let sees = Sees::from_value(SEES_SENT | SEES_RECEIVED).unwrap();
    let port = anonymous_port();
    let (monitor, _) = Monitor::new(&monitors.region, &Arc::default(), sees, &port.overrun).unwrap();
    Keep { client, monitors, monitor: Arc::new(monitor) }
});

struct World<'k> {
    keep: &'k Keep,
    region: Arc<Region>,
    pair: RingPair,
    settings: Arc<RingPortSettings>,
    port: Arc<Port>,
    batch: Batch,
    tally: Tally,
    /// Rings that the client may write into: its own two, and those of the pipe.
    rings: Vec<u64>,
    taps: Vec<RingTap>,
}

impl World<'_> {
    fn new(keep: &Keep, flags: u8) -> World<'_> {
        keep.client.restart();
        let region = Arc::clone(&keep.client.region);
        let settings = Arc::new(RingPortSettings::default());
        let port = anonymous_port();
        let pair = RingPair::new(&region, 0, &settings, &port.overrun).unwrap();
        let mut rings = vec![0, 1];
        let mut taps = Vec::new();
        let looked_at = || {
            let lookers = Lookers::default();
            lookers.sent.watch(Arc::new(SentOnly(Arc::clone(&keep.monitor))));
            lookers.received.watch(Arc::clone(&keep.monitor) as Arc<dyn Watcher>);
            Arc::new(lookers)
        };
        if flags & 1 != 0 {
            rings.extend((0..4).map(|ring| u64::from(region.pipe_ring(0, ring))));
            // As the client asks: what is sent, or what the other end releases of it.
            for sender in if flags & 2 == 0 { [0, 2] } else { [2, 0] } {
                let ring = if flags & 4 == 0 { sender } else { across(sender) };
                let numbers = (region.pipe_ring(0, ring), region.pipe_ring(0, sender));
                let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
                taps.push(RingTap::of_pipe(&region, numbers, wake, looked_at()).unwrap());
            }
        }
        if flags & 8 != 0 {
            taps.push(RingTap::of_released(&region, 0, &settings, &pair.gate(), looked_at()).unwrap());
        }
        let batch = Batch::new();
        World { keep, region, pair, settings, port, batch, tally: Tally::default(), rings, taps }
    }

    /// Monitors look at what there is.
    fn look_on(&mut self) {
        for tap in &mut self.taps {
            let mut tally = Tally::default();
            self.batch.clear();
            tap.fetch(&mut self.batch, &mut tally);
            assert!(self.batch.is_empty() && tally.frames == 0, "none of it goes to the switch");
            let _ = (tap.want_kicks(true), tap.longest_sleep());
        }
        if !self.taps.is_empty() {
            // Its client releases what it has got.
            let (monitors, tail) = (&self.keep.monitors, self.keep.monitors.indices(0).1);
            let words = monitors.region.info().words;
            monitors.write(words, &tail.to_ne_bytes());
            monitors.write(words + 4, &tail.to_ne_bytes());
        }
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        self.keep.client.write(offset, bytes);
    }

    fn read<const N: usize>(&self, offset: u64) -> [u8; N] {
        self.keep.client.read(offset)
    }

    fn indices(&self, number: u64) -> (u32, u32) {
        self.keep.client.indices(number)
    }

    /// One thing that a client does, or the operator.
    fn scribble(&mut self, what: u8, at: u8, bytes: &[u8]) {
        let info = *self.region.info();
        let number = self.rings[usize::from(at % 7 % 6) % self.rings.len()];
        let place = at >> 1;
        let words = info.words + number * BLOCK;
        match what % 6 {
            0 => {
                let mut value = [0; 4];
                value.copy_from_slice(&bytes[..4]);
                self.write(words + 4 * (u64::from(place) % CLIENT_WORDS), &value);
            }
            // A head near to where the ring is: nonsense alone would move nothing.
            1 => {
                let head = (self.indices(number).0 + u32::from(place) % SLOTS) % SLOTS;
                self.write(words, &head.to_ne_bytes());
            }
            2 => {
                let slot = u64::from(place) % u64::from(SLOTS);
                self.write(info.ring_pool + number * u64::from(info.ring_size) + BLOCK + 16 * slot, bytes);
            }
            // A slot that makes sense, but for its flags.
            3 => {
                let slot = u32::from(place) % SLOTS;
                let mut right = [0; 8];
                right[..4].copy_from_slice(&(2 + u32::from(bytes[0]) % (info.bufs - 2)).to_ne_bytes());
                right[4..6].copy_from_slice(&(u16::from(bytes[1]) % 160).to_ne_bytes());
                right[6] = bytes[2];
                let ring = info.ring_pool + number * u64::from(info.ring_size) + BLOCK;
                self.write(ring + 16 * u64::from(slot), &right);
            }
            4 => {
                let own = u64::from(info.bufs) - RESERVED;
                let buffer = RESERVED + u64::from(at) % own;
                self.write(info.buf_pool + buffer * u64::from(info.buf_size), bytes);
            }
            _ => {
                assert!(self.settings.set_header([0, 10, 12][usize::from(at) % 3], &self.port));
                self.settings.set_down(at & 0xc0 == 0xc0);
            }
        }
    }

    fn fetch(&mut self) {
        self.look_on();
        let World { pair, batch, .. } = self;
        self.tally = Tally::default();
        batch.clear();
        pair.ingress.fetch(batch, &mut self.tally);
        let drops: u32 = self.tally.drops.counts.iter().sum();
        assert_eq!(self.tally.frames, batch.len() as u64 + u64::from(drops));
        for frame in batch.frames() {
            let body: usize = batch.body(frame).iter().map(|piece| piece.len()).sum();
            assert_eq!(frame.head_len() + body, frame.len as usize);
        }
    }

    /// What came in goes out at the same port, as a switch would send it to another.
    fn deliver(&mut self) {
        let World { pair, batch, .. } = self;
        let picks: Vec<u16> = (0..batch.len() as u16).collect();
        let mut outcome = Outcome::new();
        pair.egress.send(batch, &picks, &mut outcome);
        let lost: u32 = outcome.drops.counts.iter().sum();
        assert_eq!(picks.len() as u64, outcome.frames + u64::from(lost));
        pair.ingress.release(&mut self.tally);
        pair.egress.is_full();
        pair.ingress.want_kicks(true);
        pair.ingress.want_kicks(false);
        for number in 0..2 {
            let (hwcur, hwtail) = self.indices(number);
            assert!(hwcur < SLOTS && hwtail < SLOTS);
            // On a ring of the sender's all but one slot are its own.
            assert!(number == 1 || (hwtail + 1) % SLOTS == hwcur);
        }
    }

    fn nobodys_buffers_are_as_they_were(&self) {
        let info = self.region.info();
        assert_eq!(self.read(info.buf_pool), [0; RESERVED as usize * BUF_SIZE as usize]);
        assert_eq!(self.read(info.buf_pool + u64::from(info.bufs) * u64::from(info.buf_size)), [0; 64]);
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((flags, data)) = data.split_first() else { return };
    KEEP.with(|keep| {
        let mut world = World::new(keep, *flags);
        let mut fetched = false;
        for op in data.chunks_exact(8) {
            let [what, at, rest @ ..] = op else { return };
            if what & 0xe0 != 0 {
                world.scribble(what >> 5, *at, rest);
            } else if fetched {
                world.deliver();
                fetched = false;
            } else {
                world.fetch();
                fetched = true;
            }
        }
        if !fetched {
            world.fetch();
        }
        world.deliver();
        world.nobodys_buffers_are_as_they_were();
    });
});
