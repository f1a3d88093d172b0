//! Events, the read socket, the log as JSON, and what Grafana and Prometheus are told to ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, Receiver};

use rustix::process::Signal;
use serde_json::Value;
use sidecore_driver::{Config, Frontend, NetDriver};
use sidecore_port::Port;

use crate::rig::{last_of_two_processors, mode, until, wait, Testbed, LIMIT};

/// Events that are kept (docs/json.md).
const KEPT: usize = 1024;
/// Readers that there may be at once.
const READERS: usize = 16;

/// An answer to `GET /v1/events`.
struct Events(BufReader<UnixStream>);

impl Events {
    /// The status, and the answer behind its head.
    fn ask(bed: &Testbed, query: &str, header: &str) -> (u16, Events) {
        let mut stream = UnixStream::connect(bed.path("control.sock")).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        // In this version an answer without a length comes as it is, and ends with its connection.
        write!(stream, "GET /v1/events{query} HTTP/1.0\r\nhost: x\r\n{header}\r\n").unwrap();
        let mut events = Events(BufReader::new(stream));
        let status = events.line().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        while events.line().is_some_and(|line| !line.is_empty()) {}
        (status, events)
    }

    fn open(bed: &Testbed, query: &str) -> Events {
        let (status, events) = Events::ask(bed, query, "");
        assert_eq!(status, 200);
        events
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let end = self.0.read_line(&mut line).expect("something comes") == 0;
        (!end).then(|| line.trim_end_matches(['\r', '\n']).to_owned())
    }

    /// The next event; none: the answer has ended.
    fn next(&mut self) -> Option<Value> {
        let mut id = None;
        loop {
            let line = self.line()?;
            match line.split_once(": ") {
                Some(("id", number)) => id = Some(number.to_owned()),
                Some(("data", data)) => {
                    let event: Value = serde_json::from_str(data).unwrap();
                    assert_eq!(id, Some(event["seq"].to_string()));
                    assert!(event["time_ms"].as_u64().unwrap() > 1_600_000_000_000, "{event}");
                    return Some(event);
                }
                _ => assert_eq!(line, ""),
            }
        }
    }

    fn rest(mut self) -> Vec<Value> {
        std::iter::from_fn(|| self.next()).collect()
    }

    /// Waits for an event of this kind with `words` in its text, about the thing of this name.
    fn until(&mut self, event: &str, (what, name): (&str, &str), words: &str) -> Value {
        println!("waits for {event} of {what} {name}: {words:?}");
        loop {
            let next = self.next().unwrap();
            println!("{next}");
            if next["event"] == event && next[what] == name && next["text"].as_str().unwrap().contains(words)
            {
                return next;
            }
        }
    }
}

fn guest(bed: &Testbed, name: &str) -> NetDriver {
    NetDriver::start(Frontend::connect(bed.path(name), LIMIT).unwrap(), Config::default()).unwrap()
}

/// Changes the configuration so often: an event each.
fn change(bed: &Testbed, count: usize) {
    let mut stream = BufReader::new(UnixStream::connect(bed.path("control.sock")).unwrap());
    for i in 0..count {
        let body = format!("{{\"log\": \"{}\"}}", ["info", "warn"][i % 2]);
        let head = format!("PATCH /v1/daemon HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.get_mut().write_all((head + &body).as_bytes()).unwrap();
        let (mut line, mut length) = (String::new(), 0);
        while line != "\r\n" {
            line.clear();
            stream.read_line(&mut line).unwrap();
            if let Some(number) = line.strip_prefix("content-length: ") {
                length = number.trim().parse().unwrap();
            }
        }
        stream.read_exact(&mut vec![0; length]).unwrap();
    }
}

#[test]
fn what_happens_to_ports_queues_members_and_the_configuration_is_told() {
    last_of_two_processors();
    let bed = Testbed::new();
    let vhost = |name: &str, rest: &str| format!("{name}=vhost-user:{}{rest}", bed.at(name));
    let daemon = bed.daemon(&[
        "--cores=0,1",
        "--balance=off",
        // Events do not depend on what is logged.
        "--log=error",
        &format!("--port={}", vhost("v", "")),
        "--port=r=ring:r,rate=10",
        "--tenant=t,rate=10",
        "--port=p=ring:p,tenant=t",
        "--group=g",
        "--port=g0=group:g,interface=0,address=10.9.9.9/16,mac=02:00:00:00:00:02",
        &format!("--port={}", vhost("a", ",group=g,member=a,interface=0")),
        &format!("--port={}", vhost("b", ",group=g,member=b,interface=0")),
    ]);
    let mut events = Events::open(&bed, "");
    let port = |name| ("port", name);

    for _ in 0..2 {
        let driver = guest(&bed, "v");
        events.until("peer", port("v"), "a VMM has connected");
        events.until("link", port("v"), "up");
        drop(driver);
        events.until("link", port("v"), "down");
    }
    let _driver = guest(&bed, "v");
    events.until("link", port("v"), "up");
    bed.ok(&["set", "v", "link=down"]);
    events.until("link", port("v"), "down");
    bed.ok(&["set", "v", "link=up"]);
    events.until("configuration", port("v"), "changed port v (link: down → ");
    bed.ok(&["add", "--switch", "s"]);
    events.until("configuration", ("switch", "s"), "added switch s");
    bed.ok(&["log", "warn"]);
    assert_eq!(events.next().unwrap()["text"], "the log has a new filter: warn");
    // What changes nothing is no event.
    bed.ok(&["set", "v", "link=up"]);

    let mut program = Port::attach(&bed.at("ring/r")).unwrap();
    let mut told = BTreeSet::new();
    while told.len() < 2 {
        let event = events.next().unwrap();
        assert_ne!(event["event"], "configuration", "{event}");
        told.extend(Some(event["text"].to_string()).filter(|_| event["port"] == "r"));
    }
    assert_eq!(told, ["\"a client has connected\"", "\"its link is up\""].map(str::to_owned).into());
    let core = bed.show("queues")["queues"].as_array().unwrap().iter().find_map(|queue| {
        let core = queue["served"]["core"].as_u64()?;
        (queue["port"] == "r").then_some(core)
    });
    let other = 1 - core.unwrap();
    bed.ok(&["move", "r", &other.to_string()]);
    let moved = events.until("move", port("r"), "");
    assert_eq!((&moved["queue"], &moved["core"]), (&Value::from(0), &Value::from(other)));

    let mut of_tenant = Port::attach(&bed.at("ring/p")).unwrap();
    for program in [&mut program, &mut of_tenant] {
        (0..100).for_each(|_| assert!(program.tx[0].push(&[0xff; 60])));
        program.tx[0].sync().unwrap();
    }
    let mut throttled = BTreeSet::new();
    while throttled.len() < 2 {
        let event = events.next().unwrap();
        if event["event"] == "throttle" && event["text"].as_str().unwrap().contains("is throttled") {
            // A tenant's ports are not told of, it is.
            throttled.insert((event["port"].to_string(), event["tenant"].to_string()));
        }
    }
    let wanted =
        [("\"r\"", "null"), ("null", "\"t\"")].map(|(port, tenant)| (port.to_owned(), tenant.to_owned()));
    assert_eq!(throttled, BTreeSet::from(wanted));
    drop(program);
    events.until("peer", port("r"), "its client is gone");

    let mut members = ["a", "b"].map(|name| guest(&bed, name));
    for (driver, name) in members.iter_mut().zip(["a", "b"]) {
        driver.send(0, &[&[&[0xff; 6][..], &[2, 0, 0, 0, 0, 2], &[8, 6], &[0; 46]].concat()]).unwrap();
        events.until("drain", ("member", name), "active");
    }
    bed.ok(&["drain", "g/a", "--wait"]);
    let drained = events.until("drain", ("member", "a"), "drained, was");
    assert_eq!(drained["group"], "g");
    // A hello that is none.
    let mut hostile = UnixStream::connect(bed.path("v")).unwrap();
    hostile.write_all(&[0xff; 64]).unwrap();
    events.until("fault", port("v"), "");
    daemon.end(Signal::TERM);
}

#[test]
fn a_reader_goes_on_where_it_was_and_a_slow_one_is_told_what_it_has_missed() {
    let bed = Testbed::new();
    let daemon = bed.daemon(&["--port=r=ring:r"]);
    assert!(Events::open(&bed, "?follow=false").rest().is_empty());
    let mut slow = Events::open(&bed, "");
    change(&bed, 4);
    let all = Events::open(&bed, "?follow=false").rest();
    let number = |event: &Value| event["seq"].as_u64().unwrap();
    let numbers: Vec<u64> = all.iter().map(number).collect();
    assert_eq!(numbers, (numbers[0]..numbers[0] + 4).collect::<Vec<_>>());
    let resumed = Events::open(&bed, &format!("?follow=false&after={}", numbers[1])).rest();
    assert_eq!(resumed, all[2..]);
    let (status, events) =
        Events::ask(&bed, "?follow=false&after=0", &format!("Last-Event-ID: {}\r\n", numbers[2]));
    assert_eq!((status, events.rest()), (200, all[3..].to_vec()));
    assert_eq!(Events::ask(&bed, "", "Last-Event-ID: x\r\n").0, 400);
    assert_eq!(Events::ask(&bed, "?after=x", "").0, 400);
    // A number of an earlier daemon.
    assert_eq!(Events::open(&bed, "?follow=false&after=7").rest(), all);

    // More than fits into its socket and what is kept: the daemon answers others meanwhile, or this does not
    // end.
    let count = 5 * KEPT;
    change(&bed, count);
    let kept = Events::open(&bed, "?follow=false").rest();
    assert_eq!(kept.len(), KEPT);
    let late = Events::open(&bed, &format!("?follow=false&after={}", numbers[0])).rest();
    let missed = count + 3 - KEPT;
    assert_eq!((&late[0]["event"], &late[0]["missed"]), (&Value::from("missed"), &Value::from(missed)));
    assert_eq!(late[1..], kept);
    let (mut next, mut gaps) = (numbers[0], 0);
    while next <= number(&kept[KEPT - 1]) {
        let event = slow.next().unwrap();
        if event["event"] == "missed" {
            assert_eq!(number(&event) + 1, next + event["missed"].as_u64().unwrap());
            gaps += 1;
        } else {
            assert_eq!(number(&event), next);
        }
        next = number(&event) + 1;
    }
    assert_eq!(gaps, 1);

    // No more readers than there may be; they hold up neither others nor the end.
    let mut readers: Vec<_> = (1..READERS).map(|_| Events::open(&bed, "")).collect();
    let (status, mut refused) = Events::ask(&bed, "", "");
    assert!(status == 503 && refused.line().unwrap().contains("readers of events"));
    readers.pop();
    until("slot", || Events::ask(&bed, "?follow=false", "").0 == 200);
    daemon.end(Signal::TERM);
    assert_eq!(slow.next(), None);
}

#[test]
fn a_hostile_text_stays_in_its_line() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&[&format!("--port=v=vhost-user:{}", bed.at("v"))]);
    let place = bed.at("<img src=x>\"'\n\ndata: {}\n\u{1b}[2J");
    let body = serde_json::json!({ "where": place }).to_string();
    let (status, answer) = bed.http("PATCH", "/v1/ports/v", &body);
    assert_eq!(status, 200, "{answer}");
    let mut events = Events::open(&bed, "?follow=false");
    let event = events.until("configuration", ("port", "v"), "<img src=x>");
    let text = event["text"].as_str().unwrap();
    assert!(!text.contains(char::is_control), "{text:?}");
    assert_eq!(events.next(), None);
    let printed = bed.ok(&["events"]);
    assert!(printed.lines().count() == 1 && printed.contains(r"\u{1b}[2J"), "{printed:?}");
}

/// `sidecore events --follow`.
struct Follower {
    child: Child,
    out: Receiver<String>,
    errors: Receiver<String>,
}

impl Follower {
    fn start(bed: &Testbed, args: &[&str]) -> Follower {
        fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
            let (sender, lines) = channel();
            std::thread::spawn(move || {
                // The test may have ended.
                BufReader::new(from).lines().map_while(Result::ok).for_each(|line| drop(sender.send(line)));
            });
            lines
        }
        let mut command = bed.command();
        command.args(["events", "--follow"]).args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (out, errors) = (lines(child.stdout.take().unwrap()), lines(child.stderr.take().unwrap()));
        Follower { child, out, errors }
    }

    fn next(&self) -> String {
        self.out.recv_timeout(LIMIT).unwrap()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_command_prints_the_history_and_follows_over_a_restart() {
    let bed = Testbed::new();
    assert!(bed.fails(&["events", "--follow"]).contains("no daemon listens"));
    let daemon = bed.daemon(&["--port=r=ring:r"]);
    assert_eq!(bed.ok(&["events"]), "");
    bed.ok(&["set", "r", "mtu=2000"]);
    let printed = bed.ok(&["events"]);
    let (time, rest) = printed.split_once("  ").unwrap();
    assert!(time.len() == 24 && time.starts_with("20") && time.ends_with('Z'), "{printed}");
    assert_eq!(rest, "configuration  changed port r (mtu: unset → 2000)\n");
    let json: Value = serde_json::from_str(&bed.ok(&["events", "--json"])).unwrap();
    assert_eq!((&json["event"], &json["port"]), (&Value::from("configuration"), &Value::from("r")));

    let follower = Follower::start(&bed, &[]);
    assert!(follower.next().contains("mtu: unset"));
    bed.ok(&["set", "r", "mtu=3000"]);
    assert!(follower.next().contains("mtu: 2000 → 3000"));
    daemon.end(Signal::TERM);
    let said = |text: &str| {
        let line = follower.errors.recv_timeout(LIMIT).unwrap();
        assert!(line.starts_with("sidecore: ") && line.contains(text), "{line}");
    };
    said("events go on when it is there again");
    let _daemon = bed.daemon(&["--port=r=ring:r"]);
    said("the daemon is there again");
    // The events of the daemon that has ended are not there again, and none of this one is missed.
    bed.ok(&["set", "r", "mtu=4000"]);
    assert!(follower.next().contains("mtu: unset → 4000"));
    assert!(follower.errors.try_recv().is_err());

    // It ends when nobody reads on.
    let mut closed = bed.command();
    let mut closed = closed.args(["events", "--follow"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(closed.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    drop(out);
    bed.ok(&["set", "r", "mtu=5000"]);
    assert!(wait(&mut closed).success());
}

#[test]
fn the_read_socket_shows_and_changes_nothing() {
    let bed = Testbed::new();
    // Elsewhere than the control socket, as its group may be.
    std::fs::create_dir(bed.path("beside")).unwrap();
    let beside = bed.at("beside/read.sock");
    let daemon = bed.daemon(&["--read-socket", &beside, "--read-socket-mode", "0664", "--port", "r=ring:r"]);
    assert_eq!((mode(Path::new(&beside)), mode(&bed.path("control.sock"))), (0o664, 0o660));
    let at = ["--socket", &*beside];
    for command in [&["show"][..], &["show", "ports"], &["show", "daemon"], &["doctor", "r"], &["log"]] {
        // doctor finds that nobody is there.
        let output = bed.run(&[command, &at].concat());
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(!output.stdout.is_empty() && errors.is_empty(), "{command:?}: {errors}");
    }
    let control = bed.at("control.sock");
    let refused = |command: &[&str]| {
        let said = bed.fails(&[command, &at].concat());
        assert!(
            said.contains("only shows what is so") && said.contains(&format!("--socket {control}")),
            "{said}"
        );
    };
    refused(&["set", "r", "mtu=2000"]);
    refused(&["add", "x=ring:x"]);
    refused(&["del", "r"]);
    refused(&["restart", "r"]);
    refused(&["log", "debug"]);
    refused(&["cores", "1"]);
    refused(&["capture", "r", "--write", &bed.at("x.pcapng")]);
    let ask = |request: &str| {
        let mut stream = UnixStream::connect(&beside).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        write!(stream, "{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(ask("GET /metrics").contains("sidecore_port_state{port=\"r\",state=\"link_up\"} 0"));
    assert!(ask("GET /v1/nothing").starts_with("HTTP/1.1 404"));
    for request in
        ["GET /v1/capture", "GET /v1/capture/r", "PUT /v1/config", "X /v1/ports", "POST /v1/ports/r/explain"]
    {
        assert!(ask(request).starts_with("HTTP/1.1 403"), "{request}");
    }
    assert_eq!(bed.ports(), ["r"]);
    assert!(bed.port("r")["state"]["options"].as_object().unwrap().get("mtu").is_none());
    // It is counted with the control socket.
    let open = Events::ask(&bed, "", "");
    let stream = UnixStream::connect(&beside).unwrap();
    until("count", || bed.show("daemon")["clients"]["control"]["open"] == 3);
    drop((open, stream));
    until("count", || bed.show("daemon")["clients"]["control"]["open"] == 1);
    daemon.end(Signal::TERM);
    assert!(!Path::new(&beside).exists());
    let output = bed.run(&["run", "--read-socket", &control]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("read socket") && said.contains("choose another path with --read-socket"),
        "{said}"
    );
}

#[test]
fn each_line_of_the_log_can_be_json() {
    let bed = Testbed::new();
    let file = bed.write(
        "c.toml",
        "[daemon]\nlog-format = \"json\"\n[[port]]\nname = \"v\"\nkind = \"vhost-user\"\nwhere = \"DIR/v\"\n",
    );
    let daemon = bed.daemon(&[file.to_str().unwrap()]);
    drop(guest(&bed, "v"));
    let line = daemon.await_log("a VMM has connected");
    let value: Value = serde_json::from_str(&line).unwrap();
    for (key, wanted) in
        [("level", "INFO"), ("port", "v"), ("event", "peer"), ("message", "a VMM has connected")]
    {
        assert_eq!(value[key], wanted, "{line}");
    }
    assert!(value["timestamp"].is_string() && value["target"].is_string(), "{line}");
    bed.ok(&["set", "v", "mtu=2000"]);
    daemon.await_log("mtu: unset");
    for line in daemon.rest_of_log().lines() {
        assert!(serde_json::from_str::<Value>(line).unwrap().is_object(), "{line}");
    }
}

/// Labels, with their values where there is one.
type Labels = Vec<(String, Option<String>)>;

/// The metrics that `text` names, each with the labels by which it is asked for, and their values if it says
/// one.
fn asked(text: &str) -> Vec<(String, Labels)> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let starts = text.match_indices("sidecore_").filter(|(at, _)| !text[..*at].ends_with(word));
    let one = |(at, _): (usize, &str)| {
        let rest = &text[at..];
        let end = rest.find(|c| !word(c)).unwrap_or(rest.len());
        let braces = rest[end..].strip_prefix('{').and_then(|rest| rest.split_once('}'));
        let labels = braces.map_or("", |(labels, _)| labels).split(',').filter_map(|pair| {
            let (label, value) = pair.split_once('=')?;
            let exact = !value.starts_with('~');
            Some((label.to_owned(), exact.then(|| value.trim_matches('"').to_owned())))
        });
        (rest[..end].to_owned(), labels.collect())
    };
    starts.map(one).collect()
}

#[test]
fn dashboard_and_alerts_ask_for_what_there_is() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&[
        "--tenant=t,budget=10%",
        "--port=r=ring:r,tenant=t",
        "--port=s=ring:s,budget=10%",
        &format!("--port=d=blk:{},file=ram:1M", bed.at("d")),
    ]);
    let mut programs = ["r", "s"].map(|name| Port::attach(&bed.at(&format!("ring/{name}"))).unwrap());
    // One that is dropped: it is too short.
    assert!(programs[0].tx[0].push(&[0; 8]));
    programs[0].tx[0].sync().unwrap();
    // What was used is known after a second or two.
    let mut metrics = String::new();
    until("metrics", || {
        metrics = bed.ok(&["show", "drops"]) + &bed.http("GET", "/metrics", "").1;
        ["sidecore_port_used_ppm{", "sidecore_tenant_used_ppm{", "sidecore_dropped_frames_total{"]
            .iter()
            .all(|name| metrics.contains(name))
    });
    let mut rows: BTreeMap<&str, BTreeSet<(&str, &str)>> = BTreeMap::new();
    for line in metrics.lines().filter(|line| line.starts_with("sidecore_")) {
        let (name, labels) =
            line.split_once('{').map_or((line, ""), |(name, rest)| (name, rest.rsplit_once('}').unwrap().0));
        let pairs = labels.split("\",").filter_map(|pair| pair.split_once("=\""));
        rows.entry(name.split(' ').next().unwrap())
            .or_default()
            .extend(pairs.map(|(l, v)| (l, v.trim_matches('"'))));
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/grafana");
    let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
    let dashboard: Value = serde_json::from_str(&read("sidecore.json")).unwrap();
    let mut texts = vec![("alerts.yml", read("alerts.yml"))];
    let panels = dashboard["panels"].as_array().unwrap();
    let mut places = BTreeSet::new();
    for panel in panels {
        assert!(places.insert(panel["gridPos"].to_string()), "two panels at {}", panel["gridPos"]);
        let targets = panel["targets"].as_array().into_iter().flatten();
        for target in targets {
            let (expression, legend) =
                (target["expr"].as_str().unwrap(), target["legendFormat"].as_str().unwrap());
            // A label in the legend is one that the rows have, if there are any.
            let names = asked(expression);
            for label in legend.split("{{").skip(1).map(|rest| rest.split("}}").next().unwrap()) {
                let known = |(name, _): &(String, _)| {
                    rows.get(name.as_str()).is_none_or(|row| row.iter().any(|(l, _)| *l == label))
                };
                assert!(label == "instance" || names.iter().any(known), "{label}: {expression}");
            }
            texts.push(("sidecore.json", expression.to_owned()));
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        texts.extend(variable["definition"].as_str().map(|query| ("sidecore.json", query.to_owned())));
    }
    assert!(texts.len() > 15);
    for (file, text) in &texts {
        let names = asked(text);
        assert!(!names.is_empty(), "{file}: {text}");
        for (name, labels) in names {
            // There are rows of errors when there are errors.
            let Some(row) = rows.get(name.as_str()) else {
                let plain = name.trim_end_matches("_total");
                assert!(
                    name.contains("errors") && metrics.contains(&format!("# TYPE {plain} ")),
                    "{file}: {name}"
                );
                continue;
            };
            for (label, value) in labels.iter().filter(|(label, _)| label != "instance") {
                let fits =
                    |(l, v): &(&str, &str)| l == label && value.as_deref().is_none_or(|value| value == *v);
                assert!(row.iter().any(fits), "{file}: {name} {label}={value:?}");
            }
        }
    }
    // Prometheus' own judgement, where it is installed; what a panel asks is a rule, too.
    let rule = |(n, (_, text)): (usize, &(_, String))| {
        let text = text.replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$port", ".*");
        format!("  - record: a:b{n}\n    expr: {}\n", Value::from(text))
    };
    let asked =
        texts.iter().filter(|(file, text)| *file == "sidecore.json" && !text.contains("label_values"));
    let rules: String = asked.enumerate().map(rule).collect();
    let panels = bed.write("panels.yml", &format!("groups:\n- name: a\n  rules:\n{rules}"));
    for file in [root.join("alerts.yml"), panels] {
        match Command::new("promtool").args(["check", "rules"]).arg(&file).output() {
            Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::NotFound),
            Ok(judged) => assert!(judged.status.success(), "{}", String::from_utf8_lossy(&judged.stderr)),
        }
    }
}
