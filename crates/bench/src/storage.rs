//! `qemu-storage-daemon` as a peer: QEMU's block layer behind vhost-user-blk, in a process of its own.
//!
//! One I/O thread serves all exports: on one processor that is several times faster than a thread for each.
//!
//! Depends on the standard library and `peers` only, so that tests of other crates may include both by path.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::peers::{Process, Scratch};

/// What is behind a disk: a file or a block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Where.
    pub path: PathBuf,
    /// Past the page cache (O_DIRECT).
    pub direct: bool,
}

/// A disk that is exported.
#[derive(Clone, Debug)]
pub struct Export {
    /// The socket at which front ends call.
    pub socket: PathBuf,
    /// What is behind it.
    pub image: Image,
    /// Queues.
    pub queues: u16,
    /// It may be written.
    pub writable: bool,
}

/// The running daemon.
#[derive(Debug)]
pub struct StorageDaemon {
    process: Process,
    control: PathBuf,
}

const PROGRAM: &str = "qemu-storage-daemon";

impl StorageDaemon {
    /// Is the program there?
    pub fn installed() -> bool {
        super::peers::installed(PROGRAM)
    }

    /// Starts it on processor `core`; without one it goes where the kernel puts it.
    pub fn start(core: Option<usize>, scratch: &Scratch, exports: &[Export]) -> Result<Self, String> {
        if !Self::installed() {
            return Err(format!("{PROGRAM} is not installed: apt-get install qemu-system-common qemu-utils"));
        }
        let control = scratch.file("qmp");
        let cores = core.map_or_else(|| format!("0-{}", super::peers::cpus() - 1), |core| core.to_string());
        let mut process = Process::start("taskset", "util-linux", scratch.file("qsd.log"), |command| {
            command.args(["-c", &cores, PROGRAM]);
            command
                .arg("--chardev")
                .arg(format!("socket,id=qmp,path={},server=on,wait=off", control.display()));
            command.args(["--monitor", "chardev=qmp"]);
            command.args(["--object", "iothread,id=io"]);
            for (n, export) in exports.iter().enumerate() {
                command.arg("--blockdev").arg(blockdev(n, &export.image));
                let (path, queues) = (export.socket.display(), export.queues);
                let writable = if export.writable { "on" } else { "off" };
                command.arg("--export").arg(format!(
                    "type=vhost-user-blk,id=e{n},node-name=d{n},addr.type=unix,addr.path={path},\
                     num-queues={queues},writable={writable},iothread=io"
                ));
            }
        })?;
        let listening = || exports.iter().all(|export| export.socket.exists()) && control.exists();
        process.wait_until("it listens", Duration::from_secs(60), listening)?;
        Ok(Self { process, control })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Where it takes commands (QMP).
    pub fn control(&self) -> &Path {
        &self.control
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill();
    }
}

/// Without QEMU's locks: a process that was killed keeps its own until the kernel has ended the last of its
/// requests.
fn blockdev(n: usize, Image { path, direct }: &Image) -> String {
    let (cache, path) = (if *direct { "on" } else { "off" }, path.display().to_string());
    let is_device = path.starts_with("/dev/") && !path.starts_with("/dev/shm/");
    let driver = if is_device { "host_device" } else { "file" };
    format!(
        "driver={driver},node-name=d{n},filename={path},aio=io_uring,cache.direct={cache},discard=unmap,locking=off"
    )
}
