//! The door: what VMMs give that is neither memory nor an eventfd never reaches the daemon, and a door that is killed
//! is replaced unnoticed.

use crate::rig;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use crate::rig::{await_end, Daemon, Testbed};
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use rustix::process::{kill_process, Signal};
use sidecore_driver::frontend::Region;
use sidecore_driver::vfio::Client;
use sidecore_driver::Frontend;

const SIZE: u64 = 0x4000;
const BOTH: u32 = 3;

fn memory() -> OwnedFd {
    let fd = memfd_create(c"guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, SIZE).unwrap();
    fd
}

fn map(client: &mut Client, fd: BorrowedFd) -> sidecore_driver::Result<()> {
    client.map(0, SIZE, BOTH, Some((fd, 0)))
}

fn daemon(bed: &Testbed, more: &[&str]) -> Daemon {
    let e1000 = format!("nic=e1000:{}", bed.at("nic.sock"));
    let vhost = format!("vm=vhost-user:{}", bed.at("vm.sock"));
    bed.daemon(&[&["--port", &e1000, "--port", &vhost], more].concat())
}

/// Whether the daemon has `file` open.
fn has(daemon: &Daemon, file: &File) -> bool {
    let id = |file: std::fs::Metadata| (file.dev(), file.ino());
    let of = id(file.metadata().unwrap());
    let open = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
    open.filter_map(|entry| entry.unwrap().path().metadata().ok()).any(|found| id(found) == of)
}

#[test]
fn what_is_no_memory_never_reaches_the_daemon() {
    let bed = Testbed::new();
    let daemon = daemon(&bed, &[]);
    let door = daemon.doors()[0];
    let stranger = File::from(rustix::pipe::pipe().unwrap().0);
    let mut client = Client::connect(&bed.path("nic.sock")).unwrap();
    let refused = map(&mut client, stranger.as_fd()).unwrap_err().to_string();
    daemon.await_log("memory_file: pipe:[");
    // That door has closed it, and the same conversation goes on with it.
    assert!(!has(&daemon, &stranger), "{refused}");
    map(&mut client, memory().as_fd()).unwrap();
    assert_eq!(daemon.doors(), [door]);
    let about = bed.show("daemon");
    assert_eq!(
        about["door"],
        serde_json::json!({"looks": 2, "refused": 1, "started": 1, "kept": 0}),
        "{about:#}"
    );
    assert_eq!(bed.port("nic")["state"]["memory"]["refused_files"], 1);

    // A vhost-user conversation ends.
    let front = Frontend::connect(bed.path("vm.sock"), rig::LIMIT).unwrap();
    front.set_owner().unwrap();
    let region = Region { gpa: 0, size: SIZE, user: 0, offset: 0 };
    let _ = front.set_mem_table(&[(region, stranger.as_fd())]);
    let line = daemon.await_log("SET_MEM_TABLE: memory_file: pipe:[");
    assert!(line.contains("bad_message"), "{line}");
    assert!(!has(&daemon, &stranger));
    // What was not read is the end of another door.
    assert_eq!(bed.show("daemon")["door"]["kept"], 1);
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn a_door_that_is_killed_is_missed_by_nobody() {
    let bed = Testbed::new();
    for more in [&[][..], &["--sandbox", "on"]] {
        let daemon = daemon(&bed, more);
        let mut client = Client::connect(&bed.path("nic.sock")).unwrap();
        for round in 0..5 {
            for door in daemon.doors() {
                kill_process(door, Signal::KILL).unwrap();
                await_end(door);
            }
            map(&mut client, memory().as_fd()).unwrap();
            client.unmap(0, SIZE).unwrap();
            assert_eq!(daemon.doors().len(), 1, "round {round}");
        }
        // A door ends with its daemon, and the next daemon has its own.
        let door = daemon.doors()[0];
        drop(client);
        daemon.end(Signal::KILL);
        await_end(door);
    }
}

#[test]
fn it_is_not_for_people() {
    assert!(Testbed::new().fails(&["door"]).contains("is internal"));
}
