//! Disks of guests: virtio-blk cards on vhost-user sockets, and an image that firmware boots the lab's guest
//! from.
//!
//! GRUB is in it twice: in the first sectors, where a BIOS starts it, and as the one file of a small FAT file
//! system, where UEFI does. The first sector belongs to both. Behind that, at places that GRUB is told, are
//! the kernel and the root file system that QEMU would load for any other guest of the lab.

use crate::apt::{system_mirror, Apt};
use crate::error::{Context, Error, Result};
use crate::fat;
use crate::fetch::{copy, libraries, part, Lab, GUEST_SUITE};
use crate::image::files;
use crate::process::output;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes of an image that the lab's guest boots from, with room behind.
pub const BOOT_BYTES: u64 = 64 << 20;

/// The package with the program, those with what it puts together, and what the first loads.
const PACKAGES: [&str; 9] = [
    "grub-common",
    "grub-pc-bin",
    "grub-efi-amd64-bin",
    "libc6",
    "libdevmapper1.02.1",
    "liblzma5",
    "libpcre2-8-0",
    "libselinux1",
    "libudev1",
];
const PROGRAM: &str = "usr/bin/grub-mkimage";
/// What GRUB consists of, for a BIOS and for UEFI.
const BIOS: &str = "i386-pc";
const UEFI: &str = "x86_64-efi";
const SECTOR: usize = 512;
/// Where the file system's tables begin: behind the BIOS's GRUB.
const TABLES: u16 = 1024;
/// Where the kernel begins: behind the file system.
const KERNEL: usize = 10_240;
/// Where a table of partitions would be. GRUB has code for floppies there.
const PARTITIONS: std::ops::Range<usize> = 0x1be..0x1fe;

/// QEMU's arguments for the disk with this number, `/dev/vda` being the first, whose back end listens at
/// `socket`.
pub(crate) fn arguments(index: usize, socket: &Path) -> [String; 4] {
    let path = socket.display().to_string().replace(',', ",,");
    let chardev = format!("socket,id=disk{index},path={path},server=off,reconnect-ms=200");
    let device =
        format!("vhost-user-blk-pci,chardev=disk{index},addr={:x}.0,bootindex={}", 8 + index, 1 + index);
    ["-chardev".to_owned(), chardev, "-device".to_owned(), device]
}

/// Writes what a guest boots with this command line into the image, whose length stays.
pub(crate) fn write(lab: &Lab, image: &Path, command_line: &str, work: &Path) -> Result<()> {
    let grub = grub(lab)?;
    let read = |path: &Path| std::fs::read(path).context(|| format!("reading {}", path.display()));
    let (kernel, root) = (read(&lab.kernel)?, read(&lab.initramfs)?);
    let sectors = |bytes: &[u8]| bytes.len().div_ceil(SECTOR);
    let behind = KERNEL + sectors(&kernel);
    let script = format!(
        "linux (hd0){KERNEL}+{} {command_line}\ninitrd (hd0){behind}+{}\nboot\n",
        sectors(&kernel),
        sectors(&root)
    );
    let script_file = work.join("grub.cfg");
    std::fs::write(&script_file, script).context(|| format!("writing {}", script_file.display()))?;
    let make = |platform: &str, modules: &[&str]| {
        let core = work.join(platform);
        let mut program = Command::new(grub.join("lib/ld-linux-x86-64.so.2"));
        program.arg("--library-path").arg(grub.join("lib")).arg(grub.join("grub-mkimage"));
        program.args(["-O", platform, "-p", "/", "-d"]).arg(grub.join(platform));
        program.arg("-c").arg(&script_file).arg("-o").arg(&core).args(modules);
        output(&mut program)?;
        read(&core)
    };
    let (bios, uefi) = (make(BIOS, &["biosdisk", "linux"])?, make(UEFI, &["linux"])?);
    let mut first = read(&grub.join(BIOS).join("boot.img"))?;
    let tree = fat::tree(&uefi).filter(|_| first.len() == SECTOR && sectors(&bios) < TABLES.into());
    let tree = tree.ok_or_else(|| Error::new("GRUB is larger than its place on a disk"))?;
    first[fat::DESCRIPTION].copy_from_slice(&fat::description(TABLES));
    first[PARTITIONS].fill(0);
    let file = File::options().write(true).open(image).context(|| format!("opening {}", image.display()))?;
    // The first sector loads what begins in the second.
    let places = [(0, first), (1, bios), (TABLES.into(), tree), (KERNEL, kernel), (behind, root)];
    for (sector, bytes) in places {
        let at = (sector * SECTOR) as u64;
        file.write_all_at(&bytes, at).context(|| format!("writing {}", image.display()))?;
    }
    Ok(())
}

/// The folder with GRUB; fetches it if it is not there.
pub(crate) fn grub(lab: &Lab) -> Result<PathBuf> {
    part(&lab.dir, "grub", &format!("{GUEST_SUITE} {PACKAGES:?}"), fetch)
}

/// Makes `target`: the program, `lib/` with what it loads, and a folder for each of the two kinds of GRUB.
fn fetch(work: &Path, target: &Path) -> Result<()> {
    let apt = Apt::new(&work.join("apt"), &system_mirror()?, &[GUEST_SUITE])?;
    let root = work.join("root");
    apt.unpack_only(&PACKAGES, &root)?;
    copy(&root.join(PROGRAM), &target.join("grub-mkimage"))?;
    let loader = PathBuf::from("lib/x86_64-linux-gnu/ld-linux-x86-64.so.2");
    for file in libraries(&root, PROGRAM)?.into_iter().chain([root.join(loader)]) {
        let name = file.file_name().unwrap_or_default();
        copy(&file, &target.join("lib").join(name))?;
    }
    for platform in [BIOS, UEFI] {
        let from = root.join("usr/lib/grub").join(platform);
        for name in files(&from)?.into_iter().filter(|name| from.join(name).is_file()) {
            copy(&from.join(&name), &target.join(platform).join(&name))?;
        }
    }
    Ok(())
}
