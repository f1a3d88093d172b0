//! The IPv4 table and its epochs under loom: every interleaving of a lookup with a block that is filled, left
//! and used again.
//!
//! The files of the crate itself are compiled here with loom's atomics and a table of four entries, blocks of
//! two.

#![allow(
    dead_code,
    missing_docs,
    clippy::unwrap_used,
    reason = "the crate's own files, of which this uses a part"
)]

#[path = "../src/epoch.rs"]
mod epoch;
mod atomic {
    pub(crate) use loom::sync::atomic::{fence, AtomicU16, AtomicU32, AtomicU64, Ordering};
}
mod sizes {
    pub(crate) const DIRECT: u32 = 2;
    pub(crate) const BLOCK: u32 = 1;
    pub(crate) const NARROW_BLOCKS: usize = 1;
    pub(crate) const WIDE_BLOCKS: usize = 1;
}
mod memory {
    pub(crate) trait Zeroable: Default {}
    impl<T: Default> Zeroable for T {}

    pub(crate) struct Zeroed<T>(Vec<T>);

    impl<T: Zeroable> Zeroed<T> {
        pub fn new(len: usize) -> rustix::io::Result<Zeroed<T>> {
            Ok(Zeroed((0..len).map(|_| T::default()).collect()))
        }
    }

    impl<T> std::ops::Deref for Zeroed<T> {
        type Target = [T];

        fn deref(&self) -> &[T] {
            &self.0
        }
    }
}
#[path = "../src/v4/table.rs"]
mod table;

const EXTENDED: u32 = 1 << 31;
const NO_ROUTE: u32 = 0;

use epoch::Epochs;
use loom::sync::Arc;
use table::Table;

/// A route of the first entry's second address comes and goes; its block is the next one's then. `waits`: for
/// the reader.
fn block_changes_hands(waits: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(4);
    model.check(move || {
        let (table, epochs) = (Arc::new(Table::wide().unwrap()), Arc::new(Epochs::new()));
        table.set_direct(0, 1);
        let note = epochs.join();
        let reader = {
            let (table, epochs) = (Arc::clone(&table), Arc::clone(&epochs));
            loom::thread::spawn(move || {
                for _ in 0..2 {
                    let mut groups = [0; 2];
                    epochs.enter(&note);
                    table.lookup(&[0, 1], &mut groups);
                    epochs.leave(&note);
                    assert_eq!(groups[0], 1);
                    assert!(groups[1] == 1 || groups[1] == 2, "{groups:?}");
                }
            })
        };
        table.set_block(0, 1);
        table.set_block(1, 2);
        table.set_direct(0, EXTENDED);
        table.set_direct(0, 1);
        let epoch = epochs.begin();
        if !waits || epochs.reached() >= epoch {
            table.set_block(0, 3);
            table.set_block(1, 4);
            table.set_direct(1, EXTENDED);
        }
        reader.join().unwrap();
    });
}

#[test]
fn a_reader_sees_what_was_or_what_is() {
    block_changes_hands(true);
}

/// That the model finds anything: without the wait it does.
#[test]
#[should_panic(expected = "[1, 4]")]
fn without_epochs_it_would_not() {
    block_changes_hands(false);
}
