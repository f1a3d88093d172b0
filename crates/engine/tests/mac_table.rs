//! The MAC table under loom: every interleaving of cores that learn, claim, replace and forget.
//!
//! The files of the table itself are compiled here with loom's atomics, buckets of two and four ports.
//! Covered: that each port's count is what is there when no core is at work. Not covered: that no address
//! stands twice after two cores placed it at once, which rests on sequential consistency, that loom does not
//! model; the table only loses a place by it.

#![allow(
    dead_code,
    missing_docs,
    clippy::unwrap_used,
    reason = "the engine's own files, of which this uses a part"
)]

mod mem {
    pub use sidecore_engine::mem::prefetch_read;
}
mod port {
    pub use sidecore_engine::port::PortId;
}
#[path = "../src/switch/claim.rs"]
mod claim;
#[path = "../src/switch/table/mod.rs"]
mod table;

use loom::sync::atomic;
use loom::sync::Arc;
use loom::thread;
use port::PortId;
use table::{Kind, MacTable, Teller};

mod sizes {
    pub const WAYS: usize = 2;
    pub const PORTS: usize = 4;
    pub const KEY_BITS: u32 = 48;
}

const P: PortId = PortId(0);
const Q: PortId = PortId(1);
const R: PortId = PortId(2);

fn by(port: PortId, now: u32) -> Teller {
    Teller { port, limit: 0, owns: false, moves: false, now, ageing: 300 }
}

/// Two threads at one bucket of two places.
fn two(
    prepare: impl Fn(&MacTable) + Sync + Send + 'static,
    one: impl Fn(&MacTable) + Sync + Send + Copy + 'static,
    other: impl Fn(&MacTable) + Sync + Send + 'static,
) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let table = Arc::new(MacTable::new(2, [3, 5]));
        prepare(&table);
        let thread = {
            let table = Arc::clone(&table);
            thread::spawn(move || one(&table))
        };
        other(&table);
        thread.join().unwrap();
        for port in [P, Q, R] {
            assert_eq!(table.count(port), table.recount(port), "{port:?}: {:?}", table.entries());
        }
    });
}

fn alive(_: PortId) -> bool {
    true
}

#[test]
fn two_cores_learn_one_address() {
    two(
        |_| (),
        |table| {
            table.learn(2, &by(P, 1), alive);
        },
        |table| {
            table.learn(2, &by(Q, 1), alive);
        },
    );
}

#[test]
fn two_cores_replace_one_entry() {
    let full = |table: &MacTable| {
        table.learn(2, &by(P, 1), alive);
        table.learn(4, &by(Q, 1), alive);
    };
    two(
        full,
        |table| {
            table.learn(6, &by(Q, 400), alive);
        },
        |table| {
            table.learn(8, &by(R, 400), alive);
        },
    );
}

#[test]
fn a_claim_meets_the_home_that_refutes_it() {
    let known = |table: &MacTable| {
        table.learn(2, &by(P, 1), alive);
        table.learn(2, &by(R, 1), alive);
    };
    two(
        known,
        |table| {
            table.learn(2, &by(Q, 1), alive);
        },
        |table| {
            table.learn(2, &by(P, 2), alive);
        },
    );
}

#[test]
fn a_claim_meets_the_sweep() {
    let known = |table: &MacTable| {
        table.learn(2, &by(P, 1), alive);
    };
    two(
        known,
        |table| {
            table.learn(2, &by(Q, 2), alive);
        },
        |table| table.forget(P, false, 3, 300),
    );
}

#[test]
fn a_claim_meets_a_newcomer_that_takes_the_place() {
    let full = |table: &MacTable| {
        table.learn(2, &by(P, 1), alive);
        table.learn(4, &by(P, 2), alive);
    };
    two(
        full,
        |table| {
            table.learn(2, &by(Q, 3), alive);
        },
        |table| {
            table.learn(6, &by(R, 3), alive);
        },
    );
}

#[test]
fn a_move_meets_ageing_and_a_pin() {
    let known = |table: &MacTable| {
        table.learn(2, &by(P, 1), alive);
        table.learn(2, &by(Q, 1), alive);
    };
    two(
        known,
        |table| {
            table.learn(2, &by(R, 2), |port| port != P);
        },
        |table| {
            table.age(400, 300, |_| false);
            table.pin(2, &by(Q, 400), Kind::Pinned);
        },
    );
}
