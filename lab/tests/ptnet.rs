//! Our ptnet driver in guests: everything that people do with a network card, and programs that have its
//! rings themselves. Two ptnet guests, a virtio guest and two programs of the host on one switch; the guests
//! are booted once.

use crate::cards::{
    checked, long_pings, no_wrong_checksum, reaches, reloads, sleeps_and_wakes_up, tag, talk, untag, A, B, C,
    LIMIT,
};
use sidecore_lab::kbuild::{build, drivers, program, Kernel};
use sidecore_lab::traffic::{iperf3, Pinging};
use sidecore_lab::{Daemon, Guest, Nic, Result, Role, RunDir};
use sidecore_port::{Interest, Port};
use std::time::Duration;

/// Frames that a program in a guest and one of the host send each other: no more than a ring holds, so that
/// none is lost however slowly they run.
const NUMBERED: u32 = 900;
/// Broadcasts: frames for groups take no more than half of what a receiver has free, and a guest may be slow.
const TO_ALL: u32 = 200;

struct Site {
    daemon: Daemon,
    /// One pair of rings.
    a: Guest,
    /// Four.
    b: Guest,
    /// virtio-net with every offload.
    c: Guest,
    /// A program that neither gives nor takes offloads.
    plain: Port,
}

#[test]
fn our_driver_does_all_that_it_can() -> Result<()> {
    let module = build(&drivers()?.join("ptnet"), "ptnet", Kernel::Guest)?;
    let netmapio = program("netmapio")?;
    let dir = RunDir::new("ptnet")?;
    let at = |name: &str| dir.join(name);
    let ports = [
        format!("a=ptnet:{},mtu=9000,mac=52:54:00:00:70:01", at("a")),
        format!("b=ptnet:{},queues=4,mtu=9000,mac=52:54:00:00:70:02", at("b")),
        format!("c=vhost-user:{},mtu=9000", at("c")),
        format!("p=ring:{}", at("p")),
    ];
    let daemon = Daemon::start(&ports.each_ref().map(|port| ["--port", port]).concat())?;
    let card = |name: &str, vcpus| {
        Guest::named(name)
            .vcpus(vcpus)
            .nic(Nic::vfio_user(at(name)))
            .nic(Nic::vfio_user(format!("{}.mem", at(name))))
            .file("/ptnet.ko", 0o644, module.clone())
            .file("/netmapio", 0o755, netmapio.clone())
    };
    let virtio = Nic::vhost_user(at("c"), Role::QemuClient { reconnect_ms: 200 }, 1);
    let [a, b, c] = Guest::boot_all([card("a", 1), card("b", 4), Guest::named("c").nic(virtio)])?;
    let plain = Port::attach(&at("p")).unwrap();
    let mut site = Site { daemon, a, b, c, plain };

    drivers_and_addresses(&mut site)?;
    ping_tcp_and_udp(&mut site)?;
    bytes_arrive_as_they_were(&mut site)?;
    checksums_are_right_on_every_frame(&mut site)?;
    long_frames_and_tags(&mut site)?;
    four_rings_carry_traffic(&mut site)?;
    programs_have_the_rings(&mut site)?;
    links_interfaces_and_guests_go_down_and_up(&mut site)?;
    a_card_waits_for_its_memory(&mut site)?;
    the_driver_goes_and_comes_back(&mut site)?;
    a_guest_reboots(&mut site)?;
    the_daemon_is_killed(&mut site)?;
    what_the_counters_say(&mut site)
}

fn load(guest: &mut Guest, address: &str) -> Result<()> {
    guest.expect("insmod /ptnet.ko")?;
    guest.wait_until("test -e /sys/class/net/eth0", LIMIT)?;
    // What the port takes, unless it is told otherwise.
    assert_eq!(guest.expect("cat /sys/class/net/eth0/mtu")?, "9000\n");
    up(guest, address)
}

fn up(guest: &mut Guest, address: &str) -> Result<()> {
    guest.wait_until("test -e /sys/class/net/eth0", LIMIT)?;
    guest
        .expect(&format!(
            "ip addr flush dev eth0; ip addr add {address}/24 dev eth0; ip link set eth0 mtu 1500 up"
        ))
        .map(drop)
}

/// One of the driver's counters, all rings of a direction (`tx`, `rx`) added up.
fn count(guest: &mut Guest, direction: &str, name: &str) -> Result<u64> {
    let text = guest.expect(&format!(
        "ethtool -S eth0 | awk '$1 ~ /^{direction}[0-9]+_{name}:$/ {{sum += $2}} END {{print sum + 0}}'"
    ))?;
    Ok(text.trim().parse().unwrap())
}

fn drivers_and_addresses(Site { a, b, c, .. }: &mut Site) -> Result<()> {
    for (guest, address, number) in [(&mut *a, A, 1), (&mut *b, B, 2)] {
        load(guest, address)?;
        assert_eq!(guest.expect("ethtool -i eth0 | sed -n 's/^driver: //p'")?.trim(), "ptnet");
        assert_eq!(
            guest.expect("cat /sys/class/net/eth0/address")?.trim(),
            format!("52:54:00:00:70:0{number}")
        );
        let offloads = guest.expect("ethtool -k eth0")?;
        for name in ["tx-checksumming", "tcp-segmentation-offload", "tx-udp-segmentation", "scatter-gather"] {
            assert!(offloads.contains(&format!("{name}: on")), "{offloads}");
        }
    }
    up(c, C)?;
    reaches(a, B)?;
    reaches(b, C)?;
    reaches(c, A)
}

fn ping_tcp_and_udp(Site { a, b, c, .. }: &mut Site) -> Result<()> {
    talk("ptnet → ptnet", a, b, B)?;
    talk("ptnet → virtio", b, c, C)?;
    talk("virtio → ptnet", c, a, A)
}

/// With offloads checksums are not looked at on the way, so the bytes themselves are compared: those of a
/// stream, and of messages of every length up to some words.
fn bytes_arrive_as_they_were(Site { a, b, .. }: &mut Site) -> Result<()> {
    same_bytes(a, b, B)?;
    same_bytes(b, a, A)
}

fn same_bytes(from: &mut Guest, to: &mut Guest, address: &str) -> Result<()> {
    let job = to.run_in_background("nc -l -p 9999 -e sh -c 'exec cat > /tmp/got'")?;
    to.wait_until("netstat -lnt | grep -q :9999", LIMIT)?;
    from.expect("dd if=/dev/urandom of=/tmp/sent bs=1001 count=3001 2> /dev/null")?;
    from.expect(&format!("nc {address} 9999 -e cat /tmp/sent"))?;
    to.wait_for(job, LIMIT)?;
    assert_eq!(from.expect("md5sum < /tmp/sent")?, to.expect("md5sum < /tmp/got")?);
    // Each answer is compared with what was sent, and has a checksum that the stack makes itself.
    from.expect(&format!(
        "for n in $(seq 1 72); do ping -c 1 -W 5 -s $n {address} > /dev/null || exit 1; done"
    ))?;
    from.expect("rm /tmp/sent")?;
    to.expect("rm /tmp/got").map(drop)
}

/// A driver that takes no headers gets every frame complete, from each sender and in each size.
fn checksums_are_right_on_every_frame(Site { daemon, a, b, c, .. }: &mut Site) -> Result<()> {
    b.expect("rmmod ptnet && insmod /ptnet.ko offload=0")?;
    up(b, B)?;
    let offloads = b.expect("ethtool -k eth0")?;
    assert!(offloads.contains("tx-checksumming: off"), "{offloads}");
    complete_frames("ptnet", "on", daemon, (a, A), b)?;
    complete_frames("ptnet", "off", daemon, (a, A), b)?;
    complete_frames("virtio", "on", daemon, (c, C), b)?;
    b.expect("rmmod ptnet && insmod /ptnet.ko")?;
    up(b, B)?;
    reaches(a, B)?;
    // With headers on both sides, frames to be segmented go through whole.
    let before = count(b, "rx", "packets")?;
    iperf3(b, B, "--bytes 16M", |command| a.run(command))?;
    let frames = count(b, "rx", "packets")? - before;
    println!("16 MB in {frames} frames");
    assert!(frames < 8_000, "{frames} frames for 16 MB");
    Ok(())
}

fn complete_frames(
    name: &str,
    tso: &str,
    daemon: &mut Daemon,
    (from, address): (&mut Guest, &str),
    b: &mut Guest,
) -> Result<()> {
    from.expect(&format!("ethtool -K eth0 tso {tso}"))?;
    reaches(from, B)?;
    let capture = daemon.capture("b")?;
    iperf3(b, B, "--bytes 4M", |command| from.run(command))?;
    let frames = checked(&capture.end()?, &format!("ip.dst == {B}"), 1500)?;
    println!("{name}, TSO {tso}: {frames} frames, every checksum right");
    assert!(frames > 1000, "{frames} frames for 4 MB");
    iperf3(from, address, "--bytes 4M", |command| b.run(command))?;
    from.expect("ethtool -K eth0 tso on").map(drop)
}

fn long_frames_and_tags(Site { a, b, c, .. }: &mut Site) -> Result<()> {
    tag([(&mut *a, 1), (&mut *b, 2), (&mut *c, 3)], 9_000)?;
    let long = |from: &mut Guest, address: &str| long_pings(from, address, &[16, 1_990, 2_100, 8_900]);
    long(a, "10.0.7.2")?;
    long(b, "10.0.7.3")?;
    long(c, "10.0.7.1")?;
    long(a, B)?;
    long(b, C)?;
    iperf3(b, "10.0.7.2", "--bytes 8M", |command| c.run(command))?;
    iperf3(b, "10.0.7.2", "--bytes 8M", |command| a.run(command))?;
    untag([a, b, c])
}

fn four_rings_carry_traffic(Site { a, b, .. }: &mut Site) -> Result<()> {
    let shown = b.expect("ls /sys/class/net/eth0/queues | wc -l; grep -c eth0- /proc/interrupts")?;
    assert_eq!(shown, "8\n8\n", "rings of four pairs, and interrupts");
    let server = a.run_in_background("iperf3 --server --one-off")?;
    a.wait_until("[ $(netstat -lnt | grep -c :5201) = 1 ]", LIMIT)?;
    let clients = format!("iperf3 --client {A} --time 2 --parallel 16");
    let done = b.run(&clients)?;
    assert!(done.success(), "iperf3: {}", done.text);
    assert!(a.wait_for(server, LIMIT)?.success());
    for direction in ["tx", "rx"] {
        let counted = b.expect(&format!("ethtool -S eth0 | grep {direction}[0-9]_packets"))?;
        let used = counted.lines().filter(|line| !line.ends_with(" 0")).count();
        assert!(used >= 3, "{direction}:\n{counted}");
    }
    Ok(())
}

/// Frame `number` as `netmapio` makes it.
fn numbered(number: u32) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2; 6]);
    frame.extend([0x88, 0xb5]);
    frame.extend(number.to_be_bytes());
    frame.extend((18..60).map(|at: u32| number.wrapping_add(at).to_le_bytes()[0]));
    frame
}

fn programs_have_the_rings(Site { a, b, c, plain, .. }: &mut Site) -> Result<()> {
    // Whatever came before.
    while plain.rx[0].take().is_some() {}
    plain.rx[0].sync().unwrap();
    for guest in [&mut *a, &mut *b] {
        let sent = guest.run_in_background(&format!("/netmapio eth0 send {NUMBERED}"))?;
        let mut next = 0;
        while next < NUMBERED {
            let more = plain.wait(Interest::RECEIVE, Some(LIMIT)).unwrap();
            assert!(more, "{next} frames of {}", guest.name());
            while let Some(frame) = plain.rx[0].take() {
                let bytes = frame.bytes();
                if bytes[12..14] == [0x88, 0xb5] {
                    assert_eq!(bytes, numbered(next), "frame {next} of {}", guest.name());
                    next += 1;
                }
            }
            plain.rx[0].sync().unwrap();
        }
        let sent = guest.wait_for(sent, LIMIT)?;
        assert!(sent.success() && sent.text.contains(&format!("sent {NUMBERED}")), "{}", sent.text);
    }
    // Both get the host's broadcasts.
    let jobs = [&mut *a, &mut *b].map(|guest| {
        guest.run_in_background(&format!("/netmapio eth0 receive {TO_ALL} > /tmp/received 2>&1"))
    });
    for guest in [&mut *a, &mut *b] {
        guest.wait_until("grep -q ready /tmp/received", LIMIT)?;
    }
    for number in 0..TO_ALL {
        assert!(plain.tx[0].push(&numbered(number)));
    }
    plain.tx[0].sync().unwrap();
    for (guest, job) in [&mut *a, &mut *b].into_iter().zip(jobs) {
        let done = guest.wait_for(job?, LIMIT)?;
        let text = guest.expect("cat /tmp/received")?;
        println!("{}: {}", guest.name(), text.trim().replace('\n', ", "));
        assert!(done.success() && text.contains(&format!("received {TO_ALL}, wrong 0")), "{text}");
    }
    // Then the stack has them again.
    reaches(a, B)?;
    reaches(c, A)?;
    reaches(b, C)
}

fn links_interfaces_and_guests_go_down_and_up(Site { daemon, a, b, c, .. }: &mut Site) -> Result<()> {
    for (name, guest, address) in [("a", &mut *a, A), ("b", &mut *b, B)] {
        let pings = Pinging::start(c, address)?;
        guest.expect("for i in 1 2 3 4 5 6 7 8 9 10; do ip link set eth0 down; ip link set eth0 up; done")?;
        pings.more(c, 2)?;
        for (link, carrier) in [("down", 0), ("up", 1)] {
            daemon.command(&["set", name, &format!("link={link}")])?;
            guest.wait_until(&format!("test $(cat /sys/class/net/eth0/carrier) = {carrier}"), LIMIT)?;
        }
        pings.more(c, 2)?;
        sleeps_and_wakes_up(guest)?;
        pings.more(c, 2)?;
        pings.end(c)?;
        reaches(guest, C)?;
    }
    Ok(())
}

/// The kernel may find the two functions in any order, and lose either.
fn a_card_waits_for_its_memory(Site { a, c, .. }: &mut Site) -> Result<()> {
    const DRIVERS: &str = "/sys/bus/pci/drivers";
    let functions = a.expect(&format!("cd {DRIVERS}; basename ptnet/0000*; basename ptnet_memory/0000*"))?;
    let [card, memory] = functions.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{functions}") };
    a.expect(&format!("echo {memory} > {DRIVERS}/ptnet_memory/unbind"))?;
    a.expect(&format!("test ! -e {DRIVERS}/ptnet/{card} && test ! -e /sys/class/net/eth0"))?;
    a.expect(&format!("echo {card} > {DRIVERS}_probe"))?;
    a.expect("test ! -e /sys/class/net/eth0")?;
    a.expect(&format!("echo {memory} > {DRIVERS}_probe"))?;
    up(a, A)?;
    reaches(c, A)
}

fn the_driver_goes_and_comes_back(Site { a, b, c, .. }: &mut Site) -> Result<()> {
    let reloads = reloads();
    let jobs = [&mut *a, &mut *b].map(|guest| {
        guest.run_in_background(&format!(
            "for i in $(seq {reloads}); do rmmod ptnet && insmod /ptnet.ko && ip link set eth0 up || exit; done"
        ))
    });
    for ((guest, address), job) in [(&mut *a, A), (&mut *b, B)].into_iter().zip(jobs) {
        let result = guest.wait_for(job?, LIMIT + Duration::from_secs(2 * u64::from(reloads)))?;
        assert!(result.success(), "{}", result.text);
        up(guest, address)?;
        reaches(c, address)?;
    }
    println!("the driver unloaded and loaded {reloads} times");
    Ok(())
}

fn a_guest_reboots(Site { a, c, .. }: &mut Site) -> Result<()> {
    a.reboot()?;
    load(a, A)?;
    reaches(c, A)?;
    iperf3(a, A, "--time 1", |command| c.run(command)).map(drop)
}

/// The VMMs stay connected, and the rings go on where they were.
fn the_daemon_is_killed(Site { daemon, a, b, .. }: &mut Site) -> Result<()> {
    let pings = Pinging::start(b, A)?;
    daemon.kill_and_restart()?;
    pings.more(b, 5)?;
    pings.end(b)?;
    iperf3(a, A, "--time 1", |command| b.run(command)).map(drop)
}

fn what_the_counters_say(Site { daemon, a, b, c, .. }: &mut Site) -> Result<()> {
    // A stream of the kind whose kicks matter.
    for (name, guest) in [("a", &mut *a), ("b", &mut *b)] {
        let read = |guest: &mut Guest| -> Result<[u64; 4]> {
            Ok([
                count(guest, "tx", "packets")?,
                count(guest, "tx", "publications")?,
                count(guest, "tx", "kicks")?,
                count(guest, "tx", "interrupts")?,
            ])
        };
        let before = read(guest)?;
        iperf3(c, C, "--time 2", |command| guest.run(command))?;
        let [packets, publications, kicks, interrupts] =
            std::array::from_fn(|at| read(guest).map_or(0, |now| now[at] - before[at]));
        println!("{name}: {packets} frames in {publications} publications, {kicks} kicks, {interrupts} TX interrupts");
        assert!(packets > 100 && kicks * 10 < packets, "{name}: {kicks} kicks for {packets} frames");
        for (direction, reason) in ["bad_tail", "bad_slot", "bad_header", "too_long"]
            .map(|reason| [("tx", reason), ("rx", reason)])
            .concat()
        {
            assert_eq!(count(guest, direction, reason)?, 0, "{name}: {direction} {reason}");
        }
    }
    for guest in [a, b, c] {
        no_wrong_checksum(guest)?;
        let console = guest.console();
        for word in ["WARNING:", "BUG:", "Oops", "tail after"] {
            assert!(!console.contains(word), "guest {}: {word} in its console", guest.name());
        }
    }
    let balance = daemon.balance()?;
    println!("{balance}; {:?}", balance.drops);
    for reason in ["bad_offload", "too_short", "bad_buffer", "too_many_pieces"] {
        assert_eq!(balance.drops.get(reason), None, "{:?}", balance.drops);
    }
    let queues = daemon.show_json("queues")?.to_string();
    assert!(!queues.contains("fault"), "{queues}");
    Ok(())
}

/// Kernels change what drivers call; the guests' kernel is an old one.
#[test]
fn our_driver_builds_for_old_and_new_kernels() -> Result<()> {
    for (kernel, majors) in [(Kernel::Guest, 6..=6), (Kernel::Newest, 7..=99)] {
        let module = build(&drivers()?.join("ptnet"), "ptnet", kernel)?;
        let version =
            module.windows(9).position(|part| part == b"vermagic=").map(|at| &module[at + 9..]).unwrap();
        let version = String::from_utf8_lossy(version.split(|byte| *byte == 0).next().unwrap()).into_owned();
        println!("built for {version}");
        let major: u32 = version.split('.').next().unwrap().parse().unwrap();
        assert!(majors.contains(&major), "{version}");
    }
    Ok(())
}
