//! What the daemon takes from itself, seen from outside: by the kernel's own account of its threads, and by
//! what `show daemon` says of it.

use crate::rig;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::rig::Testbed;
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
    let bed = Testbed::new();
    let mut command = std::process::Command::new("sh");
    // Descriptors that the daemon's parent forgot to close.
    let line = "umask 000; exec 8</dev/null 9</dev/null; exec \"$@\"";
    command.current_dir(bed.path("")).env("SIDECORE_SOCKET", bed.path("control.sock"));
    command.args(["-c", line, "sh", env!("CARGO_BIN_EXE_sidecore"), "run"]);
    command.args(["--port", "a=ring:a", "--switch", "s"]);
    let daemon = rig::Daemon::start(&mut command);
    let about = bed.show("daemon");
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
    let mode = |name: &str| bed.path(name).metadata().unwrap().mode() & 0o777;
    assert_eq!(mode("control.counters"), 0o644);
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn every_thread_has_its_filter() {
    let bed = Testbed::new();
    let (a, b) = (format!("a=vhost-user:{}", bed.at("a")), format!("b=e1000:{}", bed.at("b")));
    let mut args = vec!["--sandbox", "on", "--port", &a, "--port", &b, "--port", "c=ring:c"];
    // Root has to become another user, and not every system has the daemon's own user.
    if rustix::process::geteuid().is_root() {
        args.extend(["--user", "nobody"]);
    }
    let daemon = bed.daemon(&args);
    let about = bed.show("daemon");
    let sandbox = &about["sandbox"];
    assert_eq!((sandbox["mode"].as_str(), missing(&bed).len()), (Some("on"), 0), "{sandbox}");
    keeps_nothing(sandbox);
    assert_eq!(sandbox["refused"].as_array().map(Vec::len), Some(0), "{sandbox}");
    let kinds: Vec<&str> =
        sandbox["seccomp"].as_array().unwrap().iter().map(|f| f["threads"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["control", "conversation", "io-core", "helper"]);
    // Three filters for the whole process (clone3, what is fatal, what is allowed), one more for a kind's
    // own.
    for thread in threads(&about["pid"].to_string()) {
        let own = ["io-core", "vu-", "vfu-", "ring-", "netmap", "carriers", "groups", "rings", "core-"];
        let name = thread["Name"].as_str();
        let narrow = own.iter().any(|start| name.starts_with(start));
        assert_eq!(thread["Seccomp_filters"], if narrow { "4" } else { "3" }, "{thread:?}");
        assert_eq!(thread["NoNewPrivs"], "1", "{name}");
    }
    let table = bed.ok(&["show", "daemon"]);
    assert!(
        table.contains("calls of io-core")
            && table.lines().any(|l| l.split_whitespace().eq(["sandbox", "on"]))
    );
    let (_, metrics) = bed.http("GET", "/metrics", "");
    assert!(metrics.contains("sidecore_sandbox{what=\"seccomp\"} 1"), "{metrics}");
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn off_takes_nothing_and_other_words_are_errors() {
    let bed = Testbed::new();
    let file = bed.write("off.toml", "[daemon]\nsandbox = \"off\"\n");
    let daemon = bed.daemon(&[file.to_str().unwrap()]);
    let about = bed.show("daemon");
    assert_eq!(
        (about["sandbox"]["mode"].as_str(), about["sandbox"]["core_dumps"].as_bool()),
        (Some("off"), Some(true))
    );
    assert!(threads(&about["pid"].to_string()).iter().all(|thread| thread["Seccomp"] == "0"));
    assert!(bed.ok(&["show", "daemon"]).contains("system calls"));
    assert!(daemon.end(Signal::TERM).success());
    bed.write("bad.toml", "[daemon]\nsandbox = \"maybe\"\n");
    assert!(bed.fails(&["run", "bad.toml"]).contains("allowed: off, warn, on"));
    let output = bed.run(&["run", "--sandbox", "maybe"]);
    assert_eq!(output.status.code(), Some(2));
    bed.write("change.toml", "[daemon]\nsandbox = \"warn\"\n");
    let _daemon = bed.daemon(&[]);
    assert!(bed
        .fails(&["apply", "change.toml"])
        .contains("[daemon] sandbox cannot change while the daemon runs"));
}

/// `filter` is put on the daemon before it starts: a kernel, or a container, that lacks `calls`.
fn lacking(bed: &Testbed, calls: &[i64], errno: i32) -> std::process::Command {
    let mut command = bed.command();
    command.arg("run");
    lack(&mut command, calls, errno);
    command
}

fn lack(command: &mut std::process::Command, calls: &[i64], errno: i32) {
    use std::os::unix::process::CommandExt;
    let rules = calls.iter().map(|call| (*call, Vec::new())).collect();
    let errno = seccompiler::SeccompAction::Errno(errno.unsigned_abs());
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter =
        seccompiler::SeccompFilter::new(rules, seccompiler::SeccompAction::Allow, errno, arch).unwrap();
    let program: seccompiler::BpfProgram = filter.try_into().unwrap();
    let put_on = move || seccompiler::apply_filter(&program).map_err(|_| std::io::ErrorKind::Other.into());
    // SAFETY: it makes two system calls and allocates nothing unless it fails.
    unsafe { command.pre_exec(put_on) };
}

/// What a daemon lacks, but for what the place of a test may lack without CAP_SYS_RESOURCE.
fn missing(bed: &Testbed) -> Vec<String> {
    let about = bed.show("daemon");
    let missing = about["sandbox"]["missing"].as_array().unwrap().iter();
    let missing = missing.map(|what| what.as_str().unwrap().to_owned());
    missing.filter(|what| !what.starts_with("no limit for locked memory")).collect()
}

/// No capability, but for the one that stands for a limit which could not be raised.
fn keeps_nothing(sandbox: &serde_json::Value) {
    let unlimited = !sandbox["missing"].to_string().contains("no limit for locked memory");
    let kept = if unlimited { serde_json::json!([]) } else { serde_json::json!(["ipc_lock"]) };
    assert_eq!(sandbox["capabilities"], kept, "{sandbox}");
}

/// What cannot be had is left out and told, unless the operator has asked for it.
#[test]
fn a_kernel_without_a_part_of_it_runs_the_daemon_all_the_same() {
    let landlock = [libc::SYS_landlock_create_ruleset, libc::SYS_landlock_restrict_self];
    let uring = [libc::SYS_io_uring_setup];
    for (calls, errno, what) in [
        (&landlock[..], libc::ENOSYS, "landlock"),
        (&landlock[..], libc::EPERM, "landlock"),
        (&uring[..], libc::EPERM, "io_uring"),
    ] {
        let bed = Testbed::new();
        let daemon = rig::Daemon::start(&mut lacking(&bed, calls, errno));
        // All of it in one line, with what to do.
        let line = daemon.await_log(what);
        assert!(missing(&bed).iter().any(|missing| missing.starts_with(what)), "{what}: {:?}", missing(&bed));
        assert!(missing(&bed).iter().all(|missing| line.contains(missing)), "{line}");
        assert!(line.contains("to try it out there is nothing to do"), "{line}");
        // The rest is in force.
        let about = bed.show("daemon");
        assert_eq!(about["sandbox"]["mode"], "on");
        keeps_nothing(&about["sandbox"]);
        assert_eq!(about["sandbox"]["seccomp"].as_array().unwrap().len(), 4);
        assert!(daemon.end(Signal::TERM).success());
    }
    let bed = Testbed::new();
    let output = lacking(&bed, &landlock, libc::ENOSYS).args(["--sandbox", "on"]).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("sandbox = on: landlock") && errors.contains("leave `sandbox` out"), "{errors}");
}

/// In a container root may be kept from becoming another user.
#[test]
fn root_that_may_not_become_another_user_stays_what_it_is() {
    rig::needs_root();
    let bed = Testbed::new();
    let calls = [libc::SYS_setresuid, libc::SYS_setresgid, libc::SYS_setgroups];
    let daemon = rig::Daemon::start(&mut lacking(&bed, &calls, libc::EPERM));
    daemon.await_log("another user");
    let about = bed.show("daemon");
    assert_eq!(about["sandbox"]["user"], "root");
    keeps_nothing(&about["sandbox"]);
    assert!(daemon.end(Signal::TERM).success());
    let output = lacking(&bed, &calls, libc::EPERM).args(["--user", "nobody"]).output().unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().contains("cannot become user"));
    assert_eq!(output.status.code(), Some(1));
}

/// `program`, run by a user without any privilege.
fn ordinary(bed: &Testbed, program: &Path) -> std::process::Command {
    let mut command = std::process::Command::new(program);
    command.current_dir(bed.path("")).env("SIDECORE_SOCKET", bed.path("control.sock"));
    if rustix::process::geteuid().is_root() {
        use std::os::unix::process::CommandExt;
        command.uid(65534).gid(65534);
    }
    command
}

/// A frame passes from one guest to another.
fn carries_frames(bed: &Testbed, ports: [&str; 2]) {
    use sidecore_driver::{Config, Frontend, NetDriver};

    let [mut a, mut b] = ports.map(|name| {
        NetDriver::start(Frontend::connect(bed.path(name), rig::LIMIT).unwrap(), Config::default()).unwrap()
    });
    let deadline = std::time::Instant::now() + rig::LIMIT;
    let mut frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1], &[0x88, 0xb5]].concat();
    frame.resize(60, 0);
    while b.receive(0, |_, _| ()).unwrap() == 0 {
        a.send(0, &[&frame]).unwrap();
        b.wait(std::time::Duration::from_millis(20)).unwrap();
        assert!(std::time::Instant::now() < deadline, "no frame arrives");
    }
}

/// The kernel answers io_uring_setup(2) so where `kernel.io_uring_disabled` is 2. Frames pass, disks in
/// memory work, and a disk in a file says what it lacks.
#[test]
fn without_io_uring_only_disks_in_files_are_missed() {
    use sidecore_driver::{Disk, DiskOptions, Request, Status};

    let bed = Testbed::new();
    std::fs::File::create(bed.path("image")).unwrap().set_len(1 << 20).unwrap();
    let mut ports = ["a", "b"].map(|name| format!("{name}=vhost-user:{}", bed.at(name))).to_vec();
    ports.push(format!("memory=blk:{},file=ram:1M", bed.at("memory")));
    ports.push(format!("file=blk:{},file={}", bed.at("file"), bed.at("image")));
    let mut command = lacking(&bed, &[libc::SYS_io_uring_setup], libc::EPERM);
    let daemon = rig::Daemon::start(command.args(ports.iter().flat_map(|port| ["--port", port.as_str()])));
    assert!(missing(&bed).iter().any(|what| what.starts_with("io_uring")), "{:?}", missing(&bed));
    assert_eq!(bed.show("daemon")["sandbox"]["io_uring"], "none");
    carries_frames(&bed, ["a", "b"]);
    let mut disk = Disk::connect(bed.path("memory"), DiskOptions::default()).unwrap();
    assert_eq!(disk.ask(Request::Write { sector: 8, data: &[7; 4096] }, rig::LIMIT).unwrap().0, Status::Ok);
    let (status, data) = disk.ask(Request::Read { sector: 8, len: 4096 }, rig::LIMIT).unwrap();
    assert_eq!((status, data), (Status::Ok, vec![7; 4096]));
    let _refused = Disk::connect(bed.path("file"), DiskOptions::default());
    daemon.await_log("no io_uring for the disk");
    let queues = bed.ok(&["show", "queues"]);
    let line = queues.lines().find(|line| line.starts_with("file ")).unwrap();
    assert!(line.contains("io_uring"), "{queues}");
    assert!(daemon.end(Signal::TERM).success());
}

/// As in a container without privileges, whose runtime forbids io_uring, too: guests exchange frames all the
/// same.
#[test]
fn a_container_without_privileges_and_io_uring_carries_frames() {
    let bed = Testbed::new();
    std::fs::set_permissions(bed.path(""), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let program = bed.own_program();
    let mut command = ordinary(&bed, &program);
    let uring = [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];
    lack(&mut command, &uring, libc::EPERM);
    let [a, b] = ["a", "b"].map(|name| format!("{name}=vhost-user:{}", bed.at(name)));
    let daemon = rig::Daemon::start(command.args(["run", "--port", &a, "--port", &b]));
    let missing = missing(&bed);
    assert!(missing.len() == 1 && missing[0].starts_with("io_uring"), "{missing:?}");
    keeps_nothing(&bed.show("daemon")["sandbox"]);
    carries_frames(&bed, ["a", "b"]);
    assert!(daemon.end(Signal::TERM).success());
}

/// Without root there is no other user to become, and nothing to lose but what every process has.
#[test]
fn an_ordinary_user_has_all_the_rest() {
    let bed = Testbed::new();
    std::fs::set_permissions(bed.path(""), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    // Where every user may run it.
    let program = bed.own_program();
    let mut command = ordinary(&bed, &program);
    let a = format!("a=vhost-user:{}", bed.at("a"));
    let b = format!("b=e1000:{}", bed.at("b"));
    let daemon = rig::Daemon::start(command.args(["run", "--port", &a, "--port", &b, "--port", "c=ring:c"]));
    assert_eq!(missing(&bed), [""; 0]);
    let about = bed.show("daemon");
    assert_eq!(about["sandbox"]["seccomp"].as_array().unwrap().len(), 4);
    assert_ne!(about["sandbox"]["landlock"], 0);
    bed.ok(&["add", &format!("d=vhost-user:{}", bed.at("d"))]);
    bed.ok(&["del", "a"]);
    assert!(daemon.end(Signal::TERM).success());
}
