//! Memory and eventfds that are shared with a guest and its VMM. Memory is mapped in regions, translated once
//! and bounds-checked once.

mod deadline;
mod foreign;
mod journal;
mod lost;
mod map;
mod mapping;
mod overrun;
mod pages;
mod patient;
mod piece;
mod reads;
mod resident;
mod rings;
mod shared;
pub(crate) mod sigbus;
mod signal;
pub(crate) mod sigsys;
mod system;
mod target;
mod terms;
mod ticks;
mod transfer;

pub use deadline::Deadline;
pub use foreign::{eventfd, is_eventfd, is_memory, is_stream, link_name, BadFile};
#[cfg(test)]
pub(crate) use journal::last_store;
pub use journal::{journals, memory_file, sparse_file, JournalSlot, JournalSlots};
pub use lost::{lost_of, own as own_time, CoreTime, EVERY};
pub use map::{GuestMap, MapError, RegionSpec, Window, MAX_REGIONS};
pub use mapping::{in_huge_pages, Mapping, HUGE_PAGE};
pub use overrun::{Act, Overrun, OverrunCount};
pub use pages::{take_pages, SharedPages};
pub use patient::Patient;
pub use piece::{
    gather, prefetch_own, prefetch_read, Arena, Piece, PieceWriter, Pieces, BATCH_PIECES, MAX_BATCH,
    MAX_PIECES,
};
pub use resident::Resident;
pub use rings::{prepare_signals, start as start_rings, start_helper, JoinedThread};
pub use shared::{halves, SharedFile, Words};
pub use sigbus::{noted as memory_errors, prepare as prepare_sigbus};
pub use signal::{signalled, Signal};
pub use system::{lock_file, node_of, peeked, set_peeked, take_no_descriptors, SchedulingPolicy};
pub use terms::{Files, MemoryCount, Terms};
pub use ticks::{process_time, ticks, ticks_are_steady, ticks_in, time_of};
pub use transfer::{keep_workers_away, Alignment, Begun, Bounds, How, Transfers};
