//! `show disks`: how the disks are doing.

use std::sync::Arc;

use super::engine::{Engine, Error};
use super::live::Live;
use super::status::{peer_name, VERSION};
use crate::disk::{Disk, Sums};

crate::util::form::view! {
    /// All disks.
    Disks {
        /// Version of the JSON.
        version: u32,
        /// Ordered by port.
        disks: Vec<DiskView>,
    }

    /// One disk.
    DiskView {
        /// Its port.
        port: String,
        /// Its option `file`.
        file: String,
        /// The kind of storage.
        medium: String = ["ram", "null", "file", "device"],
        /// As in `PortState`.
        peer: String,
        /// Bytes.
        capacity: u64,
        /// Bytes of a logical block.
        block_size: u32,
        /// Whether nothing may be written.
        readonly: bool,
        /// When a write is durable, as the guest has chosen: after the next flush, or when it is answered.
        cache: String = ["writeback", "writethrough"],
        /// How a file is read and written; absent without one.
        access?: String = ["direct", "memory", "page-cache", "workers"],
        /// Queues that run.
        queues: u32,
        /// What is counted of it.
        ..counters: Sums,
    }

    /// A disk that was grown to its file's size.
    Resized {
        /// Version of the JSON.
        version: u32,
        /// Bytes of the disk now.
        capacity: u64,
        /// Whether it has grown.
        grown: bool,
        /// Whether its VMM was told, which tells the guest. Otherwise the guest sees the size at its next
        /// start.
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
