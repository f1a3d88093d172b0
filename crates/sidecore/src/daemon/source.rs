//! Where a daemon's configuration comes from: its file, and what the command line adds to it.

use std::path::{Path, PathBuf};

use sidecore_engine::state::kinds::KINDS;
use sidecore_engine::state::values::{Mode, Sandbox};
use sidecore_engine::state::{check, BadSpec, Cpus, DaemonSpec, Spec};

use crate::change::{all, named, port, read_file};
use crate::cli::RunArgs;
use crate::offline;

/// Microseconds for which a core polls before it sleeps, unless the operator says otherwise.
const SPIN: &str = "50";
/// Ports that programs may have made on demand, unless the operator says otherwise.
const VALE_PORTS: &str = "64";

/// What `run` was given.
pub struct Source {
    file: Option<PathBuf>,
    /// What the command line says.
    given: Spec,
    socket: PathBuf,
}

impl Source {
    /// Reads the command line's part.
    pub fn new(args: RunArgs) -> Result<Source, String> {
        let absolute = |path: PathBuf| {
            std::path::absolute(&path).map_err(|e| format!("cannot find {}: {e}", path.display()))
        };
        let socket = args.control.path();
        let given = Spec {
            daemon: DaemonSpec { socket: args.control.socket, ..args.daemon.0 },
            switches: all(&args.switches, named)?,
            routers: all(&args.routers, named)?,
            tenants: all(&args.tenants, named)?,
            groups: all(&args.groups, named)?,
            ports: all(&args.ports, port)?,
            ..Spec::default()
        };
        Ok(Source { file: args.config.map(absolute).transpose()?, given, socket })
    }

    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// File and command line together, as they are now. The command line wins.
    pub fn read(&self) -> Result<Spec, String> {
        let mut spec = match &self.file {
            Some(file) => read_file(file)?,
            None => Spec::default(),
        };
        let Spec { daemon, switches, routers, tenants, groups, ports, .. } = self.given.clone();
        spec.daemon = daemon.or(spec.daemon);
        spec.switches.extend(switches);
        spec.routers.extend(routers);
        spec.tenants.extend(tenants);
        spec.groups.extend(groups);
        spec.ports.extend(ports);
        let findings = check(&spec, KINDS);
        match findings.is_empty() {
            true => Ok(spec),
            false => Err(BadSpec::new(&findings, |_| String::new()).to_string()),
        }
    }

    /// `daemon` with everything that was left open decided.
    pub fn complete(&self, daemon: DaemonSpec) -> Result<DaemonSpec, String> {
        let socket = daemon.socket.unwrap_or_else(|| self.socket.clone());
        let sandbox = daemon.sandbox.unwrap_or(Sandbox::On);
        if let (Some(user), true) = (&daemon.user, sandbox != Sandbox::On) {
            return Err(format!(
                "user {user}: with `sandbox = {sandbox}` the daemon keeps the user that started it; leave `user` out"
            ));
        }
        Ok(DaemonSpec {
            cores: Some(daemon.cores.map_or_else(|| last_cpu().map(|cpu| Cpus(vec![cpu])), Ok)?),
            spin: Some(daemon.spin.map_or_else(|| SPIN.parse(), Ok)?),
            counters: Some(daemon.counters.unwrap_or_else(|| offline::beside(&socket))),
            socket: Some(socket),
            socket_mode: Some(daemon.socket_mode.unwrap_or(Mode(0o660))),
            read_socket_mode: Some(daemon.read_socket_mode.unwrap_or(Mode(0o660))),
            vale_ports: Some(daemon.vale_ports.map_or_else(|| VALE_PORTS.parse(), Ok)?),
            vale_mode: Some(daemon.vale_mode.unwrap_or(Mode(0o600))),
            sandbox: Some(sandbox),
            ..daemon
        })
    }
}

/// The last processor that this process may use: the first ones get most of the host's interrupts.
fn last_cpu() -> Result<usize, String> {
    let allowed =
        rustix::thread::sched_getaffinity(None).map_err(|e| format!("cannot read the CPU affinity: {e}"))?;
    let last = (0..rustix::thread::CpuSet::MAX_CPU).rev().find(|&cpu| allowed.is_set(cpu));
    last.ok_or_else(|| "this process may use no processor; name some with --cores".to_owned())
}
