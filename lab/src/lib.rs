//! Real virtual machines for tests and for the demo.
//!
//! A test of a packet engine for VMs is worth something only if an unmodified kernel in an unmodified VMM
//! talks to it. This crate makes that as short to write as a unit test:
//!
//! ```no_run
//! use sidecore_lab::{Guest, Nic};
//! # fn main() -> sidecore_lab::Result<()> {
//! let (left, right) = Nic::cable("virtio-net-pci")?;
//! let mut a = Guest::named("a").nic(left).boot()?;
//! let mut b = Guest::named("b").nic(right).boot()?;
//! a.expect("ip addr add 10.0.0.1/24 dev eth0 && ip link set eth0 up")?;
//! b.expect("ip addr add 10.0.0.2/24 dev eth0 && ip link set eth0 up")?;
//! a.expect("ping -c 3 10.0.0.2")?;
//! # Ok(())
//! # }
//! ```
//!
//! * [`fetch`] brings a QEMU, a Debian kernel and a small root file system into one private folder. The
//!   system's packages are never touched.
//! * [`accel`] decides between KVM and TCG by booting, not by looking at `/dev/kvm`.
//! * [`guest`] starts a VM, runs commands in it, speaks QMP with its VMM, migrates and kills it.
//! * [`nic`] are the ways to plug a network card: vhost-user, vfio-user, QEMU's own, a cable between two
//!   guests.
//! * [`daemon`] runs the `sidecore` binary, [`netns`] makes network namespaces beside the guests.
//! * [`uml`] is a guest without a VMM.
//! * [`netboot`] serves guests that boot over the network.
//! * [`disk`] plugs disks, and makes one that a guest boots from.
//! * [`kbuild`] makes kernel modules of ours for guests.
//! * [`dpdk`] puts testpmd into a guest, [`fio`] is a disk with fio.
//! * [`browser`] is a Chromium for the page.
//! * [`frr`] runs the system's FRR in namespaces.
//! * [`system`] is a guest with systemd, [`container`] a clean Debian without a guest.
//! * [`tidy`] removes what an interrupted run leaves.
//! * [`traffic`] is ping and iperf3, [`mod@capture`] what passed a port; [`demo`] is `make demo`,
//!   [`bench`] compares cards in guests.
//!
//! Two rules hold everywhere. Whatever the crate starts dies with the process that started it, however that
//! one dies. And nothing is skipped silently: what cannot run is an error that says why.

pub mod accel;
mod agent;
mod apt;
pub mod back_end;
mod balance;
pub mod bench;
pub mod browser;
pub mod capture;
pub mod container;
pub mod daemon;
pub mod demo;
pub mod disk;
pub mod dpdk;
mod error;
pub mod fetch;
pub mod fio;
mod firmware;
pub mod frr;
pub mod guest;
mod image;
pub mod kbuild;
mod modules;
pub mod netboot;
pub mod netns;
pub mod nic;
pub mod process;
mod qmp;
mod rundir;
pub mod system;
pub mod tidy;
pub mod traffic;
pub mod uml;
mod vmm;

pub use accel::Accel;
pub use agent::{Job, Output};
pub use balance::Balance;
pub use container::Container;
pub use daemon::Daemon;
pub use error::{Error, Result};
pub use fetch::Lab;
pub use guest::{Guest, Migration, Spec};
pub use netns::Netns;
pub use nic::{Nic, Role};
pub use rundir::RunDir;
pub use uml::Uml;
