//! The JSON of the control socket that is not already the engine's: both ends use these types.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sidecore_engine::state::Change;

/// Answer to `GET /v1/daemon`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// `status::VERSION`.
    pub version: u32,
    /// Version of the program.
    pub program: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// The file that it was started with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<PathBuf>,
    /// Its counters file.
    pub counters: PathBuf,
    /// Bytes of memory that its control group allows it, if that is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<u64>,
    /// Memory errors of the machine that nobody has run into yet.
    #[serde(default)]
    pub memory_errors: u64,
    /// The kinds of ports that it knows.
    pub kinds: Vec<KindView>,
}

/// One kind of port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindView {
    /// Its name.
    pub name: String,
    /// The keys that it knows beyond those of every kind.
    pub keys: Vec<String>,
    /// The words that `features-off` may name.
    pub features: Vec<String>,
}

/// Answer to every request that changes something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// `status::VERSION`.
    pub version: u32,
    /// Whether nothing was done.
    pub dry_run: bool,
    /// What changed, or would; empty if all was so already.
    pub changes: Vec<Change>,
}

/// Answer to a request that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// `status::VERSION`.
    pub version: u32,
    /// What, where, why, and what to do.
    pub error: String,
}
