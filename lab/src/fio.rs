//! fio for guests, from the release that they run, on a disk of its own: with its libraries it is larger than
//! all else that a guest has. Fetched like everything else (`fetch.rs`), but only when a test wants it.

use crate::apt::Apt;
use crate::error::Result;
use crate::fetch::{copy_program, part, Lab, GUEST_SUITE};
use crate::system::disk_of;
use std::path::{Path, PathBuf};

const PROGRAM: &str = "usr/bin/fio";
/// Bytes of the disk.
const BYTES: u64 = 256 << 20;

/// Has a guest find `fio`, whose disk it has as `device`.
pub fn install(device: &str) -> String {
    format!(
        "modprobe -a crc32c_generic ext4 && mkdir -p /fio && mount -t ext4 -o ro {device} /fio && \
         printf '#!/bin/sh\\nLD_LIBRARY_PATH=/fio/lib exec /fio/fio \"$@\"\\n' > /bin/fio && chmod 755 /bin/fio"
    )
}

/// The disk, with an ext4 file system. It is the same file for all, so they have it read-only.
///
/// # Errors
/// fio's packages cannot be fetched, or the file system not be made.
pub fn disk() -> Result<PathBuf> {
    let lab = Lab::open()?;
    part(&lab.dir, "fio", &format!("{GUEST_SUITE} {PROGRAM} {BYTES}"), fetch)
        .map(|folder| folder.join("disk.img"))
}

fn fetch(work: &Path, target: &Path) -> Result<()> {
    let apt = Apt::new(work, &[GUEST_SUITE])?;
    let (root, files) = (work.join("root"), work.join("files"));
    apt.unpack_with_dependencies(GUEST_SUITE, &["fio"], &root)?;
    copy_program(&root, PROGRAM, &files, &files.join("lib"))?;
    disk_of(&files, target, BYTES)
}
