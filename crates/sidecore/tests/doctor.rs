//! "My VM has no traffic" answers itself: faults are planted, and `show ports` or `doctor` alone names each,
//! with the command that mends it. Where a VMM matters, what it says on the socket is said here; real ones
//! are the lab's. Needs root.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use crate::rig::{until, wait, Testbed, LIMIT};
use rustix::event::{eventfd, EventfdFlags};
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;
use sidecore_driver::e1000::{self, E1000};
use sidecore_driver::frontend::{Region, RingAddresses};
use sidecore_driver::vfio::Client;
use sidecore_driver::{Config, Frontend, NetDriver};

/// What `doctor NAME --json` found wrong: names, and the texts that mend it.
fn wrong(bed: &Testbed, name: &str) -> Vec<(String, String)> {
    let output = bed.run(&["doctor", name, "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["version"], 2);
    let checks = report["ports"][0]["checks"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let wrong = checks.iter().filter(|check| check["wrong"] == true);
    let wrong: Vec<_> = wrong.map(|check| (text(&check["name"]), text(&check["mend"]))).collect();
    // The exit code says the same.
    assert_eq!(output.status.code(), Some(i32::from(!wrong.is_empty())), "{report}");
    assert_eq!(report["wrong"], !wrong.is_empty(), "{report}");
    wrong
}

/// That `fault` alone is wrong with port `name`, that both commands say so, and that what mends it says
/// `mend`.
fn is_named(bed: &Testbed, name: &str, fault: &str, mend: &str) {
    let found = wrong(bed, name);
    assert!(found.len() == 1 && found[0].0 == fault && found[0].1.contains(mend), "{found:?}");
    let doctor = bed.run(&["doctor", name]);
    let text = String::from_utf8(doctor.stdout).unwrap();
    assert!(text.contains("WRONG") && text.contains(mend), "{text}");
    let errors = String::from_utf8(doctor.stderr).unwrap();
    assert!(errors.contains(&format!("something is wrong with {name}")), "{errors}");
}

/// The fault is named by `doctor`, and by `show ports`.
fn is_shown(bed: &Testbed, name: &str, fault: &str, mend: &str) {
    is_named(bed, name, fault, mend);
    let shown = bed.ok(&["show", "ports"]);
    assert!(shown.contains("trouble") && shown.contains(fault) && shown.contains(mend), "{shown}");
}

/// The low memory of a PC as a VMM gives it: its file, of which it has a private mapping itself.
fn file_of(bytes: u64) -> File {
    let file: File = memfd_create(c"ram", MemfdFlags::CLOEXEC).unwrap().into();
    ftruncate(&file, bytes).unwrap();
    file
}

const USER: u64 = 0x7f00_0000_0000;
const RAM: u64 = 4 << 20;
/// Virtio 1.2 §6: VERSION_1.
const VERSION_1: u64 = 1 << 32;
/// VHOST_USER_PROTOCOL_F_CONFIG.
const CONFIG: u64 = 1 << 9;

/// Says what QEMU says when a guest's driver begins, of a guest whose memory is `ram`.
fn driver_begins(front: &Frontend, ram: &File) {
    front.set_features(VERSION_1).unwrap();
    let region = Region { gpa: 0, size: RAM, user: USER, offset: 0 };
    front.set_mem_table(&[(region, ram.as_fd())]).unwrap();
    for queue in 0..2u16 {
        let at = USER + (1 << 20) + u64::from(queue) * 0x10000;
        front.set_vring_num(queue, 256).unwrap();
        front
            .set_vring_addr(queue, RingAddresses { desc: at, avail: at + 0x1000, used: at + 0x2000 })
            .unwrap();
        front.set_vring_base(queue, 0).unwrap();
        let event = || eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        front.set_vring_call(queue, event()).unwrap();
        front.set_vring_kick(queue, event()).unwrap();
    }
}

fn connect(bed: &Testbed, name: &str) -> Frontend {
    let front = Frontend::connect(bed.path(name), LIMIT).unwrap();
    front.set_owner().unwrap();
    front.features().unwrap();
    front
}

/// Waits until the port's queues run: what a front end says without acknowledgement has arrived then.
fn await_peer(bed: &Testbed, name: &str, peer: &str) {
    let deadline = std::time::Instant::now() + LIMIT;
    while bed.port(name)["state"]["peer"] != peer {
        assert!(std::time::Instant::now() < deadline, "{}", bed.port(name));
        // Another process does it.
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn private_memory_is_named_and_shared_memory_is_not() {
    let bed = Testbed::new();
    let daemon = bed.daemon(&["--port", &format!("vm=vhost-user:{}", bed.at("vm"))]);
    let front = connect(&bed, "vm");
    driver_begins(&front, &file_of(RAM));
    await_peer(&bed, "vm", "running");
    is_shown(&bed, "vm", "private_memory", "share=on");
    let line = daemon.await_log("looks private");
    assert!(line.contains("WARN") && line.contains("vm") && line.contains("share=on"), "{line}");
    drop(front);
    await_peer(&bed, "vm", "waiting");
    assert_eq!(wrong(&bed, "vm"), []);

    // Firmware has written to the memory of a guest that shares it.
    let front = connect(&bed, "vm");
    let ram = file_of(RAM);
    rustix::io::pwrite(&ram, &[0x53, 0xff, 0, 0xf0], 0x400).unwrap();
    driver_begins(&front, &ram);
    await_peer(&bed, "vm", "running");
    assert_eq!(wrong(&bed, "vm"), []);
}

#[test]
fn memory_that_is_not_given_at_all_is_named() {
    let bed = Testbed::new();
    let daemon = bed.daemon(&["--port", &format!("vm=vhost-user:{}", bed.at("vm"))]);
    let front = connect(&bed, "vm");
    // QEMU says this when the driver begins, and then finds no memory to tell of.
    front.set_features(VERSION_1).unwrap();
    front.features().unwrap();
    is_shown(&bed, "vm", "no_memory", "share=on");
    assert!(daemon.await_log("is not shared with us").contains("WARN"));
}

#[test]
fn a_driver_that_is_not_loaded_is_named() {
    let bed = Testbed::new();
    let (vm, card) = (format!("vm=vhost-user:{}", bed.at("vm")), format!("card=e1000e:{}", bed.at("card")));
    let _daemon = bed.daemon(&["--port", &vm, "--port", &card]);
    assert_eq!(wrong(&bed, "vm"), []);
    let front = connect(&bed, "vm");
    is_shown(&bed, "vm", "no_driver", "lspci -k");
    drop(front);
    await_peer(&bed, "vm", "waiting");

    let driver = E1000::open(&bed.path("card"), &e1000::Config::default()).unwrap();
    await_peer(&bed, "card", "running");
    assert_eq!(wrong(&bed, "card"), []);
    drop(driver);
}

/// QEMU with an e1000e and no memory backend: it tells of the guest's memory, and gives no file.
#[test]
fn a_card_whose_vmm_shares_no_memory_has_no_fault_of_its_own() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&["--port", &format!("card=e1000e:{}", bed.at("card"))]);
    let mut driver = E1000::open(&bed.path("card"), &e1000::Config::default()).unwrap();
    let (gpa, size) = (driver.memory().gpa(0), driver.memory().size() as u64);
    driver.client().unmap(gpa, size).unwrap();
    driver.client().map(gpa, size, 3, None).unwrap();
    driver.send(&[&[0xff; 60]]).unwrap();
    await_peer(&bed, "card", "faulted");
    is_shown(&bed, "card", "no_memory", "share=on");
}

/// QEMU's memory-backend-file with a path on a disk; a pipe stands for it, which is none on every host.
#[test]
fn memory_that_is_a_file_of_another_kind_is_named() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&["--port", &format!("vm=vhost-user:{}", bed.at("vm"))]);
    let front = connect(&bed, "vm");
    let stranger = File::from(rustix::pipe::pipe().unwrap().0);
    let region = Region { gpa: 0, size: RAM, user: USER, offset: 0 };
    let _ = front.set_mem_table(&[(region, stranger.as_fd())]);
    await_peer(&bed, "vm", "faulted");
    is_shown(&bed, "vm", "memory_file", "sidecore set vm memory-file=any");
    is_named(&bed, "vm", "memory_file", "memory-backend-memfd");
}

/// The right socket in the wrong line of a VMM's command, in each direction.
#[test]
fn a_vmm_with_another_kind_of_device_is_told_which_it_needs() {
    let bed = Testbed::new();
    let file = bed.path("disk.img");
    File::create(&file).unwrap().set_len(1 << 20).unwrap();
    let ports = [
        format!("card=e1000e:{}", bed.at("card")),
        format!("vm=vhost-user:{}", bed.at("vm")),
        format!("disk=blk:{},file={}", bed.at("disk"), file.display()),
    ];
    let _daemon = bed.daemon(&ports.each_ref().map(|port| ["--port", port.as_str()]).concat());
    // QEMU's chardev begins with GET_FEATURES, and waits.
    assert!(Frontend::connect(bed.path("card"), LIMIT).unwrap().features().is_err());
    await_peer(&bed, "card", "faulted");
    is_shown(&bed, "card", "wrong_client", "this socket is for kind e1000e");
    is_named(&bed, "card", "wrong_client", "vfio-user-pci");
    for (port, device) in [("vm", "virtio-net-pci"), ("disk", "vhost-user-blk-pci")] {
        assert!(Client::connect(&bed.path(port)).is_err());
        await_peer(&bed, port, "faulted");
        is_shown(&bed, port, "wrong_client", device);
    }
    // A disk's front end reads the size from the configuration; QEMU's vhost-user network does not know how.
    let offered = |front: &Frontend| front.protocol_features().unwrap();
    let mut front = connect(&bed, "disk");
    front.set_protocol_features(offered(&front) & !CONFIG).unwrap();
    front.features().unwrap();
    is_shown(&bed, "disk", "wrong_client", "vhost-user-blk-pci");
    drop(front);
    // One of a disk whose guest has no driver.
    let mut front = connect(&bed, "disk");
    front.set_protocol_features(offered(&front)).unwrap();
    front.features().unwrap();
    is_shown(&bed, "disk", "no_driver", "modprobe virtio_blk");
}

#[test]
fn a_second_vmm_at_a_socket_is_named() {
    let bed = Testbed::new();
    let daemon = bed.daemon(&["--port", &format!("card=e1000e:{}", bed.at("card"))]);
    let driver = E1000::open(&bed.path("card"), &e1000::Config::default()).unwrap();
    assert_eq!(wrong(&bed, "card"), []);
    let _second = UnixStream::connect(bed.path("card")).unwrap();
    daemon.await_log("a second VMM has called");
    is_shown(&bed, "card", "second_vmm", "a port of its own");
    drop(driver);
    // It is no news of the next one.
    await_peer(&bed, "card", "waiting");
    let text = bed.ok(&["doctor", "card"]);
    assert!(!text.contains("second") && text.contains("restart the VM"), "{text}");
}

/// pkt-gen stands for the VMM: its rings fill up, for which its guest cannot help.
#[test]
fn a_vmm_that_is_stopped_is_named_and_its_guest_is_not_blamed() {
    let bed = Testbed::new();
    let (vm, a) = (format!("vm=vhost-user:{}", bed.at("vm")), format!("a=ring:{}", bed.at("a")));
    let _daemon = bed.daemon(&["--port", &vm, "--port", &a]);
    let mut command = bed.command();
    command.args(["pkt-gen", "-f", "rx", "-i", &format!("vhost-user:{}", bed.at("vm"))]);
    let mut vmm = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    await_peer(&bed, "vm", "running");
    let pid = Pid::from_child(&vmm);
    kill_process(pid, Signal::STOP).unwrap();
    let a = bed.at("a");
    bed.ok(&["pkt-gen", "-f", "tx", "-i", &a, "-n", "2000", "-D", "ff:ff:ff:ff:ff:ff"]);
    await_counter(&bed, "vm", |counters| counters["drops"]["ring_full"].as_u64() > Some(0));
    let mend = format!("kill -CONT {}", vmm.id());
    until("the process has stopped", || wrong(&bed, "vm").iter().any(|it| it.0 == "vmm_stopped"));
    is_named(&bed, "vm", "vmm_stopped", &mend);
    kill_process(pid, Signal::CONT).unwrap();
    until("it goes on", || !wrong(&bed, "vm").iter().any(|it| it.0 == "vmm_stopped"));
    kill_process(pid, Signal::INT).unwrap();
    wait(&mut vmm);
}

#[test]
fn frames_that_are_too_long_are_named() {
    let bed = Testbed::new();
    let (a, b) = (format!("a=vhost-user:{}", bed.at("a")), format!("b=vhost-user:{}", bed.at("b")));
    let _daemon = bed.daemon(&["--port", &a, "--port", &b]);
    let driver = |name: &str| {
        let config = Config { buffer: 4096, ..Config::default() };
        NetDriver::start(Frontend::connect(bed.path(name), LIMIT).unwrap(), config).unwrap()
    };
    let (mut one, _two) = (driver("a"), driver("b"));
    let frame = |len: usize| {
        let mut frame = vec![0u8; len];
        frame[..6].fill(0xff);
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        frame
    };
    // As long as frames may be: nothing is wrong.
    assert_eq!(one.send(0, &[&frame(1514)]).unwrap(), 1);
    await_counter(&bed, "a", |counters| counters["in_frames"] == 1);
    assert_eq!(wrong(&bed, "a"), []);
    // An MPLS label in front of a whole packet (RFC 3032 §3.1).
    let mut labelled = frame(1518);
    labelled[12..14].copy_from_slice(&[0x88, 0x47]);
    assert_eq!(one.send(0, &[&labelled]).unwrap(), 1);
    await_counter(&bed, "a", |counters| counters["drops"]["too_long"] == 1);
    let text = String::from_utf8(bed.run(&["doctor", "a"]).stdout).unwrap();
    assert!(text.contains("too_long") && text.contains("MPLS labels and third tags count"), "{text}");
    assert_eq!(one.send(0, &[&frame(3000)]).unwrap(), 1);
    await_counter(&bed, "a", |counters| counters["drops"]["too_long"] == 2);
    is_shown(&bed, "a", "too_long", "sidecore set a mtu=9000");
    let text = String::from_utf8(bed.run(&["doctor", "a"]).stdout).unwrap();
    assert!(text.contains("ip link set DEV mtu 1500") && text.contains("from it: last"), "{text}");
    // The other one is well, and all together are not.
    assert_eq!(wrong(&bed, "b"), []);
    assert!(bed.fails(&["doctor"]).contains("something is wrong with a\n"));
}

fn await_counter(bed: &Testbed, name: &str, holds: impl Fn(&Value) -> bool) {
    let deadline = std::time::Instant::now() + LIMIT;
    while !holds(&bed.port(name)["counters"]) {
        assert!(std::time::Instant::now() < deadline, "{}", bed.port(name));
        // An I/O core does it.
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_link_that_was_set_down_is_named() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&["--port", &format!("vm=vhost-user:{}", bed.at("vm"))]);
    bed.ok(&["set", "vm", "link=down"]);
    is_shown(&bed, "vm", "link_set_down", "sidecore set vm link=up");
    bed.ok(&["set", "vm", "link=up"]);
    assert_eq!(wrong(&bed, "vm"), []);
}

#[test]
fn a_port_of_a_router_is_looked_at_as_others_are() {
    let bed = Testbed::new();
    let port = format!("vm=vhost-user:{},router=r,address=10.0.0.1/24", bed.at("vm"));
    let _daemon = bed.daemon(&["--router", "r", "--port", &port]);
    let driver =
        NetDriver::start(Frontend::connect(bed.path("vm"), LIMIT).unwrap(), Config::default()).unwrap();
    await_peer(&bed, "vm", "running");
    let report: Value = serde_json::from_slice(&bed.run(&["doctor", "vm", "--json"]).stdout).unwrap();
    let checks = report["ports"][0]["checks"].as_array().unwrap().iter();
    let about: Vec<&str> = checks.map(|check| check["about"].as_str().unwrap()).collect();
    assert_eq!(about, ["peer", "memory", "driver", "link", "mtu", "frames"]);
    drop(driver);
}

/// A VMM of another user that tries to connect, as QEMU does with `reconnect-ms`.
struct Stranger(Child);

impl Stranger {
    fn new(socket: &str, name: &str) -> Stranger {
        let program = "import ctypes, socket, sys, time\nctypes.CDLL(None).prctl(15, sys.argv[2].encode())\nprint('begun', flush=True)\n\
                       while True:\n    s = socket.socket(socket.AF_UNIX)\n    \
                       try:\n        s.connect(sys.argv[1])\n        time.sleep(60)\n    except OSError:\n        time.sleep(0.05)";
        let mut command = Command::new("python3");
        command.args(["-c", program, socket, name]).uid(65534).gid(65534).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut begun = String::new();
        let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut out, &mut begun).unwrap();
        assert_eq!(begun, "begun\n");
        Stranger(child)
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_process_that_may_not_open_the_socket_is_named_and_not_believed() {
    let bed = Testbed::new();
    let socket = bed.at("vm");
    let _daemon = bed.daemon(&["--port", &format!("vm=vhost-user:{socket}")]);
    // No process tries: nothing is wrong, and the users who may are told.
    let text = bed.ok(&["doctor", "vm"]);
    assert!(text.contains("users that may connect") && text.contains("0700"), "{text}");
    // Any process may name the socket, under any name: nothing is wrong for that, no user is given the
    // socket, and terminals stay as they are.
    let stranger = Stranger::new(&socket, "\u{1b}]0;x\u{7}vmm");
    let report: Value = serde_json::from_str(&bed.ok(&["doctor", "vm", "--json"])).unwrap();
    let checks = report["ports"][0]["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == "socket_rights").unwrap();
    let mend = check["mend"].as_str().unwrap();
    let command = "sidecore set vm mode=0660 owner=:GROUP";
    assert!(
        check["wrong"] == false && mend.starts_with("if it is your VMM: ") && mend.contains(command),
        "{check}"
    );
    let text = bed.ok(&["doctor", "vm"]);
    let wanted = [&stranger.0.id().to_string(), "vmm", "nobody", "nogroup", command];
    assert!(wanted.iter().all(|it| text.contains(*it)) && !text.contains(['\u{1b}', '\u{7}']), "{text:?}");
    bed.ok(&["set", "vm", "mode=0660", "owner=:nogroup"]);
    await_peer(&bed, "vm", "connected");
    // What is missing then is what a client that says nothing lacks.
    assert_eq!(wrong(&bed, "vm").into_iter().map(|it| it.0).collect::<Vec<_>>(), ["no_driver"]);
}
