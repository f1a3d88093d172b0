//! The IP guard of a port: which addresses of IP its frames may claim, and whether it may answer as a DHCP server or speak as a
//! router.
//!
//! A frame claims an address as the source of IPv4 or IPv6, as the sender of ARP (RFC 826), and as the target of a neighbour
//! advertisement (RFC 4861 §4.4). The unspecified address claims nothing: it is that of who has none yet (RFC 2131 §4.1, RFC 4862
//! §5.4, RFC 5227 §2.1). Nor do link-local addresses of IPv6, which each interface makes for itself.
//!
//! Messages of ICMPv6, and what lies behind extension headers, are looked for in the frame's first [`MAX_HEADER`] bytes. Those
//! behind the head lie in the sender's memory: the guard reads them once, and the receiver gets a copy that is made later
//! (SECURITY.md). A packet whose transport is not found there, or stands behind more than two tags, is dropped; RFC 7113 §2 tells why.

use std::net::IpAddr;

use crate::packet::{
    advertised, ip_number, Batch, Fields, Frame, ADVERTISEMENT, ARP, ICMPV6, IPV4, IPV6, L4, MAX_HEADER,
    TAGS, TCP, UDP, UNSPECIFIED,
};
use crate::port::DropReason;

/// Router advertisement and redirect (RFC 4861 §4.2, §4.5).
const OF_ROUTERS: [u16; 2] = [134, 137];
/// Ports of servers of DHCP (RFC 2131 §4.1) and DHCPv6 (RFC 9915 §7.2).
const SERVERS: [u16; 2] = [67, 547];
/// fe80::/10.
const LINK_LOCAL: u128 = 0xfe80 << 112;
const LINK_LOCAL_MASK: u128 = 0xffc0 << 112;

/// What a port's frames may claim to be. See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpGuard {
    /// Masks and what addresses are under them, if only some may be used. IPv4 is mapped.
    allowed: Option<Box<[(u128, u128)]>>,
    no_dhcp: bool,
    no_ra: bool,
}

impl IpGuard {
    /// The guard of a port whose frames may claim addresses of these networks (an address and how many bits of it name the network; `None`:
    /// any), that answers no DHCP requests, and sends no router advertisements and redirects. `None` if that asks for nothing.
    pub fn new(
        allowed: Option<impl Iterator<Item = (IpAddr, u8)>>,
        no_dhcp: bool,
        no_ra: bool,
    ) -> Option<IpGuard> {
        let network = |(address, len): (IpAddr, u8)| {
            let bits = if address.is_ipv4() { 96 + u32::from(len) } else { len.into() };
            let mask = u128::MAX.checked_shl(128 - bits.min(128)).unwrap_or(0);
            (mask, ip_number(address) & mask)
        };
        let allowed = allowed.map(|nets| nets.map(network).collect());
        (allowed.is_some() || no_dhcp || no_ra).then_some(IpGuard { allowed, no_dhcp, no_ra })
    }

    /// Whether `frame` of `batch` may come in.
    ///
    /// # Errors
    /// It claims to be what the port is not.
    pub fn admits(&self, batch: &Batch, frame: &Frame) -> Result<(), DropReason> {
        // Without a whole Ethernet header it is too short for whatever comes next.
        let Some(mut fields) = Fields::find(frame.head()) else { return Ok(()) };
        let mut claimed = Some(fields.src);
        if fields.ethertype == IPV6 && (fields.protocol == ICMPV6 || fields.l4 == L4::Hidden) {
            let mut bytes = [0; MAX_HEADER];
            let len = batch.read(frame, 0, &mut bytes);
            let bytes = bytes.get(..len).unwrap_or_default();
            fields = Fields::find(bytes).unwrap_or(fields);
            if let (ICMPV6, L4::Ports(ADVERTISEMENT, ..)) = (fields.protocol, fields.l4) {
                claimed = advertised(bytes);
            }
        }
        let (protocol, l4) = (fields.protocol, fields.l4);
        let unseen = TAGS.contains(&fields.ethertype)
            || fields.ethertype == IPV6 && l4 == L4::Hidden && ![TCP, UDP].contains(&protocol);
        if self.no_ra {
            let routes = matches!(l4, L4::Ports(kind, ..) if OF_ROUTERS.contains(&kind));
            if unseen || protocol == ICMPV6 && routes {
                return Err(DropReason::RaGuard);
            }
        }
        if self.no_dhcp {
            let serves = match l4 {
                L4::Ports(source, ..) => SERVERS.contains(&source),
                l4 => l4 == L4::Hidden,
            };
            if unseen || protocol == UDP && serves {
                return Err(DropReason::DhcpGuard);
            }
        }
        let Some(allowed) = &self.allowed else { return Ok(()) };
        let may = |address: u128| {
            UNSPECIFIED.contains(&address)
                || address & LINK_LOCAL_MASK == LINK_LOCAL
                || allowed.iter().any(|(mask, net)| address & mask == *net)
        };
        let is = match fields.ethertype {
            // What is no ARP of Ethernet and IPv4 has no source here, which is no address of IPv4.
            ARP => fields.src != 0 && may(fields.src),
            IPV4 | IPV6 => !unseen && may(fields.src) && claimed.is_some_and(may),
            _ => !unseen,
        };
        is.then_some(()).ok_or(DropReason::IpGuard)
    }
}
