//! What a router does to a frame: addresses of stations, time to live, checksum.

/// Bytes of Ethernet's header.
const ETHERNET: usize = 14;
/// Where IPv4's fields are, in the frame.
const TTL: usize = ETHERNET + 8;
const CHECKSUM: usize = ETHERNET + 10;
/// The shortest IPv4 header's end.
const END: usize = ETHERNET + 20;

/// What frames that leave by a port get: its own address, and that of the station behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The router's station address at this port.
    pub from: [u8; 6],
    /// The next hop's.
    pub to: [u8; 6],
}

/// Whether a frame that came to a port with address `own` is forwarded: it is for the router, and IPv4 (RFC
/// 1812 §5.2) whose time to live is not over (§5.3.1).
#[inline]
pub(super) fn is_routable(frame: &[u8], own: [u8; 6]) -> bool {
    frame.get(..END).is_some_and(|head| {
        head[..6] == own && head[12..14] == [8, 0] && head[ETHERNET] >> 4 == 4 && head[TTL] > 1
    })
}

/// Makes of a received frame the one that is sent: [`is_routable`] has seen it.
#[inline]
pub(super) fn rewrite(frame: &mut [u8], hop: &Hop) {
    let Some(head) = frame.get_mut(..END) else { return };
    head[..6].copy_from_slice(&hop.to);
    head[6..12].copy_from_slice(&hop.from);
    head[TTL] -= 1;
    // The word with the time to live became less by 0x100, so the sum of all words does, and its complement
    // more (RFC 1624).
    let sum = u16::from_be_bytes([head[CHECKSUM], head[CHECKSUM + 1]]);
    let (sum, carry) = sum.overflowing_add(0x100);
    head[CHECKSUM..CHECKSUM + 2].copy_from_slice(&(sum + u16::from(carry)).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::frame;

    const HOP: Hop = Hop { from: [2, 1, 1, 1, 1, 1], to: [2, 2, 2, 2, 2, 2] };

    /// Where the load's frames go.
    const OWN: [u8; 6] = [2, 0x73, 0x63, 0, 0, 2];

    /// The sum of the header's words, which is all ones in a right one (RFC 1071).
    fn sum(frame: &[u8]) -> u32 {
        let words = frame[ETHERNET..END].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
        let sum: u32 = words.sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        (sum & 0xffff) + (sum >> 16)
    }

    #[test]
    fn headers_stay_right_until_their_time_is_over() {
        let mut routed = frame(0, 60);
        let before = routed.clone();
        for ttl in (1..64).rev() {
            let own = if ttl == 63 { OWN } else { HOP.to };
            assert!(is_routable(&routed, own));
            rewrite(&mut routed, &HOP);
            assert_eq!((routed[TTL], sum(&routed)), (ttl, 0xffff));
        }
        assert!(!is_routable(&routed, HOP.to));
        assert_eq!((&routed[..6], &routed[6..12]), (&HOP.to[..], &HOP.from[..]));
        assert_eq!(routed[END..], before[END..]);
    }

    #[test]
    fn other_frames_are_not_forwarded() {
        let mut other = frame(0, 60);
        other[12..14].copy_from_slice(&[0x86, 0xdd]);
        assert!(!is_routable(&other, OWN) && !is_routable(&frame(0, 60)[..33], OWN));
        assert!(!is_routable(&frame(0, 60), HOP.from), "it is for another station");
    }
}
