//! Our own guest driver for the RTL8169, built for the guests' kernel, without and with the status block.

use crate::cards::{with_most_pieces, A, B, LIMIT};
use sidecore_lab::kbuild::{build, drivers, Kernel};
use sidecore_lab::traffic::{iperf3, received_gbits, Ping};
use sidecore_lab::{Daemon, Guest, Nic, Result, RunDir};

#[test]
fn r8169x_carries_traffic_and_the_block_saves_traps() -> Result<()> {
    let module = build(&drivers()?.join("r8169x"), "r8169x", Kernel::Guest)?;
    let pieces = with_most_pieces("r8169x")?;
    let dir = RunDir::new("r8169x")?;
    let ports = ["a", "b"].map(|name| format!("{name}=rtl8169:{},csb=on", dir.join(name)));
    let mut daemon = Daemon::start(&["--port", &ports[0], "--port", &ports[1]])?;
    let spec = |name: &str| {
        let guest = Guest::named(name).nic(Nic::vfio_user(dir.join(name)));
        guest.file("/r8169x.ko", 0o644, module.clone()).file("/pieces.ko", 0o644, pieces.clone())
    };
    let [mut a, mut b] = Guest::boot_all([spec("a"), spec("b")])?;
    a.expect("rmmod r8169")?;
    b.expect("rmmod r8169")?;
    let mut costs = Vec::new();
    for switches in ["csb=0", "csb=0 tx_ring=64 rx_ring=64", "csb=1 tx_ring=64 rx_ring=64", "csb=1"] {
        for (guest, address) in [(&mut a, A), (&mut b, B)] {
            // In a small ring there is hardly room for the frame with the most pieces.
            let module = if switches.contains("ring=64") { "pieces" } else { "r8169x" };
            guest.expect(&format!("insmod /{module}.ko {switches}"))?;
            guest.wait_until("test -e /sys/class/net/eth0", LIMIT)?;
            guest.address(&format!("{address}/24"))?;
        }
        a.wait_until(&format!("ping -c 1 -W 1 {B} > /dev/null"), LIMIT)?;
        let text = a.expect(&format!("ping -c 5 -i 0.1 {B}"))?;
        let ping = Ping::parse(&text).unwrap();
        assert_eq!(ping.lost(), 0, "{switches}: {text}");
        let before = traps(&mut daemon)?;
        let there = iperf3(&mut b, B, "--bytes 4M", |command| a.run(command))?;
        let cost = traps(&mut daemon)? - before;
        let back = iperf3(&mut a, A, "--bytes 4M", |command| b.run(command))?;
        // Frames without segmentation, each of them complete.
        a.expect("ethtool -K eth0 tso off")?;
        iperf3(&mut b, B, "--bytes 1M", |command| a.run(command))?;
        println!(
            "{switches:30} ping {} ms, TCP {:.2} and {:.2} Gbit/s, {cost} traps for 4 MiB, {} interrupts",
            ping.min_ms,
            received_gbits(&there),
            received_gbits(&back),
            count(&mut a, "interrupts")?
        );
        costs.push(cost);
        let flags = a.expect("ethtool --show-priv-flags eth0")?;
        assert_eq!(
            flags.lines().any(|line| line.starts_with("csb") && line.ends_with("on")),
            switches.contains("csb=1")
        );
        let (rung, saved) = (count(&mut a, "tx_doorbells")?, count(&mut a, "tx_doorbells_saved_by_csb")?);
        println!("{switches:30} {rung} doorbells were rung, the block saved {saved}");
        assert_eq!(saved > 0, switches.contains("csb=1"), "{saved} doorbells were saved");
        // The link goes and comes back, and the interface does.
        daemon.command(&["set", "a", "link=down"])?;
        a.wait_until("grep -q 0 /sys/class/net/eth0/carrier", LIMIT)?;
        daemon.command(&["set", "a", "link=up"])?;
        a.wait_until("grep -q 1 /sys/class/net/eth0/carrier", LIMIT)?;
        a.expect("ip link set eth0 down; ip link set eth0 up")?;
        a.wait_until(&format!("ping -c 1 -W 1 {B} > /dev/null"), LIMIT)?;
        for guest in [&mut a, &mut b] {
            let wrong = guest.expect("awk '/^Tcp:/{n = $NF} END{print n}' /proc/net/snmp")?;
            assert_eq!(wrong, "0\n", "{switches}: wrong checksums");
            guest.expect("rmmod r8169x")?;
            assert_eq!(guest.run("dmesg | grep -E 'WARNING|BUG|Oops'")?.text, "", "{switches}");
        }
        // A driver that goes leaves nothing behind that the device takes for frames.
        let drops = daemon.balance()?.drops;
        for reason in ["bad_offload", "too_short", "too_long", "too_many_pieces"] {
            assert_eq!(drops.get(reason), None, "{switches}: {drops:?}");
        }
    }
    let [without, _, _, with] = costs[..] else { panic!("four settings") };
    assert!(with < without, "{with} traps with the block, {without} without");
    let queues = daemon.show_json("queues")?.to_string();
    assert!(!queues.contains("fault"), "{queues}");
    Ok(())
}

/// Kernels change what drivers call; the guests' kernel is an old one.
#[test]
fn r8169x_builds_for_the_newest_kernel() -> Result<()> {
    build(&drivers()?.join("r8169x"), "r8169x", Kernel::Newest).map(drop)
}

/// Register accesses of both guests so far.
fn traps(daemon: &mut Daemon) -> Result<u64> {
    let ports = daemon.show_json("ports")?;
    let mut sum = 0;
    for port in ports["ports"].as_array().unwrap() {
        let text = port["state"]["features"].to_string();
        for name in ["trapped-reads=", "trapped-writes="] {
            let after = text.split_once(name).unwrap().1;
            let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
            sum += digits.parse::<u64>().unwrap();
        }
    }
    Ok(sum)
}

/// One of the driver's own counters.
fn count(guest: &mut Guest, name: &str) -> Result<u64> {
    let text = guest.expect(&format!("ethtool -S eth0 | sed -n 's/^ *{name}: //p'"))?;
    Ok(text.trim().parse().unwrap())
}
