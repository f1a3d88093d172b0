//! When what was replaced may be used again.
//!
//! Theory of operation. A reader notes the epoch in a word of its own before it reads, and takes the note
//! away when it has read. The writer makes something unreachable, then begins an epoch. When each reader's
//! note is of that epoch or a later one, or there is none, no reader can be where that something was
//! reachable.
//!
//! Two fences carry this. The reader's stands between its note and its first access, the writer's between the
//! last change and its look at the notes. So the writer sees the note, or the reader sees the change.
//!
//! A note costs a reader one store and one fence for each batch; the word has a cache line that nothing else
//! uses.

use std::sync::{Arc, Mutex, PoisonError};

use crate::atomic::{fence, AtomicU64, Ordering};

/// The note of a reader that reads nothing.
const OUTSIDE: u64 = u64::MAX;

/// A reader's note.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Note(AtomicU64);

/// The epoch, and the notes of all readers.
#[derive(Debug)]
pub struct Epochs {
    now: AtomicU64,
    notes: Mutex<Vec<Arc<Note>>>,
}

impl Default for Epochs {
    fn default() -> Self {
        Self::new()
    }
}

impl Epochs {
    /// The first epoch, without readers.
    pub fn new() -> Epochs {
        Epochs { now: AtomicU64::new(0), notes: Mutex::new(Vec::new()) }
    }

    /// A note for one more reader. A thread that drops it is a reader no more.
    pub fn join(&self) -> Arc<Note> {
        let note = Arc::new(Note(AtomicU64::new(OUTSIDE)));
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&note));
        note
    }

    /// The reader of `note` begins to read.
    #[inline]
    pub fn enter(&self, note: &Note) {
        note.0.store(self.now.load(Ordering::Relaxed), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// It has read.
    #[inline]
    pub fn leave(&self, note: &Note) {
        note.0.store(OUTSIDE, Ordering::Release);
    }

    /// Begins an epoch: what was made unreachable before may be used again when the epoch [has
    /// passed](Epochs::reached).
    pub fn begin(&self) -> u64 {
        fence(Ordering::SeqCst);
        let epoch = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        fence(Ordering::SeqCst);
        epoch
    }

    /// The latest epoch that all readers have reached.
    pub fn reached(&self) -> u64 {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        notes.retain(|note| Arc::strong_count(note) > 1);
        // The epoch first: a reader that comes after it was read notes that one, or a later one.
        let now = self.now.load(Ordering::SeqCst);
        notes.iter().map(|note| note.0.load(Ordering::Acquire)).min().unwrap_or(OUTSIDE).min(now)
    }
}
