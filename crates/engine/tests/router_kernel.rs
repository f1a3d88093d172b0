//! The router beside the Linux kernel's: random tables, random packets, and both have to do the same with
//! each.
//!
//! The kernel forwards in a network namespace between TAP interfaces that the test holds; our router gets the
//! same frames directly. Compared is all that comes out, by port: packets that go on, answers, and ICMP
//! errors. What the two may choose is taken away before: identification and don't-fragment bit of what they
//! make themselves, flow labels, and padding. Not compared is where ours is stricter: 0.0.0.0/8 (RFC 1122),
//! link-local addresses of IPv4 (RFC 3927), mapped addresses of IPv6, broadcasts on its networks and its own
//! IPv6 addresses as sources, source routes, IPv6 sources that no packet may have. Echo requests with a wrong
//! checksum have a wrong reply.
//!
//! `ROUTER_PACKETS` says how many packets there are. It needs root and iproute2.

use crate::{frames, rig};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use sidecore_engine::observe::CounterFile;
use sidecore_engine::packet::{Batch, Offload, Sum};
use sidecore_engine::port::{Port, PortId};
use sidecore_engine::router::{Member, Net, Now, RewriteBuffer, Router, RouterContext, Rpf, Static, Target};
use sidecore_engine::switch::Verdicts;

const PORTS: usize = 3;
/// The third link is narrower.
const MTUS: [u32; PORTS] = [1500, 1500, 1400];
const SECOND: u32 = 100;

/// Stations behind a port: all addresses there are theirs.
fn theirs(port: usize) -> [u8; 6] {
    [2, 0, 0, 0, 1, port as u8]
}

fn net4(port: usize, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, port as u8, host)
}

fn net6(port: usize, host: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, port as u16, 0, 0, 0, 0, host)
}

/// Hosts on each port's network that both know; number 9 is the gateway to others.
const HOSTS: [u8; 2] = [9, 10];
const GATEWAY: u8 = 9;

/// Numbers that are the same each time: a linear congruence, its upper half.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33 ^ self.0 >> 17
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// The kernel's router.
struct Kernel {
    net: rig::Net,
    taps: Vec<File>,
    macs: Vec<[u8; 6]>,
}

/// An interface of the namespace that this thread is in.
fn tap(name: &str) -> File {
    let file = File::options().read(true).write(true).open("/dev/net/tun").expect("/dev/net/tun");
    // SAFETY: all zeros are an `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as i16;
    // SAFETY: the request is an `ifreq`, which the call reads and writes.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &mut request) };
    assert_eq!(done, 0, "TUNSETIFF: {}", std::io::Error::last_os_error());
    rustix::io::ioctl_fionbio(&file, true).unwrap();
    file
}

impl Kernel {
    fn new() -> Kernel {
        let net = rig::Net::new();
        let sysctl = |path: &str, value: &str| {
            net.enter(|| std::fs::write(format!("/proc/sys/net/{path}"), value)).is_ok()
        };
        for (path, value) in [
            ("ipv4/ip_forward", "1"),
            ("ipv4/icmp_ratelimit", "0"),
            ("ipv6/icmp/ratelimit", "0"),
            ("ipv4/conf/all/send_redirects", "0"),
            ("ipv4/conf/default/send_redirects", "0"),
            ("ipv4/conf/all/rp_filter", "0"),
            ("ipv4/conf/default/rp_filter", "0"),
            ("ipv6/conf/default/disable_ipv6", "0"),
            ("ipv6/conf/all/disable_ipv6", "0"),
            ("ipv6/conf/default/accept_dad", "0"),
            ("ipv6/conf/default/accept_ra", "0"),
            ("ipv6/conf/all/forwarding", "1"),
        ] {
            assert!(sysctl(path, value), "{path} cannot be set");
        }
        // Those of a namespace since Linux 6.12; before, the host's, which a test leaves alone.
        sysctl("ipv4/icmp_msgs_per_sec", "100000000");
        sysctl("ipv4/icmp_msgs_burst", "100000000");
        let taps: Vec<File> = (0..PORTS).map(|i| net.enter(|| tap(&format!("t{i}")))).collect();
        let mut macs = Vec::new();
        for (i, mtu) in MTUS.iter().enumerate() {
            net.run(&format!("ip link set t{i} addrgenmode none mtu {mtu} up"));
            net.run(&format!("ip addr add {}/24 brd + dev t{i}", net4(i, 1)));
            net.run(&format!("ip addr add {}/64 nodad dev t{i}", net6(i, 1)));
            let station = theirs(i).map(|byte| format!("{byte:02x}")).join(":");
            for host in HOSTS {
                let six = net6(i, host.into());
                net.run(&format!("ip neigh add {} lladdr {station} nud permanent dev t{i}", net4(i, host)));
                net.run(&format!("ip neigh add {six} lladdr {station} nud permanent dev t{i}"));
            }
            let line = net.run(&format!("ip -br link show t{i}"));
            let mac = line.split_whitespace().nth(2).unwrap();
            let bytes: Vec<u8> = mac.split(':').map(|b| u8::from_str_radix(b, 16).unwrap()).collect();
            macs.push(bytes.try_into().unwrap());
        }
        Kernel { net, taps, macs }
    }

    /// Has exactly these routes beside those of its interfaces.
    fn routes(&self, routes: &[Static]) {
        self.net.run("ip route flush proto 77");
        self.net.run("ip -6 route flush proto 77");
        let mut script = String::new();
        for Static { prefix, target } in routes {
            let way = match target {
                Target::Via(gateways, _) => format!("{prefix} via {}", gateways[0]),
                Target::Blackhole => format!("blackhole {prefix}"),
                Target::Unreachable => format!("unreachable {prefix}"),
                Target::Prohibit => format!("prohibit {prefix}"),
                Target::Port(_) => unreachable!(),
            };
            script.push_str(&format!("route add {way} proto 77\n"));
        }
        let file = std::env::temp_dir().join(format!("routes-{}", std::process::id()));
        std::fs::write(&file, script).unwrap();
        self.net.run(&format!("ip -batch {}", file.display()));
        std::fs::remove_file(&file).unwrap();
    }

    /// Checks sources as `rpf` says. Of IPv6 it checks none.
    fn check(&self, rpf: Rpf) {
        let value = match rpf {
            Rpf::Off => "0",
            Rpf::Strict => "1",
            Rpf::Loose => "2",
        };
        for i in 0..PORTS {
            let path = format!("/proc/sys/net/ipv4/conf/t{i}/rp_filter");
            self.net.enter(|| std::fs::write(path, value)).unwrap();
        }
    }

    /// What comes out when `frame` comes in by port `from`; `expected` frames are waited for.
    fn send(&mut self, from: usize, frame: &[u8], expected: usize) -> Vec<(usize, Vec<u8>)> {
        assert_eq!((&self.taps[from]).write(frame).unwrap(), frame.len());
        let mut got = Vec::new();
        loop {
            for (port, tap) in self.taps.iter_mut().enumerate() {
                let mut buffer = [0; 2048];
                loop {
                    match tap.read(&mut buffer) {
                        // It speaks to groups unasked, and sends redirects where we do not.
                        Ok(n) if buffer[0] & 1 == 0 && !is_redirect(&buffer[..n]) => {
                            got.push((port, buffer[..n].to_vec()));
                        }
                        Ok(_) => {}
                        Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                        Err(e) => panic!("{e}"),
                    }
                }
            }
            if got.len() >= expected {
                return got;
            }
            let mut fds: Vec<_> = self.taps.iter().map(|tap| PollFd::new(tap, PollFlags::IN)).collect();
            if poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 200_000_000 })).unwrap() == 0 {
                return got;
            }
        }
    }
}

/// Whether `reply` is the kernel's word on a packet before `frame`, of which it was not waited for: it quotes
/// another source.
fn is_late(reply: &[u8], frame: &[u8]) -> bool {
    let is_error = reply.len() >= 62 && reply[12..15] == [8, 0, 0x45] && (reply[23], reply[34]) == (1, 3);
    // An error that is sent on has the source of `frame`; one about it quotes that.
    let is_of_this = |frame: &[u8]| [&reply[26..30], &reply[54..58]].contains(&&frame[26..30]);
    is_error && !(frame[12..14] == [8, 0] && frame.len() >= 34 && is_of_this(frame))
}

fn is_redirect(frame: &[u8]) -> bool {
    frame.len() > 54 && frame[12..14] == [0x86, 0xdd] && frame[20] == 58 && frame[54] == 137
}

/// Ours.
struct Ours {
    router: Arc<Router>,
    ports: Vec<Arc<Port>>,
    macs: Vec<[u8; 6]>,
    context: RouterContext,
    rewrites: RewriteBuffer,
    verdicts: Verdicts,
    start: Instant,
    batches: u32,
    rpf: Rpf,
    _file: CounterFile,
}

impl Ours {
    /// With the kernel's station addresses.
    fn new(macs: &[[u8; 6]]) -> Ours {
        let file = CounterFile::anonymous().unwrap();
        let port = |i: usize| {
            let (id, name) = (PortId(i as u16), format!("t{i}"));
            Arc::new(Port::new(id, &name, file.open_slot(id, &name), MTUS[i]).unwrap())
        };
        let router = Arc::new(Router::new("r").unwrap());
        let mut ours = Ours {
            context: RouterContext::new(&router),
            router,
            ports: (0..PORTS).map(port).collect(),
            macs: macs.to_vec(),
            rewrites: RewriteBuffer::for_routers(1),
            verdicts: Verdicts::default(),
            start: Instant::now(),
            batches: 0,
            rpf: Rpf::Off,
            _file: file,
        };
        ours.routes(&[]);
        for i in 0..PORTS {
            for host in HOSTS {
                // Each host asks for the router, and is known then.
                ours.send(i, &arp(i, net4(i, host)));
                ours.send(i, &solicitation(i, net6(i, host.into())));
            }
        }
        ours
    }

    fn routes(&mut self, routes: &[Static]) {
        let member = |(i, port): (usize, &Arc<Port>)| Member {
            port: Arc::clone(port),
            mac: self.macs[i],
            addresses: vec![
                Net { address: net4(i, 1).into(), len: 24 },
                Net { address: net6(i, 1).into(), len: 64 },
            ],
            control: None,
            rpf: self.rpf,
        };
        let members: Vec<Member> = self.ports.iter().enumerate().map(member).collect();
        self.router.configure(&members, routes, SECOND);
    }

    fn send(&mut self, from: usize, frame: &[u8]) -> (Vec<(usize, Vec<u8>)>, Option<&'static str>) {
        // Each batch comes ten milliseconds after the one before, so that no limit of errors is met.
        self.batches += 1;
        let epoch = self.start - Duration::from_millis(10) * self.batches;
        let now = Now { seconds: SECOND, epoch, core: 0, sender: PortId(0) };
        let mut batch = Batch::new();
        frames::push(&mut batch, frame, Offload::NONE);
        self.verdicts.clear();
        self.rewrites.clear();
        self.context.decide(&batch, &self.ports[from], &now, &mut self.rewrites, &mut self.verdicts);
        self.rewrites.rewrite(&mut batch);
        let mut got = Vec::new();
        for id in &self.verdicts.used {
            got.push((usize::from(*id), frames::bytes_of(&batch, &batch.frames()[0])));
        }
        let (made, to) = self.rewrites.made();
        got.extend(
            made.frames().iter().zip(to).map(|(it, to)| (usize::from(to.0), frames::bytes_of(made, it))),
        );
        (got, self.verdicts.drops.first().map(|(_, why)| why.name()))
    }
}

fn arp(port: usize, sender: Ipv4Addr) -> Vec<u8> {
    let mut frame = [&[0xff; 6][..], &theirs(port), &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &theirs(port)].concat();
    frame.extend(sender.octets());
    frame.extend([0; 6]);
    frame.extend(net4(port, 1).octets());
    frame
}

fn solicitation(port: usize, sender: Ipv6Addr) -> Vec<u8> {
    let target = net6(port, 1);
    let group: Ipv6Addr = "ff02::1:ff00:1".parse().unwrap();
    let mut message = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &target.octets(), &[1, 1], &theirs(port)].concat();
    seal6(sender, group, &mut message, 2);
    let header = header6(sender, group, 255, 58, message.len(), 0);
    [&[0x33, 0x33, 0xff, 0, 0, 1][..], &theirs(port), &[0x86, 0xdd], &header, &message].concat()
}

/// Fills in the checksum of an ICMPv6 message.
fn seal6(src: Ipv6Addr, dst: Ipv6Addr, message: &mut [u8], at: usize) {
    let mut sum = Sum::pseudo(&src.octets(), &dst.octets(), 58, message.len());
    sum.add(message);
    message[at..at + 2].copy_from_slice(&sum.checksum().to_be_bytes());
}

fn header6(src: Ipv6Addr, dst: Ipv6Addr, hops: u8, next: u8, len: usize, class: u8) -> Vec<u8> {
    let len = (len as u16).to_be_bytes();
    [&[0x60 | class >> 4, class << 4, 0, 0][..], &len, &[next, hops], &src.octets(), &dst.octets()].concat()
}

/// What a packet carries: a datagram, or a message with that type.
fn payload(random: &mut Random, v6: bool, own: bool) -> (u8, Vec<u8>) {
    let icmp = if v6 { 58 } else { 1 };
    let len = match random.below(10) {
        0 => random.below(1400) as usize,
        1 => 1452 - if v6 { 20 } else { 0 },
        2 => 1300 + random.below(100) as usize,
        _ => random.below(60) as usize,
    };
    let body: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
    let echo = if v6 { 128 } else { 8 };
    match random.below(if own { 1 } else { 4 }) {
        0 => (icmp, [&[echo, 0, 0, 0, 1, 2, 3, 4][..], &body].concat()),
        // Errors and answers, of which no error is told.
        1 => {
            let kind = if v6 { random.one(&[1, 2, 3, 4, 129]) } else { random.one(&[0, 3, 11, 12]) };
            (icmp, [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &body].concat())
        }
        2 => (6, [&[4, 210, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 1, 0, 0, 0, 0, 0][..], &body].concat()),
        _ => {
            let len = ((body.len() + 8) as u16).to_be_bytes();
            (17, [&[4, 210][..], &[0, 9], &len, &[0, 0], &body].concat())
        }
    }
}

/// An IPv4 packet that comes in by port `from`, whose source may be anywhere: near a route, on another port's
/// network, or nowhere.
fn from_anywhere(random: &mut Random, macs: &[[u8; 6]], routes: &[Static]) -> (usize, Vec<u8>) {
    let (from, other) = (random.below(PORTS as u64) as usize, random.below(PORTS as u64) as usize);
    let fours: Vec<u32> = routes
        .iter()
        .filter_map(|it| match it.prefix.address {
            IpAddr::V4(four) => Some(four.to_bits()),
            IpAddr::V6(_) => None,
        })
        .collect();
    let src = match random.below(4) {
        0 => net4(other, random.one(&HOSTS)),
        1 => Ipv4Addr::new(10, 10, other as u8, random.next() as u8),
        2 => Ipv4Addr::new(203, 0, 113, random.next() as u8),
        _ => near4(random.one(&fours) | random.below(2) as u32),
    };
    let dst = net4(random.below(PORTS as u64) as usize, random.one(&HOSTS));
    let mut header = [&[0x45, 0, 0, 48, 7, 7, 0, 0, 64, 17, 0, 0][..], &src.octets(), &dst.octets()].concat();
    let sum = Sum::of(&header).checksum().to_be_bytes();
    header[10..12].copy_from_slice(&sum);
    let datagram = [&[4, 210, 0, 9, 0, 28, 0, 0][..], &[random.next() as u8; 20]].concat();
    (from, [&macs[from][..], &theirs(from), &[8, 0], &header, &datagram].concat())
}

/// A packet that comes in by port `from`.
fn packet(random: &mut Random, macs: &[[u8; 6]], routes: &[Static]) -> (usize, Vec<u8>) {
    let (from, v6) = (random.below(PORTS as u64) as usize, random.chance(45));
    let (mut own, mut broadcast) = (false, false);
    let other = random.below(PORTS as u64) as usize;
    // To somewhere near a route, to a host that is known, to the router, or to where no router passes on.
    let dst: IpAddr = match random.below(20) {
        0 => {
            own = true;
            if v6 {
                net6(other, 1).into()
            } else {
                net4(other, 1).into()
            }
        }
        1 if !v6 => {
            broadcast = true;
            random
                .one(&[net4(other, 255), [224, 0, 0, 5].into(), [127, 0, 0, 1].into(), [0, 0, 0, 0].into()])
                .into()
        }
        1 => random.one(&["ff0e::5", "::1"].map(|it| it.parse::<Ipv6Addr>().unwrap())).into(),
        5 if v6 => Ipv6Addr::from_bits(0x2600 << 112 | u128::from(random.next())).into(),
        5 => Ipv4Addr::from_bits(198 << 24 | random.next() as u32 >> 8).into(),
        2..=4 => {
            let host = random.one(&HOSTS);
            if v6 {
                net6(other, host.into()).into()
            } else {
                net4(other, host).into()
            }
        }
        _ => {
            let mine: Vec<&Static> = routes.iter().filter(|it| it.prefix.address.is_ipv6() == v6).collect();
            let at = mine.get(random.below(mine.len().max(1) as u64) as usize).map(|it| it.prefix);
            match at.map(|at| (at.address, at.len)) {
                Some((IpAddr::V4(it), len)) => {
                    let host = u32::MAX.checked_shr(len.into()).unwrap_or(0);
                    near4(it.to_bits() | random.next() as u32 & host).into()
                }
                Some((IpAddr::V6(it), len)) => {
                    let host = u128::MAX.checked_shr(len.into()).unwrap_or(0);
                    let low = u128::from(random.next()) << 64 | u128::from(random.next());
                    let spread =
                        u128::from(random.next() as u32) << 96 | u128::from(random.next()) << 60 | low;
                    near6(it.to_bits() | spread & host).into()
                }
                None if v6 => Ipv6Addr::new(0x2a00, 1, 2, 3, 4, 5, 6, 7).into(),
                None => Ipv4Addr::new(100, 64, 1, 2).into(),
            }
        }
    };
    let hops = random.one(&[64, 64, 64, 2, 255, 1, 0]);
    let (protocol, mut body) = payload(random, v6, own);
    // What is longer than the link by which it comes is no packet of it.
    body.truncate(MTUS[from] as usize - if v6 { 40 } else { 20 });
    let mut header = match dst {
        IpAddr::V4(dst) => {
            let src = match random.below(30) {
                0 => net4(other, 1),
                1 => random.one(&[[127u8, 0, 0, 1], [0, 0, 0, 0], [224, 0, 0, 1]]).into(),
                2..=9 => Ipv4Addr::new(10, 10, from as u8, random.next() as u8),
                _ => net4(from, random.one(&HOSTS)),
            };
            // The destination looks at checksums.
            if protocol == 1 {
                body[2..4].fill(0);
                let sum = Sum::of(&body).checksum().to_be_bytes();
                body[2..4].copy_from_slice(&sum);
            }
            let fragment = if random.chance(8) && !own && !broadcast {
                random.one(&[0x2000u16, 0x2010, 0x10])
            } else {
                random.one(&[0, 0x4000])
            };
            let len = ((20 + body.len()) as u16).to_be_bytes();
            let fragment = fragment.to_be_bytes();
            let class = random.one(&[0, 0, 0xb8, 3, 0x10]);
            let mut header = [
                &[0x45, class][..],
                &len,
                &[7, 7],
                &fragment,
                &[hops, protocol, 0, 0],
                &src.octets(),
                &dst.octets(),
            ]
            .concat();
            let sum = Sum::of(&header).checksum().to_be_bytes();
            header[10..12].copy_from_slice(&sum);
            header
        }
        IpAddr::V6(dst) => {
            let src = match random.below(30) {
                0 => random.one(&["::", "::1", "ff02::1"]).parse().unwrap(),
                1..=9 => Ipv6Addr::new(0x2001, 0xdb8, 0x100 + from as u16, 1, 2, 3, 4, random.next() as u16),
                _ => net6(from, random.one(&HOSTS).into()),
            };
            if protocol == 58 {
                body[2..4].fill(0);
                seal6(src, dst, &mut body, 2);
            }
            header6(src, dst, hops, protocol, body.len(), 0)
        }
    };
    if random.chance(3) && !own {
        // A bit of what both look at.
        let at = if v6 { 0 } else { random.one(&[0, 2, 3, 10, 11]) };
        header[at] ^= 1 << random.below(8);
        if v6 && header[0] >> 4 == 6 {
            header[0] = 0x60;
        }
    }
    let ethertype: [u8; 2] = if v6 { [0x86, 0xdd] } else { [8, 0] };
    let mut station = macs[from];
    if random.chance(1) {
        station[5] ^= 0x80;
    }
    let mut frame = [&station[..], &theirs(from), &ethertype, &header, &body].concat();
    if random.chance(2) && frame.len() > 40 {
        frame.truncate(14 + random.below(frame.len() as u64 - 14) as usize);
    }
    // As Ethernet does it.
    if random.chance(20) && frame.len() < 60 {
        frame.resize(60, 0);
    }
    (from, frame)
}

/// An address that only routes lead to: none of the networks on which a stranger would have to be asked for,
/// or which only one of the two passes on.
fn near4(it: u32) -> Ipv4Addr {
    let address = Ipv4Addr::from_bits(it);
    match address.octets() {
        [10, 0, ..] | [0 | 127 | 224..=255, ..] | [169, 254, ..] => Ipv4Addr::new(100, 64, 1, 2),
        _ => address,
    }
}

fn near6(it: u128) -> Ipv6Addr {
    let address = Ipv6Addr::from_bits(it);
    match address.segments() {
        [0x2001, 0xdb8, 0..=2, ..] | [0 | 0x64 | 0xfc00..=0xffff, ..] => {
            Ipv6Addr::new(0x2a00, 1, 2, 3, 4, 5, 6, 7)
        }
        _ => address,
    }
}

/// A random table: where senders are, and whatever else.
fn table(random: &mut Random) -> Vec<Static> {
    let mut prefixes = BTreeSet::new();
    let mut routes = Vec::new();
    let mut add = |prefix: Net, target| {
        if prefixes.insert(prefix) {
            routes.push(Static { prefix, target });
        }
    };
    for i in 0..PORTS {
        let (four, six) = (
            Ipv4Addr::new(10, 10, i as u8, 0),
            Ipv6Addr::new(0x2001, 0xdb8, 0x100 + i as u16, 0, 0, 0, 0, 0),
        );
        add(Net { address: four.into(), len: 24 }, Target::Via(vec![net4(i, GATEWAY).into()], None));
        add(Net { address: six.into(), len: 48 }, Target::Via(vec![net6(i, GATEWAY.into()).into()], None));
    }
    for _ in 0..random.below(150) {
        let v6 = random.chance(45);
        let to = random.below(PORTS as u64) as usize;
        let address: IpAddr = if v6 {
            let spread = u128::from(random.next()) << 64 | u128::from(random.next());
            Ipv6Addr::from_bits(0x2a00 << 112 | spread >> random.one(&[16, 40, 70, 100])).into()
        } else {
            Ipv4Addr::from_bits(100 << 24 | random.next() as u32 >> random.one(&[8, 12, 20])).into()
        };
        let len = if random.chance(1) {
            0
        } else if v6 {
            20 + random.below(109) as u8
        } else {
            8 + random.below(25) as u8
        };
        let target = match random.below(10) {
            0 => Target::Blackhole,
            1 => Target::Unreachable,
            2 => Target::Prohibit,
            _ if v6 => Target::Via(vec![net6(to, GATEWAY.into()).into()], None),
            _ => Target::Via(vec![net4(to, GATEWAY).into()], None),
        };
        add(Net { address, len }.network(), target);
    }
    routes
}

/// A frame without what its maker may choose, and without padding.
fn plain(mut frame: Vec<u8>) -> Vec<u8> {
    let v6 = frame[12..14] == [0x86, 0xdd];
    let word = |frame: &[u8], at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    let end = if v6 { 54 + word(&frame, 18) } else { 14 + word(&frame, 16) };
    frame.truncate(end.max(34));
    // Only what the router says itself is its maker's choice.
    let own4 = (0..PORTS).any(|i| frame[26..30] == net4(i, 1).octets());
    let own6 = frame.len() >= 38 && (0..PORTS).any(|i| frame[22..38] == net6(i, 1).octets());
    if !(if v6 { own6 } else { own4 }) {
        return frame;
    }
    if v6 {
        frame[14..18].copy_from_slice(&[0x60, 0, 0, 0]);
    } else {
        assert_eq!(Sum::of(&frame[14..34]).value(), 0xffff, "{frame:02x?}");
        frame[18..22].fill(0);
        frame[24..26].fill(0);
    }
    frame
}

/// Whether it is an echo request whose checksum is wrong.
fn is_damaged_echo(frame: &[u8], v6: bool) -> bool {
    let word =
        |at: usize| frame.get(at..at + 2).map_or(0, |it| usize::from(u16::from_be_bytes([it[0], it[1]])));
    let (start, end, kind) = if v6 { (54, 54 + word(18), 128) } else { (34, 14 + word(16), 8) };
    let Some(message) = frame.get(start..end).filter(|it| it.first() == Some(&kind)) else { return false };
    let mut sum =
        if v6 { Sum::pseudo(&frame[22..38], &frame[38..54], 58, message.len()) } else { Sum::of(&[]) };
    sum.add(message);
    sum.value() != 0xffff
}

#[test]
fn it_does_what_the_kernel_does() {
    let wanted: u64 = std::env::var("ROUTER_PACKETS").ok().and_then(|n| n.parse().ok()).unwrap_or(60_000);
    let seed = std::env::var("ROUTER_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let mut random = Random(seed);
    let mut kernel = Kernel::new();
    let mut ours = Ours::new(&kernel.macs.clone());
    let (mut routes, mut fates, mut told) = (Vec::new(), BTreeMap::<&str, u64>::new(), 0);
    for n in 0..wanted {
        if n % 2_000 == 0 {
            routes = table(&mut random);
            kernel.routes(&routes);
            ours.rpf = [Rpf::Off, Rpf::Strict, Rpf::Loose][(n / 2_000 % 3) as usize];
            kernel.check(ours.rpf);
            ours.routes(&routes);
        }
        let (from, frame) = match random.chance(10) {
            true => from_anywhere(&mut random, &kernel.macs, &routes),
            false => packet(&mut random, &kernel.macs, &routes),
        };
        let (mine, why) = ours.send(from, &frame);
        // What the kernel tells of its IPv4 routes it tells each sender five times at once, by a limit that
        // the host has and no namespace: silence is no difference there.
        let limited = frame[12..14] == [8, 0] && matches!(why, Some("no_route" | "unreachable" | "prohibit"));
        let mut theirs = kernel.send(from, &frame, if limited { 0 } else { mine.len() });
        theirs.retain(|(_, reply)| !is_late(reply, &frame));
        let mine = if limited && theirs.is_empty() { Vec::new() } else { mine };
        told += u64::from(limited && !mine.is_empty());
        let clean = |all: Vec<(usize, Vec<u8>)>| {
            let mut all: Vec<_> = all.into_iter().map(|(port, it)| (port, plain(it))).collect();
            all.sort();
            all
        };
        let (mine, theirs) = (clean(mine), clean(theirs));
        let v6 = frame[12..14] == [0x86, 0xdd];
        // The kernel does not look at the source of an IPv6 packet that goes back by its port (ip6_forward),
        // or is for itself. RFC 4291 §2.5.2 does.
        let unseen = v6 && why == Some("martian");
        // Ours makes a reply's checksum of the request's (RFC 1624): a damaged one is for the asker to see.
        let damaged = theirs.is_empty() && is_damaged_echo(&frame, v6);
        assert!(
            mine == theirs || unseen || damaged,
            "packet {n} of seed {seed}, by port {from} ({why:?})\nsent   {frame:02x?}\nours   {mine:02x?}\nkernel {theirs:02x?}"
        );
        *fates.entry(why.unwrap_or("sent on")).or_default() += 1;
    }
    eprintln!("{wanted} packets: {fates:?}; of its IPv4 routes the kernel told {told} times");
    assert!(wanted < 10_000 || told > 100, "the kernel told {told} times of its routes");
    for fate in [
        "sent on",
        "no_route",
        "blackhole",
        "unreachable",
        "prohibit",
        "time_exceeded",
        "too_big",
        "fragmented",
        "martian",
        "bad_header",
        "reverse_path",
    ] {
        assert!(wanted < 10_000 || fates.contains_key(fate), "no packet was {fate}: {fates:?}");
    }
}
