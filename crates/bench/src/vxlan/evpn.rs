//! Two hosts with FRR as their control plane (EVPN, RFC 7432 and 8365): stations that move, and many that
//! come.
//!
//! FRR on each host speaks BGP with the other over a cable. For ours that is a namespace of its own, in which
//! our daemon keeps what FRR expects of a host; the kernel is one itself. Two guests are on the first host
//! and one is on the second.
//!
//! A station that has spoken on the first host speaks once on the second, as a virtual machine does when it
//! has moved. Before and after it, a guest of the first host sends it numbered frames, every [`EVERY`].
//! `move_ms` is the time until the first of them arrives at the new place. Each station moves once: FRR
//! freezes those that move often.
//!
//! Then many stations speak on the first host at once. `macs_s` is the time from when the second host's bgpd
//! has all of them (it is asked all the time) until its switch has, `whole_s` from the first one's frame on.

use sidecore_pktgen::end::{host, Lane, Sink, Source};

use super::super::frr::Frr;
use super::super::lane::{udp, End, Once, SIZE};
use super::super::ours;
use super::stage::{bridge, join, vtep, CABLE, GUEST};
use super::Args;
use crate::prelude::*;

/// From one frame to the next.
const EVERY: Duration = Duration::from_micros(200);
/// How long frames are sent before a move, and after the first of them has arrived.
const AROUND: Duration = Duration::from_millis(100);
/// How long a change may take: of one port 500 stations a second are announced, after the first 4,096.
const PATIENCE: Duration = Duration::from_secs(60);
/// Where a frame's number is: behind its headers.
const NUMBER: usize = 42;
/// Frames sent at once while many stations come, and the time between: a TAP keeps 500.
const BURST: usize = 32;
const PAUSE: Duration = Duration::from_micros(500);
/// From one look at FRR and the switch to the next.
const LOOK: Duration = Duration::from_millis(2);
/// When all of them speak once more.
const AGAIN: Duration = Duration::from_secs(2);

/// Moves in a round, and stations that come at once.
const MOVES: u16 = 3;
const MACS: usize = 20_000;
/// Rounds at most, and the size of our switches' tables: so large that no bucket of it overflows by the
/// stations of these rounds.
const ROUNDS: u16 = 5;
const TABLE: usize = 1 << 20;

type Mac = [u8; 6];
/// The guest that sends.
const TALKER: Mac = [2, 0, 0, 0, 4, 1];
const ALL: Mac = [0xff; 6];

/// Where guests are: the station before it moves, the one that sends, the station after it has moved.
const AT: [usize; 3] = [0, 0, 1];

/// All of it. What is first ends first.
struct Fabric {
    ends: [End; 3],
    daemons: Vec<Switch>,
    frr: Vec<Frr>,
    _guests: [Net; 3],
    hosts: [Net; 2],
    _controls: Option<[Net; 2]>,
    _scratch: Scratch,
}

/// A station has moved.
#[derive(Clone, Copy, Debug)]
struct Move {
    ms: f64,
    /// Frames that arrived twice, and that did not.
    duplicates: usize,
    lost: usize,
}

/// Moves that were seen, and of stations that came together the times until they were told and in force.
type Seen = (Vec<Move>, Vec<(f64, f64)>);

/// Ours, and the kernel.
///
/// # Errors
/// FRR is not installed, something does not start, or a change does not come.
pub fn run(args: &Args, io_cores: [usize; 2]) -> Result<Vec<Row>> {
    let (rounds, moves, macs) =
        if args.quick { (1, 1, 1000) } else { (args.rounds.min(ROUNDS), MOVES, MACS) };
    let names = ["sidecore", "kernel"];
    let mut fabrics = [Fabric::start(Some(io_cores))?, Fabric::start(None)?];
    let mut found = [(Vec::new(), Vec::new()), (Vec::new(), Vec::new())];
    for round in 1..=rounds {
        for ((name, fabric), (moved, came)) in names.iter().zip(&mut fabrics).zip(&mut found) {
            for number in 0..moves {
                moved.push(fabric.moves(round * moves + number)?);
            }
            let [in_force, whole] = fabric.many(round, macs)?;
            let ms = moved.last().map_or(f64::NAN, |it| it.ms);
            eprintln!(
                "round {round}/{rounds}: {name}: moved in {ms:.1} ms, {macs} in force after {in_force:.2} s"
            );
            came.push((in_force, whole));
        }
    }
    Ok(names.into_iter().zip(&found).map(|(name, seen)| row(name, seen, macs)).collect())
}

row! {
    fn row(candidate: &'static str, seen: &Seen, macs: usize) -> Row {
        let (moved, came) = seen;
    }

    /// What was found.
    pub struct Row {
        candidate: &'static str = candidate,
        /// Milliseconds of moves: the median, and all.
        pub move_ms: f64 = middle(moved, |it| it.ms),
        moves: Vec<f64> = moved.iter().map(|it| it.ms).collect(),
        pub duplicates: usize = moved.iter().map(|it| it.duplicates).sum(),
        lost: usize = moved.iter().map(|it| it.lost).sum(),
        /// How many stations came at once, and seconds from when bgpd had them: the median, and all.
        macs: usize = macs,
        pub macs_s: f64 = middle(came, |it| it.0),
        in_force: Vec<f64> = came.iter().map(|it| it.0).collect(),
        /// From the first one's frame on: the median.
        whole_s: f64 = middle(came, |it| it.1),
    }
}

impl Fabric {
    /// Starts it, with daemons of ours on these processors or with the kernel, until frames for everybody
    /// arrive.
    fn start(io_cores: Option<[usize; 2]>) -> Result<Fabric> {
        Frr::is_there()?;
        let pair = || Ok::<_, String>([Net::quiet()?, Net::quiet()?]);
        let (hosts, controls) = (pair()?, io_cores.map(|_| pair()).transpose()?);
        let guests = [Net::quiet()?, Net::quiet()?, Net::quiet()?];
        join(&hosts, CABLE)?;
        controls.iter().try_for_each(|nets| join(nets, CABLE))?;
        let mut daemons = Vec::new();
        for (host, net) in hosts.iter().enumerate() {
            let here =
                || guests.iter().zip(AT).filter(|(_, at)| *at == host).map(|(guest, _)| guest).enumerate();
            match (&controls, io_cores) {
                (Some(controls), Some(io_cores)) => {
                    let over = format!("vxlan:{},vni=100,switch=lan", vtep(host));
                    let tap = |guest: &Net| format!("tap:{GUEST},netns={},switch=lan", guest.path());
                    let ports = here().map(|(n, guest)| (format!("g{n}"), tap(guest)));
                    let ports = std::iter::once(("over".to_owned(), over)).chain(ports);
                    let lan = format!("lan,control={},vni=100,table-size={TABLE}", controls[host].path());
                    let more = ["--switch", &lan];
                    daemons.push(Switch::start_in(Some(net), io_cores[host], ports, &more)?);
                }
                _ => {
                    bridge(net, &format!("local {} nolearning", vtep(host)))?;
                    net.ip("link set over type bridge_slave learning off neigh_suppress on")?;
                    here().try_for_each(|(n, guest)| {
                        let far = guest.id();
                        net.ip(&format!("link add g{n} type veth peer name {GUEST} netns {far}"))?;
                        net.ip(&format!("link set g{n} master br0 up"))
                    })?;
                }
            }
        }
        guests.iter().try_for_each(|guest| guest.ip(&format!("link set {GUEST} up")))?;
        let scratch = Scratch::new("sc-evpn")?;
        let frr = |host: usize| {
            let (here, there) = (vtep(host), vtep(1 - host));
            let bgp = format!(
                "router bgp 65000\n bgp router-id {here}\n no bgp default ipv4-unicast\n \
                 neighbor {there} remote-as 65000\n neighbor {there} timers connect 1\n \
                 address-family l2vpn evpn\n  neighbor {there} activate\n  advertise-all-vni\n exit-address-family\n"
            );
            let net = &controls.as_ref().unwrap_or(&hosts)[host];
            Frr::start(&scratch, &format!("frr{host}"), net, "", &bgp)
        };
        let frr = vec![frr(0)?, frr(1)?];
        let end = |guest: &Net| guest.enter(|| End::host(host::Kind::Packet, GUEST, SIZE));
        let ends = [end(&guests[0])?, end(&guests[1])?, end(&guests[2])?];
        let mut fabric =
            Fabric { ends, daemons, frr, _guests: guests, hosts, _controls: controls, _scratch: scratch };
        let mut heard = Heard::of([ALL, TALKER]);
        until("frames for everybody arrive", PATIENCE, LOOK, || {
            fabric.ends[1].send(1, &mut Once(&frame(ALL, TALKER, 0)))?;
            fabric.ends[2].receive(usize::MAX, &mut heard)?;
            Ok((!heard.numbers.is_empty()).then_some(()))
        })?;
        Ok(fabric)
    }

    /// Station `number` moves.
    fn moves(&mut self, number: u16) -> Result<Move> {
        let [high, low] = number.to_be_bytes();
        let mac = [2, 0, 0, 5, high, low];
        let text = mac.map(|byte| format!("{byte:02x}")).join(":");
        self.ends[0].send(1, &mut Once(&frame(TALKER, mac, 0)))?;
        until("the station is known", PATIENCE, LOOK, || {
            // zebra does not know its address at first, and says so in no JSON.
            let said = self.frr[1].ask("zebra", &format!("show evpn mac vni 100 mac {text}"));
            Ok(said.is_ok_and(|said| said.to_string().contains("\"remote\"")).then_some(()))
        })?;
        let mut heard = [Heard::of([mac, TALKER]), Heard::of([mac, TALKER])];
        let (mut sent, mut moved, mut arrived) = (0, None, None::<Instant>);
        let begun = Instant::now();
        while arrived.is_none_or(|at| at.elapsed() < AROUND) {
            if begun.elapsed() > PATIENCE {
                return Err(format!("nothing arrives at {text} where it has moved"));
            }
            if moved.is_none() && begun.elapsed() > AROUND {
                self.ends[2].send(1, &mut Once(&frame(ALL, mac, 0)))?;
                moved = Some(Instant::now());
            }
            self.ends[1].send(1, &mut Once(&frame(mac, TALKER, sent)))?;
            sent += 1;
            self.hear(&mut heard)?;
            if arrived.is_none() && moved.is_some() && !heard[1].numbers.is_empty() {
                arrived = Some(Instant::now());
            }
            std::thread::sleep(EVERY);
        }
        std::thread::sleep(AROUND);
        self.hear(&mut heard)?;
        let mut numbers = heard.map(|it| it.numbers).concat();
        let all = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        let ms = arrived.zip(moved).map_or(f64::NAN, |(at, from)| (at - from).as_secs_f64() * 1e3);
        let lost = usize::try_from(sent).unwrap_or(usize::MAX) - numbers.len();
        Ok(Move { ms, duplicates: all - numbers.len(), lost })
    }

    fn hear(&mut self, heard: &mut [Heard; 2]) -> Result<()> {
        let [before, _, after] = &mut self.ends;
        for (end, heard) in [before, after].into_iter().zip(heard) {
            while end.receive(usize::MAX, heard)?.frames > 0 {}
        }
        Ok(())
    }

    /// So many stations come that were not there in rounds before: seconds until they are in force, from when
    /// bgpd has them and from the first frame on.
    fn many(&mut self, round: u16, macs: usize) -> Result<[f64; 2]> {
        let (told, forced) = (self.told()?, self.forced()?);
        let (begun, mut all_told, mut spoken) = (Instant::now(), None, None::<Instant>);
        let come = until("all stations are in force", PATIENCE, LOOK, || {
            if all_told.is_none() && self.told().is_ok_and(|now| now >= told + macs) {
                all_told = Some(Instant::now());
            }
            // A TAP drops frames while others have the I/O core's processor: those of a few stations may be
            // missing.
            if all_told.is_none() && spoken.is_none_or(|at| at.elapsed() > AGAIN) {
                self.speak(&mut Stations { round, next: 0 }, macs)?;
                spoken = Some(Instant::now());
            }
            Ok(self.forced().is_ok_and(|now| now >= forced + macs).then_some(()))
        });
        come.map_err(|error| match (self.told(), self.forced()) {
            (Ok(now), Ok(here)) => {
                format!(
                    "{error}; of {macs} its bgpd has {}, its switch {}",
                    now.saturating_sub(told),
                    here.saturating_sub(forced)
                )
            }
            _ => error,
        })?;
        // They may be in force before one could ask.
        let in_force_s = all_told.map_or(0.0, |at| at.elapsed().as_secs_f64());
        Ok([in_force_s, begun.elapsed().as_secs_f64()])
    }

    fn speak(&mut self, stations: &mut Stations, macs: usize) -> Result<()> {
        while stations.next < macs {
            let room = self.ends[0].room()?.min(BURST).min(macs - stations.next);
            self.ends[0].send(room, stations)?;
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Routes that the second host's bgpd has from the first.
    fn told(&self) -> Result<usize> {
        let said = self.frr[1].ask("bgpd", "show bgp l2vpn evpn summary")?;
        let count = said["peers"][vtep(0)]["pfxRcd"].as_u64().ok_or_else(|| format!("bgpd: {said}"))?;
        usize::try_from(count).map_err(text)
    }

    /// Stations of the first host that the second host's switch has.
    fn forced(&self) -> Result<usize> {
        match self.daemons.get(1).and_then(|switch| switch.daemon.socket.as_ref()) {
            Some(socket) => {
                let port = ours::get(socket, "/v1/ports/over")?.to_string();
                let count = port
                    .split_once(" endpoints")
                    .and_then(|(_, rest)| rest.split_whitespace().find_map(|word| word.parse().ok()));
                count.ok_or(format!("the tunnel does not say how many are behind it: {port}"))
            }
            None => self.hosts[1].enter(|| {
                let fdb = std::process::Command::new("bridge").args(["fdb", "show", "dev", "over"]).output();
                let fdb = String::from_utf8_lossy(&fdb.map_err(text)?.stdout).into_owned();
                Ok(fdb.lines().filter(|line| line.contains("master")).count())
            }),
        }
    }
}

/// A numbered frame.
fn frame(to: Mac, from: Mac, number: u64) -> [u8; SIZE] {
    let mut frame = udp([to, from], [[10, 8, 2, 1].into(), [10, 8, 2, 2].into()], [4000, 4001]);
    frame[NUMBER..NUMBER + 8].copy_from_slice(&number.to_be_bytes());
    frame
}

/// A frame from each of many stations to one that is there.
struct Stations {
    round: u16,
    next: usize,
}

impl Source for Stations {
    fn write(&mut self, buffer: &mut [u8]) -> usize {
        let [.., a, b, c] = self.next.to_be_bytes();
        self.next += 1;
        let [.., round] = self.round.to_be_bytes();
        Once(&frame(TALKER, [2, 6, round, a, b, c], 0)).write(buffer)
    }
}

/// Numbers of frames from one station to another.
struct Heard {
    stations: [Mac; 2],
    numbers: Vec<u64>,
}

impl Heard {
    fn of(stations: [Mac; 2]) -> Heard {
        Heard { stations, numbers: Vec::new() }
    }
}

impl Sink for Heard {
    const READS: bool = true;

    fn frame(&mut self, bytes: &[u8]) {
        let number = bytes.get(NUMBER..NUMBER + 8).and_then(|number| number.try_into().ok());
        if bytes.get(..12) == Some(self.stations.as_flattened()) {
            self.numbers.extend(number.map(u64::from_be_bytes));
        }
    }
}
