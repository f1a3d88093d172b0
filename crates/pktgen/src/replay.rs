//! `-P`: the frames of a capture, in their order, again and again.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::DataLink;

use super::end::{Result, Source};

/// First bytes of a pcapng file: its section header's block type.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// Shortest and longest frame.
const LENGTHS: std::ops::RangeInclusive<usize> = 14..=65535;
/// Bytes of the frame check sequence (IEEE 802.3 §3.2.9). Whatever sends the frame again makes its own.
const FCS: usize = 4;

/// The frames of a file, shared by all threads.
#[derive(Clone, Debug)]
pub struct Recording {
    bytes: Arc<[u8]>,
    /// Where each frame ends.
    ends: Arc<[usize]>,
    /// Bytes of the longest.
    pub longest: usize,
    /// Frames of which the capture holds only the beginning.
    pub cut: usize,
}

#[derive(Default)]
struct Collected {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    longest: usize,
    cut: usize,
}

impl Collected {
    /// A packet of `original` bytes, the first of which are `data`. Its last `fcs` bytes are no part of the
    /// frame.
    fn add(&mut self, data: &[u8], original: u32, fcs: usize) -> Result<()> {
        let whole = data.len().max(original as usize).saturating_sub(fcs);
        let data = &data[..data.len().min(whole)];
        if !LENGTHS.contains(&data.len()) {
            let number = self.ends.len() + 1;
            return Err(format!("packet {number} has {} bytes; a frame has {LENGTHS:?}", data.len()));
        }
        self.bytes.extend_from_slice(data);
        self.ends.push(self.bytes.len());
        self.longest = self.longest.max(data.len());
        self.cut += usize::from(whole > data.len());
        Ok(())
    }

    /// A pcap file. Packets are read raw: time stamps mean nothing here, and files are in use whose packets
    /// are longer than their snap length, or have nanoseconds where the file promises microseconds.
    fn pcap(&mut self, file: &[u8]) -> Result<()> {
        let mut reader = PcapReader::new(file).map_err(|e| e.to_string())?;
        let fcs = ethernet(reader.header().datalink)?;
        while let Some(packet) = reader.next_raw_packet() {
            let packet = packet.map_err(|e| e.to_string())?;
            self.add(&packet.data, packet.orig_len, fcs)?;
        }
        Ok(())
    }

    /// A pcapng file.
    fn pcapng(&mut self, file: &[u8]) -> Result<()> {
        let mut reader = PcapNgReader::new(file).map_err(|e| e.to_string())?;
        // What each interface of this section has, in their order.
        let mut fcs = Vec::new();
        let of = |fcs: &[usize], interface: usize| fcs.get(interface).copied().unwrap_or(0);
        while let Some(block) = reader.next_block() {
            match block.map_err(|e| e.to_string())? {
                Block::SectionHeader(_) => fcs.clear(),
                Block::InterfaceDescription(interface) => fcs.push(fcs_of(&interface)?),
                Block::EnhancedPacket(packet) => {
                    let said = packet.options.iter().find_map(|option| match option {
                        EnhancedPacketOption::Flags(flags) => Some((flags >> 5 & 0xf) as usize),
                        _ => None,
                    });
                    // Zero: the packet does not say (draft-ietf-opsawg-pcapng §4.3.1, epb_flags).
                    let own = said.filter(|bytes| *bytes != 0);
                    let fcs = own.unwrap_or_else(|| of(&fcs, packet.interface_id as usize));
                    self.add(&packet.data, packet.original_len, fcs)?;
                }
                // Its data has no length of its own: padding may follow it.
                Block::SimplePacket(packet) => {
                    let len = packet.data.len().min(packet.original_len as usize);
                    self.add(&packet.data[..len], packet.original_len, of(&fcs, 0))?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Bytes of the frame check sequence behind the packets of a link type, if those are Ethernet frames. The
/// field of a pcap file has it, in units of two bytes, in the upper half (draft-ietf-opsawg-pcap §4: FCS len,
/// f).
fn ethernet(link: DataLink) -> Result<usize> {
    const PRESENT: u32 = 1 << 26;
    let word = u32::from(link);
    match DataLink::from(word & 0xffff) {
        DataLink::ETHERNET if word & PRESENT != 0 => Ok(2 * (word >> 28) as usize),
        DataLink::ETHERNET => Ok(0),
        other => Err(format!("holds packets of link type {other:?}, not Ethernet frames")),
    }
}

/// Bytes of the frame check sequence behind the packets of an interface of a pcapng file. Writers disagree
/// whether `if_fcslen` counts bits or bytes, so only zero is told from the rest: Ethernet has one length.
fn fcs_of(interface: &InterfaceDescriptionBlock) -> Result<usize> {
    let has_one =
        |option: &InterfaceDescriptionOption| matches!(option, InterfaceDescriptionOption::IfFcsLen(1..));
    ethernet(interface.linktype).map(|none| if interface.options.iter().any(has_one) { FCS } else { none })
}

impl Recording {
    /// Reads a pcap or pcapng file.
    pub fn read(path: &Path) -> Result<Recording> {
        let name = path.display();
        let file = fs::read(path).map_err(|e| format!("-P {name}: {e}"))?;
        let mut found = Collected::default();
        let read = if file.starts_with(&PCAPNG) { found.pcapng(&file) } else { found.pcap(&file) };
        read.map_err(|e| format!("-P {name}: {e}"))?;
        if found.ends.is_empty() {
            return Err(format!("-P {name}: it holds no packets"));
        }
        let Collected { bytes, ends, longest, cut } = found;
        Ok(Recording { bytes: bytes.into(), ends: ends.into(), longest, cut })
    }

    /// Its frames, in their order.
    pub fn frames(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(self.ends.iter()).map(|(start, end)| &self.bytes[start..*end])
    }

    /// A recording of these frames.
    ///
    /// # Errors
    /// One of them is too long.
    pub fn of(frames: &[&[u8]]) -> Result<Recording> {
        let mut found = Collected::default();
        frames.iter().try_for_each(|frame| found.add(frame, 0, 0))?;
        let Collected { bytes, ends, longest, cut } = found;
        Ok(Recording { bytes: bytes.into(), ends: ends.into(), longest, cut })
    }
}

/// Sends a recording.
#[derive(Debug)]
pub struct Replay {
    recording: Recording,
    next: usize,
}

impl Replay {
    /// From the start.
    pub fn new(recording: Recording) -> Replay {
        Replay { recording, next: 0 }
    }
}

impl Source for Replay {
    fn fixed(&self) -> Option<usize> {
        (self.recording.ends.len() == 1).then_some(self.recording.longest)
    }

    #[inline]
    fn write(&mut self, buffer: &mut [u8]) -> usize {
        let ends = &self.recording.ends;
        let start = if self.next == 0 { 0 } else { ends[self.next - 1] };
        let frame = &self.recording.bytes[start..ends[self.next]];
        buffer[..frame.len()].copy_from_slice(frame);
        self.next = if self.next + 1 == ends.len() { 0 } else { self.next + 1 };
        frame.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(n: u8, len: usize) -> Vec<u8> {
        (0..len).map(|at| if at < 14 { 2 } else { n }).collect()
    }

    /// A pcap file: its magic number, snap length and link type, and packets with the fraction of their
    /// second and the length that they had.
    fn pcap(big: bool, [magic, snap, link]: [u32; 3], packets: &[(u32, u32, Vec<u8>)]) -> Vec<u8> {
        let word = |word: u32| if big { word.to_be_bytes() } else { word.to_le_bytes() };
        let version = if big { [0, 2, 0, 4] } else { [2, 0, 4, 0] };
        let mut file = [word(magic), version, [0; 4], [0; 4], word(snap), word(link)].concat();
        for (fraction, original, data) in packets {
            let len = u32::try_from(data.len()).unwrap();
            file.extend([7, *fraction, len, *original].map(word).as_flattened());
            file.extend(data);
        }
        file
    }

    /// A little-endian pcapng file of these blocks.
    fn pcapng(blocks: &[(u32, Vec<u8>)]) -> Vec<u8> {
        let section = [[0x4d, 0x3c, 0x2b, 0x1a], [1, 0, 0, 0], [0xff; 4], [0xff; 4]].concat();
        let mut file = Vec::new();
        for (kind, body) in std::iter::once(&(u32::from_le_bytes(PCAPNG), section)).chain(blocks) {
            let padded = body.len().next_multiple_of(4);
            let len = u32::try_from(padded + 12).unwrap().to_le_bytes();
            file.extend([kind.to_le_bytes(), len].as_flattened());
            file.extend(body);
            file.resize(file.len() + padded - body.len(), 0);
            file.extend(len);
        }
        file
    }

    /// An interface, with options.
    fn interface(options: &[u8]) -> (u32, Vec<u8>) {
        (1, [&[1, 0, 0, 0, 0, 0, 4, 0], options, &[0; 4]].concat())
    }

    /// A packet of interface 0, with options behind its data.
    fn packet(original: u32, data: &[u8], options: &[u8]) -> (u32, Vec<u8>) {
        let len = u32::try_from(data.len()).unwrap();
        let head = [0, 0, 1_999_999_999, len, original].map(u32::to_le_bytes);
        let mut body = [head.as_flattened(), data].concat();
        body.resize(body.len().next_multiple_of(4), 0);
        body.extend(options);
        (6, body)
    }

    /// The lengths of the frames that `file` holds, and how many of them were cut.
    fn read(file: &[u8]) -> Result<(Vec<usize>, usize)> {
        let mut found = Collected::default();
        if file.starts_with(&PCAPNG) { found.pcapng(file) } else { found.pcap(file) }?;
        let starts = std::iter::once(0).chain(found.ends.iter().copied());
        Ok((starts.zip(&found.ends).map(|(start, end)| end - start).collect(), found.cut))
    }

    const MICROSECONDS: u32 = 0xa1b2_c3d4;
    const NANOSECONDS: u32 = 0xa1b2_3c4d;

    #[test]
    fn time_stamps_of_any_kind_are_no_obstacle() {
        for big in [false, true] {
            for magic in [MICROSECONDS, NANOSECONDS] {
                let packets = [(999_999_999, 60, frame(1, 60)), (u32::MAX, 60, frame(2, 60))];
                assert_eq!(read(&pcap(big, [magic, 65535, 1], &packets)), Ok((vec![60, 60], 0)));
            }
        }
        // if_tsresol: nanoseconds.
        let file = pcapng(&[interface(&[9, 0, 1, 0, 9, 0, 0, 0]), packet(60, &frame(1, 60), &[])]);
        assert_eq!(read(&file), Ok((vec![60], 0)));
    }

    #[test]
    fn packets_may_be_longer_than_the_snap_length_and_longer_than_they_were() {
        for snap in [0, 96] {
            let packets = [(0, 1514, frame(1, 1514)), (0, 1514, frame(2, 96)), (0, 60, frame(3, 64))];
            assert_eq!(read(&pcap(false, [MICROSECONDS, snap, 1], &packets)), Ok((vec![1514, 96, 64], 1)));
        }
    }

    #[test]
    fn a_frame_check_sequence_is_taken_off_where_the_file_says_that_there_is_one() {
        // Two units of two bytes, and the bit without which the length means nothing.
        let packets = [(0, 64, frame(1, 64)), (0, 1518, frame(2, 1516)), (0, 1518, frame(3, 100))];
        let with = pcap(false, [MICROSECONDS, 65535, 2 << 28 | 1 << 26 | 1], &packets);
        assert_eq!(read(&with), Ok((vec![60, 1514, 100], 1)));
        let without = pcap(false, [MICROSECONDS, 65535, 2 << 28 | 1], &packets);
        assert_eq!(read(&without), Ok((vec![64, 1516, 100], 2)));
        // An interface that has one, in bits or bytes, or none; and a packet that says so itself.
        for (len, left) in [(32, 60), (4, 60), (0, 64)] {
            let file = pcapng(&[interface(&[13, 0, 1, 0, len, 0, 0, 0]), packet(64, &frame(1, 64), &[])]);
            assert_eq!(read(&file), Ok((vec![left], 0)), "{len}");
        }
        let flags = [2, 0, 4, 0, 4 << 5, 0, 0, 0, 0, 0, 0, 0];
        let file = pcapng(&[interface(&[]), packet(64, &frame(1, 64), &flags)]);
        assert_eq!(read(&file), Ok((vec![60], 0)));
    }

    #[test]
    fn other_links_and_frames_that_cannot_be_are_refused() {
        assert!(read(&pcap(false, [MICROSECONDS, 65535, 113], &[])).unwrap_err().contains("LINUX_SLL"));
        let short = pcap(false, [MICROSECONDS, 65535, 2 << 28 | 1 << 26 | 1], &[(0, 16, frame(1, 16))]);
        assert_eq!(read(&short).unwrap_err(), "packet 1 has 12 bytes; a frame has 14..=65535");
    }
}
