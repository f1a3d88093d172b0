//! The in-flight region of a ring of requests: which ones the device holds, kept where it outlives us.
//!
//! Theory of operation. A request that was picked and is not published yet exists nowhere in the ring: in
//! a split ring no index says which of the heads before it came back, in a packed ring its descriptors may
//! have been written over. So a ring writes into a region of shared memory what it picks and what it
//! publishes, in the layout and in the order of the vhost-user specification ("Inflight I/O tracking",
//! [`split`], [`packed`]), and who comes after a kill finds there what to do again, oldest first. A request
//! whose completion was not visible yet is done again; one whose completion was visible is never.
//!
//! The region is the front end's (INFLIGHT_SHMFD), or a slot of a file of our own in the same layout. The
//! front end says which ring its region is about. Of our own file we find out ([`Whose::Ours`]): a driver
//! may have set its ring up anew while nobody was there.
//!
//! The front end writes into its region at will. While a ring runs nothing is read back from there; at the
//! start each word is read once, and what cannot be is a [`BadRegion`]: the ring does not run, which is all
//! that it costs. What can be, but is a lie, makes requests that are as bad as any that a driver offers.

pub(super) mod packed;
pub(super) mod split;

use super::position::Position;
use super::raw::RawDesc;
use crate::mem::{Piece, Slot};

/// Words of the region's head: flags; version, number of entries and two fields of the format's.
const FEATURES: usize = 0;
const VERSION: usize = 1;
/// The only version there is. Zero: nothing has been written yet.
const VERSION_1: u16 = 1;
/// First byte of an entry: it is in flight.
const IN_FLIGHT: u64 = 1;

/// Whose a region is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The front end gave it, for this ring.
    FrontEnds,
    /// It lies in a file of ours, and may be about a ring that is gone.
    Ours,
}

/// Where the in-flight requests of a ring are written down.
pub struct Region {
    slot: Slot,
    whose: Whose,
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
    /// A place outside the ring.
    #[error("its used index is not in the ring")]
    Place,
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
pub(super) struct Left {
    /// Its entry, in a split ring its head.
    pub(super) slot: u16,
    /// The last of its entries, and how many (packed ring).
    pub(super) last: u16,
    pub(super) num: u16,
    /// When it was picked, compared with others.
    counter: u64,
    /// Its descriptors, as they stood in the packed ring.
    pub(super) descs: Vec<RawDesc>,
}

/// What a ring was in the middle of.
pub(super) struct Recovered {
    /// Where it stands.
    pub(super) position: Position,
    /// What is to be done again, in the order in which it was picked.
    pub(super) left: Vec<Left>,
    /// The counter of the next request.
    pub(super) counter: u64,
    /// The next entry of each, and the first free one (packed ring).
    pub(super) next: Vec<u16>,
    pub(super) free: u16,
}

impl Recovered {
    fn in_order(&mut self) {
        self.left.sort_by_key(|left| left.counter);
        // A lie of a counter is no reason to stop counting.
        self.counter = self.left.last().map_or(0, |left| left.counter.wrapping_add(1));
    }
}

/// The three parts of a ring.
pub(super) struct Parts<'a> {
    pub(super) desc: &'a Piece,
    pub(super) driver: &'a Piece,
    pub(super) device: &'a Piece,
    pub(super) size: u16,
}

impl Region {
    /// The one in `slot`, which has room for the entries of its ring.
    pub fn new(slot: Slot, whose: Whose) -> Region {
        Region { slot, whose }
    }

    /// The region says nothing any more: the next ring on it starts where its front end says.
    pub fn close(&self) {
        self.slot.set(VERSION, 0);
    }

    /// Whether no request of a ring with `size` entries is in flight.
    pub fn is_idle(&self, size: u16, packed: bool) -> bool {
        let (head, words) = if packed { (packed::HEAD, packed::ENTRY) } else { (split::HEAD, split::ENTRY) };
        let (version, _) = self.version();
        let in_flight = |i: u16| self.slot.get(head + words * usize::from(i)) & 0xff == IN_FLIGHT;
        version == 0 || !(0..size).any(in_flight)
    }

    /// Version and number of entries.
    fn version(&self) -> (u16, u16) {
        let [version, entries, ..] = halves(self.slot.get(VERSION));
        (version, entries)
    }

    /// What a ring of this format and size was in the middle of; `None` if nothing is known of it.
    pub(super) fn recover(&self, parts: &Parts<'_>, packed: bool) -> Result<Option<Recovered>, BadRegion> {
        let (version, entries) = self.version();
        if version == 0 {
            return Ok(None);
        }
        let recovered = if version != VERSION_1 {
            Err(BadRegion::Version(version))
        } else if entries != parts.size {
            if self.is_idle(entries, packed) {
                return Ok(None);
            }
            Err(BadRegion::Size(entries))
        } else if packed {
            packed::recover(&self.slot, self.whose, parts)
        } else {
            split::recover(&self.slot, self.whose, parts)
        };
        match (recovered, self.whose) {
            (Ok(recovered), _) => Ok(Some(recovered)),
            // It is about another ring.
            (Err(_), Whose::Ours) => Ok(None),
            (Err(bad), Whose::FrontEnds) => Err(bad),
        }
    }

    /// Starts the region of a ring at `position`, in which nothing is in flight.
    pub(super) fn begin(&self, parts: &Parts<'_>, position: Position) {
        // Nothing counts until all of it stands.
        self.close();
        self.slot.set(FEATURES, 0);
        match position {
            Position::Split(used) => split::begin(&self.slot, self.whose, parts.size, used),
            Position::Packed { used, .. } => packed::begin(&self.slot, self.whose, parts, used),
        }
    }

    pub(super) fn whose(&self) -> (Slot, Whose) {
        (self.slot.clone(), self.whose)
    }
}

/// The four fields of a word.
#[expect(clippy::cast_possible_truncation, reason = "fields of a word")]
fn halves(word: u64) -> [u16; 4] {
    [word as u16, (word >> 16) as u16, (word >> 32) as u16, (word >> 48) as u16]
}

/// The word of four fields.
fn word(fields: [u16; 4]) -> u64 {
    fields.iter().rev().fold(0, |word, field| word << 16 | u64::from(*field))
}
