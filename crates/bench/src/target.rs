//! What is tested: our switch or router, others beside it, or two ports of whatever runs already.
//!
//! Each is started anew for each repetition, on a processor that the tester leaves alone. The Linux bridge
//! has two veth pairs in a network namespace; receive packet steering puts what it does on that processor,
//! too, where it would be part of the sender's system calls otherwise.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};
use sidecore_driver::load::ticks_per_ns;
use sidecore_driver::Listener;

use super::ends::{Kind, PathEnd, Side};
use super::lane::End;
use super::net::{ip, missing};
use super::ours::{Daemon, Spent};
use super::peers::{self, Flows, Ovs, OvsPort, Testpmd, VhostPort};
use crate::prelude::*;
use sidecore_pktgen::end::PortAddress;

/// Our two stations, and the router's at both ports.
pub const STATIONS: Stations = Stations { from: [2, 0x73, 0x63, 0, 0, 1], to: [2, 0x73, 0x63, 0, 0, 2] };
const ROUTER: [[u8; 6]; 2] = [[2, 0x73, 0x63, 0, 1, 1], [2, 0x73, 0x63, 0, 1, 2]];
/// Its address at the second port, and the gateway there, which is our receiver (RFC 5737).
const ROUTER_IP: [u8; 4] = [192, 0, 2, 129];
const GATEWAY_IP: [u8; 4] = [192, 0, 2, 130];
/// The router's addresses with the lengths of their subnets.
pub const ADDRESSES: [&str; 2] = ["192.0.2.1/25", "192.0.2.129/25"];
/// Entries of a virtio port's rings.
const ENTRIES: u16 = 1024;

/// Station addresses of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stations {
    /// The sender.
    pub from: [u8; 6],
    /// The receiver, or the router that frames go to.
    pub to: [u8; 6],
}

/// A candidate.
#[derive(Clone, Debug, PartialEq)]
pub enum Who {
    /// Our learning switch between two virtio ports.
    Switch,
    /// Our router between them.
    Router,
    /// A Linux bridge between two veth pairs.
    Bridge,
    /// DPDK's testpmd, a wire.
    Testpmd,
    /// Open vSwitch with DPDK, as a learning switch or a wire.
    Ovs(Flows),
    /// Two ports that are there, and the station that frames go to.
    Given([PortAddress; 2], Option<[u8; 6]>),
}

impl Who {
    /// Its name in tables and JSON.
    pub fn name(&self) -> &'static str {
        match self {
            Who::Switch => "sidecore",
            Who::Router => "sidecore-router",
            Who::Bridge => "bridge",
            Who::Testpmd => "testpmd",
            Who::Ovs(_) => "ovs",
            Who::Given(..) => "target",
        }
    }
}

/// What a target is started with.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'s> {
    /// Processors of the tester and the target.
    pub cpus: Processors,
    /// Bytes of the longest frame, without check sequence, and the pages that drivers have.
    pub longest: usize,
    pub page: Page,
    /// The daemon whose ports were given.
    pub daemon: Option<&'s Daemon>,
    /// Whether tester and target get real-time priority.
    pub fifo: bool,
}

enum Running {
    Ours(Switch),
    Testpmd(Testpmd),
    Ovs(Ovs),
    Bridge,
    Others,
}

/// A target that runs.
pub struct Target<'s> {
    who: Who,
    running: Running,
    setting: Setting<'s>,
    ends: [PathEnd; 2],
    /// Open vSwitch connects to who listens.
    listeners: [Option<Listener>; 2],
    net: Option<Arc<Net>>,
    /// Where unpinned threads may run.
    anywhere: CpuSet,
    _scratch: Scratch,
}

impl<'s> Target<'s> {
    /// Starts it. On a thread that stays: what it starts ends with it.
    ///
    /// # Errors
    /// It is not installed, or does not start.
    pub fn start(who: &Who, setting: Setting<'s>) -> Result<Target<'s>> {
        let (kind, net) = match who {
            Who::Bridge => (Kind::Veth, Some(veths(2, setting.cpus.io_core)?)),
            _ => (Kind::VhostUser, None),
        };
        Target::between(who, [kind; 2], net, setting)
    }

    /// Starts it between ends of these kinds, where there are veth pairs in `net`; without one they are made
    /// in this thread's namespace.
    ///
    /// # Errors
    /// It is not installed, or does not start.
    pub fn between(
        who: &Who,
        kinds: [Kind; 2],
        net: Option<Net>,
        setting: Setting<'s>,
    ) -> Result<Target<'s>> {
        let scratch = Scratch::new("sc-target")?;
        let mut ends = [0, 1].map(|n| PathEnd::there(kinds[usize::from(n)], n, &scratch.file("")));
        let (mut listeners, core) = ([None, None], setting.cpus.io_core);
        if net.is_none() {
            ends.iter().try_for_each(PathEnd::make)?;
        }
        let link = |words: &str| match &net {
            Some(net) => net.ip(&format!("link {words}")),
            None => ip(&format!("link {words}").split(' ').collect::<Vec<_>>()),
        };
        let running = match who {
            Who::Switch | Who::Router => Running::Ours(ours(who, setting, &ends)?),
            Who::Testpmd => {
                let ports = ends.each_ref().map(|end| VhostPort { path: end.path.clone(), client: false });
                Running::Testpmd(Testpmd::start(core, &ports, 1)?)
            }
            Who::Ovs(flows) => {
                ends = ends.map(PathEnd::of_ovs);
                for (end, listener) in
                    ends.iter().zip(&mut listeners).filter(|it| it.0.kind == Kind::VhostUser)
                {
                    *listener = Some(Listener::new(&end.path).map_err(text)?);
                }
                let port = |end: &PathEnd| match end.kind {
                    Kind::VhostUser => OvsPort::Vhost(end.path.clone()),
                    _ => OvsPort::Tap,
                };
                let ovs = Ovs::start(core, &ends.each_ref().map(port), *flows)?;
                let taps = ends.iter().filter(|end| end.kind == Kind::Tap);
                taps.into_iter().try_for_each(|end| link(&format!("set dev {} up", end.near())))?;
                Running::Ovs(ovs)
            }
            Who::Bridge => {
                link("add br0 type bridge")?;
                ends.iter().try_for_each(|end| link(&format!("set dev {} master br0", end.near())))?;
                link("set br0 up")?;
                Running::Bridge
            }
            Who::Given(..) => Running::Others,
        };
        let (anywhere, net) = (sched_getaffinity(None).map_err(text)?, net.map(Arc::new));
        Ok(Target { who: who.clone(), running, setting, ends, listeners, net, anywhere, _scratch: scratch })
    }

    /// Looks whether the ports that were given are there and take frames of `longest` bytes; of others
    /// nothing is known before they start. A vhost-user switch that is there is not disturbed.
    ///
    /// # Errors
    /// One of them is not, or does not.
    pub fn look(who: &Who, longest: usize) -> Result<()> {
        let Who::Given(ports, _) = who else { return Ok(()) };
        for port in ports {
            match port {
                PortAddress::VhostUser { path, server: false } => {
                    std::fs::metadata(path).map_err(|e| format!("vhost-user:{path}: {e}"))?;
                }
                PortAddress::VhostUser { server: true, .. } => {}
                PortAddress::Ring(_) | PortAddress::Host { .. } => drop(given(port, longest, Page::Small)?),
            }
        }
        Ok(())
    }

    /// Has a thread on the tester's processor do `what`, where the target's interfaces are.
    ///
    /// # Errors
    /// There is no such processor, or `what` fails.
    pub fn play<R: Send>(&mut self, what: impl FnOnce(&mut Self) -> Result<R> + Send) -> Result<R> {
        let (core, net) = (self.setting.cpus.load_core, self.net.clone());
        let work = || {
            pin(core).map_err(text)?;
            what(self)
        };
        match net {
            Some(net) => net.enter(work),
            None => apart(work),
        }
    }

    /// Its two ends, taken by us.
    ///
    /// # Errors
    /// It does not let us.
    pub fn connect(&self) -> Result<[End; 2]> {
        let Setting { longest, page, .. } = self.setting;
        let [a, b] = match &self.who {
            Who::Given(ports, _) => ports.each_ref().map(|port| given(port, longest, page)),
            _ => self.ends().map(|(end, listener)| end.open(listener, longest, page)),
        };
        Ok([a?, b?])
    }

    /// Its two ends with numbered frames of `bytes` bytes.
    ///
    /// # Errors
    /// It does not let us.
    pub fn sides(&self, bytes: usize) -> Result<[Side; 2]> {
        let [a, b] = self.ends().map(|(end, listener)| end.connect(listener, bytes));
        Ok([a?, b?])
    }

    /// Its two ends, where they are virtio ports of ours, of testpmd or of Open vSwitch, for drivers.
    ///
    /// # Errors
    /// It does not let us.
    pub fn frontends(&self) -> Result<[Frontend; 2]> {
        let [a, b] = self.ends().map(|(end, listener)| end.frontend(listener));
        Ok([a?, b?])
    }

    fn ends(&self) -> [(&PathEnd, Option<&Listener>); 2] {
        [0, 1].map(|at| (&self.ends[at], self.listeners[at].as_ref()))
    }

    /// Its own account of its core so far, if it keeps one, in cycles of the time stamp counter.
    ///
    /// # Errors
    /// It does not answer.
    pub fn cycles(&self) -> Result<Option<Spent>> {
        let cycles = match &self.running {
            Running::Ovs(ovs) => ovs.cycles().map(|(busy, idle, frames)| Spent { busy, idle, frames }),
            Running::Ours(switch) => switch.spent().map(|it| {
                let per_ns = ticks_per_ns();
                Spent { busy: it.busy * per_ns, idle: it.idle * per_ns, ..it }
            }),
            _ => return Ok(None),
        };
        cycles.map(Some)
    }

    /// Source and destination of the frames.
    pub fn stations(who: &Who) -> Stations {
        match who {
            Who::Router => Stations { to: ROUTER[0], ..STATIONS },
            Who::Given(_, Some(to)) => Stations { to: *to, ..STATIONS },
            _ => STATIONS,
        }
    }

    /// What the receiver says, so that it is known: to a router that it is the gateway, to a switch that it
    /// is there.
    pub fn hello(&self) -> Vec<u8> {
        if self.who == Who::Router {
            return gateway_says();
        }
        // An EtherType for local experiments (IEEE 802, §9.2.4).
        let mut frame = [&STATIONS.from[..], &STATIONS.to, &[0x88, 0xb5]].concat();
        frame.resize(60, 0);
        frame
    }

    /// Frames that the daemon has dropped so far, by reason; none of others.
    ///
    /// # Errors
    /// It does not answer.
    pub fn drops(&self) -> Result<Option<BTreeMap<String, u64>>> {
        let daemon = match &self.running {
            Running::Ours(switch) => Some(&switch.daemon),
            Running::Others => self.setting.daemon,
            _ => None,
        };
        let Some(daemon) = daemon else { return Ok(None) };
        daemon.drops().map(Some)
    }

    /// The calling thread and the one that moves the target's frames, if it has one of its own, each with its
    /// process. They get real-time priority if that was asked for.
    ///
    /// # Errors
    /// That is not allowed.
    pub fn threads(&self) -> Result<Vec<(u32, u32)>> {
        let own = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
        let process = match &self.running {
            Running::Ours(switch) => Some(switch.process.id()),
            Running::Testpmd(testpmd) => Some(testpmd.id()),
            Running::Ovs(ovs) => Some(ovs.daemon.id()),
            Running::Bridge | Running::Others => None,
        };
        let polling = |process| Some((process, peers::polling_thread(process, self.setting.cpus.io_core)?));
        let threads: Vec<(u32, u32)> =
            std::iter::once((own, this_thread())).chain(process.and_then(polling)).collect();
        let all = threads.iter().filter(|_| self.setting.fifo);
        all.into_iter().try_for_each(|(_, thread)| peers::prioritize(*thread))?;
        Ok(threads)
    }

    /// The tester's processor, and the target's: for ports that were given, what the command line says.
    pub fn cpus(&self) -> [usize; 2] {
        self.setting.cpus.pair()
    }

    /// Whether it is a daemon of ours, for which [`Target::restart`] can be asked.
    pub fn is_ours(&self) -> bool {
        matches!(self.running, Running::Ours(_))
    }

    /// Kills our daemon and starts it again with the same ports, from a thread on the tester's processor.
    ///
    /// # Errors
    /// It does not start.
    pub fn restart(&mut self) -> Result<[PathBuf; 2]> {
        if let Running::Ours(switch) = &mut self.running {
            switch.process.kill();
        }
        // What it starts is not to be where we are, nor as urgent.
        if self.setting.fifo {
            peers::unprioritize(this_thread())?;
        }
        sched_setaffinity(None, &self.anywhere).map_err(text)?;
        let again = ours(&self.who, self.setting, &self.ends);
        pin(self.setting.cpus.load_core).map_err(text)?;
        self.running = Running::Ours(again?);
        Ok(self.ends.each_ref().map(|end| end.path.clone()))
    }
}

/// Our daemon with two virtio ports.
fn ours(who: &Who, setting: Setting<'_>, ends: &[PathEnd; 2]) -> Result<Switch> {
    let routed = *who == Who::Router;
    let port = |(number, end): (usize, &PathEnd)| {
        let socket = end.spec();
        if !routed {
            return socket;
        }
        let mac = ROUTER[number].map(|byte| format!("{byte:02x}")).join(":");
        format!("{socket},router=r,router-mac={mac},address={}", ADDRESSES[number])
    };
    let ports: Vec<String> = ends.iter().enumerate().map(port).collect();
    let more: &[&str] = if routed { &["--router", "r"] } else { &[] };
    let switch = Switch::start(setting.cpus.io_core, &ports, more)?;
    if routed {
        route_to_gateway(&switch.daemon, "r")?;
    }
    Ok(switch)
}

/// What the gateway says so that a router with these addresses knows it: an ARP request for the second one
/// (RFC 826).
pub fn gateway_says() -> Vec<u8> {
    let head = [&[0xff; 6][..], &STATIONS.to, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
    let mut frame = [&head[..], &STATIONS.to, &GATEWAY_IP, &[0; 6], &ROUTER_IP].concat();
    frame.resize(60, 0);
    frame
}

/// Has a router send everything to the gateway.
///
/// # Errors
/// The daemon refuses.
pub fn route_to_gateway(daemon: &Daemon, router: &str) -> Result<()> {
    let gateway = GATEWAY_IP.map(|byte| byte.to_string()).join(".");
    daemon.command(&["route", "add", router, "0.0.0.0/0", "via", &gateway]).map(drop)
}

/// Nanoseconds for which these threads had to wait for their processors so far.
pub fn waited(threads: &[(u32, u32)]) -> u64 {
    threads.iter().map(|(process, thread)| peers::waited(*process, *thread)).sum()
}

/// One of the ports that are there.
fn given(port: &PortAddress, longest: usize, page: Page) -> Result<End> {
    match port {
        PortAddress::Ring(name) => End::ring(name, longest),
        PortAddress::VhostUser { path, server } => {
            let frontend = match server {
                true => Listener::new(path).and_then(|listener| listener.accept(START)),
                false => Frontend::connect(path, START),
            };
            End::virtio(frontend.map_err(|e| format!("vhost-user:{path}: {e}"))?, ENTRIES, longest, page)
        }
        PortAddress::Host { kind, interface } => End::host(*kind, interface, longest),
    }
}

/// A network namespace with so many veth pairs `near0` and `far0`, and so on, whose received frames processor
/// `core` works on.
pub fn veths(pairs: usize, core: usize) -> Result<Net> {
    let net = Net::quiet()?;
    let mut steer = "mount -t sysfs none /sys".to_owned();
    for number in 0..pairs {
        net.veth(&format!("near{number}"), &format!("far{number}"))?;
        for end in ["near", "far"] {
            steer +=
                &format!(" && echo {:x} > /sys/class/net/{end}{number}/queues/rx-0/rps_cpus", 1u64 << core);
        }
    }
    // /sys shows the namespace of the process that mounts it.
    let space = format!("--net=/proc/{}/ns/net", net.id());
    let mut command = Command::new("nsenter");
    command.args([&space, "unshare", "--mount", "sh", "-c", &steer]);
    let output = command.output().map_err(missing("util-linux"))?;
    match output.status.success() {
        true => Ok(net),
        false => Err(format!("receive packet steering: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}
