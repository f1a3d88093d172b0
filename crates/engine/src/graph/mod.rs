//! The graph: the way of frames from a sender's queue to its receivers' queues.
//!
//! Theory of operation. A queue with frames is a task of an I/O core (`ingress`): a visit fetches a batch,
//! the batch *walks* from node to node (`walk`), and then the sender gets its buffers back. A node is a wire,
//! a switch, a router or a group; the file of that name says where its frames go and which of them it drops.
//! Each destination is *delivered* to once (`deliver`), and frames that ask for more than their receiver
//! accepts are made plain on the way (`offload`), and get or lose a VLAN tag (`vlan`). What a port's rules
//! say of a frame is asked in one place (`stages`). Frames for a router on a switch, or from it, wait in the
//! work list (`work`) for the walk to take them on.
//!
//! The [`Topology`] says which ports are connected. It is a snapshot that each core replaces between two
//! visits. A core's [`Local`] has the data for all of that; nothing in it is shared or locked.

mod deliver;
mod effects;
mod group;
mod ingress;
mod local;
mod mirror;
mod offload;
mod private;
mod stages;
mod switch;
mod topology;
mod vlan;
mod walk;
mod wire;
mod work;

use std::io;
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub use effects::{Fate, Step};
pub use group::{Candidate, Group, KeptGroup, Own, Probes, Settled, BUCKETS, MAX_MEMBERS};
pub use ingress::{NetTask, Pairs, QueueHandle, QueueTask, Scheduler};
pub use local::Local;
pub use topology::{Attach, Interface, Topology};

use self::walk::seconds;
use self::wire::PATIENCE;
use crate::core::{Cores, Recall, TaskHandle, Tuning};
use crate::port::Port;
use crate::router::RouterContext;
use crate::sandbox::filters::{enter, Kinds};

/// What can be chosen about the I/O cores.
#[derive(Clone, Debug)]
pub struct CoreOptions {
    /// Processors to pin the cores to, one core each. Empty: one core, not pinned.
    pub cpus: Vec<usize>,
    /// How the cores go about it.
    pub tuning: Tuning,
    /// How long a queue on a wire waits for a receiver that gives no buffers, before its frames are dropped.
    pub patience: Duration,
}

impl Default for CoreOptions {
    fn default() -> Self {
        CoreOptions { cpus: Vec::new(), tuning: Tuning::default(), patience: PATIENCE }
    }
}

/// The I/O cores of an engine, with the graph on them. How the cores and their tasks are doing, and who has
/// which task, is the cores' own ([`Cores`]).
pub struct Graph {
    cores: Arc<Cores<Local>>,
    patience: Duration,
    epoch: Instant,
}

impl Graph {
    /// Starts the cores, which know of no port yet.
    ///
    /// # Errors
    /// More than `MAX_CORES` cores, or a processor that this process may not use.
    pub fn start(options: &CoreOptions) -> io::Result<Arc<Graph>> {
        let epoch = Instant::now();
        let local = |number| Local::new(number, epoch);
        // Before any port wants a ring, or a helper.
        crate::mem::start_rings(|| enter(Kinds::HELPER))?;
        let begin = || {
            // While it still may say so.
            crate::mem::keep_workers_away();
            enter(Kinds::IO_CORE);
        };
        let cores = Cores::start(&options.cpus, &options.tuning, local, begin)?;
        Ok(Arc::new(Graph { cores, patience: options.patience, epoch }))
    }

    /// Installs `topology`. When this returns, no core uses an older one.
    pub fn publish(&self, topology: &Arc<Topology>) {
        let topology = Arc::clone(topology);
        let routers = topology.routers();
        let contexts = || routers.iter().map(RouterContext::new).collect::<Vec<_>>();
        // Made here: a router's lock may be held for long while its routes change.
        let ready: Vec<_> = self.cores.status().iter().map(|_| contexts()).collect();
        let ready = Mutex::new(ready);
        self.cores.each(move |local| {
            local.learn(&topology);
            let contexts = crate::lock(&ready).pop();
            local.walk.routers = contexts.unwrap_or_default();
        });
    }

    /// Takes all queues of `port` from the cores and from the port, whatever becomes of what stands behind
    /// it.
    pub fn evict(&self, port: &Port) {
        self.cores.evict(port.id.0);
        port.evict();
    }

    /// The clock of MAC tables: seconds since the start, from 1 on.
    pub fn seconds(&self) -> u32 {
        seconds(self.epoch)
    }
}

impl Deref for Graph {
    type Target = Arc<Cores<Local>>;

    fn deref(&self) -> &Self::Target {
        &self.cores
    }
}

impl Scheduler for Graph {
    fn serve_queue(self: Arc<Self>, handle: QueueHandle) -> Recall {
        self.cores.serve(handle.task())
    }

    fn serve_task(self: Arc<Self>, task: TaskHandle<Local>) -> Recall {
        self.cores.serve(task)
    }

    fn patience(&self) -> Duration {
        self.patience
    }
}
