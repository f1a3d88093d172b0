//! The terms on which the peer of one port gives us memory: which files it may give, what is done with them, and how
//! much it has given. Everything that is mapped for a port refers to the same terms.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;

/// Which files a peer may give as memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Files {
    /// Those whose pages are memory of this machine: memfds, tmpfs, hugetlbfs.
    #[default]
    Memory,
    /// Any file. Touching one may wait for a disk, another process or another machine, and the I/O core with it: the
    /// operator trusts the peer.
    Any,
}

/// The terms of one port.
#[derive(Clone, Debug, Default)]
pub struct Terms(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    any_file: AtomicBool,
    /// Mappings that are watched.
    watched: AtomicUsize,
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

    /// `by` mappings more. Only whoever has the lock of the table calls this.
    pub(super) fn watch(&self, by: isize) {
        self.0.watched.store(self.watched().saturating_add_signed(by), Ordering::Relaxed);
    }
}
