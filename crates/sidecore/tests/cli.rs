//! The command line from outside: a user's steps with the real program, vhost-user sockets as ports.

use crate::rig;
use std::fs::Permissions;
use std::io::Read;
use std::os::unix::fs::{chown, symlink, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;

use crate::rig::{mode, wait, Testbed, LIMIT};
use rustix::fs::{mknodat, FileType, Mode, CWD};
use rustix::process::Signal;
use serde_json::{json, Value};

#[test]
fn a_daemon_from_ready_to_its_end() {
    let bed = Testbed::new();
    let web = format!("web=vhost-user:{},mode=0600,queues=2", bed.at("web.sock"));
    let daemon = bed.daemon(&["--port", &web, "--switch", "s,ageing=9"]);
    assert_eq!(mode(&bed.path("web.sock")), 0o600);
    assert_eq!(mode(&bed.path("control.sock")), 0o660);
    let port = bed.port("web");
    assert_eq!(port["state"]["peer"], "waiting");
    assert_eq!((&port["state"]["link"], &port["state"]["link_wanted"]), (&json!("down"), &json!("up")));
    assert_eq!((&port["state"]["queues_wanted"], &port["state"]["queues"]), (&json!(2), &json!(0)));
    assert_eq!(port["state"]["switch"], "lan");
    assert_eq!(port["state"]["options"], json!({"mode": "0600", "queues": "2", "switch": "lan"}));

    let up = format!("up=vhost-user:{},switch=s", bed.at("up.sock"));
    assert_eq!(bed.ok(&["add", &up]), "added port up\n");
    assert_eq!(bed.ports(), ["up", "web"]);
    let table = bed.ok(&["show", "ports"]);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("port  kind        where"), "{table}");
    assert!(lines[1].starts_with("up    vhost-user  /"), "{table}");
    assert_eq!(lines[0].find("joined"), lines[2].find("switch lan"), "{table}");
    assert_eq!(bed.ok(&["del", "web"]), "deleted port web\n");
    assert!(!bed.path("web.sock").exists());

    for topic in ["mac", "cores", "queues", "drops"] {
        bed.show(topic);
        bed.ok(&["show", topic]);
    }
    assert_eq!(bed.show("cores")["cores"].as_array().unwrap().len(), 1);

    assert_eq!(daemon.end(Signal::TERM).code(), Some(0));
    assert!(!bed.path("control.sock").exists() && !bed.path("up.sock").exists());
    let output = bed.run(&["show", "ports", "--json"]);
    let ports: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&ports["running"], &ports["ports"][0]["name"]), (&json!(false), &json!("up")));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && errors.contains("the daemon is not running"), "{errors}");
    assert!(bed.fails(&["show", "mac"]).contains("no daemon listens on"));
    assert!(bed.fails(&["hold"]).contains("`sidecore run` starts one for each VMM"));
}

#[test]
fn a_bad_start_says_what_is_wrong_and_leaves_nothing() {
    let bed = Testbed::new();
    let file = bed
        .write("a.toml", "[[port]]\nname = \"web\"\nkind = \"vhost-user\"\nwhere = \"DIR/w\"\nqueues = 99\n");
    let cases: &[(&[&str], &str)] = &[
        (
            &["run", file.to_str().unwrap()],
            "a.toml:5: port web: key `queues`: \"99\" is not allowed; allowed: a number from 1 to 16",
        ),
        (&["run", "nowhere.toml"], "nowhere.toml: No such file or directory"),
        (
            &["run", "--port", "x=vdpa:/x"],
            "key `kind`: \"vdpa\" is not a kind that this build has; allowed: vhost-user, ",
        ),
        (
            &["run", "--port", "x=vhost-user:/x,switch=core"],
            "port x: key `switch`: there is no switch \"core\"; allowed: lan",
        ),
        (
            &["run", "--port", "x=e1000e:/x,features-off=pcix"],
            "port x: key `features-off`: \"pcix\" is not allowed; allowed: exitless, msix",
        ),
        (
            &["run", "--port", "x=e1000e:/x,csb=on"],
            "key `csb`: does not apply to kind e1000e; allowed: name, kind, where, ",
        ),
        (
            &["run", "--port", "x=e1000e:/x", "--port", "y=e1000:/x"],
            "port y: key `where`: port x has this place; choose another",
        ),
        (
            &["run", "--counters", "/nowhere/c"],
            "there is no folder for the counters file /nowhere/c; make it, or choose another path with ",
        ),
        (&["run", "--cores", "4000"], "cannot start I/O cores: there is no processor 4000"),
        (&["run", "--log", "a=b=c"], "--log \"a=b=c\": "),
    ];
    for (args, why) in cases {
        let errors = bed.fails(args);
        assert!(errors.contains(why), "{args:?}: {errors}");
        assert!(!bed.path("control.sock").exists(), "{args:?}");
    }
    for args in
        [&["run", "--nonsense"] as &[&str], &["show", "nonsense"], &[], &["run", "--socket-mode", "9"]]
    {
        assert_eq!(bed.run(args).status.code(), Some(2), "{args:?}");
    }
}

const FILE: &str = "
[[switch]]
name = 's'
ageing = 30

[[port]]
name = 'a'
kind = 'vhost-user'
where = 'DIR/a.sock'

[[port]]
name = 'b'
kind = 'vhost-user'
where = 'DIR/b.sock'
switch = 's'
mtu = 9000
";

#[test]
fn apply_is_the_difference_and_nothing_else() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&[]);
    bed.write("a.toml", FILE);
    let all = "added switch s\nadded port a\nadded port b\n";
    assert_eq!(bed.ok(&["apply", "--dry-run", "a.toml"]), all.replace("added", "would add"));
    assert!(bed.ports().is_empty() && !bed.path("a.sock").exists());
    assert_eq!(bed.ok(&["apply", "a.toml"]), all);
    let before = bed.show("ports");
    assert_eq!(bed.ok(&["apply", "a.toml"]), "nothing to change\n");
    assert_eq!(bed.show("ports"), before);

    bed.write("b.toml", &FILE.replace("9000", "2000").replace("'a'", "'c'").replace("ageing = 30", ""));
    assert_eq!(
        bed.ok(&["apply", "b.toml"]),
        "changed switch s (ageing: 30 → unset)\ndeleted port a\nchanged port b (mtu: 9000 → 2000)\nadded port c\n"
    );
    assert_eq!(bed.ports(), ["b", "c"]);
    assert!(bed.path("a.sock").exists(), "the new port has taken the old one's place");

    let before = bed.show("ports");
    let lines = FILE.replace("DIR/b.sock", "DIR/nowhere/b.sock");
    bed.write("c.toml", &lines);
    let errors = bed.fails(&["apply", "c.toml"]);
    assert!(errors.contains("c.toml: port b: ") && errors.contains("; nothing was changed"), "{errors}");
    assert_eq!(bed.show("ports"), before);
    bed.write("d.toml", &FILE.replace("mtu", "mut"));
    let errors = bed.fails(&["apply", "d.toml"]);
    assert!(
        errors.contains("d.toml:16: port b: key `mut`: no such key; did you mean `mtu`? allowed: "),
        "{errors}"
    );
    bed.write("e.toml", "[daemon]\ncores = [0, 1, 2, 3]\n");
    let errors = bed.fails(&["apply", "e.toml"]);
    assert!(errors.contains("[daemon] cores cannot change while the daemon runs"), "{errors}");
    assert_eq!(bed.show("ports"), before);
}

#[test]
fn a_card_without_a_vmm_says_so() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&["--port", &format!("card=e1000e:{}", bed.at("card"))]);
    assert!(bed.ok(&["show", "ports"]).contains("waiting"));
    let queues = bed.ok(&["show", "queues"]);
    assert_eq!(queues.matches("no VMM is connected").count(), 2, "{queues}");
    // The usual columns, and all of them.
    let wide = bed.ok(&["show", "queues", "--wide"]);
    assert!(!queues.contains("turn over") && wide.contains("turn over"), "{wide}");
    let card = bed.ok(&["show", "port", "card"]);
    assert!(card.contains("e1000e") && card.contains("no VMM is connected"), "{card}");
    let json: serde_json::Value = serde_json::from_str(&bed.ok(&["show", "port", "card", "--json"])).unwrap();
    assert_eq!(
        (&json["port"]["name"], json["queues"].as_array().unwrap().len()),
        (&"card".into(), 2),
        "{json}"
    );
    let error = bed.fails(&["show", "port", "cart"]);
    assert!(error.contains("there is no port \"cart\"; there are card"), "{error}");
    assert!(bed
        .fails(&["show", "ports", "card"])
        .contains("card: a name goes with `show port` and `show routes` only"));
}

#[test]
fn set_add_and_del_tell_the_truth() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&[]);
    let spec =
        |name: &str, rest: &str| format!("{name}=vhost-user:{}{rest}", bed.at(&format!("{name}.sock")));
    bed.ok(&["add", &spec("a", ""), &spec("b", ",wire=w")]);
    assert_eq!(bed.ok(&["set", "a", "wire=w"]), "changed port a (switch: lan → unset, wire: unset → w)\n");
    assert_eq!(bed.port("a")["state"]["wire"], "w");
    assert_eq!(
        bed.ok(&["set", "a", "mtu=9000", "link=down"]),
        "changed port a (link: unset → down, mtu: unset → 9000)\n"
    );
    let port = bed.port("a");
    assert_eq!((&port["state"]["mtu"], &port["state"]["link_wanted"]), (&json!(9000), &json!("down")));
    assert!(bed.ok(&["show", "ports"]).contains("a: link is down because it was set so"));
    assert_eq!(bed.ok(&["set", "a", "link=up"]), "changed port a (link: down → unset)\n");
    assert_eq!(bed.ok(&["set", "a", "queues=4"]), "restarted port a (queues: unset → 4)\n");
    assert_eq!(bed.ok(&["set", "a", "queues=4"]), "nothing to change\n");

    let errors = [
        (
            vec!["set", "a", "queues=0"],
            "port a: key `queues`: \"0\" is not allowed; allowed: a number from 1 to 16",
        ),
        (vec!["set", "a", "queu=1"], "port a: key `queu`: unknown field `queu`, expected one of "),
        (vec!["set", "a", "queu="], "port a: key `queu`: unknown field `queu`, expected one of "),
        (vec!["set", "a", "name=z"], "port a: key `name`: a port keeps its name"),
        (vec!["set", "a", "mac-limit=1"], "port a: key `mac-limit`: does not apply to a wire"),
        (vec!["set", "z", "mtu=1500"], "there is no port \"z\"; there are: a, b"),
        (vec!["set", "a", "mtu"], "\"mtu\" is not key=value"),
        (vec!["del", "z"], "there is no port \"z\"; there are: a, b"),
        (vec!["del", "--switch", "lan"], "switch \"lan\" cannot go: ports join it unless they say otherwise"),
        (vec!["add", "--switch", "lan"], "there is a switch \"lan\" already"),
        (vec!["capture", "z", "-w", "z.pcapng"], "there is no port \"z\"; there are: a, b"),
    ];
    let before = bed.show("ports");
    for (args, why) in errors {
        let said = bed.fails(&args);
        assert!(said.contains(why), "{args:?}: {said}");
    }
    assert!(bed.fails(&["add", &spec("a", "")]).contains("there is a port \"a\" already"));
    assert!(bed
        .fails(&["add", &spec("c", ",wire=w")])
        .contains("wire w joins a and b already; a wire has two ends"));
    assert_eq!(bed.show("ports"), before);
    assert!(!bed.path("z.pcapng").exists());

    assert_eq!(bed.ok(&["add", "--switch", "s,ageing=7"]), "added switch s\n");
    assert_eq!(bed.ok(&["set", "--switch", "s", "ageing="]), "changed switch s (ageing: 7 → unset)\n");
    assert_eq!(bed.ok(&["set", "a", "switch=s"]), "changed port a (switch: unset → s, wire: w → unset)\n");
    assert!(bed.fails(&["del", "--switch", "s"]).contains("switch \"s\" cannot go: port a is joined to it"));
}

#[test]
fn what_is_saved_is_what_runs() {
    let bed = Testbed::new();
    let file = bed.write("a.toml", FILE);
    let daemon = bed.daemon(&["a.toml"]);
    bed.ok(&["set", "a", "mtu=4000"]);
    let ports = bed.show("ports");
    assert_eq!(bed.ok(&["save"]), format!("saved to {}\n", file.display()));
    assert_eq!(bed.ok(&["save", "-"]), std::fs::read_to_string(&file).unwrap());
    assert_eq!(bed.ok(&["apply", "a.toml"]), "nothing to change\n");
    assert!(daemon.end(Signal::INT).success());
    let daemon = bed.daemon(&["a.toml"]);
    let names = |ports: &Value| -> Vec<Value> {
        ports["ports"].as_array().unwrap().iter().map(|p| json!([p["name"], p["state"]["mtu"]])).collect()
    };
    assert_eq!(names(&bed.show("ports")), names(&ports));

    // SIGHUP: the file again; a bad one changes nothing.
    bed.write("a.toml", &FILE.replace("9000", "1000").replace("'b'", "'d'"));
    daemon.signal(Signal::HUP);
    daemon.await_log("the configuration was applied again");
    assert_eq!(bed.ports(), ["a", "d"]);
    bed.write("a.toml", "[[port]]\nname = 3\n");
    daemon.signal(Signal::HUP);
    assert!(daemon.await_log("was not applied").contains("a.toml:2: port: key `name`: "));
    assert_eq!(bed.ports(), ["a", "d"]);
}

/// Where the daemon listens may stand in its file only: what applies the file finds it there, as the
/// service's reload has to.
#[test]
fn a_file_is_applied_to_the_daemon_that_it_is_for() {
    let bed = Testbed::new();
    let text = format!("[daemon]\nsocket = \"DIR/own.sock\"\n{FILE}");
    bed.write("a.toml", &text);
    let _daemon = bed.daemon(&["a.toml"]);
    assert!(!bed.path("control.sock").exists());
    bed.write("a.toml", &text.replace("9000", "1000"));
    assert!(bed.ok(&["apply", "a.toml"]).contains("9000 → 1000"));
    assert!(bed.fails(&["apply", "a.toml", "--socket", "control.sock"]).contains("no daemon listens"));
}

/// The configuration may be a link into a folder of its own, and belong to another user than who saves it.
#[test]
fn a_saved_file_keeps_its_owner_and_a_link_stays_one() {
    let bed = Testbed::new();
    std::fs::create_dir(bed.path("kept")).unwrap();
    let file = bed.write("kept/a.toml", FILE);
    let mut owner = file.metadata().map(|it| (it.uid(), it.gid())).unwrap();
    if owner.0 == 0 {
        owner = (65534, 65533);
        chown(&file, Some(owner.0), Some(owner.1)).unwrap();
    }
    std::fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
    symlink("kept/a.toml", bed.path("a.toml")).unwrap();
    let _daemon = bed.daemon(&["a.toml"]);
    bed.ok(&["set", "a", "mtu=4000"]);
    bed.ok(&["save"]);
    assert_eq!(std::fs::read_link(bed.path("a.toml")).unwrap().to_str(), Some("kept/a.toml"));
    assert!(std::fs::read_to_string(&file).unwrap().contains("4000"));
    let new = file.metadata().unwrap();
    assert_eq!((new.uid(), new.gid(), new.mode() & 0o777), (owner.0, owner.1, 0o640));
    // What a link leads to may be missing: nothing takes the link's place.
    symlink("nowhere/b.toml", bed.path("b.toml")).unwrap();
    assert!(bed.fails(&["save", "b.toml"]).contains("cannot write b.toml"));
    assert!(bed.path("b.toml").is_symlink());
}

/// What is wrong with one port's place is no reason for others not to run; asked for later, it is an error.
#[test]
fn a_port_that_cannot_start_is_told_of() {
    let bed = Testbed::new();
    let why = "there is no folder for the socket \"/nowhere/x.sock\"; make it, or choose another path";
    let daemon = bed.daemon(&["--port", "x=vhost-user:/nowhere/x.sock"]);
    assert!(daemon.await_log("it does not start").contains(why));
    let ports = bed.show("ports");
    let state = &ports["ports"][0]["state"];
    assert_eq!((&state["peer"], &state["detail"]), (&json!("stopped"), &json!(why)));
    assert!(bed.fails(&["add", "y=vhost-user:/nowhere/y.sock"]).contains("nothing was changed"));
}

#[test]
fn one_daemon_per_socket_and_another_after_a_kill() {
    let bed = Testbed::new();
    let daemon = bed.daemon(&["--port", &format!("a=vhost-user:{}", bed.at("a.sock"))]);
    assert!(bed.fails(&["run"]).contains("belongs to another daemon that runs"));
    let errors = bed.fails(&["run", "--counters", &bed.at("other")]);
    assert!(errors.contains("another daemon does; choose another path with --socket"), "{errors}");
    assert_eq!(bed.ports(), ["a"]);

    daemon.end(Signal::KILL);
    assert!(bed.path("control.sock").exists());
    let output = bed.run(&["show", "drops"]);
    assert!(output.status.success());
    assert!(String::from_utf8(output.stderr).unwrap().contains("the daemon is not running"));
    assert!(bed.fails(&["add", "b=vhost-user:/b"]).contains("no daemon listens on"));
    // A daemon of an older version writes to the counters without the other lock; a process that only reads
    // them is no daemon.
    let counters = bed.path("control.counters");
    let older = std::fs::File::options().write(true).open(&counters).unwrap();
    assert!(bed.fails(&["run"]).contains("belongs to another daemon that runs"));
    drop(older);
    let reader = std::fs::File::open(&counters).unwrap();
    rustix::fs::flock(&reader, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let _next = bed.daemon(&["--port", &format!("a=vhost-user:{}", bed.at("a.sock"))]);
    assert_eq!(bed.ports(), ["a"]);
}

#[test]
fn a_capture_ends_whole_however_it_ends() {
    let bed = Testbed::new();
    let spec = format!("a=vhost-user:{}", bed.at("a.sock"));
    let mut daemon = Some(bed.daemon(&["--port", &spec]));
    for end in ["del", "interrupt", "stop"] {
        let mut capture = bed
            .command()
            .args(["capture", "a", "-w", "-"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = capture.stdout.take().unwrap();
        // The head of the stream says that the capture runs.
        let mut bytes = vec![0; 28];
        out.read_exact(&mut bytes).unwrap();
        match end {
            "del" => {
                bed.ok(&["del", "a"]);
                bed.ok(&["add", &spec]);
            }
            "interrupt" => {
                let pid = rustix::process::Pid::from_child(&capture);
                rustix::process::kill_process(pid, Signal::INT).unwrap();
            }
            _ => assert!(daemon.take().unwrap().end(Signal::TERM).success()),
        }
        out.read_to_end(&mut bytes).unwrap();
        assert!(wait(&mut capture).success(), "{end}");
        let mut reader = pcap_file::pcapng::PcapNgReader::new(&bytes[..]).unwrap();
        let mut blocks = Vec::new();
        while let Some(block) = reader.next_block() {
            blocks.push(format!("{:?}", block.unwrap()));
        }
        assert!(blocks[0].starts_with("InterfaceDescription") && blocks[0].contains("\"a\""), "{blocks:?}");
        let statistics = blocks.iter().any(|block| block.starts_with("InterfaceStatistics"));
        assert_eq!(statistics, end != "interrupt", "{end}: {blocks:?}");
    }
}

#[test]
fn the_control_socket_speaks_http() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&["--port", &format!("a=vhost-user:{}", bed.at("a.sock"))]);
    let body = json!({"kind": "vhost-user", "where": bed.at("b.sock"), "mtu": 2000}).to_string();
    let (status, answer) = bed.http("PUT", "/v1/ports/b", &body);
    assert_eq!(status, 200, "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(
        answer,
        json!({"version": 2, "dry_run": false, "changes": [
        {"verb": "added", "what": "port", "name": "b", "details": []}]})
    );
    let (_, again) = bed.http("PUT", "/v1/ports/b", &body);
    assert_eq!(serde_json::from_str::<Value>(&again).unwrap()["changes"], json!([]));
    let (_, one) = bed.http("GET", "/v1/ports/b", "");
    let mut one: Value = serde_json::from_str(&one).unwrap();
    assert_eq!(one.as_object_mut().unwrap().remove("version"), Some(json!(2)));
    assert_eq!((&one["name"], &one["number"]), (&json!("b"), &bed.port("b")["number"]));

    let refused = [
        ("GET", "/v1/ports/z", "", 404, "there is no port"),
        ("DELETE", "/v1/ports/z", "", 404, "there is no port"),
        ("GET", "/v1/nothing", "", 404, "no such path"),
        ("POST", "/v1/mac", "", 405, "not that method"),
        ("PUT", "/v1/ports/c", "{", 400, "request body: "),
        ("PUT", "/v1/ports/c", "{\"name\": \"d\"}", 400, "but the path says"),
        ("PUT", "/v1/ports/c", "{\"kind\": \"vhost-user\"}", 400, "missing field `where`"),
        ("PUT", "/v1/config?dry-run=maybe", "{}", 400, "\"error\":\"Failed to deserialize query string"),
        ("PUT", "/v1/config", "{\"ports\": []}", 400, "unknown field `ports`"),
        (
            "POST",
            "/v1/ports",
            "{\"name\":\"a\",\"kind\":\"vhost-user\",\"where\":\"/x\"}",
            409,
            "there is a port",
        ),
        (
            "PUT",
            "/v1/ports/c",
            "{\"kind\":\"vhost-user\",\"where\":\"/nowhere/x\"}",
            500,
            "nothing was changed",
        ),
        ("GET", "/v1/capture/a?snaplen=1", "", 400, "snaplen from 14"),
    ];
    for (method, path, body, status, why) in refused {
        let (got, answer) = bed.http(method, path, body);
        assert_eq!(got, status, "{method} {path}: {answer}");
        assert!(answer.contains(why), "{method} {path}: {answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["version"], 2, "{method} {path}: {answer}");
    }
    let (status, answer) = bed.http("PUT", "/v1/config", &" ".repeat(2 << 20));
    assert!(status == 413 && answer.contains("\"version\":2"), "{status}: {answer}");
    assert_eq!(bed.ports(), ["a", "b"]);

    let (status, metrics) = bed.http("GET", "/metrics", "");
    assert_eq!(status, 200);
    for line in [
        "sidecore_frames_total{port=\"a\",direction=\"in\"} 0",
        "sidecore_port_state{port=\"a\",state=\"link_up\"} 0",
        "# TYPE sidecore_core_seconds counter",
        "# EOF",
    ] {
        assert!(metrics.lines().any(|other| other == line), "{line} in {metrics}");
    }
    let (_, description) = bed.http("GET", "/openapi.json", "");
    assert_eq!(description, bed.ok(&["openapi"]));
}

#[test]
fn the_service_manager_is_told() {
    let bed = Testbed::new();
    let manager = UnixDatagram::bind(bed.path("notify")).unwrap();
    manager.set_read_timeout(Some(LIMIT)).unwrap();
    let told = || {
        let mut buffer = [0; 256];
        let n = manager.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..n].to_vec()).unwrap()
    };
    let mut command = bed.command();
    let daemon = rig::Daemon::start(command.arg("run").env("NOTIFY_SOCKET", bed.path("notify")));
    assert_eq!(told(), "READY=1\n");
    daemon.signal(Signal::HUP);
    assert!(told().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    assert_eq!(told(), "READY=1\n");
    assert!(daemon.end(Signal::TERM).success());
    assert_eq!(told(), "STOPPING=1\n");
    // One that would end a daemon that stands still is told each second that it does not.
    let mut command = bed.command();
    command.arg("run").env("NOTIFY_SOCKET", bed.path("notify")).env("WATCHDOG_USEC", "4000000");
    let daemon = rig::Daemon::start(&mut command);
    assert_eq!([told(), told(), told()], ["READY=1\n", "WATCHDOG=1\n", "WATCHDOG=1\n"]);
    daemon.end(Signal::KILL);
}

#[test]
fn the_end_does_not_wait_for_a_configuration_that_is_being_read() {
    let bed = Testbed::new();
    let manager = UnixDatagram::bind(bed.path("notify")).unwrap();
    manager.set_read_timeout(Some(LIMIT)).unwrap();
    let await_told = |what: &str| {
        let mut buffer = [0; 256];
        let told = manager.recv(&mut buffer).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(buffer[..told].starts_with(what.as_bytes()), "{what}");
    };
    let file = bed.write("a.toml", "");
    let mut command = bed.command();
    let daemon = rig::Daemon::start(command.args(["run", "a.toml"]).env("NOTIFY_SOCKET", bed.path("notify")));
    await_told("READY=1");
    // Who reads it waits for its writer.
    std::fs::remove_file(&file).unwrap();
    mknodat(CWD, &file, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    daemon.signal(Signal::HUP);
    await_told("RELOADING=1");
    daemon.signal(Signal::TERM);
    await_told("STOPPING=1");
    drop(std::fs::File::options().write(true).open(&file).unwrap());
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn help_man_pages_and_completions_come_from_one_table() {
    let bed = Testbed::new();
    bed.ok(&["man", "pages"]);
    // The benchmarks are a program of their own, which has more to say on the page of that name.
    assert!(std::fs::read_to_string(bed.path("pages/sidecore-bench.1"))
        .unwrap()
        .contains("Starts `sidecore\\-bench`"));
    bed.ok(&["bench", "man", "pages"]);
    let commands =
        ["run", "show", "add", "del", "set", "apply", "save", "capture", "completions", "man", "openapi"];
    let [bash, bench] = [bed.ok(&["completions", "bash"]), bed.ok(&["bench", "completions", "bash"])];
    assert!(bash.contains(" bench ") && bench.contains(" sidecore-bench\n"));
    assert_eq!(bed.ok(&["help", "bench", "pvp"]), bed.ok(&["bench", "pvp", "--help"]));
    let bench = ["bench", "bench pvp", "bench rfc2544"].map(|command| (command, &bench));
    for (command, bash) in commands.map(|command| (command, &bash)).into_iter().chain(bench) {
        let words: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        let (help, command) = (bed.ok(&words), command.replace(' ', "-"));
        assert!(help.contains("Usage: sidecore "), "{help}");
        let page = std::fs::read_to_string(bed.path(&format!("pages/sidecore-{command}.1"))).unwrap();
        let page = page.replace("\\-", "-");
        let flags = help
            .lines()
            .filter_map(|line| line.trim_start().split([' ', ',', ':']).find(|w| w.starts_with("--")));
        for flag in flags {
            assert!(page.contains(flag), "{flag} in sidecore-{command}.1");
            assert!(bash.contains(flag), "{flag} in the completions of {command}");
        }
    }
    assert!(bed.ok(&["man"]).contains(".TH sidecore 1"));
}

/// scripts/dist-check looks at the version of an archive that has no git.
#[test]
fn the_version_names_the_commit() {
    let git = std::process::Command::new("git").args(["log", "-1", "--format=%H %cs"]).output();
    let commit = git.ok().map(|output| String::from_utf8(output.stdout).unwrap()).unwrap_or_default();
    let version = Testbed::new().ok(&["--version"]);
    let numbers = concat!("sidecore ", env!("CARGO_PKG_VERSION"));
    match commit.trim().split_once(' ') {
        Some((hash, date)) => assert_eq!(version, format!("{numbers} ({} {date})\n", &hash[..10])),
        None => assert!(version.starts_with(numbers), "{version}"),
    }
}

#[test]
fn without_the_program_of_the_benchmarks_bench_says_how_to_get_it() {
    let bed = Testbed::new();
    let program = bed.own_program();
    let output = std::process::Command::new(program).args(["bench", "pvp", "--json"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains(&bed.at("sidecore-bench")) && said.contains("cargo build -p sidecore-bench"),
        "{said}"
    );
}

#[test]
fn the_examples_of_the_documentation_are_right() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&["--cores", "0"]);
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let text = std::fs::read_to_string(docs.join("configuration.md")).unwrap();
    let examples: Vec<&str> =
        text.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(!examples.is_empty());
    for example in examples {
        bed.write("example.toml", example);
        assert!(bed.ok(&["apply", "--dry-run", "example.toml"]).contains("would add port "), "{example}");
    }
    // Every key and every field has its line, or its schema is named as the place where they are described.
    let description: Value = serde_json::from_str(&bed.ok(&["openapi"])).unwrap();
    let json = std::fs::read_to_string(docs.join("json.md")).unwrap();
    for (name, schema) in description["components"]["schemas"].as_object().unwrap() {
        let page = if name.ends_with("Spec") { &text } else { &json };
        let there = page.contains(&format!("`{name}`"));
        for key in schema["properties"].as_object().unwrap().keys().filter(|_| !there) {
            assert!(page.contains(&format!("`{key}`")), "`{key}` of {name}");
        }
    }
}
