//! The ways to serve disks that are compared: we, qemu-storage-daemon, and, as the limit, the host without a
//! guest.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::image::{Images, Medium};
use super::player::Work;
use crate::peers::{self, installed};
use crate::prelude::*;
use crate::storage::{Export, StorageDaemon};

named! {
    /// One way.
    pub enum Way {
        /// Ours.
        Sidecore = "sidecore",
        /// QEMU's.
        Storage = "qemu-storage-daemon",
        /// fio with io_uring, on the host.
        Host = "host (fio)",
    }
}

impl Way {
    /// Why it cannot be measured here, if so.
    pub fn missing(self) -> Option<&'static str> {
        match self {
            Self::Storage if !StorageDaemon::installed() => {
                Some("qemu-storage-daemon is not installed: apt-get install qemu-system-common qemu-utils")
            }
            Self::Host if !installed("fio") => Some("fio is not installed: apt-get install fio"),
            _ => None,
        }
    }
}

/// A daemon.
pub enum Running {
    Sidecore(Switch),
    Storage(StorageDaemon),
}

/// A daemon with disks.
pub struct Server {
    pub running: Running,
    /// Sockets of its disks.
    pub sockets: Vec<PathBuf>,
    _scratch: Scratch,
}

impl Server {
    /// Starts `way` with so many disks on processor `core`. `None`: it needs no daemon.
    pub fn start(
        way: Way,
        core: usize,
        images: &Images,
        medium: Medium,
        guests: u16,
    ) -> Result<Option<Server>> {
        let scratch = Scratch::new("sc-blk")?;
        let sockets: Vec<PathBuf> = (0..guests).map(|n| scratch.file(format!("d{n}"))).collect();
        let running = match way {
            Way::Sidecore => {
                let spec = |(n, socket): (usize, &PathBuf)| -> Result<String> {
                    Ok(format!("blk:{},file={}", socket.display(), images.ours(medium, n)?))
                };
                let specs = sockets.iter().enumerate().map(spec).collect::<Result<Vec<_>>>()?;
                Running::Sidecore(Switch::start(core, &specs, &[])?)
            }
            Way::Storage => {
                let export = |(n, socket): (usize, &PathBuf)| -> Result<Export> {
                    let image = images.storage(medium, n)?;
                    Ok(Export { socket: socket.clone(), image, queues: 1, writable: true })
                };
                let exports = sockets.iter().enumerate().map(export).collect::<Result<Vec<_>>>()?;
                Running::Storage(StorageDaemon::start(Some(core), &scratch, &exports)?)
            }
            Way::Host => return Ok(None),
        };
        Ok(Some(Server { running, sockets, _scratch: scratch }))
    }
}

impl Running {
    /// Nanoseconds of work so far: by its own account of a core that polls, else what its threads had of
    /// processors.
    pub fn busy_ns(&self) -> Result<f64> {
        match self {
            Self::Sidecore(switch) => Ok(switch.spent()?.busy),
            Self::Storage(daemon) => {
                let of = daemon.id();
                Ok(peers::threads(of).map(|thread| peers::ran(of, thread)).sum::<u64>() as f64)
            }
        }
    }

    /// The end of what it has printed.
    pub fn output(&self) -> String {
        match self {
            Self::Sidecore(switch) => switch.process.output(),
            Self::Storage(_) => String::new(),
        }
    }
}

/// What the host reached.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    pub iops: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub cpu_ns: f64,
    pub busy: f64,
}

/// fio with io_uring on the file itself: the same requests at the same depth, on the same processor.
pub fn host(core: usize, file: &Path, work: Work, depth: u16, window: Duration, size: u64) -> Result<Host> {
    let rw = match work {
        Work::Read => "randread",
        Work::Write => "randwrite",
        Work::Paced => "randrw",
        Work::SequentialRead => "read",
        Work::SequentialWrite => "write",
    };
    let mut fio = Command::new("fio");
    fio.args(["--name=limit", "--ioengine=io_uring", "--direct=1", "--registerfiles=1", "--fixedbufs=1"]);
    fio.args(["--norandommap", "--randrepeat=0", "--time_based", "--output-format=json"]);
    fio.arg(format!("--rw={rw}")).arg(format!("--bs={}", work.bytes())).arg(format!("--iodepth={depth}"));
    fio.arg(format!("--filename={}", file.display())).arg(format!("--size={size}"));
    fio.arg(format!("--runtime={}ms", window.as_millis())).arg(format!("--cpus_allowed={core}"));
    let output = fio.output().map_err(|e| format!("starting fio: {e}"))?;
    let failed = || {
        let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        format!("fio says what cannot be read: {out}{err}")
    };
    // Notes may stand before it.
    let from = output.stdout.iter().position(|byte| *byte == b'{').ok_or_else(failed)?;
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout[from..]).map_err(|_| failed())?;
    let job = &answer["jobs"][0];
    let number = |value: &serde_json::Value| value.as_f64().unwrap_or(0.0);
    let both = [&job["read"], &job["write"]];
    let iops: f64 = both.iter().map(|one| number(&one["iops"])).sum();
    let quantile = |name: &str| {
        both.iter().map(|one| number(&one["clat_ns"]["percentile"][name])).fold(0.0, f64::max) / 1e3
    };
    let busy = (number(&job["usr_cpu"]) + number(&job["sys_cpu"])) / 100.0;
    if iops <= 0.0 {
        return Err(failed());
    }
    let (p50_us, p99_us) = (quantile("50.000000"), quantile("99.000000"));
    Ok(Host { iops, p50_us, p99_us, cpu_ns: busy * 1e9 / iops, busy })
}
