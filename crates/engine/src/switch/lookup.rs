//! How a switch finds the destination of a frame: its lookup function, replaceable per switch, as mSwitch
//! has it. Chosen once a batch, never per frame.

use std::sync::Arc;

use super::program::{Answer, Program};
use super::verdict::Verdicts;
use crate::frame::{is_group, Batch};
use crate::port::{DropReason, Port, PortId};
use crate::wire::flow_hash;

/// A lookup function.
#[derive(Clone, Debug, Default)]
pub enum Lookup {
    /// By the addresses that were seen: a learning switch.
    #[default]
    Learning,
    /// By a hash of the flow: it spreads flows over the other ports.
    PortHash,
    /// By a program of the operator's.
    Program(Arc<Program>),
}

/// The ports of a switch, as a lookup function sees them.
pub struct Members<'a, F: Fn(PortId) -> bool> {
    /// All of them, in the order of their names.
    pub ports: &'a [PortId],
    /// Whether a port has its link up.
    pub is_up: F,
}

/// Spreads flows over the other ports that are up. A flow stays with its port; if that goes, its flows, and
/// only these, go to the next one. Group addresses are flooded.
pub(super) fn port_hash<F: Fn(PortId) -> bool>(
    batch: &Batch,
    from: &Port,
    members: &Members<'_, F>,
    verdicts: &mut Verdicts,
) {
    let ports = members.ports;
    for (i, frame) in batch.frames().iter().enumerate() {
        if from.is_too_long(frame) {
            verdicts.drop(i, DropReason::TooLong);
        } else if is_group(frame.dst()) {
            verdicts.flood(i);
        } else {
            let hash = flow_hash(frame.head()) as usize;
            // The high bits count: multiplied instead of divided.
            let first = (hash * ports.len()) >> 32;
            let turn = ports.iter().cycle().skip(first).take(ports.len());
            match turn.copied().find(|&port| port != from.id && (members.is_up)(port)) {
                Some(port) => verdicts.send(i, port),
                None => verdicts.drop(i, DropReason::NoDestination),
            }
        }
    }
}

/// Asks `program` about each frame.
pub(super) fn ask<F: Fn(PortId) -> bool>(
    program: &Arc<Program>,
    batch: &Batch,
    from: &Port,
    members: &Members<'_, F>,
    verdicts: &mut Verdicts,
) {
    program.run(|runner| {
        for (i, frame) in batch.frames().iter().enumerate() {
            if from.is_too_long(frame) {
                verdicts.drop(i, DropReason::TooLong);
                continue;
            }
            match runner.ask(from.id, frame) {
                Answer::To(port) if port == from.id => verdicts.drop(i, DropReason::Hairpin),
                Answer::To(port) if members.ports.contains(&port) => verdicts.send(i, port),
                Answer::To(_) => verdicts.drop(i, DropReason::NoDestination),
                Answer::Everybody => verdicts.flood(i),
                Answer::Drop => verdicts.drop(i, DropReason::LookupDrop),
                Answer::OutOfBudget => verdicts.drop(i, DropReason::LookupBudget),
                Answer::Fault => verdicts.drop(i, DropReason::LookupFault),
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::CounterFile;
    use crate::policy::Rules;
    use crate::port::DEFAULT_MTU;
    use crate::switch::{Switch, SwitchOptions};
    use proptest::prelude::*;

    fn port(number: u16) -> Port {
        let file = CounterFile::anonymous().unwrap();
        Port::new(PortId(number), "p", file.open_slot(PortId(number), "p"), DEFAULT_MTU).unwrap()
    }

    /// A datagram of the flow with that number.
    fn datagram(flow: u16) -> Vec<u8> {
        let mut bytes = vec![2; 64];
        bytes[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
        bytes[20..24].copy_from_slice(&[0, 0, 64, 17]);
        bytes[34..36].copy_from_slice(&flow.to_be_bytes());
        bytes
    }

    /// Where each frame of a batch goes: to one port, to all (254), or nowhere (255).
    fn ways(lookup: Lookup, frames: &[Vec<u8>], ports: &[PortId], up: impl Fn(PortId) -> bool) -> Vec<u16> {
        let switch = Switch::with_lookup("lan", SwitchOptions::default(), lookup);
        let mut batch = Batch::new();
        assert!(frames.iter().all(|bytes| batch.push_short(bytes)));
        let mut verdicts = Verdicts::new();
        let members = Members { ports, is_up: up };
        switch.classify(&batch, &port(1), &Rules::default(), 1, &members, &mut verdicts);
        let mut way = vec![None; frames.len()];
        let mut note =
            |frame: u16, to| assert_eq!(way[usize::from(frame)].replace(to), None, "decided twice");
        let mut picks = Vec::new();
        for &to in verdicts.destinations() {
            verdicts.picks_alone(PortId(to), &mut picks);
            picks.iter().for_each(|&frame| note(frame, to));
        }
        verdicts.floods(&mut picks);
        picks.iter().for_each(|&frame| note(frame, 254));
        verdicts.drops().iter().for_each(|&(frame, _)| note(frame, 255));
        // The law of conservation: a verdict for every frame, and one only.
        way.into_iter().map(Option::unwrap).collect()
    }

    #[test]
    fn flows_spread_and_only_those_of_a_port_that_goes_move() {
        let ports: Vec<PortId> = (0..8).map(PortId).collect();
        let frames: Vec<_> = (0..250).map(datagram).collect();
        let all = ways(Lookup::PortHash, &frames, &ports, |_| true);
        assert_eq!(all, ways(Lookup::PortHash, &frames, &ports, |_| true), "a flow stays with its port");
        for to in (0..8).filter(|to| *to != 1) {
            let share = all.iter().filter(|way| **way == to).count();
            assert!(share > 8, "port {to} has {share} of 250 flows");
        }
        assert!(!all.contains(&1), "none goes back");
        let without = ways(Lookup::PortHash, &frames, &ports, |port| port != PortId(5));
        for (before, after) in all.iter().zip(&without) {
            assert!(if *before == 5 { *after != 5 } else { before == after });
        }
        assert!(ways(Lookup::PortHash, &frames, &ports, |port| port == PortId(1))
            .iter()
            .all(|way| *way == 255));
        let mut group = datagram(1);
        group[0] = 1;
        assert_eq!(ways(Lookup::PortHash, &[group], &ports, |_| true), [254]);
    }

    proptest! {
        /// Whatever a program answers: every frame gets one verdict, and only ports of the switch get frames.
        #[test]
        fn any_answer_is_a_verdict(answers in prop::collection::vec(any::<u32>().prop_map(|n| n % 12), 1..100)) {
            // It answers with the last four bytes of the head.
            let program = Program::assemble("ldxw r0, [r1+68]\nexit").unwrap();
            let frames: Vec<Vec<u8>> = answers.iter().map(|&answer| {
                let word = match answer { 10 => u32::MAX, 11 => u32::MAX - 1, n => n };
                let mut bytes = datagram(1);
                bytes[60..64].copy_from_slice(&word.to_le_bytes());
                bytes
            }).collect();
            let ports: Vec<PortId> = (0..8).map(PortId).collect();
            let ways = ways(Lookup::Program(Arc::new(program)), &frames, &ports, |_| true);
            for (answer, way) in answers.iter().zip(ways) {
                let expected = match *answer { 11 => 254, 1 | 8.. => 255, n => u16::try_from(n).unwrap() };
                prop_assert_eq!(way, expected);
            }
        }
    }
}
