//! Soak: ports are added, removed, killed and lied to while traffic runs; no frame goes unexplained, and
//! memory does not grow. Some seconds in CI; `SOAK_SECONDS=600` for the ten minutes by hand.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sidecore_abi::virtio::{features as f, net_hdr};
use sidecore_driver::net::{NetDriver, NetHdr};
use sidecore_driver::session::{Config, Want};
use sidecore_driver::Frontend;
use sidecore_engine::device::virtio_net::{NetConfig, VirtioNet};
use sidecore_engine::graph::{Attach, CoreOptions, Graph, Topology};
use sidecore_engine::observe::{CounterFile, PortCounters};
use sidecore_engine::port::{Port, PortId, DEFAULT_MTU};
use sidecore_engine::switch::{Switch, SwitchOptions};
use sidecore_engine::transport::vhost_user::{Endpoint, VhostUser, VhostUserConfig};

/// Ports at any time, each with a guest that talks to the others.
const PORTS: u16 = 6;

/// A small generator: the test must be the same for the same seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        // xorshift64 (Marsaglia 2003).
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// One guest: connects, talks, and dies without a word, again and again until it is told to stop.
fn guest(path: &Path, number: u64, stop: &AtomicBool, lives: &AtomicU64) {
    let mut dice = Dice(number + 1);
    while !stop.load(Ordering::Relaxed) {
        let rings = [0, f::RING_PACKED, f::IN_ORDER][dice.roll(3) as usize];
        let offloads = [0, f::NET_CSUM | f::NET_HOST_TSO4, f::NET_GUEST_CSUM | f::NET_GUEST_TSO4];
        let want = Want::default().and(rings | offloads[dice.roll(3) as usize] | f::NET_MRG_RXBUF);
        let config = Config { want, entries: 64, ..Config::default() };
        let Ok(frontend) = Frontend::connect(path, Duration::from_millis(100)) else { continue };
        let Ok(mut driver) = NetDriver::start(frontend, config) else { continue };
        for _ in 0..dice.roll(400) {
            if stop.load(Ordering::Relaxed) || talk(&mut driver, number, &mut dice).is_err() {
                break;
            }
        }
        lives.fetch_add(1, Ordering::Relaxed);
        // The driver is dropped here, in the middle of everything: its memory and rings are gone.
    }
}

fn talk(driver: &mut NetDriver, number: u64, dice: &mut Dice) -> sidecore_driver::Result<()> {
    let mac = |n: u64| [2, 0, 0, 0, 0, n as u8];
    for _ in 0..dice.roll(32) {
        let to = match dice.roll(10) {
            0 => [0xff; 6],
            1 => mac(200),
            _ => mac(dice.roll(u64::from(PORTS))),
        };
        let len = 14 + dice.roll(1600) as usize;
        let mut frame = [&to[..], &mac(number), &[0x88, 0xb5]].concat();
        frame.resize(len, number as u8);
        let mut header = NetHdr::default();
        if dice.roll(20) == 0 {
            // Often nonsense: a named drop, or a frame that is segmented for receivers that need it.
            header.flags = net_hdr::F_NEEDS_CSUM;
            header.gso_type = dice.roll(6) as u8;
            header.csum_start = dice.roll(80) as u16;
            header.csum_offset = 6;
            header.gso_size = dice.roll(1500) as u16;
        }
        driver.complete(0)?;
        driver.send_frame(0, header, &frame)?;
    }
    driver.receive(0, |_, _| ())?;
    Ok(())
}

/// What the test has built: everything that is attached, and the counters of everything that ever was.
struct World {
    dir: PathBuf,
    cores: Arc<Graph>,
    switch: Arc<Switch>,
    file: CounterFile,
    ports: BTreeMap<u16, (Arc<Port>, VhostUser)>,
    counters: Vec<PortCounters>,
    next: u16,
}

impl World {
    fn path(&self, place: u16) -> PathBuf {
        self.dir.join(format!("{place}.sock"))
    }

    fn publish(&self) {
        let members: Vec<_> = self
            .ports
            .values()
            .map(|(port, _)| (Arc::clone(port), Attach::Switch(Arc::clone(&self.switch))))
            .collect();
        self.cores.publish(&Arc::new(Topology::new(&members)));
    }

    /// A new port with a number of its own behind the socket of `place`.
    fn add(&mut self, place: u16) {
        let id = PortId(self.next);
        self.next += 1;
        let counters = self.file.open_slot(id, &format!("p{}", id.0));
        self.counters.push(counters.clone());
        let port = Arc::new(Port::new(id, &format!("p{}", id.0), counters, DEFAULT_MTU).unwrap());
        let net = NetConfig { queue_pairs: 1, ..NetConfig::default() };
        let device = VirtioNet::new(&net, Arc::clone(&port), Arc::clone(&self.cores) as _).unwrap();
        let endpoint = Endpoint::Listen { path: self.path(place), mode: None, owner: (None, None) };
        let user = VhostUser::start(VhostUserConfig { endpoint, journal: None }, device).unwrap();
        self.ports.insert(place, (port, user));
        self.publish();
    }

    fn remove(&mut self, place: u16) {
        let Some((port, user)) = self.ports.remove(&place) else { return };
        self.publish();
        self.switch.forget(port.id, false, self.cores.seconds());
        drop(user);
    }

    /// Σ in + Σ made − Σ out − Σ drops over everything that ever was.
    fn unexplained(&self) -> i128 {
        let sum = |totals: &PortCounters| {
            let t = totals.totals();
            i128::from(t.in_frames + t.made) - i128::from(t.out_frames + t.drops.iter().sum::<u64>())
        };
        self.counters.iter().map(sum).sum()
    }

    fn moved(&self) -> u64 {
        self.counters.iter().map(|counters| counters.totals().out_frames).sum()
    }
}

/// KiB of anonymous memory of this process, guests of the test included.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse().unwrap()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn nothing_is_lost_and_nothing_grows() {
    let seconds = std::env::var("SOAK_SECONDS").map_or(5, |text| text.parse().unwrap());
    let dir = std::env::temp_dir().join(format!("sidecore-soak-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let mut world = World {
        dir,
        cores: Graph::start(&CoreOptions { cpus: vec![0, 1], ..CoreOptions::default() }).unwrap(),
        switch: Arc::new(Switch::new("lan", SwitchOptions::default())),
        file: CounterFile::anonymous().unwrap(),
        ports: BTreeMap::new(),
        counters: Vec::new(),
        next: 0,
    };
    (0..PORTS).for_each(|place| world.add(place));
    let (stop, lives) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let guests: Vec<_> = (0..PORTS)
        .map(|place| {
            let (path, stop, lives) = (world.path(place), Arc::clone(&stop), Arc::clone(&lives));
            std::thread::spawn(move || guest(&path, u64::from(place), &stop, &lives))
        })
        .collect();
    let start = Instant::now();
    let mut dice = Dice(42);
    let mut early = None;
    // The counters file has room for some 1,000 ports, each used once here.
    let pause = Duration::from_secs(seconds) / 900;
    while start.elapsed() < Duration::from_secs(seconds) {
        let place = dice.roll(u64::from(PORTS)) as u16;
        // What is waited for is the passing of time itself: guests shall talk meanwhile.
        std::thread::sleep(pause.max(Duration::from_millis(5)));
        world.remove(place);
        if usize::from(world.next) + 1 < sidecore_abi::counters::MAX_PORTS {
            world.add(place);
        }
        if early.is_none() && start.elapsed() > Duration::from_secs(seconds) / 3 {
            early = Some((memory(), descriptors()));
        }
    }
    let late = (memory(), descriptors());
    stop.store(true, Ordering::Relaxed);
    guests.into_iter().for_each(|guest| guest.join().unwrap());
    (0..PORTS).for_each(|place| world.remove(place));

    let (early_memory, early_descriptors) = early.unwrap();
    println!(
        "{seconds} s: {} ports, {} guests, {} frames delivered; memory {early_memory} → {} KiB",
        world.next,
        lives.load(Ordering::Relaxed),
        world.moved(),
        late.0
    );
    assert!(world.moved() > 1000, "hardly anything was moved");
    assert_eq!(world.unexplained(), 0, "frames without an explanation");
    assert!(
        late.0 < early_memory + early_memory / 4 + 16 * 1024,
        "memory grows: {early_memory} → {}",
        late.0
    );
    // Each guest holds a dozen descriptors while it lives; a leak would be hundreds.
    assert!(late.1 < early_descriptors + 150, "descriptors grow: {early_descriptors} → {}", late.1);
    std::fs::remove_dir_all(&world.dir).unwrap();
}
