//! A member of a group: its state, and its health.
//!
//! ```text
//! joining → active → draining → drained        gone: from each of them, and from there to joining
//! ```
//!
//! A member is *joining* until all of its ports are up and it has sent something by each, and the routes that
//! an agent tells it are in force; a router's port has no driver, and needs to send nothing. *Active*, it
//! gets flows. *Draining*, it keeps those that it has until they are idle, or for as long as `force-after`
//! says; then it is *drained*. It is *gone* while one of its ports is down, at all interfaces at once, or
//! while it makes no progress: it has taken all buffers of a port, returns none and sends nothing by any of
//! its ports, while frames come for it. An idle member is not judged, and the last active one is not taken
//! out for that. A member that goes again and again stays out for longer each time.
//!
//! With probes it is gone, too, when it has missed a few in a row, and joins when it has passed a few; but
//! only where others enough are active (their floor). A member that is busy may well drop a probe. So one
//! that sends out elsewhere a good part of what comes in where probes do passes them, whatever becomes of
//! them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::port::{DropReason, Port};
use crate::router::Router;

/// A member that comes back stays out for this long, doubled each time up to the longest, until it was active
/// for that long.
const HOLD: Duration = Duration::from_secs(1);
const LONGEST_HOLD: Duration = Duration::from_secs(60);
/// A member that misses this many probes in a row is gone, and one that passes this many may join.
const MISSES: i32 = 3;
const PASSES: i32 = 5;
/// So many frames between two probes tell whether a member forwards: it does if it sends one for each so many
/// of them.
const TELLING: u64 = 64;
const PART: u64 = 4;
/// For how long a member of a former daemon keeps its buckets while it joins.
const EXPECTED: Duration = Duration::from_secs(10);

/// What a member does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberState {
    Joining,
    Active,
    Draining,
    Drained,
    Gone,
}

impl MemberState {
    pub fn name(self) -> &'static str {
        match self {
            MemberState::Joining => "joining",
            MemberState::Active => "active",
            MemberState::Draining => "draining",
            MemberState::Drained => "drained",
            MemberState::Gone => "gone",
        }
    }

    /// Whether it may have flows.
    pub fn serves(self) -> bool {
        matches!(self, MemberState::Active | MemberState::Draining | MemberState::Drained)
    }
}

/// One port of a member.
pub(super) struct Link {
    pub port: Arc<Port>,
    /// It is a router's: no driver has to speak by it, or to return buffers.
    pub native: bool,
    /// What it had sent when it joined.
    pub sent: u64,
    /// Frames that it had taken at the last look, and those that had found no buffer.
    pub taken: u64,
    pub full: u64,
}

impl Link {
    pub fn new(port: &Arc<Port>, native: bool) -> Link {
        Link { port: Arc::clone(port), native, sent: 0, taken: 0, full: 0 }
    }

    /// Frames into the member, and those that it has sent.
    fn passed(&self) -> [u64; 2] {
        let totals = self.port.counters.totals();
        let [out, into] = [totals.in_frames, totals.out_frames];
        // At a router's port what enters the router counts as coming in.
        if self.native {
            [out, into]
        } else {
            [into, out]
        }
    }

    /// It has yet to send something.
    fn begin(&mut self) {
        self.sent = self.port.counters.totals().in_frames;
    }

    pub fn has_spoken(&self) -> bool {
        self.native || self.port.counters.totals().in_frames > self.sent
    }

    pub fn is_up(&self) -> bool {
        self.port.link() && !self.port.is_silent()
    }

    /// Whether frames were for it since the last look, and none found a buffer; `None` if there were no
    /// frames. Counters say so: what a peer does with its memory delays no other member here.
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

pub(super) struct Member {
    pub number: u8,
    pub weight: u32,
    pub drains: bool,
    /// Its router has a control plane.
    pub controls: bool,
    /// The router whose routes it needs, told by an agent.
    pub feed: Option<Arc<Router>>,
    /// Those that there should be, one at each interface.
    pub wanted: usize,
    pub links: BTreeMap<u32, Link>,
    pub state: MemberState,
    pub since: Instant,
    /// Why it is gone.
    pub why: String,
    /// What it had sent by all of its ports, since when it makes no progress, and when the last frame was for
    /// it.
    pub sent: u64,
    pub stuck: Option<Instant>,
    pub asked: Instant,
    /// It may not join before that.
    pub hold: Duration,
    /// It was a member before a restart, and is expected again.
    pub expected: bool,
    /// Probes that it has passed in a row; missed ones are less than none.
    pub probes: i32,
    /// Whether probes can take it out, or keep it from joining.
    pub judged: bool,
    /// Frames into it where probes come in, and those that it had sent elsewhere, at the last probe.
    pub passed: [u64; 2],
}

impl Member {
    pub fn new(number: u8, now: Instant) -> Member {
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
            probes: 0,
            judged: false,
            passed: [0; 2],
        }
    }

    /// Whether it keeps its buckets at time `now` until it has joined.
    pub fn is_expected(&self, now: Instant) -> bool {
        let joins = self.state == MemberState::Joining;
        self.expected && joins && now.duration_since(self.since) < EXPECTED
    }

    /// What is missing of it.
    fn lack(&mut self) -> Option<String> {
        // What a peer sent before it went says nothing of the next one.
        self.links.values_mut().filter(|link| !link.is_up()).for_each(Link::begin);
        self.missing_port()
    }

    pub fn missing_port(&self) -> Option<String> {
        if self.links.len() < self.wanted {
            return Some(format!("it has {} of {} ports", self.links.len(), self.wanted));
        }
        let down = self.links.values().find(|link| !link.is_up())?;
        Some(format!("port {} is down", down.port.name))
    }

    /// What it waits for before it joins as `name`, with all of its ports up.
    pub fn waits_for(&self, name: &str) -> Option<String> {
        let silent = self.links.values().find(|link| !link.has_spoken());
        let silent = silent.map(|link| format!("it has sent nothing by port {}", link.port.name));
        let told = self.feed.as_ref().is_none_or(|router| router.has_copy(name));
        let probed = !self.judged || self.probes >= PASSES;
        silent
            .or_else(|| (!told).then(|| "its agent has not all routes in force".to_owned()))
            .or_else(|| (!probed).then(|| format!("it has yet to pass {PASSES} probes in a row")))
    }

    /// Whether it has missed so many probes that it is taken out.
    fn misses_probes(&self) -> bool {
        self.judged && self.probes <= -MISSES
    }

    /// Its last probe, by interface `front`, has `passed` it or not; there may have been none.
    pub fn note_probe(&mut self, front: u32, passed: Option<bool>) {
        let side = |first: bool, way: usize| {
            let its = self.links.iter().filter(|(number, _)| (**number == front) == first);
            its.map(|(_, link)| link.passed()[way]).sum::<u64>()
        };
        let now = [side(true, 0), side(false, 1)];
        let before = std::mem::replace(&mut self.passed, now);
        let [into, out] = [0, 1].map(|way| now[way].wrapping_sub(before[way]));
        let forwards = into >= TELLING && out >= into / PART;
        self.probes = match passed {
            _ if self.missing_port().is_some() => 0,
            None => self.probes,
            Some(passed) if passed || forwards => self.probes.max(0).saturating_add(1),
            Some(_) => self.probes.min(0).saturating_sub(1),
        };
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

    pub fn enter(&mut self, group: &str, name: &str, state: MemberState, why: String, now: Instant) {
        let reason = if why.is_empty() { String::new() } else { format!(": {why}") };
        tracing::info!(
            event = "drain",
            group,
            member = name,
            "{}, was {}{reason}",
            state.name(),
            self.state.name()
        );
        if self.state.serves() && state == MemberState::Gone {
            let calm = self.state == MemberState::Active && now.duration_since(self.since) > LONGEST_HOLD;
            self.hold = if calm { HOLD } else { (self.hold * 2).clamp(HOLD, LONGEST_HOLD) };
            // One that misses probes says enough when it passes them.
            if !self.misses_probes() {
                self.links.values_mut().for_each(Link::begin);
            }
        }
        (self.state, self.since, self.why, self.expected) = (state, now, why, false);
    }

    /// Its next state, and why it is gone. `alone`: no other one is active.
    pub fn next(
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
            if self.misses_probes() {
                return Some((Gone, format!("it has missed {MISSES} probes in a row")));
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
