//! vhost-user ports from outside: a native driver at the other end of the socket, real I/O cores between.

mod dirty_log;
mod huge;
mod killed;
mod sockets;
mod trouble;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cards::assert_conserved;
use sidecore_abi::virtio::features as f;
use sidecore_driver::frontend::{Frontend, Listener};
use sidecore_driver::net::NetDriver;
use sidecore_driver::raw::Message;
use sidecore_driver::session::{Config, Want};
use sidecore_engine::device::virtio_net::{NetConfig, VirtioNet};
use sidecore_engine::graph::{Attach, CoreOptions, Graph, Topology};
use sidecore_engine::observe::CounterFile;
use sidecore_engine::port::{Attachment, AttachmentStatus, Peer, Port, PortId, DEFAULT_MTU};
use sidecore_engine::transport::vhost_user::{Endpoint, JournalAt, VhostUser, VhostUserConfig};

const LIMIT: Duration = Duration::from_secs(30);

/// Two ports on a wire and a third that is attached to nothing, one I/O core, a directory for sockets.
struct Rig {
    dir: PathBuf,
    cores: Arc<Graph>,
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
        let cores = Graph::start(&CoreOptions::default()).unwrap();
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
        let path = self.dir.join(format!("{}.positions", device_name(&device)));
        let journal = Some(JournalAt::Path(path));
        VhostUser::start(VhostUserConfig { endpoint, journal }, device).unwrap()
    }

    fn meet(&self, port: usize, role: Role) -> Frontend {
        match role {
            Role::Server => Frontend::connect(self.path(port), LIMIT).unwrap(),
            Role::Client => Listener::new(self.path(port)).unwrap().accept(LIMIT).unwrap(),
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
            assert_conserved(&rig.ports);
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
    // A VMM may have less than the operator allows, not more, and its successor begins anew.
    assert!(a.session().frontend.set_mtu(9000).is_err());
    await_status(&vu, |status| status.detail.contains("an MTU of 9000 is more than the port's, 1500"));
    drop(a);
    let a = NetDriver::start(rig.meet(0, Role::Server), config(0)).unwrap();
    a.session().frontend.set_mtu(1400).unwrap();
    assert_eq!(rig.ports[0].mtu(), 1400);
    drop(a);
    // A VMM's wish goes with it.
    await_status(&vu, |_| rig.ports[0].mtu() == 1500);
    let a = NetDriver::start(rig.meet(0, Role::Server), config(0)).unwrap();
    assert!(a.session().frontend.set_mtu(67).is_err());
    await_status(&vu, |status| status.detail.contains("an MTU of 67 is not possible"));
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
fn offloads_can_be_switched_off_and_a_mac_address_is_served() {
    let rig = Rig::new("offers");
    let off = ["csum", "guest_csum", "packed"].map(str::to_owned).to_vec();
    let net = NetConfig {
        queue_pairs: 1,
        features_off: off,
        mac: Some([2, 0, 0, 0, 0, 7]),
        moderation: Duration::ZERO,
    };
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
