//! Where runs may stand.
//!
//! Theory of operation. Words are divided by the number of values that runs have room for: four sizes, each with as many places as
//! there are entries, and some more. So runs that readers can find always have room, and sizes take none from each other.
//! Memory is taken when a place is used for the first time; places that were used before are taken first. Narrow runs of up
//! to 28 values, and wide ones of up to 14, lie in one cache line.
//!
//! A place that was left is used again when no reader can be in it. Readers stay for one batch, so few places wait at any
//! time; if [`WAITING`] of one size did, the writer would wait for readers to end their batch.

use super::table::NARROW;
use crate::epoch::Epochs;
use crate::leaving::Leaving;

/// Places of each size that may wait for readers, beside those that are in use.
const WAITING: u32 = 1 << 14;
/// So many places are left before the writer looks whether readers have gone on.
const TOGETHER: usize = 64;
/// Words of a cache line.
const LINE: u32 = 8;
/// Words of the sizes: parts of a cache line or whole ones, and at last what 64 values need.
const NARROW_SIZES: [u32; 4] = [2, 4, 8, 17];
const WIDE_SIZES: [u32; 4] = [4, 8, 16, 33];

/// Places of one size.
struct Size {
    words: u32,
    first: u32,
    /// Places that were never used begin here.
    unused: u32,
    /// Behind the last one.
    end: u32,
    free: Vec<u32>,
}

/// All places.
pub(crate) struct Room {
    /// Values in a word.
    each: u32,
    sizes: [Size; 4],
    /// Places, with the number of their size.
    leaving: Leaving<(u32, usize)>,
    /// Words in use by runs that readers find.
    used: usize,
}

impl Room {
    /// For values of so many bits and so many entries.
    pub fn new(bits: u32, entries: usize) -> Room {
        let words = if bits == NARROW { NARROW_SIZES } else { WIDE_SIZES };
        let places = u32::try_from(entries).unwrap_or(u32::MAX).saturating_add(WAITING);
        let mut end = 0;
        let sizes = words.map(|words| {
            let first = u32::next_multiple_of(end, LINE);
            end = first + words * places;
            Size { words, first, unused: first, end, free: Vec::new() }
        });
        Room { each: u64::BITS / bits, sizes, leaving: Leaving::new(), used: 0 }
    }

    /// Words that it is about.
    pub fn words(&self) -> usize {
        self.sizes.last().map_or(0, |size| size.end as usize)
    }

    /// Words that readers may touch.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Words of all places that were ever used.
    pub fn touched(&self) -> usize {
        self.sizes.iter().map(|size| (size.unused - size.first) as usize).sum()
    }

    /// A place for so many values, which no reader is in.
    pub fn take(&mut self, values: usize, epochs: &Epochs) -> u32 {
        let number = self.size_of(values);
        loop {
            let Some(size) = self.sizes.get_mut(number) else { return 0 };
            let unused = || {
                let place = size.unused;
                (place < size.end).then(|| size.unused += size.words).map(|()| place)
            };
            if let Some(place) = size.free.pop().or_else(unused) {
                self.used += size.words as usize;
                return place;
            }
            if self.reclaim(epochs) == 0 {
                // All that is left waits for a reader that is in the middle of a batch.
                std::thread::yield_now();
            }
        }
    }

    /// Readers find the runs of so many values at `place` no more.
    pub fn leave(&mut self, place: u32, values: usize, epochs: &Epochs) {
        let number = self.size_of(values);
        self.used -= self.sizes.get(number).map_or(0, |size| size.words as usize);
        self.leaving.push((place, number));
        if self.leaving.fresh() >= TOGETHER {
            self.reclaim(epochs);
        }
    }

    /// Frees the places that no reader can be in: how many there were.
    fn reclaim(&mut self, epochs: &Epochs) -> usize {
        let mut count = 0;
        for (place, number) in self.leaving.gone(epochs) {
            if let Some(size) = self.sizes.get_mut(number) {
                size.free.push(place);
                count += 1;
            }
        }
        count
    }

    /// The number of the smallest size with room for so many values.
    fn size_of(&self, values: usize) -> usize {
        let room = |size: &Size| ((size.words - 1) * self.each) as usize;
        self.sizes.iter().position(|size| values <= room(size)).unwrap_or(self.sizes.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v4::table::{CELLS, WIDE};

    #[test]
    fn places_do_not_overlap_and_have_room() {
        for bits in [NARROW, WIDE] {
            let (mut room, epochs) = (Room::new(bits, 3), Epochs::new());
            let mut taken: Vec<(u32, u32)> = Vec::new();
            for values in (2..=CELLS).chain(2..=CELLS) {
                let place = room.take(values as usize, &epochs);
                let words = 1 + values.div_ceil(u64::BITS / bits);
                assert!(place as usize + words as usize <= room.words());
                assert!(taken.iter().all(|(at, len)| place + words <= *at || at + len <= place), "{values}");
                assert!(
                    words > 8 || place / 8 == (place + words - 1) / 8,
                    "{values} values in two cache lines"
                );
                taken.push((place, words));
            }
        }
    }

    #[test]
    fn a_place_is_used_again_when_no_reader_is_in_it() {
        let (mut room, epochs) = (Room::new(NARROW, 0), Epochs::new());
        let reader = epochs.join();
        epochs.enter(&reader);
        let all: Vec<u32> = (0..WAITING).map(|_| room.take(3, &epochs)).collect();
        assert_eq!(room.used(), room.touched());
        all.iter().for_each(|place| room.leave(*place, 3, &epochs));
        assert_eq!((room.used(), room.reclaim(&epochs)), (0, 0));
        epochs.leave(&reader);
        assert!(all.contains(&room.take(3, &epochs)));
        assert_eq!(room.touched(), 2 * all.len());
    }

    /// When all places wait, the writer does until the reader has ended its batch.
    #[test]
    fn the_writer_waits_for_readers_if_it_must() {
        let (mut room, epochs) = (Room::new(WIDE, 0), Epochs::new());
        let reader = epochs.join();
        epochs.enter(&reader);
        let all: Vec<u32> = (0..WAITING).map(|_| room.take(CELLS as usize, &epochs)).collect();
        all.iter().for_each(|place| room.leave(*place, CELLS as usize, &epochs));
        let (said, heard) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let (room, epochs) = (&mut room, &epochs);
            scope.spawn(move || said.send(room.take(CELLS as usize, epochs)));
            assert!(heard.try_recv().is_err());
            epochs.leave(&reader);
            assert!(heard.recv().is_ok_and(|place| all.contains(&place)));
        });
    }
}
