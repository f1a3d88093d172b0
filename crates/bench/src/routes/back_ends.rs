//! How soon other members of a group have a control plane's routes: each is a namespace with
//! `sidecore-agent`, whose kernel tells of each route that it gets, and that counts.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{bind, recv, socket_with, AddressFamily, RecvFlags, SocketFlags, SocketType};
use rustix::process::{kill_process, Pid, Signal};

use super::super::frr::inside;
use super::super::peers::Process;
use super::speaker::Prefix;
use super::LITTLE;
use crate::prelude::*;

/// As many as the aim names.
pub const BACK_ENDS: usize = 8;
/// The station address of the router's port, to which their routes lead.
pub const ROUTER: &str = "02:00:00:00:00:09";
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
    pub fn forget(&self) {
        let mut room = [0; 4096];
        while !matches!(recv(&self.told, &mut room[..], RecvFlags::empty()), Err(Errno::AGAIN)) {}
    }

    /// When its kernel has told of a route to `prefix`.
    pub fn hear(&self, prefix: Prefix) -> Result<Instant> {
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

    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.agent.id()).ok().and_then(Pid::from_raw).ok_or("no process")?;
        kill_process(pid, signal).map_err(text)
    }
}
