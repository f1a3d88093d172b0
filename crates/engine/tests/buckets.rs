//! The buckets of a group under loom: every interleaving of cores that use a bucket and the thread that moves
//! it.
//!
//! The file itself is compiled here with loom's atomics, one bucket and two cores.

#![allow(
    dead_code,
    missing_docs,
    clippy::unwrap_used,
    reason = "the engine's own file, of which this uses a part"
)]

#[path = "../src/graph/group/buckets.rs"]
mod buckets;

use buckets::{Buckets, NO_MEMBER};
use loom::sync::atomic;
use loom::sync::Arc;
use loom::thread;

const IDLE: u32 = 10;
const NOW: u32 = 100;

/// The first member has the bucket, which no core has used for long.
fn idle() -> Arc<Buckets> {
    let buckets = Buckets::new(1, 2);
    buckets.give(0, 1);
    Arc::new(buckets)
}

/// Two cores use the bucket twice each, while it is moved: whoever has used it once has used the member that
/// has it in the end.
#[test]
fn no_core_goes_on_with_the_old_owner_of_a_bucket_that_moved() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let buckets = idle();
        let core = |core: usize| {
            let buckets = Arc::clone(&buckets);
            thread::spawn(move || [0, 1].map(|_| buckets.take(core, 0, NOW)))
        };
        let cores = [core(0), core(1)];
        let moved = buckets.give_idle(0, 2, IDLE, || NOW);
        let used = cores.map(|core| core.join().unwrap());
        let owner = if moved { 2 } else { 1 };
        assert_eq!(buckets.owner(0), owner);
        assert_eq!(used, [[owner; 2]; 2], "a frame went to a member that no longer had its bucket");
    });
}

/// A core that notes its use behind its look at the owner must fail, or the model proves nothing.
#[test]
#[should_panic(expected = "a frame went to a member that no longer had its bucket")]
fn the_model_notices_a_use_that_is_noted_too_late() {
    loom::model(|| {
        let buckets = idle();
        let core = {
            let buckets = Arc::clone(&buckets);
            thread::spawn(move || {
                let member = buckets.owner(0);
                buckets.take(0, 0, NOW);
                member
            })
        };
        let moved = buckets.give_idle(0, 2, IDLE, || NOW);
        let member = core.join().unwrap();
        let other = buckets.take(1, 0, NOW);
        assert!(!moved || member == other, "a frame went to a member that no longer had its bucket");
    });
}

/// A member that is gone loses its bucket at once, also beside a move of it; a core never finds a member that
/// never had it.
#[test]
fn a_bucket_of_a_member_that_is_gone_moves_at_once() {
    loom::model(|| {
        let buckets = idle();
        let core = {
            let buckets = Arc::clone(&buckets);
            thread::spawn(move || [0, 1].map(|_| buckets.take(0, 0, NOW)))
        };
        buckets.give(0, 3);
        let [first, second] = core.join().unwrap();
        assert!([1, 3].contains(&first) && [first, 3].contains(&second) && NO_MEMBER != first);
        assert_eq!(buckets.take(1, 0, NOW), 3);
    });
}
