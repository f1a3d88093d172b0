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
use sidecore_engine::open::broker::Named;
use sidecore_engine::open::socket::Wanted;
use sidecore_engine::state::kinds::KINDS;
use sidecore_engine::state::values::{Mode, Owner};
use sidecore_engine::state::{text, PortSpec, Spec};
use tracing::warn;

use crate::api::BrokerView;
use crate::cli::BrokerArgs;
use crate::{sandbox, Outcome};

/// What a broker is to know of its daemon.
struct Daemon {
    socket: PathBuf,
    config: Option<PathBuf>,
    /// The daemon will give its privileges up.
    strict: bool,
    /// Where its ports have sockets and journals.
    named: Vec<Named>,
    /// Who may open its control socket.
    mode: Option<Mode>,
    owner: Option<Owner>,
}

/// Starts the broker of the daemon with this control socket, configuration file and configuration. `strict`: the daemon will
/// give its privileges up, and may ask for no more than it could need.
pub fn start(socket: &Path, config: Option<&Path>, spec: &Spec, strict: bool) -> Outcome {
    let absolute = |path: &Path| std::path::absolute(path);
    let started = || {
        let config = config.map(absolute).transpose()?;
        let (mode, owner) = (spec.daemon.socket_mode, spec.daemon.socket_owner.clone());
        let daemon =
            Daemon { socket: absolute(socket)?, config, strict, named: named(&spec.ports), mode, owner };
        open::broker::set_broker(Box::new(move || spawn(&daemon)))
    };
    started().map_err(|e| format!("cannot start the broker: {e}"))
}

/// The folders in which ports have their sockets, and the journals that they have elsewhere.
fn named(ports: &[PortSpec]) -> Vec<Named> {
    let sockets = ports.iter().filter(|port| port.place.contains('/') || port.kind == "vhost-user");
    let paths = sockets.filter_map(|port| std::path::absolute(&port.place).ok());
    let folders: BTreeSet<PathBuf> = paths.filter_map(|path| path.parent().map(Path::to_owned)).collect();
    let journals = ports.iter().filter_map(|port| port.journal.as_deref());
    let journals = journals.filter(|journal| *journal != Path::new("none"));
    let journals = journals.filter_map(|journal| std::path::absolute(journal).ok());
    folders.into_iter().map(Named::Folder).chain(journals.map(Named::Journal)).collect()
}

/// The same of a configuration's text, which is root's own.
fn named_by(text: &str) -> Vec<Named> {
    // One that makes no sense is refused by the daemon, which says why.
    text::from_toml("", text, KINDS).map(|spec| named(&spec.ports)).unwrap_or_default()
}

/// Tells the broker of the daemon with this control socket where an operator wants ports.
pub fn tell(socket: &Path, ports: &[PortSpec]) {
    // Nobody hears it where the sandbox is off; else the daemon's answer says what its broker does not do.
    named(ports).into_iter().for_each(|named| drop(named.tell(socket)));
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
    for named in &daemon.named {
        match named {
            Named::Folder(folder) => command.arg("--below").arg(folder),
            Named::Journal(journal) => command.arg("--journal").arg(journal),
        };
    }
    if let Some(mode) = daemon.mode {
        command.arg("--socket-mode").arg(format!("{:04o}", mode.0));
    }
    if let Some(owner) = &daemon.owner {
        command.arg("--socket-owner").arg(owner.to_string());
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

/// What there is to know of it.
pub fn view() -> BrokerView {
    let mut child = CHILD.lock().unwrap_or_else(PoisonError::into_inner);
    tell_end(&mut child);
    let (requests, refused) = open::broker::broker().map_or((0, 0), open::broker::Broker::counts);
    BrokerView { pid: child.as_ref().map(Child::id), requests, refused }
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
    // What is beside the control socket is the daemon's own.
    let below = args.below.into_iter().chain(args.socket.parent().map(Path::to_owned));
    let named = below.map(Named::Folder).chain(args.journal.into_iter().map(Named::Journal)).collect();
    let operators = Wanted {
        path: Named::place(&args.socket),
        kind: SocketType::DGRAM,
        mode: Some(args.socket_mode.map_or(0o600, |mode| mode.0)),
        owner: args.socket_owner.as_ref().map_or(Ok((None, None)), Owner::ids)?,
        backlog: 0,
    };
    let operators = args.strict.then_some(operators);
    let rules = Rules { config: args.config, strict: args.strict, named, names: Some(named_by), operators };
    sidecore_engine::broker::serve(&socket, rules).map_err(fail)
}

const BY_HAND: &str = "broker: standard input is no socket of a daemon. This command is not for people: `sidecore run` starts it \
                       for what takes privileges, and it ends with its daemon";
