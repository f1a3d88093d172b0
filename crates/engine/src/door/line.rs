//! Doors that are started, and the way to the one that is asked.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use rustix::net::sockopt::{set_socket_timeout, Timeout};
use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};

use crate::open::broker::{broker, Request};

/// How long a door may take over an answer. It waits for no other process before it gives one.
const ANSWER: Duration = Duration::from_secs(30);

/// Doors that were started.
pub(super) static STARTED: AtomicU64 = AtomicU64::new(0);

/// The door that is there, if one is. One look at a time.
pub(super) static LINE: OnceLock<Mutex<Option<OwnedFd>>> = OnceLock::new();

/// From now on a door receives descriptors, and this process none.
///
/// # Errors
/// It cannot be started.
pub fn start() -> io::Result<()> {
    let first = another()?;
    let _ = LINE.set(Mutex::new(Some(first)));
    Ok(())
}

/// The way to another one.
pub(super) fn another() -> io::Result<OwnedFd> {
    let socket = match broker() {
        Some(broker) => broker.fd(&Request::Door, &[]).map_err(|refusal| refusal.error)?,
        None => return Err(io::Error::other("there is no broker to start one")),
    };
    for which in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&socket, which, Some(ANSWER))?;
    }
    STARTED.fetch_add(1, Ordering::Relaxed);
    Ok(socket)
}

/// Starts a door; the way to it.
pub(crate) fn spawn() -> io::Result<(OwnedFd, Child)> {
    let program = crate::hold::program().ok_or_else(|| io::Error::other("no program for it was named"))?;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let mut command = Command::new(program);
    command.arg0("sidecore").arg("door").env_clear().current_dir("/");
    command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
    // What is typed at a terminal is for the daemon.
    command.process_group(0);
    let child = command.spawn()?;
    crate::hold::raise(&child);
    Ok((ours, child))
}
