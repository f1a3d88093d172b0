//! What the descriptors of a packet ask for, done: VLAN tag, checksums, segmentation, padding.
//!
//! What must be changed is changed in private memory: the first 64 bytes, which every frame has there, and
//! for long headers a copy of what follows up to the checksum field. A transport checksum over the rest of an
//! IP packet and segmentation become offload facts, which cross the switch; anything else that a driver may
//! ask for, such as a checksum over a part of the packet, is worked out here and now, as the NIC would.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use super::regs::{self, tx};
use super::state::Registers;
use crate::frame::{Batch, Frame, HEAD, MAX_BATCH, MAX_PIECES};
use crate::mem::{Arena, Piece};
use crate::port::DropReason;
use crate::slice::{behind, behind_mut, put, upto, upto_mut};
use crate::wire::{Gso, Offload, Offloads, Sum, MAX_HEADER};

/// Shortest frame: an Ethernet header.
const MIN_FRAME: u32 = 14;
/// Frames are padded to this length (without FCS) if `TCTL.PSP` is set.
pub(super) const MIN_PADDED: u32 = 60;
const TAG: u32 = 4;

/// A context descriptor's words (8254x SDM §3.3.6).
#[derive(Clone, Copy, Default)]
struct Context {
    places: u64,
    lengths: u64,
}

#[expect(clippy::cast_possible_truncation, reason = "fields are cut out of a word")]
impl Context {
    fn ip(self) -> Span {
        Span::new(self.places as u32)
    }

    fn transport(self) -> Span {
        Span::new((self.places >> 32) as u32)
    }

    fn is_tcp(self) -> bool {
        self.lengths & tx::TCP != 0
    }

    fn gso(self) -> Gso {
        match (self.lengths & tx::IP != 0, self.is_tcp()) {
            (true, true) => Gso::Tcp4,
            (false, true) => Gso::Tcp6,
            (true, false) => Gso::Udp4,
            (false, false) => Gso::Udp6,
        }
    }

    fn header_len(self) -> u16 {
        u16::from((self.lengths >> 40) as u8)
    }

    fn mss(self) -> u16 {
        (self.lengths >> 48) as u16
    }
}

/// Where a checksum starts, where it is stored, and its last byte; zero means the packet's.
#[derive(Clone, Copy)]
struct Span {
    start: usize,
    store: usize,
    end: usize,
}

impl Span {
    fn new(word: u32) -> Span {
        Span { start: (word & 0xff) as usize, store: (word >> 8 & 0xff) as usize, end: (word >> 16) as usize }
    }

    /// The span of a legacy descriptor: CSS, CSO (8254x SDM §3.3.3).
    fn legacy(word: u64) -> Span {
        Span { start: (word >> 40 & 0xff) as usize, store: (word >> 16 & 0xff) as usize, end: 0 }
    }

    /// The same in a frame with `tag` bytes more in front of it.
    fn behind(self, tag: u32) -> Span {
        let tag = tag as usize;
        let end = if self.end == 0 { 0 } else { self.end + tag };
        Span { start: self.start + tag, store: self.store + tag, end }
    }
}

/// The second words of a packet's descriptors.
#[derive(Clone, Copy, Default)]
pub(super) struct Wishes {
    /// Of the first one: its options count (8254x SDM §3.3.7.2).
    pub(super) first: u64,
    /// Of all, or-ed: commands.
    pub(super) commands: u64,
    /// Of the last: its tag counts.
    pub(super) last: u64,
}

impl Wishes {
    /// Whether a header behind the first 64 bytes may have to be changed.
    #[inline]
    pub(super) fn change_header(word: u64) -> bool {
        let options = if word & tx::DEXT == 0 { tx::IC } else { tx::TSE | tx::TXSM | tx::IXSM };
        word & options != 0
    }
}

/// Makes frames of gathered buffers.
pub(super) struct Maker {
    /// For checksums, and for segmentation: two sets are kept (8254x SDM §3.5.1).
    contexts: [Context; 2],
    /// Header bytes behind the first 64 of frames whose headers were changed.
    headers: Arena,
}

impl Maker {
    pub(super) fn new() -> Maker {
        Maker { contexts: [Context::default(); 2], headers: Arena::new(MAX_BATCH, MAX_HEADER) }
    }

    pub(super) fn reset(&mut self) {
        self.contexts = [Context::default(); 2];
    }

    /// What a successor has to know: both contexts, and a flag of the ring's own.
    #[inline]
    pub(super) fn remembers(&self, skipping: bool) -> [u64; 5] {
        let [a, b] = self.contexts;
        [a.places, a.lengths, b.places, b.lengths, skipping.into()]
    }

    /// Takes that over; gives the flag back.
    pub(super) fn recall(&mut self, [a, b, c, d, skipping]: [u64; 5]) -> bool {
        self.contexts = [Context { places: a, lengths: b }, Context { places: c, lengths: d }];
        skipping != 0
    }

    /// A context descriptor.
    pub(super) fn set_context(&mut self, places: u64, lengths: u64) {
        let [plain, segmenting] = &mut self.contexts;
        *(if lengths & tx::TSE == 0 { plain } else { segmenting }) = Context { places, lengths };
    }

    /// Adds the frame to `batch` whose `len` bytes are its pieces from `first` on. If `wishes` may change the
    /// header, the first piece is empty: a place for a changed part.
    #[inline]
    pub(super) fn make(
        &mut self,
        regs: &Registers,
        batch: &mut Batch,
        first: usize,
        len: u32,
        wishes: &Wishes,
    ) -> Result<(), DropReason> {
        if len < MIN_FRAME {
            return Err(DropReason::TooShort);
        }
        let slot = batch.len();
        let Some((frame, pieces)) = batch.next_frame() else { return Err(DropReason::TooManyPieces) };
        let count = pieces.len() - first;
        if count > MAX_PIECES {
            return Err(DropReason::TooManyPieces);
        }
        let tagged = wishes.commands & tx::VLE != 0 && regs.get(regs::CTRL) & regs::CTRL_VME != 0;
        frame.len = len;
        frame.offload = Offload::NONE;
        let mut packet =
            Packet { frame, list: pieces.range_mut(first, count), at: 0, headers: &mut self.headers, slot };
        if tagged {
            #[expect(clippy::cast_possible_truncation, reason = "sixteen bits each")]
            packet.read_tagged(regs.get(regs::VET) as u16, (wishes.last >> 48) as u16);
        } else {
            packet.read_head();
        }
        let segment = wishes.first & tx::DEXT != 0 && wishes.commands & tx::TSE != 0;
        if segment || Wishes::change_header(wishes.first) {
            packet.work(&self.contexts, wishes, if tagged { TAG } else { 0 })?;
        }
        if packet.frame.len < MIN_PADDED && regs.get(regs::TCTL) & regs::TCTL_PSP != 0 {
            let short = packet.frame.len as usize;
            behind_mut(upto_mut(&mut packet.frame.head, MIN_PADDED as usize), short).fill(0);
            packet.frame.len = MIN_PADDED;
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most MAX_PIECES of BATCH_PIECES")]
        {
            packet.frame.piece = (first + packet.at) as u32;
            packet.frame.pieces = (count - packet.at) as u16;
        }
        batch.commit_odd();
        Ok(())
    }
}

/// A frame in the making.
struct Packet<'a> {
    frame: &'a mut Frame,
    list: &'a mut [Piece],
    /// The first piece that has bytes behind the head.
    at: usize,
    headers: &'a mut Arena,
    slot: usize,
}

impl Packet<'_> {
    #[inline]
    fn read_head(&mut self) {
        let n = self.frame.head_len();
        self.at = take(self.list, 0, upto_mut(&mut self.frame.head, n));
    }

    /// Reads the head and puts a tag behind the addresses (8254x SDM §9.3.1).
    fn read_tagged(&mut self, vet: u16, tci: u16) {
        self.frame.len += TAG;
        let n = self.frame.head_len();
        let head = &mut self.frame.head;
        self.at = take(self.list, 0, &mut head[..12]);
        head[12..14].copy_from_slice(&vet.to_be_bytes());
        head[14..16].copy_from_slice(&tci.to_be_bytes());
        self.at = take(self.list, self.at, behind_mut(upto_mut(head, n), 16));
    }

    #[cold]
    fn work(&mut self, contexts: &[Context; 2], wishes: &Wishes, tag: u32) -> Result<(), DropReason> {
        if wishes.first & tx::DEXT == 0 {
            return self.checksum(Span::legacy(wishes.first).behind(tag), true);
        }
        if wishes.commands & tx::TSE != 0 {
            return self.segmentation(contexts[1], tag);
        }
        let context = contexts[0];
        if wishes.first & tx::IXSM != 0 {
            self.checksum_now(context.ip().behind(tag), false)?;
        }
        if wishes.first & tx::TXSM != 0 {
            self.checksum(context.transport().behind(tag), !context.is_tcp())?;
        }
        Ok(())
    }

    fn segmentation(&mut self, context: Context, tag: u32) -> Result<(), DropReason> {
        let span = context.transport().behind(tag);
        let bad = |_| DropReason::BadOffload;
        let offset = span.store.checked_sub(span.start).ok_or(DropReason::BadOffload)?;
        #[expect(clippy::cast_possible_truncation, reason = "below 260 all three")]
        let facts = Offload {
            flags: Offload::NEEDS_CSUM,
            gso: context.gso(),
            ecn: false,
            hdr_len: context.header_len() + tag as u16,
            gso_size: context.mss(),
            csum_start: span.start as u16,
            csum_offset: offset as u16,
        };
        let len = self.frame.len as usize;
        self.rewrite(span.store + 2, |header| facts.fill_in(header, len).map_err(bad))?;
        let head = self.frame.head();
        self.frame.offload = facts.check(head, len, Offloads::ALL.without(Offloads::VALID)).map_err(bad)?;
        Ok(())
    }

    /// A transport checksum: left to the receiver if it is one that every receiver understands.
    fn checksum(&mut self, span: Span, udp: bool) -> Result<(), DropReason> {
        let len = self.frame.len as usize;
        if let (true, Some(offset)) =
            (span.end == 0 || span.end + 1 >= len, span.store.checked_sub(span.start))
        {
            #[expect(clippy::cast_possible_truncation, reason = "below 260 both")]
            let facts = Offload {
                flags: Offload::NEEDS_CSUM,
                csum_start: span.start as u16,
                csum_offset: offset as u16,
                ..Offload::NONE
            };
            if let Ok(facts) = facts.check(self.frame.head(), len, Offloads::CSUM) {
                self.frame.offload = facts;
                return Ok(());
            }
        }
        self.checksum_now(span, udp)
    }

    /// A checksum over any bytes, stored anywhere in the header. One that begins or lies behind the packet's
    /// end is not made (8254x SDM §3.5.3).
    fn checksum_now(&mut self, span: Span, udp: bool) -> Result<(), DropReason> {
        let len = self.frame.len as usize;
        let end = if span.end == 0 { len } else { len.min(span.end + 1) };
        if span.start >= end || span.store + 2 > len {
            return Ok(());
        }
        let checksum = match self.sum(span.start, end).checksum() {
            // RFC 768: zero would mean that there is none.
            0 if udp => 0xffff,
            checksum => checksum,
        };
        self.rewrite(span.store + 2, |header| {
            put(header, span.store, &checksum.to_be_bytes());
            Ok(())
        })
    }

    /// Lets `change` work on the first `end` bytes of the frame.
    fn rewrite(
        &mut self,
        end: usize,
        change: impl FnOnce(&mut [u8]) -> Result<(), DropReason>,
    ) -> Result<(), DropReason> {
        if end > self.frame.len as usize || end > MAX_HEADER {
            return Err(DropReason::BadOffload);
        }
        if end <= HEAD {
            return change(upto_mut(&mut self.frame.head, end));
        }
        let mut header = [0; MAX_HEADER];
        header[..HEAD].copy_from_slice(&self.frame.head);
        self.at = take(self.list, self.at, behind_mut(upto_mut(&mut header, end), HEAD));
        // The empty first piece made sure of one place; a second change of an overlapping part has none.
        let place = self.at.checked_sub(1).ok_or(DropReason::BadOffload)?;
        change(upto_mut(&mut header, end))?;
        self.frame.head.copy_from_slice(&header[..HEAD]);
        let there = self.list.get_mut(place).ok_or(DropReason::BadOffload)?;
        *there = self.headers.put(self.slot, behind(upto(&header, end), HEAD), 0);
        self.at = place;
        Ok(())
    }

    /// The sum over bytes `from..to` of the frame.
    fn sum(&self, from: usize, to: usize) -> Sum {
        let mut sum = Sum::default();
        if from < HEAD {
            sum.add(behind(upto(&self.frame.head, to), from));
        }
        let mut start = HEAD;
        for piece in behind(self.list, self.at) {
            let end = start + piece.len();
            let mut part = *piece;
            part.advance(from.saturating_sub(start));
            part = part.first(to.saturating_sub(start.max(from)));
            let mut chunk = [0; 1024];
            while !part.is_empty() {
                let n = part.read(&mut chunk);
                part.advance(n);
                sum.add(upto(&chunk, n));
            }
            start = end;
        }
        sum
    }
}

/// Reads the next `to.len()` bytes of `list` from piece `at` on, as far as there are so many, and drops them
/// from the pieces. Returns the first piece that still has bytes.
#[inline]
fn take(list: &mut [Piece], mut at: usize, to: &mut [u8]) -> usize {
    let mut done = 0;
    while let Some(piece) = list.get_mut(at) {
        let n = piece.read(behind_mut(to, done));
        piece.advance(n);
        done += n;
        if !piece.is_empty() {
            break;
        }
        at += 1;
    }
    at
}
