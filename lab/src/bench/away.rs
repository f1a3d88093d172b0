//! `sidecore-lab bench-away`: the daemon is away for longer than QEMU waits for an answer (5 s, its default),
//! and comes back.
//!
//! Two guests have a card of each kind, each pair of cards on a switch of its own, and one has a disk. Under
//! pings, or under TCP streams beside the pings, the daemon is killed; or it is killed, and then started five
//! times and killed during its start, each time when it has taken over more VMMs. Meanwhile the guests look
//! at their cards, as administrators do, and one writes to the disk and compares what it reads.
//!
//! What counts: cards that work no longer or whose VMM has complained, VMMs that have ended, replies that
//! came twice beyond the one that each kill may cost (docs/e1000.md), and the time from `ready` to a ping's
//! first reply.

use super::spread;
use crate::error::{Context, Error, Result};
use crate::kbuild::{build, drivers, Kernel};
use crate::traffic::{received_gbits, Ping, Pinging};
use crate::{Accel, Daemon, Guest, Job, Nic, RunDir};
use serde_json::{json, Value};
use std::fmt;
use std::fs::File;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(120);
/// The cards of a pair, as kinds of ports, and what QEMU is to do with the second one.
const PAIRS: [(&str, &str, &str); 3] =
    [("e1000e", "e1000", ""), ("rtl8169", "vhost-user", "packed=on"), ("ptnet", "vhost-user", "packed=off")];
/// Bytes of the disk.
const DISK: u64 = 64 << 20;
/// Starts that fail.
const CRASHES: u32 = 5;
/// TCP gives up in longer ones, and iperf3 earlier.
const LONGEST_OF_TCP: u32 = 100;
/// What an administrator looks at, and what drivers then read: state, registers, counters.
const LOOKS: &str =
    "for card in eth0 eth1 eth2; do ethtool $card; ethtool -d $card; ethtool -S $card; done > /dev/null 2>&1; sleep 1";
/// Writes to the disk, and reads what was written, until it is told that this was enough.
const WORK: &str = "rm -f /tmp/enough; until [ -e /tmp/enough ]; do
    dd if=/dev/urandom of=/tmp/written bs=4k count=64 2> /dev/null && dd if=/tmp/written of=/dev/vda bs=4k oflag=direct 2> /dev/null &&
    dd if=/dev/vda of=/tmp/read bs=4k count=64 iflag=direct 2> /dev/null && cmp /tmp/written /tmp/read || exit 1
done";

/// How the daemon is away.
#[derive(Clone, Copy, Debug)]
pub struct Outage {
    /// For so long.
    pub seconds: u32,
    /// It also fails to start.
    pub crashes: bool,
    /// TCP runs beside the pings.
    pub tcp: bool,
}

impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (crashes, tcp) =
            (if self.crashes { ", five failed starts" } else { "" }, if self.tcp { " and TCP" } else { "" });
        write!(f, "{} s{crashes}, under pings{tcp}", self.seconds)
    }
}

/// What outages have cost.
#[derive(Default)]
pub struct Report {
    /// Each of them.
    pub rows: Vec<Value>,
    /// Cards that work no longer, or whose VMM has complained.
    pub cards_lost: usize,
    /// VMMs that have ended.
    pub vms_lost: usize,
    /// Replies that came twice, beyond what is granted.
    pub doubled: u32,
    /// From `ready` to the first reply, in milliseconds: each pair in each outage.
    pub resumed_ms: Vec<f64>,
}

impl Report {
    fn summary(&self) -> Value {
        let mut all = self.resumed_ms.clone();
        all.sort_by(f64::total_cmp);
        // The nearest rank.
        let p99 = all.get((all.len() * 99).div_ceil(100).saturating_sub(1));
        let (median, ..) = spread(all.clone());
        json!({
            "cards_lost": self.cards_lost,
            "vms_lost": self.vms_lost,
            "doubled": self.doubled,
            "resumed_ms_p99": p99,
            "resumed_ms_median": median,
        })
    }
}

/// Measures, and prints a line for each outage, or JSON. `words` are `SECONDS,…` and `--json`.
///
/// # Errors
/// A word is neither; a guest does not boot; a card or a VMM is lost.
pub fn away(words: &[&str]) -> Result<()> {
    let wrong = |word: &str| Error::new(format!("bench-away does not know what {word:?} means"));
    let (mut seconds, mut json) = (vec![1, 8, 30], false);
    for word in words {
        match *word {
            "--json" => json = true,
            list => {
                seconds = list
                    .split(',')
                    .map(|word| word.parse().map_err(|_| wrong(word)))
                    .collect::<Result<_>>()?
            }
        }
    }
    let kinds = [(false, false), (false, true), (true, false), (true, true)];
    let outages = seconds.iter().flat_map(|seconds| {
        kinds.map(|(crashes, tcp)| Outage { seconds: *seconds, crashes, tcp }).into_iter()
    });
    let outages: Vec<Outage> = outages.filter(|it| !it.tcp || it.seconds <= LONGEST_OF_TCP).collect();
    let report = bear(PAIRS.len(), &outages)?;
    let summary = report.summary();
    if json {
        println!(
            "{}",
            json!({"bench": "away", "accelerator": Accel::decide()?.to_string(), "rows": report.rows, "summary": summary, "version": 1})
        );
    } else {
        println!("{summary:#}");
    }
    match report.cards_lost + report.vms_lost {
        0 => Ok(()),
        lost => Err(Error::new(format!("{lost} cards and VMs were lost"))),
    }
}

/// The first `pairs` of the cards, and the disk, bear these outages one after the other.
///
/// # Errors
/// A guest does not boot, or what is not a loss of a card or a VMM: a wrong byte on the disk, a connection
/// that broke.
pub fn bear(pairs: usize, outages: &[Outage]) -> Result<Report> {
    let dir = RunDir::new("away")?;
    let mut site = Site::start(&dir, pairs)?;
    let mut report = Report::default();
    for outage in outages {
        eprintln!("away for {outage} …");
        let begun = site.bears(*outage, &mut report).and_then(|()| site.count(&mut report));
        if let Err(e) = begun {
            let gone = |guest: &mut Guest| guest.qmp(json!({"execute": "query-status"})).is_err();
            report.vms_lost +=
                [&mut site.a, &mut site.b].into_iter().filter_map(|it| gone(it).then_some(())).count();
            if report.vms_lost == 0 {
                return Err(Error::new(format!("{outage}: {e}\n{}", site.words())));
            }
            eprintln!("{e}\n{}", site.words());
            break;
        }
    }
    eprintln!("{}", site.daemon.balance()?);
    Ok(report)
}

struct Site {
    daemon: Daemon,
    a: Guest,
    b: Guest,
    pairs: usize,
}

/// The address of the second card of pair `number`.
fn second(number: usize) -> String {
    format!("10.0.{number}.2")
}

impl Site {
    fn start(dir: &RunDir, pairs: usize) -> Result<Self> {
        let at = |name: &str, number: usize| dir.join(&format!("{name}{number}"));
        let mut words = Vec::new();
        let mut guests = ["a", "b"].map(|name| Guest::named(name).limit(LIMIT));
        for (number, (first, other, option)) in PAIRS.into_iter().take(pairs).enumerate() {
            let port = |name, kind| format!("{name}{number}={kind}:{},switch=s{number}", at(name, number));
            words.extend(["--switch".to_owned(), format!("s{number}")]);
            words.extend(["--port".to_owned(), port("a", first), "--port".to_owned(), port("b", other)]);
            let theirs = Nic::of_port(other, at("b", number));
            let theirs = if option.is_empty() { theirs } else { theirs.option(option) };
            let [mut a, b] = guests;
            a = a.nic(Nic::vfio_user(at("a", number)));
            if first == "ptnet" {
                let module = build(&drivers()?.join("ptnet"), "ptnet", Kernel::Guest)?;
                a = a.nic(Nic::vfio_user(format!("{}.mem", at("a", number)))).file(
                    "/ptnet.ko",
                    0o644,
                    module,
                );
            }
            guests = [a, b.nic(theirs)];
        }
        let disk = dir.join("disk.img");
        let made = File::create(&disk).and_then(|file| file.set_len(DISK));
        made.context(|| format!("making {disk}"))?;
        words.extend(["--port".to_owned(), format!("d=blk:{},file={disk}", dir.join("d"))]);
        let daemon = Daemon::start(&words.iter().map(String::as_str).collect::<Vec<_>>())?;
        let [a, b] = guests;
        let [mut a, mut b] = Guest::boot_all([a.disk(dir.join("d")), b])?;
        a.expect("[ ! -e /ptnet.ko ] || insmod /ptnet.ko")?;
        for number in 0..pairs {
            for (guest, host) in [(&mut a, 1), (&mut b, 2)] {
                let up = format!(
                    "ip addr add 10.0.{number}.{host}/24 dev eth{number} && ip link set eth{number} up"
                );
                guest.wait_until(&format!("[ -e /sys/class/net/eth{number} ]"), LIMIT)?;
                guest.expect(&up)?;
            }
            a.wait_until(&format!("ping -c 1 -W 1 {} > /dev/null", second(number)), LIMIT)?;
        }
        Ok(Self { daemon, a, b, pairs })
    }

    /// One outage, and what runs during it.
    fn bears(&mut self, outage: Outage, report: &mut Report) -> Result<()> {
        let addresses: Vec<String> = (0..self.pairs).map(second).collect();
        let pings = addresses
            .iter()
            .map(|address| Pinging::start(&mut self.a, address))
            .collect::<Result<Vec<_>>>()?;
        let work = self.a.run_in_background(WORK)?;
        let streams = if outage.tcp { self.streams(outage.seconds)? } else { Vec::new() };
        let gone = self.away(outage)?;
        let ready = Instant::now();
        let mut resumed = Vec::new();
        for ping in &pings {
            ping.more(&mut self.a, 1)?;
            resumed.push(ready.elapsed().as_secs_f64() * 1e3);
        }
        for ping in &pings {
            ping.more(&mut self.a, 5)?;
        }
        let mut pinged = Vec::new();
        for ping in pings {
            pinged.push(ping.end(&mut self.a)?);
        }
        let mut gbits = Vec::new();
        for [server, client] in streams {
            let sent = self.a.wait_for(client, LIMIT)?;
            let said: Value = serde_json::from_str(&sent.text).unwrap_or_default();
            gbits.push(received_gbits(&said));
            if !sent.success() || !self.b.wait_for(server, LIMIT)?.success() {
                return Err(Error::new(format!("a connection did not live: {}", sent.text)));
            }
        }
        self.a.expect("touch /tmp/enough")?;
        let worked = self.a.wait_for(work, LIMIT)?;
        if !worked.success() {
            return Err(Error::new(format!(
                "the disk returned other bytes than were written: {}",
                worked.text
            )));
        }
        let kills = 1 + if outage.crashes { CRASHES } else { 0 };
        report.doubled += pinged.iter().map(|ping| ping.doubled.saturating_sub(kills)).sum::<u32>();
        let of = |field: fn(&Ping) -> u32| pinged.iter().map(field).collect::<Vec<u32>>();
        report.rows.push(json!({
            "seconds": gone.as_secs_f64(),
            "crashes": outage.crashes,
            "tcp_gbits": gbits,
            "resumed_ms": resumed,
            "unanswered": of(Ping::lost),
            "doubled": of(|ping| ping.doubled),
        }));
        eprintln!("away for {outage}: {:.0?} ms from ready to the first replies", resumed);
        report.resumed_ms.extend(resumed);
        Ok(())
    }

    /// A TCP stream for each pair, which lasts until after the outage: its server and its client.
    fn streams(&mut self, seconds: u32) -> Result<Vec<[Job; 2]>> {
        let mut streams = Vec::new();
        for number in 0..self.pairs {
            let port = 5201 + number;
            let server = self.b.run_in_background(&format!("iperf3 --server --one-off --port {port}"))?;
            self.b.wait_until(&format!("netstat -lnt | grep -q :{port}"), LIMIT)?;
            let address = second(number);
            let time = seconds + 6;
            let client = format!("iperf3 --client {address} --port {port} --time {time} --json");
            let client = self.a.run_in_background(&client)?;
            self.a
                .wait_until(&format!("netstat -nt | grep {address}:{port} | grep -q ESTABLISHED"), LIMIT)?;
            streams.push([server, client]);
        }
        Ok(streams)
    }

    /// The daemon ends, and is ready again when this returns. How long there was none.
    fn away(&mut self, outage: Outage) -> Result<Duration> {
        self.daemon.down();
        let begun = Instant::now();
        let looks =
            |s: u32| format!("end=$(($(date +%s) + {s})); while [ $(date +%s) -lt $end ]; do {LOOKS}; done");
        // At once it comes back if nobody asks the guests for anything meanwhile.
        let others =
            (outage.seconds > 0).then(|| self.a.run_in_background(&looks(outage.seconds))).transpose()?;
        let limit = LIMIT + Duration::from_secs((2 * outage.seconds).into());
        for part in 0..=CRASHES {
            let seconds = outage.seconds / (CRASHES + 1) + u32::from(part < outage.seconds % (CRASHES + 1));
            if seconds > 0 {
                self.b.run_within(&looks(seconds), limit)?;
            }
            if outage.crashes && part < CRASHES {
                // The first two pairs have three VMMs that do not connect again.
                self.daemon.crash_at_start(part % 4)?;
            }
        }
        if let Some(others) = others {
            self.a.wait_for(others, limit)?;
        }
        let gone = begun.elapsed();
        self.daemon.restart()?;
        Ok(gone)
    }

    /// Counts what is lost.
    fn count(&mut self, report: &mut Report) -> Result<()> {
        for number in 0..self.pairs {
            self.daemon.wait_peer(&format!("a{number}"), "running")?;
            self.daemon.wait_peer(&format!("b{number}"), "running")?;
            for guest in [&mut self.a, &mut self.b] {
                let carrier = guest.expect(&format!("cat /sys/class/net/eth{number}/carrier"))?;
                report.cards_lost += usize::from(carrier.trim() != "1");
            }
        }
        for guest in [&self.a, &self.b] {
            let said = guest.vmm_log();
            if said.contains("timed out") || said.contains("unexpected reply") {
                eprintln!("{said}");
                report.cards_lost += 1;
            }
        }
        Ok(())
    }

    /// What daemon, VMMs and guests have said.
    fn words(&mut self) -> String {
        let mut text = self.daemon.log();
        for guest in [&mut self.a, &mut self.b] {
            text += &guest.vmm_log();
            text += &guest.run("dmesg | tail -30; ip -s link").map(|output| output.text).unwrap_or_default();
        }
        text
    }
}
