//! Clients on a learning switch, all in this process, over the real socket and real I/O cores.

use std::time::Duration;

use crate::rig::{frame, number, until, Engine};
use sidecore_engine::port::{Attachment, DropReason, Peer};
use sidecore_port::{AttachError, Interest, Port, WaitError};

const SOON: Option<Duration> = Some(Duration::from_secs(60));

/// Sends one frame from each to each, so that the switch knows them, and takes what arrives.
fn introduce(a: &mut Port, b: &mut Port) {
    greet(a, b, 2, 1);
    greet(b, a, 1, 2);
}

fn greet(from: &mut Port, to: &mut Port, dst: u8, src: u8) {
    assert!(from.tx[0].push(&frame(dst, src, 0, 60)));
    from.tx[0].sync().unwrap();
    assert!(to.wait(Interest::RECEIVE, SOON).unwrap());
    assert_eq!(to.rx[0].take().unwrap().bytes(), frame(dst, src, 0, 60));
    assert!(to.rx[0].take().is_none());
    to.rx[0].sync().unwrap();
}

/// The length of frame `i`: every length once in a while, small ones often.
fn length(i: u64) -> usize {
    if i % 16 == 0 {
        60 + (i / 16 % 1455) as usize
    } else {
        60 + (i % 5) as usize
    }
}

/// A window, so that nothing has to be dropped: the sender is never more than this ahead of the receiver.
const WINDOW: u64 = 1000;

#[test]
fn a_million_frames_arrive_whole_and_in_order() {
    let frames = 1_000_000u64;
    let engine = Engine::sleepy(2);
    let (mut a, mut b) = (engine.attach(0), engine.attach(1));
    introduce(&mut a, &mut b);
    let got = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut next = 0;
            while next < frames {
                let limit = frames.min(got.load(std::sync::atomic::Ordering::Acquire) + WINDOW);
                while next < limit && a.tx[0].push(&frame(2, 1, next, length(next))) {
                    next += 1;
                }
                a.tx[0].sync().unwrap();
                if a.tx[0].space() == 0 {
                    assert!(a.wait(Interest::SEND, SOON).unwrap());
                } else if next == limit {
                    std::thread::yield_now();
                }
            }
        });
        let mut next = 0;
        while next < frames {
            assert!(b.wait(Interest::RECEIVE, SOON).unwrap(), "frame {next} did not come");
            while let Some(got) = b.rx[0].take() {
                assert_eq!(number(&got.bytes()), next);
                assert_eq!(got.bytes(), frame(2, 1, next, length(next)), "frame {next}");
                next += 1;
            }
            b.rx[0].sync().unwrap();
            got.store(next, std::sync::atomic::Ordering::Release);
        }
    });
    until("all is counted", || engine.ports[1].counters.totals().out_frames == frames + 1);
    until("all is counted", || engine.ports[0].counters.totals().in_frames == frames + 1);
    for port in &engine.ports {
        assert_eq!(port.counters.totals().named_drops().collect::<Vec<_>>(), []);
    }
}

#[test]
fn long_frames_take_several_slots_each_way() {
    let engine = Engine::new(2, Vec::new(), Duration::from_micros(20), |config| {
        config.geometry.buf_size = 256;
        config.geometry.slots = 37;
    });
    let (mut a, mut b) = (engine.attach(0), engine.attach(1));
    introduce(&mut a, &mut b);
    for port in &engine.ports {
        port.set_mtu(9000);
    }
    for (i, len) in (0..).zip([60, 255, 256, 257, 512, 513, 1514, 9014, 300, 9000].repeat(20)) {
        until("the ring is empty", || a.tx[0].sync().is_ok() && a.tx[0].space() == 36);
        assert!(a.tx[0].push(&frame(2, 1, i, len)));
        a.tx[0].sync().unwrap();
        assert!(b.wait(Interest::RECEIVE, SOON).unwrap());
        let got = b.rx[0].take().unwrap();
        assert_eq!(got.parts().count(), len.div_ceil(256));
        assert_eq!(got.bytes(), frame(2, 1, i, len));
        b.rx[0].sync().unwrap();
    }
    // One more than the ring can ever hold.
    assert!(!a.tx[0].push(&vec![0; 36 * 256 + 1]));
}

#[test]
fn what_does_not_fit_is_dropped_and_named() {
    let engine = Engine::sleepy(2);
    let (mut a, mut b) = (engine.attach(0), engine.attach(1));
    introduce(&mut a, &mut b);
    for i in 0..3000 {
        while !a.tx[0].push(&frame(2, 1, i, 60)) {
            assert!(a.wait(Interest::SEND, SOON).unwrap());
        }
    }
    a.tx[0].sync().unwrap();
    until("all is sent", || engine.ports[0].counters.totals().in_frames == 3001);
    until("all is judged", || {
        let totals = engine.ports[1].counters.totals();
        totals.out_frames + totals.drops[DropReason::RingFull as usize] == 3001
    });
    // A ring of n slots holds n - 1 frames, and they are the first ones.
    b.rx[0].sync().unwrap();
    for i in 0..1023 {
        assert_eq!(number(&b.rx[0].take().unwrap().bytes()), i);
    }
    assert!(b.rx[0].take().is_none());
    assert_eq!(engine.ports[1].counters.totals().drops[DropReason::RingFull as usize], 3000 - 1023);
}

#[test]
fn several_rings_carry_flows_in_order() {
    let engine = Engine::new(2, Vec::new(), Duration::from_micros(20), |config| config.geometry.rings = 4);
    let (mut a, mut b) = (engine.attach(0), engine.attach(1));
    assert_eq!((a.tx.len(), b.rx.len()), (4, 4));
    // So that both addresses are known.
    b.tx[3].push(&frame(1, 2, 0, 60));
    b.tx[3].sync().unwrap();
    assert!(a.wait(Interest::RECEIVE, SOON).unwrap());
    for i in 0..400u64 {
        assert!(a.tx[(i % 4) as usize].push(&frame(2, 1, i, 60)));
    }
    a.tx.iter_mut().for_each(|ring| ring.sync().unwrap());
    let mut got = Vec::new();
    while got.len() < 400 {
        assert!(b.wait(Interest::RECEIVE, SOON).unwrap());
        for ring in &mut b.rx {
            while let Some(frame) = ring.take() {
                got.push(number(&frame.bytes()));
            }
            ring.sync().unwrap();
        }
    }
    for ring in 0..4 {
        let of_ring: Vec<_> = got.iter().copied().filter(|i| i % 4 == ring).collect();
        assert!(of_ring.is_sorted(), "frames of ring {ring} overtook each other");
    }
    got.sort_unstable();
    assert!(got.into_iter().eq(0..400));
}

#[test]
fn a_port_has_one_client_at_a_time() {
    let engine = Engine::sleepy(1);
    assert_eq!(engine.attachments[0].status().peer, Peer::Waiting);
    let first = engine.attach(0);
    assert_eq!(engine.attachments[0].status().peer, Peer::Running);
    assert!(engine.ports[0].link());
    assert!(matches!(Port::attach(&engine.name(0)), Err(AttachError::InUse(_))));
    // Others may ask.
    let info = sidecore_port::attach::info(&engine.name(0)).unwrap();
    assert_eq!((info.tx_slots, info.rx_rings, info.mtu), (1024, 1, 1500));
    drop(first);
    until("the port is free", || !engine.ports[0].link());
    let _second = loop {
        match Port::attach(&engine.name(0)) {
            Ok(port) => break port,
            Err(AttachError::InUse(_)) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    };
    let error = Port::attach("/nowhere/at/all").unwrap_err();
    assert!(matches!(error, AttachError::NotThere { .. }));
}

#[test]
fn a_link_that_is_down_lets_nothing_through() {
    let mut engine = Engine::sleepy(2);
    let (mut a, mut b) = (engine.attach(0), engine.attach(1));
    introduce(&mut a, &mut b);
    for (down, dropper) in [(0, 0), (1, 1)] {
        let before = engine.ports[dropper].counters.totals().drops[DropReason::LinkDown as usize];
        engine.attachments[down].set_link(false).unwrap();
        assert!(a.tx[0].push(&frame(2, 1, 1, 60)));
        a.tx[0].sync().unwrap();
        until("it was dropped", || {
            engine.ports[dropper].counters.totals().drops[DropReason::LinkDown as usize] == before + 1
        });
        engine.attachments[down].set_link(true).unwrap();
    }
    introduce(&mut a, &mut b);
}

#[test]
fn a_client_finds_the_daemon_again() {
    let mut engine = Engine::sleepy(2);
    let (mut a, mut b) = (engine.attach(0), engine.attach(1));
    introduce(&mut a, &mut b);
    assert!(a.is_attached());
    // The daemon's end goes; another takes its place at the same socket.
    let old = engine.attachments.remove(0);
    drop(old);
    assert!(matches!(a.wait(Interest::RECEIVE, SOON), Err(WaitError::Gone)));
    assert!(!a.is_attached());
    assert!(a.reattach().is_err());
    let config = sidecore_engine::transport::ring::RingPortConfig::new(&engine.directory.0.join("p0"));
    let port = std::sync::Arc::clone(&engine.ports[0]);
    let again =
        sidecore_engine::transport::ring::RingPort::start(config, port, engine.cores.clone() as _).unwrap();
    engine.attachments.insert(0, again);
    a.reattach().unwrap();
    introduce(&mut a, &mut b);
}

#[test]
fn headers_are_converted_between_ports_that_differ() {
    let engine = Engine::sleepy(3);
    let mut ports = [engine.attach(0), engine.attach(1), engine.attach(2)];
    for (i, header) in [(0, 0), (1, 10), (2, 12)] {
        assert_eq!(sidecore_port::attach::set_header(&engine.name(i), header).unwrap().header, header);
    }
    assert!(matches!(
        sidecore_port::attach::set_header(&engine.name(0), 11),
        Err(AttachError::Refused { .. })
    ));
    let headers = [0usize, 10, 12];
    for from in 0..3 {
        let bytes = frame(0xff, from as u8, 7, 100);
        let mut sent = vec![0; headers[from]];
        sent.extend(&bytes);
        assert!(ports[from].tx[0].push(&sent));
        ports[from].tx[0].sync().unwrap();
        for to in (0..3).filter(|to| *to != from) {
            // Not known yet, so it is flooded.
            assert!(ports[to].wait(Interest::RECEIVE, SOON).unwrap());
            let got = ports[to].rx[0].take().unwrap().bytes().into_owned();
            assert_eq!(got[headers[to]..], bytes, "{from} to {to}");
            assert_eq!(got.len(), headers[to] + 100);
            assert!(got[..headers[to].min(10)].iter().all(|byte| *byte == 0));
            ports[to].rx[0].sync().unwrap();
        }
    }
}
