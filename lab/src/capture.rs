//! `sidecore capture` into a file, read by tshark.

use crate::error::{Error, Result};
use crate::process::{output, Process};
use crate::rundir::RunDir;
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// A capture that runs; begun by [`Daemon::capture`](crate::Daemon::capture).
pub struct Capture {
    process: Process,
    file: PathBuf,
}

impl Capture {
    /// Starts `command`, whose last argument will be `file`, and waits until frames are being taken.
    pub(crate) fn start(mut command: Command, dir: &RunDir, port: &str) -> Result<Self> {
        let file = dir.path().join(format!("{}-{port}.pcapng", crate::rundir::unique()));
        command.arg("--write").arg(&file);
        let mut capture = Self { process: Process::spawn(command, Vec::new())?, file };
        // The daemon sends the file's head when it has begun.
        let deadline = Instant::now() + LIMIT;
        while !capture.file.metadata().is_ok_and(|m| m.len() > 0) {
            if let Some(status) = capture.process.status() {
                return Err(Error::new(format!("`sidecore capture {port}` ended: {status}")));
            }
            if Instant::now() > deadline {
                return Err(Error::new(format!("`sidecore capture {port}` did not begin within {LIMIT:?}")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(capture)
    }

    /// Waits until the file has this many bytes: frames are written a moment after they passed.
    ///
    /// # Errors
    /// It does not grow to that.
    pub fn wait_bytes(&self, bytes: u64) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let length = self.file.metadata().map_or(0, |m| m.len());
            if length >= bytes {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(Error::new(format!("the capture has {length} of {bytes} bytes after {LIMIT:?}")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends it as ctrl-c does; returns the file.
    ///
    /// # Errors
    /// It does not end well.
    pub fn end(mut self) -> Result<PathBuf> {
        self.process.signal(Signal::INT);
        let status = self.process.wait(LIMIT)?;
        match status.success() {
            true => Ok(self.file),
            false => Err(Error::new(format!("`sidecore capture` ended with {status}"))),
        }
    }
}

/// The frames of a capture that match a display filter and were delivered: these fields of each, as tshark
/// prints them. Checksums are checked.
///
/// A frame that is dropped is captured, too, as its sender gave it: neither cut up nor with its checksum. Its
/// comment says so.
///
/// # Errors
/// tshark is missing, or does not understand its arguments or the file.
pub fn delivered(file: &Path, filter: &str, fields: &[&str]) -> Result<Vec<Vec<String>>> {
    let filter = format!("({filter}) && !(frame.comment contains \"dropped: \")");
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file).args(["-Y", &filter, "-T", "fields"]);
    command.args(["-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"]);
    command.args(fields.iter().flat_map(|field| ["-e", field]));
    let text = output(&mut command)?;
    Ok(text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect())
}
