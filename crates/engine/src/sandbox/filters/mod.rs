//! Which system calls a thread may make: filters of seccomp(2), one for each kind of thread.
//!
//! Theory of operation. The daemon calls [`start`] before it has a second thread: from then on no thread
//! makes a call that none of ours needs. Each thread calls [`enter`] as its first act and loses what its own
//! kind does not need: one that reads what strangers sent makes no rings and no threads and opens nothing; an
//! I/O core keeps some thirty calls, none of which opens a file or reaches a process. Filters add up: a new
//! thread inherits the filters of the thread that starts it, and no filter can be removed. So a thread that
//! starts others must be allowed all that they may do.
//!
//! A call that is in no row fails with EPERM, and the handler (`mem/sigsys.rs`) counts it by kind of thread
//! and call, for `show daemon`, /metrics and the log ([`news`]). The daemon goes on: a port may fail, its
//! neighbours do not. A call that only an attacker makes (`calls::FATAL`) ends the process. With
//! [`Mode::Warn`] every call is carried out, and the kernel logs those that would not have been.
//!
//! `clone3` keeps its flags in memory, where no filter sees them. It fails with ENOSYS, and the C library
//! uses `clone`.

mod calls;
mod compile;

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::OnceLock;

use seccompiler::BpfProgram;

pub use calls::Kinds;
pub use compile::Mode;

use crate::mem::sigsys;

/// Filters of the kinds of threads that narrow themselves, by their numbers.
struct Filters {
    mode: Mode,
    own: Vec<(Kinds, BpfProgram)>,
}

static FILTERS: OnceLock<Filters> = OnceLock::new();
/// Set once a thread could not narrow itself.
static FAILED: AtomicU8 = AtomicU8::new(0);

/// The kinds that narrow themselves. Control is left with what the whole process may.
const NARROW: [Kinds; 3] = [Kinds::CONVERSATION, Kinds::IO_CORE, Kinds::HELPER];

/// Confines this thread, and all that it will start, to what the process needs; and makes [`enter`] narrow
/// threads further. To be called once, before there is another thread.
///
/// # Errors
/// Why there are no filters; nothing was changed then, or not enough.
pub fn start(mode: Mode) -> Result<(), String> {
    if mode == Mode::Off {
        return Ok(());
    }
    crate::mem::prepare_signals();
    crate::mem::prepare_sigbus();
    settle_allocator();
    let own =
        NARROW.map(|kind| Ok((kind, compile::of(kind, mode)?))).into_iter().collect::<Result<_, String>>()?;
    if mode == Mode::On {
        sigsys::install().map_err(|e| format!("no handler for refused calls: {e}"))?;
    }
    compile::put_on(&compile::without_clone3()?)?;
    compile::put_on(&compile::fatal(mode)?)?;
    compile::put_on(&compile::of(Kinds::all(), mode)?)?;
    FILTERS.set(Filters { mode, own }).map_err(|_| "there are filters already".to_owned())
}

/// When a thread first gives much of its memory back, the C library reads the kernel's way with memory, once
/// for all threads (`check_may_shrink_heap`). Now, because most threads may open nothing later.
fn settle_allocator() {
    const PIECE: usize = 64 << 10;
    let much = || drop((0..16).map(|_| std::hint::black_box(vec![1u8; PIECE])).collect::<Vec<_>>());
    // Without the thread a call would be refused, and counted, later.
    let _ = std::thread::Builder::new().spawn(much).map(std::thread::JoinHandle::join);
}

/// Says of which kind this thread is, and narrows it to what that needs. Its first act.
pub fn enter(kind: Kinds) {
    sigsys::set_kind(kind.number());
    let Some(filters) = FILTERS.get() else { return };
    let Some((_, program)) = filters.own.iter().find(|(of, _)| *of == kind) else { return };
    if let Err(e) = compile::put_on(program) {
        // The filter of the whole process stays, and that is known to hold: it was there at the start.
        FAILED.store(1, Ordering::Relaxed);
        tracing::error!(thread = kind.name(), "the system call filter of this thread is not in force: {e}");
    }
}

/// Confines this process, which has one thread, to what `kind` needs, for good: any other call ends it.
///
/// # Errors
/// Why there is no filter.
pub fn alone(kind: Kinds) -> Result<(), String> {
    // The other one leaves it to this one.
    compile::put_on(&compile::without_clone3()?)?;
    compile::put_on(&compile::of(kind, Mode::On)?)
}

/// Calls that were refused to one kind of thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedCalls {
    /// Which kind.
    pub thread: &'static str,
    /// The name of the call, or its number.
    pub call: String,
    /// How often.
    pub count: u64,
}

/// One kind of thread and its filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Which kind.
    pub thread: &'static str,
    /// System calls that it may make, some of them with certain arguments only.
    pub calls: usize,
}

/// What is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// What filters do.
    pub mode: Mode,
    /// All kinds of threads have theirs.
    pub whole: bool,
    /// The filters.
    pub filters: Vec<Filter>,
    /// What was refused so far.
    pub refused: Vec<RefusedCalls>,
}

/// What is in force.
pub fn status() -> Status {
    let Some(filters) = FILTERS.get() else {
        return Status { mode: Mode::Off, whole: false, filters: Vec::new(), refused: Vec::new() };
    };
    let control = Filter { thread: Kinds::CONTROL.name(), calls: compile::size(Kinds::all()) };
    let own = filters.own.iter().map(|(kind, _)| Filter { thread: kind.name(), calls: compile::size(*kind) });
    Status {
        mode: filters.mode,
        whole: FAILED.load(Ordering::Relaxed) == 0,
        filters: std::iter::once(control).chain(own).collect(),
        refused: sigsys::refused().map(|(kind, call, count)| told(kind, call, count)).collect(),
    }
}

fn told(kind: u8, call: u32, count: u64) -> RefusedCalls {
    let thread = Kinds(1 << (kind % 8)).name();
    let call = calls::name(call.into()).map_or_else(|| format!("call {call}"), str::to_owned);
    RefusedCalls { thread, call, count }
}

/// What was refused for the first time since this was asked last: for the log.
pub fn news() -> Vec<RefusedCalls> {
    sigsys::news().map(|(kind, call, count)| told(kind, call, count)).collect()
}

#[cfg(test)]
mod tests;
