//! The daemon is killed and started again, and no VMM of an e1000 has to connect anew: native drivers go on
//! sending and receiving, and every question gets one answer.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::rig::{Daemon, Testbed, LIMIT};
use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;
use sidecore_abi::vfio_user::dma;
use sidecore_driver::e1000::{Config, E1000};
use sidecore_driver::memory::{Memory, Page};
use sidecore_driver::rtl8169::Rtl8169;
use sidecore_engine::sandbox::holder::Holder;

/// Registers: the device's status, a word without meaning for it, and a scratch place that traps.
const STATUS: u64 = 0x8;
const LEDCTL: u64 = 0xe00;
/// After so long without a frame the last ones are taken for lost.
const QUIET: Duration = Duration::from_millis(300);
/// How often a storm ends the daemon.
const KILLS: u64 = 20;
/// Most frames of one batch, and so the most that a kill may repeat, or lose.
const BATCH: u64 = 256;

/// Two ports of one switch.
struct Rig {
    bed: Testbed,
    kind: &'static str,
    daemon: Option<Daemon>,
}

impl Rig {
    fn new(kind: &'static str) -> Rig {
        let mut rig = Rig { bed: Testbed::new(), kind, daemon: None };
        rig.start();
        rig
    }

    fn start(&mut self) {
        let ports = ["a", "b"].map(|name| format!("{name}={}:{}", self.kind, self.bed.at(name)));
        self.daemon = Some(self.bed.daemon(&["--port", &ports[0], "--port", &ports[1]]));
    }

    fn end(&mut self, signal: Signal) {
        self.daemon.take().unwrap().end(signal);
    }

    fn restart(&mut self, signal: Signal) {
        self.end(signal);
        self.start();
    }

    /// A daemon is started that is killed `after` so long, before it is ready or not.
    fn fail_to_start(&self, after: Duration) {
        let ports = ["a", "b"].map(|name| format!("{name}={}:{}", self.kind, self.bed.at(name)));
        let mut command = self.bed.command();
        command.args(["run", "--port", &ports[0], "--port", &ports[1]]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Where its end finds it is left to chance.
        std::thread::sleep(after);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn driver(&self, name: &str) -> E1000 {
        self.driver_of(name, 0)
    }

    /// One that sends and receives by queue pair `queue`.
    fn driver_of(&self, name: &str, queue: usize) -> E1000 {
        // More than the sender's ring and the window hold, however long a daemon is away: none is ever too
        // many.
        let ring = if name == "b" { 128 } else { 64 };
        let config = Config { ring, queues: queue + 1, ..Config::default() };
        let mut driver = E1000::open(&self.bed.path(name), &config).unwrap();
        driver.select(queue).unwrap();
        driver
    }

    /// Waits until `show holders`, which asks no daemon, says of both that theirs is there, or is not.
    fn await_daemon_of_holders(&self, there: bool) {
        let end = Instant::now() + LIMIT;
        loop {
            let all = self.bed.show("holders");
            let ours = |it: &&Value| ["a", "b"].iter().any(|name| it["socket"] == self.bed.at(name));
            let ours: Vec<&Value> = all["holders"].as_array().unwrap().iter().filter(ours).collect();
            if ours.len() == 2 && ours.iter().all(|it| it["daemon"] == there && it["kind"] == self.kind) {
                return;
            }
            assert!(Instant::now() < end, "{all:#}");
        }
    }

    fn await_end_of_holders(&self) {
        let end = Instant::now() + LIMIT;
        while ["a.hold", "b.hold"].iter().any(|name| self.bed.path(name).exists()) {
            assert!(Instant::now() < end, "a holder does not end");
            std::thread::yield_now();
        }
    }
}

/// Bytes in front of a frame's number: Ethernet and IPv4.
const HEADER: usize = 34;

/// Frame `number`, of a length of its own. Receive side scaling sends its flow to the second queue: its hash
/// is odd (Microsoft's verification suite, IPv4, the fifth).
fn frame(number: u64) -> Vec<u8> {
    let mut bytes = vec![0x52, 0x54, 0, 0, 0, 2, 0x52, 0x54, 0, 0, 0, 1];
    bytes.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 17, 0, 0, 153, 39, 163, 191, 202, 188, 127, 2]);
    bytes.extend(number.to_be_bytes());
    let len = 60 + (number.wrapping_mul(0x9e37_79b9) % 1400) as usize;
    while bytes.len() < len {
        bytes.push((number as usize + bytes.len()) as u8);
    }
    bytes
}

/// What came in: in what order, and how often.
#[derive(Default, Debug)]
struct Seen {
    frames: u64,
    last: Option<u64>,
    repeated: u64,
    lost: u64,
}

impl Seen {
    fn see(&mut self, bytes: &[u8]) {
        let number = u64::from_be_bytes(bytes[HEADER..HEADER + 8].try_into().unwrap());
        assert_eq!(bytes, frame(number), "frame {number} was changed on its way");
        let next = self.last.map_or(0, |last| last + 1);
        self.frames += 1;
        self.repeated += next.saturating_sub(number);
        self.lost += number.saturating_sub(next);
        self.last = Some(number);
    }
}

/// Sends from `a` and receives at `b` until `enough`, and then what is still under way.
fn exchange(a: &mut E1000, b: &mut E1000, next: &mut u64, seen: &mut Seen, enough: impl Fn(&Seen) -> bool) {
    let end = Instant::now() + 3 * LIMIT;
    while !enough(seen) || seen.last.map_or(0, |last| last + 1) < *next {
        // No more than fit the receiver's ring: what is lost then was lost by a kill.
        if !enough(seen) && *next < seen.last.map_or(0, |last| last + 1) + 32 {
            let frames: Vec<_> = (*next..*next + 8).map(frame).collect();
            let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
            *next += a.send(&frames).unwrap() as u64;
        }
        if b.receive(64, |bytes| seen.see(bytes)).unwrap() == 0 {
            std::thread::yield_now();
        }
        assert!(Instant::now() < end, "the rings stand still: {seen:?}, {next} were sent");
    }
}

fn write_and_read(driver: &mut E1000, value: u32) {
    let client = driver.client();
    client.write32(0, LEDCTL, value).unwrap();
    assert_eq!(client.read32(0, LEDCTL).unwrap(), value);
    assert_ne!(client.read32(0, STATUS).unwrap() & 2, 0, "the link is down");
}

fn idle(kind: &'static str) {
    let mut rig = Rig::new(kind);
    let (mut a, mut b) = (rig.driver("a"), rig.driver("b"));
    let (mut next, mut seen) = (0, Seen::default());
    write_and_read(&mut a, 1);
    exchange(&mut a, &mut b, &mut next, &mut seen, |seen| seen.frames >= 1000);
    for (round, signal) in [Signal::TERM, Signal::KILL, Signal::KILL, Signal::TERM].into_iter().enumerate() {
        rig.restart(signal);
        let value = a.client().read32(0, LEDCTL);
        let log = rig.daemon.as_ref().unwrap().rest_of_log();
        assert_eq!(value.ok(), Some(round as u32 + 1), "a register was forgotten, or the VMM\n{log}");
        write_and_read(&mut a, round as u32 + 2);
        let enough = seen.frames + 200;
        exchange(&mut a, &mut b, &mut next, &mut seen, |seen| seen.frames >= enough);
        let port = rig.bed.port("a");
        assert_eq!(port["state"]["peer"], "running", "{port:#}");
    }
    // Nothing was under way when it ended.
    assert_eq!((seen.repeated, seen.lost), (0, 0), "{seen:?}");
    drop((a, b));
    rig.await_end_of_holders();
}

#[test]
fn an_e1000e_goes_on_after_a_restart() {
    idle("e1000e");
}

#[test]
fn an_e1000_goes_on_after_a_restart() {
    idle("e1000");
}

/// VMMs cannot connect to a card a second time: what changes it must not cost its guest the card.
#[test]
fn a_card_outlives_the_restart_of_its_port() {
    let rig = Rig::new("e1000e");
    let (mut a, mut b) = (rig.driver("a"), rig.driver("b"));
    let (mut next, mut seen) = (0, Seen::default());
    write_and_read(&mut a, 1);
    for (round, command) in
        [&["restart", "a"][..], &["set", "a", "mac=52:54:00:00:00:99"], &["restart", "a", "b"]]
            .iter()
            .enumerate()
    {
        rig.bed.ok(command);
        let value = a.client().read32(0, LEDCTL);
        assert_eq!(value.ok(), Some(round as u32 + 1), "{command:?}: a register was forgotten, or the VMM");
        write_and_read(&mut a, round as u32 + 2);
        let enough = seen.frames + 200;
        exchange(&mut a, &mut b, &mut next, &mut seen, |seen| seen.frames >= enough);
        rig.bed.ok(&["doctor", "a"]);
    }
    // Another card than the guest has found: that VMM is disconnected, and it is said what helps.
    rig.bed.ok(&["set", "a", "features-off=exitless"]);
    assert!(a.client().read32(0, LEDCTL).is_err());
    let text = rig.bed.ok(&["doctor", "a"]);
    assert!(text.contains("restart the VM"), "{text}");
    // The next one finds the new address.
    assert_eq!(rig.driver("a").mac(), [0x52, 0x54, 0, 0, 0, 0x99]);
}

/// The question comes to a daemon that stands still, and lies in the socket, unread, when that one dies.
#[test]
fn a_question_that_nobody_has_read_is_answered_by_the_next_daemon() {
    let mut rig = Rig::new("e1000e");
    let mut driver = rig.driver("a");
    rig.daemon.as_ref().unwrap().signal(Signal::STOP);
    let answer = std::thread::scope(|scope| {
        let asks = scope.spawn(|| driver.client().read32(0, STATUS));
        rig.restart(Signal::KILL);
        asks.join().unwrap()
    });
    assert_ne!(answer.unwrap() & 2, 0);
    write_and_read(&mut driver, 7);
}

/// While there is no daemon a driver is answered, may do all that drivers do, and finds it done afterwards.
fn away(kind: &'static str) {
    const MAPPED: u64 = 0x7_0000_0000;
    let mut rig = Rig::new(kind);
    let (mut a, mut b) = (rig.driver("a"), rig.driver("b"));
    let (mut next, mut seen) = (0, Seen::default());
    exchange(&mut a, &mut b, &mut next, &mut seen, |seen| seen.frames >= 300);
    write_and_read(&mut a, 1);
    rig.await_daemon_of_holders(true);
    rig.end(Signal::KILL);
    rig.await_daemon_of_holders(false);
    // What was written before stands there, and what is written now does afterwards.
    assert_eq!(a.client().read32(0, LEDCTL).unwrap(), 1);
    (2..50).for_each(|value| write_and_read(&mut a, value));
    // A driver whose frames stand still resets its card, and sets it up anew: here in other memory, with
    // other interrupts.
    let more = Memory::new(1 << 20, Page::Small).unwrap();
    let (size, both) = (more.size() as u64, dma::READ | dma::WRITE);
    a.client().map(MAPPED, size, both, Some((more.fd(), 0))).unwrap();
    a.client().map(2 * MAPPED, size, both, Some((more.fd(), 0))).unwrap();
    a.client().unmap(MAPPED, size).unwrap();
    // No file that another process may serve.
    let (strange, _end) = rustix::pipe::pipe().unwrap();
    assert!(a.client().map(MAPPED, size, both, Some((strange.as_fd(), 0))).is_err());
    a.start().unwrap();
    write_and_read(&mut a, 50);
    // Interrupts that it turns off and on again.
    if kind == "e1000e" {
        a.client().enable_msix().unwrap();
    }
    // It sends into a ring that nobody serves.
    next += a.send(&[&frame(next)]).unwrap() as u64;
    rig.start();
    let log = rig.daemon.as_ref().unwrap().rest_of_log();
    assert_eq!(a.client().read32(0, LEDCTL).ok(), Some(50), "{log}");
    exchange(&mut a, &mut b, &mut next, &mut seen, |seen| seen.frames >= 600);
    assert_eq!((seen.repeated, seen.lost), (0, 0), "{seen:?}");
    a.client().unmap(2 * MAPPED, size).unwrap();
    // One after the other, without a word of the daemons between: each goes on where the one before it ended.
    for value in 51..54 {
        rig.restart(Signal::KILL);
        rig.end(Signal::KILL);
        write_and_read(&mut a, value);
        rig.start();
    }
    exchange(&mut a, &mut b, &mut next, &mut seen, |seen| seen.frames >= 700);
    // VMMs that end meanwhile take their holders along.
    rig.end(Signal::KILL);
    write_and_read(&mut b, 3);
    drop((a, b));
    rig.await_end_of_holders();
}

#[test]
fn an_e1000e_is_answered_while_no_daemon_is_there() {
    away("e1000e");
}

#[test]
fn an_e1000_is_answered_while_no_daemon_is_there() {
    away("e1000");
}

#[test]
fn an_rtl8169_is_answered_while_no_daemon_is_there() {
    let bed = Testbed::new();
    let port = format!("a=rtl8169:{}", bed.at("a"));
    let daemon = bed.daemon(&["--port", &port]);
    let mut driver = Rtl8169::open(&bed.path("a"), &Default::default()).unwrap();
    daemon.end(Signal::KILL);
    let mac = driver.mac();
    driver.start().unwrap();
    assert!(driver.link().unwrap());
    let daemon = bed.daemon(&["--port", &port]);
    assert!(driver.link().unwrap() && driver.mac() == mac);
    drop(daemon);
}

/// A daemon that has no such port any more says who answers the VMM, and a daemon that has goes on.
#[test]
fn a_holder_that_no_port_will_find_is_named() {
    let mut rig = Rig::new("e1000e");
    let (mut a, mut b) = (rig.driver("a"), rig.driver("b"));
    rig.end(Signal::KILL);
    let other = rig.bed.daemon(&["--port", &format!("a=e1000e:{}", rig.bed.at("a"))]);
    let line = other.await_log("is answered by its holder");
    assert!(line.contains(&format!("at {} is", rig.bed.at("b"))), "{line}");
    assert!(!other.rest_of_log().contains("is answered by its holder"));
    write_and_read(&mut a, 1);
    write_and_read(&mut b, 2);
    other.end(Signal::KILL);
    rig.start();
    write_and_read(&mut b, 3);
}

/// A VMM that breaks the protocol meanwhile loses its own connection, and no other does.
#[test]
fn a_vmm_that_lies_to_its_holder_harms_itself() {
    let mut rig = Rig::new("e1000e");
    let (mut a, mut b) = (rig.driver("a"), rig.driver("b"));
    rig.end(Signal::KILL);
    write_and_read(&mut a, 1);
    a.client().channel().send(&[&[0xff; 64]], &[]).unwrap();
    assert!(a.client().read32(0, STATUS).is_err());
    write_and_read(&mut b, 2);
    rig.start();
    write_and_read(&mut b, 3);
    write_and_read(&mut rig.driver("a"), 4);
}

fn command_line(process: Pid) -> String {
    let path = format!("/proc/{}/cmdline", process.as_raw_nonzero());
    std::fs::read_to_string(path).unwrap().trim_end_matches('\0').replace('\0', " ")
}

/// Without a holder all is as it was before there were any.
#[test]
fn a_port_whose_holder_is_killed_goes_on_until_its_daemon_ends() {
    let mut rig = Rig::new("e1000e");
    let (mut a, mut b) = (rig.driver("a"), rig.driver("b"));
    let daemon = rig.daemon.as_ref().unwrap();
    let holders = daemon.holders();
    let mut commands: Vec<_> = holders.iter().map(|holder| command_line(*holder)).collect();
    commands.sort();
    for (command, name) in commands.iter().zip(["a", "b"]) {
        let begins = format!("sidecore hold {}.hold {{\"port\":{{\"name\":\"{name}\",", rig.bed.at(name));
        assert!(command.starts_with(&begins), "{command}");
    }
    holders.iter().for_each(|holder| kill_process(*holder, Signal::KILL).unwrap());
    daemon.await_log("nothing is held (the holder is gone)");
    let (mut next, mut seen) = (0, Seen::default());
    exchange(&mut a, &mut b, &mut next, &mut seen, |seen| seen.frames >= 100);
    write_and_read(&mut a, 1);
    // Each port notices by itself, when all that its VMM said is heard.
    let end = Instant::now() + LIMIT;
    while !rig.bed.port("a").to_string().contains("its holder is gone") {
        assert!(Instant::now() < end, "{:#}", rig.bed.port("a"));
    }
    rig.restart(Signal::KILL);
    assert!(a.client().read32(0, STATUS).is_err(), "the connection is the old one");
    drop((a, b));
    // What the killed ones have left does no harm.
    let mut driver = rig.driver("a");
    rig.restart(Signal::KILL);
    write_and_read(&mut driver, 2);
}

/// As if another release had left it: the number of the state's layout is unknown.
#[test]
fn a_state_of_another_format_is_refused_and_the_log_says_so() {
    const STATE: u64 = 1;
    const LAYOUT: u64 = 8;
    let mut rig = Rig::new("e1000e");
    let (mut a, mut b) = (rig.driver("a"), rig.driver("b"));
    rig.end(Signal::KILL);
    let (holder, mut found) = Holder::find(&rig.bed.path("a.hold"), false).unwrap().unwrap();
    let state = File::from(found.remove(&STATE).unwrap());
    state.write_all_at(&u64::MAX.to_ne_bytes(), LAYOUT).unwrap();
    // What we got keeps no connection.
    drop((state, found, holder));
    rig.start();
    let line = rig.daemon.as_ref().unwrap().await_log("its state has another format");
    assert!(line.contains("disconnected") && line.contains("another version of sidecore"), "{line}");
    assert!(a.client().read32(0, STATUS).is_err(), "the connection is the old one");
    // The other port goes on, and this one serves its next client.
    write_and_read(&mut b, 1);
    drop(a);
    write_and_read(&mut rig.driver("a"), 2);
}

/// Says that enough frames have come when it is dropped.
struct Over<'a>(&'a AtomicU64);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(u64::MAX, Relaxed);
    }
}

/// Ended by `signal` at any time, again and again, while frames and questions are under way; received by
/// interrupts alone.
fn storm(kind: &'static str, queue: usize, seed: u64, signal: Signal) -> Seen {
    let mut rig = Rig::new(kind);
    let (mut a, mut b) = (rig.driver_of("a", queue), rig.driver_of("b", queue));
    b.arm_all().unwrap();
    let (mut next, mut seen) = (0, Seen::default());
    let (kills, frames) = &(AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let killer = scope.spawn(move || {
            let mut random = seed;
            for kill in 0..KILLS {
                // A while of traffic, of some frames more or less, and then at any instruction.
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let (until, end) =
                    (frames.load(Relaxed).saturating_add(random >> 54), Instant::now() + 3 * LIMIT);
                while frames.load(Relaxed) < until && Instant::now() < end {
                    std::hint::spin_loop();
                }
                (0..random >> 40 & 0xffff).for_each(|_| std::hint::spin_loop());
                // No daemon has begun before all its ports were there.
                let drops = rig.bed.show("drops");
                let log = rig.daemon.as_ref().unwrap().rest_of_log();
                assert_eq!(drops["drops"].as_array().map(Vec::len), Some(0), "{drops:#}\n{log}");
                rig.end(signal);
                for part in 0..random >> 20 & 3 {
                    rig.fail_to_start(Duration::from_micros(random >> (part * 8) & 0xffff));
                }
                rig.start();
                kills.store(kill + 1, Relaxed);
            }
            rig
        });
        // The killer waits for nothing when this ends, however it ends.
        let over = Over(frames);
        let (mut quiet, mut asked, mut after) = (Instant::now(), 0u32, u64::MAX);
        let (mut silent, mut given_up) = (Instant::now(), 0);
        // Until the last daemon has passed a lot of frames, too.
        while seen.frames < after {
            let done = killer.is_finished();
            assert!(!done || kills.load(Relaxed) == KILLS, "the daemon cannot be started again");
            if done && after == u64::MAX {
                after = seen.frames + 1000;
            }
            // No more than fit the receiver's ring; if the last ones were lost, as many others after a while.
            if quiet.elapsed() > QUIET && silent.elapsed() > QUIET {
                (silent, given_up) = (Instant::now(), next);
            }
            if next < given_up.max(seen.last.map_or(0, |last| last + 1)) + 32 {
                let some: Vec<_> = (next..next + 8).map(frame).collect();
                let some: Vec<&[u8]> = some.iter().map(Vec::as_slice).collect();
                next += a.send(&some).unwrap() as u64;
            }
            match b.service(64, |bytes| seen.see(bytes)).unwrap() {
                Some(count) if count > 0 => quiet = Instant::now(),
                _ => std::thread::yield_now(),
            }
            frames.store(seen.frames, Relaxed);
            asked += 1;
            if asked % 4 == 0 {
                write_and_read(&mut a, asked);
            }
            assert!(quiet.elapsed() < 3 * LIMIT, "the rings stand still: {seen:?}, {next} were sent");
        }
        drop((a, b));
        drop(over);
        killer.join().unwrap().await_end_of_holders();
    });
    println!("{kind}: ended {KILLS} times by {signal:?}: {seen:?} of {next}");
    seen
}

#[test]
fn an_e1000e_lives_through_a_storm_by_its_second_queues() {
    let seen = storm("e1000e", 1, 1, Signal::KILL);
    assert!(seen.repeated.max(seen.lost) <= KILLS * BATCH, "{seen:?}");
}

#[test]
fn an_e1000_lives_through_a_storm() {
    let seen = storm("e1000", 0, 2, Signal::KILL);
    assert!(seen.repeated.max(seen.lost) <= KILLS * BATCH, "{seen:?}");
}

#[test]
fn an_orderly_end_costs_no_frame() {
    for (kind, queue, seed) in [("e1000e", 1, 3), ("e1000", 0, 4)] {
        let seen = storm(kind, queue, seed, Signal::TERM);
        assert_eq!((seen.repeated, seen.lost), (0, 0), "{kind}: {seen:?}");
    }
}
