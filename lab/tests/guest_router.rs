//! A guest that routes between two others: two of our cards, each on a switch with one of them, and Debian's
//! unmodified kernel with forwarding turned on. The others use it as they would use our own router: ping,
//! traceroute, TCP both ways, the path's MTU.
//!
//! Then programs flood it, to find out what a frame costs it; the benchmarks' guest router, set to that cost,
//! takes its place behind the same ports.

use std::path::Path;
use std::time::{Duration, Instant};

use sidecore_driver::e1000::{self, E1000};
use sidecore_driver::guest_router::{Config, GuestRouter, Hop, Nic as Card, BUDGET};
use sidecore_driver::load::{frame, Lane, LaneConfig};
use sidecore_driver::memory::Page;
use sidecore_driver::Frontend;
use sidecore_lab::{Daemon, Guest, Nic, Result, RunDir};
use sidecore_port::Port;

use crate::router::{be_router, use_router, virtio};

const LIMIT: Duration = Duration::from_secs(60);
/// The flood: so many frames each time, with pauses in which others have its processor; more than an emulated
/// guest can take.
const BURST: usize = 100;
const PAUSE: Duration = Duration::from_micros(300);
/// How long it is.
const WINDOW: Duration = Duration::from_secs(1);
const WINDOWS: usize = 4;
/// How many times as much the guest router forwards as the other one.
const AGREE: std::ops::Range<f64> = 0.7..1.4;
/// The station behind the router, and the entries of a card's rings in a guest of QEMU.
const BEHIND: [u8; 6] = [2, 0x73, 0x63, 0, 0, 9];
const RING: u16 = 256;

#[test]
fn a_guest_routes_with_virtio_cards() -> Result<()> {
    a_guest_routes("vhost-user", "virtio_net", virtio)
}

#[test]
fn a_guest_routes_with_e1000e_cards() -> Result<()> {
    a_guest_routes("e1000e", "e1000e", |socket| Nic::vfio_user(socket))
}

#[test]
fn a_guest_with_virtio_cards_forwards_as_the_guest_router_of_its_cost() -> Result<()> {
    let lane = |socket: &str| {
        let config =
            LaneConfig { entries: RING, depth: [RING; 2], longest: 1514, mergeable: true, page: Page::Small };
        Lane::new(Frontend::connect(socket, LIMIT).unwrap(), config).unwrap()
    };
    a_guest_costs("vhost-user", "virtio_net", virtio, lane)
}

#[test]
fn a_guest_with_e1000e_cards_forwards_as_the_guest_router_of_its_cost() -> Result<()> {
    let open = |socket: &str| E1000::open(Path::new(socket), &e1000::Config::default()).unwrap();
    a_guest_costs("e1000e", "e1000e", |socket| Nic::vfio_user(socket), open)
}

/// Floods a guest with such cards, and in its place our guest router, of which `open` makes the cards.
fn a_guest_costs<N: Card + 'static>(
    kind: &str,
    driver: &str,
    card: fn(&str) -> Nic,
    open: fn(&str) -> N,
) -> Result<()> {
    let dir = RunDir::new("guest-cost")?;
    let socket = |name: &str| dir.join(name);
    let mut daemon = around(&dir, "ring", kind)?;
    let mut ends = ["left", "right"].map(|name| Port::attach(&socket(name)).unwrap());

    let spec = Guest::named("router").nic(card(&socket("r0"))).nic(card(&socket("r1")));
    let mut guest = spec.boot()?;
    be_router(&mut guest, driver)?;
    let behind = BEHIND.map(|byte| format!("{byte:02x}")).join(":");
    guest.expect(&format!("arp -i eth1 -s 10.2.0.2 {behind}"))?;
    guest.expect("ip route add 10.0.0.1 dev eth0 && ip route add 10.0.0.2 via 10.2.0.2")?;
    let mac = guest.expect("cat /sys/class/net/eth0/address")?;
    let mac: Vec<u8> = mac.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    let mac: [u8; 6] = mac.try_into().unwrap();
    let debian = flood(&mut ends, mac, &format!("/proc/{}/stat", guest.pid()));
    guest.kill();
    daemon.wait_peer("r0", "waiting")?;
    daemon.wait_peer("r1", "waiting")?;

    let cost_ns = 1e9 / debian;
    let own = Hop { from: mac, to: BEHIND };
    let config = Config { hops: [own; 2], cost_ns, budget: BUDGET };
    let router = GuestRouter::new(["r0", "r1"].map(|name| open(&socket(name))), &config).unwrap();
    let vcpu = router.start().unwrap();
    let native = flood(&mut ends, mac, &format!("/proc/self/task/{}/stat", vcpu.thread()));
    let counts = vcpu.counts();
    vcpu.stop().unwrap();
    let ratio = native / debian;
    println!("{driver}: a frame costs the guest {cost_ns:.0} ns, and the guest router forwards {ratio:.2} x as many: {counts:?}");
    assert!(AGREE.contains(&ratio), "{native:.0} frames a second, Debian {debian:.0}");
    assert!(daemon.terminate()?.success());
    Ok(())
}

/// Sends more to `router` than it can take; how many frames come out behind it in a second of its processor,
/// at the best: others that use the machine only make it slower. `stat` tells of that time.
fn flood([from, to]: &mut [Port; 2], router: [u8; 6], stat: &str) -> f64 {
    let mut frame = frame(0, 60);
    frame[..6].copy_from_slice(&router);
    let mut window = || {
        let (start, before, mut came) = (Instant::now(), ran(stat), 0);
        while start.elapsed() < WINDOW {
            let _ = (0..BURST).take_while(|_| from.tx[0].push(&frame)).count();
            from.tx[0].sync().unwrap();
            came += to.rx[0].skip(usize::MAX).0;
            to.rx[0].sync().unwrap();
            std::thread::sleep(PAUSE);
        }
        came as f64 / (ran(stat) - before).as_secs_f64()
    };
    let rates: Vec<f64> = (0..WINDOWS).map(|_| window()).collect();
    println!("frames a second: {rates:.0?}");
    rates.into_iter().fold(0.0, f64::max)
}

/// What the threads of a process, or one of them, had of processors so far, by a file of /proc.
fn ran(stat: &str) -> Duration {
    let text = std::fs::read_to_string(stat).unwrap();
    let words = text.rsplit(')').next().unwrap().split_whitespace();
    let ticks: u64 = words.skip(11).take(2).map(|word| word.parse::<u64>().unwrap()).sum();
    Duration::from_secs(ticks) / u32::try_from(rustix::param::clock_ticks_per_second()).unwrap()
}

/// Its cards are ports of this kind, served by this driver.
fn a_guest_routes(kind: &str, driver: &str, card: fn(&str) -> Nic) -> Result<()> {
    let dir = RunDir::new("guest-router")?;
    let socket = |name: &str| dir.join(name);
    let mut daemon = around(&dir, "vhost-user", kind)?;
    let [mut left, mut router, mut right] = Guest::boot_all([
        Guest::named("left").nic(virtio(&socket("left"))),
        Guest::named("router").nic(card(&socket("r0"))).nic(card(&socket("r1"))),
        Guest::named("right").nic(virtio(&socket("right"))),
    ])?;
    be_router(&mut router, driver)?;
    use_router(&mut left, &mut right)?;
    let balance = daemon.balance()?;
    println!("{balance}; {:?}", balance.drops);
    for guest in [left, router, right] {
        guest.kill();
    }
    assert!(daemon.terminate()?.success());
    Ok(())
}

/// Switches with an end of this kind and a card of the router each.
fn around(dir: &RunDir, end: &str, card: &str) -> Result<Daemon> {
    let port = |(name, kind, switch)| format!("{name}={kind}:{},switch={switch}", dir.join(name));
    let ports =
        [("left", end, "near"), ("r0", card, "near"), ("r1", card, "far"), ("right", end, "far")].map(port);
    let switches = ["--switch", "near", "--switch", "far"];
    Daemon::start(&[&switches[..], &ports.each_ref().map(|port| ["--port", port]).concat()].concat())
}
