//! `openapi.json` against the code: every route, and every field of every type, with which of them are
//! always there.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::{json, Value};
use sidecore_engine::core::TaskStatus;
use sidecore_engine::policy::acl::Action;
use sidecore_engine::state::acls::*;
use sidecore_engine::state::disks::{DiskView, Disks, Resized};
use sidecore_engine::state::explain::*;
use sidecore_engine::state::groups::*;
use sidecore_engine::state::kinds::KINDS;
use sidecore_engine::state::routers::*;
use sidecore_engine::state::status::*;
use sidecore_engine::state::tenants::*;
use sidecore_engine::state::{
    text, AclSpec, Address, Change, Cpus, DaemonSpec, GroupSpec, RouteSpec, RouterSpec, ServiceView, Spec,
    SwitchSpec, TenantSpec, Verb,
};
use sidecore_routing::{AgentView, ControlView, RouterView, Routers};

use super::ROUTES;
use crate::api::*;
use crate::generate::OPENAPI;
use crate::options::tests::every_key;

fn document() -> Value {
    serde_json::from_str(OPENAPI).unwrap()
}

#[test]
fn every_route_is_described_and_no_other() {
    let document = document();
    let described: BTreeMap<&str, BTreeSet<&str>> = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(path, methods)| {
            (path.as_str(), methods.as_object().unwrap().keys().map(String::as_str).collect())
        })
        .collect();
    let there = ROUTES.iter().map(|(path, methods)| (*path, methods.iter().copied().collect())).collect();
    assert_eq!(described, there);
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            let named: BTreeSet<_> = parameters
                .iter()
                .filter(|p| p["in"] == "path")
                .map(|p| format!("{{{}}}", p["name"].as_str().unwrap()))
                .collect();
            let wanted = path.split('/').filter(|part| part.starts_with('{')).map(str::to_owned).collect();
            assert_eq!(named, wanted, "{method} {path}");
        }
    }
}

#[test]
fn every_reference_leads_somewhere() {
    fn walk(document: &Value, value: &Value) {
        match value {
            Value::Object(object) => {
                if let Some(Value::String(reference)) = object.get("$ref") {
                    let pointer = reference.strip_prefix('#').unwrap();
                    assert!(document.pointer(pointer).is_some(), "{reference}");
                }
                object.values().for_each(|value| walk(document, value));
            }
            Value::Array(list) => list.iter().for_each(|value| walk(document, value)),
            _ => {}
        }
    }
    let document = document();
    walk(&document, &document);
}

/// Compares the schema `name` with a value that has every field and one that has only those that are
/// always there.
fn compare<T: Serialize>(seen: &mut BTreeSet<String>, name: &str, full: &T, least: &T) {
    let keys = |value: &T| -> BTreeSet<String> {
        serde_json::to_value(value).unwrap().as_object().unwrap().keys().cloned().collect()
    };
    let document = document();
    let schema = &document["components"]["schemas"][name];
    let properties: BTreeSet<String> = schema["properties"].as_object().unwrap().keys().cloned().collect();
    let required: BTreeSet<String> =
        schema["required"].as_array().unwrap().iter().map(|key| key.as_str().unwrap().to_owned()).collect();
    assert_eq!(properties, keys(full), "properties of {name}");
    assert_eq!(required, keys(least), "required keys of {name}");
    seen.insert(name.to_owned());
}

/// What routers show.
fn routers(seen: &mut BTreeSet<String>) {
    let s = String::new;
    let (ip, mac) = ("10.0.0.1".parse().unwrap(), Some("02:00:00:00:00:01".parse().unwrap()));
    let prefix = "10.0.0.0/8".parse().unwrap();
    let hop = HopView { gateway: ip, port: s(), link: true, weight: 2, mac, state: s(), frames: 0, bytes: 0 };
    compare(seen, "HopView", &hop, &HopView { weight: 1, mac: None, ..hop.clone() });
    let route = RouteView {
        prefix,
        origin: s(),
        action: s(),
        port: Some(s()),
        group: 1,
        hops: vec![hop.clone()],
        idle: Some(s()),
    };
    compare(seen, "RouteView", &route, &RouteView { port: None, hops: vec![], idle: None, ..route.clone() });
    let routes = Routes { version: VERSION, router: s(), routes: vec![route] };
    compare(seen, "Routes", &routes, &routes);
    let interface = InterfaceView {
        port: s(),
        mac: mac.unwrap(),
        addresses: vec![],
        link_local: ip,
        mtu: 1500,
        link: true,
        rpf: Some(s()),
    };
    compare(seen, "InterfaceView", &interface, &InterfaceView { rpf: None, ..interface.clone() });
    let class = ClassView { class: s(), passed: 1, refused: 1 };
    compare(seen, "ClassView", &class, &class);
    let agent = AgentView { behind_ms: Some(1), trouble: Some(s()), ..AgentView::default() };
    compare(seen, "AgentView", &agent, &AgentView::default());
    let control = ControlView {
        trouble: Some(s()),
        since_s: Some(1),
        last_message_s: Some(1),
        sweep_in_s: Some(1),
        classes: vec![class],
        agents: vec![agent],
        ..ControlView::default()
    };
    compare(seen, "ControlView", &control, &ControlView::default());
    let router =
        RouterView { name: s(), interfaces: vec![interface], table_bytes: 1, control: Some(control) };
    compare(seen, "RouterView", &router, &RouterView { control: None, ..router.clone() });
    let routers = Routers { version: VERSION, routers: vec![router] };
    compare(seen, "Routers", &routers, &routers);
    let neighbour =
        NeighbourView { router: s(), port: s(), address: ip, mac, state: s(), age_s: Some(1), gateway: true };
    compare(
        seen,
        "NeighbourView",
        &neighbour,
        &NeighbourView { mac: None, age_s: None, ..neighbour.clone() },
    );
    let neighbours = Neighbours { version: VERSION, neighbours: vec![neighbour] };
    compare(seen, "Neighbours", &neighbours, &neighbours);
    let shorter = Shorter { prefix, why: s() };
    compare(seen, "Shorter", &shorter, &shorter);
    let explained = Explained {
        version: VERSION,
        router: s(),
        to: ip,
        from: Some(s()),
        action: s(),
        why: Some(s()),
        route: Some(prefix),
        origin: Some(s()),
        group: Some(1),
        hops: vec![hop],
        source_mac: mac,
        mtu: Some(1),
        shorter: vec![shorter],
    };
    let least = Explained {
        from: None,
        why: None,
        route: None,
        origin: None,
        group: None,
        hops: vec![],
        source_mac: None,
        mtu: None,
        shorter: vec![],
        ..explained.clone()
    };
    compare(seen, "Explained", &explained, &least);
    let step = StepView { port: s(), action: s(), why: Some(s()), about: Some(s()), routed: Some(least) };
    compare(seen, "StepView", &step, &StepView { why: None, about: None, routed: None, ..step.clone() });
    let frame = FrameExplained { version: VERSION, from: s(), steps: vec![step] };
    compare(seen, "FrameExplained", &frame, &frame);
}

#[test]
fn every_field_is_described_and_no_other() {
    let s = String::new;
    let mut seen = BTreeSet::new();
    let seen = &mut seen;

    let port = every_key();
    compare(seen, "PortSpec", &port, &text::port("p=vhost-user:/p", KINDS).unwrap());
    let switch = text::named::<SwitchSpec>(
        "s,ageing=1,table-size=64,control-frames=pass,mac-move=learn,control=frr,vni=7",
    )
    .unwrap();
    compare(seen, "SwitchSpec", &switch, &SwitchSpec::new("s"));
    let tenant_spec =
        text::named::<TenantSpec>("t,class=latency,weight=1,budget=20%,reclaim=on,rate=1,bit-rate=1")
            .unwrap();
    compare(seen, "TenantSpec", &tenant_spec, &text::named::<TenantSpec>("t").unwrap());
    let group_spec =
        text::named::<GroupSpec>("g,stateful=on,idle=1,force-after=never,stall=10,probe=192.0.2.1,probe-floor=1,weights=a:1+b:2,drain=a")
            .unwrap();
    compare(seen, "GroupSpec", &group_spec, &text::named::<GroupSpec>("g").unwrap());
    let daemon = DaemonSpec {
        cores: Some(Cpus(vec![])),
        least_cores: Some("1".parse().unwrap()),
        balance: Some("on".parse().unwrap()),
        spin: Some("1".parse().unwrap()),
        socket: Some("/s".into()),
        socket_mode: Some("0600".parse().unwrap()),
        socket_owner: Some("root".parse().unwrap()),
        read_socket: Some("/r".into()),
        read_socket_mode: Some("0600".parse().unwrap()),
        read_socket_owner: Some("root".parse().unwrap()),
        log_format: Some("json".parse().unwrap()),
        counters: Some("/c".into()),
        vale_ports: Some("1".parse().unwrap()),
        vale_mode: Some("0600".parse().unwrap()),
        vale_owner: Some("root".parse().unwrap()),
        sandbox: Some("on".parse().unwrap()),
        user: Some(s()),
    };
    compare(seen, "DaemonSpec", &daemon, &DaemonSpec::default());
    let route = RouteSpec {
        prefix: "10.0.0.0/8".parse().unwrap(),
        via: Some("10.0.0.1".parse().unwrap()),
        port: Some(s()),
        blackhole: true,
        unreachable: true,
        prohibit: true,
    };
    let least = RouteSpec {
        via: None,
        port: None,
        blackhole: false,
        unreachable: false,
        prohibit: false,
        ..route.clone()
    };
    compare(seen, "RouteSpec", &route, &least);
    let (control, grace) = (Some(s()), Some(serde_json::from_str("7").unwrap()));
    let agents = Some("b:/run/b.agent".parse().unwrap());
    let router = RouterSpec { name: s(), routes: vec![route], control, grace, agents };
    compare(seen, "RouterSpec", &router, &RouterSpec::new("r"));
    let least = AclSpec { name: s(), ..AclSpec::default() };
    let acl = AclSpec {
        rules: vec!["deny".to_owned()],
        file: Some("/x".into()),
        default: Some(Action::Permit),
        ..least.clone()
    };
    compare(seen, "AclSpec", &acl, &least);
    let spec = Spec {
        daemon,
        acls: vec![acl],
        switches: vec![switch],
        routers: vec![router],
        tenants: vec![tenant_spec],
        groups: vec![group_spec],
        ports: vec![port],
    };
    compare(seen, "Spec", &spec, &Spec::default());

    let change = Change { verb: Verb::Added, what: s(), name: s(), details: vec![] };
    compare(seen, "Change", &change, &change);
    let changes = Changes { version: VERSION, dry_run: true, changes: vec![] };
    compare(seen, "Changes", &changes, &changes);
    let moved = Moved { version: VERSION, queues: 1 };
    compare(seen, "Moved", &moved, &moved);
    let names = || Some(s());
    let numbers = || Some(1);
    let event = EventView {
        port: names(),
        switch: names(),
        router: names(),
        tenant: names(),
        group: names(),
        member: names(),
        queue: numbers(),
        core: numbers(),
        missed: numbers(),
        ..EventView::default()
    };
    compare(seen, "EventView", &event, &EventView::default());
    let refused = Refused { version: VERSION, error: s() };
    compare(seen, "Refused", &refused, &refused);
    let kind = KindView { name: s(), keys: vec![], features: vec![] };
    compare(seen, "KindView", &kind, &kind);
    let filter = FilterView { threads: s(), calls: 1 };
    compare(seen, "FilterView", &filter, &filter);
    let refused = RefusedView { threads: s(), call: s(), count: 1 };
    compare(seen, "RefusedView", &refused, &refused);
    let sandbox = SandboxView {
        mode: s(),
        user: s(),
        capabilities: vec![],
        no_new_privs: true,
        core_dumps: false,
        landlock: 7,
        io_uring: s(),
        seccomp: vec![],
        refused: vec![],
        missing: vec![],
    };
    compare(seen, "SandboxView", &sandbox, &sandbox);
    let about = About {
        version: VERSION,
        program: s(),
        pid: 1,
        config: Some("/c".into()),
        log: s(),
        counters: "/c".into(),
        memory_limit: Some(1),
        memory_errors: 0,
        clients: ClientsView::default(),
        kinds: vec![],
        sandbox: sandbox.clone(),
        broker: BrokerView { pid: Some(1), requests: 1, refused: 1, missed_by: vec![s()] },
        door: DoorView::default(),
    };
    let broker = BrokerView { pid: None, missed_by: vec![], ..about.broker.clone() };
    compare(seen, "BrokerView", &about.broker, &broker);
    compare(seen, "DoorView", &about.door, &about.door);
    compare(seen, "ClientsView", &about.clients, &about.clients);
    compare(seen, "SocketView", &about.clients.control, &about.clients.control);
    compare(seen, "About", &about, &About { config: None, memory_limit: None, ..about.clone() });

    compare(seen, "CaptureCount", &CaptureCount::default(), &CaptureCount::default());
    compare(seen, "Sums", &Sums::default(), &Sums::default());
    let trouble = Diagnosis { mend: Some(s()), ..Diagnosis::default() };
    compare(seen, "Trouble", &trouble, &Diagnosis::default());
    let flow = FlowView {
        in_rate: Some(1),
        in_bit_rate: Some(1),
        out_rate: Some(1),
        out_bit_rate: Some(1),
        drop_rate: Some(1),
        last_in_ms: Some(1),
        last_out_ms: Some(1),
        last_drop_ms: BTreeMap::new(),
    };
    compare(seen, "FlowView", &flow, &FlowView::default());
    let state = PortState {
        kind: s(),
        location: s(),
        switch: Some(s()),
        wire: Some(s()),
        pipe: Some(s()),
        router: Some(s()),
        options: BTreeMap::new(),
        link_wanted: s(),
        link: s(),
        mtu_wanted: Some(1),
        mtu: 1,
        mac_limit: Some(1),
        macs: 1,
        mac_guard: Some(s()),
        claims: ClaimCount::default(),
        group: Some(s()),
        tenant: Some(s()),
        peer: s(),
        pid: Some(1),
        pid_met_ns: Some(1),
        detail: s(),
        hint: Some(s()),
        troubles: vec![trouble.clone()],
        flow: flow.clone(),
        captures: vec![CaptureCount::default()],
        capture_lost: 1,
        fault: Some(s()),
        queues_wanted: Some(1),
        queues: 1,
        features: vec![],
        slow: SlowCount::default(),
        overrun: OverrunCount::default(),
        conversation: ConversationCount::default(),
        memory: MemoryCount::default(),
        service: ServiceView {
            granted_ppm: Some(1),
            period_ns: Some(1),
            rate: Some(1),
            bit_rate: Some(1),
            used_ppm: Some(1),
            throttled_ppm: Some(1),
            ..ServiceView::default()
        },
    };
    compare(seen, "ServiceView", &state.service, &ServiceView::default());
    compare(seen, "SlowCount", &state.slow, &state.slow);
    compare(seen, "OverrunCount", &state.overrun, &state.overrun);
    compare(seen, "TalkCount", &state.conversation, &state.conversation);
    compare(seen, "MemoryCount", &state.memory, &state.memory);
    let least = PortState {
        switch: None,
        wire: None,
        pipe: None,
        router: None,
        mtu_wanted: None,
        mac_limit: None,
        mac_guard: None,
        pid: None,
        group: None,
        tenant: None,
        pid_met_ns: None,
        hint: None,
        troubles: vec![],
        captures: vec![],
        fault: None,
        queues_wanted: None,
        ..state.clone()
    };
    compare(seen, "PortState", &state, &least);
    let view = PortView { name: s(), number: 0, counters: Sums::default(), state: Some(state) };
    compare(seen, "PortView", &view, &PortView { state: None, ..view.clone() });
    let one = OnePort { version: VERSION, port: view.clone() };
    let least = OnePort { version: VERSION, port: PortView { state: None, ..view.clone() } };
    compare(seen, "OnePort", &one, &least);
    let switch = SwitchView { name: s(), ageing: Some(1), table_size: Some(64), addresses: 0, ports: vec![] };
    compare(seen, "SwitchView", &switch, &SwitchView { ageing: None, table_size: None, ..switch.clone() });
    let switches = Switches { version: VERSION, switches: vec![switch] };
    compare(seen, "Switches", &switches, &switches);
    let tenant = TenantView {
        name: s(),
        ports: vec![],
        service: ServiceView::default(),
        wait_p99_ns: 0,
        cores: vec![],
        overrun: OverrunCount::default(),
    };
    let rule = RuleView { rule: s(), frames: 0, hidden_by: Some(s()) };
    compare(seen, "RuleView", &rule, &RuleView { hidden_by: None, ..rule.clone() });
    let acl = AclView { name: s(), ports: vec![s()], rules: vec![rule] };
    compare(seen, "AclView", &acl, &acl);
    let acls = AclList { version: VERSION, acls: vec![acl] };
    compare(seen, "AclList", &acls, &acls);
    compare(seen, "TenantView", &tenant, &tenant);
    let tenants = TenantList { version: VERSION, tenants: vec![tenant] };
    compare(seen, "TenantList", &tenants, &tenants);
    let member = MemberView {
        name: s(),
        state: "active".to_owned(),
        since_s: 0,
        why: Some(s()),
        weight: 1,
        buckets: 0,
        waiting: 0,
        probes_missed: Some(0),
        ports: vec![],
    };
    compare(seen, "MemberView", &member, &MemberView { why: None, probes_missed: None, ..member.clone() });
    let group =
        GroupView { name: s(), interfaces: vec![], members: vec![member], moved_idle: 0, moved_at_once: 0 };
    compare(seen, "GroupView", &group, &group);
    let groups = GroupList { version: VERSION, groups: vec![group] };
    compare(seen, "GroupList", &groups, &groups);
    let patch = MemberPatch { drain: Some(true), weight: Some(1) };
    compare(seen, "MemberPatch", &patch, &MemberPatch { drain: None, weight: None });
    let ports = Ports { version: VERSION, running: true, ports: vec![], retired: Some(Sums::default()) };
    compare(seen, "Ports", &ports, &Ports { retired: None, ..ports.clone() });

    let address = Address {
        switch: s(),
        mac: s(),
        vlan: Some(1),
        port: s(),
        age_s: 0,
        state: s(),
        claimed_by: Some(s()),
        held_against: Some(s()),
    };
    let least = Address { vlan: None, claimed_by: None, held_against: None, ..address.clone() };
    compare(seen, "Address", &address, &least);
    let addresses = Addresses { version: VERSION, addresses: vec![address] };
    compare(seen, "Addresses", &addresses, &addresses);
    routers(seen);
    let core: CoreView = serde_json::from_value(json!({
        "number": 0, "cpu": 1, "shared": false, "queues": 0, "busy_ns": 0, "idle_ns": 0, "sleep_ns": 0, "busy_rounds": 0,
        "frames": 0, "sleeps": 0
    }))
    .unwrap();
    let full = CoreView { last: Some(LastSecond::default()), ..core.clone() };
    compare(seen, "LastSecond", &LastSecond::default(), &LastSecond::default());
    compare(seen, "CoreView", &full, &core);
    let cores = Cores { version: VERSION, cores: vec![core] };
    compare(seen, "Cores", &cores, &cores);
    let interrupts = InterruptCount::default();
    compare(seen, "InterruptCount", &interrupts, &interrupts);
    let waits = WaitCount::default();
    compare(seen, "WaitCount", &waits, &waits);
    let task: TaskStatus = serde_json::from_value(json!({
        "id": 0, "owner": 0, "index": 0, "core": 0, "heat": "cold", "visits": 0, "empty": 0, "drained": 0, "budget": 0,
        "time": 0, "waits": 0, "early": 0, "moves": 0, "wakes": 0, "busy_ns": 0, "items": 0, "bytes": 0,
        "wait_p50_ns": 0, "wait_p99_ns": 0
    }))
    .unwrap();
    let queue = QueueView {
        port: s(),
        direction: s(),
        index: 0,
        size: 0,
        kind: s(),
        state: s(),
        interrupts: Some(interrupts),
        waits: Some(waits),
        class: Some(s()),
        served: Some(task.clone()),
    };
    compare(seen, "TaskStatus", &task, &task);
    let least = QueueView { interrupts: None, waits: None, class: None, served: None, ..queue.clone() };
    compare(seen, "QueueView", &queue, &least);
    let queues = Queues { version: VERSION, queues: vec![queue] };
    compare(seen, "Queues", &queues, &queues);
    let disk = DiskView {
        port: s(),
        file: s(),
        medium: s(),
        peer: s(),
        capacity: 0,
        block_size: 512,
        readonly: false,
        cache: s(),
        access: Some(s()),
        queues: 0,
        counters: sidecore_engine::disk::Sums::default(),
    };
    let latency = disk.counters.read_latency;
    compare(seen, "Latency", &latency, &latency);
    compare(seen, "DiskView", &disk, &DiskView { access: None, ..disk.clone() });
    let disks = Disks { version: VERSION, disks: vec![disk] };
    compare(seen, "Disks", &disks, &disks);
    let resized = Resized { version: VERSION, capacity: 0, grown: true, told: true };
    compare(seen, "Resized", &resized, &resized);
    let drop = DropView { port: s(), reason: s(), frames: 0, meaning: s() };
    compare(seen, "DropView", &drop, &drop);
    let drops = Drops { version: VERSION, running: true, drops: vec![drop] };
    compare(seen, "Drops", &drops, &drops);

    let document = document();
    let all: BTreeSet<String> =
        document["components"]["schemas"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(*seen, all);
}
