//! A region's pages, mapped: registers that are reached without a message, as a guest reaches them without a
//! trap.
//!
//! Invariant kept by the `unsafe` here: each [`Area`] is one mapping of `len` bytes that lives exactly as
//! long as the `Area`; every access is an aligned atomic word whose offset was compared with `len`.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};
use sidecore_abi::vfio_user::SparseArea;

use crate::error::{Error, Result};

#[derive(Debug)]
struct Area {
    start: u64,
    base: NonNull<u8>,
    len: usize,
}

/// The areas of a region that the device lets us map.
#[derive(Debug)]
pub struct Window {
    areas: Vec<Area>,
}

// SAFETY: addresses of shared memory that is only reached as atomics.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// Maps `areas` of the region that starts at `offset` of `file`.
    pub(super) fn map(file: BorrowedFd, offset: u64, areas: &[SparseArea]) -> Result<Window> {
        let areas = areas.iter().map(|area| {
            let len = usize::try_from(area.size).ok().filter(|len| *len > 0);
            let at = offset.checked_add(area.offset).filter(|at| at % 4096 == 0);
            let (Some(len), Some(at)) = (len, at) else {
                return Err(Error::Vfio(format!("an area of {area:?} cannot be mapped")));
            };
            let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
            // SAFETY: a fresh mapping at an address that the kernel chooses; nothing else refers to it.
            let base = unsafe { mmap(std::ptr::null_mut(), len, prot, flags, file, at) };
            let base = base.map_err(|e| Error::io("mapping a device's registers", e))?;
            let base = NonNull::new(base.cast()).ok_or_else(|| Error::Config("mmap returned null".into()))?;
            Ok(Area { start: area.offset, base, len })
        });
        Ok(Window { areas: areas.collect::<Result<_>>()? })
    }

    /// The register at byte `offset` of the region, if it is mapped.
    #[inline]
    pub fn word(&self, offset: u64) -> Option<&AtomicU32> {
        self.areas.iter().find_map(|area| {
            let at = usize::try_from(offset.checked_sub(area.start)?).ok()?;
            if at % 4 != 0 || at.checked_add(4)? > area.len {
                return None;
            }
            // SAFETY: inside the mapping and aligned, as just checked; the mapping lives as long as `self`.
            Some(unsafe { &*area.base.as_ptr().add(at).cast::<AtomicU32>() })
        })
    }

    /// Address of the `len` bytes at byte `offset` of the region, if they are all mapped, for as long as the
    /// window lives.
    pub(crate) fn at(&self, offset: u64, len: usize) -> Option<NonNull<u8>> {
        self.areas.iter().find_map(|area| {
            let at = usize::try_from(offset.checked_sub(area.start)?).ok()?;
            if at.checked_add(len)? > area.len {
                return None;
            }
            // SAFETY: inside the mapping, as just checked.
            Some(unsafe { area.base.add(at) })
        })
    }

    /// Reads the register at byte `offset`.
    #[inline]
    pub fn read32(&self, offset: u64) -> Option<u32> {
        self.word(offset).map(|word| word.load(Ordering::Acquire))
    }

    /// Writes the register at byte `offset`, after everything that was written before. False if it is not
    /// mapped.
    #[inline]
    #[must_use]
    pub fn write32(&self, offset: u64, value: u32) -> bool {
        self.word(offset).map(|word| word.store(value, Ordering::Release)).is_some()
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping that `map` made; references into it cannot outlive the window.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
