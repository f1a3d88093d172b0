//! The in-flight region of a ring of requests: which ones the device holds, kept where it outlives us.
//!
//! Theory of operation. A request that was picked and is not published yet exists nowhere in the ring: in a
//! split ring no index says which of the heads before it came back, in a packed ring its descriptors may have
//! been written over. So a ring writes into a region of shared memory what it picks and what it publishes, in
//! the layout and in the order of the vhost-user specification ("Inflight I/O tracking", [`split`],
//! [`packed`]), and the successor of a killed process finds there what to do again, oldest first. A request
//! whose completion was not visible yet is done again; one whose completion was visible is never.
//!
//! The region is the front end's (INFLIGHT_SHMFD), or a slot of a file of our own in the same layout. The
//! front end says which ring its region is about. Of our own file we find out ([`Whose::Ours`]): a driver
//! may have set its ring up anew while no daemon was there.
//!
//! The front end writes into its region at will. While a ring runs nothing is read back from there; at the
//! start each word is read once, and what cannot be is a [`BadRegion`]: the ring does not run, which is all
//! that it costs. What can be, but is a lie, makes requests that are as bad as any that a driver offers.

mod common;
pub(super) mod packed;
pub(super) mod split;

pub use common::{BadRegion, Whose};
pub(super) use common::{Left, Parts, Recovered};

use self::common::{halves, FEATURES, IN_FLIGHT, VERSION, VERSION_1};
use super::position::Position;
use crate::mem::JournalSlot;

/// Where the in-flight requests of a ring are written down.
pub struct Region {
    slot: JournalSlot,
    whose: Whose,
}

impl Region {
    /// The one in `slot`, which has room for the entries of its ring.
    pub fn new(slot: JournalSlot, whose: Whose) -> Region {
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

    pub(super) fn whose(&self) -> (JournalSlot, Whose) {
        (self.slot.clone(), self.whose)
    }
}
