//! The bounded queue between I/O cores and the reader of a capture.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::event::{eventfd, EventfdFlags};
use sidecore_abi::counters::DropReason;

use super::pcapng::{CaptureCount, CaptureOptions, Direction, Packet, Time, PACKET_OVERHEAD};
use crate::packet::{Picked, MAX_BATCH};

/// How often an I/O core looks whether the lock is free: some ten microseconds. The reader holds it for
/// a swap of two pointers, another core for one batch.
const TRIES: u32 = 1000;

/// What came by on one interface.
#[derive(Default)]
pub(super) struct Count {
    /// Frames, including lost ones.
    pub(super) seen: AtomicU64,
    /// Frames that could not be kept.
    pub(super) lost: AtomicU64,
    /// What the port had missed when the capture began.
    missed: AtomicU64,
}

/// Where the frames of a capture go.
pub(super) struct Sink {
    filling: Mutex<Vec<u8>>,
    capacity: usize,
    snaplen: usize,
    counts: Vec<Count>,
    interfaces: AtomicUsize,
    ended: AtomicBool,
    event: OwnedFd,
}

pub(super) fn now() -> Time {
    // A clock that stands before 1970 gives 0.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(0)
}

impl Sink {
    pub(super) fn new(interfaces: usize, options: CaptureOptions) -> io::Result<Sink> {
        Ok(Sink {
            filling: Mutex::new(Vec::with_capacity(options.buffer)),
            capacity: options.buffer,
            snaplen: options.snaplen as usize,
            counts: (0..interfaces).map(|_| Count::default()).collect(),
            interfaces: AtomicUsize::new(interfaces),
            ended: AtomicBool::new(interfaces == 0),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// The capture of `interface` begins; its port has missed `missed` frames by now.
    pub(super) fn begin(&self, interface: u32, missed: u64) {
        if let Some(count) = self.counts.get(interface as usize) {
            count.missed.store(missed, Ordering::Relaxed);
        }
    }

    /// What came by on `interface`, whose port has missed `missed` frames by now.
    pub(super) fn count(&self, interface: u32, missed: u64) -> CaptureCount {
        let Some(count) = self.counts.get(interface as usize) else { return CaptureCount::default() };
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let missed = missed.saturating_sub(load(&count.missed));
        // Read in this order: what is lost has been seen.
        let lost = load(&count.lost).saturating_add(missed);
        CaptureCount { frames: load(&count.seen).saturating_add(missed), lost }
    }

    /// Copies `picked` frames, as far as there is room; returns how many are lost.
    pub(super) fn record(
        &self,
        interface: u32,
        direction: Direction,
        Picked { batch, picks }: Picked<'_>,
        drops: &[(u16, DropReason)],
    ) -> u64 {
        let Some(count) = self.counts.get(interface as usize) else { return 0 };
        let mut reasons = [None; MAX_BATCH];
        for (pick, reason) in drops {
            if let Some(place) = reasons.get_mut(usize::from(*pick)) {
                *place = Some(*reason);
            }
        }
        let time = now();
        let mut filling = self.try_lock();
        let was_empty = filling.as_ref().is_some_and(|bytes| bytes.is_empty());
        let (mut seen, mut lost) = (0, 0);
        for pick in picks {
            let pick = usize::from(*pick);
            let Some(frame) = batch.frames().get(pick) else { continue };
            seen += 1;
            let keep = (frame.len as usize).min(self.snaplen);
            match &mut filling {
                Some(bytes) if bytes.len() + keep + PACKET_OVERHEAD <= self.capacity => {
                    let (body, dropped) = (batch.body(frame), reasons[pick]);
                    Packet { interface, time, direction, frame, body, dropped, keep }.write(bytes);
                }
                _ => lost += 1,
            }
        }
        // Lost for the lock's sake, with nothing else that would wake the reader: it is to know.
        let wake = filling.map_or(lost > 0, |bytes| was_empty && !bytes.is_empty());
        count.seen.fetch_add(seen, Ordering::Relaxed);
        count.lost.fetch_add(lost, Ordering::Relaxed);
        if wake {
            self.wake();
        }
        lost
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Vec<u8>>> {
        for _ in 0..TRIES {
            match self.filling.try_lock() {
                Ok(bytes) => return Some(bytes),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        None
    }

    /// Makes the event readable.
    pub(super) fn wake(&self) {
        // Fails only if the counter is full, and then the reader is awake.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Gives `empty` for what has been filled.
    pub(super) fn swap(&self, empty: &mut Vec<u8>) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.event, &mut count);
        let mut filling = crate::lock(&self.filling);
        std::mem::swap(&mut *filling, empty);
    }

    /// One of the ports is gone.
    pub(super) fn lose_interface(&self) {
        if self.interfaces.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.end();
        }
    }

    /// Nothing more will come.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.wake();
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Readable when there is something to swap for, or the capture has ended.
    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Batch;

    #[test]
    fn a_reader_that_holds_the_lock_costs_frames_and_not_the_core() {
        let sink = Sink::new(1, CaptureOptions::default()).unwrap();
        let mut batch = Batch::new();
        assert!(batch.push_short(&[0; 60]));
        let held = sink.filling.lock().unwrap();
        // Returns although the lock is never released.
        sink.record(0, Direction::Inbound, batch.all(), &[]);
        drop(held);
        sink.record(0, Direction::Inbound, batch.all(), &[]);
        assert_eq!(sink.count(0, 0), CaptureCount { frames: 2, lost: 1 });
        // What the port missed meanwhile, of what it has missed ever.
        sink.begin(0, 7);
        assert_eq!(sink.count(0, 10), CaptureCount { frames: 5, lost: 4 });
    }
}
