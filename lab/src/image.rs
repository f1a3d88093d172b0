//! The guests' root file system: busybox, a few programs, kernel modules and an `/init` script.
//!
//! The first serial port is the console: the kernel's messages, and a shell for a person if the kernel
//! command line says `lab.shell`. The second belongs to the lab (see `agent.rs`): a shell that reads
//! commands, without echo or any other help of a terminal, so that kernel messages and commands never mix.

use crate::cpio::Archive;
use crate::error::{Context, Result};
use crate::process::output;
use std::path::Path;
use std::process::Command;

/// The first program of a guest.
const INIT: &str = r#"#!/bin/sh
export PATH=/bin HOME=/root LD_LIBRARY_PATH=/lib
mount -t devtmpfs dev /dev
# The first root file system is everybody's to write, which nobody who loads plugins likes.
chmod 755 /
mkdir -p /dev/pts /dev/shm
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devpts pts /dev/pts
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
word() { sed -n "s/.*lab\.$1=\([^ ]*\).*/\1/p" /proc/cmdline; }
hostname "$(word name)"
# realtek drives the PHY of an r8169.
modprobe -a virtio_pci virtio_net e1000 e1000e realtek r8169 virtio_blk
# eth0 is the card that was plugged first, whichever driver came first.
cards() { for i in /sys/class/net/e*; do [ -e "$i" ] && echo "$(readlink -f "$i/device")#${i##*/}"; done | sort; }
n=0
for card in $(cards); do
    [ "${card##*#}" = "eth$n" ] || ip link set "${card##*#}" name "card$n"
    n=$((n + 1))
done
while [ $n -gt 0 ]; do
    n=$((n - 1))
    [ ! -e "/sys/class/net/card$n" ] || ip link set "card$n" name "eth$n"
done
ip link set lo up
if grep -q lab.probe /proc/cmdline; then
    poweroff -f
fi
if [ -n "$(word nonce)" ]; then
    setsid sh /agent "$(word nonce)" < /dev/ttyS1 > /dev/ttyS1 2>&1 &
fi
if grep -q lab.shell /proc/cmdline; then
    setsid cttyhack sh
    poweroff -f
fi
while :; do sleep 1000; done
"#;

/// The shell behind the second serial port. The port stays open from before `ready` is said, because opening
/// it empties its buffer; and the commands come through a pipe, because a shell that reads a terminal would
/// prompt.
const AGENT: &str = r#"stty raw -echo
printf '\036%s ready 0 0\036' "$1"
dd bs=4k | sh
"#;

/// What of an image stands in this file.
pub(crate) fn recipe() -> String {
    INIT.to_owned() + AGENT
}

/// Makes an image of the programs in `root` and the `modules` of kernel `version`. Modules that `/init` loads
/// are named in the script; the others wait for `modprobe`.
pub(crate) fn build(root: &Path, modules: &Path, version: &str, target: &Path) -> Result<()> {
    let mut archive = Archive::default();
    for folder in ["dev", "proc", "sys", "tmp", "run", "root", "etc"] {
        archive.directory(folder);
    }
    // The kernel opens this for /init before devtmpfs is mounted.
    archive.character_device("dev/console", 5, 1);
    archive.symlink("var/run", "/run");
    archive.file("init", 0o755, INIT.as_bytes());
    archive.file("agent", 0o644, AGENT.as_bytes());
    archive.file("etc/passwd", 0o644, b"root::0:0:root:/root:/bin/sh\n");
    archive.file("etc/group", 0o644, b"root:x:0:\n");
    tree(&mut archive, root, root, "")?;
    tree(&mut archive, modules, modules, &format!("lib/modules/{version}/"))?;
    let busybox = root.join("bin/busybox");
    let own: Vec<String> = files(&root.join("bin"))?;
    for applet in output(Command::new(&busybox).arg("--list"))?.lines() {
        if !own.iter().any(|o| o == applet) {
            archive.symlink(&format!("bin/{applet}"), "busybox");
        }
    }
    let image = target.join("initramfs.cpio");
    std::fs::write(&image, archive.finish()).context(|| format!("writing {}", image.display()))
}

/// A file that a test adds to the common image.
#[derive(Clone)]
pub(crate) struct Extra {
    pub(crate) path: String,
    pub(crate) mode: u32,
    pub(crate) data: Vec<u8>,
}

/// The image `common` followed by an archive of `extra`, in `target`.
pub(crate) fn with_extra(common: &Path, extra: &[Extra], target: &Path) -> Result<()> {
    let mut image = std::fs::read(common).context(|| format!("reading {}", common.display()))?;
    let mut archive = Archive::default();
    for file in extra {
        archive.file(file.path.trim_start_matches('/'), file.mode, &file.data);
    }
    image.extend(archive.finish());
    std::fs::write(target, image).context(|| format!("writing {}", target.display()))
}

fn tree(archive: &mut Archive, root: &Path, folder: &Path, prefix: &str) -> Result<()> {
    for name in files(folder)? {
        let path = folder.join(&name);
        if path.is_dir() {
            tree(archive, root, &path, prefix)?;
        } else {
            let data = std::fs::read(&path).context(|| format!("reading {}", path.display()))?;
            let inside = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            archive.file(&format!("{prefix}{inside}"), 0o755, &data);
        }
    }
    Ok(())
}

/// The names in a folder, sorted so that the same files give the same image.
pub(crate) fn files(folder: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(folder).context(|| format!("reading {}", folder.display()))?;
    let mut names: Vec<String> =
        entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}
