//! UEFI firmware for guests: OVMF, from the release that the guests run. Without it they have SeaBIOS.

use crate::apt::Apt;
use crate::error::Result;
use crate::fetch::{copy, part, Lab, GUEST_SUITE};
use std::path::Path;
use std::process::Command;

/// The program, and what it begins its variables with.
const FILES: [&str; 2] = ["OVMF_CODE_4M.fd", "OVMF_VARS_4M.fd"];

/// Has QEMU start OVMF. Its variables are kept in `work`.
pub(crate) fn arguments(lab: &Lab, work: &Path, command: &mut Command) -> Result<()> {
    let ovmf = part(&lab.dir, "ovmf", &format!("{GUEST_SUITE} {FILES:?}"), fetch)?;
    let [program, variables] = FILES.map(|name| ovmf.join(name));
    let own = work.join("variables.fd");
    copy(&variables, &own)?;
    for (unit, file, fixed) in [(0, program, "on"), (1, own, "off")] {
        let path = file.display().to_string().replace(',', ",,");
        command.arg("-drive");
        command.arg(format!("if=pflash,format=raw,unit={unit},readonly={fixed},file={path}"));
    }
    Ok(())
}

fn fetch(work: &Path, target: &Path) -> Result<()> {
    let apt = Apt::new(work, &[GUEST_SUITE])?;
    let root = work.join("root");
    apt.unpack_only(&["ovmf"], &root)?;
    FILES.iter().try_for_each(|name| copy(&root.join("usr/share/OVMF").join(name), &target.join(name)))
}
