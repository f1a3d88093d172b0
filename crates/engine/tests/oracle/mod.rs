//! The switch beside a model of what its documents promise (docs/switch.md, docs/configuration.md): random
//! configurations, random receivers and random frames, each of which has to be where and what the model
//! says, or dropped by the name that it says; and what `explain` says before has to be what happens.
//!
//! Theory of operation. A configuration is drawn (`options`), checked as the daemon checks it, and made a
//! graph as the daemon makes it (`stand`): a switch, a wire, now and then a router and a group, or tunnels
//! to two other hosts. A few dozen frames (`frames`) come in by its ports, one or several in a visit. The
//! model (`model`, `bridge`, `rules`, `headers`, `asked`, `work`, `routed`) reads the same options as words
//! and the same frames as bytes. Where the documents leave a choice it has a doubt (`doubt`), and both are
//! right: what happened has to be one of its worlds (`compare`). What comes out is brought into the form in
//! which stations see it (`plain`), so that receivers with offloads compare as those without.
//!
//! `ORACLE_FRAMES` says how many frames there are, `ORACLE_FROM` behind which number the configurations
//! begin, `ORACLE_SEED` which one alone is to be tried. A find becomes a case (`cases`).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    missing_docs
)]

mod asked;
mod bridge;
mod card;
mod cases;
mod compare;
mod config;
mod doubt;
mod frames;
mod guest;
mod headers;
mod model;
mod options;
mod plain;
mod random;
mod ring;
mod routed;
mod rules;
mod stand;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use sidecore_engine::state::{PortSpec, SwitchSpec};
use sidecore_engine::util::form::Key;

use self::bridge::Memory;
use self::compare::{agrees, plain, Dropped, Happened, Plain};
use self::config::Config;
use self::frames::{Draw, Sent};
use self::model::Model;
use self::options::{Pair, Wish};
use self::plain::Asked;
use self::random::Random;
use self::stand::Stand;
use self::work::Work;

/// Frames of `make test`, and of one configuration.
const FRAMES: usize = 60_000;
const OF_ONE: usize = 50;
/// Most frames of one visit.
const AT_ONCE: usize = 8;
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
    doubts: BTreeMap<&'static str, usize>,
    /// What frames met: drops by name, and those that came out.
    met: BTreeMap<&'static str, usize>,
    /// Packets that left a router by a port of its own.
    routed: usize,
    /// Those of them that came to a group.
    shared: usize,
    /// Frames of which a limit decided, which goes by time.
    timed: usize,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn show(all: &[Plain]) -> String {
    let short = |bytes: &[u8]| hex(&bytes[..bytes.len().min(240)]);
    all.iter()
        .map(|(port, bytes)| format!("  port {port}: {} bytes {}\n", bytes.len(), short(bytes)))
        .collect()
}

/// A configuration that is being tried.
struct Trial<'t> {
    stand: &'t mut Stand,
    sums: &'t mut Sums,
    /// Who asks for it, and the name of its switch.
    asker: String,
    name: String,
    config: Config,
    begun: Instant,
    memories: Vec<Memory>,
    frames: usize,
}

impl<'t> Trial<'t> {
    /// A switch of another name begins with an empty table.
    fn new(stand: &'t mut Stand, sums: &'t mut Sums, asker: String, name: String, wish: &Wish) -> Trial<'t> {
        let config = wish.config();
        stand.configure(&config, &wish.spec(&name));
        let mut memories = vec![Model::memory(&config)];
        if config.has(options::GATEWAY) {
            // Who is behind its port asks for it, and is known to it.
            let ask = |number| frames::asks(options::ROUTER, number, config::router_four(options::ROUTER));
            (0..frames::STATIONS).for_each(|number| drop(stand.send(&[ask(number)])));
            if config.has(options::SHARED) {
                let ask = frames::asks(options::SHARED, 0, config::router_four(options::SHARED));
                stand.send(&[Sent { port: options::MEMBERS[0], ..ask }]);
            }
            memories.iter_mut().for_each(|memory| _ = memory.routed.insert(options::ROUTER));
        }
        Trial { stand, sums, asker, name, config, begun: Instant::now(), memories, frames: 0 }
    }

    /// Sends what comes in by one port in one visit; `explain` is asked before. Whether it is known what is
    /// remembered afterwards.
    fn send(&mut self, sent: &[Sent]) -> bool {
        let (said, words) = self.stand.explain(&sent[0]);
        let (got, mut drops) = self.stand.send(sent);
        drops.sort_unstable();
        let (config, sums) = (&self.config, &mut *self.sums);
        let model = Model { config, tenths: self.begun.elapsed().as_millis() as u64 / 100 };
        self.frames += sent.len();
        sums.frames += sent.len();
        drops.iter().for_each(|(_, why)| *sums.met.entry(why).or_default() += 1);
        let (mut kinds, mut wrong, mut lost_track) = (Vec::new(), Vec::new(), false);
        let mut may_be_told = None;
        let plain = plain(&got, config).unwrap_or_else(|why| {
            kinds.push("what a receiver cannot do".to_owned());
            wrong.push(why);
            Vec::new()
        });
        for why in routed::complaints(&model, &plain, &drops) {
            kinds.push("the list of what leaves a router".to_owned());
            wrong.push(why);
        }
        let by_router = |(to, bytes): &&Plain| {
            is_packet(bytes)
                && (*to == options::ROUTER || bytes[6..12] == config::router_station(options::SHARED))
        };
        sums.routed += plain.iter().filter(by_router).count();
        sums.shared += plain.iter().filter(|it| by_router(it) && it.0 != options::ROUTER).count();
        let happened = Happened { got: &plain, drops: &drops };
        match agrees(&model, sent, &self.memories, happened, KNOWN) {
            Ok(agreed) => {
                self.memories = agreed.memories;
                may_be_told = Some(agreed.told);
                agreed.doubts.into_iter().for_each(|(name, _)| *sums.doubts.entry(name).or_default() += 1);
            }
            Err((got, lost)) => {
                let what = if lost == drops {
                    "bytes".to_owned()
                } else {
                    format!("the model {:?}, happened {:?}", names(&lost), names(&drops))
                };
                let point = POINTS.iter().find(|point| {
                    let known = [KNOWN, &[**point]].concat();
                    agrees(&model, sent, &self.memories, happened, &known)
                        .map(|agreed| self.memories = agreed.memories)
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
        let mut once = said;
        once.out.dedup();
        let limits =
            |drops: &[(usize, &str)]| drops.iter().any(|(_, why)| why.starts_with("storm") || *why == "rate");
        let may_be_told = may_be_told
            .filter(|_| sent.len() == 1)
            .filter(|told| !refused && !sent[0].asked.cuts() && !told.contains(&once));
        if let Some(told) = may_be_told {
            if limits(&once.drops) || limits(&drops) {
                sums.timed += 1;
            } else {
                kinds.push(format!("explain {:?}, happened {:?}", names(&once.drops), names(&drops)));
                wrong.push(format!("explain says\n{words}the model says that it says {told:?}"));
            }
        }
        if !wrong.is_empty() {
            let told = || {
                let frame = |it: &Sent| format!("{:?} {:?}:\n{}\n", it.asked, it.work, hex(&it.bytes));
                format!(
                    "{}, frame {} by port {}, {}{}\nhappened: {drops:?}\n{}\nexplain:\n{words}\n{config}",
                    self.asker,
                    self.frames,
                    sent[0].port,
                    sent.iter().map(frame).collect::<String>(),
                    wrong.join("\n"),
                    show(&plain),
                )
            };
            for kind in kinds {
                sums.wrong.entry(kind).or_insert_with(|| (0, told())).0 += 1;
            }
        }
        !lost_track
    }

    /// Now and then long time passes, many stations come, or the table has another size.
    fn upset(&mut self, wish: &Wish, random: &mut Random, resized: &mut usize) {
        let told = self.config.has(options::TOLD);
        let owned = (0..options::PORTS).any(|n| self.config.ports[n].get("mac").is_some());
        match random.below(if told { 40 } else { 400 }) {
            // Its own address is a port's for good, in all VLANs in which it was heard.
            0 if !owned => {
                self.stand.age(&self.name);
                self.memories.iter_mut().for_each(Model::age);
            }
            1 => {
                let mut wish = wish.clone();
                // One of the same size is the same table.
                *resized += 64;
                wish.given.insert((options::OF_SWITCH, "table-size"), format!("{}", 10_000 + *resized));
                self.stand.publish(&wish.spec(&self.name));
                self.memories.iter_mut().for_each(Model::move_in);
            }
            2 if told && random.chance(30) => {
                self.stand.crowd(options::ROUTER);
                self.memories.iter_mut().for_each(Model::unsettle);
            }
            _ => {}
        }
    }
}

/// Tries one configuration.
fn run(stand: &mut Stand, seed: u64, wish: &Wish, random: &mut Random, sums: &mut Sums) {
    let mut trial = Trial::new(stand, sums, format!("ORACLE_SEED={seed}"), format!("s{seed}"), wish);
    let has = |n| trial.config.has(n);
    let routed = has(options::GATEWAY);
    let router =
        |n: usize, part: usize| routed.then(|| (config::router_station(n), config::router_four(n), part));
    let stays = |n: &usize| {
        let port = &trial.config.ports[*n];
        port.down() && port.get("fdb").is_some()
    };
    let draw = |ports: Vec<usize>, router: Option<frames::ByRouter>| {
        let absent = ports.iter().copied().filter(stays).collect();
        // More for a group: fewer of them arrive there.
        let mut beyond = vec![options::ROUTER, options::GATEWAY, options::SHARED, options::SHARED];
        let here = router.map(|(station, ..)| station);
        beyond.retain(|n| has(*n) && here != Some(config::router_station(*n)));
        Draw { ports, router, beyond, absent }
    };
    let near = || 0..options::ON_SWITCH;
    let first = match () {
        () if has(options::TUNNELS[0]) => draw(near().chain(options::FAR).collect(), None),
        () if has(options::SHARED) => draw(vec![options::ROUTER], router(options::ROUTER, 80)),
        () if has(options::TOLD) => draw(near().chain([options::TOLD]).collect(), None),
        () => draw(near().collect(), router(options::GATEWAY, 10)),
    };
    let mut draws = vec![first, draw(near().collect(), None), draw(options::WIRE.to_vec(), None)];
    if routed {
        draws.push(draw(vec![options::ROUTER], router(options::ROUTER, 80)));
    }
    if has(options::BEFORE) {
        draws.push(draw(vec![options::BEFORE], None));
    }
    let tunnels = has(options::TUNNELS[0]) || has(options::TOLD);
    let mut resized = 0;
    while trial.frames < OF_ONE {
        trial.upset(wish, random, &mut resized);
        let draw = &draws[if random.chance(60) { 0 } else { random.below(draws.len()) }];
        let port = random.one(&draw.ports);
        let card = options::CARDS.iter().find(|(n, _)| *n == port).map(|(_, kind)| *kind);
        let frame = |random: &mut Random| loop {
            let mut sent = draw.frame(random, port);
            if port == options::TOLD {
                // A datagram asks for nothing, and is no cut frame.
                sent.asked = Asked::default();
                sent.bytes.resize(sent.bytes.len().max(60), 0);
            }
            let is_plain = sent.asked == Asked::default();
            if card.is_some() && sent.bytes.len() >= 14 {
                // The card fills it up before it sends it (802.3 §4.2.3.3).
                sent.bytes.resize(sent.bytes.len().max(60), 0);
            }
            // Segments of TCP become one frame again in a tunnel.
            if tunnels && matches!(sent.asked.gso & 0x7f, 1 | 4) || card.is_some() && sent.bytes.len() < 14 {
                continue;
            }
            let there_is = match card {
                Some(_) if is_plain && random.chance(60) => true,
                Some(card::Kind::Rtl8169) => Work::draw_found(random, &mut sent),
                Some(_) => Work::draw(random, &mut sent),
                None => true,
            };
            if there_is {
                return sent;
            }
        };
        let mut sent = vec![frame(random)];
        // A tunnel has the frames of one flow in their order, and those of several in any.
        if !tunnels && random.chance(20) {
            sent = (0..2 + random.below(AT_ONCE - 1)).map(|_| frame(random)).collect();
            row(random, &mut sent);
        }
        // What is remembered is wrong from there on.
        if !trial.send(&sent) {
            return;
        }
    }
}

/// Whether a frame without tags is a packet of IP.
fn is_packet(bytes: &[u8]) -> bool {
    matches!(bytes.get(12..14), Some([8, 0] | [0x86, 0xdd]))
}

/// Frames of one flow come in a row, and a station may say something to itself when others have asked for it.
fn row(random: &mut Random, sent: &mut [Sent]) {
    for n in 1..sent.len() {
        let (before, now) = sent.split_at_mut(n);
        let Some(last) = before[n - 1].bytes.get(..12) else { continue };
        let Some(addresses) = now[0].bytes.get_mut(..12).filter(|_| random.chance(40)) else { continue };
        let own = last[..5] == [2, 0, 0, 0, before[n - 1].port as u8];
        addresses[..6].copy_from_slice(&last[..6]);
        addresses[6..].copy_from_slice(if own && random.chance(50) { &last[..6] } else { &last[6..] });
    }
}

fn names(drops: &[Dropped]) -> Vec<&'static str> {
    drops.iter().map(|(_, why)| *why).collect()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|e| panic!("{name}: {e}")))
}

/// A new option is drawn, or has a word on why it need not be.
#[test]
fn every_option_is_drawn_or_says_why_not() {
    let names = |keys: &[Key]| keys.iter().map(|key| key.name).collect::<Vec<_>>();
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
    println!(
        "{} frames; doubts {:?}; met {:?}; by time {}; routed {}, to a group {}",
        sums.frames, sums.doubts, sums.met, sums.timed, sums.routed, sums.shared
    );
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
    for (name, wish, sent) in cases::all() {
        let mut trial = Trial::new(stand, sums, format!("the case {name:?}"), format!("case {name}"), &wish);
        sent.iter().for_each(|sent| _ = trial.send(sent));
    }
    let all: Vec<Pair> = options::pairs().into_iter().collect();
    let mut unmet: BTreeSet<Pair> = all.iter().copied().collect();
    let (mut seed, mut none) = (number("ORACLE_FROM").unwrap_or(1), Vec::new());
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
