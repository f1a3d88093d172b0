//! A guest with ptnet has an interface of the host for itself: both are the two ends of a wire. The interface
//! is one end of a veth pair, whose other end a second guest has in the same way. Needs root and iproute2.

use std::time::Instant;

use crate::rig::net::Net;
use crate::rig::{Daemon, LIMIT};
use sidecore_driver::ptnet::{Config, Ptnet};

/// Where the frames of this test differ from those that the host's stack sends on its interfaces.
const TYPE: [u8; 2] = [0x88, 0xb5];

fn await_true(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

/// Frame `n` from station `from`, to the broadcast address.
fn frame(from: u8, n: u32) -> Vec<u8> {
    let mut bytes = [&[0xff; 6][..], &[0x52, 0x54, 0, 0, 0, from], &TYPE, &n.to_be_bytes()].concat();
    bytes.resize(60 + n as usize % 1400, n.to_le_bytes()[0]);
    bytes
}

/// The frames of this test that have come.
fn received(guest: &mut Ptnet) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    guest.receive(64, |bytes| got.push(bytes.to_vec())).unwrap();
    got.retain(|bytes| bytes[12..14] == TYPE);
    got
}

/// Each frame is received before the next one is sent: on its way it waits in rings of the kernel, which drop
/// what they cannot take.
fn passes(from: &mut Ptnet, to: &mut Ptnet, numbers: std::ops::Range<u32>) {
    for n in numbers {
        let sent = frame(1, n);
        assert_eq!(from.send(&[&sent]).unwrap(), 1);
        let mut got = Vec::new();
        await_true("a frame", || {
            got = received(to);
            !got.is_empty()
        });
        assert_eq!(got, [sent]);
    }
}

/// Says hello until it is heard, and waits until the last of it has been.
fn greet(from: &mut Ptnet, to: &mut Ptnet) {
    let (mut sent, mut heard) = (0, 0);
    await_true("a hello", || {
        sent += from.send(&[&frame(1, 0)]).unwrap();
        heard += received(to).len();
        heard > 0
    });
    // What was said while the interfaces came up may be lost, so a last word is waited for.
    let last = frame(1, 1);
    await_true("room for a last word", || from.send(&[&last]).unwrap() == 1);
    await_true("the last word", || received(to).contains(&last));
}

#[test]
fn a_guest_has_an_interface_of_the_host_for_itself() {
    let net = Net::new();
    net.ip("link add x0 type veth peer name x1");
    let port = |name: &str, more: &str| format!("{name}=ptnet:{}{more}", net.bed.at(name));
    let (vm, far, other) = (port("vm", ",wire=up"), port("far", ",wire=far"), port("other", ""));
    let ports = ["nic=xdp:x0,wire=up", &vm, "end=packet:x1,wire=far", &far, &other];
    let arguments = ports.iter().flat_map(|port| ["--port", port]);
    let mut command = net.command(env!("CARGO_BIN_EXE_sidecore"));
    let _daemon = Daemon::start(command.arg("run").args(arguments));
    let guest = |name: &str| Ptnet::open(&net.bed.path(name), &Config::default()).unwrap();
    let (mut vm, mut far, mut other) = (guest("vm"), guest("far"), guest("other"));

    greet(&mut vm, &mut far);
    greet(&mut far, &mut vm);
    passes(&mut vm, &mut far, 2..500);
    passes(&mut far, &mut vm, 2..500);

    // No other port has it: neither a guest on the switch, nor a further port.
    assert_eq!(received(&mut other), Vec::<Vec<u8>>::new());
    let why = net.bed.fails(&["add", "again=xdp:x0"]);
    assert!(why.contains("port nic has this place"), "{why}");

    // A cable that is pulled out and put in again.
    let link = |name: &str| net.bed.port(name)["state"].clone();
    net.ip("link set x1 down");
    await_true("the interface's carrier goes", || link("nic").to_string().contains("carrier down"));
    net.ip("link set x1 up");
    await_true("the interface's carrier comes", || link("nic").to_string().contains("carrier up"));
    greet(&mut vm, &mut far);
    greet(&mut far, &mut vm);
    passes(&mut vm, &mut far, 2..100);
    assert_eq!(link("vm")["fault"], serde_json::Value::Null);
}
