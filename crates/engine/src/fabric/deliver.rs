//! Pass 2: each destination of a batch is visited once.
//!
//! Theory of operation. The egress queue of the destination gets its list of frames under the port's lock. With several
//! queues a hash of the flow selects one, so that a flow stays in order. The hash of a frame is computed at first use,
//! once for all its destinations. If some frames request offloads that the receiver did not accept, `offload` first
//! makes plain frames of them. A delivery is timed. If it takes too long, the rest of it, and later frames for that
//! receiver, go through `watched`. Time in which the core had no processor is charged to no port (`mem::Effort`): the
//! core checks for it when a delivery was late, and compares it with a note that it makes once a millisecond.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::backpressure::{buffers, WireGate};
use super::offload::Boundary;
use super::pass::{Crossing, Lobby};
use super::private::Private;
use super::topology::{Attach, Topology};
use crate::core::Beat;
use crate::frame::{Batch, MAX_BATCH};
use crate::mem::{ticks, ticks_in, Effort};
use crate::port::{
    usual, Crowd, DropReason, Outcome, Plugged, Port, PortId, Reached, Room, LIMIT, MAX_QUEUES,
};
use crate::router::Seat;
use crate::wire::{flow_hash, Offloads};

use sidecore_abi::counters::MAX_PORTS;

/// How often a core notes where its thread stands, which takes two system calls: a thousandth of its time.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// What delivery needs besides the batch: scratch memory of one core.
pub(super) struct Delivery {
    pub(super) core: usize,
    /// How long a delivery may take, and what one that takes less is not looked at more closely: ticks.
    pub(super) limit: u64,
    pub(super) usual: u64,
    pub(super) beat: Arc<Beat>,
    pub(super) picks: Vec<u16>,
    by_queue: Vec<u16>,
    pub(super) others: Vec<PortId>,
    /// Frames for everybody; once copies are counted, those for groups.
    pub(super) floods: Vec<u16>,
    /// Frames that were handed to ports, for the batch under way.
    pub(super) deliveries: usize,
    /// Nanoseconds of the batch under way that receivers' memory took, and not the sender's frames.
    pub(super) foreign_ns: u64,
    /// Where this thread stood a moment ago: what tells time of a receiver's from time that others had the processor for.
    stood: Option<Effort>,
    /// How old that may be: ticks.
    oldest: u64,
    /// For watched receivers.
    pub(super) private: Option<Box<Private>>,
    /// What receivers had of this core together.
    pub(super) crowd: Crowd,
    flows: Flows,
    boundary: Boundary,
    /// Of the queue whose batch is under way, if it is on a wire to several queues.
    pub(super) gate: Option<Box<WireGate>>,
    /// Of the topology's routers.
    pub(super) seats: Vec<Seat>,
    /// For frames between switches and routers on them; none while some are on their way there.
    pub(super) crossing: Option<Box<Crossing>>,
    /// Where those wait that come to another router on such a way.
    pub(super) lobby: Box<Lobby>,
}

impl Delivery {
    pub(super) fn new(core: usize, beat: Arc<Beat>, epoch: Instant) -> Delivery {
        Delivery {
            core,
            limit: ticks_in(LIMIT),
            usual: usual(0),
            beat,
            picks: Vec::with_capacity(MAX_BATCH),
            by_queue: Vec::with_capacity(MAX_BATCH),
            others: Vec::with_capacity(MAX_PORTS),
            floods: Vec::with_capacity(MAX_BATCH),
            deliveries: 0,
            foreign_ns: 0,
            stood: None,
            oldest: ticks_in(LOOK_EVERY),
            private: Some(Box::new(Private::new())),
            crowd: Crowd::default(),
            flows: Flows::default(),
            boundary: Boundary::new(),
            gate: None,
            seats: Vec::new(),
            crossing: Some(Box::new(Crossing::new(epoch))),
            lobby: Box::new(Lobby::new()),
        }
    }

    /// Another batch comes.
    #[inline]
    pub(super) fn begin(&mut self) {
        (self.deliveries, self.foreign_ns) = (0, 0);
        self.forget_flows();
        self.stand(self.oldest);
    }

    /// Notes where the thread stands, if the last note is more than so many ticks old.
    #[inline]
    pub(super) fn stand(&mut self, oldest: u64) {
        if self.stood.as_ref().is_none_or(|stood| stood.age() > oldest) {
            self.stood = Some(Effort::now());
        }
    }

    /// What is delivered now is of another batch.
    #[inline]
    pub(super) fn forget_flows(&mut self) {
        self.flows.known = [0; MAX_BATCH / 64];
    }

    /// The receiver at the other end of `source`'s wire, if it is on one.
    #[inline]
    pub(super) fn wired<'t>(topology: &'t Topology, source: &Port) -> Option<&'t Port> {
        let Attach::Wire(peer) = topology.get(source.id)?.attach else { return None };
        Some(&topology.get(peer)?.port)
    }

    /// Whether `port` gets no frames now, because it was slow, or it and others were.
    #[inline]
    pub(super) fn rests(&self, port: &Port) -> bool {
        port.pace.is_watched() && (port.pace.rests() || self.crowd.rests() && port.pace.pays())
    }

    /// What queue `queue` of `port` has room for. `None`: there is no telling.
    #[inline]
    pub(super) fn room(&mut self, port: &Port, queue: usize) -> Option<Room> {
        if self.rests(port) {
            return Some(Room { free: 0, size: 1 });
        }
        self.stand(self.oldest);
        // Its frames wait, as for a receiver without buffers.
        self.ask(port, queue, Some(Some(Room { free: 0, size: 1 })), |queue| queue.room())?
    }

    /// What `look` finds at queue `queue` of `port`, in whose memory it may have to look: the time for that is its own. `busy`
    /// if another core stands still there.
    #[inline]
    pub(super) fn ask<T>(
        &mut self,
        port: &Port,
        queue: usize,
        busy: Option<T>,
        look: impl FnOnce(&mut Plugged) -> T,
    ) -> Option<T> {
        let mut slot = match port.reach(queue) {
            Reached::Slot(slot) => slot,
            Reached::Busy => return busy,
            Reached::Nowhere => return None,
        };
        let plugged = slot.as_mut()?;
        self.beat.towards(Some(port.id.0));
        // Its lock may have been held by another core.
        let begun = ticks();
        let found = look(plugged);
        let took = ticks().wrapping_sub(begun);
        self.beat.elsewhere();
        drop(slot);
        if took > self.usual {
            self.was_asked(port, took);
        }
        Some(found)
    }

    /// Tries to deliver what the gate holds of `batch`, which came from `source`; whatever there is room for if it is
    /// `open`.
    pub(super) fn again(&mut self, topology: &Topology, source: &Port, batch: &Batch, open: bool) {
        self.begin();
        let Some(gate) = &mut self.gate else { return };
        gate.again(open, &mut self.picks);
        match Self::wired(topology, source) {
            Some(port) => self.visit(topology, source, port.id, batch),
            // The wire is gone.
            None => self.count_drops(source, self.picks.iter().map(|_| DropReason::NoDestination)),
        }
    }

    pub(super) fn count_drops(&self, port: &Port, reasons: impl Iterator<Item = DropReason>) {
        let mut outcome = Outcome::new();
        reasons.for_each(|reason| outcome.drops.add(reason, 1));
        port.counters.block(self.core).add_outcome(&outcome);
    }

    /// Gives `self.picks` of `batch` to port `id`.
    #[inline]
    pub(super) fn visit(&mut self, topology: &Topology, source: &Port, id: PortId, batch: &Batch) {
        let picks = std::mem::take(&mut self.picks);
        self.deliveries += picks.len();
        match topology.get(id) {
            Some(member) if member.port.is_silent() => {
                self.refuse(&member.port, batch, &picks, DropReason::LinkDown);
            }
            Some(member) if member.attach.is_gateway() => self.cross(topology, source, member, batch, &picks),
            Some(member) if batch.any_offload => self.across(&member.port, batch, &picks),
            Some(member) => self.send_gated(&member.port, batch, &picks),
            None => self.count_drops(source, picks.iter().map(|_| DropReason::NoDestination)),
        }
        self.picks = picks;
    }

    /// Delivers frames that may need more than the receiver accepts.
    #[cold]
    fn across(&mut self, port: &Port, batch: &Batch, picks: &[u16]) {
        let accepts = port.accepts();
        let fits = |pick: &u16| {
            let offload = batch.frame(*pick).offload;
            offload.required().without(accepts) == Offloads::NONE
        };
        let mut rest = picks;
        while let Some(first) = rest.first() {
            let same = fits(first);
            let run = rest.iter().take_while(|pick| fits(pick) == same).count();
            let (now, later) = rest.split_at(run);
            if same {
                self.send_gated(port, batch, now);
            } else {
                self.convert(port, batch, now);
            }
            rest = later;
        }
    }

    /// Delivers frames of which each needs something that the receiver does not accept.
    fn convert(&mut self, port: &Port, batch: &Batch, picks: &[u16]) {
        let mut boundary = std::mem::take(&mut self.boundary);
        for &pick in picks {
            let frame = batch.frame(pick);
            let queue = self.flows.queue(queues_of(port), batch, pick).into();
            if self.gated(port, queue, batch, &[pick]).is_empty() {
                continue;
            }
            if self.rests(port) {
                self.refuse(port, batch, &[pick], DropReason::SlowReceiver);
                continue;
            }
            // Then nothing is worked out for it. Where another core stands still, delivery says why not.
            if self.ask(port, queue, Some(false), |queue| queue.is_full()) == Some(true) {
                self.refuse(port, batch, &[pick], DropReason::RingFull);
                continue;
            }
            // All that is made of it goes the way of its flow.
            let made = boundary.convert(frame, batch.body(frame), port.accepts(), |plain, picks| {
                self.send_to(port, queue, plain, picks);
            });
            match made {
                Ok(made) => port.counters.block(self.core).add_made(made.saturating_sub(1)),
                Err(_) => self.refuse(port, batch, &[pick], DropReason::CannotSegment),
            }
        }
        self.boundary = boundary;
    }

    /// Which of `picks` of `batch`, all for queue `queue` of `port`, go now; the gate holds the others.
    #[inline]
    fn gated<'p>(&mut self, port: &Port, queue: usize, batch: &Batch, picks: &'p [u16]) -> &'p [u16] {
        let asks = self.gate.as_ref().is_some_and(|gate| gate.asks(queue));
        let room = if asks { self.room(port, queue) } else { None };
        match &mut self.gate {
            Some(gate) => gate.split(queue, picks, room, |pick| buffers(batch.frame(pick))),
            None => picks,
        }
    }

    /// Hands `picks` of `batch` to the queues of `port`, or has the gate hold them.
    #[inline]
    fn send_gated(&mut self, port: &Port, batch: &Batch, picks: &[u16]) {
        // Read once for all frames: queues come and go meanwhile, and a frame that were asked twice could be given to two
        // queues or to none. One that goes to a queue which is gone by then is counted there.
        let queues = queues_of(port);
        if queues <= 1 {
            return self.send_to(port, 0, batch, picks);
        }
        // Which queues there are frames for, and for which one each frame is: by its place in `picks`.
        let (mut used, mut of) = (0u32, [0u8; MAX_BATCH]);
        for (pick, of) in picks.iter().zip(&mut of) {
            *of = self.flows.queue(queues, batch, *pick);
            used |= 1 << *of;
        }
        let mut mine = std::mem::take(&mut self.by_queue);
        while used != 0 {
            #[expect(clippy::cast_possible_truncation, reason = "a bit's number")]
            let queue = used.trailing_zeros() as u8;
            used &= used - 1;
            mine.clear();
            mine.extend(picks.iter().zip(&of).filter(|(_, of)| **of == queue).map(|(pick, _)| *pick));
            let queue = usize::from(queue);
            let now = self.gated(port, queue, batch, &mine);
            if !now.is_empty() {
                self.send_to(port, queue, batch, now);
            }
        }
        self.by_queue = mine;
    }

    #[inline]
    fn send_to(&mut self, port: &Port, queue: usize, batch: &Batch, picks: &[u16]) {
        if port.pace.is_watched() {
            return self.send_watched(port, queue, batch, picks);
        }
        let limit = self.limit.saturating_add(of_bytes(batch, picks));
        let (outcome, took) = self.hand_over(port, queue, batch, picks, limit, false);
        // Most take less than the least that is usual.
        if took > self.usual {
            self.was_late(port, queue, batch, picks, outcome, took);
        }
    }

    /// A delivery of `picks` to queue `queue` of `port` took longer than most. What it has left is delivered.
    #[cold]
    fn was_late(
        &mut self,
        port: &Port,
        queue: usize,
        batch: &Batch,
        picks: &[u16],
        mut outcome: Outcome,
        mut took: u64,
    ) {
        let bytes = of_bytes(batch, picks);
        let (limit, usual) = (self.limit.saturating_add(bytes), usual(picks.len()).saturating_add(bytes));
        // What is left was not delivered in time: `took` is beyond the limit then.
        while took > usual.min(limit) {
            let own = self.own(took, limit);
            let more = own.saturating_sub(usual);
            let crowded = more > 0 && self.crowd.overlook(more);
            if own > limit {
                port.pace.suspect(more, crowded);
                return self.send_watched(port, queue, batch, &outcome.left);
            }
            if more > 0 {
                port.pace.lagged(more, crowded);
            }
            // Others had the processor: what is left goes on as it began.
            if outcome.left.is_empty() {
                return;
            }
            (outcome, took) = self.hand_over(port, queue, batch, &outcome.left, limit, false);
        }
    }

    /// What of `spent` ticks was the receiver's, in a delivery that should have taken `limit` at most: others may have had the
    /// processor. Two system calls, and two more.
    ///
    /// Between two looks at the clock only a search for pages takes long. Where none were found, what is far beyond the limit
    /// was taken by a hypervisor, of which no clock of this machine knows.
    pub(super) fn own(&mut self, spent: u64, limit: u64) -> u64 {
        let (lost, pages) = self.stood.as_ref().map_or((0, true), Effort::lost);
        // It is counted once.
        self.stood = Some(Effort::now());
        let own = spent.saturating_sub(lost);
        if pages {
            own
        } else {
            own.min(limit.saturating_mul(2))
        }
    }

    /// Hands `picks` of `batch` to a queue, which may take so many ticks; what became of them, and how long it took.
    /// `closely`: the clock is read before each frame.
    #[inline]
    pub(super) fn hand_over(
        &self,
        port: &Port,
        queue: usize,
        batch: &Batch,
        picks: &[u16],
        time: u64,
        closely: bool,
    ) -> (Outcome, u64) {
        let mut outcome = Outcome::new();
        let mut took = 0;
        outcome.trace = port.capture.is_on().then(Vec::new);
        self.beat.towards(Some(port.id.0));
        match port.reach(queue) {
            Reached::Slot(mut slot) => match &mut *slot {
                Some(plugged) => {
                    outcome.begin(if plugged.is_timed() { time } else { u64::MAX }, closely);
                    plugged.send(batch, picks, &mut outcome);
                    took = if plugged.is_timed() { outcome.took() } else { 0 };
                    // While its lock is held.
                    port.told.egress(queue, outcome.occasions, outcome.interrupts);
                }
                None => outcome.dropped_all(picks, DropReason::LinkDown),
            },
            Reached::Busy => outcome.dropped_all(picks, DropReason::SlowReceiver),
            Reached::Nowhere => outcome.dropped_all(picks, DropReason::LinkDown),
        }
        self.beat.elsewhere();
        port.counters.block(self.core).add_outcome(&outcome);
        if let Some(drops) = &outcome.trace {
            if outcome.left.is_empty() {
                port.capture.egress(batch, picks, drops);
            } else {
                let done = |pick: &u16| !outcome.left.contains(pick);
                let done: Vec<u16> = picks.iter().copied().filter(done).collect();
                port.capture.egress(batch, &done, drops);
            }
        }
        (outcome, took)
    }
}

/// Bytes that are delivered in so little time that it does not matter whose they are.
const FEW: u32 = 16 * 1024;

/// Ticks that a delivery of `picks` of `batch` may take for its bytes, where memory is slow: two each.
#[inline]
pub(super) fn of_bytes(batch: &Batch, picks: &[u16]) -> u64 {
    let all = u64::from(batch.cost());
    if batch.cost() <= FEW || picks.len() >= batch.len() {
        return 2 * all;
    }
    2 * picks.iter().map(|pick| u64::from(batch.frame(*pick).cost())).sum::<u64>()
}

/// Egress queues of `port` now.
#[inline]
pub(super) fn queues_of(port: &Port) -> usize {
    port.egress_queues().min(MAX_QUEUES)
}

/// The flows of a batch's frames.
struct Flows {
    hashes: [u32; MAX_BATCH],
    /// Those that were worked out, a bit each.
    known: [u64; MAX_BATCH / 64],
}

impl Default for Flows {
    fn default() -> Flows {
        Flows { hashes: [0; MAX_BATCH], known: [0; MAX_BATCH / 64] }
    }
}

impl Flows {
    /// The queue of `queues` that takes frame `pick` of `batch`: by its flow, so that a flow stays in order.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "below MAX_QUEUES")]
    fn queue(&mut self, queues: usize, batch: &Batch, pick: u16) -> u8 {
        if queues <= 1 {
            return 0;
        }
        let (at, bit) = (usize::from(pick), 1u64 << (pick % 64));
        if self.known[at / 64] & bit == 0 {
            let frame = &batch.frames()[at];
            self.hashes[at] = flow_hash(frame.head());
            self.known[at / 64] |= bit;
        }
        (self.hashes[at] as usize % queues) as u8
    }
}

#[cfg(test)]
mod tests;
