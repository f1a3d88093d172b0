//! Where frames were lost: each loss has a stage, or is named as unexplained.

use std::collections::BTreeMap;

use crate::prelude::*;

/// Frames that a daemon has dropped so far, by reason.
pub type Drops = BTreeMap<String, u64>;

/// Frames by the stage that lost them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Stages {
    /// Not offered: the tester came late. They are no loss of the target's.
    pub generator_late: u64,
    /// The sender's queue was full when they were due: the target had not taken what was there.
    pub refused: u64,
    /// Dropped by the daemon, by its names.
    pub dropped: Drops,
    /// Dropped since the receiver's queue was full (`ring_full` of the daemon).
    pub receiver_full: u64,
    /// Came with a wrong length.
    pub corrupt: u64,
    /// Lost at an unknown place: the target keeps no counters that we read, or they do not add up.
    pub unexplained: u64,
}

impl Stages {
    /// Where a trial lost `lost` frames, `refused` of them refused, with the daemon's counters before and
    /// after it.
    pub fn of(
        late: u64,
        refused: u64,
        corrupt: u64,
        lost: u64,
        counters: Option<(&Drops, &Drops)>,
    ) -> Stages {
        let mut dropped = BTreeMap::new();
        for (reason, after) in counters.map_or(&BTreeMap::new(), |(_, after)| after) {
            let before = counters.and_then(|(before, _)| before.get(reason)).copied().unwrap_or(0);
            if *after > before {
                dropped.insert(reason.clone(), after - before);
            }
        }
        let receiver_full = dropped.remove("ring_full").unwrap_or(0);
        let named = refused + corrupt + receiver_full + dropped.values().sum::<u64>();
        let unexplained = lost.saturating_sub(named);
        Stages { generator_late: late, refused, dropped, receiver_full, corrupt, unexplained }
    }

    /// Those of another trial, too.
    pub fn add(&mut self, other: &Stages) {
        self.generator_late += other.generator_late;
        self.refused += other.refused;
        self.receiver_full += other.receiver_full;
        self.corrupt += other.corrupt;
        self.unexplained += other.unexplained;
        for (reason, frames) in &other.dropped {
            *self.dropped.entry(reason.clone()).or_default() += frames;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loss_has_a_stage() {
        let before = BTreeMap::from([("ring_full".to_owned(), 5), ("no_route".to_owned(), 1)]);
        let after =
            BTreeMap::from([("ring_full".to_owned(), 12), ("no_route".to_owned(), 1), ("mtu".to_owned(), 3)]);
        let stages = Stages::of(9, 4, 1, 20, Some((&before, &after)));
        assert_eq!((stages.receiver_full, stages.dropped.get("mtu"), stages.dropped.len()), (7, Some(&3), 1));
        assert_eq!((stages.generator_late, stages.unexplained), (9, 5), "what is late is not lost");
        assert_eq!((stages.refused, stages.corrupt), (4, 1));
        let others = Stages::of(0, 4, 0, 20, None);
        assert_eq!((others.unexplained, others.dropped.len()), (16, 0));
        let mut both = stages.clone();
        both.add(&stages);
        assert_eq!((both.refused, both.dropped.get("mtu"), both.unexplained), (8, Some(&6), 10));
    }
}
