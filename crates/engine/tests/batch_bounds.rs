//! A batch is bounded by what its frames cost, and what it leaves behind comes later: none lost, none twice,
//! in order.

use std::sync::Arc;

use proptest::prelude::*;
use sidecore_abi::virtio::features;
use sidecore_driver::memory::{Memory, Page};
use sidecore_driver::queue::{Buf, Options, Parts, Queue as DriverQueue};
use sidecore_engine::device::virtio_net::IngressRing;
use sidecore_engine::mem::{GuestMap, RegionSpec, Signal};
use sidecore_engine::observe::CounterFile;
use sidecore_engine::packet::{Batch, BATCH_COST, MAX_BATCH, SEGMENT_COST};
use sidecore_engine::port::{IngressQueue, Port, PortId, Tally, DEFAULT_MTU};
use sidecore_engine::virtq::{Position, Queue, RingConfig};

const SIZE: usize = 1 << 20;
const HEADER: usize = 12;
/// Header, and the bytes of a frame that differ; all frames share the rest.
const SLOT: usize = 128;
const LONGEST: usize = 65_549;

/// A frame to be sent: bytes, and bytes of its segments, if it is one to be cut.
#[derive(Clone, Copy, Debug)]
struct Wish {
    len: usize,
    cut: Option<u16>,
}

struct Rig {
    memory: Arc<Memory>,
    driver: DriverQueue,
    ring: IngressRing,
    slots: usize,
    rest: usize,
}

impl Rig {
    fn new(options: Options) -> Rig {
        let memory = Memory::new(SIZE, Page::Small).unwrap();
        let parts = Parts::new(&memory, options).unwrap();
        let driver = DriverQueue::new(0, options, parts.clone()).unwrap();
        let file = memory.fd().try_clone_to_owned().unwrap().into();
        let spec =
            RegionSpec { gpa: memory.gpa(0), size: SIZE as u64, user_addr: memory.user(0), offset: 0, file };
        let map = Arc::new(GuestMap::new(&[spec]).unwrap());
        let part = |view: &sidecore_driver::memory::View| {
            map.translate(memory.gpa(view.offset()), view.size() as u32, &mut 0).unwrap()
        };
        let packed = if options.packed { features::RING_PACKED } else { 0 };
        let bits = features::VERSION_1 | features::NET_CSUM | features::NET_HOST_TSO4 | packed;
        let position = if options.packed {
            Position::Packed { avail: 0x8000, used: 0x8000 }
        } else {
            Position::Split(0)
        };
        let queue = Queue::new(RingConfig {
            size: options.entries,
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
        .unwrap();
        let counters = CounterFile::anonymous().unwrap().open_slot(PortId(0), "a");
        let port = Arc::new(Port::new(PortId(0), "a", counters, DEFAULT_MTU).unwrap());
        let ring = IngressRing::new(port, queue, None, bits);
        let slots = memory.alloc(usize::from(options.entries) * SLOT, 64).unwrap();
        let rest = memory.alloc(LONGEST, 64).unwrap();
        Rig { memory, driver, ring, slots, rest }
    }

    /// Offers frame `number`; false if there is no room.
    fn offer(&mut self, number: u32, wish: Wish) -> bool {
        if self.driver.room() < 2 {
            return false;
        }
        let mut bytes = [0; SLOT];
        let frame = &mut bytes[HEADER..];
        frame[..4].copy_from_slice(&number.to_le_bytes());
        if let Some(size) = wish.cut {
            // IPv4 and TCP without options.
            frame[12..14].copy_from_slice(&[8, 0]);
            frame[14] = 0x45;
            frame[16..18].copy_from_slice(&((wish.len - 14) as u16).to_be_bytes());
            frame[23] = 6;
            frame[46] = 0x50;
            bytes[0] = 1;
            bytes[1] = 1;
            bytes[2..4].copy_from_slice(&54u16.to_le_bytes());
            bytes[4..6].copy_from_slice(&size.to_le_bytes());
            bytes[6..8].copy_from_slice(&34u16.to_le_bytes());
            bytes[8..10].copy_from_slice(&16u16.to_le_bytes());
        }
        let slot = self.slots + usize::from(self.driver.next_free(0)) * SLOT;
        let near = (HEADER + wish.len).min(SLOT);
        self.memory.write(slot, &bytes[..near]);
        let buf = |at, len: usize| Buf { addr: self.memory.gpa(at), len: len as u32, write: false };
        let far = HEADER + wish.len - near;
        let chain = [buf(slot, near), buf(self.rest, far)];
        let chain = if far == 0 { &chain[..1] } else { &chain[..] };
        self.driver.add(chain).is_some()
    }
}

fn any_wish() -> impl Strategy<Value = Wish> {
    prop_oneof![
        3 => (60usize..1515).prop_map(|len| Wish { len, cut: None }),
        2 => (1515usize..LONGEST).prop_map(|len| Wish { len, cut: None }),
        // Segments by the thousand, and as they usually are.
        2 => (30_000usize..65_500, 64u16..100).prop_map(|(len, size)| Wish { len, cut: Some(size) }),
        2 => (3_000usize..65_500).prop_map(|len| Wish { len, cut: Some(1448) }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn what_a_batch_leaves_behind_comes_later(
        log in 4u32..9,
        packed in any::<bool>(),
        wishes in prop::collection::vec(any_wish(), 1..400),
    ) {
        let options = Options { entries: 1 << log, packed, event_idx: true, in_order: false };
        let mut rig = Rig::new(options);
        let mut batch = Batch::new();
        let mut offered = 0;
        let mut came = 0;
        let mut reaped = 0;
        while came < wishes.len() {
            while offered < wishes.len() && rig.offer(offered as u32, wishes[offered]) {
                offered += 1;
            }
            rig.driver.publish();
            let mut tally = Tally::default();
            batch.clear();
            rig.ring.fetch(&mut batch, &mut tally);
            prop_assert!(!batch.is_empty() && !tally.drops.any());
            prop_assert_eq!(tally.frames, batch.len() as u64);
            let mut cost = 0;
            let mut last = 0;
            for frame in batch.frames() {
                prop_assert!(cost < BATCH_COST, "it should have ended before");
                let wish = wishes[came];
                prop_assert_eq!(&frame.head[..4], &(came as u32).to_le_bytes());
                prop_assert_eq!(frame.len as usize, wish.len);
                let body: usize = batch.body(frame).iter().map(|piece| piece.len()).sum();
                prop_assert_eq!(frame.head_len() + body, wish.len);
                let segments = wish.cut.map_or(0, |size| (wish.len as u32).div_ceil(size.into()));
                last = frame.len + segments * SEGMENT_COST;
                cost += last;
                came += 1;
            }
            prop_assert!(cost < BATCH_COST + last);
            rig.ring.release(&mut tally);
            reaped += rig.driver.reap(usize::MAX, |_, _| ()).unwrap();
            prop_assert_eq!(reaped, came);
        }
    }
}

/// What 256 frames may be, and never more than this of the largest.
#[test]
fn plain_frames_fill_a_batch_and_large_ones_do_not() {
    let options = Options { entries: 1024, packed: false, event_idx: true, in_order: false };
    for (len, cut, most) in
        [(1514, None, MAX_BATCH), (LONGEST, None, 12), (65_000, Some(1448), 9), (65_500, Some(64), 2)]
    {
        let mut rig = Rig::new(options);
        (0..MAX_BATCH).for_each(|i| assert!(rig.offer(i as u32, Wish { len, cut })));
        rig.driver.publish();
        let (mut batch, mut frames) = (Batch::new(), 0);
        while frames < MAX_BATCH {
            let mut tally = Tally::default();
            batch.clear();
            rig.ring.fetch(&mut batch, &mut tally);
            assert!((1..=most).contains(&batch.len()), "{} of {len}", batch.len());
            assert!(batch.len() == most || frames + batch.len() == MAX_BATCH || frames > 0);
            frames += batch.len();
            rig.ring.release(&mut tally);
        }
    }
}
