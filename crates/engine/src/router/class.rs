//! What a frame for the router itself is: its class for the control plane, whether it is for a group of its
//! own link, and whether a kernel would obey it.
//!
//! All of this is judged in the frame's private head. What would lead a kernel behind the head, where the
//! sender may still change it, counts as the worst that may stand there.

use super::header::{ethertype, ARP, IPV4, IPV6, L3, V6_LEN};
use super::made::{ICMP, ICMP6, UDP};
use super::punt::Class;
use crate::packet::Frame;

const BGP_PORT: u16 = 179;
/// Control packets and echoes between neighbours, and control packets over several hops (RFC 5881 §4, RFC
/// 5883 §5).
const BFD: u16 = 3784;
const BFD_ECHO: u16 = 3785;
const BFD_MULTIHOP: u16 = 4784;
pub(super) const TCP: u8 = 6;
const OSPF: u8 = 89;
/// Extension headers of IPv6 (RFC 8200 §4).
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;

/// Where what the IPv4 packet in `frame` carries begins.
fn behind4(frame: &Frame) -> usize {
    L3 + usize::from(frame.head[14] & 0xf) * 4
}

/// The class of `frame`. Behind other extension headers it is of no class of its own.
pub(super) fn class(frame: &Frame) -> Class {
    let head = &frame.head;
    let (protocol, hops, at) = match ethertype(frame) {
        ARP => return Class::Neighbours,
        IPV4 if u16::from_be_bytes([head[20], head[21]]) & 0x3fff != 0 => return Class::Fragments,
        IPV6 if head[20] == FRAGMENT => return Class::Fragments,
        IPV4 => (head[23], head[22], behind4(frame)),
        IPV6 => (head[20], head[21], L3 + V6_LEN),
        _ => return Class::Other,
    };
    let word = |at: usize| {
        head.get(at..at + 2).and_then(|bytes| bytes.first_chunk()).map_or(0, |it| u16::from_be_bytes(*it))
    };
    let ports: [u16; 2] = [word(at), word(at + 2)];
    match protocol {
        OSPF => Class::Ospf,
        TCP if ports.contains(&BGP_PORT) => Class::Bgp,
        // RFC 5881 §5: from a neighbour it has 255, and nothing from afar can. An echo comes back with one
        // less.
        UDP if ports[1] == BFD && hops == 255 || ports[1] == BFD_ECHO && hops >= 254 => Class::Bfd,
        UDP if ports[1] == BFD_MULTIHOP => Class::BfdMultihop,
        ICMP6 if matches!(head.get(at), Some(133..=137)) => Class::Neighbours,
        _ => Class::Other,
    }
}

/// Whether `frame` is for a group of its own link, which routing protocols speak to: 224.0.0.0/24 (RFC 5771
/// §4), ff02::/16 (RFC 4291 §2.7).
pub(super) fn is_for_link_group(frame: &Frame) -> bool {
    let head = &frame.head;
    match ethertype(frame) {
        IPV4 => head[30..33] == [224, 0, 0],
        IPV6 => head[38..40] == [0xff, 0x02],
        _ => false,
    }
}

/// Redirects (RFC 792; RFC 4861 §4.5), and router advertisements (RFC 4861 §4.2).
const REDIRECT4: u8 = 5;
/// The type and code of what tells of a path's MTU (RFC 1191 §3), and where in it stands what the packet
/// carried that it is about; the type of the same for IPv6 (RFC 4443 §3.2).
const TOO_BIG4: [u8; 2] = [3, 4];
const ABOUT: usize = 8 + 9;
pub(super) const TOO_BIG6: u8 = 2;
const ADVERTISEMENT6: u8 = 134;
const REDIRECT6: u8 = 137;

/// Whether a host's kernel may obey `frame` without being asked: advertisements and redirects give it
/// addresses, and routes to whatever their sender says, also to what is behind other ports. No routing
/// protocol needs them (RFC 1812 §5.2.7.2). Headers that hide what is behind them, or let it lie where its
/// sender may change it, count as if it were one. So does Neighbor Discovery behind extension headers: the
/// router looks at none of it there, and no sender sends it so (RFC 6980 §5). A path's MTU is believed by a
/// kernel, for all that goes there, unless it is said about TCP, where it compares sequence numbers (RFC 5927
/// §4); what says so for IPv6 is looked at in `own`.
pub(super) fn is_obeyed(frame: &Frame) -> bool {
    let head = &frame.head;
    let hidden = |kind: u8| matches!(kind, TOO_BIG6 | 133..=REDIRECT6);
    match (ethertype(frame), head[20], head[23]) {
        (IPV4, _, ICMP) => {
            let (part, message) = (u16::from_be_bytes([head[20], head[21]]), head.get(behind4(frame)..));
            match message.unwrap_or_default() {
                // Nothing comes of a later fragment without the first one.
                _ if part & 0x1fff != 0 => false,
                [REDIRECT4, ..] | [] | [_] => true,
                message if message.starts_with(&TOO_BIG4) => {
                    part & 0x2000 != 0 || message.get(ABOUT) != Some(&TCP)
                }
                _ => false,
            }
        }
        (IPV6, ICMP6, _) => matches!(head[54], ADVERTISEMENT6 | REDIRECT6),
        // Hop-by-hop options of one word, as reports of groups have them (RFC 3810 §5).
        (IPV6, HOP_BY_HOP, _) if head[54] == ICMP6 && head[55] == 0 => hidden(head[62]),
        // A first fragment says what all of them are (RFC 8200 §4.5); nothing comes of the others without it.
        (IPV6, FRAGMENT, _) if u16::from_be_bytes([head[56], head[57]]) & 0xfff8 == 0 => match head[54] {
            ICMP6 => hidden(head[62]),
            next => matches!(next, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION),
        },
        // Other options; routing.
        (IPV6, HOP_BY_HOP | ROUTING | DESTINATION, _) => true,
        _ => false,
    }
}

/// Whether the hop limit of `frame` says that no router has passed it on: its sender is a neighbour (RFC
/// 5082).
pub(super) fn is_from_near(frame: &Frame) -> bool {
    match ethertype(frame) {
        IPV4 => frame.head[22] == 255,
        IPV6 => frame.head[21] == 255,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Batch;

    fn class_of(bytes: &[u8]) -> Class {
        let mut batch = Batch::new();
        let (frame, _) = batch.next_frame().unwrap();
        frame.head[..bytes.len()].copy_from_slice(bytes);
        frame.len = 64;
        class(frame)
    }

    fn four(protocol: u8, rest: &[u8]) -> Vec<u8> {
        let ip = [0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1];
        [&[0; 12][..], &[8, 0], &ip, rest].concat()
    }

    #[test]
    fn each_protocol_has_its_class() {
        assert_eq!(class_of(&four(TCP, &[0x9c, 0x40, 0, 179])), Class::Bgp);
        assert_eq!(class_of(&four(TCP, &[0, 179, 0x9c, 0x40])), Class::Bgp);
        assert_eq!(class_of(&four(TCP, &[0, 22, 0x9c, 0x40])), Class::Other);
        let udp = |port: u16, hops| {
            let mut packet = four(UDP, &[&[0xc0, 0][..], &port.to_be_bytes()].concat());
            packet[22] = hops;
            class_of(&packet)
        };
        assert_eq!([udp(3784, 255), udp(3785, 255), udp(3785, 254)], [Class::Bfd; 3]);
        assert_eq!([udp(3784, 254), udp(3785, 253)], [Class::Other; 2], "from afar");
        assert_eq!([udp(4784, 255), udp(4784, 3)], [Class::BfdMultihop; 2]);
        assert_eq!(class_of(&four(UDP, &[14, 200, 0xc0, 0])), Class::Other, "from such a port is no BFD");
        assert_eq!(class_of(&four(OSPF, &[])), Class::Ospf);
        let mut options = four(UDP, &[&[1; 8][..], &[0xc0, 0], &3784u16.to_be_bytes()].concat());
        (options[14], options[22]) = (0x47, 255);
        assert_eq!(class_of(&options), Class::Bfd, "behind options");
        let mut fragment = four(TCP, &[0, 179, 0, 179]);
        fragment[21] = 1;
        assert_eq!(class_of(&fragment), Class::Fragments);
        (fragment[20], fragment[21]) = (0x20, 0);
        assert_eq!(class_of(&fragment), Class::Fragments, "the first one, too");
        let six = [&[0; 12][..], &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 24, 58, 255], &[0; 32], &[135]].concat();
        assert_eq!(class_of(&six), Class::Neighbours);
        assert_eq!(class_of(&[&[0; 12][..], &[8, 6]].concat()), Class::Neighbours);
    }
}
