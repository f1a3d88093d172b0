//! `show disks`: how the disks are doing.

use std::sync::Arc;

use super::engine::{Engine, Error};
use super::live::Live;
use super::status::{peer_name, VERSION};
use super::view::view;
use crate::disk::{Disk, Sums};

view! {
    /// Answer to `show disks`.
    Disks {
        /// [`VERSION`].
        version: u32,
        /// All disks in the order of their ports' names.
        disks: Vec<DiskView>,
    }

    /// One disk.
    DiskView {
        /// The port that it stands behind.
        port: String,
        /// What it consists of, as `file` says.
        file: String,
        /// `ram`, `null`, `file` or `device`.
        medium: String,
        /// `waiting`, `connected`, `running`, `faulted` or `stopped`, as in `show ports`.
        peer: String,
        /// Bytes.
        capacity: u64,
        /// Bytes of a logical block.
        block_size: u32,
        /// Nothing may be written.
        readonly: bool,
        /// `writeback`: what is written lasts from the next flush on; `writethrough`: from its answer on. As the guest has it now.
        cache: String,
        /// How the file is read and written: `direct`, as the `memory` that it is (tmpfs), through the `page-cache`, or by `workers` of the
        /// kernel's (FUSE, network file systems); absent without a file.
        access?: String,
        /// Queues that run.
        queues: u32,
        /// What is counted of it.
        #[serde(flatten)]
        counters: Sums,
    }

    /// Answer to `resize`.
    Resized {
        /// [`VERSION`].
        version: u32,
        /// Bytes of the disk now.
        capacity: u64,
        /// Whether it has grown.
        grown: bool,
        /// Whether its VMM was told, which tells the guest. Else the guest sees it when it asks anew: when it starts.
        told: bool,
    }
}

impl Engine {
    /// Has the disk behind port `name` be as large as its file is now.
    ///
    /// # Errors
    /// There is no such port, it is no disk in a file, or the file has become smaller.
    pub fn resize(&self, name: &str) -> Result<Resized, Error> {
        let port = self.port(name)?;
        let none = || Error::Cannot(format!("port {name} is no disk"));
        let of = |live: &Live| Some(Arc::clone(live.attachment.as_ref()?.disk()?));
        let disk: Arc<Disk> = crate::lock(&self.state).ports.get(name).and_then(of).ok_or_else(none)?;
        // The file may be slow.
        let grown = disk.grow().map_err(|why| Error::Cannot(format!("port {name}: {why}")))?;
        let state = crate::lock(&self.state);
        let live = state.ports.get(name).filter(|live| live.port.id == port.id);
        let told = live.and_then(|live| live.attachment.as_ref()).filter(|_| grown);
        let told = told.is_some_and(|attachment| attachment.disk_changed());
        Ok(Resized { version: VERSION, capacity: disk.capacity(), grown, told })
    }

    /// All disks, as they are at this moment.
    pub fn disks(&self) -> Disks {
        let state = crate::lock(&self.state);
        let mut disks = Vec::new();
        for (name, live) in &state.ports {
            let Some(attachment) = &live.attachment else { continue };
            let Some(disk) = attachment.disk() else { continue };
            let status = attachment.status();
            let running = status.queues.iter().filter(|queue| queue.state.starts_with("running"));
            disks.push(DiskView {
                port: name.clone(),
                file: live.spec.file.as_ref().map(ToString::to_string).unwrap_or_default(),
                medium: disk.medium.name().to_owned(),
                peer: peer_name(status.peer).to_owned(),
                capacity: disk.capacity(),
                block_size: disk.block_size,
                readonly: disk.read_only,
                cache: if disk.is_write_through() { "writethrough" } else { "writeback" }.to_owned(),
                access: disk.medium.access().map(str::to_owned),
                queues: u32::try_from(running.count()).unwrap_or(u32::MAX),
                counters: disk.sums(),
            });
        }
        Disks { version: VERSION, disks }
    }
}
