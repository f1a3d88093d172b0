//! What the tests of our cards in guests have in common: addresses, traffic, and what every card has to do.

// No test uses all of it.
#![allow(dead_code)]

use sidecore_lab::capture::delivered;
use sidecore_lab::kbuild::{build, drivers, Kernel};
use sidecore_lab::traffic::{iperf3, received_gbits, Ping};
use sidecore_lab::{Daemon, Guest, Result, RunDir};
use std::time::Duration;

pub const LIMIT: Duration = Duration::from_secs(90);
pub const ETHERNET: usize = 14;
pub const TAG: usize = 4;
pub const A: &str = "10.0.0.1";
pub const B: &str = "10.0.0.2";
pub const C: &str = "10.0.0.3";
/// Drivers are unloaded and loaded this often; more with `LAB_RELOADS`.
const RELOADS: u32 = 10;

pub fn reloads() -> u32 {
    std::env::var("LAB_RELOADS").ok().and_then(|n| n.parse().ok()).unwrap_or(RELOADS)
}

pub fn reaches(guest: &mut Guest, address: &str) -> Result<()> {
    guest.wait_until(&format!("ping -c 1 -W 1 {address} > /dev/null"), LIMIT)
}

pub fn talk(name: &str, from: &mut Guest, to: &mut Guest, address: &str) -> Result<()> {
    let text = from.expect(&format!("ping -c 10 -i 0.1 {address}"))?;
    let ping = Ping::parse(&text).unwrap();
    assert_eq!(ping.lost(), 0, "{name}: {text}");
    let there = iperf3(to, address, "--time 1", |command| from.run(command))?;
    let back = iperf3(to, address, "--time 1 --reverse", |command| from.run(command))?;
    let udp = iperf3(to, address, "--time 1 --udp --bitrate 20M", |command| from.run(command))?;
    let lost = &udp["end"]["sum"]["lost_percent"];
    println!(
        "{name}: ping {}/{} ms; TCP {:.2} Gbit/s, back {:.2}; UDP 20 Mbit/s: {lost} % lost",
        ping.min_ms,
        ping.avg_ms,
        received_gbits(&there),
        received_gbits(&back)
    );
    assert!(udp["end"]["sum"]["packets"].as_u64().unwrap() > 100, "{udp:#}");
    Ok(())
}

/// All frames of a capture that were delivered are no longer than `mtu` and have right checksums; returns how
/// many there are.
pub fn checked(file: &std::path::Path, filter: &str, mtu: usize) -> Result<usize> {
    let frames = delivered(file, &format!("tcp && {filter}"), &["frame.len", "tcp.checksum.status"])?;
    for frame in &frames {
        assert!(frame[1] == "1" && frame[0].parse::<usize>().unwrap() <= ETHERNET + TAG + mtu, "{frame:?}");
    }
    Ok(frames.len())
}

/// `guests`, whose last numbers these are, join VLAN 7 on interfaces for frames of `mtu` bytes; [`untag`]
/// ends that.
pub fn tag<const N: usize>(guests: [(&mut Guest, u8); N], mtu: usize) -> Result<()> {
    for (guest, host) in guests {
        guest.expect(&format!("modprobe 8021q && ip link set eth0 mtu {mtu} && ip link set eth0 up"))?;
        guest.expect(&format!(
            "vconfig add eth0 7 && ip link set eth0.7 up && ip addr add 10.0.7.{host}/24 dev eth0.7"
        ))?;
    }
    Ok(())
}

/// Tags, TSO and long frames together, as they reach the card of guest `to`, number 2 behind port `b`, which
/// is given all of it ready.
pub fn tagged_stream(daemon: &mut Daemon, from: &mut Guest, to: &mut Guest, mtu: usize) -> Result<()> {
    let capture = daemon.capture("b")?;
    iperf3(to, "10.0.7.2", "--bytes 8M", |command| from.run(command))?;
    let frames = checked(&capture.end()?, "vlan.id == 7 && ip.dst == 10.0.7.2", mtu)?;
    assert!(frames > 500, "{frames} frames for 8 MB");
    Ok(())
}

pub fn untag<const N: usize>(guests: [&mut Guest; N]) -> Result<()> {
    for guest in guests {
        guest.expect("ip link del eth0.7 2> /dev/null || vconfig rem eth0.7; ip link set eth0 mtu 1500")?;
    }
    Ok(())
}

/// Our driver `name` for the guests' kernel, as it is where a frame may have 45 pieces: later kernels can be
/// built with that as their `MAX_SKB_FRAGS`.
pub fn with_most_pieces(name: &str) -> Result<Vec<u8>> {
    let dir = RunDir::new("pieces")?;
    for entry in std::fs::read_dir(drivers()?.join(name)).unwrap().flatten() {
        let mut text = std::fs::read_to_string(entry.path()).unwrap();
        if entry.file_name() == "ring.c" {
            assert!(text.contains("(MAX_SKB_FRAGS + "));
            text = text.replace("MAX_SKB_FRAGS", "45");
        }
        std::fs::write(dir.path().join(entry.file_name()), text).unwrap();
    }
    build(dir.path(), name, Kernel::Guest)
}

/// Pings of these sizes come back.
pub fn long_pings(from: &mut Guest, address: &str, sizes: &[u16]) -> Result<()> {
    reaches(from, address)?;
    for size in sizes {
        let text = from.expect(&format!("ping -c 5 -i 0.1 -s {size} {address}"))?;
        assert_eq!(Ping::parse(&text).unwrap().lost(), 0, "{size} bytes to {address}: {text}");
    }
    Ok(())
}

/// A speed is forced upon the card, and then left to the PHY again, which negotiates the highest.
pub fn negotiates_again(guest: &mut Guest) -> Result<()> {
    guest.expect("ethtool -s eth0 speed 100 duplex full autoneg off")?;
    guest.wait_until("test $(cat /sys/class/net/eth0/carrier) = 1", LIMIT)?;
    guest.expect("ethtool -s eth0 autoneg on")?;
    guest.wait_until("test $(cat /sys/class/net/eth0/carrier) = 1 && ethtool eth0 | grep -q 1000Mb/s", LIMIT)
}

/// To memory (S3): the card loses power and its driver sets it up again.
pub fn sleeps_and_wakes_up(guest: &mut Guest) -> Result<()> {
    let asleep = guest.run_in_background("echo mem > /sys/power/state")?;
    guest.wait_event("SUSPEND", LIMIT)?;
    guest.qmp(serde_json::json!({"execute": "system_wakeup"}))?;
    let woken = guest.wait_for(asleep, LIMIT)?;
    assert!(woken.success(), "{}", woken.text);
    Ok(())
}

/// The guest's kernel has met no frame with a wrong checksum.
pub fn no_wrong_checksum(guest: &mut Guest) -> Result<()> {
    // The last word of each line of values: InCsumErrors of TCP, and the third last of UDP.
    let wrong = guest.expect(
        "awk '/^(Tcp|Udp):/{if ($1 in n) {print $(n[$1])} else for (i = 1; i <= NF; i++) if ($i == \"InCsumErrors\") n[$1] = i}' /proc/net/snmp",
    )?;
    assert_eq!(wrong, "0\n0\n", "guest {}: wrong checksums", guest.name());
    Ok(())
}
