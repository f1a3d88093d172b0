//! What is shared with a guest and its VMM: memory, as mapped regions, translated once, bounds-checked once; and
//! eventfds.

mod arena;
mod map;
mod pages;
mod peek;
mod piece;
mod shared;
pub(crate) mod sigbus;
mod signal;
mod words;

use std::fs::File;
use std::io;

pub use arena::Arena;
pub use map::{GuestMap, MapError, RegionSpec, Window};
pub use pages::SharedPages;
pub use peek::{peeked, set_peeked};
pub use piece::{gather, prefetch_own, prefetch_read, Piece, Pieces, BATCH_PIECES, MAX_BATCH, MAX_PIECES};
pub use shared::SharedFile;
pub use signal::Signal;
pub use words::Words;

/// The unit in which `file` is mapped: the huge page size on hugetlbfs, the page size elsewhere.
fn page_size_of(file: &File) -> io::Result<u64> {
    /// `f_type` of hugetlbfs, from linux/magic.h.
    const HUGETLBFS_MAGIC: u32 = 0x9584_58f6;
    let stat = rustix::fs::fstatfs(file)?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "magic numbers have 32 bits")]
    if stat.f_type as u32 == HUGETLBFS_MAGIC {
        if let Ok(size) = u64::try_from(stat.f_bsize) {
            return Ok(size);
        }
    }
    Ok(rustix::param::page_size() as u64)
}
