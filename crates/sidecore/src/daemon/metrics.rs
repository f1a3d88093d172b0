//! `/metrics`: the counters as `OpenMetrics` text, for Prometheus.
//!
//! A client that asks for `text/plain` and not for `OpenMetrics` gets the same in Prometheus' older text
//! format.
//!
//! Nothing is counted here; a scrape is a snapshot of the shared counters, which no scrape resets. Port
//! counters start at zero when a port is added, which Prometheus takes as a counter's reset.

use sidecore_engine::core::TaskStatus;
use sidecore_engine::disk::Latency;
use sidecore_engine::state::acls::{AclView, RuleView};
use sidecore_engine::state::disks::DiskView;
use sidecore_engine::state::groups::{GroupView, MemberView};
use sidecore_engine::state::status::{
    CoreView, Cores, PortState, PortView, Ports, QueueView, Queues, WaitCount,
};
use sidecore_engine::state::tenants::TenantView;
use sidecore_engine::state::ServiceView;

use crate::api::{RefusedView, SandboxView};

/// What the text is.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What it is in the older format.
pub const CLASSIC_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Whether the header `Accept` asks for the older format alone.
pub fn wants_classic(accepted: &str) -> bool {
    accepted.contains("text/plain") && !accepted.contains("openmetrics")
}

/// The daemon's own sockets: of each, connections that are open, and refusals by reason.
#[derive(Debug)]
pub struct Sockets {
    /// The control socket.
    pub control: (u64, Vec<(&'static str, u64)>),
    /// The socket for netmap programs.
    pub netmap: (u64, Vec<(&'static str, u64)>),
    /// Clients of any socket for which there was no descriptor.
    pub turned_away: u64,
}

/// The text of one scrape. In the older format, `classic`, the name of a counter ends in `_total` in its
/// head, too, and nothing marks the end.
pub fn text(snapshot: &Snapshot, classic: bool) -> String {
    let mut text = String::new();
    for Family { kind, name, help, rows } in FAMILIES {
        let (of, unit, end) = match kind {
            Kind::Counter => ("counter", "", "_total"),
            Kind::Gauge => ("gauge", "", ""),
            Kind::Seconds => ("counter", "_seconds", "_total"),
        };
        let name = format!("sidecore_{name}{unit}");
        let head = if classic { end } else { "" };
        text.push_str(&format!("# HELP {name}{head} {help}\n# TYPE {name}{head} {of}\n"));
        for (labels, n) in rows(snapshot) {
            let labels: Vec<String> = labels.iter().map(label).collect();
            text.push_str(&format!("{name}{end}{{{}}} ", labels.join(",")));
            match kind {
                // Exact to the nanosecond for the first hundred days, to the microsecond for ever.
                Kind::Seconds => text.push_str(dtoa::Buffer::new().format(n as f64 / 1e9)),
                Kind::Counter | Kind::Gauge => text.push_str(&n.to_string()),
            }
            text.push('\n');
        }
    }
    text + if classic { "" } else { "# EOF\n" }
}

fn label((name, value): &(&'static str, String)) -> String {
    format!("{name}=\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

/// What is told of, as it is at one moment; of the switches' addresses their number.
#[derive(Debug)]
pub struct Snapshot {
    pub ports: Ports,
    pub queues: Queues,
    pub disks: Vec<DiskView>,
    pub cores: Cores,
    pub tenants: Vec<TenantView>,
    pub groups: Vec<GroupView>,
    pub acls: Vec<AclView>,
    pub addresses: usize,
    pub sandbox: SandboxView,
    pub sockets: Sockets,
}

type Labels = Vec<(&'static str, String)>;

/// Things with their labels. A metric's rows are numbers with theirs.
type Labelled<T> = Vec<(Labels, T)>;

/// The type of a family of metrics.
enum Kind {
    Counter,
    Gauge,
    /// A counter of seconds; the rows have nanoseconds.
    Seconds,
}

/// A family of metrics: its type, name, meaning and rows.
struct Family {
    kind: Kind,
    name: &'static str,
    help: &'static str,
    rows: fn(&Snapshot) -> Labelled<u64>,
}

/// The table of all families. A row's numbers are of things (`ports`), with the labels that these have.
/// Behind `by` is one more label, if there are several numbers of each thing.
macro_rules! families {
    ($($kind:ident $name:literal, $help:literal, $things:ident $(by $label:literal)? => $numbers:expr;)+) => {
        const FAMILIES: &[Family] = &[$(Family {
            kind: Kind::$kind,
            name: $name,
            help: $help,
            rows: |snapshot| families!(@rows $things(snapshot), $numbers $(, $label)?),
        }),+];
    };
    (@rows $things:expr, $number:expr) => { some($things, $number) };
    (@rows $things:expr, $numbers:expr, $label:literal) => { several($things, $label, $numbers) };
}

families! {
    Counter "frames", "Frames into the switch (in) from a port, and out of it (out) to a port",
        ports by "direction" => |p| [("in", p.counters.in_frames), ("out", p.counters.out_frames)];
    Counter "bytes", "Bytes of those frames",
        ports by "direction" => |p| [("in", p.counters.in_bytes), ("out", p.counters.out_bytes)];
    Counter "made_frames", "Frames that came into being by flooding or segmentation", ports => |p| p.counters.made;
    Counter "kicks", "Notifications received from the peer", ports => |p| p.counters.kicks;
    Counter "interrupts", "Notifications sent to the peer", ports => |p| p.counters.interrupts;
    Counter "capture_lost_frames", "Frames that captures of the port lost: their readers were too slow",
        ports => |p| p.state.as_ref().map_or(0, |state| state.capture_lost);
    Counter "batches", "Batches of frames taken from a port", ports => |p| p.counters.batches;
    Counter "dropped_frames", "Frames dropped, by reason",
        ports by "reason" => |p| p.counters.drops.iter().map(|(reason, n)| (reason, *n));
    Counter "mac_claims", "Times that a port used an address that lives at another one",
        ports by "outcome" => mac_claims;
    Counter "queue_waits", "Times that frames waited, on a wire, for buffers of their receiver",
        waits => |waits| waits.count;
    Counter "queue_waits_given_up", "Waits that ended because the receiver was taken for dead",
        waits => |waits| waits.given_up;
    Seconds "queue_waited", "Seconds of all those waits together", waits => |waits| nanoseconds(waits.total_us);
    Counter "slow_batches", "Batches of a port that took longer than a millisecond of an I/O core",
        states => |s| s.slow.batches;
    Seconds "slow_batch", "Seconds of those batches together", states => |s| nanoseconds(s.slow.total_us);
    Seconds "overrun", "Seconds that a port's memory, eventfds and messages took of I/O cores beyond a millisecond each",
        states => |s| nanoseconds(s.overrun.total_us);
    Counter "rests", "Times that a port was not served for a second, because that was too much",
        states => |s| s.overrun.rests;
    Counter "connections", "VMMs that have connected to a port", states => |s| s.conversation.connections;
    Counter "connections_for_nothing", "VMMs that left within a second or without having done anything (brief), were disconnected because they said nothing (silent), or were turned away (refused)",
        ports by "kind" => for_nothing;
    Counter "conversation_changes", "Changes by a VMM's messages that I/O cores notice: queues taken back and served, memory mapped and unmapped",
        states => |s| s.conversation.changes;
    Counter "conversation_holds", "Times that a VMM's messages were held back because they changed too much",
        states => |s| s.conversation.held;
    Seconds "conversation_held", "Seconds for which they were", states => |s| nanoseconds(s.conversation.held_us);
    Counter "refused_files", "Descriptors from a VMM that are not what they were given for",
        states => |s| s.memory.refused_files;
    Counter "populated_bytes", "Bytes of VMMs' memory that were made present in advance",
        states => |s| s.memory.populated_bytes;
    Gauge "memory_mappings", "Mappings of VMMs' memory", states => |s| s.memory.mappings;
    Seconds "port_busy", "Seconds that I/O cores spent on a port", services => |s| s.busy_ns;
    Seconds "port_throttled", "Seconds in which a port had used up its budget or its rate",
        services => |s| s.throttled_ns;
    Gauge "port_weight", "A port's share of an I/O core beside other ports", services => |s| u64::from(s.weight);
    Gauge "port_granted_ppm", "Millionths of an I/O core that a port's budget guarantees",
        services => |s| s.granted_ppm;
    Gauge "port_used_ppm", "Millionths of an I/O core that a port had in the last second", services => |s| s.used_ppm;
    Seconds "tenant_busy", "Seconds that I/O cores spent on the ports of a tenant", tenants => |t| t.service.busy_ns;
    Seconds "tenant_throttled", "Seconds in which a tenant had used up its budget or its rate",
        tenants => |t| t.service.throttled_ns;
    Gauge "tenant_granted_ppm", "Millionths of an I/O core that a tenant's budget guarantees",
        tenants => |t| t.service.granted_ppm;
    Gauge "tenant_used_ppm", "Millionths of an I/O core that a tenant had in the last second",
        tenants => |t| t.service.used_ppm;
    Gauge "tenant_wait_ns", "Nanoseconds within which 99 of 100 visits at a tenant's slowest queue came after there was work",
        tenants => |t| t.wait_p99_ns;
    Gauge "group_member_buckets", "Buckets of flows that a member of a group has",
        members => |m| u64::from(m.buckets);
    Gauge "group_member_waiting", "Buckets of a member that are to move when they are idle",
        members => |m| u64::from(m.waiting);
    Gauge "group_member_missed_probes", "Probes that a member of a group has missed in a row",
        members => |m| u64::from(m.probes_missed.unwrap_or(0));
    Counter "acl_frames", "Frames on which a rule of an access list decided", rules => |rule| rule.frames;
    Counter "group_moves", "Buckets of flows that moved to another member, idle ones and others",
        groups by "how" => |g| [("idle", g.moved_idle), ("at_once", g.moved_at_once)];
    Counter "queue_visits", "Visits of an I/O core at a queue, by what ended them; empty: nothing was found",
        tasks by "end" => ends;
    Counter "queue_early_visits", "Visits out of turn: the queue was stuck, urgent or had a budget left",
        tasks => |task| task.early;
    Counter "queue_moves", "Times that a queue went to another I/O core", tasks => |task| task.moves;
    Counter "queue_wakes", "Times that a queue woke its I/O core", tasks => |task| task.wakes;
    Seconds "queue_busy", "Seconds that visits at a queue took", tasks => |task| task.busy_ns;
    Gauge "queue_core", "The I/O core that serves a queue", tasks => |task| task.core as u64;
    Gauge "queue_wait_ns", "Nanoseconds within which so many of a queue's visits came after there was work",
        tasks by "quantile" => |task| [("0.5", task.wait_p50_ns), ("0.99", task.wait_p99_ns)];
    Counter "disk_requests", "Requests to a disk that went well", disks by "kind" => requests;
    Counter "disk_bytes", "Bytes of reads and writes that went well",
        disks by "kind" => |disk| [("read", disk.counters.read_bytes), ("write", disk.counters.written_bytes)];
    Counter "disk_errors", "Requests to a disk that failed, by reason",
        disks by "reason" => |disk| disk.counters.errors.iter().map(|(why, n)| (why, *n));
    Gauge "disk_in_flight", "Requests to a disk that are under way", disks => |disk| disk.counters.in_flight;
    Gauge "disk_capacity_bytes", "Bytes of a disk", disks => |disk| disk.capacity;
    Gauge "disk_latency_ns", "Nanoseconds within which so many requests of a kind were answered",
        latencies by "quantile" => |it| [("0.5", it.p50_ns), ("0.99", it.p99_ns)];
    Counter "disk_interrupts", "Interrupts for requests to a disk", disks => |disk| disk.counters.interrupts;
    Gauge "port_state", "1 if it is so", ports by "state" => states_of;
    Gauge "addresses", "Addresses that the switches remember", whole => |s| s.addresses as u64;
    Gauge "sandbox", "1 if it is in force", whole by "what" => |s| sandbox_facts(&s.sandbox);
    Counter "refused_calls", "System calls that the sandbox refused, by kind of thread",
        refused_calls => |refused| refused.count;
    Counter "door", "Messages of VMMs with descriptors: all, and those of which none was passed on; connections that ended with something unread; and the processes for all that",
        whole by "what" => |_| door();
    Gauge "control_connections", "Connections to the control socket", whole => |s| s.sockets.control.0;
    Counter "control_refused", "Connections and requests that the control socket refused, and connections that it ended",
        whole by "reason" => |s| s.sockets.control.1.clone();
    Gauge "netmap_connections", "Connections to the socket for netmap programs", whole => |s| s.sockets.netmap.0;
    Counter "netmap_refused", "Connections that the socket for netmap programs refused or ended",
        whole by "reason" => |s| s.sockets.netmap.1.clone();
    Counter "clients_turned_away", "Clients of any socket that were hung up on because there was no descriptor for them",
        whole => |s| s.sockets.turned_away;
    Seconds "core", "Seconds that an I/O core was busy, idle and asleep",
        cores by "state" => |core| [("busy", core.time.busy_ns), ("idle", core.time.idle_ns), ("asleep", core.time.sleep_ns)];
    Counter "core_frames", "Frames moved by an I/O core", cores => |core| core.time.frames;
    Gauge "core_active", "1 if the I/O core serves queues, 0 if it rests until it is needed",
        cores => |core| u64::from(core.time.active);
    Counter "core_sleeps", "Times that an I/O core went to sleep", cores => |core| core.time.sleeps;
    Counter "core_interrupts", "Interrupts that an I/O core sent", cores => |core| core.interrupts;
    Counter "core_saved_interrupts", "Interrupts that an I/O core need not send: the peer polled, or one told of several events",
        cores => |core| core.saved_interrupts;
}

/// What `of` finds of each thing that has it.
fn some<T, U, F: Into<Option<U>>>(things: Labelled<T>, of: impl Fn(T) -> F) -> Labelled<U> {
    things.into_iter().filter_map(|(labels, thing)| Some((labels, of(thing).into()?))).collect()
}

/// All that `of` finds of each thing, by one more label.
fn several<T, U, K: ToString, A: IntoIterator<Item = (K, U)>>(
    things: Labelled<T>,
    label: &'static str,
    of: impl Fn(T) -> A,
) -> Labelled<U> {
    let mut all = Vec::new();
    for (labels, thing) in things {
        for (value, found) in of(thing) {
            all.push(([&labels[..], &[(label, value.to_string())]].concat(), found));
        }
    }
    all
}

fn whole(snapshot: &Snapshot) -> Labelled<&Snapshot> {
    vec![(Vec::new(), snapshot)]
}

fn ports(snapshot: &Snapshot) -> Labelled<&PortView> {
    several(whole(snapshot), "port", |all| all.ports.ports.iter().map(|port| (&port.name, port)))
}

fn states(snapshot: &Snapshot) -> Labelled<&PortState> {
    some(ports(snapshot), |port| port.state.as_ref())
}

/// The time of a port with a tenant is a part of the tenant's.
fn services(snapshot: &Snapshot) -> Labelled<&ServiceView> {
    some(states(snapshot), |state| state.tenant.is_none().then_some(&state.service))
}

fn queues(snapshot: &Snapshot) -> Labelled<&QueueView> {
    let all = several(whole(snapshot), "port", |all| all.queues.queues.iter().map(|it| (&it.port, it)));
    several(all, "queue", |queue| [(queue.index, queue)])
}

fn waits(snapshot: &Snapshot) -> Labelled<&WaitCount> {
    some(queues(snapshot), |queue| queue.waits.as_ref())
}

/// Queues that an I/O core serves.
fn tasks(snapshot: &Snapshot) -> Labelled<&TaskStatus> {
    some(queues(snapshot), |queue| queue.served.as_ref())
}

fn disks(snapshot: &Snapshot) -> Labelled<&DiskView> {
    several(whole(snapshot), "port", |all| all.disks.iter().map(|disk| (&disk.port, disk)))
}

fn latencies(snapshot: &Snapshot) -> Labelled<Latency> {
    several(disks(snapshot), "kind", |disk| {
        let it = &disk.counters;
        [("read", it.read_latency), ("write", it.write_latency), ("flush", it.flush_latency)]
    })
}

fn cores(snapshot: &Snapshot) -> Labelled<&CoreView> {
    several(whole(snapshot), "core", |all| all.cores.cores.iter().map(|core| (core.time.number, core)))
}

fn tenants(snapshot: &Snapshot) -> Labelled<&TenantView> {
    several(whole(snapshot), "tenant", |all| all.tenants.iter().map(|tenant| (&tenant.name, tenant)))
}

fn groups(snapshot: &Snapshot) -> Labelled<&GroupView> {
    several(whole(snapshot), "group", |all| all.groups.iter().map(|group| (&group.name, group)))
}

fn members(snapshot: &Snapshot) -> Labelled<&MemberView> {
    let all = several(groups(snapshot), "member", |group| group.members.iter().map(|it| (&it.name, it)));
    several(all, "state", |member| [(&member.state, member)])
}

/// Two rules of a list may be alike: they have numbers.
fn rules(snapshot: &Snapshot) -> Labelled<&RuleView> {
    let lists = several(whole(snapshot), "acl", |all| all.acls.iter().map(|list| (&list.name, list)));
    let rules = several(lists, "number", |list| (1u32..).zip(&list.rules));
    several(rules, "rule", |rule| [(&rule.rule, rule)])
}

fn refused_calls(snapshot: &Snapshot) -> Labelled<&RefusedView> {
    let all =
        several(whole(snapshot), "threads", |all| all.sandbox.refused.iter().map(|it| (&it.threads, it)));
    several(all, "call", |refused| [(&refused.call, refused)])
}

fn nanoseconds(us: u64) -> u64 {
    us.saturating_mul(1_000)
}

fn mac_claims(port: &PortView) -> [(&'static str, u64); 3] {
    let count = port.state.as_ref().map(|state| state.claims).unwrap_or_default();
    [("heeded", count.mac_moved), ("pinned", count.mac_claimed), ("flap", count.mac_flap)]
}

fn for_nothing(port: &PortView) -> [(&'static str, u64); 3] {
    let count = port.state.as_ref().map(|state| state.conversation).unwrap_or_default();
    [("brief", count.brief), ("silent", count.silent), ("refused", count.refused)]
}

fn states_of(port: &PortView) -> [(&'static str, u64); 3] {
    let is = |so: fn(&PortState) -> bool| u64::from(port.state.as_ref().is_some_and(so));
    [
        ("link_up", is(|s| s.link == "up")),
        ("peer_running", is(|s| s.peer == "running")),
        ("faulted", is(|s| s.fault.is_some())),
    ]
}

fn ends(task: &TaskStatus) -> [(&'static str, u64); 5] {
    [
        ("drained", task.drained),
        ("budget", task.budget),
        ("time", task.time),
        ("waits", task.waits),
        ("empty", task.empty),
    ]
}

fn requests(disk: &DiskView) -> [(&'static str, u64); 6] {
    let it = &disk.counters;
    [
        ("read", it.reads),
        ("write", it.writes),
        ("flush", it.flushes),
        ("discard", it.discards),
        ("write_zeroes", it.write_zeroes),
        ("get_id", it.ids),
    ]
}

fn sandbox_facts(it: &SandboxView) -> [(&'static str, u64); 9] {
    [
        ("on", it.mode == "on"),
        ("seccomp", !it.seccomp.is_empty()),
        ("landlock", it.landlock > 0),
        ("io_uring_restricted", it.io_uring == "restricted"),
        ("no_new_privs", it.no_new_privs),
        ("no_core_dumps", !it.core_dumps),
        ("not_root", it.user != "root"),
        ("no_capabilities", it.capabilities.is_empty()),
        ("complete", it.mode == "on" && it.missing.is_empty()),
    ]
    .map(|(what, so)| (what, u64::from(so)))
}

fn door() -> [(&'static str, u64); 4] {
    let door = sidecore_engine::sandbox::descriptors::count();
    [("looks", door.looks), ("refused", door.refused), ("kept", door.kept), ("started", door.started)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_format_names_counters_in_full_and_has_no_end() {
        let sandbox = serde_json::json!({"mode": "on", "user": "a", "capabilities": [], "no_new_privs": true,
            "core_dumps": false, "landlock": 6, "io_uring": "none", "seccomp": [], "missing": [],
            "refused": [{"threads": "core", "call": "a \"b\"", "count": 1}]});
        let snapshot = Snapshot {
            ports: Ports { version: 2, running: true, ports: vec![], retired: None },
            queues: Queues { version: 2, queues: vec![] },
            disks: vec![],
            cores: Cores { version: 2, cores: vec![] },
            tenants: vec![],
            groups: vec![],
            acls: vec![],
            addresses: 3,
            sandbox: serde_json::from_value(sandbox).unwrap(),
            sockets: Sockets { control: (1, vec![("user", 2)]), netmap: (0, vec![]), turned_away: 0 },
        };
        let (new, old) = (text(&snapshot, false), text(&snapshot, true));
        let gauge = "# TYPE sidecore_addresses gauge\nsidecore_addresses{} 3\n";
        let row = "sidecore_refused_calls_total{threads=\"core\",call=\"a \\\"b\\\"\"} 1\n";
        for (text, head) in [(&new, "refused_calls"), (&old, "refused_calls_total")] {
            let wanted = format!("# TYPE sidecore_{head} counter\n{row}");
            assert!(text.contains(&wanted) && text.contains(gauge), "{wanted} in {text}");
        }
        assert!(new.ends_with("\n# EOF\n") && !old.contains("EOF"));
        let prometheus =
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
        assert_eq!(["", "*/*", prometheus, "text/plain"].map(wants_classic), [false, false, false, true]);
    }
}
