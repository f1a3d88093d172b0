//! Which kernel modules must be loaded before which.
//!
//! Debian ships modules without `modules.dep`, which a package script makes on the installed system. The
//! names are in the modules themselves (`depends=` in the `.modinfo` section), so that no `depmod` is needed.

use crate::error::{Context, Error, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The modules of one kernel by normalized name.
pub(crate) struct Modules {
    root: PathBuf,
    files: BTreeMap<String, PathBuf>,
}

impl Modules {
    /// Finds every `.ko` file below `root`, a folder such as `lib/modules/6.1.0-50-amd64`.
    pub(crate) fn find(root: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        let mut folders = vec![root.to_owned()];
        while let Some(folder) = folders.pop() {
            let entries = std::fs::read_dir(&folder).context(|| format!("reading {}", folder.display()))?;
            for entry in entries {
                let path = entry.context(|| format!("reading {}", folder.display()))?.path();
                if path.is_dir() && !path.is_symlink() {
                    folders.push(path);
                } else if path.extension().is_some_and(|e| e == "ko") {
                    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
                    files.insert(normal(&stem), path);
                }
            }
        }
        Ok(Self { root: root.to_owned(), files })
    }

    /// Copies the modules `wanted`, and all that they need, to `target` with their `modules.dep`.
    pub(crate) fn copy(&self, wanted: &[&str], target: &Path) -> Result<()> {
        let modules = self.closure(wanted)?;
        let files = modules.iter().map(|module| (module.path.clone(), module.bytes.clone()));
        let dep = ("modules.dep".into(), modules_dep(&modules).into_bytes());
        for (path, bytes) in files.chain([dep]) {
            let to = target.join(path);
            std::fs::create_dir_all(to.parent().unwrap_or(target))
                .and_then(|()| std::fs::write(&to, bytes))
                .context(|| format!("writing {}", to.display()))?;
        }
        Ok(())
    }

    /// The modules `wanted` and all they need, each after those that it needs, and for each the modules that
    /// it needs directly or indirectly.
    pub(crate) fn closure(&self, wanted: &[&str]) -> Result<Vec<Module>> {
        let mut order: Vec<Module> = Vec::new();
        for name in wanted {
            self.visit(&normal(name), &mut order)?;
        }
        Ok(order)
    }

    fn visit(&self, name: &str, order: &mut Vec<Module>) -> Result<()> {
        if order.iter().any(|m| m.name == name) {
            return Ok(());
        }
        let file = self.files.get(name).ok_or_else(|| {
            Error::new(format!("the guest kernel has no module `{name}` below {}", self.root.display()))
        })?;
        let bytes = std::fs::read(file).context(|| format!("reading {}", file.display()))?;
        let mut needs: Vec<String> = Vec::new();
        for direct in depends(&bytes) {
            self.visit(&direct, order)?;
            let indirect =
                order.iter().find(|m| m.name == direct).map(|m| m.needs.clone()).unwrap_or_default();
            for need in indirect.into_iter().chain([direct]) {
                if !needs.contains(&need) {
                    needs.push(need);
                }
            }
        }
        let path = file.strip_prefix(&self.root).unwrap_or(file).to_owned();
        order.push(Module { name: name.to_owned(), path, bytes, needs });
        Ok(())
    }
}

/// One kernel module.
pub(crate) struct Module {
    /// Its name with `_` for `-`.
    pub(crate) name: String,
    /// Its path below `lib/modules/VERSION`.
    pub(crate) path: PathBuf,
    /// The file itself.
    pub(crate) bytes: Vec<u8>,
    /// The names of all modules that must be there before it, in the order of loading.
    pub(crate) needs: Vec<String>,
}

/// The text of a `modules.dep`: for each module those that it needs, the last to be loaded first.
pub(crate) fn modules_dep(modules: &[Module]) -> String {
    let path = |name: &String| modules.iter().find(|m| m.name == *name).map(|m| m.path.display().to_string());
    let mut text = String::new();
    for module in modules {
        let needs: Vec<String> = module.needs.iter().rev().filter_map(path).collect();
        text.push_str(&format!("{}: {}\n", module.path.display(), needs.join(" ")));
    }
    text
}

fn normal(name: &str) -> String {
    name.replace('-', "_")
}

/// The `depends=` line of a module: NUL-terminated, the names separated by commas. Other text of the file may
/// hold the same eight letters; only a list of names counts.
fn depends(bytes: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"depends=";
    let mut rest = bytes;
    while let Some(at) = rest.windows(KEY.len()).position(|w| w == KEY) {
        rest = &rest[at + KEY.len()..];
        let end = rest.iter().position(|b| *b == 0).unwrap_or(rest.len());
        let list = &rest[..end];
        if list.iter().all(|b| b.is_ascii_alphanumeric() || b"_-,".contains(b)) {
            let list = String::from_utf8_lossy(list);
            return list.split(',').filter(|n| !n.is_empty()).map(normal).collect();
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depends_is_found_among_other_text() {
        assert_eq!(depends(b"x depends=%s\n\0license=GPL\0depends=a-b,c\0name=d\0"), ["a_b", "c"]);
        assert!(depends(b"license=GPL\0depends=\0").is_empty());
        assert!(depends(b"nothing here").is_empty());
    }

    #[test]
    fn what_is_needed_comes_first() {
        let dir = crate::RunDir::new("modules").unwrap();
        let put = |name: &str, needs: &str| {
            let text = format!("\0depends={needs}\0");
            std::fs::write(dir.path().join(format!("{name}.ko")), text).unwrap();
        };
        put("top", "middle,leaf");
        put("middle", "leaf");
        put("leaf", "");
        put("unused", "");
        let modules = Modules::find(dir.path()).unwrap().closure(&["top"]).unwrap();
        let names: Vec<&str> = modules.iter().map(|m| m.name.as_str()).collect();
        assert_eq!(names, ["leaf", "middle", "top"]);
        assert_eq!(modules_dep(&modules), "leaf.ko: \nmiddle.ko: leaf.ko\ntop.ko: middle.ko leaf.ko\n");
        assert!(Modules::find(dir.path()).unwrap().closure(&["absent"]).is_err());
    }
}
