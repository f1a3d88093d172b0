//! `show disks`: how the disks are doing.

use serde::{Deserialize, Serialize};

use super::engine::Engine;
use super::status::{peer_name, VERSION};
use crate::disk::Sums;

/// Answer to `show disks`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disks {
    /// [`VERSION`].
    pub version: u32,
    /// All disks in the order of their ports' names.
    pub disks: Vec<DiskView>,
}

/// One disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskView {
    /// The port that it stands behind.
    pub port: String,
    /// What it consists of, as `file` says.
    pub file: String,
    /// `ram`, `null`, `file` or `device`.
    pub medium: String,
    /// `waiting`, `connected`, `running`, `faulted` or `stopped`, as in `show ports`.
    pub peer: String,
    /// Bytes.
    pub capacity: u64,
    /// Bytes of a logical block.
    pub block_size: u32,
    /// Nothing may be written.
    pub readonly: bool,
    /// `writeback`: what is written lasts from the next flush on; `writethrough`: from its answer on. As the guest has it now.
    pub cache: String,
    /// How the file is read and written: `direct`, or through the `page-cache`; absent without a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<String>,
    /// Queues that run.
    pub queues: u32,
    /// What is counted of it.
    #[serde(flatten)]
    pub counters: Sums,
}

impl Engine {
    /// All disks, as they are at this moment.
    pub fn disks(&self) -> Disks {
        let inner = self.lock();
        let mut disks = Vec::new();
        for (name, live) in &inner.ports {
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
