//! Disks of guests: virtio-blk cards on vhost-user sockets, and an image that firmware boots the lab's guest
//! from.
//!
//! GRUB is in it twice: as the one file of a small FAT file system, where UEFI starts it, and behind that for
//! a BIOS, which starts it by the first sector. That sector belongs to both. Then, at places that GRUB is
//! told, come the kernel and the root file system that QEMU would load for any other guest of the lab.

use crate::apt::Apt;
use crate::error::{Context, Error, Result};
use crate::fetch::{copy, copy_program, part, Lab, GUEST_SUITE, LOADER};
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
/// Where the BIOS's GRUB begins: behind the file system, which is a FAT16 of clusters of one sector.
const GRUB: usize = 10_240;
/// Where the kernel begins.
const KERNEL: usize = GRUB + 1024;
/// Where GRUB's first sector says which sector is loaded next, and that one says where the rest begins.
const NEXT: std::ops::Range<usize> = 0x5c..0x64;
const REST: std::ops::Range<usize> = 0x1f4..0x1fc;
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
        let mut program = Command::new(grub.join("lib").join(LOADER));
        program.arg("--library-path").arg(grub.join("lib")).arg(grub.join("grub-mkimage"));
        program.args(["-O", platform, "-p", "/", "-d"]).arg(grub.join(platform));
        program.arg("-c").arg(&script_file).arg("-o").arg(&core).args(modules);
        output(&mut program).map(|_| core)
    };
    let (mut bios, uefi) = (read(&make(BIOS, &["biosdisk", "linux"])?)?, make(UEFI, &["linux"])?);
    if sectors(&bios) > KERNEL - GRUB {
        return Err(Error::new("GRUB for a BIOS is larger than its place on a disk"));
    }
    let (first_file, mut first) = (work.join("boot.img"), read(&grub.join(BIOS).join("boot.img"))?);
    first[PARTITIONS].fill(0);
    first[NEXT].copy_from_slice(&GRUB.to_le_bytes());
    bios[REST].copy_from_slice(&(GRUB + 1).to_le_bytes());
    std::fs::write(&first_file, first).context(|| format!("writing {}", first_file.display()))?;
    let fat = |tool: &str, arguments: &[&str]| {
        let done = output(Command::new(tool).arg("-i").arg(image).args(arguments));
        done.context(|| "Debian's package mtools (scripts/setup installs it)".to_owned())
    };
    let (first, uefi) = (first_file.display().to_string(), uefi.display().to_string());
    // Heads and sectors of a track are those of a fixed disk.
    let disk = ["-B", &first, "-T", &GRUB.to_string(), "-c", "1", "-h", "255", "-s", "63", "::"];
    fat("mformat", &disk)?;
    fat("mmd", &["::EFI", "::EFI/BOOT"])?;
    fat("mcopy", &[&uefi, "::EFI/BOOT/BOOTX64.EFI"])?;
    let file = File::options().write(true).open(image).context(|| format!("opening {}", image.display()))?;
    let places = [(GRUB, bios), (KERNEL, kernel), (behind, root)];
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
    let apt = Apt::new(work, &[GUEST_SUITE])?;
    let root = work.join("root");
    apt.unpack_only(&PACKAGES, &root)?;
    let lib = target.join("lib");
    copy_program(&root, PROGRAM, target, &lib)?;
    copy(&root.join("lib/x86_64-linux-gnu").join(LOADER), &lib.join(LOADER))?;
    for platform in [BIOS, UEFI] {
        let from = root.join("usr/lib/grub").join(platform);
        for name in files(&from)?.into_iter().filter(|name| from.join(name).is_file()) {
            copy(&from.join(&name), &target.join(platform).join(&name))?;
        }
    }
    Ok(())
}
