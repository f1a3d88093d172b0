//! What ports are granted of an I/O core, in the real daemon: native drivers that send as fast as they can
//! share it by their weights, keep to their budgets and rates, and what they had is told.

use std::ffi::OsStr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::rig::{Daemon, Testbed, LIMIT};
use serde_json::{json, Value};
use sidecore_driver::{Config, Frontend, NetDriver};

/// Held by the test that measures: the I/O cores of two daemons would share a processor.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Guests that send all the time.
struct Senders {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Senders {
    fn start(bed: &Testbed, names: &[&str]) -> Senders {
        // Enough for the time in which others have our processor.
        let config = Config { entries: 1024, ..Config::default() };
        let meet = |name: &&str| {
            let socket = bed.path(&format!("{name}.sock"));
            NetDriver::start(Frontend::connect(socket, LIMIT).unwrap(), config).unwrap()
        };
        let mut drivers: Vec<NetDriver> = names.iter().map(meet).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            first(rustix::thread::gettid().as_raw_nonzero().to_string().as_ref());
            while !stopped.load(Ordering::Relaxed) {
                // It goes before others, but leaves them most of the processor.
                std::thread::sleep(Duration::from_micros(200));
                for (number, driver) in (1..).zip(&mut drivers) {
                    let frame = |_, bytes: &mut [u8]| {
                        bytes[..6].fill(0xff);
                        bytes[6..60].fill(2 * number);
                        60
                    };
                    driver.send_with(0, 1024, frame).unwrap();
                }
            }
        });
        Senders { stop, thread: Some(thread) }
    }
}

impl Drop for Senders {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
            eprintln!("the senders ended: {panic:?}");
        }
    }
}

/// Has a thread go before all others on its processor, if we may. Else the machine has to be quiet enough:
/// time that another thread has on the I/O core's processor is charged to the port that is just served, and
/// senders without one have nothing to share.
fn first(thread: &OsStr) {
    let _ = Command::new("chrt").args(["-f", "-p", "1"]).arg(thread).output();
}

/// Has the I/O cores of a daemon go first.
fn cores_first(daemon: &Daemon) {
    for task in std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().flatten() {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if name.starts_with("io-core") {
            first(&task.file_name());
        }
    }
}

/// A TAP that all frames are flooded to. The system call for each takes a microsecond or two, so a sender
/// costs the core more than itself.
fn dear() -> String {
    static MADE: AtomicU32 = AtomicU32::new(0);
    format!("dear=tap:sc{}d{}", std::process::id() % 100_000, MADE.fetch_add(1, Ordering::Relaxed))
}

/// A daemon with ports `a` and `b`, on a switch on which frames are dear.
fn daemon(bed: &Testbed, cores: &str) -> Daemon {
    let [a, b] = ["a", "b"].map(|name| format!("{name}=vhost-user:{}", bed.at(&format!("{name}.sock"))));
    let daemon = bed.daemon(&["--cores", cores, "--port", &dear(), "--port", &a, "--port", &b]);
    cores_first(&daemon);
    daemon
}

/// The last processor is the I/O core's.
fn last() -> String {
    (std::thread::available_parallelism().unwrap().get() - 1).to_string()
}

/// What the ports `a` and, if it is there, `b` have counted by now.
fn look(bed: &Testbed) -> Vec<Counted> {
    let (status, body) = bed.http("GET", "/v1/ports", "");
    assert_eq!(status, 200, "{body}");
    let ports: Value = serde_json::from_str(&body).unwrap();
    let number = |port: &Value, pointer: &str| port.pointer(pointer).unwrap().as_u64().unwrap() as f64;
    let counted = |port: &Value| Counted {
        frames: number(port, "/counters/in_frames"),
        busy: number(port, "/state/service/busy_ns") / 1e9,
        throttled: number(port, "/state/service/throttled_ns") / 1e9,
    };
    ports["ports"].as_array().unwrap().iter().map(counted).collect()
}

/// What was taken from a port, the seconds of the core that this took, and those in which it had to wait for
/// its budget or its rate. The last two are all the time in which it had work, however much of the machine
/// its sender got.
#[derive(Debug)]
struct Counted {
    frames: f64,
    busy: f64,
    throttled: f64,
}

impl Counted {
    fn had_work(&self) -> f64 {
        self.busy + self.throttled
    }
}

/// Looks at what was counted until `enough` of it was, and `good` says that it is as it should be; anew each
/// time that it is not.
fn until(bed: &Testbed, enough: impl Fn(&[Counted]) -> bool, good: impl Fn(&[Counted]) -> bool) {
    let deadline = Instant::now() + 6 * LIMIT;
    let mut before = look(bed);
    loop {
        let now = look(bed);
        let since = |(now, before): (&Counted, &Counted)| Counted {
            frames: now.frames - before.frames,
            busy: now.busy - before.busy,
            throttled: now.throttled - before.throttled,
        };
        let counted: Vec<Counted> = now.iter().zip(&before).map(since).collect();
        if enough(&counted) {
            if good(&counted) {
                return;
            }
            eprintln!("once more: {counted:?}");
            before = now;
        }
        assert!(Instant::now() < deadline, "{counted:?}");
    }
}

/// Until what `a` has is as it should be, of a second or more in which it had work.
fn until_a(bed: &Testbed, good: impl Fn(&Counted) -> bool) {
    until(bed, |counted| counted[0].had_work() > 1.0, |counted| good(&counted[0]));
}

/// Until `a` has so many times as many frames as `b`, of many.
fn until_shared(bed: &Testbed, ratio: std::ops::Range<f64>) {
    let many = |counted: &[Counted]| counted[0].frames + counted[1].frames > 200_000.0;
    until(bed, many, |counted| ratio.contains(&(counted[0].frames / counted[1].frames)));
}

#[test]
fn a_core_is_shared_by_weight_and_the_weight_changes_while_it_is() {
    let _alone = alone();
    let bed = Testbed::new();
    let _daemon = daemon(&bed, &last());
    let _senders = Senders::start(&bed, &["a", "b"]);
    until_shared(&bed, 0.7..1.4);
    let told = bed.ok(&["set", "a", "weight=300"]);
    assert_eq!(told, "changed port a (weight: unset → 300)\n");
    until_shared(&bed, 2.0..4.5);
    bed.ok(&["set", "b", "weight=900"]);
    until_shared(&bed, 0.22..0.5);
    // A configuration without weights has the usual ones.
    let file = bed.at("saved.toml");
    bed.ok(&["save", &file]);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("weight = 300"), "{text}");
    std::fs::write(&file, text.replace("weight = 300\n", "").replace("weight = 900\n", "")).unwrap();
    bed.ok(&["apply", &file]);
    assert_eq!(bed.port("a")["state"]["service"]["weight"], 100);
    until_shared(&bed, 0.7..1.4);
}

#[test]
fn a_budget_bounds_a_sender_and_a_rate_holds() {
    let _alone = alone();
    let bed = Testbed::new();
    let _daemon = daemon(&bed, &last());
    let _senders = Senders::start(&bed, &["a"]);
    bed.ok(&["set", "a", "budget=20%"]);
    let share = |a: &Counted| a.busy / a.had_work();
    until_a(&bed, |a| (0.15..0.25).contains(&share(a)));
    let service = bed.port("a")["state"]["service"].clone();
    assert_eq!(service["granted_ppm"], 200_000);
    assert_eq!(service["period_ns"], 5_000_000);
    assert!(service["throttled_ns"].as_u64().unwrap() > 0, "{service}");
    let deadline = Instant::now() + LIMIT;
    // It is that of the last second.
    while !(150_000..250_000).contains(&bed.port("a")["state"]["service"]["used_ppm"].as_u64().unwrap()) {
        assert!(Instant::now() < deadline, "{}", bed.port("a"));
    }
    bed.ok(&["set", "a", "reclaim=on"]);
    until_a(&bed, |a| share(a) > 0.4);
    bed.ok(&["set", "a", "reclaim=", "budget=", "rate=50k"]);
    let rate = |a: &Counted| a.frames / a.had_work();
    until_a(&bed, |a| (47_500.0..52_500.0).contains(&rate(a)));
    // Most of the time it waits for its rate.
    let is_throttled = |queue: &Value| queue["served"]["heat"] == "throttled";
    let throttled = || bed.show("queues")["queues"].as_array().unwrap().iter().any(is_throttled);
    assert!((0..100).any(|_| throttled()), "{}", bed.show("queues"));
    bed.ok(&["set", "a", "rate=", "bit-rate=9600k"]);
    // 60 bytes each.
    until_a(&bed, |a| (19_000.0..21_000.0).contains(&rate(a)));
    bed.ok(&["set", "a", "bit-rate="]);
    until_a(&bed, |a| rate(a) > 60_000.0);

    let queues = bed.show("queues");
    let queue =
        queues["queues"].as_array().unwrap().iter().find(|queue| queue["served"].is_object()).unwrap();
    let (served, number) = (&queue["served"], |key: &str| queue["served"][key].as_u64().unwrap());
    assert_eq!((&queue["class"], &served["core"]), (&json!("throughput"), &json!(0)));
    let ends = number("drained") + number("budget") + number("time") + number("waits");
    assert!(ends > 0 && number("visits") >= ends - 1, "{served}");
    assert!(number("wait_p99_ns") >= number("wait_p50_ns"), "{served}");
    let text = bed.ok(&["show", "queues", "--wide"]);
    assert!(text.contains("throughput") && text.contains("wait p50"), "{text}");
    let (status, metrics) = bed.http("GET", "/metrics", "");
    assert_eq!(status, 200);
    for family in [
        "sidecore_port_busy_seconds_total{port=\"a\"}",
        "sidecore_port_throttled_seconds_total{port=\"a\"}",
        "sidecore_port_weight{port=\"a\"} 100",
        "sidecore_queue_visits_total{port=\"a\",queue=\"0\",end=\"empty\"}",
        "sidecore_queue_wait_ns{port=\"a\",queue=\"0\",quantile=\"0.99\"}",
        "sidecore_queue_core{port=\"a\",queue=\"0\"} 0",
        "sidecore_core_active{core=\"0\"} 1",
    ] {
        assert!(metrics.contains(family), "{family} is not in {metrics}");
    }
}

#[test]
fn what_cannot_be_granted_is_refused_and_says_what_can() {
    let bed = Testbed::new();
    let _daemon = daemon(&bed, &last());
    for (pair, why) in [
        ("class=urgent", "key `class`: \"urgent\" is not allowed; allowed: latency, throughput"),
        ("weight=0", "key `weight`: \"0\" is not allowed; allowed: a number from 1 to 1000"),
        ("weight=1001", "allowed: a number from 1 to 1000"),
        ("budget=120%", "key `budget`: \"120%\" is not allowed: it is more than a core; allowed: a part of one core up to 95%"),
        ("budget=96%", "5% of each core are kept"),
        ("budget=2ms/2s", "from 1ms to 1000ms"),
        ("budget=5us/1ms", "a runtime from 10us"),
        ("rate=fast", "allowed: a whole number from 1 to 1000M, with k, M behind it"),
        ("bit-rate=0", "allowed: a whole number from 1 to 1000G, with k, M, G behind it"),
        ("reclaim=on", "key `reclaim`: does not apply: there is no budget"),
        ("reclaim=yes", "allowed: on, off"),
    ] {
        let told = bed.fails(&["set", "a", pair]);
        assert!(told.contains(why), "{pair}: {told}");
    }
    bed.ok(&["set", "a", "budget=60%"]);
    let told = bed.fails(&["set", "b", "budget=2ms/5ms"]);
    let why = "the budgets (a 60%, b 40%) do not fit on 1 I/O core, each with 95%; allowed: up to 35%";
    assert!(told.contains(&format!("port b: key `budget`: {why}")), "{told}");
    bed.ok(&["set", "b", "budget=35%", "class=latency", "reclaim=on"]);
    let config = bed.http("GET", "/v1/config", "").1;
    assert!(config.contains("\"budget\":\"35%\"") && config.contains("\"class\":\"latency\""), "{config}");
    let told = bed.fails(&["set", "b", "budget=36%"]);
    assert!(told.contains("allowed: up to 35%"), "{told}");

    for (args, why) in [
        (
            &["run", "--cores", "0", "--least-cores", "2"][..],
            "key `least-cores`: 2 of 1 I/O cores; allowed: 1 to 1",
        ),
        (&["run", "--cores", "4000"], "there is no processor 4000"),
        (&["run", "--balance", "maybe"], "allowed: on, off"),
    ] {
        let output = bed.command().args(args).args(["--socket", &bed.at("other")]).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && told.contains(why), "{args:?}: {told}");
    }
}

#[test]
fn queues_and_cores_are_moved_by_hand() {
    let _alone = alone();
    let bed = Testbed::new();
    let cores = if last() == "0" { return } else { format!("{},0", last()) };
    let port = format!("a=vhost-user:{}", bed.at("a.sock"));
    let args = ["--cores", &cores, "--balance", "off", "--port", &dear(), "--port", &port];
    let _daemon = bed.daemon(&args);
    let told = bed.fails(&["move", "a", "1"]);
    assert!(told.contains("no I/O core serves a queue of port a: its peer is not there"), "{told}");
    let _senders = Senders::start(&bed, &["a"]);
    let deadline = Instant::now() + LIMIT;
    let core = || {
        let queues = bed.show("queues");
        let of = |queue: &Value| queue["served"]["core"].as_u64();
        queues["queues"].as_array().unwrap().iter().find_map(of)
    };
    while core().is_none() {
        assert!(Instant::now() < deadline);
    }
    for (queue, to) in [("a", 1), ("a/0", 0), ("a/0", 1)] {
        bed.ok(&["move", queue, &to.to_string()]);
        while core() != Some(to) {
            assert!(Instant::now() < deadline, "{:?}", core());
        }
        // It goes on.
        until(&bed, |counted| counted[0].frames > 0.0, |_| true);
    }
    assert!(bed.ok(&["move", "a", "1"]).contains("nothing to change"));
    for (args, why) in [
        (&["move", "a", "2"][..], "there is no I/O core 2; there are: 0, 1"),
        (&["move", "a/7", "0"], "no I/O core serves queue 7 of port a; there are: 0"),
        (&["move", "a/x", "0"], "\"x\" is no number of a queue"),
        (&["move", "web", "0"], "there is no port \"web\"; there are: a"),
        (&["cores", "0"], "0 active I/O cores are not allowed; allowed: 1 to 2"),
        (&["cores", "3"], "allowed: 1 to 2"),
    ] {
        let told = bed.fails(args);
        assert!(told.contains(why), "{args:?}: {told}");
    }
    assert_eq!(bed.ok(&["cores", "1"]), "1 of 2 I/O cores are active\n");
    assert_eq!(core(), Some(0), "the last core's queue moved");
    assert!(bed
        .fails(&["move", "a", "1"])
        .contains("I/O core 1 is not active; `sidecore cores 2` makes it so"));
    bed.ok(&["cores", "2"]);
    let cores = bed.show("cores");
    assert!(cores["cores"].as_array().unwrap().iter().all(|core| core["active"] == true), "{cores}");
}
