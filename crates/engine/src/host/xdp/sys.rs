//! The system calls that make an AF_XDP socket.
//!
//! The frame memory that a socket is given is a mapping that the queues of that socket share, so it lives as
//! long as either of them; the socket itself pins its pages.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XdpOptionsFlags, XdpRingOffset, XdpUmemReg, XdpUmemRegFlags,
    XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING,
};
use rustix::net::{self, sockopt, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::rings::{Layout, Rings, XskRing, SLOTS};
use crate::host::interface::set_send_buffer;
use crate::host::mapping::Mapping;
use crate::sandbox::open::broker::{obtain, Request};

/// Room for frames on their way out: the kernel's copies count as well.
const BUFFER: u32 = 8 << 20;

/// Whether the kernel copies frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpMode {
    /// Only if the driver cannot do without.
    #[default]
    Auto,
    /// Always: works with every driver.
    Copy,
    /// Never: a driver that cannot is an error.
    ZeroCopy,
}

/// A socket without anything, with room for `buffer` bytes on their way out.
pub(crate) fn socket_here(buffer: u32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = net::socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)?;
    set_send_buffer(&fd, buffer)?;
    Ok(fd)
}

/// A socket for the interface `name` with rings and frame memory `umem`, of chunks of `chunk` bytes.
pub(super) fn open(name: &str, umem: &Mapping, bytes: usize, chunk: u32) -> io::Result<(OwnedFd, Rings)> {
    let request = Request::Xdp { name: name.to_owned(), buffer: BUFFER };
    let fd = obtain(&request, &[], || socket_here(BUFFER))?;
    let register = XdpUmemReg {
        addr: umem.address() as u64,
        len: bytes as u64,
        chunk_size: chunk,
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    sockopt::set_xdp_umem_reg(&fd, register)?;
    sockopt::set_xdp_umem_fill_ring_size(&fd, SLOTS)?;
    sockopt::set_xdp_umem_completion_ring_size(&fd, SLOTS)?;
    sockopt::set_xdp_rx_ring_size(&fd, SLOTS)?;
    sockopt::set_xdp_tx_ring_size(&fd, SLOTS)?;
    let offsets = sockopt::xdp_mmap_offsets(&fd)?;
    let layout = |o: &XdpRingOffset| -> io::Result<Layout> {
        let at = |n: u64| usize::try_from(n).map_err(|_| io::Error::from(io::ErrorKind::InvalidData));
        // Kernels before 5.4 have no flags, and no way to wake them that we use.
        let flags = at(o.flags.ok_or(io::ErrorKind::Unsupported)?)?;
        Ok(Layout { producer: at(o.producer)?, consumer: at(o.consumer)?, entries: at(o.desc)?, flags })
    };
    let rings = Rings {
        rx: XskRing::map(&fd, XDP_PGOFF_RX_RING, layout(&offsets.rx)?, SLOTS)?,
        tx: XskRing::map(&fd, XDP_PGOFF_TX_RING, layout(&offsets.tx)?, SLOTS)?,
        fill: XskRing::map(&fd, XDP_UMEM_PGOFF_FILL_RING, layout(&offsets.fr)?, SLOTS)?,
        completion: XskRing::map(&fd, XDP_UMEM_PGOFF_COMPLETION_RING, layout(&offsets.cr)?, SLOTS)?,
    };
    Ok((fd, rings))
}

/// Binds the socket to one queue of an interface. True: without copies.
pub(super) fn bind(fd: &OwnedFd, index: u32, queue: u32, mode: XdpMode) -> io::Result<bool> {
    let copies = match mode {
        XdpMode::Auto => SocketAddrXdpFlags::empty(),
        XdpMode::Copy => SocketAddrXdpFlags::XDP_COPY,
        XdpMode::ZeroCopy => SocketAddrXdpFlags::XDP_ZEROCOPY,
    };
    let flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP | copies;
    net::bind(fd, &SocketAddrXdp::new(flags, index, queue))?;
    Ok(sockopt::xdp_options(fd)?.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
}

/// Frames that the kernel has dropped since the socket was made: without room in the ring, without a chunk,
/// or longer than one.
pub(super) fn lost(fd: &OwnedFd) -> u64 {
    sockopt::xdp_statistics(fd).map_or(0, |stats| stats.rx_dropped + stats.rx_ring_full.unwrap_or(0))
}

/// Makes the kernel look at the transmit ring.
pub(super) fn kick_tx(fd: &OwnedFd) -> io::Result<()> {
    net::send(fd, &[], SendFlags::DONTWAIT)?;
    Ok(())
}

/// Makes the kernel look at the fill ring.
pub(super) fn kick_rx(fd: &OwnedFd) {
    // It answers nothing that we could act on: what is wrong with the interface, its watcher hears.
    let _ = net::recv(fd, &mut [0; 0][..], RecvFlags::DONTWAIT);
}
