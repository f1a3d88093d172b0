//! Our own switch as a benchmark's candidate: started as a user would, asked as a user would.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::common::{text, Result};
use super::net::Net;
use super::peers::{Process, Scratch};

pub use super::common::START;

/// What a polling core did with its time; the unit of time is the candidate's own.
#[derive(Clone, Copy, Debug)]
pub struct Spent {
    /// With frames to move.
    pub busy: f64,
    /// Without, awake or asleep.
    pub idle: f64,
    /// Frames moved.
    pub frames: f64,
}

impl Spent {
    /// What came since `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            busy: self.busy - before.busy,
            idle: self.idle - before.idle,
            frames: self.frames - before.frames,
        }
    }

    /// Share of the time in which it was busy.
    pub fn share(self) -> f64 {
        self.busy / (self.busy + self.idle)
    }

    /// Busy time for each frame.
    pub fn per_frame(self) -> f64 {
        self.busy / self.frames
    }
}

/// The program `sidecore`: in the folder of the program that runs.
///
/// # Errors
/// It is not there.
pub fn program() -> Result<PathBuf> {
    let here = std::env::current_exe().map_err(|e| format!("/proc/self/exe: {e}"))?;
    let program = here.with_file_name("sidecore");
    match program.is_file() {
        true => Ok(program),
        false => Err(format!(
            "there is no {}: `make install` installs it, `make build` and `cargo build -p sidecore` build it",
            program.display()
        )),
    }
}

/// A daemon of ours that runs, asked by commands.
#[derive(Debug)]
pub struct Daemon {
    /// Its control socket, if that is not where commands look anyway.
    pub socket: Option<PathBuf>,
}

impl Daemon {
    /// What `show TOPIC --json` prints.
    ///
    /// # Errors
    /// The daemon does not run, or its answer is no JSON.
    pub fn show(&self, topic: &str) -> Result<serde_json::Value> {
        let text = self.command(&["show", topic, "--json"])?;
        let failed = |what: &str| format!("sidecore show {topic} --json: {what}");
        let answer: serde_json::Value = serde_json::from_slice(&text).map_err(|e| failed(&e.to_string()))?;
        match answer["running"].as_bool() {
            Some(false) => Err(failed("the daemon is not running")),
            _ => Ok(answer),
        }
    }

    /// Frames that it has dropped so far, by reason.
    ///
    /// # Errors
    /// It does not answer.
    pub fn drops(&self) -> Result<BTreeMap<String, u64>> {
        let answer = self.show("drops")?;
        let mut all = BTreeMap::new();
        for drop in answer["drops"].as_array().into_iter().flatten() {
            let reason = drop["reason"].as_str().unwrap_or("unknown").to_owned();
            *all.entry(reason).or_default() += drop["frames"].as_u64().unwrap_or(0);
        }
        Ok(all)
    }

    /// What a command prints.
    ///
    /// # Errors
    /// It fails; the text is its own.
    pub fn command(&self, words: &[&str]) -> Result<Vec<u8>> {
        let mut command = Command::new(program()?);
        command.args(words);
        if let Some(socket) = &self.socket {
            command.arg("--socket").arg(socket);
        }
        let failed = |what: &str| format!("sidecore {}: {what}", words.join(" "));
        let output = command.output().map_err(|e| failed(&e.to_string()))?;
        match output.status.success() {
            true => Ok(output.stdout),
            false => Err(failed(String::from_utf8_lossy(&output.stderr).trim())),
        }
    }
}

/// What the daemon's control socket answers at `path`. A command that asks would take longer than most of
/// what is measured.
///
/// # Errors
/// It does not answer, or no JSON.
pub fn get(socket: &Path, path: &str) -> Result<serde_json::Value> {
    let mut stream = UnixStream::connect(socket).map_err(text)?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: sidecore\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(text)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(text)?;
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
    serde_json::from_str(body).map_err(|e| format!("{}: {e}", socket.display()))
}

/// Starts `sidecore run` with the words that `set` gives it, in the network namespace `net` if there is one,
/// and waits until it is ready.
///
/// # Errors
/// It ends before that; the text has its last words.
pub fn run(net: Option<&Net>, scratch: &Scratch, set: impl FnOnce(&mut Command)) -> Result<Process> {
    let (ours, log) = (program()?.to_string_lossy().into_owned(), scratch.file("log"));
    let (program, package) = if net.is_some() { ("nsenter", "util-linux") } else { (&*ours, "sidecore") };
    let mut process = Process::start(program, package, log.clone(), |command| {
        if let Some(net) = net {
            command.arg(format!("--net={}", net.path())).arg(&ours);
        }
        set(command.arg("run"));
    })?;
    let ready = || std::fs::read_to_string(&log).is_ok_and(|text| text.lines().any(|line| line == "ready"));
    process.wait_until("it is ready", START, ready)?;
    Ok(process)
}

/// Our own switch, started as a user would.
pub struct Switch {
    /// Its process, and its log.
    pub process: Process,
    /// The daemon, to be asked.
    pub daemon: Daemon,
    /// Where its sockets are.
    scratch: Scratch,
}

impl Switch {
    /// Starts it on one I/O core with ports of any kind, `KIND:WHERE,…`, which are called `p0`, `p1`, …, and
    /// `more` words for `sidecore run`. In what a port says `@` stands for the switch's own folder.
    pub fn start<P: AsRef<str>>(
        io_core: usize,
        ports: impl IntoIterator<Item = P>,
        more: &[&str],
    ) -> Result<Self> {
        let named = ports.into_iter().enumerate().map(|(number, port)| (format!("p{number}"), port));
        Self::start_in(None, io_core, named, more)
    }

    /// Starts it with ports that have names, in the network namespace `net` if there is one.
    pub fn start_in<P: AsRef<str>>(
        net: Option<&Net>,
        io_core: usize,
        ports: impl IntoIterator<Item = (String, P)>,
        more: &[&str],
    ) -> Result<Self> {
        let scratch = Scratch::new("sc-switch")?;
        let (socket, folder) = (scratch.file("ctl"), scratch.file(""));
        let set = |command: &mut Command| {
            command.args(["--cores", &io_core.to_string(), "--socket"]).arg(&socket).args(more);
            for (name, port) in ports {
                let port = port.as_ref().replacen("@/", &folder.to_string_lossy(), 1);
                command.arg("--port").arg(format!("{name}={port}"));
            }
        };
        Ok(Self { process: run(net, &scratch, set)?, daemon: Daemon { socket: Some(socket) }, scratch })
    }

    /// A file in its folder.
    pub fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.scratch.file(name)
    }

    /// From `show cores --json`, in nanoseconds.
    pub fn spent(&self) -> Result<Spent> {
        let answer = self.daemon.show("cores")?;
        let core = &answer["cores"][0];
        let number = |key: &str| {
            let missing = || format!("sidecore show cores --json: no {key} in {answer}");
            core[key].as_f64().ok_or_else(missing)
        };
        let idle = number("idle_ns")? + number("sleep_ns")?;
        Ok(Spent { busy: number("busy_ns")?, idle, frames: number("frames")? })
    }
}
