//! Lists of random rules beside a scan of them, on frames of all sorts.

use proptest::prelude::*;

use super::*;
use crate::packet::wrapped_tests::wrapped;
use crate::packet::{Batch, Fields, L4};
use crate::util::slice::upto;

const KEY: [u64; 8] = [
    0x9e37_79b9_7f4a_7c15,
    0xbf58_476d_1ce4_e5b9,
    0x94d0_49bb_1331_11eb,
    0xd6e8_feb8_6659_fd93,
    0xa076_1d64_78bd_642f,
    0xe703_7ed1_a0b4_28db,
    0x8ebc_6af0_9c88_c6e3,
    0x5899_65cc_7537_4cc3,
];

/// A rule, as its author thinks of it.
#[derive(Clone, Debug)]
struct Plain {
    permit: bool,
    vlan: Option<(u16, u16)>,
    /// Last byte of a network 10.0.0.0 or 2001:db8::, and its length there.
    src: Option<(bool, u8, u32)>,
    dst: Option<(bool, u8, u32)>,
    proto: Option<u8>,
    sport: Option<(u16, u16)>,
    dport: Vec<(u16, u16)>,
    flags: Option<(bool, bool)>,
}

fn network((six, last, len): (bool, u8, u32)) -> String {
    match six {
        true => format!("2001:db8::{last:x}/{}", 96 + len),
        false => format!("10.0.0.{last}/{len}"),
    }
}

impl Plain {
    fn text(&self) -> String {
        let mut text = if self.permit { "permit".to_owned() } else { "deny".to_owned() };
        let mut say = |key: &str, value: Option<String>| {
            text.extend(value.map(|value| format!(" {key}={value}")));
        };
        let range = |(first, last): (u16, u16)| format!("{first}-{last}");
        say("vlan", self.vlan.map(range));
        say("src", self.src.map(network));
        say("dst", self.dst.map(network));
        say("proto", self.proto.map(|proto| proto.to_string()));
        let sport = self.sport.filter(|_| self.has_ports());
        say("sport", sport.map(range));
        let dports: Vec<_> = self.dport.iter().map(|it| range(*it)).collect();
        say("dport", (self.has_ports() && !dports.is_empty()).then(|| dports.join("+")));
        let word = |on: bool, name: &str| format!("{}{name}", if on { "" } else { "!" });
        let flags = self.flags.filter(|_| self.proto == Some(6));
        say("flags", flags.map(|(syn, ack)| format!("{}+{}", word(syn, "syn"), word(ack, "ack"))));
        text
    }

    fn has_ports(&self) -> bool {
        matches!(self.proto, Some(6 | 17))
    }

    /// Whether it decides on a frame.
    fn is_for(&self, it: &Fields, vlan: u16) -> bool {
        let within = |range: (u16, u16), number: u16| (range.0..=range.1).contains(&number);
        let near = |net: Option<(bool, u8, u32)>, address: u128| {
            net.is_none_or(|(six, last, len)| {
                let (own, base) = match six {
                    true => (it.ethertype == 0x86dd, 0x2001_0db8u128 << 96),
                    false => (address >> 32 == 0xffff, 0xffff_0a00_0000),
                };
                let behind = 32 - len;
                own && address >> behind == (base | u128::from(last)) >> behind
            })
        };
        let outer = self.vlan.is_none_or(|range| within(range, vlan))
            && near(self.src, it.src)
            && near(self.dst, it.dst)
            && self.proto.is_none_or(|proto| match it.l4 {
                L4::Unknown => !self.permit,
                _ => proto == it.protocol,
            });
        let ports = self.has_ports() && (self.sport.is_some() || !self.dport.is_empty());
        let flags = self.flags.filter(|_| self.proto == Some(6));
        if !outer || !ports && flags.is_none() {
            return outer;
        }
        match it.l4 {
            L4::None => false,
            L4::Later => self.permit,
            L4::Hidden | L4::Unknown => !self.permit,
            L4::Ports(from, to, bits) => {
                (!ports
                    || self.sport.is_none_or(|range| within(range, from))
                        && (self.dport.is_empty() || self.dport.iter().any(|range| within(*range, to))))
                    && flags.is_none_or(|(syn, ack)| {
                        bits.map_or(!self.permit, |bits| (bits & 2 != 0, bits & 16 != 0) == (syn, ack))
                    })
            }
        }
    }
}

fn ports() -> impl Strategy<Value = (u16, u16)> {
    let end = prop_oneof![0u16..6, any::<u16>()];
    (end.clone(), end).prop_map(|(a, b)| (a.min(b), a.max(b)))
}

fn net() -> impl Strategy<Value = Option<(bool, u8, u32)>> {
    prop::option::of((any::<bool>(), 0u8..4, 28u32..=32))
}

fn rule() -> impl Strategy<Value = Plain> {
    let vlan = prop::option::weighted(0.2, (0u16..12, 0u16..12).prop_map(|(a, b)| (a.min(b), a.max(b))));
    let proto = prop::option::of(prop::sample::select(vec![1u8, 6, 17, 58]));
    let flags = prop::option::weighted(0.2, any::<(bool, bool)>());
    let l4 = (proto, prop::option::of(ports()), prop::collection::vec(ports(), 0..3), flags);
    (any::<bool>(), vlan, net(), net(), l4).prop_map(
        |(permit, vlan, src, dst, (proto, sport, dport, flags))| {
            // Addresses of two families are an error.
            let dst = dst.map(|(six, last, len)| (src.map_or(six, |(six, ..)| six), last, len));
            Plain { permit, vlan, src, dst, proto, sport, dport, flags }
        },
    )
}

/// The bytes of a frame: tag, family, ends, protocol, fragment, ports, flags, where it is cut.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let ends = (0u8..6, 0u8..6, prop::sample::select(vec![1u8, 6, 17, 58, 47]));
    let port = prop_oneof![0u16..8, any::<u16>()];
    let more = (0u8..6, prop::sample::select(vec![0u16, 0x2000, 1, 7]), 14usize..90);
    (0u8..3, ends, (port.clone(), port, any::<u8>()), more).prop_map(
        |(tag, (src, dst, proto), (from, to, flags), (family, fragment, cut))| {
            let mut frame = vec![2; 12];
            if tag > 0 {
                frame.extend_from_slice(&[0x81, 0, 0, tag * 5]);
            }
            let mut l4 = [&from.to_be_bytes()[..], &to.to_be_bytes(), &[0; 9], &[flags], &[0; 6]].concat();
            if matches!(proto, 1 | 58) {
                l4[0] = 8;
            }
            let [a, b] = fragment.to_be_bytes();
            match family {
                0 | 1 => {
                    frame.extend_from_slice(&[8, 0, 0x45 + family, 0, 0, 0, 0, 0, a, b, 64, proto, 0, 0]);
                    frame.extend_from_slice(&[10, 0, 0, src, 10, 0, 0, dst]);
                    frame.extend_from_slice(&[0; 4][..usize::from(family) * 4]);
                }
                2 => {
                    let extended = fragment != 0;
                    let next = if extended { 44 } else { proto };
                    frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, next, 64]);
                    for last in [src, dst] {
                        frame.extend_from_slice(&[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
                    }
                    if extended {
                        let [high, low] = ((fragment & 0x1fff) << 3).to_be_bytes();
                        frame.extend_from_slice(&[proto, 0, high, low, 0, 0, 0, 0]);
                    }
                }
                // Headers that cannot be followed; LLC that hides something.
                3 => {
                    frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 60, 64]);
                    frame.extend_from_slice(
                        &[&[0x20, 1, 0xd, 0xb8][..], &[0; 11], &[src], &[0; 16], &[proto, 255]].concat(),
                    );
                }
                4 => frame.extend_from_slice(&[0, 8, 0xaa, 0xaa, 3, 0, 0, 0]),
                _ => frame.extend_from_slice(&[0x88, 0xb5]),
            }
            frame.extend(l4);
            frame.truncate(cut.max(frame.len().min(14)));
            frame
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    /// The list says what a scan of its rules says, with and without what it remembers.
    #[test]
    fn a_list_decides_as_a_scan_of_its_rules(
        rules in prop::collection::vec(rule(), 0..20),
        frames in prop::collection::vec((bytes(), prop::sample::select(vec![0u16, 5, 10])), 1..60),
        permit in any::<bool>(),
    ) {
        let texts: Vec<String> = rules.iter().map(Plain::text).collect();
        let read = read_rules(texts.iter().map(String::as_str)).unwrap();
        prop_assert_eq!(read.iter().map(ToString::to_string).collect::<Vec<_>>(), texts);
        let default = if permit { Action::Permit } else { Action::Deny };
        let acl = Acl::compile(read, default, KEY);
        let mut cache = AclCache::default();
        cache.open();
        let headers: Vec<_> = frames.iter().map(|(bytes, vlan)| Headers::find(bytes, *vlan)).collect();
        let mut cached = vec![usize::MAX; frames.len()];
        for _ in 0..2 {
            let mut places = cached.iter_mut();
            cache.decide(&acl, headers.iter().copied(), |rule| *places.next().unwrap() = rule);
        }
        for (((bytes, vlan), headers), cached) in frames.iter().zip(&headers).zip(cached) {
            let fields = Fields::find(bytes).unwrap();
            let vlan = if *vlan == 0 { fields.tag } else { *vlan };
            let scanned = rules.iter().position(|rule| rule.is_for(&fields, vlan)).unwrap_or(rules.len());
            prop_assert_eq!(acl.find(headers), scanned, "{:?}", fields);
            prop_assert_eq!(cached, scanned);
            prop_assert_eq!(acl.permits(scanned), rules.get(scanned).map_or(permit, |rule| rule.permit));
        }
        // What is said to be covered never decides.
        let hidden: Vec<usize> = acl.hidden().iter().map(|(rule, _)| *rule).collect();
        for headers in &headers {
            prop_assert!(!hidden.contains(&acl.find(headers)));
        }
    }

    /// What is found without questions is what all are asked.
    #[test]
    fn plain_frames_have_the_headers_of_any(
        protocol in prop::sample::select(vec![6u8, 17, 1]),
        (version, more) in (prop::sample::select(vec![0x45u8, 0x46, 0x60]), prop::sample::select(vec![0u16, 0x2000, 0x4000, 3])),
        mut bytes in prop::collection::vec(any::<u8>(), 48..70),
        vlan in prop::sample::select(vec![0u16, 5]),
    ) {
        bytes[12..15].copy_from_slice(&[8, 0, version]);
        bytes[20..22].copy_from_slice(&more.to_be_bytes());
        bytes[23] = protocol;
        let found = Headers::plain(bytes.first_chunk().unwrap(), vlan);
        let is_plain = version == 0x45 && matches!(more, 0 | 0x4000) && protocol != 1;
        prop_assert_eq!(found, is_plain.then(|| Headers::find(&bytes, vlan)));
        let mut batch = Batch::new();
        prop_assert!(batch.push_short(upto(&bytes, 64)));
        prop_assert_eq!(Headers::of(&batch, batch.frame(0), vlan), Headers::find(upto(&bytes, 64), vlan));
    }

    /// Nothing gets past a rule that denies by standing behind other headers, and none of them opens a rule
    /// that permits.
    #[test]
    fn no_header_in_front_of_a_packet_changes_what_rules_say(it in wrapped(), port in 20u16..24, flags in 0u8..64) {
        let rules = ["proto=tcp dport=22", "proto=tcp", "proto=tcp flags=ack+!syn", "proto=icmpv6 icmp=134"];
        let transport = |bytes: &[u8]| [bytes, &[0; 20]].concat();
        let tcp = transport(&[&[0, 80][..], &port.to_be_bytes(), &[0; 8], &[0x50, flags]].concat());
        let ra = transport(&[134, 0]);
        let src = if it.v6 { 1 << 120 } else { 0xffff_0a00_0001 };
        for (rule, protocol, rest, is) in [
            (0, 6, &tcp, port == 22), (1, 6, &tcp, true), (2, 6, &tcp, flags & 0x12 == 0x10), (3, 58, &ra, true),
            (0, 17, &tcp, false), (1, 17, &tcp, false), (2, 58, &ra, false), (3, 6, &tcp, false),
        ] {
            let (bytes, at) = it.frame(src, protocol, rest);
            let decide = |word: &str, default| {
                let rule = format!("{word} {}", rules[rule]).parse().unwrap();
                let acl = Acl::compile(vec![rule], default, KEY);
                acl.permits(acl.find(&Headers::find(&bytes, 0)))
            };
            let (denied, permitted) = (!decide("deny", Action::Permit), decide("permit", Action::Deny));
            match at + 14 <= crate::packet::MAX_HEADER {
                true => prop_assert_eq!((denied, permitted), (is, is)),
                // What is not seen: a rule that denies has it, one that permits does not.
                false => prop_assert!((denied || !is) && (!permitted || is)),
            }
        }
    }

    /// A range of ports is its ports.
    #[test]
    fn a_range_is_all_its_ports(first in any::<u16>(), last in any::<u16>()) {
        let (first, last) = (first.min(last), first.max(last));
        let rule: Rule = format!("permit proto=udp dport={first}-{last}").parse().unwrap();
        prop_assert!(rule.entries.len() <= 31);
        let acl = Acl::compile(vec![rule], Action::Deny, KEY);
        for port in 0..=u16::MAX {
            let mut frame = vec![0; 42];
            (frame[12], frame[14], frame[23]) = (8, 0x45, 17);
            frame[36..38].copy_from_slice(&port.to_be_bytes());
            prop_assert_eq!(acl.find(&Headers::find(&frame, 0)) == 0, (first..=last).contains(&port));
        }
    }
}

#[test]
fn rules_are_read_and_refused() {
    let read = |text: &str| text.parse::<Rule>().map(|rule| rule.to_string()).map_err(|bad| bad.why);
    assert_eq!(read("  permit   src=10.0.0.0/8 "), Ok("permit src=10.0.0.0/8".to_owned()));
    for (text, why) in [
        ("allow", "it begins with neither permit nor deny"),
        ("deny port=3", "key `port`: no such key; allowed: src-mac, dst-mac, vlan, type, src, dst, proto, sport, dport, icmp, flags"),
        ("deny src", "\"src\" is not KEY=VALUE"),
        ("deny src=1.2.3.4 src=1.2.3.5", "key `src` is there twice"),
        ("deny src=10.0.0.0/33", "key `src`: \"10.0.0.0/33\" is not allowed; allowed: addresses and prefixes, such as 10.0.0.0/8"),
        ("deny src=@web", "there is no set \"web\""),
        ("deny dport=80", "sport and dport are of proto=tcp or proto=udp; allowed: a rule for each"),
        ("deny proto=udp flags=syn", "flags are of proto=tcp"),
        ("deny proto=tcp icmp=8", "icmp is of proto=icmp or proto=icmpv6"),
        ("deny proto=tcp dport=9-8", "key `dport`: \"9-8\" is not allowed; allowed: ports and ranges, such as 80+8000-8099"),
        ("deny src=10.0.0.1 dst=::1", "its addresses are of IPv4 and of IPv6; allowed: a rule for each"),
        ("deny type=arp src=::1", "no frame is like that: it contradicts itself"),
        ("deny proto=tcp flags=syn+!syn", "no frame is like that: it contradicts itself"),
        ("deny proto=tcp sport=1-65534 dport=1-65534 vlan=1-4094 src=1.1.1.1+2.2.2.2", "it becomes more than 32768 entries; allowed: several rules, or wider ranges"),
    ] {
        assert_eq!(read(text), Err(why.to_owned()), "{text}");
    }
    let file = "# of the web\nset web = 80+443\nset own=10.0.0.0/24 # us\n\npermit proto=tcp src=@own dport=@web\ndeny";
    let rules = read_rules(file.lines()).unwrap();
    assert_eq!(rules.iter().map(|rule| rule.entries.len()).collect::<Vec<_>>(), [3, 1]);
    let bad = read_rules(["set x"]).unwrap_err();
    assert_eq!(bad.to_string(), "\"set x\": it has no values; allowed: set NAME = VALUE+VALUE");
}

#[test]
fn a_rule_that_never_decides_is_found() {
    let rules = [
        "deny src=10.0.0.0/8 proto=tcp",
        "permit src=10.1.0.0/16 proto=tcp dport=80",
        "permit src=10.1.0.0/16",
        "deny src=10.1.2.0/24+10.1.3.0/24",
        "permit src=11.0.0.0/8",
    ];
    let rules = read_rules(rules).unwrap();
    assert_eq!(Acl::compile(rules, Action::Deny, KEY).hidden(), [(1, 0), (3, 2)]);
}

/// Each list decides for itself, and counts for itself.
#[test]
fn lists_do_not_remember_for_each_other() {
    let list = |action| Acl::compile(Vec::new(), action, KEY);
    let (open, closed) = (list(Action::Permit), list(Action::Deny));
    let mut cache = AclCache::default();
    cache.open();
    let headers = Headers::find(&[2; 60], 0);
    for acl in [&open, &closed, &open] {
        cache.decide(acl, [headers; 3].into_iter(), |rule| acl.count(1, rule));
    }
    assert_eq!((open.counts(), closed.counts()), (vec![6], vec![3]));
    assert!(open.permits(0) && !closed.permits(0));
}

/// What a look costs, for people: `cargo test --release -p sidecore-engine --lib acl_costs -- --ignored
/// --nocapture`.
#[test]
#[ignore = "a measurement"]
fn acl_costs() {
    let lens = |n: u32| (8 + n % 5 * 4, 12 + n / 5 % 4 * 5);
    let texts = (0..1000u32).map(|n| {
        let (src, dst) = lens(n % 20);
        format!("deny src=11.{}.{}.0/{src} dst=12.0.{}.0/{dst} proto=tcp dport={}", n % 250, n / 4, n % 7, n)
    });
    let texts: Vec<String> = texts.chain(["permit src=10.0.0.0/8".to_owned()]).collect();
    let acl = Acl::compile(read_rules(texts.iter().map(String::as_str)).unwrap(), Action::Deny, KEY);
    let mut state = 1u64;
    let frames: Vec<_> = (0..100_000u64)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let mut frame = vec![0; 60];
            (frame[12], frame[14], frame[23], frame[26]) = (8, 0x45, 6, 10);
            frame[27..38].copy_from_slice(&[&state.to_be_bytes()[..], &[1, 2, 3]].concat());
            frame
        })
        .collect();
    let mut cache = AclCache::default();
    cache.open();
    for name in ["headers", "list", "cache, cold", "cache", "cache", "cache"] {
        let start = std::time::Instant::now();
        let mut sum = 0;
        for batch in frames.chunks(256) {
            let headers = batch.iter().map(|frame| Headers::find(frame, 0));
            match name {
                "headers" => headers.for_each(|headers| sum += usize::from(headers.0[3] == 1)),
                "list" => headers.for_each(|headers| sum += acl.find(&headers)),
                _ => cache.decide(&acl, headers, |rule| sum += rule),
            }
        }
        println!("{name}: {} ns a frame ({sum})", start.elapsed().as_nanos() / frames.len() as u128);
    }
}
