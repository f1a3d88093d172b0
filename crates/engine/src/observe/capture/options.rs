//! What can be chosen about a capture, and what it counts.

use serde::{Deserialize, Serialize};

/// What can be chosen about a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureOptions {
    /// Most bytes of a frame to keep.
    pub snaplen: u32,
    /// Bytes that may wait to be read; twice this much memory is used.
    pub buffer: usize,
}

impl Default for CaptureOptions {
    fn default() -> Self {
        // The snaplen of tcpdump; more than any frame has.
        CaptureOptions { snaplen: 262_144, buffer: 4 << 20 }
    }
}

/// What a capture saw of one port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureCount {
    /// Frames that came by.
    pub frames: u64,
    /// Those of them that are not in the capture.
    pub lost: u64,
}

/// Which way a frame goes, as `epb_flags` has it (pcapng §4.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Into the switch.
    Inbound = 1,
    /// Out of the switch.
    Outbound = 2,
}
