//! The JSON of the control socket that is not already the engine's: both ends use these types.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sidecore_engine::state::Change;

/// Answer to `GET /v1/daemon`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// `status::VERSION`.
    pub version: u32,
    /// Version of the program.
    pub program: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// The file that it was started with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<PathBuf>,
    /// What it logs.
    #[serde(default)]
    pub log: String,
    /// Its counters file.
    pub counters: PathBuf,
    /// Bytes of memory that its control group allows it, if that is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<u64>,
    /// Memory errors of the machine that no thread has run into yet.
    #[serde(default)]
    pub memory_errors: u64,
    /// Clients of its own sockets.
    #[serde(default)]
    pub clients: ClientsView,
    /// The kinds of ports that it knows.
    pub kinds: Vec<KindView>,
    /// What it took from itself.
    pub sandbox: SandboxView,
    /// The process that does for it what takes privileges.
    pub broker: BrokerView,
    /// The process that receives VMMs' descriptors.
    #[serde(default)]
    pub door: DoorView,
}

/// The daemon's broker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerView {
    /// Its process id; absent: it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// What it, or one before it, was asked for so far.
    pub requests: u64,
    /// How many of that were not done.
    pub refused: u64,
    /// Where it has ended for good: ports that it would have to do more for when their next VMM comes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missed_by: Vec<String>,
}

/// What the descriptor helpers of the daemon have done: the processes that receive the descriptors of VMMs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoorView {
    /// Messages with descriptors.
    pub looks: u64,
    /// Those of which none was passed on.
    pub refused: u64,
    /// Helpers that were started: one, and another for each that was killed, ended connections, or takes long to close a file.
    pub started: u64,
    /// Connections that ended with a descriptor helper, because they held what was never read.
    pub kept: u64,
}

/// Clients of the daemon's own sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientsView {
    /// The control socket.
    pub control: SocketView,
    /// The socket for netmap programs.
    pub netmap: SocketView,
    /// Clients of any socket, ports' included, that were hung up on because there was no descriptor for them.
    pub turned_away: u64,
}

/// Clients of one socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketView {
    /// Connections that are open.
    pub open: u64,
    /// Connections and requests that were refused or ended, by the name of the reason.
    pub refused: BTreeMap<String, u64>,
}

impl SocketView {
    /// So many open ones; reasons that never applied are left out.
    pub fn new(open: u64, refused: Vec<(&'static str, u64)>) -> SocketView {
        let refused = refused.into_iter().filter(|(_, count)| *count > 0);
        SocketView { open, refused: refused.map(|(reason, count)| (reason.to_owned(), count)).collect() }
    }
}

/// What the daemon took from itself, as it is in force now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxView {
    /// `off`, `warn` or `on`.
    pub mode: String,
    pub user: String,
    /// Its effective capabilities.
    pub capabilities: Vec<String>,
    /// No program that it starts gains privileges.
    pub no_new_privs: bool,
    /// Its memory may be dumped, or read by processes of its user.
    pub core_dumps: bool,
    /// The version of landlock that keeps it from files; 0: none.
    pub landlock: u32,
    /// `restricted`: rings can do nothing but signal; `none`: there is no io_uring.
    pub io_uring: String,
    /// Filters of system calls, by kind of thread.
    pub seccomp: Vec<FilterView>,
    /// What they refused.
    pub refused: Vec<RefusedView>,
    /// What the system does not offer, and why.
    pub missing: Vec<String>,
}

/// The filter of one kind of threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterView {
    /// Which kind.
    pub threads: String,
    /// System calls that it may make, some with certain arguments only.
    pub calls: usize,
}

/// A system call that was refused to one kind of threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedView {
    /// Which kind.
    pub threads: String,
    /// The call's name, or its number.
    pub call: String,
    /// How often.
    pub count: u64,
}

/// One kind of port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindView {
    pub name: String,
    /// The keys that it knows beyond those of every kind.
    pub keys: Vec<String>,
    /// The words that `features-off` may name.
    pub features: Vec<String>,
}

/// Answer to every request that changes something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// `status::VERSION`.
    pub version: u32,
    /// Whether nothing was done.
    pub dry_run: bool,
    /// What changed, or would; empty if all was so already.
    pub changes: Vec<Change>,
}

/// Answer to a request to move queues to another I/O core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// `status::VERSION`.
    pub version: u32,
    /// How many moved; the others were there already.
    pub queues: usize,
}

/// An event, as `GET /v1/events` sends it. Names are there if it is about such a thing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventView {
    /// Its number; those of a later daemon are larger.
    pub seq: u64,
    /// When it was, in milliseconds of Unix time.
    pub time_ms: u64,
    /// Which kind: `link`, `fault`, `peer`, `drain`, `move`, `throttle`, `configuration`, or `missed`.
    pub event: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub router: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
    /// A queue of the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<u64>,
    /// The I/O core that serves the queue now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<u64>,
    /// Of `missed`: how many events are not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed: Option<u64>,
    /// For people.
    pub text: String,
}

/// Answer to a request that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// `status::VERSION`.
    pub version: u32,
    /// What, where, why, and what to do.
    pub error: String,
}
