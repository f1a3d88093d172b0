//! Parts of slices that never panic: what is beyond the end is left out.
//!
//! Lengths and places here come from headers that guests wrote. They were bounded where they were read; a
//! bound that is wrong after all must cost a frame, not the daemon.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

/// The first `end` values, or all.
pub fn upto<T>(all: &[T], end: usize) -> &[T] {
    all.get(..end).unwrap_or(all)
}

/// As [`upto`], to write.
pub fn upto_mut<T>(all: &mut [T], end: usize) -> &mut [T] {
    let end = end.min(all.len());
    all.get_mut(..end).unwrap_or_default()
}

/// What is behind the first `begin` values, if anything is.
pub fn behind<T>(all: &[T], begin: usize) -> &[T] {
    all.get(begin..).unwrap_or_default()
}

/// As [`behind`], to write.
pub fn behind_mut<T>(all: &mut [T], begin: usize) -> &mut [T] {
    all.get_mut(begin..).unwrap_or_default()
}

/// Copies `from` to the place `at` of `to`, as far as it fits.
#[inline]
pub fn put(to: &mut [u8], at: usize, from: &[u8]) {
    behind_mut(to, at).iter_mut().zip(from).for_each(|(to, from)| *to = *from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beyond_the_end_is_left_out() {
        let mut all = [1u8, 2, 3];
        assert_eq!(
            (upto(&all, 2), upto(&all, 4), behind(&all, 2), behind(&all, 4)),
            (&[1, 2][..], &[1, 2, 3][..], &[3][..], &[][..])
        );
        upto_mut(&mut all, 9).fill(4);
        behind_mut(&mut all, 2).fill(5);
        assert!(behind_mut(&mut all, 9).is_empty());
        put(&mut all, 1, &[6, 7, 8]);
        assert_eq!(all, [4, 6, 7]);
    }
}
