//! Where packed rings stand, kept where it outlives the conversation or the daemon.
//!
//! A split ring needs none of this: its used index lies in guest memory, and as we complete in order it
//! is also the next available index. A packed ring has no index in memory, and VMMs replay after a
//! broken connection whatever they were told last (QEMU: the base that it sent at the last start). So
//! each packed ring writes its position into a slot of a shared file: of the inflight region that the
//! front end keeps for us (INFLIGHT_SHMFD, vhost-user "Inflight I/O tracking", the packed layout), else
//! of a file of our own.
//!
//! A slot, as far as we use it:
//! ```text
//!  0 features u64   8 version u16 = 1, desc_num u16
//! 16 used_idx u16, old_used_idx u16, used_wrap u8, old_used_wrap u8, committed u8   (one word)
//! 24 mark u16                                                 (padding in the specification)
//! ```
//! Before a batch is published the word at 16 gets both positions, afterwards `committed`. The ring
//! publishes all or nothing with the first descriptor of the batch, so whoever finds the word without
//! `committed` looks at the descriptor at the old position and knows.
//!
//! `mark` is a random number that also stands in the ring's device event area, in the field that counts
//! only with `EVENT_F_DESC` (virtio 1.2 §2.8.14), which we do not use. A driver that sets its ring up
//! anew clears it, and then the slot is about another ring and does not count.

use std::collections::hash_map::RandomState;
use std::fs::File;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use sidecore_abi::virtio::{packed, PACKED_F_AVAIL, PACKED_F_USED};

use crate::mem::{Piece, SharedFile};
use crate::virtq::{Journal, Position};

const FEATURES: usize = 0;
const VERSION: usize = 8;
const INDICES: usize = 16;
const MARK: usize = 24;
/// Bytes before the per-descriptor part of a slot (packed; the split one is shorter).
const HEAD: u64 = 32;
/// Bytes per descriptor (packed; split needs 16).
const PER_DESC: u64 = 32;
/// What slots are aligned to: a cache line.
const ALIGN: u64 = 64;
const COMMITTED: u64 = 1 << 48;
const _: () = assert!(slot_bytes(0) == ALIGN);
/// Of a used or available descriptor.
const FLAGS: usize = 14;

/// Bytes of a slot for a queue of `size` entries.
const fn slot_bytes(size: u16) -> u64 {
    (HEAD + PER_DESC * size as u64).next_multiple_of(ALIGN)
}

/// The slots of a device's rings.
pub(super) struct Slots {
    shared: Arc<SharedFile>,
    slot: usize,
    count: usize,
}

impl Slots {
    /// An inflight region for `count` queues of `size` entries: the file, its bytes.
    pub(super) fn create(count: u16, size: u16) -> io::Result<(File, u64)> {
        let bytes = slot_bytes(size) * u64::from(count);
        let fd = memfd_create(c"sidecore-inflight", MemfdFlags::CLOEXEC)?;
        ftruncate(&fd, bytes)?;
        Ok((fd.into(), bytes))
    }

    /// The region of `bytes` from `offset` on in `file`, divided as `create` does.
    pub(super) fn adopt(file: &File, offset: u64, bytes: u64, count: u16, size: u16) -> io::Result<Slots> {
        let slot = slot_bytes(size);
        if bytes < slot * u64::from(count) || offset % 8 != 0 {
            let why =
                format!("{count} queues of {size} entries need {slot} bytes each, it has {bytes} in all");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let shared = Arc::new(SharedFile::map(file, offset, bytes)?);
        Ok(Slots { shared, slot: usize::try_from(slot).unwrap_or(usize::MAX), count: usize::from(count) })
    }

    /// Slots in `file`, which is made long enough: positions only, no descriptors.
    pub(super) fn open(file: &File, count: usize) -> io::Result<Slots> {
        let bytes = ALIGN * count as u64;
        if file.metadata()?.len() < bytes {
            file.set_len(bytes)?;
        }
        let shared = Arc::new(SharedFile::map(file, 0, bytes)?);
        Ok(Slots { shared, slot: usize::try_from(ALIGN).unwrap_or(usize::MAX), count })
    }

    /// Slots that live as long as this process.
    pub(super) fn anonymous(count: usize) -> io::Result<Slots> {
        Slots::open(&memfd_create(c"sidecore-positions", MemfdFlags::CLOEXEC)?.into(), count)
    }

    /// The slot of ring `index`, if there is one.
    pub(super) fn slot(&self, index: usize) -> Option<Slot> {
        let at = self.slot.checked_mul(index)?;
        (index < self.count).then(|| Slot { shared: Arc::clone(&self.shared), at })
    }
}

/// The slot of one ring.
pub(super) struct Slot {
    shared: Arc<SharedFile>,
    at: usize,
}

impl Slot {
    fn load(&self, field: usize) -> u64 {
        self.shared.word(self.at + field).map_or(0, |word| u64::from_le(word.load(Ordering::Acquire)))
    }

    fn store(&self, field: usize, value: u64) {
        if let Some(word) = self.shared.word(self.at + field) {
            word.store(value.to_le(), Ordering::Release);
        }
    }

    fn write(&self, old: u16, new: u16, committed: bool) {
        let (index, wrap) = (|bits: u16| u64::from(bits & 0x7fff), |bits: u16| u64::from(bits >> 15));
        let word = index(new) | index(old) << 16 | wrap(new) << 32 | wrap(old) << 40;
        self.store(INDICES, if committed { word | COMMITTED } else { word });
    }

    /// The slot no longer says anything about its ring: the position was handed to the front end.
    pub(super) fn close(&self) {
        self.store(MARK, 0);
    }

    /// Where the packed ring with descriptors `desc` and device event area `device` was left, if this slot
    /// is about that ring and nobody closed it.
    pub(super) fn recover(&self, desc: &Piece, device: &Piece, size: u16) -> Option<Position> {
        let mark = self.load(MARK);
        if mark == 0 || mark != u64::from(read_u16(device, packed::EVENT_OFF_WRAP)) {
            return None;
        }
        let word = self.load(INDICES);
        #[expect(clippy::cast_possible_truncation, reason = "fields of a word")]
        let place = |index: u64, wrap: u64| (index as u16 & 0x7fff) | ((wrap as u16 & 1) << 15);
        let (new, old) = (place(word, word >> 32), place(word >> 16, word >> 40));
        if new & 0x7fff >= size || old & 0x7fff >= size {
            return None;
        }
        let at = if word & COMMITTED != 0 {
            new
        } else {
            let flags = read_u16(desc, 16 * usize::from(old & 0x7fff) + FLAGS);
            let wrap = old & 0x8000 != 0;
            // Still available in its own lap: the batch was never published.
            let available = (flags & PACKED_F_AVAIL != 0) == wrap && (flags & PACKED_F_USED != 0) != wrap;
            if available {
                old
            } else {
                new
            }
        };
        Some(Position::Packed { avail: at, used: at })
    }

    /// Starts the journal of a ring at `used`. `device` gets the mark.
    pub(super) fn begin(self, features: u64, size: u16, used: u16, device: &Piece) -> Box<dyn Journal> {
        let held = self.load(MARK);
        let mark = if held != 0 && held == u64::from(read_u16(device, packed::EVENT_OFF_WRAP)) {
            held
        } else {
            1 + RandomState::new().build_hasher().finish() % 0xffff
        };
        // Closed while it is written, so that a crash in between leaves nothing half true.
        self.close();
        self.store(FEATURES, features);
        self.store(VERSION, 1 | u64::from(size) << 16);
        self.write(used, used, true);
        device.write(&u16::try_from(mark).unwrap_or(1).to_le_bytes());
        self.store(MARK, mark);
        Box::new(self)
    }
}

impl Journal for Slot {
    #[inline]
    fn will_publish(&mut self, before: Position, after: Position) {
        if let (Position::Packed { used: before, .. }, Position::Packed { used: after, .. }) = (before, after)
        {
            self.write(before, after, false);
        }
    }

    #[inline]
    fn published(&mut self, after: Position) {
        if let Position::Packed { used, .. } = after {
            self.write(used, used, true);
        }
    }
}

fn read_u16(piece: &Piece, offset: usize) -> u16 {
    let mut at = *piece;
    at.advance(offset);
    let mut bytes = [0; 2];
    at.read(&mut bytes);
    u16::from_le_bytes(bytes)
}
