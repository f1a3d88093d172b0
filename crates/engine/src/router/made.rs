//! Frames that a router makes itself: errors, answers and requests. They are delivered when the batch that
//! gave rise to them has been.

use std::ops::Range;

use super::header::{ethertype, source4, source6, ARP, IPV4, IPV6, L3, V4_LEN, V6_LEN};
use super::limit::Now;
use super::net::is_group6;
use super::plan::Interface;
use crate::mem::{Arena, Pieces};
use crate::observe::account::DropReason;
use crate::packet::{stretch, sum, Batch, Fields, Frame, Gso, Offload, Plan, Sum, HEAD, L4, MAX_HEADER, TCP};
use crate::port::PortId;
use crate::util::slice::{behind, behind_mut, put, upto, upto_mut};

/// Frames that one batch may give rise to.
const SLOTS: usize = 64;
/// The longest: an ICMPv6 error in a frame (RFC 4443 §2.4 (c)).
const SLOT: usize = 14 + 1280;
/// What of a packet an error repeats: as much as fits into 576 bytes (RFC 1812 §4.3.2.3), or 1280.
const REPEATED4: usize = 576 - V4_LEN - 8;
const REPEATED6: usize = 1280 - V6_LEN - 8;
/// The hop limit of what it sends, and that of Neighbor Discovery.
const HOPS: u8 = 64;
pub(super) const ND_HOPS: u8 = 255;
/// Precedence of network control (RFC 1812 §4.3.2.5), and the bits of the packet's own type of service that
/// stay.
const CONTROL: u8 = 0xc0;
const SERVICE: u8 = 0x1e;

/// More fragments follow (RFC 791 §3.1).
const MORE: u16 = 0x2000;

/// Protocols.
pub(super) const ICMP: u8 = 1;
pub(super) const UDP: u8 = 17;
pub(super) const ICMP6: u8 = 58;

/// A frame that a router decides on: where it stands, by which interface it came, and when.
#[derive(Clone, Copy)]
pub(super) struct Arrival<'p> {
    pub batch: &'p Batch,
    /// Its place in the batch.
    pub index: usize,
    pub frame: &'p Frame,
    pub at: &'p Interface,
    pub now: &'p Now,
}

/// What a packet's sender is told: type and code of the message in either family, and the word behind its
/// checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IcmpError {
    NoRoute,
    HostUnreachable,
    Prohibited,
    PortUnreachable,
    /// RFC 4443 §3.1: beyond the scope of its source address.
    BeyondScope,
    TimeExceeded,
    TooBig(u32),
}

impl IcmpError {
    /// RFC 792, RFC 1191 §4, RFC 1812 §5.2.7.1.
    fn v4(self) -> (u8, u8, u32) {
        match self {
            IcmpError::NoRoute => (3, 0, 0),
            IcmpError::HostUnreachable => (3, 1, 0),
            IcmpError::PortUnreachable => (3, 3, 0),
            IcmpError::TooBig(mtu) => (3, 4, mtu & 0xffff),
            IcmpError::Prohibited | IcmpError::BeyondScope => (3, 13, 0),
            IcmpError::TimeExceeded => (11, 0, 0),
        }
    }

    /// RFC 4443 §3.
    fn v6(self) -> (u8, u8, u32) {
        match self {
            IcmpError::NoRoute => (1, 0, 0),
            IcmpError::Prohibited => (1, 1, 0),
            IcmpError::BeyondScope => (1, 2, 0),
            IcmpError::HostUnreachable => (1, 3, 0),
            IcmpError::PortUnreachable => (1, 4, 0),
            IcmpError::TooBig(mtu) => (2, 0, mtu.max(1280)),
            IcmpError::TimeExceeded => (3, 0, 0),
        }
    }
}

/// Frames of one batch's making, with the ports that they are for.
pub(super) struct Made {
    pub batch: Batch,
    pub to: Vec<PortId>,
    arena: Arena,
    /// Slots of it that are in use.
    used: usize,
    bytes: Vec<u8>,
    ident: u16,
}

impl Made {
    pub fn new() -> Made {
        Made {
            batch: Batch::new(),
            to: Vec::with_capacity(SLOTS),
            arena: Arena::new(SLOTS, SLOT),
            used: 0,
            bytes: Vec::with_capacity(SLOT),
            ident: 0,
        }
    }

    pub fn clear(&mut self) {
        self.next();
        self.used = 0;
    }

    /// The frames so far are on their way, and their bytes stay.
    pub fn next(&mut self) {
        self.batch.clear();
        self.to.clear();
    }

    /// Whether another frame can be made.
    fn has_room(&self) -> bool {
        self.batch.len() < SLOTS && self.used < self.arena.slots()
    }

    /// Begins a frame from `interface` to the station `dst`.
    fn begin(&mut self, dst: [u8; 6], interface: &Interface, ethertype: u16) {
        self.bytes.clear();
        self.bytes.extend(dst);
        self.bytes.extend(interface.mac);
        self.bytes.extend(ethertype.to_be_bytes());
    }

    /// Takes what was written into the batch.
    fn end(&mut self, to: PortId) {
        let slot = self.used;
        if slot >= self.arena.slots() || self.bytes.len() > SLOT {
            return;
        }
        let far = (self.bytes.len() > HEAD).then(|| self.arena.put(slot, &self.bytes, HEAD));
        self.used += usize::from(far.is_some());
        self.end_with(to, self.bytes.len(), |pieces| far.is_none_or(|far| pieces.push(far)));
    }

    /// Cuts the IPv4 packet of `frame` into fragments that fit through `mtu`, for station `mac` behind `to`
    /// (RFC 791 §3.2). What its sender left to others is done first: its checksum, and its segments. Its
    /// bytes stay where they are. What became of it.
    #[cold]
    pub fn fragments(
        &mut self,
        batch: &Batch,
        frame: &Frame,
        onward: (&Interface, u64),
        mtu: u32,
    ) -> DropReason {
        let before = (self.batch.len(), self.to.len());
        let why = self.parts(batch, frame, |made, header, payload| {
            made.cut(batch, frame, (header, payload), onward, mtu as usize)
        });
        if why != DropReason::Fragmented {
            // All or none of them.
            self.batch.truncate(before.0);
            self.to.truncate(before.1);
        }
        why
    }

    /// Calls `cut` with each packet that `frame` is to be, one after the other: its first bytes, and which of
    /// the frame's follow.
    fn parts(
        &mut self,
        batch: &Batch,
        frame: &Frame,
        mut cut: impl FnMut(&mut Made, &[u8], Range<usize>) -> DropReason,
    ) -> DropReason {
        let (offload, len) = (frame.offload, frame.len as usize);
        let sum = |bytes: Range<usize>| sum(frame.head(), batch.body(frame), bytes.start, bytes.end);
        let mut header = [0; MAX_HEADER];
        if matches!(offload.gso, Gso::None | Gso::Ufo) {
            let end = L3 + usize::from(u16::from_be_bytes([frame.head[16], frame.head[17]]));
            let mut near = HEAD.min(end);
            if offload.needs_csum() {
                let (at, checksum) = offload.checksum(sum(offload.csum_start.into()..len));
                near = near.max(at + 2);
                if near > end.min(MAX_HEADER) {
                    return DropReason::BadOffload;
                }
                batch.read(frame, 0, upto_mut(&mut header, near));
                put(&mut header, at, &checksum);
            } else {
                put(&mut header, 0, upto(&frame.head, near));
            }
            return cut(self, upto(&header, near), near..end);
        }
        let bound = offload.header_bound(len);
        batch.read(frame, 0, upto_mut(&mut header, bound));
        let Ok(plan) = Plan::new(upto(&header, bound), len, offload, 0) else {
            return DropReason::BadOffload;
        };
        for index in 0..plan.count {
            let mut header = [0; MAX_HEADER];
            let Some(segment) = plan.segment(index, &mut header) else { break };
            segment.seal(&mut header, sum(segment.summed.clone()));
            match cut(self, upto(&header, segment.header_len), segment.payload) {
                DropReason::Fragmented => {}
                why => return why,
            }
        }
        DropReason::Fragmented
    }

    /// Cuts the IPv4 packet that begins with `header`, behind which the bytes `rest` of `frame` follow.
    fn cut(
        &mut self,
        batch: &Batch,
        frame: &Frame,
        (header, rest): (&[u8], Range<usize>),
        (to, mac): (&Interface, u64),
        mtu: usize,
    ) -> DropReason {
        let word = |at: usize| behind(header, at).first_chunk().map_or(0, |bytes| u16::from_be_bytes(*bytes));
        let own = behind(header, L3 + V4_LEN);
        let payload = own.len() + rest.len();
        // All but the last have a multiple of eight bytes.
        let room = mtu.saturating_sub(V4_LEN);
        let unit = room / 8 * 8;
        if unit == 0 || payload.div_ceil(unit).max(1) > SLOTS - self.batch.len() {
            return DropReason::TooBig;
        }
        let (more, place) = (word(20) & MORE, word(20) & !(MORE | 0xc000));
        let [a, b, c, d, e, f, ..] = mac.to_le_bytes();
        let mut from = 0;
        // One at least: what is too long for the link may be padding.
        loop {
            let left = payload - from;
            let len = if left <= room { left } else { unit };
            let more = if from + len < payload { MORE } else { more };
            self.begin([a, b, c, d, e, f], to, IPV4);
            self.bytes.extend(upto(behind(header, L3), V4_LEN));
            let field = |value: usize| u16::try_from(value).unwrap_or(0).to_be_bytes();
            let place = more | place.wrapping_add(u16::try_from(from / 8).unwrap_or(0)) & 0x1fff;
            put(&mut self.bytes, 16, &field(V4_LEN + len));
            put(&mut self.bytes, 20, &place.to_be_bytes());
            let [hops, protocol] = word(22).to_be_bytes();
            put(&mut self.bytes, 22, &[hops.saturating_sub(1), protocol, 0, 0]);
            let sum = Sum::of(behind(&self.bytes, L3));
            self.seal(24, sum);
            let near = upto(behind(own, from), len);
            self.bytes.extend(near);
            // As many of the frame's own bytes as a head has room for; the others stay where they are.
            let mut first = rest.start + (from + near.len()).saturating_sub(own.len());
            let last = first + len - near.len();
            let (begun, fits) = (self.bytes.len(), HEAD.saturating_sub(self.bytes.len()).min(last - first));
            self.bytes.resize(begun + fits, 0);
            batch.read(frame, first, behind_mut(&mut self.bytes, begun));
            first += fits;
            let whole = self.bytes.len() + last - first;
            let far = (self.bytes.len() > HEAD && self.used < self.arena.slots())
                .then(|| self.arena.put(self.used, &self.bytes, HEAD));
            if self.bytes.len() > HEAD && far.is_none() {
                return DropReason::TooManyPieces;
            }
            self.used += usize::from(far.is_some());
            let mut pieces = far.into_iter().chain(stretch(batch.body(frame), first, last));
            if !self.end_with(to.id, whole, |all| pieces.all(|piece| all.push(piece))) {
                return DropReason::TooManyPieces;
            }
            from += len;
            if from >= payload {
                return DropReason::Fragmented;
            }
        }
    }

    /// Takes what was written, and pieces of another frame behind it, into the batch: `len` bytes in all.
    fn end_with(&mut self, to: PortId, len: usize, add: impl FnOnce(&mut Pieces) -> bool) -> bool {
        let added = self.batch.push_with(&self.bytes, len, Offload::NONE, add);
        if added {
            self.to.push(to);
        }
        added
    }

    /// Tells the sender of `frame` of an error, by the way that it came. Not of everything: RFC 1122 §3.2.2,
    /// RFC 4443 §2.4 (e); nor more often than the interface may.
    pub fn error(&mut self, arrival: Arrival, error: IcmpError) {
        let Arrival { batch, frame, at: from, now, .. } = arrival;
        let v6 = ethertype(frame) == IPV6;
        // A group cannot be told, and has sent nothing.
        let allowed = self.has_room() && frame.head[6] & 1 == 0;
        if !allowed || !may_tell(batch, frame) {
            return;
        }
        if !from.limits.errors.take(now.sender, now.micros()) {
            return;
        }
        match v6 {
            false => self.error4(batch, frame, from, error),
            true => self.error6(batch, frame, from, error),
        }
    }

    fn error4(&mut self, batch: &Batch, frame: &Frame, from: &Interface, error: IcmpError) {
        let Some(own) = from.v4 else { return };
        let (kind, code, word) = error.v4();
        let total = usize::from(u16::from_be_bytes([frame.head[16], frame.head[17]]));
        let repeated = total.min(REPEATED4).min((frame.len as usize).saturating_sub(L3));
        self.begin(station(frame), from, IPV4);
        let service = frame.head[15] & SERVICE | CONTROL;
        self.ident = self.ident.wrapping_add(1);
        let len = u16::try_from(V4_LEN + 8 + repeated).unwrap_or(0);
        self.header4(service, len, own, source4(frame));
        self.message(batch, frame, (kind, code, word), repeated);
        let at = L3 + V4_LEN;
        let sum = Sum::of(behind(&self.bytes, at));
        self.seal(at + 2, sum);
        self.end(from.id);
    }

    fn error6(&mut self, batch: &Batch, frame: &Frame, from: &Interface, error: IcmpError) {
        // What comes from a link-local address may be answered by one only.
        let far = !super::net::is_link_local6(source6(frame));
        let own = from.v6.filter(|_| far).unwrap_or(from.link_local);
        let payload = usize::from(u16::from_be_bytes([frame.head[18], frame.head[19]]));
        let repeated = (payload + V6_LEN).min(REPEATED6).min((frame.len as usize).saturating_sub(L3));
        self.begin(station(frame), from, IPV6);
        let len = 8 + repeated;
        self.header6(len, HOPS, own, source6(frame));
        self.message(batch, frame, error.v6(), repeated);
        self.seal6(own, source6(frame));
        self.end(from.id);
    }

    fn header4(&mut self, service: u8, len: u16, src: u32, dst: u32) {
        let at = self.bytes.len();
        self.bytes.extend([0x45, service]);
        self.bytes.extend(len.to_be_bytes());
        self.bytes.extend(self.ident.to_be_bytes());
        self.bytes.extend([0, 0, HOPS, ICMP, 0, 0]);
        self.bytes.extend(src.to_be_bytes());
        self.bytes.extend(dst.to_be_bytes());
        let sum = Sum::of(behind(&self.bytes, at));
        self.seal(at + 10, sum);
    }

    fn header6(&mut self, len: usize, hops: u8, src: u128, dst: u128) {
        self.bytes.extend([0x60, 0, 0, 0]);
        self.bytes.extend(u16::try_from(len).unwrap_or(0).to_be_bytes());
        self.bytes.extend([ICMP6, hops]);
        self.bytes.extend(src.to_be_bytes());
        self.bytes.extend(dst.to_be_bytes());
    }

    /// An ICMP message that repeats the beginning of the packet in `frame`.
    fn message(&mut self, batch: &Batch, frame: &Frame, (kind, code, word): (u8, u8, u32), repeated: usize) {
        self.bytes.extend([kind, code, 0, 0]);
        self.bytes.extend(word.to_be_bytes());
        let at = self.bytes.len();
        self.bytes.resize(at + repeated, 0);
        batch.read(frame, L3, behind_mut(&mut self.bytes, at));
    }

    fn seal(&mut self, at: usize, sum: Sum) {
        put(&mut self.bytes, at, &sum.checksum().to_be_bytes());
    }

    /// The checksum of an ICMPv6 message, with its pseudo header.
    fn seal6(&mut self, src: u128, dst: u128) {
        let at = L3 + V6_LEN;
        let message = behind(&self.bytes, at);
        let mut sum = Sum::pseudo(&src.to_be_bytes(), &dst.to_be_bytes(), ICMP6, message.len());
        sum.add(message);
        self.seal(at + 2, sum);
    }

    /// Says to `dst`, or asks everybody: an ARP packet with `operation` (RFC 826), from `own`, about `whom`.
    pub fn arp(&mut self, from: &Interface, operation: u16, dst: Option<[u8; 6]>, own: u32, whom: u32) {
        if !self.has_room() {
            return;
        }
        self.begin(dst.unwrap_or([0xff; 6]), from, ARP);
        self.bytes.extend([0, 1, 8, 0, 6, 4]);
        self.bytes.extend(operation.to_be_bytes());
        self.bytes.extend(from.mac);
        self.bytes.extend(own.to_be_bytes());
        self.bytes.extend(dst.unwrap_or_default());
        self.bytes.extend(whom.to_be_bytes());
        self.end(from.id);
    }

    /// Asks for the station of `target`: a Neighbor Solicitation (RFC 4861 §4.3) to its solicited-node
    /// address.
    pub fn solicit(&mut self, from: &Interface, target: u128) {
        if !self.has_room() {
            return;
        }
        let group = 0xff02 << 112 | 1 << 32 | 0xff00_0000 | target & 0xff_ffff;
        self.begin(station_of_group(group), from, IPV6);
        self.header6(32, ND_HOPS, from.link_local, group);
        self.bytes.extend([135, 0, 0, 0, 0, 0, 0, 0]);
        self.bytes.extend(target.to_be_bytes());
        self.bytes.extend([1, 1]);
        self.bytes.extend(from.mac);
        self.seal6(from.link_local, group);
        self.end(from.id);
    }

    /// Says that `target` is this router's (RFC 4861 §4.4), to whoever asked from `dst`, or to all if that
    /// has no address yet.
    pub fn advertise(&mut self, from: &Interface, station: [u8; 6], dst: u128, target: u128) {
        if !self.has_room() {
            return;
        }
        let all = 0xff02 << 112 | 1;
        let (station, dst, solicited) = match dst {
            0 => (station_of_group(all), all, 0),
            dst => (station, dst, 0x40),
        };
        self.begin(station, from, IPV6);
        self.header6(32, ND_HOPS, target, dst);
        // It is a router, and its word replaces what was known.
        self.bytes.extend([136, 0, 0, 0, 0x80 | solicited | 0x20, 0, 0, 0]);
        self.bytes.extend(target.to_be_bytes());
        self.bytes.extend([2, 1]);
        self.bytes.extend(from.mac);
        self.seal6(target, dst);
        self.end(from.id);
    }
}

/// The station that sent `frame`.
pub(super) fn station(frame: &Frame) -> [u8; 6] {
    let [_, _, _, _, _, _, mac @ .., _, _] = frame.head.first_chunk::<14>().copied().unwrap_or_default();
    mac
}

/// The station address of an IPv6 group: RFC 2464 §7.
fn station_of_group(group: u128) -> [u8; 6] {
    let [.., a, b, c, d] = group.to_be_bytes();
    [0x33, 0x33, a, b, c, d]
}

/// Whether the sender of this packet may be told of an error: it is no error itself, nor a later fragment,
/// nor can it be an error behind headers that lead too far; and it comes from one station (RFC 4443 §2.4
/// (e)).
fn may_tell(batch: &Batch, frame: &Frame) -> bool {
    let Some(fields) = Fields::of(batch, frame) else { return false };
    let [src, dst] = [fields.src, fields.dst];
    match (fields.ethertype, fields.protocol, fields.l4) {
        (_, _, L4::Later | L4::Unknown) | (IPV4, ICMP, L4::Hidden) | (IPV6, ICMP6, L4::Hidden) => false,
        (IPV4, TCP, L4::Hidden) if frame.head[21] == 1 => false,
        (IPV6, ..) if is_group6(src) || src == 0 || is_group6(dst) => false,
        // Echo, its reply, timestamps, information and address masks are questions and answers; all else may
        // be an error.
        (IPV4, ICMP, L4::Ports(kind, ..)) => matches!(kind, 0 | 8 | 13..=18),
        // RFC 4443 §2.1: errors are those below 128; RFC 4443 §2.4 (e.2): no redirect.
        (IPV6, ICMP6, L4::Ports(kind, ..)) => kind >= 128 && kind != 137,
        _ => true,
    }
}
