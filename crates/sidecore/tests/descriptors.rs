//! The descriptor helper: what VMMs give that is neither memory nor an eventfd never reaches the daemon, and
//! a helper that is killed is replaced unnoticed.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::Arc;
use std::time::Instant;

use crate::rig::{self, await_end, Daemon, Testbed};
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
    let helper = daemon.descriptor_helpers()[0];
    let stranger = File::from(rustix::pipe::pipe().unwrap().0);
    let mut client = Client::connect(&bed.path("nic.sock")).unwrap();
    let refused = map(&mut client, stranger.as_fd()).unwrap_err().to_string();
    daemon.await_log("memory_file: pipe:[");
    // That helper has closed it and ended, and the same conversation goes on with another one.
    assert!(!has(&daemon, &stranger), "{refused}");
    map(&mut client, memory().as_fd()).unwrap();
    await_end(helper);
    assert_eq!(daemon.descriptor_helpers().len(), 1);
    let about = bed.show("daemon");
    assert_eq!(
        about["door"],
        serde_json::json!({"looks": 2, "refused": 1, "started": 2, "kept": 0}),
        "{about:#}"
    );
    assert_eq!(bed.port("nic")["state"]["memory"]["refused_files"], 1);

    // A vhost-user conversation ends.
    let front = Frontend::connect(bed.path("vm.sock"), rig::LIMIT).unwrap();
    front.set_owner().unwrap();
    let region = Region { gpa: 0, size: SIZE, user: 0, offset: 0 };
    let _ = front.set_mem_table(&[(region, stranger.as_fd())]);
    let line = daemon.await_log("SET_MEM_TABLE: memory_file: pipe:[");
    assert!(!line.contains("bad_message"), "{line}");
    assert!(!has(&daemon, &stranger));
    // What was not read ends with a helper, too.
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
            for helper in daemon.descriptor_helpers() {
                kill_process(helper, Signal::KILL).unwrap();
                await_end(helper);
            }
            map(&mut client, memory().as_fd()).unwrap();
            client.unmap(0, SIZE).unwrap();
            assert_eq!(daemon.descriptor_helpers().len(), 1, "round {round}");
        }
        // A helper ends with its daemon, and the next daemon has its own.
        let helper = daemon.descriptor_helpers()[0];
        drop(client);
        daemon.end(Signal::KILL);
        await_end(helper);
    }
}

#[test]
fn it_is_not_for_people() {
    assert!(Testbed::new().fails(&["door"]).contains("is internal"));
}

/// A file system with one file, served by a thread of this process: the kernel's FUSE protocol, raw
/// (`linux/fuse.h`). A process named by `silent` gets no answer when it closes the file.
struct Fuse {
    folder: CString,
    silent: Arc<AtomicU32>,
    /// A word for each close that stays without an answer.
    closes: Receiver<()>,
}

impl Fuse {
    fn mounted(bed: &Testbed) -> Fuse {
        std::fs::create_dir(bed.path("fuse")).unwrap();
        let folder = CString::new(bed.at("fuse")).unwrap();
        let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        let options = CString::new(options).unwrap();
        // SAFETY: all four are strings that live until the call is over.
        let mounted = unsafe {
            libc::mount(c"test".as_ptr(), folder.as_ptr(), c"fuse.test".as_ptr(), 0, options.as_ptr().cast())
        };
        assert_eq!(mounted, 0, "{}", std::io::Error::last_os_error());
        let (told, closes) = std::sync::mpsc::channel();
        let silent = Arc::new(AtomicU32::new(0));
        let names = Arc::clone(&silent);
        std::thread::spawn(move || serve(&device, &names, &told));
        Fuse { folder, silent, closes }
    }

    /// Gives every process that waits an error.
    fn abort(&self) {
        // SAFETY: a string that lives until the call is over.
        unsafe { libc::umount2(self.folder.as_ptr(), libc::MNT_FORCE | libc::MNT_DETACH) };
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        self.abort();
    }
}

/// Answers what is needed to open and close the file, until the file system is gone.
fn serve(mut device: &File, silent: &AtomicU32, told: &Sender<()>) {
    const LOOKUP: u32 = 1;
    const FORGET: u32 = 2;
    const GETATTR: u32 = 3;
    const OPEN: u32 = 14;
    const RELEASE: u32 = 18;
    const FLUSH: u32 = 25;
    const INIT: u32 = 26;
    const BATCH: u32 = 42;
    let attributes = |node: u64| {
        let (mode, size) = if node == 1 { (0o40_755, 0) } else { (0o100_666, SIZE) };
        let words = [node, size, size / 512, 0, 0, 0].map(u64::to_ne_bytes).concat();
        [words, [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0].map(u32::to_ne_bytes).concat()].concat()
    };
    let mut request = vec![0; 1 << 18];
    while device.read(&mut request).is_ok() {
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let (kind, unique, node) = (word(4), &request[8..16], u64::from(word(16)));
        let (mut error, mut body) = (0, Vec::new());
        match kind {
            FLUSH if word(32) == silent.load(Ordering::SeqCst) => {
                told.send(()).unwrap();
                continue;
            }
            FORGET | BATCH => continue,
            INIT => body = [&[7, 31, 0, 0, 0, 1 << 17].map(u32::to_ne_bytes).concat()[..], &[0; 40]].concat(),
            LOOKUP => body = [[2, 0, 0, 0, 0].map(u64::to_ne_bytes).concat(), attributes(2)].concat(),
            GETATTR => body = [vec![0; 16], attributes(node)].concat(),
            OPEN => body = vec![0; 16],
            FLUSH | RELEASE => {}
            _ => error = -libc::ENOSYS,
        }
        let len = u32::try_from(16 + body.len()).unwrap();
        let answer = [&len.to_ne_bytes()[..], &i32::to_ne_bytes(error), unique, &body].concat();
        let _ = device.write(&answer);
    }
}

/// A VMM gives a file whose server never answers its close. The helper waits for it for ever, and nothing of
/// a killed daemon is in its hands: the next daemon has the same disk, TAP and sockets at once.
#[test]
fn a_file_that_is_never_closed_keeps_nothing_from_the_next_daemon() {
    rig::needs_root();
    let bed = Testbed::new();
    std::fs::write(bed.path("image"), vec![0; 1 << 20]).unwrap();
    let disk = format!("disk=blk:{},file={}", bed.at("disk.sock"), bed.at("image"));
    let tap = format!("tap=tap:scd{}", std::process::id() % 1_000_000);
    let first = daemon(&bed, &["--port", &disk, "--port", &tap]);
    let (fuse, helper) = (Fuse::mounted(&bed), first.descriptor_helpers()[0]);
    fuse.silent.store(helper.as_raw_nonzero().get().unsigned_abs(), Ordering::SeqCst);
    let file = File::options().read(true).write(true).open(bed.path("fuse/file")).unwrap();
    let mut client = Client::connect(&bed.path("nic.sock")).unwrap();
    map(&mut client, file.as_fd()).unwrap_err();
    drop(file);
    fuse.closes.recv_timeout(rig::LIMIT).expect("the helper closes the file");
    drop(client);
    first.end(Signal::KILL);
    let begun = Instant::now();
    let next = daemon(&bed, &["--port", &disk, "--port", &tap]);
    assert!(begun.elapsed() < rig::LIMIT, "{:?}", begun.elapsed());
    assert_eq!(bed.port("tap")["state"]["peer"], "running");
    for name in ["disk", "nic", "vm"] {
        assert_eq!(bed.port(name)["state"]["peer"], "waiting", "{name}");
    }
    map(&mut Client::connect(&bed.path("nic.sock")).unwrap(), memory().as_fd()).unwrap();
    let words = std::fs::read(format!("/proc/{}/comm", helper.as_raw_nonzero())).unwrap();
    assert!(words.starts_with(b"sidecore-door"), "it still waits");
    fuse.abort();
    await_end(helper);
    assert!(next.end(Signal::TERM).success());
}
