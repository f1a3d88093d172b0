//! A receiver that is a native program: it reads from a netmap ring in memory that it shares with the engine.

use std::fs::File;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use sidecore_abi::netmap::{RingHead, Slot, SlotWord, NS_MOREFRAG};
use sidecore_abi::ring::RingStatus;
use sidecore_engine::core::Lease;
use sidecore_engine::host::ring::{RingEgress, RingIngress, RingPair, RingPortSettings};
use sidecore_engine::mem::SharedFile;
use sidecore_engine::port::Port;
use sidecore_engine::ring::{Geometry, Region};

use super::plain::Asked;

/// Bytes of the header in front of each frame.
const HEADER: usize = 12;
/// The ring on which it receives: behind that on which it would send.
const RECEIVES: u64 = 1;
/// Where the engine's words stand in a ring's block: its `hwcur`, and behind that its `hwtail`.
const ENGINE: u64 = size_of::<RingStatus>() as u64 / 2;

/// A program with one ring.
pub struct Program {
    region: Arc<Region>,
    bytes: SharedFile,
    head: u32,
    _lease: Lease<RingEgress>,
    _ingress: RingIngress,
}

impl Program {
    /// One behind `port`. Frames longer than a buffer take several slots.
    pub fn new(port: &Arc<Port>) -> Program {
        let geometry = Geometry { pipes: 0, ..Geometry::default() };
        let region = Arc::new(Region::new(&geometry, &port.name).unwrap());
        let file = File::from(region.file().try_clone_to_owned().unwrap());
        let bytes = SharedFile::map(&file, 0, file.metadata().unwrap().len()).unwrap();
        let (settings, accepts) = (Arc::<RingPortSettings>::default(), port.accepts());
        assert!(settings.set_header(HEADER as u32, port));
        // A program that takes over all could take over less.
        port.set_accepts(accepts);
        let RingPair { ingress, egress, .. } = RingPair::new(&region, 0, &settings, &port.overrun).unwrap();
        Program { region, bytes, head: 0, _lease: port.lend(0, egress), _ingress: ingress }
    }

    fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let byte = |n: usize| self.bytes.byte(at as usize + n).unwrap().load(Ordering::Acquire);
        (0..len).map(byte).collect()
    }

    fn word(&self, at: u64) -> u32 {
        u32::from_ne_bytes(self.read(at, 4).try_into().unwrap())
    }

    /// The frames that came since the last time, and what it is asked for.
    pub fn receive(&mut self) -> Vec<(Vec<u8>, Asked)> {
        let info = *self.region.info();
        let words = info.words + RECEIVES * size_of::<RingStatus>() as u64;
        let slots = info.ring_pool + RECEIVES * u64::from(info.ring_size) + size_of::<RingHead>() as u64;
        let tail = self.word(words + ENGINE + 4);
        let (mut frames, mut parts) = (Vec::new(), Vec::new());
        while self.head != tail {
            let at = slots + u64::from(self.head) * size_of::<Slot>() as u64;
            let slot = SlotWord(u64::from_ne_bytes(self.read(at, 8).try_into().unwrap()));
            let buffer = info.buf_pool + u64::from(slot.buf_idx()) * u64::from(info.buf_size);
            parts.extend(self.read(buffer, slot.len().into()));
            self.head = (self.head + 1) % info.rx_slots;
            if slot.flags() & NS_MOREFRAG == 0 {
                let (header, frame) = parts.split_first_chunk::<HEADER>().unwrap();
                frames.push((frame.to_vec(), Asked::read(header)));
                parts.clear();
            }
        }
        assert!(parts.is_empty(), "a part of a frame");
        for at in [words, words + 4] {
            for (n, byte) in self.head.to_ne_bytes().into_iter().enumerate() {
                self.bytes.byte(at as usize + n).unwrap().store(byte, Ordering::Release);
            }
        }
        frames
    }
}
