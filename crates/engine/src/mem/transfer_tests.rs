//! Files read and written through a ring, by the real kernel.
//!
//! Invariant of the `unsafe` here: what the requests refer to outlives the test, and the kernel takes none of
//! them.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::*;
use crate::mem::Terms;

const LASTING: How = How { lasting: true, by_worker: false };

const NO_RING: &str = "this test needs a kernel that grants io_uring";

fn file(len: u64) -> File {
    let file = File::from(rustix::fs::memfd_create(c"disk", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
    file.set_len(len).unwrap();
    file
}

fn ring(file: &File, align: Option<Alignment>) -> Transfers {
    let map = Arc::new(GuestMap::empty(&Terms::default()));
    Transfers::new((file, None), 4, align, Bounds { one: 1 << 20, all: 4096 }, map).expect(NO_RING)
}

/// The results of all that is under way, by slot.
fn results(ring: &mut Transfers) -> Vec<(usize, i32)> {
    ring.submit();
    let mut all = Vec::new();
    while ring.under_way() > 0 {
        match ring.next_over(Deadline::NEVER) {
            Some(over) => all.push(over),
            None => ring.wait(),
        }
    }
    all.sort_unstable();
    all
}

#[test]
fn what_is_written_is_read_wherever_it_lies() {
    // The second as if the file wanted blocks: then pieces that are none go through a buffer of ours.
    for align in [None, Some(Alignment { memory: 512, file: 512 })] {
        let file = file(1 << 16);
        let mut ring = ring(&file, align);
        let memory = Mapping::anonymous(1 << 16).unwrap();
        let data: Vec<u8> = (0..1024u32).map(|n| (n % 251) as u8).collect();
        memory.piece(3, 1024).unwrap().write(&data);
        let cut = [memory.piece(3, 100).unwrap(), Piece::EMPTY, memory.piece(103, 924).unwrap()];
        assert_eq!(ring.transfer(0, true, 512, &cut, LASTING), Begun::Yes);
        assert_eq!(ring.transfer(0, true, 0, &cut, How::default()), Begun::NotNow, "the slot is taken");
        assert_eq!(results(&mut ring), [(0, 1024)]);
        let back = [memory.piece(0x8001, 1).unwrap(), memory.piece(0x9000, 1023).unwrap()];
        assert_eq!(ring.transfer(3, false, 512, &back, How::default()), Begun::Yes);
        assert_eq!(ring.flush(1), Begun::Yes);
        assert_eq!(ring.zeros(2, 4096, 1 << 21, How::default()), Begun::Yes);
        assert_eq!(results(&mut ring), [(1, 0), (2, 1 << 20), (3, 1024)]);
        let mut got = vec![0; 1024];
        back[0].read(&mut got[..1]);
        back[1].read(&mut got[1..]);
        assert_eq!(got, data);
        // What stands behind the end is told by a short read.
        let last = memory.piece(0, 1024).unwrap();
        assert_eq!(ring.transfer(0, false, (1 << 20) + 4096 - 512, &[last], How::default()), Begun::Yes);
        assert_eq!(results(&mut ring), [(0, 512)]);
        assert_eq!(ring.fallocate(0, 3, 0, 4096), Begun::Yes);
        assert_eq!(results(&mut ring), [(0, 0)]);
        assert_eq!(ring.transfer(0, false, 512, &back, How::default()), Begun::Yes);
        results(&mut ring);
        back[1].read(&mut got[1..]);
        assert!(got[1..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn what_is_under_way_is_bounded_in_bytes() {
    let file = file(1 << 16);
    let mut ring = ring(&file, None);
    let memory = Mapping::anonymous(1 << 16).unwrap();
    let piece = |len| [memory.piece(0, len).unwrap()];
    assert_eq!(ring.transfer(0, false, 0, &piece(3072), How::default()), Begun::Yes);
    assert_eq!(ring.transfer(1, false, 0, &piece(2048), How::default()), Begun::NotNow);
    assert_eq!(ring.transfer(1, false, 0, &piece(1024), How::default()), Begun::Yes);
    assert_eq!((ring.flush(2), ring.under_way()), (Begun::Yes, 3));
    assert_eq!(results(&mut ring), [(0, 3072), (1, 1024), (2, 0)]);
    // One alone may have more.
    assert_eq!(ring.transfer(1, false, 0, &piece(8192), How::default()), Begun::Yes);
    assert_eq!(ring.transfer(0, false, 0, &piece(512), How::default()), Begun::NotNow);
    assert_eq!(results(&mut ring), [(1, 8192)]);
    assert_eq!(ring.transfer(0, false, 0, &piece(512), How::default()), Begun::Yes);
    assert_eq!(results(&mut ring), [(0, 512)]);
}

/// A file that does not answer leaves the kernel's workers to others.
#[test]
fn a_ring_has_few_workers_at_a_time() {
    let file = file(1 << 16);
    let map = Arc::new(GuestMap::empty(&Terms::default()));
    let mut ring =
        Transfers::new((&file, None), 16, None, Bounds { one: 4096, all: 1 << 20 }, map).expect(NO_RING);
    let memory = Mapping::anonymous(4096).unwrap();
    let here = [memory.piece(0, 512).unwrap()];
    let by_worker = How { lasting: false, by_worker: true };
    for slot in 0..AT_WORKERS / 2 {
        assert_eq!(ring.transfer(2 * slot, false, 0, &here, by_worker), Begun::Yes);
        assert_eq!(ring.flush(2 * slot + 1), Begun::Yes);
    }
    assert_eq!(ring.flush(AT_WORKERS), Begun::NotNow);
    assert_eq!(ring.transfer(AT_WORKERS, false, 0, &here, by_worker), Begun::NotNow);
    assert_eq!(ring.transfer(AT_WORKERS, false, 0, &here, How::default()), Begun::Yes, "this needs none");
    assert_eq!(results(&mut ring).len(), AT_WORKERS + 1);
    assert_eq!(ring.flush(0), Begun::Yes);
    results(&mut ring);
}

/// An attacker that can write to our memory can post anything: the kernel takes nothing but what is for this
/// file.
#[test]
fn a_ring_reaches_one_file_alone() {
    let (ours, other) = (file(4096), file(4096));
    let mut ring = ring(&ours, None);
    let requests = &mut *ring;
    let list = [Iovec::of(&Piece::EMPTY)];
    let list = list.as_ptr().cast();
    let path = c"/dev/null";
    let entries = [
        opcode::Nop::new().build(),
        opcode::OpenAt::new(io_uring::types::Fd(libc::AT_FDCWD), path.as_ptr()).build(),
        opcode::Socket::new(libc::AF_INET, libc::SOCK_STREAM, 0).build(),
        opcode::Readv::new(io_uring::types::Fd(other.as_raw_fd()), list, 1).build(),
        opcode::Fsync::new(io_uring::types::Fd(other.as_raw_fd())).build(),
    ];
    for request in entries {
        // SAFETY: what they refer to outlives the test; the kernel takes none of them.
        unsafe { requests.ring.submission().push(&request) }.unwrap();
        requests.ring.submit().unwrap();
        let results: Vec<i32> = requests.ring.completion().map(|done| done.result()).collect();
        assert_eq!(results, [-libc::EACCES]);
    }
    assert!(requests.ring.submitter().register_files(&[other.as_raw_fd()]).is_err());
    assert!(requests.ring.submitter().unregister_files().is_err());
}

/// Dropped with something under way it is kept, with its map, until that is over.
#[test]
fn what_is_dropped_too_early_is_parked() {
    let (read, _write) = rustix::pipe::pipe().unwrap();
    let pipe = File::from(read);
    let map = Arc::new(GuestMap::empty(&Terms::default()));
    let mut ring = Transfers::new((&pipe, None), 1, None, Bounds { one: 4096, all: 4096 }, Arc::clone(&map))
        .expect(NO_RING);
    let memory = Mapping::anonymous(4096).unwrap();
    assert_eq!(ring.transfer(0, false, 0, &[memory.piece(0, 8).unwrap()], How::default()), Begun::Yes);
    ring.submit();
    drop(ring);
    sweep();
    assert_eq!(Arc::strong_count(&map), 2, "the pipe has not answered");
    drop(_write);
    // The end of the pipe ends the read.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while Arc::strong_count(&map) > 1 && std::time::Instant::now() < end {
        sweep();
        std::thread::yield_now();
    }
    assert_eq!(Arc::strong_count(&map), 1);
}
