//! A router with a control plane: FRR, as Debian packages it, in a namespace of its own; a neighbour with FRR
//! on either side. Routes come by BGP, packets pass between the neighbours, FRR is killed and comes back, a
//! flood drops no session, BGP's or BFD's. Needs root, iproute2 and frr.

use crate::rig;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::rig::{Daemon, Testbed};
use rustix::process::Signal;
use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};
use serde_json::Value;

/// Routing daemons take their time, on a busy machine above all.
const LIMIT: Duration = Duration::from_secs(90);
/// How often that is asked for which tells of no change by itself.
const PAUSE: Duration = Duration::from_millis(50);
/// Routes that the first neighbour announces beside its own.
const MANY: u32 = 10_000;

/// A network namespace; it goes with the process that holds it.
pub struct Net(Child);

impl Net {
    pub fn new() -> Net {
        // Ends when its standard input does, which is with us at the latest.
        let mut command = rig::unshare();
        let holder =
            command.args(["--net", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let net = Net(holder);
        let ours = std::fs::read_link("/proc/self/ns/net").unwrap();
        until("a namespace", || std::fs::read_link(net.path()).is_ok_and(|theirs| theirs != ours));
        net.ip("link set lo up");
        net
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.id())
    }

    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path())).arg(program).stdin(Stdio::null());
        command
    }

    pub fn ip(&self, line: &str) {
        let output = self.command("ip").args(line.split(' ')).output().unwrap();
        assert!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// A socket of this namespace, for as long as it lives.
    fn socket(&self, address: Ipv4Addr) -> UdpSocket {
        self.sockets(address, 1).remove(0)
    }

    /// As many of them, of which each has a port of its own.
    pub fn sockets(&self, address: Ipv4Addr, count: u16) -> Vec<UdpSocket> {
        let space = std::fs::File::open(self.path()).unwrap();
        let made = std::thread::scope(|scope| {
            let make = || {
                move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                (0..count).map(|n| UdpSocket::bind((address, 5000 + n)).unwrap()).collect::<Vec<_>>()
            };
            scope.spawn(make).join().unwrap()
        });
        made.iter().for_each(|it| it.set_read_timeout(Some(Duration::from_millis(200))).unwrap());
        made
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // Fails if it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until `done` says so.
pub fn until(what: &str, mut done: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "no {what}");
        std::thread::park_timeout(PAUSE);
    }
    start.elapsed()
}

/// zebra and bgpd in one namespace, and bfdd where it is wanted.
pub struct Frr(Vec<Child>);

impl Frr {
    pub fn start(net: &Net, bed: &Testbed, name: &str, zebra: &str, bgp: &str) -> Frr {
        Frr::start_with(net, bed, name, zebra, bgp, None)
    }

    fn start_with(net: &Net, bed: &Testbed, name: &str, zebra: &str, bgp: &str, bfd: Option<&str>) -> Frr {
        // bgpd asks bfdd for sessions, if it is there.
        let all = [Some(("zebra", zebra)), bfd.map(|bfd| ("bfdd", bfd)), Some(("bgpd", bgp))];
        let all: Vec<_> = all.into_iter().flatten().collect();
        let mut frr = Frr::of(net, bed, name, &all);
        frr.0[1..].reverse();
        frr
    }

    /// These programs, each with its configuration, one when the other is there.
    fn of(net: &Net, bed: &Testbed, name: &str, programs: &[(&str, &str)]) -> Frr {
        rig::needs("/usr/lib/frr/zebra", "frr");
        let dir = bed.path(name);
        // Left by those that were killed.
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        // FRR becomes a user of its own.
        std::fs::set_permissions(bed.path("."), PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o777)).unwrap();
        let at = |file: &str| dir.join(file).to_str().unwrap().to_owned();
        let start = |(program, configuration): &(&str, &str)| {
            let conf = at(&format!("{program}.conf"));
            std::fs::write(&conf, configuration).unwrap();
            let mut command = installed_or_unpacked(net, program);
            command.args(["-f", &conf, "-i", &at(&format!("{program}.pid"))]);
            command.args(["-z", &at("zserv.api"), "--vty_socket", &at(""), "-P", "0"]);
            let ready = match *program {
                "zebra" => {
                    let fpm = configuration.contains("fpm");
                    command.args(if fpm { &["-M", "dplane_fpm_nl"][..] } else { &[] });
                    "zserv.api".to_owned()
                }
                "bfdd" => {
                    command.args(["--bfdctl", &at("bfdd.sock")]);
                    "bfdd.vty".to_owned()
                }
                program => format!("{program}.vty"),
            };
            let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            until(program, || dir.join(&ready).exists());
            child
        };
        Frr(programs.iter().map(start).collect())
    }

    /// What a command of the routing daemons prints as JSON; null while they cannot be asked.
    fn ask(bed: &Testbed, name: &str, command: &str) -> Value {
        let mut vtysh = Command::new("vtysh");
        vtysh.arg("--vty_socket").arg(bed.path(name)).args(["-c", command]).stderr(Stdio::null());
        serde_json::from_slice(&vtysh.output().unwrap().stdout).unwrap_or_default()
    }

    /// Kills the one that was started last.
    pub fn kill_last(&mut self) {
        let mut last = self.0.pop().unwrap();
        last.kill().unwrap();
        last.wait().unwrap();
    }

    pub fn kill(&mut self) {
        for child in &mut self.0 {
            // Fails if it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
        self.0.clear();
    }
}

impl Drop for Frr {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The system's daemon, or that of the FRR which is unpacked at `SIDECORE_FRR` (`sidecore-lab fetch frr`),
/// with libraries of its own.
fn installed_or_unpacked(net: &Net, program: &str) -> Command {
    let Ok(root) = std::env::var("SIDECORE_FRR") else {
        return net.command(&format!("/usr/lib/frr/{program}"));
    };
    let libraries = format!("{root}/usr/lib/x86_64-linux-gnu");
    let mut command = net.command(&format!("{root}/usr/lib64/ld-linux-x86-64.so.2"));
    command.args(["--library-path", &format!("{libraries}:{libraries}/frr")]);
    command.arg(format!("{root}/usr/lib/frr/{program}"));
    command.args(["--moduledir", &format!("{libraries}/frr/modules")]);
    command
}

/// What a neighbour announces: its own address, and `many` networks of 256 addresses.
pub fn neighbour(number: u8, many: u32) -> String {
    let more: String = (0..many)
        .map(|i| format!("  network {}/24\n", Ipv4Addr::from_bits(0x1400_0000 + (i << 8))))
        .collect();
    format!(
        "router bgp 6500{number}\n no bgp ebgp-requires-policy\n no bgp network import-check\n timers bgp 1 30\n \
         neighbor 10.0.{number}.1 remote-as 65000\n neighbor 10.0.{number}.1 timers connect 1\n \
         address-family ipv4 unicast\n  network 192.168.{number}.1/32\n{more} exit-address-family\n"
    )
}

const OURS: &str = "router bgp 65000\n no bgp ebgp-requires-policy\n timers bgp 1 30\n bgp bestpath as-path multipath-relax\n \
    neighbor 10.0.1.2 remote-as 65001\n neighbor 10.0.1.2 timers connect 1\n \
    neighbor 10.0.2.2 remote-as 65002\n neighbor 10.0.2.2 timers connect 1\n";
const FPM: &str = "fpm address 127.0.0.1 port 2620\n";

pub struct World {
    host: Net,
    control: Net,
    pub sides: [Net; 2],
    pub bed: Testbed,
    args: Vec<String>,
    daemon: Option<Daemon>,
    /// The router's ports.
    ports: [&'static str; 2],
}

impl World {
    fn new() -> World {
        World::of(["v1", "v2"], |control, _| {
            let router = vec!["--router".to_owned(), format!("r,control={},grace=60", control.path())];
            let port = |n| format!("v{n}=packet:v{n},router=r,address=10.0.{n}.1/24");
            router
                .into_iter()
                .chain([1, 2].into_iter().flat_map(|n| ["--port".to_owned(), port(n)]))
                .collect()
        })
    }

    /// The router has these ports; `configure` says all that the daemon is told.
    pub fn of(
        ports: [&'static str; 2],
        configure: impl FnOnce(&Net, (&Net, &Testbed)) -> Vec<String>,
    ) -> World {
        let (host, control, bed) = (Net::new(), Net::new(), Testbed::new());
        let args = configure(&control, (&host, &bed));
        let sides = [1, 2].map(|n| {
            let side = Net::new();
            host.ip(&format!("link add v{n} type veth peer name eth0 netns {}", side.0.id()));
            side.ip(&format!("address add 10.0.{n}.2/24 dev eth0"));
            side.ip(&format!("address add 192.168.{n}.1/32 dev lo"));
            side.ip("link set eth0 up");
            // Not by BGP: what is looked at is what the router does.
            side.ip(&format!("route add default via 10.0.{n}.1"));
            side
        });
        let mut world = World { host, control, sides, bed, args, daemon: None, ports };
        world.start();
        world
    }

    pub fn start(&mut self) {
        self.daemon = Some(Daemon::start(inside(&self.host, &self.bed).arg("run").args(&self.args)));
    }

    pub fn end(&mut self, signal: Signal) -> std::process::ExitStatus {
        self.daemon.take().unwrap().end(signal)
    }

    /// The control plane's state.
    pub fn state(&self) -> Value {
        self.bed.show("routers")["routers"][0]["control"].clone()
    }

    pub fn count(&self, key: &str) -> u64 {
        self.state()[key].as_u64().unwrap()
    }

    fn class(&self, name: &str, key: &str) -> u64 {
        let classes = self.state()["classes"].clone();
        let class = classes.as_array().unwrap().iter().find(|class| class["class"] == name);
        class.unwrap()[key].as_u64().unwrap()
    }

    pub fn frr(&self) -> Frr {
        Frr::start(&self.control, &self.bed, "control", FPM, OURS)
    }
}

fn inside(net: &Net, bed: &Testbed) -> Command {
    let mut command = net.command(env!("CARGO_BIN_EXE_sidecore"));
    command.env("SIDECORE_SOCKET", bed.path("control.sock")).env_remove("NOTIFY_SOCKET");
    command.current_dir(bed.path("."));
    command
}

/// Sends numbered datagrams from `from` to `to` until `done`; how many did not arrive within `late` after the
/// last one that did.
fn stream(from: &UdpSocket, to: &UdpSocket, late: Duration, mut done: impl FnMut() -> bool) -> (u32, u32) {
    let (mut sent, mut missing) = (0u32, BTreeSet::new());
    let mut bytes = [0; 64];
    // The number of the next one that comes; none: it takes too long.
    let mut next = || loop {
        match to.recv(&mut bytes) {
            Ok(4) => return Some(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
            Ok(_) => return Some(0),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return None,
            // A receive with a timeout is not restarted after the test was stopped and went on (signal(7)).
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => panic!("{e}"),
        }
    };
    while !done() {
        sent += 1;
        missing.insert(sent);
        from.send_to(&sent.to_ne_bytes(), to.local_addr().unwrap()).unwrap();
        while let Some(number) = next() {
            missing.remove(&number);
            if number == sent {
                break;
            }
        }
    }
    let mut last = Instant::now();
    while !missing.is_empty() && last.elapsed() < late {
        if let Some(number) = next() {
            missing.remove(&number);
            last = Instant::now();
        }
    }
    (sent, u32::try_from(missing.len()).unwrap())
}

#[test]
fn routes_come_from_frr_and_forwarding_outlives_it() {
    passes_with_frr(World::new());
}

/// The router of `world` has FRR, alone or beside others of a group.
pub fn passes_with_frr(mut world: World) {
    let mut frr = world.frr();
    let mut neighbours = [
        Frr::start(&world.sides[0], &world.bed, "one", "", &neighbour(1, MANY)),
        Frr::start(&world.sides[1], &world.bed, "two", "", &neighbour(2, 0)),
    ];
    let took = until("route", || world.count("routes") >= u64::from(MANY) + 2);
    eprintln!("{MANY} routes after {took:?}: {}", world.state());
    assert_eq!((world.count("malformed"), world.count("refused")), (0, 0));

    // What the control plane says is what is done, and is told of.
    let text = world.bed.ok(&["explain", "r", "192.168.2.1"]);
    assert!(
        text.contains("route: 192.168.2.1/32 (fpm)")
            && text.contains(&format!("next hop: 10.0.2.2 at port {}", world.ports[1])),
        "{text}"
    );
    let sockets = [1u8, 2].map(|n| world.sides[usize::from(n) - 1].socket([192, 168, n, 1].into()));
    let [one, two] = &sockets;
    until("datagram across", || crosses(one, two) && crosses(two, one));

    // A flood that the router itself has to answer, and one that is for it: the sessions stay.
    let (connections, changes) = (world.count("connections"), world.count("messages"));
    one.set_ttl(1).unwrap();
    (0..100_000).for_each(|_| drop(one.send_to(&[7; 8], ("192.168.2.1", 9))));
    one.set_ttl(64).unwrap();
    let many = world.sides[0].sockets([10, 0, 1, 2].into(), 64);
    (0..100_000).for_each(|n| drop(many[n % many.len()].send_to(&[7; 8], ("10.0.1.1", 9))));
    // What the floods have left in queues on the way may have taken the room of others.
    until("datagram across", || crosses(one, two));
    let (sent, lost) = stream(one, two, LIMIT, a_while(Duration::from_secs(3)));
    assert_eq!(lost, 0, "of {sent}");
    assert!(world.class("other", "refused") > 0 && world.class("bgp", "passed") > 0, "{}", world.state());
    assert_eq!((world.class("bgp", "refused"), world.count("connections")), (0, connections));
    assert_eq!((world.count("messages"), world.count("routes")), (changes, u64::from(MANY) + 4));

    // Killed: nothing is lost. Back again: all is said anew, and nothing is lost.
    let digest = world.state()["digest"].clone();
    frr.kill();
    until("end of FRR", || world.state()["connected"] == false);
    let (sent, lost) = stream(one, two, LIMIT, a_while(Duration::from_secs(2)));
    assert_eq!(lost, 0, "of {sent} while FRR was away");
    assert_eq!((world.count("stale"), &world.state()["digest"]), (u64::from(MANY) + 4, &digest));
    let gone = format!("router r: zebra has gone; {} routes stay for ", MANY + 4);
    assert!(world.bed.ok(&["events"]).contains(&gone), "{gone}");
    frr = world.frr();
    let begun = Instant::now();
    let (sent, lost) = stream(one, two, LIMIT, || {
        assert!(begun.elapsed() < LIMIT, "{}", world.state());
        world.state()["connected"] == true && world.count("stale") == 0
    });
    assert!(sent > 0 && lost == 0, "{lost} of {sent} while FRR came back");
    assert_eq!(world.count("routes"), u64::from(MANY) + 4);

    // The daemon is killed under FRR: the next one takes the interfaces, and all comes back.
    world.end(Signal::KILL);
    world.start();
    until("all of it again", || {
        world.count("routes") == u64::from(MANY) + 4 && world.state()["connected"] == true
    });
    until("datagram across", || crosses(one, two) && crosses(two, one));

    // What is gone there is gone here.
    neighbours[0].kill();
    until("withdrawal", || world.count("routes") <= 3 + 1);
    assert!(!world.bed.ok(&["explain", "r", "20.0.9.1"]).contains("fpm"));
    frr.kill();
    drop(neighbours);

    // The daemon's end leaves the interfaces for the next one; a port that goes takes its own along.
    let there = |world: &World| {
        let output = world.control.command("ip").args(["-o", "link"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let [stays, goes] = world.ports;
    world.bed.ok(&["del", goes]);
    let has = |world: &World, name: &str| there(world).contains(&format!(" {name}:"));
    assert!(has(&world, stays) && !has(&world, goes), "{}", there(&world));
    assert!(world.end(Signal::TERM).success());
    assert!(has(&world, stays), "{}", there(&world));
}

/// BFD between neighbours, and over several hops, through the router's ports. Floods to its ports from afar
/// drop no session. When a neighbour's BFD goes silent its BGP session ends, long before BGP would notice.
#[test]
fn bfd_sessions_stay_in_floods_and_end_when_the_neighbour_does() {
    let world = World::new();
    let slow = " detect-multiplier 10\n exit\n";
    let bfd = |peer: &str, own: &str| {
        format!("bfd\n profile slow\n {slow} peer {peer} multihop local-address {own}\n {slow}")
    };
    // The neighbour has to be known before it gets BFD.
    let behind = |bgp: &str, peer: &str| {
        let line = format!(" neighbor {peer} timers connect 1\n");
        bgp.replacen(&line, &format!("{line} neighbor {peer} bfd\n neighbor {peer} bfd profile slow\n"), 1)
    };
    let ours = behind(OURS, "10.0.1.2");
    let bfd_ours = bfd("192.168.1.1", "10.0.1.1");
    let _frr = Frr::start_with(&world.control, &world.bed, "control", FPM, &ours, Some(&bfd_ours));
    let theirs = behind(&neighbour(1, 0), "10.0.1.1");
    let bfd_theirs = bfd("10.0.1.1", "192.168.1.1");
    let mut one = Frr::start_with(&world.sides[0], &world.bed, "one", "", &theirs, Some(&bfd_theirs));
    let peers = || Frr::ask(&world.bed, "control", "show bfd peers json");
    let status = |peer: &str| {
        let peers = peers();
        let peer = peers.as_array().and_then(|all| all.iter().find(|it| it["peer"] == peer).cloned());
        peer.map_or(Value::Null, |peer| peer["status"].clone())
    };
    until("BFD sessions", || status("10.0.1.2") == "up" && status("192.168.1.1") == "up");
    assert!(
        world.class("bfd", "passed") > 0 && world.class("bfd-multihop", "passed") > 0,
        "{}",
        world.state()
    );

    // To both ports, as a distant host could: what a neighbour sends is another class.
    let socket = world.sides[0].socket([192, 168, 1, 1].into());
    let flood = |port: u16| (0..100_000).for_each(|_| drop(socket.send_to(&[0x20; 24], ("10.0.1.1", port))));
    flood(3784);
    flood(4784);
    until("an end of the floods", || {
        world.class("bfd-multihop", "refused") > 0 && world.class("other", "refused") > 0
    });
    assert_eq!(world.class("bfd", "refused"), 0, "{}", world.state());
    let downs = || {
        let all = Frr::ask(&world.bed, "control", "show bfd peers counters json");
        let near = all.as_array().and_then(|all| all.iter().find(|it| it["peer"] == "10.0.1.2").cloned());
        near.and_then(|near| near["session-down"].as_u64())
    };
    assert_eq!((downs(), status("10.0.1.2")), (Some(0), "up".into()));
    let state = Frr::ask(&world.bed, "control", "show bgp neighbors 10.0.1.2 json");
    assert_eq!(state["10.0.1.2"]["connectionsDropped"], 0, "{state}");

    // Its BFD alone goes. BGP by itself would never end: both sides go on sending keepalives.
    let mut bfdd = one.0.pop().unwrap();
    bfdd.kill().unwrap();
    bfdd.wait().unwrap();
    let dropped = || {
        let all = Frr::ask(&world.bed, "control", "show bgp neighbors 10.0.1.2 json");
        all["10.0.1.2"]["connectionsDropped"].as_u64()
    };
    until("end of the BGP session by BFD", || dropped().is_some_and(|count| count > 0));
    assert_eq!(downs(), Some(1));
}

/// Two routers of one daemon, each with FRR, and nothing but a switch between them. OSPF there finds the
/// other's loopback address, BGP speaks from one of these to the other, and what is behind the one router
/// reaches what is behind the other.
#[test]
fn routing_daemons_of_two_routers_speak_over_a_switch() {
    let (host, bed, spaces) = (Net::new(), Testbed::new(), [Net::new(), Net::new()]);
    let mut args = ["--switch", "mid"].map(str::to_owned).to_vec();
    let sides = [1, 2].map(|n| {
        let side = Net::new();
        host.ip(&format!("link add v{n} type veth peer name eth0 netns {}", side.0.id()));
        side.ip(&format!("address add 10.0.{n}.2/24 dev eth0"));
        side.ip("link set eth0 up");
        side.ip(&format!("route add default via 10.0.{n}.1"));
        args.extend(["--router".to_owned(), format!("r{n},control={}", spaces[n - 1].path())]);
        args.extend(["--port".to_owned(), format!("v{n}=packet:v{n},router=r{n},address=10.0.{n}.1/24")]);
        args.extend(["--port".to_owned(), format!("m{n}=switch:mid,router=r{n},address=192.0.2.{n}/24")]);
        side
    });
    let _daemon = Daemon::start(inside(&host, &bed).arg("run").args(&args));
    let frr = |n: usize| {
        let other = 3 - n;
        let zebra = format!("{FPM}interface lo\n ip address 10.255.0.{n}/32\n");
        let ospf = format!(
            "interface m{n}\n ip ospf network point-to-point\n ip ospf hello-interval 1\n ip ospf dead-interval 20\n\
             router ospf\n ospf router-id 10.255.0.{n}\n network 192.0.2.0/24 area 0\n \
             network 10.255.0.{n}/32 area 0\n"
        );
        let bgp = format!(
            "router bgp 65000\n bgp router-id 10.255.0.{n}\n no bgp network import-check\n timers bgp 1 30\n \
             neighbor 10.255.0.{other} remote-as 65000\n neighbor 10.255.0.{other} update-source 10.255.0.{n}\n \
             neighbor 10.255.0.{other} timers connect 1\n \
             address-family ipv4 unicast\n  network 10.0.{n}.0/24\n exit-address-family\n"
        );
        let all = [("zebra", &zebra[..]), ("ospfd", &ospf), ("bgpd", &bgp)];
        Frr::of(&spaces[n - 1], &bed, &format!("frr{n}"), &all)
    };
    let _frr = [frr(1), frr(2)];
    let explain = |router: &str, to: &str| -> Value {
        serde_json::from_str(&bed.ok(&["explain", router, to, "--json"])).unwrap()
    };
    until("route of BGP", || {
        let (there, back) = (explain("r1", "10.0.2.2"), explain("r2", "10.0.1.2"));
        [&there, &back].iter().all(|it| it["origin"] == "fpm" && it["action"] == "forward")
    });
    let there = explain("r1", "10.0.2.2");
    let hop = &there["hops"][0];
    assert_eq!((&hop["gateway"], &hop["port"]), (&"192.0.2.2".into(), &"m1".into()), "{there}");
    let state = Frr::ask(&bed, "frr1", "show bgp neighbors 10.255.0.2 json");
    assert_eq!(state["10.255.0.2"]["bgpState"], "Established", "{state}");
    for (n, other) in [(1, 2), (2, 1)] {
        let own = explain(&format!("r{n}"), &format!("10.255.0.{n}"));
        assert_eq!((&own["action"], &own["origin"]), (&"answer".into(), &"own".into()), "{own}");
        assert_eq!(explain(&format!("r{n}"), &format!("10.255.0.{other}"))["origin"], "fpm");
        assert!(bed.ok(&["show", "routers"]).contains(&format!("addresses at no port: 10.255.0.{n}\n")));
    }

    // Packets pass both routers.
    let sockets = [1u8, 2].map(|n| sides[usize::from(n) - 1].socket([10, 0, n, 2].into()));
    let [one, two] = &sockets;
    until("datagram across", || crosses(one, two) && crosses(two, one));
    // Nobody listens at the loopback addresses' port: the near and the far one say so.
    for n in [1, 2] {
        one.connect((Ipv4Addr::new(10, 255, 0, n), 9)).unwrap();
        until("answer of a loopback address", || {
            // Reports the answer to an earlier one.
            let _ = one.send(&[7; 8]);
            one.recv(&mut [0; 8]).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused)
        });
    }

    // zebra says its loopback routes, which the kernel has in another table: that is no difference.
    let control = |n: usize| bed.show("routers")["routers"][n]["control"].clone();
    until("comparison", || [0, 1].iter().all(|n| control(*n)["comparisons"].as_u64() >= Some(2)));
    for n in [0, 1] {
        assert_eq!(
            (&control(n)["corrected"], &control(n)["replays"]),
            (&0.into(), &0.into()),
            "{}",
            control(n)
        );
    }
    // An address that goes is the router's no more.
    spaces[0].ip("address del 10.255.0.1/32 dev lo");
    until("end of the address", || explain("r1", "10.255.0.1")["action"] != "answer");
    assert_eq!(control(0)["addresses"], serde_json::json!([]));
}

/// Two hundred thousand are the benchmark's own number.
#[test]
fn ten_thousand_routes_are_in_force_after_frr_has_said_them() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sidecore"));
    let words = ["bench", "routes", "--routes", "10000", "--rounds", "1", "--changes", "30", "--json"];
    let output = command.args(words).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    // It succeeds only if all digests were what was announced.
    assert!(output.status.success() && errors.contains("round 1/1: "), "{errors}");
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&answer["version"], &answer["bench"]), (&1.into(), &"routes".into()));
    let (rows, changes) = (answer["rows"].as_array().unwrap(), answer["changes"].as_array().unwrap());
    assert_eq!((rows.len(), changes.len(), &rows[0]["routes"]), (2, 30, &10_000.into()));
    let summary = &answer["summary"];
    let number = |key: &str| summary[key].as_f64().unwrap();
    // How long it takes depends on what else the machine does.
    assert!(number("consistent_s") > 0.0 && number("change_median_ms") > 0.0, "{summary}");
    assert!(number("change_p99_ms") >= number("change_median_ms"), "{summary}");
    eprintln!("{summary}");
}

/// Whether one datagram arrives soon.
fn crosses(from: &UdpSocket, to: &UdpSocket) -> bool {
    let mut asked = false;
    stream(from, to, Duration::ZERO, || std::mem::replace(&mut asked, true)).1 == 0
}

/// False for a hundred times, and for as long.
fn a_while(time: Duration) -> impl FnMut() -> bool {
    let (begun, mut asked) = (Instant::now(), 0);
    move || {
        asked += 1;
        asked > 100 && begun.elapsed() > time
    }
}

/// A peer that is no zebra costs nothing but its connection; one that speaks FPM is believed as long as it
/// makes sense.
#[test]
fn garbage_costs_its_connection() {
    use std::io::{Read, Write};
    let world = World::new();
    until("listener", || world.state()["trouble"].is_null());
    let connect = || {
        let space = std::fs::File::open(world.control.path()).unwrap();
        std::thread::scope(|scope| {
            let make = || {
                move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                until("connection", || std::net::TcpStream::connect("127.0.0.1:2620").is_ok());
                std::net::TcpStream::connect("127.0.0.1:2620").unwrap()
            };
            scope.spawn(make).join().unwrap()
        })
    };
    let mut peer = connect();
    peer.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    peer.set_read_timeout(Some(LIMIT)).unwrap();
    assert!(matches!(peer.read(&mut [0; 8]), Ok(0) | Err(_)), "the connection ends");
    // Half a frame, and silence: nothing of it counts. The next peer takes its place.
    let mut peer = connect();
    peer.write_all(&[1, 1, 0, 60, 9]).unwrap();
    let mut next = connect();
    // 20.0.0.0/8 is dropped: RTM_NEWROUTE, table main, by BGP, blackhole.
    let route = [
        &[28 + 8, 0, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..],
        &[2, 8, 0, 0, 254, 186, 0, 6, 0, 0, 0, 0],
        &[8, 0, 1, 0, 20, 0, 0, 0],
    ]
    .concat();
    next.write_all(&[&[1, 1, 0, 40][..], &route].concat()).unwrap();
    until("route", || world.count("routes") == 1);
    assert!(world.count("malformed") >= 1 && world.count("connections") >= 3);
    assert!(world.bed.ok(&["explain", "r", "20.9.9.9"]).contains("dropped, blackhole"));
    assert!(world.bed.ok(&["show", "routers"]).contains("zebra is connected"));

    // The kernel has not what was said, and has what was not: the one goes, and for the other all is to be
    // said again.
    world.control.ip("route add 30.0.0.0/8 dev v1 proto 186");
    until("correction", || world.count("routes") == 0);
    next.set_read_timeout(Some(LIMIT)).unwrap();
    assert!(matches!(next.read(&mut [0; 8]), Ok(0) | Err(_)), "the connection ends");
    assert_eq!((world.count("corrected"), world.count("replays")), (1, 1));
}
