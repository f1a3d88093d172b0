//! The stages of ports: where they hold, in which order, and what they may not do.

use super::*;
use crate::graph::effects::Fate;
use crate::policy::acl::{read_rules, Acl, Action};
use crate::policy::{EgressRate, IpGuard, Mirror, PortVlans, TagProtocol, VlanSet};
use std::time::Duration;

fn list(rules: &[&str]) -> Arc<Acl> {
    Arc::new(Acl::compile(read_rules(rules.iter().copied()).unwrap(), Action::Permit, [7; 8]))
}

fn lists(come: &[&str], go: &[&str]) -> Option<Arc<Policy>> {
    Policy { acl: [come, go].map(|rules| (!rules.is_empty()).then(|| list(rules))), ..Policy::default() }
        .compile()
}

impl Rig {
    /// Joins its ports anew.
    fn join(&mut self, attach: impl Fn(u16, &Attach) -> Attach, policy: impl Fn(u16) -> Option<Arc<Policy>>) {
        let of = |port: &Arc<Port>| {
            let member = self.topology.get(port.id).unwrap();
            (Arc::clone(port), attach(port.id.0, &member.attach))
        };
        let joined: Vec<_> = self.ports.iter().map(of).collect();
        self.topology = Topology::with_policies(&joined, |id| policy(id.0));
        self.walk.delivery.acl_cache.open();
    }

    /// What is said of `frame`: the last step at a port.
    fn told(&self, from: u16, frame: &[u8]) -> Vec<(u16, String)> {
        let told = self.topology.explain(PortId(from), frame);
        let of = |fate: &Fate| match fate {
            Fate::Passes => "pass".to_owned(),
            Fate::Dropped(why) => why.name().to_owned(),
            Fate::Out => "out".to_owned(),
            Fate::Routed(_) => "route".to_owned(),
            Fate::Shared => "group".to_owned(),
        };
        told.iter().map(|step| (step.port.0, of(&step.fate))).collect()
    }
}

/// A frame with many bytes for everybody.
fn frame(from: u16, rest: &[u8]) -> Vec<u8> {
    let mut bytes = [&[0xff; 6][..], &mac(from), rest].concat();
    bytes.resize(bytes.len().max(100), 7);
    bytes
}

/// The list of what goes out by a group's interface holds wherever that stands, and so does what comes in by
/// it.
#[test]
fn lists_of_a_groups_interface_hold_on_a_wire_and_at_a_router() {
    let deny = ["deny proto=udp"];
    let mut rig = super::group::group();
    let to_wire = |id: u16, attach: &Attach| match attach {
        Attach::Interface(interface) => {
            let mut interface = (**interface).clone();
            interface.beyond = Attach::Wire(PortId(0));
            Attach::Interface(Arc::new(interface))
        }
        _ if id == 0 => Attach::Wire(PortId(super::group::FRONT)),
        other => other.clone(),
    };
    let front = super::group::FRONT;
    rig.join(to_wire, |id| if id == front { lists(&[], &deny) } else { None });
    let datagram = super::group::datagram(0, true);
    assert_eq!(rig.told(0, &datagram), [(front, "acl".to_owned())]);
    assert_eq!(rig.send(0, std::slice::from_ref(&datagram)), []);
    assert_eq!(rig.drops(front)["acl"], 1);
    // What members send comes in by it.
    let answer = super::group::datagram(0, false);
    assert_eq!(to(&rig.send(super::group::MEMBERS[0], std::slice::from_ref(&answer))), [0]);
    rig.join(|_, attach| attach.clone(), |id| if id == front { lists(&deny, &[]) } else { None });
    assert_eq!(rig.send(super::group::MEMBERS[0], &[answer]), []);
    assert_eq!(rig.send(0, &[datagram]).len(), 1);
    assert_eq!(rig.drops(front)["acl"], 2);
}

/// At a gateway *in* is into the router: each list is asked once, and a mirror gets what passes in its
/// direction.
#[test]
fn a_gateways_directions_are_its_routers() {
    let sent = packet(0, 2, ip(3), 300);
    let routed = || {
        let mut rig = Rig::new();
        rig.meet(0, 2);
        rig.meet(3, 5);
        rig
    };
    for (at, come, go, dropped) in [
        (2, &["deny proto=udp"][..], &[][..], true),
        (2, &[], &["deny proto=udp"], false),
        (5, &["deny proto=udp"], &[], false),
        (5, &[], &["deny proto=udp"], true),
    ] {
        let mut rig = routed();
        rig.join(|_, attach| attach.clone(), |id| if id == at { lists(come, go) } else { None });
        let got = rig.send(0, std::slice::from_ref(&sent));
        assert_eq!((got.len(), rig.drops(at).get("acl")), if dropped { (0, Some(&1)) } else { (1, None) });
        let policy = rig.topology.get(PortId(at)).unwrap().policy.clone().unwrap();
        let counted: u64 = policy.acl.iter().flatten().flat_map(|acl| acl.counts()).sum();
        assert_eq!(counted, u64::from(dropped), "a list is asked once, and the other is not");
    }
    for (at, ways, copies) in
        [(2, [true, false], 1), (2, [false, true], 0), (5, [true, false], 0), (5, [false, true], 1)]
    {
        let mut rig = routed();
        let mirror = || Some(Mirror { to: PortId(6), ways, acl: None, snap: None });
        let policy = |id| match id == at {
            true => Policy { mirror: mirror(), ..Policy::default() }.compile(),
            false => None,
        };
        rig.join(|_, attach| attach.clone(), policy);
        let got = rig.send(0, std::slice::from_ref(&sent));
        assert_eq!(got.iter().filter(|(to, _)| *to == 6).count(), copies, "{at} {ways:?}");
    }
}

/// The inner one of two tags is the sender's: it names no VLAN to anybody.
#[test]
fn a_second_tag_never_becomes_the_first() {
    let port = |own, tagged: &[u16], protocol| {
        let set = (!tagged.is_empty()).then(|| VlanSet::new(tagged.iter().map(|it| (*it, *it))));
        Policy { vlans: Some(PortVlans::new(own, set, protocol)), ..Policy::default() }.compile()
    };
    let (c, s) = (TagProtocol::Customer, TagProtocol::Service);
    let mut rig = Rig::switch(&[port(10, &[], c), port(10, &[20], c), port(10, &[], s), port(20, &[10], c)]);
    let tags = |tags: &[u16]| {
        let tags: Vec<u8> = tags.iter().flat_map(|it| [0x81, 0, 0, u8::try_from(*it).unwrap()]).collect();
        frame(0, &[&tags[..], &[0x88, 0xb5], &[7; 100]].concat())
    };
    for outer in [0, 10] {
        let got = rig.send(0, &[tags(&[outer, 20])]);
        // To the provider's port an inner tag of the customer is payload; the other trunk's frames of VLAN 10
        // have a tag.
        assert_eq!(got, [(2, tags(&[20])), (3, tags(&[10, 20]))]);
        assert_eq!(rig.told(0, &tags(&[outer, 20]))[1], (1, "vlan".to_owned()));
    }
    assert_eq!(rig.drops(1)["vlan"], 2);
    // One tag is enough where it is payload to the sender's port.
    let mut one = tags(&[20]);
    one[6..12].copy_from_slice(&mac(2));
    assert_eq!(to(&rig.send(2, &[one])), [3]);
    assert_eq!((rig.drops(0)["vlan"], rig.drops(1)["vlan"]), (1, 3));
}

/// Tag and length are looked at before any list, and a frame that a list refuses teaches nothing.
#[test]
fn stages_have_their_order() {
    let vlans = Some(PortVlans::new(10, None, TagProtocol::Customer));
    let all = Some(list(&["deny type=0x88b5"]));
    let guard = SourceGuard::new(MacGuard::Strict, 0, &[], &[], false);
    let policy = Policy { vlans, acl: [all, None], guard, ..Policy::default() };
    let other = Policy { vlans: Some(PortVlans::new(10, None, TagProtocol::Customer)), ..Policy::default() };
    let mut rig = Rig::switch(&[policy.compile(), other.compile()]);
    let mut long = frame(0, &[0x88, 0xb5]);
    long.resize(1700, 0);
    let foreign = frame(0, &[0x81, 0, 0, 20, 0x88, 0xb5]);
    rig.send(0, &[long, foreign, frame(0, &[0x88, 0xb5]), frame(0, &[0x88, 0xb6])]);
    let one = |name| (name, 1);
    assert_eq!(rig.drops(0), ["acl", "mac_guard", "too_long", "vlan"].map(one).into());
    assert_eq!(rig.switches[0].table.count(PortId(0)), 0);
}

/// A receiver that writes into the sender's memory, as a guest does that rewrites a frame while it is copied.
struct Rewriter(Arc<Mutex<Arena>>, Vec<u8>);

impl EgressQueue for Rewriter {
    fn send(&mut self, batch: &Batch, picks: &[u16], outcome: &mut Outcome) {
        picks.iter().for_each(|pick| outcome.delivered(batch.frame(*pick).len));
        self.0.lock().unwrap().put(0, &self.1, 0);
    }
}

/// Whoever rewrites headers after they were judged changes nothing: the receiver gets those that were judged.
#[test]
fn what_was_judged_is_what_arrives() {
    let tcp = |port: u8| {
        // Options to the end of the head and beyond it; the ports lie at byte 86.
        let options = [&[6, 3, 1, 28][..], &[0; 28]].concat();
        let fixed = [&[0x60, 0, 0, 0, 0, 92, 60, 64][..], &six(0), &six(1)].concat();
        frame(0, &[&[0x86, 0xdd][..], &fixed, &options, &[1, 1, 0, port], &[0; 8], &[0x50, 0x10]].concat())
    };
    let (judged, forged) = (tcp(80), tcp(22));
    let deny = ["deny proto=tcp dport=22"];
    let guard = IpGuard::new(None::<std::iter::Empty<_>>, true, true);
    for (come, go, ip_guard) in
        [(&deny[..], &[][..], None), (&[], &deny, None), (&["deny proto=udp"], &[], guard)]
    {
        let mut rig = Rig::switch(&[None, None, None]);
        let acl = [come, &[]].map(|rules| (!rules.is_empty()).then(|| list(rules)));
        let sender = Policy { acl, ip_guard, ..Policy::default() }.compile();
        rig.join(
            |_, attach| attach.clone(),
            |id| match id {
                0 => sender.clone(),
                2 => lists(&[], go),
                _ => None,
            },
        );
        let memory = Arc::new(Mutex::new(Arena::new(1, 256)));
        rig._queues.0.remove(1);
        let rewriter = rig.ports[1].lend(0, Rewriter(Arc::clone(&memory), forged.clone()));
        let mut batch = Batch::new();
        let piece = memory.lock().unwrap().put(0, &judged, HEAD);
        let offload = crate::packet::Offload::NONE;
        assert!(batch.push_with(&judged, judged.len(), offload, |pieces| pieces.push(piece)));
        let source = Source { topology: &rig.topology, port: &rig.ports[0] };
        rig.walk.forward(source, &mut batch, None);
        assert_eq!(rig.got.lock().unwrap()[..], [(2, judged.clone())]);
        drop(rewriter);
    }
}

/// A thousand questions change no counter, no table and no bucket.
#[test]
fn explaining_changes_nothing() {
    let few = StormLimits { broadcast: 100, ..StormLimits::default() };
    let rate = || EgressRate::new(Some(10), None, Duration::from_secs(1));
    let mirror = Some(Mirror { to: PortId(2), ways: [true; 2], acl: Some(list(&[])), snap: Some(70) });
    let acl = Some(list(&["permit type=0x88b5"]));
    let sender = Policy {
        storm: Storm::new(few),
        acl: [acl.clone(), None],
        mac_limit: 1,
        mirror,
        ..Policy::default()
    };
    let receiver = Policy { egress_rate: rate(), acl: [None, acl.clone()], ..Policy::default() };
    let mut rig = Rig::switch(&[sender.compile(), receiver.compile(), None]);
    rig.walk.delivery.acl_cache.open();
    let asked = frame(0, &[0x88, 0xb5]);
    let all = |rig: &Rig| {
        let sums: Vec<_> = rig.ports.iter().map(|port| format!("{:?}", port.counters.totals())).collect();
        (sums, acl.as_ref().unwrap().counts(), rig.switches[0].table.count(PortId(0)))
    };
    let before = all(&rig);
    for _ in 0..1000 {
        let told = rig.topology.explain(PortId(0), &asked);
        assert!(told.iter().all(|step| !matches!(step.fate, Fate::Dropped(_))));
    }
    assert_eq!(all(&rig), before);
    // Limits are looked at: what they would drop now is said.
    assert_eq!(rig.send(0, &vec![asked.clone(); 30]).iter().filter(|(to, _)| *to == 1).count(), 5);
    assert!(rig.told(0, &asked).contains(&(0, "storm_broadcast".to_owned())));
}

/// What a mirror's list refuses is no copy, and nothing is said of one at the frame's other ports.
#[test]
fn a_copy_that_is_not_made_is_not_told() {
    let mirror =
        Some(Mirror { to: PortId(2), ways: [true; 2], acl: Some(list(&["deny type=0x88b5"])), snap: None });
    let rig = Rig::switch(&[Policy { mirror, ..Policy::default() }.compile(), None, None]);
    let told = rig.topology.explain(PortId(0), &frame(0, &[0x88, 0xb5]));
    assert!(told.len() == 3 && told.iter().all(|step| !step.why.contains("a copy")));
}

/// What the operator put behind a port stays there while that is down: who else uses the address learns
/// nothing by it.
#[test]
fn an_address_that_stays_at_a_port_that_is_down_is_foreseen() {
    let few = Policy { mac_limit: 1, ..Policy::default() };
    let mut rig = Rig::switch(&[few.compile(), None, None]);
    let number = |[a, b, c, d, e, f]: [u8; 6]| u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
    rig._queues.0.remove(1);
    assert!(rig.switches[0].pin(number(mac(1)), PortId(1), crate::switch::Kind::Static, 0));
    assert_eq!(rig.send(0, &[frame(0, &[0x88, 0xb5])]).len(), 1);
    let others = frame(1, &[0x88, 0xb5]);
    assert_eq!(rig.told(0, &others), [(0, "pass".to_owned()), (2, "out".to_owned())]);
    assert_eq!(rig.send(0, std::slice::from_ref(&others)), [(2, others)]);
    assert_eq!(rig.switches[0].table.lookup(number(mac(1))).map(|it| it.port), Some(PortId(1)));
}
