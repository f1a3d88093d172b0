//! What a newcomer does in the first hour, and what must not be silent or wrong then. Needs root.

use crate::rig;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::rig::{wait, Daemon, Testbed, LIMIT};
use rustix::process::{kill_process, Pid, Signal};
use sidecore_driver::{Config, Frontend, NetDriver};

fn vhost(bed: &Testbed, name: &str) -> String {
    format!("{name}=vhost-user:{}", bed.at(name))
}

fn await_true(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        // What is awaited is another process's doing.
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_misspelt_log_level_is_an_error_and_the_level_changes_while_it_runs() {
    let bed = Testbed::new();
    for bad in ["wran", "sidecore=wran", "info,wran"] {
        let error = bed.fails(&["run", "--log", bad]);
        assert!(error.contains("wran") && error.contains("allowed: error, warn, info"), "{error}");
    }
    let daemon = bed.daemon(&["--log", "warn", "--port", &vhost(&bed, "a")]);
    assert_eq!(bed.ok(&["log"]), "logs warn\n");
    assert!(bed.fails(&["log", "wran"]).contains("is no level"));
    assert_eq!(bed.ok(&["log", "info"]), "logs info\n");
    bed.ok(&["set", "a", "mtu=2000"]);
    daemon.await_log("mtu: unset → 2000");
    assert!(bed.ok(&["show", "daemon"]).contains("info"));
}

#[test]
fn several_ports_are_added_and_deleted_all_or_none() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&[]);
    let (a, b) = (vhost(&bed, "a"), "b=vhost-user:/nowhere/b".to_owned());
    assert!(bed.fails(&["add", &a, &b]).contains("port b"));
    assert!(bed.ports().is_empty() && !bed.path("a").exists());
    bed.ok(&["add", &a, &vhost(&bed, "c")]);
    assert!(bed.fails(&["del", "a", "z"]).contains("there is no port \"z\""));
    assert_eq!(bed.ports(), ["a", "c"]);
    bed.ok(&["add", "--switch", "s", "t"]);
    assert!(bed.fails(&["del", "--switch", "s", "lan"]).contains("lan"));
    assert_eq!(bed.ok(&["del", "a", "c"]), "deleted port a\ndeleted port c\n");
    bed.ok(&["del", "--switch", "s", "t"]);
    assert!(bed.ports().is_empty());
}

#[test]
fn a_relative_path_leads_from_where_the_command_runs() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&[]);
    let folder = bed.path("below");
    std::fs::create_dir(&folder).unwrap();
    let mut command = bed.command();
    assert!(command.current_dir(&folder).args(["add", "a=vhost-user:a.sock"]).status().unwrap().success());
    assert!(folder.join("a.sock").exists());
    assert_eq!(bed.port("a")["state"]["where"], folder.join("a.sock").to_str().unwrap());
}

#[test]
fn switches_are_shown_and_a_port_starts_anew() {
    let bed = Testbed::new();
    let _daemon =
        bed.daemon(&["--switch", "dmz,ageing=60", "--port", &format!("{},switch=dmz", vhost(&bed, "a"))]);
    let switches = bed.show("switches");
    let dmz = switches["switches"].as_array().unwrap().iter().find(|it| it["name"] == "dmz").unwrap();
    assert_eq!((&dmz["ageing"], &dmz["ports"][0]), (&60.into(), &"a".into()), "{switches}");
    assert!(bed.ok(&["show", "switches"]).contains("60 s"));
    let front = Frontend::connect(bed.path("a"), LIMIT).unwrap();
    front.features().unwrap();
    assert_eq!(bed.ok(&["restart", "a"]), "restarted port a\n");
    // Its VMM was disconnected, and finds the port again.
    assert_eq!((&mut front.socket()).read(&mut [0]).unwrap(), 0);
    Frontend::connect(bed.path("a"), LIMIT).unwrap().features().unwrap();
    assert!(bed.fails(&["restart", "z"]).contains("there is no port \"z\""));
}

#[test]
fn a_good_vmm_after_a_bad_one_leaves_the_port_well() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&["--port", &vhost(&bed, "a")]);
    let mut bad = std::os::unix::net::UnixStream::connect(bed.path("a")).unwrap();
    bad.write_all(&[0xff; 64]).unwrap();
    await_true("faulted", || bed.port("a")["state"]["peer"] == "faulted");
    drop(bad);
    let connect = || Frontend::connect(bed.path("a"), LIMIT).unwrap();
    let good = NetDriver::start(connect(), Config::default()).unwrap();
    await_true("running", || bed.port("a")["state"]["peer"] == "running");
    drop(good);
    await_true("well", || bed.port("a")["state"]["peer"] == "waiting");
    let detail = bed.port("a")["state"]["detail"].to_string();
    assert!(!detail.contains("last fault"), "{detail}");
}

#[test]
fn a_stopped_daemon_is_named_and_its_counters_are_shown() {
    let bed = Testbed::new();
    let daemon = bed.daemon(&["--port", &vhost(&bed, "a")]);
    daemon.signal(Signal::STOP);
    let output = bed.run(&["show", "ports"]);
    let switches = bed.fails(&["show", "switches"]);
    daemon.signal(Signal::CONT);
    let errors = String::from_utf8(output.stderr).unwrap();
    let pid = daemon.pid().to_string();
    assert!(
        errors.contains(&pid) && errors.contains("kill -CONT") && errors.contains("counters"),
        "{errors}"
    );
    assert!(output.status.success() && String::from_utf8(output.stdout).unwrap().contains('a'));
    assert!(switches.contains("kill -CONT"), "{switches}");
}

#[test]
fn a_run_that_fails_leaves_no_files() {
    let bed = Testbed::new();
    let error = bed.fails(&["run", "--user", "no-such-user"]);
    assert!(error.contains("no-such-user"), "{error}");
    // The folder of ring ports stays: the broker, which has a socket in it, ends after the daemon.
    let entries = std::fs::read_dir(bed.path("")).unwrap().map(|entry| entry.unwrap());
    let files = entries.filter(|entry| !entry.file_type().unwrap().is_dir());
    let left: Vec<_> = files.map(|entry| entry.file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn processors_are_given_as_ranges_and_modes_without_quotes_are_explained() {
    let bed = Testbed::new();
    let last = std::thread::available_parallelism().unwrap().get() - 1;
    let file = bed.write("ranges.toml", &format!("[daemon]\ncores = \"0-{last}\"\n"));
    let daemon = bed.daemon(&[file.to_str().unwrap()]);
    assert_eq!(bed.show("cores")["cores"].as_array().unwrap().len(), last + 1);
    let cores = bed.ok(&["show", "cores"]);
    assert!(cores.contains("busy 1 s"), "{cores}");
    await_true("a last second", || bed.show("cores")["cores"][0]["last"]["sleep_ppm"].is_u64());
    drop(daemon);
    for text in ["mode = 0660", "mode = 660", "mode = []", "mode = 0o660"] {
        bed.write(
            "m.toml",
            &format!("[[port]]\nname = \"a\"\nkind = \"vhost-user\"\nwhere = \"DIR/a\"\n{text}\n"),
        );
        let error = bed.fails(&["run", "m.toml"]);
        assert!(error.contains("m.toml:5") && error.contains("\"0660\""), "{text}: {error}");
    }
}

#[test]
fn nobody_without_a_runtime_folder_is_left_without_advice() {
    let bed = Testbed::new();
    // It would run for ever where strangers may make folders in /run.
    let mut command = Command::new("timeout");
    command.args([
        "20",
        "setpriv",
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        env!("CARGO_BIN_EXE_sidecore"),
        "run",
    ]);
    let output = command
        .env_remove("XDG_RUNTIME_DIR")
        .env_remove("SIDECORE_SOCKET")
        .current_dir(bed.path(""))
        .output();
    let output = output.unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(error.contains("XDG_RUNTIME_DIR") && error.contains("--socket"), "{error}");
}

#[test]
fn metrics_come_in_the_older_format_for_who_asks_for_it() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&["--port", &vhost(&bed, "a")]);
    let mut stream = std::os::unix::net::UnixStream::connect(bed.path("control.sock")).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\naccept: text/plain\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{answer}");
    for line in [
        "# TYPE sidecore_frames_total counter",
        "# HELP sidecore_frames_total ",
        "# TYPE sidecore_addresses gauge",
    ] {
        assert!(answer.contains(line), "{line} in {answer}");
    }
    assert!(!answer.contains("# EOF"));
}

#[test]
fn an_interface_that_comes_back_is_used_again() {
    let bed = Testbed::new();
    let mut command = rig::unshare();
    command.args(["--net", env!("CARGO_BIN_EXE_sidecore"), "run"]);
    command.env("SIDECORE_SOCKET", bed.path("control.sock")).env_remove("NOTIFY_SOCKET");
    let daemon = Daemon::start(&mut command);
    let space = format!("--net=/proc/{}/ns/net", daemon.pid());
    let ip = |args: &str| {
        let status = Command::new("nsenter").arg(&space).arg("ip").args(args.split(' ')).status().unwrap();
        assert!(status.success(), "ip {args}");
    };
    ip("link add scv0 type veth peer name scv1");
    ip("link set scv1 up");
    bed.ok(&["add", "p=packet:scv0"]);
    let peer = |wanted: &str| await_true(wanted, || bed.port("p")["state"]["peer"] == wanted);
    peer("running");
    ip("link del scv0");
    peer("stopped");
    assert!(bed.ok(&["show", "ports"]).contains("there is no such interface"));
    ip("link add scv0 type veth peer name scv1");
    ip("link set scv1 up");
    peer("running");
}

#[test]
fn pkt_gen_says_what_it_waits_for_and_ends_when_nobody_reads() {
    let bed = Testbed::new();
    let mut child = bed.command();
    let path = format!("vhost-user:{}", bed.at("nowhere"));
    let mut child = child
        .args(["pkt-gen", "-f", "tx", "-i", &path])
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("nowhere") && line.contains("tries again for up to 20 s"), "{line}");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    wait(&mut child);

    let _daemon = bed.daemon(&["--port", "r=ring:r"]);
    let mut child = bed.command();
    let ring = bed.at("ring/r");
    child
        .args(["pkt-gen", "-f", "rx", "-i", &ring, "-T", "100"])
        .stderr(Stdio::piped())
        .stdout(Stdio::null());
    let mut child = child.spawn().unwrap();
    let mut err = BufReader::new(child.stderr.take().unwrap());
    err.read_line(&mut String::new()).unwrap();
    drop(err);
    // The next line of progress finds no reader.
    wait(&mut child);
}

#[test]
fn pkt_gen_with_two_threads_ends_wherever_frames_arrive() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&["--port", "a=ring:a", "--port", "b=ring:b,queues=2"]);
    let (a, b) = (bed.at("ring/a"), bed.at("ring/b"));
    let mut command = bed.command();
    command.args(["pkt-gen", "-f", "rx", "-i", &b, "-p", "2", "-n", "100"]).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut String::new()).unwrap();
    // One flow: all of it comes to one thread.
    assert!(bed.run(&["pkt-gen", "-f", "tx", "-i", &a, "-n", "100", "-R", "1000"]).status.success());
    assert!(wait(&mut child).success());
    let mut text = String::new();
    out.read_to_string(&mut text).unwrap();
    assert!(text.contains("Received 100 packets"), "{text}");
}

/// `mktemp -d` makes such a folder. Nobody but root may enter it, and the daemon is another user as soon as
/// it is ready.
#[test]
fn a_folder_that_only_root_may_enter_will_do_for_the_control_socket() {
    let bed = Testbed::new();
    std::fs::set_permissions(bed.path(""), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let _daemon = bed.daemon(&["--port", "a=ring:a"]);
    bed.ok(&["add", "b=ring:b"]);
    let [mut a, mut b] = ["ring/a", "ring/b"].map(|name| sidecore_port::Port::attach(&bed.at(name)).unwrap());
    let mut frame = vec![0xff; 60];
    frame[6..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    rig::pass(&mut a, &mut b, &frame);
    // A port by VALE's name.
    bed.ok(&["vale-ctl", "-n", "p"]);
}

#[test]
fn show_without_a_topic_has_what_there_is_and_how_it_is_doing() {
    let bed = Testbed::new();
    let (a, w) = (vhost(&bed, "a"), vhost(&bed, "w"));
    let (a, w) = (format!("{a},switch=s"), format!("{w},wire=x"));
    let daemon = bed.daemon(&["--switch", "s", "--switch", "t", "--router", "r", "--port", &a, "--port", &w]);
    let mut bad = std::os::unix::net::UnixStream::connect(bed.path("a")).unwrap();
    bad.write_all(&[0xff; 64]).unwrap();
    await_true("faulted", || bed.port("a")["state"]["peer"] == "faulted");
    let text = bed.ok(&["show"]);
    let line =
        |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{text}"));
    let words = |start| line(start).split_whitespace().collect::<Vec<_>>();
    assert_eq!(words("switch s")[2..6], ["a", "vhost-user", "down", "faulted"]);
    assert_eq!(words("wire x")[2..6], ["w", "vhost-user", "down", "waiting"]);
    assert_eq!((words("switch t").len(), words("router r").len()), (2, 2), "{text}");
    assert!(line("core").contains("busy 1 s") && line("a: ").contains("breaks the protocol"), "{text}");
    let all = bed.show("overview");
    let names =
        |key: &str| all[key].as_array().unwrap().iter().map(|it| it["name"].clone()).collect::<Vec<_>>();
    assert_eq!((names("ports"), names("routers")), (vec!["a".into(), "w".into()], vec!["r".into()]));
    assert!(names("switches").contains(&"t".into()) && all["cores"][0]["busy_ns"].is_u64(), "{all}");
    daemon.end(Signal::TERM);
    let gone = bed.run(&["show"]);
    assert!(gone.status.success() && String::from_utf8_lossy(&gone.stderr).contains("not running"));
    assert!(String::from_utf8_lossy(&gone.stdout).contains("in bytes"));
}

#[test]
fn show_watch_goes_on_until_nobody_reads() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&["--port", &vhost(&bed, "a")]);
    let mut command = bed.command();
    let mut child = command.args(["show", "ports", "--watch"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut heads = 0;
    while heads < 2 {
        let mut line = String::new();
        assert!(out.read_line(&mut line).unwrap() > 0);
        heads += usize::from(line.contains("in/s") && line.contains("drops/s"));
    }
    drop(out);
    assert!(wait(&mut child).success());
}

#[test]
fn shells_complete_the_names_of_ports_and_the_file_has_a_page() {
    let bed = Testbed::new();
    // Sockets with other names than their ports: shells complete the names of files, too.
    let port = |name: &str, socket: &str| format!("{name}=vhost-user:{}", bed.at(socket));
    let _daemon = bed.daemon(&["--port", &port("web1", "s"), "--port", &port("other", "t")]);
    let program = env!("CARGO_BIN_EXE_sidecore");
    let folder = std::path::Path::new(program).parent().unwrap().to_str().unwrap();
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap());
    for shell in ["bash", "zsh", "fish"] {
        bed.write("c", &bed.ok(&["completions", shell]));
        let complete = |words: &str| {
            let script = match shell {
                "bash" => format!(
                    ". ./c; COMP_WORDS=(sidecore {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=(); \
                     _sidecore_with_ports sidecore \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD - 1]}}\"; \
                     echo \"${{COMPREPLY[*]}}\""
                ),
                // Outside the line editor its builtins have to be played: those that complete, and what they
                // match with.
                "zsh" => format!(
                    "compdef() {{ [[ $1 == _sidecore_with_ports ]] || exit 1 }}; . ./c; _sidecore() {{ words=(); return 1 }}; \
                     compadd() {{ shift; print -l -- ${{(M)@:#$PREFIX*}} }}; words=(sidecore {words}); PREFIX=$words[-1]; \
                     _sidecore_with_ports"
                ),
                _ => format!("source ./c; complete -C 'sidecore {words}'"),
            };
            let mut command = Command::new(shell);
            let bare = if shell == "bash" { "--norc" } else { "--no-config" };
            command.args([if shell == "zsh" { "-f" } else { bare }, "-c", &script]).current_dir(bed.path(""));
            command.env("PATH", &path).env("SIDECORE_SOCKET", bed.path("control.sock"));
            let out = command.output().unwrap_or_else(|e| panic!("{shell}: {e}"));
            assert!(out.stderr.is_empty(), "{shell} {words}: {}", String::from_utf8_lossy(&out.stderr));
            String::from_utf8(out.stdout).unwrap()
        };
        for words in ["del we", "doctor we", "show port we"] {
            let names = complete(words);
            assert!(names.contains("web1") && !names.contains("other"), "{shell} {words}: {names}");
        }
        assert!(!complete("apply we").contains("web1"), "{shell}: `apply` takes a file");
    }
    bed.ok(&["man", &bed.at("man")]);
    let page = std::fs::read_to_string(bed.path("man/sidecore.toml.5")).unwrap();
    assert!(page.starts_with(".TH sidecore.toml 5"), "{page}");
}

/// `top` on a terminal of its own: Python's module `pty` makes it, and its standard input is what is typed.
#[test]
fn top_shows_what_is_asked_for_and_leaves_the_terminal_as_it_was() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&["--port", &vhost(&bed, "a")]);
    assert!(bed.fails(&["top"]).contains("needs a terminal"));
    let program = "import pty, sys\nsys.exit(pty.spawn(sys.argv[1:]) >> 8)";
    let mut command = Command::new("python3");
    command.args(["-c", program, env!("CARGO_BIN_EXE_sidecore"), "top"]);
    command.env("SIDECORE_SOCKET", bed.path("control.sock")).env("TERM", "xterm");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut keys, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut seen = String::new();
    let mut read_until = |seen: &mut String, what: &str| {
        while !seen.contains(what) {
            let mut bytes = [0; 4096];
            let got = screen.read(&mut bytes).unwrap();
            assert!(got > 0, "the end before {what:?}: {seen:?}");
            seen.push_str(&String::from_utf8_lossy(&bytes[..got]));
        }
    };
    read_until(&mut seen, "[ports]");
    read_until(&mut seen, "waiting");
    for (key, view) in [("c", "[cores]"), ("u", "[queues]"), ("d", "[drops]"), ("p", "[ports]")] {
        seen.clear();
        keys.write_all(key.as_bytes()).unwrap();
        read_until(&mut seen, view);
    }
    seen.clear();
    keys.write_all(b"q").unwrap();
    // The usual screen, with its cursor.
    read_until(&mut seen, "\x1b[?25h\x1b[?1049l");
    assert!(wait(&mut child).success());
}
