//! Virtqueues as the device sees them: take a batch of chains, give a batch back, interrupt once.
//!
//! Both formats complete chains in the order in which they were taken and publish a batch with one
//! store. [`Queue`] is the one type that devices use; which format it is, is decided once per batch.
//! Every descriptor is read once into a local, every index is compared, every chain has a bounded life;
//! what only an attacker does has its own [`Fault`](crate::fault::Fault).
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod config;
mod descriptors;
mod journal;
mod memory;
mod packed;
mod position;
mod raw;
mod split;

pub use config::{Notifier, RingConfig, RingConfigError, WriteLog};
pub use journal::Journal;
pub use memory::{Access, Chain};
pub use position::Position;

use self::memory::Memory;
use self::packed::Packed;
use self::split::Split;
use crate::fault::Fault;
use crate::mem::{Piece, Pieces};

enum Format {
    Split(Split),
    Packed(Packed),
}

/// A virtqueue.
pub struct Queue {
    format: Format,
    size: u16,
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
        let size = config.size;
        let format = match config.position {
            Position::Split(next) => Format::Split(Split::new(config, next)),
            Position::Packed { used, .. } => Format::Packed(Packed::new(config, used)),
        };
        Ok(Queue { format, size })
    }

    /// Entries of the ring.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// `split` or `packed`.
    pub fn kind(&self) -> &'static str {
        match self.format {
            Format::Split(_) => "split",
            Format::Packed(_) => "packed",
        }
    }

    /// Where the ring stands; chains that are taken but not completed count as not taken.
    pub fn position(&self) -> Position {
        both!(self, ring => ring.position())
    }

    /// Takes up to `want` available chains (at most `MAX_BATCH`); their buffers are appended to
    /// `pieces`. Chains that an earlier `take` took and nobody completed are taken again.
    ///
    /// # Errors
    /// What the driver did wrong. Good chains before the bad one are returned first.
    #[inline]
    pub fn take(&mut self, access: Access, want: usize, pieces: &mut Pieces) -> Result<usize, Fault> {
        both!(mut self, ring => ring.take(access, want, pieces))
    }

    /// Whether the last `take` left chains in the ring because following them took too long.
    pub fn was_cut(&self) -> bool {
        self.memory().was_cut()
    }

    /// The chains of the last `take`.
    #[inline]
    pub fn taken(&self) -> &[Chain] {
        both!(self, ring => ring.taken())
    }

    /// Gives the first `n` taken chains back, with `len(i)` bytes written into chain `i`, publishes them
    /// with one store and interrupts the driver if it asked for it. True if it was interrupted.
    #[inline]
    pub fn complete(&mut self, n: usize, len: impl Fn(usize) -> u32) -> bool {
        self.complete_as(n, false, len)
    }

    /// Gives the first `n` taken chains back after they were read.
    #[inline]
    pub fn complete_read(&mut self, n: usize) -> bool {
        self.complete_as(n, true, |_| 0)
    }

    #[inline]
    fn complete_as(&mut self, n: usize, skip: bool, len: impl Fn(usize) -> u32) -> bool {
        if n == 0 {
            return false;
        }
        both!(mut self, ring => {
            let before = ring.next();
            ring.complete(n, skip, len);
            ring.interrupt(before)
        })
    }

    /// Asks for kicks or declines them. After asking, true means that chains are waiting already.
    pub fn want_kicks(&mut self, on: bool) -> bool {
        both!(mut self, ring => ring.want_kicks(on))
    }

    /// Whether no chain waits to be taken.
    #[inline]
    pub fn is_empty(&self) -> bool {
        both!(self, ring => ring.is_empty())
    }

    /// Chains that wait to be taken, and entries of the ring.
    #[inline]
    pub fn room(&mut self) -> (u16, u16) {
        both!(mut self, ring => ring.room())
    }

    fn memory(&self) -> &Memory {
        both!(self, ring => ring.memory())
    }

    /// Whether the memory behind the ring was cut short: the port must stop.
    #[inline]
    pub fn is_truncated(&self) -> bool {
        self.memory().is_truncated()
    }

    /// Whether writes must be logged with `log_written`.
    #[inline]
    pub fn logs(&self) -> bool {
        self.memory().logs()
    }

    /// Logs the first `len` bytes of `pieces` as written by the device; before `complete`.
    pub fn log_written(&self, pieces: &[Piece], len: u32) {
        self.memory().log_pieces(pieces, len);
    }
}
