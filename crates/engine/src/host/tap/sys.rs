//! The system calls that make a TAP interface and govern its queues.
//!
//! Invariant of the `unsafe` here: every `ioctl` gets a pointer to a live local of exactly the type that
//! its number calls for, and the kernel keeps none of them after the call.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use libc::{c_int, c_ulong};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{open, Mode, OFlags};

use crate::host::interface::{done, ioctl, name_in, request};
use crate::sandbox::open::broker::{broker, Refusal, Request};

/// What TUNSETIFF is asked for at every queue: Ethernet frames without packet information, each behind a
/// virtio-net header.
const BASE: c_int = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;

/// How a queue is attached to an interface.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attach {
    /// Make the interface; fail with EBUSY if there is one of that name.
    pub(crate) create: bool,
    /// The interface has (or may have) several queues.
    pub(crate) multi: bool,
}

/// What an attached descriptor says of its interface.
pub(super) struct Identity {
    /// The interface's name.
    pub(super) name: String,
    /// `IFF_TAP`, `IFF_NO_PI`, …
    flags: c_int,
}

impl Identity {
    pub(super) fn is_tap(&self) -> bool {
        self.flags & libc::IFF_TAP != 0
    }

    pub(super) fn has_packet_info(&self) -> bool {
        self.flags & libc::IFF_NO_PI == 0
    }

    pub(super) fn has_vnet_header(&self) -> bool {
        self.flags & libc::IFF_VNET_HDR != 0
    }
}

/// The step of a refusal: the driver cannot be opened.
pub(super) const DRIVER: &str = "driver";

/// A descriptor that is attached to an interface.
pub(crate) struct Queue {
    pub(crate) fd: OwnedFd,
    /// Any local user may attach one, too.
    pub(crate) for_all: bool,
}

/// A queue of the interface `name` of the calling thread's network namespace, or of the broker's.
pub(super) fn queue(name: &str, how: Attach) -> Result<Queue, Refusal> {
    let Some(broker) = broker() else { return queue_here(name, how) };
    let request = Request::Tap { name: name.to_owned(), create: how.create, multi: how.multi };
    let answer = broker.ask(&request, &[])?;
    let fd = answer.fd.ok_or(io::Error::from(io::ErrorKind::InvalidData))?;
    Ok(Queue { fd, for_all: answer.number != 0 })
}

/// The work itself, for the broker and for a process without one.
pub(crate) fn queue_here(name: &str, how: Attach) -> Result<Queue, Refusal> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let no_driver = |e: rustix::io::Errno| Refusal { error: e.into(), step: DRIVER.to_owned() };
    let fd = open(c"/dev/net/tun", flags, Mode::empty()).map_err(no_driver)?;
    attach(&fd, name, how)?;
    if how.create {
        set_owner(&fd)?;
    }
    Ok(Queue { fd, for_all: !how.create && how.multi && has_no_owner(name) })
}

/// Whether the interface has neither owner nor group; `false` where sysfs does not tell.
fn has_no_owner(name: &str) -> bool {
    let none = |of: &str| {
        std::fs::read_to_string(format!("/sys/class/net/{name}/{of}")).is_ok_and(|id| id.trim() == "-1")
    };
    none("owner") && none("group")
}

/// Sets what takes a value in place of a pointer.
fn set_value(queue: &OwnedFd, request: c_ulong, value: c_ulong) -> io::Result<()> {
    // SAFETY: the three requests that come here read no memory.
    done(unsafe { libc::ioctl(queue.as_raw_fd(), request as _, value) })
}

/// Whether the interface outlives its last descriptor.
pub(in crate::host) fn set_stays(queue: &OwnedFd, stays: bool) -> io::Result<()> {
    set_value(queue, libc::TUNSETPERSIST as c_ulong, stays.into())
}

/// Makes the interface ours: one without an owner lets every user of the host attach a further queue to it.
fn set_owner(queue: &OwnedFd) -> io::Result<()> {
    let user = rustix::process::geteuid().as_raw();
    set_value(queue, libc::TUNSETOWNER as c_ulong, user.into())
}

fn attach(queue: &OwnedFd, name: &str, how: Attach) -> io::Result<()> {
    let mut ifreq = request(name)?;
    let exclusive = if how.create { libc::IFF_TUN_EXCL } else { 0 };
    let multi = if how.multi { libc::IFF_MULTI_QUEUE } else { 0 };
    let [low, high, ..] = (BASE | exclusive | multi).to_le_bytes();
    ifreq.ifr_ifru.ifru_flags = i16::from_le_bytes([low, high]);
    // SAFETY: TUNSETIFF takes an ifreq.
    unsafe { ioctl(queue.as_fd(), libc::TUNSETIFF as c_ulong, &mut ifreq) }
}

/// The interface that `queue` is attached to.
pub(super) fn identity(queue: &OwnedFd) -> io::Result<Identity> {
    let mut ifreq = request("")?;
    let mut ask = || {
        // SAFETY: TUNGETIFF fills in an ifreq, of its union the flags.
        unsafe {
            ioctl(queue.as_fd(), libc::TUNGETIFF as c_ulong, &mut ifreq)?;
            Ok::<_, io::Error>(c_int::from(ifreq.ifr_ifru.ifru_flags) & 0xffff)
        }
    };
    let mut flags = ask()?;
    // The bit of IFF_NO_PI also says that the queue has no socket filter: with a filter that lets
    // everything pass it says what we want to know.
    if flags & libc::IFF_NO_PI != 0 && flags & libc::IFF_TAP != 0 {
        set_pass_all(queue, true)?;
        let asked = ask();
        set_pass_all(queue, false)?;
        flags = asked?;
    }
    Ok(Identity { name: name_in(&ifreq)?, flags })
}

/// Gives all queues of the interface a filter that lets every frame pass, or takes it away.
fn set_pass_all(queue: &OwnedFd, on: bool) -> io::Result<()> {
    // BPF_RET with a constant: keep this many bytes.
    let mut pass = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: u32::MAX };
    let mut program = libc::sock_fprog { len: 1, filter: &mut pass };
    let request = if on { libc::TUNATTACHFILTER } else { libc::TUNDETACHFILTER };
    // SAFETY: both take a sock_fprog, which leads to a program that outlives the call.
    unsafe { ioctl(queue.as_fd(), request as c_ulong, &mut program) }
}

/// Sets the size of the header before each frame, and that it is little-endian as virtio 1.2 has it.
pub(super) fn set_vnet_header(queue: &OwnedFd, size: usize) -> io::Result<()> {
    let mut size = c_int::try_from(size).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut little: c_int = 1;
    // SAFETY: both take an int.
    unsafe {
        ioctl(queue.as_fd(), libc::TUNSETVNETHDRSZ as c_ulong, &mut size)?;
        ioctl(queue.as_fd(), libc::TUNSETVNETLE as c_ulong, &mut little)
    }
}

/// Tells the interface which frames the reader of its queues can take: `TUN_F_…`.
pub(super) fn set_offload(queue: &OwnedFd, bits: u32) -> io::Result<()> {
    set_value(queue, libc::TUNSETOFFLOAD as c_ulong, bits.into())
}

/// Whether the interface is up, as an administrator has it: only then is a queue writable (tun_chr_poll,
/// since Linux 5.2). In whichever namespace it lies, this needs no rights there.
pub(super) fn is_up(queue: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(queue, PollFlags::OUT)];
    poll(&mut fds, Some(&Timespec::default())).is_ok() && fds[0].revents().contains(PollFlags::OUT)
}

/// Puts the interface's carrier up or down.
pub(super) fn set_carrier(queue: &OwnedFd, up: bool) -> io::Result<()> {
    let mut up = c_int::from(up);
    // SAFETY: TUNSETCARRIER takes an int.
    unsafe { ioctl(queue.as_fd(), libc::TUNSETCARRIER as c_ulong, &mut up) }
}
