//! Our ptnet driver is built for the guests' kernel and for a new one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use sidecore_lab::kbuild::{build, drivers, Kernel};
use sidecore_lab::Result;

/// Kernels change what drivers call; the guests' kernel is an old one.
#[test]
fn our_driver_builds_for_old_and_new_kernels() -> Result<()> {
    for (kernel, majors) in [(Kernel::Guest, 6..=6), (Kernel::Newest, 7..=99)] {
        let module = build(&drivers()?.join("ptnet"), "ptnet", kernel)?;
        let version =
            module.windows(9).position(|part| part == b"vermagic=").map(|at| &module[at + 9..]).unwrap();
        let version = String::from_utf8_lossy(version.split(|byte| *byte == 0).next().unwrap()).into_owned();
        println!("built for {version}");
        let major: u32 = version.split('.').next().unwrap().parse().unwrap();
        assert!(majors.contains(&major), "{version}");
    }
    Ok(())
}
