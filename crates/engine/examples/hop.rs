//! One hop through the learning switch, without a VMM or a socket: two ports whose rings are driven by
//! this thread, one I/O core between them. For profiling the hot path; the numbers that count are those
//! of `sidecore bench pvp`.
//!
//! `cargo run --release -p sidecore-engine --example hop -- [FRAME_BYTES] [SECONDS] [split|packed]
//! [IDLE_PORTS]`

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use sidecore_abi::virtio::features;
use sidecore_driver::memory::{Memory, Page};
use sidecore_driver::queue::{Buf, Options, Parts, Queue as DriverQueue};
use sidecore_engine::core::Lease;
use sidecore_engine::core::Tuning;
use sidecore_engine::device::virtio_net::{EgressRing, IngressRing};
use sidecore_engine::graph::{Attach, CoreOptions, Graph, Scheduler, Topology};
use sidecore_engine::mem::{GuestMap, RegionSpec, Signal};
use sidecore_engine::observe::CounterFile;
use sidecore_engine::port::{Port, PortId, DEFAULT_MTU};
use sidecore_engine::switch::{Switch, SwitchOptions};
use sidecore_engine::virtq::{Position, Queue, RingConfig};

const ENTRIES: u16 = 1024;
const BURST: usize = 64;
const MEMORY: usize = 8 << 20;

struct Side {
    _leases: (Lease<EgressRing>, Lease<IngressRing>),
    tx: DriverQueue,
    rx: DriverQueue,
    tx_buf: Vec<Buf>,
    rx_buf: Vec<Buf>,
    memory: Arc<Memory>,
    received: u64,
}

fn ring(memory: &Arc<Memory>, map: &Arc<GuestMap>, parts: &Parts, options: Options, bits: u64) -> Queue {
    let part = |view: &sidecore_driver::memory::View| {
        map.translate(memory.gpa(view.offset()), view.size() as u32, &mut 0).unwrap()
    };
    let position =
        if options.packed { Position::Packed { avail: 0x8000, used: 0x8000 } } else { Position::Split(0) };
    Queue::new(RingConfig {
        size: ENTRIES,
        desc: part(&parts.desc),
        driver: part(&parts.avail),
        device: part(&parts.used),
        used_log: None,
        map: Arc::clone(map),
        features: bits,
        position,
        notifier: Arc::new(Signal::default()),
        log: None,
        journal: None,
        region: None,
    })
    .unwrap()
}

fn side(port: &Arc<Port>, cores: &Arc<Graph>, options: Options, frame: &[u8]) -> Side {
    let memory = Memory::new(MEMORY, Page::Small).unwrap();
    let file = memory.fd().try_clone_to_owned().unwrap().into();
    let spec =
        RegionSpec { gpa: memory.gpa(0), size: MEMORY as u64, user_addr: memory.user(0), offset: 0, file };
    let map = Arc::new(GuestMap::new(&[spec]).unwrap());
    let bits = features::VERSION_1
        | features::NET_MRG_RXBUF
        | if options.packed { features::RING_PACKED } else { 0 }
        | if options.in_order { features::IN_ORDER } else { 0 };
    let (tx_parts, rx_parts) = (Parts::new(&memory, options).unwrap(), Parts::new(&memory, options).unwrap());
    let tx = DriverQueue::new(1, options, tx_parts.clone()).unwrap();
    let mut rx = DriverQueue::new(0, options, rx_parts.clone()).unwrap();
    let stride = 2048;
    let buffers = memory.alloc(usize::from(ENTRIES) * stride * 2, 4096).unwrap();
    let buf =
        |i: usize, len: usize, write| Buf { addr: memory.gpa(buffers + i * stride), len: len as u32, write };
    let n = usize::from(ENTRIES);
    let tx_buf: Vec<Buf> = (0..n).map(|i| buf(i, 12 + frame.len(), false)).collect();
    let rx_buf: Vec<Buf> = (0..n).map(|i| buf(n + i, 1536 + 12, true)).collect();
    for i in 0..n {
        memory.write(buffers + i * stride, &[0; 12]);
        memory.write(buffers + i * stride + 12, frame);
    }
    for buf in &rx_buf {
        rx.add(&[*buf]).unwrap();
    }
    rx.publish();
    let egress = EgressRing::new(Arc::clone(port), ring(&memory, &map, &rx_parts, options, bits), bits);
    let receive = port.lend(0, egress);
    let ingress =
        IngressRing::new(Arc::clone(port), ring(&memory, &map, &tx_parts, options, bits), None, bits);
    let scheduler = Arc::clone(cores) as Arc<dyn Scheduler>;
    let send = scheduler.serve(port, 0, ingress);
    Side { tx, rx, tx_buf, rx_buf, memory, received: 0, _leases: (receive, send) }
}

impl Side {
    fn step(&mut self) {
        let rx_buf = &self.rx_buf;
        let mut ids = [0u16; 256];
        let mut n = 0;
        let mut sink = 0u8;
        let memory = &self.memory;
        self.rx
            .reap(256, |id, _| {
                let mut first = [0; 16];
                let at = (rx_buf[usize::from(id)].addr - memory.gpa(0)) as usize;
                memory.read(at + 12, &mut first);
                sink ^= first[0];
                ids[n] = id;
                n += 1;
            })
            .unwrap();
        std::hint::black_box(sink);
        for id in &ids[..n] {
            self.rx.add(&[rx_buf[usize::from(*id)]]);
        }
        if n > 0 {
            self.rx.publish();
            self.received += n as u64;
        }
        self.tx.reap(usize::MAX, |_, _| {}).unwrap();
        let room = usize::from(self.tx.room());
        if room >= usize::from(ENTRIES) / 2 {
            for _ in 0..BURST.min(room) {
                let id = self.tx.next_free(0);
                self.tx.add(&[self.tx_buf[usize::from(id)]]);
            }
            self.tx.publish();
        }
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let bytes: usize = args.next().map_or(64, |arg| arg.parse().unwrap());
    let seconds: f64 = args.next().map_or(1.0, |arg| arg.parse().unwrap());
    let packed = args.next().is_some_and(|arg| arg == "packed");
    let idle: u16 = args.next().map_or(0, |arg| arg.parse().unwrap());
    let options =
        Options { entries: ENTRIES, packed, event_idx: false, in_order: std::env::var("IN_ORDER").is_ok() };
    let counters = CounterFile::anonymous().unwrap();
    let cores = Graph::start(&CoreOptions {
        cpus: vec![1],
        tuning: Tuning { spin: Duration::from_secs(60), ..Tuning::default() },
        ..CoreOptions::default()
    })
    .unwrap();
    let switch = Arc::new(Switch::new("lan", SwitchOptions::default()));
    let ports: Vec<_> = (0..2 + idle)
        .map(|i| {
            let name = format!("p{i}");
            let slot = counters.open_slot(PortId(i), &name);
            Arc::new(Port::new(PortId(i), &name, slot, DEFAULT_MTU).unwrap())
        })
        .collect();
    let all: Vec<_> =
        ports.iter().map(|port| (Arc::clone(port), Attach::Switch(Arc::clone(&switch)))).collect();
    cores.publish(&Arc::new(Topology::new(&all)));
    let mac = |n: u16| [2, 0, 0, 0, 0, n as u8];
    let mut sides: Vec<Side> = ports
        .iter()
        .enumerate()
        .map(|(i, port)| {
            let i = i as u16;
            let mut frame = vec![0u8; bytes - 4];
            frame[..6].copy_from_slice(&mac(if i < 2 { 1 - i } else { i }));
            frame[6..12].copy_from_slice(&mac(i));
            frame[12..14].copy_from_slice(&[0x88, 0xb5]);
            side(port, &cores, options, &frame)
        })
        .collect();
    sidecore_engine::util::place::pin(0).unwrap();
    let mut run = |time: Duration| {
        let start = Instant::now();
        let before: u64 = sides.iter().map(|side| side.received).sum();
        while start.elapsed() < time {
            for _ in 0..64 {
                sides[0].step();
                sides[1].step();
            }
        }
        (sides.iter().map(|side| side.received).sum::<u64>() - before) as f64 / start.elapsed().as_secs_f64()
    };
    run(Duration::from_millis(200));
    let before = cores.status().remove(0);
    let rate = run(Duration::from_secs_f64(seconds));
    let after = cores.status().remove(0);
    let busy = (after.busy_ns - before.busy_ns) as f64;
    let idle = (after.idle_ns - before.idle_ns + after.sleep_ns - before.sleep_ns) as f64;
    let frames = (after.frames - before.frames) as f64;
    let rounds = (after.busy_rounds - before.busy_rounds) as f64;
    println!(
        "{bytes} B: {:.2} Mpps, I/O core busy {:.0} %, {:.1} ns a frame, {:.0} frames a round",
        rate / 1e6,
        100.0 * busy / (busy + idle),
        busy / frames,
        frames / rounds
    );
    for port in &ports[..2] {
        let totals = port.counters.totals();
        println!(
            "{}: in {} out {} drops {:?}",
            port.name,
            totals.in_frames,
            totals.out_frames,
            totals.named_drops().collect::<Vec<_>>()
        );
    }
}
