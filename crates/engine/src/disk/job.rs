//! A request that was found sound, and how far it has come.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use crate::mem::Piece;

/// What is to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Op {
    /// From the disk to the pieces.
    #[default]
    Read,
    /// From the pieces to the disk.
    Write,
    /// What was written, and acknowledged, lasts.
    Flush,
    /// The ranges are of no interest any more.
    Discard,
    /// The ranges read as zeros from now on.
    WriteZeroes,
}

/// A stretch of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// Its first byte.
    pub at: u64,
    /// Bytes.
    pub len: u64,
    /// Its room may be given back.
    pub unmap: bool,
}

/// A request. Its pieces lie in memory that its maker keeps mapped until it is done with; it is used again
/// and again, so that its lists are not allocated anew.
#[derive(Debug, Default)]
pub struct Job {
    /// What is to be done.
    pub op: Op,
    /// The place of the next byte of a read or write.
    pub at: u64,
    /// Bytes of pieces that are left.
    left: u64,
    /// The pieces, those done with advanced to their ends.
    pieces: Vec<Piece>,
    /// The first that is not.
    next: usize,
    /// For discards and zeroes.
    ranges: Vec<Range>,
    /// It cannot be carried out in memory: the kernel has to.
    pub(super) is_for_kernel: bool,
    /// How fallocate(2) was asked to clear the next range; `None`: it is written.
    pub(super) clearing: Option<i32>,
    /// What it changes is flushed before it is over.
    pub(super) is_flushed: bool,
    /// A flush: the count of begun and ended flushes from which on it has been carried out (`file`); 0: not
    /// known yet.
    pub(super) covered_at: u64,
}

impl Job {
    /// Begins anew: a read or write of `pieces`, `len` bytes in all, at byte `at`.
    pub fn transfer(&mut self, op: Op, at: u64, pieces: &[Piece], len: u64) {
        (self.op, self.at, self.left, self.next) = (op, at, len, 0);
        (self.is_for_kernel, self.is_flushed, self.covered_at) = (false, false, 0);
        self.pieces.clear();
        self.pieces.extend_from_slice(pieces);
        self.ranges.clear();
    }

    /// Begins anew: something that is done to `ranges`, or to the whole disk.
    pub fn whole(&mut self, op: Op, ranges: &[Range]) {
        self.transfer(op, 0, &[], 0);
        self.ranges.extend_from_slice(ranges);
    }

    /// Bytes that are left: of a read or write, or of all ranges.
    pub fn left(&self) -> u64 {
        self.left + self.ranges.iter().map(|range| range.len).sum::<u64>()
    }

    /// The pieces of a read or write that are left; the first may be half done.
    pub fn pieces(&self) -> &[Piece] {
        self.pieces.get(self.next..).unwrap_or(&[])
    }

    /// The next piece, or its first `most` bytes.
    #[inline]
    pub fn next_piece(&mut self, most: u64) -> Option<Piece> {
        let most = usize::try_from(self.left.min(most)).unwrap_or(usize::MAX);
        loop {
            let piece = self.pieces.get(self.next)?.first(most);
            if !piece.is_empty() || most == 0 {
                return Some(piece).filter(|piece| !piece.is_empty());
            }
            self.next += 1;
        }
    }

    /// The next range, or its first `most` bytes.
    pub fn next_range(&mut self, most: u64) -> Option<Range> {
        while self.ranges.first().is_some_and(|range| range.len == 0) {
            self.ranges.remove(0);
        }
        self.ranges.first().map(|range| Range { len: range.len.min(most), ..*range })
    }

    /// `done` bytes of what `next_piece` or `next_range` said, or of several pieces together, are done.
    #[inline]
    pub fn advance(&mut self, done: u64) {
        if let Some(range) = self.ranges.first_mut() {
            let done = done.min(range.len);
            (range.at, range.len) = (range.at + done, range.len - done);
            return;
        }
        let mut rest = done.min(self.left);
        (self.at, self.left) = (self.at + rest, self.left - rest);
        while rest > 0 {
            let Some(piece) = self.pieces.get_mut(self.next) else { return };
            rest -= piece.advance(usize::try_from(rest).unwrap_or(usize::MAX)) as u64;
            if piece.is_empty() {
                self.next += 1;
            }
        }
    }

    /// Nothing is left to do.
    pub fn finish(&mut self) {
        self.left = 0;
        self.ranges.clear();
        self.next = self.pieces.len();
    }

    /// Whether nothing is left.
    pub fn is_done(&self) -> bool {
        match self.op {
            Op::Read | Op::Write => self.left == 0,
            Op::Flush => true,
            Op::Discard | Op::WriteZeroes => self.ranges.iter().all(|range| range.len == 0),
        }
    }
}
