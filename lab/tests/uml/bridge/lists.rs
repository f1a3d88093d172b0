//! Random access lists, as our switch takes them (docs/switch.md, "Say which traffic may pass") and as
//! nftables does.
//!
//! One rule of ours is several of nftables' where ours sees more in it: a VLAN, whose frames have a tag at
//! one port and none at another; an address of IP or of ARP; and later fragments, which a rule with ports
//! lets pass if it permits. A list of *in* stands in the hook `prerouting`, before the bridge learns where a
//! sender is, and in `input`, which frames for reserved addresses meet instead; one of *out* stands in
//! `forward`, where frames have the form in which they leave. The kernel lacks NFT_BRIDGE_META, which would
//! know the bridge and VLAN of a port; names of ports and bytes of tags do instead.

use super::config::{Config, VLANS};
use super::frames::MARK_TYPE;
use super::random::Random;
use std::fmt;

/// Prefixes that rules name, near the addresses of frames.
const FOUR: [(&str, u32); 4] =
    [("192.0.2.0", 24), ("192.0.2.1", 32), ("198.51.100.0", 25), ("198.51.100.128", 25)];
const SIX: [&str; 3] = ["2001:db8:1::/48", "2001:db8::/32", "2001:db8:2::1"];
const TYPES: [&str; 4] = ["ipv4", "ipv6", "arp", "0x88b5"];
const PORTS: [&str; 5] = ["22", "53", "50-80", "1024-65535", "0-1023"];
/// Flags of TCP, as both take them.
const FLAGS: [(&str, &str); 4] = [
    ("ack", "tcp flags & ack == ack"),
    ("syn+!ack", "tcp flags & (syn | ack) == syn"),
    ("!rst", "tcp flags & rst == 0x0"),
    ("fin+psh", "tcp flags & (fin | psh) == (fin | psh)"),
];

/// A prefix of an address of a packet.
#[derive(Clone, Copy, Debug)]
enum Prefix {
    Four(&'static str, u32),
    Six(&'static str),
}

/// What a rule asks of the headers behind those of IP.
#[derive(Clone, Debug, Default)]
struct Transport {
    /// `None`: nothing is asked.
    protocol: Option<Protocol>,
    sport: Option<&'static str>,
    dport: Option<&'static str>,
    message: Option<(u8, Option<u8>)>,
    flags: Option<(&'static str, &'static str)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Icmp = 1,
    Tcp = 6,
    Udp = 17,
    Icmpv6 = 58,
}

#[derive(Clone, Debug)]
struct Rule {
    permits: bool,
    vlan: Option<u16>,
    kind: Option<&'static str>,
    src: Option<Prefix>,
    dst: Option<Prefix>,
    transport: Transport,
}

/// An access list.
#[derive(Clone, Debug)]
pub struct List {
    rules: Vec<Rule>,
    permits: bool,
}

impl List {
    /// One that refuses SSH and nothing else.
    pub fn without_ssh() -> List {
        let transport =
            Transport { protocol: Some(Protocol::Tcp), dport: Some("22"), ..Transport::default() };
        let rule = Rule { permits: false, vlan: None, kind: None, src: None, dst: None, transport };
        List { rules: vec![rule], permits: true }
    }

    pub fn random(random: &mut Random) -> List {
        let rules = (0..=random.below(5)).map(|_| Rule::random(random)).collect();
        List { rules, permits: random.percent(60) }
    }

    /// As the daemon's file has it.
    pub fn ours(&self, name: &str) -> String {
        let marks = format!("permit type={MARK_TYPE:#x}");
        let rules: Vec<String> =
            std::iter::once(marks).chain(self.rules.iter().map(Rule::to_string)).collect();
        let default = if self.permits { "permit" } else { "deny" };
        format!("[[acl]]\nname = {name:?}\nrules = {rules:?}\ndefault = {default:?}\n")
    }

    /// Chains of nftables for the port with this configuration: one of this name, and one for later
    /// fragments, for whose ports Linux 6.1 takes a part of the payload.
    pub fn chains(&self, name: &str, config: &Config, out: bool) -> String {
        let verdict = |permits: bool| if permits { "accept" } else { "drop" };
        let lines = |later: bool| {
            let mut lines = Vec::new();
            for rule in &self.rules {
                let alternatives = rule.alternatives(config, out, later).into_iter();
                lines.extend(alternatives.map(|matches| format!("{matches} {}; ", verdict(rule.permits))));
            }
            lines.concat() + verdict(self.permits)
        };
        let later = ["ip @nh,51,13 != 0", "ip6 frag frag-off != 0"];
        let later = later.map(|fragment| format!("meta protocol {fragment} goto {name}later;")).concat();
        let first = format!("meta protocol {MARK_TYPE:#x} accept; {later}");
        format!("chain {name}later {{ {}; }}; chain {name} {{ {first} {}; }};", lines(true), lines(false))
    }
}

impl Rule {
    fn random(random: &mut Random) -> Rule {
        let vlan = random.percent(20).then(|| random.one(&VLANS));
        let family = random.one(&[0, 4, 4, 6, 6]);
        let mut prefix = || match family {
            4 if random.percent(40) => {
                let (address, bits) = random.one(&FOUR);
                Some(Prefix::Four(address, bits))
            }
            6 if random.percent(40) => Some(Prefix::Six(random.one(&SIX))),
            _ => None,
        };
        let (src, dst) = (prefix(), prefix());
        let mut rule =
            Rule { permits: random.percent(50), vlan, kind: None, src, dst, transport: Transport::default() };
        if random.percent(65) {
            rule.transport = Transport::random(random, family);
        } else if rule.matches_all() || random.percent(30) {
            rule.kind = Some(match (family, src.or(dst)) {
                (4, Some(_)) => random.one(&["ipv4", "arp"]),
                (6, Some(_)) => "ipv6",
                _ => random.one(&TYPES),
            });
        }
        rule
    }

    fn matches_all(&self) -> bool {
        self.vlan.is_none() && self.src.is_none() && self.dst.is_none()
    }

    /// What nftables matches instead: one of these. `later`: in the chain for later fragments.
    fn alternatives(&self, config: &Config, out: bool, later: bool) -> Vec<String> {
        let mut all = vec![String::new()];
        let mut and = |some: Vec<String>| {
            let both = |one: &String| some.iter().map(|more| format!("{one} {more}")).collect::<Vec<_>>();
            all = all.iter().flat_map(both).collect();
        };
        if let Some(vlan) = self.vlan {
            and(in_vlan(vlan, config, out));
        }
        and(match (self.kind, self.src.or(self.dst)) {
            (None, None) => vec![String::new()],
            (None, Some(Prefix::Four(..))) if self.transport.protocol.is_none() => {
                vec![self.of_ip("ip"), self.of_arp()]
            }
            (None, Some(Prefix::Four(..))) | (Some("ipv4"), _) => vec![self.of_ip("ip")],
            (None, Some(Prefix::Six(_))) | (Some("ipv6"), _) => vec![self.of_ip("ip6")],
            (Some("arp"), _) => vec![self.of_arp()],
            (Some(other), _) => vec![format!("meta protocol {other}")],
        });
        // Without ports a rule that permits goes by the protocol, and one that denies says nothing.
        and(match later && self.transport.asks_for_more() {
            true if self.permits => vec![self.transport.of_protocol()],
            true => Vec::new(),
            false => vec![self.transport.matches()],
        });
        all
    }

    fn of_ip(&self, family: &str) -> String {
        let mut text = format!("meta protocol {family}");
        for (side, prefix) in [("saddr", self.src), ("daddr", self.dst)] {
            match prefix {
                Some(Prefix::Four(address, bits)) => text += &format!(" ip {side} {address}/{bits}"),
                Some(Prefix::Six(prefix)) => text += &format!(" ip6 {side} {prefix}"),
                None => {}
            }
        }
        text
    }

    /// ARP for IPv4 and Ethernet, if addresses are asked for.
    fn of_arp(&self) -> String {
        let mut text = "meta protocol arp".to_owned();
        for (side, prefix) in [("saddr", self.src), ("daddr", self.dst)] {
            if let Some(Prefix::Four(address, bits)) = prefix {
                text += &format!(" @nh,0,48 0x000108000604 arp {side} ip {address}/{bits}");
            }
        }
        text
    }
}

/// What nftables matches of frames in `vlan` at a port: they have its tag, or none where they need none.
fn in_vlan(vlan: u16, config: &Config, out: bool) -> Vec<String> {
    let [a, b] = config.protocol.number();
    let tag = format!("@ll,96,16 0x{a:02x}{b:02x}");
    let tagged = format!("{tag} @ll,116,12 {vlan}");
    match (config.own() == Some(vlan), out) {
        (false, _) => vec![tagged],
        (true, true) => vec![tag.replace(",16 ", ",16 != ")],
        (true, false) => vec![tagged, tag.replace(",16 ", ",16 != "), format!("{tag} @ll,116,12 0")],
    }
}

impl Transport {
    fn random(random: &mut Random, family: u8) -> Transport {
        let message = match family {
            6 => Protocol::Icmpv6,
            _ => Protocol::Icmp,
        };
        let protocol = random.one(&[Protocol::Tcp, Protocol::Tcp, Protocol::Udp, message]);
        let mut it = Transport { protocol: Some(protocol), ..Transport::default() };
        match protocol {
            Protocol::Tcp | Protocol::Udp => {
                it.sport = random.percent(25).then(|| random.one(&PORTS));
                it.dport = random.percent(50).then(|| random.one(&PORTS));
                let flags = protocol == Protocol::Tcp && random.percent(30);
                it.flags = flags.then(|| random.one(&FLAGS));
            }
            Protocol::Icmp | Protocol::Icmpv6 => {
                let code = random.percent(40).then(|| random.one(&[0, 1]));
                it.message = random.percent(60).then(|| (random.one(&[0, 3, 8, 134, 135]), code));
            }
        }
        it
    }

    /// Whether it asks for what stands in the transport's header.
    fn asks_for_more(&self) -> bool {
        self.sport.is_some() || self.dport.is_some() || self.message.is_some() || self.flags.is_some()
    }

    /// What nftables matches of the protocol.
    fn of_protocol(&self) -> String {
        self.protocol.map_or_else(String::new, |protocol| format!("meta l4proto {}", protocol as u8))
    }

    /// What it matches of the protocol and its header.
    fn matches(&self) -> String {
        let mut text = self.of_protocol();
        for (side, ports) in [(0, self.sport), (16, self.dport)] {
            text += &ports.map_or_else(String::new, |ports| format!(" @th,{side},16 {ports}"));
        }
        if let Some((kind, code)) = self.message {
            text += &format!(" @th,0,8 {kind}");
            text += &code.map_or_else(String::new, |code| format!(" @th,8,8 {code}"));
        }
        text + &self.flags.map_or_else(String::new, |(_, flags)| format!(" {flags}"))
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Prefix::Four(address, bits) => write!(f, "{address}/{bits}"),
            Prefix::Six(prefix) => f.write_str(prefix),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.permits { "permit" } else { "deny" })?;
        let Transport { protocol, sport, dport, message, flags } = &self.transport;
        let protocol = protocol.map(|it| format!("{it:?}").to_lowercase());
        let message = message.map(|(kind, code)| match code {
            Some(code) => format!("{kind}/{code}"),
            None => kind.to_string(),
        });
        let text = |it: Option<&str>| it.map(str::to_owned);
        let all = [
            ("vlan", self.vlan.map(|vlan| vlan.to_string())),
            ("type", text(self.kind)),
            ("src", self.src.map(|prefix| prefix.to_string())),
            ("dst", self.dst.map(|prefix| prefix.to_string())),
            ("proto", protocol),
            ("sport", text(*sport)),
            ("dport", text(*dport)),
            ("icmp", message),
            ("flags", flags.map(|(ours, _)| ours.to_owned())),
        ];
        let mut given = all.iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
        given.try_for_each(|(key, value)| write!(f, " {key}={value}"))
    }
}
