//! `show holders`: the processes that keep VMMs' connections, and whether a daemon is there. They are asked
//! nothing: what there is to say stands in their command lines and names, so no daemon is needed.

use std::collections::HashSet;
use std::path::Path;
use std::{fs, io};

use serde::Serialize;
use sidecore_engine::sandbox::holder::{ALONE, ATTENDED};
use sidecore_engine::state::kinds::{HeldPort, MEMORY_SOCKET};
use sidecore_engine::state::status::VERSION;
use sidecore_engine::state::{PortSpec, Spec};
use sidecore_engine::util::fault::shown;

use super::answer;
use crate::cli::ShowArgs;
use crate::table::Table;

/// Most characters of a name or path that are shown.
const LONGEST: usize = 120;

/// Answer to `show holders`.
#[derive(Serialize)]
struct Holders {
    version: u32,
    holders: Vec<HolderView>,
}

/// One of them.
#[derive(Serialize)]
struct HolderView {
    port: String,
    kind: String,
    socket: String,
    process: u32,
    /// A daemon serves the port; else the holder answers the VMM.
    daemon: bool,
}

pub fn show(args: &ShowArgs) -> Result<String, String> {
    let holders = all().map_err(|e| format!("/proc: {e}"))?;
    answer(args.json, &Holders { version: VERSION, holders }, |all| match all.holders.is_empty() {
        true => "no VMM's connection is kept\n".to_owned(),
        false => table(&all.holders),
    })
}

/// All that there are, by their sockets.
fn all() -> io::Result<Vec<HolderView>> {
    let pids = fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut holders: Vec<HolderView> = pids.filter_map(holder).collect();
    holders.sort_by(|a, b| (&a.socket, a.process).cmp(&(&b.socket, b.process)));
    Ok(holders)
}

/// A text for the log about each holder that no daemon serves and no port of `spec` will find. Only holders
/// in folders where `spec` has sockets are looked at.
pub fn forsaken(spec: &Spec) -> Vec<String> {
    let is_ours = |it: &HolderView| {
        let rest = |port: &PortSpec| it.socket.strip_prefix(&port.location).map(str::to_owned);
        spec.ports.iter().filter_map(rest).any(|rest| ["", MEMORY_SOCKET].contains(&&*rest))
    };
    // A holder in another folder belongs to another daemon.
    let sockets =
        spec.ports.iter().map(|port| Path::new(&port.location)).chain(spec.daemon.socket.as_deref());
    let folders: HashSet<&Path> = sockets.filter_map(Path::parent).collect();
    let is_near = |it: &HolderView| Path::new(&it.socket).parent().is_some_and(|at| folders.contains(at));
    // Where /proc cannot be read, no holder is named.
    let alone = all().unwrap_or_default().into_iter().filter(|it| !it.daemon && is_near(it) && !is_ours(it));
    alone
        .map(|HolderView { port, kind, socket, process, .. }| {
            format!(
                "the VMM of port {port} ({kind}) at {socket} is answered by its holder, process {process}, for a daemon that is not there: no \
                 port of this configuration has that socket; add it, or `kill {process}`"
            )
        })
        .collect()
}

/// The process `pid`, if it is one.
fn holder(pid: u32) -> Option<HolderView> {
    let proc = Path::new("/proc").join(pid.to_string());
    let name = fs::read_to_string(proc.join("comm")).ok()?;
    let daemon = name.trim_end().as_bytes() == ATTENDED.to_bytes();
    if !daemon && name.trim_end().as_bytes() != ALONE.to_bytes() {
        return None;
    }
    let line = fs::read(proc.join("cmdline")).ok()?;
    let of = line.split(|byte| *byte == 0).nth(3)?;
    let HeldPort { port, .. } = serde_json::from_slice(of).ok()?;
    // Any user may start a process with such words.
    let [port, kind, socket] = [port.name, port.kind, port.location].map(|text| shown(&text, LONGEST));
    Some(HolderView { port, kind, socket, process: pid, daemon })
}

fn table(holders: &[HolderView]) -> String {
    let mut table = Table::new(&["port", "kind", ">process", "daemon", "socket"]);
    for it in holders {
        let daemon = if it.daemon { "there" } else { "away" };
        let process = it.process.to_string();
        table.row([it.port.clone(), it.kind.clone(), process, daemon.to_owned(), it.socket.clone()]);
    }
    table.text()
}
