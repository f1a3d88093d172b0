//! What is sent: frames of one length, of a mixture, or of a capture, each with a stamp that tells when it
//! was due and which one it is.
//!
//! Theory of operation. Everything that can be is made beforehand: the frames of the pattern (one length,
//! twelve of the IMIX, all of the capture), and for each flow its addresses, ports and the part of the
//! header's checksum that they are. To send a frame is then to copy its first 64 bytes, and what of them
//! differs; the rest of a made frame means nothing, and stays as the buffer has it. Frames of a capture are
//! copied whole.
//!
//! A stamp has 10 bytes, behind the UDP header of made frames and at the end of a capture's:
//!
//! | byte | |
//! |---|---|
//! | 0 | number of the trial, 16 bits: what is late from another one does not count |
//! | 2 | number of the frame in the trial, 32 bits |
//! | 6 | when it was due, in 16 ticks of the time stamp counter, 32 bits |

use std::net::Ipv4Addr;
use std::path::Path;

use sidecore_pktgen::address::Endpoints;
use sidecore_pktgen::end::Source;
use sidecore_pktgen::frame::{folded, sum};
use sidecore_pktgen::replay::Recording;

use super::super::lane::datagram;
use super::super::target::Stations;
use crate::prelude::*;

/// Bytes of the frame check sequence, which sizes here count and buffers do not have.
pub const FCS: usize = 4;
/// The shortest frame, without it.
const SHORTEST: usize = 60;
/// Where the stamp of a made frame is: behind Ethernet, IPv4 and UDP headers.
const STAMP: usize = 42;
/// Its bytes.
const STAMP_LEN: usize = 10;
/// What of a made frame is written each time.
const HEAD: usize = 64;
/// Lengths of the IMIX with check sequence, 7:4:1, in an order that spreads them.
const IMIX: [usize; 12] = [64, 594, 64, 64, 594, 64, 1518, 594, 64, 64, 594, 64];
/// The addresses that RFC 2544 (appendix C.2.2) has for such tests: two halves of 198.18.0.0/15.
const FROM: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const TO: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 1);
/// Flows that one range of the default addresses has room for.
const PER_RANGE: u64 = 50_000;
/// More flows than a bench has memory for.
pub const MOST_FLOWS: u64 = 1 << 20;

/// Lengths of frames.
#[derive(Clone, Debug)]
pub enum Lengths {
    /// All the same, with check sequence.
    Fixed(usize),
    /// 7:4:1 of 64, 594 and 1518 bytes, with check sequence.
    Imix,
    /// Frames of a capture.
    Recorded(Recording),
}

/// Where stamps are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StampPosition {
    Payload,
    End,
}

/// What distinguishes a flow.
#[derive(Clone, Copy, Debug)]
struct Flow {
    /// Addresses and ports, as they stand in the frame from byte 26.
    bytes: [u8; 12],
    /// Their part of the IPv4 header's checksum: the addresses' words, added up.
    sum: u32,
}

/// Frames made beforehand.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// One after the other, over and over.
    pattern: Vec<Vec<u8>>,
    flows: Vec<Flow>,
    stamps: StampPosition,
}

impl Traffic {
    /// Frames of these lengths, in so many flows between these addresses.
    ///
    /// # Errors
    /// A length or a number of flows that cannot be.
    pub fn new(
        lengths: &Lengths,
        stations: Stations,
        flows: u64,
        ranges: [Option<Endpoints>; 2],
    ) -> Result<Traffic, String> {
        let mut stamps = StampPosition::Payload;
        let pattern = match lengths {
            Lengths::Fixed(bytes) => vec![made(*bytes, stations)?],
            Lengths::Imix => IMIX.iter().map(|bytes| made(*bytes, stations)).collect::<Result<_, _>>()?,
            Lengths::Recorded(recording) => {
                stamps = StampPosition::End;
                recording.frames().map(|frame| recorded(frame, stations)).collect()
            }
        };
        let flows = if stamps == StampPosition::End { Vec::new() } else { ways(flows, ranges)? };
        Ok(Traffic { pattern, flows, stamps })
    }

    /// These frames as they are, but for a stamp at the end of each.
    pub fn of(frames: &[impl AsRef<[u8]>]) -> Traffic {
        let pattern = frames.iter().map(|frame| frame.as_ref().to_vec()).collect();
        Traffic { pattern, flows: Vec::new(), stamps: StampPosition::End }
    }

    /// Bytes of the longest frame, without check sequence.
    pub fn longest(&self) -> usize {
        self.pattern.iter().map(Vec::len).max().unwrap_or(SHORTEST)
    }

    /// Bytes of a frame on the average, with check sequence.
    pub fn mean_size(&self) -> f64 {
        let bytes: usize = self.pattern.iter().map(|frame| frame.len() + FCS).sum();
        bytes as f64 / self.pattern.len().max(1) as f64
    }

    /// Flows; none are told apart in a capture.
    pub fn flows(&self) -> u64 {
        self.flows.len() as u64
    }

    /// Bytes that frame number `seq` of a trial has.
    #[inline]
    fn len_of(&self, seq: u32) -> usize {
        match &self.pattern[..] {
            [one] => one.len(),
            all => all.get(seq as usize % all.len()).map_or(0, Vec::len),
        }
    }

    /// The stamp of a frame.
    #[inline]
    fn stamp(&self, frame: &[u8]) -> Option<Stamp> {
        let at = match self.stamps {
            StampPosition::Payload => STAMP,
            StampPosition::End => frame.len().checked_sub(STAMP_LEN)?,
        };
        let bytes: &[u8; STAMP_LEN] = frame.get(at..at + STAMP_LEN)?.try_into().ok()?;
        let [a, b, s0, s1, s2, s3, t0, t1, t2, t3] = *bytes;
        Some(Stamp {
            trial: u16::from_le_bytes([a, b]),
            seq: u32::from_le_bytes([s0, s1, s2, s3]),
            due: u32::from_le_bytes([t0, t1, t2, t3]),
        })
    }

    /// What a received frame is, if its stamp is this trial's: its number and when it was due. `Err`: it is,
    /// and its length is wrong.
    #[inline]
    pub fn read(&self, frame: &[u8], trial: u16) -> Option<Result<(u32, u32), ()>> {
        let stamp = self.stamp(frame).filter(|stamp| stamp.trial == trial)?;
        let right = frame.len() == self.len_of(stamp.seq);
        Some(if right { Ok((stamp.seq, stamp.due)) } else { Err(()) })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    trial: u16,
    seq: u32,
    due: u32,
}

/// A UDP datagram over IPv4 without addresses, and with the checksum of a header without them.
fn made(size: usize, stations: Stations) -> Result<Vec<u8>, String> {
    if !(SHORTEST + FCS..=9018).contains(&size) {
        return Err(format!("frames of {size} bytes; they have {} to 9018", SHORTEST + FCS));
    }
    // Addresses are the flows'.
    let (both, none) = ([stations.to, stations.from], [Ipv4Addr::UNSPECIFIED; 2]);
    let mut frame = vec![0; size - FCS];
    datagram(&mut frame, both, none, [0; 2]);
    // In the checksum's place: what flows add their part to.
    frame[24..26].iter_mut().for_each(|byte| *byte = !*byte);
    Ok(frame)
}

/// A frame of a capture, between our stations, with room for a stamp.
fn recorded(frame: &[u8], stations: Stations) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame.resize(frame.len().max(SHORTEST), 0);
    frame[..6].copy_from_slice(&stations.to);
    frame[6..12].copy_from_slice(&stations.from);
    frame
}

/// The first `count` combinations of both ranges: sources take turns first.
fn ways(count: u64, ranges: [Option<Endpoints>; 2]) -> Result<Vec<Flow>, String> {
    let least = |ip: Ipv4Addr, more: u64, port: u16, ports: u64| Endpoints {
        ip: [ip.to_bits(), ip.to_bits() + u32::try_from(more).unwrap_or(0)],
        port: [port, port + u16::try_from(ports).unwrap_or(0)],
    };
    let rest = count.max(1).div_ceil(PER_RANGE);
    let from = ranges[0].unwrap_or_else(|| least(FROM, 0, 1024, rest - 1));
    let to = ranges[1].unwrap_or_else(|| least(TO, count.clamp(1, PER_RANGE) - 1, 9, 0));
    let all = u128::from(from.combinations()) * u128::from(to.combinations());
    if count > MOST_FLOWS || u128::from(count) > all {
        return Err(format!(
            "{count} flows: the ranges have {all} combinations, and the bench {MOST_FLOWS} at most"
        ));
    }
    let way = |n: u64| {
        let ((src, sport), (dst, dport)) =
            (from.get(n % from.combinations()), to.get(n / from.combinations()));
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&src.to_be_bytes());
        bytes[4..8].copy_from_slice(&dst.to_be_bytes());
        bytes[8..10].copy_from_slice(&sport.to_be_bytes());
        bytes[10..].copy_from_slice(&dport.to_be_bytes());
        Flow { bytes, sum: sum(&bytes[..8]) }
    };
    Ok((0..count.max(1)).map(way).collect())
}

/// Makes the frames of a trial.
#[derive(Debug)]
pub struct Maker<'t> {
    traffic: &'t Traffic,
    trial: u16,
    seq: u32,
    next: usize,
    flow: usize,
    /// When the trial begins, by the time stamp counter.
    pub start: u64,
    /// When the next frame is due, and from one to the next, in ticks since `start`. Sums of small steps stay
    /// exact; beside the counter's own value each step would be rounded, and a million of them were
    /// microseconds off.
    pub due: f64,
    pub gap: f64,
}

impl<'t> Maker<'t> {
    /// The maker of trial number `trial`.
    pub fn new(traffic: &'t Traffic, trial: u16) -> Maker<'t> {
        Maker { traffic, trial, seq: 0, next: 0, flow: 0, start: 0, due: 0.0, gap: 0.0 }
    }

    /// Passes over frames that could not be sent when they were due.
    #[inline]
    pub fn skip(&mut self, frames: u64) {
        self.due += self.gap * frames as f64;
    }
}

/// Ticks as a stamp has them.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "a stamp holds the lower bits")]
pub fn coarse(ticks: u64) -> u32 {
    (ticks >> 4) as u32
}

impl Source for Maker<'_> {
    #[inline]
    fn write(&mut self, buffer: &mut [u8]) -> usize {
        let Traffic { pattern, flows, stamps } = self.traffic;
        let Some(frame) = pattern.get(self.next) else { return 0 };
        self.next = if self.next + 1 < pattern.len() { self.next + 1 } else { 0 };
        let at = match stamps {
            StampPosition::End => {
                buffer[..frame.len()].copy_from_slice(frame);
                frame.len() - STAMP_LEN
            }
            StampPosition::Payload => {
                let head = frame.len().min(HEAD);
                buffer[..head].copy_from_slice(&frame[..head]);
                if let Some(flow) = flows.get(self.flow) {
                    let base = u32::from(frame[24]) << 8 | u32::from(frame[25]);
                    // The header's other words, added up beforehand.
                    buffer[24..26].copy_from_slice(&folded(base + flow.sum));
                    buffer[26..38].copy_from_slice(&flow.bytes);
                    self.flow = if self.flow + 1 < flows.len() { self.flow + 1 } else { 0 };
                }
                STAMP
            }
        };
        buffer[at..at + 2].copy_from_slice(&self.trial.to_le_bytes());
        buffer[at + 2..at + 6].copy_from_slice(&self.seq.to_le_bytes());
        buffer[at + 6..at + 10].copy_from_slice(&coarse(self.start + whole(self.due)).to_le_bytes());
        self.seq = self.seq.wrapping_add(1);
        self.due += self.gap;
        frame.len()
    }
}

/// The capture in a file.
///
/// # Errors
/// It cannot be read, or its frames are longer than ports take.
pub fn capture(path: &Path) -> Result<Lengths, String> {
    let recording = Recording::read(path).map_err(|e| e.replacen("-P ", "--pcap ", 1))?;
    match recording.longest {
        ..=1514 => Ok(Lengths::Recorded(recording)),
        longest => {
            Err(format!("--pcap {}: a frame has {longest} bytes; ports here take 1514", path.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATIONS: Stations = Stations { from: [2, 0, 0, 0, 0, 1], to: [2, 0, 0, 0, 0, 2] };

    fn frames(traffic: &Traffic, count: usize) -> Vec<Vec<u8>> {
        let mut maker = Maker::new(traffic, 7);
        (maker.due, maker.gap) = (1600.0, 160.0);
        let mut buffer = vec![0xee; 2000];
        (0..count)
            .map(|_| {
                let len = maker.write(&mut buffer);
                buffer[..len].to_vec()
            })
            .collect()
    }

    #[test]
    fn stamps_do_not_drift() {
        let traffic = Traffic::new(&Lengths::Fixed(64), STATIONS, 1, [None, None]).unwrap();
        let mut maker = Maker::new(&traffic, 7);
        // A machine that has run for a day, and frames a third of a tick more than 533 apart.
        let start = 86_400 * 2_600_000_000;
        (maker.start, maker.gap) = (start, 533.0 + 1.0 / 3.0);
        let mut buffer = vec![0; 64];
        for _ in 0..3_000_001 {
            maker.write(&mut buffer);
        }
        let (_, due) = traffic.read(&buffer[..60], 7).unwrap().unwrap();
        assert!(coarse(start + 1_600_000_000).wrapping_sub(due) <= 1);
    }

    #[test]
    fn made_frames_are_right_and_say_which_they_are() {
        let traffic = Traffic::new(&Lengths::Fixed(64), STATIONS, 3, [None, None]).unwrap();
        let all = frames(&traffic, 7);
        let mut flows = std::collections::BTreeSet::new();
        for (number, frame) in (0u32..).zip(&all) {
            assert_eq!((frame.len(), &frame[..6], &frame[6..12]), (60, &STATIONS.to[..], &STATIONS.from[..]));
            assert_eq!(folded(sum(&frame[14..34])), [0, 0], "the header's checksum");
            assert_eq!([frame[16], frame[17], frame[38], frame[39]], [0, 46, 0, 26]);
            assert_eq!(traffic.read(frame, 7), Some(Ok((number, 100 + 10 * number))));
            assert_eq!(traffic.read(frame, 8), None, "of another trial");
            assert_eq!(traffic.read(&frame[..59], 7), Some(Err(())));
            flows.insert(frame[26..38].to_vec());
        }
        assert_eq!((flows.len(), traffic.flows(), traffic.read(&[0; 60], 7)), (3, 3, None));
    }

    #[test]
    fn the_mixture_is_seven_to_four_to_one() {
        let traffic = Traffic::new(&Lengths::Imix, STATIONS, 1, [None, None]).unwrap();
        let all = frames(&traffic, 24);
        let of = |len: usize| all.iter().filter(|frame| frame.len() + FCS == len).count();
        assert_eq!([64, 594, 1518].map(of), [14, 8, 2]);
        assert!((traffic.mean_size() - (7.0 * 64.0 + 4.0 * 594.0 + 1518.0) / 12.0).abs() < 1e-9);
        for (number, frame) in (0u32..).zip(&all) {
            assert_eq!(folded(sum(&frame[14..34])), [0, 0]);
            assert!(matches!(traffic.read(frame, 7), Some(Ok((seq, _))) if seq == number));
        }
        // A frame of another length than the one of its number.
        assert_eq!(traffic.read(&all[1][..60], 7), Some(Err(())));
    }

    #[test]
    fn flows_are_combinations_of_the_ranges() {
        let range = |text: &str| Some(text.parse::<Endpoints>().unwrap());
        let ranges = [range("10.0.0.1:5-10.0.0.2:6"), range("10.9.0.1-10.9.0.3")];
        let traffic = Traffic::new(&Lengths::Fixed(128), STATIONS, 12, ranges).unwrap();
        let all: std::collections::BTreeSet<_> =
            frames(&traffic, 24).iter().map(|frame| frame[26..38].to_vec()).collect();
        assert_eq!(all.len(), 12);
        assert!(Traffic::new(&Lengths::Fixed(128), STATIONS, 13, ranges).unwrap_err().contains("12 comb"));
        let many = ways(100_000, [None, None]).unwrap();
        let all: std::collections::BTreeSet<_> = many.iter().map(|flow| flow.bytes).collect();
        assert_eq!(all.len(), 100_000);
        assert!(ways(MOST_FLOWS + 1, [None, None]).is_err());
        assert!(Traffic::new(&Lengths::Fixed(63), STATIONS, 1, [None, None]).is_err());
    }

    #[test]
    fn captured_frames_are_sent_as_they_are_but_for_stations_and_stamp() {
        let recording = Recording::of(&[&[0x11; 30], &[0x22; 100]]).unwrap();
        let traffic = Traffic::new(&Lengths::Recorded(recording), STATIONS, 1, [None, None]).unwrap();
        let all = frames(&traffic, 3);
        assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [60, 100, 60]);
        assert_eq!((&all[1][..6], &all[1][12..90]), (&STATIONS.to[..], &[0x22; 78][..]));
        for (number, frame) in (0u32..).zip(&all) {
            assert!(matches!(traffic.read(frame, 7), Some(Ok((seq, _))) if seq == number));
        }
    }
}
