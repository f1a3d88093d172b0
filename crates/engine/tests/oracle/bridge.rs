//! What a switch does with a frame: it learns, looks up, and sends to one port, to some, or to all
//! (docs/switch.md, docs/configuration.md).

use std::collections::{BTreeMap, BTreeSet};

use super::config::{Config, Joint};
use super::doubt::Doubts;
use super::model::{Model, Outcome, Way};
use super::options::{PORTS, TOLD};

/// Who an address is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    port: usize,
    claimant: Option<usize>,
    stays: bool,
    /// A control plane says so: it stays until the station speaks elsewhere (docs/hosts.md).
    told: bool,
}

/// What a switch and its ports remember.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    pub table: BTreeMap<(usize, u16, [u8; 6]), Entry>,
    /// Behind which host's end of the tunnels a station is, by VLAN.
    pub vteps: BTreeMap<(u16, [u8; 6]), usize>,
    /// Copies of the floods that passed, by port and reason.
    pub floods: BTreeMap<(usize, &'static str), u64>,
    /// Frames and bytes that went out by ports with a limit.
    pub out: BTreeMap<usize, (u64, u64)>,
    /// Ports of which a limit has dropped a frame of this visit: nobody promises that a shorter one passes.
    pub over: BTreeSet<(usize, &'static str)>,
    /// Limits are new: what is left of them nobody promises.
    pub unsure: bool,
    /// Senders of frames that came to a router: what it sends on for them takes of their limits of unknown
    /// addresses (docs/router.md), and of others' rates.
    pub routed: BTreeSet<usize>,
}

impl Model<'_> {
    /// What a switch knows before any frame came.
    pub fn memory(config: &Config) -> Memory {
        let mut memory = Memory::default();
        for (n, port) in config.ports.iter().enumerate() {
            let Some(host) = port.host() else { continue };
            if port.has_vlans() && port.own() == 0 {
                continue;
            }
            for address in port.pinned() {
                // Its own, but not those that always are behind it, while it is up.
                if !port.down() || port.macs("fdb").contains(&address) {
                    memory.table.insert(
                        (host, port.own(), address),
                        Entry { port: n, claimant: None, stays: true, told: false },
                    );
                }
            }
        }
        let vlan = config.ports[TOLD].own();
        for (address, stays) in &config.told {
            let entry = Entry { port: TOLD, claimant: None, stays: *stays, told: true };
            memory.table.insert((0, vlan, *address), entry);
        }
        memory
    }

    /// The first host's switch has heard nothing for longer than any ageing time.
    pub fn age(memory: &mut Memory) {
        memory.table.retain(|(host, ..), entry| *host != 0 || entry.stays || entry.told);
    }

    /// The first host's switch has another table, which knows what the former knew, but for claims.
    pub fn move_in(memory: &mut Memory) {
        let here = memory.table.iter_mut().filter(|((host, ..), _)| *host == 0);
        here.for_each(|(_, entry)| entry.claimant = None);
        Model::unsettle(memory);
    }

    /// Limits may be anywhere.
    pub fn unsettle(memory: &mut Memory) {
        memory.floods.clear();
        memory.out.clear();
        memory.unsure = true;
    }

    pub fn switch(
        &self,
        way: &Way<'_>,
        plain: &[u8],
        memory: &mut Memory,
        doubts: &Doubts,
        outcome: &mut Outcome,
    ) -> Result<(), &'static str> {
        let (n, from) = (way.sent.port, self.port(way.sent.port));
        let [dst, src] = [0, 6].map(|at| <[u8; 6]>::try_from(&plain[at..at + 6]).unwrap());
        let bpdu = dst == [1, 0x80, 0xc2, 0, 0, 0] || dst == [1, 0, 0xc, 0xcc, 0xcc, 0xcd];
        if bpdu && from.is("bpdu", "drop") && doubts.as_before("order", 1) {
            return Err("control_frame");
        }
        let Some(host) = from.host() else { return Err("no_destination") };
        let passes = self.config.of_switch(host, "control-frames").is_some_and(|it| it == "pass");
        let ends = dst[..5] == [1, 0x80, 0xc2, 0, 0] && (1..16).contains(&dst[5]) && !passes;
        if !(ends && doubts.either("a control frame that ends teaches nothing", 0)) {
            self.source(n, way.vlan, src, memory, doubts)?;
        }
        if bpdu && from.is("bpdu", "drop") {
            return Err("control_frame");
        }
        let copy = |outcome: &mut Outcome| {
            self.mirror(n, "out", way, plain, self.form(n, way), doubts, outcome);
        };
        if ends {
            if doubts.either("a mirror gets control frames that end at the switch", 0) {
                copy(outcome);
            }
            return Err("control_frame");
        }
        let known = memory.table.get(&(host, way.vlan, dst)).copied().filter(|_| dst[0] & 1 == 0);
        let others =
            |of: &usize| *of != n && self.port(*of).host() == Some(host) && self.port(*of).carries(way.vlan);
        let mut to: Vec<usize> = match known {
            Some(Entry { port, claimant, .. }) => [Some(port), claimant].into_iter().flatten().collect(),
            None => (0..self.config.ports.len()).filter(|of| others(of) && !self.port(*of).down()).collect(),
        };
        // Where its sender is a frame says by itself, learned or not; an address of zeros is nobody's.
        if known.is_none() && src == dst && src[0] & 1 == 0 && src != [0; 6] {
            if doubts.either("a mirror gets what has no destination", 0) {
                copy(outcome);
            }
            return Err("hairpin");
        }
        let was = to.len();
        to.retain(|of| *of != n);
        if to.is_empty() {
            if doubts.either("a mirror gets what has no destination", 0) {
                copy(outcome);
            }
            if known.is_some() && was > 0 {
                return Err("hairpin");
            }
            self.to_nobody(n, dst, memory, doubts, outcome)?;
            return Err("no_destination");
        }
        let mine = way.sent.isolated || from.is("isolated", "on");
        let apart = |of: &usize| mine && self.port(*of).is("isolated", "on");
        if known.is_some() {
            let (away, stay): (Vec<usize>, Vec<usize>) = to.into_iter().partition(apart);
            for of in away {
                if self.port(of).down() && doubts.either("isolated, and down", of) {
                    outcome.drops.push((of, "link_down"));
                    continue;
                }
                let at = if doubts.either("isolated counts at the receiver", 0) { of } else { n };
                outcome.drops.push((at, "isolated"));
            }
            to = stay;
            if to.is_empty() && !doubts.either("a mirror gets what isolation keeps", 0) {
                return Ok(());
            }
        } else {
            to.retain(|of| !apart(of));
            if to.is_empty() {
                if doubts.either("a mirror gets what has no destination", 0) {
                    copy(outcome);
                }
                self.to_nobody(n, dst, memory, doubts, outcome)?;
                return Err(if doubts.either("nobody but isolated ports", 0) {
                    "isolated"
                } else {
                    "no_destination"
                });
            }
            self.storm(n, dst, to.len() as u64, memory, doubts, outcome)?;
        }
        copy(outcome);
        for of in to {
            let port = self.port(of);
            if port.down() {
                outcome.drops.push((
                    if doubts.either("link_down counts at the receiver", 0) { of } else { n },
                    "link_down",
                ));
                continue;
            }
            if bpdu && port.is("bpdu", "drop") {
                outcome.drops.push((of, "control_frame"));
                continue;
            }
            self.leave(of, way, plain, memory, doubts, outcome);
        }
        Ok(())
    }

    /// The guard of source addresses, their number, and learning.
    fn source(
        &self,
        n: usize,
        vlan: u16,
        src: [u8; 6],
        memory: &mut Memory,
        doubts: &Doubts,
    ) -> Result<(), &'static str> {
        let port = self.port(n);
        if port.is("mac-guard", "strict") {
            let mut allowed = port.macs("mac");
            allowed.extend(port.macs("fdb"));
            allowed.extend(port.macs("allow-mac"));
            let vrrp = port.get("allow-mac").is_some_and(|list| list.contains("vrrp"));
            let virtual_router = src[..4] == [0, 0, 0x5e, 0] && matches!(src[4], 1 | 2);
            if !(allowed.contains(&src) || vrrp && virtual_router) {
                return Err("mac_guard");
            }
        }
        if src[0] & 1 == 1 || port.joint == Joint::Told {
            return Ok(());
        }
        let most = port.number("mac-limit").unwrap_or(u64::MAX);
        let host = port.host().unwrap();
        let key = (host, vlan, src);
        let counts = |entry: &&Entry| !entry.stays && (entry.port == n || entry.claimant == Some(n));
        let used = memory.table.values().filter(counts).count() as u64;
        let entry = memory.table.get(&key).copied();
        let stays = entry.is_some_and(|entry| entry.stays);
        let own = stays && entry.is_some_and(|entry| entry.port == n);
        if own {
            return Ok(());
        }
        if stays {
            // Another's, which is not learned here; whether it counts is nobody's promise.
            if used >= most && doubts.either("an address of another's counts", n) {
                return Err("mac_limit");
            }
            return Ok(());
        }
        // Whether one that is another port's as well counts here is nobody's promise.
        let contested = entry.is_some_and(|entry| entry.port != n || entry.claimant.is_some());
        let counted = entry.as_ref().is_some_and(|entry| counts(&entry));
        if !(counted && !(contested && doubts.either("a contested address", n)))
            && used + self.fixed(n) >= most
        {
            let below = used < most && !doubts.either("its own addresses count", n);
            if !below {
                return Err("mac_limit");
            }
        }
        // An address of another port's moves at once where the operator says so, that of a virtual router
        // where it may be used.
        let says = port.get("mac-move").or(self.config.of_switch(host, "mac-move"));
        let shared = src[..4] == [0, 0, 0x5e, 0] && matches!(src[4], 1 | 2);
        let vrrp = shared && port.get("allow-mac").is_some_and(|list| list.contains("vrrp"));
        let moves = says == Some("learn")
            || says.is_none() && vrrp
            || vrrp && doubts.either("vrrp under mac-move=claim", n);
        match memory.table.get_mut(&key) {
            None => {
                memory.table.insert(key, Entry { port: n, claimant: None, stays: false, told: false });
            }
            Some(entry) if entry.port == n => entry.claimant = None,
            Some(entry) if moves || entry.told => {
                *entry = Entry { port: n, claimant: None, stays: false, told: false };
            }
            Some(entry) => entry.claimant = Some(n),
        }
        Ok(())
    }

    /// A flood would come to nobody: whether a limit is asked about it is nobody's promise.
    fn to_nobody(
        &self,
        n: usize,
        dst: [u8; 6],
        memory: &mut Memory,
        doubts: &Doubts,
        outcome: &Outcome,
    ) -> Result<(), &'static str> {
        match doubts.either("a flood to nobody is limited", 0) {
            true => self.storm(n, dst, 0, memory, doubts, outcome),
            false => Ok(()),
        }
    }

    /// Addresses of a port that are there before it sends.
    fn fixed(&self, n: usize) -> u64 {
        let all: BTreeSet<[u8; 6]> = self.port(n).pinned().into_iter().collect();
        all.len() as u64
    }

    fn storm(
        &self,
        n: usize,
        dst: [u8; 6],
        copies: u64,
        memory: &mut Memory,
        doubts: &Doubts,
        outcome: &Outcome,
    ) -> Result<(), &'static str> {
        let (key, why) = match dst {
            [0xff, 0xff, 0xff, 0xff, 0xff, 0xff] => ("storm-broadcast", "storm_broadcast"),
            _ if dst[0] & 1 == 1 => ("storm-multicast", "storm_multicast"),
            _ => ("storm-unicast", "storm_unicast"),
        };
        let Some(limit) = self.port(n).number(key) else { return Ok(()) };
        let passed = memory.floods.entry((n, why)).or_default();
        // A tenth of a second's copies may be saved up, and one frame always passes and is charged
        // afterwards.
        let least = limit / 10;
        let most = least + limit * (self.tenths + 1) / 10 + 1;
        let over = outcome.drops.contains(&(n, why));
        let routed = why == "storm_unicast" && memory.routed.contains(&n);
        let unsure = memory.unsure || routed || memory.over.contains(&(n, why));
        let certain = (*passed == 0 || *passed < least) && !unsure;
        if over || *passed > most || !certain && doubts.either("a storm limit", n + *passed as usize * PORTS)
        {
            memory.over.insert((n, why));
            return Err(why);
        }
        *passed += copies;
        Ok(())
    }
}
