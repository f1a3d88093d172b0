//! Frames through the real daemon, from one native driver to another, as `show` and a capture see them.

use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::rig::{wait, Testbed, LIMIT};
use rustix::process::Signal;
use serde_json::{json, Value};
use sidecore_driver::{Config, Frontend, NetDriver};

const A: [u8; 6] = [2, 0, 0, 0, 0, 1];
const B: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn frame(to: [u8; 6], from: [u8; 6], len: usize) -> Vec<u8> {
    let mut bytes = [&to[..], &from, &[0x88, 0xb5]].concat();
    bytes.resize(len, 0);
    bytes
}

fn meet(bed: &Testbed, name: &str) -> NetDriver {
    NetDriver::start(Frontend::connect(bed.path(name), LIMIT).unwrap(), Config::default()).unwrap()
}

fn await_frame(driver: &mut NetDriver) {
    let deadline = Instant::now() + LIMIT;
    while driver.receive(0, |_, _| ()).unwrap() == 0 {
        assert!(Instant::now() < deadline, "no frame arrives");
        driver.wait(Duration::from_millis(20)).unwrap();
    }
}

/// Asks until `what` holds of the answer; what is asked for happens on an I/O core's own time.
fn await_show(bed: &Testbed, topic: &str, what: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + LIMIT;
    loop {
        let answer = bed.show(topic);
        if what(&answer) {
            return answer;
        }
        assert!(Instant::now() < deadline, "{answer}");
    }
}

#[test]
fn what_passes_is_counted_learned_and_captured() {
    let bed = Testbed::new();
    let daemon = bed.daemon(&[
        "--port",
        &format!("a=vhost-user:{}", bed.at("a.sock")),
        "--port",
        &format!("b=vhost-user:{}", bed.at("b.sock")),
    ]);
    let (mut a, mut b) = (meet(&bed, "a.sock"), meet(&bed, "b.sock"));
    await_show(&bed, "ports", |ports| {
        ports["ports"].as_array().unwrap().iter().all(|port| port["state"]["peer"] == "running")
    });
    let mut capture = bed
        .command()
        .args(["capture", "a", "-w", "-", "--count", "3"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = capture.stdout.take().unwrap();
    let mut bytes = vec![0; 28];
    out.read_exact(&mut bytes).unwrap();

    a.send(0, &[&frame(B, A, 60)]).unwrap();
    await_frame(&mut b);
    b.send(0, &[&frame(A, B, 100)]).unwrap();
    await_frame(&mut a);
    a.send(0, &[&frame(B, A, 1600)]).unwrap();
    let drops = await_show(&bed, "drops", |drops| !drops["drops"].as_array().unwrap().is_empty());
    assert_eq!(
        drops["drops"],
        json!([{"port": "a", "reason": "too_long", "frames": 1,
                "meaning": "longer than the MTU of the port by which it came in; MPLS labels and third tags count"}])
    );
    let table = bed.ok(&["show", "drops"]);
    assert!(table.lines().nth(1).unwrap().starts_with("     1  a     too_long  longer than"), "{table}");

    out.read_to_end(&mut bytes).unwrap();
    assert!(wait(&mut capture).success());
    let mut reader = pcap_file::pcapng::PcapNgReader::new(&bytes[..]).unwrap();
    let mut lengths = Vec::new();
    while let Some(block) = reader.next_block() {
        if let Some(packet) = block.unwrap().into_enhanced_packet() {
            lengths
                .push((packet.original_len, format!("{:?}", packet.options).contains("dropped: too_long")));
        }
    }
    assert_eq!(lengths, [(60, false), (100, false), (1600, true)]);

    let addresses = bed.show("mac");
    let known: Vec<_> = addresses["addresses"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| json!([row["switch"], row["mac"], row["port"]]))
        .collect();
    assert_eq!(known, [json!(["lan", "02:00:00:00:00:01", "a"]), json!(["lan", "02:00:00:00:00:02", "b"])]);
    let sums = |name: &str| bed.port(name)["counters"].clone();
    let (a_sums, b_sums) = (sums("a"), sums("b"));
    assert_eq!(
        (&a_sums["in_frames"], &a_sums["in_bytes"], &a_sums["out_bytes"]),
        (&json!(2), &json!(1660), &json!(100))
    );
    assert_eq!((&b_sums["in_frames"], &b_sums["out_frames"]), (&json!(1), &json!(1)));
    let queues = bed.show("queues");
    let running = queues["queues"].as_array().unwrap().iter().filter(|queue| queue["state"] == "running");
    assert_eq!(running.count(), 4);

    // A larger MTU while it runs; the frame that was too long now passes.
    bed.ok(&["set", "a", "mtu=9000"]);
    a.send(0, &[&frame(B, A, 1600)]).unwrap();
    await_frame(&mut b);

    // A port that goes takes its addresses along, and its sums stay in `retired`.
    bed.ok(&["del", "b"]);
    let ports = bed.show("ports");
    assert_eq!(ports["retired"]["in_frames"], 1);
    assert_eq!(bed.show("mac")["addresses"].as_array().unwrap().len(), 1);

    // The counters outlive the daemon.
    daemon.end(Signal::KILL);
    let output = bed.run(&["show", "ports", "--json"]);
    let ports: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&ports["running"], &ports["ports"][0]["counters"]["in_frames"]), (&json!(false), &json!(3)));
}

/// A capture that is slower than its port says how much it lacks, on standard error and in the file, and
/// costs the port nothing.
#[test]
fn a_capture_that_is_not_read_says_what_it_lacks() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&["--port", &format!("a=vhost-user:{}", bed.at("a.sock"))]);
    let mut a = meet(&bed, "a.sock");
    await_show(&bed, "ports", |ports| ports["ports"][0]["state"]["peer"] == "running");
    let mut capture = bed
        .command()
        .args(["capture", "a", "-w", "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = capture.stdout.take().unwrap();
    let mut bytes = vec![0; 28];
    out.read_exact(&mut bytes).unwrap();
    // Nobody reads on.
    let deadline = Instant::now() + LIMIT;
    let (one, lost) = (frame(B, A, 1500), || bed.port("a")["state"]["capture_lost"].as_u64().unwrap());
    let mut sent = 0;
    while lost() == 0 {
        sent += (0..1000).map(|_| a.send(0, &[&one]).unwrap()).sum::<usize>();
        assert!(Instant::now() < deadline, "the capture has room without end");
    }
    await_show(&bed, "ports", |ports| ports["ports"][0]["counters"]["in_frames"] == sent);
    let (sent, lost) = (u64::try_from(sent).unwrap(), lost());
    // With its port the capture ends: all that it has is read now.
    bed.ok(&["del", "a"]);
    out.read_to_end(&mut bytes).unwrap();
    assert!(wait(&mut capture).success());
    let mut said = String::new();
    capture.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(
        said.lines().last().unwrap().ends_with(&format!("{} frames captured, {lost} lost", sent - lost)),
        "{said}"
    );
    let mut reader = pcap_file::pcapng::PcapNgReader::new(&bytes[..]).unwrap();
    let mut packets = 0;
    while let Some(block) = reader.next_block() {
        packets += u64::from(block.unwrap().into_enhanced_packet().is_some());
    }
    assert_eq!(packets, sent - lost);
}

#[test]
fn the_link_follows_set_and_the_mac_limit_holds() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&[
        "--port",
        &format!("a=vhost-user:{},mac-limit=1", bed.at("a.sock")),
        "--port",
        &format!("b=vhost-user:{}", bed.at("b.sock")),
    ]);
    let (mut a, _b) = (meet(&bed, "a.sock"), meet(&bed, "b.sock"));
    a.send(0, &[&frame(B, A, 60), &frame(B, [2, 0, 0, 0, 0, 3], 60)]).unwrap();
    let limited =
        |drops: &Value| drops["drops"].as_array().unwrap().iter().any(|d| d["reason"] == "mac_limit");
    await_show(&bed, "drops", limited);
    let port = bed.port("a");
    assert_eq!((&port["state"]["macs"], &port["state"]["mac_limit"]), (&json!(1), &json!(1)));

    bed.ok(&["set", "b", "link=down"]);
    let down = |ports: &Value| {
        let port = &ports["ports"][1]["state"];
        port["link"] == "down" && port["peer"] != "running"
    };
    await_show(&bed, "ports", down);
    bed.ok(&["set", "b", "link=up"]);
    let mut again = meet(&bed, "b.sock");
    a.send(0, &[&frame([0xff; 6], A, 60)]).unwrap();
    let deadline = Instant::now() + LIMIT;
    while again.receive(0, |_, _| ()).unwrap() == 0 {
        assert!(Instant::now() < deadline);
        // The broadcast may have come before the new link was up.
        a.complete(0).unwrap();
        a.send(0, &[&frame([0xff; 6], A, 60)]).unwrap();
        again.wait(Duration::from_millis(20)).unwrap();
    }
}
