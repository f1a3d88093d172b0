//! What a driver leaves to its card, and what the card makes of it: checksums, to Intel's by a legacy
//! descriptor or by a context (8254x SDM §3.3.3, §3.3.6, §3.5), and segments (§3.5.2).

use super::asked::{network_of, transport_of, HEAD};
use super::doubt::Doubts;
use super::frames::Sent;
use super::headers::{tags, NEAR};
use super::plain::{sum, Asked};
use super::random::Random;

/// Where a checksum begins, where it is stored, and its last byte; zero means the packet's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    pub start: u8,
    pub store: u8,
    pub end: u16,
}

/// What is left to a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// One checksum, by a legacy descriptor.
    Legacy(Span),
    /// The IP header's checksum, and the transport's.
    Sums { ip: Option<Span>, transport: Option<Span>, tcp: bool },
    /// The checksums of IPv4, of TCP, and of UDP over it, which an RTL8169 finds by itself (docs/rtl8169.md).
    Found { ip: bool, tcp: bool, udp: bool },
    /// Segments, as `Sent::asked` says, of a packet whose lengths are not there yet. How long the headers
    /// are, and how much there is behind them, the packet itself tells: what the context says may lie.
    Segments { transport: Span, udp: bool, header: u8, payload: u32 },
}

impl Span {
    /// Has the checksum be in `bytes`. One that begins or is stored behind the packet's end is not made.
    fn fill(self, bytes: &mut [u8], udp: bool) {
        let (start, store, last) = (self.start.into(), usize::from(self.store), usize::from(self.end));
        let end = if last == 0 { bytes.len() } else { bytes.len().min(last + 1) };
        if start < end && store + 2 <= bytes.len() {
            let value = match !sum(&[&bytes[start..end]]) {
                // RFC 768: zero would mean that there is none.
                0 if udp => 0xffff,
                value => value,
            };
            bytes[store..store + 2].copy_from_slice(&value.to_be_bytes());
        }
    }

    /// Whether it covers the packet from `at` to its end, and is stored at `store`.
    fn is(self, at: usize, store: usize, len: usize) -> bool {
        let whole = self.end == 0 || usize::from(self.end) + 1 >= len;
        (usize::from(self.start), usize::from(self.store)) == (at, store) && whole
    }
}

impl Work {
    /// Draws work, mostly an honest driver's, for a frame that may ask for something in virtio-net's words.
    /// Whether there are descriptors for it.
    pub fn draw(random: &mut Random, sent: &mut Sent) -> bool {
        let Asked { flags, gso, start, offset, .. } = sent.asked;
        let of = |start: usize, store: usize| {
            Some(Span { start: start.try_into().ok()?, store: store.try_into().ok()?, end: 0 })
        };
        let asked = (flags & 1 != 0).then(|| of(start.into(), usize::from(start) + usize::from(offset)));
        if gso != 0 {
            let header = sent.asked.header as u8;
            let header = if random.chance(10) { random.byte() } else { header };
            let payload = (sent.bytes.len() - usize::from(header).min(sent.bytes.len())) as u32;
            let payload = if random.chance(10) { random.below(1 << 20) as u32 } else { payload };
            // The card is not told of CWR, but sees it.
            sent.asked.gso &= 0x7f;
            let Some(transport) = asked.flatten().filter(|_| matches!(sent.asked.gso, 1 | 4 | 5)) else {
                return false;
            };
            let udp = sent.asked.gso == 5;
            // Drivers leave that to the card.
            finish(&mut sent.bytes, transport, udp, false);
            sent.work = Some(Work::Segments { transport, udp, header, payload });
            return true;
        }
        let own = transport_of(&sent.bytes, &Doubts::new(&[]));
        let transport = match (asked, own) {
            (Some(span), _) => span,
            (None, Some((_, at, Some(its)))) => of(at, at + usize::from(its)),
            (None, _) => of(random.below(80), random.below(80)),
        };
        sent.asked = Asked::default();
        let Some(mut transport) = transport else { return false };
        match random.below(12) {
            0 => transport.store = random.byte(),
            1 => transport.start = random.byte(),
            // Ports and types are near the beginning.
            2 | 3 => transport.store = transport.start.wrapping_add(random.byte() % 16),
            4 | 5 => transport.end = (sent.bytes.len() - random.below(20)) as u16,
            6 => transport.end = u16::from(transport.start) + random.below(60) as u16,
            _ => {}
        }
        if random.chance(25) {
            sent.work = Some(Work::Legacy(Span { end: 0, ..transport }));
            return true;
        }
        let net = tags(&sent.bytes).1 + 2;
        let ip = Span { start: net as u8, store: net as u8 + 10, end: net as u16 + 19 };
        let ip = match random.below(8) {
            0 => Span { store: random.byte() % 100, ..ip },
            1 => Span { start: random.byte() % 100, end: random.below(120) as u16, ..ip },
            _ => ip,
        };
        let ip = random.chance(50).then_some(ip);
        let transport = (ip.is_none() || random.chance(70)).then_some(transport);
        let tcp = matches!(own, Some((6, ..))) != random.chance(10);
        sent.work = Some(Work::Sums { ip, transport, tcp });
        true
    }

    /// Draws work of an RTL8169's driver in the same way (docs/rtl8169.md): segments of TCP over IPv4 alone.
    pub fn draw_found(random: &mut Random, sent: &mut Sent) -> bool {
        let doubts = Doubts::new(&[]);
        if sent.asked.cuts() {
            sent.asked.gso &= 0x7f;
            let Asked { flags, gso, start, offset, .. } = sent.asked;
            let is = transport_of(&sent.bytes, &doubts) == Some((6, start.into(), Some(offset)));
            let Ok(store) = u8::try_from(start + offset) else { return false };
            let transport = Span { start: start as u8, store, end: 0 };
            let fits = is && (flags & 1, gso, offset) == (1, 1, 16);
            if fits {
                finish(&mut sent.bytes, transport, false, false);
            }
            sent.work = Some(Work::Segments { transport, udp: false, header: 0, payload: 0 });
            return fits;
        }
        if let Some((0x0800, net)) = network_of(&sent.bytes, &doubts) {
            // What stands there is nothing to the card.
            let noise = [random.byte(), random.byte()];
            sent.bytes.get_mut(net + 10..net + 12).iter_mut().for_each(|field| field.copy_from_slice(&noise));
        }
        sent.asked = Asked::default();
        let mut on = || random.chance(60);
        sent.work = Some(Work::Found { ip: on(), tcp: on(), udp: on() });
        true
    }

    /// All checksums of it, in their order, and whether each is UDP's.
    fn sums(self) -> Vec<(Span, bool)> {
        match self {
            Work::Legacy(span) => vec![(span, true)],
            Work::Sums { ip, transport, tcp } => {
                ip.map(|span| (span, false)).into_iter().chain(transport.map(|span| (span, !tcp))).collect()
            }
            Work::Segments { .. } | Work::Found { .. } => Vec::new(),
        }
    }

    /// The frame with its checksums, as the card sends it.
    pub fn made(self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        self.sums().into_iter().for_each(|(span, udp)| span.fill(&mut bytes, udp));
        self.finished(&bytes)
    }

    /// The frame with the lengths that a driver has left to the card.
    pub fn finished(self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        if let Work::Segments { transport, udp, .. } = self {
            finish(&mut bytes, transport, udp, true);
        }
        bytes
    }

    /// It in a frame without the tag that the card puts in; none where something lies before the tag.
    pub fn without_tag(self) -> Option<Work> {
        let moved = |span: Span| {
            let end = if span.end == 0 { 0 } else { span.end.checked_sub(4).filter(|end| *end > 0)? };
            Some(Span { start: span.start.checked_sub(4)?, store: span.store.checked_sub(4)?, end })
        };
        let either = |span: Option<Span>| span.map_or(Some(None), |span| moved(span).map(Some));
        Some(match self {
            Work::Legacy(span) => Work::Legacy(moved(span)?),
            Work::Sums { ip, transport, tcp } => {
                Work::Sums { ip: either(ip)?, transport: either(transport)?, tcp }
            }
            Work::Found { .. } => self,
            Work::Segments { transport, udp, header, payload } => Work::Segments {
                transport: moved(transport)?,
                udp,
                header: header.saturating_sub(4),
                payload,
            },
        })
    }

    /// The first byte that is to be summed by whoever cannot leave that to others, if it is to be.
    pub fn transport_at(self) -> Option<usize> {
        match self {
            Work::Legacy(span) | Work::Sums { transport: Some(span), .. } => Some(span.start.into()),
            _ => None,
        }
    }

    /// What ports see of a frame: its checksums are there before any rule looks. One that stands far behind
    /// may be too much; one behind the bytes that are looked at in any case is dropped, or left to the
    /// receiver, if it is not the transport's.
    pub fn judged(self, bytes: &[u8], doubts: &Doubts) -> Result<(Vec<u8>, Asked, bool), &'static str> {
        if let Work::Found { ip, tcp, udp } = self {
            return found(bytes, ip, |protocol| protocol == 6 && tcp || protocol == 17 && udp, doubts);
        }
        let sums = self.sums();
        let far = |(span, _): &&(Span, bool)| usize::from(span.store) + 2 > HEAD;
        let store = sums.iter().map(|(span, _)| usize::from(span.store) + 2).max().unwrap_or(0);
        let far_behind = store > NEAR && doubts.either("a card's checksum far behind", 0);
        // A second place behind the first bytes is more than a card has to keep.
        let two = sums.iter().filter(far).count() > 1 && doubts.either("two of a card's checksums behind", 0);
        if far_behind || two {
            return Err("bad_offload");
        }
        let Some(((last, udp), first)) = sums.split_last() else { return Err("bad_offload") };
        let mut bytes = bytes.to_vec();
        first.iter().for_each(|(span, udp)| span.fill(&mut bytes, *udp));
        let mut unseen = false;
        if usize::from(last.start) >= HEAD {
            let its =
                transport_of(&bytes, doubts).and_then(|(_, at, its)| Some((at, at + usize::from(its?))));
            let own = its.is_some_and(|(at, store)| last.is(at, store, bytes.len()));
            if !own && doubts.either("a card's checksum behind the first bytes", 0) {
                if doubts.either("it is dropped", 0) {
                    return Err("bad_offload");
                }
                unseen = true;
            }
        }
        last.fill(&mut bytes, *udp);
        Ok((bytes, Asked::default(), unseen))
    }
}

/// Writes the lengths of a packet that is to be cut into the header of IP, and into the sum of the pseudo
/// header that stands for the checksum: those of the `whole` packet, or none.
fn finish(bytes: &mut [u8], transport: Span, udp: bool, whole: bool) {
    let (net, start, store) = (tags(bytes).1 + 2, usize::from(transport.start), usize::from(transport.store));
    if bytes.len() < start.max(net + 40).max(store + 2) {
        return;
    }
    let of = |len: usize| if whole { len as u16 } else { 0 };
    let v6 = bytes[net] >> 4 == 6;
    if v6 {
        let all = of(bytes.len() - net - 40).to_be_bytes();
        bytes[net + 4..net + 6].copy_from_slice(&all);
    } else {
        let all = of(bytes.len() - net).to_be_bytes();
        bytes[net + 2..net + 4].copy_from_slice(&all);
        bytes[net + 10..net + 12].fill(0);
        let own = if whole { !sum(&[&bytes[net..net + 20]]) } else { 0 };
        bytes[net + 10..net + 12].copy_from_slice(&own.to_be_bytes());
    }
    let ends = if v6 { &bytes[net + 8..net + 40] } else { &bytes[net + 12..net + 20] };
    let protocol = if udp { 17 } else { 6 };
    let seed = sum(&[ends, &of(bytes.len() - start).to_be_bytes(), &[0, protocol]]).to_be_bytes();
    bytes[store..store + 2].copy_from_slice(&seed);
}

/// A packet of IPv4 with its checksums, of a transport that is `wanted`, over the bytes that it says it has.
fn found(
    bytes: &[u8],
    ip: bool,
    wanted: impl Fn(u8) -> bool,
    doubts: &Doubts,
) -> Result<(Vec<u8>, Asked, bool), &'static str> {
    let mut bytes = bytes.to_vec();
    let net = network_of(&bytes, doubts).filter(|(kind, _)| *kind == 0x0800).map(|(_, net)| net);
    let whole = |net: &usize| bytes.len() >= net + 20 && (0x45..0x50).contains(&bytes[*net]);
    let Some(net) = net.filter(whole) else { return Ok((bytes, Asked::default(), false)) };
    let head = usize::from(bytes[net] & 15) * 4;
    if bytes.len() < net + head && ip {
        return Err("bad_offload");
    }
    if ip {
        bytes[net + 10..net + 12].fill(0);
        let sum = !sum(&[&bytes[net..net + head]]);
        bytes[net + 10..net + 12].copy_from_slice(&sum.to_be_bytes());
    }
    let end = (net + usize::from(u16::from_be_bytes([bytes[net + 2], bytes[net + 3]]))).min(bytes.len());
    let transport =
        transport_of(&bytes, doubts).filter(|(protocol, at, _)| wanted(*protocol) && *at == net + head);
    if let Some((protocol, at, Some(its))) = transport {
        let store = at + usize::from(its);
        if store + 2 <= end {
            bytes[store..store + 2].fill(0);
            let parts = [
                &bytes[net + 12..net + 20],
                &((end - at) as u32).to_be_bytes(),
                &[0, protocol],
                &bytes[at..end],
            ];
            let value = match !sum(&parts) {
                0 if protocol == 17 => 0xffff,
                value => value,
            };
            bytes[store..store + 2].copy_from_slice(&value.to_be_bytes());
        }
    }
    Ok((bytes, Asked::default(), false))
}
