//! What is measured: a router on one I/O core of this process between two ring ports, and one thread that is the sender and the
//! receiver by turns.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sidecore_driver::load::pin;
use sidecore_engine::core::Tuning;
use sidecore_engine::fabric::{Attach, CoreOptions, Fabric, Scheduler, Topology};
use sidecore_engine::observe::CounterFile;
use sidecore_engine::port::{PortId, DEFAULT_MTU};
use sidecore_engine::router::{Member, Net, Router, Static, Target};
use sidecore_engine::transport::ring::{RingConfig, RingPort};
use sidecore_engine::wire::Sum;
use sidecore_port::Port;

use super::super::common::{text, Result};
use super::super::peers::Scratch;

/// Bytes of a frame, without check sequence.
pub const SIZE: usize = 60;
/// Gateways that routes lead to.
pub const GATEWAYS: u32 = 16;
/// Frames sent at once.
const BATCH: usize = 128;

/// Stations: the sender's, the gateways', the router's at both.
pub const SENDER: [u8; 6] = [2, 0, 0, 0, 1, 1];
const GATEWAY: [u8; 6] = [2, 0, 0, 0, 1, 2];
const ROUTER: [[u8; 6]; 2] = [[2, 0, 0, 0, 2, 1], [2, 0, 0, 0, 2, 2]];

/// The router's addresses, and those of gateways.
pub fn own4(port: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 255, port, 1)
}

pub fn gateway4(number: u32) -> Ipv4Addr {
    Ipv4Addr::new(10, 255, 1, 2 + (number % GATEWAYS) as u8)
}

fn own6(port: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, port, 0, 0, 0, 1)
}

fn gateway6(number: u32) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 1, 0, 0, 0, 2 + (number % GATEWAYS) as u16)
}

/// A route through the gateway of that number.
pub fn via(address: IpAddr, len: u8, number: u32) -> Static {
    let gateway = if address.is_ipv4() { gateway4(number).into() } else { gateway6(number).into() };
    Static { prefix: Net { address, len }, target: Target::Via(vec![gateway], None) }
}

/// The engine.
pub struct Stage {
    // In this order: who is attached goes before the core that serves it.
    _attachments: Vec<RingPort>,
    fabric: Arc<Fabric>,
    router: Arc<Router>,
    members: Vec<Member>,
    names: [String; 2],
    _counters: CounterFile,
    _scratch: Scratch,
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Frames delivered a second, in millions.
    pub mpps: f64,
    /// Nanoseconds of the I/O core for each frame.
    pub ns: f64,
    /// Frames that were sent and did not arrive.
    pub lost: u64,
}

impl Stage {
    /// A router without routes on processor `io_core`.
    pub fn start(io_core: usize) -> Result<Stage> {
        let tuning = Tuning { spin: Duration::from_secs(3600), balance: false, ..Tuning::default() };
        let options = CoreOptions { cpus: vec![io_core], tuning, ..CoreOptions::default() };
        let fabric = Fabric::start(&options).map_err(text)?;
        let (counters, scratch) =
            (CounterFile::anonymous().map_err(text)?, Scratch::new("sc-router").map_err(text)?);
        let router = Arc::new(Router::new("r").map_err(text)?);
        let (mut attachments, mut members, mut names) = (Vec::new(), Vec::new(), Vec::new());
        for (number, mac) in (0u8..).zip(ROUTER) {
            let (id, name) = (PortId(number.into()), format!("p{number}"));
            let slot = counters.open_slot(id, &name);
            let port = sidecore_engine::port::Port::new(id, &name, slot, DEFAULT_MTU).map_err(text)?;
            let addresses = vec![
                Net { address: own4(number).into(), len: 24 },
                Net { address: own6(number.into()).into(), len: 64 },
            ];
            members.push(Member { port: Arc::new(port), mac, addresses, control: None });
        }
        router.configure(&members, &[], 1);
        let joined = |member: &Member| (Arc::clone(&member.port), Attach::Router(Arc::clone(&router)));
        let all: Vec<_> = members.iter().map(joined).collect();
        fabric.publish(&Arc::new(Topology::new(&all)));
        for member in &members {
            let path = scratch.file(&member.port.name);
            let scheduler = Arc::clone(&fabric) as Arc<dyn Scheduler>;
            let port = RingPort::start(RingConfig::new(&path), Arc::clone(&member.port), scheduler);
            attachments.push(port.map_err(text)?);
            names.push(path.to_string_lossy().into_owned());
        }
        let names = names.try_into().map_err(|_| "two ports")?;
        Ok(Stage {
            _attachments: attachments,
            fabric,
            router,
            members,
            names,
            _counters: counters,
            _scratch: scratch,
        })
    }

    /// Has exactly these routes beside its own; how many seconds that took.
    pub fn routes(&self, routes: &[Static]) -> f64 {
        let begun = Instant::now();
        self.router.configure(&self.members, routes, self.fabric.seconds());
        begun.elapsed().as_secs_f64()
    }

    /// Bytes that the I/O core may touch of the tables.
    pub fn bytes(&self) -> usize {
        self.router.table_bytes()
    }

    /// Has one thread on processor `core` do `what` with both ends.
    pub fn play<R: Send>(&self, core: usize, what: impl FnOnce(&mut Ends) -> Result<R> + Send) -> Result<R> {
        let (names, fabric) = (&self.names, &self.fabric);
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                pin(core).map_err(text)?;
                let attach = |name: &String| Port::attach(name).map_err(text);
                let (from, to) = (attach(&names[0])?, attach(&names[1])?);
                what(&mut Ends { fabric, from, to })
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// Both ends.
pub struct Ends<'s> {
    fabric: &'s Arc<Fabric>,
    from: Port,
    to: Port,
}

/// A frame to `dst` through the router.
pub fn frame(dst: IpAddr) -> [u8; SIZE] {
    let mut frame = [0; SIZE];
    frame[..6].copy_from_slice(&ROUTER[0]);
    frame[6..12].copy_from_slice(&SENDER);
    match dst {
        IpAddr::V4(dst) => {
            frame[12..14].copy_from_slice(&[8, 0]);
            frame[14..26].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0, 0]);
            frame[26..30].copy_from_slice(&[10, 255, 0, 2]);
            frame[30..34].copy_from_slice(&dst.octets());
            let sum = Sum::of(&frame[14..34]).checksum().to_be_bytes();
            frame[24..26].copy_from_slice(&sum);
        }
        IpAddr::V6(dst) => {
            frame[12..14].copy_from_slice(&[0x86, 0xdd]);
            frame[14..22].copy_from_slice(&[0x60, 0, 0, 0, 0, 6, 59, 64]);
            frame[22..38].copy_from_slice(&Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2).octets());
            frame[38..54].copy_from_slice(&dst.octets());
        }
    }
    frame
}

impl Ends<'_> {
    /// Each gateway asks for the router, which knows it then.
    fn announce(&mut self) -> Result<()> {
        let group: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 1);
        for number in 0..GATEWAYS {
            let body = [&GATEWAY[..], &gateway4(number).octets(), &[0; 6], &own4(1).octets()].concat();
            let arp = [&[0xff; 6][..], &GATEWAY, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &body].concat();
            let sender = gateway6(number);
            let mut message =
                [&[135, 0, 0, 0, 0, 0, 0, 0][..], &own6(1).octets(), &[1, 1], &GATEWAY].concat();
            let mut sum = Sum::pseudo(&sender.octets(), &group.octets(), 58, message.len());
            sum.add(&message);
            message[2..4].copy_from_slice(&sum.checksum().to_be_bytes());
            let head = [&[0x33, 0x33, 0xff, 0, 0, 1][..], &GATEWAY, &[0x86, 0xdd]].concat();
            let fixed = [0x60, 0, 0, 0, 0, 32, 58, 255];
            let nd = [&head[..], &fixed, &sender.octets(), &group.octets(), &message].concat();
            for frame in [arp, nd] {
                if !self.to.tx[0].push(&frame) {
                    return Err("the gateways cannot speak".to_owned());
                }
            }
        }
        self.to.tx[0].sync().map_err(text)?;
        while !self.to.tx[0].is_drained() {
            std::thread::yield_now();
        }
        self.drain().map(drop)
    }

    fn drain(&mut self) -> Result<u64> {
        self.to.rx[0].sync().map_err(text)?;
        Ok(self.to.rx[0].skip(usize::MAX).0 as u64)
    }

    /// Sends `frames` over and over for as long as `time`.
    pub fn measure(&mut self, frames: &[[u8; SIZE]], time: Duration) -> Result<Sample> {
        self.announce()?;
        let mut next = frames.iter().cycle();
        let (mut sent, mut got) = (0u64, 0u64);
        let status = |fabric: &Fabric| fabric.status().first().map_or((0, 0), |it| (it.busy_ns, it.frames));
        let before = status(self.fabric);
        let start = Instant::now();
        while start.elapsed() < time {
            for _ in 0..16 {
                let tx = &mut self.from.tx[0];
                for _ in 0..BATCH.min(tx.space()) {
                    let (Some(buffer), Some(frame)) = (tx.buffer(), next.next()) else { break };
                    buffer[..SIZE].copy_from_slice(frame);
                    tx.commit(SIZE, false);
                    sent += 1;
                }
                tx.sync().map_err(text)?;
                got += self.drain()?;
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        while !self.from.tx[0].is_drained() {
            got += self.drain()?;
        }
        got += self.drain()?;
        let after = status(self.fabric);
        let ns = (after.0 - before.0) as f64 / (after.1 - before.1).max(1) as f64;
        Ok(Sample { mpps: got as f64 / seconds / 1e6, ns, lost: sent.saturating_sub(got) })
    }
}
