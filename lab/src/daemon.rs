//! Runs the `sidecore` binary under test.
//!
//! The binary is the one named by `SIDECORE_BIN`, or the one that cargo built beside the running test;
//! `SIDECORE_BEFORE` may name another one for the first start of each daemon, whose successor the binary is.
//! It is `sidecore run` in the foreground: started, waited for until it prints `ready`, and killed with its
//! value.

use crate::balance::Balance;
use crate::capture::Capture;
use crate::error::{Context, Error, Result};
use crate::netns::{in_netns, Netns};
use crate::process::Process;
use crate::rundir::{tail, RunDir};
use rustix::process::Signal;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How long the daemon may take until it is ready, or until it has ended after SIGTERM.
const LIMIT: Duration = Duration::from_secs(20);
const LINES: usize = 60;

/// A running daemon; killed when dropped.
pub struct Daemon {
    process: Process,
    dir: RunDir,
    socket: String,
    netns: Option<String>,
    arguments: Vec<String>,
}

impl Daemon {
    /// Runs `sidecore run` with these arguments and a control socket of its own, and waits until all its
    /// ports listen.
    ///
    /// # Errors
    /// The binary is not built, or it ends or stays silent instead of printing `ready`; the error has its
    /// log.
    pub fn start(arguments: &[&str]) -> Result<Self> {
        Self::launch(arguments, None)
    }

    /// [`Daemon::start`] in a network namespace.
    ///
    /// # Errors
    /// As for [`Daemon::start`].
    pub fn start_in(netns: &Netns, arguments: &[&str]) -> Result<Self> {
        Self::launch(arguments, Some(netns.name().to_owned()))
    }

    fn launch(arguments: &[&str], netns: Option<String>) -> Result<Self> {
        let dir = RunDir::new("daemon")?;
        let socket = dir.join("control.sock");
        let arguments: Vec<String> = arguments.iter().map(|&a| a.to_owned()).collect();
        let before = std::env::var_os("SIDECORE_BEFORE").map(PathBuf::from);
        let process = run(before, &arguments, netns.as_deref(), &socket, &dir)?;
        let mut daemon = Self { process, dir, socket, netns, arguments };
        let ready = daemon.wait_ready();
        daemon.explain(ready)?;
        Ok(daemon)
    }

    /// SIGKILL; [`Daemon::restart`] brings it back.
    pub fn down(&mut self) {
        self.process.kill();
    }

    /// SIGKILL, and the same daemon again.
    ///
    /// # Errors
    /// As for [`Daemon::start`].
    pub fn kill_and_restart(&mut self) -> Result<()> {
        self.down();
        self.restart()
    }

    /// The daemon as before it went down: same arguments, same control socket, its log goes on.
    ///
    /// # Errors
    /// As for [`Daemon::start`].
    pub fn restart(&mut self) -> Result<()> {
        self.process = run(None, &self.arguments, self.netns.as_deref(), &self.socket, &self.dir)?;
        let ready = self.wait_ready();
        self.explain(ready)
    }

    /// Starts the daemon that went down, and kills it when it has taken over from holders this many VMMs.
    ///
    /// # Errors
    /// It does not come so far.
    pub fn crash_at_start(&mut self, taken_over: u32) -> Result<()> {
        let count = |log: &str| log.matches("goes on with the VMM of an earlier daemon").count();
        let enough = count(&self.log()) + usize::try_from(taken_over).unwrap_or(0);
        self.process = run(None, &self.arguments, self.netns.as_deref(), &self.socket, &self.dir)?;
        let deadline = Instant::now() + LIMIT;
        while count(&self.log()) < enough {
            if Instant::now() > deadline || self.process.status().is_some() {
                return self.explain(Err(Error::new(format!("it has not taken over {taken_over} VMMs"))));
            }
            std::thread::yield_now();
        }
        self.down();
        Ok(())
    }

    fn wait_ready(&mut self) -> Result<()> {
        let stdout = self.process.child().stdout.take().ok_or_else(|| Error::new("no standard output"))?;
        let (ready, waiting) = channel();
        // Reads on after `ready`: a daemon must not stop because its pipe is full.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(std::io::Result::ok) {
                if line == "ready" {
                    let _ = ready.send(());
                }
            }
        });
        waiting.recv_timeout(LIMIT).map_err(|e| match e {
            RecvTimeoutError::Timeout => {
                Error::new(format!("the daemon did not print `ready` within {LIMIT:?}"))
            }
            RecvTimeoutError::Disconnected => Error::new("the daemon ended before it printed `ready`"),
        })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The path of its control socket.
    pub fn socket(&self) -> &str {
        &self.socket
    }

    /// What it wrote to standard error so far.
    pub fn log(&self) -> String {
        tail(&self.dir.path().join("daemon.log"), usize::MAX)
    }

    /// The answer of `sidecore show WHAT --json`.
    ///
    /// # Errors
    /// The command fails, or what it prints is not JSON.
    pub fn show_json(&mut self, what: &str) -> Result<Value> {
        let text = self.command(&["show", what, "--json"])?;
        let value =
            serde_json::from_str(&text).context(|| format!("`sidecore show {what} --json` printed {text}"));
        self.explain(value)
    }

    /// Waits until a port's peer is in this state: `waiting`, `running` …
    ///
    /// # Errors
    /// It is not within 60 s; the error has the port's state.
    pub fn wait_peer(&mut self, port: &str, state: &str) -> Result<()> {
        let deadline = Instant::now() + 3 * LIMIT;
        loop {
            let ports = self.show_json("ports")?;
            let found = ports["ports"].as_array().and_then(|all| all.iter().find(|p| p["name"] == port));
            if found.is_some_and(|port| port["state"]["peer"] == state) {
                return Ok(());
            }
            if Instant::now() > deadline {
                let error = Error::new(format!("port {port} did not become {state}: {found:#?}"));
                return self.explain(Err(error));
            }
            // There is nothing to wait on: the control socket tells states, not events.
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Begins to capture what passes a port.
    ///
    /// # Errors
    /// There is no such port.
    pub fn capture(&mut self, port: &str) -> Result<Capture> {
        let mut command = binary(self.netns.as_deref())?;
        command.args(["capture", port, "--socket", &self.socket]);
        let capture = Capture::start(command, &self.dir, port);
        self.explain(capture)
    }

    /// Adds up the frames of all ports when none is under way. Guests are honest here: none of their ports
    /// may have rested.
    ///
    /// # Errors
    /// Frames are missing or surplus, or a port was accused of lost time; the error has the counters of every
    /// port.
    pub fn balance(&mut self) -> Result<Balance> {
        let deadline = Instant::now() + LIMIT;
        loop {
            // Counters are read while frames move, so a sum may be wrong for once; it comes right when they
            // rest.
            let ports = self.show_json("ports")?;
            let balance = Balance::of(&ports);
            let mut all = ports["ports"].as_array().into_iter().flatten();
            if let Some(port) = all.find(|port| port["state"]["overrun"]["rests"].as_u64() != Some(0)) {
                return self
                    .explain(Err(Error::new(format!("an honest guest's port had to rest: {port:#}"))));
            }
            if balance.holds() {
                return Ok(balance);
            }
            if Instant::now() > deadline {
                return self.explain(Err(Error::new(format!("{balance}\n{ports:#}"))));
            }
        }
    }

    /// Keeps the log after the daemon's end; returns where it is.
    pub fn keep_logs(&mut self) -> String {
        self.dir.keep(true);
        self.dir.join("daemon.log")
    }

    /// Runs `sidecore` with these arguments against this daemon and returns what it printed.
    ///
    /// # Errors
    /// Its status is not 0.
    pub fn command(&mut self, arguments: &[&str]) -> Result<String> {
        let mut command = binary(self.netns.as_deref())?;
        command.args(arguments).args(["--socket", &self.socket]);
        let text = crate::process::output(&mut command);
        self.explain(text)
    }

    /// SIGTERM, and the status with which it ended.
    ///
    /// # Errors
    /// It does not end.
    pub fn terminate(mut self) -> Result<ExitStatus> {
        self.process.signal(Signal::TERM);
        let status = self.process.wait(LIMIT);
        self.explain(status)
    }

    /// SIGKILL, as when it crashes.
    pub fn kill(mut self) {
        self.process.kill();
    }

    fn explain<T>(&mut self, result: Result<T>) -> Result<T> {
        result.map_err(|e| {
            self.dir.keep(true);
            let ended = self.process.wait(Duration::from_millis(200)).map(|s| format!(" (it ended: {s})"));
            let path = self.dir.path().join("daemon.log");
            let (ended, log) = (ended.unwrap_or_default(), tail(&path, LINES));
            Error::new(format!("{e}{ended}\n--- the end of {} ---\n{log}", path.display()))
        })
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.process.kill();
        if std::thread::panicking() {
            eprintln!("--- the daemon's log ---\n{}", tail(&self.dir.path().join("daemon.log"), LINES));
        }
    }
}

/// `program` is another one than the binary under test.
fn run(
    program: Option<PathBuf>,
    arguments: &[String],
    netns: Option<&str>,
    socket: &str,
    dir: &RunDir,
) -> Result<Process> {
    let mut command = in_netns(netns, program.map_or_else(find_binary, Ok)?);
    command.arg("run").args(arguments).args(["--socket", socket]);
    let path = dir.path().join("daemon.log");
    let log = std::fs::File::options().create(true).append(true).open(&path);
    let log = log.context(|| format!("making {}", path.display()))?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    Process::spawn(command, Vec::new())
}

/// `sidecore`, to be given arguments.
fn binary(netns: Option<&str>) -> Result<Command> {
    Ok(in_netns(netns, find_binary()?))
}

pub(crate) fn find_binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("SIDECORE_BIN") {
        let path = PathBuf::from(path);
        if path.is_file() {
            return Ok(path);
        }
        return Err(Error::new(format!("SIDECORE_BIN is {}, which is not a file", path.display())));
    }
    let test = std::env::current_exe().context(|| "finding the running program".to_owned())?;
    // A test runs in target/PROFILE/deps or target/PROFILE/examples, a program in target/PROFILE.
    test.ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join("sidecore"))
        .find(|path| path.is_file())
        .ok_or_else(|| {
            Error::new(format!(
                "no `sidecore` beside {}; run `cargo build -p sidecore` first, or set SIDECORE_BIN",
                test.display()
            ))
        })
}
