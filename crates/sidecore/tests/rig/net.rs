//! A network namespace for interfaces that a test makes.

use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::{Testbed, LIMIT};

/// A network namespace; it goes with the process that holds it.
pub struct Net {
    holder: Child,
    /// A folder for sockets, and the control socket of a daemon inside.
    pub bed: Testbed,
}

impl Net {
    /// A new one, without any interface but the loopback.
    pub fn new() -> Net {
        // Ends when its standard input does, which is with us at the latest.
        let mut command = super::unshare();
        let holder =
            command.args(["--net", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let net = Net { holder, bed: Testbed::new() };
        let ours = std::fs::read_link("/proc/self/ns/net").unwrap();
        let start = Instant::now();
        while std::fs::read_link(net.path()).is_ok_and(|net| net == ours) {
            assert!(start.elapsed() < LIMIT);
            std::thread::yield_now();
        }
        net
    }

    /// The file that it is.
    pub fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.holder.id())
    }

    /// A command inside.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path())).arg(program);
        command.env("SIDECORE_SOCKET", self.bed.path("control.sock")).env_remove("NOTIFY_SOCKET");
        command.current_dir(self.bed.path(".")).stdin(Stdio::null());
        command
    }

    /// `ip` inside.
    pub fn ip(&self, line: &str) {
        let output = self.command("ip").args(line.split(' ')).output().unwrap();
        assert!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // Fails if it has ended already.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
