//! `/metrics`: the counters as `OpenMetrics` text, for Prometheus.
//!
//! A client that asks for `text/plain` and not for `OpenMetrics` gets the same in Prometheus' older text
//! format ([`classic`]).
//!
//! Nothing is counted here; a scrape is a snapshot of the shared counters, which no scrape resets. Port
//! counters start at zero when a port is added, which Prometheus takes as a counter's reset.

use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{text::encode, DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
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

/// `text` in the older format: there the name of a counter ends in `_total` in its head, too, and nothing
/// marks the end.
pub fn classic(text: &str) -> String {
    let counters: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    let line = |line: &str| {
        let head = ["# HELP ", "# TYPE "].into_iter().find_map(|mark| Some((mark, line.strip_prefix(mark)?)));
        match head.and_then(|(mark, rest)| Some((mark, rest.split_once(' ')?))) {
            Some((mark, (name, rest))) if counters.contains(&name) => format!("{mark}{name}_total {rest}\n"),
            _ => format!("{line}\n"),
        }
    };
    text.lines().filter(|line| *line != "# EOF" && !line.starts_with("# UNIT ")).map(line).collect()
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

/// The text of one scrape.
pub fn text(snapshot: Snapshot) -> Result<String, Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(snapshot));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
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
type Rows = Vec<(Labels, u64)>;

/// Writes families of metrics: of each its type, name, meaning and rows.
macro_rules! families {
    ($encoder:ident: $($put:ident $name:literal, $help:literal, $rows:expr;)+) => {
        $($put(&mut $encoder, $name, $help, $rows)?;)+
    };
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let claims = |p: &PortView| {
            let count = p.state.as_ref().map(|state| state.claims).unwrap_or_default();
            vec![("heeded", count.mac_moved), ("pinned", count.mac_claimed), ("flap", count.mac_flap)]
        };
        let of_state = |value: fn(&PortState) -> u64| self.plain_some(move |p| p.state.as_ref().map(value));
        let nanoseconds = |us: fn(&PortState) -> u64| {
            self.plain_some(move |p| Some(us(p.state.as_ref()?).saturating_mul(1_000)))
        };
        let for_nothing = |p: &PortView| {
            let count = p.state.as_ref().map(|state| state.conversation).unwrap_or_default();
            vec![("brief", count.brief), ("silent", count.silent), ("refused", count.refused)]
        };
        let states = |p: &PortView| {
            let is = |so: fn(&PortState) -> bool| u64::from(p.state.as_ref().is_some_and(so));
            vec![
                ("link_up", is(|s| s.link == "up")),
                ("peer_running", is(|s| s.peer == "running")),
                ("faulted", is(|s| s.fault.is_some())),
            ]
        };
        let door = sidecore_engine::sandbox::descriptors::count();
        let of = |what: &str, n| (vec![("what", what.to_owned())], n);
        let one = |n| vec![(Vec::new(), n)];
        let reason = |(reason, n): &(&'static str, u64)| (vec![("reason", (*reason).to_owned())], *n);
        let per_core = |value: fn(&CoreView) -> u64| -> Rows {
            let row = |core: &CoreView| (vec![("core", core.time.number.to_string())], value(core));
            self.cores.cores.iter().map(row).collect()
        };
        // The time of a port with a tenant is a part of the tenant's.
        let service = |value: fn(&ServiceView) -> Option<u64>| {
            self.plain_some(move |p| {
                let own = p.state.as_ref().filter(|state| state.tenant.is_none())?;
                value(&own.service)
            })
        };
        let group = |value: fn(&GroupView) -> Vec<(&'static str, u64)>| -> Rows {
            let row =
                |it: &GroupView, (how, n)| (vec![("group", it.name.clone()), ("how", String::from(how))], n);
            self.groups.iter().flat_map(|it| value(it).into_iter().map(move |n| row(it, n))).collect()
        };
        let member = |value: fn(&MemberView) -> u64| -> Rows {
            let row = |group: &GroupView, it: &MemberView| {
                let labels = [("group", &group.name), ("member", &it.name), ("state", &it.state)];
                (labels.map(|(label, text)| (label, text.clone())).to_vec(), value(it))
            };
            self.groups.iter().flat_map(|group| group.members.iter().map(move |it| row(group, it))).collect()
        };
        let tenant = |value: fn(&TenantView) -> Option<u64>| -> Rows {
            let row = |it: &TenantView| Some((vec![("tenant", it.name.clone())], value(it)?));
            self.tenants.iter().filter_map(row).collect()
        };
        let ends = |task: &TaskStatus| {
            vec![
                ("drained", task.drained),
                ("budget", task.budget),
                ("time", task.time),
                ("waits", task.waits),
                ("empty", task.empty),
            ]
        };
        let requests = |disk: &DiskView| {
            let it = &disk.counters;
            let kinds = [
                ("read", it.reads),
                ("write", it.writes),
                ("flush", it.flushes),
                ("discard", it.discards),
                ("write_zeroes", it.write_zeroes),
                ("get_id", it.ids),
            ];
            kinds.map(|(kind, n)| (kind.to_owned(), n)).to_vec()
        };
        let disk_bytes = |disk: &DiskView| {
            let it = &disk.counters;
            vec![("read".to_owned(), it.read_bytes), ("write".to_owned(), it.written_bytes)]
        };
        let disk_errors =
            |disk: &DiskView| disk.counters.errors.iter().map(|(why, n)| (why.clone(), *n)).collect();
        families! { encoder:
            counter "frames", "Frames into the switch (in) from a port, and out of it (out) to a port",
                self.per_port(|p| vec![("in", p.counters.in_frames), ("out", p.counters.out_frames)], "direction");
            counter "bytes", "Bytes of those frames",
                self.per_port(|p| vec![("in", p.counters.in_bytes), ("out", p.counters.out_bytes)], "direction");
            counter "made_frames", "Frames that came into being by flooding or segmentation",
                self.plain(|p| p.counters.made);
            counter "kicks", "Notifications received from the peer", self.plain(|p| p.counters.kicks);
            counter "interrupts", "Notifications sent to the peer", self.plain(|p| p.counters.interrupts);
            counter "capture_lost_frames", "Frames that captures of the port lost: their readers were too slow",
                self.plain(|p| p.state.as_ref().map_or(0, |state| state.capture_lost));
            counter "batches", "Batches of frames taken from a port", self.plain(|p| p.counters.batches);
            counter "dropped_frames", "Frames dropped, by reason",
                self.per_port(|p| p.counters.drops.iter().map(|(reason, n)| (reason.as_str(), *n)).collect(), "reason");
            counter "mac_claims", "Times that a port used an address that lives at another one",
                self.per_port(claims, "outcome");
            counter "queue_waits", "Times that frames waited, on a wire, for buffers of their receiver",
                self.waits(|waits| waits.count);
            counter "queue_waits_given_up", "Waits that ended because the receiver was taken for dead",
                self.waits(|waits| waits.given_up);
            seconds "queue_waited", "Seconds of all those waits together",
                self.waits(|waits| waits.total_us.saturating_mul(1_000));
            counter "slow_batches", "Batches of a port that took longer than a millisecond of an I/O core",
                of_state(|s| s.slow.batches);
            seconds "slow_batch", "Seconds of those batches together", nanoseconds(|s| s.slow.total_us);
            seconds "overrun", "Seconds that a port's memory, eventfds and messages took of I/O cores beyond a millisecond each",
                nanoseconds(|s| s.overrun.total_us);
            counter "rests", "Times that a port was not served for a second, because that was too much",
                of_state(|s| s.overrun.rests);
            counter "connections", "VMMs that have connected to a port", of_state(|s| s.conversation.connections);
            counter "connections_for_nothing", "VMMs that left within a second or without having done anything (brief), were disconnected because they said nothing (silent), or were turned away (refused)",
                self.per_port(for_nothing, "kind");
            counter "conversation_changes", "Changes by a VMM's messages that I/O cores notice: queues taken back and served, memory mapped and unmapped",
                of_state(|s| s.conversation.changes);
            counter "conversation_holds", "Times that a VMM's messages were held back because they changed too much",
                of_state(|s| s.conversation.held);
            seconds "conversation_held", "Seconds for which they were", nanoseconds(|s| s.conversation.held_us);
            counter "refused_files", "Descriptors from a VMM that are not what they were given for",
                of_state(|s| s.memory.refused_files);
            counter "populated_bytes", "Bytes of VMMs' memory that were made present in advance",
                of_state(|s| s.memory.populated_bytes);
            gauge "memory_mappings", "Mappings of VMMs' memory", of_state(|s| s.memory.mappings);
            seconds "port_busy", "Seconds that I/O cores spent on a port", service(|s| Some(s.busy_ns));
            seconds "port_throttled", "Seconds in which a port had used up its budget or its rate",
                service(|s| Some(s.throttled_ns));
            gauge "port_weight", "A port's share of an I/O core beside other ports", service(|s| Some(s.weight.into()));
            gauge "port_granted_ppm", "Millionths of an I/O core that a port's budget guarantees",
                service(|s| s.granted_ppm);
            gauge "port_used_ppm", "Millionths of an I/O core that a port had in the last second",
                service(|s| s.used_ppm);
            seconds "tenant_busy", "Seconds that I/O cores spent on the ports of a tenant",
                tenant(|t| Some(t.service.busy_ns));
            seconds "tenant_throttled", "Seconds in which a tenant had used up its budget or its rate",
                tenant(|t| Some(t.service.throttled_ns));
            gauge "tenant_granted_ppm", "Millionths of an I/O core that a tenant's budget guarantees",
                tenant(|t| t.service.granted_ppm);
            gauge "tenant_used_ppm", "Millionths of an I/O core that a tenant had in the last second",
                tenant(|t| t.service.used_ppm);
            gauge "tenant_wait_ns", "Nanoseconds within which 99 of 100 visits at a tenant's slowest queue came after there was work",
                tenant(|t| Some(t.wait_p99_ns));
            gauge "group_member_buckets", "Buckets of flows that a member of a group has", member(|m| m.buckets.into());
            gauge "group_member_waiting", "Buckets of a member that are to move when they are idle",
                member(|m| m.waiting.into());
            gauge "group_member_missed_probes", "Probes that a member of a group has missed in a row",
                member(|m| m.probes_missed.unwrap_or(0).into());
            counter "acl_frames", "Frames on which a rule of an access list decided", self.acl_frames();
            counter "group_moves", "Buckets of flows that moved to another member, idle ones and others",
                group(|g| vec![("idle", g.moved_idle), ("at_once", g.moved_at_once)]);
            counter "queue_visits", "Visits of an I/O core at a queue, by what ended them; empty: nothing was found",
                self.per_task(ends, "end");
            counter "queue_early_visits", "Visits out of turn: the queue was stuck, urgent or had a budget left",
                self.task(|task| task.early);
            counter "queue_moves", "Times that a queue went to another I/O core", self.task(|task| task.moves);
            counter "queue_wakes", "Times that a queue woke its I/O core", self.task(|task| task.wakes);
            seconds "queue_busy", "Seconds that visits at a queue took", self.task(|task| task.busy_ns);
            gauge "queue_core", "The I/O core that serves a queue", self.task(|task| task.core as u64);
            gauge "queue_wait_ns", "Nanoseconds within which so many of a queue's visits came after there was work",
                self.per_task(|task| vec![("0.5", task.wait_p50_ns), ("0.99", task.wait_p99_ns)], "quantile");
            counter "disk_requests", "Requests to a disk that went well", self.per_disk(requests, "kind");
            counter "disk_bytes", "Bytes of reads and writes that went well", self.per_disk(disk_bytes, "kind");
            counter "disk_errors", "Requests to a disk that failed, by reason", self.per_disk(disk_errors, "reason");
            gauge "disk_in_flight", "Requests to a disk that are under way",
                self.disk(|disk| disk.counters.in_flight);
            gauge "disk_capacity_bytes", "Bytes of a disk", self.disk(|disk| disk.capacity);
            gauge "disk_latency_ns", "Nanoseconds within which so many requests of a kind were answered",
                self.disk_latencies();
            counter "disk_interrupts", "Interrupts for requests to a disk", self.disk(|disk| disk.counters.interrupts);
            gauge "port_state", "1 if it is so", self.per_port(states, "state");
            gauge "addresses", "Addresses that the switches remember", one(self.addresses as u64);
            gauge "sandbox", "1 if it is in force", self.sandbox_facts();
            counter "refused_calls", "System calls that the sandbox refused, by kind of thread", self.refused();
            counter "door", "Messages of VMMs with descriptors: all, and those of which none was passed on; connections that ended with something unread; and the processes for all that",
                vec![of("looks", door.looks), of("refused", door.refused), of("kept", door.kept), of("started", door.started)];
            gauge "control_connections", "Connections to the control socket",
                one(self.sockets.control.0);
            counter "control_refused", "Connections and requests that the control socket refused, and connections that it ended",
                self.sockets.control.1.iter().map(reason).collect();
            gauge "netmap_connections", "Connections to the socket for netmap programs",
                one(self.sockets.netmap.0);
            counter "netmap_refused", "Connections that the socket for netmap programs refused or ended",
                self.sockets.netmap.1.iter().map(reason).collect();
            counter "clients_turned_away", "Clients of any socket that were hung up on because there was no descriptor for them",
                one(self.sockets.turned_away);
            seconds "core", "Seconds that an I/O core was busy, idle and asleep", self.core_time();
            counter "core_frames", "Frames moved by an I/O core", per_core(|core| core.time.frames);
            gauge "core_active", "1 if the I/O core serves queues, 0 if it rests until it is needed",
                per_core(|core| core.time.active.into());
            counter "core_sleeps", "Times that an I/O core went to sleep", per_core(|core| core.time.sleeps);
            counter "core_interrupts", "Interrupts that an I/O core sent", per_core(|core| core.interrupts);
            counter "core_saved_interrupts", "Interrupts that an I/O core need not send: the peer polled, or one told of several events",
                per_core(|core| core.saved_interrupts);
        }
        Ok(())
    }
}

impl Snapshot {
    fn plain(&self, value: fn(&PortView) -> u64) -> Rows {
        self.ports.ports.iter().map(|port| (vec![("port", port.name.clone())], value(port))).collect()
    }

    fn plain_some(&self, value: impl Fn(&PortView) -> Option<u64>) -> Rows {
        let row = |port: &PortView| Some((vec![("port", port.name.clone())], value(port)?));
        self.ports.ports.iter().filter_map(row).collect()
    }

    fn per_port<'s>(
        &'s self,
        values: impl Fn(&'s PortView) -> Vec<(&'s str, u64)>,
        label: &'static str,
    ) -> Rows {
        let rows = |port: &'s PortView| {
            let labels = |value: &str| vec![("port", port.name.clone()), (label, value.to_owned())];
            values(port).into_iter().map(|(value, n)| (labels(value), n)).collect::<Vec<_>>()
        };
        self.ports.ports.iter().flat_map(rows).collect()
    }

    /// Rows of each ingress queue.
    fn waits(&self, value: fn(&WaitCount) -> u64) -> Rows {
        let row = |queue: &QueueView| {
            let labels = vec![("port", queue.port.clone()), ("queue", queue.index.to_string())];
            Some((labels, value(queue.waits.as_ref()?)))
        };
        self.queues.queues.iter().filter_map(row).collect()
    }

    /// Rows of each queue that an I/O core serves.
    fn task(&self, value: fn(&TaskStatus) -> u64) -> Rows {
        let row = |queue: &QueueView| {
            let labels = vec![("port", queue.port.clone()), ("queue", queue.index.to_string())];
            Some((labels, value(queue.served.as_ref()?)))
        };
        self.queues.queues.iter().filter_map(row).collect()
    }

    /// Rows of each queue that an I/O core serves, by something that is counted of it.
    fn per_task(&self, values: fn(&TaskStatus) -> Vec<(&'static str, u64)>, label: &'static str) -> Rows {
        let rows = |queue: &QueueView| {
            let each = queue.served.as_ref().map(values).unwrap_or_default();
            let labels = |value: &str| {
                vec![
                    ("port", queue.port.clone()),
                    ("queue", queue.index.to_string()),
                    (label, value.to_owned()),
                ]
            };
            each.into_iter().map(|(value, n)| (labels(value), n)).collect::<Vec<_>>()
        };
        self.queues.queues.iter().flat_map(rows).collect()
    }

    fn disk(&self, value: fn(&DiskView) -> u64) -> Rows {
        self.disks.iter().map(|disk| (vec![("port", disk.port.clone())], value(disk))).collect()
    }

    fn per_disk(&self, values: impl Fn(&DiskView) -> Vec<(String, u64)>, label: &'static str) -> Rows {
        let rows = |disk: &DiskView| {
            let labels = |value: String| vec![("port", disk.port.clone()), (label, value)];
            values(disk).into_iter().map(|(value, n)| (labels(value), n)).collect::<Vec<_>>()
        };
        self.disks.iter().flat_map(rows).collect()
    }

    fn disk_latencies(&self) -> Rows {
        let rows = |disk: &DiskView| {
            let it = &disk.counters;
            let kinds = [("read", it.read_latency), ("write", it.write_latency), ("flush", it.flush_latency)];
            let row = |(kind, latency): (&str, Latency)| {
                [("0.5", latency.p50_ns), ("0.99", latency.p99_ns)].map(|(quantile, ns)| {
                    let kind = ("kind", kind.to_owned());
                    (vec![("port", disk.port.clone()), kind, ("quantile", quantile.to_owned())], ns)
                })
            };
            kinds.into_iter().flat_map(row).collect::<Vec<_>>()
        };
        self.disks.iter().flat_map(rows).collect()
    }

    fn sandbox_facts(&self) -> Rows {
        let it = &self.sandbox;
        let facts = [
            ("on", it.mode == "on"),
            ("seccomp", !it.seccomp.is_empty()),
            ("landlock", it.landlock > 0),
            ("io_uring_restricted", it.io_uring == "restricted"),
            ("no_new_privs", it.no_new_privs),
            ("no_core_dumps", !it.core_dumps),
            ("not_root", it.user != "root"),
            ("no_capabilities", it.capabilities.is_empty()),
            ("complete", it.mode == "on" && it.missing.is_empty()),
        ];
        facts.iter().map(|(what, so)| (vec![("what", (*what).to_owned())], u64::from(*so))).collect()
    }

    fn refused(&self) -> Rows {
        let row = |refused: &RefusedView| {
            (vec![("threads", refused.threads.clone()), ("call", refused.call.clone())], refused.count)
        };
        self.sandbox.refused.iter().map(row).collect()
    }

    /// By list and rule. Two rules may be alike: they have numbers.
    fn acl_frames(&self) -> Rows {
        let rows = |list: &AclView| -> Rows {
            let row = |(number, it): (u32, &RuleView)| {
                let labels =
                    [("acl", list.name.clone()), ("number", number.to_string()), ("rule", it.rule.clone())];
                (labels.to_vec(), it.frames)
            };
            (1..).zip(&list.rules).map(row).collect()
        };
        self.acls.iter().flat_map(rows).collect()
    }

    /// Nanoseconds.
    fn core_time(&self) -> Rows {
        let rows = |core: &CoreView| {
            let core = &core.time;
            let number = core.number.to_string();
            [("busy", core.busy_ns), ("idle", core.idle_ns), ("asleep", core.sleep_ns)]
                .map(|(state, ns)| (vec![("core", number.clone()), ("state", state.to_owned())], ns))
        };
        self.cores.cores.iter().flat_map(rows).collect()
    }
}

/// A counter of seconds; the rows have nanoseconds.
fn seconds(out: &mut DescriptorEncoder<'_>, name: &str, help: &str, rows: Rows) -> Result<(), Error> {
    family(out, &format!("{name}_seconds"), help, MetricType::Counter, rows, |ns, encoder| {
        // Exact to the nanosecond for the first hundred days, to the microsecond for ever.
        #[allow(clippy::cast_precision_loss)]
        let seconds = ns as f64 / 1e9;
        ConstCounter::new(seconds).encode(encoder)
    })
}

fn counter(out: &mut DescriptorEncoder<'_>, name: &str, help: &str, rows: Rows) -> Result<(), Error> {
    family(out, name, help, MetricType::Counter, rows, |n, encoder| ConstCounter::new(n).encode(encoder))
}

fn gauge(out: &mut DescriptorEncoder<'_>, name: &str, help: &str, rows: Rows) -> Result<(), Error> {
    family(out, name, help, MetricType::Gauge, rows, |n, encoder| {
        ConstGauge::new(i64::try_from(n).unwrap_or(i64::MAX)).encode(encoder)
    })
}

fn family(
    out: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    kind: MetricType,
    rows: Rows,
    put: impl Fn(u64, MetricEncoder<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let name = format!("sidecore_{name}");
    let mut family = out.encode_descriptor(&name, help, None, kind)?;
    for (labels, n) in rows {
        put(n, family.encode_family(&labels)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_format_names_counters_in_full_and_has_no_end() {
        let text = "# HELP a_b Frames.\n# TYPE a_b counter\na_b_total{p=\"x\"} 1\n# HELP g Now.\n# TYPE g gauge\ng 2\n# EOF\n";
        let wanted =
            "# HELP a_b_total Frames.\n# TYPE a_b_total counter\na_b_total{p=\"x\"} 1\n# HELP g Now.\n# TYPE g gauge\ng 2\n";
        assert_eq!(classic(text), wanted);
        let prometheus =
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
        assert_eq!(["", "*/*", prometheus, "text/plain"].map(wants_classic), [false, false, false, true]);
    }
}
