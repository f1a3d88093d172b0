//! What a broker may do for a daemon that has given its privileges up: what the configuration or an operator
//! has named.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use crate::sandbox::open::broker::Named;
use crate::sandbox::open::socket::SocketSpec;

/// Most names that it remembers. What was not used for longest makes room.
pub const MAX_NAMED: usize = 16_384;

/// What the parent of a broker tells it.
#[derive(Debug, Default)]
pub struct Rules {
    /// The configuration file.
    pub config: Option<PathBuf>,
    /// Whether the daemon has given its privileges up, and could be under foreign control by now.
    pub strict: bool,
    /// If so, what may be where; what was used last stands last.
    pub named: Vec<Named>,
    /// What a configuration names: each time that the file is read, this is added.
    pub names: Option<fn(&str) -> Vec<Named>>,
    /// Where operators say what else.
    pub operators: Option<SocketSpec>,
    /// TAPs that it has given to the daemon, each in its namespace: of other interfaces there nothing is
    /// changed.
    pub taps: BTreeSet<(PathBuf, String)>,
}

impl Rules {
    /// The configuration file has been read again.
    pub(super) fn learn(&mut self, text: &str) {
        for named in self.names.map(|names| names(text)).unwrap_or_default() {
            self.add(named);
        }
    }

    pub(super) fn add(&mut self, named: Named) {
        if self.is_named(&named) {
            return;
        }
        if self.named.len() >= MAX_NAMED {
            // Folders are few, and stand for many.
            let oldest = self.named.iter().position(|old| !matches!(old, Named::Folder(_)));
            self.named.remove(oldest.unwrap_or(0));
        }
        self.named.push(named);
    }

    /// Whether exactly this is named; if so, it was used just now.
    fn is_named(&mut self, wanted: &Named) -> bool {
        let found = self.named.iter().position(|named| named == wanted);
        if let Some(at) = found {
            self.named[at..].rotate_left(1);
        }
        found.is_some()
    }

    /// Whether this may be used.
    pub(super) fn allow(&mut self, wanted: Named) -> io::Result<()> {
        if !self.strict || self.is_named(&wanted) {
            return Ok(());
        }
        let what = match wanted {
            Named::Socket(_) | Named::Folder(_) => "makes sockets",
            Named::Call(_) => "calls VMMs (role=client, with where=PATH)",
            Named::Journal(_) => "opens journals outside the daemon's folder",
            Named::Disk(_) => "opens disks",
            Named::Interface(_) => "opens interfaces",
            Named::Address(_) => "opens sockets of UDP",
            Named::Namespace(_) => "enters network namespaces",
        };
        let why = format!(
            "the broker {what} only where the configuration file or an operator says so: use `sidecore add`, `set` or `apply`, or \
             write it into the configuration file and reload that"
        );
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    }

    /// Whether a socket of ours may be at `path`.
    pub(super) fn allow_socket(&mut self, path: &Path) -> io::Result<()> {
        match path.parent() {
            Some(folder) if self.is_named(&Named::Folder(folder.to_owned())) => Ok(()),
            _ => self.allow(Named::Socket(path.to_owned())),
        }
    }

    /// Whether a holder may be at `path`: beside a socket of ours.
    pub(super) fn allow_holder(&mut self, path: &Path) -> io::Result<()> {
        match path.extension() {
            Some(end) if end == "hold" => self.allow_socket(&path.with_extension("")),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "a holder's socket ends in .hold")),
        }
    }

    /// Whether the TAP `name` in the namespace at `path` may be given: it is to be remembered.
    pub(super) fn allow_tap(&mut self, path: &Path, name: &str) -> io::Result<()> {
        self.allow(Named::Namespace(path.to_owned()))?;
        // In a namespace that is named, the asker could make as many interfaces.
        if self.taps.len() < MAX_NAMED || self.taps.contains(&(path.to_owned(), name.to_owned())) {
            return Ok(());
        }
        let why = format!("the broker remembers {MAX_NAMED} interfaces in namespaces, and no more");
        Err(io::Error::other(why))
    }

    /// It has given the TAP `name` in the namespace at `path`.
    pub(super) fn gave(&mut self, path: PathBuf, name: String) {
        self.taps.insert((path, name));
    }

    /// The daemon wants the TAP `name` in the namespace at `path` no more: a later interface of this name
    /// there is not the daemon's.
    pub(super) fn took(&mut self, path: PathBuf, name: String) {
        self.taps.remove(&(path, name));
    }

    /// Whether the interface `name` in the namespace at `path` may be changed.
    pub(super) fn allow_change(&mut self, path: &Path, name: &str) -> io::Result<()> {
        self.allow(Named::Namespace(path.to_owned()))?;
        if !self.strict || self.taps.contains(&(path.to_owned(), name.to_owned())) {
            return Ok(());
        }
        let why = "the broker changes only those interfaces of a namespace that it has made there";
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(named: &[Named]) -> Rules {
        Rules { strict: true, named: named.to_vec(), ..Rules::default() }
    }

    #[test]
    fn a_name_is_for_one_thing_at_one_place() {
        let at = PathBuf::from;
        let mut rules = rules(&[
            Named::Socket(at("/run/vm.sock")),
            Named::Folder(at("/run/x")),
            Named::Call(at("/run/qemu.sock")),
            Named::Journal(at("/etc/p")),
            Named::Disk(at("/var/d")),
        ]);
        for good in ["/run/vm.sock", "/run//./vm.sock", "/run/x/a"] {
            rules.allow_socket(Path::new(good)).unwrap();
            rules.allow_holder(Path::new(&format!("{good}.hold"))).unwrap();
        }
        for bad in ["/run/docker.sock", "/run/x", "/run/x/y/a", "/run/vm.sock/a", "/run/qemu.sock", "/etc/p"]
        {
            assert!(rules.allow_socket(Path::new(bad)).is_err(), "{bad}");
            assert!(rules.allow_holder(Path::new(&format!("{bad}.hold"))).is_err(), "{bad}");
        }
        assert!(rules.allow_holder(Path::new("/run/vm.sock")).is_err());
        rules.allow(Named::Call(at("/run/qemu.sock"))).unwrap();
        for bad in ["/run/vm.sock", "/run/x/a", "/run/qemu.sock/a", "/run"] {
            assert!(rules.allow(Named::Call(at(bad))).is_err(), "{bad}");
        }
        rules.allow(Named::Journal(at("/etc/p"))).unwrap();
        assert!(rules.allow(Named::Journal(at("/etc/q"))).is_err());
        assert!(rules.allow(Named::Journal(at("/var/d"))).is_err());
        rules.allow(Named::Disk(at("/var/d"))).unwrap();
        for bad in ["/etc/p", "/run/vm.sock", "/var/d/a", "/var"] {
            assert!(rules.allow(Named::Disk(at(bad))).is_err(), "{bad}");
        }
    }

    #[test]
    fn in_a_namespace_only_what_was_made_there_is_changed() {
        let frr = Path::new("/run/netns/frr");
        let mut rules = rules(&[Named::Namespace(frr.into())]);
        assert!(rules.allow_change(frr, "lo").is_err());
        rules.gave(frr.into(), "up".to_owned());
        rules.allow_change(frr, "up").unwrap();
        rules.took(frr.into(), "up".to_owned());
        assert!(rules.allow_change(frr, "up").is_err(), "it is somebody else's by now");
        rules.gave(frr.into(), "up".to_owned());
        for (path, name) in [("/run/netns/frr", "lo"), ("/run/netns/other", "up"), ("/run/netns", "up")] {
            assert!(rules.allow_change(Path::new(path), name).is_err(), "{path} {name}");
        }
    }

    #[test]
    fn what_cannot_be_remembered_is_not_made() {
        let frr = Path::new("/run/netns/frr");
        let mut rules = rules(&[Named::Namespace(frr.into())]);
        rules.taps.extend((0..MAX_NAMED).map(|n| (frr.to_owned(), n.to_string())));
        rules.allow_tap(frr, "7").unwrap();
        assert!(rules.allow_tap(frr, "up").unwrap_err().to_string().contains("16384"));
        rules.took(frr.into(), "7".to_owned());
        rules.allow_tap(frr, "up").unwrap();
        assert!(rules.allow_tap(Path::new("/run/netns/other"), "up").is_err());
    }

    #[test]
    fn what_was_not_used_for_longest_makes_room() {
        let name = |n: usize| PathBuf::from(format!("/run/{n}"));
        let mut rules = rules(&[Named::Folder("/x".into())]);
        rules.named.extend((0..MAX_NAMED - 1).map(|n| Named::Socket(name(n))));
        rules.allow_socket(&name(0)).unwrap();
        rules.add(Named::Socket(name(MAX_NAMED)));
        assert_eq!(rules.named.len(), MAX_NAMED);
        assert!(rules.allow_socket(&name(1)).is_err());
        for kept in [name(0), name(2), name(MAX_NAMED), "/x/y".into()] {
            rules.allow_socket(&kept).unwrap();
        }
    }
}
