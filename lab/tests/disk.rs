//! Guests with our disks: one boots from a disk, as its firmware finds it, makes a file system on another,
//! and verifies what it writes there while its network card and the disks share one I/O core. A second one
//! has the same disk to read only.

use sidecore_lab::disk::BOOT_BYTES;
use sidecore_lab::traffic::iperf3;
use sidecore_lab::{Daemon, Guest, Netns, Nic, Result, Role, RunDir};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(180);
/// Bytes of the second disk, at first and later.
const DATA: u64 = 64 << 20;
const GROWN: u64 = 96 << 20;

/// Writes files of random bytes, and reads them back from the disk.
const VERIFY: &str = "cd /mnt && for n in 1 2 3 4; do
    dd if=/dev/urandom of=file$n bs=64k count=96 conv=fsync 2>/dev/null || exit 1
done
sha256sum file? > sums && sync && echo 3 > /proc/sys/vm/drop_caches && sha256sum -c sums";
/// What is left of them, and what was written while the daemon was killed.
const CHECK: &str = "cd /mnt && grep -E 'file[34]' sums | sha256sum -c && sha256sum -c of-last";

/// Waits until the daemon has carried out some more writes of the disk `data`.
fn await_writes(daemon: &mut Daemon) -> Result<()> {
    let mut writes =
        || -> Result<u64> { Ok(daemon.show_json("disks")?["disks"][0]["writes"].as_u64().unwrap()) };
    let (enough, end) = (writes()? + 100, Instant::now() + LIMIT);
    while writes()? < enough {
        assert!(Instant::now() < end, "the guest writes nothing");
    }
    Ok(())
}

#[test]
fn a_guest_boots_from_a_disk_and_works_on_another() -> Result<()> {
    let dir = RunDir::new("disk")?;
    let host = Netns::new("disk")?;
    host.tap("tap0", false)?;
    for (name, bytes) in [("root", BOOT_BYTES), ("data", DATA)] {
        File::create(dir.join(&format!("{name}.img"))).unwrap().set_len(bytes).unwrap();
    }
    let disk = |name: &str, more: &str| {
        format!("{name}=blk:{},file={}{more}", dir.join(name), dir.join(&format!("{name}.img")))
    };
    let ports = [disk("root", ""), disk("data", ",queues=2"), format!("nic=vhost-user:{}", dir.join("nic"))];
    let mut arguments: Vec<&str> = ports.iter().flat_map(|port| ["--port", port.as_str()]).collect();
    arguments.extend(["--port", "host=tap:tap0"]);
    let mut daemon = Daemon::start_in(&host, &arguments)?;
    host.address("tap0", "10.0.0.1/24")?;
    let nic = || Nic::vhost_user(dir.join("nic"), Role::QemuClient { reconnect_ms: 200 }, 1);
    let mut guest = Guest::named("disk")
        .vcpus(2)
        .nic(nic())
        .disk(dir.join("root"))
        .disk(dir.join("data"))
        .boot_from_disk(dir.join("root.img"))
        .boot()?;
    assert!(guest.expect("cat /sys/block/vda/size")?.trim() == (BOOT_BYTES / 512).to_string());
    assert_eq!(guest.expect("cat /sys/block/vda/serial")?, "root");
    let reads = daemon.show_json("disks")?["disks"][1]["reads"].as_u64().unwrap();
    assert!(reads > 100, "the firmware has read nothing: {reads}");

    // A file system, verified while frames pass the same I/O core.
    guest.address("10.0.0.2/24")?;
    guest.expect("modprobe -a crc32c_generic ext4 && mke2fs -b 4096 /dev/vdb > /dev/null && mkdir -p /mnt && mount -t ext4 /dev/vdb /mnt")?;
    let job = guest.run_in_background(VERIFY)?;
    let report = iperf3(&mut guest, "10.0.0.2", "--time 3", |command| host.run(command))?;
    let verified = guest.wait_for(job, LIMIT)?;
    assert!(verified.success() && verified.text.matches(": OK").count() == 4, "{}", verified.text);
    assert!(report["end"]["sum_received"]["bytes"].as_u64().unwrap() > 0, "{report}");

    // The room of files that are gone goes back.
    let blocks = || std::fs::metadata(dir.join("data.img")).unwrap().blocks();
    let full = blocks();
    guest.expect("rm /mnt/file1 /mnt/file2 && sync && fstrim /mnt")?;
    assert!(blocks() < full - (8 << 20) / 512, "{} of {full}", blocks());

    // The daemon dies under writes, and a guest never knows: it writes until it is told that this was enough.
    let job = guest.run_in_background(
        "cd /mnt && until [ -e /tmp/enough ]; do
            dd if=/dev/urandom of=last bs=4k count=1000 oflag=direct 2>&1 || exit 1
        done; sha256sum last > of-last",
    )?;
    for _ in 0..2 {
        await_writes(&mut daemon)?;
        daemon.kill_and_restart()?;
    }
    await_writes(&mut daemon)?;
    guest.expect("touch /tmp/enough")?;
    let done = guest.wait_for(job, LIMIT)?;
    assert!(done.success(), "{}", done.text);
    guest.expect("sync; echo 3 > /proc/sys/vm/drop_caches")?;
    guest.expect(CHECK)?;

    // It grows under the guest.
    File::options().write(true).open(dir.join("data.img")).unwrap().set_len(GROWN).unwrap();
    let said = daemon.command(&["resize", "data"])?;
    assert!(said.contains("its VMM was told"), "{said}");
    guest.wait_until(&format!("[ $(cat /sys/block/vdb/size) = {} ]", GROWN / 512), LIMIT)?;
    guest.expect("dd if=/dev/vdb of=/dev/null bs=1M skip=90 count=6 2>/dev/null")?;

    // The firmware boots from it again.
    guest.expect("umount /mnt")?;
    guest.reboot()?;
    guest.expect("modprobe -a crc32c_generic ext4 && mkdir -p /mnt && mount -t ext4 -o ro /dev/vdb /mnt")?;
    guest.expect(CHECK)?;
    guest.power_off()?;

    // This disk for another guest, to read only.
    daemon.command(&["del", "data"])?;
    daemon.command(&["add", &disk("data", ",readonly=on")])?;
    let mut reader = Guest::named("reader").disk(dir.join("data")).boot()?;
    reader.expect("modprobe -a crc32c_generic ext4 && [ $(cat /sys/block/vda/ro) = 1 ] && mkdir -p /mnt && mount -t ext4 -o ro /dev/vda /mnt")?;
    reader.expect(CHECK)?;
    assert!(!reader.run("dd if=/dev/zero of=/dev/vda bs=4k count=1 conv=fsync")?.success());
    let disks = daemon.show_json("disks")?;
    assert_eq!(disks["disks"][0]["errors"], serde_json::json!({}), "{disks}");
    Ok(())
}
