//! `sidecore-lab demo router`: a router between two guests and two neighbours, with FRR as its control plane.
//!
//! ```text
//!  one ──BGP──┐             ┌── a (virtio)
//!             ├── router r ─┤
//!  two ──OSPF─┘      │      └── b (82574L)
//!                   FRR
//! ```
//!
//! Neighbours are network namespaces with FRR of their own, and each has one address that only routing tells
//! of. Guests are in networks of the router's. iperf3 sends between each guest and the neighbour across, both
//! ways at once, while the router's FRR is killed and, some seconds later, started again. From the counters
//! of before and after follows what the router dropped: nothing, or the demo fails. It also fails if nothing
//! was forwarded while FRR was away, or if FRR came back after iperf3 had ended.
//!
//! What the neighbours do meanwhile is theirs. `one` keeps its routes, since BGP's graceful restart is agreed
//! on (RFC 4724). OSPF has the same for a restart that is announced only (RFC 3623 §2.1), so `two` has a
//! static route for the time in which its FRR has none.

use super::{boot, end, neighbour, perform, reach, say, step, BITS};
use crate::error::{Context, Error, Result};
use crate::frr::Frr;
use crate::process::{wait, Process};
use crate::traffic::{iperf3, received_gbits};
use crate::{Balance, Daemon, Guest, Netns, Nic, RunDir};
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long routing may take to find its routes.
const LIMIT: Duration = Duration::from_secs(60);
/// How long iperf3 sends beside FRR's end and return, in seconds; a second of it passes before the end.
const SECONDS: u64 = 40;
const BEFORE: Duration = Duration::from_secs(1);
/// For how long there is no FRR.
const AWAY: Duration = Duration::from_secs(5);
/// Datagrams: so many bits a second each way, of so many bytes.
const RATE: &str = "4M";
const LENGTH: u32 = 1200;
/// No loss: what the router takes itself, hellos to groups that a guest's card has not asked for, and what
/// one member of a group says for all.
const NO_LOSS: [&str; 3] = ["to_router", "filtered", "not_speaker"];

/// A neighbour with the guest across, and how each is reached.
struct Pair {
    neighbour: &'static str,
    by: &'static str,
    /// The router's and the neighbour's address between them.
    link: [&'static str; 2],
    /// The neighbour's address that routing tells of.
    far: &'static str,
    guest: &'static str,
    card: &'static str,
    /// The router's and the guest's address.
    inside: [&'static str; 2],
}

const PAIRS: [Pair; 2] = [
    Pair {
        neighbour: "one",
        by: "BGP",
        link: ["192.0.2.1", "192.0.2.2"],
        far: "198.51.100.1",
        guest: "a",
        card: "vhost-user",
        inside: ["10.77.1.1", "10.77.1.2"],
    },
    Pair {
        neighbour: "two",
        by: "OSPF",
        link: ["192.0.2.129", "192.0.2.130"],
        far: "203.0.113.1",
        guest: "b",
        card: "e1000e",
        inside: ["10.77.2.1", "10.77.2.2"],
    },
];

/// Configurations of FRR's daemons: the router's, and the neighbours'.
const OURS: [(&str, &str); 3] = [
    ("zebra", "fpm address 127.0.0.1 port 2620\n"),
    (
        "bgpd",
        "router bgp 65000\n no bgp ebgp-requires-policy\n bgp graceful-restart\n \
         bgp graceful-restart preserve-fw-state\n neighbor 192.0.2.2 remote-as 65001\n \
         neighbor 192.0.2.2 timers connect 1\n address-family ipv4 unicast\n  network 10.77.1.0/24\n  \
         network 10.77.2.0/24\n",
    ),
    (
        "ospfd",
        "interface two\n ip ospf network point-to-point\n ip ospf hello-interval 1\n \
         ip ospf dead-interval 4\n ip ospf area 0\ninterface b\n ip ospf area 0\n ip ospf passive\n\
         router ospf\n ospf router-id 192.0.2.129\n",
    ),
];
const ONE: [(&str, &str); 2] = [
    ("zebra", ""),
    (
        "bgpd",
        "router bgp 65001\n no bgp ebgp-requires-policy\n no bgp network import-check\n \
         neighbor 192.0.2.1 remote-as 65000\n neighbor 192.0.2.1 timers connect 1\n \
         address-family ipv4 unicast\n  network 198.51.100.1/32\n",
    ),
];
const TWO: [(&str, &str); 2] = [
    ("zebra", ""),
    (
        "ospfd",
        "interface eth0\n ip ospf network point-to-point\n ip ospf hello-interval 1\n \
         ip ospf dead-interval 4\n ip ospf area 0\ninterface lo\n ip ospf area 0\n ip ospf passive\n\
         router ospf\n ospf router-id 192.0.2.130\n",
    ),
];

/// Runs the demo; returns when all of it worked and nothing is left of it.
///
/// # Errors
/// A step failed, or the router dropped a frame: which one, and where the logs are.
pub fn demo() -> Result<()> {
    let about = "Two guests, two neighbours, and a sidecore router between them whose control plane is FRR.";
    perform("demo router", about, |dir| step("host", "making namespaces", || Site::new(dir))?.run())
}

struct Site {
    folder: PathBuf,
    /// Where the daemon runs, and FRR beside it.
    host: Netns,
    control: Netns,
    /// As in `PAIRS`.
    neighbours: Vec<Netns>,
    sockets: Vec<String>,
}

/// What iperf3 said of one pair: datagrams each way, to the guest and from it, with those that did not
/// arrive.
pub(super) struct Row {
    pub packets: [u64; 2],
    pub lost: [u64; 2],
}

impl Site {
    fn new(dir: &RunDir) -> Result<Site> {
        let (host, control) = (Netns::new("demo")?, Netns::new("frr")?);
        let its = |pair: &Pair| neighbour(&host, pair.neighbour, pair.link[1], pair.far);
        let neighbours: Vec<Netns> = PAIRS.iter().map(its).collect::<Result<_>>()?;
        // The one of last resort: what routing finds goes before it.
        let [_, two] = &PAIRS;
        neighbours[1].ip(&format!("route add default via {} metric 1000", two.link[0]))?;
        let sockets = PAIRS.iter().map(|pair| dir.join(&format!("{}.sock", pair.guest))).collect();
        Ok(Site { folder: dir.path().to_owned(), host, control, neighbours, sockets })
    }

    fn run(self) -> Result<()> {
        let ports = PAIRS.iter().zip(&self.sockets).flat_map(|(pair, socket)| {
            let Pair { neighbour, link, guest, card, inside, .. } = pair;
            [
                format!("{neighbour}=packet:{neighbour},router=r,address={}/{BITS}", link[0]),
                format!("{guest}={card}:{socket},router=r,address={}/24", inside[0]),
            ]
        });
        let ports: Vec<String> = ports.collect();
        let router = format!("r,control={}", self.control.name());
        let mut arguments = vec!["--router", &router];
        arguments.extend(ports.iter().flat_map(|port| ["--port", port.as_str()]));
        let mut daemon = step("daemon", "starting", || Daemon::start_in(&self.host, &arguments))?;
        say("daemon", &format!("sidecore run {}", arguments.join(" ")));
        let frr = step("frr", "starting", || self.frr())?;
        say("frr", "zebra, bgpd and ospfd in the router's control namespace; BGP with one, OSPF with two");
        let _others = step("frr", "starting the neighbours'", || {
            let folder = |number: usize| self.folder.join(PAIRS[number].neighbour);
            Ok([
                Frr::start(&self.neighbours[0], &folder(0), &ONE)?,
                Frr::start(&self.neighbours[1], &folder(1), &TWO)?,
            ])
        })?;
        let spec =
            |(pair, socket): (&Pair, &String)| Guest::named(pair.guest).nic(Nic::of_port(pair.card, socket));
        let specs: Vec<_> = PAIRS.iter().zip(&self.sockets).map(spec).collect();
        let mut guests = boot(specs)?;
        let done = self.traffic(&mut daemon, &mut guests, frr);
        end(done, daemon, guests)
    }

    fn frr(&self) -> Result<Frr> {
        Frr::start(&self.control, &self.folder.join("ours"), &OURS)
    }

    fn traffic(&self, daemon: &mut Daemon, guests: &mut [Guest], frr: Frr) -> Result<()> {
        for (pair, guest) in PAIRS.iter().zip(&mut *guests) {
            let [gateway, address] = pair.inside;
            step(pair.guest, "giving eth0 an address", || guest.address(&format!("{address}/24")))?;
            step(pair.guest, "giving it a gateway", || {
                guest.expect(&format!("ip route add default via {gateway}"))
            })?;
        }
        let begun = Instant::now();
        step("frr", "waiting for its routes", || {
            await_state(daemon, |control, frames| control["connected"] == true && frames.is_some())
        })?;
        for (pair, netns) in PAIRS.iter().zip(&self.neighbours) {
            step(pair.neighbour, "reaching the guest across", || reach(netns, pair.far, pair.inside[1]))?;
        }
        say("frr", &format!("all routes are there, after {:.0} s", begun.elapsed().as_secs_f64()));
        let [a, b] = guests else { return Err(Error::new("two guests are needed")) };
        say("a", "sends to b with iperf3 for 2 s, through the router");
        let tcp = step("a → b", "iperf3", || {
            iperf3(b, PAIRS[1].inside[1], "--time 2", |command| a.run(command)).map(|it| received_gbits(&it))
        })?;

        let before = step("daemon", "counting frames", || daemon.balance())?;
        let streams = self.streams(guests)?;
        std::thread::sleep(BEFORE);
        frr.kill();
        let begun = Instant::now();
        say("frr", "killed: zebra, bgpd and ospfd at once");
        let at_end = step("frr", "waiting for its end", || {
            await_state(daemon, |control, _| control["connected"] == false)
        })?;
        std::thread::sleep(AWAY.saturating_sub(begun.elapsed()));
        let (_, at_return) = state(daemon)?;
        let forwarded = at_return.unwrap_or(0).saturating_sub(at_end.unwrap_or(0));
        let away = begun.elapsed().as_secs_f64();
        let frr = step("frr", "starting again", || self.frr())?;
        step("frr", "waiting until it has sent all routes again", || {
            await_state(daemon, |control, frames| {
                control["connected"] == true && control["stale"] == 0 && frames.is_some()
            })
        })?;
        let back = begun.elapsed().as_secs_f64();
        say(
            "frr",
            &format!("started after {away:.0} s, and has said all its routes again after {back:.0} s"),
        );
        say("iperf3", "continues to send until its time is over");
        let rows = streams.end()?;
        let after = step("daemon", "counting frames", || daemon.balance())?;
        report(daemon, &rows, &before, &after)?;
        drop(frr);
        println!(
            "\n  {forwarded} frames were forwarded by FRR's routes while there was no FRR ({away:.0} s)."
        );
        println!("  a → b through the router: {tcp:.2} Gbit/s of TCP.");
        if forwarded == 0 {
            return Err(Error::new("nothing was forwarded while FRR was away"));
        }
        no_loss(&before, &after)
    }

    /// iperf3 between each neighbour and the guest across, both ways.
    fn streams(&self, guests: &mut [Guest]) -> Result<Streams> {
        let mut all = Vec::new();
        for ((pair, netns), guest) in PAIRS.iter().zip(&self.neighbours).zip(&mut *guests) {
            let Pair { neighbour, far, inside: [_, address], guest: name, .. } = pair;
            guest.run_in_background("iperf3 --server --one-off")?;
            guest.wait_until("netstat -lnt | grep -q :5201", LIMIT)?;
            let log = self.folder.join(format!("iperf3.{neighbour}"));
            all.push((
                netns.spawn(&format!(
                    "iperf3 --client {address} --bind {far} --udp --bidir --bitrate {RATE} --length {LENGTH} \
                     --time {SECONDS} --json > {}",
                    log.display()
                ))?,
                log,
            ));
            say(neighbour, &format!("iperf3 with {name}, {RATE}bit/s each way for {SECONDS} s"));
        }
        Ok(Streams(all))
    }
}

/// Running clients with their reports.
struct Streams(Vec<(Process, PathBuf)>);

impl Streams {
    /// Waits for their end. All of them must still have been running.
    fn end(self) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for (number, (mut process, log)) in self.0.into_iter().enumerate() {
            if number == 0 && process.status().is_some() {
                return Err(Error::new("iperf3 had ended before FRR was back: this machine is too slow"));
            }
            process.wait(LIMIT + Duration::from_secs(SECONDS))?;
            let text = std::fs::read_to_string(&log).context(|| format!("reading {}", log.display()))?;
            rows.push(Row::parse(&text).ok_or_else(|| Error::new(format!("iperf3 said:\n{text}")))?);
        }
        Ok(rows)
    }
}

impl Row {
    /// From iperf3's report of both ways.
    pub fn parse(text: &str) -> Option<Row> {
        let report: Value = serde_json::from_str(text).ok()?;
        let streams = report["end"]["streams"].as_array()?;
        let sum = |sender: bool, key: &str| {
            let its = streams.iter().map(|it| &it["udp"]).filter(|it| it["sender"] == sender);
            its.map(|it| it[key].as_u64()).sum::<Option<u64>>()
        };
        let way = |sender| Some((sum(sender, "packets").filter(|it| *it > 0)?, sum(sender, "lost_packets")?));
        let (there, back) = (way(true)?, way(false)?);
        Some(Row { packets: [there.0, back.0], lost: [there.1, back.1] })
    }
}

/// What the router says of its control plane, and how many frames went by the routes to what the neighbours
/// told of, if both are there.
fn state(daemon: &mut Daemon) -> Result<(Value, Option<u64>)> {
    let control = daemon.show_json("routers")?["routers"][0]["control"].clone();
    let text = daemon.command(&["show", "routes", "r", "--json"])?;
    let routes: Value = serde_json::from_str(&text).context(|| format!("show routes: {text}"))?;
    let frames = |pair: &Pair| {
        let prefix = format!("{}/32", pair.far);
        let mut all = routes["routes"].as_array().into_iter().flatten();
        let route = all.find(|it| it["prefix"] == *prefix && it["origin"] == "fpm")?;
        route["hops"].as_array()?.iter().map(|hop| hop["frames"].as_u64()).sum::<Option<u64>>()
    };
    Ok((control, PAIRS.iter().map(frames).sum()))
}

/// Waits until `wanted` is true of the state; the frames then.
fn await_state(daemon: &mut Daemon, wanted: impl Fn(&Value, Option<u64>) -> bool) -> Result<Option<u64>> {
    wait(LIMIT, || {
        let (control, frames) = state(daemon)?;
        Ok(wanted(&control, frames).then_some(frames).ok_or_else(|| format!("{control:#}")))
    })
}

/// Frames that the router dropped in between, by reason.
pub(super) fn dropped(before: &Balance, after: &Balance) -> Vec<(String, u64)> {
    let since = |(reason, frames): (&String, &u64)| {
        let more = frames - before.drops.get(reason).copied().unwrap_or(0);
        (reason.clone(), more)
    };
    after
        .drops
        .iter()
        .map(since)
        .filter(|(reason, more)| *more > 0 && !NO_LOSS.contains(&reason.as_str()))
        .collect()
}

fn report(daemon: &mut Daemon, rows: &[Row], before: &Balance, after: &Balance) -> Result<()> {
    println!("\n  {:14} {:>6} {:>12} {:>8} {:>12} {:>8}", "", "by", "to guest", "lost", "from guest", "lost");
    for (Pair { neighbour, guest, by, .. }, Row { packets, lost }) in PAIRS.iter().zip(rows) {
        let pair = format!("{neighbour} ↔ {guest}");
        println!("  {pair:14} {by:>6} {:>12} {:>8} {:>12} {:>8}", packets[0], lost[0], packets[1], lost[1]);
    }
    for (topic, name) in [("routers", None), ("routes", Some("r")), ("drops", None)] {
        let words: Vec<&str> = ["show", topic].into_iter().chain(name).collect();
        let text = step("daemon", "show", || daemon.command(&words))?;
        println!("\n$ sidecore {}\n{}", words.join(" "), text.trim_end());
    }
    let (passed, dropped) = (after.out_frames - before.out_frames, dropped(before, after));
    let sum: u64 = dropped.iter().map(|(_, frames)| frames).sum();
    println!("\n  While iperf3 ran: {passed} frames went out of the router's ports, {sum} were dropped.");
    Ok(())
}

fn no_loss(before: &Balance, after: &Balance) -> Result<()> {
    let lost = dropped(before, after);
    if lost.is_empty() {
        return Ok(());
    }
    let lost: Vec<String> = lost.iter().map(|(reason, frames)| format!("{frames} as {reason}")).collect();
    Err(Error::new(format!("the router dropped frames: {}", lost.join(", "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_of_a_report_are_read() {
        let udp = |sender: bool, packets: u64, lost: u64| serde_json::json!({"udp": {"sender": sender, "packets": packets, "lost_packets": lost}});
        let report = serde_json::json!({"end": {"streams": [udp(true, 100, 1), udp(false, 200, 2)]}});
        let row = Row::parse(&report.to_string()).unwrap();
        assert_eq!((row.packets, row.lost), ([100, 200], [1, 2]));
        let silent = serde_json::json!({"end": {"streams": [udp(true, 100, 1), udp(false, 0, 0)]}});
        assert!(Row::parse(&silent.to_string()).is_none(), "a way without a datagram is no result");
        assert!(Row::parse("iperf3: error").is_none());
    }

    #[test]
    fn drops_are_those_in_between_without_what_was_taken() {
        let mut before = Balance::default();
        before.drops.insert("no_route".to_owned(), 3);
        let mut after = before.clone();
        after.drops.extend(NO_LOSS.map(|reason| (reason.to_owned(), 9)));
        assert!(dropped(&before, &after).is_empty() && no_loss(&before, &after).is_ok());
        after.drops.insert("no_route".to_owned(), 5);
        assert_eq!(dropped(&before, &after), [("no_route".to_owned(), 2)]);
        assert!(no_loss(&before, &after).is_err());
    }
}
