//! Tasks that are silent: what wakes them, when they are looked at again, and how a core sleeps when all of
//! them are.

use std::time::Duration;

use super::{Core, CoreTask, Due, COLD_AFTER};
use crate::core::accounts::Right;
use crate::core::clock::Clock;
use crate::core::ledger::Heat;
use crate::mem::Act;

/// Cold tasks that are visited together while there is other work, of each kind: those that have work, and
/// those whose time has come.
const LOOKS: usize = 16;
/// How often a core at work looks whether cold tasks have work, and for how many of them: a look is a cache
/// line.
const COLD_EVERY: u64 = 25_000;
const COLD_LOOKS: usize = 32;
/// Tasks that are gone through to find those: where most are hot, cold ones come round later.
const COLD_STEPS: usize = 128;
/// How often a core at work asks the kernel for events of cold tasks: for work that no look at memory shows,
/// and where there are enough cold tasks that looks come round less often. No other system call but a due
/// signal is made at full load.
const EVENTS_EVERY: u64 = 500_000;
/// A cold task that asks for a look is not looked at again before this has passed.
const SHORTEST_NAP: u64 = 1_000;

impl<L: 'static, C: Clock> Core<L, C> {
    /// Looks for cold tasks that have work, whose event has come, or whose time; visits them. Returns how
    /// much was moved.
    #[inline]
    pub(super) fn look_at_cold(&mut self) -> u64 {
        if self.now.saturating_sub(self.looked) < COLD_EVERY {
            return 0;
        }
        self.looked = self.now;
        if self.watched > 0 && self.now.saturating_sub(self.asked) >= EVENTS_EVERY {
            self.asked = self.now;
            self.wait(Duration::ZERO);
        }
        self.find_woken();
        self.visit_woken(LOOKS) + self.visit_due(LOOKS)
    }

    /// Finds cold tasks that have work by their memory, the next ones each time.
    fn find_woken(&mut self) {
        let (begun, count) = (self.now, self.tasks.len());
        let mut looks = 0;
        for _ in 0..count.min(COLD_STEPS) {
            if looks == COLD_LOOKS {
                break;
            }
            self.cold_from = if self.cold_from + 1 < count { self.cold_from + 1 } else { 0 };
            let place = self.cold_from;
            if self.tasks[place].as_ref().is_some_and(|task| task.heat == Heat::Cold) {
                looks += 1;
                if self.look(place) && !self.woken.contains(&place) {
                    self.woken.push(place);
                }
            }
        }
        self.looked_at_all(begun);
    }

    /// Waits for events; true if there were any, or messages.
    pub(super) fn wait(&mut self, longest: Duration) -> bool {
        let (tasks, places, local) = (&mut self.tasks, &mut self.woken, &mut self.parts.local);
        self.poller.wait(longest, |id, place| {
            if let Some(task) = tasks.get_mut(place).and_then(Option::as_mut).filter(|task| task.id == id) {
                task.handle.woken(local);
                task.ledger.woke();
                if !places.contains(&place) {
                    places.push(place);
                }
            }
        })
    }

    /// Visits tasks that woke us, `most` at most; they are polled from now on.
    pub(super) fn visit_woken(&mut self, most: usize) -> u64 {
        let mut all = 0;
        for _ in 0..most.min(self.woken.len()) {
            let place = self.woken.remove(0);
            let begun = self.now;
            self.warm(place);
            self.turn_to(place, begun);
            if let Due::Visit(budget) = self.is_due(place, 0) {
                all += self.visit(place, budget, false);
            }
        }
        all
    }

    /// Visits cold tasks that asked to be looked at by now, each once and `most` at most. One that has
    /// nothing goes on being cold.
    pub(super) fn visit_due(&mut self, most: usize) -> u64 {
        let mut all = 0;
        let until = self.now;
        for _ in 0..most {
            let Some((due, place)) = self.timers.due(until) else { break };
            let asked = |task: &CoreTask<L>| task.heat == Heat::Cold && task.due == due;
            if !self.tasks.get(place).and_then(Option::as_ref).is_some_and(asked) {
                continue;
            }
            let begun = self.now;
            self.warm(place);
            self.turn_to(place, begun);
            let moved = match self.is_due(place, 0) {
                Due::Visit(budget) => self.visit(place, budget, false),
                Due::Later | Due::Passed | Due::Cold => 0,
            };
            if moved == 0 {
                let begun = self.now;
                self.polled.pop();
                self.cool(place);
                self.turn_to(place, begun);
            }
            all += moved;
        }
        all
    }

    /// Since `begun` the core was busy with the task at `place`, beside its visits.
    pub(super) fn turn_to(&mut self, place: usize, begun: u64) {
        self.now = self.clock.now();
        self.look_in_vain(place, self.now - begun);
        if let Some(task) = &self.tasks[place] {
            self.was_act(task.account, Act::Touch, self.now - begun);
        }
    }

    /// The task at `place` is polled from now on.
    pub(super) fn warm(&mut self, place: usize) {
        let Some(task) = self.tasks[place].as_mut() else { return };
        if task.heat == Heat::Polled {
            return;
        }
        self.watched -= usize::from(!task.events.is_empty());
        task.heat = Heat::Polled;
        (task.empty_visits, task.not_before) = (0, self.now);
        (task.moved_at, task.since) = (self.now, self.now);
        task.ledger.set_heat(Heat::Polled);
        self.parts.heartbeat.begin(task.number);
        task.handle.disarm();
        self.polled.push(place);
    }

    /// The task at `place`, which the caller takes out of those that are polled, wakes us from now on. One
    /// that has work already is woken.
    pub(super) fn cool(&mut self, place: usize) {
        let Some(task) = self.tasks[place].as_mut() else { return };
        self.parts.heartbeat.begin(task.number);
        task.heat = Heat::Cold;
        task.ledger.set_heat(Heat::Cold);
        task.ledger.enter_empty(std::mem::take(&mut task.unwritten));
        if task.handle.arm() {
            self.woken.push(place);
        }
        // A task that stopped itself shows no event any more: it must not keep us awake.
        if !task.events.is_empty() {
            let mut shown = false;
            task.handle.events(&mut |_| shown = true);
            if !shown {
                task.events.drain(..).for_each(|event| self.poller.unwatch(&event));
            }
        }
        self.watched += usize::from(!task.events.is_empty());
        if let Some(next) = task.handle.next_look() {
            // Never at once: the core looks at due tasks until none is due.
            let next = u64::try_from(next.as_nanos()).unwrap_or(u64::MAX).max(SHORTEST_NAP);
            let due = self.now.saturating_add(next);
            // One that is still to come, and earlier, will do: a guest must not fill the heap.
            if task.due <= self.now || task.due > due {
                task.due = due;
                self.timers.add(due, place);
            }
        }
    }

    /// Sleeps until an event or a message comes, or for as long as a task allows that nothing will wake us
    /// for; then visits the tasks that woke it. Returns how much was moved, and whether it was an event: not
    /// only a time that had come.
    ///
    /// For as long as we sleep all tasks are cold. Those that did something of late are polled again
    /// afterwards; the others stay as they are, and their memory is not touched.
    pub(super) fn sleep(&mut self, now: u64) -> (u64, bool) {
        self.now = now;
        let (mut slept, mut soonest) = (std::mem::take(&mut self.polled), u64::MAX);
        slept.retain(|place| {
            let Some(task) = self.tasks[*place].as_mut() else { return false };
            match self.accounts.right(task.account, now) {
                // Its work must not keep us awake until it may be done.
                Right::Throttled { until } => {
                    soonest = soonest.min(until);
                    self.polled.push(*place);
                    false
                }
                _ => {
                    let begun = self.now;
                    self.cool(*place);
                    self.turn_to(*place, begun);
                    true
                }
            }
        });
        self.parts.heartbeat.pause();
        let now = self.now;
        let mut woken = !self.woken.is_empty();
        if !woken {
            let until = self.timers.first().unwrap_or(u64::MAX).min(soonest);
            let longest =
                Duration::from_nanos(until.saturating_sub(now)).min(self.parts.tuning.longest_sleep);
            woken = self.wait(longest);
        }
        let begun = self.clock.now();
        (self.now, self.looked, self.asked) = (begun, begun, begun);
        self.parts.spent.asleep(begun - now);
        // Those that woke us come first, before the memory of all others is touched, which is cold by now.
        let moved = self.visit_woken(usize::MAX) + self.visit_due(usize::MAX);
        for place in slept {
            let lately = |task: &CoreTask<L>| {
                task.heat == Heat::Cold && now.saturating_sub(task.moved_at) < COLD_AFTER
            };
            if self.tasks[place].as_ref().is_some_and(lately) {
                let (at, begun) = (self.tasks[place].as_ref().map_or(0, |task| task.moved_at), self.now);
                self.warm(place);
                self.turn_to(place, begun);
                if let Some(task) = self.tasks[place].as_mut() {
                    task.moved_at = at;
                }
            }
        }
        (moved, woken)
    }
}
