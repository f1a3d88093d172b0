//! Our switch beside a Linux bridge with VLANs: the same random frames come in by the same port of both, and each port of both gives out
//! the same bytes in the same order. The bridge is in a guest, whose five cards are each on a wire with a program's port; so the test
//! sees bytes on both sides. The frames of the test end with marks, which have come out by each port before the next begin.
//!
//! `VLAN_SEED` repeats a run.

use crate::cards::LIMIT;
use crate::router::virtio;
use sidecore_lab::{Daemon, Error, Guest, Result, RunDir};
use sidecore_port::{Interest, Port};
use std::collections::BTreeMap;
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// Ports with random VLANs, and one more that carries all of them with tags: by it the test knows what has passed.
const RANDOM: usize = 4;
const ALL: usize = RANDOM;
const PORTS: usize = RANDOM + 1;
const VLANS: [u16; 5] = [1, 10, 20, 30, 4094];
/// Of tags that no port takes.
const STRANGE: [u16; 3] = [2, 40, 4095];
/// The address of PAUSE frames.
const PAUSE: [u8; 6] = [1, 0x80, 0xc2, 0, 0, 1];
/// Reserved addresses, by their last byte, that a provider's bridge passes on (802.1Q table 8-2), and one that becomes its own.
const PROVIDER: [u8; 5] = [0x08, 0x0b, 0x0c, 0x0d, 0x0f];
/// Configurations, how often frames are sent in each, and how many.
const ROUNDS: u32 = 24;
const BATCHES: u32 = 12;
const FRAMES: u64 = 40;
/// Bytes of Ethernet's addresses, of its header, of a tag, and the most behind them.
const ADDRESSES: usize = 12;
const HEADER: usize = 14;
const TAG: usize = 4;
const MTU: usize = 1500;
/// What the payload of a mark begins with.
const MARK: &[u8] = b"a mark of the test: ";

/// Numbers from a seed (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    /// True in so many of a hundred cases.
    fn percent(&mut self, cases: u64) -> bool {
        self.below(100) < cases
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.next()).unwrap_or(0) % of.len()]
    }
}

/// By which number tags are known: all ports of a Linux bridge have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Protocol {
    #[default]
    Customer,
    Service,
}

impl Protocol {
    fn other(self) -> Protocol {
        match self {
            Protocol::Customer => Protocol::Service,
            Protocol::Service => Protocol::Customer,
        }
    }

    /// What a tag begins with.
    fn number(self) -> [u8; 2] {
        match self {
            Protocol::Customer => [0x81, 0x00],
            Protocol::Service => [0x88, 0xa8],
        }
    }

    fn tag(self, tci: u16) -> Vec<u8> {
        [self.number(), tci.to_be_bytes()].concat()
    }
}

/// A port's VLANs.
#[derive(Clone, Debug, Default)]
struct Config {
    access: Option<u16>,
    trunk: Vec<u16>,
    native: Option<u16>,
    isolated: bool,
    protocol: Protocol,
}

impl Config {
    /// An access port.
    fn access(vlan: u16) -> Config {
        Config { access: Some(vlan), ..Config::default() }
    }

    /// A trunk without a VLAN of its own.
    fn trunk(vlans: &[u16]) -> Config {
        Config { trunk: vlans.to_vec(), ..Config::default() }
    }

    fn random(random: &mut Random) -> Config {
        let isolated = random.percent(35);
        if random.percent(40) {
            return Config { isolated, ..Config::access(random.one(&VLANS)) };
        }
        let mut trunk: Vec<u16> = VLANS.into_iter().filter(|_| random.percent(50)).collect();
        if trunk.is_empty() {
            trunk.push(random.one(&VLANS));
        }
        let native = random.percent(50).then(|| random.one(&VLANS));
        Config { native, isolated, ..Config::trunk(&trunk) }
    }

    /// The VLAN of its frames without a tag.
    fn own(&self) -> Option<u16> {
        self.access.or(self.native)
    }

    /// Those that it carries, with whether they have a tag there.
    fn vlans(&self) -> BTreeMap<u16, bool> {
        let tagged = self.trunk.iter().map(|vlan| (*vlan, true));
        tagged.chain(self.own().map(|vlan| (vlan, false))).collect()
    }

    /// As `sidecore set` takes it.
    fn options(&self) -> [String; 5] {
        let text = |vlan: Option<u16>| vlan.map_or_else(String::new, |vlan| vlan.to_string());
        let trunk: Vec<String> = self.trunk.iter().map(u16::to_string).collect();
        let isolated = if self.isolated { "on" } else { "off" };
        let protocol = if self.protocol == Protocol::Service { "802.1ad" } else { "802.1q" };
        [
            format!("vlan={}", text(self.access)),
            format!("trunk={}", trunk.join("+")),
            format!("native={}", text(self.native)),
            format!("isolated={isolated}"),
            format!("vlan-proto={protocol}"),
        ]
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.options().join(","))
    }
}

/// What the bridge is told, so that port `at`, which was configured as `old`, is as `new`.
fn bridge_commands(at: usize, old: &Config, new: &Config) -> String {
    let (before, after) = (old.vlans(), new.vlans());
    let gone = before.keys().filter(|vlan| !after.contains_key(vlan));
    let mut lines: Vec<String> = gone.map(|vlan| format!("bridge vlan del dev eth{at} vid {vlan}")).collect();
    // The one without a tag last: there is one at most.
    for tagged in [true, false] {
        let of = after.iter().filter(|(_, has)| **has == tagged);
        let form = if tagged { "" } else { " pvid untagged" };
        lines.extend(of.map(|(vlan, _)| format!("bridge vlan add dev eth{at} vid {vlan}{form}")));
    }
    let isolated = if new.isolated { "on" } else { "off" };
    lines.push(format!("bridge link set dev eth{at} isolated {isolated}"));
    lines.join(" && ")
}

/// Station `number` behind port `at`.
fn station(at: usize, number: u8) -> [u8; 6] {
    [2, 0, 0, 0, u8::try_from(at).unwrap(), number]
}

/// A random frame that the peer of port `from` sends, which is configured so.
fn random_frame(random: &mut Random, from: usize, config: &Config) -> Vec<u8> {
    let to = match random.below(10) {
        0..=4 => {
            let behind = usize::try_from(random.below(PORTS as u64)).unwrap();
            station(behind, random.one(&[0, 1]))
        }
        5 => [2, 0, 0, 0, 0xee, random.byte()],
        6 => [0xff; 6],
        7 => [1, 0, 0x5e, 0, 0, random.byte()],
        8 => [0x33, 0x33, 0, 0, 0, random.byte()],
        // Those that end at a bridge, the spanning tree's, which passes, and two behind them.
        _ => loop {
            let last = random.byte() % 18;
            if config.protocol == Protocol::Customer || !PROVIDER.contains(&last) {
                break [1, 0x80, 0xc2, 0, 0, last];
            }
        },
    };
    // Who asks for a PAUSE is asked for nothing: see `what_differs`.
    let number = if to == PAUSE { 0xfe } else { random.one(&[0, 1]) };
    let mut frame = [to, station(from, number)].concat();
    let carried: Vec<u16> = config.vlans().into_keys().collect();
    let tags = match config.own() {
        Some(_) => random.one(&[0, 0, 0, 0, 1, 1, 1, 2]),
        None => random.one(&[0, 1, 1, 1, 1, 1, 2, 2]),
    };
    for at in 0..tags {
        let vlan = match random.below(20) {
            0 | 1 => 0,
            2 => random.one(&STRANGE),
            3 | 4 => random.one(&VLANS),
            _ => random.one(&carried),
        };
        let usual = if at == 0 { config.protocol } else { Protocol::Customer };
        let protocol = if random.percent(90) { usual } else { usual.other() };
        // Of all priorities, and with and without the bit that says that it may be dropped.
        frame.extend(protocol.tag(vlan | (u16::from(random.byte()) << 8 & 0xf000)));
    }
    // A local experiment, IP and ARP that are none, and a length instead of a type.
    frame.extend(random.one(&[[0x88, 0xb5], [8, 0], [0x86, 0xdd], [8, 6], [0, 40]]));
    let most = MTU - if tags == 2 { TAG } else { 0 };
    let payload = match random.below(10) {
        // Shorter than Ethernet's, as virtual cards send them.
        0 => 2 + usize::try_from(random.below(44)).unwrap(),
        1 => most,
        2 => usize::try_from(random.below(most as u64)).unwrap().max(2),
        _ => 46 + usize::try_from(random.below(20)).unwrap(),
    };
    frame.extend((0..payload).map(|_| random.byte()));
    frame
}

/// The tag at this place of a frame.
fn tag_at(frame: &[u8], at: usize, protocol: Protocol) -> Option<u16> {
    match *frame.get(at..at + TAG)? {
        [a, b, c, d] if [a, b] == protocol.number() => Some(u16::from_be_bytes([c, d])),
        _ => None,
    }
}

/// What a Linux bridge gives port `to`, and our switch does not, of a frame that `from` sent: one with two tags, of which
/// the first goes, since the port's frames of that VLAN have none. Whoever is there would take it for a frame of the VLAN
/// that the second one names, which the sender chose ("VLAN hopping"; docs/switch.md).
fn bared(frame: &[u8], from: &Config, to: &Config) -> Option<Vec<u8>> {
    let first = tag_at(frame, ADDRESSES, from.protocol)?;
    tag_at(frame, ADDRESSES + TAG, to.protocol)?;
    let vlan = match first & 0xfff {
        0 => from.own()?,
        vlan => vlan,
    };
    let goes = to.own() == Some(vlan) && from.vlans().contains_key(&vlan);
    goes.then(|| [&frame[..ADDRESSES], &frame[ADDRESSES + TAG..]].concat())
}

/// The end of batch `number`: to everybody in `vlan` from a station of its own behind `from`, with a tag if there is a protocol.
fn mark(from: usize, number: u32, vlan: u16, tag: Option<Protocol>) -> Vec<u8> {
    let tag = tag.map_or_else(Vec::new, |protocol| protocol.tag(vlan));
    let mut frame =
        [&[0xff; 6][..], &station(from, 0xff), &tag, &[0x88, 0xb5], MARK, &marked(from, number, vlan)]
            .concat();
    frame.resize(HEADER + tag.len() + 46, 0);
    frame
}

/// What tells marks apart.
fn marked(from: usize, number: u32, vlan: u16) -> Vec<u8> {
    [&number.to_be_bytes()[..], &vlan.to_be_bytes(), &[u8::try_from(from).unwrap()]].concat()
}

/// What came out by each port.
type Out = [Vec<Vec<u8>>; PORTS];

/// A switch of one make, as programs at its ports see it.
struct Side {
    ports: [Port; PORTS],
    out: Out,
}

impl Side {
    fn attach(paths: [String; PORTS]) -> Side {
        Side { ports: paths.map(|path| Port::attach(&path).unwrap()), out: Out::default() }
    }

    fn send(&mut self, from: usize, frames: &[Vec<u8>]) {
        let ring = &mut self.ports[from].tx[0];
        ring.sync().unwrap();
        assert!(frames.iter().all(|frame| ring.push(frame)), "no room to send");
        ring.sync().unwrap();
    }

    /// Waits until a mark with this at its end has come out by port `at`.
    fn wait(&mut self, at: usize, marked: &[u8]) -> Result<()> {
        let wanted = [MARK, marked].concat();
        loop {
            while let Some(frame) = self.ports[at].rx[0].take() {
                let bytes = frame.bytes().into_owned();
                let found = bytes.windows(wanted.len()).any(|part| part == wanted);
                self.out[at].push(bytes);
                if found {
                    return Ok(());
                }
            }
            if !self.ports[at].wait(Interest::RECEIVE, Some(LIMIT)).unwrap() {
                let frames = list(&self.out[at]);
                return Err(Error::new(format!("no mark came out by port {at}, but\n{frames}")));
            }
        }
    }

    /// What comes out when these frames come in by port `from`.
    fn pass(
        &mut self,
        configs: &[Config; PORTS],
        number: u32,
        from: usize,
        frames: &[Vec<u8>],
    ) -> Result<Out> {
        let protocol = configs[ALL].protocol;
        self.send(from, frames);
        if from != ALL {
            let (vlan, tagged) = configs[from].vlans().pop_first().unwrap();
            self.send(from, &[mark(from, number, vlan, tagged.then_some(protocol))]);
            self.wait(ALL, &marked(from, number, vlan))?;
        }
        // All before it has been decided on; behind this it has come out, too.
        self.send(ALL, &VLANS.map(|vlan| mark(ALL, number, vlan, Some(protocol))));
        for (at, config) in configs.iter().enumerate().take(RANDOM) {
            let (vlan, _) = config.vlans().pop_last().unwrap();
            self.wait(at, &marked(ALL, number, vlan))?;
        }
        Ok(std::mem::take(&mut self.out))
    }
}

/// Bytes as people compare them, the beginning of them.
fn hex(frame: &[u8]) -> String {
    let bytes: Vec<String> = frame.iter().take(32).map(|byte| format!("{byte:02x}")).collect();
    format!("{} ({} bytes)", bytes.join(" "), frame.len())
}

fn list(frames: &[Vec<u8>]) -> String {
    frames.iter().map(|frame| format!("    {}\n", hex(frame))).collect()
}

struct Site {
    daemon: Daemon,
    guest: Guest,
    ours: Side,
    linux: Side,
    configs: [Config; PORTS],
    batches: u32,
}

impl Site {
    fn configure(&mut self, configs: [Config; PORTS]) -> Result<()> {
        let mut commands = Vec::new();
        for (at, (old, new)) in self.configs.iter().zip(&configs).enumerate() {
            let name = format!("s{at}");
            let options = new.options();
            let words: Vec<&str> =
                ["set", &name].into_iter().chain(options.iter().map(String::as_str)).collect();
            self.daemon.command(&words)?;
            commands.push(bridge_commands(at, old, new));
        }
        let number = if configs[ALL].protocol == Protocol::Service { "0x88a8" } else { "0x8100" };
        commands.push(format!("echo {number} > /sys/class/net/br0/bridge/vlan_protocol"));
        self.guest.expect(&commands.join(" && "))?;
        self.configs = configs;
        Ok(())
    }

    /// The same frames through both: what came out.
    fn both(&mut self, from: usize, frames: &[Vec<u8>]) -> [Out; 2] {
        self.batches += 1;
        let Site { ours, linux, configs, batches, .. } = self;
        let [ours, linux] = [("our switch", ours), ("the bridge", linux)]
            .map(|(name, side)| (name, side.pass(configs, *batches, from, frames)));
        [ours, linux].map(|(name, out)| {
            out.unwrap_or_else(|e| panic!("{name}: {e}; port {from} of {configs:#?} sent\n{}", list(frames)))
        })
    }

    /// One frame with which they do not do the same, but this.
    fn differ(&mut self, from: usize, frame: Vec<u8>, ours: &[(usize, Vec<u8>)], linux: &[(usize, Vec<u8>)]) {
        let got = self.both(from, std::slice::from_ref(&frame));
        for (name, got, wanted) in [("our switch", &got[0], ours), ("the bridge", &got[1], linux)] {
            let is_mark = |frame: &[u8]| frame.windows(MARK.len()).any(|part| part == MARK);
            let each = got.iter().enumerate();
            let got: Vec<(usize, Vec<u8>)> = each
                .flat_map(|(at, all)| {
                    all.iter().filter(|frame| !is_mark(frame)).map(move |frame| (at, frame.clone()))
                })
                .collect();
            assert!(
                got == wanted,
                "port {from} sent {}, {name} gave\n{got:x?}\nnot {wanted:x?}",
                hex(&frame)
            );
        }
    }

    /// The same comes out of both, but for what is [`bared`]; returns how many frames.
    fn same(&mut self, what: &str, from: usize, frames: &[Vec<u8>]) -> usize {
        let [ours, mut linux] = self.both(from, frames);
        for (to, out) in self.configs.iter().zip(&mut linux) {
            let bared: Vec<Vec<u8>> =
                frames.iter().filter_map(|frame| bared(frame, &self.configs[from], to)).collect();
            out.retain(|frame| !bared.contains(frame));
        }
        for at in 0..PORTS {
            if ours[at] == linux[at] {
                continue;
            }
            let alike = ours[at].iter().zip(&linux[at]).take_while(|(a, b)| a == b).count();
            let configs: Vec<String> =
                self.configs.iter().enumerate().map(|(at, config)| format!("    {at}: {config}\n")).collect();
            let next =
                |out: &Out| out[at].get(alike).map_or_else(|| "nothing".to_owned(), |frame| hex(frame));
            panic!(
                "{what}: out of port {at}, behind {alike} equal frames, came\n    {} of our switch,\n    {} of the bridge\nports:\n{}\
                 port {from} sent:\n{}our switch gave port {at}\n{}the bridge\n{}",
                next(&ours), next(&linux), configs.concat(), list(frames), list(&ours[at]), list(&linux[at])
            );
        }
        ours.iter().map(Vec::len).sum()
    }
}

fn site(dir: &RunDir) -> Result<Site> {
    let at = |name: &str, port: usize| dir.join(&format!("{name}{port}"));
    let mut arguments = vec!["--switch".to_owned(), "lan,ageing=86400".to_owned()];
    for port in 0..PORTS {
        for text in [
            format!("s{port}=ring:{}", at("s", port)),
            format!("g{port}=vhost-user:{},wire=w{port},mtu=2000", at("g", port)),
            format!("r{port}=ring:{},wire=w{port},mtu=2000", at("r", port)),
        ] {
            arguments.extend(["--port".to_owned(), text]);
        }
    }
    let mut daemon = Daemon::start(&arguments.iter().map(String::as_str).collect::<Vec<_>>())?;
    let side = |name: &str| Side::attach(std::array::from_fn(|port| at(name, port)));
    let (ours, linux) = (side("s"), side("r"));
    let card = |spec: sidecore_lab::Spec, port: usize| spec.nic(virtio(&at("g", port)));
    let mut guest = (0..PORTS).fold(Guest::named("bridge"), card).boot()?;
    // Nothing of the guest's own is sent, nothing waits or is joined, and groups are not listened to.
    guest.expect("sysctl -w net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")?;
    guest.expect(
        "sysctl -w net.core.default_qdisc=pfifo_fast && modprobe bridge && ip link add name br0 type bridge",
    )?;
    guest.expect(
        "cd /sys/class/net/br0/bridge && echo 0 > default_pvid && echo 1 > vlan_filtering && \
         echo 0 > multicast_snooping && echo 8640000 > ageing_time",
    )?;
    for port in 0..PORTS {
        guest.expect(&format!("ethtool -K eth{port} gro off && ip link set eth{port} master br0 up"))?;
        daemon.wait_peer(&format!("g{port}"), "running")?;
    }
    guest.expect("ip link set br0 up")?;
    // Linux learns of a carrier a while later; then a port forwards.
    let forwards = (0..PORTS).map(|port| format!("grep -qx 3 /sys/class/net/eth{port}/brport/state"));
    guest.wait_until(&format!("{{ {}; }}", forwards.collect::<Vec<_>>().join(" && ")), LIMIT)?;
    Ok(Site { daemon, guest, ours, linux, configs: Default::default(), batches: 0 })
}

#[test]
fn the_switch_does_what_a_linux_bridge_does() -> Result<()> {
    let seed = std::env::var("VLAN_SEED")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64);
    println!("VLAN_SEED={seed}");
    let dir = RunDir::new("bridge")?;
    let mut site = site(&dir)?;
    let mut random = Random(seed);
    let (mut sent, mut got) = (0, 0);
    for round in 0..ROUNDS {
        let protocol = if random.percent(70) { Protocol::Customer } else { Protocol::Service };
        let mut configs: [Config; PORTS] = std::array::from_fn(|_| Config::random(&mut random));
        configs[ALL] = Config::trunk(&VLANS);
        configs.iter_mut().for_each(|config| config.protocol = protocol);
        site.configure(configs)?;
        for batch in 0..BATCHES {
            let from = usize::try_from(random.below(PORTS as u64)).unwrap();
            let config = &site.configs[from];
            let frames: Vec<Vec<u8>> =
                (0..=random.below(FRAMES)).map(|_| random_frame(&mut random, from, config)).collect();
            sent += frames.len();
            got += site.same(&format!("VLAN_SEED={seed}, round {round}, batch {batch}"), from, &frames);
        }
    }
    println!("{sent} frames in {ROUNDS} configurations: the same {got} frames came out of both");
    what_differs(&mut site)?;
    println!("{:?}", site.daemon.balance()?.drops);
    site.guest.kill();
    assert!(site.daemon.terminate()?.success());
    Ok(())
}

/// What is known to differ, each with its reason. Random frames are none of these.
fn what_differs(site: &mut Site) -> Result<()> {
    site.configure([
        Config::access(10),
        Config::access(10),
        Config::trunk(&[10, 20]),
        Config::access(20),
        Config::trunk(&VLANS),
    ])?;
    let tag = |protocol: Protocol| protocol.tag(10);
    let customer = tag(Protocol::Customer);
    let frame = |to: [u8; 6], from: [u8; 6], tag: &[u8]| {
        let mut frame = [&to[..], &from, tag, &[0x88, 0xb5]].concat();
        frame.resize(60 + tag.len(), 0xd1);
        frame
    };
    let everybody = [0xff; 6];

    // Two tags, of which the first would go: our switch gives such a frame to those alone who see the first one. That is of the
    // sender's VLAN, or of VLAN 0.
    let two = |vlan: u16| [Protocol::Customer.tag(vlan), Protocol::Customer.tag(20)].concat();
    let inner = Protocol::Customer.tag(20);
    for (from, vlan) in [(2, 10), (0, 10), (0, 0)] {
        let [sent, whole, bare] =
            [&two(vlan), &two(10), &inner].map(|tags| frame(everybody, station(from, 0), tags));
        let all = [(0, &bare), (1, &bare), (2, &whole), (ALL, &whole)].map(|(to, frame)| (to, frame.clone()));
        let others: Vec<(usize, Vec<u8>)> = all.into_iter().filter(|(to, _)| *to != from).collect();
        let ours: Vec<(usize, Vec<u8>)> =
            others.iter().filter(|(_, frame)| *frame == whole).cloned().collect();
        site.differ(from, sent, &ours, &others);
    }

    // A source that is no station's: Linux drops the frame; our switch learns nothing of it and passes it on.
    let group = [1, 0, 0x5e, 0, 0, 1];
    site.differ(
        0,
        frame(everybody, group, &[]),
        &[
            (1, frame(everybody, group, &[])),
            (2, frame(everybody, group, &customer)),
            (ALL, frame(everybody, group, &customer)),
        ],
        &[],
    );

    // A tag with less than two bytes behind the type that follows it: Linux wants those to see whether it is a length of LLC. No
    // Ethernet carries frames as short as that, but virtual cards do.
    let short = |tag: &[u8]| [&everybody[..], &station(2, 0), tag, &[0x88, 0xb5, 1]].concat();
    site.differ(2, short(&customer), &[(0, short(&[])), (1, short(&[])), (ALL, short(&customer))], &[]);

    // A station that speaks from elsewhere: with Linux it has moved at once. Our switch takes that for a claim, and both ports get its
    // frames until the first one speaks or ages (docs/configuration.md, "Two ports with one address").
    let (moved, asks) = (station(0, 7), station(2, 0));
    site.same("where a station is first", 0, &[frame(everybody, moved, &[])]);
    site.same("where it is then", 1, &[frame(everybody, moved, &[])]);
    let (question, arrives) = (frame(moved, asks, &customer), frame(moved, asks, &[]));
    site.differ(2, question.clone(), &[(0, arrives.clone()), (1, arrives.clone())], &[(1, arrives)]);
    site.same("who was there first speaks again", 0, &[frame(everybody, moved, &[])]);
    site.same("and is where it was", 2, &[question]);

    // PAUSE frames belong to the MAC below a bridge: Linux learns nothing from them, our switch where their sender is.
    let pauses = station(0, 8);
    site.same("PAUSE ends here", 0, &[frame(PAUSE, pauses, &[])]);
    let (question, arrives) = (frame(pauses, asks, &customer), frame(pauses, asks, &[]));
    let flood = [(0, arrives.clone()), (1, arrives.clone()), (ALL, question.clone())];
    site.differ(2, question, &[(0, arrives)], &flood);

    // Addresses that are reserved for customers' bridges: one whose tags are the provider's passes them on (802.1Q table 8-2). In our
    // switch the protocol is a port's, and what becomes of reserved addresses the switch's (`control-frames`).
    let configs = site.configs.clone().map(|config| Config { protocol: Protocol::Service, ..config });
    site.configure(configs)?;
    let service = tag(Protocol::Service);
    for last in PROVIDER.into_iter().filter(|last| *last != 0x08) {
        let to = [1, 0x80, 0xc2, 0, 0, last];
        let sent = frame(to, station(0, 0), &[]);
        let tagged = frame(to, station(0, 0), &service);
        site.differ(0, sent.clone(), &[], &[(1, sent), (2, tagged.clone()), (ALL, tagged)]);
    }
    Ok(())
}
