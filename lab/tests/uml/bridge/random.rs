//! Numbers that are the same each time for one seed.

/// Numbers from a seed (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// As [`Random::below`], of bytes.
    pub fn size(&mut self, end: usize) -> usize {
        usize::try_from(self.below(end as u64)).unwrap_or(0)
    }

    pub fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    /// True in so many of a hundred cases.
    pub fn percent(&mut self, cases: u64) -> bool {
        self.below(100) < cases
    }

    pub fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.next()).unwrap_or(0) % of.len()]
    }
}
