//! Frames for the router itself: ARP, Neighbor Discovery, echo requests. What else is for it is its control
//! plane's business.
//!
//! What a neighbour says of itself is believed where it makes sense (RFC 826, RFC 4861 §7): its station
//! address is that by which it sent, its IP address is on the port's network, and is not ours. A control
//! plane's kernel hears the same and would believe more. So it hears only what was judged here, as it was
//! judged: messages that are too long for that are dropped, and of the others it gets the bytes that were
//! read.

use super::class::{is_for_link_group, TCP, TOO_BIG6};
use super::header::{destination6, ethertype, source6, ARP, IPV4, IPV6, L3, ND_LONGEST, V4_LEN, V6_LEN};
use super::made::{station, Arrival, IcmpError, ICMP, ICMP6, ND_HOPS, UDP};
use super::net::{address, is_group6, mapped};
use super::rewrite::Rewrite;
use super::{Refused, RewriteBuffer, Router};
use crate::observe::account::DropReason;
use crate::packet::{is_group, Sum, HEAD};

/// Messages of Neighbor Discovery, and the options that name a station (RFC 4861 §4).
const ROUTER_SOLICITATION: u8 = 133;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const SOURCE_STATION: u8 = 1;
const TARGET_STATION: u8 = 2;
const REQUEST: u16 = 1;
const REPLY: u16 = 2;

/// The head of an ARP packet: Ethernet and IPv4.
const ARP_HEAD: [u8; 6] = [0, 1, 8, 0, 6, 4];

impl Router {
    /// A frame to a group, or of no IP: ARP and Neighbor Discovery are for everybody on a network.
    pub(super) fn hear(&self, out: &mut RewriteBuffer, arrival: Arrival) -> Result<(), Refused> {
        let Arrival { frame, at, .. } = arrival;
        match ethertype(frame) {
            ARP => self.hear_arp(out, arrival),
            IPV6 if frame.len as usize >= L3 + V6_LEN + 8 && frame.head[20] == ICMP6 => {
                self.hear_nd(out, arrival)
            }
            IPV6 | IPV4 if at.control.is_some() && is_for_link_group(frame) => Err(Refused::Own),
            IPV6 | IPV4 => Err(DropReason::GroupAddress.into()),
            _ => Err(DropReason::NotRouted.into()),
        }
    }

    fn hear_arp(&self, out: &mut RewriteBuffer, arrival: Arrival) -> Result<(), Refused> {
        let Arrival { frame, at, now, .. } = arrival;
        let head = &frame.head;
        if frame.len < 42 || head[14..20] != ARP_HEAD {
            return Err(DropReason::BadHeader.into());
        }
        let four = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
        let (sender, target) = (four(&head[28..32]), four(&head[38..42]));
        let mac = station(frame);
        let operation = u16::from_be_bytes([head[20], head[21]]);
        if head[22..28] != mac || mac[0] & 1 == 1 {
            return Err(DropReason::Spoofed.into());
        }
        let for_us = at.addresses.iter().any(|net| net.address == address(mapped(target)));
        // Who asks whether an address is in use has none yet (RFC 5227 §2.1.1).
        if sender != 0 {
            if at.has(mapped(sender)) || !at.reaches(address(mapped(sender))) {
                return Err(DropReason::Spoofed.into());
            }
            self.neighbours.heard((at.id, now.sender), mapped(sender), frame.src(), for_us, now.seconds);
        }
        if operation == REQUEST && for_us {
            out.made.arp(at, REPLY, Some(mac), target, sender);
            return Err(DropReason::ToRouter.into());
        }
        Err(Refused::Own)
    }

    fn hear_nd(&self, out: &mut RewriteBuffer, arrival: Arrival) -> Result<(), Refused> {
        let Arrival { batch, frame, at, now, .. } = arrival;
        let [kind, code] = [frame.head[54], frame.head[55]];
        if kind == TOO_BIG6 {
            return hear_mtu(out, arrival);
        }
        // Bytes in front of the options, and the option that names its sender's station.
        let (fixed, named) = match kind {
            ROUTER_SOLICITATION => (8, SOURCE_STATION),
            SOLICITATION => (24, SOURCE_STATION),
            ADVERTISEMENT => (24, TARGET_STATION),
            // Reports of groups, router advertisements.
            _ => return Err(Refused::Own),
        };
        let mut bytes = [0; ND_LONGEST];
        let len = usize::from(u16::from_be_bytes([frame.head[18], frame.head[19]]));
        let message = bytes.get_mut(..len).filter(|_| len >= fixed).ok_or(DropReason::BadHeader)?;
        if batch.read(frame, L3 + V6_LEN, message) < len {
            return Err(DropReason::BadHeader.into());
        }
        let (src, dst) = (source6(frame), destination6(frame));
        let mut sum = Sum::pseudo(&src.to_be_bytes(), &dst.to_be_bytes(), ICMP6, len);
        sum.add(message);
        // RFC 4861 §6.1.1, §7.1: what was forwarded is none. A checksum that is still to be made would change
        // what was judged.
        let sound = frame.head[21] == ND_HOPS && sum.value() == 0xffff && !frame.offload.needs_csum();
        let (target, options) = match message.split_at_checked(fixed) {
            Some((fixed, options)) => (fixed.get(8..24).and_then(|it| it.first_chunk()), options),
            None => return Err(DropReason::BadHeader.into()),
        };
        let target = target.map_or(0, |bytes| u128::from_be_bytes(*bytes));
        if !sound || code != 0 || is_group6(target) {
            return Err(DropReason::BadHeader.into());
        }
        let Ok(said) = link_address(options, named) else {
            return Err(DropReason::BadHeader.into());
        };
        let near = |it: u128| at.reaches(address(it)) && !at.has(it) && !is_group6(it);
        let mac = station(frame);
        if said.is_some_and(|said| said != mac) || mac[0] & 1 == 1 {
            return Err(DropReason::Spoofed.into());
        }
        // Whoever asks whether an address is in use has none yet (RFC 4862 §5.4.2).
        let speaks_for = if kind == ADVERTISEMENT { Some(target) } else { Some(src).filter(|src| *src != 0) };
        if speaks_for.is_some_and(|it| !near(it)) {
            return Err(DropReason::Spoofed.into());
        }
        match kind {
            SOLICITATION if at.has(target) => {
                if src != 0 && said.is_some() {
                    self.neighbours.heard((at.id, now.sender), src, frame.src(), true, now.seconds);
                }
                out.made.advertise(at, mac, src, target);
                return Err(DropReason::ToRouter.into());
            }
            ADVERTISEMENT => {
                self.neighbours.heard((at.id, now.sender), target, frame.src(), false, now.seconds);
            }
            _ => {}
        }
        let behind = message.get(HEAD - L3 - V6_LEN..).unwrap_or_default();
        if at.control.is_some() && !behind.is_empty() && !out.keep(arrival, behind) {
            return Err(DropReason::TooManyPieces.into());
        }
        Err(Refused::Own)
    }

    /// An IP packet to one of the router's addresses. Echo requests become replies in place, by the way that
    /// they came.
    pub(super) fn take(&self, out: &mut RewriteBuffer, arrival: Arrival) -> Result<(), Refused> {
        let Arrival { index, frame, at, .. } = arrival;
        let v6 = ethertype(frame) == IPV6;
        if is_group(frame.src()) {
            return Err(DropReason::Spoofed.into());
        }
        let kind = if v6 { frame.head[54] } else { frame.head[34] };
        let whole = v6 || u16::from_be_bytes([frame.head[20], frame.head[21]]) & 0x3fff == 0;
        let plain = v6 || frame.head[14] == 0x45;
        let long = frame.len as usize >= L3 + 8 + if v6 { V6_LEN } else { V4_LEN };
        let protocol = if v6 { frame.head[20] } else { frame.head[23] };
        match (protocol, kind) {
            (ICMP, 8) if !v6 && whole && plain && long => {
                out.put(index, Rewrite::echo(frame, at, v6));
                Ok(())
            }
            (ICMP6, 128) if v6 && long => {
                out.put(index, Rewrite::echo(frame, at, v6));
                Ok(())
            }
            (ICMP6, TOO_BIG6 | ROUTER_SOLICITATION | SOLICITATION | ADVERTISEMENT) if v6 => {
                self.hear_nd(out, arrival)
            }
            (UDP, _) if at.control.is_none() => {
                out.made.error(arrival, IcmpError::PortUnreachable);
                Err(DropReason::ToRouter.into())
            }
            _ => Err(Refused::Own),
        }
    }
}

/// What tells of a path's MTU passes if the packet that it is about carried TCP: see `class::is_obeyed`. That
/// stands behind the head.
fn hear_mtu(out: &mut RewriteBuffer, arrival: Arrival) -> Result<(), Refused> {
    /// The last byte is the one that names it.
    const ABOUT: usize = L3 + V6_LEN + 8 + 6 - HEAD;
    let mut behind = [0; ABOUT + 1];
    let Arrival { batch, frame, at, .. } = arrival;
    let whole = batch.read(frame, HEAD, &mut behind) == behind.len() && !frame.offload.needs_csum();
    if at.control.is_none() || !whole || behind.last() != Some(&TCP) {
        return Err(DropReason::ToRouter.into());
    }
    match out.keep(arrival, &behind) {
        true => Err(Refused::Own),
        false => Err(DropReason::TooManyPieces.into()),
    }
}

/// The station address that option `wanted` of a Neighbor Discovery message gives, if it is there.
fn link_address(mut options: &[u8], wanted: u8) -> Result<Option<[u8; 6]>, ()> {
    let mut found = None;
    while let [kind, words, ..] = *options {
        // RFC 4861 §4.6: an option without a length makes the message invalid.
        let len = usize::from(words) * 8;
        let (option, rest) = options.split_at_checked(len).filter(|_| len > 0).ok_or(())?;
        if kind == wanted && words == 1 {
            found = option.get(2..).and_then(|mac| mac.first_chunk()).copied();
        }
        options = rest;
    }
    Ok(found)
}
