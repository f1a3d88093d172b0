//! A wire as a node: each frame goes to the port at the other end, and the sender waits for that.
//!
//! Theory of operation. A frame that finds the receiver's ring full is lost. If the end of a TCP burst is
//! lost, the connection waits for its timer, hundreds of milliseconds. A real card has a FIFO and PAUSE
//! frames for this (IEEE 802.3 annex 31B); here the sender's own ring is the FIFO. The core takes no more
//! frames from a queue on a wire than the receiver has buffers for, and none while it has none. The frames
//! wait in the sender's ring, which costs only the sender. This ends after [`PATIENCE`]: if the receiver has
//! given no buffer by then, frames for it are dropped until it gives one.
//!
//! The number of buffers that a frame will take is estimated from the last frames, and two cores that serve
//! queues of one port see the same free buffers. So sometimes a few frames too many are taken, and dropped as
//! on a switch.
//!
//! A wait is counted (`port::waits`) when it is over and there are frames to send. Without frames there was
//! no wait.
//!
//! If the receiver has one queue, the core asks for its room before it takes frames (`pause`). If the
//! receiver has several queues, the core asks when it knows the queues of the frames (`gate`). In any case it
//! asks a receiver only after it has seen that the sender has frames, because asking takes the receiver's
//! lock.
//!
//! On a switch no sender waits. A queue there has frames for many receivers, and one receiver must not delay
//! the frames of others.

mod gate;
mod pause;
mod receiver;

use std::time::Duration;

pub(super) use gate::WireGate;
pub(super) use pause::Pause;

use super::deliver::Delivery;
use super::effects::Effects;
use super::topology::{Attach, Source};
use crate::packet::{Batch, ALL};
use crate::port::Port;

/// Longest time that a sender waits for a buffer, unless `CoreOptions` say otherwise.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);
/// How long a core may sleep while a sender waits: nothing wakes it when buffers come.
pub(super) const NAP: Duration = Duration::from_micros(50);

/// The receiver at the other end of `source`'s wire, if it is on one.
pub(super) fn receiver(source: Source<'_>) -> Option<&Port> {
    let Attach::Wire(peer) = source.topology.get(source.port.id)?.attach else { return None };
    Some(&source.topology.get(peer)?.port)
}

/// Picks the frames of `batch`, which came from `source`, that go to the other end of its wire now: the
/// `gate` holds those that have to wait.
pub(super) fn decide<E: Effects>(
    delivery: &mut Delivery<E>,
    source: Source<'_>,
    batch: &Batch,
    gate: Option<&mut WireGate>,
) {
    delivery.picks.clear();
    delivery.picks.extend_from_slice(&ALL[..batch.len()]);
    if let (Some(gate), Some(port)) = (gate, receiver(source)) {
        gate.pass(delivery, port, batch);
    }
}
