//! `sidecore-lab bench-ptnet`: ptnet beside the other cards, in real guests.
//!
//! Guest `a` talks to guest `b` by one card after the other: our virtio-net, ptnet with our driver, e1000e
//! and rtl8169 with Linux's own, all on one learning switch; and QEMU's virtio-net, with a datagram cable to
//! `b`. Measured are requests and responses over TCP (`lab/netecho`; the ptnet paper's Figure 3), datagrams
//! that the receiver's IP layer has got (`lab/netsend`; its Figure 4), and a TCP stream (iperf3). One card at
//! a time is up, and both guests keep it for all measurements of a round.
//!
//! With each rate come notifications and interrupts, of the sender and of the receiver, for each transaction,
//! each datagram, or each megabyte of the stream. *Kicks* are those that reached the I/O core. *Traps* are
//! accesses for which the guest waited until the VMM had an answer from the daemon: registers, and of ptnet
//! the kicks. A virtio kick is an eventfd, so there is no such trap, and QEMU's own are not counted.
//! *Interrupts* are what the guests' kernels took.
//!
//! Emulated guests (TCG) say how cards compare there, in ratios of one round, and nothing about rates.

mod guests;
mod report;

use self::guests::Bench;
use self::report::{draw, lines_json, summary, table};
use crate::error::{Context, Error, Result};
use crate::Accel;
use serde_json::json;
use std::time::{Duration, Instant};

/// Rounds, seconds of a measurement, and bytes of messages, unless it is said otherwise.
const ROUNDS: usize = 5;
const SECONDS: f64 = 0.5;
const SIZES: [u32; 6] = [1, 64, 512, 1460, 8_192, 32_768];
/// The largest message, which is `netecho`'s, and the largest datagram in one frame.
const LARGEST: u32 = 1 << 20;
const DATAGRAM: u32 = 1_472;
/// A round that would not be over by then is not begun.
const LIMIT: Duration = Duration::from_secs(600);

/// How a card is served.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// By us over vhost-user.
    Vhost,
    /// By us over vfio-user, as two functions.
    Ptnet,
    /// By us over vfio-user.
    Vfio,
    Qemu,
}

/// A card of both guests.
#[derive(PartialEq, Eq)]
struct Card {
    /// Its name, and the port's kind if it is ours.
    name: &'static str,
    way: Way,
}

/// The first one is what the others are compared with.
const CARDS: [Card; 5] = [
    Card { name: "vhost-user", way: Way::Vhost },
    Card { name: "ptnet", way: Way::Ptnet },
    Card { name: "e1000e", way: Way::Vfio },
    Card { name: "rtl8169", way: Way::Vfio },
    Card { name: "qemu-virtio", way: Way::Qemu },
];

/// What is measured, with the bytes of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Test {
    Requests(u32),
    Datagrams(u32),
    Stream,
}

impl Test {
    const NAMES: [&'static str; 3] = ["rr", "udp", "tcp"];

    fn name(self) -> &'static str {
        let [requests, datagrams, stream] = Self::NAMES;
        match self {
            Test::Requests(_) => requests,
            Test::Datagrams(_) => datagrams,
            Test::Stream => stream,
        }
    }

    fn bytes(self) -> Option<u32> {
        match self {
            Test::Requests(bytes) | Test::Datagrams(bytes) => Some(bytes),
            Test::Stream => None,
        }
    }

    /// What its rate is in.
    fn unit(self) -> &'static str {
        match self {
            Test::Requests(_) => "transactions/s",
            Test::Datagrams(_) => "kpps",
            Test::Stream => "Gbit/s",
        }
    }

    /// All of them, for messages of `sizes`.
    fn all(sizes: &[u32]) -> Vec<Self> {
        let requests = sizes.iter().map(|bytes| Test::Requests(*bytes));
        let datagrams = sizes.iter().filter(|bytes| **bytes <= DATAGRAM).map(|bytes| Test::Datagrams(*bytes));
        requests.chain(datagrams).chain([Test::Stream]).collect()
    }
}

/// What one measurement showed: the rate, and for each unit of work the sender's and the receiver's part of
/// what was counted.
#[derive(Clone, Copy)]
struct Sample {
    rate: f64,
    kicks: Option<[f64; 2]>,
    traps: Option<[f64; 2]>,
    interrupts: [f64; 2],
    lost: f64,
}

/// All samples of a test on a card, round by round.
struct Line {
    card: &'static Card,
    test: Test,
    samples: Vec<Sample>,
}

/// What was asked for.
struct Options<'a> {
    rounds: usize,
    seconds: f64,
    cards: Vec<&'static Card>,
    tests: Vec<Test>,
    svg: Option<&'a str>,
    json: bool,
}

/// Measures and prints a table, or JSON. `words` are `ROUNDS`, `--json`, `--seconds S`, `--sizes BYTES,…`,
/// `--only NAME,…` (cards and tests) and `svg=FILE`, in any order.
///
/// # Errors
/// A word is none of these; a guest does not boot, or a measurement fails; which, and why. The figure cannot
/// be written.
pub fn ptnet(words: &[&str]) -> Result<()> {
    let options = Options::parse(words)?;
    let accel = Accel::decide()?;
    let start = Instant::now();
    let mut bench = Bench::start(&options.cards)?;
    let mut lines: Vec<Line> = Vec::new();
    for card in &options.cards {
        lines.extend(options.tests.iter().map(|test| Line { card, test: *test, samples: Vec::new() }));
    }
    let (begun, mut rounds) = (Instant::now(), 0u32);
    while usize::try_from(rounds).is_ok_and(|rounds| rounds < options.rounds) {
        if rounds > 0 && start.elapsed() + begun.elapsed() / rounds > LIMIT {
            eprintln!("{rounds} rounds: another one would not be over after {LIMIT:?}");
            break;
        }
        for (place, card) in options.cards.iter().enumerate() {
            let mut session = bench.plug(place, card)?;
            for line in lines.iter_mut().filter(|line| line.card == *card) {
                line.samples.push(session.measure(line.test, options.seconds)?);
            }
            session.end()?;
        }
        rounds += 1;
        eprintln!("round {rounds}/{}: done", options.rounds);
    }
    if options.json {
        let value = json!({
            "accelerator": accel.to_string(),
            "rounds": rounds,
            "seconds": options.seconds,
            "rows": lines_json(&lines),
            "summary": summary(&lines),
        });
        println!("{value}");
    } else {
        println!("accelerator: {accel}; {rounds} rounds; each for {} s", options.seconds);
        print!("{}", table(&lines));
    }
    match options.svg {
        Some(file) => {
            std::fs::write(file, draw(&lines, &accel.to_string())).context(|| format!("writing {file}"))
        }
        None => Ok(()),
    }
}

impl<'a> Options<'a> {
    fn parse(words: &[&'a str]) -> Result<Self> {
        let (mut rounds, mut seconds, mut json, mut svg) = (ROUNDS, SECONDS, false, None);
        let (mut sizes, mut only) = (SIZES.to_vec(), Vec::new());
        let mut words = words.iter();
        let wrong = |word: &str| Error::new(format!("bench-ptnet does not know what {word:?} means"));
        while let Some(word) = words.next() {
            let mut value =
                || words.next().copied().ok_or_else(|| Error::new(format!("{word} lacks a value")));
            match *word {
                "--json" => json = true,
                "--seconds" => {
                    let text = value()?;
                    seconds =
                        text.parse().ok().filter(|s| (0.05..=60.0).contains(s)).ok_or_else(|| wrong(text))?;
                }
                "--sizes" => {
                    let text = value()?;
                    let size = |word: &str| word.parse().ok().filter(|bytes| (1..=LARGEST).contains(bytes));
                    let all: Option<Vec<u32>> = text.split(',').map(size).collect();
                    sizes = all.ok_or_else(|| wrong(text))?;
                }
                "--only" => only = value()?.split(',').collect(),
                _ => match (word.strip_prefix("svg="), word.parse()) {
                    (Some(file), _) => svg = Some(file),
                    (None, Ok(number @ 1..)) => rounds = number,
                    _ => return Err(wrong(word)),
                },
            }
        }
        let known = |name: &&str| CARDS.iter().any(|card| card.name == *name) || Test::NAMES.contains(name);
        if let Some(name) = only.iter().find(|name| !known(name)) {
            return Err(wrong(name));
        }
        let mut cards: Vec<&Card> = CARDS.iter().filter(|card| only.contains(&card.name)).collect();
        if cards.is_empty() {
            cards = CARDS.iter().collect();
        }
        let mut tests = Test::all(&sizes);
        if only.iter().any(|name| Test::NAMES.contains(name)) {
            tests.retain(|test| only.contains(&test.name()));
        }
        Ok(Self { rounds, seconds, cards, tests, svg, json })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_in_any_order_and_wrong_ones_are_named() {
        let words =
            ["--only", "ptnet,vhost-user,udp", "--json", "3", "--sizes", "64,4096", "--seconds", "0.2"];
        let options = Options::parse(&words).unwrap();
        assert_eq!((options.rounds, options.json, options.svg), (3, true, None));
        let names: Vec<&str> = options.cards.iter().map(|card| card.name).collect();
        assert_eq!(names, ["vhost-user", "ptnet"]);
        assert!(options.tests == [Test::Datagrams(64)], "4096 bytes are no datagram of one frame");
        for wrong in [&["0"][..], &["--sizes", "0"], &["--only", "e100"], &["--seconds"], &["--seconds", "x"]]
        {
            assert!(Options::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
