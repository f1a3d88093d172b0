//! Brings what a lab needs into one private folder.
//!
//! The folder is `.lab` at the root of the workspace, or what `SIDECORE_LAB_DIR` names. It gets a QEMU of at
//! least 10.1 (the first with a vfio-user client) unless the system has one, Debian 12's kernel and its
//! network modules, busybox, iperf3, ethtool, nft and iproute2's bridge. Everything comes from Debian's
//! archive through apt (see `apt.rs`); about 115 MB are downloaded and 200 MB stay. What few guests want,
//! such as DPDK, is fetched when it is first asked for, in the same way. A second call finds the stamps and
//! does nothing; calls from several processes wait for one another.

use crate::accel::Accel;
use crate::apt::{self, Apt};
use crate::error::{Context, Error, Result};
use crate::guest;
use crate::image;
use crate::modules::copy_modules;
use crate::process::{output, Process};
use crate::vmm::Vmm;
use rustix::fs::{flock, FlockOperation};
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::OnceLock;

/// The release whose kernel and tools the guests run; also on a host with a newer one, so that results
/// compare.
pub(crate) const GUEST_SUITE: &str = "bookworm";
/// Where a new enough QEMU is.
pub(crate) const VMM_SUITES: [&str; 2] = ["trixie", "trixie-backports"];
const VMM_PACKAGES: [&str; 3] = ["qemu-system-x86", "seabios", "ipxe-qemu"];
/// What of them is kept; the rest is documentation, and programs that are not to be run from here.
const VMM_KEEP: [&str; 5] = [
    "usr/bin/qemu-system-x86_64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib64",
    "usr/share/qemu",
    "usr/share/seabios",
];
/// Tools of the guests, with the libraries of those that are not static. kexec knows of Xen.
const GUEST_PACKAGES: &str = "busybox-static iproute2 libcap2 iperf3 libiperf0 libsctp1 libssl3 ethtool libmnl0 \
    kexec-tools libxenmisc4.17 libxencall1 libxendevicemodel1 libxenevtchn1 libxenforeignmemory1 libxengnttab1 \
    libxentoolcore1 libxentoollog1 nftables libnftables1 libnftnl11 libjansson4 libgmp10 libedit2 libbsd0 libmd0 \
    libtinfo6 libxtables12 libc6";
/// The dynamic programs among them.
const GUEST_PROGRAMS: [&str; 5] =
    ["usr/bin/iperf3", "usr/sbin/bridge", "usr/sbin/ethtool", "usr/sbin/kexec", "usr/sbin/nft"];
/// The loader of dynamic programs. The package's `/lib64` has an absolute link to it, which leads out of our
/// folder.
pub(crate) const LOADER: &str = "ld-linux-x86-64.so.2";
/// Modules that a guest can load with `modprobe`; the first few are loaded at boot (see `image.rs`).
pub(crate) const GUEST_MODULES: [&str; 25] = [
    "virtio_pci",
    "virtio_net",
    "e1000",
    "e1000e",
    "realtek",
    "r8169",
    "pktgen",
    "virtio_blk",
    "virtio_balloon",
    "virtio_console",
    "ext4",
    "crc32c_generic",
    "8021q",
    "veth",
    "bridge",
    "bonding",
    "team",
    "macvlan",
    "macvtap",
    "tun",
    "vxlan",
    "dummy",
    "vfio_pci",
    "uio_pci_generic",
    "sch_fq",
];

/// The fetched things, ready to be used.
#[derive(Clone, Debug)]
pub struct Lab {
    /// The private folder.
    pub dir: PathBuf,
    /// The kernel image of the guests.
    pub kernel: PathBuf,
    /// Its version, such as `6.1.0-50-amd64`.
    pub kernel_version: String,
    /// The guests' root file system.
    pub initramfs: PathBuf,
    /// A folder with `ping`, `arping`, `nc`, `iperf3` and `ethtool` for the host, the same as in the guests.
    pub tools: PathBuf,
    pub(crate) vmm: Vmm,
}

impl Lab {
    /// The lab of this process; fetches what is missing.
    ///
    /// # Errors
    /// Something cannot be downloaded or unpacked.
    pub fn open() -> Result<&'static Self> {
        static LAB: OnceLock<Result<Lab>> = OnceLock::new();
        LAB.get_or_init(|| fetch(&lab_dir()?)).as_ref().map_err(|e| Error::new(e.to_string()))
    }

    /// The guests' busybox; it is static, so the host can run it, too.
    pub(crate) fn busybox(&self) -> PathBuf {
        self.dir.join("guest/root/bin/busybox")
    }

    /// The version of QEMU, major and minor.
    pub fn qemu_version(&self) -> (u32, u32) {
        self.vmm.version
    }
}

/// Boots a guest with its console on our terminal and waits for its end.
///
/// # Errors
/// The lab cannot be fetched or QEMU not started.
pub fn shell(arguments: &[&str]) -> Result<ExitStatus> {
    let accel = Accel::decide()?;
    let lab = Lab::open()?;
    let mut command = lab.vmm.command(None);
    guest::machine(&mut command, accel, 256, 1);
    command.arg("-kernel").arg(&lab.kernel).arg("-initrd").arg(&lab.initramfs);
    command.args([
        "-append",
        &format!("{} lab.name=guest lab.shell", crate::guest::KERNEL_ARGUMENTS),
        "-serial",
        "mon:stdio",
    ]);
    command.args(arguments);
    Process::spawn(command, Vec::new())?.child().wait().context(|| "waiting for QEMU".to_owned())
}

/// Does `work`, and reads the package lists of each release once for all that it fetches.
///
/// # Errors
/// Those of `work`, and the lab's folder cannot be made.
pub(crate) fn sharing_lists<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let dir = lab_dir()?;
    std::fs::create_dir_all(&dir).context(|| format!("making {}", dir.display()))?;
    apt::sharing(&dir, work)
}

/// The private folder; see the head of this module.
pub(crate) fn lab_dir() -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os("SIDECORE_LAB_DIR") {
        return std::path::absolute(&dir).context(|| format!("SIDECORE_LAB_DIR={}", dir.to_string_lossy()));
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("/"));
    if !root.is_dir() {
        return Err(Error::new(format!(
            "the workspace {} that this program was built from is gone; set SIDECORE_LAB_DIR to a folder",
            root.display()
        )));
    }
    Ok(root.join(".lab"))
}

fn fetch(dir: &Path) -> Result<Lab> {
    std::fs::create_dir_all(dir).context(|| format!("making {}", dir.display()))?;
    // Held until it is closed, at the end of this function or of the process.
    let _lock = lock(&dir.join("lock"), &|| {
        eprintln!("sidecore-lab: waiting for another process that fetches into {}", dir.display());
    })?;
    let vmm = match Vmm::system() {
        Some(vmm) => vmm,
        None => Vmm::private(&part(dir, "qemu", &vmm_recipe(), fetch_vmm)?)?,
    };
    let guest = part(dir, "guest", &guest_recipe(), fetch_guest)?;
    let version = guest.join("version");
    let version = std::fs::read_to_string(&version).context(|| format!("reading {}", version.display()))?;
    let image = part(dir, "image", &(guest_recipe() + &image::recipe()), |work, image| {
        image::build(&guest.join("root"), &guest.join("modules"), &version, work, image)
    })?;
    let tools = part(dir, "tools", &(guest_recipe() + TOOL), |_, tools| host_tools(tools))?;
    Ok(Lab {
        dir: dir.to_owned(),
        kernel: guest.join("vmlinuz"),
        kernel_version: version,
        initramfs: image.join("initramfs.cpio"),
        tools,
        vmm,
    })
}

/// A file that is locked until it is closed. No other thread or process has it meanwhile; `waits` is called
/// if another has it now.
fn lock(path: &Path, waits: &dyn Fn()) -> Result<File> {
    let file = File::create(path).context(|| format!("making {}", path.display()))?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        waits();
        flock(&file, FlockOperation::LockExclusive).context(|| format!("locking {}", path.display()))?;
    }
    Ok(file)
}

/// The folder `dir/name`, made by `make(work folder, target)` unless it is there and was made by this
/// `recipe`. The target gets its name only when it is complete. Of several that ask at once, one makes it and
/// the others wait.
pub(crate) fn part(
    dir: &Path,
    name: &str,
    recipe: &str,
    make: impl FnOnce(&Path, &Path) -> Result<()>,
) -> Result<PathBuf> {
    let target = dir.join(name);
    let is_made = || std::fs::read_to_string(target.join("stamp")).is_ok_and(|stamp| stamp == recipe);
    if is_made() {
        return Ok(target);
    }
    let _lock = lock(&dir.join(format!("{name}.lock")), &|| {
        eprintln!("sidecore-lab: waiting for another one that makes {}", target.display());
    })?;
    if is_made() {
        return Ok(target);
    }
    let (work, fresh) = (dir.join(format!("{name}.work")), dir.join(format!("{name}.new")));
    for old in [&work, &fresh, &target] {
        let _ = std::fs::remove_dir_all(old);
    }
    std::fs::create_dir_all(&fresh).context(|| format!("making {}", fresh.display()))?;
    let made = make(&work, &fresh);
    let _ = std::fs::remove_dir_all(&work);
    made.inspect_err(|_| drop(std::fs::remove_dir_all(&fresh)))?;
    std::fs::write(fresh.join("stamp"), recipe).context(|| format!("writing {}", fresh.display()))?;
    std::fs::rename(&fresh, &target).context(|| format!("renaming {}", fresh.display()))?;
    eprintln!("sidecore-lab: {} is ready", target.display());
    Ok(target)
}

fn vmm_recipe() -> String {
    format!("{VMM_SUITES:?} {VMM_PACKAGES:?} {VMM_KEEP:?}")
}

fn fetch_vmm(work: &Path, target: &Path) -> Result<()> {
    let apt = Apt::new(work, &VMM_SUITES)?;
    let root = work.join("root");
    apt.unpack_with_dependencies(VMM_SUITES[1], &VMM_PACKAGES, &root)?;
    for path in VMM_KEEP {
        let to = target.join(path);
        let folder = to.parent().unwrap_or(target);
        std::fs::create_dir_all(folder).context(|| format!("making {}", folder.display()))?;
        std::fs::rename(root.join(path), &to).context(|| format!("{path} in Debian's QEMU packages"))?;
    }
    Ok(())
}

pub(crate) fn guest_recipe() -> String {
    format!("{GUEST_SUITE} {GUEST_PACKAGES:?} {GUEST_PROGRAMS:?} {GUEST_MODULES:?}")
}

/// Makes `target`: `vmlinuz`, `version`, `modules/` (the tree of `lib/modules/VERSION`, only what is wanted,
/// with `modules.dep`), and `root/` with the programs and the libraries that they load.
fn fetch_guest(work: &Path, target: &Path) -> Result<()> {
    let apt = Apt::new(work, &[GUEST_SUITE])?;
    let root = work.join("root");
    let kernel = apt.depends("linux-image-amd64", "linux-image-")?;
    let version = kernel.trim_start_matches("linux-image-").to_owned();
    let packages: Vec<&str> = GUEST_PACKAGES.split(' ').chain([kernel.as_str()]).collect();
    apt.unpack_only(&packages, &root)?;

    copy(&root.join(format!("boot/vmlinuz-{version}")), &target.join("vmlinuz"))?;
    std::fs::write(target.join("version"), &version).context(|| "writing the kernel's version".to_owned())?;
    // Debian's package of the kernel leaves this to the installed system.
    output(Command::new(root.join("bin/busybox")).args(["depmod", "-b"]).arg(&root).arg(&version))?;
    copy_modules(&root.join("lib/modules").join(&version), &GUEST_MODULES, &target.join("modules"))?;

    copy(&root.join("bin/busybox"), &target.join("root/bin/busybox"))?;
    for program in GUEST_PROGRAMS {
        let file = if root.join(program).exists() { program } else { program.trim_start_matches("usr/") };
        copy_program(&root, file, &target.join("root/bin"), &target.join("root/lib"))?;
    }
    copy(&root.join("lib/x86_64-linux-gnu").join(LOADER), &target.join("root/lib64").join(LOADER))
}

/// Runs a program of the guests on the host.
const TOOL: &str = r#"#!/bin/sh
root="${0%/*}/../guest/root"
exec "$root/lib64/ld-linux-x86-64.so.2" --library-path "$root/lib" "$root/bin/${0##*/}" "$@"
"#;

fn host_tools(target: &Path) -> Result<()> {
    for program in ["iperf3", "ethtool"] {
        let file = target.join(program);
        std::fs::write(&file, TOOL)
            .and_then(|()| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)))
            .context(|| format!("writing {}", file.display()))?;
    }
    for applet in ["ping", "arping", "nc"] {
        let link = target.join(applet);
        std::os::unix::fs::symlink("../guest/root/bin/busybox", &link)
            .context(|| format!("making {}", link.display()))?;
    }
    Ok(())
}

/// The libraries that a program or a library loads, asked from the loader of the same packages.
fn libraries(root: &Path, program: &str) -> Result<Vec<PathBuf>> {
    let folders = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/ceph"];
    let folders = folders.map(|folder| root.join(folder).display().to_string());
    let mut loader = Command::new(root.join("lib/x86_64-linux-gnu").join(LOADER));
    loader.arg("--library-path").arg(folders.join(":")).arg("--list").arg(root.join(program));
    let text = output(&mut loader)?;
    let mut found = Vec::new();
    for line in text.lines().filter(|l| l.contains("=>")) {
        let path = line.split("=> ").nth(1).and_then(|l| l.split_whitespace().next()).map(PathBuf::from);
        match path {
            Some(path) if path.starts_with(root) => found.push(path),
            Some(path) if path.ends_with(LOADER) => {}
            _ => {
                return Err(Error::new(format!(
                    "{program} needs a library outside our packages: {}",
                    line.trim()
                )))
            }
        }
    }
    Ok(found)
}

/// Copies a program, or a plugin, of the packages in `root` to the folder `to`, and the libraries that it
/// loads to `lib`.
pub(crate) fn copy_program(root: &Path, program: &str, to: &Path, lib: &Path) -> Result<()> {
    let named = |file: &Path, folder: &Path| folder.join(file.file_name().unwrap_or_default());
    copy(&root.join(program), &named(Path::new(program), to))?;
    libraries(root, program)?.iter().try_for_each(|library| copy(library, &named(library, lib)))
}

pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    let folder = to.parent().unwrap_or(to);
    std::fs::create_dir_all(folder).context(|| format!("making {}", folder.display()))?;
    std::fs::copy(from, to).context(|| format!("copying {} to {}", from.display(), to.display())).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rundir::RunDir;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::Barrier;

    /// A caller that asks while another one makes the folder gets it complete, and it is made once for each
    /// recipe.
    #[test]
    fn what_several_ask_for_at_once_is_made_once() {
        let dir = RunDir::new("parts").unwrap();
        let (made, inside, start) = (AtomicU32::new(0), AtomicU32::new(0), Barrier::new(4));
        let ask = |recipe: &str| {
            let folder = part(dir.path(), "thing", recipe, |work, target| {
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two make it at once");
                std::fs::create_dir(work).unwrap();
                for n in 0..200 {
                    std::fs::write(target.join(n.to_string()), recipe).unwrap();
                }
                inside.fetch_sub(1, Ordering::SeqCst);
                made.fetch_add(1, Ordering::SeqCst);
                Ok(())
            });
            assert_eq!(std::fs::read_to_string(folder.unwrap().join("199")).unwrap(), recipe);
        };
        for (recipe, times) in [("old", 1), ("new", 2)] {
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        start.wait();
                        ask(recipe);
                    });
                }
            });
            assert_eq!(made.load(Ordering::SeqCst), times);
        }
        assert!(!dir.path().join("thing.work").exists() && !dir.path().join("thing.new").exists());
    }
}
