//! Receivers whose driver reads from a ring of virtio-net what the device wrote there (virtio 1.2 §5.1.6.4):
//! split and packed, with buffers that are merged and with such as hold any frame.

use std::sync::Arc;

use sidecore_abi::virtio::features;
use sidecore_driver::memory::{Memory, Page, View};
use sidecore_driver::queue::{Buf, Options, Parts, Queue as DriverQueue};
use sidecore_engine::core::Lease;
use sidecore_engine::device::virtio_net::EgressRing;
use sidecore_engine::mem::{GuestMap, RegionSpec, Signal};
use sidecore_engine::port::Port;
use sidecore_engine::virtq::{Position, Queue, RingConfig};

use super::plain::Asked;

/// Bytes of the header in front of each frame.
const HEADER: usize = 12;
const ENTRIES: u16 = 512;

/// What its driver negotiated.
#[derive(Clone, Copy)]
pub struct Format {
    pub packed: bool,
    pub merges: bool,
}

/// A guest with one receive ring.
pub struct Guest {
    format: Format,
    memory: Arc<Memory>,
    ring: DriverQueue,
    buffers: Vec<Buf>,
    _lease: Lease<EgressRing>,
}

impl Guest {
    /// One behind `port`.
    pub fn new(port: &Arc<Port>, format: Format) -> Guest {
        let Format { packed, merges } = format;
        let options = Options { entries: ENTRIES, packed, event_idx: false, in_order: false };
        let size = if merges { 1536 + HEADER } else { 16 * 1024 };
        let memory = Memory::new(usize::from(ENTRIES) * size + (1 << 20), Page::Small).unwrap();
        let parts = Parts::new(&memory, options).unwrap();
        let mut ring = DriverQueue::new(0, options, parts.clone()).unwrap();
        let first = memory.alloc(usize::from(ENTRIES) * size, 4096).unwrap();
        let buffer = |n| Buf { addr: memory.gpa(first + n * size), len: size as u32, write: true };
        let buffers: Vec<Buf> = (0..ENTRIES.into()).map(buffer).collect();
        buffers.iter().for_each(|buffer| _ = ring.add(&[*buffer]).unwrap());
        ring.publish();
        let bits = features::VERSION_1
            | if packed { features::RING_PACKED } else { 0 }
            | if merges { features::NET_MRG_RXBUF } else { 0 };
        let egress = EgressRing::new(Arc::clone(port), queue(&memory, &parts, packed, bits), bits);
        Guest { format, ring, buffers, _lease: port.lend(0, egress), memory }
    }

    /// The frames that came since the last time, and what is asked of the driver.
    pub fn receive(&mut self) -> Vec<(Vec<u8>, Asked)> {
        let mut used = Vec::new();
        self.ring.reap(usize::MAX, |id, len| used.push((id, len as usize))).unwrap();
        let read = |(id, len): &(u16, usize)| {
            let mut bytes = vec![0; *len];
            self.memory.read((self.buffers[usize::from(*id)].addr - self.memory.gpa(0)) as usize, &mut bytes);
            bytes
        };
        let mut written = used.iter().map(read);
        let mut frames = Vec::new();
        while let Some(first) = written.next() {
            let (header, frame) = first.split_first_chunk::<HEADER>().unwrap();
            let more = u16::from_le_bytes([header[10], header[11]]).checked_sub(1).unwrap();
            assert!(self.format.merges || more == 0, "a frame in several buffers");
            let rest: Vec<Vec<u8>> = written.by_ref().take(more.into()).collect();
            assert_eq!(rest.len(), usize::from(more), "a part of a frame");
            frames.push(([frame, &rest.concat()].concat(), Asked::read(header)));
        }
        for (id, _) in &used {
            assert_eq!(self.ring.add(&[self.buffers[usize::from(*id)]]), Some(*id));
        }
        self.ring.publish();
        frames
    }
}

/// The device's side of the ring.
fn queue(memory: &Arc<Memory>, parts: &Parts, packed: bool, bits: u64) -> Queue {
    let file = memory.fd().try_clone_to_owned().unwrap().into();
    let size = memory.size() as u64;
    let spec = RegionSpec { gpa: memory.gpa(0), size, user_addr: memory.user(0), offset: 0, file };
    let map = Arc::new(GuestMap::new(&[spec]).unwrap());
    let part = |view: &View| map.translate(memory.gpa(view.offset()), view.size() as u32, &mut 0).unwrap();
    let position = if packed { Position::Packed { avail: 0x8000, used: 0x8000 } } else { Position::Split(0) };
    Queue::new(RingConfig {
        size: ENTRIES,
        desc: part(&parts.desc),
        driver: part(&parts.avail),
        device: part(&parts.used),
        used_log: None,
        map: Arc::clone(&map),
        features: bits,
        position,
        notifier: Arc::new(Signal::default()),
        log: None,
        journal: None,
        region: None,
    })
    .unwrap()
}
