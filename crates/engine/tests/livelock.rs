//! A receiver that makes no progress: what comes for it is dropped before a byte of it is touched. One that
//! is only slower than its sender at the other end of a wire: it gets everything, and the waits for it are
//! counted.
//!
//! The proof of the first is in the sender's memory: the bodies of its frames lie in a file that is cut short
//! once the receiver's ring is full. A core that then reads a body, to copy it or to work out a checksum,
//! marks the map.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use sidecore_abi::virtio::features as f;
use sidecore_driver::net::NetDriver;
use sidecore_driver::session::{Config, Want};
use sidecore_driver::{e1000, Frontend};
use sidecore_engine::core::Lease;
use sidecore_engine::device::e1000::{E1000Config, Model, E1000};
use sidecore_engine::device::virtio_net::{NetConfig, VirtioNet};
use sidecore_engine::graph::{Attach, CoreOptions, Graph, Scheduler, Topology};
use sidecore_engine::mem::{GuestMap, RegionSpec};
use sidecore_engine::observe::CounterFile;
use sidecore_engine::packet::{Batch, Gso, Mac, Offload};
use sidecore_engine::port::{
    Attachment, DropReason, IngressQueue, Port, PortId, Tally, WaitCount, DEFAULT_MTU,
};
use sidecore_engine::transport::vfio_user::{self, VfioUser};
use sidecore_engine::transport::vhost_user::{Endpoint, VhostUser, VhostUserConfig};

const LIMIT: Duration = Duration::from_secs(20);
/// Entries of the receivers' rings.
const RING: u16 = 64;
/// Bytes of memory that hold the frames' bodies.
const BODIES: u64 = 0x1_0000;
const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

/// A queue that sends as many frames as it is told to.
struct Source {
    orders: Arc<AtomicU64>,
    bodies: Arc<GuestMap>,
    large: bool,
}

/// A TCP packet of `len` bytes, to be cut into segments or with a checksum to be made.
fn describe(large: bool) -> ([u8; 64], u32, Offload) {
    let len: u32 = if large { 5_000 } else { 1_000 };
    let mut head = [0; 64];
    head[..6].copy_from_slice(&MAC.0);
    head[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    head[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6]);
    head[16..18].copy_from_slice(&(len as u16 - 14).to_be_bytes());
    head[46] = 0x50;
    let offload = Offload {
        flags: Offload::NEEDS_CSUM,
        gso: if large { Gso::Tcp4 } else { Gso::None },
        ecn: false,
        hdr_len: 54,
        gso_size: if large { 1_000 } else { 0 },
        csum_start: 34,
        csum_offset: 16,
    };
    (head, len, if large { offload } else { Offload::NONE })
}

impl IngressQueue for Source {
    fn fetch(&mut self, batch: &mut Batch, tally: &mut Tally) {
        let (head, len, offload) = describe(self.large);
        while batch.room() > 0 && self.orders.load(Ordering::Acquire) > 0 {
            self.orders.fetch_sub(1, Ordering::AcqRel);
            let (frame, pieces) = batch.next_frame().unwrap();
            (frame.head, frame.len, frame.offload) = (head, len, offload);
            (frame.piece, frame.pieces) = (pieces.len() as u32, 1);
            assert!(pieces.push(self.bodies.translate(0, len - 64, &mut 0).unwrap()));
            batch.commit();
            tally.frames += 1;
            tally.bytes += u64::from(len);
        }
    }

    fn release(&mut self, _: &mut Tally) {}

    fn want_kicks(&mut self, _: bool) -> bool {
        self.orders.load(Ordering::Acquire) > 0
    }

    fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn longest_sleep(&self) -> Option<Duration> {
        Some(Duration::from_millis(1))
    }
}

/// A receiver at the other end of a socket that takes a frame only when it is told to.
enum Receiver {
    E1000(Box<e1000::E1000>),
    Virtio(Box<NetDriver>),
}

impl Receiver {
    /// Takes a few frames; how many.
    fn take_some(&mut self) -> usize {
        match self {
            Receiver::E1000(driver) => driver.receive(5, |_| {}).unwrap(),
            Receiver::Virtio(driver) => driver.receive_up_to(0, 5, |_, _| {}).unwrap(),
        }
    }
}

struct Rig {
    dir: PathBuf,
    cores: Arc<Graph>,
    source: Arc<Port>,
    sink: Arc<Port>,
    wire: Arc<Topology>,
    _counters: CounterFile,
}

impl Rig {
    fn new(name: &str) -> Rig {
        Rig::with(name, &CoreOptions::default())
    }

    /// One whose senders wait for as long as it takes.
    fn patient(name: &str) -> Rig {
        Rig::with(name, &CoreOptions { patience: LIMIT * 10, ..CoreOptions::default() })
    }

    fn with(name: &str, options: &CoreOptions) -> Rig {
        let dir = std::env::temp_dir().join(format!("sidecore-livelock-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let counters = CounterFile::anonymous().unwrap();
        let port = |id, name| {
            Arc::new(Port::new(PortId(id), name, counters.open_slot(PortId(id), name), DEFAULT_MTU).unwrap())
        };
        let (source, sink) = (port(0, "source"), port(1, "sink"));
        let cores = Graph::start(options).unwrap();
        let wire =
            [(Arc::clone(&source), Attach::Wire(sink.id)), (Arc::clone(&sink), Attach::Wire(source.id))];
        let wire = Arc::new(Topology::new(&wire));
        cores.publish(&wire);
        Rig { dir, cores, source, sink, wire, _counters: counters }
    }

    fn path(&self) -> PathBuf {
        self.dir.join("sink")
    }

    /// Frames that the sink's ring had no place for.
    fn ring_full(&self) -> u64 {
        self.sink.counters.totals().drops[DropReason::RingFull as usize]
    }

    /// Waits for the sink's buffers.
    fn waits(&self) -> WaitCount {
        self.source.waits.of(0)
    }

    /// Has a queue served that sends what it is ordered to, once the sink has a peer. With the file and the
    /// map of the frames' bodies.
    fn serve(&self, orders: &Arc<AtomicU64>, large: bool) -> (Lease<Source>, std::fs::File, Arc<GuestMap>) {
        let file: std::fs::File = memfd_create(c"bodies", MemfdFlags::CLOEXEC).unwrap().into();
        ftruncate(&file, BODIES).unwrap();
        let spec =
            RegionSpec { gpa: 0, size: BODIES, user_addr: 0, offset: 0, file: file.try_clone().unwrap() };
        let bodies = Arc::new(GuestMap::new(&[spec]).unwrap());
        self.until("the sink has a peer", || self.sink.link());
        let source = Source { orders: Arc::clone(orders), bodies: Arc::clone(&bodies), large };
        let cores = Arc::clone(&self.cores) as Arc<dyn Scheduler>;
        (cores.serve(&self.source, 0, source), file, bodies)
    }

    fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let end = Instant::now() + LIMIT;
        while !done() {
            assert!(
                Instant::now() < end,
                "{}: {what}: {:?} {:?}",
                self.dir.display(),
                self.waits(),
                self.sink.counters.totals()
            );
            std::thread::yield_now();
        }
    }

    /// Whether the core takes frames but took none in one whole round: a message is answered between two.
    fn source_waits(&self) -> bool {
        let before = self.source.counters.totals().in_frames;
        self.cores.publish(&self.wire);
        self.cores.publish(&self.wire);
        before > 0 && self.source.counters.totals().in_frames == before
    }

    /// Sends 3,000 frames as fast as it can to a `sink` that takes a few at a time.
    fn run_slowly(self, mut sink: Receiver, large: bool) {
        let (lease, ..) = self.serve(&Arc::new(AtomicU64::new(3_000)), large);
        self.until("the sender waits", || self.source_waits());
        // A large frame is cut into five.
        let all = if large { 15_000 } else { 3_000 };
        let mut got = 0;
        self.until("all were received", || {
            got += sink.take_some();
            got == all
        });
        assert_eq!(self.ring_full(), 0);
        lease.take_back().unwrap();
        let waits = self.waits();
        assert!(waits.count > 0 && waits.total_us > 0 && waits.given_up == 0, "{waits:?}");
    }

    /// Sends less than the sink has buffers for.
    fn run_with_room(self) {
        let few = u64::from(RING / 4);
        let (lease, ..) = self.serve(&Arc::new(AtomicU64::new(few)), false);
        self.until("all were delivered", || self.sink.counters.totals().out_frames == few);
        lease.take_back().unwrap();
        assert_eq!(self.waits(), WaitCount::default());
    }

    /// Sends frames to a sink that has its buffers and never takes one back.
    fn run(self, large: bool) {
        let orders = Arc::new(AtomicU64::new(0));
        let (lease, file, bodies) = self.serve(&orders, large);
        // Until the ring is full.
        while self.ring_full() == 0 {
            let sent = self.source.counters.totals().in_frames;
            orders.store(8, Ordering::Release);
            // Counted when they have been delivered or dropped.
            self.until("frames were dealt with", || self.source.counters.totals().in_frames == sent + 8);
        }
        let dropped = self.ring_full();
        let before = self.sink.counters.totals();
        assert!(before.out_frames > 0 && before.out_frames <= u64::from(RING) * 4, "{before:?}");
        ftruncate(&file, 0).unwrap();
        orders.store(10_000, Ordering::Release);
        self.until("all is dropped", || self.ring_full() >= dropped + 10_000);
        let after = self.sink.counters.totals();
        assert_eq!(after.out_bytes, before.out_bytes, "bytes were copied for a ring that is full");
        assert_eq!(after.made, before.made, "segments were made for a ring that is full");
        assert_eq!(self.ring_full(), dropped + 10_000);
        let waits = self.waits();
        assert!(waits.count >= 1 && waits.given_up == 1, "{waits:?}");
        assert!(!bodies.is_truncated(), "the bodies of frames that were dropped were read");
        assert!(self.sink.fault.get().is_none());
        lease.take_back().unwrap();
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn e1000(rig: &Rig, model: Model) -> (Box<dyn Attachment>, Receiver) {
    let scheduler = Arc::clone(&rig.cores) as Arc<dyn Scheduler>;
    let device = E1000::new(E1000Config::new(model, MAC), Arc::clone(&rig.sink), scheduler).unwrap();
    let endpoint = vfio_user::Endpoint::Listen { path: rig.path(), mode: None, owner: (None, None) };
    let attachment = VfioUser::start(endpoint, Arc::clone(&rig.sink), Box::new(device), None).unwrap();
    let config = e1000::Config { ring: RING, ..e1000::Config::default() };
    let driver = e1000::E1000::open(&rig.path(), &config).unwrap();
    (Box::new(attachment), Receiver::E1000(Box::new(driver)))
}

fn virtio(rig: &Rig, features: u64) -> (Box<dyn Attachment>, Receiver) {
    let net = NetConfig { queue_pairs: 1, ..NetConfig::default() };
    let scheduler = Arc::clone(&rig.cores) as Arc<dyn Scheduler>;
    let device = VirtioNet::new(&net, Arc::clone(&rig.sink), scheduler).unwrap();
    let endpoint = Endpoint::Listen { path: rig.path(), mode: None, owner: (None, None) };
    let attachment = VhostUser::start(VhostUserConfig { endpoint, journal: None }, device).unwrap();
    let config = Config { want: Want::default().and(features), entries: RING, ..Config::default() };
    let driver = NetDriver::start(connect(&rig.path()), config).unwrap();
    (Box::new(attachment), Receiver::Virtio(Box::new(driver)))
}

fn connect(path: &Path) -> Frontend {
    Frontend::connect(path, LIMIT).unwrap()
}

#[test]
fn a_stalled_e1000_costs_no_copy() {
    for (name, model) in [("e1000", Model::E1000), ("e1000e", Model::E1000e)] {
        for large in [false, true] {
            let rig = Rig::new(&format!("{name}-{large}"));
            let _sink = e1000(&rig, model);
            rig.run(large);
        }
    }
}

#[test]
fn a_stalled_virtio_net_costs_no_copy() {
    for (name, features) in [("split", 0), ("packed", f::RING_PACKED), ("mergeable", f::NET_MRG_RXBUF)] {
        for large in [false, true] {
            let rig = Rig::new(&format!("{name}-{large}"));
            let _sink = virtio(&rig, features);
            rig.run(large);
        }
    }
}

#[test]
fn a_slow_e1000_at_the_end_of_a_wire_loses_nothing() {
    for (name, model) in [("slow-e1000", Model::E1000), ("slow-e1000e", Model::E1000e)] {
        for large in [false, true] {
            let rig = Rig::patient(&format!("{name}-{large}"));
            let (_attachment, sink) = e1000(&rig, model);
            rig.run_slowly(sink, large);
        }
    }
}

#[test]
fn a_slow_virtio_net_at_the_end_of_a_wire_loses_nothing() {
    for (name, features) in [("split", 0), ("packed", f::RING_PACKED), ("mergeable", f::NET_MRG_RXBUF)] {
        for large in [false, true] {
            let rig = Rig::patient(&format!("slow-{name}-{large}"));
            let (_attachment, sink) = virtio(&rig, features);
            rig.run_slowly(sink, large);
        }
    }
}

#[test]
fn nobody_waits_for_a_receiver_with_room() {
    let rig = Rig::patient("room-e1000");
    let _sink = e1000(&rig, Model::E1000);
    rig.run_with_room();
    let rig = Rig::patient("room-virtio");
    let _sink = virtio(&rig, 0);
    rig.run_with_room();
}
