//! TAP ports between real network namespaces. Needs root, iproute2, ethtool and tshark.

use crate::{frames, rig};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::frames::{bytes_of, datagram};
use crate::rig::{port, Joiner, Net};
use rustix::event::{poll, PollFd, PollFlags};
use sidecore_engine::graph::{Attach, CoreOptions, Graph, Topology};
use sidecore_engine::host::tap::{Tap, TapConfig, TapSource};
use sidecore_engine::observe::capture::{self, CaptureOptions};
use sidecore_engine::observe::CounterFile;
use sidecore_engine::packet::{Batch, Gso, Offload, Offloads};
use sidecore_engine::port::{Attachment, DropReason, Fault, Outcome, Peer, Port, Tally};
use sidecore_engine::switch::{Switch, SwitchOptions};

fn named(name: &str, queues: usize) -> TapConfig {
    TapConfig { source: TapSource::Name(name.to_owned()), queues, mtu: None }
}

fn start(net: &Net, config: TapConfig, port: &Arc<Port>, joiner: &Arc<Joiner>) -> Result<Tap, String> {
    net.enter(|| Tap::start(config, Arc::clone(port), Arc::clone(joiner) as _))
}

/// Two namespaces, 10.9.0.1 and 10.9.0.2, joined.
struct Pair {
    nets: [Net; 2],
    ports: [Arc<Port>; 2],
    taps: [Tap; 2],
    _running: rig::Running,
}

fn pair(look: impl FnMut(&Port, &Batch) + Send + 'static) -> Pair {
    let file = CounterFile::anonymous().unwrap();
    let joiner = Joiner::new(look);
    let nets = [Net::new(), Net::new()];
    let ports = [port(&file, 0, "left"), port(&file, 1, "right")];
    let running = joiner.start();
    let taps = [0, 1].map(|i| {
        let tap = start(&nets[i], named(&format!("tap{i}"), 1), &ports[i], &joiner).unwrap();
        nets[i].run(&format!("ip addr add 10.9.0.{}/24 dev tap{i}", i + 1));
        tap
    });
    Pair { nets, ports, taps, _running: running }
}

/// A batch of one frame whose body lies in `bytes`.
fn batch_of(bytes: &[u8], offload: Offload) -> Batch {
    let mut batch = Batch::new();
    frames::push(&mut batch, bytes, offload);
    batch
}

/// What the looker of a test has seen.
type Seen = Arc<Mutex<Vec<(u16, u32, Offload)>>>;

fn seen() -> (Seen, impl FnMut(&Port, &Batch) + Send) {
    let seen = Seen::default();
    let list = Arc::clone(&seen);
    (seen, move |port: &Port, batch: &Batch| {
        let frames = batch.frames().iter().map(|frame| (port.id.0, frame.len, frame.offload));
        list.lock().unwrap().extend(frames);
    })
}

fn send(port: &Port, queue: usize, batch: &Batch) -> Outcome {
    let mut outcome = Outcome::new();
    port.egress(queue).unwrap().as_mut().unwrap().send(batch, &[0], &mut outcome);
    outcome
}

fn drops(outcome: &Outcome, reason: DropReason) -> u32 {
    outcome.drops.counts[reason as usize]
}

/// Waits until a queue's descriptor is readable, then fetches.
fn await_frames(joiner: &Joiner, index: usize, batch: &mut Batch) -> Tally {
    let mut tally = Tally::default();
    joiner.with_queue(index, |queue| {
        let fd = queue.kick_fd().unwrap();
        let ready = poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&seconds(10))).unwrap();
        assert_eq!(ready, 1, "no frame came");
        batch.clear();
        queue.fetch(batch, &mut tally);
    });
    tally
}

fn seconds(n: i64) -> rustix::event::Timespec {
    rustix::event::Timespec { tv_sec: n, tv_nsec: 0 }
}

fn mac_of(net: &Net, name: &str) -> [u8; 6] {
    let text = net.run(&format!("ip -br link show {name}"));
    let mac = text.split_whitespace().nth(2).unwrap();
    let bytes: Vec<u8> = mac.split(':').map(|b| u8::from_str_radix(b, 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

/// One TAP with an address, and frames moved by hand.
fn single(queues: usize) -> (Net, Arc<Port>, Arc<Joiner>, Tap) {
    let net = Net::new();
    let port = port(&CounterFile::anonymous().unwrap(), 0, "host");
    let joiner = Joiner::new(|_, _| {});
    let tap = start(&net, named("tap0", queues), &port, &joiner).unwrap();
    net.run("ip addr add 10.9.0.1/24 dev tap0");
    net.run("ip neigh add 10.9.0.9 lladdr 02:00:00:00:00:09 dev tap0");
    (net, port, joiner, tap)
}

/// Tests take turns: while one runs `ip`, the child that is about to become `ip` holds every descriptor of
/// this process for a moment, so that another test's interface or address would still be in use.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn two_namespaces_talk_and_created_interfaces_go_with_the_port() {
    let _turn = turn();
    let pair = pair(|_, _| {});
    let sockets = [0, 1].map(|i| {
        let socket = pair.nets[i].enter(|| UdpSocket::bind(format!("10.9.0.{}:7000", i + 1)).unwrap());
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        socket
    });
    for len in [1, 100, 1472] {
        let mut buf = [0; 2000];
        sockets[0].send_to(&vec![1; len], "10.9.0.2:7000").unwrap();
        let (n, from) = sockets[1].recv_from(&mut buf).unwrap();
        assert_eq!((n, from.to_string().as_str()), (len, "10.9.0.1:7000"));
        sockets[1].send_to(&buf[..n], from).unwrap();
        assert_eq!(sockets[0].recv(&mut buf).unwrap(), len);
    }
    let Pair { nets, ports, taps, _running: running } = pair;
    assert!(taps[0].status().detail.contains("created"));
    assert!(nets[0].has("tap0"));
    drop(running);
    let totals = ports.each_ref().map(|port| port.counters.totals());
    assert!(totals[0].in_frames >= 4, "three datagrams and an ARP request: {totals:?}");
    // Conservation: what came in on one side went out on the other, or was dropped by name.
    for (from, to) in [(0, 1), (1, 0)] {
        let dropped: u64 = totals[to].drops.iter().sum();
        assert_eq!(totals[from].in_frames, totals[to].out_frames + dropped);
    }
    drop(taps);
    assert!(!nets[0].has("tap0") && !nets[1].has("tap1"));
    assert_eq!((ports[0].egress_queues(), ports[0].link()), (0, false));
}

#[test]
fn tcp_crosses_in_large_segments() {
    let _turn = turn();
    let (seen, look) = seen();
    let pair = pair(look);
    const TOTAL: usize = 16 << 20;
    let listener = pair.nets[1].enter(|| TcpListener::bind("10.9.0.2:5000").unwrap());
    let pattern: Vec<u8> = (0..=250).cycle().take(TOTAL).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = pair.nets[0].enter(|| TcpStream::connect("10.9.0.2:5000").unwrap());
            stream.write_all(&pattern).unwrap();
        });
        let mut got = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut got).unwrap();
        assert!(got == pattern, "{} bytes of {TOTAL}, or other ones", got.len());
    });
    let seen = seen.lock().unwrap();
    let largest = seen.iter().max_by_key(|(_, len, _)| *len).unwrap();
    assert!(largest.1 > 32_000, "the largest frame had {} bytes", largest.1);
    assert_eq!((largest.2.gso, largest.2.gso_size), (Gso::Tcp4, 1448));
    assert!(largest.2.needs_csum());
    let accepts = pair.taps[0].accepts;
    assert_eq!(pair.ports[0].accepts(), accepts);
    assert!(accepts.contains(Offloads::CSUM | Offloads::TSO4 | Offloads::TSO6 | Offloads::ECN));
}

#[test]
fn udp_segmentation_is_passed_on_where_the_kernel_knows_it() {
    let _turn = turn();
    let (seen, look) = seen();
    let pair = pair(look);
    let receiver = pair.nets[1].enter(|| UdpSocket::bind("10.9.0.2:5000").unwrap());
    receiver.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let sender = pair.nets[0].enter(|| UdpSocket::bind("10.9.0.1:4000").unwrap());
    let size: libc::c_int = 1000;
    // SAFETY: UDP_SEGMENT takes an int.
    let result = unsafe {
        let at = std::ptr::from_ref(&size).cast();
        libc::setsockopt(sender.as_raw_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, at, 4)
    };
    assert_eq!(result, 0);
    let payload: Vec<u8> = (0..4500u32).map(|i| i as u8).collect();
    assert_eq!(sender.send_to(&payload, "10.9.0.2:5000").unwrap(), 4500);
    let mut got: Vec<u8> = Vec::new();
    for len in [1000, 1000, 1000, 1000, 500] {
        let mut buf = [0; 2000];
        let n = receiver.recv(&mut buf).unwrap();
        assert_eq!(n, len);
        got.extend(&buf[..n]);
    }
    assert!(got == payload);
    let large = seen.lock().unwrap().iter().filter(|(_, _, offload)| offload.gso == Gso::Udp4).count();
    assert_eq!(large, usize::from(pair.taps[0].accepts.contains(Offloads::USO4)));
}

#[test]
fn a_checksum_left_to_us_completes_to_what_the_host_believes() {
    let _turn = turn();
    let (net, port, joiner, _tap) = single(1);
    // Out of the host: a frame whose checksum is left undone.
    let socket = net.enter(|| UdpSocket::bind("10.9.0.1:4000").unwrap());
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let payload = vec![0x5a; 777];
    socket.send_to(&payload, "10.9.0.9:4001").unwrap();
    let mut batch = Batch::new();
    await_frames(&joiner, 0, &mut batch);
    let frame = &batch.frames()[0];
    assert!(frame.offload.needs_csum() && batch.any_offload);
    let mut bytes = bytes_of(&batch, frame);
    let sum_is_right = |bytes: &[u8]| {
        let packet = etherparse::SlicedPacket::from_ethernet(bytes).unwrap();
        let Some(etherparse::NetSlice::Ipv4(ip)) = packet.net else { panic!("no IPv4") };
        let Some(etherparse::TransportSlice::Udp(udp)) = packet.transport else { panic!("no UDP") };
        let header = ip.header().to_header();
        udp.to_header().calc_checksum_ipv4(&header, udp.payload()).unwrap() == udp.checksum()
    };
    assert!(!sum_is_right(&bytes));
    frame.offload.complete(&mut bytes).unwrap();
    assert!(sum_is_right(&bytes));
    drop(batch);

    // Into the host: the wrong checksum is refused, the right one is taken, and so is a missing one that
    // the header declares.
    let good = datagram(mac_of(&net, "tap0"), 4001, 4000, b"good, with a body that is longer than the head");
    assert!(sum_is_right(&good));
    let mut bad =
        datagram(mac_of(&net, "tap0"), 4001, 4000, b"bad!, with a body that is longer than the head");
    bad[14 + 20 + 6] ^= 1;
    let mut left =
        datagram(mac_of(&net, "tap0"), 4001, 4000, b"left, with a body that is longer than the head");
    let pseudo = [10u16 << 8 | 9, 9, 10 << 8 | 9, 1, 17, (left.len() - 34) as u16];
    let sum = pseudo.iter().map(|&w| u32::from(w)).sum::<u32>();
    let sum = ((sum & 0xffff) + (sum >> 16)) as u16;
    left[40..42].copy_from_slice(&sum.to_be_bytes());
    let facts = Offload { flags: Offload::NEEDS_CSUM, csum_start: 34, csum_offset: 6, ..Offload::NONE };
    for (bytes, offload) in [(&bad, Offload::NONE), (&good, Offload::NONE), (&left, facts)] {
        let outcome = send(&port, 0, &batch_of(bytes, offload));
        assert_eq!((outcome.frames, outcome.bytes), (1, bytes.len() as u64));
    }
    for word in [b"good", b"left"] {
        let mut buf = [0; 100];
        let (n, from) = socket.recv_from(&mut buf).unwrap();
        assert_eq!((n, from.to_string().as_str()), (46, "10.9.0.9:4001"));
        assert_eq!(&buf[..4], word);
    }
}

#[test]
fn carrier_follows_set_link_and_frames_are_dropped_by_name() {
    let _turn = turn();
    let (net, port, _joiner, mut tap) = single(1);
    let detected = || net.run("ethtool tap0").contains("Link detected: yes");
    assert!(detected());
    let bytes = datagram([2; 6], 1, 2, b"x");
    tap.set_link(false).unwrap();
    assert!(!detected());
    assert!(tap.status().detail.contains("carrier down"));
    let outcome = send(&port, 0, &batch_of(&bytes, Offload::NONE));
    assert_eq!((outcome.frames, drops(&outcome, DropReason::LinkDown)), (0, 1));
    tap.set_link(true).unwrap();
    assert!(detected());
    assert_eq!(send(&port, 0, &batch_of(&bytes, Offload::NONE)).frames, 1);
    // The administrator's own switch counts as well, at once for frames and with the next look for the link,
    // and heals.
    net.run("ip link set tap0 down");
    let outcome = send(&port, 0, &batch_of(&bytes, Offload::NONE));
    assert_eq!((outcome.frames, drops(&outcome, DropReason::LinkDown)), (0, 1));
    tap.look();
    assert_eq!((port.link(), tap.status().peer), (false, Peer::Waiting));
    net.run("ip link set tap0 up");
    tap.look();
    assert_eq!((port.link(), tap.status().peer), (true, Peer::Running));
    assert_eq!(send(&port, 0, &batch_of(&bytes, Offload::NONE)).frames, 1);
    assert_eq!(port.fault.get(), None);
}

#[test]
fn what_the_host_refuses_is_counted_as_refused() {
    let _turn = turn();
    let (_net, port, _joiner, _tap) = single(1);
    // Segments of a frame that is no TCP at all: the kernel answers EINVAL.
    let facts = Offload {
        flags: Offload::NEEDS_CSUM,
        gso: Gso::Tcp4,
        gso_size: 100,
        csum_start: 60_000,
        csum_offset: 16,
        ..Offload::NONE
    };
    let bytes = datagram([2; 6], 1, 2, &[0; 300]);
    let outcome = send(&port, 0, &batch_of(&bytes, facts));
    assert_eq!((outcome.frames, drops(&outcome, DropReason::HostRefused)), (0, 1));
}

#[test]
fn every_queue_carries_its_flows() {
    let _turn = turn();
    let (net, port, joiner, tap) = single(4);
    assert_eq!((port.egress_queues(), tap.status().queues.len()), (4, 8));
    let server = net.enter(|| UdpSocket::bind("10.9.0.1:4000").unwrap());
    server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mac = mac_of(&net, "tap0");
    for queue in 0..4 {
        // The kernel answers a flow on the queue by which it came.
        let flow = 5000 + queue as u16;
        assert_eq!(
            send(&port, queue, &batch_of(&datagram(mac, flow, 4000, b"hello"), Offload::NONE)).frames,
            1
        );
        let mut buf = [0; 10];
        let (_, from) = server.recv_from(&mut buf).unwrap();
        assert_eq!(from.port(), flow);
        server.send_to(b"answer", from).unwrap();
        let mut batch = Batch::new();
        await_frames(&joiner, queue, &mut batch);
        let bytes = bytes_of(&batch, &batch.frames()[0]);
        assert_eq!(bytes[36..38], flow.to_be_bytes());
    }
}

#[test]
fn small_frames_share_a_batch_and_keep_their_bytes() {
    let _turn = turn();
    let (net, _port, joiner, _tap) = single(1);
    let socket = net.enter(|| UdpSocket::bind("10.9.0.1:4000").unwrap());
    let sizes: Vec<usize> = (0..100).map(|i| i * 14).collect();
    for &size in &sizes {
        socket.send_to(&vec![size as u8; size], "10.9.0.9:4001").unwrap();
    }
    let mut got = Vec::new();
    let mut batch = Batch::new();
    let mut batches = 0;
    while got.len() < sizes.len() {
        let tally = await_frames(&joiner, 0, &mut batch);
        assert_eq!(tally.frames, batch.len() as u64);
        assert_eq!(tally.bytes, batch.frames().iter().map(|frame| u64::from(frame.len)).sum::<u64>());
        batches += 1;
        got.extend(batch.frames().iter().map(|frame| bytes_of(&batch, frame)));
        let mut tally = Tally::default();
        joiner.with_queue(0, |queue| queue.release(&mut tally));
    }
    assert_eq!(batches, 2, "100 waiting frames are a full batch and a rest");
    for (bytes, size) in got.iter().zip(sizes) {
        assert_eq!(bytes[42..], vec![size as u8; size]);
    }
}

#[test]
fn an_existing_interface_is_adopted_and_left_behind() {
    let _turn = turn();
    let net = Net::new();
    let file = CounterFile::anonymous().unwrap();
    let joiner = Joiner::new(|_, _| {});
    net.run("ip tuntap add dev old mode tap");
    net.run("ip link set old mtu 4000");
    let host = port(&file, 0, "host");
    let tap = start(&net, named("old", 1), &host, &joiner).unwrap();
    assert_eq!(host.mtu(), 4000, "the port takes over the MTU");
    assert!(tap.status().detail.contains("adopted"));
    assert!(net.run("ip link show old").contains(",UP"));
    let busy = start(&net, named("old", 1), &port(&file, 2, "second"), &joiner).err().unwrap();
    assert!(busy.to_string().contains("another program has it open"), "{busy}");
    drop(tap);
    assert!(net.has("old"));
    let single = start(&net, named("old", 2), &host, &joiner).err().unwrap();
    assert!(single.to_string().contains("multi_queue"), "{single}");

    net.run("ip tuntap add dev many mode tap multi_queue");
    let config = TapConfig { mtu: Some(9000), ..named("many", 1) };
    let mut tap = start(&net, config, &host, &joiner).unwrap();
    assert_eq!(host.mtu(), 9000);
    assert!(net.run("ip link show many").contains("mtu 9000"));
    // Changed later, from whatever namespace the caller is in.
    tap.set_mtu(1400).unwrap();
    assert!(net.run("ip link show many").contains("mtu 1400"));
    let refused = tap.set_mtu(70_000).unwrap_err();
    assert!(refused.contains("many") && refused.contains("MTU"), "{refused}");
    drop(tap);
    drop(start(&net, named("many", 3), &host, &joiner).unwrap());
    assert!(net.has("many"));
    net.run("ip tuntap add dev tun mode tun");
    assert!(start(&net, named("tun", 1), &host, &joiner).err().unwrap().contains("cannot be attached"));
}

/// A queue opened the way that a privileged parent would.
fn opened(net: &Net, name: &str, flags: libc::c_int) -> OwnedFd {
    use rustix::fs::{open, Mode, OFlags};
    net.enter(|| {
        let fd = open("/dev/net/tun", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let mut ifreq = [0u8; 40];
        ifreq[..name.len()].copy_from_slice(name.as_bytes());
        ifreq[16..18].copy_from_slice(&(flags as u16).to_ne_bytes());
        // SAFETY: TUNSETIFF takes an ifreq, which has 40 bytes.
        let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF as _, ifreq.as_mut_ptr()) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        fd
    })
}

#[test]
fn passed_descriptors_serve_from_any_namespace() {
    let _turn = turn();
    let net = Net::new();
    let file = CounterFile::anonymous().unwrap();
    let joiner = Joiner::new(|_, _| {});
    let base = libc::IFF_TAP | libc::IFF_NO_PI;
    let vnet = base | libc::IFF_VNET_HDR;
    let passed = |fds, mtu| TapConfig { queues: 1, source: TapSource::Fds(fds), mtu };
    for (flags, name, accepts) in [(vnet, "with", true), (base, "without", false)] {
        let host = port(&file, 0, "host");
        let fd = opened(&net, name, flags);
        net.run(&format!("ip link set {name} up"));
        net.run(&format!("ip addr add 10.9.0.1/24 dev {name}"));
        net.run(&format!("ip neigh add 10.9.0.9 lladdr 02:00:00:00:00:09 dev {name}"));
        // Started outside of the namespace.
        let mut tap =
            Tap::start(passed(vec![fd], None), Arc::clone(&host), Arc::clone(&joiner) as _).unwrap();
        assert!(tap.set_mtu(1400).unwrap_err().contains("does not apply"));
        assert_eq!((tap.name.as_str(), tap.accepts != Offloads::NONE), (name, accepts));
        let socket = net.enter(|| UdpSocket::bind("10.9.0.1:4000").unwrap());
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        socket.send_to(&[7; 300], "10.9.0.9:4001").unwrap();
        let mut batch = Batch::new();
        await_frames(&joiner, 0, &mut batch);
        assert_eq!(batch.frames()[0].offload.needs_csum(), accepts);
        assert_eq!(bytes_of(&batch, &batch.frames()[0])[42..], [7; 300]);
        let bytes = datagram(mac_of(&net, name), 4001, 4000, b"there");
        assert_eq!(send(&host, 0, &batch_of(&bytes, Offload::NONE)).frames, 1);
        assert_eq!(socket.recv(&mut [0; 100]).unwrap(), 5);
    }
    let refuse = |config| {
        Tap::start(config, port(&file, 3, "no"), Arc::clone(&joiner) as _).err().unwrap().to_string()
    };
    let fd = opened(&net, "mtu", vnet);
    assert!(refuse(passed(vec![fd], Some(1400))).contains("mtu= does not apply"));
    let fd = opened(&net, "pi", libc::IFF_TAP);
    assert!(refuse(passed(vec![fd], None)).contains("packet information"));
    let fd = opened(&net, "l3", libc::IFF_TUN | libc::IFF_NO_PI);
    assert!(refuse(passed(vec![fd], None)).contains("TUN"));
    let file = std::fs::File::open("/dev/null").unwrap();
    assert!(refuse(passed(vec![file.into()], None)).contains("not attached"));
    assert!(refuse(passed(vec![], None)).contains("0 descriptors"));
}

#[test]
fn an_interface_deleted_under_us_stops_its_port_and_nothing_else() {
    let _turn = turn();
    let file = CounterFile::anonymous().unwrap();
    let net = Net::new();
    let joiner = Joiner::new(|_, _| {});
    let ports = [port(&file, 0, "doomed"), port(&file, 1, "safe")];
    let doomed = start(&net, named("doomed", 2), &ports[0], &joiner).unwrap();
    let safe = start(&net, named("safe", 1), &ports[1], &joiner).unwrap();
    let taken = joiner.on_take_back();
    let running = joiner.start();
    net.run("ip link del doomed");
    // Both of its queues are taken back without our doing.
    for _ in 0..2 {
        taken.recv_timeout(Duration::from_secs(10)).unwrap();
    }
    assert_eq!(ports[0].fault.get(), Some(Fault::InterfaceGone));
    assert_eq!((ports[0].egress_queues(), ports[0].link()), (0, false));
    let status = doomed.status();
    assert_eq!(status.peer, Peer::Faulted);
    assert_eq!(status.queues[0].state, "interface_gone");
    assert_eq!((safe.status().peer, ports[1].link()), (Peer::Running, true));
    drop(running);
    drop(doomed);
}

#[test]
fn a_queue_whose_interface_is_gone_stays_stopped() {
    let _turn = turn();
    // Without the watcher's help: a scheduler that keeps the queue.
    let (net, port, joiner, _tap) = single(1);
    // The scheduler's lock is held, so the watcher cannot take the queue away meanwhile.
    joiner.with_queue(0, |queue| {
        net.run("ip link del tap0");
        let (mut batch, mut tally) = (Batch::new(), Tally::default());
        for _ in 0..3 {
            queue.fetch(&mut batch, &mut tally);
            queue.release(&mut tally);
        }
        assert_eq!((batch.len(), tally.frames), (0, 0));
    });
    assert_eq!(port.fault.get(), Some(Fault::InterfaceGone));
}

#[test]
fn egress_notices_a_deleted_interface_by_itself() {
    let _turn = turn();
    let (net, port, _joiner, _tap) = single(1);
    let bytes = datagram([2; 6], 1, 2, b"x");
    let batch = batch_of(&bytes, Offload::NONE);
    let mut egress = port.egress(0).unwrap();
    net.run("ip link del tap0");
    let mut outcome = Outcome::new();
    egress.as_mut().unwrap().send(&batch, &[0, 0, 0], &mut outcome);
    assert_eq!((outcome.frames, drops(&outcome, DropReason::LinkDown)), (0, 3));
    drop(egress);
    assert_eq!(port.fault.get(), Some(Fault::InterfaceGone));
}

#[test]
fn a_configuration_that_cannot_be_is_refused_by_name() {
    let _turn = turn();
    let file = CounterFile::anonymous().unwrap();
    let joiner = Joiner::new(|_, _| {});
    let refuse = |config| Tap::start(config, port(&file, 0, "no"), Arc::clone(&joiner) as _).err().unwrap();
    for name in ["", "sixteen-bytes-xx", "a/b", "a b", "tap%d", "."] {
        assert!(refuse(named(name, 1)).contains("is no interface name"), "{name}");
    }
    for queues in [0, 17] {
        assert!(refuse(named("tap0", queues)).contains("queues are not possible"));
    }
}

#[test]
fn a_capture_sees_frames_cross_the_real_switch_and_those_that_do_not() {
    let _turn = turn();
    let file = CounterFile::anonymous().unwrap();
    let cores = Graph::start(&CoreOptions::default()).unwrap();
    let lan = Arc::new(Switch::new("lan", SwitchOptions::default()));
    let nets = [Net::new(), Net::new()];
    let ports = [port(&file, 0, "left"), port(&file, 1, "right")];
    let members = ports.each_ref().map(|port| (Arc::clone(port), Attach::Switch(Arc::clone(&lan))));
    cores.publish(&Arc::new(Topology::new(&members)));
    let mut taps = [0, 1].map(|i| {
        let (port, cores) = (Arc::clone(&ports[i]), Arc::clone(&cores));
        let tap = nets[i].enter(|| Tap::start(named("tap0", 1), port, cores).unwrap());
        nets[i].run(&format!("ip addr add 10.9.0.{}/24 dev tap0", i + 1));
        tap
    });
    let points = ports.each_ref().map(|port| Arc::clone(port) as _).into();
    let mut capture = capture::start(points, CaptureOptions::default()).unwrap();

    let sockets = [0, 1].map(|i| {
        let socket = nets[i].enter(|| UdpSocket::bind(format!("10.9.0.{}:7000", i + 1)).unwrap());
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        socket
    });
    let mut buf = [0; 100];
    sockets[0].send_to(b"ping", "10.9.0.2:7000").unwrap();
    let (_, from) = sockets[1].recv_from(&mut buf).unwrap();
    sockets[1].send_to(b"answer", from).unwrap();
    sockets[0].recv_from(&mut buf).unwrap();
    // With the carrier down at the right, frames for it are dropped by name; the left knows its address.
    taps[1].set_link(false).unwrap();
    let dropped = || ports[1].counters.totals().drops[DropReason::LinkDown as usize];
    assert_eq!(dropped(), 0);
    sockets[0].send_to(b"nobody there", "10.9.0.2:7000").unwrap();
    // It has been handled when the capture has it twice: as it came in and as it did not go out.
    let mut stream = Vec::new();
    while stream.windows(12).filter(|part| part == b"nobody there").count() < 2 {
        let fd = capture.as_fd();
        let ready = poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&seconds(10))).unwrap();
        assert_eq!(ready, 1, "the capture stands still");
        stream.extend_from_slice(capture.next_bytes().unwrap());
    }
    assert_eq!(dropped(), 1);
    capture.stopper().stop();
    stream.extend(crate::capture::rest(&mut capture));

    let path = std::env::temp_dir().join(format!("sidecore-tap-{}.pcapng", std::process::id()));
    std::fs::write(&path, &stream).unwrap();
    let fields = ["frame.interface_name", "frame.packet_flags_direction", "udp.length", "frame.comment"];
    let mut tshark = std::process::Command::new("tshark");
    tshark.args(["-n", "-Y", "udp", "-T", "fields", "-E", "separator=|", "-r"]).arg(&path);
    let output = tshark.args(fields.iter().flat_map(|field| ["-e", field])).output();
    let output = output.expect("tshark cannot be run: apt-get install tshark");
    std::fs::remove_file(&path).unwrap();
    let text = String::from_utf8(output.stdout).unwrap().replace("0x0000000", "").replace("0x", "");
    let lines: Vec<&str> = text.lines().collect();
    // 1 is into the switch, 2 out of it.
    let expected = [
        "left|1|12|",
        "right|2|12|",
        "right|1|14|",
        "left|2|14|",
        "left|1|20|",
        "right|2|20|dropped: link_down",
    ];
    assert_eq!(lines, expected, "{text}");
}
