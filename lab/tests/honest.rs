//! Guests that do nothing wrong, whose memory comes and goes: no port rests ([`Daemon::balance`] looks).

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use sidecore_lab::{Daemon, Guest, Nic, Result, Role, RunDir};

const LIMIT: Duration = Duration::from_secs(90);
/// Bytes that the guest fills and gives back in each round, and bytes of which QEMU must have made holes
/// then.
const FILLED_MIB: u64 = 96;
const HOLES: u64 = 64 << 20;
/// Frames that have come by the end of each round.
const FLOOD: u64 = 10_000;

/// A balloon tells QEMU which pages the guest does not use, and QEMU punches them out of the memory file. The
/// guest's driver soon has its buffers in such pages again, and the switch may be the first one that touches
/// them.
#[test]
fn a_guest_that_gives_free_pages_back_receives_a_flood() -> Result<()> {
    let dir = RunDir::new("honest")?;
    let ports = ["a", "b"].map(|name| format!("{name}=vhost-user:{}", dir.join(name)));
    let mut daemon = Daemon::start(&ports.each_ref().map(|port| ["--port", port]).concat())?;
    let spec = |name: &str| {
        Guest::named(name).nic(Nic::vhost_user(dir.join(name), Role::QemuClient { reconnect_ms: 200 }, 1))
    };
    let balloon = spec("a").argument("-device").argument("virtio-balloon-pci,free-page-reporting=on");
    let [mut a, mut b] = Guest::boot_all([balloon, spec("b")])?;
    a.expect("modprobe virtio_balloon")?;
    a.address("10.0.0.1/24")?;
    b.address("10.0.0.2/24")?;
    let server = a.run_in_background("iperf3 --server")?;
    a.wait_until("netstat -lnt | grep -q :5201", LIMIT)?;
    let client = b.run_in_background("iperf3 --client 10.0.0.1 --time 3600")?;
    for round in 0..3 {
        let before = delivered(&mut daemon)?;
        a.expect(&format!("dd if=/dev/zero of=/tmp/much bs=1M count={FILLED_MIB} 2>/dev/null"))?;
        let full = present(&a);
        a.expect("rm /tmp/much")?;
        let begun = Instant::now();
        while present(&a) + HOLES > full || delivered(&mut daemon)? < before + FLOOD {
            assert!(
                begun.elapsed() < LIMIT,
                "{} of {full} bytes are still there, or no frames come",
                present(&a)
            );
            // Only the host's file system knows, and it tells nobody.
            std::thread::sleep(Duration::from_millis(50));
        }
        let frames = delivered(&mut daemon)? - before;
        println!("round {round}: {} MiB became holes, {frames} frames came", (full - present(&a)) >> 20);
    }
    b.stop(client)?;
    a.stop(server)?;
    println!("{}", daemon.balance()?);
    Ok(())
}

/// Bytes of the guest's memory that the host has pages for.
fn present(guest: &Guest) -> u64 {
    let files = std::fs::read_dir(format!("/proc/{}/fd", guest.pid())).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    let is_memory = |path: &std::path::PathBuf| {
        std::fs::read_link(path)
            .is_ok_and(|link| link.to_string_lossy().starts_with("/memfd:memory-backend-memfd"))
    };
    let memory = paths.filter(is_memory).last().expect("QEMU has the guest's memory in a memfd");
    std::fs::metadata(memory).unwrap().blocks() * 512
}

/// Frames that port `a` was given.
fn delivered(daemon: &mut Daemon) -> Result<u64> {
    let ports = daemon.show_json("ports")?;
    let port = ports["ports"].as_array().unwrap().iter().find(|port| port["name"] == "a").unwrap();
    Ok(port["counters"]["out_frames"].as_u64().unwrap())
}
