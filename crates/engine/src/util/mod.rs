//! What every room may use and none owns: parts of slices, waiting, buckets of tokens, weighted draws, processors of threads, and
//! faults.

pub mod bucket;
pub mod fault;
pub mod place;
pub mod shares;
pub mod slice;
pub(crate) mod wait;
