//! Ports that share a memory, and which may.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::cast_possible_truncation)]

mod rig;

use std::sync::Arc;
use std::time::Duration;

use crate::rig::{frame, number, until, Engine};
use sidecore_engine::graph::Scheduler;
use sidecore_engine::port::{Attachment, Peer};
use sidecore_engine::transport::ring::{RingPort, RingPortConfig};
use sidecore_port::Port;

fn engine(ports: usize, memory: &str) -> Engine {
    Engine::new(ports, Vec::new(), Duration::from_micros(20), |config| {
        config.memory = Some(memory.to_owned());
    })
}

fn regions() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().matches("sidecore-ring").count()
}

fn exchange(a: &mut Port, b: &mut Port, numbers: std::ops::Range<u64>) {
    for next in numbers {
        assert!(a.tx[0].push(&frame(200, 1, next, 60 + (next % 1000) as usize)));
        a.tx[0].sync().unwrap();
        until("it arrives", || {
            b.rx[0].sync().unwrap();
            b.rx[0].take().is_some_and(|got| {
                assert_eq!(got.bytes(), frame(200, 1, next, 60 + (next % 1000) as usize));
                assert_eq!(number(&got.bytes()), next);
                true
            })
        });
    }
}

#[test]
fn members_come_and_go_and_the_memory_goes_with_the_last() {
    let engine = engine(3, "members");
    let before = regions();
    let (mut a, mut b) = (engine.attach(0), engine.attach(1));
    // The daemon's mapping, and each client's own.
    assert_eq!(regions(), before + 3);
    assert_eq!(a.info().mem_id, b.info().mem_id);
    assert_ne!(a.info().interface, b.info().interface);
    exchange(&mut a, &mut b, 0..3000);
    drop(a);
    until("the port is free", || engine.attachments[0].status().peer == Peer::Waiting);
    let (mut a, mut c) = (engine.attach(0), engine.attach(2));
    exchange(&mut a, &mut b, 3000..4000);
    until("c is done", || {
        c.rx[0].sync().unwrap();
        while c.rx[0].take().is_some() {}
        c.rx[0].sync().unwrap();
        engine.ports[2].counters.totals().out_frames > 0
    });
    // Pipes of each lie in its part.
    let pipe = |number: usize, end: &str| Port::attach(&format!("{}{end}x", engine.name(number))).unwrap();
    let (mut here, mut there, other) = (pipe(0, "{"), pipe(0, "}"), pipe(2, "{"));
    exchange(&mut here, &mut there, 0..3000);
    assert_eq!(other.info().mem_id, a.info().mem_id);
    drop((a, b, c, here, there, other));
    until("the memory is gone", || regions() == before);
    let status = engine.attachments[1].status();
    assert_eq!(status.features, ["memory-members"]);
}

#[test]
fn only_ports_with_equal_rings_share_and_only_so_many() {
    let mut engine = engine(8, "full");
    let start = |change: &dyn Fn(&mut RingPortConfig)| {
        let mut config = RingPortConfig::new(&engine.directory.0.join("more"));
        config.memory = Some("full".to_owned());
        change(&mut config);
        let scheduler = Arc::clone(&engine.cores) as Arc<dyn Scheduler>;
        RingPort::start(config, Arc::clone(&engine.ports[0]), scheduler)
    };
    let refused = |change: &dyn Fn(&mut RingPortConfig)| start(change).err().unwrap().to_string();
    assert!(refused(&|config| config.geometry.slots = 8).contains("ports of other rings"));
    assert!(refused(&|_| {}).contains("there may be no more"));
    // Another memory's ports may be as they like.
    assert!(start(&|config| {
        config.geometry.slots = 8;
        config.memory = Some("another".to_owned());
    })
    .is_ok());
    drop(engine.attachments.pop());
    let more = {
        let mut config = RingPortConfig::new(&engine.directory.0.join("more"));
        config.memory = Some("full".to_owned());
        RingPort::start(config, Arc::clone(&engine.ports[7]), Arc::clone(&engine.cores) as Arc<dyn Scheduler>)
    };
    assert!(more.is_ok());
}
