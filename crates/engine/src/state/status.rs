//! What `show` shows. These types are the JSON of the control socket and of `--json`; `docs/json.md`
//! describes them. A field that exists keeps its meaning while [`VERSION`] stays.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use sidecore_abi::counters::DROPS;

use super::cores::{Address, Standing};
use super::engine::Engine;
pub use super::flow::{FlowView, LastSecond};
use super::live::Live;
use super::plan::keys;
use super::service::{class_name, ServiceView};
use super::spec::{Joint, PortSpec, SwitchSpec};
pub use super::trouble::Trouble;
use super::trouble::{troubles, Facts};
use crate::core::{CoreStatus, TaskStatus};
pub use crate::mem::MemoryCount;
pub use crate::observe::capture::CaptureCount;
use crate::observe::Totals;
use crate::policy::MacGuard;
use crate::port::Peer;
pub use crate::port::{ClaimCount, ConversationCount, InterruptCount, OverrunCount, SlowCount, WaitCount};

/// Raised when a field goes or changes its meaning; a new field does not raise it.
pub const VERSION: u32 = 2;

/// Answer to `show ports`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ports {
    /// [`VERSION`].
    pub version: u32,
    /// Whether a daemon answered; if not, the counters are the last ones that it wrote.
    pub running: bool,
    /// All ports in the order of their names.
    pub ports: Vec<PortView>,
    /// Sums over ports that are gone; absent without a daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retired: Option<Sums>,
}

/// One port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortView {
    /// Its name.
    pub name: String,
    /// Its number: its place in the counters file.
    pub number: u16,
    /// What it counted.
    pub counters: Sums,
    /// How it is doing; absent without a daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<PortState>,
}

/// How a port is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortState {
    /// What stands behind it.
    pub kind: String,
    /// Where that is.
    #[serde(rename = "where")]
    pub location: String,
    /// The switch that it joins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch: Option<String>,
    /// The wire that it is one end of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire: Option<String>,
    /// The pipe that it is an end of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pipe: Option<String>,
    /// The router that it is an interface of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub router: Option<String>,
    /// All options that it was given, as words of the command line.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
    /// The carrier that the operator wants: `up` or `down`.
    pub link_wanted: String,
    /// The carrier that there is: `up` or `down`.
    pub link: String,
    /// The MTU that was asked for, if any was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu_wanted: Option<u32>,
    /// Largest Ethernet payload in bytes that is let in.
    pub mtu: u32,
    /// Source addresses that it may use, if that is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac_limit: Option<u32>,
    /// Source addresses that the switch knows behind it.
    pub macs: u32,
    /// How its source addresses are guarded: `claim` or `strict`; absent if they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac_guard: Option<String>,
    /// Its uses of addresses that live elsewhere.
    #[serde(flatten)]
    pub claims: ClaimCount,
    /// `waiting`, `connected`, `running`, `faulted` or `stopped`.
    pub peer: String,
    /// Process id of the peer, where that can be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// One line for people.
    pub detail: String,
    /// What to do about it, if it does not work as it could.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Captures that run here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub captures: Vec<CaptureCount>,
    /// Frames that captures lost, those that have ended included.
    #[serde(default)]
    pub capture_lost: u64,
    /// Why it carries nothing, or less than it should.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub troubles: Vec<Trouble>,
    /// What passed it of late.
    #[serde(default)]
    pub flow: FlowView,
    /// What stopped it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Queue pairs that were asked for, if any number was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues_wanted: Option<u32>,
    /// Ingress queues that run.
    pub queues: u32,
    /// Names of what was negotiated.
    pub features: Vec<String>,
    /// Its visits by I/O cores that took very long.
    #[serde(default)]
    pub slow: SlowCount,
    /// What it cost I/O cores beyond what is usual.
    #[serde(default)]
    pub overrun: OverrunCount,
    /// Its VMMs' conversations, and what they cost others.
    #[serde(default)]
    pub conversation: ConversationCount,
    /// The memory that its VMM shares.
    #[serde(default)]
    pub memory: MemoryCount,
    /// What it is granted of the I/O cores, and had.
    #[serde(default)]
    pub service: ServiceView,
}

/// Counters, all cores together. They are never reset by reading.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sums {
    /// Frames taken from the port.
    pub in_frames: u64,
    /// Bytes of those.
    pub in_bytes: u64,
    /// Frames delivered to the port.
    pub out_frames: u64,
    /// Bytes of those.
    pub out_bytes: u64,
    /// Frames that came into being by flooding or segmentation.
    pub made: u64,
    /// Kicks received.
    pub kicks: u64,
    /// Interrupts sent.
    pub interrupts: u64,
    /// Batches taken from the port.
    pub batches: u64,
    /// Frames dropped, by the name of the reason; reasons without drops are left out.
    pub drops: BTreeMap<String, u64>,
}

impl From<&Totals> for Sums {
    fn from(totals: &Totals) -> Sums {
        Sums {
            in_frames: totals.in_frames,
            in_bytes: totals.in_bytes,
            out_frames: totals.out_frames,
            out_bytes: totals.out_bytes,
            made: totals.made,
            kicks: totals.kicks,
            interrupts: totals.interrupts,
            batches: totals.batches,
            drops: totals.named_drops().map(|(name, n)| (name.to_owned(), n)).collect(),
        }
    }
}

/// Answer to `GET /v1/ports/{name}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnePort {
    /// [`VERSION`].
    pub version: u32,
    /// The port.
    #[serde(flatten)]
    pub port: PortView,
}

/// Answer to `show switches`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switches {
    /// [`VERSION`].
    pub version: u32,
    /// All switches, those made on demand among them.
    pub switches: Vec<SwitchView>,
}

/// One switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchView {
    /// Its name.
    pub name: String,
    /// Seconds after which a silent address is forgotten, if that was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ageing: Option<u32>,
    /// Addresses that it can remember, if that was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table_size: Option<u32>,
    /// Addresses that it remembers.
    pub addresses: usize,
    /// Ports that are joined to it.
    pub ports: Vec<String>,
}

/// Answer to `show mac`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Addresses {
    /// [`VERSION`].
    pub version: u32,
    /// All addresses that switches remember.
    pub addresses: Vec<Address>,
}

/// Answer to `show cores`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cores {
    /// [`VERSION`].
    pub version: u32,
    /// All I/O cores.
    pub cores: Vec<CoreView>,
}

/// One I/O core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreView {
    /// Where its time went.
    #[serde(flatten)]
    pub time: CoreStatus,
    /// Where its last second went; absent in its first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<LastSecond>,
    /// Interrupts that it sent.
    #[serde(default)]
    pub interrupts: u64,
    /// Interrupts that it need not send: the peer polled, or one told of several events.
    #[serde(default)]
    pub saved_interrupts: u64,
}

/// Answer to `show queues`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queues {
    /// [`VERSION`].
    pub version: u32,
    /// All queues of all ports.
    pub queues: Vec<QueueView>,
}

/// One queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueView {
    /// The port.
    pub port: String,
    /// `ingress`, `egress`, or `requests` of a disk.
    pub direction: String,
    /// Number within its direction.
    pub index: usize,
    /// Entries.
    pub size: u32,
    /// `split`, `packed`, `tap`, …
    pub kind: String,
    /// `running`, or why it is not.
    pub state: String,
    /// Its interrupts; absent while there was nothing to tell by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupts: Option<InterruptCount>,
    /// Ingress: how its frames waited for buffers of the receiver at the other end of a wire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<WaitCount>,
    /// Ingress and requests: the class of its port, `latency` or `throughput`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Ingress and requests: what became of it on the I/O core that serves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served: Option<TaskStatus>,
}

/// Answer to `show drops`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drops {
    /// [`VERSION`].
    pub version: u32,
    /// Whether a daemon answered.
    pub running: bool,
    /// The most frequent first.
    pub drops: Vec<DropView>,
}

/// Frames dropped at one port for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropView {
    /// The port that caused it.
    pub port: String,
    /// The name of the reason.
    pub reason: String,
    /// How many.
    pub frames: u64,
    /// What the reason means.
    pub meaning: String,
}

impl Ports {
    /// The drops of these ports, the most frequent first.
    pub fn drops(&self) -> Drops {
        let meaning = |reason: &str| {
            DROPS.iter().find(|(_, name, _)| *name == reason).map_or(String::new(), |row| row.2.to_owned())
        };
        let of_port = |port: &PortView| {
            let name = port.name.clone();
            let view = move |(reason, &frames): (&String, &u64)| DropView {
                port: name.clone(),
                reason: reason.clone(),
                frames,
                meaning: meaning(reason),
            };
            port.counters.drops.iter().map(view).collect::<Vec<_>>()
        };
        let mut drops: Vec<_> = self.ports.iter().flat_map(of_port).collect();
        drops.sort_by(|a, b| b.frames.cmp(&a.frames).then_with(|| a.port.cmp(&b.port)));
        Drops { version: VERSION, running: self.running, drops }
    }
}

impl Engine {
    /// All ports, as they are at this moment.
    pub fn ports(&self) -> Ports {
        let state = crate::lock(&self.state);
        let standing = |live: &Live| self.means.graph.standing(live.port.id);
        let ports = state.ports.values().map(|live| view(live, standing(live))).collect();
        let mut retired = state.retired;
        state.leaving.add_to(&mut retired);
        Ports { version: VERSION, running: true, ports, retired: Some(Sums::from(&retired)) }
    }

    /// Whether there is a peer at the other end of port `name`.
    pub fn peer(&self, name: &str) -> Option<Peer> {
        crate::lock(&self.state)
            .ports
            .get(name)?
            .attachment
            .as_ref()
            .map(|attachment| attachment.status().peer)
    }

    /// All queues of all ports.
    pub fn queues(&self) -> Queues {
        let tasks = self.means.graph.cores.tasks();
        let state = crate::lock(&self.state);
        let mut queues = Vec::new();
        for (name, live) in &state.ports {
            let task = |index| tasks.iter().find(|task| (task.owner, task.index) == (live.port.id.0, index));
            let class = class_name(live.port.served.service().class);
            let status = live.attachment.as_ref().map(|attachment| attachment.status());
            queues.extend(status.into_iter().flat_map(|status| status.queues).map(|queue| QueueView {
                port: name.clone(),
                direction: queue.direction.to_owned(),
                index: queue.index,
                size: queue.size,
                kind: queue.kind.to_owned(),
                state: queue.state,
                interrupts: live.port.interrupts.of(
                    queue.direction == "egress",
                    queue.index,
                    queue.interrupts,
                ),
                waits: (queue.direction == "ingress").then(|| live.port.waits.of(queue.index)),
                class: is_served(queue.direction).then(|| class.clone()),
                served: task(queue.index).filter(|_| is_served(queue.direction)).cloned(),
            }));
        }
        Queues { version: VERSION, queues }
    }

    /// All switches.
    pub fn switches(&self) -> Switches {
        let addresses = self.means.graph.addresses();
        let state = crate::lock(&self.state);
        let view = |switch: &SwitchSpec| {
            let joined = |port: &&PortSpec| {
                port.joint() == Joint::Switch(&switch.name) || port.gateway_on() == Some(&switch.name)
            };
            SwitchView {
                name: switch.name.clone(),
                ageing: switch.ageing.map(|seconds| seconds.get()),
                table_size: switch.table_size.map(|size| size.get()),
                addresses: addresses.iter().filter(|address| address.switch == switch.name).count(),
                ports: state.spec.ports.iter().filter(joined).map(|port| port.name.clone()).collect(),
            }
        };
        Switches { version: VERSION, switches: state.spec.switches.iter().map(view).collect() }
    }

    /// The addresses that the switches remember.
    pub fn addresses(&self) -> Addresses {
        Addresses { version: VERSION, addresses: self.means.graph.addresses() }
    }

    /// What the I/O cores did so far.
    pub fn cores(&self) -> Cores {
        let cores = self.means.graph.cores.status();
        let state = crate::lock(&self.state);
        let view = |time: CoreStatus| {
            let (interrupts, saved_interrupts) = self.means.counters.interrupts(time.number);
            CoreView { last: state.cores.of(time.number), time, interrupts, saved_interrupts }
        };
        Cores { version: VERSION, cores: cores.into_iter().map(view).collect() }
    }
}

/// Whether I/O cores serve queues of this direction as tasks.
fn is_served(direction: &str) -> bool {
    matches!(direction, "ingress" | "requests")
}

fn view(live: &Live, standing: Standing) -> PortView {
    let Live { spec, port, attachment, stopped, recent, .. } = live;
    let status = attachment.as_ref().map(|attachment| attachment.status());
    let totals = port.counters.totals();
    let flow = live.flow.view(Instant::now(), &totals);
    let troubles =
        troubles(&Facts { spec, port, status: status.as_ref(), stopped: stopped.as_deref(), flow: &flow });
    let (peer, detail, hint, features, queues) = match status {
        Some(status) => {
            let ingress =
                status.queues.iter().filter(|q| is_served(q.direction) && q.state.starts_with("running"));
            (peer_name(status.peer), status.detail, status.hint, status.features, ingress.count())
        }
        None => {
            let hint = stopped.as_ref().map(|_| "it is tried again each second".to_owned());
            ("stopped", stopped.clone().unwrap_or_default(), hint, Vec::new(), 0)
        }
    };
    let up = |up: bool| if up { "up" } else { "down" }.to_owned();
    let state = PortState {
        kind: spec.kind.clone(),
        location: spec.location.clone(),
        switch: spec.switch.clone(),
        wire: spec.wire.clone(),
        pipe: spec.pipe.clone(),
        router: spec.router.clone(),
        options: keys(spec).into_iter().filter(|(key, _)| spec.given().any(|it| it.name == key)).collect(),
        link_wanted: up(spec.link_wanted()),
        // A disk has no egress queue: its link is up while its peer runs.
        link: up((port.link() || spec.is_disk() && peer == "running")
            && spec.link_wanted()
            && port.carrier()),
        mtu_wanted: spec.mtu.map(|mtu| mtu.get()),
        mtu: port.mtu(),
        mac_limit: spec.mac_limit.map(|limit| limit.get()),
        macs: standing.macs,
        mac_guard: Some(spec.guard())
            .filter(|guard| *guard != MacGuard::Off && matches!(spec.joint(), Joint::Switch(_)))
            .map(|guard| guard.to_string()),
        claims: port.claims.count(),
        peer: peer.to_owned(),
        pid: port.messages.peer(),
        detail,
        hint: standing.trouble.or(hint),
        captures: port.capture.captures(),
        capture_lost: port.capture.lost(),
        troubles,
        flow,
        fault: port.fault.get().map(|fault| fault.to_string()),
        queues_wanted: spec.queues.map(|queues| queues.get()),
        queues: u32::try_from(queues).unwrap_or(u32::MAX),
        features,
        slow: port.slow.count(),
        overrun: port.overrun.count(),
        conversation: port.messages.count(),
        memory: port.terms.count(),
        service: recent.view(&port.served),
    };
    PortView { name: spec.name.clone(), number: port.id.0, counters: Sums::from(&totals), state: Some(state) }
}

pub(super) fn peer_name(peer: Peer) -> &'static str {
    match peer {
        Peer::Waiting => "waiting",
        Peer::Connected => "connected",
        Peer::Running => "running",
        Peer::Faulted => "faulted",
    }
}
