//! A list of 1,000 rules, as sidecore and Open vSwitch read it, and frames that only its last rules match.
//!
//! A rule's *shape* says which bits it looks at: prefixes of one of five lengths of the source's address,
//! alone or with those of the destination's, a protocol and ports. There are 20, which take turns. Rules do
//! not overlap, so that what is found does not depend on how a switch orders its search. The last of each
//! shape permits; all in front of them deny.

use std::net::Ipv4Addr;

use super::super::fib::tables::Random;
use super::super::lane::{udp, SIZE};
use super::MAC;

/// What a daemon calls it.
pub const NAME: &str = "thousand";
/// Rules, and their shapes.
const RULES: u32 = 1000;
const SHAPES: u32 = 20;

/// The list and its frames.
pub struct List {
    /// As `sidecore acl` reads it.
    pub rules: String,
    /// As `ovs-ofctl add-flows` reads it, with the way back.
    pub flows: String,
    pub frames: Vec<[u8; SIZE]>,
}

/// A rule. Of prefixes the address and the length.
struct Rule {
    permits: bool,
    src: (u32, u32),
    dst: Option<(u32, u32)>,
    proto: Option<&'static str>,
    /// Source's and destination's.
    ports: [Option<u16>; 2],
}

/// What a prefix of this length leaves open.
fn host(len: u32) -> u32 {
    u32::MAX.checked_shr(len).unwrap_or(0)
}

impl Rule {
    fn new(number: u32) -> Rule {
        let (shape, place) = (number % SHAPES, number / SHAPES);
        let (kind, permits) = (shape / 5, number >= RULES - SHAPES);
        let len = [13, 16, 20, 24, 28][shape as usize % 5];
        // The second byte is the shape's, with room for its shortest prefix.
        let first = if permits { 10 } else { 20 + place };
        let src = first << 24 | (12 * shape) << 16 | (number % 256) << 8 | (place % 16 * 16);
        let dst = 172 << 24 | 16 << 16 | shape << 8;
        let port = |base: u32| u16::try_from(base + number).ok();
        Rule {
            permits,
            src: (src & !host(len), len),
            dst: [None, Some(24), None, Some(12)][kind as usize].map(|len| (dst & !host(len), len)),
            proto: (kind > 0).then_some(if permits || place % 2 == 0 { "udp" } else { "tcp" }),
            ports: [port(1000).filter(|_| kind == 3), port(3000).filter(|_| kind >= 2)],
        }
    }

    /// As its keys are called here or there: addresses and ports.
    fn text(&self, keys: [&str; 4], between: &str) -> String {
        let network = |(address, len)| format!("{}/{len}", Ipv4Addr::from_bits(address));
        let [from, to] = self.ports.map(|port| port.map(|port| port.to_string()));
        let values = [Some(network(self.src)), self.dst.map(network), from, to];
        let word = |(key, value): (&str, Option<String>)| Some(format!("{key}={}", value?));
        keys.into_iter().zip(values).filter_map(word).collect::<Vec<_>>().join(between)
    }

    /// One of the frames that it matches.
    fn frame(&self, random: &mut Random) -> [u8; SIZE] {
        let prefixes = [self.src, self.dst.unwrap_or((172 << 24, 8))];
        let addresses = prefixes.map(|(it, len)| Ipv4Addr::from_bits(it | random.word() & host(len)));
        #[expect(clippy::cast_possible_truncation, reason = "any port")]
        let ports = self.ports.map(|port| port.unwrap_or_else(|| random.word() as u16));
        udp([MAC[1], MAC[0]], addresses, ports)
    }
}

impl List {
    /// The list, with frames of `flows` flows in random order.
    pub fn new(flows: usize) -> List {
        let rules: Vec<_> = (0..RULES).map(Rule::new).collect();
        let ours = |rule: &Rule| {
            let proto = rule.proto.map(|proto| format!("proto={proto} ")).unwrap_or_default();
            let word = if rule.permits { "permit" } else { "deny" };
            format!("{word} {proto}{}\n", rule.text(["src", "dst", "sport", "dport"], " "))
        };
        let theirs = |(rule, priority): (&Rule, u32)| {
            let text = rule.text(["nw_src", "nw_dst", "tp_src", "tp_dst"], ",");
            let action = if rule.permits { "output:b" } else { "drop" };
            let proto = rule.proto.unwrap_or("ip");
            format!("priority={priority},in_port=a,{proto},{text},actions={action}\n")
        };
        let mut random = Random::new(1);
        let numbers: Vec<u32> = (RULES - SHAPES..RULES).collect();
        let last =
            std::iter::repeat_with(|| random.one_of(&numbers).map(|it| Rule::new(it).frame(&mut random)));
        List {
            frames: last.flatten().take(flows).collect(),
            rules: rules.iter().map(ours).collect(),
            flows: rules.iter().zip((1..=RULES).rev()).map(theirs).collect::<String>()
                + "priority=0,in_port=a,actions=drop\nin_port=b,actions=output:a\n",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use sidecore_engine::policy::acl::{read_rules, Acl, Action, Headers};

    use super::*;

    #[test]
    fn frames_are_of_many_flows_that_only_the_last_rules_match() {
        let list = List::new(10_000);
        let rules = read_rules(list.rules.lines()).unwrap();
        assert_eq!(rules.len(), 1000);
        let acl = Acl::compile(rules, Action::Deny, [7; 8]);
        assert_eq!(acl.hidden(), []);
        let found: BTreeSet<_> = list.frames.iter().map(|frame| acl.find(&Headers::find(frame, 0))).collect();
        assert_eq!(found, (980..1000).collect());
        assert!(found.iter().all(|rule| acl.permits(*rule)));
        let flows: BTreeSet<_> = list.frames.iter().map(|frame| &frame[26..38]).collect();
        assert!(flows.len() > 9_990, "{}", flows.len());
    }

    #[test]
    fn both_texts_have_twenty_shapes() {
        let list = List::new(0);
        // Keys and lengths of prefixes; behind the action, or in front of it.
        let shape = |line: &str| -> String {
            let of = |word: &str| match word.split_once('=') {
                Some((key, value)) => format!("{key}/{}", value.split_once('/').map_or("", |it| it.1)),
                None => (if word == "ip" { "" } else { "proto" }).to_owned(),
            };
            line.split([' ', ',']).filter(|word| !["permit", "deny"].contains(word)).map(of).collect()
        };
        let shapes = |text: &str| text.lines().take(1000).map(shape).collect::<BTreeSet<_>>();
        assert_eq!((shapes(&list.rules).len(), shapes(&list.flows).len()), (20, 20));
        let first: Vec<_> = list.flows.lines().take(2).collect();
        let [a, b] = [
            "priority=1000,in_port=a,ip,nw_src=20.0.0.0/13,actions=drop",
            "priority=999,in_port=a,ip,nw_src=20.12.0.0/16,actions=drop",
        ];
        assert_eq!(first, [a, b]);
    }
}
