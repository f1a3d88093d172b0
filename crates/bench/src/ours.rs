//! Our own switch as a benchmark's candidate: started as a user would, asked as a user would.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::common::text;
use super::net::Net;
use super::peers::{PeerError, Process, Scratch};

pub use super::common::START;

/// What a polling core did with its time; the unit of time is the candidate's own.
#[derive(Clone, Copy, Debug)]
pub struct Cycles {
    /// With frames to move.
    pub busy: f64,
    /// Without, awake or asleep.
    pub idle: f64,
    /// Frames moved.
    pub frames: f64,
}

impl Cycles {
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
pub fn program() -> Result<PathBuf, PeerError> {
    let here = std::env::current_exe().map_err(|e| PeerError::new(format!("/proc/self/exe: {e}")))?;
    let program = here.with_file_name("sidecore");
    match program.is_file() {
        true => Ok(program),
        false => Err(PeerError::new(format!(
            "there is no {}: `make install` installs it, `make build` and `cargo build -p sidecore` build it",
            program.display()
        ))),
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
    pub fn show(&self, topic: &str) -> Result<serde_json::Value, PeerError> {
        let text = self.command(&["show", topic, "--json"])?;
        let failed = |what: &str| PeerError::new(format!("sidecore show {topic} --json: {what}"));
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
    pub fn drops(&self) -> Result<BTreeMap<String, u64>, PeerError> {
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
    pub fn command(&self, words: &[&str]) -> Result<Vec<u8>, PeerError> {
        let mut command = Command::new(program()?);
        command.args(words);
        if let Some(socket) = &self.socket {
            command.arg("--socket").arg(socket);
        }
        let failed = |what: &str| PeerError::new(format!("sidecore {}: {what}", words.join(" ")));
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
pub fn get(socket: &Path, path: &str) -> Result<serde_json::Value, String> {
    let mut stream = UnixStream::connect(socket).map_err(text)?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: sidecore\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(text)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(text)?;
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
    serde_json::from_str(body).map_err(|e| format!("{}: {e}", socket.display()))
}

/// Starts `sidecore run` with the words that `set` gives it, and waits until it is ready.
///
/// # Errors
/// It ends before that; the text has its last words.
pub fn run(scratch: &Scratch, set: impl FnOnce(&mut Command)) -> Result<Process, PeerError> {
    launch(scratch, (&program()?.to_string_lossy(), "sidecore"), |command| set(command.arg("run")))
}

/// As [`run`], in the network namespace `net`.
///
/// # Errors
/// As of [`run`].
pub fn run_in(net: &Net, scratch: &Scratch, set: impl FnOnce(&mut Command)) -> Result<Process, PeerError> {
    let program = program()?;
    launch(scratch, ("nsenter", "util-linux"), |command| {
        command.arg(format!("--net={}", net.path())).arg(program);
        set(command.arg("run"));
    })
}

fn launch(
    scratch: &Scratch,
    (program, package): (&str, &str),
    set: impl FnOnce(&mut Command),
) -> Result<Process, PeerError> {
    let log = scratch.file("log");
    let mut process = Process::start(program, package, log.clone(), set)?;
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
}

impl Switch {
    /// Starts it with a vhost-user port for each of `paths`, on one I/O core.
    pub fn start(io_core: usize, scratch: &Scratch, paths: &[PathBuf]) -> Result<Self, PeerError> {
        let ports: Vec<String> = paths.iter().map(|path| format!("vhost-user:{}", path.display())).collect();
        Self::start_with(io_core, scratch, &ports, &[])
    }

    /// Starts it with ports of any kind, `KIND:WHERE,…`, which are called `p0`, `p1`, …, and `more` words for
    /// `sidecore run`.
    pub fn start_with(
        io_core: usize,
        scratch: &Scratch,
        ports: &[String],
        more: &[&str],
    ) -> Result<Self, PeerError> {
        let named = ports.iter().enumerate().map(|(number, port)| (format!("p{number}"), port.clone()));
        Self::start_in(None, io_core, scratch, named, more)
    }

    /// Starts it with ports that have names, in the network namespace `net` if there is one.
    pub fn start_in(
        net: Option<&Net>,
        io_core: usize,
        scratch: &Scratch,
        ports: impl Iterator<Item = (String, String)>,
        more: &[&str],
    ) -> Result<Self, PeerError> {
        let socket = scratch.file("ctl");
        let set = |command: &mut Command| {
            command.args(["--cores", &io_core.to_string(), "--socket"]).arg(&socket).args(more);
            for (name, port) in ports {
                command.arg("--port").arg(format!("{name}={port}"));
            }
        };
        let process = match net {
            Some(net) => run_in(net, scratch, set)?,
            None => run(scratch, set)?,
        };
        Ok(Self { process, daemon: Daemon { socket: Some(socket) } })
    }

    /// From `show cores --json`: nanoseconds, turned into cycles of the time stamp counter.
    pub fn cycles(&self) -> Result<Cycles, PeerError> {
        let answer = self.daemon.show("cores")?;
        let core = &answer["cores"][0];
        let number = |key: &str| {
            let missing = || PeerError::new(format!("sidecore show cores --json: no {key} in {answer}"));
            core[key].as_f64().ok_or_else(missing)
        };
        let per_ns = sidecore_driver::load::ticks_per_ns();
        Ok(Cycles {
            busy: number("busy_ns")? * per_ns,
            idle: (number("idle_ns")? + number("sleep_ns")?) * per_ns,
            frames: number("frames")?,
        })
    }
}
