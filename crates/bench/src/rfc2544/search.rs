//! The search for the loads up to which goals are kept: Multiple Loss Ratio Search (RFC 9971), as pure
//! functions of what trials have said so far.
//!
//! Theory of operation. The search keeps all trials by their load and asks for the next one, until no goal
//! has a question. For each goal two targets follow one another: a coarse one, whose short trials come near,
//! and the goal itself, which tries the coarse one's bounds first. The first trial is at the greatest load:
//! what arrives of it is a good guess. From a bound with nothing on its other side steps double; between two
//! bounds the middle is tried, or what is a step away if that is nearer. What one goal has tried counts for
//! all. No result depends on anything but the trials, so a test can play any device.

use std::collections::BTreeMap;

use super::goal::{Class, Goal, Seen};
use crate::prelude::*;

/// More trials than any search needs: a device that answers at random all the time ends here.
const MOST: usize = 2000;

/// A search.
#[derive(Clone, Debug)]
pub struct Search {
    goals: Vec<Goal>,
    /// Least and greatest load, in frames a second.
    least: u64,
    most: u64,
    trials: BTreeMap<u64, Vec<Seen>>,
    count: usize,
}

/// What a search has found for one goal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// The relevant lower bound. None: even the least load is beyond the goal.
    pub lower: Option<u64>,
    /// The relevant upper bound. None: even the greatest load is within the goal.
    pub upper: Option<u64>,
    /// What arrives of the lower bound in the trials that the goal asks for.
    pub conditional: f64,
    /// Frames a second offered at the lower bound, times the seconds of full-length trials there.
    pub frames: f64,
}

impl Search {
    /// For these goals, the one that allows most loss first, between these loads.
    pub fn new(goals: &[Goal], least: u64, most: u64) -> Search {
        let least = least.max(1);
        Search { goals: goals.to_vec(), least, most: most.max(least), trials: BTreeMap::new(), count: 0 }
    }

    /// The next trial: load in frames a second, and seconds. None: all is found.
    pub fn next(&self) -> Option<(u64, f64)> {
        let mut hints = Vec::new();
        for goal in &self.goals {
            for target in [goal.coarse(), *goal] {
                if let Some(load) = self.ask(&target, &hints) {
                    return (self.count < MOST).then_some((load, target.trial));
                }
                let (lower, upper) = self.bounds(&target);
                // The last ones first.
                hints.splice(0..0, lower.into_iter().chain(upper));
            }
        }
        None
    }

    /// What came of a trial.
    pub fn add(&mut self, load: u64, seen: Seen) {
        self.trials.entry(load).or_default().push(seen);
        self.count += 1;
    }

    /// Trials so far.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.count
    }

    /// What was found for goal number `goal`.
    pub fn found(&self, goal: usize) -> Option<Found> {
        let goal = self.goals.get(goal)?;
        let (lower, upper) = self.bounds(goal);
        let at = lower.and_then(|load| Some((load as f64, self.trials.get(&load)?)));
        let full =
            at.map(|(_, trials)| trials.iter().filter(|it| it.seconds >= goal.trial).map(|it| it.seconds));
        Some(Found {
            lower,
            upper,
            conditional: at.map_or(0.0, |(load, trials)| goal.conditional(load, trials)),
            frames: at.zip(full).map_or(0.0, |((load, _), seconds)| load * seconds.sum::<f64>()),
        })
    }

    /// Relevant bounds: the least upper one, and the greatest lower one below it.
    fn bounds(&self, goal: &Goal) -> (Option<u64>, Option<u64>) {
        let classes = || self.trials.iter().map(|(load, trials)| (*load, goal.classify(trials)));
        let upper = classes().find(|(_, class)| *class == Class::Upper).map(|(load, _)| load);
        let mut below = classes()
            .filter(|(load, class)| *class == Class::Lower && upper.is_none_or(|upper| *load < upper));
        (below.next_back().map(|(load, _)| load), upper)
    }

    /// At which load a target wants another trial.
    fn ask(&self, goal: &Goal, hints: &[u64]) -> Option<u64> {
        let (lower, upper) = self.bounds(goal);
        match (lower, upper) {
            (Some(lower), Some(upper)) if (upper - lower) as f64 <= goal.width * upper as f64 => return None,
            (Some(lower), None) if lower == self.most => return None,
            (None, Some(upper)) if upper == self.least => return None,
            _ => {}
        }
        let inside = |load: u64| lower.is_none_or(|it| load > it) && upper.is_none_or(|it| load < it);
        // What was begun is finished.
        let time = |trials: &[Seen]| -> f64 {
            trials.iter().filter(|it| it.seconds >= goal.trial).map(|it| it.seconds).sum()
        };
        let begun = self.trials.iter().filter(|(load, _)| inside(**load)).map(|(load, t)| (*load, time(t)));
        if let Some((load, _)) = begun.filter(|it| it.1 > 0.0).max_by(|a, b| a.1.total_cmp(&b.1)) {
            return Some(load);
        }
        if let Some(load) = hints.iter().find(|load| inside(**load)) {
            return Some(*load);
        }
        let count = |class: Class| self.trials.values().filter(|it| goal.classify(it) == class).count();
        let step = |class| (goal.width * f64::from(1u32 << count(class).min(20))).min(0.5);
        let (up, down) = (step(Class::Lower), step(Class::Upper));
        let wanted = match (lower.map(|it| it as f64), upper.map(|it| it as f64)) {
            (None, None) => self.most as f64,
            (Some(lower), None) => lower * (1.0 + up),
            (None, Some(upper)) => {
                let guess = self.arrived(upper);
                let step = upper * (1.0 - down);
                if guess < step && count(Class::Upper) == 1 {
                    guess * (1.0 - goal.width / 2.0)
                } else {
                    step
                }
            }
            (Some(lower), Some(upper)) => (lower * upper).sqrt().min(lower * (1.0 + up)),
        };
        // A load between the bounds, or none if they are neighbours.
        let (floor, ceiling) = (lower.map_or(self.least, |it| it + 1), upper.map_or(self.most, |it| it - 1));
        (floor <= ceiling).then(|| whole(wanted.round()).clamp(floor, ceiling))
    }

    /// What arrives a second of an upper bound.
    fn arrived(&self, load: f64) -> f64 {
        let trials = self.trials.get(&whole(load.round())).map_or(&[][..], Vec::as_slice);
        let worst = trials.iter().map(|it| it.loss_ratio).fold(0.0, f64::max);
        load * (1.0 - worst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers from 0 to 1, the same in each run.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> f64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    const PDR: usize = 0;
    const NDR: usize = 1;

    fn goals(exceed_ratio: f64) -> [Goal; 2] {
        let ndr = Goal { loss_ratio: 0.0, exceed_ratio, trial: 1.0, duration_sum: 5.0, width: 0.005 };
        [Goal { loss_ratio: 0.005, ..ndr }, ndr]
    }

    /// Plays a search against a device that says what is lost of a load in so many seconds.
    fn play(most: u64, exceed_ratio: f64, mut device: impl FnMut(f64, f64) -> f64) -> Search {
        let mut search = Search::new(&goals(exceed_ratio), 1000, most);
        while let Some((load, seconds)) = search.next() {
            assert!((1000..=most).contains(&load), "{load}");
            search.add(load, Seen { seconds, loss_ratio: device(load as f64, seconds) });
        }
        assert!(search.count() < MOST, "the search ends by itself");
        search
    }

    fn cliff(rate: f64) -> impl Fn(f64, f64) -> f64 {
        move |load, _| (1.0 - rate / load).max(0.0)
    }

    #[test]
    fn the_rate_of_a_device_is_between_its_bounds() {
        for rate in [1.3e3, 5.6e4, 7.77e5, 3.0e6, 1.2345e7, 1.99e7] {
            let search = play(20_000_000, 0.5, cliff(rate));
            for (goal, rate) in [(NDR, rate), (PDR, rate / 0.995)] {
                let found = search.found(goal).unwrap();
                let (lower, upper) = (found.lower.unwrap() as f64, found.upper.unwrap() as f64);
                assert!(lower <= rate && rate <= upper * 1.000_01, "{rate}: {found:?}");
                assert!((upper - lower) / upper <= 0.005, "{rate}: {found:?}");
                // Nothing was lost at the one; at the other, no more than allowed.
                assert!(found.conditional <= lower && found.conditional >= lower * 0.995, "{found:?}");
            }
            assert!(search.count() < 90, "{rate}: {} trials", search.count());
        }
    }

    #[test]
    fn a_device_beyond_the_ends_has_one_bound() {
        let fast = play(1_000_000, 0.5, |_, _| 0.0);
        assert_eq!(fast.found(NDR).map(|it| (it.lower, it.upper)), Some((Some(1_000_000), None)));
        assert!(fast.count() < 20);
        let dead = play(1_000_000, 0.5, |_, _| 1.0);
        let found = dead.found(NDR).unwrap();
        assert_eq!((found.lower, found.upper, found.conditional), (None, Some(1000), 0.0));
    }

    /// Now and then a trial loses some frames whatever its load is: the rule for half of the time finds the
    /// rate all the same, and the rule for all of the time does not.
    #[test]
    fn a_disturbed_trial_spoils_nothing() {
        let rate = 4.0e6;
        let noisy = |seed: u64| {
            let mut random = Random(seed);
            move |load: f64, seconds: f64| {
                let disturbed = random.next() < 0.12 * seconds;
                cliff(rate)(load, seconds).max(if disturbed { 1e-4 } else { 0.0 })
            }
        };
        let (mut tolerant, mut strict) = (0, 0);
        for seed in 1..=40 {
            let lower = |search: Search| search.found(NDR).unwrap().lower.unwrap_or(0) as f64;
            let is_near = |load: f64| (rate * 0.98..=rate).contains(&load);
            tolerant += u32::from(is_near(lower(play(20_000_000, 0.5, noisy(seed)))));
            strict += u32::from(is_near(lower(play(20_000_000, 0.0, noisy(seed)))));
        }
        assert!(tolerant >= 38 && strict <= 30, "{tolerant} and {strict} of 40 searches are near");
    }

    /// A device that loses single frames at random: without loss it can do little, with half a percent almost
    /// everything.
    #[test]
    fn a_lossy_line_has_a_pdr_and_hardly_an_ndr() {
        let (rate, each) = (4.0e6, 2e-6);
        let mut random = Random(7);
        let search = play(20_000_000, 0.5, |load, seconds| {
            let none = (-each * load * seconds).exp();
            cliff(rate)(load, seconds).max(if random.next() < none { 0.0 } else { each })
        });
        let (ndr, pdr) = (search.found(NDR).unwrap(), search.found(PDR).unwrap());
        let at = pdr.lower.unwrap() as f64;
        assert!((rate * 0.99..=rate / 0.995).contains(&at), "{pdr:?}");
        assert!((ndr.lower.unwrap_or(0) as f64) < 0.25 * rate, "{ndr:?}");
    }

    #[test]
    fn a_device_that_makes_no_sense_ends_the_search_too() {
        let mut random = Random(3);
        let search = play(20_000_000, 0.5, |_, _| if random.next() < 0.5 { 0.0 } else { 0.3 });
        assert!(search.found(NDR).is_some());
    }
}
