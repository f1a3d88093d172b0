//! The block driver against a device that is not ours: `qemu-storage-daemon`, which scripts/setup installs.

mod work;

use std::path::PathBuf;
use std::time::Instant;

use crate::peers::Scratch;
use crate::storage::{Export, Image, StorageDaemon};
use sidecore_abi::virtio::features as f;
use sidecore_driver::blk::{Range, Shape, Woken};
use sidecore_driver::{Disk, DiskOptions, Error, Frontend, Request, Status};
use work::{Work, BLOCK, WAIT};

const BLOCKS: u64 = 256;
const SIZE: u64 = BLOCKS * BLOCK as u64;

/// A daemon with one disk, a file of zeroes.
struct Rig {
    daemon: StorageDaemon,
    export: Export,
    scratch: Scratch,
}

impl Rig {
    fn with(set: impl FnOnce(&mut Export)) -> Rig {
        let scratch = Scratch::new("sc-blk").unwrap();
        let path = scratch.file("disk");
        std::fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
        let image = Image { path, direct: false };
        let mut export = Export { socket: scratch.file("s"), image, queues: 4, writable: true };
        set(&mut export);
        let daemon = StorageDaemon::start(None, &scratch, std::slice::from_ref(&export)).unwrap();
        Rig { daemon, export, scratch }
    }

    fn new() -> Rig {
        Rig::with(|_| {})
    }

    fn connect(&self, options: DiskOptions) -> Disk {
        Disk::connect(&self.export.socket, options).unwrap()
    }

    fn file(&self) -> PathBuf {
        self.scratch.file("disk")
    }

    /// Kills the daemon and starts another one.
    fn replace(&mut self) {
        self.daemon.kill();
        for path in [&self.export.socket, &self.daemon.control().to_path_buf()] {
            let _ = std::fs::remove_file(path);
        }
        let exports = std::slice::from_ref(&self.export);
        self.daemon = StorageDaemon::start(None, &self.scratch, exports).unwrap();
    }
}

/// Small requests: tests that take no more memory than they need.
fn small() -> DiskOptions {
    DiskOptions { largest: 8 * BLOCK, ..DiskOptions::default() }
}

#[test]
fn a_disk_says_what_it_is() {
    let rig = Rig::new();
    let mut disk = rig.connect(small());
    let geometry = *disk.geometry();
    assert_eq!(geometry.bytes(), SIZE);
    assert_eq!((geometry.block, geometry.queues), (Some(512), Some(4)));
    assert!(geometry.write_zeroes.is_some() && geometry.discard.is_some());
    let (status, id) = disk.ask(Request::Id, WAIT).unwrap();
    assert_eq!((status, id.len()), (Status::Ok, 20));
    assert_eq!(disk.ask(Request::Flush, WAIT).unwrap().0, Status::Ok);
}

#[test]
fn what_is_written_is_read_in_every_shape() {
    let rig = Rig::new();
    for (n, shape) in
        (1..).zip([Shape::Usual, Shape::Joined, Shape::Pieces(2), Shape::Pieces(7), Shape::Pieces(30)])
    {
        for indirect in [false, true] {
            for event_idx in [false, true] {
                let options = DiskOptions { shape, indirect, event_idx, entries: 128, ..small() };
                let mut disk = rig.connect(options);
                let data: Vec<u8> = (0..5 * 512).map(|i| (i / 3 * n) as u8).collect();
                let write = Request::Write { sector: 7 * n, data: &data };
                assert_eq!(disk.ask(write, WAIT).unwrap().0, Status::Ok, "{options:?}");
                let read = Request::Read { sector: 7 * n, len: data.len() };
                assert_eq!(disk.ask(read, WAIT).unwrap(), (Status::Ok, data), "{options:?}");
            }
        }
    }
}

#[test]
fn many_requests_are_in_flight_on_every_queue() {
    let rig = Rig::new();
    let mut blocks = vec![0; BLOCKS as usize];
    for (seed, (queues, depth)) in (1..).zip([(1, 1), (1, 64), (4, 8), (4, 64)]) {
        let mut disk = rig.connect(DiskOptions { queues, depth, ..small() });
        let mut work = Work::new(seed, BLOCKS);
        work.blocks = blocks;
        work.run(&mut disk, 3000);
        work.verify(&mut disk);
        if depth > 1 {
            assert!(work.overtaken > 0, "no answer came out of order");
        }
        blocks = work.blocks;
    }
    // What the guest saw is what the file holds.
    let file = std::fs::read(rig.file()).unwrap();
    for (n, block) in file.chunks(BLOCK).enumerate() {
        assert!(block == work::content(n as u64, blocks[n]), "block {n}");
    }
}

#[test]
fn discards_and_zeroes_have_ranges() {
    let rig = Rig::new();
    let mut disk = rig.connect(small());
    let data = vec![0xee; 4 * BLOCK];
    assert_eq!(disk.ask(Request::Write { sector: 0, data: &data }, WAIT).unwrap().0, Status::Ok);
    let range = |block: u64, unmap| Range { sector: block * 8, sectors: 8, unmap };
    assert_eq!(disk.ask(Request::Discard(&[range(1, false)]), WAIT).unwrap().0, Status::Ok);
    assert_eq!(disk.ask(Request::WriteZeroes(&[range(2, true)]), WAIT).unwrap().0, Status::Ok);
    let (status, now) = disk.ask(Request::Read { sector: 0, len: data.len() }, WAIT).unwrap();
    assert_eq!(status, Status::Ok);
    let of = |block: usize| &now[block * BLOCK..(block + 1) * BLOCK];
    assert!(of(0).iter().chain(of(3)).all(|byte| *byte == 0xee), "the blocks beside are as they were");
    assert!(of(2).iter().all(|byte| *byte == 0), "zeroes are zeroes");
}

#[test]
fn what_cannot_be_has_a_status() {
    let rig = Rig::with(|export| export.writable = false);
    let mut disk = rig.connect(small());
    assert!(disk.session().has(f::BLK_RO));
    let mut ask = |request| disk.ask(request, WAIT).unwrap().0;
    assert_eq!(ask(Request::Write { sector: 0, data: &[1; 512] }), Status::IoError);
    assert_eq!(ask(Request::Read { sector: SIZE / 512, len: 512 }), Status::IoError);
    assert_eq!(ask(Request::Read { sector: u64::MAX, len: 512 }), Status::IoError);
    assert_eq!(ask(Request::Raw { kind: 77, sector: 0, data: &[], writable: 0 }), Status::Unsupported);
    // The disk goes on.
    assert_eq!(ask(Request::Read { sector: 0, len: 512 }), Status::Ok);
}

#[test]
fn the_cache_can_be_changed() {
    let rig = Rig::new();
    let mut disk = rig.connect(small());
    for on in [false, true] {
        disk.set_writeback(on).unwrap();
        assert_eq!(disk.geometry().writeback, Some(on));
    }
}

#[test]
fn a_pause_loses_nothing() {
    let rig = Rig::new();
    let mut disk = rig.connect(DiskOptions { queues: 2, ..small() });
    let mut work = Work::new(11, BLOCKS);
    for _ in 0..20 {
        work.fill(&mut disk);
        disk.publish().unwrap();
        disk.pause_and_resume().unwrap();
        work.poll(&mut disk);
    }
    work.finish(&mut disk);
    work.verify(&mut disk);
}

#[test]
fn requests_survive_the_backend() {
    let mut rig = Rig::new();
    // It keeps no record of requests in flight: the driver asks for all of them again.
    let mut disk = rig.connect(DiskOptions { queues: 2, inflight: false, ..small() });
    let mut work = Work::new(5, BLOCKS);
    let mut again = 0;
    for _ in 0..8 {
        for _ in 0..10 {
            work.fill(&mut disk);
            work.poll(&mut disk);
        }
        work.fill(&mut disk);
        disk.publish().unwrap();
        rig.replace();
        let start = Instant::now();
        // Answers may have come before the end.
        while disk.wait(WAIT).unwrap() == Woken::Answers {
            work.poll(&mut disk);
        }
        assert!(start.elapsed() < WAIT, "the end of the daemon is not seen");
        let frontend = Frontend::connect(&rig.export.socket, WAIT).unwrap();
        disk.reconnect(frontend, |tag, status, data| work.take(tag, status, data)).unwrap();
        again = disk.stats().again;
    }
    work.finish(&mut disk);
    work.verify(&mut disk);
    assert!(again > 0, "the daemon always ended without a request in flight");
}

#[test]
fn what_the_backend_lacks_is_named() {
    let rig = Rig::new();
    let error = Disk::connect(&rig.export.socket, DiskOptions { packed: true, ..small() });
    // A backend that has them is as well.
    if let Err(error) = error {
        assert!(matches!(error, Error::Missing(_)) && error.to_string().contains("RING_PACKED"), "{error}");
    }
    let error = Disk::connect(&rig.export.socket, DiskOptions { queues: 5, ..small() }).unwrap_err();
    assert!(error.to_string().contains("5 queues, but the backend allows 4"), "{error}");
}
