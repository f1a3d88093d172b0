//! The daemon is away for longer than QEMU waits for an answer (5 s, its default): guests with a card of each kind, and a disk,
//! are answered meanwhile and go on when it is back. No VMM ends, no card is lost.

use crate::cards::{reaches, A, B, LIMIT};
use crate::router::virtio;
use sidecore_lab::traffic::{iperf3, received_gbits, Pinging};
use sidecore_lab::{Daemon, Guest, Nic, Result, RunDir};
use std::time::{Duration, Instant};

/// The addresses of the second cards.
const A2: &str = "10.0.2.1";
const B2: &str = "10.0.2.2";
/// What an administrator looks at, and what the drivers then read: state, registers, counters.
const LOOKS: &str = "for card in eth0 eth1; do ethtool $card; ethtool -d $card; ethtool -S $card; done > /dev/null 2>&1; sleep 1";

struct Site {
    daemon: Daemon,
    a: Guest,
    b: Guest,
}

fn site(dir: &RunDir) -> Result<Site> {
    let ports = [
        format!("a=e1000e:{}", dir.join("a")),
        format!("a2=rtl8169:{},switch=second", dir.join("a2")),
        format!("b=e1000:{}", dir.join("b")),
        format!("b2=vhost-user:{},switch=second", dir.join("b2")),
        format!("d=blk:{},file=ram:64M", dir.join("d")),
    ];
    let arguments: Vec<&str> = ports.iter().flat_map(|port| ["--port", port.as_str()]).collect();
    let daemon = Daemon::start(&[&["--switch", "second"][..], &arguments[..]].concat())?;
    let card = |name: &str| Nic::vfio_user(dir.join(name));
    let a = Guest::named("a").nic(card("a")).nic(card("a2")).disk(dir.join("d"));
    let b = Guest::named("b").nic(card("b")).nic(virtio(&dir.join("b2")).option("packed=on"));
    let [mut a, mut b] = Guest::boot_all([a.limit(LIMIT), b.limit(LIMIT)])?;
    for (guest, first, second) in [(&mut a, A, A2), (&mut b, B, B2)] {
        guest.address(&format!("{first}/24"))?;
        guest.expect(&format!("ip addr add {second}/24 dev eth1 && ip link set eth1 up"))?;
    }
    reaches(&mut a, B)?;
    reaches(&mut a, B2)?;
    Ok(Site { daemon, a, b })
}

/// The daemon is killed, and comes back after so many looks of a guest at its cards, a second apart.
fn away(Site { daemon, a, b }: &mut Site, seconds: u32) -> Result<()> {
    let pings = [Pinging::start(a, B)?, Pinging::start(b, A2)?];
    daemon.down();
    let begun = Instant::now();
    // A frame for each card that cannot go, and accesses of each driver.
    let looks =
        a.run_in_background(&format!("i=0; while [ $i -lt {seconds} ]; do {LOOKS}; i=$((i+1)); done"))?;
    b.run_within(&format!("i=0; while [ $i -lt {seconds} ]; do {LOOKS}; i=$((i+1)); done"), LIMIT)?;
    a.wait_for(looks, LIMIT)?;
    // A disk has nobody who answers: its reader waits.
    let reads = a.run_in_background("dd if=/dev/vda of=/dev/null bs=1M count=8 iflag=direct")?;
    let gone = begun.elapsed();
    assert!(gone >= Duration::from_secs(seconds.into()), "{gone:?}");
    daemon.restart()?;
    let ready = Instant::now();
    let [first, second] = pings;
    first.more(a, 1)?;
    let resumed = ready.elapsed();
    second.more(b, 1)?;
    assert!(a.wait_for(reads, LIMIT)?.success());
    println!("away for {gone:.1?}; {resumed:.2?} from ready to the first reply");
    for (ping, guest) in [(first, &mut *a), (second, &mut *b)] {
        ping.more(guest, 5)?;
        let ping = ping.end(guest)?;
        println!("{}: {} of {} pings had no reply", guest.name(), ping.lost(), ping.sent);
    }
    Ok(())
}

/// What the guests and their VMMs have noticed of it.
fn unharmed(Site { daemon, a, b }: &mut Site) -> Result<()> {
    for address in [B, B2] {
        let report = iperf3(b, address, "--bytes 8M", |command| a.run_within(command, LIMIT))?;
        println!("after it: TCP to {address} {:.2} Gbit/s", received_gbits(&report));
    }
    for guest in [a, b] {
        let said = guest.vmm_log();
        assert!(!said.contains("timed out") && !said.contains("unexpected reply"), "{said}");
        for card in ["eth0", "eth1"] {
            let carrier = guest.expect(&format!("cat /sys/class/net/{card}/carrier"))?;
            assert_eq!(carrier.trim(), "1", "{} {card}", guest.name());
        }
        print!(
            "{}",
            guest.run("dmesg | grep -iE 'link is|unit hang|transmit queue|reset adapter|timed out'")?.text
        );
    }
    for port in ["a", "a2", "b", "b2"] {
        daemon.wait_peer(port, "running")?;
    }
    println!("{}", daemon.balance()?);
    Ok(())
}

fn bears(outages: &[u32]) -> Result<()> {
    let dir = RunDir::new("away")?;
    let mut site = site(&dir)?;
    let outcome =
        outages.iter().try_for_each(|seconds| away(&mut site, *seconds)).and_then(|()| unharmed(&mut site));
    if outcome.is_err() {
        println!("{:#}\n{}", site.daemon.show_json("ports")?, site.daemon.log());
        for guest in [&mut site.a, &mut site.b] {
            println!("{}\n{}", guest.vmm_log(), guest.run("dmesg | tail -30; ip -s link")?.text);
        }
    }
    outcome
}

#[test]
fn guests_bear_a_daemon_that_is_away_for_eight_seconds() -> Result<()> {
    bears(&[1, 8])
}

#[test]
fn guests_bear_a_daemon_that_is_away_for_half_a_minute() -> Result<()> {
    bears(&[30])
}
