//! Disks whose medium fails: full file systems, devices that return errors, and one that stands still while
//! the daemon is killed. It takes root to make them.

use crate::rig;
use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::rig::{Daemon, Testbed, LIMIT};
use rustix::process::Signal;
use sidecore_driver::blk::Woken;
use sidecore_driver::{Disk, DiskOptions, Frontend, Request, Status};

const WAIT: Duration = Duration::from_secs(20);
const BLOCK: usize = 4096;

/// What `program` prints.
fn tool(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A file system that goes away.
struct Mount(PathBuf);

impl Mount {
    fn new(bed: &Testbed, args: &[&str]) -> Mount {
        let path = bed.path("mount");
        std::fs::create_dir(&path).unwrap();
        tool("mount", &[args, &[path.to_str().unwrap()]].concat());
        Mount(path)
    }

    fn image(&self, len: u64) -> String {
        let path = self.0.join("image");
        File::create(&path).unwrap().set_len(len).unwrap();
        path.into_os_string().into_string().unwrap()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // A test that died in the middle may have left it frozen.
        let _ = Command::new("fsfreeze").arg("-u").arg(&self.0).output();
        // The kernel may still let go of a ring's file: the mount goes when it has.
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

/// A loop device that goes away.
struct Loop(String);

impl Loop {
    fn new(file: &str, more: &[&str]) -> Loop {
        Loop(tool("losetup", &[more, &["--find", "--show", file]].concat()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).output();
    }
}

fn daemon(bed: &Testbed, file: &str) -> Daemon {
    let ports = [format!("d=blk:{},file={file}", bed.at("d")), format!("n=blk:{},file=ram:1M", bed.at("n"))];
    bed.daemon(&["--port", &ports[0], "--port", &ports[1]])
}

fn errors(bed: &Testbed) -> serde_json::Value {
    bed.show("disks")["disks"][0]["errors"].clone()
}

fn write(block: u64, data: &[u8]) -> Request<'_> {
    Request::Write { sector: 8 * block, data }
}

fn read<'a>(block: u64) -> Request<'a> {
    Request::Read { sector: 8 * block, len: BLOCK }
}

#[test]
fn a_full_file_system_fails_the_writes_that_need_room() {
    rig::needs_root();
    let bed = Testbed::new();
    let mount = Mount::new(&bed, &["-t", "tmpfs", "-o", "size=256k,mode=0755", "none"]);
    let daemon = daemon(&bed, &mount.image(1 << 20));
    let mut disk = Disk::connect(bed.path("d"), DiskOptions::default()).unwrap();
    let mut neighbour = Disk::connect(bed.path("n"), DiskOptions::default()).unwrap();
    let data = vec![7; BLOCK];
    let statuses: Vec<Status> =
        (0..128).map(|block| disk.ask(write(block, &data), WAIT).unwrap().0).collect();
    let written = statuses.iter().filter(|status| **status == Status::Ok).count();
    assert!((32..=64).contains(&written), "{written}");
    // The first ones, and none behind.
    assert!(statuses[written..].iter().all(|status| *status == Status::IoError), "{statuses:?}");
    assert_eq!(errors(&bed)["no_space"], 128 - written as u64);
    // What is there can be read, and written again; what is not reads as zeros.
    assert_eq!(disk.ask(read(0), WAIT).unwrap(), (Status::Ok, data.clone()));
    assert_eq!(disk.ask(write(0, &data), WAIT).unwrap().0, Status::Ok);
    assert_eq!(disk.ask(read(127), WAIT).unwrap(), (Status::Ok, vec![0; BLOCK]));
    assert_eq!(neighbour.ask(write(0, &data), WAIT).unwrap().0, Status::Ok);
    tool("mount", &["-o", "remount,size=2m", mount.0.to_str().unwrap()]);
    assert_eq!(disk.ask(write(127, &data), WAIT).unwrap().0, Status::Ok);
    drop((disk, neighbour));
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn a_device_that_fails_fails_its_requests_only() {
    rig::needs_root();
    let bed = Testbed::new();
    let path = bed.at("backing");
    let file = File::create(&path).unwrap();
    file.set_len(1 << 20).unwrap();
    let device = Loop::new(&path, &[]);
    let daemon = daemon(&bed, &device.0);
    let mut disk = Disk::connect(bed.path("d"), DiskOptions::default()).unwrap();
    let mut neighbour = Disk::connect(bed.path("n"), DiskOptions::default()).unwrap();
    let data = vec![7; BLOCK];
    assert_eq!(disk.ask(write(0, &data), WAIT).unwrap().0, Status::Ok);
    assert_eq!(bed.show("disks")["disks"][0]["medium"], "device");
    // Behind the end of its file a loop device cannot read.
    file.set_len(BLOCK as u64).unwrap();
    assert_eq!(disk.ask(read(9), WAIT).unwrap().0, Status::IoError);
    assert_eq!(errors(&bed), serde_json::json!({"io_error": 1}));
    assert_eq!(disk.ask(read(0), WAIT).unwrap(), (Status::Ok, data.clone()));
    assert_eq!(neighbour.ask(write(0, &data), WAIT).unwrap().0, Status::Ok);
    // A device grows, too.
    file.set_len(2 << 20).unwrap();
    tool("losetup", &["--set-capacity", &device.0]);
    assert!(bed.ok(&["resize", "d"]).contains("was told"));
    assert!(disk.changed().unwrap());
    assert_eq!(disk.ask(write(511, &data), WAIT).unwrap().0, Status::Ok);
    drop((disk, neighbour));
    assert!(daemon.end(Signal::TERM).success());
}

/// The answers to so many flushes that are under way together.
fn flush(disk: &mut Disk, count: usize) -> Vec<Status> {
    for _ in 0..count {
        disk.submit(Request::Flush).unwrap().unwrap();
    }
    disk.publish().unwrap();
    let mut statuses = Vec::new();
    while statuses.len() < count {
        assert_ne!(disk.wait(LIMIT).unwrap(), Woken::Late);
        disk.poll(|_, status, _| statuses.push(status)).unwrap();
    }
    statuses
}

/// A disk whose daemon or port is started again.
fn reconnect(bed: &Testbed, disk: &mut Disk) {
    assert_eq!(disk.wait(LIMIT).unwrap(), Woken::Gone);
    disk.reconnect(Frontend::connect(bed.path("d"), LIMIT).unwrap(), |_, _, _| {}).unwrap();
}

/// What a flush, or with `cache=writethrough` a write, answers for is on the device by then, and not in the
/// page cache before it.
#[test]
fn what_lasts_is_behind_the_page_cache() {
    rig::needs_root();
    for (cache, queues) in [("writeback", 1), ("writethrough", 1), ("writethrough", 2)] {
        let bed = Testbed::new();
        let path = bed.at("backing");
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        // Blocks of the device are larger than the disk's: so it is not read and written past the page cache.
        let device = Loop::new(&path, &["--sector-size", "4096"]);
        let daemon = daemon(&bed, &format!("{},cache={cache}", device.0));
        let mut disk =
            Disk::connect(bed.path("d"), DiskOptions { queues, ..DiskOptions::default() }).unwrap();
        assert_eq!(bed.show("disks")["disks"][0]["access"], "page-cache");
        for round in 1..4 {
            let data = vec![round; BLOCK];
            let (mut next, mut answers) = (0, 0);
            while answers < 256 {
                while next < 256 && disk.submit(write(next, &data)).unwrap().is_some() {
                    next += 1;
                }
                disk.publish().unwrap();
                let more = disk.poll(|_, status, _| assert_eq!(status, Status::Ok)).unwrap();
                if more == 0 {
                    assert_ne!(disk.wait(LIMIT).unwrap(), Woken::Late);
                }
                answers += more;
            }
            if cache == "writeback" {
                assert_eq!(disk.ask(Request::Flush, WAIT).unwrap().0, Status::Ok);
            }
            let there = std::fs::read(&path).unwrap();
            let lost = there.iter().filter(|byte| **byte != round).count();
            assert_eq!(lost, 0, "{cache}, round {round}: bytes that are not on the device");
        }
        drop(disk);
        assert!(daemon.end(Signal::TERM).success());
    }
}

/// What the guest wrote waits in the page cache, and cannot be written to the device when it is flushed: the
/// kernel says so once, and the guest is told from then on, also when later writes go well: by all flushes
/// that were under way together, and by those after the daemon was killed, its port restarted or its disk
/// resized.
#[test]
fn a_flush_that_fails_is_never_forgotten() {
    rig::needs_root();
    let bed = Testbed::new();
    let mount = Mount::new(&bed, &["-t", "tmpfs", "-o", "size=256k,mode=0755", "none"]);
    // Blocks of the device are larger than the disk's: so it is not read and written past the page cache.
    let device = Loop::new(&mount.image(1 << 20), &["--sector-size", "4096"]);
    let old = daemon(&bed, &device.0);
    let mut disk = Disk::connect(bed.path("d"), DiskOptions { queues: 2, ..DiskOptions::default() }).unwrap();
    let mut neighbour = Disk::connect(bed.path("n"), DiskOptions::default()).unwrap();
    assert_eq!(bed.show("disks")["disks"][0]["access"], "page-cache");
    let data = vec![7; BLOCK];
    for block in 0..8 {
        assert_eq!(disk.ask(write(block, &data), WAIT).unwrap().0, Status::Ok);
    }
    assert_eq!(disk.ask(Request::Flush, WAIT).unwrap().0, Status::Ok);
    for block in 8..256 {
        assert_eq!(disk.ask(write(block, &data), WAIT).unwrap().0, Status::Ok, "{block}");
    }
    assert_eq!(flush(&mut disk, 8), [Status::IoError; 8]);
    assert_eq!(errors(&bed), serde_json::json!({"io_error": 1, "flush_failed_before": 7}));
    tool("mount", &["-o", "remount,size=2m", mount.0.to_str().unwrap()]);
    assert_eq!(disk.ask(write(0, &data), WAIT).unwrap().0, Status::Ok);
    assert_eq!(flush(&mut disk, 2), [Status::IoError; 2]);
    assert_eq!(neighbour.ask(Request::Flush, WAIT).unwrap().0, Status::Ok);
    assert!(!old.end(Signal::KILL).success());
    let daemon = daemon(&bed, &device.0);
    reconnect(&bed, &mut disk);
    assert_eq!(flush(&mut disk, 1), [Status::IoError]);
    bed.ok(&["restart", "d"]);
    reconnect(&bed, &mut disk);
    assert_eq!(flush(&mut disk, 1), [Status::IoError]);
    File::options().write(true).open(mount.0.join("image")).unwrap().set_len(2 << 20).unwrap();
    tool("losetup", &["--set-capacity", &device.0]);
    bed.ok(&["resize", "d"]);
    assert_eq!(disk.ask(write(256, &data), WAIT).unwrap().0, Status::Ok);
    assert_eq!(flush(&mut disk, 1), [Status::IoError]);
    assert_eq!(errors(&bed), serde_json::json!({"flush_failed_before": 2}));
    // The operator has put it in order.
    drop(disk);
    bed.ok(&["del", "d"]);
    bed.ok(&["add", &format!("d=blk:{},file={}", bed.at("d"), device.0)]);
    let mut disk = Disk::connect(bed.path("d"), DiskOptions::default()).unwrap();
    assert_eq!(disk.ask(write(255, &data), WAIT).unwrap().0, Status::Ok);
    assert_eq!(disk.ask(Request::Flush, WAIT).unwrap().0, Status::Ok);
    drop((disk, neighbour));
    assert!(daemon.end(Signal::TERM).success());
}

/// A write that is under way in the kernel when the daemon is killed may end at any time, so no other daemon
/// has the file before: a guest whose next write went through the next daemon would find it undone.
#[test]
fn no_other_daemon_has_the_file_while_old_writes_are_under_way() {
    rig::needs_root();
    let bed = Testbed::new();
    let path = bed.at("filesystem");
    File::create(&path).unwrap().set_len(32 << 20).unwrap();
    tool("mkfs.ext4", &["-q", &path]);
    let device = Loop::new(&path, &[]);
    let mount = Mount::new(&bed, &[&device.0]);
    let image = mount.image(1 << 20);
    let old = daemon(&bed, &image);
    let mut disk = Disk::connect(bed.path("d"), DiskOptions::default()).unwrap();
    assert_eq!(disk.ask(write(0, &[1; BLOCK]), WAIT).unwrap().0, Status::Ok);
    let folder = mount.0.to_str().unwrap();
    tool("fsfreeze", &["-f", folder]);
    disk.submit(write(0, &[2; BLOCK])).unwrap().unwrap();
    disk.publish().unwrap();
    // The neighbour's answer says that the I/O core has looked around.
    let mut neighbour = Disk::connect(bed.path("n"), DiskOptions::default()).unwrap();
    for _ in 0..3 {
        assert_eq!(neighbour.ask(read(0), WAIT).unwrap().0, Status::Ok);
    }
    old.signal(Signal::KILL);
    // Another one, with sockets of its own.
    let refused = bed
        .command()
        .env("SIDECORE_SOCKET", bed.path("other.sock"))
        .args(["run", "--port", &format!("d=blk:{},file={image}", bed.at("other"))])
        .output()
        .unwrap();
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && why.contains("another process has it"), "{why}");
    tool("fsfreeze", &["-u", folder]);
    assert!(!old.end(Signal::KILL).success());
    let new = daemon(&bed, &image);
    assert_eq!(disk.wait(LIMIT).unwrap(), Woken::Gone);
    disk.reconnect(Frontend::connect(bed.path("d"), LIMIT).unwrap(), |_, _, _| {}).unwrap();
    let mut answers = 0;
    while answers == 0 {
        assert_ne!(disk.wait(LIMIT).unwrap(), Woken::Late);
        answers = disk.poll(|_, status, _| assert_eq!(status, Status::Ok)).unwrap();
    }
    assert_eq!(disk.ask(read(0), WAIT).unwrap(), (Status::Ok, vec![2; BLOCK]));
    assert_eq!(disk.ask(write(0, &[3; BLOCK]), WAIT).unwrap().0, Status::Ok);
    assert_eq!(disk.ask(read(0), WAIT).unwrap(), (Status::Ok, vec![3; BLOCK]));
    drop((disk, neighbour));
    assert!(new.end(Signal::TERM).success());
}
