//! The control plane with port kinds that only note that they are open, and refuse when told to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::kinds::{Kind, Location, PLAIN};
use super::*;
use crate::graph::{self, Scheduler};
use crate::observe::CounterFile;
use crate::packet::Offloads;
use crate::port::{Attachment, AttachmentStatus, Peer, Port};

/// What a test's fakes have open. They end on other threads than the test's.
#[derive(Default)]
struct Host {
    /// Places that are open, as sockets and interfaces would be.
    open: Mutex<BTreeSet<String>>,
    /// Places whose carrier is down.
    down: Mutex<BTreeSet<String>>,
    /// A fake at a location with the word "stuck" takes this before it ends.
    gate: Mutex<()>,
}

thread_local! {
    static HOST: Arc<Host> = Arc::default();
}

struct Fake(String, Arc<Host>);

fn start(spec: &PortSpec, port: &Arc<Port>, _: Arc<dyn Scheduler>) -> Result<Box<dyn Attachment>, String> {
    if spec.location.contains("refused") {
        return Err(format!("cannot bind {}: permission denied", spec.location));
    }
    let host = HOST.with(Arc::clone);
    if !host.open.lock().unwrap().insert(spec.location.clone()) {
        return Err(format!("cannot bind {}: address in use", spec.location));
    }
    if spec.location.contains("tunnel") {
        port.set_told();
        port.set_accepts(Offloads::ALL);
        port.set_held(true);
    }
    Ok(Box::new(Fake(spec.location.clone(), host)))
}

impl Drop for Fake {
    fn drop(&mut self) {
        if self.0.contains("stuck") {
            drop(self.1.gate.lock());
        }
        self.1.open.lock().unwrap().remove(&self.0);
        self.1.down.lock().unwrap().remove(&self.0);
    }
}

impl Attachment for Fake {
    fn status(&self) -> AttachmentStatus {
        AttachmentStatus {
            peer: Peer::Waiting,
            detail: self.0.clone(),
            hint: None,
            lack: None,
            features: vec![],
            queues: vec![],
        }
    }

    fn set_link(&mut self, up: bool) -> Result<(), String> {
        if self.0.contains("stiff") && !up {
            return Err("its carrier cannot be put down".to_owned());
        }
        let mut down = self.1.down.lock().unwrap();
        if up {
            down.remove(&self.0);
        } else {
            down.insert(self.0.clone());
        }
        Ok(())
    }

    // No peer ever comes to these ports, so a wire's carrier says nothing here.
    fn follow(&mut self, _: bool) -> Result<(), String> {
        Ok(())
    }
}

const FAKES: &[Kind] = &[
    Kind {
        name: "sock",
        location: Location::Socket,
        keys: "role mode owner queues features-off mac journal",
        features: || vec!["csum".into(), "tso4".into()],
        start,
        ..PLAIN
    },
    Kind { name: "iface", location: Location::Interface, keys: "queues fd", start, ..PLAIN },
    Kind { name: "other", location: Location::Interface, keys: "queues", start, ..PLAIN },
];

fn graph() -> Arc<CoreGraph> {
    Arc::new(CoreGraph::new(graph::Graph::start(&graph::CoreOptions::default()).unwrap()))
}

fn engine() -> Engine {
    let counters = CounterFile::anonymous().unwrap();
    let daemon = DaemonSpec { cores: Some(Cpus(vec![1])), ..DaemonSpec::default() };
    Engine::new(FAKES, graph(), counters, daemon, Box::new(|_| ()))
}

fn port(text: &str) -> PortSpec {
    text::port(text, FAKES).unwrap()
}

fn spec(ports: &[&str]) -> Spec {
    Spec { ports: ports.iter().map(|text| port(text)).collect(), ..Spec::default() }
}

fn open() -> BTreeSet<String> {
    HOST.with(|host| host.open.lock().unwrap().clone())
}

#[test]
fn the_words_of_the_command_line() {
    let full = port("web=sock:/run/w,role=client,mode=0660,owner=kvm:kvm,queues=4,mtu=9000,switch=s,allow-ip=192.0.2.7/32+2001:db8::/64,dhcp-guard=on,ra-guard=on,out-rate=1k,out-bit-rate=1M,out-burst=5,trunk=10,20-30,native=7,vlan-proto=802.1ad,isolated=on,bpdu=drop,storm-broadcast=1,storm-multicast=2,storm-unicast=3,mac-limit=3,mac-guard=strict,allow-mac=vrrp+02:00:00:00:00:07,mac-move=learn,fdb=02:00:00:00:00:08,features-off=csum,tso4,link=down,mac=52:54:00:00:00:01,journal=none");
    let json = toml::to_string(&full).unwrap();
    let back = text::from_toml("x", &format!("[[switch]]\nname='s'\n[[port]]\n{json}"), FAKES).unwrap();
    assert_eq!(back.ports, [full], "the file form says the same");
    let errors = [
        ("web", "allowed: NAME=KIND:WHERE[,key=value]…"),
        ("web=sock", "allowed: NAME=KIND:WHERE[,key=value]…"),
        ("web=e1000:/x", "key `kind`: \"e1000\" is not a kind that this build has; allowed: sock, iface, other"),
        ("web=sock:/x,speed=10", "key `speed`: no such key; allowed: name, kind, where, switch, wire, router, group, member, interface, address, router-mac, rpf, mtu, link, tenant, class, weight, budget, reclaim, rate, bit-rate, allow-ip, dhcp-guard, ra-guard, acl-in, acl-out, out-rate, out-bit-rate, out-burst, mirror, mirror-direction, mirror-acl, mirror-snap, vlan, trunk, native, vlan-proto, isolated, bpdu, mac-limit, mac-guard, allow-mac, mac-move, fdb, storm-broadcast, storm-multicast, storm-unicast, role, mode, owner, queues, features-off, mac, journal"),
        ("web=sock:/x,quues=2", "key `quues`: no such key; did you mean `queues`? allowed: name, kind, where, switch, wire, router, group, member, interface, address, router-mac, rpf, mtu, link, tenant, class, weight, budget, reclaim, rate, bit-rate, allow-ip, dhcp-guard, ra-guard, acl-in, acl-out, out-rate, out-bit-rate, out-burst, mirror, mirror-direction, mirror-acl, mirror-snap, vlan, trunk, native, vlan-proto, isolated, bpdu, mac-limit, mac-guard, allow-mac, mac-move, fdb, storm-broadcast, storm-multicast, storm-unicast, role, mode, owner, queues, features-off, mac, journal"),
        ("t=iface:t0,role=server", "key `role`: does not apply to kind iface; allowed: name, kind, where, switch, wire, router, group, member, interface, address, router-mac, rpf, mtu, link, tenant, class, weight, budget, reclaim, rate, bit-rate, allow-ip, dhcp-guard, ra-guard, acl-in, acl-out, out-rate, out-bit-rate, out-burst, mirror, mirror-direction, mirror-acl, mirror-snap, vlan, trunk, native, vlan-proto, isolated, bpdu, mac-limit, mac-guard, allow-mac, mac-move, fdb, storm-broadcast, storm-multicast, storm-unicast, queues, fd"),
        ("web=sock:/x,queues=17", "key `queues`: \"17\" is not allowed; allowed: a number from 1 to 16"),
        ("web=sock:/x,queues=1,queues=2", "key `queues`: given twice"),
        ("web=sock:/x,queues", "\"queues\" is not key=value"),
        ("web=sock:/x,role=both", "key `role`: \"both\" is not allowed; allowed: server, client"),
        ("web=sock:/x,mode=0999", "key `mode`: \"0999\" is not allowed; allowed: of a socket octal digits from 000 to 0777, such as 0660; of kind xdp copy, zerocopy, auto"),
        ("web=sock:/x,owner=", "key `owner`: \"\" is not allowed; allowed: USER, USER:GROUP or :GROUP, names or numbers"),
        ("web=sock:/x,link=on", "key `link`: \"on\" is not allowed; allowed: up, down"),
        ("web=sock:/x,mtu=67", "key `mtu`: \"67\" is not allowed; allowed: a number from 68 to 65535"),
        ("t=iface:t0,fd=2", "key `fd`: \"2\" is not allowed; allowed: a number from 3 to 1048576"),
    ];
    for (given, why) in errors {
        let error = text::port(given, FAKES).unwrap_err().to_string();
        assert_eq!(error, format!("port {given:?}: {why}"));
    }
    let error = text::named::<SwitchSpec>("s,ageing=0").unwrap_err().to_string();
    assert_eq!(
        error,
        "switch \"s,ageing=0\": key `ageing`: \"0\" is not allowed; allowed: a number from 1 to 86400"
    );
    assert_eq!(text::named::<SwitchSpec>("s,ageing=5").unwrap().ageing.unwrap().get(), 5);
}

#[test]
fn a_bad_file_names_line_key_and_what_is_allowed() {
    const WEB: &str = "[[port]]\nname = 'web'\nkind = 'sock'\nwhere = '/w'\n";
    let cases: &[(&str, &str)] = &[
        ("port = 3", "f.toml:1: key `port` must be a list of tables; allowed: [[port]]"),
        ("\n[ports]\n", "f.toml:2: key `ports` is unknown; allowed: [daemon], [[switch]], [[router]], [[tenant]], [[group]], [[acl]], [[port]]"),
        ("[daemon]\ncore = [1]", "f.toml:2: daemon: key `core`: unknown field `core`, expected one of `cores`, `least-cores`, `balance`, `spin`, `socket`, `socket-mode`, `socket-owner`, `read-socket`, `read-socket-mode`, `read-socket-owner`, `log-format`, `counters`, `vale-ports`, `vale-mode`, `vale-owner`, `sandbox`, `user`"),
        ("[daemon]\ncores = 'all'", "f.toml:2: daemon: key `cores`: \"all\" is not allowed; allowed: numbers of processors and ranges, such as 2,3 or 4-7"),
        ("\n[daemon]\ncores = []", "f.toml:3: daemon: key `cores`: \"\" is not allowed; allowed: numbers of processors and ranges, such as 2,3 or 4-7"),
        (
            "[daemon]\ncores = [2, 1, 2]",
            "f.toml:2: daemon: key `cores`: processor 2 is named twice; allowed: one I/O core each",
        ),
        ("[[switch]]\nname = 's'\nage = 3", "f.toml:3: switch s: key `age`: unknown field `age`, expected one of `name`, `ageing`, `table-size`, `control-frames`, `mac-move`, `control`, `vni`"),
        ("[[switch]]\nname = 's'\ncontrol = 'n'\nvni = 5\n[[switch]]\nname = 't'\ncontrol = '/run/netns/n'\nvni = 5", "f.toml:4: switch s: key `vni`: another switch has it in this namespace; allowed: each vni once in a namespace\nf.toml:3: switch s: key `control`: needs one tunnel without peers on the switch, and there are 0; allowed: one port of kind vxlan\nf.toml:8: switch t: key `vni`: another switch has it in this namespace; allowed: each vni once in a namespace\nf.toml:7: switch t: key `control`: needs one tunnel without peers on the switch, and there are 0; allowed: one port of kind vxlan"),
        ("WEB\nmode = 'copy'", "f.toml:6: port web: key `mode`: is none that kind sock knows; allowed: octal digits, such as 0660"),
        ("[[router]]\nname = 'r'\ncontrol = '../../etc/passwd'", "f.toml:3: router r: key `control`: \"../../etc/passwd\" is no network namespace; allowed: a name as of `ip netns add`, or a path from / on without . and .., of letters, digits and marks"),
        ("[[switch]]\nageing = 3", "f.toml:1: switch: missing field `name`"),
        ("[[switch]]\nname = 'a b'", "f.toml:2: switch a b: key `name`: \"a b\" is no name; allowed: 1 to 63 letters, digits, '.', '_' and '-', the first not '.' or '-'"),
        ("[[switch]]\nname='s'\n[[switch]]\nname='s'", "f.toml:4: switch s: key `name`: another switch has this name"),
        ("WEB\nqueues = 99", "f.toml:6: port web: key `queues`: \"99\" is not allowed; allowed: a number from 1 to 16"),
        ("WEB\nqueues = [1, 2]", "f.toml:6: port web: key `queues`: \"1+2\" is not allowed; allowed: a number from 1 to 16"),
        ("WEB\nmode = 0o660", "f.toml:6: port web: key `mode`: invalid type: integer `432`, expected octal digits in quotes, such as \"0660\", or a word"),
        ("WEB\nfd = 7", "f.toml:6: port web: key `fd`: does not apply to kind sock; allowed: name, kind, where, switch, wire, router, group, member, interface, address, router-mac, rpf, mtu, link, tenant, class, weight, budget, reclaim, rate, bit-rate, allow-ip, dhcp-guard, ra-guard, acl-in, acl-out, out-rate, out-bit-rate, out-burst, mirror, mirror-direction, mirror-acl, mirror-snap, vlan, trunk, native, vlan-proto, isolated, bpdu, mac-limit, mac-guard, allow-mac, mac-move, fdb, storm-broadcast, storm-multicast, storm-unicast, role, mode, owner, queues, features-off, mac, journal"),
        ("WEB\nfeatures-off = ['csum', 'gso']", "f.toml:6: port web: key `features-off`: \"gso\" is not allowed; allowed: csum, tso4"),
        ("WEB\nswitch = 'core'", "f.toml:6: port web: key `switch`: there is no switch \"core\"; allowed: lan"),
        ("WEB\nswitch = 'lan'\nwire = 'w'", "f.toml:7: port web: key `wire`: a port joins one of them; allowed: one of wire, switch"),
        ("WEB\nwire = 'w'\nmac-limit = 2", "f.toml:7: port web: key `mac-limit`: does not apply to a wire, which learns no addresses; allowed: with switch"),
        ("WEB\ntrunk = [10, '30-20']", "f.toml:6: port web: key `trunk`: \"30-20\" is not allowed; allowed: a VLAN from 1 to 4094, or a range such as 20-30"),
        ("WEB\nvlan = 4095", "f.toml:6: port web: key `vlan`: \"4095\" is not allowed; allowed: a number from 1 to 4094"),
        ("WEB\nvlan = 10\ntrunk = [7]", "f.toml:7: port web: key `trunk`: does not apply to an access port; allowed: without vlan"),
        ("WEB\nnative = 7", "f.toml:6: port web: key `native`: does not apply; allowed: with trunk"),
        ("WEB\nvlan-proto = '802.1ad'", "f.toml:6: port web: key `vlan-proto`: does not apply; allowed: with vlan or trunk"),
        ("WEB\ntrunk = [10]\nfdb = ['02:00:00:00:00:01']", "f.toml:7: port web: key `fdb`: a trunk without native has no VLAN for it; allowed: with native, or vlan"),
        ("WEB\nwire = 'w'\nvlan = 10", "f.toml:7: port web: key `vlan`: does not apply to a wire, which learns no addresses; allowed: with switch"),
        ("WEB\nacl-in = 'x'", "f.toml:6: port web: key `acl-in`: there is no access list \"x\"; allowed: none"),
        ("[[acl]]\nname = 'x'\nrules = ['deny src=1.2.3']", "f.toml:3: acl x: key `rules`: \"deny src=1.2.3\": key `src`: \"1.2.3\" is not allowed; allowed: addresses and prefixes, such as 10.0.0.0/8"),
        ("WEB\nmirror = 'web'", "f.toml:6: port web: key `mirror`: \"web\": a port is no mirror of its own; allowed: another port with queues and without a mirror"),
        ("WEB\nmirror = 'ids'", "f.toml:6: port web: key `mirror`: \"ids\": there is no such port; allowed: another port with queues and without a mirror"),
        ("WEB\nmirror = 'b'\n[[port]]\nname = 'b'\nkind = 'sock'\nwhere = '/b'\nmirror = 'web'", "f.toml:6: port web: key `mirror`: \"b\": it has a mirror itself: its copies would be copied again; allowed: another port with queues and without a mirror\nf.toml:11: port b: key `mirror`: \"web\": it has a mirror itself: its copies would be copied again; allowed: another port with queues and without a mirror"),
        ("WEB\nmirror-direction = 'in'", "f.toml:6: port web: key `mirror-direction`: does not apply; allowed: with mirror"),
        ("WEB\nout-burst = 3", "f.toml:6: port web: key `out-burst`: does not apply; allowed: with out-rate or out-bit-rate"),
        ("WEB\nmac-guard = 'claim'", "f.toml:6: port web: key `mac-guard`: claim has nothing to pin; allowed: with mac, or off, strict"),
        ("WEB\nmac-guard = 'strict'", "f.toml:6: port web: key `mac-guard`: strict would drop every frame; allowed: with mac, allow-mac or fdb"),
        ("WEB\nmac-guard = 'on'", "f.toml:6: port web: key `mac-guard`: \"on\" is not allowed; allowed: off, claim, strict"),
        ("WEB\nallow-mac = ['vrrp']", "f.toml:6: port web: key `allow-mac`: does not apply: all may be used; allowed: with mac-guard=strict"),
        ("WEB\nfdb = ['01:00:00:00:00:00']", "f.toml:6: port web: key `fdb`: \"01:00:00:00:00:00\" is not allowed; allowed: an address of one station, such as 52:54:00:12:34:56"),
        ("WEB\nmac-guard = 'strict'\nallow-mac = ['carp']", "f.toml:7: port web: key `allow-mac`: \"carp\" is not allowed; allowed: an address of one station, such as 52:54:00:12:34:56, or vrrp"),
        ("WEB\nwire = 'w'\nfdb = ['02:00:00:00:00:01']", "f.toml:7: port web: key `fdb`: does not apply to a wire, which learns no addresses; allowed: with switch"),
        ("WEB\nmac = '02:00:00:00:00:01'\n[[port]]\nname = 'b'\nkind = 'sock'\nwhere = '/b'\nmac = '02:00:00:00:00:01'", "f.toml:11: port b: key `mac`: port web has 02:00:00:00:00:01 on switch lan, too; choose another, or mac-guard=off at one of them, whose station may come and go"),
        ("WEB\nmac = '02:00:00:00:00:01'\n[[port]]\nname = 'b'\nkind = 'sock'\nwhere = '/b'\nfdb = ['02:00:00:00:00:01']", "f.toml:11: port b: key `fdb`: port web has 02:00:00:00:00:01 on switch lan, too; an address lives at one port"),
        ("[[port]]\nname = 'a'\nkind = 'iface'\nwhere = 't0'\n[[port]]\nname = 'b'\nkind = 'other'\nwhere = 't0'", "f.toml:8: port b: key `where`: port a has this place; choose another"),
        ("WEB\nWEB", "f.toml:7: port web: key `name`: another port has this name\nf.toml:9: port web: key `where`: port web has this place; choose another"),
        ("[[port]]\nname = 'x'\nkind = 'e1000'\nwhere = '/x'", "f.toml:3: port x: key `kind`: \"e1000\" is not a kind that this build has; allowed: sock, iface, other"),
        ("[[port]]\nname = 'x'\nkind = 'iface'\nwhere = 'a-very-long-name'", "f.toml:4: port x: key `where`: \"a-very-long-name\" is no interface name; allowed: 1 to 15 letters, digits or marks without '/'"),
        ("[[port]]\nname = 'x'\nkind = 'sock'", "f.toml:1: port x: missing field `where`"),
        ("a = ", "f.toml:1: string values must be quoted, expected literal string"),
    ];
    for (given, expected) in cases {
        let text = given.replace("WEB", WEB);
        let error = text::from_toml("f.toml", &text, FAKES).unwrap_err().to_string();
        assert_eq!(error, *expected, "for {text}");
    }
    let long = format!("[[port]]\nname='x'\nkind='sock'\nwhere='/{}'", "x".repeat(107));
    let error = text::from_toml("f", &long, FAKES).unwrap_err().to_string();
    assert_eq!(error, "f:4: port x: key `where`: the path is 108 bytes long; a socket's path may have 107");
    let three = "[[port]]\nname='NAME'\nkind='sock'\nwhere='/NAME'\nwire='w'\n";
    let three: String = ["a", "b", "c"].iter().map(|name| three.replace("NAME", name)).collect();
    let error = text::from_toml("f", &three, FAKES).unwrap_err().to_string();
    assert_eq!(error, "f:15: port c: key `wire`: wire w joins a and b already; a wire has two ends");
}

#[test]
fn every_row_of_a_kind_names_keys_of_the_table() {
    let of_kinds = |key: &&crate::util::form::Key| key.scope == crate::util::form::Scope::Kind;
    let there: BTreeSet<&str> = PortSpec::KEYS.iter().filter(of_kinds).map(|key| key.name).collect();
    // The row of a kind without keys names none.
    let named = kinds::KINDS.iter().flat_map(|kind| kind.keys.split(' ')).filter(|key| !key.is_empty());
    assert_eq!(named.collect::<BTreeSet<&str>>(), there);
}

#[test]
fn a_port_comes_changes_and_goes() {
    let engine = engine();
    engine.add(&[port("a=sock:/a")]).unwrap();
    let error = engine.add(&[port("a=sock:/b")]).unwrap_err().to_string();
    assert_eq!(error, "there is a port \"a\" already; change it with `set`, or delete it first");
    let changes = engine.set("a", |_| Ok(port("a=sock:/a,mtu=9000,link=down"))).unwrap();
    assert_eq!(
        (changes[0].verb, changes[0].details.clone()),
        (Verb::Changed, vec!["link: unset → down".to_owned(), "mtu: unset → 9000".to_owned()])
    );
    assert_eq!(engine.port("a").unwrap().mtu(), 9000);
    assert!(HOST.with(|host| host.down.lock().unwrap().contains("/a")));
    let changes = engine.set("a", |_| Ok(port("a=sock:/b"))).unwrap();
    assert_eq!(changes[0].verb, Verb::Restarted);
    assert_eq!((open(), engine.port("a").unwrap().mtu()), (BTreeSet::from(["/b".to_owned()]), 1500));
    let view = &engine.ports().ports[0];
    assert_eq!((view.name.as_str(), view.state.as_ref().unwrap().location.as_str()), ("a", "/b"));
    let error = engine.set("x", |old: &PortSpec| Ok(old.clone())).unwrap_err().to_string();
    assert_eq!(error, "there is no port \"x\"; there are: a");
    let error = engine.set("a", |_| Ok(port("b=sock:/b"))).unwrap_err().to_string();
    assert_eq!(error, "port a: key `name`: a port keeps its name; delete it and add another");
    engine.add(&[SwitchSpec::new("s")]).unwrap();
    engine.add(&[port("c=sock:/c,switch=s")]).unwrap();
    let error = engine.del::<SwitchSpec>(&["s"]).unwrap_err().to_string();
    assert_eq!(error, "switch \"s\" cannot go: port c is joined to it");
    engine.del::<PortSpec>(&["c"]).unwrap();
    engine.del::<SwitchSpec>(&["s"]).unwrap();
    let error = engine.del::<SwitchSpec>(&["lan"]).unwrap_err().to_string();
    assert_eq!(error, "switch \"lan\" cannot go: ports join it unless they say otherwise");
    let graph = Arc::clone(engine.graph());
    drop(engine);
    assert!(open().is_empty() && graph.ports().is_empty());
}

#[test]
fn what_was_chosen_at_the_start_stays() {
    let engine = engine();
    let cores = |cores: Vec<usize>| Spec {
        daemon: DaemonSpec { cores: Some(Cpus(cores)), ..DaemonSpec::default() },
        ..spec(&[])
    };
    assert!(engine.apply(&cores(vec![1]), false).unwrap().is_empty());
    let error = engine.apply(&cores(vec![2]), false).unwrap_err().to_string();
    assert_eq!(error, "[daemon] cores cannot change while the daemon runs; restart it with the new value");
}

#[test]
fn ports_that_swap_places_and_a_failure_between_them() {
    let engine = engine();
    engine.apply(&spec(&["a=sock:/a,wire=w", "b=sock:/b,wire=w", "d=sock:/d"]), false).unwrap();
    let before = numbers(&engine);
    let error = engine.apply(&spec(&["a=sock:/b", "b=sock:/a", "c=sock:/d", "e=sock:/refused"]), false);
    assert_eq!(
        error.unwrap_err().to_string(),
        "port e: cannot bind /refused: permission denied; nothing was changed"
    );
    assert_eq!(numbers(&engine), before);
    assert_eq!(engine.ports().ports.len(), 3);
    let error = engine.apply(&spec(&["a=sock:/b", "b=sock:/a", "c=sock:/d", "d=sock:/refused"]), false);
    assert!(error.unwrap_err().to_string().starts_with("port d: cannot bind"));
    assert_eq!(open(), ["/a", "/b", "/d"].map(str::to_owned).into());
    engine.apply(&spec(&["a=sock:/b,wire=w", "b=sock:/a", "c=sock:/d,wire=w"]), false).unwrap();
    assert_eq!(open(), ["/a", "/b", "/d"].map(str::to_owned).into());
    assert_eq!(numbers(&engine).get("a"), before.get("a"), "a port that restarts keeps its number");
}

/// What stood behind a port says nothing of what stands there now.
#[test]
fn a_port_that_becomes_another_kind_is_as_a_new_one() {
    let engine = engine();
    engine.apply(&spec(&["a=sock:/tunnel,link=down"]), false).unwrap();
    let port = engine.port("a").unwrap();
    assert!(port.is_told() && port.is_silent() && port.is_ready());
    engine.apply(&spec(&["a=iface:a0"]), false).unwrap();
    let now = engine.port("a").unwrap();
    assert!(Arc::ptr_eq(&port, &now), "it is the same port");
    assert!(!now.is_told() && !now.is_silent() && !now.is_ready());
    assert_eq!(now.accepts(), Offloads::NONE);
}

/// One VMM's user can put a file at its socket's name before the daemon starts.
#[test]
fn a_port_that_cannot_start_keeps_no_other_from_running() {
    let engine = engine();
    HOST.with(|host| host.open.lock().unwrap().insert("/b".to_owned()));
    engine.begin(&spec(&["a=sock:/a", "b=sock:/b", "c=sock:/c"])).unwrap();
    let b = || engine.ports().ports.swap_remove(1).state.unwrap();
    assert_eq!((&*b().peer, &*b().detail), ("stopped", "cannot bind /b: address in use"));
    assert_eq!(numbers(&engine).len(), 3, "it has its place among the others");
    // It is no obstacle to other changes, and is changed itself only if it can be started.
    engine.apply(&spec(&["a=sock:/a,mtu=9000", "b=sock:/b", "d=sock:/d"]), false).unwrap();
    let set = |text: &str| engine.put(&port(text)).map(drop);
    set("b=sock:/b,queues=2").unwrap_err();
    engine.try_again();
    assert_eq!(b().peer, "stopped");
    HOST.with(|host| host.open.lock().unwrap().remove("/b"));
    engine.try_again();
    assert_eq!((&*b().peer, b().hint), ("waiting", None));
    assert_eq!(open(), ["/a", "/b", "/d"].map(str::to_owned).into());
    // What makes no sense is an error at the start, too.
    let engine = self::engine();
    engine.begin(&spec(&["a=sock:/x", "b=sock:/x"])).unwrap_err();
}

/// Configurations that make sense, so that what fails does so while it is carried out: each port has a
/// home, from which all may move on by one; one of the homes refuses to lose its carrier, and now and
/// then a port is sent to a location that refuses it.
fn any_spec() -> impl Strategy<Value = Spec> {
    let names = prop::sample::subsequence(vec![0, 1, 2, 3, 4], 0..=5);
    let moved = prop::sample::select(vec![0, 0, 0, 1]);
    let refused = prop::sample::select(vec![0, 1, 2, 3, 4, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9]);
    let options = ["", "", ",mtu=9000", ",link=down", ",queues=2", ",wire=w", ",mac-limit=1", ",switch=s"];
    let options = prop::collection::vec(prop::sample::select(options.to_vec()), 5);
    let switches = prop::sample::select(vec![vec!["s"], vec!["s", "t"]]);
    (names, moved, refused, options, switches).prop_map(|(names, moved, refused, options, switches)| {
        let location = |i: usize| match i == refused {
            true => "/refused",
            false => ["/1", "/2", "/3", "/4", "/stiff"][(i + moved) % 5],
        };
        let text =
            |i: &usize| format!("{}=sock:{}{}", ["a", "b", "c", "d", "e"][*i], location(*i), options[*i]);
        let switches = switches.into_iter().map(SwitchSpec::new).collect();
        Spec { ports: names.iter().map(|i| port(&text(i))).collect(), switches, ..Spec::default() }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn all_or_nothing_and_never_twice(specs in prop::collection::vec(any_spec(), 1..12)) {
        let engine = engine();
        for wanted in specs {
            let before = (engine.spec(), open(), HOST.with(|host| host.down.lock().unwrap().clone()), numbers(&engine));
            let dry = engine.apply(&wanted, true);
            prop_assert_eq!(&before, &(engine.spec(), open(), HOST.with(|host| host.down.lock().unwrap().clone()), numbers(&engine)));
            match engine.apply(&wanted, false) {
                Ok(changes) => {
                    prop_assert_eq!(&changes, &dry.unwrap());
                    let locations: BTreeSet<String> = wanted.ports.iter().map(|p| p.location.clone()).collect();
                    prop_assert_eq!(open(), locations);
                    let down: BTreeSet<String> =
                        wanted.ports.iter().filter(|p| !p.link_wanted()).map(|p| p.location.clone()).collect();
                    prop_assert_eq!(HOST.with(|host| host.down.lock().unwrap().clone()), down);
                    let names: BTreeSet<String> = wanted.ports.iter().map(|p| p.name.clone()).collect();
                    prop_assert_eq!(numbers(&engine).into_keys().collect::<BTreeSet<_>>(), names);
                    prop_assert_eq!(engine.apply(&wanted, false).unwrap(), []);
                    prop_assert_eq!(engine.apply(&engine.spec(), false).unwrap(), []);
                }
                Err(e) => {
                    let refuses = |p: &PortSpec| p.location == "/refused" || p.location == "/stiff" && !p.link_wanted();
                    prop_assert!(dry.is_err() || wanted.ports.iter().any(refuses), "{}", e);
                    prop_assert_eq!(before, (engine.spec(), open(), HOST.with(|host| host.down.lock().unwrap().clone()), numbers(&engine)));
                }
            }
        }
        drop(engine);
        prop_assert!(open().is_empty());
    }
}

/// The numbers of the ports that the cores know.
fn numbers(engine: &Engine) -> BTreeMap<String, u16> {
    let ports = engine.graph().ports();
    let ids: BTreeSet<u16> = ports.values().copied().collect();
    assert_eq!(ids.len(), ports.len(), "two ports have one number");
    ports
}

/// What stands behind a port may take as long as its VMM likes to end: the port is gone at once, and others
/// are answered.
#[test]
fn a_port_that_does_not_end_holds_nothing_up() {
    let engine = engine();
    engine.apply(&spec(&["a=sock:/stuck", "b=sock:/b"]), false).unwrap();
    let id = |name: &str| engine.port(name).unwrap().id;
    let (stuck, host) = (id("a"), HOST.with(Arc::clone));
    let gate = host.gate.lock().unwrap();
    std::thread::scope(|scope| {
        let deleted = scope.spawn(|| engine.del::<PortSpec>(&["a"]));
        // Answered while the request waits; an engine that keeps its lock would hang here for ever.
        while engine.port("a").is_ok() {
            std::thread::yield_now();
        }
        assert_eq!(engine.ports().ports.len(), 1);
        engine
            .set("b", |old: &PortSpec| Ok(PortSpec { mtu: Some("9000".parse().unwrap()), ..old.clone() }))
            .unwrap();
        deleted.join().unwrap().unwrap();
    });
    assert_eq!(numbers(&engine).len(), 1);
    assert!(open().contains("/stuck"));
    // Its place is taken until it has ended; its number rests.
    let error = engine.add(&[port("c=sock:/stuck")]).unwrap_err().to_string();
    assert!(error.contains("address in use"), "{error}");
    engine.add(&[port("d=sock:/d")]).unwrap();
    assert_ne!(id("d"), stuck);
    drop(gate);
    while open().contains("/stuck") {
        std::thread::yield_now();
    }
    engine.add(&[port("c=sock:/stuck")]).unwrap();
    // The end of all of them has a bound, too.
    let gate = host.gate.lock().unwrap();
    assert_eq!(engine.shut_down(), ["c"]);
    drop(gate);
}

/// The words after `NAME=KIND:WHERE,` of a port, applied to one that runs.
fn regrade(engine: &Engine, name: &str, words: &str) -> Result<Vec<Change>, Error> {
    engine.set(name, |old: &PortSpec| Ok(port(&format!("{}={}:{}{words}", old.name, old.kind, old.location))))
}

#[test]
fn a_service_changes_while_the_port_runs_and_comes_back_with_the_configuration() {
    use crate::core::{Class, Service};
    let daemon =
        DaemonSpec { cores: Some(Cpus(vec![3, 4])), least_cores: "1".parse().ok(), ..DaemonSpec::default() };
    let counters = CounterFile::anonymous().unwrap();
    let engine = Engine::new(FAKES, graph(), counters, daemon, Box::new(|_| ()));
    engine
        .add(&[port("a=sock:/a,class=latency,weight=7,budget=2ms/10ms,reclaim=on,rate=2k,bit-rate=1M")])
        .unwrap();
    let served = engine.port("a").unwrap();
    let service = || served.tenant.service();
    let first = service();
    assert_eq!(
        (first.class, first.weight, first.rate.items, first.rate.bits),
        (Class::Latency, 7, Some(2_000), Some(1_000_000))
    );
    assert!(first.budget.is_some_and(|budget| budget.share() == 200_000 && budget.reclaim));
    let before = engine.spec();
    let changes = regrade(&engine, "a", ",weight=9").unwrap();
    assert_eq!((changes[0].verb, service()), (Verb::Changed, Service { weight: 9, ..Service::default() }));
    assert!(open().contains("/a"));
    engine.apply(&before, false).unwrap();
    assert_eq!(service(), first);
    // A change that fails takes it back.
    let wanted = Spec { ports: vec![port("a=sock:/a"), port("b=sock:/refused")], ..Spec::default() };
    engine.apply(&wanted, false).unwrap_err();
    assert_eq!(service(), first);
    // It survives a restart for another reason.
    regrade(&engine, "a", ",weight=5,queues=2").unwrap();
    assert_eq!(service().weight, 5);

    // One of the two cores may rest: budgets have to fit on the other one.
    regrade(&engine, "a", ",budget=60%").unwrap();
    let why = engine.add(&[port("b=sock:/b,budget=40%")]).unwrap_err().to_string();
    assert!(
        why.contains("port b: key `budget`: the budgets (a 60%, b 40%) do not fit on 1 I/O core"),
        "{why}"
    );
    assert!(why.ends_with("allowed: up to 35%"), "{why}");
    engine.add(&[port("b=sock:/b,budget=35%")]).unwrap();
    let why = engine.add(&[port("c=sock:/c,budget=1%")]).unwrap_err().to_string();
    assert!(why.ends_with("allowed: none, nothing is left"), "{why}");
    let why = regrade(&engine, "a", ",reclaim=on").unwrap_err().to_string();
    assert!(why.contains("key `reclaim`: does not apply"), "{why}");
    assert!(engine.set_active(0).is_err() && engine.move_queues("a", None, 0).is_err());
}

#[test]
fn a_tenant_pays_for_its_ports() {
    use crate::core::Service;
    let counters = CounterFile::anonymous().unwrap();
    let daemon = DaemonSpec { cores: Some(Cpus(vec![3])), ..DaemonSpec::default() };
    let engine = Engine::new(FAKES, graph(), counters, daemon, Box::new(|_| ()));
    let refused = |ports: &[PortSpec]| engine.add(ports).unwrap_err().to_string();
    let why = refused(&[port("a=sock:/a,tenant=vm")]);
    assert!(why.contains("key `tenant`: there is no tenant \"vm\"; allowed: none; add it first"), "{why}");
    engine.add(&[text::named::<TenantSpec>("vm,budget=60%,weight=7").unwrap()]).unwrap();
    let why = refused(&[port("a=sock:/a,tenant=vm,weight=9")]);
    assert!(why.contains("key `weight`: does not apply: tenant vm pays for the port"), "{why}");
    engine.add(&[port("a=sock:/a,tenant=vm"), port("b=sock:/b,tenant=vm"), port("c=sock:/c")]).unwrap();
    let ports = ["a", "b", "c"].map(|name| engine.port(name).unwrap());
    assert!(Arc::ptr_eq(&ports[0].tenant, &ports[1].tenant));
    let granted = |at: usize| ports[at].tenant.service();
    assert_eq!((granted(1).weight, granted(2)), (7, Service::default()));
    // A restart of one of them changes nothing of it.
    regrade(&engine, "a", ",tenant=vm,queues=2").unwrap();
    assert_eq!(granted(0).budget.map(|budget| budget.share()), Some(600_000));
    let why = refused(&[port("d=sock:/d,budget=40%")]);
    assert!(why.contains("the budgets (vm 60%, d 40%) do not fit"), "{why}");

    let set = |words: &str| {
        let words = format!("vm{words}");
        engine.set("vm", |_: &TenantSpec| text::named(&words))
    };
    let changes = set(",budget=70ms/200ms").unwrap();
    assert_eq!((&*changes[0].what, changes[0].verb), ("tenant", Verb::Changed));
    assert_eq!(granted(1).budget.map(|budget| budget.share()), Some(350_000));
    assert!(set(",reclaim=on").unwrap_err().to_string().contains("tenant vm: key `reclaim`: does not apply"));
    // What is not carried out leaves it as it was.
    let mut wanted = engine.spec();
    wanted.tenants = vec![text::named("vm,weight=3").unwrap()];
    wanted.ports.push(port("e=sock:/refused"));
    engine.apply(&wanted, false).unwrap_err();
    assert_eq!(granted(0).budget.map(|budget| budget.share()), Some(350_000));

    let why = regrade(&engine, "a", "").unwrap_err().to_string();
    assert!(why.contains("port a: key `tenant`: a port keeps its tenant"), "{why}");
    let why = engine.del::<TenantSpec>(&["vm"]).unwrap_err().to_string();
    assert!(why.contains("it pays for a, b"), "{why}");
    let shown = engine.tenants().tenants;
    assert_eq!((shown.len(), &*shown[0].ports), (1, &["a".to_owned(), "b".to_owned()][..]));
    engine.del::<PortSpec>(&["a", "b"]).unwrap();
    engine.del::<TenantSpec>(&["vm"]).unwrap();
    assert!(engine.tenants().tenants.is_empty() && engine.spec().tenants.is_empty());
}

#[test]
fn a_switch_under_attack_gets_another_table() {
    let engine = engine();
    let ports = ["a=other:a,switch=lan,fdb=02:00:00:00:00:08", "b=other:b,switch=lan"];
    let wanted = Spec { switches: vec![text::named::<SwitchSpec>("lan").unwrap()], ..spec(&ports) };
    engine.apply(&wanted, false).unwrap();
    let known =
        || engine.addresses().addresses.into_iter().map(|known| (known.mac, known.port)).collect::<Vec<_>>();
    let fixed = ("02:00:00:00:00:08".to_owned(), "a".to_owned());
    let by = crate::switch::Teller {
        port: crate::port::PortId(engine.graph().ports()["b"]),
        limit: 0,
        owns: false,
        moves: false,
        now: 1,
        ageing: 300,
    };
    let old = engine.graph().switch("lan");
    old.table.learn(0x0100_0000_0002, &by, |_| true);
    assert_eq!(known().len(), 2);
    old.table.press();
    engine.tick();
    assert!(!Arc::ptr_eq(&old, &engine.graph().switch("lan")));
    assert_eq!(known(), [fixed], "what the operator put behind its ports is there");
    // No core uses the old one any more.
    assert_eq!(Arc::strong_count(&old), 1);
}

#[test]
fn a_router_is_a_member_of_a_group_that_it_is_not_behind() {
    let checked = |router: &str, front: &str, more: &str| {
        let text = format!(
            "[[group]]\nname = 'g'\n[[router]]\nname = 'r'\n[[router]]\nname = 's'\n\
             [[port]]\nname = 'g0'\nkind = 'group'\nwhere = 'g'\ninterface = 0\nmac = '02:00:00:00:00:02'\n{front}\n\
             [[port]]\nname = 'r0'\nkind = 'router'\nwhere = '{router}'\ninterface = 0\nmember = 'm'\n{more}\n"
        );
        text::from_toml("f.toml", &text, kinds::KINDS).map_err(|e| e.to_string())
    };
    let address = "address = ['10.0.0.1/24']";
    for (front, more) in [
        (address, "group = 'g'"),
        (address, "group = 'g'\naddress = ['10.0.0.7/16']\nrpf = 'strict'"),
        ("router = 's'", "group = 'g'\nrouter-mac = '02:00:00:00:00:02'"),
        (address, "group = 'g'\n[[port]]\nname = 'p'\nkind = 'router'\nwhere = 's'\ngroup = 'g'\nmember = 'o'\ninterface = 0"),
    ] {
        assert_eq!(checked("r", front, more).err(), None, "{more}");
    }
    let second = "group = 'g'\n[[port]]\nname = 'p'\nkind = 'ring'\nwhere = 'p'\nrouter = 'r'\naddress = ['10.0.0.1/8']";
    for (router, front, more, why) in [
        ("x", address, "group = 'g'", "port r0: key `where`: there is no router \"x\"; allowed: r, s"),
        ("r", address, "", "port r0: key `group`: missing; a port of kind router is a member's"),
        ("r", "router = 'r'", "group = 'g'", "port g0: key `router`: it is a member of group g, by port r0"),
        (
            "r",
            address,
            "group = 'g'\nrouter = 's'",
            "key `group`: a port joins one of them; allowed: one of group, router",
        ),
        (
            "r",
            address,
            "group = 'g'\nweight = 3",
            "key `weight`: does not apply: the time of its frames is their senders'",
        ),
        ("r", address, "group = 'g'\nmac = '02:00:00:00:00:02'", "key `mac`: does not apply to kind router"),
        (
            "r",
            address,
            "group = 'g'\nrouter-mac = '02:00:00:00:00:09'",
            "key `router-mac`: has to be that of port g0",
        ),
        ("r", address, second, "port p: key `address`: router r has 10.0.0.1 already"),
    ] {
        let said = checked(router, front, more).unwrap_err();
        assert!(said.contains(why), "{said}");
    }
}
