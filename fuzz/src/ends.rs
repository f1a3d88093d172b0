//! What stands behind the ports of a graph without guests: queues of frames that were given to them, queues
//! that check what they get, and a hand that visits them in place of an I/O core.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sidecore_engine::core::{Budget, Lease, Recall, TaskHandle};
use sidecore_engine::graph::{Local, QueueHandle, Scheduler};
use sidecore_engine::mem::Arena;
use sidecore_engine::packet::{Batch, Gso, Offload, Offloads, HEAD};
use sidecore_engine::port::{DropReason, EgressQueue, IngressQueue, Outcome, Port, Room, Tally};

use crate::packets::{check, Packet};

/// Frames of one fetch, and bytes of the longest.
const SLOTS: usize = 48;
const SLOT: usize = 8192;

/// Frames that wait to be sent.
pub type Waiting = Arc<Mutex<VecDeque<Packet>>>;

/// Sends them. A body is described in one piece or in two, as the first byte behind the head says.
pub struct Source {
    waiting: Waiting,
    arena: Arena,
    out: bool,
}

impl Source {
    /// Sends what waits there.
    pub fn new(waiting: &Waiting) -> Source {
        Source { waiting: Arc::clone(waiting), arena: Arena::new(SLOTS, SLOT), out: false }
    }
}

impl IngressQueue for Source {
    fn fetch(&mut self, batch: &mut Batch, tally: &mut Tally) {
        assert!(!self.out, "what was fetched before was not given back");
        let mut waiting = self.waiting.lock().unwrap();
        while batch.room() > 0 && batch.len() < SLOTS {
            let Some(Packet { mut bytes, header }) = waiting.pop_front() else { break };
            bytes.truncate(SLOT);
            tally.frames += 1;
            tally.bytes += bytes.len() as u64;
            let slot = batch.len();
            let near = bytes.len().min(HEAD);
            let offload = Offload::parse(&header, &bytes[..near], bytes.len(), Offloads::ALL);
            let Ok(offload) = offload else {
                tally.drops.add(DropReason::BadOffload, 1);
                batch.skip();
                continue;
            };
            let Some((frame, pieces)) = batch.next_frame() else { break };
            frame.head = [0x5a; HEAD];
            frame.head[..near].copy_from_slice(&bytes[..near]);
            (frame.len, frame.piece, frame.pieces) = (bytes.len() as u32, pieces.len() as u32, 0);
            frame.offload = offload;
            if bytes.len() > HEAD {
                let mut rest = self.arena.put(slot, &bytes, HEAD);
                let first = rest.first(usize::from(bytes[HEAD]) % (rest.len() + 1));
                rest.advance(first.len());
                for part in [first, rest].into_iter().filter(|part| !part.is_empty()) {
                    assert!(pieces.push(part));
                    frame.pieces += 1;
                }
            }
            batch.commit();
        }
        self.out = tally.frames > 0;
    }

    fn has_frames(&mut self) -> bool {
        !self.waiting.lock().unwrap().is_empty()
    }

    fn release(&mut self, _: &mut Tally) {
        assert!(std::mem::take(&mut self.out), "nothing was fetched");
    }

    fn want_kicks(&mut self, _: bool) -> bool {
        false
    }

    fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// What a receiver shares with the fuzzer.
pub struct Receiver {
    /// Frames that it has room for.
    pub free: u32,
    /// What it takes over; the same as its port says.
    pub accepts: Offloads,
    /// All frames come of honest packets.
    pub honest: bool,
}

/// Takes frames, reads every byte of them, and checks them.
pub struct Sink {
    receiver: Arc<Mutex<Receiver>>,
    bytes: Vec<u8>,
}

impl Sink {
    /// One with these properties.
    pub fn new(receiver: &Arc<Mutex<Receiver>>) -> Sink {
        Sink { receiver: Arc::clone(receiver), bytes: Vec::new() }
    }
}

impl EgressQueue for Sink {
    fn send(&mut self, batch: &Batch, picks: &[u16], outcome: &mut Outcome) {
        let mut receiver = self.receiver.lock().unwrap();
        let mut seen = [false; sidecore_engine::packet::MAX_BATCH];
        for pick in picks {
            assert!(!std::mem::replace(&mut seen[usize::from(*pick)], true), "a frame comes twice");
            if receiver.free == 0 {
                outcome.dropped(*pick, DropReason::RingFull);
                continue;
            }
            receiver.free -= 1;
            let frame = batch.frame(*pick);
            assert_eq!(frame.offload.required().without(receiver.accepts), Offloads::NONE, "not accepted");
            self.bytes.clear();
            self.bytes.extend_from_slice(frame.head());
            for piece in batch.body(frame) {
                let from = self.bytes.len();
                self.bytes.resize(from + piece.len(), 0);
                assert_eq!(piece.read(&mut self.bytes[from..]), piece.len());
            }
            assert_eq!(self.bytes.len(), frame.len as usize);
            if receiver.honest {
                check(&self.bytes, frame.offload.needs_csum(), frame.offload.gso != Gso::None);
            }
            outcome.delivered(frame.len);
        }
    }

    fn is_full(&mut self) -> bool {
        self.receiver.lock().unwrap().free == 0
    }

    fn room(&mut self) -> Option<Room> {
        Some(Room { free: self.receiver.lock().unwrap().free, size: 256 })
    }
}

/// Visits tasks, one after the other, in the order in which they came.
pub struct Hand {
    tasks: Mutex<Vec<TaskHandle<Local>>>,
    patience: Duration,
}

impl Hand {
    /// On a wire its queues wait for so long.
    pub fn new(patience: Duration) -> Arc<Hand> {
        Arc::new(Hand { tasks: Mutex::default(), patience })
    }

    /// Serves `source` at `port`.
    pub fn serve(self: &Arc<Hand>, port: &Arc<Port>, source: Source) -> Lease<Source> {
        (Arc::clone(self) as Arc<dyn Scheduler>).serve(port, 0, source)
    }

    /// Visits task `index`, if there is one. True: it moved something.
    pub fn visit(&self, index: usize, local: &mut Local, budget: Budget) -> bool {
        let mut tasks = self.tasks.lock().unwrap();
        let Some(task) = tasks.get_mut(index) else { return false };
        let visit = task.visit(local, budget);
        assert!(visit.items <= budget.items.max(1));
        visit.moved > 0
    }

    /// Ends what visits have begun.
    pub fn settle(&self, local: &mut Local) {
        self.tasks.lock().unwrap().iter_mut().for_each(|task| task.settle(local));
    }
}

impl Scheduler for Hand {
    fn serve_queue(self: Arc<Self>, handle: QueueHandle) -> Recall {
        self.tasks.lock().unwrap().push(handle.task());
        // They stay until all of it ends.
        Box::new(|| ())
    }

    fn patience(&self) -> Duration {
        self.patience
    }
}
