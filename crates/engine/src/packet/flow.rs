//! What a flow is known by, and a number that is the same for all frames of one, for the choice of a queue.

use std::ops::Range;

use super::ether::be16;
use super::ip::{Ip, TCP, UDP};

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
    let hash = mix_all(head.get(ip.src..ip.src + 2 * ip.address_len()).unwrap_or_default());
    // The protocol is not mixed in: for the choice of a queue TCP and UDP may share one.
    let Some((TCP | UDP, at)) = ip.l4 else { return finish(hash) };
    // Behind two tags and IPv6 the first 64 bytes end between the ports: one is better than none.
    let port = |at| u64::from(be16(head, at).unwrap_or(0));
    finish(mix(hash, port(at) << 16 | port(at + 2)))
}

/// Where the fields of a frame lie that its flow is known by; offsets from the start of the frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowFields {
    /// Where the IP header begins.
    pub ip: usize,
    /// Source and destination, as the IP header has them.
    pub addresses: Range<usize>,
    /// IPv6 with extension headers.
    pub extended: bool,
    /// Where the TCP header begins, at any place: it may lie behind the bytes at hand. `None`: it is not TCP, a
    /// fragment, or extension headers cannot be followed within these bytes.
    pub tcp: Option<usize>,
}

impl FlowFields {
    /// Those of the frame that begins with `head`. `None`: not IP, or without a whole and well-formed fixed header.
    #[must_use]
    #[inline]
    pub fn find(head: &[u8]) -> Option<FlowFields> {
        let ip = Ip::parse(head)?;
        let tcp = ip.l4.filter(|(protocol, _)| *protocol == TCP).map(|(_, at)| at);
        let addresses = ip.src..ip.src + 2 * ip.address_len();
        Some(FlowFields { ip: ip.at, addresses, extended: ip.named.1 != u8::MAX, tcp })
    }

    /// Whether it is IPv6.
    #[must_use]
    pub fn is_v6(&self) -> bool {
        self.addresses.len() > 8
    }
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
