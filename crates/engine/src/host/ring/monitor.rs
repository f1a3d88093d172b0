//! A program's monitor: copies of what passes a port, in rings of the monitor's own.
//!
//! A monitor looks at its port where captures do, so a port without one pays nothing, and one with a monitor
//! pays a copy for each frame. It sees what the port's client sent, whatever became of it, and what the
//! client received; not what was dropped on the way to it. Its memory is its own: it can change nothing of
//! what it sees. A monitor that is too slow loses frames, which are counted; no task waits for it.
//!
//! Frames are spread over the monitor's rings by flow, as received frames are over a client's: copies of
//! received frames are in the ring of the same number.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use sidecore_abi::netmap::NS_TXMON;
use sidecore_abi::ring::{End, SEES_END_SHIFT, SEES_RECEIVED, SEES_RELEASED, SEES_SENT};

use super::queues::{wake_pipe, RingEgress, RingPortSettings};
use crate::mem::{Overrun, Patient};
use crate::observe::capture::{Direction, Watcher};
use crate::packet::{flow_hash, Picked, MAX_BATCH};
use crate::port::{DropReason, EgressQueue, Outcome};
use crate::ring::{ClientRx, Region};
use crate::util::slice::upto;

/// What a monitor sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sees {
    /// What is sent.
    pub sent: bool,
    /// What is received.
    pub received: bool,
    /// Frames of a client or a pipe when their receiver has released them.
    pub released: bool,
    /// By which end of a pipe; `None`: by the port's client.
    pub end: Option<End>,
}

impl Sees {
    /// As a request has it; `None`: it makes no sense.
    pub fn from_value(value: u32) -> Option<Sees> {
        let (flags, end) = (value & ((1 << SEES_END_SHIFT) - 1), value >> SEES_END_SHIFT);
        let sees = Sees {
            sent: flags & SEES_SENT != 0,
            received: flags & SEES_RECEIVED != 0,
            released: flags & SEES_RELEASED != 0,
            end: End::from_code(end),
        };
        let known = flags & !(SEES_SENT | SEES_RECEIVED | SEES_RELEASED) == 0;
        (known && (sees.sent || sees.received) && (sees.end.is_some() || end == 0)).then_some(sees)
    }
}

/// The part of a monitor that sees what is sent.
pub struct SentOnly(pub Arc<Monitor>);

impl Watcher for SentOnly {
    fn see(&self, direction: Direction, picked: Picked<'_>, drops: &[(u16, DropReason)]) {
        if direction == Direction::Inbound {
            self.0.see(direction, picked, drops);
        }
    }
}

/// A monitor.
pub struct Monitor {
    /// What it sees.
    pub sees: Sees,
    rings: Patient<Vec<RingEgress>>,
    lost: AtomicU64,
}

impl Monitor {
    /// One that fills the rings of `region` with what it sees of a port with these settings and this account.
    /// Also the pipes that wake it, one for each ring.
    ///
    /// # Errors
    /// What the system says of making pipes.
    pub fn new(
        region: &Arc<Region>,
        settings: &Arc<RingPortSettings>,
        sees: Sees,
        overrun: &Overrun,
    ) -> io::Result<(Monitor, Vec<OwnedFd>)> {
        let (mut rings, mut wakes) = (Vec::new(), Vec::new());
        for index in 0..region.info().rx_rings {
            let (wake, theirs) = wake_pipe(overrun)?;
            rings.push(RingEgress::new(ClientRx::new(region, index), Arc::clone(settings), wake));
            wakes.push(theirs);
        }
        Ok((Monitor { sees, rings: Patient::new(rings), lost: AtomicU64::new(0) }, wakes))
    }

    /// Frames for which there was no room.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Watcher for Monitor {
    fn see(&self, direction: Direction, Picked { batch, picks }: Picked<'_>, drops: &[(u16, DropReason)]) {
        let Sees { sent, received, .. } = self.sees;
        let (wanted, mark) = match direction {
            Direction::Inbound => (sent, NS_TXMON),
            Direction::Outbound => (received, 0),
        };
        if !wanted {
            return;
        }
        let mut gone = [false; MAX_BATCH];
        if direction == Direction::Outbound {
            drops.iter().for_each(|(pick, _)| gone[usize::from(*pick)] = true);
        }
        let mut seen = [0; MAX_BATCH];
        let mut count = 0;
        for pick in picks.iter().copied().filter(|pick| !gone[usize::from(*pick)]) {
            seen[count] = pick;
            count += 1;
        }
        // Cores that see something of the port at the same time take turns, as they do at a port's egress.
        // None waits for one that stands still in the monitor's memory.
        let Some(mut rings) = self.rings.reach() else {
            self.lost.fetch_add(count as u64, Ordering::Relaxed);
            return;
        };
        let number = rings.len();
        let mut outcome = Outcome::new();
        let mut mine = [0; MAX_BATCH];
        for (index, ring) in rings.iter_mut().enumerate() {
            let mut len = 0;
            for &pick in upto(&seen, count) {
                let frame = batch.frame(pick);
                if number == 1 || flow_hash(frame.head()) as usize % number == index {
                    mine[len] = pick;
                    len += 1;
                }
            }
            ring.slots.mark = mark;
            ring.send(batch, upto(&mine, len), &mut outcome);
        }
        self.lost.fetch_add(outcome.drops.counts.iter().map(|n| u64::from(*n)).sum(), Ordering::Relaxed);
    }
}
