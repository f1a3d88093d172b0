//! What the graph would do with a frame.
//!
//! Theory of operation. The frame is followed from its port as the walk does it (`walk`), and each decision is made by the function that
//! makes it there: the guard's, the access list's, the switch's, the receiver's policy's. But nothing is learned, counted, delivered or taken from
//! a limit: a rate or a storm limit may still drop the frame, and its receiver may have no room. A router or a group is where it ends;
//! what a router does with the packet, its control plane tells (`router/control`).

use std::sync::Arc;

use super::deliver::Delivery;
use super::topology::{Attach, Member, Topology};
use crate::mem::Arena;
use crate::packet::{is_group, Batch, Fields, Offload, HEAD};
use crate::policy::acl::{Acl, Headers};
use crate::policy::Form;
use crate::port::{DropReason, PortId};
use crate::router::Router;
use crate::switch::{Members, Sender, Switch, Verdicts};

/// What becomes of a frame at a port.
pub enum Fate {
    /// It goes on.
    Passes,
    /// It is dropped, and counted here.
    Dropped(DropReason),
    /// It leaves by the port.
    Out,
    /// It comes to a router by the port.
    Routed(Arc<Router>),
    /// It is for a member of the group whose interface the port is.
    Shared,
}

/// One step of a frame.
pub struct Step {
    /// The port.
    pub port: PortId,
    /// What becomes of it there.
    pub fate: Fate,
    /// Why, where there is more to say: a rule, a VLAN, a station.
    pub why: String,
}

impl Topology {
    /// What would become of `frame`, without its FCS, if it came in by port `from`: the steps in their order.
    pub fn explain(&self, from: PortId, frame: &[u8]) -> Vec<Step> {
        let mut batch = Batch::new();
        let mut arena = Arena::new(1, frame.len());
        let far = arena.put(0, frame, frame.len().min(HEAD));
        let fits = batch
            .push_with(frame, frame.len(), Offload::NONE, |pieces| frame.len() <= HEAD || pieces.push(far));
        debug_assert!(fits);
        let mut way = Way { topology: self, delivery: Delivery::new(0), batch: &batch, steps: Vec::new() };
        way.comes(from);
        way.steps
    }
}

/// The way of one frame: the only one of the batch.
struct Way<'t> {
    topology: &'t Topology,
    delivery: Delivery,
    batch: &'t Batch,
    steps: Vec<Step>,
}

impl<'t> Way<'t> {
    fn step(&mut self, port: PortId, fate: Fate, why: impl Into<String>) {
        self.steps.push(Step { port, fate, why: why.into() });
    }

    fn dropped(&mut self, port: PortId, why: DropReason) {
        self.step(port, Fate::Dropped(why), "");
    }

    fn name(&self, id: PortId) -> &'t str {
        self.topology.get(id).map_or("", |member| &member.port.name)
    }

    /// It comes in by port `from`: `Walk::forward`.
    fn comes(&mut self, from: PortId) {
        let Some(at) = self.topology.get(from) else {
            return self.dropped(from, DropReason::NoDestination);
        };
        let behind = match at.attach {
            _ if at.port.is_silent() => None,
            Attach::Behind(interface, _) => self.topology.interface(interface),
            _ => return self.enters(at, &at.attach),
        };
        match behind {
            Some((member, interface)) if !member.port.is_silent() => {
                self.step(member.port.id, Fate::Passes, "out of its group");
                self.enters(member, &interface.beyond);
            }
            _ => self.dropped(from, DropReason::LinkDown),
        }
    }

    /// It comes by `at` to what that is attached to: `Walk::pass`.
    fn enters(&mut self, at: &'t Member, attach: &'t Attach) {
        let (batch, id) = (self.batch, at.port.id);
        if let Attach::Switch(_) = attach {
            self.delivery.enter_switch(at, batch);
        }
        let (guard, acl) =
            at.policy.as_ref().map_or((None, None), |it| (it.ip_guard.as_ref(), it.acl[0].as_ref()));
        if let Some(Err(why)) = guard.map(|guard| guard.admits(batch, batch.frame(0))) {
            return self.dropped(id, why);
        }
        if acl.is_some_and(|acl| !self.permits(id, acl)) {
            return;
        }
        match attach {
            Attach::Switch(switch) => self.switched(at, switch),
            Attach::Router(router) => self.step(id, Fate::Routed(Arc::clone(router)), ""),
            Attach::Wire(_) if at.port.is_too_long(batch.frame(0)) => self.dropped(id, DropReason::TooLong),
            Attach::Wire(peer) => self.leaves(at, *peer, false),
            Attach::Nothing | Attach::Gateway(..) | Attach::Interface(_) | Attach::Behind(..) => {
                self.dropped(id, DropReason::NoDestination);
            }
        }
        self.mirrored(at, 0);
    }

    /// The rule that decides, and whether it lets the frame pass.
    fn permits(&mut self, at: PortId, acl: &Acl) -> bool {
        let headers = Headers::of(self.batch, self.batch.frame(0), self.delivery.vlans.of(0).number());
        let number = acl.find(&headers);
        let rule =
            acl.rules().get(number).map_or("the default of its access list".to_owned(), ToString::to_string);
        let permits = acl.permits(number);
        self.step(at, if permits { Fate::Passes } else { Fate::Dropped(DropReason::Acl) }, rule);
        permits
    }

    /// It comes by `at` to a switch: `switch::decide`, and `Floods`.
    fn switched(&mut self, at: &'t Member, switch: &Switch) {
        let (topology, id) = (self.topology, at.port.id);
        let members = Members { here: &at.everybody, all: &topology.ports };
        let sender = Sender { port: &at.port, policy: at.policy.as_deref(), vlans: &self.delivery.vlans };
        let mut verdicts = Verdicts::default();
        switch.foresee(self.batch, sender, members, &mut verdicts);
        if let Some((_, why)) = verdicts.drops().first() {
            return self.dropped(id, *why);
        }
        let vlan = self.delivery.vlans.of(0).number();
        let place = if vlan == 0 { String::new() } else { format!(" of VLAN {vlan}") };
        if verdicts.any_flood() {
            let takes = |to: &PortId| {
                *to != id
                    && topology.ports.is_up(*to)
                    && topology.get(*to).is_some_and(|member| member.carries(vlan))
            };
            let to: Vec<PortId> = at.everybody.iter().copied().filter(takes).collect();
            if to.is_empty() {
                return self.dropped(id, DropReason::NoDestination);
            }
            let group =
                Fields::find(self.batch.frame(0).head()).is_some() && is_group(self.batch.frame(0).dst());
            let what = if group { "for a group" } else { "its destination is not known" };
            let ports = if to.len() == 1 { "the other port" } else { "all ports" };
            self.step(id, Fate::Passes, format!("{what}: to {ports}{place} of switch {}", switch.name));
            return to.into_iter().for_each(|to| self.leaves(at, to, true));
        }
        let mut to: Vec<PortId> = verdicts.destinations().iter().map(|id| PortId(*id)).collect();
        let mut picks = Vec::new();
        to.extend(std::iter::from_fn(|| verdicts.take_seconds(&mut picks)));
        let names: Vec<&str> = to.iter().map(|to| self.name(*to)).collect();
        let why = format!("switch {}: its destination{place} is behind {}", switch.name, names.join(" and "));
        self.step(id, Fate::Passes, why);
        to.into_iter().for_each(|to| self.leaves(at, to, true));
    }

    /// It is to leave by port `to`, and comes from a switch if it `enters` what is there: `Delivery::visit`.
    fn leaves(&mut self, from: &Member, to: PortId, enters: bool) {
        let Some(member) = self.topology.get(to) else {
            return self.dropped(from.port.id, DropReason::NoDestination);
        };
        if member.port.is_silent() || !self.topology.ports.is_up(to) {
            return self.dropped(to, DropReason::LinkDown);
        }
        let mut form = "";
        let judged = member.at_egress || self.delivery.vlans.is_on();
        if judged && (enters || !member.attach.goes_on()) {
            form = match self.delivery.judge(member, self.batch, 0) {
                Err(why) => return self.dropped(to, why),
                Ok(Some(Form::Tagged(_))) => "with a tag",
                Ok(Some(Form::Untagged)) => "without its tag",
                Ok(None) => "",
            };
            let acl = member.policy.as_ref().and_then(|policy| policy.acl[1].as_ref());
            let acl = acl.filter(|_| !matches!(member.attach, Attach::Gateway(..)));
            if acl.is_some_and(|acl| !self.permits(to, acl)) {
                return;
            }
        }
        match &member.attach {
            Attach::Interface(_) => self.step(to, Fate::Shared, form),
            Attach::Gateway(router, _) if enters => self.step(to, Fate::Routed(Arc::clone(router)), form),
            _ => self.step(to, Fate::Out, form),
        }
        self.mirrored(member, 1);
    }

    /// The mirror of `at` gets a copy, if it has one for what comes in by it (0) or goes out (1).
    fn mirrored(&mut self, at: &Member, way: usize) {
        let dropped = matches!(self.steps.last(), Some(Step { port, fate: Fate::Dropped(_), .. }) if *port == at.port.id);
        let mirror = at.policy.as_ref().and_then(|policy| policy.copies(way)).filter(|_| !dropped);
        let headers = Headers::of(self.batch, self.batch.frame(0), 0);
        let wanted = mirror.filter(|it| it.acl.as_ref().is_none_or(|acl| acl.permits(acl.find(&headers))));
        if let Some(mirror) = wanted.and_then(|it| self.topology.get(it.to)) {
            if !mirror.port.is_silent() && self.topology.ports.is_up(mirror.port.id) {
                self.step(mirror.port.id, Fate::Out, format!("a copy: mirror of {}", at.port.name));
            }
        }
    }
}
