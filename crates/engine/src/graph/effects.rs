//! What a walk does beside judging: everything, or nothing but telling.
//!
//! Theory of operation. The walk is written once, over [`Effects`] (`walk`, `stages`, `deliver`). That of an
//! I/O core is [`Live`]: it learns, counts, spends and delivers, and has no steps to tell.
//! `Topology::explain` has a walk of its own, which is [`Dry`]: the same functions judge one frame in the
//! same order, and each step is written down instead. A thousand questions change no counter, no table and no
//! bucket.
//!
//! Limits. A dry walk ends at a router or a group: what a router does with the packet, its control plane
//! tells (`router/control`). Whether the receiver has room and can segment is not asked.

use std::sync::Arc;

use super::topology::{Member, Topology};
use crate::packet::{is_group, Batch};
use crate::policy::acl::Acl;
use crate::port::{DropReason, PortId};
use crate::router::Router;
use crate::switch::{Switch, Verdicts};

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

/// What a walk does beside judging.
pub(super) trait Effects: Default {
    /// Tables, counters, buckets and receivers change.
    const LIVE: bool;

    /// This becomes of the frame at `port`; `why` says more.
    fn step(&mut self, _port: PortId, _fate: Fate, _why: impl FnOnce() -> String) {}

    /// More about the next step.
    fn note(&mut self, _why: impl FnOnce() -> String) {}

    /// Rule number `rule` of `acl` decided on the frame at `port`.
    fn ruled(&mut self, _port: PortId, _acl: &Acl, _rule: usize) {}
}

/// Everything is done.
#[derive(Default)]
pub(super) struct Live;

impl Effects for Live {
    const LIVE: bool = true;
}

/// Nothing is done, and all is told.
#[derive(Default)]
pub(super) struct Dry {
    pub(super) steps: Vec<Step>,
    about: String,
}

impl Effects for Dry {
    const LIVE: bool = false;

    fn step(&mut self, port: PortId, fate: Fate, why: impl FnOnce() -> String) {
        let mut why = why();
        let about = std::mem::take(&mut self.about);
        if why.is_empty() {
            why = about;
        }
        self.steps.push(Step { port, fate, why });
    }

    fn note(&mut self, why: impl FnOnce() -> String) {
        self.about = why();
    }

    fn ruled(&mut self, port: PortId, acl: &Acl, rule: usize) {
        let text =
            acl.rules.get(rule).map_or("the default of its access list".to_owned(), ToString::to_string);
        match acl.permits(rule) {
            true => self.step(port, Fate::Passes, || text),
            false => self.about = text,
        }
    }
}

impl Topology {
    /// What `switch` decided on the only frame of a batch, which came by `at` and is in VLAN `vlan`; `flood`
    /// are the ports that get it, if it is flooded.
    pub(super) fn switched(
        &self,
        (at, switch): (&Member, &Switch),
        frame: &Batch,
        vlan: u16,
        verdicts: &Verdicts,
        flood: &[PortId],
        effects: &mut impl Effects,
    ) {
        let place = if vlan == 0 { String::new() } else { format!(" of VLAN {vlan}") };
        let name = &switch.name;
        let why = if verdicts.any_flood() {
            let what =
                if is_group(frame.frame(0).dst()) { "for a group" } else { "its destination is not known" };
            let ports = if flood.len() == 1 { "the other port" } else { "all ports" };
            format!("{what}: to {ports}{place} of switch {name}")
        } else if verdicts.drops.is_empty() {
            let to = verdicts.used.iter().map(|id| PortId(*id)).chain(verdicts.beside());
            let names: Vec<&str> = to.filter_map(|id| Some(&*self.get(id)?.port.name)).collect();
            format!("switch {name}: its destination{place} is behind {}", names.join(" and "))
        } else {
            return;
        };
        effects.step(at.port.id, Fate::Passes, || why);
    }
}
