//! The kernel modules of a guest: those that it is to have, with all that these need.
//!
//! `modules.dep` says that (depmod(8)): a line for each module, and behind its path those of all that it
//! needs.

use crate::error::{Context, Error, Result};
use crate::fetch::copy;
use std::collections::BTreeSet;
use std::path::Path;

/// Copies the modules `wanted`, and all that they need, to `target` with their `modules.dep`. They come from
/// `root`, a folder such as `lib/modules/6.1.0-50-amd64`.
pub(crate) fn copy_modules(root: &Path, wanted: &[&str], target: &Path) -> Result<()> {
    let file = root.join("modules.dep");
    let text = std::fs::read_to_string(&file).context(|| format!("reading {}", file.display()))?;
    let lines = || text.lines().filter_map(|line| Some((line, line.split_once(".ko:")?.0)));
    let normal = |name: &str| name.replace('-', "_");
    let mut paths = BTreeSet::new();
    for name in wanted {
        let is_it = |path: &str| normal(path.rsplit('/').next().unwrap_or(path)) == normal(name);
        let (line, _) = lines().find(|(_, path)| is_it(path)).ok_or_else(|| {
            Error::new(format!("the guest kernel has no module `{name}` below {}", root.display()))
        })?;
        paths.extend(line.split([':', ' ']).filter(|path| !path.is_empty()));
    }
    paths.iter().try_for_each(|path| copy(&root.join(path), &target.join(path)))?;
    let kept = lines().filter(|(_, path)| paths.contains(&*format!("{path}.ko")));
    let kept: String = kept.map(|(line, _)| format!("{line}\n")).collect();
    std::fs::write(target.join("modules.dep"), kept).context(|| "writing modules.dep".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_comes_along() {
        let dir = crate::RunDir::new("modules").unwrap();
        let (root, target) = (dir.path().join("root"), dir.path().join("target"));
        std::fs::create_dir_all(root.join("net")).unwrap();
        for name in ["net/top-most.ko", "middle.ko", "leaf.ko", "unused.ko"] {
            std::fs::write(root.join(name), name).unwrap();
        }
        let dep =
            ["net/top-most.ko: middle.ko leaf.ko", "unused.ko: leaf.ko", "middle.ko: leaf.ko", "leaf.ko:"];
        std::fs::write(root.join("modules.dep"), dep.join("\n")).unwrap();
        copy_modules(&root, &["top_most"], &target).unwrap();
        let read = |name: &str| std::fs::read_to_string(target.join(name)).ok();
        let kept = "net/top-most.ko: middle.ko leaf.ko\nmiddle.ko: leaf.ko\nleaf.ko:\n";
        assert_eq!(read("modules.dep").as_deref(), Some(kept));
        for name in ["net/top-most.ko", "middle.ko", "leaf.ko"] {
            assert_eq!(read(name).as_deref(), Some(name));
        }
        assert_eq!(read("unused.ko"), None);
        assert!(copy_modules(&root, &["absent"], &target).is_err());
    }
}
