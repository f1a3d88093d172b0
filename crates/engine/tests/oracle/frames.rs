//! Random frames, near what ports are configured for: their addresses, VLANs, ports and protocols are those
//! of which rules speak. The numbers of the stations are here, too.

use super::options::FAR;
use super::plain::{sum, Asked};
use super::random::Random;
use super::work::Work;

/// A frame and the header of virtio-net that asks for what is left to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub port: usize,
    pub bytes: Vec<u8>,
    pub asked: Asked,
    /// What its driver leaves to a card.
    pub work: Option<Work>,
    /// An isolated guest of another host has sent it.
    pub isolated: bool,
}

impl Sent {
    /// One that asks for nothing.
    pub fn plain(port: usize, bytes: Vec<u8>) -> Sent {
        Sent { port, bytes, asked: Asked::default(), work: None, isolated: false }
    }

    /// Its bytes as a card sends them.
    pub fn made(&self) -> Vec<u8> {
        self.work.map_or_else(|| self.bytes.clone(), |work| work.made(&self.bytes))
    }
}

/// Stations behind each port.
pub const STATIONS: u8 = 3;

/// The address of a station behind a port. Guests of several hosts have the same ones.
pub fn station(port: usize, number: u8) -> [u8; 6] {
    [2, 0, 0, 0, port.min(FAR[0]) as u8, number]
}

pub fn four(port: usize, number: u8) -> [u8; 4] {
    [10, 0, port as u8, 1 + number]
}

pub fn six(port: usize, number: u8) -> [u8; 16] {
    [0x20, 1, 0xd, 0xb8, 0, 0, 0, port as u8, 0, 0, 0, 0, 0, 0, 0, 1 + number]
}

/// A station behind a port asks for the router's address there.
pub fn asks(port: usize, number: u8, router: [u8; 4]) -> Sent {
    let source = station(port, number);
    let (whose, rest) = (four(port, number), [&[0; 6][..], &router].concat());
    let bytes = [&[0xff; 6][..], &source, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &source, &whose, &rest].concat();
    Sent::plain(port, bytes)
}

/// VLANs that ports are in, and one that none is in.
pub const VLANS: [u16; 4] = [10, 20, 30, 40];

/// The station and the address of a router, and how many of a hundred frames are for it.
pub type ByRouter = ([u8; 6], [u8; 4], usize);

/// What may be drawn.
pub struct Draw {
    /// Ports that take part, and those that may send.
    pub ports: Vec<usize>,
    /// The router that they may be for.
    pub router: Option<ByRouter>,
    /// The router's other ports.
    pub beyond: Vec<usize>,
    /// Ports that are down, behind which a third station is all the same.
    pub absent: Vec<usize>,
}

impl Draw {
    /// A frame that comes in by `port`.
    pub fn frame(&self, random: &mut Random, port: usize) -> Sent {
        let router = self.router.filter(|(.., part)| random.chance(*part));
        let other = match router {
            // Who is behind the router's other port.
            Some(_) if random.chance(50) => random.one(&self.beyond),
            _ => random.one(&self.ports),
        };
        let number = random.below(STATIONS.into()) as u8;
        // Some take the address of the next port's second station, or of the third, which may stay there
        // (`fdb`), up or down; only one other port does so.
        let next = self.ports[(self.ports.iter().position(|it| *it == port).unwrap() + 1) % self.ports.len()];
        let source = match random.below(60) {
            _ if self.absent.contains(&next) && random.chance(25) => station(next, 2),
            0 | 3 | 4 => station(next, 1 + random.byte() % 2),
            1 => [0, 0, 0x5e, 0, random.one(&[1, 2]), random.one(&[1, 7])],
            2 => [2, 0, 0, 1, port as u8, random.byte() & 3],
            _ => station(port, number),
        };
        let target = match random.below(24) {
            0..=3 => [0xff; 6],
            4 => [1, 0, 0x5e, 1, 2, 3],
            5 => [0x33, 0x33, 0xff, 0, 0, 1 + number],
            6 => [1, 0x80, 0xc2, 0, 0, 0],
            7 => [1, 0x80, 0xc2, 0, 0, random.one(&[1, 2, 3, 14, 15, 16])],
            8 => [1, 0, 0xc, 0xcc, 0xcc, 0xcd],
            9 => [2, 9, 9, 9, 9, random.byte() & 3],
            10 => station(port, random.below(STATIONS.into()) as u8),
            _ => station(other, random.below(STATIONS.into()) as u8),
        };
        let target = match router {
            Some((station, ..)) if target[0] & 1 == 0 => station,
            _ => target,
        };
        let mut tags = Vec::new();
        let depth = [0, 0, 0, 0, 1, 1, 1, 2, 2, 3][random.below(10)];
        for _ in 0..depth {
            let sorts = if random.chance(20) { 6 } else { 5 };
            let kind = [0x8100, 0x8100, 0x8100, 0x88a8, 0x88a8, 0x9100][random.below(sorts)];
            let vlan = if random.chance(30) { 0 } else { random.one(&VLANS) };
            let vlan = if random.chance(2) { 4095 } else { vlan };
            tags.push((kind, (random.next() as u16 & 0xf000) | vlan));
        }
        let mut made = Made {
            random,
            port,
            number,
            other,
            source,
            tags,
            body: Vec::new(),
            asked: Asked::default(),
            rigid: false,
            router: router.map(|(_, four, _)| four),
        };
        made.fill();
        let Made { tags, body, mut asked, rigid, random, .. } = made;
        let front = 12 + 4 * tags.len();
        let mut bytes = [&target[..], &source].concat();
        for (kind, control) in tags {
            bytes.extend([kind.to_be_bytes(), control.to_be_bytes()].concat());
        }
        if asked != Asked::default() {
            // Places in it were counted from the type on.
            asked.start = asked.start.wrapping_add(front as u16);
            asked.header = asked.header.wrapping_add(front as u16);
        }
        bytes.extend(body);
        if !rigid {
            match random.below(60) {
                0 => bytes.truncate(14.max(random.below(bytes.len()))),
                1 => bytes.truncate(random.below(15)),
                2 => bytes.resize(
                    random.one(&[60, 314, 1014, 1514, 1518, 1522, 1526, 9014, 9018, 9100]).max(bytes.len()),
                    0x77,
                ),
                3 => {
                    let at = 12 + random.below(80.min(bytes.len() - 12));
                    bytes[at] ^= 1 << random.below(8);
                }
                4..=20 => bytes.resize(bytes.len().max(60), 0),
                _ => {}
            }
        }
        Sent { asked, ..Sent::plain(port, bytes) }
    }
}

/// A frame that is being made: its body is what stands behind the tags, from the type on.
struct Made<'r> {
    random: &'r mut Random,
    port: usize,
    number: u8,
    other: usize,
    source: [u8; 6],
    tags: Vec<(u16, u16)>,
    body: Vec<u8>,
    asked: Asked,
    /// Its length is what it says, and stays so.
    rigid: bool,
    /// The address of the router that it is for.
    router: Option<[u8; 4]>,
}

/// Ports that rules name, and others.
const PORTS: [u16; 12] = [22, 53, 67, 68, 80, 443, 546, 547, 1024, 1067, 1547, 40000];

impl Made<'_> {
    fn fill(&mut self) {
        if self.random.chance(12) {
            return self.cuts();
        }
        let kind = match self.random.below(20) {
            0..=3 => self.arp(),
            4 => {
                self.body.extend([9; 70]);
                self.random.one(&[0x88b5, 0x88cc, 0x0842, 0x8847, 0x8864])
            }
            5..=10 => self.packet(false),
            _ => self.packet(true),
        };
        let len = (self.body.len() as u16 + 8).to_be_bytes();
        let [high, low] = kind.to_be_bytes();
        let front = match self.random.below(40) {
            // IEEE 802.2 §3 with the Subnetwork Access Protocol, of RFC 1042 and of 802.1H, and a length
            // that may lie.
            0..=3 => vec![len[0], len[1], 0xaa, 0xaa, 3, 0, 0, 0, high, low],
            4 => vec![len[0], len[1], 0xaa, 0xaa, 3, 0, 0, 0xf8, high, low],
            5 => vec![0, self.random.byte(), 0xaa, 0xaa, 3, 0, 0, 0, high, low],
            6 => vec![len[0], len[1], 0x42, 0x42, 3],
            7 => vec![
                len[0],
                len[1],
                0xaa,
                0xaa,
                self.random.one(&[0, 3, 0x13]),
                0,
                0,
                self.random.byte(),
                high,
                low,
            ],
            _ => vec![high, low],
        };
        if self.asked != Asked::default() {
            self.asked.start += front.len() as u16;
            self.asked.header += front.len() as u16;
        }
        self.body.splice(0..0, front);
    }

    fn arp(&mut self) -> u16 {
        let sender = self.address(false);
        let target = self.address(true);
        let mut target = target;
        let mut operation = self.random.one(&[1, 1, 2, 2, 3]);
        if let Some(four) = self.router.filter(|_| self.random.chance(70)) {
            target[12..].copy_from_slice(&four);
            operation = 1;
        }
        let source = self.source;
        self.body =
            [&[0, 1, 8, 0, 6, 4, 0, operation][..], &source, &sender[12..], &[0; 6], &target[12..]].concat();
        0x0806
    }

    /// An address of 16 bytes whose last four are one of IPv4: the sender's, another's, none, or one of
    /// another sort.
    fn address(&mut self, target: bool) -> [u8; 16] {
        let (port, number) =
            if target { (self.other, self.random.below(3) as u8) } else { (self.port, self.number) };
        let mut address = [0; 16];
        address[12..].copy_from_slice(&match self.random.below(12) {
            0 => [0; 4],
            1 => four(self.other, 0),
            2 => [192, 0, 2, 1],
            3 => four(self.port, 2),
            _ => four(port, number),
        });
        address
    }

    fn address6(&mut self, target: bool) -> [u8; 16] {
        let (port, number) =
            if target { (self.other, self.random.below(3) as u8) } else { (self.port, self.number) };
        match self.random.below(12) {
            0 => [0; 16],
            1 => six(self.other, 0),
            2 | 3 => [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1 + number],
            4 if target => [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
            _ => six(port, number),
        }
    }

    /// The transport's part of a packet, and its protocol.
    fn transport(&mut self, v6: bool) -> (u8, Vec<u8>) {
        let [from, to] = [0; 2].map(|_: i32| self.random.one(&PORTS).to_be_bytes());
        let ports = [from, to].concat();
        let rest: Vec<u8> = (0..self.random.below(40)).map(|n| n as u8).collect();
        match self.random.below(if v6 { 14 } else { 9 }) {
            0..=2 => {
                let flags = self.random.byte() & 0x3f;
                (6, [&ports[..], &[0, 0, 0, 9, 0, 0, 0, 7, 0x50, flags, 1, 0, 0, 0, 0, 0], &rest].concat())
            }
            3..=5 => {
                let len = (8 + rest.len() as u16).to_be_bytes();
                (17, [&ports[..], &len, &[0, 0], &rest].concat())
            }
            6 if !v6 => (1, [&[self.random.one(&[0, 3, 5, 8, 9]), 0, 0, 0, 0, 1, 0, 2][..], &rest].concat()),
            6 => {
                (58, [&[self.random.one(&[1, 128, 129, 130, 143]), 0, 0, 0, 0, 1, 0, 2][..], &rest].concat())
            }
            7 => {
                let protocol = self.random.one(&[33, 136, 132, 50, 59, 4, 41, 89, 112]);
                (protocol, [&ports[..], &[0x20, 0, 0, 0, 0, 0, 0, 0], &rest].concat())
            }
            8 => (47, [&[self.random.one(&[0, 0x80]), 0, 8, 0, 0, 0, 0, 0][..], &rest].concat()),
            _ => {
                let kind = self.random.one(&[133, 134, 135, 135, 136, 136, 137]);
                let target = self.address6(false);
                (58, [&[kind, 0, 0, 0, 0x60, 0, 0, 0][..], &target, &[1, 1], &self.source, &rest].concat())
            }
        }
    }

    fn packet(&mut self, v6: bool) -> u16 {
        let (protocol, mut transport) = self.transport(v6);
        let later = self.random.chance(4);
        let first = self.random.chance(4);
        let place: u16 = if later { 8 } else { 0 };
        let (mut front, start) = if v6 {
            let mut chain: Vec<(u8, Vec<u8>)> = Vec::new();
            if self.random.chance(45) {
                for _ in 0..1 + self.random.below(3) {
                    chain.push(self.extension());
                }
            }
            if later || first {
                let place = (place << 3 | u16::from(first)).to_be_bytes();
                let at = self.random.below(chain.len() + 1);
                chain.insert(at, (44, vec![0, 0, place[0], place[1], 0, 0, 0, 9]));
            }
            let mut head = vec![
                0x60,
                0,
                0,
                0,
                0,
                0,
                chain.first().map_or(protocol, |(kind, _)| *kind),
                self.random.one(&[255, 64]),
            ];
            head.extend(self.address6(false));
            head.extend(self.address6(true));
            for n in 0..chain.len() {
                chain[n].1[0] = chain.get(n + 1).map_or(protocol, |(kind, _)| *kind);
            }
            chain.iter().for_each(|(_, bytes)| head.extend(bytes));
            let len = (head.len() - 40 + transport.len()) as u16;
            head[4..6].copy_from_slice(&len.to_be_bytes());
            let start = head.len();
            (head, start)
        } else {
            let options = if self.random.chance(15) { 4 * (1 + self.random.below(10)) } else { 0 };
            let authentication =
                if self.random.chance(5) { vec![protocol, 1, 0, 0, 0, 0, 0, 9, 0, 0, 0, 1] } else { vec![] };
            let total = (20 + options + authentication.len() + transport.len()) as u16;
            let place = (place | if first { 0x2000 } else { 0 }).to_be_bytes();
            let its = if authentication.is_empty() { protocol } else { 51 };
            let mut head = vec![0x45 + (options / 4) as u8, 0, 0, 0, 0, 7, place[0], place[1], 64, its, 0, 0];
            head[2..4].copy_from_slice(&total.to_be_bytes());
            head.extend(&self.address(false)[12..]);
            head.extend(&self.address(true)[12..]);
            head.extend(vec![1; options]);
            let own = (!sum(&[&head])).to_be_bytes();
            head[10..12].copy_from_slice(&own);
            head.extend(&authentication);
            let start = head.len();
            (head, start)
        };
        let lies = self.random.chance(3);
        if lies {
            let at = if v6 { 4 } else { 2 };
            let len = self.random.one(&[0u16, 1, 19, 20, 24, 39, 40, 60, 1500, 0xffff]);
            front[at..at + 2].copy_from_slice(&len.to_be_bytes());
        }
        if self.random.chance(30) {
            self.sums(protocol, &mut transport, &front, start, v6);
        }
        self.body = [front, transport].concat();
        if v6 {
            0x86dd
        } else {
            0x0800
        }
    }

    /// An extension header whose first byte is yet to name the next one.
    fn extension(&mut self) -> (u8, Vec<u8>) {
        let kind = self.random.one(&[0, 0, 60, 60, 43, 43, 51, 60, 0, 60, 60, 135]);
        let long = match self.random.below(12) {
            0 => 30,
            1 => self.random.below(14),
            _ => self.random.below(3),
        };
        let (units, size) =
            if kind == 51 { (1 + long as u8, 12 + 4 * long) } else { (long as u8, 8 + 8 * long) };
        let mut bytes = vec![0; size];
        bytes[1] = units;
        if kind != 51 {
            // One option of an unknown type, that is to be skipped.
            (bytes[2], bytes[3]) = (self.random.one(&[1, 0x1e, 0x3e]), (size - 4) as u8);
        }
        (kind, bytes)
    }

    /// Leaves the checksum to others: that of its protocol, or any other place.
    fn sums(&mut self, protocol: u8, transport: &mut [u8], front: &[u8], start: usize, v6: bool) {
        let right = super::plain::sum_at(protocol, transport);
        let offset = if self.random.chance(40) { self.random.below(30) as u16 } else { right.unwrap_or(2) };
        let begin = if self.random.chance(15) { self.random.below(start + transport.len()) } else { start };
        if Some(offset) == right && begin == start {
            let (ends, len) = (if v6 { &front[8..40] } else { &front[12..20] }, transport.len() as u32);
            let seed = if protocol == 47 { 0 } else { sum(&[ends, &len.to_be_bytes(), &[0, protocol]]) };
            let at = usize::from(offset);
            if let Some(field) = transport.get_mut(at..at + 2) {
                field.copy_from_slice(&seed.to_be_bytes());
            }
        }
        self.asked = Asked { flags: 1, start: begin as u16, offset, ..Asked::default() };
        self.rigid = true;
    }

    /// A packet that others are to cut, as an honest sender makes it but for one field now and then.
    fn cuts(&mut self) {
        self.tags.truncate(2);
        self.tags.iter_mut().for_each(|(kind, _)| *kind = if *kind == 0x9100 { 0x8100 } else { *kind });
        let (v6, tcp) = (self.random.chance(50), self.random.chance(60));
        let [from, to] = [0; 2].map(|_: i32| self.random.one(&PORTS).to_be_bytes());
        let ports = [from, to].concat();
        let payload: Vec<u8> = (0..self.random.below(4000)).map(|n| (n % 251) as u8).collect();
        let (flags, protocol) = (
            self.random.byte() & 0x3f | if self.random.chance(10) { 0x80 } else { 0 },
            if tcp { 6 } else { 17 },
        );
        let mut header = match tcp {
            true => [&ports[..], &[0, 0, 0, 9, 0, 0, 0, 7, 0x50, flags, 1, 0, 0, 0, 0, 0]].concat(),
            false => [&ports[..], &(8 + payload.len() as u16).to_be_bytes(), &[0, 0]].concat(),
        };
        let len = header.len() + payload.len();
        let front = if v6 {
            let extension = self.random.chance(20).then(|| (60, vec![protocol, 0, 0x1e, 4, 0, 0, 0, 0]));
            let next = extension.as_ref().map_or(protocol, |(kind, _)| *kind);
            let extension = extension.map_or(Vec::new(), |(_, bytes)| bytes);
            let total = (len + extension.len()) as u16;
            let [high, low] = total.to_be_bytes();
            [
                &[0x60, 0, 0, 0, high, low, next, 64][..],
                &six(self.port, self.number),
                &six(self.other, 0),
                &extension,
            ]
            .concat()
        } else {
            let total = ((20 + len) as u16).to_be_bytes();
            let mut head = [
                &[0x45, 0, total[0], total[1], 0xff, 0xfe, 0x40, 0, 64, protocol, 0, 0][..],
                &four(self.port, self.number),
                &four(self.other, 0),
            ]
            .concat();
            let own = (!sum(&[&head])).to_be_bytes();
            head[10..12].copy_from_slice(&own);
            head
        };
        let ends = if v6 { &front[8..40] } else { &front[12..20] };
        let seed = sum(&[ends, &(len as u32).to_be_bytes(), &[0, protocol]]);
        let at = if tcp { 16 } else { 6 };
        header[at..at + 2].copy_from_slice(&seed.to_be_bytes());
        let gso = match (tcp, v6) {
            (true, false) => 1,
            (true, true) => 4,
            (false, _) => 5,
        };
        let cwr = tcp && flags & 0x80 != 0;
        let start = 2 + front.len();
        let mut asked = Asked {
            flags: 1,
            gso: if cwr { gso | 0x80 } else { gso },
            header: (start + header.len()) as u16,
            size: self.random.one(&[100, 536, 900, 1200, 1448]),
            start: start as u16,
            offset: at as u16,
        };
        match self.random.below(30) {
            0 => asked.flags = 0,
            1 => asked.size = 0,
            2 => asked.gso = self.random.one(&[2, 6, 7, 0x85]),
            3 => asked.offset = self.random.one(&[3u16, 7, 17, 1]),
            4 => asked.gso = if asked.gso & 0x7f == 1 { 4 } else { 1 },
            _ => {}
        }
        let kind: u16 = if v6 { 0x86dd } else { 0x0800 };
        self.body = [&kind.to_be_bytes()[..], &front, &header, &payload].concat();
        (self.asked, self.rigid) = (asked, true);
    }
}
