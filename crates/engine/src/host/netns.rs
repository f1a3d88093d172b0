//! Sockets and addresses in another network namespace; for TAPs see `tap/inside.rs`.
//!
//! Theory of operation. A socket stays in the namespace of the thread that made it. So a process that may
//! enter a namespace makes the socket there, on a thread that enters and ends, and passes it on; the user of
//! the socket never leaves its own namespace. With a broker, the broker does so. A socket that changes
//! something needs rights there at each message, which the daemon has not. So the daemon has sockets that
//! only report, and asks the broker for changes.
//!
//! A TAP for a control plane outlives its daemon: the interface, its addresses and the routing daemons'
//! knowledge of it stay, without a carrier, until the next daemon takes it or its port is deleted.
//!
//! Invariant of the `unsafe` here: every `ioctl` gets a pointer to a live local of exactly the type that its
//! number calls for, and the kernel keeps none of them after the call.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libc::{c_ulong, IFA_ADDRESS, IFA_LOCAL};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{open as open_file, Mode, OFlags};
use rustix::net::netlink::SOCK_DIAG;
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{listen, send, socket_with, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};

use super::interface::{netlink_socket, netlink_socket_of, set_receive_buffer, Interface};
use super::netlink::{self, kind, Builder};
use crate::sandbox::open::broker::{have_done, obtain, Request};
pub use crate::sandbox::open::broker::{AddressIn, Socket};

/// Where zebra connects to (FRR's documentation of FPM).
pub const FPM: u16 = 2620;

/// Where named namespaces are (ip-netns(8)).
const NAMED: &str = "/run/netns";

/// The path of the namespace `text`: a name, or a path.
#[must_use]
pub fn path(text: &str) -> PathBuf {
    match text.contains('/') {
        true => PathBuf::from(text),
        false => Path::new(NAMED).join(text),
    }
}

/// What tells the namespace at this path from another that was made there; `None`: there is none.
#[must_use]
pub fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|it| (it.dev(), it.ino()))
}

/// Why `text` can be neither, if it cannot: names are ip-netns(8)'s, and paths lead where they say.
#[must_use]
pub fn complaint(text: &str) -> Option<String> {
    let name = || !text.is_empty() && text.len() < 256 && !matches!(text, "." | "..");
    let good = match text.contains('/') {
        true => text.starts_with('/') && !text.split('/').any(|part| matches!(part, "." | "..")),
        false => name(),
    };
    let allowed =
        "allowed: a name as of `ip netns add`, or a path from / on without . and .., of letters, digits and marks";
    (!good || text.bytes().any(|b| !b.is_ascii_graphic()))
        .then(|| format!("{text:?} is no network namespace; {allowed}"))
}

/// The multicast groups of links, neighbours, IPv4 and IPv6 addresses (linux/rtnetlink.h).
const GROUPS: u32 = 0x1 | 0x4 | 0x10 | 0x100;
/// Room for what comes while no thread reads: 20,000 stations that come at once are 40,000 messages, of 768
/// bytes each.
const BUFFER: u32 = 16 << 20;

/// Opens `socket` in the namespace at `netns`.
///
/// # Errors
/// There is no such namespace, or it cannot be entered.
pub fn open(netns: &Path, socket: Socket) -> io::Result<OwnedFd> {
    let request = Request::Inside { netns: netns.to_owned(), socket };
    obtain(&request, &[], || open_here(netns, socket))
}

/// The work itself, for the broker and for a process without one.
pub(crate) fn open_here(netns: &Path, socket: Socket) -> io::Result<OwnedFd> {
    inside(netns, || match socket {
        Socket::Ask => routes(0),
        Socket::Hear => routes(GROUPS),
        Socket::Look => netlink_socket_of(Some(SOCK_DIAG), 0),
        Socket::Listen(port) => {
            Interface::new("lo")?.bring_up_here()?;
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let fd = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
            set_socket_reuseaddr(&fd, true)?;
            rustix::net::bind(&fd, &std::net::SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
            listen(&fd, 4)?;
            Ok(fd)
        }
    })
}

/// A socket of rtnetlink that is told of `groups`, with much room.
pub(super) fn routes(groups: u32) -> io::Result<OwnedFd> {
    let fd = netlink_socket(groups)?;
    set_receive_buffer(&fd, BUFFER)?;
    Ok(fd)
}

/// Gives the interface `name` of the calling thread's namespace a station address and an MTU, and brings it
/// up.
pub(super) fn set_up(name: &str, mac: Option<[u8; 6]>, mtu: u32) -> io::Result<()> {
    let interface = Interface::new(name)?;
    if let Some(mac) = mac {
        set_mac(&interface, mac)?;
    }
    interface.set_mtu_here(mtu)?;
    interface.bring_up_here()
}

/// Sets the MTU of an interface.
///
/// # Errors
/// There is no such namespace or interface, or the system refuses it.
pub fn set_mtu(netns: &Path, name: &str, mtu: u32) -> io::Result<()> {
    let request = Request::MtuIn { netns: netns.to_owned(), name: name.to_owned(), mtu };
    have_done(&request, &[], || set_mtu_here(netns, name, mtu))
}

/// The work itself, for the broker and for a process without one.
pub(crate) fn set_mtu_here(netns: &Path, name: &str, mtu: u32) -> io::Result<()> {
    inside(netns, || Interface::new(name)?.set_mtu_here(mtu))
}

/// Gives an interface an address, or takes it away.
///
/// # Errors
/// There is no such namespace or interface, or the system refuses it.
pub fn set_address(wanted: &AddressIn) -> io::Result<()> {
    have_done(&Request::AddressIn(wanted.clone()), &[], || set_address_here(wanted))
}

/// No duplicate address detection: the IPv6 address is the router's.
const IFA_F_NODAD: u8 = 2;
/// How long the kernel may take over a change.
const PATIENCE: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// The work itself, for the broker and for a process without one.
pub(crate) fn set_address_here(wanted: &AddressIn) -> io::Result<()> {
    inside(&wanted.netns, || {
        let index = Interface::new(&wanted.name)?.index()?;
        let fd = routes(0)?;
        let (family, flags, bytes) = match wanted.address {
            IpAddr::V4(it) => (libc::AF_INET, 0, it.octets().to_vec()),
            IpAddr::V6(it) => (libc::AF_INET6, IFA_F_NODAD, it.octets().to_vec()),
        };
        let family = u8::try_from(family).map_err(|_| io::ErrorKind::InvalidInput)?;
        let fixed = [&[family, wanted.len, flags, 0][..], &index.to_ne_bytes()].concat();
        let (what, how) = match wanted.there {
            true => (kind::NEWADDR, netlink::CREATE | netlink::REPLACE),
            false => (kind::DELADDR, 0),
        };
        let flags = netlink::REQUEST | netlink::ACK | how;
        let message = Builder::new(what, flags, 1, &fixed);
        ask(&fd, &message.with(IFA_LOCAL, &bytes).with(IFA_ADDRESS, &bytes).end())
    })
}

/// Has the kernel do what `message` asks for, which wants an answer.
pub(super) fn ask(fd: &OwnedFd, message: &[u8]) -> io::Result<()> {
    send(fd, message, SendFlags::empty())?;
    said(fd)
}

/// The bytes of the next answer.
pub(super) fn answer(fd: &OwnedFd) -> io::Result<Vec<u8>> {
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&PATIENCE))?;
    let mut answer = vec![0; 8192];
    let (len, _) = rustix::net::recv(fd, &mut answer[..], RecvFlags::empty())?;
    answer.truncate(len);
    Ok(answer)
}

/// The next answer: it is done, or why it is not.
pub(super) fn said(fd: &OwnedFd) -> io::Result<()> {
    let said = match netlink::messages(&answer(fd)?).next() {
        Some(Ok(message)) if message.kind == kind::ERROR => netlink::word(message.body, 0),
        _ => Err(netlink::Malformed),
    };
    match said.map(|errno| i32::from_ne_bytes(errno.to_ne_bytes())) {
        Ok(0) => Ok(()),
        Ok(errno) => Err(io::Error::from_raw_os_error(errno.wrapping_neg())),
        Err(_) => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn set_mac(interface: &Interface, mac: [u8; 6]) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid sockaddr.
    let mut address: libc::sockaddr = unsafe { std::mem::zeroed() };
    address.sa_family = libc::ARPHRD_ETHER;
    for (to, from) in address.sa_data.iter_mut().zip(mac) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    // SAFETY: SIOCSIFHWADDR takes an ifreq with a name and a station address.
    unsafe { interface.ask(libc::SIOCSIFHWADDR as c_ulong, |ifreq| ifreq.ifr_ifru.ifru_hwaddr = address) }
        .map(drop)
}

/// Runs `work` on a thread in the namespace at `netns`, and waits for it.
pub(super) fn inside<T: Send>(netns: &Path, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    // What is no namespace may be a pipe without a writer.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let space = open_file(netns, flags, Mode::empty()).map_err(|e| {
        let why = format!(
            "there is no network namespace \"{}\": {}; `ip netns add NAME` makes one",
            netns.display(),
            io::Error::from(e)
        );
        io::Error::new(io::Error::from(e).kind(), why)
    })?;
    std::thread::scope(|scope| {
        let run = || {
            move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).map_err(|e| {
                let why = format!(
                    "cannot enter the network namespace \"{}\": {}",
                    netns.display(),
                    io::Error::from(e)
                );
                io::Error::new(io::ErrorKind::PermissionDenied, why)
            })?;
            work()
        };
        let thread = std::thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, run)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread in the namespace has failed")))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    #[test]
    fn names_and_paths_of_namespaces() {
        assert_eq!(path("frr"), Path::new("/run/netns/frr"));
        assert_eq!(path("/proc/7/ns/net"), Path::new("/proc/7/ns/net"));
        for good in ["frr", "a.b-c", "..a", "/proc/7/ns/net", "/run/netns/frr"] {
            assert_eq!(complaint(good), None, "{good}");
        }
        let long = "x".repeat(256);
        for bad in [
            "",
            ".",
            "..",
            "../../etc/passwd",
            "a/b",
            "./a",
            "/run/../etc/passwd",
            "a b",
            "a\u{1b}",
            "ä",
            &long,
        ] {
            let why = complaint(bad).unwrap();
            assert!(why.contains("allowed: a name") && !why.contains('\u{1b}'), "{why}");
        }
    }

    #[test]
    fn a_namespace_that_is_not_there_is_told_of() {
        let error = open_here(Path::new("/run/netns/there-is-no-such"), Socket::Ask).unwrap_err();
        assert!(error.to_string().contains("ip netns add"), "{error}");
    }
}
