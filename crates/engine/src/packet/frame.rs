//! Frames and batches: up to [`MAX_BATCH`] Ethernet frames taken from one port together.
//!
//! A frame is described in place. Its first [`HEAD`] bytes and its offload facts were read once, into private
//! memory, when it was fetched. Every decision (lookup, policy, segmentation) is made on these bytes, and the
//! receiver gets them, so a sender that rewrites its buffer meanwhile changes nothing. The rest is a list of
//! [`Piece`]s in the sender's memory, copied once, straight into the receiver.
//!
//! A batch lives from `IngressQueue::fetch` to `IngressQueue::release`; the pieces are valid just as
//! long. It is allocated when the core starts and never grows.

use std::time::Duration;

use super::checksum::Sum;
use super::ether::TAGS;
use super::offload::{Gso, Offload};
use crate::mem::{gather, ticks, ticks_in, Arena, Deadline, Piece, Pieces};
pub use crate::mem::{BATCH_PIECES, MAX_BATCH, MAX_PIECES};
use crate::util::slice::{behind, behind_mut, put, upto};

/// The picks of all frames of a full batch. A *pick* is a frame's number in its batch.
pub(crate) static ALL: [u16; MAX_BATCH] = {
    let mut all = [0; MAX_BATCH];
    let mut i = 0;
    while i < MAX_BATCH {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::indexing_slicing,
            reason = "below MAX_BATCH; checked as it is compiled"
        )]
        {
            all[i] = i as u16;
        }
        i += 1;
    }
    all
};

/// Bytes of each frame that are kept in private memory: one cache line.
pub const HEAD: usize = 64;

/// What the frames of a batch may cost unless the caller of the fetch says otherwise, in bytes to copy. Twice
/// the bytes of 256 frames of the usual MTU, and a dozen of the largest: some 0.15 ms of a core. Without a
/// bound 256 frames of 64 KiB were 16 MiB, and 3 ms.
pub const BATCH_COST: u32 = 768 * 1024;
/// How long they are fetched unless it is said otherwise.
const BATCH_TIME: Duration = Duration::from_micros(200);
/// How long a batch may take at least, where one of its frames is odd.
const LEAST_TIME: Duration = Duration::from_micros(20);
/// A look at the pages of the first frame has so long, however little of a visit is left: those of 256
/// pieces, where they are there.
const LOOK: Duration = Duration::from_micros(100);
/// What it costs to cut one segment off, beside its bytes, should the receiver not accept the frame whole:
/// headers to write, a checksum to make, a place in the receiver's ring. Segments of the usual size hardly
/// count; 256 frames of 1,024 segments would be 30 ms.
pub const SEGMENT_COST: u32 = 512;

/// While frames are fetched the clock is read once for this many of them, and first behind `FIRST_LOOK`.
/// Reading a frame takes some 20 ns, unless its page has to be found or cleared first: that is up to a
/// millisecond for huge pages, and may be so for each frame of a hostile guest.
const FRAMES_A_LOOK: usize = 32;
const FIRST_LOOK: usize = 4;

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
    pub fn head_len(&self) -> usize {
        (self.len as usize).min(HEAD)
    }

    /// Those bytes.
    pub fn head(&self) -> &[u8] {
        self.head.get(..self.head_len()).unwrap_or(&self.head)
    }

    /// What it costs to deliver it, in bytes to copy.
    #[inline]
    pub fn cost(&self) -> u32 {
        match self.offload.gso {
            Gso::None => self.len,
            _ => self.len.saturating_add(self.segments().saturating_mul(SEGMENT_COST)),
        }
    }

    /// Segments that it will be cut into, here or by its receiver; headers are counted as payload.
    #[inline]
    pub fn segments(&self) -> u32 {
        match self.offload.gso {
            Gso::None => 1,
            _ => self.len.div_ceil(u32::from(self.offload.gso_size).max(1)),
        }
    }

    /// Destination address as the low 48 bits of a little-endian word.
    pub fn dst(&self) -> u64 {
        word(&self.head, 0) & 0xffff_ffff_ffff
    }

    /// Source address as the low 48 bits of a little-endian word.
    pub fn src(&self) -> u64 {
        word(&self.head, 4) >> 16
    }
}

fn word(head: &[u8; HEAD], at: usize) -> u64 {
    head.get(at..).and_then(|bytes| bytes.first_chunk()).copied().map_or(0, u64::from_le_bytes)
}

/// The address of all stations, as `Frame::dst` gives it.
pub const BROADCAST: u64 = 0xffff_ffff_ffff;

/// Longest frame: the largest IP packet with its Ethernet header and two VLAN tags.
pub const MAX_FRAME: u32 = 65_535 + 14 + 8;
/// Tags of VLAN 0 that a router takes off a frame: a sender has reason for one, and a provider for another.
pub(super) const PRIORITIES: u32 = 2;
/// Shortest frame: an Ethernet header.
pub const MIN_FRAME: u32 = 14;

/// Whether an address (as `Frame::dst` gives it) is a group address: IEEE 802-2014 §8.2.2, the lowest
/// bit of the first byte.
pub fn is_group(mac: u64) -> bool {
    mac & 1 == 1
}

/// The pieces that hold bytes `from..to` of a frame whose bytes behind the head are those of `body`, as far
/// as they lie there.
#[inline]
pub fn stretch(body: &[Piece], from: usize, to: usize) -> impl Iterator<Item = Piece> + '_ {
    let mut end = HEAD;
    body.iter().filter_map(move |piece| {
        let begin = end;
        end += piece.len();
        (end > from && begin < to).then(|| {
            let mut part = *piece;
            part.advance(from.saturating_sub(begin));
            part.first(to - begin.max(from))
        })
    })
}

/// The sum over bytes `from..to` of a frame with this head, whose bytes behind it are those of `body`.
pub fn sum(head: &[u8], body: &[Piece], from: usize, to: usize) -> Sum {
    let mut sum = Sum::of(behind(upto(head, to), from));
    for mut part in stretch(body, from, to) {
        let mut chunk = [0; 1024];
        while !part.is_empty() {
            let n = part.read(&mut chunk);
            part.advance(n);
            sum.add(upto(&chunk, n));
        }
    }
    sum
}

/// Frames taken together from one queue.
pub struct Batch {
    frames: Box<[Frame]>,
    len: usize,
    /// Frames that were looked at: those that it has, and those that were dropped instead.
    seen: usize,
    limit: usize,
    /// What its frames cost, in bytes to copy, and may cost: it ends with the frame that reaches that, and
    /// what is left waits in the sender's ring for its next turn.
    cost: u32,
    most: u32,
    /// When fetching into it began, and how long it may take: ticks.
    begun: u64,
    time: u64,
    /// It took longer.
    late: bool,
    /// The pieces of all frames.
    pub pieces: Pieces,
    /// Whether any frame carries an offload request, so that the plain case is one test a batch.
    pub any_offload: bool,
    /// Headers that were [read once](Batch::see_through). None before the first.
    pub(super) headers: Option<Arena>,
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

/// Some frames of a batch.
#[derive(Clone, Copy)]
pub struct Picked<'b> {
    /// The batch.
    pub batch: &'b Batch,
    /// The numbers of the frames.
    pub picks: &'b [u16],
}

impl<'b> Picked<'b> {
    /// The frames.
    #[inline]
    pub fn frames(self) -> impl Iterator<Item = &'b Frame> {
        self.picks.iter().map(move |pick| self.batch.frame(*pick))
    }

    /// The first `most` of them, and the others.
    #[inline]
    pub fn split_at(self, most: usize) -> (Picked<'b>, Picked<'b>) {
        let (first, others) = self.picks.split_at(most.min(self.picks.len()));
        (self.batch.only(first), self.batch.only(others))
    }
}

impl Batch {
    /// An empty batch with all the memory that it will ever have.
    pub fn new() -> Batch {
        Batch {
            frames: (0..MAX_BATCH).map(|_| Frame::BLANK).collect(),
            len: 0,
            seen: 0,
            limit: MAX_BATCH,
            cost: 0,
            most: BATCH_COST,
            begun: 0,
            time: ticks_in(BATCH_TIME),
            late: false,
            pieces: Pieces::new(BATCH_PIECES),
            any_offload: false,
            headers: None,
        }
    }

    /// Empties it.
    #[inline]
    pub fn clear(&mut self) {
        (self.len, self.seen, self.cost, self.late) = (0, 0, 0, false);
        self.pieces.clear();
        self.any_offload = false;
    }

    /// Leaves only its first frames; pieces that were theirs stay until it is cleared.
    #[cold]
    pub fn truncate(&mut self, frames: usize) {
        self.len = self.len.min(frames);
    }

    /// Leaves only those frames whose numbers are to be kept.
    #[cold]
    pub fn retain(&mut self, keep: impl Fn(u16) -> bool) {
        let mut kept = 0;
        for (at, number) in (0..self.len).zip(0..) {
            if keep(number) {
                self.frames.swap(kept, at);
                kept += 1;
            }
        }
        self.len = kept;
    }

    /// Its frames were dealt with by the queue that they came from: they are not part of it any more, but
    /// were looked at.
    #[cold]
    pub fn consume(&mut self) {
        self.len = 0;
        self.pieces.clear();
        self.any_offload = false;
    }

    /// From now on at most this many frames are to be fetched into it. The time for the fetch begins.
    #[inline]
    pub fn set_limit(&mut self, frames: usize) {
        self.begun = ticks();
        self.limit = frames.min(self.frames.len());
    }

    /// Its frames may cost `bytes` to copy, and take `time` ticks to fetch.
    #[inline]
    pub fn set_bounds(&mut self, bytes: u64, time: u64) {
        self.most = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.time = time;
    }

    /// When fetching into it began: ticks.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// Touches each page in which bytes of its frames lie.
    #[cold]
    pub fn touch(&self) {
        self.frames().iter().for_each(|frame| {
            Deadline::NEVER.find(self.body(frame), u64::MAX);
        });
    }

    /// Number of frames.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many more frames may be fetched, if they cost little. A device that has taken several from a ring
    /// at once asks [`Batch::is_spent`] before each of them.
    #[inline]
    pub fn room(&self) -> usize {
        if self.is_spent() {
            return 0;
        }
        self.limit.saturating_sub(self.seen)
    }

    /// Frames that were looked at: its own, and those that were [skipped](Batch::skip).
    pub fn seen(&self) -> usize {
        self.seen
    }

    /// When time is up. However little is left, a look at the pages of one frame fits, so that a device that
    /// begins anew with each visit gets on.
    #[inline]
    pub fn deadline(&self) -> Deadline {
        let least = ticks_in(LEAST_TIME);
        // Without bounds there is no time at which it began.
        let time = if self.begun == 0 { u64::MAX } else { self.time.max(least) };
        Deadline::new(self.begun, time, if self.seen == 0 { ticks_in(LOOK) } else { 0 })
    }

    /// A frame was looked at. Ends the batch if that has taken too long, now and then.
    #[inline]
    fn saw(&mut self) {
        self.seen += 1;
        if self.seen % FRAMES_A_LOOK == 0 || self.seen == FIRST_LOOK {
            self.look();
        }
    }

    #[inline]
    fn look(&mut self) {
        if ticks().wrapping_sub(self.begun) > self.time && self.begun != 0 {
            self.late = true;
        }
    }

    /// A frame was looked at and is dropped: it takes room as the others do. What makes a frame bad may lie
    /// in memory that has to be found first, so the clock is read for each.
    #[cold]
    pub fn skip(&mut self) {
        self.seen += 1;
        self.look();
    }

    /// `frames` went another way, as in a pipe, and count as looked at.
    pub fn passed(&mut self, frames: usize) {
        self.seen += frames;
    }

    /// Whether its frames cost so much, or took so long, that no more may be fetched.
    pub fn is_spent(&self) -> bool {
        self.cost >= self.most || self.late
    }

    /// Whether its frames took too long.
    pub fn is_late(&self) -> bool {
        self.late
    }

    /// What its frames cost, in bytes to copy.
    pub fn cost(&self) -> u32 {
        self.cost
    }

    /// The frames.
    pub fn frames(&self) -> &[Frame] {
        self.frames.get(..self.len).unwrap_or(&[])
    }

    /// All its frames.
    #[inline]
    pub fn all(&self) -> Picked<'_> {
        self.only(ALL.get(..self.len).unwrap_or(&[]))
    }

    /// The frames with the numbers `picks`.
    #[inline]
    pub fn only<'b>(&'b self, picks: &'b [u16]) -> Picked<'b> {
        Picked { batch: self, picks }
    }

    /// The frames, whose heads a router rewrites.
    pub fn frames_mut(&mut self) -> &mut [Frame] {
        self.frames.get_mut(..self.len).unwrap_or(&mut [])
    }

    /// One of them.
    #[inline]
    pub fn frame(&self, pick: u16) -> &Frame {
        static NONE: Frame = Frame::BLANK;
        self.frames().get(usize::from(pick)).unwrap_or(&NONE)
    }

    /// The place for the next frame, with whatever an earlier one left in it. It becomes part of the
    /// batch by [`Batch::commit`]. `None` if the batch is full.
    #[inline]
    pub fn next_frame(&mut self) -> Option<(&mut Frame, &mut Pieces)> {
        let frame = self.frames.get_mut(self.len)?;
        Some((frame, &mut self.pieces))
    }

    /// As [`Batch::commit`], for a frame whose first bytes may have lain in several pieces, each in a page of
    /// its own: the clock is read for each such frame.
    #[inline]
    pub fn commit_odd(&mut self) {
        self.commit();
        self.look();
    }

    /// Takes the frame that was filled in at [`Batch::next_frame`] into the batch.
    #[inline]
    pub fn commit(&mut self) {
        let Some(frame) = self.frames.get(self.len) else { return };
        self.any_offload |= !frame.offload.is_none();
        self.cost = self.cost.saturating_add(frame.cost());
        self.len += 1;
        self.saw();
    }

    /// [`Batch::commit`] for a frame without offloads.
    #[inline]
    pub fn commit_plain(&mut self) {
        let Some(frame) = self.frames.get(self.len) else { return };
        debug_assert!(frame.offload.is_none());
        self.cost = self.cost.saturating_add(frame.len);
        self.len += 1;
        self.saw();
    }

    /// Has the first bytes behind the head of frame `index` be `bytes`, which outlive the batch, instead of
    /// as many of its own. False, and nothing is done: there is no room for its pieces and one more.
    #[cold]
    pub fn put_behind_head(&mut self, index: usize, bytes: Piece) -> bool {
        let Some(frame) = self.frames.get_mut(..self.len).and_then(|frames| frames.get_mut(index)) else {
            return false;
        };
        let (first, count) = (frame.piece as usize, usize::from(frame.pieces));
        if self.pieces.room() <= count || count >= MAX_PIECES {
            return false;
        }
        let start = self.pieces.len();
        let (mut skip, mut fits) = (bytes.len(), self.pieces.push(bytes));
        for at in first..first + count {
            let Some(mut rest) = self.pieces.range(at, 1).first().copied() else { break };
            skip -= rest.advance(skip);
            fits &= rest.is_empty() || self.pieces.push(rest);
        }
        match (u32::try_from(start), u16::try_from(self.pieces.len() - start), fits) {
            (Ok(piece), Ok(pieces), true) => {
                (frame.piece, frame.pieces) = (piece, pieces);
                true
            }
            _ => {
                self.pieces.truncate(start);
                false
            }
        }
    }

    /// Takes the tags off its frames that only tell a priority: those of VLAN 0 (802.1Q §6.9.1, table 9-2),
    /// [`PRIORITIES`] of each at most.
    pub fn take_priorities(&mut self) {
        let [customer, ..] = TAGS.map(u16::to_be_bytes);
        for frame in self.frames.iter_mut().take(self.len) {
            let most = frame.len - frame.len.min(4 * PRIORITIES);
            // A header is left behind the tag.
            while frame.len > most
                && frame.head[12..14] == customer
                && [frame.head[14] & 0xf, frame.head[15]] == [0; 2]
                && frame.len >= MIN_FRAME + 4
            {
                frame.head.copy_within(16.., 12);
                let body = self.pieces.range_mut(frame.piece as usize, frame.pieces.into());
                let (_, end) = frame.head.split_at_mut(HEAD - 4);
                let taken = gather(body, 0, end);
                frame.piece += u32::try_from(taken).unwrap_or(0);
                frame.pieces -= u16::try_from(taken).unwrap_or(0);
                (frame.len, frame.offload) = (frame.len - 4, frame.offload.moved(4, 0));
            }
        }
    }

    /// The pieces behind the head of `frame`.
    pub fn body(&self, frame: &Frame) -> &[Piece] {
        self.pieces.range(frame.piece as usize, frame.pieces as usize)
    }

    /// Copies the bytes of `frame` from `from` on into `to`, wherever they lie; returns how many there were.
    /// What lies behind the head may change with each reading: it is read once.
    pub fn read(&self, frame: &Frame, from: usize, to: &mut [u8]) -> usize {
        let len = (frame.len as usize).saturating_sub(from).min(to.len());
        let Some(to) = to.get_mut(..len) else { return 0 };
        let near = behind(upto(&frame.head, frame.head_len()), from);
        put(to, 0, near);
        let mut done = near.len().min(len);
        for piece in stretch(self.body(frame), from + done, from + len) {
            done += piece.read(behind_mut(to, done));
        }
        done
    }

    /// Appends a frame that is described as `frame`, whose bytes behind the head are those of `body`. False
    /// if there is no room.
    pub fn push_described(&mut self, frame: &Frame, body: &[Piece]) -> bool {
        if self.pieces.room() < body.len() {
            return false;
        }
        let Some((place, pieces)) = self.next_frame() else { return false };
        (place.head, place.len, place.offload) = (frame.head, frame.len, frame.offload);
        (place.piece, place.pieces) = (u32::try_from(pieces.len()).unwrap_or(0), frame.pieces);
        let fits = body.iter().all(|piece| pieces.push(*piece));
        debug_assert!(fits && body.len() == usize::from(frame.pieces));
        self.commit();
        true
    }

    /// Appends a frame that fits whole into the head: for frames that the engine makes itself.
    /// False if it is longer, or the batch is full.
    pub fn push_short(&mut self, bytes: &[u8]) -> bool {
        bytes.len() <= HEAD && self.push_with(bytes, bytes.len(), Offload::NONE, |_| true)
    }

    /// Appends a frame of `len` bytes: those of `head` that fit into its head, and behind them the pieces
    /// that `add` adds. False if that says so, or the batch is full.
    pub fn push_with(
        &mut self,
        head: &[u8],
        len: usize,
        offload: Offload,
        add: impl FnOnce(&mut Pieces) -> bool,
    ) -> bool {
        let Some((frame, pieces)) = self.next_frame() else { return false };
        put(&mut frame.head, 0, head);
        let first = pieces.len();
        let fits = add(pieces);
        let count = u16::try_from(pieces.len() - first);
        let (Ok(piece), Ok(count), Ok(len), true) = (u32::try_from(first), count, u32::try_from(len), fits)
        else {
            pieces.truncate(first);
            return false;
        };
        (frame.piece, frame.pieces, frame.len, frame.offload) = (piece, count, len, offload);
        self.commit();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Arena;

    fn cost(frames: usize, len: u32, gso_size: u16) -> (usize, u32) {
        let mut batch = Batch::new();
        batch.set_bounds(BATCH_COST.into(), u64::MAX);
        let mut taken = 0;
        while taken < frames && batch.room() > 0 {
            let (frame, _) = batch.next_frame().unwrap();
            let gso = if gso_size == 0 { Gso::None } else { Gso::Tcp4 };
            (frame.len, frame.offload) = (len, Offload { gso, gso_size, ..Offload::NONE });
            batch.commit();
            taken += 1;
        }
        (taken, batch.cost)
    }

    #[test]
    fn a_batch_ends_when_its_frames_take_too_long() {
        let fill = |batch: &mut Batch, time: u64| {
            batch.clear();
            batch.set_bounds(u64::MAX, time);
            batch.set_limit(MAX_BATCH);
            while batch.room() > 0 && batch.push_short(&[0; 60]) {}
            batch.len()
        };
        let mut batch = Batch::new();
        assert_eq!((fill(&mut batch, u64::MAX), batch.is_late()), (MAX_BATCH, false));
        // However fast they come, the first look finds that they took longer.
        assert_eq!((fill(&mut batch, 0), fill(&mut batch, 0)), (FIRST_LOOK, FIRST_LOOK));
        assert!(batch.is_late());
    }

    #[test]
    fn dropped_frames_take_room_and_time() {
        let mut batch = Batch::new();
        batch.set_bounds(u64::MAX, u64::MAX);
        batch.set_limit(3);
        assert!(batch.push_short(&[0; 60]));
        batch.skip();
        assert_eq!((batch.len(), batch.seen(), batch.room()), (1, 2, 1));
        batch.skip();
        assert_eq!((batch.room(), batch.is_late()), (0, false));
        batch.clear();
        batch.set_bounds(u64::MAX, 0);
        batch.set_limit(MAX_BATCH);
        assert!(batch.push_short(&[0; 60]) && !batch.is_late());
        batch.skip();
        assert!(batch.is_late() && batch.room() == 0);
        // One whose head lay anywhere.
        batch.clear();
        batch.set_limit(MAX_BATCH);
        batch.next_frame().unwrap().0.offload = Offload::NONE;
        batch.commit_odd();
        assert!(batch.is_late() && batch.len() == 1);
    }

    #[test]
    fn a_batch_ends_with_the_frame_that_is_too_much() {
        assert_eq!(cost(MAX_BATCH, 1514, 0), (MAX_BATCH, 256 * 1514));
        assert_eq!(cost(MAX_BATCH, 65_549, 0).0, 12);
        // As many segments as a frame may have.
        assert_eq!(cost(MAX_BATCH, 65_536, 64).0, 2);
        assert_eq!(cost(MAX_BATCH, 1514, 536).0, 256);
        let mut batch = Batch::new();
        assert!(batch.push_short(&[0; 60]) && batch.cost == 60);
        batch.clear();
        assert_eq!((batch.cost, batch.room()), (0, MAX_BATCH));
        batch.set_limit(3);
        assert_eq!(batch.room(), 3);
    }

    /// A tag that tells a priority goes, wherever the frame's bytes lie, and no other one.
    #[test]
    fn priorities_are_taken_off() {
        let rest: Vec<u8> = (0..100).collect();
        for (tags, left) in
            [(vec![0u16], 0), (vec![0xe000], 0), (vec![0, 0], 0), (vec![0, 7], 1), (vec![7], 1), (vec![], 0)]
        {
            for (len, cuts) in
                [(0, vec![]), (40, vec![]), (50, vec![]), (100, vec![64, 65, 66, 70]), (100, vec![64, 100])]
            {
                let tag = |tci: &u16| [0x8100u16, *tci].map(u16::to_be_bytes).concat();
                let tagged = |tags: &[u16]| {
                    [&[2; 12][..], &tags.iter().flat_map(tag).collect::<Vec<_>>(), &[8, 0], &rest[..len]]
                        .concat()
                };
                let bytes = tagged(&tags);
                let ends = cuts
                    .iter()
                    .copied()
                    .chain([bytes.len()])
                    .filter(|end| *end > HEAD && *end <= bytes.len());
                let mut begin = HEAD;
                let parts: Vec<_> = ends
                    .map(|end| std::mem::replace(&mut begin, end)..end)
                    .filter(|it| !it.is_empty())
                    .collect();
                let mut arena = Arena::new(parts.len().max(1), 256);
                let pieces: Vec<_> = parts
                    .iter()
                    .enumerate()
                    .map(|(slot, part)| arena.put(slot, &bytes[..part.end], part.start))
                    .collect();
                let offload =
                    Offload { flags: Offload::NEEDS_CSUM, csum_start: 60, csum_offset: 6, ..Offload::NONE };
                let mut batch = Batch::new();
                assert!(batch.push_with(&bytes, bytes.len(), offload, |all| pieces
                    .iter()
                    .all(|piece| all.push(*piece))));
                batch.take_priorities();
                let expected = tagged(&tags[tags.len() - left..]);
                let frame = batch.frame(0);
                let mut got = vec![0; expected.len()];
                assert_eq!(
                    (frame.len as usize, batch.read(frame, 0, &mut got)),
                    (expected.len(), expected.len()),
                    "{tags:?} {len}"
                );
                assert_eq!(got, expected, "{tags:?} {cuts:?}");
                assert_eq!(usize::from(frame.offload.csum_start) + bytes.len() - expected.len(), 60);
            }
        }
    }

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
            let done = batch.read(frame, from, &mut to);
            assert_eq!(done, len.min(200usize.saturating_sub(from)), "{from} {len}");
            assert_eq!(to[..done], bytes[from.min(200)..(from + done).min(200).max(from.min(200))]);
        }
    }
}
