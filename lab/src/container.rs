//! A clean Debian with systemd in a container (systemd-nspawn): what packages are installed in. It has the
//! host's kernel and network, and guests of the lab, which run beside it, reach the sockets of a daemon in
//! it.
//!
//! Its root file system is made once of each release (mmdebstrap); a container changes a copy.

use crate::apt::system_mirror;
use crate::error::{Context, Error, Result};
use crate::fetch::{part, Lab};
use crate::process::{output, Process};
use crate::rundir::{tail, RunDir};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long systemd may take.
const LIMIT: Duration = Duration::from_secs(60);

/// A running container; its copy is removed when it is dropped.
pub struct Container {
    // Ends before its folder is removed.
    process: Process,
    leader: String,
    dir: RunDir,
}

impl Container {
    /// Starts a copy of the release `suite`, with folders of the host at these places, and waits until
    /// systemd has started all.
    ///
    /// # Errors
    /// The release cannot be fetched, a program is missing, or systemd does not come up.
    pub fn boot(suite: &str, folders: &[(&Path, &str)]) -> Result<Self> {
        let base = root(suite)?;
        let dir = RunDir::new("container")?;
        let root = dir.path().join("root");
        output(Command::new("cp").arg("--archive").arg(&base).arg(&root))?;
        let mut command = Command::new("systemd-nspawn");
        command.args(["--quiet", "--boot", "--register=no", "--keep-unit", "--console=pipe"]);
        command.arg(format!("--machine=sidecore-{}", std::process::id())).arg("--directory").arg(&root);
        for (folder, place) in folders {
            command.arg(format!("--bind-ro={}:{place}", folder.display()));
        }
        let log = || File::create(dir.path().join("console.log")).context(|| "making a log".to_owned());
        command.stdin(Stdio::null()).stdout(log()?).stderr(Stdio::null());
        let process = Process::spawn(command, Vec::new())
            .map_err(|e| Error::new(format!("{e} (package systemd-container)")))?;
        let mut container = Self { process, leader: String::new(), dir };
        container.wait_ready()?;
        Ok(container)
    }

    fn wait_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        let children = format!("/proc/{0}/task/{0}/children", self.process.id());
        loop {
            self.leader = std::fs::read_to_string(&children).unwrap_or_default().trim().to_owned();
            let state = self.expect("systemctl is-system-running || true").unwrap_or_default();
            if !self.leader.is_empty() && ["running", "degraded"].contains(&state.trim()) {
                return Ok(());
            }
            if Instant::now() > deadline || self.process.status().is_some() {
                let said = tail(&self.dir.path().join("console.log"), 40);
                return Err(Error::new(format!("the container did not start: {said}")));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// What a shell command prints, which must succeed.
    ///
    /// # Errors
    /// It fails; the error has what it said.
    pub fn expect(&self, command: &str) -> Result<String> {
        let mut inside = Command::new("nsenter");
        inside.args(["--all", "--target", &self.leader, "env", "-i", "LC_ALL=C.UTF-8"]);
        inside.args([
            "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            "DEBIAN_FRONTEND=noninteractive",
            "sh",
            "-c",
            command,
        ]);
        output(&mut inside)
    }

    /// Where a file of the container is for programs of the host that run as root.
    pub fn path(&self, file: &str) -> String {
        format!("/proc/{}/root{file}", self.leader)
    }
}

impl Drop for Container {
    /// systemd-nspawn that is killed leaves its processes running; they end with the first of their PID
    /// namespace.
    fn drop(&mut self) {
        if let Some(leader) = self.leader.parse().ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(leader, rustix::process::Signal::KILL);
        }
    }
}

/// The root file system of a release, as after its installation.
///
/// # Errors
/// It cannot be fetched.
pub fn root(suite: &str) -> Result<PathBuf> {
    let lab = Lab::open()?;
    let packages = "systemd,systemd-sysv,iproute2,ca-certificates";
    let made = part(&lab.dir, &format!("debian-{suite}"), packages, |work, target| {
        let mut command = Command::new("mmdebstrap");
        command.args(["--quiet", "--variant=minbase"]).arg(format!("--include={packages}"));
        let _ = std::fs::remove_dir_all(work);
        command.arg(suite).arg(target.join("root")).arg(system_mirror()?);
        output(&mut command).map(drop).map_err(|e| Error::new(format!("{e} (package mmdebstrap)")))
    })?;
    Ok(made.join("root"))
}
