//! Cutting a frame for a receiver that cannot (virtio 1.2 §5.1.6.2, "the device does segmentation").
//!
//! A [`Plan`] is arithmetic over a private copy of the frame's headers. It writes the header of segment *i*
//! and says which bytes of the frame follow; it never sees the payload, so that the caller copies each byte
//! once. Checksums are made anew from the addresses instead of patched: a driver's seed then cannot spoil
//! them, and devices that seed differently (e1000 leaves out the length, virtio has it) need no special case.

use super::checksum::Sum;
use super::ip::{Ip, DESTINATION, FRAGMENT, IPV6_LEN, MAX_HEADER, TCP, UDP};
use super::offload::{stored, BadOffload, Gso, Offload, Offloads};
use std::ops::Range;

/// The most segments that one frame may become. A driver that asks for segments of one byte would buy 64 Ki
/// frames of our time for one of its own; 64 KiB at the smallest segment Linux sends (88 bytes) are 745.
pub const MAX_SEGMENTS: usize = 1024;

/// What can be expressed by the length fields of IP.
const MAX_IP: usize = 0xffff;
/// Length of the IPv6 fragment header.
const FRAGMENT_LEN: usize = 8;

/// How one frame is cut.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// Ethernet to TCP or UDP, without payload.
    header: &'a [u8],
    frame_len: usize,
    ip: Ip,
    /// Offset of the TCP or UDP header.
    l4: usize,
    gso: Gso,
    /// Offset of what is shared out over the segments: the payload, or for UFO the whole datagram.
    body: usize,
    /// Bytes of it per segment.
    size: usize,
    /// The number of segments, 1 to [`MAX_SEGMENTS`].
    pub count: usize,
    ident: u32,
}

/// One segment: the first `header_len` bytes of what [`Plan::segment`] wrote, then `payload`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Length of the header, in bytes.
    pub header_len: usize,
    /// Which bytes of the frame follow the header.
    pub payload: Range<usize>,
    /// Which bytes of the frame the checksum covers besides the header: the payload; for the first fragment
    /// of a datagram the payload of all; for the others nothing.
    pub summed: Range<usize>,
    /// Where the checksum goes, the sum of what it covers but `summed`, and whether it is UDP's.
    check: Option<(usize, Sum, bool)>,
}

impl Segment {
    /// Stores the checksum in `header`, as written by [`Plan::segment`]; `sum` is that of the bytes `summed`.
    #[allow(
        clippy::indexing_slicing,
        reason = "the place lies in the transport header that `Plan::segment` wrote into such an array"
    )]
    pub fn seal(&self, header: &mut [u8; MAX_HEADER], sum: Sum) {
        if let Some((at, mut total, udp)) = self.check {
            total.append(sum);
            header[at..at + 2].copy_from_slice(&stored(total, udp));
        }
    }
}

impl<'a> Plan<'a> {
    /// Plans the segments of a frame of `frame_len` bytes that begins with `head`: the first
    /// [`Offload::header_bound`] bytes in private memory. `ident` becomes the identification of IPv6
    /// fragments: a number that differs from frame to frame (only for [`Gso::Ufo`]).
    ///
    /// # Errors
    /// What the headers or facts contradict; [`BadOffload::UnknownGso`] for a frame not to be cut.
    pub fn new(head: &'a [u8], frame_len: usize, offload: Offload, ident: u32) -> Result<Self, BadOffload> {
        let head = head.get(..frame_len).unwrap_or(head);
        let Offload { gso, gso_size, csum_start, .. } = offload.check(head, frame_len, Offloads::ALL)?;
        let l4 = usize::from(csum_start);
        if gso == Gso::None {
            return Err(BadOffload::UnknownGso(0));
        }
        // Room for the shortest TCP header, or for UDP's and an IPv6 fragment header before it.
        if l4 + 20 > MAX_HEADER {
            return Err(BadOffload::HeaderTooLong);
        }
        // check() was content with extension headers that leave `head`; here they may not.
        let ip = Ip::parse(head).filter(|ip| ip.l4.is_some()).ok_or(BadOffload::WrongProtocol)?;
        let l4_len = match gso.transport() {
            // RFC 9293 §3.1: the data offset, not the driver's hdr_len, tells where the payload begins.
            (TCP, _) => match head.get(l4 + 12).map(|offset| usize::from(offset >> 4) * 4) {
                Some(len @ 20..) => len,
                _ => return Err(BadOffload::HeaderCut),
            },
            _ => 8,
        };
        let header_len = l4 + l4_len;
        if header_len > MAX_HEADER {
            return Err(BadOffload::HeaderTooLong);
        }
        let header = head.get(..header_len).ok_or(BadOffload::HeaderCut)?;
        let fragments = gso == Gso::Ufo;
        // RFC 8200 §4.5 wants destination options behind the fragment header, in the first fragment: not
        // done.
        if fragments && ip.named.1 == DESTINATION {
            return Err(BadOffload::WrongProtocol);
        }
        // A fragment's offset counts units of 8 bytes (RFC 791 §3.1, RFC 8200 §4.5).
        let size = usize::from(gso_size) & if fragments { !7 } else { !0 };
        if size == 0 {
            return Err(BadOffload::ZeroGsoSize);
        }
        let body = if fragments { l4 } else { header_len };
        let longest = if fragments { frame_len } else { frame_len.min(header_len + size) };
        if longest - ip.at > MAX_IP {
            return Err(BadOffload::SegmentTooLong);
        }
        let count = (frame_len - body).div_ceil(size).max(1);
        if count > MAX_SEGMENTS {
            return Err(BadOffload::TooManySegments);
        }
        Ok(Plan { header, frame_len, ip, l4, gso, body, size, count, ident })
    }

    /// Writes the header of segment `index`, its checksum still to be sealed; `None` from [`Plan::count`] on.
    #[allow(
        clippy::indexing_slicing,
        reason = "`new` has seen: ip.at + 20 (or 40) <= ip.end <= l4; ip.named.0 < l4; l4 + 8 (UDP) or 20 (TCP) <= header.len() <= \
                  MAX_HEADER; l4 + 20 <= MAX_HEADER, which a fragment header and UDP's fit in"
    )]
    pub fn segment(&self, index: usize, out: &mut [u8; MAX_HEADER]) -> Option<Segment> {
        if index >= self.count {
            return None;
        }
        let Plan { header, l4, ip, .. } = *self;
        let offset = index * self.size;
        let last = index + 1 == self.count;
        let fragment = self.gso == Gso::Ufo && self.count > 1;
        out[..l4].copy_from_slice(&header[..l4]);
        let mut header_len = l4;
        if fragment && ip.v6 {
            // RFC 8200 §4.5.
            put16(out, l4 + 2, offset | usize::from(!last));
            out[ip.named.0] = FRAGMENT;
            out[l4..l4 + 2].copy_from_slice(&[UDP, 0]);
            out[l4 + 4..l4 + 8].copy_from_slice(&self.ident.to_be_bytes());
            header_len += FRAGMENT_LEN;
        }
        let payload =
            (self.body + offset).max(header.len())..(self.body + offset + self.size).min(self.frame_len);
        let mut summed = 0..0;
        let mut check = None;
        if index == 0 || !fragment {
            summed = if fragment { header.len()..self.frame_len } else { payload.clone() };
            let transport = &mut out[header_len..header_len + header.len() - l4];
            transport.copy_from_slice(&header[l4..]);
            let (check_at, sum, udp) = self.transport(transport, index, summed.len());
            check = Some((header_len + check_at, sum, udp));
            header_len += header.len() - l4;
        }
        let ip_len = header_len - ip.at + payload.len();
        if ip.v6 {
            put16(out, ip.at + 4, ip_len - IPV6_LEN);
        } else {
            let place = (offset / 8) | (usize::from(!last) << 13);
            self.ipv4(&mut out[ip.at..l4], index, ip_len, fragment.then_some(place));
        }
        Some(Segment { header_len, payload, summed, check })
    }

    /// Completes the IPv4 header of segment `index` (RFC 791 §3.1). Segments are datagrams of their own and
    /// have identifications of their own; fragments share the first one's.
    #[allow(clippy::indexing_slicing, reason = "`ip` is a whole IPv4 header: 20 bytes at least")]
    fn ipv4(&self, ip: &mut [u8], index: usize, len: usize, place: Option<usize>) {
        put16(ip, 2, len);
        match place {
            Some(place) => put16(ip, 6, place),
            None => put16(ip, 4, usize::from(u16::from_be_bytes([ip[4], ip[5]])) + index),
        }
        put16(ip, 10, 0);
        let checksum = Sum::of(ip).checksum();
        put16(ip, 10, usize::from(checksum));
    }

    /// Completes the transport header of segment `index`, with `payload` bytes to be summed behind it;
    /// returns where its checksum goes, the sum so far, and whether it is UDP's.
    #[allow(
        clippy::indexing_slicing,
        reason = "`l4` is a whole TCP header, 20 bytes at least, or UDP's 8; `Ip::parse` has found both addresses before the \
                  transport header, where `header` goes on"
    )]
    fn transport(&self, l4: &mut [u8], index: usize, payload: usize) -> (usize, Sum, bool) {
        let (protocol, check_at) = self.gso.transport();
        let len = l4.len() + payload;
        if protocol == UDP {
            put16(l4, 4, len);
        } else {
            let sequence = u32::from_be_bytes([l4[4], l4[5], l4[6], l4[7]]) as usize;
            let [.., a, b, c, d] = sequence.wrapping_add(index * self.size).to_be_bytes();
            l4[4..8].copy_from_slice(&[a, b, c, d]);
            // FIN and PSH tell about the end of the data; CWR answers one congestion mark, once (RFC 3168
            // §6.1.2).
            let keep_end = if index + 1 == self.count { 0xff } else { !0x09 };
            let keep_cwr = if index == 0 { 0xff } else { !0x80 };
            l4[13] &= keep_end & keep_cwr;
        }
        let check_at = usize::from(check_at);
        put16(l4, check_at, 0);
        let address = |at: usize| &self.header[at..at + self.ip.address_len()];
        let mut sum = Sum::pseudo(address(self.ip.src), address(self.ip.dst), protocol, len);
        sum.add(l4);
        (check_at, sum, protocol == UDP)
    }
}

/// Stores a 16-bit number, big-endian. Higher bits are cut off: identifications wrap, lengths were checked.
#[allow(
    clippy::indexing_slicing,
    reason = "callers name fields of headers that are there: see `Plan::segment`"
)]
fn put16(bytes: &mut [u8], at: usize, n: usize) {
    let [.., high, low] = n.to_be_bytes();
    bytes[at..at + 2].copy_from_slice(&[high, low]);
}
