//! A budget inside the loop: a constant-bandwidth server.
//!
//! Theory of operation. An owner with a budget has `runtime` nanoseconds of the core in each `period`, guaranteed: while any
//! are left it goes before all that have no budget, the earliest deadline first. When they are used up it waits for the
//! deadline, which then moves on by a period. A visit that took longer than what was left is carried over as debt. An
//! owner that was idle and comes back late in its period would get more than its share until the deadline: then a new
//! period begins (Abeni and Buttazzo 1998; the Linux kernel's documentation of `SCHED_DEADLINE`).
//!
//! An owner that may reclaim is served beyond its runtime as those without a budget are, and pays for that as they do
//! ([`BudgetServer::pays`]). Charged here as well it would be debt: after a minute alone on the core its guarantee would be gone
//! for many minutes.

use super::tenant::CpuBudget;

/// What is left of one owner's budget.
#[derive(Clone, Copy, Debug)]
pub(super) struct BudgetServer {
    runtime: i64,
    period: u64,
    pub(super) reclaim: bool,
    left: i64,
    /// End of the period, in nanoseconds of the core's clock.
    deadline: u64,
}

impl BudgetServer {
    /// A full budget from `now` on.
    pub(super) fn new(budget: &CpuBudget, now: u64) -> BudgetServer {
        let ns = |time: std::time::Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        let (runtime, period) = (ns(budget.runtime).max(1), ns(budget.period).max(1).unsigned_abs());
        BudgetServer {
            runtime,
            period,
            reclaim: budget.reclaim,
            left: runtime,
            deadline: now.saturating_add(period),
        }
    }

    /// Nanoseconds that it may have now; none: it is throttled until its deadline.
    #[inline]
    pub(super) fn left(&mut self, now: u64) -> u64 {
        if now >= self.deadline {
            self.renew(now);
        }
        u64::try_from(self.left).unwrap_or(0)
    }

    #[cold]
    fn renew(&mut self, now: u64) {
        // A whole number of periods has passed, each of which pays a runtime of debt; nothing is saved up.
        let periods = (now - self.deadline) / self.period + 1;
        let paid = self.runtime.saturating_mul(i64::try_from(periods).unwrap_or(i64::MAX));
        self.left = self.left.min(0).saturating_add(paid).min(self.runtime);
        self.deadline = self.deadline.saturating_add(periods.saturating_mul(self.period));
    }

    /// It has work after it had none.
    pub(super) fn wake(&mut self, now: u64) {
        let left = i128::from(self.left(now));
        let until = i128::from(self.deadline - now.min(self.deadline));
        if left * i128::from(self.period) > until * i128::from(self.runtime) {
            (self.left, self.deadline) = (self.runtime, now.saturating_add(self.period));
        }
    }

    /// It was served for so long.
    #[inline]
    pub(super) fn charge(&mut self, ns: u64) {
        self.left = self.left.saturating_sub(i64::try_from(ns).unwrap_or(i64::MAX));
    }

    /// Whether what is done now is paid from the budget: some of it was left when it was last asked for, or the owner has
    /// nothing else to pay with.
    #[inline]
    pub(super) fn pays(&self) -> bool {
        self.left > 0 || !self.reclaim
    }

    #[inline]
    pub(super) fn deadline(&self) -> u64 {
        self.deadline
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn server(runtime_us: u64, period_ms: u64) -> BudgetServer {
        let budget = CpuBudget {
            runtime: Duration::from_micros(runtime_us),
            period: Duration::from_millis(period_ms),
            reclaim: false,
        };
        BudgetServer::new(&budget, 0)
    }

    /// What an owner that always has work gets of `time`, in visits of `visit` nanoseconds that may last longer than what is
    /// left.
    fn got(mut server: BudgetServer, visit: u64, time: u64) -> u64 {
        let (mut now, mut got) = (0, 0);
        while now < time {
            if server.left(now) > 0 {
                server.charge(visit);
                got += visit;
                now += visit;
            } else {
                now = server.deadline();
            }
        }
        got
    }

    #[test]
    fn a_busy_owner_gets_its_share_and_no_more() {
        for percent in [1, 5, 25, 50, 95] {
            let got = got(server(percent * 100, 10), 7_777, 10_000_000_000);
            let due = percent * 100_000_000;
            assert!(got.abs_diff(due) < 10_000_000, "{percent} %: {got} of {due}");
        }
    }

    #[test]
    fn a_long_visit_is_paid_back() {
        let mut server = server(1_000, 10);
        server.charge(25_000_000);
        assert_eq!(server.left(9_999_999), 0);
        assert_eq!(server.left(10_000_000), 0, "24 ms of debt, a runtime each period");
        assert_eq!(server.left(239_999_999), 0);
        assert_eq!(server.left(250_000_000), 1_000_000);
    }

    #[test]
    fn idle_time_is_not_saved_up_and_a_late_wake_gets_no_more_than_its_share() {
        let mut idle = server(1_000, 10);
        assert_eq!(idle.left(3_600_000_000_000), 1_000_000);
        // Ten milliseconds' budget, and one left until the deadline: it would have the whole core until then and all of
        // the next runtime behind it.
        let mut late = server(5_000, 10);
        late.wake(9_000_000);
        assert_eq!((late.left(9_000_000), late.deadline()), (5_000_000, 19_000_000));
        // Having used most of it, it goes on in its period.
        let mut used = server(5_000, 10);
        used.charge(4_900_000);
        used.wake(9_000_000);
        assert_eq!((used.left(9_000_000), used.deadline()), (100_000, 10_000_000));
    }

    #[test]
    fn clocks_that_jump_do_no_harm() {
        let mut server = server(1_000, 10);
        server.charge(u64::MAX);
        server.charge(u64::MAX);
        assert_eq!(server.left(0), 0);
        server.left(u64::MAX);
        server.wake(0);
        server.wake(u64::MAX);
        assert!(server.left(u64::MAX) <= 1_000_000);
    }
}
