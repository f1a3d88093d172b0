//! Three guests behind one switch: ping and TCP, 64 KiB frames whole from guest to guest, the same cut up for
//! a guest that takes no such frames, jumbo frames. The guests are booted once.

use sidecore_lab::capture::delivered;
use sidecore_lab::traffic::{iperf3, received_gbits, Ping};
use sidecore_lab::{Daemon, Guest, Nic, Result, Role, RunDir};

const ETHERNET: usize = 14;

struct Site {
    daemon: Daemon,
    /// Split rings of 1024 entries, MTU up to 9000.
    a: Guest,
    /// Packed rings, and a VMM that tells it speed and MTU.
    b: Guest,
    /// Its port offers neither checksum nor segmentation offloads to it.
    plain: Guest,
}

#[test]
fn guests_with_and_without_offloads_talk() -> Result<()> {
    let dir = RunDir::new("offloads")?;
    let socket = |name: &str| dir.join(&format!("{name}.sock"));
    let off = "guest_csum+guest_tso4+guest_tso6+guest_ecn+guest_uso4+guest_uso6";
    let daemon = Daemon::start(&[
        "--port",
        &format!("a=vhost-user:{},mtu=9000", socket("a")),
        "--port",
        &format!("b=vhost-user:{},mtu=9000", socket("b")),
        "--port",
        &format!("plain=vhost-user:{},features-off={off}", socket("plain")),
    ])?;
    let nic = |name: &str| Nic::vhost_user(socket(name), Role::QemuClient { reconnect_ms: 200 }, 1);
    let [mut a, mut b, mut plain] = Guest::boot_all([
        Guest::named("a").nic(nic("a").option("rx_queue_size=1024").option("tx_queue_size=1024")),
        Guest::named("b").nic(
            nic("b").option("packed=on").option("host_mtu=9000").option("speed=10000").option("duplex=full"),
        ),
        Guest::named("plain").nic(nic("plain")),
    ])?;
    a.address("10.0.0.1/24")?;
    b.address("10.0.0.2/24")?;
    plain.address("10.0.0.3/24")?;
    let mut site = Site { daemon, a, b, plain };

    split_and_packed_rings_ping_and_run_iperf3(&mut site)?;
    speed_and_duplex_are_what_the_vmm_was_told(&mut site)?;
    frames_of_64_kib_pass_whole(&mut site)?;
    frames_are_segmented_for_a_guest_without_gso(&mut site)?;
    jumbo_frames_pass(&mut site)?;

    let balance = site.daemon.balance()?;
    println!("{balance}; {:?}", balance.drops);
    for reason in balance.drops.keys() {
        // Before `ip link set up` a guest offers no buffers, and the only port up has no other to flood to.
        assert!(
            ["ring_full", "no_destination", "link_down"].contains(&reason.as_str()),
            "{:?}",
            balance.drops
        );
    }
    Ok(())
}

fn split_and_packed_rings_ping_and_run_iperf3(site: &mut Site) -> Result<()> {
    let Site { a, b, daemon, .. } = site;
    let text = a.expect("ping -c 5 -i 0.2 10.0.0.2")?;
    assert_eq!(Ping::parse(&text).unwrap().received, 5, "{text}");
    let there = iperf3(b, "10.0.0.2", "--time 2", |command| a.run(command))?;
    let back = iperf3(a, "10.0.0.1", "--time 2", |command| b.run(command))?;
    println!(
        "split → packed {:.2} Gbit/s, packed → split {:.2}",
        received_gbits(&there),
        received_gbits(&back)
    );
    let queues = daemon.show_json("queues")?;
    for (port, kind, size) in [("a", "split", 1024), ("b", "packed", 256)] {
        let of_port = queues["queues"].as_array().unwrap().iter().filter(|q| q["port"] == port);
        let as_asked =
            of_port.filter(|q| q["kind"] == kind && q["size"] == size && q["state"] == "running").count();
        assert_eq!(as_asked, 2, "{queues:#}");
    }
    Ok(())
}

fn speed_and_duplex_are_what_the_vmm_was_told(site: &mut Site) -> Result<()> {
    let told = site.b.expect("ethtool eth0")?;
    assert!(told.contains("Speed: 10000Mb/s") && told.contains("Duplex: Full"), "{told}");
    Ok(())
}

fn frames_of_64_kib_pass_whole(Site { a, b, daemon, .. }: &mut Site) -> Result<()> {
    let capture = daemon.capture("b")?;
    iperf3(b, "10.0.0.2", "--bytes 8M", |command| a.run(command))?;
    let file = capture.end()?;
    let lengths = lengths(&delivered(&file, "ip.dst == 10.0.0.2", &["frame.len"])?);
    let longest = lengths.iter().max().unwrap();
    assert!(*longest > 10_000, "the longest frame that reached b has {longest} bytes");
    println!("{} frames for 8 MB, the longest has {longest} bytes", lengths.len());
    Ok(())
}

fn frames_are_segmented_for_a_guest_without_gso(Site { a, plain, daemon, .. }: &mut Site) -> Result<()> {
    let made = daemon.balance()?.made;
    let capture = daemon.capture("plain")?;
    let report = iperf3(plain, "10.0.0.3", "--bytes 8M", |command| a.run(command))?;
    let file = capture.end()?;
    assert!(report["end"]["sum_received"]["bytes"].as_u64().unwrap() > 1_000_000, "{report:#}");
    let frames = delivered(&file, "tcp && ip.dst == 10.0.0.3", &["frame.len", "tcp.checksum.status"])?;
    let longest = *lengths(&frames).iter().max().unwrap();
    assert!(longest <= ETHERNET + 1500, "a frame of {longest} bytes reached a guest without GSO");
    let bad: Vec<_> = frames.iter().filter(|frame| frame[1] != "1").collect();
    assert!(
        bad.is_empty(),
        "wrong TCP checksums reached the guest in {} of {} frames",
        bad.len(),
        frames.len()
    );
    // Not all of 8 MB: at the end iperf3 closes its connections without waiting for the last of it.
    assert!(frames.len() > 1000, "{} frames for 8 MB", frames.len());
    let made = daemon.balance()?.made - made;
    assert!(made > 1000, "only {made} segments were made: the sender did not use GSO");
    println!("{} frames of at most {longest} bytes, {made} of them made by segmentation", frames.len());
    Ok(())
}

fn jumbo_frames_pass(Site { a, b, daemon, .. }: &mut Site) -> Result<()> {
    a.expect("ip link set eth0 mtu 9000")?;
    assert_eq!(b.expect("cat /sys/class/net/eth0/mtu")?, "9000\n", "the VMM told it so");
    let capture = daemon.capture("a")?;
    let text = a.expect("ping -c 3 -i 0.2 -s 8972 10.0.0.2")?;
    assert_eq!(Ping::parse(&text).unwrap().received, 3, "{text}");
    // What comes behind them: the end of a capture does not wait for its last frames.
    a.expect("ping -c 2 -i 0.2 10.0.0.2")?;
    let file = capture.end()?;
    let whole = lengths(&delivered(&file, "icmp && frame.len > 1000", &["frame.len"])?);
    assert_eq!(whole, [ETHERNET + 9000; 6], "requests and replies, none of them in fragments");
    Ok(())
}

fn lengths(frames: &[Vec<String>]) -> Vec<usize> {
    frames.iter().map(|frame| frame[0].parse().unwrap()).collect()
}
