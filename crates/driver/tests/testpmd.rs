//! The driver against a device that is not ours: `dpdk-testpmd` in io mode between two vhost-user ports.
//! It polls on a core of its own, so there is one at a time.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::peers::{Scratch, Testpmd, VhostPort};
use sidecore_abi::virtio::features as f;
use sidecore_driver::{Config, Frontend, Listener, NetDriver, NetHdr, Shape, Want};

/// Only a fault takes as long.
const WAIT: Duration = Duration::from_secs(30);
/// What goes ahead until the first frame comes through; some of it may come later, or never.
const AHEAD: [u8; 60] = [0xff; 60];

fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Two drivers with testpmd between them.
struct Pair {
    a: NetDriver,
    b: NetDriver,
    testpmd: Testpmd,
    listeners: Option<(Listener, Listener)>,
    paths: [std::path::PathBuf; 2],
    _scratch: Scratch,
}

fn pair(config: Config, we_listen: bool) -> Pair {
    let scratch = Scratch::new("sc-pair").unwrap();
    let paths = [scratch.file("a"), scratch.file("b")];
    let listeners = we_listen.then(|| (Listener::new(&paths[0]).unwrap(), Listener::new(&paths[1]).unwrap()));
    let testpmd = testpmd(&paths, we_listen, config.pairs);
    let connect = |n: usize| match &listeners {
        Some((a, b)) => [a, b][n].accept(WAIT).unwrap(),
        None => Frontend::connect(&paths[n], WAIT).unwrap(),
    };
    let a = NetDriver::start(connect(0), config).unwrap();
    let b = NetDriver::start(connect(1), config).unwrap();
    Pair { a, b, testpmd, listeners, paths, _scratch: scratch }
}

fn testpmd(paths: &[std::path::PathBuf; 2], client: bool, queues: u16) -> Testpmd {
    let ports = paths.each_ref().map(|path| VhostPort { path: path.clone(), client });
    Testpmd::start(1, &ports, queues).unwrap()
}

/// Frame `n` of a stream: its length and every byte follow from its number.
fn frame_len(n: u64, longest: usize) -> usize {
    60 + (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % (longest - 59)
}

fn make(n: u64, frame: &mut [u8], longest: usize) -> usize {
    let len = frame_len(n, longest);
    let frame = &mut frame[..len];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[14..22].copy_from_slice(&n.to_le_bytes());
    for (i, byte) in frame.iter_mut().enumerate().skip(22) {
        *byte = (n as usize + i) as u8;
    }
    len
}

/// Sends `count` frames from one to the other, verifying order and every byte of each.
fn stream(from: &mut NetDriver, to: &mut NetDriver, pairs: u16, count: u64, longest: usize) {
    let (mut sent, mut received) = (0, 0);
    let mut expected = vec![0; longest];
    let mut last = Instant::now();
    while received < count {
        // Less than a receive ring in flight: testpmd drops what finds no buffer.
        let room = 192u64.saturating_sub(sent - received).min(count - sent) as usize;
        let pair = (sent / 64 % u64::from(pairs)) as u16;
        let room = room.min(64 - (sent % 64) as usize);
        if room > 0 {
            let first = sent;
            sent += from.send_with(pair, room, |i, buf| make(first + i as u64, buf, longest)).unwrap() as u64;
        }
        let before = received;
        for pair in 0..pairs {
            let got = to.receive(pair, |hdr, bytes| {
                if bytes == AHEAD {
                    return;
                }
                assert_eq!((hdr.flags, hdr.gso_type), (0, 0));
                if pairs == 1 {
                    let len = make(received, &mut expected, longest);
                    assert!(bytes == &expected[..len], "frame {received}: {} bytes, not {len}", bytes.len());
                } else {
                    // Queues are not ordered among each other.
                    let n = u64::from_le_bytes(bytes[14..22].try_into().unwrap());
                    let len = make(n, &mut expected, longest);
                    assert!(bytes == &expected[..len], "frame {n}");
                }
                received += 1;
            });
            if got.unwrap() > 0 {
                last = Instant::now();
            }
        }
        if received == before && room == 0 {
            to.wait(Duration::from_secs(1)).unwrap();
        }
        assert!(last.elapsed() < WAIT, "{received} of {sent} frames arrived, then none for {WAIT:?}");
    }
    assert_eq!(sent, received);
}

fn config(features: u64) -> Config {
    Config { want: Want::default().and(features), ..Config::default() }
}

/// testpmd polls and only starts a port when its link is up: the first frames may find no route.
fn warm_up(pair: &mut Pair) {
    for direction in 0..2 {
        let start = Instant::now();
        loop {
            let (from, to) =
                if direction == 0 { (&mut pair.a, &mut pair.b) } else { (&mut pair.b, &mut pair.a) };
            from.send(0, &[&AHEAD]).unwrap();
            if to.wait(Duration::from_millis(5)).unwrap() {
                break;
            }
            assert!(start.elapsed() < WAIT, "nothing comes through:\n{}", pair.testpmd.output());
        }
    }
    // Let the surplus pass.
    while pair.a.wait(Duration::from_millis(20)).unwrap() | pair.b.wait(Duration::from_millis(20)).unwrap() {
        for driver in [&mut pair.a, &mut pair.b] {
            for queue in 0..driver.config().pairs {
                driver.receive(queue, |_, _| {}).unwrap();
            }
        }
    }
}

#[test]
fn frames_pass_in_every_format() {
    let _turn = turn();
    for (we_listen, features, longest) in [
        (false, 0, 1514),
        (true, f::NET_MRG_RXBUF, 1514),
        (false, f::RING_PACKED, 1514),
        (true, f::RING_PACKED | f::NET_MRG_RXBUF, 1514),
        (false, f::IN_ORDER | f::EVENT_IDX | f::INDIRECT_DESC, 1514),
        (true, f::RING_PACKED | f::IN_ORDER | f::EVENT_IDX | f::INDIRECT_DESC | f::NET_MRG_RXBUF, 1514),
    ] {
        let what =
            format!("we_listen={we_listen} {}", sidecore_driver::session::Kind::Net.feature_names(features));
        let mut pair = pair(config(features), we_listen);
        warm_up(&mut pair);
        stream(&mut pair.a, &mut pair.b, 1, 100_000, longest);
        stream(&mut pair.b, &mut pair.a, 1, 10_000, longest);
        println!("{what}: {:?}", pair.a.stats());
    }
}

#[test]
fn four_queue_pairs() {
    let _turn = turn();
    for features in [0, f::RING_PACKED] {
        let mut pair = pair(Config { pairs: 4, ..config(features) }, false);
        warm_up(&mut pair);
        stream(&mut pair.a, &mut pair.b, 4, 200_000, 1514);
    }
}

#[test]
fn every_shape_and_frames_across_buffers() {
    let _turn = turn();
    for packed in [0, f::RING_PACKED] {
        let small = Config { buffer: 256, ..config(packed | f::NET_MRG_RXBUF | f::INDIRECT_DESC) };
        let mut pair = pair(small, true);
        warm_up(&mut pair);
        let mut frame = vec![0; 1514];
        for n in 0..20_000u64 {
            let shape = match n % 5 {
                0 => Shape::Whole,
                1 => Shape::Split,
                2 => Shape::Pieces(2 + (n % 7) as u8),
                3 => Shape::Indirect(1),
                _ => Shape::Indirect(2 + (n % 6) as u8),
            };
            pair.a.set_shape(shape).unwrap();
            let longest = if n % 2 == 0 { 240 } else { 1514 };
            let len = make(n, &mut frame, longest);
            assert!(pair.a.send_frame(0, NetHdr::default(), &frame[..len]).unwrap());
            let start = Instant::now();
            let mut seen = 0;
            while seen == 0 {
                let each = |_: &NetHdr, bytes: &[u8]| {
                    if bytes != AHEAD {
                        assert!(bytes == &frame[..len], "frame {n} {shape:?}");
                        seen += 1;
                    }
                };
                pair.b.receive(0, each).unwrap();
                assert!(start.elapsed() < WAIT, "frame {n} {shape:?} of {len} bytes did not arrive");
            }
        }
    }
}

#[test]
fn stop_resume_and_restart() {
    let _turn = turn();
    for packed in [0, f::RING_PACKED] {
        let mut pair = pair(config(packed | f::NET_MRG_RXBUF), true);
        warm_up(&mut pair);
        stream(&mut pair.a, &mut pair.b, 1, 10_000, 1514);
        pair.a.pause_and_resume().unwrap();
        pair.b.pause_and_resume().unwrap();
        warm_up(&mut pair);
        stream(&mut pair.a, &mut pair.b, 1, 10_000, 1514);
        // The backend dies with the rings full of its buffers, and a new one takes over.
        pair.testpmd.kill();
        pair.testpmd = testpmd(&pair.paths, true, 1);
        let (a, b) = pair.listeners.as_ref().unwrap();
        pair.a.reconnect(a.accept(WAIT).unwrap()).unwrap();
        pair.b.reconnect(b.accept(WAIT).unwrap()).unwrap();
        warm_up(&mut pair);
        stream(&mut pair.a, &mut pair.b, 1, 10_000, 1514);
        stream(&mut pair.b, &mut pair.a, 1, 10_000, 1514);
    }
}
