//! Requests: what a caller wants, and how it is laid out in memory.
//!
//! Each request that can be in flight has a slot of its own: 64 bytes for header and status, a buffer on a
//! page boundary, and a table for an indirect chain. A request is found again by the name that the ring gave
//! its chain.

use std::sync::Arc;

use sidecore_abi::virtio::blk::{request, status, HEADER_LEN, ID_LEN, SEGMENT_LEN, SEGMENT_UNMAP};

use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::queue::{Buf, Table};

/// Sectors of a discard or of zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first.
    pub sector: u64,
    /// How many.
    pub sectors: u32,
    /// WRITE_ZEROES: the device may give their room back.
    pub unmap: bool,
}

/// What the device shall do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Read `len` bytes.
    Read {
        /// The first sector.
        sector: u64,
        /// Bytes, a multiple of 512.
        len: usize,
    },
    /// Write.
    Write {
        /// The first sector.
        sector: u64,
        /// What; a multiple of 512 bytes.
        data: &'a [u8],
    },
    /// Write what the buffer happens to hold: load for which the bytes are no matter.
    WriteAnything {
        /// The first sector.
        sector: u64,
        /// Bytes, a multiple of 512.
        len: usize,
    },
    /// Make all that was answered before last.
    Flush,
    /// These sectors hold nothing of interest any more.
    Discard(&'a [Range]),
    /// These sectors read as zeroes from now on.
    WriteZeroes(&'a [Range]),
    /// The disk's serial number.
    Id,
    /// Any header and any bytes, sensible or not: `data` is read by the device, then `writable` bytes are
    /// written by it.
    Raw {
        /// Type of the request.
        kind: u32,
        /// The header's sector.
        sector: u64,
        /// What the device reads.
        data: &'a [u8],
        /// Bytes that it may write before the status.
        writable: usize,
    },
}

impl Request<'_> {
    /// Type, sector, and the bytes that the device reads and writes beside header and status.
    fn parts(&self) -> (u32, u64, usize, usize) {
        match *self {
            Self::Read { sector, len } => (request::IN, sector, 0, len),
            Self::Write { sector, data } => (request::OUT, sector, data.len(), 0),
            Self::WriteAnything { sector, len } => (request::OUT, sector, len, 0),
            Self::Flush => (request::FLUSH, 0, 0, 0),
            Self::Discard(ranges) => (request::DISCARD, 0, ranges.len() * SEGMENT_LEN, 0),
            Self::WriteZeroes(ranges) => (request::WRITE_ZEROES, 0, ranges.len() * SEGMENT_LEN, 0),
            Self::Id => (request::GET_ID, 0, 0, ID_LEN),
            Self::Raw { kind, sector, data, writable } => (kind, sector, data.len(), writable),
        }
    }
}

/// How the device answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Ok,
    /// An error of the device, or a request that cannot be.
    IoError,
    /// The device does not know this request.
    Unsupported,
    /// A byte that no specification names; [`Status::UNWRITTEN`] if the device wrote none.
    Other(u8),
}

impl Status {
    /// What stands in a status that the device did not write.
    pub const UNWRITTEN: u8 = 0xa5;

    fn new(byte: u8) -> Self {
        match byte {
            status::OK => Self::Ok,
            status::IOERR => Self::IoError,
            status::UNSUPP => Self::Unsupported,
            other => Self::Other(other),
        }
    }
}

/// How a request is cut into descriptors. All are legal (§2.7.4, §5.2.6.1); a device must take each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// Header, data and status in a descriptor each, as Linux does.
    #[default]
    Usual,
    /// Header and written data in one descriptor, read data and status in one.
    Joined,
    /// As [`Shape::Joined`], each side cut into so many pieces, at least one byte each.
    Pieces(u8),
}

/// Bytes from one control area to the next.
const CONTROL: usize = 64;
/// The status in a control area: in the line of the header.
const STATUS: usize = 32;
/// Space before a buffer, so that a header can stand in front of its data.
const PAGE: usize = 4096;

/// One request's memory.
#[derive(Debug)]
pub(super) struct RequestSlot {
    control: usize,
    data: usize,
    status: usize,
    table: Option<Table>,
    /// Its chain, for a caller that must offer it once more.
    pub(super) chain: Vec<Buf>,
    /// Bytes that the device may write before the status.
    pub(super) writable: usize,
}

/// How large a slot is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Bytes of data.
    pub(super) largest: usize,
    /// Descriptors of the table; 0: none.
    pub(super) table: usize,
}

impl Room {
    fn buffer(self) -> usize {
        // A joined header before it, a joined status behind it.
        PAGE + (self.largest + 1).next_multiple_of(PAGE)
    }

    /// Bytes that `slots` take, with what alignment loses.
    pub(super) fn bytes(self, slots: usize) -> usize {
        slots * (CONTROL + self.table * 16 + self.buffer()) + slots * 16 + 2 * PAGE
    }

    /// Takes memory for `slots`.
    pub(super) fn slots(self, memory: &Arc<Memory>, slots: usize) -> Result<Vec<RequestSlot>> {
        let control = memory.alloc(CONTROL * slots, CONTROL)?;
        let data = memory.alloc(self.buffer() * slots, PAGE)?;
        (0..slots)
            .map(|n| {
                let table = (self.table > 0).then(|| Table::new(memory, self.table)).transpose()?;
                let control = control + n * CONTROL;
                let data = data + n * self.buffer() + PAGE;
                Ok(RequestSlot { control, data, status: 0, table, chain: Vec::new(), writable: 0 })
            })
            .collect()
    }
}

impl RequestSlot {
    /// The table for an indirect chain.
    pub(super) fn table(&self) -> Option<&Table> {
        self.table.as_ref()
    }

    /// Writes the request into memory and makes its chain.
    pub(super) fn write(
        &mut self,
        memory: &Memory,
        wanted: &Request,
        shape: Shape,
        largest: usize,
    ) -> Result<()> {
        let (kind, sector, readable, writable) = wanted.parts();
        if readable + writable > largest {
            return Err(Error::Config(format!(
                "a request of {} bytes: the disk was made for {largest}",
                readable + writable
            )));
        }
        let mut header = [0; HEADER_LEN];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&sector.to_le_bytes());
        let behind = self.data + readable + writable;
        let (header_at, status_at) = match shape {
            Shape::Usual => (self.control, self.control + STATUS),
            Shape::Joined | Shape::Pieces(_) => (self.data - HEADER_LEN, behind),
        };
        memory.write(header_at, &header);
        match *wanted {
            Request::Write { data, .. } | Request::Raw { data, .. } => memory.write(self.data, data),
            Request::Discard(ranges) | Request::WriteZeroes(ranges) => {
                for (n, range) in ranges.iter().enumerate() {
                    memory.write(self.data + n * SEGMENT_LEN, &segment(range));
                }
            }
            Request::Read { .. } | Request::WriteAnything { .. } | Request::Flush | Request::Id => {}
        }
        memory.write(status_at, &[Status::UNWRITTEN]);
        (self.status, self.writable) = (status_at, writable);
        self.chain.clear();
        let data = Side { at: self.data, len: readable, write: false };
        let into = Side { at: self.data + readable, len: writable, write: true };
        match shape {
            Shape::Usual => {
                let header = Side { at: header_at, len: HEADER_LEN, write: false };
                let status = Side { at: status_at, len: 1, write: true };
                [header, data, into, status].iter().for_each(|side| self.cut(memory, *side, 1));
            }
            Shape::Joined | Shape::Pieces(_) => {
                let pieces = if let Shape::Pieces(n) = shape { usize::from(n.max(1)) } else { 1 };
                self.cut(memory, Side { at: header_at, len: HEADER_LEN + readable, write: false }, pieces);
                self.cut(memory, Side { len: into.len + 1, ..into }, pieces);
            }
        }
        Ok(())
    }

    /// Adds one side's bytes to the chain, in at most `pieces`; nothing if there are none.
    fn cut(&mut self, memory: &Memory, side: Side, pieces: usize) {
        let (mut at, end) = (side.at, side.at + side.len);
        for left in (1..=pieces.min(side.len)).rev() {
            let len = (end - at).div_ceil(left);
            let short = u32::try_from(len).unwrap_or(u32::MAX);
            self.chain.push(Buf { addr: memory.gpa(at), len: short, write: side.write });
            at += len;
        }
    }

    /// The device's answer.
    pub(super) fn status(&self, memory: &Memory) -> Status {
        let mut byte = [0];
        memory.read(self.status, &mut byte);
        Status::new(byte[0])
    }

    /// Where what the device wrote lies.
    pub(super) fn answer(&self) -> usize {
        let readable: usize = self.chain.iter().filter(|buf| !buf.write).map(|buf| buf.len as usize).sum();
        self.data + readable - HEADER_LEN
    }
}

/// The bytes of one direction.
#[derive(Clone, Copy)]
struct Side {
    at: usize,
    len: usize,
    write: bool,
}

fn segment(range: &Range) -> [u8; SEGMENT_LEN] {
    let mut bytes = [0; SEGMENT_LEN];
    bytes[..8].copy_from_slice(&range.sector.to_le_bytes());
    bytes[8..12].copy_from_slice(&range.sectors.to_le_bytes());
    let flags = if range.unmap { SEGMENT_UNMAP } else { 0 };
    bytes[12..].copy_from_slice(&flags.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Page;

    fn chain(wanted: &Request, shape: Shape) -> Vec<(usize, bool)> {
        let room = Room { largest: 8192, table: 0 };
        let memory = Memory::new(room.bytes(1), Page::Small).unwrap();
        let mut slot = room.slots(&memory, 1).unwrap().remove(0);
        slot.write(&memory, wanted, shape, room.largest).unwrap();
        assert_eq!(slot.status(&memory), Status::Other(Status::UNWRITTEN));
        slot.chain.iter().map(|buf| (buf.len as usize, buf.write)).collect()
    }

    #[test]
    fn every_shape_has_the_same_bytes() {
        let data = [7; 1024];
        let write = Request::Write { sector: 3, data: &data };
        let read = Request::Read { sector: 3, len: 512 };
        assert_eq!(chain(&write, Shape::Usual), [(16, false), (1024, false), (1, true)]);
        assert_eq!(chain(&read, Shape::Usual), [(16, false), (512, true), (1, true)]);
        assert_eq!(chain(&write, Shape::Joined), [(1040, false), (1, true)]);
        assert_eq!(chain(&read, Shape::Joined), [(16, false), (513, true)]);
        assert_eq!(
            chain(&read, Shape::Pieces(3)),
            [(6, false), (5, false), (5, false), (171, true), (171, true), (171, true)]
        );
        assert_eq!(chain(&Request::Flush, Shape::Pieces(2)), [(8, false), (8, false), (1, true)]);
    }

    #[test]
    fn a_request_larger_than_its_place_is_refused() {
        let room = Room { largest: 512, table: 0 };
        let memory = Memory::new(room.bytes(1), Page::Small).unwrap();
        let mut slot = room.slots(&memory, 1).unwrap().remove(0);
        let read = Request::Read { sector: 0, len: 1024 };
        assert!(slot.write(&memory, &read, Shape::Usual, room.largest).is_err());
    }
}
