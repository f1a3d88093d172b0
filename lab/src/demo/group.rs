//! `sidecore-lab demo group`: three routers that act as one between two neighbours, with one control plane.
//!
//! ```text
//!             ┌── r (router of the engine, FRR) ──┐
//!  one ──BGP──┼── a (guest, virtio)             ──┼──BGP── two
//!             └── b (guest, 82574L)             ──┘
//! ```
//!
//! Neighbours are network namespaces with FRR, and each has one address that only routing tells of. They
//! speak with the group's addresses, behind which FRR is r's; agents in the guests have their kernels have
//! the same routes. iperf3 sends by many flows both ways while a is drained and comes back, and b is killed
//! and boots again; a table says each second who has which share. While a member is drained or added the
//! daemon drops nothing, or the demo fails.

use super::router::{dropped, Row};
use super::{boot, end, neighbour, perform, reach, say, step, BITS};
use crate::back_end::{back_end, start_agent};
use crate::error::{Context, Error, Result};
use crate::frr::Frr;
use crate::process::wait;
use crate::{Balance, Daemon, Guest, Netns, Nic, RunDir, Spec};
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long routing, or a member that joins, may take.
const LIMIT: Duration = Duration::from_secs(60);
/// How long iperf3 sends, in seconds.
const SECONDS: u64 = 60;
/// Flows each way, of so many bits a second, in datagrams of so many bytes: five a second, so each flow
/// pauses for longer than buckets have to be idle.
const FLOWS: u32 = 64;
const RATE: &str = "50K";
const LENGTH: u32 = 1200;
/// The ticks of the table; how many of them pass before something is done to a member.
const TICK: Duration = Duration::from_secs(1);
const BETWEEN: u32 = 3;

/// A neighbour: its name, the group's station and address towards it, its own address there, and the one that
/// routing tells of.
struct Side {
    name: &'static str,
    mac: &'static str,
    link: [&'static str; 2],
    far: &'static str,
}

const SIDES: [Side; 2] = [
    Side { name: "one", mac: "52:54:00:00:09:01", link: ["192.0.2.1", "192.0.2.2"], far: "198.51.100.1" },
    Side { name: "two", mac: "52:54:00:00:09:02", link: ["192.0.2.129", "192.0.2.130"], far: "203.0.113.1" },
];
/// The guests among the members, with their cards.
const GUESTS: [(&str, &str, &str); 2] = [("a", "vhost-user", "virtio"), ("b", "e1000e", "82574L")];

fn bgp(number: usize, neighbours: &[(usize, &str)], more: &str) -> String {
    let neighbours: String = neighbours
        .iter()
        .map(|(number, address)| {
            format!(" neighbor {address} remote-as 6500{number}\n neighbor {address} timers connect 1\n")
        })
        .collect();
    format!(
        "router bgp 6500{number}\n no bgp ebgp-requires-policy\n no bgp network import-check\n{neighbours} \
         address-family ipv4 unicast\n{more}"
    )
}

/// Runs the demo; returns when all of it worked and nothing is left of it.
///
/// # Errors
/// A step failed, or a frame was dropped while a member was drained or added: which one, and where the logs
/// are.
pub fn demo() -> Result<()> {
    let about = "Two guests and a router of the engine are one router between two neighbours; FRR is its control plane.";
    perform("demo group", about, |dir| step("host", "making namespaces", || Site::new(dir))?.run())
}

struct Site {
    folder: PathBuf,
    /// Where the daemon runs, and FRR beside it.
    host: Netns,
    control: Netns,
    /// As in `SIDES`.
    sides: Vec<Netns>,
}

impl Site {
    fn new(dir: &RunDir) -> Result<Site> {
        let (host, control) = (Netns::new("demo")?, Netns::new("frr")?);
        let side = |it: &Side| neighbour(&host, it.name, it.link[1], it.far);
        let sides = SIDES.iter().map(side).collect::<Result<_>>()?;
        Ok(Site { folder: dir.path().to_owned(), host, control, sides })
    }

    fn at(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn ports(&self) -> Vec<String> {
        let mut ports = Vec::new();
        for (n, Side { name, mac, link, .. }) in SIDES.iter().enumerate() {
            ports.push(format!("{name}=packet:{name},wire=w{n}"));
            ports.push(format!("g{n}=group:g,interface={n},wire=w{n},mac={mac},address={}/{BITS}", link[0]));
            ports.push(format!("r{n}=router:r,group=g,member=r,interface={n}"));
            for (guest, kind, _) in &GUESTS {
                let socket = self.at(&format!("{guest}{n}.sock"));
                ports.push(format!(
                    "{guest}{n}={kind}:{socket},mac={mac},group=g,member={guest},interface={n}"
                ));
            }
        }
        ports
    }

    fn spec(&self, guest: usize) -> Result<Spec> {
        let (name, kind, _) = GUESTS[guest];
        let mut spec = Guest::named(name);
        for (n, side) in SIDES.iter().enumerate() {
            let socket = self.at(&format!("{name}{n}.sock"));
            spec = spec.nic(Nic::of_port(kind, socket).mac(side.mac));
        }
        back_end(spec, &self.at(&format!("{name}.agent")))
    }

    /// Has a guest be a router with the group's addresses, and its agent ask for routes.
    fn be_member(guest: &mut Guest) -> Result<()> {
        guest.expect("sysctl -w net.ipv4.ip_forward=1")?;
        for (n, side) in SIDES.iter().enumerate() {
            guest
                .expect(&format!("ip link set eth{n} up; ip addr add {}/{BITS} dev eth{n}", side.link[0]))?;
        }
        start_agent(guest)
    }

    fn run(self) -> Result<()> {
        let ports = self.ports();
        let agents =
            GUESTS.map(|(name, ..)| format!("{name}:{}", self.at(&format!("{name}.agent")))).join("+");
        let router = format!("r,control={},agents={agents}", self.control.name());
        let mut arguments = vec!["--group", "g", "--router", &router];
        arguments.extend(ports.iter().flat_map(|port| ["--port", port.as_str()]));
        let mut daemon = step("daemon", "starting", || Daemon::start_in(&self.host, &arguments))?;
        say("daemon", &format!("sidecore run {}", arguments.join(" ")));
        let _frr = step("frr", "starting three of them", || self.frr())?;
        say("frr", "zebra and bgpd in the router's control namespace, and at both neighbours");
        let mut guests = boot(vec![self.spec(0)?, self.spec(1)?])?;
        let done = self.traffic(&mut daemon, &mut guests);
        end(done, daemon, guests)
    }

    fn frr(&self) -> Result<Vec<Frr>> {
        let [one, two] = &SIDES;
        let ours = bgp(0, &[(1, one.link[1]), (2, two.link[1])], "");
        let theirs =
            |n: usize| bgp(n + 1, &[(0, SIDES[n].link[0])], &format!("  network {}/32\n", SIDES[n].far));
        let start = |netns: &Netns, name: &str, zebra: &str, bgpd: &str| {
            Frr::start(netns, &self.folder.join(name), &[("zebra", zebra), ("bgpd", bgpd)])
        };
        Ok(vec![
            start(&self.control, "ours", "fpm address 127.0.0.1 port 2620\n", &ours)?,
            start(&self.sides[0], "one", "", &theirs(0))?,
            start(&self.sides[1], "two", "", &theirs(1))?,
        ])
    }

    fn traffic(&self, daemon: &mut Daemon, guests: &mut [Guest]) -> Result<()> {
        let begun = Instant::now();
        for (guest, (name, _, card)) in guests.iter_mut().zip(GUESTS) {
            step(name, "becoming a member", || Self::be_member(guest))?;
            say(name, &format!("{card} cards, the group's addresses, and an agent for its routes"));
        }
        let mut table = Table { daemon, begun, frames: [0; 3], balance: Balance::default() };
        step("group", "waiting until all are members", || table.wait())?;
        step("one", "reaching two", || reach(&self.sides[0], SIDES[0].far, SIDES[1].far))?;
        say("group", &format!("r, a and b have all routes, after {:.0} s", begun.elapsed().as_secs_f64()));
        println!("\n$ sidecore show routers\n{}\n", table.daemon.command(&["show", "routers"])?.trim_end());

        let (server, log) = (self.at("iperf3.two"), self.folder.join("iperf3.one"));
        let _server = self.sides[1].spawn(&format!("iperf3 --server --bind {} > {server}", SIDES[1].far))?;
        self.sides[1]
            .expect("for i in $(seq 600); do ss -ltn | grep -q :5201 && exit; sleep 0.1; done; exit 1")?;
        let mut client = self.sides[0].spawn(&format!(
            "iperf3 --client {} --bind {} --udp --bidir --parallel {FLOWS} --bitrate {RATE} --length {LENGTH} \
             --time {SECONDS} --json > {}",
            SIDES[1].far,
            SIDES[0].far,
            log.display()
        ))?;
        say(
            "iperf3",
            &format!(
                "{FLOWS} flows of {RATE}bit/s each way for {SECONDS} s; the columns are who has which share"
            ),
        );
        (table.begun, table.balance) = (Instant::now(), table.daemon.balance()?);
        table.rows(BETWEEN, "all three")?;
        table.daemon.command(&["drain", "g/a"])?;
        table.row("sidecore drain g/a")?;
        table.until("a has no flows any more", |states| states[0] == "drained")?;
        table.rows(BETWEEN, "")?;
        table.daemon.command(&["undrain", "g/a"])?;
        table.row("sidecore undrain g/a")?;
        table.until("a has flows again", |states| states[0] == "active")?;
        table.rows(BETWEEN, "")?;
        let calm = table.daemon.balance()?;
        let lost = dropped(&table.balance, &calm);
        if !lost.is_empty() {
            return Err(Error::new(format!("while a was drained and came back the daemon dropped {lost:?}")));
        }
        guests[1].crash();
        table.row("kill -9 of b's VMM")?;
        table.until("b's flows have other members", |states| states[1] == "gone")?;
        let spec = self.spec(1)?;
        let booting = std::thread::spawn(move || spec.boot());
        while !booting.is_finished() {
            table.row("b boots")?;
        }
        guests[1] = booting.join().map_err(|_| Error::new("the thread that boots b has ended"))??;
        step("b", "becoming a member again", || Self::be_member(&mut guests[1]))?;
        table.until("b has its routes", |states| states == ["active"; 3])?;
        table.rows(BETWEEN, "all three")?;
        if client.status().is_some() {
            return Err(Error::new("iperf3 had ended before b was back: this machine is too slow"));
        }
        say("iperf3", "continues to send until its time is over");
        client.wait(LIMIT + Duration::from_secs(SECONDS))?;
        let text = std::fs::read_to_string(&log).context(|| format!("reading {}", log.display()))?;
        let row = Row::parse(&text).ok_or_else(|| Error::new(format!("iperf3 said:\n{text}")))?;
        let after = table.daemon.balance()?;
        for topic in ["groups", "drops"] {
            println!("\n$ sidecore show {topic}\n{}", table.daemon.command(&["show", topic])?.trim_end());
        }
        let [there, back] = [0, 1].map(|way| format!("{} of {}", row.lost[way], row.packets[way]));
        println!(
            "\n  one → two: {there} datagrams were lost, two → one: {back}; 0 while a was drained and added,"
        );
        println!("  what b had when it was killed, and by the daemon {:?}.", dropped(&calm, &after));
        Ok(())
    }
}

/// Rows of the table, one a second.
struct Table<'d> {
    daemon: &'d mut Daemon,
    begun: Instant,
    /// What each member had sent at the last row.
    frames: [u64; 3],
    balance: Balance,
}

const MEMBERS: [&str; 3] = ["a", "b", "r"];

impl Table<'_> {
    fn members(&mut self) -> Result<Vec<Value>> {
        let groups = self.daemon.show_json("groups")?;
        groups["groups"][0]["members"].as_array().cloned().ok_or_else(|| Error::new("there is no group"))
    }

    /// Waits a tick, and prints a row with what happens.
    fn row(&mut self, what: &str) -> Result<()> {
        self.row_of(|_| what).map(drop)
    }

    /// Shows a row with what the members' states make of it; these states.
    fn row_of<'w>(&mut self, what: impl FnOnce(&[String]) -> &'w str) -> Result<Vec<String>> {
        // What a person watches has a pace of its own.
        std::thread::sleep(TICK);
        let members = self.members()?;
        let ports = self.daemon.show_json("ports")?;
        let mut line = format!("  {:>4.0} s ", self.begun.elapsed().as_secs_f64());
        for (n, member) in members.iter().enumerate() {
            let state = member["state"].as_str().unwrap_or_default();
            let share = member["buckets"].as_f64().unwrap_or_default() / 655.36;
            let sent = sent(&ports, MEMBERS[n]);
            let more = sent.saturating_sub(std::mem::replace(&mut self.frames[n], sent));
            line.push_str(&format!(" {} {state:8} {share:3.0} % {more:>6} frames ", MEMBERS[n]));
        }
        let states =
            members.iter().map(|it| it["state"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>();
        println!("{line} {}", what(&states));
        Ok(states)
    }

    fn rows(&mut self, count: u32, what: &str) -> Result<()> {
        (0..count).try_for_each(|_| self.row(what))
    }

    /// Prints rows until it is so, which the last one says.
    fn until(&mut self, what: &str, is: impl Fn(&[String]) -> bool) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        while !is(&self.row_of(|states| if is(states) { what } else { "" })?) {
            if Instant::now() > deadline {
                return Err(Error::new(format!("after {LIMIT:?}: {:#?}", self.members()?)));
            }
        }
        Ok(())
    }

    /// Waits without rows until all are members.
    fn wait(&mut self) -> Result<()> {
        wait(LIMIT, || {
            let members = self.members()?;
            let all = members.len() == MEMBERS.len() && members.iter().all(|it| it["state"] == "active");
            Ok(all.then_some(()).ok_or_else(|| format!("{members:#?}")))
        })
    }
}

/// Frames that a member has sent: its guest, or its router.
fn sent(ports: &Value, member: &str) -> u64 {
    let its =
        |port: &&Value| port["name"].as_str().and_then(|name| name.strip_suffix(['0', '1'])) == Some(member);
    let key = if member == "r" { "out_frames" } else { "in_frames" };
    let all = ports["ports"].as_array().into_iter().flatten().filter(its);
    all.map(|port| port["counters"][key].as_u64().unwrap_or_default()).sum()
}
