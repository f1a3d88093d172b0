//! The Linux kernel as a router, between two veth pairs in a network namespace.
//!
//! A packet socket puts frames into one pair; the kernel forwards them in the same processor's softirq, and
//! the far end of the other pair counts them. What the sending itself costs is measured, too, with frames
//! that are for another station and go no further, and is taken off: what is left is the price of a forwarded
//! frame, which is favourable to the kernel.

use std::time::{Duration, Instant};

use sidecore_driver::load::pin;
use sidecore_engine::router::{Static, Target};

use super::super::common::{text, Result};
use super::super::lane::{Frames, SIZE};
use super::super::net::{received, Net};
use super::ends::{gateway4, own4, GATEWAYS};
use sidecore_pktgen::end::host;
use sidecore_pktgen::end::Lane;

/// The kernel's router.
pub struct Kernel {
    net: Net,
    /// Its station, where frames go to.
    mac: [u8; 6],
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
        let mac = net.enter(|| mac_of("near0"))?;
        Ok(Kernel { net, mac })
    }

    /// Nanoseconds of a forwarded frame, and how many were forwarded a second.
    pub fn measure(&self, core: usize, frames: &[[u8; SIZE]], time: Duration) -> Result<(f64, f64)> {
        self.net.enter(|| {
            pin(core).map_err(text)?;
            let mut other = self.mac;
            other[5] ^= 1;
            let (alone, _) = send(frames, other, time)?;
            let (whole, arrived) = send(frames, self.mac, time)?;
            Ok(((whole - alone).max(1.0), arrived))
        })
    }
}

/// The station address of an interface of this thread's namespace.
fn mac_of(name: &str) -> Result<[u8; 6]> {
    let output =
        std::process::Command::new("ip").args(["-br", "link", "show", name]).output().map_err(text)?;
    let line = String::from_utf8_lossy(&output.stdout).into_owned();
    let word = line.split_whitespace().nth(2).ok_or("ip link shows no address")?;
    let byte = |pair: &str| u8::from_str_radix(pair, 16).map_err(text);
    let bytes = word.split(':').map(byte).collect::<Result<Vec<u8>>>()?;
    bytes.try_into().map_err(|_| format!("{word} is no address"))
}

/// Sends for so long; nanoseconds a frame, and million frames a second that came out.
fn send(frames: &[[u8; SIZE]], mac: [u8; 6], time: Duration) -> Result<(f64, f64)> {
    let mut opened = host::open(host::Kind::Packet, "far0", 1, SIZE)?;
    let mut lane = opened.lanes.pop().ok_or("the packet socket has no queue")?;
    let mut frames = frames.to_vec();
    frames.iter_mut().for_each(|frame| frame[..6].copy_from_slice(&mac));
    let mut source = Frames { frames: &frames, next: 0 };
    let (before, start) = (received("far1")?, Instant::now());
    let mut sent = 0u64;
    while start.elapsed() < time {
        for _ in 0..16 {
            let room = lane.room()?.min(64);
            sent += lane.send(room, &mut source)?.frames as u64;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let arrived = received("far1")? - before;
    Ok((seconds * 1e9 / sent.max(1) as f64, arrived as f64 / seconds / 1e6))
}
