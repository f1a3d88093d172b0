//! Which users may connect to a port's socket, and which process tries to and may not.
//!
//! connect(2) on a socket at a path takes the right to write to it, and to search all folders above it
//! (unix(7)). The daemon does not hear of processes that lack that. A VMM names the socket on its command
//! line, by which it is found.
//!
//! Any user can run a process with such a command line, and with any name. So what is found is told and never
//! counts as wrong, no command opens the socket to a process that was found (the operator fills the group
//! in), one process of each user is told of, and names are escaped.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use sidecore_engine::sandbox::open::accounts::name_of;
use sidecore_engine::state::status::Diagnosis;
use sidecore_engine::util::fault::shown as escaped;

use crate::api::About;

/// Most processes that are told of, and how long their names may be: the kernel's have 15 bytes.
const TOLD: usize = 4;
const NAME: usize = 16;
/// Bytes of a command line that are searched, and of all of them.
const LINE: usize = 128 << 10;
const LINES: usize = 64 << 20;

/// The rights of a process.
struct Who {
    pid: u32,
    name: String,
    user: u32,
    groups: Vec<u32>,
    /// Rights on files do not bind it.
    any: bool,
}

/// The processes that seem to be kept away from the socket of port `port` at `socket`, which has no
/// connection; else the users who may connect.
pub(super) fn look(port: &str, socket: &Path, about: &About) -> Vec<Diagnosis> {
    let is_socket = |meta: fs::Metadata| meta.file_type().is_socket();
    if !socket.is_absolute() || !fs::symlink_metadata(socket).is_ok_and(is_socket) {
        return Vec::new();
    }
    let note = |name: &str, text, mend| Diagnosis {
        name: name.to_owned(),
        about: "peer".to_owned(),
        wrong: false,
        text,
        mend: Some(mend),
    };
    let ours = [about.pid, about.broker.pid.unwrap_or(0), std::process::id()];
    let mut users = BTreeSet::new();
    let shut_out = named(socket).into_iter().filter(|who| !ours.contains(&who.pid)).filter_map(|who| {
        let shut = shut(&who, socket)?;
        users.insert(who.user).then(|| {
            let groups: Vec<String> = who.groups.iter().take(TOLD).map(|id| name_of(true, *id)).collect();
            let text = format!(
                "process {} ({}, user {}, groups {}) names this socket and may not connect: {}",
                who.pid,
                escaped(&who.name, NAME),
                name_of(false, who.user),
                groups.join(" "),
                shown(&shut)
            );
            let command = match shut == socket {
                true => format!("sidecore set {port} mode=0660 owner=:GROUP, with a group of that user"),
                false => format!("chmod a+x {}", shut.display()),
            };
            note("socket_rights", text, format!("if it is your VMM: {command}"))
        })
    });
    let mut found: Vec<Diagnosis> = shut_out.take(TOLD).collect();
    if found.is_empty() {
        let text = format!("users that may connect: {}", shown(socket));
        let mend = format!("if the VMM runs as another user: sidecore set {port} mode=0660 owner=:GROUP");
        found.push(note("socket", text, mend));
    }
    found
}

/// The processes on whose command lines the path of `socket` stands, as far as these are searched.
fn named(socket: &Path) -> Vec<Who> {
    use std::os::unix::ffi::OsStrExt;
    let path = socket.as_os_str().as_bytes();
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut left = LINES;
    let names = |pid: &u32| {
        let mut line = Vec::new();
        let most = LINE.min(left) as u64;
        let opened = File::open(format!("/proc/{pid}/cmdline"));
        // One that has ended meanwhile, and one that may not be read, name nothing.
        let _ = opened.map(|file| file.take(most).read_to_end(&mut line));
        left -= line.len();
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
            let (mode, user, group) =
                (meta.mode() & 0o7777, name_of(false, meta.uid()), name_of(true, meta.gid()));
            format!("{} is {mode:04o} {user}:{group}", place.display())
        }
        Err(e) => format!("{}: {e}", place.display()),
    }
}
