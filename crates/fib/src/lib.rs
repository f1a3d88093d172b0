//! The forwarding information base: which next-hop group the longest prefix of an address leads to.
//!
//! Theory of operation. One [`v4::Writer`] or [`v6::Writer`] has the routes (the RIB, a trie of prefixes) and
//! keeps a flat table in step with it. Any number of readers look batches of addresses up in the flat table,
//! without locks and while it changes. A reader that meets a change sees, for each address, the group before
//! it or the group after it.
//!
//! * **IPv4** is DIR-24-8: one entry for each /24, and a block of 256 entries where longer prefixes are. A
//!   lookup takes one memory access, or two.
//! * **IPv6** is a sorted list of intervals of the upper 64 bits, cut into chunks. A lookup is a search for
//!   the chunk and one in it. A /64 with longer prefixes has a list of its own.
//!
//! A block or chunk that was replaced is used again only when each reader has begun a later batch or reads
//! nothing ([`epoch`]). What a change would need to move as a whole, such as the list of chunks, is published
//! as a new table, which a reader takes when its next batch begins ([`publish`]).
//!
//! The crate knows neither packets nor ports: a group is a number, and [`NO_ROUTE`] is none.
#![deny(clippy::indexing_slicing)]

mod atomic;
pub mod epoch;
mod memory;
pub mod publish;
mod sizes;
pub mod v4;
pub mod v6;

/// What an address leads to that no prefix covers.
pub const NO_ROUTE: u32 = 0;

/// Groups are numbers from 1 to this one: the highest bit tells blocks and lists from groups.
pub const MAX_GROUP: u32 = EXTENDED - 1;

/// In a table's entry: the rest is no group, but the number of a block or list.
const EXTENDED: u32 = 1 << 31;

/// Why a route was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The length is longer than an address.
    #[error("a prefix of {0} bits is longer than an address")]
    Length(u8),
    /// It is no number of a group.
    #[error("group {0} is not possible; allowed: 1 to {MAX_GROUP}")]
    Group(u32),
    /// All blocks are in use.
    #[error("the table is full: {0} blocks are in use for prefixes longer than /24")]
    Full(usize),
}
