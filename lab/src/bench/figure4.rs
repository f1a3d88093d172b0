//! `sidecore-lab bench-figure4`: the rows of the paper's Figure 4 in real guests, QEMU's own cards among
//! them.
//!
//! Guest `a` sends datagrams of 8 and of 1460 bytes by a socket (`lab/netsend`), to the host (a TAP port) or
//! to guest `b`, both over one learning switch: the address decides. What counts is what the receiver's IP
//! layer has got. The rows of the paper differ in nothing but the switches of one driver,
//! `guest/linux/e1000x`; the last three have Linux's own drivers as they are, with our cards as they come,
//! with them where no page may be mapped, and with QEMU's (datagram cable to `b`, TAP to the host).
//!
//! A card is served in one way as long as the daemon runs, so a guest has one card for each way and kind, of
//! which one at a time is up. Interfaces are found by the slot of their card: names depend on the order in
//! which drivers come.

mod report;

use self::report::{draw, table, Line};
use super::{
    frames_of_a_second, io_core, netsend, number, ratio, spin_of, Counts, Interface, FIRST, LIMIT, RECEIVED,
};
use crate::error::{Context, Error, Result};
use crate::kbuild::{build, drivers, program, Kernel};
use crate::nic::slot;
use crate::{Accel, Daemon, Guest, Netns, Nic, RunDir};
use serde_json::{json, Value};

/// The way in which a card is served.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Every doorbell traps, and no interrupt is held back that the driver did not ask to.
    Trapping,
    /// A trapping card with the communication status block.
    Csb,
    /// As a card of ours comes.
    Exitless,
    /// As a card of ours comes, but its pages are not offered for mapping: QEMU then waits for no trapped
    /// write to be answered.
    Unmapped,
    /// QEMU serves it.
    Qemu,
}

/// A row: how driver and card behave.
struct Kind {
    /// The paper's name.
    name: &'static str,
    way: Way,
    /// Parameters of e1000x; nothing for Linux's own drivers.
    e1000x: Option<&'static str>,
    /// What the paper measured in kpps with one virtual processor: to the host over TAP, to a guest over
    /// VALE; 8 and 1460 bytes each.
    paper: Option<[[u32; 2]; 2]>,
}

const KINDS: [Kind; 7] = [
    Kind {
        name: "BASE itr=0",
        way: Way::Trapping,
        e1000x: Some("csb=0 itr=0"),
        paper: Some([[30, 28], [32, 31]]),
    },
    Kind {
        name: "itr=250",
        way: Way::Trapping,
        e1000x: Some("csb=0 itr=250"),
        paper: Some([[83, 71], [125, 98]]),
    },
    Kind {
        name: "itr=250 SC",
        way: Way::Trapping,
        e1000x: Some("csb=0 itr=250 sc=1"),
        paper: Some([[216, 138], [455, 186]]),
    },
    Kind {
        name: "itr=0 CSB",
        way: Way::Csb,
        e1000x: Some("csb=1 itr=0"),
        paper: Some([[353, 242], [1526, 480]]),
    },
    Kind { name: "unmodified, exitless", way: Way::Exitless, e1000x: None, paper: None },
    Kind { name: "unmodified, not mapped", way: Way::Unmapped, e1000x: None, paper: None },
    Kind { name: "unmodified, QEMU's card", way: Way::Qemu, e1000x: None, paper: None },
];

/// What a datagram carries. The shorter frames have 64 bytes on a real wire.
const SIZES: [u32; 2] = [8, 1460];
/// The paper's names: from a guest to the host, and to a guest.
const PATHS: [&str; 2] = ["GH", "GG"];

/// A card of guest `a`, and of `b` if it has it, too, in the same slot.
struct Card {
    model: &'static str,
    way: Way,
    /// Where its frames go; ours reach both.
    paths: &'static [usize],
    /// The host's end.
    tap: String,
}

impl Card {
    /// The name of guest `who`'s port.
    fn port(&self, who: &str) -> String {
        let way = match self.way {
            Way::Trapping => "-trapping",
            Way::Csb => "-csb",
            Way::Unmapped => "-unmapped",
            Way::Exitless | Way::Qemu => "",
        };
        format!("{who}-{}{way}", self.model)
    }

    /// That port in the words of `--port`.
    fn argument(&self, who: &str, dir: &RunDir) -> String {
        let port = self.port(who);
        let more = match self.way {
            Way::Trapping => ",features-off=exitless,moderation=0",
            Way::Csb => ",features-off=exitless,moderation=0,csb=on",
            Way::Unmapped => ",features-off=exitless",
            Way::Exitless | Way::Qemu => "",
        };
        format!("{port}={}:{}{more}", self.model, dir.join(&port))
    }
}

/// All cards in the order of their slots.
fn cards() -> Vec<Card> {
    let mut cards = Vec::new();
    for (model, way) in [
        ("e1000e", Way::Trapping),
        ("e1000e", Way::Exitless),
        ("e1000e", Way::Unmapped),
        ("e1000", Way::Trapping),
        ("e1000", Way::Csb),
        ("e1000", Way::Exitless),
        ("e1000", Way::Unmapped),
    ] {
        cards.push(Card { model, way, paths: &[0, 1], tap: "host".to_owned() });
    }
    for (path, paths) in [(1, &[1]), (0, &[0])] {
        for model in ["e1000e", "e1000"] {
            let tap = if path == 0 { format!("q-{model}") } else { String::new() };
            cards.push(Card { model, way: Way::Qemu, paths, tap });
        }
    }
    cards
}

/// What one run showed: sender's and receiver's part of what was counted, for each frame.
#[derive(Clone, Copy)]
struct Sample {
    kpps: f64,
    traps: [f64; 2],
    interrupts: [f64; 2],
    lost: f64,
}

struct Bench {
    daemon: Daemon,
    host: Netns,
    cards: Vec<Card>,
    a: Guest,
    b: Guest,
}

/// Measures and prints a table, or JSON. `options` may have `spin=MICROSECONDS` of the daemon and `svg=FILE`,
/// into which the figure is drawn.
///
/// # Errors
/// An option is none; a guest does not boot, or a measurement fails; which, and why. The figure cannot be
/// written.
pub fn figure4(rounds: usize, options: &[&str], json: bool) -> Result<()> {
    let (spin, others) = spin_of(options);
    let (files, others): (Vec<&str>, Vec<&str>) =
        others.iter().partition(|option| option.starts_with("svg="));
    if let Some(option) = others.first() {
        return Err(Error::new(format!(
            "bench-figure4 takes spin=MICROSECONDS and svg=FILE, and no {option:?}"
        )));
    }
    let accel = Accel::decide()?;
    let mut bench = Bench::start(spin)?;
    let mut lines: Vec<Line> = Vec::new();
    for round in 0..rounds {
        for kind in &KINDS {
            bench.load(kind.e1000x)?;
            for card in 0..bench.cards.len() {
                if bench.cards[card].way == kind.way {
                    bench.measure(round, kind, card, &mut lines)?;
                }
            }
        }
    }
    lines.sort_by_key(|line| (line.model, line.path, line.size));
    if json {
        let rows: Vec<Value> = lines.iter().map(Line::json).collect();
        println!("{}", json!({"accelerator": accel.to_string(), "rounds": rounds, "rows": rows}));
    } else {
        println!(
            "accelerator: {accel}; {rounds} rounds; traps and interrupts: sender + receiver, for each frame"
        );
        print!("{}", table(&lines));
    }
    for file in files.iter().filter_map(|option| option.strip_prefix("svg=")) {
        std::fs::write(file, draw(&lines, &accel.to_string())).context(|| format!("writing {file}"))?;
    }
    Ok(())
}

impl Bench {
    fn start(spin: &str) -> Result<Self> {
        let module = build(&drivers()?.join("e1000x"), "e1000x", Kernel::Guest)?;
        let netsend = program("netsend")?;
        let dir = RunDir::new("bench-figure4")?;
        let host = Netns::new("figure4")?;
        let cards = cards();
        let core = io_core();
        let mut arguments =
            ["--cores", &core, "--spin", spin, "--port", "host=tap:host"].map(str::to_owned).to_vec();
        let ours = || cards.iter().filter(|card| card.way != Way::Qemu);
        for card in ours() {
            for who in ["a", "b"] {
                arguments.extend(["--port".to_owned(), card.argument(who, &dir)]);
            }
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let daemon = Daemon::start_in(&host, &arguments)?;
        let mut specs = ["a", "b"].map(|who| {
            let spec = Guest::named(who).netns(&host).file("/e1000x.ko", 0o644, module.clone()).file(
                "/netsend",
                0o755,
                netsend.clone(),
            );
            ours().fold(spec, |spec, card| spec.nic(Nic::vfio_user(dir.join(&card.port(who)))))
        });
        for card in cards.iter().filter(|card| card.way == Way::Qemu) {
            let [a, b] = specs;
            specs = if card.tap.is_empty() {
                let (left, right) = Nic::cable(card.model)?;
                [a.nic(left), b.nic(right)]
            } else {
                host.tap(&card.tap, false)?;
                let netdev = format!("tap,ifname={},script=no,downscript=no", card.tap);
                [a.nic(Nic::qemu(card.model, &netdev)), b]
            };
        }
        for (index, card) in cards.iter().enumerate().filter(|(_, card)| !card.tap.is_empty()) {
            host.address(&card.tap, &address(index, 3, "/24"))?;
        }
        let [a, b] = Guest::boot_all(specs)?;
        Ok(Self { daemon, host, cards, a, b })
    }

    /// Loads our driver with these parameters into both guests, or Linux's own ones.
    fn load(&mut self, e1000x: Option<&str>) -> Result<()> {
        let load = match e1000x {
            Some(parameters) => format!("insmod /e1000x.ko {parameters}"),
            None => "modprobe -a e1000e e1000".to_owned(),
        };
        for guest in [&mut self.a, &mut self.b] {
            guest.expect(&format!(
                "for m in e1000x e1000e e1000; do ! grep -q ^$m' ' /proc/modules || rmmod $m; done; {load}"
            ))?;
        }
        Ok(())
    }

    /// Measures all that goes through a card, in both sizes.
    fn measure(
        &mut self,
        round: usize,
        kind: &'static Kind,
        card: usize,
        lines: &mut Vec<Line>,
    ) -> Result<()> {
        let (model, paths) = (self.cards[card].model, self.cards[card].paths);
        let to_b = paths.contains(&1);
        let up = |guest: &mut Guest, host| Interface::up(guest, &slot(card), &address(card, host, ""));
        let sender = up(&mut self.a, 1)?;
        let receiver = to_b.then(|| up(&mut self.b, 2)).transpose()?;
        for &path in paths {
            for (size, &bytes) in SIZES.iter().enumerate() {
                let receiver = receiver.as_ref().filter(|_| path == 1);
                let sample = self.run(card, path, bytes, &sender, receiver)?;
                eprintln!(
                    "round {round}: {model} {} {bytes:>4} B, {}: {:.0} kpps",
                    PATHS[path], kind.name, sample.kpps
                );
                let same = |line: &&mut Line| {
                    (line.kind.name, line.model, line.path, line.size) == (kind.name, model, path, size)
                };
                match lines.iter_mut().find(same) {
                    Some(line) => line.samples.push(sample),
                    None => lines.push(Line { kind, model, path, size, samples: vec![sample] }),
                }
            }
        }
        sender.down(&mut self.a)?;
        receiver.map_or(Ok(()), |receiver| receiver.down(&mut self.b))
    }

    /// One run, to guest `b` if there is a receiver, else to the host.
    fn run(
        &mut self,
        card: usize,
        path: usize,
        size: u32,
        sender: &Interface,
        receiver: Option<&Interface>,
    ) -> Result<Sample> {
        let to = address(card, if path == 0 { 3 } else { 2 }, "");
        self.a.wait_until(&format!("ping -c 1 -W 1 {to} > /dev/null"), LIMIT)?;
        let mac = match receiver {
            Some(receiver) => receiver.mac.clone(),
            None => {
                let link = self.host.ip(&format!("-o link show dev {}", self.cards[card].tap))?;
                let after = link.split("link/ether ").nth(1).and_then(|rest| rest.split(' ').next());
                after.ok_or_else(|| Error::new(format!("no address in {link:?}")))?.to_owned()
            }
        };
        // No guest has this address: the receiver's IP layer counts the datagram and drops it.
        let nobody = address(card, 4, "");
        self.a.expect(&format!("arp -s {nobody} {mac}"))?;
        let rate = netsend(&mut self.a, &nobody, size, FIRST)?;
        let frames = frames_of_a_second(rate);
        let before = self.seen(card, sender, receiver)?;
        let sent_kpps = netsend(&mut self.a, &nobody, size, frames)?;
        let after = self.seen(card, sender, receiver)?;
        let received = after.received - before.received;
        let share = ratio(received, frames.into());
        let each = |index: usize, value: fn(&Counts) -> u64| {
            let of = if index == 0 { frames.into() } else { received };
            ratio(value(&after.counts[index].since(before.counts[index])), of)
        };
        Ok(Sample {
            kpps: sent_kpps * share,
            traps: [0, 1].map(|index| each(index, |counts| counts.traps)),
            interrupts: [0, 1].map(|index| each(index, |counts| counts.interrupts)),
            lost: (1.0 - share).max(0.0),
        })
    }

    /// What has been counted so far. Interrupts are what the guests took; QEMU's traps are not counted.
    fn seen(&mut self, card: usize, sender: &Interface, receiver: Option<&Interface>) -> Result<Seen> {
        let mut counts = [Counts::default(); 2];
        if self.cards[card].way != Way::Qemu {
            let ports = self.daemon.show_json("ports")?;
            counts[0] = Counts::of(&ports, &self.cards[card].port("a"))?;
            if receiver.is_some() {
                counts[1] = Counts::of(&ports, &self.cards[card].port("b"))?;
            }
        }
        counts[0].interrupts = sender.interrupts(&mut self.a)?;
        let text = match receiver {
            Some(receiver) => {
                counts[1].interrupts = receiver.interrupts(&mut self.b)?;
                self.b.expect(RECEIVED)?
            }
            None => self.host.expect(RECEIVED)?,
        };
        Ok(Seen { counts, received: number(&text)? })
    }
}

struct Seen {
    counts: [Counts; 2],
    received: u64,
}

/// The address of `host` (1: `a`, 2: `b`, 3: the host) in the network of a card.
fn address(card: usize, host: usize, mask: &str) -> String {
    format!("10.4.{card}.{host}{mask}")
}
