//! What a ring port is to be, and where its socket is.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::ring::Geometry;
use crate::sandbox::open::make_folder;

/// Extra buffers that a client may have where the operator says nothing of them: 8 MiB of the usual size.
pub const EXTRA_LIMIT: u32 = 4096;

/// A ring port to be.
#[derive(Clone, Debug, Default)]
pub struct RingPortConfig {
    /// The socket at which clients attach; it is made.
    pub path: PathBuf,
    /// Its permissions; by default those that the umask leaves.
    pub mode: Option<u32>,
    /// Its user and group; by default ours.
    pub owner: (Option<u32>, Option<u32>),
    /// The rings that a client gets.
    pub geometry: Geometry,
    /// Most extra buffers that a client may have by asking for them.
    pub extra_limit: u32,
    /// Bytes of the virtio-net header before each frame: 0, 10 or 12. A client may change it.
    pub header: u32,
    /// The memory that it shares with others of this name; by default it has one of its own.
    pub memory: Option<String>,
    /// The pipe to another port of which it is an end, instead of a port of a switch.
    pub pipe: Option<String>,
}

impl RingPortConfig {
    /// One pair of rings at `path`, everything else by default.
    pub fn new(path: &Path) -> RingPortConfig {
        RingPortConfig { path: path.to_owned(), extra_limit: EXTRA_LIMIT, ..RingPortConfig::default() }
    }
}

/// Where the sockets of ring ports with plain names are.
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
pub fn device_path() -> Result<PathBuf, String> {
    socket_path(sidecore_abi::vale::SOCKET)
}
