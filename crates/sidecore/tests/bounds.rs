//! What the control plane may take: processors, connections, buffers, time; on the real daemon.

use crate::rig;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use crate::rig::{Testbed, LIMIT};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{getrlimit, prlimit, Resource, Rlimit, Signal};
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

/// The daemon's threads, as soon as there are some with the names `wanted`.
fn began(pid: u32, wanted: &[&str]) -> Vec<(String, String)> {
    let begun = Instant::now();
    loop {
        let threads = threads(pid);
        let missing = wanted.iter().find(|wanted| !threads.iter().any(|(name, _)| name == *wanted));
        let Some(missing) = missing else { return threads };
        assert!(begun.elapsed() < LIMIT, "no {missing}: {threads:?}");
        std::thread::yield_now();
    }
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
    let [_, .., core] = usable()[..] else { panic!("this test needs two processors") };
    let bed = Testbed::new();
    let cores = core.to_string();
    let e1000 = format!("nic=e1000:{}", bed.at("nic.sock"));
    let vhost = format!("vm=vhost-user:{}", bed.at("vm.sock"));
    let daemon = bed.daemon(&["--cores", &cores, "--port", "a=ring:a", "--port", &e1000, "--port", &vhost]);
    // A client of the e1000 has a holder, and a capture a thread.
    let mut nic = UnixStream::connect(bed.at("nic.sock")).unwrap();
    // VERSION 0.1: id, command, size, flags, error; major, minor.
    let version: [u8; 20] = [1, 0, 1, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    nic.write_all(&version).unwrap();
    nic.read_exact(&mut [0; 16]).unwrap();
    let mut capture = UnixStream::connect(bed.path("control.sock")).unwrap();
    capture.write_all(b"GET /v1/capture/a HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    capture.read_exact(&mut [0; 12]).unwrap();
    daemon.await_log("a VMM has connected");
    // A thread has its maker's name until it has begun.
    let wanted = ["io-core-0", "vfu-nic", "vu-vm", "ring-a", "netmap", "carriers", "capture"];
    let threads = began(daemon.pid(), &wanted);
    for (name, cpus) in &threads {
        let is_core = name.starts_with("io-core-");
        assert_eq!(numbers(cpus).contains(&core), is_core, "{name} may run on {cpus}: {threads:?}");
        assert!(!is_core || *cpus == cores, "{name} may run on {cpus}");
    }
    assert_eq!(daemon.holders().len(), 1);
    for process in daemon.holders().into_iter().chain([daemon.broker()]) {
        let pid = u32::try_from(process.as_raw_nonzero().get()).unwrap();
        for (name, cpus) in self::threads(pid) {
            assert!(!numbers(&cpus).contains(&core), "{name} of another process may run on {cpus}");
        }
    }
    assert!(!bed.show("cores")["cores"][0]["shared"].as_bool().unwrap());
    drop((nic, capture));
}

#[test]
fn with_one_processor_all_share_it_and_the_daemon_says_so() {
    let only = usable()[0];
    let bed = Testbed::new();
    let (daemon, before) = {
        let before = sched_getaffinity(None).unwrap();
        let mut set = CpuSet::new();
        set.set(only);
        // The daemon begins where this thread may run.
        sched_setaffinity(None, &set).unwrap();
        (bed.daemon(&["--port", "a=ring:a"]), before)
    };
    sched_setaffinity(None, &before).unwrap();
    daemon.await_log("I/O cores share their processors with everything else");
    assert!(threads(daemon.pid()).iter().all(|(_, cpus)| *cpus == only.to_string()));
    assert!(bed.show("cores")["cores"][0]["shared"].as_bool().unwrap());
    assert!(bed.ok(&["show", "cores"]).contains("shared"));
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
    let bed = Testbed::new();
    let _daemon = bed.daemon(&["--port", "a=ring:a,extra-bufs=8", "--port", "b=ring:b"]);
    assert_eq!(extra_buffers(&bed.at("ring/a"), 163_840), 8);
    // Without the option: as many as it asks for, up to a bound.
    assert_eq!(extra_buffers(&bed.at("ring/b"), 163_840), 4096);
    assert_eq!(extra_buffers(&bed.at("ring/b"), 20), 20);
}

/// A connection to the control socket that has said so much.
fn say(bed: &Testbed, text: &[u8]) -> UnixStream {
    let mut stream = UnixStream::connect(bed.path("control.sock")).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    // It may have been refused already.
    let _ = stream.write_all(text);
    stream
}

/// A capture at port `a`, and the status of its answer.
fn capture(bed: &Testbed) -> (UnixStream, String) {
    let mut stream = say(bed, b"GET /v1/capture/a HTTP/1.1\r\nhost: x\r\n\r\n");
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    (stream, String::from_utf8_lossy(&head[9..]).into_owned())
}

/// One number of `/metrics`.
fn metric(bed: &Testbed, name: &str) -> u64 {
    let (status, text) = bed.http("GET", "/metrics", "");
    assert_eq!(status, 200);
    let name = format!("sidecore_{name} ");
    text.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
}

/// How often the control socket refused something for `reason`.
fn refused(bed: &Testbed, reason: &str) -> u64 {
    metric(bed, &format!("control_refused_total{{reason=\"{reason}\"}}"))
}

/// Waits, without reading, until the daemon has hung up.
fn await_hangup(stream: &UnixStream, seconds: i64) {
    let limit = Timespec { tv_sec: seconds, tv_nsec: 0 };
    let events = PollFlags::empty();
    assert_eq!(poll(&mut [PollFd::new(stream, events)], Some(&limit)).unwrap(), 1, "it does not hang up");
}

#[test]
fn slow_clients_of_the_control_socket_neither_stay_nor_keep_others_out() {
    let bed = Testbed::new();
    let daemon = bed.daemon(&["--port", "a=ring:a"]);
    let files = || std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count();
    let before = files();
    let slow: Vec<_> = (0..400).map(|_| say(&bed, b"GET /v1/po")).collect();
    assert_eq!(bed.ports(), ["a"]);
    assert!(files() <= before + 64 + 8, "{} descriptors, {before} before", files());
    daemon.await_log("it owed a request longest");
    assert!(refused(&bed, "displaced") >= 300);
    // Those that were not displaced have no more than their time.
    slow.iter().for_each(|stream| await_hangup(stream, 20));
    assert!(refused(&bed, "late") > 0);
    // The body of a request does not hold a slot, either.
    let body = say(&bed, b"PUT /v1/config HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{");
    await_hangup(&body, 20);
    assert_eq!(bed.ports(), ["a"]);
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn captures_have_a_bound_and_nothing_else_suffers_from_it() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&["--port", "a=ring:a"]);
    let mut captures: Vec<_> = (0..32).map(|_| capture(&bed)).collect();
    assert!(captures.iter().all(|(_, status)| status == "200"));
    let (status, text) = bed.http("GET", "/v1/capture/a", "");
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, answer["version"].as_u64()), (503, Some(2)));
    assert!(answer["error"].as_str().unwrap().contains("there are 32 captures"), "{text}");
    assert!(bed.fails(&["capture", "a", "-w", "-"]).contains("there are 32 captures"));
    assert_eq!(refused(&bed, "captures"), 2);
    // Half requests take no slot from a capture.
    let slow: Vec<_> = (0..100).map(|_| say(&bed, b"GET /v1/po")).collect();
    assert_eq!(bed.port("a")["state"]["captures"].as_array().unwrap().len(), 32);
    drop(slow);
    // The slot of one that ends is free when its thread has ended.
    drop(captures.pop());
    let begun = Instant::now();
    while capture(&bed).1 != "200" {
        assert!(begun.elapsed() < LIMIT, "the slot does not become free");
    }
}

#[test]
fn a_body_that_is_too_large_is_refused_in_json() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&[]);
    let (status, text) = bed.http("PUT", "/v1/config", &" ".repeat((1 << 20) + 1));
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, answer["version"].as_u64()), (413, Some(2)));
    assert!(answer["error"].as_str().unwrap().contains("1048576 bytes"), "{text}");
    assert_eq!(refused(&bed, "body"), 1);
    // One byte less is read: it makes no sense.
    assert_eq!(bed.http("PUT", "/v1/config", &" ".repeat(1 << 20)).0, 400);
}

#[test]
fn a_client_that_does_not_read_its_answers_is_hung_up_on() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&[]);
    let mut stream = say(&bed, b"");
    stream.set_nonblocking(true).unwrap();
    let request = b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n";
    // Until the daemon takes no more, because its answers are not read.
    let mut asked = 0;
    let limit = Timespec { tv_sec: 2, tv_nsec: 0 };
    while poll(&mut [PollFd::new(&stream, PollFlags::OUT)], Some(&limit)).unwrap() == 1 && asked < 1 << 20 {
        asked += stream.write(request).unwrap();
    }
    await_hangup(&stream, 60);
    assert_eq!(refused(&bed, "unread"), 1);
}

#[test]
fn another_user_has_a_few_places_and_root_gets_in() {
    rig::needs_root();
    let bed = Testbed::new();
    let config = bed.write("config.toml", "[daemon]\nsocket-mode = \"0666\"\n");
    let daemon = bed.daemon(&[config.to_str().unwrap(), "--port", "a=ring:a"]);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            // Only this thread's user changes.
            let nobody = rustix::process::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            let captures: Vec<_> = (0..8).map(|_| capture(&bed)).collect();
            assert!(captures.iter().all(|(_, status)| status == "200"));
            let mut ninth = say(&bed, b"");
            let mut answer = String::new();
            ninth.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("its user has 8"), "{answer}");
            captures
        });
        let captures = other.join().unwrap();
        assert_eq!(bed.ports(), ["a"]);
        assert_eq!(refused(&bed, "user"), 1);
        daemon.await_log("user 65534");
        drop(captures);
    });
}

/// Has this process own more descriptors than most users' processes do at first.
fn needs_many_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: Some(4096), maximum: limit.maximum };
    rustix::process::setrlimit(Resource::Nofile, wanted)
        .expect("it needs 4096 descriptors: `ulimit -Hn` says how many there may be");
}

/// Waits until `what` of `show daemon` is so.
fn await_daemon(bed: &Testbed, what: impl Fn(&serde_json::Value) -> bool) {
    let begun = Instant::now();
    loop {
        let about = bed.show("daemon");
        if what(&about["clients"]) {
            return;
        }
        assert!(begun.elapsed() < LIMIT, "{}", about["clients"]);
    }
}

/// The socket of netmap programs has 1,024 slots; a program that sends nothing gives its slot to the next
/// one, and has no more than its time.
#[test]
fn netmap_programs_that_say_nothing_neither_stay_nor_keep_others_out() {
    needs_many_descriptors();
    let bed = Testbed::new();
    let _daemon = bed.daemon(&["--port", "a=ring:a"]);
    let path = bed.at("ring/.netmap");
    let silent: Vec<_> = (0..1100).map(|_| UnixStream::connect(&path).unwrap()).collect();
    // On a slow machine some are late before the last has come.
    let of = |clients: &serde_json::Value, reason: &str| {
        clients["netmap"]["refused"][reason].as_u64().unwrap_or(0)
    };
    await_daemon(&bed, |clients| {
        let open = clients["netmap"]["open"].as_u64().unwrap();
        assert!(open <= 1024, "{clients}");
        open + of(clients, "displaced") + of(clients, "late") == 1100
    });
    silent.iter().for_each(|stream| await_hangup(stream, 30));
    await_daemon(&bed, |clients| clients["netmap"]["open"] == 0);
    let reason = |name: &str| metric(&bed, &format!("netmap_refused_total{{reason=\"{name}\"}}"));
    let (displaced, late) = (reason("displaced"), reason("late"));
    assert!(displaced + late == 1100 && late > 0, "{displaced} displaced, {late} late");
    assert!(bed.ok(&["show", "daemon"]).contains(&format!("late {late}")));
}

/// A connection to the socket of netmap programs that was answered: it may be silent from then on.
fn lease(path: &str) -> UnixStream {
    use sidecore_abi::vale;
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(&vale::Ask::new(vale::Verb::List, "").to_bytes()).unwrap();
    stream.read_exact(&mut [0; vale::REPLY]).unwrap();
    stream
}

/// Leases keep ports; a user other than root has 256 of them, and then no more.
#[test]
fn a_user_has_its_share_of_netmaps_places() {
    rig::needs_root();
    needs_many_descriptors();
    let bed = Testbed::new();
    let config = bed.write("config.toml", "[daemon]\nvale-mode = \"0666\"\n");
    let _daemon = bed.daemon(&[config.to_str().unwrap(), "--port", "a=ring:a"]);
    let path = bed.at("ring/.netmap");
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            // Only this thread's user changes.
            let nobody = rustix::process::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            let leases: Vec<_> = (0..256).map(|_| lease(&path)).collect();
            let one_more = UnixStream::connect(&path).unwrap();
            await_hangup(&one_more, 10);
            leases
        });
        let leases = other.join().unwrap();
        await_daemon(&bed, |clients| clients["netmap"]["refused"]["user"] == 1);
        // Root gets in.
        let mine = UnixStream::connect(&path).unwrap();
        await_daemon(&bed, |clients| clients["netmap"]["open"] == 257);
        drop((leases, mine));
    });
    await_daemon(&bed, |clients| clients["netmap"]["open"] == 0);
}

/// Without a descriptor for a client the daemon does not spin, and says so once: it turns the client away,
/// whichever socket that called at.
#[test]
fn clients_are_turned_away_when_there_is_no_descriptor_left() {
    let bed = Testbed::new();
    let (vm, nic) = (bed.at("vm.sock"), bed.at("nic.sock"));
    let (vhost, e1000) = (format!("vm=vhost-user:{vm}"), format!("nic=e1000:{nic}"));
    let daemon = bed.daemon(&["--sandbox", "off", "--port", "a=ring:a", "--port", &vhost, "--port", &e1000]);
    let pid = rustix::process::Pid::from_raw(i32::try_from(daemon.pid()).unwrap());
    let before = getrlimit(Resource::Nofile);
    // The reserve is the first eventfd of all, and what lies before it stays: behind it there is nothing to
    // be had.
    let file = |number: u64| std::fs::read_link(format!("/proc/{}/fd/{number}", daemon.pid()));
    let reserve = (0..).find(|&number| file(number).unwrap().as_os_str() == "anon_inode:[eventfd]").unwrap();
    let lowered = Rlimit { current: Some(reserve + 1), maximum: before.maximum };
    prlimit(pid, Resource::Nofile, lowered).unwrap();
    for path in [bed.at("ring/.netmap"), vm, nic, bed.at("ring/a")] {
        let turned_away = UnixStream::connect(&path).unwrap();
        await_hangup(&turned_away, 10);
    }
    daemon.await_log("there is no descriptor left");
    prlimit(pid, Resource::Nofile, before).unwrap();
    await_daemon(&bed, |clients| clients["turned_away"].as_u64() >= Some(4));
    assert!(metric(&bed, "clients_turned_away_total{}") >= 4);
    for port in ["vm", "nic"] {
        assert_eq!(bed.port(port)["state"]["conversation"]["refused"], 1, "{port}");
    }
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn a_daemon_without_descriptors_waits_for_one() {
    let bed = Testbed::new();
    // The limits of a process may be changed by its user, and by root where it has CAP_SYS_RESOURCE.
    let own = rustix::process::geteuid().as_raw().to_string();
    let root: &[&str] = if own == "0" { &["--user", &own] } else { &[] };
    let daemon = bed.daemon(root);
    let pid = rustix::process::Pid::from_raw(i32::try_from(daemon.pid()).unwrap());
    let before = getrlimit(Resource::Nofile);
    prlimit(pid, Resource::Nofile, Rlimit { current: Some(3), maximum: before.maximum }).unwrap();
    // How often its main thread, which accepts, has slept.
    let slept = || -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.unwrap().trim().parse().unwrap()
    };
    let begun = slept();
    let waits = say(&bed, b"");
    daemon.await_log("it could not be accepted");
    let deadline = Instant::now() + LIMIT;
    while slept() < begun + 8 {
        assert!(Instant::now() < deadline, "it spins");
        std::thread::yield_now();
    }
    prlimit(pid, Resource::Nofile, before).unwrap();
    assert_eq!(bed.ports(), [""; 0]);
    let (tries, slept) = (refused(&bed, "accept"), slept() - begun);
    assert!((1..=slept).contains(&tries), "{tries} tries, and it slept {slept} times");
    drop(waits);
}
