//! A virtual machine: described by [`Spec`], driven through [`Guest`].
//!
//! QEMU gets its control sockets (machine protocol, the serial port for commands) as inherited descriptors,
//! so that there is no path to clean up and no moment without a listener, and the end of QEMU is seen at once
//! as the end of a stream. Every wait has a time limit and ends by an event.
//!
//! An error carries the last lines of the guest's console and of QEMU's own messages, and the folder with the
//! whole logs is kept.

use crate::accel::Accel;
use crate::agent::{Agent, Job, Output};
use crate::disk;
use crate::error::{Context, Error, Result};
use crate::fetch::Lab;
use crate::firmware;
use crate::image::{self, Extra};
use crate::netboot::{self, NetBoot};
use crate::netns::Netns;
use crate::nic::Nic;
use crate::process::Process;
use crate::qmp::Qmp;
use crate::rundir::{tail, unique, RunDir};
use serde_json::{json, Value};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a guest may take to boot. Two cores that emulate several guests at once are slow.
pub(crate) const BOOT_LIMIT: Duration = Duration::from_secs(180);
/// How long QEMU may take for a command.
const QMP_LIMIT: Duration = Duration::from_secs(30);
/// How much of a log an error shows: a kernel's last words are up to 60 lines.
const LINES: usize = 80;

/// What a VM is made of. Made by [`Guest::named`].
#[derive(Default)]
pub struct Spec {
    name: String,
    memory_mib: u32,
    vcpus: u32,
    accel: Option<Accel>,
    limit: Duration,
    nics: Vec<Nic>,
    arguments: Vec<String>,
    kernel_arguments: Vec<String>,
    files: Vec<Extra>,
    netns: Option<String>,
    network: Option<PathBuf>,
    disks: Vec<PathBuf>,
    boot_image: Option<PathBuf>,
    uefi: bool,
}

impl Spec {
    /// Memory in MiB; 256 without this.
    #[must_use]
    pub fn memory_mib(mut self, memory_mib: u32) -> Self {
        self.memory_mib = memory_mib;
        self
    }

    /// Number of virtual processors; 1 without this.
    #[must_use]
    pub fn vcpus(mut self, vcpus: u32) -> Self {
        self.vcpus = vcpus;
        self
    }

    /// Plugs a network card; the guest sees the first one as `eth0`.
    #[must_use]
    pub fn nic(mut self, nic: Nic) -> Self {
        self.nics.push(nic);
        self
    }

    /// Adds an argument of QEMU, as it is.
    #[must_use]
    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// Adds a word to the guest kernel's command line.
    #[must_use]
    pub fn kernel_argument(mut self, argument: &str) -> Self {
        self.kernel_arguments.push(argument.to_owned());
        self
    }

    /// Puts a file into the guest's root file system.
    #[must_use]
    pub fn file(mut self, path: &str, mode: u32, data: Vec<u8>) -> Self {
        self.files.push(Extra { path: path.to_owned(), mode, data });
        self
    }

    /// Runs QEMU in a network namespace, whose TAP interfaces it can open.
    #[must_use]
    pub fn netns(mut self, netns: &Netns) -> Self {
        self.netns = Some(netns.name().to_owned());
        self
    }

    /// Leaves it to the firmware to load the kernel, from these servers through the first card, which needs a
    /// MAC address and a ROM (`romfile`).
    #[must_use]
    pub fn boot_over_network(mut self, servers: &NetBoot) -> Self {
        self.network = Some(servers.scripts());
        self
    }

    /// Plugs a virtio-blk disk whose back end listens at `socket`; the guest sees the first one as
    /// `/dev/vda`.
    #[must_use]
    pub fn disk(mut self, socket: impl Into<PathBuf>) -> Self {
        self.disks.push(socket.into());
        self
    }

    /// Leaves it to the firmware to load the kernel from the first disk, behind which `image` is, of
    /// [`BOOT_BYTES`](crate::disk::BOOT_BYTES) at least: it is written before.
    #[must_use]
    pub fn boot_from_disk(mut self, image: impl Into<PathBuf>) -> Self {
        self.boot_image = Some(image.into());
        self
    }

    /// Has UEFI firmware (OVMF) instead of a BIOS.
    #[must_use]
    pub fn uefi(mut self) -> Self {
        self.uefi = true;
        self
    }

    /// How long a command may take unless it says otherwise; 60 s without this.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs the guest this way instead of the one that [`Accel::decide`] finds.
    #[must_use]
    pub fn accel(mut self, accel: Accel) -> Self {
        self.accel = Some(accel);
        self
    }

    /// Starts the VM and waits until it takes commands.
    ///
    /// # Errors
    /// The lab cannot be fetched, QEMU refuses an argument, or the kernel does not come up.
    pub fn boot(self) -> Result<Guest> {
        let mut guest = self.start(&[])?;
        guest.wait_ready(BOOT_LIMIT)?;
        Ok(guest)
    }

    /// Starts QEMU and speaks QMP with it, but does not wait for the guest.
    fn start(self, more: &[&str]) -> Result<Guest> {
        let accel = match self.accel {
            Some(accel) => accel,
            None => Accel::decide()?,
        };
        let lab = Lab::open()?;
        let dir = RunDir::new(&self.name)?;
        let nonce = unique();
        let (qmp, qmp_theirs) = control_socket()?;
        let (port, port_theirs) = control_socket()?;
        let mut command = lab.vmm.command(self.netns.as_deref());
        let mut append = format!("{KERNEL_ARGUMENTS} oops=panic lab.name={} lab.nonce={nonce}", self.name);
        append.extend(self.kernel_arguments.iter().map(|word| format!(" {word}")));
        machine(&mut command, accel, self.memory_mib, self.vcpus);
        if let Some(scripts) = &self.network {
            let mac = self.nics.first().and_then(Nic::own_mac);
            let (Some(mac), true) = (mac, self.files.is_empty()) else {
                return Err(Error::new(
                    "a guest that boots over the network needs a MAC address and no files",
                ));
            };
            netboot::write_script(scripts, mac, &append)?;
            // Without graphics the firmware's words go to the console, too.
            command.args(["-machine", "graphics=off"]);
        } else if let Some(image) = &self.boot_image {
            if !self.files.is_empty() || self.disks.is_empty() {
                return Err(Error::new("a guest that boots from a disk needs one, and no files"));
            }
            disk::write(lab, image, &append, dir.path())?;
            command.args(["-machine", "graphics=off"]);
        } else {
            let image = if self.files.is_empty() {
                lab.initramfs.clone()
            } else {
                let image = dir.path().join("initramfs.cpio");
                image::with_extra(&lab.busybox(), &lab.initramfs, &self.files, &image)?;
                image
            };
            command.arg("-kernel").arg(&lab.kernel).arg("-initrd").arg(image).args(["-append", &append]);
        }
        if self.uefi {
            firmware::arguments(lab, dir.path(), &mut command)?;
        }
        command.args(["-chardev", &format!("file,id=console,path={}", dir.join("console.log"))]);
        command.args(["-serial", "chardev:console"]);
        command.args(["-chardev", &format!("socket,id=agent,fd={}", port_theirs.as_raw_fd())]);
        command.args(["-serial", "chardev:agent"]);
        command.args(["-chardev", &format!("socket,id=qmp,fd={}", qmp_theirs.as_raw_fd())]);
        command.args(["-qmp", "chardev:qmp"]);
        let mut inherit = vec![qmp_theirs, port_theirs];
        let mut macs = Vec::new();
        for (index, nic) in self.nics.into_iter().enumerate() {
            let mac = nic.own_mac().map_or_else(fresh_mac, str::to_owned);
            let (arguments, descriptor) = nic.into_arguments(index, &mac);
            command.args(arguments);
            inherit.extend(descriptor);
            macs.push(mac);
        }
        for (index, socket) in self.disks.iter().enumerate() {
            command.args(disk::arguments(index, socket));
        }
        command.args(&self.arguments).args(more);
        let log =
            std::fs::File::create(dir.path().join("qemu.log")).context(|| "making qemu.log".to_owned())?;
        let log_too = log.try_clone().context(|| "making qemu.log".to_owned())?;
        command.stdin(Stdio::null()).stdout(log).stderr(log_too);
        let process = Process::spawn(command, inherit)?;
        let mut guest = Guest::of(self.name, process, Agent::new(port, &nonce), dir, self.limit);
        guest.macs = macs;
        let qmp = Qmp::new(qmp, BOOT_LIMIT);
        guest.qmp = Some(guest.explain("starting QEMU", qmp)?);
        Ok(guest)
    }
}

/// Boots several guests at once.
pub(crate) fn all_at_once<T: Send + 'static, const N: usize>(
    specs: [T; N],
    boot: fn(T) -> Result<Guest>,
) -> Result<[Guest; N]> {
    let threads = specs.map(|spec| std::thread::spawn(move || boot(spec)));
    let guests: Result<Vec<Guest>> = threads
        .into_iter()
        .map(|thread| thread.join().map_err(|_| Error::new("a thread that booted a guest panicked"))?)
        .collect();
    guests?.try_into().map_err(|_| Error::new("a guest is missing"))
}

/// For every guest. Without hardware virtualisation on a loaded machine a guest's clock stands still for
/// longer than a kernel believes possible: it must not give up because the timer seems dead or a processor
/// stuck.
pub(crate) const KERNEL_ARGUMENTS: &str =
    "console=ttyS0 quiet panic=-1 no_timer_check nowatchdog rcupdate.rcu_cpu_stall_suppress=1";

/// The machine without its devices; also for a person's own guest (`sidecore-lab shell`).
pub(crate) fn machine(command: &mut Command, accel: Accel, memory_mib: u32, vcpus: u32) {
    let (name, cpu) = match accel {
        Accel::Kvm => ("kvm", "host"),
        Accel::Tcg => ("tcg", "max"),
    };
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    // Memory that another process can map: both vhost-user and vfio-user need it.
    command.args(["-object", &format!("memory-backend-memfd,id=mem,size={memory_mib}M,share=on")]);
    command.args(["-machine", &format!("q35,memory-backend=mem,accel={name}"), "-cpu", cpu]);
    command.args(["-smp", &vcpus.to_string(), "-m", &format!("{memory_mib}M")]);
}

/// A connected pair: ours, and the one that the guest's process inherits.
pub(crate) fn control_socket() -> Result<(UnixStream, OwnedFd)> {
    let (ours, theirs) = UnixStream::pair().context(|| "making a control socket".to_owned())?;
    Ok((ours, theirs.into()))
}

/// A locally administered address, unlike all others of this process.
fn fresh_mac() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let [_, a, b, c] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    format!("52:54:00:{a:02x}:{b:02x}:{c:02x}")
}

/// What a migration took, in milliseconds, as QEMU reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    /// From its begin to its end.
    pub total_ms: u64,
    /// How long the guest stood still.
    pub downtime_ms: u64,
}

/// A running virtual machine; killed when dropped.
pub struct Guest {
    name: String,
    process: Process,
    qmp: Option<Qmp>,
    agent: Agent,
    dir: RunDir,
    macs: Vec<String>,
    limit: Duration,
    explained: bool,
}

impl Guest {
    /// Begins to describe a VM; `name` becomes its host name.
    pub fn named(name: &str) -> Spec {
        let (name, limit) = (name.to_owned(), Duration::from_secs(60));
        Spec { name, memory_mib: 256, vcpus: 1, limit, ..Spec::default() }
    }

    /// The guest that `process` is or runs, and that `agent` speaks with.
    pub(crate) fn of(name: String, process: Process, agent: Agent, dir: RunDir, limit: Duration) -> Guest {
        Guest { name, process, qmp: None, agent, dir, macs: Vec::new(), limit, explained: false }
    }

    /// Waits until it takes commands.
    pub(crate) fn wait_ready(&mut self, limit: Duration) -> Result<()> {
        let ready = self.agent.wait_ready(limit);
        self.explain("booting", ready)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The MAC address of network card `index`, in the order in which they were plugged.
    pub fn mac(&self, index: usize) -> Option<&str> {
        self.macs.get(index).map(String::as_str)
    }

    /// The process id of the VMM, or of a guest that has none.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Runs a shell command in the guest and waits for its end. Each command has a shell of its own, no
    /// input, and its output is exactly what it printed.
    ///
    /// # Errors
    /// The guest is gone, or the command does not end within the guest's time limit.
    pub fn run(&mut self, command: &str) -> Result<Output> {
        self.run_within(command, self.limit)
    }

    /// [`Guest::run`] with another time limit.
    ///
    /// # Errors
    /// As for [`Guest::run`].
    pub fn run_within(&mut self, command: &str, limit: Duration) -> Result<Output> {
        let output = self.agent.run(command, limit);
        self.explain("running a command", output)
    }

    /// Runs a command that must succeed, and returns what it printed.
    ///
    /// # Errors
    /// As for [`Guest::run`], and if the command's status is not 0.
    pub fn expect(&mut self, command: &str) -> Result<String> {
        let done = self.run(command)?.of(command);
        self.explain("running a command", done)
    }

    /// Waits until a condition, given as a shell command, holds. The guest itself looks every 20 ms.
    ///
    /// # Errors
    /// It does not hold within `limit`.
    pub fn wait_until(&mut self, condition: &str, limit: Duration) -> Result<()> {
        self.run_within(&format!("until {condition}; do usleep 20000; done"), limit).map(drop)
    }

    /// Starts a command and goes on.
    ///
    /// # Errors
    /// The guest is gone.
    pub fn run_in_background(&mut self, command: &str) -> Result<Job> {
        let job = self.agent.start(command, self.limit);
        self.explain("starting a background job", job)
    }

    /// Waits for the end of a background command.
    ///
    /// # Errors
    /// It still runs after `limit`; the error has what it printed so far.
    pub fn wait_for(&mut self, job: Job, limit: Duration) -> Result<Output> {
        let output = self.agent.wait(job, limit);
        self.explain("waiting for a background job", output)
    }

    /// Sends SIGTERM to a background command and its children.
    ///
    /// # Errors
    /// The guest is gone.
    pub fn stop(&mut self, job: Job) -> Result<()> {
        let stopped = self.agent.stop(job, self.limit);
        self.explain("stopping a background job", stopped)
    }

    /// Sends a QMP command such as `{"execute": "query-status"}` and returns its `return`.
    ///
    /// # Errors
    /// QEMU refuses it or is gone.
    pub fn qmp(&mut self, command: Value) -> Result<Value> {
        let answer = self.monitor().and_then(|qmp| qmp.send(command, QMP_LIMIT));
        self.explain("QMP", answer)
    }

    /// Waits for a QMP event of this name; those before it are forgotten.
    ///
    /// # Errors
    /// It does not come within `limit`.
    pub fn wait_event(&mut self, name: &str, limit: Duration) -> Result<Value> {
        let event = self.monitor().and_then(|qmp| qmp.wait_event(|e| e["event"] == name, limit));
        self.explain(&format!("waiting for the event {name}"), event)
    }

    /// The guest's console so far: the kernel's messages.
    pub fn console(&self) -> String {
        tail(&self.dir.path().join("console.log"), usize::MAX)
    }

    /// What its VMM has complained of so far.
    pub fn vmm_log(&self) -> String {
        tail(&self.dir.path().join("qemu.log"), usize::MAX)
    }

    /// Boots several guests at once.
    ///
    /// # Errors
    /// As for [`Spec::boot`]; those that did boot are killed.
    pub fn boot_all<const N: usize>(specs: [Spec; N]) -> Result<[Self; N]> {
        all_at_once(specs, Spec::boot)
    }

    /// Gives `eth0` an address such as `10.0.0.1/24` and sets it up.
    ///
    /// # Errors
    /// The guest has no network card.
    pub fn address(&mut self, address: &str) -> Result<()> {
        self.expect(&format!("ip addr add {address} dev eth0 && ip link set eth0 up")).map(drop)
    }

    /// Keeps the logs after the guest's end; returns where the console's is.
    pub fn keep_logs(&mut self) -> String {
        self.dir.keep(true);
        self.dir.join("console.log")
    }

    /// SIGKILL to the VMM; what is left is good for nothing but its logs.
    pub fn crash(&mut self) {
        self.process.kill();
    }

    /// SIGKILL to the VMM, as when it crashes.
    pub fn kill(mut self) {
        self.process.kill();
        self.dir.keep(false);
    }

    /// Restarts the guest from inside, with the same VMM and devices, and waits until it takes commands
    /// again. Background jobs are gone.
    ///
    /// # Errors
    /// It does not come up again.
    pub fn reboot(&mut self) -> Result<()> {
        self.qmp(json!({"execute": "set-action", "arguments": {"reboot": "reset"}}))?;
        self.restart_by("reboot -f")
    }

    /// Runs a command that ends the guest's kernel and starts another one, and waits until that takes
    /// commands. Background jobs are gone.
    ///
    /// # Errors
    /// No kernel comes up.
    pub fn restart_by(&mut self, command: &str) -> Result<()> {
        let ready = self.agent.send(&format!("{command}\n")).and_then(|()| self.agent.wait_ready(BOOT_LIMIT));
        self.explain(command, ready)
    }

    /// Powers the guest off from inside and waits until its process has ended.
    ///
    /// # Errors
    /// It does not end, or not with status 0.
    pub fn power_off(mut self) -> Result<()> {
        let sent = self.agent.send("poweroff -f\n");
        self.explain("powering off", sent)?;
        let ended = self.process.wait(self.limit).and_then(|status| match status.success() {
            true => Ok(()),
            false => Err(Error::new(format!("it ended with {status}"))),
        });
        self.explain("powering off", ended)?;
        self.dir.keep(false);
        Ok(())
    }

    /// Moves the running guest to a new QEMU, live. `target` must describe the same devices; cards without a
    /// MAC address get the guest's. A vhost-user socket on which QEMU listens must have another path.
    ///
    /// # Errors
    /// Either QEMU refuses or the transfer fails; both are killed then.
    pub fn migrate_to(mut self, mut target: Spec) -> Result<(Self, Migration)> {
        for (nic, mac) in target.nics.iter_mut().zip(&self.macs) {
            if nic.own_mac().is_none() {
                *nic = std::mem::replace(nic, Nic::unplugged("")).mac(mac);
            }
        }
        let mut target = target.start(&["-incoming", "defer"])?;
        let uri = format!("unix:{}", target.dir.join("migration"));
        target.qmp(json!({"execute": "migrate-incoming", "arguments": {"uri": uri}}))?;
        let events = json!({"capabilities": [{"capability": "events", "state": true}]});
        self.qmp(json!({"execute": "migrate-set-capabilities", "arguments": events}))?;
        self.qmp(json!({"execute": "migrate", "arguments": {"uri": uri}}))?;
        let done = |event: &Value| {
            event["event"] == "MIGRATION"
                && ["completed", "failed", "cancelled"].iter().any(|s| event["data"]["status"] == *s)
        };
        let end = self.monitor().and_then(|qmp| qmp.wait_event(done, BOOT_LIMIT));
        self.explain("migrating", end)?;
        let report = self.qmp(json!({"execute": "query-migrate"}))?;
        let outcome = match report["status"].as_str() {
            Some("completed") => Ok(()),
            _ => Err(Error::new(format!("the migration did not complete: {report}\n{}", target.logs()))),
        };
        self.explain("migrating", outcome)?;
        // The target runs when it has loaded all; the event may have come before we asked.
        let running = target.monitor().and_then(|qmp| loop {
            if qmp.execute("query-status", json!({}), QMP_LIMIT)?["status"] == "running" {
                return Ok(());
            }
            qmp.wait_event(|e| e["event"] == "RESUME", QMP_LIMIT)?;
        });
        target.explain("taking over a migrated guest", running)?;
        let milliseconds = |key: &str| report[key].as_u64().unwrap_or_default();
        let migration =
            Migration { total_ms: milliseconds("total-time"), downtime_ms: milliseconds("downtime") };
        // The guest stands behind another port now: our end of the conversation goes along.
        let swapped = self.agent.swap_ports(&mut target.agent);
        self.explain("moving the conversation", swapped)?;
        std::mem::swap(&mut self.agent, &mut target.agent);
        target.name.clone_from(&self.name);
        self.process.kill();
        Ok((target, migration))
    }

    fn monitor(&mut self) -> Result<&mut Qmp> {
        self.qmp.as_mut().ok_or_else(|| Error::new("QEMU's monitor is not connected"))
    }

    /// Adds the logs to an error.
    fn explain<T>(&mut self, doing: &str, result: Result<T>) -> Result<T> {
        result.map_err(|e| {
            self.explained = true;
            self.dir.keep(true);
            let ended = self.process.wait(Duration::from_millis(200)).map(|s| format!(" (it ended: {s})"));
            let ended = ended.unwrap_or_default();
            Error::new(format!("guest {}, {doing}: {e}{ended}\n{}", self.name, self.logs()))
        })
    }

    fn logs(&self) -> String {
        let logs = ["qemu.log", "console.log"].map(|name| self.dir.path().join(name));
        let there = logs.iter().filter(|path| path.exists());
        there.map(|path| format!("--- the end of {} ---\n{}\n", path.display(), tail(path, LINES))).collect()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.process.kill();
        if std::thread::panicking() && !self.explained {
            eprintln!("guest {}:\n{}", self.name, self.logs());
        }
    }
}

/// Boots a guest that powers itself off as soon as its kernel and modules are up. True if it did within
/// `limit` and with so many seconds of a processor.
pub(crate) fn probe(accel: Accel, limit: Duration, processor_seconds: u64) -> Result<bool> {
    let begin = Instant::now();
    let mut spec = Guest::named("probe").accel(accel).kernel_argument("lab.probe");
    spec.limit = limit;
    let Ok(mut guest) = spec.start(&[]) else { return Ok(false) };
    guest.process.limit_processor(processor_seconds)?;
    let left = limit.saturating_sub(begin.elapsed());
    Ok(guest.process.wait(left).is_ok_and(|status| status.success()))
}
