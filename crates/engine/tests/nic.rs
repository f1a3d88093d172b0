//! Ports on interfaces that the host has, by AF_PACKET and by AF_XDP: veth pairs between real network
//! namespaces. Needs root, iproute2 and ethtool.

use crate::nics;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use crate::frames::{bytes_of, datagram};
use crate::nics::{drops, send, turn, until, veth, Kind, Lone, Pair, KINDS};
use crate::rig::{port, Joiner, Net};
use sidecore_engine::graph::{CoreOptions, Graph};
use sidecore_engine::host::tap::{Tap, TapConfig, TapSource};
use sidecore_engine::host::xdp::{self, XdpConfig, XdpMode};
use sidecore_engine::observe::CounterFile;
use sidecore_engine::packet::{Batch, Offload, Offloads};
use sidecore_engine::port::{Attachment, DropReason, Fault, Peer, Tally};

fn sockets(nets: &[Net; 2], addresses: [&str; 2]) -> [UdpSocket; 2] {
    [0, 1].map(|i| {
        let socket = nets[i].enter(|| UdpSocket::bind(format!("{}:7000", addresses[i])).unwrap());
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket
    })
}

/// Datagrams of several lengths there and back.
fn converse(sockets: &[UdpSocket; 2], lengths: &[usize]) {
    let to = sockets[1].local_addr().unwrap();
    let mut buf = [0; 5000];
    for &len in lengths {
        let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
        sockets[0].send_to(&bytes, to).unwrap();
        let (n, from) = sockets[1].recv_from(&mut buf).unwrap();
        assert_eq!((n, &buf[..n]), (len, &bytes[..]));
        sockets[1].send_to(&buf[..n], from).unwrap();
        assert_eq!(sockets[0].recv(&mut buf).unwrap(), len);
        assert_eq!(&buf[..len], &bytes[..]);
    }
}

/// Carries `total` bytes of a pattern over TCP and compares them.
fn carry(nets: &[Net; 2], address: &str, total: usize) {
    let listener = nets[1].enter(|| TcpListener::bind(address).unwrap());
    let patience = Some(Duration::from_secs(60));
    rustix::net::sockopt::set_socket_timeout(&listener, rustix::net::sockopt::Timeout::Recv, patience)
        .unwrap();
    let pattern: Vec<u8> = (0..=250).cycle().take(total).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = nets[0].enter(|| TcpStream::connect(address).unwrap());
            stream.write_all(&pattern).unwrap();
        });
        let mut got = Vec::new();
        let mut stream = listener.accept().unwrap().0;
        stream.set_read_timeout(patience).unwrap();
        stream.read_to_end(&mut got).unwrap();
        assert!(got == pattern, "{} bytes of {total}, or other ones", got.len());
    });
}

#[test]
fn two_namespaces_talk_and_nothing_is_left_behind() {
    let _turn = turn();
    for kind in KINDS {
        let pair = Pair::new(kind);
        converse(&sockets(&pair.nets, ["10.9.0.1", "10.9.0.2"]), &[1, 22, 100, 1472]);
        let promiscuity = |pair: &Pair| pair.host.run("ip -d link show h0");
        assert!(promiscuity(&pair).contains("promiscuity 1"), "{}", promiscuity(&pair));
        for running in &pair.attachments {
            let status = running.status();
            assert_eq!(status.peer, Peer::Running, "{status:?}");
            assert!(status.detail.contains("carrier up"), "{status:?}");
        }
        let totals = nics::conserved(&pair.ports);
        assert!(totals[0].in_frames >= 5, "four datagrams and an ARP request: {totals:?}");
        assert!(totals.iter().all(|t| t.drops.iter().sum::<u64>() == 0), "{totals:?}");
        let Pair { host, ports, attachments, .. } = pair;
        drop(attachments);
        assert_eq!((ports[0].egress_queues(), ports[0].link()), (0, false));
        let left = host.run("ip -d link show h0");
        assert!(left.contains("promiscuity 0") && !left.contains("xdp"), "{left}");
    }
}

#[test]
fn tcp_crosses_whole() {
    let _turn = turn();
    for kind in KINDS {
        let pair = Pair::new(kind);
        // With AF_XDP every checksum that veth left undone has to be found and completed on the way.
        carry(&pair.nets, "10.9.0.2:5000", 16 << 20);
        let totals = nics::conserved(&pair.ports)[0];
        let mean = totals.in_bytes / totals.in_frames;
        match kind {
            Kind::Packet => {
                assert!(mean > 4000, "64 KiB segments pass whole: {mean} bytes a frame");
                let accepts = pair.ports[0].accepts();
                assert!(accepts.contains(Offloads::CSUM | Offloads::TSO4 | Offloads::TSO6), "{accepts}");
            }
            Kind::Xdp => {
                assert!((1000..=1514).contains(&mean), "{mean} bytes a frame");
                assert_eq!(pair.ports[0].accepts(), Offloads::NONE);
            }
        }
    }
}

#[test]
fn a_host_interface_and_a_tap_share_a_wire() {
    let _turn = turn();
    for kind in KINDS {
        let file = CounterFile::anonymous().unwrap();
        let cores = Graph::start(&CoreOptions::default()).unwrap();
        let (host, nets) = (Net::new(), [Net::new(), Net::new()]);
        let ports = [port(&file, 0, "nic"), port(&file, 1, "tap")];
        nics::wire(&cores, &ports);
        veth(&host, "h0", &nets[0], "p0", "10.9.0.1", "");
        let _nic = kind.start(&host, "h0", 1, &ports[0], Arc::clone(&cores) as _).unwrap();
        let config = TapConfig { source: TapSource::Name("tap0".to_owned()), queues: 1, mtu: None };
        let (right, scheduler) = (Arc::clone(&ports[1]), Arc::clone(&cores) as _);
        let _tap = nets[1].enter(|| Tap::start(config, right, scheduler)).unwrap();
        nets[1].run("ip addr add 10.9.0.2/24 dev tap0");
        until("the link is up", || ports[0].link());
        converse(&sockets(&nets, ["10.9.0.1", "10.9.0.2"]), &[1, 1472]);
        // The TAP sends 64 KiB segments: for AF_XDP the core cuts them and completes their checksums.
        carry(&nets, "10.9.0.2:5000", 4 << 20);
        let [nic, tap] = nets;
        carry(&[tap, nic], "10.9.0.1:5000", 4 << 20);
        nics::conserved(&ports);
    }
}

#[test]
fn vlan_tags_are_kept() {
    let _turn = turn();
    for kind in KINDS {
        let lone = Lone::new(kind, 1);
        if kind == Kind::Xdp {
            // AF_XDP knows no tag beside a frame: the sender has to put it in (docs/host-interfaces.md).
            lone.net.run("ethtool -K p0 tx-vlan-hw-insert off tx-vlan-stag-hw-insert off");
        }
        tags_of(&lone, "p0");
        // A bridge takes tags out of frames that it receives, and sends them beside the frame.
        lone.net.run("ip link add br0 type bridge");
        lone.net.run("ip link add far type veth peer name near");
        for name in ["near", "p0"] {
            lone.net.run(&format!("ip link set {name} master br0"));
        }
        for name in ["br0", "near", "far"] {
            lone.net.run(&format!("ip link set {name} up"));
        }
        let state = || lone.net.run("bridge link show");
        until("the bridge forwards", || state().matches("state forwarding").count() == 2);
        tags_of(&lone, "far");
    }
}

fn tags_of(lone: &Lone, from: &str) {
    let raw = lone.net.enter(|| nics::raw_socket(from));
    // One tag, and two of which the kernel takes the outer one.
    for (tags, body) in [(&[0x81, 0, 0x20, 5][..], 200), (&[0x88, 0xa8, 0, 7, 0x81, 0, 0, 9], 30)] {
        let mut bytes = datagram([2; 6], 1, 2, &vec![7; body]);
        bytes.splice(12..12, tags.iter().copied());
        assert_eq!(rustix::net::send(&raw, &bytes, rustix::net::SendFlags::empty()).unwrap(), bytes.len());
        let mut batch = Batch::new();
        // A bridge has frames of its own to send, perhaps in the same batch.
        let mut ours = None;
        until("the frame comes", || {
            lone.fetch(0, &mut batch);
            ours = batch.frames().iter().position(|frame| frame.head[6..12] == bytes[6..12]);
            ours.is_some()
        });
        assert_eq!(bytes_of(&batch, &batch.frames()[ours.unwrap()]), bytes);
    }
}

#[test]
fn a_checksum_left_undone_is_known_and_completed() {
    let _turn = turn();
    for kind in KINDS {
        let lone = Lone::new(kind, 1);
        let socket = lone.net.enter(|| UdpSocket::bind("10.9.0.1:4000").unwrap());
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket.send_to(&[0x5a; 777], "10.9.0.9:4001").unwrap();
        let mut batch = Batch::new();
        until("the datagram comes", || lone.fetch(0, &mut batch).frames == 1);
        let frame = &batch.frames()[0];
        assert!(frame.offload.needs_csum() && batch.any_offload, "{kind:?} {:?}", frame.offload);
        let mut bytes = bytes_of(&batch, frame);
        assert!(!sum_is_right(&bytes));
        frame.offload.complete(&mut bytes).unwrap();
        assert!(sum_is_right(&bytes));

        // Into the host: the right checksum is taken, the wrong one is not.
        let mac = nics::mac_of(&lone.net, "p0");
        let good = datagram(mac, 4001, 4000, b"good, with a body that is longer than the head of a frame");
        let mut bad = datagram(mac, 4001, 4000, b"bad!, with a body that is longer than the head of a frame");
        bad[14 + 20 + 6] ^= 1;
        for bytes in [&bad, &good] {
            let outcome = send(&lone.port, 0, bytes, Offload::NONE, 1);
            assert_eq!((outcome.frames, outcome.bytes), (1, bytes.len() as u64));
        }
        let mut buf = [0; 100];
        let (n, from) = socket.recv_from(&mut buf).unwrap();
        assert_eq!((&buf[..4], n, from.to_string().as_str()), (&b"good"[..], 57, "10.9.0.9:4001"));
    }
}

fn sum_is_right(bytes: &[u8]) -> bool {
    let packet = etherparse::SlicedPacket::from_ethernet(bytes).unwrap();
    let Some(etherparse::NetSlice::Ipv4(ip)) = packet.net else { panic!("no IPv4") };
    let Some(etherparse::TransportSlice::Udp(udp)) = packet.transport else { panic!("no UDP") };
    let header = ip.header().to_header();
    udp.to_header().calc_checksum_ipv4(&header, udp.payload()).unwrap() == udp.checksum()
}

#[test]
fn what_finds_no_room_in_the_ring_is_counted() {
    let _turn = turn();
    for kind in KINDS {
        let lone = Lone::new(kind, 1);
        let socket = lone.net.enter(|| UdpSocket::bind("10.9.0.1:4000").unwrap());
        const SENT: u64 = 5000;
        let mut total = Tally::default();
        let mut dropped = 0;
        let mut delivered = 0;
        let mut batch = Batch::new();
        // Twice: what was lost is counted once.
        for round in 1..=2 {
            for _ in 0..SENT {
                socket.send_to(b"one of many", "10.9.0.9:4001").unwrap();
            }
            until("every frame is accounted for", || {
                // As a core does before it sleeps: it asks for what it does not know yet.
                lone.joiner.with_queue(0, |queue| queue.want_kicks(true));
                let tally = lone.fetch(0, &mut batch);
                total.frames += tally.frames;
                delivered += batch.len() as u64;
                dropped += u64::from(tally.drops.counts[DropReason::HostOverrun as usize]);
                // What the pair itself drops never gets as far as our interface.
                total.frames + nics::dropped_by(&lone.net, "p0") == round * SENT
            });
        }
        assert_eq!((delivered + dropped, dropped > 0), (total.frames, true), "{kind:?}: {dropped} dropped");
        lone.joiner.with_queue(0, |queue| queue.want_kicks(true));
        assert_eq!(lone.fetch(0, &mut batch).frames, 0);
    }
}

#[test]
fn every_queue_carries_its_flows() {
    let _turn = turn();
    for kind in KINDS {
        let lone = Lone::new(kind, 2);
        assert_eq!((lone.port.egress_queues(), lone.attachment.status().queues.len()), (2, 4));
        let server = lone.net.enter(|| UdpSocket::bind("10.9.0.1:4000").unwrap());
        server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mac = nics::mac_of(&lone.net, "p0");
        let mut arrived = [0; 2];
        for flow in 5000..5040u16 {
            let queue = usize::from(flow % 2);
            assert_eq!(
                send(&lone.port, queue, &datagram(mac, flow, 4000, b"hello"), Offload::NONE, 1).frames,
                1
            );
            let (_, from) = server.recv_from(&mut [0; 10]).unwrap();
            assert_eq!(from.port(), flow);
            server.send_to(b"answer", from).unwrap();
            let mut batch = Batch::new();
            let mut found = 0;
            until("the answer comes", || {
                found = (0..2).find(|&i| lone.fetch(i, &mut batch).frames == 1).unwrap_or(2);
                found < 2
            });
            assert_eq!(bytes_of(&batch, &batch.frames()[0])[36..38], flow.to_be_bytes());
            arrived[found] += 1;
        }
        assert!(arrived.iter().all(|n| *n > 0), "{kind:?}: {arrived:?}");
    }
}

#[test]
fn carrier_and_mtu_follow_the_interface() {
    let _turn = turn();
    for kind in KINDS {
        let mut lone = Lone::new(kind, 1);
        let bytes = datagram([2; 6], 1, 2, b"x");
        let lost = |lone: &Lone| {
            let outcome = send(&lone.port, 0, &bytes, Offload::NONE, 1);
            (outcome.frames, drops(&outcome, DropReason::LinkDown))
        };
        assert_eq!(lost(&lone), (1, 0));
        lone.net.run("ip link set p0 down");
        until("the link is down", || !lone.port.link());
        assert_eq!(lost(&lone), (0, 1));
        let status = lone.attachment.status();
        assert_eq!(status.peer, Peer::Waiting);
        assert!(status.detail.contains("carrier down"), "{}", status.detail);
        lone.net.run("ip link set p0 up");
        until("the link is up again", || lone.port.link());
        assert_eq!(lost(&lone), (1, 0));
        // The administrator's own switch counts as well, and heals.
        lone.host.run("ip link set h0 down");
        until("the link is down", || !lone.port.link());
        lone.host.run("ip link set h0 up");
        until("the link is up again", || lone.port.link());
        assert_eq!((lost(&lone), lone.port.fault.get()), ((1, 0), None));

        // The operator's: nothing passes, and the interface is left alone.
        lone.attachment.set_link(false).unwrap();
        assert_eq!(lost(&lone), (0, 1));
        let socket = lone.net.enter(|| UdpSocket::bind("10.9.0.1:4000").unwrap());
        lone.net.run("ip neigh replace 10.9.0.9 lladdr 02:00:00:00:00:09 dev p0");
        let mut batch = Batch::new();
        // What came before that.
        lone.fetch(0, &mut batch);
        socket.send_to(b"into the void", "10.9.0.9:4001").unwrap();
        let mut tally = Tally::default();
        until("the datagram comes", || {
            tally = lone.fetch(0, &mut batch);
            tally.frames > 0
        });
        assert_eq!((batch.len(), tally.drops.counts[DropReason::LinkDown as usize]), (0, 1));
        lone.attachment.set_link(true).unwrap();
        assert_eq!(lost(&lone), (1, 0));

        lone.host.run("ip link set h0 mtu 1300");
        until("the port takes over the MTU", || lone.port.mtu() == 1300);
        let long = datagram([2; 6], 1, 2, &[0; 1400]);
        let outcome = send(&lone.port, 0, &long, Offload::NONE, 1);
        assert_eq!((outcome.frames, drops(&outcome, DropReason::HostRefused)), (0, 1));
        lone.attachment.set_mtu(1400).unwrap();
        assert!(lone.host.run("ip link show h0").contains("mtu 1400"));
    }
}

#[test]
fn an_interface_that_goes_stops_its_port_and_nothing_else() {
    let _turn = turn();
    for kind in KINDS {
        let pair = Pair::new(kind);
        pair.host.run("ip link set h0 name other");
        converse(&sockets(&pair.nets, ["10.9.0.1", "10.9.0.2"]), &[100]);
        until("the new name is known", || pair.attachments[0].status().detail.contains("other"));
        pair.host.run("ip link del other");
        until("its queue is taken back", || {
            pair.cores.status().iter().map(|core| core.queues).sum::<usize>() == 1
        });
        assert_eq!(pair.ports[0].fault.get(), Some(Fault::InterfaceGone));
        until("the link is down", || !pair.ports[0].link());
        let status = pair.attachments[0].status();
        assert_eq!((status.peer, status.queues[0].state.as_str()), (Peer::Faulted, "interface_gone"));
        assert_eq!((pair.attachments[1].status().peer, pair.ports[1].fault.get()), (Peer::Running, None));
    }
}

#[test]
fn a_configuration_that_cannot_be_is_refused_by_name() {
    let _turn = turn();
    let (net, other) = (Net::new(), Net::new());
    veth(&net, "h0", &other, "p0", "10.9.0.1", "");
    net.run("ip link set h0 up");
    let file = CounterFile::anonymous().unwrap();
    let joiner = Joiner::new(|_, _| {});
    for kind in KINDS {
        let refuse = |name: &str, queues| {
            let port = port(&file, 0, "no");
            kind.start(&net, name, queues, &port, Arc::clone(&joiner) as _).err().unwrap().to_string()
        };
        for name in ["", "sixteen-bytes-xx", "a/b", "a b", "eth%d", "."] {
            assert!(refuse(name, 1).contains("no interface name"), "{name}");
        }
        for queues in [0, 17] {
            assert!(refuse("h0", queues).contains("1 to 16"));
        }
        let missing = refuse("eth7", 1);
        assert!(
            missing.contains("eth7: there is no such interface") && missing.contains("ip link"),
            "{missing}"
        );
        let port = port(&file, 0, "no");
        let forbidden = nics::as_nobody(&net, || kind.try_here("h0", &port, Arc::clone(&joiner) as _));
        let text = forbidden.err().unwrap().to_string();
        assert!(text.contains("CAP_NET_RAW"), "{text}");
    }
}

#[test]
fn xdp_says_what_a_driver_cannot() {
    let _turn = turn();
    let (host, net) = (Net::new(), Net::new());
    veth(&host, "h0", &net, "p0", "10.9.0.1", "");
    let file = CounterFile::anonymous().unwrap();
    let joiner = Joiner::new(|_, _| {});
    let start = |config: XdpConfig, id| {
        let port = port(&file, id, "xdp");
        host.enter(|| xdp::start(&config, port, Arc::clone(&joiner) as _))
    };
    let config = |mode| XdpConfig { interface: "h0".to_owned(), queues: None, mtu: None, mode };
    let refuse = |config, id| start(config, id).err().unwrap().to_string();
    let zero = refuse(config(XdpMode::ZeroCopy), 0);
    assert!(zero.contains("no zero-copy mode") && zero.contains("mode=copy"), "{zero}");
    let many = refuse(XdpConfig { queues: Some(3), ..config(XdpMode::Auto) }, 0);
    assert!(many.contains("it receives on 1"), "{many}");
    let large = refuse(XdpConfig { mtu: Some(9000), ..config(XdpMode::Auto) }, 0);
    assert!(large.contains("9000") && large.contains("packet"), "{large}");
    host.run("ip link set h0 mtu 1500");
    let first = start(config(XdpMode::Copy), 0).unwrap();
    assert_eq!(first.status().features, ["native", "copy", "need_wakeup"]);
    let second = refuse(config(XdpMode::Auto), 1);
    assert!(second.contains("another program"), "{second}");
    drop(first);
    // It is free again.
    drop(start(config(XdpMode::Auto), 0).unwrap());
}
