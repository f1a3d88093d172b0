//! DPDK's `l3fwd`, its example of a router, over vhost.
//!
//! Debian has it as source (package dpdk-doc). It is built once, from a copy in the user's cache, by its own
//! makefile, with one change: ports are not asked for receive checksum offload, which `net_vhost` does not
//! have and without which `l3fwd` does not start. It uses its longest-prefix table, which as shipped has room
//! for 1,024 routes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sidecore_engine::router::Static;

use super::super::lane::SIZE;
use super::super::peers::{self, Process};
use super::ends::{is_far, Ends, Kind};
use crate::prelude::*;

/// Where the package has its examples.
const EXAMPLES: &str = "/usr/share/dpdk/examples";
/// Routes that the table has room for, fewer than which it gets: some of its own may be there.
const ROUTES: usize = 1000;
/// What is not asked for.
const OFFLOAD: &str = "RTE_ETH_RX_OFFLOAD_CHECKSUM";
/// Longest wait for a start: it waits for links for nine seconds.
const START: Duration = Duration::from_secs(30);

/// A running `l3fwd` between two vhost ports.
pub struct L3fwd {
    _process: Process,
    core: usize,
    paths: [PathBuf; 2],
    _scratch: Scratch,
}

/// The first routes that fit: IPv4, and no longer than 24 bits, as the rest of its table has room for few of
/// others.
pub fn fitting(routes: &[Static]) -> Vec<Static> {
    let fits =
        |it: &&Static| it.prefix.address.is_ipv4() && it.prefix.len <= 24 && is_far(&it.prefix.address);
    routes.iter().filter(fits).take(ROUTES).cloned().collect()
}

impl L3fwd {
    /// Starts it on processor `core`, with these routes, all through its second port.
    pub fn start(core: usize, routes: &[Static]) -> Result<L3fwd> {
        let program = program()?;
        let scratch = Scratch::new("sc-l3fwd")?;
        let paths = [scratch.file("a"), scratch.file("b")];
        let rules = |name: &str, lines: String| -> Result<String> {
            let path = scratch.file(name);
            fs::write(&path, lines).map_err(|e| format!("{}: {e}", path.display()))?;
            Ok(path.to_string_lossy().into_owned())
        };
        let all = routes.iter().map(|it| format!("R{}/{} 1\n", it.prefix.address, it.prefix.len)).collect();
        // It wants rules of both families.
        let (v4, v6) = (rules("v4", all)?, rules("v6", "R2001:db8::/32 1\n".to_owned())?);
        let log = scratch.file("log");
        let mut process = Process::start(&program.to_string_lossy(), "dpdk-doc", log.clone(), |command| {
            command.args(["--lcores", &format!("1@{core}"), "--no-pci", "--no-telemetry"]);
            command.args(["--file-prefix", &scratch.name()]).args(peers::dpdk_memory("1024"));
            for (number, path) in paths.iter().enumerate() {
                command.args(["--vdev", &format!("net_vhost{number},iface={},queues=1", path.display())]);
            }
            command.args(["--", "-p", "0x3", "-P", "--config", "(0,0,1),(1,0,1)", "--lookup=lpm"]);
            command.args(["--parse-ptype", &format!("--rule_ipv4={v4}"), &format!("--rule_ipv6={v6}")]);
        })
        .map_err(text)?;
        let log = || fs::read_to_string(&log).unwrap_or_default();
        let forwards = || log().contains("entering main loop") && paths.iter().all(|path| path.exists());
        process.wait_until("it forwards", START, forwards)?;
        Ok(L3fwd { _process: process, core, paths, _scratch: scratch })
    }

    /// Has one thread on processor `core` do `what` with both ends, when `first` has come through.
    pub fn play<R: Send>(
        &self,
        core: usize,
        first: &[u8; SIZE],
        what: impl FnOnce(Ends<'_>) -> Result<R> + Send,
    ) -> Result<R> {
        on(core, || {
            let (from, to) = (Kind::Virtio.connect(&self.paths[0])?, Kind::Virtio.connect(&self.paths[1])?);
            let mut ends = Ends { cpus: [core, self.core], graph: None, from, to };
            ends.settle(first)?;
            what(ends)
        })
    }
}

/// The program, built if it has to be.
fn program() -> Result<PathBuf> {
    let examples = Path::new(EXAMPLES);
    if !examples.join("l3fwd/main.c").exists() {
        return Err(format!(
            "its source is not in {EXAMPLES}: apt-get install dpdk-doc libdpdk-dev make gcc"
        ));
    }
    let version = run(Command::new("pkg-config").args(["--modversion", "libdpdk"]), "libdpdk-dev")?;
    let cache = match (std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME")) {
        (Some(path), _) if !path.is_empty() => PathBuf::from(path),
        (_, Some(home)) => Path::new(&home).join(".cache"),
        _ => return Err("neither XDG_CACHE_HOME nor HOME says where it could be built".to_owned()),
    };
    let folder = cache.join(format!("sidecore/l3fwd-{}", version.trim()));
    let built = folder.join("l3fwd/build/l3fwd");
    if built.exists() {
        return Ok(built);
    }
    eprintln!("builds DPDK's l3fwd in {}", folder.display());
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let both = ["l3fwd", "common"].map(|name| examples.join(name));
    run(Command::new("cp").arg("-r").args(both).arg(&folder), "coreutils")?;
    let main = folder.join("l3fwd/main.c");
    let source = fs::read_to_string(&main).map_err(|e| format!("{}: {e}", main.display()))?;
    fs::write(&main, source.replace(OFFLOAD, "0")).map_err(|e| format!("{}: {e}", main.display()))?;
    run(Command::new("make").arg("-C").arg(folder.join("l3fwd")).arg("shared"), "make gcc libdpdk-dev")?;
    Ok(built)
}

/// Runs a command to its end; what it prints.
fn run(command: &mut Command, packages: &str) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| format!("{name}: {e}: apt-get install {packages}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let last: Vec<&str> = errors.lines().rev().take(3).collect();
        return Err(format!("{name}: {}: apt-get install {packages}", last.join("; ")));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
