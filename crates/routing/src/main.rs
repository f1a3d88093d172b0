//! The agent of a back-end: see `docs/groups.md`. A static program: it needs nothing of the machine that it
//! is put on.
#![forbid(unsafe_code)]

use std::fs::OpenOptions;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::SocketType;
use sidecore_engine::sandbox::open::socket::{listen_at, SocketSpec};
use sidecore_routing::agent::Agent;
use sidecore_routing::kernel::Kernel;

const USAGE: &str = "usage: sidecore-agent DEVICE | --listen SOCKET

Has this machine's kernel have the routes that a sidecore daemon says by DEVICE, the port of a
virtio-serial device such as /dev/virtio-ports/sidecore.routes, or by a connection to SOCKET.
Runs until it is killed; routes (protocol 83, metric 20) stay.";

/// Bytes of one read.
const READ: usize = 64 << 10;
/// How long the other end may be away before it is looked for again.
const AGAIN: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        ["--version" | "-V"] => {
            println!("sidecore-agent {}", env!("CARGO_PKG_VERSION"));
            return ExitCode::SUCCESS;
        }
        ["--listen", path] => listen(Path::new(path)),
        [path] if !path.starts_with('-') => device(path),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(never) => match never {},
        Err(e) => {
            eprintln!("sidecore-agent: {e}");
            ExitCode::FAILURE
        }
    }
}

/// What never comes.
enum Never {}

fn device(path: &str) -> io::Result<Never> {
    let open = || OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path);
    let named = |e: io::Error| io::Error::new(e.kind(), format!("{path}: {e}"));
    let mut device = open().map_err(named)?;
    let (mut agent, _end) = agent()?;
    loop {
        let Err(e) = talk(&mut agent, &mut device, true);
        eprintln!("sidecore-agent: {path}: {e}: all routes are asked for again");
        agent.again();
    }
}

fn listen(path: &Path) -> io::Result<Never> {
    let (kind, backlog) = (SocketType::STREAM, 128);
    let wanted = SocketSpec { path: path.to_owned(), kind, mode: None, owner: (None, None), backlog };
    // One that an agent before has left, which was killed, is replaced.
    let (listener, _) = listen_at(&wanted).map_err(io::Error::other)?;
    let listener = UnixListener::from(listener);
    listener.set_nonblocking(false)?;
    let (mut agent, _end) = agent()?;
    loop {
        let (mut stream, _) = listener.accept()?;
        stream.set_nonblocking(true)?;
        let Err(e) = talk(&mut agent, &mut stream, false);
        eprintln!("sidecore-agent: {}: the connection ends: {e}", path.display());
        agent.again();
    }
}

/// An agent, and what has to stay while it works.
fn agent() -> io::Result<(Agent, Arc<OwnedFd>)> {
    let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
    let kernel = Kernel::new(Path::new("/proc/self/ns/net"), &end)?;
    Ok((Agent::new(kernel, RandomState::new().build_hasher().finish())?, end))
}

/// Talks by `connection` until that ends; `stays`: its other end may go and come back.
fn talk(agent: &mut Agent, connection: &mut (impl Read + Write + AsFd), stays: bool) -> io::Result<Never> {
    let (mut room, mut out, mut changed, mut is_open) = (vec![0; READ], Vec::new(), false, true);
    loop {
        agent.tick(Instant::now(), changed, &mut out)?;
        match connection.write(&out) {
            // What finds no room is said again.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Ok(some) if some < out.len() => return Err(io::ErrorKind::WriteZero.into()),
            done => drop(done?),
        }
        out.clear();
        let left = agent.due().saturating_duration_since(Instant::now());
        // A port whose other end is away is always readable.
        let left = if is_open { left } else { left.max(AGAIN) };
        let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
        let kernel = PollFd::from_borrowed_fd(agent.kernel().event(), PollFlags::IN);
        let mut fds = [kernel, PollFd::from_borrowed_fd(connection.as_fd(), PollFlags::IN)];
        match poll(if is_open { &mut fds } else { &mut fds[..1] }, Some(&left)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        changed = !fds[0].revents().is_empty() && {
            let heard = agent.kernel().hear()?;
            heard.links || heard.lost
        };
        match connection.read(&mut room) {
            Ok(0) if !stays => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(0) if is_open => {
                is_open = false;
                agent.again();
            }
            Ok(0) => {}
            Ok(len) => {
                is_open = true;
                agent.hear(&room[..len], &mut out)?;
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                is_open = true
            }
            Err(e) => return Err(e),
        }
    }
}
