//! What both ring formats have in common, and the choice between them. The choice is made once per
//! batch, not once per frame.

use std::sync::atomic::Ordering;

use sidecore_abi::virtio::{packed, split};

use crate::error::Result;
use crate::frontend::RingAddresses;
use crate::memory::{Memory, View};
use crate::packed::Packed;
use crate::split::Split;
use std::sync::Arc;

/// One piece of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buf {
    /// Guest physical address.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// The device writes it (else it reads it).
    pub write: bool,
}

/// What was negotiated about a ring.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Entries of the ring.
    pub entries: u16,
    /// The packed format.
    pub packed: bool,
    /// EVENT_IDX.
    pub event_idx: bool,
    /// IN_ORDER.
    pub in_order: bool,
}

/// A table for an indirect chain.
#[derive(Clone, Debug)]
pub struct Table {
    view: View,
}

impl Table {
    /// Takes memory for a table of `entries` descriptors.
    pub fn new(memory: &Arc<Memory>, entries: usize) -> Result<Self> {
        let offset = memory.alloc(entries * 16, 16)?;
        Ok(Self { view: memory.view(offset, entries * 16) })
    }

    /// Descriptors that fit.
    pub fn entries(&self) -> usize {
        self.view.size() / 16
    }

    /// Guest physical address.
    pub fn gpa(&self) -> u64 {
        self.view.memory().gpa(self.view.offset())
    }

    /// Bytes of `entries` descriptors.
    pub(crate) fn bytes(&self, entries: usize) -> u32 {
        u32::try_from(entries.min(self.entries()) * 16).unwrap_or(u32::MAX)
    }

    pub(crate) fn write(&self, place: usize, words: [u64; 2]) {
        self.view.store64(2 * place, words[0], Ordering::Relaxed);
        self.view.store64(2 * place + 1, words[1], Ordering::Relaxed);
    }
}

/// Does moving an index from `old` to `new` pass `event` (§2.7.7.2)? All modulo 2¹⁶.
#[inline]
pub fn need_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// The three parts of a ring in the driver's memory.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Descriptors.
    pub desc: View,
    /// Available ring, or driver event suppression.
    pub avail: View,
    /// Used ring, or device event suppression.
    pub used: View,
}

impl Parts {
    /// Bytes that a ring takes, with the space lost by alignment.
    pub fn size(entries: u16) -> usize {
        split::desc_size(entries) + split::avail_size(entries) + split::used_size(entries) + 3 * 128
    }

    /// Takes zeroed memory for a ring.
    pub fn new(memory: &Arc<Memory>, options: Options) -> Result<Self> {
        let n = options.entries;
        let (avail, used) = if options.packed {
            (packed::EVENT_SIZE, packed::EVENT_SIZE)
        } else {
            (split::avail_size(n), split::used_size(n))
        };
        let part = |len: usize| Ok(memory.view(memory.alloc(len, 128)?, len.next_multiple_of(8)));
        Ok(Self { desc: part(split::desc_size(n))?, avail: part(avail)?, used: part(used)? })
    }

    /// Addresses for SET_VRING_ADDR.
    pub fn addresses(&self) -> RingAddresses {
        let user = |view: &View| view.memory().user(view.offset());
        RingAddresses { desc: user(&self.desc), used: user(&self.used), avail: user(&self.avail) }
    }
}

/// A ring of either format.
#[derive(Debug)]
pub enum Queue {
    /// §2.7.
    Split(Split),
    /// §2.8.
    Packed(Packed),
}

macro_rules! both {
    ($self:ident, $queue:ident => $call:expr) => {
        match $self {
            Queue::Split($queue) => $call,
            Queue::Packed($queue) => $call,
        }
    };
}

impl Queue {
    /// A ring over the given parts, which hold zeroes.
    pub fn new(number: u16, options: Options, parts: Parts) -> Result<Self> {
        let Parts { desc, avail, used } = parts;
        Ok(if options.packed {
            Self::Packed(Packed::new(number, options, desc, avail, used)?)
        } else {
            Self::Split(Split::new(number, options, desc, avail, used)?)
        })
    }

    /// Free descriptors.
    #[inline]
    pub fn room(&self) -> u16 {
        both!(self, q => q.room())
    }

    /// The name that the `n`-th piece of the next chain will bear; the first piece names the chain.
    #[inline]
    pub fn next_free(&self, n: u16) -> u16 {
        both!(self, q => q.next_free(n))
    }

    /// Prepares a chain and names it. `None`: no room.
    #[inline]
    pub fn add(&mut self, chain: &[Buf]) -> Option<u16> {
        both!(self, q => q.add(chain))
    }

    /// Prepares a chain in a table of its own.
    pub fn add_indirect(&mut self, table: &Table, chain: &[Buf]) -> Option<u16> {
        both!(self, q => q.add_indirect(table, chain))
    }

    /// Makes everything prepared visible. True: the device wants to be kicked.
    pub fn publish(&mut self) -> bool {
        both!(self, q => q.publish())
    }

    /// Takes back at most `limit` chains (an IN_ORDER batch is taken whole): `each(name, bytes written)`.
    #[inline]
    pub fn reap(&mut self, limit: usize, each: impl FnMut(u16, u32)) -> Result<usize> {
        both!(self, q => q.reap(limit, each))
    }

    /// Asks for interrupts or for none. True: something was given back meanwhile.
    pub fn set_interrupts(&mut self, on: bool) -> bool {
        both!(self, q => q.set_interrupts(on))
    }

    /// For SET_VRING_BASE after a reconnect. Everything given back must have been reaped.
    pub fn base(&self) -> u32 {
        both!(self, q => q.base())
    }
}
