//! FRR as Debian packages it: zebra and bgpd in a network namespace.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::net::missing;
use super::peers::Process;
use crate::prelude::*;

/// Where its programs are.
const FRR: &str = "/usr/lib/frr";

/// zebra and bgpd, which become a user of their own.
pub struct Frr {
    _daemons: [Process; 2],
    /// Where they talk to each other and to us.
    dir: PathBuf,
}

impl Frr {
    /// Fails if it is not installed.
    pub fn is_there() -> Result<()> {
        match Path::new(FRR).join("zebra").exists() {
            true => Ok(()),
            false => Err(format!("{FRR}/zebra is not installed: apt-get install frr")),
        }
    }

    /// Starts both in `net` with their configurations. zebra sends its routes to a forwarding plane if it has
    /// an `fpm`.
    ///
    /// # Errors
    /// One of them does not start.
    pub fn start(scratch: &Scratch, name: &str, net: &Net, zebra: &str, bgp: &str) -> Result<Frr> {
        let dir = scratch.file(name);
        fs::create_dir(&dir).map_err(text)?;
        let open =
            |path: &Path, mode| fs::set_permissions(path, PermissionsExt::from_mode(mode)).map_err(text);
        open(&scratch.file(""), 0o755)?;
        open(&dir, 0o777)?;
        let at = |name: &str| dir.join(name).to_string_lossy().into_owned();
        let start = |name: &str, config: &str| {
            fs::write(at(&format!("{name}.conf")), config).map_err(text)?;
            let mut words = Vec::new();
            for (key, value) in [
                ("-f", at(&format!("{name}.conf"))),
                ("-i", at(&format!("{name}.pid"))),
                ("-z", at("zserv.api")),
                ("--vty_socket", at("")),
                ("-P", "0".to_owned()),
            ] {
                words.extend([key.to_owned(), value]);
            }
            if config.contains("fpm") {
                words.extend(["-M", "dplane_fpm_nl"].map(str::to_owned));
            }
            inside(net, dir.join(format!("{name}.log")), &format!("{FRR}/{name}"), &words)
        };
        let mut zebra = start("zebra", zebra)?;
        let listens = || dir.join("zserv.api").exists();
        zebra.wait_until("it listens", START, listens)?;
        let bgpd = start("bgpd", bgp)?;
        Ok(Frr { _daemons: [zebra, bgpd], dir })
    }

    /// What `command` says in JSON, asked of the daemon `name`.
    ///
    /// # Errors
    /// It says nothing of the kind, or does not run yet.
    pub fn ask(&self, name: &str, command: &str) -> Result<Value> {
        let mut vtysh = Command::new("vtysh");
        vtysh.arg("--vty_socket").arg(&self.dir).args(["-d", name, "-c", &format!("{command} json")]);
        let output = vtysh.output().map_err(missing("frr"))?;
        serde_json::from_slice(&output.stdout).map_err(|e| format!("{name}: {command}: {e}"))
    }
}

/// A program in the namespace `net`.
///
/// # Errors
/// It cannot be started.
pub fn inside(net: &Net, log: PathBuf, program: &str, words: &[String]) -> Result<Process> {
    Process::start("nsenter", "util-linux", log, |command| {
        command.arg(format!("--net={}", net.path())).arg(program).args(words);
    })
    .map_err(text)
}
