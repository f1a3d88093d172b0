//! A table that is replaced as a whole, beside what changes in it.
//!
//! A reader keeps a reference to the table and looks at its version when a batch begins; it takes the lock
//! only when that has changed. The writer keeps replaced tables until no reader has them, so that no reader
//! has to free one.

use std::sync::{Arc, Mutex, PoisonError};

use crate::atomic::{AtomicU64, Ordering};
use crate::epoch::{Epochs, Note};

/// What a writer and its readers share.
#[derive(Debug)]
pub(crate) struct Published<T> {
    pub epochs: Epochs,
    version: AtomicU64,
    table: Mutex<Arc<T>>,
}

impl<T> Published<T> {
    pub fn new(table: Arc<T>) -> Published<T> {
        Published { epochs: Epochs::new(), version: AtomicU64::new(0), table: Mutex::new(table) }
    }

    /// Readers take `table` when their next batch begins. The one before is returned: its last holder frees
    /// it.
    pub fn replace(&self, table: Arc<T>) -> Arc<T> {
        let old = std::mem::replace(&mut *self.table.lock().unwrap_or_else(PoisonError::into_inner), table);
        self.version.fetch_add(1, Ordering::Release);
        old
    }

    fn take(&self) -> (u64, Arc<T>) {
        // The version first: if the table is newer than it, it is taken once more.
        let version = self.version.load(Ordering::Acquire);
        (version, Arc::clone(&self.table.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// One reader's end of a table.
#[derive(Debug)]
pub struct View<T> {
    shared: Arc<Published<T>>,
    note: Arc<Note>,
    version: u64,
    table: Arc<T>,
}

impl<T> View<T> {
    pub(crate) fn new(shared: &Arc<Published<T>>) -> View<T> {
        let note = shared.epochs.join();
        let (version, table) = shared.take();
        View { shared: Arc::clone(shared), note, version, table }
    }

    /// Reads the table as it is now.
    #[inline]
    pub(crate) fn read<R>(&mut self, read: impl FnOnce(&T) -> R) -> R {
        self.shared.epochs.enter(&self.note);
        if self.shared.version.load(Ordering::Acquire) != self.version {
            self.renew();
        }
        let found = read(&self.table);
        self.shared.epochs.leave(&self.note);
        found
    }

    #[cold]
    fn renew(&mut self) {
        (self.version, self.table) = self.shared.take();
    }
}

impl<T> Clone for View<T> {
    fn clone(&self) -> View<T> {
        View::new(&self.shared)
    }
}

/// Tables that were replaced, until no reader has them.
#[derive(Debug)]
pub(crate) struct Replaced<T>(Vec<Arc<T>>);

impl<T> Replaced<T> {
    pub const fn new() -> Replaced<T> {
        Replaced(Vec::new())
    }

    pub fn keep(&mut self, table: Arc<T>) {
        self.0.push(table);
        self.free();
    }

    pub fn free(&mut self) {
        self.0.retain(|table| Arc::strong_count(table) > 1);
    }
}
