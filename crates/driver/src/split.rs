//! The split ring (virtio 1.2 §2.7), driver's side.
//!
//! Descriptors are handed out first in, first out. A device that gives buffers back in order then
//! meets every descriptor at the same ring slot again, which does two things: the rule of IN_ORDER
//! that descriptors are used in ring order (§2.7.9) holds by itself, and descriptors and available
//! entries mostly hold already what would be written. What is already there is not written again:
//! the line then stays shared between both sides instead of travelling.
//!
//! [`Split::add`] only prepares; [`Split::publish`] makes everything since the last one visible with one
//! store of the index and says whether the device wants to be kicked.

use std::sync::atomic::{fence, Ordering};

use sidecore_abi::virtio::{
    split as layout, AVAIL_F_NO_INTERRUPT, DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE, USED_F_NO_NOTIFY,
};

use crate::error::{Error, Result};
use crate::memory::View;
use crate::queue::{need_event, Buf, Options, Table};

/// `avail.flags` and `used.flags`, in 16-bit words.
const FLAGS: usize = layout::AVAIL_FLAGS / 2;
/// `avail.idx` and `used.idx`, in 16-bit words.
const IDX: usize = layout::AVAIL_IDX / 2;
/// `avail.ring[0]`, in 16-bit words.
const RING: usize = layout::AVAIL_RING / 2;
/// `used.ring[0]`, in 32-bit words.
const ELEM: usize = layout::USED_RING / 4;
/// Half of the index space: as far from an event as an index can be.
const FAR: u16 = 0x8000;

/// What the driver remembers about the chain that starts at a descriptor.
#[derive(Clone, Copy, Debug, Default)]
struct Chain {
    /// Descriptors taken from the table; 0 if the chain is not with the device.
    taken: u16,
    /// Bytes that the device may write, for IN_ORDER batches that do not tell.
    writable: u32,
}

/// A split ring.
#[derive(Debug)]
pub struct Split {
    number: u16,
    options: Options,
    mask: u16,
    desc: View,
    avail: View,
    used: View,
    /// Free descriptors, a ring of its own.
    free: Box<[u16]>,
    free_head: u16,
    free_count: u16,
    /// What the shared tables hold, to avoid writing the same again.
    desc_shadow: Box<[[u64; 2]]>,
    avail_shadow: Box<[u16]>,
    chains: Box<[Chain]>,
    /// The descriptor that follows in the same chain.
    next: Box<[u16]>,
    avail_idx: u16,
    published: u16,
    used_idx: u16,
    interrupts: bool,
    event_at: u16,
}

impl Split {
    /// A ring over zeroed memory. `entries` is a power of two (§2.7).
    pub fn new(number: u16, options: Options, desc: View, avail: View, used: View) -> Result<Self> {
        let entries = options.entries;
        if !entries.is_power_of_two() || entries > FAR {
            return Err(Error::Config(format!(
                "a split ring of {entries} entries: not a power of two ≤ 32768"
            )));
        }
        let n = usize::from(entries);
        let mut ring = Self {
            number,
            options,
            mask: entries - 1,
            desc,
            avail,
            used,
            free: (0..entries).collect(),
            free_head: 0,
            free_count: entries,
            desc_shadow: vec![[0; 2]; n].into(),
            avail_shadow: vec![0; n].into(),
            chains: vec![Chain::default(); n].into(),
            next: vec![0; n].into(),
            avail_idx: 0,
            published: 0,
            used_idx: 0,
            interrupts: false,
            event_at: 0,
        };
        ring.set_interrupts(false);
        Ok(ring)
    }

    /// Free descriptors.
    #[inline]
    pub fn room(&self) -> u16 {
        self.free_count
    }

    /// The descriptor that [`Split::add`] takes for the `n`-th piece of the next chain.
    #[inline]
    pub fn next_free(&self, n: u16) -> u16 {
        self.free[usize::from(self.free_head.wrapping_add(n) & self.mask)]
    }

    /// Where the device goes on after a reconnect: what it gave back is done, all the rest is not.
    pub fn base(&self) -> u32 {
        u32::from(self.used.load16(IDX, Ordering::Acquire))
    }

    #[inline]
    fn write_desc(&mut self, index: u16, addr: u64, len: u32, flags: u16, next: u16) {
        let words = [addr, u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48];
        let shadow = &mut self.desc_shadow[usize::from(index)];
        if *shadow != words {
            *shadow = words;
            self.desc.store64(2 * usize::from(index), words[0], Ordering::Relaxed);
            self.desc.store64(2 * usize::from(index) + 1, words[1], Ordering::Relaxed);
        }
    }

    #[inline]
    fn offer(&mut self, head: u16, taken: u16, writable: u32) {
        self.chains[usize::from(head)] = Chain { taken, writable };
        let slot = usize::from(self.avail_idx & self.mask);
        // A slot that was never written holds 0, in the ring and in the shadow.
        if self.avail_shadow[slot] != head {
            self.avail_shadow[slot] = head;
            self.avail.store16(RING + slot, head, Ordering::Relaxed);
        }
        self.avail_idx = self.avail_idx.wrapping_add(1);
    }

    #[inline]
    fn take(&mut self) -> u16 {
        let index = self.free[usize::from(self.free_head & self.mask)];
        self.free_head = self.free_head.wrapping_add(1);
        self.free_count -= 1;
        index
    }

    /// Prepares a chain; its name is its first descriptor. `None`: not enough room.
    pub fn add(&mut self, chain: &[Buf]) -> Option<u16> {
        let taken = u16::try_from(chain.len()).ok().filter(|n| *n > 0 && *n <= self.free_count)?;
        let head = self.next_free(0);
        let mut writable = 0;
        for (place, buf) in chain.iter().enumerate() {
            let index = self.take();
            let last = place + 1 == chain.len();
            let next = if last { 0 } else { self.next_free(0) };
            self.next[usize::from(index)] = next;
            if buf.write {
                writable += buf.len;
            }
            let flags = if last { 0 } else { DESC_F_NEXT } | if buf.write { DESC_F_WRITE } else { 0 };
            self.write_desc(index, buf.addr, buf.len, flags, next);
        }
        self.offer(head, taken, writable);
        Some(head)
    }

    /// Prepares a chain that lives in a table of its own (§2.7.5.3). `None`: no room, or table too small.
    pub fn add_indirect(&mut self, table: &Table, chain: &[Buf]) -> Option<u16> {
        if self.free_count == 0 || chain.is_empty() || chain.len() > table.entries() {
            return None;
        }
        let mut writable = 0;
        for (place, buf) in chain.iter().enumerate() {
            let last = place + 1 == chain.len();
            let flags = if last { 0 } else { DESC_F_NEXT } | if buf.write { DESC_F_WRITE } else { 0 };
            let next = if last { 0 } else { place as u64 + 1 };
            if buf.write {
                writable += buf.len;
            }
            table.write(place, [buf.addr, u64::from(buf.len) | u64::from(flags) << 32 | next << 48]);
        }
        let head = self.take();
        self.write_desc(head, table.gpa(), table.bytes(chain.len()), DESC_F_INDIRECT, 0);
        self.offer(head, 1, writable);
        Some(head)
    }

    /// Makes everything prepared visible. True: the device wants to be kicked.
    pub fn publish(&mut self) -> bool {
        let (old, new) = (self.published, self.avail_idx);
        if old == new {
            return false;
        }
        self.avail.store16(IDX, new, Ordering::Release);
        self.published = new;
        // The index must be visible before the device's wish is read (§2.7.13.4.1).
        fence(Ordering::SeqCst);
        if self.options.event_idx {
            let event = self.used.load16(layout::used_avail_event(self.mask + 1) / 2, Ordering::Relaxed);
            need_event(event, new, old)
        } else {
            self.used.load16(FLAGS, Ordering::Relaxed) & USED_F_NO_NOTIFY == 0
        }
    }

    /// Chains that the device has given back and that were not reaped yet.
    #[inline]
    pub fn pending(&self) -> u16 {
        self.used.load16(IDX, Ordering::Acquire).wrapping_sub(self.used_idx)
    }

    /// Takes back at most `limit` chains: `each(name, bytes written)`.
    pub fn reap(&mut self, limit: usize, mut each: impl FnMut(u16, u32)) -> Result<usize> {
        let pending = self.pending();
        if pending > self.mask + 1 {
            return Err(self.broken(format!("moved its index by {pending} in a ring of {}", self.mask + 1)));
        }
        let mut done = 0;
        let end = self.used_idx.wrapping_add(pending);
        while self.used_idx != end && done < limit {
            let elem = ELEM + 2 * usize::from(self.used_idx & self.mask);
            let id = self.used.load32(elem, Ordering::Relaxed);
            let len = self.used.load32(elem + 1, Ordering::Relaxed);
            let id = u16::try_from(id).ok().filter(|id| *id <= self.mask);
            let id = id.ok_or_else(|| self.broken(format!("gave back {id:?}, which is no descriptor")))?;
            if !self.options.in_order {
                self.give_back(id)?;
                each(id, len);
                done += 1;
                continue;
            }
            // One element stands for all chains up to the one that it names (§2.7.9), and the batch
            // is taken whole even if that exceeds the limit.
            loop {
                let head = self.avail_shadow[usize::from(self.used_idx & self.mask)];
                let written = if head == id { len } else { self.chains[usize::from(head)].writable };
                self.give_back(head)?;
                each(head, written);
                done += 1;
                if head == id {
                    break;
                }
                if self.used_idx == end {
                    return Err(self.broken(format!("named {id} as the end of a batch that ends before it")));
                }
            }
        }
        if self.options.event_idx {
            self.move_event();
        }
        Ok(done)
    }

    /// Frees the chain's descriptors and advances.
    #[inline]
    fn give_back(&mut self, head: u16) -> Result<()> {
        let taken = std::mem::take(&mut self.chains[usize::from(head)].taken);
        if taken == 0 {
            return Err(self.broken(format!("gave back {head}, which it does not hold")));
        }
        let mut index = head;
        for _ in 0..taken {
            let place = self.free_head.wrapping_add(self.free_count) & self.mask;
            self.free[usize::from(place)] = index;
            self.free_count += 1;
            index = self.next[usize::from(index)];
        }
        self.used_idx = self.used_idx.wrapping_add(1);
        Ok(())
    }

    fn broken(&self, what: String) -> Error {
        Error::Ring { queue: self.number, what }
    }

    /// Asks for interrupts or for none. True: something was given back meanwhile, so do not sleep.
    pub fn set_interrupts(&mut self, on: bool) -> bool {
        self.interrupts = on;
        if self.options.event_idx {
            self.event_at = self.used_idx.wrapping_sub(FAR);
            self.move_event();
        } else {
            self.avail.store16(FLAGS, if on { 0 } else { AVAIL_F_NO_INTERRUPT }, Ordering::Relaxed);
        }
        // The wish must be visible before the index is read (§2.7.7.1).
        fence(Ordering::SeqCst);
        self.pending() != 0
    }

    /// Puts `used_event` at the next chain, or, while no interrupt is wanted, far enough ahead that
    /// one store lasts for a quarter of the index space.
    fn move_event(&mut self) {
        let event = if self.interrupts {
            self.used_idx
        } else if self.used_idx.wrapping_sub(self.event_at) >= FAR / 2 {
            self.event_at = self.used_idx;
            self.used_idx.wrapping_add(FAR)
        } else {
            return;
        };
        self.avail.store16(layout::avail_used_event(self.mask + 1) / 2, event, Ordering::Relaxed);
    }
}
