//! Explicit congestion notification through the tunnel (RFC 6040): a router between the endpoints marks the
//! outer header, and the marks reach the stations that can answer to them.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use crate::packet::{update, Ether};
use crate::port::DropReason;
use crate::util::slice::behind;

/// Values of the field (RFC 3168 §5).
const NOT_ECT: u8 = 0;
const ECT_1: u8 = 1;
const ECT_0: u8 = 2;
const CE: u8 = 3;

/// Pairs of bytes, and where they are in a frame.
type Patches = [(usize, [u8; 2]); 2];

/// Where the IP header in `frame` is, its first two bytes, how far up in them the field stands, and the
/// field.
fn find(frame: &[u8]) -> Option<(usize, u16, u32, u8)> {
    let ether = Ether::parse(frame)?;
    let first = u16::from_be_bytes(*behind(frame, ether.l3).first_chunk()?);
    let up = match (ether.ethertype, first >> 12) {
        (0x0800, 4) => 0,
        (0x86dd, 6) => 4,
        _ => return None,
    };
    Some((ether.l3, first, up, (first >> up).to_be_bytes()[1] & CE))
}

/// Pairs of bytes that `frame` has in other places when it leaves an outer header with `outer` (§4.2).
///
/// # Errors
/// There was congestion, and the sender would not hear of it.
pub(super) fn pass_on(frame: &[u8], outer: u8) -> Result<Option<Patches>, DropReason> {
    let (ECT_1 | CE, Some((at, first, up, inner))) = (outer, find(frame)) else { return Ok(None) };
    let ecn = match (inner, outer) {
        (NOT_ECT, CE) => return Err(DropReason::VxlanEcn),
        (ECT_0 | ECT_1, CE) => CE,
        (ECT_0, _) => ECT_1,
        _ => return Ok(None),
    };
    let new = first & !(3 << up) | u16::from(ecn) << up;
    let here = (at, new.to_be_bytes());
    // IPv6 has no checksum there.
    let sum = behind(frame, at + 10).first_chunk().filter(|_| up == 0);
    let sum = sum.map(|old| (at + 10, update(u16::from_be_bytes(*old), first, new).to_be_bytes()));
    Ok(Some([here, sum.unwrap_or(here)]))
}
