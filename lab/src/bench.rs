//! `sidecore-lab bench-e1000`: an Intel card of ours beside QEMU's own, in the same kind of guest.
//!
//! For each card two guests are booted, joined by our switch or, for QEMU's, by a datagram cable (`-netdev dgram`), and
//! measured one card after the other, round by round, so that whatever else the machine does hits all of them alike.
//! What is measured: frames a second that the guest's kernel (pktgen) sends, one doorbell for each or one for 32;
//! register accesses that left the guest and interrupts, for each of those frames (of our cards; nobody counts QEMU's);
//! TCP from guest to guest; ping. Medians with the least and the most.

use crate::error::{Error, Result};
use crate::traffic::{iperf3, received_gbits, Ping};
use crate::{Accel, Daemon, Guest, Nic, RunDir};

/// Frames of one burst of pktgen.
const FRAMES: u32 = 50_000;
const B: &str = "10.0.0.2";

/// A card and how its guests are joined.
struct Candidate {
    name: &'static str,
    daemon: Option<Daemon>,
    guests: [Guest; 2],
    samples: Vec<Sample>,
}

/// One round's numbers.
#[derive(Clone, Copy, Default)]
struct Sample {
    /// Thousands of frames a second, one doorbell each and one for 32.
    kpps: [f64; 2],
    /// Of the 2 × `FRAMES` that were sent: accesses that trapped, interrupts.
    traps: Option<f64>,
    interrupts: Option<f64>,
    gbits: f64,
    ping_min: f64,
    ping_avg: f64,
}

/// Measures and prints a table.
///
/// # Errors
/// A guest does not boot, or a measurement fails; which, and why.
pub fn e1000(rounds: usize) -> Result<()> {
    println!("accelerator: {}; {rounds} rounds; pktgen 60 B × {FRAMES}", Accel::decide()?);
    let dir = RunDir::new("bench-e1000")?;
    let mut all = Vec::new();
    for (name, kind) in [("ours, e1000e", "e1000e"), ("ours, e1000", "e1000")] {
        let at = |who: &str| dir.join(&format!("{kind}.{who}"));
        let ports = ["a", "b"].map(|who| format!("{who}={kind}:{}", at(who)));
        let daemon = Daemon::start(&["--port", &ports[0], "--port", &ports[1]])?;
        let guests = Guest::boot_all(["a", "b"].map(|who| Guest::named(who).nic(Nic::vfio_user(at(who)))))?;
        all.push(candidate(name, Some(daemon), guests)?);
    }
    for (name, kind) in [("QEMU's e1000e", "e1000e"), ("QEMU's e1000", "e1000")] {
        let (left, right) = Nic::cable(kind)?;
        let guests = Guest::boot_all([Guest::named("a").nic(left), Guest::named("b").nic(right)])?;
        all.push(candidate(name, None, guests)?);
    }
    for round in 0..rounds {
        for one in &mut all {
            let sample = measure(one)?;
            eprintln!(
                "round {round}: {}: {:.0} and {:.0} kpps, {:.2} Gbit/s, ping {:.2} ms",
                one.name, sample.kpps[0], sample.kpps[1], sample.gbits, sample.ping_avg
            );
            one.samples.push(sample);
        }
    }
    report(&all);
    Ok(())
}

fn candidate(name: &'static str, daemon: Option<Daemon>, mut guests: [Guest; 2]) -> Result<Candidate> {
    guests[0].address("10.0.0.1/24")?;
    guests[1].address(&format!("{B}/24"))?;
    guests[0].expect("modprobe pktgen")?;
    let limit = std::time::Duration::from_secs(60);
    guests[0].wait_until(&format!("ping -c 1 -W 1 {B} > /dev/null"), limit)?;
    Ok(Candidate { name, daemon, guests, samples: Vec::new() })
}

fn measure(one: &mut Candidate) -> Result<Sample> {
    let mut sample = Sample::default();
    let mac = one.guests[1].expect("cat /sys/class/net/eth0/address")?;
    let before = one.daemon.as_mut().map(counts).transpose()?;
    for (kpps, burst) in sample.kpps.iter_mut().zip([1, 32]) {
        *kpps = pktgen(&mut one.guests[0], mac.trim(), burst)?;
    }
    if let (Some((traps, interrupts)), Some(daemon)) = (before, &mut one.daemon) {
        let after = counts(daemon)?;
        let each = |n: u64| f64::from(u32::try_from(n).unwrap_or(u32::MAX)) / f64::from(2 * FRAMES);
        sample.traps = Some(each(after.0.saturating_sub(traps)));
        sample.interrupts = Some(each(after.1.saturating_sub(interrupts)));
    }
    let [a, b] = &mut one.guests;
    let text = a.expect(&format!("ping -c 50 -i 0.02 {B}"))?;
    let ping = Ping::parse(&text).ok_or_else(|| Error::new(text))?;
    (sample.ping_min, sample.ping_avg) = (ping.min_ms, ping.avg_ms);
    sample.gbits = received_gbits(&iperf3(b, B, "--time 2", |command| a.run(command))?);
    Ok(sample)
}

/// Sends with the kernel's own generator; thousands of frames a second.
fn pktgen(guest: &mut Guest, mac: &str, burst: u32) -> Result<f64> {
    let device = "/proc/net/pktgen/eth0";
    guest.expect("echo rem_device_all > /proc/net/pktgen/kpktgend_0; echo add_device eth0 > /proc/net/pktgen/kpktgend_0")?;
    for word in [
        format!("count {FRAMES}"),
        "pkt_size 60".to_owned(),
        "delay 0".to_owned(),
        format!("burst {burst}"),
        format!("dst {B}"),
        format!("dst_mac {mac}"),
    ] {
        guest.expect(&format!("echo '{word}' > {device}"))?;
    }
    guest.expect("echo start > /proc/net/pktgen/pgctrl")?;
    // "… 115262pps 55Mb/sec (55325760bps) errors: 0"
    let text = guest.expect(&format!("cat {device}"))?;
    let rate = text.split_whitespace().find_map(|word| word.strip_suffix("pps")?.parse::<f64>().ok());
    rate.map(|pps| pps / 1e3).ok_or_else(|| Error::new(format!("pktgen printed no rate:\n{text}")))
}

/// What port `a` has counted: accesses that trapped, interrupts.
fn counts(daemon: &mut Daemon) -> Result<(u64, u64)> {
    let ports = daemon.show_json("ports")?;
    let port = ports["ports"].as_array().and_then(|all| all.iter().find(|port| port["name"] == "a"));
    let port = port.ok_or_else(|| Error::new("there is no port a"))?;
    let text = port.to_string();
    let number = |name: &str| {
        let after = text.split_once(&format!("{name}="))?.1;
        after[..after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len())].parse::<u64>().ok()
    };
    let traps = number("trapped-reads").zip(number("trapped-writes")).map(|(reads, writes)| reads + writes);
    let traps = traps.ok_or_else(|| Error::new(format!("no count of traps in {text}")))?;
    let interrupts = port["counters"]["interrupts"].as_u64().unwrap_or(0);
    Ok((traps, interrupts))
}

fn report(all: &[Candidate]) {
    println!(
        "\n{:16} {:>22} {:>22} {:>10} {:>10} {:>20} {:>20}",
        "", "kpps, burst 1", "kpps, burst 32", "traps", "interrupts", "TCP Gbit/s", "ping avg ms"
    );
    for one in all {
        let row = |value: &dyn Fn(&Sample) -> f64, digits: usize| {
            let (median, least, most) = spread(one.samples.iter().map(value).collect());
            format!("{median:.digits$} ({least:.digits$}–{most:.digits$})")
        };
        let each = |value: fn(&Sample) -> Option<f64>| match one.samples.first().and_then(value) {
            Some(_) => format!("{:.4}", spread(one.samples.iter().filter_map(value).collect()).0),
            None => "–".to_owned(),
        };
        println!(
            "{:16} {:>22} {:>22} {:>10} {:>10} {:>20} {:>20}",
            one.name,
            row(&|s| s.kpps[0], 0),
            row(&|s| s.kpps[1], 0),
            each(|s| s.traps),
            each(|s| s.interrupts),
            row(&|s| s.gbits, 2),
            row(&|s| s.ping_avg, 2)
        );
    }
    println!("\ntraps, interrupts: for each frame that pktgen sent, both bursts together");
    for (ours, theirs) in [(0, 2), (1, 3)] {
        let median =
            |one: &Candidate, value: fn(&Sample) -> f64| spread(one.samples.iter().map(value).collect()).0;
        let ratio = |value: fn(&Sample) -> f64| median(&all[ours], value) / median(&all[theirs], value);
        println!(
            "{} beside {}: burst 1 {:.2} ×, burst 32 {:.2} ×, TCP {:.2} ×, ping {:.2} ×",
            all[ours].name,
            all[theirs].name,
            ratio(|s| s.kpps[0]),
            ratio(|s| s.kpps[1]),
            ratio(|s| s.gbits),
            ratio(|s| s.ping_avg)
        );
    }
}

/// Median, least, most.
fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
    (at(values.len() / 2), at(0), at(values.len().saturating_sub(1)))
}
