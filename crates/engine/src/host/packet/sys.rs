//! The system calls that make a packet socket (packet(7)).
//!
//! Invariant of the `unsafe` here: every option gets a value of exactly the type that it calls for, and
//! the kernel keeps none of them after the call.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use libc::{c_int, sockaddr_ll, tpacket_req, tpacket_stats, SOL_PACKET};

use crate::host::interface::{done, option, packet_socket, set_option};

/// Room for frames too large for a slot, and for frames on their way out.
const BUFFER: u32 = 8 << 20;

/// Bytes of the virtio-net header before each frame (PACKET_VNET_HDR): the one without a number of buffers.
pub(super) const HEADER: usize = 10;

fn set(fd: &OwnedFd, name: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: all options that this module sets in this way take an int.
    unsafe { set_option(fd, SOL_PACKET, name, &value) }
}

/// A socket of the kind that we want for the interface `name`, bound to nothing.
pub(super) fn open(name: &str) -> io::Result<OwnedFd> {
    let fd = packet_socket(name, BUFFER)?;
    set(&fd, libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as c_int)?;
    set(&fd, libc::PACKET_VNET_HDR, 1)?;
    set(&fd, libc::PACKET_IGNORE_OUTGOING, 1)?;
    set(&fd, libc::PACKET_COPY_THRESH, 1)?;
    Ok(fd)
}

/// Gives the socket its receive ring.
pub(super) fn set_ring(fd: &OwnedFd, request: &tpacket_req) -> io::Result<()> {
    // SAFETY: PACKET_RX_RING takes a tpacket_req.
    unsafe { set_option(fd, SOL_PACKET, libc::PACKET_RX_RING, request) }
}

/// Lets no frame pass to the socket, or all.
pub(super) fn set_deaf(fd: &OwnedFd, deaf: bool) -> io::Result<()> {
    if !deaf {
        let none: c_int = 0;
        // SAFETY: SO_DETACH_FILTER takes an int, which it does not look at.
        return unsafe { set_option(fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &none) };
    }
    // BPF_RET with a constant: keep no byte.
    let mut nothing = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &mut nothing };
    // SAFETY: SO_ATTACH_FILTER takes a sock_fprog, which leads to a program that outlives the call.
    unsafe { set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program) }
}

/// Binds the socket to the interface with number `index`, for frames of every protocol.
pub(super) fn bind(fd: &OwnedFd, index: c_int) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid address.
    let mut address: sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = u16::try_from(libc::AF_PACKET).map_err(|_| io::ErrorKind::InvalidInput)?;
    address.sll_protocol = u16::try_from(libc::ETH_P_ALL).map_err(|_| io::ErrorKind::InvalidInput)?.to_be();
    address.sll_ifindex = index;
    let len = libc::socklen_t::try_from(size_of::<sockaddr_ll>()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: a live address of that length.
    done(unsafe { libc::bind(fd.as_raw_fd(), std::ptr::from_ref(&address).cast(), len) })
}

/// Makes the kernel spread flows over the sockets.
pub(super) fn fan_out(fds: &[Arc<OwnedFd>]) -> io::Result<()> {
    let hash = libc::PACKET_FANOUT_HASH;
    let mut group: c_int = 0;
    for (index, fd) in fds.iter().enumerate() {
        // The first gets a number that no other group has, and the others join it.
        let unique = if index == 0 { libc::PACKET_FANOUT_FLAG_UNIQUEID } else { 0 };
        // The number in the low half, kind and flags in the high one.
        set(fd, libc::PACKET_FANOUT, group | c_int::from_ne_bytes(((hash | unique) << 16).to_ne_bytes()))?;
        if index == 0 {
            // SAFETY: PACKET_FANOUT fills in an int.
            unsafe { option(fd, SOL_PACKET, libc::PACKET_FANOUT, &mut group)? };
            group &= 0xffff;
        }
    }
    Ok(())
}

/// Frames that found no room since this was asked last.
pub(super) fn lost(fd: &OwnedFd) -> u32 {
    let mut stats = tpacket_stats { tp_packets: 0, tp_drops: 0 };
    // SAFETY: PACKET_STATISTICS fills in a tpacket_stats.
    match unsafe { option(fd, SOL_PACKET, libc::PACKET_STATISTICS, &mut stats) } {
        Ok(()) => stats.tp_drops,
        Err(_) => 0,
    }
}
