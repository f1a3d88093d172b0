//! Access lists and the guards of IP, as docs/switch.md tells them: three answers to each key of a rule,
//! since a frame may keep from a port what the rule asks for. A rule that denies matches then, and one that
//! permits does not.

use std::net::IpAddr;

use super::doubt::Doubts;
use super::headers::{be16, mapped, Packet, Seen, Transport, What, ARP, ICMP, ICMP6, IPV4, IPV6, TCP, UDP};

/// A network, of 16 bytes and with as many bits.
type Net = ([u8; 16], usize);

/// Reads networks as options and rules write them.
pub fn nets(text: &str) -> Vec<Net> {
    text.split('+')
        .map(|word| {
            let (address, len) = word.split_once('/').unwrap_or((word, ""));
            match address.parse::<IpAddr>().unwrap() {
                IpAddr::V4(four) => (mapped(four.octets()), 96 + len.parse().unwrap_or(32)),
                IpAddr::V6(six) => (six.octets(), len.parse().unwrap_or(128)),
            }
        })
        .collect()
}

/// Whether an address is in one of these.
pub fn within(address: &[u8; 16], nets: &[Net]) -> bool {
    let has =
        |(net, len): &Net| (0..*len).all(|bit| (net[bit / 8] ^ address[bit / 8]) >> (7 - bit % 8) & 1 == 0);
    nets.iter().any(has)
}

/// Reads numbers and ranges.
pub fn ranges(text: &str) -> Vec<(u16, u16)> {
    text.split(['+', ','])
        .map(|word| {
            let (from, to) = word.split_once('-').unwrap_or((word, word));
            (from.parse().unwrap(), to.parse().unwrap())
        })
        .collect()
}

pub fn in_ranges(number: u16, ranges: &[(u16, u16)]) -> bool {
    ranges.iter().any(|(from, to)| (*from..=*to).contains(&number))
}

/// Reads a station address.
pub fn mac(text: &str) -> [u8; 6] {
    let bytes: Vec<u8> = text.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

/// What a list is asked about.
pub struct Facts<'f> {
    /// From the Ethernet header on, without the tag of its VLAN.
    pub bytes: &'f [u8],
    pub vlan: Option<u16>,
    pub seen: &'f Seen,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Match {
    No,
    Unknown,
    Yes,
}

fn known(is: bool) -> Match {
    if is {
        Match::Yes
    } else {
        Match::No
    }
}

/// A list.
#[derive(Clone, Debug)]
pub struct List {
    pub name: String,
    pub rules: Vec<String>,
    pub permit: bool,
}

impl List {
    /// Whether it lets the frame pass.
    pub fn permits(&self, facts: &Facts<'_>, doubts: &Doubts) -> bool {
        for rule in &self.rules {
            let (verb, keys) = rule.split_once(' ').unwrap();
            let permit = verb == "permit";
            let mut all = Match::Yes;
            for key in keys.split(' ') {
                let (key, value) = key.split_once('=').unwrap();
                match answer(key, value, facts, permit, doubts) {
                    Match::No => all = Match::No,
                    Match::Unknown if all == Match::Yes => all = Match::Unknown,
                    _ => {}
                }
            }
            if all == Match::Yes || all == Match::Unknown && !permit {
                return permit;
            }
        }
        self.permit
    }
}

fn protocol(word: &str) -> u8 {
    match word {
        "tcp" => TCP,
        "udp" => UDP,
        "icmp" => ICMP,
        "icmpv6" => ICMP6,
        number => number.parse().unwrap(),
    }
}

fn answer(key: &str, value: &str, facts: &Facts<'_>, permit: bool, doubts: &Doubts) -> Match {
    let Seen { ethertype, what } = facts.seen;
    let packet = match what {
        What::Packet(packet) => Some(packet),
        _ => None,
    };
    let odd = matches!(what, What::OddArp) && !matches!(key, "type" | "src" | "dst");
    let lost = matches!(what, What::Lost) || odd && doubts.either("what odd ARP carries", 0);
    if !matches!(key, "src-mac" | "dst-mac" | "vlan" | "type" | "src" | "dst") {
        if packet.is_some_and(|packet| packet.extended && doubts.as_before("2", 0)) {
            return Match::No;
        }
        if packet.is_some_and(|packet| packet.v6 && doubts.as_before("3", 0)) {
            return Match::Unknown;
        }
    }
    match key {
        "src-mac" | "dst-mac" => {
            let at = if key == "src-mac" { 6 } else { 0 };
            let (address, mask) = value.split_once('/').unwrap_or((value, "ff:ff:ff:ff:ff:ff"));
            let (address, mask) = (mac(address), mac(mask));
            known((0..6).all(|n| (facts.bytes[at + n] ^ address[n]) & mask[n] == 0))
        }
        "vlan" => known(facts.vlan.is_some_and(|vlan| in_ranges(vlan, &ranges(value)))),
        "type" => {
            let is = |word: &str| match word {
                "ipv4" => Some(IPV4),
                "ipv6" => Some(IPV6),
                "arp" => Some(ARP),
                number => u16::from_str_radix(number.trim_start_matches("0x"), 16).ok(),
            };
            match ethertype {
                None if lost && !doubts.either("the type of what is lost", 0) => Match::Unknown,
                ethertype => {
                    known(value.split('+').any(|word| ethertype.is_some() && is(word) == *ethertype))
                }
            }
        }
        "src" | "dst" => match what {
            What::Packet(packet) => {
                known(within(if key == "src" { &packet.src } else { &packet.dst }, &nets(value)))
            }
            What::Arp { sender, target, .. } => {
                known(within(&mapped(if key == "src" { *sender } else { *target }), &nets(value)))
            }
            // A list may say that it does not know other sorts of ARP.
            What::OddArp if doubts.either("odd ARP in a list", 0) => Match::Unknown,
            What::OddArp | What::Other | What::Lost => Match::No,
        },
        "proto" => match packet.map(|packet| &packet.transport) {
            None => {
                if lost {
                    Match::Unknown
                } else {
                    Match::No
                }
            }
            Some(Transport::Lost) => Match::Unknown,
            Some(Transport::Later(_)) if later(packet, doubts) => Match::Unknown,
            Some(Transport::Later(found) | Transport::Found(found, _)) => {
                known(value.split('+').any(|word| protocol(word) == *found))
            }
        },
        _ => match packet.map(|packet| &packet.transport) {
            None => {
                if lost {
                    Match::Unknown
                } else {
                    Match::No
                }
            }
            Some(Transport::Lost) => Match::Unknown,
            Some(Transport::Later(_)) if later(packet, doubts) => Match::Unknown,
            // A rule with ports that permits lets it pass, one that denies does not look at it.
            Some(Transport::Later(_)) => known(
                permit
                    && (key != "flags" && key != "icmp"
                        || doubts.either("a later fragment's type or flags", 0)),
            ),
            Some(Transport::Found(found, header)) => transport(key, value, *found, header, doubts),
        },
    }
}

/// Whether what a later fragment of IPv6 carries is not believed.
fn later(packet: Option<&Packet>, doubts: &Doubts) -> bool {
    packet.is_some_and(|packet| packet.v6) && doubts.either("a later fragment of IPv6", 0)
}

fn transport(key: &str, value: &str, found: u8, header: &[u8], doubts: &Doubts) -> Match {
    match key {
        "sport" | "dport" => {
            if !matches!(found, TCP | UDP) {
                return Match::No;
            }
            let both = [be16(header, 0), be16(header, 2)];
            if both.contains(&None) && doubts.either("the port of a header that is cut", 0) {
                return Match::Unknown;
            }
            let port = both[usize::from(key == "dport")];
            port.map_or(Match::Unknown, |port| known(in_ranges(port, &ranges(value))))
        }
        "icmp" => {
            if !matches!(found, ICMP | ICMP6) {
                return Match::No;
            }
            let [Some(kind), Some(code)] = [header.first(), header.get(1)] else { return Match::Unknown };
            let is = |word: &str| {
                let (wanted, its) = word.split_once('/').map_or((word, None), |(a, b)| (a, Some(b)));
                wanted.parse() == Ok(*kind) && its.is_none_or(|its| its.parse() == Ok(*code))
            };
            known(value.split('+').any(is))
        }
        "flags" => {
            if found != TCP {
                return Match::No;
            }
            let Some(flags) = header.get(13) else { return Match::Unknown };
            let bit = |name: &str| {
                1 << ["fin", "syn", "rst", "psh", "ack", "urg"].iter().position(|it| *it == name).unwrap()
            };
            known(value.split('+').all(|word| match word.strip_prefix('!') {
                Some(name) => flags & bit(name) == 0,
                None => flags & bit(word) != 0,
            }))
        }
        other => panic!("the model knows no key {other}"),
    }
}

/// What the guards of IP at a port ask for.
#[derive(Clone, Debug, Default)]
pub struct Guards {
    pub allowed: Option<Vec<Net>>,
    pub dhcp: bool,
    pub ra: bool,
}

fn link_local(address: &[u8]) -> bool {
    address[0] == 0xfe && address[1] & 0xc0 == 0x80
}

fn unspecified(address: &[u8; 16]) -> bool {
    *address == [0; 16] || *address == mapped([0; 4])
}

impl Guards {
    /// Why each of them drops the frame, of those that do.
    pub fn reasons(&self, seen: &Seen, doubts: &Doubts) -> Vec<&'static str> {
        let mut reasons = Vec::new();
        let chained = matches!(&seen.what, What::Packet(packet) if packet.extended);
        if chained && doubts.as_before("2", 1) {
            return reasons;
        }
        if self.allowed.as_ref().is_some_and(|nets| claims(nets, seen, doubts)) {
            reasons.push("ip_guard");
        }
        let lost = |of: usize| match &seen.what {
            What::Lost => true,
            What::OddArp => doubts.either("odd ARP at other guards", 0),
            What::Packet(packet) => loses(packet, of, doubts),
            _ => false,
        };
        let udp = |seen: &Seen| match &seen.what {
            What::Packet(Packet { transport: Transport::Found(UDP, header), .. }) => {
                Some((be16(header, 0), be16(header, 2)))
            }
            _ => None,
        };
        let answers = udp(seen).is_some_and(|(from, to)| match (from, to) {
            (_, Some(68 | 546)) if !doubts.as_before("4", 0) => true,
            (Some(67 | 547), _) => true,
            (_, None) => doubts.either("a cut datagram is an answer", 0),
            _ => false,
        });
        if self.dhcp && (answers || lost(1)) {
            reasons.push("dhcp_guard");
        }
        let routes = match &seen.what {
            What::Packet(Packet { transport: Transport::Found(ICMP6, header), v6: true, .. }) => {
                match header.first() {
                    Some(134 | 137) => true,
                    None => doubts.either("a cut message is an advertisement", 0),
                    _ => false,
                }
            }
            _ => false,
        };
        if self.ra && (routes || lost(2)) {
            reasons.push("ra_guard");
        }
        reasons
    }
}

/// Whether a guarded port loses the packet since its transport is not found.
fn loses(packet: &Packet, of: usize, doubts: &Doubts) -> bool {
    match &packet.transport {
        Transport::Lost => packet.v6 || doubts.either("a transport over IPv4 that is not found", of),
        Transport::Later(_) => packet.v6 && doubts.either("a later fragment at a guard", of),
        Transport::Found(..) => false,
    }
}

/// Whether the frame claims an address that is not among `nets`.
fn claims(nets: &[Net], seen: &Seen, doubts: &Doubts) -> bool {
    let foreign = |address: &[u8; 16]| !unspecified(address) && !within(address, nets);
    match &seen.what {
        What::Lost => true,
        What::Other => false,
        // Who sends another sort of ARP claims what cannot be judged.
        What::OddArp => !doubts.either("odd ARP at a guard", 0),
        What::Arp { sender, target, operation } => {
            // RFC 5227 §2.1.1: who asks without an address of its own is about to take the target's.
            let probe = *sender == [0; 4] && *target != [0; 4];
            let probes = match operation {
                _ if doubts.as_before("8", 0) => false,
                1 => probe,
                _ => probe && doubts.either("an answer without a sender", 0),
            };
            foreign(&mapped(*sender)) || probes && foreign(&mapped(*target))
        }
        What::Packet(packet) if !packet.v6 => {
            foreign(&packet.src)
                || matches!(packet.transport, Transport::Lost)
                    && doubts.either("a transport over IPv4 that is not found", 3)
        }
        What::Packet(packet) => {
            if foreign(&packet.src) && !link_local(&packet.src) {
                return true;
            }
            match &packet.transport {
                Transport::Found(ICMP6, message) => {
                    let target = message.get(8..24).map(|target| <[u8; 16]>::try_from(target).unwrap());
                    let bad = |target: [u8; 16]| foreign(&target) && !link_local(&target);
                    match (message.first(), target) {
                        (Some(136), Some(target)) => bad(target),
                        // RFC 4862 §5.4.3: it is about to take the target's.
                        (Some(135), Some(target)) if unspecified(&packet.src) => {
                            bad(target) && !doubts.as_before("8", 0)
                        }
                        (Some(135 | 136) | None, None) => doubts.either("a cut message of discovery", 0),
                        _ => false,
                    }
                }
                _ => loses(packet, 0, doubts),
            }
        }
    }
}
