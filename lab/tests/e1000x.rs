//! Our own guest driver, built for the guests' kernel and loaded with every one of its switches, on both
//! cards; and when memory runs out, or its link changes while it is unloaded.

use crate::cards::{reaches, tag, tagged_stream, untag, with_most_pieces, A, B, LIMIT};
use sidecore_lab::kbuild::{build, drivers, Kernel};
use sidecore_lab::traffic::{iperf3, received_gbits, Ping};
use sidecore_lab::{Balance, Daemon, Guest, Nic, Result, RunDir};
use std::path::Path;

/// Parameters of `lab/faults`.
const FAULTS: &str = "/sys/module/faults/parameters";

#[test]
fn every_switch_of_e1000x_carries_traffic() -> Result<()> {
    let modules = [
        ("/e1000x.ko", build(&drivers()?.join("e1000x"), "e1000x", Kernel::Guest)?),
        ("/pieces.ko", with_most_pieces("e1000x")?),
        (
            "/faults.ko",
            build(&Path::new(env!("CARGO_MANIFEST_DIR")).join("faults"), "faults", Kernel::Guest)?,
        ),
    ];
    let dir = RunDir::new("e1000x")?;
    let ports = [format!("a=e1000e:{}", dir.join("a")), format!("b=e1000:{},csb=on", dir.join("b"))];
    let mut daemon = Daemon::start(&["--port", &ports[0], "--port", &ports[1]])?;
    let spec = |name: &str| {
        let guest = Guest::named(name).nic(Nic::vfio_user(dir.join(name))).vcpus(2);
        // Memory that is used after it was freed makes itself felt.
        let guest = guest.kernel_argument("slub_debug=FP,kmalloc-*");
        modules.iter().fold(guest, |guest, (path, module)| guest.file(path, 0o644, module.clone()))
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
        // In a small ring there is hardly room for the frame with the most pieces.
        let module = if switches.contains("ring=64") { "pieces" } else { "e1000x" };
        load(&mut a, &mut b, &format!("{module}.ko {switches}"))?;
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
        every_frame_is_sound(&mut daemon, switches)?;
    }
    frames_with_tags_are_right(&mut daemon, &mut a, &mut b)?;
    receiving_comes_back_when_memory_does(&mut a, &mut b)?;
    a_driver_goes_while_its_link_changes(&mut daemon, &mut a, &mut b)?;
    let balance = daemon.balance()?;
    println!("{balance}; {:?}", balance.drops);
    let queues = daemon.show_json("queues")?.to_string();
    assert!(!queues.contains("fault"), "{queues}");
    Ok(())
}

/// Both guests have `module` with its parameters, and reach each other.
fn load(a: &mut Guest, b: &mut Guest, module: &str) -> Result<()> {
    for (guest, address) in [(&mut *a, A), (&mut *b, B)] {
        guest.expect(&format!("insmod /{module}"))?;
        guest.wait_until("test -e /sys/class/net/eth0", LIMIT)?;
        guest.address(&format!("{address}/24"))?;
    }
    reaches(a, B)
}

fn unload(guests: [&mut Guest; 2]) -> Result<()> {
    guests.into_iter().try_for_each(|guest| guest.expect("rmmod e1000x").map(drop))
}

fn frames_with_tags_are_right(daemon: &mut Daemon, a: &mut Guest, b: &mut Guest) -> Result<()> {
    load(a, b, "e1000x.ko")?;
    tag([(&mut *a, 1), (&mut *b, 2)], 1500)?;
    reaches(a, "10.0.7.2")?;
    let made = daemon.balance()?.made;
    tagged_stream(daemon, a, b, 1500)?;
    let made = every_frame_is_sound(daemon, "tags")?.made - made;
    assert!(made > 1000, "{made} segments were made of 8 MB: the sender did not use TSO");
    untag([&mut *a, &mut *b])?;
    unload([a, b])
}

/// The device has refused nothing that a driver gave it.
fn every_frame_is_sound(daemon: &mut Daemon, when: &str) -> Result<Balance> {
    let balance = daemon.balance()?;
    for reason in ["bad_offload", "too_short", "too_long", "too_many_pieces"] {
        assert_eq!(balance.drops.get(reason), None, "{when}: {:?}", balance.drops);
    }
    Ok(balance)
}

/// Without interrupts for what it has sent, nothing but the driver itself comes back to a ring without
/// buffers.
fn receiving_comes_back_when_memory_does(a: &mut Guest, b: &mut Guest) -> Result<()> {
    load(a, b, "e1000x.ko lazy=1 rx_ring=64")?;
    a.expect("insmod /faults.ko no_buffers=1")?;
    b.wait_until(&format!("! ping -c 1 -W 1 {A} > /dev/null"), LIMIT)?;
    assert!(count(a, "rx_no_memory")? > 0);
    a.expect(&format!("echo 0 > {FAULTS}/no_buffers"))?;
    reaches(b, A)?;
    unload([a, b])
}

/// Its link changes between the end of its delayed work and its own end.
fn a_driver_goes_while_its_link_changes(daemon: &mut Daemon, a: &mut Guest, b: &mut Guest) -> Result<()> {
    load(a, b, "e1000x.ko")?;
    a.expect(&format!("echo 1 > {FAULTS}/hold"))?;
    let gone = a.run_in_background("rmmod e1000x")?;
    a.wait_until(&format!("grep -q Y {FAULTS}/held"), LIMIT)?;
    for link in ["down", "up", "down", "up"] {
        daemon.command(&["set", "a", &format!("link={link}")])?;
    }
    a.expect(&format!("echo 0 > {FAULTS}/hold"))?;
    let gone = a.wait_for(gone, LIMIT)?;
    assert!(gone.success(), "{}", gone.text);
    // Work that is left behind comes two seconds later.
    a.expect("sleep 4")?;
    assert_eq!(a.run("dmesg | grep -E 'WARNING|BUG|Oops'")?.text, "");
    b.expect("rmmod e1000x").map(drop)
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
