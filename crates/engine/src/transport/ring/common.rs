//! What a ring port's thread and its owner have in common.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sidecore_abi::ring::Info;

use super::config::RingPortConfig;
use super::group::Member;
use super::shown::Rings;
use crate::fabric::Scheduler;
use crate::host::ring::{Monitor, RingPortSettings};
use crate::port::Port;
use crate::slots::pipe::End as PipeEnd;

/// One ring port's.
pub(super) struct Common {
    pub(super) port: Arc<Port>,
    pub(super) scheduler: Arc<dyn Scheduler>,
    pub(super) config: RingPortConfig,
    /// The port's part of a shared memory.
    pub(super) member: Option<Member>,
    /// Its end of a pipe between ports.
    pub(super) end: Option<Arc<PipeEnd>>,
    pub(super) info: Info,
    pub(super) settings: Arc<RingPortSettings>,
    pub(super) state: Mutex<RingPortState>,
}

/// How it is doing.
#[derive(Default)]
pub(super) struct RingPortState {
    /// The attached client's.
    pub(super) rings: Rings,
    pub(super) attaches: u64,
    /// Ends of pipes that are open.
    pub(super) ends: usize,
    pub(super) monitors: Vec<Arc<Monitor>>,
}

impl Common {
    pub(super) fn state(&self) -> MutexGuard<'_, RingPortState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
