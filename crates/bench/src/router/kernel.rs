//! The Linux kernel as a router, between two veth pairs in a network namespace.
//!
//! A packet socket puts frames into one pair; the kernel forwards them in the same processor's softirq, and
//! the far end of the other pair counts them. What the sending itself costs is measured, too, with frames
//! that are for another station and go no further, and is taken off: what is left is the price of a forwarded
//! frame, which is favourable to the kernel.

use sidecore_engine::router::{Static, Target};

use super::super::lane::{Flow, Frames, SIZE};
use super::super::net::received;
use super::ends::{gateway4, own4, GATEWAYS, ROUTER};
use crate::prelude::*;
use sidecore_pktgen::end::host;

/// The kernel's router.
pub struct Kernel {
    net: Net,
}

impl Kernel {
    /// With these routes.
    pub fn start(routes: &[Static]) -> Result<Kernel> {
        let net = Net::quiet()?;
        net.set("/proc/sys/net/ipv4/ip_forward")?;
        for i in 0..2u8 {
            net.veth(&format!("near{i}"), &format!("far{i}"))?;
            net.ip(&format!("addr add {}/24 dev near{i}", own4(i)))?;
        }
        // Its station, where frames go to.
        let mac = ROUTER[0].map(|byte| format!("{byte:02x}")).join(":");
        net.ip(&format!("link set near0 address {mac}"))?;
        for number in 0..GATEWAYS {
            let gateway = gateway4(number);
            net.ip(&format!("neigh add {gateway} lladdr 02:00:00:00:01:02 nud permanent dev near1"))?;
        }
        let route = |it: &Static| match &it.target {
            Target::Via(gateways, _) => {
                gateways.first().map(|to| format!("route add {} via {to}\n", it.prefix))
            }
            _ => None,
        };
        let script: String = routes.iter().filter_map(route).collect();
        let file = std::env::temp_dir().join(format!("sc-router-{}", std::process::id()));
        std::fs::write(&file, script).map_err(text)?;
        let loaded = net.ip(&format!("-batch {}", file.display()));
        let _ = std::fs::remove_file(&file);
        loaded?;
        Ok(Kernel { net })
    }

    /// Nanoseconds of a forwarded frame, and how many were forwarded a second.
    pub fn measure(&self, core: usize, frames: &[[u8; SIZE]], time: Duration) -> Result<(f64, f64)> {
        self.net.enter(|| {
            pin(core).map_err(text)?;
            let mut other = ROUTER[0];
            other[5] ^= 1;
            let (alone, _) = send(frames, other, time)?;
            let (whole, arrived) = send(frames, ROUTER[0], time)?;
            Ok(((whole - alone).max(1.0), arrived))
        })
    }
}

/// Sends for so long; nanoseconds a frame, and million frames a second that came out.
fn send(frames: &[[u8; SIZE]], mac: [u8; 6], time: Duration) -> Result<(f64, f64)> {
    let mut opened = host::open(host::Kind::Packet, "far0", 1, SIZE)?;
    let mut lane = opened.lanes.pop().ok_or("the packet socket has no queue")?;
    let mut frames = frames.to_vec();
    frames.iter_mut().for_each(|frame| frame[..6].copy_from_slice(&mac));
    let mut source = Frames { frames: &frames, next: 0 };
    let before = received("far1")?;
    // As much as the host takes.
    let mut flow = Flow::default();
    let seconds = flow.run(&mut lane, &mut source, u64::MAX, time, || Ok(0))?;
    let arrived = received("far1")? - before;
    Ok((seconds * 1e9 / flow.sent.max(1) as f64, arrived as f64 / seconds / 1e6))
}
