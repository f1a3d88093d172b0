//! Maps of huge pages: files that are cut short, and pools that run dry.

use std::fs::File;

use rustix::fs::ftruncate;
use sidecore_engine::mem::{GuestMap, RegionSpec};

use crate::huge_pages::{HugePages, HUGE};

fn map(file: &File, size: u64) -> GuestMap {
    let file = file.try_clone().unwrap();
    GuestMap::new(&[RegionSpec { gpa: 0, size, user_addr: 0, offset: 0, file }]).unwrap()
}

/// The kernel gives the very byte that was touched, and replaces whole huge pages only.
#[test]
fn a_file_of_huge_pages_may_be_cut_short_too() {
    let pages = HugePages::take(3);
    let file = pages.file(3 * HUGE);
    let map = map(&file, 3 * HUGE);
    let away = 2 * HUGE + 0x5123;
    let piece = map.translate(away, 8, &mut 0).unwrap();
    piece.write(&[7; 8]);
    let kept = map.translate(HUGE - 8, 8, &mut 0).unwrap();
    kept.write(&[5; 8]);
    ftruncate(&file, 2 * HUGE).unwrap();
    let mut bytes = [1; 8];
    piece.read(&mut bytes);
    assert_eq!((bytes, map.is_truncated()), ([0; 8], true));
    // Once more, below: the first repair made two mappings of the one.
    ftruncate(&file, HUGE).unwrap();
    assert_eq!(map.translate(HUGE + 0x7777, 8, &mut 0).unwrap().write(&[1; 8]), 8);
    kept.read(&mut bytes);
    assert_eq!(bytes, [5; 8], "what the file still has stays");
}

/// No file is cut short: the pages are gone because another process has them.
#[test]
fn a_pool_of_huge_pages_may_run_dry() {
    let pages = HugePages::take(2);
    let file = pages.file(2 * HUGE);
    let map = map(&file, 2 * HUGE);
    // A hole gives the page back, reserved or not, and the next one takes it.
    let piece = map.translate(HUGE + 0x1238, 8, &mut 0).unwrap();
    piece.write(&[7; 8]);
    let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, HUGE, HUGE).unwrap();
    let thieves: Vec<File> = std::iter::from_fn(|| {
        let thief = pages.file(HUGE);
        rustix::fs::fallocate(&thief, rustix::fs::FallocateFlags::empty(), 0, HUGE).is_ok().then_some(thief)
    })
    .collect();
    let mut bytes = [1; 8];
    piece.read(&mut bytes);
    assert_eq!(bytes, [0; 8]);
    assert!(map.is_truncated() || thieves.is_empty(), "{} pages were taken", thieves.len());
}

/// More than the pool has can be mapped: VMMs with `reserve=off` do that. Touching it is their port's end.
#[test]
fn memory_that_nobody_reserved_is_mapped_without() {
    let pages = HugePages::take(1);
    // The host may have some for others, too.
    let more = pages.all() + 1;
    let file = pages.file(more * HUGE);
    let map = map(&file, more * HUGE);
    for page in 0..more {
        map.translate(page * HUGE + 0x9999, 8, &mut 0).unwrap().write(&[7; 8]);
        if map.is_truncated() {
            return;
        }
    }
    panic!("a pool without end");
}
