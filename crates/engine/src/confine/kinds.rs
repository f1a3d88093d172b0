//! Kinds of threads, and what is done about calls that they have no use for.

/// Kinds of threads, as a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds(pub(super) u8);

impl Kinds {
    /// Everything that has no kind of its own: the daemon's first thread, its workers, and all that makes ports.
    pub const CONTROL: Kinds = Kinds(1);
    /// Threads that read what strangers sent: VMMs, ring clients, netmap programs, routing daemons. They make no rings and no
    /// threads, and open nothing.
    pub const CONVERSATION: Kinds = Kinds(2);
    /// An I/O core.
    pub const IO_CORE: Kinds = Kinds(4);
    /// Threads that wait for an event and look after a port or an I/O core, and the one that makes rings of io_uring and
    /// such threads (`crate::mem::rings`).
    pub const HELPER: Kinds = Kinds(8);
    /// No thread of the daemon: the process that receives descriptors (`crate::door`).
    pub const DOOR: Kinds = Kinds(16);
    /// No thread of the daemon: the process that keeps descriptors (`crate::hold`), behind its start.
    pub const HOLDER: Kinds = Kinds(32);

    /// Every kind of the daemon's.
    pub(super) const fn all() -> Kinds {
        Kinds(15)
    }

    pub(super) const fn union(self, other: Kinds) -> Kinds {
        Kinds(self.0 | other.0)
    }

    pub(super) fn meets(self, other: Kinds) -> bool {
        self.0 & other.0 != 0
    }

    pub(super) fn number(self) -> u8 {
        u8::try_from(self.0.trailing_zeros()).unwrap_or(0)
    }

    pub(super) fn name(self) -> &'static str {
        const NAMES: [&str; 6] = ["control", "conversation", "io-core", "helper", "door", "holder"];
        NAMES.get(usize::from(self.number())).copied().unwrap_or("")
    }
}

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
