//! The two ends of a router's path: what is sent, and what of it comes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::Arc;

use sidecore_engine::graph::Graph;
use sidecore_engine::packet::Sum;

use super::super::lane::{udp, End, Flow, Frames, Once, LOST_AFTER, SIZE};
use crate::prelude::*;
use sidecore_pktgen::end::{Blind, Lane};

/// Gateways that routes lead to.
pub const GATEWAYS: u32 = 16;
/// Frames under way at most: what the receiver's ring has room for is not the router's affair.
const WINDOW: u64 = 768;
/// Entries of a virtio port's rings.
const ENTRIES: u16 = 1024;

named! {
    /// What is on either side of a router.
    pub enum Kind {
        /// Ring ports.
        Ring = "ring",
        /// virtio-net over vhost-user.
        Virtio = "virtio",
    }
}

impl Kind {
    /// The far side of such a port.
    pub fn connect(self, path: &Path) -> Result<End> {
        match self {
            Kind::Ring => End::ring(&path.to_string_lossy(), SIZE),
            Kind::Virtio => End::virtio(Frontend::connect(path, START).map_err(text)?, ENTRIES, SIZE, page()),
        }
    }
}

/// Stations: the sender's, the gateways', the router's at both.
pub const SENDER: [u8; 6] = [2, 0, 0, 0, 1, 1];
const GATEWAY: [u8; 6] = [2, 0, 0, 0, 1, 2];
pub const ROUTER: [[u8; 6]; 2] = [[2, 0, 0, 0, 2, 1], [2, 0, 0, 0, 2, 2]];

/// The router's addresses, and those of gateways.
pub fn own4(port: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 255, port, 1)
}

pub fn gateway4(number: u32) -> Ipv4Addr {
    Ipv4Addr::new(10, 255, 1, 2 + (number % GATEWAYS) as u8)
}

pub fn own6(port: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, port, 0, 0, 0, 1)
}

pub fn gateway6(number: u32) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 1, 0, 0, 0, 2 + (number % GATEWAYS) as u16)
}

/// Whether only routes lead there: it is no address of a network between, nor one that no packet may have.
pub fn is_far(it: &IpAddr) -> bool {
    match it {
        IpAddr::V4(it) => !matches!(it.octets(), [0 | 127 | 224..=255, ..] | [10, 255, ..] | [169, 254, ..]),
        IpAddr::V6(it) => it.segments()[0] >> 8 != 0xfd,
    }
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
    /// How far the two processors were from each other.
    pub mode: Mode,
}

/// Both ends.
pub struct Ends<'s> {
    /// The processors of the thread that is both ends, and of the thread that routes.
    pub cpus: [usize; 2],
    /// The graph that has moved the frames, if it is ours.
    pub graph: Option<&'s Arc<Graph>>,
    pub from: End,
    pub to: End,
}

/// A frame to `dst` through the router.
pub fn frame(dst: IpAddr) -> [u8; SIZE] {
    let mut frame = [0; SIZE];
    frame[..6].copy_from_slice(&ROUTER[0]);
    frame[6..12].copy_from_slice(&SENDER);
    match dst {
        IpAddr::V4(dst) => return udp([ROUTER[0], SENDER], [Ipv4Addr::new(10, 255, 0, 2), dst], [0; 2]),
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
    pub fn announce(&mut self) -> Result<()> {
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
                // They go one by one, and wait for room as all senders do.
                until("the gateways can speak", START, Duration::ZERO, || {
                    self.to.room()?;
                    Ok((self.to.send(1, &mut Once(&frame))?.frames > 0).then_some(()))
                })?;
            }
        }
        while !self.to.is_drained()? {
            std::thread::yield_now();
        }
        self.drain().map(drop)
    }

    /// Sends single frames until one comes: a peer that was just connected may not have its rings yet.
    pub fn settle(&mut self, frame: &[u8; SIZE]) -> Result<()> {
        until("a frame arrives", START, Duration::from_millis(1), || {
            if self.from.room()? > 0 {
                self.from.send(1, &mut Once(frame))?;
            }
            Ok((self.drain()? > 0).then_some(()))
        })
    }

    fn drain(&mut self) -> Result<u64> {
        drain(&mut self.to)
    }

    /// Sends `frames` over and over for as long as `time`.
    pub fn measure(&mut self, frames: &[[u8; SIZE]], time: Duration) -> Result<Sample> {
        if self.graph.is_some() {
            self.announce()?;
        }
        let distance = Distance::before(&self.cpus);
        let mut source = Frames { frames, next: 0 };
        let status = |graph: &Graph| graph.status().first().map_or((0, 0), |it| (it.busy_ns, it.frames));
        let before = self.graph.map(|graph| status(graph));
        let (from, to, mut got) = (&mut self.from, &mut self.to, 0);
        let mut flow = Flow::default();
        let seconds = flow.run(from, &mut source, WINDOW, time, || {
            got += drain(to)?;
            Ok(got)
        })?;
        let sent = flow.sent;
        let end = Instant::now();
        until("the last frames are taken", START, Duration::ZERO, || {
            // In this order: what was given back has been delivered before.
            let (drained, came) = (from.is_drained()?, drain(to)?);
            got += came;
            let is_over = drained && came == 0 && (got >= sent || end.elapsed() > LOST_AFTER);
            Ok(is_over.then_some(()))
        })?;
        let mpps = got as f64 / seconds / 1e6;
        let after = self.graph.map(|graph| status(graph));
        let own = before
            .zip(after)
            .map(|(before, after)| (after.0 - before.0) as f64 / (after.1 - before.1).max(1) as f64);
        // A target that polls all the time and keeps no account had all of it.
        let ns = own.unwrap_or(1e3 / mpps);
        Ok(Sample { mpps, ns, lost: sent.saturating_sub(got), mode: distance.after() })
    }
}

/// Takes all that has come; how many.
#[inline]
fn drain(end: &mut End) -> Result<u64> {
    let mut all = 0;
    loop {
        match end.receive(usize::MAX, &mut Blind)?.frames {
            0 => return Ok(all),
            more => all += more as u64,
        }
    }
}
