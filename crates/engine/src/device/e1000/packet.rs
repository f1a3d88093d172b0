//! What the descriptors of a packet ask for, done: VLAN tag, checksums, segmentation, padding.
//!
//! Here it is read what they ask for; how it is done is every NIC's (`device::packet`).
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use super::regs::{self, tx};
use super::state::Registers;
use crate::device::nic::{Made, Wishes};
use crate::device::packet::{headers, Packet, Span, TAG};
use crate::mem::Arena;
use crate::packet::{Batch, Gso, Offload};
use crate::port::DropReason;

/// A context descriptor's words (8254x SDM §3.3.6).
#[derive(Clone, Copy, Default)]
struct Context {
    places: u64,
    lengths: u64,
}

#[expect(clippy::cast_possible_truncation, reason = "fields are cut out of a word")]
impl Context {
    fn ip(self) -> Span {
        span(self.places as u32)
    }

    fn transport(self) -> Span {
        span((self.places >> 32) as u32)
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

/// A half of a context's places: start, store, last byte.
fn span(word: u32) -> Span {
    Span { start: (word & 0xff) as usize, store: (word >> 8 & 0xff) as usize, end: (word >> 16) as usize }
}

/// The span of a legacy descriptor: CSS, CSO (8254x SDM §3.3.3).
fn legacy(word: u64) -> Span {
    Span { start: (word >> 40 & 0xff) as usize, store: (word >> 16 & 0xff) as usize, end: 0 }
}

/// Whether a packet whose first descriptor has this second word may have a header behind the first 64 bytes
/// changed: its options count (8254x SDM §3.3.7.2), the tag of its last.
pub(super) fn changes_header(word: u64) -> bool {
    let options = if word & tx::DEXT == 0 { tx::IC } else { tx::TSE | tx::TXSM | tx::IXSM };
    word & options != 0
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
        Maker { contexts: [Context::default(); 2], headers: headers() }
    }

    pub(super) fn reset(&mut self) {
        self.contexts = [Context::default(); 2];
    }

    /// What a successor has to know: both contexts, and a flag of the ring's own.
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

    /// As `TxCodec::make`.
    #[inline]
    pub(super) fn make(&mut self, regs: &Registers, batch: &mut Batch, wishes: &Wishes) -> Made {
        let tagged = wishes.commands & tx::VLE != 0 && regs.get(regs::CTRL) & regs::CTRL_VME != 0;
        let mut packet = Packet::begin(batch, &mut self.headers, wishes.start, wishes.len)?;
        if tagged {
            #[expect(clippy::cast_possible_truncation, reason = "sixteen bits each")]
            packet.read_tagged(regs.get(regs::VET) as u16, (wishes.last >> 48) as u16);
        } else {
            packet.read_head();
        }
        let segment = wishes.first & tx::DEXT != 0 && wishes.commands & tx::TSE != 0;
        if segment || changes_header(wishes.first) {
            work(&mut packet, &self.contexts, wishes, if tagged { TAG } else { 0 })?;
        }
        // Frames are padded if `TCTL.PSP` is set (8254x SDM §13.4.33).
        if regs.get(regs::TCTL) & regs::TCTL_PSP != 0 {
            packet.pad();
        }
        packet.finish();
        batch.commit_odd();
        Ok(())
    }
}

#[cold]
fn work(packet: &mut Packet, contexts: &[Context; 2], wishes: &Wishes, tag: u32) -> Result<(), DropReason> {
    if wishes.first & tx::DEXT == 0 {
        return packet.checksum(legacy(wishes.first).behind(tag), true);
    }
    if wishes.commands & tx::TSE != 0 {
        return segmentation(packet, contexts[1], tag);
    }
    let context = contexts[0];
    if wishes.first & tx::IXSM != 0 {
        packet.checksum_now(context.ip().behind(tag), false)?;
    }
    if wishes.first & tx::TXSM != 0 {
        packet.checksum(context.transport().behind(tag), !context.is_tcp())?;
    }
    Ok(())
}

fn segmentation(packet: &mut Packet, context: Context, tag: u32) -> Result<(), DropReason> {
    let span = context.transport().behind(tag);
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
    packet.segmentation(facts)
}
