//! A network interface of the host, looked up and changed by name, in the network namespace in which it was
//! opened.
//!
//! Invariant of the `unsafe` here: every `ioctl` and `setsockopt` gets a pointer to a live local of exactly
//! the type that its number calls for, and the kernel keeps none of them after the call.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libc::{c_int, c_short, c_ulong, c_void};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{netdevice, socket_with, sockopt, AddressFamily, Protocol, SocketFlags, SocketType};

use crate::sandbox::open::broker::{have_done, obtain, Request};
pub(super) use crate::sandbox::open::broker::{is_interface, MAX_NAME};

/// What the system says to a call that gave `result`.
pub(super) fn done(result: c_int) -> io::Result<()> {
    match result {
        ..0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Calls `ioctl` with a pointer to `argument`.
///
/// # Safety
/// `T` is the type that `request` reads and writes, and pointers in it lead to what it says.
pub(super) unsafe fn ioctl<T>(fd: BorrowedFd<'_>, request: c_ulong, argument: &mut T) -> io::Result<()> {
    let at: *mut T = argument;
    // SAFETY: `at` points to a live `T`, which the caller vouches for as the right type.
    done(unsafe { libc::ioctl(fd.as_raw_fd(), request as _, at.cast::<c_void>()) })
}

/// Sets a socket option.
///
/// # Safety
/// `T` is the type that the option takes, and pointers in it lead to what it says.
pub(super) unsafe fn set_option<T>(fd: &OwnedFd, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of::<T>()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: a live `T` of that length, which the caller vouches for as the right type.
    done(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), len) })
}

/// Reads a socket option into `value`; what the kernel does not know of it stays as it is.
///
/// # Safety
/// `T` is the type that the option fills in, plain data for which any bytes are valid.
pub(super) unsafe fn option<T>(fd: &OwnedFd, level: c_int, name: c_int, value: &mut T) -> io::Result<()> {
    let mut len = libc::socklen_t::try_from(size_of::<T>()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let at = std::ptr::from_mut(value).cast();
    // SAFETY: a live `T` of that length, which the caller vouches for as the right type.
    done(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, at, &mut len) })
}

/// Room for `bytes` on their way out of a socket, beyond the system's limit if we may.
pub(super) fn set_send_buffer(fd: &OwnedFd, bytes: u32) -> io::Result<()> {
    let forced = sockopt::set_socket_send_buffer_size_force(fd, bytes as usize);
    Ok(forced.or_else(|_| sockopt::set_socket_send_buffer_size(fd, bytes as usize))?)
}

/// Room for `bytes` on their way in.
pub(super) fn set_receive_buffer(fd: &OwnedFd, bytes: u32) -> io::Result<()> {
    let forced = sockopt::set_socket_recv_buffer_size_force(fd, bytes as usize);
    Ok(forced.or_else(|_| sockopt::set_socket_recv_buffer_size(fd, bytes as usize))?)
}

/// An empty request about the interface `name`.
pub(super) fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all-zero bytes are a valid ifreq: an empty name and a zero union.
    let mut ifreq: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero.
    let room = ifreq.ifr_name.len() - 1;
    if name.len() > room {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in ifreq.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    Ok(ifreq)
}

/// The name in an answer.
pub(super) fn name_in(ifreq: &libc::ifreq) -> io::Result<String> {
    let bytes: Vec<u8> = ifreq.ifr_name.iter().map(|&c| c.to_ne_bytes()[0]).collect();
    let name = CStr::from_bytes_until_nul(&bytes).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(name.to_string_lossy().into_owned())
}

const ETHTOOL_GFLAGS: u32 = 0x25;
const FLAG_RXVLAN: u32 = 1 << 8;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const UP: c_short = 1;
const RUNNING: c_short = 0x40;
const _: () = assert!(libc::IFF_UP == UP as c_int && libc::IFF_RUNNING == RUNNING as c_int);

/// An interface.
pub(crate) struct Interface {
    socket: OwnedFd,
    pub(super) name: String,
}

impl Interface {
    /// The interface `name` of the calling thread's namespace; whether there is one shows when it is asked.
    pub(crate) fn new(name: &str) -> io::Result<Interface> {
        // Any socket will do (netdevice(7)), and from one of this family nothing can be sent to the network.
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok(Interface { socket, name: name.to_owned() })
    }

    /// Asks the kernel about it, or has it do what `fill` writes into the request.
    ///
    /// # Safety
    /// The request `code` takes an `ifreq` with that in it.
    pub(super) unsafe fn ask(
        &self,
        code: c_ulong,
        fill: impl FnOnce(&mut libc::ifreq),
    ) -> io::Result<libc::ifreq> {
        let mut ifreq = request(&self.name)?;
        fill(&mut ifreq);
        // SAFETY: the caller's.
        unsafe { ioctl(self.socket.as_fd(), code, &mut ifreq)? };
        Ok(ifreq)
    }

    /// Asks its driver, which answers into `question`.
    ///
    /// # Safety
    /// `question` is what its first word says, of linux/ethtool.h.
    unsafe fn ask_driver<const N: usize>(&self, question: &mut [u32; N]) -> io::Result<()> {
        let at = question.as_mut_ptr().cast();
        // SAFETY: SIOCETHTOOL takes an ifreq that leads to what its first word says: the caller's.
        unsafe { self.ask(libc::SIOCETHTOOL as c_ulong, |ifreq| ifreq.ifr_ifru.ifru_data = at) }.map(drop)
    }

    /// Its number.
    pub(crate) fn index(&self) -> io::Result<c_int> {
        let index = netdevice::name_to_index(&self.socket, &self.name)?;
        c_int::try_from(index).map_err(|_| io::ErrorKind::InvalidData.into())
    }

    /// Follows a new name of the interface with number `index`; an error if it is gone.
    pub(super) fn find(&mut self, index: c_int) -> io::Result<()> {
        let mut ifreq = request("")?;
        ifreq.ifr_ifru.ifru_ifindex = index;
        // SAFETY: SIOCGIFNAME takes an ifreq with a number and fills in the name.
        unsafe { ioctl(self.socket.as_fd(), libc::SIOCGIFNAME as c_ulong, &mut ifreq)? };
        let name = name_in(&ifreq)?;
        if self.name != name {
            self.name = name;
        }
        Ok(())
    }

    /// Its MTU.
    pub(super) fn mtu(&self) -> io::Result<u32> {
        // SAFETY: SIOCGIFMTU fills in an ifreq, of its union the MTU.
        let mtu = unsafe { self.ask(libc::SIOCGIFMTU as c_ulong, |_| ())?.ifr_ifru.ifru_mtu };
        u32::try_from(mtu).map_err(|_| io::ErrorKind::InvalidData.into())
    }

    /// Sets its MTU, unless it is that already: a process that may only use the interface may not set it.
    pub(super) fn set_mtu(&self, mtu: u32) -> io::Result<()> {
        if self.mtu()? == mtu {
            return Ok(());
        }
        have_done(&Request::Mtu { name: self.name.clone(), mtu }, &[], || self.set_mtu_here(mtu))
    }

    /// The work itself, for the broker and for a process without one.
    pub(crate) fn set_mtu_here(&self, mtu: u32) -> io::Result<()> {
        let mtu = c_int::try_from(mtu).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: SIOCSIFMTU takes an ifreq.
        unsafe { self.ask(libc::SIOCSIFMTU as c_ulong, |ifreq| ifreq.ifr_ifru.ifru_mtu = mtu) }.map(drop)
    }

    fn flags(&self) -> io::Result<c_short> {
        // SAFETY: SIOCGIFFLAGS fills in an ifreq, of its union the flags.
        Ok(unsafe { self.ask(libc::SIOCGIFFLAGS as c_ulong, |_| ())?.ifr_ifru.ifru_flags })
    }

    /// Whether it is up and has a carrier.
    pub(super) fn carrier(&self) -> io::Result<bool> {
        Ok(self.flags()? & (UP | RUNNING) == UP | RUNNING)
    }

    /// Brings it up, unless it is.
    pub(super) fn bring_up(&self) -> io::Result<()> {
        if self.flags()? & UP != 0 {
            return Ok(());
        }
        have_done(&Request::Up { name: self.name.clone() }, &[], || self.bring_up_here())
    }

    /// The work itself, for the broker and for a process without one.
    pub(crate) fn bring_up_here(&self) -> io::Result<()> {
        let flags = self.flags()? | UP;
        // SAFETY: SIOCSIFFLAGS takes an ifreq.
        unsafe { self.ask(libc::SIOCSIFFLAGS as c_ulong, |ifreq| ifreq.ifr_ifru.ifru_flags = flags) }
            .map(drop)
    }

    /// How many queues it receives on; one if its driver does not say.
    pub(super) fn receive_queues(&self) -> io::Result<usize> {
        // Behind the command: the most of each kind, and how many there are to receive, to send, for other
        // things, for both.
        let mut channels = [ETHTOOL_GCHANNELS, 0, 0, 0, 0, 0, 0, 0, 0];
        // SAFETY: an ethtool_channels.
        let asked = unsafe { self.ask_driver(&mut channels) };
        match asked {
            Ok(()) => {
                let [_, _, _, _, _, receive, _, _, both] = channels;
                Ok((receive + both).max(1) as usize)
            }
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(1),
            Err(e) => Err(e),
        }
    }

    /// Whether its driver takes VLAN tags out of frames.
    pub(super) fn takes_tags_out(&self) -> bool {
        let mut value = [ETHTOOL_GFLAGS, 0];
        // SAFETY: an ethtool_value.
        let asked = unsafe { self.ask_driver(&mut value) };
        asked.is_ok() && value[1] & FLAG_RXVLAN != 0
    }
}

/// A socket of rtnetlink(7) in the calling thread's namespace that is told of `groups`.
pub(super) fn netlink_socket(groups: u32) -> io::Result<OwnedFd> {
    netlink_socket_of(None, groups)
}

/// As [`netlink_socket`], of another protocol of netlink(7).
pub(super) fn netlink_socket_of(protocol: Option<Protocol>, groups: u32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
    rustix::net::bind(&fd, &SocketAddrNetlink::new(0, groups))?;
    Ok(fd)
}

/// Makes the interface with number `index` take frames for any address while `fd`, a packet socket, is open.
pub(super) fn promiscuous(fd: &OwnedFd, index: c_int) -> io::Result<()> {
    let promisc =
        libc::c_ushort::try_from(libc::PACKET_MR_PROMISC).map_err(|_| io::ErrorKind::InvalidInput)?;
    let request = libc::packet_mreq { mr_ifindex: index, mr_type: promisc, mr_alen: 0, mr_address: [0; 8] };
    // SAFETY: PACKET_ADD_MEMBERSHIP takes a packet_mreq.
    unsafe { set_option(fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request) }
}

/// A packet socket for the interface `name` that receives nothing yet: of protocol zero (packet(7)). With
/// room for `buffer` bytes in each direction, if that is not 0.
pub(super) fn packet_socket(name: &str, buffer: u32) -> io::Result<OwnedFd> {
    obtain(&Request::Packet { name: name.to_owned(), buffer }, &[], || packet_socket_here(buffer))
}

/// The work itself, for the broker and for a process without one.
pub(crate) fn packet_socket_here(buffer: u32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
    if buffer > 0 {
        set_receive_buffer(&fd, buffer)?;
        set_send_buffer(&fd, buffer)?;
    }
    Ok(fd)
}
