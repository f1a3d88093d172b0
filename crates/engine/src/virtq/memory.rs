//! From descriptors to pieces: translation with the last region remembered, and the list of chains that
//! have been taken but not given back.

use std::sync::Arc;
use std::time::Duration;

use super::config::{RingConfig, WriteLog};
use super::raw::{Raw, RawDesc};
use crate::mem::{prefetch_own, ticks, ticks_in, GuestMap, Piece, Pieces, Window, MAX_BATCH, MAX_PIECES};
use crate::util::fault::Fault;

use sidecore_abi::virtio::{features, DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE};

/// Which way the device uses the buffers of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The device reads them: the guest's transmit ring.
    Read,
    /// The device writes them: the guest's receive ring.
    Write,
}

/// A chain that was taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chain {
    /// Its first piece in the list that was given to `take`.
    pub start: u32,
    /// How many pieces.
    pub count: u16,
    /// Ring descriptors that it occupies (packed ring).
    pub(super) descs: u16,
    /// Bytes of all pieces.
    pub len: u32,
    /// The driver's name for it: head index (split) or buffer id (packed).
    pub(super) id: u16,
}

/// A chain that is being walked.
pub(super) struct Walked<'p> {
    pub(super) chain: Chain,
    pieces: &'p mut Pieces,
    /// Which way its buffers go from here on.
    pub(super) access: Access,
    /// A request: it may turn from readable to writable, once (virtio 1.2 §2.7.4.2).
    turns: bool,
    /// Pieces and bytes before the turn.
    turn: Option<(u16, u32)>,
}

impl Walked<'_> {
    /// All buffers go one way.
    pub(super) fn only(access: Access, pieces: &mut Pieces) -> Walked<'_> {
        let chain = Chain { start: place(pieces), ..Chain::default() };
        Walked { chain, pieces, access, turns: false, turn: None }
    }

    /// Readable buffers come first, writable ones follow.
    pub(super) fn request(pieces: &mut Pieces) -> Walked<'_> {
        Walked { turns: true, ..Walked::only(Access::Read, pieces) }
    }

    /// The next buffer goes the other way.
    #[inline(never)]
    fn turn(&mut self) -> Result<(), Fault> {
        if !self.turns {
            return Err(Fault::WrongDirection);
        }
        (self.access, self.turns) = (Access::Write, false);
        self.turn = Some((self.chain.count, self.chain.len));
        Ok(())
    }

    /// Pieces and bytes that the device reads: those before the turn, or all.
    pub(super) fn readable(&self) -> (u16, u32) {
        self.turn.unwrap_or((self.chain.count, self.chain.len))
    }

    #[inline]
    fn push(&mut self, piece: Piece) -> Result<(), Refusal> {
        if usize::from(self.chain.count) == MAX_PIECES {
            return Err(Fault::ChainTooLong.into());
        }
        if !self.pieces.push(piece) {
            return Err(Refusal::NoRoom);
        }
        self.chain.count += 1;
        Ok(())
    }

    /// Prefetches what the device touches first of a chain that goes `access` at its beginning.
    #[inline]
    pub(super) fn prefetch(&self, access: Access) {
        if let Some(piece) = self.pieces.range(self.chain.start as usize, 1).first() {
            prefetch_chain(piece, access);
        }
    }
}

/// Why a chain was not taken.
pub(super) enum Refusal {
    /// The list of pieces is full: the chain waits for the next batch.
    NoRoom,
    /// The driver lies.
    Fault(Fault),
}

impl Refusal {
    /// What it means for a ring, if anything. `alone`: the chain was the first one of an empty list; if not
    /// even that holds it, none will.
    pub(super) fn ends_ring(self, alone: bool) -> Option<Fault> {
        match self {
            Refusal::Fault(fault) => Some(fault),
            Refusal::NoRoom => alone.then_some(Fault::ChainTooLong),
        }
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Refusal {
        Refusal::Fault(fault)
    }
}

/// What both ring formats need to turn descriptors into pieces.
pub(super) struct Memory {
    map: Arc<GuestMap>,
    /// The region of the last hit.
    window: Window,
    indirect: bool,
    log: Option<Arc<dyn WriteLog>>,
    /// Where the used ring is for it, if that is to be logged.
    used_log: Option<u64>,
    /// Descriptors of chains that may still be read for the batch under way.
    left: u32,
    /// When its first indirect table was reached, if one was, and how long it may go on with others: ticks.
    begun: u64,
    time: u64,
    /// Time was up.
    pub(super) cut: bool,
}

/// Most descriptors that are read for one batch, some 15 ns each: those of a batch of frames with 16 pieces.
/// Empty ones count, which fill no list of pieces.
const MAX_DESCRIPTORS: u32 = 4096;
const _: () =
    assert!(MAX_DESCRIPTORS as usize >= MAX_PIECES, "a chain that waits for a batch of its own fits there");

/// How long indirect tables are followed for one batch: each may lie in a page that has to be found or
/// cleared first.
const TIME: Duration = Duration::from_micros(200);

impl Memory {
    pub(super) fn new(config: &RingConfig) -> Memory {
        if let Some(log) = &config.log {
            config.map.stretches().for_each(|(gpa, size)| log.find(gpa, size));
        }
        Memory {
            map: Arc::clone(&config.map),
            window: Window::EMPTY,
            indirect: config.features & features::INDIRECT_DESC != 0,
            log: config.log.clone(),
            used_log: config.used_log,
            left: MAX_DESCRIPTORS,
            begun: 0,
            time: ticks_in(TIME),
            cut: false,
        }
    }

    /// Another batch begins.
    pub(super) fn begin(&mut self) {
        (self.left, self.begun, self.cut) = (MAX_DESCRIPTORS, 0, false);
    }

    pub(super) fn is_truncated(&self) -> bool {
        self.map.is_truncated()
    }

    /// Adds the buffer of `desc`, which has these `flags`, to a chain.
    #[inline]
    pub(super) fn add(&mut self, to: &mut Walked<'_>, desc: RawDesc, flags: u16) -> Result<(), Refusal> {
        let RawDesc { addr, len, .. } = desc;
        if (flags & DESC_F_WRITE != 0) != (to.access == Access::Write) {
            to.turn()?;
        }
        self.left = self.left.checked_sub(1).ok_or(Refusal::NoRoom)?;
        if len == 0 {
            return Ok(());
        }
        to.chain.len = to.chain.len.checked_add(len).ok_or(Fault::ChainTooBig)?;
        if let Some(piece) = self.window.piece(addr, len) {
            return to.push(piece);
        }
        self.add_elsewhere(to, addr, len)
    }

    /// A buffer outside the region of the last one.
    #[cold]
    fn add_elsewhere(&mut self, to: &mut Walked<'_>, addr: u64, len: u32) -> Result<(), Refusal> {
        match self.map.window(addr, len) {
            Some(window) => {
                self.window = window;
                window.piece(addr, len).map_or(Ok(()), |piece| to.push(piece))
            }
            None => self.add_spanning(to, addr, len),
        }
    }

    /// A chain of one plain buffer in the region of the last one, as nearly all are. `None` means that it is
    /// another kind of chain, not that it is wrong.
    #[inline]
    pub(super) fn direct(
        &self,
        pieces: &mut Pieces,
        access: Access,
        RawDesc { addr, len, .. }: RawDesc,
        (flags, id): (u16, u16),
    ) -> Option<Chain> {
        let expected = if access == Access::Write { DESC_F_WRITE } else { 0 };
        if flags & (DESC_F_WRITE | DESC_F_NEXT | DESC_F_INDIRECT) != expected || len == 0 {
            return None;
        }
        let piece = self.window.piece(addr, len)?;
        let start = place(pieces);
        if !pieces.push(piece) {
            return None;
        }
        prefetch_chain(&piece, access);
        Some(Chain { start, count: 1, descs: 1, len, id })
    }

    /// A buffer may span regions that are adjacent in the guest, as hot-plugged memory is.
    #[cold]
    fn add_spanning(&self, to: &mut Walked<'_>, addr: u64, len: u32) -> Result<(), Refusal> {
        for piece in self.map.parts(addr, len) {
            to.push(piece.ok_or(Fault::AddressOutOfRange)?)?;
        }
        Ok(())
    }

    /// The indirect table that a descriptor names, with its number of entries (virtio 1.2 §2.7.5.3).
    /// [`Refusal::NoRoom`]: time for such tables is up, and the chain waits for the next batch.
    #[cold]
    pub(super) fn indirect(&mut self, addr: u64, len: u32, flags: u16) -> Result<(Raw, usize), Refusal> {
        if !self.indirect || len == 0 || len % 16 != 0 || flags & DESC_F_NEXT != 0 {
            return Err(Fault::BadIndirect.into());
        }
        let entries = len as usize / 16;
        if entries > MAX_PIECES {
            return Err(Fault::BadIndirect.into());
        }
        // The first one of a batch is always followed.
        if self.begun == 0 {
            self.begun = ticks();
        } else if ticks().wrapping_sub(self.begun) > self.time {
            self.cut = true;
            return Err(Refusal::NoRoom);
        }
        let piece = self.map.translate(addr, len, &mut 0).ok_or(Fault::AddressOutOfRange)?;
        if piece.as_ptr() as usize % 8 != 0 {
            return Err(Fault::BadIndirect.into());
        }
        Ok((Raw::new(&piece), entries))
    }

    /// Logs the first `len` bytes of `pieces` as written.
    pub(super) fn log_pieces(&self, pieces: &[Piece], len: u32) {
        let Some(log) = &self.log else { return };
        let mut left = len;
        for piece in pieces {
            let n = u32::try_from(piece.len()).unwrap_or(u32::MAX).min(left);
            if n == 0 {
                break;
            }
            if let Some(gpa) = self.map.gpa_of(piece) {
                log.wrote(gpa, n);
            }
            left -= n;
        }
    }

    /// Logs `len` bytes of the used ring as written, from byte `offset` on. The VMM names its address, and
    /// nothing says that it has named one at which so much follows: an address that wraps around is logged
    /// where it then is.
    #[inline]
    pub(super) fn log_used(&self, offset: usize, len: u32) {
        if let (Some(log), Some(gpa)) = (&self.log, self.used_log) {
            log.wrote(gpa.wrapping_add(offset as u64), len);
        }
    }

    /// Whether writes are logged.
    pub(super) fn logs(&self) -> bool {
        self.log.is_some()
    }
}

/// Whether a descriptor's flags ask for an indirect table.
pub(super) fn is_indirect(flags: u16) -> bool {
    flags & DESC_F_INDIRECT != 0
}

/// The chains that were taken and not yet given back, in ring order.
pub(super) struct TakenChains {
    chains: Box<[Chain]>,
    len: usize,
}

impl TakenChains {
    pub(super) fn new() -> TakenChains {
        TakenChains { chains: vec![Chain::default(); MAX_BATCH].into(), len: 0 }
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    #[inline]
    pub(super) fn push(&mut self, chain: Chain) {
        if let Some(place) = self.chains.get_mut(self.len) {
            *place = chain;
            self.len += 1;
        }
    }

    pub(super) fn as_slice(&self) -> &[Chain] {
        // `push` counts no further than there are places.
        self.chains.get(..self.len).unwrap_or_default()
    }
}

/// Place that the next piece gets. The list is far shorter than 2^32.
#[expect(clippy::cast_possible_truncation, reason = "BATCH_PIECES fits u32")]
fn place(pieces: &Pieces) -> u32 {
    pieces.len() as u32
}

/// Brings the lines of a chain's first piece that will be touched first, header and head, to be written if
/// so.
#[inline]
fn prefetch_chain(piece: &Piece, access: Access) {
    if access == Access::Write {
        prefetch_own(piece.as_ptr());
        prefetch_own(piece.as_ptr().wrapping_add(64));
    } else {
        piece.prefetch(0);
        piece.prefetch(64);
    }
}
