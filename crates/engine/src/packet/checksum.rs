//! The Internet checksum (RFC 1071).
//!
//! Ones' complement addition does not care for word size or byte order (RFC 1071 §2), so bytes are taken
//! eight at a time in the machine's own order and folded once per slice. Both halves of each word go to
//! accumulators of their own: no carry to look after, and the compiler can use vector registers.

/// A running ones' complement sum over bytes that arrive in slices of any length, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    sum: u16,
    /// An odd number of bytes was added: the next byte is the low half of a 16-bit word.
    odd: bool,
}

impl Sum {
    /// The sum of one slice.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut sum = Sum::default();
        sum.add(bytes);
        sum
    }

    /// The sum of the pseudo header of TCP and UDP. `src` and `dst` are both 4 bytes (RFC 9293 §3.1) or both
    /// 16 (RFC 8200 §8.1): the two layouts differ only in zeros, which a sum does not see. `len` counts the
    /// transport header and its payload, in bytes.
    #[must_use]
    pub fn pseudo(src: &[u8], dst: &[u8], protocol: u8, len: usize) -> Self {
        let mut sum = Sum::of(src);
        sum.add(dst);
        sum.add(&u32::from(protocol).to_be_bytes());
        sum.add(&len.to_be_bytes());
        sum
    }

    /// Adds the bytes that follow those added so far.
    pub fn add(&mut self, bytes: &[u8]) {
        self.append(Sum { sum: raw(bytes), odd: bytes.len() % 2 == 1 });
    }

    /// Adds a sum that was made apart, over the bytes that follow those added so far.
    pub fn append(&mut self, next: Sum) {
        // RFC 1071 §2(B): a sum that begins in the middle of a word is the same sum with its bytes swapped.
        let next_sum = if self.odd { next.sum.swap_bytes() } else { next.sum };
        self.sum = plus(self.sum, next_sum);
        self.odd ^= next.odd;
    }

    /// The sum itself, as seeded into a checksum field for the receiver to complete.
    #[must_use]
    pub fn value(self) -> u16 {
        self.sum
    }

    /// The checksum: the complement of the sum.
    #[must_use]
    pub fn checksum(self) -> u16 {
        !self.sum
    }
}

/// Whether the checksum of an IPv4 header without options is right (RFC 791 §3.1): its sum is all ones.
#[inline]
#[must_use]
pub fn is_right(header: &[u8; 20]) -> bool {
    let [a, b] = [0, 8]
        .map(|at| header.get(at..).and_then(<[u8]>::first_chunk).copied().map_or(0, u64::from_ne_bytes));
    let c = header.last_chunk().copied().map_or(0, u32::from_ne_bytes);
    // In 128 bits no carry is lost; whether all bits are set does not depend on the order of bytes.
    let sum = u128::from(a) + u128::from(b) + u128::from(c);
    #[expect(clippy::cast_possible_truncation, reason = "halves")]
    let (low, high) = (sum as u64, (sum >> 64) as u64);
    let sum = (low & 0xffff_ffff) + (low >> 32) + high;
    let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    (sum & 0xffff) + (sum >> 16) == 0xffff
}

/// The checksum of data in which one aligned 16-bit word changed from `old` to `new` (RFC 1624 §3, eqn. 3).
#[must_use]
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    !plus(plus(!checksum, !old), new)
}

/// Addition with end-around carry.
fn plus(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u16::from(carry) // cannot overflow: with a carry the sum is at most 0xfffe
}

/// The folded sum of a slice, as a number in network order; a last odd byte is the high half of its word.
fn raw(bytes: &[u8]) -> u16 {
    let chunks = bytes.chunks_exact(8);
    let mut rest = chunks.remainder();
    let (mut low, mut high) = (0u64, 0u64);
    for chunk in chunks {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        let n = u64::from_ne_bytes(word);
        // Wrapping would need 2³² words, 32 GiB in one slice.
        low = low.wrapping_add(n & 0xffff_ffff);
        high = high.wrapping_add(n >> 32);
    }
    // The rest by its binary digits: copying it to a zeroed word costs more than the sum of a whole IP
    // header.
    if let Some((word, after)) = rest.split_first_chunk() {
        high = high.wrapping_add(u32::from_ne_bytes(*word).into());
        rest = after;
    }
    if let Some((word, after)) = rest.split_first_chunk() {
        high = high.wrapping_add(u16::from_ne_bytes(*word).into());
        rest = after;
    }
    if let [last] = *rest {
        high = high.wrapping_add(u16::from_ne_bytes([last, 0]).into());
    }
    u16::from_be(plus(fold(low), fold(high)))
}

/// Folds the four 16-bit words of `n` into one.
fn fold(n: u64) -> u16 {
    let n = (n & 0xffff_ffff) + (n >> 32);
    let n = (n & 0xffff) + (n >> 16 & 0xffff) + (n >> 32);
    let n = (n & 0xffff) + (n >> 16);
    (((n & 0xffff) + (n >> 16)) & 0xffff) as u16
}
