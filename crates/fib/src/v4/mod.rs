//! IPv4: DIR-24-8, with runs of equal entries kept as one.
//!
//! Theory of operation. DIR-24-8 has an entry for each /24: a group, or the number of a block of 256 entries for its addresses
//! where prefixes longer than /24 are. Its first table is 32 MiB of 16-bit entries, more than any cache near a core holds, and
//! neighbours in it are mostly equal. So 64 of these entries, here called *cells*, share one entry of a table of 1 MiB: the
//! group that all of them lead to, or where their *runs* are. Runs are a word with a bit for each cell that begins one, and
//! what each run leads to: as many values behind that word as it has bits. A cell's value is as far back as there are bits
//! up to the cell (`table`). A block is four such entries for the 64 addresses of a /26 each.
//!
//! A lookup takes one access where the whole /18 leads to one group, and one to three cache lines otherwise; with a million
//! prefixes these are in a few MiB. How many runs there are, prefixes decide alone, not their groups: a run ends where the prefix that
//! owns it does, or where its neighbour of the same length leads elsewhere (`runs`).
//!
//! A change writes the runs of an entry anew at another place, if other cells begin runs by it, and then has the entry lead
//! there; the place before is used again when no reader can be in it (`room`). If the same cells begin runs, it writes
//! what they lead to in place, a value at a time: so does each change of a prefix of /18 or shorter, since such a prefix owns an
//! entry's cells all or none but for those of longer ones (`store`). A block is filled before a cell leads to it. The default route is a
//! word of its own: a /0 would be 262,144 entries.
//!
//! Values have 16 bits as long as groups are below 32,768 and blocks suffice, which is half the cache; then a table of 32-bit
//! values takes its place.

mod room;
mod runs;
mod store;
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
    pub fn lookup(&mut self, addresses: &[u32], groups: &mut [u32]) {
        self.0.read(|table| table.lookup(addresses, groups));
    }
}
