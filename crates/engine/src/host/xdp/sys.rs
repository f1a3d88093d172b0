//! The system calls that make an AF_XDP socket.
//!
//! Invariant of the `unsafe` here: every option gets a value of exactly the type that it calls for, and
//! the kernel keeps none of them after the call. The frame memory that a socket is given is a mapping that
//! the queues of that socket share, so it lives as long as either of them; the socket itself pins its pages.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

use libc::{c_int, SOL_XDP};
use rustix::net::{socket_with, AddressFamily, SocketFlags, SocketType};

use super::rings::{Layout, Rings, XskRing, SLOTS};
use crate::host::interface::{self, option, set_buffer, set_option};
use crate::host::mapping::Mapping;
use crate::open::broker::{obtain, Request};

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
    let family = u16::try_from(libc::AF_XDP).map_err(|_| io::ErrorKind::InvalidInput)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(AddressFamily::from_raw(family), SocketType::RAW, flags, None)?;
    let bytes = c_int::try_from(buffer).map_err(|_| io::ErrorKind::InvalidInput)?;
    set_buffer(&fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, bytes)?;
    Ok(fd)
}

/// A socket for the interface `name` with rings and frame memory `umem`, of chunks of `chunk` bytes.
pub(super) fn open(name: &str, umem: &Mapping, bytes: usize, chunk: u32) -> io::Result<(OwnedFd, Rings)> {
    let request = Request::Xdp { name: name.to_owned(), buffer: BUFFER };
    let fd = obtain(&request, &[], || socket_here(BUFFER))?;
    let register = libc::xdp_umem_reg {
        addr: umem.address() as u64,
        len: bytes as u64,
        chunk_size: chunk,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    // SAFETY: all-zero bytes are valid offsets.
    let mut offsets: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
    // SAFETY: XDP_UMEM_REG takes an xdp_umem_reg that describes a mapping; the rings' options take a number of
    // entries; XDP_MMAP_OFFSETS fills in xdp_mmap_offsets.
    unsafe {
        set_option(&fd, SOL_XDP, libc::XDP_UMEM_REG, &register)?;
        let rings =
            [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING];
        for ring in rings {
            set_option(&fd, SOL_XDP, ring, &SLOTS)?;
        }
        option(&fd, SOL_XDP, libc::XDP_MMAP_OFFSETS, &mut offsets)?;
    }
    let layout = |o: &libc::xdp_ring_offset| -> io::Result<Layout> {
        let at = |n: u64| usize::try_from(n).map_err(|_| io::Error::from(io::ErrorKind::InvalidData));
        Ok(Layout {
            producer: at(o.producer)?,
            consumer: at(o.consumer)?,
            entries: at(o.desc)?,
            flags: at(o.flags)?,
        })
    };
    let page = |offset: libc::off_t| u64::try_from(offset).unwrap_or(0);
    let rings = Rings {
        rx: XskRing::map(&fd, page(libc::XDP_PGOFF_RX_RING), layout(&offsets.rx)?, SLOTS)?,
        tx: XskRing::map(&fd, page(libc::XDP_PGOFF_TX_RING), layout(&offsets.tx)?, SLOTS)?,
        fill: XskRing::map(&fd, libc::XDP_UMEM_PGOFF_FILL_RING, layout(&offsets.fr)?, SLOTS)?,
        completion: XskRing::map(&fd, libc::XDP_UMEM_PGOFF_COMPLETION_RING, layout(&offsets.cr)?, SLOTS)?,
    };
    Ok((fd, rings))
}

/// Binds the socket to one queue of an interface. True: without copies.
pub(super) fn bind(fd: &OwnedFd, index: c_int, queue: u32, mode: XdpMode) -> io::Result<bool> {
    let flags = libc::XDP_USE_NEED_WAKEUP
        | match mode {
            XdpMode::Auto => 0,
            XdpMode::Copy => libc::XDP_COPY,
            XdpMode::ZeroCopy => libc::XDP_ZEROCOPY,
        };
    let address = libc::sockaddr_xdp {
        sxdp_family: u16::try_from(libc::AF_XDP).map_err(|_| io::ErrorKind::InvalidInput)?,
        sxdp_flags: flags,
        sxdp_ifindex: index.unsigned_abs(),
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    let mut options = libc::xdp_options { flags: 0 };
    // SAFETY: an AF_XDP socket's address; XDP_OPTIONS fills in xdp_options.
    unsafe {
        interface::bind(fd, &address)?;
        option(fd, SOL_XDP, libc::XDP_OPTIONS, &mut options)?;
    }
    Ok(options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
}

/// Frames that the kernel has dropped since the socket was made: without room in the ring, without a chunk, or
/// longer than one.
pub(super) fn lost(fd: &OwnedFd) -> u64 {
    // SAFETY: all-zero bytes are valid statistics, and XDP_STATISTICS fills in as many as the kernel knows.
    unsafe {
        let mut stats: libc::xdp_statistics = std::mem::zeroed();
        match option(fd, SOL_XDP, libc::XDP_STATISTICS, &mut stats) {
            Ok(()) => stats.rx_dropped + stats.rx_ring_full,
            Err(_) => 0,
        }
    }
}

/// Makes the kernel look at the transmit ring.
pub(super) fn kick_tx(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: no bytes, no address.
    let result = unsafe { libc::sendto(fd.as_raw_fd(), ptr::null(), 0, libc::MSG_DONTWAIT, ptr::null(), 0) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Makes the kernel look at the fill ring.
pub(super) fn kick_rx(fd: &OwnedFd) {
    // It answers nothing that we could act on: what is wrong with the interface, its watcher hears.
    // SAFETY: no bytes, no address.
    let _ = unsafe {
        libc::recvfrom(
            fd.as_raw_fd(),
            ptr::null_mut(),
            0,
            libc::MSG_DONTWAIT,
            ptr::null_mut(),
            ptr::null_mut(),
        )
    };
}
