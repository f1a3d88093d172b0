//! A router as a node: each frame gets its destination and its new head, and what the router says itself is
//! delivered behind them.
//!
//! Frames are captured as they came, but for tags that only tell a priority, then rewritten. A frame that the
//! router makes counts as *made* at the port whose batch gave rise to it.

use std::sync::Arc;

use super::deliver::Delivery;
use super::effects::Effects;
use super::topology::Topology;
use crate::packet::{Batch, ALL};
use crate::port::{DropReason, Port};
use crate::router::{Now, RewriteBuffer, Router, RouterContext};
use crate::switch::Verdicts;

/// Has `router` decide on each frame of `batch`, which came by `port`. What is to be changed of them is in
/// `out` then.
#[inline]
pub(super) fn decide(
    contexts: &mut [RouterContext],
    router: &Arc<Router>,
    batch: &mut Batch,
    port: &Port,
    now: &Now,
    out: &mut RewriteBuffer,
    verdicts: &mut Verdicts,
) {
    batch.take_priorities();
    match contexts.iter_mut().find(|context| context.is_of(router)) {
        Some(context) => context.decide(batch, port, now, out, verdicts),
        None => (0..batch.len()).for_each(|frame| verdicts.drop(frame, DropReason::NoDestination)),
    }
}

/// Delivers frames that the router made, each to its port. All that one port gets are one delivery, which
/// ends when its time is up.
#[inline]
pub(super) fn made<E: Effects>(
    out: &RewriteBuffer,
    delivery: &mut Delivery<E>,
    topology: &Topology,
    port: &Port,
) {
    let (made, to) = out.made();
    if made.is_empty() {
        return;
    }
    delivery.made(port, to.len());
    delivery.forget_flows();
    for (at, id) in to.iter().enumerate().filter(|(at, id)| !to.iter().take(*at).any(|it| it == *id)) {
        delivery.picks.clear();
        let its = ALL.iter().zip(to).skip(at).filter(|(_, other)| *other == id);
        delivery.picks.extend(its.map(|(pick, _)| *pick));
        delivery.visit(topology, port, *id, made);
    }
}
