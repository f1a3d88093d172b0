//! Cutting a pcapng stream (draft-ietf-opsawg-pcapng §3.1) into its blocks: each is a type, a length that
//! counts the whole block, a body, and the length again; ours are little-endian.

/// The type of a block that holds a frame.
const ENHANCED_PACKET: u32 = 6;
const INTERFACE_STATISTICS: u32 = 5;
/// Frames that were dropped, an option of it.
const ISB_IFDROP: u16 = 5;
/// Bytes of the smallest block.
const SMALLEST: usize = 12;

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
        let mut end = 0;
        while let Some(len) = length(&self.waiting[end..])? {
            if self.waiting.len() - end < len {
                break;
            }
            end += len;
        }
        let rest = self.waiting.split_off(end);
        Ok(std::mem::replace(&mut self.waiting, rest))
    }
}

/// The length of the block at the start of `bytes`, once it can be read.
fn length(bytes: &[u8]) -> Result<Option<usize>, String> {
    let Some(len) = word(bytes, 4) else { return Ok(None) };
    match usize::try_from(len) {
        Ok(len) if len >= SMALLEST && len % 4 == 0 => Ok(Some(len)),
        _ => Err(format!("the stream is no pcapng: a block of {len} bytes")),
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Keeps at most `left` frames of a stretch of whole blocks, and all other blocks; lowers `left`.
pub fn keep_frames(blocks: &[u8], left: &mut u64) -> Vec<u8> {
    let mut kept = Vec::with_capacity(blocks.len());
    let mut rest = blocks;
    while let (Some(kind), Ok(Some(len))) = (word(rest, 0), length(rest)) {
        let (block, behind) = rest.split_at(len.min(rest.len()));
        rest = behind;
        if kind == ENHANCED_PACKET {
            if *left == 0 {
                continue;
            }
            *left -= 1;
        }
        kept.extend_from_slice(block);
    }
    kept
}

/// What a stream says of its interfaces: frames that were not captured, by interface.
#[derive(Default)]
pub struct Lost(std::collections::BTreeMap<u32, u64>);

impl Lost {
    /// Takes the statistics out of a stretch of whole blocks; the last ones of an interface count.
    pub fn look(&mut self, blocks: &[u8]) {
        let mut rest = blocks;
        while let (Some(kind), Ok(Some(len))) = (word(rest, 0), length(rest)) {
            let (block, behind) = rest.split_at(len.min(rest.len()));
            rest = behind;
            if let (INTERFACE_STATISTICS, Some(interface)) = (kind, word(block, 8)) {
                if let Some(lost) = option(block.get(20..).unwrap_or(&[]), ISB_IFDROP) {
                    self.0.insert(interface, lost);
                }
            }
        }
    }

    /// All of them together.
    pub fn frames(&self) -> u64 {
        self.0.values().fold(0, |sum, n| sum.saturating_add(*n))
    }
}

/// The number that option `code` has, eight bytes long.
fn option(mut options: &[u8], code: u16) -> Option<u64> {
    while let Some([a, b, c, d]) = options.first_chunk::<4>().copied() {
        let (this, len) = (u16::from_le_bytes([a, b]), usize::from(u16::from_le_bytes([c, d])));
        if this == code && len == 8 {
            return Some(u64::from_le_bytes(options.get(4..12)?.try_into().ok()?));
        }
        options = options.get(4 + len.next_multiple_of(4)..)?;
    }
    None
}

/// Frames in a stretch of whole blocks.
pub fn count_frames(blocks: &[u8]) -> u64 {
    let mut left = u64::MAX;
    keep_frames(blocks, &mut left);
    u64::MAX - left
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
        assert_eq!(count_frames(&stream), 2);
        let mut left = 1;
        assert_eq!(
            keep_frames(&stream, &mut left),
            [block(1, &[]), block(6, &[7; 8]), block(5, &[])].concat()
        );
        assert!(Blocks::default().push(&[0; 8]).is_err());
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
