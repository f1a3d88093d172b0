//! What `make install` installs works: the default configuration starts a daemon, and so does one with the ports that
//! its comments show, with no more than the service's capabilities. Needs root.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code, reason = "each test program uses a part of it")]
mod rig;

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;

use rig::{wait, Daemon, Testbed};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{kill_process_group, pidfd_open, Pid, PidfdFlags, Signal};

const CONFIG: &str = include_str!("../../../packaging/sidecore.toml");
const SERVICE: &str = include_str!("../../../packaging/sidecore.service");
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

/// They are of the service's control group, and have to outlive its main process.
#[test]
fn the_service_leaves_holders_and_their_sockets_alone() {
    for setting in ["KillMode=process", "RuntimeDirectoryPreserve=yes"] {
        assert!(SERVICE.lines().any(|line| line == setting), "{setting}");
    }
}

/// The unit's UMask closes sockets of ports to all but root. `mode` and `owner` of a port open them whatever it is, and
/// every user may read the counters.
#[test]
fn sockets_of_ports_are_roots_alone_unless_the_port_says_otherwise() {
    let bed = Testbed::new();
    let mask = SERVICE.lines().find_map(|line| line.strip_prefix("UMask=")).unwrap();
    let mut command = Command::new("sh");
    command.current_dir(bed.path("")).env("SIDECORE_SOCKET", bed.path("control.sock"));
    let line = format!("umask {mask}; exec \"$@\"");
    command.args(["-c", &line, "sh", env!("CARGO_BIN_EXE_sidecore"), "run", "--port"]);
    command.arg(format!("own=ring:{}", bed.at("own"))).arg("--port");
    command.arg(format!("team=ring:{},mode=0660,owner=:nogroup", bed.at("team")));
    let _daemon = Daemon::start(command.env_remove("NOTIFY_SOCKET"));
    let of = |name: &str| bed.path(name).metadata().unwrap();
    let group = Command::new("getent").args(["group", "nogroup"]).output().unwrap().stdout;
    let group: u32 = String::from_utf8(group).unwrap().split(':').nth(2).unwrap().parse().unwrap();
    assert_eq!((of("own").mode() & 0o777, of("own").gid()), (0o700, 0));
    assert_eq!((of("team").mode() & 0o777, of("team").gid()), (0o660, group));
    assert_eq!(of("control.counters").mode() & 0o777, 0o644);
}

#[test]
fn the_ports_in_its_comments_run_with_the_capabilities_of_the_service() {
    let bed = Testbed::new();
    let keys = |line: &&str| line.starts_with("# [[") || (line.starts_with("# ") && line.contains(" = "));
    let ports = CONFIG.lines().skip_while(|line| !line.contains("[[port]]")).filter(keys);
    let text: String = ports.map(|line| format!("{}\n", &line[2..])).collect();
    // The test's own directory, and a group that every system has.
    let text = text.replace("/run/sidecore", "DIR").replace(":kvm", ":root");
    let file = bed.write("ports.toml", &text);
    let line = SERVICE.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let kept: Vec<String> = line.split(' ').map(|c| format!("+{}", c[4..].to_lowercase())).collect();
    let mut command = Command::new("unshare");
    command.args(["--net", "setpriv", "--no-new-privs", "--bounding-set"]);
    command.arg(format!("-all,{}", kept.join(","))).arg(env!("CARGO_BIN_EXE_sidecore"));
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
