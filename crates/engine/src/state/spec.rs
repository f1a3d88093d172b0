//! What the operator asks for. These types are the only description of the configuration: the TOML
//! file, the JSON of the control socket and the words of the command line are all read into them.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::values::{
    Fds, Guard, Link, LookupName, Mac, Macs, MemoryFile, Mode, Number, Owner, PortMode, Role, Sandbox,
    Source, Sources, Toggle, Words,
};
use crate::policy::{MacGuard, Rules, SourceGuard, Storm, StormLimits};

/// The switch that ports join unless they say otherwise. It always exists.
pub const DEFAULT_SWITCH: &str = "lan";

/// The whole configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Spec {
    /// What can only be chosen at the start.
    #[serde(default, skip_serializing_if = "DaemonSpec::is_empty")]
    pub daemon: DaemonSpec,
    /// Switches beside [`DEFAULT_SWITCH`], which may be listed to give it options.
    #[serde(default, rename = "switch", skip_serializing_if = "Vec::is_empty")]
    pub switches: Vec<SwitchSpec>,
    /// Ports.
    #[serde(default, rename = "port", skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortSpec>,
}

/// What can only be chosen at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DaemonSpec {
    /// Processors that the I/O cores are pinned to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<Vec<usize>>,
    /// Microseconds for which a core polls without finding anything before it sleeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spin: Option<Number<0, 1_000_000>>,
    /// The control socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// Permission bits of the control socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_mode: Option<Mode>,
    /// Owner of the control socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_owner: Option<Owner>,
    /// The counters file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters: Option<PathBuf>,
    /// Most ports that programs may have made on demand; 0: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vale_ports: Option<Number<0, 1000>>,
    /// Permission bits of the socket at which they ask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vale_mode: Option<Mode>,
    /// Owner of that socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vale_owner: Option<Owner>,
    /// What the daemon takes from itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Sandbox>,
    /// The user that it becomes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

impl DaemonSpec {
    fn is_empty(&self) -> bool {
        *self == DaemonSpec::default()
    }
}

/// One switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SwitchSpec {
    /// Its name.
    pub name: String,
    /// Seconds after which a silent address is forgotten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ageing: Option<Number<1, 86400>>,
    /// Addresses that it can remember.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table_size: Option<Number<64, 1_048_576>>,
    /// How it finds the destination of a frame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lookup: Option<LookupName>,
}

impl SwitchSpec {
    /// Whether it learns addresses.
    pub fn learns(&self) -> bool {
        matches!(self.lookup, None | Some(LookupName::Learning))
    }

    /// A switch without options.
    pub fn new(name: &str) -> SwitchSpec {
        SwitchSpec { name: name.to_owned(), ageing: None, table_size: None, lookup: None }
    }
}

/// One port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PortSpec {
    /// Its name.
    pub name: String,
    /// What stands behind it, one of `kinds::KINDS`.
    pub kind: String,
    /// Where that is: a path or the name of an interface, as the kind says.
    #[serde(rename = "where")]
    pub place: String,
    /// The switch that it joins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch: Option<String>,
    /// The wire that it is one end of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire: Option<String>,
    /// Largest Ethernet payload that it may send, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<Number<68, 65535>>,
    /// Source addresses that it may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac_limit: Option<Number<1, 65535>>,
    /// How its source addresses are guarded; by default `claim` where it has a `mac`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac_guard: Option<Guard>,
    /// Further source addresses that it may use under `mac-guard=strict`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_mac: Option<Sources>,
    /// Addresses that the switch knows behind it for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fdb: Option<Macs>,
    /// Copies a second that its broadcasts may make.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storm_broadcast: Option<Number<1, 1_000_000_000>>,
    /// Copies a second that its multicasts may make.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storm_multicast: Option<Number<1, 1_000_000_000>>,
    /// Copies a second that its frames to unknown addresses may make.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storm_unicast: Option<Number<1, 1_000_000_000>>,
    /// The carrier that the operator wants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
    /// Who makes the socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Permission bits of the socket that we make; of kind `xdp`, whether the kernel copies frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<PortMode>,
    /// Owner of the socket that we make.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Queue pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<Number<1, 16>>,
    /// Features that are not offered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub features_off: Option<Words>,
    /// The guest's address, if it is ours to say; most VMMs say it themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// The file that keeps the places of packed rings while no daemon runs, or `none`. By default one in the
    /// daemon's folder of journals, beside its control socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal: Option<PathBuf>,
    /// Slots of each ring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<Number<2, 4096>>,
    /// Bytes of a ring's buffer, a multiple of 64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buf_size: Option<Number<64, 65536>>,
    /// Buffers beyond those of the rings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_bufs: Option<Number<0, 163_840>>,
    /// Pipes for which a ring port has room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pipes: Option<Number<0, 64>>,
    /// The memory that a ring port shares with others of this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// Bytes of the virtio-net header before each frame: 0, 10 or 12.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<Number<0, 12>>,
    /// Smallest gap between two interrupts in microseconds, whatever the driver programs; 0: what it programs alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moderation: Option<Number<0, 1000>>,
    /// Percent of its time that the guest may spend on serving receive interrupts; 100: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive_share: Option<Number<10, 100>>,
    /// The communication status block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csb: Option<Toggle>,
    /// Which files the VMM may give as its memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_file: Option<MemoryFile>,
    /// Whether all pages of the VMM's memory are made present when it gives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefault: Option<Toggle>,
    /// Open descriptors of the daemon to use instead of opening the interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fd: Option<Fds>,
}

/// Keys that every kind of port knows; the others stand in the row of their kind.
pub const COMMON_KEYS: [&str; 14] = [
    "name",
    "kind",
    "where",
    "switch",
    "wire",
    "mtu",
    "link",
    // Of ports on a switch that learns.
    "mac-limit",
    "mac-guard",
    "allow-mac",
    "fdb",
    "storm-broadcast",
    "storm-multicast",
    "storm-unicast",
];

impl PortSpec {
    /// The keys beyond the common ones, and whether each was given.
    pub fn kind_keys(&self) -> [(&'static str, bool); 19] {
        [
            ("role", self.role.is_some()),
            ("mode", self.mode.is_some()),
            ("owner", self.owner.is_some()),
            ("queues", self.queues.is_some()),
            ("features-off", self.features_off.is_some()),
            ("mac", self.mac.is_some()),
            ("journal", self.journal.is_some()),
            ("slots", self.slots.is_some()),
            ("buf-size", self.buf_size.is_some()),
            ("extra-bufs", self.extra_bufs.is_some()),
            ("pipes", self.pipes.is_some()),
            ("memory", self.memory.is_some()),
            ("header", self.header.is_some()),
            ("moderation", self.moderation.is_some()),
            ("receive-share", self.receive_share.is_some()),
            ("csb", self.csb.is_some()),
            ("memory-file", self.memory_file.is_some()),
            ("prefault", self.prefault.is_some()),
            ("fd", self.fd.is_some()),
        ]
    }

    /// Whether `other` can be reached from this without a new attachment: only what the port itself and
    /// its place in the graph are made of differs.
    pub fn same_attachment(&self, other: &PortSpec) -> bool {
        let stripped = |spec: &PortSpec| PortSpec {
            switch: None,
            wire: None,
            mtu: None,
            link: None,
            ..spec.without_rules()
        };
        stripped(self) == stripped(other)
    }

    /// The keys that apply on a switch that learns, and whether each was given.
    pub fn switch_keys(&self) -> [(&'static str, bool); 7] {
        [
            ("mac-limit", self.mac_limit.is_some()),
            ("mac-guard", self.mac_guard.is_some()),
            ("allow-mac", self.allow_mac.is_some()),
            ("fdb", self.fdb.is_some()),
            ("storm-broadcast", self.storm_broadcast.is_some()),
            ("storm-multicast", self.storm_multicast.is_some()),
            ("storm-unicast", self.storm_unicast.is_some()),
        ]
    }

    /// The same port without those.
    #[must_use]
    pub fn without_rules(&self) -> PortSpec {
        PortSpec {
            mac_limit: None,
            mac_guard: None,
            allow_mac: None,
            fdb: None,
            storm_broadcast: None,
            storm_multicast: None,
            storm_unicast: None,
            ..self.clone()
        }
    }

    /// How its source addresses are guarded.
    pub fn guard(&self) -> Guard {
        self.mac_guard.unwrap_or(if self.mac.is_some() { Guard::Claim } else { Guard::Off })
    }

    /// What it may do to its neighbours on a switch.
    pub fn rules(&self) -> Rules {
        let sources = self.allow_mac.as_ref().map_or(&[][..], |sources| &sources.0);
        let allowed: Vec<u64> = sources
            .iter()
            .filter_map(|source| match source {
                Source::Mac(mac) => Some(mac.number()),
                Source::Vrrp => None,
            })
            .collect();
        let fixed: Vec<u64> =
            self.fdb.as_ref().map_or_else(Vec::new, |macs| macs.0.iter().map(|mac| mac.number()).collect());
        let mode = match self.guard() {
            Guard::Off => MacGuard::Off,
            Guard::Claim => MacGuard::Claim,
            Guard::Strict => MacGuard::Strict,
        };
        let own = self.mac.map_or(0, Mac::number);
        let storm = StormLimits {
            broadcast: self.storm_broadcast.map_or(0, Number::get),
            multicast: self.storm_multicast.map_or(0, Number::get),
            unicast: self.storm_unicast.map_or(0, Number::get),
        };
        Rules {
            mac_limit: self.mac_limit.map_or(0, Number::get),
            guard: SourceGuard::new(mode, own, &fixed, &allowed, sources.contains(&Source::Vrrp)),
            storm: Storm::new(storm).map(Arc::new),
        }
    }

    /// Whether the operator wants the carrier up.
    pub fn link_wanted(&self) -> bool {
        self.link != Some(Link::Down)
    }

    /// What it is joined to, for people.
    pub fn joined(&self) -> String {
        match (&self.wire, &self.switch) {
            (Some(wire), _) => format!("wire {wire}"),
            (None, Some(switch)) => format!("switch {switch}"),
            (None, None) => format!("switch {DEFAULT_SWITCH}"),
        }
    }
}

impl Spec {
    /// The same configuration with every default that depends on others written out, so that two that
    /// mean the same are equal.
    #[must_use]
    pub fn settled(mut self) -> Spec {
        for port in &mut self.ports {
            if port.switch.is_none() && port.wire.is_none() {
                port.switch = Some(DEFAULT_SWITCH.to_owned());
            }
            if port.link == Some(Link::Up) {
                port.link = None;
            }
        }
        if !self.switches.iter().any(|switch| switch.name == DEFAULT_SWITCH) {
            self.switches.push(SwitchSpec::new(DEFAULT_SWITCH));
        }
        self.switches.sort_by(|a, b| a.name.cmp(&b.name));
        self.ports.sort_by(|a, b| a.name.cmp(&b.name));
        self
    }
}
