//! The IP guard of a port: which addresses of IP its frames may claim, and whether it may answer as a DHCP
//! server or speak as a router.
//!
//! A frame claims an address as the source of IPv4 or IPv6, as the sender of ARP (RFC 826), and as the target
//! of a neighbour advertisement (RFC 4861 §4.4). The unspecified address claims nothing in a packet: it is
//! that of who has none yet (RFC 2131 §4.1). But who asks for an address from there makes its owner give it
//! up, so a probe by ARP (RFC 5227 §2.1.1) and a solicitation (RFC 4862 §5.4.3) claim their target.
//! Link-local addresses of IPv6 are claimed by nobody: each interface makes its own.
//!
//! All is found in the frame's first [`MAX_HEADER`](crate::packet::MAX_HEADER) bytes, behind any tags, SNAP
//! and extension headers (`packet::Fields`). A frame whose headers cannot be followed there may be anything,
//! and is dropped (RFC 7113 §2, RFC 7112 §5); LLC that hides no EtherType, as of the spanning tree protocols,
//! passes.

use std::net::IpAddr;

use crate::packet::{
    ip_number, Batch, Fields, Frame, ADVERTISEMENT, ARP, ICMPV6, IPV4, IPV6, L4, SOLICITATION, UDP,
    UNSPECIFIED,
};
use crate::port::DropReason;

/// Router advertisement and redirect (RFC 4861 §4.2, §4.5).
const OF_ROUTERS: [u16; 2] = [134, 137];
/// Ports of servers of DHCP (RFC 2131 §4.1) and DHCPv6 (RFC 9915 §7.2), and of their clients: what is sent to
/// these is an answer, whatever port it comes from.
const SERVERS: [u16; 2] = [67, 547];
const CLIENTS: [u16; 2] = [68, 546];
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
    /// The guard of a port whose frames may claim addresses of these networks (an address and how many bits
    /// of it name the network; `None`: any), that answers no DHCP requests, and sends no router
    /// advertisements and redirects. `None` if that asks for nothing.
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
        let Some(fields) = Fields::of(batch, frame) else { return Ok(()) };
        if self.no_ra && fields.may_be(ICMPV6, |kind, _| OF_ROUTERS.contains(&kind)) {
            return Err(DropReason::RaGuard);
        }
        let serves = |from, to| SERVERS.contains(&from) || CLIENTS.contains(&to);
        if self.no_dhcp && fields.may_be(UDP, serves) {
            return Err(DropReason::DhcpGuard);
        }
        let Some(allowed) = &self.allowed else { return Ok(()) };
        let may = |address: u128| {
            UNSPECIFIED.contains(&address)
                || address & LINK_LOCAL_MASK == LINK_LOCAL
                || allowed.iter().any(|(mask, net)| address & mask == *net)
        };
        let is_nobody = UNSPECIFIED.contains(&fields.src);
        let claims =
            fields.may_be(ICMPV6, |kind, _| kind == ADVERTISEMENT || kind == SOLICITATION && is_nobody);
        let is = match fields.ethertype {
            // What is no ARP of Ethernet and IPv4 has no source here, which is no address of IPv4.
            ARP => fields.src != 0 && may(if is_nobody { fields.dst } else { fields.src }),
            IPV4 | IPV6 => may(fields.src) && (!claims || fields.target.is_some_and(may)),
            _ => true,
        };
        (is && fields.l4 != L4::Unknown).then_some(()).ok_or(DropReason::IpGuard)
    }
}
