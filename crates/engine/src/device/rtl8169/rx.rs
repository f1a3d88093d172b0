//! The guest's receive ring: frames in, descriptors filled.
//!
//! Theory of operation. A frame goes into the next descriptors that are the device's: as many as it takes,
//! `FS` in the first and `LS` in the last. They are collected until the frame fits, and only then is anything
//! written. Descriptors are given back together behind the copies, the first of them last: a driver sees none
//! of a batch, and then all of it. Once the ring has none left, frames are dropped before their bytes are
//! touched.
//!
//! For speed: buffers are looked up some descriptors at a time, so that their lines are on their way before
//! the copy; registers are read once a batch.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::sync::atomic::Ordering;
use std::sync::Arc;

use super::journal::RingJournal;
use super::regs::cause::RDU;
use super::regs::{self, desc};
use super::ring::{Ring, MAX};
use super::state::{admits, NicState};
use super::stats::Received;
use crate::count;
use crate::device::csb::RingSide;
use crate::device::nic::RxRings;
use crate::device::packet::MIN_PADDED;
use crate::device::source::{tag, FrameBytes, Shortage};
use crate::mem::{prefetch_own, GuestMap, Piece};
use crate::packet::{is_group, Batch, Frame, Ip, Offload, BROADCAST};
use crate::port::{DropReason, EgressQueue, Outcome, Room};
use crate::util::fault::Fault;
use crate::util::slice::behind;

const FCS: u32 = 4;
/// Longest frame, with FCS.
const RX_LEN: u32 = 0x3fff;
const _: () = assert!(RX_LEN as u64 == desc::RX_LEN);
/// EtherType of a tag (802.1Q §9.6).
const VLAN: u16 = 0x8100;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Most descriptors of one frame.
const MAX_DESCRIPTORS: usize = 64;
/// Descriptors that are looked at before their buffers are needed, at most.
const AHEAD: usize = 64;

/// A descriptor that is the device's: its place, its first word, and its buffer, empty where it cannot be
/// reached in one piece.
#[derive(Clone, Copy)]
struct RxDescriptor {
    place: u32,
    word: u64,
    buffer: Piece,
}

impl RxDescriptor {
    fn size(&self) -> u32 {
        (self.word & desc::RX_LEN) as u32
    }
}

/// What the registers say about frames: read once a batch.
struct Rules {
    rcr: u32,
    /// With FCS.
    longest: u32,
    /// Tags are taken out.
    strip: bool,
    /// It is said whose checksums were checked.
    checked: bool,
}

impl Rules {
    fn new(nic: &NicState) -> Rules {
        let (cpcr, rms) = (nic.regs.get(regs::CPCR), nic.regs.get(regs::RMS) >> 16);
        Rules {
            rcr: nic.regs.get(regs::RCR),
            // Fourteen bits, as the length of a done descriptor; of zero, which Linux makes of them, nothing
            // is too long.
            longest: (rms.wrapping_sub(1) & RX_LEN).saturating_add(1).min(RX_LEN),
            strip: cpcr & regs::CPCR_RXVLAN != 0,
            checked: cpcr & regs::CPCR_RXCHKSUM != 0,
        }
    }

    /// What a done descriptor says of a frame beside its length.
    #[inline]
    fn status(&self, frame: &Frame, tag: Option<u16>) -> u64 {
        let dst = frame.dst();
        let kind = match is_group(dst) {
            false => desc::PAM,
            true if dst == BROADCAST => desc::BAR,
            true => desc::MAR,
        };
        let tag = tag.map_or(0, |tci| desc::TAVA | u64::from(tci.swap_bytes()) << desc::TAG_SHIFT);
        let checked = self.checked && frame.offload.flags & Offload::DATA_VALID != 0;
        let protocol =
            if checked { Ip::parse(frame.head()).filter(|ip| !ip.v6).and_then(|ip| ip.l4) } else { None };
        kind | tag
            | match protocol {
                Some((TCP, _)) => desc::TCP,
                Some((UDP, _)) => desc::UDP,
                _ => 0,
            }
    }
}

/// A guest's receive ring.
pub struct RxRing {
    nic: Arc<NicState>,
    ring: Ring,
    hint: usize,
    /// Descriptors that were looked at and not filled: those from `next` on; and the place behind them.
    ahead: Vec<RxDescriptor>,
    next: usize,
    ahead_to: u32,
    /// Descriptors that are filled in and not given back: places and words; and the place behind them.
    filled: Vec<(u32, u64)>,
    at: u32,
}

impl RxRing {
    pub(super) fn new(nic: Arc<NicState>, map: &Arc<GuestMap>, journal: RingJournal) -> RxRing {
        RxRing {
            ring: Ring::new(map, journal, RingSide::Receive, nic.csb),
            nic,
            hint: 0,
            ahead: Vec::with_capacity(AHEAD + MAX_DESCRIPTORS),
            next: 0,
            ahead_to: 0,
            filled: Vec::with_capacity(MAX as usize),
            at: 0,
        }
    }

    /// The device is at the beginning of its ring.
    pub(super) fn restart(&mut self) {
        self.ring.restart(self.nic.regs.pair(regs::RDSAR));
    }

    /// Looks at up to `count` descriptors more and asks the cache for their buffers. False: there is none.
    fn look_ahead(&mut self, count: usize) -> Result<bool, Fault> {
        if self.next > 0 {
            self.ahead.drain(..self.next);
            self.next = 0;
        }
        let before = self.ahead.len();
        for _ in 0..count.min(self.ahead.capacity() - before) {
            let any = !self.filled.is_empty() || !self.ahead.is_empty();
            let word = self.ring.look(self.ahead_to)?;
            if word & desc::OWN == 0 || any && self.ahead_to == self.ring.head {
                break;
            }
            let (place, size) = (self.ahead_to, (word & desc::RX_LEN) as u32);
            let buffer = self.ring.map.translate(self.ring.buffer(place), size, &mut self.hint);
            let buffer = buffer.unwrap_or(Piece::EMPTY);
            prefetch_own(buffer.as_ptr());
            self.ahead.push(RxDescriptor { place, word, buffer });
            self.ahead_to = self.ring.next(place, word);
        }
        Ok(self.ahead.len() > before)
    }

    /// The place behind the descriptors that were looked at up to `next`.
    fn settle(&mut self) {
        self.at = self.ahead.get(self.next).map_or(self.ahead_to, |slot| slot.place);
    }

    /// Fills the next descriptors with a frame.
    fn fill(&mut self, source: &mut FrameBytes, status: u64, picks_left: usize) -> Result<(), Shortage> {
        let need = source.len() + FCS;
        // Pass 1: the descriptors, until the frame fits.
        let (mut room, mut count) = (0, 0);
        while room < need {
            if count == MAX_DESCRIPTORS {
                return Err(Shortage::Frame);
            }
            // A driver that moves the ring's end (`EOR`) has us come by the same descriptors again and again.
            if self.filled.len() + count == MAX as usize {
                return Err(Shortage::Ring);
            }
            if self.next + count == self.ahead.len() {
                let more = self.look_ahead(picks_left.clamp(1, AHEAD)).map_err(Shortage::Fault)?;
                if !more {
                    return Err(Shortage::Ring);
                }
            }
            room += self.ahead.get(self.next + count).map_or(0, RxDescriptor::size);
            count += 1;
        }
        // Pass 2: data.
        let mut left = need;
        for index in 0..count {
            let Some(slot) = self.ahead.get(self.next + index).copied() else { break };
            let part = left.min(slot.size());
            left -= part;
            if slot.buffer.is_empty() {
                let buffer = self.ring.buffer(slot.place);
                source.copy_to(&self.ring.map, (buffer, part), &mut self.hint)?;
            } else {
                source.copy(slot.buffer.first(part as usize));
            }
            let first = if index == 0 { desc::FS } else { 0 };
            let last = if left == 0 { desc::LS } else { 0 };
            let word = slot.word & desc::EOR | first | last | status | u64::from(need);
            self.filled.push((slot.place, word));
        }
        self.next += count;
        Ok(())
    }

    /// Gives back what was filled in.
    fn give_back(&mut self) {
        if !self.filled.is_empty() {
            self.settle();
            self.ring.give_back(&self.filled, self.at);
            self.nic.sizes[1].store(self.ring.size, Ordering::Relaxed);
            self.filled.clear();
        }
    }
}

impl RxRings for RxRing {
    fn set_map(&mut self, map: &Arc<GuestMap>) {
        self.ring.remap(map);
        self.hint = 0;
    }

    fn reset(&mut self) {
        self.ring.stopped = false;
        self.restart();
    }

    fn recover(&mut self) {
        self.ring.recover(self.nic.regs.pair(regs::RDSAR));
    }
}

impl EgressQueue for RxRing {
    fn send(&mut self, batch: &Batch, picks: &[u16], outcome: &mut Outcome) {
        let nic = Arc::clone(&self.nic);
        let rules = Rules::new(&nic);
        let (mut missed, mut delivered, mut frames) = (0, 0, Received::default());
        let found = self.ring.look_at_block(|| nic.block());
        self.ring.checked(&nic.port, found);
        let from = self.ring.head;
        self.ahead.clear();
        (self.next, self.ahead_to) = (0, self.ring.head);
        for (index, &pick) in picks.iter().enumerate() {
            if outcome.is_late(index) {
                outcome.dropped_all(behind(picks, index), DropReason::ReceiverBusy);
                break;
            }
            let frame = batch.frame(pick);
            if self.ring.stopped {
                outcome.dropped(pick, DropReason::RingBroken);
                continue;
            }
            if !admits(&nic.regs, rules.rcr, frame) {
                outcome.dropped(pick, DropReason::Filtered);
                continue;
            }
            if frame.len.max(MIN_PADDED) + FCS > rules.longest {
                outcome.dropped(pick, DropReason::BufferTooSmall);
                continue;
            }
            if missed > 0 {
                // A ring that had no place for one is not asked for every other.
                missed += 1;
                outcome.dropped(pick, DropReason::RingFull);
                continue;
            }
            let stripped = tag(frame, VLAN).filter(|_| rules.strip);
            let mut source = FrameBytes::new(frame, batch.body(frame), stripped.is_some());
            let whole = self.filled.len();
            match self.fill(&mut source, rules.status(frame, stripped), picks.len() - index) {
                Ok(()) => {
                    delivered += 1;
                    frames.count(frame);
                    outcome.delivered(frame.len);
                }
                Err(Shortage::Ring) => {
                    missed += 1;
                    outcome.dropped(pick, DropReason::RingFull);
                }
                Err(Shortage::Frame) => outcome.dropped(pick, DropReason::BufferTooSmall),
                Err(Shortage::Fault(fault)) => {
                    self.filled.truncate(whole);
                    self.ring.stop(&nic.port, fault);
                    outcome.dropped(pick, DropReason::RingBroken);
                }
            }
        }
        self.give_back();
        if delivered > 0 {
            nic.stats.received(&frames);
            nic.received.store(true, Ordering::Relaxed);
        }
        count(&nic.stats.missed, missed);
        if self.ring.block.wants_interrupt(from, self.ring.size) {
            outcome.occasions += u64::from(delivered > 0) + u64::from(missed > 0);
            if delivered > 0 {
                outcome.interrupts += nic.irq.received(delivered);
            }
            if missed > 0 {
                outcome.interrupts += nic.irq.raise(RDU);
            }
        }
        self.ring.check_memory(&nic.port);
    }

    fn is_full(&mut self) -> bool {
        if self.ring.stopped {
            return false;
        }
        let found = self.ring.has_next();
        self.ring.checked(&self.nic.port, found) == Some(false)
    }

    fn room(&mut self) -> Option<Room> {
        if self.ring.stopped {
            return None;
        }
        let found = self.ring.free();
        let free = self.ring.checked(&self.nic.port, found)?;
        Some(Room { free, size: self.ring.size })
    }
}
