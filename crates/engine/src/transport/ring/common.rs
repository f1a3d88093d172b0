//! What a ring port's thread and its owner have in common, and what `show` tells of its rings.

use std::sync::{Arc, Mutex};

use sidecore_abi::ring::{End, Info};

use super::config::RingPortConfig;
use super::group::Member;
use crate::graph::Scheduler;
use crate::host::ring::{Monitor, RingPortSettings};
use crate::port::{Port, QueueStatus};
use crate::ring::RingStats;
use crate::slots::pipe::End as PipeEnd;

/// One ring port's.
pub(super) struct Common {
    pub(super) port: Arc<Port>,
    pub(super) scheduler: Arc<dyn Scheduler>,
    pub(super) config: RingPortConfig,
    /// The port's part of a shared memory.
    pub(super) member: Option<Member>,
    /// Its end of a pipe between ports.
    pub(super) end: Option<Arc<PipeEnd>>,
    pub(super) info: Info,
    pub(super) settings: Arc<RingPortSettings>,
    pub(super) state: Mutex<RingPortState>,
}

/// How it is doing.
#[derive(Default)]
pub(super) struct RingPortState {
    /// The attached client's.
    pub(super) rings: Rings,
    pub(super) attaches: u64,
    /// Ends of pipes that are open.
    pub(super) ends: usize,
    pub(super) monitors: Vec<Arc<Monitor>>,
}

/// What went wrong on the pairs of rings that a client has: ingress, egress.
pub(super) type Rings = Vec<(Arc<RingStats>, Arc<RingStats>)>;

/// A client's rings for `show`, with the slots of those that it sends on, and of the others.
pub(super) fn ring_queues(rings: &Rings, (tx_slots, rx_slots): (u32, u32)) -> Vec<QueueStatus> {
    let mut queues = Vec::new();
    for (index, (ingress, egress)) in rings.iter().enumerate() {
        for (direction, size, stats) in [("ingress", tx_slots, ingress), ("egress", rx_slots, egress)] {
            let state = stats.describe();
            queues.push(QueueStatus { index, direction, size, kind: "ring", state, interrupts: None });
        }
    }
    queues
}

/// A port's monitor for `show`.
pub(super) fn monitor_queue((index, monitor): (usize, &Arc<Monitor>), size: u32) -> QueueStatus {
    let sees = monitor.sees();
    let seen = match (sees.sent, sees.received) {
        (true, true) => "sent and received frames",
        (true, false) => "sent frames",
        _ => "received frames",
    };
    let of = match sees.end {
        Some(End::Master) => " of a pipe's end {",
        Some(End::Slave) => " of a pipe's end }",
        None => "",
    };
    let when = if sees.released { ", once released" } else { "" };
    let state = match monitor.lost() {
        0 => format!("running, sees {seen}{of}{when}"),
        lost => format!("running, sees {seen}{of}{when}, {lost} lost"),
    };
    QueueStatus { index, direction: "monitor", size, kind: "ring", state, interrupts: None }
}
