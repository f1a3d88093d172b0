//! Buckets: which member of a group has which flows.
//!
//! Theory of operation. A flow's hash names its bucket, and a bucket has an owner: one byte that all cores
//! read without a lock. So there is no state for a flow. A thread of the control plane moves buckets, one at
//! a time, and nothing else does. A bucket whose flows are under way must not move, or their frames would be
//! reordered, and a firewall that knows a flow would lose it.
//!
//! **Idleness.** A core notes for each bucket the *tick* in which it last used it, some milliseconds long, in
//! an array that it alone writes; the first frame of a tick writes, the others find it written. The mover
//! moves a bucket that no core has used for a while, in two steps: it marks the owner as *moving*, looks
//! again whether any core has used the bucket since, and only then changes it. A core that is about to use a
//! bucket for the first time in a tick notes that first, and then looks at the owner; one that finds the mark
//! takes it off, and the mover's second step fails. Between the core's two accesses and between the mover's
//! two there is a fence. So either the mover sees the note or the core sees the mark: no core goes on with
//! the old owner of a bucket that another core finds moved (`tests/buckets.rs`, a model of it).
//!
//! A bucket of a member that is gone moves at once: there is nothing to reorder.

use sidecore_abi::counters::MAX_CORES;

use super::atomic::{fence, AtomicU32, AtomicU8, Ordering};

/// Members of a group, at most.
pub const MAX_MEMBERS: usize = 64;
/// Buckets of a group.
pub const BUCKETS: usize = 1 << 16;
/// The owner of a bucket that no member has.
pub const NO_MEMBER: u8 = 0x7f;
/// The mover may be about to change the owner.
const MOVING: u8 = 0x80;

/// The buckets of a group.
pub struct Buckets {
    owners: Box<[AtomicU8]>,
    /// By core: the tick in which it last used each bucket.
    used: Box<[Box<[AtomicU32]>]>,
}

impl Buckets {
    /// `buckets` of them, a power of two, without a member, for `cores` cores.
    pub fn new(buckets: usize, cores: usize) -> Buckets {
        let used = || (0..buckets).map(|_| AtomicU32::new(0)).collect();
        Buckets {
            owners: (0..buckets).map(|_| AtomicU8::new(NO_MEMBER)).collect(),
            used: (0..cores.min(MAX_CORES)).map(|_| used()).collect(),
        }
    }

    /// The member that has `bucket`, which `core` uses in tick `now`.
    #[inline]
    pub fn take(&self, core: usize, bucket: usize, now: u32) -> u8 {
        let used = self.used.get(core).and_then(|used| used.get(bucket));
        let (Some(used), Some(owner)) = (used, self.owners.get(bucket)) else { return NO_MEMBER };
        let member = owner.load(Ordering::Relaxed);
        match used.load(Ordering::Relaxed) == now && member & MOVING == 0 {
            true => member,
            false => Buckets::begin(used, owner, now),
        }
    }

    /// A core uses a bucket for the first time in this tick, or while it may be moved.
    fn begin(used: &AtomicU32, owner: &AtomicU8, now: u32) -> u8 {
        used.store(now, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let mut member = owner.load(Ordering::Acquire);
        while member & MOVING != 0 {
            let stays = member & !MOVING;
            match owner.compare_exchange(member, stays, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => member = stays,
                Err(now) => member = now,
            }
        }
        member
    }

    /// The member that has `bucket`, for others than cores.
    pub fn owner(&self, bucket: usize) -> u8 {
        self.owners.get(bucket).map_or(NO_MEMBER, |owner| owner.load(Ordering::Relaxed) & !MOVING)
    }

    /// Gives `bucket` to member `to`, whoever uses it. Only the mover calls this.
    pub fn give(&self, bucket: usize, to: u8) {
        if let Some(owner) = self.owners.get(bucket) {
            owner.store(to, Ordering::Release);
        }
    }

    /// Gives `bucket` to member `to` if no core has used it for `idle` ticks, of which `clock` tells the
    /// present one. Whether it did. Only the mover calls this.
    pub fn give_idle(&self, bucket: usize, to: u8, idle: u32, clock: impl Fn() -> u32) -> bool {
        let Some(owner) = self.owners.get(bucket) else { return false };
        let noted = |used: &[AtomicU32]| used.get(bucket).map_or(0, |used| used.load(Ordering::Relaxed));
        let mut before = [0; MAX_CORES];
        before.iter_mut().zip(&self.used).for_each(|(tick, used)| *tick = noted(used));
        // Later than what was noted, but for the difference of two processors' clocks.
        let now = clock();
        let rests = |tick: u32| (idle..u32::MAX / 2).contains(&now.wrapping_sub(tick));
        let cores = self.used.len();
        if !before.iter().take(cores).all(|tick| rests(*tick)) {
            return false;
        }
        let from = owner.fetch_or(MOVING, Ordering::AcqRel) & !MOVING;
        fence(Ordering::SeqCst);
        let calm = before.iter().zip(&self.used).all(|(tick, used)| noted(used) == *tick);
        let (marked, then) = (from | MOVING, if calm { to } else { from });
        owner.compare_exchange(marked, then, Ordering::AcqRel, Ordering::Relaxed).is_ok() && calm
    }
}
