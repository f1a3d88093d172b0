//! A switch over two daemons: what comes in at the one comes out at the other, and what must not come in is
//! named. Both are on this host, at two addresses of its loopback interface.

use std::net::UdpSocket;

use crate::rig::{until, Daemon, Testbed};
use crate::vlan::{frame, guests, mac, Guest, EVERYBODY};
use rustix::process::Signal;
use serde_json::Value;

/// A host with a guest on each of its switches, which are over the tunnels `over` and `beside`.
fn host(bed: &Testbed, own: &str, other: &str, port: u16) -> Daemon {
    let guest = |name: &str, switch: &str| {
        format!("{name}=vhost-user:{},switch={switch}", bed.at(&format!("{name}.sock")))
    };
    let tunnel = |name: &str, vni: u32, switch: &str| {
        format!("{name}=vxlan:{own}:{port},vni={vni},peers={other},switch={switch}")
    };
    let ports = [
        tunnel("over", 100, "lan"),
        tunnel("beside", 200, "blue"),
        guest("red", "lan"),
        guest("sky", "blue"),
    ];
    let mut arguments = vec!["--switch", "lan", "--switch", "blue"];
    ports.iter().for_each(|port| arguments.extend(["--port", port.as_str()]));
    bed.daemon(&arguments)
}

/// A port that no socket of this host has.
fn free_port() -> u16 {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn meet(bed: &Testbed) -> [Guest; 2] {
    guests(bed, ["red", "sky"])
}

fn drops(bed: &Testbed, port: &str, reason: &str) -> u64 {
    bed.port(port)["counters"]["drops"][reason].as_u64().unwrap_or(0)
}

#[test]
fn two_networks_are_on_two_hosts() {
    let (here, there, port) = (Testbed::new(), Testbed::new(), free_port());
    let _first = host(&here, "127.0.7.1", "127.0.7.2", port);
    let mut second = Some(host(&there, "127.0.7.2", "127.0.7.1", port));
    let ([mut red, mut sky], [mut far, mut far_sky]) = (meet(&here), meet(&there));
    red.send(&frame(EVERYBODY, 1, None, 1));
    far.gets(&frame(EVERYBODY, 1, None, 1));
    sky.send(&frame(EVERYBODY, 1, None, 2));
    far_sky.gets(&frame(EVERYBODY, 1, None, 2));
    for number in 3..40 {
        far.send(&frame(mac(1), 2, None, number));
        red.gets(&frame(mac(1), 2, None, number));
    }
    let table = here.show("mac");
    let rows = table["addresses"].as_array().unwrap();
    let at = |mac: &str| {
        rows.iter().find(|row| row["mac"] == mac && row["switch"] == "lan").unwrap()["port"].clone()
    };
    assert_eq!((at("02:00:00:00:00:01"), at("02:00:00:00:00:02")), ("red".into(), "over".into()));
    assert!(here.ok(&["show", "port", "over"]).contains("VNI 100: 1 endpoints, 1 addresses behind them"));

    // Strangers, and networks that are not here.
    let raw = UdpSocket::bind("127.0.7.3:0").unwrap();
    let datagram =
        |flags: u8, vni: u8| [&[flags, 0, 0, 0, 0, 0, vni, 0], &frame(EVERYBODY, 9, None, 9)[..]].concat();
    for bytes in [datagram(8, 100), datagram(8, 101), datagram(0, 100), vec![8; 7]] {
        raw.send_to(&bytes, ("127.0.7.1", port)).unwrap();
    }
    until("drops by name", || {
        let all = |reason| drops(&here, "over", reason) + drops(&here, "beside", reason);
        [all("vxlan_peer"), all("vxlan_vni"), all("vxlan_header")] == [1, 1, 2]
    });
    let advice = here.run(&["doctor"]);
    let said = String::from_utf8_lossy(&advice.stdout).into_owned();
    assert!(said.contains("sidecore set over peers=") && !advice.status.success(), "{said}");

    // One of the hosts is killed and comes back; nothing else is to be done.
    second.take().unwrap().end(Signal::KILL);
    red.send(&frame(mac(2), 1, None, 50));
    let _second = host(&there, "127.0.7.2", "127.0.7.1", port);
    let [mut far, _] = meet(&there);
    red.send(&frame(mac(2), 1, None, 51));
    far.gets(&frame(mac(2), 1, None, 51));

    // The operator's link and other networks.
    here.ok(&["set", "over", "link=down"]);
    red.send(&frame(EVERYBODY, 1, None, 60));
    sky.send(&frame(EVERYBODY, 1, None, 61));
    here.ok(&["set", "over", "link=up"]);
    red.send(&frame(EVERYBODY, 1, None, 62));
    far.gets(&frame(EVERYBODY, 1, None, 62));
    here.ok(&["set", "beside", "vni=300"]);
    assert!(here.ok(&["show", "port", "beside"]).contains("VNI 300"));
}

/// What cannot be is refused, with the numbers and what would be right.
#[test]
fn what_cannot_be_says_so() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&["--port", "over=vxlan:127.0.7.9,vni=1,peers=127.0.7.8,mtu=1450"]);
    for (port, why) in [
        ("a=vxlan:127.0.7.9,peers=127.0.7.8", "vni`: it has to be given"),
        ("a=vxlan:eth0,vni=1,peers=127.0.7.8", "is no address of this host"),
        ("a=vxlan:127.0.7.9,vni=16777216", "1 to 16777215"),
        ("a=vxlan:192.0.2.77,vni=2,peers=127.0.7.8", "`ip address` lists the addresses"),
        ("a=vxlan:127.0.7.9,vni=2,peers=::1", "are not of one family"),
        (
            "a=vxlan:127.0.7.9,vni=2,peers=127.0.7.8,mtu=65535",
            "take 65585 on the way to 127.0.7.8, which carries 65535; allowed: mtu=65485 here",
        ),
        (
            "vm=vhost-user:vm.sock",
            "1500, and the tunnel over of its switch carries 1450; allowed: 1450 or less",
        ),
        ("a=vxlan:127.0.7.9,vni=1,peers=127.0.7.8", "port over has this place"),
        ("a=vxlan:127.0.7.9,vni=2,peers=127.0.7.8,queues=2", "queues"),
    ] {
        let said = bed.fails(&["add", port]);
        assert!(said.contains(why), "{port}: {said}");
    }
}

/// Where a frame comes out nothing says that its sender is isolated (RFC 5517 has no such tag).
#[test]
fn a_tunnel_beside_isolated_ports_is_isolated() {
    let (bed, port) = (Testbed::new(), free_port());
    let over = format!("over=vxlan:127.0.7.11:{port},vni=1,peers=127.0.7.12,vlan=10");
    let _daemon = bed.daemon(&[
        "--port",
        &over,
        "--port",
        "b=ring:b,vlan=20,isolated=on",
        "--port",
        "c=ring:c,vlan=10",
    ]);
    let said = bed.fails(&["set", "c", "isolated=on"]);
    assert!(
        said.contains("port over: key `isolated`: port c of its switch is isolated, and would reach"),
        "{said}"
    );
    bed.ok(&["set", "over", "isolated=on"]);
    bed.ok(&["set", "c", "isolated=on"]);
    let said = bed.fails(&["set", "over", "isolated=off"]);
    assert!(said.contains("allowed: isolated=on here, too"), "{said}");
}

/// The switch's control plane is taken away and comes again, one change after the other.
#[test]
fn a_control_plane_comes_and_goes() {
    let (bed, control, port) = (Testbed::new(), crate::rig::net::Net::new(), free_port());
    let _daemon = bed.daemon(&["--switch", "lan", "--port", "b=ring:b,switch=lan"]);
    let over = format!("over=vxlan:127.0.7.13:{port},vni=100,switch=lan");
    assert!(bed.fails(&["add", &over]).contains("peers`: it has to be given"));
    bed.ok(&["set", "--switch", "lan", "vni=100"]);
    bed.ok(&["add", &over]);
    let shadow =
        || control.command("ip").args(["link", "show", "scvx100"]).output().unwrap().status.success();
    let tell = |line: &str| {
        assert!(control.command("bridge").args(line.split(' ')).output().unwrap().status.success())
    };
    for _ in 0..2 {
        bed.ok(&["set", "--switch", "lan", &format!("control={}", control.path())]);
        until("shadow", shadow);
        tell("fdb append 00:00:00:00:00:00 dev scvx100 dst 127.0.7.14 self permanent");
        tell("fdb add 02:00:00:00:00:07 dev scvx100 dst 127.0.7.14 self master dynamic extern_learn");
        let detail = || bed.port("over")["state"]["detail"].as_str().unwrap().to_owned();
        until("what is told", || detail().contains(": 1 endpoints, told by a control plane, 1 addresses"));
        bed.ok(&["set", "--switch", "lan", "control="]);
        until("what was told", || detail().contains(": 0 endpoints, told by a control plane, 0 addresses"));
        until("no shadow", || !shadow());
        assert_eq!(bed.show("mac")["addresses"].as_array().unwrap().len(), 0);
    }
    bed.ok(&["set", "over", "peers=127.0.7.14"]);
    bed.ok(&["set", "--switch", "lan", "vni="]);
}

/// Each frame is cut, tagged and taken as that of any other port: a tunnel in a VLAN carries frames without a
/// tag.
#[test]
fn a_tunnel_is_a_port_as_others() {
    let (here, port) = (Testbed::new(), free_port());
    let guest = format!("vm=vhost-user:{},trunk=10+20", here.at("vm.sock"));
    let over = format!("over=vxlan:127.0.7.5:{port},vni=7,peers=127.0.7.6,vlan=10");
    let _daemon = here.daemon(&["--port", &guest, "--port", &over]);
    let [mut vm] = guests(&here, ["vm"]);
    let far = UdpSocket::bind(("127.0.7.6", port)).unwrap();
    far.set_read_timeout(Some(crate::rig::LIMIT)).unwrap();
    vm.send(&frame(EVERYBODY, 1, Some(20), 1));
    vm.send(&frame(EVERYBODY, 1, Some(10), 2));
    let mut bytes = [0; 200];
    let (len, from) = far.recv_from(&mut bytes).unwrap();
    assert_eq!(bytes[..8], [8, 0, 0, 0, 0, 0, 7, 0]);
    assert_eq!(bytes[8..len], frame(EVERYBODY, 1, None, 2));
    assert_eq!(from.ip().to_string(), "127.0.7.5");
    far.send_to(&[&bytes[..8], &frame(mac(1), 2, None, 3)].concat(), ("127.0.7.5", port)).unwrap();
    vm.gets(&frame(mac(1), 2, Some(10), 3));
    let told: Value = serde_json::from_str(&here.ok(&[
        "explain",
        "--from",
        "vm",
        "dst-mac=02:00:00:00:00:02",
        "src-mac=02:00:00:00:00:01",
        "vlan=10",
        "--json",
    ]))
    .unwrap();
    assert_eq!(told["steps"].as_array().unwrap().last().unwrap()["port"], "over");
}
