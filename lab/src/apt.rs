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
const SUITES: [&str; 10] = [
    "bullseye",
    "bookworm",
    "trixie",
    "forky",
    "sid",
    "oldoldstable",
    "oldstable",
    "stable",
    "testing",
    "unstable",
];

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
    /// Prepares `work` and reads the package lists of `suites`, unless they are shared and were read.
    pub(crate) fn new(work: &Path, mirror: &str, suites: &[&str]) -> Result<Self> {
        // `target=Packages`: a desktop's extra indexes (icons, descriptions) are of no use here.
        let source = |suite: &&str| {
            format!("deb [arch=amd64 target=Packages signed-by={KEYRING}] {mirror} {suite} main\n")
        };
        let sources = suites.iter().map(source).collect::<String>();
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((folder, read)) = shared.as_mut() else {
            return WorkFolder::read(work, mirror, suites, sources).map(|state| Self(Arc::new(state)));
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
/// No source names a Debian suite.
pub(crate) fn system_mirror() -> Result<String> {
    if let Some(mirror) = std::env::var_os("SIDECORE_LAB_MIRROR") {
        return Ok(mirror.to_string_lossy().into_owned());
    }
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(entries) = std::fs::read_dir("/etc/apt/sources.list.d") {
        let mut more: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
        more.sort();
        files.extend(more);
    }
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let found = match file.extension().and_then(|e| e.to_str()) {
            Some("list") => mirror_in_list(&text),
            Some("sources") => mirror_in_deb822(&text),
            _ => None,
        };
        if let Some(mirror) = found {
            return Ok(mirror);
        }
    }
    Err(Error::new(
        "no Debian mirror in /etc/apt/sources.list or /etc/apt/sources.list.d; \
         set SIDECORE_LAB_MIRROR to one, such as http://ADDRESS/debian",
    ))
}

/// sources.list(5), one-line style: `deb [option=value …] URI SUITE COMPONENT…`.
fn mirror_in_list(text: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let line = line.split('#').next()?.trim();
        let rest = line.strip_prefix("deb")?;
        let rest = rest.strip_prefix(|c: char| c.is_whitespace())?.trim_start();
        let rest = if rest.starts_with('[') { rest.split_once(']')?.1 } else { rest };
        let mut words = rest.split_whitespace();
        let (uri, suite) = (words.next()?, words.next()?);
        (is_debian(suite) && words.any(|c| c == "main")).then(|| uri.to_owned())
    })
}

/// sources.list(5), deb822 style: stanzas of `Field: value`, continued by lines that begin with a blank.
fn mirror_in_deb822(text: &str) -> Option<String> {
    let mut stanzas = vec![Vec::<(String, String)>::new()];
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let stanza = stanzas.last_mut()?;
        if line.trim().is_empty() {
            stanzas.push(Vec::new());
        } else if line.starts_with([' ', '\t']) {
            let (_, value) = stanza.last_mut()?;
            value.push(' ');
            value.push_str(line.trim());
        } else if let Some((field, value)) = line.split_once(':') {
            stanza.push((field.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    stanzas.iter().find_map(|stanza| {
        let words = |name: &str| {
            let value = stanza.iter().find(|(field, _)| field == name).map_or("", |(_, value)| value);
            value.split_whitespace()
        };
        let enabled = !words("enabled").any(|w| matches!(w.to_ascii_lowercase().as_str(), "no" | "false"));
        let ours = words("types").any(|w| w == "deb")
            && words("suites").any(is_debian)
            && words("components").any(|w| w == "main");
        words("uris").next().filter(|_| enabled && ours).map(str::to_owned)
    })
}

/// True for a release or its updates, which live in the main archive; security updates have a server of their
/// own.
fn is_debian(suite: &str) -> bool {
    let base = suite.strip_suffix("-updates").or_else(|| suite.strip_suffix("-backports")).unwrap_or(suite);
    SUITES.contains(&base)
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
    fn the_mirror_is_read_from_one_line_sources() {
        let text = "# deb http://old/debian bookworm main\n\
                    deb-src http://src/debian bookworm main\n\
                    deb http://vendor.test/apt tool-bookworm main\n\
                    deb http://security.test/ bookworm-security main\n\
                    deb [arch=amd64 signed-by=/k.gpg] http://mirror.test/debian bookworm main contrib # mine\n";
        assert_eq!(mirror_in_list(text).as_deref(), Some("http://mirror.test/debian"));
        assert_eq!(mirror_in_list("deb http://a.test/ubuntu jammy main"), None);
    }

    #[test]
    fn the_mirror_is_read_from_deb822_sources() {
        let text =
            "Types: deb\nURIs: http://off.test/debian\nSuites: trixie\nComponents: main\nEnabled: no\n\n\
                    Types: deb\nURIs: http://sec.test/\nSuites: bookworm-security\nComponents: main\n\n\
                    Types: deb deb-src\n# why\nURIs:\n http://mirror.test/debian\n http://second.test/\n\
                    Suites: bookworm bookworm-updates\nComponents: main\n";
        assert_eq!(mirror_in_deb822(text).as_deref(), Some("http://mirror.test/debian"));
        assert_eq!(
            mirror_in_deb822("Types: deb\nURIs: http://n.test\nSuites: nodistro\nComponents: main"),
            None
        );
    }

    #[test]
    fn sizes_are_read_from_the_list_of_addresses() {
        assert_eq!(uri_size("'http://m/a.deb' a.deb 1234 MD5Sum:00"), Some(1234));
        assert_eq!(uri_size("Need to get 5 kB"), None);
    }
}
