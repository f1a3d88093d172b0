//! Pass 2: each destination of a batch is visited once.
//!
//! Theory of operation. The egress queue of the destination gets its list of frames under the port's lock.
//! With several queues a hash of the flow selects one, so that a flow stays in order. The hash of a frame is
//! computed at first use, once for all its destinations. If some frames request offloads that the receiver
//! did not accept, `offload` first makes plain frames of them.
//!
//! A copy that takes long may be slow because of either port's memory, and accuses neither. But for a while
//! afterwards the core deals with both sides *apart* ([`Delivery::end`]): it touches the sender's pages
//! before anything is forwarded, copies frames to private memory, and hands them over from there. What either
//! takes too long then is certainly that port's own (`mem::overrun`).

use std::time::Duration;

use super::effects::{Effects, Fate};
use super::offload::Boundary;
use super::private::Private;
use super::topology::{Attach, Interface, Member, Source};
use super::vlan::Retagged;
use super::work::{Stage, Stop};
use crate::mem::{own_time, ticks, ticks_in, time_of, Act, Overrun};
use crate::packet::{flow_hash, Batch, Offloads, Picked, ALL, MAX_BATCH};
use crate::policy::acl::AclCache;
use crate::policy::BatchVlans;
use crate::port::{DropReason, Outcome, Plugged, Port, PortId, Reached, Room, MAX_QUEUES};
use crate::router::RewriteBuffer;
use crate::switch::Verdicts;

/// The time that a delivery may take, beside what its bytes take. A visit that takes longer is slow.
const LIMIT: Duration = Duration::from_millis(1);
/// After a slow visit the core deals with both sides apart for this many times as long as the visit took,
/// within bounds.
const APART: u64 = 100;
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(10);

/// What delivery needs besides the batch: scratch memory of one core.
pub(super) struct Delivery<E> {
    /// What it does beside judging.
    pub(super) effects: E,
    pub(super) core: usize,
    /// How long a delivery may take: ticks.
    pub(super) limit: u64,
    /// Both sides are dealt with apart, and until when they are: ticks.
    pub(super) apart: bool,
    apart_until: u64,
    pub(super) picks: Vec<u16>,
    by_queue: Vec<u16>,
    pub(super) by_member: Vec<u16>,
    /// Frames that were handed to ports, for the batch under way.
    pub(super) deliveries: usize,
    /// The account of the visit's owner, where both sides are dealt with apart.
    sender: Overrun,
    /// Nanoseconds of the visit under way that are receivers' overruns.
    pub(super) others_ns: u64,
    /// For frames that are handed over apart from their sender's memory.
    private: Option<Box<Private>>,
    pub(super) flows: Flows,
    boundary: Boundary,
    /// The VLANs of the frames of the batch under way, and whether the port on the switch by which it came is
    /// isolated.
    pub(super) vlans: BatchVlans,
    pub(super) isolated: bool,
    pub(super) retagged: Option<Box<Retagged>>,
    /// What access lists decided on flows, and frames that one lets pass.
    pub(super) acl_cache: AclCache,
    pub(super) permitted: Vec<u16>,
    /// Frames for a mirror, and the batch in which they are cut.
    pub(super) copied: Vec<u16>,
    pub(super) cut: Option<Box<Batch>>,
    /// Frames that came to gateways.
    pub(super) work: Box<Stage>,
    /// What is delivered to a gateway now enters its router, or leaves it.
    pub(super) enters: bool,
    /// Routers that what is delivered now has passed.
    pub(super) passed: u8,
}

impl<E: Effects> Delivery<E> {
    pub(super) fn new(core: usize) -> Delivery<E> {
        Delivery {
            effects: E::default(),
            core,
            limit: ticks_in(LIMIT),
            apart: false,
            apart_until: 0,
            picks: Vec::with_capacity(MAX_BATCH),
            by_queue: Vec::with_capacity(MAX_BATCH),
            by_member: Vec::with_capacity(MAX_BATCH),
            deliveries: 0,
            sender: Overrun::default(),
            others_ns: 0,
            private: Some(Box::new(Private::new())),
            flows: Flows::default(),
            boundary: Boundary::default(),
            vlans: BatchVlans::default(),
            isolated: false,
            retagged: Some(Box::new(Retagged::new())),
            acl_cache: AclCache::default(),
            permitted: Vec::with_capacity(MAX_BATCH),
            copied: Vec::with_capacity(MAX_BATCH),
            cut: Some(Box::new(Batch::new())),
            work: Box::new(Stage::new()),
            enters: false,
            passed: 0,
        }
    }

    /// A visit begins to a queue of the port whose overruns are entered in `sender`. Returns the time, in
    /// ticks.
    #[inline]
    pub(super) fn start(&mut self, sender: &Overrun) -> u64 {
        let now = ticks();
        self.others_ns = 0;
        self.apart = self.apart_until != 0 && self.is_apart_at(now);
        if self.apart {
            self.sender = sender.clone();
        }
        now
    }

    #[cold]
    fn is_apart_at(&mut self, now: u64) -> bool {
        let apart = self.apart_until.wrapping_sub(now) <= ticks_in(LONGEST);
        if !apart {
            self.apart_until = 0;
        }
        apart
    }

    /// Both sides are dealt with apart for a while, or together again.
    pub(super) fn set_apart(&mut self, apart: bool) {
        self.apart_until = if apart { ticks().wrapping_add(ticks_in(LONGEST)).max(1) } else { 0 };
    }

    /// The visit that began at `begun` is over.
    pub(super) fn end(&mut self, begun: u64) {
        if ticks().wrapping_sub(begun) > self.limit {
            self.was_slow(begun);
        }
    }

    #[cold]
    fn was_slow(&mut self, begun: u64) {
        let own = own_time(begun, true).unwrap_or(0);
        if own > self.limit {
            let long = own.saturating_mul(APART).clamp(ticks_in(SHORTEST), ticks_in(LONGEST));
            let now = ticks();
            let left = self.apart_until.wrapping_sub(now);
            // A shorter one behind a long one does not end that early.
            if self.apart_until == 0 || left > ticks_in(LONGEST) || left < long {
                self.apart_until = now.wrapping_add(long).max(1);
            }
        }
    }

    /// A walk begins with a batch that was fetched, or held.
    #[inline]
    pub(super) fn begin(&mut self) {
        self.deliveries = 0;
        (self.enters, self.passed) = (false, 0);
        self.leave_switch();
        self.forget_flows();
    }

    /// What is delivered now comes from no switch: it has no VLAN, and its sender is not isolated.
    pub(super) fn leave_switch(&mut self) {
        self.isolated = false;
        self.vlans.set_on(false);
    }

    /// What is delivered now is of another batch.
    pub(super) fn forget_flows(&mut self) {
        self.flows.known = [0; MAX_BATCH / 64];
    }

    /// What queue `queue` of `port` has room for. `None`: there is no telling.
    #[inline]
    pub(super) fn room(&mut self, port: &Port, queue: usize) -> Option<Room> {
        // Frames for a port that rests, or that another core is busy with, wait as for a receiver without
        // buffers.
        let none = Some(Room { free: 0, size: 1 });
        if port.overrun.rests() {
            return none;
        }
        Some(self.ask(port, queue, Some(none), |queue| queue.room())??.within(port.queue()))
    }

    /// What `look` finds at queue `queue` of `port`, in whose memory it may have to look: the time for that
    /// is its own. `busy` if another core stands still there.
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
        match self.apart && plugged.is_timed() {
            true => Some(port.overrun.timed(Act::Touch, || look(plugged))),
            false => Some(look(plugged)),
        }
    }

    pub(super) fn count_drops(&mut self, port: &Port, reasons: impl Iterator<Item = DropReason>) {
        let mut outcome = Outcome::new();
        outcome.trace = (!E::LIVE).then(Vec::new);
        reasons.for_each(|reason| outcome.dropped(0, reason));
        self.settle(port, &outcome);
    }

    /// `port` has caused so many more frames.
    pub(super) fn made(&self, port: &Port, frames: usize) {
        if E::LIVE {
            port.counters.block(self.core).add_made(frames as u64);
        }
    }

    /// Delivers what the `verdicts` say of `batch`, which came from `source`, but nothing to the ports `but`.
    #[inline]
    pub(super) fn spread(
        &mut self,
        source: Source<'_>,
        batch: &Batch,
        verdicts: &mut Verdicts,
        but: &[PortId],
    ) {
        for id in verdicts.used.iter().map(|id| PortId(*id)).filter(|id| !but.contains(id)) {
            if verdicts.is_all_for_one(batch) {
                self.picks.clear();
                self.picks.extend_from_slice(&ALL[..batch.len()]);
            } else {
                verdicts.picks_alone(id, &mut self.picks);
            }
            self.visit(source, id, batch);
        }
        if verdicts.seconds() > 0 {
            self.second_copies(source, batch, verdicts);
        }
    }

    /// Delivers frames that go to several ports to those beside the first: their addresses are claimed by
    /// another port, or held (`switch::table`).
    #[cold]
    fn second_copies(&mut self, source: Source<'_>, batch: &Batch, verdicts: &mut Verdicts) {
        self.made(source.port, verdicts.seconds());
        while let Some(id) = verdicts.take_seconds(&mut self.picks) {
            self.visit(source, id, batch);
        }
    }

    /// Delivers frames that a router made, each to its port; they count as made at the port whose batch gave
    /// rise to them. All that one port gets are one delivery, which ends when its time is up.
    #[inline]
    pub(super) fn spread_made(&mut self, source: Source<'_>, out: &RewriteBuffer) {
        let (made, to) = out.made();
        if made.is_empty() {
            return;
        }
        self.made(source.port, to.len());
        self.forget_flows();
        for (at, id) in to.iter().enumerate().filter(|(at, id)| !to.iter().take(*at).any(|it| it == *id)) {
            self.picks.clear();
            let its = ALL.iter().zip(to).skip(at).filter(|(_, other)| *other == id);
            self.picks.extend(its.map(|(pick, _)| *pick));
            self.visit(source, *id, made);
        }
    }

    /// Delivers `self.picks` of `batch` to port `id`: to its queues, to the work list if it is a gateway, or
    /// to members if it is a group's interface.
    #[inline]
    pub(super) fn visit(&mut self, source: Source<'_>, id: PortId, batch: &Batch) {
        if self.picks.is_empty() {
            return;
        }
        let picks = std::mem::take(&mut self.picks);
        self.deliveries += picks.len();
        let picked = batch.only(&picks);
        match source.topology.get(id) {
            Some(member) if member.port.is_silent() => {
                self.refuse(&member.port, picked, DropReason::LinkDown);
            }
            Some(member) if (member.at_egress || self.vlans.is_on()) && !self.leaves_by(member) => {
                self.egress(source, member, picked);
            }
            Some(member) => self.reach(source, member, picked),
            None => self.count_drops(source.port, picks.iter().map(|_| DropReason::NoDestination)),
        }
        self.picks = picks;
    }

    /// What a router gives to its gateway goes through that's stages where it leaves (`Walk::at_gateway`).
    fn leaves_by(&self, member: &Member) -> bool {
        !self.enters && matches!(member.attach, Attach::Gateway(..))
    }

    /// Hands `picked` frames, which its policy lets through, to what `member` is.
    #[inline]
    pub(super) fn reach(&mut self, source: Source<'_>, member: &Member, picked: Picked<'_>) {
        if !E::LIVE {
            let fate = match &member.attach {
                _ if picked.picks.is_empty() => return,
                _ if !source.topology.ports.is_up(member.port.id) => Fate::Dropped(DropReason::LinkDown),
                Attach::Interface(_) => Fate::Shared,
                Attach::Gateway(..) if self.enters => return self.wait(member, picked),
                _ => Fate::Out,
            };
            return self.effects.step(member.port.id, fate, String::new);
        }
        match &member.attach {
            attach if !attach.goes_on() => match picked.batch.any_offload {
                true => self.across(&member.port, picked),
                false => self.send(&member.port, picked),
            },
            Attach::Interface(interface) => self.reach_members(source, (&member.port, interface), picked),
            _ => self.wait(member, picked),
        }
    }

    /// Has `picked` frames, which came to gateway `at`, wait for the next round of the walk.
    #[cold]
    fn wait(&mut self, at: &Member, picked: Picked<'_>) {
        let stop = Stop { gateway: at.port.id, enters: self.enters, passed: self.passed };
        let left = self.work.take(picked, stop);
        if !left.is_empty() {
            self.refuse(&at.port, picked.batch.only(left), DropReason::Reentry);
        }
    }

    /// Delivers `picked` frames, which came from `source`, to the members behind `interface`, that of port
    /// `at`.
    #[inline(never)]
    fn reach_members(
        &mut self,
        source: Source<'_>,
        (at, interface): (&Port, &Interface),
        picked: Picked<'_>,
    ) {
        let Picked { batch, picks } = picked;
        let up = || interface.members(|port| source.topology.ports.is_up(port));
        let sorted = interface.group.sort(picked, &interface.own, self.core, interface.members(|_| true), up);
        let mut mine = std::mem::take(&mut self.by_member);
        mine.clear();
        if sorted.lost {
            mine.extend(sorted.lost(true, picks));
            self.refuse(at, batch.only(&mine), DropReason::NoMember);
            mine.clear();
            mine.extend(sorted.lost(false, picks));
        } else {
            mine.extend_from_slice(picks);
        }
        let mut outcome = Outcome::new();
        mine.iter().for_each(|pick| outcome.delivered(batch.frame(*pick).len));
        at.counters.block(self.core).add_outcome(&outcome);
        at.capture.egress(batch.only(&mine), &[]);
        if sorted.made > 0 {
            source.port.counters.block(self.core).add_made(sorted.made);
        }
        // They are counted with what each member gets.
        self.deliveries -= picks.len();
        std::mem::swap(&mut self.picks, &mut mine);
        // A member's gateway is no port of the router that may have sent them here.
        let enters = std::mem::replace(&mut self.enters, true);
        for (number, port) in interface.ports.iter().filter(|(number, _)| sorted.goes_to(*number)) {
            self.picks.clear();
            match sorted.is_for_one() {
                true => self.picks.extend_from_slice(picks),
                false => self.picks.extend(sorted.of(*number, picks)),
            }
            self.visit(source, *port, batch);
        }
        self.enters = enters;
        std::mem::swap(&mut self.picks, &mut mine);
        self.by_member = mine;
    }

    /// Delivers frames that may need more than the receiver accepts.
    #[cold]
    fn across(&mut self, port: &Port, picked: Picked<'_>) {
        let accepts = port.accepts();
        let fits = |pick: &u16| {
            let offload = picked.batch.frame(*pick).offload;
            offload.required().without(accepts) == Offloads::NONE
        };
        let mut rest = picked;
        while let Some(first) = rest.picks.first() {
            let same = fits(first);
            let (now, later) = rest.split_at(rest.picks.iter().take_while(|pick| fits(pick) == same).count());
            if same {
                self.send(port, now);
            } else {
                self.convert(port, now);
            }
            rest = later;
        }
    }

    /// Delivers frames of which each needs something that the receiver does not accept.
    fn convert(&mut self, port: &Port, Picked { batch, picks }: Picked<'_>) {
        let mut boundary = std::mem::take(&mut self.boundary);
        for &pick in picks {
            let frame = batch.frame(pick);
            let queue = self.flows.queue(queues_of(port), batch, pick).into();
            if port.overrun.rests() {
                self.refuse(port, batch.only(&[pick]), DropReason::Overrun);
                continue;
            }
            // For a full queue nothing is cut or summed. In one where another core stands still, `hand_over`
            // drops the frames.
            if self.ask(port, queue, Some(false), |queue| queue.is_full()) == Some(true) {
                self.refuse(port, batch.only(&[pick]), DropReason::RingFull);
                continue;
            }
            // All that is made of it goes the way of its flow.
            let made =
                boundary.convert(batch, frame, port.accepts(), |plain| self.send_to(port, queue, plain));
            match made {
                Ok(made) => port.counters.block(self.core).add_made(made.saturating_sub(1)),
                Err(_) => self.refuse(port, batch.only(&[pick]), DropReason::CannotSegment),
            }
        }
        self.boundary = boundary;
    }

    /// Hands `picked` frames to the queues of `port`.
    #[inline]
    fn send(&mut self, port: &Port, picked: Picked<'_>) {
        // Read once for all frames: queues come and go meanwhile, and two readings could give a frame to two
        // queues or to none. Frames for a queue that is gone by then are counted as drops by `hand_over`.
        let queues = queues_of(port);
        if queues <= 1 {
            return self.send_to(port, 0, picked);
        }
        let Picked { batch, picks } = picked;
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
            self.send_to(port, usize::from(queue), batch.only(&mine));
        }
        self.by_queue = mine;
    }

    /// Hands `picked` frames to queue `queue` of `port`, unless the port rests for its overruns.
    #[inline]
    fn send_to(&mut self, port: &Port, queue: usize, picked: Picked<'_>) {
        if port.overrun.rests() {
            self.refuse(port, picked, DropReason::Overrun);
        } else if self.apart {
            self.send_apart(port, queue, picked);
        } else {
            self.hand_over(port, queue, picked);
        }
    }

    /// Hands `picked` frames to queue `queue` of `port` from private memory, a few at a time: what that takes
    /// is the port's own time.
    #[cold]
    fn send_apart(&mut self, port: &Port, queue: usize, picked: Picked<'_>) {
        let Some(mut private) = self.private.take() else { return };
        let mut rest = picked;
        while !rest.picks.is_empty() {
            if port.overrun.rests() {
                self.refuse(port, rest, DropReason::Overrun);
                break;
            }
            rest = self.sender.timed(Act::Touch, || private.fill(rest));
            let more = self.hand_over(port, queue, private.batch.all());
            self.others_ns += u64::try_from(time_of(more).as_nanos()).unwrap_or(u64::MAX);
        }
        self.private = Some(private);
    }

    /// Drops `picked` frames, which were for `port`: counted and captured there.
    #[cold]
    pub(super) fn refuse(&mut self, port: &Port, picked: Picked<'_>, why: DropReason) {
        let mut outcome = self.outcome(port);
        outcome.dropped_all(picked.picks, why);
        self.settle(port, &outcome);
        if let (Some(drops), true) = (&outcome.trace, E::LIVE) {
            port.capture.egress(picked, drops);
        }
    }

    /// Hands `picked` frames to queue `queue` of `port`, under the queue's lock, and counts what became of
    /// them. Returns the ticks that were entered as the port's overrun, if both sides are dealt with apart.
    #[inline]
    fn hand_over(&self, port: &Port, queue: usize, picked: Picked<'_>) -> u64 {
        let Picked { batch, picks } = picked;
        let mut outcome = Outcome::new();
        let mut more = 0;
        outcome.trace = port.capture.is_on().then(Vec::new);
        match port.reach(queue) {
            Reached::Slot(mut slot) => match &mut *slot {
                Some(plugged) => {
                    if plugged.is_timed() {
                        outcome.begin(self.limit.saturating_add(of_bytes(batch, picks)));
                    }
                    let begun = outcome.begun;
                    let picks = match port.queue() {
                        u32::MAX => picks,
                        most => within(most, plugged, picks, &mut outcome),
                    };
                    // The receiver's device copies, publishes and interrupts (`EgressQueue::send`).
                    plugged.send(batch, picks, &mut outcome);
                    if self.apart && plugged.is_timed() {
                        more = port.overrun.took(Act::Touch, begun);
                    }
                    // These counters have one writer at a time: the core that holds the queue's lock.
                    port.interrupts.egress(queue, outcome.occasions, outcome.interrupts);
                }
                None => outcome.dropped_all(picks, DropReason::LinkDown),
            },
            Reached::Busy => outcome.dropped_all(picks, DropReason::ReceiverBusy),
            Reached::Nowhere => outcome.dropped_all(picks, DropReason::LinkDown),
        }
        port.counters.block(self.core).add_outcome(&outcome);
        if let Some(drops) = &outcome.trace {
            port.capture.egress(picked, drops);
        }
        more
    }
}

/// Those of `picks` with which no more than `most` frames wait in `queue`. The others are dropped.
#[cold]
fn within<'p>(most: u32, queue: &mut Plugged, picks: &'p [u16], outcome: &mut Outcome) -> &'p [u16] {
    let Some(room) = queue.room() else { return picks };
    let (now, rest) = picks.split_at(picks.len().min(room.within(most).free as usize));
    outcome.dropped_all(rest, DropReason::QueueFull);
    now
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
pub(super) fn queues_of(port: &Port) -> usize {
    port.egress_queues().min(MAX_QUEUES)
}

/// The flows of a batch's frames.
pub(super) struct Flows {
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
    pub(super) fn queue(&mut self, queues: usize, batch: &Batch, pick: u16) -> u8 {
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
