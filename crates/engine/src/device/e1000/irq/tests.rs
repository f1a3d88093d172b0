//! Moderation on a clock that the tests turn by hand: units and meaning of ITR, EITR, RDTR, RADV, TIDV and
//! TADV (8254x SDM §13.4.18, §13.4.30–31, §13.4.44; 82574 §7.4.4), the operator's floor, and what is never
//! delayed.

#![allow(clippy::cast_possible_truncation)]

use rustix::event::{eventfd, EventfdFlags};

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::device::e1000::config::FLOOR;
use crate::device::moderation::{Clock, BURST};

/// One microsecond.
const US: u64 = 1_000;

struct Rig {
    irq: Irq,
}

impl Rig {
    /// A device whose driver has unmasked everything, with messages for the 82574.
    fn new(model: Model, floor: Duration) -> Rig {
        let interrupts = Interrupts::new(true, 1, 5, &crate::mem::Overrun::default());
        let event = || Some(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap());
        interrupts.set_trigger(crate::device::pci::Index::Intx, 0, event());
        for number in 0..5 {
            interrupts.set_trigger(crate::device::pci::Index::Msix, number, event());
        }
        if model == Model::E1000e {
            interrupts.set_mode(Mode::Msix);
        }
        let mut irq = Irq::new(model, interrupts, floor, 100).unwrap();
        irq.alarm.clock = Clock::Manual(AtomicU64::new(1 << 40));
        irq.write(regs::IVAR, 0x000a_0908);
        irq.write(regs::EIAC, RXQ0 | TXQ0);
        irq.write(regs::CTRL_EXT, CTRL_EXT_IAME);
        irq.write(regs::IMS, RXT0 | TXDW | RXQ0 | TXQ0 | OTHER | regs::LSC | regs::RXO);
        Rig { irq }
    }

    fn turn(&self, ns: u64) {
        let Clock::Manual(now) = &self.irq.alarm.clock else { unreachable!() };
        now.fetch_add(ns, Ordering::Relaxed);
    }

    /// A driver that reads the causes, ends the interrupt, and asks for the next one.
    fn acknowledge(&self) -> u32 {
        let causes = self.irq.read(regs::ICR);
        self.irq.interrupts.unmask();
        self.irq.write(regs::IMS, RXQ0);
        causes
    }

    fn raise(&self, cause: u32) -> bool {
        self.irq.raise(cause, 0, Delay::None) > 0
    }

    fn poll(&self) -> bool {
        self.irq.poll() > 0
    }

    /// When something comes up if nothing more happens.
    fn due(&self) -> Option<u64> {
        self.irq.alarm.due_in().map(|due| due.as_nanos() as u64)
    }

    /// Interrupts that a cause every `step` brings in `time`, each acknowledged at once.
    fn storm(&self, cause: u32, step: u64, time: u64) -> u64 {
        let mut count = 0;
        for _ in 0..time / step {
            let came = self.irq.poll() + self.irq.raise(cause, 0, Delay::None);
            count += came;
            if came > 0 {
                self.acknowledge();
            }
            self.turn(step);
        }
        count
    }

    /// Long enough for every gate to have been quiet.
    fn rest(&self) {
        self.turn(1_000_000 * US);
        while self.poll() {
            self.acknowledge();
        }
        self.acknowledge();
        self.turn(1_000_000 * US);
    }
}

#[test]
fn itr_is_in_units_of_256_ns() {
    for itr in [100u32, 250, 500] {
        let rig = Rig::new(Model::E1000, Duration::ZERO);
        rig.irq.write(regs::ITR, itr);
        let gap = u64::from(itr) * 256;
        let even = 100_000 * US / gap;
        let count = rig.storm(RXT0, US, 100_000 * US);
        // Whatever the burst was at first; and no less than the driver asked for, but for the step.
        assert!(count <= even + BURST + 1 && count >= even * 98 / 100, "itr={itr}: {count} of {even}");
    }
}

#[test]
fn a_change_of_the_link_is_told_once() {
    let rig = Rig::new(Model::E1000e, FLOOR);
    // As Linux has it: no masks by themselves (82574 §10.2.4.1).
    rig.irq.write(regs::CTRL_EXT, CTRL_EXT_EIAME);
    rig.irq.write(regs::EIAC, RXQ0 | TXQ0 | OTHER);
    assert!(rig.raise(regs::LSC));
    assert_ne!(rig.irq.read(regs::ICR) & regs::LSC, 0);
    rig.irq.write(regs::IMS, OTHER);
    // What comes later is no news of the link.
    assert!(rig.raise(regs::RXO));
    assert_eq!(rig.irq.read(regs::ICR) & (regs::LSC | regs::RXO), regs::RXO);
    // Without an interrupt, reading changes nothing.
    rig.irq.write(regs::IMC, regs::LSC);
    rig.raise(regs::LSC);
    assert_eq!([0; 2].map(|_: u32| rig.irq.read(regs::ICR) & regs::LSC), [regs::LSC; 2]);
}

#[test]
fn each_message_has_its_own_eitr() {
    let rig = Rig::new(Model::E1000e, Duration::ZERO);
    rig.irq.write(regs::EITR0, 500);
    let even = 50_000 * US / (500 * 256);
    let receive = rig.storm(RXQ0, US, 50_000 * US);
    assert!(receive <= even + BURST + 1, "{receive} of {even}");
    // EITR1 is not set, and the operator set no floor.
    assert_eq!(rig.storm(TXQ0, US, 1_000 * US), 1_000);
    assert_eq!(rig.irq.passed(TXQ0), InterruptCount { raised: 1_000, ..InterruptCount::default() });
    let passed = rig.irq.passed(RXQ0);
    assert_eq!(passed.raised, receive);
    // All but those that came through themselves; an interrupt by the deadline is of causes that waited.
    assert!((50_000 - receive..50_000).contains(&passed.held_back), "{passed:?}");
}

#[test]
fn the_floor_holds_for_a_driver_that_sets_none_and_can_be_turned_off() {
    let time = 10_000 * US;
    for (floor, least, most) in [(0, 10_000, 10_000), (8, 300, 1_250), (100, 24, 100)] {
        let rig = Rig::new(Model::E1000, Duration::from_micros(floor));
        let count = rig.storm(RXT0, US, time);
        assert!((least..=most + BURST).contains(&count), "floor={floor}: {count}");
        // It grows while interrupts keep having to wait, and shrinks in a quiet time.
        rig.rest();
        let again = rig.storm(RXT0, US, 100 * US);
        assert!(again >= (100 / floor.max(1)).min(100), "floor={floor}: {again} in 100 µs");
    }
}

#[test]
fn a_ping_is_never_delayed() {
    for (model, cause) in [(Model::E1000, RXT0), (Model::E1000e, RXQ0)] {
        let rig = Rig::new(model, FLOOR);
        rig.irq.write(regs::ITR, 500);
        rig.irq.write(regs::EITR0, 500);
        for _ in 0..100 {
            // The request's completion, the reply, and something else shortly after: each at once.
            for cause in [if model == Model::E1000 { TXDW } else { TXQ0 }, cause, cause] {
                assert!(rig.raise(cause));
                rig.acknowledge();
                rig.turn(3 * US);
            }
            rig.turn(1_000 * US);
        }
        assert_eq!(rig.irq.passed(RXQ0).held_back, 0);
    }
}

#[test]
fn what_was_held_back_comes_when_the_gate_opens() {
    let rig = Rig::new(Model::E1000, Duration::ZERO);
    rig.irq.write(regs::ITR, 250);
    for _ in 0..BURST {
        assert!(rig.raise(RXT0));
        rig.acknowledge();
    }
    assert!(!rig.raise(RXT0) && !rig.raise(TXDW));
    assert_eq!(rig.due(), Some(64 * US));
    rig.turn(64 * US - 1);
    assert!(!rig.poll());
    rig.turn(1);
    assert!(rig.poll(), "both causes at once");
    assert_eq!(rig.acknowledge() & (RXT0 | TXDW), RXT0 | TXDW);
    assert_eq!(rig.due(), None);
    assert_eq!(rig.irq.passed(RXQ0), InterruptCount { raised: BURST + 1, held_back: 2, saved: 0 });
}

#[test]
fn rdtr_waits_for_silence_and_radv_for_no_longer() {
    let rig = Rig::new(Model::E1000, Duration::ZERO);
    let packet = |rdtr, radv| rig.irq.raise(0, RXT0, Delay::Receive(rdtr, radv)) > 0;
    // RDTR=0: at once, whatever RADV says.
    assert!(packet(0, 8));
    rig.rest();
    // Units of 1.024 µs, begun anew by each packet.
    assert!(!packet(10, 0));
    assert_eq!(rig.due(), Some(10_240));
    rig.turn(9 * US);
    assert!(!packet(10, 0));
    assert_eq!(rig.due(), Some(10_240));
    rig.turn(10_240);
    assert!(rig.poll());
    rig.rest();
    // RADV counts from the first of them.
    for n in 0..5 {
        assert!(!packet(10, 32), "packet {n}");
        assert_eq!(rig.due(), Some((32 * 1_024 - n * 7 * US).min(10_240)));
        rig.turn(7 * US);
    }
    assert!(rig.poll(), "35 µs after the first");
    rig.rest();
    // Bit 31 flushes on silicon; nothing is held back here that it could flush, and it is no part of the
    // time.
    assert!(!packet(1 << 31 | 10, 0));
    assert_eq!(rig.due(), Some(10_240));
}

#[test]
fn tidv_and_tadv_delay_only_what_asks_for_it() {
    let rig = Rig::new(Model::E1000, Duration::ZERO);
    let delay = Delay::Transmit(8, 32);
    assert_eq!(rig.irq.raise(0, TXDW, delay), 0, "IDE");
    assert_eq!(rig.due(), Some(8 * 1_024));
    // Without IDE at once, and what was delayed comes along.
    assert_eq!(rig.irq.raise(TXDW, 0, delay), 1);
    assert_eq!(rig.due(), None);
    rig.rest();
    assert_eq!(rig.irq.raise(0, TXDW, delay), 0);
    assert!(rig.raise(regs::LSC), "the link waits for nobody");
    assert_eq!(rig.acknowledge() & (TXDW | regs::LSC), TXDW | regs::LSC);
    rig.rest();
    // With messages of their own, receive causes are not delayed; reports of sent frames are, by us.
    let rig = Rig::new(Model::E1000e, Duration::ZERO);
    assert_eq!(rig.irq.raise(0, TXQ0, delay), 0);
    assert_eq!(rig.irq.raise(0, RXQ0, Delay::Receive(100, 100)), 1);
    assert_eq!(rig.due(), Some(8 * 1_024), "a receive cause takes nothing along");
    rig.turn(8 * 1_024);
    assert!(rig.poll());
}

#[test]
fn a_report_that_nobody_has_asked_for_does_not_wait() {
    let rig = Rig::new(Model::E1000, Duration::ZERO);
    rig.irq.reset();
    let delay = Delay::Transmit(8, 32);
    assert_eq!(rig.irq.raise(0, TXDW, delay), 0);
    assert_eq!(
        (rig.due(), rig.irq.read(regs::ICR) & TXDW),
        (None, TXDW),
        "a driver that polls sees it at once"
    );
    // One that masks it for a while has it delayed all the same.
    rig.irq.write(regs::IMS, TXDW);
    rig.irq.write(regs::IMC, TXDW);
    assert_eq!(rig.irq.raise(0, TXDW, delay), 0);
    assert_eq!((rig.due(), rig.irq.read(regs::ICR) & TXDW), (Some(8 * 1_024), 0));
}

#[test]
fn link_changes_and_overruns_are_throttled_by_itr_too() {
    let rig = Rig::new(Model::E1000, Duration::ZERO);
    rig.irq.write(regs::ITR, 1_000);
    let count = rig.storm(regs::RXO, US, 10_000 * US);
    assert!(count <= 10_000 * US / 256_000 + BURST + 1, "{count}");
}

#[test]
fn a_receive_message_waits_for_ims_but_not_for_ever() {
    let rig = Rig::new(Model::E1000e, Duration::ZERO);
    assert!(rig.raise(RXQ0));
    rig.turn(US);
    assert!(!rig.raise(RXQ0), "the driver polls");
    rig.turn(LONGEST_HOLD);
    assert!(rig.poll());
    assert_eq!(
        rig.irq.passed(RXQ0),
        InterruptCount { raised: 2, ..InterruptCount::default() },
        "that was the driver, not a gate"
    );
}

/// A rig whose guest may spend half of its time on receive interrupts.
fn shared_rig(model: Model) -> Rig {
    let mut rig = Rig::new(model, Duration::ZERO);
    rig.irq.beside.services.share = 50;
    rig
}

#[test]
fn a_guest_that_was_overloaded_has_its_time_for_the_rest() {
    for (model, cause) in [(Model::E1000, RXT0), (Model::E1000e, RXQ0)] {
        for overloaded in [false, true] {
            let rig = shared_rig(model);
            let serve = |overloaded| {
                assert!(rig.raise(cause));
                rig.irq.read(regs::ICR);
                rig.irq.write(regs::IMC, u32::MAX);
                let service = rig.irq.service(0);
                assert!(service.is_some());
                rig.turn(100 * US);
                if overloaded {
                    rig.irq.overloaded(0);
                }
                rig.irq.interrupts.unmask();
                rig.irq.write(regs::IMS, cause);
                assert_eq!(rig.irq.service(0), None);
                service
            };
            let first = serve(overloaded);
            assert_eq!(rig.raise(cause), !overloaded);
            if overloaded {
                assert_eq!(rig.due(), Some(100 * US));
                rig.turn(100 * US);
                assert!(rig.poll());
            }
            // One that kept up is not delayed, however long it took; and each service is another.
            rig.irq.read(regs::ICR);
            rig.irq.write(regs::IMC, u32::MAX);
            rig.irq.interrupts.unmask();
            rig.irq.write(regs::IMS, cause);
            assert_ne!(serve(false), first);
            assert!(rig.raise(cause));
        }
    }
}

#[test]
fn a_service_that_nobody_ends_ends_by_itself_and_a_driver_that_polls_has_none() {
    let rig = shared_rig(Model::E1000);
    assert!(rig.raise(RXT0));
    rig.irq.write(regs::IMC, u32::MAX);
    assert!(rig.irq.service(0).is_some());
    assert_eq!(rig.due(), Some(LONGEST_HOLD));
    rig.turn(LONGEST_HOLD);
    rig.poll();
    assert_eq!(rig.irq.service(0), None);
    let rig = shared_rig(Model::E1000);
    rig.irq.write(regs::IMC, u32::MAX);
    rig.raise(RXT0);
    rig.irq.write(regs::IMC, u32::MAX);
    assert_eq!(rig.irq.service(0), None, "it has never enabled the cause");
    // Without a share nothing is counted.
    let rig = Rig::new(Model::E1000, Duration::ZERO);
    assert!(rig.raise(RXT0));
    rig.irq.write(regs::IMC, u32::MAX);
    assert_eq!(rig.irq.service(0), None);
}

#[test]
fn interrupts_that_an_access_brings_are_counted() {
    for model in [Model::E1000, Model::E1000e] {
        let rig = Rig::new(model, Duration::ZERO);
        let (cause, mask) = if model == Model::E1000 { (RXT0, RXT0) } else { (RXQ0, RXQ0) };
        rig.acknowledge();
        rig.irq.alarm.noted();
        rig.irq.write(regs::IMC, mask);
        assert!(!rig.raise(cause), "masked");
        let before = rig.irq.passed(cause).raised;
        rig.irq.write(regs::IMS, mask);
        assert_eq!(rig.irq.passed(cause).raised, before + 1);
        assert_eq!((rig.irq.alarm.noted(), rig.irq.alarm.noted()), (1, 0));
    }
}
