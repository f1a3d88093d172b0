//! `show` without a topic: what there is, and how it is doing. Answers of other topics, of which the text has
//! the columns that fit on a screen.

use std::path::Path;

use serde::Serialize;
use sidecore_engine::state::status::{CoreView, Cores, Ports, SwitchView, Switches};
use sidecore_routing::{RouterView, Routers};

use super::{cores_table, flow_rates, had, joined, notes, ports, ports_table, troubles};
use crate::cli::ShowArgs;
use crate::client::Client;
use crate::table::Table;

#[derive(Debug, Serialize)]
struct Overview {
    #[serde(flatten)]
    ports: Ports,
    switches: Vec<SwitchView>,
    routers: Vec<RouterView>,
    cores: Vec<CoreView>,
}

/// Without a daemon it is the last counters of its ports.
pub(super) fn show(args: &ShowArgs, client: &Client, socket: &Path) -> Result<String, String> {
    let ports = ports(client, args, socket)?;
    if !ports.running {
        return super::show(args, &ports, |all| ports_table(all, false));
    }
    let Switches { switches, .. } = client.get("/v1/switches")?;
    let Routers { routers, .. } = client.get("/v1/routers")?;
    let Cores { cores, .. } = client.get("/v1/cores")?;
    super::show(args, &Overview { ports, switches, routers, cores }, text)
}

fn text(all: &Overview) -> String {
    let heads = ["joined", "port", "kind", "link", "peer", ">in/s", ">in bit/s", ">out/s", ">out bit/s"];
    let mut table = Table::new(&[&heads[..], &[">drops/s", ">core", "trouble"]].concat());
    let mut rows: Vec<Vec<String>> = Vec::new();
    for port in &all.ports.ports {
        let Some(state) = &port.state else { continue };
        let mut row = vec![joined(state), port.name.clone()];
        row.extend([&state.kind, &state.link, &state.peer].map(String::clone));
        row.extend(flow_rates(&state.flow));
        let [_, of_late] = had(&state.service);
        row.extend([of_late, troubles(state)]);
        rows.push(row);
    }
    // What has no ports is there all the same.
    let switches = all.switches.iter().filter(|it| it.ports.is_empty()).map(|it| ("switch", &it.name));
    let routers = all.routers.iter().filter(|it| it.interfaces.is_empty()).map(|it| ("router", &it.name));
    rows.extend(switches.chain(routers).map(|(kind, name)| vec![format!("{kind} {name}")]));
    // Disks are joined to nothing, and come last.
    rows.sort_by_key(|row| (row[0].is_empty(), row.clone()));
    rows.into_iter().for_each(|row| table.row(row));
    format!("{}\n{}{}", table.text(), cores_table(&all.cores, true), notes(&all.ports))
}
