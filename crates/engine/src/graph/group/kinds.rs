//! Kinds of frames that a group tells apart: flows, what all members have to hear, and what one of them
//! answers for all.
//!
//! Each member resolves its neighbours itself, and neighbours resolve the group. So ARP and Neighbor
//! Discovery go to all members, requests and answers alike, and of what members say of themselves in it only
//! the *speaker's* comes out: the first of those members that take flows. Other frames for groups of
//! stations, and those routing protocols that speak to the group's own addresses, are the speaker's, too.
//!
//! Limits. Frames with a VLAN tag are flows. What is beyond the first 64 bytes of a member's message is read
//! here and again when it is delivered, so a member that rewrites it meanwhile can name a target of its
//! choice; its sender's address it cannot.

use std::net::IpAddr;

use crate::packet::{
    is_about_another, is_group, plain_hash, symmetric_hash, Batch, Frame, ARP, ICMPV6, IPV4, IPV6, QUOTING,
    TCP, UDP,
};
use crate::port::DropReason;

/// Protocols of routers among themselves: IGMP, OSPF, PIM, VRRP.
const ROUTERS: [u8; 4] = [2, 89, 103, 112];
/// Their ports: BGP (RFC 4271), BFD (RFC 5881 and RFC 5883).
const BGP: u16 = 179;
const BFD: [u16; 3] = [3784, 3785, 4784];
/// Messages of Neighbor Discovery (RFC 4861 §4).
const SOLICITS: [u8; 2] = [133, 135];
const ADVERTISES: [u8; 3] = [134, 136, 137];
const ADVERTISEMENT: u8 = 136;

/// The addresses of an interface, as numbers; IPv4 in its mapped form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// Its addresses; in a family without one, any may be used.
    addresses: Vec<u128>,
    /// The higher one of those two that probes go to and come from.
    probe: Option<u128>,
}

impl Own {
    /// These addresses, and the link-local one that belongs to station `mac` (RFC 4291 appendix A); `probe`
    /// is the address of probes.
    pub fn new(
        addresses: impl IntoIterator<Item = IpAddr>,
        mac: Option<[u8; 6]>,
        probe: Option<IpAddr>,
    ) -> Own {
        let mut own: Vec<u128> = addresses.into_iter().map(number).collect();
        if let (Some([a, b, c, d, e, f]), true) = (mac, own.iter().any(|it| !is_v4(*it))) {
            let station = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
            own.push(0xfe80 << 112 | u128::from(station));
        }
        Own { addresses: own, probe: probe.map(|it| number(it) | 1) }
    }

    fn has(&self, address: u128) -> bool {
        self.addresses.contains(&address)
    }

    /// Whether `frame` is a probe, or about one.
    pub(super) fn is_probe(&self, frame: &Frame) -> bool {
        self.probe.is_some_and(|probe| destination(frame) | 1 == probe)
    }

    /// Whether a member may say that `address` is its own.
    fn admits(&self, address: u128) -> bool {
        self.has(address) || !self.addresses.iter().any(|it| is_v4(*it) == is_v4(address))
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(four) => four.to_ipv6_mapped().into(),
        IpAddr::V6(six) => six.into(),
    }
}

fn is_v4(number: u128) -> bool {
    number >> 32 == 0xffff
}

/// What a frame is to a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameKind {
    /// One of a flow.
    Flow,
    /// All members have to hear it.
    All,
    /// It is for the group itself.
    Own,
}

fn ethertype(frame: &Frame) -> u16 {
    u16::from_be_bytes([frame.head[12], frame.head[13]])
}

/// The IPv4 address at byte `at`, mapped.
fn four(bytes: &[u8], at: usize) -> u128 {
    let address = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
    address.map_or(0, |it| 0xffff << 32 | u128::from(u32::from_be_bytes(*it)))
}

/// The IPv6 address at byte `at`.
fn six(bytes: &[u8], at: usize) -> u128 {
    let address = bytes.get(at..).and_then(|rest| rest.first_chunk::<16>());
    address.map_or(0, |it| u128::from_be_bytes(*it))
}

/// The address that `frame` goes to, if it is one of IP.
fn destination(frame: &Frame) -> u128 {
    match ethertype(frame) {
        IPV4 => four(frame.head(), 30),
        IPV6 => six(frame.head(), 38),
        _ => 0,
    }
}

/// The message of Neighbor Discovery that `frame` is. Such messages have no headers in between: RFC 6980 §5.
fn discovery(frame: &Frame) -> Option<u8> {
    let is_icmp = ethertype(frame) == IPV6 && frame.head[20] == ICMPV6 && frame.len >= 58;
    Some(frame.head[54]).filter(|kind| is_icmp && (133..=137).contains(kind))
}

/// Whether `frame` resolves addresses.
pub(super) fn is_resolution(frame: &Frame) -> bool {
    ethertype(frame) == ARP || discovery(frame).is_some()
}

/// What `frame` is to a group with these addresses.
#[inline]
pub(super) fn kind(frame: &Frame, own: &Own) -> FrameKind {
    if is_resolution(frame) {
        return FrameKind::All;
    }
    match is_group(frame.dst()) || !own.addresses.is_empty() && is_for_own(frame, own) {
        true => FrameKind::Own,
        false => FrameKind::Flow,
    }
}

/// Whether `frame` is of a routing protocol, and for one of these addresses.
fn is_for_own(frame: &Frame, own: &Own) -> bool {
    let head = frame.head();
    let (protocol, at) = match ethertype(frame) {
        IPV4 => (head.get(23), 14 + usize::from(frame.head[14] & 0xf) * 4),
        IPV6 => (head.get(20), 54),
        _ => return false,
    };
    let port = |at: usize| {
        head.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |it| u16::from_be_bytes(*it))
    };
    let speaks = match protocol {
        Some(&TCP) => [port(at), port(at + 2)].contains(&BGP),
        Some(&UDP) => BFD.contains(&port(at + 2)),
        Some(protocol) => ROUTERS.contains(protocol),
        None => false,
    };
    speaks && own.has(destination(frame))
}

/// Whether a `frame` that resolves addresses may come out of an interface with these; it came from the member
/// that speaks for all, or from another one.
pub(super) fn may_leave(batch: &Batch, frame: &Frame, own: &Own, speaks: bool) -> Result<(), DropReason> {
    let head = frame.head();
    let (says, of) = match (ethertype(frame), discovery(frame)) {
        (ARP, _) => {
            let (from, to) = (four(head, 28), four(head, 38));
            // A request with the sender's own address as its target is an announcement (RFC 5227 §3), one
            // from no address a probe.
            let asks = head.get(20..22) == Some(&[0, 1]) && from != to;
            (!asks, Some(from).filter(|from| *from != four(&[0; 4], 0)))
        }
        (_, Some(ADVERTISEMENT)) => {
            let mut target = [0; 16];
            batch.read(frame, 62, &mut target);
            (true, Some(six(&target, 0)))
        }
        (_, Some(message)) => {
            let says = ADVERTISES.contains(&message);
            debug_assert!(says || SOLICITS.contains(&message));
            (says, Some(six(head, 22)).filter(|from| *from != 0))
        }
        _ => return Ok(()),
    };
    match of {
        Some(address) if !own.admits(address) => Err(DropReason::ForeignAddress),
        _ if says && !speaks => Err(DropReason::NotSpeaker),
        _ => Ok(()),
    }
}

/// The hash of the flow that `frame` belongs to; of one about another packet, of that packet's.
#[inline]
pub(super) fn flow(batch: &Batch, frame: &Frame, key: [u64; 2]) -> u64 {
    let head = frame.head();
    match plain_hash(head, key) {
        Some(hash) => hash,
        None if is_about_another(head) => about(batch, frame, key),
        None => symmetric_hash(head, key),
    }
}

/// What the error quotes may lie behind the private head.
#[cold]
fn about(batch: &Batch, frame: &Frame, key: [u64; 2]) -> u64 {
    let mut bytes = [0; QUOTING];
    let len = batch.read(frame, 0, &mut bytes);
    symmetric_hash(bytes.get(..len).unwrap_or_default(), key)
}
