//! Interrupts of a ring, with the operator's gap between them.
//!
//! Theory of operation. A virtio driver has no register for moderation, so the operator sets the gap. An
//! event for which no interrupt may be sent yet is *late*: the ring remembers its position. When the gate
//! opens, the ring asks again whether the driver wants an interrupt; a driver that has polled meanwhile does
//! not. There is no timer. The I/O core that serves the guest's transmit ring checks both rings of the pair
//! in time (`device/moderation`), and is woken for the receive ring, which any core fills. While no core
//! serves the transmit ring, interrupts are not delayed.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use crate::device::moderation::{self, Alarm, InterruptGate, NEVER};
use crate::port::{Port, Reached, Tally};
use crate::virtq::Queue;

/// When a ring's late interrupt is due, and whether a core looks.
pub(super) struct Watched {
    alarm: Alarm,
    /// An I/O core serves the transmit ring of its pair.
    is: AtomicBool,
}

impl Watched {
    /// # Errors
    /// There is no descriptor left.
    pub(super) fn new() -> std::io::Result<Arc<Watched>> {
        Ok(Arc::new(Watched { alarm: Alarm::new()?, is: AtomicBool::new(false) }))
    }
}

/// The interrupts of one ring.
pub(super) struct Moderated {
    port: Arc<Port>,
    egress: bool,
    index: usize,
    gap: u64,
    gate: InterruptGate,
    /// The ring as it was before what the driver has not been told of.
    since: Option<u16>,
    watched: Arc<Watched>,
}

impl Moderated {
    /// Those of ring `index` of `port` in this direction, so far apart.
    pub(super) fn new(
        port: &Arc<Port>,
        egress: bool,
        index: usize,
        gap: Duration,
        watched: &Arc<Watched>,
    ) -> Box<Moderated> {
        Box::new(Moderated {
            port: Arc::clone(port),
            egress,
            index,
            gap: moderation::gap(gap),
            gate: InterruptGate::default(),
            since: None,
            watched: Arc::clone(watched),
        })
    }

    /// `queue` has moved on from `before`: interrupts the driver if it wants to know and may be told now.
    pub(super) fn tell(&mut self, queue: &Queue, before: u16) -> bool {
        let since = *self.since.get_or_insert(before);
        self.attempt(queue, since, true)
    }

    /// Sends the late interrupt, if there is one and its time has come.
    pub(super) fn tend(&mut self, queue: &Queue) -> bool {
        match self.since {
            Some(since) => self.attempt(queue, since, false),
            None => {
                self.watched.alarm.set(NEVER);
                false
            }
        }
    }

    fn attempt(&mut self, queue: &Queue, since: u16, news: bool) -> bool {
        let Watched { alarm, is } = &*self.watched;
        if queue.wants_interrupt(since) {
            if let Err(opens) = self.gate.pass(alarm.now(), 0, self.gap, news) {
                if news {
                    self.port.interrupts.held_back(self.egress, self.index);
                }
                // The deadline is set before the look: a core that stops watching looks behind that
                // (`Looks::drop`).
                alarm.set(opens);
                if is.load(Ordering::SeqCst) {
                    return false;
                }
            }
            self.since = None;
            alarm.set(NEVER);
            return queue.notify();
        }
        // It polls, or has found all of it.
        self.since = None;
        alarm.set(NEVER);
        false
    }

    /// The ring stops: what is late is sent.
    pub(super) fn end(&mut self, queue: &Queue) {
        if self.since.take().is_some_and(|since| queue.wants_interrupt(since)) {
            queue.notify();
        }
        self.watched.alarm.set(NEVER);
    }

    fn is_due(&self) -> bool {
        self.watched.alarm.is_due()
    }
}

/// The interrupts that the server of a transmit ring looks at: its own, and those of the receive ring of its
/// pair.
pub(super) struct Looks {
    own: Box<Moderated>,
    receive: Arc<Watched>,
}

impl Looks {
    pub(super) fn new(own: Box<Moderated>, receive: Arc<Watched>) -> Box<Looks> {
        own.watched.is.store(true, Ordering::SeqCst);
        receive.is.store(true, Ordering::SeqCst);
        Box::new(Looks { own, receive })
    }

    /// The transmit ring has moved on from `before`.
    pub(super) fn tell(&mut self, queue: &Queue, before: u16) -> bool {
        self.own.tell(queue, before)
    }

    /// Sends what is due of either.
    #[cold]
    pub(super) fn tend(&mut self, queue: &Queue, tally: &mut Tally) {
        if self.own.is_due() && self.own.tend(queue) {
            tally.interrupts += 1;
        }
        // If another core stands still in the ring, that interrupt comes when it goes on.
        if self.receive.alarm.is_due() && self.tend_receive(self.own.port.reach(self.own.index)) {
            tally.interrupts += 1;
            tally.for_others += 1;
        }
    }

    /// The receive ring's late interrupt.
    fn tend_receive(&self, reached: Reached<'_>) -> bool {
        let (port, index) = (&self.own.port, self.own.index);
        let Reached::Slot(mut slot) = reached else { return false };
        let Some(ring) = slot.as_mut() else {
            // The ring that set it is gone.
            self.receive.alarm.set(NEVER);
            return false;
        };
        let sent = ring.tend();
        if sent {
            port.interrupts.egress(index, 0, 1);
        }
        sent
    }

    /// The core is about to sleep, or is awake.
    pub(super) fn set_sleeping(&self, sleeping: bool) {
        self.receive.alarm.set_sleeping(sleeping);
    }

    /// How long it may sleep.
    pub(super) fn due_in(&self) -> Option<Duration> {
        [self.own.watched.alarm.due_in(), self.receive.alarm.due_in()].into_iter().flatten().min()
    }

    /// Readable when a deadline has come nearer.
    pub(super) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.receive.alarm.wake_fd()
    }

    /// The transmit ring stops: what is late of it is sent.
    pub(super) fn end(&mut self, queue: &Queue) {
        self.own.end(queue);
    }
}

impl Drop for Looks {
    fn drop(&mut self) {
        // From now on the receive ring holds nothing back, and what it held is sent.
        self.receive.is.store(false, Ordering::SeqCst);
        if let Some(slot) = self.own.port.egress(self.own.index) {
            self.tend_receive(Reached::Slot(slot));
        }
    }
}
