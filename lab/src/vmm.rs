//! Which QEMU to run, and how.

use crate::error::{Error, Result};
use crate::netns::in_netns;
use crate::process::output;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// The first QEMU with a vfio-user client.
pub(crate) const OLDEST: (u32, u32) = (10, 1);

/// A QEMU that can be started.
#[derive(Clone, Debug)]
pub(crate) struct Vmm {
    program: OsString,
    prefix: Vec<OsString>,
    modules: Option<OsString>,
    /// Its version.
    pub(crate) version: (u32, u32),
}

impl Vmm {
    /// The system's own, if there is one that is new enough.
    pub(crate) fn system() -> Option<Self> {
        let program = OsString::from("qemu-system-x86_64");
        let version = version_of(&mut Command::new(&program)).ok()?;
        (version >= OLDEST).then_some(Self { program, prefix: Vec::new(), modules: None, version })
    }

    /// The one unpacked below `root`. It runs on the C library that it was built for, through that library's
    /// own loader, because the system's may be older.
    pub(crate) fn private(root: &Path) -> Result<Self> {
        let libraries = root.join("usr/lib/x86_64-linux-gnu");
        let mut prefix = vec![OsString::from("--library-path"), libraries.clone().into()];
        prefix.push(root.join("usr/bin/qemu-system-x86_64").into());
        let mut vmm = Self {
            program: root.join("usr/lib64/ld-linux-x86-64.so.2").into(),
            prefix,
            modules: Some(libraries.join("qemu").into()),
            version: OLDEST,
        };
        vmm.version = version_of(&mut vmm.command(None))?;
        if vmm.version < OLDEST {
            let (major, minor) = vmm.version;
            return Err(Error::new(format!(
                "the QEMU in Debian's backports is {major}.{minor}, but {}.{} or newer is needed",
                OLDEST.0, OLDEST.1
            )));
        }
        for folder in ["usr/share/qemu", "usr/share/seabios"] {
            vmm.prefix.extend([OsString::from("-L"), root.join(folder).into()]);
        }
        Ok(vmm)
    }

    /// A command that starts it, in a network namespace if one is named; arguments follow.
    pub(crate) fn command(&self, netns: Option<&str>) -> Command {
        let mut command = in_netns(netns, &self.program);
        command.args(&self.prefix);
        if let Some(folder) = &self.modules {
            command.env("QEMU_MODULE_DIR", folder);
        }
        command
    }
}

impl Vmm {
    /// The loader and the libraries of the release that it was built for, if they are not the system's.
    pub(crate) fn loader(&self) -> Option<(&Path, String)> {
        let libraries = Path::new(self.modules.as_ref()?).parent()?;
        Some((Path::new(&self.program), libraries.display().to_string()))
    }
}

/// "QEMU emulator version 11.1.3 (Debian …)" → (11, 1).
fn version_of(command: &mut Command) -> Result<(u32, u32)> {
    let text = output(command.arg("--version"))?;
    parse_version(&text)
        .ok_or_else(|| Error::new(format!("this is not a version of QEMU: {}", text.trim_end())))
}

fn parse_version(text: &str) -> Option<(u32, u32)> {
    let version = text.split("version ").nth(1)?.split_whitespace().next()?;
    let mut numbers = version.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_as_numbers() {
        let version = |t| parse_version(t).unwrap();
        assert!(version("QEMU emulator version 7.2.17 (Debian 1:7.2)\n") < OLDEST);
        assert!(version("QEMU emulator version 10.1.0\n") >= OLDEST);
        assert!(version("QEMU emulator version 11.1.3 (Debian)\n") >= OLDEST);
        assert_eq!(parse_version("bash: not found"), None);
    }
}
