//! What the daemon takes from itself, seen from outside: by the kernel's own account of its threads, and by what
//! `show daemon` says of it.

#![allow(clippy::unwrap_used, clippy::panic)]

#[allow(dead_code, reason = "each of the tests that share it uses a part")]
mod rig;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rig::Place;
use rustix::process::Signal;

/// `/proc/PID/status`, or a thread's.
fn status(file: &Path) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(file).unwrap();
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(key, value)| (key.to_owned(), value.trim().to_owned())).collect()
}

/// The kernel's account of each thread of a process, by its name.
fn threads(pid: &str) -> Vec<BTreeMap<String, String>> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.map(|task| status(&task.unwrap().path().join("status"))).collect()
}

#[test]
fn nothing_of_whoever_started_it_is_left() {
    let place = Place::new();
    let mut command = std::process::Command::new("sh");
    // Descriptors that whoever starts the daemon forgot to close.
    let line = "umask 000; exec 8</dev/null 9</dev/null; exec \"$@\"";
    command.current_dir(place.path("")).env("SIDECORE_SOCKET", place.path("control.sock"));
    command.args(["-c", line, "sh", env!("CARGO_BIN_EXE_sidecore"), "run", "--sandbox", "on"]);
    command.args(["--port", "a=ring:a", "--switch", "s"]);
    let daemon = rig::Daemon::start(&mut command);
    let about = place.show("daemon");
    let pid = about["pid"].to_string();
    let null = Path::new("/dev/null").metadata().unwrap();
    let same = |file: std::fs::Metadata| (file.dev(), file.ino()) == (null.dev(), null.ino());
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        let entry = entry.unwrap();
        let stray = entry.metadata().is_ok() && std::fs::metadata(entry.path()).is_ok_and(same);
        assert!(!stray || entry.file_name() == "0", "{entry:?}");
    }
    let of = status(Path::new(&format!("/proc/{pid}/status")));
    assert_eq!((of["Umask"].as_str(), of["NoNewPrivs"].as_str()), ("0077", "1"));
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().collect::<Vec<_>>()[4..6], ["0", "0"], "{core}");
    assert_eq!(
        (&about["sandbox"]["core_dumps"], &about["sandbox"]["no_new_privs"]),
        (&false.into(), &true.into())
    );
    // The counters stay readable for all, as before the umask was narrowed.
    let mode = |name: &str| place.path(name).metadata().unwrap().mode() & 0o777;
    assert_eq!(mode("control.counters"), 0o644);
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn every_thread_has_its_filter() {
    let place = Place::new();
    let (a, b) = (format!("a=vhost-user:{}", place.at("a")), format!("b=e1000:{}", place.at("b")));
    let mut args = vec!["--sandbox", "on", "--port", &a, "--port", &b, "--port", "c=ring:c"];
    // Root has to become somebody, and not every system has the daemon's own user.
    if rustix::process::geteuid().is_root() {
        args.extend(["--user", "nobody"]);
    }
    let daemon = place.daemon(&args);
    let about = place.show("daemon");
    let sandbox = &about["sandbox"];
    assert_eq!(
        (sandbox["mode"].as_str(), sandbox["missing"].as_array().map(Vec::len)),
        (Some("on"), Some(0))
    );
    assert_eq!(sandbox["refused"].as_array().map(Vec::len), Some(0), "{sandbox}");
    let kinds: Vec<&str> =
        sandbox["seccomp"].as_array().unwrap().iter().map(|f| f["threads"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["control", "io-core", "vhost-user", "vfio-user", "ring", "netmap", "watch"]);
    // Three filters for the whole process (clone3, what is fatal, what is allowed), one more for a kind's own.
    for thread in threads(&about["pid"].to_string()) {
        let own = ["io-core", "vu-", "vfu-", "ring-", "netmap", "carriers"];
        let name = thread["Name"].as_str();
        let narrow = own.iter().any(|start| name.starts_with(start));
        assert_eq!(thread["Seccomp_filters"], if narrow { "4" } else { "3" }, "{thread:?}");
        assert_eq!(thread["NoNewPrivs"], "1", "{name}");
    }
    let table = place.ok(&["show", "daemon"]);
    assert!(
        table.contains("calls of io-core")
            && table.lines().any(|l| l.split_whitespace().eq(["sandbox", "on"]))
    );
    let (_, metrics) = place.http("GET", "/metrics", "");
    assert!(metrics.contains("sidecore_sandbox{what=\"seccomp\"} 1"), "{metrics}");
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn off_takes_nothing_and_other_words_are_errors() {
    let place = Place::new();
    let file = place.write("off.toml", "[daemon]\nsandbox = \"off\"\n");
    let daemon = place.daemon(&[file.to_str().unwrap()]);
    let about = place.show("daemon");
    assert_eq!(
        (about["sandbox"]["mode"].as_str(), about["sandbox"]["core_dumps"].as_bool()),
        (Some("off"), Some(true))
    );
    assert!(threads(&about["pid"].to_string()).iter().all(|thread| thread["Seccomp"] == "0"));
    assert!(place.ok(&["show", "daemon"]).contains("system calls"));
    assert!(daemon.end(Signal::TERM).success());
    place.write("bad.toml", "[daemon]\nsandbox = \"maybe\"\n");
    assert!(place.fails(&["run", "bad.toml"]).contains("allowed: off, warn, on"));
    let output = place.run(&["run", "--sandbox", "maybe"]);
    assert_eq!(output.status.code(), Some(2));
    place.write("change.toml", "[daemon]\nsandbox = \"warn\"\n");
    let _daemon = place.daemon(&[]);
    assert!(place
        .fails(&["apply", "change.toml"])
        .contains("[daemon] sandbox cannot change while the daemon runs"));
}
