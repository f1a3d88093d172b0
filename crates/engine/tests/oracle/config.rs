//! How ports and switches are configured, as the model reads it: options as words.

use std::collections::BTreeMap;
use std::fmt;

use super::rules::{in_ranges, mac, nets, ranges, Guards, List};

/// Options as they are written.
pub type Options = BTreeMap<&'static str, String>;

/// What a port is joined to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joint {
    /// It is not there.
    Nothing,
    /// The switch of a host.
    Switch(usize),
    /// The switch of a host, as a tunnel to other hosts: from the first one to all, from others to the first.
    Tunnel(usize),
    /// The switch, as a tunnel of whose stations a control plane tells.
    Told,
    /// The other end of its wire.
    Wire(usize),
    /// Another switch, on which nobody else is: a place for copies.
    Aside,
    /// A router, of which it is a port.
    Router,
    /// The switch, as a port of the router.
    Gateway,
    /// A wire, as the interface of a group: the other end, and the members' ports.
    Interface(usize),
    /// The router, as the interface of a group.
    Shared,
    /// A member's port of the group.
    Member,
}

/// Addresses of the router at its port `n`.
pub fn router_station(n: usize) -> [u8; 6] {
    [2, 0xff, 0, 0, 0, n as u8]
}

pub fn router_four(n: usize) -> [u8; 4] {
    [10, 0, n as u8, 250]
}

/// How a port is configured.
#[derive(Clone, Debug)]
pub struct PortConfig {
    pub name: String,
    pub joint: Joint,
    pub options: Options,
    /// The offloads that its receiver takes over, as bits.
    pub accepts: u32,
    /// How the driver of the card behind it has set that up, if it is one.
    pub card: Option<Setup>,
}

/// How a driver has set its card up.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// It takes frames of more than 1,518 bytes.
    pub long: bool,
    /// It takes tags out of frames, and tells them beside.
    pub strips: bool,
    /// It takes only its own address and broadcasts.
    pub filters: bool,
}

impl Setup {
    /// The frame as the driver of station `own` gets it, which knows its tag again: of a wire's shortest
    /// length (802.3 §3.2.8). `either`: the name for one for which there are two.
    pub fn gets(
        self,
        own: [u8; 6],
        frame: &[u8],
        either: impl FnOnce() -> bool,
    ) -> Result<Vec<u8>, &'static str> {
        let long = frame.len() > 1518 && !self.long;
        let other = self.filters && frame[..6] != own && frame[..6] != [0xff; 6];
        match (long, other) {
            (true, true) if either() => return Err("filtered"),
            (true, _) => return Err("buffer_too_small"),
            (false, true) => return Err("filtered"),
            (false, false) => {}
        }
        let stripped = self.strips && frame.len() >= 18 && frame[12..14] == [0x81, 0];
        let mut frame = frame.to_vec();
        frame.resize(frame.len().max(if stripped { 64 } else { 60 }), 0);
        Ok(frame)
    }
}

/// A switch with its ports, and what lies beside it.
#[derive(Clone, Debug)]
pub struct Config {
    pub switch: Options,
    pub ports: Vec<PortConfig>,
    pub lists: Vec<List>,
    /// Stations of which a control plane tells, and whether for good.
    pub told: Vec<([u8; 6], bool)>,
}

impl Config {
    /// Whether port `n` is there.
    pub fn has(&self, n: usize) -> bool {
        self.ports[n].joint != Joint::Nothing
    }

    /// An option of the switch of `host`; only the first host's has any.
    pub fn of_switch(&self, host: usize, key: &str) -> Option<&str> {
        self.switch.get(key).filter(|_| host == 0).map(String::as_str)
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "switch {:?}", self.switch)?;
        for (n, port) in self.ports.iter().enumerate().filter(|(n, _)| self.has(*n)) {
            writeln!(
                f,
                "port {n} {} {:?} {:?} accepts {:#x} {:?}",
                port.name, port.joint, port.options, port.accepts, port.card
            )?;
        }
        self.lists.iter().try_for_each(|it| writeln!(f, "list {} {:?} else {}", it.name, it.rules, it.permit))
    }
}

impl PortConfig {
    pub fn get(&self, key: &str) -> Option<&str> {
        self.options.get(key).map(String::as_str)
    }

    pub fn is(&self, key: &str, value: &str) -> bool {
        self.get(key) == Some(value)
    }

    pub fn number(&self, key: &str) -> Option<u64> {
        let text = self.get(key)?;
        let (digits, unit) = match text.chars().last()? {
            'k' => (&text[..text.len() - 1], 1000),
            'M' => (&text[..text.len() - 1], 1_000_000),
            'G' => (&text[..text.len() - 1], 1_000_000_000),
            _ => (text, 1),
        };
        Some(digits.parse::<u64>().unwrap() * unit)
    }

    pub fn macs(&self, key: &str) -> Vec<[u8; 6]> {
        self.get(key).map_or(Vec::new(), |list| list.split('+').filter(|it| *it != "vrrp").map(mac).collect())
    }

    /// The host on whose switch it is.
    pub fn host(&self) -> Option<usize> {
        match self.joint {
            Joint::Switch(host) | Joint::Tunnel(host) => Some(host),
            Joint::Gateway | Joint::Told => Some(0),
            _ => None,
        }
    }

    /// Whether it is in any VLAN.
    pub fn has_vlans(&self) -> bool {
        self.get("vlan").or(self.get("trunk")).is_some()
    }

    /// The VLAN of frames without a tag; 0: none.
    pub fn own(&self) -> u16 {
        self.get("vlan").or(self.get("native")).map_or(0, |vlan| vlan.parse().unwrap())
    }

    pub fn carries(&self, vlan: u16) -> bool {
        match vlan {
            0 => !self.has_vlans(),
            _ => vlan == self.own() || self.get("trunk").is_some_and(|set| in_ranges(vlan, &ranges(set))),
        }
    }

    /// The number of its tags.
    pub fn tag(&self) -> u16 {
        if self.is("vlan-proto", "802.1ad") {
            0x88a8
        } else {
            0x8100
        }
    }

    pub fn guards(&self) -> Guards {
        Guards {
            allowed: self.get("allow-ip").map(nets),
            dhcp: self.is("dhcp-guard", "on"),
            ra: self.is("ra-guard", "on"),
        }
    }

    /// Addresses that are its alone, and stay.
    pub fn pinned(&self) -> Vec<[u8; 6]> {
        let guards = self.get("mac-guard").map_or(self.get("mac").is_some(), |guard| guard != "off");
        if let Joint::Gateway = self.joint {
            return vec![router_station(self.name[1..].parse().unwrap())];
        }
        let mut all = self.macs("fdb");
        all.extend(self.macs("mac").into_iter().filter(|_| guards));
        all
    }

    pub fn down(&self) -> bool {
        self.is("link", "down")
    }
}
