//! What an I/O core serves of a device: a ring on which the guest sends, and the clock of its pair's interrupts.
//!
//! A kick leaves the guest and waits for an answer: some tens of microseconds. So kicks are declined while the core polls, and
//! while it naps between two looks: for some milliseconds after the last frame in either direction. Only then are they asked
//! for, and the core sleeps longer; not for ever, because a driver without a full barrier may overlook that it is asked.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bells::Way;
use super::shared::Shared;
use crate::frame::Batch;
use crate::mem::GuestMap;
use crate::port::{DropReason, IngressQueue, Tally};
use crate::ring::{Block, ClientTx, Region};
use crate::slots::Drain;

/// After the last frame, the core looks by itself for so long, so often.
const BUSY: Duration = Duration::from_millis(5);
const NAP: Duration = Duration::from_micros(50);
/// Longest sleep without a kick.
const LONGEST_SLEEP: Duration = Duration::from_millis(10);

/// A ring on which a guest sends.
pub(super) struct Sender {
    shared: Arc<Shared>,
    number: usize,
    slots: Drain<Block>,
    map: Arc<GuestMap>,
    /// A fault was found, and nothing is looked at until its guest begins again.
    stopped: bool,
    worked: bool,
    last_work: Instant,
    /// The guest was asked for kicks.
    asked: bool,
}

impl Sender {
    /// Ring `number` of `region`, as it is at first.
    pub(super) fn new(shared: Arc<Shared>, region: &Arc<Region>, number: usize) -> Sender {
        let index = u32::try_from(number).unwrap_or(u32::MAX);
        Sender {
            shared,
            number,
            slots: Drain::new(ClientTx::with(region, index, Block::NONE)),
            map: Arc::default(),
            stopped: false,
            worked: false,
            last_work: Instant::now(),
            asked: false,
        }
    }

    /// The guest's indices stand at `block` from now on. It is filled in if the guest begins.
    pub(super) fn set_block(&mut self, block: Block, map: &Arc<GuestMap>, begins: bool) {
        self.map = Arc::clone(map);
        let place = self.slots.ring().place();
        let block = self.slots.ring().set_hands(block);
        if begins {
            block.begin(place);
            self.stopped = false;
        }
    }

    /// Takes note of what the guest has given up; of one that was found to lie, nothing.
    pub(super) fn look(&mut self) {
        if !self.stopped {
            self.slots.waiting();
        }
    }

    /// Where the ring is.
    pub(super) fn place(&mut self) -> [u32; 3] {
        self.slots.ring().place()
    }

    /// It is where another process left it; false: it cannot be there.
    pub(super) fn set_place(&mut self, hwcur: u32) -> bool {
        self.slots.ring().set_place(hwcur)
    }

    /// It goes on from where its block says that it is.
    pub(super) fn recover(&mut self) -> bool {
        let [hwcur, _] = self.slots.ring().hands().indices();
        self.set_place(hwcur)
    }

    /// Whether it has found a fault.
    #[inline]
    fn judge(&mut self) {
        self.stopped |= !self.shared.goes_on(self.slots.is_lost(), &self.map);
    }
}

impl IngressQueue for Sender {
    fn fetch(&mut self, batch: &mut Batch, tally: &mut Tally) {
        tally.interrupts += self.shared.bells.poll(self.number);
        if self.stopped {
            return;
        }
        self.slots.fetch(self.shared.header(), batch, tally);
        self.judge();
        self.worked |= tally.frames > 0;
        if self.shared.is_down() && !batch.is_empty() {
            tally.drops.add(DropReason::LinkDown, u32::try_from(batch.len()).unwrap_or(u32::MAX));
            batch.clear();
        }
    }

    fn has_frames(&mut self) -> bool {
        !self.stopped && self.slots.waiting() > 0
    }

    fn tend(&mut self, tally: &mut Tally) {
        tally.interrupts += self.shared.bells.poll(self.number);
    }

    fn release(&mut self, tally: &mut Tally) {
        tally.occasions += 1;
        if self.slots.release() {
            tally.interrupts += self.shared.bells.raise(self.number, Way::Sends);
        }
    }

    fn want_kicks(&mut self, on: bool) -> bool {
        self.shared.bells.alarm(self.number).set_sleeping(on);
        if self.stopped {
            return false;
        }
        if !on {
            self.slots.want_kicks(false);
            self.asked = false;
            return false;
        }
        if std::mem::take(&mut self.worked) | self.shared.take_received(self.number) {
            self.last_work = Instant::now();
        }
        self.asked = self.last_work.elapsed() >= BUSY;
        let waiting = if self.asked { self.slots.want_kicks(true) } else { self.slots.waiting() > 0 };
        self.judge();
        waiting && !self.stopped
    }

    fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.bells.alarm(self.number).wake_fd())
    }

    fn longest_sleep(&self) -> Option<Duration> {
        let nap = (!self.stopped).then_some(if self.asked { LONGEST_SLEEP } else { NAP });
        [nap, self.shared.bells.alarm(self.number).due_in()].into_iter().flatten().min()
    }
}
