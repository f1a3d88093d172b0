//! Guests without a VMM: User-mode Linux, a kernel that runs as a process of the host.
//!
//! A guest of that kind boots in seconds where an emulated one takes half a minute, and what its kernel does
//! it does at native speed. Its cards are virtio-net over vhost-user, and nothing else: Intel cards, firmware
//! and reconnection need QEMU. It is Debian's package user-mode-linux, with the root file system of all
//! guests.

use crate::agent::Agent;
use crate::error::{Context, Error, Result};
use crate::fetch::{guest_recipe, part, Lab};
use crate::guest::{control_socket, Guest, BOOT_LIMIT};
use crate::image::{self, Extra};
use crate::modules::copy_modules;
use crate::process::Process;
use crate::rundir::{unique, RunDir};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const PROGRAM: &str = "/usr/bin/linux.uml";
const MODULES: &str = "/usr/lib/uml/modules";
/// Modules that such a guest can load with `modprobe`; `/init` loads the first.
const WANTED: [&str; 9] = [
    "virtio_net",
    "8021q",
    "veth",
    "bridge",
    "ipv6",
    "nf_tables",
    "nf_conntrack_bridge",
    "nft_ct",
    "sch_netem",
];
/// What a port has to be for such a guest, which would wait for ever for answers on a control queue.
pub const PORT: &str = "call-socket=on,features-off=mq+ctrl_vq+guest_announce+packed+status";

/// A guest that is being described.
pub struct Uml {
    name: String,
    sockets: Vec<String>,
    files: Vec<Extra>,
}

impl Uml {
    /// Begins to describe a guest; `name` becomes its host name.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), sockets: Vec::new(), files: Vec::new() }
    }

    /// Plugs a card whose back end listens at `socket`; the guest sees the first one as `eth0`.
    #[must_use]
    pub fn card(mut self, socket: &str) -> Self {
        self.sockets.push(socket.to_owned());
        self
    }

    /// Puts a file into the guest's root file system.
    #[must_use]
    pub fn file(mut self, path: &str, mode: u32, data: Vec<u8>) -> Self {
        self.files.push(Extra { path: path.to_owned(), mode, data });
        self
    }

    /// Starts the kernel and waits until it takes commands.
    ///
    /// # Errors
    /// The package is not there, or the kernel does not come up.
    pub fn boot(self) -> Result<Guest> {
        let lab = Lab::open()?;
        let dir = RunDir::new(&self.name)?;
        let image = dir.path().join("initramfs.cpio");
        image::with_extra(&lab.busybox(), &common_image(lab)?, &self.files, &image)?;
        let nonce = unique();
        let (port, port_theirs) = control_socket()?;
        // This kernel has helper processes, which hold its sockets and outlive it: a namespace ends with its
        // first.
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", PROGRAM]);
        // Its memory is a file there, which it shares by its descriptor: a tmpfs, whose pages may be run.
        command.env("TMPDIR", "/dev/shm");
        command.arg("mem=192M").arg(format!("initrd={}", image.display()));
        command.arg(format!("uml_dir={}/", dir.path().display()));
        command.args(["quiet", "con=null", "con0=null,fd:1", "ssl=null"]);
        command.arg(format!("ssl1=fd:{}", port_theirs.as_raw_fd()));
        command.arg(format!("lab.name={}", self.name)).arg(format!("lab.nonce={nonce}"));
        command.args(self.sockets.iter().map(|socket| format!("virtio_uml.device={socket}:1")));
        let log = File::create(dir.path().join("console.log")).and_then(|log| Ok((log.try_clone()?, log)));
        let (log, log_too) = log.context(|| "making console.log".to_owned())?;
        command.stdin(Stdio::null()).stdout(log).stderr(log_too);
        let process = Process::spawn(command, vec![port_theirs])?;
        let agent = Agent::new(port, &nonce);
        let mut guest = Guest::of(self.name, process, agent, dir, Duration::from_secs(60));
        guest.wait_ready(BOOT_LIMIT)?;
        Ok(guest)
    }

    /// Boots several guests at once.
    ///
    /// # Errors
    /// As for [`Uml::boot`]; those that did boot are killed.
    pub fn boot_all<const N: usize>(guests: [Self; N]) -> Result<[Guest; N]> {
        crate::guest::all_at_once(guests, Self::boot)
    }
}

/// The root file system of all of them.
fn common_image(lab: &Lab) -> Result<PathBuf> {
    let missing = "install Debian's package user-mode-linux (scripts/setup does)";
    let folders = image::files(Path::new(MODULES)).map_err(|e| Error::new(format!("{e}; {missing}")))?;
    let [version] = &folders[..] else {
        return Err(Error::new(format!("{MODULES} has {folders:?} instead of one kernel; {missing}")));
    };
    let recipe = format!("{version} {WANTED:?} {} {}", guest_recipe(), image::recipe());
    let folder = part(&lab.dir, "uml", &recipe, |work, target| {
        copy_modules(&Path::new(MODULES).join(version), &WANTED, &work.join("modules"))?;
        image::build(&lab.dir.join("guest/root"), &work.join("modules"), version, work, target)
    })?;
    Ok(folder.join("initramfs.cpio"))
}
