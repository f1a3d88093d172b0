//! How soon other members of a group have a control plane's routes: each is a namespace with `sidecore-agent`, whose kernel tells of each
//! route that it gets, and that counts.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{bind, recv, socket_with, AddressFamily, RecvFlags, SocketFlags, SocketType};
use rustix::process::{kill_process, Pid, Signal};

use super::super::common::{median, percentile, text, Result};
use super::super::frr::inside;
use super::super::net::Net;
use super::super::peers::{Process, Scratch};
use super::speaker::Prefix;
use super::stage::{Stage, GATEWAYS, ROUTER};
use super::{Table, LITTLE, PATIENCE};

/// As many as the aim names.
pub const BACK_ENDS: usize = 8;
/// Messages of a kernel's changed IPv4 routes (linux/rtnetlink.h, RTMGRP_IPV4_ROUTE).
const ROUTES: u32 = 0x40;

/// A back-end.
pub struct BackEnd {
    agent: Process,
    pub socket: PathBuf,
    /// Where its kernel tells of routes.
    told: OwnedFd,
    _net: Net,
}

impl BackEnd {
    /// Number `number` of them, with an address on the router's network.
    ///
    /// # Errors
    /// There is no permission, or the agent is not built.
    pub fn start(scratch: &Scratch, number: usize) -> Result<BackEnd> {
        let net = Net::quiet()?;
        net.veth("eth0", "other")?;
        net.ip(&format!("link set eth0 address {ROUTER}"))?;
        net.ip(&format!("address add 10.0.1.{}/24 dev eth0", 100 + number))?;
        let socket = scratch.file(format!("m{number}.agent"));
        let program = std::env::current_exe().map_err(text)?.with_file_name("sidecore-agent");
        if !program.exists() {
            return Err(format!("no {}: cargo build --release -p sidecore-routing", program.display()));
        }
        let words = ["--listen".to_owned(), socket.to_string_lossy().into_owned()];
        let log = scratch.file(format!("m{number}.log"));
        let agent = inside(&net, log, &program.to_string_lossy(), &words)?;
        let told = net.enter(|| {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let told = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None).map_err(text)?;
            bind(&told, &SocketAddrNetlink::new(0, ROUTES)).map_err(text)?;
            Ok(told)
        })?;
        Ok(BackEnd { agent, socket, told, _net: net })
    }

    /// What its kernel has told so far counts no more.
    fn forget(&self) {
        let mut room = [0; 4096];
        while !matches!(recv(&self.told, &mut room[..], RecvFlags::empty()), Err(Errno::AGAIN)) {}
    }

    /// When its kernel has told of a route to `prefix`.
    fn hear(&self, prefix: Prefix) -> Result<Instant> {
        // RTA_DST, as it stands in the message.
        let wanted = [&[8, 0, 1, 0], &prefix.network().octets()[..]].concat();
        let (end, mut room) = (Instant::now() + LITTLE, [0; 4096]);
        loop {
            let left = Timespec::try_from(end.saturating_duration_since(Instant::now())).map_err(text)?;
            if poll(&mut [PollFd::new(&self.told, PollFlags::IN)], Some(&left)).map_err(text)? == 0 {
                return Err(format!(
                    "{}: its kernel gets no route to {:?}",
                    self.socket.display(),
                    prefix.network()
                ));
            }
            match recv(&self.told, &mut room[..], RecvFlags::empty()) {
                Ok((len, _)) if room[..len].windows(8).any(|some| some == wanted) => {
                    return Ok(Instant::now())
                }
                Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS) => {}
                Err(e) => return Err(e.to_string()),
            }
        }
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.agent.id()).ok().and_then(Pid::from_raw).ok_or("no process")?;
        kill_process(pid, signal).map_err(text)
    }
}

/// What was found.
pub struct RouteTimes {
    /// Milliseconds from zebra's first word of a change until the last kernel has it.
    pub median_ms: f64,
    pub p99_ms: f64,
    /// Seconds from zebra's last word of all routes until all agents have confirmed them.
    pub whole_s: f64,
    /// Milliseconds until an agent that stood still is consistent, after it went on.
    pub resync_ms: f64,
}

/// `routes` come, `changes` of them change, and more while one agent stands still for so long.
///
/// # Errors
/// FRR or the agent is not there, or routes do not arrive.
pub fn measure(routes: u32, changes: u16, stands: Duration) -> Result<RouteTimes> {
    let mut stage = Stage::start(BACK_ENDS)?;
    let mut table = Table::new();
    stage.reach(&table.expected(), PATIENCE)?;
    let all: Vec<Prefix> = (0..routes).map(Prefix).collect();
    table.routes = all.iter().map(|prefix| (*prefix, 0)).collect();
    stage.relay.clear();
    stage.speaker.announce(&all, GATEWAYS[0])?;
    stage.reach(&table.expected(), PATIENCE)?;
    let whole = stage.all_consistent(PATIENCE)?;
    let said = stage.relay.said().ok_or("zebra has said nothing")?;
    let whole_s = whole.saturating_duration_since(said.last).as_secs_f64();
    let mut times = Vec::new();
    for number in 0..changes {
        stage.back_ends.iter().for_each(BackEnd::forget);
        stage.relay.clear();
        let prefix = all[usize::from(number / 2) * 7919 % all.len()];
        match number % 2 {
            0 => stage.speaker.withdraw(&[prefix])?,
            _ => stage.speaker.announce(&[prefix], GATEWAYS[0])?,
        }
        let heard = stage.back_ends.iter().map(|it| it.hear(prefix)).collect::<Result<Vec<_>>>()?;
        let last = heard.into_iter().max().unwrap_or_else(Instant::now);
        let said = stage.relay.said().ok_or("zebra has said nothing")?;
        times.push(last.saturating_duration_since(said.first).as_secs_f64() * 1e3);
    }
    stage.all_consistent(LITTLE)?;
    // It stands still while a tenth of all routes goes.
    let (still, gone) = (&stage.back_ends[0], &all[..all.len().div_ceil(10)]);
    still.signal(Signal::STOP)?;
    stage.speaker.withdraw(gone)?;
    table.routes.retain(|prefix, _| !gone.contains(prefix));
    stage.reach(&table.expected(), PATIENCE)?;
    std::thread::sleep(stands);
    stage.back_ends[0].signal(Signal::CONT)?;
    let begun = Instant::now();
    let resync_ms = (stage.all_consistent(PATIENCE)? - begun).as_secs_f64() * 1e3;
    Ok(RouteTimes {
        median_ms: median(times.iter().copied()),
        p99_ms: percentile(times, 99),
        whole_s,
        resync_ms,
    })
}
