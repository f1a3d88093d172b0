//! KVM or emulation: decided by booting.
//!
//! `/dev/kvm` proves little. It may be there without permission, refuse to make a VM inside another one, or
//! emulate a processor so slowly that a kernel does not come up in minutes. So a guest is booted with KVM
//! under limits of time and of processor time. If it powers itself off within both, KVM is good; if not,
//! QEMU's own emulation (TCG) is used. The verdict is kept in the lab's folder until the host's kernel, its
//! `/dev/kvm` or the guest's kernel changes.

use crate::error::{Context, Error, Result};
use crate::fetch::Lab;
use crate::guest;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

/// A boot with hardware virtualization takes one or two seconds of a processor; if it takes more than this,
/// emulation, which takes three to five, is the better choice anyway. A busy machine, such as one that
/// compiles beside it, changes nothing about that.
const PROCESSOR_SECONDS: u64 = 6;
/// A guest that waits for something for ever uses no processor.
const LIMIT: Duration = Duration::from_secs(15);

/// How guest code is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    /// By the processor.
    Kvm,
    /// By QEMU's translator.
    Tcg,
}

impl fmt::Display for Accel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        })
    }
}

impl FromStr for Accel {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "kvm" => Ok(Self::Kvm),
            "tcg" => Ok(Self::Tcg),
            _ => Err(Error::new(format!("`{text}` is no way to run a guest; allowed are kvm and tcg"))),
        }
    }
}

impl Accel {
    /// What this machine can do, found out once. `SIDECORE_LAB_ACCEL` (`kvm` or `tcg`) overrides it.
    ///
    /// # Errors
    /// The lab cannot be fetched, its folder cannot be written, or the override is neither.
    pub fn decide() -> Result<Self> {
        static DECISION: OnceLock<Result<Accel>> = OnceLock::new();
        let decision = DECISION.get_or_init(|| match std::env::var("SIDECORE_LAB_ACCEL") {
            Ok(text) => text.parse().context(|| "SIDECORE_LAB_ACCEL".to_owned()),
            Err(_) => decide(),
        });
        decision.as_ref().copied().map_err(|e| Error::new(e.to_string()))
    }
}

fn decide() -> Result<Accel> {
    let lab = Lab::open()?;
    let Some(key) = key(lab) else { return Ok(Accel::Tcg) };
    let cache = lab.dir.join("accel");
    let lock = std::fs::File::create(lab.dir.join("accel.lock")).context(|| "making a lock".to_owned())?;
    // Two guests at once on two cores would disturb each other's probe.
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).context(|| "locking".to_owned())?;
    if let Some(verdict) = cached(&std::fs::read_to_string(&cache).unwrap_or_default(), &key) {
        return Ok(verdict);
    }
    let verdict = if guest::probe(Accel::Kvm, LIMIT, PROCESSOR_SECONDS)? { Accel::Kvm } else { Accel::Tcg };
    if verdict == Accel::Tcg {
        eprintln!(
            "sidecore-lab: no guest boots with KVM within {PROCESSOR_SECONDS} s of a processor; using TCG"
        );
    }
    std::fs::write(&cache, format!("{key}\n{verdict}\n"))
        .context(|| format!("writing {}", cache.display()))?;
    Ok(verdict)
}

/// What the verdict depends on; nothing if there is no KVM at all.
fn key(lab: &Lab) -> Option<String> {
    let node = std::fs::metadata("/dev/kvm").ok()?;
    let host = std::fs::read_to_string("/proc/version").ok()?.trim_end().to_owned();
    let device =
        format!("{}:{}:{:o}:{}", node.rdev(), node.ino(), node.mode(), rustix::process::geteuid().as_raw());
    Some(format!("host {host}, /dev/kvm {device}, guest {}", lab.kernel_version))
}

fn cached(text: &str, key: &str) -> Option<Accel> {
    let (old, verdict) = text.trim_end().rsplit_once('\n')?;
    (old == key).then(|| verdict.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_holds_for_its_key_only() {
        assert_eq!(cached("key\ntcg\n", "key"), Some(Accel::Tcg));
        assert_eq!(cached("key\nkvm\n", "other"), None);
        assert_eq!(cached("", "key"), None);
    }

    #[test]
    fn only_two_words_name_an_accelerator() {
        assert_eq!("kvm".parse::<Accel>().unwrap().to_string(), "kvm");
        assert!("xen".parse::<Accel>().unwrap_err().to_string().contains("kvm and tcg"));
    }
}
