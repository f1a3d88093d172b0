//! Disks, seen from a guest: a native driver at the sockets of the real daemon.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::disk::{shown, small, BLOCKS};
use crate::rig::{Testbed, LIMIT};
use crate::work::{Work, BLOCK, WAIT};
use rustix::process::Signal;
use sidecore_driver::blk::{Range, Shape};
use sidecore_driver::{Config, Disk, DiskOptions, Frontend, NetDriver, Request, Status};

/// A port with a disk; `media`: what it consists of, and other options.
fn port(bed: &Testbed, media: &str) -> String {
    format!("d=blk:{},file={media}", bed.at("d"))
}

#[test]
fn a_disk_in_memory_holds_what_is_written_whatever_the_rings_are() {
    let bed = Testbed::new();
    let daemon = bed.daemon(&["--port", &port(&bed, "ram:1M,queues=4,serial=abc")]);
    let mut blocks = vec![0; BLOCKS as usize];
    let mut seed = 0;
    for packed in [false, true] {
        for (indirect, event_idx) in [(false, false), (false, true), (true, false), (true, true)] {
            for shape in [Shape::Usual, Shape::Joined, Shape::Pieces(7)] {
                seed += 1;
                let (queues, depth) = if seed % 2 == 0 { (1, 64) } else { (4, 16) };
                let options = DiskOptions {
                    packed,
                    indirect,
                    event_idx,
                    shape,
                    queues,
                    depth,
                    entries: 128,
                    ..small()
                };
                let mut disk = Disk::connect(bed.path("d"), options).unwrap();
                let mut work = Work::new(seed, BLOCKS);
                work.blocks = blocks;
                work.run(&mut disk, 500);
                work.verify(&mut disk);
                blocks = work.blocks;
            }
        }
    }
    let disk = shown(&bed);
    assert_eq!(
        (&disk["port"], &disk["medium"], &disk["file"]),
        (&"d".into(), &"ram".into(), &"ram:1M".into())
    );
    assert!(disk["reads"].as_u64().unwrap() > 1_000 && disk["writes"].as_u64().unwrap() > 1_000, "{disk}");
    assert!(
        disk["read_latency"]["p99_ns"].as_u64().unwrap() > 0 && disk["errors"] == serde_json::json!({}),
        "{disk}"
    );
    assert!(bed.ok(&["show", "disks"]).contains("ram:1M"));
    assert!(bed
        .http("GET", "/metrics", "")
        .1
        .contains("sidecore_disk_requests_total{port=\"d\",kind=\"read\"}"));
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn a_disk_says_what_it_is() {
    let bed = Testbed::new();
    let daemon = bed
        .daemon(&["--port", &port(&bed, "null:8G,serial=a-name-of-more-than-twenty-bytes,block-size=4096")]);
    let mut disk = Disk::connect(bed.path("d"), small()).unwrap();
    let geometry = *disk.geometry();
    assert_eq!((geometry.bytes(), geometry.block, geometry.queues), (8 << 30, Some(4096), Some(16)));
    assert_eq!(disk.ask(Request::Id, WAIT).unwrap(), (Status::Ok, b"a-name-of-more-than-".to_vec()));
    assert_eq!(disk.ask(Request::Flush, WAIT).unwrap().0, Status::Ok);
    // Before any driver is there, a VMM reads what drivers will be shown.
    assert_eq!((geometry.writeback, &shown(&bed)["cache"]), (Some(true), &"writeback".into()));
    disk.set_writeback(false).unwrap();
    assert_eq!(disk.geometry().writeback, Some(false));
    assert_eq!(shown(&bed)["cache"], "writethrough");
    let port = bed.port("d");
    assert_eq!((&port["state"]["link"], &port["state"]["peer"]), (&"up".into(), &"running".into()), "{port}");
    assert!(port["state"]["switch"].is_null() && port["state"]["queues"] == 1, "{port}");
    let queues = bed.show("queues");
    assert_eq!(queues["queues"][0]["direction"], "requests", "{queues}");
    assert!(queues["queues"][0]["served"]["items"].as_u64().unwrap() >= 2, "{queues}");
    drop(disk);
    assert!(daemon.end(Signal::TERM).success());
}

/// What no driver asks for gets the right answer, and the next request its own.
#[test]
fn bad_requests_are_answered_and_counted() {
    let bed = Testbed::new();
    let daemon = bed.daemon(&["--port", &port(&bed, "ram:1M")]);
    let mut disk = Disk::connect(bed.path("d"), small()).unwrap();
    let end = BLOCKS * 8;
    let data = vec![7; 1024];
    let raw = |kind, sector, data, writable| Request::Raw { kind, sector, data, writable };
    let beyond = [Range { sector: end - 1, sectors: 2, unmap: false }];
    let mut ask = |request| disk.ask(request, WAIT).unwrap().0;
    for sector in [end - 1, end, u64::MAX, u64::MAX / 512] {
        assert_eq!(ask(Request::Read { sector, len: 1024 }), Status::IoError);
        assert_eq!(ask(Request::Write { sector, data: &data }), Status::IoError);
    }
    for len in [1, 511, 513] {
        assert_eq!(ask(raw(0, 0, &[], len)), Status::IoError);
        assert_eq!(ask(raw(1, 0, &data[..len], 0)), Status::IoError);
    }
    assert_eq!(ask(raw(0, 0, &[], 0)), Status::IoError);
    for kind in [2, 10, 14, 99, u32::MAX] {
        assert_eq!(ask(raw(kind, 0, &[], 512)), Status::Unsupported);
    }
    assert_eq!(ask(Request::WriteZeroes(&beyond)), Status::IoError);
    assert_eq!(ask(raw(13, 0, &data[..17], 0)), Status::IoError);
    assert_eq!(ask(raw(11, 0, &[0; 16], 0)), Status::Unsupported);
    assert_eq!(ask(Request::Write { sector: end - 2, data: &data }), Status::Ok);
    let read = Request::Read { sector: end - 2, len: 1024 };
    assert_eq!(disk.ask(read, WAIT).unwrap(), (Status::Ok, data));
    let errors = &shown(&bed)["errors"];
    assert_eq!(errors["beyond_capacity"], 9, "{errors}");
    assert_eq!((&errors["bad_length"], &errors["unsupported"]), (&8.into(), &6.into()), "{errors}");
    drop(disk);
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn what_may_not_be_written_is_not() {
    let bed = Testbed::new();
    let daemon = bed.daemon(&["--port", &port(&bed, "ram:1M,readonly=on")]);
    let mut disk = Disk::connect(bed.path("d"), small()).unwrap();
    let data = vec![7; 512];
    assert_eq!(disk.ask(Request::Write { sector: 0, data: &data }, WAIT).unwrap().0, Status::IoError);
    let read = Request::Read { sector: 0, len: 512 };
    assert_eq!(disk.ask(read, WAIT).unwrap(), (Status::Ok, vec![0; 512]));
    assert_eq!(shown(&bed)["errors"]["read_only"], 1);
    drop(disk);
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn options_without_effect_are_errors() {
    let bed = Testbed::new();
    let daemon = bed.daemon(&[]);
    for (options, wanted) in [
        ("", "key `file`: it has to be given"),
        (",file=ram:1000", "a multiple of 4096 bytes"),
        (",file=ram:1M,switch=lan", "key `switch`: does not apply to kind blk"),
        (",file=ram:1M,mtu=1500", "key `mtu`: does not apply to kind blk"),
        (",file=ram:1M,block-size=1024", "allowed: 512, 4096"),
        (",file=ram:1M,features-off=csum", "write_zeroes"),
    ] {
        let why = bed.fails(&["add", &format!("d=blk:{}{options}", bed.at("d"))]);
        assert!(why.contains(wanted), "{options}: {why}");
    }
    let why = bed.fails(&["add", &format!("n=vhost-user:{},file=ram:1M", bed.at("n"))]);
    assert!(why.contains("does not apply to kind vhost-user"), "{why}");
    bed.ok(&["add", &port(&bed, "ram:1M,class=latency,rate=1000")]);
    bed.ok(&["set", "d", "weight=7"]);
    bed.ok(&["del", "d"]);
    assert!(daemon.end(Signal::TERM).success());
}

/// As many requests a second as the port may have, and a burst; its neighbour has as many as it likes.
#[test]
fn a_rate_holds_for_requests() {
    const RATE: u64 = 1000;
    let bed = Testbed::new();
    let daemon = bed.daemon(&[
        "--port",
        &format!("d=blk:{},file=ram:1M,rate={RATE}", bed.at("d")),
        "--port",
        &format!("n=blk:{},file=ram:1M,class=latency", bed.at("n")),
    ]);
    let mut limited = Disk::connect(bed.path("d"), small()).unwrap();
    let mut neighbour = Disk::connect(bed.path("n"), small()).unwrap();
    let begun = Instant::now();
    let (mut answered, mut submitted, mut alone) = (0, 0, 0u64);
    while answered < 300 {
        while submitted - answered < 32
            && limited.submit(Request::Read { sector: 0, len: BLOCK }).unwrap().is_some()
        {
            submitted += 1;
        }
        answered += limited.poll(|_, status, _| assert_eq!(status, Status::Ok)).unwrap();
        assert_eq!(neighbour.ask(Request::Read { sector: 8, len: BLOCK }, WAIT).unwrap().0, Status::Ok);
        alone += 1;
    }
    // A burst has 32 at least, and each look at the clock may be one visit late.
    let least = Duration::from_millis((300 - 64) * 1000 / RATE);
    assert!(begun.elapsed() >= least, "{:?}", begun.elapsed());
    assert!(alone > 0 && bed.port("d")["state"]["service"]["throttled_ns"].as_u64().unwrap() > 0);
    drop((limited, neighbour));
    assert!(daemon.end(Signal::TERM).success());
}

/// A disk that always has more requests than fit into a visit, and two network cards on a wire, on one I/O
/// core: every frame arrives, whole and in order, and no visit to the disk moves more than a turn.
#[test]
fn a_busy_disk_does_not_silence_network_cards() {
    const FRAMES: u32 = 5_000;
    /// Bytes of a turn, and of the request that may go beyond.
    const TURN: u64 = (768 << 10) + LARGEST as u64;
    const LARGEST: usize = 128 << 10;
    let bed = Testbed::new();
    let card = |name: &str| format!("{name}=vhost-user:{},wire=w", bed.at(name));
    let (disk, a, b) = (port(&bed, "ram:16M"), card("a"), card("b"));
    let daemon = bed.daemon(&["--cores", "1", "--port", &disk, "--port", &a, "--port", &b]);
    let meet = |name| {
        NetDriver::start(Frontend::connect(bed.path(name), LIMIT).unwrap(), Config::default()).unwrap()
    };
    let (mut sender, mut receiver) = (meet("a"), meet("b"));
    let mut disk =
        Disk::connect(bed.path("d"), DiskOptions { depth: 128, ..DiskOptions::default() }).unwrap();
    let frame = |number: u32| {
        const HEADER: [u8; 14] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5];
        let mut bytes = [&HEADER[..], &number.to_le_bytes()].concat();
        bytes.resize(60 + number as usize % 1440, number as u8);
        bytes
    };
    let over = AtomicBool::new(false);
    let (mut sent, mut received, mut answers) = (0, 0, 0u64);
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            let mut answers = 0;
            while !over.load(Ordering::Acquire) || answers < 1000 {
                while disk.submit(Request::Read { sector: 0, len: LARGEST }).unwrap().is_some() {}
                disk.publish().unwrap();
                answers += disk.poll(|_, status, _| assert_eq!(status, Status::Ok)).unwrap() as u64;
            }
            answers
        });
        let begun = Instant::now();
        while received < FRAMES && !busy.is_finished() {
            assert!(begun.elapsed() < 6 * LIMIT, "{received} of {sent} frames arrived");
            sender.complete(0).unwrap();
            sent += u32::from(sent < FRAMES && sender.send(0, &[&frame(sent)]).unwrap() == 1);
            let take = |_: &_, bytes: &[u8]| {
                assert!(bytes == frame(received), "frame {received} of {sent}");
                received += 1;
            };
            receiver.receive(0, take).unwrap();
        }
        over.store(true, Ordering::Release);
        answers = busy.join().unwrap();
    });
    assert_eq!((received, sent), (FRAMES, FRAMES));
    let queues = bed.show("queues");
    let served = |name: &str, key: &str| -> u64 {
        let of = queues["queues"].as_array().unwrap().iter().filter(|queue| queue["port"] == name);
        of.filter_map(|queue| queue["served"][key].as_u64()).sum()
    };
    // It was busy: there was more than fits into a visit.
    assert!(served("d", "budget") + served("d", "time") > 0, "{queues:#}");
    let (visits, bytes) = (served("d", "visits"), served("d", "bytes"));
    assert!(bytes >= answers * LARGEST as u64 && bytes <= visits * TURN, "{bytes} in {visits} visits");
    drop((disk, sender, receiver));
    assert!(daemon.end(Signal::TERM).success());
}
