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
use crate::core::{CoreStatus, TaskStatus};
pub use crate::mem::MemoryCount;
pub use crate::observe::capture::CaptureCount;
use crate::observe::Totals;
use crate::policy::MacGuard;
use crate::port::Peer;
pub use crate::port::{ClaimCount, ConversationCount, InterruptCount, OverrunCount, SlowCount, WaitCount};

/// Raised when a field goes or changes its meaning; a new field does not raise it.
pub const VERSION: u32 = 2;

crate::util::form::view! {
    /// All ports.
    Ports {
        /// Version of the JSON.
        version: u32,
        /// Whether a daemon answered. Without one, `sidecore show` reads the counters file.
        running: bool,
        /// In the order of their names.
        ports: Vec<PortView>,
        /// Sums over ports that are gone; absent without a daemon.
        retired?: Sums,
    }

    /// One port.
    PortView {
        /// Its name.
        name: String,
        /// Its number, which is also its index in the counters file.
        number: u16,
        /// What it counted.
        counters: Sums,
        /// How it is doing; absent without a daemon.
        state?: PortState,
    }

    /// The state of a port.
    PortState {
        /// The kind of port.
        kind: String,
        /// Its socket, interface or name.
        location as "where": String,
        /// The switch that it joins.
        switch?: String,
        /// The wire that it is one end of.
        wire?: String,
        /// The pipe that it is an end of.
        pipe?: String,
        /// The router that it is an interface of.
        router?: String,
        /// All its options, as written on the command line.
        #[serde(default)]
        options: BTreeMap<String, String>,
        /// Its option `link`.
        link_wanted: String = ["up", "down"],
        /// Its carrier.
        link: String = ["up", "down"],
        /// Its configured MTU, if there is one.
        mtu_wanted?: u32,
        /// The MTU in force: bytes of the largest Ethernet payload that it may send.
        mtu: u32,
        /// How many source addresses it may use, if that is limited.
        mac_limit?: u32,
        /// How many source addresses the switch has learned at it, plus those of others that it claims.
        macs: u32,
        /// How its source addresses are guarded, if they are.
        mac_guard?: String = ["claim", "strict"],
        /// Its uses of addresses that live elsewhere.
        ..claims: ClaimCount,
        /// The state of its peer.
        peer: String = ["waiting", "connected", "running", "faulted", "stopped"],
        /// Process id of the peer, if it is known.
        pid?: u32,
        /// When that peer connected, in nanoseconds since the host's start (CLOCK_BOOTTIME). A process with
        /// the number `pid` that started later is another one.
        pid_met_ns?: u64,
        /// One line for people.
        detail: String,
        /// Advice, if it does not work as well as it could.
        hint?: String,
        /// Running captures of this port.
        captures*: Vec<CaptureCount>,
        /// Frames that all captures lost, including those that have ended.
        #[serde(default)]
        capture_lost: u64,
        /// Why it carries no frames, or fewer than it should.
        troubles*: Vec<Diagnosis>,
        /// What passed it of late.
        #[serde(default)]
        flow: FlowView,
        /// What stopped it: a name, a colon, a sentence.
        fault?: String,
        /// Configured queue pairs, if there is a number.
        queues_wanted?: u32,
        /// Ingress queues that run.
        queues: u32,
        /// Negotiated features, and counters of some kinds of ports.
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

    /// Counters, all cores together. Reading never resets them; a port that is added starts at zero. Over all
    /// ports and `retired`: the sum of in_frames and made is the sum of out_frames and drops; of ports of
    /// kind `switch` only made and drops count.
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
        /// Additional frames, made by flooding or segmentation.
        made: u64,
        /// Notifications received from the peer.
        kicks: u64,
        /// Notifications sent to the peer.
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

crate::util::form::view! {
    /// One port.
    OnePort {
        /// Version of the JSON.
        version: u32,
        /// The port.
        ..port: PortView,
    }

    /// All switches.
    Switches {
        /// Version of the JSON.
        version: u32,
        /// All switches.
        switches: Vec<SwitchView>,
    }

    /// One switch.
    SwitchView {
        /// Its name.
        name: String,
        /// Seconds after which a silent address is forgotten, if set.
        ageing?: u32,
        /// Addresses that it can remember, if set.
        table_size?: u32,
        /// Addresses that it remembers.
        addresses: usize,
        /// Ports that are joined to it.
        ports: Vec<String>,
    }

    /// Addresses that the switches have learned or were given.
    Addresses {
        /// Version of the JSON.
        version: u32,
        /// Ordered by switch and address.
        addresses: Vec<Address>,
    }

    /// All I/O cores.
    Cores {
        /// Version of the JSON.
        version: u32,
        /// In the order of their numbers.
        cores: Vec<CoreView>,
    }

    /// An I/O core's time and work since it started.
    CoreView {
        /// Where its time went.
        ..time: CoreStatus,
        /// Where its last second went; absent in its first one.
        last?: LastSecond,
        /// Interrupts that it sent.
        #[serde(default)]
        interrupts: u64,
        /// Interrupts that were not needed, because the peer polled or one interrupt served several events.
        #[serde(default)]
        saved_interrupts: u64,
    }

    /// All queues of all ports.
    Queues {
        /// Version of the JSON.
        version: u32,
        /// Ordered by port.
        queues: Vec<QueueView>,
    }

    /// One queue.
    QueueView {
        /// The port.
        port: String,
        /// Into the switch or out of it; of a disk, requests.
        direction: String = ["ingress", "egress", "requests"],
        /// Number within its direction.
        index: usize,
        /// Entries; 0 if it has no fixed size.
        size: u32,
        /// `split`, `packed`, `tap`, …
        kind: String,
        /// `running`, or why it is not.
        state: String,
        /// Its interrupts; absent while there was nothing to tell by one.
        interrupts?: InterruptCount,
        /// Ingress: how its frames waited for buffers of the receiver at the other end of a wire.
        waits?: WaitCount,
        /// Ingress and requests: the class of its port.
        class?: String = ["latency", "throughput"],
        /// Ingress and requests: what became of it on the I/O core that serves it.
        served?: TaskStatus,
    }

    /// Frames that were dropped.
    Drops {
        /// Version of the JSON.
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
