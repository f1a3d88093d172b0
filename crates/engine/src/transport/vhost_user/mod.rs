//! vhost-user: the conversation with a VMM that runs a virtio device's other half.
//!
//! Theory of operation. Each device has a socket of its own with one client at a time (`super::server`), with
//! which a [`conversation`] talks. It never touches a frame; it sets rings up ([`backend`]) and hands them to
//! the device. It blocks on nothing but its own poll and the I/O core that gives a ring back, so it can
//! always be stopped.
//!
//! Reconnection. A VMM that finds its back end gone replays the whole set-up to the next one. Where its
//! rings stand is taken from guest memory (split) or from our journal (packed, [`journal`]), not from
//! what the VMM remembers; what was in flight in a ring of requests is done again (`virtq::Region`).
//!
//! Faults. What breaks the protocol or a ring ends the conversation.
//!
//! Limits: no IOMMU (ACCESS_PLATFORM), no postcopy, no in-band notifications, no requests to the front end
//! but that a disk has grown ([`channel`]), and a disabled ring is left alone where the specification would
//! have its frames discarded: they go out when it is enabled again.

mod backend;
mod channel;
mod conversation;
mod handlers;
mod journal;
mod log;
mod messages;
mod ring;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use super::server::socket::{check_path, Endpoint, SocketError, MAX_PATH};

use self::backend::Backend;
use self::channel::Channel;
use self::conversation::Conversation;
use self::journal::RingSlots;
use super::server::connection::Connection;
use super::server::single::{Protocol, Server};
use super::server::socket::PeerSource;
use super::Unable;
use crate::device::VirtioDevice;
use crate::disk::Disk;
use crate::port::{Attachment, AttachmentStatus, Lack, Port};
use crate::sandbox::open::{journal, journal_at};

/// What an operator can choose of the conversation.
pub struct VhostUserConfig {
    /// Where the VMM is met.
    pub endpoint: Endpoint,
    /// Where packed rings keep their positions, and rings of requests what is in flight, so that the guest
    /// goes on after this process was killed. Best on a tmpfs. Without it positions survive the connection
    /// but not the process.
    pub journal: Option<JournalAt>,
}

/// Where a journal is.
pub enum JournalAt {
    /// In the daemon's folder of journals, under the name of the port; none if there is no such folder.
    Ours,
    /// The operator's file; one that is there has to be ours alone.
    Path(PathBuf),
}

/// A virtio device on a vhost-user socket.
pub struct VhostUser {
    server: Server,
    disk: Option<Arc<Disk>>,
    channel: Arc<Channel>,
}

impl VhostUser {
    /// Puts `device` on the socket and talks to the other end, until this is dropped.
    ///
    /// # Errors
    /// The socket or the journal cannot be used.
    pub fn start<D: VirtioDevice + 'static>(config: VhostUserConfig, device: D) -> Result<VhostUser, Unable> {
        // First: the process that has the socket may use the journal.
        let source = PeerSource::new(config.endpoint)?;
        let positions = open_journal(config.journal, &device)?;
        let port = Arc::clone(device.port());
        let disk = device.disk().cloned();
        let backend = Backend::new(device, positions);
        let channel = Arc::clone(&backend.channel);
        let backend = Arc::new(Mutex::new(backend));
        Ok(VhostUser { server: Server::start(source, Spoken { port, backend })?, disk, channel })
    }
}

/// The journal of the port of `device`, with room for all its rings; without a place for one it ends with the
/// process.
fn open_journal<D: VirtioDevice>(at: Option<JournalAt>, device: &D) -> Result<RingSlots, Unable> {
    let (rings, entries) = (device.rings(), RingSlots::ours(device.completes_in_order()));
    let opened = match at {
        None => Ok(None),
        Some(JournalAt::Path(path)) => journal_at(&path).map(Some).map_err(|e| (path, e)),
        Some(JournalAt::Ours) => journal(&device.port().name),
    };
    let fail = |(path, e): (PathBuf, io::Error)| {
        let path = path.display();
        format!("cannot use the journal \"{path}\": {e}; choose another with journal=PATH, or do without: journal=none")
    };
    let Some(journal) = opened.map_err(fail)? else { return Ok(RingSlots::anonymous(rings, entries)?) };
    let slots = match RingSlots::open(&journal.file, rings, entries) {
        Ok(slots) => slots,
        Err(source) => {
            let path = journal.path.clone();
            journal.undo();
            return Err(fail((path, source)).into());
        }
    };
    if let (Some(disk), Some((slot, word))) = (device.disk(), slots.last_word()) {
        disk.keep(journal.file, slot, word)?;
    }
    Ok(slots)
}

impl Attachment for VhostUser {
    fn status(&self) -> AttachmentStatus {
        self.server.status()
    }

    /// Down: hangs up and is not to be reached, which is what VMMs show their guest as a lost carrier.
    fn set_link(&mut self, up: bool) -> Result<(), String> {
        self.server.set_link(up);
        Ok(())
    }

    fn lack(&self) -> Option<Lack> {
        self.server.lack()
    }

    fn disk(&self) -> Option<&Arc<Disk>> {
        self.disk.as_ref()
    }

    fn disk_changed(&self) -> bool {
        self.channel.config_changed()
    }

    /// Only the device's configuration tells: hanging up would leave no peer there for the other end to
    /// follow, and neither would ever come up.
    fn follow(&mut self, _: bool) -> Result<(), String> {
        Ok(())
    }
}

/// vhost-user, as its socket's server speaks it.
struct Spoken<D: VirtioDevice> {
    port: Arc<Port>,
    backend: Arc<Mutex<Backend<D>>>,
}

impl<D: VirtioDevice + 'static> Protocol for Spoken<D> {
    type Exchange = Conversation<D>;
    const THREAD: &'static str = "vu";
    const BRIEFLY: Duration = Duration::ZERO;
    const SILENCE: (&'static str, &'static str) = ("no_message", "said nothing");
    const LIMITS_ALL: bool = false;
    const FORGETS: bool = false;

    fn port(&self) -> &Arc<Port> {
        &self.port
    }

    fn begin(&mut self, stream: Connection) -> io::Result<Conversation<D>> {
        Conversation::new(stream, Arc::clone(&self.backend))
    }

    fn failed(&mut self) {
        crate::lock(&self.backend).disconnect(true);
    }
}
