//! One client's memory: a sealed memory file, or a part of one, filled in netmap's format and mapped.
//!
//! Invariant: the `info.total` bytes of `memory` are one shared mapping that lives as long as any `Region` in
//! it, of a file that cannot be cut short (sealed before another process gets it). All offsets come from
//! `Geometry::layout`, whose parts lie inside it, aligned and without overlap. The client writes the same
//! bytes at any time: words and slots are accessed as atomics only, buffers by copies through raw pointers.
//! The slots of pipes are their clients' alone: the engine writes them only while no client uses the pipe,
//! and reads them for monitors.

use std::io;
use std::mem::offset_of;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use rustix::fs::{fallocate, FallocateFlags};
use rustix::mm::{madvise, Advice};
use sidecore_abi::netmap::{If, RingHead, SlotWord, API, IF_NAME, NI_PRIV_MEM, RESERVED_BUFS};
use sidecore_abi::ring::{across, Client, End, Engine, Info, RingStatus};

use super::layout::{idle_ring, member, parts, pipe_bufs, pipe_end, Geometry};
use crate::mem::{prefetch_own, prefetch_read, take_pages, Piece, SharedPages};

/// The daemon ends.
static ENDS: AtomicBool = AtomicBool::new(false);

/// The daemon ends: from now on memory stays as it is, so that its clients may read what has come.
pub fn leave_memory() {
    ENDS.store(true, Ordering::Relaxed);
}

/// A client's memory, or its part of one that several ports share.
pub struct Region {
    info: Info,
    memory: Arc<SharedPages>,
}

/// A sealed file as `info` has it, without pages.
pub(super) fn memory(info: &Info) -> io::Result<Arc<SharedPages>> {
    let len = usize::try_from(info.total).map_err(io::Error::other)?;
    Ok(in_huge_pages(SharedPages::sparse(c"sidecore-ring", len)?))
}

/// Where everything is in a guest's region, which is a BAR: its size is a power of two.
fn of_guest(geometry: &Geometry) -> io::Result<Info> {
    let info = geometry.layout()?;
    Ok(Info { total: info.total.next_power_of_two(), ..info })
}

/// A file as [`memory`] makes it, from another process.
pub(super) fn adopt_memory(info: &Info, file: OwnedFd) -> io::Result<Arc<SharedPages>> {
    let len = usize::try_from(info.total).map_err(io::Error::other)?;
    Ok(in_huge_pages(SharedPages::adopt(file, len)?))
}

fn in_huge_pages(pages: SharedPages) -> Arc<SharedPages> {
    // SAFETY: advice on our own mapping; refused where the system has no huge pages for files.
    let _ = unsafe { madvise(pages.base().as_ptr().cast(), pages.size(), Advice::LinuxHugepage) };
    Arc::new(pages)
}

/// Memory that several ports share, each with a part of its own and all with the same rings. What one port's
/// client writes into buffers and rings all others see.
pub struct SharedMemory {
    first: Info,
    memory: Arc<SharedPages>,
    /// Parts that a client has had, a bit each.
    used: AtomicU32,
}

impl SharedMemory {
    /// Most ports that share one memory.
    pub const MEMBERS: u32 = 8;

    /// Where everything is that port `number` has of a memory for ports of this geometry.
    ///
    /// # Errors
    /// A geometry out of range.
    pub fn layout(geometry: &Geometry, number: u32) -> io::Result<Info> {
        Ok(member(&geometry.shared_layout(Self::MEMBERS)?, number))
    }

    /// Memory for ports of this geometry. Unused parts take no pages.
    ///
    /// # Errors
    /// A geometry out of range, or what the system says of making, sizing or mapping the file.
    pub fn new(geometry: &Geometry) -> io::Result<SharedMemory> {
        let first = Self::layout(geometry, 0)?;
        Ok(SharedMemory { first, memory: memory(&first)?, used: AtomicU32::new(0) })
    }

    /// The part of port `number`, called `name`, and whether a client had it before: then it is as that
    /// client left it, since others may hold its buffers.
    ///
    /// # Errors
    /// There is not so much memory.
    ///
    /// # Panics
    /// If there is no such part.
    pub fn member(&self, number: u32, name: &str) -> io::Result<(Region, bool)> {
        assert!(number < Self::MEMBERS);
        let region = Region { info: member(&self.first, number), memory: Arc::clone(&self.memory) };
        let used = self.used.load(Ordering::Relaxed) & 1 << number != 0;
        if !used {
            region.take_place(name)?;
            self.used.fetch_or(1 << number, Ordering::Relaxed);
        }
        Ok((region, used))
    }
}

impl Region {
    /// Makes a region, all pages but those of pipes present, and fills in interfaces and rings for a port
    /// named `name`.
    ///
    /// # Errors
    /// A geometry out of range, or what the system says of making, sizing or mapping the file.
    pub fn new(geometry: &Geometry, name: &str) -> io::Result<Region> {
        Region::make(geometry.layout()?, name)
    }

    fn make(info: Info, name: &str) -> io::Result<Region> {
        let region = Region { info, memory: memory(&info)? };
        region.take_place(name)?;
        Ok(region)
    }

    /// A region for a guest that maps it as a BAR: the file is as long as one, which is a power of two, so
    /// that no access behind the region's end faults. What lies there takes no memory until the guest writes
    /// to it.
    ///
    /// # Errors
    /// As above.
    pub fn for_guest(geometry: &Geometry, name: &str) -> io::Result<Region> {
        Region::make(of_guest(geometry)?, name)
    }

    /// A guest's region that another process made, as it left it. Each process has one; only one of them uses
    /// its rings.
    ///
    /// # Errors
    /// It is not the file of such a region; or as above.
    pub fn adopt(geometry: &Geometry, file: OwnedFd) -> io::Result<Region> {
        let info = of_guest(geometry)?;
        Ok(Region { info, memory: adopt_memory(&info, file)? })
    }

    /// A guest's region without contents, whose memory is there when it is used.
    ///
    /// # Errors
    /// As above.
    pub fn empty(geometry: &Geometry) -> io::Result<Region> {
        let info = of_guest(geometry)?;
        Ok(Region { info, memory: memory(&info)? })
    }

    /// The part of `memory` that `info` describes.
    pub(super) fn part(info: Info, memory: &Arc<SharedPages>) -> Region {
        Region { info, memory: Arc::clone(memory) }
    }

    /// Has its pages present, and fills in interfaces and rings.
    fn take_place(&self, name: &str) -> io::Result<()> {
        // Memory that is short shall be missed here, not on an I/O core. Pipes get theirs when it is used:
        // I/O cores do not touch it.
        self.allocate(parts(&self.info))?;
        self.fill(name);
        Ok(())
    }

    /// Has the pages of these parts of the file present, each an offset and a length.
    pub(super) fn allocate(&self, parts: impl IntoIterator<Item = (u64, u64)>) -> io::Result<()> {
        for (offset, len) in parts {
            fallocate(self.file(), FallocateFlags::empty(), offset, len)?;
        }
        Ok(())
    }

    /// The client that had the whole memory file of this region has gone, and may keep the file: its pages
    /// are taken away ([`take_pages`]), unless the daemon ends.
    pub fn give_up(&self) {
        if !ENDS.load(Ordering::Relaxed) {
            take_pages(self.file(), self.info.total);
        }
    }

    /// Where everything is.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// The memory file, for the client.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.memory.file()
    }

    /// Address of byte `offset`, which has to be inside.
    fn at(&self, offset: u64) -> *mut u8 {
        assert!(offset < self.info.total);
        #[expect(clippy::cast_possible_truncation, reason = "below total, which fits usize")]
        // SAFETY: inside the mapping, as just checked.
        unsafe {
            self.memory.base().as_ptr().add(offset as usize)
        }
    }

    /// Where ring `number` is, counted over all rings: the port's TX and RX rings, and four of each pipe.
    pub(super) fn ring_offset(&self, number: u32) -> u64 {
        self.info.ring_pool + u64::from(number) * u64::from(self.info.ring_size)
    }

    /// Stores `word` at byte `offset`, a multiple of eight.
    fn store(&self, offset: u64, word: u64) {
        let at = self.at(offset);
        assert!(offset % 8 == 0);
        // SAFETY: an aligned word of the region, whose length is one of whole pages; others may write it,
        // too.
        unsafe { &*at.cast::<AtomicU64>() }.store(word, Ordering::Relaxed);
    }

    /// Writes interfaces, rings, slots and the list of extra buffers: as they are at first, whatever stands
    /// there. A client that has this part of the file may write there, too.
    pub fn fill(&self, name: &str) {
        let info = &self.info;
        let (txs, rxs) = (info.tx_rings, info.rx_rings);
        let mut next_buf = info.first_buf;
        for number in 0..txs + rxs {
            let receives = number >= txs;
            self.fill_ring(number, if receives { number - txs } else { number }, receives, next_buf);
            next_buf += self.num_slots(number);
        }
        let first_extra = if info.extra_bufs > 0 { next_buf } else { 0 };
        let after_extra = next_buf + info.extra_bufs;
        for buf in next_buf..after_extra {
            let next = if buf + 1 < after_extra { buf + 1 } else { 0 };
            self.store(info.buf_pool + u64::from(buf) * u64::from(info.buf_size), next.into());
        }
        let rings: Vec<u64> =
            idle_ring(info).into_iter().chain(0..txs + rxs).map(|number| self.ring_offset(number)).collect();
        if let Some(idle) = idle_ring(info) {
            self.fill_idle(idle, 0, false);
        }
        self.fill_interface(
            info.interface,
            name,
            first_extra,
            rings.split_at(txs.max(1) as usize),
            info.host_rings as usize,
        );
        for pipe in 0..info.pipes {
            let first = txs + rxs + 4 * pipe;
            for (end, bracket) in [(End::Master, '{'), (End::Slave, '}')] {
                let [tx, rx] = end.rings();
                // One set of buffers for each direction: what one end sends the other receives.
                let (ours, theirs) = (end as u32 - 1, 2 - end as u32);
                self.fill_ring(first + tx, 0, false, pipe_bufs(info, pipe, ours));
                self.fill_ring(first + rx, 0, true, pipe_bufs(info, pipe, theirs));
                let rings = [tx, rx].map(|ring| self.ring_offset(first + ring));
                let at = pipe_end(info, pipe, end).interface;
                self.fill_interface(at, &format!("{name}{bracket}"), 0, rings.split_at(1), 0);
            }
        }
    }

    /// Writes ring `number`, the one of this `id` in its direction, with the buffers from `first` on, and its
    /// words.
    pub(super) fn fill_ring(&self, number: u32, id: u32, receives: bool, first: u32) {
        self.fill_object(number, id, receives, first);
        let tail = if receives { 0 } else { self.num_slots(number) - 1 };
        self.words(number).engine.hwtail.store(tail, Ordering::Relaxed);
    }

    /// Writes ring `number`, which leads nowhere: its slots have no buffers.
    pub(super) fn fill_idle(&self, number: u32, id: u32, receives: bool) {
        self.fill_object(number, id, receives, 0);
        for slot in self.slots(number).iter().step_by(2) {
            slot.store(SlotWord::new(0, 0, 0).0, Ordering::Relaxed);
        }
    }

    fn fill_object(&self, number: u32, id: u32, receives: bool, first: u32) {
        let info = &self.info;
        let offset = self.ring_offset(number);
        let num_slots = self.num_slots(number);
        let tail = if receives { 0 } else { num_slots - 1 };
        // `RingHead`, two fields in a word; what follows is zero at first.
        let head = [
            info.buf_pool.wrapping_sub(offset),
            pair(num_slots, info.buf_size),
            u64::from(id) | u64::from(receives) << 16,
            pair(0, tail),
        ];
        let words = head.into_iter().chain(std::iter::repeat(0)).take(size_of::<RingHead>() / 8);
        (offset..).step_by(8).zip(words).for_each(|(at, word)| self.store(at, word));
        let len = u16::try_from(info.buf_size).unwrap_or(u16::MAX);
        for (buf, slot) in (first..).zip(self.slots(number).chunks_exact(2)) {
            let words = [SlotWord::new(buf, len, 0).0, 0];
            slot.iter().zip(words).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
        }
    }

    /// Writes the interface at `offset`, whose rings are at the given offsets: on which it sends, and
    /// receives; the last `host` of each are host rings.
    pub(super) fn fill_interface(
        &self,
        offset: u64,
        name: &str,
        bufs: u32,
        (txs, rxs): (&[u64], &[u64]),
        host: usize,
    ) {
        let mut ni_name = [0; IF_NAME];
        // Cut to what fits with a closing zero.
        ni_name.iter_mut().zip(name.bytes().take(IF_NAME - 1)).for_each(|(to, byte)| *to = byte);
        let count = |rings: usize| u32::try_from(rings).unwrap_or(u32::MAX);
        let (hosts, [first, last]) = (count(host.max(1)), halves(ni_name));
        // `If`, two fields in a word.
        let head = [
            first,
            last,
            pair(API, NI_PRIV_MEM),
            pair(count(txs.len() - host), count(rxs.len() - host)),
            pair(bufs, hosts),
            hosts.into(),
            0,
        ];
        // Without host rings the places that every interface has for them stay zero: not there.
        let none = [None].into_iter().take(usize::from(host == 0));
        let of = |rings: &[u64]| rings.iter().copied().map(Some).collect::<Vec<_>>();
        let rings = of(txs).into_iter().chain(none.clone()).chain(of(rxs)).chain(none);
        let offsets = rings.map(|ring| ring.map_or(0, |ring| ring.wrapping_sub(offset)));
        let words = head.into_iter().chain(offsets);
        (offset..).step_by(8).zip(words).for_each(|(at, word)| self.store(at, word));
    }

    /// Has the interface say where the host rings of a port with one of each direction are, or that they are
    /// not there. A client that maps the interface may write there, too.
    pub fn place_host_rings(&self, there: bool) {
        let info = &self.info;
        let all = info.tx_rings + info.rx_rings;
        // The last ones of their direction; of an end of a pipe those behind all others.
        let (pairs, rings) = match info.host_rings {
            0 => (info.tx_rings, [all, all + 1]),
            hosts => (info.tx_rings - hosts, [info.tx_rings - 1, all - 1]),
        };
        for (place, ring) in [(pairs, rings[0]), (2 * pairs + 1, rings[1])] {
            let at = info.interface + size_of::<If>() as u64 + 8 * u64::from(place);
            self.store(at, if there { self.ring_offset(ring).wrapping_sub(info.interface) } else { 0 });
        }
    }

    /// Puts the port's rings back to their start for a new client, while others still use pipes of the
    /// region. Slots keep the buffers that they have: others may hold those that they had first.
    pub fn restart(&self) {
        for number in 0..self.info.tx_rings + self.info.rx_rings {
            self.restart_ring(number, number >= self.info.tx_rings);
        }
    }

    /// Restarts the rings of pipe `pipe`, which no client uses.
    pub fn restart_pipe(&self, pipe: u32) {
        let first = self.info.tx_rings + self.info.rx_rings + 4 * pipe;
        for number in 0..4 {
            self.restart_ring(first + number, number % 2 == 1);
        }
        // Released slots of a sender's ring have the right buffers; the receiver's follow them.
        for end in [End::Master, End::Slave] {
            let [tx, _] = end.rings();
            let (from, to) = (self.slots(first + tx), self.slots(first + across(tx)));
            for (from, to) in from.iter().zip(to) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
    }

    /// The list of extra buffers passes from the interface at `from` to the one at `to`. The engine does not
    /// follow it: it belongs to the clients that wrote it.
    pub fn move_extra(&self, from: u64, to: u64) {
        let head = |interface: u64| {
            let at = self.at(interface + offset_of!(If, ni_bufs_head) as u64);
            // SAFETY: an aligned word of an interface, for which `layout` has room; others may write it, too.
            unsafe { &*at.cast::<AtomicU32>() }
        };
        let first = head(from).swap(0, Ordering::Relaxed);
        head(to).store(first, Ordering::Relaxed);
    }

    /// Writes where ring `number` is, for a client that takes it over: into its words, and into the ring
    /// itself.
    pub(super) fn set_position(&self, number: u32, [head, hwcur, hwtail]: [u32; 3]) {
        let RingStatus { client, engine } = self.words(number);
        for (word, value) in
            [(&client.head, head), (&client.cur, head), (&client.ticket, 0), (&client.seen, 0)]
        {
            word.store(value, Ordering::Relaxed);
        }
        for (word, value) in
            [(&engine.hwcur, hwcur), (&engine.hwtail, hwtail), (&engine.ticket, 0), (&engine.resets, 0)]
        {
            word.store(value, Ordering::Relaxed);
        }
        self.set_indices(number, head, hwtail);
    }

    /// Writes the indices in ring `number` itself, which are between a program and its library.
    fn set_indices(&self, number: u32, head: u32, tail: u32) {
        let ring = self.at(self.ring_offset(number));
        let indices = [
            (offset_of!(RingHead, head), head),
            (offset_of!(RingHead, cur), head),
            (offset_of!(RingHead, tail), tail),
        ];
        for (offset, value) in indices {
            // SAFETY: an aligned word of the ring, which `layout` has room for; others may write it, too.
            unsafe { (*ring.add(offset).cast::<AtomicU32>()).store(value, Ordering::Relaxed) };
        }
    }

    fn restart_ring(&self, number: u32, receives: bool) {
        let tail = if receives { 0 } else { self.num_slots(number) - 1 };
        for word in self.slots(number).iter().step_by(2) {
            let buf = SlotWord(word.load(Ordering::Relaxed)).buf_idx();
            word.store(SlotWord::new(buf, 0, 0).0, Ordering::Relaxed);
        }
        let words = self.words(number);
        let Client { head, cur, ticket, tickets: _, seen } = &words.client;
        let Engine { hwcur, hwtail, ticket: asked, resets, reason } = &words.engine;
        for word in [head, cur, ticket, seen, hwcur, asked, resets, reason] {
            word.store(0, Ordering::Relaxed);
        }
        hwtail.store(tail, Ordering::Relaxed);
        self.set_indices(number, 0, tail);
    }

    /// Slots of ring `number`, counted over all rings.
    fn num_slots(&self, number: u32) -> u32 {
        if number < self.info.tx_rings {
            self.info.tx_slots
        } else {
            self.info.rx_slots
        }
    }

    /// The words of ring `number`'s slots, two for each.
    fn slots(&self, number: u32) -> &[AtomicU64] {
        let at = self.at(self.ring_offset(number) + size_of::<RingHead>() as u64);
        // SAFETY: the slots follow the ring's head, inside the region, as `layout` has it.
        unsafe { std::slice::from_raw_parts(at.cast(), 2 * self.num_slots(number) as usize) }
    }

    /// The words of ring `number`, counted over all rings.
    fn words(&self, number: u32) -> &RingStatus {
        let pipes = self.info.tx_rings + self.info.rx_rings + 4 * self.info.pipes;
        assert!(number < pipes || idle_ring(&self.info) == Some(number));
        // SAFETY: `layout` has room for these words here, aligned; they are atomics throughout.
        unsafe { &*self.at(self.info.words).cast::<RingStatus>().add(number as usize) }
    }

    /// The number of ring `ring` of pipe `pipe`, counted over all rings.
    pub fn pipe_ring(&self, pipe: u32, ring: u32) -> u32 {
        self.info.tx_rings + self.info.rx_rings + 4 * pipe + ring
    }

    /// What the engine needs of ring `number`, counted over both directions, and then the pipes.
    ///
    /// # Panics
    /// If there is no such ring.
    pub(super) fn ring(self: &Arc<Self>, number: u32) -> RingMemory {
        assert!(number < self.info.tx_rings + self.info.rx_rings + 4 * self.info.pipes);
        // SAFETY: the slots follow the ring's head, inside the region.
        let slots = unsafe { self.at(self.ring_offset(number)).add(size_of::<RingHead>()) };
        RingMemory {
            slots: slots.cast(),
            num_slots: self.num_slots(number),
            bufs: self.at(self.info.buf_pool),
            buf_size: self.info.buf_size,
            buf_count: self.info.bufs,
            _region: Arc::clone(self),
        }
    }
}

impl Region {
    /// The words of ring `number`, counted as for [`Region::ring`], for a caller that keeps the region.
    ///
    /// # Panics
    /// If there is no such ring.
    pub(super) fn ring_words(self: &Arc<Self>, number: u32) -> RingWords {
        RingWords { words: NonNull::from(self.words(number)), _region: Arc::clone(self) }
    }
}

/// Two fields in a word.
pub(super) fn pair(first: u32, second: u32) -> u64 {
    u64::from(first) | u64::from(second) << 32
}

/// A name in two words.
fn halves(name: [u8; IF_NAME]) -> [u64; 2] {
    let mut halves = name.chunks_exact(8).map(|half| half.try_into().map_or(0, u64::from_ne_bytes));
    [halves.next().unwrap_or(0), halves.next().unwrap_or(0)]
}

/// The words of one ring.
pub(super) struct RingWords {
    words: NonNull<RingStatus>,
    _region: Arc<Region>,
}

// SAFETY: an address in a region that is kept mapped, accessed through atomics.
unsafe impl Send for RingWords {}

impl std::ops::Deref for RingWords {
    type Target = RingStatus;

    fn deref(&self) -> &RingStatus {
        // SAFETY: inside the region, which `_region` keeps.
        unsafe { self.words.as_ref() }
    }
}

/// Which buffers a client may name, and how many bytes one has.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    /// The buffers from [`RESERVED_BUFS`] on: this number of them.
    bufs: u32,
    size: u32,
}

impl Bounds {
    /// Whether `word` names a buffer that a client may name, and no more bytes than it has.
    pub(super) fn has(self, word: SlotWord) -> bool {
        word.buf_idx().wrapping_sub(RESERVED_BUFS) < self.bufs && u32::from(word.len()) <= self.size
    }
}

/// One ring, and the buffers of its region, as an I/O core reaches them.
pub(super) struct RingMemory {
    slots: *const AtomicU64,
    num_slots: u32,
    bufs: *mut u8,
    buf_size: u32,
    buf_count: u32,
    _region: Arc<Region>,
}

// SAFETY: addresses in a region that is kept mapped, accessed through atomics and raw copies.
unsafe impl Send for RingMemory {}

impl RingMemory {
    pub(super) fn num_slots(&self) -> u32 {
        self.num_slots
    }

    pub(super) fn buf_size(&self) -> u32 {
        self.buf_size
    }

    #[inline]
    fn slot_at(&self, slot: u32) -> &AtomicU64 {
        assert!(slot < self.num_slots);
        // SAFETY: the ring has `num_slots` slots of 16 bytes, of which this is the first half of one.
        unsafe { &*self.slots.add(2 * slot as usize) }
    }

    /// Slot `slot`, read once.
    pub(super) fn slot(&self, slot: u32) -> SlotWord {
        SlotWord(self.slot_at(slot).load(Ordering::Relaxed))
    }

    /// The words of the slots from `from` to `to`, two for each, of which the first is the slot's.
    ///
    /// # Panics
    /// There are no such slots.
    #[inline]
    pub(super) fn row(&self, from: u32, to: u32) -> &[[AtomicU64; 2]] {
        assert!(from <= to && to <= self.num_slots);
        // SAFETY: the ring has `num_slots` slots of 16 bytes, aligned as words are, in a region that stays
        // mapped as long as this.
        unsafe {
            let first = self.slots.add(2 * from as usize).cast();
            std::slice::from_raw_parts(first, (to - from) as usize)
        }
    }

    /// Writes slot `slot`.
    pub(super) fn set_slot(&self, slot: u32, word: SlotWord) {
        self.slot_at(slot).store(word.0, Ordering::Relaxed);
    }

    /// Whether `word` names a buffer that a client may name, and no more bytes than it has.
    pub(super) fn is_sound(&self, word: SlotWord) -> bool {
        self.bounds().has(word)
    }

    /// What makes a slot sound, by itself: a loop that writes slots would look up each part of it anew.
    pub(super) fn bounds(&self) -> Bounds {
        Bounds { bufs: self.buf_count - RESERVED_BUFS, size: self.buf_size }
    }

    /// Buffer `index`, whole, if it is one that a client may name.
    #[inline]
    pub(super) fn buffer(&self, index: u32) -> Option<Piece> {
        if index < RESERVED_BUFS || index >= self.buf_count {
            return None;
        }
        // SAFETY: the pool has `buf_count` buffers of `buf_size` bytes, and the region stays mapped as long
        // as this, which outlives the batch that the piece goes into.
        Some(unsafe { Piece::new(self.bufs.add(index as usize * self.buf_size as usize), self.buf_size) })
    }

    /// Asks the cache for the start of the buffer of slot `slot`, to be read.
    pub(super) fn prefetch_read(&self, slot: u32) {
        // Where it would be, were the slot's number right: a prefetch may go astray.
        prefetch_read(self.bufs.wrapping_add(self.slot(slot).buf_idx() as usize * self.buf_size as usize));
    }

    /// Asks the cache for slot `slot`, to be written.
    pub(super) fn prefetch_slot(&self, slot: u32) {
        prefetch_own(std::ptr::from_ref(self.slot_at(slot)).cast());
    }

    /// Asks the cache for the first `len` bytes of the buffer of slot `slot`, to be written.
    #[inline]
    pub(super) fn prefetch_buffer(&self, slot: u32, len: u32) {
        // As above: it may go astray.
        let at = self.bufs.wrapping_add(self.slot(slot).buf_idx() as usize * self.buf_size as usize);
        for line in (0..len as usize).step_by(64) {
            prefetch_own(at.wrapping_add(line));
        }
    }
}
