//! What ports are granted of an I/O core, in the real daemon: native drivers that send as fast as they can share it by
//! their weights, keep to their budgets and rates, and what they had is told.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code, reason = "each test program uses a part of it")]
mod rig;

use std::ffi::OsStr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rig::{Daemon, Testbed, LIMIT};
use serde_json::{json, Value};
use sidecore_driver::{Config, Frontend, NetDriver};

/// Frames are counted for so long.
const WINDOW: Duration = Duration::from_secs(2);
/// The machine may be busy with other things: so often it is measured before the result counts.
const TRIES: usize = 6;

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
                for driver in &mut drivers {
                    let frame = |_, bytes: &mut [u8]| {
                        bytes[..60].fill(2);
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

/// Has a thread go before all others on its processor, if we may. Else the machine has to be quiet enough: time that
/// another thread has on the I/O core's processor is charged to the port that is just served, and senders without one
/// have nothing to share.
fn first(thread: &OsStr) {
    let _ = Command::new("chrt").args(["-f", "-p", "1"]).arg(thread).output();
}

/// The same for the I/O cores of a daemon.
fn cores_first(daemon: &Daemon) {
    for task in std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().flatten() {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if name.starts_with("io-core") {
            first(&task.file_name());
        }
    }
}

/// A TAP that all frames are flooded to. The system call for each takes a microsecond or two, so a sender costs the core
/// more than itself.
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

/// What a port has counted by now, and when that was.
fn look(bed: &Testbed, name: &str) -> (Instant, Value) {
    let (status, body) = bed.http("GET", &format!("/v1/ports/{name}"), "");
    assert_eq!(status, 200, "{body}");
    (Instant::now(), serde_json::from_str(&body).unwrap())
}

/// What each port counted at `pointer` in a while, a second.
fn rates<const N: usize>(bed: &Testbed, names: [&str; N], pointer: &str) -> [f64; N] {
    let before = names.map(|name| look(bed, name));
    std::thread::sleep(WINDOW);
    // Far below 2⁵³.
    let number = |value: &Value| value.pointer(pointer).unwrap().as_u64().unwrap() as f64;
    let mut each = names.iter().zip(&before).map(|(name, (then, before))| {
        let (now, after) = look(bed, name);
        (number(&after) - number(before)) / now.duration_since(*then).as_secs_f64()
    });
    std::array::from_fn(|_| each.next().unwrap())
}

const FRAMES: &str = "/counters/in_frames";

/// Measures until the result is as it should be; the last one, whatever it is.
fn until<T: std::fmt::Debug>(mut measure: impl FnMut() -> T, good: impl Fn(&T) -> bool) {
    for attempt in 1..=TRIES {
        let got = measure();
        if good(&got) {
            return;
        }
        assert!(attempt < TRIES, "{got:?}");
        eprintln!("once more: {got:?}");
    }
}

#[test]
fn a_core_is_shared_by_weight_and_the_weight_changes_while_it_is() {
    let _alone = alone();
    let bed = Testbed::new();
    let _daemon = daemon(&bed, &last());
    let _senders = Senders::start(&bed, &["a", "b"]);
    let ratio = || {
        let [a, b] = rates(&bed, ["a", "b"], FRAMES);
        a / b
    };
    until(ratio, |ratio| (0.7..1.4).contains(ratio));
    let told = bed.ok(&["set", "a", "weight=300"]);
    assert_eq!(told, "changed port a (weight: unset → 300)\n");
    until(ratio, |ratio| (2.0..4.5).contains(ratio));
    bed.ok(&["set", "b", "weight=900"]);
    until(ratio, |ratio| (0.22..0.5).contains(ratio));
    // A configuration without weights has the usual ones.
    let file = bed.at("saved.toml");
    bed.ok(&["save", &file]);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("weight = 300"), "{text}");
    std::fs::write(&file, text.replace("weight = 300\n", "").replace("weight = 900\n", "")).unwrap();
    bed.ok(&["apply", &file]);
    assert_eq!(bed.port("a")["state"]["service"]["weight"], 100);
    until(ratio, |ratio| (0.7..1.4).contains(ratio));
}

#[test]
fn a_budget_bounds_a_sender_and_a_rate_holds() {
    let _alone = alone();
    let bed = Testbed::new();
    let _daemon = daemon(&bed, &last());
    let _senders = Senders::start(&bed, &["a"]);
    bed.ok(&["set", "a", "budget=20%"]);
    let busy = || rates(&bed, ["a"], "/state/service/busy_ns")[0] / 1e9;
    until(busy, |share| (0.15..0.25).contains(share));
    let service = bed.port("a")["state"]["service"].clone();
    assert_eq!(service["granted_ppm"], 200_000);
    assert_eq!(service["period_ns"], 5_000_000);
    assert!(service["throttled_ns"].as_u64().unwrap() > 0, "{service}");
    until(
        || bed.port("a")["state"]["service"]["used_ppm"].as_u64().unwrap(),
        |used| {
            std::thread::sleep(Duration::from_millis(300));
            (150_000..250_000).contains(used)
        },
    );
    assert!(bed.ok(&["show", "ports"]).contains("20.0 %"));

    // What no other owner wants it may have.
    bed.ok(&["set", "a", "reclaim=on"]);
    until(busy, |share| *share > 0.4);
    bed.ok(&["set", "a", "reclaim=", "budget=", "rate=50k"]);
    let frames = || rates(&bed, ["a"], FRAMES)[0];
    until(frames, |rate| (47_500.0..52_500.0).contains(rate));
    // Most of the time it waits for its rate.
    let is_throttled = |queue: &Value| queue["served"]["heat"] == "throttled";
    let throttled = || bed.show("queues")["queues"].as_array().unwrap().iter().any(is_throttled);
    assert!((0..100).any(|_| throttled()), "{}", bed.show("queues"));
    bed.ok(&["set", "a", "rate=", "bit-rate=9600k"]);
    // 60 bytes each.
    until(frames, |rate| (19_000.0..21_000.0).contains(rate));
    bed.ok(&["set", "a", "bit-rate="]);
    until(frames, |rate| *rate > 60_000.0);

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
        ("budget=2ms/200ms", "from 1ms to 100ms"),
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
    let why =
        "the budgets of the ports (a 60%, b 40%) do not fit on 1 I/O core, each with 95%; allowed: up to 35%";
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
        let [frames] = rates(&bed, ["a"], FRAMES);
        assert!(frames > 0.0, "it goes on");
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
