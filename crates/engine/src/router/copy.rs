//! Copies of a control plane's routes, for those who forward beside this router: what has changed since they
//! were told last.
//!
//! A list of the prefixes that changed says what to tell; where each of them leads is looked up when it is
//! told, so of several changes of a prefix the last one is told. Whoever was told nothing yet, or is further
//! behind than the list reaches, gets the whole table, in parts: what changes while it is on its way is in
//! the list. A next hop that changes under its routes changes each of them, and costs a whole table, too.

use std::collections::VecDeque;

use super::digest::Led;
use super::net::Net;

/// Changes that are remembered.
const REMEMBERED: usize = 65_536;
/// Routes that are told together at most: each may have hundreds of hops.
pub(super) const TOLD: usize = 512;

/// The prefixes that changed last.
#[derive(Default)]
pub(super) struct Changed {
    nets: VecDeque<Net>,
    /// How many changes there have been.
    pub end: u64,
}

impl Changed {
    pub fn push(&mut self, net: Net) {
        if self.nets.len() == REMEMBERED {
            self.nets.pop_front();
        }
        self.nets.push_back(net);
        self.end += 1;
    }

    /// Any route may be another now.
    pub fn all(&mut self) {
        self.nets.clear();
        self.end += 1;
    }

    /// The changes behind the first `at`; `None`: they are not remembered.
    pub fn since(&self, at: u64) -> Option<impl Iterator<Item = Net> + '_> {
        let wanted = usize::try_from(self.end.checked_sub(at)?).ok()?;
        let skip = self.nets.len().checked_sub(wanted)?;
        Some(self.nets.iter().skip(skip).copied())
    }
}

/// What a copy was told so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteCopy {
    /// All changes up to this one, if it was told anything.
    pub(super) at: Option<u64>,
    /// The whole table is on its way: behind which prefix to go on.
    pub(super) whole: Option<Option<Net>>,
}

/// What a copy is to be told next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// The whole table begins: of what was told before, that holds which is told again.
    pub begins: bool,
    /// Where these prefixes lead now; `None`: there is no route any more.
    pub routes: Vec<(Net, Option<Led>)>,
    /// The whole table ends.
    pub ends: bool,
    /// Nothing is left to tell: so many changes there have been, and this is the digest of all routes.
    pub all: Option<(u64, u64)>,
}
