//! Removes what an interrupted run leaves.
//!
//! Theory of operation. Ctrl-C and SIGKILL end a program without its destructors. The processes that it
//! started end with it ([`crate::process`]), but its network namespaces and folders would stay. So a [`Tidy`]
//! is a second process of this program, `sidecore-lab tidy PID`. It waits for the end of a pipe that only the
//! first process can write. If the first process writes before that, its destructors have run, and there is
//! nothing to do. The second process has a process group of its own, because the terminal sends Ctrl-C to the
//! whole group of the first.

use crate::error::{Context, Error, Result};
use crate::process::readable;
use crate::{netns, rundir};
use rustix::process::{pidfd_open, Pid, PidfdFlags};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long the end of the first process may take once its pipe is closed.
const LIMIT: Duration = Duration::from_secs(10);

/// The second process. It ends when this is dropped, and removes nothing then.
pub struct Tidy(Child);

impl Tidy {
    /// Starts it, for this process. The running program must be `sidecore-lab`.
    ///
    /// # Errors
    /// The program cannot be started once more.
    pub fn start() -> Result<Self> {
        let program = std::env::current_exe().context(|| "finding the running program".to_owned())?;
        let mut command = Command::new(program);
        command.arg("tidy").arg(std::process::id().to_string()).stdin(Stdio::piped()).process_group(0);
        command.spawn().context(|| "starting the process that tidies up".to_owned()).map(Tidy)
    }
}

impl Drop for Tidy {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.0.stdin.take() {
            let _ = pipe.write_all(b"done");
        }
        let _ = self.0.wait();
    }
}

/// The second process's work: waits for the end of process `pid`, and removes what it left.
///
/// # Errors
/// `pid` is no process id, or the pipe cannot be read.
pub fn after(pid: &str) -> Result<()> {
    let wrong = || Error::new(format!("{pid} is no process id"));
    let number = pid.parse::<i32>().ok().and_then(Pid::from_raw).ok_or_else(wrong)?;
    let process = pidfd_open(number, PidfdFlags::empty());
    let mut said = Vec::new();
    std::io::stdin().read_to_end(&mut said).context(|| format!("waiting for process {pid}"))?;
    if !said.is_empty() {
        return Ok(());
    }
    // Its pipe is closed before its processes are told to end. They write into its folders until then.
    if let Ok(process) = process {
        let _ = readable(&process, Instant::now() + LIMIT);
    }
    netns::remove_of(pid);
    rundir::remove_of(pid);
    Ok(())
}
