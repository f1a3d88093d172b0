//! Linux's unmodified r8169 on our rtl8169: from the command line to traffic, and all that an administrator
//! does to a card. Two guests with such cards, one with virtio-net and a port of a program on one switch; the
//! guests are booted once.

use crate::cards::{
    checked, long_pings, negotiates_again, no_wrong_checksum, reaches, tag, tagged_stream, talk, untag, A, B,
    C, LIMIT,
};
use sidecore_lab::traffic::{iperf3, Pinging};
use sidecore_lab::{Daemon, Guest, Nic, Result, Role, RunDir};
use std::time::Duration;

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

/// The receiver's card completes no checksum itself: it gets every frame complete, from each sender and in
/// each size.
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

fn long_frames_and_tags(Site { a, b, c, daemon }: &mut Site) -> Result<()> {
    tag([(&mut *a, 1), (&mut *b, 2), (&mut *c, 3)], JUMBO)?;
    let long = |from: &mut Guest, address: &str| long_pings(from, address, &[16, 6_900]);
    long(a, "10.0.7.2")?;
    long(b, "10.0.7.3")?;
    long(c, "10.0.7.1")?;
    long(a, B)?;
    long(b, C)?;
    tagged_stream(daemon, c, b, JUMBO)?;
    // Tags that the driver puts in and looks for itself.
    for guest in [&mut *a, &mut *b] {
        guest.expect("ethtool -K eth0 txvlan off rxvlan off")?;
    }
    long(a, "10.0.7.2")?;
    for guest in [&mut *a, &mut *b] {
        guest.expect("ethtool -K eth0 txvlan on rxvlan on")?;
    }
    untag([a, b, c])
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
        negotiates_again(guest)?;
        pings.more(c, 2)?;
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
        no_wrong_checksum(guest)?;
    }
    let ports = daemon.show_json("ports")?.to_string();
    assert!(ports.contains("doorbells trap") && !ports.contains("fault\":\""), "{ports}");
    let balance = daemon.balance()?;
    println!("{balance}; {:?}", balance.drops);
    Ok(())
}
