//! Builds what guests run of ours: kernel modules, for the guests' kernel and for a newer one, and small
//! programs.
//!
//! The kernel's headers come from Debian's archive like everything else (`fetch.rs`) and are unpacked into
//! the lab's folder. Debian's top Makefile names its other half by an absolute path, which is put right; so
//! they are unpacked anew when the lab's folder has moved. The newer headers' helper programs want a newer C
//! library than Debian 12 has: they are started through the loader that came with the lab's own QEMU, which
//! is of the same release.

use crate::apt::Apt;
use crate::error::{Context, Error, Result};
use crate::fetch::{part, Lab, GUEST_SUITE, VMM_SUITES};
use crate::image::files;
use crate::process::output;
use crate::rundir::RunDir;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// For which kernel to build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// The one that guests run.
    Guest,
    /// The newest that Debian has for its current release.
    Newest,
}

/// Builds the module in `source`, a folder with a Kbuild file, in a folder of its own; returns the module
/// `name`.
///
/// # Errors
/// The headers cannot be fetched, or the compiler refuses or warns; the error has what it said.
pub fn build(source: &Path, name: &str, kernel: Kernel) -> Result<Vec<u8>> {
    let headers = headers(Lab::open()?, kernel)?;
    let dir = RunDir::new("kbuild")?;
    for entry in std::fs::read_dir(source).context(|| format!("reading {}", source.display()))?.flatten() {
        let to = dir.path().join(entry.file_name());
        std::fs::copy(entry.path(), &to).context(|| format!("copying {}", entry.path().display()))?;
    }
    let mut make = Command::new("make");
    make.arg("-C").arg(&headers).arg(format!("M={}", dir.path().display())).arg("modules");
    make.arg("KCFLAGS=-Wall -Werror");
    if kernel == Kernel::Newest {
        // Another compiler than the kernel's own, which lacks some options and confuses objtool.
        make.args(["CC=gcc", "CONFIG_CC_HAS_MIN_FUNCTION_ALIGNMENT=", "CONFIG_OBJTOOL="]);
        make.arg("CONFIG_DEBUG_INFO_BTF_MODULES=");
    }
    output(&mut make)?;
    let module = dir.path().join(format!("{name}.ko"));
    std::fs::read(&module).context(|| format!("reading {}", module.display()))
}

/// The module of [`build`] for the guests' kernel, kept in the lab's folder as long as neither its source nor
/// the kernel changes.
///
/// # Errors
/// As for [`build`].
pub fn kept(name: &str) -> Result<Vec<u8>> {
    let (lab, source) = (Lab::open()?, drivers()?.join(name));
    let mut hash = DefaultHasher::new();
    for file in files(&source)? {
        let path = source.join(&file);
        let bytes = std::fs::read(&path).context(|| format!("reading {}", path.display()))?;
        (file, bytes).hash(&mut hash);
    }
    let recipe = format!("{} {:x}", lab.kernel_version, hash.finish());
    let folder = part(&lab.dir, &format!("module-{name}"), &recipe, |_, target| {
        let module = build(&source, name, Kernel::Guest)?;
        std::fs::write(target.join("module.ko"), module).context(|| format!("writing {name}.ko"))
    })?;
    let module = folder.join("module.ko");
    std::fs::read(&module).context(|| format!("reading {}", module.display()))
}

/// Compiles the program `name` of `lab/NAME/NAME.c`; it needs no libraries, and no headers but the system's
/// and netmap's.
///
/// # Errors
/// The compiler refuses; the error has what it said.
pub fn program(name: &str) -> Result<Vec<u8>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(name).join(format!("{name}.c"));
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../include");
    let dir = RunDir::new("program")?;
    let to = dir.join(name);
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-static", "-I"])
        .arg(include)
        .args(["-o", &to])
        .arg(&source);
    output(&mut cc)?;
    std::fs::read(&to).context(|| format!("reading {to}"))
}

/// The folder in which modules are built.
fn headers(lab: &Lab, kernel: Kernel) -> Result<PathBuf> {
    let (name, suite) = match kernel {
        Kernel::Guest => ("headers", GUEST_SUITE),
        Kernel::Newest => ("headers-newest", VMM_SUITES[1]),
    };
    let version = if kernel == Kernel::Guest { lab.kernel_version.as_str() } else { "the newest" };
    let home = lab.dir.canonicalize().context(|| format!("looking for {}", lab.dir.display()))?.join(name);
    let recipe = format!("{suite} {version} in {}", home.display());
    let folder =
        part(&lab.dir, name, &recipe, |work, target| fetch(lab, (kernel, &home), suite, work, target))?;
    let version =
        std::fs::read_to_string(folder.join("version")).context(|| "reading the version".to_owned())?;
    Ok(folder.join("usr/src").join(version))
}

fn fetch(lab: &Lab, (kernel, home): (Kernel, &Path), suite: &str, work: &Path, target: &Path) -> Result<()> {
    let apt = Apt::new(work, &[suite])?;
    let package = match kernel {
        Kernel::Guest => format!("linux-headers-{}", lab.kernel_version),
        Kernel::Newest => apt.depends("linux-headers-amd64", "linux-headers-")?,
    };
    let common = apt.depends(&package, "linux-headers-")?;
    let tools = apt.depends(&package, "linux-kbuild-")?;
    apt.unpack_only(&[&package, &common, &tools], target)?;
    std::fs::write(target.join("version"), &package).context(|| "writing the version".to_owned())?;
    // This folder is called `home` when it is complete.
    let makefile = target.join("usr/src").join(&package).join("Makefile");
    let text = std::fs::read_to_string(&makefile).context(|| format!("reading {}", makefile.display()))?;
    let text = text.replace("/usr/src/", &format!("{}/usr/src/", home.display()));
    std::fs::write(&makefile, text).context(|| format!("writing {}", makefile.display()))?;
    match lab.vmm.loader() {
        Some((loader, libraries)) if kernel == Kernel::Newest => {
            wrap(&target.join("usr/lib").join(&tools), loader, &libraries)
        }
        _ => Ok(()),
    }
}

/// Has every program below `folder` started by `loader`.
fn wrap(folder: &Path, loader: &Path, libraries: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let entries = std::fs::read_dir(folder).context(|| format!("reading {}", folder.display()))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            wrap(&path, loader, libraries)?;
            continue;
        }
        let bytes = std::fs::read(&path).context(|| format!("reading {}", path.display()))?;
        // A program, and no object file (ELF: e_type).
        if !bytes.starts_with(b"\x7fELF") || !matches!(bytes.get(16), Some(2 | 3)) {
            continue;
        }
        // Some of them start others by their own name and a suffix, so that name is kept.
        let real = PathBuf::from(format!("{}.elf", path.display()));
        let script = format!(
            "#!/bin/sh\nexec {} --argv0 \"$0\" --library-path {libraries} \"$0.elf\" \"$@\"\n",
            loader.display()
        );
        std::fs::rename(&path, &real)
            .and_then(|()| std::fs::write(&path, script))
            .and_then(|()| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)))
            .context(|| format!("wrapping {}", path.display()))?;
    }
    Ok(())
}

/// Where the drivers for guests are.
///
/// # Errors
/// The workspace is gone.
pub fn drivers() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("/")).join("guest/linux");
    match root.is_dir() {
        true => Ok(root),
        false => Err(Error::new(format!("{} is gone", root.display()))),
    }
}
