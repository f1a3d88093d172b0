//! The members of groups as they run: their states, their health, and the buckets that they have.
//!
//! ```text
//! joining → active → draining → drained        gone: from each of them, and from there to joining
//! ```
//!
//! A member is *joining* until all of its ports are up and it has sent something by each; a router's port has no driver, and needs
//! to send nothing. *Active*, it gets flows. *Draining*, it
//! keeps those that it has until they are idle, or for as long as `force-after` says; then it is *drained*. It is *gone* while one
//! of its ports is down, at all interfaces at once, or while it makes no progress: it has taken all buffers of a port, returns none
//! and sends nothing by any of its ports, while frames come for it. An idle member is not judged, and the last active
//! one is not taken out for that. A member that goes again and again stays out for longer each time.
//!
//! After a restart of the daemon a member that had buckets before is *expected*: for [`EXPECTED`] it counts as one that serves, so that
//! buckets stay where they are until its VMM has connected again.
//!
//! A thread of its own (`follow`) looks at all members when a link changes, and some hundred times a second while there is
//! something to wait for. It takes no lock under which ports are started or stopped.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::grouping::GroupSpec;
use super::spec::{Joint, PortSpec, ROUTER};
use super::values::{Mac, Number};
use super::view::view;
use crate::graph::{Attach, Candidate, Group, Interface, KeptGroup, Own, Settled, MAX_MEMBERS};
use crate::port::{DropReason, Port, PortId};
use crate::router::Router;
use crate::sandbox::open::{journal, JournalFile};

/// How often members are looked at while flows move or a member makes no progress, and otherwise.
const OFTEN: Duration = Duration::from_millis(5);
const SELDOM: Duration = Duration::from_millis(50);
/// A member that comes back stays out for this long, doubled each time up to the longest, until it was active for that long.
const HOLD: Duration = Duration::from_secs(1);
const LONGEST_HOLD: Duration = Duration::from_secs(60);
/// For how long a member of a former daemon keeps its buckets while it joins.
const EXPECTED: Duration = Duration::from_secs(10);

/// A port, and how it is specified.
type Placed<'p> = (&'p PortSpec, &'p Arc<Port>);

view! {
    /// One group.
    GroupView {
        /// Its name.
        name: String,
        /// The ports that are its interfaces, by number.
        interfaces: Vec<String>,
        /// Its members, by name.
        members: Vec<MemberView>,
        /// Buckets that moved while they were idle.
        moved_idle: u64,
        /// Buckets that moved because their member was gone, or had drained for as long as it may.
        moved_at_once: u64,
    }

    /// A member of a group.
    MemberView {
        /// Its name.
        name: String,
        /// `joining`, `active`, `draining`, `drained` or `gone`.
        state: String,
        /// Seconds for which it has been that.
        since_s: u64,
        /// Why it is gone, or what it waits for before it joins.
        why?: String,
        /// Its share beside those of other members.
        weight: u32,
        /// Buckets that it has, of 65,536.
        buckets: u32,
        /// Those of them that are to move when they are idle.
        waiting: u32,
        /// Its ports, by interface.
        ports: Vec<String>,
    }
}

/// Numbers that members may have.
const NUMBERS: u8 = 64;
const _: () = assert!(NUMBERS as usize == MAX_MEMBERS);

/// What a member does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemberState {
    Joining,
    Active,
    Draining,
    Drained,
    Gone,
}

impl MemberState {
    fn name(self) -> &'static str {
        match self {
            MemberState::Joining => "joining",
            MemberState::Active => "active",
            MemberState::Draining => "draining",
            MemberState::Drained => "drained",
            MemberState::Gone => "gone",
        }
    }

    /// Whether it may have flows.
    fn serves(self) -> bool {
        matches!(self, MemberState::Active | MemberState::Draining | MemberState::Drained)
    }
}

/// One port of a member.
struct Link {
    port: Arc<Port>,
    /// It is a router's: no driver has to speak by it, or to return buffers.
    native: bool,
    /// What it had sent when it joined.
    sent: u64,
    /// Frames that it had taken at the last look, and those that had found no buffer.
    taken: u64,
    full: u64,
}

impl Link {
    fn new(port: &Arc<Port>, native: bool) -> Link {
        Link { port: Arc::clone(port), native, sent: 0, taken: 0, full: 0 }
    }

    /// It has yet to send something.
    fn begin(&mut self) {
        self.sent = self.port.counters.totals().in_frames;
    }

    fn has_spoken(&self) -> bool {
        self.native || self.port.counters.totals().in_frames > self.sent
    }

    fn is_up(&self) -> bool {
        self.port.link() && !self.port.is_silent()
    }

    /// Whether frames were for it since the last look, and none found a buffer; `None` if there were no frames. Counters say so: what
    /// a peer does with its memory delays no other member here.
    fn is_stuck(&mut self) -> Option<bool> {
        if self.native {
            return None;
        }
        let totals = self.port.counters.totals();
        let of = |reason| totals.drops.get(reason as usize).copied().unwrap_or(0);
        // As many as its ring has, or as its port may have there.
        let full = of(DropReason::RingFull) + of(DropReason::QueueFull);
        let taken = std::mem::replace(&mut self.taken, totals.out_frames) != totals.out_frames;
        let lost = std::mem::replace(&mut self.full, full) != full;
        (taken || lost).then_some(lost && !taken)
    }
}

struct Member {
    number: u8,
    weight: u32,
    drains: bool,
    /// Its router has a control plane.
    controls: bool,
    /// The router whose routes it needs, told by an agent.
    feed: Option<Arc<Router>>,
    /// Those that there should be, one at each interface.
    wanted: usize,
    links: BTreeMap<u32, Link>,
    state: MemberState,
    since: Instant,
    /// Why it is gone.
    why: String,
    /// What it had sent by all of its ports, since when it makes no progress, and when the last frame was for it.
    sent: u64,
    stuck: Option<Instant>,
    asked: Instant,
    /// It may not join before that.
    hold: Duration,
    /// It was a member before a restart, and is expected again.
    expected: bool,
}

impl Member {
    fn new(number: u8, now: Instant) -> Member {
        Member {
            number,
            weight: 0,
            drains: false,
            controls: false,
            feed: None,
            wanted: 0,
            links: BTreeMap::new(),
            state: MemberState::Joining,
            since: now,
            why: String::new(),
            sent: 0,
            stuck: None,
            asked: now,
            hold: Duration::ZERO,
            expected: false,
        }
    }

    /// Whether it keeps its buckets at time `now` until it has joined.
    fn is_expected(&self, now: Instant) -> bool {
        let joins = self.state == MemberState::Joining;
        self.expected && joins && now.duration_since(self.since) < EXPECTED
    }

    /// What is missing of it.
    fn lack(&mut self) -> Option<String> {
        // What a peer sent before it went says nothing of the next one.
        self.links.values_mut().filter(|link| !link.is_up()).for_each(Link::begin);
        self.missing_port()
    }

    fn missing_port(&self) -> Option<String> {
        if self.links.len() < self.wanted {
            return Some(format!("it has {} of {} ports", self.links.len(), self.wanted));
        }
        let down = self.links.values().find(|link| !link.is_up())?;
        Some(format!("port {} is down", down.port.name))
    }

    /// What it waits for before it joins as `name`, with all of its ports up.
    fn waits_for(&self, name: &str) -> Option<String> {
        let silent = self.links.values().find(|link| !link.has_spoken());
        let silent = silent.map(|link| format!("it has sent nothing by port {}", link.port.name));
        let told = self.feed.as_ref().is_none_or(|router| router.has_copy(name));
        silent.or_else(|| (!told).then(|| "its agent has not all routes in force".to_owned()))
    }

    /// Whether it has made no progress for as long as `stall`.
    fn is_stuck(&mut self, stall: Duration, now: Instant) -> bool {
        let sent = self.links.values().map(|link| link.port.counters.totals().in_frames).sum();
        let sends = std::mem::replace(&mut self.sent, sent) != sent;
        let looks: Vec<bool> = self.links.values_mut().filter_map(Link::is_stuck).collect();
        let stuck = looks.contains(&true);
        if !looks.is_empty() {
            self.asked = now;
        }
        // It is not judged by what happened before it was idle.
        let idle = now.duration_since(self.asked) >= stall;
        if sends || idle || !looks.is_empty() && !stuck {
            self.stuck = None;
        } else if stuck {
            return now.duration_since(*self.stuck.get_or_insert(now)) >= stall;
        }
        false
    }

    fn enter(&mut self, group: &str, name: &str, state: MemberState, why: String, now: Instant) {
        let reason = if why.is_empty() { String::new() } else { format!(": {why}") };
        tracing::info!(group, member = name, "{}, was {}{reason}", state.name(), self.state.name());
        if self.state.serves() && state == MemberState::Gone {
            let calm = self.state == MemberState::Active && now.duration_since(self.since) > LONGEST_HOLD;
            self.hold = if calm { HOLD } else { (self.hold * 2).clamp(HOLD, LONGEST_HOLD) };
            self.links.values_mut().for_each(Link::begin);
        }
        (self.state, self.since, self.why, self.expected) = (state, now, why, false);
    }

    /// Its next state, and why it is gone. `alone`: no other one is active.
    fn next(
        &mut self,
        name: &str,
        stall: Duration,
        alone: bool,
        has: u32,
        now: Instant,
    ) -> Option<(MemberState, String)> {
        use MemberState::{Active, Drained, Draining, Gone, Joining};
        let stays = now.duration_since(self.since);
        let to = |state| Some((state, String::new()));
        let lack = self.lack();
        if self.state.serves() {
            let stuck = self.is_stuck(stall, now);
            if let Some(why) = lack {
                return Some((Gone, why));
            }
            if stuck && !alone {
                return Some((Gone, format!("it has returned no buffer and sent nothing for {stall:?}")));
            }
        }
        match self.state {
            Gone if lack.is_none() && stays >= self.hold => to(Joining),
            // An expected one has spoken to the former daemon, and may say nothing until it gets frames.
            Joining if lack.is_none() && (self.is_expected(now) || self.waits_for(name).is_none()) => {
                to(if self.drains { Draining } else { Active })
            }
            Active if self.drains => to(Draining),
            Draining | Drained if !self.drains => to(Active),
            Draining if has == 0 => to(Drained),
            Drained if has > 0 => to(Draining),
            _ => None,
        }
    }
}

/// A member of a group gets the routes of a router's control plane.
pub(super) struct Feed {
    pub group: String,
    pub member: String,
    pub router: Arc<Router>,
}

struct LiveGroup {
    group: Arc<Group>,
    spec: GroupSpec,
    /// The ports of its interfaces, by number.
    interfaces: BTreeMap<u32, (String, PortId)>,
    members: BTreeMap<String, Member>,
    settled: Settled,
    /// What the buckets were last settled by.
    by: (Vec<Candidate>, u64, Duration),
}

impl LiveGroup {
    fn new(spec: &GroupSpec, cores: usize, kept: Option<KeptGroup>) -> LiveGroup {
        LiveGroup {
            group: Arc::new(Group::new(cores, kept)),
            spec: spec.clone(),
            interfaces: BTreeMap::new(),
            members: BTreeMap::new(),
            settled: Settled { buckets: [0; MAX_MEMBERS], waiting: [0; MAX_MEMBERS], moved: [0; 2] },
            by: (Vec::new(), 0, Duration::ZERO),
        }
    }

    /// Has the members be those of `ports`.
    fn follow(&mut self, spec: &GroupSpec, ports: &[Placed<'_>], feeds: &[Feed], now: Instant) {
        self.spec = spec.clone();
        let number = |port: &PortSpec| port.interface.map_or(0, Number::get);
        let fronts = ports.iter().filter(|(port, _)| port.group_interface() == Some(&spec.name));
        self.interfaces = fronts.map(|(port, live)| (number(port), (port.name.clone(), live.id))).collect();
        let its = |port: &&Placed<'_>| port.0.group.as_deref() == Some(&spec.name);
        let mut links: BTreeMap<&str, BTreeMap<u32, Placed<'_>>> = BTreeMap::new();
        for at in ports.iter().filter(its) {
            links.entry(at.0.member.as_deref().unwrap_or_default()).or_default().insert(number(at.0), *at);
        }
        self.members.retain(|name, _| links.contains_key(name.as_str()));
        let group = Arc::clone(&self.group);
        let kept = |number: u8| group.kept.as_ref().map(|kept| kept.name(number.into())).unwrap_or_default();
        let earlier: BTreeMap<String, u8> = (0..NUMBERS).map(|number| (kept(number), number)).collect();
        let reserved = |number: &u8| links.contains_key(kept(*number).as_str());
        for (name, links) in &links {
            if !self.members.contains_key(*name) {
                let taken =
                    |number: &u8| self.members.values().any(|it| it.number == *number) || reserved(number);
                let known = earlier.get(*name).copied();
                let Some(number) = known.or_else(|| (0..NUMBERS).find(|it| !taken(it))) else { continue };
                let expected = known.is_some_and(|number| group.has_buckets(number));
                self.members.insert((*name).to_owned(), Member { expected, ..Member::new(number, now) });
            }
            let Some(member) = self.members.get_mut(*name) else { continue };
            (member.weight, member.drains) = (spec.weight(name), spec.drains(name));
            member.wanted = self.interfaces.len();
            let beside =
                |port: &PortSpec| ports.iter().any(|(it, _)| it.joint() == Joint::Control(&port.name));
            member.controls = links.values().any(|(port, _)| beside(port));
            let feeds = feeds.iter().find(|feed| feed.group == spec.name && feed.member == **name);
            member.feed = feeds.map(|feed| Arc::clone(&feed.router));
            member
                .links
                .retain(|number, link| links.get(number).is_some_and(|(_, live)| live.id == link.port.id));
            for (number, (port, live)) in links {
                member.links.entry(*number).or_insert_with(|| Link::new(live, port.kind == ROUTER));
            }
        }
        for kept in group.kept.iter() {
            let names: BTreeMap<u8, &String> =
                self.members.iter().map(|(name, it)| (it.number, name)).collect();
            (0..NUMBERS)
                .for_each(|number| kept.set_name(number.into(), names.get(&number).map_or("", |name| name)));
        }
    }

    /// Brings states up to date, and buckets to where they should be. Whether it has to be looked at again soon.
    fn tend(&mut self, now: Instant) -> bool {
        let LiveGroup { group, spec, members, settled, by, .. } = self;
        let stall = spec.stall();
        for name in members.keys().cloned().collect::<Vec<_>>() {
            let active = |(other, it): (&String, &Member)| *other != name && it.state == MemberState::Active;
            let alone = !members.iter().any(active);
            let Some(member) = members.get_mut(&name) else { continue };
            let has = settled.buckets.get(usize::from(member.number)).copied().unwrap_or(0);
            while let Some((state, why)) = member.next(&name, stall, alone, has, now) {
                member.enter(&spec.name, &name, state, why, now);
            }
        }
        let all = || members.iter();
        let is = |state| move |(_, it): &(&String, &Member)| it.state == state;
        let candidate = |(name, it): (&String, &Member)| Candidate::new(it.number, name, it.weight);
        let some = |state| all().filter(is(state)).map(candidate).collect::<Vec<_>>();
        let expected = || all().filter(|(_, it)| it.is_expected(now));
        let active = some(MemberState::Active);
        let late = |it: &Member| spec.force_after().is_some_and(|most| now.duration_since(it.since) >= most);
        let forced = |it: &Member| it.state == MemberState::Draining && late(it) && !active.is_empty();
        let stays = |it: &Member| (it.state.serves() || it.is_expected(now)) && !forced(it);
        let leave = !all().filter(|(_, it)| stays(it)).fold(0, |bits, (_, it)| bits | 1 << it.number);
        // Flows that no other member could have stay, or come back, where they are not wanted.
        let last = || [some(MemberState::Draining), some(MemberState::Drained)].concat();
        let mut candidates = active;
        candidates.extend(expected().filter(|(_, it)| !it.drains).map(candidate));
        let candidates = if candidates.is_empty() { last() } else { candidates };
        group.set_speaker(speaker(members));
        // While one is expected no flow moves for being idle.
        let idle = if expected().next().is_some() { Duration::MAX } else { spec.idle() };
        let wanted = (candidates, leave, idle);
        let waits = settled.waiting.iter().any(|n| *n > 0);
        if *by != wanted || waits {
            let moved = settled.moved;
            *settled = group.settle(&wanted.0, wanted.1, wanted.2);
            settled.moved = [0, 1].map(|n| moved[n] + settled.moved[n]);
            *by = wanted;
        }
        waits || members.values().any(|it| it.stuck.is_some())
    }

    fn view(&self, now: Instant) -> GroupView {
        let member = |(name, it): (&String, &Member)| {
            let count = |all: &[u32; MAX_MEMBERS]| all.get(usize::from(it.number)).copied().unwrap_or(0);
            MemberView {
                name: name.clone(),
                state: it.state.name().to_owned(),
                since_s: now.duration_since(it.since).as_secs(),
                why: match it.state {
                    MemberState::Joining => it.missing_port().or_else(|| it.waits_for(name)),
                    _ => Some(it.why.clone()).filter(|why| !why.is_empty()),
                },
                weight: it.weight,
                buckets: count(&self.settled.buckets),
                waiting: count(&self.settled.waiting),
                ports: it.links.values().map(|link| link.port.name.clone()).collect(),
            }
        };
        let [moved_idle, moved_at_once] = self.settled.moved;
        GroupView {
            name: self.spec.name.clone(),
            interfaces: self.interfaces.values().map(|(name, _)| name.clone()).collect(),
            members: self.members.iter().map(member).collect(),
            moved_idle,
            moved_at_once,
        }
    }
}

/// The number of the member that speaks for all `members`: what is for the group itself is for a control plane, if one of them has
/// that.
fn speaker(members: &BTreeMap<String, Member>) -> Option<u8> {
    let order = [MemberState::Active, MemberState::Draining, MemberState::Drained, MemberState::Joining];
    let first = |state| {
        let its = members.values().filter(|it| it.state == state);
        its.min_by_key(|it| !it.controls)
    };
    order.into_iter().find_map(first).map(|it| it.number)
}

/// The groups that there are.
#[derive(Default)]
pub(super) struct Groups(BTreeMap<String, LiveGroup>);

/// The name of a group's file among the ports' journals; no port has such a name.
pub(super) fn journal_of(group: &str) -> String {
    format!("@{group}")
}

/// What a former daemon has left of `group`, or a new file. None if there is no file: that is logged.
pub(super) fn kept(group: &str) -> Option<KeptGroup> {
    let open = |it: JournalFile| KeptGroup::open(&it.file, Group::new_key()).map_err(|e| (it.path, e));
    let kept = journal(&journal_of(group)).and_then(|journal| journal.map(open).transpose());
    kept.unwrap_or_else(|(path, e)| {
        tracing::warn!(group, "{}: {e}; after a restart its flows may have other members", path.display());
        None
    })
}

impl Groups {
    /// Makes group `spec`, which has this file.
    pub fn make(&mut self, spec: &GroupSpec, cores: usize, kept: Option<KeptGroup>) {
        self.0.insert(spec.name.clone(), LiveGroup::new(spec, cores, kept));
    }

    /// Whether there is a group of this name.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Ends all of them: what they keep stays as it is.
    pub fn end(&mut self) {
        self.0.clear();
    }

    /// Has the groups be those of `specs`, with members of `ports`; buckets of members that are none any more move at once.
    pub fn follow(&mut self, specs: &[GroupSpec], ports: &[Placed<'_>], feeds: &[Feed], cores: usize) {
        let now = Instant::now();
        self.0.retain(|name, _| specs.iter().any(|spec| spec.name == *name));
        for spec in specs {
            let live = self.0.entry(spec.name.clone()).or_insert_with(|| LiveGroup::new(spec, cores, None));
            live.follow(spec, ports, feeds, now);
            live.tend(now);
        }
    }

    /// Looks at all members. For how long there is nothing to do but to wait for links; for ever, if there are no groups.
    pub fn tend(&mut self, now: Instant) -> Option<Duration> {
        let soon = self.0.values_mut().fold(false, |soon, group| group.tend(now) | soon);
        (!self.0.is_empty()).then_some(if soon { OFTEN } else { SELDOM })
    }

    /// What `spec` attaches a port to that is of a group. The rest of it leads `beyond`: from an interface to where that stands, from
    /// a router's port to the router.
    pub fn attach(&self, spec: &PortSpec, beyond: Attach) -> Attach {
        let number = spec.interface.map_or(0, Number::get);
        if let Some(live) = spec.group.as_ref().and_then(|group| self.0.get(group)) {
            let member = spec.member.as_ref().and_then(|name| live.members.get(name));
            let (Some((_, port)), Some(member)) = (live.interfaces.get(&number), member) else {
                return Attach::Nothing;
            };
            let behind = Attach::Behind(*port, member.number);
            return match beyond {
                Attach::Router(router) => Attach::Gateway(router, Box::new(behind)),
                _ => behind,
            };
        }
        let Some(live) = spec.group_interface().and_then(|group| self.0.get(group)) else { return beyond };
        let behind = |it: &Member| Some((it.number, it.links.get(&number)?.port.id));
        let addresses = spec.address.iter().flat_map(|nets| nets.0.iter().map(|net| net.address));
        Attach::Interface(Arc::new(Interface {
            group: Arc::clone(&live.group),
            ports: live.members.values().filter_map(behind).collect(),
            own: Own::new(addresses, spec.mac.map(|Mac(mac)| mac)),
            beyond,
        }))
    }

    /// For people.
    pub fn view(&self) -> Vec<GroupView> {
        let now = Instant::now();
        self.0.values().map(|group| group.view(now)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::Lease;
    use crate::observe::CounterFile;
    use crate::packet::Batch;
    use crate::port::{EgressQueue, Outcome, Tally, DEFAULT_MTU};

    struct Peer;

    impl EgressQueue for Peer {
        fn send(&mut self, _: &Batch, _: &[u16], _: &mut Outcome) {}
    }

    struct Rig {
        live: LiveGroup,
        ports: Vec<Arc<Port>>,
        peers: Vec<Option<Lease<Peer>>>,
        now: Instant,
        _file: CounterFile,
    }

    impl Rig {
        /// Two members with two ports each: a has ports 0 and 1, b has 2 and 3.
        fn new() -> Rig {
            let file = CounterFile::anonymous().unwrap();
            let port = |id| {
                let counters = file.open_slot(PortId(id), &format!("p{id}"));
                Arc::new(Port::new(PortId(id), &format!("p{id}"), counters, DEFAULT_MTU).unwrap())
            };
            let ports: Vec<_> = (0..4).map(port).collect();
            let (spec, now) = (GroupSpec { name: "g".to_owned(), ..GroupSpec::default() }, Instant::now());
            let mut live = LiveGroup::new(&spec, 1, None);
            for (number, name) in [(0u8, "a"), (1, "b")] {
                let mut member = Member::new(number, now);
                (member.weight, member.wanted) = (100, 2);
                let its = (0..).zip(&ports[usize::from(number) * 2..][..2]);
                member.links = its.map(|(n, port)| (n, Link::new(port, false))).collect();
                live.members.insert(name.to_owned(), member);
            }
            let mut rig = Rig { live, ports, peers: Vec::new(), now, _file: file };
            rig.peers = (0..4).map(|port| Some(rig.peer(port))).collect();
            rig
        }

        fn peer(&self, port: usize) -> Lease<Peer> {
            self.ports[port].lend(0, Peer)
        }

        fn says(&self, ports: &[usize]) {
            let one = Tally { frames: 1, ..Tally::default() };
            ports.iter().for_each(|port| self.ports[*port].counters.block(0).add_tally(&one));
        }

        /// Of the frames for a port `taken` found a buffer, and `full` did not.
        fn gets(&self, port: usize, taken: u64, full: u32) {
            self.gets_or_loses(port, taken, DropReason::RingFull, full);
        }

        fn gets_or_loses(&self, port: usize, taken: u64, why: DropReason, lost: u32) {
            let mut outcome = Outcome::new();
            outcome.frames = taken;
            outcome.drops.add(why, lost);
            self.ports[port].counters.block(0).add_outcome(&outcome);
        }

        /// The states of both, and their buckets, when some time has passed.
        fn after(&mut self, ms: u64) -> [(&'static str, u32); 2] {
            self.now += Duration::from_millis(ms);
            self.live.tend(self.now);
            ["a", "b"].map(|name| {
                let member = &self.live.members[name];
                (member.state.name(), self.live.settled.buckets[usize::from(member.number)])
            })
        }
    }

    #[test]
    fn a_member_joins_when_it_has_spoken_by_all_ports_and_one_dead_port_takes_it_out() {
        let mut rig = Rig::new();
        assert_eq!(rig.after(1), [("joining", 0); 2]);
        rig.says(&[0, 2, 3]);
        assert_eq!(rig.after(1), [("joining", 0), ("active", 1 << 16)]);
        rig.says(&[1]);
        let [a, b] = rig.after(1);
        assert_eq!((a.0, b.0, a.1 + b.1), ("active", "active", 1 << 16));
        assert!(a.1.abs_diff(b.1) < 3000);
        rig.peers[1] = None;
        assert_eq!(rig.after(1), [("gone", 0), ("active", 1 << 16)]);
        assert_eq!(rig.live.members["a"].why, "port p1 is down");
        // Back: it has to speak again by all, and waits for longer each time.
        rig.peers[1] = Some(rig.peer(1));
        rig.says(&[0]);
        assert_eq!(rig.after(900)[0].0, "gone");
        assert_eq!(rig.after(200)[0].0, "joining");
        rig.says(&[1]);
        assert_eq!(rig.after(1)[0], a);
        rig.peers[0] = None;
        assert_eq!(rig.after(1)[0].0, "gone");
        rig.peers[0] = Some(rig.peer(0));
        rig.says(&[0, 1]);
        assert_eq!((rig.after(1_900)[0].0, rig.after(200)[0].0), ("gone", "active"));
    }

    #[test]
    fn who_takes_buffers_returns_none_and_says_nothing_is_gone_unless_it_is_the_last() {
        let mut rig = Rig::new();
        rig.says(&[0, 1, 2, 3]);
        rig.after(1);
        let states = |got: [(&'static str, u32); 2]| got.map(|it| it.0);
        // It takes all; then it is full, but nothing more comes for it.
        rig.gets(0, 256, 0);
        assert_eq!(states(rig.after(1000)), ["active"; 2]);
        rig.gets(0, 0, 9);
        assert_eq!(states(rig.after(1)), ["active"; 2]);
        assert_eq!(states(rig.after(10_000)), ["active"; 2]);
        for _ in 0..20 {
            // It sends by another port.
            rig.gets(0, 0, 1);
            rig.says(&[1]);
            assert_eq!(states(rig.after(100)), ["active"; 2]);
        }
        for _ in 0..20 {
            // It returns some.
            rig.gets(0, 1, 100);
            assert_eq!(states(rig.after(100)), ["active"; 2]);
        }
        // Whether its ring is full, or its queue there.
        let gone = (0..10).find(|at| {
            rig.gets_or_loses(
                0,
                0,
                if at % 2 == 0 { DropReason::RingFull } else { DropReason::QueueFull },
                1,
            );
            rig.after(100)[0] == ("gone", 0)
        });
        assert_eq!(gone, Some(5));
        // The other one is the last.
        for _ in 0..20 {
            rig.gets(2, 0, 20);
            assert_eq!(rig.after(100)[1], ("active", 1 << 16));
        }
    }

    /// Guests that are silent until frames come for them, as a router's are, would wait for each other.
    #[test]
    fn a_member_of_the_former_daemon_is_active_when_its_ports_are_up_if_it_comes_in_time() {
        let mut rig = Rig::new();
        rig.live.members.values_mut().for_each(|it| it.expected = true);
        rig.peers = vec![None, None, Some(rig.peer(2)), Some(rig.peer(3))];
        let [a, b] = rig.after(1);
        assert_eq!((a.0, b.0, a.1 + b.1), ("joining", "active", 1 << 16));
        assert!(a.1 > 30_000, "{a:?}");
        // It is too late, and its flows are the other's.
        assert_eq!(rig.after(10_000), [("joining", 0), ("active", 1 << 16)]);
        (rig.peers[0], rig.peers[1]) = (Some(rig.peer(0)), Some(rig.peer(1)));
        assert_eq!(rig.after(1)[0], ("joining", 0));
        rig.says(&[0, 1]);
        assert_eq!(rig.after(1)[0].0, "active");
    }

    #[test]
    fn a_drain_ends_when_flows_are_idle() {
        let mut rig = Rig::new();
        rig.says(&[0, 1, 2, 3]);
        rig.after(1);
        let drain = |rig: &mut Rig, yes| rig.live.members.get_mut("a").unwrap().drains = yes;
        drain(&mut rig, true);
        // No core has used any for as long as this machine runs.
        rig.after(1);
        assert_eq!(rig.after(1), [("drained", 0), ("active", 1 << 16)]);
        drain(&mut rig, false);
        let [a, _] = rig.after(1);
        assert!(a.0 == "active" && a.1 > 30_000, "{a:?}");
    }

    #[test]
    fn a_router_has_no_driver_to_wait_for_or_to_judge_and_its_control_plane_speaks() {
        let mut rig = Rig::new();
        rig.live.members.get_mut("b").unwrap().links.values_mut().for_each(|link| link.native = true);
        assert_eq!(rig.after(1), [("joining", 0), ("active", 1 << 16)]);
        assert_eq!(speaker(&rig.live.members), Some(1));
        rig.says(&[0, 1]);
        assert_eq!(rig.after(1)[0].0, "active");
        assert_eq!(speaker(&rig.live.members), Some(0));
        rig.live.members.get_mut("b").unwrap().controls = true;
        assert_eq!(speaker(&rig.live.members), Some(1));
        // Its port counts what it drops, and takes nothing.
        for _ in 0..20 {
            rig.gets(2, 0, 20);
            assert_eq!(rig.after(100)[1].0, "active");
        }
        rig.peers[2] = None;
        assert_eq!(rig.after(1)[1], ("gone", 0));
        assert_eq!(speaker(&rig.live.members), Some(0));
    }
}
