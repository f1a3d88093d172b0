//! What a frame consists of, as IEEE 802.1Q, IEEE 802.2, RFC 791, RFC 8200 and their like say, and as far
//! as a port looks (docs/switch.md). This is the model's own reading of bytes; it shares nothing with the
//! engine's.

use super::doubt::Doubts;

/// How many bytes of a frame are looked at for its transport (docs/switch.md: the first 192). Where the
/// bound lies exactly is nobody's promise: from 176 on it may be there, and from 230 on it must be.
pub const NEAR: usize = 176;
const FAR: usize = 230;
/// A header that is looked at is there whole: of TCP 20 bytes, or what a message of neighbour discovery has.
pub const HEADER: usize = 24;

pub const IPV4: u16 = 0x0800;
pub const ARP: u16 = 0x0806;
pub const IPV6: u16 = 0x86dd;

pub const ICMP: u8 = 1;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const GRE: u8 = 47;
pub const DCCP: u8 = 33;
pub const UDP_LITE: u8 = 136;
pub const ICMP6: u8 = 58;

const FRAGMENT: u8 = 44;
const AH: u8 = 51;

/// A frame taken apart.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The type behind all tags, and behind LLC and SNAP; none where it is not to be found.
    pub ethertype: Option<u16>,
    pub what: What,
}

/// What is in it.
#[derive(Clone, Debug)]
pub enum What {
    /// It cannot be said.
    Lost,
    /// Neither ARP nor IP.
    Other,
    /// ARP of Ethernet and IPv4: operation, sender, target.
    Arp {
        operation: u16,
        sender: [u8; 4],
        target: [u8; 4],
    },
    /// Another sort of ARP, or a part of it.
    OddArp,
    Packet(Packet),
}

/// An IP packet. Addresses are 16 bytes, those of IPv4 mapped.
#[derive(Clone, Debug)]
pub struct Packet {
    pub v6: bool,
    pub src: [u8; 16],
    pub dst: [u8; 16],
    pub transport: Transport,
    /// It is a part of a packet, the first one if there are ports.
    pub fragment: bool,
    /// There are headers between IP's and the transport's.
    pub extended: bool,
    /// Where in the frame the transport's begins.
    pub at: usize,
}

/// What the headers of a packet lead to.
#[derive(Clone, Debug)]
pub enum Transport {
    /// They cannot be followed.
    Lost,
    /// Its header is in an earlier fragment.
    Later(u8),
    /// A protocol, and its bytes as far as the frame has them.
    Found(u8, Vec<u8>),
}

pub fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

/// An address of IPv4 as one of 16 bytes.
pub fn mapped(four: [u8; 4]) -> [u8; 16] {
    let mut address = [0; 16];
    (address[10], address[11]) = (0xff, 0xff);
    address[12..].copy_from_slice(&four);
    address
}

/// The numbers of tags (802.1Q §9.6).
pub fn is_tag(kind: u16) -> bool {
    matches!(kind, 0x8100 | 0x88a8)
}

/// The tags of a frame, each with its number and its contents, and where its type stands.
pub fn tags(bytes: &[u8]) -> (Vec<(u16, u16)>, usize) {
    let (mut tags, mut at) = (Vec::new(), 12);
    while let Some(kind) = be16(bytes, at).filter(|kind| is_tag(*kind)) {
        let Some(control) = be16(bytes, at + 2) else { break };
        tags.push((kind, control));
        at += 4;
    }
    (tags, at)
}

/// Takes apart a frame without the tag by which its VLAN is known; `outer` says whether it had that, `place`
/// where it is looked at.
pub fn see(bytes: &[u8], outer: bool, place: usize, doubts: &Doubts) -> Seen {
    let lost = Seen { ethertype: None, what: What::Lost };
    let (tags, mut at) = tags(bytes);
    // A number of tags that the switch does not know (QinQ before 802.1ad).
    while be16(bytes, at).is_some_and(|kind| kind == 0x9100 || is_tag(kind)) && be16(bytes, at + 2).is_some()
    {
        if !doubts.either("0x9100 is a tag", 0) {
            break;
        }
        at += 4;
    }
    let Some(mut kind) = be16(bytes, at) else {
        return if doubts.either("a type that is cut", 0) {
            lost
        } else {
            Seen { ethertype: None, what: What::Other }
        };
    };
    if tags.len() + usize::from(outer) > 2 && doubts.as_before("5", 1) {
        return if doubts.either("many tags are a type", 0) {
            Seen { ethertype: None, what: What::Other }
        } else {
            lost
        };
    }
    if is_tag(kind) && doubts.either("a tag that is cut", 0) {
        return lost;
    }
    if kind == 0x9100 && doubts.either("0x9100 leads nowhere", 0) {
        return lost;
    }
    let mut behind = at + 2;
    if kind < 0x600 {
        if doubts.as_before("5", 0) {
            return Seen { ethertype: None, what: What::Other };
        }
        let Some(llc) = bytes.get(behind..behind + 8) else {
            return if doubts.either("a cut LLC header", 0) {
                lost
            } else {
                Seen { ethertype: None, what: What::Other }
            };
        };
        match llc {
            [0xaa, 0xaa, 3, 0, 0, 0, ..] => {}
            // 802.1H has a number of its own, which some stations take for the other.
            [0xaa, 0xaa, 3, 0, 0, 0xf8, ..] if doubts.either("802.1H", 0) => {}
            [0xaa | 0xab, 0xaa | 0xab, ..] if doubts.either("odd SNAP", 0) => {}
            [0xaa | 0xab, 0xaa | 0xab, ..] if doubts.either("odd SNAP is lost", 0) => return lost,
            [0x42, ..] => return Seen { ethertype: None, what: What::Other },
            _ if doubts.either("LLC of no known sort", 0) => return lost,
            _ => return Seen { ethertype: None, what: What::Other },
        }
        kind = u16::from_be_bytes([llc[6], llc[7]]);
        behind += 8;
        if (is_tag(kind) || kind < 0x600 || kind == 0x9100) && doubts.either("a tag or a length in SNAP", 0) {
            return lost;
        }
    }
    let rest = bytes.get(behind..).unwrap_or(&[]);
    let what = match kind {
        ARP => arp(rest),
        IPV4 => four(rest, behind, place, doubts),
        IPV6 => six(rest, behind, place, doubts),
        _ => What::Other,
    };
    Seen { ethertype: Some(kind), what }
}

fn arp(rest: &[u8]) -> What {
    match rest.get(..28) {
        Some([0, 1, 8, 0, 6, 4, high, low, body @ ..]) => What::Arp {
            operation: u16::from_be_bytes([*high, *low]),
            sender: [body[6], body[7], body[8], body[9]],
            target: [body[16], body[17], body[18], body[19]],
        },
        _ => What::OddArp,
    }
}

/// A header of IP that contradicts itself: no station takes it, so a port may.
fn bad(doubts: &Doubts) -> What {
    if doubts.either("a bad IP header", 0) {
        What::Lost
    } else {
        What::Other
    }
}

fn four(rest: &[u8], at: usize, place: usize, doubts: &Doubts) -> What {
    let head = usize::from(rest.first().copied().unwrap_or(0) & 15) * 4;
    let short = rest.len() < 20;
    let bad_header = short || rest[0] >> 4 != 4 || head < 20 || rest.len() < head;
    if bad_header && (short || !doubts.either("a bad IP header is read", 0)) {
        return bad(doubts);
    }
    let fragment = u16::from_be_bytes([rest[6], rest[7]]);
    let word = |at: usize| mapped([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]);
    let mut packet = Packet {
        v6: false,
        src: word(12),
        dst: word(16),
        transport: Transport::Lost,
        fragment: fragment & 0x3fff != 0,
        extended: rest[9] == AH,
        at: at + head,
    };
    let Some(told) = told(rest, head, usize::from(u16::from_be_bytes([rest[2], rest[3]])), doubts) else {
        return What::Packet(packet);
    };
    if rest.len() < head {
        packet.transport = Transport::Found(rest[9], Vec::new());
    } else if fragment & 0x1fff == 0 {
        packet.follow(told, rest[9], head, (at, place), doubts);
    } else if rest[9] != AH || !doubts.either("a later fragment of AH", 0) {
        // What AH in it leads to is in the first one.
        packet.transport = Transport::Later(rest[9]);
    }
    What::Packet(packet)
}

fn six(rest: &[u8], at: usize, place: usize, doubts: &Doubts) -> What {
    if rest.len() < 40 || rest[0] >> 4 != 6 {
        return bad(doubts);
    }
    let address = |at: usize| rest[at..at + 16].try_into().unwrap();
    let mut packet = Packet {
        v6: true,
        src: address(8),
        dst: address(24),
        transport: Transport::Lost,
        fragment: false,
        extended: leads(rest[6]),
        at: at + 40,
    };
    if let Some(told) = told(rest, 40, 40 + usize::from(u16::from_be_bytes([rest[4], rest[5]])), doubts) {
        packet.follow(told, rest[6], 40, (at, place), doubts);
    }
    What::Packet(packet)
}

/// What a packet has, of bytes `rest`, if its length says `total` and its header has `head`: it may be that
/// who lies about that is not listened to.
fn told<'r>(rest: &'r [u8], head: usize, total: usize, doubts: &Doubts) -> Option<&'r [u8]> {
    if (total < head || total > rest.len()) && doubts.either("a length that lies", 0) {
        return None;
    }
    let ends = total >= head && total < rest.len() && doubts.either("bytes behind the length", 0);
    Some(if ends { &rest[..total] } else { rest })
}

/// Whether it is a header that leads to another one.
fn leads(next: u8) -> bool {
    matches!(next, 0 | 43 | FRAGMENT | AH | 60 | 135 | 139 | 140)
}

impl Packet {
    /// Follows the headers from `next` at `start` of its bytes, which begin at byte `at` of the frame (RFC
    /// 8200 §4, RFC 4302).
    fn follow(
        &mut self,
        bytes: &[u8],
        mut next: u8,
        mut start: usize,
        (at, place): (usize, usize),
        doubts: &Doubts,
    ) {
        loop {
            self.at = at + start;
            let (end, of) = (self.at + HEADER, place << 8 | self.at);
            if end > FAR || end > NEAR && doubts.either("the end of what is looked at", of) {
                // What it is may be known without it.
                let leads = if self.v6 { leads(next) } else { next == AH };
                if !leads && doubts.either("a protocol whose header is not looked at", of) {
                    self.transport = Transport::Found(next, Vec::new());
                }
                return;
            }
            // The next protocol, and how long it is, may be there of a header that the frame's end cuts.
            let cut = bytes.get(start..).filter(|cut| (2..8).contains(&cut.len()));
            let cut = cut.filter(|_| doubts.either("an extension header that is cut", 0));
            let cut = cut.map(|cut| [cut, &[0; 8][cut.len()..]].concat());
            let word = cut.as_deref().or(bytes.get(start..start + 8));
            let rare = self.v6 && matches!(next, 135 | 139 | 140 | 253 | 254);
            let len = match (next, word) {
                (0 | 43 | FRAGMENT | 60, None) if self.v6 => return,
                (AH, None) => return,
                (FRAGMENT, Some(word)) if self.v6 => {
                    let offset = u16::from_be_bytes([word[2], word[3]]);
                    self.fragment |= offset & 0xfff9 != 0;
                    if offset & 0xfff8 != 0 {
                        self.transport = Transport::Later(word[0]);
                        return;
                    }
                    8
                }
                (0 | 43 | 60, Some(word)) if self.v6 => usize::from(word[1]) * 8 + 8,
                (AH, Some(word)) => usize::from(word[1]) * 4 + 8,
                // Mobility, HIP, Shim6 and what is for experiments look like options (RFC 6564 §4), and may
                // be protocols.
                (_, Some(word)) if rare && doubts.either("a rare extension header", 0) => {
                    usize::from(word[1]) * 8 + 8
                }
                _ if rare && doubts.either("a rare extension header is lost", 0) => return,
                _ => {
                    self.transport = Transport::Found(next, bytes.get(start..).unwrap_or(&[]).to_vec());
                    return;
                }
            };
            next = bytes[start];
            start += len;
        }
    }
}
