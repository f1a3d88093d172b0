//! What a daemon holds alone: its control socket and its counters file.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{flock, FlockOperation, Mode as Bits};
use sidecore_engine::state::kinds::MAX_SOCKET_PATH;
use sidecore_engine::state::values::{Mode, Owner};

/// Takes the counters file at `path` for this process; it is given up when the result is dropped.
/// Making it anew would cut it short under a daemon that still writes to it.
pub fn claim(path: &Path) -> Result<File, String> {
    let fail = |e: io::Error| {
        match e.kind() {
        ErrorKind::NotFound => format!(
            "there is no folder for the counters file {}; make it, or choose another path with --socket or --counters",
            path.display()
        ),
        _ => format!("cannot open counters file {}: {e}", path.display()),
    }
    };
    make_directory(path)?;
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(fail)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(format!(
            "counters file {} belongs to another daemon that runs; choose other paths with --socket and --counters",
            path.display()
        )),
        Err(e) => Err(fail(e.into())),
    }
}

/// The directory of sockets that have the default path is ours to make; others must be there.
fn make_directory(path: &Path) -> Result<(), String> {
    let Some(directory) = path.parent().filter(|d| d.file_name().is_some_and(|name| name == "sidecore"))
    else {
        return Ok(());
    };
    match std::fs::create_dir(directory) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => {
            Err(format!("cannot make directory {}: {e}", directory.display()))
        }
        _ => Ok(()),
    }
}

/// The control socket. It is removed when this is dropped.
pub struct ControlSocket {
    path: PathBuf,
    listener: UnixListener,
}

impl ControlSocket {
    /// Listens at `path`, in place of a socket that nobody listens at any more.
    pub fn bind(path: &Path, mode: Option<Mode>, owner: Option<&Owner>) -> Result<ControlSocket, String> {
        let fail =
            |what: &str, e: &dyn std::fmt::Display| format!("control socket {}: {what}: {e}", path.display());
        let length = path.as_os_str().len();
        if length > MAX_SOCKET_PATH {
            return Err(fail(
                "its path is too long",
                &format!("{length} bytes; {MAX_SOCKET_PATH} are possible"),
            ));
        }
        make_directory(path)?;
        if UnixStream::connect(path).is_ok() {
            return Err(fail("cannot listen", &"another daemon does; choose another path with --socket"));
        }
        if path
            .symlink_metadata()
            .is_ok_and(|data| std::os::unix::fs::FileTypeExt::is_socket(&data.file_type()))
        {
            std::fs::remove_file(path).map_err(|e| fail("cannot remove the old one", &e))?;
        }
        let ids = owner.map(Owner::ids).transpose().map_err(|e| fail("owner", &e))?;
        // Nobody else may connect before mode and owner are right.
        let umask = rustix::process::umask(Bits::from_raw_mode(0o177));
        let bound = UnixListener::bind(path);
        rustix::process::umask(umask);
        let socket =
            ControlSocket { path: path.to_owned(), listener: bound.map_err(|e| fail("cannot listen", &e))? };
        if let Some((user, group)) = ids {
            std::os::unix::fs::chown(path, user, group).map_err(|e| fail("cannot change its owner", &e))?;
        }
        if let Some(Mode(bits)) = mode {
            let set = std::fs::set_permissions(path, Permissions::from_mode(bits));
            set.map_err(|e| fail("cannot change its mode", &e))?;
        }
        Ok(socket)
    }

    /// The listening socket, for an event loop.
    pub fn listener(&self) -> io::Result<UnixListener> {
        self.listener.set_nonblocking(true)?;
        self.listener.try_clone()
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // It may have been removed by hand; then there is nothing to do.
        let _ = std::fs::remove_file(&self.path);
    }
}
