//! Groups of next hops by their numbers, and how many hops they may have together.
//!
//! A hop takes more than a KiB, since each core counts for itself what it gives it. A control plane may name
//! ways of hundreds of hops for millions of routes, so hops are bounded over all ways. A way for which there
//! is no room is *short*: its group has no hops, and its packets are dropped as `no_route`. It is tried again
//! when there is room. What the operator says is not counted.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::plan::Group;
use super::said::MAX_ALL_HOPS;

/// One number's group.
struct GroupEntry {
    group: Arc<Group>,
    /// Hops that it is charged for.
    hops: usize,
}

/// A group that was made, and what it takes.
pub(super) struct Made {
    pub group: Group,
    /// Hops that it is charged for.
    pub hops: usize,
    /// It has none, because there was no room.
    pub short: bool,
}

/// All groups. Number 0 is none.
#[derive(Default)]
pub(super) struct Groups {
    all: Vec<GroupEntry>,
    free: Vec<u32>,
    /// Hops of all its ways.
    pub hops: usize,
    /// Most hops of a control plane's ways.
    pub most: usize,
    short: BTreeSet<u32>,
    /// A group was released since the list was made last, which therefore still has it.
    pub outdated: bool,
    /// There is more room than when the short ones were tried last.
    freed: bool,
}

impl Groups {
    pub fn new() -> Groups {
        let none = GroupEntry { group: Arc::new(Group::Nothing), hops: 0 };
        Groups { all: vec![none], most: MAX_ALL_HOPS, ..Groups::default() }
    }

    /// A number for a new group.
    pub fn number(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.all.push(GroupEntry { group: Arc::new(Group::Nothing), hops: 0 });
            u32::try_from(self.all.len() - 1).unwrap_or(0)
        })
    }

    pub fn get(&self, number: u32) -> Option<&Arc<Group>> {
        self.all.get(number as usize).map(|entry| &entry.group)
    }

    /// All of them, in the order of their numbers.
    pub fn list(&mut self) -> Vec<Arc<Group>> {
        self.outdated = false;
        self.all.iter().map(|entry| Arc::clone(&entry.group)).collect()
    }

    /// How many hops the group of `number` may have.
    pub fn room(&self, number: u32) -> usize {
        let own = self.all.get(number as usize).map_or(0, |entry| entry.hops);
        (self.most + own).saturating_sub(self.hops)
    }

    /// How many groups are short.
    pub fn short(&self) -> usize {
        self.short.len()
    }

    /// Has `number` be `made`; the group in whose place that is. `None`: there is no such number.
    pub fn set(&mut self, number: u32, made: Made) -> Option<Arc<Group>> {
        let entry = self.all.get_mut(number as usize)?;
        self.freed |= made.hops < entry.hops;
        self.hops = self.hops + made.hops - entry.hops;
        entry.hops = made.hops;
        match made.short {
            true => self.short.insert(number),
            false => self.short.remove(&number),
        };
        Some(std::mem::replace(&mut entry.group, Arc::new(made.group)))
    }

    /// `number` is to be used again; the group that it had.
    pub fn release(&mut self, number: u32) -> Option<Arc<Group>> {
        let old = self.set(number, Made { group: Group::Nothing, hops: 0, short: false })?;
        self.free.push(number);
        self.outdated |= matches!(&*old, Group::Via(_));
        Some(old)
    }

    /// The short groups, if there is more room than when this was asked last.
    pub fn retry(&mut self) -> BTreeSet<u32> {
        match std::mem::take(&mut self.freed) {
            true => self.short.clone(),
            false => BTreeSet::new(),
        }
    }
}
