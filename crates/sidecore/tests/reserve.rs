//! `sidecore reserve` with the real daemon and the real kernel: as root, and as a user without rights. The
//! VMM is a process whose threads have the names that QEMU gives them; they only wait, so nothing else gets
//! less time.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::Signal;
use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};
use serde_json::Value;
use sidecore_driver::{Config, Frontend, NetDriver};

use crate::rig::{last_of_two_processors, needs, needs_root, wait, Daemon, Testbed, LIMIT};

const NOBODY: u32 = 65534;
const VMM: &str = "SIDECORE_TEST_VMM";

/// A VMM: it connects to the socket that `VMM` names, has as many vCPUs as it says there, and waits for the
/// end of its input.
#[test]
#[ignore = "the tests below start it as a process of its own"]
fn vmm() {
    let words = std::env::var(VMM).unwrap();
    let (vcpus, socket) = words.split_once(' ').unwrap();
    let _driver = NetDriver::start(Frontend::connect(socket, LIMIT).unwrap(), Config::default()).unwrap();
    let names = (0..vcpus.parse::<u32>().unwrap()).map(|number| format!("CPU {number}/KVM"));
    let (_ends, threads): (Vec<_>, Vec<_>) = names
        .chain(["IO iothread0".to_owned()])
        .map(|name| {
            let (end, ended) = channel::<()>();
            let (named, is_named) = channel();
            let thread = std::thread::Builder::new().name(name);
            let thread = thread.spawn(move || (named.send(()), ended.recv()));
            is_named.recv().unwrap();
            (end, thread.unwrap())
        })
        .unzip();
    println!("{} threads", threads.len());
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

struct Vmm {
    child: Child,
    _out: BufReader<ChildStdout>,
}

impl Vmm {
    fn start(bed: &Testbed, user: u32, vcpus: usize) -> Vmm {
        let mut command = as_user(user, &std::env::current_exe().unwrap());
        command.args(["--exact", "reserve::vmm", "--ignored", "--nocapture"]);
        command.env(VMM, format!("{vcpus} {}", bed.at("a.sock")));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.ends_with("threads\n") {
            line.clear();
            assert!(out.read_line(&mut line).unwrap() > 0, "the VMM has ended");
        }
        Vmm { child, _out: out }
    }

    /// Number, policy (sched(7)) and processors of each thread of this name.
    fn thread(&self, name: &str) -> (u32, u32, CpuSet) {
        let tasks = format!("/proc/{}/task", self.child.id());
        for entry in std::fs::read_dir(tasks).unwrap() {
            let at = entry.unwrap();
            if std::fs::read_to_string(at.path().join("comm")).unwrap().trim() == name {
                let stat = std::fs::read_to_string(at.path().join("stat")).unwrap();
                let policy = stat.rsplit_once(") ").unwrap().1.split(' ').nth(38).unwrap().parse().unwrap();
                let number = at.file_name().into_string().unwrap().parse().unwrap();
                return (number, policy, sched_getaffinity(pid(number)).unwrap());
            }
        }
        panic!("there is no {name}");
    }

    fn policies(&self) -> [u32; 3] {
        ["CPU 0/KVM", "CPU 1/KVM", "IO iothread0"].map(|name| self.thread(name).1)
    }
}

impl Drop for Vmm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pid(number: u32) -> Option<rustix::process::Pid> {
    rustix::process::Pid::from_raw(number.try_into().unwrap())
}

fn as_user(user: u32, program: &Path) -> Command {
    needs("setpriv", "util-linux");
    let mut command = Command::new("setpriv");
    let user = user.to_string();
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]).arg(program);
    command
}

const OTHER: u32 = 0;
const FIFO: u32 = 1;
const RR: u32 = 2;
const DEADLINE: u32 = 6;

/// Root's reservations, and what the kernel grants in all, are the machine's: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    needs_root();
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A daemon with a port that every user may use, on the last processor.
fn daemon(bed: &Testbed) -> Daemon {
    let core = last_of_two_processors().to_string();
    let port = format!("a=vhost-user:{},mode=0666", bed.at("a.sock"));
    bed.daemon(&["--cores", &core, "--socket-mode", "0666", "--port", &port, "--port", "r=ring:r"])
}

/// The reservations of this test: root's are for the whole machine.
fn reservations(bed: &Testbed) -> Vec<Value> {
    let all = bed.show("reservations")["reservations"].take();
    let Value::Array(all) = all else { panic!("{all}") };
    all.into_iter().filter(|it| it["socket"] == bed.at("control.sock").as_str()).collect()
}

#[test]
fn root_is_granted_deadlines_and_undoes_them_when_the_daemon_is_gone() {
    let _alone = alone();
    let bed = Testbed::new();
    let daemon = daemon(&bed);
    let vmm = Vmm::start(&bed, 0, 2);
    let text = bed.ok(&["reserve", "a", "--vcpu", "0", "--runtime", "1ms", "--period", "10ms"]);
    assert!(text.starts_with(&format!("a: process {}\n  vCPU 0 (thread ", vmm.child.id())), "{text}");
    let granted = "): SCHED_DEADLINE, 10.0 % of a processor, guaranteed in each period, on 0-";
    assert!(text.contains(granted), "{text}");
    bed.ok(&["reserve", "a", "--vcpu", "1", "--fifo", "7"]);
    assert_eq!(vmm.policies(), [DEADLINE, FIFO, OTHER]);
    let all = reservations(&bed);
    let [first, second] = &all[..] else { panic!("{all:?}") };
    let (first, ports) = (&first["threads"][0], &first["ports"]);
    assert_eq!((&first["mechanism"], &first["share_ppm"]), (&"SCHED_DEADLINE".into(), &100_000.into()));
    assert_eq!((&second["threads"][0]["vcpu"], ports), (&1.into(), &serde_json::json!(["a"])));
    assert_eq!((&second["changed"], &second["ended"]), (&false.into(), &false.into()));
    let error = bed.fails(&["reserve", "a", "--fifo", "8"]);
    assert!(error.contains(") has a reservation; first undo it: sidecore reserve a --undo"), "{error}");

    // Somebody else changes one.
    let (number, ..) = vmm.thread("CPU 1/KVM");
    needs("chrt", "util-linux");
    assert!(Command::new("chrt").args(["-o", "-p", "0", &number.to_string()]).status().unwrap().success());
    assert_eq!(reservations(&bed)[1]["changed"], true);
    assert!(bed.ok(&["show", "reservations"]).contains(", of which a thread has ended or was changed since"));

    daemon.end(Signal::KILL);
    let text = bed.ok(&["reserve", "a", "--undo"]);
    assert!(text.contains("a: as before: vCPU 0 (thread ") && text.contains("vCPU 1 (thread "), "{text}");
    assert_eq!(vmm.policies(), [OTHER; 3]);
    assert!(reservations(&bed).is_empty());
    assert!(bed.fails(&["reserve", "a", "--undo"]).contains("nothing is reserved for a"));
}

#[test]
fn the_kernels_refusals_are_told_and_the_next_best_is_granted() {
    let _alone = alone();
    let bed = Testbed::new();
    let _daemon = daemon(&bed);
    let processors = last_of_two_processors() + 1;
    // One more than fit.
    let vmm = Vmm::start(&bed, 0, processors + 1);
    bed.ok(&["reserve", "a", "--runtime", "9500us", "--period", "10ms"]);
    let all = reservations(&bed);
    let threads = all[0]["threads"].as_array().unwrap();
    let mechanisms: Vec<&str> = threads.iter().map(|it| it["mechanism"].as_str().unwrap()).collect();
    assert_eq!(mechanisms.len(), processors + 2);
    assert_eq!((mechanisms[0], mechanisms[processors]), ("SCHED_DEADLINE", "SCHED_RR"));
    let refusal = threads[processors]["refused"][0].as_str().unwrap();
    assert!(refusal.starts_with("SCHED_DEADLINE: admission control: "), "{refusal}");
    bed.ok(&["reserve", "a", "--undo"]);

    // One that may not run everywhere, as if libvirt had pinned it.
    let (number, _, before) = vmm.thread("CPU 0/KVM");
    let mut one = CpuSet::new();
    one.set(0);
    sched_setaffinity(pid(number), &one).unwrap();
    let request = ["reserve", "a", "--vcpu", "0", "--runtime", "1ms", "--period", "10ms"];
    let error = bed.fails(&request);
    assert!(error.contains("is pinned to 0, its process to ") && error.contains("--force"), "{error}");
    assert_eq!(vmm.policies()[0], OTHER);
    let text = bed.ok(&[&request[..], &["--force"]].concat());
    assert!(
        text.contains(": SCHED_RR, up to ") && text.contains("not SCHED_DEADLINE: it may run on 0 only"),
        "{text}"
    );
    assert_eq!(vmm.policies()[0], RR);
    bed.ok(&["reserve", "a", "--undo"]);
    let now = vmm.thread("CPU 0/KVM");
    assert_eq!((now.1, now.2), (OTHER, one));
    sched_setaffinity(pid(number), &before).unwrap();
}

#[test]
fn a_user_without_rights_gets_affinity_and_hears_why_it_is_no_more() {
    let _alone = alone();
    let bed = Testbed::new();
    let _daemon = daemon(&bed);
    let runtime = bed.path("runtime");
    std::fs::create_dir(&runtime).unwrap();
    std::os::unix::fs::chown(&runtime, Some(NOBODY), Some(NOBODY)).unwrap();
    let reserve = |args: &[&str]| {
        let mut command = as_user(NOBODY, Path::new(env!("CARGO_BIN_EXE_sidecore")));
        command.arg("reserve").arg("a").args(args).env("XDG_RUNTIME_DIR", &runtime);
        let output = command.env("SIDECORE_SOCKET", bed.path("control.sock")).output().unwrap();
        let [text, error] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        (output.status.code(), text, error)
    };
    let vmm = Vmm::start(&bed, 0, 1);
    let (code, _, error) = reserve(&["--cpus", "0"]);
    assert_eq!(code, Some(1));
    assert!(error.contains(" is user 0's: reserve as that user, or with CAP_SYS_NICE"), "{error}");
    drop(vmm);

    let vmm = Vmm::start(&bed, NOBODY, 2);
    let (_, _, before) = vmm.thread("CPU 0/KVM");
    let (code, text, error) = reserve(&["--runtime", "1ms", "--period", "10ms"]);
    assert_eq!((code, error.as_str()), (Some(1), "sidecore: nothing was granted\n"), "{text}");
    let (code, text, error) =
        reserve(&["--vcpu", "0", "--runtime", "1ms", "--period", "10ms", "--cpus", "0"]);
    assert_eq!(code, Some(1), "{text}");
    for part in [
        ": affinity, what other threads leave, on 0\n",
        "not SCHED_DEADLINE: there is no exclusive cpuset of 0: ",
        "not SCHED_RR: it takes CAP_SYS_NICE (root has it), or a VMM whose RLIMIT_RTPRIO is 1 at least: it is 0",
        "not cpu.max: ",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(error.contains("less was granted than asked for"), "{error}");
    assert_eq!(vmm.thread("CPU 0/KVM").2.count(), 1);
    assert_eq!(reserve(&["--vcpu", "1", "--cpus", "0"]).0, Some(0));
    let (code, text, error) = reserve(&["--undo"]);
    assert_eq!((code, error.as_str()), (Some(0), ""), "{text}");
    assert_eq!(vmm.thread("CPU 0/KVM").2, before);
    assert_eq!(std::fs::read_dir(runtime.join("sidecore-reservations")).unwrap().count(), 0);
}

#[test]
fn requests_that_cannot_be_met_change_nothing_and_say_what_would_apply() {
    let _alone = alone();
    let bed = Testbed::new();
    let _daemon = daemon(&bed);
    assert!(bed.fails(&["reserve", "a", "--cpus", "0"]).contains("no process is at the other end of a"));
    assert!(bed.fails(&["reserve", "b", "--cpus", "0"]).contains("there is no port \"b\"; there are a, r"));
    let vmm = Vmm::start(&bed, 0, 2);
    for (args, part) in [
        (&["--runtime", "11ms", "--period", "10ms"][..], "--runtime: from 1us to the period, 10ms"),
        (&["--runtime", "0ms", "--period", "10ms"], "--runtime: from 1us to the period, 10ms"),
        (&["--cpus", "9999"], "--cpus: the machine's processors are 0-"),
        (&["--cpus", "3-2"], "the machine's processors are 0-"),
        (&["--cpus", "0", "--vcpu", "7"], "there is no such vCPU; there are vCPU 0 (thread "),
    ] {
        let error = bed.fails(&[&["reserve", "a"], args].concat());
        assert!(error.contains(part), "{args:?}: {error}");
    }
    for args in [
        &[][..],
        &["--runtime", "1ms"],
        &["--fifo", "0"],
        &["--fifo", "1", "--runtime", "1ms", "--period", "2ms"],
    ] {
        assert_eq!(bed.run(&[&["reserve", "a"], args].concat()).status.code(), Some(2), "{args:?}");
    }
    assert_eq!(vmm.policies(), [OTHER; 3]);
    assert!(reservations(&bed).is_empty());
}

#[test]
fn a_vmm_that_is_killed_leaves_nothing_behind() {
    let _alone = alone();
    let bed = Testbed::new();
    let _daemon = daemon(&bed);
    for undo in [true, false] {
        let mut vmm = Vmm::start(&bed, 0, 1);
        bed.ok(&["reserve", "a", "--fifo", "1"]);
        assert_eq!(reservations(&bed).len(), 1);
        vmm.child.kill().unwrap();
        wait(&mut vmm.child);
        assert_eq!(reservations(&bed)[0]["ended"], true);
        if undo {
            assert!(bed
                .ok(&["reserve", "a", "--undo"])
                .contains("the threads have ended, and nothing is left behind"));
        } else {
            // The next reservation of anybody on this machine tidies up.
            bed.run(&["reserve", "a", "--fifo", "1"]);
        }
        assert!(reservations(&bed).is_empty());
    }
}
