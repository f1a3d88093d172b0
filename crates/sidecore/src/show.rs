//! `show`: tables for people, `--json` for programs.
//!
//! Files: `overview`, the whole in short; `holders`, which needs no daemon; `queues`, whose columns people
//! choose from; `port`, all of one port; `routes`, what routers have and do; `watch`, the same again each
//! second.

pub mod holders;
mod overview;
mod port;
mod queues;
pub mod routes;
mod watch;

use std::path::Path;

use serde::Serialize;
use sidecore_engine::core::DEFAULT_WEIGHT;
use sidecore_engine::state::acls::AclList;
use sidecore_engine::state::disks::{DiskView, Disks};
use sidecore_engine::state::status::{
    Addresses, ConversationCount, CoreView, Cores, Drops, FlowView, LastSecond, OverrunCount, PortState,
    PortView, Ports, Queues, SlowCount, Sums, Switches,
};
use sidecore_engine::state::tenants::TenantList;
use sidecore_engine::state::ServiceView;

use crate::api::About;
use crate::cli::{ShowArgs, Topic};
use crate::client::{Client, Failure};
use crate::group;
use crate::offline;
use crate::reserve;
use crate::table::{bytes, percent, units, ColumnOf, Table};
use crate::{print, Outcome};

/// `show`.
pub fn run(args: &ShowArgs) -> Outcome {
    if let (Some(name), false) = (&args.name, matches!(args.topic, Topic::Port | Topic::Routes)) {
        return Err(format!("{name}: a name goes with `show port` and `show routes` only"));
    }
    let socket = args.control.path();
    let client = Client::new(&socket)?;
    let look = || text(args, &client, &socket);
    match args.watch {
        true => watch::each_second(look),
        false => print(&look()?),
    }
}

/// What is shown of the topic.
fn text(args: &ShowArgs, client: &Client, socket: &Path) -> Result<String, String> {
    match args.topic {
        Topic::Overview => overview::show(args, client, socket),
        Topic::Ports => show(args, &ports(client, args, socket)?, |all: &Ports| ports_table(all, args.watch)),
        Topic::Drops => show(args, &ports(client, args, socket)?.drops(), drops_table),
        Topic::Switches => show(args, &client.get("/v1/switches")?, switches_table),
        Topic::Mac => show(args, &client.get("/v1/mac")?, mac_table),
        Topic::Cores => show(args, &client.get("/v1/cores")?, |all: &Cores| cores_table(&all.cores, false)),
        Topic::Queues => show(args, &client.get("/v1/queues")?, |all: &Queues| queues::table(all, args.wide)),
        Topic::Port => show(args, &port::of(client, args.name.as_deref().unwrap_or_default())?, port::text),
        Topic::Routers => show(args, &client.get("/v1/routers")?, routes::routers),
        Topic::Acl => show(args, &client.get("/v1/acls")?, acl_table),
        Topic::Tenants => show(args, &client.get("/v1/tenants")?, tenants_table),
        Topic::Groups => show(args, &client.get("/v1/groups")?, group::table),
        Topic::Routes => show(args, &client.get(&routes::path(args.name.as_deref()))?, routes::routes),
        Topic::Neighbours => show(args, &client.get("/v1/neighbours")?, routes::neighbours),
        Topic::Disks => show(args, &client.get("/v1/disks")?, disks_table),
        Topic::Reservations => reserve::show(args),
        Topic::Holders => holders::show(args),
        Topic::Daemon => show(args, &client.get("/v1/daemon")?, daemon_table),
    }
}

fn show<T: Serialize>(args: &ShowArgs, all: &T, table: impl Fn(&T) -> String) -> Result<String, String> {
    answer(args.json, all, table)
}

/// An answer for programs, or for people.
pub fn answer<T: Serialize>(json: bool, answer: &T, table: impl Fn(&T) -> String) -> Result<String, String> {
    if !json {
        return Ok(table(answer));
    }
    let text = serde_json::to_string_pretty(answer).map_err(|e| e.to_string())?;
    Ok(text + "\n")
}

/// The ports of the daemon, or those that a daemon left behind, saying so.
fn ports(client: &Client, args: &ShowArgs, socket: &Path) -> Result<Ports, String> {
    let gone = match client.get("/v1/ports") {
        Err(failure @ (Failure::NotRunning(_) | Failure::Silent { .. })) => failure,
        other => return Ok(other?),
    };
    let file = args.counters.clone().unwrap_or_else(|| offline::beside(socket));
    if !file.exists() {
        return Err(gone.into());
    }
    let remains = offline::read(&file)?;
    let why = match gone {
        Failure::NotRunning(_) => "the daemon is not running".to_owned(),
        gone => gone.to_string(),
    };
    let (pid, file) = (remains.pid, file.display());
    eprintln!("sidecore: {why}; these are the last counters of process {pid} in {file}");
    Ok(remains.ports)
}

/// The error that there is no port `name`.
pub fn no_port(ports: &Ports, name: &str) -> String {
    let names: Vec<&str> = ports.ports.iter().map(|port| port.name.as_str()).collect();
    match names.as_slice() {
        [] => format!("there is no port {name:?}: there are none"),
        names => format!("there is no port {name:?}; there are {}", names.join(", ")),
    }
}

/// The ports; with the rates of the last second in place of all frames so far, if `rates`.
fn ports_table(answer: &Ports, rates: bool) -> String {
    if !answer.running {
        return counters_table(answer);
    }
    let states = || answer.ports.iter().filter_map(|port| port.state.as_ref());
    let mut heads = vec!["port", "kind", "where", "joined", "link", "peer", ">mtu", ">queues"];
    heads.extend(match rates {
        true => [">in/s", ">in bit/s", ">out/s", ">out bit/s", ">drops/s"],
        false => [">in", ">in bytes", ">out", ">out bytes", ">drops"],
    });
    heads.extend([">core time", ">of late"]);
    // What most ports have not got has no columns.
    let graded = states().any(is_graded);
    if graded {
        heads.extend(["class", ">weight", ">granted", ">throttled", "rate"]);
    }
    let trouble = states().any(|state| !troubles(state).is_empty());
    if trouble {
        heads.push("trouble");
    }
    let mut table = Table::new(&heads);
    for port in &answer.ports {
        let Some(state) = &port.state else { continue };
        let queues = match state.queues_wanted {
            Some(wanted) if wanted != state.queues => format!("{} of {wanted}", state.queues),
            _ => state.queues.to_string(),
        };
        let [name, kind, location, link, peer] =
            [&port.name, &state.kind, &state.location, &state.link, &state.peer].map(String::clone);
        let joined = joined(state);
        let cells = [name, kind, location, joined, link, peer, state.mtu.to_string(), queues];
        let passed = if rates { flow_rates(&state.flow) } else { counters(&port.counters) };
        let mut row: Vec<String> = cells.into_iter().chain(passed).collect();
        row.extend(had(&state.service));
        if graded {
            row.extend(granted(&state.service));
        }
        if trouble {
            row.push(troubles(state));
        }
        table.row(row);
    }
    table.text() + &notes(answer)
}

/// What a port is joined to.
fn joined(state: &PortState) -> String {
    match (&state.wire, &state.switch) {
        (Some(wire), _) => format!("wire {wire}"),
        (None, Some(switch)) => format!("switch {switch}"),
        (None, None) => match (&state.router, &state.pipe, &state.group) {
            (Some(router), ..) => format!("router {router}"),
            (_, Some(pipe), _) => format!("pipe {pipe}"),
            (.., Some(group)) => format!("group {group}"),
            _ => String::new(),
        },
    }
}

/// The names of what is wrong with a port.
pub fn troubles(state: &PortState) -> String {
    let wrong = state.troubles.iter().filter(|trouble| trouble.wrong);
    wrong.map(|trouble| trouble.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// The remarks on all ports, one a line.
fn notes(answer: &Ports) -> String {
    let of = |port: &PortView| {
        let remarks = port.state.iter().flat_map(remarks);
        remarks.map(|text| format!("{}: {text}\n", port.name)).collect::<String>()
    };
    answer.ports.iter().map(of).collect()
}

/// What people should know of a port and no column says.
fn remarks(state: &PortState) -> Vec<String> {
    let mut remarks = Vec::new();
    let mut note = |text: String| remarks.push(text);
    for trouble in state.troubles.iter().filter(|trouble| trouble.wrong) {
        let mend = trouble.mend.as_ref().map_or_else(String::new, |mend| format!("; {mend}"));
        note(format!("{}{mend}", trouble.text));
    }
    for capture in state.captures.iter().filter(|capture| capture.lost > 0) {
        note(format!("a capture has lost {} of {} frames", capture.lost, capture.frames));
    }
    // That no memory is shared was said.
    let said = state.troubles.iter().any(|trouble| trouble.name == "no_memory");
    if let Some(hint) = state.hint.as_ref().filter(|_| !said) {
        note(hint.clone());
    }
    if state.claims.mac_claimed > 0 {
        note(format!(
            "used addresses that are pinned to other ports {} times; they were not learned",
            state.claims.mac_claimed
        ));
    }
    if state.slow.batches > 0 {
        let SlowCount { batches, longest_us, .. } = state.slow;
        note(format!(
            "{batches} batches took longer than 1 ms of an I/O core, the longest {} ms",
            longest_us / 1_000
        ));
    }
    let OverrunCount { total_us, longest_us, rests } = state.overrun;
    if rests > 0 {
        let [total, longest] = [total_us, longest_us].map(|us| us / 1_000);
        note(format!(
            "its memory, eventfds or messages held I/O cores up for {total} ms ({longest} ms at once): it had to rest {rests} times"
        ));
    }
    let ConversationCount { brief, silent, held, held_us, .. } = state.conversation;
    if held > 0 {
        let ms = held_us / 1_000;
        note(format!("its VMM's messages change too much: held back {held} times, {ms} ms in all"));
    }
    if brief + silent > 0 {
        note(format!("clients that left at once: {brief}, that said nothing: {silent}"));
    }
    if state.memory.refused_files > 0 {
        note(format!("descriptors refused: {}", state.memory.refused_files));
    }
    if state.mtu_wanted.is_some_and(|wanted| wanted != state.mtu) {
        note(format!("mtu is {}, the interface's", state.mtu));
    }
    remarks
}

/// Whether a port has anything else of the I/O cores than others.
fn is_graded(state: &PortState) -> bool {
    let it = &state.service;
    let graded = it.granted_ppm.is_some() || it.rate.is_some() || it.bit_rate.is_some();
    graded || it.class == "latency" || u64::from(it.weight) != u64::from(DEFAULT_WEIGHT)
}

/// What a port had of the I/O cores: in all, and in the last second.
fn had(service: &ServiceView) -> [String; 2] {
    [seconds(service.busy_ns), service.used_ppm.map_or(String::new(), ppm)]
}

/// What it is granted.
fn granted(service: &ServiceView) -> [String; 5] {
    let limit = |rate: Option<u64>, unit| rate.map(|rate| format!("{rate} {unit}/s"));
    let rates: Vec<_> =
        [limit(service.rate, "frames"), limit(service.bit_rate, "bit")].into_iter().flatten().collect();
    let granted = service.granted_ppm.map_or(String::new(), |share| match service.reclaim {
        true => format!("{} and more", ppm(share)),
        false => ppm(share),
    });
    let throttled = match service.throttled_ppm.filter(|part| *part > 0) {
        Some(part) => format!("{}, {}", seconds(service.throttled_ns), ppm(part)),
        None => seconds(service.throttled_ns),
    };
    [service.class.clone(), service.weight.to_string(), granted, throttled, rates.join(", ")]
}

/// Millionths as percent.
pub fn ppm(part: u64) -> String {
    percent(part, 1_000_000)
}

/// Nanoseconds as seconds.
fn seconds(ns: u64) -> String {
    let ms = ns / 1_000_000;
    format!("{}.{:03} s", ms / 1_000, ms % 1_000)
}

fn counters_table(answer: &Ports) -> String {
    let mut table = Table::new(&["port", ">in", ">in bytes", ">out", ">out bytes", ">drops"]);
    for port in &answer.ports {
        table.row(std::iter::once(port.name.clone()).chain(counters(&port.counters)));
    }
    table.text()
}

/// Frames and bytes in and out, and drops.
fn counters(sums: &Sums) -> [String; 5] {
    let drops: u64 = sums.drops.values().sum();
    let frames = [sums.in_frames, sums.out_frames, drops].map(|n| n.to_string());
    let [frames_in, frames_out, drops] = frames;
    [frames_in, bytes(sums.in_bytes), frames_out, bytes(sums.out_bytes), drops]
}

/// Rates of a flow in the last second.
fn flow_rates(flow: &FlowView) -> [String; 5] {
    let FlowView { in_rate, in_bit_rate, out_rate, out_bit_rate, drop_rate, .. } = flow;
    [in_rate, in_bit_rate, out_rate, out_bit_rate, drop_rate].map(|rate| rate.map_or_else(String::new, units))
}

/// A rate of frames for people.
pub fn per_second(rate: Option<u64>) -> String {
    rate.map_or_else(|| "not yet measured".to_owned(), |rate| format!("{} frames/s", units(rate)))
}

/// How long ago something was.
pub fn ago(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{}.{} s ago", ms / 1_000, ms % 1_000 / 100),
        _ => format!("{} s ago", ms / 1_000),
    }
}

fn switches_table(answer: &Switches) -> String {
    let mut table = Table::new(&["switch", ">ageing", ">table size", ">addresses", "ports"]);
    for switch in &answer.switches {
        let [ageing, size] = [switch.ageing, switch.table_size]
            .map(|number| number.map_or_else(String::new, |number| number.to_string()));
        let ageing = if ageing.is_empty() { ageing } else { format!("{ageing} s") };
        let addresses = switch.addresses.to_string();
        let row = [switch.name.clone(), ageing, size, addresses];
        table.row(row.into_iter().chain([switch.ports.join(" ")]));
    }
    table.text()
}

fn tenants_table(answer: &TenantList) -> String {
    let heads = ["tenant", ">core time", ">of late", "class", ">weight", ">granted", ">throttled", "rate"];
    let mut table = Table::new(&[&heads[..], &[">waits (p99)", "cores", "ports"]].concat());
    for tenant in &answer.tenants {
        let mut row = vec![tenant.name.clone()];
        row.extend(had(&tenant.service));
        row.extend(granted(&tenant.service));
        let cores: Vec<String> = tenant.cores.iter().map(usize::to_string).collect();
        row.push(format!("{} us", tenant.wait_p99_ns / 1_000));
        row.extend([cores.join(" "), tenant.ports.join(" ")]);
        table.row(row);
    }
    table.text()
}

fn acl_table(answer: &AclList) -> String {
    let mut table = Table::new(&["list", "ports", ">frames", "rule", "note"]);
    for list in &answer.acls {
        for (n, rule) in list.rules.iter().enumerate() {
            let first = |text: &str| if n == 0 { text.to_owned() } else { String::new() };
            let note = rule.hidden_by.as_ref().map_or_else(String::new, |by| format!("never decides: {by}"));
            let ports = if list.ports.is_empty() { "-".to_owned() } else { list.ports.join(", ") };
            table.row([first(&list.name), first(&ports), rule.frames.to_string(), rule.rule.clone(), note]);
        }
    }
    table.text()
}

fn drops_table(answer: &Drops) -> String {
    let mut table = Table::new(&[">frames", "port", "reason", "meaning"]);
    for drop in &answer.drops {
        table.row([drop.frames.to_string(), drop.port.clone(), drop.reason.clone(), drop.meaning.clone()]);
    }
    table.text()
}

fn mac_table(answer: &Addresses) -> String {
    let mut table = Table::new(&["switch", ">vlan", "address", "port", ">seen", "state"]);
    for address in &answer.addresses {
        let seen = format!("{} s ago", address.age_s);
        let state = match (&address.claimed_by, &address.held_against) {
            (Some(port), _) => format!("{}, {port} has it, too", address.state),
            (None, Some(port)) => format!("{}, not heeded from {port}", address.state),
            (None, None) => address.state.clone(),
        };
        let vlan = address.vlan.map_or_else(|| "-".to_owned(), |vlan| vlan.to_string());
        table.row([address.switch.clone(), vlan, address.mac.clone(), address.port.clone(), seen, state]);
    }
    table.text()
}

/// Columns of I/O cores. The first [`BRIEF`] are about the last second.
const CORES: [ColumnOf<CoreView>; 17] = [
    ("core", |core| core.time.number.to_string()),
    (">cpu", |core| {
        let shared = if core.time.shared { " shared" } else { "" };
        core.time.cpu.map_or(String::new(), |cpu| format!("{cpu}{shared}"))
    }),
    ("state", |core| if core.time.active { "active" } else { "resting" }.to_owned()),
    (">queues", |core| core.time.queues.to_string()),
    (">busy 1 s", |core| of_last(core, |last| ppm(last.busy_ppm))),
    (">idle 1 s", |core| of_last(core, |last| ppm(last.idle_ppm))),
    (">asleep 1 s", |core| of_last(core, |last| ppm(last.sleep_ppm))),
    (">frames/s", |core| of_last(core, |last| units(last.frame_rate))),
    (">busy", |core| percent(core.time.busy_ns, whole(core))),
    (">idle", |core| percent(core.time.idle_ns, whole(core))),
    (">asleep", |core| percent(core.time.sleep_ns, whole(core))),
    (">frames", |core| core.time.frames.to_string()),
    (">per round", |core| ratio(core.time.frames, core.time.busy_rounds)),
    (">ns per frame", |core| ratio(core.time.busy_ns, core.time.frames)),
    (">sleeps", |core| core.time.sleeps.to_string()),
    (">interrupts", |core| core.interrupts.to_string()),
    (">saved", |core| core.saved_interrupts.to_string()),
];
const BRIEF: usize = 8;

fn of_last(core: &CoreView, cell: fn(&LastSecond) -> String) -> String {
    core.last.as_ref().map_or_else(String::new, cell)
}

fn whole(core: &CoreView) -> u64 {
    core.time.busy_ns + core.time.idle_ns + core.time.sleep_ns
}

fn ratio(a: u64, b: u64) -> String {
    a.checked_div(b).map_or(String::new(), |n| n.to_string())
}

/// I/O cores; with the columns of the last second only if `brief`.
fn cores_table(cores: &[CoreView], brief: bool) -> String {
    Table::of(&CORES[..if brief { BRIEF } else { CORES.len() }], cores).text()
}

/// What people ask of a daemon: which one it is, and what its sandbox holds back.
fn daemon_table(about: &About) -> String {
    let mut table = Table::new(&["daemon", "is"]);
    let mut row = |what: &str, is: String| table.row([what.to_owned(), is]);
    row("program", about.program.clone());
    row("process", about.pid.to_string());
    row("log", about.log.clone());
    row("configuration", about.config.as_ref().map_or_else(String::new, |path| path.display().to_string()));
    row("counters", about.counters.display().to_string());
    let sandbox = &about.sandbox;
    row("sandbox", sandbox.mode.clone());
    row("user", sandbox.user.clone());
    let capabilities = &sandbox.capabilities;
    row("capabilities", if capabilities.is_empty() { "none".to_owned() } else { capabilities.join(" ") });
    let word = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
    row("no new privileges", word(sandbox.no_new_privs));
    row("core dumps", word(sandbox.core_dumps));
    let landlock = sandbox.landlock;
    row("landlock", if landlock == 0 { "none".to_owned() } else { format!("version {landlock}") });
    row("io_uring", sandbox.io_uring.clone());
    if sandbox.seccomp.is_empty() {
        row("system calls", "all".to_owned());
    }
    for filter in &sandbox.seccomp {
        row(&format!("calls of {}", filter.threads), filter.calls.to_string());
    }
    let clients = &about.clients;
    for (name, socket) in [("control", &clients.control), ("netmap", &clients.netmap)] {
        let refused = socket.refused.iter().map(|(reason, count)| format!("{reason} {count}"));
        let refused = refused.collect::<Vec<_>>().join(", ");
        let refused = if refused.is_empty() { refused } else { format!("; refused: {refused}") };
        row(&format!("{name} clients"), format!("{}{refused}", socket.open));
    }
    if clients.turned_away > 0 {
        row("no descriptor for", format!("{} clients", clients.turned_away));
    }
    for refused in &sandbox.refused {
        row("refused", format!("{} to {}, {} times", refused.call, refused.threads, refused.count));
    }
    for what in &sandbox.missing {
        row("missing", what.clone());
    }
    let broker = &about.broker;
    let is = match broker.pid {
        Some(pid) => format!("process {pid}"),
        None if sandbox.mode == "on" => {
            "gone: ports go on, but none can be added, and no MTU or configuration changed, until the daemon is restarted".to_owned()
        }
        None => "gone: another one is started when it is needed".to_owned(),
    };
    row("broker", format!("{is}; {} requests, {} refused", broker.requests, broker.refused));
    if !broker.missed_by.is_empty() {
        row(
            "broker missed by",
            format!("{}: their next VMMs may not be served", broker.missed_by.join(", ")),
        );
    }
    let door = &about.door;
    row("messages with descriptors", format!("{}, {} refused", door.looks, door.refused));
    row("ended with unread messages", format!("{} connections", door.kept));
    row("doors started", door.started.to_string());
    table.text()
}

const DISKS: [ColumnOf<DiskView>; 21] = [
    ("port", |disk| disk.port.clone()),
    ("file", |disk| disk.file.clone()),
    ("medium", |disk| match &disk.access {
        Some(access) => format!("{}, {access}", disk.medium),
        None => disk.medium.clone(),
    }),
    ("peer", |disk| disk.peer.clone()),
    (">bytes", |disk| bytes(disk.capacity)),
    (">block", |disk| disk.block_size.to_string()),
    ("cache", |disk| if disk.readonly { "read-only" } else { &disk.cache }.to_owned()),
    (">queues", |disk| disk.queues.to_string()),
    (">in flight", |disk| disk.counters.in_flight.to_string()),
    (">reads", |disk| disk.counters.reads.to_string()),
    (">read", |disk| bytes(disk.counters.read_bytes)),
    (">writes", |disk| disk.counters.writes.to_string()),
    (">written", |disk| bytes(disk.counters.written_bytes)),
    (">flushes", |disk| disk.counters.flushes.to_string()),
    (">others", |DiskView { counters: it, .. }| (it.discards + it.write_zeroes + it.ids).to_string()),
    (">errors", |disk| disk.counters.errors.values().sum::<u64>().to_string()),
    (">read p50", |disk| known_us(disk.counters.read_latency.p50_ns)),
    (">p99", |disk| known_us(disk.counters.read_latency.p99_ns)),
    (">write p50", |disk| known_us(disk.counters.write_latency.p50_ns)),
    (">p99", |disk| known_us(disk.counters.write_latency.p99_ns)),
    (">flush p99", |disk| known_us(disk.counters.flush_latency.p99_ns)),
];

/// A time that was measured.
fn known_us(ns: u64) -> String {
    if ns == 0 {
        String::new()
    } else {
        queues::us(ns)
    }
}

fn disks_table(answer: &Disks) -> String {
    let failed = |disk: &DiskView| {
        let note = |(why, n): (&String, &u64)| format!("{}: {n} requests failed: {why}\n", disk.port);
        disk.counters.errors.iter().map(note).collect::<String>()
    };
    Table::of(&DISKS, &answer.disks).text() + &answer.disks.iter().map(failed).collect::<String>()
}
