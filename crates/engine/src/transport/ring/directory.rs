//! Where the sockets of ring ports with plain names are, and the one of netmap's device beside them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::open::make_folder;

/// As told.
static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();

/// Says once where the sockets of ring ports with plain names are: the directory `ring` beside the daemon's control
/// socket, where clients look, too. Makes it if it is not there. The daemon may be kept from it afterwards, because its
/// user cannot enter the folder of the control socket; then the broker makes the sockets. Later calls change nothing.
///
/// # Errors
/// It cannot be made.
pub fn set_directory(control_socket: &Path) -> Result<(), String> {
    let beside = control_socket.parent().unwrap_or(Path::new("."));
    let directory = DIRECTORY.get_or_init(|| beside.join("ring"));
    make_folder(directory, 0o755).map_err(|e| format!("cannot make {}: {e}", directory.display()))
}

/// The socket of ring port `name`: a name with a slash is a path, others are files in the directory.
///
/// # Errors
/// It is not set where the directory is.
pub fn socket_path(name: &str) -> Result<PathBuf, String> {
    if name.contains('/') {
        return Ok(PathBuf::from(name));
    }
    let directory = DIRECTORY.get().ok_or("ring ports need a path here: there is no control socket")?;
    Ok(directory.join(name))
}

/// The path of netmap's device: beside the sockets of ring ports.
///
/// # Errors
/// As [`socket_path`].
pub fn device_path() -> io::Result<PathBuf> {
    socket_path(sidecore_abi::vale::SOCKET).map_err(io::Error::other)
}
