//! What is configured for a port, as our switch and as a Linux bridge are told.

use super::lists::List;
use super::random::Random;
use std::collections::BTreeMap;

/// VLANs that ports carry.
pub const VLANS: [u16; 5] = [1, 10, 20, 30, 4094];

/// By which number tags are known: all ports of a Linux bridge have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    #[default]
    Customer,
    Service,
}

impl Protocol {
    pub fn other(self) -> Protocol {
        match self {
            Protocol::Customer => Protocol::Service,
            Protocol::Service => Protocol::Customer,
        }
    }

    /// What a tag begins with.
    pub fn number(self) -> [u8; 2] {
        match self {
            Protocol::Customer => [0x81, 0x00],
            Protocol::Service => [0x88, 0xa8],
        }
    }

    pub fn tag(self, tci: u16) -> Vec<u8> {
        [self.number(), tci.to_be_bytes()].concat()
    }
}

/// What is configured for a port.
#[derive(Clone, Debug, Default)]
pub struct Config {
    pub access: Option<u16>,
    pub trunk: Vec<u16>,
    pub native: Option<u16>,
    pub isolated: bool,
    pub protocol: Protocol,
    /// The lists of what comes in and of what goes out.
    pub lists: [Option<List>; 2],
}

impl Config {
    /// An access port.
    pub fn access(vlan: u16) -> Config {
        Config { access: Some(vlan), ..Config::default() }
    }

    /// A trunk without a VLAN of its own.
    pub fn trunk(vlans: &[u16]) -> Config {
        Config { trunk: vlans.to_vec(), ..Config::default() }
    }

    /// With lists, if they are asked for.
    pub fn random(random: &mut Random, lists: bool) -> Config {
        let isolated = random.percent(50);
        let lists = [(); 2].map(|()| (lists && random.percent(40)).then(|| List::random(random)));
        if random.percent(40) {
            return Config { isolated, lists, ..Config::access(random.one(&VLANS)) };
        }
        let mut trunk: Vec<u16> = VLANS.into_iter().filter(|_| random.percent(50)).collect();
        if trunk.is_empty() {
            trunk.push(random.one(&VLANS));
        }
        let native = random.percent(50).then(|| random.one(&VLANS));
        Config { native, isolated, lists, ..Config::trunk(&trunk) }
    }

    /// The VLAN of its frames without a tag.
    pub fn own(&self) -> Option<u16> {
        self.access.or(self.native)
    }

    /// Those that it carries, with whether they have a tag there.
    pub fn vlans(&self) -> BTreeMap<u16, bool> {
        let tagged = self.trunk.iter().map(|vlan| (*vlan, true));
        tagged.chain(self.own().map(|vlan| (vlan, false))).collect()
    }

    /// What the daemon's file says of port `at`, and then its lists.
    pub fn ours(&self, at: usize) -> String {
        let mut text = format!("isolated = {:?}\n", if self.isolated { "on" } else { "off" });
        // Refused where a port is in no VLAN.
        if !self.vlans().is_empty() {
            let protocol = if self.protocol == Protocol::Service { "802.1ad" } else { "802.1q" };
            text += &format!("vlan-proto = {protocol:?}\n");
        }
        for (key, vlan) in [("vlan", self.access), ("native", self.native)] {
            text += &vlan.map_or_else(String::new, |vlan| format!("{key} = {vlan}\n"));
        }
        if !self.trunk.is_empty() {
            let trunk: Vec<String> = self.trunk.iter().map(u16::to_string).collect();
            text += &format!("trunk = {:?}\n", trunk.join("+"));
        }
        let mut lists = String::new();
        for (side, list) in self.lists.iter().enumerate() {
            let Some(list) = list else { continue };
            let name = list_name(at, side);
            text += &format!("{} = {name:?}\n", ["acl-in", "acl-out"][side]);
            lists += &list.ours(&name);
        }
        text + &lists
    }
}

/// The name of the list of port `at` for what comes in (0) or goes out (1).
pub fn list_name(at: usize, side: usize) -> String {
    format!("{}{at}", ["in", "out"][side])
}

/// What `bridge` is told, so that port `at`, which was configured as `old`, is as `new`. All VLANs go first,
/// and with them what was learned in them.
pub fn bridge_commands(at: usize, old: &Config, new: &Config) -> String {
    let mut lines: Vec<String> =
        old.vlans().keys().map(|vlan| format!("vlan del dev p{at} vid {vlan}\n")).collect();
    for (vlan, tagged) in new.vlans() {
        let form = if tagged { "" } else { " pvid untagged" };
        lines.push(format!("vlan add dev p{at} vid {vlan}{form}\n"));
    }
    let isolated = if new.isolated { "on" } else { "off" };
    lines.push(format!("link set dev p{at} isolated {isolated}\n"));
    lines.concat()
}

/// The rules of nftables for ports with these configurations.
pub fn nftables(configs: &[Config]) -> String {
    let (mut chains, mut jumps) = (String::new(), [String::new(), String::new()]);
    for (at, config) in configs.iter().enumerate() {
        for (side, list) in config.lists.iter().enumerate() {
            let Some(list) = list else { continue };
            let name = list_name(at, side);
            chains += &list.chains(&name, config, side == 1);
            jumps[side] += &format!("{} p{at} jump {name}; ", ["iifname", "oifname"][side]);
        }
    }
    let [came, goes] = jumps;
    for (hook, jumps) in [("prerouting", &came), ("input", &came), ("forward", &goes)] {
        chains += &format!(" chain {hook} {{ type filter hook {hook} priority 0; {jumps}}};");
    }
    format!("flush ruleset; table bridge lab {{ {chains} }}\n")
}
