//! What the targets of emulated NICs share: memory in several shapes, and frames for them.

use std::sync::Arc;

use sidecore_engine::mem::{GuestMap, RegionSpec};
use sidecore_engine::packet::Batch;
use sidecore_engine::port::Port;

use crate::{send, Guest, GPA, MEMORY};

/// Where buffers lie in guest memory.
pub const BUFFERS: u64 = 0x4000;

/// A guest, its memory in several shapes, and a batch.
pub struct World {
    /// The guest.
    pub guest: Guest,
    /// Its memory whole, the same in two parts that are adjacent, only its first half, and none.
    pub maps: [Arc<GuestMap>; 4],
    /// For targets that need one.
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

    /// Delivers `count` frames of `len` bytes to `port`, if a receiver is there. Their first bytes are
    /// `group`.
    pub fn send(&mut self, port: &Port, count: u8, len: u16, group: u8) {
        send(&self.guest, &mut self.batch, (port, 0), (u16::from(count % 40), len), BUFFERS, |frame| {
            frame.head = [group; 64];
            // One half is IP, with a length of its header that the fuzzer chooses.
            match group & 6 {
                2 => frame.head[12..15].copy_from_slice(&[8, 0, 0x40 | group >> 4]),
                4 => frame.head[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]),
                _ => {}
            }
        });
    }
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}
