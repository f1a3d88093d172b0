//! Virtqueues as the device sees them: take a batch of chains, give a batch back, interrupt once.
//!
//! [`Queue`] is the one type that devices use; which format it is, is decided once per batch. There are
//! two ways to use it. Frames are taken and completed in order (`take`, `complete`), so one position says
//! where the ring stands. Requests complete in any order ([`Queue::requests`], `pick`, `finish`,
//! `publish`): each is known by a [`Token`] from the moment it is picked. Either way a batch becomes
//! visible with one store.
//! Every descriptor is read once into a local, every index is compared, every chain has a bounded life;
//! what only an attacker does has its own [`Fault`](crate::util::fault::Fault).
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod common;
mod config;
mod descriptors;
mod flight;
mod journal;
mod memory;
mod packed;
mod position;
mod raw;
mod region;
mod split;
#[cfg(test)]
mod tests;

pub use config::{RingConfig, RingConfigError, WriteLog};
pub use flight::{Request, Token};
pub use journal::PackedJournal;
pub use memory::{Access, Chain};
pub use position::Position;
pub use region::{BadRegion, Region, Whose};

use self::common::Common;
use self::flight::{Flight, Writer};
use self::packed::Packed;
use self::position::Cursor;
use self::region::{packed::Writer as PackedWriter, split::Writer as SplitWriter, Parts};
use self::split::Split;
use crate::mem::{Piece, Pieces, MAX_BATCH};
use crate::util::fault::Fault;
use crate::util::slice::upto;

enum Format {
    Split(Split),
    Packed(Packed),
}

/// A virtqueue.
pub struct Queue {
    format: Format,
    common: Common,
}

macro_rules! both {
    ($queue:expr, $ring:ident => $call:expr) => {
        match &$queue.format {
            Format::Split($ring) => $call,
            Format::Packed($ring) => $call,
        }
    };
    (mut $queue:expr, $ring:ident => $call:expr) => {
        match &mut $queue.format {
            Format::Split($ring) => $call,
            Format::Packed($ring) => $call,
        }
    };
}

impl Queue {
    /// A ring that starts at the position of its configuration and declines kicks.
    ///
    /// # Errors
    /// If the configuration does not describe a ring inside guest memory.
    pub fn new(config: RingConfig) -> Result<Queue, RingConfigError> {
        config.check()?;
        // What was taken and not given back counts as not taken.
        let position = match config.position {
            Position::Packed { used, .. } => Position::Packed { avail: used, used },
            position @ Position::Split(_) => position,
        };
        Ok(Queue::at(position, config, None))
    }

    /// A ring of requests, which complete in any order. IN_ORDER must not have been negotiated. If its
    /// in-flight region is about this ring, it goes on where that says, else it starts at the position of
    /// its configuration.
    ///
    /// # Errors
    /// If the configuration does not describe a ring inside guest memory, or its region none at all.
    pub fn requests(config: RingConfig) -> Result<Queue, RingConfigError> {
        config.check()?;
        let RingConfig { size, mut position, .. } = config;
        let packed = matches!(position, Position::Packed { .. });
        let mut flight = Box::new(Flight::new(size, packed));
        if let Some(region) = &config.region {
            let parts = Parts { desc: &config.desc, driver: &config.driver, device: &config.device, size };
            let mut free = 0;
            match region.recover(&parts, packed)? {
                Some(recovered) => {
                    (position, free) = (recovered.position, recovered.free);
                    flight.resume(recovered);
                    if let (Some(log), Some(gpa), true) = (&config.log, config.used_log, packed) {
                        // Some of its descriptors may have been made available again.
                        log.wrote(gpa, 16 * u32::from(size));
                    }
                }
                None => region.begin(&parts, position),
            }
            let (slot, whose) = region.whose();
            flight.write_into(match position {
                Position::Split(next) => {
                    let used = next.wrapping_sub(flight.flying);
                    Writer::Split(SplitWriter::new(slot, whose, size, used))
                }
                Position::Packed { used, .. } => {
                    let used = Cursor::from_bits(used);
                    Writer::Packed(PackedWriter::new(slot, size, used, free))
                }
            });
        }
        Ok(Queue::at(position, config, Some(flight)))
    }

    /// A ring on a configuration that has been checked.
    fn at(position: Position, config: RingConfig, flight: Option<Box<Flight>>) -> Queue {
        let common = Common::new(&config, flight);
        let format = match position {
            Position::Split(next) => Format::Split(Split::new(&config, next, &common)),
            Position::Packed { avail, used } => Format::Packed(Packed::new(config, avail, used)),
        };
        Queue { format, common }
    }

    /// Where the ring stands; chains that are taken but not completed count as not taken. With requests it
    /// is only right while none is in flight, but never unsafe to start from.
    pub fn position(&self) -> Position {
        both!(self, ring => ring.position())
    }

    /// Takes up to `want` available chains (at most `MAX_BATCH`); their buffers are appended to
    /// `pieces`. Chains that an earlier `take` took and that were not completed are taken again.
    ///
    /// # Errors
    /// What the driver did wrong. Good chains before the bad one are returned first.
    #[inline]
    pub fn take(&mut self, access: Access, want: usize, pieces: &mut Pieces) -> Result<usize, Fault> {
        self.common.taken.clear();
        self.common.begin()?;
        both!(mut self, ring => ring.take(&mut self.common, access, want.min(MAX_BATCH), pieces))?;
        match (self.common.broken, self.common.taken.as_slice()) {
            (Some(fault), []) => Err(fault),
            (_, taken) => Ok(taken.len()),
        }
    }

    /// Whether the last `take` left chains in the ring because following them took too long.
    pub fn was_cut(&self) -> bool {
        self.common.memory.cut
    }

    /// The chains of the last `take`.
    pub fn taken(&self) -> &[Chain] {
        self.common.taken.as_slice()
    }

    /// Chains will be given back in a moment: prefetches the line that publishes them, and the one that tells
    /// whether the driver wants an interrupt. `complete` has a barrier between the two, so nothing goes on
    /// there until the first one is here.
    #[inline]
    pub fn will_complete(&self) {
        both!(self, ring => ring.bring_marks());
    }

    /// Gives the first `n` taken chains back, with `len(i)` bytes written into chain `i`, publishes them
    /// with one store and interrupts the driver if it asked for it. True if it was interrupted.
    #[inline]
    pub fn complete(&mut self, n: usize, len: impl Fn(usize) -> u32) -> bool {
        let before = self.complete_quietly(n, false, len);
        n > 0 && self.wants_interrupt(before) && self.notify()
    }

    /// Gives the first `n` taken chains back after they were read.
    #[inline]
    pub fn complete_read(&mut self, n: usize) -> bool {
        let before = self.complete_quietly(n, true, |_| 0);
        n > 0 && self.wants_interrupt(before) && self.notify()
    }

    /// Gives the first `n` taken chains back as [`Queue::complete`] does, or with `read` as
    /// [`Queue::complete_read`], but does not interrupt. Returns the ring as it was before, for
    /// [`Queue::wants_interrupt`].
    #[inline]
    pub fn complete_quietly(&mut self, n: usize, read: bool, len: impl Fn(usize) -> u32) -> u16 {
        let Common { taken, memory, .. } = &mut self.common;
        let chains = upto(taken.as_slice(), n);
        both!(mut self, ring => {
            let before = ring.used_bits();
            if !chains.is_empty() {
                ring.complete((chains, memory), read, len);
                taken.clear();
            }
            before
        })
    }

    /// Whether the driver wants to know what was given back since the ring was as `before` says.
    pub fn wants_interrupt(&self, before: u16) -> bool {
        both!(self, ring => ring.wants_interrupt(before))
    }

    /// Interrupts the driver, whether it wants to know or not; true if there was an eventfd to signal.
    pub fn notify(&self) -> bool {
        self.common.notifier.raise()
    }

    /// Takes up to `want` waiting requests (at most `MAX_BATCH`) for good: each is in flight until it is
    /// finished and published. What the predecessor of this queue left in flight comes first. Their buffers
    /// are appended to `pieces`, what is known of them to `out`. `Ok(0)` while requests wait: `pieces` has no
    /// room for the next one.
    ///
    /// # Errors
    /// What the driver did wrong. Good requests before the bad one are returned first.
    pub fn pick(&mut self, want: usize, pieces: &mut Pieces, out: &mut Vec<Request>) -> Result<usize, Fault> {
        self.common.begin()?;
        let Common { flight, memory, broken, .. } = &mut self.common;
        debug_assert!(flight.is_some(), "a ring of requests");
        let Some(flight) = flight else { return Ok(0) };
        both!(mut self, ring => {
            let (mut offered, mut picked) = (ring.offered()?, 0);
            while picked < want.min(MAX_BATCH) {
                if flight.owed.is_empty() {
                    if offered == 0 || !ring.has_next(flight) {
                        break;
                    }
                    offered -= 1;
                }
                let before = pieces.len();
                match ring.request(memory, flight, pieces) {
                    Ok(request) => out.push(request),
                    Err(refusal) => {
                        pieces.truncate(before);
                        *broken = refusal.ends_ring(picked == 0 && before == 0);
                        break;
                    }
                }
                picked += 1;
            }
            ring.picked(memory);
            match *broken {
                Some(fault) if picked == 0 => Err(fault),
                _ => Ok(picked),
            }
        })
    }

    /// A picked request is done, `written` bytes of its writable pieces were written (from their start, as
    /// the driver reads it). The driver learns of it with the next `publish`. A token that is not in flight
    /// is a bug of the caller's, and ignored.
    pub fn finish(&mut self, token: Token, written: u32) {
        let known = self.common.flight.as_mut().is_some_and(|flight| flight.finish(token, written));
        debug_assert!(known, "{token:?} is not in flight");
    }

    /// Makes all finished requests visible with one store and interrupts the driver if it asked for it.
    /// True if it was interrupted.
    pub fn publish(&mut self) -> bool {
        let Common { flight: Some(flight), memory, .. } = &mut self.common else { return false };
        if flight.finished().next().is_none() {
            return false;
        }
        let before = both!(mut self, ring => {
            let before = ring.used_bits();
            ring.publish(memory, flight);
            before
        });
        self.wants_interrupt(before) && self.notify()
    }

    /// Requests that were picked and are not finished; owed ones among them.
    pub fn in_flight(&self) -> usize {
        self.common.flight.as_ref().map_or(0, |flight| flight.flying).into()
    }

    /// Requests that the predecessor of this queue left in flight, and that `pick` has not returned again
    /// yet.
    pub fn owed(&self) -> usize {
        self.common.flight.as_ref().map_or(0, |flight| flight.owed.len())
    }

    /// Asks for kicks or declines them. After asking, true means that chains are waiting already.
    pub fn want_kicks(&mut self, on: bool) -> bool {
        let waits = both!(mut self, ring => ring.want_kicks(&self.common.memory, on));
        waits || on && (self.common.broken.is_some() || self.common.owes())
    }

    /// Whether no chain waits to be taken.
    #[inline]
    pub fn is_empty(&self) -> bool {
        both!(self, ring => ring.is_empty()) && !self.common.owes()
    }

    /// Chains that wait to be taken, and entries of the ring.
    #[inline]
    pub fn room(&mut self) -> (u16, u16) {
        both!(mut self, ring => ring.room())
    }

    /// Whether the memory behind the ring was cut short: the port must stop.
    pub fn is_truncated(&self) -> bool {
        self.common.memory.is_truncated()
    }

    /// Whether writes must be logged with `log_written`.
    pub fn logs(&self) -> bool {
        self.common.memory.logs()
    }

    /// Logs the first `len` bytes of `pieces` as written by the device; before `complete`.
    pub fn log_written(&self, pieces: &[Piece], len: u32) {
        self.common.memory.log_pieces(pieces, len);
    }
}
