//! What a port has at most, and what it has unless it is told.

/// Most egress queues of a port.
pub const MAX_QUEUES: usize = 16;
/// MTU of a port that was not given one, in bytes of the Ethernet payload.
pub const DEFAULT_MTU: u32 = 1500;
