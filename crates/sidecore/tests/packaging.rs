//! What `make install` installs works: the default configuration starts a daemon, and so does one with the
//! ports that its comments show. The service itself is tested where systemd runs (`lab/tests/service.rs`).
//! Needs root.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;

use crate::rig::{wait, Daemon, Testbed};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{kill_process_group, pidfd_open, Pid, PidfdFlags, Signal};

const CONFIG: &str = include_str!("../../../packaging/sidecore.toml");
const DEMO: &str = include_str!("../../../scripts/demo");

#[test]
fn the_default_configuration_starts_an_empty_daemon() {
    let bed = Testbed::new();
    let file = bed.write("sidecore.toml", CONFIG);
    let _daemon = bed.daemon(&[file.to_str().unwrap()]);
    assert!(bed.ports().is_empty());
    // As the service's reload does.
    assert!(bed.ok(&["apply", file.to_str().unwrap()]).contains("nothing"));
}

#[test]
fn the_ports_in_its_comments_run() {
    let bed = Testbed::new();
    let keys = |line: &&str| line.starts_with("# [[") || (line.starts_with("# ") && line.contains(" = "));
    let ports = CONFIG.lines().skip_while(|line| !line.contains("[[port]]")).filter(keys);
    let text: String = ports.map(|line| format!("{}\n", &line[2..])).collect();
    // The test's own directory, and a group that every system has.
    let text = text.replace("/run/sidecore", "DIR").replace(":kvm", ":root");
    let file = bed.write("ports.toml", &text);
    let mut command = Command::new("unshare");
    command.args(["--net", env!("CARGO_BIN_EXE_sidecore")]);
    command.args(["run", file.to_str().unwrap()]).env("SIDECORE_SOCKET", bed.path("control.sock"));
    let _daemon = Daemon::start(command.env_remove("NOTIFY_SOCKET"));
    assert_eq!(bed.ports(), ["host", "vm1"]);
    assert_eq!(bed.port("host")["state"]["peer"], "running");
}

/// Ctrl-C while `make demo` builds: the build ends, too. Here it is one that would take a quarter of an hour.
#[test]
fn an_interrupted_demo_leaves_no_build_behind() {
    let bed = Testbed::new();
    let script = |name: &str, text: &str| {
        let path = bed.write(name, text);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    };
    std::fs::create_dir_all(bed.path("scripts")).unwrap();
    std::fs::create_dir_all(bed.path("bin")).unwrap();
    assert!(Command::new("mkfifo").arg(bed.path("pid")).status().unwrap().success());
    script("scripts/setup", "#!/bin/sh\n");
    script("bin/cargo", &format!("#!/bin/sh\necho $$ >{}\nexec sleep 1000\n", bed.at("pid")));
    let path = format!("{}:{}", bed.at("bin"), std::env::var("PATH").unwrap());
    // Both ends of it are open here, so that opening and reading do not wait.
    let mut said = File::options().read(true).write(true).open(bed.path("pid")).unwrap();
    // A shell that was started in the background, as tests may be, has us ignore this signal.
    let mut demo = Command::new("env");
    demo.args(["--default-signal=INT", "bash"]).arg(script("scripts/demo", DEMO)).env("PATH", path);
    let mut demo = demo.process_group(0).spawn().unwrap();
    assert!(comes(&said), "no build begins");
    let mut text = [0; 16];
    let len = said.read(&mut text).unwrap();
    let build = std::str::from_utf8(&text[..len]).unwrap().trim().parse().unwrap();
    let build = pidfd_open(Pid::from_raw(build).unwrap(), PidfdFlags::empty()).unwrap();
    kill_process_group(Pid::from_child(&demo), Signal::INT).unwrap();
    let status = wait(&mut demo);
    assert!(status.signal() == Some(2) || status.code() == Some(130), "{status}");
    assert!(comes(&build), "the build goes on");
}

/// Whether something can be read, or the process has ended, within 20 s.
fn comes(fd: &impl AsFd) -> bool {
    let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&limit)).unwrap() == 1
}
