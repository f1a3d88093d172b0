//! What `show` tells of rings.

use std::sync::Arc;

use sidecore_abi::ring::End;

use crate::host::ring::Monitor;
use crate::port::QueueStatus;
use crate::ring::RingStats;

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
