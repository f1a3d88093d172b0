//! Who may connect to a port's socket, and which process tries to and may not.
//!
//! connect(2) on a socket at a path takes the right to write to it, and to search all folders above it (unix(7)). The daemon
//! does not hear of those who lack that. A VMM names the socket on its command line, by which it is found.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use sidecore_engine::state::status::Trouble;

use crate::api::About;

/// The rights of a process.
struct Who {
    pid: u32,
    name: String,
    user: u32,
    groups: Vec<u32>,
    /// Rights on files do not bind it.
    any: bool,
}

/// Who is kept away from the socket of port `port` at `socket`, which nobody is connected to; else who may come.
pub(super) fn look(port: &str, socket: &Path, about: &About) -> Option<Trouble> {
    if !socket.is_absolute() || !fs::symlink_metadata(socket).ok()?.file_type().is_socket() {
        return None;
    }
    let trouble = |wrong, name: &str, text, mend| Trouble {
        name: name.to_owned(),
        about: "peer".to_owned(),
        wrong,
        text,
        mend: Some(mend),
    };
    let ours = [about.pid, about.broker.pid.unwrap_or(0), std::process::id()];
    for who in named(socket).into_iter().filter(|who| !ours.contains(&who.pid)) {
        let Some(shut) = shut(&who, socket) else { continue };
        let text = format!(
            "process {} ({}, user {}) names this socket and may not connect: {}",
            who.pid,
            who.name,
            user(who.user),
            shown(&shut)
        );
        let mend = match shut == socket {
            true => format!(
                "sidecore set {port} mode=0660 owner=:{}",
                who.groups.first().map_or_else(|| "GROUP".to_owned(), |id| group(*id))
            ),
            false => format!("chmod a+x {}", shut.display()),
        };
        return Some(trouble(true, "socket_rights", text, mend));
    }
    let text = format!("who may connect: {}", shown(socket));
    let mend = format!("if the VMM runs as another user: sidecore set {port} mode=0660 owner=:GROUP");
    Some(trouble(false, "socket", text, mend))
}

/// The processes on whose command lines the path of `socket` stands.
fn named(socket: &Path) -> Vec<Who> {
    use std::os::unix::ffi::OsStrExt;
    let path = socket.as_os_str().as_bytes();
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let names = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let ends = |at: usize| line.get(at).is_none_or(|b| matches!(b, 0 | b',' | b'"' | b' '));
        let ours = line.starts_with(b"sidecore")
            || line.split(|b| *b == 0).next().is_some_and(|p| p.ends_with(b"/sidecore"));
        let mut places = line.windows(path.len()).enumerate();
        !ours && places.any(|(at, part)| part == path && ends(at + path.len()))
    };
    pids.filter(names).filter_map(who).collect()
}

/// The rights of process `pid`: those that it has on files (proc(5)).
fn who(pid: u32) -> Option<Who> {
    /// CAP_DAC_OVERRIDE, from linux/capability.h.
    const DAC_OVERRIDE: u64 = 1 << 1;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    // Real, effective, saved, of the file system: the last one counts.
    let last = |key| line(key)?.split_whitespace().nth(3)?.parse::<u32>().ok();
    let more = line("Groups:").unwrap_or("").split_whitespace().filter_map(|id| id.parse().ok());
    let capabilities = u64::from_str_radix(line("CapEff:")?, 16).ok()?;
    Some(Who {
        pid,
        name: line("Name:")?.to_owned(),
        user: last("Uid:")?,
        groups: last("Gid:").into_iter().chain(more).collect(),
        any: capabilities & DAC_OVERRIDE != 0,
    })
}

/// The first place on the way to `socket` that is shut for `who`.
fn shut(who: &Who, socket: &Path) -> Option<PathBuf> {
    const SEARCH: u32 = 0o1;
    const WRITE: u32 = 0o2;
    let mut above: Vec<&Path> = socket.ancestors().skip(1).collect();
    above.reverse();
    let way = above.into_iter().map(|folder| (folder, SEARCH)).chain([(socket, WRITE)]);
    let may = |(place, right): &(&Path, u32)| {
        let Ok(meta) = fs::metadata(place) else { return true };
        let class = match meta.uid() == who.user {
            true => 6,
            false if who.groups.contains(&meta.gid()) => 3,
            false => 0,
        };
        who.any || meta.mode() >> class & right != 0
    };
    way.into_iter().find(|step| !may(step)).map(|(place, _)| place.to_owned())
}

/// A path with its owner and bits, for people.
fn shown(place: &Path) -> String {
    match fs::metadata(place) {
        Ok(meta) => {
            let (mode, user, group) = (meta.mode() & 0o7777, user(meta.uid()), group(meta.gid()));
            format!("{} is {mode:04o} {user}:{group}", place.display())
        }
        Err(e) => format!("{}: {e}", place.display()),
    }
}

fn user(id: u32) -> String {
    name_in("/etc/passwd", id)
}

fn group(id: u32) -> String {
    name_in("/etc/group", id)
}

/// The name of `id` in a table such as passwd(5); its number where it has none there.
fn name_in(table: &str, id: u32) -> String {
    let text = fs::read_to_string(table).unwrap_or_default();
    let mut rows = text.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let row = rows.find(|row| row.get(2).is_some_and(|field| *field == id.to_string()));
    row.and_then(|row| row.first().map(|name| (*name).to_owned())).unwrap_or_else(|| id.to_string())
}
