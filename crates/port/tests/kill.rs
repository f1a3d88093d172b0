//! Clients killed in the middle of their work leave nothing behind. How many: `SIDECORE_KILLS`, 25 by
//! default.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::cast_possible_truncation)]

mod rig;

use std::process::{Command, Stdio};

use crate::rig::{frame, until, Engine};
use sidecore_port::{AttachError, Port};

const SOCKET: &str = "SIDECORE_TEST_SOCKET";

/// What a killed process does: it sends and receives as fast as it can, until it is killed.
#[test]
#[ignore = "the process that killed_clients_leave_nothing kills"]
fn child() {
    let socket = std::env::var(SOCKET).unwrap();
    let mut port = loop {
        match Port::attach(&socket) {
            Ok(port) => break port,
            Err(AttachError::InUse(_)) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    };
    let bytes = frame(2, 1, 0, 200);
    loop {
        while port.tx[0].push(&bytes) {}
        port.tx[0].sync().unwrap();
        while port.rx[0].take().is_some() {}
        port.rx[0].sync().unwrap();
    }
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn regions() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().matches("sidecore-ring").count()
}

#[test]
fn killed_clients_leave_nothing() {
    let kills: u64 = std::env::var("SIDECORE_KILLS").map_or(25, |n| n.parse().unwrap());
    let engine = Engine::sleepy(2);
    let before = (open_files(), regions());
    let mut b = engine.attach(1);
    b.tx[0].push(&frame(1, 2, 0, 60));
    b.tx[0].sync().unwrap();
    // In this process are both ends. The engine's: connection, memory, kick, the core's copy of it, two
    // pipes; the client's: connection, kick, two pipes. Each has the memory mapped.
    let busy = (before.0 + 10, before.1 + 2);
    until("the neighbour is attached", || (open_files(), regions()) == busy);
    let mut frames = 0;
    for kill in 0..kills {
        let mut client = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--ignored"])
            .env(SOCKET, engine.name(0))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let seen = engine.ports[0].counters.totals().in_frames;
        // Now at the first frame, now after thousands: at an arbitrary instruction of the client.
        let more = 1 + kill.wrapping_mul(7919) % 20_000;
        until("the client sends", || {
            while b.rx[0].take().is_some() {
                frames += 1;
            }
            b.rx[0].sync().unwrap();
            engine.ports[0].counters.totals().in_frames >= seen + more
        });
        client.kill().unwrap();
        client.wait().unwrap();
        until("the port is free", || !engine.ports[0].link() && (open_files(), regions()) == busy);
    }
    assert!(frames > 0);
    // The neighbour never noticed, and the port can be had again.
    assert!(b.is_attached());
    let a = engine.attach(0);
    drop((a, b));
    until("all is gone", || (open_files(), regions()) == before);
    assert_eq!(engine.cores.status()[0].queues, 0);
}
