//! A guest's request (virtio 1.2 §5.2.6), read once and checked: header, data, status, cut into pieces
//! anywhere.
//!
//! The header and the ranges are copied into private memory before anything is decided, so a guest that
//! rewrites them meanwhile changes nothing. Data stay where they are: what is written to the disk, or read
//! from it, is the guest's own affair.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use sidecore_abi::virtio::blk::{
    request as kind, status, HEADER_LEN, ID_LEN, SECTOR, SEGMENT_LEN, SEGMENT_UNMAP,
};
use sidecore_abi::virtio::features as bit;

use super::features::{MAX_RANGE, MAX_RANGES};
use crate::disk::{Job, Op, Range, RequestError};
use crate::mem::{gather, Deadline, Piece};
use crate::util::slice::{behind, behind_mut, upto, upto_mut};

/// What requests are checked against.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of the disk.
    pub capacity: u64,
    /// Nothing may be written.
    pub read_only: bool,
    /// What was negotiated.
    pub features: u64,
    /// The disk's name.
    pub id: [u8; ID_LEN],
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Its job was begun.
    Job,
    /// It is answered already: it was for the disk's name, this number of bytes was written.
    Done(u32),
    /// It is refused.
    Bad(RequestError),
}

/// What to tell the driver of an error.
pub(super) fn status_of(error: RequestError) -> u8 {
    match error {
        RequestError::Unsupported => status::UNSUPP,
        _ => status::IOERR,
    }
}

/// Has the pages found that [`read`], and giving back, will touch: those of the header, of ranges, of the
/// disk's name, and of the status. False if that takes too long. For a request with header, data and status
/// in a piece each, as most have, the clock is not read: that is five pages at most.
pub(super) fn find(readable: &[Piece], writable: &[Piece], deadline: Deadline) -> bool {
    const RANGES: usize = HEADER_LEN + MAX_RANGES * SEGMENT_LEN;
    if let Some(last) = writable.iter().rev().find(|piece| !piece.is_empty()) {
        last_byte(last).touch();
    }
    readable.len() + writable.len() <= 3
        || deadline.find(readable, RANGES as u64) && deadline.find(writable, ID_LEN as u64)
}

/// Reads the request in `readable` and `writable` and makes a job of it. Returns the place of its status
/// byte, the last that the device may write (§5.2.6), if there is one.
pub(super) fn read(
    readable: &mut [Piece],
    writable: &mut [Piece],
    limits: &Limits,
    job: &mut Job,
) -> (Option<Piece>, Verdict) {
    let status = cut_last_byte(writable);
    if status.is_none() {
        return (None, Verdict::Bad(RequestError::NoStatus));
    }
    let verdict = judge(readable, writable, limits, job).unwrap_or_else(Verdict::Bad);
    (status, verdict)
}

/// Takes the last byte from `list`.
fn cut_last_byte(list: &mut [Piece]) -> Option<Piece> {
    let last = list.iter_mut().rev().find(|piece| !piece.is_empty())?;
    let byte = last_byte(last);
    *last = last.first(last.len() - 1);
    Some(byte)
}

/// The last byte of a piece that has one.
fn last_byte(piece: &Piece) -> Piece {
    let mut byte = *piece;
    byte.advance(piece.len().saturating_sub(1));
    byte
}

/// Bytes of all pieces: at most 2³² each.
fn sum(list: &[Piece]) -> u64 {
    list.iter().map(|piece| piece.len() as u64).sum()
}

fn judge(
    readable: &mut [Piece],
    writable: &mut [Piece],
    limits: &Limits,
    job: &mut Job,
) -> Result<Verdict, RequestError> {
    if sum(readable) < HEADER_LEN as u64 {
        return Err(RequestError::NoHeader);
    }
    let mut header = [0; HEADER_LEN];
    let at = gather(readable, 0, &mut header);
    let out = behind_mut(readable, at);
    let [a, b, c, d, _, _, _, _, place @ ..] = header;
    let sector = u64::from_le_bytes(place);
    match u32::from_le_bytes([a, b, c, d]) {
        kind::IN => {
            let len = sum(writable);
            job.transfer(Op::Read, transfer(sector, len, limits)?, writable, len);
        }
        kind::OUT => {
            if limits.read_only {
                return Err(RequestError::ReadOnly);
            }
            let len = sum(out);
            job.transfer(Op::Write, transfer(sector, len, limits)?, out, len);
        }
        // A driver that was not offered it asks for what holds anyway.
        kind::FLUSH => job.whole(Op::Flush, &[]),
        kind::GET_ID => {
            let mut rest = &limits.id[..];
            for piece in writable.iter() {
                let n = piece.write(rest);
                rest = behind(rest, n);
            }
            let written = ID_LEN - rest.len();
            return Ok(Verdict::Done(u32::try_from(written).unwrap_or(0)));
        }
        kind::DISCARD => ranges(Op::Discard, out, limits, job)?,
        kind::WRITE_ZEROES => ranges(Op::WriteZeroes, out, limits, job)?,
        _ => return Err(RequestError::Unsupported),
    }
    Ok(Verdict::Job)
}

/// The first byte of a transfer of `len` bytes from `sector` on.
fn transfer(sector: u64, len: u64, limits: &Limits) -> Result<u64, RequestError> {
    if len == 0 || len % SECTOR != 0 {
        return Err(RequestError::BadLength);
    }
    stretch(sector, len, limits)
}

/// The first byte of `len` bytes from `sector` on, if they are on the disk.
fn stretch(sector: u64, len: u64, limits: &Limits) -> Result<u64, RequestError> {
    let at = sector.checked_mul(SECTOR).ok_or(RequestError::BeyondCapacity)?;
    let end = at.checked_add(len).ok_or(RequestError::BeyondCapacity)?;
    if end > limits.capacity {
        return Err(RequestError::BeyondCapacity);
    }
    Ok(at)
}

/// Reads the ranges of a discard, or of a request to write zeroes (§5.2.6).
fn ranges(op: Op, out: &mut [Piece], limits: &Limits, job: &mut Job) -> Result<(), RequestError> {
    let needs = if op == Op::Discard { bit::BLK_DISCARD } else { bit::BLK_WRITE_ZEROES };
    if limits.features & needs == 0 {
        return Err(RequestError::Unsupported);
    }
    if limits.read_only {
        return Err(RequestError::ReadOnly);
    }
    let len = usize::try_from(sum(out)).unwrap_or(usize::MAX);
    let count = len / SEGMENT_LEN;
    if len % SEGMENT_LEN != 0 || !(1..=MAX_RANGES).contains(&count) {
        return Err(RequestError::BadLength);
    }
    let mut bytes = [0; MAX_RANGES * SEGMENT_LEN];
    gather(out, 0, upto_mut(&mut bytes, len));
    let mut list = [Range::default(); MAX_RANGES];
    for (range, bytes) in list.iter_mut().zip(upto(&bytes, len).chunks_exact(SEGMENT_LEN)) {
        let word = |at: usize| {
            bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_le_bytes)
        };
        let sector = u64::from(word(0)) | u64::from(word(4)) << 32;
        let (sectors, flags) = (word(8), word(12));
        // §5.2.6.2: a flag that is not known, and `unmap` in a discard.
        let known = if op == Op::Discard { 0 } else { SEGMENT_UNMAP };
        if flags & !known != 0 {
            return Err(RequestError::Unsupported);
        }
        if sectors > MAX_RANGE {
            return Err(RequestError::BadLength);
        }
        let len = u64::from(sectors) * SECTOR;
        *range = Range { at: stretch(sector, len, limits)?, len, unmap: flags & SEGMENT_UNMAP != 0 };
    }
    job.whole(op, upto(&list, count));
    Ok(())
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
