//! A switch's shadow: what a routing daemon sees of it in its network namespace.
//!
//! Theory of operation. A routing daemon that speaks EVPN reads and writes the forwarding tables of the
//! kernel's bridges. So its namespace gets a bridge with two ports: a VXLAN device, whose table is what the
//! routing daemon says of other hosts, and one end of a veth pair, behind which the stations of our switch
//! are entered. No frame ever passes. All of it stays when the daemon ends: the routing daemon goes on
//! announcing what is behind us, and a successor finds what it said.
//!
//! Learning is off, and nothing ages: whoever made an entry removes it. A successor leaves devices alone that
//! are as they should be: after each change of one zebra reads the bridge's table anew, and takes a station
//! that has moved here for one that is elsewhere.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use libc::{
    IFLA_AF_SPEC, IFLA_IFNAME, IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_LINKINFO, IFLA_MASTER, IFLA_PROTINFO,
    NDA_DST, NDA_LLADDR, NTF_MASTER,
};

use super::interface::Interface;
use super::netlink::{self, kind, Builder};
use super::netns::{answer, ask, inside, routes, said};
use crate::sandbox::open::broker::{have_done, Request};
pub use crate::sandbox::open::broker::{Entries, Shadow};
use crate::util::slice::behind;

/// Attributes of links (linux/if_link.h) that `libc` does not have.
const IFLA_BR_AGEING_TIME: u16 = 4;
const IFLA_BRPORT_LEARNING: u16 = 8;
const IFLA_BRPORT_NEIGH_SUPPRESS: u16 = 32;
const IFLA_VXLAN_ID: u16 = 1;
const IFLA_VXLAN_LOCAL: u16 = 4;
const IFLA_VXLAN_LEARNING: u16 = 7;
const IFLA_VXLAN_PORT: u16 = 15;
const IFLA_VXLAN_LOCAL6: u16 = 17;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const VETH_INFO_PEER: u16 = 1;
/// These are made of others.
const NESTED: u16 = 0x8000;
/// States of neighbours (linux/neighbour.h): one that was heard, and one that is there for good.
const REACHABLE: [u8; 2] = 2u16.to_ne_bytes();
const FOR_GOOD: [u8; 2] = 0x40u16.to_ne_bytes();
/// The state of neighbours that the kernel leaves where there are many (arp(7), `gc_thresh2`).
const PERMANENT: [u8; 2] = 0x80u16.to_ne_bytes();
/// Hundredths of a second for which an entry is kept: eleven days, which begin anew with each change.
const AGEING: u32 = 100_000_000;

impl Shadow {
    /// The names of its bridge, of its VXLAN device, and of the port behind which our stations are with the
    /// other end of that.
    #[must_use]
    pub fn names(&self) -> [String; 4] {
        ["scbr", "scvx", "scfd", "scfe"].map(|what| format!("{what}{}", self.vni))
    }

    /// Makes it, or takes the one that is there.
    ///
    /// # Errors
    /// There is no such namespace, or the system refuses it.
    pub fn make(&self) -> io::Result<()> {
        have_done(&Request::Shadow(self.clone()), &[], || self.make_here())
    }

    /// Removes it.
    ///
    /// # Errors
    /// As of [`Shadow::make`].
    pub fn remove(&self) -> io::Result<()> {
        have_done(&Request::ShadowOut(self.clone()), &[], || self.remove_here())
    }

    /// The work itself, for the broker and for a process without one.
    pub(crate) fn make_here(&self) -> io::Result<()> {
        let [bridge, vxlan, port, end] = self.names();
        inside(&self.netns, || {
            let fd = routes(0)?;
            if self.is_made(&fd) {
                return Ok(());
            }
            make(&fd, &bridge, "bridge", &[(IFLA_BR_AGEING_TIME, AGEING.to_ne_bytes().to_vec())])?;
            let peer = [vec![0; 16], attribute(IFLA_IFNAME, end.as_bytes())].concat();
            // What is there stays as it is.
            let is_there = |e: &io::Error| matches!(e.raw_os_error(), Some(libc::EEXIST | libc::EOPNOTSUPP));
            make(&fd, &port, "veth", &[(VETH_INFO_PEER | NESTED, peer)]).or_else(|e| {
                if is_there(&e) {
                    Ok(())
                } else {
                    Err(e)
                }
            })?;
            let local = self.address();
            let id = (IFLA_VXLAN_ID, self.vni.to_ne_bytes().to_vec());
            let udp = (IFLA_VXLAN_PORT, 4789u16.to_be_bytes().to_vec());
            let all = [id, local, (IFLA_VXLAN_LEARNING, vec![0]), udp];
            // The port of one that is there cannot even be said again.
            make(&fd, &vxlan, "vxlan", &all).or_else(|e| {
                if is_there(&e) {
                    make(&fd, &vxlan, "vxlan", &all[..3])
                } else {
                    Err(e)
                }
            })?;
            let master = Interface::new(&bridge)?.index()?.to_ne_bytes();
            for name in [&bridge, &end, &port, &vxlan] {
                let index = Interface::new(name)?.index()?;
                // Without IPv6 it has no address that would be announced.
                let _ = ask(&fd, &set(index, 0).with(IFLA_AF_SPEC | NESTED, &no_addresses()).end());
                if name == &port || name == &vxlan {
                    ask(&fd, &set(index, 0).with(IFLA_MASTER, &master).end())?;
                    let options =
                        [attribute(IFLA_BRPORT_LEARNING, &[0]), attribute(IFLA_BRPORT_NEIGH_SUPPRESS, &[1])];
                    let family = u8::try_from(libc::AF_BRIDGE).unwrap_or(0);
                    ask(&fd, &set(index, family).with(IFLA_PROTINFO | NESTED, &options.concat()).end())?;
                }
                Interface::new(name)?.bring_up_here()?;
            }
            Ok(())
        })
    }

    /// Its endpoint's address, as an attribute of the VXLAN device.
    fn address(&self) -> (u16, Vec<u8>) {
        match self.local {
            IpAddr::V4(it) => (IFLA_VXLAN_LOCAL, it.octets().to_vec()),
            IpAddr::V6(it) => (IFLA_VXLAN_LOCAL6, it.octets().to_vec()),
        }
    }

    /// Whether all of it is as [`Shadow::make_here`] leaves it, which brings the VXLAN device up at its end.
    fn is_made(&self, fd: &OwnedFd) -> bool {
        let numbers = self.names().map(|name| Interface::new(&name).and_then(|it| it.index()));
        let [Ok(bridge), Ok(vxlan), Ok(_), Ok(_)] = numbers else { return false };
        let fixed = [&[0; 4][..], &vxlan.to_ne_bytes(), &[0; 8]].concat();
        let message = Builder::new(kind::GETLINK, netlink::REQUEST, 1, &fixed).end();
        let answer = rustix::net::send(fd, &message, rustix::net::SendFlags::empty())
            .map_err(io::Error::from)
            .and_then(|_| answer(fd));
        let answer = answer.unwrap_or_default();
        let Some(Ok(link)) = netlink::messages(&answer).next() else { return false };
        let is_up = netlink::word(link.body, 8).is_ok_and(|flags| flags & 1 != 0);
        let find = |all, kind| netlink::attributes(all).flatten().find(|it| it.0 == kind).map(|it| it.1);
        let all = behind(link.body, 16);
        let data = find(all, IFLA_LINKINFO).and_then(|info| find(info, IFLA_INFO_DATA));
        let (kind, local) = self.address();
        is_up
            && find(all, IFLA_MASTER) == Some(&bridge.to_ne_bytes())
            && data.and_then(|data| find(data, kind)) == Some(&local)
    }

    /// The work itself, for the broker and for a process without one.
    pub(crate) fn remove_here(&self) -> io::Result<()> {
        let [bridge, vxlan, port, _] = self.names();
        inside(&self.netns, || {
            let fd = routes(0)?;
            for name in [vxlan, port, bridge] {
                let Ok(index) = Interface::new(&name)?.index() else { continue };
                let fixed = [&[0; 4][..], &index.to_ne_bytes(), &[0; 8]].concat();
                let flags = netlink::REQUEST | netlink::ACK;
                ask(&fd, &Builder::new(kind::DELLINK, flags, 1, &fixed).end())?;
            }
            Ok(())
        })
    }
}

impl Entries {
    /// Enters stations behind us, or addresses of these, into the shadow's tables, or takes them out.
    ///
    /// # Errors
    /// There is no such shadow, or the system refuses it.
    pub fn write(self) -> io::Result<()> {
        let request = Request::Entries(self);
        have_done(&request, &[], || match &request {
            Request::Entries(entries) => entries.write_here(),
            _ => Ok(()),
        })
    }

    /// The work itself, for the broker and for a process without one.
    pub(crate) fn write_here(&self) -> io::Result<()> {
        let [bridge, _, port, _] = self.shadow.names();
        // Neighbours are those of the bridge itself.
        let at = if self.with_ip { bridge } else { port };
        inside(&self.shadow.netns, || {
            let (fd, index) = (routes(0)?, Interface::new(&at)?.index()?.to_ne_bytes());
            let (state, whose) = match self {
                Entries { with_ip: true, .. } => (PERMANENT, 0),
                Entries { fixed: true, .. } => (FOR_GOOD, NTF_MASTER),
                _ => (REACHABLE, NTF_MASTER),
            };
            let (what, how) = match self.there {
                true => (kind::NEWNEIGH, netlink::CREATE | netlink::REPLACE),
                false => (kind::DELNEIGH, 0),
            };
            let flags = netlink::REQUEST | netlink::ACK | how;
            let (mut all, mut count) = (Vec::new(), 0);
            for (mac, ip) in self.all() {
                let (family, ip) = match ip {
                    None => (libc::AF_BRIDGE, vec![]),
                    Some(IpAddr::V4(it)) => (libc::AF_INET, it.octets().to_vec()),
                    Some(IpAddr::V6(it)) => (libc::AF_INET6, it.octets().to_vec()),
                };
                let family = u8::try_from(family).unwrap_or(0);
                let fixed = [&[family, 0, 0, 0][..], &index, &state, &[whose, 0]].concat();
                count += 1;
                let message = Builder::new(what, flags, count, &fixed).with(NDA_LLADDR, &mac);
                all.extend(if ip.is_empty() { message } else { message.with(NDA_DST, &ip) }.end());
            }
            rustix::net::send(&fd, &all, rustix::net::SendFlags::empty())?;
            // One that is not there any more, or behind another port by now, is not ours to take out.
            let answers: Vec<_> = (0..count).map(|_| said(&fd)).collect();
            answers.into_iter().try_for_each(|it| it.or_else(|e| if self.there { Err(e) } else { Ok(()) }))
        })
    }
}

/// Makes a link of this kind, or has the one that is there be so.
fn make(fd: &OwnedFd, name: &str, what: &str, data: &[(u16, Vec<u8>)]) -> io::Result<()> {
    let data: Vec<u8> = data.iter().flat_map(|(kind, value)| attribute(*kind, value)).collect();
    let info =
        [attribute(IFLA_INFO_KIND, what.as_bytes()), attribute(IFLA_INFO_DATA | NESTED, &data)].concat();
    let flags = netlink::REQUEST | netlink::ACK | netlink::CREATE;
    let link = Builder::new(kind::NEWLINK, flags, 1, &[0; 16]);
    let name = [name.as_bytes(), &[0]].concat();
    ask(fd, &link.with(IFLA_IFNAME, &name).with(IFLA_LINKINFO | NESTED, &info).end())
}

/// A change of the link with number `index`.
fn set(index: i32, family: u8) -> Builder {
    let fixed = [&[family, 0, 0, 0][..], &index.to_ne_bytes(), &[0; 8]].concat();
    let what = if family == 0 { kind::NEWLINK } else { kind::SETLINK };
    Builder::new(what, netlink::REQUEST | netlink::ACK, 1, &fixed)
}

fn no_addresses() -> Vec<u8> {
    let mode = attribute(IFLA_INET6_ADDR_GEN_MODE, &[1]);
    attribute(u16::try_from(libc::AF_INET6).unwrap_or(0) | NESTED, &mode)
}

/// An attribute by itself, to be part of another.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let len = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    let mut all = [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
    all.resize(all.len().next_multiple_of(4), 0);
    all
}
