//! One client's session: what was agreed, and what it gave us. What it does about commands is told in
//! `handlers`.
//!
//! Nothing here touches the socket, so that tests and fuzzers can speak to it directly.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use super::dma::{self, DmaTable};
use super::irqs;
use super::keep::{key, Keep};
use super::messages::{Answer, Refusal};
use super::regions::Regions;
use super::version::Agreed;
use crate::device::pci::{self, Command, Index, Interrupts, PciDevice};
use crate::mem::{eventfd, Files, GuestMap, Terms};
use crate::port::Lack;
use crate::sandbox::holder::{Found, Holder, Store};

/// Refusals of one session that are worth a warning; the rest is for debugging.
const WARNINGS: u64 = 16;

/// Looks at the memory of one client: firmware may turn the device on before there is anything in it.
const LOOKS: u32 = 64;

/// A device, and the lock that holds while one of its methods runs.
pub(super) type SharedDevice = Arc<Mutex<Box<dyn PciDevice>>>;

/// How long the control plane waits for a device that is busy with a command of its VMM.
pub(super) const BRIEFLY: Duration = Duration::from_millis(200);

/// The device under its lock, if it can be had within [`BRIEFLY`]: for callers that must not wait for a VMM.
/// (The mutex of the standard library cannot be waited for with a limit, hence the looks at it.)
pub(super) fn lock_briefly(device: &SharedDevice) -> Option<MutexGuard<'_, Box<dyn PciDevice>>> {
    let limit = Instant::now() + BRIEFLY;
    loop {
        match device.try_lock() {
            Ok(device) => return Some(device),
            Err(TryLockError::Poisoned(device)) => return Some(device.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= limit => return None,
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// A session.
pub(super) struct Session {
    pub(super) name: String,
    pub(super) device: SharedDevice,
    pub(super) interrupts: Arc<Interrupts>,
    pub(super) ends: irqs::Ends,
    pub(super) regions: Regions,
    pub(super) memory: DmaTable,
    pub(super) agreed: Option<Agreed>,
    pub(super) refused: u64,
    /// Looks at the client's memory that are left: none once there was something in it.
    pub(super) looks: u32,
    /// Where its holder is to be, once there is reason for one, and the port as JSON
    /// (`holder::Holder::start`).
    pub(super) hold: Option<(PathBuf, String)>,
    /// What the next daemon finds.
    pub(super) keep: Option<Keep>,
    /// Commands that were handled.
    pub(super) handled: u64,
    /// Changes of theirs that I/O cores notice, and that were not charged yet.
    pub(super) changes: usize,
    /// Keys of descriptors that the holder need not keep any more.
    pub(super) orphans: Vec<u64>,
    /// The holder was lost: a restart would disconnect the client.
    pub(super) unheld: bool,
    /// Another daemon goes on.
    pub(super) left: bool,
}

/// Words of an image that a session takes behind its device's.
const AGREED: usize = 8;
const SAVED: usize = AGREED + dma::SAVED;

impl Session {
    /// Begins a session with `device`, which no other session talks to. `name` is the port's.
    pub(super) fn new(name: &str, device: &SharedDevice, terms: &Terms) -> Session {
        let mut guard = crate::lock(device);
        Session {
            name: name.to_owned(),
            device: Arc::clone(device),
            interrupts: Arc::clone(guard.interrupts()),
            ends: irqs::Ends::new(),
            regions: Regions::new(&mut **guard),
            memory: DmaTable::new(terms),
            agreed: None,
            refused: 0,
            looks: LOOKS,
            hold: None,
            keep: None,
            handled: 0,
            changes: 0,
            orphans: Vec::new(),
            unheld: false,
            left: false,
        }
    }

    /// Starts the holder of the session on `stream` if it is due. Comes before the message is committed that
    /// shows that it is.
    pub(super) fn keep(&mut self, stream: &UnixStream) {
        if self.agreed.is_none() {
            return;
        }
        let Some((path, of)) = self.hold.take() else { return };
        let held = Holder::start(&path, &of).map_err(|e| e.to_string());
        if let Err(why) = held.and_then(|holder| self.keep_with(holder, stream)) {
            self.lost(&why);
        }
    }

    /// Keeps it with a holder that was started. How much of `stream` has been looked at is known to its
    /// reader.
    pub(super) fn keep_with(&mut self, holder: Holder, stream: &UnixStream) -> Result<(), String> {
        self.keep = Some(Keep::begin(holder, stream, &mut **crate::lock(&self.device), SAVED)?);
        Ok(())
    }

    /// The session that another daemon left with the holder at `path`, and its connection. The device goes on
    /// when this returns. `None`: there is none, or none that can go on; then it has been dropped, and the
    /// log says why.
    pub(super) fn find(
        name: &str,
        device: &SharedDevice,
        terms: &Terms,
        path: &Path,
    ) -> Option<(Session, UnixStream)> {
        let any = terms.files() == Files::Any;
        let (holder, mut found) = match Holder::find(path, any) {
            Ok(found) => found?,
            Err(e) => {
                tracing::warn!(port = %name, "what an earlier daemon has left cannot be used: {e}");
                return None;
            }
        };
        let again = (holder.try_clone().ok(), found.keys().copied().collect());
        match Session::adopt(name, device, terms, (holder, &mut found), false) {
            Ok(adopted) => {
                tracing::info!(event = "peer", port = %name, "goes on with the VMM of an earlier daemon");
                Some(adopted)
            }
            Err(why) => {
                tracing::warn!(event = "peer", port = %name, "the VMM of an earlier daemon is disconnected: {why}");
                if let (Some(holder), keys) = again {
                    holder.dismiss(keys);
                }
                None
            }
        }
    }

    /// The session of a daemon that has ended, and its connection: what this process, its holder, has in
    /// `store`. The device stands still: it gets no memory, no interrupts, and its queues are not served.
    pub(super) fn stand_in(
        name: &str,
        device: &SharedDevice,
        terms: &Terms,
        store: &Store,
    ) -> Result<(Session, UnixStream), String> {
        let (holder, mut found) = Holder::here(store).map_err(|e| e.to_string())?;
        Session::adopt(name, device, terms, (holder, &mut found), true)
    }

    /// The session of which `holder` has `found` the descriptors. `still`: neither memory nor interrupts of
    /// the guest are touched.
    pub(super) fn adopt(
        name: &str,
        device: &SharedDevice,
        terms: &Terms,
        (holder, found): (Holder, &mut Found),
        still: bool,
    ) -> Result<(Session, UnixStream), String> {
        let mut guard = crate::lock(device);
        let (keep, stream, files) = Keep::open(holder, found, &mut **guard, SAVED)?;
        let model = guard.persist().ok_or("this kind of device cannot be taken over")?;
        let at = keep.device;
        // Before anything of the device is asked for: it becomes another one.
        model.adopt(files, &keep.image)?;
        drop(guard);
        let mut session = Session::new(name, device, terms);
        session.agreed = Agreed::load(keep.image.get(at));
        session.left = still;
        let file = |name| found.remove(&key::memory(name));
        session.memory = DmaTable::restore(&keep.image, at + AGREED, terms, still, file)?;
        if still {
            if !pci::stand_still(&mut **crate::lock(device)) {
                return Err("this kind of device does nothing without its rings".to_owned());
            }
            session.keep = Some(keep);
            return Ok((session, stream));
        }
        for index in [Index::Intx, Index::Msi, Index::Msix, Index::Error, Index::Request] {
            for number in 0..session.interrupts.count(index) {
                if let Some(fd) = found.remove(&key::trigger(index, number)) {
                    let fd = eventfd(fd, terms).map_err(|e| e.to_string())?;
                    session.interrupts.set_trigger(index, number, Some(fd));
                }
            }
        }
        let resample = found.remove(&key::RESAMPLE).map(|fd| eventfd(fd, terms)).transpose();
        session.interrupts.set_resample(resample.map_err(|e| e.to_string())?);
        // Descriptors of messages that were never committed go. The conversation's thread tells the holder,
        // for which nobody else waits.
        session.orphans.extend(std::mem::take(found).into_keys());
        let mut guard = crate::lock(device);
        guard.dma_changed(Arc::clone(&session.memory.map));
        pci::resume(&mut **guard);
        drop(guard);
        session.keep = Some(keep);
        Ok((session, stream))
    }

    /// The memory that can be reached.
    #[cfg(test)]
    pub(super) fn map(&self) -> &GuestMap {
        &self.memory.map
    }

    /// Nothing is kept any more.
    pub(super) fn lost(&mut self, why: &str) {
        tracing::warn!(port = %self.name, "nothing is held ({why}): the end of this daemon will disconnect the VMM");
        (self.keep, self.unheld) = (None, true);
    }

    /// Has `fd` kept under `key`.
    pub(super) fn hold(&mut self, key: u64, fd: io::Result<OwnedFd>) {
        let Some(keep) = &mut self.keep else { return };
        if let Err(why) = fd.map_err(|e| e.to_string()).and_then(|fd| keep.put(key, fd.as_fd())) {
            self.lost(&why);
        }
    }

    /// Writes down what the message of `taken` bytes has come to. Comes before the message is taken or
    /// answered.
    pub(super) fn commit(&mut self, taken: usize, answer: Option<&Answer>) {
        let Some(keep) = &mut self.keep else { return };
        let mut device = crate::lock(&self.device);
        let Some(model) = device.persist() else { return };
        let at = keep.device;
        model.save(&mut keep.image);
        drop(device);
        keep.image.put(at, self.agreed.map_or(0, |agreed| agreed.word()));
        self.memory.save(&mut keep.image, at + AGREED);
        keep.commit(taken, answer);
    }

    /// The message that was written down last was taken and answered.
    pub(super) fn done(&mut self) {
        let Some(keep) = &mut self.keep else { return };
        keep.done();
        // Not earlier: a successor that handles the message again must find them.
        self.orphans.drain(..).for_each(|key| keep.forget(key));
    }

    /// Leaves the device to the next daemon. False: it is not kept, and ends with us.
    pub(super) fn hand_over(&mut self) -> bool {
        let kept = self.keep.take().is_some();
        if kept {
            if let Some(device) = crate::lock(&self.device).persist() {
                device.suspend();
            }
            self.left = true;
        }
        kept
    }

    /// A command was refused, and the conversation goes on.
    pub(super) fn count_refusal(&mut self, command: &str, number: u16, refusal: &Refusal) {
        self.refused += 1;
        let (port, Refusal { errno, why, .. }) = (&self.name, refusal);
        if self.refused <= WARNINGS {
            tracing::warn!(%port, command, number, "refused ({errno}): {why}");
        } else {
            tracing::debug!(%port, command, number, "refused ({errno}): {why}");
        }
    }

    /// The client's memory, to be looked at, while the device may reach it: some times.
    pub(super) fn unlooked(&mut self) -> Option<Arc<GuestMap>> {
        if self.looks == 0 || self.memory.map.is_empty() {
            return None;
        }
        let on = crate::lock(&self.device).config().command().has(Command::MASTER);
        self.looks -= u32::from(on);
        on.then(|| Arc::clone(&self.memory.map))
    }

    /// Whether the client shares no memory; before it has told of any, it has not come so far.
    pub(super) fn lack(&self) -> Option<Lack> {
        self.memory.is_unshared().then_some(Lack::Memory)
    }

    /// What keeps the device from working, if the operator can do something about it.
    pub(super) fn hint(&self) -> Option<&'static str> {
        let unheld = "its holder is gone: the end of this daemon will disconnect the VMM; restart the VMM to have one again";
        self.unheld.then_some(unheld)
    }

    /// The eventfd by which the end of an interrupt is told, if there is one; or for how long it is not
    /// listened to.
    pub(super) fn resample(&self) -> (Option<Arc<OwnedFd>>, Option<Duration>) {
        match self.interrupts.resample() {
            Some(fd) => self.ends.rest().map_or((Some(fd), None), |rest| (None, Some(rest))),
            None => (None, None),
        }
    }

    /// That eventfd is readable.
    pub(super) fn resampled(&mut self, fd: &OwnedFd) {
        self.ends.hear(fd);
        self.interrupts.unmask();
    }
}

impl Drop for Session {
    /// The client is gone, and with it all that it gave us.
    fn drop(&mut self) {
        if self.left {
            return;
        }
        if let Some(keep) = self.keep.take() {
            keep.end();
        }
        let mut device = crate::lock(&self.device);
        device.config().reset();
        self.interrupts.disconnect();
        device.detached();
        device.dma_changed(Arc::default());
    }
}
