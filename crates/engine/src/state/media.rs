//! The values of options of disks.

use std::path::{Path, PathBuf};

use super::values::{in_units, scaled, texts};
use crate::util::form::Form;

/// What a disk consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskFile {
    /// The file or block device at this path.
    Path(PathBuf),
    /// Memory of this many bytes.
    Ram(u64),
    /// This many bytes that read as zeros and take no memory.
    Null(u64),
}

/// Most bytes of a disk in memory: 1 PiB.
const MOST: u64 = 1 << 50;
/// Its bytes are a multiple of this: the largest logical block.
const STEP: u64 = 4096;
const UNITS: [(char, u64); 4] = [('K', 1 << 10), ('M', 1 << 20), ('G', 1 << 30), ('T', 1 << 40)];

impl DiskFile {
    /// The path, if it is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            DiskFile::Path(path) => Some(path),
            DiskFile::Ram(_) | DiskFile::Null(_) => None,
        }
    }
}

/// The bytes of `64M` and the like: pages of 4 KiB, and at most 1 PiB.
pub fn size(text: &str) -> Option<u64> {
    scaled(text, &UNITS).filter(|bytes| bytes % STEP == 0 && (STEP..=MOST).contains(bytes))
}

texts! {
    DiskFile = Form::Text("PATH|ram:SIZE|null:SIZE", "ram:64M"), {
        read: |text| match text.split_once(':') {
            Some(("ram", bytes)) => size(bytes).map(DiskFile::Ram),
            Some(("null", bytes)) => size(bytes).map(DiskFile::Null),
            _ => Some(DiskFile::Path(text.into())).filter(|_| !text.is_empty()),
        },
        allowed: format_args!("a path, or ram:SIZE, null:SIZE with a multiple of {STEP} bytes, such as 64M"),
        write: |file, f| match file {
            DiskFile::Path(path) => path.display().fmt(f),
            DiskFile::Ram(bytes) => write!(f, "ram:{}", in_units(*bytes, &UNITS)),
            DiskFile::Null(bytes) => write!(f, "null:{}", in_units(*bytes, &UNITS)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, disk) in [
            ("ram:64M", DiskFile::Ram(64 << 20)),
            ("null:4096", DiskFile::Null(4096)),
            ("ram:1536K", DiskFile::Ram(1536 << 10)),
            ("/var/lib/a.img", DiskFile::Path("/var/lib/a.img".into())),
        ] {
            assert_eq!(text.parse::<DiskFile>().unwrap(), disk);
            assert_eq!(disk.to_string().parse::<DiskFile>().unwrap(), disk);
        }
        for bad in ["", "ram:", "ram:0", "ram:1000", "ram:64MB", "null:-4096", "ram:99999999999T", "ram:4T4K"]
        {
            assert!(bad.parse::<DiskFile>().is_err(), "{bad}");
        }
    }
}
