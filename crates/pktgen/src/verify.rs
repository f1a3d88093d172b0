//! `--verify`: numbered frames, checked and acknowledged.
//!
//! Theory of operation. A switch drops what does not fit into the receiver's ring and never holds a sender
//! up, so a sender that must not lose frames has to know what has arrived. Frames carry, behind the UDP
//! header:
//!
//! | byte | |
//! |---|---|
//! | 42 | `DA` data, `HE` hello, `AC` acknowledgement |
//! | 44 | number of the flow, 16 bits |
//! | 46 | number of the frame in its flow from 0; hello: 0; acknowledgement: data frames that have arrived; 64 bits |
//! | 54 | checksum over all other bytes, 32 bits |
//! | 58 | filler, eight bytes at a time: the number times an odd constant, plus 1, plus 2, … |
//!
//! Numbers are little-endian. A flow is one combination of addresses and ports. The sender says hello until
//! an acknowledgement comes, whose count is where it starts; that has made both addresses known to the
//! switch, too. Then it has at most `--window` frames under way. The receiver acknowledges every 128 frames,
//! and whenever nothing comes. Nothing is sent twice: a lost frame is what this is there to find. It ends the
//! run with an error at both ends.

use std::fmt;

use super::address::Mac;
use super::end::{Sink, Source, Taken};
use super::frame::{Maker, PAYLOAD};

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Numbered.
    Data,
    /// Asks whether a receiver is there.
    Hello,
    /// So many have arrived.
    Ack,
}

const KINDS: [(Kind, [u8; 2]); 3] = [(Kind::Data, *b"DA"), (Kind::Hello, *b"HE"), (Kind::Ack, *b"AC")];
const FLOW: usize = PAYLOAD + 2;
const NUMBER: usize = PAYLOAD + 4;
const SUM: usize = PAYLOAD + 12;
const FILLER: usize = PAYLOAD + 16;
/// The shortest frame that holds all this.
pub const SHORTEST: usize = 60;
/// Frames after which the receiver acknowledges.
pub const ACK_EVERY: u64 = 128;
/// Flows that can be told apart.
pub const MAX_FLOWS: u128 = 1 << 16;
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The checksum: 64-bit words, the last one filled up with zeros, each mixed in by XOR and a multiplication
/// by an odd constant; the upper half counts, which every bit before has reached.
fn checksum(frame: &[u8]) -> u32 {
    let mut hash = frame.len() as u64;
    let mut mix = |word: [u8; 8]| hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(ODD);
    for part in [&frame[..SUM], &frame[FILLER..]] {
        let mut words = part.chunks_exact(8);
        for word in words.by_ref() {
            mix(word.try_into().unwrap_or_default());
        }
        let rest = words.remainder();
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            mix(last);
        }
    }
    u32::try_from(hash >> 32).unwrap_or(0)
}

/// Writes mark, flow, number, filler and checksum into a frame of at least [`SHORTEST`] bytes.
pub fn seal(frame: &mut [u8], kind: Kind, flow: u16, number: u64) {
    let mark = KINDS.iter().find(|(k, _)| *k == kind).map_or([0; 2], |(_, mark)| *mark);
    frame[PAYLOAD..FLOW].copy_from_slice(&mark);
    frame[FLOW..NUMBER].copy_from_slice(&flow.to_le_bytes());
    frame[NUMBER..SUM].copy_from_slice(&number.to_le_bytes());
    let mut word = number.wrapping_mul(ODD);
    for chunk in frame[FILLER..].chunks_mut(8) {
        word = word.wrapping_add(1);
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
    let sum = checksum(frame).to_le_bytes();
    frame[SUM..FILLER].copy_from_slice(&sum);
}

/// What a frame says. `None`: it is none of ours. `Err`: it was, but has changed.
pub fn open(frame: &[u8]) -> Option<Result<(Kind, u16, u64), ()>> {
    let mark = frame.get(PAYLOAD..FLOW)?;
    let (kind, _) = KINDS.iter().find(|(_, m)| m == mark)?;
    if frame.len() < SHORTEST {
        return Some(Err(()));
    }
    let flow = u16::from_le_bytes([frame[FLOW], frame[FLOW + 1]]);
    let number = u64::from_le_bytes(frame[NUMBER..SUM].try_into().unwrap_or_default());
    let right = checksum(frame).to_le_bytes() == frame[SUM..FILLER];
    Some(if right { Ok((*kind, flow, number)) } else { Err(()) })
}

/// Makes numbered frames.
pub struct Numbered {
    maker: Maker,
    flows: u64,
    /// Flow and number of the next frame.
    next: (u64, u64),
}

impl Numbered {
    /// Frames of `maker`, each combination of addresses a flow.
    pub fn new(mut maker: Maker) -> Numbered {
        maker.rewind();
        let flows = u64::try_from(maker.flows()).unwrap_or(u64::MAX);
        Numbered { maker, flows, next: (0, 0) }
    }

    /// Sends to `mac` from now on.
    pub fn set_destination(&mut self, mac: Mac) {
        self.maker.set_destination(mac);
    }

    /// A frame that is no data.
    pub fn hello(&self) -> Once {
        let mut frame = self.maker.short(SHORTEST);
        seal(&mut frame, Kind::Hello, 0, 0);
        Once(frame)
    }
}

impl Source for Numbered {
    #[inline]
    fn write(&mut self, buffer: &mut [u8]) -> usize {
        let (flow, number) = self.next;
        let len = self.maker.write(buffer);
        seal(&mut buffer[..len], Kind::Data, u16::try_from(flow).unwrap_or(0), number);
        self.next = if flow + 1 == self.flows { (0, number + 1) } else { (flow + 1, number) };
        len
    }
}

/// One frame.
pub struct Once(pub Vec<u8>);

impl Source for Once {
    fn write(&mut self, buffer: &mut [u8]) -> usize {
        buffer[..self.0.len()].copy_from_slice(&self.0);
        self.0.len()
    }
}

/// What was found wrong, and how much was right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Findings {
    /// Numbered frames that arrived unchanged.
    pub verified: u64,
    /// Flows that they belong to.
    pub flows: u64,
    /// Numbers that were passed over.
    pub lost: u64,
    /// Frames that came after a later one of their flow, or twice.
    pub reordered: u64,
    /// Frames that had changed.
    pub corrupt: u64,
    /// Frames of others.
    pub foreign: u64,
}

impl Findings {
    /// Whether nothing was lost, reordered or changed.
    pub fn is_clean(&self) -> bool {
        self.lost == 0 && self.reordered == 0 && self.corrupt == 0
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Findings { verified, flows, lost, reordered, corrupt, foreign } = self;
        write!(f, "Verified {verified} packets of {flows} flows: {lost} lost, {reordered} reordered, ")?;
        write!(f, "{corrupt} corrupt; {foreign} of others.")
    }
}

/// Checks numbered frames.
pub struct Checker {
    /// The number that each flow should have next.
    next: Vec<u64>,
    /// Our address.
    mac: Mac,
    /// Findings so far.
    pub findings: Findings,
    /// Bytes of the verified frames.
    bytes: u64,
    /// The address for acknowledgements: from the last frame of ours.
    peer: Option<Vec<u8>>,
    acknowledged: u64,
    asked: bool,
}

impl Checker {
    /// A checker that acknowledges from `mac`.
    pub fn new(mac: Mac) -> Checker {
        let next = vec![0; 1 << 16];
        let (findings, peer) = (Findings::default(), None);
        Checker { next, mac, findings, bytes: 0, peer, acknowledged: 0, asked: false }
    }

    /// The verified frames.
    pub fn seen(&self) -> Taken {
        Taken { frames: usize::try_from(self.findings.verified).unwrap_or(usize::MAX), bytes: self.bytes }
    }

    /// The acknowledgement that is due, if one is: `idle` says that nothing comes.
    pub fn due(&mut self, idle: bool) -> Option<Once> {
        let count = self.findings.verified;
        let news = count - self.acknowledged;
        if !(self.asked || news >= ACK_EVERY || idle && news > 0) {
            return None;
        }
        let theirs = self.peer.as_ref()?;
        let mut frame = theirs.clone();
        // Back to where it came from: both addresses of each kind change places.
        frame[..6].copy_from_slice(&theirs[6..12]);
        frame[6..12].copy_from_slice(&self.mac.0);
        frame[26..30].copy_from_slice(&theirs[30..34]);
        frame[30..34].copy_from_slice(&theirs[26..30]);
        frame[34..36].copy_from_slice(&theirs[36..38]);
        frame[36..38].copy_from_slice(&theirs[34..36]);
        seal(&mut frame, Kind::Ack, 0, count);
        self.acknowledged = count;
        self.asked = false;
        Some(Once(frame))
    }
}

impl Sink for Checker {
    const READS: bool = true;

    #[inline]
    fn frame(&mut self, bytes: &[u8]) {
        let found = &mut self.findings;
        match open(bytes) {
            Some(Ok((Kind::Data, flow, number))) => {
                found.verified += 1;
                self.bytes += bytes.len() as u64;
                let next = &mut self.next[usize::from(flow)];
                found.flows += u64::from(*next == 0);
                if number >= *next {
                    found.lost = found.lost.saturating_add(number - *next);
                    *next = number.saturating_add(1);
                } else {
                    found.reordered += 1;
                }
            }
            Some(Ok((Kind::Hello, ..))) => {
                self.asked = true;
                // A new sender counts from 0.
                self.next.fill(0);
                self.peer = Some(bytes[..SHORTEST].to_vec());
            }
            Some(Err(())) => found.corrupt += 1,
            Some(Ok((Kind::Ack, ..))) | None => found.foreign += 1,
        }
    }
}

/// Reads acknowledgements.
#[derive(Default)]
pub struct Acks {
    /// The greatest count and its sender.
    pub last: Option<(u64, [u8; 6])>,
}

impl Sink for Acks {
    const READS: bool = true;

    fn frame(&mut self, bytes: &[u8]) {
        if let (Some(Ok((Kind::Ack, _, count))), Some(mac)) = (open(bytes), bytes.get(6..12)) {
            let most = self.last.map_or(count, |(last, _)| count.max(last));
            self.last = Some((most, mac.try_into().unwrap_or_default()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(len: usize, flow: u16, number: u64) -> Vec<u8> {
        let mut frame = vec![7; len];
        seal(&mut frame, Kind::Data, flow, number);
        frame
    }

    #[test]
    fn every_changed_bit_is_noticed() {
        for len in [60, 61, 63, 64, 65, 200] {
            let frame = sealed(len, 3, 0x1234_5678_9abc);
            assert_eq!(open(&frame), Some(Ok((Kind::Data, 3, 0x1234_5678_9abc))));
            for bit in 0..8 * len {
                let mut bad = frame.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(!matches!(open(&bad), Some(Ok(_))), "{len}: bit {bit}");
            }
            assert_eq!(open(&frame[..len - 1]).and_then(Result::ok), None);
        }
        assert_eq!(open(&[0; 60]), None);
        assert_eq!(open(&[0; 14]), None);
    }

    #[test]
    fn loss_order_and_flows_are_told_apart() {
        let mut checker = Checker::new(Mac([2; 6]));
        let numbers = [(0, 0), (1, 0), (0, 1), (1, 3), (0, 2), (1, 2), (0, 2)];
        numbers.iter().for_each(|(flow, number)| checker.frame(&sealed(60, *flow, *number)));
        checker.frame(&[0; 60]);
        let mut bad = sealed(100, 0, 3);
        bad[99] ^= 1;
        checker.frame(&bad);
        let right = Findings { verified: 7, flows: 2, lost: 2, reordered: 2, corrupt: 1, foreign: 1 };
        assert_eq!(checker.findings, right);
        assert!(!right.is_clean());
    }

    #[test]
    fn acknowledgements_go_back_to_the_sender() {
        let mut checker = Checker::new(Mac([2; 6]));
        assert!(checker.due(true).is_none());
        let mut hello = vec![1; 60];
        hello[6..12].fill(9);
        seal(&mut hello, Kind::Hello, 0, 0);
        checker.frame(&hello);
        let mut acks = Acks::default();
        acks.frame(&checker.due(false).unwrap().0);
        assert_eq!(acks.last, Some((0, [2; 6])));
        (0..ACK_EVERY - 1).for_each(|n| checker.frame(&sealed(60, 0, n)));
        assert!(checker.due(false).is_none());
        let ack = checker.due(true).unwrap();
        acks.frame(&ack.0);
        assert_eq!((acks.last, &ack.0[..6]), (Some((ACK_EVERY - 1, [2; 6])), &[9; 6][..]));
        assert!(checker.due(true).is_none());
    }
}
