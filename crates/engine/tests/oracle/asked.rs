//! What a sender leaves to others, judged.

use super::doubt::Doubts;
use super::frames::Sent;
use super::headers::{be16, is_tag, see, tags, Transport, What, GRE, UDP};
use super::plain::{completed, sum_at, Asked};

/// Bytes of each frame that are looked at in any case.
pub const HEAD: usize = 64;

/// What the sender asks for, judged: the frame as it is before any port looks at it, and what is still to
/// be done. A checksum that is not its protocol's own is completed before, or the frame is dropped.
pub fn asked(sent: &Sent, doubts: &Doubts) -> Result<(Vec<u8>, Asked, bool), &'static str> {
    const BAD: &str = "bad_offload";
    if let Some(work) = sent.work.filter(|_| sent.asked == Asked::default()) {
        return work.judged(&sent.bytes, doubts);
    }
    let Asked { flags, gso, size, start, offset, .. } = sent.asked;
    let kind = gso & 0x7f;
    if !matches!(kind, 0 | 1 | 3 | 4 | 5) || gso & 0x80 != 0 && !matches!(kind, 1 | 4) {
        return Err(BAD);
    }
    if flags & 1 == 0 {
        return if kind == 0 { Ok((sent.bytes.clone(), Asked::default(), false)) } else { Err(BAD) };
    }
    let found = transport_of(&sent.bytes, doubts);
    let own = found.and_then(|(protocol, at, its)| Some((protocol, at, its?)));
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
    let done =
        |unseen| completed(&sent.bytes, sent.asked).map(|bytes| (bytes, Asked::default(), unseen)).ok_or(BAD);
    // Where the headers do not lead to a transport in the first bytes, nobody may have looked whose it is.
    let hidden = usize::from(start) >= HEAD && found.is_none_or(|(_, at, _)| at >= HEAD);
    if hidden && doubts.either("a checksum behind the first bytes that no rule asks for", 0) {
        return done(true);
    }
    // A packet that another one carries has checksums where no rule looks.
    let carried = found.is_some_and(|(protocol, at, _)| {
        carries(protocol).is_some_and(|header| usize::from(start) >= at + header)
    });
    if carried && doubts.either("a checksum of a packet within", 0) {
        return done(false);
    }
    Err(BAD)
}

/// The type of a frame behind two tags at most, and where what is of that type begins. Behind LLC nobody
/// computes checksums for others.
pub fn network_of(bytes: &[u8], doubts: &Doubts) -> Option<(u16, usize)> {
    let (all, mut at) = tags(bytes);
    let kind = |at: usize| be16(bytes, at);
    let mut depth = all.len();
    while kind(at).is_some_and(|kind| kind == 0x9100 || is_tag(kind)) && doubts.either("0x9100 is a tag", 0) {
        (at, depth) = (at + 4, depth + 1);
    }
    Some((kind(at)?, at + 2)).filter(|_| depth <= 2)
}

/// The protocol of its packet, where its header begins, and where its checksum stands in it, if it has one.
pub fn transport_of(bytes: &[u8], doubts: &Doubts) -> Option<(u8, usize, Option<u16>)> {
    network_of(bytes, doubts).filter(|(kind, _)| matches!(kind, 0x0800 | 0x86dd))?;
    let What::Packet(packet) = see(bytes, false, 0, doubts).what else { return None };
    if packet.fragment && doubts.either("a fragment's checksum", 0) {
        return None;
    }
    let Transport::Found(protocol, header) = packet.transport else { return None };
    // Behind what is looked at there may be any.
    if packet.at > 150 && doubts.either("a checksum far behind", 0) {
        return None;
    }
    Some((protocol, packet.at, sum_at(protocol, &header)))
}

/// Behind how many bytes of its header a protocol may carry a packet: UDP; GRE, L2TP, MPLS; IP in IP.
fn carries(protocol: u8) -> Option<usize> {
    match protocol {
        UDP => Some(8),
        GRE | 115 | 137 => Some(4),
        4 | 41 => Some(20),
        _ => None,
    }
}
