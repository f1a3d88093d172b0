//! Pipes between ports of the real program: native drivers as guests, programs of the host, a daemon that is
//! stopped or killed.

use std::collections::HashMap;
use std::time::Instant;

use crate::rig::{Testbed, LIMIT};
use rustix::process::Signal;
use sidecore_abi::ptnet::memdev;
use sidecore_driver::ptnet::{Config, Ptnet};
use sidecore_port::{Interest, Port};

fn await_true(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

fn guest(bed: &Testbed, name: &str) -> Ptnet {
    Ptnet::open(&bed.path(name), &Config::default()).unwrap()
}

fn frame(n: u32) -> Vec<u8> {
    let mut bytes = [&[0x52; 12][..], &[0x88, 0xb5], &n.to_be_bytes()].concat();
    bytes.resize(60 + n as usize % 1400, n as u8);
    bytes
}

/// More frames than a ring has slots.
const MANY: u32 = 3000;

fn to_guest(program: &mut Port, guest: &mut Ptnet, many: u32) {
    let (mut sent, mut got) = (0, 0);
    await_true("the program's frames", || {
        while sent < many && program.tx[0].push(&frame(sent)) {
            sent += 1;
        }
        program.tx[0].sync().unwrap();
        guest
            .receive(64, |bytes| {
                assert_eq!(bytes, frame(got));
                got += 1;
            })
            .unwrap();
        got == many
    });
}

fn to_program(guest: &mut Ptnet, program: &mut Port, many: u32) {
    let (mut sent, mut got) = (0, 0);
    await_true("the guest's frames", || {
        while sent < many && guest.queue(&[0; 12], &frame(sent)).unwrap() {
            sent += 1;
        }
        guest.publish().unwrap();
        program.rx[0].sync().unwrap();
        while let Some(received) = program.rx[0].take() {
            assert_eq!(received.bytes(), frame(got));
            got += 1;
        }
        program.rx[0].sync().unwrap();
        got == many
    });
}

#[test]
fn a_guest_and_a_program_share_a_pipe() {
    let bed = Testbed::new();
    let vm = format!("vm=ptnet:{},pipe=p", bed.at("vm"));
    let ring = format!("h=ring:{},pipe=p", bed.at("h"));
    let _daemon = bed.daemon(&["--port", &vm, "--port", &ring]);
    let mut guest = guest(&bed, "vm");
    assert_eq!(bed.port("vm")["state"]["pipe"], "p");
    // The other end is empty: what is sent waits.
    assert_eq!(guest.send(&[&frame(0)]).unwrap(), 1);
    let first = guest.next_word().buf_idx() - 1;
    let mut program = Port::attach(&bed.at("h")).unwrap();
    await_true("the carrier", || bed.port("vm")["state"]["link"] == "up");
    assert!(program.wait(Interest::RECEIVE, Some(LIMIT)).unwrap(), "the program is not woken");
    // By its place in the memory, which is one: the buffer in which the guest wrote it.
    let info = *program.info();
    let at = program.rx[0].take().unwrap().bytes().as_ptr() as usize;
    program.rx[0].sync().unwrap();
    let own = first_buffer(&mut program);
    let [at, own] = [at, own].map(|it| i64::try_from(it).unwrap());
    assert_eq!((at - own) / i64::from(info.buf_size) + i64::from(info.first_buf), i64::from(first));
    to_program(&mut guest, &mut program, MANY);
    to_guest(&mut program, &mut guest, MANY);
    // A second program waits its turn; one that comes later goes on where the pipe is.
    assert!(Port::attach(&bed.at("h")).is_err());
    drop(program);
    await_true("the carrier goes", || bed.port("vm")["state"]["link"] == "down");
    let mut program = Port::attach(&bed.at("h")).unwrap();
    await_true("the carrier is back", || bed.port("vm")["state"]["link"] == "up");
    to_guest(&mut program, &mut guest, MANY);
    to_program(&mut guest, &mut program, MANY);
    let [vm, h] = ["vm", "h"].map(|name| bed.port(name)["counters"].clone());
    assert_eq!((&vm["in_frames"], &vm["out_frames"]), (&h["out_frames"], &h["in_frames"]));
    assert_eq!(vm["in_frames"], 2 * MANY + 1);
    assert!(Port::monitor(&bed.at("h"), sidecore_port::Sees::Both).is_err(), "nobody looks at these frames");
}

/// Where the program's first buffer is: that of its first slot, which it has not used yet.
fn first_buffer(program: &mut Port) -> usize {
    program.tx[0].buffer().unwrap().as_ptr() as usize
}

#[test]
fn a_killed_daemon_loses_nothing_of_a_pipe() {
    let bed = Testbed::new();
    let ports = ["a", "b"].map(|name| format!("{name}=ptnet:{},pipe=p", bed.at(name)));
    let start = || bed.daemon(&["--port", &ports[0], "--port", &ports[1]]);
    let mut daemon = start();
    let (mut a, mut b) = (guest(&bed, "a"), guest(&bed, "b"));
    let (mut n, mut taken) = (0, 0);
    let pools = |it: &mut Ptnet| {
        [memdev::IF_POOL, memdev::RING_POOL].map(|at| it.memory_device().read32(0, at).unwrap())
    };
    let found = HashMap::from([&mut a, &mut b].map(|it| (it.mac(), pools(it))));
    for signal in [Signal::TERM, Signal::KILL, Signal::KILL, Signal::TERM] {
        daemon.end(signal);
        // Meanwhile frames lie in the ring, and who looks at a device is answered.
        assert!(a.send_unheard(&frame(n)).unwrap());
        for it in [&mut a, &mut b] {
            assert_eq!(pools(it), found[&it.mac()]);
        }
        daemon = start();
        for _ in 0..2000 {
            n += 1;
            await_true("room", || a.send(&[&frame(n)]).unwrap() == 1);
            if n % 100 == 0 {
                take(&mut b, taken, n);
                taken = n;
            }
        }
        n += 1;
        take(&mut b, taken, n);
        taken = n;
    }
    assert_eq!(bed.port("a")["state"]["peer"], "running");
}

/// The frames from `from` up to `to`, none else, in order.
fn take(guest: &mut Ptnet, mut from: u32, to: u32) {
    await_true("frames", || {
        guest
            .receive((to - from) as usize, |bytes| {
                assert_eq!(bytes, frame(from));
                from += 1;
            })
            .unwrap();
        from == to
    });
}

#[test]
fn what_cannot_be_a_pipe_is_refused_by_name() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&[]);
    let port = |name: &str, more: &str| format!("{name}=ptnet:{},{more}", bed.at(name));
    bed.ok(&["add", &port("a", "pipe=p")]);
    for (spec, what) in [
        (port("b", "pipe=p,slots=64"), "slots"),
        (port("b", "pipe=p,queues=2"), "queues"),
        (port("b", "pipe=p,switch=lan"), "one of pipe, switch"),
        (port("b", "pipe=p,wire=w"), "one of pipe, wire"),
        (port("b", "pipe=p,mac-limit=3"), "does not apply to a pipe"),
        (port("b", "pipe=a/b"), "is no name"),
        (format!("b=ring:{},pipe=p,header=12", bed.at("b")), "does not apply to an end of a pipe"),
        ("b=tap:sc-pipe,pipe=p".to_owned(), "does not apply to kind tap"),
    ] {
        let why = bed.fails(&["add", &spec]);
        assert!(why.contains(what), "{spec}: {why}");
    }
    bed.ok(&["add", &port("b", "pipe=p")]);
    let why = bed.fails(&["add", &port("c", "pipe=p")]);
    assert!(why.contains("two ends"), "{why}");
    bed.ok(&["del", "b"]);
    bed.ok(&["add", &format!("h=ring:{},pipe=p", bed.at("h"))]);
    // A port that joins something else leaves the pipe.
    bed.ok(&["set", "h", "switch=lan"]);
    assert_eq!(bed.port("h")["state"]["switch"], "lan");
    assert!(bed.port("h")["state"]["pipe"].is_null());
}
