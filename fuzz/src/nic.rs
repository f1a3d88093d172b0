//! What the targets of emulated NICs share: who holds their queue in place of a core, memory in several shapes, and frames in both
//! directions.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use sidecore_engine::core::Recall;
use sidecore_engine::fabric::{NetSeat, Scheduler};
use sidecore_engine::frame::Batch;
use sidecore_engine::mem::{GuestMap, RegionSpec};
use sidecore_engine::port::{Outcome, Port, Tally};
use sidecore_engine::wire::Offload;

use crate::{port, Guest, GPA, MEMORY};

/// Where buffers lie in guest memory.
pub const BUFFERS: u64 = 0x4000;

/// Holds the queue that a core would have.
#[derive(Default)]
pub struct Desk {
    queues: Mutex<(u64, HashMap<u64, Box<dyn NetSeat>>)>,
}

impl Scheduler for Desk {
    fn seat(self: Arc<Self>, mut seat: Box<dyn NetSeat>) -> Recall {
        let mut desk = self.queues.lock().unwrap();
        desk.0 += 1;
        let key = desk.0;
        seat.queue().want_kicks(false);
        desk.1.insert(key, seat);
        drop(desk);
        Box::new(move || {
            let seat = self.queues.lock().unwrap().1.remove(&key);
            seat.into_iter().for_each(|seat| seat.go_home());
        })
    }
}

impl Desk {
    /// Whether nobody's queue is here.
    pub fn is_empty(&self) -> bool {
        self.queues.lock().unwrap().1.is_empty()
    }

    /// One poll of the queues that are here.
    pub fn poll(&self, batch: &mut Batch) {
        let mut desk = self.queues.lock().unwrap();
        for seat in desk.1.values_mut() {
            let queue = seat.queue();
            batch.clear();
            let mut tally = Tally::default();
            queue.fetch(batch, &mut tally);
            for frame in batch.frames() {
                let body: usize = batch.body(frame).iter().map(|piece| piece.len()).sum();
                assert_eq!(frame.head_len() + body, frame.len as usize);
                batch.body(frame).iter().for_each(|piece| {
                    piece.read(&mut [0; 64]);
                });
            }
            let drops: u32 = tally.drops.counts().iter().sum();
            assert_eq!(tally.frames, batch.len() as u64 + u64::from(drops));
            queue.release(&mut tally);
            queue.want_kicks(true);
            let _ = queue.longest_sleep();
            queue.want_kicks(false);
        }
    }
}

/// A guest, its memory in several shapes, and a batch.
pub struct World {
    /// The guest.
    pub guest: Guest,
    /// Its memory whole, the same in two parts that are adjacent, only its first half, and none.
    pub maps: [Arc<GuestMap>; 4],
    /// For whoever needs one.
    pub batch: Batch,
}

impl World {
    /// Zeroed memory.
    pub fn new() -> World {
        let guest = Guest::new();
        let part = |at: u64, size: u64| RegionSpec {
            gpa: GPA + at,
            size,
            user_addr: GPA + at,
            offset: at,
            file: guest.fd(),
        };
        let half = MEMORY / 2;
        let map = |parts: &[RegionSpec]| Arc::new(GuestMap::new(parts).unwrap());
        let maps = [
            Arc::clone(&guest.map),
            map(&[part(0, half), part(half, half)]),
            map(&[part(0, half)]),
            map(&[]),
        ];
        World { guest, maps, batch: Batch::new() }
    }

    /// Delivers `count` frames of `len` bytes to `port`, if anybody receives there. Their first bytes are `group`.
    pub fn send(&mut self, port: &Port, count: u8, len: u16, group: u8) {
        let count = u16::from(count % 40);
        let batch = &mut self.batch;
        batch.clear();
        for _ in 0..count {
            let (frame, pieces) = batch.next_frame().unwrap();
            frame.head = [group; 64];
            // One half is IP, with a length of its header that the fuzzer chooses.
            match group & 6 {
                2 => frame.head[12..15].copy_from_slice(&[8, 0, 0x40 | group >> 4]),
                4 => frame.head[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]),
                _ => {}
            }
            frame.len = u32::from(len).max(14);
            (frame.piece, frame.pieces, frame.offload) = (pieces.len() as u32, 1, Offload::NONE);
            // The body is the guest's own memory: also the case of a frame that overlaps its receiver's buffer.
            let body = frame.len.saturating_sub(64);
            let piece = self.guest.map.translate(GPA + BUFFERS, body.max(1), &mut 0).unwrap();
            assert!(pieces.push(piece.first(body as usize)));
            batch.commit();
        }
        let picks: Vec<u16> = (0..count).collect();
        let mut outcome = Outcome::new();
        if let Some(queue) = &mut *port.egress(0).unwrap() {
            queue.send(batch, &picks, &mut outcome);
            let drops: u32 = outcome.drops.counts().iter().sum();
            assert_eq!(outcome.frames + u64::from(drops), u64::from(count));
        }
    }
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

/// One port for all runs: its counters file is mapped only once.
pub fn anonymous_port() -> Arc<Port> {
    static PORT: OnceLock<Arc<Port>> = OnceLock::new();
    Arc::clone(PORT.get_or_init(port))
}
