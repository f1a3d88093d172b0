//! Tells the program which commit it is built from (`cli::VERSION`): by `packaging/commit` in an archive that
//! `git archive` made, by git elsewhere. A build that has neither has the version alone.

use std::process::Command;

const ARCHIVE: &str = "../../packaging/commit";

fn main() {
    println!("cargo::rerun-if-changed={ARCHIVE}");
    // A commit or a checkout adds a line to it.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={}", log.trim_end());
    }
    let archive = std::fs::read_to_string(ARCHIVE).ok().filter(|text| !text.starts_with('$'));
    let commit = archive.or_else(|| git(&["log", "-1", "--format=%H %cs"])).unwrap_or_default();
    let mut words = commit.split_whitespace();
    let what = match (words.next().and_then(|hash| hash.get(..10)), words.next()) {
        (Some(hash), Some(date)) => format!(" ({hash} {date})"),
        _ => String::new(),
    };
    println!("cargo::rustc-env=SIDECORE_COMMIT={what}");
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
