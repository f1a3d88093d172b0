//! Ports on veth pairs.

// No test uses all of it.
#![allow(dead_code)]

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::frames;
use rustix::net::{socket, AddressFamily, SocketType};

use crate::rig::{port, Joiner, Net};
use sidecore_engine::graph::{Attach, CoreOptions, Graph, Scheduler, Topology};
use sidecore_engine::host::packet::{self, PacketConfig};
use sidecore_engine::host::xdp::{self, XdpConfig, XdpMode};
use sidecore_engine::observe::{CounterFile, Totals};
use sidecore_engine::packet::{Batch, Offload};
use sidecore_engine::port::{Attachment, DropReason, Outcome, Port, Tally};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Packet,
    Xdp,
}

pub const KINDS: [Kind; 2] = [Kind::Packet, Kind::Xdp];

impl Kind {
    pub fn start(
        self,
        net: &Net,
        name: &str,
        queues: usize,
        port: &Arc<Port>,
        scheduler: Arc<dyn Scheduler>,
    ) -> Result<Box<dyn Attachment>, String> {
        net.enter(|| self.start_here(name, queues, port, scheduler))
    }

    fn start_here(
        self,
        name: &str,
        queues: usize,
        port: &Arc<Port>,
        scheduler: Arc<dyn Scheduler>,
    ) -> Result<Box<dyn Attachment>, String> {
        let interface = name.to_owned();
        let port = Arc::clone(port);
        match self {
            Kind::Packet => {
                let config = PacketConfig { interface, queues, mtu: None };
                packet::start(&config, port, scheduler).map(|port| Box::new(port) as _)
            }
            Kind::Xdp => {
                let config = XdpConfig { interface, queues: Some(queues), mtu: None, mode: XdpMode::Auto };
                xdp::start(&config, port, scheduler).map(|port| Box::new(port) as _)
            }
        }
    }

    /// Tries it in the namespace that the caller is in.
    pub fn try_here(
        self,
        name: &str,
        port: &Arc<Port>,
        scheduler: Arc<dyn Scheduler>,
    ) -> Result<Box<dyn Attachment>, String> {
        self.start_here(name, 1, port, scheduler)
    }
}

/// Runs `f` in `net` on a thread without rights.
pub fn as_nobody<R: Send>(net: &Net, f: impl FnOnce() -> R + Send) -> R {
    net.enter(|| {
        // SAFETY: the bare system call changes this thread alone, which ends with `f`.
        let result = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        assert_eq!(result, 0);
        f()
    })
}

/// Frames to be sent that the interface has dropped.
pub fn dropped_by(net: &Net, name: &str) -> u64 {
    let text = net.run("cat /proc/thread-self/net/dev");
    let line = text.lines().find_map(|line| line.trim().strip_prefix(&format!("{name}:"))).unwrap();
    line.split_whitespace().nth(11).unwrap().parse().unwrap()
}

/// A packet socket that sends out of `name`, in the namespace that the caller is in.
pub fn raw_socket(name: &str) -> OwnedFd {
    let fd = socket(AddressFamily::PACKET, SocketType::RAW, None).unwrap();
    #[allow(clippy::cast_possible_wrap)]
    let index = rustix::net::netdevice::name_to_index(&fd, name).unwrap() as libc::c_int;
    // SAFETY: all-zero bytes are a valid address; bind gets its length.
    let bound = unsafe {
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = index;
        libc::bind(fd.as_raw_fd(), std::ptr::from_ref(&address).cast(), size_of_val(&address) as u32)
    };
    assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
    fd
}

pub fn mac_of(net: &Net, name: &str) -> [u8; 6] {
    let text = net.run(&format!("ip -br link show {name}"));
    let mac = text.split_whitespace().nth(2).unwrap();
    let bytes: Vec<u8> = mac.split(':').map(|b| u8::from_str_radix(b, 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

/// Tests take turns: while one runs `ip`, the child that is about to become `ip` holds every descriptor of
/// this process for a moment, so that another test's interface would still be in use.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for something that happens by itself soon.
pub fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < Duration::from_secs(30), "waited in vain: {what}");
        std::thread::yield_now();
    }
}

/// A veth pair: `name` in `host`, `peer` up in `net` with an address.
pub fn veth(host: &Net, name: &str, net: &Net, peer: &str, address: &str, options: &str) {
    host.run(&format!(
        "ip link add {name} {options} type veth peer name {peer} {options} netns {}",
        net.path()
    ));
    net.run(&format!("ip link set {peer} up"));
    net.run(&format!("ip addr add {address}/24 dev {peer}"));
}

/// Two namespaces, 10.9.0.1 and 10.9.0.2, joined by way of two ports in a third and a wire on a real core.
pub struct Pair {
    pub attachments: [Box<dyn Attachment>; 2],
    pub cores: Arc<Graph>,
    pub host: Net,
    pub nets: [Net; 2],
    pub ports: [Arc<Port>; 2],
}

impl Pair {
    pub fn new(kind: Kind) -> Pair {
        let file = CounterFile::anonymous().unwrap();
        let cores = Graph::start(&CoreOptions::default()).unwrap();
        let (host, nets) = (Net::new(), [Net::new(), Net::new()]);
        let ports = [port(&file, 0, "left"), port(&file, 1, "right")];
        wire(&cores, &ports);
        let attachments = [0, 1].map(|i| {
            let name = format!("h{i}");
            veth(&host, &name, &nets[i], &format!("p{i}"), &format!("10.9.0.{}", i + 1), "");
            kind.start(&host, &name, 1, &ports[i], Arc::clone(&cores) as _).unwrap()
        });
        for port in &ports {
            until("the link is up", || port.link());
        }
        Pair { attachments, cores, host, nets, ports }
    }
}

/// Joins two ports.
pub fn wire(cores: &Arc<Graph>, ports: &[Arc<Port>; 2]) {
    let members = [0, 1].map(|i| (Arc::clone(&ports[i]), Attach::Wire(ports[1 - i].id)));
    cores.publish(&Arc::new(Topology::new(&members)));
}

/// What came in on both sides and what became of it, once nothing is under way.
pub fn conserved(ports: &[Arc<Port>; 2]) -> [Totals; 2] {
    let totals = || ports.each_ref().map(|port| port.counters.totals());
    until("frames in + made = frames out + drops", || {
        let all = totals();
        let came: u64 = all.iter().map(|t| t.in_frames + t.made).sum();
        let went: u64 = all.iter().map(|t| t.out_frames + t.drops.iter().sum::<u64>()).sum();
        came == went
    });
    totals()
}

/// One port with a peer at 10.9.0.1 that knows a neighbour 10.9.0.9, and frames moved by hand.
pub struct Lone {
    pub host: Net,
    pub net: Net,
    pub port: Arc<Port>,
    pub joiner: Arc<Joiner>,
    pub attachment: Box<dyn Attachment>,
}

impl Lone {
    pub fn new(kind: Kind, queues: usize) -> Lone {
        let (host, net) = (Net::new(), Net::new());
        let port = port(&CounterFile::anonymous().unwrap(), 0, "host");
        let joiner = Joiner::new(|_, _| {});
        let options = format!("numrxqueues {queues} numtxqueues {queues}");
        veth(&host, "h0", &net, "p0", "10.9.0.1", &options);
        net.run("ip neigh add 10.9.0.9 lladdr 02:00:00:00:00:09 dev p0");
        let attachment = kind.start(&host, "h0", queues, &port, Arc::clone(&joiner) as _).unwrap();
        until("the link is up", || port.link());
        Lone { host, net, port, joiner, attachment }
    }

    /// Fetches from queue `index` once; the batch is released when the next one is fetched.
    pub fn fetch(&self, index: usize, batch: &mut Batch) -> Tally {
        let mut tally = Tally::default();
        self.joiner.with_queue(index, |queue| {
            queue.release(&mut tally);
            batch.clear();
            queue.fetch(batch, &mut tally);
        });
        tally
    }
}

/// Sends one frame `times` times.
pub fn send(port: &Port, queue: usize, bytes: &[u8], offload: Offload, times: usize) -> Outcome {
    let mut batch = Batch::new();
    frames::push(&mut batch, bytes, offload);
    let mut outcome = Outcome::new();
    match port.egress(queue).unwrap().as_mut() {
        Some(egress) => egress.send(&batch, &vec![0; times], &mut outcome),
        None => outcome.dropped_all(&vec![0; times], DropReason::LinkDown),
    }
    outcome
}

pub fn drops(outcome: &Outcome, reason: DropReason) -> u32 {
    outcome.drops.counts[reason as usize]
}
