//! A device's view of a queue that it lends to a core or to its port.

use crate::core::Lease;

/// A queue: at rest, or with those that serve it. Neither is never seen: it did not come back.
pub(super) enum Queue<Q> {
    Here(Q),
    Lent(Lease<Q>),
    Lost,
}

impl<Q> Queue<Q> {
    pub(super) fn is_lent(&self) -> bool {
        matches!(self, Queue::Lent(_))
    }

    /// The queue, taken back from those that serve it.
    pub(super) fn take_back(&mut self) -> Option<&mut Q> {
        if self.is_lent() {
            if let Queue::Lent(lease) = std::mem::replace(self, Queue::Lost) {
                *self = lease.take_back().map_or(Queue::Lost, Queue::Here);
            }
        }
        match self {
            Queue::Here(queue) => Some(queue),
            Queue::Lent(_) | Queue::Lost => None,
        }
    }

    /// Has it served, if it is at rest.
    pub(super) fn lend(&mut self, serve: impl FnOnce(Q) -> Lease<Q>) {
        *self = match std::mem::replace(self, Queue::Lost) {
            Queue::Here(queue) => Queue::Lent(serve(queue)),
            other => other,
        };
    }
}
