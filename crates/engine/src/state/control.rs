//! Routers with a control plane: what such a router's ports bring along, and the threads that follow its routing daemon.
//!
//! Each port of a router with `control` has a port of kind `tap` beside it, which stands for it in the namespace: [`with_control`] adds
//! these, [`without_control`] takes them away. They run like others, have counters and captures, but they are no part of the
//! configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use super::cores::{station, CoreFabric};
use super::routes::RouterSpec;
use super::spec::{Joint, PortSpec, Spec};
use crate::control::{Config, ControlView, Session};

/// What stands behind a port's name in that of its port before the control plane.
const END: &str = ".control";

/// Seconds for which routes stay that the control plane does not say any more, unless it is said otherwise.
const GRACE: u32 = 120;

/// The port that stands for `port`, one of `router`'s, if the router has a control plane.
fn beside(router: &RouterSpec, port: &PortSpec) -> Option<PortSpec> {
    let netns = router.control.clone()?;
    Some(PortSpec {
        name: format!("{}{END}", port.name),
        kind: "tap".to_owned(),
        location: port.name.clone(),
        netns: Some(netns),
        control_of: Some(port.name.clone()),
        router_mac: Some(station(&router.name, port)),
        mtu: port.mtu,
        ..PortSpec::default()
    })
}

/// The ports that `spec`'s control planes have beside the others.
fn all(spec: &Spec) -> Vec<PortSpec> {
    let of = |port: &PortSpec| {
        let Joint::Router(name) = port.joint() else { return None };
        beside(spec.routers.iter().find(|router| router.name == name)?, port)
    };
    spec.ports.iter().filter_map(of).collect()
}

/// `spec` with the ports that its control planes have.
pub(super) fn with_control(mut spec: Spec) -> Spec {
    let more = all(&spec);
    spec.ports.extend(more);
    spec
}

/// `spec` without them.
pub(super) fn without_control(mut spec: Spec) -> Spec {
    spec.ports.retain(|port| port.control_of.is_none());
    spec
}

/// Whether `port` is one that a control plane of `spec` has.
pub(super) fn is_control(spec: &Spec, port: &PortSpec) -> bool {
    all(spec).contains(port)
}

/// The threads that follow the control planes.
#[derive(Default)]
pub(super) struct Controls(Mutex<BTreeMap<String, Session>>);

impl Controls {
    /// Has there be one for each router of `spec` with a control plane. What a control plane has said that is not wanted any more is
    /// forgotten.
    pub fn follow(&self, spec: &Spec, fabric: &Arc<CoreFabric>) {
        let mut sessions = crate::lock(&self.0);
        let mut before = std::mem::take(&mut *sessions);
        for wanted in &spec.routers {
            let (Some(namespace), Some((router, _))) = (&wanted.control, fabric.router(&wanted.name)) else {
                continue;
            };
            let grace = wanted.grace.map_or(GRACE, |grace| grace.get());
            let old = before.remove(&wanted.name).filter(|old| old.is(&router, namespace, grace));
            if let Some(old) = old {
                old.nudge();
                sessions.insert(wanted.name.clone(), old);
                continue;
            }
            let (clock, name) = (Arc::clone(fabric), wanted.name.clone());
            let clock = Box::new(move || clock.router(&name).map_or(0, |(_, now)| now));
            match Session::start(&router, Config { namespace: namespace.clone(), grace, clock }) {
                Ok(session) => drop(sessions.insert(wanted.name.clone(), session)),
                Err(e) => {
                    tracing::error!(router = %wanted.name, "nothing follows its control plane: no thread: {e}");
                }
            }
        }
        drop(before);
        for gone in spec.routers.iter().filter(|router| router.control.is_none()) {
            if let Some((router, now)) = fabric.router(&gone.name) {
                router.set_loopbacks(&BTreeSet::new(), now);
                router.next_generation();
                let mut next = router.sweep(None, now).1;
                while next.is_some() {
                    next = router.sweep(next, now).1;
                }
            }
        }
    }

    /// Ends all of them.
    pub fn end(&self) {
        drop(std::mem::take(&mut *crate::lock(&self.0)));
    }

    /// What that of router `name` shows at second `now`.
    pub fn view(&self, name: &str, now: u32) -> Option<ControlView> {
        let sessions = crate::lock(&self.0);
        sessions.get(name).map(|session| session.view(now))
    }
}
