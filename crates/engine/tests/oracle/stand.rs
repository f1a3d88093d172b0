//! The engine's side: ports whose peers are in this file, a graph that is made of a configuration as the
//! daemon makes it, and a hand that visits queues in place of an I/O core.

use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::card::Card;
use super::config::Config;
use super::frames::Sent;
use super::guest::{Format, Guest};
use super::options::{
    endpoint, peers, CARDS, FAR, GATEWAY, INTERFACE, MEMBERS, SHARED, TOLD, TOLD_HOSTS, TOLD_VNI, TUNNELS,
    VNI, WIRE,
};
use super::plain::Asked;
use super::ring::Program;
use super::AT_ONCE;
use rustix::net::sockopt;
use rustix::thread::{sched_getcpu, sched_setaffinity, CpuSet};
use sidecore_engine::core::{Budget, Lease, Recall, TaskHandle};
use sidecore_engine::graph::{self, Fate, Local, QueueHandle, Scheduler, Topology};
use sidecore_engine::host::vxlan::{self, Vxlan, VxlanConfig};
use sidecore_engine::mem::Arena;
use sidecore_engine::observe::CounterFile;
use sidecore_engine::packet::{Batch, Offload, Offloads, HEAD};
use sidecore_engine::port::{
    DropReason, EgressQueue, IngressQueue, Outcome, Port, PortId, Tally, DEFAULT_MTU,
};
use sidecore_engine::router::Gateway;
use sidecore_engine::state::{CoreGraph, PortSpec, RouterSpec, Spec};
use sidecore_engine::switch::Switch;

/// A frame that came out: by which port, its bytes, and what its receiver is asked for.
pub type Got = (usize, Vec<u8>, Asked);

/// How a datagram without a frame is counted.
const LAST: &str = "vxlan_header";

/// After this long nothing comes any more.
const LIMIT: Duration = Duration::from_secs(60);

/// Bytes of the longest frame.
const MOST: usize = 16 * 1024;

type Waiting = Arc<Mutex<VecDeque<Sent>>>;

/// Sends what waits.
struct Source(Waiting, Arena);

impl Source {
    /// Describes a frame, whose bytes behind the first ones lie in two pieces.
    fn describe(&mut self, slot: usize, sent: &Sent, batch: &mut Batch) -> Result<(), DropReason> {
        let Sent { bytes, asked, .. } = sent;
        let near = bytes.len().min(HEAD);
        if near < 14 {
            return Err(DropReason::TooShort);
        }
        let offload = Offload::parse(&asked.bytes(), &bytes[..near], bytes.len(), Offloads::ALL)
            .map_err(|_| DropReason::BadOffload)?;
        let mut parts = Vec::new();
        if bytes.len() > HEAD {
            let mut rest = self.1.put(slot, bytes, HEAD);
            let first = rest.first(usize::from(bytes[HEAD]) % (rest.len() + 1));
            rest.advance(first.len());
            parts.extend([first, rest].into_iter().filter(|part| !part.is_empty()));
        }
        let fits = batch.push_with(&bytes[..near], bytes.len(), offload, |to| {
            parts.into_iter().all(|part| to.push(part))
        });
        assert!(fits);
        Ok(())
    }
}

impl IngressQueue for Source {
    fn fetch(&mut self, batch: &mut Batch, tally: &mut Tally) {
        let waiting = std::mem::take(&mut *self.0.lock().unwrap());
        for (slot, sent) in waiting.iter().enumerate() {
            tally.frames += 1;
            tally.bytes += sent.bytes.len() as u64;
            if let Err(why) = self.describe(slot, sent, batch) {
                tally.drops.add(why, 1);
                batch.skip();
            }
        }
    }

    fn release(&mut self, _: &mut Tally) {}

    fn want_kicks(&mut self, _: bool) -> bool {
        false
    }

    fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Notes what comes.
struct Sink(usize, Arc<Mutex<Vec<Got>>>);

impl EgressQueue for Sink {
    fn send(&mut self, batch: &Batch, picks: &[u16], outcome: &mut Outcome) {
        for pick in picks {
            let frame = batch.frame(*pick);
            let mut bytes = frame.head().to_vec();
            for piece in batch.body(frame) {
                let mut part = vec![0; piece.len()];
                assert_eq!(piece.read(&mut part), part.len());
                bytes.extend(part);
            }
            assert_eq!(bytes.len(), frame.len as usize);
            outcome.delivered(frame.len);
            self.1.lock().unwrap().push((self.0, bytes, Asked::read(&frame.offload.to_bytes(0))));
        }
    }
}

/// Who gets what comes out by a port.
enum Receiver {
    Sink(#[allow(dead_code, reason = "it ends with this")] Lease<Sink>),
    Guest(Box<Guest>),
    Program(Box<Program>),
    Card(Box<Card>),
}

impl Receiver {
    /// That behind port `n`.
    fn new(n: usize, port: &Arc<Port>, got: &Arc<Mutex<Vec<Got>>>) -> Receiver {
        let guest = |packed, merges| Receiver::Guest(Box::new(Guest::new(port, Format { packed, merges })));
        match n {
            0 => guest(false, true),
            1 => guest(false, false),
            2 => guest(true, true),
            _ if n == FAR[0] => guest(true, false),
            _ if n == 3 || n == WIRE[0] => Receiver::Program(Box::new(Program::new(port))),
            _ => Receiver::Sink(port.lend(0, Sink(n, Arc::clone(got)))),
        }
    }
}

/// A task of a port, while it is not taken back.
type Served = (usize, Option<TaskHandle<Local>>);

/// Visits tasks.
#[derive(Default)]
struct Hand(Mutex<Vec<Served>>);

impl Scheduler for Hand {
    fn serve_queue(self: Arc<Self>, handle: QueueHandle) -> Recall {
        let mut all = self.0.lock().unwrap();
        let place = all.len();
        all.push((handle.port().id.0.into(), Some(handle.task())));
        drop(all);
        Box::new(move || {
            let task = self.0.lock().unwrap()[place].1.take();
            task.into_iter().for_each(TaskHandle::return_to_owner);
        })
    }
}

/// What is said of a frame, or happened to it: by which ports it leaves, and who drops it and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    pub out: Vec<usize>,
    /// It comes to a router or a group.
    pub reached: bool,
    pub drops: Vec<(usize, &'static str)>,
}

/// The port of the name in `spec`.
fn port_of<'p>(ports: &'p [Arc<Port>], spec: &PortSpec) -> &'p Arc<Port> {
    &ports[spec.name[1..].parse::<usize>().unwrap()]
}

/// An address as switches have it.
fn number([a, b, c, d, e, f]: [u8; 6]) -> u64 {
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

/// This thread stays on its processor.
fn pin() {
    let mut here = CpuSet::new();
    here.set(sched_getcpu());
    sched_setaffinity(None, &here).unwrap();
}

/// The end of the tunnels on `host`.
fn end(host: usize) -> SocketAddr {
    SocketAddr::new(endpoint(host), 4789)
}

/// Ports with nobody behind them but this test.
pub struct Stand {
    ports: Vec<Arc<Port>>,
    waiting: Vec<Waiting>,
    receivers: Vec<Option<Receiver>>,
    hand: Arc<Hand>,
    local: Local,
    graph: CoreGraph,
    topology: Arc<Topology>,
    got: Arc<Mutex<Vec<Got>>>,
    counted: Vec<Vec<(&'static str, u64)>>,
    /// Sends what is no frame to the ends of tunnels: behind all frames that are on their way.
    last: UdpSocket,
    /// The other end of the tunnel of which a control plane tells.
    beyond: UdpSocket,
    _sources: Vec<Lease<Source>>,
    _tunnels: Vec<Vxlan>,
    _inside: [Gateway; 3],
    _file: CounterFile,
}

impl Stand {
    pub fn new(ports: usize) -> Stand {
        pin();
        let file = CounterFile::anonymous().unwrap();
        let port = |n: usize| {
            let (id, name) = (PortId(n as u16), format!("p{n}"));
            Arc::new(Port::new(id, &name, file.open_slot(id, &name), DEFAULT_MTU).unwrap())
        };
        let ports: Vec<_> = (0..ports).map(port).collect();
        let inside = [GATEWAY, INTERFACE, SHARED].map(|n| Gateway::open(&ports[n], String::new()));
        let graph = CoreGraph::new(graph::Graph::start(&graph::CoreOptions::default()).unwrap());
        graph.prepare_router(&RouterSpec::new("r")).unwrap();
        let hand = Arc::<Hand>::default();
        let waiting: Vec<Waiting> = ports.iter().map(|_| Waiting::default()).collect();
        let scheduler = Arc::clone(&hand) as Arc<dyn Scheduler>;
        let (mut sources, mut tunnels) = (Vec::new(), Vec::new());
        for (n, port) in ports.iter().enumerate() {
            let tunnel =
                TUNNELS.iter().position(|it| *it == n).map(|host| (end(host), VNI, Some(peers(host))));
            let told = (n == TOLD).then(|| (end(TOLD_HOSTS[0]), TOLD_VNI, None));
            match tunnel.or(told) {
                Some((at, vni, peers)) => {
                    let config = VxlanConfig { at, vni, peers, ttl: 64, dscp: 0 };
                    tunnels.push(Vxlan::start(config, port, &scheduler).unwrap());
                }
                None => {
                    let source = Source(Arc::clone(&waiting[n]), Arena::new(AT_ONCE, MOST));
                    sources.push(scheduler.serve(port, 0, source));
                }
            }
        }
        let mut receivers: Vec<Option<Receiver>> = ports.iter().map(|_| None).collect();
        for (n, kind) in CARDS {
            receivers[n] = Some(Receiver::Card(Box::new(Card::new(kind, &ports[n], &scheduler))));
        }
        Stand {
            receivers,
            counted: ports.iter().map(|_| Vec::new()).collect(),
            ports,
            waiting,
            hand,
            local: Local::by_hand(),
            graph,
            _inside: inside,
            topology: Arc::default(),
            got: Arc::default(),
            last: UdpSocket::bind((endpoint(0), 0)).unwrap(),
            beyond: {
                let socket = UdpSocket::bind(end(TOLD_HOSTS[1])).unwrap();
                socket.set_read_timeout(Some(LIMIT)).unwrap();
                sockopt::set_socket_recv_buffer_size(&socket, 1 << 20).unwrap();
                socket
            },
            _sources: sources,
            _tunnels: tunnels,
            _file: file,
        }
    }

    /// Has the ports be what `config` says, which `spec` says as the operator does.
    pub fn configure(&mut self, config: &Config, spec: &Spec) {
        let ports = self.ports.clone();
        let placed: Vec<_> = spec.ports.iter().map(|spec| (spec, port_of(&ports, spec))).collect();
        for (its, port) in &placed {
            let n = usize::from(port.id.0);
            port.set_mtu(its.mtu.map_or(DEFAULT_MTU, |mtu| mtu.get()));
            port.set_silent(!its.link_wanted());
            if let (Some(Receiver::Card(card)), Some(setup)) = (&mut self.receivers[n], config.ports[n].card)
            {
                card.set_up(setup, its.link_wanted());
                continue;
            }
            port.set_accepts(Offloads::from_bits(config.ports[n].accepts));
            if [GATEWAY, INTERFACE, SHARED, TOLD].contains(&n) {
                continue;
            }
            if let Some(host) = TUNNELS.iter().position(|it| *it == n) {
                let known = vxlan::vteps(end(host), VNI).unwrap();
                known.forget();
                known.flood(&peers(host));
                continue;
            }
            match (its.link_wanted(), &self.receivers[n]) {
                (true, None) => {
                    self.receivers[n] = Some(Receiver::new(n, port, &self.got));
                }
                (false, Some(_)) => self.receivers[n] = None,
                _ => {}
            }
        }
        if config.has(TOLD) {
            let known = vxlan::vteps(end(TOLD_HOSTS[0]), TOLD_VNI).unwrap();
            known.forget();
            known.flood(&[endpoint(TOLD_HOSTS[1])]);
        }
        self.graph.publish(spec, &placed);
        if config.has(MEMBERS[0]) {
            // A member joins that has spoken.
            self.topology = Arc::new(self.graph.topology());
            self.local.connect(&self.topology);
            for port in MEMBERS {
                let bytes = [&[0xff; 6][..], &[2, 0, 0, 0, port as u8, 0], &[0x88, 0xb5], &[0; 46]].concat();
                self.send(&[Sent::plain(port, bytes)]);
            }
            self.graph.publish(spec, &placed);
        }
        self.topology = Arc::new(self.graph.topology());
        self.local.connect(&self.topology);
        let vlan = u64::from(config.ports[TOLD].own()) << 48;
        for (station, stays) in &config.told {
            let number = number(*station);
            vxlan::vteps(end(TOLD_HOSTS[0]), TOLD_VNI).unwrap().put(number, endpoint(TOLD_HOSTS[1]));
            let tell = |switch: &Switch, now| switch.tell(number | vlan, PortId(TOLD as u16), *stays, now);
            assert_eq!(self.graph.table(&spec.switches[0].name, tell), Some(true));
        }
    }

    /// Has the graph be what `spec` says, without new ports.
    pub fn publish(&mut self, spec: &Spec) {
        let ports = self.ports.clone();
        let placed: Vec<_> = spec.ports.iter().map(|spec| (spec, port_of(&ports, spec))).collect();
        self.graph.publish(spec, &placed);
        self.topology = Arc::new(self.graph.topology());
        self.local.connect(&self.topology);
    }

    /// The switch of this name has heard nothing for longer than any ageing time.
    pub fn age(&self, name: &str) {
        self.graph.table(name, |switch, now| switch.age(now + 100_000, |_| false)).unwrap();
    }

    /// Many stations speak behind port `n`, to one of them.
    pub fn crowd(&mut self, n: usize) {
        let one = [2, 0, 0, 4, 0, 0];
        for high in 0..20 {
            let frame = |low: u8| {
                let bytes = [&one[..], &[2, 0, 0, 4, high, low], &[0x88, 0xb5], &[0; 46]].concat();
                Sent::plain(n, bytes)
            };
            let all: Vec<Sent> = (0..=255).map(frame).collect();
            self.send(&all);
        }
    }

    /// What would become of the frame.
    pub fn explain(&self, sent: &Sent) -> (Told, String) {
        let steps = self.topology.explain(PortId(sent.port as u16), &sent.made());
        let (mut told, mut words) = (Told::default(), String::new());
        for step in &steps {
            let port = usize::from(step.port.0);
            let fate = match &step.fate {
                Fate::Out => {
                    told.out.push(port);
                    "out"
                }
                Fate::Dropped(why) => {
                    told.drops.push((port, why.name()));
                    why.name()
                }
                Fate::Passes => "passes",
                Fate::Routed(_) => {
                    told.reached = true;
                    "routed"
                }
                Fate::Shared => {
                    told.reached = true;
                    "shared"
                }
            };
            words.push_str(&format!("  port {port}: {fate} {}\n", step.why));
        }
        told.out.sort_unstable();
        told.drops.sort_unstable();
        (told, words)
    }

    /// What comes out when the frames come in by one port, in one visit, and who drops them and why.
    pub fn send(&mut self, sent: &[Sent]) -> (Vec<Got>, Vec<(usize, &'static str)>) {
        let port = sent[0].port;
        let of_card = |it: &Sent| it.work.is_some() || it.asked == Asked::default() && it.bytes.len() >= 14;
        match &mut self.receivers[port] {
            Some(Receiver::Card(card)) if sent.iter().all(of_card) => {
                sent.iter().for_each(|it| card.send(it));
            }
            _ if port == TOLD => {
                let header = [8, 0, 0, 0, 0, 0, TOLD_VNI as u8, 0];
                for it in sent {
                    let datagram = [&header[..], &it.bytes].concat();
                    self.beyond.send_to(&datagram, end(TOLD_HOSTS[0])).unwrap();
                }
            }
            _ => self.waiting[port].lock().unwrap().extend(sent.iter().cloned()),
        }
        let went = |it: &Stand, n: usize| it.ports[n].counters.totals().out_frames;
        let before = [&TUNNELS[..], &[TOLD]].concat().into_iter().map(|n| (n, went(self, n)));
        let before: Vec<(usize, u64)> = before.collect();
        match port {
            TOLD => self.come_out(TOLD, TOLD_HOSTS[0]),
            _ => self.visit(port),
        }
        assert!(self.waiting[port].lock().unwrap().is_empty(), "it was not fetched");
        let (tunnels, told) = before.split_at(TUNNELS.len());
        if tunnels.iter().any(|(n, count)| went(self, *n) != *count) {
            TUNNELS.iter().zip(0..).for_each(|(n, host)| self.come_out(*n, host));
        }
        let beyond = told.iter().any(|(n, count)| went(self, *n) != *count);
        let mut drops = Vec::new();
        for (n, port) in self.ports.iter().enumerate() {
            let now: Vec<(&'static str, u64)> = port.counters.totals().named_drops().collect();
            for (why, count) in now.iter().filter(|(why, _)| *why != LAST) {
                let before = self.counted[n].iter().find(|(it, _)| it == why).map_or(0, |(_, count)| *count);
                (before..*count).for_each(|_| drops.push((n, *why)));
            }
            self.counted[n] = now;
        }
        let mut got = std::mem::take(&mut *self.got.lock().unwrap());
        if beyond {
            // What is sent now is the last to come, as at `come_out`.
            self.last.send_to(&[0], end(TOLD_HOSTS[1])).unwrap();
            let mut datagram = vec![0; 1 << 16];
            while let Some(frame) =
                self.beyond.recv(&mut datagram).map(|len| datagram[..len].get(8..)).unwrap()
            {
                got.push((TOLD, frame.to_vec(), Asked::default()));
            }
        }
        for (n, receiver) in self.receivers.iter_mut().enumerate() {
            let came = match receiver {
                Some(Receiver::Guest(guest)) => guest.receive(),
                Some(Receiver::Program(program)) => program.receive(),
                Some(Receiver::Card(card)) => {
                    card.receive().into_iter().map(|bytes| (bytes, Asked::default())).collect()
                }
                _ => continue,
            };
            got.extend(came.into_iter().map(|(bytes, asked)| (n, bytes, asked)));
        }
        (got, drops)
    }

    fn visit(&mut self, n: usize) {
        let budget = Budget { items: 256, bytes: 1 << 20, ns: u64::MAX };
        for (port, task) in self.hand.0.lock().unwrap().iter_mut() {
            task.iter_mut().filter(|_| *port == n).for_each(|task| _ = task.visit(&mut self.local, budget));
        }
    }

    /// Has all that is on its way to the end of the tunnels on `host` come out of it, which is port `n`. What
    /// is sent there now is the last to come: one processor takes all datagrams over the loopback interface
    /// in their order.
    fn come_out(&mut self, n: usize, host: usize) {
        let last = |it: &Stand| it.ports[n].counters.totals().named_drops().find(|(why, _)| *why == LAST);
        let before = last(self);
        self.last.send_to(&[0], end(host)).unwrap();
        while last(self) == before {
            self.visit(n);
        }
    }
}
