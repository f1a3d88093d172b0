//! The daemon is killed and started again under unmodified drivers on e1000e and e1000, whose VMM cannot
//! connect again: holders keep the connection, and the guests see a pause.

use serde_json::Value;
use sidecore_lab::traffic::{iperf3, received_gbits, Pinging};
use sidecore_lab::{Daemon, Guest, Nic, Result, RunDir};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(180);
const A: &str = "10.0.0.1";
const B: &str = "10.0.0.2";
/// What one TCP connection carries, and how much of it has come when the daemon is killed.
const MEGABYTES: u64 = 60;
const BEFORE_THE_KILL: u64 = 2_000_000;

#[test]
fn guests_with_intel_cards_go_on_when_the_daemon_is_killed() -> Result<()> {
    let dir = RunDir::new("holder")?;
    let ports = [format!("a=e1000e:{}", dir.join("a")), format!("b=e1000:{}", dir.join("b"))];
    let mut daemon = Daemon::start(&ports.each_ref().map(|port| ["--port", port]).concat())?;
    let nic = |name: &str| Nic::vfio_user(dir.join(name));
    let [mut a, mut b] =
        Guest::boot_all(["a", "b"].map(|name| Guest::named(name).nic(nic(name)).limit(LIMIT)))?;
    let outcome = they_go_on(&mut daemon, &mut a, &mut b);
    if outcome.is_err() {
        // Which ring stands still, and what it waits for.
        println!("{}", daemon.command(&["show", "queues"])?);
        println!("{:#}", daemon.show_json("ports")?);
        println!("{}", daemon.log());
        for guest in [&mut a, &mut b] {
            let state = guest.run("dmesg | tail; netstat -nt; grep eth /proc/interrupts")?;
            println!("{}: {}", guest.name(), state.text);
        }
    }
    outcome
}

fn they_go_on(daemon: &mut Daemon, a: &mut Guest, b: &mut Guest) -> Result<()> {
    for (guest, address) in [(&mut *a, A), (&mut *b, B)] {
        guest.expect(&format!("ip addr add {address}/24 dev eth0; ip link set eth0 up"))?;
    }
    a.wait_until(&format!("ping -c 1 -W 1 {B} > /dev/null"), LIMIT)?;

    let mut pause = Duration::ZERO;
    let ping = Pinging::start(a, B)?;
    for _ in 0..3 {
        pause = pause.max(killed(daemon)?);
        ping.more(a, 5)?;
    }
    let ping = ping.end(a)?;
    println!("daemon killed three times under ping: {} of {} lost", ping.lost(), ping.sent);

    // With rings full of frames: one connection in each direction lives through it.
    pause = pause.max(tcp_lives(daemon, a, b, B)?);
    pause = pause.max(tcp_lives(daemon, b, a, A)?);
    let there = iperf3(b, B, "--bytes 20M", |command| a.run_within(command, LIMIT))?;
    println!("after it: {:.2} Gbit/s; the longest pause was {pause:?}", received_gbits(&there));

    for guest in [a, b] {
        let complaints = guest.run("dmesg | grep -iE 'link is down|nobody cared'")?;
        assert_eq!(complaints.text, "", "{}", guest.name());
        // What a machine that is too busy brings about, too: a frame that was not sent for a second, or for
        // five.
        print!("{}", guest.run("dmesg | grep -iE 'unit hang|transmit queue|reset adapter'")?.text);
        assert_eq!(guest.expect("cat /sys/class/net/eth0/carrier")?.trim(), "1", "{}", guest.name());
    }
    println!("{}", daemon.balance()?);
    Ok(())
}

/// The daemon dies and comes back; how long that takes.
fn killed(daemon: &mut Daemon) -> Result<Duration> {
    let begun = Instant::now();
    daemon.kill_and_restart()?;
    let pause = begun.elapsed();
    for name in ["a", "b"] {
        daemon.wait_peer(name, "running")?;
    }
    Ok(pause)
}

fn tcp_lives(daemon: &mut Daemon, from: &mut Guest, to: &mut Guest, address: &str) -> Result<Duration> {
    let server = to.run_in_background("iperf3 --server --one-off")?;
    to.wait_until("netstat -lnt | grep -q :5201", LIMIT)?;
    // IpExt: InOctets. The card's own counts are asked for too seldom.
    let come = "awk '/^IpExt/ {come = $8} END {print come}' /proc/net/netstat";
    let before: u64 = to.expect(come)?.trim().parse().unwrap();
    let client = from.run_in_background(&format!("iperf3 --client {address} --bytes {MEGABYTES}M --json"))?;
    // The connection for commands and the one for data.
    from.wait_until(&format!("[ $(netstat -nt | grep -c '{address}:5201 *ESTABLISHED') -ge 2 ]"), LIMIT)?;
    to.wait_until(&format!("[ $({come}) -gt {} ]", before + BEFORE_THE_KILL), LIMIT)?;
    let pause = killed(daemon)?;
    let report = from.wait_for(client, LIMIT)?;
    assert!(report.success(), "{}: {}", from.name(), report.text);
    assert!(to.wait_for(server, LIMIT)?.success());
    let report: Value = serde_json::from_str(&report.text).unwrap();
    // The receiver counts no further than to the moment when the sender has written its last byte.
    let received = report["end"]["sum_received"]["bytes"].as_u64().unwrap();
    assert!(received > MEGABYTES << 19, "{report:#}");
    println!("daemon killed under TCP from {}: {:.2} Gbit/s", from.name(), received_gbits(&report));
    Ok(pause)
}
