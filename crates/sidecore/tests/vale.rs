//! Ports that programs have made on demand, and `vale-ctl`, on the real daemon.

use crate::rig;
use crate::rig::{pass, Testbed, LIMIT};
use sidecore_abi::vale::{Ask, Verb};
use sidecore_port::vale::{Vale, ValeError};
use sidecore_port::{AttachError, Port};

/// Client libraries find the daemon by the environment, which is this process's: one test at a time.
fn bed() -> (Testbed, std::sync::MutexGuard<'static, ()>) {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let bed = Testbed::new();
    std::env::set_var("SIDECORE_SOCKET", bed.path("control.sock"));
    (bed, one)
}

fn frame(to: u8, from: u8) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 0x88, 0xb5];
    bytes.resize(60, from);
    bytes
}

/// Waits until the daemon has that many ports: what a connection kept goes a moment after it.
fn until_ports(bed: &Testbed, names: &[&str]) {
    let start = std::time::Instant::now();
    while bed.ports() != names {
        assert!(start.elapsed() < LIMIT, "{:?}", bed.ports());
    }
}

fn switches(bed: &Testbed) -> String {
    bed.http("GET", "/v1/config", "").1
}

#[test]
fn opening_makes_port_and_switch_and_the_last_user_takes_them_away() {
    let (bed, _one) = bed();
    let _daemon = bed.daemon(&["--port", "web=ring:web"]);
    let mut a = Port::attach("vale7:a").unwrap();
    let mut b = Port::attach("vale7:b").unwrap();
    // They meet on a switch of their own.
    pass(&mut a, &mut b, &frame(2, 1));
    pass(&mut b, &mut a, &frame(1, 2));
    assert_eq!(bed.ports(), ["vale7.a", "vale7.b", "web"]);
    assert_eq!(bed.port("vale7.a")["state"]["switch"], "7");
    assert_eq!(rig::mode(&bed.path("ring/vale7:a")), 0o600);
    // One user of a port at a time, as for every ring port.
    assert!(matches!(Port::attach("vale7:a"), Err(AttachError::InUse(_))));
    // They are no part of the configuration, and applying one leaves them alone.
    assert!(!switches(&bed).contains("vale7"), "{}", switches(&bed));
    let file = bed.write("empty.toml", "[[port]]\nname = \"web\"\nkind = \"ring\"\nwhere = \"web\"\n");
    bed.ok(&["apply", file.to_str().unwrap()]);
    pass(&mut a, &mut b, &frame(2, 1));
    // The last user takes port and switch away.
    drop(a);
    until_ports(&bed, &["vale7.b", "web"]);
    drop(b);
    until_ports(&bed, &["web"]);
    assert_eq!(bed.ok(&["vale-ctl", "-l"]).lines().count(), 2, "heading and web");
    // A name without a switch is on the default one.
    let (mut c, mut web) = (Port::attach("vale:c").unwrap(), Port::attach("valelan:web").unwrap());
    pass(&mut c, &mut web, &frame(2, 1));
    assert_eq!(bed.port("vale.c")["state"]["switch"], "lan");
    drop((c, web));
    until_ports(&bed, &["web"]);
}

#[test]
fn who_may_make_ports_and_how_many_is_the_operators_choice() {
    let (bed, _one) = bed();
    let daemon = bed.daemon(&["--vale-ports", "2", "--vale-mode", "0640"]);
    assert_eq!(rig::mode(&bed.path("ring/.netmap")), 0o640);
    let two = [Port::attach("vale0:a").unwrap(), Port::attach("vale1:a").unwrap()];
    let why = Port::attach("vale0:c").unwrap_err().to_string();
    assert!(why.contains("allows no more"), "{why}");
    drop(two);
    until_ports(&bed, &[]);
    drop(daemon);
    let _daemon = bed.daemon(&["--vale-ports", "0", "--port", "d=ring:vale0:d"]);
    let why = Port::attach("vale0:a").unwrap_err().to_string();
    assert!(why.contains("the daemon's option vale-ports"), "{why}");
    // What is configured can be used, also by users who may not ask.
    drop(Port::attach("vale0:d").unwrap());
    std::fs::remove_file(bed.path("ring/.netmap")).unwrap();
    drop(Port::attach("vale0:d").unwrap());
    assert!(matches!(Port::attach("vale0:e"), Err(AttachError::NotMade { .. })));
}

#[test]
fn a_program_that_is_killed_leaves_nothing() {
    let (bed, _one) = bed();
    let _daemon = bed.daemon(&[]);
    // A lease without an attachment, as a program has that dies between the two.
    let mut vale = Vale::connect(&bed.path("ring/.netmap")).unwrap();
    assert_eq!(vale.open("vale3:x").unwrap(), "vale3:x");
    let mut other = Vale::connect(&bed.path("ring/.netmap")).unwrap();
    other.open("vale3:x").unwrap();
    drop(vale);
    let port = Port::attach("vale3:x").unwrap();
    drop(other);
    assert!(port.is_attached());
    drop(port);
    until_ports(&bed, &[]);
}

#[test]
fn vale_ctl_does_what_it_says() {
    let (bed, _one) = bed();
    let _daemon = bed.daemon(&["--cores", "0", "--port", "a=ring:a"]);
    let ctl = |args: &[&str]| bed.ok(&[&["vale-ctl"], args].concat());
    let fails = |args: &[&str], why: &str| {
        let said = bed.fails(&[&["vale-ctl"], args].concat());
        assert!(said.contains(why), "{args:?}: {said}");
    };
    // A port that stays, first joined to nothing.
    ctl(&["-n", "p1", "-C", "64,64,2,2"]);
    fails(&["-n", "p1"], "already");
    assert_eq!(bed.port("p1")["state"]["wire"], "p1");
    let port = Port::attach("p1").unwrap();
    assert_eq!((port.info().tx_slots, port.info().tx_rings), (64, 2));
    fails(&["-r", "p1"], "a program has it open");
    drop(port);
    // Joined to a switch that was not there.
    let joined = ctl(&["-a", "vale5:p1"]);
    assert!(joined.contains("vale5:p1"), "{joined}");
    fails(&["-a", "vale5:p1"], "is attached to switch 5 already");
    // To a second one: listed on both, and on the one by whose name it is opened.
    assert!(ctl(&["-a", "vale6:p1"]).contains("vale6:p1"));
    fails(&["-a", "vale6:p1"], "is attached to switch 6 already");
    fails(&["-r", "p1"], "part it first");
    let listed = ctl(&["-l"]);
    assert!(listed.contains("vale5:p1") && listed.contains("vale6:p1"), "{listed}");
    let (p1, why) = (Port::attach("vale6:p1").unwrap(), Port::attach("vale5:p1").unwrap_err().to_string());
    assert_eq!(bed.port("p1")["state"]["switch"], "6");
    assert!(why.contains("open on switch 6"), "{why}");
    drop(p1);
    ctl(&["-d", "vale6:p1"]);
    assert_eq!(bed.port("p1")["state"]["switch"], "5");
    fails(&["-a", "vale5:nobody"], "no port and no interface");
    fails(&["-h", "vale5:lo"], "beside a ring port only");
    fails(&["-n", "p1^"], "come and go with their port");
    assert_eq!(ctl(&["-g", "vale5:p1"]), joined);
    // Its switch is the one by which programs name it.
    let (mut p1, mut x) = (Port::attach("vale5:p1").unwrap(), Port::attach("vale5:x").unwrap());
    pass(&mut p1, &mut x, &frame(2, 1));
    drop((p1, x));
    until_ports(&bed, &["a", "p1"]);
    // The list: every port on every switch, by bed.
    let list: serde_json::Value = serde_json::from_str(&ctl(&["-l", "--json"])).unwrap();
    let names: Vec<_> =
        list["ports"].as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["vale5:p1", "valelan:a"]);
    // Polling: the I/O cores do it, others cannot.
    ctl(&["-p", "vale5:p1", "-C", "1,0,1"]);
    fails(&["-p", "vale5:p1"], "polled already");
    ctl(&["-P", "vale5:p1"]);
    fails(&["-P", "vale5:p1"], "was not asked for");
    fails(&["-p", "vale5:p1", "-C", "1,0,2"], "processor 1 is no I/O core");
    // Parted and removed; a switch that was made for it goes with its last port.
    fails(&["-r", "p1"], "part it first");
    ctl(&["-d", "vale5:p1"]);
    fails(&["-d", "vale5:p1"], "there is no switch");
    ctl(&["-r", "p1"]);
    fails(&["-r", "p1"], "there is no ring port");
    // What the operator configured can be moved, but is not lost.
    ctl(&["-d", "valelan:a"]);
    ctl(&["-a", "vale9:a"]);
    assert_eq!(bed.port("a")["state"]["switch"], "9");
    fails(&["-a", "vale9"], "names no switch");
    fails(&["-n", "vale9:b"], "plain name");
    fails(&["-n", "p2", "-C", "5000"], "allowed: a number from 2 to 4096");
}

#[test]
fn nonsense_is_refused_and_named() {
    let (bed, _one) = bed();
    let _daemon = bed.daemon(&["--port", "t=ring:t"]);
    let mut vale = Vale::connect(&bed.path("ring/.netmap")).unwrap();
    let mut refused = |ask: Ask| match vale.ask(&ask) {
        Err(ValeError::Refused { errno, .. }) => errno,
        other => panic!("{ask:?}: {other:?}"),
    };
    const EINVAL: u32 = 22;
    assert_eq!(refused(Ask { verb: 99, ..Ask::new(Verb::Open, "vale0:a") }), 95);
    for name in ["vale0:", "vale0:../x", "vale0:a/b", "vale 0:a", "", ".netmap", "vale0:a{b c", "valé:x"] {
        assert_eq!(refused(Ask::new(Verb::Open, name)), EINVAL, "{name}");
    }
    assert_eq!(refused(Ask { name: [b'x'; 64], ..Ask::new(Verb::Open, "") }), EINVAL);
    assert_eq!(refused(Ask { tx_rings: u32::MAX, ..Ask::new(Verb::Open, "vale0:a") }), EINVAL);
    assert_eq!(refused(Ask::new(Verb::Open, "nowhere")), 6);
    assert_eq!(bed.ports(), ["t"]);
}

#[test]
fn a_pipe_without_a_port_gets_one() {
    let (bed, _one) = bed();
    let _daemon = bed.daemon(&["--port", "web=ring:web"]);
    let (mut a, mut b) = (Port::attach("foo{1").unwrap(), Port::attach("foo}1").unwrap());
    pass(&mut a, &mut b, &frame(2, 1));
    pass(&mut b, &mut a, &frame(1, 2));
    // The port that they belong to is joined to nothing, and goes with them.
    assert_eq!(bed.port("foo")["state"]["wire"], "foo");
    assert_eq!(bed.port("foo")["state"]["peer"], "connected");
    drop(a);
    pass(&mut b, &mut Port::attach("foo{1").unwrap(), &frame(1, 2));
    drop(b);
    until_ports(&bed, &["web"]);
    // One that is there has pipes, too, and stays; VALE's ports as well.
    let (mut a, mut b) = (Port::attach("web}x").unwrap(), Port::attach("web{x").unwrap());
    pass(&mut a, &mut b, &frame(2, 1));
    let (mut c, mut d) = (Port::attach("vale2:p}x").unwrap(), Port::attach("vale2:p{x").unwrap());
    pass(&mut c, &mut d, &frame(2, 1));
    drop((a, b, c, d));
    until_ports(&bed, &["web"]);
    let why = Port::attach("vale2:p{a b").unwrap_err().to_string();
    assert!(why.contains("a pipe is named by letters"), "{why}");
}
