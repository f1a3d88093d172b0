//! Requests of all layouts, and those that no driver would make.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::mem::Mapping;

const CAPACITY: u64 = 1 << 20;

fn limits() -> Limits {
    let features = bit::BLK_DISCARD | bit::BLK_WRITE_ZEROES;
    Limits { capacity: CAPACITY, read_only: false, features, id: *b"twenty bytes of name" }
}

/// A guest's memory: its readable bytes, and so many writable ones, cut into pieces of these lengths.
struct Guest {
    _memory: Mapping,
    readable: Vec<Piece>,
    writable: Vec<Piece>,
}

/// `len` bytes from `at` on, cut at these places and then at their end.
fn cut(memory: &Mapping, at: u64, len: usize, cuts: &[usize]) -> Vec<Piece> {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| *cut.min(&len)).collect();
    ends.push(len);
    let mut from = 0;
    let mut piece = |end: usize| {
        let piece = memory.piece(at + from as u64, u32::try_from(end - from).unwrap()).unwrap();
        from = end;
        piece
    };
    ends.into_iter().map(&mut piece).collect()
}

impl Guest {
    fn new(readable: &[u8], writable: usize, cuts: &[usize]) -> Guest {
        let memory = Mapping::anonymous(1 << 20).unwrap();
        memory.piece(0, u32::try_from(readable.len()).unwrap()).unwrap().write(readable);
        let (readable, writable) =
            (cut(&memory, 0, readable.len(), cuts), cut(&memory, 1 << 19, writable, cuts));
        Guest { readable, writable, _memory: memory }
    }

    fn read(&mut self, limits: &Limits) -> (Option<Piece>, Verdict, Job) {
        let mut job = Job::default();
        let (status, verdict) = read(&mut self.readable, &mut self.writable, limits, &mut job);
        (status, verdict, job)
    }
}

fn header(kind: u32, sector: u64) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat()
}

fn ranges(kind: u32, list: &[(u64, u32, u32)]) -> Vec<u8> {
    let range = |(sector, sectors, flags): &(u64, u32, u32)| {
        [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
    };
    [header(kind, 0), list.iter().flat_map(range).collect()].concat()
}

fn verdict_of(readable: &[u8], writable: usize) -> Verdict {
    Guest::new(readable, writable, &[]).read(&limits()).1
}

/// §5.2.6.2 and §2.7.4: no device may count on how a request is cut.
#[test]
fn the_layout_does_not_matter() {
    let write = [header(kind::OUT, 3), vec![7; 1024]].concat();
    for cuts in [&[][..], &[16], &[1], &[15], &[17], &[0, 8, 16, 16, 17, 528, 1039], &[1040]] {
        let mut guest = Guest::new(&write, 1, cuts);
        let (status, verdict, job) = guest.read(&limits());
        assert_eq!((status.unwrap().len(), verdict), (1, Verdict::Job));
        let bytes: usize = job.pieces().iter().map(Piece::len).sum();
        assert_eq!((job.op, job.at, job.left(), bytes), (Op::Write, 1536, 1024, 1024), "{cuts:?}");
    }
    for cuts in [&[][..], &[512], &[1024], &[1, 1023], &[0, 0, 1024, 1025]] {
        let mut guest = Guest::new(&header(kind::IN, 1), 1025, cuts);
        let (status, verdict, job) = guest.read(&limits());
        let bytes: usize = job.pieces().iter().map(Piece::len).sum();
        assert_eq!((verdict, job.op, job.at, job.left(), bytes), (Verdict::Job, Op::Read, 512, 1024, 1024));
        // The last byte, wherever it lies.
        status.unwrap().write(&[0x5a]);
        let mut last = [0];
        guest._memory.piece((1 << 19) + 1024, 1).unwrap().read(&mut last);
        assert_eq!(last, [0x5a], "{cuts:?}");
    }
}

#[test]
fn what_does_not_fit_the_disk_is_refused() {
    let end = CAPACITY / SECTOR;
    let of = |kind: u32, sector: u64, len: usize| match kind {
        kind::IN => verdict_of(&header(kind, sector), len + 1),
        _ => verdict_of(&[header(kind, sector), vec![0; len]].concat(), 1),
    };
    for kind in [kind::IN, kind::OUT] {
        assert_eq!(of(kind, end - 1, 512), Verdict::Job);
        for sector in [end, end - 1, u64::MAX, u64::MAX / 512, (u64::MAX / 512) + 1, 1 << 55, (1 << 55) - 1] {
            assert_eq!(of(kind, sector, 1024), Verdict::Bad(RequestError::BeyondCapacity), "{kind} {sector}");
        }
        for len in [0, 1, 511, 513, 1023] {
            assert_eq!(of(kind, 0, len), Verdict::Bad(RequestError::BadLength), "{kind} {len}");
        }
    }
}

#[test]
fn what_is_missing_is_refused() {
    assert_eq!(verdict_of(&header(kind::OUT, 0), 0), Verdict::Bad(RequestError::NoStatus));
    for len in [0, 1, 15] {
        assert_eq!(verdict_of(&header(kind::IN, 0)[..len], 513), Verdict::Bad(RequestError::NoHeader));
    }
    let (status, _, _) = Guest::new(&[], 0, &[]).read(&limits());
    assert!(status.is_none());
}

#[test]
fn who_may_not_write_does_not() {
    let fixed = Limits { read_only: true, ..limits() };
    let of = |readable: &[u8]| Guest::new(readable, 1, &[]).read(&fixed).1;
    assert_eq!(of(&[header(kind::OUT, 0), vec![0; 512]].concat()), Verdict::Bad(RequestError::ReadOnly));
    assert_eq!(of(&ranges(kind::DISCARD, &[(0, 1, 0)])), Verdict::Bad(RequestError::ReadOnly));
    assert_eq!(of(&header(kind::FLUSH, 0)), Verdict::Job);
}

#[test]
fn unknown_types_are_told_so() {
    for unknown in [2, 3, kind::GET_LIFETIME, kind::SECURE_ERASE, 0x8000_0001, u32::MAX] {
        let verdict = verdict_of(&header(unknown, 0), 1);
        assert_eq!(verdict, Verdict::Bad(RequestError::Unsupported));
    }
    assert_eq!(status_of(RequestError::Unsupported), 2);
    assert_eq!(status_of(RequestError::BeyondCapacity), 1);
    let none = Limits { features: 0, ..limits() };
    let verdict = Guest::new(&ranges(kind::DISCARD, &[(0, 1, 0)]), 1, &[]).read(&none).1;
    assert_eq!(verdict, Verdict::Bad(RequestError::Unsupported));
}

#[test]
fn ranges_are_read_once_and_checked() {
    let mut guest =
        Guest::new(&ranges(kind::WRITE_ZEROES, &[(8, 4, 1), (0, 0, 0), (2040, 8, 0)]), 1, &[20, 33]);
    let (_, verdict, mut job) = guest.read(&limits());
    // What the guest writes from now on changes nothing.
    guest._memory.piece(0, 64).unwrap().write(&[0xff; 64]);
    assert_eq!((verdict, job.op, job.left()), (Verdict::Job, Op::WriteZeroes, 12 * 512));
    assert_eq!(job.next_range(u64::MAX), Some(Range { at: 4096, len: 2048, unmap: true }));
    job.advance(2048);
    assert_eq!(job.next_range(512), Some(Range { at: 2040 * 512, len: 512, unmap: false }));

    let of = |kind, list: &[_]| verdict_of(&ranges(kind, list), 1);
    assert_eq!(of(kind::DISCARD, &[(0, 1, 1)]), Verdict::Bad(RequestError::Unsupported));
    assert_eq!(of(kind::WRITE_ZEROES, &[(0, 1, 2)]), Verdict::Bad(RequestError::Unsupported));
    assert_eq!(of(kind::WRITE_ZEROES, &[(0, MAX_RANGE + 1, 0)]), Verdict::Bad(RequestError::BadLength));
    assert_eq!(of(kind::DISCARD, &[(2047, 2, 0)]), Verdict::Bad(RequestError::BeyondCapacity));
    assert_eq!(of(kind::DISCARD, &[(u64::MAX, 1, 0)]), Verdict::Bad(RequestError::BeyondCapacity));
    assert_eq!(of(kind::DISCARD, &[]), Verdict::Bad(RequestError::BadLength));
    assert_eq!(of(kind::DISCARD, &[(0, 1, 0); MAX_RANGES + 1]), Verdict::Bad(RequestError::BadLength));
    assert_eq!(of(kind::DISCARD, &[(0, 1, 0); MAX_RANGES]), Verdict::Job);
    let odd = [ranges(kind::DISCARD, &[(0, 1, 0)]), vec![0; 3]].concat();
    assert_eq!(verdict_of(&odd, 1), Verdict::Bad(RequestError::BadLength));
}

#[test]
fn the_name_is_cut_to_what_there_is() {
    for (room, written) in [(20, 20), (5, 5), (0, 0), (100, 20)] {
        let mut guest = Guest::new(&header(kind::GET_ID, 0), room + 1, &[3]);
        let (_, verdict, _) = guest.read(&limits());
        assert_eq!(verdict, Verdict::Done(written));
        let mut name = vec![0; room];
        guest._memory.piece(1 << 19, u32::try_from(room).unwrap()).unwrap().read(&mut name);
        let len = usize::try_from(written).unwrap();
        assert_eq!(&name[..len], &limits().id[..len]);
    }
}
