//! Memory and eventfds that are shared with a guest and its VMM. Memory is mapped in regions, translated once and
//! bounds-checked once.

mod arena;
mod deadline;
mod foreign;
mod journal;
mod lock;
mod lost;
mod map;
mod mapping;
mod nodes;
mod overrun;
mod pages;
mod patient;
mod peek;
mod piece;
mod reads;
mod resident;
mod rings;
mod scheduling;
mod shared;
pub(crate) mod sigbus;
mod signal;
pub(crate) mod sigsys;
mod target;
mod terms;
mod ticks;
mod transfer;
mod words;

pub use arena::Arena;
pub use deadline::Deadline;
pub use foreign::{eventfd, is_eventfd, is_memory, is_stream, link_name, BadFile};
#[cfg(test)]
pub(crate) use journal::last_store;
pub use journal::{journals, memory_file, sparse_file, JournalSlot, JournalSlots};
pub use lock::lock_file;
pub use lost::{lost_of, own as own_time, CoreTime, EVERY};
pub use map::{GuestMap, MapError, RegionSpec, Window, MAX_REGIONS};
pub use mapping::{in_huge_pages, Mapping, HUGE_PAGE};
pub use nodes::node_of;
pub use overrun::{Act, Overrun, OverrunCount};
pub use pages::{take_pages, SharedPages};
pub use patient::Patient;
pub use peek::{peeked, set_peeked, take_no_descriptors};
pub use piece::{
    gather, prefetch_own, prefetch_read, Piece, PieceWriter, Pieces, BATCH_PIECES, MAX_BATCH, MAX_PIECES,
};
pub use resident::Resident;
pub use rings::{prepare_signals, start as start_rings, start_helper};
pub use scheduling::SchedulingPolicy;
pub use shared::SharedFile;
pub use sigbus::{noted as memory_errors, prepare as prepare_sigbus};
pub use signal::{signalled, Signal};
pub use terms::{Files, MemoryCount, Terms};
pub use ticks::{process_time, ticks, ticks_are_steady, ticks_in, time_of};
pub use transfer::{keep_workers_away, Alignment, Begun, Bounds, How, Transfers};
pub use words::{halves, Words};
