//! What happened beside what the model says: whether there is a world in which both are so.
//!
//! Theory of operation. Frames of one visit are judged one after the other. Of each, every combination of
//! answers to its doubts that can still lead to what happened goes on to the next: a *world*, which is what
//! is remembered and what became of the frames so far.

use std::collections::BTreeSet;

use super::bridge::Memory;
use super::config::Config;
use super::doubt::{About, Doubts};
use super::frames::Sent;
use super::headers::{be16, tags};
use super::model::{Model, Outcome};
use super::options;
use super::plain::{cut, is_finished, Asked};
use super::stand::{Got, Told};

/// A frame that came out, as stations see it, and by which port.
pub type Plain = (usize, Vec<u8>);
/// Who dropped one, and why.
pub type Dropped = (usize, &'static str);

/// What came out as stations see it, by port.
pub fn plain(got: &[Got], config: &Config) -> Result<Vec<Plain>, String> {
    let mut all = Vec::new();
    for (port, bytes, asked) in got {
        let able = takes(config.ports[*port].accepts, bytes, *asked) && is_finished(bytes, *asked);
        let parts = cut(bytes, *asked).filter(|_| able);
        let parts = parts.ok_or_else(|| format!("port {port} cannot do what it is asked for: {asked:?}"))?;
        all.extend(parts.into_iter().map(|part| (*port, part)));
    }
    all.sort();
    Ok(all)
}

/// Whether a receiver that takes over the offloads `accepts` can do what it is asked for.
pub fn takes(accepts: u32, bytes: &[u8], asked: Asked) -> bool {
    let v6 = be16(bytes, tags(bytes).1) == Some(0x86dd);
    let cuts = match asked.gso & 0x7f {
        0 => 0,
        1 => 1 << 1,
        4 => 1 << 2,
        5 => 1 << (4 + u32::from(v6)),
        _ => u32::MAX,
    };
    let all = u32::from(asked.needs_sum()) | cuts | if asked.gso & 0x80 != 0 { 1 << 3 } else { 0 };
    all & !accepts == 0
}

/// Whether a card has dropped a frame that its driver does not want.
pub fn is_of_card((_, why): &Dropped) -> bool {
    matches!(*why, "filtered" | "buffer_too_small")
}

/// Whether a frame comes from a router, or to a member of a group.
fn is_beyond(port: usize, bytes: &[u8]) -> bool {
    bytes.get(6..8) == Some(&[2, 0xff]) || options::MEMBERS.contains(&port)
}

/// Most memories of one configuration that are carried on, most worlds of one visit, and most combinations
/// of answers of one frame: some, and if none of these is what happened more of them.
const MEMORIES: usize = 8;
const WORLDS: usize = 256;
const SOME: usize = 1 << 12;
const MORE: usize = 1 << 20;

/// What the model says: who gets what, and who drops what.
pub type Said = (Vec<Plain>, Vec<Dropped>);

/// What happened.
#[derive(Clone, Copy)]
pub struct Happened<'h> {
    pub got: &'h [Plain],
    pub drops: &'h [Dropped],
}

/// What may be so after a visit: what is remembered, the doubts that were affirmed, and what `explain` may
/// have said of a lone frame.
pub struct Agreed {
    pub memories: Vec<Memory>,
    pub doubts: Vec<About>,
    pub told: Vec<Told>,
}

/// Those memories that a switch may have after the frames, if what happened is what one of the model's
/// worlds says; else what the first of them says.
pub fn agrees(
    model: &Model<'_>,
    sent: &[Sent],
    memories: &[Memory],
    happened: Happened<'_>,
    known: &[&'static str],
) -> Result<Agreed, Said> {
    let search = |answers| search(model, sent, memories, happened, known, answers);
    search(SOME).or_else(|_| search(MORE))
}

fn search(
    model: &Model<'_>,
    sent: &[Sent],
    memories: &[Memory],
    happened: Happened<'_>,
    known: &[&'static str],
    answers: usize,
) -> Result<Agreed, Said> {
    let world = |memory: &Memory| {
        let before = Memory { over: BTreeSet::new(), ..memory.clone() };
        (before, Outcome::default(), Vec::new())
    };
    let mut worlds: Vec<(Memory, Outcome, Vec<About>)> = memories.iter().map(world).collect();
    let mut first = (memories[0].clone(), Outcome::default());
    for frame in sent {
        let judged = model.judge(frame, &mut first.0, &Doubts::new(known));
        first.1.add(judged);
        let mut next: Vec<(Memory, Outcome, Vec<About>)> = Vec::new();
        for (memory, before, affirmed) in worlds {
            let mut doubts = Doubts::new(known);
            for _ in 0..answers {
                let (mut after, mut sum) = (memory.clone(), before.clone());
                sum.add(model.judge(frame, &mut after, &doubts));
                if happened.may_become(&sum) && !next.iter().any(|it| it.0 == after && it.1 == sum) {
                    next.push((after, sum, [&affirmed[..], &doubts.affirmed()].concat()));
                }
                if next.len() >= WORLDS || !doubts.next() {
                    break;
                }
            }
        }
        worlds = next;
    }
    worlds.retain(|(_, outcome, _)| happened.is(outcome));
    let Some((.., doubts)) = worlds.first().cloned() else { return Err((first.1.got, first.1.drops)) };
    let (mut memories, mut told) = (Vec::new(), Vec::new());
    for (memory, outcome, _) in worlds {
        if memories.len() < MEMORIES && !memories.contains(&memory) {
            memories.push(memory);
        }
        told.push(outcome.told);
    }
    Ok(Agreed { memories, doubts, told })
}

impl Happened<'_> {
    /// Whether it is what the model says.
    fn is(self, outcome: &Outcome) -> bool {
        // What a router makes of it may be dropped anywhere.
        let router = |drop: &Dropped| outcome.reached && *drop != (options::INTERFACE, "acl");
        let vague = |drop: &Dropped| outcome.vague.contains(&drop.0) && is_of_card(drop);
        let unseen = |drop: &Dropped| router(drop) || vague(drop);
        let rest = without(self.drops, &outcome.drops);
        let answers = |port: &usize, (to, bytes): &Plain| {
            to == port && is_beyond(*to, bytes) && bytes.get(12..14) == Some(&[8, 6])
        };
        clear(self.got, outcome) == clear(&outcome.got, outcome)
            && rest.is_some_and(|rest| rest.iter().all(unseen))
            && outcome.answers.iter().all(|port| self.got.iter().any(|got| answers(port, got)))
    }

    /// Whether it may be what the model says when it has judged further frames.
    fn may_become(self, outcome: &Outcome) -> bool {
        without(self.drops, &outcome.drops).is_some()
            && without(&clear(self.got, outcome), &clear(&outcome.got, outcome)).is_some()
    }
}

/// What comes out that can be told.
fn clear<'a>(all: &'a [Plain], outcome: &Outcome) -> Vec<&'a Plain> {
    let vague =
        |port, bytes: &[u8]| outcome.vague.contains(&port) || outcome.reached && is_beyond(port, bytes);
    all.iter().filter(|(port, bytes)| !vague(*port, bytes)).collect()
}

/// What of `all` is left without each of `these`, if they are there.
fn without<T: PartialEq + Clone>(all: &[T], these: &[T]) -> Option<Vec<T>> {
    let mut rest = all.to_vec();
    for one in these {
        rest.swap_remove(rest.iter().position(|it| it == one)?);
    }
    Some(rest)
}
