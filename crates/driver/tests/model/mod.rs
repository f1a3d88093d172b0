//! A device's side of both ring formats, as plain as the specification's own pseudo-code: no caching,
//! no batching, no shadow. It exists to be compared with.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::Arc;

use sidecore_abi::virtio::{
    split, DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE, EVENT_F_DESC, EVENT_F_DISABLE, EVENT_F_ENABLE,
    PACKED_F_AVAIL, PACKED_F_USED, USED_F_NO_NOTIFY,
};
use sidecore_driver::memory::{Memory, GPA_BASE};
use sidecore_driver::queue::{Buf, Options, Parts};

/// A chain that the device took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    pub id: u16,
    pub bufs: Vec<Buf>,
    /// Packed ring: places that it occupies.
    pub places: u16,
}

pub struct Device {
    pub options: Options,
    parts: Parts,
    memory: Arc<Memory>,
    avail: u16,
    avail_wrap: bool,
    used: u16,
    used_wrap: bool,
    pub held: VecDeque<Taken>,
}

impl Device {
    pub fn new(memory: &Arc<Memory>, options: Options, parts: Parts) -> Self {
        let memory = Arc::clone(memory);
        let held = VecDeque::new();
        Self { options, parts, memory, avail: 0, avail_wrap: true, used: 0, used_wrap: true, held }
    }

    fn words(&self, at: usize) -> [u64; 2] {
        let mut bytes = [0; 16];
        self.memory.read(at, &mut bytes);
        [
            u64::from_le_bytes(bytes[..8].try_into().unwrap()),
            u64::from_le_bytes(bytes[8..].try_into().unwrap()),
        ]
    }

    fn table(&self, at: usize, bytes: u32, flags_at: u32, follow: bool) -> Vec<Buf> {
        let mut bufs = Vec::new();
        let mut index = 0;
        loop {
            let [addr, word] = self.words(at + 16 * index);
            let flags = (word >> flags_at) as u16;
            assert_eq!(flags & DESC_F_INDIRECT, 0, "indirect inside indirect");
            bufs.push(Buf { addr, len: word as u32, write: flags & DESC_F_WRITE != 0 });
            if follow && flags & DESC_F_NEXT == 0 {
                return bufs;
            }
            index = if follow { (word >> 48) as usize } else { index + 1 };
            if !follow && index as u32 * 16 == bytes {
                return bufs;
            }
            assert!((index as u32) < bytes / 16);
        }
    }

    /// Takes one chain if there is one.
    pub fn take(&mut self) -> bool {
        let taken = if self.options.packed { self.take_packed() } else { self.take_split() };
        let some = taken.is_some();
        self.held.extend(taken);
        some
    }

    fn take_split(&mut self) -> Option<Taken> {
        if self.parts.avail.load16(1, Acquire) == self.avail {
            return None;
        }
        let slot = usize::from(self.avail % self.options.entries);
        let id = self.parts.avail.load16(2 + slot, Relaxed);
        self.avail = self.avail.wrapping_add(1);
        let mut bufs = Vec::new();
        let mut index = id;
        loop {
            let [addr, word] = self.words(self.parts.desc.offset() + 16 * usize::from(index));
            let flags = (word >> 32) as u16;
            if flags & DESC_F_INDIRECT != 0 {
                assert!(bufs.is_empty() && flags == DESC_F_INDIRECT);
                bufs = self.table((addr - GPA_BASE) as usize, word as u32, 32, true);
                break;
            }
            bufs.push(Buf { addr, len: word as u32, write: flags & DESC_F_WRITE != 0 });
            if flags & DESC_F_NEXT == 0 {
                break;
            }
            index = (word >> 48) as u16;
        }
        Some(Taken { id, bufs, places: 0 })
    }

    fn step(&mut self) {
        self.avail += 1;
        if self.avail == self.options.entries {
            (self.avail, self.avail_wrap) = (0, !self.avail_wrap);
        }
    }

    fn take_packed(&mut self) -> Option<Taken> {
        let mut bufs = Vec::new();
        let mut places = 0;
        loop {
            let word = self.parts.desc.load64(2 * usize::from(self.avail) + 1, Acquire);
            let addr = self.parts.desc.load64(2 * usize::from(self.avail), Relaxed);
            let flags = (word >> 48) as u16;
            let (avail, used) = (flags & PACKED_F_AVAIL != 0, flags & PACKED_F_USED != 0);
            if bufs.is_empty() && !(avail == self.avail_wrap && used != self.avail_wrap) {
                return None;
            }
            assert!(avail == self.avail_wrap && used != self.avail_wrap, "a chain that is partly visible");
            self.step();
            places += 1;
            let id = (word >> 32) as u16;
            if flags & DESC_F_INDIRECT != 0 {
                let bufs = self.table((addr - GPA_BASE) as usize, word as u32, 48, false);
                return Some(Taken { id, bufs, places });
            }
            bufs.push(Buf { addr, len: word as u32, write: flags & DESC_F_WRITE != 0 });
            if flags & DESC_F_NEXT == 0 {
                return Some(Taken { id, bufs, places });
            }
        }
    }

    /// Gives back one chain that is no longer in `held`.
    pub fn give(&mut self, taken: &Taken, written: u32) {
        self.give_batch(&[taken], written);
    }

    /// Gives back chains in order with one element, as IN_ORDER allows; `written` is the last one's.
    pub fn give_batch(&mut self, batch: &[&Taken], written: u32) {
        let last = batch.last().unwrap();
        if !self.options.packed {
            let slot = usize::from(self.used % self.options.entries);
            self.parts.used.store32(1 + 2 * slot, last.id.into(), Relaxed);
            self.parts.used.store32(2 + 2 * slot, written, Relaxed);
            self.used = self.used.wrapping_add(batch.len() as u16);
            self.parts.used.store16(1, self.used, Release);
            return;
        }
        let flags = if self.used_wrap { PACKED_F_AVAIL | PACKED_F_USED } else { 0 };
        let word = u64::from(written) | u64::from(last.id) << 32 | u64::from(flags) << 48;
        self.parts.desc.store64(2 * usize::from(self.used) + 1, word, Release);
        for taken in batch {
            self.used += taken.places;
            if self.used >= self.options.entries {
                self.used -= self.options.entries;
                self.used_wrap = !self.used_wrap;
            }
        }
    }

    /// Asks for a kick when the `n`-th chain (split) or descriptor (packed) from here is offered;
    /// without EVENT_IDX, for all or none.
    pub fn ask_for_kick(&mut self, wish: Option<u16>) {
        match (self.options.packed, self.options.event_idx) {
            (false, false) => {
                self.parts.used.store16(0, if wish.is_some() { 0 } else { USED_F_NO_NOTIFY }, Relaxed);
            }
            (false, true) => {
                let event = self.avail.wrapping_add(wish.unwrap_or(0x8000));
                let at = split::used_avail_event(self.options.entries) / 2;
                self.parts.used.store16(at, event, Relaxed);
            }
            (true, event_idx) => {
                let flags = match wish {
                    None => EVENT_F_DISABLE,
                    Some(_) if !event_idx => EVENT_F_ENABLE,
                    Some(n) => {
                        let (mut at, mut wrap) = (self.avail + n, self.avail_wrap);
                        if at >= self.options.entries {
                            (at, wrap) = (at - self.options.entries, !wrap);
                        }
                        self.parts.used.store16(0, at | u16::from(wrap) << 15, Relaxed);
                        EVENT_F_DESC
                    }
                };
                self.parts.used.store16(1, flags, Relaxed);
            }
        }
    }

    /// Does the driver want an interrupt for what was given back since `old` (this device's used index)?
    pub fn wants_interrupt(&self, old: u16) -> bool {
        if self.options.packed {
            match self.parts.avail.load16(1, Relaxed) {
                EVENT_F_DISABLE => false,
                EVENT_F_ENABLE => true,
                _ => {
                    let event = self.parts.avail.load16(0, Relaxed);
                    let n = self.options.entries;
                    let lap =
                        |at: u16, wrap: bool| if wrap == self.used_wrap { at } else { at.wrapping_sub(n) };
                    let event = lap(event & 0x7fff, event >> 15 == 1);
                    let old = if old <= self.used { old } else { old.wrapping_sub(n) };
                    self.used.wrapping_sub(event).wrapping_sub(1) < self.used.wrapping_sub(old)
                }
            }
        } else if self.options.event_idx {
            let event = self.parts.avail.load16(split::avail_used_event(self.options.entries) / 2, Relaxed);
            self.used.wrapping_sub(event).wrapping_sub(1) < self.used.wrapping_sub(old)
        } else {
            self.parts.avail.load16(0, Relaxed) & 1 == 0
        }
    }

    pub fn used(&self) -> u16 {
        self.used
    }
}
