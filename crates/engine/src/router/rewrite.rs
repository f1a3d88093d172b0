//! What becomes of the heads of frames that go on, once it is decided: noted for each frame, done for all.

use super::header::{L3, ND_LONGEST, V4_LONGEST, V6_LEN};
use super::made::{Arrival, Made};
use super::plan::Interface;
use crate::mem::{Arena, Piece};
use crate::observe::account::PortId;
use crate::packet::{update, Batch, Frame, Offload, HEAD, MAX_BATCH, MAX_PIECES};

/// What is to be done with a frame's head. Offsets in heads count from the Ethernet header, which has 14
/// bytes and no tag.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rewrite {
    /// Destination and source station.
    macs: [u8; 12],
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Nothing,
    Forward4,
    Forward6,
    Echo4,
    Echo6,
}

const NOTHING: Rewrite = Rewrite { macs: [0; 12], what: What::Nothing };

impl Rewrite {
    /// To station `mac`, from ours.
    #[inline]
    pub fn forward(mac: u64, from: &[u8; 6], v6: bool) -> Rewrite {
        let [a, b, c, d, e, f] = *from;
        let from = u128::from(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]));
        let macs = (u128::from(mac & 0xffff_ffff_ffff) | from << 48).to_le_bytes();
        let what = if v6 { What::Forward6 } else { What::Forward4 };
        Rewrite { macs: macs.first_chunk().copied().unwrap_or_default(), what }
    }

    /// Back to its sender, as an answer.
    pub fn echo(frame: &Frame, from: &Interface, v6: bool) -> Rewrite {
        let what = if v6 { What::Echo6 } else { What::Echo4 };
        Rewrite { what, ..Rewrite::forward(frame.src(), &from.mac, v6) }
    }
}

/// What was judged lies behind a frame's head for so long at most: the rest of an IPv4 header, or of a
/// message of Neighbor Discovery.
const TAIL: usize = L3 + V6_LEN + ND_LONGEST - HEAD;
const _: () = assert!(L3 + V4_LONGEST <= HEAD + TAIL);

/// What is to be done to the frames of a batch, and the frames that routers make: one core's, for all its
/// routers.
pub struct RewriteBuffer {
    rewrites: Box<[Rewrite]>,
    /// Whether any is noted.
    any: bool,
    /// Ends of what was judged: whose they are, and where they were copied to.
    tails: Vec<(usize, Piece)>,
    arena: Arena,
    /// Slots of it that are in use.
    used: usize,
    /// Pieces that the batch will need for them.
    promised: usize,
    pub(super) made: Made,
}

impl RewriteBuffer {
    /// With all the memory that it will ever need, for frames that pass up to `routers` routers, one after
    /// the other.
    pub fn for_routers(routers: usize) -> RewriteBuffer {
        RewriteBuffer {
            rewrites: vec![NOTHING; MAX_BATCH].into(),
            any: false,
            tails: Vec::with_capacity(MAX_BATCH),
            arena: Arena::new(MAX_BATCH * routers, TAIL),
            used: 0,
            promised: 0,
            made: Made::new(),
        }
    }

    /// For the next batch, when nothing of those before is on its way any more.
    pub fn clear(&mut self) {
        self.next();
        self.used = 0;
        self.made.clear();
    }

    /// For the next batch. Bytes that frames of those before it have here stay what they are.
    pub fn next(&mut self) {
        if std::mem::take(&mut self.any) {
            self.rewrites.fill(NOTHING);
        }
        self.tails.clear();
        self.promised = 0;
        self.made.next();
    }

    #[inline]
    pub(super) fn put(&mut self, frame: usize, rewrite: Rewrite) {
        if let Some(place) = self.rewrites.get_mut(frame) {
            (*place, self.any) = (rewrite, true);
        }
    }

    /// `bytes`, which were read behind the head of the frame and judged, are what its receiver gets there.
    /// False: the batch has no room for that. Once for each frame.
    #[cold]
    pub(super) fn keep(&mut self, arrival: Arrival, bytes: &[u8]) -> bool {
        let Arrival { batch, index, frame, .. } = arrival;
        let pieces = usize::from(frame.pieces) + 1;
        let fits = self.used < self.arena.slots() && bytes.len() <= TAIL && self.tails.len() < MAX_BATCH;
        if !fits || pieces > MAX_PIECES || self.promised + pieces > batch.pieces.room() {
            return false;
        }
        self.promised += pieces;
        self.tails.push((index, self.arena.put(self.used, bytes, 0)));
        self.used += 1;
        true
    }

    /// Does what was noted to the frames of `batch`.
    pub fn rewrite(&self, batch: &mut Batch) {
        for (index, bytes) in &self.tails {
            let fits = batch.put_behind_head(*index, *bytes);
            debug_assert!(fits, "`keep` has looked for room");
        }
        for (frame, rewrite) in batch.frames_mut().iter_mut().zip(&self.rewrites) {
            let head = &mut frame.head;
            match rewrite.what {
                What::Nothing => continue,
                // The time to live. `Router::way` sends no frame on that has none left.
                What::Forward4 => {
                    let left = head[22].saturating_sub(1);
                    replace(&mut head[22..26], left, true);
                }
                // The hop limit, which no checksum covers.
                What::Forward6 => head[21] = head[21].saturating_sub(1),
                What::Echo4 => answer(frame, false),
                What::Echo6 => answer(frame, true),
            }
            frame.head[..12].copy_from_slice(&rewrite.macs);
        }
    }

    /// Frames that were made, and the ports that they are for.
    pub fn made(&self) -> (&Batch, &[PortId]) {
        (&self.made.batch, &self.made.to)
    }
}

/// Makes the first of four bytes a `value`. It is of a word of the checksum that stands in the last two,
/// which follows if it is `summed` already.
#[inline]
fn replace(bytes: &mut [u8], value: u8, summed: bool) {
    let [first, second, high, low] = bytes else { return };
    let old = u16::from_be_bytes([*first, *second]);
    *first = value;
    if summed {
        let sum = update(u16::from_be_bytes([*high, *low]), old, u16::from_be_bytes([value, *second]));
        [*high, *low] = sum.to_be_bytes();
    }
}

/// Makes an echo request of `frame` its reply (RFC 792, RFC 4443 §4.2): addresses exchanged, and the type,
/// with the checksums that follow from it.
fn answer(frame: &mut Frame, v6: bool) {
    // The rest of a partial checksum is added later, with the new type.
    let whole = frame.offload.flags & Offload::NEEDS_CSUM == 0;
    let head = &mut frame.head;
    if v6 {
        head[22..54].rotate_left(16);
        head[21] = 64;
        replace(&mut head[54..58], 129, whole);
    } else {
        head[26..34].rotate_left(4);
        replace(&mut head[22..26], 64, true);
        replace(&mut head[34..38], 0, whole);
    }
}
