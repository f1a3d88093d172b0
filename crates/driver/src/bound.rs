//! Rings whose every entry is bound to one buffer for good: the packet generator's fast path.
//!
//! Entry `n` of the ring always offers buffer `n`, one descriptor each. Against a device that gives
//! buffers back in order (all that are known do) nothing but an index then changes in a split ring, and
//! nothing but one 64-bit word a descriptor in a packed one, so sending costs no work per frame, and the
//! lines that hold descriptors and available entries stay shared by both sides.
//! A device that goes out of order is noticed and named; use [`crate::queue::Queue`] for it.

use std::sync::atomic::{fence, Ordering};

use sidecore_abi::virtio::{
    split as layout, AVAIL_F_NO_INTERRUPT, DESC_F_WRITE, EVENT_F_DISABLE, EVENT_F_ENABLE, MAX_QUEUE_SIZE,
    USED_F_NO_NOTIFY,
};

use crate::error::{Error, Result};
use crate::packed::Cursor;
use crate::queue::{Buf, Options, Parts};

/// A bound ring of either format. Entries are a power of two in both.
#[derive(Debug)]
pub struct Bound {
    number: u16,
    options: Options,
    parts: Parts,
    mask: u16,
    /// Packed: length and flags of each entry's descriptor, and its name, without the phase bits.
    words: Box<[u64]>,
    /// Entries ever offered and ever given back, modulo 2¹⁶.
    offered: u16,
    done: u16,
    avail: Cursor,
    used: Cursor,
    /// Packed: looks in vain since something was given back.
    idle: u16,
}

/// Packed: entries looked ahead. A device that writes one by one is then not disturbed in the line that
/// it is writing.
const AHEAD: u16 = 32;
/// Packed: looks in vain before entries are looked for one by one.
const PATIENCE: u16 = 8;

impl Bound {
    /// Binds entry `n` to `buffer(n)`. EVENT_IDX must not have been negotiated: polling is the purpose.
    pub fn new(number: u16, options: Options, parts: Parts, buffer: impl Fn(u16) -> Buf) -> Result<Self> {
        let entries = options.entries;
        if !entries.is_power_of_two() || entries > MAX_QUEUE_SIZE || options.event_idx {
            return Err(Error::Config(format!(
                "a bound ring of {entries} entries (a power of two ≤ {MAX_QUEUE_SIZE}, without EVENT_IDX)"
            )));
        }
        let start = Cursor { at: 0, wrap: true };
        let mut words = Vec::new();
        for n in 0..entries {
            let Buf { addr, len, write } = buffer(n);
            let flags = if write { DESC_F_WRITE } else { 0 };
            let at = usize::from(n);
            parts.desc.store64(2 * at, addr, Ordering::Relaxed);
            if options.packed {
                words.push(u64::from(len) | u64::from(n) << 32 | u64::from(flags) << 48);
            } else {
                let word = u64::from(len) | u64::from(flags) << 32;
                parts.desc.store64(2 * at + 1, word, Ordering::Relaxed);
                parts.avail.store16(layout::AVAIL_RING / 2 + at, n, Ordering::Relaxed);
            }
        }
        let ring = Self {
            number,
            options,
            parts,
            mask: entries - 1,
            words: words.into(),
            offered: 0,
            done: 0,
            avail: start,
            used: start,
            idle: 0,
        };
        ring.set_interrupts(false);
        Ok(ring)
    }

    /// Asks for interrupts or for none. A look at what is pending, if it follows, sees what came before the
    /// wish was heard.
    pub fn set_interrupts(&self, on: bool) {
        match (self.options.packed, on) {
            (true, true) => self.parts.avail.store16(1, EVENT_F_ENABLE, Ordering::Relaxed),
            (true, false) => self.parts.avail.store16(1, EVENT_F_DISABLE, Ordering::Relaxed),
            (false, true) => self.parts.avail.store16(0, 0, Ordering::Relaxed),
            (false, false) => self.parts.avail.store16(0, AVAIL_F_NO_INTERRUPT, Ordering::Relaxed),
        }
        // The wish must be visible before the ring is looked at (§2.7.7.1, §2.8.21.2).
        fence(Ordering::SeqCst);
    }

    /// Changes how many bytes entry `n` offers, which the device must not hold: a buffer stays where it is, a
    /// frame in it may be shorter than the last one.
    #[inline]
    pub fn set_len(&mut self, n: u16, len: u32) {
        let at = usize::from(n & self.mask);
        if self.options.packed {
            self.words[at] = self.words[at] & !0xffff_ffff | u64::from(len);
        } else {
            // The flags stand behind the length, and those of a bound entry are none but DESC_F_WRITE.
            let word = self.parts.desc.load64(2 * at + 1, Ordering::Relaxed) & !0xffff_ffff;
            self.parts.desc.store64(2 * at + 1, word | u64::from(len), Ordering::Relaxed);
        }
    }

    /// Where a new connection goes on with a split ring: at the first entry that the old one did not give
    /// back.
    ///
    /// # Errors
    /// The ring is packed, which keeps no such index in memory.
    pub fn base(&self) -> Result<u32> {
        if self.options.packed {
            return Err(Error::Config("a packed ring does not tell where it was".into()));
        }
        Ok(self.parts.used.load16(1, Ordering::Acquire).into())
    }

    /// Entries that the device holds.
    #[inline]
    pub fn outstanding(&self) -> u16 {
        self.offered.wrapping_sub(self.done)
    }

    /// Entries that can be offered.
    #[inline]
    pub fn room(&self) -> u16 {
        self.mask + 1 - self.outstanding()
    }

    /// The entry that is offered next; further ones follow modulo the ring.
    #[inline]
    pub fn next(&self) -> u16 {
        self.offered & self.mask
    }

    /// The entry that comes back next.
    #[inline]
    pub fn oldest(&self) -> u16 {
        self.done & self.mask
    }

    /// Offers the next `n ≤ room()` entries at once. True: the device wants to be kicked.
    #[inline]
    pub fn offer(&mut self, n: u16) -> bool {
        debug_assert!(n <= self.room());
        if n == 0 {
            return false;
        }
        if self.options.packed {
            // Backwards: the device stops at the first one until that is there, last of all.
            for i in (0..n).rev() {
                let cursor = self.avail.plus(i, self.mask + 1);
                let at = usize::from(cursor.at);
                let word = self.words[at] | u64::from(cursor.available()) << 48;
                self.parts.desc.store64(2 * at + 1, word, Ordering::Release);
            }
            self.avail = self.avail.plus(n, self.mask + 1);
            self.offered = self.offered.wrapping_add(n);
            fence(Ordering::SeqCst);
            self.parts.used.load16(1, Ordering::Relaxed) & 3 != EVENT_F_DISABLE
        } else {
            self.offered = self.offered.wrapping_add(n);
            self.parts.avail.store16(1, self.offered, Ordering::Release);
            fence(Ordering::SeqCst);
            self.parts.used.load16(0, Ordering::Relaxed) & USED_F_NO_NOTIFY == 0
        }
    }

    /// Entries given back, at most `limit`. In a packed ring fewer than [`AHEAD`] show after a few calls.
    #[inline]
    pub fn pending(&mut self, limit: u16) -> Result<u16> {
        if !self.options.packed {
            let pending = self.parts.used.load16(1, Ordering::Acquire).wrapping_sub(self.done);
            if pending > self.outstanding() {
                return Err(self.broken(format!("gave back {pending} of {} entries", self.outstanding())));
            }
            return Ok(pending.min(limit));
        }
        let mut count = 0;
        let limit = limit.min(self.outstanding());
        let mut cursor = self.used;
        if !self.options.in_order {
            while limit - count >= AHEAD && self.is_used(cursor.plus(AHEAD - 1, self.mask + 1)) {
                cursor = cursor.plus(AHEAD, self.mask + 1);
                count += AHEAD;
            }
            self.idle = if count > 0 { 0 } else { self.idle.wrapping_add(1) };
            if count > 0 || self.idle % PATIENCE != 0 {
                return Ok(count);
            }
        }
        while count < limit {
            let word = self.parts.desc.load64(2 * usize::from(cursor.at) + 1, Ordering::Acquire);
            if !cursor.is_used((word >> 48) as u16) {
                break;
            }
            // IN_ORDER: one used descriptor stands for all up to the one that it names (§2.8.9).
            let last = (word >> 32 & 0xffff) as u16;
            let batch = (last.wrapping_sub(cursor.at) & self.mask) + 1;
            if batch != 1 && !self.options.in_order || batch > self.outstanding() - count {
                return Err(self.broken(format!("gave back {last} at entry {}", cursor.at)));
            }
            cursor = cursor.plus(batch, self.mask + 1);
            count += batch;
        }
        Ok(count)
    }

    /// Packed: has the device used the descriptor here? All before it are then used as well.
    #[inline]
    fn is_used(&self, cursor: Cursor) -> bool {
        cursor
            .is_used((self.parts.desc.load64(2 * usize::from(cursor.at) + 1, Ordering::Acquire) >> 48) as u16)
    }

    /// Bytes that the device wrote into entry `n`, which must be the first of `pending` entries or one
    /// further on. With IN_ORDER this is known for the named entry of a batch only.
    #[inline]
    pub fn written(&self, n: u16) -> Option<u32> {
        let at = usize::from(n & self.mask);
        if self.options.packed {
            let word = self.parts.desc.load64(2 * at + 1, Ordering::Relaxed);
            return Some((word & 0xffff_ffff) as u32);
        }
        let elem = layout::USED_RING / 4 + 2 * at;
        let id = self.parts.used.load32(elem, Ordering::Relaxed);
        (id == u32::from(n & self.mask)).then(|| self.parts.used.load32(elem + 1, Ordering::Relaxed))
    }

    /// Takes back the `n` oldest entries, of which there are at least as many pending. One element is
    /// looked at, to see that the device keeps the order.
    #[inline]
    pub fn take_back(&mut self, n: u16) -> Result<()> {
        if n == 0 {
            return Ok(());
        }
        self.done = self.done.wrapping_add(n);
        if self.options.packed {
            self.used = self.used.plus(n, self.mask + 1);
        } else if !self.options.in_order && self.written(self.done.wrapping_sub(1)).is_none() {
            let what = "gives buffers back out of order, which a bound ring cannot take";
            return Err(self.broken(what.into()));
        }
        Ok(())
    }

    fn broken(&self, what: String) -> Error {
        Error::Ring { queue: self.number, what }
    }
}
