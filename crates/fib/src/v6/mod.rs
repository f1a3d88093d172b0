//! IPv6: intervals of the upper 64 bits.
//!
//! Theory of operation. Prefixes cut the upper 64 bits of addresses into intervals with one group each. The
//! intervals stand in chunks of up to 256, in order. A lookup finds the chunk among those that an address's
//! first 16 bits leave, and then the interval in it (three cache lines: a quarter of the chunk, a line of
//! that, the key in it). Searches have no branches, so that those of several addresses overlap. A change
//! writes its chunks anew, beside the old ones, and then has the index lead to them; old ones are used again
//! when no reader can be in them.
//!
//! An upper half with prefixes longer than /64 is an interval of its own, whose entry is the number of a list
//! of intervals of the lower 64 bits.
//!
//! Changes become visible with [`Writer::commit`], so that a batch of them costs one new index at most.

mod intervals;
mod lists;
mod table;
mod writer;

pub use writer::{Usage, Writer};

use crate::publish::View;
use table::Table;

/// One reader of the table. It belongs to one thread; a clone is another reader.
#[derive(Clone)]
pub struct Reader(View<Table>);

impl Reader {
    /// The groups of `addresses`, in `groups`: as many as the shorter of both has.
    #[inline]
    pub fn lookup(&mut self, addresses: &[u128], groups: &mut [u32]) {
        self.0.read(|table| table.lookup(addresses, groups));
    }
}
