//! The device side of both ring formats against the driver side of `sidecore-driver`, honest and lying.

mod requests;

use std::sync::Arc;

use proptest::prelude::*;
use sidecore_abi::virtio::{features, split, DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE};
use sidecore_driver::memory::{Memory, Page};
use sidecore_driver::queue::{Buf, Options, Parts, Queue as DriverQueue, Table};
use sidecore_engine::mem::{GuestMap, Pieces, RegionSpec, Signal, BATCH_PIECES};
use sidecore_engine::util::fault::Fault;
use sidecore_engine::virtq::{Access, Position, Queue, RingConfig, WriteLog};

const SIZE: usize = 1 << 20;

/// A driver and a device on one ring.
struct Pair {
    memory: Arc<Memory>,
    parts: Parts,
    driver: DriverQueue,
    device: Queue,
    pieces: Pieces,
}

fn pair(options: Options) -> Pair {
    let memory = Memory::new(SIZE, Page::Small).unwrap();
    let parts = Parts::new(&memory, options).unwrap();
    let driver = DriverQueue::new(0, options, parts.clone()).unwrap();
    let device = device(&memory, &parts, options, start(options));
    Pair { memory, parts, driver, device, pieces: Pieces::new(BATCH_PIECES) }
}

fn start(options: Options) -> Position {
    if options.packed {
        Position::Packed { avail: 0x8000, used: 0x8000 }
    } else {
        Position::Split(0)
    }
}

fn device(memory: &Arc<Memory>, parts: &Parts, options: Options, position: Position) -> Queue {
    Queue::new(config(memory, parts, options, position)).unwrap()
}

fn config(memory: &Arc<Memory>, parts: &Parts, options: Options, position: Position) -> RingConfig {
    let file = memory.fd().try_clone_to_owned().unwrap().into();
    let spec =
        RegionSpec { gpa: memory.gpa(0), size: SIZE as u64, user_addr: memory.user(0), offset: 0, file };
    let map = Arc::new(GuestMap::new(&[spec]).unwrap());
    let part = |view: &sidecore_driver::memory::View| {
        map.translate(memory.gpa(view.offset()), view.size() as u32, &mut 0).unwrap()
    };
    let bits = |on: bool, bit: u64| if on { bit } else { 0 };
    RingConfig {
        size: options.entries,
        desc: part(&parts.desc),
        driver: part(&parts.avail),
        device: part(&parts.used),
        used_log: None,
        map: Arc::clone(&map),
        features: features::VERSION_1
            | features::INDIRECT_DESC
            | bits(options.packed, features::RING_PACKED)
            | bits(options.event_idx, features::EVENT_IDX)
            | bits(options.in_order, features::IN_ORDER),
        position,
        notifier: Arc::new(Signal::default()),
        log: None,
        journal: None,
        region: None,
    }
}

impl Pair {
    fn take(&mut self, access: Access, want: usize) -> Result<usize, Fault> {
        self.pieces.clear();
        self.device.take(access, want, &mut self.pieces)
    }
}

fn any_options() -> impl Strategy<Value = Options> {
    (0u32..7, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(log, packed, event_idx, in_order)| {
        Options { entries: 4 << log, packed, event_idx, in_order }
    })
}

/// Notes what is logged.
#[derive(Default)]
struct Log(std::sync::Mutex<Vec<(u64, u32)>>);

impl WriteLog for Log {
    fn wrote(&self, gpa: u64, len: u32) {
        self.0.lock().unwrap().push((gpa, len));
    }
}

/// A VMM may say of the used ring that its writes are to be logged anywhere, even where addresses end.
#[test]
fn the_log_address_of_a_used_ring_may_be_any() {
    for packed in [false, true] {
        for gpa in [u64::MAX, u64::MAX - 1, u64::MAX - 63, 0] {
            let options = Options { entries: 8, packed, event_idx: true, in_order: false };
            let mut pair = pair(options);
            let log = Arc::new(Log::default());
            let (memory, parts) = (Arc::clone(&pair.memory), pair.parts.clone());
            let with_log = |config: RingConfig| RingConfig {
                used_log: Some(gpa),
                log: Some(Arc::clone(&log) as Arc<dyn WriteLog>),
                ..config
            };
            pair.device = Queue::new(with_log(config(&memory, &parts, options, start(options)))).unwrap();
            let buffers = memory.alloc(4096, 64).unwrap();
            for i in 0..4 {
                let buf = Buf { addr: memory.gpa(buffers + 64 * i), len: 64, write: true };
                assert!(pair.driver.add(&[buf]).is_some());
            }
            pair.driver.publish();
            assert_eq!(pair.take(Access::Write, 4), Ok(4));
            pair.device.want_kicks(true);
            pair.device.complete(4, |_| 60);
            assert!(log.0.lock().unwrap().len() >= 4);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Chains of any shape come across whole, in order, with their bytes, and come back with their lengths,
    /// whatever the batch sizes on either side and however often the device stops half-way or starts anew.
    #[test]
    fn chains_cross_in_order(
        options in any_options(),
        shapes in prop::collection::vec((1usize..5, any::<bool>(), 1u32..200), 1..120),
        batches in prop::collection::vec((1usize..40, 0usize..40, any::<bool>()), 1..60),
    ) {
        let mut pair = pair(options);
        let buffers = pair.memory.alloc(64 * 1024, 64).unwrap();
        let tables: Vec<Table> = (0..options.entries).map(|_| Table::new(&pair.memory, 4).unwrap()).collect();
        let mut shapes = shapes.iter().cycle().enumerate();
        let mut offered = std::collections::VecDeque::new();
        let mut given_back = std::collections::VecDeque::new();
        let mut pending = shapes.next();
        for (want, use_up, restart) in batches {
            let published = offered.len() as u16;
            // The driver offers until the ring is full.
            while let Some((number, (count, indirect, len))) = pending {
                let bufs: Vec<Buf> = (0..*count)
                    .map(|i| {
                        let at = buffers + (number * 7 + i * 300) % 60_000;
                        Buf { addr: pair.memory.gpa(at), len: *len, write: false }
                    })
                    .collect();
                let needed = if *indirect { 1 } else { bufs.len() as u16 };
                if bufs.len() > usize::from(options.entries) || pair.driver.room() < needed {
                    if bufs.len() > usize::from(options.entries) {
                        pending = shapes.next();
                        continue;
                    }
                    break;
                }
                let id = if *indirect {
                    let table = &tables[usize::from(pair.driver.next_free(0))];
                    pair.driver.add_indirect(table, &bufs)
                } else {
                    pair.driver.add(&bufs)
                };
                let Some(id) = id else { break };
                offered.push_back((id, bufs));
                pending = shapes.next();
            }
            // What is only prepared does not count, though all of it but its first descriptor may be there to
            // see.
            let looks = want % 2 == 0;
            if looks {
                prop_assert_eq!(pair.device.room(), (published, options.entries));
            }
            pair.driver.publish();
            if restart {
                let position = pair.device.position();
                pair.device = device(&pair.memory, &pair.parts, options, position);
            }
            if looks {
                prop_assert_eq!(pair.device.room(), (offered.len() as u16, options.entries));
            }
            let taken = pair.take(Access::Read, want).unwrap();
            prop_assert!(taken == want.min(offered.len()) || (pair.device.was_cut() && taken > 0));
            for (chain, (_, bufs)) in pair.device.taken().iter().zip(&offered) {
                let pieces = pair.pieces.range(chain.start as usize, usize::from(chain.count));
                prop_assert_eq!(pieces.len(), bufs.len());
                prop_assert_eq!(chain.len, bufs.iter().map(|buf| buf.len).sum::<u32>());
            }
            // It uses some of them.
            let used = use_up.min(taken);
            pair.device.complete(used, |i| i as u32 + 1);
            for i in 0..used {
                let (id, _) = offered.pop_front().unwrap();
                given_back.push_back((id, i as u32 + 1));
            }
            let mut wrong = None;
            pair.driver.reap(usize::MAX, |id, len| {
                let expected = given_back.pop_front();
                if expected.is_none_or(|(e, l)| e != id || l != len) {
                    wrong = Some((expected, id, len));
                }
            }).unwrap();
            prop_assert_eq!(wrong, None);
            prop_assert!(given_back.is_empty());
        }
    }

    /// Whatever stands in the ring, the device names a fault or takes chains inside the memory.
    #[test]
    fn garbage_is_named(
        packed in any::<bool>(),
        words in prop::collection::vec(any::<u64>(), 64),
        idx in any::<u16>(),
        write in any::<bool>(),
    ) {
        let options = Options { entries: 16, packed, event_idx: false, in_order: false };
        let mut pair = pair(options);
        for (i, word) in words.iter().take(32).enumerate() {
            pair.memory.write(pair.parts.desc.offset() + 8 * i, &word.to_le_bytes());
        }
        if !packed {
            let heads: Vec<u8> = words[32..].iter().flat_map(|word| word.to_le_bytes()).take(32).collect();
            pair.memory.write(pair.parts.avail.offset() + split::AVAIL_RING, &heads);
            pair.memory.write(pair.parts.avail.offset() + split::AVAIL_IDX, &(idx % 32).to_le_bytes());
        }
        let access = if write { Access::Write } else { Access::Read };
        for _ in 0..3 {
            if let Ok(n) = pair.take(access, 256) {
                prop_assert!(n <= 16);
                for i in 0..n {
                    let chain = pair.device.taken()[i];
                    let pieces = pair.pieces.range(chain.start as usize, usize::from(chain.count));
                    let total: usize = pieces.iter().map(sidecore_engine::mem::Piece::len).sum();
                    prop_assert_eq!(total, chain.len as usize);
                    for piece in pieces {
                        // Readable to its last byte.
                        piece.read(&mut vec![0; piece.len()]);
                    }
                }
                pair.device.complete(n, |_| 0);
            }
        }
    }
}

/// A lie in a split ring: what is written where, and the fault that it must be called.
struct Lie {
    name: &'static str,
    /// Descriptor 0 and 1: address (relative to memory if below its size), length, flags, next.
    descs: [(u64, u32, u16, u16); 2],
    head: u16,
    idx: u16,
    fault: Fault,
}

#[test]
fn each_lie_has_its_name() {
    let far = 1u64 << 40;
    let w = DESC_F_WRITE;
    let lies = [
        Lie { name: "index", descs: [(0, 64, 0, 0); 2], head: 0, idx: 17, fault: Fault::IndexJump },
        Lie { name: "head", descs: [(0, 64, 0, 0); 2], head: 16, idx: 1, fault: Fault::DescriptorOutOfRange },
        Lie {
            name: "next",
            descs: [(0, 64, DESC_F_NEXT, 16), (0, 64, 0, 0)],
            head: 0,
            idx: 1,
            fault: Fault::DescriptorOutOfRange,
        },
        Lie {
            name: "loop",
            descs: [(0, 64, DESC_F_NEXT, 1), (0, 64, DESC_F_NEXT, 0)],
            head: 0,
            idx: 1,
            fault: Fault::ChainTooLong,
        },
        Lie {
            name: "address",
            descs: [(far, 64, 0, 0); 2],
            head: 0,
            idx: 1,
            fault: Fault::AddressOutOfRange,
        },
        Lie {
            name: "wraps",
            descs: [(u64::MAX - 8, 64, 0, 0); 2],
            head: 0,
            idx: 1,
            fault: Fault::AddressOutOfRange,
        },
        Lie {
            name: "beyond the end",
            descs: [(SIZE as u64 - 8, 64, 0, 0); 2],
            head: 0,
            idx: 1,
            fault: Fault::AddressOutOfRange,
        },
        Lie { name: "direction", descs: [(0, 64, w, 0); 2], head: 0, idx: 1, fault: Fault::WrongDirection },
        Lie {
            name: "empty indirect",
            descs: [(0, 0, DESC_F_INDIRECT, 0); 2],
            head: 0,
            idx: 1,
            fault: Fault::BadIndirect,
        },
        Lie {
            name: "odd indirect",
            descs: [(0, 24, DESC_F_INDIRECT, 0); 2],
            head: 0,
            idx: 1,
            fault: Fault::BadIndirect,
        },
        Lie {
            name: "huge indirect",
            descs: [(0, 16 * 4096, DESC_F_INDIRECT, 0); 2],
            head: 0,
            idx: 1,
            fault: Fault::BadIndirect,
        },
        Lie {
            name: "length overflow",
            descs: [(0, u32::MAX, DESC_F_NEXT, 1), (0, u32::MAX, 0, 0)],
            head: 0,
            idx: 1,
            fault: Fault::AddressOutOfRange,
        },
    ];
    for lie in lies {
        let mut pair = pair(Options { entries: 16, packed: false, event_idx: false, in_order: false });
        for (i, (addr, len, flags, next)) in lie.descs.iter().enumerate() {
            let addr = if *addr < SIZE as u64 { pair.memory.gpa(*addr as usize) } else { *addr };
            let mut bytes = addr.to_le_bytes().to_vec();
            bytes.extend(len.to_le_bytes());
            bytes.extend(flags.to_le_bytes());
            bytes.extend(next.to_le_bytes());
            pair.memory.write(pair.parts.desc.offset() + 16 * i, &bytes);
        }
        let avail = pair.parts.avail.offset();
        pair.memory.write(avail + split::AVAIL_RING, &lie.head.to_le_bytes());
        pair.memory.write(avail + split::AVAIL_IDX, &lie.idx.to_le_bytes());
        assert_eq!(pair.take(Access::Read, 256), Err(lie.fault), "{}", lie.name);
    }
}

/// A good chain before a bad one is still served; then the ring stays stopped.
#[test]
fn good_chains_before_a_bad_one_are_served() {
    for packed in [false, true] {
        let mut pair = pair(Options { entries: 16, packed, event_idx: false, in_order: false });
        let good = Buf { addr: pair.memory.gpa(0x8000), len: 64, write: false };
        pair.driver.add(&[good]).unwrap();
        pair.driver.add(&[Buf { addr: 1 << 40, ..good }]).unwrap();
        pair.driver.publish();
        assert_eq!(pair.take(Access::Read, 256), Ok(1));
        pair.device.complete(1, |_| 0);
        assert_eq!(pair.take(Access::Read, 256), Err(Fault::AddressOutOfRange));
        assert_eq!(pair.take(Access::Read, 256), Err(Fault::AddressOutOfRange));
    }
}

/// A receive buffer of no length takes nothing, and the buffer behind it is not taken in its place.
#[test]
fn an_empty_receive_buffer_takes_no_frame() {
    use sidecore_engine::device::virtio_net::EgressRing;
    use sidecore_engine::observe::CounterFile;
    use sidecore_engine::packet::Batch;
    use sidecore_engine::port::{EgressQueue, Outcome, Port, PortId};
    for packed in [false, true] {
        let mut pair = pair(Options { entries: 16, packed, event_idx: false, in_order: false });
        let whole = Buf { addr: pair.memory.gpa(0x8000), len: 1600, write: true };
        pair.driver.add(&[Buf { len: 0, ..whole }]).unwrap();
        pair.driver.add(&[whole]).unwrap();
        pair.driver.publish();
        let counters = CounterFile::anonymous().unwrap().open_slot(PortId(0), "p");
        let port = Arc::new(Port::new(PortId(0), "p", counters, 1500).unwrap());
        let mut ring = EgressRing::new(port, pair.device, features::VERSION_1);
        let mut batch = Batch::new();
        assert!(batch.push_short(&[0x5a; 60]) && batch.push_short(&[0x5a; 60]));
        let mut outcome = Outcome::new();
        ring.send(&batch, &[0, 1], &mut outcome);
        assert_eq!((outcome.frames, outcome.drops.counts.iter().sum::<u32>()), (0, 2), "packed: {packed}");
        let mut bytes = [1; 76];
        pair.memory.read(0x8000, &mut bytes);
        assert_eq!(bytes, [0; 76]);
    }
}
