//! Routing tables and addresses that look like the Internet's, the same each time.

use crate::prelude::*;

/// Numbers that look random (xorshift64*, Vigna 2016).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// 32 bits.
    pub fn word(&mut self) -> u32 {
        let [a, b, c, d, ..] = self.next().to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }

    /// A number from 1 to `last`.
    fn upto(&mut self, last: u32) -> u32 {
        u32::try_from(self.below(last.into())).unwrap_or(0) + 1
    }

    /// One of `all`, if there are any.
    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        usize::try_from(self.below(all.len() as u64)).ok().and_then(|at| all.get(at)).copied()
    }

    fn pick(&mut self, weights: &[(u8, u32)]) -> u8 {
        let mut left = self.below(weights.iter().map(|(_, weight)| u64::from(*weight)).sum());
        for (value, weight) in weights {
            match left.checked_sub((*weight).into()) {
                Some(less) => left = less,
                None => return *value,
            }
        }
        0
    }
}

/// Lengths of prefixes in thousandths, as in the IPv4 tables of the Internet's core, with a hundredth of
/// longer ones as a provider's own table has them.
const LENGTHS_V4: [(u8, u32); 19] = [
    (24, 600),
    (23, 100),
    (22, 115),
    (21, 50),
    (20, 45),
    (19, 25),
    (18, 13),
    (17, 8),
    (16, 13),
    (15, 2),
    (14, 2),
    (13, 1),
    (12, 1),
    (32, 10),
    (30, 5),
    (29, 4),
    (28, 3),
    (26, 2),
    (25, 1),
];
/// Lengths of prefixes as in tables of IPv6.
const LENGTHS_V6: [(u8, u32); 14] = [
    (48, 470),
    (44, 80),
    (40, 110),
    (36, 60),
    (32, 130),
    (46, 30),
    (47, 20),
    (42, 20),
    (29, 20),
    (33, 20),
    (34, 10),
    (64, 10),
    (128, 5),
    (56, 15),
];
/// Routes stand close together: in so many /12s.
const REGIONS: u64 = 1800;
/// Next-hop groups.
const GROUPS: u32 = 1000;

/// A route: address, length, group.
pub type Route<A> = (A, u8, u32);

/// `routes` different IPv4 prefixes.
pub fn v4(routes: usize) -> Vec<Route<u32>> {
    let mut random = Random::new(4);
    let regions: Vec<u32> = (0..REGIONS).map(|_| (15 + random.upto(0xdf0 - 16)) << 20).collect();
    distinct(routes, || {
        let len = random.pick(&LENGTHS_V4);
        let region = random.one_of(&regions).unwrap_or(0);
        let address = region | (random.word() >> 12);
        (address & u32::MAX << (32 - u32::from(len)), len, random.upto(GROUPS))
    })
}

/// `routes` different IPv6 prefixes.
pub fn v6(routes: usize) -> Vec<Route<u128>> {
    let mut random = Random::new(6);
    let regions: Vec<u128> = (0..REGIONS)
        .map(|_| u128::from(0x2000 | random.below(0x0c00)) << 112 | u128::from(random.below(256)) << 104)
        .collect();
    distinct(routes, || {
        let len = random.pick(&LENGTHS_V6);
        let region = random.one_of(&regions).unwrap_or(0);
        let address = region | (u128::from(random.next()) << 64 | u128::from(random.next())) >> 24;
        (address & u128::MAX << (128 - u32::from(len)), len, random.upto(GROUPS))
    })
}

fn distinct<A: Copy + Eq + std::hash::Hash>(
    routes: usize,
    mut make: impl FnMut() -> Route<A>,
) -> Vec<Route<A>> {
    let mut seen = std::collections::HashSet::new();
    let mut all = Vec::with_capacity(routes);
    while all.len() < routes {
        let route = make();
        if seen.insert((route.0, route.1)) {
            all.push(route);
        }
    }
    all
}

named! {
    /// Where the addresses come from that are looked up.
    pub enum Keys {
        /// Anywhere.
        Random = "random",
        /// Below the prefixes of the table.
        Routed = "routed",
        /// 16,384 flows to addresses below prefixes of the table.
        Flows = "flows",
    }
}

impl Keys {
    /// `count` addresses; `below` makes one below a prefix.
    pub fn addresses<A: Copy>(
        self,
        routes: &[Route<A>],
        count: usize,
        any: impl Fn(&mut Random) -> A,
        below: impl Fn(&mut Random, Route<A>) -> A,
    ) -> Vec<A> {
        let mut random = Random::new(7 + self as u64);
        let routed = |random: &mut Random| match random.one_of(routes) {
            Some(route) => below(random, route),
            None => any(random),
        };
        match self {
            Keys::Random => (0..count).map(|_| any(&mut random)).collect(),
            Keys::Routed => (0..count).map(|_| routed(&mut random)).collect(),
            Keys::Flows => {
                let flows: Vec<A> = (0..16_384).map(|_| routed(&mut random)).collect();
                (0..count).filter_map(|_| random.one_of(&flows)).collect()
            }
        }
    }
}
