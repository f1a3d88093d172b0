//! What a daemon holds alone: its control socket and its counters file.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{flock, FlockOperation};
use rustix::net::SocketType;
use sidecore_engine::observe::CounterFile;
use sidecore_engine::sandbox::open::socket::{listen_at, SocketError, SocketFile, SocketSpec};
use sidecore_engine::sandbox::open::{make_folder, own_file};
use sidecore_engine::state::values::{Mode, Owner};

/// Connections that may wait. A client that does not block finds no place in a full queue, and fails: a flood
/// must not fill it.
const BACKLOG: i32 = 1024;

/// How long a daemon that was killed may take to end, with its locks, and how often that is looked at.
const DYING: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(10);

/// The counters file, which is this process's own until this is dropped.
pub struct Claim {
    /// The file.
    pub file: File,
    /// Every reader of the counters may lock that file: what is locked is another one beside it, which no
    /// other user can open.
    _lock: File,
    /// The paths of both, if they were made for a daemon that has not started yet.
    made: Option<[PathBuf; 2]>,
}

impl Claim {
    /// The daemon runs: what it counts stays behind when it ends.
    pub fn keep(&mut self) {
        self.made = None;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // A daemon that could not start has nothing to be read.
        for path in self.made.iter().flatten() {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// What a user who may not use the usual folder can do.
fn advice(path: &Path) -> &'static str {
    let usual = path.starts_with("/run/sidecore") && !rustix::process::geteuid().is_root();
    if usual && std::env::var_os("XDG_RUNTIME_DIR").is_none_or(|value| value.is_empty()) {
        "; that folder is root's, and XDG_RUNTIME_DIR, which names one of yours, is not set: set it, or choose a path with --socket"
    } else {
        ""
    }
}

/// Takes the counters file at `path` for this process.
/// Making it anew would cut it short under a daemon that still writes to it.
pub fn claim(path: &Path) -> Result<Claim, String> {
    let fail = |e: io::Error| {
        match e.kind() {
        ErrorKind::NotFound => format!(
            "there is no folder for the counters file {}; make it, or choose another path with --socket or --counters",
            path.display()
        ),
        _ => format!("cannot open counters file {}: {e}{}", path.display(), advice(path)),
    }
    };
    make_directory(path)?;
    let new = !path.exists();
    let mut beside = path.as_os_str().to_owned();
    beside.push(".lock");
    let lock = own_file(Path::new(&beside), 0o600).map_err(fail)?.file;
    let taken = || {
        format!(
            "counters file {} belongs to another daemon that runs; choose other paths with --socket and --counters",
            path.display()
        )
    };
    let is_free = || match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            let found = own_file(path, 0o644)?.file;
            let read = File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
            drop(found);
            // A daemon of an older version has no such lock file.
            Ok(!CounterFile::is_written(&read))
        }
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(e.into()),
    };
    // No event tells that whoever has it is gone.
    let end = Instant::now() + DYING;
    while !is_free().map_err(fail)? {
        if Instant::now() > end {
            return Err(taken());
        }
        std::thread::sleep(LOOK);
    }
    let file = own_file(path, 0o644).map_err(fail)?.file;
    // For such a daemon that comes later. A reader that keeps it from us keeps nothing else from us.
    let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
    // `show` reads it for any user, whatever the umask. Not ours: then its owner has decided.
    let _ = file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644));
    Ok(Claim { file, _lock: lock, made: new.then(|| [path.to_owned(), beside.into()]) })
}

/// The directory of sockets that have the default path is ours to make; others must be there.
fn make_directory(path: &Path) -> Result<(), String> {
    let Some(directory) = path.parent().filter(|d| d.file_name().is_some_and(|name| name == "sidecore"))
    else {
        return Ok(());
    };
    make_folder(directory, 0o755)
        .map_err(|e| format!("cannot make directory {}: {e}{}", directory.display(), advice(directory)))
}

/// The control socket, or the one for readers. It is removed when this is dropped.
pub struct ControlSocket {
    file: SocketFile,
    listener: UnixListener,
}

impl ControlSocket {
    /// Listens at `path`, in place of a socket without a listener. `flag` is what chooses another path.
    pub fn bind(
        path: &Path,
        mode: Option<Mode>,
        owner: Option<&Owner>,
        flag: &str,
    ) -> Result<ControlSocket, String> {
        let name = if flag == "--socket" { "control socket" } else { "read socket" };
        let fail = |what: &str, e: &dyn std::fmt::Display| format!("{name} {}: {what}: {e}", path.display());
        make_directory(path)?;
        let owner = owner.map_or(Ok((None, None)), Owner::ids).map_err(|e| fail("owner", &e))?;
        let mode = Some(mode.map_or(0o600, |mode| mode.0));
        let kind = SocketType::STREAM;
        let wanted = SocketSpec { path: path.to_owned(), kind, mode, owner, backlog: BACKLOG };
        let (listener, file) = listen_at(&wanted).map_err(|e| match e {
            SocketError::InUse(_) => {
                fail("cannot listen", &format!("another daemon does; choose another path with {flag}"))
            }
            SocketError::NoSocket(_) => fail("cannot listen", &"the file exists and is no socket"),
            e => format!("{name}: {e}"),
        })?;
        sidecore_engine::mem::take_no_descriptors(&listener);
        Ok(ControlSocket { file, listener: listener.into() })
    }

    /// The listening socket, for an event loop.
    pub fn listener(&self) -> io::Result<UnixListener> {
        self.listener.set_nonblocking(true)?;
        self.listener.try_clone()
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.file.remove();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::OpenOptionsExt;

    use super::*;

    /// A daemon that was killed has its locks until the kernel has taken its memory away.
    #[test]
    fn the_next_daemon_waits_for_one_that_is_dying() {
        let folder = std::env::temp_dir().join(format!("sidecore-claim-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let (path, beside) = (folder.join("c"), folder.join("c.lock"));
        let dying =
            File::options().write(true).create(true).truncate(false).mode(0o600).open(&beside).unwrap();
        flock(&dying, FlockOperation::LockExclusive).unwrap();
        let next = std::thread::spawn(move || claim(&path).map(drop));
        let is_it = |link: std::fs::DirEntry| std::fs::read_link(link.path()).is_ok_and(|it| it == beside);
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().flatten().map(is_it);
        // It finds the file locked as soon as it has it open.
        while open().filter(|it| *it).count() < 2 && !next.is_finished() {
            std::thread::yield_now();
        }
        drop(dying);
        let claimed = next.join().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        claimed.unwrap();
    }
}
