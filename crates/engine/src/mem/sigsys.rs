//! System calls that a filter refuses: they fail with EPERM, and are counted.
//!
//! Theory of operation. A filter of seccomp(2) that traps raises SIGSYS on the thread that made the call, in
//! place of the call. The handler counts it by kind of thread and number of the call, and writes EPERM where
//! the thread will look for the call's result (seccomp(2), `SECCOMP_RET_TRAP`). So the caller sees an error,
//! not its end. The filters themselves stand in `sandbox/filters`.
//!
//! Invariants: the handler calls nothing, and touches nothing but atomics in statics, a thread-local byte
//! that needs no constructor, and the registers that the kernel saved for this signal.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Kinds of threads that are told apart.
const KINDS: usize = 6;
/// System calls that are told apart; the last place is for all others.
const CALLS: usize = 512;

static COUNTS: [[AtomicU64; CALLS]; KINDS] = [const { [const { AtomicU64::new(0) }; CALLS] }; KINDS];
/// What [`news`] has told already.
static TOLD: [[AtomicBool; CALLS]; KINDS] = [const { [const { AtomicBool::new(false) }; CALLS] }; KINDS];

thread_local! {
    static KIND: Cell<u8> = const { Cell::new(0) };
}

/// The kind of this thread.
pub fn kind() -> u8 {
    KIND.get()
}

/// Says of which kind this thread is.
pub fn set_kind(kind: u8) {
    KIND.set(kind);
}

/// Installs the handler, for the whole process.
///
/// # Errors
/// The system refuses, or this processor's registers are not known here.
pub fn install() -> io::Result<()> {
    if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // SAFETY: a zeroed sigaction is a valid one; the handler keeps to what a handler may do.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigsys as extern "C" fn(_, _, _) as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut())
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn on_sigsys(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the kernel hands an SA_SIGINFO handler the context that it restores afterwards; no other code
    // has it.
    let registers = unsafe { &mut (*context).uc_mcontext };
    #[cfg(target_arch = "x86_64")]
    let call = {
        let rax = &mut registers.gregs[libc::REG_RAX as usize];
        // The kernel puts the number back there before it traps (arch/x86, syscall_rollback).
        let call = *rax;
        *rax = -i64::from(libc::EPERM);
        call
    };
    #[cfg(target_arch = "aarch64")]
    let call = {
        let call = registers.regs[8].cast_signed();
        registers.regs[0] = (-i64::from(libc::EPERM)).cast_unsigned();
        call
    };
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let call = {
        let _ = registers;
        -1
    };
    let call = usize::try_from(call).unwrap_or(CALLS).min(CALLS - 1);
    // A thread that ends has no kind any more.
    let kind = KIND.try_with(Cell::get).unwrap_or(0);
    COUNTS[usize::from(kind) % KINDS][call].fetch_add(1, Ordering::Relaxed);
}

/// What was refused: kind, number of the call, how often.
pub fn refused() -> impl Iterator<Item = (u8, u32, u64)> {
    let kinds = COUNTS.iter().zip(0u8..);
    kinds.flat_map(|(calls, kind)| {
        let calls = calls.iter().zip(0u32..);
        calls
            .map(move |(count, call)| (kind, call, count.load(Ordering::Relaxed)))
            .filter(|(.., count)| *count > 0)
    })
}

/// What was refused for the first time since this was asked last.
pub fn news() -> impl Iterator<Item = (u8, u32, u64)> {
    refused().filter(|(kind, call, _)| {
        !TOLD[usize::from(*kind) % KINDS][*call as usize % CALLS].swap(true, Ordering::Relaxed)
    })
}
