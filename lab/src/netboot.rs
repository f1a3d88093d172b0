//! What a guest needs that boots from its network card: DHCP, and a kernel to be fetched over HTTP.
//!
//! Both servers are busybox's, in a network namespace. The firmware in the card's ROM is iPXE; it gets the
//! address of a script from DHCP, which names one more by the card's own address, and that one names the
//! kernel, its root file system and its command line: the same that QEMU would load for any other guest of
//! the lab.

use crate::error::{Context, Error, Result};
use crate::fetch::Lab;
use crate::netns::Netns;
use crate::process::{wait, Process};
use crate::rundir::{tail, RunDir};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the servers may take to listen.
const LIMIT: Duration = Duration::from_secs(30);
/// The script that every card is told of.
const FIRST: &str = "#!ipxe\nchain ${mac:hexhyp}.ipxe\n";

/// The servers; they end with this value.
pub struct NetBoot {
    dir: RunDir,
    http: Process,
    dhcp: Process,
}

impl NetBoot {
    /// Serves guests that are reached through `interface` of `netns`, which gets the address 10.0.0.1/24.
    ///
    /// # Errors
    /// The servers do not begin to listen.
    pub fn serve(netns: &Netns, interface: &str) -> Result<Self> {
        let lab = Lab::open()?;
        netns.address(interface, "10.0.0.1/24")?;
        let dir = RunDir::new("netboot")?;
        let files = dir.path().join("files");
        std::fs::create_dir(&files).context(|| format!("making {}", files.display()))?;
        for (file, name) in [(&lab.kernel, "kernel"), (&lab.initramfs, "initrd")] {
            let link = files.join(name);
            std::os::unix::fs::symlink(file, &link).context(|| format!("making {}", link.display()))?;
        }
        write(&files.join("boot.ipxe"), FIRST)?;
        // The lease file is read before it is written.
        write(&dir.path().join("leases"), "")?;
        let configuration = format!(
            "start 10.0.0.100\nend 10.0.0.200\ninterface {interface}\nlease_file {}\npidfile {}\nauto_time 0\n\
             siaddr 10.0.0.1\nboot_file http://10.0.0.1/boot.ipxe\noption subnet 255.255.255.0\n",
            dir.join("leases"),
            dir.join("udhcpd.pid"),
        );
        let file = dir.path().join("udhcpd.conf");
        write(&file, &configuration)?;
        let busybox = lab.busybox();
        // No other station has these addresses, so there is no use in asking for long.
        let dhcp = netns.spawn(&format!(
            "{} udhcpd -f -a 50 {} > {} 2>&1",
            busybox.display(),
            file.display(),
            dir.join("dhcp.log")
        ))?;
        let http = netns.spawn(&format!(
            "{} httpd -f -vv -h {} > {} 2>&1",
            busybox.display(),
            files.display(),
            dir.join("http.log")
        ))?;
        let mut servers = Self { dir, http, dhcp };
        servers.wait_listening(netns)?;
        Ok(servers)
    }

    /// The folder in which each guest's own script lies.
    pub(crate) fn scripts(&self) -> PathBuf {
        self.dir.path().join("files")
    }

    /// The requests so far, one a line.
    pub fn log(&self) -> String {
        ["dhcp.log", "http.log"].map(|name| tail(&self.dir.path().join(name), usize::MAX)).join("\n")
    }

    /// TCP port 80 in state LISTEN, and UDP port 67 (proc(5)).
    fn wait_listening(&mut self, netns: &Netns) -> Result<()> {
        let listening = wait(LIMIT, || {
            let ended = self.http.status().or(self.dhcp.status());
            let sockets = netns.expect("cat /proc/net/tcp /proc/net/tcp6 /proc/net/udp")?;
            let has = |what: &str| sockets.lines().any(|line| line.contains(what));
            let both = has(":0043 00000000:0000") && has(":0050 00000000");
            let not = format!("the boot servers do not listen: {}\n{sockets}", self.log());
            match ended {
                Some(_) if !both => Err(Error::new(not)),
                _ => Ok(both.then_some(()).ok_or(not)),
            }
        });
        listening.inspect_err(|_| self.dir.keep(true))
    }
}

/// What the card with this address boots: the lab's kernel with this command line.
pub(crate) fn write_script(scripts: &Path, mac: &str, command_line: &str) -> Result<()> {
    let name = format!("{}.ipxe", mac.replace(':', "-"));
    let script = format!("#!ipxe\nkernel kernel initrd=initrd {command_line}\ninitrd initrd\nboot\n");
    write(&scripts.join(name), &script)
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).context(|| format!("writing {}", path.display()))
}
