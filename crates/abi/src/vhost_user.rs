//! vhost-user: what is negotiated (docs/interop/vhost-user.rst of QEMU, "Protocol features").

/// Protocol features, each of which has to be negotiated before messages that belong to it are sent. The
/// names are the specification's.
#[allow(missing_docs)]
pub mod protocol {
    /// Stands for messages that belong to no feature.
    pub const ALWAYS: u64 = 0;
    pub const MQ: u64 = 1;
    pub const LOG_SHMFD: u64 = 1 << 1;
    pub const RARP: u64 = 1 << 2;
    pub const REPLY_ACK: u64 = 1 << 3;
    pub const MTU: u64 = 1 << 4;
    pub const BACKEND_REQ: u64 = 1 << 5;
    pub const CONFIG: u64 = 1 << 9;
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    pub const RESET_DEVICE: u64 = 1 << 13;
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
    pub const STATUS: u64 = 1 << 16;
}
