//! The next hops of a group: which of them takes which flows.
//!
//! Theory of operation. Several hops have a table of [`BUCKETS`] buckets, a byte each: the hop that has it.
//! The hash of a flow names its bucket, so the choice is one look, in one cache line more than a group of one
//! hop needs, which has no table. Who has a bucket is drawn by names of ports and by gateways
//! (`util::shares`), and not by places in the list: if a hop goes, only its own flows move, and one that
//! comes takes its share of all others' (RFC 2992 §3 has what division by their number moves). A hop without
//! a link leaves the flows of each of its buckets to the hop of the next bucket that has one; no other flow
//! moves.
//!
//! A table has at least two hops, and hops of all a control plane's ways are bounded, so its tables are, too:
//! ways beyond the bound have no hops (`groups`). A group that is made anew with the hops that it had keeps
//! its table.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use sidecore_abi::counters::MAX_CORES;

use super::said::MAX_ALL_HOPS;
use crate::count;
use crate::port::{Port, PortId};
use crate::util::shares::{owner, Candidate};

/// Buckets of a group of several hops.
pub(super) const BUCKETS: usize = 512;
/// The largest weight, as of the kernel's routes with several paths.
const MAX_WEIGHT: u64 = 256;
/// What tables of one control plane take at most.
const _: () = assert!(MAX_ALL_HOPS / 2 * BUCKETS <= 32 << 20);

/// One next hop.
pub(super) struct Hop {
    pub port: PortId,
    /// That port, for its link.
    pub target: Arc<Port>,
    pub gateway: u128,
    /// Its share of flows beside those of others.
    pub weight: u16,
    /// Its pinned entry in the table of neighbours; none: there was no more room for such, and it is looked
    /// for as others are.
    pub entry: Option<usize>,
    pub counts: Arc<HopCounts>,
}

/// What a next hop was given: a line for each core, which that core alone writes.
pub(super) struct HopCounts([Line; MAX_CORES]);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Line {
    frames: AtomicU64,
    bytes: AtomicU64,
}

impl HopCounts {
    pub fn new() -> HopCounts {
        HopCounts(std::array::from_fn(|_| Line::default()))
    }

    /// Counts a frame that `core` gives it.
    #[inline]
    pub fn count(&self, core: usize, bytes: u32) {
        let Some(line) = self.0.get(core) else { return };
        count(&line.frames, 1);
        count(&line.bytes, bytes.into());
    }

    /// Frames and bytes.
    pub fn sums(&self) -> (u64, u64) {
        let sum =
            |word: fn(&Line) -> &AtomicU64| self.0.iter().map(|it| word(it).load(Ordering::Relaxed)).sum();
        (sum(|line| &line.frames), sum(|line| &line.bytes))
    }
}

/// The next hops of a group.
#[derive(Default)]
pub(super) struct Hops {
    pub all: Box<[Hop]>,
    /// Which of them has each bucket; none of at most one.
    pub owners: Option<Arc<[u8; BUCKETS]>>,
}

impl Hops {
    /// These hops, of which the first 256 have flows. `before` has a table that may be theirs.
    pub fn new(all: Box<[Hop]>, before: Option<&Hops>) -> Hops {
        let draw = |hops: &[Hop]| -> Vec<Candidate> {
            let one =
                |(n, hop): (u8, &Hop)| Candidate::new(n, (&hop.target.name, hop.gateway), hop.weight.into());
            (0..=u8::MAX).zip(hops).map(one).collect()
        };
        let wanted = draw(&all);
        let owners = match before.filter(|before| draw(&before.all) == wanted) {
            Some(before) => before.owners.clone(),
            None => (all.len() > 1)
                .then(|| Arc::new(std::array::from_fn(|bucket| owner(&wanted, bucket).unwrap_or_default()))),
        };
        Hops { all, owners }
    }

    /// The hop that takes the flow with this hash. If none has a link it is the one that has its bucket.
    #[inline]
    pub fn choose(&self, hash: impl FnOnce() -> u32) -> Option<&Hop> {
        let Some(owners) = self.owners.as_deref() else { return self.all.first() };
        let (before, from) = owners.split_at_checked(hash() as usize % BUCKETS)?;
        let mut turn = from.iter().chain(before).filter_map(|owner| self.all.get(usize::from(*owner)));
        let first = turn.next()?;
        if first.target.link() {
            return Some(first);
        }
        turn.find(|hop| hop.target.link()).or(Some(first))
    }
}

/// Whatever has weights in the form that is the same for all that mean the same: in order, each once with the
/// sum of its weights, which are 1 to 256; that of one alone is 1.
pub fn merged<T: Ord, W: Into<u32>>(all: impl IntoIterator<Item = (T, W)>) -> Vec<(T, u16)> {
    let mut sums: BTreeMap<T, u32> = BTreeMap::new();
    for (it, weight) in all {
        let sum = sums.entry(it).or_default();
        *sum = sum.saturating_add(weight.into());
    }
    let several = sums.len() > 1;
    let most = sums.values().copied().map(u64::from).fold(MAX_WEIGHT, u64::max);
    // To the nearest; as they are if all of them fit.
    let fit = |sum: u32| (u64::from(sum) * MAX_WEIGHT + most / 2) / most;
    let weight = |sum| if several { u16::try_from(fit(sum)).map_or(1, |it| it.max(1)) } else { 1 };
    sums.into_iter().map(|(it, sum)| (it, weight(sum))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_merged_and_fit() {
        assert_eq!(merged([(2, 1u32), (1, 3), (2, 4)]), [(1, 3), (2, 5)]);
        assert_eq!(merged([(1, 7u32), (1, 7)]), [(1, 1)], "one alone takes all");
        assert_eq!(merged([(1, 65_536u32), (2, 16_384), (3, 1)]), [(1, 256), (2, 64), (3, 1)]);
        let all = merged([(1, 200u32), (2, 3), (1, 100)]);
        assert_eq!(all, [(1, 256), (2, 3)]);
        assert_eq!(merged(all.clone()), all);
        assert_eq!(merged([(1, 0u32), (2, 9)]), [(1, 1), (2, 9)]);
        assert!(merged::<u8, u32>([]).is_empty());
    }
}
