//! Sockets at paths: made where nothing is, with mode and owner set before a client can connect.
//!
//! A socket's file gets its permissions from the socket (`fchmod` before `bind`, less the umask), the rest is
//! done to the file itself by a descriptor of it, never by its path. In a folder in which others may write,
//! the socket is made in a folder of our own within that one, and moved out when it is finished.

use std::borrow::Cow;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{chmod, chownat, fchmod, fstat, AtFlags, FileType, Gid, Mode, Uid};
use rustix::io::Errno;
use rustix::net::{
    bind, connect, listen, socket_with, AddressFamily, SocketAddrUnix, SocketFlags, SocketType,
};

use super::broker::{broker, obtain, Refusal, Request};
use super::folder::{inode, kind, Folder, Inode, Spot};

/// Longest path of a Unix socket: `sun_path` less its final zero.
pub const MAX_PATH: usize = 107;

/// Why a socket cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The kernel would cut it off.
    #[error("socket path \"{}\" has {} bytes; Unix sockets allow {MAX_PATH}", .0.display(), .0.as_os_str().len())]
    PathTooLong(PathBuf),
    /// Something else bears that name.
    #[error("\"{}\" exists and is no socket; remove it or choose another path", .0.display())]
    NoSocket(PathBuf),
    /// Another process has it.
    #[error("another process listens at \"{}\" already (`ss -lxp` says which): stop it or choose another path", .0.display())]
    InUse(PathBuf),
    /// There is nothing that it could be made in.
    #[error("there is no folder for the socket \"{}\"; make it, or choose another path", .0.display())]
    NoFolder(PathBuf),
    /// The system refused.
    #[error("cannot {what} at \"{}\": {source}", path.display())]
    System {
        /// What was tried.
        what: Cow<'static, str>,
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A descriptor that is something else.
    #[error("the descriptor that was passed is no Unix stream socket")]
    BadDescriptor,
}

/// Checks a socket's path as far as that is possible without touching the file system.
///
/// # Errors
/// It is too long.
pub fn check_path(path: &Path) -> Result<(), SocketError> {
    if path.as_os_str().len() > MAX_PATH {
        return Err(SocketError::PathTooLong(path.to_owned()));
    }
    Ok(())
}

/// A socket to be.
#[derive(Clone, Debug)]
pub struct SocketSpec {
    /// Where.
    pub path: PathBuf,
    /// `STREAM`, `SEQPACKET`, or `DGRAM`, to which no client connects.
    pub kind: SocketType,
    /// Permissions of its file; by default those that the umask leaves.
    pub mode: Option<u32>,
    /// User and group of its file; by default ours.
    pub owner: (Option<u32>, Option<u32>),
    /// Connections that may wait.
    pub backlog: i32,
}

/// The file of a socket that we have made. It stays until [`remove`](SocketFile::remove) is called.
pub struct SocketFile(By);

enum By {
    /// By us.
    Us(Spot, Inode),
    /// By the broker, which knows it by a number.
    Broker(u64),
}

impl SocketFile {
    /// Removes the file, unless another one bears its name by now.
    pub fn remove(&self) {
        match &self.0 {
            // What is left has no listener: the next process that wants its place removes it.
            By::Us(spot, is) => drop(spot.remove(*is)),
            // One that has not made it cannot remove it.
            By::Broker(number) => {
                let request = Request::Remove { number: *number };
                drop(broker().map(|broker| broker.ask(&request, &[])));
            }
        }
    }

    /// The file at `path`, which the caller has listened at since it was started: for a process that got the
    /// socket, not the place.
    ///
    /// # Errors
    /// There is no socket.
    pub fn at(path: &Path) -> io::Result<SocketFile> {
        let spot = Spot::at(path)?;
        let stat = fstat(spot.folder.look(&spot.name)?)?;
        match kind(&stat) {
            FileType::Socket => Ok(SocketFile(By::Us(spot, inode(&stat)))),
            _ => Err(Errno::NOTSOCK.into()),
        }
    }
}

/// Makes a socket and its file and listens. A file that a dead process left in its place is removed.
///
/// # Errors
/// Why it cannot be.
pub fn listen_at(wanted: &SocketSpec) -> Result<(OwnedFd, SocketFile), SocketError> {
    check_path(&wanted.path)?;
    let Some(broker) = broker() else { return listen_here(wanted) };
    let path = &wanted.path;
    let request = Request::Listen {
        path: std::path::absolute(path).map_err(system("find the folder of the socket", path))?,
        seqpacket: wanted.kind == SocketType::SEQPACKET,
        mode: wanted.mode,
        owner: wanted.owner,
        backlog: u32::try_from(wanted.backlog).unwrap_or(0),
    };
    let answer = broker.ask(&request, &[]).map_err(|refusal| refused(refusal, path))?;
    let socket = answer.fd.ok_or_else(|| system("listen", path)(io::ErrorKind::InvalidData.into()))?;
    Ok((socket, SocketFile(By::Broker(answer.number))))
}

/// What could not be done for the socket at `path`.
fn system(what: impl Into<Cow<'static, str>>, path: &Path) -> impl FnOnce(io::Error) -> SocketError {
    let (what, path) = (what.into(), path.to_owned());
    move |source| SocketError::System { what, path, source }
}

/// Steps of the errors that are no step's.
const NO_SOCKET: &str = "no socket";
const IN_USE: &str = "in use";
const NO_FOLDER: &str = "no folder";

/// The error as a broker tells it.
pub(crate) fn refusal(error: SocketError) -> Refusal {
    let (step, error) = match error {
        SocketError::NoSocket(_) => (NO_SOCKET.into(), Errno::EXIST.into()),
        SocketError::InUse(_) => (IN_USE.into(), Errno::ADDRINUSE.into()),
        SocketError::NoFolder(_) => (NO_FOLDER.into(), Errno::NOENT.into()),
        SocketError::System { what, source, .. } => (what, source),
        e => ("listen".into(), io::Error::new(io::ErrorKind::InvalidInput, e.to_string())),
    };
    Refusal { error, step: step.into_owned() }
}

/// The error that a broker has told of.
fn refused(refusal: Refusal, path: &Path) -> SocketError {
    let path = path.to_owned();
    match refusal.step.as_str() {
        NO_SOCKET => SocketError::NoSocket(path),
        IN_USE => SocketError::InUse(path),
        NO_FOLDER => SocketError::NoFolder(path),
        "" => SocketError::System { what: "listen".into(), path, source: refusal.error },
        _ => SocketError::System { what: refusal.step.into(), path, source: refusal.error },
    }
}

/// As `listen`, carried out by this process.
pub(crate) fn listen_here(wanted: &SocketSpec) -> Result<(OwnedFd, SocketFile), SocketError> {
    let path = &wanted.path;
    let spot = spot(path)?;
    let (socket, is) = loop {
        match make(&spot, wanted) {
            Ok(made) => break made,
            Err((_, e)) if e.raw_os_error() == Some(Errno::ADDRINUSE.raw_os_error()) => {
                remove_stale(&spot, wanted.kind)?;
            }
            Err((what, e)) => return Err(system(what, path)(e)),
        }
    };
    let file = SocketFile(By::Us(spot, is));
    if wanted.kind != SocketType::DGRAM {
        listen(&socket, wanted.backlog).map_err(|e| {
            file.remove();
            system("listen", path)(e.into())
        })?;
    }
    Ok((socket, file))
}

fn spot(path: &Path) -> Result<Spot, SocketError> {
    Spot::at(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => SocketError::NoFolder(path.to_owned()),
        _ => system("reach the folder of the socket", path)(source),
    })
}

/// Makes a socket with its file, complete. `ADDRINUSE`: something bears the name.
fn make(spot: &Spot, wanted: &SocketSpec) -> Result<(OwnedFd, Inode), (&'static str, io::Error)> {
    let fail = |what: &'static str| move |e: Errno| (what, io::Error::from(e));
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, wanted.kind, flags, None).map_err(fail("make a socket"))?;
    if let Some(mode) = wanted.mode {
        // Before `bind` this decides what permissions the file will have.
        fchmod(&socket, Mode::from_raw_mode(mode)).map_err(fail("set the mode of the socket"))?;
    }
    if spot.folder.is_tight().map_err(|e| ("listen", e))? {
        let is = make_in(&spot.folder, &spot.name, &socket, wanted)?;
        return Ok((socket, is));
    }
    let (nursery, its_name) = spot.folder.nursery().map_err(|e| ("make a folder for the new socket", e))?;
    let name = std::ffi::OsStr::new("s");
    let made = make_in(&nursery, name, &socket, wanted).and_then(|is| {
        nursery.pass(name, &spot.folder, &spot.name).map(|()| is).map_err(|e| match e {
            Errno::EXIST => fail("listen")(Errno::ADDRINUSE),
            e => fail("move the new socket")(e),
        })
    });
    if made.is_err() {
        // Whatever is left is in a folder of our own, under a name that no process looks up.
        let _ = rustix::fs::unlinkat(&nursery, name, AtFlags::empty());
    }
    let _ = rustix::fs::unlinkat(&spot.folder, &*its_name, AtFlags::REMOVEDIR);
    made.map(|is| (socket, is))
}

/// Binds `socket` to `name` in a folder in which only we may write, and gives its file mode and owner.
fn make_in(
    folder: &Folder,
    name: &std::ffi::OsStr,
    socket: &OwnedFd,
    wanted: &SocketSpec,
) -> Result<Inode, (&'static str, io::Error)> {
    let fail = |what: &'static str| move |e: Errno| (what, io::Error::from(e));
    let address = SocketAddrUnix::new(folder.proc_path(name)).map_err(fail("listen"))?;
    bind(socket, &address).map_err(fail("listen"))?;
    let finish = || {
        let file = folder.look(name).map_err(|e| ("find the socket again", e))?;
        let stat = fstat(&file).map_err(fail("look at the socket"))?;
        if wanted.owner != (None, None) {
            let (user, group) = (wanted.owner.0.map(Uid::from_raw), wanted.owner.1.map(Gid::from_raw));
            chownat(&file, "", user, group, AtFlags::EMPTY_PATH)
                .map_err(fail("set the owner of the socket"))?;
        }
        // What the umask took away.
        if let Some(mode) = wanted.mode.filter(|mode| stat.st_mode & 0o7777 != *mode) {
            let file = format!("/proc/self/fd/{}", file.as_raw_fd());
            chmod(file, Mode::from_raw_mode(mode)).map_err(fail("set the mode of the socket"))?;
        }
        Ok(inode(&stat))
    };
    finish().inspect_err(|_| {
        // Only we may write here, so it is still ours.
        let _ = rustix::fs::unlinkat(folder, name, AtFlags::empty());
    })
}

/// Removes a socket file that a process left behind when it died.
fn remove_stale(spot: &Spot, kind_wanted: SocketType) -> Result<(), SocketError> {
    let path = &spot.path;
    let system = |e| system("replace the old socket", path)(e);
    let file = match spot.folder.look(&spot.name) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(system(e)),
    };
    let stat = fstat(&file).map_err(|e| system(e.into()))?;
    if kind(&stat) != FileType::Socket {
        return Err(SocketError::NoSocket(path.clone()));
    }
    match connect_to(&file, kind_wanted) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            // Gone meanwhile, or another's: the next `bind` will tell.
            spot.remove(inode(&stat)).map(drop).map_err(system)
        }
        Err(e)
            if e.kind() == io::ErrorKind::WouldBlock
                || e.raw_os_error() == Some(Errno::PROTOTYPE.raw_os_error()) =>
        {
            // A full backlog is a listener, too, and so is one of another kind.
            Err(SocketError::InUse(path.clone()))
        }
        Ok(_) => Err(SocketError::InUse(path.clone())),
        Err(e) => Err(system(e)),
    }
}

/// Connects to the socket whose file this is, whatever its name is by now, without waiting.
fn connect_to(file: &OwnedFd, kind: SocketType) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, kind, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))?)?;
    Ok(socket)
}

/// Calls a listener at `path`, without waiting for it to have time.
///
/// # Errors
/// No server listens there, it has no time, or a stranger's link is on the way.
pub fn call(path: &Path) -> io::Result<OwnedFd> {
    let request = Request::Call { path: std::path::absolute(path)? };
    obtain(&request, &[], || call_here(path, SocketType::STREAM))
}

/// As [`call`], carried out by this process, for a socket of this kind.
pub(crate) fn call_here(path: &Path, kind: SocketType) -> io::Result<OwnedFd> {
    connect_to(&super::folder::reach(path)?, kind)
}

/// Calls a listener of this kind at `path` if the socket's file is our own user's. `None`: it is another
/// user's, who learns nothing.
pub(crate) fn call_own(path: &Path, kind: SocketType) -> io::Result<Option<OwnedFd>> {
    let file = super::folder::reach(path)?;
    let is_own = fstat(&file)?.st_uid == rustix::process::geteuid().as_raw();
    is_own.then(|| connect_to(&file, kind)).transpose()
}
