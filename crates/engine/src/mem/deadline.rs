//! How long a visit may have pages of a guest found.
//!
//! Theory of operation. A page that is touched for the first time has to be found by the kernel, or cleared,
//! and a huge one takes up to a millisecond for that. A guest may have each piece of what it asks for lie in
//! another one. What the kernel was asked to copy or to pin cannot be cut short, nor can a copy of ours. So
//! the pages of what is about to be moved are touched beforehand, by the clock. When time is up the visit
//! ends.
//!
//! The next visit begins with the first of those pages again, and nothing is remembered of the last one: a
//! page that is there costs some nanoseconds, and what is moved was touched in the same visit. So a VMM that
//! punches its pages out all the time has cleared what it can punch out between that look and the move, some
//! microseconds, and not what it could since its request came.

use super::piece::Piece;
use super::ticks::ticks;

/// Bytes of a huge page, as most are.
const BLOCK: usize = 2 << 20;
/// This number of small pages of one such stretch takes as long as a huge one at most.
const PAGES_A_LOOK: usize = 4;

/// Until when a visit may go on.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    begun: u64,
    time: u64,
    look: u64,
}

impl Deadline {
    /// No end.
    pub const NEVER: Deadline = Deadline { begun: 0, time: u64::MAX, look: 0 };

    /// It ends `time` ticks behind `begun`. However little of that is left, a look at the pages of one
    /// request has `look` ticks: pages that are there already have to fit, so that a device that begins anew
    /// with each visit gets on.
    pub fn new(begun: u64, time: u64, look: u64) -> Deadline {
        Deadline { begun, time, look }
    }

    /// Whether it is past.
    pub fn is_over(self) -> bool {
        self.is_over_at(ticks())
    }

    /// Whether it is past, when the clock says `now`.
    pub fn is_over_at(self, now: u64) -> bool {
        now.wrapping_sub(self.begun) > self.time
    }

    /// Has the pages of a frame's `pieces` found where there is more than one stretch; false if that takes
    /// too long. Delivery and segmentation cannot stop in the middle of a frame and go on.
    #[inline]
    pub fn find_frame(self, pieces: &[Piece]) -> bool {
        let far = pieces.iter().filter(|piece| !piece.is_empty()).count() > 1
            || pieces.iter().any(Piece::is_in_two_blocks);
        !far || self.find(pieces, u64::MAX)
    }

    /// This deadline, without time for a look when it is past.
    #[must_use]
    pub fn strict(self) -> Deadline {
        Deadline { look: 0, ..self }
    }

    /// Whether it is without that.
    pub fn is_strict(self) -> bool {
        self.look == 0
    }

    /// Has all pages found in which the first `bytes` bytes of `pieces` lie; false if that takes too long.
    /// The clock is read after each page that may be another huge one, and after some small ones.
    pub fn find(self, pieces: &[Piece], bytes: u64) -> bool {
        let mut left = usize::try_from(bytes).unwrap_or(usize::MAX);
        let (mut block, mut seen, mut until) = (usize::MAX, 0, None);
        pieces.iter().all(|piece| {
            let mut part = piece.first(left);
            left -= part.len();
            while !part.is_empty() {
                part.touch();
                let here = part.as_ptr() as usize / BLOCK;
                seen = if here == block { seen + 1 } else { 0 };
                block = here;
                if seen % PAGES_A_LOOK == 0 {
                    let passed = ticks().wrapping_sub(self.begun);
                    // The look begins with the first page.
                    let look = if self.look == 0 { 0 } else { passed.saturating_add(self.look) };
                    if passed > *until.get_or_insert(self.time.max(look)) {
                        return false;
                    }
                }
                part.advance(part.first_page().len());
            }
            true
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rustix::fs::{fstat, ftruncate, memfd_create, MemfdFlags};

    use super::*;
    use crate::mem::{GuestMap, RegionSpec};

    const PAGES: u64 = 16;

    /// A guest's memory, none of which is there yet, and how many of its pages are.
    fn memory() -> (GuestMap, impl Fn() -> i64) {
        let fd = memfd_create(c"untouched", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, PAGES << 12).unwrap();
        let file = std::fs::File::from(fd);
        let there = file.try_clone().unwrap();
        let region = RegionSpec { gpa: 0, size: PAGES << 12, user_addr: 0, offset: 0, file };
        (GuestMap::new(&[region]).unwrap(), move || fstat(&there).unwrap().st_blocks / 8)
    }

    #[test]
    fn all_pages_of_what_is_moved_are_found_and_no_other() {
        let (map, there) = memory();
        let piece = |at, len| map.translate(at, len, &mut 0).unwrap();
        // Two bytes in two pages, nothing, and three pages of which the last one is not moved.
        let list = [piece(0xfff, 2), Piece::EMPTY, piece(0x4ff0, 0x2000)];
        assert!(Deadline::NEVER.find(&list, 2 + 0x1010));
        assert_eq!(there(), 4);
        assert!(Deadline::NEVER.find(&list, u64::MAX));
        assert_eq!(there(), 5);
    }

    #[test]
    fn when_time_is_up_one_page_was_found() {
        let (map, there) = memory();
        let list: Vec<Piece> = (0..PAGES).map(|n| map.translate(n << 12, 8, &mut 0).unwrap()).collect();
        let over = Deadline::new(ticks().wrapping_sub(100), 10, 0);
        assert!(!over.find(&list, u64::MAX) && there() == 1);
        // A look at those that are there has its time all the same, and goes on from there.
        let look = Deadline::new(0, 0, u64::MAX / 2);
        assert!(look.is_over() && look.find(&list, u64::MAX));
        assert_eq!(there(), i64::try_from(PAGES).unwrap());
    }
}
