//! Groups as they run: their members (`member`), and the buckets that these have.
//!
//! After a restart of the daemon a member that had buckets before is *expected*: for ten seconds it counts as
//! one that serves, so that buckets stay where they are until its VMM has connected again.
//!
//! A thread of its own (`follow`) looks at all members when a link changes, and some hundred times a second
//! while there is something to wait for. It takes no lock under which ports are started or stopped.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::grouping::GroupSpec;
use super::member::{Link, Member, MemberState};
use super::spec::{Joint, PortSpec, ROUTER};
use super::values::{Mac, Number};
use crate::graph::{Attach, Candidate, Group, Interface, KeptGroup, Own, Probes, Settled, MAX_MEMBERS};
use crate::port::{Port, PortId};
use crate::router::Router;
use crate::sandbox::open::{journal, JournalFile};

/// How often members are looked at while flows move or a member makes no progress, and otherwise.
const OFTEN: Duration = Duration::from_millis(5);
const SELDOM: Duration = Duration::from_millis(50);

/// A port, and how it is specified.
type Placed<'p> = (&'p PortSpec, &'p Arc<Port>);

crate::util::form::view! {
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
        /// What it does.
        state: String = ["joining", "active", "draining", "drained", "gone"],
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
        /// Probes in a row that it has missed; absent if it gets none.
        probes_missed?: u32,
        /// Its ports, by interface.
        ports: Vec<String>,
    }
}

/// Numbers that members may have.
const NUMBERS: u8 = 64;
const _: () = assert!(NUMBERS as usize == MAX_MEMBERS);

/// A member of a group gets the routes of a router's control plane.
pub(super) struct Feed {
    pub group: String,
    pub member: String,
    pub router: Arc<Router>,
}

struct LiveGroup {
    group: Arc<Group>,
    spec: GroupSpec,
    /// The ports of its interfaces, by number, and the station address of each.
    interfaces: BTreeMap<u32, (String, PortId, Option<Mac>)>,
    members: BTreeMap<String, Member>,
    settled: Settled,
    /// What the buckets were last settled by.
    by: (Vec<Candidate>, u64, Duration),
    /// When the next probes are due, and what those share that are on their way to a core.
    probe_at: Instant,
    pending: Arc<()>,
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
            probe_at: Instant::now(),
            pending: Arc::default(),
        }
    }

    /// Has the members be those of `ports`.
    fn follow(&mut self, spec: &GroupSpec, ports: &[Placed<'_>], feeds: &[Feed], now: Instant) {
        if self.spec.probe != spec.probe {
            self.members.values_mut().for_each(|it| it.probes = 0);
        }
        self.spec = spec.clone();
        let number = |port: &PortSpec| port.interface.map_or(0, Number::get);
        let fronts = ports.iter().filter(|(port, _)| port.group_interface() == Some(&spec.name));
        let front = |(port, live): &Placed<'_>| (number(port), (port.name.clone(), live.id, port.mac));
        self.interfaces = fronts.map(front).collect();
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

    /// Brings states up to date, and buckets to where they should be. Whether it has to be looked at again
    /// soon.
    fn tend(&mut self, now: Instant) -> bool {
        let LiveGroup { group, spec, members, settled, by, .. } = self;
        let stall = spec.stall();
        for name in members.keys().cloned().collect::<Vec<_>>() {
            let active =
                |(other, it): &(&String, &Member)| **other != name && it.state == MemberState::Active;
            let (others, floor) = (members.iter().filter(active).count(), spec.probe_floor(members.len()));
            let Some(member) = members.get_mut(&name) else { continue };
            let alone = others == 0;
            member.judged = spec.probe.is_some() && others >= floor;
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

    /// Notes what has become of the last probes, and makes the next ones if it is time.
    fn probe(&mut self, now: Instant) -> Option<Probes> {
        let to = self.spec.probe?;
        if Arc::strong_count(&self.pending) > 1 {
            // Members have all their time from when a core has sent them.
            self.probe_at = now + self.spec.stall();
        }
        if now < self.probe_at {
            return None;
        }
        self.probe_at = now + self.spec.stall();
        let (front, (_, at, mac)) = self.interfaces.first_key_value()?;
        let Mac(mac) = (*mac)?;
        for member in self.members.values_mut() {
            member.note_probe(*front, self.group.probes.passed(member.number));
        }
        let up = self.members.values().filter(|it| it.missing_port().is_none());
        let up: Vec<u8> = up.map(|it| it.number).collect();
        Some(Probes::new(*at, mac, to, &up, &self.pending))
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
                probes_missed: self.spec.probe.map(|_| it.probes.min(0).unsigned_abs()),
                ports: it.links.values().map(|link| link.port.name.clone()).collect(),
            }
        };
        let [moved_idle, moved_at_once] = self.settled.moved;
        GroupView {
            name: self.spec.name.clone(),
            interfaces: self.interfaces.values().map(|(name, ..)| name.clone()).collect(),
            members: self.members.iter().map(member).collect(),
            moved_idle,
            moved_at_once,
        }
    }
}

/// The number of the member that speaks for all `members`: what is for the group itself is for a control
/// plane, if one of them has that.
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

    /// Has the groups be those of `specs`, with members of `ports`; buckets of members that are none any more
    /// move at once.
    pub fn follow(&mut self, specs: &[GroupSpec], ports: &[Placed<'_>], feeds: &[Feed], cores: usize) {
        let now = Instant::now();
        self.0.retain(|name, _| specs.iter().any(|spec| spec.name == *name));
        for spec in specs {
            let live = self.0.entry(spec.name.clone()).or_insert_with(|| LiveGroup::new(spec, cores, None));
            live.follow(spec, ports, feeds, now);
            live.tend(now);
        }
    }

    /// Looks at all members, and has `send` send their probes. For how long there is nothing to do but to
    /// wait for links; for ever, if there are no groups.
    pub fn tend(&mut self, now: Instant, mut send: impl FnMut(Probes)) -> Option<Duration> {
        self.0.values_mut().filter_map(|group| group.probe(now)).for_each(&mut send);
        let soon = self.0.values_mut().fold(false, |soon, group| group.tend(now) | soon);
        (!self.0.is_empty()).then_some(if soon { OFTEN } else { SELDOM })
    }

    /// What `spec` attaches a port to that is of a group. The rest of it leads `beyond`: from an interface to
    /// where that stands, from a router's port to the router.
    pub fn attach(&self, spec: &PortSpec, ports: &[Placed<'_>], beyond: Attach) -> Attach {
        let number = spec.interface.map_or(0, Number::get);
        if let Some(live) = spec.group.as_ref().and_then(|group| self.0.get(group)) {
            let member = spec.member.as_ref().and_then(|name| live.members.get(name));
            let (Some((_, port, _)), Some(member)) = (live.interfaces.get(&number), member) else {
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
        // The address of a router's port is the router's: what the group is called there, its members' ports
        // say.
        let of_group = |port: &PortSpec| match spec.router {
            None => port.name == spec.name,
            Some(_) => port.front([spec]).is_some(),
        };
        let nets =
            ports.iter().filter(|(port, _)| of_group(port)).filter_map(|(port, _)| port.address.as_ref());
        let addresses = nets.flat_map(|nets| nets.0.iter().map(|net| net.address));
        Attach::Interface(Arc::new(Interface {
            group: Arc::clone(&live.group),
            ports: live.members.values().filter_map(behind).collect(),
            own: Own::new(addresses, spec.mac.map(|Mac(mac)| mac), live.spec.probe),
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
    use crate::port::{DropReason, EgressQueue, Outcome, Tally, DEFAULT_MTU};

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
            Rig::of(2)
        }

        fn of(members: u8) -> Rig {
            let file = CounterFile::anonymous().unwrap();
            let port = |id| {
                let counters = file.open_slot(PortId(id), &format!("p{id}"));
                Arc::new(Port::new(PortId(id), &format!("p{id}"), counters, DEFAULT_MTU).unwrap())
            };
            let ports: Vec<_> = (0..2 * u16::from(members)).map(port).collect();
            let (spec, now) = (GroupSpec { name: "g".to_owned(), ..GroupSpec::default() }, Instant::now());
            let mut live = LiveGroup::new(&spec, 1, None);
            for (number, name) in (0..members).zip(["a", "b", "c", "d"]) {
                let mut member = Member::new(number, now);
                (member.weight, member.wanted) = (100, 2);
                let its = (0..).zip(&ports[usize::from(number) * 2..][..2]);
                member.links = its.map(|(n, port)| (n, Link::new(port, false))).collect();
                live.members.insert(name.to_owned(), member);
            }
            let mut rig = Rig { live, ports, peers: Vec::new(), now, _file: file };
            rig.peers = (0..rig.ports.len()).map(|port| Some(rig.peer(port))).collect();
            rig
        }

        fn peer(&self, port: usize) -> Lease<Peer> {
            self.ports[port].lend(0, Peer)
        }

        fn says(&self, ports: &[usize]) {
            let one = Tally { frames: 1, ..Tally::default() };
            ports.iter().for_each(|port| self.ports[*port].counters.block(0).add_tally(&one));
        }

        /// `taken` frames for a port find a buffer, and `full` do not.
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

    impl Rig {
        /// Has all members pass `count` probes, or not, one after the other; their states then.
        fn probed(&mut self, passed: &[bool], count: usize) -> String {
            for _ in 0..count {
                self.now += Duration::from_millis(500);
                let noted = self.live.members.values_mut().zip(passed);
                noted.for_each(|(member, passed)| member.note_probe(0, Some(*passed)));
                self.live.tend(self.now);
            }
            self.live.members.values().map(|it| it.state.name().chars().next().unwrap()).collect()
        }

        fn with_probes(members: u8, floor: Option<&str>) -> Rig {
            let mut rig = Rig::of(members);
            rig.live.spec.probe = Some([192, 0, 2, 1].into());
            rig.live.spec.probe_floor = floor.map(|floor| floor.parse().unwrap());
            rig.says(&(0..rig.ports.len()).collect::<Vec<_>>());
            rig
        }
    }

    #[test]
    fn a_member_that_forwards_nothing_is_gone_after_three_probes_and_joins_after_five() {
        let mut rig = Rig::with_probes(2, None);
        // The first one joins in any case, the other one when it has shown that it forwards.
        assert_eq!(rig.after(1), [("active", 1 << 16), ("joining", 0)]);
        let why = rig.live.view(rig.now).members[1].why.clone();
        assert_eq!(why.as_deref(), Some("it has yet to pass 5 probes in a row"));
        assert_eq!((rig.probed(&[true; 2], 4), rig.probed(&[true; 2], 1)), ("aj".into(), "aa".into()));
        // It misses some, but not in a row.
        for _ in 0..5 {
            assert_eq!(rig.probed(&[false, true], 2), "aa");
            assert_eq!(rig.probed(&[true; 2], 1), "aa");
        }
        assert_eq!(rig.probed(&[false, true], 2), "aa");
        assert_eq!(rig.live.view(rig.now).members[0].probes_missed, Some(2));
        assert_eq!(rig.probed(&[false, true], 1), "ga");
        assert_eq!(rig.live.members["a"].why, "it has missed 3 probes in a row");
        // Back: what it passes while it has to stay out counts; one that it misses has it begin anew.
        assert_eq!((rig.probed(&[true; 2], 4), rig.probed(&[false, true], 1)), ("ja".into(), "ja".into()));
        assert_eq!((rig.probed(&[true; 2], 4), rig.probed(&[true; 2], 1)), ("ja".into(), "aa".into()));
        // Then the other one, whose ports also go: nothing counts that was before.
        rig.peers[2] = None;
        assert_eq!(rig.probed(&[true; 2], 1), "ag");
        rig.peers[2] = Some(rig.peer(2));
        rig.says(&[2, 3]);
        assert_eq!((rig.probed(&[true; 2], 4), rig.probed(&[true; 2], 1)), ("aj".into(), "aa".into()));
    }

    #[test]
    fn probes_alone_take_out_no_more_members_than_down_to_the_floor() {
        for (floor, left) in [(None, "ggaa"), (Some("3"), "gaaa"), (Some("1"), "ggga"), (Some("9"), "aaaa")] {
            let mut rig = Rig::with_probes(4, floor);
            assert_eq!(rig.probed(&[true; 4], 5), "aaaa");
            assert_eq!(rig.probed(&[false; 4], 3), left, "{floor:?}");
            // However long that lasts: they do not take turns.
            let waits = left.replace('g', "j");
            assert_eq!((rig.probed(&[false; 4], 5), rig.probed(&[false; 4], 200)), (waits.clone(), waits));
        }
        // Who is out comes back when another one's port goes down, whatever its probes say, and makes room
        // again.
        let mut rig = Rig::with_probes(4, None);
        rig.probed(&[true; 4], 5);
        assert_eq!(rig.probed(&[false, false, true, true], 9), "jjaa");
        rig.peers[4] = None;
        assert_eq!(rig.probed(&[false, false, true, true], 2), "ajga");
        rig.peers[4] = Some(rig.peer(4));
        rig.says(&[4, 5]);
        assert_eq!(rig.probed(&[false, false, true, true], 20), "jjaa");
        // Without probes nothing of that is left.
        rig.live.spec.probe = None;
        assert_eq!(rig.probed(&[false; 4], 200), "aaaa");
    }

    #[test]
    fn a_member_that_visibly_forwards_is_not_judged_by_probes_that_it_drops() {
        let mut rig = Rig::with_probes(2, None);
        rig.probed(&[true; 2], 5);
        let busy = |rig: &mut Rig, into: u64, out: u64| {
            rig.gets(0, into, 0);
            rig.ports[1].counters.block(0).add_tally(&Tally { frames: out, ..Tally::default() });
            rig.probed(&[false, true], 1)
        };
        for _ in 0..9 {
            assert_eq!(busy(&mut rig, 1000, 300), "aa");
        }
        assert_eq!(busy(&mut rig, 60, 60), "aa");
        assert_eq!(busy(&mut rig, 1000, 200), "aa");
        assert_eq!(busy(&mut rig, 0, 9000), "ga");
    }

    #[test]
    fn probes_are_made_each_stall_for_members_with_a_link_when_the_last_ones_are_sent() {
        let mut rig = Rig::with_probes(2, None);
        rig.peers[1] = None;
        let made = |rig: &mut Rig, ms| {
            rig.now += Duration::from_millis(ms);
            rig.live.probe(rig.now)
        };
        assert!(made(&mut rig, 1).is_none(), "it has no interface");
        rig.live.interfaces.insert(0, ("g0".to_owned(), PortId(9), Some(Mac([2; 6]))));
        assert!(made(&mut rig, 499).is_none());
        let first = made(&mut rig, 1).unwrap();
        assert_eq!(first.all.iter().map(|it| it.0).collect::<Vec<_>>(), [1]);
        assert!(made(&mut rig, 600).is_none(), "a core has yet to send them");
        drop(first);
        assert!(made(&mut rig, 499).is_none());
        assert!(made(&mut rig, 1).is_some());
    }

    #[test]
    fn a_member_with_an_agent_joins_when_its_routes_are_in_force() {
        let mut rig = Rig::new();
        let router = Arc::new(Router::new("r").unwrap());
        rig.live.members.get_mut("b").unwrap().feed = Some(Arc::clone(&router));
        rig.says(&[0, 1, 2, 3]);
        router.set_copy("a", true);
        assert_eq!(rig.after(1), [("active", 1 << 16), ("joining", 0)]);
        let why = rig.live.view(rig.now).members[1].why.clone();
        assert_eq!(why.as_deref(), Some("its agent has not all routes in force"));
        router.set_copy("b", true);
        assert_eq!(rig.after(1)[1].0, "active");
        // An agent that goes takes no member along: its kernel has the routes.
        router.set_copy("b", false);
        assert_eq!(rig.after(1)[1].0, "active");
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
