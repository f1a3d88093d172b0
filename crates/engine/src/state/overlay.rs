//! A switch that spans hosts: what a control plane tells of stations on others, and is told of those here.

use std::net::IpAddr;
use std::sync::Arc;

use super::cores::CoreGraph;
use super::engine::Engine;
use super::kinds::VXLAN;
use super::spec::{Joint, PortSpec};
use crate::host::vxlan::{address, vteps, Vteps};
use crate::port::PortId;
use crate::switch::{Entry, Kind};

/// A station behind a port of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalMac {
    /// Its address.
    pub mac: [u8; 6],
    /// It is configured, and does not move.
    pub fixed: bool,
    /// The port behind which it is.
    pub port: PortId,
}

/// The way of a control plane to a switch with a tunnel. It outlives neither: where the tunnel has gone
/// nothing is done.
#[derive(Clone)]
pub struct Overlay {
    graph: Arc<CoreGraph>,
    switch: String,
    port: PortId,
    /// The VLAN of the tunnel's frames on the switch; 0: none.
    vlan: u64,
    /// The address of this host's endpoint.
    pub local: IpAddr,
    vteps: Arc<Vteps>,
}

impl PortSpec {
    /// Whether it is a tunnel on `switch` of which a control plane tells.
    pub(super) fn is_told_on(&self, switch: &str) -> bool {
        self.kind == VXLAN && self.peers.is_none() && self.joint() == Joint::Switch(switch)
    }
}

impl Engine {
    /// The tunnel of `switch` of whose endpoints a control plane tells, if it runs.
    pub fn overlay(&self, switch: &str) -> Option<Overlay> {
        let spec = self.everything().ports.into_iter().find(|port| port.is_told_on(switch))?;
        let at = address(&spec.location).ok()?;
        Some(Overlay {
            graph: Arc::clone(self.graph()),
            switch: switch.to_owned(),
            port: self.port(&spec.name).ok()?.id,
            vlan: spec.vlan.map_or(0, |vlan| u64::from(vlan.get())) << 48,
            local: at.ip(),
            vteps: vteps(at, spec.vni?.get())?,
        })
    }
}

impl Overlay {
    /// What tells the tunnel, in its VLAN, from another one in its place.
    pub fn id(&self) -> (usize, u64) {
        (Arc::as_ptr(&self.vteps) as usize, self.vlan)
    }

    /// Nothing is told any more, and nothing holds that was.
    pub fn forget(&self) {
        self.vteps.forget();
        self.graph.table(&self.switch, |switch, seconds| switch.forget(self.port, false, seconds));
    }

    /// The endpoints to which floods go; false if there are too many.
    pub fn flood(&self, to: &[IpAddr]) -> bool {
        self.vteps.flood(to)
    }

    /// The station `mac` is behind the endpoint `at`, for good if it is `sticky`. False: there is no room, or
    /// it is a configured one of this host.
    pub fn put(&self, mac: [u8; 6], at: IpAddr, sticky: bool) -> bool {
        let mac = number(mac);
        let (key, port) = (mac | self.vlan, self.port);
        let put = self.graph.table(&self.switch, |switch, seconds| switch.tell(key, port, sticky, seconds));
        put == Some(true) && self.vteps.put(mac, at)
    }

    /// The station `mac` is behind no endpoint any more.
    pub fn take(&self, mac: [u8; 6]) {
        let mac = number(mac);
        self.vteps.take(mac);
        self.graph.table(&self.switch, |switch, _| switch.table.forget_one(mac | self.vlan, self.port));
    }

    /// Is another number when the switch has learned, moved or forgotten a station, or one has another
    /// address.
    pub fn changes(&self) -> u32 {
        let changes = self.graph.table(&self.switch, |switch, _| switch.table.changes()).unwrap_or(0);
        changes.wrapping_add(self.vteps.news())
    }

    /// The address `ip` is that of this station elsewhere, or of none.
    pub fn resolve(&self, ip: IpAddr, mac: Option<[u8; 6]>) {
        self.vteps.resolve(ip, mac.map(number));
    }

    /// Addresses of the stations that are here, and whose each is.
    pub fn addresses(&self, is_here: impl Fn([u8; 6]) -> bool) -> Vec<(IpAddr, [u8; 6])> {
        let all = self.vteps.addresses(|mac| is_here(bytes(mac)));
        all.into_iter().map(|(ip, mac)| (ip, bytes(mac))).collect()
    }

    /// The stations behind the switch's other ports.
    pub fn local_macs(&self) -> Vec<LocalMac> {
        let entries = self.graph.table(&self.switch, |switch, _| switch.table.entries());
        let here = entries
            .into_iter()
            .flatten()
            .filter(|entry| entry.port != self.port && u64::from(entry.vlan) << 48 == self.vlan);
        let local = |entry: Entry| {
            let (mac, fixed) = (bytes(entry.mac), entry.kind != Kind::Learned);
            LocalMac { mac, fixed, port: entry.port }
        };
        here.map(local).collect()
    }
}

fn bytes(number: u64) -> [u8; 6] {
    let [a, b, c, d, e, f, ..] = number.to_le_bytes();
    [a, b, c, d, e, f]
}

/// An address as switches have it: its first byte is the lowest.
fn number([a, b, c, d, e, f]: [u8; 6]) -> u64 {
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}
