//! A router of the real daemon, with two stations at ring ports: neighbours, forwarding, ping, errors; routes
//! while it runs, what is shown and explained, and a restart.

use std::net::Ipv6Addr;
use std::time::Instant;

use crate::rig::{until, Daemon, Testbed, LIMIT};
use rustix::process::Signal;
use serde_json::Value;
use sidecore_engine::packet::Sum;
use sidecore_port::{Interest, Port};

/// A station: a program at a ring port.
struct Station {
    port: Port,
    mac: [u8; 6],
    address: [u8; 4],
    /// The router's address, and its station, once that is known.
    gateway: [u8; 4],
    router: [u8; 6],
}

const FORWARD: &str = "a=ring:DIR/a,router=r,address=10.0.0.1/24,2001:db8:a::1/64";

fn specs(bed: &Testbed) -> Vec<String> {
    let a = FORWARD.replace("DIR/a", &bed.at("a"));
    let b = format!("b=ring:{},router=r,address=10.0.1.1/24", bed.at("b"));
    ["--router", "r", "--port", &a, "--port", &b].map(str::to_owned).into()
}

fn start(bed: &Testbed) -> Daemon {
    let args = specs(bed);
    bed.daemon(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

fn checked(mut bytes: Vec<u8>, at: usize) -> Vec<u8> {
    let sum = Sum::of(&bytes).checksum().to_be_bytes();
    bytes[at..at + 2].copy_from_slice(&sum);
    bytes
}

impl Station {
    /// Attached and acquainted with the router.
    fn new(bed: &Testbed, name: &str, net: u8) -> Station {
        let port = Port::attach(&bed.at(name)).unwrap();
        let (mac, address, gateway) = ([2, 9, 9, 9, 9, net], [10, 0, net, 9], [10, 0, net, 1]);
        let mut station = Station { port, mac, address, gateway, router: [0; 6] };
        let body = [&mac[..], &address, &[0; 6], &gateway].concat();
        let request = [&[0xff; 6][..], &mac, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &body].concat();
        station.send(&request);
        let reply = station.receive();
        assert_eq!((&reply[..6], &reply[20..22], &reply[28..32]), (&mac[..], &[0, 2][..], &gateway[..]));
        station.router.copy_from_slice(&reply[22..28]);
        station
    }

    fn send(&mut self, frame: &[u8]) {
        assert!(self.port.tx[0].push(frame));
        self.port.tx[0].sync().unwrap();
    }

    fn receive(&mut self) -> Vec<u8> {
        let slot = self.port.rx[0].take().map(|slot| slot.bytes().to_vec());
        let bytes = slot.unwrap_or_else(|| {
            assert!(self.port.wait(Interest::RECEIVE, Some(LIMIT)).unwrap(), "no frame arrives");
            self.port.rx[0].take().unwrap().bytes().to_vec()
        });
        self.port.rx[0].sync().unwrap();
        bytes
    }

    /// A packet through the router.
    fn packet(&self, dst: [u8; 4], ttl: u8, protocol: u8, payload: &[u8]) -> Vec<u8> {
        self.packet_from(self.address, dst, ttl, protocol, payload)
    }

    /// A packet with a source that may be forged.
    fn packet_from(&self, src: [u8; 4], dst: [u8; 4], ttl: u8, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let len = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
        let fixed = [0, 1, 0x40, 0, ttl, protocol, 0, 0];
        let header = checked([&[0x45, 0], &len[..], &fixed, &src, &dst].concat(), 10);
        [&self.router[..], &self.mac, &[8, 0], &header, payload].concat()
    }

    fn datagram(&self, dst: [u8; 4]) -> Vec<u8> {
        self.packet(dst, 64, 17, &[0x5a; 26])
    }

    /// Asks the router for the station of `gateway`, and says which its own is.
    fn meet6(&mut self, own: &Ipv6Addr, gateway: &Ipv6Addr) {
        let (own, gateway) = (own.octets(), gateway.octets());
        let message = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &gateway, &[1, 1], &self.mac].concat();
        let mut sum = Sum::pseudo(&own, &gateway, 58, message.len());
        sum.add(&message);
        let mut frame = self.packet6(&own.into(), &gateway.into(), 255, 58, &message);
        frame[56..58].copy_from_slice(&sum.checksum().to_be_bytes());
        self.send(&frame);
        assert_eq!(self.receive()[54], 136);
    }

    fn packet6(&self, src: &Ipv6Addr, dst: &Ipv6Addr, hops: u8, next: u8, payload: &[u8]) -> Vec<u8> {
        let len = u16::try_from(payload.len()).unwrap().to_be_bytes();
        let fixed = [&[0x60, 0, 0, 0][..], &len, &[next, hops]].concat();
        [&self.router[..], &self.mac, &[0x86, 0xdd], &fixed, &src.octets(), &dst.octets(), payload].concat()
    }
}

/// The drops of all ports, as soon as each frame that came has its fate.
fn drops(bed: &Testbed) -> Value {
    let start = Instant::now();
    loop {
        let all = bed.show("ports");
        let ports = all["ports"].as_array().unwrap();
        // What passes a router's port on a switch stays inside.
        let ends = |key: &str, port: &&Value| port["state"]["kind"] != "switch" || !key.ends_with("_frames");
        let of = |key: &str| {
            let all = ports.iter().filter(|port| ends(key, port));
            all.map(|port| port["counters"][key].as_u64().unwrap()).sum::<u64>()
        };
        let dropped: u64 = ports
            .iter()
            .flat_map(|port| {
                port["counters"]["drops"].as_object().unwrap().values().filter_map(Value::as_u64)
            })
            .sum();
        if of("in_frames") + of("made") == of("out_frames") + dropped {
            return ports.iter().map(|port| port["counters"]["drops"].clone()).collect();
        }
        assert!(start.elapsed() < LIMIT, "{all}");
    }
}

#[test]
fn frames_are_routed_and_what_is_not_is_told() {
    let bed = Testbed::new();
    let _daemon = start(&bed);
    let (mut a, mut b) = (Station::new(&bed, "a", 0), Station::new(&bed, "b", 1));

    // On: other stations, one hop less, the rest as it was.
    let sent = a.datagram(b.address);
    a.send(&sent);
    let got = b.receive();
    assert_eq!((&got[..6], &got[6..12], got[22]), (&b.mac[..], &b.router[..], 63));
    assert_eq!((&got[26..], Sum::of(&got[14..34]).value()), (&sent[26..], 0xffff));

    // Ping, of the near and of the far address of the router.
    for gateway in [a.gateway, b.gateway] {
        let ping = a.packet(gateway, 64, 1, &checked([&[8, 0, 0, 0, 0, 7, 0, 1][..], &[3; 80]].concat(), 2));
        a.send(&ping);
        let got = a.receive();
        assert_eq!((&got[26..30], &got[30..34], got[34]), (&gateway[..], &a.address[..], 0));
        assert_eq!((Sum::of(&got[34..]).value(), &got[42..]), (0xffff, &ping[42..]));
    }

    // traceroute, no route, path MTU discovery.
    bed.ok(&["set", "b", "mtu=1280"]);
    for (frame, message) in [
        (a.packet(b.address, 1, 17, &[1; 30]), [11, 0, 0, 0]),
        (a.datagram([203, 0, 113, 1]), [3, 0, 0, 0]),
        (a.packet(b.address, 64, 17, &[1; 1300]), [3, 4, 5, 0]),
    ] {
        a.send(&frame);
        let got = a.receive();
        assert_eq!((&got[26..30], got[23]), (&a.gateway[..], 1));
        assert_eq!([got[34], got[35], got[40], got[41]], message);
        assert_eq!(got[42..], frame[14..got.len() - 28]);
    }
    // No station is there: asked for, and dropped meanwhile.
    let frame = a.datagram([10, 0, 1, 77]);
    a.send(&frame);
    assert_eq!(b.receive()[38..42], [10, 0, 1, 77]);

    let drops = drops(&bed);
    let expected = serde_json::json!({"to_router": 1, "time_exceeded": 1, "no_route": 1, "too_big": 1, "no_neighbour": 1});
    assert_eq!((&drops[0], &drops[1]), (&expected, &serde_json::json!({"to_router": 1})));
    let neighbours = bed.show("neighbours");
    let known: Vec<_> = neighbours["neighbours"].as_array().unwrap().iter().collect();
    assert_eq!(known.len(), 3, "{neighbours}");
    assert!(known
        .iter()
        .any(|it| it["address"] == "10.0.1.9" && it["state"] == "reachable" && it["port"] == "b"));
    assert!(known.iter().any(|it| it["address"] == "10.0.1.77" && it["state"] == "unknown"));
}

/// What `doctor` notes of the frames of port `a`: names, and what to do.
fn notes(bed: &Testbed) -> Vec<(String, String)> {
    let report: Value = serde_json::from_slice(&bed.run(&["doctor", "a", "--json"]).stdout).unwrap();
    let checks = report["ports"][0]["checks"].as_array().unwrap().iter();
    let named = checks.filter(|check| check["about"] == "frames" && check["name"].is_string());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    named.map(|check| (text(&check["name"]), text(&check["mend"]))).collect()
}

#[test]
fn what_a_router_throws_away_is_not_called_usual() {
    let bed = Testbed::new();
    let _daemon = start(&bed);
    let mut a = Station::new(&bed, "a", 0);
    // ARP was answered: no loss, and nothing to do.
    drops(&bed);
    assert_eq!(notes(&bed), [("to_router".to_owned(), String::new())]);
    // TCP to the router itself, a group, and an address of another port's network.
    a.send(&a.packet(a.gateway, 64, 6, &[0; 20]));
    a.send(&a.packet([239, 1, 2, 3], 64, 17, &[0; 26]));
    let body = [&a.mac[..], &[10, 0, 1, 9], &[0; 6], &a.gateway].concat();
    a.send(&[&[0xff; 6][..], &a.mac, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &body].concat());
    let expected = serde_json::json!({"to_router": 1, "not_taken": 1, "group_address": 1, "spoofed": 1});
    until("all have their fate", || drops(&bed)[0] == expected);
    let notes = notes(&bed);
    let mend = |name: &str| notes.iter().find(|note| note.0 == name).map_or("", |note| &note.1);
    assert!(mend("not_taken").contains("control=NAMESPACE"), "{notes:?}");
    assert!(mend("group_address").contains("thrown away"), "{notes:?}");
    assert!(mend("spoofed").contains("address of its port's network"), "{notes:?}");
}

fn explain(bed: &Testbed, to: &str) -> Value {
    serde_json::from_str(&bed.ok(&["explain", "r", to, "--from", "a", "--json"])).unwrap()
}

#[test]
fn routes_come_and_go_while_it_runs_are_explained_and_outlive_a_restart() {
    let bed = Testbed::new();
    let daemon = start(&bed);
    let (mut a, mut b) = (Station::new(&bed, "a", 0), Station::new(&bed, "b", 1));
    let far = [198, 51, 100, 7];

    assert_eq!(explain(&bed, "198.51.100.7")["why"], "no_route");
    assert!(bed
        .ok(&["route", "add", "r", "198.51.100.0/24", "via", "10.0.1.9"])
        .contains("changed router r"));
    let frame = a.datagram(far);
    a.send(&frame);
    assert_eq!(b.receive()[30..34], far);
    let it = explain(&bed, "198.51.100.7");
    assert_eq!(
        (&it["action"], &it["route"], &it["origin"]),
        (&"forward".into(), &"198.51.100.0/24".into(), &"static".into())
    );
    assert_eq!((&it["hops"][0]["gateway"], &it["hops"][0]["port"]), (&"10.0.1.9".into(), &"b".into()));
    let text = bed.ok(&["explain", "r", "198.51.100.7", "--from", "a"]);
    assert!(
        text.contains("10.0.1.9 at port b") && text.contains("reachable") && text.contains("sent on"),
        "{text}"
    );

    bed.ok(&["route", "add", "r", "198.51.100.7/32", "prohibit"]);
    a.send(&frame);
    assert_eq!(a.receive()[34..36], [3, 13]);
    let it = explain(&bed, "198.51.100.7");
    assert_eq!((&it["why"], &it["shorter"][0]["prefix"]), (&"prohibit".into(), &"198.51.100.0/24".into()));
    bed.ok(&["route", "del", "r", "198.51.100.7/32"]);
    a.send(&frame);
    assert_eq!(b.receive()[30..34], far);

    // A route whose gateway is nowhere is there, and says why it does nothing.
    bed.ok(&["route", "add", "r", "192.0.2.0/24", "via", "172.16.0.1"]);
    let text = bed.ok(&["show", "routes", "r"]);
    assert!(
        text.contains("192.0.2.0/24 is not in force: gateway 172.16.0.1 is on no port's network"),
        "{text}"
    );
    let shown: Value = serde_json::from_str(&bed.ok(&["show", "routes", "r", "--json"])).unwrap();
    let counted = |it: &&Value| it["prefix"] == "198.51.100.0/24";
    let route = shown["routes"].as_array().unwrap().iter().find(counted).unwrap().clone();
    assert_eq!(route["hops"][0]["frames"], 2, "{route}");
    assert!(bed.ok(&["show", "routers"]).contains("10.0.0.1/24 2001:db8:a::1/64"));

    for (args, why) in [
        (&["route", "add", "x", "10.9.0.0/16", "blackhole"][..], "there is no router \"x\""),
        (&["route", "add", "r", "10.9.0.1/16", "blackhole"], "allowed: 10.9.0.0/16"),
        (&["route", "add", "r", "10.9.0.0/16", "via", "fe80::1"], "other family"),
        (&["route", "add", "r", "10.9.0.0/16", "sideways"], "allowed: via"),
        (&["route", "add", "r", "10.9.0.0/16", "port", "z"], "port z is not on this router"),
        (&["route", "del", "r", "10.9.0.0/16"], "no route 10.9.0.0/16"),
        (&["explain", "r", "10.9.0.1", "--from", "z"], "there is no port \"z\""),
        (&["del", "--router", "r"], "port a is on it"),
        (&["set", "a", "address=10.0.1.1/24"], "router r has 10.0.1.1 already"),
        (&["add", "c=ring:c,address=10.0.1.1/24"], "allowed: with router"),
        (&["add", "c=ring:c,router=q"], "there is no router \"q\""),
    ] {
        let said = bed.fails(args);
        assert!(said.contains(why), "{args:?}: {said}");
    }

    // As ports do that were added: by the file that `save` writes.
    let file = bed.at("saved.toml");
    bed.ok(&["save", &file]);
    drop((a, b));
    assert!(daemon.end(Signal::TERM).success());
    let _daemon = bed.daemon(&[&file]);
    let (mut a, mut b) = (Station::new(&bed, "a", 0), Station::new(&bed, "b", 1));
    let frame = a.datagram(far);
    a.send(&frame);
    assert_eq!(b.receive()[30..34], far);
    bed.ok(&["del", "a", "b"]);
    bed.ok(&["del", "--router", "r"]);
    assert_eq!(bed.show("routers")["routers"].as_array().map(Vec::len), Some(0));
}

#[test]
fn a_file_says_the_same() {
    let bed = Testbed::new();
    let text = r#"
        [[router]]
        name = "r"
        [[router.routes]]
        prefix = "0.0.0.0/0"
        via = ["10.0.0.9", "10.0.1.9"]
        [[router.routes]]
        prefix = "10.99.0.0/16"
        blackhole = true
        [[port]]
        name = "a"
        kind = "ring"
        where = "DIR/a"
        router = "r"
        address = ["10.0.0.1/24", "fd00::1/64"]
        router-mac = "02:00:00:00:00:01"
        [[port]]
        name = "b"
        kind = "ring"
        where = "DIR/b"
        router = "r"
        address = "10.0.1.1/24"
    "#;
    let file = bed.write("c.toml", text);
    let _daemon = bed.daemon(&[file.to_str().unwrap()]);
    let a = Station::new(&bed, "a", 0);
    assert_eq!(a.router, [2, 0, 0, 0, 0, 1]);
    let shown: Value = serde_json::from_str(&bed.ok(&["show", "routes", "r", "--json"])).unwrap();
    let routes = shown["routes"].as_array().unwrap();
    let all: Vec<_> = routes
        .iter()
        .map(|it| format!("{} {}", it["prefix"].as_str().unwrap(), it["action"].as_str().unwrap()))
        .collect();
    assert_eq!(
        all,
        [
            "0.0.0.0/0 via",
            "10.0.0.0/24 neighbours",
            "10.0.0.1/32 answer",
            "10.0.0.255/32 broadcast",
            "10.0.1.0/24 neighbours",
            "10.0.1.1/32 answer",
            "10.0.1.255/32 broadcast",
            "10.99.0.0/16 blackhole",
            "fd00::/64 neighbours",
            "fd00::/128 answer",
            "fd00::1/128 answer"
        ]
    );
    assert_eq!(routes[0]["hops"].as_array().map(Vec::len), Some(2));
    for (text, why) in [
        ("[[router]]\nname = \"r\"\n[[router.routes]]\nprefix = \"10.0.0.0/8\"\n", "routes"),
        ("[[router]]\nname = \"r\"\n[[router.routes]]\nprefix = \"x\"\n", "is no prefix"),
        ("[[router]]\nname = \"r\"\n[[router]]\nname = \"r\"\n", "another router has this name"),
    ] {
        let file = bed.write("bad.toml", text);
        let said = bed.fails(&["apply", "--dry-run", file.to_str().unwrap()]);
        assert!(said.contains(why) && said.contains("bad.toml:"), "{said}");
    }
}

/// Two switches with two guests each, and a router with an address on either.
#[test]
fn a_router_is_the_gateway_of_two_switches() {
    let bed = Testbed::new();
    let mut args: Vec<String> = ["--router", "r", "--switch", "dmz"].map(str::to_owned).into();
    for (name, switch) in [("a", "lan"), ("c", "lan"), ("b", "dmz"), ("d", "dmz")] {
        args.extend(["--port".to_owned(), format!("{name}=ring:{},switch={switch}", bed.at(name))]);
    }
    for (name, switch, net) in [("gw-lan", "lan", 0), ("gw-dmz", "dmz", 1)] {
        let gateway = format!("{name}=switch:{switch},router=r,address=10.0.{net}.1/24");
        args.extend(["--port".to_owned(), gateway]);
    }
    let daemon = bed.daemon(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let (mut a, mut b) = (Station::new(&bed, "a", 0), Station::new(&bed, "b", 1));
    let mut c = Port::attach(&bed.at("c")).unwrap();

    // On to the other switch, and back; and ping.
    let sent = a.datagram(b.address);
    a.send(&sent);
    let got = b.receive();
    assert_eq!((&got[..6], &got[6..12], got[22], &got[26..]), (&b.mac[..], &b.router[..], 63, &sent[26..]));
    let long = b.packet(a.address, 64, 17, &[0x5a; 1400]);
    b.send(&long);
    assert_eq!(a.receive()[26..], long[26..]);
    let ping = a.packet(a.gateway, 64, 1, &checked([&[8, 0, 0, 0, 0, 7, 0, 1][..], &[3; 80]].concat(), 2));
    a.send(&ping);
    assert_eq!(a.receive()[42..], ping[42..]);

    // A guest that claims the router's station gets nothing of what is for it.
    let mut lie = a.datagram(b.address);
    lie[6..12].copy_from_slice(&a.router);
    lie[..6].copy_from_slice(&[2, 9, 9, 9, 9, 77]);
    for _ in 0..50 {
        assert!(c.tx[0].push(&lie));
    }
    c.tx[0].sync().unwrap();
    let sent = a.packet(b.address, 64, 17, &[0xa5; 26]);
    a.send(&sent);
    assert_eq!(b.receive()[26..], sent[26..]);
    let (liar, near, far) = (bed.port("c"), bed.port("gw-lan"), bed.port("gw-dmz"));
    assert!(liar["state"]["mac_claimed"].as_u64().unwrap() > 0, "{liar}");
    assert!(near["counters"]["in_frames"].as_u64().unwrap() >= 4, "{near}");
    assert!(far["counters"]["out_frames"].as_u64().unwrap() >= 3, "{far}");
    drops(&bed);

    // What is shown, what cannot be, and a restart from the file.
    assert!(bed.ok(&["show", "mac"]).contains("gw-lan"));
    let switches = bed.show("switches");
    let dmz = switches["switches"].as_array().unwrap().iter().find(|it| it["name"] == "dmz").unwrap();
    assert_eq!(dmz["ports"], serde_json::json!(["b", "d", "gw-dmz"]));
    for (args, why) in [
        (
            &["add", "x=switch:lan"][..],
            "key `router`: missing; a port of kind switch is a router's port there: router=NAME",
        ),
        (&["add", "x=switch:nosuch,router=r"], "there is no switch \"nosuch\"; allowed: lan, dmz"),
        (&["add", "x=switch:lan,router=r,rate=1000"], "key `rate`: does not apply"),
        (&["add", "x=switch:lan,router=r,mac-limit=5"], "does not apply to a router"),
        (&["del", "--switch", "dmz"], "port b is joined to it"),
    ] {
        let said = bed.fails(args);
        assert!(said.contains(why), "{args:?}: {said}");
    }
    let mac = a.router.map(|byte| format!("{byte:02x}")).join(":");
    let said = bed.fails(&["add", &format!("x=ring:x,fdb={mac}")]);
    assert!(said.contains("port gw-lan has") || said.contains("an address lives at one port"), "{said}");
    let file = bed.at("saved.toml");
    bed.ok(&["save", &file]);
    drop((a, b, c));
    assert!(daemon.end(Signal::TERM).success());
    let _daemon = bed.daemon(&[&file]);
    let (mut a, mut b) = (Station::new(&bed, "a", 0), Station::new(&bed, "b", 1));
    let frame = a.datagram(b.address);
    a.send(&frame);
    assert_eq!(b.receive()[26..], frame[26..]);
    // Without its gateway a switch is what it was before.
    bed.ok(&["del", "gw-lan", "gw-dmz", "b", "d"]);
    bed.ok(&["del", "--switch", "dmz"]);
    assert!(!bed.ok(&["show", "mac"]).contains("gw-lan"));
}

/// A guest that writes the address of another network, or of none, into its packets.
#[test]
fn forged_sources_are_dropped_where_that_is_asked_for() {
    let bed = Testbed::new();
    let _daemon = start(&bed);
    let (mut a, mut b) = (Station::new(&bed, "a", 0), Station::new(&bed, "b", 1));
    let (near, other, nowhere) = ([10, 0, 0, 77], [10, 0, 1, 77], [203, 0, 113, 7]);
    for (rpf, through, dropped) in [
        ("off", &[other, nowhere, near][..], Value::Null),
        ("loose", &[other, near], 1.into()),
        ("strict", &[near], 3.into()),
    ] {
        bed.ok(&["set", "a", &format!("rpf={rpf}")]);
        // What comes behind has its turn behind it.
        for source in [other, nowhere, near] {
            a.send(&a.packet_from(source, b.address, 64, 17, &[0x5a; 26]));
        }
        for source in through {
            assert_eq!(b.receive()[26..30], *source, "{rpf}");
        }
        drops(&bed);
        assert_eq!(bed.port("a")["counters"]["drops"]["reverse_path"], dropped, "{rpf}");
        let shown = bed.show("routers")["routers"][0]["interfaces"][0]["rpf"].clone();
        assert_eq!(shown, if rpf == "off" { Value::Null } else { rpf.into() });
    }
    let said = bed.fails(&["add", "c=ring:c,rpf=strict"]);
    assert!(said.contains("key `rpf`: does not apply; allowed: with router"), "{said}");
    let said = bed.fails(&["set", "a", "rpf=on"]);
    assert!(said.contains("allowed: off, loose, strict"), "{said}");
}

/// Each with a station, and a switch between them.
#[test]
fn two_routers_are_neighbours_over_a_switch() {
    let bed = Testbed::new();
    let mut args: Vec<String> =
        ["--switch", "mid", "--router", "r", "--router", "s"].map(str::to_owned).into();
    for (name, router, net) in [("a", "r", 0), ("b", "s", 1)] {
        let ring = bed.at(name);
        let end = format!("{name}=ring:{ring},router={router},address=10.0.{net}.1/24,2001:db8:{net}::1/64");
        let n = net + 1;
        let mid = format!("gw-{router}=switch:mid,router={router},address=10.0.5.{n}/24,2001:db8:5::{n}/64");
        args.extend(["--port".to_owned(), end, "--port".to_owned(), mid]);
    }
    let _daemon = bed.daemon(&args.iter().map(String::as_str).collect::<Vec<_>>());
    for (router, net, gateway) in [("r", 1, 2), ("s", 0, 1)] {
        let (four, six) = (format!("10.0.5.{gateway}"), format!("2001:db8:5::{gateway}"));
        bed.ok(&["route", "add", router, &format!("10.0.{net}.0/24"), "via", &four]);
        bed.ok(&["route", "add", router, &format!("2001:db8:{net}::/64"), "via", &six]);
        // To nowhere, in a circle.
        bed.ok(&["route", "add", router, "10.77.0.0/16", "via", &four]);
    }
    let (mut a, mut b) = (Station::new(&bed, "a", 0), Station::new(&bed, "b", 1));
    let six = |text: &str| text.parse::<Ipv6Addr>().unwrap();
    let (a6, b6) = (six("2001:db8:0::9"), six("2001:db8:1::9"));
    a.meet6(&a6, &six("2001:db8:0::1"));
    b.meet6(&b6, &six("2001:db8:1::1"));
    let known = |port: &str, address: &str| {
        until("neighbour", || {
            let all = bed.show("neighbours");
            let is =
                |it: &Value| it["port"] == port && it["address"] == address && it["state"] == "reachable";
            all["neighbours"].as_array().unwrap().iter().any(is)
        });
    };

    // A first packet has the next router asked for its station. It answers at once.
    a.send(&a.datagram(b.address));
    known("gw-r", "10.0.5.2");
    known("gw-s", "10.0.5.1");
    a.send(&a.packet6(&a6, &b6, 64, 17, &[0x5a; 40]));
    known("gw-r", "2001:db8:5::2");
    b.send(&b.packet6(&b6, &a6, 64, 17, &[0x5a; 40]));
    known("gw-s", "2001:db8:5::1");

    // There and back.
    let sent = a.packet(b.address, 64, 17, &[0x5a; 1000]);
    a.send(&sent);
    let got = b.receive();
    assert_eq!((&got[..6], &got[6..12], got[22], &got[26..]), (&b.mac[..], &b.router[..], 62, &sent[26..]));
    let sent = b.datagram(a.address);
    b.send(&sent);
    let got = a.receive();
    assert_eq!((&got[..6], &got[6..12], got[22], &got[26..]), (&a.mac[..], &a.router[..], 62, &sent[26..]));
    let sent = a.packet6(&a6, &b6, 64, 17, &[0x5a; 1000]);
    a.send(&sent);
    let got = b.receive();
    assert_eq!((got[21], &got[22..]), (62, &sent[22..]));
    let sent = b.packet6(&b6, &a6, 64, 17, &[0xa5; 40]);
    b.send(&sent);
    assert_eq!(a.receive()[22..], sent[22..]);

    // traceroute, and path MTU discovery.
    for (hops, four, told) in [(1, [10, 0, 0, 1], "2001:db8:0::1"), (2, [10, 0, 5, 2], "2001:db8:5::2")] {
        a.send(&a.packet(b.address, hops, 17, &[1; 30]));
        let got = a.receive();
        assert_eq!((&got[26..30], got[34]), (&four[..], 11));
        a.send(&a.packet6(&a6, &b6, hops, 17, &[1; 30]));
        let got = a.receive();
        assert_eq!((&got[22..38], got[54]), (&six(told).octets()[..], 3));
    }
    bed.ok(&["set", "b", "mtu=1280"]);
    a.send(&a.packet(b.address, 64, 17, &[1; 1300]));
    let got = a.receive();
    assert_eq!((&got[26..30], &got[34..36], &got[40..42]), (&[10, 0, 5, 2][..], &[3, 4][..], &[5, 0][..]));
    a.send(&a.packet6(&a6, &b6, 64, 17, &[1; 1300]));
    let got = a.receive();
    assert_eq!(
        (&got[22..38], got[54], &got[58..62]),
        (&six("2001:db8:5::2").octets()[..], 2, &[0, 0, 5, 0][..])
    );

    // A circle ends, and holds up nobody.
    a.send(&a.datagram([10, 77, 0, 1]));
    until("end of the circle", || bed.port("gw-r")["counters"]["drops"]["reentry"] == 1);
    let sent = a.datagram(b.address);
    a.send(&sent);
    assert_eq!(b.receive()[26..], sent[26..]);
    drops(&bed);
}
