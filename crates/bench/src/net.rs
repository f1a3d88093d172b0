//! Network namespaces for benchmarks.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};

use super::common::Result;

/// A network namespace that lives as long as this; it is gone also if we are killed.
pub struct Net {
    space: File,
    keeper: Child,
}

impl Net {
    /// Makes one.
    pub fn new() -> Result<Net> {
        // The keeper reads our end of a pipe, which closes with us, and answers when it is inside.
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "echo inside; exec cat"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut keeper = command.spawn().map_err(missing("util-linux"))?;
        let mut line = String::new();
        let out = keeper.stdout.take().ok_or("unshare: no output")?;
        BufReader::new(out).read_line(&mut line).map_err(|e| e.to_string())?;
        let space = File::open(format!("/proc/{}/ns/net", keeper.id())).map_err(|e| e.to_string());
        if line.is_empty() {
            let _ = keeper.wait();
            return Err("cannot make a network namespace: this benchmark needs root".to_owned());
        }
        let net = Net { space: space?, keeper };
        net.ip("link set lo up")?;
        Ok(net)
    }

    /// Makes one in which nothing but our frames is sent.
    pub fn quiet() -> Result<Net> {
        let net = Net::new()?;
        net.set("/proc/sys/net/ipv6/conf/default/disable_ipv6")?;
        Ok(net)
    }

    /// Turns a setting of the kernel's on.
    pub fn set(&self, path: &str) -> Result<()> {
        self.enter(|| std::fs::write(path, "1").map_err(|e| format!("{path}: {e}")))
    }

    /// Makes a veth pair.
    pub fn veth(&self, near: &str, far: &str) -> Result<()> {
        self.enter(|| veth(near, far))
    }

    /// The process that keeps it.
    pub fn id(&self) -> u32 {
        self.keeper.id()
    }

    /// Where it can be opened.
    pub fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.id())
    }

    /// Runs `f` in the namespace, on a thread of its own.
    pub fn enter<R: Send>(&self, f: impl FnOnce() -> Result<R> + Send) -> Result<R> {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let kind = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(self.space.as_fd(), kind).map_err(|e| format!("setns: {e}"))?;
                f()
            });
            inside.join().unwrap_or_else(|_| Err("a thread panicked".to_owned()))
        })
    }

    /// Runs `ip` in it.
    pub fn ip(&self, words: &str) -> Result<()> {
        self.enter(|| ip(&words.split(' ').collect::<Vec<_>>()))
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

/// Makes a veth pair in this thread's namespace.
pub fn veth(near: &str, far: &str) -> Result<()> {
    ip(&["link", "add", near, "type", "veth", "peer", "name", far])?;
    [near, far].iter().try_for_each(|end| ip(&["link", "set", end, "up"]))
}

/// Runs `ip`.
pub fn ip(words: &[&str]) -> Result<()> {
    let Output { status, stderr, .. } =
        Command::new("ip").args(words).output().map_err(missing("iproute2"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("ip {}: {}", words.join(" "), String::from_utf8_lossy(&stderr).trim()))
    }
}

/// Frames that an interface of this thread's namespace has received.
pub fn received(interface: &str) -> Result<u64> {
    Received::of(interface)?.frames()
}

/// What interfaces have received of the namespace in which it was made, for any thread.
pub struct Received {
    devices: File,
    line: String,
}

impl Received {
    /// What an interface of this thread's namespace has received.
    pub fn of(interface: &str) -> Result<Received> {
        // `/sys` is that of the process.
        let devices = File::open("/proc/thread-self/net/dev").map_err(|e| e.to_string())?;
        Ok(Received { devices, line: format!("{interface}:") })
    }

    /// How many.
    pub fn frames(&self) -> Result<u64> {
        let (mut bytes, mut len) = ([0; 4096], 0);
        while let Some(rest) = bytes.get_mut(len..).filter(|rest| !rest.is_empty()) {
            match self.devices.read_at(rest, len as u64).map_err(|e| e.to_string())? {
                0 => break,
                more => len += more,
            }
        }
        let devices = String::from_utf8_lossy(&bytes[..len]);
        let line = devices.lines().find_map(|line| line.trim().strip_prefix(&self.line));
        let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        number.ok_or_else(|| format!("no counters of interface {}", self.line))
    }
}

/// The error of a program that is not there.
pub fn missing(package: &'static str) -> impl Fn(std::io::Error) -> String {
    move |e| format!("{e}: apt-get install {package}")
}
