//! `pkt-gen` from outside: a daemon, one program that receives, one that sends, and exact counts.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Stdio};

use crate::rig::{wait, Testbed};
use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;

/// Rings that hold all frames of a test: then none is lost however late the receiver is.
const PORTS: [&str; 4] = ["--port", "a=ring:a,slots=4096,queues=2", "--port", "b=ring:b,slots=4096,queues=2"];

/// A `pkt-gen` under way, attached to its port.
struct Running {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Running {
    fn start(bed: &Testbed, args: &str) -> Running {
        let mut command = bed.command();
        command.arg("pkt-gen").args(args.split(' ')).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Running { child, out }
    }

    /// Waits for a line of its progress on standard error with `text` in it.
    fn await_progress(&mut self, text: &str) {
        let lines = BufReader::new(self.child.stderr.as_mut().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.contains(text)), "no line with {text:?}");
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Its exit code, standard output and standard error.
    fn end(mut self) -> (Option<i32>, String, String) {
        let status = wait(&mut self.child);
        let (mut out, mut err) = (String::new(), String::new());
        self.out.read_to_string(&mut out).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        (status.code(), out, err)
    }
}

/// A receiver on `port`, ready to receive: it has said so.
fn receiver(bed: &Testbed, args: &str) -> Running {
    let mut receiver = Running::start(bed, args);
    let mut line = String::new();
    receiver.out.read_line(&mut line).unwrap();
    assert!(line.contains(" queues, "), "{line}{}", receiver.end().2);
    receiver
}

fn json(text: &str) -> Value {
    let value: Value = serde_json::from_str(text).unwrap();
    assert_eq!(value["version"], 1);
    value
}

fn send(bed: &Testbed, args: &str) -> String {
    let output = bed.run(&["pkt-gen"].into_iter().chain(args.split(' ')).collect::<Vec<_>>());
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{args}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn all_frames_sent_are_received_and_counted() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&PORTS);
    let b = receiver(&bed, "-i netmap:b -f rx -n 4000");
    let sent = send(&bed, "-i ring:a -f tx -n 4000 -w 0");
    let lines: Vec<&str> = sent.lines().collect();
    assert_eq!(lines[0], "Sending on ring:a: 2 queues, 1 threads and 1 cpus.");
    assert!(lines[1].starts_with("10.0.0.1:1234 -> 10.1.0.1:1234 (02:73:"), "{sent}");
    assert!(lines[2].starts_with("Sent 4000 packets 240000 bytes "), "{sent}");
    assert!(lines[2].contains(" events 60 bytes each in ") && lines[2].ends_with(" seconds."), "{sent}");
    assert!(lines[3].starts_with("Speed: ") && lines[3].contains("pps Bandwidth: "), "{sent}");
    let (code, received, errors) = b.end();
    assert_eq!(code, Some(0), "{errors}");
    assert!(received.starts_with("Received 4000 packets 240000 bytes "), "{received}");
    let (a, b) = (bed.port("a"), bed.port("b"));
    assert_eq!((&a["counters"]["in_frames"], &b["counters"]["out_frames"]), (&4000.into(), &4000.into()));
}

#[test]
fn threads_share_the_frames_and_random_lengths_arrive() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&PORTS);
    let b = receiver(&bed, "-i b -n 4001 -b 7");
    let args = "-i a -f tx -n 4001 -p 2 -b 33 -l 400 -l 60 -z -s 10.0.0.1:1-10.0.0.9:9 --json";
    let sent = json(&send(&bed, args));
    assert_eq!(
        (&sent["packets"], &sent["threads"], &sent["function"]),
        (&4001.into(), &2.into(), &"tx".into())
    );
    let (code, received, errors) = b.end();
    assert_eq!(code, Some(0), "{errors}");
    assert!(received.starts_with(&format!("Received 4001 packets {} bytes ", sent["bytes"])), "{received}");
}

#[test]
fn a_verified_run_loses_nothing_in_small_rings() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&["--port", "a=ring:vale0:a", "--port", "b=ring:vale0:b,queues=2"]);
    for (n, shape) in [
        (100_000, "-l 60 -s 10.0.0.1:1-10.0.0.1:7"),
        (5000, "-l 61 -l 1500 -d 10.1.0.1-10.1.0.3"),
        // Frames of several slots.
        (500, "-l 4000 -l 5000 -b 64 --window 256"),
    ] {
        if shape.contains("5000") {
            bed.ok(&["set", "a", "mtu=6000"]);
            bed.ok(&["set", "b", "mtu=6000"]);
        }
        let b = receiver(&bed, &format!("-i vale0:b -f rx --verify -n {n}"));
        let sent = json(&send(&bed, &format!("-i vale0:a -f tx --verify -n {n} {shape} --json")));
        assert_eq!(sent["packets"], n);
        let (code, received, errors) = b.end();
        assert_eq!(code, Some(0), "{errors}");
        let verified = received.lines().last().unwrap();
        assert!(verified.starts_with(&format!("Verified {n} packets of ")), "{received}");
        assert!(verified.contains(" flows: 0 lost, 0 reordered, 0 corrupt; "), "{received}");
    }
}

#[test]
fn pings_are_answered_and_timed() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&PORTS);
    let b = receiver(&bed, "-i b -f pong");
    let mut a = Running::start(&bed, "-i a -f ping -n 0 -T 20");
    a.await_progress("RTT: min ");
    a.signal(Signal::INT);
    let (code, text, errors) = a.end();
    assert_eq!(code, Some(0), "{errors}");
    assert!(text.contains("\nRTT over ") && text.contains("\nRTT percentiles: p50 "), "{text}");
    let pings = json(&send(&bed, "-i a -f ping -n 100 -l 200 --json"));
    let rtt = &pings["rtt_ns"];
    assert_eq!((&pings["packets"], &rtt["count"], &rtt["lost"]), (&100.into(), &100.into(), &0.into()));
    let order: Vec<u64> =
        ["min", "p50", "p90", "p99", "p99.9", "max"].iter().map(|key| rtt[*key].as_u64().unwrap()).collect();
    assert!(order[0] > 0 && order.is_sorted(), "{rtt}");
    b.signal(Signal::TERM);
    let (code, text, errors) = b.end();
    assert_eq!(code, Some(0), "{errors}");
    assert!(text.starts_with("Sent "), "{text}");
    // No station answers any more.
    let alone = bed.run(&["pkt-gen", "-i", "a", "-f", "ping", "-n", "1"]);
    assert_eq!(alone.status.code(), Some(1));
    assert!(String::from_utf8(alone.stderr).unwrap().contains("1 pings were not answered"));
}

#[test]
fn the_end_tells_the_truth() {
    let bed = Testbed::new();
    let daemon = bed.daemon(&PORTS);
    // Without a number of frames a signal is the end that was asked for.
    let mut a = Running::start(&bed, "-i a -f tx -T 20 -R 10K");
    a.await_progress(" min_space");
    a.signal(Signal::INT);
    let (code, text, errors) = a.end();
    assert_eq!(code, Some(0), "{errors}");
    assert!(text.contains("\nSent ") && text.contains("\nRate over "), "{text}");
    // With one it is not.
    let b = receiver(&bed, "-i b -f rx -n 5");
    b.signal(Signal::INT);
    let (code, text, errors) = b.end();
    assert_eq!((code, text.as_str()), (Some(1), "Received nothing.\n"));
    assert!(errors.contains("was interrupted after 0 of 5 packets"), "{errors}");
    // Frames of another sender do not pass verification.
    let b = receiver(&bed, "-i b -f rx --verify -n 5 -T 20");
    send(&bed, "-i a -f tx -n 10");
    b.signal(Signal::INT);
    let (code, _, errors) = b.end();
    assert_eq!(code, Some(1), "{errors}");
    // Silence ends a receiver that was asked to listen for it.
    let b = receiver(&bed, "-i b -f rx -W");
    send(&bed, "-i a -f tx -n 10");
    let (code, text, errors) = b.end();
    assert_eq!(code, Some(0), "{errors}");
    assert!(text.starts_with("Received 10 packets 600 bytes "), "{text}");
    // The daemon goes.
    let b = receiver(&bed, "-i b -f rx");
    drop(daemon);
    let (code, _, errors) = b.end();
    assert_eq!(code, Some(1));
    assert!(errors.contains("the daemon has ended"), "{errors}");
}

#[test]
fn what_cannot_be_done_says_why() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&PORTS);
    let _busy = receiver(&bed, "-i b");
    for (args, says) in [
        ("-i nobody", "no ring port at"),
        ("-i b", "in use by another program"),
        ("-i a -p 3", "give the port queues=3"),
        ("-i a -f tx -n 1 -l 9999999", "-l"),
        ("-i usb:a", "no such kind of port"),
        ("-i a -f tx -n 1 -a 9999", "-a 9999: "),
        ("-i a -f rx -R 10", "-R does not apply to -f rx"),
    ] {
        let output = bed.run(&["pkt-gen"].into_iter().chain(args.split(' ')).collect::<Vec<_>>());
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && errors.contains(says), "{args}: {errors}");
    }
}

#[test]
fn a_dump_shows_headers_of_the_size_that_was_asked_for() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&PORTS);
    let b = receiver(&bed, "-i b -X -n 2 -H 12");
    let sent = send(&bed, "-i a -f tx -X -n 2 -H 10 -S 02:00:00:00:00:01 -D 02:00:00:00:00:02 -s 1.2.3.4:5");
    let (code, received, errors) = b.end();
    assert_eq!(code, Some(0), "{errors}");
    let frame = "len 60\n    0: 02 00 00 00 00 02 02 00 00 00 00 01 08 00 45 00  ..............E.\n";
    assert_eq!((sent.matches(frame).count(), received.matches(frame).count()), (2, 2), "{sent}{received}");
    assert!(received.contains("73 69 64 65 63 6f"), "{received}");
}

#[test]
fn a_capture_is_sent_again() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&PORTS);
    let frame = |n: u8, len: usize| {
        let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
        bytes.resize(len, n);
        bytes
    };
    let mut file = pcap_file::pcap::PcapWriter::new(Vec::new()).unwrap();
    for (n, len) in [(1, 60), (2, 1514), (3, 61)] {
        let bytes = frame(n, len);
        let len = u32::try_from(len).unwrap();
        file.write_packet(&pcap_file::pcap::PcapPacket::new(Default::default(), len, &bytes)).unwrap();
    }
    std::fs::write(bed.path("a.pcap"), file.into_writer()).unwrap();
    let b = receiver(&bed, "-i b -X -n 7");
    let sent = json(&send(&bed, "-i a -f tx -P a.pcap -n 7 --json"));
    assert_eq!(sent["bytes"], 3 * 60 + 2 * 1514 + 2 * 61);
    let (code, received, errors) = b.end();
    assert_eq!(code, Some(0), "{errors}");
    let lengths: Vec<&str> = received.lines().filter_map(|line| line.strip_prefix("len ")).collect();
    assert_eq!(lengths, ["60", "1514", "61", "60", "1514", "61", "60"]);
    // A capture of our own, in the other format: what it took is what is sent.
    let mut capture = bed.command();
    capture.args(["capture", "a", "-w", "-", "--count", "3"]).stdout(Stdio::piped());
    let mut capture = capture.spawn().unwrap();
    let mut out = capture.stdout.take().unwrap();
    // The file's head comes when the capture has begun.
    let mut bytes = vec![0; 4];
    out.read_exact(&mut bytes).unwrap();
    send(&bed, "-i a -f tx -P a.pcap -n 3");
    out.read_to_end(&mut bytes).unwrap();
    assert!(wait(&mut capture).success());
    std::fs::write(bed.path("b.pcapng"), bytes).unwrap();
    let sent = json(&send(&bed, "-i a -f tx -P b.pcapng -n 3 --json"));
    assert_eq!(sent["bytes"], 60 + 1514 + 61);
    bed.write("none", "no capture at all, whatever its name says");
    assert!(bed.fails(&["pkt-gen", "-i", "a", "-f", "tx", "-P", "none"]).contains("-P none: "));
}

#[test]
fn the_benchmarks_of_ring_ports_lose_no_frame() {
    let bed = Testbed::new();
    let few = ["--rounds", "1", "--seconds", "0.02", "--json"];
    let limit = json(&bed.ok(&[&["bench", "limit"], &few[..]].concat()));
    assert!(limit["rows"].as_array().unwrap().iter().all(|row| row["ns"].as_f64().unwrap() > 0.0), "{limit}");
    // It ends with an error if not every frame arrives.
    let vale = bed.run(&[&["bench", "vale", "--receivers", "1,3", "--svg", "a.svg"], &few[..]].concat());
    assert!(vale.status.success(), "{}", String::from_utf8_lossy(&vale.stderr));
    let rows = json(&String::from_utf8(vale.stdout).unwrap());
    assert_eq!(rows["rows"].as_array().unwrap().len(), 8, "{rows}");
    assert!(std::fs::read_to_string(bed.path("a.svg")).unwrap().contains("<polyline"));
}

#[test]
fn vhost_user_sockets_in_both_roles_and_ring_ports_understand_each_other() {
    let bed = Testbed::new();
    let ports = [
        format!("v=vhost-user:{}", bed.at("v")),
        format!("w=vhost-user:{},role=client", bed.at("w")),
        "a=ring:a".to_owned(),
    ];
    let _daemon = bed.daemon(&ports.each_ref().map(|port| ["--port", port.as_str()]).concat());
    let (v, w) = (format!("vhost-user:{}", bed.at("v")), format!("vhost-user:{},role=server", bed.at("w")));
    for (to, from) in [(&v, "a"), (&w, &v), (&"a".to_owned(), &w)] {
        // A window that fits the 256 entries of a virtio ring, and the ring port's slots.
        let b = Running::start(&bed, &format!("-i {to} -f rx --verify -n 3000"));
        let sent =
            json(&send(&bed, &format!("-i {from} -f tx --verify -n 3000 -l 60 -l 1514 --window 256 --json")));
        assert_eq!(sent["packets"], 3000);
        let (code, received, errors) = b.end();
        assert_eq!(code, Some(0), "{from} to {to}: {errors}");
        assert!(received.contains("\nVerified 3000 packets of 1 flows: 0 lost, "), "{received}");
    }
    let pong = receiver(&bed, &format!("-i {v} -f pong"));
    let pings = json(&send(&bed, "-i a -f ping -n 50 --json"));
    assert_eq!(pings["rtt_ns"]["count"], 50);
    pong.signal(Signal::INT);
    assert_eq!(pong.end().0, Some(0));
    let two = bed.fails(&["pkt-gen", "-i", &v, "-f", "tx", "-p", "2"]);
    assert!(two.contains("driven by one thread"), "{two}");
}
