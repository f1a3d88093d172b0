//! VXLAN (RFC 7348): a tunnel to other hosts as a port.
//!
//! Theory of operation. A frame for this port leaves in a UDP datagram, behind a header of 8 bytes with the
//! port's VNI, for the endpoint (VTEP) behind which its destination is, or for all of them ([`vteps`]). What
//! endpoints send comes in at the one socket that ports with other VNIs share ([`socket`]). Sockets are the
//! kernel's, so routes, neighbours and firewalls of the host hold, and no privilege is needed. With
//! UDP_SEGMENT and UDP_GRO a batch passes the kernel's stack as few large datagrams.
//!
//! Frames ask for no offload here: the graph makes plain ones of them first. Outer checksums are the kernel's
//! to make. RFC 7348 §4.1 would have none with IPv4, and lets receivers take any that is right; the kernel
//! cuts no messages without.
//!
//! Datagrams are not fragmented (§4.3): the port does not start where the way to a peer is too narrow for its
//! MTU, and what turns out to be too long later is dropped as `too_long`.
//!
//! Invariant of the `unsafe` here: each socket option gets, or fills in, an int, which is what it is.

mod ecn;
mod egress;
mod gro;
mod ingress;
pub(crate) mod socket;
mod vteps;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use libc::c_int;
use rustix::net::connect;

use super::interface::{option, set_option};
use super::watcher::pairs;
use crate::graph::{Pairs, Scheduler};
use crate::port::{Attachment, AttachmentStatus, Peer, Port};
use egress::VxlanEgress;
use ingress::VxlanIngress;
pub use socket::{age, vteps};
use socket::{open, Underlay};
pub use vteps::{Vteps, MAX_VTEPS};

/// The UDP port of RFC 7348.
const PORT: u16 = 4789;
/// Sockets that send, each with a source port of its own.
const SOURCES: usize = 8;
/// What a datagram has beside the payload of its frame: headers of IPv4 or IPv6, UDP, VXLAN and Ethernet.
const OVERHEAD: [u32; 2] = [20 + 8 + 8 + 14, 40 + 8 + 8 + 14];

/// A VXLAN port to be.
#[derive(Clone, Debug)]
pub struct VxlanConfig {
    /// The address of this endpoint.
    pub at: SocketAddr,
    /// The network identifier.
    pub vni: u32,
    /// The other endpoints; `None`: a control plane tells of them.
    pub peers: Option<Vec<IpAddr>>,
    /// TTL, or hop limit, of datagrams.
    pub ttl: u8,
    /// Their DSCP.
    pub dscp: u8,
}

/// The address that `text` says: one of IPv4, one of IPv6 in brackets, each with a port if it is not 4789.
///
/// # Errors
/// It says none.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let alone = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let whole = text.parse().or_else(|_| alone.parse().map(|ip| SocketAddr::new(ip, PORT)));
    whole.ok().filter(|at| !at.ip().is_unspecified() && !at.ip().is_multicast() && at.port() != 0).ok_or_else(|| {
        format!("{text:?} is no address of this host; allowed: 192.0.2.1, [2001:db8::1], each with :PORT if that is not {PORT}")
    })
}

/// A running VXLAN port.
pub struct Vxlan {
    config: VxlanConfig,
    port: Arc<Port>,
    underlay: Arc<Underlay>,
    vteps: Arc<Vteps>,
    queues: Pairs<VxlanIngress, VxlanEgress>,
}

impl Vxlan {
    /// Opens the sockets and gives the queues to `port` and `scheduler`.
    ///
    /// # Errors
    /// What the system refused, or what is too narrow.
    pub fn start(
        config: VxlanConfig,
        port: &Arc<Port>,
        scheduler: &Arc<dyn Scheduler>,
    ) -> Result<Vxlan, String> {
        let (at, vni) = (config.at, config.vni);
        let failed = |step: &'static str| {
            move |e: io::Error| {
                let hint = match e.raw_os_error() {
                    Some(libc::EADDRNOTAVAIL) => "; `ip address` lists the addresses of this host",
                    Some(libc::EADDRINUSE) => "; another program has this port, or the kernel's own VXLAN device: `ss -ulpn` says which",
                    _ => "",
                };
                format!("vxlan {at}: {step}: {e}{hint}")
            }
        };
        check_mtu(&config, port.mtu())?;
        let vteps = Arc::new(Vteps::new(config.peers.as_deref()));
        let sources = (0..SOURCES).map(|_| source(&config)).collect::<io::Result<Vec<_>>>();
        let sources = sources.map_err(failed("cannot open a socket to send"))?;
        let underlay = Underlay::join(at, vni, &vteps).map_err(failed("cannot listen"))?;
        let ingress = VxlanIngress::new(Arc::clone(&underlay), Arc::clone(&vteps), vni);
        let egress = VxlanEgress::new(sources, Arc::clone(&vteps), at.port(), vni);
        if vteps.told {
            port.set_told();
        }
        let mut queues = Pairs::default();
        queues.receive(port, egress);
        queues.send(port, scheduler, ingress);
        Ok(Vxlan { config, port: Arc::clone(port), underlay, vteps, queues })
    }
}

/// A socket to send by.
fn source(config: &VxlanConfig) -> io::Result<OwnedFd> {
    let fd = open(SocketAddr::new(config.at.ip(), 0))?;
    let (ttl, class) = (c_int::from(config.ttl), c_int::from(config.dscp) << 2);
    let options = match config.at {
        SocketAddr::V4(_) => [
            (libc::IPPROTO_IP, libc::IP_TTL, ttl),
            (libc::IPPROTO_IP, libc::IP_TOS, class),
            (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO),
        ],
        SocketAddr::V6(_) => [
            (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, ttl),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, class),
            (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO),
        ],
    };
    for (level, name, value) in options {
        // SAFETY: these options take an int.
        unsafe { set_option(&fd, level, name, &value) }?;
    }
    Ok(fd)
}

/// Whether frames of this MTU fit the way to each peer.
fn check_mtu(config: &VxlanConfig, mtu: u32) -> Result<(), String> {
    let beside = OVERHEAD[usize::from(config.at.is_ipv6())];
    for peer in config.peers.iter().flatten() {
        if peer.is_ipv4() != config.at.is_ipv4() {
            return Err(format!(
                "peers: {peer} and {} are not of one family; allowed: addresses of one",
                config.at.ip()
            ));
        }
        // Without a way it is refused when frames go there, and not now: the way may come later.
        let Ok(carries) = way(config, *peer) else { continue };
        if mtu + beside > carries {
            let fits = carries.saturating_sub(beside);
            return Err(format!(
                "mtu: frames with {mtu} bytes take {} on the way to {peer}, which carries {carries}; allowed: mtu={fits} here and at the \
                 other ports of the switch, or an MTU of {} between the hosts (ip link set … mtu …)",
                mtu + beside,
                mtu + beside
            ));
        }
    }
    Ok(())
}

/// The MTU of the way to `peer`.
fn way(config: &VxlanConfig, peer: IpAddr) -> io::Result<u32> {
    let fd = open(SocketAddr::new(config.at.ip(), 0))?;
    connect(&fd, &SocketAddr::new(peer, config.at.port()))?;
    let mut mtu: c_int = 0;
    let (level, name) = match peer {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    // SAFETY: these options fill in an int.
    unsafe { option(&fd, level, name, &mut mtu) }?;
    u32::try_from(mtu).map_err(|_| io::ErrorKind::InvalidData.into())
}

impl Attachment for Vxlan {
    fn status(&self) -> AttachmentStatus {
        let (vteps, stations) = self.vteps.counts();
        let whose = if self.vteps.told { ", told by a control plane" } else { "" };
        AttachmentStatus {
            peer: if vteps > 0 { Peer::Running } else { Peer::Waiting },
            detail: format!(
                "{}, VNI {}: {vteps} endpoints{whose}, {stations} addresses behind them",
                self.config.at, self.config.vni
            ),
            features: vec!["gso".to_owned(), "gro".to_owned()],
            queues: pairs("vxlan", 1, [0; 2], &self.port),
            ..AttachmentStatus::default()
        }
    }

    /// Nobody at the other end sees a carrier; frames are dropped both ways.
    fn set_link(&mut self, _: bool) -> Result<(), String> {
        Ok(())
    }

    fn set_mtu(&mut self, mtu: u32) -> Result<(), String> {
        check_mtu(&self.config, mtu)
    }
}

impl Drop for Vxlan {
    fn drop(&mut self) {
        self.queues.take_back();
        self.underlay.leave(self.config.vni);
    }
}

#[cfg(test)]
mod tests;
