//! fio for guests, from the release that they run, on a disk of its own: with its libraries it is larger than
//! all else that a guest has. Fetched like everything else (`fetch.rs`), but only when a test wants it.

use crate::apt::{system_mirror, Apt};
use crate::error::{Context, Result};
use crate::fetch::{copy, libraries, part, Lab, GUEST_SUITE};
use crate::process::output;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

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
    let apt = Apt::new(&work.join("apt"), &system_mirror()?, &[GUEST_SUITE])?;
    let (root, files) = (work.join("root"), work.join("files"));
    apt.unpack_with_dependencies(GUEST_SUITE, &["fio"], &root)?;
    copy(&root.join(PROGRAM), &files.join("fio"))?;
    for library in libraries(&root, PROGRAM)? {
        copy(&library, &files.join("lib").join(library.file_name().unwrap_or_default()))?;
    }
    let image = target.join("disk.img");
    let made = File::create(&image).and_then(|file| file.set_len(BYTES));
    made.context(|| format!("making {}", image.display()))?;
    output(Command::new("mke2fs").args(["-q", "-t", "ext4", "-d"]).arg(&files).arg(&image)).map(drop)
}
