//! Files of other processes: checked before any thread of ours can wait for them, and mapped. This is the
//! only place that maps foreign files.
//!
//! Theory of operation. Touching a page, `fstat`, `fstatfs`, `epoll_ctl` and even `close` of a file wait for
//! the server of its file system. With FUSE that is any other process, and it may take any time. One call
//! does not ask the file system: `F_GET_SEALS` succeeds for files of shmem (memfd, tmpfs) and hugetlbfs and
//! for no others (fcntl(2)), and guest memory consists of just these. So that call comes first, and a file
//! that fails it is not touched again, unless the operator trusts the peer with any file ([`Files::Any`]).
//! Event descriptors are recognized by the name of their link in /proc, which does not wait, either.
//!
//! Huge pages are mapped with a reservation: if the pool lacks pages, that is an error now and not a page
//! fault later. If the pool cannot reserve them all, they are mapped without a reservation: a VMM may have
//! done so on purpose (`reserve=off`, as virtio-mem does), and has its own pages already. A missing page then
//! costs its port (`sigbus`).
//!
//! Invariant: `first` is inside the mapping beside it, which is watched until just before its end.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use rustix::fs::{fcntl_get_seals, fcntl_getfl, fcntl_setfl, fstat, fstatfs, FileType, OFlags};
use rustix::io::Errno;
use rustix::mm::{madvise, Advice, MapFlags};
use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{getpeername, AddressFamily, SocketType};

use super::mapping::Mapping;
use super::sigbus::{self, Flag, WatchError, WatchedMapping};
use super::terms::{Files, Terms};
use crate::util::fault::shown;

/// Why a descriptor cannot be what its peer gives it for.
#[derive(Debug, thiserror::Error)]
pub enum BadFile {
    /// Not memory.
    #[error(
        "memory_file: {0} is no memfd and on neither tmpfs nor hugetlbfs; an I/O core that touches it may wait for \
         others, so the port needs memory-file=any"
    )]
    NotMemory(String),
    /// Nothing that can be mapped, trusted or not.
    #[error("memory_file: {0} is no file that can be mapped")]
    NotMappable(String),
    /// Not an event descriptor.
    #[error("event_file: the descriptor is no eventfd but {0}")]
    NotEvent(String),
    /// Empty, or beyond what can be addressed.
    #[error("it is empty or wraps around")]
    BadRange,
    /// The file ends earlier.
    #[error("the file has {file} bytes but {need} are needed")]
    TooShort {
        /// Bytes in the file.
        file: u64,
        /// Bytes needed.
        need: u64,
    },
    /// Too many mappings.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// The system refused.
    #[error("{0}")]
    System(#[from] io::Error),
}

impl From<Errno> for BadFile {
    fn from(e: Errno) -> BadFile {
        BadFile::System(e.into())
    }
}

/// What the kernel calls the file behind a descriptor, for people: others may have given it that name. Never
/// waits.
pub fn link_name(fd: BorrowedFd) -> String {
    const LONGEST: usize = 256;
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    link.map_or_else(
        |e| format!("a descriptor that cannot be looked at ({e})"),
        |to| shown(&to.to_string_lossy(), LONGEST),
    )
}

/// Whether `fd` is a file of shmem or hugetlbfs. Never waits.
pub fn is_memory(fd: impl AsFd) -> bool {
    fcntl_get_seals(fd).is_ok()
}

/// Whether `fd` is an eventfd. Never waits.
pub fn is_eventfd(fd: impl AsFd) -> bool {
    link_name(fd.as_fd()) == "anon_inode:[eventfd]"
}

/// Whether `fd` is a connected stream socket of this host: who may write to it without waiting. Never waits.
pub fn is_stream(fd: impl AsFd) -> bool {
    socket_domain(&fd) == Ok(AddressFamily::UNIX)
        && socket_type(&fd) == Ok(SocketType::STREAM)
        && getpeername(fd).is_ok()
}

/// Makes an event descriptor of `fd`: it must be an eventfd, and a full counter must not block. (Another
/// process that holds it can make it block again: see `signal`.)
///
/// # Errors
/// What it is instead.
pub fn eventfd<T: AsFd>(fd: T, terms: &Terms) -> Result<T, BadFile> {
    if !is_eventfd(&fd) {
        terms.refused();
        return Err(BadFile::NotEvent(link_name(fd.as_fd())));
    }
    let flags = fcntl_getfl(&fd)?;
    fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
    Ok(fd)
}

/// A file that may be mapped.
struct Vetted {
    /// The unit in which it is mapped.
    page: u64,
    /// `None`: a device node, such as a DAX device, has no length to compare with.
    len: Option<u64>,
    huge: bool,
}

/// Looks at `file`. Nothing here waits before it is known to be memory.
fn vet(file: &File, terms: &Terms) -> Result<Vetted, BadFile> {
    /// `f_type` of hugetlbfs, from linux/magic.h.
    const HUGETLBFS_MAGIC: u32 = 0x9584_58f6;
    let memory = is_memory(file);
    if !memory && terms.files() != Files::Any {
        terms.refused();
        return Err(BadFile::NotMemory(link_name(file.as_fd())));
    }
    let stat = fstat(file)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    let len = match kind {
        FileType::RegularFile => Some(u64::try_from(stat.st_size).unwrap_or(0)),
        FileType::CharacterDevice => None,
        _ => return Err(BadFile::NotMappable(link_name(file.as_fd()))),
    };
    let system = fstatfs(file)?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "magic numbers have 32 bits")]
    let huge = system.f_type as u32 == HUGETLBFS_MAGIC;
    let page = u64::try_from(system.f_bsize).ok().filter(|_| huge).filter(|size| size.is_power_of_two());
    Ok(Vetted { page: page.unwrap_or(rustix::param::page_size() as u64), len, huge })
}

/// A stretch of a foreign file, mapped shared, readable and writable.
#[derive(Debug)]
pub(super) struct ForeignMapping {
    /// Ends before the mapping does.
    _watch: WatchedMapping,
    memory: Mapping,
    /// Where the stretch begins that was asked for.
    pub(super) first: NonNull<u8>,
    huge: bool,
}

// SAFETY: an address in the mapping; what is there is shared memory.
unsafe impl Send for ForeignMapping {}
// SAFETY: as above.
unsafe impl Sync for ForeignMapping {}

impl ForeignMapping {
    /// Maps the `size` bytes of `file` from `offset` on. `flag` is raised when some of it is lost.
    pub(super) fn of_peer(
        file: &File,
        offset: u64,
        size: u64,
        flag: &Flag,
        terms: &Terms,
    ) -> Result<ForeignMapping, BadFile> {
        let end = offset.checked_add(size).filter(|_| size > 0).ok_or(BadFile::BadRange)?;
        let vetted = vet(file, terms)?;
        if let Some(len) = vetted.len.filter(|len| *len < end) {
            return Err(BadFile::TooShort { file: len, need: end });
        }
        // The kernel wants an offset of whole pages (huge pages, for hugetlbfs): map from the start of that
        // page and skip the rest.
        let start = offset - offset % vetted.page;
        let len = (end - start).checked_next_multiple_of(vetted.page);
        let len = len.and_then(|len| usize::try_from(len).ok()).ok_or(BadFile::BadRange)?;
        let map = |flags| Mapping::of_part(file, start, len, true, flags);
        // Pages that the pool does not have need no clearing, so nothing is allowed for that.
        let mut huge = vetted.huge;
        let memory = match map(if vetted.huge { MapFlags::empty() } else { MapFlags::NORESERVE }) {
            Err(e) if e.kind() == io::ErrorKind::OutOfMemory && vetted.huge => {
                let memory = map(MapFlags::NORESERVE)?;
                huge = false;
                let size = vetted.page >> 10;
                tracing::warn!(
                    "a VMM's memory of {len} bytes is mapped without a reservation: the pool of huge pages of {size} KiB \
                     cannot give all of it (vm.nr_hugepages); a page that is missing when it is used stops the port"
                );
                memory
            }
            memory => memory?,
        };
        let (base, page) = (memory.base(), usize::try_from(vetted.page).map_err(|_| BadFile::BadRange)?);
        let _watch = sigbus::watch(base.as_ptr() as usize, len, page, flag, terms)?;
        #[expect(clippy::cast_possible_truncation, reason = "below `len`, a usize")]
        // SAFETY: below `len`, as there is at least one byte.
        let first = unsafe { base.add((offset - start) as usize) };
        Ok(ForeignMapping { _watch, memory, first, huge })
    }

    /// Maps a part of a file of our own, wherever that lies.
    pub(super) fn of_ours(
        file: &File,
        offset: u64,
        size: u64,
        flag: &Flag,
    ) -> Result<ForeignMapping, BadFile> {
        ForeignMapping::of_peer(file, offset, size, flag, &Terms::new(Files::Any))
    }

    /// Bytes of it that lie in huge pages: all or none.
    pub(super) fn in_huge_pages(&self) -> u64 {
        if self.huge {
            self.memory.size() as u64
        } else {
            0
        }
    }
}

/// Bytes that are made present at a time: some milliseconds.
const POPULATE: usize = 4 << 20;

impl ForeignMapping {
    /// Makes all pages of `mapping` present, on a thread of its own, one a port: the kernel may have to clear
    /// them all, or to fetch them from a disk. Ends when the mapping is not used any more.
    pub(super) fn populate(mapping: &Arc<ForeignMapping>, terms: &Terms) {
        let weak = Arc::downgrade(mapping);
        terms.later(Box::new(move |terms| ForeignMapping::populate_all(&weak, terms)));
    }

    fn populate_all(weak: &Weak<ForeignMapping>, terms: &Terms) {
        let mut at = 0;
        while let Some(mapping) = weak.upgrade().filter(|mapping| at < mapping.memory.size()) {
            let len = POPULATE.min(mapping.memory.size() - at);
            // SAFETY: inside the mapping, which lives while we hold it; what is there does not change.
            let part = unsafe {
                madvise(mapping.memory.base().as_ptr().add(at).cast(), len, Advice::LinuxPopulateWrite)
            };
            if let Err(e) = part {
                // The pool is empty, the file was cut short, or the kernel is older than 5.14.
                let all = mapping.memory.size();
                tracing::warn!("a VMM's memory is present up to byte {at} of {all} and no further: {e}");
                return;
            }
            terms.populated(len as u64);
            at += len;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{eventfd as make, EventfdFlags};
    use rustix::fs::{ftruncate, memfd_create, MemfdFlags};

    #[test]
    fn only_eventfds_that_do_not_block_are_written_to() {
        let full: File = make(0, EventfdFlags::empty()).unwrap().into();
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let terms = Terms::default();
        let event = eventfd(full, &terms).unwrap();
        assert_eq!(rustix::io::write(&event, &1u64.to_ne_bytes()), Err(Errno::AGAIN));
        let error = eventfd(File::open("/dev/null").unwrap(), &terms).unwrap_err();
        assert_eq!(error.to_string(), "event_file: the descriptor is no eventfd but /dev/null");
        assert_eq!(terms.count().refused_files, 1);
    }

    #[test]
    fn memory_is_what_waits_for_nobody() {
        let map = |file: &File, terms: &Terms| {
            ForeignMapping::of_peer(file, 0, 16, &Flag::default(), terms).map(drop)
        };
        let strict = Terms::default();
        let memory: File = memfd_create(c"vetted", MemfdFlags::CLOEXEC).unwrap().into();
        assert!(matches!(map(&memory, &strict), Err(BadFile::TooShort { file: 0, need: 16 })));
        ftruncate(&memory, 16).unwrap();
        map(&memory, &strict).unwrap();
        for other in ["/dev/zero", "/proc/self/maps", "/", "/etc"] {
            let error = map(&File::open(other).unwrap(), &strict).unwrap_err().to_string();
            assert!(error.starts_with("memory_file: /") && error.contains("memory-file=any"), "{error}");
        }
        let pipe = File::from(rustix::pipe::pipe().unwrap().0);
        let error = map(&pipe, &strict).unwrap_err().to_string();
        assert!(error.starts_with("memory_file: pipe:"), "{error}");
        let path = std::env::current_exe().unwrap().with_extension("vetted");
        let on_disk = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        on_disk.set_len(16).unwrap();
        if !is_memory(&on_disk) {
            assert!(matches!(map(&on_disk, &strict), Err(BadFile::NotMemory(_))));
        }
        let any = Terms::new(Files::Any);
        map(&on_disk, &any).unwrap();
        assert!(matches!(map(&pipe, &any), Err(BadFile::NotMappable(_))));
    }
}
