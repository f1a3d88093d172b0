//! The captures and monitors of one port, as I/O cores pass them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use sidecore_abi::counters::DropReason;

use super::pcapng::{CaptureCount, Direction};
use super::sink::Sink;
use crate::packet::Picked;

/// Where frames can be captured: a port.
pub trait CapturePoint: Send + Sync {
    /// Its name in the capture.
    fn capture_name(&self) -> &str;
    /// Its slot.
    fn capture_slot(&self) -> &CaptureSlot;
}

/// A watcher of a port that is no capture: a program's monitor.
pub trait Watcher: Send + Sync {
    /// `picked` frames have passed, but for `drops`. Called on an I/O core: it copies what it wants and does
    /// not wait.
    fn see(&self, direction: Direction, picked: Picked<'_>, drops: &[(u16, DropReason)]);
}

/// A capture or a watcher of a port.
pub(super) enum Onlooker {
    Capture { sink: Arc<Sink>, interface: u32 },
    Other(Arc<dyn Watcher>),
}

/// The captures of one port. I/O cores call [`CaptureSlot::ingress`] and [`CaptureSlot::egress`]; while
/// there is no capture, these read one flag.
#[derive(Default)]
pub struct CaptureSlot {
    on: AtomicBool,
    /// Frames that no watcher saw because the list of them was being changed.
    missed: AtomicU64,
    /// Frames that captures lost, those that have ended included.
    lost: AtomicU64,
    onlookers: RwLock<Vec<Onlooker>>,
}

impl CaptureSlot {
    /// Whether there is a capture: then it is worth remembering what became of which frame.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// `picked` frames came in. `drops` are those that go to no port.
    #[inline]
    pub fn ingress(&self, picked: Picked<'_>, drops: &[(u16, DropReason)]) {
        if self.is_on() {
            self.record(Direction::Inbound, picked, drops);
        }
    }

    /// `picked` frames went out, but for `drops`.
    pub fn egress(&self, picked: Picked<'_>, drops: &[(u16, DropReason)]) {
        if self.is_on() {
            self.record(Direction::Outbound, picked, drops);
        }
    }

    #[cold]
    fn record(&self, direction: Direction, picked: Picked<'_>, drops: &[(u16, DropReason)]) {
        let Ok(onlookers) = self.onlookers.try_read() else {
            // A capture starts or ends this moment: others may have wanted these.
            self.missed.fetch_add(picked.picks.len() as u64, Ordering::Relaxed);
            return;
        };
        for onlooker in &*onlookers {
            match onlooker {
                Onlooker::Capture { sink, interface } => {
                    let lost = sink.record(*interface, direction, picked, drops);
                    if lost > 0 {
                        self.lost.fetch_add(lost, Ordering::Relaxed);
                    }
                }
                Onlooker::Other(watcher) => watcher.see(direction, picked, drops),
            }
        }
    }

    /// Captures that run here, in the order in which they began.
    pub fn captures(&self) -> Vec<CaptureCount> {
        let onlookers = self.onlookers.read().unwrap_or_else(PoisonError::into_inner);
        let of = |onlooker: &Onlooker| match onlooker {
            Onlooker::Capture { sink, interface } => Some(sink.count(*interface, self.missed())),
            Onlooker::Other(_) => None,
        };
        onlookers.iter().filter_map(of).collect()
    }

    /// Frames that captures lost, ever.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Frames that no watcher saw because watchers came or went.
    pub(super) fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, onlooker: Onlooker) {
        let mut onlookers = self.onlookers.write().unwrap_or_else(PoisonError::into_inner);
        onlookers.push(onlooker);
        self.on.store(true, Ordering::Relaxed);
    }

    /// Has `watcher` see what passes, from now on until [`CaptureSlot::unwatch`] or the end of the port.
    pub fn watch(&self, watcher: Arc<dyn Watcher>) {
        self.add(Onlooker::Other(watcher));
    }

    /// `watcher` sees nothing any more; when this returns, no I/O core uses it.
    pub fn unwatch(&self, watcher: &Arc<dyn Watcher>) {
        self.retain(|onlooker| !matches!(onlooker, Onlooker::Other(other) if Arc::ptr_eq(other, watcher)));
    }

    /// Ends the part of `sink` in this slot.
    pub(super) fn remove(&self, sink: &Arc<Sink>) {
        self.retain(
            |onlooker| !matches!(onlooker, Onlooker::Capture { sink: other, .. } if Arc::ptr_eq(other, sink)),
        );
    }

    fn retain(&self, keep: impl Fn(&Onlooker) -> bool) {
        let mut onlookers = self.onlookers.write().unwrap_or_else(PoisonError::into_inner);
        onlookers.retain(keep);
        self.on.store(!onlookers.is_empty(), Ordering::Relaxed);
    }

    /// The port goes away: captures that watch no other port end.
    pub fn close(&self) {
        let mut onlookers = self.onlookers.write().unwrap_or_else(PoisonError::into_inner);
        self.on.store(false, Ordering::Relaxed);
        for onlooker in onlookers.drain(..) {
            if let Onlooker::Capture { sink, .. } = onlooker {
                sink.lose_interface();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::capture::CaptureOptions;
    use crate::packet::Batch;

    #[test]
    fn frames_that_pass_while_another_capture_begins_are_lost_and_not_forgotten() {
        let slot = CaptureSlot::default();
        let sink = Arc::new(Sink::new(1, CaptureOptions::default()).unwrap());
        let mut batch = Batch::new();
        (0..3).for_each(|_| assert!(batch.push_short(&[0; 60])));
        slot.add(Onlooker::Capture { sink, interface: 0 });
        slot.ingress(batch.all(), &[]);
        let other = slot.onlookers.write().unwrap();
        slot.ingress(batch.all(), &[]);
        slot.egress(batch.only(&[1]), &[]);
        drop(other);
        assert_eq!(slot.captures(), [CaptureCount { frames: 7, lost: 4 }]);
    }
}
