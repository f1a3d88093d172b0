//! The daemon's broker: a process of this program that keeps the privileges, and does with them what is in its table
//! (`sidecore_engine::broker`).
//!
//! It is started before anything else runs, so that the daemon may give everything up afterwards. When it ends the daemon's
//! ports go on; the daemon starts another one, if it still may, when it next needs one.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};
use sidecore_engine::broker::Rules;
use sidecore_engine::open;
use sidecore_engine::state::kinds::KINDS;
use sidecore_engine::state::{text, Spec};
use tracing::warn;

use crate::cli::BrokerArgs;
use crate::{sandbox, Outcome};

/// What a broker is to know of its daemon.
struct Daemon {
    socket: PathBuf,
    config: Option<PathBuf>,
    /// The daemon will give its privileges up.
    strict: bool,
    /// Where its ports have sockets.
    folders: BTreeSet<PathBuf>,
}

/// Starts the broker of the daemon with this control socket, configuration file and configuration. `strict`: the daemon will
/// give its privileges up, and may ask for no more than it could need.
pub fn start(socket: &Path, config: Option<&Path>, spec: &Spec, strict: bool) -> Outcome {
    let absolute = |path: &Path| std::path::absolute(path);
    let started = || {
        let config = config.map(absolute).transpose()?;
        let daemon = Daemon { socket: absolute(socket)?, config, strict, folders: folders(spec) };
        open::broker::set_broker(Box::new(move || spawn(&daemon)))
    };
    started().map_err(|e| format!("cannot start the broker: {e}"))
}

/// The folders in which the ports of a configuration have their sockets.
fn folders(spec: &Spec) -> BTreeSet<PathBuf> {
    let sockets = spec.ports.iter().filter(|port| port.place.contains('/') || port.kind == "vhost-user");
    let paths = sockets.filter_map(|port| std::path::absolute(&port.place).ok());
    paths.filter_map(|path| path.parent().map(Path::to_owned)).collect()
}

/// The same of a configuration's text, which is root's own.
fn folders_of(text: &str) -> Vec<PathBuf> {
    // One that makes no sense is refused by the daemon, which says why.
    text::from_toml("", text, KINDS).map(|spec| folders(&spec).into_iter().collect()).unwrap_or_default()
}

fn spawn(daemon: &Daemon) -> io::Result<OwnedFd> {
    if daemon.strict && STARTED.swap(true, Ordering::Relaxed) {
        let why = "the broker has ended, and a daemon that has locked itself down starts no other; restart the daemon";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    // The program that runs, even if another one was installed in its place since.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("sidecore").arg("broker").arg("--socket").arg(&daemon.socket);
    if let Some(config) = &daemon.config {
        command.arg("--config").arg(config);
    }
    if daemon.strict {
        command.arg("--strict");
    }
    for folder in &daemon.folders {
        command.arg("--below").arg(folder);
    }
    command.env_clear().stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
    // What is typed at a terminal is for the daemon: it ends, and its broker with it.
    command.process_group(0);
    let new = command.spawn()?;
    let mut child = CHILD.lock().unwrap_or_else(PoisonError::into_inner);
    tell_end(&mut child);
    *child = Some(new);
    Ok(ours)
}

/// A daemon that locks itself down has started its one broker.
static STARTED: AtomicBool = AtomicBool::new(false);

/// The broker that runs. It is waited for now and then, by no thread of its own: none may be older than the moment in which
/// the daemon gives its privileges up.
static CHILD: Mutex<Option<Child>> = Mutex::new(None);

/// Looks whether the broker has ended, and says so once.
pub fn look() {
    tell_end(&mut CHILD.lock().unwrap_or_else(PoisonError::into_inner));
}

fn tell_end(child: &mut Option<Child>) {
    if let Some(Ok(Some(status))) = child.as_mut().map(Child::try_wait) {
        match STARTED.load(Ordering::Relaxed) {
            true => warn!("the broker has ended ({status}): ports go on; none can be changed before the daemon is restarted"),
            false => warn!("the broker has ended ({status}): ports go on; another one is started when a port is to change"),
        }
        *child = None;
    }
}

/// `broker`.
pub fn serve(args: BrokerArgs) -> Outcome {
    // It was started through a link in /proc, whose name says nothing. Without a name it works as well.
    let _ = rustix::thread::set_name(c"sidecore-broker");
    // What is missing there was told by the daemon, which has a log.
    let _ = (sandbox::settle(&[]), sandbox::hide());
    let fail = |e: io::Error| format!("broker: {e}");
    let socket = io::stdin().as_fd().try_clone_to_owned().map_err(fail)?;
    let ours = socket_domain(&socket) == Ok(AddressFamily::UNIX)
        && socket_type(&socket) == Ok(SocketType::SEQPACKET);
    if !ours {
        return Err(BY_HAND.to_owned());
    }
    sidecore_engine::hold::set_program("/proc/self/exe".into());
    open::set_journals(&args.socket);
    let mut below = args.below;
    // What is beside the control socket is the daemon's own.
    below.extend(args.socket.parent().map(Path::to_owned));
    let rules = Rules { config: args.config, strict: args.strict, below, folders: Some(folders_of) };
    sidecore_engine::broker::serve(&socket, rules).map_err(fail)
}

const BY_HAND: &str = "broker: standard input is no socket of a daemon. This command is not for people: `sidecore run` starts it \
                       for what takes privileges, and it ends with its daemon";
