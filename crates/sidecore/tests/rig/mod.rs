//! A daemon in a directory of its own, and the commands that talk to it: the real program, seen from
//! outside. Nothing here sleeps; whatever has to happen is waited for, with a limit that only a fault
//! reaches.

pub mod net;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{channel, Receiver};
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{kill_process, pidfd_open, Pid, PidfdFlags, Signal};
use serde_json::Value;
use sidecore_port::{Interest, Port};

/// Long enough for a busy machine.
pub const LIMIT: Duration = Duration::from_secs(20);

/// Fails a test that lacks a program, which is at its path or in `PATH`, and says which Debian package has
/// it.
pub fn needs(program: &str, package: &str) {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&folders).map(|folder| folder.join(program));
    assert!(places.any(|place| place.exists()), "{program} is not installed: apt-get install {package}");
}

/// A program that is built beside `sidecore`.
pub fn beside(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_sidecore")).with_file_name(name);
    assert!(path.exists(), "no {}: cargo build --workspace --bins", path.display());
    path
}

/// Fails a test that only root can run.
pub fn needs_root() {
    assert!(
        rustix::process::geteuid().is_root(),
        "run as root: this test does what only root may (sudo -E cargo test …)"
    );
}

/// Fails a test that wants an I/O core on a processor and its own threads on another one; the last processor.
pub fn last_of_two_processors() -> usize {
    let count = std::thread::available_parallelism().unwrap().get();
    assert!(count > 1, "this test needs two processors");
    count - 1
}

/// `unshare`, for a network namespace and what `ip` makes there.
pub fn unshare() -> Command {
    needs_root();
    needs("ip", "iproute2");
    Command::new("unshare")
}

/// A directory that goes away, and the paths in it.
pub struct Testbed {
    dir: PathBuf,
}

impl Testbed {
    pub fn new() -> Testbed {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("sidecore-cli-{}-{number}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        Testbed { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The path as text, for specifications.
    pub fn at(&self, name: &str) -> String {
        self.path(name).into_os_string().into_string().unwrap()
    }

    /// A copy of the program under test. By another process: what another thread starts meanwhile would have
    /// a copy of ours open to write until it runs a program of its own, and nobody may run this one as long
    /// (execve(2), ETXTBSY).
    pub fn own_program(&self) -> PathBuf {
        let program = self.path("sidecore");
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_sidecore")).arg(&program).status().unwrap();
        assert!(copied.success());
        program
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text.replace("DIR", self.dir.to_str().unwrap())).unwrap();
        path
    }

    pub fn command(&self) -> Command {
        self.program(env!("CARGO_BIN_EXE_sidecore"))
    }

    /// A program of another version, which finds what this one does.
    pub fn program(&self, path: &str) -> Command {
        let mut command = Command::new(path);
        command.current_dir(&self.dir).env("SIDECORE_SOCKET", self.path("control.sock"));
        command.env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
        command
    }

    /// Runs one command to its end.
    pub fn run(&self, args: &[&str]) -> Output {
        self.command().args(args).output().unwrap()
    }

    /// Runs one command that must succeed and say nothing on standard error; what it printed.
    pub fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && errors.is_empty(), "{args:?}: {}: {errors}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs one command that must fail with code 1; what it said.
    pub fn fails(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8(output.stderr).unwrap()
    }

    /// `show TOPIC --json`.
    pub fn show(&self, topic: &str) -> Value {
        let value: Value = serde_json::from_str(&self.ok(&["show", topic, "--json"])).unwrap();
        assert_eq!(value["version"], 2);
        value
    }

    /// The names of all ports.
    pub fn ports(&self) -> Vec<String> {
        let ports = self.show("ports");
        let ports = ports["ports"].as_array().unwrap();
        ports.iter().map(|port| port["name"].as_str().unwrap().to_owned()).collect()
    }

    /// One port of `show ports --json`.
    pub fn port(&self, name: &str) -> Value {
        let ports = self.show("ports");
        ports["ports"].as_array().unwrap().iter().find(|port| port["name"] == name).unwrap().clone()
    }

    /// A daemon that is ready.
    pub fn daemon(&self, args: &[&str]) -> Daemon {
        Daemon::start(self.command().arg("run").args(args))
    }

    /// Sends one HTTP request; the status and the body.
    pub fn http(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = UnixStream::connect(self.path("control.sock")).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length:");
        // In one piece: a request that is refused for its head is answered before its body is read.
        stream.write_all(format!("{head} {}\r\n\r\n{body}", body.len()).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A daemon; killed if it still runs when this is dropped.
pub struct Daemon {
    child: Child,
    log: Receiver<String>,
}

impl Daemon {
    /// Starts it and waits for the line `ready`.
    pub fn start(command: &mut Command) -> Daemon {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let err = BufReader::new(child.stderr.take().unwrap());
        let (sender, log) = channel();
        std::thread::spawn(move || {
            for line in err.lines().map_while(Result::ok) {
                // The test may have ended.
                let _ = sender.send(line);
            }
        });
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let daemon = Daemon { child, log };
        assert_eq!(line, "ready\n", "{:?}", daemon.log.iter().collect::<Vec<_>>());
        daemon
    }

    /// Waits for a line of the log with `text` in it.
    pub fn await_log(&self, text: &str) -> String {
        loop {
            let line = self.log.recv_timeout(LIMIT).unwrap_or_else(|_| panic!("no line with {text:?}"));
            if line.contains(text) {
                return line;
            }
        }
    }

    /// Lines of the log that no test has waited for: they help to find out why a test failed.
    pub fn rest_of_log(&self) -> String {
        self.log.try_iter().map(|line| line + "\n").collect()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its broker.
    pub fn broker(&self) -> Pid {
        let children = children(pid(&self.child));
        assert_eq!(children.len(), 1, "a daemon has one process: its broker");
        children[0]
    }

    /// The holders that it has started, which are its broker's children.
    pub fn holders(&self) -> Vec<Pid> {
        self.started("hold")
    }

    /// Its descriptor helpers: one, and those that are still closing a file.
    pub fn descriptor_helpers(&self) -> Vec<Pid> {
        self.started("door")
    }

    /// The children of its broker that were started with this command.
    fn started(&self, command: &str) -> Vec<Pid> {
        let is = |child: &Pid| {
            let line = std::fs::read(format!("/proc/{}/cmdline", child.as_raw_nonzero())).unwrap_or_default();
            line.split(|byte| *byte == 0).nth(1) == Some(command.as_bytes())
        };
        children(self.broker()).into_iter().filter(is).collect()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(pid(&self.child), signal).unwrap();
    }

    /// Sends `signal` and waits for the end.
    pub fn end(mut self, signal: Signal) -> ExitStatus {
        self.signal(signal);
        let status = wait(&mut self.child);
        // Its sandbox stands in the way of nothing that a test does.
        let refused: Vec<String> =
            self.log.iter().filter(|line| line.contains("refused by the sandbox")).collect();
        assert!(refused.is_empty(), "{refused:?}");
        status
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Both fail if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// The processes that `parent` has started.
pub fn children(parent: Pid) -> Vec<Pid> {
    let own = parent.as_raw_nonzero().to_string();
    let all =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    let is_child = |id: &i32| {
        // Gone meanwhile, or: number, name in brackets, state, parent (proc(5)).
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)) == Some(own.as_str())
    };
    all.filter_map(|name| name.parse().ok()).filter(is_child).map(|id| Pid::from_raw(id).unwrap()).collect()
}

/// Waits for the end of a process that is not ours to wait for.
pub fn await_end(process: Pid) {
    // Gone already: that is its end.
    let Ok(fd) = pidfd_open(process, PidfdFlags::empty()) else { return };
    let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).unwrap(), 1, "it does not end");
}

/// Waits for a process to end, not for ever.
pub fn wait(child: &mut Child) -> ExitStatus {
    let fd = pidfd_open(pid(child), PidfdFlags::empty()).unwrap();
    let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).unwrap(), 1, "it does not end");
    child.wait().unwrap()
}

/// Permission bits of a file.
pub fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// Waits until `done` says so, where no event tells it.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "no {what}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// A frame from one program to another.
pub fn pass(from: &mut Port, to: &mut Port, bytes: &[u8]) {
    assert!(from.tx[0].push(bytes));
    from.tx[0].sync().unwrap();
    assert!(to.wait(Interest::RECEIVE, Some(LIMIT)).unwrap(), "no frame arrives");
    assert_eq!(to.rx[0].take().unwrap().bytes(), bytes);
    to.rx[0].sync().unwrap();
}
