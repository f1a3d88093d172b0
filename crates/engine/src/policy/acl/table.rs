//! A list of rules, compiled.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sidecore_abi::counters::MAX_CORES;

use super::headers::{Headers, SEEN, WORDS};
use super::rule::{Action, Entry, Rule};

/// No rule.
const NONE: u32 = u32::MAX;
/// Words that are hashed: one more than there are, so that they are pairs.
const PAIRS: usize = WORDS.div_ceil(2);

/// A list of rules, compiled. See the module.
#[derive(Debug)]
pub struct Acl {
    /// Another one of each list that was ever compiled.
    pub(super) id: u32,
    /// The rules.
    pub rules: Vec<Rule>,
    /// Whether each rule, and the default behind them, lets frames pass: of a thousand rules 16 cache lines.
    permits: Box<[bool]>,
    /// By the first rule of each.
    shapes: Vec<Shape>,
    key: [u64; 2 * PAIRS],
    /// What each rule, and the default behind them, decided: by core.
    counts: Vec<Box<[AtomicU64]>>,
}

/// The entries of one mask.
#[derive(Debug)]
struct Shape {
    mask: [u64; WORDS],
    /// What has to be known of ports and flags.
    seen: u64,
    /// The earliest rule that has one.
    first: u32,
    /// A power of two of slots, at most half of them full.
    slots: Box<[Slot]>,
}

/// What the words are under the mask, and the earliest rule that says so: one cache line.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
struct Slot {
    value: [u64; WORDS],
    rule: u32,
}

/// Both halves of a product, folded.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    #[expect(clippy::cast_possible_truncation, reason = "both halves")]
    {
        product as u64 ^ (product >> 64) as u64
    }
}

impl Acl {
    /// Compiles `rules`, and `default` for what none matches. Nobody must know the `key`: who does can choose
    /// frames that take long to look for.
    pub fn compile(rules: Vec<Rule>, default: Action, key: [u64; 2 * 4]) -> Acl {
        static IDS: AtomicU32 = AtomicU32::new(1);
        let actions = rules.iter().map(|rule| rule.action).chain([default]);
        let mut acl = Acl {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            permits: actions.map(|action| action == Action::Permit).collect(),
            shapes: Vec::new(),
            key,
            counts: (0..MAX_CORES).map(|_| (0..=rules.len()).map(|_| AtomicU64::new(0)).collect()).collect(),
            rules,
        };
        // The entries of a mask: what the words are, and the rule.
        type Values = Vec<([u64; WORDS], u32)>;
        let mut found: Vec<([u64; WORDS], Values)> = Vec::new();
        for (number, rule) in (0..).zip(&acl.rules) {
            for entry in &rule.entries {
                match found.iter_mut().find(|(mask, _)| *mask == entry.mask) {
                    Some((_, entries)) => entries.push((entry.value, number)),
                    None => found.push((entry.mask, vec![(entry.value, number)])),
                }
            }
        }
        // They were found in the order of their first rules.
        acl.shapes = found.into_iter().map(|(mask, entries)| acl.shape(mask, &entries)).collect();
        acl
    }

    fn shape(&self, mask: [u64; WORDS], entries: &[([u64; WORDS], u32)]) -> Shape {
        let empty = Slot { value: [0; WORDS], rule: NONE };
        let mut slots = vec![empty; (entries.len() * 2).next_power_of_two()].into_boxed_slice();
        for (value, rule) in entries {
            let last = slots.len() - 1;
            let mut at = self.hash(value) & last;
            while slots[at].rule != NONE && slots[at].value != *value {
                at = (at + 1) & last;
            }
            // An earlier rule that says the same stays.
            if slots[at].rule == NONE {
                slots[at] = Slot { value: *value, rule: *rule };
            }
        }
        let seen = mask[SEEN.0] & SEEN.all();
        Shape { mask, seen, first: entries.first().map_or(NONE, |(_, rule)| *rule), slots }
    }

    /// Keyed; the products do not wait for each other.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "all its bits are as good")]
    pub(super) fn hash(&self, words: &[u64; WORDS]) -> usize {
        let [a, b, c, d, e, f, g] = *words;
        let [i, j, k, l, m, n, o, p] = self.key;
        let hash = fold(a ^ i, b ^ j) ^ fold(c ^ k, d ^ l) ^ fold(e ^ m, f ^ n) ^ fold(g ^ o, p);
        hash as usize
    }

    /// The number of the rule that decides on frames with these words; that behind the last rule is the
    /// default's.
    pub fn find(&self, headers: &Headers) -> usize {
        let mut best = NONE;
        for shape in &self.shapes {
            if shape.first >= best {
                break;
            }
            if headers.0[SEEN.0] & shape.seen != shape.seen {
                continue;
            }
            let words: [u64; WORDS] = std::array::from_fn(|n| headers.0[n] & shape.mask[n]);
            best = self.look(shape, &words).map_or(best, |rule| best.min(rule));
        }
        (best as usize).min(self.rules.len())
    }

    /// Rules that can never match, each with an earlier one that has all of its frames. What several earlier
    /// rules have together is not found, nor what one of many entries has.
    pub fn hidden(&self) -> Vec<(usize, usize)> {
        let earlier = |entry: &Entry| -> Vec<u32> {
            let wider = |shape: &&Shape| (0..WORDS).all(|n| shape.mask[n] & !entry.mask[n] == 0);
            let under = |shape: &Shape| std::array::from_fn(|n| entry.value[n] & shape.mask[n]);
            self.shapes.iter().filter(wider).filter_map(|shape| self.look(shape, &under(shape))).collect()
        };
        let found = |(number, rule): (usize, &Rule)| {
            let (first, others) = rule.entries.split_first()?;
            let all = earlier(first).into_iter().filter(|it| (*it as usize) < number);
            let by = all.filter(|it| others.iter().all(|entry| earlier(entry).contains(it))).min()?;
            Some((number, by as usize))
        };
        self.rules.iter().enumerate().filter_map(found).collect()
    }

    /// The earliest rule with an entry of `shape` for these words.
    #[inline]
    fn look(&self, shape: &Shape, words: &[u64; WORDS]) -> Option<u32> {
        let last = shape.slots.len() - 1;
        let mut at = self.hash(words) & last;
        // At least half of them are empty.
        while let Some(slot) = shape.slots.get(at).filter(|slot| slot.rule != NONE) {
            if slot.value == *words {
                return Some(slot.rule);
            }
            at = (at + 1) & last;
        }
        None
    }

    /// Whether the rule of that number, or the default, lets frames pass.
    #[inline]
    pub fn permits(&self, rule: usize) -> bool {
        self.permits.get(rule).is_some_and(|permits| *permits)
    }

    /// A rule, or the default, has decided on a frame, on this core.
    #[inline]
    pub fn count(&self, core: usize, rule: usize) {
        if let Some(count) = self.counts.get(core).and_then(|counts| counts.get(rule)) {
            // One core writes it.
            count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// Frames on which each rule decided, and behind them the default.
    pub fn counts(&self) -> Vec<u64> {
        let of = |rule: usize| self.counts.iter().map(|core| core[rule].load(Ordering::Relaxed)).sum();
        (0..=self.rules.len()).map(of).collect()
    }
}
