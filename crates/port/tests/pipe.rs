//! Pipes of a real port: both ends, many pipes, ends that go and come, a port that has its own client
//! meanwhile.

use std::time::Duration;

use crate::rig::{frame, number, until, Engine};
use sidecore_engine::port::{Attachment, Peer};
use sidecore_port::{AttachError, Interest, Port};

const SOON: Option<Duration> = Some(Duration::from_secs(60));

fn end(engine: &Engine, which: &str) -> Result<Port, AttachError> {
    Port::attach(&format!("{}{which}", engine.name(0)))
}

/// An end whose last owner is about to be missed.
fn again(engine: &Engine, which: &str) -> Port {
    let mut port = None;
    until("the end is free", || {
        port = end(engine, which).ok();
        port.is_some()
    });
    port.unwrap()
}

fn engine(pipes: usize) -> Engine {
    Engine::new(1, Vec::new(), Duration::from_micros(20), |config| {
        config.geometry.slots = 64;
        config.geometry.pipes = pipes;
    })
}

/// Sends frames `from..to` as fast as the pipe takes them, asleep when it does not.
fn send(port: &mut Port, from: u64, to: u64) {
    let mut next = from;
    while next < to {
        // Some of them over two slots.
        while next < to && port.tx[0].push(&frame(2, 1, next, if next % 7 == 0 { 3000 } else { 60 })) {
            next += 1;
        }
        port.tx[0].sync().unwrap();
        if next < to {
            assert!(port.wait(Interest::SEND, SOON).unwrap());
        }
    }
}

fn receive(port: &mut Port, from: u64, to: u64) {
    let mut next = from;
    while next < to {
        assert!(port.wait(Interest::RECEIVE, SOON).unwrap(), "frame {next} does not come");
        while let Some(got) = port.rx[0].take() {
            assert_eq!(got.bytes(), frame(2, 1, next, if next % 7 == 0 { 3000 } else { 60 }));
            assert_eq!(number(&got.bytes()), next);
            next += 1;
        }
        port.rx[0].sync().unwrap();
    }
    assert_eq!(next, to);
}

#[test]
fn nothing_is_lost_whoever_is_faster() {
    let engine = engine(1);
    let (mut a, mut b) = (end(&engine, "{x").unwrap(), end(&engine, "}x").unwrap());
    const FRAMES: u64 = 100_000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            send(&mut a, 0, FRAMES);
            // Frames go back.
            receive(&mut a, 0, FRAMES);
        });
        receive(&mut b, 0, FRAMES);
        send(&mut b, 0, FRAMES);
    });
    // A full pipe holds its sender up; no frame of it is dropped.
    while a.tx[0].space() > 0 {
        while a.tx[0].push(&frame(2, 1, 0, 60)) {}
        a.tx[0].sync().unwrap();
    }
    assert!(!a.wait(Interest::SEND, Some(Duration::ZERO)).unwrap());
    assert!(b.wait(Interest::RECEIVE, SOON).unwrap());
    assert!(b.rx[0].take().is_some());
    b.rx[0].sync().unwrap();
    assert!(a.wait(Interest::SEND, SOON).unwrap());
    assert_eq!(a.tx[0].space(), 1);
}

#[test]
fn ends_are_somebodys_and_pipes_are_as_many_as_there_is_room_for() {
    let engine = engine(2);
    let a = end(&engine, "{x").unwrap();
    assert!(matches!(end(&engine, "{x"), Err(AttachError::InUse(_))));
    let b = end(&engine, "}y").unwrap();
    let why = end(&engine, "{z").unwrap_err().to_string();
    assert!(why.contains("No space"), "{why}");
    let c = end(&engine, "}x").unwrap();
    assert_eq!(engine.attachments[0].status().peer, Peer::Connected);
    // The port itself is another thing, and outlives its pipes as they outlive it.
    let mut port = engine.attach(0);
    drop((a, c));
    until("the pipe is gone", || end(&engine, "}z").is_ok());
    drop(port);
    port = engine.attach(0);
    drop(b);
    assert!(port.is_attached());
    drop(port);
    until("all are gone", || engine.attachments[0].status().peer == Peer::Waiting);
    let info = sidecore_port::attach::info(&engine.name(0)).unwrap();
    assert_eq!((info.pipes, info.end), (2, 0));
    // There is no room where the operator gave none.
    let none = self::engine(0);
    assert!(end(&none, "{x").is_err());
    drop(none.attach(0));
}

#[test]
fn an_end_that_comes_again_goes_on_where_it_was() {
    let engine = engine(1);
    let (mut a, mut b) = (end(&engine, "{x").unwrap(), end(&engine, "}x").unwrap());
    let put = |port: &mut Port, range: std::ops::Range<u64>| {
        for i in range {
            assert!(port.tx[0].push(&frame(2, 1, i, 60)));
        }
        port.tx[0].sync().unwrap();
    };
    put(&mut a, 1..7);
    b.rx[0].sync().unwrap();
    for i in 1..3 {
        assert_eq!(number(&b.rx[0].take().unwrap().bytes()), i);
    }
    b.rx[0].sync().unwrap();
    // The receiver dies with frames taken that it has not released: they come again.
    assert_eq!(number(&b.rx[0].take().unwrap().bytes()), 3);
    drop(b);
    let mut b = again(&engine, "}x");
    b.rx[0].sync().unwrap();
    for i in 3..7 {
        assert_eq!(number(&b.rx[0].take().unwrap().bytes()), i);
    }
    b.rx[0].sync().unwrap();
    drop(a);
    let mut a = again(&engine, "{x");
    put(&mut a, 7..8);
    b.rx[0].sync().unwrap();
    assert_eq!(number(&b.rx[0].take().unwrap().bytes()), 7);
}
