//! DPDK for guests: testpmd with its drivers for Intel's cards, from the release that the guests run.
//!
//! Fetched like everything else (`fetch.rs`), but only when a test wants it. Debian's package depends on
//! compilers and interpreters; the list below is what the program itself loads. Libraries that every guest
//! has are left out.

use crate::apt::Apt;
use crate::error::{Context, Result};
use crate::fetch::{copy_program, part, Lab, GUEST_SUITE};
use crate::guest::Spec;
use crate::image::files;
use std::path::Path;

const PROGRAM: &str = "usr/bin/dpdk-testpmd";
/// From here the program loads whatever it finds.
const DRIVERS: &str = "usr/lib/x86_64-linux-gnu/dpdk/pmds-23.0";
const WANTED: [&str; 2] = ["librte_net_e1000.so.23.0", "librte_mempool_ring.so.23.0"];
/// What comes with DPDK, each after `librte-`.
const PARTS: &str = "\
    bitratestats23 bpf23 bus-auxiliary23 bus-dpaa23 bus-pci23 bus-vdev23 cmdline23 common-dpaax23 common-iavf23 \
    common-mlx5-23 crypto-scheduler23 cryptodev23 eal23 ethdev23 eventdev23 gro23 gso23 hash23 ip-frag23 \
    kvargs23 latencystats23 mbuf23 mempool-dpaa23 mempool-ring23 mempool23 meter23 metrics23 net-bnxt23 \
    net-bond23 net-dpaa23 net-e1000-23 net-i40e23 net-ice23 net-ixgbe23 net-mlx5-23 net23 pcapng23 pci23 pdump23 \
    rcu23 reorder23 ring23 sched23 security23 telemetry23 timer23";
const PACKAGES: &str = "\
    dpdk-dev ibverbs-providers libbsd0 libc6 libcap2 libdbus-1-3 libelf1 libfdt1 libgcrypt20 libgpg-error0 \
    libibverbs1 libjansson4 liblz4-1 liblzma5 libmd0 libnl-3-200 libnl-route-3-200 libnuma1 libpcap0.8 \
    libsystemd0 libzstd1 zlib1g";

/// Puts `dpdk-testpmd` into a guest, where it is found like any other command.
///
/// # Errors
/// Its packages cannot be fetched.
pub fn install(mut spec: Spec) -> Result<Spec> {
    let lab = Lab::open()?;
    let recipe = format!("{GUEST_SUITE} {WANTED:?} {PACKAGES} {PARTS}");
    let root = part(&lab.dir, "dpdk", &recipe, |work, target| fetch(lab, work, target))?;
    for (from, to) in [("bin", "bin"), ("lib", "lib"), ("drivers", DRIVERS)] {
        let folder = root.join(from);
        for name in files(&folder)? {
            let file = folder.join(&name);
            let data = std::fs::read(&file).context(|| format!("reading {}", file.display()))?;
            spec = spec.file(&format!("{to}/{name}"), 0o755, data);
        }
    }
    Ok(spec)
}

/// Makes `target`: `bin/`, `lib/` and `drivers/`.
fn fetch(lab: &Lab, work: &Path, target: &Path) -> Result<()> {
    let apt = Apt::new(work, &[GUEST_SUITE])?;
    let root = work.join("root");
    let parts: Vec<String> = PARTS.split(' ').map(|part| format!("librte-{part}")).collect();
    let packages: Vec<&str> = PACKAGES.split(' ').chain(parts.iter().map(String::as_str)).collect();
    apt.unpack_only(&packages, &root)?;
    let common = lab.dir.join("guest/root/lib");
    let lib = target.join("lib");
    copy_program(&root, PROGRAM, &target.join("bin"), &lib)?;
    for driver in WANTED {
        copy_program(&root, &format!("{DRIVERS}/{driver}"), &target.join("drivers"), &lib)?;
    }
    for name in files(&lib)?.into_iter().filter(|name| common.join(name).exists()) {
        std::fs::remove_file(lib.join(&name)).context(|| format!("removing {name}"))?;
    }
    Ok(())
}
