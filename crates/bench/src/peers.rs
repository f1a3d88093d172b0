//! The peers that sidecore is measured beside, started as they are packaged: DPDK's testpmd and Open
//! vSwitch with DPDK. Each runs in a private directory and ends when its owner drops it, or dies.
//!
//! Depends on the standard library only, so that tests of other crates may include it by path.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// An error is a text for people.
type Result<T> = std::result::Result<T, String>;

/// A directory of our own, removed with everything in it.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes a new directory. Socket paths have to stay below 108 bytes, so the name is short.
    pub fn new(name: &str) -> Result<Self> {
        let nanos = std::time::UNIX_EPOCH.elapsed().map_or(0, |t| t.subsec_nanos());
        let path = std::env::temp_dir().join(format!("{name}-{}-{nanos:x}", std::process::id()));
        fs::create_dir_all(&path).map_err(|e| format!("making {}: {e}", path.display()))?;
        Ok(Self(path))
    }

    /// Its last component: unique on this machine.
    pub fn name(&self) -> String {
        self.0.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Path of a file in it.
    pub fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
        // Where DPDK keeps its sockets for a file prefix, which is our name.
        let _ = fs::remove_dir_all(Path::new("/var/run/dpdk").join(self.name()));
    }
}

/// A child process that is killed with its owner.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `program`; its output goes to `log`. `package` is named if the program is missing.
    pub fn start(program: &str, package: &str, log: PathBuf, set: impl FnOnce(&mut Command)) -> Result<Self> {
        if !installed(program) {
            return Err(format!("{program} is not installed: apt-get install {package}"));
        }
        let out = fs::File::create(&log).map_err(|e| format!("creating {}: {e}", log.display()))?;
        let both = out.try_clone().map_err(|e| format!("{}: {e}", log.display()))?;
        // setpriv (util-linux, always installed) lets the kernel kill the child if we are killed;
        // stdbuf (coreutils) shows its output line by line.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "stdbuf", "-oL", program]);
        set(&mut command);
        command.stdin(Stdio::piped()).stdout(out).stderr(both);
        let child = command.spawn().map_err(|e| format!("starting {program}: {e}"))?;
        Ok(Self { name: program.to_owned(), child, log })
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it has printed so far.
    pub fn output(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until `ready` says so. Fails with the end of the output if the process ends or time is over.
    pub fn wait_until(&mut self, what: &str, limit: Duration, mut ready: impl FnMut() -> bool) -> Result<()> {
        let start = Instant::now();
        while !ready() {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(self.failed(&format!("ended ({status}) before {what}")));
            }
            if start.elapsed() > limit {
                return Err(self.failed(&format!("took more than {limit:?} until {what}")));
            }
            // Another program's progress: there is nothing to wait on but its files.
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Ends it at once, without a chance to clean up.
    pub fn kill(&mut self) -> Option<ExitStatus> {
        let _ = self.child.kill();
        self.child.wait().ok()
    }

    fn failed(&self, what: &str) -> String {
        let output = self.output();
        let lines: Vec<&str> = output.lines().collect();
        let tail = lines[lines.len().saturating_sub(15)..].join("\n  ");
        format!("{} {what}; its last words:\n  {tail}", self.name)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Is this program there, at its path or in PATH?
pub fn installed(program: &str) -> bool {
    if program.contains('/') {
        return Path::new(program).exists();
    }
    let dirs = std::env::var_os("PATH").unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into());
    std::env::split_paths(&dirs).any(|dir| dir.join(program).exists())
}

/// Free 2 MiB pages.
pub fn free_huge_pages() -> u64 {
    let read = fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    read.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// DPDK's memory arguments: 2 MiB pages without a mounted hugetlbfs if enough are free, else 4 KiB. The pages
/// lie in few files: with a file for each, virtio-user would have more regions of memory than the eight that
/// a vhost-user message may name. `small`: how many MiB of these.
pub fn dpdk_memory(small: &str) -> Vec<&str> {
    if free_huge_pages() >= HUGE_PAGES {
        vec!["--in-memory", "--single-file-segments"]
    } else {
        // Without huge pages DPDK has its older way of memory. Open vSwitch asks for another one unless it is
        // told.
        vec!["--no-huge", "--legacy-mem", "-m", small]
    }
}

/// Free 2 MiB pages below which peers get 4 KiB pages.
pub const HUGE_PAGES: u64 = 500;

/// One vhost-user port of testpmd.
#[derive(Clone, Debug)]
pub struct VhostPort {
    /// Socket.
    pub path: PathBuf,
    /// testpmd connects to a listening front end (else it listens).
    pub client: bool,
}

/// One virtio-user port of testpmd: DPDK as the guest's side of vhost-user.
#[derive(Clone, Debug)]
pub struct VirtioUser {
    /// Socket.
    pub path: PathBuf,
    /// testpmd listens (else it connects to a listening back end).
    pub server: bool,
    /// Packed rings.
    pub packed: bool,
    /// Mergeable receive buffers.
    pub mergeable: bool,
    /// Queue pairs.
    pub queues: u16,
    /// Entries of each ring.
    pub entries: u16,
    /// Its address.
    pub mac: [u8; 6],
}

/// `dpdk-testpmd`, forwarding on one pinned core.
#[derive(Debug)]
pub struct Testpmd {
    process: Process,
    _scratch: Scratch,
}

impl Testpmd {
    /// The io mode: what comes in on one port goes out on the other, with `queues` queue pairs each.
    pub fn start(core: usize, ports: &[VhostPort], queues: u16) -> Result<Self> {
        let device = |(number, port): (usize, &VhostPort)| {
            let VhostPort { path, client } = port;
            let (path, client) = (path.display(), u8::from(*client));
            format!("net_vhost{number},iface={path},client={client},queues={queues}")
        };
        let devices: Vec<String> = ports.iter().enumerate().map(device).collect();
        let listens = || ports.iter().all(|port| port.client || port.path.exists());
        Self::forward(core, &devices, &["--forward-mode=io", "--rxd=1024", "--txd=1024"], queues, listens)
    }

    /// The macswap mode on one port: what comes in goes back to its sender.
    pub fn echo(core: usize, port: &VirtioUser) -> Result<Self> {
        let flag = u8::from;
        let mac = port.mac.map(|byte| format!("{byte:02x}")).join(":");
        let device = format!(
            "net_virtio_user0,path={},server={},packed_vq={},mrg_rxbuf={},queues={},queue_size={},mac={mac}",
            port.path.display(),
            flag(port.server),
            flag(port.packed),
            flag(port.mergeable),
            port.queues,
            port.entries,
        );
        Self::forward(core, &[device], &["--forward-mode=macswap"], port.queues, || true)
    }

    fn forward(
        core: usize,
        devices: &[String],
        mode: &[&str],
        queues: u16,
        ready: impl Fn() -> bool,
    ) -> Result<Self> {
        let scratch = Scratch::new("sc-testpmd")?;
        let prefix = scratch.name();
        // The main thread only waits for its standard input to end; it may run anywhere.
        let lcores = format!("0@0-{},1@{core}", cpus() - 1);
        let mut process = Process::start("dpdk-testpmd", "dpdk-dev", scratch.file("log"), |command| {
            command.args(["--lcores", &lcores, "--no-pci", "--no-telemetry", "--file-prefix", &prefix]);
            command.args(dpdk_memory("1024"));
            for device in devices {
                command.args(["--vdev", device]);
            }
            let queues = queues.to_string();
            command.args(["--", "--disable-link-check", "--nb-cores=1", "--burst=64"]);
            command.args(["--total-num-mbufs=32768", "--no-flush-rx", "--rxq", &queues, "--txq", &queues]);
            command.args(mode);
        })?;
        let log = process.log.clone();
        process.wait_until("it forwards", Duration::from_secs(60), || {
            let forwards =
                fs::read_to_string(&log).is_ok_and(|text| text.contains("packet forwarding - ports="));
            forwards && ready()
        })?;
        Ok(Self { process, _scratch: scratch })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// What it has printed.
    pub fn output(&self) -> String {
        self.process.output()
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill();
    }
}

/// Open vSwitch with DPDK: its own database, its own daemon, nothing of the system's.
#[derive(Debug)]
pub struct Ovs {
    /// `ovs-vswitchd`.
    pub daemon: Process,
    _database: Process,
    scratch: Scratch,
}

/// What its ports are called.
const OVS_PORTS: [&str; 4] = ["a", "b", "c", "d"];

/// A port of Open vSwitch.
#[derive(Clone, Debug)]
pub enum OvsPort {
    /// `dpdkvhostuserclient`: it connects to the socket that listens there.
    Vhost(PathBuf),
    /// A TAP interface of the port's name.
    Tap,
}

/// What Open vSwitch does with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flows {
    /// The learning switch: action NORMAL.
    Normal,
    /// Wires: in_port → output, both ways, between the first two ports and between the next two.
    Wire,
}

impl Ovs {
    /// Starts it with up to four ports and one polling thread on `core`.
    pub fn start(core: usize, ports: &[OvsPort], flows: Flows) -> Result<Self> {
        // DPDK inside Open vSwitch wants this directory whatever OVS_RUNDIR says.
        let system = "/var/run/openvswitch";
        fs::create_dir_all(system).map_err(|e| format!("making {system}: {e}"))?;
        let scratch = Scratch::new("sc-ovs")?;
        let socket = format!("unix:{}", scratch.file("db.sock").display());
        let schema = "/usr/share/openvswitch/vswitch.ovsschema";
        let conf = scratch.file("conf.db");
        call(&scratch, "ovsdb-tool", &["create", &conf.to_string_lossy(), schema])?;
        let private = |command: &mut Command, name: &str| {
            let file = |end: &str| scratch.file(format!("{name}.{end}")).display().to_string();
            command.env("OVS_RUNDIR", &scratch.0).env("OVS_LOGDIR", &scratch.0).env("OVS_DBDIR", &scratch.0);
            command.arg(format!("--pidfile={}", file("pid")));
            command.arg(format!("--unixctl={}", file("ctl")));
        };
        let mut database =
            Process::start("ovsdb-server", "openvswitch-switch-dpdk", scratch.file("db.log"), |command| {
                command.arg(&conf).arg(format!("--remote=p{socket}"));
                private(command, "db");
            })?;
        let limit = Duration::from_secs(20);
        database.wait_until("its socket is there", limit, || scratch.file("db.sock").exists())?;
        // It wants 262,144 buffers at once, and each has a page to itself.
        let memory = dpdk_memory("2048").join(" ");
        let extra = format!("{memory} --no-pci --no-telemetry --file-prefix {}", scratch.name());
        let mask = format!("other_config:pmd-cpu-mask={:#x}", 1u64 << core);
        vsctl(&scratch, &["--no-wait", "init"])?;
        let extra = format!("other_config:dpdk-extra=\"{extra}\"");
        vsctl(
            &scratch,
            &["--no-wait", "set", "Open_vSwitch", ".", "other_config:dpdk-init=true", &extra, &mask],
        )?;
        let program = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
        let mut daemon =
            Process::start(program, "openvswitch-switch-dpdk", scratch.file("log"), |command| {
                command.arg(&socket);
                private(command, "vswitchd");
            })?;
        daemon.wait_until("it answers", limit, || scratch.file("vswitchd.ctl").exists())?;
        let ovs = Self { daemon, _database: database, scratch };
        // DPDK's own words are among the lines of a usage that is longer than a screen.
        ovs.configure(ports, flows).map_err(|e| match ovs.daemon.output().split_once("|ERR|") {
            Some((_, why)) => format!("{}; {e}", why.lines().next().unwrap_or_default()),
            None => e,
        })?;
        Ok(ovs)
    }

    fn configure(&self, ports: &[OvsPort], flows: Flows) -> Result<()> {
        let dir = &self.scratch;
        vsctl(dir, &["add-br", "sc0", "--", "set", "bridge", "sc0", "datapath_type=netdev"])?;
        for (name, port) in OVS_PORTS.iter().zip(ports) {
            let options = match port {
                OvsPort::Vhost(path) => vec![
                    "type=dpdkvhostuserclient".to_owned(),
                    format!("options:vhost-server-path={}", path.display()),
                ],
                OvsPort::Tap => vec!["type=tap".to_owned()],
            };
            let mut words = vec!["add-port", "sc0", name, "--", "set", "Interface", name];
            words.extend(options.iter().map(String::as_str));
            vsctl(dir, &words)?;
        }
        if flows == Flows::Wire {
            call(dir, "ovs-ofctl", &["del-flows", "sc0"])?;
            for pair in OVS_PORTS[..ports.len().min(OVS_PORTS.len())].chunks_exact(2) {
                for (from, to) in [(pair[0], pair[1]), (pair[1], pair[0])] {
                    let flow = format!("in_port={from},actions=output:{to}");
                    call(dir, "ovs-ofctl", &["add-flow", "sc0", &flow])?;
                }
            }
        }
        Ok(())
    }

    /// Has exactly these flows, one a line, as `ovs-ofctl` reads them.
    pub fn set_flows(&self, flows: &str) -> Result<()> {
        let file = self.scratch.file("flows");
        fs::write(&file, flows).map_err(|e| format!("writing {}: {e}", file.display()))?;
        call(&self.scratch, "ovs-ofctl", &["del-flows", "sc0"])?;
        call(&self.scratch, "ovs-ofctl", &["add-flows", "sc0", &file.to_string_lossy()]).map(drop)
    }

    /// The polling thread's own account so far: busy cycles, idle cycles, packets.
    pub fn cycles(&self) -> Result<(f64, f64, f64)> {
        let control = self.scratch.file("vswitchd.ctl");
        let show = ["-t", &control.to_string_lossy(), "dpif-netdev/pmd-stats-show"];
        let text = call(&self.scratch, "ovs-appctl", &show)?;
        // The polling thread comes before the main thread, whose lines have the same names.
        let value = |key: &str| -> Option<f64> {
            let line = text.lines().find(|line| line.trim_start().starts_with(key))?;
            line.split_once(':')?.1.split_whitespace().next()?.parse().ok()
        };
        match (value("processing cycles"), value("idle cycles"), value("packets received")) {
            (Some(busy), Some(idle), Some(packets)) => Ok((busy, idle, packets)),
            _ => Err(format!("pmd-stats-show was not understood:\n{text}")),
        }
    }
}

fn vsctl(dir: &Scratch, args: &[&str]) -> Result<String> {
    let socket = format!("--db=unix:{}", dir.file("db.sock").display());
    let mut all = vec![socket.as_str(), "--timeout=20"];
    all.extend(args);
    call(dir, "ovs-vsctl", &all)
}

/// Runs one of Open vSwitch's tools to its end, in the private directory.
fn call(dir: &Scratch, program: &str, args: &[&str]) -> Result<String> {
    if !installed(program) {
        return Err(format!("{program} is not installed: apt-get install openvswitch-switch-dpdk"));
    }
    let output = Command::new(program).args(args).env("OVS_RUNDIR", &dir.0).output();
    let output = output.map_err(|e| format!("starting {program}: {e}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{program} {}: {}", args.join(" "), said.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The polling thread of a process on `core`: of those that may run nowhere else, the one that has
/// used the core most (helpers may be pinned there too).
pub fn polling_thread(process: u32, core: usize) -> Option<u32> {
    let pinned = |thread: &u32| {
        let status = fs::read_to_string(format!("/proc/{process}/task/{thread}/status")).unwrap_or_default();
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        allowed.is_some_and(|list| list.trim() == core.to_string())
    };
    threads(process).filter(pinned).max_by_key(|thread| ran(process, *thread))
}

fn schedstat(process: u32, thread: u32, field: usize) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/task/{thread}/schedstat")).unwrap_or_default();
    text.split_whitespace().nth(field).and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// The threads of a process.
pub fn threads(process: u32) -> impl Iterator<Item = u32> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_str()?.parse().ok())
}

/// Nanoseconds that a thread has had processors so far (Linux, Documentation/scheduler/sched-stats.rst).
pub fn ran(process: u32, thread: u32) -> u64 {
    schedstat(process, thread, 0)
}

/// Nanoseconds that a thread was runnable but another one had its core.
pub fn waited(process: u32, thread: u32) -> u64 {
    schedstat(process, thread, 1)
}

/// Gives a thread real-time priority, so that other work on the machine does not interrupt it.
pub fn prioritize(thread: u32) -> Result<()> {
    schedule(thread, &["-f", "-p", "10"])
}

/// Takes it away again: what a thread starts inherits it.
pub fn unprioritize(thread: u32) -> Result<()> {
    schedule(thread, &["-o", "-p", "0"])
}

/// Gives a thread a scheduling class, in the words of chrt(1).
pub fn schedule(thread: u32, how: &[&str]) -> Result<()> {
    let output = Command::new("chrt").args(how).arg(thread.to_string()).output();
    let output = output.map_err(|e| format!("chrt (package util-linux): {e}"))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(format!("chrt {}: {}", how.join(" "), said.trim()))
        }
    }
}

/// Processors of this machine.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
