//! AF_PACKET: an interface that the host has, as a port, whatever its driver can do.
//!
//! Theory of operation. What the interface receives is ingress here, what is egress here the interface sends
//! (packet(7)). Each queue of the port is one packet socket; with several, the kernel spreads flows over
//! them (PACKET_FANOUT_HASH). The kernel copies received frames into a ring of slots that we have mapped, so
//! a busy core takes them without a system call; we send with one system call for up to 64 frames, straight
//! out of the sender's memory.
//!
//! Every frame carries a virtio-net header (PACKET_VNET_HDR) in both directions: segmentation and checksums
//! cross the switch undone, and half-made checksums are known as such. A VLAN tag that the kernel has taken
//! out is put back.
//!
//! Why these rings. The ring is TPACKET_V2's, which shows each frame at once: version 3 hands over blocks,
//! and a single frame waits a millisecond for its block to end. Slots are small; a frame that does not fit,
//! a 64 KiB segment, say, is queued at the socket instead (PACKET_COPY_THRESH) and read when its slot is
//! reached, so that order is kept. There is no transmit ring: it would copy a frame into the ring before the
//! kernel may look at it, and its slots come back only when the last reader of a frame is done with it.
//!
//! The host goes on using the interface: it sees every frame that we see, and answers if it has an address
//! there. Frames that the host itself sends are not seen (PACKET_IGNORE_OUTGOING).

mod egress;
mod ingress;
mod ring;

use std::sync::Arc;

use super::interface::promiscuous;
use super::nic::{self, check_queues, InterfacePort, Queues};
use crate::graph::Scheduler;
use crate::packet::Offloads;
use crate::port::{Attachment, Port};
use egress::PacketEgress;
use ingress::PacketIngress;
use ring::PacketRing;

const KIND: &str = "packet";
/// What the kernel takes from us.
fn takes() -> Offloads {
    Offloads::CSUM | Offloads::TSO4 | Offloads::TSO6 | Offloads::ECN
}

/// A packet port to be.
#[derive(Clone, Debug)]
pub struct PacketConfig {
    /// The interface.
    pub interface: String,
    /// Queue pairs, 1 to [`MAX_QUEUES`](crate::port::MAX_QUEUES).
    pub queues: usize,
    /// MTU to give the interface. None: the port takes over the one that it has.
    pub mtu: Option<u32>,
}

/// Opens the interface and gives its queues to `port` and `scheduler`.
///
/// # Errors
/// What is wrong with the configuration, or what the system refused.
pub fn start(
    config: &PacketConfig,
    port: Arc<Port>,
    scheduler: Arc<dyn Scheduler>,
) -> Result<impl Attachment, String> {
    check_queues(KIND, &config.interface, config.queues)?;
    let opened = nic::open(KIND, &config.interface, config.mtu, &port)?;
    let mut queues = Queues { features: vec!["vnet_hdr".to_owned()], ..Queues::default() };
    queues.features.extend(takes().to_string().split(',').map(str::to_owned));
    let mtu = opened.interface.mtu().map_err(opened.failed("cannot read its MTU"))?;
    let mut sockets = Vec::new();
    for index in 0..config.queues {
        let fd = ring::open(&opened.interface.name).map_err(opened.failed("cannot open a packet socket"))?;
        let ring = PacketRing::new(&fd, mtu).map_err(opened.failed("cannot make a receive ring"))?;
        queues.sizes[0] = ring.slots();
        // Deaf until all of them are there: none must take a frame that belongs to another.
        ring::set_deaf(&fd, true).map_err(opened.failed("cannot set a filter"))?;
        ring::bind(&fd, opened.index).map_err(opened.failed("cannot bind a packet socket to it"))?;
        if index == 0 {
            promiscuous(&fd, opened.index).map_err(opened.failed("cannot make it promiscuous"))?;
        }
        sockets.push((Arc::new(fd), ring));
    }
    let fds: Vec<_> = sockets.iter().map(|(fd, _)| Arc::clone(fd)).collect();
    if fds.len() > 1 {
        ring::fan_out(&fds).map_err(opened.failed("cannot spread its frames over queues"))?;
        queues.features.push("fanout".to_owned());
    }
    let (mut ingress, mut egress) = (Vec::new(), Vec::new());
    for (fd, ring) in sockets {
        let state = Arc::clone(&opened.state);
        let receives = PacketIngress::new(Arc::clone(&fd), ring, Arc::clone(&port), state);
        ingress.push(receives.map_err(opened.failed("cannot map memory for its frames"))?);
        egress.push(PacketEgress::new(Arc::clone(&fd), Arc::clone(&port)));
        queues.sockets.push(fd);
    }
    port.set_accepts(takes());
    for fd in &fds {
        ring::set_deaf(fd, false).map_err(opened.failed("cannot take a filter away"))?;
    }
    InterfacePort::start(opened, queues, (ingress, egress), port, scheduler)
}
