//! The switch beside a model of what its documents promise (docs/switch.md, docs/configuration.md): random
//! configurations, random receivers and random frames, each of which has to be where and what the model
//! says, or dropped by the name that it says; and what `explain` says before has to be what happens.
//!
//! Theory of operation. A configuration is drawn (`options`), checked as the daemon checks it, and made a
//! graph as the daemon makes it (`stand`); a few dozen frames (`frames`) come in by its ports, one after
//! the other. The model (`model`, `rules`, `headers`) reads the same options as words and the same frames
//! as bytes. Where the documents leave a choice it has a doubt (`doubt`), and both are right. What comes
//! out is brought into the form in which stations see it (`plain`), so that receivers with offloads compare
//! as those without.
//!
//! `ORACLE_FRAMES` says how many frames there are, `ORACLE_SEED` which configuration alone is to be tried.
//! A find becomes a seed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    missing_docs
)]

mod doubt;
mod frames;
mod headers;
mod model;
mod options;
mod plain;
mod random;
mod rules;
mod stand;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use sidecore_engine::state::{options as options_of_spec, PortSpec, SwitchSpec};

use self::doubt::{About, Doubts};
use self::frames::{Draw, Sent};
use self::model::{Memory, Model, Outcome};
use self::options::{Pair, Wish};
use self::plain::cut;
use self::random::Random;
use self::stand::{Got, Stand, Told};

/// Frames of `make test`, and of one configuration.
const FRAMES: usize = 60_000;
const OF_ONE: usize = 50;
/// One frame of so many is explained.
const EXPLAINED: usize = 4;
/// Configurations that have found something, tried before all others.
const SEEDS: &[u64] = &[];
/// Points of the code that are not mended yet.
const KNOWN: &[&str] = &[];
/// All points of which the model knows what was before: a failure is told with those that would explain it.
const POINTS: &[&str] = &["order", "1", "2", "3", "4", "5", "6", "7", "8", "14", "31"];

/// What was seen of all frames.
#[derive(Default)]
struct Sums {
    frames: usize,
    /// What was wrong: how often, and the first time.
    wrong: BTreeMap<String, (usize, String)>,
    doubts: BTreeMap<About, usize>,
    /// What frames met: drops by name, and those that came out.
    met: BTreeMap<&'static str, usize>,
    /// Frames of which a limit decided, which goes by time.
    timed: usize,
}

/// What came out as stations see it, by port.
fn plain(got: &[Got]) -> Result<Vec<(usize, Vec<u8>)>, String> {
    let mut all = Vec::new();
    for (port, bytes, asked) in got {
        let parts = cut(bytes, *asked)
            .ok_or_else(|| format!("port {port} cannot do what it is asked for: {asked:?}"))?;
        all.extend(parts.into_iter().map(|part| (*port, part)));
    }
    all.sort();
    Ok(all)
}

/// Whether a frame comes from a router, or to a member of a group.
fn is_beyond(port: usize, bytes: &[u8]) -> bool {
    bytes.get(6..8) == Some(&[2, 0xff]) || options::MEMBERS.contains(&port)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn show(all: &[(usize, Vec<u8>)]) -> String {
    all.iter().map(|(port, bytes)| format!("  port {port}: {}\n", hex(bytes))).collect()
}

/// Most memories of one configuration that are carried on, and most worlds of one frame.
const MEMORIES: usize = 8;
const WORLDS: usize = 4096;

/// Those memories that a switch may have after the frame, if what happened is what one of the model's
/// worlds says; else what the first of them says.
fn agrees(
    model: &Model<'_>,
    sent: &Sent,
    memories: &[Memory],
    got: &[(usize, Vec<u8>)],
    drops: &[(usize, &'static str)],
    known: &[&'static str],
) -> Result<(Vec<Memory>, Vec<About>), Outcome> {
    let (mut all, mut affirmed, mut first) = (Vec::new(), None, None);
    for memory in memories {
        let mut doubts = Doubts::new(known);
        for _ in 0..WORLDS {
            let mut after = memory.clone();
            let outcome = model.judge(sent, &mut after, &doubts);
            if happened(&outcome, got, drops) {
                affirmed.get_or_insert_with(|| doubts.affirmed());
                if !all.contains(&after) {
                    all.push(after);
                }
            }
            first.get_or_insert(outcome);
            if all.len() >= MEMORIES || !doubts.next() {
                break;
            }
        }
    }
    all.truncate(MEMORIES);
    affirmed.map(|affirmed| (all, affirmed)).ok_or_else(|| first.unwrap())
}

/// Whether `outcome` is what happened.
fn happened(outcome: &Outcome, got: &[(usize, Vec<u8>)], drops: &[(usize, &'static str)]) -> bool {
    let clear = |all: &[(usize, Vec<u8>)]| -> Vec<(usize, Vec<u8>)> {
        let its = |(port, bytes): &&(usize, Vec<u8>)| {
            !(outcome.vague.contains(port) || outcome.reached && is_beyond(*port, bytes))
        };
        all.iter().filter(its).cloned().collect()
    };
    // What a router makes of it may be dropped anywhere.
    let mut rest = drops.to_vec();
    let all = outcome.drops.iter().all(|drop| match rest.iter().position(|it| it == drop) {
        Some(at) => {
            rest.remove(at);
            true
        }
        None => false,
    });
    let unseen =
        |(port, why): &(usize, &str)| outcome.reached && (*port, *why) != (options::INTERFACE, "acl");
    rest.retain(|drop| !unseen(drop));
    let answer = |port: &usize| {
        got.iter()
            .any(|(to, bytes)| to == port && is_beyond(*to, bytes) && bytes.get(12..14) == Some(&[8, 6]))
    };
    clear(&outcome.got) == clear(got) && all && rest.is_empty() && outcome.answers.iter().all(answer)
}

/// Tries one configuration.
fn run(stand: &mut Stand, seed: u64, wish: &Wish, random: &mut Random, sums: &mut Sums) {
    let config = wish.config();
    // A switch of another name begins with an empty table.
    stand.configure(&config, &wish.spec(&format!("s{seed}")));
    let begun = Instant::now();
    let mut memories = vec![Model::memory(&config)];
    let routed = config.ports.len() > options::ROUTER;
    let router =
        |n: usize, part: usize| routed.then(|| (model::router_station(n), model::router_four(n), part));
    let mut draws = vec![
        Draw { ports: (0..options::ON_SWITCH).collect(), router: router(options::GATEWAY, 10) },
        Draw { ports: (0..options::ON_SWITCH).collect(), router: None },
        Draw { ports: options::WIRE.to_vec(), router: None },
    ];
    if routed {
        draws.push(Draw { ports: vec![options::ROUTER], router: router(options::ROUTER, 80) });
    }
    if config.ports.len() > options::BEFORE {
        draws.push(Draw { ports: vec![options::BEFORE], router: None });
    }
    for n in 0..OF_ONE {
        let draw = &draws[if random.chance(60) { 0 } else { random.below(draws.len()) }];
        let port = random.one(&draw.ports);
        let sent = draw.frame(random, port);
        // It has memory of its own each time, which takes longer than all the rest.
        let asks = n % EXPLAINED == 0 || number("ORACLE_SEED").is_some();
        let (said, words) = if asks { stand.explain(&sent) } else { Default::default() };
        let (got, mut drops) = stand.send(&sent);
        drops.sort_unstable();
        let model = Model { config: &config, tenths: begun.elapsed().as_millis() as u64 / 100 };
        sums.frames += 1;
        drops.iter().for_each(|(_, why)| *sums.met.entry(why).or_default() += 1);
        let (mut kinds, mut wrong, mut lost_track) = (Vec::new(), Vec::new(), false);
        let plain = plain(&got).unwrap_or_else(|why| {
            kinds.push("what a receiver cannot do".to_owned());
            wrong.push(why);
            Vec::new()
        });
        match agrees(&model, &sent, &memories, &plain, &drops, KNOWN) {
            Ok((after, doubts)) => {
                memories = after;
                doubts.into_iter().for_each(|about| *sums.doubts.entry(about).or_default() += 1);
            }
            Err(Outcome { got, drops: lost, .. }) => {
                let what = if lost == drops {
                    "bytes".to_owned()
                } else {
                    format!("the model {:?}, happened {:?}", names(&lost), names(&drops))
                };
                let point = POINTS.iter().find(|point| {
                    let known = [KNOWN, &[**point]].concat();
                    agrees(&model, &sent, &memories, &plain, &drops, &known)
                        .map(|(after, _)| memories = after)
                        .is_ok()
                });
                let what = point.map_or(what, |point| format!("point {point}"));
                lost_track = point.is_none();
                kinds.push(what);
                wrong.push(format!("the model says {lost:?} and\n{}", show(&got)));
            }
        }
        // What a device refuses comes to no port.
        let refused =
            drops.iter().any(|(_, why)| matches!(*why, "bad_offload" | "too_short" | "cannot_segment"));
        let mut out: Vec<usize> = got.iter().map(|(port, ..)| *port).collect();
        out.sort_unstable();
        out.dedup();
        let mut once = said.clone();
        once.out.dedup();
        let mut happened = Told { out, reached: said.reached, drops: drops.clone() };
        if said.reached {
            // It ends there; the lists before that are looked at.
            happened.out = got
                .iter()
                .filter(|(port, bytes, _)| !is_beyond(*port, bytes))
                .map(|(port, ..)| *port)
                .collect();
            happened.out.sort_unstable();
            happened.out.dedup();
            happened.drops.retain(|drop| said.drops.contains(drop));
        }
        let timed =
            |told: &Told| told.drops.iter().any(|(_, why)| why.starts_with("storm") || *why == "rate");
        // What a station says to itself is learned before it is looked up: explain does not foresee that.
        let asks = asks && sent.bytes.get(..6) != sent.bytes.get(6..12);
        if asks && once != happened && !refused && !sent.asked.cuts() {
            if timed(&said) || drops.iter().any(|(_, why)| why.starts_with("storm") || *why == "rate") {
                sums.timed += 1;
            } else {
                kinds.push(format!("explain {:?}, happened {:?}", names(&said.drops), names(&drops)));
                wrong.push(format!("explain says\n{words}"));
            }
        }
        if !wrong.is_empty() {
            let told = || {
                format!(
                    "ORACLE_SEED={seed}, frame {n} by port {port}, {:?}:\n{}\n{}\nhappened: {drops:?}\n{}\nexplain:\n{words}\n{config}",
                    sent.asked,
                    hex(&sent.bytes),
                    wrong.join("\n"),
                    show(&plain),
                )
            };
            for kind in kinds {
                sums.wrong.entry(kind).or_insert_with(|| (0, told())).0 += 1;
            }
            // What is remembered is wrong from here on.
            if lost_track {
                return;
            }
        }
    }
}

fn names(drops: &[(usize, &'static str)]) -> Vec<&'static str> {
    drops.iter().map(|(_, why)| *why).collect()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|e| panic!("{name}: {e}")))
}

/// A new option is drawn, or has a word on why it need not be.
#[test]
fn every_option_is_drawn_or_says_why_not() {
    let names = |keys: &[options_of_spec::Key]| keys.iter().map(|key| key.name).collect::<Vec<_>>();
    let table =
        |table: &[(&'static str, options::Drawn)]| table.iter().map(|(name, _)| *name).collect::<Vec<_>>();
    assert_eq!(table(options::PORT), names(PortSpec::KEYS));
    assert_eq!(table(options::SWITCH), names(SwitchSpec::KEYS));
    for (name, drawn) in options::PORT.iter().chain(options::SWITCH) {
        assert!(!matches!(drawn, options::Drawn::Not("")), "{name}: why?");
    }
}

#[test]
fn frames_are_where_the_documents_promise() {
    let mut stand = Stand::new(options::PORTS);
    let mut sums = Sums::default();
    match number("ORACLE_SEED") {
        Some(seed) => drop(one(&mut stand, seed, &mut sums)),
        None => all(&mut stand, &mut sums),
    }
    let told: String = sums.wrong.iter().map(|(kind, (_, first))| format!("{kind}: {first}\n\n")).collect();
    let counts: Vec<_> = sums.wrong.iter().map(|(kind, (count, _))| (kind, count)).collect();
    println!("{} frames; doubts {:?}; met {:?}; by time {}", sums.frames, sums.doubts, sums.met, sums.timed);
    assert!(sums.wrong.is_empty(), "{told}in all: {counts:#?}");
}

/// Tries the configuration of a seed. One in which a pair of options is to stand has the pair's number in
/// its upper half; none, if the daemon does not take such a pair. Otherwise the pairs that stand in it.
fn one(stand: &mut Stand, seed: u64, sums: &mut Sums) -> Option<BTreeSet<Pair>> {
    let mut random = Random::new(seed);
    let pair = ((seed >> 32) as usize).checked_sub(1).and_then(|n| options::pairs().into_iter().nth(n));
    let wish = options::draw(&mut random, pair)?;
    run(stand, seed, &wish, &mut random, sums);
    Some(wish.pairs())
}

fn all(stand: &mut Stand, sums: &mut Sums) {
    let frames = number("ORACLE_FRAMES").map_or(FRAMES, |frames| frames as usize);
    SEEDS.iter().for_each(|seed| drop(one(stand, *seed, sums)));
    let all: Vec<Pair> = options::pairs().into_iter().collect();
    let mut unmet: BTreeSet<Pair> = all.iter().copied().collect();
    let (mut seed, mut none) = (1, Vec::new());
    // Most pairs come by themselves; the others are asked for.
    while sums.frames < frames / 2 {
        seed += 1;
        one(stand, seed, sums).unwrap().iter().for_each(|pair| _ = unmet.remove(pair));
    }
    let by_chance = all.len() - unmet.len();
    while sums.frames < frames {
        seed += 1;
        let Some(pair) = unmet.pop_first() else {
            one(stand, seed, sums);
            continue;
        };
        let number = all.iter().position(|it| *it == pair).unwrap() as u64 + 1;
        match one(stand, number << 32 | seed, sums) {
            Some(met) => {
                assert!(met.contains(&pair));
                met.iter().for_each(|pair| _ = unmet.remove(pair));
            }
            None => none.push(pair),
        }
    }
    let met = all.len() - unmet.len() - none.len();
    println!("{met} pairs of options met, {by_chance} of them by chance; the daemon takes none of {none:?}");
    assert!(unmet.is_empty() || frames < FRAMES, "not met: {unmet:?}");
}
