//! Whether a configuration makes sense as a whole. Every finding names the part and the key, says what
//! is wrong and what would be right; nothing is started before all of it is in order.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use sidecore_abi::counters::MAX_CORES;

use super::control::is_control;
use super::cores::station;
use super::grants::Cpus;
use super::grouping::GroupSpec;
use super::kinds::{find, Kind, Location, VXLAN};
use super::routes::{AgentAt, RouterSpec};
use super::service::check_budgets;
use super::spec::{
    name_complaint, Entry, Joint, PortSpec, Spec, SwitchSpec, DEFAULT_SWITCH, GATEWAY, GROUP, INSIDE, ROUTER,
};
use super::values::{names, List, Mac, Number, Toggle};
use crate::host::netns;
use crate::policy::{MacGuard, PortVlans};
use crate::port::DEFAULT_MTU;
use crate::ring::Geometry;
use crate::util::form::{Key, Scope};

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which part of the configuration: `daemon`, or one of the list of `switch`, `router`, `tenant`, `group`
    /// or `port`.
    pub what: &'static str,
    /// Its place in that list.
    pub place: usize,
    /// Its name; empty for the daemon.
    pub name: String,
    /// The key.
    pub key: String,
    /// What is wrong, and what is allowed.
    pub why: String,
}

impl Finding {
    fn new(what: &'static str, place: usize, name: &str, key: &str, why: &str) -> Finding {
        Finding { what, place, name: name.to_owned(), key: key.to_owned(), why: why.to_owned() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = format!("{} {}", self.what, self.name);
        write!(f, "{}: key `{}`: {}", label.trim_end(), self.key, self.why)
    }
}

/// Judges the name of the part at `place` of its list, and notes what else is found about it.
fn begin<'f, E: Entry>(
    found: &'f mut Vec<Finding>,
    list: &'f [E],
    place: usize,
) -> impl FnMut(&str, &str) + 'f {
    let (what, name) = (E::WHAT, list[place].name());
    let mut bad = move |key: &str, why: &str| found.push(Finding::new(what, place, name, key, why));
    name_complaint(name).iter().for_each(|why| bad("name", why));
    if list[..place].iter().any(|other| other.name() == name) {
        bad("name", &format!("another {what} has this name"));
    }
    bad
}

/// Everything that is wrong with `spec`, in its order.
pub fn check(spec: &Spec, kinds: &[Kind]) -> Vec<Finding> {
    let mut found = Vec::new();
    check_cores(spec, &mut found);
    for (i, switch) in spec.switches.iter().enumerate() {
        check_overlay(spec, switch, &mut begin(&mut found, &spec.switches, i));
    }
    check_routers(spec, &mut found);
    (0..spec.tenants.len()).for_each(|i| drop(begin(&mut found, &spec.tenants, i)));
    for (i, group) in spec.groups.iter().enumerate() {
        check_group(spec, group, &mut begin(&mut found, &spec.groups, i));
    }
    for (i, acl) in spec.acls.iter().enumerate() {
        let mut bad = begin(&mut found, &spec.acls, i);
        acl.complaint().iter().for_each(|(key, why)| bad(key, why));
    }
    let mut ends: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (i, port) in spec.ports.iter().enumerate() {
        let mut bad = begin(&mut found, &spec.ports, i);
        let earlier = spec.ports.iter().take(i);
        if let Some(other) = earlier.clone().find(|other| same_disk(other, port)) {
            let allowed = "allowed: another one, or readonly=on at both";
            bad("file", &format!("port {} writes to this file; {allowed}", other.name));
        }
        if let Some(other) = earlier.clone().find(|other| same_place(other, port, kinds)) {
            bad("where", &format!("port {} has this place; choose another", other.name));
        }
        check_kind(port, kinds, &mut bad);
        check_scopes(port, &mut bad);
        check_company(port.given(), &mut bad);
        check_gateway(spec, port, &mut bad);
        check_tenant(spec, port, &mut bad);
        check_of_group(spec, i, port, &mut bad);
        check_joint(spec, port, &mut ends, &mut bad);
        check_guard(spec, i, port, &mut bad);
        check_vlans(port, &mut bad);
        check_tunnel(spec, port, kinds, &mut bad);
        check_egress(spec, port, &mut bad);
        check_addresses(spec, i, port, &mut bad);
    }
    let mut bad = |what, place, name: &str, key: &str, why: &str| {
        found.push(Finding::new(what, place, name, key, why));
    };
    check_budgets(spec, &mut bad);
    found
}

/// Whether two ports would have one location. A path is one socket and an interface one station, whatever the
/// kind: what one port sends to an interface would come in by the other.
pub(super) fn same_place(a: &PortSpec, b: &PortSpec, kinds: &[Kind]) -> bool {
    let is_interface =
        |port: &PortSpec| find(kinds, &port.kind).is_ok_and(|kind| kind.location == Location::Interface);
    let locations = |port: &PortSpec| {
        find(kinds, &port.kind).map_or_else(|_| vec![port.location.clone()], |kind| kind.locations(port))
    };
    let theirs = locations(b);
    if INSIDE.contains(&&*a.kind) {
        return false;
    }
    let one = a.kind == b.kind || is_interface(a) && is_interface(b);
    locations(a).iter().any(|at| theirs.contains(at) && (one || at.contains('/')))
}

/// Whether two disks would be one file, to which one of them writes.
fn same_disk(a: &PortSpec, b: &PortSpec) -> bool {
    let path = |port: &PortSpec| Some(std::path::absolute(port.file.as_ref()?.path()?).unwrap_or_default());
    let reads = |port: &PortSpec| port.readonly == Some(Toggle::On);
    path(a).is_some() && path(a) == path(b) && !(reads(a) && reads(b))
}

fn check_cores(spec: &Spec, found: &mut Vec<Finding>) {
    let Some(Cpus(cores)) = &spec.daemon.cores else { return };
    let mut bad = |key: &str, why: &str| found.push(Finding::new("daemon", 0, "", key, why));
    let all = cores.len();
    if let Some(least) = spec.daemon.least_cores.map(Number::get).filter(|least| *least as usize > all) {
        bad("least-cores", &format!("{least} of {all} I/O cores; allowed: 1 to {all}"));
    }
    let twice = cores.iter().enumerate().find(|(i, core)| cores[..*i].contains(core));
    let why = match (cores.len(), twice) {
        (1..=MAX_CORES, None) => return,
        (_, Some((_, core))) => format!("processor {core} is named twice; allowed: one I/O core each"),
        (n, None) => format!("{n} processors; allowed: 1 to {MAX_CORES}"),
    };
    bad("cores", &why);
}

fn check_routers(spec: &Spec, found: &mut Vec<Finding>) {
    for (i, router) in spec.routers.iter().enumerate() {
        let mut bad = begin(found, &spec.routers, i);
        if router.grace.is_some() && router.control.is_none() {
            bad("grace", "does not apply to a router without a control plane; allowed: with control");
        }
        router.control.as_deref().and_then(netns::complaint).iter().for_each(|why| bad("control", why));
        check_agents(spec, router, &mut bad);
        let mine = spec.ports.iter().filter(|port| port.router_name() == Some(&router.name));
        for port in mine.filter(|_| router.control.is_some()) {
            let why = Location::Interface.complaint(&port.name).or((port.name == "lo").then(String::new));
            if why.is_some() {
                let allowed = "allowed: 1 to 15 letters, digits and marks, and not lo";
                bad("control", &format!("port {} has an interface of its name there; {allowed}", port.name));
            }
        }
        let mut prefixes = BTreeSet::new();
        for route in &router.routes {
            let prefix = route.prefix;
            route.complaint().iter().for_each(|why| bad("routes", &format!("{prefix}: {why}")));
            if !prefixes.insert(prefix.network()) {
                let why = "another route has this prefix; several gateways go into one via";
                bad("routes", &format!("{prefix}: {why}"));
            }
            let here = |name: &String| {
                spec.ports.iter().any(|port| port.name == *name && port.router_name() == Some(&router.name))
            };
            if let Some(name) = route.port.as_ref().filter(|name| !here(name)) {
                bad("routes", &format!("{prefix}: port {name} is not on this router"));
            }
        }
    }
}

/// Whether the agents of `router` are of other members of its groups, one each.
fn check_agents(spec: &Spec, router: &RouterSpec, bad: &mut impl FnMut(&str, &str)) {
    let Some(List(agents)) = &router.agents else { return };
    if router.control.is_none() {
        bad("agents", "does not apply to a router without a control plane; allowed: with control");
    }
    let is_own = |port: &&PortSpec| port.router_name() == Some(&router.name);
    let groups: Vec<_> = spec.ports.iter().filter(is_own).filter_map(|port| port.group.as_ref()).collect();
    let others = spec.ports.iter().filter(|port| !is_own(port));
    let members: BTreeSet<&String> = others
        .filter(|port| port.group.as_ref().is_some_and(|group| groups.contains(&group)))
        .filter_map(|port| port.member.as_ref())
        .collect();
    for (i, agent) in agents.iter().enumerate() {
        if !members.contains(&agent.member) {
            let (member, there) = (&agent.member, names(&members));
            let why = format!("no group of this router has another member {member:?}; allowed: {there}");
            bad("agents", &why);
        }
        let same = |other: &&AgentAt| other.member == agent.member || other.socket == agent.socket;
        if let Some(other) = agents.iter().take(i).find(same) {
            bad("agents", &format!("{agent} and {other}: one agent has one member, and a socket of its own"));
        }
    }
}

/// Whether the addresses of `port`, the one of place `i`, can be those of its router there.
fn check_addresses(spec: &Spec, i: usize, port: &PortSpec, bad: &mut impl FnMut(&str, &str)) {
    let Some(router) = port.router_name() else {
        if port.control_of.is_some() {
            if !is_control(spec, port) {
                bad("control-of", "only a router with control=NAMESPACE makes such ports");
            }
            return;
        }
        // Where the group's interface is a router's port, members say what the group is called there.
        let front = port.front(&spec.ports).is_some_and(|front| front.router.is_some());
        let others = ["address", "router-mac", "rpf"];
        let others = &others[usize::from(port.kind == GROUP || front)..];
        refuse(port, others, "does not apply; allowed: with router", bad);
        return;
    };
    if !spec.routers.iter().any(|other| other.name == router) {
        let there = names(spec.routers.iter().map(|other| &other.name));
        let key = if port.kind == ROUTER { "where" } else { "router" };
        bad(key, &format!("there is no router {router:?}; allowed: {there}"));
    }
    let mine = port.addresses(port.front(&spec.ports));
    for (n, net) in mine.iter().enumerate() {
        let it = net.address;
        let no_station = it.is_multicast()
            || it.is_loopback()
            || it.is_unspecified()
            || net.len == 0
            || net.broadcast().is_some_and(|all| std::net::IpAddr::V4(all) == it);
        if no_station {
            bad("address", &format!("{net} is the address of no station on a network"));
        }
        let others = spec.ports.iter().take(i).filter(|other| other.router_name() == Some(router));
        let theirs = others.flat_map(|other| other.addresses(other.front(&spec.ports)));
        if theirs.chain(mine.iter().take(n)).any(|other| other.address == it) {
            bad("address", &format!("router {router} has {it} already"));
        }
    }
}

fn check_kind(port: &PortSpec, kinds: &[Kind], bad: &mut impl FnMut(&str, &str)) {
    port.netns.as_deref().and_then(netns::complaint).iter().for_each(|why| bad("netns", why));
    let kind = match find(kinds, &port.kind) {
        Ok(kind) => kind,
        Err(why) => return bad("kind", &why),
    };
    kind.location.complaint(&port.location).iter().for_each(|why| bad("where", why));
    for key in port.given().filter(|key| !kind.knows(key)) {
        bad(key.name, &kind.not_known(key.name));
    }
    if kind.names("file") && port.file.is_none() {
        bad("file", "it has to be given; allowed: a path, ram:SIZE, null:SIZE");
    }
    let slots = port.slots.map_or(Geometry::default().slots, Number::get);
    if let (Some(queue), true) = (port.queue.filter(|queue| queue.get() >= slots), kind.names("slots")) {
        let most = slots - 1;
        let allowed = if most < 64 { "none, or more slots".to_owned() } else { format!("64 to {most}") };
        bad("queue", &format!("its rings have room for {most}, less than {queue}; allowed: {allowed}"));
    }
    if let (Some(mode), true) = (port.mode, kind.names("mode")) {
        let interface = kind.location == Location::Interface;
        if mode.bits().is_some() == interface {
            let allowed = if interface { "copy, zerocopy, auto" } else { "octal digits, such as 0660" };
            bad("mode", &format!("is none that kind {} knows; allowed: {allowed}", kind.name));
        }
    }
    if let (Some(words), true) = (&port.features_off, kind.names("features-off")) {
        let known = (kind.features)();
        if let Some(word) = words.0.iter().find(|word| !known.contains(word)) {
            bad("features-off", &format!("{word:?} is not allowed; allowed: {}", known.join(", ")));
        }
    }
}

/// Says of those of `keys` that `port` has why they are not for it.
fn refuse(port: &PortSpec, keys: &[&str], why: &str, bad: &mut impl FnMut(&str, &str)) {
    port.given().filter(|key| keys.contains(&key.name)).for_each(|key| bad(key.name, why));
}

fn check_joint<'s>(
    spec: &'s Spec,
    port: &'s PortSpec,
    ends: &mut BTreeMap<&'s str, Vec<&'s str>>,
    bad: &mut impl FnMut(&str, &str),
) {
    let places = [
        ("pipe", &port.pipe),
        ("wire", &port.wire),
        ("group", &port.group),
        ("router", &port.router),
        ("switch", &port.switch),
    ];
    let given: Vec<&str> = places.iter().filter(|(_, name)| name.is_some()).map(|(key, _)| *key).collect();
    if let [key, _, ..] = *given {
        bad(key, &format!("a port joins one of them; allowed: one of {}", given.join(", ")));
    }
    for (key, name) in &places[..2] {
        name.as_deref().and_then(name_complaint).iter().for_each(|why| bad(key, why));
    }
    if let Some(wire) = &port.wire {
        let ends = ends.entry(wire).or_default();
        if ends.len() == 2 {
            bad("wire", &format!("wire {wire} joins {} already; a wire has two ends", ends.join(" and ")));
        }
        ends.push(&port.name);
    }
    if let Some(pipe) = &port.pipe {
        check_pipe(spec, port, pipe, bad);
    }
    if let Some(name) = &port.switch {
        if name != DEFAULT_SWITCH && !spec.switches.iter().any(|switch| switch.name == *name) {
            bad("switch", &format!("there is no switch {name:?}; allowed: {}", switches(spec)));
        }
    }
}

/// Whether each key of `port` applies to a port in its place: on a switch, in a group, with a tenant.
fn check_scopes(port: &PortSpec, bad: &mut impl FnMut(&str, &str)) {
    let learns_not = match port.joint() {
        // Its kind knows no such key.
        Joint::Nothing | Joint::Control(_) | Joint::Switch(_) => None,
        Joint::Router(_) => Some("router"),
        Joint::Pipe(_) => Some("pipe"),
        Joint::Wire(_) => Some("wire"),
        Joint::Group(_) => Some("group"),
    };
    let inside = INSIDE.contains(&&*port.kind);
    // A router's port on a switch is a port there.
    let there = |key: &Key| port.gateway_on().is_some() && ["vlan", "isolated", "bpdu"].contains(&key.name);
    for key in port.given() {
        let why = match (key.scope, learns_not, &port.tenant) {
            (Scope::Paid, ..) if inside => {
                ": the time of its frames is their senders'; allowed: at the senders' ports".to_owned()
            }
            (Scope::Paid, _, Some(tenant)) if key.name != "tenant" => {
                format!(": tenant {tenant} pays for the port; allowed: at the tenant")
            }
            (Scope::Queues, ..) if inside || port.pipe.is_some() || port.group.is_some() => {
                ": it has no queues of its own; allowed: at the ports of guests".to_owned()
            }
            (Scope::Learning, Some(what), _) if !there(key) => {
                format!(" to a {what}, which learns no addresses; allowed: with switch")
            }
            _ => continue,
        };
        bad(key.name, &format!("does not apply{why}"));
    }
}

/// Whether beside each of these keys one of those is given that it needs.
fn check_company<'k>(given: impl Iterator<Item = &'k Key>, bad: &mut impl FnMut(&str, &str)) {
    let given: Vec<&Key> = given.collect();
    let alone = |key: &&&Key| !key.with.is_empty() && !given.iter().any(|it| key.with.contains(&it.name));
    for key in given.iter().filter(alone) {
        bad(key.name, &format!("does not apply; allowed: with {}", key.with.join(" or ")));
    }
}

/// Whether `port` can be an end of `pipe`.
fn check_pipe(spec: &Spec, port: &PortSpec, pipe: &str, bad: &mut impl FnMut(&str, &str)) {
    // What a ring port may have beside its rings lies in memory of its own, and the slots move as they are.
    let beside = ["extra-bufs", "pipes", "memory", "header", "queue"];
    refuse(port, &beside, "does not apply to an end of a pipe; allowed: without pipe", bad);
    if port.location.ends_with(crate::transport::ring::HOST) && port.kind == "ring" {
        bad("pipe", "host rings are no end of a pipe; allowed: of kind ptnet, or ring:NAME");
    }
    let before = spec.ports.iter().take_while(|other| other.name != port.name);
    let others: Vec<_> = before.filter(|other| other.pipe.as_deref() == Some(pipe)).collect();
    if let [a, b, ..] = &*others {
        bad("pipe", &format!("pipe {pipe} joins {} and {} already; a pipe has two ends", a.name, b.name));
    }
    let Some(other) = others.first() else { return };
    if port.kind == "ring" && other.kind == "ring" {
        let why = "is another program's end already; programs open NAME{PIPE and NAME}PIPE of one ring port";
        bad("pipe", &format!("port {} {why}", other.name));
    }
    let same = [
        ("queues", port.queues.map_or(1, Number::get) == other.queues.map_or(1, Number::get)),
        ("slots", port.slots.map(Number::get) == other.slots.map(Number::get)),
        ("buf-size", port.buf_size.map(Number::get) == other.buf_size.map(Number::get)),
    ];
    for (key, _) in same.into_iter().filter(|(_, same)| !same) {
        bad(key, &format!("has to be as at port {}, the other end of pipe {pipe}", other.name));
    }
}

/// The switch that `port` is on, as a guest's port or as a router's.
fn stands_on(port: &PortSpec) -> Option<&str> {
    match port.joint() {
        Joint::Switch(on) => Some(on),
        _ => port.gateway_on(),
    }
}

/// The router's address on the switch, if `port` is a router's on a switch.
fn gateway_station(port: &PortSpec) -> Option<Mac> {
    port.gateway_on().and(port.router.as_deref()).map(|router| station(router, port, None))
}

/// Whether `port`, if it is to be a router's port on a switch, can be one.
fn check_gateway(spec: &Spec, port: &PortSpec, bad: &mut impl FnMut(&str, &str)) {
    if port.kind == ROUTER && port.group.is_none() {
        bad("group", "missing; a port of kind router is a member's; one on a switch is of kind switch");
    }
    if port.kind != GATEWAY {
        return;
    }
    if port.router.is_none() {
        bad("router", "missing; a port of kind switch is a router's port there: router=NAME");
    }
    let on = &port.location;
    if on != DEFAULT_SWITCH && !spec.switches.iter().any(|switch| switch.name == *on) {
        bad("where", &format!("there is no switch {on:?}; allowed: {}", switches(spec)));
    }
}

/// Whether `port` has a tenant that there is.
fn check_tenant(spec: &Spec, port: &PortSpec, bad: &mut impl FnMut(&str, &str)) {
    let Some(tenant) = &port.tenant else { return };
    if !spec.tenants.iter().any(|it| it.name == *tenant) {
        let there: Vec<_> = spec.tenants.iter().map(|it| it.name.as_str()).collect();
        let there = if there.is_empty() { "none; add it first".to_owned() } else { there.join(", ") };
        bad("tenant", &format!("there is no tenant {tenant:?}; allowed: {there}"));
    }
}

/// The names of all switches, for people.
fn switches(spec: &Spec) -> String {
    let others = spec.switches.iter().map(|it| it.name.as_str()).filter(|name| *name != DEFAULT_SWITCH);
    std::iter::once(DEFAULT_SWITCH).chain(others).collect::<Vec<_>>().join(", ")
}

/// Whether the addresses that `port`, the one of place `i`, is to have are its alone on its switch, and
/// whether what guards them has an effect.
fn check_guard(spec: &Spec, i: usize, port: &PortSpec, bad: &mut impl FnMut(&str, &str)) {
    let (guard, listed) = (port.mac_guard, port.allow_mac.is_some() || port.fdb.is_some());
    match guard {
        Some(MacGuard::Claim) if port.mac.is_none() => {
            bad("mac-guard", "claim has nothing to pin; allowed: with mac, or off, strict");
        }
        Some(MacGuard::Strict) if port.mac.is_none() && !listed => {
            bad("mac-guard", "strict would drop every frame; allowed: with mac, allow-mac or fdb");
        }
        _ => {}
    }
    if port.allow_mac.is_some() && guard != Some(MacGuard::Strict) {
        bad("allow-mac", "does not apply: all may be used; allowed: with mac-guard=strict");
    }
    let Some(on) = stands_on(port) else { return };
    let stays = |port: &PortSpec| {
        let own = port.mac.filter(|_| port.guard() != MacGuard::Off).or_else(|| gateway_station(port));
        own.into_iter().chain(port.fdb.iter().flat_map(|macs| macs.0.iter().copied())).collect::<Vec<_>>()
    };
    let mine = stays(port);
    let vlans = port.vlans();
    let meets = |other: &PortSpec| PortVlans::meet(vlans.as_ref(), other.vlans().as_ref());
    for other in spec.ports.iter().take(i).filter(|other| stands_on(other) == Some(on) && meets(other)) {
        let theirs = stays(other);
        if let Some(mac) = mine.iter().find(|mac| theirs.contains(mac)) {
            let (key, way) = match port.mac == Some(*mac) && port.guard() != MacGuard::Off {
                _ if gateway_station(port) == Some(*mac) => ("router-mac", "choose another"),
                true => {
                    ("mac", "choose another, or mac-guard=off at one of them, whose station may come and go")
                }
                false => ("fdb", "an address lives at one port"),
            };
            bad(key, &format!("port {} has {mac} on switch {on}, too; {way}", other.name));
        }
    }
}

/// Whether the VLANs of `port` are those of an access port, or of a trunk.
fn check_vlans(port: &PortSpec, bad: &mut impl FnMut(&str, &str)) {
    if port.vlan.is_some() {
        refuse(port, &["trunk"], "does not apply to an access port; allowed: without vlan", bad);
    }
    if port.native.is_none() && port.trunk.is_some() {
        let why = "a trunk without native has no VLAN for it; allowed: with native, or vlan";
        refuse(port, &["fdb"], why, bad);
    }
    if port.kind == GROUP {
        let why = "does not apply: groups take no tags; allowed: vlan";
        refuse(port, &["trunk", "vlan-proto"], why, bad);
    }
}

/// Whether a switch with a control plane has the tunnel of which that tells.
fn check_overlay(spec: &Spec, switch: &SwitchSpec, bad: &mut impl FnMut(&str, &str)) {
    // A VNI alone: a control plane is to come, or was taken away.
    let Some(control) = &switch.control else { return };
    netns::complaint(control).iter().for_each(|why| bad("control", why));
    let place = |it: &SwitchSpec| Some((netns::path(it.control.as_ref()?), it.vni));
    if spec.switches.iter().any(|other| other.name != switch.name && place(other) == place(switch)) {
        bad("vni", "another switch has it in this namespace; allowed: each vni once in a namespace");
    }
    let tunnels: Vec<_> = spec.ports.iter().filter(|port| port.is_told_on(&switch.name)).collect();
    match (tunnels.as_slice(), switch.vni) {
        ([tunnel], Some(vni)) if tunnel.vni == Some(vni) => {}
        ([_], _) => bad("vni", "is not that of the tunnel; allowed: the same vni at both"),
        (all, _) => {
            let (there, allowed) = (all.len(), "allowed: one port of kind vxlan");
            bad(
                "control",
                &format!("needs one tunnel without peers on the switch, and there are {there}; {allowed}"),
            );
        }
    }
}

/// Whether a tunnel has what it needs, and `port` has no longer frames than the tunnel of its switch.
fn check_tunnel(spec: &Spec, port: &PortSpec, kinds: &[Kind], bad: &mut impl FnMut(&str, &str)) {
    let mtu = |port: &PortSpec| port.mtu.map_or(DEFAULT_MTU, Number::get);
    if port.kind == VXLAN {
        if port.vni.is_none() {
            bad("vni", "it has to be given; allowed: 1 to 16777215");
        }
        let told = |switch: &SwitchSpec| {
            let has_control = switch.control.is_some() || switch.vni.is_some();
            has_control && port.is_told_on(&switch.name)
        };
        if port.peers.is_none() && !spec.switches.iter().any(told) {
            bad("peers", "it has to be given; allowed: addresses of other hosts, or a switch with control, or with vni until it has that");
        }
        // Where a frame comes out of a tunnel nothing says that its sender is isolated.
        let meets = |other: &&PortSpec| {
            other.joint() == port.joint() && PortVlans::meet(port.vlans().as_ref(), other.vlans().as_ref())
        };
        let is_isolated = |port: &PortSpec| port.isolated == Some(Toggle::On);
        let other = spec.ports.iter().filter(|_| !is_isolated(port)).filter(meets).find(|it| is_isolated(it));
        if let Some(PortSpec { name, .. }) = other {
            let why = format!("port {name} of its switch is isolated, and would reach isolated ports of other hosts; allowed: isolated=on here, too");
            bad("isolated", &why);
        }
        return;
    }
    // An interface that is there may have any.
    let own = find(kinds, &port.kind).is_ok_and(|kind| kind.location != Location::Interface);
    let is =
        |other: &&PortSpec| other.kind == VXLAN && other.joint() == port.joint() && mtu(other) < mtu(port);
    let narrow = spec.ports.iter().find(is).filter(|_| own || port.mtu.is_some());
    if let (Some(tunnel), Joint::Switch(_)) = (narrow, port.joint()) {
        let (name, own, most) = (&tunnel.name, mtu(port), mtu(tunnel));
        let why =
            format!("{own}, and the tunnel {name} of its switch carries {most}; allowed: {most} or less");
        bad("mtu", &why);
    }
}

/// Whether the mirror of `port` can be one, and what goes out by it can be limited.
fn check_egress(spec: &Spec, port: &PortSpec, bad: &mut impl FnMut(&str, &str)) {
    for (key, name) in
        [("acl-in", &port.acl_in), ("acl-out", &port.acl_out), ("mirror-acl", &port.mirror_acl)]
    {
        let Some(name) = name else { continue };
        if port.pipe.is_some() || port.group.is_some() {
            let why = "does not apply: its frames do not come here; allowed: at ports of switches, wires and routers";
            bad(key, why);
        } else if !spec.acls.iter().any(|acl| acl.name == *name) {
            let there = names(spec.acls.iter().map(|acl| &acl.name));
            bad(key, &format!("there is no access list {name:?}; allowed: {there}"));
        }
    }
    let Some(name) = &port.mirror else { return };
    let to = spec.ports.iter().find(|other| other.name == *name);
    let why = match to {
        None => "there is no such port",
        Some(to) if to.name == port.name => "a port is no mirror of its own",
        Some(to) if to.mirror.is_some() => "it has a mirror itself: its copies would be copied again",
        Some(to) if INSIDE.contains(&&*to.kind) || to.pipe.is_some() || to.is_disk() => {
            "it has no queues that could take copies"
        }
        Some(_) => return,
    };
    bad("mirror", &format!("{name:?}: {why}; allowed: another port with queues and without a mirror"));
}

/// Whether `group` names members that there are.
fn check_group(spec: &Spec, group: &GroupSpec, bad: &mut impl FnMut(&str, &str)) {
    check_company(group.given(), bad);
    let members = spec.members(&group.name);
    for (key, name) in group.named().filter(|(_, name)| !members.contains(name)) {
        bad(key, &format!("there is no member {name:?}; allowed: {}", names(&members)));
    }
    let fronts = spec.ports.iter().filter(|port| port.group_interface() == Some(&group.name));
    let first = fronts.min_by_key(|port| port.interface.map_or(0, Number::get));
    match (group.probe, first) {
        (Some(_), Some(first)) if first.mac.is_none() => {
            bad("probe", &format!("port {}, by which probes come, has no mac; set one first", first.name));
        }
        _ => {}
    }
    if members.len() > crate::graph::MAX_MEMBERS {
        bad("name", &format!("it has {} members; allowed: {}", members.len(), crate::graph::MAX_MEMBERS));
    }
}

/// Whether `port`, the one of place `i`, can be what it says it is of a group.
fn check_of_group(spec: &Spec, i: usize, port: &PortSpec, bad: &mut impl FnMut(&str, &str)) {
    let front = port.group_interface();
    let Some(group) = front.or(port.group.as_deref()) else {
        let why = "does not apply; allowed: with group=NAME, and interface with kind group";
        return refuse(port, &["member", "interface"], why, bad);
    };
    let key = if front.is_some() { "where" } else { "group" };
    if !spec.groups.iter().any(|it| it.name == group) {
        let there = names(spec.groups.iter().map(|it| &it.name));
        bad(key, &format!("there is no group {group:?}; allowed: {there}; add it first"));
    }
    let Some(number) = port.interface.map(Number::get) else {
        return bad("interface", "missing; which of the group's interfaces it is, from 0 on");
    };
    let earlier = || spec.ports.iter().take(i).filter(|other| other.interface == port.interface);
    if front.is_some() {
        if let Some(other) = earlier().find(|other| other.group_interface() == front) {
            bad("interface", &format!("port {} is interface {number} of group {group} already", other.name));
        }
        let why = "does not apply to an interface of a group; allowed: at its members' ports";
        refuse(port, &["group", "member"], why, bad);
        let is_member = |other: &&PortSpec| other.kind == ROUTER && other.group.as_deref() == front;
        let its = |other: &&PortSpec| is_member(other) && other.router_name() == port.router.as_deref();
        if let Some(other) = spec.ports.iter().find(its) {
            let why = "its packets would come back to it; allowed: another router";
            bad("router", &format!("it is a member of group {group}, by port {}: {why}", other.name));
        }
        return;
    }
    let Some(member) = &port.member else {
        return bad("member", "missing; which member of the group it belongs to");
    };
    name_complaint(member).iter().for_each(|why| bad("member", why));
    let same = |other: &&PortSpec| other.group == port.group && other.member == port.member;
    if let Some(other) = earlier().find(same) {
        let other = &other.name;
        bad("interface", &format!("{number}: port {other} is member {member}'s there already"));
    }
    let fronts: Vec<&PortSpec> =
        spec.ports.iter().filter(|other| other.group_interface() == Some(group)).collect();
    let there = || names(fronts.iter().filter_map(|it| it.interface.map(Number::get)));
    match fronts.iter().find(|other| other.interface == port.interface) {
        None => {
            let why = "a port of kind group is one";
            bad(
                "interface",
                &format!("group {group} has no interface {number}; allowed: {}; {why}", there()),
            );
        }
        Some(front) => {
            let own = [("mac", port.mac), ("router-mac", port.router_mac)];
            for (key, _) in
                own.iter().filter(|(_, mac)| mac.is_some() && front.mac.is_some_and(|it| Some(it) != *mac))
            {
                bad(key, &format!("has to be that of port {}, the group's interface", front.name));
            }
        }
    }
}
