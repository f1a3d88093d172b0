//! What one core needs to hand frames from switches to routers on them, and back (`crossing`): all memory is there from the start.

use std::time::Instant;

use crate::frame::{Batch, MAX_BATCH};
use crate::port::PortId;
use crate::router::Desk;
use crate::switch::Verdicts;

use sidecore_abi::counters::MAX_PORTS;

/// Routers that a frame passes within one visit, at most.
pub(super) const PASSAGES: usize = 16;

/// Whoever has it is on the way through a gateway.
pub(super) struct Crossing {
    pub epoch: Instant,
    /// The port whose frames are on their way: it is charged for all that they cause, at whichever router.
    pub origin: PortId,
    /// What enters a router.
    pub entering: Pass,
    pub desk: Desk,
    /// What leaves it for a switch.
    pub leaving: Pass,
    /// The lobby that nobody comes to at the moment; none while its frames enter their routers.
    pub lobby: Option<Box<Lobby>>,
}

impl Crossing {
    pub fn new(epoch: Instant) -> Crossing {
        let desk = Desk::for_passages(PASSAGES);
        let lobby = Some(Box::new(Lobby::new()));
        let origin = PortId(u16::MAX);
        Crossing { epoch, origin, entering: Pass::new(), desk, leaving: Pass::new(), lobby }
    }
}

/// Frames that wait until their next router can be entered: when those before them have left theirs.
pub(super) struct Lobby {
    halls: [Hall; HALLS],
}

/// Two batches: all frames of a full one may go on from router to router, and what the routers say comes behind them.
const HALLS: usize = 2;

/// A batch of them, and of each frame the gateway that it came to.
pub(super) struct Hall {
    pub batch: Batch,
    pub gates: Vec<PortId>,
    /// Scratch memory.
    pub picks: Vec<u16>,
}

impl Lobby {
    pub fn new() -> Lobby {
        let hall = || Hall {
            batch: Batch::new(),
            gates: Vec::with_capacity(MAX_BATCH),
            picks: Vec::with_capacity(MAX_BATCH),
        };
        Lobby { halls: std::array::from_fn(|_| hall()) }
    }

    pub fn is_empty(&self) -> bool {
        self.halls.iter().all(|hall| hall.gates.is_empty())
    }

    pub fn clear(&mut self) {
        for hall in &mut self.halls {
            hall.batch.clear();
            hall.gates.clear();
        }
    }

    /// Takes frame `pick` of `from`, which came to gateway `at`. False: there is no room.
    pub fn take(&mut self, from: &Batch, pick: u16, at: PortId) -> bool {
        let frame = from.frame(pick);
        let body = from.body(frame);
        // Nobody gets ahead of those before, whatever room they left.
        let last = self.halls.iter().rposition(|hall| !hall.gates.is_empty()).unwrap_or(0);
        for hall in self.halls.iter_mut().skip(last) {
            if hall.batch.push_described(frame, body) {
                hall.gates.push(at);
                return true;
            }
        }
        false
    }

    pub fn halls(&mut self) -> &mut [Hall] {
        &mut self.halls
    }
}

/// A batch on its way, and scratch memory in place of that which the batch that it came from uses.
pub(super) struct Pass {
    pub batch: Batch,
    pub verdicts: Verdicts,
    pub picks: Vec<u16>,
    pub others: Vec<PortId>,
    pub floods: Vec<u16>,
}

impl Pass {
    fn new() -> Pass {
        Pass {
            batch: Batch::new(),
            verdicts: Verdicts::new(),
            picks: Vec::with_capacity(MAX_BATCH),
            others: Vec::with_capacity(MAX_PORTS),
            floods: Vec::with_capacity(MAX_BATCH),
        }
    }

    /// Takes `picks` of `from`, and no verdicts on them. How many frames had no room for their pieces, and how many bytes the others have.
    pub fn take(&mut self, from: &Batch, picks: &[u16]) -> (usize, u64) {
        self.batch.clear();
        self.verdicts.clear();
        let (mut left, mut bytes) = (0, 0);
        for pick in picks {
            let frame = from.frame(*pick);
            match self.batch.push_described(frame, from.body(frame)) {
                true => bytes += u64::from(frame.len),
                false => left += 1,
            }
        }
        (left, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Arena;

    #[test]
    fn a_lobby_keeps_the_order_and_has_an_end() {
        let at = PortId(1);
        let mut memory = Arena::new(1, 200);
        let piece = memory.put(0, &[7; 200], 0);
        let mut batch = Batch::new();
        assert!(batch.push_short(&[0; 60]));
        let (frame, pieces) = batch.next_frame().unwrap();
        (frame.len, frame.piece, frame.pieces) = (64 + 200, 0, 1);
        assert!(pieces.push(piece));
        batch.commit();
        let mut lobby = Lobby::new();
        assert!(lobby.is_empty());
        for n in 0..HALLS * MAX_BATCH {
            assert!(lobby.take(&batch, u16::from(n % 2 == 1), at), "{n}");
        }
        assert!(!lobby.take(&batch, 0, at));
        for hall in lobby.halls() {
            assert_eq!((hall.batch.len(), hall.gates.len()), (MAX_BATCH, MAX_BATCH));
            let lens: Vec<u32> = hall.batch.frames().iter().map(|frame| frame.len).collect();
            assert!(lens.chunks(2).all(|two| two == [60, 264]));
            assert_eq!(hall.batch.body(hall.batch.frame(1)).len(), 1);
        }
        lobby.clear();
        assert!(lobby.is_empty());
        // One that finds no room in the first batch is not overtaken by those behind it.
        let (many, pieces) = batch.next_frame().unwrap();
        (many.len, many.piece, many.pieces) = (64 + 256, u32::try_from(pieces.len()).unwrap(), 256);
        assert!((0..256).all(|_| pieces.push(piece.first(1))));
        batch.commit();
        let mut first = 0;
        while lobby.halls()[1].gates.is_empty() {
            assert!(lobby.take(&batch, 2, at));
            first += 1;
        }
        assert!(first < MAX_BATCH);
        assert!(lobby.take(&batch, 0, at));
        assert_eq!(lobby.halls().iter().map(|hall| hall.batch.len()).collect::<Vec<_>>(), [first - 1, 2]);
    }
}
