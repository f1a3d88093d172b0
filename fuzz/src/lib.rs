//! What the fuzz targets share: a guest's memory, a port, and rings on them.

pub mod ends;
pub mod nic;
pub mod packets;

#[cfg(feature = "libfuzzer")]
pub use libfuzzer_sys::fuzz_target;

/// Without the fuzzer a target is a function that the replay calls.
#[cfg(not(feature = "libfuzzer"))]
#[macro_export]
macro_rules! fuzz_target {
    (|$data:ident: &[u8]| $body:expr) => {
        pub fn input($data: &[u8]) {
            $body
        }
    };
}

use std::collections::BTreeMap;

use std::fs::File;
use std::sync::{Arc, Mutex, OnceLock};

use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use sidecore_engine::core::Recall;
use sidecore_engine::graph::{QueueHandle, Scheduler};
use sidecore_engine::mem::{GuestMap, RegionSpec, Signal};
use sidecore_engine::observe::CounterFile;
use sidecore_engine::packet::{Batch, Frame, Offload};
use sidecore_engine::port::{Outcome, Port, PortId, Tally};
use sidecore_engine::virtq::{Position, Queue, RingConfig};

/// Bytes of guest memory.
pub const MEMORY: u64 = 64 << 10;
/// Where it starts in the guest.
pub const GPA: u64 = 0x10_0000;
/// Entries of the rings.
pub const ENTRIES: u16 = 16;
/// Where the three parts of a ring lie in guest memory.
pub const PARTS: [u64; 3] = [0x0, 0x400, 0x800];

/// A guest's memory, reachable from both sides.
pub struct Guest {
    file: File,
    /// As the engine sees it.
    pub map: Arc<GuestMap>,
}

impl Guest {
    /// Zeroed memory.
    pub fn new() -> Guest {
        let fd = memfd_create(c"guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, MEMORY).unwrap();
        let file: File = fd.into();
        let spec =
            RegionSpec { gpa: GPA, size: MEMORY, user_addr: GPA, offset: 0, file: file.try_clone().unwrap() };
        Guest { file, map: Arc::new(GuestMap::new(&[spec]).unwrap()) }
    }

    /// The memory file, as the VMM passes it.
    pub fn fd(&self) -> File {
        self.file.try_clone().unwrap()
    }

    /// Writes as the guest does, without a system call.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let room = MEMORY.saturating_sub(offset) as usize;
        let bytes = &bytes[..bytes.len().min(room)];
        if let Some(piece) = self.map.translate(GPA + offset, bytes.len() as u32, &mut 0) {
            assert!(bytes.is_empty() || piece.write(bytes) == bytes.len());
        }
    }

    /// Reads as the guest does.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) {
        let piece = self.map.translate(GPA + offset, bytes.len() as u32, &mut 0).unwrap();
        assert_eq!(piece.read(bytes), bytes.len());
    }

    /// A ring at `PARTS`, from its first entry on.
    pub fn ring(&self, features: u64, packed: bool) -> Queue {
        let position =
            if packed { Position::Packed { avail: 0x8000, used: 0x8000 } } else { Position::Split(0) };
        Queue::new(self.config(features, position)).unwrap()
    }

    /// What a ring at `PARTS` needs to run.
    pub fn config(&self, features: u64, position: Position) -> RingConfig {
        let sizes = RingConfig::part_sizes(ENTRIES, features);
        let part = |i: usize| {
            self.map.translate(GPA + PARTS[i], sizes[i].next_multiple_of(8) as u32, &mut 0).unwrap()
        };
        RingConfig {
            size: ENTRIES,
            desc: part(0),
            driver: part(1),
            device: part(2),
            used_log: None,
            map: Arc::clone(&self.map),
            features,
            position,
            notifier: Arc::new(Signal::default()),
            log: None,
            journal: None,
            region: None,
        }
    }
}

impl Default for Guest {
    fn default() -> Self {
        Self::new()
    }
}

/// A port without a peer.
pub fn port() -> Arc<Port> {
    let counters = CounterFile::anonymous().unwrap().open_slot(PortId(0), "fuzz");
    Arc::new(Port::new(PortId(0), "fuzz", counters, 1500).unwrap())
}

/// One port for all runs: its counters file is mapped only once.
pub fn anonymous_port() -> Arc<Port> {
    static PORT: OnceLock<Arc<Port>> = OnceLock::new();
    Arc::clone(PORT.get_or_init(port))
}

/// The next number, and queues by theirs.
type Numbered = (u64, BTreeMap<u64, QueueHandle>);

/// Holds the queues that a core would have.
#[derive(Default)]
pub struct ManualScheduler {
    queues: Mutex<Numbered>,
}

impl ManualScheduler {
    /// Whether no queue is with it.
    pub fn is_empty(&self) -> bool {
        self.queues.lock().unwrap().1.is_empty()
    }

    /// Fetches a batch of each queue, and does not give it back: whoever has the queue is about to be killed.
    pub fn fetch(&self, batch: &mut Batch) {
        for handle in self.queues.lock().unwrap().1.values_mut() {
            batch.clear();
            handle.queue().fetch(batch, &mut Tally::default());
        }
        batch.clear();
    }

    /// Fetches a batch of each queue, checks it, reads it, and gives it back.
    pub fn poll(&self, batch: &mut Batch) {
        for handle in self.queues.lock().unwrap().1.values_mut() {
            let queue = handle.queue();
            batch.clear();
            let mut tally = Tally::default();
            queue.fetch(batch, &mut tally);
            for frame in batch.frames() {
                let body: usize = batch.body(frame).iter().map(|piece| piece.len()).sum();
                assert_eq!(frame.head_len() + body, frame.len as usize);
                batch.body(frame).iter().for_each(|piece| {
                    piece.read(&mut vec![0; piece.len()]);
                });
            }
            let drops: u32 = tally.drops.counts.iter().sum();
            let out = queue.passed().map_or(0, |(_, outcome)| outcome.frames);
            assert_eq!(tally.frames, batch.len() as u64 + u64::from(drops) + out);
            if tally.frames > 0 {
                queue.release(&mut tally);
            }
            let _ = queue.has_frames();
            queue.want_kicks(true);
            let _ = queue.longest_sleep();
            queue.want_kicks(false);
        }
    }
}

impl Scheduler for ManualScheduler {
    fn serve_queue(self: Arc<Self>, mut handle: QueueHandle) -> Recall {
        let mut scheduler = self.queues.lock().unwrap();
        scheduler.0 += 1;
        let key = scheduler.0;
        handle.queue().want_kicks(false);
        scheduler.1.insert(key, handle);
        drop(scheduler);
        Box::new(move || {
            let handle = self.queues.lock().unwrap().1.remove(&key);
            handle.into_iter().for_each(|handle| handle.return_to_owner());
        })
    }
}

/// Sends `count` frames of `len` bytes to a queue of `port`, and checks that each is accounted for.
/// `describe` fills in their heads. Their bodies are the guest's own memory from `body` on: also the case of
/// a frame that overlaps its receiver's buffer.
pub fn send(
    guest: &Guest,
    batch: &mut Batch,
    (port, queue): (&Port, usize),
    (count, len): (u16, u16),
    body: u64,
    describe: impl Fn(&mut Frame),
) {
    batch.clear();
    for _ in 0..count {
        let (frame, pieces) = batch.next_frame().unwrap();
        describe(frame);
        frame.len = u32::from(len).max(14);
        (frame.piece, frame.pieces, frame.offload) = (pieces.len() as u32, 1, Offload::NONE);
        let rest = frame.len.saturating_sub(64);
        let piece = guest.map.translate(GPA + body, rest.max(1), &mut 0).unwrap();
        assert!(pieces.push(piece.first(rest as usize)));
        batch.commit();
    }
    let picks: Vec<u16> = (0..count).collect();
    let mut outcome = Outcome::new();
    if let Some(queue) = &mut *port.egress(queue).unwrap() {
        let _ = (queue.is_full(), queue.room());
        queue.send(batch, &picks, &mut outcome);
        let drops: u32 = outcome.drops.counts.iter().sum();
        assert_eq!(outcome.frames + u64::from(drops), u64::from(count));
    }
}
