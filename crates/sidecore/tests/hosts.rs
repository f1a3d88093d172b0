//! One switch over three hosts: two of ours and one with the kernel's bridge and VXLAN device, whose stations
//! are told by FRR (EVPN). Stations reach each other with whole frames and TCP, one moves, routing daemons
//! withdraw, are killed and come back, and so does one of our daemons. Needs root, iproute2, iputils,
//! ethtool, iperf3 and frr.

use std::process::Command;

use crate::control::{until, Frr, Net};
use crate::rig::{needs, Daemon, Testbed};
use rustix::process::Signal;
use serde_json::Value;

/// What joins the hosts' interfaces: of the endpoints, and of the routing daemons.
struct Fabric(Net);

impl Fabric {
    fn new() -> Fabric {
        let net = Net::new();
        net.ip("link add br0 mtu 1600 type bridge");
        net.ip("link set br0 up");
        Fabric(net)
    }

    /// Gives `net` an interface at it, with these addresses.
    fn join(&self, net: &Net, port: &str, addresses: &[String]) {
        self.0.ip(&format!("link add {port} mtu 1600 type veth peer name eth0 mtu 1600 netns {}", net.id()));
        self.0.ip(&format!("link set {port} master br0 up"));
        addresses.iter().for_each(|address| net.ip(&format!("address add {address} dev eth0")));
        net.ip("link set eth0 up");
    }
}

/// One of our hosts: the daemon's namespace, that of the routing daemon, and a station.
struct Host {
    number: u8,
    net: Net,
    control: Net,
    station: Net,
    bed: Testbed,
    frr: Option<Frr>,
    daemon: Option<Daemon>,
}

/// FRR at host `number`, with a session to each of the others.
fn bgp(number: u8) -> String {
    let others = (1..=3).filter(|other| *other != number);
    let sessions = others.clone().map(|other| {
        format!(
            " neighbor 10.99.0.{other} remote-as 65000\n neighbor 10.99.0.{other} timers 1 3\n \
             neighbor 10.99.0.{other} timers connect 1\n neighbor 10.99.0.{other} advertisement-interval 0\n"
        )
    });
    let active = others.map(|other| format!("  neighbor 10.99.0.{other} activate\n"));
    let (sessions, active) = (sessions.collect::<String>(), active.collect::<String>());
    format!(
        "router bgp 65000\n bgp router-id 10.99.0.{number}\n no bgp default ipv4-unicast\n{sessions} \
         address-family l2vpn evpn\n{active}  advertise-all-vni\n exit-address-family\n"
    )
}

fn mac(number: u8) -> String {
    format!("02:00:00:00:00:0{number}")
}

impl Host {
    fn new(fabric: &Fabric, number: u8) -> Host {
        let (net, control, station, bed) = (Net::new(), Net::new(), Net::new(), Testbed::new());
        fabric.join(&net, &format!("h{number}"), &[format!("10.9.0.{number}/24")]);
        fabric.join(&control, &format!("c{number}"), &[format!("10.99.0.{number}/24")]);
        // Where next hops are: without a way to them the routing daemon uses none.
        control.ip("route add 10.9.0.0/24 dev eth0");
        let mut host = Host { number, net, control, station, bed, frr: None, daemon: None };
        host.route();
        host.start();
        host.enter(&mac(number));
        host
    }

    fn route(&mut self) {
        self.frr = Some(Frr::start(&self.control, &self.bed, "frr", "", &bgp(self.number)));
    }

    fn start(&mut self) {
        let (number, control) = (self.number, self.control.path());
        let mut command = self.net.command(env!("CARGO_BIN_EXE_sidecore"));
        command.env("SIDECORE_SOCKET", self.bed.path("control.sock")).env_remove("NOTIFY_SOCKET");
        command.current_dir(self.bed.path("."));
        command.args(["run", "--switch", &format!("lan,control={control},vni=100")]);
        command.args(["--port", &format!("over=vxlan:10.9.0.{number},vni=100"), "--port", "vm=tap:vm"]);
        self.daemon = Some(Daemon::start(&mut command));
    }

    /// The daemon's interface becomes the station's.
    fn enter(&self, mac: &str) {
        self.net.ip(&format!("link set vm netns {}", self.station.id()));
        self.station.ip(&format!("link set vm address {mac} up"));
        self.station.ip(&format!("address add 192.168.7.{}/24 dev vm", self.number));
    }

    /// Where the switch has this station, and why.
    fn knows(&self, mac: &str) -> Option<(String, String)> {
        let table = self.bed.show("mac");
        let row = table["addresses"].as_array()?.iter().find(|row| row["mac"] == mac)?.clone();
        Some((row["port"].as_str()?.to_owned(), row["state"].as_str()?.to_owned()))
    }

    /// The other endpoints that get floods.
    fn endpoints(&self) -> u64 {
        let detail = self.bed.port("over")["state"]["detail"].as_str().unwrap().to_owned();
        detail.split(": ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap()
    }

    /// The station which the shadow has at that address of another host's.
    fn resolves(&self, address: &str) -> Option<String> {
        let shown =
            self.control.command("ip").args(["-j", "neigh", "show", "dev", "scbr100"]).output().unwrap();
        let all: Value = serde_json::from_slice(&shown.stdout).unwrap();
        let of = |it: &&Value| it["dst"] == address && it.get("extern_learn").is_some();
        Some(all.as_array()?.iter().find(of)?["lladdr"].as_str()?.to_owned())
    }

    /// What the shadow's VXLAN device has of `mac`.
    fn shadow_has(&self, mac: &str) -> bool {
        let shown = self.control.command("bridge").args(["fdb", "show", "dev", "scvx100"]).output().unwrap();
        String::from_utf8_lossy(&shown.stdout).lines().any(|line| line.contains(mac) && line.contains("dst"))
    }

    fn vtysh(&self, lines: &[&str]) {
        let mut vtysh = Command::new("vtysh");
        vtysh.arg("--vty_socket").arg(self.bed.path("frr"));
        lines.iter().for_each(|line| _ = vtysh.args(["-c", line]));
        let output = vtysh.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

/// The third one: the kernel's switch. Its station's checksums are made at once: no device makes them on the
/// way to a program.
fn kernel(fabric: &Fabric, bed: &Testbed) -> (Net, Net, Frr) {
    let (net, station) = (Net::new(), Net::new());
    fabric.join(&net, "h3", &["10.9.0.3/24".to_owned(), "10.99.0.3/24".to_owned()]);
    for line in [
        "link add br100 type bridge",
        "link add vx100 type vxlan id 100 local 10.9.0.3 dstport 4789 nolearning",
        "link set vx100 master br100 addrgenmode none",
        "link set br100 addrgenmode none up",
        "link set vx100 up",
    ] {
        net.ip(line);
    }
    net.ip(&format!("link add vm type veth peer name vm netns {}", station.id()));
    net.ip("link set vm master br100 addrgenmode none up");
    assert!(station.command("ethtool").args(["-K", "vm", "tx", "off"]).output().unwrap().status.success());
    station.ip(&format!("link set vm address {} up", mac(3)));
    station.ip("address add 192.168.7.3/24 dev vm");
    let frr = Frr::start(&net, bed, "frr", "", &bgp(3));
    (net, station, frr)
}

/// Whether `from` gets an answer from station `to`, with so many bytes in one packet.
fn pings(from: &Net, to: u8, bytes: u32) -> bool {
    let words = ["-c", "1", "-W", "1", "-M", "do", "-s", &bytes.to_string(), &format!("192.168.7.{to}")]
        .map(str::to_owned);
    from.command("ping").args(words).output().unwrap().status.success()
}

#[test]
fn a_switch_spans_three_hosts_by_evpn() {
    for (program, package) in [
        ("vtysh", "frr"),
        ("ping", "iputils-ping"),
        ("ethtool", "ethtool"),
        ("iperf3", "iperf3"),
        ("bridge", "iproute2"),
    ] {
        needs(program, package);
    }
    let (fabric, third) = (Fabric::new(), Testbed::new());
    let (mut one, mut two) = (Host::new(&fabric, 1), Host::new(&fabric, 2));
    let (far, far_station, _far_frr) = kernel(&fabric, &third);

    // Each station reaches each other one, with frames as long as any, and longer ones are the stations' own
    // to refuse.
    for (from, to) in [(&one.station, 2), (&one.station, 3), (&two.station, 3), (&far_station, 1)] {
        until("answer", || pings(from, to, 56));
        assert!(pings(from, to, 1472), "{to}");
        assert!(!pings(from, to, 1473), "{to}");
    }
    assert_eq!(one.knows(&mac(2)), Some(("over".to_owned(), "evpn".to_owned())));
    assert_eq!(one.knows(&mac(1)), Some(("vm".to_owned(), "learned".to_owned())));
    assert_eq!(one.endpoints(), 2);
    // Whose address is whose has come along, and a question for it still finds its way.
    until("addresses", || {
        two.resolves("192.168.7.1") == Some(mac(1)) && one.resolves("192.168.7.2") == Some(mac(2))
    });
    one.station.ip("neigh flush dev vm");
    until("answer", || pings(&one.station, 2, 56));
    for (to, station) in [(2, &two.station), (3, &far_station)] {
        let mut server =
            station.command("iperf3").args(["-s", "-1"]).stdout(std::process::Stdio::null()).spawn().unwrap();
        let client = || {
            let mut client = one.station.command("iperf3");
            client.args(["-c", &format!("192.168.7.{to}"), "-n", "4M"]).output().unwrap().status.success()
        };
        until("transfer", client);
        assert!(server.wait().unwrap().success());
    }

    // A station moves: it speaks at another host.
    let moved = "02:00:00:00:00:77";
    one.station.ip(&format!("link set vm address {moved}"));
    until("the station at host 1", || {
        pings(&one.station, 3, 56) && one.knows(moved).is_some_and(|(port, _)| port == "vm")
    });
    until("news at host 2", || two.knows(moved) == Some(("over".to_owned(), "evpn".to_owned())));
    one.station.ip(&format!("link set vm address {}", mac(1)));
    two.station.ip(&format!("link set vm address {moved}"));
    until("the station at host 2", || pings(&two.station, 3, 56));
    until("the move", || {
        one.knows(moved) == Some(("over".to_owned(), "evpn".to_owned()))
            && two.knows(moved).unwrap().0 == "vm"
    });
    until("the move at the kernel's host", || {
        let shown = far.command("bridge").args(["fdb", "show", "dev", "vx100"]).output().unwrap();
        String::from_utf8_lossy(&shown.stdout)
            .lines()
            .any(|line| line.starts_with(moved) && line.contains("dst 10.9.0.2"))
    });
    until("its answer", || pings(&one.station, 2, 56));
    until("its address", || one.resolves("192.168.7.2").as_deref() == Some(moved));

    // It goes back, and comes again: FRR's entries from before are still there, and tell nothing of it.
    one.station.ip(&format!("link set vm address {moved}"));
    two.station.ip(&format!("link set vm address {}", mac(2)));
    until("the way back", || {
        pings(&one.station, 3, 56) && two.knows(moved) == Some(("over".to_owned(), "evpn".to_owned()))
    });
    until("its answer", || pings(&two.station, 1, 56));
    one.station.ip(&format!("link set vm address {}", mac(1)));
    two.station.ip(&format!("link set vm address {moved}"));
    until("the second move", || {
        pings(&two.station, 3, 56) && one.knows(moved) == Some(("over".to_owned(), "evpn".to_owned()))
    });
    until("its answer", || pings(&one.station, 2, 56));

    // A routing daemon that lives and withdraws is obeyed.
    let router = ["configure terminal", "router bgp 65000"];
    two.vtysh(&[router[0], router[1], "neighbor 10.99.0.1 shutdown"]);
    until("withdrawal", || one.endpoints() == 1 && one.knows(moved).is_none_or(|(_, state)| state != "evpn"));
    two.vtysh(&[router[0], router[1], "no neighbor 10.99.0.1 shutdown"]);
    until("return", || one.endpoints() == 2 && pings(&one.station, 2, 56));

    // One that is killed takes nothing with it.
    one.frr.as_mut().unwrap().kill_last();
    until("an empty shadow", || !one.shadow_has(moved));
    // Longer than what a living one takes out holds: nothing tells of what does not happen.
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!((one.endpoints(), one.knows(moved).unwrap().1), (2, "evpn".to_owned()));
    until("the event", || one.bed.ok(&["events"]).contains("its BGP daemon has gone; "));
    // What it sends arrives, although others have heard that it has gone.
    let strange = || two.bed.port("over")["counters"]["drops"]["vxlan_peer"].as_u64().unwrap_or(0);
    let before = strange();
    assert!(!pings(&one.station, 2, 56), "the answer has no way back");
    assert_eq!(strange(), before);
    one.frr = None;
    one.route();
    until("answers with new daemons", || {
        pings(&one.station, 2, 56) && pings(&one.station, 3, 56) && one.shadow_has(moved)
    });

    // Our daemon is killed. Others go on knowing its station, and the next daemon knows theirs at once.
    one.daemon.take().unwrap().end(Signal::KILL);
    one.start();
    assert!(two.shadow_has(&mac(1)), "its routes stay");
    one.enter(&mac(1));
    // What moved here before is not at its old place for the next daemon.
    let (log, mut monitor) = (one.bed.path("fdb"), one.control.command("bridge"));
    let mut monitor =
        monitor.args(["monitor", "fdb"]).stdout(std::fs::File::create(&log).unwrap()).spawn().unwrap();
    two.daemon.take().unwrap().end(Signal::KILL);
    two.start();
    assert_ne!(two.knows(moved).map(|(_, state)| state).as_deref(), Some("evpn"));
    // It need not even speak: others hear of a new station at its host, and nothing of it.
    two.enter("02:00:00:00:00:99");
    until("a new station", || pings(&two.station, 3, 56) && one.shadow_has("02:00:00:00:00:99"));
    let heard = || std::fs::read_to_string(&log).unwrap();
    until("news of it", || heard().contains("02:00:00:00:00:99"));
    monitor.kill().unwrap();
    monitor.wait().unwrap();
    assert!(!heard().contains(moved), "{}", heard());
    two.station.ip(&format!("link set vm address {moved}"));
    until("answers after a restart", || pings(&one.station, 2, 56) && pings(&one.station, 3, 56));
    assert_eq!(one.knows(moved).unwrap().1, "evpn");

    // A switch without a control plane leaves nothing behind.
    one.bed.write("alone.toml", "[[switch]]\nname = \"lan\"\n");
    one.bed.ok(&["apply", "alone.toml"]);
    until("no shadow", || {
        let shown = one.control.command("ip").args(["-j", "link", "show"]).output().unwrap();
        let all: Value = serde_json::from_slice(&shown.stdout).unwrap();
        all.as_array().unwrap().iter().all(|link| !link["ifname"].as_str().unwrap().starts_with("sc"))
    });
    until("withdrawal of its station", || !two.shadow_has(&mac(1)));
}
