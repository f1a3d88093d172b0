//! The work list: frames that came to a gateway, until the walk takes them to the next node.

use crate::packet::{Batch, Picked, MAX_BATCH};
use crate::port::PortId;

/// Batches of a round. All frames of a full one may go on from node to node, and what routers say comes
/// behind them; a flood comes to several gateways.
const BATCHES: usize = 4;

/// Frames of one round, in their order.
pub(super) struct Stage {
    waiting: [Waiting; BATCHES],
    /// For the frames of one stop, where those of a batch wait at several.
    sorted: Batch,
}

/// Where a frame waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stop {
    /// The gateway that it came to.
    pub gateway: PortId,
    /// Whether it enters the gateway's router, or leaves it.
    pub enters: bool,
    /// Routers that it has passed.
    pub passed: u8,
}

/// A batch of waiting frames, and where each frame waits.
struct Waiting {
    batch: Batch,
    stops: Vec<Stop>,
}

impl Stage {
    pub fn new() -> Stage {
        let waiting = || Waiting { batch: Batch::new(), stops: Vec::with_capacity(MAX_BATCH) };
        Stage { waiting: std::array::from_fn(|_| waiting()), sorted: Batch::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.waiting[0].stops.is_empty()
    }

    /// Takes `picked` frames, which wait at `stop`. Returns those that it has no room for.
    pub fn take<'p>(&mut self, Picked { batch: from, picks }: Picked<'p>, stop: Stop) -> &'p [u16] {
        // No frame gets ahead of those before it, whatever room they left.
        let mut last = self.waiting.iter().rposition(|waiting| !waiting.stops.is_empty()).unwrap_or(0);
        for (n, pick) in picks.iter().enumerate() {
            let frame = from.frame(*pick);
            let body = from.body(frame);
            while let Some(waiting) = self.waiting.get_mut(last) {
                if waiting.batch.push_described(frame, body) {
                    waiting.stops.push(stop);
                    break;
                }
                last += 1;
            }
            if last == BATCHES {
                return picks.get(n..).unwrap_or_default();
            }
        }
        &[]
    }

    /// Calls `go` with each stop and a batch of its frames, and is empty then.
    pub fn each(&mut self, mut go: impl FnMut(Stop, &mut Batch)) {
        let Stage { waiting, sorted } = self;
        for Waiting { batch, stops } in waiting {
            match stops.first() {
                None => {}
                Some(first) if stops.iter().all(|stop| stop == first) => go(*first, batch),
                Some(_) => {
                    for (n, stop) in stops.iter().enumerate() {
                        if stops.iter().take(n).any(|before| before == stop) {
                            continue;
                        }
                        sorted.clear();
                        for (frame, _) in batch.frames().iter().zip(&*stops).filter(|(_, at)| *at == stop) {
                            // What fits into the one batch fits into the other.
                            sorted.push_described(frame, batch.body(frame));
                        }
                        go(*stop, sorted);
                    }
                }
            }
            batch.clear();
            stops.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Arena;

    /// What a stage has: for each stop, and so each batch of it, the lengths of its frames.
    fn all(stage: &mut Stage) -> Vec<(u16, Vec<u32>)> {
        let mut got = Vec::new();
        stage.each(|stop, batch| {
            got.push((stop.gateway.0, batch.frames().iter().map(|frame| frame.len).collect()))
        });
        got
    }

    #[test]
    fn a_stage_keeps_the_order_of_each_gateway_and_has_an_end() {
        let stop = |gateway| Stop { gateway: PortId(gateway), enters: true, passed: 0 };
        let (one, other) = (stop(1), stop(2));
        let mut memory = Arena::new(1, 256);
        let piece = memory.put(0, &[7; 200], 0);
        let mut batch = Batch::new();
        assert!(batch.push_short(&[0; 60]));
        let (frame, pieces) = batch.next_frame().unwrap();
        (frame.len, frame.piece, frame.pieces) = (64 + 200, 0, 1);
        assert!(pieces.push(piece));
        batch.commit();
        let mut stage = Stage::new();
        assert!(stage.is_empty());
        assert!(
            stage.take(batch.only(&[0, 1, 1]), one).is_empty()
                && stage.take(batch.only(&[1, 0]), other).is_empty()
        );
        assert!(stage.take(batch.only(&[0]), one).is_empty() && !stage.is_empty());
        assert_eq!(all(&mut stage), [(1, vec![60, 264, 264, 60]), (2, vec![264, 60])]);
        assert!(stage.is_empty());
        for n in 0..BATCHES * MAX_BATCH / 2 {
            assert!(stage.take(batch.only(&[0, 1]), one).is_empty(), "{n}");
        }
        assert_eq!(stage.take(batch.only(&[1, 0, 1]), one), [1, 0, 1]);
        assert_eq!(all(&mut stage).len(), BATCHES);
        // One that finds no room in a batch is not overtaken by those behind it.
        let (many, pieces) = batch.next_frame().unwrap();
        (many.len, many.piece, many.pieces) = (64 + 256, u32::try_from(pieces.len()).unwrap(), 256);
        assert!((0..256).all(|_| pieces.push(piece.first(1))));
        batch.commit();
        let mut first = 0;
        while stage.waiting[1].stops.is_empty() {
            assert!(stage.take(batch.only(&[2]), one).is_empty());
            first += 1;
        }
        assert!(first < MAX_BATCH && stage.take(batch.only(&[0]), one).is_empty());
        let lens: Vec<usize> = all(&mut stage).iter().map(|(_, lens)| lens.len()).collect();
        assert_eq!(lens, [first - 1, 2]);
    }
}
