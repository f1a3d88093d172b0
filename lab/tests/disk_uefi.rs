//! A guest with UEFI firmware that boots from our disk and has its programs from another, which it may only
//! read. fio verifies what it writes to a third one, while its network card and all its disks share one I/O
//! core.

use sidecore_lab::disk::BOOT_BYTES;
use sidecore_lab::traffic::iperf3;
use sidecore_lab::{fio, Daemon, Guest, Netns, Nic, Result, Role, RunDir};
use std::fs::File;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(240);
/// Bytes of the disk that fio writes.
const DATA: u64 = 64 << 20;

/// Blocks of all sizes anywhere, several at a time, past the guest's cache, with flushes between; each is
/// read back, and its checksum and its place compared.
const VERIFY: &str = "fio --name=verify --filename=/dev/vdb --size=24M --rw=randwrite --bsrange=4k-64k --ioengine=libaio --iodepth=16 \
     --direct=1 --fsync=64 --verify=crc32c --verify_fatal=1 --do_verify=1 --loops=2 --output-format=normal";

#[test]
fn a_guest_with_uefi_boots_from_a_disk_and_fio_verifies_another() -> Result<()> {
    let dir = RunDir::new("uefi")?;
    let host = Netns::new("uefi")?;
    host.tap("tap0", false)?;
    for (name, bytes) in [("root", BOOT_BYTES), ("data", DATA)] {
        File::create(dir.join(&format!("{name}.img"))).unwrap().set_len(bytes).unwrap();
    }
    let disk = |name: &str, file: &str| format!("{name}=blk:{},file={file}", dir.join(name));
    let ports = [
        disk("root", &dir.join("root.img")),
        disk("data", &dir.join("data.img")) + ",queues=2",
        disk("tools", &fio::disk()?.display().to_string()) + ",readonly=on",
        format!("nic=vhost-user:{}", dir.join("nic")),
    ];
    let mut arguments: Vec<&str> = ports.iter().flat_map(|port| ["--port", port.as_str()]).collect();
    arguments.extend(["--port", "host=tap:tap0"]);
    let mut daemon = Daemon::start_in(&host, &arguments)?;
    host.address("tap0", "10.0.0.1/24")?;
    let mut guest = Guest::named("uefi")
        .uefi()
        .vcpus(2)
        .memory_mib(512)
        .limit(LIMIT)
        .nic(Nic::vhost_user(dir.join("nic"), Role::QemuClient { reconnect_ms: 200 }, 1))
        .disk(dir.join("root"))
        .disk(dir.join("data"))
        .disk(dir.join("tools"))
        .boot_from_disk(dir.join("root.img"))
        .boot()?;
    guest.expect("[ -d /sys/firmware/efi ]")?;
    let of = |daemon: &mut Daemon, name: &str, key: &str| -> Result<u64> {
        let disks = daemon.show_json("disks")?;
        let disk =
            disks["disks"].as_array().unwrap().iter().find(|disk| disk["port"] == name).unwrap().clone();
        Ok(disk[key].as_u64().unwrap())
    };
    // The kernel and the root file system at least.
    assert!(of(&mut daemon, "root", "read_bytes")? > 20 << 20, "the firmware has read nothing");

    // A file system that may only be read, with programs that run from it.
    guest.expect(&fio::install("/dev/vdc"))?;
    assert_eq!(guest.expect("cat /sys/block/vdc/ro")?.trim(), "1");
    assert!(!guest.run("mount -o remount,rw /fio && touch /fio/x")?.success());
    guest.expect("fio --version")?;

    guest.address("10.0.0.2/24")?;
    let job = guest.run_in_background(VERIFY)?;
    // It is at work.
    while of(&mut daemon, "data", "writes")? < 16 {
        guest.expect("usleep 20000")?;
    }
    let before = of(&mut daemon, "data", "writes")? + of(&mut daemon, "data", "reads")?;
    let report = iperf3(&mut guest, "10.0.0.2", "--time 4", |command| host.run(command))?;
    let after = of(&mut daemon, "data", "writes")? + of(&mut daemon, "data", "reads")?;
    let verified = guest.wait_for(job, LIMIT)?;
    assert!(verified.success() && verified.text.contains("err= 0"), "{}", verified.text);
    assert!(report["end"]["sum_received"]["bytes"].as_u64().unwrap() > 0, "{report}");
    assert!(after > before, "{before} requests before iperf3, and {after} behind it");
    assert!(of(&mut daemon, "data", "flushes")? > 0 && of(&mut daemon, "data", "read_bytes")? >= 24 << 20);
    let disks = daemon.show_json("disks")?;
    assert!(
        disks["disks"].as_array().unwrap().iter().all(|disk| disk["errors"] == serde_json::json!({})),
        "{disks}"
    );
    guest.power_off()
}
