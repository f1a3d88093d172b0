//! `show port NAME`: all there is to know of one port.

use serde::Serialize;
use sidecore_engine::state::disks::{DiskView, Disks};
use sidecore_engine::state::status::{Addresses, DropView, PortState, PortView, Ports, QueueView, Queues};

use super::{
    ago, counters, disks_table, drops_table, granted, had, joined, mac_table, no_port, per_second, queues,
    remarks,
};
use crate::client::Client;
use crate::table::Table;

/// Answers of several topics, as far as they are about one port.
#[derive(Debug, Serialize)]
pub(super) struct All {
    version: u32,
    port: PortView,
    queues: Vec<QueueView>,
    #[serde(serialize_with = "list", skip_serializing_if = "none_known")]
    addresses: Addresses,
    #[serde(skip_serializing_if = "Option::is_none")]
    disk: Option<DiskView>,
    #[serde(skip)]
    drops: Vec<DropView>,
}

fn list<S: serde::Serializer>(addresses: &Addresses, serializer: S) -> Result<S::Ok, S::Error> {
    addresses.addresses.serialize(serializer)
}

fn none_known(addresses: &Addresses) -> bool {
    addresses.addresses.is_empty()
}

/// All of the port `name`.
pub(super) fn of(client: &Client, name: &str) -> Result<All, String> {
    let ports: Ports = client.get("/v1/ports")?;
    let drops = ports.drops().drops.into_iter().filter(|drop| drop.port == name).collect();
    let port = ports.ports.iter().find(|port| port.name == name).cloned();
    let port = port.ok_or_else(|| no_port(&ports, name))?;
    let queues: Queues = client.get("/v1/queues")?;
    let mut addresses: Addresses = client.get("/v1/mac")?;
    addresses.addresses.retain(|address| address.port == name);
    let disks: Disks = client.get("/v1/disks")?;
    Ok(All {
        version: ports.version,
        port,
        queues: queues.queues.into_iter().filter(|queue| queue.port == name).collect(),
        addresses,
        disk: disks.disks.into_iter().find(|disk| disk.port == name),
        drops,
    })
}

pub(super) fn text(all: &All) -> String {
    let mut table = Table::new(&["port", &all.port.name]);
    let mut row = |what: &str, is: String| {
        if !is.is_empty() {
            table.row([what.to_owned(), is]);
        }
    };
    row("number", all.port.number.to_string());
    if let Some(state) = &all.port.state {
        describe(state, &mut row);
    }
    let [frames_in, bytes_in, frames_out, bytes_out, drops] = counters(&all.port.counters);
    row("in", format!("{frames_in} frames, {bytes_in}"));
    row("out", format!("{frames_out} frames, {bytes_out}"));
    if let Some(flow) = all.port.state.as_ref().map(|state| &state.flow) {
        let way = |last: Option<u64>, rate| {
            last.map_or_else(String::new, |ms| format!("{}, {}", ago(ms), per_second(rate)))
        };
        row("last in", way(flow.last_in_ms, flow.in_rate));
        row("last out", way(flow.last_out_ms, flow.out_rate));
    }
    row("made", all.port.counters.made.to_string());
    row("drops", drops);
    row("kicks", all.port.counters.kicks.to_string());
    row("interrupts", all.port.counters.interrupts.to_string());
    let mut text = table.text();
    let mut part = |part: String| text.push_str(&format!("\n{part}"));
    if !all.queues.is_empty() {
        part(queues::text(&all.queues, false));
    }
    if let Some(disk) = &all.disk {
        part(disks_table(&Disks { version: all.version, disks: vec![disk.clone()] }));
    }
    if !none_known(&all.addresses) {
        part(mac_table(&all.addresses));
    }
    if !all.drops.is_empty() {
        part(drops_table(&super::Drops { version: all.version, running: true, drops: all.drops.clone() }));
    }
    for remark in all.port.state.iter().flat_map(remarks) {
        text.push_str(&format!("{remark}\n"));
    }
    text
}

/// What a port is, and how it is doing.
fn describe(state: &PortState, row: &mut impl FnMut(&str, String)) {
    row("kind", state.kind.clone());
    row("where", state.location.clone());
    row("joined", joined(state));
    let options: Vec<String> = state.options.iter().map(|(key, value)| format!("{key}={value}")).collect();
    row("options", options.join(" "));
    row("link", state.link.clone());
    let pid = state.pid.map_or_else(String::new, |pid| format!(", process {pid}"));
    row("peer", format!("{}{pid}", state.peer));
    row("detail", state.detail.clone());
    row("features", state.features.join(" "));
    row("mtu", state.mtu.to_string());
    let wanted = state.queues_wanted.map_or_else(String::new, |wanted| format!(" of {wanted}"));
    row("queues", format!("{}{wanted}", state.queues));
    row(
        "addresses",
        match state.mac_limit {
            Some(limit) => format!("{} of {limit}", state.macs),
            None => state.macs.to_string(),
        },
    );
    row("mac-guard", state.mac_guard.clone().unwrap_or_default());
    let [time, late] = had(&state.service);
    row("core time", time);
    row("of late", late);
    for (what, is) in ["class", "weight", "granted", "throttled", "rate"].iter().zip(granted(&state.service))
    {
        row(what, is);
    }
}
