//! What the descriptors of a packet ask for: VLAN tag, checksums, segmentation. How it is done is every NIC's
//! (`device::packet`).
//!
//! This part finds its way through the headers itself: a driver says that it wants a checksum of TCP, and not
//! where. Whatever stands in the checksum fields is nothing to it.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use super::regs::desc::{IPCS, LGSEN, MSS, MSS_SHIFT, TAGC, TAG_SHIFT, TCPCS, UDPCS};
use crate::device::nic::{Made, Wishes};
use crate::device::packet::{Packet, Span};
use crate::mem::Arena;
use crate::packet::{Batch, Gso, Ip, Offload, Sum};
use crate::port::DropReason;
use crate::util::slice::{behind, put, upto};

/// EtherType of a tag (802.1Q §9.6).
const VLAN: u16 = 0x8100;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Where the checksum stands in the headers of IPv4, UDP and TCP.
const IP_CHECKSUM: usize = 10;
const UDP_CHECKSUM: usize = 6;
const TCP_CHECKSUM: usize = 16;

/// Whether `word`, the first of a packet's descriptors, may change a header behind the first 64 bytes.
pub(super) fn changes_header(word: u64) -> bool {
    word & (LGSEN | IPCS | UDPCS | TCPCS) != 0
}

/// Whether nothing is asked for but to be sent.
pub(super) fn is_plain(word: u64) -> bool {
    word & (LGSEN | IPCS | UDPCS | TCPCS | TAGC) == 0
}

/// As `TxCodec::make`.
#[inline]
pub(super) fn make(batch: &mut Batch, headers: &mut Arena, wishes: &Wishes) -> Made {
    let (mut packet, word) = (Packet::begin(batch, headers, wishes.start, wishes.len)?, wishes.first);
    if word & TAGC != 0 {
        #[expect(clippy::cast_possible_truncation, reason = "sixteen bits")]
        packet.read_tagged(VLAN, ((word >> TAG_SHIFT) as u16).swap_bytes());
    } else {
        packet.read_head();
    }
    if word & LGSEN != 0 {
        segmentation(&mut packet, word)?;
    } else if changes_header(word) {
        checksums(&mut packet, word)?;
    }
    packet.pad();
    packet.finish();
    batch.commit_odd();
    Ok(())
}

#[cold]
fn segmentation(packet: &mut Packet, word: u64) -> Result<(), DropReason> {
    let ip = Ip::parse(packet.head()).filter(|ip| !ip.v6).ok_or(DropReason::BadOffload)?;
    #[expect(clippy::cast_possible_truncation, reason = "eleven bits, and places in a header")]
    let facts = Offload {
        flags: Offload::NEEDS_CSUM,
        gso: Gso::Tcp4,
        ecn: false,
        hdr_len: 0,
        gso_size: (word >> MSS_SHIFT & MSS) as u16,
        csum_start: ip.end as u16,
        csum_offset: TCP_CHECKSUM as u16,
    };
    packet.segmentation(facts)
}

/// The part makes checksums of IPv4 alone, and leaves a packet that is none as it is.
#[cold]
fn checksums(packet: &mut Packet, word: u64) -> Result<(), DropReason> {
    let head = packet.head();
    let Some((ip, end)) = Ip::parse(head).filter(|ip| !ip.v6).and_then(|ip| Some((ip, ip.packet_end(head)?)))
    else {
        return Ok(());
    };
    if word & IPCS != 0 {
        ip_checksum(packet, &ip)?;
    }
    let offset = match ip.l4 {
        Some((TCP, _)) if word & TCPCS != 0 => TCP_CHECKSUM,
        Some((UDP, _)) if word & UDPCS != 0 => UDP_CHECKSUM,
        _ => return Ok(()),
    };
    let (start, end) = (ip.end, end.min(packet.len()));
    let Some(len) = end.checked_sub(start).filter(|len| *len >= offset + 2) else { return Ok(()) };
    let protocol = ip.l4.map_or(0, |(protocol, _)| protocol);
    packet.rewrite(start + offset + 2, |header| {
        let (src, dst) = (upto(behind(header, ip.src), 4), upto(behind(header, ip.dst), 4));
        let seed = Sum::pseudo(src, dst, protocol, len).value();
        put(header, start + offset, &seed.to_be_bytes());
        Ok(())
    })?;
    // The last byte; a packet that fills its frame ends with it.
    let end = if end == packet.len() { 0 } else { end - 1 };
    packet.checksum(Span { start, store: start + offset, end }, offset == UDP_CHECKSUM)
}

fn ip_checksum(packet: &mut Packet, ip: &Ip) -> Result<(), DropReason> {
    packet.rewrite(ip.end, |header| {
        put(header, ip.at + IP_CHECKSUM, &[0; 2]);
        let sum = Sum::of(behind(upto(header, ip.end), ip.at)).checksum();
        put(header, ip.at + IP_CHECKSUM, &sum.to_be_bytes());
        Ok(())
    })
}
