//! `sidecore web` from outside: who may ask, what is told, and what becomes of it without a daemon.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{kill_process, Pid, Signal};
use serde_json::{json, Value};
use sidecore_port::Port;

use crate::rig::{mode, until, wait, Testbed, LIMIT};

const TWO: [&str; 4] = ["--port", "a=ring:a", "--port", "b=ring:b"];

/// `sidecore web`; killed when this is dropped.
struct Web {
    child: Child,
    /// What it printed: a URL or a socket.
    place: String,
    address: String,
    cookie: String,
}

impl Drop for Web {
    fn drop(&mut self) {
        // Both fail if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Answer {
    status: u16,
    head: String,
    body: String,
    bytes: Vec<u8>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    fn is(&self, status: u16, part: &str) {
        assert!(self.status == status && self.body.contains(part), "{} {}", self.status, self.body);
    }
}

/// One request over `stream`, with these lines in its head.
fn talk(mut stream: impl Read + Write, method: &str, path: &str, lines: &[String], body: &str) -> Answer {
    let lines = lines.join("\r\n");
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\n{lines}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all((head + body).as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|it| it == b"\r\n\r\n").unwrap();
    let (head, body) = (std::str::from_utf8(&answer[..end]).unwrap(), &answer[end + 4..]);
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    // Bodies that are passed on come in pieces, each behind its length.
    let bytes = match head.contains("transfer-encoding: chunked") {
        true => pieces(body),
        false => body.to_vec(),
    };
    let body = String::from_utf8_lossy(&bytes).into_owned();
    Answer { status, head: format!("{}\r\n", head.to_lowercase()), body, bytes }
}

fn pieces(mut rest: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = rest.windows(2).position(|it| it == b"\r\n") {
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        let piece = &rest[end + 2..];
        whole.extend(&piece[..length]);
        rest = &piece[length + 2..];
    }
    whole
}

impl Web {
    fn start(bed: &Testbed, args: &[&str]) -> Web {
        Web::start_with(bed, args, Stdio::inherit())
    }

    fn start_with(bed: &Testbed, args: &[&str], stderr: Stdio) -> Web {
        let mut command = bed.command();
        let mut child = command.arg("web").args(args).stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let mut place = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut place).unwrap();
        let place = place.trim_end().to_owned();
        let mut web = Web { child, address: String::new(), cookie: String::new(), place };
        if let Some((address, path)) = web.place.strip_prefix("http://").and_then(|url| url.split_once('/')) {
            web.address = address.to_owned();
            let answer = web.raw("GET", &format!("/{path}"), &[&format!("host: {address}")]);
            let cookie = answer.head.split_once("set-cookie: ").unwrap().1;
            assert!(cookie.contains("; path=/; httponly; samesite=strict\r\n"), "{cookie}");
            web.cookie = cookie.split(';').next().unwrap().to_owned();
        }
        web
    }

    fn on_tcp(bed: &Testbed, args: &[&str]) -> Web {
        Web::start(bed, &[&["--listen", "127.0.0.1:0"], args].concat())
    }

    fn stream(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    }

    fn raw(&self, method: &str, path: &str, lines: &[&str]) -> Answer {
        let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        talk(self.stream(), method, path, &lines, "")
    }

    fn lines(&self) -> Vec<String> {
        vec![format!("host: {}", self.address), format!("cookie: x=y; {}", self.cookie)]
    }

    fn get(&self, path: &str) -> Answer {
        talk(self.stream(), "GET", path, &self.lines(), "")
    }

    fn post(&self, path: &str, body: &Value) -> Answer {
        let token = self.get("/api/session").json()["token"].as_str().unwrap().to_owned();
        let more = [format!("x-sidecore-token: {token}"), "content-type: application/json".to_owned()];
        talk(self.stream(), "POST", path, &[&self.lines()[..], &more].concat(), &body.to_string())
    }

    /// What it tells as it comes.
    fn live(&self) -> Live {
        let mut stream = self.stream();
        let lines = self.lines().join("\r\n");
        stream.write_all(format!("GET /api/live HTTP/1.1\r\n{lines}\r\n\r\n").as_bytes()).unwrap();
        Live(BufReader::new(stream))
    }

    fn memory_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

struct Live(BufReader<TcpStream>);

impl Live {
    /// The next of this name for which `what` holds.
    fn await_event(&mut self, name: &str, what: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        let mut named = false;
        for line in self.0.by_ref().lines() {
            let line = line.unwrap();
            assert!(start.elapsed() < LIMIT, "no {name}: {line}");
            match line.strip_prefix("data: ").filter(|_| named) {
                Some(data) => {
                    let data = serde_json::from_str(data).unwrap();
                    if what(&data) {
                        return data;
                    }
                }
                None => named = line == format!("event: {name}"),
            }
        }
        panic!("the stream ended before {name}");
    }
}

#[test]
fn only_who_has_the_token_may_ask_and_only_from_its_own_page() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&TWO);
    let web = Web::on_tcp(&bed, &["--write"]);
    let (host, cookie) = (format!("host: {}", web.address), format!("cookie: {}", web.cookie));
    let page = web.get("/");
    page.is(200, "<title>sidecore</title>");
    for safety in [
        "content-security-policy: default-src 'none'; script-src 'self';",
        "frame-ancestors 'none'",
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
        "cache-control: no-store",
    ] {
        assert!(page.head.contains(safety), "{}", page.head);
    }
    // Nothing that the page loads is elsewhere.
    for path in ["/", "/main.js", "/live.js", "/topology.js", "/page.css"] {
        let text = web.get(path).body.replace("http://www.w3.org/2000/svg", "");
        assert!(!text.is_empty() && !text.contains("http:") && !text.contains("https:"), "{path}");
    }
    for path in ["/", "/main.js", "/api/session", "/api/live", "/api/v1/ports", "/api/capture/a"] {
        web.raw("GET", path, &[&host]).is(401, "token");
        web.raw("GET", path, &[&host, "cookie: sidecore=0"]).is(401, "token");
        web.raw("GET", path, &["host: sidecore.example.org", &cookie]).is(421, "Host");
        web.raw("GET", path, &[&host, &cookie, "origin: http://example.org"]).is(403, "Origin");
        web.raw("GET", path, &[&host, &cookie, "origin: null"]).is(403, "Origin");
    }
    web.raw("GET", "/?token=0123456789abcdef0123456789abcdef", &[&host]).is(401, "token");
    // Through a tunnel the port may be another one.
    web.raw("GET", "/api/session", &["host: localhost:9", &cookie]).is(200, "token");
    // A form of another site, or a link, has the cookie at most.
    let own = format!("origin: http://{}", web.address);
    for lines in
        [vec![&*host, &cookie], vec![&host, &cookie, &own], vec![&host, &cookie, "x-sidecore-token: 0"]]
    {
        web.raw("POST", "/api/set/a", &lines).is(403, "own token");
    }
    assert_eq!(bed.port("a")["state"]["link_wanted"], "up");
    let mut live = web.live();
    web.post("/api/set/a", &json!({ "link": "down" })).is(200, "changed");
    live.await_event("event", |it| it["event"] == "configuration" && it["port"] == "a");
    assert_eq!(bed.port("a")["state"]["link_wanted"], "down");
    web.post("/api/set/a", &json!({ "mtu": "x" })).is(400, "key `mtu`");
    // What it does not offer is not passed on.
    for path in [
        "/api/v1/config",
        "/api/v1/ports/a/move",
        "/api/v1/../metrics",
        "/api/v1/capture",
        "/metrics",
        "/v1/ports",
    ] {
        assert_eq!(web.get(path).status, 404, "{path}");
    }
}

#[test]
fn without_write_it_only_shows() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&TWO);
    let web = Web::on_tcp(&bed, &[]);
    assert_eq!(web.get("/api/session").json()["write"], false);
    web.post("/api/set/a", &json!({ "link": "down" })).is(403, "--write");
    web.post("/api/drain/g/m", &json!({ "drain": true })).is(403, "--write");
    assert_eq!(bed.port("a")["state"]["link_wanted"], "up");
    // A file of this process's is no frame.
    bed.write("frame", "x");
    web.post("/api/explain/a", &json!({ "what": bed.at("frame") })).is(400, "is no frame");
    let what = "dst-mac=02:00:00:00:00:02 src-mac=02:00:00:00:00:01";
    let steps = web.post("/api/explain/a", &json!({ "what": what })).json();
    assert_eq!(steps["steps"][0]["why"], "no_destination", "{steps}");
    let refused = web.get("/api/trace/c");
    assert!(refused.status == 409 && refused.body.contains("no port \\\"c\\\""), "{}", refused.body);
}

#[test]
fn whoever_connects_without_a_token_takes_neither_memory_nor_the_page_for_long() {
    let bed = Testbed::new();
    let mut web = Web::start_with(&bed, &["--listen", "127.0.0.1:0"], Stdio::piped());
    let mut said = BufReader::new(web.child.stderr.take().unwrap());
    // More than have a place: the others are closed.
    let mut strangers: Vec<TcpStream> = (0..400).map(|_| web.stream()).collect();
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.contains("256 connections are open"), "{line}");
    assert_eq!(strangers.last_mut().unwrap().read(&mut [0]).unwrap(), 0);
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", web.child.id())).unwrap().count();
    assert!(descriptors < 300 && web.memory_kib() < 30 << 10, "{descriptors}, {} KiB", web.memory_kib());
    // One that was refused, and one that sends no head, lose their place. So others have it.
    for head in ["GET / HTTP/1.1\r\nhost: localhost\r\n\r\n", ""] {
        let mut stream = strangers.remove(0);
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer.contains("401 Unauthorized"), !head.is_empty(), "{answer}");
    }
    web.get("/").is(200, "<title>sidecore</title>");
    kill_process(Pid::from_child(&web.child), Signal::TERM).unwrap();
    line.clear();
    assert_eq!(said.read_line(&mut line).unwrap(), 0, "{line}");
}

#[test]
fn a_unix_socket_is_its_owners() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&TWO);
    let (path, listen) = (bed.path("web.sock"), format!("unix:{}", bed.at("web.sock")));
    let mut web = Web::start(&bed, &["--listen", &listen, "--write"]);
    assert_eq!((web.place.as_str(), mode(&path)), (listen.as_str(), 0o600));
    let ask = |method: &str, path: &str, lines: &[&str]| {
        let stream = UnixStream::connect(bed.path("web.sock")).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        talk(stream, method, path, &lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>(), "{}")
    };
    // Its proxy has a name of its own.
    ask("GET", "/api/v1/ports", &["host: net.example.org"]).is(200, "\"a\"");
    ask("GET", "/api/v1/ports", &["host: net.example.org", "origin: https://net.example.org"])
        .is(200, "\"a\"");
    ask("GET", "/api/v1/ports", &["host: net.example.org", "origin: https://example.org"]).is(403, "Origin");
    ask("POST", "/api/set/a", &["host: net.example.org"]).is(403, "own token");
    assert!(bed.fails(&["web", "--listen", &listen]).contains("another process listens at"));
    // One that was killed leaves its file, and one that ends takes it along.
    web.child.kill().unwrap();
    web.child.wait().unwrap();
    assert!(path.exists());
    let mut web = Web::start(&bed, &["--listen", &listen]);
    kill_process(Pid::from_child(&web.child), Signal::TERM).unwrap();
    assert!(wait(&mut web.child).success());
    assert!(!path.exists());
    // What is no socket is not in its way: connecting to that is refused, too. Nor is a link followed.
    let file = bed.write("precious", "text");
    std::os::unix::fs::symlink(&file, bed.path("link")).unwrap();
    for name in ["precious", "link"] {
        let refused = bed.fails(&["web", "--listen", &format!("unix:{}", bed.at(name))]);
        assert!(refused.contains("exists and is no socket"), "{refused}");
        assert_eq!(std::fs::read_to_string(bed.path(name)).unwrap(), "text");
    }
    let refused = bed.run(&["web", "--listen", "0.0.0.0:1"]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && said.contains("ssh -L"), "{said}");
}

#[test]
fn it_tells_what_is_so_while_the_daemon_comes_and_goes() {
    let bed = Testbed::new();
    let web = Web::on_tcp(&bed, &[]);
    let mut live = web.live();
    let absent = live.await_event("status", |it| it["state"] == "absent");
    assert!(absent["text"].as_str().unwrap().contains("no daemon listens on"), "{absent}");
    web.get("/api/v1/ports").is(502, "no daemon listens on");
    let daemon = bed.daemon(&TWO);
    live.await_event("status", |it| it["state"] == "running" && it["text"] == "");
    let scene = live.await_event("scene", |_| true);
    let names: Vec<_> = scene["ports"].as_array().unwrap().iter().map(|port| &port["name"]).collect();
    assert_eq!(names, ["a", "b"]);
    daemon.end(Signal::TERM);
    live.await_event("status", |it| it["state"] == "absent");
    // Another one has other ports.
    let _daemon = bed.daemon(&["--port", "c=ring:c"]);
    live.await_event("status", |it| it["state"] == "running");
    live.await_event("scene", |it| it["ports"][0]["name"] == "c");
    live.await_event("sample", |it| it["rows"].as_array().unwrap().len() == 2);
    // What was before is still there.
    let row = web.get("/api/history?row=port:a").json();
    assert!(!row["times"].as_array().unwrap().is_empty(), "{row}");
    let first = row["times"][0].as_u64().unwrap();
    let then = web.get(&format!("/api/at?time={first}")).json();
    assert_eq!(then["scene"]["ports"][0]["name"], "a");
}

#[test]
fn traffic_and_drops_are_what_the_daemon_counts() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&TWO);
    let web = Web::on_tcp(&bed, &[]);
    let mut live = web.live();
    live.await_event("sample", |it| it["rows"][0] == 0 || it["rows"][0][0] == 0);
    let mut a = Port::attach(&bed.at("ring/a")).unwrap();
    live.await_event("scene", |it| it["ports"][0]["link"] == "up");
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
    frame.resize(60, 0);
    // No program is at b. A capture has them, too, and ends as a whole file.
    let (address, lines) = (web.address.clone(), web.lines());
    let capture = std::thread::spawn(move || {
        let stream = TcpStream::connect(address).unwrap();
        talk(stream, "GET", "/api/capture/a?seconds=2", &lines, "")
    });
    until("capture", || bed.port("a")["state"]["captures"].is_array());
    (0..10).for_each(|_| assert!(a.tx[0].push(&frame)));
    a.tx[0].sync().unwrap();
    let sample = live.await_event("sample", |it| it["drops"] != json!([]));
    let counted = &bed.port("a")["counters"];
    until("all counted", || bed.port("a")["counters"]["in_frames"] == 10);
    let (port, reason) = (sample["drops"][0][0].as_u64().unwrap(), sample["drops"][0][1].as_str().unwrap());
    let name = ["a", "b"][usize::try_from(port).unwrap()];
    assert!(bed.port(name)["counters"]["drops"][reason].as_u64().unwrap() >= 1, "{sample} {counted}");
    let captured = capture.join().unwrap();
    assert!(captured.head.contains("filename=\"a.pcapng\""), "{}", captured.head);
    let mut reader = pcap_file::pcapng::PcapNgReader::new(&captured.bytes[..]).unwrap();
    let blocks = std::iter::from_fn(|| Some(reader.next_block()?.unwrap().into_enhanced_packet().is_some()));
    assert_eq!(blocks.filter(|packet| *packet).count(), 10);
    // The numbers of all seconds together are the counter.
    let numbers = web.get("/api/history?row=port:a").json();
    let sum: f64 = numbers["columns"][0].as_array().unwrap().iter().filter_map(Value::as_f64).sum();
    assert!((9.0..=11.0).contains(&sum), "{numbers}");
    let checks = web.get("/api/doctor/a").json();
    assert_eq!(checks["checks"][0]["about"], "peer", "{checks}");
    // The program goes, and the page knows within two seconds.
    drop(a);
    let gone = Instant::now();
    live.await_event("scene", |it| it["ports"][0]["link"] == "down");
    assert!(gone.elapsed() < Duration::from_secs(2), "{:?}", gone.elapsed());
}

/// A daemon of an earlier version, as far as one can still be had: it answers little. It ends when it was
/// asked `most` times for events.
fn older(listener: &UnixListener, most: usize) {
    let asked = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let asked = Arc::clone(&asked);
        let mut stream = BufReader::new(stream.unwrap());
        std::thread::spawn(move || {
            let mut line = String::new();
            while stream.read_line(&mut line).is_ok_and(|read| read > 0) {
                if let Some(path) = line.strip_prefix("GET ").and_then(|rest| rest.split(' ').next()) {
                    if path == "/v1/events" && asked.fetch_add(1, Ordering::Relaxed) >= most {
                        let event = "HTTP/1.1 200 OK\r\n\r\ndata:{\"seq\":1,\"event\":\"newer\"}\n";
                        return stream.get_mut().write_all(event.as_bytes()).unwrap();
                    }
                    let (status, body) = match path {
                        "/v1/daemon" => ("200 OK", r#"{"version":1,"program":"0.0.9 (0)","pid":1}"#),
                        "/v1/ports" => ("200 OK", r#"{"ports":[{"name":"old","counters":{"in_frames":1}}]}"#),
                        _ => ("404 Not Found", r#"{"version":1,"error":"no such path"}"#),
                    };
                    let length = body.len();
                    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}");
                    match stream.get_mut().write_all(answer.as_bytes()) {
                        Err(e) if e.kind() == ErrorKind::BrokenPipe => return,
                        done => done.unwrap(),
                    }
                }
                line.clear();
            }
        });
    }
}

#[test]
fn an_older_daemon_is_shown_as_far_as_it_goes() {
    let bed = Testbed::new();
    let listener = UnixListener::bind(bed.path("control.sock")).unwrap();
    std::thread::spawn(move || older(&listener, 1));
    let web = Web::on_tcp(&bed, &[]);
    let mut live = web.live();
    let status = live.await_event("status", |it| it["state"] == "running");
    assert!(status["text"].as_str().unwrap().contains("0.0.9"), "{status}");
    live.await_event("scene", |it| it["ports"][0]["name"] == "old" && it["switches"] == json!([]));
    live.await_event("sample", |it| it["rows"].as_array().unwrap().len() == 1);
    web.get("/api/doctor/old").is(409, "no such path");
    // Another daemon has come by now, and it has events.
    live.await_event("event", |it| it["event"] == "newer");
}

#[test]
fn a_thousand_ports_take_little_memory() {
    let bed = Testbed::new();
    let port = |n| format!("[[port]]\nname = \"p{n}\"\nkind = \"vhost-user\"\nwhere = \"DIR/{n}.sock\"\n");
    let file = bed.write("many.toml", &(0..1000).map(port).collect::<String>());
    let _daemon = bed.daemon(&[file.to_str().unwrap()]);
    let web = Web::on_tcp(&bed, &[]);
    let mut live = web.live();
    live.await_event("scene", |it| it["ports"].as_array().unwrap().len() == 1000);
    let mut last = 0;
    for _ in 0..3 {
        let sample = live.await_event("sample", |it| it["time"].as_u64() > Some(last));
        last = sample["time"].as_u64().unwrap();
    }
    // A page that reads nothing holds nobody up, and takes no more.
    let asleep = web.live();
    live.await_event("sample", |it| it["time"].as_u64() > Some(last + 2_000));
    drop(asleep);
    // Without its history, whose bound is a test of its own.
    assert!(web.memory_kib() < 30 << 10, "{} KiB", web.memory_kib());
}
