//! What `show` shows. These types are the JSON of the control socket and of `--json`; `docs/json.md`
//! describes them. A field that exists keeps its meaning while [`VERSION`] stays.

use std::collections::BTreeMap;
use std::time::Instant;

use sidecore_abi::counters::DROPS;

use super::cores::{Address, Standing};
pub use super::diagnosis::Diagnosis;
use super::diagnosis::{diagnose, Facts};
use super::engine::Engine;
pub use super::flow::{FlowView, LastSecond};
use super::live::Live;
use super::plan::keys;
use super::service::ServiceView;
use super::spec::{Joint, PortSpec, SwitchSpec};
use super::view::view;
use crate::core::{CoreStatus, TaskStatus};
pub use crate::mem::MemoryCount;
pub use crate::observe::capture::CaptureCount;
use crate::observe::Totals;
use crate::policy::MacGuard;
use crate::port::Peer;
pub use crate::port::{ClaimCount, ConversationCount, InterruptCount, OverrunCount, SlowCount, WaitCount};

/// Raised when a field goes or changes its meaning; a new field does not raise it.
pub const VERSION: u32 = 2;

view! {
    /// Answer to `show ports`.
    Ports {
        /// [`VERSION`].
        version: u32,
        /// Whether a daemon answered; if not, the counters are the last ones that it wrote.
        running: bool,
        /// All ports in the order of their names.
        ports: Vec<PortView>,
        /// Sums over ports that are gone; absent without a daemon.
        retired?: Sums,
    }

    /// One port.
    PortView {
        /// Its name.
        name: String,
        /// Its number: its place in the counters file.
        number: u16,
        /// What it counted.
        counters: Sums,
        /// How it is doing; absent without a daemon.
        state?: PortState,
    }

    /// How a port is doing.
    PortState {
        /// What stands behind it.
        kind: String,
        /// Where that is.
        #[serde(rename = "where")]
        location: String,
        /// The switch that it joins.
        switch?: String,
        /// The wire that it is one end of.
        wire?: String,
        /// The pipe that it is an end of.
        pipe?: String,
        /// The router that it is an interface of.
        router?: String,
        /// All options that it was given, as words of the command line.
        #[serde(default)]
        options: BTreeMap<String, String>,
        /// The carrier that the operator wants: `up` or `down`.
        link_wanted: String,
        /// The carrier that there is: `up` or `down`.
        link: String,
        /// The MTU that was asked for, if any was.
        mtu_wanted?: u32,
        /// Largest Ethernet payload in bytes that is let in.
        mtu: u32,
        /// Source addresses that it may use, if that is limited.
        mac_limit?: u32,
        /// Source addresses that the switch knows behind it.
        macs: u32,
        /// How its source addresses are guarded: `claim` or `strict`; absent if they are not.
        mac_guard?: String,
        /// Its uses of addresses that live elsewhere.
        #[serde(flatten)]
        claims: ClaimCount,
        /// `waiting`, `connected`, `running`, `faulted` or `stopped`.
        peer: String,
        /// Process id of the peer, where that can be told.
        pid?: u32,
        /// When that peer connected, in nanoseconds since the host's start; a process `pid` that started later is another one.
        pid_met_ns?: u64,
        /// One line for people.
        detail: String,
        /// What to do about it, if it does not work as it could.
        hint?: String,
        /// Captures that run here.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        captures: Vec<CaptureCount>,
        /// Frames that captures lost, those that have ended included.
        #[serde(default)]
        capture_lost: u64,
        /// Why it carries nothing, or less than it should.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        troubles: Vec<Diagnosis>,
        /// What passed it of late.
        #[serde(default)]
        flow: FlowView,
        /// What stopped it.
        fault?: String,
        /// Queue pairs that were asked for, if any number was.
        queues_wanted?: u32,
        /// Ingress queues that run.
        queues: u32,
        /// Names of what was negotiated.
        features: Vec<String>,
        /// Its visits by I/O cores that took very long.
        #[serde(default)]
        slow: SlowCount,
        /// What it cost I/O cores beyond what is usual.
        #[serde(default)]
        overrun: OverrunCount,
        /// Its VMMs' conversations, and what they cost others.
        #[serde(default)]
        conversation: ConversationCount,
        /// The memory that its VMM shares.
        #[serde(default)]
        memory: MemoryCount,
        /// The group and the member that it belongs to, as GROUP/MEMBER.
        group?: String,
        /// The tenant that pays for it, if it does not do so itself.
        tenant?: String,
        /// What it, or its tenant with all its ports, is granted of the I/O cores, and had.
        #[serde(default)]
        service: ServiceView,
    }

    /// Counters, all cores together. They are never reset by reading.
    #[derive(Default)]
    Sums {
        /// Frames taken from the port.
        in_frames: u64,
        /// Bytes of those.
        in_bytes: u64,
        /// Frames delivered to the port.
        out_frames: u64,
        /// Bytes of those.
        out_bytes: u64,
        /// Frames that came into being by flooding or segmentation.
        made: u64,
        /// Kicks received.
        kicks: u64,
        /// Interrupts sent.
        interrupts: u64,
        /// Batches taken from the port.
        batches: u64,
        /// Frames dropped, by the name of the reason; reasons without drops are left out.
        drops: BTreeMap<String, u64>,
    }
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

view! {
    /// Answer to `GET /v1/ports/{name}`.
    OnePort {
        /// [`VERSION`].
        version: u32,
        /// The port.
        #[serde(flatten)]
        port: PortView,
    }

    /// Answer to `show switches`.
    Switches {
        /// [`VERSION`].
        version: u32,
        /// All switches, those made on demand among them.
        switches: Vec<SwitchView>,
    }

    /// One switch.
    SwitchView {
        /// Its name.
        name: String,
        /// Seconds after which a silent address is forgotten, if that was chosen.
        ageing?: u32,
        /// Addresses that it can remember, if that was chosen.
        table_size?: u32,
        /// Addresses that it remembers.
        addresses: usize,
        /// Ports that are joined to it.
        ports: Vec<String>,
    }

    /// Answer to `show mac`.
    Addresses {
        /// [`VERSION`].
        version: u32,
        /// All addresses that switches remember.
        addresses: Vec<Address>,
    }

    /// Answer to `show cores`.
    Cores {
        /// [`VERSION`].
        version: u32,
        /// All I/O cores.
        cores: Vec<CoreView>,
    }

    /// One I/O core.
    CoreView {
        /// Where its time went.
        #[serde(flatten)]
        time: CoreStatus,
        /// Where its last second went; absent in its first one.
        last?: LastSecond,
        /// Interrupts that it sent.
        #[serde(default)]
        interrupts: u64,
        /// Interrupts that it need not send: the peer polled, or one told of several events.
        #[serde(default)]
        saved_interrupts: u64,
    }

    /// Answer to `show queues`.
    Queues {
        /// [`VERSION`].
        version: u32,
        /// All queues of all ports.
        queues: Vec<QueueView>,
    }

    /// One queue.
    QueueView {
        /// The port.
        port: String,
        /// `ingress`, `egress`, or `requests` of a disk.
        direction: String,
        /// Number within its direction.
        index: usize,
        /// Entries.
        size: u32,
        /// `split`, `packed`, `tap`, …
        kind: String,
        /// `running`, or why it is not.
        state: String,
        /// Its interrupts; absent while there was nothing to tell by one.
        interrupts?: InterruptCount,
        /// Ingress: how its frames waited for buffers of the receiver at the other end of a wire.
        waits?: WaitCount,
        /// Ingress and requests: the class of its port, `latency` or `throughput`.
        class?: String,
        /// Ingress and requests: what became of it on the I/O core that serves it.
        served?: TaskStatus,
    }

    /// Answer to `show drops`.
    Drops {
        /// [`VERSION`].
        version: u32,
        /// Whether a daemon answered.
        running: bool,
        /// The most frequent first.
        drops: Vec<DropView>,
    }

    /// Frames dropped at one port for one reason.
    DropView {
        /// The port that caused it.
        port: String,
        /// The name of the reason.
        reason: String,
        /// How many.
        frames: u64,
        /// What the reason means.
        meaning: String,
    }
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
            let class = live.port.tenant.service().class.to_string();
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
    let Live { spec, port, attachment, stopped, .. } = live;
    let status = attachment.as_ref().map(|attachment| attachment.status());
    let totals = port.counters.totals();
    let flow = live.flow.view(Instant::now(), &totals);
    let (report, stopped_by) = (standing.report.as_deref(), stopped.as_deref());
    let facts = Facts { spec, port, status: status.as_ref(), stopped: stopped_by, report, flow: &flow };
    let troubles = diagnose(&facts);
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
        pid_met_ns: port.messages.met_ns(),
        detail,
        hint: standing.report.or(hint),
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
        group: spec
            .group
            .as_ref()
            .zip(spec.member.as_ref())
            .map(|(group, member)| format!("{group}/{member}")),
        tenant: spec.tenant.clone(),
        service: ServiceView::of(&port.tenant, live.flow.parts),
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
