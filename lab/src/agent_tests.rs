//! The agent against a real shell on a socket pair: the guest's end without the guest.

use super::*;
use crate::process::Process;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

const LIMIT: Duration = Duration::from_secs(20);

fn text(bytes: &[u8]) -> Item {
    Item::Text(bytes.to_vec())
}

fn mark(kind: &str, number: u64, status: i32) -> Item {
    Item::Mark(Mark { kind: kind.to_owned(), number, status })
}

fn all(decoder: &mut Decoder) -> Vec<Item> {
    std::iter::from_fn(|| decoder.next()).collect()
}

#[test]
fn marks_are_cut_out_of_output_however_the_bytes_arrive() {
    let stream = b"one\x1eN job 4 0\x1etwo\x1eN done 5 137\x1e";
    let mut decoder = Decoder::new("N");
    decoder.push(stream);
    assert_eq!(all(&mut decoder), [text(b"one"), mark("job", 4, 0), text(b"two"), mark("done", 5, 137)]);

    let mut decoder = Decoder::new("N");
    let mut items = Vec::new();
    for byte in stream {
        decoder.push(&[*byte]);
        items.extend(all(&mut decoder));
    }
    let marks: Vec<Item> = items.into_iter().filter(|i| matches!(i, Item::Mark(_))).collect();
    assert_eq!(marks, [mark("job", 4, 0), mark("done", 5, 137)]);
}

#[test]
fn output_that_only_resembles_a_mark_is_output() {
    for stream in [&b"\x1eM done 1 0\x1e"[..], b"\x1eN done x 0\x1e", b"\x1e\x1e\x1e", b"\x1eN none\x1e"] {
        let mut decoder = Decoder::new("N");
        decoder.push(stream);
        // A last separator may be the start of a mark; more output settles it.
        decoder.push(b".");
        let items = all(&mut decoder);
        let bytes: Vec<u8> =
            items.iter().flat_map(|i| if let Item::Text(t) = i { t.clone() } else { vec![] }).collect();
        assert_eq!(bytes, [stream, b"."].concat());
    }
    let mut decoder = Decoder::new("N");
    decoder.push(b"\x1eN ");
    decoder.push(&[b'x'; LONGEST_MARK]);
    assert!(!all(&mut decoder).is_empty(), "an endless mark must not hold output back for ever");
}

fn shell() -> (Process, Agent) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let theirs = OwnedFd::from(theirs);
    let mut command = Command::new("sh");
    command.stdin(Stdio::from(theirs.try_clone().unwrap())).stdout(Stdio::from(theirs)).stderr(Stdio::null());
    (Process::spawn(command, Vec::new()).unwrap(), Agent::new(ours, "nonce"))
}

#[test]
fn a_command_returns_its_output_and_status() {
    let (_shell, mut agent) = shell();
    let done = agent.run("echo 'it''s'; echo two >&2; exit 3", LIMIT).unwrap();
    assert_eq!((done.status, done.text.as_str()), (3, "its\ntwo\n"));
    let done = agent.run("printf 'no newline'", LIMIT).unwrap();
    assert_eq!((done.status, done.text.as_str()), (0, "no newline"));
    assert_ne!(agent.run("syntax ( error", LIMIT).unwrap().status, 0, "and the shell survives it");
    assert_eq!(agent.run("cat; echo end", LIMIT).unwrap().text, "end\n", "a command has no input");
    assert_eq!(agent.run("kill -9 $$", LIMIT).unwrap().status, 137);
}

#[test]
fn a_command_that_runs_out_of_time_does_not_spoil_the_next() {
    let (_shell, mut agent) = shell();
    // It cannot end before it is told to, so the limit always passes first.
    let dir = crate::RunDir::new("agent").unwrap();
    let fifo = dir.join("fifo");
    let late =
        agent.run(&format!("echo early; mkfifo {fifo}; cat {fifo}; echo late"), Duration::from_millis(300));
    assert!(late.unwrap_err().to_string().contains("time limit"));
    std::fs::OpenOptions::new().write(true).open(&fifo).map(drop).unwrap();
    assert_eq!(agent.run("echo next", LIMIT).unwrap().text, "next\n");
}

#[test]
fn jobs_end_while_others_run() {
    let dir = crate::RunDir::new("jobs").unwrap();
    let (_shell, mut agent) = shell();
    agent.folder = dir.path().display().to_string();
    let fifo = dir.join("fifo");
    assert!(agent.run(&format!("mkfifo {fifo}"), LIMIT).unwrap().success());
    let waiting = agent.start(&format!("echo begin; cat {fifo}; exit 7"), LIMIT).unwrap();
    let endless = agent.start("sleep 1000 & wait", LIMIT).unwrap();
    assert!(agent.wait(waiting, Duration::from_millis(200)).unwrap_err().to_string().contains("begin"));
    assert_eq!(agent.run(&format!("echo go >{fifo}; echo here"), LIMIT).unwrap().text, "here\n");
    let done = agent.wait(waiting, LIMIT).unwrap();
    assert_eq!((done.status, done.text.as_str()), (7, "begin\ngo\n"));
    agent.stop(endless, LIMIT).unwrap();
    assert_eq!(agent.wait(endless, LIMIT).unwrap().status, 143);
}
