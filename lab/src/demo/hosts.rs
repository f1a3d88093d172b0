//! `sidecore-lab demo hosts`: one switch over three hosts, and a VM that moves between two of them.
//!
//! ```text
//!   host 1: sidecore, FRR      host 2: sidecore, FRR      host 3: the kernel's bridge and VXLAN, FRR
//!       a (guest)                  b (guest)                  c (guest)
//!       └────────── VXLAN over UDP between all of them, EVPN says what is where ──────────┘
//! ```
//!
//! Hosts are network namespaces at one bridge. Guests ping each other and send by iperf3. Then c pings a
//! while a moves to host 2, live: the same memory, address and connections at a port of another daemon. The
//! demo fails if c hears an answer twice, or if host 1 or the kernel's host does not learn of the move.

use super::{boot, perform, say, step};
use crate::error::{Error, Result};
use crate::frr::Frr;
use crate::process::{output, wait};
use crate::traffic::{Ping, Pinging};
use crate::{Daemon, Guest, Netns, Nic, RunDir, Spec};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long routing may take.
const LIMIT: Duration = Duration::from_secs(60);
/// The MTU between the hosts: a frame of 1500 bytes fits with what VXLAN adds.
const MTU: u32 = 1600;
/// The guests: name, address of its card, its own address; they are at host 1, 2 and 3.
const GUESTS: [(&str, &str, &str); 3] = [
    ("a", "52:54:00:00:31:01", "10.77.0.1"),
    ("b", "52:54:00:00:31:02", "10.77.0.2"),
    ("c", "52:54:00:00:31:03", "10.77.0.3"),
];
/// The sender, the receiver, and what is at both ends of the tunnel.
const PAIRS: [(usize, usize, &str); 4] = [
    (0, 1, "sidecore → sidecore"),
    (0, 2, "sidecore → kernel"),
    (2, 0, "kernel → sidecore"),
    (2, 1, "kernel → sidecore"),
];

/// Configuration of bgpd at a host: a session to each other one.
fn bgp(number: usize) -> String {
    let others = || (1..=GUESTS.len()).filter(|other| *other != number);
    let sessions: String = others()
        .map(|other| {
            format!(
                " neighbor 10.99.0.{other} remote-as 65000\n neighbor 10.99.0.{other} timers connect 1\n \
                 neighbor 10.99.0.{other} advertisement-interval 0\n"
            )
        })
        .collect();
    let active: String = others().map(|other| format!("  neighbor 10.99.0.{other} activate\n")).collect();
    format!(
        "router bgp 65000\n bgp router-id 10.99.0.{number}\n no bgp default ipv4-unicast\n{sessions} \
         address-family l2vpn evpn\n{active}  advertise-all-vni\n exit-address-family\n"
    )
}

/// Runs the demo; returns when all of it worked and nothing is left of it.
///
/// # Errors
/// A step failed, or the guest's move was not heard of or heard twice: which one, and where the logs are.
pub fn demo() -> Result<()> {
    let about =
        "One switch over three hosts, two of sidecore's and one of the kernel's; FRR tells who is where.";
    perform("demo hosts", about, |dir| step("hosts", "making namespaces", || Site::new(dir))?.run())
}

struct Site {
    folder: PathBuf,
    /// What joins all of them.
    underlay: Netns,
    /// Hosts 1 to 3.
    hosts: [Netns; 3],
    /// Where FRR runs: beside the daemon at hosts 1 and 2.
    control: [Netns; 2],
}

impl Site {
    fn new(dir: &RunDir) -> Result<Site> {
        let underlay = Netns::new("underlay")?;
        underlay.ip(&format!("link add br0 mtu {MTU} type bridge"))?;
        underlay.ip("link set br0 up")?;
        let hosts = [Netns::new("host1")?, Netns::new("host2")?, Netns::new("host3")?];
        let control = [Netns::new("frr1")?, Netns::new("frr2")?];
        let site = Site { folder: dir.path().to_owned(), underlay, hosts, control };
        for (n, host) in (1..).zip(&site.hosts) {
            site.join(host, &format!("h{n}"), &format!("10.9.0.{n}/24"))?;
        }
        for (n, control) in (1..).zip(&site.control) {
            site.join(control, &format!("c{n}"), &format!("10.99.0.{n}/24"))?;
            // FRR takes no next hop for valid that it has no route to.
            control.ip("route add 10.9.0.0/24 dev eth0")?;
        }
        let kernel = &site.hosts[2];
        kernel.address("eth0", "10.99.0.3/24")?;
        // A cable would have whole checksums; veth leaves those of TCP inside for a card to make.
        kernel.expect("ethtool -K eth0 tx off")?;
        kernel.tap("c", false)?;
        for words in [
            "link add br100 type bridge",
            "link add vx100 type vxlan id 100 local 10.9.0.3 dstport 4789 nolearning",
            "link set vx100 master br100 addrgenmode none up",
            "link set c master br100 addrgenmode none",
            "link set br100 addrgenmode none up",
        ] {
            kernel.ip(words)?;
        }
        Ok(site)
    }

    /// Gives `netns` an interface `eth0` at the underlay.
    fn join(&self, netns: &Netns, port: &str, address: &str) -> Result<()> {
        let pair = format!("type veth peer name eth0 mtu {MTU} netns {}", netns.name());
        self.underlay.ip(&format!("link add {port} mtu {MTU} {pair}"))?;
        self.underlay.ip(&format!("link set {port} master br0 up"))?;
        netns.address("eth0", address)
    }

    fn at(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// The daemon of host 1 or 2, with a port `vm`.
    fn daemon(&self, host: usize) -> Result<Daemon> {
        let switch = format!("lan,control={},vni=100", self.control[host].name());
        let tunnel = format!("over=vxlan:10.9.0.{},vni=100", host + 1);
        let vms = ["a", "b"].map(|vm| format!("{vm}=vhost-user:{}", self.socket(host, vm)));
        let words = ["--switch", &switch, "--port", &tunnel, "--port", &vms[0], "--port", &vms[1]];
        let daemon = Daemon::start_in(&self.hosts[host], &words)?;
        say(&format!("host {}", host + 1), &format!("sidecore run {}", words.join(" ")));
        Ok(daemon)
    }

    fn socket(&self, host: usize, vm: &str) -> String {
        self.at(&format!("{vm}{}.sock", host + 1))
    }

    /// A guest at a port of host 1 or 2.
    fn vm(&self, host: usize, guest: usize) -> Spec {
        let (name, mac, _) = GUESTS[guest];
        Guest::named(name).nic(Nic::of_port("vhost-user", self.socket(host, name)).mac(mac))
    }

    fn run(self) -> Result<()> {
        let mut one = step("daemon", "starting", || self.daemon(0))?;
        let mut two = step("daemon", "starting", || self.daemon(1))?;
        say("host 3", "Linux's bridge and VXLAN device");
        let _frr = step("frr", "starting three of them", || self.frr())?;
        say("frr", "zebra and bgpd for each of them, with sessions to the others");
        let tap = Nic::qemu("virtio-net-pci", "tap,ifname=c,script=no,downscript=no").mac(GUESTS[2].1);
        let c = Guest::named("c").netns(&self.hosts[2]).nic(tap);
        let mut guests = boot(vec![self.vm(0, 0), self.vm(1, 1), c])?;
        let done = self.traffic(&mut one, &mut guests).and_then(|()| self.moves(&mut one, &mut two, guests));
        done.map_err(|e| Error::new(format!("{e}\nlogs: {}, {}", one.keep_logs(), two.keep_logs())))?;
        [one, two].into_iter().try_for_each(|it| step("end", "ending a daemon", || it.terminate().map(drop)))
    }

    fn frr(&self) -> Result<Vec<Frr>> {
        let netns = [&self.control[0], &self.control[1], &self.hosts[2]];
        let start = |(number, netns): (usize, &Netns)| {
            let folder = self.folder.join(format!("frr{number}"));
            Frr::start(netns, &folder, &[("zebra", ""), ("bgpd", &bgp(number))])
        };
        (1..).zip(netns).map(start).collect()
    }

    /// What the routing daemon of host `number` says.
    fn vtysh(&self, number: usize, line: &str) -> Result<String> {
        output(
            Command::new("vtysh")
                .arg("--vty_socket")
                .arg(self.at(&format!("frr{number}")))
                .args(["-c", line]),
        )
    }

    fn traffic(&self, one: &mut Daemon, guests: &mut [Guest]) -> Result<()> {
        for (guest, (name, _, address)) in guests.iter_mut().zip(GUESTS) {
            step(name, "giving eth0 an address", || guest.address(&format!("{address}/24")))?;
        }
        println!();
        for (from, to, over) in PAIRS {
            let pair = format!("{} → {}", GUESTS[from].0, GUESTS[to].0);
            let (ping, gbits) = step(&pair, "ping and iperf3", || measure(guests, from, to))?;
            println!(
                "  {pair:8} {over:20} ping {:.2} ms on average, iperf3 {gbits:.2} Gbit/s of TCP",
                ping.avg_ms
            );
        }
        println!("\n$ sidecore show mac    # at host 1\n{}", one.command(&["show", "mac"])?.trim_end());
        let routes = "show evpn mac vni 100";
        println!("\n$ vtysh -c '{routes}'    # at host 3\n{}\n", self.vtysh(3, routes)?.trim_end());
        Ok(())
    }

    /// The first guest goes from host 1 to host 2 while the last one pings it.
    fn moves(&self, one: &mut Daemon, two: &mut Daemon, mut guests: Vec<Guest>) -> Result<()> {
        let (_, mac, address) = GUESTS[0];
        let mut c = guests.pop().ok_or_else(|| Error::new("there is no guest c"))?;
        let moved = guests.swap_remove(0);
        let pinging = step("c", "pinging a", || Pinging::start(&mut c, address))?;
        say("c", "pings a five times a second");
        let (moved, migration) = step("a", "moving to host 2", || moved.migrate_to(self.vm(1, 0)))?;
        let arrived = Instant::now();
        step("host 2", "having a at its port", || wait(LIMIT, || is_at(two, mac, "a learned")))?;
        step("host 1", "hearing of the move", || wait(LIMIT, || is_at(one, mac, "over evpn")))?;
        step("host 3", "hearing of the move", || {
            wait(LIMIT, || {
                let entries = self.hosts[2].expect("bridge fdb show dev vx100")?;
                let found = entries.lines().any(|it| it.starts_with(mac) && it.contains("dst 10.9.0.2"));
                Ok(found.then_some(()).ok_or(entries))
            })
        })?;
        let known = arrived.elapsed();
        step("c", "pinging a at host 2", || pinging.more(&mut c, 10))?;
        let twice = c.expect(&format!("grep -c DUP /tmp/ping.{address} || true"))?;
        let ping = step("c", "ending its ping", || pinging.end(&mut c))?;
        if twice.trim() != "0" {
            return Err(Error::new(format!("c had an answer twice, {} times", twice.trim())));
        }
        say(
            "a",
            &format!(
                "moved to host 2 in {} ms, of which it stood still for {}",
                migration.total_ms, migration.downtime_ms
            ),
        );
        say("", &format!("all hosts knew within {:.0} ms after that", known.as_secs_f64() * 1e3));
        say("c", &format!("had {} of {} answers, none twice", ping.received, ping.sent));
        println!("\n$ sidecore show mac    # at host 1\n{}", one.command(&["show", "mac"])?.trim_end());
        for guest in guests.into_iter().chain([moved, c]) {
            guest.kill();
        }
        Ok(())
    }
}

/// Ping, and TCP in Gbit/s as the receiver counts.
fn measure(guests: &mut [Guest], from: usize, to: usize) -> Result<(Ping, f64)> {
    let address = GUESTS[to].2;
    let (low, high) = guests.split_at_mut(from.max(to));
    let (low, high) = (&mut low[from.min(to)], &mut high[0]);
    let (sender, receiver) = if from < to { (low, high) } else { (high, low) };
    // Until routing has told where it is.
    sender.wait_until(&format!("ping -c 1 -W 1 {address} > /dev/null"), LIMIT)?;
    super::measure(receiver, address, |command| sender.run(command))
}

/// Whether a host has `mac` behind a port and for a reason, such as `a learned`; else its whole table.
fn is_at(daemon: &mut Daemon, mac: &str, place: &str) -> Result<std::result::Result<(), String>> {
    let table = daemon.show_json("mac")?;
    let mut rows = table["addresses"].as_array().into_iter().flatten().filter(|row| row["mac"] == mac);
    let is_it = |row: &Value| {
        let word = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        format!("{} {}", word("port"), word("state")) == place
    };
    Ok(rows.any(is_it).then_some(()).ok_or_else(|| format!("{table:#}")))
}
