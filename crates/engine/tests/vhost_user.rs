//! vhost-user ports from outside: a native driver at the other end of the socket, real I/O cores between.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)]

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use sidecore_abi::virtio::features as f;
use sidecore_driver::frontend::{protocol, Frontend, Listener, Region};
use sidecore_driver::lying::{self, Liar, Outcome};
use sidecore_driver::net::NetDriver;
use sidecore_driver::raw::{request, Message};
use sidecore_driver::session::{Config, Want};
use sidecore_engine::core::{Attach, CoreOptions, Cores, Topology};
use sidecore_engine::device::virtio_net::{NetConfig, VirtioNet};
use sidecore_engine::observe::CounterFile;
use sidecore_engine::port::{Attachment, AttachmentStatus, Peer, Port, PortId, DEFAULT_MTU};
use sidecore_engine::transport::vhost_user::{
    check_path, Endpoint, SocketError, VhostUser, VhostUserConfig, VhostUserError,
};

const LIMIT: Duration = Duration::from_secs(10);

/// Two ports on a wire and a third that is attached to nothing, one I/O core, a directory for sockets.
struct Rig {
    dir: PathBuf,
    cores: Arc<Cores>,
    ports: [Arc<Port>; 3],
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Role {
    Server,
    Client,
}

impl Rig {
    fn new(name: &str) -> Rig {
        let dir = std::env::temp_dir().join(format!("sidecore-{name}-{}", std::process::id()));
        Rig::at(dir)
    }

    fn at(dir: PathBuf) -> Rig {
        std::fs::create_dir_all(&dir).unwrap();
        let file = CounterFile::anonymous().unwrap();
        let ports = [(0, "a"), (1, "b"), (2, "c")].map(|(id, name)| {
            let counters = file.open_slot(PortId(id), name);
            Arc::new(Port::new(PortId(id), name, counters, DEFAULT_MTU).unwrap())
        });
        let cores = Cores::start(&CoreOptions::default()).unwrap();
        let wires = [Attach::Wire(PortId(1)), Attach::Wire(PortId(0)), Attach::Nothing];
        let members: Vec<_> = ports.iter().cloned().zip(wires).collect();
        cores.publish(&Arc::new(Topology::new(&members)));
        Rig { dir, cores, ports }
    }

    fn path(&self, port: usize) -> PathBuf {
        self.dir.join(format!("{port}.sock"))
    }

    fn endpoint(&self, port: usize, role: Role) -> Endpoint {
        let path = self.path(port);
        match role {
            Role::Server => Endpoint::Listen { path, mode: None, owner: (None, None) },
            Role::Client => Endpoint::Connect { path },
        }
    }

    fn attach(&self, port: usize, role: Role) -> VhostUser {
        self.attach_with(
            port,
            self.endpoint(port, role),
            NetConfig { queue_pairs: 2, ..NetConfig::default() },
        )
    }

    fn attach_with(&self, port: usize, endpoint: Endpoint, net: NetConfig) -> VhostUser {
        let port = Arc::clone(&self.ports[port]);
        let device = VirtioNet::new(&net, port, Arc::clone(&self.cores) as _).unwrap();
        let journal = Some(self.dir.join(format!("{}.positions", device_name(&device))));
        VhostUser::start(VhostUserConfig { endpoint, journal }, device).unwrap()
    }

    fn meet(&self, port: usize, role: Role) -> Frontend {
        match role {
            Role::Server => Frontend::connect(self.path(port), LIMIT).unwrap(),
            Role::Client => Listener::new(self.path(port)).unwrap().accept(LIMIT).unwrap(),
        }
    }

    /// A frame is seen by its receiver before the batch that it came in is counted, so this waits for the end of
    /// a batch.
    fn assert_conserved(&self) {
        let deadline = Instant::now() + LIMIT;
        loop {
            let (mut came, mut went) = (0, 0);
            for port in &self.ports {
                let totals = port.counters.totals();
                came += totals.in_frames + totals.made;
                went += totals.out_frames + totals.drops.iter().sum::<u64>();
            }
            if came == went {
                return;
            }
            assert!(Instant::now() < deadline, "{came} frames came, {went} went");
            std::thread::yield_now();
        }
    }
}

fn device_name(device: &VirtioNet) -> String {
    use sidecore_engine::device::VirtioDevice;
    device.port().name.clone()
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn config(features: u64) -> Config {
    Config { want: Want::default().and(features), entries: 64, ..Config::default() }
}

/// A frame that says its number.
fn frame(number: u32) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    bytes[12..14].copy_from_slice(&0x88b5u16.to_be_bytes());
    bytes[14..18].copy_from_slice(&number.to_be_bytes());
    bytes[60..].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn number(bytes: &[u8]) -> u32 {
    assert_eq!(bytes.len(), 64);
    let number = u32::from_be_bytes(bytes[14..18].try_into().unwrap());
    assert_eq!(bytes, frame(number));
    number
}

/// Sends the frames `range` and sees all of them arrive in order.
fn pass(from: &mut NetDriver, to: &mut NetDriver, range: std::ops::Range<u32>) {
    let deadline = Instant::now() + LIMIT;
    let (mut next, mut due) = (range.start, range.start);
    while due < range.end {
        // Never more in flight than the receiver has buffers, so that nothing may be lost.
        while next < range.end && next - due < 32 && from.send(0, &[&frame(next)]).unwrap() == 1 {
            next += 1;
        }
        let mut got = Vec::new();
        to.receive(0, |_, bytes| got.push(number(bytes))).unwrap();
        if got.is_empty() {
            assert!(Instant::now() < deadline, "frame {due} did not arrive, {next} were sent");
            to.wait(Duration::from_millis(20)).unwrap();
        }
        for number in got {
            assert_eq!(number, due);
            due += 1;
        }
    }
}

fn hang_up(driver: &NetDriver) {
    // Fails if the other side was first.
    let _ = driver.session().frontend.socket().shutdown(std::net::Shutdown::Both);
}

/// Waits until the attachment says what is expected of it.
fn await_status(attachment: &VhostUser, what: impl Fn(&AttachmentStatus) -> bool) -> AttachmentStatus {
    let deadline = Instant::now() + LIMIT;
    loop {
        let status = attachment.status();
        if what(&status) {
            return status;
        }
        assert!(Instant::now() < deadline, "{status:?}");
        std::thread::yield_now();
    }
}

const FORMATS: [u64; 6] = [
    0,
    f::EVENT_IDX | f::NET_MRG_RXBUF,
    f::IN_ORDER | f::EVENT_IDX | f::INDIRECT_DESC,
    f::RING_PACKED,
    f::RING_PACKED | f::EVENT_IDX | f::NET_MRG_RXBUF,
    f::RING_PACKED | f::IN_ORDER | f::INDIRECT_DESC,
];

#[test]
fn frames_pass_in_both_roles_and_all_ring_formats() {
    for (case, features) in FORMATS.into_iter().enumerate() {
        for roles in [(Role::Server, Role::Client), (Role::Client, Role::Server)] {
            let rig = Rig::new(&format!("pass{case}"));
            let vus = [rig.attach(0, roles.0), rig.attach(1, roles.1)];
            let mut a = NetDriver::start(rig.meet(0, roles.0), config(features)).unwrap();
            let mut b = NetDriver::start(rig.meet(1, roles.1), config(features)).unwrap();
            pass(&mut a, &mut b, 0..500);
            pass(&mut b, &mut a, 0..500);
            let status = await_status(&vus[0], |status| status.peer == Peer::Running);
            assert!(status.queues.iter().all(|queue| queue.state == "running"), "{status:?}");
            assert_eq!(status.queues.len(), 2);
            rig.assert_conserved();
        }
    }
}

#[test]
fn rings_go_on_where_they_were_after_a_reconnect_and_after_a_new_daemon() {
    for features in [f::EVENT_IDX, f::RING_PACKED] {
        for role in [Role::Server, Role::Client] {
            let rig = Rig::new(&format!("again{features}{role:?}"));
            let mut first = rig.attach(0, role);
            let _second = rig.attach(1, Role::Server);
            let mut a = NetDriver::start(rig.meet(0, role), config(features)).unwrap();
            let mut b = NetDriver::start(rig.meet(1, Role::Server), config(features)).unwrap();
            let mut at = 0;
            for round in 0..6 {
                pass(&mut a, &mut b, at..at + 150);
                pass(&mut b, &mut a, at..at + 150);
                at += 150;
                if round % 2 == 0 {
                    a.complete(0).unwrap();
                    drop(first);
                    first = rig.attach(0, role);
                }
                hang_up(&a);
                a.reconnect(rig.meet(0, role)).unwrap();
            }
            await_status(&first, |status| status.peer == Peer::Running);
        }
    }
}

/// Not a test of its own: the process that `a_killed_daemon_loses_nothing` kills.
#[test]
fn daemon() {
    let Some(dir) = std::env::var_os("SIDECORE_TEST_DIR") else { return };
    let role = if std::env::var_os("SIDECORE_TEST_CLIENT").is_some() { Role::Client } else { Role::Server };
    let rig = Rig::at(dir.into());
    let _ports = [rig.attach(0, role), rig.attach(1, role)];
    loop {
        std::thread::park();
    }
}

struct Daemon(Child);

impl Daemon {
    fn start(rig: &Rig, role: Role) -> Daemon {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "daemon", "--nocapture"]).env("SIDECORE_TEST_DIR", &rig.dir);
        if role == Role::Client {
            command.env("SIDECORE_TEST_CLIENT", "1");
        }
        Daemon(command.stdout(std::process::Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Daemon {
    /// SIGKILL.
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Frames on their way from one driver to the other, over any number of accidents.
#[derive(Default)]
struct Stream {
    next: u32,
    due: u32,
    twice: u32,
}

impl Stream {
    fn send(&mut self, from: &mut NetDriver) {
        // Never more in flight than the receiver has buffers, even if all of it comes twice.
        while self.next - self.due < 30 && from.send(0, &[&frame(self.next)]).unwrap() == 1 {
            self.next += 1;
        }
    }

    /// Nothing may be missing; frames that were under way in an accident may come again.
    fn receive(&mut self, to: &mut NetDriver) {
        let mut got = Vec::new();
        to.receive(0, |_, bytes| got.push(number(bytes))).unwrap();
        for number in got {
            assert!(number <= self.due, "frame {} is missing, {number} came", self.due);
            self.twice += u32::from(number < self.due);
            self.due = self.due.max(number + 1);
        }
    }

    fn run(&mut self, from: &mut NetDriver, to: &mut NetDriver, until: u32) {
        let deadline = Instant::now() + LIMIT;
        while self.due < until {
            self.send(from);
            let due = self.due;
            self.receive(to);
            if due == self.due {
                assert!(Instant::now() < deadline, "frame {due} did not arrive");
                to.wait(Duration::from_millis(20)).unwrap();
            }
        }
    }
}

#[test]
fn a_killed_daemon_loses_nothing() {
    for features in
        [0, f::EVENT_IDX | f::IN_ORDER, f::RING_PACKED, f::RING_PACKED | f::EVENT_IDX | f::IN_ORDER]
    {
        for role in [Role::Server, Role::Client] {
            // Without INFLIGHT_SHMFD, as QEMU's network devices are: only our own journal knows.
            let mut config = config(features);
            config.want.protocol &= !protocol::INFLIGHT_SHMFD;
            let rig = Rig::new(&format!("kill{features}{role:?}"));
            let mut daemon = Daemon::start(&rig, role);
            let mut a = NetDriver::start(rig.meet(0, role), config).unwrap();
            let mut b = NetDriver::start(rig.meet(1, role), config).unwrap();
            let stale = vec![a.session().first_base(); 2];
            let mut stream = Stream::default();
            let rounds = std::env::var("KILLS").map_or(8, |kills| kills.parse().unwrap());
            for round in 1..=rounds {
                stream.run(&mut a, &mut b, round * 500);
                stream.send(&mut a);
                // Death comes at another moment of the batch each time.
                (0..round * 131 % 4099).for_each(|_| std::hint::spin_loop());
                drop(daemon);
                daemon = Daemon::start(&rig, role);
                // The receiver first: what is sent to a port that nobody uses is dropped.
                b.reconnect_at(rig.meet(1, role), &stale).unwrap();
                a.reconnect_at(rig.meet(0, role), &stale).unwrap();
            }
            let until = stream.next;
            stream.run(&mut a, &mut b, until);
            println!("{features:#x} {role:?}: {until} frames, {} came twice", stream.twice);
        }
    }
}

#[test]
fn a_liar_loses_its_own_port_only() {
    let lies: Vec<_> = lying::all().collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while let Some(lie) = lies.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let rig = Rig::new(&format!("lie-{}", lie.name));
                    let _honest = [rig.attach(0, Role::Server), rig.attach(1, Role::Server)];
                    let mut a = NetDriver::start(rig.meet(0, Role::Server), config(0)).unwrap();
                    let mut b = NetDriver::start(rig.meet(1, Role::Server), config(0)).unwrap();
                    let lied_to = rig.attach(2, Role::Server);
                    let path = rig.path(2);
                    let mut liar = Liar::new(move || Frontend::connect(&path, LIMIT));
                    let outcome = (lie.run)(&mut liar).unwrap_or_else(|e| panic!("{}: {e}", lie.name));
                    if matches!(outcome, Outcome::Closed | Outcome::Signalled) {
                        let status = await_status(&lied_to, |status| status.peer == Peer::Faulted);
                        println!("{}: {}", lie.name, status.detail);
                        assert!(status.detail.contains("last fault: "), "{}: {}", lie.name, status.detail);
                    }
                    pass(&mut a, &mut b, 0..100);
                    liar.release();
                    drop(lied_to);
                    pass(&mut a, &mut b, 0..100);
                    rig.assert_conserved();
                }
            });
        }
    });
}

/// Port 0 and its driver under traffic to port 1, while `disturb` happens once per round.
fn disturbed(name: &str, features: u64, mut disturb: impl FnMut(&Rig, &mut NetDriver, u32)) {
    let rig = Rig::new(name);
    let vus = [rig.attach(0, Role::Server), rig.attach(1, Role::Server)];
    let mut a = NetDriver::start(rig.meet(0, Role::Server), config(features)).unwrap();
    let mut b = NetDriver::start(rig.meet(1, Role::Server), config(features)).unwrap();
    let mut stream = Stream::default();
    for round in 1..=20 {
        stream.run(&mut a, &mut b, round * 200);
        // Frames are under way meanwhile.
        stream.send(&mut a);
        disturb(&rig, &mut a, round);
        stream.receive(&mut b);
    }
    let until = stream.next;
    stream.run(&mut a, &mut b, until);
    assert_eq!(stream.twice, 0, "nothing comes twice as long as nobody dies");
    pass(&mut b, &mut a, 0..100);
    drop(vus);
    rig.assert_conserved();
}

/// A VMM shares its interrupts' eventfds with us, and their flags: it makes one blocking again and fills it. Whoever
/// writes it now waits for the VMM to read it, which it does not.
#[test]
fn a_full_interrupt_that_blocks_stalls_no_io_core() {
    use rustix::event::{eventfd, EventfdFlags};
    use rustix::fs::{fcntl_getfl, fcntl_setfl, OFlags};
    let mut signal = sidecore_engine::mem::Signal::default();
    signal.set(Some(eventfd(0, EventfdFlags::NONBLOCK).unwrap()));
    if !signal.never_waits() {
        eprintln!("skipped: there is no io_uring here");
        return;
    }
    let rig = Rig::new("full");
    let _attachments = [rig.attach(0, Role::Server), rig.attach(1, Role::Server)];
    let mut drivers = [0, 1].map(|port| NetDriver::start(rig.meet(port, Role::Server), config(0)).unwrap());
    let [a, b] = &mut drivers;
    pass(a, b, 0..10);
    let call = b.session().vring(0).unwrap().call.try_clone().unwrap();
    let flags = fcntl_getfl(&call).unwrap();
    // What earlier interrupts left there.
    let _ = rustix::io::read(&call, &mut [0; 8]);
    rustix::io::write(&call, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    fcntl_setfl(&call, flags - OFlags::NONBLOCK).unwrap();
    let before = interrupts(&rig);
    b.ask_for_interrupts();
    let deadline = Instant::now() + LIMIT;
    let out = || rig.ports[1].counters.totals().out_frames;
    for n in 10..20 {
        assert_eq!(a.send(0, &[&frame(n)]).unwrap(), 1);
        while out() <= u64::from(n) && Instant::now() < deadline {
            std::thread::yield_now();
        }
    }
    let arrived = out();
    // Lets a core that waits go on, so that a failure ends.
    rustix::io::read(&call, &mut [0; 8]).unwrap();
    fcntl_setfl(&call, flags).unwrap();
    assert_eq!(arrived, 20, "the I/O core waited for the VMM");
    assert!(interrupts(&rig) > before, "nothing was tested");
    pass(b, a, 20..30);
    rig.assert_conserved();
}

fn interrupts(rig: &Rig) -> u64 {
    rig.ports[1].counters.totals().interrupts
}

#[test]
fn memory_may_come_and_go_under_traffic() {
    for features in [f::EVENT_IDX, f::RING_PACKED] {
        let fd = memfd_create(c"more", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 0x10_0000).unwrap();
        disturbed(&format!("memory{features}"), features, |_, a, round| {
            let session = a.session();
            let region = session.region();
            let more = Region {
                gpa: region.gpa + region.size + 0x10_0000 * u64::from(round),
                size: 0x10_0000,
                user: region.user + region.size + 0x10_0000 * u64::from(round),
                offset: 0,
            };
            match round % 3 {
                0 => session.frontend.set_mem_table(&[(region, session.memory.fd())]).unwrap(),
                1 => session
                    .frontend
                    .set_mem_table(&[(region, session.memory.fd()), (more, fd.as_fd())])
                    .unwrap(),
                _ => {
                    session.frontend.add_region(more, &fd).unwrap();
                    session.frontend.remove_region(more).unwrap();
                }
            }
        });
    }
}

#[test]
fn all_509_memory_slots_can_be_used() {
    let rig = Rig::new("slots");
    let _vu = rig.attach(0, Role::Server);
    let a = NetDriver::start(rig.meet(0, Role::Server), config(0)).unwrap();
    let frontend = &a.session().frontend;
    let slots = frontend.max_mem_slots().unwrap();
    assert_eq!(slots, 509);
    let fd = memfd_create(c"slot", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, 0x1000).unwrap();
    let slot = |n: u64| Region { gpa: n << 40, size: 0x1000, user: n << 40, offset: 0 };
    // The driver has one already.
    for n in 1..slots {
        frontend.add_region(slot(n), &fd).unwrap();
    }
    assert!(frontend.add_region(slot(slots), &fd).is_err());
}

#[test]
fn rings_stop_and_resume_under_traffic() {
    for features in [f::EVENT_IDX, f::RING_PACKED | f::EVENT_IDX] {
        disturbed(&format!("pause{features}"), features, |_, a, _| {
            for number in 0..2 {
                let base = a.session().stop_vring(number).unwrap();
                a.session().resume_vring(number, base).unwrap();
            }
        });
    }
}

/// SET_VRING_ADDR with the log flag, as QEMU sends it while it migrates.
fn log_ring(driver: &NetDriver, number: u16, on: bool) {
    let session = driver.session();
    let parts = session.vring(number).unwrap().parts.addresses();
    let used_gpa = parts.used - session.memory.user(0) + session.memory.gpa(0);
    let words = [u64::from(number) | u64::from(on) << 32, parts.desc, parts.used, parts.avail, used_gpa];
    session.frontend.set(Message::words(request::SET_VRING_ADDR, &words)).unwrap();
}

#[test]
fn the_dirty_log_names_each_page_that_was_written() {
    use std::os::unix::fs::FileExt;
    for features in [f::EVENT_IDX | f::NET_MRG_RXBUF, f::RING_PACKED | f::NET_MRG_RXBUF] {
        let rig = Rig::new(&format!("log{features}"));
        let _vus = [rig.attach(0, Role::Server), rig.attach(1, Role::Server)];
        let mut a = NetDriver::start(rig.meet(0, Role::Server), config(features)).unwrap();
        let mut b = NetDriver::start(rig.meet(1, Role::Server), config(features)).unwrap();
        pass(&mut a, &mut b, 0..100);
        let session = b.session();
        let (gpa, size) = (session.memory.gpa(0), session.memory.size());
        let pages = (gpa + size as u64) >> 12;
        let bytes = pages.div_ceil(8).next_multiple_of(8);
        let log: std::fs::File = memfd_create(c"log", MemfdFlags::CLOEXEC).unwrap().into();
        log.set_len(bytes).unwrap();
        let message = Message::words(request::SET_LOG_BASE, &[bytes, 0]).with_fd(&log).unwrap();
        session.frontend.ask(&message).unwrap();
        rig.ports[0].set_mtu(9000);
        let image = |driver: &NetDriver| {
            let mut image = vec![0; size];
            driver.session().memory.read(0, &mut image);
            image
        };
        session.frontend.set_features(session.features | f::VHOST_LOG_ALL).unwrap();
        (0..2).for_each(|number| log_ring(&b, number, true));
        let before = image(&b);
        // The driver writes only what is in the rings and refills; what we write is in `after`.
        // Long enough to fill several buffers to the brim.
        for number in 0..10 {
            let mut long = frame(1000 + number).to_vec();
            long.resize(4 * 2048 - 12, 0xee);
            assert_eq!(a.send(0, &[&long]).unwrap(), 1);
        }
        let deadline = Instant::now() + LIMIT;
        while rig.ports[1].counters.totals().out_frames < 110 {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
        let after = image(&b);
        let mut bits = vec![0; bytes as usize];
        log.read_exact_at(&mut bits, 0).unwrap();
        let logged = |page: u64| bits[(page / 8) as usize] >> (page % 8) & 1 == 1;
        let mut written = 0;
        for (number, (old, new)) in before.chunks(4096).zip(after.chunks(4096)).enumerate() {
            let page = (gpa >> 12) + number as u64;
            assert!(old == new || logged(page), "page {page:#x} was written and not logged");
            written += usize::from(old != new);
        }
        let marked = (0..pages).filter(|page| logged(*page)).count();
        assert!(written >= 20, "10 frames fill twenty pages of buffers");
        assert!(marked <= written + 3, "{marked} pages marked, {written} written");
        // Off again: nothing more is marked.
        b.session().frontend.set_features(b.session().features).unwrap();
        log.write_all_at(&vec![0; bytes as usize], 0).unwrap();
        let mut got = 0;
        b.receive(0, |_, bytes| got = u32::from_be_bytes(bytes[14..18].try_into().unwrap())).unwrap();
        assert_eq!(got, 1009);
        pass(&mut a, &mut b, 0..100);
        log.read_exact_at(&mut bits, 0).unwrap();
        assert!(bits.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn turning_the_log_on_and_off_under_traffic_moves_no_ring() {
    let log: std::fs::File = memfd_create(c"log", MemfdFlags::CLOEXEC).unwrap().into();
    log.set_len(0x10_0000).unwrap();
    for features in [f::EVENT_IDX, f::RING_PACKED] {
        disturbed(&format!("logging{features}"), features, |_, a, round| {
            let session = a.session();
            let message = Message::words(request::SET_LOG_BASE, &[0x10_0000, 0]).with_fd(&log).unwrap();
            session.frontend.ask(&message).unwrap();
            let on = round % 2 == 1;
            let bit = if on { f::VHOST_LOG_ALL } else { 0 };
            session.frontend.set_features(session.features | bit).unwrap();
            (0..2).for_each(|number| log_ring(a, number, on));
        });
    }
}

#[test]
fn a_station_that_moved_here_is_announced_and_mtu_is_taken() {
    let rig = Rig::new("rarp");
    let vu = rig.attach(0, Role::Server);
    let _other = rig.attach(1, Role::Server);
    let a = NetDriver::start(rig.meet(0, Role::Server), config(0)).unwrap();
    let mut b = NetDriver::start(rig.meet(1, Role::Server), config(0)).unwrap();
    let mac = [2, 0, 0, 0, 0, 9];
    a.session().frontend.send_rarp(mac).unwrap();
    let mut seen = Vec::new();
    let deadline = Instant::now() + LIMIT;
    while seen.is_empty() {
        assert!(Instant::now() < deadline);
        b.wait(Duration::from_millis(20)).unwrap();
        b.receive(0, |_, bytes| seen.push(bytes.to_vec())).unwrap();
    }
    assert_eq!(seen.len(), 1);
    let packet = etherparse::SlicedPacket::from_ethernet(&seen[0]).unwrap();
    let etherparse::LinkSlice::Ethernet2(ethernet) = packet.link.unwrap() else { panic!("no Ethernet") };
    assert_eq!((ethernet.destination(), ethernet.source()), ([0xff; 6], mac));
    assert_eq!(ethernet.ether_type().0, 0x8035);
    assert_eq!(seen[0].len(), 60);
    a.session().frontend.set_mtu(9000).unwrap();
    assert_eq!(rig.ports[0].mtu(), 9000);
    assert!(a.session().frontend.set_mtu(67).is_err());
    await_status(&vu, |status| status.detail.contains("an MTU of 67 is not possible"));
}

#[test]
fn one_vmm_at_a_time_and_a_link_that_can_be_cut() {
    let rig = Rig::new("link");
    let mut vu = rig.attach(0, Role::Server);
    let _other = rig.attach(1, Role::Server);
    let mut a = NetDriver::start(rig.meet(0, Role::Server), config(f::EVENT_IDX)).unwrap();
    let mut b = NetDriver::start(rig.meet(1, Role::Server), config(f::EVENT_IDX)).unwrap();
    let second = Frontend::connect(rig.path(0), LIMIT).unwrap();
    assert!(second.features().is_err(), "a second VMM is hung up on");
    pass(&mut a, &mut b, 0..100);
    vu.set_link(false).unwrap();
    await_status(&vu, |status| status.detail == "link set down");
    assert!(UnixStream::connect(rig.path(0)).is_err(), "nobody is to be reached");
    assert!(a.session().frontend.features().is_err());
    assert!(!rig.ports[0].link());
    vu.set_link(true).unwrap();
    a.reconnect(rig.meet(0, Role::Server)).unwrap();
    pass(&mut a, &mut b, 100..200);
    drop(vu);
    assert!(!rig.path(0).exists(), "the socket file goes with the port");
    assert!(!rig.ports[0].link());
}

#[test]
fn queue_pairs_are_separate_rings() {
    for features in [0, f::RING_PACKED] {
        let rig = Rig::new(&format!("mq{features}"));
        let net = || NetConfig { queue_pairs: 4, ..NetConfig::default() };
        let vu = rig.attach_with(0, rig.endpoint(0, Role::Server), net());
        let _other = rig.attach_with(1, rig.endpoint(1, Role::Server), net());
        let config = Config { pairs: 4, ..config(features) };
        let mut a = NetDriver::start(rig.meet(0, Role::Server), config).unwrap();
        let mut b = NetDriver::start(rig.meet(1, Role::Server), config).unwrap();
        let status = await_status(&vu, |status| status.queues.iter().all(|queue| queue.state == "running"));
        assert_eq!(status.queues.len(), 8);
        let mut sent = 0;
        for pair in 0..4 {
            for number in 0..8 {
                sent += a.send(pair, &[&frame(u32::from(pair) * 100 + number)]).unwrap();
            }
        }
        let mut got = 0;
        let deadline = Instant::now() + LIMIT;
        while got < sent {
            for pair in 0..4 {
                got += b.receive(pair, |_, bytes| assert!(number(bytes) < 400)).unwrap();
            }
            assert!(Instant::now() < deadline, "{got} of {sent}");
        }
        b.set_pairs(1).unwrap();
        assert_eq!(rig.ports[1].egress_queues(), 1);
        pass(&mut a, &mut b, 0..100);
        b.set_pairs(4).unwrap();
        assert_eq!(rig.ports[1].egress_queues(), 4);
    }
}

#[test]
fn socket_files_have_the_mode_asked_for_and_never_replace_anything_alive() {
    let rig = Rig::new("files");
    let endpoint = |mode| Endpoint::Listen { path: rig.path(0), mode, owner: (None, None) };
    let start = |endpoint| {
        let net = NetConfig { queue_pairs: 1, ..NetConfig::default() };
        let device = VirtioNet::new(&net, Arc::clone(&rig.ports[0]), Arc::clone(&rig.cores) as _).unwrap();
        match VhostUser::start(VhostUserConfig { endpoint, journal: None }, device) {
            Ok(vu) => Ok(vu),
            Err(VhostUserError::Socket(e)) => Err(e),
            Err(e) => panic!("{e}"),
        }
    };
    for mode in [0o600, 0o660, 0o666] {
        let vu = start(endpoint(Some(mode))).unwrap();
        let meta = std::fs::metadata(rig.path(0)).unwrap();
        assert!(meta.file_type().is_socket());
        assert_eq!(meta.permissions().mode() & 0o777, mode);
        assert!(matches!(start(endpoint(None)), Err(SocketError::InUse(_))));
        drop(vu);
        assert!(!rig.path(0).exists());
    }
    // A process that died leaves its socket behind.
    drop(UnixListener::bind(rig.path(0)).unwrap());
    assert!(rig.path(0).exists());
    drop(start(endpoint(None)).unwrap());
    std::fs::File::create(rig.path(0)).unwrap().write_all(b"precious").unwrap();
    assert!(matches!(start(endpoint(None)), Err(SocketError::NoSocket(_))));
    assert_eq!(std::fs::read(rig.path(0)).unwrap(), b"precious");
    let long = PathBuf::from(format!("/{}", "x".repeat(107)));
    let error = check_path(&long).unwrap_err().to_string();
    assert!(error.contains("108 bytes") && error.contains("107"), "{error}");
    assert!(start(Endpoint::Connect { path: long }).is_err());
    let file: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    assert!(matches!(start(Endpoint::Opened(file)), Err(SocketError::BadDescriptor)));
    let nowhere = PathBuf::from("/nonexistent/dir/x.sock");
    let Err(error) = start(Endpoint::Listen { path: nowhere, mode: None, owner: (None, None) }) else {
        panic!("there is no such directory")
    };
    assert!(error.to_string().contains("/nonexistent/dir/x.sock"), "{error}");
}

#[test]
fn sockets_may_be_handed_over_open() {
    let rig = Rig::new("handed");
    let (ours, theirs) = UnixStream::pair().unwrap();
    let net = || NetConfig { queue_pairs: 1, ..NetConfig::default() };
    let _a = rig.attach_with(0, Endpoint::Opened(ours.into()), net());
    let listener = UnixListener::bind(rig.path(1)).unwrap();
    let _b = rig.attach_with(1, Endpoint::Opened(listener.into()), net());
    let mut a = NetDriver::start(Frontend::new(theirs).unwrap(), config(0)).unwrap();
    for _ in 0..3 {
        let mut b = NetDriver::start(rig.meet(1, Role::Server), config(0)).unwrap();
        pass(&mut a, &mut b, 0..50);
        hang_up(&b);
    }
}

#[test]
fn offloads_can_be_switched_off_and_a_mac_address_is_served() {
    let rig = Rig::new("offers");
    let off = ["csum", "guest_csum", "packed"].map(str::to_owned).to_vec();
    let net = NetConfig { queue_pairs: 1, features_off: off, mac: Some([2, 0, 0, 0, 0, 7]) };
    let _vu = rig.attach_with(0, rig.endpoint(0, Role::Server), net);
    let mut front = rig.meet(0, Role::Server);
    let offered = front.features().unwrap();
    let gone =
        f::NET_CSUM | f::NET_HOST_TSO4 | f::NET_GUEST_TSO6 | f::NET_HOST_USO | f::RING_PACKED | f::NET_MQ;
    assert_eq!(offered & gone, 0);
    let there = f::NET_MAC | f::NET_SPEED_DUPLEX | f::NET_MRG_RXBUF | f::IN_ORDER | f::NET_MTU;
    assert_eq!(offered & there, there);
    let config_bit = 1 << 9;
    assert_ne!(front.protocol_features().unwrap() & config_bit, 0);
    front.set_protocol_features(config_bit).unwrap();
    let mut payload = Vec::new();
    for word in [0u32, 24, 0] {
        payload.extend(word.to_le_bytes());
    }
    payload.extend([0; 24]);
    let answer = front.ask(&Message::new(24, payload.clone())).unwrap();
    let space = &answer.payload[12..];
    assert_eq!(space[..6], [2, 0, 0, 0, 0, 7]);
    assert_eq!(space[6..8], [1, 0], "the link is up");
    assert_eq!(space[8..10], [1, 0], "one pair");
    assert_eq!(space[10..12], (DEFAULT_MTU as u16).to_le_bytes());
    assert_eq!(space[12..17], [0x10, 0x27, 0, 0, 1], "10 Gb/s, full duplex");
    assert_eq!(space[17..], [0; 7]);
    // The other end of its wire goes.
    rig.ports[0].set_carrier(false);
    let answer = front.ask(&Message::new(24, payload)).unwrap();
    assert_eq!(answer.payload[12..][6..8], [0, 0], "the link is down");
}
