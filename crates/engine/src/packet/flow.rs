//! What a flow is known by, and a number that is the same for all frames of one, for the choice of a queue.

use super::ether::{be16, IPV4, IPV6};
use super::ip::{Ip, ICMP, ICMPV6, TCP, UDP};

/// Hashes the addresses, protocol and ports of a frame that begins with `head`; the first 64 bytes count.
///
/// The two directions of a connection differ. Fragments are hashed by addresses alone, since only the first
/// has ports; frames that are not IP by their Ethernet addresses. Total: any bytes have a hash. Not keyed: a
/// guest can aim its flows at one queue, which costs only the receiver that it may send to anyway.
#[must_use]
#[inline]
pub fn flow_hash(head: &[u8]) -> u32 {
    let head = head.get(..64).unwrap_or(head);
    let Some(ip) = Ip::parse(head) else {
        let mut macs = [0; 16];
        macs.iter_mut().zip(head.iter().take(12)).for_each(|(to, byte)| *to = *byte);
        return finish(mix_all(&macs));
    };
    // Both addresses are there: they belong to the fixed header.
    let hash = mix_all(head.get(ip.addresses()).unwrap_or_default());
    // The protocol is not mixed in: for the choice of a queue TCP and UDP may share one.
    let Some((TCP | UDP, at)) = ip.l4 else { return finish(hash) };
    // Behind two tags and IPv6 the first 64 bytes end between the ports: one is better than none.
    let port = |at| u64::from(be16(head, at).unwrap_or(0));
    finish(mix(hash, port(at) << 16 | port(at + 2)))
}

/// Hashes what a flow is known by in both of its directions: the addresses, the protocol and the ports of a
/// frame that begins with `head`. An ICMP error has the hash of the packet that it is about, if `head`
/// reaches that far.
///
/// Fragments are hashed by addresses alone, frames that are not IP by their Ethernet addresses. Total: any
/// bytes have a hash. The key is for those hashes by which neighbours can be hurt: who does not know it
/// cannot aim flows at one value.
#[must_use]
#[inline]
pub fn symmetric_hash(head: &[u8], key: [u64; 2]) -> u64 {
    let Some(outer) = Ip::parse(head) else {
        let word = |at: usize| head.get(at..at + 6).map_or(0, |mac| words(mac)[0]);
        return both(key, [word(0), word(6)], be16(head, 12).unwrap_or(0).into());
    };
    let ip = quoted(head, &outer).unwrap_or(outer);
    let (protocol, ports) = match ip.l4 {
        Some((protocol @ (TCP | UDP), at)) => {
            let port = |at| u64::from(be16(head, at).unwrap_or(0));
            (protocol, [port(at), port(at + 2)])
        }
        Some((protocol, _)) => (protocol, [0; 2]),
        None => (0, [0; 2]),
    };
    let end = |at: usize, port: u64| {
        let [high, low] = words(head.get(at..at + ip.address_len()).unwrap_or_default());
        fold(fold(high ^ key[0], key[1]) ^ low, key[0] ^ port.rotate_left(24))
    };
    both(key, [end(ip.src, ports[0]), end(ip.dst, ports[1])], protocol.into())
}

/// What [`symmetric_hash`] says of TCP and UDP over IPv4 without options, tags and fragments, as most frames
/// are: found in a few loads. `None` of all others.
#[must_use]
#[inline]
pub fn plain_hash(head: &[u8], key: [u64; 2]) -> Option<u64> {
    let head = head.first_chunk::<38>()?;
    let [fragment, ports @ ..] = [20, 34, 36].map(|at| be16(head, at).unwrap_or(0));
    let protocol = head[23];
    if head[12..15] != [8, 0, 0x45] || fragment & 0x3fff != 0 || !matches!(protocol, TCP | UDP) {
        return None;
    }
    let end = |[a, b, c, d]: [u8; 4], port: u16| {
        let address = u64::from(u32::from_le_bytes([a, b, c, d]));
        fold(fold(address ^ key[0], key[1]), key[0] ^ u64::from(port).rotate_left(24))
    };
    let from = end([head[26], head[27], head[28], head[29]], ports[0]);
    let to = end([head[30], head[31], head[32], head[33]], ports[1]);
    Some(both(key, [from, to], protocol.into()))
}

/// Whether the frame that begins with `head` is an ICMP error, and so about another packet, whose headers may
/// lie behind the bytes at hand.
#[must_use]
#[inline]
pub fn is_about_another(head: &[u8]) -> bool {
    Ip::parse(head).is_some_and(|ip| quote(head, &ip).is_some())
}

/// Bytes of a frame by which [`symmetric_hash`] finds the ports of the packet that an ICMP error is about,
/// where neither has options.
pub const QUOTING: usize = 22 + 2 * (40 + 8);

/// The header of the packet that the ICMP error with header `ip` is about.
fn quoted(head: &[u8], ip: &Ip) -> Option<Ip> {
    let (ethertype, at) = quote(head, ip)?;
    Ip::at(head, ethertype, at)
}

/// Which IP that packet is of, and where it begins: behind 8 bytes of an error (RFC 792; RFC 4443 §2.1: types
/// below 128).
#[inline]
fn quote(head: &[u8], ip: &Ip) -> Option<(u16, usize)> {
    let (protocol, at) = ip.l4?;
    match (protocol, *head.get(at)?) {
        (ICMP, 3 | 4 | 5 | 11 | 12) if !ip.v6 => Some((IPV4, at + 8)),
        (ICMPV6, ..128) if ip.v6 => Some((IPV6, at + 8)),
        _ => None,
    }
}

/// Up to 16 bytes as two words.
#[inline]
fn words(bytes: &[u8]) -> [u64; 2] {
    let mut all = [0; 16];
    all.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
    halves(u128::from_le_bytes(all))
}

/// One number of two ends, whichever of them comes first, and of what is between them.
#[inline]
fn both(key: [u64; 2], [a, b]: [u64; 2], between: u64) -> u64 {
    fold(fold(a.min(b) ^ key[1], a.max(b) ^ key[0]), key[1] ^ between.rotate_left(32))
}

/// The product of two words, its halves laid over each other.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let [low, high] = halves(u128::from(a) * u128::from(b));
    low ^ high
}

#[expect(clippy::cast_possible_truncation, reason = "that is what a half is")]
fn halves(all: u128) -> [u64; 2] {
    [all as u64, (all >> 64) as u64]
}

/// Stirs a word into `hash`: multiplication by 2⁶⁴/φ spreads it upwards, the shift brings it down again.
fn mix(hash: u64, word: u64) -> u64 {
    let product = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ product >> 32
}

/// Stirs bytes, a multiple of eight of them.
fn mix_all(bytes: &[u8]) -> u64 {
    bytes.chunks_exact(8).fold(0, |hash, chunk| {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        mix(hash, u64::from_le_bytes(word))
    })
}

fn finish(hash: u64) -> u32 {
    (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u64; 2] = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3211];

    fn hash(frame: &[u8]) -> u64 {
        symmetric_hash(frame, KEY)
    }

    fn ethernet(ethertype: u16, payload: &[u8]) -> Vec<u8> {
        [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], &ethertype.to_be_bytes(), payload].concat()
    }

    fn v4(from: u8, to: u8, protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
        let [high, low] = fragment.to_be_bytes();
        let fixed = [0x45, 0, 0, 99, 0, 0, high, low, 64, protocol, 0, 0];
        [&fixed[..], &[10, 0, 0, from, 10, 0, 0, to], payload].concat()
    }

    fn v6(from: u8, to: u8, next: u8, payload: &[u8]) -> Vec<u8> {
        let mut header = [0; 40];
        (header[0], header[6], header[23], header[39]) = (0x60, next, from, to);
        [&header[..], payload].concat()
    }

    fn ports(from: u16, to: u16) -> Vec<u8> {
        [&from.to_be_bytes()[..], &to.to_be_bytes(), &[0; 8]].concat()
    }

    #[test]
    fn both_directions_of_a_flow_have_one_hash_and_other_flows_another() {
        let mut seen = std::collections::BTreeSet::new();
        for protocol in [TCP, UDP] {
            let four = |a, b, p, q| hash(&ethernet(IPV4, &v4(a, b, protocol, 0, &ports(p, q))));
            let six = |a, b, p, q| hash(&ethernet(IPV6, &v6(a, b, protocol, &ports(p, q))));
            assert_eq!((four(1, 2, 5, 6), six(1, 2, 5, 6)), (four(2, 1, 6, 5), six(2, 1, 6, 5)));
            let others = [(1, 2, 5, 6), (1, 2, 6, 5), (1, 3, 5, 6), (1, 2, 5, 7), (1, 1, 5, 6)];
            seen.extend(others.iter().flat_map(|(a, b, p, q)| [four(*a, *b, *p, *q), six(*a, *b, *p, *q)]));
        }
        assert_eq!(seen.len(), 20);
        assert_ne!(hash(&ethernet(0x88b5, &[1])), hash(&ethernet(0x88b6, &[1])));
        (0..80).for_each(|n| assert_ne!(hash(&ethernet(IPV4, &v4(1, 2, ICMP, 0, &[3; 60]))[..n]), 0));
    }

    #[test]
    fn fragments_go_by_addresses_and_errors_with_what_they_are_about() {
        let fragment = |from, to, at, bytes: &[u8]| hash(&ethernet(IPV4, &v4(from, to, UDP, at, bytes)));
        assert_eq!(fragment(1, 2, 0x2000, &ports(5, 6)), fragment(2, 1, 7, &[9; 20]));
        // A router on the way, which is no end of the flow, speaks to its sender.
        let quote = [&[11, 0, 0, 0, 0, 0, 0, 0][..], &v4(1, 2, TCP, 0, &ports(5, 6))].concat();
        let error = ethernet(IPV4, &v4(77, 1, ICMP, 0, &quote));
        let flow = ethernet(IPV4, &v4(1, 2, TCP, 0, &ports(5, 6)));
        assert!(is_about_another(&error) && !is_about_another(&flow));
        assert_eq!(hash(&error), hash(&flow));
        let quote = [&[2, 0, 0, 0, 0, 0, 0, 0][..], &v6(1, 2, UDP, &ports(5, 6))].concat();
        let error = ethernet(IPV6, &v6(77, 1, ICMPV6, &quote));
        assert_eq!(hash(&error), hash(&ethernet(IPV6, &v6(2, 1, UDP, &ports(6, 5)))));
        assert!(error.len() <= QUOTING && is_about_another(&error[..64]));
        let echo = ethernet(IPV4, &v4(1, 2, ICMP, 0, &[8; 16]));
        assert!(!is_about_another(&echo));
    }

    #[test]
    fn a_plain_frame_has_the_hash_that_all_have() {
        let plain = |frame: &[u8]| plain_hash(frame, KEY);
        for (protocol, fragment) in [(TCP, 0), (UDP, 0x4000), (UDP, 0x2000), (UDP, 1), (ICMP, 0), (255, 0)] {
            let frame = ethernet(IPV4, &v4(1, 2, protocol, fragment, &ports(3, 4)));
            let is_plain = fragment & 0x3fff == 0 && [TCP, UDP].contains(&protocol);
            assert_eq!(plain(&frame), is_plain.then(|| hash(&frame)), "{protocol} {fragment}");
            // Whatever else it has, and however little of it there is.
            for (at, value) in (0..frame.len()).flat_map(|at| [0, 1, 0x46, 0xff].map(|value| (at, value))) {
                let mut other = frame.clone();
                other[at] = value;
                assert!(plain(&other).is_none_or(|it| it == hash(&other)), "{at} {value}");
                assert!(plain(&frame[..at]).is_none_or(|it| it == hash(&frame[..at])), "{at}");
            }
        }
    }
}
