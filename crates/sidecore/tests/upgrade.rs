//! One daemon takes another one's place under traffic: emulated cards, packed virtio-net, ptnet, a ring port,
//! and two disks in files.
//!
//! `SIDECORE_BEFORE=/usr/bin/sidecore cargo test -p sidecore --test all upgrade`: that program is the first
//! one, and this one its successor. Without it this program is both.

use std::time::Instant;

use rustix::process::Signal;
use serde_json::Value;
use sidecore_abi::virtio::features::RING_PACKED;
use sidecore_driver::blk::Woken;
use sidecore_driver::e1000::{self, E1000};
use sidecore_driver::frontend::protocol;
use sidecore_driver::net::NetDriver;
use sidecore_driver::ptnet::{self, Ptnet};
use sidecore_driver::rtl8169::{self, Rtl8169};
use sidecore_driver::session::{Config, Want};
use sidecore_driver::{Disk, DiskOptions, Frontend};
use sidecore_port::Port;

use crate::rig::{Daemon, Testbed, LIMIT};
use crate::work::{content, Work, BLOCK};

/// Entries of each ring, and so the most frames that a kill may lose or repeat in one direction.
const RING: u16 = 128;
/// Frames of one direction that are under way: with those that a kill may have lost, no more than a ring has
/// room for.
const WINDOW: u64 = 32;
const BLOCKS: u64 = 128;
/// Frames in each direction, and answers of each disk, before a kill and after it.
const ENOUGH: u64 = 500;
/// Registers that keep what is written, and do nothing then: one of the Intel cards, and one of the Realtek
/// card.
const LEDCTL: u64 = 0xe00;
const THPDS: u64 = 0x28;
const NOTED: u32 = 0x0102_0304;

const PORTS: [(&str, &str, &str); 8] = [
    ("intel", "e1000e", ",wire=cards"),
    ("realtek", "rtl8169", ",wire=cards"),
    ("packed", "vhost-user", ",wire=rings"),
    ("ptnet", "ptnet", ",wire=rings"),
    ("old", "e1000", ",wire=program"),
    ("program", "ring", ",wire=program,slots=128"),
    ("disk", "blk", ",file=DIR/disk.image"),
    ("other", "blk", ",file=DIR/other.image"),
];

/// A guest or a program with a NIC.
trait End {
    fn send(&mut self, frame: &[u8]) -> bool;
    fn receive(&mut self, see: &mut dyn FnMut(&[u8]));
    /// Another daemon has come. Guests with cards have not noticed, and find in a register what they wrote
    /// there.
    fn meet(&mut self, _bed: &Testbed) {}
}

impl End for E1000 {
    fn send(&mut self, frame: &[u8]) -> bool {
        E1000::send(self, &[frame]).unwrap() == 1
    }

    fn receive(&mut self, see: &mut dyn FnMut(&[u8])) {
        E1000::receive(self, 64, see).unwrap();
    }

    fn meet(&mut self, _: &Testbed) {
        assert_eq!(self.client().read32(0, LEDCTL).unwrap(), NOTED);
    }
}

impl End for Rtl8169 {
    fn send(&mut self, frame: &[u8]) -> bool {
        Rtl8169::send(self, &[frame]).unwrap() == 1
    }

    fn receive(&mut self, see: &mut dyn FnMut(&[u8])) {
        Rtl8169::receive(self, 64, see).unwrap();
    }

    fn meet(&mut self, _: &Testbed) {
        assert_eq!(self.client().read32(1, THPDS).unwrap(), NOTED);
    }
}

impl End for Ptnet {
    fn send(&mut self, frame: &[u8]) -> bool {
        Ptnet::send(self, &[frame]).unwrap() == 1
    }

    fn receive(&mut self, see: &mut dyn FnMut(&[u8])) {
        Ptnet::receive(self, 64, see).unwrap();
    }
}

impl End for NetDriver {
    fn send(&mut self, frame: &[u8]) -> bool {
        NetDriver::send(self, 0, &[frame]).unwrap() == 1
    }

    fn receive(&mut self, see: &mut dyn FnMut(&[u8])) {
        NetDriver::receive(self, 0, |_, frame| see(frame)).unwrap();
    }

    /// As QEMU does: where its rings are only the daemon's journal knows.
    fn meet(&mut self, bed: &Testbed) {
        let stale = [self.session().first_base(); 2];
        self.reconnect_at(Frontend::connect(bed.path("packed"), LIMIT).unwrap(), &stale).unwrap();
    }
}

impl End for Port {
    fn send(&mut self, frame: &[u8]) -> bool {
        let sent = self.tx[0].push(frame);
        self.tx[0].sync().unwrap();
        sent
    }

    fn receive(&mut self, see: &mut dyn FnMut(&[u8])) {
        self.rx[0].sync().unwrap();
        while let Some(frame) = self.rx[0].take() {
            see(&frame.bytes());
        }
        self.rx[0].sync().unwrap();
    }

    fn meet(&mut self, _: &Testbed) {
        self.reattach().unwrap();
    }
}

/// Frames from one end of a wire to the other.
#[derive(Debug, Default)]
struct Way {
    next: u64,
    /// Those below were sent to a daemon that is dead: they come, or they do not.
    given_up: u64,
    /// The number that is due at the other end.
    due: u64,
    lost: u64,
    repeated: u64,
}

fn frame(number: u64) -> Vec<u8> {
    let mut bytes = [&[0xff; 6][..], &[0x52, 0x54, 0, 0, 0, 1, 0x88, 0xb5], &number.to_be_bytes()].concat();
    bytes.resize(60 + (number * 37 % 1400) as usize, number as u8);
    bytes
}

impl Way {
    fn send(&mut self, from: &mut dyn End) {
        while self.next < self.due.max(self.given_up) + WINDOW && from.send(&frame(self.next)) {
            self.next += 1;
        }
    }

    fn receive(&mut self, to: &mut dyn End) {
        to.receive(&mut |bytes| {
            let number = u64::from_be_bytes(bytes[14..22].try_into().unwrap());
            assert_eq!(bytes, frame(number), "frame {number} was changed on its way");
            self.lost += number.saturating_sub(self.due);
            self.repeated += self.due.saturating_sub(number);
            self.due = number + 1;
        });
    }
}

struct Wire {
    ends: [Box<dyn End>; 2],
    ways: [Way; 2],
}

struct Site {
    bed: Testbed,
    wires: Vec<Wire>,
    disks: Vec<(&'static str, Disk, Work)>,
}

fn start(bed: &Testbed, program: &str) -> Daemon {
    let mut command = bed.program(program);
    command.arg("run");
    for (name, kind, more) in PORTS {
        let at = if kind == "ring" { name.to_owned() } else { bed.at(name) };
        command.arg("--port").arg(format!("{name}={kind}:{at}{}", more.replace("DIR", &bed.at(""))));
    }
    Daemon::start(&mut command)
}

impl Site {
    fn new(bed: Testbed) -> Site {
        let card = e1000::Config { ring: RING, ..e1000::Config::default() };
        let intel = |name: &str| {
            let mut card = E1000::open(&bed.path(name), &card).unwrap();
            card.client().write32(0, LEDCTL, NOTED).unwrap();
            card
        };
        let (intel, old) = (intel("intel"), intel("old"));
        let card = rtl8169::Config { ring: RING, ..rtl8169::Config::default() };
        let mut realtek = Rtl8169::open(&bed.path("realtek"), &card).unwrap();
        realtek.client().write32(1, THPDS, NOTED).unwrap();
        let ptnet = Ptnet::open(&bed.path("ptnet"), &ptnet::Config::default()).unwrap();
        let mut want = Want::default().and(RING_PACKED);
        want.protocol &= !protocol::INFLIGHT_SHMFD;
        let config = Config { want, entries: RING, ..Config::default() };
        let packed = NetDriver::start(Frontend::connect(bed.path("packed"), LIMIT).unwrap(), config).unwrap();
        let program = Port::attach(&bed.at("ring/program")).unwrap();
        let pairs: [[Box<dyn End>; 2]; 3] = [
            [Box::new(intel), Box::new(realtek)],
            [Box::new(packed), Box::new(ptnet)],
            [Box::new(old), Box::new(program)],
        ];
        let wires = pairs.into_iter().map(|ends| Wire { ends, ways: Default::default() }).collect();
        // What is in flight is in a record that the VMM keeps, or only its driver knows.
        let options = [
            ("disk", DiskOptions { queues: 2, ..DiskOptions::default() }),
            ("other", DiskOptions { packed: true, inflight: false, ..DiskOptions::default() }),
        ];
        let disk = |(name, options)| {
            let frontend = Frontend::connect(bed.path(name), LIMIT).unwrap();
            let disk = Disk::start(frontend, DiskOptions { largest: BLOCK, ..options }).unwrap();
            (name, disk, Work::new(name.len() as u64, BLOCKS))
        };
        let disks = options.into_iter().map(disk).collect();
        Site { bed, wires, disks }
    }

    /// Traffic in every direction and on both disks, the end of which is in the middle of it.
    fn flow(&mut self) {
        let (frames, answers) = (self.least().0 + ENOUGH, self.least().1 + ENOUGH);
        let begun = Instant::now();
        while self.least().0 < frames || self.least().1 < answers {
            for Wire { ends: [a, b], ways: [there, back] } in &mut self.wires {
                there.send(&mut **a);
                back.send(&mut **b);
                there.receive(&mut **b);
                back.receive(&mut **a);
            }
            for (_, disk, work) in &mut self.disks {
                work.fill(disk);
                disk.poll(|tag, status, data| work.take(tag, status, data)).unwrap();
            }
            assert!(begun.elapsed() < 3 * LIMIT, "something stands still: {:#?}\n{self:?}", self.ports());
        }
    }

    /// What has come in the slowest direction, and of the slowest disk.
    fn least(&self) -> (u64, u64) {
        let frames = self.ways().map(|way| way.due).min().unwrap();
        (frames, self.disks.iter().map(|(_, _, work)| work.answered).min().unwrap())
    }

    fn ways(&self) -> impl Iterator<Item = &Way> {
        self.wires.iter().flat_map(|wire| &wire.ways)
    }

    fn ports(&self) -> Vec<Value> {
        self.bed.show("ports")["ports"].as_array().unwrap().clone()
    }

    /// `daemon` is killed, and this program takes its place.
    fn replace(&mut self, daemon: Daemon) -> Daemon {
        daemon.end(Signal::KILL);
        for (_, disk, work) in &mut self.disks {
            while disk.wait(LIMIT).unwrap() == Woken::Answers {
                work.poll(disk);
            }
        }
        let daemon = start(&self.bed, env!("CARGO_BIN_EXE_sidecore"));
        for Wire { ends, ways } in &mut self.wires {
            ends.iter_mut().for_each(|end| end.meet(&self.bed));
            ways.iter_mut().for_each(|way| way.given_up = way.next);
        }
        for (name, disk, work) in &mut self.disks {
            let frontend = Frontend::connect(self.bed.path(name), LIMIT).unwrap();
            disk.reconnect(frontend, |tag, status, data| work.take(tag, status, data)).unwrap();
        }
        daemon
    }

    /// All that is under way comes.
    fn drain(&mut self) {
        let begun = Instant::now();
        while self.ways().any(|way| way.due < way.next) {
            for Wire { ends: [a, b], ways: [there, back] } in &mut self.wires {
                there.receive(&mut **b);
                back.receive(&mut **a);
            }
            assert!(begun.elapsed() < LIMIT, "frames are missing: {:#?}\n{self:?}", self.ports());
        }
        for (_, disk, work) in &mut self.disks {
            work.finish(disk);
            work.verify(disk);
        }
    }
}

impl std::fmt::Debug for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.ways()).entries(self.disks.iter().map(|(name, ..)| name)).finish()
    }
}

#[test]
fn all_ports_and_disks_go_on_with_the_next_program() {
    let before = std::env::var("SIDECORE_BEFORE").unwrap_or(env!("CARGO_BIN_EXE_sidecore").to_owned());
    let bed = Testbed::new();
    for name in ["disk.image", "other.image"] {
        std::fs::File::create(bed.path(name)).unwrap().set_len(BLOCKS * BLOCK as u64).unwrap();
    }
    let mut daemon = start(&bed, &before);
    let mut site = Site::new(bed);
    // The first kill is the upgrade; the second one shows that what the successor keeps is sound, too.
    const KILLS: u64 = 2;
    for _ in 0..KILLS {
        site.flow();
        daemon = site.replace(daemon);
    }
    site.flow();
    site.drain();
    println!("{site:?}");
    for way in site.ways() {
        assert!(way.lost.max(way.repeated) <= KILLS * u64::from(RING), "{way:?}");
    }
    let (mut come, mut gone) = (0, 0);
    for port in site.ports() {
        let (state, counters) = (&port["state"], &port["counters"]);
        assert_eq!((&state["peer"], &state["fault"]), (&"running".into(), &Value::Null), "{port:#}");
        assert_eq!(state["overrun"]["rests"], 0, "{port:#}");
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        come += number(&counters["in_frames"]) + number(&counters["made"]);
        let drops: u64 = counters["drops"].as_object().unwrap().values().map(number).sum();
        gone += number(&counters["out_frames"]) + drops;
    }
    assert_eq!(come, gone, "{:#?}", site.ports());
    // Acknowledged writes are in the files.
    for (name, disk, work) in site.disks {
        drop(disk);
        let file = std::fs::read(site.bed.path(&format!("{name}.image"))).unwrap();
        for (block, data) in (0..).zip(file.chunks(BLOCK)) {
            let version = work.blocks[block as usize];
            assert!(data == content(block, version), "{name}: block {block} is not at version {version}");
        }
    }
    drop(daemon);
}
