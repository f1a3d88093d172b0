//! What the documents promise of a frame: who gets which bytes, and who drops it and why. Written from
//! docs/switch.md and docs/configuration.md, stage by stage, without the engine's code beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::doubt::Doubts;
use super::frames::Sent;
use super::headers::{is_tag, see, tags, Seen, What};
use super::plain::{completed, cut, sum_at, Asked};
use super::rules::{in_ranges, mac, nets, ranges, Facts, Guards, List};

/// Options as they are written.
pub type Options = BTreeMap<&'static str, String>;

/// What a port is joined to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joint {
    Switch,
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
}

/// A switch with its ports, and what lies beside it.
#[derive(Clone, Debug)]
pub struct Config {
    pub switch: Options,
    pub ports: Vec<PortConfig>,
    pub lists: Vec<List>,
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "switch {:?}", self.switch)?;
        for (n, port) in self.ports.iter().enumerate() {
            writeln!(
                f,
                "port {n} {} {:?} {:?} accepts {:#x}",
                port.name, port.joint, port.options, port.accepts
            )?;
        }
        self.lists.iter().try_for_each(|it| writeln!(f, "list {} {:?} else {}", it.name, it.rules, it.permit))
    }
}

impl PortConfig {
    fn get(&self, key: &str) -> Option<&str> {
        self.options.get(key).map(String::as_str)
    }

    fn is(&self, key: &str, value: &str) -> bool {
        self.get(key) == Some(value)
    }

    fn number(&self, key: &str) -> Option<u64> {
        let text = self.get(key)?;
        let (digits, unit) = match text.chars().last()? {
            'k' => (&text[..text.len() - 1], 1000),
            'M' => (&text[..text.len() - 1], 1_000_000),
            'G' => (&text[..text.len() - 1], 1_000_000_000),
            _ => (text, 1),
        };
        Some(digits.parse::<u64>().unwrap() * unit)
    }

    fn macs(&self, key: &str) -> Vec<[u8; 6]> {
        self.get(key).map_or(Vec::new(), |list| list.split('+').filter(|it| *it != "vrrp").map(mac).collect())
    }

    fn on_switch(&self) -> bool {
        matches!(self.joint, Joint::Switch | Joint::Gateway)
    }

    /// Whether it is in any VLAN.
    pub fn has_vlans(&self) -> bool {
        self.get("vlan").or(self.get("trunk")).is_some()
    }

    /// The VLAN of frames without a tag; 0: none.
    fn own(&self) -> u16 {
        self.get("vlan").or(self.get("native")).map_or(0, |vlan| vlan.parse().unwrap())
    }

    fn carries(&self, vlan: u16) -> bool {
        match vlan {
            0 => !self.has_vlans(),
            _ => vlan == self.own() || self.get("trunk").is_some_and(|set| in_ranges(vlan, &ranges(set))),
        }
    }

    /// The number of its tags.
    fn tag(&self) -> u16 {
        if self.is("vlan-proto", "802.1ad") {
            0x88a8
        } else {
            0x8100
        }
    }

    fn guards(&self) -> Guards {
        Guards {
            allowed: self.get("allow-ip").map(nets),
            dhcp: self.is("dhcp-guard", "on"),
            ra: self.is("ra-guard", "on"),
        }
    }

    /// Addresses that are its alone, and stay.
    fn pinned(&self) -> Vec<[u8; 6]> {
        let guards = self.get("mac-guard").map_or(self.get("mac").is_some(), |guard| guard != "off");
        if let Joint::Gateway = self.joint {
            return vec![router_station(self.name[1..].parse().unwrap())];
        }
        let mut all = self.macs("fdb");
        all.extend(self.macs("mac").into_iter().filter(|_| guards));
        all
    }

    fn down(&self) -> bool {
        self.is("link", "down")
    }
}

/// Who an address is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    port: usize,
    claimant: Option<usize>,
    stays: bool,
}

/// What a switch and its ports remember.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    table: BTreeMap<(u16, [u8; 6]), Entry>,
    /// Copies of the floods that passed, by port and reason.
    floods: BTreeMap<(usize, &'static str), u64>,
    /// Frames and bytes that went out by ports with a limit.
    out: BTreeMap<usize, (u64, u64)>,
    /// A router took of the limits of others.
    unsure: bool,
}

/// What becomes of a frame.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Which port gets what, with checksums complete and cut as it is to be.
    pub got: Vec<(usize, Vec<u8>)>,
    /// Who drops it, and why.
    pub drops: Vec<(usize, &'static str)>,
    /// Ports of which is not known what they get.
    pub vague: BTreeSet<usize>,
    /// It came to a router, or to a group: what these make of it, and drop, is not told here.
    pub reached: bool,
    /// Where the router answers who asks for its address.
    pub answers: Option<usize>,
}

/// A frame on its way: what it is in, and what it is.
struct Way<'m> {
    sent: &'m Sent,
    vlan: u16,
    /// Priority and drop eligibility, of the tag that told the VLAN.
    priority: u16,
    /// What it is cut into, each without the tag that told its VLAN.
    parts: Vec<Vec<u8>>,
    /// Where a cut frame's copy ends is not known.
    offload: bool,
    /// It asks for a checksum behind the first bytes that nobody looked at: a receiver that computes none
    /// itself does not get it.
    unseen: bool,
    seen: Seen,
}

/// The model of one configuration.
pub struct Model<'m> {
    pub config: &'m Config,
    /// Tenths of seconds since the limits were filled, at most.
    pub tenths: u64,
}

impl Model<'_> {
    /// What a switch knows before any frame came.
    pub fn memory(config: &Config) -> Memory {
        let mut memory = Memory::default();
        for (n, port) in config.ports.iter().enumerate().filter(|(_, port)| port.on_switch()) {
            if port.has_vlans() && port.own() == 0 {
                continue;
            }
            for address in port.pinned() {
                // Its own, but not those that always are behind it, while it is up.
                if !port.down() || port.macs("fdb").contains(&address) {
                    memory
                        .table
                        .insert((port.own(), address), Entry { port: n, claimant: None, stays: true });
                }
            }
        }
        memory
    }

    fn port(&self, n: usize) -> &PortConfig {
        &self.config.ports[n]
    }

    fn list(&self, n: usize, key: &str) -> Option<&List> {
        let name = self.port(n).get(key)?;
        self.config.lists.iter().find(|list| list.name == name)
    }

    /// What becomes of `sent`, and what is remembered of it.
    pub fn judge(&self, sent: &Sent, memory: &mut Memory, doubts: &Doubts) -> Outcome {
        let mut outcome = Outcome::default();
        if let Err(why) = self.enter(sent, memory, doubts, &mut outcome) {
            outcome.drops.push((sent.port, why));
        }
        outcome.got.sort();
        outcome.drops.sort();
        outcome
    }

    fn enter(
        &self,
        sent: &Sent,
        memory: &mut Memory,
        doubts: &Doubts,
        outcome: &mut Outcome,
    ) -> Result<(), &'static str> {
        let from = self.port(sent.port);
        if sent.bytes.len() < 14 {
            return Err("too_short");
        }
        let (bytes, asked, unseen) = asked(sent, doubts)?;
        let down = from.down() && doubts.either("the order at a port that is down", 0);
        if down || doubts.as_before("order", 0) {
            // Guards and lists came first, and saw the tag.
            let seen = see(&bytes, false, doubts);
            if let Some(why) = pick(&from.guards().reasons(&seen, doubts), doubts) {
                return Err(why);
            }
            let vlan = self.admit(sent, doubts).map_or(0, |(vlan, ..)| vlan);
            let vlan =
                Some(vlan).filter(|vlan| *vlan != 0).or_else(|| Some(tags(&bytes).0.first()?.1 & 0xfff));
            let facts = Facts { bytes: &bytes, vlan, seen: &seen };
            if self.list(sent.port, "acl-in").is_some_and(|list| !list.permits(&facts, doubts)) {
                return Err("acl");
            }
        }
        // No rule is promised to come before that, or after it.
        if from.down() && !doubts.either("a rule drops what comes in by a port that is down", 0) {
            return Err("link_down");
        }
        self.length(sent, asked, doubts)?;
        let (vlan, priority, tagged) = self.admit(sent, doubts)?;
        let without = |bytes: &[u8]| [&bytes[..12], &bytes[if tagged { 16 } else { 12 }..]].concat();
        let parts = cut(&bytes, asked).ok_or("bad_offload")?;
        let plain = without(&bytes);
        let seen = see(&plain, tagged, doubts);
        let parts = parts.iter().map(|part| without(part)).collect();
        let way = Way { sent, vlan, priority, parts, offload: sent.asked != Asked::default(), unseen, seen };
        let reasons = from.guards().reasons(&way.seen, doubts);
        if let Some(why) = pick(&reasons, doubts) {
            return Err(why);
        }
        let facts = facts(&way, &plain, from, doubts);
        if self.list(sent.port, "acl-in").is_some_and(|list| !list.permits(&facts, doubts)) {
            return Err("acl");
        }
        if from.down() {
            return Err("link_down");
        }
        match from.joint {
            Joint::Router => {
                // What the router then drops passed no rule of the port's, and may be copied or not.
                if !doubts.either("a mirror at a router", 0) {
                    self.mirror(sent.port, "out", &way, &plain, self.form(sent.port, &way), doubts, outcome);
                }
                self.route(&way, &plain, memory, doubts, outcome);
                Ok(())
            }
            Joint::Wire(to) => {
                self.mirror(sent.port, "out", &way, &plain, self.form(sent.port, &way), doubts, outcome);
                self.leave(to, &way, &plain, memory, doubts, outcome);
                Ok(())
            }
            _ => self.switch(&way, &plain, memory, doubts, outcome),
        }
    }

    /// The frame is a router's from here on. Who asks for its address is answered, behind a tag that tells
    /// but a priority, too (802.1Q §6.9).
    fn route(
        &self,
        way: &Way<'_>,
        plain: &[u8],
        memory: &mut Memory,
        doubts: &Doubts,
        outcome: &mut Outcome,
    ) {
        outcome.reached = true;
        // What it sends takes of the limits of others.
        memory.unsure = true;
        let n = way.sent.port;
        let (all, at) = tags(plain);
        let listens = all.is_empty() || all.len() == 1 && all[0].0 == 0x8100 && all[0].1 & 0xfff == 0;
        let dst = &plain[..6];
        let mine = dst == [0xff; 6] || dst == router_station(n);
        let What::Arp { operation: 1, sender, target } = &way.seen.what else { return };
        let whole =
            plain.get(at..at + 2) == Some(&[8, 6]) && plain.get(at + 10..at + 16) == Some(&plain[6..12]);
        let near = sender[..3] == router_four(n)[..3] && (1..250).contains(&sender[3]);
        if listens
            && mine
            && whole
            && near
            && *target == router_four(n)
            && plain[6] & 1 == 0
            && !doubts.as_before("14", 0)
        {
            let port = self.port(n);
            if !["acl-out", "out-rate", "out-bit-rate"].iter().any(|key| port.options.contains_key(key)) {
                outcome.answers = Some(n);
            }
        }
    }

    /// The MTU: four bytes more for each of two tags.
    fn length(&self, sent: &Sent, asked: Asked, doubts: &Doubts) -> Result<(), &'static str> {
        let most = self.port(sent.port).number("mtu").unwrap_or(1500) as usize + 14;
        let most = most + 4 * tags(&sent.bytes).0.len().min(2);
        let len = sent.bytes.len();
        if !asked.cuts() {
            return if len > most { Err("too_long") } else { Ok(()) };
        }
        // If it is to be cut, the segments count: where their headers end is not looked up.
        let start = usize::from(asked.size) + usize::from(asked.start);
        if len + 8 > most
            && (start + 60 > most
                && (len > most && start + 8 > most || doubts.either("the headers of a segment", 0)))
        {
            return Err("too_long");
        }
        Ok(())
    }

    /// The VLAN of the frame, its priority, and whether a tag told them.
    fn admit(&self, sent: &Sent, doubts: &Doubts) -> Result<(u16, u16, bool), &'static str> {
        let from = self.port(sent.port);
        if !from.on_switch() || !from.has_vlans() {
            return Ok((0, 0, false));
        }
        let kind = sent.bytes.get(12..14).map(|kind| u16::from_be_bytes([kind[0], kind[1]]));
        if kind == Some(from.tag()) && sent.bytes.len() < 18 && doubts.either("a VLAN that is cut", 0) {
            return Err("vlan");
        }
        let first = tags(&sent.bytes).0.first().copied().filter(|(kind, _)| *kind == from.tag());
        let number = first.map_or(0, |(_, control)| control & 0xfff);
        let vlan = if number == 0 { from.own() } else { number };
        if vlan == 0 || !from.carries(vlan) {
            return Err("vlan");
        }
        // A tag behind one that goes could be taken for the next port's.
        let second = tags(&sent.bytes).0.get(usize::from(first.is_some())).copied();
        let hops = second.is_some_and(|(kind, _)| kind == from.tag());
        if hops && !doubts.as_before("6", 0) && doubts.either("a second tag ends where it comes in", 0) {
            return Err("vlan");
        }
        Ok((vlan, first.map_or(0, |(_, control)| control & 0xf000), first.is_some()))
    }

    fn switch(
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
        let passes = self.config.switch.get("control-frames").is_some_and(|it| it == "pass");
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
        let known = memory.table.get(&(way.vlan, dst)).copied().filter(|_| dst[0] & 1 == 0);
        let others = |of: &usize| *of != n && self.port(*of).on_switch() && self.port(*of).carries(way.vlan);
        let mut to: Vec<usize> = match known {
            Some(Entry { port, claimant, .. }) => [Some(port), claimant].into_iter().flatten().collect(),
            None => (0..self.config.ports.len()).filter(|of| others(of) && !self.port(*of).down()).collect(),
        };
        let was = to.len();
        to.retain(|of| *of != n);
        if to.is_empty() {
            if doubts.either("a mirror gets what has no destination", 0) {
                copy(outcome);
            }
            return Err(if known.is_some() && was > 0 { "hairpin" } else { "no_destination" });
        }
        let apart = |of: &usize| from.is("isolated", "on") && self.port(*of).is("isolated", "on");
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
                return Err(if doubts.either("nobody but isolated ports", 0) {
                    "isolated"
                } else {
                    "no_destination"
                });
            }
            self.storm(n, dst, to.len() as u64, memory, doubts)?;
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
        if src[0] & 1 == 1 {
            return Ok(());
        }
        let most = port.number("mac-limit").unwrap_or(u64::MAX);
        let key = (vlan, src);
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
        let says = port.get("mac-move").or(self.config.switch.get("mac-move").map(String::as_str));
        let shared = src[..4] == [0, 0, 0x5e, 0] && matches!(src[4], 1 | 2);
        let vrrp = shared && port.get("allow-mac").is_some_and(|list| list.contains("vrrp"));
        let moves = says == Some("learn")
            || says.is_none() && vrrp
            || vrrp && doubts.either("vrrp under mac-move=claim", n);
        match memory.table.get_mut(&key) {
            None => {
                memory.table.insert(key, Entry { port: n, claimant: None, stays: false });
            }
            Some(entry) if entry.port == n => entry.claimant = None,
            Some(entry) if moves => *entry = Entry { port: n, claimant: None, stays: false },
            Some(entry) => entry.claimant = Some(n),
        }
        Ok(())
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
        let certain = *passed == 0 || *passed < least;
        if *passed > most || !certain && doubts.either("a storm limit", n) {
            return Err(why);
        }
        *passed += copies;
        Ok(())
    }

    /// The frame's parts as they look at a port.
    fn form(&self, n: usize, way: &Way<'_>) -> Vec<Vec<u8>> {
        let port = self.port(n);
        let tagged = port.on_switch() && port.has_vlans() && way.vlan != port.own();
        let shape = |part: &Vec<u8>| {
            let mut part = part.clone();
            if tagged {
                let control = (way.priority | way.vlan).to_be_bytes();
                part.splice(12..12, [&port.tag().to_be_bytes()[..], &control].concat());
            }
            part
        };
        // At the sender's own port it is as it came.
        way.parts.iter().map(shape).collect()
    }

    /// The frame goes out by port `n`.
    fn leave(
        &self,
        n: usize,
        way: &Way<'_>,
        plain: &[u8],
        memory: &mut Memory,
        doubts: &Doubts,
        outcome: &mut Outcome,
    ) {
        let port = self.port(n);
        if port.down() {
            outcome.drops.push((n, "link_down"));
            return;
        }
        let mut form = self.form(n, way);
        let bare = port.on_switch() && port.has_vlans() && way.vlan == port.own();
        // What it carries would be the tag of its VLAN: it keeps its own, or does not leave.
        let hops = bare && tags(plain).0.first().is_some_and(|(kind, _)| *kind == port.tag());
        if hops && !doubts.as_before("6", 0) {
            if doubts.either("a second tag ends where it goes out", 0) {
                outcome.drops.push((n, "vlan"));
                return;
            }
            let control = (way.priority | way.vlan).to_be_bytes();
            form.iter_mut().for_each(|part| {
                drop(part.splice(12..12, [&port.tag().to_be_bytes()[..], &control].concat()))
            });
        }
        let facts = facts(way, plain, port, doubts);
        // At a gateway directions are the router's.
        let key = if port.joint == Joint::Gateway { "acl-in" } else { "acl-out" };
        let point = match port.joint {
            Joint::Gateway => "31",
            Joint::Interface(_) => "7",
            _ => "",
        };
        let denied = self.list(n, key).is_some_and(|list| !list.permits(&facts, doubts));
        if denied && !doubts.as_before(point, 0) {
            outcome.drops.push((n, "acl"));
            return;
        }
        if !point.is_empty() {
            if port.joint == Joint::Gateway {
                self.route(way, plain, memory, doubts, outcome);
                outcome.answers = None;
            }
            outcome.reached = true;
            return;
        }
        if !self.may(n, way, &form, memory, doubts) {
            outcome.drops.push((n, "rate"));
            return;
        }
        if deep(way, &form) && doubts.either("work behind a third tag", n) {
            if doubts.either("a mirror gets what cannot be done", n) {
                self.mirror(n, "in", way, plain, form, doubts, outcome);
            }
            outcome.drops.push((n, "cannot_segment"));
            return;
        }
        self.mirror(n, "in", way, plain, form.clone(), doubts, outcome);
        if way.unseen && port.accepts & 1 == 0 {
            outcome.drops.push((n, "cannot_segment"));
            return;
        }
        outcome.got.extend(form.into_iter().map(|part| (n, part)));
    }

    /// Whether a port's limits let it out.
    fn may(&self, n: usize, way: &Way<'_>, form: &[Vec<u8>], memory: &mut Memory, doubts: &Doubts) -> bool {
        let port = self.port(n);
        let limits = [port.number("out-rate"), port.number("out-bit-rate").map(|bits| bits / 8)];
        if limits == [None; 2] {
            return true;
        }
        let unsure = memory.unsure;
        let (frames, bytes) = memory.out.entry(n).or_default();
        let burst = port.number("out-burst").unwrap_or(10);
        let saved = |limit: u64| limit * burst / 1000;
        let most = |limit: u64| saved(limit) + limit * (self.tenths + 1) / 10 + 2;
        let gone = limits[0].is_some_and(|limit| *frames > most(limit))
            || limits[1].is_some_and(|limit| *bytes > most(limit) + 10_000);
        let mine: u64 = form.iter().map(|part| part.len() as u64 + 24).sum();
        let certain = limits[0].is_none_or(|limit| *frames < saved(limit).max(1))
            && limits[1].is_none_or(|limit| *bytes + mine < saved(limit));
        if gone || !(certain && !way.offload && !unsure) && doubts.either("a rate", n) {
            return false;
        }
        (*frames, *bytes) =
            (*frames + form.len() as u64, *bytes + form.iter().map(|part| part.len() as u64).sum::<u64>());
        true
    }

    /// Copies for the mirror of port `n`, unless it wants only those that go the way `not`.
    #[allow(clippy::too_many_arguments, reason = "what a copy depends on")]
    fn mirror(
        &self,
        n: usize,
        not: &str,
        way: &Way<'_>,
        plain: &[u8],
        form: Vec<Vec<u8>>,
        doubts: &Doubts,
        outcome: &mut Outcome,
    ) {
        let port = self.port(n);
        let Some(name) = port.get("mirror").filter(|_| !port.is("mirror-direction", not)) else { return };
        let to = self.config.ports.iter().position(|port| port.name == name).unwrap();
        let facts = facts(way, plain, port, doubts);
        if self.list(n, "mirror-acl").is_some_and(|list| !list.permits(&facts, doubts)) {
            return;
        }
        if self.port(to).down() {
            if doubts.either("a copy for a port that is down counts", 0) {
                outcome.drops.push((to, "link_down"));
            }
            return;
        }
        // A copy that is cut asks for nothing.
        let whole = port.number("mirror-snap").is_none();
        if whole && way.unseen && self.port(to).accepts & 1 == 0 {
            outcome.drops.push((to, "cannot_segment"));
            return;
        }
        let form = if not == "out" { as_it_came(way, port) } else { form };
        if deep(way, &form) && doubts.either("work behind a third tag", to) {
            outcome.drops.push((to, "cannot_segment"));
            return;
        }
        match port.number("mirror-snap") {
            Some(_) if way.offload => drop(outcome.vague.insert(to)),
            snap => {
                let most = snap.map_or(usize::MAX, |snap| snap as usize);
                outcome.got.extend(form.into_iter().map(|part| (to, part[..part.len().min(most)].to_vec())));
            }
        }
    }
}

/// The parts of a frame with the tag that told its VLAN, if it had one.
fn as_it_came(way: &Way<'_>, port: &PortConfig) -> Vec<Vec<u8>> {
    let tag = (port.on_switch() && port.has_vlans())
        .then(|| tags(&way.sent.bytes).0.first().copied().filter(|(kind, _)| *kind == port.tag()))
        .flatten();
    let with = |part: &Vec<u8>| match tag {
        Some((kind, control)) => {
            [&part[..12], &kind.to_be_bytes(), &control.to_be_bytes(), &part[12..]].concat()
        }
        None => part.clone(),
    };
    way.parts.iter().map(with).collect()
}

/// Whether something is left to do behind a third tag, where nobody promises to look.
fn deep(way: &Way<'_>, form: &[Vec<u8>]) -> bool {
    let tag = |part: &[u8], at: usize| matches!(part.get(at..at + 2), Some([0x81 | 0x91, 0] | [0x88, 0xa8]));
    way.offload && form.iter().any(|part| (0..3).all(|depth| tag(part, 12 + 4 * depth)))
}

/// What lists are asked about.
fn facts<'w>(way: &'w Way<'_>, plain: &'w [u8], port: &PortConfig, doubts: &Doubts) -> Facts<'w> {
    let in_vlan = port.on_switch() && port.has_vlans();
    // A port without VLANs takes tags for payload; whether a list may ask for them is nobody's promise.
    let outer = plain.get(12..16).filter(|tag| matches!(tag[..2], [0x81, 0] | [0x88, 0xa8] | [0x91, 0]));
    let outer = outer.map(|tag| u16::from_be_bytes([tag[2], tag[3]]) & 0xfff).filter(|vlan| *vlan != 0);
    let outer = outer.filter(|_| !in_vlan && doubts.either("a list sees tags that are payload", 0));
    Facts { bytes: plain, vlan: Some(way.vlan).filter(|vlan| *vlan != 0).or(outer), seen: &way.seen }
}

/// One of several reasons.
fn pick(reasons: &[&'static str], doubts: &Doubts) -> Option<&'static str> {
    let (last, others) = reasons.split_last()?;
    let first = others.iter().enumerate().find(|(n, _)| doubts.either("the order of guards", *n));
    Some(first.map_or(*last, |(_, why)| why))
}

/// Bytes of each frame that are looked at in any case.
const HEAD: usize = 64;

/// What the sender asks for, judged: the frame as it is before any port looks at it, and what is still to
/// be done. A checksum that is not its protocol's own is completed before, or the frame is dropped.
fn asked(sent: &Sent, doubts: &Doubts) -> Result<(Vec<u8>, Asked, bool), &'static str> {
    const BAD: &str = "bad_offload";
    let Asked { flags, gso, size, start, offset, .. } = sent.asked;
    let kind = gso & 0x7f;
    if !matches!(kind, 0 | 1 | 3 | 4 | 5) || gso & 0x80 != 0 && !matches!(kind, 1 | 4) {
        return Err(BAD);
    }
    if flags & 1 == 0 {
        return if kind == 0 { Ok((sent.bytes.clone(), Asked::default(), false)) } else { Err(BAD) };
    }
    let own = own_sum(&sent.bytes, doubts);
    let right = own.is_some_and(|(_, at, its)| at == usize::from(start) && its == offset);
    if kind != 0 {
        let (_, at) = tags(&sent.bytes);
        let v6 = sent.bytes.get(at..at + 2) == Some(&[0x86, 0xdd]);
        let fits = match kind {
            1 => !v6 && own.is_some_and(|(protocol, ..)| protocol == 6),
            4 => v6 && own.is_some_and(|(protocol, ..)| protocol == 6),
            _ => own.is_some_and(|(protocol, ..)| protocol == 17),
        };
        return if right && fits && size > 0 {
            Ok((sent.bytes.clone(), sent.asked, false))
        } else {
            Err(BAD)
        };
    }
    if right {
        // A field behind the frame's end cannot be filled.
        return completed(&sent.bytes, sent.asked)
            .map(|_| (sent.bytes.clone(), sent.asked, false))
            .ok_or(BAD);
    }
    if doubts.as_before("1", 0) {
        return Ok((sent.bytes.clone(), sent.asked, false));
    }
    if usize::from(start) >= HEAD && doubts.as_before("1", 1) {
        return completed(&sent.bytes, sent.asked).map(|_| (sent.bytes.clone(), sent.asked, true)).ok_or(BAD);
    }
    if usize::from(start) >= HEAD
        && doubts.either("a checksum behind the first bytes that no rule asks for", 0)
    {
        return completed(&sent.bytes, sent.asked).map(|bytes| (bytes, Asked::default(), true)).ok_or(BAD);
    }
    if doubts.either("a checksum that is not its protocol's is completed", 0) {
        return completed(&sent.bytes, sent.asked).map(|bytes| (bytes, Asked::default(), false)).ok_or(BAD);
    }
    Err(BAD)
}

/// The protocol of the packet in a frame behind two tags at most, where its header begins, and where its
/// checksum stands in it.
fn own_sum(bytes: &[u8], doubts: &Doubts) -> Option<(u8, usize, u16)> {
    use super::headers::Transport;
    let (all, at) = tags(bytes);
    // Behind LLC nobody computes checksums for others.
    let kind = u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]);
    if all.len() > 2 || !matches!(kind, 0x0800 | 0x86dd) || is_tag(kind) {
        return None;
    }
    let What::Packet(packet) = see(bytes, false, doubts).what else { return None };
    if packet.fragment && doubts.either("a fragment's checksum", 0) {
        return None;
    }
    let Transport::Found(protocol, header) = packet.transport else { return None };
    // Behind what is looked at there may be any.
    if packet.at > 150 {
        return None;
    }
    let its = sum_at(protocol, &header)?;
    Some((protocol, packet.at, its))
}
