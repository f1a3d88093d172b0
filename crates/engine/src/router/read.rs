//! Bytes of a frame wherever they lie: in its head, or in its sender's memory behind it.

use crate::packet::{Batch, Frame, HEAD};
use crate::slice::{behind, behind_mut, put, upto};

/// Copies the bytes of `frame` from `from` on into `to`; returns how many there were. What lies behind the head may change with
/// each reading: it is read once.
pub(super) fn read(batch: &Batch, frame: &Frame, from: usize, to: &mut [u8]) -> usize {
    let len = (frame.len as usize).saturating_sub(from).min(to.len());
    let Some(to) = to.get_mut(..len) else { return 0 };
    let near = behind(upto(&frame.head, frame.head_len()), from);
    put(to, 0, near);
    let mut done = near.len().min(len);
    let mut skip = (from + done).saturating_sub(HEAD);
    for piece in batch.body(frame) {
        if done >= len {
            break;
        }
        let mut piece = *piece;
        skip -= piece.advance(skip);
        done += piece.read(behind_mut(to, done));
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Arena;

    #[test]
    fn bytes_are_read_across_head_and_pieces() {
        let bytes: Vec<u8> = (0..=255).collect();
        let mut arena = Arena::new(2, 256);
        let mut batch = Batch::new();
        let (frame, pieces) = batch.next_frame().unwrap();
        frame.head.copy_from_slice(&bytes[..HEAD]);
        (frame.len, frame.piece, frame.pieces) = (200, 0, 2);
        let near = arena.put(0, &bytes[..100], HEAD);
        let far = arena.put(1, &bytes[..200], 100);
        assert!(pieces.push(near) && pieces.push(far));
        batch.commit();
        let frame = &batch.frames()[0];
        for (from, len) in
            [(0, 10), (0, 200), (60, 8), (64, 30), (90, 20), (100, 100), (150, 80), (200, 5), (300, 1)]
        {
            let mut to = vec![0; len];
            let done = read(&batch, frame, from, &mut to);
            assert_eq!(done, len.min(200usize.saturating_sub(from)), "{from} {len}");
            assert_eq!(to[..done], bytes[from.min(200)..(from + done).min(200).max(from.min(200))]);
        }
    }
}
