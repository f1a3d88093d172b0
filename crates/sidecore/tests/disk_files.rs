//! Disks in files, seen from a guest: what the kernel does for the daemon.

use std::fs::File;
use std::os::unix::fs::{symlink, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::disk::{shown, small, BLOCKS};
use crate::rig::Testbed;
use crate::work::{content, Work, BLOCK, WAIT};
use rustix::process::Signal;
use sidecore_driver::blk::{Range, Shape};
use sidecore_driver::{Disk, DiskOptions, Request, Status};

/// A file of zeros.
fn image(bed: &Testbed) -> String {
    File::create(bed.path("image")).unwrap().set_len(BLOCKS * BLOCK as u64).unwrap();
    bed.at("image")
}

fn port(bed: &Testbed, options: &str) -> String {
    format!("d=blk:{},file={}{options}", bed.at("d"), image(bed))
}

#[test]
fn a_file_holds_what_is_written_whatever_the_requests_are() {
    let bed = Testbed::new();
    let daemon = bed.daemon(&["--port", &port(&bed, ",queues=4")]);
    let mut blocks = vec![0; BLOCKS as usize];
    for (seed, packed) in (1..).zip([false, true]) {
        for shape in [Shape::Usual, Shape::Joined, Shape::Pieces(3), Shape::Pieces(7)] {
            for (queues, depth) in [(1, 1), (4, 32)] {
                let options = DiskOptions { packed, shape, queues, depth, ..small() };
                let mut disk = Disk::connect(bed.path("d"), options).unwrap();
                let mut work = Work::new(seed, BLOCKS);
                work.blocks = blocks;
                work.run(&mut disk, 300);
                assert_eq!(disk.ask(Request::Flush, WAIT).unwrap().0, Status::Ok);
                work.verify(&mut disk);
                blocks = work.blocks;
            }
        }
    }
    let file = std::fs::read(bed.path("image")).unwrap();
    for (n, block) in file.chunks(BLOCK).enumerate() {
        assert!(block == content(n as u64, blocks[n]), "block {n}");
    }
    let disk = shown(&bed);
    assert_eq!((&disk["medium"], &disk["in_flight"]), (&"file".into(), &0.into()), "{disk}");
    assert!(disk["flushes"].as_u64().unwrap() >= 16 && disk["errors"] == serde_json::json!({}), "{disk}");
    assert!(daemon.end(Signal::TERM).success());
}

/// A file in tmpfs, which the caller removes.
fn in_tmpfs() -> (PathBuf, File) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let image = PathBuf::from(format!("/dev/shm/sidecore-disk-{}-{number}", std::process::id()));
    let file = File::create_new(&image).expect("there has to be a tmpfs at /dev/shm");
    (image, file)
}

/// A file in tmpfs: the I/O core copies its bytes, where the kernel lets it.
#[test]
fn a_file_in_memory_holds_what_is_written() {
    let bed = Testbed::new();
    let (image, file) = in_tmpfs();
    file.set_len(BLOCKS * BLOCK as u64).unwrap();
    let daemon = bed.daemon(&["--port", &format!("d=blk:{},file={}", bed.at("d"), image.display())]);
    // It has it open.
    std::fs::remove_file(&image).unwrap();
    let access = shown(&bed)["access"].clone();
    // Before Linux 6.6 tmpfs knows no O_DIRECT.
    let direct = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECT;
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let taken = rustix::fs::open(path, direct, rustix::fs::Mode::empty()).is_ok();
    assert_eq!(access, if taken { "memory" } else { "workers" });
    for (seed, packed, shape) in [(1, false, Shape::Usual), (2, true, Shape::Pieces(7))] {
        let options = DiskOptions { packed, shape, queues: 4, depth: 32, ..small() };
        let mut disk = Disk::connect(bed.path("d"), options).unwrap();
        let zeros = [Range { sector: 0, sectors: 8 * BLOCKS as u32, unmap: true }];
        assert_eq!(disk.ask(Request::WriteZeroes(&zeros), WAIT).unwrap().0, Status::Ok);
        let mut work = Work::new(seed, BLOCKS);
        work.run(&mut disk, 500);
        assert_eq!(disk.ask(Request::Flush, WAIT).unwrap().0, Status::Ok);
        work.verify(&mut disk);
    }
    assert!(daemon.end(Signal::TERM).success());
}

/// What a guest only reads takes no memory, what it gives back takes none any more, and what is missing is an
/// error of the request that needs it.
#[test]
fn a_file_in_memory_takes_room_for_what_is_written_and_may_be_cut_short() {
    let bed = Testbed::new();
    let (image, file) = in_tmpfs();
    file.set_len(BLOCKS * BLOCK as u64).unwrap();
    let daemon = bed.daemon(&["--port", &format!("d=blk:{},file={}", bed.at("d"), image.display())]);
    std::fs::remove_file(&image).unwrap();
    let mut disk = Disk::connect(bed.path("d"), small()).unwrap();
    let mut ask = |request| disk.ask(request, WAIT).unwrap();
    let read = |block: u64| Request::Read { sector: 8 * block, len: BLOCK };
    // Linux counts in units of 512 bytes.
    let blocks = || file.metadata().unwrap().blocks() / 8;
    for block in 0..BLOCKS {
        assert_eq!(ask(read(block)), (Status::Ok, vec![0; BLOCK]));
    }
    assert_eq!(blocks(), 0);
    let data = vec![0x5a; BLOCK];
    for block in [0, 1, 2, 7, 200] {
        assert_eq!(ask(Request::Write { sector: 8 * block, data: &data }).0, Status::Ok);
        assert_eq!(ask(read(block)), (Status::Ok, data.clone()));
    }
    assert_eq!(blocks(), 5);
    let gone = [Range { sector: 8, sectors: 16, unmap: false }];
    assert_eq!(ask(Request::Discard(&gone)).0, Status::Ok);
    for block in 0..BLOCKS {
        assert_eq!(ask(read(block)).1[0], if [0, 7, 200].contains(&block) { 0x5a } else { 0 });
    }
    assert_eq!(blocks(), 3);
    file.set_len(BLOCK as u64).unwrap();
    assert_eq!(ask(read(7)).0, Status::IoError);
    assert_eq!(ask(read(0)), (Status::Ok, data.clone()));
    // A write makes it longer again.
    assert_eq!(ask(Request::Write { sector: 56, data: &data }).0, Status::Ok);
    assert_eq!((ask(read(7)), ask(read(6)).1), ((Status::Ok, data.clone()), vec![0; BLOCK]));
    assert_eq!(ask(read(200)).0, Status::IoError);
    assert_eq!(shown(&bed)["errors"], serde_json::json!({"file_cut_short": 2}));
    drop(disk);
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn room_is_given_back_and_zeros_are_zeros() {
    let bed = Testbed::new();
    let daemon = bed.daemon(&["--port", &port(&bed, "")]);
    let mut disk = Disk::connect(bed.path("d"), small()).unwrap();
    let data = vec![0xee; 8 * BLOCK];
    for at in 0..BLOCKS / 8 {
        assert_eq!(disk.ask(Request::Write { sector: 64 * at, data: &data }, WAIT).unwrap().0, Status::Ok);
    }
    assert_eq!(disk.ask(Request::Flush, WAIT).unwrap().0, Status::Ok);
    let full = std::fs::metadata(bed.path("image")).unwrap().blocks();
    let range = |block: u64, blocks: u32, unmap| Range { sector: block * 8, sectors: 8 * blocks, unmap };
    let discard = [range(0, 64, false), range(100, 0, false), range(64, 64, false)];
    assert_eq!(disk.ask(Request::Discard(&discard), WAIT).unwrap().0, Status::Ok);
    for writeback in [true, false] {
        disk.set_writeback(writeback).unwrap();
        let zeros = [range(128, 3, false), range(140, 2, true)];
        assert_eq!(disk.ask(Request::WriteZeroes(&zeros), WAIT).unwrap().0, Status::Ok);
    }
    let left = std::fs::metadata(bed.path("image")).unwrap().blocks();
    assert!(left < full * 3 / 4, "{left} of {full}");
    let file = std::fs::read(bed.path("image")).unwrap();
    assert_eq!(file.len() as u64, BLOCKS * BLOCK as u64);
    for (n, block) in file.chunks(BLOCK).enumerate() {
        let wanted = if n < 131 || (140..142).contains(&n) { 0 } else { 0xee };
        assert!(block.iter().all(|byte| *byte == wanted), "block {n}");
    }
    drop(disk);
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn a_file_that_is_cut_short_fails_its_reads_and_nothing_else() {
    let bed = Testbed::new();
    let daemon =
        bed.daemon(&["--port", &port(&bed, ""), "--port", &format!("n=blk:{},file=ram:1M", bed.at("n"))]);
    let mut disk = Disk::connect(bed.path("d"), small()).unwrap();
    let mut neighbour = Disk::connect(bed.path("n"), small()).unwrap();
    let file = File::options().write(true).open(bed.path("image")).unwrap();
    file.set_len(BLOCK as u64).unwrap();
    let read = |sector| Request::Read { sector, len: BLOCK };
    assert_eq!(disk.ask(read(0), WAIT).unwrap().0, Status::Ok);
    assert_eq!(disk.ask(read(8), WAIT).unwrap().0, Status::IoError);
    assert_eq!(disk.ask(Request::Read { sector: 4, len: BLOCK }, WAIT).unwrap().0, Status::IoError);
    assert_eq!(neighbour.ask(read(8), WAIT).unwrap().0, Status::Ok);
    assert_eq!(shown(&bed)["errors"]["file_cut_short"], 2);
    file.set_len(BLOCKS * BLOCK as u64).unwrap();
    assert_eq!(disk.ask(read(8), WAIT).unwrap(), (Status::Ok, vec![0; BLOCK]));
    // Its name does not matter any more.
    std::fs::remove_file(bed.path("image")).unwrap();
    assert_eq!(disk.ask(read(16), WAIT).unwrap().0, Status::Ok);
    drop((disk, neighbour));
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn a_disk_grows_with_its_file() {
    let bed = Testbed::new();
    let daemon = bed.daemon(&["--port", &port(&bed, "")]);
    bed.ok(&["add", &format!("r=blk:{},file=ram:1M", bed.at("r"))]);
    let bytes = BLOCKS * BLOCK as u64;
    let file = File::options().write(true).open(bed.path("image")).unwrap();
    assert!(bed.ok(&["resize", "d"]).contains("nothing to change"));
    file.set_len(2 * bytes).unwrap();
    // No VMM is there to be told.
    assert!(bed.ok(&["resize", "d"]).contains("a guest sees that when it starts"));

    let mut disk = Disk::connect(bed.path("d"), small()).unwrap();
    assert_eq!(disk.geometry().bytes(), 2 * bytes);
    let last = |bytes: u64| Request::Read { sector: bytes / 512 - 8, len: BLOCK };
    file.set_len(3 * bytes).unwrap();
    assert_eq!(disk.ask(last(3 * bytes), WAIT).unwrap().0, Status::IoError);
    assert!(!disk.changed().unwrap());
    assert!(bed.ok(&["resize", "d"]).contains(&format!("{} bytes now, and its VMM was told", 3 * bytes)));
    // What was told is there by the time of the answer.
    assert!(disk.changed().unwrap());
    assert_eq!(disk.geometry().bytes(), 3 * bytes);
    assert_eq!(disk.ask(last(3 * bytes), WAIT).unwrap(), (Status::Ok, vec![0; BLOCK]));
    assert_eq!(shown(&bed)["capacity"], 3 * bytes);

    for (len, wanted) in [(bytes, "disks only grow"), (4 * bytes + 1, "multiple of its block")] {
        file.set_len(len).unwrap();
        let why = bed.fails(&["resize", "d"]);
        assert!(why.contains(wanted), "{why}");
    }
    assert!(bed.fails(&["resize", "r"]).contains("it has no file"));
    assert!(bed.fails(&["resize", "none"]).contains("there is no port"));
    assert!(!disk.changed().unwrap());
    file.set_len(3 * bytes).unwrap();

    // A VMM that reads nothing holds no thread up, and misses nothing.
    for n in 4..600 {
        file.set_len(n * bytes).unwrap();
        assert!(bed.http("POST", "/v1/ports/d/resize", "").1.contains("\"told\":true"));
    }
    assert_eq!(disk.ask(last(3 * bytes), WAIT).unwrap().0, Status::Ok);
    while disk.changed().unwrap() {}
    assert_eq!(disk.geometry().bytes(), 599 * bytes);
    drop(disk);
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn a_file_has_one_writer() {
    let bed = Testbed::new();
    let daemon = bed.daemon(&["--port", &port(&bed, "")]);
    let why = bed.fails(&["add", &format!("e=blk:{},file={}", bed.at("e"), bed.at("image"))]);
    assert!(why.contains("port d writes to this file"), "{why}");
    symlink("image", bed.path("other")).unwrap();
    for options in ["", ",readonly=on"] {
        let why = bed.fails(&["add", &format!("e=blk:{},file={}{options}", bed.at("e"), bed.at("other"))]);
        assert!(why.contains("another process") && why.contains("process"), "{why}");
    }
    bed.ok(&["del", "d"]);
    let both =
        ["e", "f"].map(|name| format!("{name}=blk:{},file={},readonly=on", bed.at(name), bed.at("other")));
    for port in &both {
        bed.ok(&["add", port]);
    }
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn what_is_no_disk_is_told_so() {
    let bed = Testbed::new();
    let daemon = bed.daemon(&[]);
    bed.write("odd", "x");
    bed.write("empty", "");
    for (file, wanted) in [
        ("/dev/null".to_owned(), "no regular file and no block device"),
        (bed.at("missing"), "No such file"),
        (bed.at(""), "no regular file and no block device"),
        (bed.at("odd"), "multiple of its block"),
        (bed.at("empty"), "multiple of its block"),
    ] {
        let why = bed.fails(&["add", &format!("d=blk:{},file={file}", bed.at("d"))]);
        assert!(why.contains(wanted) && why.contains(&file), "{file}: {why}");
    }
    assert!(daemon.end(Signal::TERM).success());
}

/// Requests are under way whenever the guest leaves, the port goes and the daemon ends.
#[test]
fn queues_end_with_requests_under_way() {
    let bed = Testbed::new();
    let daemon = bed.daemon(&["--port", &port(&bed, ",queues=4")]);
    let data = vec![1; BLOCK];
    for round in 0..10u64 {
        let options = DiskOptions { queues: 4, depth: 32, packed: round % 2 == 1, ..small() };
        let mut disk = Disk::connect(bed.path("d"), options).unwrap();
        for n in 0..128 {
            let sector = 8 * ((round + n) % BLOCKS);
            disk.submit(Request::Write { sector, data: &data }).unwrap();
        }
        disk.publish().unwrap();
        if round == 8 {
            bed.ok(&["del", "d"]);
            bed.ok(&["add", &port(&bed, ",queues=4")]);
        }
    }
    assert!(daemon.end(Signal::TERM).success());
}

/// Queues go from one I/O core to the other with requests under way: each request has one answer, and what
/// was written is there.
#[test]
fn queues_move_between_cores_with_requests_under_way() {
    let bed = Testbed::new();
    let daemon = bed.daemon(&["--cores", "0,1", "--balance", "off", "--port", &port(&bed, ",queues=4")]);
    let mut blocks = vec![0; BLOCKS as usize];
    for (seed, packed) in (7..).zip([false, true]) {
        let options = DiskOptions { packed, queues: 4, depth: 32, ..small() };
        let mut disk = Disk::connect(bed.path("d"), options).unwrap();
        let mut work = Work::new(seed, BLOCKS);
        work.blocks = blocks;
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let moves = scope.spawn(|| {
                for turn in 0..20 {
                    bed.ok(&["move", "d", if turn % 2 == 0 { "1" } else { "0" }]);
                }
                over.store(true, Ordering::Release);
            });
            while !over.load(Ordering::Acquire) && !moves.is_finished() {
                work.run(&mut disk, 100);
            }
        });
        work.verify(&mut disk);
        let queues = bed.show("queues");
        let moved = queues["queues"]
            .as_array()
            .unwrap()
            .iter()
            .map(|queue| queue["served"]["moves"].as_u64().unwrap());
        assert!(moved.sum::<u64>() >= 4 * 19, "{queues:#}");
        blocks = work.blocks;
    }
    assert!(daemon.end(Signal::TERM).success());
}
