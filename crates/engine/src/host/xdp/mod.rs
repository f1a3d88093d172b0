//! AF_XDP: an interface that the host has, as a port, past the host's network stack.
//!
//! Theory of operation. A small program of ours ([`bpf`]) runs in the interface's driver for each received
//! frame and hands it to one of our sockets, before the host sees it. A socket belongs to one receive queue
//! of the interface; it shares four rings and the memory for frames with the kernel ([`rings`]):
//!
//! ```text
//! fill → kernel puts a frame into the chunk → receive ring → described in place → copied → fill
//! transmit ring → kernel sends the frame in the chunk → completion ring → the chunk is free again
//! ```
//!
//! The rings are shared with the kernel, which is trusted; what is in the frames is not. With zero-copy the
//! driver itself reads and writes the chunks; otherwise the kernel copies, which works with every driver. A
//! system call is due only where the kernel asks for it (need-wakeup): with copies for every batch that is
//! sent, with zero-copy while the driver sleeps.
//!
//! What AF_XDP does not carry. No VLAN tags beside a frame: those that a driver takes out, or a sender leaves
//! to it to put in, are lost to us. No offload facts: the switch segments and completes checksums before a
//! frame goes out here. A frame that the kernel hands over with copies may have a checksum that its sender
//! left to hardware that there is not (veth): the field then holds the pseudo header's sum, is recognised by
//! that, and completed (`Offload::half_made`).
//!
//! The program is attached by a link that dies with the daemon, however that dies.

pub(crate) mod bpf;
mod egress;
mod ingress;
mod rings;
pub(crate) mod sys;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::interface::{packet_socket, promiscuous};
use super::mapping::Mapping;
use super::nic::{self, check_queues, failure, no_queues, FoundInterface, InterfacePort, Queues};
use crate::graph::Scheduler;
use crate::packet::Offloads;
use crate::port::{Attachment, Port, MAX_QUEUES};
use egress::XdpEgress;
use ingress::XdpIngress;
use rings::SLOTS;

pub use sys::XdpMode;

const KIND: &str = "xdp";
/// Bytes before each received frame that belong to the kernel (XDP_PACKET_HEADROOM).
const HEADROOM: u32 = 256;
/// Sizes of a chunk.
const CHUNKS: [u32; 2] = [2048, 4096];
/// Bytes of an Ethernet header and two VLAN tags.
const HEADERS: u32 = 14 + 8;
/// The largest MTU whose frames fit into a chunk.
pub const MAX_MTU: u32 = CHUNKS[1] - HEADROOM - HEADERS;

/// An AF_XDP port to be.
#[derive(Clone, Debug)]
pub struct XdpConfig {
    /// The interface.
    pub interface: String,
    /// Queue pairs, 1 to [`MAX_QUEUES`]. None: as many as the interface receives on.
    pub queues: Option<usize>,
    /// MTU to give the interface. None: the port takes over the one that it has.
    pub mtu: Option<u32>,
    /// Whether the kernel copies frames.
    pub mode: XdpMode,
}

/// Opens the interface and gives its queues to `port` and `scheduler`.
///
/// # Errors
/// What is wrong with the configuration, or what the system refused.
pub fn start(
    config: &XdpConfig,
    port: Arc<Port>,
    scheduler: Arc<dyn Scheduler>,
) -> Result<impl Attachment, String> {
    check_queues(KIND, &config.interface, config.queues.unwrap_or(1))?;
    let opened = nic::open(KIND, &config.interface, config.mtu, &port)?;
    let there = opened.interface.receive_queues().map_err(opened.failed("cannot ask for its queues"))?;
    let count = queues(config, there)?;
    let mtu = port.mtu();
    let chunk = CHUNKS.into_iter().find(|chunk| mtu <= chunk - HEADROOM - HEADERS).ok_or_else(|| {
        let hint = "lower it (mtu=…, or ip link set … mtu …), or use a port of kind packet";
        let why = format!("it is {mtu}, at most {MAX_MTU} will do");
        failure(KIND, &config.interface, "frames of its MTU do not fit into a chunk", &why, hint)
    })?;

    let map = bpf::socket_map(u32::try_from(there.max(count)).unwrap_or(u32::MAX))
        .map_err(opened.failed("cannot make a map of sockets"))?;
    let mut made = Queues { needs_all: count == there, sizes: [SLOTS; 2], ..Queues::default() };
    if count < there {
        made.detail =
            format!(", queues 0 to {} of {there}: the host keeps the frames of the others", count - 1);
    }
    let (mut ingress, mut egress, mut copies) = (Vec::new(), Vec::new(), false);
    for queue in 0..u32::try_from(count).unwrap_or(0) {
        let (receives, sends, copied) = add(&opened, config.mode, queue, chunk, &port, &map, &mut made)?;
        ingress.push(receives);
        egress.push(sends);
        copies |= copied;
    }
    let (link, native) = attach(&opened, &map, config.mode)?;
    // Only a packet socket can make an interface promiscuous for as long as it lives.
    let watcher =
        packet_socket(&opened.interface.name, 0).map_err(opened.failed("cannot open a packet socket"))?;
    promiscuous(&watcher, opened.index).map_err(opened.failed("cannot make it promiscuous"))?;

    if opened.interface.takes_tags_out() {
        let name = &opened.interface.name;
        tracing::warn!(
            interface = name,
            "VLAN tags that its driver takes out of frames are lost: if there are any, ethtool -K {name} rxvlan off"
        );
    }
    let word = |yes: bool, a: &str, b: &str| if yes { a } else { b }.to_owned();
    made.features =
        vec![word(native, "native", "generic"), word(copies, "copy", "zerocopy"), "need_wakeup".to_owned()];
    made.keep = vec![link, map, watcher];
    port.set_accepts(Offloads::NONE);
    InterfacePort::start(opened, made, (ingress, egress), port, scheduler)
}

/// How many queues a port has on an interface that receives on `there`.
fn queues(config: &XdpConfig, there: usize) -> Result<usize, String> {
    let count = config.queues.unwrap_or(there);
    let why = match count {
        _ if count > there => format!("it receives on {there}; ask for fewer, or give it more (ethtool -L)"),
        _ if count > MAX_QUEUES => format!(
            "a port has {MAX_QUEUES} at most; give it fewer (ethtool -L), or leave the others to the host (queues={MAX_QUEUES})"
        ),
        _ => return Ok(count),
    };
    Err(no_queues(KIND, &config.interface, count, &why))
}

/// Makes the socket of one queue and adds it: its two directions, and whether the kernel copies.
fn add(
    opened: &FoundInterface,
    mode: XdpMode,
    queue: u32,
    chunk: u32,
    port: &Arc<Port>,
    map: &OwnedFd,
    made: &mut Queues,
) -> Result<(XdpIngress, XdpEgress, bool), String> {
    let bytes = 2 * SLOTS as usize * chunk as usize;
    let umem = Mapping::private(bytes).map_err(opened.failed("cannot map memory for its frames"))?;
    let (fd, rings) = sys::open(&opened.interface.name, &umem, bytes, chunk)
        .map_err(opened.failed("cannot make an AF_XDP socket"))?;
    let zero_copy = bind(&fd, opened, queue, mode).map_err(|e| bind_error(opened, e))?;
    bpf::put_socket(map, queue, &fd).map_err(opened.failed("cannot enter a socket into the map"))?;
    let (port, state) = (Arc::clone(port), Arc::clone(&opened.state));
    let socket = Arc::new(rings::XdpSocket { fd: Arc::new(fd), umem, chunk, port, state });
    made.sockets.push(Arc::clone(&socket.fd));
    let rings::Rings { rx, fill, tx, completion } = rings;
    let ingress = XdpIngress::new(Arc::clone(&socket), rx, fill, !zero_copy);
    Ok((ingress, XdpEgress::new(socket, tx, completion), !zero_copy))
}

/// Binds a socket. The kernel takes a moment to free the queue of a socket that was closed just before.
fn bind(fd: &OwnedFd, opened: &FoundInterface, queue: u32, mode: XdpMode) -> io::Result<bool> {
    for _ in 0..50 {
        match sys::bind(fd, opened.index.unsigned_abs(), queue, mode) {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => thread::sleep(Duration::from_millis(20)),
            result => return result,
        }
    }
    sys::bind(fd, opened.index.unsigned_abs(), queue, mode)
}

fn bind_error(opened: &FoundInterface, source: io::Error) -> String {
    let step = "cannot bind an AF_XDP socket to a queue of it";
    let hint = match source.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::EINVAL) => {
            "its driver has no zero-copy mode, or not for this queue: use mode=copy or mode=auto"
        }
        Some(libc::EBUSY) => {
            "another program has an AF_XDP socket on this queue: end it, or use other queues"
        }
        _ => return opened.failed(step)(source),
    };
    failure(KIND, &opened.interface.name, step, &source, hint)
}

/// Attaches the program for `map` in the driver, or in the stack if the driver cannot. True: in the driver.
fn attach(opened: &FoundInterface, map: &OwnedFd, mode: XdpMode) -> Result<(OwnedFd, bool), String> {
    let step = "the kernel refuses the XDP program, or cannot attach it";
    let name = &opened.interface.name;
    let busy = |e: &io::Error| matches!(e.raw_os_error(), Some(libc::EBUSY | libc::EEXIST));
    let error = match bpf::attach(map, name, opened.index, true) {
        Ok(link) => return Ok((link, true)),
        Err(error) if busy(&error) || mode == XdpMode::ZeroCopy => error,
        Err(native) => {
            match bpf::attach(map, name, opened.index, false) {
                Ok(link) => {
                    tracing::warn!(interface = name, "its driver refuses the XDP program ({native}): it runs in the stack, which is slower");
                    return Ok((link, false));
                }
                Err(error) => error,
            }
        }
    };
    if busy(&error) {
        let hint = "it has another XDP program: take that away (ip link set … xdp off)";
        return Err(failure(KIND, name, step, &error, hint));
    }
    Err(opened.failed(step)(error))
}
