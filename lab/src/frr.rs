//! FRR, as the system has it installed, in network namespaces: each daemon in the foreground, and gone with
//! us.
//!
//! The daemons of one namespace find each other by a folder of their own, which belongs to FRR's user: they
//! give up root.

use crate::apt::Apt;
use crate::error::{Context, Error, Result};
use crate::fetch::part;
use crate::process::{output, wait, Process};
use crate::{Lab, Netns};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Where Debian has its programs.
const PROGRAMS: &str = "/usr/lib/frr";
/// How long zebra may take until it listens.
const LIMIT: Duration = Duration::from_secs(30);

/// zebra and other daemons of one namespace; killed when dropped.
pub struct Frr(Vec<Process>);

impl Frr {
    /// Whether FRR is installed.
    pub fn is_there() -> bool {
        Path::new(PROGRAMS).join("zebra").exists()
    }

    /// Starts `daemons`, such as `bgpd`, each with its configuration, in `netns`, zebra first. zebra sends
    /// its routes to a forwarding plane if its configuration has an `fpm`. What they keep and say is in
    /// `folder`, which is emptied.
    ///
    /// # Errors
    /// FRR is not installed, or zebra does not start; the error has its log.
    pub fn start(netns: &Netns, folder: &Path, daemons: &[(&str, &str)]) -> Result<Self> {
        if !Self::is_there() {
            return Err(Error::new(format!("there is no {PROGRAMS}/zebra: apt-get install frr")));
        }
        // Those that were killed left theirs.
        let _ = std::fs::remove_dir_all(folder);
        output(Command::new("install").args(["-d", "-o", "frr", "-g", "frr"]).arg(folder))?;
        let mut frr = Self(Vec::new());
        for (name, conf) in daemons {
            frr.0.push(daemon(netns, folder, name, conf)?);
            if *name == "zebra" {
                frr.listens(folder)?;
            }
        }
        Ok(frr)
    }

    fn listens(&mut self, folder: &Path) -> Result<()> {
        let log = || std::fs::read_to_string(folder.join("zebra.log")).unwrap_or_default();
        wait(LIMIT, || match self.0.first_mut().and_then(Process::status) {
            Some(_) => Err(Error::new(format!("zebra did not start:\n{}", log()))),
            None if folder.join("zserv.api").exists() => Ok(Ok(())),
            None => Ok(Err(format!("zebra does not listen:\n{}", log()))),
        })
    }

    /// SIGKILL to all of them.
    pub fn kill(mut self) {
        self.0.iter_mut().for_each(Process::kill);
    }
}

/// Debian 13's FRR, unpacked into a folder of the lab's with the libraries that it loads, its own loader
/// among them: what `SIDECORE_FRR` names for tests.
///
/// # Errors
/// It cannot be fetched.
pub fn debian_13() -> Result<PathBuf> {
    const SUITE: &str = "trixie";
    const KEEP: [&str; 3] = ["usr/lib/frr", "usr/lib/x86_64-linux-gnu", "usr/lib64"];
    part(&Lab::open()?.dir, "frr", &format!("{SUITE} {KEEP:?}"), |work, target| {
        let (apt, root) = (Apt::new(work, &[SUITE])?, work.join("root"));
        apt.unpack_with_dependencies(SUITE, &["frr"], &root)?;
        std::fs::create_dir_all(target.join("usr/lib")).context(|| format!("making {}", target.display()))?;
        KEEP.iter().try_for_each(|path| {
            std::fs::rename(root.join(path), target.join(path))
                .context(|| format!("{path} in Debian's packages"))
        })
    })
}

fn daemon(netns: &Netns, folder: &Path, name: &str, conf: &str) -> Result<Process> {
    let file = |end: &str| -> PathBuf { folder.join(format!("{name}.{end}")) };
    let written = |path: PathBuf| {
        std::fs::write(&path, conf).context(|| format!("writing {}", path.display())).map(|()| path)
    };
    let log = std::fs::File::create(file("log")).context(|| format!("making {}", file("log").display()))?;
    let errors = log.try_clone().context(|| format!("making {}", file("log").display()))?;
    let mut command = netns.command(&format!("{PROGRAMS}/{name}"))?;
    command.arg("-f").arg(written(file("conf"))?).arg("-i").arg(file("pid"));
    // No port for terminals: two namespaces' would not clash, but none is needed.
    command.arg("-z").arg(folder.join("zserv.api")).arg("--vty_socket").arg(folder).args(["-P", "0"]);
    if conf.contains("fpm") {
        command.args(["-M", "dplane_fpm_nl"]);
    }
    command.stdin(Stdio::null()).stdout(log).stderr(errors);
    Process::spawn(command, Vec::new())
}
