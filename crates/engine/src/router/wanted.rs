//! The destinations of a vector of frames, as the forwarding tables take them.

use sidecore_fib::NO_ROUTE;

use super::net::mapped;

/// Frames whose destinations are looked up together.
pub const VECTOR: usize = 32;

/// A family of addresses.
pub(super) trait Family: Copy + Default {
    const V6: bool;

    /// The address as a number of both families.
    fn number(self) -> u128;
}

impl Family for u32 {
    const V6: bool = false;

    fn number(self) -> u128 {
        mapped(self)
    }
}

impl Family for u128 {
    const V6: bool = true;

    fn number(self) -> u128 {
        self
    }
}

/// Destinations of a vector's frames, those of one family.
pub(super) struct Wanted<A> {
    pub count: usize,
    /// The places of their frames in the vector.
    of: [u8; VECTOR],
    addresses: [A; VECTOR],
    /// The groups that they lead to.
    groups: [u32; VECTOR],
}

impl<A: Family> Wanted<A> {
    pub fn new() -> Wanted<A> {
        Wanted { count: 0, of: [0; VECTOR], addresses: [A::default(); VECTOR], groups: [NO_ROUTE; VECTOR] }
    }

    #[inline]
    pub fn push(&mut self, place: usize, address: A) {
        if let (Some(of), Some(to)) = (self.of.get_mut(self.count), self.addresses.get_mut(self.count)) {
            #[expect(clippy::cast_possible_truncation, reason = "below VECTOR")]
            {
                *of = place as u8;
            }
            *to = address;
            self.count += 1;
        }
    }

    /// Has `lookup` find the groups of all that is wanted.
    #[inline]
    pub fn find(&mut self, lookup: impl FnOnce(&[A], &mut [u32])) {
        if let (Some(addresses), true) = (self.addresses.get(..self.count), self.count > 0) {
            lookup(addresses, &mut self.groups);
        }
    }

    /// The places of frames, with the groups and addresses that were found for them.
    #[inline]
    pub fn found(&self) -> impl Iterator<Item = (usize, (u32, A))> + '_ {
        let found = self.of.iter().zip(&self.groups).zip(&self.addresses).take(self.count);
        found.map(|((of, group), address)| (usize::from(*of), (*group, *address)))
    }
}
