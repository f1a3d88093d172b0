//! Our switch beside a Linux bridge with VLANs, isolated ports and lists of nftables: the same random frames
//! come in by the same port of both, and each port of both gives out the same bytes in the same order. The
//! bridge is in a guest. Its ports are VLANs of one card, which is on a wire with a program's port that adds
//! and takes their tags; so the test sees bytes on both sides. (With a card for each port, User-mode Linux
//! left frames in a receive ring now and then until the next interrupt.) The frames of the test end with
//! marks, which have come out by each port before the next begin.
//!
//! `BRIDGE_SEED` is the seed of the first configuration behind [`SEEDS`], and each further one has the next
//! number. `BRIDGE_FRAMES` says how many frames are compared at least: with 1 it is that configuration alone.

mod config;
mod frames;
mod lists;
mod random;

use self::config::{bridge_commands, nftables, Config, Protocol, VLANS};
use self::frames::{
    bared, ipv4, ipv6, mark, marked, random_frame, station, ADDRESSES, AH, FRAGMENT, IPV4, IPV6, LLDP, MARK,
    OPTIONS, PAUSE, PROVIDER, TAG, TCP,
};
use self::lists::List;
use self::random::Random;
use crate::cards::LIMIT;
use sidecore_lab::uml::{Uml, PORT};
use sidecore_lab::{Daemon, Error, Guest, Result, RunDir};
use sidecore_port::{Interest, Port};
use std::time::{SystemTime, UNIX_EPOCH};

/// Ports with random VLANs, and one more that carries all of them with tags: by it the test knows what has
/// passed.
const RANDOM: usize = 4;
const ALL: usize = RANDOM;
const PORTS: usize = RANDOM + 1;
/// Configurations in which a difference was found.
const SEEDS: [u64; 0] = [];
/// Frames that are compared in random configurations; how many batches of them in each, and how many frames a
/// batch has at least and at most.
const COMPARED: u64 = 6000;
const BATCHES: usize = 2 * PORTS;
const LEAST: u64 = 10;
const MOST: u64 = 24;
/// Where the guest sees the folder of the test.
const HOST: &str = "/host";

/// What came out by each port.
type Out = [Vec<Vec<u8>>; PORTS];

/// A switch of one make, as programs at its ports see it, or one program at the card that has all of them.
struct Side {
    ports: Vec<Port>,
    out: Out,
}

impl Side {
    fn attach(paths: &[String]) -> Side {
        Side { ports: paths.iter().map(|path| Port::attach(path).unwrap()).collect(), out: Out::default() }
    }

    fn is_card(&self) -> bool {
        self.ports.len() == 1
    }

    fn send(&mut self, from: usize, frames: &[Vec<u8>]) {
        let is_card = self.is_card();
        let ring = &mut self.ports[if is_card { 0 } else { from }].tx[0];
        ring.sync().unwrap();
        for frame in frames {
            let tag = if is_card { Protocol::Customer.tag(card_vlan(from)) } else { Vec::new() };
            let (stations, rest) = frame.split_at(ADDRESSES);
            assert!(ring.push(&[stations, &tag, rest].concat()), "no room to send");
        }
        ring.sync().unwrap();
    }

    /// Waits until a mark with this at its end has come out by port `at`.
    fn wait(&mut self, at: usize, marked: &[u8]) -> Result<()> {
        let wanted = [MARK, marked].concat();
        let is_card = self.is_card();
        let port = &mut self.ports[if is_card { 0 } else { at }];
        loop {
            while let Some(frame) = port.rx[0].take() {
                let mut bytes = frame.bytes().into_owned();
                let mut by = at;
                if is_card {
                    let tag: Vec<u8> = bytes.drain(ADDRESSES..ADDRESSES + TAG).collect();
                    let is = |by: &usize| tag == Protocol::Customer.tag(card_vlan(*by));
                    by = (0..PORTS).find(is).expect("a tag of no port");
                }
                self.out[by].push(bytes);
            }
            let is_wanted = |frame: &Vec<u8>| frame.windows(wanted.len()).any(|part| part == wanted);
            if self.out[at].iter().any(is_wanted) {
                return Ok(());
            }
            if !port.wait(Interest::RECEIVE, Some(LIMIT)).unwrap() {
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

fn is_mark(frame: &[u8]) -> bool {
    frame.windows(MARK.len()).any(|part| part == MARK)
}

struct Site<'a> {
    dir: &'a RunDir,
    daemon: Daemon,
    guest: Guest,
    ours: Side,
    linux: Side,
    configs: [Config; PORTS],
    batches: u32,
}

impl Site<'_> {
    /// Has both do as `configs` says, and forget what they have learned.
    fn configure(&mut self, configs: [Config; PORTS]) -> Result<()> {
        for configs in [&Default::default(), &configs] {
            let file = self.dir.join("ports.toml");
            std::fs::write(&file, daemon_file(self.dir, configs)).unwrap();
            self.daemon.command(&["apply", &file])?;
        }
        let changes = self.configs.iter().zip(&configs).enumerate();
        let vlans: String = changes.map(|(at, (old, new))| bridge_commands(at, old, new)).collect();
        // Each time under another name, since the guest may remember a file's pages.
        let number = self.batches;
        let [vlans_in, rules_in] = ["vlans", "rules"].map(|name| format!("{name}{number}"));
        std::fs::write(self.dir.path().join(&vlans_in), vlans).unwrap();
        std::fs::write(self.dir.path().join(&rules_in), nftables(&configs)).unwrap();
        let protocol = if configs[ALL].protocol == Protocol::Service { "0x88a8" } else { "0x8100" };
        self.guest.expect(&format!(
            "cd {HOST} && bridge -batch {vlans_in} && nft -f {rules_in} && rm {vlans_in} {rules_in} && \
             echo {protocol} > /sys/class/net/br0/bridge/vlan_protocol"
        ))?;
        self.batches += 1;
        self.configs = configs;
        Ok(())
    }

    /// Sends frames through both: what came out.
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

    /// Compares what comes out of both, but for what is [`bared`]; returns how many frames without marks.
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
            let configs = (0..PORTS).map(|at| format!("# {at}\n{}", self.configs[at].ours(at)));
            let next =
                |out: &Out| out[at].get(alike).map_or_else(|| "nothing".to_owned(), |frame| hex(frame));
            panic!(
                "{what}: out of port {at}, behind {alike} equal frames, came\n    {} of our switch,\n    {} of the bridge\nports:\n{}\
                 port {from} sent:\n{}our switch gave port {at}\n{}the bridge\n{}",
                next(&ours), next(&linux), configs.collect::<String>(), list(frames), list(&ours[at]), list(&linux[at])
            );
        }
        ours.iter().flatten().filter(|frame| !is_mark(frame)).count()
    }
}

/// The VLAN of the guest's card that is port `at` of the bridge.
fn card_vlan(at: usize) -> u16 {
    100 + u16::try_from(at).unwrap()
}

/// The configuration of a daemon with our switch, and with a wire to the guest's card.
fn daemon_file(dir: &RunDir, configs: &[Config; PORTS]) -> String {
    let port = |name: &str, kind: &str, more: &str| {
        let place = dir.join(name);
        format!("[[port]]\nname = {name:?}\nkind = {kind:?}\nwhere = {place:?}\n{more}")
    };
    let mut text = "[[switch]]\nname = \"lan\"\nageing = 86400\n".to_owned();
    let of_a_guest: String = PORT
        .split(',')
        .filter_map(|option| option.split_once('='))
        .map(|(key, value)| format!("{key} = {value:?}\n"))
        .collect();
    text += &port("g", "vhost-user", &format!("wire = \"w\"\nmtu = 2000\n{of_a_guest}"));
    text += &port("r", "ring", "wire = \"w\"\nmtu = 2000\n");
    for (at, config) in configs.iter().enumerate() {
        text += &port(&format!("s{at}"), "ring", &config.ours(at));
    }
    text
}

fn site(dir: &RunDir) -> Result<Site<'_>> {
    let file = dir.join("ports.toml");
    std::fs::write(&file, daemon_file(dir, &Default::default())).unwrap();
    let mut daemon = Daemon::start(&[&file])?;
    let paths: [String; PORTS] = std::array::from_fn(|at| dir.join(&format!("s{at}")));
    let (ours, linux) = (Side::attach(&paths), Side::attach(&[dir.join("r")]));
    let mut guest = Uml::named("bridge").card(&dir.join("g")).boot()?;
    // Nothing of the guest's own is sent, nothing waits or is joined, and groups are not listened to.
    guest.expect(
        "modprobe -a 8021q bridge nf_tables && \
         sysctl -w net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1 \
         net.core.default_qdisc=pfifo_fast && ip link add name br0 type bridge",
    )?;
    // What is too long for a command comes in files.
    let here = dir.path().display();
    guest.expect(&format!("mkdir {HOST} && mount -t hostfs -o {here} none {HOST}"))?;
    guest.expect(
        "cd /sys/class/net/br0/bridge && echo 0 > default_pvid && echo 1 > vlan_filtering && \
         echo 0 > multicast_snooping && echo 8640000 > ageing_time",
    )?;
    guest.expect("ethtool -K eth0 gro off && ip link set eth0 up")?;
    daemon.wait_peer("g", "running")?;
    for at in 0..PORTS {
        let vlan = card_vlan(at);
        guest.expect(&format!(
            "ip link add link eth0 name p{at} type vlan id {vlan} && ip link set p{at} master br0 up"
        ))?;
    }
    guest.expect("ip link set br0 up")?;
    // Linux learns of a carrier a while later; then a port forwards.
    let forwards = (0..PORTS).map(|at| format!("grep -qx 3 /sys/class/net/p{at}/brport/state"));
    guest.wait_until(&format!("{{ {}; }}", forwards.collect::<Vec<_>>().join(" && ")), LIMIT)?;
    Ok(Site { dir, daemon, guest, ours, linux, configs: Default::default(), batches: 0 })
}

/// Compares frames in the configuration of a seed; how many were sent, and how many came out of both.
fn compare(site: &mut Site, seed: u64) -> Result<[u64; 2]> {
    let mut random = Random(seed);
    let protocol = if random.percent(70) { Protocol::Customer } else { Protocol::Service };
    let lists = random.percent(50);
    let mut configs: [Config; PORTS] = std::array::from_fn(|_| Config::random(&mut random, lists));
    configs[ALL] = Config { lists: configs[ALL].lists.clone(), ..Config::trunk(&VLANS) };
    configs.iter_mut().for_each(|config| config.protocol = protocol);
    site.configure(configs)?;
    let (mut sent, mut got) = (0, 0);
    for batch in 0..BATCHES {
        // First by each port, so that stations are known.
        let from = if batch < PORTS { batch } else { random.size(PORTS) };
        let config = &site.configs[from];
        let number = LEAST + random.below(MOST + 1 - LEAST);
        let frames: Vec<Vec<u8>> =
            (0..number).map(|_| random_frame(&mut random, from, config, lists)).collect();
        sent += number;
        got += site.same(&format!("BRIDGE_SEED={seed} BRIDGE_FRAMES=1, batch {batch}"), from, &frames) as u64;
    }
    Ok([sent, got])
}

#[test]
fn the_switch_does_what_a_linux_bridge_does() -> Result<()> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let first: u64 = number("BRIDGE_SEED").unwrap_or(now);
    let wanted = number("BRIDGE_FRAMES").unwrap_or(COMPARED);
    println!("BRIDGE_SEED={first}");
    let dir = RunDir::new("bridge")?;
    let mut site = site(&dir)?;
    for seed in SEEDS {
        compare(&mut site, seed)?;
    }
    let (mut sent, mut got, mut configs) = (0, 0, 0);
    while sent < wanted {
        let compared = compare(&mut site, first.wrapping_add(configs))?;
        (sent, got, configs) = (sent + compared[0], got + compared[1], configs + 1);
    }
    println!("{sent} frames in {configs} configurations: the same {got} frames came out of both");
    let drops = site.daemon.balance()?.drops;
    println!("our switch dropped {drops:?}");
    if wanted >= COMPARED {
        // Frames that came out somewhere, and frames for each rule that both have.
        assert!(got > sent / 2, "too few came out");
        assert!(["vlan", "isolated", "acl", "control_frame"].iter().all(|why| drops.contains_key(*why)));
    }
    what_differs(&mut site)?;
    what_lists_see(&mut site)?;
    site.guest.kill();
    assert!(site.daemon.terminate()?.success());
    Ok(())
}

/// What is known to differ, each with its reason. Random frames are none of these, but for the first kind.
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

    // Two tags, of which the first would go: our switch gives such a frame to those alone who see the first
    // one. That is of the sender's VLAN, or of VLAN 0.
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

    // A tag with less than two bytes behind the type that follows it: Linux wants those to see whether it is
    // a length of LLC. No Ethernet carries frames as short as that, but virtual cards do.
    let short = |tag: &[u8]| [&everybody[..], &station(2, 0), tag, &[0x88, 0xb5, 1]].concat();
    site.differ(2, short(&customer), &[(0, short(&[])), (1, short(&[])), (ALL, short(&customer))], &[]);

    // A station that speaks from elsewhere: with Linux it has moved at once. Our switch takes that for a
    // claim, and both ports get its frames until the first one speaks or ages (docs/configuration.md, "Two
    // ports with one address").
    let (moved, asks) = (station(0, 7), station(2, 0));
    site.same("where a station is first", 0, &[frame(everybody, moved, &[])]);
    site.same("where it is then", 1, &[frame(everybody, moved, &[])]);
    let (question, arrives) = (frame(moved, asks, &customer), frame(moved, asks, &[]));
    site.differ(2, question.clone(), &[(0, arrives.clone()), (1, arrives.clone())], &[(1, arrives)]);
    site.same("who was there first speaks again", 0, &[frame(everybody, moved, &[])]);
    site.same("and is where it was", 2, &[question]);

    // PAUSE frames belong to the MAC below a bridge: Linux learns nothing from them, our switch where their
    // sender is.
    let pauses = station(0, 8);
    site.same("PAUSE ends here", 0, &[frame(PAUSE, pauses, &[])]);
    let (question, arrives) = (frame(pauses, asks, &customer), frame(pauses, asks, &[]));
    let flood = [(0, arrives.clone()), (1, arrives.clone()), (ALL, question.clone())];
    site.differ(2, question, &[(0, arrives)], &flood);

    // Addresses that are reserved for customers' bridges: one whose tags are the provider's passes them on
    // (802.1Q table 8-2). In our switch the protocol is a port's, and what becomes of reserved addresses the
    // switch's (`control-frames`).
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

/// Packets of SSH that a list of ours sees, and nftables does not: it asks for what stands in the first
/// header that it finds, or where it finds none takes nothing for granted.
fn what_lists_see(site: &mut Site) -> Result<()> {
    let listed = Config { lists: [Some(List::without_ssh()), None], ..Config::access(10) };
    site.configure([
        listed,
        Config::access(10),
        Config::access(20),
        Config::access(20),
        Config::trunk(&VLANS),
    ])?;
    let everybody = [0xff; 6];
    let frame = |head: &[u8], packet: &[u8]| [&everybody[..], &station(0, 0), head, packet].concat();
    let ports = [&[0x9c, 0x40, 0, 22][..], &[0; 8], &[0x50, 2], &[0; 6]].concat();
    let four = |fragment: u16, protocol: u8, behind: &[u8]| {
        ipv4(0, fragment, protocol, [[192, 0, 2, 1], [192, 0, 2, 2]], behind)
    };
    let six = |chain: Vec<(u8, Vec<u8>)>, protocol: u8, behind: &[u8]| {
        ipv6(chain, protocol, [[0xfd; 16], [0xfc; 16]], behind)
    };
    let plain = four(0, TCP, &ports);
    // What both see.
    site.differ(0, frame(&IPV4, &plain), &[], &[]);
    // Behind an authentication header, which nftables follows in IPv6 alone (RFC 4302 §2).
    let authentic = [&[TCP, 4, 0, 0][..], &[0; 20], &ports].concat();
    // Behind a second tag.
    let tag = Protocol::Customer.tag(10);
    let second = [&tag[..], &Protocol::Service.tag(7), &IPV4].concat();
    // In SNAP (IEEE 802 §9.2; RFC 1042).
    let length = u16::try_from(8 + plain.len()).unwrap().to_be_bytes();
    let snap = [&length[..], &[0xaa, 0xaa, 3, 0, 0, 0], &IPV4].concat();
    // Where headers go on in the next fragment, so that nobody sees which protocol it is (RFC 7112 §5), and
    // where the second fragment would lay other ports over the first one's (RFC 1858).
    let options = [&[TCP, 20, 1, 4][..], &[0; 4]].concat();
    let endless = six(vec![(FRAGMENT, vec![0, 0, 0, 1, 0, 0, 0, 1])], OPTIONS, &options);
    let all = [
        frame(&IPV4, &four(0, AH, &authentic)),
        frame(&second, &plain),
        frame(&snap, &plain),
        frame(&IPV6, &endless),
        frame(&IPV4, &four(1, TCP, &ports)),
        // A packet of another version than its type says.
        frame(&IPV4, &six(Vec::new(), TCP, &ports)),
    ];
    for sent in all {
        let has_tag = sent[12..14] == Protocol::Customer.number();
        let at_access = if has_tag { [&sent[..12], &sent[16..]].concat() } else { sent.clone() };
        let at_trunk = [&sent[..12], &tag, &at_access[12..]].concat();
        site.differ(0, sent, &[], &[(1, at_access), (ALL, at_trunk)]);
    }
    // LLDP meets no hook of Linux's, which learns from it whatever lists say. Our switch learns of frames
    // that passed.
    let (quiet, asks) = (station(0, 9), station(1, 0));
    let refused = [&LLDP[..], &quiet, &IPV4, &plain].concat();
    site.same("a list refuses LLDP", 0, &[refused]);
    let question = [&quiet[..], &asks, &IPV4, &plain].concat();
    let tagged = [&question[..12], &tag, &question[12..]].concat();
    site.differ(1, question.clone(), &[(0, question.clone()), (ALL, tagged)], &[(0, question)]);
    Ok(())
}
