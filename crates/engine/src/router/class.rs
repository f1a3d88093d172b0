//! What a frame for the router itself is: its class for the control plane, and whether it is for a group of its own link.

use super::header::{ethertype, ARP, IPV4, IPV6};
use super::made::{ICMP6, UDP};
use super::punt::Class;
use crate::frame::Frame;

const BGP_PORT: u16 = 179;
const BFD_PORTS: [u16; 3] = [3784, 3785, 4784];
const TCP: u8 = 6;
const OSPF: u8 = 89;

/// The class of `frame`. Ports are looked for where a header without options has them; with options it is of no class of its own.
pub(super) fn class(frame: &Frame) -> Class {
    let head = &frame.head;
    let (protocol, at) = match ethertype(frame) {
        ARP => return Class::Neighbours,
        // Not the first fragment: what stands there are no ports.
        IPV4 if head[14] == 0x45 && u16::from_be_bytes([head[20], head[21]]) & 0x1fff == 0 => (head[23], 34),
        IPV6 => (head[20], 54),
        _ => return Class::Other,
    };
    let word = |at: usize| {
        head.get(at..at + 2).and_then(|bytes| bytes.first_chunk()).map_or(0, |it| u16::from_be_bytes(*it))
    };
    let ports = [word(at), word(at + 2)];
    match protocol {
        OSPF => Class::Ospf,
        TCP if ports.contains(&BGP_PORT) => Class::Bgp,
        UDP if ports.get(1).is_some_and(|port| BFD_PORTS.contains(port)) => Class::Bfd,
        ICMP6 if matches!(head.get(at), Some(133..=137)) => Class::Neighbours,
        _ => Class::Other,
    }
}

/// Whether `frame` is for a group of its own link, which routing protocols speak to: 224.0.0.0/24 (RFC 5771 §4), ff02::/16 (RFC 4291
/// §2.7).
pub(super) fn is_for_link_group(frame: &Frame) -> bool {
    let head = &frame.head;
    match ethertype(frame) {
        IPV4 => head[30..33] == [224, 0, 0],
        IPV6 => head[38..40] == [0xff, 0x02],
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Batch;

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
        assert_eq!(class_of(&four(UDP, &[0xc0, 0, 14, 200])), Class::Bfd);
        assert_eq!(class_of(&four(UDP, &[14, 200, 0xc0, 0])), Class::Other, "from such a port is no BFD");
        assert_eq!(class_of(&four(OSPF, &[])), Class::Ospf);
        let mut fragment = four(TCP, &[0, 179, 0, 179]);
        fragment[21] = 1;
        assert_eq!(class_of(&fragment), Class::Other);
        let six = [&[0; 12][..], &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 24, 58, 255], &[0; 32], &[135]].concat();
        assert_eq!(class_of(&six), Class::Neighbours);
        assert_eq!(class_of(&[&[0; 12][..], &[8, 6]].concat()), Class::Neighbours);
    }
}
