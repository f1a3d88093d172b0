//! Two hosts, each a network namespace, with a cable between them, and a guest on each: a namespace of its
//! own.

use super::super::ours::Spent;
use super::super::tap::address;
use crate::prelude::*;

/// The guests' interface.
pub const GUEST: &str = "eth0";
/// The MTU of the cable: a guest's, headers of VXLAN, and some room.
pub const CABLE: u32 = 1600;
/// Processors to which the kernel moves what devices receive that are made later.
const RPS: &str = "/proc/sys/net/core/rps_default_mask";

/// The kernel's bridges hand frames to its firewall, which nobody has asked for here: this turns it off.
const FIREWALL: [&str; 2] =
    ["/proc/sys/net/bridge/bridge-nf-call-iptables", "/proc/sys/net/bridge/bridge-nf-call-ip6tables"];

/// The address of host `i` on the cable.
pub fn vtep(i: usize) -> String {
    format!("10.9.0.{}", i + 1)
}

named! {
    /// What joins the guests.
    pub enum Candidate {
        /// A daemon on each host, with a TAP for its guest.
        Sidecore = "sidecore",
        /// The kernel's bridge and VXLAN, with a veth pair for its guest.
        Kernel = "kernel",
        /// The kernel, but the second host receives on the second processor (RPS).
        KernelRps = "kernel-rps",
        /// The kernel, but large segments are cut before they go over the cable, as for a card that cannot
        /// do so within VXLAN.
        KernelCut = "kernel-cut",
    }
}

/// All of it. What is first ends first.
pub struct Stage {
    daemons: Vec<Switch>,
    pub guests: [Net; 2],
    hosts: [Net; 2],
}

impl Stage {
    /// Starts it; daemons of ours have an I/O core each.
    pub fn start(candidate: Candidate, io_cores: [usize; 2]) -> Result<Stage> {
        let (guests, hosts) = ([Net::quiet()?, Net::quiet()?], [Net::quiet()?, Net::quiet()?]);
        if candidate == Candidate::KernelRps {
            // Words of 32 bits, the highest first.
            let (word, bit) = (io_cores[1] / 32, io_cores[1] % 32);
            let mask = format!("{:x}{}", 1u32 << bit, ",00000000".repeat(word));
            hosts[1].enter(|| std::fs::write(RPS, mask).map_err(|e| format!("{RPS}: {e}")))?;
        }
        join(&hosts, CABLE)?;
        if candidate == Candidate::KernelCut {
            hosts.iter().try_for_each(|net| net.ip("link set cable gso_max_segs 1"))?;
        }
        let mut stage = Stage { daemons: Vec::new(), guests, hosts };
        for (i, io_core) in io_cores.into_iter().enumerate() {
            match candidate {
                Candidate::Sidecore => stage.ours(i, io_core)?,
                _ => stage.kernel(i)?,
            }
            let guest = &stage.guests[i];
            address(guest, i, GUEST)?;
            guest.ip(&format!("link set {GUEST} up"))?;
        }
        Ok(stage)
    }

    fn ours(&mut self, i: usize, io_core: usize) -> Result<()> {
        let over = format!("vxlan:{},vni=100,peers={},switch=lan", vtep(i), vtep(1 - i));
        let guest = format!("tap:{GUEST},netns={},switch=lan", self.guests[i].path());
        let ports = [("over".to_owned(), over), ("guest".to_owned(), guest)];
        let host = Some(&self.hosts[i]);
        self.daemons.push(Switch::start_in(host, io_core, ports, &["--switch", "lan"])?);
        Ok(())
    }

    fn kernel(&self, i: usize) -> Result<()> {
        let (host, far) = (&self.hosts[i], self.guests[i].id());
        bridge(host, &format!("local {} remote {}", vtep(i), vtep(1 - i)))?;
        host.ip(&format!("link add guest type veth peer name {GUEST} netns {far}"))?;
        host.ip("link set guest master br0 up")
    }

    /// What the daemons' I/O cores did so far; nothing if there are none.
    pub fn spent(&self) -> Result<Vec<Spent>> {
        self.daemons.iter().map(Switch::spent).collect()
    }
}

/// Makes a bridge of the kernel's with a VXLAN device, whose ends are `ends`.
pub fn bridge(host: &Net, ends: &str) -> Result<()> {
    // They are not there if that part of the kernel is not.
    let off = |path: &&str| std::path::Path::new(path).exists().then(|| std::fs::write(path, "0"));
    host.enter(|| FIREWALL.iter().filter_map(off).collect::<std::io::Result<()>>().map_err(text))?;
    host.ip("link add br0 type bridge")?;
    host.ip(&format!("link add over type vxlan id 100 {ends} dstport 4789"))?;
    ["br0 up", "over mtu 1500 master br0 up"].iter().try_for_each(|it| host.ip(&format!("link set {it}")))
}

/// Lays a cable between two namespaces, with this MTU, and gives its ends the addresses of [`vtep`].
pub fn join(nets: &[Net; 2], mtu: u32) -> Result<()> {
    let other = nets[1].id();
    nets[0].ip(&format!("link add cable mtu {mtu} type veth peer name cable mtu {mtu} netns {other}"))?;
    for (i, net) in nets.iter().enumerate() {
        net.ip(&format!("address add {}/24 dev cable", vtep(i)))?;
        net.ip("link set cable up")?;
    }
    Ok(())
}
