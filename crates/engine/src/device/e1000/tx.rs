//! How a transmit ring reads (8254x SDM §3.3): context descriptors are remembered, legacy and data
//! descriptors name buffers, EOP ends a packet, of which `packet` then makes a frame. Descriptors that asked
//! for it (RS) are marked done. The walk is every card's (`device::nic`).

use std::sync::Arc;

use super::irq::Delay;
use super::journal::RingJournal;
use super::packet::{changes_header, Maker};
use super::regs::{self, ring, tx, TX_RINGS};
use super::ring::{Ring, RingRegisters};
use super::shared::{IntelPart, NicState};
use super::stats::{self, Frames};
use crate::device::nic::{Cursor, Look, Made, TxCodec, Wishes};
use crate::device::packet::MIN_PADDED;
use crate::mem::GuestMap;
use crate::packet::Gso;
use crate::packet::{Batch, Frame, MAX_FRAME};
use crate::util::fault::Fault;

/// A descriptor's second word when it is marked done.
fn done(word: u64) -> u64 {
    word & !tx::STATUS | tx::DD
}

/// A guest's transmit ring.
pub struct TxRing {
    ring: Ring,
    /// Which of the device's it is.
    queue: usize,
    maker: Maker,
    /// Descriptors that there were when the batch began, and whether those that were given back last were all
    /// of them.
    avail: u32,
    idle: bool,
    /// Tags are put in.
    tagging: bool,
    /// Whether descriptors were done whose interrupt comes at once, and after a delay.
    commands: [u32; 2],
    frames: Frames,
}

impl TxRing {
    pub(super) fn new(queue: usize, map: &Arc<GuestMap>, csb: bool, journal: RingJournal) -> TxRing {
        TxRing {
            ring: Ring::new(TX_RINGS[queue], map, csb, journal),
            queue,
            maker: Maker::new(),
            avail: 0,
            idle: true,
            tagging: false,
            commands: [0; 2],
            frames: Frames::default(),
        }
    }
}

impl TxCodec for TxRing {
    type SharedPart = IntelPart;
    type Own = RingRegisters;
    const AHEAD: u32 = 64;

    fn ring(&self) -> &Ring {
        &self.ring
    }

    fn ring_mut(&mut self) -> &mut Ring {
        &mut self.ring
    }

    #[inline]
    fn begin(&mut self, nic: &NicState) -> Result<bool, Fault> {
        self.avail = self.ring.poll(&nic.regs, &nic.bad_tails)?;
        let any = self.avail > 0;
        self.tagging = any && nic.regs.get(regs::CTRL) & regs::CTRL_VME != 0;
        Ok(any)
    }

    fn look_ahead(&mut self, at: Cursor, hint: &mut usize) {
        let end = self.avail.min(at.count + Self::AHEAD);
        if at.count == 0 {
            self.ring.prefetch(0, end);
        }
        self.ring.prefetch(end, (self.avail - end).min(Self::AHEAD));
        let map = Arc::as_ref(&self.ring.map);
        for at in at.count..end {
            let address = self.ring.table.load(2 * self.ring.place(at) as usize);
            if let Some(piece) = map.translate(address, 1, hint) {
                piece.prefetch(0);
            }
        }
    }

    #[inline]
    fn look(&mut self, at: Cursor) -> Result<Look, Fault> {
        Ok(if at.count < self.avail {
            Look::Descriptor(self.ring.table.load(2 * at.place as usize + 1))
        } else {
            Look::Nothing
        })
    }

    fn buffer(&self, place: u32) -> u64 {
        self.ring.table.load(2 * place as usize)
    }

    fn next(&mut self, at: Cursor, _: u64) -> Cursor {
        let place = if at.place + 1 == self.ring.size { 0 } else { at.place + 1 };
        Cursor { place, count: at.count + 1 }
    }

    fn waits(&mut self, nic: &NicState, unfinished: Option<Cursor>) -> Result<bool, Fault> {
        let avail = self.ring.poll(&nic.regs, &nic.bad_tails)?;
        Ok(![0, unfinished.map_or(0, |at| at.count)].contains(&avail))
    }

    #[inline]
    fn plain(&self, word: u64) -> Option<u32> {
        let len = match word & (tx::DEXT | tx::DTYP_DATA) {
            tx::DEXT => return None,
            kind if kind & tx::DEXT == 0 => word & tx::LEGACY_LEN,
            _ => word & tx::LEN,
        };
        let tagged = self.tagging && word & tx::VLE != 0;
        let usual = (u64::from(MIN_PADDED)..=u64::from(MAX_FRAME)).contains(&len) && word & tx::EOP != 0;
        #[expect(clippy::cast_possible_truncation, reason = "at most MAX_FRAME")]
        (usual && !tagged && !changes_header(word)).then_some(len as u32)
    }

    fn data(&mut self, word: u64, buffer: u64) -> Option<(u32, bool)> {
        if word & (tx::DEXT | tx::DTYP_DATA) == tx::DEXT {
            self.maker.set_context(buffer, word);
            return None;
        }
        let mask = if word & tx::DEXT == 0 { tx::LEGACY_LEN } else { tx::LEN };
        #[expect(clippy::cast_possible_truncation, reason = "twenty bits at most")]
        Some(((word & mask) as u32, word & tx::EOP != 0))
    }

    fn changes_header(word: u64) -> bool {
        changes_header(word)
    }

    fn mark(word: u64) -> Option<u64> {
        (word & (tx::RS | tx::RPS) != 0).then_some(word)
    }

    fn make(&mut self, nic: &NicState, batch: &mut Batch, wishes: &Wishes) -> Made {
        self.maker.make(&nic.regs, batch, wishes)
    }

    #[inline]
    fn count(&mut self, nic: &NicState, frame: &Frame) {
        self.frames.count(frame);
        if frame.offload.gso != Gso::None {
            nic.stats.add(stats::SEGMENTED, 1);
            // The wire would have seen the segments (8254x SDM §13.7.47 and on count those).
            let rest = frame.len.saturating_sub(u32::from(frame.offload.hdr_len));
            let more = rest.div_ceil(u32::from(frame.offload.gso_size).max(1)).saturating_sub(1);
            nic.stats.add(stats::TX + stats::FRAMES, u64::from(more));
        }
    }

    fn counted(&mut self, nic: &NicState, _: u32) {
        nic.stats.frames(stats::TX, &std::mem::take(&mut self.frames));
    }

    fn give_back(&mut self, nic: &NicState, marks: &[(u32, u64)], to: Cursor, skipping: bool) {
        let own = self.maker.remembers(skipping);
        self.ring.own.journal.begin_transmit(to.place, marks, own);
        self.commands = [0; 2];
        for &(place, word) in marks {
            self.ring.table.publish(2 * place as usize + 1, done(word));
            self.commands[usize::from(word & tx::IDE != 0)] = 1;
        }
        self.idle = to.count == self.avail;
        self.ring.advance(&nic.regs, to.count, self.idle);
        self.ring.own.journal.end(Some(own));
    }

    fn report(&mut self, nic: &NicState, _: u32, half: bool) -> u64 {
        let done = if nic.irq.by_queue() { regs::TXQ0 << self.queue } else { regs::TXDW };
        let empty = if self.idle { regs::TXQE } else { 0 };
        // A driver with a status block says what it wants itself. Where accesses trap, an interrupt costs six
        // of them, and frames come further apart.
        let longer = if nic.tail_trapped(TX_RINGS[self.queue]) { 4 } else { 1 };
        let patience = nic.irq.patience().filter(|_| !self.ring.block.on);
        let [prompt, delayed] = self.commands.map(|some| some * done);
        // TIDV and TADV, unless reports wait for longer. Both rings have the same (82574 §10.2.6).
        let delay = |(last, first): (u32, u32)| {
            let register = |register| nic.regs.get(regs::TX_RING + register) & 0xffff;
            let (last, first) = (last * longer, first * longer);
            Delay::Transmit(register(ring::DELAY).max(last), register(ring::ABSOLUTE_DELAY).max(first))
        };
        let (at_once, later, delay) = match patience {
            // Queue causes of MSI-X are not delayed by registers (82574 §7.4.4).
            None if nic.irq.by_queue() => (prompt | delayed, 0, Delay::None),
            None => (prompt, delayed, delay((0, 0))),
            Some(_) if half => (prompt | delayed, 0, Delay::None),
            Some(patience) => (0, prompt | delayed, delay(patience)),
        };
        nic.irq.raise(at_once | empty, later, delay)
    }

    fn rest(&mut self, nic: &NicState) {
        self.ring.rest(&nic.regs);
    }

    fn restart(&mut self, _: &NicState) {
        self.maker.reset();
        self.ring.forget();
    }

    fn remap(&mut self, map: &Arc<GuestMap>) {
        self.ring.remap(map);
    }

    /// `journal` says how.
    fn recover(&mut self, nic: &NicState) -> bool {
        if self.ring.adopt(&nic.regs).is_none() {
            return false;
        }
        let intent = self.ring.own.journal.intent();
        let own = self.ring.own.journal.own(intent.is_some());
        if let Some(intent) = intent.filter(|intent| intent.head != self.ring.head) {
            let ahead = self.ring.look(&nic.regs).unwrap_or(0);
            // Less: the driver has filled some of them anew, so it has seen them.
            if ahead >= self.ring.distance(intent.head) {
                for (place, [word, _]) in (0..intent.count).map(|index| self.ring.own.journal.entry(index)) {
                    let at = 2 * place as usize + 1;
                    if self.ring.table.load(at) == word {
                        self.ring.table.publish(at, done(word));
                    }
                }
            }
            self.ring.head = intent.head;
            self.ring.commit(intent.head);
        }
        self.ring.own.journal.end(Some(own));
        self.maker.recall(own)
    }
}
