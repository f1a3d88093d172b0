//! Queues of both directions that a port and its I/O cores have, for kinds of ports that give all and take
//! all.

use std::sync::Arc;

use super::ingress::Scheduler;
use crate::core::Lease;
use crate::port::{EgressQueue, IngressQueue, Port};

/// Lent pairs of queues. Dropping it takes them back.
pub struct Pairs<I, E> {
    egress: Vec<Lease<E>>,
    ingress: Vec<Lease<I>>,
}

impl<I, E> Default for Pairs<I, E> {
    fn default() -> Self {
        Pairs { egress: Vec::new(), ingress: Vec::new() }
    }
}

impl<I: IngressQueue + 'static, E: EgressQueue + 'static> Pairs<I, E> {
    /// Lends the next egress queue to `port`.
    pub fn receive(&mut self, port: &Arc<Port>, queue: E) {
        self.egress.push(port.lend(self.egress.len(), queue));
    }

    /// Has the I/O cores serve the next ingress queue of `port`.
    pub fn send(&mut self, port: &Arc<Port>, scheduler: &Arc<dyn Scheduler>, queue: I) {
        self.ingress.push(scheduler.serve(port, self.ingress.len(), queue));
    }
}

impl<I, E> Pairs<I, E> {
    /// Takes all back, egress first, so that the link goes down before frames cease to come. No core uses any
    /// of them when this returns.
    pub fn take_back(&mut self) {
        self.end_receiving();
        self.ingress.clear();
    }

    /// Takes the egress queues back.
    pub fn end_receiving(&mut self) {
        // Queue 0 is the link: it goes last.
        while self.egress.pop().is_some() {}
    }
}

impl<I, E> Drop for Pairs<I, E> {
    fn drop(&mut self) {
        self.take_back();
    }
}
