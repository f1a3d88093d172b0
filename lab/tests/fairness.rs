//! Eight guests on one I/O core, virtio-net and e1000e by turns, of which two flood: the six others have all
//! their answers, and no guest gets more time than was granted. Then one guest, whose cards and disk have one
//! budget.
//!
//! What is judged is the engine's own account: time that was used and granted, frames in and out, drops by
//! name. How long anything took on a machine that emulates eight processors on two is not judged, only
//! printed.

use std::time::{Duration, Instant};

use serde_json::Value;
use sidecore_lab::traffic::Ping;
use sidecore_lab::{Daemon, Guest, Nic, Result, Role, RunDir};
use sidecore_port::Port;

const LIMIT: Duration = Duration::from_secs(120);
/// Guests, and those of them that flood: one of each kind of card.
const GUESTS: usize = 8;
const FLOODS: usize = 2;
/// The receiver of the floods: a program that takes nothing.
const SINK_MAC: &str = "52:54:00:00:fa:ff";
/// Requests of each of the others, while there is a flood.
const PINGS: u32 = 40;
/// What a flood is granted in the end, in millionths of a core: less than even an emulated guest can use.
const GRANTED: u64 = 2_000;
const BUDGET: &str = "200us/100ms";
/// A visit may be charged for time that another program had its processor for. It is paid back in the periods
/// that follow, but the last one may not have been yet.
const LONG_VISIT: u64 = 20_000_000;

/// Guest `n`'s port and host name.
fn name(n: usize) -> String {
    format!("g{n}")
}

fn is_virtio(n: usize) -> bool {
    n % 2 == 0
}

fn address(n: usize) -> String {
    format!("10.0.0.{}", n + 1)
}

/// What the engine says that a port had.
#[derive(Clone, Copy, Debug)]
struct Had {
    busy_ns: u64,
    throttled_ns: u64,
    in_frames: u64,
    out_frames: u64,
    ring_full: u64,
}

/// What all guests' ports had, and the nanoseconds of the I/O core so far.
fn had(daemon: &mut Daemon) -> Result<(Vec<Had>, u64)> {
    let ports = daemon.show_json("ports")?;
    let find = |name: String| {
        let mut all = ports["ports"].as_array().unwrap().iter();
        let port = all.find(|port| port["name"] == name.as_str()).unwrap();
        let number = |value: &Value| value.as_u64().unwrap();
        let (service, counters) = (&port["state"]["service"], &port["counters"]);
        Had {
            busy_ns: number(&service["busy_ns"]),
            throttled_ns: number(&service["throttled_ns"]),
            in_frames: number(&counters["in_frames"]),
            out_frames: number(&counters["out_frames"]),
            ring_full: counters["drops"]["ring_full"].as_u64().unwrap_or_default(),
        }
    };
    let all = (0..GUESTS).map(|n| find(name(n))).collect();
    let cores = daemon.show_json("cores")?;
    let core = &cores["cores"][0];
    assert!(cores["cores"].as_array().unwrap().len() == 1, "{cores:#}");
    Ok((all, ["busy_ns", "idle_ns", "sleep_ns"].iter().map(|part| core[part].as_u64().unwrap()).sum()))
}

/// Jain's index: 1 if all are equal.
fn jain(shares: &[u64]) -> f64 {
    let float = |n: &u64| f64::from(u32::try_from(*n).unwrap_or(u32::MAX));
    let (sum, squares) =
        (shares.iter().map(float).sum::<f64>(), shares.iter().map(|n| float(n).powi(2)).sum::<f64>());
    let count = f64::from(u32::try_from(shares.len()).unwrap());
    sum * sum / (count * squares).max(f64::MIN_POSITIVE)
}

/// The kernel's own generator, without end, by these cards to the sink: 10,000 frames a second of each, many
/// times what is granted. It serves the card that is due first, and a frame moves a card's time on by `delay`
/// alone: with a few ns, a card that it began with later would have its turn only after as many frames of the
/// other as the ns that it began later.
fn flood(guest: &mut Guest, cards: &[&str]) -> Result<()> {
    guest.expect("modprobe pktgen")?;
    for card in cards {
        let (thread, device) = ("/proc/net/pktgen/kpktgend_0", format!("/proc/net/pktgen/{card}"));
        let words = ["count 0", "pkt_size 60", "delay 100000", "clone_skb 1000", "dst 10.0.0.254"]
            .map(|word| format!("echo {word} > {device}"));
        guest.expect(&format!(
            "echo add_device {card} > {thread}; {}; echo dst_mac {SINK_MAC} > {device}",
            words.join("; ")
        ))?;
    }
    guest.run_in_background("echo start > /proc/net/pktgen/pgctrl").map(drop)
}

/// Each of the others asks the next one of them, all at once; when all have all answers.
fn ask(guests: &mut [Guest]) -> Result<()> {
    let mut jobs = Vec::new();
    for (n, guest) in guests.iter_mut().enumerate().skip(FLOODS) {
        let next = if n + 1 == GUESTS { FLOODS } else { n + 1 };
        jobs.push(guest.run_in_background(&format!("ping -c {PINGS} -i 0.1 -W 60 {}", address(next)))?);
    }
    for (n, job) in (FLOODS..).zip(jobs) {
        let done = guests[n].wait_for(job, LIMIT)?;
        let ping = Ping::parse(&done.text).unwrap_or_else(|| panic!("{}: {}", name(n), done.text));
        assert_eq!((ping.sent, ping.lost()), (PINGS, 0), "{}: {}", name(n), done.text);
    }
    Ok(())
}

/// The six ask while the two flood: what the engine says of it, in all, and of the I/O core's time.
fn round(daemon: &mut Daemon, guests: &mut [Guest], what: &str) -> Result<(Vec<Had>, u64)> {
    let (before, began) = had(daemon)?;
    ask(guests)?;
    let (after, ended) = had(daemon)?;
    let since = |(now, then): (&Had, &Had)| Had {
        busy_ns: now.busy_ns - then.busy_ns,
        throttled_ns: now.throttled_ns - then.throttled_ns,
        in_frames: now.in_frames - then.in_frames,
        out_frames: now.out_frames - then.out_frames,
        ring_full: now.ring_full - then.ring_full,
    };
    let all: Vec<Had> = after.iter().zip(&before).map(since).collect();
    for (n, had) in all.iter().enumerate() {
        println!("{what}: {} ({}): {had:?}", name(n), if is_virtio(n) { "virtio" } else { "e1000e" });
    }
    // Floods go on for as long as a guest asks.
    for had in &all[..FLOODS] {
        assert!(had.in_frames > 100, "a flood of {} frames is none: {what}", had.in_frames);
    }
    // A request and an answer of each, besides a few for addresses; nothing for them is dropped.
    let frames: Vec<u64> = all[FLOODS..].iter().map(|had| had.in_frames).collect();
    assert!(frames.iter().all(|frames| (u64::from(2 * PINGS)..).contains(frames)), "{what}: {frames:?}");
    assert!(jain(&frames) > 0.98, "{what}: {frames:?}");
    for had in &all[FLOODS..] {
        // Buffers for all of them are there; a card may refuse a group's frame that its guest did not ask
        // for.
        assert_eq!(had.ring_full, 0, "{what}: {had:?}");
        assert!(had.out_frames >= u64::from(2 * PINGS), "{what}: {had:?}");
    }
    Ok((all, ended - began))
}

#[test]
fn two_of_eight_guests_flood_and_six_have_all_that_they_ask_for() -> Result<()> {
    let dir = RunDir::new("fairness")?;
    let at = |name: &str| dir.join(name);
    let port = |n: usize| {
        let (name, kind) = (name(n), if is_virtio(n) { "vhost-user" } else { "e1000e" });
        let mac = if is_virtio(n) { String::new() } else { format!(",mac=52:54:00:00:fa:0{n}") };
        format!("{name}={kind}:{}{mac}", at(&name))
    };
    let mut arguments = vec!["--cores".to_owned(), "0".to_owned()];
    for port in (0..GUESTS).map(port).chain([format!("sink=ring:{},fdb={SINK_MAC}", at("sink"))]) {
        arguments.extend(["--port".to_owned(), port]);
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut daemon = Daemon::start(&arguments)?;
    let _sink = Port::attach(&at("sink")).unwrap();
    let booting = Instant::now();
    let mut guests = Guest::boot_all(std::array::from_fn::<_, GUESTS, _>(|n| {
        let socket = at(&name(n));
        let nic = match is_virtio(n) {
            true => Nic::vhost_user(socket, Role::QemuClient { reconnect_ms: 0 }, 1),
            false => Nic::vfio_user(socket),
        };
        Guest::named(&name(n)).memory_mib(128).nic(nic)
    }))?;
    println!("{GUESTS} guests in {:?}", booting.elapsed());
    for (n, guest) in guests.iter_mut().enumerate() {
        guest.address(&format!("{}/24", address(n)))?;
    }
    ask(&mut guests)?;
    for guest in &mut guests[..FLOODS] {
        flood(guest, &["eth0"])?;
    }

    round(&mut daemon, &mut guests, "floods without a limit")?;

    for n in 0..FLOODS {
        daemon.command(&["set", &name(n), &format!("budget={BUDGET}")])?;
    }
    let (all, time) = round(&mut daemon, &mut guests, "floods with a budget")?;
    let floods = &all[..FLOODS];
    for (n, flood) in floods.iter().enumerate() {
        let due = time / 1_000_000 * GRANTED;
        assert!(
            flood.busy_ns <= due + LONG_VISIT,
            "{}: {} ns of {due} that were granted",
            name(n),
            flood.busy_ns
        );
        assert!(flood.throttled_ns > time / 4, "{} would not have had more: {flood:?} in {time} ns", name(n));
    }
    let used: Vec<u64> = floods.iter().map(|flood| flood.busy_ns).collect();
    println!("floods used {used:?} ns of {time}, {:.3} by Jain's index", jain(&used));

    for guest in &mut guests[..FLOODS] {
        guest.expect("echo stop > /proc/net/pktgen/pgctrl")?;
    }
    let balance = daemon.balance()?;
    println!("{balance}; {:?}", balance.drops);
    assert!(
        balance.drops.keys().all(|reason| ["ring_full", "filtered"].contains(&reason.as_str())),
        "{:?}",
        balance.drops
    );
    Ok(())
}

/// A disk's requests so far, and what its guest's ports have sent.
fn moved(daemon: &mut Daemon) -> Result<[u64; 3]> {
    let disks = daemon.show_json("disks")?;
    let ports = daemon.show_json("ports")?;
    let sent = |name: &str| {
        let port = ports["ports"].as_array().unwrap().iter().find(|port| port["name"] == name).unwrap();
        port["counters"]["in_frames"].as_u64().unwrap()
    };
    Ok([sent("lan"), sent("wan"), disks["disks"][0]["reads"].as_u64().unwrap()])
}

#[test]
fn two_cards_and_a_disk_of_a_guest_have_one_budget() -> Result<()> {
    let dir = RunDir::new("tenant")?;
    let at = |name: &str| dir.join(name);
    let [lan, wan, disk] = [
        format!("lan=vhost-user:{},tenant=vm", at("lan")),
        format!("wan=e1000e:{},tenant=vm", at("wan")),
        format!("disk=blk:{},file=ram:64M,tenant=vm", at("disk")),
    ];
    let sink = format!("sink=ring:{},fdb={SINK_MAC}", at("sink"));
    let tenant = format!("vm,budget={BUDGET}");
    let ports = [&lan, &wan, &disk, &sink].into_iter().flat_map(|port| ["--port", port.as_str()]);
    let arguments: Vec<&str> = ["--cores", "0", "--tenant", &tenant].into_iter().chain(ports).collect();
    let mut daemon = Daemon::start(&arguments)?;
    let _sink = Port::attach(&at("sink")).unwrap();
    let mut guest = Guest::named("vm")
        .nic(Nic::vhost_user(at("lan"), Role::QemuClient { reconnect_ms: 0 }, 1))
        .nic(Nic::vfio_user(at("wan")))
        .disk(at("disk"))
        .boot()?;
    guest.expect("ip link set eth0 up && ip link set eth1 up")?;
    flood(&mut guest, &["eth0", "eth1"])?;
    guest.run_in_background("while true; do dd if=/dev/vda of=/dev/null bs=64k iflag=direct; done")?;

    let had = |daemon: &mut Daemon| -> Result<Value> {
        let tenants = daemon.show_json("tenants")?;
        Ok(tenants["tenants"][0].clone())
    };
    let number = |tenant: &Value, key: &str| tenant["service"][key].as_u64().unwrap();
    let (began, before, moved_before) = (Instant::now(), had(&mut daemon)?, moved(&mut daemon)?);
    assert_eq!(before["ports"], serde_json::json!(["disk", "lan", "wan"]), "{before:#}");
    // Each of the three goes on.
    loop {
        let now = moved(&mut daemon)?;
        let enough = |(now, before): (&u64, &u64)| *now > before + 100;
        if now.iter().zip(&moved_before).all(enough) && began.elapsed() > Duration::from_secs(5) {
            break;
        }
        assert!(began.elapsed() < LIMIT, "{now:?} after {moved_before:?}: {:#}", had(&mut daemon)?);
    }
    let after = had(&mut daemon)?;
    let time = u64::try_from(began.elapsed().as_nanos()).unwrap();
    let of = |key: &str| number(&after, key) - number(&before, key);
    let (busy, throttled) = (of("busy_ns"), of("throttled_ns"));
    println!("{busy} ns of {time}, {throttled} throttled, {:?} after {moved_before:?}", moved(&mut daemon)?);
    assert!(busy > 0 && busy <= time / 1_000_000 * GRANTED + LONG_VISIT, "{after:#}");
    assert!(throttled > time / 4, "it would not have had more: {after:#}");
    assert_eq!(after["cores"], serde_json::json!([0]), "{after:#}");
    daemon.balance()?;
    Ok(())
}
