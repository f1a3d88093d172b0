//! Which files the daemon may open, make and remove: landlock, as far as this kernel has it.
//!
//! The broker opens what has a name: sockets, journals, the configuration. What is left for the daemon itself
//! is to read what the kernel tells of this process and this host. Descriptors that are open already keep
//! working. TCP, abstract sockets of others and signals to others are out of reach, too.

use std::path::Path;

use landlock::{
    Access, AccessFs, AccessNet, LandlockStatus, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetStatus, Scope, ABI,
};

/// The rights that are taken away where no rule gives them: up to those on devices that are opened. Later
/// ones are about calls to sockets by path, which ports with `role=client` make anywhere.
const HANDLED: ABI = ABI::V5;

/// What may still be read, and why.
const READ: &[&str] = &[
    // How many processors, interfaces and huge pages there are, and how much memory it may take.
    "/sys/devices/system",
    "/sys/class/net",
    "/sys/kernel/mm/hugepages",
    "/sys/fs/cgroup",
    "/proc/meminfo",
    "/proc/sys/vm",
    // Its own maps, limits and descriptors.
    "/proc/self",
    // The address of e1000 cards.
    "/etc/machine-id",
];

/// What landlock does.
#[derive(Clone, Debug, Default)]
pub struct Confined {
    /// The version of landlock that is in force; 0: none.
    pub abi: u32,
    /// What it lacks.
    pub missing: Option<String>,
}

fn fail(e: impl std::fmt::Display) -> String {
    format!("landlock: {e}")
}

/// Rules that allow nothing yet.
fn nothing() -> Result<RulesetCreated, String> {
    let rules = Ruleset::default()
        .handle_access(AccessFs::from_all(HANDLED))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(HANDLED)))
        .and_then(|rules| rules.scope(Scope::Signal | Scope::AbstractUnixSocket))
        .and_then(Ruleset::create);
    rules.map_err(fail)
}

/// Takes all files from this process, which has one thread, but for the right to remove what is in `folder`,
/// or to rename it there: a name in a folder of others is removed under another one (`open::folder`).
///
/// # Errors
/// Landlock is there, but refuses; or there is no such folder.
pub fn confine_to_removing(folder: &Path) -> Result<(), String> {
    let rights = AccessFs::RemoveFile | AccessFs::MakeReg | AccessFs::MakeSock;
    let place = PathFd::new(folder).map_err(fail)?;
    let rules = nothing()?.add_rule(PathBeneath::new(place, rights)).map_err(fail)?;
    rules.restrict_self().map(drop).map_err(fail)
}

/// Takes from this thread, and from those that it will start, all files but those of [`READ`].
///
/// # Errors
/// Landlock is there, but refuses.
pub fn confine() -> Result<Confined, String> {
    let mut rules = nothing()?;
    for path in READ.iter().map(Path::new) {
        // What is not there needs no rule; a process that wants it gets that error.
        let Ok(place) = PathFd::new(path) else { continue };
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let access = if path.is_dir() { read } else { read & AccessFs::from_file(HANDLED) };
        rules = rules.add_rule(PathBeneath::new(place, access)).map_err(fail)?;
    }
    let status = rules.restrict_self().map_err(fail)?;
    let abi = match status.landlock {
        LandlockStatus::Available { effective_abi, .. } => effective_abi as u32,
        _ => 0,
    };
    let missing = match status.ruleset {
        RulesetStatus::FullyEnforced => None,
        RulesetStatus::PartiallyEnforced => {
            Some(format!("landlock has version {abi} only; 6 has all that is used"))
        }
        RulesetStatus::NotEnforced => {
            Some("landlock: this kernel has none, or it is switched off".to_owned())
        }
    };
    Ok(Confined { abi, missing })
}
