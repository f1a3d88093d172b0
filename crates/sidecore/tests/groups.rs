//! Groups of the real daemon: members are processes of their own, which answer each datagram with their name.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;
use sidecore_driver::{Config, Frontend, NetDriver};
use sidecore_port::{Interest, Port};

use crate::rig::net::Net;
use crate::rig::{Daemon, Testbed, LIMIT};

const STATION: [u8; 6] = [2, 0, 0, 0, 0, 1];
const GROUP: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Tells a process of this program which member it is, and where its socket is.
const NAME: &str = "SIDECORE_TEST_MEMBER";
const SOCKET: &str = "SIDECORE_TEST_SOCKET";
/// Where a datagram has its flow, and who answered.
const FLOW: usize = 34;
const WHO: usize = 42;

fn datagram(from: [u8; 6], to: [u8; 6], flow: u16, who: u8) -> Vec<u8> {
    let fixed = [0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 9, 0, 1];
    let ports = [flow.to_be_bytes(), [0, 9]].concat();
    let mut bytes = [&to[..], &from, &[8, 0], &fixed, &ports, &[0; 4], &[who]].concat();
    bytes.resize(60, 0);
    bytes
}

/// A member: answers until it is killed.
#[test]
#[ignore = "the tests of this file start it as a process of its own"]
fn member() {
    let (name, socket) = (std::env::var(NAME).unwrap(), std::env::var(SOCKET).unwrap());
    let mut driver = NetDriver::start(Frontend::connect(socket, LIMIT).unwrap(), Config::default()).unwrap();
    let who = name.as_bytes()[0];
    driver.send(0, &[&datagram(GROUP, STATION, 0, b'-')]).unwrap();
    loop {
        let mut answers = Vec::new();
        driver
            .receive(0, |_, bytes| {
                if bytes.len() > WHO && bytes[12..14] == [8, 0] {
                    let flow = u16::from_be_bytes([bytes[FLOW], bytes[FLOW + 1]]);
                    answers.push(datagram(GROUP, STATION, flow, who));
                }
            })
            .unwrap();
        for answer in &answers {
            driver.complete(0).unwrap();
            driver.send(0, &[answer]).unwrap();
        }
        driver.wait(Duration::from_millis(1)).unwrap();
    }
}

/// A member's process; it goes with this.
struct Member(Child);

impl Member {
    fn start(bed: &Testbed, name: &str) -> Member {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "groups::member"]).env(NAME, name);
        command.env(SOCKET, bed.path(&format!("{name}.sock"))).stdout(Stdio::null());
        Member(command.spawn().unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // Fails if it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Rig {
    args: Vec<String>,
    bed: Testbed,
    daemon: Daemon,
    station: NetDriver,
}

impl Rig {
    fn new(group: &str, members: &[&str]) -> Rig {
        Rig::joined(group, members, "switch=lan")
    }

    /// Station and group meet on `joint`.
    fn joined(group: &str, members: &[&str], joint: &str) -> Rig {
        let bed = Testbed::new();
        let mut args = vec!["--group".to_owned(), format!("g{group}")];
        let mut port = |text: String| args.extend(["--port".to_owned(), text]);
        port(format!("g0=group:g,interface=0,address=10.9.9.9/16,mac=02:00:00:00:00:02,{joint}"));
        port(format!("s=vhost-user:{},{joint}", bed.at("s.sock")));
        for name in members {
            let socket = bed.at(&format!("{name}.sock"));
            port(format!("{name}=vhost-user:{socket},group=g,member={name},interface=0"));
        }
        Rig::start(bed, args)
    }

    fn start(bed: Testbed, args: Vec<String>) -> Rig {
        let daemon = bed.daemon(&args.iter().map(String::as_str).collect::<Vec<_>>());
        let socket = bed.path("s.sock");
        let station = NetDriver::start(Frontend::connect(socket, LIMIT).unwrap(), Config::default()).unwrap();
        Rig { args, bed, daemon, station }
    }

    /// With the next daemon; this one ends by `signal`.
    fn restarted(self, signal: Signal) -> Rig {
        let Rig { args, bed, daemon, .. } = self;
        daemon.end(signal);
        Rig::start(bed, args)
    }

    fn member(&self, name: &str) -> Value {
        member_of(&self.bed, name)
    }

    /// Frames that came, and copies that were made of them, were delivered or are counted as drops, once
    /// nothing moves.
    fn await_balance(&self) {
        let (deadline, mut last) = (Instant::now() + LIMIT, 0);
        loop {
            let (mut come, mut gone) = (0, 0);
            let all = self.bed.show("ports");
            // An interface counts what its members do, once more.
            let ends = |port: &&Value| port["state"]["kind"] != "group";
            for port in all["ports"].as_array().unwrap().iter().filter(ends) {
                let of = |key: &str| port["counters"][key].as_u64().unwrap();
                let drops = port["counters"]["drops"].as_object().unwrap();
                come += of("in_frames") + of("made");
                gone += of("out_frames") + drops.values().map(|n| n.as_u64().unwrap()).sum::<u64>();
            }
            if come == gone && come == last {
                return;
            }
            last = come;
            assert!(Instant::now() < deadline, "{come} frames came, {gone} went");
        }
    }

    fn await_state(&self, name: &str, state: &str) -> Value {
        await_state(&self.bed, name, state)
    }

    /// Sends one datagram of each of these flows until all are answered; who answered each first, and how
    /// long that took.
    fn ask(&mut self, flows: std::ops::Range<u16>) -> (BTreeMap<u16, char>, Duration) {
        let start = Instant::now();
        let mut answers = BTreeMap::new();
        while answers.len() < flows.len() {
            assert!(start.elapsed() < LIMIT, "{} of {} are answered", answers.len(), flows.len());
            for flow in flows.clone().filter(|flow| !answers.contains_key(flow)) {
                self.station.complete(0).unwrap();
                self.station.send(0, &[&datagram(STATION, GROUP, flow, 0)]).unwrap();
            }
            let until = Instant::now() + Duration::from_millis(20);
            while answers.len() < flows.len() && Instant::now() < until {
                self.station
                    .receive(0, |_, bytes| {
                        let flow = u16::from_be_bytes([bytes[FLOW], bytes[FLOW + 1]]);
                        if flows.contains(&flow) && bytes[WHO] != 0 {
                            answers.entry(flow).or_insert(char::from(bytes[WHO]));
                        }
                    })
                    .unwrap();
                self.station.wait(Duration::from_millis(1)).unwrap();
            }
        }
        (answers, start.elapsed())
    }
}

/// What is shown of member `name` of the only group.
fn member_of(bed: &Testbed, name: &str) -> Value {
    let groups = bed.show("groups");
    let members = groups["groups"][0]["members"].as_array().unwrap().clone();
    members.into_iter().find(|it| it["name"] == name).unwrap()
}

fn await_state(bed: &Testbed, name: &str, state: &str) -> Value {
    let deadline = Instant::now() + LIMIT;
    loop {
        let member = member_of(bed, name);
        if member["state"] == state && (state != "active" || member["buckets"].as_u64().unwrap() > 1000) {
            return member;
        }
        assert!(Instant::now() < deadline, "{name} is not {state}: {member}");
    }
}

const FLOWS: std::ops::Range<u16> = 1000..1100;

#[test]
fn when_a_member_is_killed_only_its_flows_move_and_a_drain_moves_none_that_is_alive() {
    let mut rig = Rig::new(",force-after=never,idle=300", &["a", "b", "c"]);
    let members: Vec<Member> = ["a", "b", "c"].iter().map(|name| Member::start(&rig.bed, name)).collect();
    ["a", "b", "c"].iter().for_each(|name| drop(rig.await_state(name, "active")));
    let (before, _) = rig.ask(FLOWS);
    assert!("abc".chars().all(|it| before.values().filter(|who| **who == it).count() > 10), "{before:?}");
    members[0].signal(Signal::KILL);
    let gone = rig.await_state("a", "gone");
    assert_eq!(gone["why"], "port a is down");
    let (after, _) = rig.ask(FLOWS);
    for (flow, who) in &before {
        assert!(*who == 'a' || after[flow] == *who, "flow {flow} went from {who} to {}", after[flow]);
        assert!(after[flow] != 'a');
    }
    // It comes back: what was its own is its own again, when it was idle.
    let _again = Member::start(&rig.bed, "a");
    rig.await_state("a", "active");
    let deadline = Instant::now() + LIMIT;
    while rig.member("b")["waiting"] != 0 || rig.member("c")["waiting"] != 0 {
        assert!(Instant::now() < deadline);
    }
    assert_eq!(rig.ask(FLOWS).0, before);
    // While its flows are alive it keeps them, drained or not; new ones it gets none.
    rig.bed.ok(&["drain", "g/b"]);
    for _ in 0..5 {
        assert_eq!(rig.ask(FLOWS).0, before);
    }
    assert_eq!(rig.member("b")["state"], "draining");
    let progress = rig.bed.ok(&["drain", "g/b", "--wait"]);
    assert!(progress.ends_with("g/b is drained\n"), "{progress}");
    let (drained, _) = rig.ask(FLOWS);
    assert!(drained.values().all(|who| *who != 'b'));
    assert!(before.iter().all(|(flow, who)| *who == 'b' || drained[flow] == *who));
    rig.bed.ok(&["undrain", "g/b"]);
    rig.bed.ok(&["set", "g/b", "weight=50"]);
    assert_eq!(rig.await_state("b", "active")["weight"], 50);
    rig.daemon.await_log("drained, was draining");
}

#[test]
fn a_daemon_that_ends_or_is_killed_leaves_buckets_where_they_are() {
    let mut rig = Rig::new(",idle=300000", &["a", "b", "c"]);
    let start = |rig: &Rig, names: &[&str]| {
        let members: Vec<_> = names.iter().map(|name| Member::start(&rig.bed, name)).collect();
        names.iter().for_each(|name| drop(rig.await_state(name, "active")));
        members
    };
    let mut members = start(&rig, &["a", "b"]);
    let (before, _) = rig.ask(FLOWS);
    // A third of them would be its own if they were idle.
    members.extend(start(&rig, &["c"]));
    assert_eq!(rig.ask(FLOWS).0, before);
    let waiting = rig.member("a")["waiting"].as_u64().unwrap() + rig.member("b")["waiting"].as_u64().unwrap();
    assert!(waiting > 10, "{waiting}");
    for signal in [Signal::KILL, Signal::TERM] {
        rig = rig.restarted(signal);
        drop(members);
        // The one that comes back first does not get what the others have.
        members = start(&rig, &["c"]);
        members.extend(start(&rig, &["a", "b"]));
        assert_eq!(rig.ask(FLOWS).0, before, "{signal:?}");
    }
    // A group that is deleted leaves nothing behind.
    let journals = || std::fs::read_dir(rig.bed.path("control.journals")).into_iter().flatten().flatten();
    assert!(journals().any(|it| it.file_name() == "@g"));
    rig.bed.ok(&["del", "g0", "a", "b", "c"]);
    rig.bed.ok(&["del", "--group", "g"]);
    assert!(!journals().any(|it| it.file_name() == "@g"));
}

/// On a wire there is no switch that would drop what finds no room, and no sender waits for a member that is
/// dead.
#[test]
fn on_a_wire_a_kill_loses_no_count_and_the_last_member_keeps_its_flows() {
    let mut rig = Rig::joined("", &["a", "b"], "wire=w");
    let members: Vec<Member> = ["a", "b"].iter().map(|name| Member::start(&rig.bed, name)).collect();
    ["a", "b"].iter().for_each(|name| drop(rig.await_state(name, "active")));
    rig.ask(FLOWS);
    members[0].signal(Signal::KILL);
    let (after, _) = rig.ask(FLOWS);
    assert!(after.values().filter(|who| **who == 'b').count() > 10);
    rig.await_state("a", "gone");
    assert!(rig.ask(FLOWS).0.values().all(|who| *who == 'b'));
    rig.await_balance();
    let said = rig.bed.fails(&["drain", "g/b", "--wait"]);
    assert!(said.contains("keeps its flows until another member is active"), "{said}");
    assert!(rig.ask(FLOWS).0.values().all(|who| *who == 'b'));
    let _again = Member::start(&rig.bed, "a");
    rig.await_state("a", "active");
    rig.bed.ok(&["drain", "g/b", "--wait"]);
    assert!(rig.ask(FLOWS).0.values().all(|who| *who == 'a'));
    rig.await_balance();
}

#[test]
fn a_member_that_stands_still_is_taken_out_and_one_that_is_idle_is_not() {
    let mut rig = Rig::new(",stall=100", &["a", "b"]);
    let members: Vec<Member> = ["a", "b"].iter().map(|name| Member::start(&rig.bed, name)).collect();
    ["a", "b"].iter().for_each(|name| drop(rig.await_state(name, "active")));
    let (before, _) = rig.ask(FLOWS);
    members[0].signal(Signal::STOP);
    // Nothing is for it.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(rig.member("a")["state"], "active");
    let (after, took) = rig.ask(FLOWS);
    assert!(after.values().all(|who| *who == 'b'), "{after:?}");
    let gone = rig.await_state("a", "gone");
    assert!(gone["why"].as_str().unwrap().contains("returned no buffer"), "{gone} after {took:?}");
    members[0].signal(Signal::CONT);
    rig.await_state("a", "active");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(rig.ask(FLOWS).0, before);
}

#[test]
fn bad_requests_say_what_would_be_right() {
    let rig = Rig::new("", &["a"]);
    for (words, why) in [
        (&["drain", "g/x"][..], "there is no member \"x\"; there are: a"),
        (&["drain", "h/a"], "there is no group \"h\"; there are: g"),
        (&["drain", "g"], "allowed: GROUP/MEMBER"),
        (&["set", "g/a", "weight=0"], "allowed: MEMBER:N with a weight from 1 to 1000"),
        (&["set", "g/a", "mtu=9"], "allowed: weight=N"),
        (&["set", "--group", "g", "drain=x"], "key `drain`: there is no member \"x\"; allowed: a"),
        (&["set", "--group", "g", "force-after=soon"], "allowed: seconds from 0 to 86400, or never"),
        (&["set", "--group", "g", "probe=x"], "key `probe`: "),
        (&["set", "--group", "g", "probe-floor=2"], "does not apply; allowed: with probe"),
        (&["del", "--group", "g"], "port a is of it"),
        (&["add", "p=ring:p,group=h,member=a,interface=0"], "there is no group \"h\"; allowed: g"),
        (&["add", "p=ring:p,group=g,interface=0"], "key `member`: missing"),
        (&["add", "p=ring:p,group=g,member=b"], "key `interface`: missing"),
        (&["add", "p=ring:p,group=g,member=b,interface=1"], "group g has no interface 1; allowed: 0"),
        (&["add", "p=ring:p,group=g,member=a,interface=0"], "port a is member a's there already"),
        (&["add", "p=ring:p,member=a"], "allowed: with group=NAME"),
        (&["add", "p=ring:p,group=g,member=b,interface=0,wire=w"], "allowed: one of wire, group"),
        (&["add", "p=ring:p,group=g,member=b,interface=0,mac-limit=2"], "does not apply to a group"),
        (&["add", "p=group:g,interface=0"], "port g0 is interface 0 of group g already"),
        (&["add", "p=group:g,interface=1,weight=3"], "the time of its frames is their senders'"),
    ] {
        let told = rig.bed.fails(words);
        assert!(told.contains(why), "{words:?}: {told}");
    }
    // One that has not joined has no flows.
    assert!(rig
        .bed
        .ok(&["drain", "g/a", "--wait"])
        .ends_with("g/a has no flows, and gets none when it has joined\n"));
    // What is wanted of a member goes with its ports.
    rig.bed.ok(&["del", "a"]);
    assert_eq!(rig.bed.show("groups")["groups"][0]["members"].as_array().unwrap().len(), 0);
    assert!(rig.bed.ok(&["show", "groups"]).contains("no port says that it belongs to it"));
}

/// Two networks with a station on each, and between them a group of a program and a router of the engine. The
/// program forwards packets without counting hops, so they tell which member they have passed.
struct Native {
    /// The stations' ports, and the program's beside each.
    stations: [Port; 2],
    program: [Port; 2],
}

const STATIONS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 1, 1]];
const FRONTS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 1, 2]];
const TTL: usize = 22;

/// A datagram from the station on network `from` to the other one.
fn across(from: usize, flow: u16) -> Vec<u8> {
    let mut header = [0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 2, 10, 0, 0, 2];
    (header[13], header[17]) = (u8::from(from == 1), u8::from(from == 0));
    let words = header.chunks(2).map(|it| u32::from(u16::from_be_bytes([it[0], it[1]]))).sum::<u32>();
    let folded = (words & 0xffff) + (words >> 16);
    header[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    let ports = if from == 0 { [flow, 9] } else { [9, flow] }.map(u16::to_be_bytes).concat();
    let mut bytes = [&FRONTS[from][..], &STATIONS[from], &[8, 0], &header, &ports, &[0, 26, 0, 0]].concat();
    bytes.resize(60, 0);
    bytes
}

/// The station on network `at` asks for the group's.
fn question(at: usize) -> Vec<u8> {
    let address = |last| [10, u8::from(at == 1), 0, last];
    let head = [&[0xff; 6][..], &STATIONS[at], &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
    [&head[..], &STATIONS[at], &address(2), &[0; 6], &address(1), &[0; 18]].concat()
}

fn say(port: &mut Port, frames: &[Vec<u8>]) {
    frames.iter().for_each(|frame| assert!(port.tx[0].push(frame)));
    port.tx[0].sync().unwrap();
}

/// What has come to `port` within a moment.
fn heard(port: &mut Port) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    port.wait(Interest::RECEIVE, Some(Duration::from_millis(1))).unwrap();
    while let Some(frame) = port.rx[0].take() {
        frames.push(frame.bytes().into_owned());
    }
    port.rx[0].sync().unwrap();
    frames
}

impl Native {
    /// Each flow passes to the other network. Whether it was by the router.
    fn pass(&mut self, from: usize) -> BTreeMap<u16, bool> {
        let (start, to) = (Instant::now(), 1 - from);
        let mut passed = BTreeMap::new();
        let all: Vec<_> = FLOWS.map(|flow| across(from, flow)).collect();
        say(&mut self.stations[from], &all);
        while passed.len() < FLOWS.len() {
            assert!(start.elapsed() < LIMIT, "{} of {} pass from {from}", passed.len(), FLOWS.len());
            let mut on = heard(&mut self.program[from]);
            on.retain(|frame| frame[12..14] == [8, 0]);
            on.iter_mut().for_each(|it| it[..12].copy_from_slice(&[STATIONS[to], FRONTS[to]].concat()));
            say(&mut self.program[to], &on);
            for it in heard(&mut self.stations[to]).iter().filter(|it| it[12..14] == [8, 0]) {
                assert_eq!(it[..12], [STATIONS[to], FRONTS[to]].concat());
                let flow = [it[34 + 2 * from], it[35 + 2 * from]];
                passed.insert(u16::from_be_bytes(flow), it[TTL] == 63);
            }
        }
        passed
    }
}

/// An ARP request of the group for 10.0.0.1.
fn arp(from: u8) -> Vec<u8> {
    let question = [0, 1, 8, 0, 6, 4, 0, 1];
    let mut bytes = [&[0xff; 6][..], &GROUP, &[8, 6], &question, &GROUP, &[10, 0, 0, from], &[0; 6]].concat();
    bytes.extend([10, 0, 0, 1]);
    bytes.resize(60, 0);
    bytes
}

/// Where the interface is a router's port, `address` there is the router's, and at a member's port the
/// group's.
#[test]
fn the_group_is_a_neighbour_of_the_router_that_it_stands_at() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&[
        "--group",
        "g",
        "--router",
        "s",
        "--port",
        "g0=group:g,interface=0,mac=02:00:00:00:00:02,router=s,address=10.0.0.1/24",
        "--port",
        "a=ring:a,group=g,member=a,interface=0,address=10.0.0.2/24",
    ]);
    let mut a = Port::attach(&bed.at("ring/a")).unwrap();
    let deadline = Instant::now() + LIMIT;
    let known = loop {
        say(&mut a, &[arp(2), arp(9)]);
        let all = bed.show("neighbours");
        let known: Vec<_> =
            all["neighbours"].as_array().unwrap().iter().map(|it| it["address"].clone()).collect();
        if !known.is_empty() || Instant::now() > deadline {
            break known;
        }
    };
    assert_eq!(known, ["10.0.0.2"]);
    assert!(
        bed.port("a")["counters"]["drops"]["foreign_address"].as_u64() > Some(0),
        "{}",
        bed.show("drops")
    );
    let refused = bed.fails(&["add", "b=ring:b,switch=lan,address=10.0.0.3/24"]);
    assert!(refused.contains("key `address`: does not apply"), "{refused}");
}

#[test]
fn a_router_of_the_engine_shares_flows_with_a_program_and_is_drained_as_others() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&[
        "--switch",
        "wan",
        "--group",
        "g",
        "--router",
        "r",
        "--port",
        "g0=group:g,interface=0,mac=02:00:00:00:00:02,address=10.0.0.1/24",
        "--port",
        "g1=group:g,interface=1,switch=wan,mac=02:00:00:00:01:02,address=10.1.0.1/24",
        "--port",
        "s0=ring:s0",
        "--port",
        "s1=ring:s1,switch=wan",
        "--port",
        "z0=ring:z0,group=g,member=z,interface=0",
        "--port",
        "z1=ring:z1,group=g,member=z,interface=1",
        "--port",
        "r0=router:r,group=g,member=r,interface=0",
        "--port",
        "r1=router:r,group=g,member=r,interface=1",
    ]);
    let port = |name: &str| Port::attach(&bed.at(&format!("ring/{name}"))).unwrap();
    let mut rig = Native { stations: ["s0", "s1"].map(port), program: ["z0", "z1"].map(port) };
    // The router joins by itself, and answers for the group; it knows who asked.
    await_state(&bed, "r", "active");
    for at in [0, 1] {
        let (start, mut answers) = (Instant::now(), Vec::new());
        while answers.is_empty() {
            assert!(start.elapsed() < LIMIT, "nobody answers on network {at}");
            say(&mut rig.stations[at], &[question(at)]);
            answers = heard(&mut rig.stations[at]);
        }
        assert_eq!(answers[0][..12], [STATIONS[at], FRONTS[at]].concat());
    }
    assert!(rig.pass(0).values().all(|routed| *routed));
    for at in [0, 1] {
        let mut hello = [&STATIONS[at][..], &FRONTS[at], &[0x88, 0xb5]].concat();
        hello.resize(60, 0);
        say(&mut rig.program[at], &[hello]);
    }
    await_state(&bed, "z", "active");
    let shares = |rig: &mut Native| {
        let there = rig.pass(0);
        assert_eq!(rig.pass(1), there, "both directions of a flow have one member");
        there
    };
    let deadline = Instant::now() + LIMIT;
    while member_of(&bed, "r")["waiting"] != 0 {
        assert!(Instant::now() < deadline);
    }
    let before = shares(&mut rig);
    let routed = before.values().filter(|routed| **routed).count();
    assert!((20..80).contains(&routed), "{routed}");
    bed.ok(&["drain", "g/r", "--wait"]);
    assert!(shares(&mut rig).values().all(|routed| !routed));
    bed.ok(&["undrain", "g/r"]);
    await_state(&bed, "r", "active");
    while member_of(&bed, "z")["waiting"] != 0 {
        assert!(Instant::now() < deadline);
    }
    assert_eq!(shares(&mut rig), before);
    assert!(bed.ok(&["show", "groups"]).contains("r0 r1"));
    assert_eq!(bed.port("r0")["state"]["detail"], "is router r's in group g");
    // It is a member like others: its port goes down.
    bed.ok(&["set", "r1", "link=down"]);
    assert_eq!(await_state(&bed, "r", "gone")["why"], "port r1 is down");
    assert!(shares(&mut rig).values().all(|routed| !routed));
    assert!(bed.fails(&["del", "--router", "r"]).contains("port r0 is on it"));
}

/// A kernel with the addresses of the group, and the routes of the documentation's recipe.
fn kernel(name: &str) -> (Net, [String; 2]) {
    let net = Net::new();
    let port = |at: usize| {
        let netns = net.path();
        format!("{name}{at}=tap:{name}{at},netns={netns},group=g,member={name},interface={at}")
    };
    let ports = [0, 1].map(port);
    (net, ports)
}

fn set_up(net: &Net, name: &str) {
    for at in [0, 1] {
        net.ip(&format!("link set {name}{at} address 02:00:00:00:0{at}:02"));
        net.ip(&format!("address add 10.{at}.0.1/24 dev {name}{at}"));
        net.ip(&format!("link set {name}{at} up"));
    }
    net.ip(&format!("route add 192.0.2.1 dev {name}1"));
    net.ip(&format!("neigh add 192.0.2.1 lladdr 02:00:00:00:00:99 dev {name}1 nud permanent"));
    net.ip(&format!("route add 192.0.2.0 dev {name}0"));
    inside(net, "echo 1 > /proc/sys/net/ipv4/conf/all/rp_filter");
    // It has to say something by each port.
    inside(net, "for to in 10.0.0.9 10.1.0.9; do echo > /dev/udp/$to/9; done");
}

fn inside(net: &Net, script: &str) {
    assert!(net.command("bash").args(["-c", script]).status().unwrap().success(), "{script}");
}

#[test]
fn a_kernel_that_forwards_nothing_is_taken_out_by_probes_and_let_back() {
    let bed = Testbed::new();
    let kernels = ["a", "b"].map(kernel);
    let fronts = [
        "g0=group:g,interface=0,mac=02:00:00:00:00:02,address=10.0.0.1/24",
        "g1=group:g,interface=1,switch=wan,mac=02:00:00:00:01:02,address=10.1.0.1/24",
        "s0=ring:s0",
        "s1=ring:s1,switch=wan",
    ];
    let mut args = vec!["--switch", "wan", "--group", "g,probe=192.0.2.1,stall=200"];
    let members = kernels.iter().flat_map(|(_, ports)| ports.iter().map(String::as_str));
    fronts.into_iter().chain(members).for_each(|port| args.extend(["--port", port]));
    let daemon = bed.daemon(&args);
    let forward = |net: &Net, yes: u8| inside(net, &format!("echo {yes} > /proc/sys/net/ipv4/ip_forward"));
    for ((net, _), name) in kernels.iter().zip(["a", "b"]) {
        set_up(net, name);
        forward(net, 1);
    }
    ["a", "b"].iter().for_each(|name| drop(await_state(&bed, name, "active")));
    let table = bed.ok(&["show", "groups"]);
    assert!(table.lines().filter(|line| line.contains("  ok  ")).count() == 2, "{table}");
    // It still answers, and forwards nothing.
    forward(&kernels[0].0, 0);
    daemon.await_log("gone, was active: it has missed 3 probes in a row");
    assert_ne!(member_of(&bed, "a")["state"], "active");
    // The other one is left, whatever it does.
    forward(&kernels[1].0, 0);
    let missed = |name: &str| member_of(&bed, name)["probes_missed"].as_u64().unwrap();
    let start = Instant::now();
    while missed("b") < 5 {
        assert!(start.elapsed() < LIMIT);
    }
    assert_eq!(member_of(&bed, "b")["state"], "active");
    kernels.iter().for_each(|(net, _)| forward(net, 1));
    ["a", "b"].iter().for_each(|name| drop(await_state(&bed, name, "active")));
    assert_eq!(missed("a"), 0);
    // What a stranger sends there passes for nothing, and no probe comes out.
    let mut stations = ["s0", "s1"].map(|name| Port::attach(&bed.at(&format!("ring/{name}"))).unwrap());
    let mut forged = across(0, 9);
    forged[30..34].copy_from_slice(&[192, 0, 2, 1]);
    let words = forged[14..34].chunks(2).map(|it| u32::from(u16::from_be_bytes([it[0], it[1]])));
    let sum = words.sum::<u32>() - u32::from(u16::from_be_bytes([forged[24], forged[25]]));
    let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
    forged[24..26].copy_from_slice(&sum.to_be_bytes());
    say(&mut stations[0], &[forged]);
    let dropped = |name: &str| {
        let of = |port: &str| bed.port(port)["counters"]["drops"][name].as_u64().unwrap_or(0);
        of("a1") + of("b1")
    };
    let (start, before) = (Instant::now(), dropped("probe"));
    let mut strays = Vec::new();
    while dropped("bad_probe") == 0 || dropped("probe") < before + 6 {
        assert!(start.elapsed() < LIMIT, "{} {}", dropped("bad_probe"), dropped("probe"));
        strays.extend(heard(&mut stations[1]));
    }
    strays.retain(|it| it[12..14] == [8, 0] && it[30..33] == [192, 0, 2]);
    assert_eq!(strays, [[0u8; 0]; 0]);
}
