//! Copies of frames in memory of our own, for a core that deals with senders and receivers apart (`deliver`).

use crate::mem::{Arena, Pieces};
use crate::packet::{Batch, Picked, HEAD};

/// Frames that are copied at a time.
const SLOTS: usize = 16;
/// Bytes of the largest frame, with room to spare: 64 KiB and its headers.
const SLOT: usize = 66 * 1024;

/// Private copies of frames.
pub(super) struct Private {
    pub(super) batch: Batch,
    arena: Arena,
    bytes: Vec<u8>,
}

impl Private {
    pub(super) fn new() -> Private {
        Private { batch: Batch::new(), arena: Arena::new(SLOTS, SLOT), bytes: Vec::with_capacity(SLOT) }
    }

    /// Copies as many `picked` frames as there is room for; returns the others.
    pub(super) fn fill<'p>(&mut self, picked: Picked<'p>) -> Picked<'p> {
        self.batch.clear();
        let (now, later) = picked.split_at(SLOTS);
        for (slot, frame) in now.frames().enumerate() {
            let (len, long) = (frame.len as usize, (frame.len as usize).saturating_sub(HEAD).min(SLOT));
            self.bytes.resize(long, 0);
            now.batch.read(frame, HEAD, &mut self.bytes);
            let copy = (long > 0).then(|| self.arena.put(slot, &self.bytes, 0));
            let add = |pieces: &mut Pieces| copy.is_none_or(|copy| pieces.push(copy));
            self.batch.push_with(&frame.head, len, frame.offload, add);
        }
        later
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_copy_has_the_bytes_of_all_pieces() {
        let mut memory = Arena::new(1, 1000);
        let bytes: Vec<u8> = (0..1000).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let mut batch = Batch::new();
        for len in [60, 64, 65, 164, 1064] {
            let (frame, pieces) = batch.next_frame().unwrap();
            frame.head.fill(u8::try_from(len % 256).unwrap());
            let whole =
                memory.put(0, &bytes, 0).first(usize::try_from(len).unwrap_or(0).saturating_sub(HEAD));
            let (first, mut second) = (whole.first(whole.len() / 3), whole);
            second.advance(first.len());
            (frame.len, frame.piece, frame.pieces) = (len, u32::try_from(pieces.len()).unwrap(), 2);
            assert!(pieces.push(first) && pieces.push(second));
            batch.commit();
        }
        let mut private = Private::new();
        assert!(private.fill(batch.only(&[4, 0, 1, 2, 3])).picks.is_empty());
        for (frame, len) in private.batch.frames().iter().zip([1064, 60, 64, 65, 164]) {
            assert_eq!((frame.len, frame.head[0]), (len, u8::try_from(len % 256).unwrap()));
            let mut got = vec![0; (len as usize).saturating_sub(HEAD)];
            let body = private.batch.body(frame);
            assert_eq!(body.iter().map(crate::mem::Piece::len).sum::<usize>(), got.len());
            body.iter().for_each(|piece| assert_eq!(piece.read(&mut got), got.len()));
            assert_eq!(got, bytes[..got.len()]);
        }
        // More than there is room for are copied in turns.
        let many = vec![0u16; SLOTS + 3];
        assert_eq!((private.fill(batch.only(&many)).picks.len(), private.batch.len()), (3, SLOTS));
    }
}
