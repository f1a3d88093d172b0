//! The engine's side: ports whose peers are in this file, a graph that is made of a configuration as the
//! daemon makes it, and a hand that visits queues in place of an I/O core.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use super::frames::Sent;
use super::model::Config;
use super::options::{GATEWAY, INTERFACE, MEMBERS};
use super::plain::Asked;
use sidecore_engine::core::{Budget, Lease, Recall, TaskHandle};
use sidecore_engine::graph::{self, Fate, Local, QueueHandle, Scheduler, Topology};
use sidecore_engine::mem::Arena;
use sidecore_engine::observe::CounterFile;
use sidecore_engine::packet::{Batch, Offload, Offloads, HEAD};
use sidecore_engine::port::{
    DropReason, EgressQueue, IngressQueue, Outcome, Port, PortId, Tally, DEFAULT_MTU,
};
use sidecore_engine::router::Gateway;
use sidecore_engine::state::{CoreGraph, RouterSpec, Spec};

/// A frame that came out: by which port, its bytes, and what its receiver is asked for.
pub type Got = (usize, Vec<u8>, Asked);

/// Bytes of the longest frame.
const MOST: usize = 16 * 1024;

type Waiting = Arc<Mutex<VecDeque<Sent>>>;

/// Sends what waits.
struct Source(Waiting, Arena);

impl IngressQueue for Source {
    fn fetch(&mut self, batch: &mut Batch, tally: &mut Tally) {
        let Some(Sent { bytes, asked, .. }) = self.0.lock().unwrap().pop_front() else { return };
        tally.frames += 1;
        tally.bytes += bytes.len() as u64;
        let near = bytes.len().min(HEAD);
        if near < 14 {
            tally.drops.add(DropReason::TooShort, 1);
            return batch.skip();
        }
        let Ok(offload) = Offload::parse(&asked.bytes(), &bytes[..near], bytes.len(), Offloads::ALL) else {
            tally.drops.add(DropReason::BadOffload, 1);
            return batch.skip();
        };
        let (frame, pieces) = batch.next_frame().unwrap();
        frame.head[..near].copy_from_slice(&bytes[..near]);
        (frame.len, frame.piece, frame.pieces) = (bytes.len() as u32, pieces.len() as u32, 0);
        frame.offload = offload;
        if bytes.len() > HEAD {
            let mut rest = self.1.put(0, &bytes, HEAD);
            let first = rest.first(usize::from(bytes[HEAD]) % (rest.len() + 1));
            rest.advance(first.len());
            for part in [first, rest].into_iter().filter(|part| !part.is_empty()) {
                assert!(pieces.push(part));
                frame.pieces += 1;
            }
        }
        batch.commit();
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
struct Sink(usize, Arc<Port>, Arc<Mutex<Vec<Got>>>);

impl EgressQueue for Sink {
    fn send(&mut self, batch: &Batch, picks: &[u16], outcome: &mut Outcome) {
        for pick in picks {
            let frame = batch.frame(*pick);
            assert_eq!(frame.offload.required().without(self.1.accepts()), Offloads::NONE, "not accepted");
            let mut bytes = frame.head().to_vec();
            for piece in batch.body(frame) {
                let mut part = vec![0; piece.len()];
                assert_eq!(piece.read(&mut part), part.len());
                bytes.extend(part);
            }
            assert_eq!(bytes.len(), frame.len as usize);
            outcome.delivered(frame.len);
            self.2.lock().unwrap().push((self.0, bytes, Asked::read(&frame.offload.to_bytes(0))));
        }
    }
}

/// Visits tasks.
#[derive(Default)]
struct Hand(Mutex<Vec<TaskHandle<Local>>>);

impl Scheduler for Hand {
    fn serve_queue(self: Arc<Self>, handle: QueueHandle) -> Recall {
        self.0.lock().unwrap().push(handle.task());
        Box::new(|| ())
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

/// Ports with nobody behind them but this test.
pub struct Stand {
    ports: Vec<Arc<Port>>,
    waiting: Vec<Waiting>,
    sinks: Vec<Option<Lease<Sink>>>,
    hand: Arc<Hand>,
    local: Local,
    graph: CoreGraph,
    topology: Arc<Topology>,
    got: Arc<Mutex<Vec<Got>>>,
    counted: Vec<Vec<(&'static str, u64)>>,
    _sources: Vec<Lease<Source>>,
    _inside: [Gateway; 2],
    _file: CounterFile,
}

impl Stand {
    pub fn new(ports: usize) -> Stand {
        let file = CounterFile::anonymous().unwrap();
        let port = |n: usize| {
            let (id, name) = (PortId(n as u16), format!("p{n}"));
            Arc::new(Port::new(id, &name, file.open_slot(id, &name), DEFAULT_MTU).unwrap())
        };
        let ports: Vec<_> = (0..ports).map(port).collect();
        let inside = [GATEWAY, INTERFACE].map(|n| Gateway::open(&ports[n], String::new()));
        let graph = CoreGraph::new(graph::Graph::start(&graph::CoreOptions::default()).unwrap());
        graph.prepare_router(&RouterSpec::new("r")).unwrap();
        let hand = Arc::<Hand>::default();
        let waiting: Vec<Waiting> = ports.iter().map(|_| Waiting::default()).collect();
        let serve = |(port, waiting): (&Arc<Port>, &Waiting)| {
            let source = Source(Arc::clone(waiting), Arena::new(1, MOST));
            (Arc::clone(&hand) as Arc<dyn Scheduler>).serve(port, 0, source)
        };
        let sources = ports.iter().zip(&waiting).map(serve).collect();
        Stand {
            sinks: ports.iter().map(|_| None).collect(),
            counted: ports.iter().map(|_| Vec::new()).collect(),
            ports,
            waiting,
            hand,
            local: Local::by_hand(),
            graph,
            _inside: inside,
            topology: Arc::default(),
            got: Arc::default(),
            _sources: sources,
            _file: file,
        }
    }

    /// Has the ports be what `config` says, which `spec` says as the operator does.
    pub fn configure(&mut self, config: &Config, spec: &Spec) {
        for (n, (port, its)) in self.ports.iter().zip(&spec.ports).enumerate() {
            port.set_mtu(its.mtu.map_or(DEFAULT_MTU, |mtu| mtu.get()));
            port.set_silent(!its.link_wanted());
            port.set_accepts(Offloads::from_bits(config.ports[n].accepts));
            if [GATEWAY, INTERFACE].contains(&n) {
                continue;
            }
            match (its.link_wanted(), &self.sinks[n]) {
                (true, None) => {
                    self.sinks[n] = Some(port.lend(0, Sink(n, Arc::clone(port), Arc::clone(&self.got))))
                }
                (false, Some(_)) => self.sinks[n] = None,
                _ => {}
            }
        }
        let placed: Vec<_> = spec.ports.iter().zip(&self.ports).collect();
        self.graph.publish(spec, &placed);
        if config.ports.len() > MEMBERS[0] {
            // A member joins that has spoken.
            self.topology = Arc::new(self.graph.topology());
            self.local.connect(&self.topology);
            for port in MEMBERS {
                let bytes = [&[0xff; 6][..], &[2, 0, 0, 0, port as u8, 0], &[0x88, 0xb5], &[0; 46]].concat();
                self.send(&Sent { port, bytes, asked: Asked::default() });
            }
            let placed: Vec<_> = spec.ports.iter().zip(&self.ports).collect();
            self.graph.publish(spec, &placed);
        }
        self.topology = Arc::new(self.graph.topology());
        self.local.connect(&self.topology);
    }

    /// What would become of the frame.
    pub fn explain(&self, sent: &Sent) -> (Told, String) {
        let steps = self.topology.explain(PortId(sent.port as u16), &sent.bytes);
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

    /// What comes out when the frame comes in, and who drops it and why.
    pub fn send(&mut self, sent: &Sent) -> (Vec<Got>, Vec<(usize, &'static str)>) {
        self.waiting[sent.port].lock().unwrap().push_back(sent.clone());
        let budget = Budget { items: 256, bytes: 1 << 20, ns: u64::MAX };
        self.hand.0.lock().unwrap()[sent.port].visit(&mut self.local, budget);
        assert!(self.waiting[sent.port].lock().unwrap().is_empty(), "it was not fetched");
        let mut drops = Vec::new();
        for (n, port) in self.ports.iter().enumerate() {
            let now: Vec<(&'static str, u64)> = port.counters.totals().named_drops().collect();
            for (why, count) in &now {
                let before = self.counted[n].iter().find(|(it, _)| it == why).map_or(0, |(_, count)| *count);
                (before..*count).for_each(|_| drops.push((n, *why)));
            }
            self.counted[n] = now;
        }
        (std::mem::take(&mut *self.got.lock().unwrap()), drops)
    }
}
