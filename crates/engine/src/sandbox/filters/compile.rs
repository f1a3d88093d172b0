//! From rows to programs of seccomp(2), and onto threads.

use std::collections::{BTreeMap, BTreeSet};

use seccompiler::{
    apply_filter, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use super::calls::{Kinds, Only, ALLOWED, FATAL};

/// What filters do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// There are none.
    Off,
    /// The kernel logs what would be refused, and carries it out.
    Warn,
    /// They refuse.
    On,
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn fail(e: impl std::fmt::Display) -> String {
    format!("no filter of system calls: {e}")
}

fn program(rules: Rules, rest: SeccompAction, listed: SeccompAction) -> Result<BpfProgram, String> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(fail)?;
    SeccompFilter::new(rules, rest, listed, arch).and_then(BpfProgram::try_from).map_err(fail)
}

/// Allows the calls of `who`, and nothing else.
pub(super) fn of(who: Kinds, mode: Mode) -> Result<BpfProgram, String> {
    let mut rules = Rules::new();
    let mut free = BTreeSet::new();
    for row in ALLOWED.iter().filter(|row| row.who.meets(who)) {
        let one = rules.entry(row.number).or_default();
        if row.only.is_empty() {
            // No rule at all is: whatever its arguments.
            free.insert(row.number);
        }
        for only in row.only {
            one.push(rule(*only)?);
        }
    }
    for number in free {
        rules.insert(number, Vec::new());
    }
    // clone3 is answered by `without_clone3`, which each process puts on, too.
    rules.insert(libc::SYS_clone3, Vec::new());
    let rest = match mode {
        Mode::On => SeccompAction::Trap,
        _ => SeccompAction::Log,
    };
    program(rules, rest, SeccompAction::Allow)
}

fn rule(only: Only) -> Result<SeccompRule, String> {
    let condition = match only {
        Only::Is(argument, value) => {
            SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value.into())
        }
        Only::With(argument, bits) => {
            SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(bits), bits)
        }
        Only::Without(argument, bits) => {
            SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(bits), 0)
        }
    };
    SeccompRule::new(vec![condition.map_err(fail)?]).map_err(fail)
}

/// Ends the process at a call of [`FATAL`].
pub(super) fn fatal(mode: Mode) -> Result<BpfProgram, String> {
    let rules = FATAL.iter().map(|(_, number)| (*number, Vec::new())).collect();
    let end = match mode {
        Mode::On => SeccompAction::KillProcess,
        _ => SeccompAction::Log,
    };
    program(rules, SeccompAction::Allow, end)
}

/// Has the C library use `clone`.
pub(super) fn without_clone3() -> Result<BpfProgram, String> {
    let rules = Rules::from([(libc::SYS_clone3, Vec::new())]);
    program(rules, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS.unsigned_abs()))
}

/// Puts `program` on this thread. It sets no_new_privs, without which only root may.
pub(super) fn put_on(program: &BpfProgram) -> Result<(), String> {
    apply_filter(program).map_err(fail)
}

/// How many calls `who` may make.
pub(super) fn size(who: Kinds) -> usize {
    ALLOWED.iter().filter(|row| row.who.meets(who)).map(|row| row.number).collect::<BTreeSet<_>>().len()
}
