//! Capture: what passes a port, in both directions, as a pcapng stream.
//!
//! Theory of operation. Every port has a [`CaptureSlot`]. While nobody captures, an I/O core that passes
//! by reads one flag per batch and goes on. While somebody does, it copies each frame, cut at the
//! capture's `snaplen`, into a queue of fixed size, as the very bytes of the file: the [`CaptureReader`]
//! on the other side only swaps the full buffer for an empty one. It makes one system call, the wake-up,
//! when it puts the first frame into an empty buffer.
//!
//! A capture never holds up a port. The buffer is full, or its lock is not free within some thousand
//! cycles, or somebody starts or ends another capture this moment: the frame is not captured, and counted as
//! lost. The count is the `isb_ifdrop` of interface statistics, which come when it has grown and at the stream's
//! end (a reader takes the last ones); `isb_ifrecv` has all frames that came by.
//!
//! What a record says. *Inbound* is into the switch, *outbound* is out of it: the view of a tcpdump that
//! runs on the switch's side of the port, as it would on the host side of a TAP. A frame that was not
//! delivered has a comment such as `dropped: ring_full`; at ingress if the switch had nowhere to give it,
//! at egress if the receiver did not get it. One that the receiver will have segmented has a comment such
//! as `gso tcpv4 size=1448`. Checksums that are left to the receiver are captured unfinished, as on any
//! interface with checksum offload. Frames that a device refused before there was a frame (a chain that
//! ends within the Ethernet header) are in the counters only.

mod pcapng;
mod reader;
mod sink;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use serde::{Deserialize, Serialize};
use sidecore_abi::counters::DropReason;

pub use reader::{CaptureReader, CaptureStop};
use sink::Sink;

use crate::frame::Batch;

/// What can be chosen about a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureOptions {
    /// Most bytes of a frame to keep.
    pub snaplen: u32,
    /// Bytes that may wait to be read; twice this much memory is used.
    pub buffer: usize,
}

impl Default for CaptureOptions {
    fn default() -> Self {
        // The snaplen of tcpdump; more than any frame has.
        CaptureOptions { snaplen: 262_144, buffer: 4 << 20 }
    }
}

/// What a capture saw of one port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureCount {
    /// Frames that came by.
    pub frames: u64,
    /// Those of them that are not in the capture.
    pub lost: u64,
}

/// Where frames can be captured: a port.
pub trait CapturePoint: Send + Sync {
    /// Its name in the capture.
    fn capture_name(&self) -> &str;
    /// Its slot.
    fn capture_slot(&self) -> &CaptureSlot;
}

/// Which way a frame goes, as `epb_flags` has it (pcapng §4.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Into the switch.
    Inbound = 1,
    /// Out of the switch.
    Outbound = 2,
}

/// Somebody other than a capture who sees what passes a port: a program's monitor.
pub trait Watcher: Send + Sync {
    /// `picks` of `batch` have passed, but for `drops`. Called on an I/O core: it copies what it wants and does not wait.
    fn see(
        &self,
        direction: Direction,
        batch: &Batch,
        picks: &mut dyn Iterator<Item = u16>,
        drops: &[(u16, DropReason)],
    );
}

/// Somebody who looks at a port.
enum Watch {
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
    watches: RwLock<Vec<Watch>>,
}

impl CaptureSlot {
    /// Whether anybody captures: then it is worth remembering what became of which frame.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// All of `batch` came in. `drops` are the frames that the switch does not give to anybody.
    #[inline]
    pub fn ingress(&self, batch: &Batch, drops: &[(u16, DropReason)]) {
        if self.is_on() {
            let all = 0..u16::try_from(batch.len()).unwrap_or(u16::MAX);
            self.record(Direction::Inbound, batch, all, drops);
        }
    }

    /// `picks` of `batch` went out, but for `drops`.
    #[inline]
    pub fn egress(&self, batch: &Batch, picks: &[u16], drops: &[(u16, DropReason)]) {
        if self.is_on() {
            self.record(Direction::Outbound, batch, picks.iter().copied(), drops);
        }
    }

    #[cold]
    fn record(
        &self,
        direction: Direction,
        batch: &Batch,
        picks: impl Iterator<Item = u16> + Clone,
        drops: &[(u16, DropReason)],
    ) {
        let Ok(watches) = self.watches.try_read() else {
            // Somebody starts or ends a capture this moment: others may have wanted these.
            self.missed.fetch_add(picks.count() as u64, Ordering::Relaxed);
            return;
        };
        for watch in &*watches {
            match watch {
                Watch::Capture { sink, interface } => {
                    let lost = sink.record(*interface, direction, batch, picks.clone(), drops);
                    if lost > 0 {
                        self.lost.fetch_add(lost, Ordering::Relaxed);
                    }
                }
                Watch::Other(watcher) => watcher.see(direction, batch, &mut picks.clone(), drops),
            }
        }
    }

    /// Captures that run here, in the order in which they began.
    pub fn captures(&self) -> Vec<CaptureCount> {
        let watches = self.watches.read().unwrap_or_else(PoisonError::into_inner);
        let of = |watch: &Watch| match watch {
            Watch::Capture { sink, interface } => Some(sink.count(*interface, self.missed())),
            Watch::Other(_) => None,
        };
        watches.iter().filter_map(of).collect()
    }

    /// Frames that captures lost, ever.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Frames that nobody saw because watchers came or went.
    fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }

    fn add(&self, watch: Watch) {
        let mut watches = self.watches.write().unwrap_or_else(PoisonError::into_inner);
        watches.push(watch);
        self.on.store(true, Ordering::Relaxed);
    }

    /// Has `watcher` see what passes, from now on until [`CaptureSlot::unwatch`] or the end of the port.
    pub fn watch(&self, watcher: Arc<dyn Watcher>) {
        self.add(Watch::Other(watcher));
    }

    /// `watcher` sees nothing any more; when this returns, no I/O core uses it.
    pub fn unwatch(&self, watcher: &Arc<dyn Watcher>) {
        self.retain(|watch| !matches!(watch, Watch::Other(other) if Arc::ptr_eq(other, watcher)));
    }

    /// Ends the part of `sink` in this slot.
    fn remove(&self, sink: &Arc<Sink>) {
        self.retain(|watch| !matches!(watch, Watch::Capture { sink: other, .. } if Arc::ptr_eq(other, sink)));
    }

    fn retain(&self, keep: impl Fn(&Watch) -> bool) {
        let mut watches = self.watches.write().unwrap_or_else(PoisonError::into_inner);
        watches.retain(keep);
        self.on.store(!watches.is_empty(), Ordering::Relaxed);
    }

    /// The port goes away: captures that watch no other port end.
    pub fn close(&self) {
        let mut watches = self.watches.write().unwrap_or_else(PoisonError::into_inner);
        self.on.store(false, Ordering::Relaxed);
        for watch in watches.drain(..) {
            if let Watch::Capture { sink, .. } = watch {
                sink.lose_interface();
            }
        }
    }
}

/// Starts a capture of `points`, each of which becomes an interface of the stream.
///
/// # Errors
/// What the system says of making an eventfd.
pub fn start(points: Vec<Arc<dyn CapturePoint>>, options: CaptureOptions) -> std::io::Result<CaptureReader> {
    let names: Vec<&str> = points.iter().map(|point| point.capture_name()).collect();
    let head = pcapng::head(&names, options.snaplen);
    let sink = Arc::new(Sink::new(points.len(), options)?);
    for (interface, point) in (0..).zip(&points) {
        sink.begin(interface, point.capture_slot().missed());
        point.capture_slot().add(Watch::Capture { sink: Arc::clone(&sink), interface });
    }
    Ok(CaptureReader::new(sink, points, head, options))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_pass_while_another_capture_begins_are_lost_and_not_forgotten() {
        let slot = CaptureSlot::default();
        let sink = Arc::new(Sink::new(1, CaptureOptions::default()).unwrap());
        let mut batch = Batch::new();
        (0..3).for_each(|_| assert!(batch.push_short(&[0; 60])));
        slot.add(Watch::Capture { sink, interface: 0 });
        slot.ingress(&batch, &[]);
        let other = slot.watches.write().unwrap();
        slot.ingress(&batch, &[]);
        slot.egress(&batch, &[1], &[]);
        drop(other);
        assert_eq!(slot.captures(), [CaptureCount { frames: 7, lost: 4 }]);
    }
}
