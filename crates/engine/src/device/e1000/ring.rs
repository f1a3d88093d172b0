//! A descriptor ring as its registers describe it, polled.
//!
//! The registers are plain memory that the guest writes without a notification. What saves the day is that
//! the tail is always the last one written: a core that has seen a tail by an acquire load sees base, length
//! and head as they were meant. So the ring is looked at anew ("latched")
//! * when the head in memory is not the one that we published last: the driver wrote it (Linux's e1000e
//!   re-programs the receive ring of a running 82574);
//! * when there is work and base or length are not those that we know.
//!
//! Never in the middle of a batch: places that have been counted would mean other memory.
//!
//! A length of zero, an empty ring and a tail beyond the end are all "nothing to do"; the last is counted.
//! A ring that has work but lies outside of guest memory is a fault.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use sidecore_abi::csb::{CSBAH, CSBAL};

use super::journal::{RingJournal, RingPosition};
use super::regs::ring::{BAH, BAL, HEAD, LEN, LEN_MASK, TAIL};
use super::regs::TX_RINGS;
use super::state::Registers;
use crate::device::csb::RingSide;
use crate::device::nic::RingBase;
use crate::mem::{GuestMap, Words};
use crate::util::fault::Fault;

/// Heads are published when a ring runs empty and at least once for this number of descriptors: publishing
/// takes the cache line away from the guest, which writes its tail there.
const PUBLISH_EVERY: u32 = 64;

/// Where the status block is. The low half is written last, and alone says whether there is one: half an
/// address is none.
#[inline]
fn block_at(regs: &Registers) -> u64 {
    match regs.acquire(CSBAL) {
        0 => 0,
        low => u64::from(regs.get(CSBAH)) << 32 | u64::from(low),
    }
}

/// One direction's ring, as its owner sees it.
pub(super) type Ring = RingBase<RingRegisters>;

/// What is known of its registers.
pub struct RingRegisters {
    /// Offset of its first register in BAR 0.
    at: u32,
    bal: u32,
    bah: u32,
    len: u32,
    published: u32,
    /// Where a successor finds the place.
    pub(super) journal: RingJournal,
}

impl Ring {
    pub(super) fn new(at: u32, map: &Arc<GuestMap>, csb: bool, journal: RingJournal) -> Ring {
        let side = if TX_RINGS.contains(&at) { RingSide::Transmit } else { RingSide::Receive };
        RingBase::with(map, side, csb, RingRegisters { at, bal: 0, bah: 0, len: 0, published: 0, journal })
    }

    /// How many descriptors the driver has filled in, from `head` on.
    #[inline]
    pub(super) fn poll(&mut self, regs: &Registers, bad_tails: &AtomicU64) -> Result<u32, Fault> {
        let tail = self.tail(regs)?;
        if tail == self.head && regs.get(self.own.at + HEAD) == self.own.published {
            return Ok(0);
        }
        let (bal, bah, len) = (
            regs.get(self.own.at + BAL),
            regs.get(self.own.at + BAH),
            regs.get(self.own.at + LEN) & LEN_MASK,
        );
        let head = regs.get(self.own.at + HEAD);
        if (bal, bah, len) != (self.own.bal, self.own.bah, self.own.len) || head != self.own.published {
            (self.own.bal, self.own.bah, self.own.len, self.own.published) = (bal, bah, len, head);
            self.head = head & 0xffff;
            self.size = 0;
            self.own.journal.latch((bal, bah, len), self.head, head);
        }
        if len == 0 || tail == self.head {
            return Ok(0);
        }
        if tail >= len / 16 || self.head >= len / 16 {
            bad_tails.fetch_add(1, Ordering::Relaxed);
            return Ok(0);
        }
        if self.size == 0 {
            self.locate()?;
        }
        Ok(self.ahead(tail))
    }

    /// The tail as the block has it, or its register.
    fn tail(&mut self, regs: &Registers) -> Result<u32, Fault> {
        let tail = self.block.tail(|| block_at(regs), &self.map, self.head)?;
        Ok(tail.unwrap_or_else(|| regs.acquire(self.own.at + TAIL) & 0xffff))
    }

    /// Finds the descriptors in the guest's memory.
    fn locate(&mut self) -> Result<(), Fault> {
        let base = u64::from(self.own.bah) << 32 | u64::from(self.own.bal & !0xf);
        let piece = self.map.translate(base, self.own.len, &mut 0).ok_or(Fault::AddressOutOfRange)?;
        self.table = Words::new(&piece).ok_or(Fault::AddressOutOfRange)?;
        self.size = self.own.len / 16;
        Ok(())
    }

    /// [`Ring::poll`] in the middle of a batch: more than `avail` if the driver has filled in some meanwhile.
    /// The ring is not latched again, whatever its registers say now: places that the batch has counted stay
    /// what they are.
    #[inline]
    pub(super) fn more(&self, regs: &Registers, avail: u32) -> u32 {
        let tail = self.block.peek();
        let tail = tail.unwrap_or_else(|| regs.acquire(self.own.at + TAIL) & 0xffff);
        if tail < self.size {
            self.ahead(tail).max(avail)
        } else {
            avail
        }
    }

    /// Descriptors from the head to `tail`, both below `size`.
    #[inline]
    fn ahead(&self, tail: u32) -> u32 {
        if tail >= self.head {
            tail - self.head
        } else {
            tail + self.size - self.head
        }
    }

    /// The descriptor `ahead` places behind `head`.
    #[inline]
    pub(super) fn place(&self, ahead: u32) -> u32 {
        let place = self.head + ahead;
        if place >= self.size {
            place - self.size
        } else {
            place
        }
    }

    /// Asks the cache for the descriptors from `ahead` places behind `head` on, `count` of them: four to a
    /// line.
    #[inline]
    pub(super) fn prefetch(&self, ahead: u32, count: u32) {
        for at in (ahead..ahead + count).step_by(4) {
            self.table.prefetch(2 * self.place(at) as usize);
        }
    }

    /// Moves the head on by `count`, at most what `poll` gave, and publishes it if it is time.
    #[inline]
    pub(super) fn advance(&mut self, regs: &Registers, count: u32, idle: bool) {
        self.head = self.place(count);
        self.block.publish(self.head);
        let behind = (self.head + self.size - self.own.published % self.size.max(1)) % self.size.max(1);
        // A published zero is what a driver writes to start anew: it must differ from where we are.
        if behind != 0 && (idle || behind >= PUBLISH_EVERY || self.own.published == 0) {
            self.publish(regs);
        } else {
            self.own.journal.moved(self.head, self.own.published, self.own.published);
        }
    }

    fn publish(&mut self, regs: &Registers) {
        self.own.journal.moved(self.head, self.head, self.own.published);
        // What the driver has written there meanwhile stays, and is looked at by the next poll.
        if regs.replace(self.own.at + HEAD, self.own.published, self.head) {
            self.own.published = self.head;
        }
        self.own.journal.moved(self.head, self.own.published, self.own.published);
    }

    /// The head will be here; its register says nothing of it yet.
    pub(super) fn commit(&self, head: u32) {
        self.own.journal.moved(head, self.own.published, self.own.published);
    }

    /// Takes the place over that the journal has. `None`: it has none, or the driver has set the ring up
    /// anew.
    pub(super) fn adopt(&mut self, regs: &Registers) -> Option<()> {
        let now = |register| regs.get(self.own.at + register);
        let head = now(HEAD);
        let place =
            self.own.journal.position().filter(|RingPosition { bal, bah, len, published, .. }| {
                let registers = (now(BAL), now(BAH), now(LEN) & LEN_MASK);
                registers == (*bal, *bah, *len) && published.contains(&head)
            });
        let Some(place) = place else {
            self.own.journal.clear();
            return None;
        };
        (self.own.bal, self.own.bah, self.own.len) = (place.bal, place.bah, place.len);
        (self.head, self.own.published) = (place.head, head);
        Some(())
    }

    /// Descriptors from the head on to the tail as it is now, if the ring can be found in the guest's memory.
    pub(super) fn look(&mut self, regs: &Registers) -> Option<u32> {
        let tail = self.tail(regs).ok()?;
        self.locate().ok()?;
        (tail < self.size && self.head < self.size).then(|| self.ahead(tail))
    }

    /// How far behind the head `place` is; farther than anything if one of them is outside of the ring.
    pub(super) fn distance(&self, place: u32) -> u32 {
        if place.max(self.head) < self.size {
            self.ahead(place)
        } else {
            u32::MAX
        }
    }

    /// Publishes the head as it is: the ring is turned off, and goes on from there when it is turned on again
    /// unless the driver writes another head meanwhile.
    pub(super) fn rest(&mut self, regs: &Registers) {
        if self.own.published != self.head {
            self.publish(regs);
        }
    }

    /// The device was reset: nothing is known.
    pub(super) fn forget(&mut self) {
        self.own.journal.clear();
        self.block.forget();
        (self.own.bal, self.own.bah, self.own.len, self.own.published) = (0, 0, 0, 0);
        (self.head, self.table, self.size) = (0, Words::EMPTY, 0);
        self.stopped = false;
    }

    /// The ring stays, in memory that is now described by `map`.
    pub(super) fn remap(&mut self, map: &Arc<GuestMap>) {
        self.map = Arc::clone(map);
        // Looked up again at the next poll; the place in the ring stays.
        (self.table, self.size) = (Words::EMPTY, 0);
        self.block.forget();
    }

    /// Descriptors that the driver has set up, for `show`.
    pub(super) fn length(regs: &Registers, at: u32) -> u32 {
        (regs.get(at + LEN) & LEN_MASK) / 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::e1000::regs;
    use crate::mem::RegionSpec;
    use rustix::fs::{ftruncate, memfd_create, MemfdFlags};

    #[test]
    fn a_ring_is_not_latched_in_the_middle_of_a_batch() {
        let fd = memfd_create(c"guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 0x1000).unwrap();
        let spec = RegionSpec { gpa: 0, size: 0x1000, user_addr: 0, offset: 0, file: fd.into() };
        let (regs, bad) = (Registers::new(None).unwrap(), AtomicU64::new(0));
        let (_, [journal, ..]) = RingJournal::open(None).unwrap();
        let mut ring = Ring::new(regs::RX_RING, &Arc::new(GuestMap::new(&[spec]).unwrap()), false, journal);
        let set = |register, value| regs.set(regs::RX_RING + register, value);
        set(LEN, 16 * 16);
        set(TAIL, 3);
        assert_eq!(ring.poll(&regs, &bad), Ok(3));
        set(TAIL, 7);
        assert_eq!(ring.more(&regs, 3), 7);
        // A shorter tail takes nothing back, and one beyond the ring, or another ring, is looked at later.
        for (register, value) in [(TAIL, 2), (TAIL, 16), (LEN, 0), (BAL, 0x800), (HEAD, 9)] {
            set(register, value);
            assert_eq!((ring.more(&regs, 7), ring.size, ring.head), (7, 16, 0));
        }
        assert_eq!(ring.poll(&regs, &bad), Ok(0));
        assert_eq!(ring.size, 0);
    }
}
