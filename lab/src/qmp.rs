//! A small client of QEMU's machine protocol: commands with their answers, and events.
//!
//! The protocol (`docs/interop/qmp-spec.rst` of QEMU) is one JSON object a line. Events may come at any time;
//! those that arrive while we wait for an answer are kept for [`Qmp::wait_event`].

use crate::error::{Context, Error, Result};
use crate::process::readable;
use serde_json::{json, Value};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A conversation with one VMM.
pub(crate) struct Qmp {
    socket: UnixStream,
    buffer: Vec<u8>,
    events: VecDeque<Value>,
    next: u64,
}

impl Qmp {
    /// Reads the greeting and leaves negotiation mode.
    pub(crate) fn new(socket: UnixStream, limit: Duration) -> Result<Self> {
        let mut qmp = Self { socket, buffer: Vec::new(), events: VecDeque::new(), next: 0 };
        let deadline = Instant::now() + limit;
        while qmp.message(deadline)?.get("QMP").is_none() {}
        qmp.execute("qmp_capabilities", json!({}), limit)?;
        Ok(qmp)
    }

    /// Runs one command and returns its `return`.
    pub(crate) fn execute(&mut self, command: &str, arguments: Value, limit: Duration) -> Result<Value> {
        self.send(json!({"execute": command, "arguments": arguments}), limit)
    }

    /// Sends a whole command object and returns its `return`.
    pub(crate) fn send(&mut self, mut command: Value, limit: Duration) -> Result<Value> {
        self.next += 1;
        command["id"] = json!(self.next);
        let what = || format!("QMP {command}");
        self.socket.write_all(format!("{command}\n").as_bytes()).context(what)?;
        let deadline = Instant::now() + limit;
        loop {
            let mut answer = self.message(deadline).context(what)?;
            if answer["id"] == command["id"] {
                return match answer.get_mut("return") {
                    Some(value) => Ok(value.take()),
                    None => Err(Error::new(format!("{}: {}", what(), answer["error"]["desc"]))),
                };
            }
            self.keep_event(answer);
        }
    }

    /// Waits for the next event that `wanted` accepts; the ones before it are forgotten.
    pub(crate) fn wait_event(
        &mut self,
        mut wanted: impl FnMut(&Value) -> bool,
        limit: Duration,
    ) -> Result<Value> {
        let deadline = Instant::now() + limit;
        loop {
            while let Some(event) = self.events.pop_front() {
                if wanted(&event) {
                    return Ok(event);
                }
            }
            let message = self.message(deadline).context(|| "waiting for a QMP event".to_owned())?;
            self.keep_event(message);
        }
    }

    fn keep_event(&mut self, message: Value) {
        if message.get("event").is_some() {
            self.events.push_back(message);
        }
    }

    fn message(&mut self, deadline: Instant) -> Result<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return serde_json::from_slice(&line).context(|| "QEMU's answer is not JSON".to_owned());
            }
            if !readable(&self.socket, deadline).context(|| "reading from QEMU".to_owned())? {
                return Err(Error::new("no answer from QEMU within the time limit"));
            }
            let mut chunk = [0; 4096];
            match self.socket.read(&mut chunk).context(|| "reading from QEMU".to_owned())? {
                0 => return Err(Error::new("QEMU has ended")),
                n => self.buffer.extend_from_slice(&chunk[..n]),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn peer(script: &'static [(&str, &str)]) -> (UnixStream, std::thread::JoinHandle<()>) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || {
            theirs.write_all(b"{\"QMP\": {}}\n").unwrap();
            let mut reader = std::io::BufReader::new(theirs.try_clone().unwrap());
            for (expected, answer) in script {
                let mut line = String::new();
                std::io::BufRead::read_line(&mut reader, &mut line).unwrap();
                assert!(line.contains(expected), "{line}");
                theirs.write_all(answer.as_bytes()).unwrap();
            }
        });
        (ours, thread)
    }

    #[test]
    fn answers_and_events_are_told_apart() {
        let (socket, thread) = peer(&[
            ("qmp_capabilities", "{\"return\": {}, \"id\": 1}\n"),
            ("query-status", "{\"event\": \"A\"}\n{\"event\": \"B\"}\n{\"return\": {\"status\": \"running\"}, \"id\": 2}\n"),
            ("nonsense", "{\"error\": {\"class\": \"X\", \"desc\": \"no such command\"}, \"id\": 3}\n"),
        ]);
        let mut qmp = Qmp::new(socket, LIMIT).unwrap();
        assert_eq!(qmp.execute("query-status", json!({}), LIMIT).unwrap()["status"], "running");
        assert!(qmp
            .execute("nonsense", json!({}), LIMIT)
            .unwrap_err()
            .to_string()
            .contains("no such command"));
        assert_eq!(qmp.wait_event(|e| e["event"] == "B", LIMIT).unwrap()["event"], "B");
        thread.join().unwrap();
        assert!(qmp.wait_event(|_| true, LIMIT).unwrap_err().to_string().contains("QEMU has ended"));
    }
}
