//! Which candidate should have which bucket: weighted rendezvous. Candidates are members of a group, or next
//! hops of a router.
//!
//! For each bucket each candidate draws a number from its name and the bucket's; the highest, by the weights,
//! has the bucket (Thaler and Ravishankar, "Using name-based mappings to increase hit rates"; for weights:
//! Resch, "New hashing algorithms for data storage"). So who else is there changes no draw: one that comes
//! takes its share from all others and nothing else moves, and one that goes leaves its buckets to all others
//! by their weights.

use std::hash::{DefaultHasher, Hash, Hasher};

/// One that takes flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its number.
    pub number: u8,
    /// What its draws are made of: the same for a name on every day.
    seed: u64,
    /// Its share beside those of others.
    weight: u32,
}

impl Candidate {
    /// The one of this name and weight.
    pub fn new(number: u8, name: impl Hash, weight: u32) -> Candidate {
        // Without a key of its own this hasher is the same in each process.
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        Candidate { number, seed: hasher.finish(), weight }
    }

    /// What it draws for `bucket`: the least one has it. The logarithm of a uniform draw, divided by a
    /// weight, is an exponential variable of that rate, and the chance that one of several is the least is
    /// its part of their rates.
    fn draw(&self, bucket: usize) -> f64 {
        // splitmix64 (Steele, Lea and Flood).
        let mut z = self.seed.wrapping_add((bucket as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        // 53 bits, in the middle between two of their values: never 0 or 1.
        let uniform = ((z >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        -uniform.ln() / f64::from(self.weight)
    }
}

/// The number of the one of these that has `bucket`.
pub fn owner<'c>(candidates: impl IntoIterator<Item = &'c Candidate>, bucket: usize) -> Option<u8> {
    let draws = candidates.into_iter().map(|it| (it.draw(bucket), it.number));
    draws.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, number)| number)
}

/// The member of a group that each bucket should have.
pub struct Shares {
    candidates: Vec<Candidate>,
    /// The member that should have each bucket.
    pub winners: Box<[Option<u8>]>,
}

impl Shares {
    /// `buckets` of them, without a member.
    pub fn new(buckets: usize) -> Shares {
        Shares { candidates: Vec::new(), winners: vec![None; buckets].into() }
    }

    /// The buckets belong to these now. Draws only what has changed.
    pub fn set(&mut self, candidates: &[Candidate]) {
        let is_old = |it: &&Candidate| self.candidates.contains(it);
        let fresh: Vec<&Candidate> = candidates.iter().filter(|it| !is_old(it)).collect();
        if fresh.is_empty() && candidates.len() == self.candidates.len() {
            return;
        }
        let (all, stay): (Vec<&Candidate>, Vec<_>) =
            (candidates.iter().collect(), candidates.iter().filter(is_old).collect());
        for (bucket, winner) in self.winners.iter_mut().enumerate() {
            let champion = stay.iter().find(|it| Some(it.number) == *winner);
            let rivals = if champion.is_some() { &fresh } else { &all };
            *winner = owner(champion.into_iter().chain(rivals).copied(), bucket);
        }
        self.candidates = candidates.to_vec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(weights: &[u32]) -> Vec<Candidate> {
        (0..).zip(weights).map(|(n, weight)| Candidate::new(n, format!("m{n}"), *weight)).collect()
    }

    fn counts(shares: &Shares) -> [usize; 8] {
        std::array::from_fn(|n| {
            shares.winners.iter().filter(|it| it.is_some_and(|it| usize::from(it) == n)).count()
        })
    }

    #[test]
    fn shares_are_as_weights_and_only_what_must_moves() {
        let mut shares = Shares::new(1 << 16);
        let eight = members(&[100; 8]);
        shares.set(&eight);
        let mean = (1 << 16) / 8;
        assert!(counts(&shares).iter().all(|n| n.abs_diff(mean) < mean / 25), "{:?}", counts(&shares));
        let before = shares.winners.to_vec();
        // One goes: only its buckets move, and when it comes back they are its own again.
        shares.set(&[&eight[..3], &eight[4..]].concat());
        let moved = |a: &[Option<u8>], b: &[Option<u8>]| {
            a.iter().zip(b).filter(|(a, b)| a != b && **a != Some(3)).count()
        };
        assert_eq!((moved(&before, &shares.winners), counts(&shares)[3]), (0, 0));
        shares.set(&eight);
        assert_eq!(shares.winners, (&*before).into());
        // As if it had been so from the start.
        let uneven = members(&[100, 300, 100, 100, 200, 50, 50, 100]);
        shares.set(&uneven);
        let mut fresh = Shares::new(1 << 16);
        fresh.set(&uneven);
        assert_eq!(shares.winners, fresh.winners);
        for (n, of) in counts(&shares).iter().zip([100, 300, 100, 100, 200, 50, 50, 100]) {
            let wanted = (1 << 16) * of / 1000;
            assert!(n.abs_diff(wanted) < wanted / 10, "{n} of {wanted}");
        }
        shares.set(&[]);
        assert!(shares.winners.iter().all(Option::is_none));
    }
}
