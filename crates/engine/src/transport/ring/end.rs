//! A client that is an end of a pipe between ports: it has the pipe's memory, and its queues move slots.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use sidecore_abi::ring::Info;

use super::common::Common;
use crate::graph::Pairs;
use crate::host::ring::{PipeEgress, PipeIngress, PipePair};
use crate::ring::Region;
use crate::slots::pipe::End;

/// The client's queues, in the hands of cores and port.
pub(super) struct Piped {
    common: Arc<Common>,
    end: Arc<End>,
    lent: Pairs<PipeIngress, PipeEgress>,
}

impl Piped {
    /// A client comes: its queues are live when this returns. What it is to be told, and the descriptors that it gets: the memory, kicks,
    /// what wakes it for sending, and for receiving.
    ///
    /// # Errors
    /// There is no memory, or there are no descriptors.
    pub(super) fn attach(common: &Arc<Common>, end: &Arc<End>) -> io::Result<(Piped, Info, Vec<OwnedFd>)> {
        let region = end.enter()?;
        // From here on the end is left again whatever happens.
        let mut piped = Piped { common: Arc::clone(common), end: Arc::clone(end), lent: Pairs::default() };
        common.port.fault.clear();
        end.restart();
        let info = *region.info();
        (0..info.tx_rings).for_each(|ring| end.set_position(ring));
        let pairs: Vec<PipePair> = (0..info.tx_rings as usize)
            .map(|ring| PipePair::new(end, ring, &common.port, &common.settings))
            .collect::<io::Result<_>>()?;
        let mut fds = copies(&region, pairs.iter().map(PipePair::kick))?;
        {
            let mut state = crate::lock(&common.state);
            state.rings = pairs.iter().map(PipePair::stats).collect();
            state.attaches += 1;
        }
        let mut wakes = Vec::new();
        for PipePair { ingress, mut egress, wake_tx, wake_rx } in pairs {
            fds.push(wake_tx);
            wakes.push(wake_rx);
            egress.show();
            piped.lent.receive(&common.port, egress);
            piped.lent.send(&common.port, &common.scheduler, ingress);
        }
        fds.append(&mut wakes);
        Ok((piped, Info { mem_id: end.mem_id(), ..info }, fds))
    }
}

impl Drop for Piped {
    fn drop(&mut self) {
        self.lent.take_back();
        self.end.leave();
        crate::lock(&self.common.state).rings.clear();
    }
}

/// Copies of the file of `region` and of `others`, for a client.
pub(super) fn copies<'f>(
    region: &'f Region,
    others: impl Iterator<Item = BorrowedFd<'f>>,
) -> io::Result<Vec<OwnedFd>> {
    std::iter::once(region.file()).chain(others).map(|fd| fd.try_clone_to_owned()).collect()
}
