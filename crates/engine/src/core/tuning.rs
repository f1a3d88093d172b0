//! What can be chosen about an I/O core's loop, and the bounds of a visit, which cannot.

use std::time::Duration;

/// Most items of a visit.
pub(crate) const TURN: usize = 256;
/// Items that a visit may take however long they take, unless they are dear.
pub(super) const MIN_WORK: usize = 8;
/// Most bytes of a visit: some 0.1 ms of copying.
pub(super) const TURN_BYTES: u64 = 768 * 1024;
/// Nanoseconds of a visit where no other owner has work.
pub(super) const LONGEST_TURN: u64 = 100_000;
/// And where many have: below this what a visit costs besides its items begins to count.
pub(super) const LEAST_TURN: u64 = 10_000;
/// And where tasks wait that must not.
pub(super) const URGENT_TURN: u64 = 10_000;

/// What can be chosen about the loop of a core.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// How long a core polls without finding anything before it sleeps.
    pub spin: Duration,
    /// Longest sleep: events and messages wake a core, this only bounds the damage of a lost one.
    pub longest_sleep: Duration,
    /// Queues that are stuck, urgent or have a budget are looked at between two visits of others.
    pub urgent: bool,
    /// Tasks that have been silent are not polled any more.
    pub cold: bool,
    /// Cores that are active at the start, and are at least; more become so as they are needed.
    pub least_cores: usize,
    /// Tasks move between cores, and cores come and go, by what they have to do.
    pub balance: bool,
}

impl Default for Tuning {
    fn default() -> Tuning {
        let (spin, longest_sleep) = (Duration::from_micros(50), Duration::from_secs(1));
        Tuning { spin, longest_sleep, urgent: true, cold: true, least_cores: usize::MAX, balance: true }
    }
}
