//! Unmodified Linux drivers on our e1000 and e1000e: from the command line to traffic, and all that an
//! administrator does to a card. An e1000e, an e1000 and a virtio guest and a ring port on one switch; the
//! guests are booted once.

use crate::cards::{
    checked, long_pings, negotiates_again, no_wrong_checksum, reaches, reloads, sleeps_and_wakes_up, tag,
    tagged_stream, talk, untag, A, B, C, ETHERNET, LIMIT,
};
use serde_json::Value;
use sidecore_lab::capture::delivered;
use sidecore_lab::traffic::{iperf3, Pinging};
use sidecore_lab::{Daemon, Guest, Nic, Result, Role, RunDir};
use sidecore_port::{Interest, Port};
use std::time::Duration;

const RING: &str = "10.0.0.4";
const RING_MAC: &str = "52:54:00:00:e0:04";

struct Site {
    daemon: Daemon,
    /// e1000e.
    a: Guest,
    /// e1000.
    b: Guest,
    /// virtio-net with every offload.
    c: Guest,
    /// A program that gives and takes offloads, in virtio-net headers.
    ring: Port,
    /// One that does neither.
    plain: Port,
}

#[test]
fn unmodified_drivers_do_all_that_they_can() -> Result<()> {
    let dir = RunDir::new("e1000")?;
    let at = |name: &str| dir.join(name);
    let ports = [
        format!("a=e1000e:{},mtu=9000,mac=52:54:00:00:e0:01", at("a")),
        format!("b=e1000:{},mtu=9000,mac=52:54:00:00:e0:02", at("b")),
        format!("c=vhost-user:{},mtu=9000", at("c")),
        format!("r=ring:{},header=12,buf-size=16384", at("r")),
        format!("p=ring:{}", at("p")),
    ];
    let daemon = Daemon::start(&ports.each_ref().map(|port| ["--port", port]).concat())?;
    let [a, b, c] = Guest::boot_all([
        Guest::named("a").nic(Nic::vfio_user(at("a"))),
        Guest::named("b").nic(Nic::vfio_user(at("b"))),
        Guest::named("c").nic(Nic::vhost_user(at("c"), Role::QemuClient { reconnect_ms: 0 }, 1)),
    ])?;
    let [ring, plain] = ["r", "p"].map(|name| Port::attach(&at(name)).unwrap());
    let mut site = Site { daemon, a, b, c, ring, plain };

    drivers_and_addresses(&mut site)?;
    ping_tcp_and_udp(&mut site)?;
    checksums_are_right_on_every_frame(&mut site)?;
    long_frames_and_tags(&mut site)?;
    rings_and_links_change_under_traffic(&mut site)?;
    guests_sleep_and_wake_up(&mut site)?;
    the_self_test_passes_where_it_can(&mut site)?;
    drivers_go_and_come_back(&mut site)?;
    a_guest_reboots(&mut site)?;
    what_the_counters_say(&mut site)
}

fn up(guest: &mut Guest, address: &str) -> Result<()> {
    guest
        .expect(&format!("ip addr flush dev eth0; ip addr add {address}/24 dev eth0; ip link set eth0 up"))
        .map(drop)
}

fn drivers_and_addresses(Site { a, b, c, .. }: &mut Site) -> Result<()> {
    for (guest, driver, number) in [(&mut *a, "e1000e", 1), (&mut *b, "e1000", 2)] {
        assert_eq!(guest.expect("ethtool -i eth0 | sed -n 's/^driver: //p'")?.trim(), driver);
        assert_eq!(
            guest.expect("cat /sys/class/net/eth0/address")?.trim(),
            format!("52:54:00:00:e0:0{number}")
        );
    }
    for (guest, address) in [(&mut *a, A), (&mut *b, B), (&mut *c, C)] {
        up(guest, address)?;
    }
    reaches(a, B)?;
    reaches(b, C)?;
    reaches(c, A)
}

fn ping_tcp_and_udp(Site { a, b, c, .. }: &mut Site) -> Result<()> {
    talk("e1000e → e1000", a, b, B)?;
    talk("e1000 → virtio", b, c, C)?;
    talk("virtio → e1000e", c, a, A)
}

/// Receivers that complete no checksum themselves get every frame complete, from each sender and in each
/// size.
fn checksums_are_right_on_every_frame(site: &mut Site) -> Result<()> {
    // TSO on one side, none on the other.
    for (tso, port, filter) in [("on", "b", B), ("off", "b", B), ("on", "a", A)] {
        let Site { daemon, a, b, c, .. } = &mut *site;
        let (from, to) = if port == "b" { (a, b) } else { (c, a) };
        from.expect(&format!("ethtool -K eth0 tso {tso}"))?;
        let capture = daemon.capture(port)?;
        iperf3(to, filter, "--bytes 4M", |command| from.run(command))?;
        let frames = checked(&capture.end()?, &format!("ip.dst == {filter}"), 1500)?;
        assert!(frames > 1000, "{frames} frames for 4 MB");
        println!("TSO {tso} to {port}: {frames} frames, every checksum right");
        from.expect("ethtool -K eth0 tso on")?;
    }
    // To a program: guests leave checksums to their cards, and the ring port asks for whole ones.
    let Site { daemon, a, b, c, ring, plain } = &mut *site;
    for guest in [&mut *a, &mut *c] {
        guest.expect(&format!("arp -s {RING} {RING_MAC}"))?;
        // It asks for a file of this name and gets no answer.
        guest.run_in_background(&format!("timeout 2 tftp -g -r hello -l /dev/null {RING}"))?;
        let mut seen = false;
        while !seen {
            assert!(
                plain.wait(Interest::RECEIVE, Some(LIMIT)).unwrap(),
                "nothing comes from {}",
                guest.name()
            );
            while let Some(frame) = plain.rx[0].take() {
                let frame = frame.bytes();
                if frame.windows(5).any(|part| part == b"hello") {
                    // UDP with its pseudo-header (RFC 768).
                    let ip = &frame[ETHERNET..];
                    let pseudo = sum(&ip[12..20], 17 + u32::try_from(ip.len() - 20).unwrap());
                    assert_eq!(sum(&ip[20..], pseudo.into()), 0xffff, "{}", guest.name());
                    seen = true;
                }
            }
        }
    }
    // From a program: 6,000 bytes of TCP in one frame, for which the e1000 gets six segments.
    let capture = daemon.capture("b")?;
    let mac = b.expect("cat /sys/class/net/eth0/address")?;
    assert!(ring.tx[0].push(&large_frame(mac.trim(), 6_000, 1_000)));
    ring.tx[0].sync().unwrap();
    capture.wait_bytes(6_000)?;
    let file = capture.end()?;
    let frames = delivered(
        &file,
        &format!("tcp.dstport == 4242 && ip.src == {RING}"),
        &["tcp.len", "tcp.checksum.status", "ip.checksum.status"],
    )?;
    assert_eq!(frames, [["1000", "1", "1"]; 6], "six segments, every checksum right");
    Ok(())
}

/// The Internet checksum's sum of `bytes`, whose number is even or followed by a zero, on top of `start`.
fn sum(bytes: &[u8], start: u32) -> u16 {
    let word = |w: &[u8]| u32::from(w[0]) * 256 + u32::from(w.get(1).copied().unwrap_or(0));
    let sum = bytes.chunks(2).fold(start, |sum, w| sum + word(w));
    let sum = (sum & 0xffff) + (sum >> 16);
    u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap()
}

/// A virtio-net header and a TCP frame of `bytes` of data from the ring port, to be cut into pieces of
/// `size`.
fn large_frame(to: &str, bytes: usize, size: u16) -> Vec<u8> {
    let mac = |text: &str| text.split(':').map(|b| u8::from_str_radix(b, 16).unwrap()).collect::<Vec<_>>();
    let ip = |text: &str| text.parse::<std::net::Ipv4Addr>().unwrap().octets();
    let total = u16::try_from(40 + bytes).unwrap();
    let mut tcp = vec![0x10, 0x92, 0x10, 0x92, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0];
    let mut header = vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 6, 0, 0];
    header[2..4].copy_from_slice(&total.to_be_bytes());
    header.extend(ip(RING));
    header.extend(ip(B));
    let own = !sum(&header, 0);
    header[10..12].copy_from_slice(&own.to_be_bytes());
    // The pseudo-header's sum stands where the checksum goes, and is not complemented.
    let pseudo = sum(&header[12..20], 6 + u32::from(total) - 20);
    tcp[16..18].copy_from_slice(&pseudo.to_be_bytes());
    // NEEDS_CSUM, TCPv4, header length, segment size, where the checksum starts, where it goes.
    let mut frame = vec![1, 1, 54, 0];
    frame.extend(size.to_le_bytes());
    frame.extend([34, 0, 16, 0, 0, 0]);
    frame.extend(mac(to));
    frame.extend(mac(RING_MAC));
    frame.extend([8, 0]);
    frame.extend(header);
    frame.extend(tcp);
    frame.extend((0..bytes).map(|n| u8::try_from(n % 251).unwrap()));
    frame
}

fn long_frames_and_tags(Site { a, b, c, daemon, .. }: &mut Site) -> Result<()> {
    tag([(&mut *a, 1), (&mut *b, 2), (&mut *c, 3)], 9_000)?;
    let long = |from: &mut Guest, address: &str| long_pings(from, address, &[16, 8_900]);
    long(a, "10.0.7.2")?;
    long(b, "10.0.7.3")?;
    long(c, "10.0.7.1")?;
    long(a, B)?;
    long(b, C)?;
    tagged_stream(daemon, c, b, 9_000)?;
    untag([a, b, c])
}

fn rings_and_links_change_under_traffic(Site { a, b, c, daemon, .. }: &mut Site) -> Result<()> {
    for (name, guest, address) in [("a", &mut *a, A), ("b", &mut *b, B)] {
        let pings = Pinging::start(c, address)?;
        for size in [128, 1024, 256] {
            guest.expect(&format!("ethtool -G eth0 rx {size} tx {size}"))?;
            pings.more(c, 2)?;
        }
        guest.expect("for i in 1 2 3 4 5; do ip link set eth0 down; ip link set eth0 up; done")?;
        pings.more(c, 2)?;
        // The carrier is the operator's.
        for (link, carrier) in [("down", 0), ("up", 1)] {
            daemon.command(&["set", name, &format!("link={link}")])?;
            guest.wait_until(&format!("test $(cat /sys/class/net/eth0/carrier) = {carrier}"), LIMIT)?;
        }
        pings.more(c, 2)?;
        negotiates_again(guest)?;
        pings.more(c, 2)?;
        pings.end(c)?;
    }
    Ok(())
}

fn guests_sleep_and_wake_up(Site { a, b, c, .. }: &mut Site) -> Result<()> {
    for guest in [&mut *a, &mut *b] {
        sleeps_and_wakes_up(guest)?;
        reaches(guest, C)?;
    }
    reaches(c, A)
}

/// Offline it tests registers, too. A mapped page keeps every bit that is written, so of a card whose pages
/// are mapped that one does not pass: see docs/e1000.md.
fn the_self_test_passes_where_it_can(Site { a, b, .. }: &mut Site) -> Result<()> {
    for how in ["online", "offline"] {
        let jobs = [&mut *a, &mut *b].map(|guest| guest.run_in_background(&format!("ethtool -t eth0 {how}")));
        for (guest, job) in [&mut *a, &mut *b].into_iter().zip(jobs) {
            let result = guest.wait_for(job?, LIMIT)?;
            println!("{how}: {}", result.text);
            let passed = |name: &str| {
                let line = result.text.lines().find(|line| line.contains(name));
                line.is_some_and(|line| line.split_whitespace().last() == Some("0"))
            };
            let names: &[&str] =
                if how == "online" { &["Link"] } else { &["Eeprom", "Interrupt", "Loopback", "Link"] };
            for name in names {
                assert!(passed(name), "{name}, {how}: {}", result.text);
            }
        }
    }
    reaches(a, C)?;
    reaches(b, C)
}

fn drivers_go_and_come_back(Site { a, b, c, .. }: &mut Site) -> Result<()> {
    let reloads = reloads();
    let jobs = [(&mut *a, "e1000e"), (&mut *b, "e1000")].map(|(guest, driver)| {
        guest.run_in_background(&format!(
            "for i in $(seq {reloads}); do rmmod {driver} && modprobe {driver} || exit; done"
        ))
    });
    for ((guest, address), job) in [(&mut *a, A), (&mut *b, B)].into_iter().zip(jobs) {
        let result = guest.wait_for(job?, LIMIT + Duration::from_secs(2 * u64::from(reloads)))?;
        assert!(result.success(), "{}", result.text);
        guest.wait_until("test -e /sys/class/net/eth0", LIMIT)?;
        up(guest, address)?;
        reaches(c, address)?;
    }
    println!("both drivers unloaded and loaded {reloads} times");
    Ok(())
}

fn a_guest_reboots(Site { a, c, .. }: &mut Site) -> Result<()> {
    a.reboot()?;
    up(a, A)?;
    reaches(c, A)?;
    iperf3(a, A, "--time 1", |command| c.run(command)).map(drop)
}

fn what_the_counters_say(Site { daemon, a, b, c, .. }: &mut Site) -> Result<()> {
    for guest in [a, b, c] {
        no_wrong_checksum(guest)?;
    }
    let ports = daemon.show_json("ports")?;
    let port = |name: &str| {
        ports["ports"]
            .as_array()
            .unwrap()
            .iter()
            .find(|port| port["name"] == name)
            .map(Value::to_string)
            .unwrap()
    };
    for word in ["\"exitless\"", "trapped-tx-tails=0", "trapped-rx-tails=0", "msix"] {
        assert!(port("a").contains(word), "no {word} in {}", port("a"));
    }
    // Whether the VMM keeps the pages mapped beside INTx is its affair; that we know is ours.
    assert!(port("b").contains("intx") && !port("b").contains("fault\":\""), "{}", port("b"));
    let balance = daemon.balance()?;
    println!("{balance}; {:?}", balance.drops);
    Ok(())
}
