//! Guest memory as mapped regions: an immutable snapshot that queues hold for as long as they use it.
//!
//! Theory of operation. The VMM names regions (guest address, size, its own virtual address, a file and
//! an offset). [`GuestMap::new`] maps each whole, shared. Rings and buffers are translated with one
//! bounds check each: [`GuestMap::translate`] answers only if the whole stretch lies in one region.
//! A change of the memory table makes a new map: either a whole new one, or one that shares what has not
//! changed with its predecessor ([`GuestMap::with`], [`GuestMap::without`]). A region is unmapped when the
//! last map that has it is dropped, which happens when the last queue that was built on such a map has been
//! taken back, on the thread that took it back.
//!
//! Invariant: `Region::window` is inside `Region::mapping`, one mapping that lives exactly as long as
//! the last `Region` that refers to it.

use std::fs::File;
use std::sync::Arc;

use super::foreign::{BadFile, ForeignMapping};
use super::piece::Piece;
use super::sigbus::Flag;
use super::terms::Terms;

/// Most regions of one map: what vhost in Linux allows.
pub const MAX_REGIONS: usize = 509;
/// Most bytes of one map: twice what the largest machines have.
pub const MAX_BYTES: u64 = 16 << 40;
/// A PC's low memory: its firmware keeps vectors and data there, and every operating system the code that
/// starts processors.
const LOW: u64 = 640 << 10;

/// One region of guest memory as the VMM describes it.
pub struct RegionSpec {
    /// Guest physical address of its first byte.
    pub gpa: u64,
    /// Bytes.
    pub size: u64,
    /// The VMM's own virtual address of its first byte; ring addresses arrive in this form.
    pub user_addr: u64,
    /// Where the region starts in `file`.
    pub offset: u64,
    /// The memory file.
    pub file: File,
}

/// Why memory could not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// Empty, or an address range that wraps.
    #[error("memory region at {gpa:#x} of {size:#x} bytes is empty or wraps around")]
    BadRange {
        /// Its guest address.
        gpa: u64,
        /// Its size.
        size: u64,
    },
    /// Two regions share addresses.
    #[error("memory regions at {0:#x} and {1:#x} overlap")]
    Overlap(u64, u64),
    /// Two regions share addresses of the VMM's own, in which it names rings.
    #[error("memory regions at {0:#x} and {1:#x} overlap in the VMM's own addresses")]
    UserOverlap(u64, u64),
    /// Too many.
    #[error("memory_regions: there are {MAX_REGIONS} memory regions already")]
    TooMany,
    /// Too large.
    #[error("memory_bytes: the memory regions have more than {} TiB", MAX_BYTES >> 40)]
    TooLarge,
    /// The file cannot be used.
    #[error("memory region at {gpa:#x}: {source}")]
    File {
        /// The region's guest address.
        gpa: u64,
        /// Why.
        source: BadFile,
    },
}

#[derive(Clone, Debug)]
struct Region {
    window: Window,
    user_addr: u64,
    /// Keeps the window mapped.
    mapping: Arc<ForeignMapping>,
}

impl Region {
    fn map(spec: &RegionSpec, truncated: &Flag, terms: &Terms) -> Result<Region, MapError> {
        if spec.size == 0
            || spec.gpa.checked_add(spec.size).is_none()
            || spec.user_addr.checked_add(spec.size).is_none()
        {
            return Err(MapError::BadRange { gpa: spec.gpa, size: spec.size });
        }
        let mapped = ForeignMapping::of_peer(&spec.file, spec.offset, spec.size, truncated, terms);
        let mapping = Arc::new(mapped.map_err(|source| MapError::File { gpa: spec.gpa, source })?);
        if terms.prefault() {
            ForeignMapping::populate(&mapping, terms);
        }
        let window = Window { gpa: spec.gpa, size: spec.size, host: mapping.first.as_ptr() };
        Ok(Region { window, user_addr: spec.user_addr, mapping })
    }
}

/// One region of a map, for callers that translate a lot: a bounds check and an addition. The user of a
/// window keeps the map, too.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    gpa: u64,
    size: u64,
    host: *mut u8,
}

// SAFETY: an address in shared memory and its bounds, as in the map that it is a part of.
unsafe impl Send for Window {}

impl Window {
    /// The window that holds nothing.
    pub const EMPTY: Window = Window { gpa: 0, size: 0, host: std::ptr::null_mut() };

    /// The `len` bytes at guest address `gpa`, if the window holds them all.
    #[inline]
    pub fn piece(&self, gpa: u64, len: u32) -> Option<Piece> {
        let offset = gpa.wrapping_sub(self.gpa);
        if offset >= self.size || u64::from(len) > self.size - offset {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "below size, which was mapped and fits usize")]
        // SAFETY: the stretch is inside the mapping, which lives as long as the map, which is kept.
        Some(unsafe { Piece::new(self.host.add(offset as usize), len) })
    }
}

/// All of a guest's memory at one time. The default one is empty.
#[derive(Debug, Default)]
pub struct GuestMap {
    regions: Vec<Region>,
    truncated: Flag,
    terms: Terms,
}

// SAFETY: the map is addresses and lengths of shared memory that is copied from and to by raw pointer; it
// hands out no references.
unsafe impl Send for GuestMap {}
// SAFETY: as above.
unsafe impl Sync for GuestMap {}

impl GuestMap {
    /// Maps every region, on the usual terms.
    ///
    /// # Errors
    /// See [`GuestMap::on`].
    pub fn new(specs: &[RegionSpec]) -> Result<GuestMap, MapError> {
        GuestMap::on(&Terms::default(), specs)
    }

    /// Maps every region on `terms`.
    ///
    /// # Errors
    /// There are too many or too large ones; or the first region that is empty, overlaps another, or whose
    /// file is not allowed, too short or cannot be mapped.
    pub fn on(terms: &Terms, specs: &[RegionSpec]) -> Result<GuestMap, MapError> {
        GuestMap::check_sizes(specs.iter().map(|spec| spec.size))?;
        specs.iter().try_fold(GuestMap::empty(terms), |map, spec| map.with(spec))
    }

    /// Bytes of it that lie in huge pages.
    pub fn in_huge_pages(&self) -> u64 {
        self.regions.iter().map(|region| region.mapping.in_huge_pages()).sum()
    }

    /// No region, on `terms`: the first of a line of maps.
    pub fn empty(terms: &Terms) -> GuestMap {
        GuestMap { terms: terms.clone(), ..GuestMap::default() }
    }

    fn check_sizes(sizes: impl Iterator<Item = u64>) -> Result<(), MapError> {
        let (mut count, mut bytes) = (0, 0u64);
        sizes.for_each(|size| (count, bytes) = (count + 1, bytes.saturating_add(size)));
        match count > MAX_REGIONS {
            true => Err(MapError::TooMany),
            false if bytes > MAX_BYTES => Err(MapError::TooLarge),
            false => Ok(()),
        }
    }

    /// This map and one region more. The other regions are shared with it, not mapped again.
    ///
    /// # Errors
    /// Those of [`GuestMap::on`].
    pub fn with(&self, spec: &RegionSpec) -> Result<GuestMap, MapError> {
        let others = self.regions.iter().map(|region| region.window.size);
        GuestMap::check_sizes(others.chain([spec.size]))?;
        let place = self.regions.partition_point(|region| region.window.gpa < spec.gpa);
        let before = place.checked_sub(1).and_then(|before| self.regions.get(before));
        if let Some(before) = before.filter(|before| before.window.gpa + before.window.size > spec.gpa) {
            return Err(MapError::Overlap(before.window.gpa, spec.gpa));
        }
        if let Some(after) = self.regions.get(place) {
            if spec.gpa.saturating_add(spec.size) > after.window.gpa {
                return Err(MapError::Overlap(spec.gpa, after.window.gpa));
            }
        }
        let end = spec.user_addr.saturating_add(spec.size);
        let shares = |region: &&Region| {
            region.user_addr < end && spec.user_addr < region.user_addr.saturating_add(region.window.size)
        };
        if let Some(other) = self.regions.iter().find(shares) {
            return Err(MapError::UserOverlap(other.user_addr, spec.user_addr));
        }
        let mut regions = self.regions.clone();
        regions.insert(place, Region::map(spec, &self.truncated, &self.terms)?);
        Ok(GuestMap { regions, truncated: self.truncated.clone(), terms: self.terms.clone() })
    }

    /// This map without the region that starts at `gpa`, if there is one.
    #[must_use]
    pub fn without(&self, gpa: u64) -> GuestMap {
        let regions = self.regions.iter().filter(|region| region.window.gpa != gpa).cloned().collect();
        GuestMap { regions, truncated: self.truncated.clone(), terms: self.terms.clone() }
    }

    /// Whether there is a region of `size` bytes at `gpa`, which the VMM has at `user_addr`.
    pub fn has(&self, gpa: u64, size: u64, user_addr: u64) -> bool {
        let same = |region: &Region| {
            (region.window.gpa, region.window.size, region.user_addr) == (gpa, size, user_addr)
        };
        self.regions.iter().any(same)
    }

    /// Whether there is no region.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// How many regions it has.
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    /// Whether nothing stands in the low memory of what looks like a PC. A VMM that maps its file privately
    /// writes to pages of its own, and the file stays as it was made. The first bytes of a real guest are the
    /// first that differ.
    pub fn is_blank(&self) -> bool {
        let Some(low) = self.regions.iter().find(|region| region.window.gpa == 0) else { return false };
        let len = u32::try_from(low.window.size.min(LOW)).unwrap_or(0);
        let Some(mut rest) = low.window.piece(0, len) else { return false };
        let mut bytes = [0; 4096];
        while !rest.is_empty() {
            let got = rest.read(&mut bytes);
            if bytes.iter().take(got).any(|byte| *byte != 0) {
                return false;
            }
            rest.advance(got);
        }
        len > 0
    }

    /// Whether a memory file has no page any more where we touched it: reads give zeros since then, and the
    /// port must stop.
    pub fn is_truncated(&self) -> bool {
        self.truncated.is_set()
    }

    /// The region that holds the `len` bytes at guest address `gpa`, if one holds them all.
    pub fn window(&self, gpa: u64, len: u32) -> Option<Window> {
        let index = self.regions.partition_point(|region| region.window.gpa <= gpa).checked_sub(1)?;
        let window = self.regions[index].window;
        window.piece(gpa, len).map(|_| window)
    }

    /// The `len` bytes at guest address `gpa`, if one region holds them all. `hint` remembers the region
    /// of the last hit, so that the common case is one comparison.
    #[inline]
    pub fn translate(&self, gpa: u64, len: u32, hint: &mut usize) -> Option<Piece> {
        if let Some(piece) = self.regions.get(*hint).and_then(|region| region.window.piece(gpa, len)) {
            return Some(piece);
        }
        self.search(gpa, len, hint)
    }

    #[cold]
    fn search(&self, gpa: u64, len: u32, hint: &mut usize) -> Option<Piece> {
        let index = self.regions.partition_point(|region| region.window.gpa <= gpa).checked_sub(1)?;
        let piece = self.regions[index].window.piece(gpa, len)?;
        *hint = index;
        Some(piece)
    }

    /// The `len` bytes at guest address `gpa`, one stretch for each region: a buffer may span regions that
    /// are adjacent in the guest, as hot-plugged memory is. `None` in place of what no region holds.
    pub fn parts(&self, mut gpa: u64, mut len: u32) -> impl Iterator<Item = Option<Piece>> + '_ {
        std::iter::from_fn(move || {
            if len == 0 {
                return None;
            }
            let piece = self.translate_part(gpa, len);
            let part = piece.as_ref().map_or(len, |piece| u32::try_from(piece.len()).unwrap_or(len));
            // Regions end below 2^64.
            gpa = gpa.wrapping_add(u64::from(part));
            len -= part;
            Some(piece)
        })
    }

    /// The bytes of one region from `gpa` on, at most `len`.
    fn translate_part(&self, gpa: u64, len: u32) -> Option<Piece> {
        let index = self.regions.partition_point(|region| region.window.gpa <= gpa).checked_sub(1)?;
        let region = &self.regions[index];
        let left = region.window.size.checked_sub(gpa - region.window.gpa).filter(|left| *left > 0)?;
        let len = u32::try_from(left).map_or(len, |left| left.min(len));
        region.window.piece(gpa, len)
    }

    /// The `len` bytes at the VMM's virtual address `addr`: the form in which ring addresses arrive.
    pub fn translate_user(&self, addr: u64, len: u32) -> Option<Piece> {
        let at_users = |region: &Region| Window { gpa: region.user_addr, ..region.window }.piece(addr, len);
        self.regions.iter().find_map(at_users)
    }

    /// Guest addresses and sizes of its regions.
    pub fn stretches(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.regions.iter().map(|region| (region.window.gpa, region.window.size))
    }

    /// The guest address of a stretch that this map translated: for dirty logging.
    pub fn gpa_of(&self, piece: &Piece) -> Option<u64> {
        let at = piece.as_ptr() as usize;
        self.regions.iter().find_map(|region| {
            let offset = (at as u64).checked_sub(region.window.host as u64)?;
            (offset < region.window.size).then_some(region.window.gpa + offset)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustix::fs::{ftruncate, memfd_create, MemfdFlags};

    fn memory(size: u64) -> File {
        let fd = memfd_create(c"test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, size).unwrap();
        fd.into()
    }

    fn spec(gpa: u64, size: u64, offset: u64) -> RegionSpec {
        RegionSpec { gpa, size, user_addr: gpa + 0x7000_0000_0000, offset, file: memory(offset + size) }
    }

    #[test]
    fn bad_tables_are_named() {
        assert!(matches!(GuestMap::new(&[spec(0, 0, 0)]), Err(MapError::BadRange { .. })));
        let mut short = spec(0, 0x2000, 0);
        short.file = memory(0x1000);
        let too_short = |e| matches!(e, MapError::File { source: BadFile::TooShort { .. }, .. });
        assert!(GuestMap::new(&[short]).is_err_and(too_short));
        let mut wraps = spec(0, 0x2000, 0);
        wraps.gpa = u64::MAX - 0x1000;
        assert!(matches!(GuestMap::new(&[wraps]), Err(MapError::BadRange { .. })));
        assert!(matches!(
            GuestMap::new(&[spec(0, 0x2000, 0), spec(0x1000, 0x1000, 0)]),
            Err(MapError::Overlap(..))
        ));
        let mut alias = spec(0x2000, 0x1000, 0);
        alias.user_addr -= 0x1001;
        let whole = spec(0x1000, 0x1000, 0);
        let aliased = |e: &MapError| matches!(e, MapError::UserOverlap(..));
        assert!(GuestMap::new(&[whole]).unwrap().with(&alias).is_err_and(|e| aliased(&e)));
        assert!(GuestMap::new(&[alias, spec(0x1000, 0x1000, 0)]).is_err_and(|e| aliased(&e)));
    }

    /// The VMM's own addresses are in another order than the guest's.
    #[test]
    fn the_order_of_regions_is_the_guests() {
        let at = |gpa: u64, user_addr| RegionSpec { user_addr, ..spec(gpa, 0x1000, 0) };
        let map = GuestMap::new(&[at(0x3000, 0x1_0000), at(0x2000, 0x2_0000), at(0x1000, 0x3_0000)]).unwrap();
        for gpa in [0x1000, 0x2000, 0x3000] {
            let piece = map.translate(gpa, 0x1000, &mut 0).expect("a region");
            assert_eq!(map.gpa_of(&piece), Some(gpa));
        }
    }

    #[test]
    fn a_table_has_an_end() {
        let file = memory(0x1000);
        let part = |n: u64, size| RegionSpec {
            gpa: n << 44,
            size,
            user_addr: n << 44,
            offset: 0,
            file: file.try_clone().unwrap(),
        };
        let huge: Vec<_> = (0..2).map(|n| part(n, MAX_BYTES / 2 + 1)).collect();
        assert!(matches!(GuestMap::new(&huge), Err(MapError::TooLarge)));
        let parts: Vec<_> = (0..=MAX_REGIONS as u64).map(|n| part(n, 0x1000)).collect();
        assert!(matches!(GuestMap::new(&parts), Err(MapError::TooMany)));
        let full = GuestMap::new(&parts[1..]).unwrap();
        assert!(matches!(full.with(&parts[0]), Err(MapError::TooMany)));
        assert!(full.without(1 << 44).with(&parts[0]).is_ok());
    }

    #[test]
    fn memory_is_made_present_where_that_is_asked_for() {
        let (terms, bytes) = (Terms::default(), 9u64 << 20);
        terms.set_prefault(true);
        let region = spec(0, bytes, 0);
        let file = region.file.try_clone().unwrap();
        let map = GuestMap::on(&terms, &[region]).unwrap();
        while terms.count().populated_bytes < bytes {
            std::thread::yield_now();
        }
        // st_blocks is in units of 512 bytes (stat(2)).
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_blocks, 9 << 11);
        assert_eq!(terms.count().mappings, 1);
        drop(map);
        assert_eq!(terms.count().mappings, 0);
    }

    #[test]
    fn offsets_need_not_be_page_aligned() {
        let map = GuestMap::new(&[spec(0x10_0000, 0x1000, 0x234)]).unwrap();
        let piece = map.translate(0x10_0000, 4, &mut 0).unwrap();
        piece.write(&[1, 2, 3, 4]);
        let mut back = [0; 4];
        map.translate_user(0x7000_0010_0000, 4).unwrap().read(&mut back);
        assert_eq!(back, [1, 2, 3, 4]);
        assert_eq!(map.gpa_of(&piece), Some(0x10_0000));
    }

    /// Lines of `/proc/self/maps` that name `name`.
    fn mapped(name: &str) -> usize {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.contains(name)).count()
    }

    #[test]
    fn a_change_maps_and_unmaps_only_what_changes() {
        let named = |gpa, size| {
            let fd = memfd_create(c"changing", MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&fd, size).unwrap();
            RegionSpec { gpa, size, user_addr: gpa, offset: 0, file: fd.into() }
        };
        let empty = GuestMap::default();
        let one = empty.with(&named(0x4000, 0x1000)).unwrap();
        let kept = one.translate(0x4000, 4, &mut 0).unwrap();
        kept.write(&[1, 2, 3, 4]);
        let two = one.with(&named(0x1000, 0x2000)).unwrap();
        assert_eq!(mapped("changing"), 2);
        assert!(one.translate(0x1000, 1, &mut 0).is_none() && two.translate(0x1000, 1, &mut 0).is_some());
        for (gpa, size) in [(0x4000, 0x1000), (0x3fff, 2), (0x2fff, 1), (0x0, 0x1001), (0x4fff, 1)] {
            assert!(matches!(two.with(&named(gpa, size)), Err(MapError::Overlap(..))), "{gpa:#x}");
        }
        assert!(two.with(&named(0x3000, 0x1000)).is_ok());
        assert_eq!(mapped("changing"), 2, "what is refused or dropped is not mapped");
        let last = two.without(0x1000);
        drop((one, two));
        assert_eq!(mapped("changing"), 1);
        assert_eq!(last.translate(0x4000, 4, &mut 0).unwrap().read_array(), Some([1u8, 2, 3, 4]));
        drop(last);
        assert_eq!(mapped("changing"), 0);
    }

    proptest! {
        #[test]
        fn a_stretch_is_translated_only_if_one_region_holds_it(
            gpa in 0u64..0x9000, len in 0u32..0x4000, mut hint in 0usize..4,
        ) {
            let regions = [(0x1000u64, 0x2000u64), (0x3000, 0x1000), (0x6000, 0x1000)];
            let specs: Vec<_> = regions.iter().map(|&(g, s)| spec(g, s, 0)).collect();
            let map = GuestMap::new(&specs).unwrap();
            let fits = regions.iter().any(|&(g, s)| gpa >= g && gpa < g + s && gpa + u64::from(len) <= g + s);
            let piece = map.translate(gpa, len, &mut hint);
            prop_assert_eq!(piece.is_some(), fits);
            if let Some(piece) = piece {
                prop_assert_eq!(piece.len(), len as usize);
            }
        }
    }
}
