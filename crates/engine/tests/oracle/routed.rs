//! What leaves a router, beside the list of what goes out by its port. What a router does with a packet is
//! compared with the kernel (`tests/router_kernel.rs`); here a packet that left has to be one that the list
//! permits, and no list drops what none was asked about.

use super::compare::{Dropped, Plain};
use super::config::{router_station, Joint};
use super::doubt::Doubts;
use super::headers::{see, tags};
use super::model::Model;
use super::rules::{Facts, List};

/// Most combinations of answers about one frame.
const ANSWERS: usize = 256;

/// What is wrong with frames that came out, and with those that were dropped.
pub fn complaints(model: &Model<'_>, got: &[Plain], drops: &[Dropped]) -> Vec<String> {
    let ports = &model.config.ports;
    let mut wrong = Vec::new();
    for (n, port) in ports.iter().enumerate() {
        if !matches!(port.joint, Joint::Router | Joint::Gateway | Joint::Shared) {
            continue;
        }
        let Some(list) = model.list(n, "acl-out") else {
            if port.get("acl-in").is_none() && drops.contains(&(n, "acl")) {
                wrong.push(format!("port {n} has no list, and drops by one"));
            }
            continue;
        };
        // A copy may be cut.
        let mirror = |to: &usize| ports.iter().any(|port| port.is("mirror", &ports[*to].name));
        let left =
            got.iter().filter(|(to, bytes)| bytes.get(6..12) == Some(&router_station(n)) && !mirror(to));
        for (to, bytes) in left {
            let tag = tags(bytes).0.first().copied();
            let tagged = ports[*to].host().is_some()
                && ports[*to].has_vlans()
                && tag
                    .is_some_and(|(kind, control)| kind == ports[*to].tag() && control & 0xfff == port.own());
            let plain = [&bytes[..12], &bytes[if tagged { 16 } else { 12 }..]].concat();
            let vlan = Some(port.own()).filter(|vlan| *vlan != 0);
            if !may_pass(list, &plain, vlan) {
                wrong.push(format!("port {to} got what the list of port {n} denies"));
            }
        }
    }
    wrong
}

/// Whether the list permits the frame by any answer to its doubts.
fn may_pass(list: &List, bytes: &[u8], vlan: Option<u16>) -> bool {
    let mut doubts = Doubts::new(&[]);
    (0..ANSWERS).any(|n| {
        (n == 0 || doubts.next()) && {
            let seen = see(bytes, false, 0, &doubts);
            list.permits(&Facts { bytes, vlan, seen: &seen }, &doubts)
        }
    })
}
