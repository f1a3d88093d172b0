//! The one table of commands and flags. `--help`, man pages and completions are generated from it;
//! the grammar of ports and switches is `state::text`'s, and their options come from `options`.

use std::ffi::OsString;
use std::ops::Deref;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use sidecore_engine::state::media::size;
use sidecore_engine::state::values::{Mode, Owner};

use sidecore_pktgen::args::{PktGenArgs, PORTS as PKT_GEN_PORTS};

use crate::options;
use crate::place::Cpus;
use crate::web::Listen;

/// The version, and the commit that the program is built from, as far as that is known (`build.rs`).
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), env!("SIDECORE_COMMIT"));

/// A packet I/O engine for virtual machines, on cores of its own.
#[derive(Debug, Parser)]
#[command(name = "sidecore", version = VERSION, propagate_version = true, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 success; 1 failure, with the reason on standard error; 2 a wrong command line."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the daemon in the foreground.
    ///
    /// Prints the line `ready` on standard output when all ports listen. SIGTERM and SIGINT end it,
    /// SIGHUP applies the file again.
    #[command(after_help = options::BRIEF, after_long_help = options::all())]
    Run(RunArgs),
    /// Show what runs.
    ///
    /// `ports` and `drops` work without a running daemon, too: they read its counters file.
    Show(ShowArgs),
    /// Say why a port has no traffic, and the command that fixes it.
    ///
    /// Checks the VMM, its memory, the driver, the link, the MTU and dropped frames, and the rights on the
    /// socket if no VMM is connected. The exit code is 1 if anything is wrong.
    #[command(after_help = "Examples: sidecore doctor web; sidecore doctor")]
    Doctor(OfDaemon<DoctorArgs>),
    /// Watch ports, queues, cores and drops, updated each second.
    ///
    /// Keys: p ports, u queues, c cores, d drops; left and right choose the column to sort by, r reverses the
    /// order, q quits.
    Top(Control),
    /// Print what has happened: VMMs that came or left, links, faults, queues that moved, changes of the
    /// configuration.
    #[command(after_help = "Examples: sidecore events; sidecore events --follow --json")]
    Events(OfDaemon<EventsArgs>),
    /// Add ports, switches, routers, tenants or groups.
    #[command(after_help = options::BRIEF, after_long_help = options::all())]
    Add(OfDaemon<AddArgs>),
    /// Delete ports, switches, routers, tenants or groups.
    Del(OfDaemon<DelArgs>),
    /// Change a port or a switch.
    #[command(after_help = options::BRIEF, after_long_help = options::all())]
    Set(OfDaemon<SetArgs>),
    /// Give a member of a group no new flows: those that it has go to others when they are idle.
    ///
    /// Flows that are not idle go, too, after the group's force-after. The member stays drained until
    /// `undrain`.
    #[command(after_help = "Example: sidecore drain web/a --wait")]
    Drain(OfDaemon<DrainArgs>),
    /// Give a member of a group flows again.
    Undrain(OfDaemon<MemberArgs>),
    /// Stop ports and start them again with their configuration.
    ///
    /// Their VMMs are disconnected. Those that can connect again do so.
    Restart(OfDaemon<RestartArgs>),
    /// Change what the running daemon logs.
    #[command(
        after_help = "Examples: sidecore log debug; sidecore log info,sidecore_engine::transport=trace"
    )]
    Log(OfDaemon<LogArgs>),
    /// Add or delete a route of a router while it runs.
    #[command(subcommand)]
    Route(RouteCommand),
    /// Make a file with rules an access list, in place of the list of this name.
    ///
    /// Ports with acl-in=NAME or acl-out=NAME have it from the next frame on, whole.
    #[command(after_help = "Example: sidecore acl web web.acl && sidecore set vm1 acl-in=web")]
    Acl(OfDaemon<AclArgs>),
    /// Explain what a router does with a packet, or what becomes of a frame that comes in by a port, and why.
    ///
    /// Nothing is sent, learned or counted, and nothing taken from limits. Fields of a frame: src-mac,
    /// dst-mac, vlan, type, src, dst, proto, sport, dport, icmp, flags, len.
    #[command(
        after_help = "Examples: sidecore explain r 10.1.2.3 --from web; sidecore explain --from web dst-mac=02:00:00:00:00:02 src-mac=02:00:00:00:00:01 src=10.0.0.1 dst=10.0.0.2 proto=tcp dport=80"
    )]
    Explain(OfDaemon<ExplainArgs>),
    /// Show what happens to the next frames that come in by a port: port by port, with times.
    ///
    /// Frames are known again by their bytes, whatever stations, tags and hop counts they have.
    #[command(after_help = "Examples: sidecore trace web; sidecore trace web --next 20 'icmp or arp'")]
    Trace(OfDaemon<TraceArgs>),
    /// Serve a page that shows what runs: the topology with its traffic, ports, I/O cores, and the way of a
    /// frame.
    ///
    /// It is a client of the control socket, with your rights. On TCP it prints a URL with a token; a unix
    /// socket is for a reverse proxy.
    #[command(after_help = "Examples: sidecore web; sidecore web --listen unix:/run/sidecore/web.sock")]
    Web(OfDaemon<WebArgs>),
    /// Make a file the running configuration: add, change and delete ports, switches, routers, tenants,
    /// groups and access lists, all or nothing.
    Apply(OfDaemon<ApplyArgs>),
    /// Write the running configuration to a file.
    Save(OfDaemon<SaveArgs>),
    /// Move a port's ingress queues to another I/O core.
    ///
    /// The balancer may move them again, unless the daemon runs with --balance off.
    #[command(after_help = "Examples: sidecore move web 1; sidecore move web/0 1")]
    Move(OfDaemon<MoveArgs>),
    /// Set the number of active I/O cores: those from number 0 on.
    ///
    /// The balancer may change it again by the cores' load, unless the daemon runs with --balance off.
    Cores(OfDaemon<CoresArgs>),
    /// Grow a disk to the present size of its file, and tell its guest.
    ///
    /// Make the file or block device longer first: truncate -s +1G FILE, lvextend. Disks cannot shrink.
    Resize(OfDaemon<ResizeArgs>),
    /// Show on which processors, caches and NUMA nodes I/O cores, their queues and guests' vCPUs are.
    ///
    /// Reports bad placement (vCPUs that may run on an I/O core's processor or physical core, memory of
    /// guests on another node) and the command that fixes it. vCPUs are found by the names that QEMU gives
    /// their threads.
    Place(OfDaemon<PlaceArgs>),
    /// Reserve time of processors for the threads of the VMM behind a port.
    ///
    /// Each thread gets the first of these that the kernel grants: SCHED_DEADLINE (with --cpus, in an
    /// exclusive cpuset), SCHED_RR, a cap by cpu.max, affinity. The command says what that is, and why not
    /// more. It runs with your rights, and writes down in your runtime directory what it does, for --undo.
    /// Threads are found by the names that QEMU gives them.
    #[command(after_help = "Examples: sidecore reserve web --runtime 5ms --period 10ms; \
        sidecore reserve web --vcpu 0 --fifo 10 --cpus 3; sidecore reserve web --undo")]
    Reserve(OfDaemon<ReserveArgs>),
    /// Make, join and list ports by VALE's names, as netmap's vale-ctl does.
    ///
    /// `valeS:P` is port P of switch S; `vale:P` is on the default switch. Programs that open such a name
    /// make the port, and the switch, if they are not there.
    #[command(
        after_help = "Examples: sidecore vale-ctl -n p1; sidecore vale-ctl -a vale0:p1; sidecore vale-ctl -l"
    )]
    ValeCtl(ValeCtlArgs),
    /// Capture the frames of ports, or of all, in both directions, as pcapng.
    ///
    /// Inbound is into the switch, outbound is out of it. A dropped frame has the reason in a comment.
    /// The ports' traffic does not change. SIGINT ends the capture and leaves a complete file.
    #[command(
        after_help = "Examples: sidecore capture web -w - | tcpdump -n -r -; sidecore capture --on-drop -w drops.pcapng; sidecore capture web db --filter 'udp port 53' -C 10M -W 5 -w dns.pcapng"
    )]
    Capture(OfDaemon<CaptureArgs>),
    /// Send, receive and measure on a port, with the options and the output of netmap's pkt-gen.
    ///
    /// Ends after -n frames or with SIGINT, and then prints a summary.
    #[command(after_help = PKT_GEN_PORTS)]
    PktGen(PktGenArgs),
    /// Measure sidecore beside other programs, under the same load in the same run.
    ///
    /// Starts `sidecore-bench`, which is beside this program. `sidecore bench --help` lists the benchmarks.
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Bench {
        /// A benchmark and its options.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
    /// Print completions for a shell.
    Completions(CompletionsArgs),
    /// Print the man page, or write one for every command into a directory.
    Man(ManArgs),
    /// Print the OpenAPI description of the control socket.
    Openapi,
    /// Do what takes privileges, for a daemon without any. The daemon starts this itself; the socket is
    /// standard input.
    #[command(hide = true)]
    Broker(BrokerArgs),
    /// Receive the descriptors that VMMs send. The daemon starts this itself; the socket is standard input.
    #[command(hide = true)]
    Door,
    /// Open a disk's file, however long that takes. The daemon's broker starts this itself; the socket is
    /// standard input.
    #[command(hide = true)]
    OpenDisk,
    /// Keep descriptors for the next daemon. The daemon starts this itself; the socket is standard input.
    #[command(hide = true)]
    Hold {
        /// Where it is found; the file goes when it ends.
        path: Option<PathBuf>,
        /// The port whose VMM it keeps, as JSON: while no daemon is there, it answers for the port's card.
        #[arg(default_value = "")]
        of: String,
    },
}

/// What a broker is told.
#[derive(Debug, Args)]
pub struct BrokerArgs {
    /// The daemon's control socket: what it keeps is beside it.
    #[arg(long)]
    pub socket: PathBuf,
    /// The configuration file.
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// The daemon has given up its privileges.
    #[arg(long)]
    pub strict: bool,
    /// With `strict`: a path or interface that the daemon may use, as operators name it; may be repeated.
    #[arg(long)]
    pub named: Vec<OsString>,
    /// Permission bits of the control socket.
    #[arg(long)]
    pub socket_mode: Option<Mode>,
    /// Owner of the control socket.
    #[arg(long)]
    pub socket_owner: Option<Owner>,
}

/// Where the daemon listens.
#[derive(Debug, Args)]
pub struct Control {
    /// Control socket of the daemon [default: $SIDECORE_SOCKET, else /run/sidecore/control.sock for
    /// root and $XDG_RUNTIME_DIR/sidecore/control.sock for others].
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

/// The arguments of a command that asks a daemon, and where that one listens.
#[derive(Debug, Args)]
pub struct OfDaemon<A: Args> {
    #[command(flatten)]
    pub args: A,
    #[command(flatten)]
    pub control: Control,
}

impl<A: Args> Deref for OfDaemon<A> {
    type Target = A;

    fn deref(&self) -> &A {
        &self.args
    }
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Configuration to start with.
    pub config: Option<PathBuf>,
    /// Port to add to those of the file.
    #[arg(long = "port", value_name = "NAME=KIND:WHERE[,KEY=VALUE]")]
    pub ports: Vec<String>,
    /// Switch to add to those of the file.
    #[arg(long = "switch", value_name = "NAME[,KEY=VALUE]")]
    pub switches: Vec<String>,
    /// Router to add to those of the file; keys: control, grace.
    #[arg(long = "router", value_name = "NAME[,KEY=VALUE]")]
    pub routers: Vec<String>,
    /// Tenant to add to those of the file.
    #[arg(long = "tenant", value_name = "NAME[,KEY=VALUE]")]
    pub tenants: Vec<String>,
    /// Group to add to those of the file.
    #[arg(long = "group", value_name = "NAME[,KEY=VALUE]")]
    pub groups: Vec<String>,
    #[command(flatten)]
    pub control: Control,
    #[command(flatten)]
    pub daemon: options::DaemonFlags,
    /// What to log on standard error: error, warn, info, debug, trace, or module=level lists.
    #[arg(long, value_name = "FILTER", default_value = "info")]
    pub log: String,
}

/// What `show` can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Topic {
    /// The whole in short: switches, wires and routers with their ports, what is wrong with these, and the
    /// I/O cores.
    Overview,
    /// Ports: peers, links, counters.
    Ports,
    /// Switches: how they find destinations, and their ports.
    Switches,
    /// Addresses that the switches have learned or were given, with their ports.
    Mac,
    /// Routers with their ports.
    Routers,
    /// Tenants: their ports, and what they were granted of I/O cores, used and waited for.
    Tenants,
    /// Access lists: their rules, and on how many frames each decided.
    Acl,
    /// Groups: their members, what these do, and how many of the flows' buckets they have.
    Groups,
    /// Routes of a router (NAME), with their next hops.
    Routes,
    /// Neighbours of all routers, with their addresses.
    Neighbours,
    /// I/O cores: busy, idle and asleep, in the last second and since the start.
    Cores,
    /// Queues of ports; with --wide also why visits ended, and how long frames waited.
    Queues,
    /// One port (NAME): everything that the other topics show about it.
    Port,
    /// Disks: requests, bytes, errors by name, latencies.
    Disks,
    /// Frames that were dropped, by port and reason, the most frequent first.
    Drops,
    /// Your reservations for the threads of VMMs, which `reserve` made.
    Reservations,
    /// Processes that keep VMMs' connections, and whether a daemon is there; it need not be.
    Holders,
    /// The daemon: its program, and the restrictions of its sandbox.
    Daemon,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// What to show.
    #[arg(default_value = "overview")]
    pub topic: Topic,
    /// For `port` the name of the port, for `routes` that of the router.
    #[arg(required_if_eq_any([("topic", "port"), ("topic", "routes")]))]
    pub name: Option<String>,
    /// Show all columns that a topic has.
    #[arg(long)]
    pub wide: bool,
    /// Repeat each second; ports show the rates of the last second, as the overview always does.
    #[arg(long, conflicts_with = "json")]
    pub watch: bool,
    /// Print JSON, as described in docs/json.md.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub control: Control,
    /// Counters file to read if the daemon is gone [default: beside the control socket].
    #[arg(long, value_name = "PATH")]
    pub counters: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Name of the port [default: all].
    pub port: Option<String>,
    /// Print JSON, as described in docs/json.md.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Go on with what happens, also after the daemon was restarted.
    #[arg(long)]
    pub follow: bool,
    /// Print JSON, an object a line, as described in docs/json.md.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct RestartArgs {
    /// Names of ports.
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
}

#[derive(Debug, Args)]
pub struct LogArgs {
    /// error, warn, info, debug, trace, or module=level lists [default: print the present filter].
    pub filter: Option<String>,
}

/// What a command is about, if not ports.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct Sort {
    /// Switches instead of ports.
    #[arg(long)]
    pub switch: bool,
    /// Routers instead of ports; keys: control, grace.
    #[arg(long)]
    pub router: bool,
    /// Tenants instead of ports: each pays for the ports with tenant=NAME.
    #[arg(long)]
    pub tenant: bool,
    /// Groups instead of ports: each has the members whose ports say group=NAME.
    #[arg(long = "group")]
    pub of_groups: bool,
    /// Access lists instead of ports; `sidecore acl` makes them.
    #[arg(long)]
    pub acl: bool,
}

#[derive(Debug, Args)]
pub struct AddArgs {
    /// Ports, as NAME=KIND:WHERE[,KEY=VALUE]...; with --switch, --router, --tenant, --group: those, as
    /// NAME[,KEY=VALUE]...
    #[arg(required = true, value_name = "SPEC")]
    pub specs: Vec<String>,
    #[command(flatten)]
    pub sort: Sort,
}

#[derive(Debug, Args)]
pub struct DelArgs {
    /// Names of ports, or with --switch, --router, --tenant, --group, --acl of those.
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub sort: Sort,
}

#[derive(Debug, Args)]
pub struct SetArgs {
    /// Name of the port, or with --switch, --router, --tenant, --group of one of those; GROUP/MEMBER:
    /// weight=N of that.
    pub name: String,
    /// New values; an empty value restores the default. The command says if the port had to restart.
    #[arg(required = true, value_name = "KEY=VALUE")]
    pub pairs: Vec<String>,
    #[command(flatten)]
    pub sort: Sort,
}

#[derive(Debug, Args)]
pub struct AclArgs {
    /// Name of the list.
    pub name: String,
    /// File with its rules, a line each; `-` is standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// What becomes of frames that no rule matches: `permit` or `deny`.
    #[arg(long, value_name = "ACTION", default_value = "deny")]
    pub default: String,
}

#[derive(Debug, Args)]
pub struct MemberArgs {
    /// The group and its member.
    #[arg(value_name = "GROUP/MEMBER")]
    pub member: String,
}

#[derive(Debug, Args)]
pub struct DrainArgs {
    #[command(flatten)]
    pub of: MemberArgs,
    /// Wait until the member has no flows, and say how many buckets of them are left.
    #[arg(long)]
    pub wait: bool,
}

/// What `route` does.
#[derive(Debug, Subcommand)]
pub enum RouteCommand {
    /// Add a route, or replace the route with the same prefix.
    #[command(after_help = "Examples: sidecore route add r 10.0.0.0/8 via 192.0.2.1 192.0.2.2; \
        sidecore route add r fd00::/8 via fe80::1 port web; sidecore route add r 10.9.0.0/16 blackhole")]
    Add(OfDaemon<RouteAddArgs>),
    /// Delete a route that was added or configured.
    Del(OfDaemon<RouteDelArgs>),
}

#[derive(Debug, Args)]
pub struct RouteAddArgs {
    /// Name of the router.
    pub router: String,
    /// The destination, as ADDRESS/LENGTH.
    pub prefix: String,
    /// `via` and one gateway or several (each flow uses one); `port` and the port's name; or `blackhole`,
    /// `unreachable`, `prohibit`.
    #[arg(required = true, value_name = "WAY")]
    pub way: Vec<String>,
}

#[derive(Debug, Args)]
pub struct RouteDelArgs {
    /// Name of the router.
    pub router: String,
    /// The route's prefix, as ADDRESS/LENGTH.
    pub prefix: String,
}

#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// A router and a destination; or with --from a frame: hexadecimal digits, a capture file, whose first
    /// frame it is, or fields such as dst-mac=MAC src-mac=MAC src=ADDRESS dst=ADDRESS proto=tcp dport=80.
    #[arg(required = true, value_name = "WHAT")]
    pub what: Vec<String>,
    /// The port by which the packet or the frame comes in.
    #[arg(long, value_name = "PORT")]
    pub from: Option<String>,
    /// Print JSON, as described in docs/json.md.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct TraceArgs {
    /// Name of the port.
    pub port: String,
    /// Only frames that match this expression, which tcpdump compiles (pcap-filter(7)).
    #[arg(value_name = "FILTER")]
    pub filter: Option<String>,
    /// How many frames.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub next: u64,
    /// Print a JSON object in a line for each frame, as described in docs/json.md.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct WebArgs {
    /// Where to listen: an address of this host with a port, or unix:PATH.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8484")]
    pub listen: Listen,
    /// Let the page change ports, and drain members of groups.
    #[arg(long)]
    pub write: bool,
}

#[derive(Debug, Args)]
pub struct ApplyArgs {
    /// The file.
    pub file: PathBuf,
    /// Print the changes without making them.
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Args)]
pub struct SaveArgs {
    /// Output file; `-` is standard output [default: the file that the daemon was started with].
    /// Comments of the old file are lost.
    pub file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct MoveArgs {
    /// Name of the port, with `/` and the number of one of its ingress queues.
    #[arg(value_name = "PORT[/QUEUE]")]
    pub port: String,
    /// Number of the I/O core.
    pub core: usize,
}

#[derive(Debug, Args)]
pub struct ResizeArgs {
    /// Name of the disk's port.
    pub port: String,
}

#[derive(Debug, Args)]
pub struct PlaceArgs {
    /// Pin the threads of vCPUs that may run on a wrong processor.
    #[arg(long)]
    pub apply: bool,
    /// Print JSON, as described in docs/json.md.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["runtime", "fifo", "cpus", "undo"]))]
pub struct ReserveArgs {
    /// Name of a port of the VMM.
    pub name: String,
    /// Only this vCPU [default: every vCPU, I/O thread and vhost thread].
    #[arg(long, value_name = "N")]
    pub vcpu: Option<u32>,
    /// Time of a processor that each thread gets in each period, such as 5ms or 500us.
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "period", conflicts_with = "fifo")]
    pub runtime: Option<Duration>,
    /// The period.
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "runtime")]
    pub period: Option<Duration>,
    /// Priority of SCHED_FIFO, ahead of all ordinary threads.
    #[arg(long, value_name = "PRIO", value_parser = clap::value_parser!(u32).range(1..=99))]
    pub fifo: Option<u32>,
    /// The processors to run on, such as 2-3,6.
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    pub cpus: Option<Cpus>,
    /// Undo what was reserved for this VMM, also when the daemon has ended.
    #[arg(long, conflicts_with_all = ["vcpu", "runtime", "period", "fifo", "cpus", "force"])]
    pub undo: bool,
    /// Change what libvirt or others have pinned, too.
    #[arg(long)]
    pub force: bool,
}

fn duration(text: &str) -> Result<Duration, String> {
    let units = [("ms", 1_000), ("us", 1), ("s", 1_000_000)];
    let unit = units.iter().find_map(|(unit, us)| Some((text.strip_suffix(unit)?, us)));
    let time = unit.and_then(|(number, us)| number.parse::<u64>().ok()?.checked_mul(*us));
    time.map(Duration::from_micros)
        .ok_or_else(|| "allowed: a number with us, ms or s, such as 5ms".to_owned())
}

fn cpus(text: &str) -> Result<Cpus, String> {
    Cpus::read(text).ok_or_else(|| "allowed: numbers of processors, such as 2-3,6".to_owned())
}

#[derive(Debug, Args)]
pub struct CoresArgs {
    /// Number of active I/O cores.
    pub active: usize,
}

#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct ValeCtlArgs {
    #[command(flatten)]
    pub verb: ValeVerb,
    /// For -n, slots and rings: TX-SLOTS[,RX-SLOTS[,TX-RINGS[,RX-RINGS]]]; for -p, MODE[,FIRST-CPU[,CPUS]]
    /// with mode 1 or 2.
    #[arg(short = 'C', value_name = "N,…", value_delimiter = ',')]
    pub config: Vec<u32>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub control: Control,
    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    pub help: Option<bool>,
}

/// What `vale-ctl` does.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct ValeVerb {
    /// Make a persistent port that is on no switch yet.
    #[arg(short = 'n', value_name = "PORT")]
    pub newif: Option<String>,
    /// Remove a port that -n made and that is on no switch.
    #[arg(short = 'r', value_name = "PORT")]
    pub delif: Option<String>,
    /// Attach a port that is on no switch, or an interface of the host, to a switch.
    #[arg(short = 'a', value_name = "valeS:P")]
    pub attach: Option<String>,
    /// As -a, and attach the host's own network stack, too.
    #[arg(short = 'h', value_name = "valeS:P")]
    pub attach_host: Option<String>,
    /// Detach a port from its switch.
    #[arg(short = 'd', value_name = "valeS:P")]
    pub detach: Option<String>,
    /// List all ports on switches [default].
    #[arg(short = 'l')]
    pub list: bool,
    /// Show the switch and number of one port.
    #[arg(short = 'g', value_name = "valeS:P")]
    pub get: Option<String>,
    /// Have I/O cores poll a port. They poll every port anyway, so this only checks the processors.
    #[arg(short = 'p', value_name = "valeS:P")]
    pub poll: Option<String>,
    /// Undo -p.
    #[arg(short = 'P', value_name = "valeS:P")]
    pub poll_off: Option<String>,
}

/// Bytes of a file.
fn file_size(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is no size; allowed: at least 64K, such as 10M or 1G");
    size(text).filter(|bytes| *bytes >= 64 << 10).ok_or_else(bad)
}

#[derive(Debug, Args)]
pub struct CaptureArgs {
    /// Names of the ports [default: all that are there when it begins].
    #[arg(value_name = "PORT")]
    pub ports: Vec<String>,
    /// Output file; `-` is standard output.
    #[arg(short, long, value_name = "FILE")]
    pub write: PathBuf,
    /// Keep only frames that match this expression, which tcpdump compiles (pcap-filter(7)).
    #[arg(short, long, value_name = "EXPRESSION")]
    pub filter: Option<String>,
    /// Keep only frames that are dropped.
    #[arg(long)]
    pub on_drop: bool,
    /// Begin a new file at this size, such as 10M: FILE.0, FILE.1, …
    #[arg(short = 'C', long, value_name = "SIZE", value_parser = file_size)]
    pub file_size: Option<u64>,
    /// Most files, of which the oldest is written over.
    #[arg(short = 'W', long, value_name = "N", requires = "file_size", value_parser = clap::value_parser!(u32).range(1..))]
    pub files: Option<u32>,
    /// Most bytes of a frame to keep [default: all].
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(14..=262_144))]
    pub snaplen: Option<u32>,
    /// Frames after which the capture ends [default: no end].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
}

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell.
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub struct ManArgs {
    /// Directory to write sidecore.1, sidecore-run.1, … into [default: print sidecore.1].
    pub directory: Option<PathBuf>,
}

impl Control {
    /// The socket: the flag, else the environment, else the place that fits the user.
    pub fn path(&self) -> PathBuf {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        self.socket
            .clone()
            .or_else(|| set("SIDECORE_SOCKET"))
            .unwrap_or_else(|| default_directory().join("control.sock"))
    }
}

fn default_directory() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|value| !value.is_empty());
    match (rustix::process::geteuid().is_root(), runtime) {
        (false, Some(runtime)) => PathBuf::from(runtime).join("sidecore"),
        _ => PathBuf::from("/run/sidecore"),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_table_is_sound() {
        super::Cli::command().debug_assert();
    }
}
