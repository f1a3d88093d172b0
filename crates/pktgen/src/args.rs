//! `pkt-gen`: its flags. Letters and meanings are those of netmap's pkt-gen; what is ours has a long name
//! only.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::address::{Endpoints, Mac};
use super::units::Count;

/// Where the ports of `-i` are explained.
pub const PORTS: &str = "\
Ports (-i):
  NAME, netmap:NAME, ring:NAME   ring port NAME of the daemon; a NAME with a slash is its socket's path
  valeS:NAME                     ring port NAME of switch S
  vhost-user:PATH[,role=server]  vhost-user socket; as client, or as server that the daemon connects to
  tap:IFNAME                     TAP interface: the host receives what is sent; made if there is none
  xdp:IFNAME, packet:IFNAME      interface of the host, by AF_XDP or AF_PACKET: frames go out to its network

Exit codes: 0 all -n frames were sent or received, and were correct with --verify; with -n 0 a signal ended the
run. 1 anything else; standard error says why.";

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Function {
    /// Send.
    Tx,
    /// Receive and count.
    Rx,
    /// Send one frame, wait for the answer, and repeat; print the round trip times.
    Ping,
    /// Answer pings.
    Pong,
}

/// `pkt-gen`.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct PktGenArgs {
    /// Print help.
    #[arg(long, short = 'h', action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Port to use, as below.
    #[arg(short = 'i', value_name = "PORT")]
    pub interface: String,
    /// What to do.
    #[arg(short = 'f', value_name = "FUNCTION", default_value = "rx")]
    pub function: Function,
    /// Frames, shared by all threads; 0: no end. K, M and G may follow a number.
    #[arg(short = 'n', value_name = "COUNT", default_value = "0")]
    pub count: Count,
    /// Bytes of a frame without frame check sequence [default: 60]. Twice: random between the two.
    #[arg(short = 'l', value_name = "BYTES", value_parser = clap::value_parser!(u16).range(16..))]
    pub length: Vec<u16>,
    /// Most frames in a batch [default: 512, ping and pong 1].
    #[arg(short = 'b', value_name = "FRAMES", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub burst: Option<u32>,
    /// Source addresses and ports of UDP, IP[:PORT[-IP:PORT]]: all in the range take turns.
    /// [default: 10.0.0.1]
    #[arg(short = 's', value_name = "RANGE")]
    pub source: Option<Endpoints>,
    /// Destination addresses and ports of UDP [default: 10.1.0.1].
    #[arg(short = 'd', value_name = "RANGE")]
    pub destination: Option<Endpoints>,
    /// Source MAC address [default: one that follows from the port's name].
    #[arg(short = 'S', value_name = "MAC")]
    pub source_mac: Option<Mac>,
    /// Destination MAC address [default: ff:ff:ff:ff:ff:ff; with --verify the receiver's].
    #[arg(short = 'D', value_name = "MAC")]
    pub destination_mac: Option<Mac>,
    /// Random source address and port out of the range, instead of each in turn.
    #[arg(short = 'z')]
    pub random_source: bool,
    /// Random destination address and port.
    #[arg(short = 'Z')]
    pub random_destination: bool,
    /// Processor of the first thread; further threads take the next ones [default: not pinned].
    #[arg(short = 'a', value_name = "CPU")]
    pub affinity: Option<usize>,
    /// With -a: how many processors the threads take turns on [default: as many as threads].
    #[arg(short = 'c', value_name = "CPUS", requires = "affinity")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub cpus: Option<u16>,
    /// Threads, each with a queue of its own.
    #[arg(short = 'p', value_name = "THREADS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: u16,
    /// Milliseconds between two progress lines.
    #[arg(short = 'T', value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub interval: u32,
    /// Seconds to wait before the start. Our ports need none, because they have no autonegotiation.
    #[arg(short = 'w', value_name = "SECONDS", default_value_t = 0)]
    pub wait: u32,
    /// Frames per second at most, over all threads. K, M and G may follow the number.
    #[arg(short = 'R', value_name = "RATE")]
    pub rate: Option<Count>,
    /// Print every frame, sent or received.
    #[arg(short = 'X')]
    pub dump: bool,
    /// rx: end when no frame has come for a second, once some have.
    #[arg(short = 'W')]
    pub until_silence: bool,
    /// Progress lines also tell average and standard deviation over the last 15 intervals.
    #[arg(short = 'A')]
    pub average: bool,
    /// Bit rates with preamble, gap and check sequence: 24 bytes more for each frame.
    #[arg(short = 'B')]
    pub framing: bool,
    /// Plain numbers, without K, M and G.
    #[arg(short = 'N')]
    pub plain: bool,
    /// Bytes of the virtio-net header before each frame of a ring port, set before the start
    /// [default: as the port has it].
    #[arg(short = 'H', value_name = "BYTES", value_parser = ["0", "10", "12"])]
    pub header: Option<String>,
    /// tx: send the frames of this pcap or pcapng file, again and again, instead of made ones.
    #[arg(short = 'P', value_name = "FILE", conflicts_with_all = ["length", "verify", "source", "destination", "source_mac", "destination_mac"])]
    pub replay: Option<PathBuf>,
    /// Verify: tx numbers the frames of each flow and adds a checksum over all bytes, rx checks them and
    /// acknowledges. The run fails if a frame is lost, reordered or changed.
    #[arg(long)]
    pub verify: bool,
    /// With --verify: frames that may be on their way unacknowledged [default: 512].
    #[arg(long, value_name = "FRAMES", requires = "verify")]
    #[arg(value_parser = clap::value_parser!(u32).range(256..=65536))]
    pub window: Option<u32>,
    /// rx: send one frame first, so that the switch knows where the port's address is.
    #[arg(long)]
    pub announce: bool,
    /// Never sleep and never yield: for processors that no other thread uses.
    #[arg(long)]
    pub busy: bool,
    /// Print the result as JSON, as described in docs/pkt-gen.md.
    #[arg(long)]
    pub json: bool,
}
