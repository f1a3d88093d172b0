//! The packed ring (virtio 1.2 §2.8), driver's side.
//!
//! One descriptor's second word (length, id, flags) is written with one 64-bit store, so a descriptor
//! becomes available or stays invisible as a whole. Within a batch the first descriptor's word is held
//! back: the device stops at the first descriptor that is not available, so one release store in
//! [`Packed::publish`] shows the whole batch.

use std::sync::atomic::{fence, Ordering};

use sidecore_abi::virtio::{
    packed as layout, DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE, EVENT_F_DESC, EVENT_F_DISABLE,
    EVENT_F_ENABLE, MAX_QUEUE_SIZE, PACKED_F_AVAIL, PACKED_F_USED,
};

use crate::error::{Error, Result};
use crate::memory::View;
use crate::queue::{need_event, Buf, Options, Table};

const EVENT_OFF: usize = layout::EVENT_OFF_WRAP / 2;
const EVENT_FLAGS: usize = layout::EVENT_FLAGS / 2;

/// An index into a packed ring with the wrap counter that belongs to it (§2.8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Descriptor number.
    pub at: u16,
    /// Wrap counter, 1 at the start.
    pub wrap: bool,
}

impl Cursor {
    /// `n` descriptors further in a ring of `entries`, with `n ≤ entries`.
    #[inline]
    pub fn plus(self, n: u16, entries: u16) -> Self {
        let at = u32::from(self.at) + u32::from(n);
        match at.checked_sub(u32::from(entries)) {
            Some(rest) => Self { at: (rest & 0xffff) as u16, wrap: !self.wrap },
            None => Self { at: (at & 0xffff) as u16, wrap: self.wrap },
        }
    }

    /// As the event suppression structure and the vring base hold it.
    #[inline]
    pub fn bits(self) -> u16 {
        self.at | u16::from(self.wrap) << 15
    }

    /// The flags of a descriptor that the driver makes available here.
    #[inline]
    pub fn available(self) -> u16 {
        if self.wrap {
            PACKED_F_AVAIL
        } else {
            PACKED_F_USED
        }
    }

    /// Do these flags say that the device has used the descriptor here?
    #[inline]
    pub fn is_used(self, flags: u16) -> bool {
        let both = PACKED_F_AVAIL | PACKED_F_USED;
        flags & both == if self.wrap { both } else { 0 }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Chain {
    /// Descriptors that it takes; 0 if it is not with the device.
    slots: u16,
    /// Names that it takes: one buffer each.
    names: u16,
    writable: u32,
}

/// A packed ring.
#[derive(Debug)]
pub struct Packed {
    number: u16,
    options: Options,
    desc: View,
    driver: View,
    device: View,
    /// Free names, first in, first out.
    free: Box<[u16]>,
    free_head: u16,
    free_count: u16,
    /// Free descriptors of the ring.
    slots: u16,
    addr_shadow: Box<[u64]>,
    chains: Box<[Chain]>,
    next: Box<[u16]>,
    /// Names of outstanding chains in the order in which they were offered.
    order: Box<[u16]>,
    order_head: u16,
    order_count: u16,
    avail: Cursor,
    /// Where the unpublished batch starts, with the held-back word.
    held: Option<(Cursor, u64)>,
    unpublished: u16,
    used: Cursor,
    interrupts: bool,
}

impl Packed {
    /// A ring over zeroed memory.
    pub fn new(number: u16, options: Options, desc: View, driver: View, device: View) -> Result<Self> {
        let entries = options.entries;
        if entries == 0 || entries > MAX_QUEUE_SIZE {
            return Err(Error::Config(format!(
                "a packed ring of {entries} entries: not 1 to {MAX_QUEUE_SIZE}"
            )));
        }
        let n = usize::from(entries);
        let start = Cursor { at: 0, wrap: true };
        let mut ring = Self {
            number,
            options,
            desc,
            driver,
            device,
            free: (0..entries).collect(),
            free_head: 0,
            free_count: entries,
            slots: entries,
            addr_shadow: vec![0; n].into(),
            chains: vec![Chain::default(); n].into(),
            next: vec![0; n].into(),
            order: vec![0; n].into(),
            order_head: 0,
            order_count: 0,
            avail: start,
            held: None,
            unpublished: 0,
            used: start,
            interrupts: false,
        };
        ring.set_interrupts(false);
        Ok(ring)
    }

    fn wrapped(&self, index: u32) -> u16 {
        ((index % u32::from(self.options.entries)) & 0xffff) as u16
    }

    /// Free descriptors: a chain of `n` pieces takes `n` slots and `n` names.
    #[inline]
    pub fn room(&self) -> u16 {
        self.slots.min(self.free_count)
    }

    /// The name that [`Packed::add`] takes for the `n`-th piece of the next chain.
    #[inline]
    pub fn next_free(&self, n: u16) -> u16 {
        self.free[usize::from(self.wrapped(u32::from(self.free_head) + u32::from(n)))]
    }

    /// Where the device goes on after a reconnect, in SET_VRING_BASE's form: what was given back and
    /// reaped is done, all the rest is offered again.
    pub fn base(&self) -> u32 {
        u32::from(self.used.bits()) | u32::from(self.used.bits()) << 16
    }

    #[inline]
    fn take(&mut self) -> u16 {
        let name = self.next_free(0);
        self.free_head = self.wrapped(u32::from(self.free_head) + 1);
        self.free_count -= 1;
        name
    }

    /// Writes one descriptor and moves on; the batch's first second word is held back.
    #[inline]
    fn put(&mut self, addr: u64, len: u32, id: u16, flags: u16) {
        let Cursor { at, .. } = self.avail;
        let word = u64::from(len) | u64::from(id) << 32 | u64::from(flags | self.avail.available()) << 48;
        if self.addr_shadow[usize::from(at)] != addr {
            self.addr_shadow[usize::from(at)] = addr;
            self.desc.store64(2 * usize::from(at), addr, Ordering::Relaxed);
        }
        if self.held.is_none() {
            self.held = Some((self.avail, word));
        } else {
            self.desc.store64(2 * usize::from(at) + 1, word, Ordering::Relaxed);
        }
        self.avail = self.avail.plus(1, self.options.entries);
        self.unpublished += 1;
        self.slots -= 1;
    }

    #[inline]
    fn offer(&mut self, name: u16, chain: Chain) {
        self.chains[usize::from(name)] = chain;
        let slot = self.wrapped(u32::from(self.order_head) + u32::from(self.order_count));
        self.order[usize::from(slot)] = name;
        self.order_count += 1;
    }

    /// Prepares a chain; its name is that of its first piece. `None`: not enough room.
    pub fn add(&mut self, chain: &[Buf]) -> Option<u16> {
        let count = u16::try_from(chain.len()).ok().filter(|n| *n > 0 && *n <= self.room())?;
        let head = self.next_free(0);
        let mut writable = 0;
        for (index, buf) in chain.iter().enumerate() {
            let name = self.take();
            let last = index + 1 == chain.len();
            self.next[usize::from(name)] = if last { 0 } else { self.next_free(0) };
            if buf.write {
                writable += buf.len;
            }
            let flags = if last { 0 } else { DESC_F_NEXT } | if buf.write { DESC_F_WRITE } else { 0 };
            self.put(buf.addr, buf.len, head, flags);
        }
        self.offer(head, Chain { slots: count, names: count, writable });
        Some(head)
    }

    /// Prepares a chain that lives in a table of its own (§2.8.7). `None`: no room, or table too small.
    pub fn add_indirect(&mut self, table: &Table, chain: &[Buf]) -> Option<u16> {
        if self.room() == 0 || chain.is_empty() || chain.len() > table.entries() {
            return None;
        }
        let mut writable = 0;
        for (index, buf) in chain.iter().enumerate() {
            if buf.write {
                writable += buf.len;
            }
            let flags = if buf.write { DESC_F_WRITE } else { 0 };
            table.write(index, [buf.addr, u64::from(buf.len) | u64::from(flags) << 48]);
        }
        let head = self.take();
        self.put(table.gpa(), table.bytes(chain.len()), head, DESC_F_INDIRECT);
        self.offer(head, Chain { slots: 1, names: 1, writable });
        Some(head)
    }

    /// Makes everything prepared visible. True: the device wants to be kicked.
    pub fn publish(&mut self) -> bool {
        let Some((first, word)) = self.held.take() else { return false };
        self.desc.store64(2 * usize::from(first.at) + 1, word, Ordering::Release);
        let added = std::mem::take(&mut self.unpublished);
        // The descriptors must be visible before the device's wish is read (§2.8.21.3.1).
        fence(Ordering::SeqCst);
        match self.device.load16(EVENT_FLAGS, Ordering::Relaxed) & 3 {
            EVENT_F_ENABLE => true,
            EVENT_F_DESC if self.options.event_idx => {
                let event = self.device.load16(EVENT_OFF, Ordering::Relaxed);
                let (at, wrap) = (event & 0x7fff, event >> 15 == 1);
                // Counted on the same lap as `avail`.
                let at = if wrap == self.avail.wrap { at } else { at.wrapping_sub(self.options.entries) };
                need_event(at, self.avail.at, self.avail.at.wrapping_sub(added))
            }
            _ => false,
        }
    }

    #[inline]
    fn used_word(&self) -> Option<u64> {
        let word = self.desc.load64(2 * usize::from(self.used.at) + 1, Ordering::Acquire);
        let outstanding = self.order_count > 0;
        (outstanding && self.used.is_used((word >> 48) as u16)).then_some(word)
    }

    /// Is a used descriptor there? (1 or 0: the packed ring does not tell how many.)
    #[inline]
    pub fn pending(&self) -> u16 {
        self.used_word().is_some().into()
    }

    /// Takes back at most `limit` chains: `each(name, bytes written)`.
    pub fn reap(&mut self, limit: usize, mut each: impl FnMut(u16, u32)) -> Result<usize> {
        let mut done = 0;
        while done < limit {
            let Some(word) = self.used_word() else { break };
            let (len, id) = ((word & 0xffff_ffff) as u32, (word >> 32 & 0xffff) as u16);
            if id >= self.options.entries {
                return Err(self.broken(format!("gave back {id}, which is no name")));
            }
            if !self.options.in_order {
                self.give_back(id)?;
                each(id, len);
                done += 1;
                continue;
            }
            // One used descriptor stands for all chains up to the one that it names (§2.8.9).
            loop {
                if self.order_count == 0 {
                    return Err(self.broken(format!("named {id} as the end of a batch that ends before it")));
                }
                let head = self.order[usize::from(self.order_head)];
                let written = if head == id { len } else { self.chains[usize::from(head)].writable };
                self.give_back(head)?;
                each(head, written);
                done += 1;
                if head == id {
                    break;
                }
            }
        }
        if self.interrupts && self.options.event_idx {
            self.driver.store16(EVENT_OFF, self.used.bits(), Ordering::Relaxed);
        }
        Ok(done)
    }

    #[inline]
    fn give_back(&mut self, head: u16) -> Result<()> {
        let Chain { slots, names, .. } = std::mem::take(&mut self.chains[usize::from(head)]);
        if slots == 0 {
            return Err(self.broken(format!("gave back {head}, which it does not hold")));
        }
        let mut name = head;
        for _ in 0..names {
            let slot = self.wrapped(u32::from(self.free_head) + u32::from(self.free_count));
            self.free[usize::from(slot)] = name;
            self.free_count += 1;
            name = self.next[usize::from(name)];
        }
        self.slots += slots;
        self.used = self.used.plus(slots, self.options.entries);
        self.order_head = self.wrapped(u32::from(self.order_head) + 1);
        self.order_count -= 1;
        Ok(())
    }

    fn broken(&self, what: String) -> Error {
        Error::Ring { queue: self.number, what }
    }

    /// Asks for interrupts or for none. True: something was given back meanwhile, so do not sleep.
    pub fn set_interrupts(&mut self, on: bool) -> bool {
        self.interrupts = on;
        let flags = match (on, self.options.event_idx) {
            (false, _) => EVENT_F_DISABLE,
            (true, false) => EVENT_F_ENABLE,
            (true, true) => {
                self.driver.store16(EVENT_OFF, self.used.bits(), Ordering::Relaxed);
                // The cursor must be visible before the flag that gives it a meaning.
                fence(Ordering::Release);
                EVENT_F_DESC
            }
        };
        self.driver.store16(EVENT_FLAGS, flags, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.pending() != 0
    }
}
