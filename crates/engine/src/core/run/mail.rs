//! What a core does with its messages: takes tasks in, gives them back, hands them over.

use std::sync::Arc;
use std::time::Duration;

use super::{Core, CoreTask};
use crate::core::accounts::CarriedAccount;
use crate::core::clock::Clock;
use crate::core::ledger::Heat;
use crate::core::mailbox::{CoreMessage, MigrationState, TaskId, MESSAGES_A_ROUND};
use crate::core::task::{Owner, TaskHandle};
use crate::mem::{ticks, ticks_in, Act};

impl<L: 'static, C: Clock> Core<L, C> {
    /// Reads a round's share of the messages; false if one of them ends the thread.
    pub(in crate::core) fn read_mail(&mut self) -> bool {
        for _ in 0..MESSAGES_A_ROUND {
            let Some(message) = self.parts.mailbox.open() else { break };
            match message {
                CoreMessage::Take { id, handle, state } => self.take(id, handle, state),
                CoreMessage::GiveBack { id, answer } => match self.give_back(id) {
                    // The asker may have given up.
                    true => drop(answer.send(())),
                    false => self.parts.registry.recall(id, answer),
                },
                CoreMessage::Move { id, to, answer } => {
                    let moved = self.hand_over(id, to);
                    let _ = answer.send(moved);
                }
                CoreMessage::Evict { owner, answer } => {
                    let its = self.tasks.iter().flatten().filter(|task| task.number == owner);
                    let its: Vec<TaskId> = its.map(|task| task.id).collect();
                    its.into_iter().for_each(|id| _ = self.give_back(id));
                    let _ = answer.send(());
                }
                CoreMessage::Do { what, answer } => {
                    what(&mut self.parts.local);
                    let _ = answer.send(());
                }
                CoreMessage::Rest { rest, answer } => {
                    self.settle();
                    self.resting = rest;
                    let _ = answer.send(());
                }
                CoreMessage::Stop => return false,
            }
        }
        true
    }

    fn take(&mut self, id: TaskId, mut handle: TaskHandle<L>, state: MigrationState) {
        let free = self.tasks.iter().position(Option::is_none);
        let place = free.unwrap_or(self.tasks.len());
        if free.is_none() {
            self.tasks.push(None);
        }
        self.now = self.clock.now();
        handle.disarm();
        let mut events = Vec::new();
        handle.events(&mut |fd| events.extend(self.poller.watch(id, place, fd)));
        let owner: Arc<dyn Owner> = handle.owner();
        let account = self.accounts.join(owner.tenant(), state.account, self.now);
        state.ledger.set_heat(Heat::Polled);
        self.tasks[place] = Some(CoreTask {
            id,
            number: owner.number(),
            account,
            events,
            ledger: state.ledger,
            pace: state.pace,
            heat: Heat::Polled,
            costly: handle.is_costly(),
            empty_visits: 0,
            unwritten: 0,
            not_before: 0,
            moved_at: self.now,
            since: self.now,
            usual: 0,
            waits_since: None,
            due: 0,
            handle,
        });
        self.polled.push(place);
        // A guest that has its queues taken and given back without end pays for both ways.
        owner.tenant().caused(Duration::from_nanos(self.clock.now() - self.now));
    }

    /// Takes the task off this core: nothing of it is under way.
    fn remove(&mut self, id: TaskId) -> Option<(CoreTask<L>, CarriedAccount)> {
        let here = |task: &Option<CoreTask<L>>| task.as_ref().is_some_and(|task| task.id == id);
        let place = self.tasks.iter().position(here)?;
        let mut task = self.tasks[place].take()?;
        self.polled.retain(|other| *other != place);
        self.checked.retain(|other| *other != place);
        self.woken.retain(|other| *other != place);
        self.watched -= usize::from(task.heat == Heat::Cold && !task.events.is_empty());
        self.parts.heartbeat.begin(task.number);
        task.handle.settle(&mut self.parts.local);
        self.parts.heartbeat.pause();
        task.events.iter().for_each(|event| self.poller.unwatch(event));
        task.ledger.enter_empty(std::mem::take(&mut task.unwritten));
        let account = self.accounts.leave(task.account);
        Some((task, account))
    }

    /// Returns a task to its owner; false if this core does not have it.
    fn give_back(&mut self, id: TaskId) -> bool {
        let begun = self.clock.now();
        let Some((task, _)) = self.remove(id) else { return false };
        self.parts.registry.forget(id);
        let owner = task.handle.owner();
        task.handle.return_to_owner();
        let took = Duration::from_nanos(self.clock.now() - begun);
        owner.tenant().caused(took);
        owner.tenant().overrun.took(Act::Touch, ticks().wrapping_sub(ticks_in(took)));
        true
    }

    /// Gives a task to core `to`; false if this core does not have it.
    fn hand_over(&mut self, id: TaskId, to: usize) -> bool {
        let Some((task, account)) = self.remove(id) else { return false };
        task.ledger.moved();
        let state = MigrationState { ledger: task.ledger, pace: task.pace, account };
        self.parts.registry.hand_over(id, to, task.handle, state);
        true
    }
}
