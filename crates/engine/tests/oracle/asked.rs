//! What a sender leaves to others, judged.

use super::doubt::Doubts;
use super::frames::Sent;
use super::headers::{is_tag, see, tags, Transport, What};
use super::plain::{completed, sum_at, Asked};

/// Bytes of each frame that are looked at in any case.
const HEAD: usize = 64;

/// What the sender asks for, judged: the frame as it is before any port looks at it, and what is still to
/// be done. A checksum that is not its protocol's own is completed before, or the frame is dropped.
pub fn asked(sent: &Sent, doubts: &Doubts) -> Result<(Vec<u8>, Asked, bool), &'static str> {
    const BAD: &str = "bad_offload";
    let Asked { flags, gso, size, start, offset, .. } = sent.asked;
    let kind = gso & 0x7f;
    if !matches!(kind, 0 | 1 | 3 | 4 | 5) || gso & 0x80 != 0 && !matches!(kind, 1 | 4) {
        return Err(BAD);
    }
    if flags & 1 == 0 {
        return if kind == 0 { Ok((sent.bytes.clone(), Asked::default(), false)) } else { Err(BAD) };
    }
    let own = own_sum(&sent.bytes, doubts);
    let right = own.is_some_and(|(_, at, its)| at == usize::from(start) && its == offset);
    if kind != 0 {
        let (_, at) = tags(&sent.bytes);
        let v6 = sent.bytes.get(at..at + 2) == Some(&[0x86, 0xdd]);
        let fits = match kind {
            1 => !v6 && own.is_some_and(|(protocol, ..)| protocol == 6),
            4 => v6 && own.is_some_and(|(protocol, ..)| protocol == 6),
            _ => own.is_some_and(|(protocol, ..)| protocol == 17),
        };
        return if right && fits && size > 0 {
            Ok((sent.bytes.clone(), sent.asked, false))
        } else {
            Err(BAD)
        };
    }
    if right {
        // A field behind the frame's end cannot be filled.
        return completed(&sent.bytes, sent.asked)
            .map(|_| (sent.bytes.clone(), sent.asked, false))
            .ok_or(BAD);
    }
    if doubts.as_before("1", 0) {
        return Ok((sent.bytes.clone(), sent.asked, false));
    }
    if usize::from(start) >= HEAD && doubts.as_before("1", 1) {
        return completed(&sent.bytes, sent.asked).map(|_| (sent.bytes.clone(), sent.asked, true)).ok_or(BAD);
    }
    if usize::from(start) >= HEAD
        && doubts.either("a checksum behind the first bytes that no rule asks for", 0)
    {
        return completed(&sent.bytes, sent.asked).map(|bytes| (bytes, Asked::default(), true)).ok_or(BAD);
    }
    if doubts.either("a checksum that is not its protocol's is completed", 0) {
        return completed(&sent.bytes, sent.asked).map(|bytes| (bytes, Asked::default(), false)).ok_or(BAD);
    }
    Err(BAD)
}

/// The protocol of the packet in a frame behind two tags at most, where its header begins, and where its
/// checksum stands in it.
fn own_sum(bytes: &[u8], doubts: &Doubts) -> Option<(u8, usize, u16)> {
    let (all, at) = tags(bytes);
    // Behind LLC nobody computes checksums for others.
    let kind = u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]);
    if all.len() > 2 || !matches!(kind, 0x0800 | 0x86dd) || is_tag(kind) {
        return None;
    }
    let What::Packet(packet) = see(bytes, false, 0, doubts).what else { return None };
    if packet.fragment && doubts.either("a fragment's checksum", 0) {
        return None;
    }
    let Transport::Found(protocol, header) = packet.transport else { return None };
    // Behind what is looked at there may be any.
    if packet.at > 150 && doubts.either("a checksum far behind", 0) {
        return None;
    }
    let its = sum_at(protocol, &header)?;
    Some((protocol, packet.at, its))
}
