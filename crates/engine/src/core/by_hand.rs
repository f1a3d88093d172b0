//! A core without a thread, for tests that go through its rounds by hand: however long these take, they do the same.

use std::sync::mpsc::sync_channel;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::mailbox::{Letter, Mailbox, TaskId};
use super::run::Core;
use super::task::Seat;

pub(crate) struct ByHand<L: 'static> {
    core: Core<L>,
    mailbox: Arc<Mailbox<L>>,
    next: u64,
}

impl<L: 'static> ByHand<L> {
    pub(crate) fn new(local: L) -> ByHand<L> {
        let mailbox = Arc::new(Mailbox::new().unwrap());
        let spin = Duration::from_micros(50);
        let mut core = Core::new(Arc::clone(&mailbox), Arc::default(), Arc::default(), spin, local).unwrap();
        core.busy = None;
        ByHand { core, mailbox, next: 1 }
    }

    fn tell(&mut self, letter: Letter<L>) {
        self.mailbox.post(letter);
        assert!(self.core.read_mail());
    }

    /// Gives it a task, whose number this is.
    pub(crate) fn take(&mut self, seat: Box<dyn Seat<L>>) -> u64 {
        let id = self.next;
        self.next += 1;
        self.tell(Letter::Take { id: TaskId(id), seat });
        id
    }

    pub(crate) fn give_back(&mut self, id: u64) {
        let (answer, back) = sync_channel(1);
        self.tell(Letter::GiveBack { id: TaskId(id), answer });
        back.recv().unwrap();
    }

    pub(crate) fn rest(&mut self, rest: bool) {
        let (answer, _answers) = sync_channel(1);
        self.tell(Letter::Rest { rest, answer });
    }

    pub(crate) fn local(&mut self) -> &mut L {
        &mut self.core.local
    }

    /// Visits the task in place `index`; how much it moved.
    pub(crate) fn visit(&mut self, index: usize) -> u64 {
        self.core.visit(index)
    }

    pub(crate) fn round(&mut self, number: u64) {
        self.core.round(number, Instant::now());
    }

    pub(crate) fn swap(&mut self, a: usize, b: usize) {
        self.core.tasks.swap(a, b);
    }

    pub(crate) fn remove(&mut self, index: usize) {
        self.core.tasks.remove(index);
    }

    pub(crate) fn truncate(&mut self, count: usize) {
        self.core.tasks.truncate(count);
    }
}
