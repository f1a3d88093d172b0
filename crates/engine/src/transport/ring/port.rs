//! A running ring port, in the hands of its owner.

use std::sync::{Arc, Mutex};

use sidecore_abi::ring::Info;

use super::super::server::many::serve;
use super::super::server::socket::Listener;
use super::super::server::{OwnerLine, Running};
use super::super::Unable;
use super::common::{monitor_queue, ring_queues, Common, RingPortConfig};
use super::group::Member;
use super::server::Server;
use crate::graph::Scheduler;
use crate::host::ring::RingPortSettings;
use crate::mem::take_no_descriptors;
use crate::port::{Attachment, AttachmentStatus, Peer, Port};
use crate::slots::pipe::End as PipeEnd;

/// A running ring port.
pub struct RingPort {
    common: Arc<Common>,
    _running: Running,
}

impl RingPort {
    /// Listens at the socket; clients that attach become `port`.
    ///
    /// # Errors
    /// An impossible configuration, or what the system says of socket or thread.
    pub fn start(
        config: RingPortConfig,
        port: Arc<Port>,
        scheduler: Arc<dyn Scheduler>,
    ) -> Result<RingPort, Unable> {
        let member = match &config.memory {
            Some(name) => Some(Member::join(name, &config.geometry)?),
            None => None,
        };
        let join = |name: &String| PipeEnd::join(name, &config.geometry.of_pipe(), true);
        let end = config.pipe.as_ref().map(join).transpose()?;
        let info = match (&member, &end) {
            (_, Some(end)) => Info { mem_id: end.mem_id(), ..*end.region().info() },
            (Some(member), None) => member.info()?,
            (None, None) => config.geometry.layout()?,
        };
        let settings = Arc::new(RingPortSettings::default());
        if !settings.set_header(config.header, &port) {
            return Err(
                format!("a header of {} bytes is not possible; allowed: 0, 10, 12", config.header).into()
            );
        }
        let listener = Listener::bind(&config.path, config.mode, config.owner)?;
        take_no_descriptors(&listener);
        let name = format!("ring-{}", port.name);
        let state = Mutex::default();
        let common = Arc::new(Common { port, scheduler, config, member, end, info, settings, state });
        let (line, mut server) = (OwnerLine::new()?, Server::new(Arc::clone(&common)));
        let (owner, port) = (Arc::clone(&line), Arc::clone(&common.port));
        let running = Running::start(&line, name, move || {
            port.messages.is_held_here();
            serve(&mut server, listener, &owner);
        })?;
        Ok(RingPort { common, _running: running })
    }
}

impl Attachment for RingPort {
    fn status(&self) -> AttachmentStatus {
        let state = crate::lock(&self.common.state);
        let Info { tx_slots, rx_slots, .. } = self.common.info;
        let mut queues = ring_queues(&state.rings, (tx_slots, rx_slots));
        let mut features = match self.common.settings.header() {
            0 => Vec::new(),
            bytes => vec![format!("header-{bytes}")],
        };
        features.extend(self.common.config.memory.as_ref().map(|name| format!("memory-{name}")));
        let pipes = match state.ends {
            0 => String::new(),
            ends => format!("; open ends of pipes: {ends}"),
        };
        let peer = match (queues.is_empty(), state.ends) {
            (false, _) => Peer::Running,
            (true, 1..) => Peer::Connected,
            (true, 0) => Peer::Waiting,
        };
        queues.extend(state.monitors.iter().enumerate().map(|monitor| monitor_queue(monitor, rx_slots)));
        AttachmentStatus {
            peer,
            detail: format!(
                "listens at {}; clients so far: {}{pipes}",
                self.common.config.path.display(),
                state.attaches
            ),
            features,
            queues,
            ..AttachmentStatus::default()
        }
    }

    fn set_link(&mut self, up: bool) -> Result<(), String> {
        self.common.settings.set_down(!up);
        Ok(())
    }

    /// Rings have no carrier that a program could see; what it sends meanwhile is dropped at the other end.
    fn follow(&mut self, _: bool) -> Result<(), String> {
        Ok(())
    }
}
