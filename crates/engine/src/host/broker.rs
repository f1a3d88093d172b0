//! What a broker does for ports on the host's interfaces: the same as a daemon without one, by requests.

use std::io;
use std::os::fd::OwnedFd;

use super::interface::{check_name, packet_socket_here, Interface};
use super::tap::sys::{queue_here, Attach};
use super::xdp::{bpf, sys};
use crate::open::broker::{Answer, Refusal};

/// More than any interface has; a map of sockets takes memory for each.
const MAX_QUEUES: u32 = 4096;
/// More than a socket's buffer is ever asked to have.
const MAX_BUFFER: u32 = 64 << 20;

fn bad(why: &str) -> Refusal {
    io::Error::new(io::ErrorKind::InvalidInput, why.to_owned()).into()
}

fn check_buffer(buffer: u32) -> Result<(), Refusal> {
    (buffer <= MAX_BUFFER).then_some(()).ok_or_else(|| bad("the buffer is too large"))
}

/// A queue of the TAP interface `name`.
pub(crate) fn tap(name: &str, create: bool, multi: bool) -> Result<Answer, Refusal> {
    check_name(name)?;
    let queue = queue_here(name, Attach { create, multi })?;
    Ok(Answer { number: queue.for_all.into(), ..Answer::fd(queue.fd) })
}

/// A packet socket.
pub(crate) fn packet(buffer: u32) -> Result<Answer, Refusal> {
    check_buffer(buffer)?;
    Ok(Answer::fd(packet_socket_here(buffer)?))
}

/// An AF_XDP socket.
pub(crate) fn xdp(buffer: u32) -> Result<Answer, Refusal> {
    check_buffer(buffer)?;
    Ok(Answer::fd(sys::socket_here(buffer)?))
}

/// A map of AF_XDP sockets.
pub(crate) fn sockets(queues: u32) -> Result<Answer, Refusal> {
    if !(1..=MAX_QUEUES).contains(&queues) {
        return Err(bad("that many queues are not possible"));
    }
    Ok(Answer::fd(bpf::socket_map_here(queues)?))
}

/// Puts the second descriptor, a socket, into the first, a map.
pub(crate) fn enter(fds: &[OwnedFd], queue: u32) -> Result<Answer, Refusal> {
    let [map, socket] = fds else { return Err(bad("a map and a socket are needed")) };
    bpf::put_socket_here(map, queue, socket)?;
    Ok(Answer::default())
}

/// Attaches the program for a map to an interface.
pub(crate) fn attach(fds: &[OwnedFd], name: &str, native: bool) -> Result<Answer, Refusal> {
    let [map] = fds else { return Err(bad("a map is needed")) };
    check_name(name)?;
    Ok(Answer::fd(bpf::attach_here(map, Interface::new(name)?.index()?, native)?))
}

/// Sets the MTU of an interface.
pub(crate) fn mtu(name: &str, mtu: u32) -> Result<Answer, Refusal> {
    check_name(name)?;
    Interface::new(name)?.set_mtu_here(mtu)?;
    Ok(Answer::default())
}

/// Brings an interface up.
pub(crate) fn up(name: &str) -> Result<Answer, Refusal> {
    check_name(name)?;
    Interface::new(name)?.bring_up_here()?;
    Ok(Answer::default())
}
