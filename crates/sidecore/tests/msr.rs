//! A router of the engine and one of Linux as members of one group, with one control plane: FRR's routes
//! reach the second one by its agent. The second one is a namespace here, a guest in the lab. Needs root,
//! iproute2 and frr.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;

use crate::control::{neighbour, passes_with_frr, until, Frr, Net, World};
use crate::rig;

/// A router of Linux in a namespace, and its agent.
struct BackEnd {
    net: Net,
    socket: std::path::PathBuf,
    agent: Option<Child>,
}

/// A group of router `r`, with FRR, and of the back-end.
fn group() -> (World, BackEnd) {
    let mut back_end = None;
    let world = World::of(["r0", "r1"], |control, (host, bed)| {
        let net = Net::new();
        net.command("sh").args(["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]).status().unwrap();
        let socket = bed.path("agent.sock");
        let router = format!("r,control={},grace=60,agents=b:{}", control.path(), socket.display());
        let mut args: Vec<String> = ["--group", "g", "--router", &router].map(str::to_owned).into();
        for n in 0..2 {
            let at = n + 1;
            let (side, back) = (format!("v{at}"), format!("b{n}"));
            let link = format!(
                "link add {back} type veth peer name eth{n} address 02:00:00:00:00:0{at} netns {}",
                net.id()
            );
            host.ip(&link);
            host.ip(&format!("link set {back} up"));
            net.ip(&format!("address add 10.0.{at}.1/24 dev eth{n}"));
            net.ip(&format!("link set eth{n} up"));
            let own = format!("mac=02:00:00:00:00:0{at},address=10.0.{at}.1/24");
            for port in [
                format!("g{n}=group:g,interface={n},wire=w{n},{own}"),
                format!("{side}=packet:{side},wire=w{n}"),
                format!("r{n}=router:r,group=g,member=r,interface={n}"),
                format!("{back}=packet:{back},group=g,member=b,interface={n}"),
            ] {
                args.extend(["--port".to_owned(), port]);
            }
        }
        back_end = Some(BackEnd { net, socket, agent: None });
        args
    });
    let mut back_end = back_end.unwrap();
    back_end.start();
    (world, back_end)
}

impl BackEnd {
    fn start(&mut self) {
        let mut command = self.net.command(rig::beside("sidecore-agent").to_str().unwrap());
        let child = command.arg("--listen").arg(&self.socket).stdin(Stdio::null()).spawn().unwrap();
        self.agent = Some(child);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self.agent.as_ref().unwrap()), signal).unwrap();
    }

    fn kill(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            // Fails if it has ended already.
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }

    /// Prefixes of the routes that its kernel has by the agent.
    fn routes(&self) -> Vec<String> {
        let output = self.net.command("ip").args(["route", "show", "proto", "83"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines()
            .filter_map(|line| line.split(' ').find(|word| word.contains('.')).map(str::to_owned))
            .collect()
    }
}

impl Drop for BackEnd {
    fn drop(&mut self) {
        self.kill();
    }
}

fn agent(world: &World) -> Value {
    world.state()["agents"][0].clone()
}

fn is_consistent(world: &World) -> bool {
    let (state, agent) = (world.state(), agent(world));
    agent["state"] == "consistent" && agent["digest"] == state["digest"]
}

fn member(world: &World, name: &str) -> Value {
    let groups = world.bed.show("groups");
    let members = groups["groups"][0]["members"].as_array().unwrap();
    members.iter().find(|it| it["name"] == name).unwrap().clone()
}

#[test]
fn a_router_of_the_engine_and_one_of_linux_pass_the_tests_with_frr() {
    let (world, _back_end) = group();
    passes_with_frr(world);
}

/// Datagrams by many flows, one way: how many of them arrive.
fn cross(world: &World, flows: u16) -> usize {
    let from = world.sides[0].sockets([192, 168, 1, 1].into(), flows);
    let to = world.sides[1].sockets([192, 168, 2, 1].into(), 1).remove(0);
    for socket in &from {
        socket.send_to(b"flow", to.local_addr().unwrap()).unwrap();
    }
    (0..flows).take_while(|_| to.recv(&mut [0; 8]).is_ok()).count()
}

#[test]
fn an_agent_that_is_stopped_lies_or_dies_is_told_again_what_it_lacks() {
    let (world, mut back_end) = group();
    let _frr = world.frr();
    let joins = |name: &str| until("member", || member(&world, name)["state"] == "active");
    joins("b");
    let mut one = Frr::start(&world.sides[0], &world.bed, "one", "", &neighbour(1, 2000));
    let _two = Frr::start(&world.sides[1], &world.bed, "two", "", &neighbour(2, 0));
    until("routes", || world.count("routes") >= 2004 && is_consistent(&world));
    // Both members have flows, and both have routes.
    // What enters the router is inbound there, as at ports of kind switch.
    let sums = || {
        [("r0", "in_frames"), ("b0", "out_frames")]
            .map(|(port, key)| world.bed.port(port)["counters"][key].as_u64().unwrap())
    };
    let before = sums();
    until("flows", || cross(&world, 64) == 64);
    assert!(before.iter().zip(sums()).all(|(before, now)| *before < now), "{before:?} {:?}", sums());

    // Somebody deletes some, alters one and adds one of the same kind: the kernel is as it was soon.
    let all = back_end.routes();
    assert_eq!(all.len() as u64, agent(&world)["routes"].as_u64().unwrap());
    back_end.net.ip("route del 20.0.9.0/24 proto 83");
    back_end.net.ip("route replace blackhole 20.0.10.0/24 proto 83 metric 20");
    back_end.net.ip("route add 77.0.0.0/8 via 10.0.1.2 proto 83 metric 20");
    until("repair", || back_end.routes() == all && is_consistent(&world));

    // Further interfaces have these station addresses, as a VLAN's has that of its parent: they are newer,
    // and one has an address.
    back_end.net.ip("link add v0 address 02:00:00:00:00:01 type veth peer name v1 address 02:00:00:00:00:02");
    back_end.net.ip("link set v0 up");
    back_end.net.ip("link set v1 up");
    back_end.net.ip("address add 10.0.7.1/24 dev v0");
    // All have been looked at again when one that was deleted behind that is back.
    back_end.net.ip("route del 20.0.9.0/24 proto 83");
    until("repair", || back_end.routes() == all && is_consistent(&world));
    back_end.net.ip("link del v0");

    // While it stands still most routes go, and their peer comes back with others: then it is right at once.
    back_end.signal(Signal::STOP);
    one.kill();
    until("withdrawal", || world.count("routes") <= 4);
    let _one = Frr::start(&world.sides[0], &world.bed, "one", "", &neighbour(1, 500));
    until("routes", || world.count("routes") == 504);
    assert!(agent(&world)["behind_ms"].as_u64() > Some(0), "{}", agent(&world));
    back_end.signal(Signal::CONT);
    let begun = Instant::now();
    until("agent's end of standing still", || is_consistent(&world));
    eprintln!("consistent {:?} after it went on", begun.elapsed());
    assert_eq!(agent(&world)["routes"], 504);

    // It dies: its routes stay, and so do flows. The next one takes them over, and removes what went
    // meanwhile.
    back_end.kill();
    until("end of the agent", || agent(&world)["state"] == "unreachable");
    assert_eq!(
        (back_end.routes().len(), &member(&world, "b")["state"]),
        (all.len() - 1500, &"active".into())
    );
    until("flows", || cross(&world, 64) == 64);
    back_end.net.ip("route add 77.0.0.0/8 via 10.0.1.2 proto 83 metric 20");
    back_end.start();
    until("next agent", || is_consistent(&world) && back_end.routes().len() == all.len() - 1500);

    // One that says what is no message is left, and called again; one that says that it has what it has not
    // is told all again, ever less often.
    back_end.kill();
    // It left its socket.
    std::fs::remove_file(&back_end.socket).unwrap();
    let listener = UnixListener::bind(&back_end.socket).unwrap();
    let (mut liar, _) = listener.accept().unwrap();
    liar.write_all(&[0x55; 4096]).unwrap();
    until("garbage", || agent(&world)["malformed"] == 1);
    let (mut liar, _) = listener.accept().unwrap();
    let tables = agent(&world)["tables"].as_u64().unwrap();
    lie(&mut liar, Duration::from_secs(4));
    let told = agent(&world)["tables"].as_u64().unwrap() - tables;
    assert!((3..=5).contains(&told), "{told} tables in 4 s: {}", agent(&world));
    assert_eq!(agent(&world)["state"], "differs");
    drop((liar, listener));
    back_end.start();
    until("an honest agent", || is_consistent(&world));
}

/// A neighbour that announces a network with its bandwidth, as another one does.
fn announces(number: u8, bandwidth: u32) -> String {
    let end = " exit-address-family\n";
    let more = format!("  network 20.0.0.0/24 route-map wide\n{end}");
    let map = format!("route-map wide permit 10\n set extcommunity bandwidth {bandwidth}\n");
    neighbour(number, 0).replacen(end, &more, 1) + &map
}

/// FRR weighs two ways by their neighbours' bandwidths: the router does, and the back-end's kernel.
#[test]
fn weights_reach_the_kernel_of_a_back_end() {
    let (world, back_end) = group();
    let _frr = world.frr();
    let _one = Frr::start(&world.sides[0], &world.bed, "one", "", &announces(1, 300));
    let mut two = Frr::start(&world.sides[1], &world.bed, "two", "", &announces(2, 100));
    let json = |text: String| serde_json::from_str::<Value>(&text).unwrap_or_default();
    let ours = || {
        let answer = json(world.bed.ok(&["show", "routes", "r", "--json"]));
        let route =
            answer["routes"].as_array().unwrap().iter().find(|it| it["prefix"] == "20.0.0.0/24").cloned();
        route.map_or(Value::Null, |route| route["hops"].clone())
    };
    let theirs = || {
        let mut ip = back_end.net.command("ip");
        let output = ip.args(["-json", "route", "show", "20.0.0.0/24", "proto", "83"]).output().unwrap();
        json(String::from_utf8(output.stdout).unwrap())[0].clone()
    };
    // Three of four flows, by gateways.
    let weights = |hops: &Value| -> BTreeMap<String, u64> {
        let hops = hops.as_array().into_iter().flatten();
        hops.map(|hop| (hop["gateway"].as_str().unwrap().to_owned(), hop["weight"].as_u64().unwrap_or(1)))
            .collect()
    };
    let wanted = [("10.0.1.2".to_owned(), 75), ("10.0.2.2".to_owned(), 25)].into();
    until("weights", || weights(&ours()) == wanted);
    until("weights in the kernel", || weights(&theirs()["nexthops"]) == wanted && is_consistent(&world));
    let text = world.bed.ok(&["show", "routes", "r"]);
    assert!(text.lines().any(|line| line.contains("10.0.1.2") && line.contains(" 75 ")), "{text}");
    // They stay when the kernel is looked at, and somebody has altered them.
    back_end.net.ip("route replace 20.0.0.0/24 proto 83 metric 20 nexthop via 10.0.1.2 nexthop via 10.0.2.2");
    until("repair", || weights(&theirs()["nexthops"]) == wanted && is_consistent(&world));
    // One alone has no weight.
    two.kill();
    until("one way", || theirs()["gateway"] == "10.0.1.2" && is_consistent(&world));
    assert!(ours()[0]["weight"].is_null() && ours().as_array().unwrap().len() == 1, "{}", ours());
}

/// Says that it has another table than it was told, for so long. Its own reading of the protocol.
fn lie(stream: &mut std::os::unix::net::UnixStream, time: Duration) {
    use std::io::Read;
    let message = |kind: u16, body: &[u8]| {
        let len = 16 + body.len() as u32;
        let netlink = [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], body].concat();
        [&[1, 1][..], &(4 + len as u16).to_be_bytes(), &netlink].concat()
    };
    let number = 7u64.to_ne_bytes();
    stream.write_all(&message(0x7300, &[&b"sidecore"[..], &number].concat())).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let state = |at: &[u8]| message(0x7305, &[&number[..], at, &[1; 8], &[1, 0, 0, 0, 0, 0, 0, 0]].concat());
    let (begun, mut all, mut room, mut at) = (Instant::now(), Vec::new(), vec![0; 65_536], [0; 8]);
    while begun.elapsed() < time {
        match stream.read(&mut room) {
            Ok(len) => all.extend(&room[..len]),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => stream.write_all(&state(&at)).unwrap(),
            Err(e) => panic!("{e}"),
        }
        while let Some(len) = all.get(2..4).map(|len| usize::from(u16::from_be_bytes([len[0], len[1]]))) {
            if all.len() < len {
                break;
            }
            let frame: Vec<u8> = all.drain(..len).collect();
            if frame[8..10] == 0x7304u16.to_ne_bytes() {
                at.copy_from_slice(&frame[20..28]);
                stream.write_all(&state(&at)).unwrap();
            }
        }
    }
}

#[test]
fn agents_that_cannot_be_are_refused() {
    let bed = rig::Testbed::new();
    let router = |agents: &str| format!("r,control=/proc/self/ns/net,agents={agents}");
    let run = |router: &str, more: &[&str]| {
        let ports = [
            "g0=group:g,interface=0,mac=02:00:00:00:00:01",
            "r0=router:r,group=g,member=r,interface=0",
            "b0=ring:b0,group=g,member=b,interface=0",
        ];
        let ports = ports.iter().flat_map(|port| ["--port", port]);
        let words: Vec<&str> = ["run", "--group", "g", "--router", router].into_iter().chain(ports).collect();
        bed.fails(&[&words, more].concat())
    };
    let text = run(&router("c:/run/c.agent"), &[]);
    assert!(text.contains("no group of this router has another member \"c\"; allowed: b"), "{text}");
    let text = run(&router("r:/run/c.agent"), &[]);
    assert!(text.contains("no group of this router has another member \"r\""), "{text}");
    let text = run(&router("b:/run/b.agent+b:/run/c.agent"), &[]);
    assert!(text.contains("one agent has one member"), "{text}");
    let text = run(&router("b"), &[]);
    assert!(text.contains("allowed: MEMBER:/PATH"), "{text}");
    let text = run("r,agents=b:/run/b.agent", &[]);
    assert!(text.contains("`agents`: does not apply to a router without a control plane"), "{text}");
}
