//! A packet as a guest's descriptors gave it, on its way to become a frame: VLAN tag, checksums,
//! segmentation, padding.
//!
//! What must be changed is changed in private memory: the first 64 bytes, which every frame has there, and
//! for long headers a copy of what follows up to the checksum field. A transport checksum over the rest of an
//! IP packet and segmentation become offload facts, which cross the switch; anything else that a driver may
//! ask for, such as a checksum over a part of the packet, is worked out here and now, as the NIC would.
//!
//! Each NIC says in its own words what is wanted (`e1000::packet`, `rtl8169::packet`); doing it is the same
//! for all.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use crate::mem::{gather, Arena, GuestMap, Piece, Pieces};
use crate::packet::{
    sum, Batch, Frame, Offload, Offloads, HEAD, MAX_BATCH, MAX_HEADER, MAX_PIECES, MIN_FRAME,
};
use crate::port::DropReason;
use crate::util::fault::Fault;
use crate::util::slice::{behind, behind_mut, put, upto, upto_mut};

/// Shortest frame on a wire, without FCS.
pub(super) const MIN_PADDED: u32 = 60;
/// Bytes of a VLAN tag.
pub(super) const TAG: u32 = 4;

/// Private memory for the header bytes behind the first 64 of a batch's frames.
pub(super) fn headers() -> Arena {
    Arena::new(MAX_BATCH, MAX_HEADER)
}

/// Adds a frame to `batch` that asks for nothing but to be sent: the `len` bytes of `piece`. False: the batch
/// has no room.
#[inline]
pub(super) fn add_plain(batch: &mut Batch, mut piece: Piece, len: u32) -> bool {
    let Some((frame, pieces)) = batch.next_frame() else { return false };
    frame.len = len;
    frame.offload = Offload::NONE;
    let n = frame.head_len();
    piece.read(upto_mut(&mut frame.head, n));
    (frame.piece, frame.pieces) = (0, 0);
    if piece.advance(n) < len as usize {
        #[expect(clippy::cast_possible_truncation, reason = "at most BATCH_PIECES")]
        {
            (frame.piece, frame.pieces) = (pieces.len() as u32, 1);
        }
        if !pieces.push(piece) {
            return false;
        }
    }
    batch.commit_plain();
    true
}

/// Adds a buffer of `len` bytes, which may span regions that are adjacent in the guest, to `pieces`; false if
/// they are full.
#[inline]
pub(super) fn add_buffer(
    pieces: &mut Pieces,
    map: &GuestMap,
    (addr, len): (u64, u32),
    hint: &mut usize,
) -> Result<bool, Fault> {
    if len == 0 {
        return Ok(true);
    }
    if let Some(piece) = map.translate(addr, len, hint) {
        return Ok(pieces.push(piece));
    }
    for piece in map.parts(addr, len) {
        if !pieces.push(piece.ok_or(Fault::AddressOutOfRange)?) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Where a checksum starts, where it is stored, and its last byte; zero means the packet's.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) start: usize,
    pub(super) store: usize,
    pub(super) end: usize,
}

impl Span {
    /// This checksum in a frame with `tag` bytes more in front of it.
    pub(super) fn behind(self, tag: u32) -> Span {
        let tag = tag as usize;
        let end = if self.end == 0 { 0 } else { self.end + tag };
        Span { start: self.start + tag, store: self.store + tag, end }
    }
}

/// A frame in the making.
pub(super) struct Packet<'a> {
    frame: &'a mut Frame,
    list: &'a mut [Piece],
    /// The first piece that has bytes behind the head, and the number of `list`'s first in the batch.
    at: usize,
    first: usize,
    headers: &'a mut Arena,
    slot: usize,
}

impl<'a> Packet<'a> {
    /// Begins the next frame of `batch`, whose `len` bytes are its pieces from `first` on. If headers behind
    /// the first 64 bytes may be changed, the first piece must be empty: a place for a changed part.
    #[inline]
    pub(super) fn begin(
        batch: &'a mut Batch,
        headers: &'a mut Arena,
        first: usize,
        len: u32,
    ) -> Result<Packet<'a>, DropReason> {
        if len < MIN_FRAME {
            return Err(DropReason::TooShort);
        }
        let slot = batch.len();
        let Some((frame, pieces)) = batch.next_frame() else { return Err(DropReason::TooManyPieces) };
        let count = pieces.len() - first;
        if count > MAX_PIECES {
            return Err(DropReason::TooManyPieces);
        }
        frame.len = len;
        frame.offload = Offload::NONE;
        Ok(Packet { frame, list: pieces.range_mut(first, count), at: 0, first, headers, slot })
    }

    /// Bytes of the frame, with what was put in so far.
    pub(super) fn len(&self) -> usize {
        self.frame.len as usize
    }

    /// Its first bytes, when they have been read.
    pub(super) fn head(&self) -> &[u8] {
        self.frame.head()
    }

    /// Fills a short frame up to what a wire carries.
    #[inline]
    pub(super) fn pad(&mut self) {
        if self.frame.len < MIN_PADDED {
            let short = self.frame.len as usize;
            behind_mut(upto_mut(&mut self.frame.head, MIN_PADDED as usize), short).fill(0);
            self.frame.len = MIN_PADDED;
        }
    }

    /// It is ready to be committed to its batch.
    #[inline]
    pub(super) fn finish(self) {
        #[expect(clippy::cast_possible_truncation, reason = "at most MAX_PIECES of BATCH_PIECES")]
        {
            self.frame.piece = (self.first + self.at) as u32;
            self.frame.pieces = (self.list.len() - self.at) as u16;
        }
    }

    /// Reads the first bytes into private memory.
    pub(super) fn read_head(&mut self) {
        let n = self.frame.head_len();
        self.at = gather(self.list, 0, upto_mut(&mut self.frame.head, n));
    }

    /// Reads the head and puts a tag behind the addresses (802.1Q §9.3).
    pub(super) fn read_tagged(&mut self, vet: u16, tci: u16) {
        self.frame.len += TAG;
        let n = self.frame.head_len();
        let head = &mut self.frame.head;
        self.at = gather(self.list, 0, &mut head[..12]);
        head[12..14].copy_from_slice(&vet.to_be_bytes());
        head[14..16].copy_from_slice(&tci.to_be_bytes());
        self.at = gather(self.list, self.at, behind_mut(upto_mut(head, n), 16));
    }

    /// Has it cut into segments, as `facts` say; their checksum is `NEEDS_CSUM`'s.
    pub(super) fn segmentation(&mut self, facts: Offload) -> Result<(), DropReason> {
        let bad = |_| DropReason::BadOffload;
        let len = self.frame.len as usize;
        let store = usize::from(facts.csum_start) + usize::from(facts.csum_offset);
        self.rewrite(store + 2, |header| facts.fill_in(header, len).map_err(bad))?;
        let head = self.frame.head();
        self.frame.offload = facts.check(head, len, Offloads::ALL.without(Offloads::VALID)).map_err(bad)?;
        Ok(())
    }

    /// A transport checksum: left to the receiver if it is one that every receiver understands.
    pub(super) fn checksum(&mut self, span: Span, udp: bool) -> Result<(), DropReason> {
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
    /// end is not made (8254x SDM §3.5.3, and so do others).
    pub(super) fn checksum_now(&mut self, span: Span, udp: bool) -> Result<(), DropReason> {
        let len = self.frame.len as usize;
        let end = if span.end == 0 { len } else { len.min(span.end + 1) };
        if span.start >= end || span.store + 2 > len {
            return Ok(());
        }
        let checksum = match sum(self.frame.head(), behind(self.list, self.at), span.start, end).checksum() {
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
    pub(super) fn rewrite(
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
        self.at = gather(self.list, self.at, behind_mut(upto_mut(&mut header, end), HEAD));
        // The empty first piece made sure of one place; a second change of an overlapping part has none.
        let place = self.at.checked_sub(1).ok_or(DropReason::BadOffload)?;
        change(upto_mut(&mut header, end))?;
        self.frame.head.copy_from_slice(&header[..HEAD]);
        let there = self.list.get_mut(place).ok_or(DropReason::BadOffload)?;
        *there = self.headers.put(self.slot, behind(upto(&header, end), HEAD), 0);
        self.at = place;
        Ok(())
    }
}
