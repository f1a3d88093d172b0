//! `bench`: the table of its commands and flags, and the way from flags to measurements.

use std::path::{Path, PathBuf};

use clap::{CommandFactory, Parser, Subcommand};

use crate::{
    away, blk, cost::containment, cost::policy, e1000, fib, group, idle, many, matrix, ptnet, pvp, rfc2544,
    router, routes, saved, sched, tap, vale, virtio_user, vsr, vxlan,
};

/// Measure sidecore beside other programs, under the same load in the same run.
#[derive(Debug, Parser)]
#[command(name = "sidecore-bench", bin_name = "sidecore bench")]
#[command(version, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    /// What to measure.
    #[command(subcommand)]
    pub benchmark: Benchmark,
}

/// The table of benchmarks: what each is told, and what it does.
macro_rules! benchmarks {
    ($($(#[$about:meta])* $name:ident($args:ty) => $run:path,)*) => {
        /// The benchmarks.
        #[derive(Debug, Subcommand)]
        pub enum Benchmark {
            $($(#[$about])* $name($args),)*
            /// Print completions for a shell.
            #[command(hide = true)]
            Completions {
                /// The shell.
                shell: clap_complete::Shell,
            },
            /// Write the man pages of the benchmarks.
            #[command(hide = true)]
            Man {
                /// The directory to write sidecore-bench.1, sidecore-bench-pvp.1, … into.
                directory: PathBuf,
            },
        }

        /// Runs a benchmark, and prints what it measured.
        ///
        /// # Errors
        /// Something that it needs is missing, or it failed; the text is for people.
        pub fn run(benchmark: &Benchmark) -> Result<(), String> {
            match benchmark {
                $(Benchmark::$name(args) => $run(args),)*
                Benchmark::Completions { shell } => {
                    let mut text = Vec::new();
                    clap_complete::generate(*shell, &mut Cli::command(), "sidecore-bench", &mut text);
                    sidecore_pktgen::print(&String::from_utf8_lossy(&text))
                }
                Benchmark::Man { directory } => man(directory)
                    .map_err(|e| format!("cannot write man pages into {}: {e}", directory.display())),
            }
        }
    };
}

benchmarks! {
    /// Frames between two virtio ports through the learning switch, both ways at once.
    ///
    /// Beside DPDK's testpmd and Open vSwitch with DPDK, as far as they are installed. Takes two processors.
    Pvp(pvp::Args) => pvp::run,
    /// TCP between two network namespaces, by TAPs on our switch.
    ///
    /// Beside veth pairs on a Linux bridge. Needs root, iperf3 and iproute2, and no daemon.
    Tap(tap::Args) => tap::run,
    /// Frames one way, from each kind of port to each kind.
    ///
    /// Beside the Linux bridge and Open vSwitch where they support the pair. Needs root and iproute2; takes
    /// two processors.
    Matrix(matrix::Args) => matrix::run,
    /// The cost of a frame and the memory of a port, with more and more silent ports.
    Ports(many::PortsArgs) => many::ports,
    /// The cost of sandbox, address guard and storm limits for a frame.
    ///
    /// By turns in daemons that run at the same time. Takes two processors.
    Containment(containment::Args) => containment::run,
    /// The cost of a port's rules on a switch for a frame: VLAN, mirror, and rules at another port.
    ///
    /// By turns in one daemon. Takes two processors.
    Policy(policy::Args) => policy::run,
    /// Native e1000 and e1000e drivers: the paper's Figure 4 with a price for each trap, and full speed.
    ///
    /// Takes two processors.
    E1000(e1000::Args) => e1000::run,
    /// Native ptnet drivers as guests, through the learning switch and a pipe.
    ///
    /// Beside virtio-net: full speed, batches of 1 to 256 frames, kicks a frame. Takes two processors.
    Ptnet(ptnet::Args) => ptnet::run,
    /// Connected, silent ports: their processor time, and the delay of the first frame of one.
    ///
    /// Also their cost for a pair of ports with traffic. Takes two processors.
    Idle(idle::Args) => idle::run,
    /// DPDK's virtio driver as the guest: does every frame come back at half load?
    ///
    /// For every combination of socket role, ring format, mergeable buffers and number of queues. Needs
    /// dpdk-testpmd.
    VirtioUser(virtio_user::Args) => virtio_user::run,
    /// The cost of a frame on a switch of ring ports, by the number of receivers.
    ///
    /// Unicast and broadcast, beside the cost of copying it.
    Vale(vale::Args) => vale::run,
    /// 1 to 14 guests on one I/O core: rate, latency and fairness.
    ///
    /// Guests send requests, small writes or a key-value server's answers. Beside a thread for each device on
    /// the same processor. Takes two processors.
    Share(sched::share::Args) => sched::share::run,
    /// Streams and request/response guests on one I/O core: the cost of each for the other.
    ///
    /// Beside a thread for each device.
    Mix(sched::mix::Args) => sched::mix::run,
    /// The contributions of scheduling, polling and saved interrupts, one after the other.
    ///
    /// Counts kicks and interrupts a second.
    Parts(sched::parts::Args) => sched::parts::run,
    /// The share of an I/O core that a guest gets with a budget of 5 to 95 %, by time and by frames.
    Budget(sched::budget::Args) => sched::budget::run,
    /// The effect of `rate`, `weight`, `reclaim` and `class`.
    ///
    /// Frames and core time of guests that flood, and the latency of one that waits beside floods.
    Grants(sched::grants::Args) => sched::grants::run,
    /// A flow while its queue moves between I/O cores, and while cores come and go.
    ///
    /// Frames are numbered: counts lost and reordered ones, and measures pauses.
    Move(sched::moves::Args) => sched::moves::run,
    /// Disks of 1 to 14 guests on one I/O core: rate, latency and cost of requests.
    ///
    /// Random and sequential requests, beside qemu-storage-daemon and, as the limit, the host's own io_uring
    /// (fio). Takes two processors.
    Blk(blk::Args) => blk::run,
    /// The forwarding tables: lookups a second, and the time that a change of a route takes.
    ///
    /// Also what changes cost the lookups. Takes two processors.
    Fib(fib::Args) => fib::run,
    /// The router on one core: frames of 64 bytes, by the number of routes and flows.
    ///
    /// Beside the kernel's forwarding and DPDK's l3fwd. Takes two processors, and root for the kernel.
    Router(router::Args) => router::run,
    /// A router's control plane: the delay from FRR's message until a route is in force.
    ///
    /// For a whole table of routes by BGP, and for single changes. Needs root and FRR.
    Routes(routes::Args) => routes::run,
    /// A switch over two hosts by VXLAN: TCP, and frames of 64 and 1500 bytes of one flow.
    ///
    /// Beside the kernel's VXLAN and bridge. Needs root, iperf3 and iproute2; takes two processors.
    Vxlan(vxlan::Args) => vxlan::run,
    /// A router in a guest, as the paper on virtual routers measured it: figure by figure.
    ///
    /// Priorities, reservations, queues and interconnects. Needs root; takes two processors.
    Vsr(vsr::Args) => vsr::run,
    /// A group of four: flows that come and go while a member drains, comes back and is killed.
    ///
    /// Which of them move, what is lost, how even they are; and what a group costs each frame. Takes two
    /// processors.
    Group(group::Args) => group::run,
    /// Guests with a card of each kind, and a disk, while the daemon is away: killed, or unable to start.
    ///
    /// Counts cards and VMs that are lost, and the time until guests are served again. Needs the sources.
    Away(away::Args) => away::run,
    /// RFC 2544 between two ports: rates without loss, latency by load, loss curve.
    ///
    /// With the search of RFC 9971; also the rate with half a percent of loss, the longest burst, recovery
    /// and reset. Of our switch or router, of others beside it, or of two ports that exist. Takes two
    /// processors.
    Rfc2544(Box<rfc2544::Args>) => rfc2544::run,
    /// The limit of one hop: one core that only copies frames between two regions of shared memory.
    Limit(vale::LimitArgs) => vale::run_limit,
    /// Draw the figure of a benchmark again, from what it printed with `--json`.
    Draw(saved::Args) => saved::run,
}

fn man(directory: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    clap_mangen::generate_to(Cli::command(), directory)
}
