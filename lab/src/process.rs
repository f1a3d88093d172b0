//! Child processes that cannot outlive us.
//!
//! A QEMU that survives its test holds memory, sockets and a core. Two things prevent it: [`Process`] kills
//! in `Drop`, and the kernel kills the child when we die without unwinding (`PR_SET_PDEATHSIG`, prctl(2)).
//!
//! That signal is sent when the *thread* that made the child ends, and a test runs on a thread of its own
//! which may hand its guest to another one. So all children are made by one thread that lives as long as the
//! process.
//!
//! Invariant for the one `unsafe` block: between fork and exec only async-signal-safe system calls are made
//! and nothing is allocated.

use crate::error::{Context, Error, Result};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{getppid, prlimit, set_parent_process_death_signal, Pid, Resource, Rlimit, Signal};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{channel, Sender};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// A running child process; killed when dropped.
pub struct Process {
    name: String,
    child: Child,
    pidfd: OwnedFd,
    status: Option<ExitStatus>,
}

impl Process {
    /// Starts `command`. The descriptors `inherit` keep their numbers in the child and are closed here.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn spawn(mut command: Command, inherit: Vec<OwnedFd>) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let parent = rustix::process::getpid();
        let prepare = move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // We may have died before the line above; then the signal will never be sent.
            if getppid() != Some(parent) {
                return Err(io::Error::from_raw_os_error(rustix::io::Errno::SRCH.raw_os_error()));
            }
            for fd in &inherit {
                rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?;
            }
            Ok(())
        };
        // SAFETY: the closure makes three kinds of system calls, all async-signal-safe, and allocates
        // nothing.
        unsafe { command.pre_exec(prepare) };
        let child = spawner_run(command).context(|| format!("starting {name}"))?;
        let pid = Pid::from_child(&child);
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())
            .context(|| format!("opening a pidfd of {name} (Linux 5.3 or newer is needed)"))?;
        Ok(Self { name, child, pidfd, status: None })
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The child itself, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// The status if the process has ended.
    pub fn status(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    /// Has the kernel end the process when it has used so many seconds of processors, of vCPUs included
    /// (SIGXCPU, setrlimit(2)).
    ///
    /// # Errors
    /// The process has ended.
    pub fn limit_processor(&mut self, seconds: u64) -> Result<()> {
        let limit = Rlimit { current: Some(seconds), maximum: Some(seconds + 1) };
        let pid = Pid::from_child(&self.child);
        prlimit(Some(pid), Resource::Cpu, limit).context(|| format!("limiting {}", self.name)).map(drop)
    }

    /// Sends a signal; a process that has already ended is left alone.
    pub fn signal(&mut self, signal: Signal) {
        if self.status().is_none() {
            let _ = rustix::process::pidfd_send_signal(&self.pidfd, signal);
        }
    }

    /// Waits until the process ends.
    ///
    /// # Errors
    /// It still runs after `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        if let Some(status) = self.status() {
            return Ok(status);
        }
        let ended =
            readable(&self.pidfd, Instant::now() + limit).context(|| format!("waiting for {}", self.name))?;
        if !ended {
            return Err(Error::new(format!("{} (pid {}) still runs after {limit:?}", self.name, self.id())));
        }
        let status = self.child.wait().context(|| format!("waiting for {}", self.name))?;
        self.status = Some(status);
        Ok(status)
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        if self.status.is_none() {
            self.status = self.child.wait().ok();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// True when `fd` can be read or its other end is gone; false when the deadline passed first.
pub(crate) fn readable(fd: &impl AsFd, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

struct Request {
    command: Command,
    reply: Sender<io::Result<Child>>,
}

fn spawner_run(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<Mutex<Sender<Request>>> = OnceLock::new();
    let gone = || io::Error::other("the thread that starts processes is gone");
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, requests) = channel::<Request>();
        std::thread::spawn(move || {
            for mut request in requests {
                let result = request.command.spawn();
                // With the command go our ends of the inherited descriptors.
                drop(request.command);
                let _ = request.reply.send(result);
            }
        });
        Mutex::new(sender)
    });
    let (reply, answer) = channel();
    let request = Request { command, reply };
    spawner.lock().map_err(|_| gone())?.send(request).map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}

/// Looks again and again until `look` has found what is waited for. It is for what tells no event, such as
/// tables and states behind a control socket.
///
/// # Errors
/// `look` fails; or after `limit` it has not found it, and the error has what it found instead.
pub(crate) fn wait<T>(
    limit: Duration,
    mut look: impl FnMut() -> Result<std::result::Result<T, String>>,
) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        match look()? {
            Ok(found) => return Ok(found),
            Err(instead) if Instant::now() > deadline => {
                return Err(Error::new(format!("after {limit:?}: {instead}")))
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Runs a program to its end and returns what it printed.
///
/// # Errors
/// It cannot be started, or its status is not 0; the error has its standard error.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let name = format!("{command:?}");
    let done = command.output().context(|| format!("starting {name}"))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        return Err(Error::new(format!("{name} failed ({}):\n{}", done.status, said.trim_end())));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn a_child_outlives_the_thread_that_asked_for_it() {
        let ask = || {
            let mut command = Command::new("sleep");
            command.arg("60");
            Process::spawn(command, Vec::new()).unwrap()
        };
        let mut process = std::thread::spawn(ask).join().unwrap();
        assert!(process.wait(Duration::from_millis(100)).is_err(), "still running");
        process.kill();
        assert!(!process.status().unwrap().success());
    }

    #[test]
    fn a_process_that_has_used_its_time_is_ended() {
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do :; done"]);
        let mut process = Process::spawn(command, Vec::new()).unwrap();
        process.limit_processor(1).unwrap();
        let status = process.wait(Duration::from_secs(60)).unwrap();
        assert_eq!(status.signal(), Some(Signal::XCPU.as_raw()), "{status}");
    }

    #[test]
    fn a_descriptor_is_inherited_with_its_number() {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("echo hello >&{}", write.as_raw_fd()));
        let mut process = Process::spawn(command, vec![write]).unwrap();
        assert!(process.wait(Duration::from_secs(10)).unwrap().success());
        assert_eq!(std::io::read_to_string(std::fs::File::from(read)).unwrap(), "hello\n");
    }
}
