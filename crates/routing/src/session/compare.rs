//! Comparison with the kernel's table, which has what zebra has, while FPM loses deletions.
//!
//! It is made while zebra is connected, silent and nothing is stale: each [`COMPARE`] at least, less often
//! where it takes long. A route that zebra said and the kernel has not, twice in a row, is one whose deletion
//! was lost: it goes. A route of a routing daemon that the kernel has and zebra did not say, twice in a row,
//! ends the connection: zebra says everything again when it comes back, once in [`REPLAY`] at most.
//!
//! Nothing waits for a comparison. Routes are looked for block by block, as the kernel tells them, and what
//! zebra says between two blocks takes effect there.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use sidecore_engine::router::{Change, Net, Way};

use super::pending::BATCH;
use super::{is_daemons, Worker};
use crate::kernel::Kernel;
use crate::say::said;

/// How often the kernel's table is looked at, at most.
const COMPARE: Duration = Duration::from_secs(10);
/// A comparison takes at most a twentieth of the time.
const SHARE: u32 = 20;
/// How often zebra is made to say everything again, at most.
const REPLAY: Duration = Duration::from_secs(60);

/// What is known of the last comparison.
#[derive(Default)]
pub(super) struct Compare {
    /// When the next one is due.
    due: Option<Instant>,
    /// Routes that were only on one side.
    lost: BTreeSet<Net>,
    missing: BTreeSet<Net>,
    replayed: Option<Instant>,
}

impl Compare {
    /// Nothing is known any more, but when zebra had to say everything again.
    pub fn again(&self) -> Compare {
        Compare { replayed: self.replayed, ..Compare::default() }
    }
}

impl Worker {
    /// Compares with the kernel's table, if it is time.
    pub(super) fn compare(&mut self, kernel: &mut Kernel) -> io::Result<()> {
        let due = *self.compare.due.get_or_insert_with(|| Instant::now() + COMPARE);
        if self.zebra.is_none()
            || !self.pending.is_silent()
            || Instant::now() < due
            || self.sweeping.is_some()
            || self.seconds.sweep.is_some() && self.router.fed().stale > 0
        {
            return Ok(());
        }
        let begun = Instant::now();
        let (mut others, mut daemons, mut missing) = (Vec::new(), Vec::new(), Vec::new());
        self.router.compare();
        // zebra says them as routes, and the kernel has them in another table.
        let own: Vec<Net> = self.view.addresses.iter().map(|address| Net::host(*address)).collect();
        self.router.found(&own);
        let whole = kernel.routes(|message| match message.map(said) {
            Some(Ok(Some((Change::Route(net, way), protocol)))) => {
                let counts = is_daemons(protocol) && way != Way::Hops(Vec::new());
                match counts {
                    true => daemons.push(net),
                    false => others.push(net),
                }
            }
            Some(_) => {}
            None => {
                self.router.found(&others);
                missing.extend(self.router.found(&daemons));
                others.clear();
                daemons.clear();
                self.listen();
            }
        })?;
        let lost = self.lost();
        self.compare.due = Some(Instant::now() + COMPARE.max(begun.elapsed() * SHARE));
        self.view.comparisons += 1;
        if !whole || self.zebra.is_none() {
            return Ok(());
        }
        let missing: BTreeSet<Net> = missing.chunks(BATCH).flat_map(|some| self.router.found(some)).collect();
        let gone = lost.intersection(&self.compare.lost).filter(|net| self.router.lacks(net));
        let gone: Vec<Change> = gone.map(|net| Change::Gone(*net)).collect();
        let again = missing.intersection(&self.compare.missing).count();
        (self.compare.lost, self.compare.missing) = (lost, missing);
        if !gone.is_empty() {
            tracing::warn!(router = %self.router.name, "{} routes that zebra had deleted without a message were removed", gone.len());
            self.view.corrected += gone.len() as u64;
            self.router.feed(&gone, self.now());
        }
        let rests = self.compare.replayed.is_some_and(|then| then.elapsed() < REPLAY);
        if again > 0 && !rests {
            tracing::warn!(router = %self.router.name, "zebra has not sent {again} routes that the kernel has: its connection is closed, so that it sends all again");
            self.view.replays += 1;
            self.compare.replayed = Some(Instant::now());
            self.disconnected();
        }
        Ok(())
    }

    /// Routes that the comparison has not found.
    fn lost(&mut self) -> BTreeSet<Net> {
        let (mut lost, mut behind) = (BTreeSet::new(), None);
        loop {
            let (some, next) = self.router.unfound(behind);
            lost.extend(some);
            if next.is_none() {
                return lost;
            }
            behind = next;
            self.listen();
        }
    }

    /// Hears what zebra has said meanwhile.
    fn listen(&mut self) {
        self.read();
        self.flush(false);
    }
}
