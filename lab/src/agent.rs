//! Runs commands in a guest through its second serial port.
//!
//! The guest's end is a shell without echo or prompt on a raw terminal (`image.rs`). A command is sent as one
//! shell line that runs it in a shell of its own, with no input, and then prints a *mark*:
//!
//! ```text
//! <RS> nonce kind number status <RS>
//! ```
//!
//! RS is the ASCII record separator and the nonce is fresh for every guest, so no output is mistaken for a
//! mark. Kinds: `ready` at boot, `done` after a command, `started` (its status is the process id) and `job`
//! when a background job starts and ends. A job may end while another command prints; its mark is cut out of
//! that output. Numbers let us throw away what a command that ran out of time prints later.

use crate::error::{Context, Error, Result};
use crate::process::readable;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const SEPARATOR: u8 = 0x1e;
/// Longer than any mark; what follows a separator and is longer is output.
const LONGEST_MARK: usize = 96;
/// Enough for a command that only prints a file.
const SHORT: Duration = Duration::from_secs(10);

/// What a command in a guest did.
#[derive(Clone, Debug)]
pub struct Output {
    /// Its exit status; 128 and the signal's number if a signal ended it.
    pub status: i32,
    /// What it printed, standard output and standard error together.
    pub text: String,
}

impl Output {
    /// True if the status is 0.
    pub fn success(&self) -> bool {
        self.status == 0
    }

    /// What `command` printed, whose output this is. It must have succeeded.
    pub(crate) fn of(self, command: &str) -> Result<String> {
        match self.success() {
            true => Ok(self.text),
            false => {
                Err(Error::new(format!("`{command}` ended with status {}:\n{}", self.status, self.text)))
            }
        }
    }
}

/// A command that runs in the background of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    number: u64,
    /// Process, session and process group of the command.
    pid: i32,
}

/// Our end of the serial port.
pub(crate) struct Agent {
    port: UnixStream,
    decoder: Decoder,
    next: u64,
    ended: BTreeMap<u64, i32>,
    /// Where the guest keeps the output of jobs.
    folder: String,
}

impl Agent {
    /// Speaks on `port` with the guest that was given `nonce`.
    pub(crate) fn new(port: UnixStream, nonce: &str) -> Self {
        Self {
            port,
            decoder: Decoder::new(nonce),
            next: 1,
            ended: BTreeMap::new(),
            folder: "/run".to_owned(),
        }
    }

    /// Each goes on through the other's port: the guest has been migrated. What it printed here until then,
    /// such as the end of a job, is kept.
    pub(crate) fn swap_ports(&mut self, other: &mut Self) -> Result<()> {
        let reading = || "reading what the guest printed before it moved".to_owned();
        while readable(&self.port, Instant::now()).context(reading)? {
            let mut chunk = [0; 4096];
            match self.port.read(&mut chunk).context(reading)? {
                0 => break,
                n => self.decoder.push(&chunk[..n]),
            }
        }
        std::mem::swap(&mut self.port, &mut other.port);
        Ok(())
    }

    /// Waits until the guest listens.
    pub(crate) fn wait_ready(&mut self, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            if let Item::Mark(mark) = self.item(deadline)? {
                if mark.kind == "ready" {
                    return Ok(());
                }
            }
        }
    }

    /// Runs `command` in the guest and waits for its end.
    pub(crate) fn run(&mut self, command: &str, limit: Duration) -> Result<Output> {
        let number = self.number();
        let mark = self.decoder.printf("done", number, "$?");
        self.send(&format!("sh -c {} </dev/null 2>&1; {mark}\n", quote(command)))?;
        let deadline = Instant::now() + limit;
        let mut text = Vec::new();
        loop {
            match self.item(deadline) {
                Ok(Item::Text(more)) => text.extend(more),
                Ok(Item::Mark(mark)) if mark.kind == "done" && mark.number == number => {
                    let text = String::from_utf8_lossy(&text).into_owned();
                    return Ok(Output { status: mark.status, text });
                }
                // The end of an earlier command that ran out of time: what came before was its output.
                Ok(Item::Mark(mark)) if mark.kind == "done" => text.clear(),
                Ok(Item::Mark(_)) => {}
                Err(e) => {
                    let so_far = String::from_utf8_lossy(&text);
                    return Err(Error::new(format!("`{command}`: {e}; it printed so far:\n{so_far}")));
                }
            }
        }
    }

    /// Starts `command` in a session of its own, its output in a file.
    pub(crate) fn start(&mut self, command: &str, limit: Duration) -> Result<Job> {
        let number = self.number();
        let (file, command) = (self.file(number), quote(command));
        let (started, ended) =
            (self.decoder.printf("started", number, "$!"), self.decoder.printf("job", number, "$?"));
        self.send(&format!(
            "( setsid sh -c {command} </dev/null >{file} 2>&1 & {started}; wait $!; {ended} ) &\n"
        ))?;
        let deadline = Instant::now() + limit;
        loop {
            match self.item(deadline).context(|| format!("starting {command}"))? {
                Item::Mark(mark) if mark.kind == "started" && mark.number == number => {
                    return Ok(Job { number, pid: mark.status });
                }
                _ => {}
            }
        }
    }

    /// Waits for the end of a job and fetches its output.
    pub(crate) fn wait(&mut self, job: Job, limit: Duration) -> Result<Output> {
        let deadline = Instant::now() + limit;
        let print = format!("cat {}", self.file(job.number));
        while !self.ended.contains_key(&job.number) {
            if let Err(e) = self.item(deadline) {
                let so_far = self.run(&print, SHORT).map(|o| o.text).unwrap_or_default();
                return Err(Error::new(format!("background job: {e}; it printed so far:\n{so_far}")));
            }
        }
        let status = self.ended.get(&job.number).copied().unwrap_or_default();
        let text = self.run(&print, limit.max(SHORT))?.text;
        Ok(Output { status, text })
    }

    /// Sends SIGTERM to every process of a job.
    pub(crate) fn stop(&mut self, job: Job, limit: Duration) -> Result<()> {
        // Only a moment after its start the job may not lead its group yet.
        self.run(&format!("kill -TERM -{0} || kill -TERM {0}", job.pid), limit).map(drop)
    }

    fn file(&self, number: u64) -> String {
        format!("{}/job.{number}", self.folder)
    }

    /// Sends a shell line without waiting for anything.
    pub(crate) fn send(&mut self, line: &str) -> Result<()> {
        self.port.write_all(line.as_bytes()).context(|| "writing to the guest's serial port".to_owned())
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// The next output or mark; the ends of jobs are noted on the way.
    fn item(&mut self, deadline: Instant) -> Result<Item> {
        loop {
            if let Some(item) = self.decoder.next() {
                if let Item::Mark(mark) = &item {
                    if mark.kind == "job" {
                        self.ended.insert(mark.number, mark.status);
                    }
                }
                return Ok(item);
            }
            let waiting = || "reading the guest's serial port".to_owned();
            if !readable(&self.port, deadline).context(waiting)? {
                return Err(Error::new("no answer within the time limit"));
            }
            let mut chunk = [0; 4096];
            match self.port.read(&mut chunk).context(waiting)? {
                0 => return Err(Error::new("the VM is gone (its serial port was closed)")),
                n => self.decoder.push(&chunk[..n]),
            }
        }
    }
}

/// Quotes for a POSIX shell.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[derive(Debug, PartialEq, Eq)]
struct Mark {
    kind: String,
    number: u64,
    status: i32,
}

#[derive(Debug, PartialEq, Eq)]
enum Item {
    Text(Vec<u8>),
    Mark(Mark),
}

/// Cuts the stream into output and marks.
struct Decoder {
    nonce: String,
    head: Vec<u8>,
    buffer: Vec<u8>,
}

impl Decoder {
    fn new(nonce: &str) -> Self {
        let mut head = vec![SEPARATOR];
        head.extend_from_slice(nonce.as_bytes());
        head.push(b' ');
        Self { nonce: nonce.to_owned(), head, buffer: Vec::new() }
    }

    /// The shell command that prints a mark with the value of a variable such as `$?` as its status.
    fn printf(&self, kind: &str, number: u64, variable: &str) -> String {
        format!(r"printf '\036{} {kind} {number} %d\036' {variable}", self.nonce)
    }

    fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    fn next(&mut self) -> Option<Item> {
        let start = self.buffer.iter().position(|b| *b == SEPARATOR);
        let text = match start {
            Some(0) => match self.mark() {
                Found::Mark(mark) => return Some(Item::Mark(mark)),
                Found::Incomplete => return None,
                Found::Other => 1,
            },
            Some(at) => at,
            None => self.buffer.len(),
        };
        (text > 0).then(|| Item::Text(self.buffer.drain(..text).collect()))
    }

    /// Looks for a mark at the start of the buffer, and takes it out.
    fn mark(&mut self) -> Found {
        let common = self.head.len().min(self.buffer.len());
        if self.buffer[..common] != self.head[..common] {
            return Found::Other;
        }
        let body = &self.buffer[common..];
        let Some(end) = body.iter().position(|b| *b == SEPARATOR) else {
            return if self.buffer.len() > LONGEST_MARK { Found::Other } else { Found::Incomplete };
        };
        let words = String::from_utf8_lossy(&body[..end]).into_owned();
        let mut words = words.split(' ');
        let mark = (|| {
            let kind = words.next()?.to_owned();
            Some(Mark { kind, number: words.next()?.parse().ok()?, status: words.next()?.parse().ok()? })
        })();
        match mark {
            Some(mark) => {
                self.buffer.drain(..=common + end);
                Found::Mark(mark)
            }
            None => Found::Other,
        }
    }
}

enum Found {
    Mark(Mark),
    Incomplete,
    Other,
}

#[cfg(test)]
#[path = "agent_tests.rs"]
mod tests;
