//! The conversation by which a port is found and attached to.

use std::ffi::OsStr;
use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{recvmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use sidecore_abi::ring::{Answer, Ask, End, Info, Request, EXCLUSIVE, MAX_RINGS, MESSAGE};
use sidecore_abi::vale::field;

use crate::link::Link;
use crate::map::Map;
use crate::vale::{self, is_vale, Vale, ValeError};

/// How long an answer may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
const MAX_FDS: usize = 1 + 3 * MAX_RINGS;

/// Why a port cannot be attached to.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// No daemon listens there.
    #[error("no ring port at \"{}\" ({source}); is the daemon running, and has it a port ring:{name}?", path.display())]
    NotThere {
        /// The name that was asked for.
        name: String,
        /// Its socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another client has it.
    #[error("ring port \"{0}\" is in use by another program")]
    InUse(String),
    /// The daemon said no.
    #[error("ring port \"{name}\" refuses: {reason}")]
    Refused {
        /// The name that was asked for.
        name: String,
        /// Why.
        reason: io::Error,
    },
    /// It is to be made on demand, and the daemon said no.
    #[error("ring port \"{name}\" cannot be made: {source}")]
    NotMade {
        /// The name that was asked for.
        name: String,
        /// Why.
        source: ValeError,
    },
    /// The conversation broke off or makes no sense.
    #[error("the conversation with ring port \"{name}\" failed: {source}")]
    Broken {
        /// The name that was asked for.
        name: String,
        /// What happened.
        source: io::Error,
    },
}

/// The socket of ring port `name`. A name with a slash is a path. Others are files in the directory `ring`
/// beside the daemon's control socket: `$SIDECORE_SOCKET`, or by default `/run/sidecore/control.sock` for
/// root and `$XDG_RUNTIME_DIR/sidecore/control.sock` for others.
pub fn socket_path(name: &str) -> PathBuf {
    if name.contains('/') {
        return PathBuf::from(name);
    }
    directory().join(OsStr::new(name))
}

/// The directory of the sockets of ring ports with plain names.
pub(crate) fn directory() -> PathBuf {
    let set = |key: &str| std::env::var_os(key).filter(|value| !value.is_empty());
    let control = set("SIDECORE_SOCKET").map(PathBuf::from);
    let directory = match (&control, set("XDG_RUNTIME_DIR")) {
        (Some(control), _) => control.parent().unwrap_or(Path::new(".")).to_owned(),
        (None, Some(runtime)) if !rustix::process::geteuid().is_root() => {
            Path::new(&runtime).join("sidecore")
        }
        _ => PathBuf::from("/run/sidecore"),
    };
    directory.join("ring")
}

/// A port's memory and the ends of its rings.
#[derive(Debug)]
pub struct Attached {
    /// The connection: the port stays attached as long as it is open.
    pub control: UnixStream,
    /// What keeps the port if it was made on demand.
    pub lease: Option<Vale>,
    /// The memory.
    pub map: Arc<Map>,
    /// Rings on which we send.
    pub tx: Vec<Link>,
    /// Rings on which we receive.
    pub rx: Vec<Link>,
    /// Host rings on which we send, and on which we receive.
    pub host: (Vec<Link>, Vec<Link>),
}

/// Attaches to port `name`.
///
/// # Errors
/// There is no such port, it is taken, or it refuses.
pub fn attach(name: &str) -> Result<Attached, AttachError> {
    client(name, false)
}

/// Attaches to port `name`, which gets host rings if it has none.
///
/// # Errors
/// As [`attach`]; or those cannot be made.
pub fn attach_with_host(name: &str) -> Result<Attached, AttachError> {
    client(name, true)
}

fn client(name: &str, host: bool) -> Result<Attached, AttachError> {
    let pipe = Pipe::of(name);
    let (base, mut lease) = open(name, pipe.as_ref())?;
    if host {
        lease = Some(open_host(name, &base, lease)?);
    }
    let request = match &pipe {
        Some(pipe) => {
            // One that lies in another port's memory bears its own port's name there.
            let inside = format!("{}{{{}", pipe.port, pipe.name);
            let called = if base == pipe.port { pipe.name } else { &inside };
            Request { pipe: field(called), flags: EXCLUSIVE, ..Request::new(Ask::Pipe, pipe.end as u32) }
        }
        None => Request::new(Ask::Attach, 0),
    };
    take(name, &base, lease, pipe, request)
}

/// Attaches as a monitor of port `name`, which may be in use: `sees` is [`SEES_SENT`], [`SEES_RECEIVED`] or
/// both.
///
/// # Errors
/// There is no such port, or it refuses.
pub fn monitor(name: &str, sees: u32) -> Result<Attached, AttachError> {
    let (base, lease) = open(name, None)?;
    take(name, &base, lease, None, Request::new(Ask::Monitor, sees))
}

/// Sends `request`, and maps what comes.
fn take(
    name: &str,
    base: &str,
    lease: Option<Vale>,
    pipe: Option<Pipe<'_>>,
    request: Request,
) -> Result<Attached, AttachError> {
    let control = call(base)?;
    let (answer, mut fds) = converse(&control, request).map_err(broken(name))?;
    check(name, &answer)?;
    let info = answer.info;
    let (txs, rxs) = (info.tx_rings as usize, info.rx_rings as usize);
    let expected = if pipe.is_some() { 5 } else { 1 + 2 * txs + rxs };
    let as_asked = pipe.as_ref().map_or(0, |pipe| pipe.end as u32) == info.end
        && (txs == 0) == (request.ask == Ask::Monitor as u32);
    if fds.len() != expected || !as_asked {
        let what = format!("{} descriptors came with the answer, for end {} of a pipe", fds.len(), info.end);
        return Err(broken(name)(io::Error::other(what)));
    }
    let mut rest = fds.split_off(1).into_iter();
    let map = Arc::new(Map::new(&fds[0], info).map_err(broken(name))?);
    if let Some(pipe) = pipe {
        let rest: Vec<OwnedFd> = rest.collect();
        if let Ok([tx, rx, far_tx, far_rx]) = <[OwnedFd; 4]>::try_from(rest) {
            let [sends, receives] = pipe.end.rings();
            let tx = vec![Link::of_pipe(&map, sends, tx, far_rx)];
            let rx = vec![Link::of_pipe(&map, receives, rx, far_tx)];
            return Ok(Attached { control, lease, map, tx, rx, host: (Vec::new(), Vec::new()) });
        }
        return Err(broken(name)(io::ErrorKind::InvalidData.into()));
    }
    let kicks: Vec<OwnedFd> = rest.by_ref().take(txs).collect();
    let link =
        |(number, (kick, wake)): (u32, (Option<OwnedFd>, OwnedFd))| Link::new(&map, number, kick, wake);
    let mut tx: Vec<Link> =
        (0..).zip(kicks.into_iter().map(Some).zip(rest.by_ref().take(txs))).map(link).collect();
    let mut rx: Vec<Link> = (info.tx_rings..).zip(rest.map(|wake| (None, wake))).map(link).collect();
    let own = |count: usize| count.saturating_sub(info.host_rings as usize);
    let host = (tx.split_off(own(txs)), rx.split_off(own(rxs)));
    Ok(Attached { control, lease, map, tx, rx, host })
}

/// A pipe's end, as netmap names it: `PORT{PIPE` or `PORT}PIPE`.
struct Pipe<'a> {
    port: &'a str,
    name: &'a str,
    end: End,
}

impl<'a> Pipe<'a> {
    fn of(name: &'a str) -> Option<Pipe<'a>> {
        let at = name.rfind(['{', '}'])?;
        let end = if name[at..].starts_with('{') { End::Master } else { End::Slave };
        Some(Pipe { port: &name[..at], name: &name[at + 1..], end })
    }
}

/// Has a port of VALE's, or one that a pipe needs, made if it is not there. The port's name, and what keeps
/// it. A port that is configured can be used without the socket at which others are asked for.
fn open(name: &str, pipe: Option<&Pipe<'_>>) -> Result<(String, Option<Vale>), AttachError> {
    let port = pipe.map_or(name, |pipe| pipe.port);
    if !is_vale(name) && (pipe.is_none() || name.contains('/')) {
        return Ok((port.to_owned(), None));
    }
    let asked =
        Vale::connect(&vale::socket_path()).and_then(|mut lease| Ok((lease.open(name)?, Some(lease))));
    match asked {
        Err(ValeError::NotThere { .. }) if socket_path(port).exists() => Ok((port.to_owned(), None)),
        asked => asked.map_err(|source| AttachError::NotMade { name: name.to_owned(), source }),
    }
}

/// Has port `base` have host rings; what keeps them.
fn open_host(name: &str, base: &str, lease: Option<Vale>) -> Result<Vale, AttachError> {
    let asked = lease.map_or_else(|| Vale::connect(&vale::socket_path()), Ok).and_then(|mut lease| {
        lease.open(&format!("{base}^"))?;
        Ok(lease)
    });
    asked.map_err(|source| AttachError::NotMade { name: format!("{name}^"), source })
}

/// What port `name` is like, without attaching to it; it may be in use.
///
/// # Errors
/// There is no such port, or it refuses.
pub fn info(name: &str) -> Result<Info, AttachError> {
    request(name, Ask::Info, 0)
}

/// Sets the size of the virtio-net header before each frame of port `name`: 0, 10 or 12 bytes.
///
/// # Errors
/// There is no such port, or there is no such header.
pub fn set_header(name: &str, bytes: u32) -> Result<Info, AttachError> {
    request(name, Ask::SetHeader, bytes)
}

fn request(name: &str, ask: Ask, value: u32) -> Result<Info, AttachError> {
    let (answer, _) = converse(&call(name)?, Request::new(ask, value)).map_err(broken(name))?;
    check(name, &answer)?;
    Ok(answer.info)
}

fn broken(name: &str) -> impl Fn(io::Error) -> AttachError + '_ {
    move |source| AttachError::Broken { name: name.to_owned(), source }
}

fn check(name: &str, answer: &Answer) -> Result<(), AttachError> {
    let busy = Errno::BUSY.raw_os_error().unsigned_abs();
    match answer.errno {
        0 => Ok(()),
        errno if errno == busy => Err(AttachError::InUse(name.to_owned())),
        errno => {
            let reason = io::Error::from_raw_os_error(i32::try_from(errno).unwrap_or(i32::MAX));
            Err(AttachError::Refused { name: name.to_owned(), reason })
        }
    }
}

fn call(name: &str) -> Result<UnixStream, AttachError> {
    let path = socket_path(name);
    UnixStream::connect(&path).map_err(|source| AttachError::NotThere { name: name.to_owned(), path, source })
}

fn converse(mut socket: &UnixStream, request: Request) -> io::Result<(Answer, Vec<OwnedFd>)> {
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    socket.write_all(&request.to_bytes())?;
    let mut bytes = [0; MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut room = [IoSliceMut::new(&mut bytes)];
    let got = recvmsg(socket, &mut room, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?.bytes;
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if got == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    socket.read_exact(&mut bytes[got..])?;
    let answer = Answer::from_bytes(&bytes)
        .ok_or_else(|| io::Error::other("the daemon speaks another language or version"))?;
    Ok((answer, fds))
}
