//! Rings of requests: every shape of chain, any order of completion, both formats, against an oracle.

use std::collections::VecDeque;

use proptest::prelude::*;
use sidecore_abi::virtio::{DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE};
use sidecore_driver::queue::{Buf, Options, Table};
use sidecore_engine::mem::{Piece, MAX_BATCH};
use sidecore_engine::util::fault::Fault;
use sidecore_engine::virtq::{Queue, Request, Token};

use super::{config, pair, start, Pair};

const BUFFERS: usize = 64 * 1024;

fn requests(options: Options) -> Pair {
    let mut pair = pair(options);
    restart(&mut pair, options, start(options));
    pair
}

fn restart(pair: &mut Pair, options: Options, position: sidecore_engine::virtq::Position) {
    pair.device = Queue::requests(config(&pair.memory, &pair.parts, options, position)).unwrap();
}

fn any_options() -> impl Strategy<Value = Options> {
    (0u32..7, any::<bool>(), any::<bool>()).prop_map(|(log, packed, event_idx)| Options {
        entries: 4 << log,
        packed,
        event_idx,
        in_order: false,
    })
}

#[derive(Clone, Debug)]
enum Step {
    /// Lengths of the readable and of the writable buffers; in a table of its own.
    Add(Vec<u32>, Vec<u32>, bool),
    Pick(usize),
    /// One of those in flight.
    Finish(prop::sample::Index),
    Publish,
    Reap,
    /// The device starts anew, if nothing is in flight.
    Restart,
}

fn any_step() -> impl Strategy<Value = Step> {
    let lens = || prop::collection::vec(0u32..3000, 0..4);
    prop_oneof![
        6 => (lens(), lens(), any::<bool>()).prop_map(|(r, w, table)| Step::Add(r, w, table)),
        3 => (1usize..40).prop_map(Step::Pick),
        6 => any::<prop::sample::Index>().prop_map(Step::Finish),
        2 => Just(Step::Publish),
        2 => Just(Step::Reap),
        1 => Just(Step::Restart),
    ]
}

/// Where the ring should stand.
#[derive(Default)]
struct Oracle {
    offered: VecDeque<(u16, Vec<Buf>)>,
    flying: Vec<(Token, u16)>,
    finished: VecDeque<(u16, u32)>,
    visible: VecDeque<(u16, u32)>,
    number: u32,
}

impl Oracle {
    fn add(&mut self, pair: &mut Pair, tables: &[Table], buffers: usize, step: &Step) {
        let Step::Add(readable, writable, indirect) = step else { return };
        let mut at = buffers + self.number as usize * 977 % (BUFFERS / 2);
        self.number += 1;
        let mut buf = |len: &u32, write| {
            at += *len as usize;
            Buf { addr: pair.memory.gpa(at - *len as usize), len: *len, write }
        };
        let mut bufs: Vec<Buf> = readable.iter().map(|len| buf(len, false)).collect();
        bufs.extend(writable.iter().map(|len| buf(len, true)));
        let id = if *indirect {
            pair.driver.add_indirect(&tables[usize::from(pair.driver.next_free(0))], &bufs)
        } else {
            pair.driver.add(&bufs)
        };
        self.offered.extend(id.map(|id| (id, bufs)));
        pair.driver.publish();
    }

    fn pick(&mut self, pair: &mut Pair, want: usize) {
        pair.pieces.clear();
        let mut out = Vec::new();
        let picked = pair.device.pick(want, &mut pair.pieces, &mut out).unwrap();
        assert_eq!(picked, out.len());
        assert!(picked == want.min(self.offered.len()) || (pair.device.was_cut() && picked > 0));
        for request in out {
            let (id, bufs) = self.offered.pop_front().unwrap();
            check(pair, &request, &bufs);
            assert!(!self.flying.iter().any(|(token, _)| *token == request.token));
            self.flying.push((request.token, id));
        }
    }

    fn finish(&mut self, pair: &mut Pair, at: usize) {
        let (token, id) = self.flying.swap_remove(at);
        self.number += 1;
        pair.device.finish(token, self.number);
        self.finished.push_back((id, self.number));
    }

    fn publish(&mut self, pair: &mut Pair) {
        pair.device.publish();
        self.visible.append(&mut self.finished);
    }

    fn reap(&mut self, pair: &mut Pair) {
        let mut seen = VecDeque::new();
        pair.driver.reap(usize::MAX, |id, len| seen.push_back((id, len))).unwrap();
        assert_eq!(seen, std::mem::take(&mut self.visible));
    }
}

/// The pieces are the buffers that are not empty, in two halves.
fn check(pair: &Pair, request: &Request, bufs: &[Buf]) {
    let total = |write| bufs.iter().filter(|buf| buf.write == write).map(|buf| buf.len).sum::<u32>();
    assert_eq!((request.read_len, request.write_len), (total(false), total(true)));
    let count = usize::from(request.readable + request.writable);
    let pieces = pair.pieces.range(request.start as usize, count);
    let full: Vec<&Buf> = bufs.iter().filter(|buf| buf.len > 0).collect();
    assert_eq!(pieces.len(), full.len());
    for (i, (piece, buf)) in pieces.iter().zip(full).enumerate() {
        assert_eq!(buf.write, i >= request.readable.into());
        let mut bytes = vec![0; buf.len as usize];
        pair.memory.read((buf.addr - pair.memory.gpa(0)) as usize, &mut bytes);
        let mut seen = vec![0; piece.len()];
        piece.read(&mut seen);
        assert_eq!(seen, bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Requests of any shape come across whole and once, in the order in which they were offered; they are
    /// given back in the order in which they were finished, and only when that is published.
    #[test]
    fn requests_complete_in_any_order(
        options in any_options(),
        steps in prop::collection::vec(any_step(), 1..400),
    ) {
        let mut pair = requests(options);
        let buffers = pair.memory.alloc(BUFFERS, 64).unwrap();
        let pattern: Vec<u8> = (0..BUFFERS as u32 / 4).flat_map(|i| i.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
        pair.memory.write(buffers, &pattern);
        let tables: Vec<Table> = (0..options.entries).map(|_| Table::new(&pair.memory, 8).unwrap()).collect();
        let mut oracle = Oracle::default();
        for step in steps {
            match step {
                Step::Add(..) => oracle.add(&mut pair, &tables, buffers, &step),
                Step::Pick(want) => oracle.pick(&mut pair, want),
                Step::Finish(which) if !oracle.flying.is_empty() => {
                    let at = which.index(oracle.flying.len());
                    oracle.finish(&mut pair, at);
                }
                Step::Publish => oracle.publish(&mut pair),
                Step::Reap => oracle.reap(&mut pair),
                Step::Restart if oracle.flying.is_empty() && oracle.finished.is_empty() => {
                    let position = pair.device.position();
                    restart(&mut pair, options, position);
                }
                _ => {}
            }
            prop_assert_eq!(pair.device.in_flight(), oracle.flying.len());
            prop_assert_eq!(pair.device.is_empty(), oracle.offered.is_empty());
        }
        while !(oracle.offered.is_empty() && oracle.flying.is_empty()) {
            oracle.pick(&mut pair, MAX_BATCH);
            while !oracle.flying.is_empty() {
                oracle.finish(&mut pair, 0);
            }
        }
        oracle.publish(&mut pair);
        oracle.reap(&mut pair);
        prop_assert_eq!(pair.driver.room(), options.entries);
    }
}

fn both() -> impl Iterator<Item = Options> {
    [false, true].into_iter().flat_map(|packed| {
        [false, true].map(|event_idx| Options { entries: 8, packed, event_idx, in_order: false })
    })
}

fn offer(pair: &mut Pair, bufs: &[(u32, bool)]) -> Option<u16> {
    let addr = pair.memory.gpa(0x8000);
    let bufs: Vec<Buf> = bufs.iter().map(|(len, write)| Buf { addr, len: *len, write: *write }).collect();
    let id = pair.driver.add(&bufs);
    pair.driver.publish();
    id
}

fn pick(pair: &mut Pair) -> Result<Vec<Request>, Fault> {
    pair.pieces.clear();
    let mut out = Vec::new();
    pair.device.pick(MAX_BATCH, &mut pair.pieces, &mut out).map(|_| out)
}

/// §2.7.4.2: what the device reads stands before what it writes.
#[test]
fn a_chain_that_mixes_is_a_fault() {
    for options in both() {
        let mut pair = requests(options);
        offer(&mut pair, &[(16, false), (512, true), (1, true)]);
        offer(&mut pair, &[(16, false), (512, true), (512, false), (1, true)]);
        assert_eq!(pick(&mut pair).unwrap().len(), 1, "the good one first");
        assert_eq!(pick(&mut pair).unwrap_err(), Fault::WrongDirection);
    }
}

/// A request that is in flight, or finished and not visible yet, cannot be offered again.
#[test]
fn a_request_in_flight_is_not_taken_again() {
    for options in both() {
        for finished in [false, true] {
            let mut pair = requests(options);
            offer(&mut pair, &[(16, false), (1, true)]);
            let token = pick(&mut pair).unwrap()[0].token;
            if finished {
                pair.device.finish(token, 1);
            }
            // Another driver, which knows nothing of the first one's requests, uses the same ids.
            let mut other = sidecore_driver::queue::Queue::new(0, options, pair.parts.clone()).unwrap();
            std::mem::swap(&mut pair.driver, &mut other);
            offer(&mut pair, &[(16, false), (1, true)]);
            if options.packed {
                // It overwrote the one in flight; behind it stands its next one.
                offer(&mut pair, &[(16, false), (1, true)]);
                let desc = pair.parts.desc.offset();
                let mut bytes = [0; 64];
                pair.memory.read(desc, &mut bytes);
                bytes.copy_within(0..32, 32);
                pair.memory.write(desc, &bytes);
            } else {
                let avail = pair.parts.avail.offset();
                pair.memory.write(avail + 4, &[0, 0, 0, 0]);
                pair.memory.write(avail + 2, &2u16.to_le_bytes());
            }
            assert_eq!(pick(&mut pair).unwrap_err(), Fault::InFlightAlready, "{options:?} {finished}");
        }
    }
}

/// What is told late, twice, or of another life says nothing about the request that has the slot now.
#[test]
fn tokens_are_good_for_one_life() {
    for options in both() {
        let mut pair = requests(options);
        let mut tokens = Vec::new();
        for _ in 0..3 * options.entries {
            offer(&mut pair, &[(16, false), (1, true)]);
            let token = pick(&mut pair).unwrap()[0].token;
            assert!(!tokens.contains(&token));
            tokens.push(token);
            pair.device.finish(token, 1);
            pair.device.publish();
            assert_eq!(pair.driver.reap(9, |_, _| ()).unwrap(), 1);
        }
        assert_eq!(pair.device.in_flight(), 0);
    }
}

/// A full ring is picked whole, and nothing more, whatever the driver says.
#[test]
fn no_more_are_in_flight_than_there_are_entries() {
    for options in both() {
        let mut pair = requests(options);
        while offer(&mut pair, &[(16, false)]).is_some() {}
        let all = pick(&mut pair).unwrap();
        assert_eq!((all.len(), pair.device.in_flight()), (8, 8));
        assert!(pick(&mut pair).unwrap().is_empty());
        if options.packed {
            // The whole ring is made available for the next lap.
            for i in 0..8 {
                pair.memory.write(pair.parts.desc.offset() + 16 * i + 14, &(1u16 << 15).to_le_bytes());
            }
            assert!(pick(&mut pair).unwrap().is_empty());
        } else {
            pair.memory.write(pair.parts.avail.offset() + 2, &9u16.to_le_bytes());
            assert_eq!(pick(&mut pair).unwrap_err(), Fault::InFlightAlready);
            pair.memory.write(pair.parts.avail.offset() + 2, &17u16.to_le_bytes());
        }
        for request in all {
            pair.device.finish(request.token, 0);
        }
        pair.device.publish();
        assert_eq!(pair.device.in_flight(), 0);
    }
}

/// A list without room takes no request and breaks nothing; an empty one that no request fits into does.
#[test]
fn a_full_list_of_pieces_waits() {
    for options in both() {
        let mut pair = requests(options);
        offer(&mut pair, &[(16, false), (512, true), (1, true)]);
        let mut out = Vec::new();
        let mut small = sidecore_engine::mem::Pieces::new(4);
        for _ in 0..2 {
            assert!(small.push(Piece::EMPTY));
        }
        assert_eq!(pair.device.pick(9, &mut small, &mut out), Ok(0));
        assert_eq!(small.len(), 2);
        small.truncate(1);
        assert_eq!(pair.device.pick(9, &mut small, &mut out), Ok(1));
        assert_eq!((out[0].start, out[0].readable, out[0].writable), (1, 1, 2));
        offer(&mut pair, &[(16, false), (512, true), (1, true)]);
        assert_eq!(
            pair.device.pick(9, &mut sidecore_engine::mem::Pieces::new(2), &mut out),
            Err(Fault::ChainTooLong)
        );
    }
}

/// The driver is interrupted when something became visible and it asked for that.
#[test]
fn publishing_interrupts_who_asked() {
    use rustix::event::{eventfd, EventfdFlags};
    use sidecore_engine::mem::Signal;
    for options in both() {
        let mut pair = requests(options);
        let notifier = std::sync::Arc::new(Signal::default());
        notifier.set(Some(eventfd(0, EventfdFlags::NONBLOCK).unwrap()));
        let mut config = config(&pair.memory, &pair.parts, options, start(options));
        config.notifier = notifier;
        pair.device = Queue::requests(config).unwrap();
        for asks in [true, false, true] {
            offer(&mut pair, &[(16, false), (1, true)]);
            offer(&mut pair, &[(16, false), (1, true)]);
            pair.driver.set_interrupts(asks);
            let all = pick(&mut pair).unwrap();
            assert!(!pair.device.publish(), "nothing is finished");
            for request in all.iter().rev() {
                pair.device.finish(request.token, 1);
            }
            assert_eq!(pair.device.publish(), asks);
            assert!(!pair.device.publish());
            assert_eq!(pair.driver.reap(9, |_, _| ()).unwrap(), 2);
        }
    }
}

/// Both directions in one table; what the driver writes there later changes nothing.
#[test]
fn a_table_is_read_once() {
    for options in both() {
        let mut pair = requests(options);
        let table = Table::new(&pair.memory, 4).unwrap();
        let addr = pair.memory.gpa(0x8000);
        let bufs = [Buf { addr, len: 16, write: false }, Buf { addr: addr + 64, len: 512, write: true }];
        pair.driver.add_indirect(&table, &bufs).unwrap();
        pair.driver.publish();
        let request = pick(&mut pair).unwrap()[0];
        let all = DESC_F_INDIRECT | DESC_F_NEXT | DESC_F_WRITE;
        let at = (table.gpa() - pair.memory.gpa(0)) as usize;
        pair.memory.write(at, &[0xff; 64]);
        pair.memory.write(at + 12, &all.to_le_bytes());
        check(&pair, &request, &bufs);
        pair.device.finish(request.token, 512);
        pair.device.publish();
        assert_eq!(pair.driver.reap(9, |_, len| assert_eq!(len, 512)).unwrap(), 1);
    }
}
