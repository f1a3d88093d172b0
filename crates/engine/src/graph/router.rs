//! A router as a node: each frame gets its destination and its new head, and what the router says itself is delivered behind
//! them.
//!
//! Frames are captured as they came, then rewritten. A frame that the router makes counts as *made* at the port whose batch
//! gave rise to it.

use std::sync::Arc;

use super::deliver::Delivery;
use super::topology::Topology;
use crate::packet::{Batch, ALL};
use crate::port::{DropReason, Port};
use crate::router::{Desk, Now, Router, Seat};
use crate::switch::Verdicts;

/// Has `router` decide on each frame of `batch`, which came by `port`. What is to be changed of them is on the `desk` then.
#[inline]
pub(super) fn decide(
    seats: &mut [Seat],
    router: &Arc<Router>,
    batch: &Batch,
    port: &Port,
    now: &Now,
    desk: &mut Desk,
    verdicts: &mut Verdicts,
) {
    match seats.iter_mut().find(|seat| seat.is_of(router)) {
        Some(seat) => seat.decide(batch, port, now, desk, verdicts),
        None => (0..batch.len()).for_each(|frame| verdicts.drop(frame, DropReason::NoDestination)),
    }
}

/// Delivers frames that the router made, each to its port. All that one port gets are one delivery, which ends when its time
/// is up.
#[inline]
pub(super) fn made(desk: &Desk, delivery: &mut Delivery, topology: &Topology, port: &Port) {
    let (made, to) = desk.made();
    if made.is_empty() {
        return;
    }
    port.counters.block(delivery.core).add_made(to.len() as u64);
    delivery.forget_flows();
    for (at, id) in to.iter().enumerate().filter(|(at, id)| !to.iter().take(*at).any(|it| it == *id)) {
        delivery.picks.clear();
        let its = ALL.iter().zip(to).skip(at).filter(|(_, other)| *other == id);
        delivery.picks.extend(its.map(|(pick, _)| *pick));
        delivery.visit(topology, port, *id, made);
    }
}
