//! What the daemon gives up at its start, so that an attacker in control of it can do little.
//!
//! Theory of operation. Privileges, the user, landlock and filters of system calls belong to a thread and are
//! handed down to those that it starts; so all of this happens while there is one thread. First ([`tidy`])
//! what costs nothing: stray descriptors, core dumps (which would show guests' memory), readers of our
//! memory, new privileges by exec. Then, when the control socket and the counters file are open,
//! [`InForce::lock_down`]: user and capabilities ([`privileges`]), files ([`files`]), system calls
//! (`sidecore_engine::sandbox::filters`). Ports are made afterwards, at the start as at any later time, so
//! that what works at the start works later, too.
//!
//! What takes privileges is done by the broker, which was started before.
//!
//! A feature that the kernel lacks is left out, and told: in the log, and by `show daemon` for as long as the
//! daemon runs. Where the operator has asked for the sandbox ([`Wish::demanded`]) it is an error.

mod files;
mod privileges;

use std::os::fd::RawFd;
use std::path::Path;

use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::thread::{capabilities, CapabilitySet};
use sidecore_engine::mem::Signal;
use sidecore_engine::sandbox::filters;
use sidecore_engine::sandbox::open::accounts::name_of;
use sidecore_engine::state::values::Sandbox;
use sidecore_engine::state::Spec;

use crate::api::{FilterView, RefusedView, SandboxView};

/// The first acts of a process of ours: nothing is left of its parent but `keep` and the standard
/// descriptors, files that it makes are its own, no program that it starts gains privileges.
pub fn settle(keep: &[RawFd]) -> Vec<String> {
    let mut missing = Vec::new();
    if let Err(e) = sidecore_engine::host::close_others(keep) {
        missing.push(format!("inherited descriptors stay open: {e}"));
    }
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    if let Err(e) = rustix::thread::set_no_new_privs(true) {
        missing.push(format!("no_new_privs: {e}"));
    }
    missing
}

/// No core dumps, and only root may look into our memory.
pub fn hide() -> Vec<String> {
    let mut missing = Vec::new();
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    if let Err(e) = rustix::process::setrlimit(Resource::Core, none) {
        missing.push(format!("core dumps are possible: {e}"));
    }
    if let Err(e) = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        missing.push(format!("other processes of the same user may look into its memory: {e}"));
    }
    missing
}

/// No capability at all: a holder needs none.
pub fn give_up_capabilities() -> Result<(), String> {
    privileges::drop_capabilities()
}

/// What a holder with its socket at `path` needs from now on: to talk, and to remove its socket and its
/// secret. Where the kernel lacks a part of it, a holder keeps descriptors as well.
pub fn confine_holder(path: &Path) {
    // This reads /proc/sys/vm/max_map_count, which a confined holder cannot.
    sidecore_engine::mem::prepare_sigbus();
    if let Some(folder) = path.parent() {
        let _ = files::confine_to_removing(folder);
    }
    let _ = filters::alone(filters::Kinds::HOLDER);
}

/// What the daemon is to take from itself.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// How much.
    pub mode: Sandbox,
    /// The operator has said so: what cannot be had is an error.
    pub demanded: bool,
}

/// What was done, for `show daemon`.
pub struct InForce {
    mode: Sandbox,
    demanded: bool,
    /// Whom it runs as, by name.
    user: String,
    landlock: u32,
    missing: Vec<String>,
}

/// What is done before anything is opened.
pub fn tidy(Wish { mode, demanded }: Wish, spec: &Spec) -> InForce {
    let named = spec.ports.iter().flat_map(|port| {
        port.fd.iter().flat_map(|fds| fds.0.iter().filter_map(|fd| i32::try_from(fd.get()).ok()))
    });
    let mut missing = settle(&named.chain(of_service_manager()).collect::<Vec<_>>());
    if mode != Sandbox::Off {
        missing.extend(hide());
    }
    InForce { mode, demanded, user: String::new(), landlock: 0, missing }
}

/// Descriptors that systemd passes (sd_listen_fds(3)): for ports that are added with `fd=` later.
fn of_service_manager() -> impl Iterator<Item = RawFd> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<RawFd>().ok());
    let ours = number("LISTEN_PID").is_some_and(|pid| u32::try_from(pid).ok() == Some(std::process::id()));
    let count = number("LISTEN_FDS").filter(|_| ours).unwrap_or(0);
    (0..count.clamp(0, 1024)).map(|n| 3 + n)
}

impl InForce {
    /// Takes away what is not needed any more. There must be no other thread yet.
    ///
    /// # Errors
    /// There is no such user, or the sandbox was demanded and this kernel, or this place, lacks a part of it.
    pub fn lock_down(&mut self, user: Option<&str>) -> Result<(), String> {
        // rustix reads what the kernel told this process once, when it is first asked, from a file that is
        // soon out of reach.
        let _ = rustix::param::page_size();
        // There is no way to have the kernel only log what these two would refuse.
        if self.mode == Sandbox::On {
            let told = privileges::change_user_without_capabilities(user, self.demanded);
            self.missing.extend(told.map_err(|e| format!("sandbox: {e}"))?);
            let gap = match files::confine() {
                Ok(files) => {
                    self.landlock = files.abi;
                    files.missing
                }
                Err(e) => Some(e),
            };
            self.lacks(gap)?;
        }
        self.user = name_of(false, rustix::process::geteuid().as_raw());
        let mode = match self.mode {
            Sandbox::Off => filters::Mode::Off,
            Sandbox::Warn => filters::Mode::Warn,
            Sandbox::On => filters::Mode::On,
        };
        self.lacks(filters::start(mode).err())?;
        if let Err(e) = Signal::probe() {
            self.missing.push(format!("io_uring, so interrupts come a microsecond later, by io_submit: {e}"));
        }
        if !self.missing.is_empty() {
            tracing::warn!(
                "it runs with less protection than it could have: to try it out there is nothing to do. Missing (as in `show \
                 daemon`): {}",
                self.missing.join("; ")
            );
        }
        Ok(())
    }

    /// This kernel, or this place, does not have a part of the sandbox.
    fn lacks(&mut self, part: Option<String>) -> Result<(), String> {
        match part {
            Some(part) if self.demanded && self.mode == Sandbox::On => Err(format!(
                "sandbox = on: {part}; leave `sandbox` out to have what there is, and to see the rest as missing in `show daemon`"
            )),
            part => {
                self.missing.extend(part);
                Ok(())
            }
        }
    }

    /// What is in force now.
    pub fn view(&self) -> SandboxView {
        let seccomp = filters::status();
        let own = |set: CapabilitySet| set.iter_names().map(|(name, _)| name.to_lowercase()).collect();
        let hidden = rustix::process::dumpable_behavior().is_ok_and(|b| b == DumpableBehavior::NotDumpable);
        SandboxView {
            mode: self.mode.to_string(),
            user: self.user.clone(),
            capabilities: capabilities(None).map_or_else(|_| Vec::new(), |sets| own(sets.effective)),
            no_new_privs: rustix::thread::no_new_privs().unwrap_or(false),
            core_dumps: !hidden,
            landlock: self.landlock,
            io_uring: Signal::probe().map_or("none", |()| "restricted").to_owned(),
            seccomp: seccomp
                .filters
                .iter()
                .map(|filter| FilterView { threads: filter.thread.to_owned(), calls: filter.calls })
                .collect(),
            refused: seccomp
                .refused
                .into_iter()
                .map(|r| RefusedView { threads: r.thread.to_owned(), call: r.call, count: r.count })
                .collect(),
            missing: self.missing.clone(),
        }
    }
}

/// Tells the log of calls that were refused for the first time.
pub fn tell_refused() {
    for refused in filters::news() {
        tracing::warn!(
            threads = refused.thread,
            call = refused.call,
            "a system call was refused by the sandbox"
        );
    }
}
