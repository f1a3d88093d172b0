//! A guest that is a small Debian with systemd as its first process, from the release of the other guests.
//! Its root file system is on a disk of its own, which QEMU keeps unchanged; it is fetched like everything
//! else (`fetch.rs`), but only when a test wants it. What systemd does not bring is busybox's.

use crate::apt::Apt;
use crate::container::root;
use crate::daemon::find_binary;
use crate::error::{Context, Result};
use crate::fetch::{part, Lab, GUEST_SUITE};
use crate::process::output;
use crate::{Guest, RunDir, Spec};
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// busybox would prefer what it has itself, such as its own `ip`, so the shell is another.
const PACKAGES: [&str; 4] = ["systemd", "dash", "busybox-static", "iproute2"];
/// Bytes of the disk.
const BYTES: u64 = 256 << 20;

/// What of the system's own is no package's: users, the name that systemd would make at the first start, and
/// what is started. The lab's agent is a service (see `image.rs`).
const FILES: [(&str, &str); 5] = [
    ("etc/passwd", "root::0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"),
    ("etc/group", "root:x:0:\nnogroup:x:65534:\n"),
    ("etc/machine-id", "5ec04a5ec04a5ec04a5ec04a5ec04a5e\n"),
    (
        "etc/systemd/system/lab.target",
        "[Unit]\nRequires=basic.target\nWants=lab-agent.service\nAfter=basic.target\n",
    ),
    (
        "etc/systemd/system/lab-agent.service",
        "[Unit]\nAfter=basic.target\n[Service]\nTTYPath=/dev/ttyS1\nStandardInput=tty-force\nStandardOutput=tty\n\
         ExecStart=/bin/sh -c 'exec sh /agent \"$(sed -n \"s/.*lab.nonce=\\\\([^ ]*\\\\).*/\\\\1/p\" /proc/cmdline)\"'\n",
    ),
];

/// From here on they are units.
const UNITS: usize = 3;

/// The kernel's first program. It mounts the disk, puts what the test has in `/new` there, and becomes
/// systemd.
const INIT: &str = r"#!/bin/sh
export PATH=/bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
modprobe -a virtio_pci virtio_blk crc32c_generic ext4 tun veth
mkdir /disk
mount -t ext4 /dev/vda /disk
cp -a /agent /new/. /disk/
umount /sys /proc /dev
exec switch_root /disk /lib/systemd/systemd
";

/// Describes such a guest, with these files (path, permissions, content).
///
/// # Errors
/// The packages cannot be fetched, or the file system not be made.
pub fn guest(name: &str, files: Vec<(&str, u32, Vec<u8>)>) -> Result<Spec> {
    let recipe = format!("{GUEST_SUITE} {PACKAGES:?} {BYTES} {FILES:?}");
    spec(name, &part(&Lab::open()?.dir, "system", &recipe, fetch)?, files)
}

/// [`guest`], but a clean Debian as after its installation, with dpkg and without busybox (`container.rs`).
///
/// # Errors
/// As for [`guest`].
pub fn clean(name: &str, files: Vec<(&str, u32, Vec<u8>)>) -> Result<Spec> {
    let base = root(GUEST_SUITE)?;
    let disk = part(&Lab::open()?.dir, "system-clean", &format!("{FILES:?}"), |work, target| {
        output(Command::new("cp").arg("--archive").arg(&base).arg(work))?;
        write(work, &FILES[UNITS..])?;
        disk_of(work, target, 2 * BYTES)
    })?;
    spec(name, &disk, files)
}

fn spec(name: &str, disk: &Path, files: Vec<(&str, u32, Vec<u8>)>) -> Result<Spec> {
    let drive = format!("if=none,id=root,format=raw,snapshot=on,file={}", disk.join("disk.img").display());
    let mut spec = Guest::named(name)
        .memory_mib(512)
        .limit(Duration::from_secs(180))
        .kernel_argument("systemd.unit=lab.target")
        .file("init", 0o755, INIT.into());
    for argument in ["-drive", &drive, "-device", "virtio-blk-pci,drive=root"] {
        spec = spec.argument(argument);
    }
    for (path, mode, data) in files {
        spec = spec.file(&format!("new{path}"), mode, data);
    }
    Ok(spec)
}

/// The program under test without what only debuggers read.
///
/// # Errors
/// It is not built.
pub fn program() -> Result<Vec<u8>> {
    let dir = RunDir::new("program")?;
    let to = dir.path().join("sidecore");
    output(Command::new("strip").arg("-o").arg(&to).arg(find_binary()?))?;
    std::fs::read(&to).context(|| format!("reading {}", to.display()))
}

fn fetch(work: &Path, target: &Path) -> Result<()> {
    let apt = Apt::new(work, &[GUEST_SUITE])?;
    let root = work.join("root");
    apt.unpack_with_dependencies(GUEST_SUITE, &PACKAGES, &root)?;
    for folder in ["dev", "proc", "sys", "run", "tmp", "root", "var/tmp"] {
        let folder = root.join(folder);
        std::fs::create_dir_all(&folder).context(|| format!("making {}", folder.display()))?;
    }
    write(&root, &FILES)?;
    let link = |target: &str, at: &Path| {
        std::os::unix::fs::symlink(target, at).context(|| format!("making {}", at.display()))
    };
    let shell = root.join("bin/sh");
    let _ = std::fs::remove_file(&shell);
    link("dash", &shell)?;
    for applet in output(Command::new(root.join("bin/busybox")).arg("--list"))?.lines() {
        let places = ["bin", "sbin", "usr/bin", "usr/sbin"].map(|folder| root.join(folder).join(applet));
        if !places.iter().any(|path| path.is_symlink() || path.exists()) {
            link("busybox", &places[0])?;
        }
    }
    // Only a manual's reader wants these.
    let _ = std::fs::remove_dir_all(root.join("usr/share"));
    disk_of(&root, target, BYTES)
}

fn write(root: &Path, files: &[(&str, &str)]) -> Result<()> {
    for (path, text) in files {
        let path = root.join(path);
        let folder = path.parent().unwrap_or(root);
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&path, text))
            .context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Makes `target/disk.img` of the files in `root`.
pub(crate) fn disk_of(root: &Path, target: &Path, bytes: u64) -> Result<()> {
    let image = target.join("disk.img");
    let made = File::create(&image).and_then(|file| file.set_len(bytes));
    made.context(|| format!("making {}", image.display()))?;
    output(Command::new("mke2fs").args(["-q", "-t", "ext4", "-d"]).arg(root).arg(&image)).map(drop)
}
