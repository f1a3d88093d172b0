//! Kinds of threads, and what is done about calls that they have no use for.

/// Kinds of threads, as a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds(pub(super) u16);

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $bit:literal, $text:literal;)*) => {
        impl Kinds {
            $($(#[$doc])* pub const $name: Kinds = Kinds(1 << $bit);)*
            const NAMES: &'static [(Kinds, &'static str)] = &[$((Kinds::$name, $text)),*];
        }
    };
}

kinds! {
    /// Everything that has no kind of its own: the daemon's first thread and its workers.
    CONTROL = 0, "control";
    /// An I/O core.
    IO_CORE = 1, "io-core";
    /// The conversation of a vhost-user port.
    VHOST_USER = 2, "vhost-user";
    /// The conversation of an e1000, e1000e or rtl8169 port.
    VFIO_USER = 3, "vfio-user";
    /// The conversation of a ring port.
    RING = 4, "ring";
    /// The socket at which netmap programs ask for ports.
    NETMAP = 5, "netmap";
    /// Threads that wait for an event and look after a port or an I/O core.
    WATCH = 6, "watch";
    /// No thread: what takes privileges, of a process that has no broker.
    DIRECT = 7, "direct";
    /// No thread of the daemon: the process that receives descriptors (`crate::door`).
    DOOR = 8, "door";
    /// The thread that makes rings of io_uring (`crate::mem::rings`).
    RINGS = 9, "rings";
    /// The thread that follows a router's control plane.
    ROUTES = 10, "routes";
    /// No thread of the daemon: the process that keeps descriptors (`crate::hold`), behind its start.
    HOLDER = 11, "holder";
}

impl Kinds {
    /// Every kind of the daemon's.
    pub(super) const fn all() -> Kinds {
        Kinds(0x6ff)
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
        Kinds::NAMES.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
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
