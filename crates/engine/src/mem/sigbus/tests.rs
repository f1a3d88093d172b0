//! Files that are cut short, a table that many want, and one that changes while it is read.
//!
//! Invariant of the `unsafe` here: the handler is called with a whole `siginfo`, which it only reads.

use std::fs::File;

use rustix::fs::{ftruncate, memfd_create, MemfdFlags};

use super::*;
use crate::mem::{GuestMap, RegionSpec};

fn spec(file: &File, size: u64, offset: u64) -> RegionSpec {
    RegionSpec { gpa: 0, size, user_addr: 0, offset, file: file.try_clone().unwrap() }
}

#[test]
fn a_file_cut_short_raises_the_flag_and_reads_as_zero() {
    let fd = memfd_create(c"cut", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, 0x10000).unwrap();
    let file: File = fd.into();
    let map = GuestMap::new(&[spec(&file, 0x10000, 0)]).unwrap();
    let piece = map.translate(0x8000, 8, &mut 0).unwrap();
    piece.write(&[7; 8]);
    assert!(!map.is_truncated());
    ftruncate(&file, 0x4000).unwrap();
    let mut bytes = [1; 8];
    piece.read(&mut bytes);
    assert_eq!(bytes, [0; 8]);
    assert!(map.is_truncated());
    let whole = map.translate(0, 8, &mut 0).unwrap();
    assert_eq!(whole.write(&[1; 8]), 8);
}

const NOWHERE: EntrySnapshot =
    EntrySnapshot { start: 0x1000, len: 1, page: 0x1000, flag: std::ptr::null_mut() };

#[test]
fn a_mapping_that_cannot_be_watched_is_refused() {
    let (table, terms) = (Table::<2>::new(), Terms::default());
    let first = table.enter(2, &terms, NOWHERE).unwrap();
    table.enter(2, &terms, NOWHERE).unwrap();
    let error = table.enter(2, &terms, NOWHERE).unwrap_err();
    assert_eq!(error, WatchError::Full(2));
    assert!(error.to_string().contains("2 mappings"), "{error}");
    table.leave(first, &terms);
    assert_eq!((table.enter(2, &terms, NOWHERE), terms.watched()), (Ok(first), 2));
}

#[test]
fn ports_that_take_all_they_can_keep_nobody_out() {
    let table = Box::new(Table::<ENTRIES>::new());
    let take_all = || {
        let terms = Terms::default();
        while table.enter(ENTRIES, &terms, NOWHERE).is_ok() {}
        terms
    };
    let greedy: Vec<Terms> = (0..64).map(|_| take_all()).collect();
    assert_eq!(greedy.iter().map(Terms::watched).max(), Some(PORT));
    let late: Vec<Terms> = (0..64).map(|_| take_all()).collect();
    let least = late.iter().map(Terms::watched).min();
    assert!(least >= Some(SHARES[1]), "{least:?}");
    let error = table.enter(ENTRIES, &late[0], NOWHERE).unwrap_err();
    assert!(error.to_string().starts_with("memory_share: this port has 32 mappings"), "{error}");
}

/// What the handler reads is one state of the entry.
#[test]
fn an_entry_that_changes_is_passed_over() {
    let entry = Entry::free();
    let stop = AtomicBool::new(false);
    let of = |n: usize| EntrySnapshot { start: n << 12, len: n, page: 2 * n, flag: (n as *mut u8).cast() };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..200_000 {
                entry.write(of(n));
            }
            stop.store(true, Ordering::Relaxed);
        });
        let mut whole = 0u64;
        while !stop.load(Ordering::Relaxed) || whole == 0 {
            if let Some(seen) = entry.read() {
                assert_eq!(seen, of(seen.len));
                whole += 1;
            }
        }
    });
    entry.write(EntrySnapshot { start: 0, ..NOWHERE });
    assert_eq!(entry.read(), None);
}

/// A failed page that no thread touches is noted, and the process lives.
#[test]
fn a_memory_error_of_others_is_a_note() {
    let before = noted();
    // SAFETY: a siginfo of zeros is a valid one, and the handler only reads it.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        info.si_code = libc::BUS_MCEERR_AO;
        on_sigbus(libc::SIGBUS, &mut info, std::ptr::null_mut());
    }
    assert_eq!(noted(), before + 1);
}
