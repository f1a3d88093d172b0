//! What is counted of a disk: requests, bytes, errors by name, and how long requests took.
//!
//! Each queue has its own, written by the holder of the queue and read by any thread; they outlive the queue,
//! which ends with each change of the guest's memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::core::Histogram;
use crate::count;

macro_rules! errors {
    ($($(#[doc = $doc:literal])+ $error:ident = $name:literal,)+) => {
        /// Why a request failed. Each has a name, so that operators need not guess.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum RequestError {
            $($(#[doc = $doc])+ $error,)+
        }

        impl RequestError {
            const ALL: &'static [RequestError] = &[$(RequestError::$error),+];

            /// The name, as it stands in `show` and in metrics.
            pub fn name(self) -> &'static str {
                match self {
                    $(RequestError::$error => $name,)+
                }
            }
        }
    };
}

errors! {
    /// No byte can be written, so the guest cannot be told how its request went.
    NoStatus = "no_status",
    /// The readable part is shorter than a header.
    NoHeader = "no_header",
    /// Data that are no multiple of a sector, or are missing; ranges that are no whole ranges, or too many.
    BadLength = "bad_length",
    /// It ends behind the disk.
    BeyondCapacity = "beyond_capacity",
    /// A write to a disk that is read-only.
    ReadOnly = "read_only",
    /// A type that the device does not know, or did not offer; a flag of a range that it does not know.
    Unsupported = "unsupported",
    /// The medium failed: EIO and the like.
    Failed = "io_error",
    /// There is no room left for what was written.
    NoRoom = "no_space",
    /// The file has become shorter than the disk.
    CutShort = "file_cut_short",
    /// The file can only be read and written in blocks, and this was none.
    Unaligned = "unaligned",
    /// The guest's buffers are gone: its VMM has cut its memory short.
    NoMemory = "bad_memory",
    /// A flush after one that failed: what that one covered may be lost.
    FlushLost = "flush_failed_before",
}

const REQUEST_ERRORS: usize = RequestError::ALL.len();

/// Requests that are counted.
const KINDS: [&str; 6] = ["reads", "writes", "flushes", "discards", "write_zeroes", "ids"];

/// What is counted of one queue.
#[derive(Debug, Default)]
pub struct QueueStats {
    requests: [AtomicU64; KINDS.len()],
    /// Bytes of reads and writes.
    bytes: [AtomicU64; 2],
    errors: [AtomicU64; REQUEST_ERRORS],
    interrupts: AtomicU64,
    kicks: AtomicU64,
    in_flight: AtomicU32,
    /// How long reads, writes and flushes took.
    latencies: [Histogram; 3],
}

/// A request that is over.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// Its place in [`KINDS`].
    pub kind: usize,
    /// Bytes read or written.
    pub bytes: u64,
    /// Nanoseconds from when it was taken from the ring.
    pub ns: u64,
}

impl QueueStats {
    /// Counts a request that went well.
    #[inline]
    pub fn ended(&self, ended: Ended) {
        if let Some(requests) = self.requests.get(ended.kind) {
            count(requests, 1);
        }
        if let Some(bytes) = self.bytes.get(ended.kind) {
            count(bytes, ended.bytes);
        }
        if let Some(latency) = self.latencies.get(ended.kind) {
            latency.add(ended.ns);
        }
    }

    /// Counts one that did not.
    pub fn failed(&self, error: RequestError) {
        count(&self.errors[error as usize], 1);
    }

    /// Counts an interrupt.
    pub fn interrupted(&self) {
        count(&self.interrupts, 1);
    }

    /// Counts a kick.
    pub fn kicked(&self) {
        count(&self.kicks, 1);
    }

    /// `count` requests are under way.
    pub fn set_in_flight(&self, count: usize) {
        self.in_flight.store(u32::try_from(count).unwrap_or(u32::MAX), Ordering::Relaxed);
    }
}

crate::util::form::view! {
    /// Time of requests from their arrival in the ring to their answer there.
    #[derive(Copy, Default)]
    Latency {
        /// Median in nanoseconds.
        p50_ns: u64,
        /// The 99th percentile of the same.
        p99_ns: u64,
    }

    /// What is counted of a disk, all queues together.
    #[derive(Default)]
    Sums {
        /// Requests in flight.
        in_flight: u64,
        /// Successful reads.
        reads: u64,
        /// Bytes of those.
        read_bytes: u64,
        /// Successful writes.
        writes: u64,
        /// Bytes of those.
        written_bytes: u64,
        /// Successful flushes.
        flushes: u64,
        /// Successful discards.
        discards: u64,
        /// Successful requests to write zeroes.
        write_zeroes: u64,
        /// Requests for the disk's name.
        ids: u64,
        /// Kicks that woke an I/O core.
        kicks: u64,
        /// Interrupts sent.
        interrupts: u64,
        /// Requests that failed, by the name of the reason.
        errors: BTreeMap<String, u64>,
        /// How long reads took, from the ring to the ring.
        read_latency: Latency,
        /// How long writes took.
        write_latency: Latency,
        /// How long flushes took.
        flush_latency: Latency,
    }
}

impl Sums {
    pub(super) fn of(queues: &[QueueStats]) -> Sums {
        let sum = |of: &dyn Fn(&QueueStats) -> &AtomicU64| -> u64 {
            queues.iter().map(|queue| of(queue).load(Ordering::Relaxed)).sum()
        };
        let requests = |kind: usize| sum(&|queue| &queue.requests[kind]);
        let latency = |kind: usize| {
            let all = queues.iter().map(|queue| &queue.latencies[kind]);
            let [p50_ns, p99_ns] = Histogram::quantiles_of(all, [50, 99]);
            Latency { p50_ns, p99_ns }
        };
        let errors = RequestError::ALL
            .iter()
            .map(|error| (error.name().to_owned(), sum(&|queue| &queue.errors[*error as usize])));
        Sums {
            in_flight: queues.iter().map(|queue| u64::from(queue.in_flight.load(Ordering::Relaxed))).sum(),
            reads: requests(0),
            read_bytes: sum(&|queue| &queue.bytes[0]),
            writes: requests(1),
            written_bytes: sum(&|queue| &queue.bytes[1]),
            flushes: requests(2),
            discards: requests(3),
            write_zeroes: requests(4),
            ids: requests(5),
            kicks: sum(&|queue| &queue.kicks),
            interrupts: sum(&|queue| &queue.interrupts),
            errors: errors.filter(|(_, n)| *n > 0).collect(),
            read_latency: latency(0),
            write_latency: latency(1),
            flush_latency: latency(2),
        }
    }
}
