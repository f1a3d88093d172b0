//! What is behind the disks: the same files for all ways of a run, made once.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::prelude::*;
use crate::storage::Image;

named! {
    /// Where a disk's bytes are.
    #[derive(Serialize, Deserialize, clap::ValueEnum)]
    #[serde(rename_all = "kebab-case")]
    pub enum Medium {
        /// Memory of the daemon; of qemu-storage-daemon, which has no such thing, a file in tmpfs.
        Ram = "ram",
        /// A file in tmpfs.
        Tmpfs = "tmpfs",
        /// A file on a disk of this machine.
        Disk = "disk",
    }
}

/// The files, removed at the end.
pub struct Images {
    folders: [PathBuf; 2],
    size: u64,
}

/// Where tmpfs is.
const TMPFS: &str = "/dev/shm";

impl Images {
    /// For disks of `size` bytes; those of the machine lie in `folder`.
    pub fn new(size: u64, folder: &Path) -> Result<Images> {
        let name = format!("sidecore-blk-{}", std::process::id());
        let folders = [Path::new(TMPFS).join(&name), folder.join(&name)];
        Ok(Images { folders, size })
    }

    /// Bytes of each disk.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The file of guest `n`, made if it is not there, with something in every block.
    fn file(&self, medium: Medium, n: usize) -> Result<PathBuf> {
        let folder = &self.folders[usize::from(medium == Medium::Disk)];
        let path = folder.join(n.to_string());
        if path.exists() {
            return Ok(path);
        }
        let failed = |e: std::io::Error| format!("making {}: {e}", path.display());
        fs::create_dir_all(folder).map_err(failed)?;
        let mut file = fs::File::create(&path).map_err(failed)?;
        let chunk: Vec<u8> = (0..1u32 << 18).flat_map(u32::to_le_bytes).collect();
        for _ in 0..self.size / chunk.len() as u64 {
            file.write_all(&chunk).map_err(failed)?;
        }
        file.sync_all().map_err(failed)?;
        // All ways go past the page cache; a file system that cannot do so would have us compare its cache.
        let direct = fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path);
        direct.and_then(|file| file.read_at(&mut [], 0)).map_err(|e| {
            format!("{} does not take O_DIRECT ({e}): name another folder with --folder", folder.display())
        })?;
        Ok(path)
    }

    /// Our option `file=` for guest `n`.
    pub fn ours(&self, medium: Medium, n: usize) -> Result<String> {
        match medium {
            Medium::Ram => Ok(format!("ram:{}M", self.size >> 20)),
            _ => Ok(self.file(medium, n)?.display().to_string()),
        }
    }

    /// The image for qemu-storage-daemon.
    pub fn storage(&self, medium: Medium, n: usize) -> Result<Image> {
        let medium = if medium == Medium::Ram { Medium::Tmpfs } else { medium };
        Ok(Image { path: self.file(medium, n)?, direct: true })
    }

    /// The image for the host alone. `None`: it has none.
    pub fn host(&self, medium: Medium) -> Result<Option<PathBuf>> {
        (medium != Medium::Ram).then(|| self.file(medium, 0)).transpose()
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        for folder in &self.folders {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// A size with a unit, for the command line: 64M, 1G.
pub fn size(from: &str) -> Result<u64> {
    let (number, shift) = match from.as_bytes().last() {
        Some(b'M') => (&from[..from.len() - 1], 20),
        Some(b'G') => (&from[..from.len() - 1], 30),
        _ => return Err("a number with M or G".to_owned()),
    };
    let number = number.parse::<u32>().map_err(text)?;
    match u64::from(number) << shift {
        0 => Err("more than nothing".to_owned()),
        size => Ok(size),
    }
}
