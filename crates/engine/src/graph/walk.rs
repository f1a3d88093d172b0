//! The walk of a batch through the graph: from node to node, until all of its frames are out.
//!
//! Theory of operation. A batch comes to a *node*: a wire, a switch or a router. The node decides where each
//! frame goes ([`Verdicts`]), and each destination is visited once with its frames (`deliver`). A destination
//! is a port with egress queues, or a *gateway*: a router's port of kind `switch` or `router`, which is an
//! interface of the router, and a port without a device on the switch or behind a group's interface. Frames
//! for a gateway go to the next node within the same visit. They wait in the work list (`work`) as copies of
//! their descriptions, and the walk comes to them when their batch has been dealt with. So no call leads into
//! a call of its own kind, and the stack does not grow with the way. The bodies are not copied: there is
//! still one copy to each receiver. A router changes only heads of copies, so other receivers of a frame do
//! not see the changes.
//!
//! The work list is taken in rounds. Who put a frame there knows its direction: what a switch or a group
//! gives to a gateway enters its router, and what the router itself or its control plane gives to it leaves.
//! What leaves comes to a switch, or out of the group's interface to what is beyond that.
//!
//! Bounded: a frame passes [`ROUTERS`] routers at most, where a wire counts as one, and the work list has an
//! end. A frame beyond either is dropped as `reentry` at the gateway that it came to. So a circle of switches
//! and routers holds a core for [`ROUTERS`] times as long as one router at most, and the sender is charged
//! for that. Frames that routers make on the way lie in one rewrite buffer. Its memory is not used again
//! before the walk ends: a frame made in one round may still be on its way in the last.
//!
//! Each router on the way has limits, and parts of them for those who send (`router/limit.rs`). Whoever sent
//! the batch has its own part at all of these routers: what guests behind one router cause at the next one
//! takes nothing from each other, nor from what the control planes of the two say to each other.
//!
//! A batch from a member of a group comes to the node of the group's interface, as if that had sent it,
//! whether it was fetched or leaves a router.
//!
//! At a gateway's port, frames that enter the router are counted and captured as coming in, and those that
//! leave it as going out.

use std::sync::{Arc, LazyLock, Mutex};
use std::time::Instant;

use super::deliver::Delivery;
use super::effects::{Dry, Effects, Fate, Step};
use super::group::Probes;
use super::topology::{Attach, Member, Source, Topology};
use super::wire::{self, WireGate};
use super::work::{Stage, Stop};
use super::{group, switch};
use crate::mem::Arena;
use crate::observe::account::{Outcome, Tally};
use crate::packet::{Batch, Offload, HEAD};
use crate::port::{DropReason, Port, PortId};
use crate::router::{Now, RewriteBuffer, Router, RouterContext};
use crate::switch::{Members, Sender, Switch, Verdicts};

/// Routers that a frame passes within one visit, at most.
pub(super) const ROUTERS: u8 = 16;

/// What a batch comes to.
#[derive(Clone, Copy)]
enum Node<'t> {
    /// Nothing takes its frames, and why not.
    Nowhere(DropReason),
    Wire(PortId),
    /// A switch, with the port on it by which they come.
    Switch(&'t Switch, &'t Member),
    Router(&'t Arc<Router>),
}

impl<'t> Node<'t> {
    /// That to which the frames of port `member` go, which is attached to `attach`.
    #[inline]
    fn of(member: &'t Member, attach: &'t Attach) -> Node<'t> {
        match attach {
            // Gateways and interfaces of groups have no queues.
            Attach::Nothing | Attach::Gateway(..) | Attach::Interface(_) | Attach::Behind(..) => {
                Node::Nowhere(DropReason::NoDestination)
            }
            Attach::Wire(peer) => Node::Wire(*peer),
            Attach::Switch(switch) => Node::Switch(switch, member),
            Attach::Router(router) => Node::Router(router),
        }
    }
}

/// How a batch came to a node.
struct Came<'t> {
    /// By which port, and who sent it, however many nodes it has passed since.
    by: Source<'t>,
    sender: PortId,
    /// What holds its frames on a wire to a receiver with several queues.
    gate: Option<&'t mut WireGate>,
    /// It comes in by the port, and passes the stages of *in*. What leaves a router by its gateway has passed
    /// those of *out*.
    enters: bool,
}

/// What one core needs to take batches through the graph: all memory is there from the start.
pub(super) struct Walk<E> {
    core: usize,
    epoch: Instant,
    verdicts: Verdicts,
    floods: switch::Floods,
    rewrites: RewriteBuffer,
    /// What the core has of the topology's routers.
    pub(super) routers: Vec<RouterContext>,
    pub(super) delivery: Delivery<E>,
    /// The other work list, which takes turns with `delivery.work`: what waits there is swapped in here when
    /// a round begins, and new frames for gateways go there. None while a round is under way.
    round: Option<Box<Stage>>,
    /// For those frames of a member's batch that may come out of its group. None while they are on their way.
    kept: Option<Box<Batch>>,
}

impl<E: Effects> Walk<E> {
    pub(super) fn new(core: usize, epoch: Instant) -> Walk<E> {
        Walk {
            core,
            epoch,
            verdicts: Verdicts::default(),
            floods: switch::Floods::new(),
            rewrites: RewriteBuffer::for_routers(ROUTERS.into()),
            routers: Vec::new(),
            delivery: Delivery::new(core),
            round: Some(Box::new(Stage::new())),
            kept: Some(Box::new(Batch::new())),
        }
    }

    /// Takes `batch`, which came from a queue of `source`, through the graph; the `gate` holds frames that
    /// have to wait on their wire. Returns how many frames were handed to ports: more than the batch has, if
    /// some went to several.
    pub(super) fn forward(
        &mut self,
        source: Source<'_>,
        batch: &mut Batch,
        gate: Option<&mut WireGate>,
    ) -> usize {
        self.begin();
        let Source { topology, port } = source;
        if topology.looks_inside {
            self.see_through(port, batch);
        }
        let came = Came { by: source, sender: port.id, gate, enters: true };
        match topology.get(port.id) {
            Some(Member { attach: Attach::Behind(interface, number), .. }) if !port.is_silent() => {
                self.out_of_group(came, (*interface, *number), batch);
            }
            member => {
                // A port that is being removed is not in the topology any more, while its queues may still be
                // served.
                let node = match member {
                    _ if port.is_silent() => Node::Nowhere(DropReason::LinkDown),
                    None => Node::Nowhere(DropReason::NoDestination),
                    Some(member) => Node::of(member, &member.attach),
                };
                self.pass(node, came, batch);
            }
        }
        if !self.delivery.work.is_empty() {
            self.go_on(source);
        }
        self.delivery.deliveries
    }

    /// From now on what stages look at in the frames of `batch` cannot be changed any more by `source`.
    fn see_through(&mut self, source: &Port, batch: &mut Batch) {
        let Delivery { picks, .. } = &mut self.delivery;
        picks.clear();
        let mut outcome = Outcome::new();
        batch.see_through(|pick, why| {
            picks.push(pick);
            outcome.trace.get_or_insert_default();
            outcome.dropped(
                pick,
                if why.is_some() { DropReason::BadOffload } else { DropReason::TooManyPieces },
            );
        });
        if let Some(drops) = &outcome.trace {
            source.capture.ingress(batch.only(picks), drops);
            batch.retain(|pick| picks.binary_search(&pick).is_err());
            self.delivery.settle(source, &outcome);
        }
    }

    /// Takes `batch`, which came by the port of member `number` of a group, out of the group's interface at
    /// port `at`. Probes, and some frames that resolve addresses, may not leave: then the others go on as
    /// copies of their descriptions.
    #[inline(never)]
    fn out_of_group(&mut self, came: Came<'_>, (at, number): (PortId, u8), batch: &mut Batch) {
        let Some((member, interface)) = came.by.topology.interface(at) else {
            return self.pass(Node::Nowhere(DropReason::NoDestination), came, batch);
        };
        let out = Came { by: came.by.at(&member.port), gate: None, enters: true, ..came };
        let node = match member.port.is_silent() {
            true => Node::Nowhere(DropReason::LinkDown),
            false => Node::of(member, &interface.beyond),
        };
        let Walk { verdicts, delivery, .. } = self;
        verdicts.clear();
        if group::any_judged(batch, &interface.own) {
            let drop = |frame, why| verdicts.drop(frame, why);
            interface.group.judge(batch, &interface.own, number, &mut delivery.picks, E::LIVE, drop);
        }
        if came.enters && E::LIVE {
            came.by.port.capture.ingress(batch.all(), &verdicts.drops);
        }
        if verdicts.drops.is_empty() {
            return self.leave(node, out, batch);
        }
        delivery.count_drops(came.by.port, verdicts.drops.iter().map(|(_, reason)| *reason));
        if let Some(mut kept) = self.kept.take() {
            kept.clear();
            for pick in &self.delivery.picks {
                let frame = batch.frame(*pick);
                // One batch has room for what another had.
                kept.push_described(frame, batch.body(frame));
            }
            self.leave(node, out, &mut kept);
            self.kept = Some(kept);
        }
    }

    /// Has `batch`, which `came` by an interface of a group, go on to `node`.
    fn leave(&mut self, node: Node<'_>, came: Came<'_>, batch: &mut Batch) {
        if E::LIVE {
            came.by.port.counters.block(self.core).add_tally(&came_in(batch));
        }
        self.delivery.effects.step(came.by.port.id, Fate::Passes, || "out of its group".to_owned());
        self.pass(node, came, batch);
    }

    /// Gives `probes` to those of their members that are still there, each as all of a `batch`.
    pub(super) fn probe(&mut self, topology: &Topology, mut probes: Probes, batch: &mut Batch) {
        let Some((_, interface)) = topology.interface(probes.at) else { return };
        probes.each(&interface.group.probes, batch, |member, batch| {
            let its = interface.ports.iter().find(|(other, _)| *other == member);
            let Some(Member { port, .. }) = its.and_then(|(_, port)| topology.get(*port)) else { return };
            let begun = self.delivery.start(&port.overrun);
            self.begin();
            self.delivery.enters = true;
            self.delivery.picks.clear();
            self.delivery.picks.push(0);
            port.counters.block(self.core).add_made(1);
            let source = Source { topology, port };
            self.delivery.visit(source, port.id, batch);
            if !self.delivery.work.is_empty() {
                self.go_on(source);
            }
            self.delivery.end(begun);
        });
    }

    #[inline]
    fn begin(&mut self) {
        self.delivery.begin();
        if !self.routers.is_empty() {
            self.rewrites.clear();
        }
    }

    /// Delivers what the `gate` holds of `batch`, which came from `source`, as far as there is room; all of
    /// it if it has waited long enough and passes in any case.
    pub(super) fn again(
        &mut self,
        source: Source<'_>,
        batch: &Batch,
        gate: &mut WireGate,
        in_any_case: bool,
    ) {
        self.begin();
        gate.again(&mut self.delivery.picks);
        let receiver = wire::receiver(source);
        if let (Some(port), false) = (receiver, in_any_case) {
            gate.pass(&mut self.delivery, port, batch);
        }
        match receiver {
            Some(port) => {
                self.delivery.visit(source, port.id, batch);
                // The wire leads to a gateway now: nothing of the batch may be left behind when it is given
                // back.
                if !self.delivery.work.is_empty() {
                    self.go_on(source);
                }
            }
            // The wire is gone.
            None => {
                let held = self.delivery.picks.len();
                self.delivery.count_drops(source.port, (0..held).map(|_| DropReason::NoDestination));
            }
        }
    }

    /// Has `node` decide on `batch`, and delivers its frames.
    #[inline]
    fn pass(&mut self, node: Node<'_>, came: Came<'_>, batch: &mut Batch) {
        let Walk { core, epoch, verdicts, floods, rewrites, delivery, .. } = self;
        let Came { by, sender, gate, enters } = came;
        let Source { topology, port } = by;
        let node = match node {
            Node::Router(_) | Node::Wire(_) if delivery.passed >= ROUTERS => {
                Node::Nowhere(DropReason::Reentry)
            }
            node => node,
        };
        // A wire that leads to a gateway is its control plane's.
        let on_switch = matches!(node, Node::Switch(..));
        delivery.enters = on_switch;
        delivery.passed += u8::from(!on_switch);
        verdicts.clear();
        delivery.leave_switch();
        let policy = topology.get(port.id).and_then(|member| member.policy.as_deref());
        match (enters, policy) {
            (true, policy) => delivery.come_in(policy, port, batch, on_switch),
            (false, Some(policy)) => delivery.enter(policy, batch, on_switch),
            (false, None) => {}
        }
        if batch.is_empty() {
            return;
        }
        match node {
            Node::Nowhere(why) => (0..batch.len()).for_each(|frame| verdicts.drop(frame, why)),
            Node::Wire(_) => wire::decide(delivery, by, batch, gate),
            Node::Switch(switch, at) => {
                let members = Members { here: &at.everybody, all: &topology.ports };
                let from = Sender { port: &at.port, policy: at.policy.as_deref(), vlans: &delivery.vlans };
                let now = E::LIVE.then(|| seconds(*epoch));
                switch.classify(batch, from, now, members, verdicts);
                if verdicts.any_flood() {
                    floods.find(topology, at, sender, batch, delivery, verdicts);
                }
                if !E::LIVE {
                    let vlan = delivery.vlans.of(0).number();
                    topology.switched((at, switch), batch, vlan, verdicts, &floods.to, &mut delivery.effects);
                }
            }
            Node::Router(router) if !E::LIVE => {
                return delivery.effects.step(port.id, Fate::Routed(Arc::clone(router)), String::new);
            }
            Node::Router(router) => {
                // Frames are captured as they came, but for tags that only tell a priority.
                batch.take_priorities();
                let now = Now { seconds: seconds(*epoch), epoch: *epoch, core: *core, sender };
                match self.routers.iter_mut().find(|context| context.is_of(router)) {
                    Some(context) => context.decide(batch, port, &now, rewrites, verdicts),
                    None => (0..batch.len()).for_each(|it| verdicts.drop(it, DropReason::NoDestination)),
                }
            }
        }
        if enters {
            if E::LIVE {
                port.capture.ingress(batch.all(), &verdicts.drops);
            }
            if policy.is_some_and(|policy| policy.copies(0).is_some()) {
                delivery.mirror_all(by, policy, batch, &verdicts.drops);
            }
        }
        match node {
            Node::Nowhere(_) => {}
            Node::Wire(peer) => delivery.visit(by, peer, batch),
            Node::Switch(..) if verdicts.any_flood() => floods.spread(delivery, by, batch, verdicts),
            Node::Switch(..) => delivery.spread(by, batch, verdicts, &[]),
            Node::Router(_) => {
                rewrites.rewrite(batch);
                delivery.spread(by, batch, verdicts, &[]);
                delivery.spread_made(by, rewrites);
            }
        }
        if !verdicts.drops.is_empty() {
            delivery.count_drops(port, verdicts.drops.iter().map(|(_, reason)| *reason));
        }
    }

    /// Takes what waits in the work list through the next nodes, and so on until nothing waits any more.
    #[cold]
    fn go_on(&mut self, sender: Source<'_>) {
        let Some(mut round) = self.round.take() else { return };
        while !self.delivery.work.is_empty() {
            std::mem::swap(&mut self.delivery.work, &mut round);
            round.each(|stop, batch| {
                if let Some(at) = sender.topology.get(stop.gateway) {
                    self.at_gateway(sender, (at, stop), batch);
                }
            });
        }
        self.round = Some(round);
    }

    /// Has the frames of `batch` enter the router of gateway `at`, or leave it for the switch or the group,
    /// as `stop` says.
    fn at_gateway(&mut self, sender: Source<'_>, (at, stop): (&Member, Stop), batch: &mut Batch) {
        let Attach::Gateway(router, beyond) = &at.attach else { return };
        self.delivery.forget_flows();
        self.delivery.passed = stop.passed;
        self.rewrites.next();
        let counters = at.port.counters.block(self.core);
        let by = sender.at(&at.port);
        let came = Came { by, sender: sender.port.id, gate: None, enters: stop.enters };
        if stop.enters {
            if E::LIVE {
                counters.add_tally(&came_in(batch));
            }
            return self.pass(Node::Router(router), came, batch);
        }
        self.delivery.leave_router(at, batch);
        let tally = came_in(batch);
        let mut outcome = Outcome::new();
        (outcome.frames, outcome.bytes) = (tally.frames, tally.bytes);
        counters.add_outcome(&outcome);
        at.port.capture.egress(batch.all(), &[]);
        let policy = at.policy.as_deref();
        self.delivery.mirror(by, policy, 1, batch.all());
        match **beyond {
            Attach::Behind(interface, number) => self.out_of_group(came, (interface, number), batch),
            _ => self.pass(Node::of(at, beyond), came, batch),
        }
    }
}

/// The walk of those who ask, whose memory is as much as a core's.
static DRY: LazyLock<Mutex<Walk<Dry>>> = LazyLock::new(|| Mutex::new(Walk::new(0, Instant::now())));

impl Topology {
    /// What would become of `frame`, without its FCS, if it came in by port `from` now: the steps in their
    /// order.
    pub fn explain(&self, from: PortId, frame: &[u8]) -> Vec<Step> {
        let Some(member) = self.get(from) else {
            let why = String::new();
            return vec![Step { port: from, fate: Fate::Dropped(DropReason::NoDestination), why }];
        };
        let mut batch = Batch::new();
        let mut arena = Arena::new(1, frame.len());
        let far = arena.put(0, frame, frame.len().min(HEAD));
        batch.push_with(frame, frame.len(), Offload::NONE, |to| frame.len() <= HEAD || to.push(far));
        let walk = &mut *crate::lock(&DRY);
        walk.forward(Source { topology: self, port: &member.port }, &mut batch, None);
        std::mem::take(&mut walk.delivery.effects).steps
    }
}

/// All frames of `batch`, as what a port without queues has fetched.
fn came_in(batch: &Batch) -> Tally {
    let bytes = batch.frames().iter().map(|frame| u64::from(frame.len)).sum();
    Tally { frames: batch.len() as u64, bytes, ..Tally::default() }
}

/// The clock of the MAC table: seconds since the engine started, from 1 on.
pub(super) fn seconds(epoch: Instant) -> u32 {
    u32::try_from(epoch.elapsed().as_secs()).unwrap_or(u32::MAX - 1) + 1
}

#[cfg(test)]
mod tests;
