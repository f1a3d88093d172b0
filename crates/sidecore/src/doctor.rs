//! `doctor`: why a port has no traffic. What the daemon knows of each port (`troubles` of `show ports`) in a
//! fixed order, with what only the host can tell: who may open the socket ([`rights`]), and whether the VMM
//! runs.

mod rights;

use std::path::Path;

use serde::Serialize;
use sidecore_engine::state::status::{Diagnosis, PortState, PortView, Ports, QueueView, Queues, VERSION};

use crate::api::About;
use crate::cli::{DoctorArgs, OfDaemon};
use crate::client::Client;
use crate::show::{ago, answer, no_port, per_second};
use crate::{print, Outcome};

/// What is looked at, in this order: the first that is wrong is the one to mend.
const ABOUT: [&str; 6] = ["peer", "memory", "driver", "link", "mtu", "frames"];

/// What was found.
#[derive(Debug, Serialize)]
struct Report {
    version: u32,
    /// Whether anything is wrong.
    wrong: bool,
    ports: Vec<Findings>,
}

/// What was found of one port.
#[derive(Debug, Serialize)]
pub struct Findings {
    port: String,
    kind: String,
    #[serde(rename = "where")]
    location: String,
    wrong: bool,
    checks: Vec<Check>,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Check {
    about: &'static str,
    /// The cause's name; absent: it is as it should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    wrong: bool,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    mend: Option<String>,
}

/// `doctor`.
pub fn run(args: &OfDaemon<DoctorArgs>) -> Outcome {
    let client = Client::new(&args.control.path())?;
    let ports: Ports = client.get("/v1/ports")?;
    let queues: Queues = client.get("/v1/queues")?;
    let about: About = client.get("/v1/daemon")?;
    let meant = |port: &&PortView| args.port.as_ref().is_none_or(|name| *name == port.name);
    let found = ports.ports.iter().filter(meant);
    let findings: Vec<Findings> = found.filter_map(|port| examine(port, &queues.queues, &about)).collect();
    if let (Some(name), true) = (&args.port, findings.is_empty()) {
        return Err(no_port(&ports, name));
    }
    let report = Report { version: VERSION, wrong: findings.iter().any(|port| port.wrong), ports: findings };
    print(&answer(args.json, &report, text)?)?;
    let bad: Vec<&str> =
        report.ports.iter().filter(|port| port.wrong).map(|port| port.port.as_str()).collect();
    match bad.as_slice() {
        [] => Ok(()),
        bad => Err(format!("something is wrong with {}", bad.join(", "))),
    }
}

/// What there is to say of a port.
pub fn examine(port: &PortView, queues: &[QueueView], about: &About) -> Option<Findings> {
    let state = port.state.as_ref()?;
    let mut troubles = state.troubles.clone();
    if state.peer == "waiting" && state.link_wanted == "up" {
        troubles.extend(rights::look(&port.name, Path::new(&state.location), about));
    }
    if let Some(pid) = state.pid.filter(|pid| is_stopped(*pid)) {
        // What its guest does not take then is no fault of the guest's.
        troubles.retain(|trouble| !matches!(&*trouble.name, "ring_full" | "queue_full"));
        troubles.push(Diagnosis {
            name: "vmm_stopped".to_owned(),
            about: "peer".to_owned(),
            wrong: true,
            text: format!("its VMM, process {pid}, is stopped by SIGSTOP or a debugger"),
            mend: Some(format!("kill -CONT {pid}")),
        });
    }
    let own: Vec<&QueueView> = queues.iter().filter(|queue| queue.port == port.name).collect();
    let checks: Vec<Check> = ABOUT.iter().flat_map(|about| checks(about, state, &troubles, &own)).collect();
    Some(Findings {
        port: port.name.clone(),
        kind: state.kind.clone(),
        location: state.location.clone(),
        wrong: checks.iter().any(|check| check.wrong),
        checks,
    })
}

/// Whether process `pid` is stopped: its state stands behind its name, which is in brackets (proc(5)).
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    matches!(state, Some('T' | 't'))
}

/// What there is to say about one thing: the troubles with it, or how it is.
fn checks(
    about: &'static str,
    state: &PortState,
    troubles: &[Diagnosis],
    queues: &[&QueueView],
) -> Vec<Check> {
    let of_trouble = |trouble: &Diagnosis| Check {
        about,
        name: Some(trouble.name.clone()),
        wrong: trouble.wrong,
        text: trouble.text.clone(),
        mend: trouble.mend.clone(),
    };
    let mut found: Vec<Check> =
        troubles.iter().filter(|trouble| trouble.about == about).map(of_trouble).collect();
    // Frames are told of in any case: when the last one passed is what people look for first.
    if found.is_empty() || about == "frames" {
        if let Some(text) = as_it_is(about, state, queues) {
            found.push(Check { about, name: None, wrong: false, text, mend: None });
        }
    }
    found
}

/// How it is, where nothing is wrong with it and there is something to say.
fn as_it_is(about: &str, state: &PortState, queues: &[&QueueView]) -> Option<String> {
    let there = matches!(state.peer.as_str(), "connected" | "running");
    // A disk is joined to nothing.
    let joined =
        state.switch.is_some() || state.router.is_some() || state.wire.is_some() || state.pipe.is_some();
    Some(match about {
        "link" | "mtu" | "frames" if !joined => return None,
        "peer" => {
            let pid = state.pid.map_or_else(String::new, |pid| format!(", process {pid}"));
            format!("{}{pid}: {}", state.peer, state.detail)
        }
        "memory" if state.memory.mappings > 0 => {
            format!("shared, {} mappings", state.memory.mappings)
        }
        "driver" if there && !queues.is_empty() => {
            let running = queues.iter().filter(|queue| queue.state.starts_with("running")).count();
            let off = queues.iter().find(|queue| !queue.state.starts_with("running"));
            let off = off.map_or_else(String::new, |queue| {
                format!("; {} {}: {}", queue.direction, queue.index, queue.state)
            });
            format!("{running} of {} queues run{off}", queues.len())
        }
        "link" if state.link == "up" => "up".to_owned(),
        "link" if state.kind == "tap" => "down: the TAP is set down, or gone".to_owned(),
        "link" => "down: no peer is there to receive".to_owned(),
        "mtu" => format!("{}, and no frame was too long of late", state.mtu),
        "frames" => {
            let flow = &state.flow;
            let way = |last: Option<u64>, rate: Option<u64>| match last {
                None => "none yet".to_owned(),
                Some(ms) => format!("last {}, {}", ago(ms), per_second(rate)),
            };
            let (from, to) = (way(flow.last_in_ms, flow.in_rate), way(flow.last_out_ms, flow.out_rate));
            format!("from it: {from}; to it: {to}")
        }
        _ => return None,
    })
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    for port in &report.ports {
        text.push_str(&format!("{}: {} {}\n", port.port, port.kind, port.location));
        for check in &port.checks {
            let grade = match (&check.name, check.wrong) {
                (_, true) => "WRONG",
                (Some(_), false) => "note",
                (None, false) => "ok",
            };
            text.push_str(&format!("  {grade:<5}  {:<6}  {}\n", check.about, check.text));
            if let Some(mend) = &check.mend {
                text.push_str(&format!("                  fix: {mend}\n"));
            }
        }
    }
    if report.ports.is_empty() {
        text.push_str("there are no ports\n");
    }
    text
}
