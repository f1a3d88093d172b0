//! What the bytes of a frame mean: header views, checksums, segmentation.
//!
//! Goals. A frame crosses the switch as the sender wrote it, with its offload facts beside it ([`Offload`]).
//! Only at a port whose receiver lacks an offload is the work done here: [`Offload::complete`] fills in a
//! checksum, [`Plan`] cuts a large frame into segments that need no offload at all.
//!
//! Limits. Nothing here does I/O, reads a clock, allocates, or reaches into guest memory. Input is hostile:
//! every function is total over arbitrary bytes and arbitrary offload facts; whatever cannot be honoured is a
//! named [`BadOffload`], never a panic and never a wrong frame. Headers are judged only in private memory
//! (the frame's first 64 bytes, or up to [`MAX_HEADER`] that the caller copied), so a guest that rewrites
//! them meanwhile changes nothing. Payload is named by its offsets in the frame and never seen: the caller
//! adds it up piece by piece with [`Sum`], which keeps account of odd piece lengths.
//!
//! Belief. A driver's offload facts are hints about its own headers. `hdr_len` is never used to cut.
//! `csum_start` is used only when the IP header says the same, because a checksum "completed" inside the
//! Ethernet or IP header would forge the addresses that the policy has just approved.
//!
//! Segmentation, for the caller:
//! 1. copy the frame's first [`Offload::header_bound`] bytes to private memory;
//! 2. make a [`Plan`]; 3. for each [`Plan::segment`], add up [`Segment::summed`] and [`Segment::seal`] the
//!    header; 4. send the header and the bytes of [`Segment::payload`].
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod checksum;
mod ether;
mod fields;
mod flow;
mod frame;
mod ip;
mod offload;
mod segment;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod wrapped_tests;

pub use checksum::{is_right, update, Sum};
pub use ether::{BadMac, Ether, Mac};
pub(crate) use ether::{ARP, IPV4, IPV6};
pub use fields::{asks, ip_number, Fields, ADVERTISEMENT, L4, SOLICITATION, UNSPECIFIED};
pub use flow::{flow_hash, is_about_another, plain_hash, symmetric_hash, QUOTING};
pub(crate) use frame::ALL;
pub use frame::{
    is_group, stretch, sum, Batch, Frame, Picked, BATCH_COST, BATCH_PIECES, BROADCAST, HEAD, MAX_BATCH,
    MAX_FRAME, MAX_PIECES, MIN_FRAME, SEGMENT_COST,
};
pub use ip::MAX_HEADER;
pub(crate) use ip::{Ip, ICMPV6, TCP, UDP};
pub use offload::{BadOffload, Gso, Offload, Offloads};
pub use segment::{Plan, Segment, MAX_SEGMENTS};
