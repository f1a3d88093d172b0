//! What the documents promise of a frame: who gets which bytes, and who drops it and why. Written from
//! docs/switch.md and docs/configuration.md, stage by stage, without the engine's code beside it.

use std::collections::BTreeSet;

use super::asked::asked;
use super::bridge::Memory;
use super::compare::{is_of_card, takes};
use super::config::{router_four, router_station, Config, Joint, PortConfig};
use super::doubt::Doubts;
use super::frames::{station, Sent};
use super::headers::{see, tags, Seen, What, HEADER, NEAR};
use super::options::{PORTS, TUNNELS};
use super::plain::{cut, Asked};
use super::rules::{Facts, List};
use super::stand::Told;
use super::work::Work;

/// What becomes of a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    pub answers: BTreeSet<usize>,
    /// What `explain` says of it.
    pub told: Told,
    /// Frames that come out of tunnels on other hosts.
    over: Vec<Sent>,
}

impl Outcome {
    /// What became of one frame more.
    pub fn add(&mut self, mut other: Outcome) {
        self.got.append(&mut other.got);
        self.drops.append(&mut other.drops);
        self.got.sort();
        self.drops.sort();
        self.vague.extend(other.vague);
        self.answers.extend(other.answers);
        self.reached |= other.reached;
        self.told = other.told;
    }
}

/// A frame on its way: what it is in, and what it is.
pub struct Way<'m> {
    pub sent: &'m Sent,
    pub vlan: u16,
    /// Priority and drop eligibility, of the tag that told the VLAN.
    pub priority: u16,
    /// What it is cut into, each without the tag that told its VLAN.
    pub parts: Vec<Vec<u8>>,
    /// Where a cut frame's copy ends is not known.
    pub offload: bool,
    /// It asks for a checksum behind the first bytes that nobody looked at: a receiver that computes none
    /// itself does not get it.
    pub unseen: bool,
    pub seen: Seen,
}

/// The model of one configuration.
pub struct Model<'m> {
    pub config: &'m Config,
    /// Tenths of seconds since the limits were filled, at most.
    pub tenths: u64,
}

impl Model<'_> {
    pub fn port(&self, n: usize) -> &PortConfig {
        &self.config.ports[n]
    }

    pub fn list(&self, n: usize, key: &str) -> Option<&List> {
        let name = self.port(n).get(key)?;
        self.config.lists.iter().find(|list| list.name == name)
    }

    /// What becomes of `sent`, and what is remembered of it.
    pub fn judge(&self, sent: &Sent, memory: &mut Memory, doubts: &Doubts) -> Outcome {
        let mut outcome = Outcome::default();
        if let Err(why) = self.enter(sent, memory, doubts, &mut outcome) {
            outcome.drops.push((sent.port, why));
        }
        // It does not see other hosts, nor what a router makes of it, nor what a card does not want.
        let Outcome { told, drops, reached, .. } = &mut outcome;
        told.drops = drops.iter().filter(|drop| !is_of_card(drop)).copied().collect();
        told.reached = *reached;
        told.drops.sort_unstable();
        told.out.sort_unstable();
        told.out.dedup();
        let told = outcome.told.clone();
        for sent in std::mem::take(&mut outcome.over) {
            if let Err(why) = self.enter(&sent, memory, doubts, &mut outcome) {
                outcome.drops.push((sent.port, why));
            }
        }
        outcome.told = told;
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
        // What a card has made of it is what came.
        let finished = sent.work.map(|work| Sent { bytes: work.finished(&sent.bytes), ..*sent });
        let sent = finished.as_ref().unwrap_or(sent);
        let (bytes, asked, unseen) = asked(sent, doubts)?;
        let made = sent.work.map(|_| Sent { bytes: bytes.clone(), ..*sent });
        let sent = made.as_ref().unwrap_or(sent);
        let down = from.down() && doubts.either("the order at a port that is down", 0);
        if down || doubts.as_before("order", 0) {
            // Guards and lists came first, and saw the tag.
            let seen = see(&bytes, false, 0, doubts);
            if let Some(why) = pick(&from.guards().reasons(&seen, doubts), doubts) {
                return Err(why);
            }
            let vlan = self.admit(sent, doubts).map_or(0, |(vlan, ..)| vlan);
            let vlan =
                Some(vlan).filter(|vlan| *vlan != 0 && !doubts.either("VLANs at a port that is down", 0));
            let vlan = vlan.or_else(|| Some(tags(&bytes).0.first()?.1 & 0xfff));
            let facts = Facts { bytes: &bytes, vlan, seen: &seen };
            if self.list(sent.port, "acl-in").is_some_and(|list| !list.permits(&facts, doubts)) {
                return Err("acl");
            }
        }
        // No rule is promised to come before that, or after it.
        if from.down() && !doubts.either("a rule drops what comes in by a port that is down", 0) {
            return Err("link_down");
        }
        self.length(sent.port, &sent.bytes, asked, doubts)?;
        let (vlan, priority, tagged) = self.admit(sent, doubts)?;
        let without = |bytes: &[u8]| [&bytes[..12], &bytes[if tagged { 16 } else { 12 }..]].concat();
        let parts = cut(&bytes, asked).ok_or("bad_offload")?;
        let plain = without(&bytes);
        let seen = see(&plain, tagged, 0, doubts);
        let parts = parts.iter().map(|part| without(part)).collect();
        let offload = sent.asked != Asked::default() || sent.work.is_some();
        let way = Way { sent, vlan, priority, parts, offload, unseen, seen };
        let reasons = from.guards().reasons(&way.seen, doubts);
        if let Some(why) = pick(&reasons, doubts) {
            return Err(why);
        }
        let facts = facts(&way, &plain, &way.seen, from, doubts);
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
                    let told = outcome.told.clone();
                    self.mirror(sent.port, "out", &way, &plain, self.form(sent.port, &way), doubts, outcome);
                    outcome.told = told;
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
        memory.routed.insert(way.sent.port);
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
                outcome.answers.insert(n);
            }
        }
    }

    /// The MTU: four bytes more for each of two tags.
    fn length(&self, n: usize, bytes: &[u8], asked: Asked, doubts: &Doubts) -> Result<(), &'static str> {
        let most = self.port(n).number("mtu").unwrap_or(1500) as usize + 14;
        let most = most + 4 * tags(bytes).0.len().min(2);
        let len = bytes.len();
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
        if from.host().is_none() || !from.has_vlans() {
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

    /// The frame's parts as they look at a port.
    pub fn form(&self, n: usize, way: &Way<'_>) -> Vec<Vec<u8>> {
        // At the sender's own port it is as it came.
        way.parts.iter().map(|part| self.whole(n, way, part)).collect()
    }

    /// The frame, or a part of it, as it looks at a port.
    fn whole(&self, n: usize, way: &Way<'_>, plain: &[u8]) -> Vec<u8> {
        let (port, mut part) = (self.port(n), plain.to_vec());
        if port.host().is_some() && port.has_vlans() && way.vlan != port.own() {
            let control = (way.priority | way.vlan).to_be_bytes();
            part.splice(12..12, [&port.tag().to_be_bytes()[..], &control].concat());
        }
        part
    }

    /// The frame goes out by port `n`.
    pub fn leave(
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
        let bare = port.host().is_some() && port.has_vlans() && way.vlan == port.own();
        // What it carries would be the tag of its VLAN: it keeps its own, or does not leave.
        let hops = bare && tags(plain).0.first().is_some_and(|(kind, _)| *kind == port.tag());
        let hops = hops && (plain.len() >= 18 || doubts.either("a second tag that is cut", 0));
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
        if port.joint == Joint::Gateway {
            if let Err(why) = self.length(n, &self.whole(n, way, plain), way.sent.asked, doubts) {
                outcome.drops.push((n, why));
                return;
            }
        }
        let facts = facts(way, plain, &way.seen, port, doubts);
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
                outcome.answers.clear();
            }
            outcome.reached = true;
            return;
        }
        // One of several that come together fared so, and no time has passed.
        let over = outcome.drops.contains(&(n, "rate"));
        if over || !self.may(n, way, &form, memory, doubts) {
            outcome.drops.push((n, "rate"));
            return;
        }
        if deep(way, &form, port) && doubts.either("work far behind", n) {
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
        outcome.told.out.push(n);
        match port.joint {
            Joint::Tunnel(host) => self.over(host, way, form, memory, outcome),
            _ => self.arrive(n, form, doubts, outcome),
        }
    }

    /// The receiver behind port `n` gets a frame, or the parts of one, if it is not a card that drops it.
    fn arrive(&self, n: usize, form: Vec<Vec<u8>>, doubts: &Doubts, outcome: &mut Outcome) {
        let Some(card) = self.port(n).card else {
            outcome.got.extend(form.into_iter().map(|part| (n, part)));
            return;
        };
        for part in form {
            match card.gets(station(n, 0), &part, || doubts.either("one of a card's two reasons", n)) {
                Ok(frame) => outcome.got.push((n, frame)),
                Err(why) => outcome.drops.push((n, why)),
            }
        }
    }

    /// The frame goes to other hosts by the tunnel of `host`: where its station is, else to all.
    fn over(
        &self,
        host: usize,
        way: &Way<'_>,
        form: Vec<Vec<u8>>,
        memory: &mut Memory,
        outcome: &mut Outcome,
    ) {
        let isolated = way.sent.isolated || self.port(way.sent.port).is("isolated", "on");
        for bytes in form {
            let to = match host {
                0 => memory.vteps.get(&station_of(&bytes, 0)).map_or(vec![1, 2], |host| vec![*host]),
                _ => {
                    let its = station_of(&bytes, 6);
                    if its.1[0] & 1 == 0 {
                        memory.vteps.insert(its, host);
                    }
                    vec![0]
                }
            };
            for to in to {
                outcome.over.push(Sent { isolated, ..Sent::plain(TUNNELS[to], bytes.clone()) });
            }
        }
    }

    /// Whether a port's limits let it out.
    fn may(&self, n: usize, way: &Way<'_>, form: &[Vec<u8>], memory: &mut Memory, doubts: &Doubts) -> bool {
        let port = self.port(n);
        let limits = [port.number("out-rate"), port.number("out-bit-rate").map(|bits| bits / 8)];
        if limits == [None; 2] {
            return true;
        }
        let unsure = memory.unsure || !memory.routed.is_empty() || memory.over.contains(&(n, "rate"));
        let (frames, bytes) = memory.out.entry(n).or_default();
        let burst = port.number("out-burst").unwrap_or(10);
        let saved = |limit: u64| limit * burst / 1000;
        let most = |limit: u64| saved(limit) + limit * (self.tenths + 1) / 10 + 2;
        let gone = limits[0].is_some_and(|limit| *frames > most(limit))
            || limits[1].is_some_and(|limit| *bytes > most(limit) + 10_000);
        let mine: u64 = form.iter().map(|part| part.len() as u64 + 24).sum();
        let certain = limits[0].is_none_or(|limit| *frames < saved(limit).max(1))
            && limits[1].is_none_or(|limit| *bytes + mine < saved(limit));
        let of = n + (*frames as usize) * PORTS;
        if gone || !(certain && !way.offload && !unsure) && doubts.either("a rate", of) {
            memory.over.insert((n, "rate"));
            return false;
        }
        (*frames, *bytes) =
            (*frames + form.len() as u64, *bytes + form.iter().map(|part| part.len() as u64).sum::<u64>());
        true
    }

    /// Copies for the mirror of port `n`, unless it wants only those that go the way `not`.
    #[allow(clippy::too_many_arguments, reason = "what a copy depends on")]
    pub fn mirror(
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
        // With its tag, or without, it ends elsewhere.
        let seen = see(plain, false, 1 + n, doubts);
        let facts = facts(way, plain, &seen, port, doubts);
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
        if whole && deep(way, &form, self.port(to)) && doubts.either("work far behind, in a copy", n) {
            outcome.drops.push((to, "cannot_segment"));
            return;
        }
        outcome.told.out.push(to);
        match port.number("mirror-snap") {
            Some(_) if way.offload => drop(outcome.vague.insert(to)),
            snap => {
                let most = snap.map_or(usize::MAX, |snap| snap as usize);
                let cut = form.into_iter().map(|part| part[..part.len().min(most)].to_vec());
                self.arrive(to, cut.collect(), doubts, outcome);
            }
        }
    }
}

/// The station at byte `at` of a frame in a tunnel, and its VLAN as the tunnel has it.
fn station_of(bytes: &[u8], at: usize) -> (u16, [u8; 6]) {
    let tag = bytes.get(12..18).filter(|tag| matches!(tag[..2], [0x81 | 0x91, 0] | [0x88, 0xa8]));
    let vlan = tag.map_or(0, |tag| u16::from_be_bytes([tag[2], tag[3]]) & 0xfff);
    (vlan, bytes[at..at + 6].try_into().unwrap())
}

/// The parts of a frame with the tag that told its VLAN, if it had one. A router takes off those that only
/// tell a priority, two at most.
fn as_it_came(way: &Way<'_>, port: &PortConfig) -> Vec<Vec<u8>> {
    let tag = (port.host().is_some() && port.has_vlans())
        .then(|| tags(&way.sent.bytes).0.first().copied().filter(|(kind, _)| *kind == port.tag()))
        .flatten();
    let with = |part: &Vec<u8>| match tag {
        Some((kind, control)) => {
            [&part[..12], &kind.to_be_bytes(), &control.to_be_bytes(), &part[12..]].concat()
        }
        None if port.joint == Joint::Router => {
            let priority = |part: &[u8]| {
                part.len() >= 18 && part[12..14] == [0x81, 0] && part[14] & 15 == 0 && part[15] == 0
            };
            let mut part = part.clone();
            (0..2).for_each(|_| drop(priority(&part).then(|| part.drain(12..16))));
            part
        }
        None => part.clone(),
    };
    way.parts.iter().map(with).collect()
}

/// Whether a receiver leaves something to be done behind a third tag, or behind the bytes that are sure to be
/// looked at (docs/switch.md): no document promises either. One that takes it over gets the frame.
fn deep(way: &Way<'_>, form: &[Vec<u8>], port: &PortConfig) -> bool {
    let tag = |part: &[u8], at: usize| matches!(part.get(at..at + 2), Some([0x81 | 0x91, 0] | [0x88, 0xa8]));
    let asked = way.sent.asked;
    let start = way.sent.work.and_then(Work::transport_at).unwrap_or(asked.start.into());
    let taken = takes(port.accepts, &way.sent.bytes, Asked { flags: 1, ..asked });
    way.offload
        && !taken
        && form.iter().any(|part| start + HEADER > NEAR || (0..3).all(|depth| tag(part, 12 + 4 * depth)))
}

/// What lists are asked about.
fn facts<'w>(
    way: &Way<'_>,
    plain: &'w [u8],
    seen: &'w Seen,
    port: &PortConfig,
    doubts: &Doubts,
) -> Facts<'w> {
    let in_vlan = port.host().is_some() && port.has_vlans();
    // A port without VLANs takes tags for payload; whether a list may ask for them is nobody's promise.
    let outer = plain.get(12..16).filter(|tag| matches!(tag[..2], [0x81, 0] | [0x88, 0xa8] | [0x91, 0]));
    let outer = outer.map(|tag| u16::from_be_bytes([tag[2], tag[3]]) & 0xfff).filter(|vlan| *vlan != 0);
    let outer = outer.filter(|_| !in_vlan && doubts.either("a list sees tags that are payload", 0));
    Facts { bytes: plain, vlan: Some(way.vlan).filter(|vlan| *vlan != 0).or(outer), seen }
}

/// One of several reasons.
fn pick(reasons: &[&'static str], doubts: &Doubts) -> Option<&'static str> {
    let (last, others) = reasons.split_last()?;
    let first = others.iter().enumerate().find(|(n, _)| doubts.either("the order of guards", *n));
    Some(first.map_or(*last, |(_, why)| why))
}
