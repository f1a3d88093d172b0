//! The JSON of the control socket that is not already the engine's: both ends use these types.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use sidecore_engine::router::Net;
use sidecore_engine::state::Change;
use sidecore_engine::util::form::view;

view! {
    /// The daemon.
    About {
        /// Version of the JSON.
        version: u32,
        /// Version of the program.
        program: String,
        /// Process id.
        pid: u32,
        /// The file that it was started with.
        config?: PathBuf,
        /// What it logs.
        #[serde(default)]
        log: String,
        /// Its counters file.
        counters: PathBuf,
        /// The memory limit of its control group in bytes, if there is one. Guest pages that the daemon
        /// touches first count.
        memory_limit?: u64,
        /// Memory errors of the machine that no process has hit yet.
        #[serde(default)]
        memory_errors: u64,
        /// Clients of its own sockets.
        #[serde(default)]
        clients: ClientsView,
        /// The kinds of ports that it knows.
        kinds: Vec<KindView>,
        /// What it took from itself.
        sandbox: SandboxView,
        /// The process that does for it what takes privileges.
        broker: BrokerView,
        /// The process that receives VMMs' descriptors.
        #[serde(default)]
        door: DoorView,
    }

    /// The broker: the process that makes privileged requests for the daemon.
    #[derive(Default)]
    BrokerView {
        /// Process id; absent: it has ended.
        pid?: u32,
        /// Requests so far, including those to earlier brokers.
        requests: u64,
        /// Requests that were refused.
        refused: u64,
        /// If it has ended for good: ports whose next VMM may not be served; absent if there are none.
        missed_by*: Vec<String>,
    }

    /// The descriptor helpers of the daemon: the processes that receive the descriptors of VMMs.
    #[derive(Copy, Default)]
    DoorView {
        /// Messages with descriptors.
        looks: u64,
        /// Those of which no descriptor was passed on.
        refused: u64,
        /// Helpers that were started: one, and another for each that was killed, ended connections, or takes
        /// long to close a file.
        started: u64,
        /// Connections that a helper closed, because they had unread data.
        kept: u64,
    }

    /// Clients of the daemon's own sockets.
    #[derive(Default)]
    ClientsView {
        /// The control socket.
        control: SocketView,
        /// The socket for netmap programs.
        netmap: SocketView,
        /// Clients of any socket, including ports, that were disconnected because no descriptor was left.
        turned_away: u64,
    }

    /// Clients of one socket.
    #[derive(Default)]
    SocketView {
        /// Connections that are open.
        open: u64,
        /// Connections and requests that were refused or ended, by the name of the reason; reasons that never
        /// applied are left out.
        refused: BTreeMap<String, u64>,
    }

    /// The daemon's restrictions in force.
    SandboxView {
        /// off, warn or on.
        mode: String,
        /// Its user.
        user: String,
        /// Its effective capabilities.
        capabilities: Vec<String>,
        /// No program that it starts gains privileges.
        no_new_privs: bool,
        /// Its memory, and with it guests', may be dumped or read by processes of its user.
        core_dumps: bool,
        /// Version of landlock in force; 0: none.
        landlock: u32,
        /// restricted: rings can do nothing but signal; none: there is no io_uring.
        io_uring: String,
        /// The filters of system calls, by kind of thread; empty: none.
        seccomp: Vec<FilterView>,
        /// System calls that were refused.
        refused: Vec<RefusedView>,
        /// Mechanisms that the system lacks, and why.
        missing: Vec<String>,
    }

    /// The filter of one kind of threads.
    FilterView {
        /// Which kind.
        threads: String,
        /// System calls that it may make, some with certain arguments only.
        calls: usize,
    }

    /// A system call that was refused to one kind of threads.
    RefusedView {
        /// Which kind.
        threads: String,
        /// The call's name, or its number.
        call: String,
        /// How often.
        count: u64,
    }

    /// One kind of port.
    KindView {
        /// Its name.
        name: String,
        /// The keys that it knows beyond those of every kind.
        keys: Vec<String>,
        /// The features that `features-off` may name.
        features: Vec<String>,
    }

    /// What a request changed.
    Changes {
        /// Version of the JSON.
        version: u32,
        /// Whether this was a dry run, which changes nothing.
        dry_run: bool,
        /// Empty if nothing had to change.
        changes: Vec<Change>,
    }

    /// Queues that were moved to another I/O core.
    Moved {
        /// Version of the JSON.
        version: u32,
        /// How many moved; the others were on that core already.
        queues: usize,
    }

    /// An event. Names are there if it is about such a thing.
    #[derive(Default)]
    EventView {
        /// Its number. They rise by one, and those of a later daemon are larger.
        seq: u64,
        /// When it was, in milliseconds of Unix time.
        time_ms: u64,
        /// Which kind; `missed`: events that are gone before they were read, or that a peer caused too many
        /// of.
        event: String = ["link", "fault", "peer", "drain", "move", "routing", "throttle", "configuration", "missed"],
        /// Name of a port.
        port?: String,
        /// Name of a switch.
        switch?: String,
        /// Name of a router.
        router?: String,
        /// Name of a tenant.
        tenant?: String,
        /// Name of a group.
        group?: String,
        /// Name of a member of the group.
        member?: String,
        /// Number of a queue of the port.
        queue?: u64,
        /// Number of the I/O core that serves the queue now.
        core?: u64,
        /// How many events a `missed` stands for.
        missed?: u64,
        /// What happened, for people; control characters are escaped, and a long text is cut.
        text: String,
    }

    /// Why a request was refused. Nothing was changed, unless the text says otherwise.
    Refused {
        /// Version of the JSON.
        version: u32,
        /// What, where, why, and what to do.
        error: String,
    }
}

// What requests take: the first five in their path, the others as their body.
view! {
    /// How a configuration is applied.
    #[serde(deny_unknown_fields)]
    ApplyQuery {
        /// Return the changes without making them [default: false].
        dry_run as "dry-run" *: bool,
    }

    /// Which parts.
    #[serde(deny_unknown_fields)]
    Names {
        /// Their names, with commas between them.
        names: String,
    }

    /// Which route.
    #[serde(deny_unknown_fields)]
    RouteQuery {
        /// Prefix of the route.
        prefix: Net,
    }

    /// Which packet.
    #[serde(deny_unknown_fields)]
    ExplainQuery {
        /// Destination of the packet.
        to: IpAddr,
        /// Port that it comes from.
        from?: String,
    }

    /// Which events.
    #[serde(deny_unknown_fields)]
    EventsQuery {
        /// Number of the last event that the client knows [default: all that are kept]; the header
        /// `Last-Event-ID` goes before it.
        after?: u64,
        /// Whether to go on with what is to come [default: true].
        follow?: bool,
    }

    /// What of the frames.
    #[serde(deny_unknown_fields)]
    CaptureQuery {
        /// Most bytes of a frame to keep, from 14 to 262144 [default: 262144].
        snaplen?: u32,
        /// Frames after which the capture ends, from 1.
        count?: u64,
    }

    /// What to log.
    #[serde(deny_unknown_fields)]
    LogFilter {
        /// A level, or a list of module=level.
        log: String,
    }

    /// A frame.
    #[serde(deny_unknown_fields)]
    AskedFrame {
        /// Its bytes without the FCS, as hexadecimal digits.
        frame: String,
    }

    /// Where queues are to be.
    #[serde(deny_unknown_fields)]
    Move {
        /// The I/O core.
        core: usize,
        /// One ingress queue; without it, all move.
        queue?: usize,
    }

    /// How many I/O cores are active.
    #[serde(deny_unknown_fields)]
    Active {
        /// The number; cores from number 0 on are active. With `balance` the number changes again with the
        /// load.
        active: usize,
    }
}

impl SocketView {
    /// So many open ones; reasons that never applied are left out.
    pub fn new(open: u64, refused: Vec<(&'static str, u64)>) -> SocketView {
        let refused = refused.into_iter().filter(|(_, count)| *count > 0);
        SocketView { open, refused: refused.map(|(reason, count)| (reason.to_owned(), count)).collect() }
    }
}
