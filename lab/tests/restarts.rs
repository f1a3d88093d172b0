//! Killed and started again: the daemon under traffic, in every combination of role and ring format, and a
//! VMM. Four guests talk in two pairs; they are booted once.

use sidecore_lab::traffic::{iperf3, received_gbits, Pinging};
use sidecore_lab::{Daemon, Guest, Nic, Result, Role, RunDir, Spec};

/// The listening side and the format, in the order of the guests.
const GUESTS: [(&str, Role, &str); 4] = [
    ("a", Role::QemuClient { reconnect_ms: 200 }, "packed=off"),
    ("b", Role::QemuServer, "packed=on"),
    ("c", Role::QemuClient { reconnect_ms: 200 }, "packed=on"),
    ("d", Role::QemuServer, "packed=off"),
];

struct Site {
    daemon: Daemon,
    guests: [Guest; 4],
}

#[test]
fn guests_go_on_when_the_daemon_or_a_vmm_is_killed() -> Result<()> {
    let dir = RunDir::new("restarts")?;
    let ports = GUESTS.map(|(name, role, _)| {
        let ours = if role == Role::QemuServer { "client" } else { "server" };
        format!("{name}=vhost-user:{},role={ours}", dir.join(name))
    });
    let arguments: Vec<&str> = ports.iter().flat_map(|port| ["--port", port.as_str()]).collect();
    let daemon = Daemon::start(&arguments)?;
    let mut guests = Guest::boot_all([0, 1, 2, 3].map(|index| spec(&dir, index)))?;
    for (guest, number) in guests.iter_mut().zip(1..) {
        guest.address(&format!("10.0.0.{number}/24"))?;
    }
    let mut site = Site { daemon, guests };

    let outcome = the_daemon_is_killed_under_pings(&mut site)
        .and_then(|()| the_daemon_is_killed_under_tcp(&mut site))
        .and_then(|()| a_vmm_is_killed_and_started_again(&mut site, &dir));
    if outcome.is_err() {
        // Which ring stands still, and what it waits for.
        println!("{}", site.daemon.command(&["show", "queues"])?);
        println!("{}", site.daemon.command(&["show", "ports", "--json"])?);
    }
    outcome
}

fn spec(dir: &RunDir, index: usize) -> Spec {
    let (name, role, format) = GUESTS[index];
    // The address stays after a restart, as a VMM's configuration has it.
    let nic = Nic::vhost_user(dir.join(name), role, 1).option(format);
    Guest::named(name).nic(nic.mac(&format!("52:54:00:77:00:0{}", index + 1)))
}

/// a → b and c → d: both roles and both formats, and each at either end.
fn the_daemon_is_killed_under_pings(Site { daemon, guests: [a, b, c, d] }: &mut Site) -> Result<()> {
    let first = Pinging::start(a, "10.0.0.2")?;
    let second = Pinging::start(c, "10.0.0.4")?;
    for _ in 0..2 {
        balanced(daemon)?;
        daemon.kill_and_restart()?;
        for (name, ..) in GUESTS {
            daemon.wait_peer(name, "running")?;
        }
        first.more(a, 5)?;
        second.more(c, 5)?;
    }
    for (pair, ping) in [("a → b", first.end(a)?), ("c → d", second.end(c)?)] {
        println!("daemon killed twice: {pair}: {} of {} pings lost", ping.lost(), ping.sent);
    }
    for (pair, from, to, address) in
        [("a → b", &mut *a, &mut *b, "10.0.0.2"), ("c → d", &mut *c, &mut *d, "10.0.0.4")]
    {
        let there = iperf3(to, address, "--time 1", |command| from.run(command))?;
        println!("after it: {pair} {:.2} Gbit/s", received_gbits(&there));
    }
    balanced(daemon)
}

/// One TCP connection lives through it, with every ring full of buffers when the daemon dies.
fn the_daemon_is_killed_under_tcp(Site { daemon, guests: [a, b, c, d] }: &mut Site) -> Result<()> {
    let pairs = [(&mut *a, &mut *b, "10.0.0.2"), (&mut *c, &mut *d, "10.0.0.4")];
    let mut jobs = Vec::new();
    for (from, to, address) in pairs {
        let server = to.run_in_background("iperf3 --server --one-off")?;
        to.wait_until("netstat -lnt | grep -q :5201", LIMIT)?;
        let client = from.run_in_background(&format!("iperf3 --client {address} --time 6 --json"))?;
        from.wait_until(&format!("netstat -nt | grep {address}:5201 | grep -q ESTABLISHED"), LIMIT)?;
        jobs.push((from, to, server, client));
    }
    daemon.kill_and_restart()?;
    for (name, ..) in GUESTS {
        daemon.wait_peer(name, "running")?;
    }
    for (from, to, server, client) in jobs {
        let report = from.wait_for(client, LIMIT)?;
        assert!(report.success(), "{}: {}", from.name(), report.text);
        assert!(to.wait_for(server, LIMIT)?.success());
        let report: serde_json::Value = serde_json::from_str(&report.text).unwrap();
        let retransmitted = &report["end"]["sum_sent"]["retransmits"];
        let gbits = received_gbits(&report);
        println!(
            "daemon killed under TCP from {}: {gbits:.2} Gbit/s, {retransmitted} sent again",
            from.name()
        );
        let intervals = report["intervals"].as_array().unwrap();
        let last = intervals.last().unwrap()["sum"]["bytes"].as_u64().unwrap();
        assert!(last > 0, "the connection stands still: {intervals:#?}");
    }
    balanced(daemon)
}

fn a_vmm_is_killed_and_started_again(site: &mut Site, dir: &RunDir) -> Result<()> {
    for victim in [3, 2] {
        let name = GUESTS[victim].0;
        let Site { daemon, guests } = site;
        let others = Pinging::start(&mut guests[0], "10.0.0.2")?;
        let before = dropped(daemon)?;
        guests[victim].crash();
        daemon.wait_peer(name, "waiting")?;
        others.more(&mut guests[0], 3)?;
        guests[victim] = spec(dir, victim).boot()?;
        guests[victim].address(&format!("10.0.0.{}/24", victim + 1))?;
        daemon.wait_peer(name, "running")?;
        let other = if victim == 3 { 3 } else { 4 };
        guests[victim].expect(&format!("ping -c 3 -i 0.2 10.0.0.{other}"))?;
        let ping = others.end(&mut guests[0])?;
        // Frames are counted, not replies: on a busy machine those come late, and ping takes them for lost.
        assert_eq!(dropped(daemon)?, before, "frames between the others, whose {} pings went on", ping.sent);
        println!(
            "VMM of {name} killed and started again: the others had no reply in time to {} of {} pings",
            ping.lost(),
            ping.sent
        );
        balanced(daemon)?;
    }
    Ok(())
}

/// Frames that were dropped at `a` and `b`, which go on.
fn dropped(daemon: &mut Daemon) -> Result<u64> {
    let ports = daemon.show_json("ports")?;
    let ports = ports["ports"].as_array().unwrap();
    let of = |name: &str| {
        let port = ports.iter().find(|port| port["name"] == name).unwrap();
        port["counters"]["drops"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum::<u64>()
    };
    Ok(of("a") + of("b"))
}

fn balanced(daemon: &mut Daemon) -> Result<()> {
    let balance = daemon.balance()?;
    println!("{balance}; {:?}", balance.drops);
    let known = ["ring_full", "link_down", "no_destination"];
    assert!(balance.drops.keys().all(|reason| known.contains(&reason.as_str())), "{:?}", balance.drops);
    Ok(())
}

const LIMIT: std::time::Duration = std::time::Duration::from_secs(90);
