//! The terms on which the peer of one port gives us memory and interrupts: which files it may give, what is
//! done with them, and how much it has given. Everything that is mapped for a port refers to the same terms.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Which files a peer may give as memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Files {
    /// Those whose pages are memory of this machine: memfds, tmpfs, hugetlbfs.
    #[default]
    Memory,
    /// Any file. Touching one may wait for a disk, another process or another machine, and the I/O core with
    /// it: the operator trusts the peer.
    Any,
}

crate::util::form::view! {
    /// The memory that a port's VMM shares.
    #[derive(Copy, Default)]
    MemoryCount {
        /// Mappings of it now.
        mappings: u64,
        /// Descriptors of the wrong kind, which were refused.
        refused_files: u64,
        /// Bytes that were made present in advance (prefault).
        populated_bytes: u64,
    }
}

/// The terms of one port.
#[derive(Clone, Debug, Default)]
pub struct Terms(Arc<TermValues>);

#[derive(Debug, Default)]
struct TermValues {
    any_file: AtomicBool,
    prefault: AtomicBool,
    call_sockets: AtomicBool,
    refused: AtomicU64,
    populated: AtomicU64,
    later: Mutex<Later>,
    /// Mappings that are watched.
    watched: AtomicUsize,
}

/// Makes a stretch of memory present.
type Work = Box<dyn FnOnce(&Terms) + Send>;

/// What waits to be made present, and whether a thread is at it.
#[derive(Default)]
struct Later {
    waiting: VecDeque<Work>,
    running: bool,
}

impl fmt::Debug for Later {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Later").field("waiting", &self.waiting.len()).field("running", &self.running).finish()
    }
}

impl Terms {
    /// Terms for `files`.
    pub fn new(files: Files) -> Terms {
        let terms = Terms::default();
        terms.set_files(files);
        terms
    }

    /// From now on these may be given.
    pub fn set_files(&self, files: Files) {
        self.0.any_file.store(files == Files::Any, Ordering::Relaxed);
    }

    /// Whether all pages of its memory are made present as soon as it is given, from now on.
    pub fn set_prefault(&self, on: bool) {
        self.0.prefault.store(on, Ordering::Relaxed);
    }

    /// Whether they are.
    pub(super) fn prefault(&self) -> bool {
        self.0.prefault.load(Ordering::Relaxed)
    }

    /// Whether its interrupts may be sockets, from now on.
    pub fn set_call_sockets(&self, on: bool) {
        self.0.call_sockets.store(on, Ordering::Relaxed);
    }

    /// Whether they may be.
    pub fn call_sockets(&self) -> bool {
        self.0.call_sockets.load(Ordering::Relaxed)
    }

    /// Has a thread of the port's make memory present: one stretch behind the other.
    pub(super) fn later(&self, work: Work) {
        let mut list = crate::lock(&self.0.later);
        list.waiting.push_back(work);
        if list.running {
            return;
        }
        let ours = self.clone();
        let run = move || loop {
            let mut list = crate::lock(&ours.0.later);
            let Some(next) = list.waiting.pop_front() else {
                list.running = false;
                return;
            };
            drop(list);
            next(&ours);
        };
        match super::rings::start_helper("prefault".to_owned(), run) {
            Ok(_) => list.running = true,
            Err(e) => tracing::warn!("a VMM's memory cannot be made present: {e}"),
        }
    }

    /// Counts a descriptor that is not of the kind that it was given for.
    pub fn refused(&self) {
        self.0.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts bytes that were made present.
    pub(super) fn populated(&self, bytes: u64) {
        self.0.populated.fetch_add(bytes, Ordering::Relaxed);
    }

    /// What was counted so far.
    pub fn count(&self) -> MemoryCount {
        MemoryCount {
            mappings: self.watched() as u64,
            refused_files: self.0.refused.load(Ordering::Relaxed),
            populated_bytes: self.0.populated.load(Ordering::Relaxed),
        }
    }

    /// Which files may be given.
    pub fn files(&self) -> Files {
        match self.0.any_file.load(Ordering::Relaxed) {
            true => Files::Any,
            false => Files::Memory,
        }
    }

    /// Mappings of this port that are watched.
    pub(super) fn watched(&self) -> usize {
        self.0.watched.load(Ordering::Relaxed)
    }

    /// `by` mappings more. Only the holder of the table's lock calls this.
    pub(super) fn watch(&self, by: isize) {
        self.0.watched.store(self.watched().saturating_add_signed(by), Ordering::Relaxed);
    }
}
