//! Frames and batches: up to [`MAX_BATCH`] Ethernet frames taken from one port together.
//!
//! A frame is described in place. Its first [`HEAD`] bytes and its offload facts were read once, into
//! private memory, when it was fetched: every decision (lookup, policy, segmentation) is made on them
//! and they are what the receiver gets, so a sender that rewrites its buffer meanwhile fools nobody.
//! The rest is a list of [`Piece`]s in the sender's memory, copied once, straight into the receiver.
//!
//! A batch lives from `IngressQueue::fetch` to `IngressQueue::release`; the pieces are valid just as
//! long. It is allocated when the core starts and never grows.

use crate::mem::{Piece, Pieces};
pub use crate::mem::{BATCH_PIECES, MAX_BATCH, MAX_PIECES};
use crate::wire::offload::Offload;

/// Bytes of each frame that are kept in private memory: one cache line.
pub const HEAD: usize = 64;

/// One Ethernet frame.
#[repr(C, align(64))]
pub struct Frame {
    /// The first bytes; those beyond `len` are zero or stale and mean nothing.
    pub head: [u8; HEAD],
    /// Bytes of the frame, from the Ethernet header on, without FCS and offload header.
    pub len: u32,
    /// First of its pieces in the batch.
    pub piece: u32,
    /// How many pieces hold the bytes behind the head.
    pub pieces: u16,
    /// What the receiver has to know or do about checksum and segmentation.
    pub offload: Offload,
}

impl Frame {
    const BLANK: Frame = Frame { head: [0; HEAD], len: 0, piece: 0, pieces: 0, offload: Offload::NONE };

    /// Bytes of the frame that are in `head`.
    #[inline]
    pub fn head_len(&self) -> usize {
        (self.len as usize).min(HEAD)
    }

    /// Destination address as the low 48 bits of a little-endian word.
    #[inline]
    pub fn dst(&self) -> u64 {
        word(&self.head, 0) & 0xffff_ffff_ffff
    }

    /// Source address as the low 48 bits of a little-endian word.
    #[inline]
    pub fn src(&self) -> u64 {
        word(&self.head, 4) >> 16
    }
}

#[inline]
fn word(head: &[u8; HEAD], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&head[at..at + 8]);
    u64::from_le_bytes(bytes)
}

/// Whether an address (as `Frame::dst` gives it) is a group address: IEEE 802-2014 §8.2.2, the lowest
/// bit of the first byte.
#[inline]
pub fn is_group(mac: u64) -> bool {
    mac & 1 == 1
}

/// Frames taken together from one queue.
pub struct Batch {
    frames: Box<[Frame]>,
    len: usize,
    limit: usize,
    /// The pieces of all frames.
    pub pieces: Pieces,
    /// Whether any frame carries an offload request, so that the plain case is one test a batch.
    pub any_offload: bool,
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Batch {
    /// An empty batch with all the memory that it will ever have.
    pub fn new() -> Batch {
        Batch {
            frames: (0..MAX_BATCH).map(|_| Frame::BLANK).collect(),
            len: 0,
            limit: MAX_BATCH,
            pieces: Pieces::new(BATCH_PIECES),
            any_offload: false,
        }
    }

    /// Empties it.
    #[inline]
    pub fn clear(&mut self) {
        self.len = 0;
        self.pieces.clear();
        self.any_offload = false;
    }

    /// At most so many frames are to be fetched into it, from now on.
    #[inline]
    pub fn set_limit(&mut self, frames: usize) {
        self.limit = frames.min(self.frames.len());
    }

    /// Number of frames.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many more frames may be fetched.
    #[inline]
    pub fn room(&self) -> usize {
        self.limit.saturating_sub(self.len)
    }

    /// The frames.
    #[inline]
    pub fn frames(&self) -> &[Frame] {
        &self.frames[..self.len]
    }

    /// The place for the next frame, with whatever an earlier one left in it. It becomes part of the
    /// batch by [`Batch::commit`]. `None` if the batch is full.
    #[inline]
    pub fn next_frame(&mut self) -> Option<(&mut Frame, &mut Pieces)> {
        let frame = self.frames.get_mut(self.len)?;
        Some((frame, &mut self.pieces))
    }

    /// Takes the frame that was filled in at [`Batch::next_frame`] into the batch.
    #[inline]
    pub fn commit(&mut self) {
        debug_assert!(self.len < self.frames.len());
        self.any_offload |= !self.frames[self.len].offload.is_none();
        self.len += 1;
    }

    /// The same for a frame without offloads.
    #[inline]
    pub fn commit_plain(&mut self) {
        debug_assert!(self.len < self.frames.len() && self.frames[self.len].offload.is_none());
        self.len += 1;
    }

    /// The pieces behind the head of `frame`.
    #[inline]
    pub fn body(&self, frame: &Frame) -> &[Piece] {
        self.pieces.range(frame.piece as usize, frame.pieces as usize)
    }
}

impl Batch {
    /// Appends a frame that fits whole into the head: for frames that the engine makes itself.
    /// False if it is longer, or the batch is full.
    pub fn push_short(&mut self, bytes: &[u8]) -> bool {
        let Some((frame, _)) = self.next_frame() else { return false };
        let Some(head) = frame.head.get_mut(..bytes.len()) else { return false };
        head.copy_from_slice(bytes);
        frame.len = u32::try_from(bytes.len()).unwrap_or(0);
        frame.pieces = 0;
        frame.offload = Offload::NONE;
        self.commit();
        true
    }
}
