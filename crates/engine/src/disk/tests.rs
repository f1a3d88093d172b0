//! Disks in memory, job by job.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use super::open::open_here;
use super::*;
use crate::mem::{gather, Deadline, GuestMap, Terms};

/// Memory of a guest, cut into pieces of these lengths.
struct Buffers {
    _memory: Store,
    list: Vec<Piece>,
}

impl Buffers {
    fn new(lens: &[u32]) -> Buffers {
        let memory = Store::new(1 << 16).unwrap();
        let mut at = 0;
        let mut cut = |len: &u32| {
            at += u64::from(*len);
            memory.piece(at - u64::from(*len), *len).unwrap()
        };
        let list = lens.iter().map(&mut cut).collect();
        Buffers { list, _memory: memory }
    }

    fn put(&self, mut bytes: &[u8]) {
        for piece in &self.list {
            bytes = &bytes[piece.write(bytes)..];
        }
    }

    fn get(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.list.iter().map(Piece::len).sum()];
        gather(&mut self.list.clone(), 0, &mut bytes);
        bytes
    }
}

fn transfer(disk: &Disk, op: Op, at: u64, buffers: &Buffers, most: u64) {
    let len = buffers.list.iter().map(|piece| piece.len() as u64).sum();
    let mut job = Job::default();
    job.transfer(op, at, &buffers.list, len);
    while !job.is_done() {
        let done = disk.step(&mut job, most, Deadline::NEVER);
        assert!(done > 0 && done <= most);
    }
    assert_eq!(job.left(), 0);
}

/// However a job is cut, by its pieces and by visits, the disk has what was written.
#[test]
fn what_was_written_is_read() {
    let disk = Disk::ram(8192, 512, false).unwrap();
    let data: Vec<u8> = (0..1536u32).map(|i| u8::try_from(i % 251).unwrap()).collect();
    for most in [1, 7, 512, u64::MAX] {
        let cut = Buffers::new(&[5, 0, 695, 836]);
        cut.put(&data);
        transfer(&disk, Op::Write, 6656, &cut, most);
        let back = Buffers::new(&[1000, 536]);
        transfer(&disk, Op::Read, 6656, &back, most);
        assert_eq!(back.get(), data);
        let mut job = Job::default();
        let range = |at, len| Range { at, len, unmap: false };
        job.whole(Op::WriteZeroes, &[range(0, 0), range(6656, 512), range(7680, 512)]);
        while !job.is_done() {
            assert!(disk.step(&mut job, most, Deadline::NEVER) > 0);
        }
        transfer(&disk, Op::Read, 6656, &back, most);
        let wanted = [&[0; 512][..], &data[512..1024], &[0; 512]].concat();
        assert_eq!(back.get(), wanted);
    }
}

/// Where each page of the guest takes long, a visit has one of them, however many there are, and gets on.
#[test]
fn a_step_ends_with_its_time() {
    let disk = Disk::ram(8192, 512, false).unwrap();
    let over = Deadline::new(0, 0, 0);
    for op in [Op::Read, Op::Write] {
        let cut = Buffers::new(&[100, 0, 2, 4094, 896]);
        let mut job = Job::default();
        job.transfer(op, 0, &cut.list, 5092);
        let mut steps = Vec::new();
        while !job.is_done() {
            steps.push(disk.step(&mut job, u64::MAX, over));
        }
        assert_eq!(steps, [100, 2, 3994, 100, 896]);
    }
}

/// Memory of ours may have to be found, too: a visit clears 64 KiB of it beyond its time, which lie in one huge page, and gets on.
#[test]
fn zeroes_end_with_their_time() {
    const KIB: u64 = 1 << 10;
    let disk = Disk::ram(4096 * KIB, 512, false).unwrap();
    let range = |at, len| Range { at, len, unmap: false };
    // Over the end of a huge page, whatever the memory consists of.
    let ranges = [range(2048 * KIB - 512, 1024), range(4 * KIB, 130 * KIB)];
    let steps = |deadline: Deadline| {
        let mut job = Job::default();
        job.whole(Op::WriteZeroes, &ranges);
        let mut steps = Vec::new();
        while !job.is_done() {
            steps.push(disk.step(&mut job, u64::MAX, deadline));
        }
        steps
    };
    assert_eq!(steps(Deadline::new(0, 0, 0)), [512, 512, 60 * KIB, 64 * KIB, 6 * KIB]);
    assert_eq!(steps(Deadline::NEVER), [131 * KIB]);
}

#[test]
fn nothing_reads_as_zeros() {
    let disk = Disk::null(4096, 512, false);
    let back = Buffers::new(&[4096]);
    back.put(&[7; 4096]);
    transfer(&disk, Op::Write, 0, &back, 4096);
    transfer(&disk, Op::Read, 0, &back, 100);
    assert_eq!(back.get(), vec![0; 4096]);
}

#[test]
fn what_has_nothing_to_do_is_done() {
    let disk = Disk::null(4096, 512, false);
    for op in [Op::Flush, Op::Discard, Op::WriteZeroes] {
        let mut job = Job::default();
        job.whole(op, &[]);
        assert_eq!((disk.step(&mut job, 1, Deadline::NEVER), job.is_done()), (0, true));
    }
}

/// Requests of a queue that was dropped, or whose process was killed, may still be carried out: no other process writes
/// before.
#[test]
fn a_file_is_locked_as_long_as_a_ring_has_it() {
    let path = std::env::temp_dir().join(format!("sidecore-disk-{}", std::process::id()));
    std::fs::write(&path, [0; 4096]).unwrap();
    let (medium, len) = FileMedium::open(&path, 512, false).unwrap();
    assert_eq!(len, 4096);
    let way = medium.way(1, Arc::new(GuestMap::empty(&Terms::default())));
    drop(medium);
    if let Ok(way) = way {
        let refused = open_here(&path, false).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock, "{refused}");
        assert_eq!(open_here(&path, true).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(way);
    }
    // The kernel lets go of the file some time after the ring.
    FileMedium::open(&path, 512, false).unwrap();
    std::fs::remove_file(&path).unwrap();
}
