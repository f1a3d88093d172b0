//! Network namespaces for the host's side of a test, made by iproute2's `ip`. Root is needed.
//!
//! They are entered by `nsenter` (util-linux). `ip netns exec` and `ip -n` also remount `/`, which fails
//! where `/` is not a mount point, as in a chroot.
//!
//! A namespace is removed when its value is dropped. If the process was killed instead, [`crate::tidy`]
//! removes it, or the next [`Netns::new`] of any process: the names carry the process id.

use crate::error::{Context, Result};
use crate::process::{output, Process};
use crate::{Lab, Output};
use std::ffi::OsStr;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

const PREFIX: &str = "sclab-";

/// A network namespace with its loopback up; removed when dropped.
#[derive(Debug)]
pub struct Netns {
    name: String,
}

impl Netns {
    /// Makes a namespace whose name contains `name`.
    ///
    /// # Errors
    /// `ip` is missing, or we are not root.
    pub fn new(name: &str) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        remove_leftovers();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let netns = Self { name: format!("{PREFIX}{}-{number}-{name}", std::process::id()) };
        ip(&["netns", "add", &netns.name])?;
        netns.ip("link set lo up")?;
        Ok(netns)
    }

    /// Its name, as `ip netns` knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `ip` with these words in the namespace: `addr add 10.0.0.1/24 dev eth0`.
    ///
    /// # Errors
    /// `ip` refuses; the error has its words.
    pub fn ip(&self, words: &str) -> Result<String> {
        output(in_netns(Some(&self.name), "ip").args(words.split_whitespace()))
    }

    /// A pair of connected interfaces `name`, one here and one in `other`, both up.
    ///
    /// # Errors
    /// `ip` refuses.
    pub fn veth(&self, name: &str, other: &Self, other_name: &str) -> Result<()> {
        self.ip(&format!("link add {name} type veth peer name {other_name} netns {}", other.name))?;
        self.ip(&format!("link set {name} up"))?;
        other.ip(&format!("link set {other_name} up")).map(drop)
    }

    /// A persistent TAP interface that a program running in this namespace can open by its name.
    ///
    /// # Errors
    /// `ip` refuses.
    pub fn tap(&self, name: &str, multi_queue: bool) -> Result<()> {
        let queues = if multi_queue { " multi_queue" } else { "" };
        self.ip(&format!("tuntap add dev {name} mode tap vnet_hdr{queues}"))?;
        self.ip(&format!("link set {name} up")).map(drop)
    }

    /// Takes an interface from the namespace in which we run.
    ///
    /// # Errors
    /// There is no such interface.
    pub fn adopt(&self, name: &str) -> Result<()> {
        ip(&["link", "set", name, "netns", &self.name]).map(drop)
    }

    /// Gives an interface an address and sets it up.
    ///
    /// # Errors
    /// `ip` refuses.
    pub fn address(&self, interface: &str, address: &str) -> Result<()> {
        self.ip(&format!("addr add {address} dev {interface}"))?;
        self.ip(&format!("link set {interface} up")).map(drop)
    }

    /// A command that will run in the namespace. `ping`, `iperf3` and the other [`Lab::tools`] are found even
    /// where they are not installed.
    ///
    /// # Errors
    /// The lab cannot be fetched.
    pub fn command(&self, program: &str) -> Result<Command> {
        let tools = Lab::open()?.tools.display().to_string();
        let mut command = in_netns(Some(&self.name), program);
        command.env("PATH", format!("{tools}:{}", std::env::var("PATH").unwrap_or_default()));
        Ok(command)
    }

    /// Runs a shell command in the namespace to its end.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn run(&self, command: &str) -> Result<Output> {
        let done = self.command("sh")?.args(["-c", &format!("exec 2>&1\n{command}")]).output();
        let done = done.context(|| format!("starting `{command}` in {}", self.name))?;
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        Ok(Output { status: done.status.code().unwrap_or(-1), text })
    }

    /// Runs a shell command in the namespace that must succeed, and returns what it printed.
    ///
    /// # Errors
    /// Its status is not 0.
    pub fn expect(&self, command: &str) -> Result<String> {
        self.run(command)?.of(command).context(|| self.name.clone())
    }

    /// Starts a shell command in the namespace; it is killed with the returned value.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn(&self, command: &str) -> Result<Process> {
        let mut shell = self.command("sh")?;
        shell.args(["-c", &format!("exec {command}")]);
        Process::spawn(shell, Vec::new())
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        if let Err(e) = ip(&["netns", "del", &self.name]) {
            eprintln!("sidecore-lab: {e}");
        }
    }
}

/// A command that will run in the namespace `netns`, or where we run. `nsenter` replaces itself by the
/// program, so that the process, its descriptors and its death signal are the program's.
pub(crate) fn in_netns(netns: Option<&str>, program: impl AsRef<OsStr>) -> Command {
    let Some(netns) = netns else { return Command::new(program) };
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{netns}")).arg("--").arg(program);
    command
}

fn ip(words: &[&str]) -> Result<String> {
    output(Command::new("ip").args(words))
}

/// Removes the namespaces of lab processes that are no more.
fn remove_leftovers() {
    remove_if(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists());
}

/// Removes the namespaces of process `pid`.
pub(crate) fn remove_of(pid: &str) {
    remove_if(|maker| maker == pid);
}

fn remove_if(is_left: impl Fn(&str) -> bool) {
    let Ok(names) = std::fs::read_dir("/run/netns") else { return };
    for name in names.flatten().map(|e| e.file_name().to_string_lossy().into_owned()) {
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if pid.is_some_and(|pid| pid.parse::<u32>().is_ok() && is_left(pid)) {
            let _ = ip(&["netns", "del", &name]);
        }
    }
}
