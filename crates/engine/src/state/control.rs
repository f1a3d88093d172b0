//! Routers with a control plane: what such a router's ports bring along. `Engine::new` is told who follows
//! its routing daemon.
//!
//! Each port of a router with `control` has a port of kind `tap` beside it, which stands for it in the
//! namespace: [`with_control`] adds these, [`without_control`] takes them away. They run like others, have
//! counters and captures, but they are no part of the configuration.

use super::cores::station;
use super::routes::RouterSpec;
use super::spec::{PortSpec, Spec};

/// What stands behind a port's name in that of its port before the control plane.
const END: &str = ".control";

/// The port that stands for `port`, one of `router`'s and perhaps behind `front`, if the router has a control
/// plane.
fn beside(router: &RouterSpec, port: &PortSpec, front: Option<&PortSpec>) -> Option<PortSpec> {
    let netns = router.control.clone()?;
    Some(PortSpec {
        name: format!("{}{END}", port.name),
        kind: "tap".to_owned(),
        location: port.name.clone(),
        netns: Some(netns),
        control_of: Some(port.name.clone()),
        router_mac: Some(station(&router.name, port, front)),
        mtu: port.mtu,
        ..PortSpec::default()
    })
}

/// The ports that `spec`'s control planes have beside the others.
fn all(spec: &Spec) -> Vec<PortSpec> {
    let of = |port: &PortSpec| {
        let name = port.router_name()?;
        let router = spec.routers.iter().find(|router| router.name == name)?;
        beside(router, port, port.front(&spec.ports))
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
