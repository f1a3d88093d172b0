//! `-P`: the frames of a capture, in their order, again and again.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::DataLink;

use super::end::{Result, Source};

/// First bytes of a pcapng file: its section header's block type.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// Shortest and longest frame.
const LENGTHS: std::ops::RangeInclusive<usize> = 14..=65535;

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
    fn add(&mut self, data: &[u8], original: u32) -> Result<()> {
        if !LENGTHS.contains(&data.len()) {
            let number = self.ends.len() + 1;
            return Err(format!("packet {number} has {} bytes; a frame has {LENGTHS:?}", data.len()));
        }
        self.bytes.extend_from_slice(data);
        self.ends.push(self.bytes.len());
        self.longest = self.longest.max(data.len());
        self.cut += usize::from(original as usize > data.len());
        Ok(())
    }

    /// A pcap file.
    fn pcap(&mut self, file: &[u8]) -> Result<()> {
        let mut reader = PcapReader::new(file).map_err(|e| e.to_string())?;
        ethernet(reader.header().datalink)?;
        while let Some(packet) = reader.next_packet() {
            let packet = packet.map_err(|e| e.to_string())?;
            self.add(&packet.data, packet.orig_len)?;
        }
        Ok(())
    }

    /// A pcapng file.
    fn pcapng(&mut self, file: &[u8]) -> Result<()> {
        let mut reader = PcapNgReader::new(file).map_err(|e| e.to_string())?;
        while let Some(block) = reader.next_block() {
            match block.map_err(|e| e.to_string())? {
                Block::InterfaceDescription(interface) => ethernet(interface.linktype)?,
                Block::EnhancedPacket(packet) => self.add(&packet.data, packet.original_len)?,
                // Its data has no length of its own: padding may follow it.
                Block::SimplePacket(packet) => {
                    let len = packet.data.len().min(packet.original_len as usize);
                    self.add(&packet.data[..len], packet.original_len)?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn ethernet(link: DataLink) -> Result<()> {
    match link {
        DataLink::ETHERNET => Ok(()),
        other => Err(format!("holds packets of link type {other:?}, not Ethernet frames")),
    }
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
        frames.iter().try_for_each(|frame| found.add(frame, 0))?;
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
