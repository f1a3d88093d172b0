//! What the daemon makes by name: on a file system without room, and where a stranger has put something else
//! first.

use crate::rig;
use std::io::Write;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;

use crate::rig::{Daemon, Testbed};
use rustix::process::Signal;

/// A tmpfs of its own at a path, until this is dropped.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn mount(path: PathBuf, size: &str) -> Tmpfs {
        rig::needs_root();
        std::fs::create_dir(&path).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size},mode=0755"), "none"]).arg(&path);
        assert!(mount.status().unwrap().success());
        Tmpfs(path)
    }

    /// Fills it to the last page; the file that does.
    fn fill(&self) -> PathBuf {
        let path = self.0.join("filler");
        let mut file = std::fs::File::create(&path).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
        path
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// The daemon used to write into a sparse file and end by SIGBUS, without a word.
#[test]
fn no_room_for_counters_is_an_error_at_the_start() {
    let bed = Testbed::new();
    let tmpfs = Tmpfs::mount(bed.path("run"), "1m");
    let socket = tmpfs.0.join("control.sock");
    let output = bed.command().args(["run", "--socket"]).arg(&socket).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{}: {errors}", output.status);
    assert!(errors.contains("no room") && errors.contains("control.counters"), "{errors}");
    assert!(!socket.exists());
}

/// `add` used to make a sparse journal, and the first packed ring ended the daemon by SIGBUS.
#[test]
fn no_room_for_a_journal_is_an_error_of_add() {
    let bed = Testbed::new();
    let tmpfs = Tmpfs::mount(bed.path("run"), "12m");
    let socket = tmpfs.0.join("control.sock");
    let socket = socket.to_str().unwrap();
    let _daemon = Daemon::start(bed.command().args(["run", "--socket", socket]));
    let filler = tmpfs.fill();
    let port = format!("p=vhost-user:{}", bed.at("p.sock"));
    let refused = bed.fails(&["add", "--socket", socket, &port]);
    assert!(refused.contains("control.journals") && refused.contains("nothing was changed"), "{refused}");
    assert!(!bed.path("p.sock").exists() && !tmpfs.0.join("control.journals/p").exists());
    let ports = bed.ok(&["show", "ports", "--socket", socket, "--json"]);
    let ports: serde_json::Value = serde_json::from_str(&ports).unwrap();
    assert_eq!(ports["ports"].as_array().unwrap().len(), 0);
    std::fs::remove_file(filler).unwrap();
    bed.ok(&["add", "--socket", socket, &port]);
    // All of it is there, not just its length.
    use std::os::unix::fs::MetadataExt;
    let journal = std::fs::metadata(tmpfs.0.join("control.journals/p")).unwrap();
    assert!(journal.blocks() * 512 >= journal.len() && journal.len() > 0);
}

#[test]
fn a_journal_lives_as_long_as_its_port_is_configured() {
    let bed = Testbed::new();
    let (journals, port) = (bed.path("control.journals"), format!("a=vhost-user:{}", bed.at("a.sock")));
    let other = format!("b=vhost-user:{},journal={}", bed.at("b.sock"), bed.at("b.journal"));
    let daemon = bed.daemon(&["--port", &port, "--port", &other]);
    assert_eq!(rig::mode(&journals), 0o700);
    assert_eq!(rig::mode(&journals.join("a")), 0o600);
    assert!(!journals.join("b").exists() && bed.path("b.journal").exists());
    daemon.end(Signal::KILL);
    assert!(journals.join("a").exists(), "it is for the next daemon");
    let daemon = bed.daemon(&["--port", &port]);
    daemon.end(Signal::TERM);
    assert!(journals.join("a").exists(), "it is for the next daemon");
    let daemon = bed.daemon(&["--port", &port, "--port", &other]);
    bed.ok(&["del", "a"]);
    bed.ok(&["del", "b"]);
    assert!(!journals.join("a").exists());
    assert!(bed.path("b.journal").exists(), "the operator's own file is the operator's");
    bed.ok(&["add", &port]);
    daemon.end(Signal::KILL);
    drop(bed.daemon(&[]));
    assert!(!journals.join("a").exists(), "no such port is configured any more");
}

/// A root's file of 17 bytes grew to the length of a journal, and one was cut short as a counters file.
#[test]
fn links_in_the_place_of_our_files_are_refused() {
    let bed = Testbed::new();
    let victim = bed.write("victim", "seventeen bytes.\n");
    let untouched = || assert_eq!(std::fs::read(bed.path("victim")).unwrap(), b"seventeen bytes.\n");
    let link = |name: &str| symlink(&victim, bed.path(name)).unwrap();

    link("control.counters");
    let refused = bed.fails(&["run"]);
    assert!(refused.contains("control.counters") && refused.contains("link"), "{refused}");
    untouched();
    std::fs::remove_file(bed.path("control.counters")).unwrap();

    std::fs::create_dir(bed.path("control.journals")).unwrap();
    std::fs::set_permissions(bed.path("control.journals"), std::fs::Permissions::from_mode(0o700)).unwrap();
    link("control.journals/a");
    let port = format!("a=vhost-user:{}", bed.at("a.sock"));
    let daemon = bed.daemon(&["--port", &port]);
    let refused = daemon.await_log("it does not start");
    assert!(refused.contains("control.journals/a") && refused.contains("link"), "{refused}");
    untouched();
    drop(daemon);

    link("mine.journal");
    let daemon = bed.daemon(&[]);
    let port = format!("{port},journal={}", bed.at("mine.journal"));
    let refused = bed.fails(&["add", &port]);
    assert!(refused.contains("mine.journal") && refused.contains("link"), "{refused}");
    untouched();
    assert!(daemon.end(Signal::TERM).success());
}
