//! Ring ports of the real daemon, used through the client library by this process.

use std::time::Instant;

use crate::rig::{pass, until, Testbed, LIMIT};
use serde_json::Value;
use sidecore_port::{Interest, Port, WaitError};

fn frame(to: u8, from: u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 0x88, 0xb5];
    bytes.resize(len, from);
    bytes
}

const PORTS: [&str; 4] =
    ["--port", "a=ring:a,queues=2,slots=64,buf-size=4096,extra-bufs=8", "--port", "b=ring:vale0:b,mode=0600"];

#[test]
fn programs_meet_on_a_switch_and_outlive_the_daemon() {
    let bed = Testbed::new();
    let daemon = bed.daemon(&PORTS);
    let (name_a, name_b) = (bed.at("ring/a"), bed.at("ring/vale0:b"));
    let mut a = Port::attach(&name_a).unwrap();
    let mut b = Port::attach(&name_b).unwrap();
    let info = a.info();
    assert_eq!((info.tx_rings, info.tx_slots, info.buf_size, info.extra_bufs), (2, 64, 4096, 8));
    pass(&mut a, &mut b, &frame(2, 1, 1514));
    pass(&mut b, &mut a, &frame(1, 2, 60));
    let port = bed.port("a");
    assert_eq!(port["state"]["peer"], "running", "{port}");
    assert_eq!(port["counters"]["in_frames"], 1, "{port}");
    // A daemon that is killed takes its sockets' files with it or not; the next one takes them over.
    drop(daemon);
    assert!(matches!(a.wait(Interest::RECEIVE, Some(LIMIT)), Err(WaitError::Gone)));
    let _daemon = bed.daemon(&PORTS);
    a.reattach().unwrap();
    b.reattach().unwrap();
    pass(&mut a, &mut b, &frame(2, 1, 60));
    // A port that goes ends its program's connection, nothing else.
    bed.ok(&["del", "b"]);
    assert!(!b.is_attached());
    assert!(a.is_attached());
}

#[test]
fn a_port_has_a_queue_shorter_than_its_ring() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&["--port", "a=ring:a", "--port", "b=ring:b,slots=256,queue=64"]);
    let mut a = Port::attach(&bed.at("ring/a")).unwrap();
    let mut b = Port::attach(&bed.at("ring/b")).unwrap();
    // The switch knows where b is.
    pass(&mut b, &mut a, &frame(1, 2, 60));
    let mut send = |frames: usize, so_far: u64| {
        (0..frames).for_each(|_| assert!(a.tx[0].push(&frame(2, 1, 60))));
        a.tx[0].sync().unwrap();
        until("end of all frames", || {
            let counters = &bed.port("b")["counters"];
            let [out, dropped] = [&counters["out_frames"], &counters["drops"]["queue_full"]];
            out.as_u64().unwrap() + dropped.as_u64().unwrap_or(0) == so_far + frames as u64
        });
        bed.port("b")["counters"]["out_frames"].as_u64().unwrap()
    };
    assert_eq!(send(200, 0), 64);
    // While it runs, and its program stays.
    bed.ok(&["set", "b", "queue=100"]);
    assert_eq!(send(200, 200), 100);
    // The program takes frames, and there is room for as many.
    assert!(b.wait(Interest::RECEIVE, Some(LIMIT)).unwrap());
    let taken = (0..40).filter(|_| b.rx[0].take().is_some()).count();
    b.rx[0].sync().unwrap();
    assert_eq!((taken, send(200, 400)), (40, 140));
    bed.ok(&["set", "b", "queue="]);
    assert_eq!(send(50, 600), 190);
    for (queue, why) in [("0", "64 to 32768"), ("256", "its rings have room for 255")] {
        let said = bed.fails(&["set", "b", &format!("queue={queue}")]);
        assert!(said.contains("queue") && said.contains(why), "{said}");
    }
}

#[test]
fn an_operator_sees_who_waits_on_a_wire() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&["--port", "a=ring:a,slots=8,wire=w", "--port", "b=ring:b,slots=8,wire=w"]);
    let mut a = Port::attach(&bed.at("ring/a")).unwrap();
    // It attaches, and never receives.
    let _b = Port::attach(&bed.at("ring/b")).unwrap();
    assert!(!bed.ok(&["show", "queues"]).contains("waits"));
    let end = Instant::now() + LIMIT;
    for _ in 0..14 {
        while !a.tx[0].push(&frame(2, 1, 60)) {
            a.tx[0].sync().unwrap();
            assert!(Instant::now() < end, "{}", bed.show("queues"));
        }
        a.tx[0].sync().unwrap();
    }
    let waits = || {
        let queues = bed.show("queues");
        let of_a = |queue: &&Value| queue["port"] == "a" && queue["direction"] == "ingress";
        queues["queues"].as_array().unwrap().iter().find(of_a).unwrap()["waits"].clone()
    };
    while waits()["given_up"] == 0 {
        assert!(Instant::now() < end, "{}", bed.show("ports"));
    }
    let seen = waits();
    // How long is no matter here: if this program was late, the receiver was given up before the frames came.
    assert!(seen["total_us"].is_u64() && seen["count"].as_u64() >= Some(1), "{seen}");
    let table = bed.ok(&["show", "queues"]);
    assert!(table.lines().next().unwrap().contains("waits  waited ms  given up"), "{table}");
    let (_, metrics) = bed.http("GET", "/metrics", "");
    for line in [
        format!("sidecore_queue_waits_total{{port=\"a\",queue=\"0\"}} {}", seen["count"]),
        "sidecore_queue_waits_given_up_total{port=\"a\",queue=\"0\"} 1".to_owned(),
        "sidecore_queue_waits_total{port=\"b\",queue=\"0\"} 0".to_owned(),
    ] {
        assert!(metrics.lines().any(|other| other == line), "{line} in {metrics}");
    }
}

#[test]
fn impossible_rings_are_refused_with_what_is_possible() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&[]);
    for (port, says) in [
        ("x=ring:x,buf-size=100", "buf-size=100 is not possible; allowed: multiples of 64 from 64 to 65536"),
        ("x=ring:x,header=11", "a header of 11 bytes is not possible; allowed: 0, 10, 12"),
        ("x=ring:.x", "is no ring port's name"),
        ("x=tap:x,slots=4", "does not apply to kind tap"),
    ] {
        let said = bed.run(&["add", port]);
        let said = String::from_utf8(said.stderr).unwrap();
        assert!(said.contains(says), "{port}: {said}");
    }
    assert_eq!(bed.ports(), Vec::<String>::new());
}
