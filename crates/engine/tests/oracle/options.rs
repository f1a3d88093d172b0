//! Random configurations: which options there are, what they may be, and which can stand together. That is
//! asked of the check that the daemon makes, and listed nowhere.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::card::Kind;
use super::config::{router_four, router_station, Config, Joint, Options, PortConfig, Setup};
use super::frames::{four, six, station, VLANS};
use super::random::Random;
use super::rules::List;
use sidecore_engine::policy::acl::{read_rules, Action};
use sidecore_engine::state::kinds::KINDS;
use sidecore_engine::state::{check, text, AclSpec, PortSpec, RouterSpec, Spec, SwitchSpec};

/// Whether an option is drawn.
pub enum Drawn {
    /// At ports of switches.
    Here,
    /// It says what a port is, or where it is joined: that is drawn as the shape of a configuration.
    Shape,
    /// It says nothing of what becomes of a frame: why.
    Not(&'static str),
}
use Drawn::{Here, Not, Shape};

const SOCKET: Drawn = Not("how its peer reaches it");
const TIME: Drawn = Not("when frames are taken, and never which");
const DISK: Drawn = Not("disks carry no frames");
const TUNNEL: Drawn = Not("outer headers, which end with the tunnel");
const ROOM: Drawn = Not("how much memory a ring has");

/// All options of a port.
pub const PORT: &[(&str, Drawn)] = &[
    ("name", Shape),
    ("kind", Shape),
    ("where", Shape),
    ("switch", Shape),
    ("wire", Shape),
    ("router", Not("what a router does with a packet is compared with the kernel")),
    ("pipe", Not("slots of a pipe pass no graph")),
    ("group", Not("which member has a flow is drawn by a secret key")),
    ("member", Not("as group")),
    ("interface", Not("as group")),
    ("address", Not("as router")),
    ("router-mac", Not("as router")),
    ("rpf", Not("as router")),
    ("mtu", Here),
    ("link", Here),
    ("tenant", TIME),
    ("class", TIME),
    ("weight", TIME),
    ("budget", TIME),
    ("reclaim", TIME),
    ("rate", TIME),
    ("bit-rate", TIME),
    ("allow-ip", Here),
    ("dhcp-guard", Here),
    ("ra-guard", Here),
    ("acl-in", Here),
    ("acl-out", Here),
    ("out-rate", Here),
    ("out-bit-rate", Here),
    ("out-burst", Here),
    ("mirror", Here),
    ("mirror-direction", Here),
    ("mirror-acl", Here),
    ("mirror-snap", Here),
    ("vlan", Here),
    ("trunk", Here),
    ("native", Here),
    ("vlan-proto", Here),
    ("isolated", Here),
    ("bpdu", Here),
    ("mac-limit", Here),
    ("mac-guard", Here),
    ("allow-mac", Here),
    ("mac-move", Here),
    ("fdb", Here),
    ("storm-broadcast", Here),
    ("storm-multicast", Here),
    ("storm-unicast", Here),
    ("role", SOCKET),
    ("mode", SOCKET),
    ("owner", SOCKET),
    ("queues", ROOM),
    ("features-off", Not("drawn as what a receiver takes over")),
    ("mac", Here),
    ("journal", SOCKET),
    ("file", DISK),
    ("readonly", DISK),
    ("cache", DISK),
    ("serial", DISK),
    ("block-size", DISK),
    ("slots", ROOM),
    ("buf-size", ROOM),
    ("extra-bufs", ROOM),
    ("pipes", ROOM),
    ("memory", ROOM),
    ("header", Not("how a ring's program writes what it asks for")),
    ("moderation", TIME),
    ("queue", ROOM),
    ("receive-share", TIME),
    ("csb", SOCKET),
    ("memory-file", SOCKET),
    ("prefault", SOCKET),
    ("call-socket", SOCKET),
    ("netns", SOCKET),
    ("control-of", Not("as router")),
    ("vni", Shape),
    ("peers", Shape),
    ("ttl", TUNNEL),
    ("dscp", TUNNEL),
    ("fd", SOCKET),
];

/// All options of a switch.
pub const SWITCH: &[(&str, Drawn)] = &[
    ("name", Shape),
    ("ageing", Here),
    ("table-size", Here),
    ("control-frames", Here),
    ("mac-move", Here),
    ("control", Not("what it tells is told by hand")),
    ("vni", Shape),
];

/// Those that are drawn.
pub fn drawn(table: &[(&'static str, Drawn)]) -> Vec<&'static str> {
    table.iter().filter(|(_, drawn)| matches!(drawn, Here)).map(|(name, _)| *name).collect()
}

/// Ports of a configuration: those of the switch, of a wire, and the last one for copies.
pub const ON_SWITCH: usize = 6;
pub const WIRE: [usize; 2] = [6, 7];
pub const ASIDE: usize = 8;
pub const ROUTER: usize = 9;
pub const GATEWAY: usize = 10;
/// The other end of the wire on which the interface of a group is, that, and its members' ports.
pub const BEFORE: usize = 11;
pub const INTERFACE: usize = 12;
pub const MEMBERS: [usize; 2] = [13, 14];
/// Each host's end of the tunnels between them, and a guest on each host but the first.
pub const TUNNELS: [usize; 3] = [15, 16, 17];
pub const FAR: [usize; 2] = [18, 19];
/// A tunnel of whose stations a control plane tells, the number of its network, and the hosts of its ends.
pub const TOLD: usize = 20;
pub const TOLD_VNI: u32 = 8;
pub const TOLD_HOSTS: [usize; 2] = [3, 4];
/// The interface of a group that is a router's port.
pub const SHARED: usize = 21;
pub const PORTS: usize = 22;
/// Ports behind which cards are.
pub const CARDS: [(usize, Kind); 3] = [(4, Kind::E1000e), (5, Kind::Rtl8169), (WIRE[1], Kind::E1000)];

/// The network of the tunnels.
pub const VNI: u32 = 7;

/// Where the end of a tunnel on `host` is: of this process alone.
pub fn endpoint(host: usize) -> IpAddr {
    let process = (std::process::id() & 0x1f_ffff) << 3;
    Ipv4Addr::from(0x7f00_0000 | process | (host as u32 + 1)).into()
}

/// The ends of tunnels to which one on `host` leads.
pub fn peers(host: usize) -> Vec<IpAddr> {
    if host == 0 { 1..TUNNELS.len() } else { 0..1 }.map(endpoint).collect()
}

fn text_of(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// What option `key` of port `n` may be.
fn values(key: &str, n: usize) -> Vec<String> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let [own, first, last] = [0, 1, 2].map(|number| text_of(station(n, number)));
    let v4 = Ipv4Addr::from(four(n, 0));
    let v6 = Ipv6Addr::from(six(n, 0));
    let next = if n < ON_SWITCH { (n + 1) % ON_SWITCH } else { ASIDE };
    match key {
        "mtu" => words(&["1500", "1000", "9000", "300"]),
        "link" => words(&["down", "up", "up"]),
        "allow-ip" => vec![
            format!("{v4}/32+{v6}/128"),
            format!("10.0.{n}.0/24"),
            format!("2001:db8:0:{n}::/64"),
            format!("{v4}+{v6}/64"),
        ],
        "dhcp-guard" | "ra-guard" | "isolated" => words(&["on", "on", "off"]),
        "acl-in" | "acl-out" | "mirror-acl" => words(&["l0", "l1", "l2", "l3"]),
        "out-rate" => words(&["1", "1M"]),
        "out-bit-rate" => words(&["1", "10k", "1G"]),
        "out-burst" => words(&["1", "1000"]),
        "mirror" => vec![format!("p{ASIDE}"), format!("p{ASIDE}"), format!("p{next}")],
        "mirror-direction" => words(&["in", "out", "both"]),
        "mirror-snap" => words(&["64", "100", "1000", "65535"]),
        "vlan" => words(&["10", "20"]),
        "trunk" => words(&["10+20", "10-30", "20", "10"]),
        "native" => words(&["10", "20", "30"]),
        "vlan-proto" => words(&["802.1q", "802.1ad"]),
        "bpdu" => words(&["drop", "drop", "pass"]),
        "mac-limit" => words(&["1", "2", "3", "100"]),
        "mac-guard" => words(&["strict", "strict", "claim", "off"]),
        "allow-mac" => vec![first.clone(), "vrrp".to_owned(), format!("{first}+{own}+vrrp")],
        "fdb" => vec![last],
        "storm-broadcast" | "storm-multicast" | "storm-unicast" => words(&["1", "30", "1000000000"]),
        "mac-move" => words(&["claim", "learn"]),
        "mac" => vec![own],
        "ageing" => words(&["300", "86400"]),
        "table-size" => words(&["64", "8192"]),
        "control-frames" => words(&["pass", "drop"]),
        other => panic!("what may {other} be?"),
    }
}

/// An option at a place: a port's number, or that of the switch.
pub type At = (usize, &'static str);
pub const OF_SWITCH: usize = PORTS;

/// A pair of options: at one port, at two, or one at the switch.
pub type Pair = (bool, &'static str, &'static str);

/// A configuration that is being drawn.
#[derive(Clone)]
pub struct Wish {
    pub shape: Vec<Joint>,
    pub given: BTreeMap<At, String>,
    pub lists: Vec<List>,
    pub accepts: Vec<u32>,
    pub cards: Vec<Option<Setup>>,
    pub told: Vec<([u8; 6], bool)>,
}

impl Wish {
    /// Ports of one switch and of a wire, for which nothing is configured.
    pub fn plain() -> Wish {
        let mut shape = vec![Joint::Nothing; PORTS];
        shape[..ON_SWITCH].fill(Joint::Switch(0));
        (shape[WIRE[0]], shape[WIRE[1]]) = (Joint::Wire(WIRE[1]), Joint::Wire(WIRE[0]));
        shape[ASIDE] = Joint::Aside;
        let mut cards = vec![None; PORTS];
        CARDS.iter().for_each(|(n, _)| cards[*n] = Some(Setup { long: true, strips: false, filters: false }));
        Wish {
            shape,
            given: BTreeMap::new(),
            lists: Vec::new(),
            accepts: vec![0; PORTS],
            cards,
            told: Vec::new(),
        }
    }

    /// A router is there, with a port of its own and one on the switch.
    pub fn with_router(&mut self) {
        (self.shape[ROUTER], self.shape[GATEWAY]) = (Joint::Router, Joint::Gateway);
    }

    fn new(random: &mut Random, far: bool) -> Wish {
        let mut wish = Wish::plain();
        wish.lists = (0..4).map(|n| list(random, n)).collect();
        // What receivers may take over: all that drivers negotiate together.
        wish.accepts = (0..PORTS).map(|_| random.one(&[0u32, 0, 1, 0x7, 0x0f, 0x3f, 0x31])).collect();
        for (n, _) in CARDS {
            // They take over nothing.
            wish.accepts[n] = 0;
            let mut on = |percent| random.chance(percent);
            wish.cards[n] = Some(Setup { long: on(70), strips: on(50), filters: on(15) });
        }
        let Wish { shape, given, lists, accepts, told, .. } = &mut wish;
        if far && random.chance(10) {
            watched(random, given, &mut lists[0]);
        }
        if far && random.chance(15) {
            absent(random, given);
        }
        if far && random.chance(10) {
            listed(random, given);
        }
        match random.below(100) {
            // A router and a group now and then: they take frames from the comparison.
            0..30 => {
                if far && random.chance(50) {
                    let port = random.one(&[ROUTER, ROUTER, GATEWAY]);
                    given.insert((port, "acl-out"), format!("l{}", random.below(4)));
                }
                if random.chance(50) {
                    MEMBERS.iter().for_each(|n| shape[*n] = Joint::Member);
                    let interface = random.one(&[INTERFACE, SHARED]);
                    match interface {
                        INTERFACE => {
                            (shape[BEFORE], shape[INTERFACE]) =
                                (Joint::Wire(INTERFACE), Joint::Interface(BEFORE));
                        }
                        _ => shape[SHARED] = Joint::Shared,
                    }
                    if far && random.chance(60) {
                        given.insert((interface, "acl-out"), format!("l{}", random.below(4)));
                    }
                }
                wish.with_router();
            }
            30..50 if far => {
                for (host, n) in TUNNELS.into_iter().enumerate() {
                    (shape[n], accepts[n]) = (Joint::Tunnel(host), 0);
                }
                FAR.iter().zip(1..).for_each(|(n, host)| shape[*n] = Joint::Switch(host));
                hosts(random, given);
            }
            50..65 if far => {
                // Another port is there for a crowd of stations.
                (shape[TOLD], shape[ROUTER]) = (Joint::Told, Joint::Switch(0));
                accepts[TOLD] = 0;
                let all = [station(TOLD, 0), station(TOLD, 1), [2, 9, 9, 9, 9, 0], [2, 9, 9, 9, 9, 1]];
                told.extend(all.map(|station| (station, random.chance(30))));
            }
            _ => {}
        }
        wish
    }

    /// The model's view of it.
    pub fn config(&self) -> Config {
        let of = |n: usize| -> Options {
            let its = self.given.iter().filter(|((at, _), _)| *at == n);
            its.map(|((_, key), value)| (*key, value.clone())).collect()
        };
        let port = |(n, joint): (usize, &Joint)| PortConfig {
            name: format!("p{n}"),
            joint: *joint,
            options: of(n),
            accepts: self.accepts[n],
            card: self.cards[n],
        };
        Config {
            switch: of(OF_SWITCH),
            ports: self.shape.iter().enumerate().map(port).collect(),
            lists: self.lists.clone(),
            told: self.told.clone(),
        }
    }

    /// What the operator would write.
    pub fn spec(&self, name: &str) -> Spec {
        spec(&self.config(), name)
    }

    /// What the daemon would say of it.
    fn complaints(&self) -> Vec<(String, String)> {
        // Lists were read when they were drawn, and take longer than all the rest.
        let mut spec = self.spec("lan");
        spec.acls.iter_mut().for_each(|acl| acl.rules.truncate(1));
        check(&spec, KINDS).into_iter().map(|found| (found.name, found.key)).collect()
    }

    /// Gives and takes options until nothing is wrong, without those of `stay`. Whether that was possible.
    fn mend(&mut self, stay: &[At]) -> bool {
        for _ in 0..6 {
            let count = self.complaints().len();
            if count == 0 {
                return true;
            }
            let better = self.steps(stay).into_iter().find_map(|step| {
                let mut other = self.clone();
                match step.1 {
                    Some(value) => other.given.insert(step.0, value),
                    None => other.given.remove(&step.0),
                };
                (other.complaints().len() < count).then_some(other)
            });
            let Some(better) = better else { return false };
            *self = better;
        }
        false
    }

    /// Changes by one option, at the ports that options of `stay` are of.
    fn steps(&self, stay: &[At]) -> Vec<(At, Option<String>)> {
        let mut steps: Vec<(At, Option<String>)> =
            self.given.keys().filter(|at| !stay.contains(at)).map(|at| (*at, None)).collect();
        let ports: BTreeSet<usize> = stay.iter().map(|(n, _)| *n).filter(|n| *n != OF_SWITCH).collect();
        for n in ports {
            for key in drawn(PORT) {
                steps.extend(values(key, n).into_iter().map(|value| ((n, key), Some(value))));
            }
        }
        steps
    }

    /// The options that are given, by place.
    fn at(&self, n: usize) -> Vec<&'static str> {
        self.given.keys().filter(|(at, _)| *at == n).map(|(_, key)| *key).collect()
    }

    /// The pairs that stand in it at ports of the switch.
    pub fn pairs(&self) -> BTreeSet<Pair> {
        let mut pairs = BTreeSet::new();
        for n in (0..ON_SWITCH).chain([OF_SWITCH]) {
            for m in (0..ON_SWITCH).chain([OF_SWITCH]) {
                for (a, b) in self.at(n).into_iter().flat_map(|a| self.at(m).into_iter().map(move |b| (a, b)))
                {
                    if n != m || a < b {
                        pairs.insert(if n == m { (true, a, b) } else { (false, a.min(b), a.max(b)) });
                    }
                }
            }
        }
        pairs
    }
}

/// What guests of several hosts have in common: VLANs, or that they are to reach no others.
fn hosts(random: &mut Random, given: &mut BTreeMap<At, String>) {
    if random.chance(60) {
        TUNNELS.iter().for_each(|n| _ = given.insert((*n, "trunk"), "10+20".to_owned()));
        for n in (0..ON_SWITCH).chain(FAR) {
            given.insert((n, "vlan"), random.one(&["10", "20"]).to_owned());
        }
    }
    if random.chance(30) {
        for n in (0..ON_SWITCH).chain(FAR).filter(|_| random.chance(50)) {
            given.insert((n, "isolated"), "on".to_owned());
        }
    }
}

/// Ports in VLANs, copies of some of which somebody wants.
fn watched(random: &mut Random, given: &mut BTreeMap<At, String>, list: &mut List) {
    list.rules.insert(0, format!("{} vlan=10", if list.permit { "deny" } else { "permit" }));
    for n in 0..ON_SWITCH {
        let own = random.one(&["vlan", "native"]);
        given.insert((n, own), random.one(&["10", "20"]).to_owned());
        if own == "native" {
            given.insert((n, "trunk"), "10+20".to_owned());
        }
        given.insert((n, "mirror"), format!("p{ASIDE}"));
        given.insert((n, "mirror-acl"), list.name.clone());
    }
}

/// Ports with lists for both directions.
fn listed(random: &mut Random, given: &mut BTreeMap<At, String>) {
    for n in 0..ON_SWITCH {
        for key in ["acl-in", "acl-out"] {
            given.insert((n, key), format!("l{}", random.below(4)));
        }
    }
}

/// A port that is down, with a station that always is behind it, beside ports that may have few addresses.
fn absent(random: &mut Random, given: &mut BTreeMap<At, String>) {
    let down = random.below(ON_SWITCH);
    given.extend([((down, "link"), "down".to_owned()), ((down, "fdb"), values("fdb", down).remove(0))]);
    for n in (0..ON_SWITCH).filter(|n| *n != down) {
        given.insert((n, "mac-limit"), random.one(&["1", "2", "3"]).to_owned());
    }
}

/// What the operator would write for `config`, with the switch of this name.
pub fn spec(config: &Config, name: &str) -> Spec {
    let of_switch = config.switch.iter().map(|(key, value)| format!(",{key}={value}")).collect::<String>();
    let vni = if config.has(TOLD) { format!(",vni={TOLD_VNI}") } else { String::new() };
    let switch: SwitchSpec = text::named(&format!("{name}{of_switch}{vni}")).unwrap();
    let router = |n: usize| {
        let (address, station) = (Ipv4Addr::from(router_four(n)), text_of(router_station(n)));
        format!("router=r,address={address}/24,router-mac={station}")
    };
    let port = |(n, port): (usize, &PortConfig)| -> PortSpec {
        let joint = match port.joint {
            Joint::Switch(0) | Joint::Tunnel(0) | Joint::Told => format!("switch={name}"),
            Joint::Switch(host) | Joint::Tunnel(host) => format!("switch={name}-{host}"),
            Joint::Nothing => unreachable!("it is not asked for"),
            Joint::Wire(to) => format!("wire=w{}", n.min(to)),
            Joint::Aside => "switch=aside".to_owned(),
            Joint::Router | Joint::Gateway => router(n),
            Joint::Shared => format!("{},interface=0,mac={}", router(n), text_of(station(n, 0))),
            Joint::Interface(to) => format!("wire=w{},interface=0", n.min(to)),
            // A router knows members by the group's address.
            Joint::Member if config.has(SHARED) => {
                format!("group=g,member=m{n},interface=0,address={}/24", Ipv4Addr::from(four(SHARED, 0)))
            }
            Joint::Member => format!("group=g,member=m{n},interface=0"),
        };
        let kind = match port.joint {
            Joint::Gateway => format!("switch:{name}"),
            Joint::Interface(_) | Joint::Shared => "group:g".to_owned(),
            Joint::Tunnel(host) => {
                let peers: Vec<String> = peers(host).iter().map(ToString::to_string).collect();
                format!("vxlan:{},vni={VNI},peers={}", endpoint(host), peers.join("+"))
            }
            Joint::Told => format!("vxlan:{},vni={TOLD_VNI}", endpoint(TOLD_HOSTS[0])),
            _ => format!("vhost-user:/oracle/{n}"),
        };
        let options = port.options.iter().map(|(key, value)| format!(",{key}={value}")).collect::<String>();
        text::port(&format!("{}={kind},{joint}{options}", port.name), KINDS).unwrap()
    };
    let far = |host| SwitchSpec::new(&format!("{name}-{host}"));
    Spec {
        switches: vec![switch, SwitchSpec::new("aside"), far(1), far(2)],
        acls: config
            .lists
            .iter()
            .map(|list| AclSpec {
                name: list.name.clone(),
                rules: list.rules.clone(),
                file: None,
                default: Some(if list.permit { Action::Permit } else { Action::Deny }),
            })
            .collect(),
        ports: config.ports.iter().enumerate().filter(|(n, _)| config.has(*n)).map(port).collect(),
        routers: vec![RouterSpec::new("r")],
        groups: vec![text::named("g").unwrap()],
        ..Spec::default()
    }
}

/// A configuration in which `pair` stands, if there can be one.
fn with(random: &mut Random, (same, a, b): Pair) -> Option<(Wish, Vec<At>)> {
    let of_switch = |key| !drawn(PORT).contains(&key);
    let n = random.below(ON_SWITCH);
    let place = |key, n| if of_switch(key) { (OF_SWITCH, key) } else { (n, key) };
    let stay = [place(a, n), place(b, if same { n } else { (n + 1) % ON_SWITCH })];
    let options = |at: &At| values(at.1, at.0.min(ON_SWITCH - 1));
    for first in options(&stay[0]) {
        for second in options(&stay[1]) {
            let mut wish = Wish::new(random, false);
            wish.given.insert(stay[0], first.clone());
            wish.given.insert(stay[1], second.clone());
            let its = stay.to_vec();
            if wish.mend(&its) {
                return Some((wish, its));
            }
        }
    }
    None
}

/// All pairs of options at one port, at two, and at the switch and a port.
pub fn pairs() -> BTreeSet<Pair> {
    let (ports, switch) = (drawn(PORT), drawn(SWITCH));
    let mut all = BTreeSet::new();
    for a in &ports {
        for b in &ports {
            all.extend((a < b).then_some((true, *a, *b)));
            all.insert((false, *a.min(b), *a.max(b)));
        }
        all.extend(switch.iter().map(|b| (false, *a.min(b), *a.max(b))));
    }
    all
}

/// A configuration in which `pair` stands, if one is given, with other options at random. None if the pair
/// cannot stand.
pub fn draw(random: &mut Random, pair: Option<Pair>) -> Option<Wish> {
    let (mut wish, stay) = match pair {
        Some(pair) => with(random, pair)?,
        None => (Wish::new(random, true), Vec::new()),
    };
    let many = [0, 3, 8, 20, 40][random.below(5)];
    for _ in 0..many {
        let (at, value) = match random.below(20) {
            0 => {
                let key = random.one(&drawn(SWITCH));
                ((OF_SWITCH, key), values(key, 0))
            }
            _ => {
                let n =
                    if random.chance(70) { random.below(ON_SWITCH) } else { random.below(wish.shape.len()) };
                let key = random.one(&drawn(PORT));
                let pays = n > ASIDE && matches!(key, "link" | "mac") || n >= TUNNELS[0] && key == "mtu"
                    // A control plane tells of one VLAN.
                    || n == TOLD && matches!(key, "trunk" | "native");
                if wish.shape[n] == Joint::Nothing || n == ASIDE || pays {
                    continue;
                }
                ((n, key), values(key, n))
            }
        };
        if matches!(at.1, "link" | "out-rate" | "out-bit-rate") && random.chance(60) || stay.contains(&at) {
            continue;
        }
        wish.given.insert(at, value[random.below(value.len())].clone());
    }
    // What does not go together with the rest goes, but not the pair.
    loop {
        let complaints = wish.complaints();
        if complaints.is_empty() {
            return Some(wish);
        }
        let before = wish.given.clone();
        for (name, key) in complaints {
            let at =
                |at: &At| (format!("p{}", at.0) == name || at.0 == OF_SWITCH && name == "lan") && at.1 == key;
            wish.given.retain(|it, _| !at(it) || stay.contains(it));
            // Beside isolated ports a tunnel has to be.
            if let ("isolated", false) = (&*key, before.keys().any(at)) {
                wish.given.insert((name[1..].parse().unwrap(), "isolated"), "on".to_owned());
            }
        }
        if wish.given == before {
            // What the pair needs went with the rest.
            wish.given.retain(|it, _| stay.contains(it));
            assert!(wish.mend(&stay), "{:?} stood, and cannot now", stay);
        }
    }
}

/// A list of rules about what frames have.
fn list(random: &mut Random, n: usize) -> List {
    // Those that contradict themselves are drawn again: a rule of ICMP for networks of IPv6, say.
    let mut sound =
        || std::iter::repeat_with(|| rule(random)).find(|rule| read_rules([rule.as_str()]).is_ok()).unwrap();
    let rules = (0..4).map(|_| sound()).collect();
    List { name: format!("l{n}"), rules, permit: random.chance(65) }
}

fn rule(random: &mut Random) -> String {
    let mut keys = Vec::new();
    let (port, number) = (random.below(ON_SWITCH), random.below(3) as u8);
    let mac = text_of(station(port, number));
    if random.chance(12) {
        let key = random.one(&["src-mac", "dst-mac"]);
        keys.push(if random.chance(50) {
            format!("{key}={mac}")
        } else {
            format!("{key}=02:00:00:00:0{port}:00/ff:ff:ff:ff:ff:00")
        });
    }
    if random.chance(10) {
        keys.push(format!("vlan={}", random.one(&VLANS)));
    }
    let end = random.one(&["src", "dst"]);
    match random.below(10) {
        0 => keys.push(format!("{end}=10.0.{port}.0/24")),
        1 => keys.push(format!("{end}=2001:db8:0:{port}::/64")),
        2 => keys.push(format!("{end}=10.0.{port}.{}+2001:db8:0:{port}::{}", number + 1, number + 1)),
        3 => keys.push(format!("type={}", random.one(&["ipv4", "ipv6", "arp", "0x88b5", "ipv4+ipv6"]))),
        _ => {}
    }
    let flags = ["ack", "!syn", "syn", "syn+!ack", "fin"];
    match random.below(10) {
        0 => keys.push("proto=tcp".to_owned()),
        1 => keys.extend(["proto=tcp".to_owned(), format!("flags={}", random.one(&flags))]),
        2 | 3 => keys.extend([
            format!("proto={}", random.one(&["tcp", "udp"])),
            format!("dport={}", random.one(&["22", "68", "53+80", "0-100", "546"])),
        ]),
        4 => keys
            .extend(["proto=udp".to_owned(), format!("sport={}", random.one(&["67", "547", "1024-1100"]))]),
        5 => keys.extend([
            "proto=icmpv6".to_owned(),
            format!("icmp={}", random.one(&["134", "135", "136/0", "143", "128"])),
        ]),
        6 => keys.extend(["proto=icmp".to_owned(), format!("icmp={}", random.one(&["8", "8/0", "5"]))]),
        7 => keys.push(format!("proto={}", random.one(&["47", "50", "59", "udp", "icmpv6", "132", "4"]))),
        _ => {}
    }
    if keys.is_empty() {
        keys.push("type=arp".to_owned());
    }
    format!("{} {}", random.one(&["permit", "deny", "deny"]), keys.join(" "))
}
