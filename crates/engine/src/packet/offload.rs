//! The offload facts of a frame, as the virtio-net header carries them (virtio 1.2 §5.1.6).

use super::checksum::Sum;
use super::ether::be16;
use super::ip::{Ip, Upper, GRE, ICMPV6, MAX_HEADER, TCP, UDP};
use std::{fmt, ops::BitOr};

/// A set of offloads: what a sender may ask of us, what a receiver takes, or what a frame requires.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Offloads(u32);

impl Offloads {
    /// No offload.
    pub const NONE: Self = Self(0);
    /// Completing a checksum.
    pub const CSUM: Self = Self(1);
    /// Segmentation of TCP over IPv4.
    pub const TSO4: Self = Self(1 << 1);
    /// Segmentation of TCP over IPv6.
    pub const TSO6: Self = Self(1 << 2);
    /// Segmentation of TCP whose header has CWR set.
    pub const ECN: Self = Self(1 << 3);
    /// Segmentation of UDP over IPv4 into datagrams.
    pub const USO4: Self = Self(1 << 4);
    /// Segmentation of UDP over IPv6 into datagrams.
    pub const USO6: Self = Self(1 << 5);
    /// Fragmentation of UDP (legacy).
    pub const UFO: Self = Self(1 << 6);
    /// The sender's word that it verified the checksum is believed. Not for guests: virtio 1.2 §5.1.6.2.1
    /// forbids drivers to give it.
    pub const VALID: Self = Self(1 << 7);
    /// Everything.
    pub const ALL: Self = Self(0xff);

    /// A set from [`Offloads::bits`], for keeping in an atomic; unknown bits are dropped.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits & Self::ALL.0)
    }

    /// The set as a number.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether all of `other` is in this set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// What of this set is not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl BitOr for Offloads {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Display for Offloads {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        const NAMES: [&str; 8] = ["csum", "tso4", "tso6", "ecn", "uso4", "uso6", "ufo", "valid"];
        let mut separator = "";
        for (_, name) in NAMES.iter().enumerate().filter(|(bit, _)| self.0 >> bit & 1 != 0) {
            write!(f, "{separator}{name}")?;
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for Offloads {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Offloads({self})")
    }
}

/// Why a frame's offload facts cannot be honoured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadOffload {
    /// The segmentation type is none that virtio 1.2 §5.1.6 defines, or ECN without TCP.
    #[error("unknown segmentation type {0:#x}")]
    UnknownGso(u8),
    /// The frame asks for what was not negotiated.
    #[error("offload not negotiated: {0}")]
    NotNegotiated(Offloads),
    /// The checksum would begin before the end of the IP header or be stored behind the frame's end.
    #[error("the checksum lies outside of the frame's transport part")]
    CsumOutside,
    /// The checksum is neither the transport's nor that of a packet within: completing it would change what
    /// rules have judged.
    #[error("the checksum is not that of the frame's transport")]
    CsumElsewhere,
    /// Segmentation without a checksum to complete (virtio 1.2 §5.1.6.2.1 wants both).
    #[error("segmentation is asked for without checksum")]
    GsoWithoutCsum,
    /// No payload would fit into a segment.
    #[error("segment size is zero")]
    ZeroGsoSize,
    /// An offload is asked for, but the frame is not IP or its IP header is malformed.
    #[error("the frame has no well-formed IP header")]
    NotIp,
    /// The headers do not lead to the transport header that the segmentation type and `csum_start` name.
    #[error("the frame's headers contradict its segmentation type")]
    WrongProtocol,
    /// The transport header is malformed or ends behind the frame.
    #[error("the transport header is cut short")]
    HeaderCut,
    /// The headers are longer than [`MAX_HEADER`].
    #[error("the headers are longer than {MAX_HEADER} bytes")]
    HeaderTooLong,
    /// A segment or datagram would be longer than IP can express.
    #[error("a segment would be longer than 65535 bytes")]
    SegmentTooLong,
    /// More than [`MAX_SEGMENTS`](super::MAX_SEGMENTS) segments.
    #[error("too many segments")]
    TooManySegments,
}

/// How a frame is to be cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gso {
    /// Not at all.
    #[default]
    None,
    /// TCP segments over IPv4.
    Tcp4,
    /// TCP segments over IPv6.
    Tcp6,
    /// UDP datagrams over IPv4.
    Udp4,
    /// UDP datagrams over IPv6.
    Udp6,
    /// Fragments of one UDP datagram, over either (legacy).
    Ufo,
}

impl Gso {
    const ECN: u8 = 0x80;

    /// The number in the virtio-net header's `gso_type`.
    const fn code(self) -> u8 {
        match self {
            Gso::None => 0,
            Gso::Tcp4 => 1,
            Gso::Ufo => 3,
            Gso::Tcp6 => 4,
            Gso::Udp4 | Gso::Udp6 => 5,
        }
    }

    /// Transport protocol, and offset of the checksum in its header.
    pub(super) const fn transport(self) -> (u8, u16) {
        if matches!(self, Gso::Tcp4 | Gso::Tcp6) {
            (TCP, 16)
        } else {
            (UDP, 6)
        }
    }

    const fn offload(self) -> Offloads {
        match self {
            Gso::None => Offloads::NONE,
            Gso::Tcp4 => Offloads::TSO4,
            Gso::Tcp6 => Offloads::TSO6,
            Gso::Udp4 => Offloads::USO4,
            Gso::Udp6 => Offloads::USO6,
            Gso::Ufo => Offloads::UFO,
        }
    }
}

/// The offload facts of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    /// [`Offload::NEEDS_CSUM`], [`Offload::DATA_VALID`].
    pub flags: u8,
    /// How to cut the frame.
    pub gso: Gso,
    /// The TCP header has CWR set, which only the first segment may keep.
    pub ecn: bool,
    /// The driver's hint at the length of all headers, in bytes. Passed on, never used.
    pub hdr_len: u16,
    /// Payload bytes per segment; for [`Gso::Ufo`], IP payload bytes per fragment.
    pub gso_size: u16,
    /// Where the checksum begins: the transport header's offset in the frame.
    pub csum_start: u16,
    /// Where the checksum is stored, from `csum_start`.
    pub csum_offset: u16,
}

impl Offload {
    /// Nothing left to do, nothing known.
    pub const NONE: Self =
        Self { flags: 0, gso: Gso::None, ecn: false, hdr_len: 0, gso_size: 0, csum_start: 0, csum_offset: 0 };
    /// The checksum field holds the pseudo header's sum; the rest is to be added.
    pub const NEEDS_CSUM: u8 = 1;
    /// The checksum has been verified.
    pub const DATA_VALID: u8 = 2;

    /// Reads a virtio-net header (virtio 1.2 §5.1.6) of a frame of `frame_len` bytes that begins with `head`.
    /// The last two bytes of `header`, `num_buffers`, mean nothing on the way in; for a legacy 10-byte header
    /// let them be zero.
    ///
    /// # Errors
    /// As for [`Offload::check`].
    pub fn parse(
        header: &[u8; 12],
        head: &[u8],
        frame_len: usize,
        allowed: Offloads,
    ) -> Result<Self, BadOffload> {
        let [flags, kind, fields @ ..] = *header;
        // By far the most frequent header, read with one comparison.
        if flags == 0 && kind == 0 {
            return Ok(Self::NONE);
        }
        let [a0, a1, b0, b1, c0, c1, d0, d1, ..] = fields;
        let field = |low, high| u16::from_le_bytes([low, high]);
        let gso = match kind & !Gso::ECN {
            0 => Gso::None,
            1 => Gso::Tcp4,
            3 => Gso::Ufo,
            4 => Gso::Tcp6,
            // One code for both; the frame itself tells which.
            5 if Ip::parse(head).is_some_and(|ip| ip.v6) => Gso::Udp6,
            5 => Gso::Udp4,
            _ => return Err(BadOffload::UnknownGso(kind)),
        };
        Offload {
            flags,
            gso,
            ecn: kind & Gso::ECN != 0,
            hdr_len: field(a0, a1),
            gso_size: field(b0, b1),
            csum_start: field(c0, c1),
            csum_offset: field(d0, d1),
        }
        .check(head, frame_len, allowed)
    }

    /// Judges facts against the frame they are about and against what the sender may ask for. What comes back
    /// is safe to pass on: without unknown flags (to be ignored, virtio 1.2 §5.1.6.2.2), without fields that
    /// mean nothing, and with a `hdr_len` within the frame, since a TAP device refuses others.
    ///
    /// `head` is the frame's first bytes in private memory, 64 or more or the whole frame. Where the headers
    /// lead behind it, the facts are judged again when these are in private memory: before rules ask for
    /// them, and before a checksum is completed or a [`Plan`](super::Plan) made.
    ///
    /// What rules have judged may not change afterwards, so a checksum may be asked for in two places: where
    /// the transport has its own; and in a packet that UDP or a tunnel's protocol carries, where no rule
    /// looks. Guests with L2TP, GUE or FOU ask for these (Linux's local checksum offload).
    ///
    /// # Errors
    /// The first contradiction found.
    pub fn check(self, head: &[u8], frame_len: usize, allowed: Offloads) -> Result<Self, BadOffload> {
        let (protocol, check_at) = self.gso.transport();
        if self.ecn && protocol != TCP {
            return Err(BadOffload::UnknownGso(self.gso.code() | Gso::ECN));
        }
        if !self.needs_csum() {
            if self.gso != Gso::None {
                return Err(BadOffload::GsoWithoutCsum);
            }
            let valid = if allowed.contains(Offloads::VALID) { self.flags & Self::DATA_VALID } else { 0 };
            return Ok(Offload { flags: valid, ..Self::NONE });
        }
        let missing = self.required().without(allowed);
        if missing != Offloads::NONE {
            return Err(BadOffload::NotNegotiated(missing));
        }
        let ip = Ip::parse(head).ok_or(BadOffload::NotIp)?;
        let start = usize::from(self.csum_start);
        if start < ip.end || start + usize::from(self.csum_offset) + 2 > frame_len {
            return Err(BadOffload::CsumOutside);
        }
        let kept = Offload { flags: Self::NEEDS_CSUM, ..self };
        // What the headers lead to behind the bytes at hand is not known yet.
        let open = head.len() < frame_len.min(MAX_HEADER) && start >= head.len();
        if self.gso == Gso::None {
            let is = match ip.upper {
                Upper::At(protocol, at) if start == at => match (protocol, head.get(at)) {
                    (GRE, None) => open,
                    // RFC 2784 §2.1: the C bit says that there is one.
                    (GRE, Some(flags)) => self.csum_offset == 4 && flags & 0x80 != 0,
                    _ => Some(self.csum_offset) == field(protocol),
                },
                Upper::At(protocol, at) => carries(protocol).is_some_and(|header| start >= at + header),
                Upper::Later(..) => false,
                Upper::Hidden => open,
            };
            return match is {
                true => Ok(Offload { hdr_len: 0, gso_size: 0, ..kept }),
                false => Err(BadOffload::CsumElsewhere),
            };
        }
        if self.gso_size == 0 {
            return Err(BadOffload::ZeroGsoSize);
        }
        let version = match self.gso {
            Gso::Tcp4 | Gso::Udp4 => !ip.v6,
            Gso::Tcp6 | Gso::Udp6 => ip.v6,
            Gso::Ufo | Gso::None => true,
        };
        let transport = match ip.l4 {
            Some(found) => found == (protocol, start),
            None => ip.upper == Upper::Hidden && open,
        };
        if !version || !transport || self.csum_offset != check_at {
            return Err(BadOffload::WrongProtocol);
        }
        Ok(Offload { hdr_len: self.hdr_len.min(u16::try_from(frame_len).unwrap_or(u16::MAX)), ..kept })
    }

    /// The virtio-net header for these facts; its first ten bytes are the legacy header. `num_buffers` counts
    /// the receive buffers that the frame takes (virtio 1.2 §5.1.6.4).
    #[must_use]
    pub fn to_bytes(self, num_buffers: u16) -> [u8; 12] {
        let kind = self.gso.code() | if self.ecn { Gso::ECN } else { 0 };
        let fields = [self.hdr_len, self.gso_size, self.csum_start, self.csum_offset, num_buffers];
        let [[a0, a1], [b0, b1], [c0, c1], [d0, d1], [e0, e1]] = fields.map(u16::to_le_bytes);
        [self.flags, kind, a0, a1, b0, b1, c0, c1, d0, d1, e0, e1]
    }

    /// The facts of the same frame with `new` bytes in front of its payload in place of `old`.
    #[must_use]
    pub fn moved(self, old: usize, new: usize) -> Self {
        let place = |at: u16| match self.needs_csum() {
            true => u16::try_from(usize::from(at).saturating_sub(old) + new).unwrap_or(u16::MAX),
            false => at,
        };
        let hdr_len = if self.hdr_len == 0 { 0 } else { place(self.hdr_len) };
        Self { hdr_len, csum_start: place(self.csum_start), ..self }
    }

    /// Whether the frame's checksum is still to be completed.
    #[must_use]
    pub const fn needs_csum(self) -> bool {
        self.flags & Self::NEEDS_CSUM != 0
    }

    /// Whether the header says nothing: the frame goes to any receiver with a header of zeros.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.flags == 0 && self.gso == Gso::None
    }

    /// What a receiver must take to be given the frame as it is.
    #[must_use]
    pub fn required(self) -> Offloads {
        let csum = if self.needs_csum() { Offloads::CSUM } else { Offloads::NONE };
        let ecn = if self.ecn { Offloads::ECN } else { Offloads::NONE };
        csum | ecn | self.gso.offload()
    }

    /// How many of the frame's first bytes a [`Plan`](super::Plan) has to see: the headers at their longest.
    #[must_use]
    pub fn header_bound(self, frame_len: usize) -> usize {
        // The longest TCP header is 60 bytes (RFC 9293 §3.1).
        (usize::from(self.csum_start) + 60).min(frame_len).min(MAX_HEADER)
    }

    /// Where in the frame the completed checksum goes and its two bytes, given the sum of the frame's bytes
    /// from `csum_start` to its end. The field's present content, the pseudo header's sum, is part of those
    /// (virtio 1.2 §5.1.6.2).
    #[must_use]
    pub fn checksum(self, sum: Sum) -> (usize, [u8; 2]) {
        let at = usize::from(self.csum_start) + usize::from(self.csum_offset);
        (at, stored(sum, self.csum_offset == Gso::Udp4.transport().1))
    }

    /// Completes the checksum of a frame that lies in one piece; a frame that needs none is left as it is.
    ///
    /// # Errors
    /// [`BadOffload::CsumOutside`]; the frame is unchanged.
    pub fn complete(self, frame: &mut [u8]) -> Result<(), BadOffload> {
        if self.needs_csum() {
            let part = frame.get(usize::from(self.csum_start)..).ok_or(BadOffload::CsumOutside)?;
            let (at, bytes) = self.checksum(Sum::of(part));
            frame.get_mut(at..at + 2).ok_or(BadOffload::CsumOutside)?.copy_from_slice(&bytes);
        }
        Ok(())
    }
}

/// Headers that senders leave to be finished without a word: the checksum by senders that do not say so, the
/// length fields of IP and the length in the TCP seed by drivers of Intel's NICs, which fill them in segment
/// by segment. A receiver that takes such a frame whole (virtio 1.2 §5.1.6.3) wants them to be there.
impl Offload {
    /// The facts about a frame whose checksum field holds the sum of its pseudo header, as a sender leaves it
    /// that counts on hardware to complete it; `None` for every other frame.
    ///
    /// A checksum that is complete may have that value by chance. Completing it does no harm: if the checksum
    /// was right, what comes out is the same number again. (The field, p, counts in the sum: with rest r,
    /// right means r + 2p = 0xffff, and the completed checksum is then the complement of r + p, which is p.)
    #[must_use]
    pub fn half_made(frame: &[u8]) -> Option<Offload> {
        let ip = Ip::parse(frame)?;
        let (protocol, l4) = ip.l4?;
        let csum_offset = field(protocol).filter(|_| matches!(protocol, TCP | UDP))?;
        let field = be16(frame, l4 + usize::from(csum_offset))?;
        // What the IP header says is there: short frames are padded.
        let end = ip.packet_end(frame)?;
        let len = end.checked_sub(l4)?;
        let address = |at: usize| frame.get(at..at + ip.address_len());
        let pseudo = Sum::pseudo(address(ip.src)?, address(ip.dst)?, protocol, len);
        // A frame with padding cannot be described as one to complete: the padding would be summed as well.
        // It is zeros, which do not change a sum, unless a sender hides something there.
        let padding = frame.get(end..)?;
        if field != pseudo.value() || padding.iter().any(|byte| *byte != 0) {
            return None;
        }
        let csum_start = u16::try_from(l4).ok()?;
        Some(Offload { flags: Self::NEEDS_CSUM, csum_start, csum_offset, ..Self::NONE })
    }

    /// Writes into `header`, the first bytes of a frame of `frame_len` bytes up to the checksum field at
    /// least, what its lengths say: IP's length, IPv4's checksum and the seed of the transport checksum.
    ///
    /// # Errors
    /// If the header is not that of an IP packet of the kind that these facts name, or the packet is longer
    /// than IP can express.
    #[allow(
        clippy::indexing_slicing,
        reason = "`Ip::parse` has found the fixed header and both addresses before the transport header; that begins at `start`, \
                  ip.end <= start, and start <= seed_at, seed_at + 2 <= header.len() were checked"
    )]
    pub fn fill_in(&self, header: &mut [u8], frame_len: usize) -> Result<(), BadOffload> {
        let ip = Ip::parse(header).ok_or(BadOffload::NotIp)?;
        let (start, offset) = (usize::from(self.csum_start), usize::from(self.csum_offset));
        let (protocol, _) = self.gso.transport();
        if self.gso == Gso::None || ip.l4 != Some((protocol, start)) {
            return Err(BadOffload::WrongProtocol);
        }
        let (field, from) = if ip.v6 { (ip.at + 4, ip.end) } else { (ip.at + 2, ip.at) };
        let length =
            u16::try_from(frame_len - from.min(frame_len)).map_err(|_| BadOffload::SegmentTooLong)?;
        let seed_at = start + offset;
        if frame_len < start || seed_at + 2 > header.len() || ip.end > start {
            return Err(BadOffload::HeaderCut);
        }
        header[field..field + 2].copy_from_slice(&length.to_be_bytes());
        if !ip.v6 {
            let at = ip.at + 10;
            header[at..at + 2].copy_from_slice(&[0; 2]);
            let sum = Sum::of(&header[ip.at..ip.end]).checksum();
            header[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        }
        let address = ip.address_len();
        let (src, dst) = (&header[ip.src..ip.src + address], &header[ip.dst..ip.dst + address]);
        let seed = Sum::pseudo(src, dst, protocol, frame_len - start).value();
        header[seed_at..seed_at + 2].copy_from_slice(&seed.to_be_bytes());
        debug_assert_eq!(be16(header, seed_at), Some(seed));
        Ok(())
    }
}

/// Where a transport header has its checksum, if that is the sum of 16 bits from there to the packet's end:
/// TCP, UDP, DCCP (RFC 4340 §9), ICMPv6, UDP-Lite.
fn field(protocol: u8) -> Option<u16> {
    match protocol {
        TCP => Some(16),
        UDP | 33 | 136 => Some(6),
        ICMPV6 => Some(2),
        _ => None,
    }
}

/// Behind how many bytes of its header a protocol may carry a packet: UDP; GRE, L2TP (RFC 3931), MPLS (RFC
/// 4023); IP in IP.
fn carries(protocol: u8) -> Option<usize> {
    match protocol {
        UDP => Some(8),
        GRE | 115 | 137 => Some(4),
        4 | 41 => Some(20),
        _ => None,
    }
}

/// A checksum as it is stored. UDP's zero would mean "none": its other representation is sent (RFC 768).
pub(super) fn stored(sum: Sum, udp: bool) -> [u8; 2] {
    match sum.checksum() {
        0 if udp => [0xff; 2],
        checksum => checksum.to_be_bytes(),
    }
}
