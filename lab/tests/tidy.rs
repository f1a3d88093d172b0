//! An interrupted demo leaves nothing.

use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::time::Duration;

use rustix::process::{kill_process_group, Pid, Signal};

/// How long a step may take: the first one finds out how guests run here.
const LIMIT: Duration = Duration::from_secs(300);

fn names(folder: &std::path::Path, start: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(start)).collect()
}

/// Ctrl-C while guests boot: the terminal sends SIGINT to the whole process group.
#[test]
fn a_demo_that_is_interrupted_leaves_no_namespace_and_no_folder() {
    // Where a shell has started the tests in the background, the signal is ignored, and the demo would ignore
    // it, too: then QEMU, which does not, ends alone, and the demo fails.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", env!("CARGO_BIN_EXE_sidecore-lab"), "demo"]);
    let mut demo = command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0).spawn().unwrap();
    let pid = demo.id();
    let out = BufReader::new(demo.stdout.take().unwrap());
    let (line, lines) = channel();
    std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|text| line.send(text)));
    while !lines.recv_timeout(LIMIT).expect("it starts a daemon").trim_start().starts_with("daemon ") {}
    let left = || {
        let namespaces = names("/run/netns".as_ref(), &format!("sclab-{pid}-"));
        (namespaces, names(&std::env::temp_dir(), &format!("sidecore-lab-{pid}-")))
    };
    let (namespaces, folders) = left();
    assert!(!namespaces.is_empty() && !folders.is_empty(), "{namespaces:?} {folders:?}");

    kill_process_group(Pid::from_child(&demo), Signal::INT).unwrap();
    assert_eq!(demo.wait().unwrap().signal(), Some(Signal::INT.as_raw()));
    // The process that tidies up has the other copy of its output.
    loop {
        match lines.recv_timeout(LIMIT) {
            Ok(_) => {}
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => panic!("its output stays open"),
        }
    }
    assert_eq!(left(), (vec![], vec![]));
}
