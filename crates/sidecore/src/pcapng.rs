//! Cutting a pcapng stream (draft-ietf-opsawg-pcapng §3.1) into its blocks: each is a type, a length that
//! counts the whole block, a body, and the length again; ours are little-endian.

/// The type of a block that holds a frame.
const ENHANCED_PACKET: u32 = 6;
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
}
