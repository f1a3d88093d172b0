//! Monitors and host rings of a ring port, on real I/O cores.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::rig::{frame, number, until, Engine};
use sidecore_engine::port::{Attachment, Peer};
use sidecore_port::{Interest, Port, Sees};

/// All frames that wait in the port's rings, by number.
fn take(port: &mut Port, seen: &mut BTreeMap<u64, usize>) {
    for ring in &mut port.rx {
        while let Some(frame) = ring.take() {
            *seen.entry(number(&frame.bytes())).or_default() += 1;
        }
        ring.sync().unwrap();
    }
}

#[test]
fn a_monitor_sees_every_frame_once_and_takes_none_away() {
    const FRAMES: u64 = 2000;
    let engine = Engine::new(2, Vec::new(), Duration::from_micros(20), |config| config.geometry.rings = 2);
    let (mut a, mut b) = (engine.attach(0), engine.attach(1));
    let mut monitors = [Sees::Sent, Sees::Received, Sees::Both].map(|sees| {
        let port = Port::monitor(&engine.name(1), sees).unwrap();
        assert_eq!((port.tx.len(), port.rx.len(), port.info().rx_rings), (0, 2, 2));
        port
    });
    let mut seen: [BTreeMap<u64, usize>; 4] = Default::default();
    for number in 0..FRAMES {
        // Flows of many senders, to b and back.
        let from = (number / 2 % 100) as u8;
        let (port, ring) = if number % 2 == 0 { (&mut a, 0) } else { (&mut b, (number / 2 % 2) as usize) };
        let bytes = frame(if number % 2 == 0 { 200 } else { 201 }, from, number, 80);
        until("there is room", || {
            port.tx[ring].sync().unwrap();
            port.tx[ring].push(&bytes)
        });
        port.tx[ring].sync().unwrap();
        // No monitor is slow, so nothing may be lost.
        if number % 100 == 99 {
            let at = |seen: &BTreeMap<u64, usize>| seen.len() as u64;
            until("all have seen it", || {
                take(&mut b, &mut seen[3]);
                monitors.iter_mut().zip(&mut seen).for_each(|(port, seen)| take(port, seen));
                take(&mut a, &mut BTreeMap::new());
                let half = number.div_ceil(2);
                at(&seen[0]) == half
                    && at(&seen[1]) == half
                    && at(&seen[2]) == number + 1
                    && at(&seen[3]) == half
            });
        }
    }
    for (seen, of) in seen.iter().zip([1..2, 0..1, 0..2, 0..1]) {
        assert!(seen.iter().all(|(number, times)| *times == 1 && of.contains(&(number % 2))), "{seen:?}");
    }
    // The port's counters know nothing of it.
    let b_counters = engine.ports[1].counters.totals();
    assert_eq!((b_counters.in_frames, b_counters.out_frames), (FRAMES / 2, FRAMES / 2));
    assert_eq!(b_counters.drops.iter().sum::<u64>(), 0);
}

#[test]
fn monitors_are_told_of_counted_and_leave_nothing() {
    let engine = Engine::new(2, Vec::new(), Duration::from_micros(20), |config| config.geometry.slots = 8);
    let mut b = engine.attach(1);
    let state = || {
        let status = engine.attachments[0].status();
        let monitors: Vec<_> = status.queues.into_iter().filter(|q| q.direction == "monitor").collect();
        (status.peer, monitors.iter().map(|q| q.state.clone()).collect::<Vec<_>>())
    };
    assert_eq!(state(), (Peer::Waiting, Vec::new()));
    // Before a client has the port, and as many as there may be.
    let monitors: Vec<_> = (0..8).map(|_| Port::monitor(&engine.name(0), Sees::Both).unwrap()).collect();
    assert!(Port::monitor(&engine.name(0), Sees::Both).unwrap_err().to_string().contains("No space"));
    assert_eq!(state(), (Peer::Waiting, vec!["running, sees sent and received frames".to_owned(); 8]));
    assert!(engine.ports[0].capture.is_on());
    let mut a = engine.attach(0);
    // Ten frames into rings of seven: three are lost, and b gets what it takes.
    let mut got = 0;
    for i in 0..10 {
        assert!(a.tx[0].push(&frame(2, 1, i, 60)));
        a.tx[0].sync().unwrap();
        assert!(b.wait(Interest::RECEIVE, Some(Duration::from_secs(60))).unwrap());
        while b.rx[0].take().is_some() {
            got += 1;
        }
        b.rx[0].sync().unwrap();
    }
    assert_eq!(got, 10);
    assert_eq!(state().1, vec!["running, sees sent and received frames, 3 lost".to_owned(); 8]);
    drop(monitors);
    until("they are gone", || state() == (Peer::Running, Vec::new()));
    assert!(!engine.ports[0].capture.is_on());
    assert!(a.is_attached());
    // A monitor outlives the port's client, but not the port.
    let monitor = Port::monitor(&engine.name(0), Sees::Sent).unwrap();
    drop(a);
    until("the port is free", || engine.attachments[0].status().peer == Peer::Waiting);
    assert!(monitor.is_attached());
    let mut engine = engine;
    drop(engine.attachments.remove(0));
    assert!(!monitor.is_attached());
}

#[test]
fn host_rings_are_a_port_of_their_own() {
    let mut engine = Engine::sleepy(3);
    let early = engine.attach(0);
    engine.add_host_rings(0, 1, 1);
    // A client that came before has none, and is left alone.
    assert!(early.host_tx.is_empty() && early.is_attached());
    assert_eq!(engine.hosts[0].status().peer, Peer::Waiting);
    drop(early);
    until("the port is free", || engine.attachments[0].status().peer == Peer::Waiting);
    let (mut a, mut b, mut c) = (engine.attach(0), engine.attach(1), engine.attach(2));
    assert_eq!((a.tx.len(), a.host_tx.len(), a.host_rx.len(), a.info().host_rings), (1, 1, 1, 1));
    assert_eq!(engine.hosts[0].status().peer, Peer::Running);
    assert!(a.host_tx[0].push(&frame(9, 1, 1, 60)));
    assert!(a.tx[0].push(&frame(9, 1, 2, 60)));
    assert!(b.tx[0].push(&frame(9, 2, 3, 60)));
    a.host_tx[0].sync().unwrap();
    a.tx[0].sync().unwrap();
    b.tx[0].sync().unwrap();
    let got = |port: &mut Port, host: bool| {
        let mut got = None;
        until("it arrives", || {
            let ring = if host { &mut port.host_rx[0] } else { &mut port.rx[0] };
            ring.sync().unwrap();
            got = ring.take().map(|frame| number(&frame.bytes()));
            got.is_some()
        });
        got.unwrap()
    };
    assert_eq!((got(&mut b, false), got(&mut c, false), got(&mut a, true)), (1, 2, 3));
    assert!(a.rx[0].take().is_none());
    let host = engine.ports.iter().find(|port| port.name == "host").unwrap().counters.totals();
    assert_eq!((host.in_frames, host.out_frames), (1, 1));
    // The host's port goes; the client keeps its own rings.
    engine.hosts.clear();
    assert!(c.tx[0].push(&frame(9, 3, 4, 60)));
    c.tx[0].sync().unwrap();
    assert_eq!(got(&mut a, false), 4);
    drop(a);
    until("all is gone", || engine.cores.status().iter().map(|core| core.queues).sum::<usize>() == 2);
}
