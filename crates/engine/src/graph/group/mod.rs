//! A group as a node: several members, which are alike, behind ports that a switch, a wire or a router takes
//! for those of one station.
//!
//! Theory of operation. A group has *interfaces*: ports without queues, which stand where they are joined as
//! any other port does. Behind each interface stands one port of each *member*. A frame for an interface goes
//! to the port of the member that has the bucket of its flow (`buckets`); the same bucket at all interfaces,
//! so both directions of a flow pass the same member. What is no flow goes to all members or to the first
//! (`kinds`). A frame from a member's port comes out of the interface, as if the interface had sent it.
//!
//! Members see nothing of each other: a node does not send a frame back to the port by which it came, and
//! that port is the interface. A member that is full drops its frames, and no sender waits for it, also on a
//! wire: an interface has no ring of its own whose room could be asked for.
//!
//! The control plane decides which members take flows, and calls [`Group::settle`] until all buckets are
//! where they should be.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod atomic;
mod buckets;
mod kept;
mod kinds;
mod probe;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::Mutex;
use std::time::Duration;

use crate::mem::{ticks, ticks_in};
use crate::packet::{Batch, Picked, MAX_BATCH};
use crate::port::DropReason;
pub use crate::util::shares::Candidate;
use crate::util::shares::Shares;

use buckets::{Buckets, NO_MEMBER};
pub use buckets::{BUCKETS, MAX_MEMBERS};
pub use kept::KeptGroup;
pub use kinds::Own;
use kinds::{kind, FrameKind};
use probe::ProbeStates;
pub use probe::Probes;

/// A tick of the buckets' clock is some milliseconds: 2²³ ticks of the processor's.
const TICK: u32 = 23;

/// The present tick of the buckets' clock.
#[expect(clippy::cast_possible_truncation, reason = "it goes round in months")]
fn tick() -> u32 {
    (ticks() >> TICK) as u32
}

/// A group of members that share flows.
pub struct Group {
    key: [u64; 2],
    buckets: Buckets,
    /// The member that speaks for all.
    speaker: AtomicU8,
    shares: Mutex<Shares>,
    /// What has become of probes through members.
    pub probes: ProbeStates,
    /// What it keeps for the next daemon, if anything.
    pub kept: Option<KeptGroup>,
}

/// What became of a group's buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Buckets of each member, by number.
    pub buckets: [u32; MAX_MEMBERS],
    /// Buckets of each member that another one should have.
    pub waiting: [u32; MAX_MEMBERS],
    /// Buckets that moved while they were idle, and from members that had to leave them.
    pub moved: [u64; 2],
}

impl Group {
    /// A group without members, for `cores` cores, or with the buckets of those that the former daemon has
    /// left in `kept`.
    pub fn new(cores: usize, kept: Option<KeptGroup>) -> Group {
        let buckets = Buckets::new(BUCKETS, cores);
        if let Some(kept) = &kept {
            let now = tick();
            for bucket in (0..BUCKETS).filter(|bucket| kept.owner(*bucket) != NO_MEMBER) {
                buckets.give(bucket, kept.owner(bucket));
                // Its flows may be under way.
                buckets.take(0, bucket, now);
            }
        }
        Group {
            key: kept.as_ref().map_or_else(Group::new_key, KeptGroup::key),
            buckets,
            speaker: AtomicU8::new(NO_MEMBER),
            shares: Mutex::new(Shares::new(BUCKETS)),
            probes: ProbeStates::new(),
            kept,
        }
    }

    /// A key that senders of frames cannot guess.
    pub fn new_key() -> [u64; 2] {
        [(); 2].map(|()| RandomState::new().build_hasher().finish())
    }

    /// Moves buckets to those `candidates` that should have them: from members of `leave` (a bit each) at
    /// once, from others if the bucket was idle for `idle`. Where there is no candidate, buckets stay where
    /// they are but for those of `leave`.
    pub fn settle(&self, candidates: &[Candidate], leave: u64, idle: Duration) -> Settled {
        // The tick of the last use and the present one are not whole.
        let idle = u32::try_from(ticks_in(idle) >> TICK).unwrap_or(u32::MAX / 4) + 2;
        self.settle_at(candidates, leave, idle, tick)
    }

    /// `idle` is in ticks of this `clock`.
    fn settle_at(
        &self,
        candidates: &[Candidate],
        leave: u64,
        idle: u32,
        clock: impl Fn() -> u32 + Copy,
    ) -> Settled {
        let mut shares = crate::lock(&self.shares);
        shares.set(candidates);
        let mut settled = Settled { buckets: [0; MAX_MEMBERS], waiting: [0; MAX_MEMBERS], moved: [0; 2] };
        for (bucket, to) in shares.winners.iter().enumerate() {
            let to = to.unwrap_or(NO_MEMBER);
            let mut owner = self.buckets.owner(bucket);
            let at_once = owner == NO_MEMBER || leave & bit(owner) != 0;
            let moves = match (owner == to, at_once) {
                (true, _) => false,
                (false, true) => {
                    self.buckets.give(bucket, to);
                    settled.moved[1] += u64::from(owner != NO_MEMBER);
                    true
                }
                (false, false) if to == NO_MEMBER => false,
                (false, false) => {
                    let moves = self.buckets.give_idle(bucket, to, idle, clock);
                    settled.moved[0] += u64::from(moves);
                    if let Some(waiting) = settled.waiting.get_mut(usize::from(owner)).filter(|_| !moves) {
                        *waiting += 1;
                    }
                    moves
                }
            };
            if moves {
                owner = to;
                self.kept.iter().for_each(|kept| kept.set_owner(bucket, owner));
            }
            if let Some(count) = settled.buckets.get_mut(usize::from(owner)) {
                *count += 1;
            }
        }
        settled
    }

    /// Whether member `number` has any bucket.
    pub fn has_buckets(&self, number: u8) -> bool {
        (0..BUCKETS).any(|bucket| self.buckets.owner(bucket) == number)
    }

    /// Has member `number` speak for all, or none of them.
    pub fn set_speaker(&self, number: Option<u8>) {
        self.speaker.store(number.unwrap_or(NO_MEMBER), Ordering::Relaxed);
    }

    fn speaker(&self) -> u8 {
        self.speaker.load(Ordering::Relaxed)
    }

    /// Which member each `picked` frame goes to, by way of an interface with addresses `own`. `has` are the
    /// members with a port behind it, a bit each, and `up` says which of them have a link.
    #[inline]
    pub(super) fn sort(
        &self,
        Picked { batch, picks }: Picked<'_>,
        own: &Own,
        core: usize,
        has: u64,
        up: impl FnOnce() -> u64,
    ) -> Sorted {
        let (now, mut all) = (tick(), 0);
        let mut sorted = Sorted { members: [NO_MEMBER; MAX_BATCH], used: 0, up: 0, made: 0, lost: false };
        for (pick, member) in picks.iter().zip(&mut sorted.members) {
            let frame = batch.frame(*pick);
            *member = match kind(frame, own) {
                FrameKind::Flow => {
                    #[expect(clippy::cast_possible_truncation, reason = "a part of the hash is enough")]
                    let hash = kinds::flow(batch, frame, self.key) as usize % BUCKETS;
                    self.buckets.take(core, hash, now)
                }
                FrameKind::Own => self.speaker(),
                FrameKind::All => {
                    all += 1;
                    *member = ALL;
                    continue;
                }
            };
            match bit(*member) & has {
                0 => (*member, sorted.lost) = (NO_MEMBER, true),
                bit => sorted.used |= bit,
            }
        }
        if all > 0 {
            sorted.up = up();
            sorted.used |= sorted.up;
            match u64::from(sorted.up.count_ones()).checked_sub(1) {
                Some(more) => sorted.made = more * all,
                None => {
                    let every = sorted.members.iter_mut().filter(|it| **it == ALL);
                    every.for_each(|it| *it = NO_MEMBER);
                    sorted.lost = true;
                }
            }
        }
        sorted
    }

    /// The frames of `batch`, which came from member `number`, that may not come out of an interface with
    /// addresses `own`, and why not. The others are in `keep`, if there are any such. Probes that came back
    /// are noted, if this is `heard`.
    pub(super) fn judge(
        &self,
        batch: &Batch,
        own: &Own,
        number: u8,
        keep: &mut Vec<u16>,
        heard: bool,
        mut drop: impl FnMut(usize, DropReason),
    ) {
        keep.clear();
        for (pick, frame) in (0..).zip(batch.frames()) {
            let verdict = match own.is_probe(frame) {
                true if heard => Err(self.probes.came(batch, frame, number)),
                true => Err(DropReason::Probe),
                false => kinds::may_leave(batch, frame, own, self.speaker() == number),
            };
            match verdict {
                Ok(()) => keep.push(pick),
                Err(why) => drop(usize::from(pick), why),
            }
        }
    }
}

/// Whether some frame of `batch` is one that [`Group::judge`] judges.
#[inline]
pub(super) fn any_judged(batch: &Batch, own: &Own) -> bool {
    batch.frames().iter().any(|frame| kinds::is_resolution(frame) || own.is_probe(frame))
}

/// In place of a member's number: all of them.
const ALL: u8 = 0xff;

/// The bit of a member; none of other numbers.
fn bit(number: u8) -> u64 {
    1u64.checked_shl(number.into()).unwrap_or(0)
}

/// Frames by members.
pub(super) struct Sorted {
    /// In the order of the picks.
    members: [u8; MAX_BATCH],
    /// The members that get any, a bit each.
    used: u64,
    /// The members that get what all get, a bit each.
    up: u64,
    /// Copies beyond the first of frames that all get.
    pub made: u64,
    /// Some go to no member.
    pub lost: bool,
}

impl Sorted {
    /// Whether member `number` gets any.
    pub fn goes_to(&self, number: u8) -> bool {
        self.used & bit(number) != 0
    }

    /// Whether one member gets all of them.
    pub fn is_for_one(&self) -> bool {
        self.used.is_power_of_two() && !self.lost
    }

    /// Those of `picks`, all that were sorted, that member `number` gets.
    pub fn of<'s>(&'s self, number: u8, picks: &'s [u16]) -> impl Iterator<Item = u16> + 's {
        let all = self.up & bit(number) != 0;
        let its = move |it: u8| it == number || it == ALL && all;
        picks.iter().zip(&self.members).filter(move |(_, it)| its(**it)).map(|(pick, _)| *pick)
    }

    /// Those that no member gets, or all others.
    pub fn lost<'s>(&'s self, lost: bool, picks: &'s [u16]) -> impl Iterator<Item = u16> + 's {
        let is = move |it: u8| (it == NO_MEMBER) == lost;
        picks.iter().zip(&self.members).filter(move |(_, it)| is(**it)).map(|(pick, _)| *pick)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// Frames of these flows, by this core.
        Send(u16, usize),
        /// Time passes.
        Pass(u32),
        /// A member takes flows from now on, drains, or is gone.
        Active(u8),
        Drain(u8),
        Gone(u8),
        /// A draining member has to leave all that it has.
        Force(u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        let member = 0..4u8;
        prop_oneof![
            8 => (any::<u16>(), 0..2usize).prop_map(|(flow, core)| Step::Send(flow, core)),
            4 => (1..20u32).prop_map(Step::Pass),
            2 => member.clone().prop_map(Step::Active),
            1 => member.clone().prop_map(Step::Drain),
            1 => member.clone().prop_map(Step::Gone),
            1 => member.prop_map(Step::Force),
        ]
    }

    const IDLE: u32 = 30;
    /// Flows that are sent at once.
    const FLOWS: u16 = 40;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// An oracle knows which member had each flow's last frame, and when: the next one goes to another
        /// only if the flow was idle, or that member is gone or was forced to leave it.
        #[test]
        fn a_flow_changes_its_member_only_when_it_may(steps in prop::collection::vec(step(), 1..60)) {
            let group = Group::new(2, None);
            let (mut now, mut active, mut drains) = (1000u32, 1u64, 0u64);
            group.settle_at(&[Candidate::new(0, "m0", 100)], 0, IDLE, || now);
            let mut oracle = std::collections::BTreeMap::<usize, (u8, u32)>::new();
            let mut free = std::collections::BTreeSet::<usize>::new();
            for step in steps {
                let mut force = 0;
                match step {
                    Step::Send(flow, core) => for flow in flow..flow.saturating_add(FLOWS) {
                        let bucket = usize::from(flow).wrapping_mul(0x9e37) % BUCKETS;
                        let member = group.buckets.take(core, bucket, now);
                        if let Some((last, at)) = oracle.insert(bucket, (member, now)) {
                            let may = free.contains(&bucket) || now - at >= IDLE;
                            prop_assert!(member == last || may, "flow {flow} moved from {last} to {member}");
                        }
                        free.remove(&bucket);
                        let there = (active | drains) & bit(member) != 0;
                        prop_assert!(there || active | drains == 0, "flow {flow} at {member}");
                    },
                    Step::Pass(ticks) => now += ticks,
                    Step::Active(n) => (active, drains) = (active | bit(n), drains & !bit(n)),
                    Step::Drain(n) => {
                        drains |= active & bit(n);
                        active &= !bit(n);
                    }
                    Step::Gone(n) => (active, drains) = (active & !bit(n), drains & !bit(n)),
                    Step::Force(n) if active != 0 => force = drains & bit(n),
                    Step::Force(_) => {}
                }
                let leave = !(active | drains) | force;
                let leaves = |member: u8| leave & bit(member) != 0 || member == NO_MEMBER;
                free.extend(oracle.iter().filter(|(_, (member, _))| leaves(*member)).map(|(bucket, _)| *bucket));
                let takes = if active == 0 { drains } else { active };
                let candidates: Vec<_> = (0..4u8).filter(|n| takes & bit(*n) != 0)
                    .map(|n| Candidate::new(n, format!("m{n}"), 100)).collect();
                let settled = group.settle_at(&candidates, leave, IDLE, || now);
                let all: u32 = settled.buckets.iter().sum();
                prop_assert!(all as usize == BUCKETS || active | drains == 0);
                let unused = settled.waiting.iter().sum::<u32>() as usize;
                prop_assert!(unused <= oracle.values().filter(|(_, at)| now - at < IDLE).count());
            }
        }
    }
}
