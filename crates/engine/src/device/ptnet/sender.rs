//! What an I/O core serves of a device: a ring on which the guest sends, and the clock of its pair's
//! interrupts. What the guest gives up becomes frames, or goes into a pipe as it is.
//!
//! A kick leaves the guest and waits for an answer: some tens of microseconds. So kicks are declined while
//! the core polls, and while it naps between two looks: for some milliseconds after the last frame in either
//! direction. Only then are they asked for, and the core sleeps longer; not for ever, because a driver
//! without a full barrier may overlook that it is asked.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::messages::RingUse;
use super::nic::NicState;
use crate::mem::{Act, GuestMap};
use crate::observe::account::Outcome;
use crate::observe::PortCounters;
use crate::packet::Batch;
use crate::port::{DropReason, IngressQueue, Tally};
use crate::ring::{Block, ClientTx, Region};
use crate::slots::pipe::{End, Sending};
use crate::slots::Drain;

/// After the last frame, the core looks by itself for so long, so often.
const BUSY: Duration = Duration::from_millis(5);
const NAP: Duration = Duration::from_micros(50);
/// Longest sleep without a kick.
const LONGEST_SLEEP: Duration = Duration::from_millis(10);

/// Where its slots go.
enum Draining {
    /// They become frames.
    Frames(Drain<Block>),
    /// Into a pipe, as they are.
    Pipe(Sending),
}

/// A ring on which a guest sends.
pub(super) struct Sender {
    nic: Arc<NicState>,
    number: usize,
    slots: Draining,
    map: Arc<GuestMap>,
    /// A fault was found, and nothing is looked at until its guest begins again.
    stopped: bool,
    worked: bool,
    last_work: Instant,
    /// The guest was asked for kicks.
    asked: bool,
    /// What the last fetch brought to the other end of the pipe.
    out: Option<(PortCounters, Outcome)>,
}

impl Sender {
    /// Ring `number` of `region`, as it is at first; of a pipe's end, as the pipe is.
    pub(super) fn new(nic: Arc<NicState>, region: &Arc<Region>, pipe: Option<&End>, number: usize) -> Sender {
        let index = u32::try_from(number).unwrap_or(u32::MAX);
        Sender {
            nic,
            number,
            slots: match pipe.and_then(|end| end.sending(number)) {
                Some(sending) => Draining::Pipe(sending),
                None => Draining::Frames(Drain::new(ClientTx::with(region, index, Block::NONE))),
            },
            map: Arc::default(),
            stopped: false,
            worked: false,
            last_work: Instant::now(),
            asked: false,
            out: None,
        }
    }

    /// The guest's indices stand at `block` from now on, or nowhere. It is filled in if the guest begins.
    pub(super) fn set_block(&mut self, block: Option<Block>, map: &Arc<GuestMap>, begins: bool) {
        self.map = Arc::clone(map);
        self.stopped &= !begins;
        match &mut self.slots {
            Draining::Pipe(sending) => sending.set_block(block, begins),
            Draining::Frames(slots) => {
                let position = slots.ring.position();
                let block = slots.ring.access.set_hands(block.unwrap_or(Block::NONE));
                if begins {
                    block.begin(position);
                }
            }
        }
    }

    /// Takes note of what the guest has given up; of one that was found to lie, nothing.
    pub(super) fn look(&mut self) {
        if !self.stopped {
            self.waits();
        }
    }

    /// Whether slots wait to be moved.
    fn waits(&mut self) -> bool {
        match &mut self.slots {
            Draining::Frames(slots) => slots.ring.look() > 0,
            Draining::Pipe(sending) => !self.nic.is_down() && sending.has_news(),
        }
    }

    /// Its ring, where it is no pipe's: a pipe knows itself where its rings are.
    pub(super) fn ring(&mut self) -> Option<&mut ClientTx<Block>> {
        match &mut self.slots {
            Draining::Frames(slots) => Some(&mut slots.ring),
            Draining::Pipe(_) => None,
        }
    }

    /// It goes on from where its block says that it is. False: it cannot be there.
    pub(super) fn recover(&mut self) -> bool {
        self.ring().is_none_or(|ring| {
            let [hwcur, _] = ring.access.hands().indices();
            ring.set_position(hwcur, hwcur)
        })
    }

    /// Whether it has found a fault.
    #[inline]
    fn judge(&mut self) {
        let is_lost = match &self.slots {
            Draining::Frames(slots) => slots.ring.access.is_lost(),
            Draining::Pipe(sending) => sending.is_lost(),
        };
        self.stopped |= !self.nic.goes_on(is_lost, &self.map);
    }

    /// Asks for kicks or declines them. After asking, true means that slots wait already.
    fn ask(&mut self, on: bool) -> bool {
        match &mut self.slots {
            Draining::Frames(slots) => slots.ring.want_kicks(on),
            Draining::Pipe(sending) => sending.want_kicks(on) && !self.nic.is_down(),
        }
    }

    /// Moves what is to be moved in a pipe.
    fn pass(&mut self, batch: &mut Batch, tally: &mut Tally) {
        let Draining::Pipe(sending) = &mut self.slots else { return };
        // Nothing is lost: it waits for the link.
        if self.nic.is_down() {
            return;
        }
        let moved = self.nic.port.overrun.timed(Act::Touch, || sending.pass(batch.room()));
        batch.passed(moved.frames);
        tally.frames += moved.frames as u64;
        tally.bytes += moved.bytes;
        if moved.bad > 0 {
            tally.drops.add(DropReason::BadBuffer, moved.bad);
        }
        if moved.room {
            tally.interrupts += self.nic.messages.raise(self.number, RingUse::Sends);
        }
        self.out = moved.out;
    }
}

impl IngressQueue for Sender {
    fn fetch(&mut self, batch: &mut Batch, tally: &mut Tally) {
        tally.interrupts += self.nic.messages.poll(self.number);
        if self.stopped {
            return;
        }
        match &mut self.slots {
            Draining::Frames(slots) => slots.fetch(self.nic.header(), batch, tally),
            Draining::Pipe(_) => self.pass(batch, tally),
        }
        self.judge();
        self.worked |= tally.frames > 0;
        if self.nic.is_down() && !batch.is_empty() {
            tally.drops.add(DropReason::LinkDown, u32::try_from(batch.len()).unwrap_or(u32::MAX));
            batch.clear();
        }
    }

    fn has_frames(&mut self) -> bool {
        !self.stopped && self.waits()
    }

    fn passed(&mut self) -> Option<(PortCounters, Outcome)> {
        self.out.take()
    }

    fn tend(&mut self, tally: &mut Tally) {
        tally.interrupts += self.nic.messages.poll(self.number);
    }

    fn release(&mut self, tally: &mut Tally) {
        tally.occasions += 1;
        let Draining::Frames(slots) = &mut self.slots else { return };
        if slots.release() {
            tally.interrupts += self.nic.messages.raise(self.number, RingUse::Sends);
        }
    }

    fn want_kicks(&mut self, on: bool) -> bool {
        self.nic.messages.alarm(self.number).set_sleeping(on);
        if self.stopped {
            return false;
        }
        if !on {
            self.ask(false);
            self.asked = false;
            return false;
        }
        if std::mem::take(&mut self.worked) | self.nic.take_received(self.number) {
            self.last_work = Instant::now();
        }
        self.asked = self.last_work.elapsed() >= BUSY;
        let waiting = if self.asked { self.ask(true) } else { self.waits() };
        self.judge();
        waiting && !self.stopped
    }

    fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.nic.messages.alarm(self.number).wake_fd())
    }

    fn longest_sleep(&self) -> Option<Duration> {
        let nap = (!self.stopped).then_some(if self.asked { LONGEST_SLEEP } else { NAP });
        [nap, self.nic.messages.alarm(self.number).due_in()].into_iter().flatten().min()
    }
}
