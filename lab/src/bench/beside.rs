//! `sidecore-lab bench-e1000`: an Intel card of ours beside QEMU's own, in the same guest.
//!
//! Two guests have four cards each: our e1000e and e1000, joined by a wire, and QEMU's, joined by a datagram
//! cable (`-netdev dgram`). One card after the other is measured, round by round. What is measured: frames a
//! second that the guest's kernel (pktgen) sends, one doorbell for each or one for 32; of our cards, register
//! accesses that left the guest, for each of those frames, and for each interrupt while TCP runs (QEMU's are
//! not counted); TCP from guest to guest; ping. Without KVM our e1000 offers no pages for mapping (below).
//!
//! pktgen sends to an address that no card has, so that the other guest's card takes every frame and refuses
//! it: the other guest's processor would otherwise compete with the sender's for the cores of the machine. It
//! sends one frame again and again (`clone_skb`), with bursts as without: making a frame takes the guest as
//! long as all the rest together.

use super::{io_core, pktgen, ratio, spin_of, spread, Counts, Load, LIMIT};
use crate::error::{Error, Result};
use crate::traffic::{iperf3, received_gbits, Ping};
use crate::{Accel, Daemon, Guest, Nic, RunDir};

/// Frames of one burst of pktgen.
const FRAMES: u32 = 300_000;
const NOBODY: &str = "52:54:00:e1:00:00";

/// The cards in the order of their slots: ours first, and then in the same order QEMU's.
const CARDS: [&str; 4] = ["ours, e1000e", "ours, e1000", "QEMU's e1000e", "QEMU's e1000"];
const OURS: usize = 2;

struct Bench {
    daemon: Daemon,
    a: Guest,
    b: Guest,
}

/// One round's numbers.
#[derive(Clone, Copy, Default)]
struct Sample {
    /// Thousands of frames a second, one doorbell each and one for 32.
    kpps: [f64; 2],
    /// Accesses that trapped, for each of the frames.
    traps: [f64; 2],
    /// Interrupts, for each of the frames.
    interrupts: [f64; 2],
    /// Accesses that trapped for each interrupt during TCP.
    traps_per_interrupt: f64,
    gbits: f64,
    ping_min: f64,
    ping_avg: f64,
}

/// Measures and prints a table. `options` are those of our ports, such as `moderation=100`, and
/// `spin=MICROSECONDS` of the daemon.
///
/// # Errors
/// A guest does not boot, or a measurement fails; which, and why.
pub fn e1000(rounds: usize, options: &[&str]) -> Result<()> {
    println!("accelerator: {}; {rounds} rounds; pktgen 60 B × {FRAMES}", Accel::decide()?);
    let mut bench = Bench::start(options)?;
    let mut samples = CARDS.map(|_| Vec::new());
    for round in 0..rounds {
        for (card, samples) in samples.iter_mut().enumerate() {
            let sample = bench.measure(card)?;
            eprintln!(
                "round {round}: {}: {:.0} and {:.0} kpps, {:.2} Gbit/s, ping {:.2} ms; {:.4} and {:.4} interrupts",
                CARDS[card],
                sample.kpps[0],
                sample.kpps[1],
                sample.gbits,
                sample.ping_avg,
                sample.interrupts[0],
                sample.interrupts[1]
            );
            samples.push(sample);
        }
    }
    report(&samples);
    Ok(())
}

impl Bench {
    fn start(options: &[&str]) -> Result<Self> {
        let dir = RunDir::new("bench-e1000")?;
        let at = |who: &str, kind: &str| dir.join(&format!("{who}.{kind}"));
        let kinds = ["e1000e", "e1000"];
        let (spin, options) = spin_of(options);
        let more: String = options.iter().map(|option| format!(",{option}")).collect();
        // Without KVM QEMU takes the pages of a card with INTx away, and while there are pages it waits for
        // the answer to each trapped write: so such a card is better off with none.
        let tcg = Accel::decide()? == Accel::Tcg;
        let port = |(index, kind): (usize, &&str), who: &str| {
            let unmapped = tcg && *kind == "e1000" && !more.contains("features-off=");
            let unmapped = if unmapped { ",features-off=exitless" } else { "" };
            format!("{who}{index}={kind}:{},wire=w{index}{unmapped}{more}", at(who, kind))
        };
        let ports: Vec<String> =
            kinds.iter().enumerate().flat_map(|kind| ["a", "b"].map(|who| port(kind, who))).collect();
        let core = io_core();
        let mut arguments = vec!["--cores", &core, "--spin", spin];
        arguments.extend(ports.iter().flat_map(|port| ["--port", port]));
        let daemon = Daemon::start(&arguments)?;
        let mut specs = ["a", "b"].map(|who| {
            kinds.iter().fold(Guest::named(who), |spec, kind| spec.nic(Nic::vfio_user(at(who, kind))))
        });
        for kind in kinds {
            let (left, right) = Nic::cable(kind)?;
            let [a, b] = specs;
            specs = [a.nic(left), b.nic(right)];
        }
        let [mut a, mut b] = Guest::boot_all(specs)?;
        for (guest, host) in [(&mut a, 1), (&mut b, 2)] {
            for card in 0..CARDS.len() {
                guest.expect(&format!(
                    "ip addr add 10.0.{card}.{host}/24 dev eth{card} && ip link set eth{card} up"
                ))?;
            }
        }
        a.expect("modprobe pktgen")?;
        for card in 0..CARDS.len() {
            a.wait_until(&format!("ping -c 1 -W 1 10.0.{card}.2 > /dev/null"), LIMIT)?;
        }
        Ok(Self { daemon, a, b })
    }

    fn measure(&mut self, card: usize) -> Result<Sample> {
        let mut sample = Sample::default();
        for (index, burst) in [1, 32].into_iter().enumerate() {
            let before = self.counts(card)?;
            let load =
                Load { frames: FRAMES, size: 60, burst, address: &format!("10.0.{card}.2"), mac: NOBODY };
            sample.kpps[index] = pktgen(&mut self.a, &format!("eth{card}"), &load)?;
            let spent = self.counts(card)?.since(before);
            sample.traps[index] = ratio(spent.traps, FRAMES.into());
            sample.interrupts[index] = ratio(spent.interrupts, FRAMES.into());
        }
        let address = format!("10.0.{card}.2");
        let text = self.a.expect(&format!("ping -c 30 -i 0.02 {address}"))?;
        let ping = Ping::parse(&text).ok_or_else(|| Error::new(text))?;
        (sample.ping_min, sample.ping_avg) = (ping.min_ms, ping.avg_ms);
        let before = self.counts(card)?;
        let a = &mut self.a;
        sample.gbits = received_gbits(&iperf3(&mut self.b, &address, "--time 1", |command| a.run(command))?);
        let spent = self.counts(card)?.since(before);
        sample.traps_per_interrupt = ratio(spent.traps, spent.interrupts);
        Ok(sample)
    }

    /// What guest `a`'s port has counted. Nothing for QEMU's own cards.
    fn counts(&mut self, card: usize) -> Result<Counts> {
        if card >= OURS {
            return Ok(Counts::default());
        }
        Counts::of(&self.daemon.show_json("ports")?, &format!("a{card}"))
    }
}

fn report(all: &[Vec<Sample>]) {
    println!(
        "\n{:14} {:>18} {:>18} {:>22} {:>22} {:>15} {:>20} {:>20}",
        "",
        "kpps, burst 1",
        "kpps, burst 32",
        "traps/frame, 1 and 32",
        "interrupts/frame",
        "traps/interrupt",
        "TCP Gbit/s",
        "ping avg ms"
    );
    for (card, samples) in all.iter().enumerate() {
        let row = |value: fn(&Sample) -> f64, digits: usize| {
            let (median, least, most) = spread(samples.iter().map(value).collect());
            format!("{median:.digits$} ({least:.digits$}–{most:.digits$})")
        };
        let median = |value: fn(&Sample) -> f64| spread(samples.iter().map(value).collect()).0;
        let traps = if card < OURS {
            let frames = format!("{:.4} {:.4}", median(|s| s.traps[0]), median(|s| s.traps[1]));
            let interrupts = format!("{:.4} {:.4}", median(|s| s.interrupts[0]), median(|s| s.interrupts[1]));
            [frames, interrupts, format!("{:.2}", median(|s| s.traps_per_interrupt))]
        } else {
            ["–"; 3].map(str::to_owned)
        };
        println!(
            "{:14} {:>18} {:>18} {:>22} {:>22} {:>15} {:>20} {:>20}",
            CARDS[card],
            row(|s| s.kpps[0], 0),
            row(|s| s.kpps[1], 0),
            traps[0],
            traps[1],
            traps[2],
            row(|s| s.gbits, 2),
            row(|s| s.ping_avg, 2)
        );
    }
    println!();
    for (ours, theirs) in [(0, OURS), (1, OURS + 1)] {
        // Round by round: both were measured within seconds of each other.
        let ratio = |value: fn(&Sample) -> f64| {
            let both = all[ours].iter().zip(&all[theirs]).map(|(ours, theirs)| value(ours) / value(theirs));
            let (median, least, most) = spread(both.collect());
            format!("{median:.2} × ({least:.2}–{most:.2})")
        };
        println!(
            "{} beside {}: burst 1 {}, burst 32 {}, TCP {}, ping {} (least {})",
            CARDS[ours],
            CARDS[theirs],
            ratio(|s| s.kpps[0]),
            ratio(|s| s.kpps[1]),
            ratio(|s| s.gbits),
            ratio(|s| s.ping_avg),
            ratio(|s| s.ping_min)
        );
    }
}
