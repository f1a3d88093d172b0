//! The daemon's broker: a process of this program that keeps the privileges, and does with them what is in
//! its table (`sidecore_engine::broker`).
//!
//! It is started before anything else runs, so that the daemon may give everything up afterwards. When it
//! ends the daemon's ports go on; the daemon starts another one, if it still may, when it next needs one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};
use serde_json::{Map, Value};
use sidecore_engine::broker::Rules;
use sidecore_engine::host::{netns, vxlan};
use sidecore_engine::sandbox::open;
use sidecore_engine::sandbox::open::broker::Named;
use sidecore_engine::sandbox::open::socket::SocketSpec;
use sidecore_engine::state::kinds::{self, Location, KINDS};
use sidecore_engine::state::media::DiskFile;
use sidecore_engine::state::values::{List, Mode, Owner, Role};
use sidecore_engine::state::{text, AgentAt, PortSpec, Spec};
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
    /// What its configuration names.
    named: Vec<Named>,
    /// The permissions of its control socket.
    mode: Option<Mode>,
    owner: Option<Owner>,
}

/// Starts the broker of the daemon with this control socket, configuration file and configuration. `strict`:
/// the daemon will give its privileges up, and may ask for no more than it could need.
pub fn start(socket: &Path, config: Option<&Path>, spec: &Spec, strict: bool) -> Outcome {
    let absolute = |path: &Path| std::path::absolute(path);
    let started = || {
        let config = config.map(absolute).transpose()?;
        let (mode, owner) = (spec.daemon.socket_mode, spec.daemon.socket_owner.clone());
        let daemon = Daemon { socket: absolute(socket)?, config, strict, named: named(spec), mode, owner };
        open::broker::set_broker(Box::new(move || spawn(&daemon)))
    };
    started().map_err(|e| format!("cannot start the broker: {e}"))
}

/// The paths that a configuration names, each for what it is for.
fn named(spec: &Spec) -> Vec<Named> {
    let ports = spec.ports.iter().flat_map(named_by_port);
    let controls = spec.routers.iter().map(|router| &router.control);
    let controls = controls.chain(spec.switches.iter().map(|switch| &switch.control));
    let namespaces = controls.filter_map(|control| at(&netns::path(control.as_ref()?), Named::Namespace));
    let agents = spec.routers.iter().filter_map(|router| router.agents.as_ref()).flat_map(|agents| &agents.0);
    let readers = spec.daemon.read_socket.iter().filter_map(|path| at(path, Named::Socket));
    let all = ports
        .chain(namespaces)
        .chain(readers)
        .chain(agents.filter_map(|agent| at(&agent.socket, Named::Call)));
    // The daemon says what is wrong with a path that is none.
    all.filter(|named| named.encode().is_some()).collect()
}

fn at(path: &Path, named: fn(PathBuf) -> Named) -> Option<Named> {
    std::path::absolute(path).ok().map(named)
}

fn address(location: &str) -> Option<Named> {
    Some(Named::Address(vxlan::address(location).ok()?.ip().to_string()))
}

fn named_by_port(port: &PortSpec) -> Vec<Named> {
    let kind = kinds::find(KINDS, &port.kind).ok();
    let location = kind.map(|kind| kind.location);
    let is_path =
        location == Some(Location::Socket) || location == Some(Location::Ring) && port.location.contains('/');
    let how = if port.role == Some(Role::Client) { Named::Call } else { Named::Socket };
    let locations = kind.map_or_else(Vec::new, |kind| kind.locations(port));
    let sockets = locations.into_iter().filter(|_| is_path && port.fd.is_none());
    let sockets: Vec<_> = sockets.filter_map(|location| at(Path::new(&location), how)).collect();
    let journal = port.journal.as_deref().filter(|journal| *journal != Path::new("none"));
    let journal = journal.and_then(|journal| at(journal, Named::Journal));
    let interface = (location == Some(Location::Interface)).then(|| match &port.netns {
        Some(namespace) => Named::Namespace(netns::path(namespace)),
        None => Named::Interface(port.location.clone()),
    });
    let address = (location == Some(Location::Address)).then(|| address(&port.location)).flatten();
    let disk = port.file.as_ref().and_then(DiskFile::path).and_then(|path| at(path, Named::Disk));
    sockets.into_iter().chain([journal, interface, address, disk].into_iter().flatten()).collect()
}

/// What a configuration's text names, which is root's own.
fn named_by_text(text: &str) -> Vec<Named> {
    // One that makes no sense is refused by the daemon, which says why.
    text::from_toml("", text, KINDS).map(|spec| named(&spec)).unwrap_or_default()
}

/// Tells the broker of the daemon with this control socket what an operator wants.
pub fn tell(socket: &Path, spec: &Spec) {
    named(spec).iter().for_each(|named| tell_one(socket, named));
}

/// Tells what a change names, which says nothing of the rest of its port or switch. Only what the operator
/// has written counts, not what the daemon says of the rest.
pub fn tell_change(socket: &Path, patch: &Map<String, Value>) {
    let path = |key: &str| Some(Path::new(patch.get(key)?.as_str()?));
    let client = patch.get("role").map(|role| role == "client");
    let named = |how| path("where").and_then(|path| at(path, how));
    let listen = named(Named::Socket).filter(|_| client != Some(true));
    // The patch does not say which kind the port is: what a second socket would be is named, too.
    let seconds = KINDS.iter().filter_map(|kind| kind.second);
    let seconds: Vec<_> = seconds
        .filter_map(|end| at(Path::new(&format!("{}{end}", path("where")?.display())), Named::Socket))
        .filter(|_| listen.is_some())
        .collect();
    let call = named(Named::Call).filter(|_| client != Some(false));
    let journal = path("journal").and_then(|path| at(path, Named::Journal));
    let interface = path("where").and_then(Path::to_str).filter(|name| !name.contains('/'));
    let interface = interface.map(|name| Named::Interface(name.to_owned()));
    let namespace = |key: &str| at(&netns::path(patch.get(key)?.as_str()?), Named::Namespace);
    let file = patch.get("file").and_then(|file| file.as_str()?.parse::<DiskFile>().ok());
    let disk = file.as_ref().and_then(DiskFile::path).and_then(|path| at(path, Named::Disk));
    let agents = patch.get("agents").and_then(|agents| agents.as_str()?.parse::<List<AgentAt>>().ok());
    let agents = agents.into_iter().flat_map(|agents| agents.0);
    let agents: Vec<_> = agents.filter_map(|agent| at(&agent.socket, Named::Call)).collect();
    let address = patch.get("where").and_then(|at| address(at.as_str()?));
    [listen, call, journal, interface, address, disk, namespace("control"), namespace("netns")]
        .iter()
        .flatten()
        .chain(seconds.iter().chain(&agents))
        .for_each(|named| tell_one(socket, named));
}

fn tell_one(socket: &Path, named: &Named) {
    // Where the sandbox is off there is no broker to hear it; else the daemon's answer says what its broker
    // does not do.
    let _ = named.tell(socket);
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
    for named in daemon.named.iter().filter(|_| daemon.strict) {
        command.args(named.encode().map(|text| format!("--named={text}")));
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

/// The broker that runs. It is waited for now and then, by no thread of its own: none may be older than the
/// moment in which the daemon gives its privileges up.
static CHILD: Mutex<Option<Child>> = Mutex::new(None);

/// Looks whether the broker has ended, and says so once.
pub fn look() {
    tell_end(&mut CHILD.lock().unwrap_or_else(PoisonError::into_inner));
}

/// What there is to know of it, by a daemon with these ports.
pub fn view(ports: impl FnOnce() -> Vec<PortSpec>) -> BrokerView {
    let mut child = CHILD.lock().unwrap_or_else(PoisonError::into_inner);
    tell_end(&mut child);
    let (requests, refused) = open::broker::broker().map_or((0, 0), open::broker::Broker::counts);
    let pid = child.as_ref().map(Child::id);
    // Their VMMs need a holder, a call or, sooner or later, another descriptor helper.
    let meets_vmms =
        |port: &&PortSpec| kinds::find(KINDS, &port.kind).is_ok_and(|kind| kind.location == Location::Socket);
    let is_lost = pid.is_none() && STARTED.load(Ordering::Relaxed);
    let ports = if is_lost { ports() } else { Vec::new() };
    let missed_by = ports.iter().filter(meets_vmms).map(|port| port.name.clone()).collect();
    BrokerView { pid, requests, refused, missed_by }
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
    sidecore_engine::sandbox::holder::set_program("/proc/self/exe".into());
    open::set_journals(&args.socket);
    // Where operators speak. One that cannot be made is told of by the daemon, which needs it, too.
    let _ = Named::place(&args.socket).parent().map(|folder| open::make_folder(folder, 0o755));
    // What is beside the control socket is the daemon's own, and so are sockets of ring ports.
    let own = args.socket.parent().map(|folder| [folder.to_owned(), folder.join("ring")]);
    let mut named: Vec<Named> = own.into_iter().flatten().map(Named::Folder).collect();
    for text in &args.named {
        named.push(Named::decode(text.as_bytes()).map_err(|e| format!("broker: --named: {e}"))?);
    }
    let operators = SocketSpec {
        path: Named::place(&args.socket),
        kind: SocketType::DGRAM,
        mode: Some(args.socket_mode.map_or(0o600, |mode| mode.0)),
        owner: args.socket_owner.as_ref().map_or(Ok((None, None)), Owner::ids)?,
        backlog: 0,
    };
    let operators = args.strict.then_some(operators);
    let rules = Rules {
        config: args.config,
        strict: args.strict,
        named,
        names: Some(named_by_text),
        operators,
        ..Rules::default()
    };
    sidecore_engine::broker::serve(&socket, rules).map_err(fail)
}

const BY_HAND: &str =
    "broker: standard input is no socket of a daemon. This command is internal: `sidecore run` starts it \
                       for what takes privileges, and it ends with its daemon";
