//! What the regions of both formats have in common: their words, what is found in one, and what cannot be.

use crate::mem::Piece;
use crate::virtq::position::Position;
use crate::virtq::raw::RawDesc;

/// Words of the region's head: flags; version, number of entries and two fields of the format's.
pub(super) const FEATURES: usize = 0;
pub(super) const VERSION: usize = 1;
/// The only version there is. Zero: nothing has been written yet.
pub(super) const VERSION_1: u16 = 1;
/// First byte of an entry: it is in flight.
pub(super) const IN_FLIGHT: u64 = 1;

/// Whose a region is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The front end gave it, for this ring.
    FrontEnds,
    /// It lies in a file of ours, and may be about a ring that is gone.
    Ours,
}

/// Why a region of the front end's cannot be about its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRegion {
    /// A version that does not exist.
    #[error("its version is {0}, not 1")]
    Version(u16),
    /// A ring of another size, with requests in flight.
    #[error("it holds requests of a ring with {0} entries")]
    Size(u16),
    /// The last batch cannot be what lies between two used indices.
    #[error("its last batch does not lead to the ring's used index")]
    Batch,
    /// A cursor outside the ring.
    #[error("its used index is not in the ring")]
    Cursor,
    /// A list that leaves the region, loops, or shares entries with another.
    #[error("its lists of free entries and of requests contradict each other")]
    Lists,
    /// Two requests with one buffer id.
    #[error("it holds two requests with the buffer id {0}")]
    SameId(u16),
    /// Requests that the driver has not made available.
    #[error("it holds requests that are not in the ring")]
    NotOffered,
}

/// A request that was left in flight.
pub(in crate::virtq) struct Left {
    /// Its entry, in a split ring its head.
    pub(in crate::virtq) slot: u16,
    /// The last of its entries, and how many (packed ring).
    pub(in crate::virtq) last: u16,
    pub(in crate::virtq) num: u16,
    /// When it was picked, compared with others.
    pub(super) counter: u64,
    /// Its descriptors, as they stood in the packed ring.
    pub(in crate::virtq) descs: Vec<RawDesc>,
}

/// What a ring was in the middle of.
pub(in crate::virtq) struct Recovered {
    /// Where it stands.
    pub(in crate::virtq) position: Position,
    /// What is to be done again, in the order in which it was picked.
    pub(in crate::virtq) left: Vec<Left>,
    /// The counter of the next request.
    pub(in crate::virtq) counter: u64,
    /// The next entry of each, and the first free one (packed ring).
    pub(in crate::virtq) next: Vec<u16>,
    pub(in crate::virtq) free: u16,
}

impl Recovered {
    pub(super) fn in_order(&mut self) {
        self.left.sort_by_key(|left| left.counter);
        // A lie of a counter is no reason to stop counting.
        self.counter = self.left.last().map_or(0, |left| left.counter.wrapping_add(1));
    }
}

/// The three parts of a ring.
pub(in crate::virtq) struct Parts<'a> {
    pub(in crate::virtq) desc: &'a Piece,
    pub(in crate::virtq) driver: &'a Piece,
    pub(in crate::virtq) device: &'a Piece,
    pub(in crate::virtq) size: u16,
}

/// The four fields of a word.
#[expect(clippy::cast_possible_truncation, reason = "fields of a word")]
pub(super) fn halves(word: u64) -> [u16; 4] {
    [word as u16, (word >> 16) as u16, (word >> 32) as u16, (word >> 48) as u16]
}

/// The word of four fields.
pub(super) fn word(fields: [u16; 4]) -> u64 {
    fields.iter().rev().fold(0, |word, field| word << 16 | u64::from(*field))
}
