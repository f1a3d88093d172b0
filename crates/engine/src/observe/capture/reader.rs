//! The reader's side of a capture.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::pcapng::{statistics, CaptureCount, CaptureOptions, Time};
use super::sink::{now, Sink};
use super::slot::CapturePoint;

/// A running capture: a pcapng stream. Dropping it ends the capture.
///
/// A thread waits for its descriptor ([`AsFd`]) to become readable and calls [`CaptureReader::next_bytes`].
pub struct CaptureReader {
    sink: Arc<Sink>,
    points: Vec<Arc<dyn CapturePoint>>,
    bytes: Vec<u8>,
    read: usize,
    started: Time,
    /// What the stream says of each interface by now.
    said: Vec<CaptureCount>,
}

/// Ends a capture from elsewhere: its reader gets what waits, the statistics, and the end.
#[derive(Clone)]
pub struct CaptureStop {
    sink: Arc<Sink>,
}

impl CaptureStop {
    /// Ends it.
    pub fn stop(&self) {
        self.sink.end();
    }
}

impl CaptureReader {
    pub(super) fn new(
        sink: Arc<Sink>,
        points: Vec<Arc<dyn CapturePoint>>,
        head: Vec<u8>,
        options: CaptureOptions,
    ) -> CaptureReader {
        let mut bytes = head;
        bytes.reserve_exact(options.buffer.saturating_sub(bytes.len()));
        // The stream's head waits to be read.
        sink.wake();
        let said = vec![CaptureCount::default(); points.len()];
        CaptureReader { sink, points, bytes, read: 0, started: now(), said }
    }

    /// Something to end the capture with.
    pub fn stopper(&self) -> CaptureStop {
        CaptureStop { sink: Arc::clone(&self.sink) }
    }

    /// What has come since the last call; possibly nothing. `None`: the stream is at its end.
    pub fn next_bytes(&mut self) -> Option<&[u8]> {
        if self.read == self.bytes.len() && !self.refill() {
            return None;
        }
        let from = std::mem::replace(&mut self.read, self.bytes.len());
        Some(&self.bytes[from..])
    }

    /// Frames that came by and frames that were lost, over all interfaces.
    pub fn counts(&self) -> (u64, u64) {
        let counts = if self.points.is_empty() { self.said.clone() } else { self.look() };
        counts.iter().fold((0, 0), |(seen, lost), count| (seen + count.frames, lost + count.lost))
    }

    /// What came by at each interface until now.
    fn look(&self) -> Vec<CaptureCount> {
        let missed = |point: &Arc<dyn CapturePoint>| point.capture_slot().missed();
        (0..).zip(&self.points).map(|(interface, point)| self.sink.count(interface, missed(point))).collect()
    }

    /// Gets the next full buffer, perhaps an empty one; false at the end.
    fn refill(&mut self) -> bool {
        // The statistics have been written: what was left was the end.
        if self.points.is_empty() {
            return false;
        }
        // Asked first: whatever was put in before the end is then in this buffer or the next.
        let ended = self.sink.is_ended();
        if ended {
            // After this no core is in the middle of a batch, and none begins another.
            self.detach();
        }
        self.bytes.clear();
        self.read = 0;
        self.sink.swap(&mut self.bytes);
        let (counts, now) = (self.look(), now());
        for ((interface, count), said) in (0..).zip(&counts).zip(&self.said) {
            // Before the end only what is worse than the stream says.
            if ended || count.lost > said.lost {
                statistics(&mut self.bytes, interface, (self.started, now), *count);
            }
        }
        self.said = counts;
        if ended {
            self.points.clear();
            // A thread that waits for the descriptor must see the end.
            self.sink.wake();
        }
        true
    }

    fn detach(&self) {
        self.points.iter().for_each(|point| point.capture_slot().remove(&self.sink));
    }
}

impl AsFd for CaptureReader {
    /// Readable when [`CaptureReader::next_bytes`] has something new.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sink.event()
    }
}

impl Drop for CaptureReader {
    fn drop(&mut self) {
        self.sink.end();
        self.detach();
    }
}
