//! Linux's unmodified r8169 on our rtl8169: from the command line to traffic, and all that an administrator does to a card. Two
//! guests with such cards, one with virtio-net and a port of a program on one switch; the guests are booted once.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use sidecore_lab::capture::tshark;
use sidecore_lab::traffic::{iperf3, received_gbits, Ping, Pinging};
use sidecore_lab::{Daemon, Guest, Nic, Result, Role, RunDir};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(90);
const ETHERNET: usize = 14;
const TAG: usize = 4;
const A: &str = "10.0.0.1";
const B: &str = "10.0.0.2";
const C: &str = "10.0.0.3";
/// Linux gives the card some more than 7,000 bytes at most.
const JUMBO: usize = 7000;
/// The driver is unloaded and loaded this often; more with `LAB_RELOADS`.
const RELOADS: u32 = 5;

struct Site {
    daemon: Daemon,
    /// rtl8169.
    a: Guest,
    /// rtl8169.
    b: Guest,
    /// virtio-net with every offload.
    c: Guest,
}

#[test]
fn an_unmodified_driver_does_all_that_it_can() -> Result<()> {
    let dir = RunDir::new("rtl8169")?;
    let at = |name: &str| dir.join(name);
    let ports = [
        format!("a=rtl8169:{},mtu=9000,mac=52:54:00:00:81:01", at("a")),
        format!("b=rtl8169:{},mtu=9000,mac=52:54:00:00:81:02", at("b")),
        format!("c=vhost-user:{},mtu=9000", at("c")),
    ];
    let daemon = Daemon::start(&ports.each_ref().map(|port| ["--port", port]).concat())?;
    let [a, b, c] = Guest::boot_all([
        Guest::named("a").nic(Nic::vfio_user(at("a"))),
        Guest::named("b").nic(Nic::vfio_user(at("b"))),
        Guest::named("c").nic(Nic::vhost_user(at("c"), Role::QemuClient { reconnect_ms: 0 }, 1)),
    ])?;
    let mut site = Site { daemon, a, b, c };

    driver_and_addresses(&mut site)?;
    ping_tcp_and_udp(&mut site)?;
    checksums_are_right_on_every_frame(&mut site)?;
    long_frames_and_tags(&mut site)?;
    filters_follow_the_guest(&mut site)?;
    links_change_under_traffic(&mut site)?;
    the_driver_goes_and_comes_back(&mut site)?;
    a_guest_reboots(&mut site)?;
    what_the_counters_say(&mut site)
}

fn up(guest: &mut Guest, address: &str) -> Result<()> {
    guest
        .expect(&format!("ip addr flush dev eth0; ip addr add {address}/24 dev eth0; ip link set eth0 up"))
        .map(drop)
}

fn reaches(guest: &mut Guest, address: &str) -> Result<()> {
    guest.wait_until(&format!("ping -c 1 -W 1 {address} > /dev/null"), LIMIT)
}

fn driver_and_addresses(Site { a, b, c, .. }: &mut Site) -> Result<()> {
    for (guest, number) in [(&mut *a, 1), (&mut *b, 2)] {
        assert_eq!(guest.expect("ethtool -i eth0 | sed -n 's/^driver: //p'")?.trim(), "r8169");
        let address = guest.expect("cat /sys/class/net/eth0/address")?;
        assert_eq!(address.trim(), format!("52:54:00:00:81:0{number}"));
        println!("{}", guest.expect("dmesg | grep r8169")?);
    }
    for (guest, address) in [(&mut *a, A), (&mut *b, B), (&mut *c, C)] {
        up(guest, address)?;
    }
    reaches(a, B)?;
    reaches(b, C)?;
    reaches(c, A)?;
    let speed = a.expect("ethtool eth0")?;
    assert!(speed.contains("1000Mb/s") && speed.contains("Full"), "{speed}");
    // Off unless it is asked for, since some boards do it badly.
    for guest in [a, b] {
        guest.expect("ethtool -K eth0 sg on tso on")?;
    }
    Ok(())
}

fn ping_tcp_and_udp(Site { a, b, c, .. }: &mut Site) -> Result<()> {
    talk("rtl8169 → rtl8169", a, b, B)?;
    talk("rtl8169 → virtio", b, c, C)?;
    talk("virtio → rtl8169", c, a, A)
}

fn talk(name: &str, from: &mut Guest, to: &mut Guest, address: &str) -> Result<()> {
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

/// The receiver's card completes no checksum itself: it gets every frame complete, from each sender and in each size.
fn checksums_are_right_on_every_frame(Site { daemon, a, b, c }: &mut Site) -> Result<()> {
    for (from, tso) in [(&mut *a, "on"), (&mut *c, "on")] {
        let capture = daemon.capture("b")?;
        iperf3(b, B, "--bytes 4M", |command| from.run(command))?;
        let frames = checked(&capture.end()?, &format!("ip.dst == {B}"), 1500)?;
        assert!(frames > 1000, "{frames} frames for 4 MB");
        println!("{}, TSO {tso}: {frames} frames, every checksum right", from.name());
    }
    a.expect("ethtool -K eth0 tso off")?;
    let capture = daemon.capture("b")?;
    iperf3(b, B, "--bytes 4M", |command| a.run(command))?;
    assert!(checked(&capture.end()?, &format!("ip.dst == {B}"), 1500)? > 1000);
    a.expect("ethtool -K eth0 tso on").map(drop)
}

/// All frames of a capture are no longer than `mtu` and have right checksums; returns how many there are.
fn checked(file: &std::path::Path, filter: &str, mtu: usize) -> Result<usize> {
    let frames = tshark(file, &format!("tcp && {filter}"), &["frame.len", "tcp.checksum.status"])?;
    for frame in &frames {
        assert!(frame[1] == "1" && frame[0].parse::<usize>().unwrap() <= ETHERNET + TAG + mtu, "{frame:?}");
    }
    Ok(frames.len())
}

fn long_frames_and_tags(Site { a, b, c, daemon }: &mut Site) -> Result<()> {
    for (guest, host) in [(&mut *a, 1), (&mut *b, 2), (&mut *c, 3)] {
        guest.expect(&format!("modprobe 8021q && ip link set eth0 mtu {JUMBO} && ip link set eth0 up"))?;
        guest.expect(&format!(
            "vconfig add eth0 7 && ip link set eth0.7 mtu 7000 up && ip addr add 10.0.7.{host}/24 dev eth0.7"
        ))?;
    }
    long_pings(a, "10.0.7.2")?;
    long_pings(b, "10.0.7.3")?;
    long_pings(c, "10.0.7.1")?;
    long_pings(a, B)?;
    long_pings(b, C)?;
    // Tags, TSO and long frames together, as they reach a card that is given all of it ready.
    let capture = daemon.capture("b")?;
    iperf3(b, "10.0.7.2", "--bytes 8M", |command| c.run(command))?;
    let frames = checked(&capture.end()?, "vlan.id == 7 && ip.dst == 10.0.7.2", JUMBO)?;
    assert!(frames > 500, "{frames} frames for 8 MB");
    // Tags that the driver puts in and looks for itself.
    for guest in [&mut *a, &mut *b] {
        guest.expect("ethtool -K eth0 txvlan off rxvlan off")?;
    }
    long_pings(a, "10.0.7.2")?;
    for guest in [&mut *a, &mut *b] {
        guest.expect("ethtool -K eth0 txvlan on rxvlan on")?;
    }
    for guest in [a, b, c] {
        guest.expect("ip link del eth0.7 2> /dev/null || vconfig rem eth0.7; ip link set eth0 mtu 1500")?;
    }
    Ok(())
}

fn long_pings(from: &mut Guest, address: &str) -> Result<()> {
    reaches(from, address)?;
    for size in [16, 6_900] {
        let text = from.expect(&format!("ping -c 5 -i 0.1 -s {size} {address}"))?;
        assert_eq!(Ping::parse(&text).unwrap().lost(), 0, "{size} bytes to {address}: {text}");
    }
    Ok(())
}

/// Promiscuous: frames for a station that does not exist come through to it, and otherwise they do not.
fn filters_follow_the_guest(Site { a, c, daemon, .. }: &mut Site) -> Result<()> {
    let features = |daemon: &mut Daemon| daemon.show_json("ports").map(|ports| ports["ports"][0].to_string());
    let received = |a: &mut Guest| -> Result<u64> {
        Ok(a.expect("cat /sys/class/net/eth0/statistics/rx_packets")?.trim().parse().unwrap())
    };
    // To an address that is not there: flooded.
    c.expect("arp -s 10.0.0.99 52:54:00:00:99:99")?;
    for (promiscuous, comes) in [("on", true), ("off", false)] {
        a.expect(&format!("ip link set eth0 promisc {promiscuous}"))?;
        assert_eq!(features(daemon)?.contains("\"promiscuous\""), comes);
        let before = received(a)?;
        c.run("ping -c 20 -i 0.02 -W 1 10.0.0.99 > /dev/null")?;
        let more = received(a)? - before;
        assert_eq!(more >= 20, comes, "promiscuous {promiscuous}: {more} frames came");
    }
    c.expect("arp -d 10.0.0.99").map(drop)
}

fn links_change_under_traffic(Site { a, b, c, daemon }: &mut Site) -> Result<()> {
    for (name, guest, address) in [("a", &mut *a, A), ("b", &mut *b, B)] {
        let pings = Pinging::start(c, address)?;
        guest.expect("for i in 1 2 3; do ip link set eth0 down; ip link set eth0 up; done")?;
        pings.more(c, 2)?;
        // The carrier is the operator's.
        for (link, carrier) in [("down", 0), ("up", 1)] {
            daemon.command(&["set", name, &format!("link={link}")])?;
            guest.wait_until(&format!("test $(cat /sys/class/net/eth0/carrier) = {carrier}"), LIMIT)?;
        }
        pings.more(c, 2)?;
        guest.expect("ethtool -C eth0 rx-usecs 100 rx-frames 16 tx-usecs 100 tx-frames 16")?;
        pings.more(c, 2)?;
        guest.expect("ethtool -C eth0 rx-usecs 0 rx-frames 0 tx-usecs 0 tx-frames 0")?;
        pings.end(c)?;
    }
    Ok(())
}

fn the_driver_goes_and_comes_back(Site { a, b, c, .. }: &mut Site) -> Result<()> {
    let reloads = std::env::var("LAB_RELOADS").ok().and_then(|n| n.parse().ok()).unwrap_or(RELOADS);
    let jobs = [&mut *a, &mut *b].map(|guest| {
        guest.run_in_background(&format!(
            "for i in $(seq {reloads}); do rmmod r8169 && modprobe r8169 || exit; done"
        ))
    });
    for ((guest, address), job) in [(&mut *a, A), (&mut *b, B)].into_iter().zip(jobs) {
        let result = guest.wait_for(job?, LIMIT + Duration::from_secs(2 * u64::from(reloads)))?;
        assert!(result.success(), "{}", result.text);
        guest.wait_until("test -e /sys/class/net/eth0", LIMIT)?;
        up(guest, address)?;
        reaches(c, address)?;
    }
    println!("the driver was unloaded and loaded {reloads} times");
    Ok(())
}

fn a_guest_reboots(Site { a, c, .. }: &mut Site) -> Result<()> {
    a.reboot()?;
    up(a, A)?;
    reaches(c, A)?;
    iperf3(a, A, "--time 1", |command| c.run(command)).map(drop)
}

fn what_the_counters_say(Site { daemon, a, b, c }: &mut Site) -> Result<()> {
    // Dumped by the device into the guest's memory.
    let sent = b.expect("ethtool -S eth0 | awk '/tx_packets/{print $2}'")?;
    assert!(sent.trim().parse::<u64>().unwrap() > 1000, "{sent}");
    for guest in [a, b, c] {
        // The last word of each line of values: InCsumErrors of TCP, and the third last of UDP.
        let wrong = guest.expect(
            "awk '/^(Tcp|Udp):/{if ($1 in n) {print $(n[$1])} else for (i = 1; i <= NF; i++) if ($i == \"InCsumErrors\") n[$1] = i}' /proc/net/snmp",
        )?;
        assert_eq!(wrong, "0\n0\n", "guest {}: wrong checksums", guest.name());
    }
    let ports = daemon.show_json("ports")?.to_string();
    assert!(ports.contains("doorbells trap") && !ports.contains("fault\":\""), "{ports}");
    let balance = daemon.balance()?;
    println!("{balance}; {:?}", balance.drops);
    Ok(())
}
