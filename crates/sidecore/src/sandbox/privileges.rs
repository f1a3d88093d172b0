//! Which user the daemon is, and which capabilities it keeps: none, the broker has them.

use rustix::process::{Gid, Resource, Rlimit, Uid};
use rustix::thread::{
    capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid, CapabilitySet, CapabilitySets,
};

/// The user that a package makes for the daemon.
const OWN_USER: &str = "sidecore";
/// The user that every system has.
const NOBODY: &str = "nobody";

fn failed(e: rustix::io::Errno) -> String {
    format!("capabilities: {e}")
}

/// Becomes `wanted`, or else the daemon's own user, if this is root. Says what to warn of.
///
/// # Errors
/// There is no such user, or this is not root.
fn change_user(wanted: Option<&str>) -> Result<Option<String>, String> {
    if !rustix::process::geteuid().is_root() {
        return match wanted {
            Some(name) => Err(format!("user {name}: only root may become another user; leave `user` out")),
            None => Ok(None),
        };
    }
    let accounts = std::fs::read_to_string("/etc/passwd").map_err(|e| format!("/etc/passwd: {e}"))?;
    let find = |name: &str| {
        accounts.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let (uid, gid) = (fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?);
            (fields.first() == Some(&name) || fields.get(2) == Some(&name)).then_some((uid, gid))
        })
    };
    let (ids, note) = match wanted {
        Some(name) => (find(name).ok_or_else(|| format!("user {name}: there is no such user"))?, None),
        None => match find(OWN_USER) {
            Some(ids) => (ids, None),
            // Shared with others, who may send it signals; but root's files are worth more than that.
            None => (
                find(NOBODY).unwrap_or((65534, 65534)),
                Some(format!("a user of its own: there is no user {OWN_USER}, so it is {NOBODY}; make one, or name one (user)")),
            ),
        },
    };
    let (uid, gid) = (Uid::from_raw(ids.0), Gid::from_raw(ids.1));
    let change = set_thread_groups(&[])
        .and_then(|()| set_thread_res_gid(gid, gid, gid))
        .and_then(|()| set_thread_res_uid(uid, uid, uid));
    change.map_err(|e| format!("cannot become user {}: {e}", ids.0))?;
    Ok(note)
}

/// Becomes another user, with no capability, for good. Says what to warn of.
///
/// # Errors
/// As of [`change_user`] and [`drop_capabilities`].
pub fn change_user_without_capabilities(wanted: Option<&str>) -> Result<Option<String>, String> {
    // The bounding set and the limit for locked memory take root.
    limit()?;
    let note = change_user(wanted)?;
    drop_capabilities()?;
    Ok(note)
}

/// Gives up every capability for good.
///
/// # Errors
/// The system refuses.
pub fn drop_capabilities() -> Result<(), String> {
    limit()?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
        .map_err(failed)
}

/// What it takes capabilities to give up.
fn limit() -> Result<(), String> {
    let now = capabilities(None).map_err(failed)?;
    // Memory of AF_XDP is locked. Who may lock as much as they want may go on to.
    if now.effective.intersects(CapabilitySet::IPC_LOCK | CapabilitySet::SYS_RESOURCE) {
        // Without SYS_RESOURCE the limit stays; then large AF_XDP ports say so.
        let _ = rustix::process::setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None });
    }
    if now.effective.contains(CapabilitySet::SETPCAP) {
        for number in 0..u64::BITS {
            // Beyond the last that this kernel knows it says EINVAL.
            if remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)).is_err() {
                break;
            }
        }
    }
    // Not there before Linux 4.3, and then there is nothing in it.
    let _ = clear_ambient_capability_set();
    Ok(())
}
