//! Every kind of thread, with what it may and what it may not. Filters cannot be taken off: each test has a
//! process of its own, this program run again for one test alone.

use std::process::Command;

use super::*;

/// Runs the ignored test `name` in a process of its own.
fn alone(name: &str) -> std::process::Output {
    let name = format!("sandbox::filters::tests::{name}");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &name, "--ignored", "--nocapture", "--test-threads=1"]).output().unwrap()
}

#[test]
fn rows_are_sane() {
    for row in calls::ALLOWED {
        assert!(!row.why.is_empty() && row.name.starts_with("SYS_"), "{row:?}");
        assert!(!calls::FATAL.iter().any(|(_, number)| *number == row.number), "{}: both", row.name);
    }
    // A row that allows a call whatever its arguments makes others for the same threads idle.
    for (i, row) in calls::ALLOWED.iter().enumerate() {
        let others =
            calls::ALLOWED.iter().enumerate().filter(|(j, other)| *j != i && other.number == row.number);
        for (_, other) in others {
            let idle = other.only.is_empty() && row.who.0 & !other.who.0 == 0;
            assert!(!idle, "{} stands twice for the same threads", row.name);
        }
    }
    let io = compile::size(Kinds::IO_CORE);
    assert!(io < 45, "{io} calls for an I/O core");
    let may = |kind: Kinds, name: &str| {
        let of = |row: &&calls::Row| row.name == format!("SYS_{name}") && row.who.meets(kind);
        calls::ALLOWED.iter().any(|row| of(&row))
    };
    for name in [
        "socket",
        "connect",
        "clone",
        "execve",
        "unlink",
        "unlinkat",
        "openat",
        "openat2",
        "open",
        "io_uring_setup",
    ] {
        assert!(!may(Kinds::IO_CORE, name), "an I/O core may {name}");
        assert!(!may(Kinds::CONVERSATION, name), "a thread that reads what strangers sent may {name}");
    }
    for name in ["ioctl", "prctl", "seccomp"] {
        assert!(!may(Kinds::IO_CORE, name), "an I/O core may {name}");
    }
}

#[test]
fn an_io_core_is_refused_what_it_does_not_need_and_lives() {
    let output = alone("io_core");
    assert!(output.status.success(), "{output:?}");
}

#[test]
#[ignore = "run by an_io_core_is_refused_what_it_does_not_need_and_lives"]
fn io_core() {
    start(Mode::On).unwrap();
    std::thread::spawn(|| {
        enter(Kinds::IO_CORE);
        let error = std::fs::File::open("/etc/passwd").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        assert!(std::os::unix::net::UnixStream::connect("/nowhere").is_err());
        let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC);
        assert_eq!(fd.unwrap_err(), rustix::io::Errno::PERM);
        // What it needs goes on working.
        let memory = vec![1u8; 1 << 20];
        assert_eq!(memory.iter().map(|&b| usize::from(b)).sum::<usize>(), 1 << 20);
        std::thread::sleep(std::time::Duration::from_micros(1));
    })
    .join()
    .unwrap();
    let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC);
    assert!(fd.is_ok(), "the filter of one thread is another's");
    let status = status();
    let of = |call: &str| status.refused.iter().find(|r| r.call == call).map(|r| (r.thread, r.count));
    assert_eq!((of("openat"), of("socket")), (Some(("io-core", 1)), Some(("io-core", 1))));
    assert_eq!(news().len(), status.refused.len());
    assert!(news().is_empty());
}

#[test]
fn what_only_an_attacker_calls_ends_the_process() {
    let output = alone("fatal");
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&output.status),
        Some(libc::SIGSYS),
        "{output:?}"
    );
}

#[test]
#[ignore = "run by what_only_an_attacker_calls_ends_the_process"]
fn fatal() {
    start(Mode::On).unwrap();
    let _ = rustix::process::chroot("/");
}

#[test]
fn with_warn_nothing_is_refused() {
    let output = alone("warn");
    assert!(output.status.success(), "{output:?}");
}

#[test]
#[ignore = "run by with_warn_nothing_is_refused"]
fn warn() {
    start(Mode::Warn).unwrap();
    std::thread::spawn(|| {
        enter(Kinds::IO_CORE);
        std::fs::File::open("/etc/passwd").unwrap();
    })
    .join()
    .unwrap();
    assert_eq!(status().mode, Mode::Warn);
}
