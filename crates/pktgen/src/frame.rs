//! Frames that are made: Ethernet, IPv4, UDP, a payload, with the addresses of ranges taking turns.

use super::address::{Endpoints, Mac};
use super::end::Source;

/// Where the payload of UDP starts.
pub const PAYLOAD: usize = 42;
const IP: usize = 14;
const UDP: usize = 34;
const TEXT: &[u8] = b"sidecore pkt-gen ";

/// What frames are like.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// Least and greatest length.
    pub length: [usize; 2],
    /// Sender and receiver.
    pub mac: [Mac; 2],
    /// Source and destination.
    pub endpoints: [Endpoints; 2],
    /// Which of these are drawn at random.
    pub random: [bool; 2],
    /// Whether UDP carries a checksum.
    pub checksum: bool,
}

/// Makes frames.
#[derive(Clone, Debug)]
pub struct Maker {
    form: Form,
    /// The last frame made, in full length.
    frame: Vec<u8>,
    /// Turns of source and destination.
    turn: [u64; 2],
    /// Whether there are several combinations.
    many: bool,
    /// Sum over all that UDP's checksum covers, but addresses and ports.
    rest: u32,
    random: Random,
}

/// Random enough for addresses: xorshift64*, the same sequence in each run.
#[derive(Clone, Copy, Debug)]
pub struct Random(u64);

impl Random {
    /// Sequence number `seed`.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `bound`, which is not 0.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound
    }
}

/// Sum of 16-bit words in network order, not yet folded (RFC 1071).
pub fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum()
}

/// The checksum of such a sum.
#[inline]
pub fn folded(mut sum: u32) -> [u8; 2] {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let [_, _, high, low] = (!sum).to_be_bytes();
    [high, low]
}

impl Maker {
    /// A maker whose random numbers are those of `seed`.
    pub fn new(form: Form, seed: u64) -> Maker {
        let [_, longest] = form.length;
        let mut frame = vec![0; longest.max(PAYLOAD)];
        for (byte, text) in frame[PAYLOAD..].iter_mut().zip(TEXT.iter().cycle()) {
            *byte = *text;
        }
        frame[..6].copy_from_slice(&form.mac[1].0);
        frame[6..12].copy_from_slice(&form.mac[0].0);
        // IPv4 (RFC 791 §3.1): 20 bytes of header, do not fragment, TTL 64, UDP.
        frame[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17]);
        let many = form.endpoints.iter().any(|range| range.combinations() > 1);
        let mut maker = Maker { form, frame, turn: [0; 2], many, rest: 0, random: Random::new(seed) };
        maker.set_length(longest);
        maker.set_addresses();
        maker
    }

    /// Different combinations of addresses.
    pub fn flows(&self) -> u128 {
        self.form.endpoints.iter().map(|range| u128::from(range.combinations())).product()
    }

    /// Sends to `mac` from now on.
    pub fn set_destination(&mut self, mac: Mac) {
        self.frame[..6].copy_from_slice(&mac.0);
    }

    /// Starts with the first combination of addresses again.
    pub fn rewind(&mut self) {
        self.turn = [0; 2];
        self.set_addresses();
    }

    /// A frame of `len` bytes with the addresses of this turn. Its headers say so: a router between drops an
    /// IP packet that is shorter than it claims.
    pub fn short(&self, len: usize) -> Vec<u8> {
        let mut maker = self.clone();
        maker.set_length(len);
        maker.set_addresses();
        maker.frame.truncate(len);
        maker.frame
    }

    fn set_length(&mut self, len: usize) {
        let word = |n: usize| u16::try_from(n).unwrap_or(u16::MAX).to_be_bytes();
        self.frame[16..18].copy_from_slice(&word(len.max(PAYLOAD) - IP));
        self.frame[38..40].copy_from_slice(&word(len.max(PAYLOAD) - UDP));
        self.frame[40..42].fill(0);
        let payload = sum(&self.frame[PAYLOAD..len.max(PAYLOAD)]);
        // The pseudo header's protocol and length, and the length in UDP's own header (RFC 768).
        self.rest = payload + 17 + 2 * sum(&self.frame[38..40]);
    }

    /// Puts the addresses of this turn in place, and both checksums.
    fn set_addresses(&mut self) {
        for (i, range) in self.form.endpoints.iter().enumerate() {
            let (ip, port) = range.get(self.turn[i]);
            self.frame[26 + 4 * i..30 + 4 * i].copy_from_slice(&ip.to_be_bytes());
            self.frame[UDP + 2 * i..UDP + 2 + 2 * i].copy_from_slice(&port.to_be_bytes());
        }
        self.frame[24..26].fill(0);
        let header = folded(sum(&self.frame[IP..UDP]));
        self.frame[24..26].copy_from_slice(&header);
        if self.form.checksum {
            // 0 would mean that there is none.
            let bytes = match folded(self.rest + sum(&self.frame[26..38])) {
                [0, 0] => [0xff, 0xff],
                bytes => bytes,
            };
            self.frame[40..42].copy_from_slice(&bytes);
        }
    }

    /// Takes the next combination of addresses: sources take turns first.
    pub fn advance(&mut self) {
        let mut carry = true;
        for i in 0..2 {
            let len = self.form.endpoints[i].combinations();
            if self.form.random[i] {
                self.turn[i] = self.random.below(len);
            } else if carry {
                self.turn[i] += 1;
                carry = self.turn[i] == len;
                if carry {
                    self.turn[i] = 0;
                }
            }
        }
        self.set_addresses();
    }
}

impl Source for Maker {
    fn fixed(&self) -> Option<usize> {
        let [least, most] = self.form.length;
        (least == most && !self.many).then_some(most)
    }

    fn write(&mut self, buffer: &mut [u8]) -> usize {
        let [least, most] = self.form.length;
        let mut len = most;
        if least < most {
            let spread = (most - least + 1) as u64;
            len = least + usize::try_from(self.random.below(spread)).unwrap_or(0);
            self.set_length(len);
            self.set_addresses();
        }
        buffer[..len].copy_from_slice(&self.frame[..len]);
        if self.many {
            self.advance();
        }
        len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(length: [usize; 2], source: &str, checksum: bool) -> Form {
        let mac = [Mac([2, 0, 0, 0, 0, 1]), Mac([0xff; 6])];
        let endpoints = [source.parse().unwrap(), "10.1.0.1".parse().unwrap()];
        Form { length, mac, endpoints, random: [false; 2], checksum }
    }

    /// Both checksums are right, by summing up everything anew.
    fn check(frame: &[u8], with_udp: bool) {
        let length = |at: usize| usize::from(frame[at]) << 8 | usize::from(frame[at + 1]);
        assert_eq!((length(16), length(38)), (frame.len() - IP, frame.len() - UDP));
        assert_eq!(folded(sum(&frame[IP..UDP])), [0, 0]);
        let pseudo = sum(&frame[26..34]) + 17 + u32::try_from(frame.len() - UDP).unwrap();
        let udp = folded(pseudo + sum(&frame[UDP..]));
        if with_udp {
            assert_eq!(udp, [0, 0]);
        } else {
            assert_eq!(frame[40..42], [0, 0]);
        }
    }

    #[test]
    fn frames_are_right_whatever_their_length_and_addresses() {
        let mut buffer = [0; 2000];
        for len in [60, 61, 64, 1500, 1514] {
            let mut maker = Maker::new(form([len, len], "10.0.0.1:9-10.0.0.3:11", true), 1);
            assert_eq!(maker.fixed(), None);
            let mut seen = std::collections::BTreeSet::new();
            for _ in 0..18 {
                assert_eq!(maker.write(&mut buffer), len);
                check(&buffer[..len], true);
                seen.insert(buffer[26..38].to_vec());
            }
            assert_eq!(seen.len(), 9);
        }
        let mut maker = Maker::new(form([60, 600], "10.0.0.1", true), 1);
        let lengths: std::collections::BTreeSet<usize> = (0..2000)
            .map(|_| {
                let len = maker.write(&mut buffer);
                check(&buffer[..len], true);
                len
            })
            .collect();
        assert!(lengths.len() > 400 && lengths.first() >= Some(&60) && lengths.last() <= Some(&600));
        check(&maker.short(60), true);
        let mut short = Maker::new(form([16, 16], "10.0.0.1", true), 1);
        assert_eq!((short.fixed(), short.write(&mut buffer)), (Some(16), 16));
        let mut bare = Maker::new(form([60, 60], "10.0.0.1-10.0.0.2", false), 1);
        bare.write(&mut buffer);
        check(&buffer[..60], false);
    }
}
