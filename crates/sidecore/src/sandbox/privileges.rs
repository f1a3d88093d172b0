//! Which user the daemon is, and which capabilities it keeps: none, the broker has them.

use rustix::process::{Gid, Resource, Rlimit, Uid};
use rustix::thread::{
    capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid, CapabilitySet, CapabilitySets,
};
use sidecore_engine::sandbox::open::accounts;

/// The user that a package makes for the daemon.
const OWN_USER: &str = "sidecore";
/// The user that every system has.
const NOBODY: &str = "nobody";

fn failed(e: rustix::io::Errno) -> String {
    format!("capabilities: {e}")
}

/// Becomes `wanted`, or else the daemon's own user, if this is root. Says what to warn of. Unless it was
/// `demanded`, root that may not become another user (in a container, say) stays what it is.
///
/// # Errors
/// There is no such user, or this is not root, or it may not although it was demanded.
fn change_user(wanted: Option<&str>, demanded: bool) -> Result<Option<String>, String> {
    if !rustix::process::geteuid().is_root() {
        return match wanted {
            Some(name) => Err(format!("user {name}: only root may become another user; leave `user` out")),
            None => Ok(None),
        };
    }
    let find = |name: &str| {
        let found = accounts::find(false, |entry| entry.name == name || entry.id.to_string() == name);
        let found = found.map_err(|e| format!("{}: {e}", accounts::file(false)))?;
        Ok::<_, String>(found.and_then(|user| Some((user.id, user.group?))))
    };
    let (ids, note) = match wanted {
        Some(name) => (find(name)?.ok_or_else(|| format!("user {name}: there is no such user"))?, None),
        None => match find(OWN_USER)? {
            Some(ids) => (ids, None),
            // Shared with others, who may send it signals; but root's files are worth more than that.
            None => (
                find(NOBODY)?.unwrap_or((65534, 65534)),
                Some(format!(
                    "a user of its own, so it is {NOBODY}, as other programs are: `useradd --system {OWN_USER}` makes one, and so \
                     does `make install`"
                )),
            ),
        },
    };
    let (uid, gid) = (Uid::from_raw(ids.0), Gid::from_raw(ids.1));
    let change = set_thread_groups(&[])
        .and_then(|()| set_thread_res_gid(gid, gid, gid))
        .and_then(|()| set_thread_res_uid(uid, uid, uid));
    match change {
        Ok(()) => Ok(note),
        Err(e) => {
            let why = format!(
                "another user: cannot become user {}: {e}; it takes CAP_SETUID and CAP_SETGID, or a start as an ordinary user",
                ids.0
            );
            if demanded || wanted.is_some() {
                return Err(why);
            }
            Ok(Some(why))
        }
    }
}

/// Becomes another user, with no capability, for good. Says what to warn of.
///
/// # Errors
/// As of [`change_user`] and [`drop_capabilities`].
pub fn change_user_without_capabilities(wanted: Option<&str>, demanded: bool) -> Result<Vec<String>, String> {
    // The bounding set and the limit for locked memory take root.
    let locked = limit()?;
    if locked.is_some() {
        // Until the next change of capabilities, which leaves the one.
        rustix::thread::set_keep_capabilities(true).map_err(failed)?;
    }
    let note = change_user(wanted, demanded)?;
    let kept = if locked.is_some() { CapabilitySet::IPC_LOCK } else { CapabilitySet::empty() };
    keep(kept)?;
    let _ = rustix::thread::set_keep_capabilities(false);
    Ok(note.into_iter().chain(locked).collect())
}

/// Gives up every capability for good.
///
/// # Errors
/// The system refuses.
pub fn drop_capabilities() -> Result<(), String> {
    limit()?;
    keep(CapabilitySet::empty())
}

fn keep(kept: CapabilitySet) -> Result<(), String> {
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(failed)
}

/// What it takes capabilities to give up. Says why memory could not be locked without CAP_IPC_LOCK, if so.
fn limit() -> Result<Option<String>, String> {
    let now = capabilities(None).map_err(failed)?;
    let mut locked = None;
    // Memory of AF_XDP is locked. A process that may lock as much as it wants may go on to.
    if now.effective.intersects(CapabilitySet::IPC_LOCK | CapabilitySet::SYS_RESOURCE) {
        let limit = Rlimit { current: None, maximum: None };
        if let Err(e) = rustix::process::setrlimit(Resource::Memlock, limit) {
            if now.effective.contains(CapabilitySet::IPC_LOCK) {
                locked = Some(format!(
                    "no limit for locked memory ({e}), so it keeps CAP_IPC_LOCK for AF_XDP ports: start it with `ulimit -l \
                     unlimited`, LimitMEMLOCK=infinity or CAP_SYS_RESOURCE"
                ));
            }
        }
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
    Ok(locked)
}
