//! The IPv4 table and its epochs under loom: every interleaving of a lookup with runs and blocks that are filled, changed in place,
//! left and used again.
//!
//! The files of the crate itself are compiled here with loom's atomics and a table of two entries with one block.

#![allow(
    dead_code,
    missing_docs,
    clippy::unwrap_used,
    reason = "the crate's own files, of which this uses a part"
)]

#[path = "../src/epoch.rs"]
mod epoch;
mod atomic {
    pub(crate) use loom::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
}
mod sizes {
    pub(crate) const FIRST: u32 = 1;
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
use table::{parts_of, Table, NARROW, WIDE};

/// The first and the second /24 of the first entry's.
const CELLS: [u32; 2] = [0, 1 << 8];
/// Cells of which the second leads elsewhere than the first; the others are as the second.
const TWO: u64 = 0b11;

/// A writer and one reader, whose two lookups of `addresses` have to be as `sound` says.
fn model(
    words: usize,
    before: impl Fn(&Table) + Send + Sync + 'static,
    changes: impl Fn(&Table, &Epochs) + Send + Sync + 'static,
    addresses: [u32; 2],
    sound: impl Fn([u32; 2]) -> bool + Clone + Send + Sync + 'static,
) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(4);
    model.check(move || {
        let bits = if words > 4 { WIDE } else { NARROW };
        let (table, epochs) = (Arc::new(Table::new(bits, 1, words).unwrap()), Arc::new(Epochs::new()));
        before(&table);
        let (note, sound) = (epochs.join(), sound.clone());
        let reader = {
            let (table, epochs) = (Arc::clone(&table), Arc::clone(&epochs));
            loom::thread::spawn(move || {
                for _ in 0..2 {
                    let mut groups = [0; 2];
                    epochs.enter(&note);
                    table.lookup(&addresses, &mut groups);
                    epochs.leave(&note);
                    assert!(sound(groups), "not sound: {groups:?}");
                }
            })
        };
        changes(&table, &epochs);
        reader.join().unwrap();
    });
}

/// A /24 of the first entry comes and goes; the place of its runs is the second entry's then. `waits`: for the reader.
fn runs_change_hands(waits: bool) {
    let changes = move |table: &Table, epochs: &Epochs| {
        table.write(0, TWO, &[1, 2]);
        table.set_entry(0, EXTENDED);
        table.set_entry(0, 1);
        let epoch = epochs.begin();
        if !waits || epochs.reached() >= epoch {
            table.write(0, TWO, &[3, 4]);
            table.set_entry(1, EXTENDED);
        }
    };
    let sound = |[first, second]: [u32; 2]| first == 1 && (second == 1 || second == 2);
    model(2, |table| table.set_entry(0, 1), changes, CELLS, sound);
}

#[test]
fn a_reader_of_runs_sees_what_was_or_what_is() {
    runs_change_hands(true);
}

/// That the model finds anything: without the wait it does.
#[test]
#[should_panic(expected = "not sound")]
fn without_epochs_runs_would_not() {
    runs_change_hands(false);
}

/// Values change in place, then the runs stand at another place with one more, and their value there changes again.
#[test]
fn values_change_in_place() {
    let before = |table: &Table| {
        table.write(0, TWO, &[1, 2]);
        table.set_entry(0, EXTENDED);
    };
    let changes = |table: &Table, _: &Epochs| {
        table.set_value(0, 1, 3);
        table.write(2, 0b111, &[1, 3, 4]);
        table.set_entry(0, EXTENDED | 2);
        table.set_value(2, 0, 5);
    };
    let sound = |[first, second]: [u32; 2]| matches!((first, second), (1 | 5, 2 | 3));
    model(4, before, changes, CELLS, sound);
}

/// The same second /24 gets a block in place of its group, loses it, and the block is another /24's then.
fn block_changes_hands(waits: bool) {
    let before = |table: &Table| {
        table.write(0, TWO, &[1, 2]);
        table.set_entry(0, EXTENDED);
    };
    let changes = move |table: &Table, epochs: &Epochs| {
        let part = parts_of(0);
        table.write(4, TWO, &[2, 3]);
        table.set_entry(part, EXTENDED | 4);
        table.set_value(0, 1, EXTENDED);
        table.set_value(0, 1, 2);
        let epoch = epochs.begin();
        if !waits || epochs.reached() >= epoch {
            table.set_entry(part, 7);
            table.set_value(0, 0, EXTENDED);
        }
    };
    // Both are in the second /24, and the second one has the longer prefix.
    let sound = |[first, second]: [u32; 2]| first == 2 && (second == 2 || second == 3);
    model(8, before, changes, [CELLS[1], CELLS[1] | 1], sound);
}

#[test]
fn a_reader_of_a_block_sees_what_was_or_what_is() {
    block_changes_hands(true);
}

/// As above.
#[test]
#[should_panic(expected = "not sound")]
fn without_epochs_a_block_would_not() {
    block_changes_hands(false);
}
