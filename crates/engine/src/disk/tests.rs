//! Disks in memory, job by job.

#![allow(clippy::unwrap_used)]

use std::os::fd::AsRawFd;
use std::sync::Arc;

use super::open::{lock_alone, open_here};
use super::*;
use crate::mem::{gather, Begun, Deadline, GuestMap, JournalSlots, Terms, Transfers};

/// Memory of a guest, cut into pieces of these lengths.
struct Buffers {
    _memory: Mapping,
    list: Vec<Piece>,
}

impl Buffers {
    fn new(lens: &[u32]) -> Buffers {
        let memory = Mapping::anonymous(1 << 16).unwrap();
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

/// Memory of ours may have to be found, too: a visit clears 64 KiB of it beyond its time, which lie in one
/// huge page, and gets on.
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

/// Requests of a queue that was dropped, or whose process was killed, may still be carried out: no other
/// process writes before.
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

/// A file, and the ways of two queues to it; none where there is no io_uring.
fn two_queues(served: bool) -> Option<(FileMedium, [Transfers; 2])> {
    let file = tempfile();
    let len = file.metadata().unwrap().len();
    let (medium, _) = if served { FileMedium::served(file, len) } else { FileMedium::of(file, 512) }.unwrap();
    let way = || medium.way(8, Arc::new(GuestMap::empty(&Terms::default())));
    match (way(), way()) {
        (Ok(one), Ok(other)) => Some((medium, [one, other])),
        _ => {
            eprintln!("skipped: there is no io_uring here");
            None
        }
    }
}

fn tempfile() -> std::fs::File {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("sidecore-flushes-{}-{number}", std::process::id()));
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.set_len(4096).unwrap();
    file
}

fn flush() -> Job {
    let mut job = Job::default();
    job.whole(Op::Flush, &[]);
    job
}

/// The kernel tells one flush alone that writes are lost: no other one is under way then, which would be
/// answered as if nothing had happened, in whatever order the two end.
#[test]
fn flushes_that_overlap_fail_together() {
    let Some((medium, [mut one, mut other])) = two_queues(false) else { return };
    let [mut first, mut second, mut third] = [flush(), flush(), flush()];
    assert_eq!(medium.begin(&mut one, 0, &mut first, false), Ok(Begun::Yes));
    assert_eq!(medium.begin(&mut one, 1, &mut second, false), Ok(Begun::NotNow), "of one queue");
    assert_eq!(medium.begin(&mut other, 0, &mut third, false), Ok(Begun::NotNow), "of two queues");
    assert_eq!(medium.over(&mut first, -libc::EIO), Some(Err(RequestError::Failed)));
    for (way, job) in [(&mut one, &mut second), (&mut other, &mut third)] {
        assert_eq!(medium.begin(way, 2, job, false), Err(RequestError::FlushLost));
    }
}

/// A flush that waited for its turn need not be carried out where another one was, which began behind it.
#[test]
fn one_flush_is_for_all_that_wait() {
    let Some((medium, [mut one, mut other])) = two_queues(false) else { return };
    let [mut first, mut next, mut waits] = [flush(), flush(), flush()];
    assert_eq!(medium.begin(&mut one, 0, &mut first, false), Ok(Begun::Yes));
    assert_eq!(medium.begin(&mut other, 0, &mut waits, false), Ok(Begun::NotNow));
    assert_eq!(medium.over(&mut first, 0), Some(Ok(())));
    assert_eq!(medium.begin(&mut one, 1, &mut next, false), Ok(Begun::Yes));
    assert_eq!(medium.begin(&mut other, 0, &mut waits, false), Ok(Begun::NotNow), "it is not over");
    assert_eq!(medium.over(&mut next, 0), Some(Ok(())));
    assert_eq!(medium.begin(&mut other, 0, &mut waits, false), Ok(Begun::Over));
}

/// Where the page cache stands between, what a write lost is told to one of those that wait for it: so a
/// write that lasts is a write, and then a flush.
#[test]
fn a_write_that_lasts_is_flushed() {
    let Some((medium, [mut way, _])) = two_queues(true) else { return };
    let buffers = Buffers::new(&[512]);
    let mut jobs = [Job::default(), Job::default()];
    for (slot, job) in jobs.iter_mut().enumerate() {
        job.transfer(Op::Write, 0, &buffers.list, 512);
        assert_eq!(medium.begin(&mut way, slot, job, true), Ok(Begun::Yes));
        assert_eq!(medium.over(job, 512), None, "its flush is still to come");
    }
    let [first, second] = &mut jobs;
    assert_eq!(medium.begin(&mut way, 2, first, true), Ok(Begun::Yes));
    assert_eq!(medium.over(first, -libc::EIO), Some(Err(RequestError::Failed)));
    assert_eq!(medium.begin(&mut way, 3, second, true), Err(RequestError::FlushLost));
    while way.under_way() > 0 {
        way.submit();
        way.wait();
        while way.next_over(Deadline::NEVER).is_some() {}
    }
}

/// A journal in which nothing stands, as one of an earlier version; opened anew each time.
fn journal() -> (impl Fn() -> std::fs::File, JournalSlots) {
    let file = tempfile();
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let slots = JournalSlots::open(&file, 64, 1).unwrap();
    let again = move || {
        let _ = &file;
        std::fs::File::options().read(true).write(true).open(&path).unwrap()
    };
    (again, slots)
}

/// The next process knows what a flush lost in this one, from the journal.
#[test]
fn a_journal_keeps_that_a_flush_has_failed() {
    let (journal, slots) = journal();
    let keep = |medium: &FileMedium| medium.keep(journal(), slots.slot(0).unwrap(), 7).unwrap();
    for flushes in [Ok(Begun::Yes), Err(RequestError::FlushLost), Err(RequestError::FlushLost)] {
        let Some((medium, [mut way, _])) = two_queues(false) else { return };
        keep(&medium);
        let mut job = flush();
        assert_eq!(medium.begin(&mut way, 0, &mut job, false), flushes);
        if flushes.is_ok() {
            assert_eq!(medium.over(&mut job, -libc::EIO), Some(Err(RequestError::Failed)));
        }
    }
}

/// Reads of a process that was killed may still be carried out, into memory that its guest uses again: so its
/// port's journal is locked until they are over.
#[test]
fn a_journal_is_locked_as_long_as_a_ring_reads() {
    let (journal, slots) = journal();
    let path = std::env::temp_dir().join(format!("sidecore-read-only-{}", std::process::id()));
    std::fs::write(&path, [0; 4096]).unwrap();
    let (medium, _) = FileMedium::open(&path, 512, true).unwrap();
    medium.keep(journal(), slots.slot(0).unwrap(), 7).unwrap();
    let way = medium.way(1, Arc::new(GuestMap::empty(&Terms::default())));
    drop(medium);
    if let Ok(way) = way {
        assert_eq!(lock_alone(&journal()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(way);
    }
    // The kernel lets go of it some time after the ring.
    let (next, _) = FileMedium::open(&path, 512, true).unwrap();
    next.keep(journal(), slots.slot(0).unwrap(), 7).unwrap();
    std::fs::remove_file(&path).unwrap();
}
