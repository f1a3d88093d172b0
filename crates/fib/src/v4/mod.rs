//! IPv4: DIR-24-8.
//!
//! Theory of operation. The table has an entry for each /24: a group, or the number of a block of 256 entries
//! for its addresses where prefixes longer than /24 are. A route changes those entries below its prefix that
//! no longer prefix owns; the writer remembers for each entry how long its owner is. A block is filled before
//! its entry leads to it, and used again when no reader can be in it. The default route is a word of its own:
//! a /0 would be 16 million entries.
//!
//! Entries have 16 bits as long as groups are below 32,768 and blocks suffice, which is half the cache; then
//! a table of 32-bit entries takes its place.

mod table;
mod writer;

pub use writer::Writer;

use crate::publish::View;
use table::Table;

/// One reader of the table. It belongs to one thread; a clone is another reader.
#[derive(Clone)]
pub struct Reader(View<Table>);

impl Reader {
    /// The groups of `addresses`, in `groups`: as many as the shorter of both has.
    #[inline]
    pub fn lookup(&mut self, addresses: &[u32], groups: &mut [u32]) {
        self.0.read(|table| table.lookup(addresses, groups));
    }
}
