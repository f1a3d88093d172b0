//! Figures 8 and 9: what is between the network's cards and the guest's.
//!
//! The daemon serves the guest's two virtio ports; outside are ports of every kind that it has: virtio ports
//! and ring ports of programs, and interfaces of the host (TAP, packet sockets, AF_XDP), of which the kernel
//! does its part; a Linux bridge is between a veth pair and a TAP. Open vSwitch with DPDK serves all four
//! ports instead of the daemon. All of that has one processor, load and guest have the other one: so the
//! load's system calls at interfaces of the host are a part of what limits there, as its own share tells.

use std::path::{Path, PathBuf};

use sidecore_driver::guest_router::{Config, GuestRouter, BUDGET};
use sidecore_driver::Listener;

use super::super::ends::{Kind, PathEnd};
use super::super::lane::End;
use super::super::peers::{Flows, Ovs, OvsPort};
use super::super::rfc2544::traffic::FCS;
use super::super::target::veths;
use super::stage::{hops, lane, traffic, Bench, Placement, Sample, ALONE, GUEST_RING, SIZE};
use super::{tell, Found, Plan};
use crate::prelude::*;

/// Million frames a second that are to be offered.
const LOADS: [f64; 9] = [0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0];
/// Part of the frames for which a load may be late before greater ones are left out.
const LATE: f64 = 0.2;

/// What is between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Ports of this kind of the daemon.
    Ours(Kind),
    /// A Linux bridge, and TAPs of the daemon.
    Bridge,
    /// Open vSwitch with DPDK.
    Ovs,
}

impl Way {
    /// Figure 8.
    pub const ALL: [Way; 7] = [
        Way::Ours(Kind::VhostUser),
        Way::Ours(Kind::Ring),
        Way::Ours(Kind::Xdp),
        Way::Ours(Kind::Packet),
        Way::Ours(Kind::Tap),
        Way::Bridge,
        Way::Ovs,
    ];
    /// Figure 9: what the paper's vhost-net and netmap are here.
    pub const TWO: [Way; 2] = [Way::Ours(Kind::VhostUser), Way::Ours(Kind::Ring)];

    fn name(self) -> &'static str {
        match self {
            Way::Ours(Kind::VhostUser) => "our switch",
            Way::Ours(Kind::Ring) => "ring ports",
            Way::Ours(kind) => kind.name(),
            Way::Bridge => "bridge + tap",
            Way::Ovs => "ovs-dpdk",
        }
    }

    /// What is outside.
    fn kind(self) -> Kind {
        match self {
            Way::Ours(kind) => kind,
            Way::Bridge => Kind::Veth,
            Way::Ovs => Kind::VhostUser,
        }
    }
}

/// A figure of these, and why something is missing.
pub fn all(plan: &Plan, ways: &[Way]) -> Result<Found> {
    let loads = if plan.quick { &LOADS[..2] } else { &LOADS[..] };
    let is_peer = |way: &Way| (way.name(), true);
    let (samples, missing) = beside_peers(plan.rounds, ways, is_peer, |round, way| {
        let samples = one(plan, *way, loads)?;
        tell(round, way.name(), &samples);
        Ok(samples)
    })?;
    let there = ways.iter().zip(samples).filter(|(_, of)| !of.is_empty());
    let row = |(way, of): (&Way, Vec<_>)| {
        let points: Vec<_> = loads.iter().copied().zip(of).collect();
        plan.row(["interconnects", way.name()].map(str::to_owned), &points)
    };
    let rows = there.map(row).collect();
    Ok(Found { rows, notes: missing.into_values().collect(), ..Found::default() })
}

/// Keeps what serves the ports.
enum Server {
    Ours(#[expect(dead_code, reason = "it runs as long as this")] Switch),
    Ovs(#[expect(dead_code, reason = "it runs as long as this")] Ovs),
}

/// All loads of one way.
fn one(plan: &Plan, way: Way, loads: &[f64]) -> Result<Vec<Sample>> {
    let scratch = Scratch::new("sc-vsr")?;
    let dir = scratch.file("");
    let net = match way.kind() {
        Kind::Xdp | Kind::Packet | Kind::Veth => veths(2, plan.cpus.io_core)?,
        _ => Net::quiet()?,
    };
    let ends = [0, 1].map(|number| PathEnd::there(way.kind(), number, &dir));
    let guests = [scratch.file("g0"), scratch.file("g1")];
    let listen = |path: &PathBuf| Listener::new(path).map_err(text);
    // Open vSwitch connects to who listens; the order is that of its ports.
    let listeners = match way {
        Way::Ovs => [&ends[0].path, &guests[0], &guests[1], &ends[1].path]
            .into_iter()
            .map(listen)
            .collect::<Result<Vec<_>>>()?,
        _ => Vec::new(),
    };
    net.enter(|| {
        let _server = serve(plan, way, &ends, &guests, &net)?;
        on(plan.cpus.load_core, || load(plan, &ends, &guests, &listeners, loads))
    })
}

/// Starts what serves the four ports.
fn serve(plan: &Plan, way: Way, ends: &[PathEnd; 2], guests: &[PathBuf; 2], net: &Net) -> Result<Server> {
    if way == Way::Ovs {
        let ports =
            [&ends[0].path, &guests[0], &guests[1], &ends[1].path].map(|path| OvsPort::Vhost(path.clone()));
        return Ovs::start(plan.cpus.io_core, &ports, Flows::Wire).map(Server::Ovs);
    }
    let guest = |path: &Path| format!("vhost-user:{}", path.display());
    let outside = |number: usize| match way {
        Way::Bridge => format!("tap:tap{number}"),
        _ => ends[number].spec(),
    };
    let on = |port: String, switch: &str| format!("{port},switch={switch}");
    let ports = [
        on(outside(0), "in"),
        on(guest(&guests[0]), "in"),
        on(guest(&guests[1]), "out"),
        on(outside(1), "out"),
    ];
    let switches = ["--switch", "in", "--switch", "out"];
    let daemon = Switch::start(plan.cpus.io_core, ports, &switches)?;
    if way == Way::Bridge {
        for number in 0..2 {
            net.ip(&format!("link add br{number} type bridge"))?;
            net.ip(&format!("link set dev tap{number} master br{number} up"))?;
            net.ip(&format!("link set dev near{number} master br{number}"))?;
            net.ip(&format!("link set br{number} up"))?;
        }
    }
    Ok(Server::Ours(daemon))
}

/// Connects load and guest, and offers all loads.
fn load(
    plan: &Plan,
    ends: &[PathEnd; 2],
    guests: &[PathBuf; 2],
    listeners: &[Listener],
    loads: &[f64],
) -> Result<Vec<Sample>> {
    let longest = SIZE - FCS;
    let front = |path: &Path, number: usize| match listeners.get(number) {
        Some(listener) => listener.accept(START).map_err(text),
        None => Frontend::connect(path, START).map_err(text),
    };
    let card =
        |number: usize| lane(front(&guests[number], 1 + number)?, GUEST_RING, [GUEST_RING; 2], longest);
    let end =
        |number: usize| -> Result<End> { ends[number].open(listeners.get(3 * number), longest, Page::Small) };
    let (from, cards, to) = (end(0)?, [card(0)?, card(1)?], end(1)?);
    let config = Config { hops: hops(), cost_ns: plan.cost_ns, budget: BUDGET };
    let vcpu = GuestRouter::new(cards, &config).map_err(text)?.start().map_err(text)?;
    let traffic = traffic(1)?;
    let mut bench = Bench::new(&traffic, [from, to], None, vec![vcpu], Vec::new(), plan.cpus)?;
    bench.place(Placement::IoAlone(ALONE))?;
    let mut samples = Vec::new();
    for load in loads {
        let sample = bench.offer(*load, plan.window)?;
        samples.push(sample);
        if sample.late > LATE {
            break;
        }
    }
    Ok(samples)
}
