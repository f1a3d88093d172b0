//! Debian packages without installing anything.
//!
//! apt is given a state, cache and source list of its own in a work folder, so that it neither reads nor
//! locks nor changes what the system's apt knows, and needs no root. Only two things come from the system:
//! the address of the Debian mirror that this machine is already set to use, and how to reach it (proxies, in
//! apt's own configuration). Packages are signed by the keys of `debian-archive-keyring`, as always.
//!
//! To read the lists of a release takes some seconds of a processor. Within [`sharing`] that happens once for
//! all parts of the lab that come from the same release.

use crate::error::{Context, Error, Result};
use crate::process::output;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The releases of Debian that name the same mirror; a source with another suite is not Debian's.
const SUITES: &str = "bullseye bookworm trixie forky sid oldoldstable oldstable stable testing unstable";

/// apt with its own state below a work folder.
pub(crate) struct Apt(Arc<WorkFolder>);

/// The work folder, which is removed on drop.
struct WorkFolder {
    work: PathBuf,
    config: PathBuf,
    mirror: String,
    sources: String,
}

/// While lists are shared: where, and those that were read.
static SHARED: Mutex<Option<(PathBuf, Vec<Arc<WorkFolder>>)>> = Mutex::new(None);

/// Does `work`; of all that it fetches the package lists of each release are read once, and kept in `folder`
/// meanwhile.
pub(crate) fn sharing<T>(folder: &Path, work: impl FnOnce() -> T) -> T {
    struct End(PathBuf);
    impl Drop for End {
        fn drop(&mut self) {
            *SHARED.lock().unwrap_or_else(PoisonError::into_inner) = None;
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
    // What processes have left that were killed.
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let process = name.strip_prefix("lists-").and_then(|rest| rest.strip_suffix(".work"));
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    let folder = folder.join(format!("lists-{}.work", std::process::id()));
    *SHARED.lock().unwrap_or_else(PoisonError::into_inner) = Some((folder.clone(), Vec::new()));
    let _end = End(folder);
    work()
}

impl Apt {
    /// Reads the package lists of `suites` below the folder `work`, unless they are shared and were read.
    pub(crate) fn new(work: &Path, suites: &[&str]) -> Result<Self> {
        let mirror = &system_mirror()?;
        // `target=Packages`: a desktop's extra indexes (icons, descriptions) are of no use here.
        let source = |suite: &&str| {
            format!("deb [arch=amd64 target=Packages signed-by={KEYRING}] {mirror} {suite} main\n")
        };
        let sources = suites.iter().map(source).collect::<String>();
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((folder, read)) = shared.as_mut() else {
            let state = WorkFolder::read(&work.join("apt"), mirror, suites, sources)?;
            return Ok(Self(Arc::new(state)));
        };
        if let Some(state) = read.iter().find(|state| state.sources == sources) {
            return Ok(Self(state.clone()));
        }
        let folder = folder.join(suites.join("-"));
        let state = Arc::new(WorkFolder::read(&folder, mirror, suites, sources)?);
        read.push(state.clone());
        Ok(Self(state))
    }
    /// The package that `name` depends on whose name begins with `prefix`: how a meta package names the real
    /// one.
    pub(crate) fn depends(&self, name: &str, prefix: &str) -> Result<String> {
        let text = output(self.command("apt-cache").args(["depends", name]))?;
        let found =
            text.lines().filter_map(|l| l.trim().strip_prefix("Depends: ")).find(|n| n.starts_with(prefix));
        found.map(str::to_owned).ok_or_else(|| {
            Error::new(format!("Debian's {name} at {} depends on no package named {prefix}*", self.0.mirror))
        })
    }

    /// Downloads exactly these packages and unpacks them into `root`.
    pub(crate) fn unpack_only(&self, packages: &[&str], root: &Path) -> Result<()> {
        self.unpack(&["download"], packages, root)
    }

    /// Downloads these packages and all that they depend on, preferring `suite`, and unpacks them into
    /// `root`.
    pub(crate) fn unpack_with_dependencies(&self, suite: &str, packages: &[&str], root: &Path) -> Result<()> {
        let archives = format!("Dir::Cache::archives={}", self.0.work.join("deb").display());
        let how =
            ["--yes", "--no-install-recommends", "--download-only", "-o", &archives, "-t", suite, "install"];
        self.unpack(&how, packages, root)
    }

    fn unpack(&self, how: &[&str], packages: &[&str], root: &Path) -> Result<()> {
        let folder = self.0.work.join("deb");
        // Without the packages of another part that shares the lists.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).context(|| format!("making {}", folder.display()))?;
        let apt = || {
            let mut command = self.command("apt-get");
            command.current_dir(&folder).arg("--quiet");
            command
        };
        let list = output(apt().arg("--print-uris").args(how).args(packages))?;
        let sizes: Vec<u64> = list.lines().filter_map(uri_size).collect();
        eprintln!(
            "sidecore-lab: downloading {} packages, {:.1} MB, from {}: {}",
            sizes.len(),
            bytes_as_mb(sizes.iter().sum()),
            self.0.mirror,
            packages.join(" ")
        );
        output(apt().args(how).args(packages))?;
        std::fs::create_dir_all(root).context(|| format!("making {}", root.display()))?;
        for entry in std::fs::read_dir(&folder).context(|| format!("reading {}", folder.display()))? {
            let file = entry.context(|| format!("reading {}", folder.display()))?.path();
            if file.extension().is_some_and(|e| e == "deb") {
                output(Command::new("dpkg").arg("-x").arg(&file).arg(root))?;
            }
        }
        Ok(())
    }

    fn command(&self, program: &str) -> Command {
        self.0.command(program)
    }
}

impl WorkFolder {
    fn read(work: &Path, mirror: &str, suites: &[&str], sources: String) -> Result<Self> {
        if !Path::new(KEYRING).exists() {
            return Err(Error::new(format!(
                "{KEYRING} is missing, so Debian packages cannot be verified; install debian-archive-keyring"
            )));
        }
        let _ = std::fs::remove_dir_all(work);
        for folder in ["lists/partial", "cache/archives/partial"] {
            let folder = work.join(folder);
            std::fs::create_dir_all(&folder).context(|| format!("making {}", folder.display()))?;
        }
        write(&work.join("sources.list"), &sources)?;
        write(&work.join("status"), "")?;
        let config = work.join("apt.conf");
        write(&config, &configuration(work))?;
        let state = Self { work: work.to_owned(), config, mirror: mirror.to_owned(), sources };
        eprintln!("sidecore-lab: reading the package lists of {} from {mirror}", suites.join(" and "));
        output(state.command("apt-get").args(["--quiet", "--error-on=any", "update"]))?;
        Ok(state)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("-c").arg(&self.config).env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive");
        command
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.work);
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).context(|| format!("writing {}", path.display()))
}

/// The hooks are cleared because container images use them to delete files of the *system's* cache after
/// every update. Dropping privileges is off because user `_apt` may not enter the private folder.
fn configuration(work: &Path) -> String {
    let work = work.display();
    format!(
        r#"#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Pre-Invoke;
#clear DPkg::Post-Invoke;
#clear APT::Architectures;
APT::Architecture "amd64";
APT::Architectures {{ "amd64"; }};
APT::Sandbox::User "root";
Acquire::Languages "none";
Dir::State "{work}";
Dir::State::lists "{work}/lists";
Dir::State::status "{work}/status";
Dir::Cache "{work}/cache";
Dir::Log "{work}/log";
Dir::Etc::sourcelist "{work}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
"#
    )
}

/// The size in a line `'URI' FILE SIZE HASH` of `--print-uris`.
fn uri_size(line: &str) -> Option<u64> {
    line.starts_with('\'').then(|| line.split(' ').nth(2)?.parse().ok()).flatten()
}

fn bytes_as_mb(bytes: u64) -> f64 {
    // Tenths of a megabyte fit in 32 bits for every download that a lab can mean.
    f64::from(u32::try_from(bytes / 100_000).unwrap_or(u32::MAX)) / 10.0
}

/// The Debian mirror that this machine's apt is set to use.
///
/// # Errors
/// No source has Debian's main archive.
pub(crate) fn system_mirror() -> Result<String> {
    if let Some(mirror) = std::env::var_os("SIDECORE_LAB_MIRROR") {
        return Ok(mirror.to_string_lossy().into_owned());
    }
    // What it would fetch, were it not for the option.
    let uris = output(Command::new("apt-get").args(["--print-uris", "update"]))?;
    uris.lines().find_map(mirror).map(str::to_owned).ok_or_else(|| {
        Error::new(
            "no Debian mirror among the sources of this machine's apt; \
             set SIDECORE_LAB_MIRROR to one, such as http://ADDRESS/debian",
        )
    })
}

/// The mirror in a line `'MIRROR/dists/SUITE/main/binary-ARCHITECTURE/Packages.xz' FILE SIZE` of
/// `--print-uris update`.
fn mirror(line: &str) -> Option<&str> {
    let (mirror, index) = line.strip_prefix('\'')?.split_once("/dists/")?;
    let (suite, _) = index.split_once("/main/binary-")?;
    is_debian(suite).then_some(mirror)
}

/// True for a release or its updates, which live in the main archive; security updates have a server of their
/// own.
fn is_debian(suite: &str) -> bool {
    let base = suite.strip_suffix("-updates").or_else(|| suite.strip_suffix("-backports")).unwrap_or(suite);
    SUITES.split(' ').any(|suite| suite == base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_lists_are_removed_at_the_end_and_those_of_dead_processes_at_the_start() {
        let dir = std::env::temp_dir().join(format!("sidecore-lab-lists-{}", std::process::id()));
        // No process has such a number.
        let old = dir.join("lists-4999999.work");
        std::fs::create_dir_all(&old).unwrap();
        let own = sharing(&dir, || {
            let (own, _) = SHARED.lock().unwrap().clone().unwrap();
            std::fs::create_dir_all(own.join("bookworm")).unwrap();
            own
        });
        assert!(dir.exists() && !old.exists() && !own.exists() && SHARED.lock().unwrap().is_none());
        std::fs::remove_dir(dir).unwrap();
    }

    #[test]
    fn the_mirror_is_that_of_a_release_of_debian() {
        let line = |site: &str, index: &str| format!("'{site}/dists/{index}' a_file 0 ");
        let of = |site: &str, index: &str| mirror(&line(site, index)).map(str::to_owned);
        let packages = "main/binary-amd64/Packages.xz";
        for suite in ["bookworm", "trixie-updates", "stable"] {
            let found = of("http://mirror.test/debian", &format!("{suite}/{packages}"));
            assert_eq!(found.as_deref(), Some("http://mirror.test/debian"));
        }
        for (site, index) in [
            ("http://security.test", format!("bookworm-security/{packages}")),
            ("http://vendor.test/apt", format!("tool-bookworm/{packages}")),
            ("http://vendor.test/debian", "bookworm/stable/binary-amd64/Packages.xz".to_owned()),
            ("http://a.test/ubuntu", format!("jammy/{packages}")),
            ("http://mirror.test/debian", "bookworm/InRelease".to_owned()),
        ] {
            assert_eq!(of(site, &index), None, "{site} {index}");
        }
    }

    #[test]
    fn sizes_are_read_from_the_list_of_addresses() {
        assert_eq!(uri_size("'http://m/a.deb' a.deb 1234 MD5Sum:00"), Some(1234));
        assert_eq!(uri_size("Need to get 5 kB"), None);
    }
}
