//! Rings that monitors have I/O cores follow: `host::ring::RingTap`, served for as long as a monitor looks.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::common::Common;
use crate::core::Lease;
use crate::host::ring::{Lookers, Monitor, RingTap, Sees};
use crate::observe::capture::Watcher;
use crate::ring::{Region, ReleaseGate};

/// A followed ring. Dropping it ends that.
pub(super) struct Tapped {
    lookers: Arc<Lookers>,
    _tap: Lease<RingTap>,
}

impl Tapped {
    fn serve(common: &Arc<Common>, tap: RingTap, lookers: Arc<Lookers>) -> Tapped {
        Tapped { lookers, _tap: common.scheduler.serve(&common.port, 0, tap) }
    }

    /// `monitor` sees the ring's frames, as sent or received ones.
    fn show(&self, monitor: &Arc<Monitor>, sent: bool) {
        let slot = if sent { &self.lookers.sent } else { &self.lookers.received };
        slot.watch(Arc::clone(monitor) as _);
    }
}

/// `monitor` looks at none of `taps` any more; those without a monitor end.
pub(super) fn hide(taps: &mut [Option<Tapped>], monitor: &Arc<Monitor>) {
    let watcher: Arc<dyn Watcher> = Arc::clone(monitor) as _;
    for place in taps {
        if let Some(tapped) = place {
            tapped.lookers.sent.unwatch(&watcher);
            tapped.lookers.received.unwatch(&watcher);
            if !tapped.lookers.any() {
                *place = None;
            }
        }
    }
}

/// The four rings of pipe `pipe` in `region`: has `monitor` see what its end sends and receives.
pub(super) fn show_pipe(
    common: &Arc<Common>,
    region: &Arc<Region>,
    pipe: u32,
    wakes: &[OwnedFd; 4],
    taps: &mut [Option<Tapped>; 4],
    monitor: &Arc<Monitor>,
) -> io::Result<()> {
    let Sees { sent, received, released, end: Some(end) } = monitor.sees else { return Ok(()) };
    let [tx, rx] = end.rings();
    // The ring on which frames are sent, and whether that is sent or received for the monitor.
    let ways = [(tx, true, sent), (sidecore_abi::ring::across(rx), false, received)];
    for (sender, is_sent, wanted) in ways {
        if !wanted {
            continue;
        }
        let ring = if released { sidecore_abi::ring::across(sender) } else { sender };
        let place = &mut taps[ring as usize];
        if place.is_none() {
            let lookers = Arc::default();
            let numbers = (region.pipe_ring(pipe, ring), region.pipe_ring(pipe, sender));
            let wake = wakes[sender as usize].try_clone()?;
            let tap = RingTap::of_pipe(region, numbers, wake, Arc::clone(&lookers))?;
            *place = Some(Tapped::serve(common, tap, lookers));
        }
        place.iter().for_each(|tapped| tapped.show(monitor, is_sent));
    }
    Ok(())
}

/// The receive rings of the client of `region`, whose slots `gates` keep: has `monitor` see what it releases.
pub(super) fn show_released(
    common: &Arc<Common>,
    region: &Arc<Region>,
    gates: &[Arc<ReleaseGate>],
    taps: &mut Vec<Option<Tapped>>,
    monitor: &Arc<Monitor>,
) -> io::Result<()> {
    taps.resize_with(gates.len(), || None);
    for ((index, gate), place) in (0..).zip(gates).zip(taps) {
        if place.is_none() {
            let lookers = Arc::default();
            // No core fills slots while it begins.
            let filled = common.port.egress(index as usize);
            let tap = RingTap::of_released(region, index, &common.settings, gate, Arc::clone(&lookers))?;
            drop(filled);
            *place = Some(Tapped::serve(common, tap, lookers));
        }
        place.iter().for_each(|tapped| tapped.show(monitor, false));
    }
    Ok(())
}
