//! Cutting a pcapng stream of the daemon's into its blocks (`pcap_file` reads them).

use std::borrow::Cow;
use std::time::Duration;

use byteorder_slice::LittleEndian;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::blocks::interface_statistics::InterfaceStatisticsOption;
use pcap_file::pcapng::blocks::ENHANCED_PACKET_BLOCK;
use pcap_file::pcapng::{Block, RawBlock};
use pcap_file::PcapError;

/// The block at the start of `bytes`, if all of it is there.
///
/// # Errors
/// The stream is no pcapng.
fn first(bytes: &[u8]) -> Result<Option<RawBlock<'_>>, String> {
    match RawBlock::from_slice::<LittleEndian>(bytes) {
        Ok((_, block)) => Ok(Some(block)),
        Err(PcapError::IncompleteBuffer) => Ok(None),
        Err(e) => Err(format!("the stream is no pcapng: {e}")),
    }
}

/// The whole blocks at the start of `bytes`, each with its bytes.
fn blocks(mut bytes: &[u8]) -> impl Iterator<Item = (RawBlock<'_>, &[u8])> {
    std::iter::from_fn(move || {
        let block = first(bytes).ok()??;
        let (whole, rest) = bytes.split_at(block.initial_len as usize);
        bytes = rest;
        Some((block, whole))
    })
}

/// Whole blocks out of pieces of a stream.
#[derive(Default)]
pub struct Blocks {
    waiting: Vec<u8>,
}

impl Blocks {
    /// Takes the next piece and returns the blocks that are whole by now, as one stretch.
    ///
    /// # Errors
    /// The stream is no pcapng.
    pub fn push(&mut self, piece: &[u8]) -> Result<Vec<u8>, String> {
        self.waiting.extend_from_slice(piece);
        let end = blocks(&self.waiting).map(|(_, whole)| whole.len()).sum();
        first(&self.waiting[end..])?;
        let rest = self.waiting.split_off(end);
        Ok(std::mem::replace(&mut self.waiting, rest))
    }
}

/// A block of a capture.
pub enum Part<'b> {
    /// Its bytes belong to the beginning of each file: the section, or an interface of this name.
    Head(&'b [u8], Option<String>),
    /// A frame.
    Packet(Packet<'b>),
    /// Anything else.
    Other(&'b [u8]),
}

/// A frame of a capture.
pub struct Packet<'b> {
    /// The block.
    pub whole: &'b [u8],
    /// Its port's interface in the capture.
    pub interface: u32,
    /// Since 1970.
    pub time: Duration,
    /// Its bytes, as many as were kept of `len`.
    pub bytes: Cow<'b, [u8]>,
    pub len: u32,
    /// It came in.
    pub inbound: bool,
    /// The reason, if it was dropped.
    pub dropped: Option<String>,
}

/// The blocks of a stretch of whole blocks.
pub fn parts(stretch: &[u8]) -> impl Iterator<Item = Part<'_>> {
    blocks(stretch).map(|(block, whole)| match block.try_into_block::<LittleEndian>() {
        Ok(Block::SectionHeader(_)) => Part::Head(whole, None),
        Ok(Block::InterfaceDescription(interface)) => {
            let name = interface.options.iter().find_map(|option| match option {
                InterfaceDescriptionOption::IfName(name) => Some(name.to_string()),
                _ => None,
            });
            Part::Head(whole, name)
        }
        Ok(Block::EnhancedPacket(packet)) => {
            let dropped = packet.options.iter().find_map(|option| match option {
                EnhancedPacketOption::Comment(text) => text.strip_prefix("dropped: ").map(str::to_owned),
                _ => None,
            });
            let inbound = packet
                .options
                .iter()
                .any(|it| matches!(it, EnhancedPacketOption::Flags(flags) if flags & 3 == 1));
            Part::Packet(Packet {
                whole,
                interface: packet.interface_id,
                time: packet.timestamp,
                bytes: packet.data,
                len: packet.original_len,
                inbound,
                dropped,
            })
        }
        _ => Part::Other(whole),
    })
}

/// Keeps at most `left` frames of a stretch of whole blocks, and all other blocks; lowers `left`.
pub fn keep_frames(stretch: &[u8], left: &mut u64) -> Vec<u8> {
    let mut kept = Vec::with_capacity(stretch.len());
    for (block, whole) in blocks(stretch) {
        let frames = u64::from(block.type_ == ENHANCED_PACKET_BLOCK);
        if frames <= *left {
            *left -= frames;
            kept.extend_from_slice(whole);
        }
    }
    kept
}

/// What a stream says of its interfaces: frames that were not captured, by interface.
#[derive(Default)]
pub struct Lost(std::collections::BTreeMap<u32, u64>);

impl Lost {
    /// Takes the statistics out of a stretch of whole blocks; the last ones of an interface count.
    pub fn look(&mut self, stretch: &[u8]) {
        for (block, _) in blocks(stretch) {
            let Ok(Block::InterfaceStatistics(all)) = block.try_into_block::<LittleEndian>() else {
                continue;
            };
            for option in all.options {
                if let InterfaceStatisticsOption::IsbIfDrop(lost) = option {
                    self.0.insert(all.interface_id, lost);
                }
            }
        }
    }

    /// All of them together.
    pub fn frames(&self) -> u64 {
        self.0.values().fold(0, |sum, n| sum.saturating_add(*n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(kind: u32, body: &[u8]) -> Vec<u8> {
        let len = u32::try_from(12 + body.len()).unwrap().to_le_bytes();
        [&kind.to_le_bytes(), &len[..], body, &len[..]].concat()
    }

    #[test]
    fn whole_blocks_come_out_whatever_the_pieces() {
        let stream = [block(1, &[]), block(6, &[7; 8]), block(6, &[8; 4]), block(5, &[])].concat();
        for size in 1..stream.len() {
            let mut blocks = Blocks::default();
            let out: Vec<u8> = stream.chunks(size).flat_map(|piece| blocks.push(piece).unwrap()).collect();
            assert_eq!(out, stream);
        }
        let mut blocks = Blocks::default();
        assert_eq!(blocks.push(&stream[..stream.len() - 1]).unwrap(), stream[..stream.len() - 12]);
        let mut left = 1;
        assert_eq!(
            keep_frames(&stream, &mut left),
            [block(1, &[]), block(6, &[7; 8]), block(5, &[])].concat()
        );
        assert!(Blocks::default().push(&[0; 12]).is_err());
    }

    #[test]
    fn the_last_statistics_of_each_interface_count() {
        let statistics = |interface: u32, lost: u64| {
            let option = |code: u16, value: &[u8]| {
                let len = u16::try_from(value.len()).unwrap().to_le_bytes();
                [
                    &code.to_le_bytes()[..],
                    &len,
                    value,
                    &vec![0; value.len().next_multiple_of(4) - value.len()],
                ]
                .concat()
            };
            let times = [0; 8];
            let options = [option(1, b"odd"), option(4, &9u64.to_le_bytes()), option(5, &lost.to_le_bytes())];
            block(5, &[&interface.to_le_bytes()[..], &times, &options.concat(), &[0; 4]].concat())
        };
        let mut lost = Lost::default();
        lost.look(&[statistics(0, 3), block(6, &[7; 8]), statistics(1, 4)].concat());
        assert_eq!(lost.frames(), 7);
        lost.look(&statistics(0, 5));
        assert_eq!(lost.frames(), 9);
        lost.look(&[block(5, &[0; 4]), block(5, &[0xff; 20]), block(5, &[])].concat());
        assert_eq!(lost.frames(), 9);
    }
}
