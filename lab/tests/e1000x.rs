//! Our own guest driver, built for the guests' kernel and loaded with every one of its switches, on both cards.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use sidecore_lab::kbuild::{build, drivers, Kernel};
use sidecore_lab::traffic::{iperf3, received_gbits, Ping};
use sidecore_lab::{Daemon, Guest, Nic, Result, RunDir};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(90);
const A: &str = "10.0.0.1";
const B: &str = "10.0.0.2";

#[test]
fn every_switch_of_e1000x_carries_traffic() -> Result<()> {
    let module = build(&drivers()?.join("e1000x"), "e1000x", Kernel::Guest)?;
    let dir = RunDir::new("e1000x")?;
    let ports = [format!("a=e1000e:{}", dir.join("a")), format!("b=e1000:{},csb=on", dir.join("b"))];
    let mut daemon = Daemon::start(&["--port", &ports[0], "--port", &ports[1]])?;
    let spec = |name: &str| {
        Guest::named(name).nic(Nic::vfio_user(dir.join(name))).file("/e1000x.ko", 0o644, module.clone())
    };
    let [mut a, mut b] = Guest::boot_all([spec("a"), spec("b")])?;
    a.expect("rmmod e1000e e1000")?;
    b.expect("rmmod e1000e e1000")?;
    for switches in [
        "csb=0",
        "csb=0 sc=1 itr=250",
        "csb=0 lazy=1",
        "csb=0 napi=0",
        "csb=0 more=0 tx_ring=64 rx_ring=64",
        "csb=0 polling=1 poll_us=200",
        "csb=1",
        "csb=1 lazy=1",
    ] {
        for (guest, address) in [(&mut a, A), (&mut b, B)] {
            guest.expect(&format!("insmod /e1000x.ko {switches}"))?;
            guest.wait_until("test -e /sys/class/net/eth0", LIMIT)?;
            guest.address(&format!("{address}/24"))?;
        }
        a.wait_until(&format!("ping -c 1 -W 1 {B} > /dev/null"), LIMIT)?;
        let text = a.expect(&format!("ping -c 5 -i 0.1 {B}"))?;
        let ping = Ping::parse(&text).unwrap();
        assert_eq!(ping.lost(), 0, "{switches}: {text}");
        let before = count(&mut a, "tx_doorbells")?;
        let there = iperf3(&mut b, B, "--bytes 4M", |command| a.run(command))?;
        let doorbells = count(&mut a, "tx_doorbells")? - before;
        let back = iperf3(&mut a, A, "--bytes 4M", |command| b.run(command))?;
        let irqs = count(&mut a, "interrupts")?;
        println!(
            "{switches:30} ping {} ms, TCP {:.2} and {:.2} Gbit/s, {doorbells} doorbells, {irqs} interrupts",
            ping.min_ms,
            received_gbits(&there),
            received_gbits(&back)
        );
        let flags = a.expect("ethtool --show-priv-flags eth0")?;
        let on = |name: &str| flags.lines().any(|line| line.starts_with(name) && line.ends_with("on"));
        for (switch, name) in
            [("sc=1", "send-combining"), ("lazy=1", "lazy-completion"), ("polling=1", "device-polling")]
        {
            assert_eq!(switches.contains(switch), on(name), "{switches}: {flags}");
        }
        if switches.contains("csb=1") {
            let saved = count(&mut b, "tx_doorbells_saved_by_csb")?;
            let rung = count(&mut b, "tx_doorbells")?;
            println!("{switches:30} the block saved {saved} doorbells, {rung} were rung");
            assert!(saved > 0, "no doorbell was saved by the block");
        }
        if switches.contains("polling") {
            // One for the link, if it changed.
            assert!(irqs <= 1 && count(&mut a, "timer_ticks")? > 0, "{irqs} interrupts while polling");
        }
        for guest in [&mut a, &mut b] {
            let wrong = guest.expect("awk '/^Tcp:/{n = $NF} END{print n}' /proc/net/snmp")?;
            assert_eq!(wrong, "0\n", "{switches}: wrong checksums");
            guest.expect("rmmod e1000x")?;
        }
        // A driver that goes leaves nothing behind that the device takes for frames.
        let drops = daemon.balance()?.drops;
        for reason in ["bad_offload", "too_short", "too_long", "too_many_pieces"] {
            assert_eq!(drops.get(reason), None, "{switches}: {drops:?}");
        }
    }
    let balance = daemon.balance()?;
    println!("{balance}; {:?}", balance.drops);
    let queues = daemon.show_json("queues")?.to_string();
    assert!(!queues.contains("fault"), "{queues}");
    Ok(())
}

/// Kernels change what drivers call; the guests' kernel is an old one.
#[test]
fn e1000x_builds_for_the_newest_kernel() -> Result<()> {
    let module = build(&drivers()?.join("e1000x"), "e1000x", Kernel::Newest)?;
    let version =
        module.windows(9).position(|part| part == b"vermagic=").map(|at| &module[at + 9..]).unwrap();
    let version = String::from_utf8_lossy(version.split(|byte| *byte == 0).next().unwrap()).into_owned();
    println!("built for {version}");
    let major: u32 = version.split('.').next().unwrap().parse().unwrap();
    assert!(major > 6, "{version}");
    Ok(())
}

/// One of the driver's own counters.
fn count(guest: &mut Guest, name: &str) -> Result<u64> {
    let text = guest.expect(&format!("ethtool -S eth0 | sed -n 's/^ *{name}: //p'"))?;
    Ok(text.trim().parse().unwrap())
}
