//! The guests' root file system: busybox, a few programs, kernel modules and an `/init` script.
//!
//! The first serial port is the console: the kernel's messages, and a shell for a person if the kernel
//! command line says `lab.shell`. The second belongs to the lab (see `agent.rs`): a shell that reads
//! commands, without echo or any other help of a terminal, so that kernel messages and commands never mix.

use crate::error::{Context, Result};
use crate::process::output;
use std::os::unix::fs::PermissionsExt;
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

/// Puts together, in the folder `$4`, the programs in `$1` and the modules `$2` of kernel `$3`. Busybox is
/// all programs that have no file of their own.
const TREE: &str = r#"umask 022
mkdir -p "$4/lib/modules"
cd "$4"
mkdir dev proc sys tmp run root etc var
ln -s /run var/run
cp -R "$1/." .
cp -R "$2" "lib/modules/$3"
for applet in $("$1/bin/busybox" --list); do
    [ -e "bin/$applet" ] || ln -s busybox "bin/$applet"
done
"#;

/// Appends what is in the folder `$2` to the image `$3`, in the `newc` format that Linux unpacks: archives
/// may follow one another there. `$1` is busybox. All of it is root's, whoever makes the image. There is no
/// device node, which takes root to make: the kernel has a `/dev/console` of its own for `/init`.
const PACK: &str = r#"cd "$2"
find . | "$1" cpio -o -H newc -R 0:0 >> "$3"
"#;

fn shell(script: &str, arguments: &[&Path]) -> Result<()> {
    output(Command::new("sh").args(["-euc", script, "sh"]).args(arguments)).map(drop)
}

/// What of an image stands in this file.
pub(crate) fn recipe() -> String {
    [INIT, AGENT, TREE, PACK].concat()
}

/// Makes an image of the programs in `root` and the `modules` of kernel `version`; `work` is room for it.
/// Modules that `/init` loads are named in the script; the others wait for `modprobe`.
pub(crate) fn build(root: &Path, modules: &Path, version: &str, work: &Path, target: &Path) -> Result<()> {
    let tree = work.join("tree");
    shell(TREE, &[root, modules, Path::new(version), &tree])?;
    let file = |path: &str, mode, text: &str| Extra { path: path.to_owned(), mode, data: text.into() };
    let own = [
        file("init", 0o755, INIT),
        file("agent", 0o644, AGENT),
        file("etc/passwd", 0o644, "root::0:0:root:/root:/bin/sh\n"),
        file("etc/group", 0o644, "root:x:0:\n"),
    ];
    write(&own, &tree)?;
    shell(PACK, &[&root.join("bin/busybox"), &tree, &target.join("initramfs.cpio")])
}

/// A file that a test adds to the common image.
#[derive(Clone)]
pub(crate) struct Extra {
    pub(crate) path: String,
    pub(crate) mode: u32,
    pub(crate) data: Vec<u8>,
}

/// The image `common` followed by an archive of `extra`, in `target`.
pub(crate) fn with_extra(busybox: &Path, common: &Path, extra: &[Extra], target: &Path) -> Result<()> {
    let tree = target.with_extension("tree");
    write(extra, &tree)?;
    std::fs::copy(common, target).context(|| format!("copying {}", common.display()))?;
    shell(PACK, &[busybox, &tree, target])
}

fn write(files: &[Extra], folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).context(|| format!("making {}", folder.display()))?;
    for Extra { path, mode, data } in files {
        let path = folder.join(path.trim_start_matches('/'));
        std::fs::create_dir_all(path.parent().unwrap_or(folder))
            .and_then(|()| std::fs::write(&path, data))
            .and_then(|()| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(*mode)))
            .context(|| format!("writing {}", path.display()))?;
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
