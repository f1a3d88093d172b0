//! What the control plane may take: processors, connections, buffers, time; on the real daemon.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code, reason = "each test program uses a part of it")]
mod rig;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rig::{Place, LIMIT};
use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};
use sidecore_abi::ring::{Answer, Ask, Request, MESSAGE};

/// Name and processors of each thread of process `pid`.
fn threads(pid: u32) -> Vec<(String, String)> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let text = |path: &Path| std::fs::read_to_string(path.join("status")).ok();
    let field = |text: &str, key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap_or_default().trim().to_owned()
    };
    let task = |text: String| (field(&text, "Name:"), field(&text, "Cpus_allowed_list:"));
    tasks.filter_map(|entry| text(&entry.path())).map(task).collect()
}

fn usable() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

fn numbers(list: &str) -> Vec<usize> {
    let ends = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse::<usize>().unwrap()..=last.parse::<usize>().unwrap()
    };
    list.split(',').flat_map(ends).collect()
}

#[test]
fn no_other_thread_and_no_process_of_ours_runs_on_an_io_cores_processor() {
    let Some((core, _)) =
        usable().split_last().filter(|(_, others)| !others.is_empty()).map(|(c, o)| (*c, o.len()))
    else {
        eprintln!("skipped: one processor");
        return;
    };
    let place = Place::new();
    let cores = core.to_string();
    let e1000 = format!("nic=e1000:{}", place.at("nic.sock"));
    let vhost = format!("vm=vhost-user:{}", place.at("vm.sock"));
    let daemon = place.daemon(&["--cores", &cores, "--port", "a=ring:a", "--port", &e1000, "--port", &vhost]);
    // A client of the e1000 has a holder, and a capture a thread.
    let nic = UnixStream::connect(place.at("nic.sock")).unwrap();
    let mut capture = UnixStream::connect(place.path("control.sock")).unwrap();
    capture.write_all(b"GET /v1/capture/a HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    capture.read_exact(&mut [0; 12]).unwrap();
    daemon.await_log("a VMM has connected");
    let threads = threads(daemon.pid());
    for (name, cpus) in &threads {
        let is_core = name.starts_with("io-core-");
        assert_eq!(numbers(cpus).contains(&core), is_core, "{name} may run on {cpus}: {threads:?}");
        assert!(!is_core || *cpus == cores, "{name} may run on {cpus}");
    }
    for wanted in ["io-core-0", "vfu-nic", "vu-vm", "ring-a", "netmap", "carriers", "capture"] {
        assert!(threads.iter().any(|(name, _)| name == wanted), "no {wanted}: {threads:?}");
    }
    for process in daemon.holders().into_iter().chain([daemon.broker()]) {
        let pid = u32::try_from(process.as_raw_nonzero().get()).unwrap();
        for (name, cpus) in self::threads(pid) {
            assert!(!numbers(&cpus).contains(&core), "{name} of another process may run on {cpus}");
        }
    }
    assert!(!place.show("cores")["cores"][0]["shared"].as_bool().unwrap());
    drop((nic, capture));
}

#[test]
fn with_one_processor_all_share_it_and_the_daemon_says_so() {
    let only = usable()[0];
    let place = Place::new();
    let (daemon, before) = {
        let before = sched_getaffinity(None).unwrap();
        let mut set = CpuSet::new();
        set.set(only);
        // The daemon begins where this thread may run.
        sched_setaffinity(None, &set).unwrap();
        (place.daemon(&["--port", "a=ring:a"]), before)
    };
    sched_setaffinity(None, &before).unwrap();
    daemon.await_log("I/O cores share their processors with everything else");
    assert!(threads(daemon.pid()).iter().all(|(_, cpus)| *cpus == only.to_string()));
    assert!(place.show("cores")["cores"][0]["shared"].as_bool().unwrap());
    assert!(place.ok(&["show", "cores"]).contains("shared"));
}

/// How many extra buffers a client has that asks for `wants`.
fn extra_buffers(socket: &str, wants: u32) -> u32 {
    let mut socket = UnixStream::connect(socket).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let request = Request { extra_bufs: wants, ..Request::new(Ask::Attach, 0) };
    socket.write_all(&request.to_bytes()).unwrap();
    let mut answer = [0; MESSAGE];
    socket.read_exact(&mut answer).unwrap();
    let answer = Answer::from_bytes(&answer).unwrap();
    assert_eq!(answer.errno, 0);
    answer.info.extra_bufs
}

#[test]
fn a_client_has_no_more_extra_buffers_than_the_option_says() {
    let place = Place::new();
    let _daemon = place.daemon(&["--port", "a=ring:a,extra-bufs=8", "--port", "b=ring:b"]);
    assert_eq!(extra_buffers(&place.at("ring/a"), 163_840), 8);
    // Without the option: as many as it asks for, up to a bound.
    assert_eq!(extra_buffers(&place.at("ring/b"), 163_840), 4096);
    assert_eq!(extra_buffers(&place.at("ring/b"), 20), 20);
}
