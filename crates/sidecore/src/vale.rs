//! `vale-ctl`: VALE's verbs, asked at the socket at which netmap programs ask.

use std::path::Path;

use serde::Serialize;
use sidecore_abi::vale::{Ask, Verb, SOCKET};
use sidecore_engine::state::status::VERSION;
use sidecore_port::vale::{Done, Vale, ValeError};

use crate::cli::{ValeCtlArgs, ValeVerb};
use crate::show::answer;
use crate::table::Table;
use crate::{print, Outcome};

/// What `vale-ctl --json` prints.
#[derive(Serialize)]
struct AttachedPorts {
    version: u32,
    ports: Vec<AttachedPort>,
}

/// A port on a switch.
#[derive(Serialize)]
struct AttachedPort {
    name: String,
    switch: u32,
    port: u32,
}

/// No more ports to list.
const ENOENT: u32 = 2;
/// Netmap's `nr_mode` for a whole port, and for a port with the host's stack.
const MODES: [u32; 2] = [1, 3];

/// `vale-ctl`.
pub fn run(args: &ValeCtlArgs) -> Outcome {
    let control = args.control.path();
    let socket = control.parent().unwrap_or(Path::new(".")).join("ring").join(SOCKET);
    let mut vale = Vale::connect(&socket).map_err(|e| e.to_string())?;
    let ports = match request(&args.verb, &args.config)? {
        Some(ask) => vec![vale.ask(&ask).map_err(|e| e.to_string())?],
        None => list(&mut vale)?,
    };
    let shows = args.verb.attach.is_some() || args.verb.get.is_some() || listing(&args.verb);
    if !args.json && !shows {
        return Ok(());
    }
    let port = |Done { name, switch, port }| AttachedPort { name, switch, port };
    let ports = AttachedPorts { version: VERSION, ports: ports.into_iter().map(port).collect() };
    print(&answer(args.json, &ports, table)?)
}

fn table(all: &AttachedPorts) -> String {
    let mut table = Table::new(&["port", ">switch number", ">port number"]);
    for AttachedPort { name, switch, port } in &all.ports {
        table.row([name.clone(), switch.to_string(), port.to_string()]);
    }
    table.text()
}

fn listing(verb: &ValeVerb) -> bool {
    request(verb, &[]).is_ok_and(|ask| ask.is_none())
}

/// The one request that is asked for; `None`: to list.
fn request(verb: &ValeVerb, config: &[u32]) -> Result<Option<Ask>, String> {
    let ValeVerb { newif, delif, attach, attach_host, detach, list: _, get, poll, poll_off } = verb;
    let number = |i: usize| config.get(i).copied().unwrap_or(0);
    let most = match (newif, poll) {
        (Some(_), _) => 4,
        (_, Some(_)) => 3,
        _ => 0,
    };
    if config.len() > most {
        return Err(match most {
            0 => "-C applies to -n and -p".to_owned(),
            most => format!("-C: {} numbers; allowed: at most {most}", config.len()),
        });
    }
    let ask = |name: &str, verb| Some(Ask::new(verb, name));
    Ok(if let Some(name) = newif {
        Some(Ask {
            tx_slots: number(0),
            rx_slots: number(1),
            tx_rings: number(2),
            rx_rings: number(3),
            ..Ask::new(Verb::NewIf, name)
        })
    } else if let Some(name) = poll {
        let (mode, cpus) = (config.first().copied().unwrap_or(1), config.get(2).copied().unwrap_or(1));
        Some(Ask { mode, first: number(1), second: cpus, ..Ask::new(Verb::PollingOn, name) })
    } else if let Some(name) = attach {
        Some(Ask { mode: MODES[0], ..Ask::new(Verb::Attach, name) })
    } else if let Some(name) = attach_host {
        Some(Ask { mode: MODES[1], ..Ask::new(Verb::Attach, name) })
    } else if let Some(name) = delif {
        ask(name, Verb::DelIf)
    } else if let Some(name) = detach {
        ask(name, Verb::Detach)
    } else if let Some(name) = poll_off {
        ask(name, Verb::PollingOff)
    } else if let Some(name) = get {
        ask(name, Verb::List)
    } else {
        None
    })
}

/// All ports on switches.
fn list(vale: &mut Vale) -> Result<Vec<Done>, String> {
    let mut ports = Vec::new();
    let (mut first, mut second) = (0, 0);
    loop {
        match vale.ask(&Ask { first, second, ..Ask::new(Verb::List, "") }) {
            Ok(done) => {
                (first, second) = (done.switch, done.port + 1);
                ports.push(done);
            }
            Err(ValeError::Refused { errno: ENOENT, .. }) => return Ok(ports),
            Err(e) => return Err(e.to_string()),
        }
    }
}
