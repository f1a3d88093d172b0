//! A browser: the system's Chromium, driven by puppeteer-core, with axe-core, which finds what keeps people
//! out of a page.

use crate::error::{Context, Result};
use crate::fetch::{lab_dir, part};
use crate::process::output;
use std::path::PathBuf;
use std::process::Command;

const PACKAGE: &str = include_str!("../web/package.json");
const LOCK: &str = include_str!("../web/package-lock.json");

/// The folder whose `node_modules` has both, as `lab/web/package-lock.json` names them by their sums; fetches
/// what is missing.
///
/// # Errors
/// There is no npm, or it cannot download them.
pub fn packages() -> Result<PathBuf> {
    let lab = lab_dir()?;
    std::fs::create_dir_all(&lab).context(|| format!("making {}", lab.display()))?;
    part(&lab, "browser", &format!("{PACKAGE}{LOCK}"), |_, target| {
        for (name, text) in [("package.json", PACKAGE), ("package-lock.json", LOCK)] {
            std::fs::write(target.join(name), text).context(|| format!("writing {name}"))?;
        }
        // No package runs anything of its own.
        let words = ["ci", "--ignore-scripts", "--no-audit", "--no-fund"];
        output(Command::new("npm").args(words).current_dir(target)).map(drop)
    })
}
