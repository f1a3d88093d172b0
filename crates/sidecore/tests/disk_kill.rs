//! The daemon is killed under verified reads, writes and flushes of a disk, again and again. A guest's
//! requests have one answer each, no block is lost, and none is written a second time after a later write:
//! the model knows what each may hold. The page cache outlives the daemon, so this shows nothing of what
//! flushes do: `disk_errors` does (`what_lasts_is_behind_the_page_cache`).
//!
//! Ten times in a test run; `SIDECORE_KILLS=100` for more.

use crate::rig::{Daemon, Testbed, LIMIT};
use crate::work::{content, Random, Work, BLOCK};
use rustix::process::Signal;
use sidecore_driver::blk::Woken;
use sidecore_driver::frontend::{protocol, Listener};
use sidecore_driver::{Disk, DiskOptions, Frontend};

const BLOCKS: u64 = 128;

fn kills() -> u64 {
    std::env::var("SIDECORE_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(10)
}

fn start(bed: &Testbed, options: &str) -> Daemon {
    let port = format!("d=blk:{},file={}{options}", bed.at("d.sock"), bed.at("image"));
    bed.daemon(&["--port", &port])
}

fn storm(seed: u64, options: DiskOptions, port: &str) {
    let bed = Testbed::new();
    std::fs::File::create(bed.path("image")).unwrap().set_len(BLOCKS * BLOCK as u64).unwrap();
    let socket = bed.path("d.sock");
    // One of the two listens.
    let listener = port.contains("role=client").then(|| Listener::new(&socket).unwrap());
    let call = || match &listener {
        Some(listener) => listener.accept(LIMIT).unwrap(),
        None => Frontend::connect(&socket, LIMIT).unwrap(),
    };
    let mut daemon = start(&bed, port);
    let mut disk = Disk::start(call(), DiskOptions { largest: BLOCK, ..options }).unwrap();
    let recorded = disk.session().protocol & protocol::INFLIGHT_SHMFD != 0;
    assert_eq!(recorded, options.inflight);
    let (mut work, mut chance) = (Work::new(seed, BLOCKS), Random(seed | 1));
    for kill in 0..kills() {
        // Some answers, then a moment between the device's first look at new requests and its last answer.
        for _ in 0..chance.below(30) {
            work.fill(&mut disk);
            work.poll(&mut disk);
        }
        work.fill(&mut disk);
        for _ in 0..chance.below(300) {
            disk.poll(|tag, status, data| work.take(tag, status, data)).unwrap();
        }
        daemon.end(Signal::KILL);
        while disk.wait(LIMIT).unwrap() == Woken::Answers {
            work.poll(&mut disk);
        }
        daemon = start(&bed, port);
        disk.reconnect(call(), |tag, status, data| work.take(tag, status, data))
            .unwrap_or_else(|error| panic!("after kill {kill}: {error}"));
    }
    work.finish(&mut disk);
    work.verify(&mut disk);
    drop(disk);
    drop(daemon);
    let file = std::fs::read(bed.path("image")).unwrap();
    for (block, data) in (0..).zip(file.chunks(BLOCK)) {
        let version = work.blocks[block as usize];
        assert!(data == content(block, version), "block {block} of the file is not at version {version}");
    }
}

#[test]
fn split_rings() {
    storm(1, DiskOptions { queues: 2, ..DiskOptions::default() }, "");
}

#[test]
fn packed_rings() {
    storm(2, DiskOptions { packed: true, ..DiskOptions::default() }, "");
}

#[test]
fn direct_chains() {
    storm(3, DiskOptions { indirect: false, depth: 32, ..DiskOptions::default() }, ",cache=writethrough");
}

#[test]
fn a_guest_that_offers_again_itself() {
    storm(4, DiskOptions { inflight: false, ..DiskOptions::default() }, "");
}

#[test]
fn a_vmm_that_listens() {
    storm(5, DiskOptions { queues: 2, ..DiskOptions::default() }, ",role=client");
}
