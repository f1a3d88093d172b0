//! A frame with what its sender asks for, as a station sees it in the end: checksums complete and segments
//! cut, in the plainest way. Both what was sent and what came out are brought into this form before they
//! are compared.

use super::headers::{be16, tags, DCCP, GRE, ICMP6, TCP, UDP, UDP_LITE};

/// What a virtio-net header asks for (virtio 1.2 §5.1.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    pub flags: u8,
    pub gso: u8,
    pub header: u16,
    pub size: u16,
    pub start: u16,
    pub offset: u16,
}

impl Asked {
    pub fn read(bytes: &[u8; 12]) -> Asked {
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Asked {
            flags: bytes[0],
            gso: bytes[1],
            header: word(2),
            size: word(4),
            start: word(6),
            offset: word(8),
        }
    }

    pub fn bytes(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        (bytes[0], bytes[1]) = (self.flags, self.gso);
        for (at, word) in [self.header, self.size, self.start, self.offset].into_iter().enumerate() {
            bytes[2 + 2 * at..4 + 2 * at].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub fn needs_sum(self) -> bool {
        self.flags & 1 != 0
    }

    pub fn cuts(self) -> bool {
        self.gso & 0x7f != 0
    }
}

/// The sum of RFC 1071, folded and not inverted.
pub fn sum(parts: &[&[u8]]) -> u16 {
    let mut all = 0u64;
    for part in parts {
        for pair in part.chunks(2) {
            all += u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0));
        }
    }
    while all > 0xffff {
        all = (all & 0xffff) + (all >> 16);
    }
    all as u16
}

/// The sum of the pseudo header of the packet at `net` of a frame.
fn pseudo(frame: &[u8], net: usize, protocol: u8, len: usize) -> u16 {
    let ends = if frame[net] >> 4 == 6 { &frame[net + 8..net + 40] } else { &frame[net + 12..net + 20] };
    sum(&[ends, &(len as u32).to_be_bytes(), &[0, protocol]])
}

/// Where the checksum of a protocol stands in its header.
pub fn sum_at(protocol: u8, header: &[u8]) -> Option<u16> {
    match protocol {
        TCP => Some(16),
        UDP | UDP_LITE | DCCP => Some(6),
        ICMP6 => Some(2),
        // Only where it says that it has one (RFC 2784 §2.1).
        GRE if header.first().is_some_and(|flags| flags & 0x80 != 0) => Some(4),
        _ => None,
    }
}

/// Completes the checksum that is asked for; `None` where it is not in the frame.
pub fn completed(frame: &[u8], asked: Asked) -> Option<Vec<u8>> {
    let mut frame = frame.to_vec();
    if asked.needs_sum() {
        let start = usize::from(asked.start);
        let at = start + usize::from(asked.offset);
        let mut value = !sum(&[frame.get(start..)?]);
        // No datagram has a sum of zero (RFC 768).
        if value == 0 && asked.offset == 6 {
            value = 0xffff;
        }
        frame.get_mut(at..at + 2)?.copy_from_slice(&value.to_be_bytes());
    }
    Some(frame)
}

/// The frames that a super-frame is cut into: TCP by RFC 9293, datagrams one by one.
pub fn cut(frame: &[u8], asked: Asked) -> Option<Vec<Vec<u8>>> {
    if !asked.cuts() {
        return Some(vec![completed(frame, asked)?]);
    }
    let (_, at) = tags(frame);
    let (net, start) = (at + 2, usize::from(asked.start));
    let v6 = be16(frame, at)? == 0x86dd;
    let tcp = asked.gso & 0x7f != 5;
    let head = start + if tcp { usize::from(*frame.get(start + 12)? >> 4) * 4 } else { 8 };
    let (headers, payload) = (frame.get(..head)?, frame.get(head..)?);
    let size = usize::from(asked.size);
    let parts: Vec<&[u8]> = if payload.is_empty() { vec![payload] } else { payload.chunks(size).collect() };
    let count = parts.len();
    let segment = |(n, part): (usize, &&[u8])| {
        let mut bytes = [headers, part].concat();
        let len = bytes.len() - net;
        if v6 {
            bytes[net + 4..net + 6].copy_from_slice(&((len - 40) as u16).to_be_bytes());
        } else {
            let ident = be16(&bytes, net + 4).unwrap().wrapping_add(n as u16);
            bytes[net + 2..net + 4].copy_from_slice(&(len as u16).to_be_bytes());
            bytes[net + 4..net + 6].copy_from_slice(&ident.to_be_bytes());
            bytes[net + 10..net + 12].fill(0);
            let own = !sum(&[&bytes[net..net + usize::from(bytes[net] & 15) * 4]]);
            bytes[net + 10..net + 12].copy_from_slice(&own.to_be_bytes());
        }
        let rest = bytes.len() - start;
        let check = if tcp {
            let number = u32::from_be_bytes(bytes[start + 4..start + 8].try_into().unwrap());
            let number = number.wrapping_add((n * size) as u32);
            bytes[start + 4..start + 8].copy_from_slice(&number.to_be_bytes());
            // FIN and PSH stay with the last one, CWR with the first.
            let first_only = if n > 0 { 0x80 } else { 0 };
            let last_only = if n + 1 < count { 0x09 } else { 0 };
            bytes[start + 13] &= !(first_only | last_only);
            start + 16
        } else {
            bytes[start + 4..start + 6].copy_from_slice(&(rest as u16).to_be_bytes());
            start + 6
        };
        bytes[check..check + 2].fill(0);
        let protocol = if tcp { TCP } else { UDP };
        let value = match !sum(&[&pseudo(&bytes, net, protocol, rest).to_be_bytes(), &bytes[start..]]) {
            0 if !tcp => 0xffff,
            value => value,
        };
        bytes[check..check + 2].copy_from_slice(&value.to_be_bytes());
        bytes
    };
    Some(parts.iter().enumerate().map(segment).collect())
}

/// Whether a frame that is to be cut has its lengths, and in its checksum's place the sum of its pseudo
/// header, on which its receiver may rely (virtio 1.2 §5.1.6.4).
pub fn is_finished(frame: &[u8], asked: Asked) -> bool {
    if !asked.cuts() {
        return true;
    }
    let (net, start) = (tags(frame).1 + 2, usize::from(asked.start));
    let rest = frame.len() - net;
    let its =
        if frame[net] >> 4 == 6 { be16(frame, net + 4).map(|len| len + 40) } else { be16(frame, net + 2) };
    let protocol = if asked.gso & 0x7f == 5 { UDP } else { TCP };
    let seed = pseudo(frame, net, protocol, frame.len() - start);
    its == Some(rest as u16) && be16(frame, start + usize::from(asked.offset)) == Some(seed)
}
