//! The headers of a frame that is to be routed, judged in its private head.
//!
//! What a router must look at before it believes a header: RFC 1812 §5.2.2, RFC 8200 §3. Frames of VLANs are
//! none of its own, and tags that only tell a priority have been taken off, so a header begins behind 14
//! bytes.

use super::net::{is_group4, is_group6, is_martian4, is_martian6, is_martian_source4, is_special4, mapped};
use super::plan::Plan;
use crate::observe::account::DropReason;
use crate::packet::{is_right, Batch, Frame, Gso, Sum, HEAD};

/// Where the IP header begins.
pub(super) const L3: usize = 14;
/// Bytes of an Ethernet header, in lengths.
pub(super) const ETHERNET: u32 = 14;
/// The fixed headers.
pub(super) const V4_LEN: usize = 20;
pub(super) const V6_LEN: usize = 40;
/// The longest header of IPv4.
pub(super) const V4_LONGEST: usize = 60;
/// The longest header of TCP.
const TCP_LONGEST: u32 = 60;
/// The longest message of Neighbor Discovery that is looked at.
pub(super) const ND_LONGEST: usize = 160;
/// The longest packet of IPv4, whole or put together of fragments.
const V4_MOST: u32 = 65_535;
/// The smallest frame that is padded to: 802.3 §3.2.8, without its check sequence.
const LEAST: u32 = 60;

/// EtherTypes.
pub(super) const IPV4: u16 = 0x0800;
pub(super) const IPV6: u16 = 0x86dd;
pub(super) const ARP: u16 = 0x0806;

/// IPv4 options (RFC 791 §3.1): end, nothing, loose and strict source routes.
const END: u8 = 0;
const NOTHING: u8 = 1;
const SOURCE_ROUTES: [u8; 2] = [131, 137];

pub(super) fn ethertype(frame: &Frame) -> u16 {
    u16::from_be_bytes([frame.head[12], frame.head[13]])
}

/// Whether a frame has a whole IPv4 header without options, with the right checksum: other ones are for
/// [`judge_options`].
#[inline]
pub(super) fn is_plain4(frame: &Frame) -> bool {
    let head = &frame.head;
    frame.len >= ETHERNET + 20 && head[14] == 0x45 && head[14..34].first_chunk().is_some_and(is_right)
}

/// The destination of an IPv4 frame whose header is in order, as far as [`is_plain4`] and [`judge_options`]
/// look at it.
#[inline]
pub(super) fn judge4(frame: &Frame, plan: &Plan) -> Result<u32, DropReason> {
    let head = &frame.head;
    let total = u32::from(u16::from_be_bytes([head[16], head[17]]));
    // A fragment that ends beyond the longest packet would come out of here as one that begins a packet (RFC
    // 791 §3.2).
    let place = u32::from(u16::from_be_bytes([head[20], head[21]]) & 0x1fff) * 8;
    if total < 20 || total + ETHERNET > frame.len || place + total > V4_MOST {
        return Err(DropReason::BadHeader);
    }
    let (src, dst) = (source4(frame), destination4(frame));
    if is_special4(head[26]) || is_special4(head[30]) {
        judge_special(src, dst)?;
    }
    if plan.is_own(mapped(src)) {
        return Err(DropReason::Martian);
    }
    Ok(dst)
}

/// Addresses of which one begins with a byte that few do.
#[cold]
fn judge_special(src: u32, dst: u32) -> Result<(), DropReason> {
    if is_group4(dst) {
        return Err(DropReason::GroupAddress);
    }
    match is_martian_source4(src) || is_martian4(dst) {
        true => Err(DropReason::Martian),
        false => Ok(()),
    }
}

/// A header with options: its checksum, and no source route in it (RFC 7126 §4.3 and §4.4: dropped by
/// default). The other options pass as they are. Those behind the head lie in the sender's memory, so what
/// was judged is kept.
#[cold]
pub(super) fn judge_options(
    batch: &Batch,
    frame: &Frame,
    keep: impl FnOnce(&[u8]) -> bool,
) -> Result<(), DropReason> {
    let mut bytes = [0; V4_LONGEST];
    let first = frame.head[14];
    let len = usize::from(first & 0xf) * 4;
    if frame.len < ETHERNET + 20 || first >> 4 != 4 || len < V4_LEN {
        return Err(DropReason::BadHeader);
    }
    let Some(header) = bytes.get_mut(..len) else { return Err(DropReason::BadHeader) };
    let total = usize::from(u16::from_be_bytes([frame.head[16], frame.head[17]]));
    if batch.read(frame, L3, header) < len || total < len || Sum::of(header).value() != 0xffff {
        return Err(DropReason::BadHeader);
    }
    let mut options = header.get(V4_LEN..).unwrap_or_default();
    while let [kind, rest @ ..] = options {
        options = match *kind {
            END => break,
            NOTHING => rest,
            kind if SOURCE_ROUTES.contains(&kind) => return Err(DropReason::SourceRoute),
            _ => match rest.first() {
                Some(len @ 2..) => options.get(usize::from(*len)..).ok_or(DropReason::BadHeader)?,
                _ => return Err(DropReason::BadHeader),
            },
        };
    }
    let behind = header.get(HEAD - L3..).unwrap_or_default();
    match behind.is_empty() || keep(behind) {
        true => Ok(()),
        false => Err(DropReason::TooManyPieces),
    }
}

/// The destination of an IPv6 frame whose header is in order.
#[inline]
pub(super) fn judge6(frame: &Frame, plan: &Plan) -> Result<u128, DropReason> {
    let head = &frame.head;
    if frame.len < ETHERNET + 40 || head[14] >> 4 != 6 {
        return Err(DropReason::BadHeader);
    }
    let payload = u32::from(u16::from_be_bytes([head[18], head[19]]));
    if payload + ETHERNET + 40 > frame.len {
        return Err(DropReason::BadHeader);
    }
    let (src, dst) = (source6(frame), destination6(frame));
    if is_group6(dst) {
        return Err(DropReason::GroupAddress);
    }
    if is_martian6(src) || is_martian6(dst) || is_group6(src) || plan.is_own(src) {
        return Err(DropReason::Martian);
    }
    Ok(dst)
}

#[inline]
pub(super) fn source4(frame: &Frame) -> u32 {
    let [a, b, c, d] = [frame.head[26], frame.head[27], frame.head[28], frame.head[29]];
    u32::from_be_bytes([a, b, c, d])
}

#[inline]
pub(super) fn destination4(frame: &Frame) -> u32 {
    let [a, b, c, d] = [frame.head[30], frame.head[31], frame.head[32], frame.head[33]];
    u32::from_be_bytes([a, b, c, d])
}

pub(super) fn source6(frame: &Frame) -> u128 {
    u128::from_be_bytes(sixteen(&frame.head[22..38]))
}

pub(super) fn destination6(frame: &Frame) -> u128 {
    u128::from_be_bytes(sixteen(&frame.head[38..54]))
}

fn sixteen(bytes: &[u8]) -> [u8; 16] {
    bytes.first_chunk().copied().unwrap_or_default()
}

/// Bytes of the IP packet in `frame` as a link's MTU counts them; of one that is to be cut, those of its
/// segments. What is more than padding behind a packet counts, since it is sent, too.
#[inline]
pub(super) fn packet_len(frame: &Frame) -> u32 {
    match frame.offload.gso {
        Gso::None if frame.len <= LEAST => 0,
        Gso::None => frame.len - ETHERNET,
        Gso::Tcp4 | Gso::Tcp6 => {
            // RFC 9293 §3.1: the data offset counts words. Where it lies behind the head its sender may
            // change it: the longest then.
            let offset = frame.head.get(usize::from(frame.offload.csum_start) + 12);
            segment(frame, offset.map_or(TCP_LONGEST, |byte| u32::from(byte >> 4) * 4))
        }
        _ => segment(frame, 8),
    }
}

/// Whether this IPv4 packet may be cut into fragments (RFC 791 §3.1); those with options are not.
#[cold]
pub(super) fn may_be_cut(frame: &Frame) -> bool {
    frame.head[20] & 0x40 == 0 && frame.head[14] == 0x45
}

fn segment(frame: &Frame, header: u32) -> u32 {
    (u32::from(frame.offload.gso_size) + u32::from(frame.offload.csum_start) + header)
        .saturating_sub(ETHERNET)
}
