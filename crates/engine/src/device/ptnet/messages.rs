//! A device's interrupts: a message for each ring, and how often.
//!
//! Theory of operation. A guest says in each ring's block whether it wants to be interrupted, and drivers
//! forget to take that back. So each message has a gate (`device::moderation`): a quiet one lets the next few
//! through at once, and then they are a gap apart. What had to wait is sent when the gate opens: the I/O core
//! that serves a pair's sending ring looks at the time whenever it polls, and is woken from a sleep that
//! would last longer.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::device::moderation::{self, Alarm, InterruptGate, NEVER};
use crate::device::pci::Interrupts;
use crate::port::InterruptCount;

/// A ring of a pair, by what its guest does there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingUse {
    Sends = 0,
    Receives = 1,
}

/// One message.
#[derive(Default)]
struct Message {
    gate: InterruptGate,
    /// It is due when the gate opens.
    waits: bool,
}

/// The messages of a pair of rings.
struct Pair {
    alarm: Alarm,
    messages: [Mutex<Message>; 2],
}

/// All of a device's.
pub(super) struct Messages {
    pub(super) interrupts: Arc<Interrupts>,
    gap: u64,
    pairs: Box<[Pair]>,
}

impl Messages {
    /// Those of `pairs` pairs of rings.
    pub(super) fn new(interrupts: Arc<Interrupts>, pairs: usize, gap: Duration) -> io::Result<Messages> {
        let pair = |_| Ok(Pair { alarm: Alarm::new()?, messages: Default::default() });
        Ok(Messages {
            interrupts,
            gap: moderation::gap(gap),
            pairs: (0..pairs).map(pair).collect::<io::Result<_>>()?,
        })
    }

    /// When interrupts of pair `number` are looked at again, and the core that sleeps meanwhile.
    pub(super) fn alarm(&self, number: usize) -> &Alarm {
        &self.pairs[number].alarm
    }

    /// The guest wants to hear of a ring. How many interrupts were sent.
    pub(super) fn raise(&self, number: usize, ring: RingUse) -> u64 {
        self.pass(number, ring, &mut crate::lock(&self.pairs[number].messages[ring as usize]), true)
    }

    /// Sends what has become due. Cheap when nothing has.
    #[inline]
    pub(super) fn poll(&self, number: usize) -> u64 {
        if !self.pairs[number].alarm.is_due() {
            return 0;
        }
        self.settle(number)
    }

    #[cold]
    fn settle(&self, number: usize) -> u64 {
        // An interrupt that has to wait from now on sets it again.
        self.pairs[number].alarm.set(NEVER);
        let mut sent = 0;
        for ring in [RingUse::Sends, RingUse::Receives] {
            let mut message = crate::lock(&self.pairs[number].messages[ring as usize]);
            if message.waits {
                sent += self.pass(number, ring, &mut message, false);
            }
        }
        sent
    }

    fn pass(&self, number: usize, ring: RingUse, message: &mut Message, news: bool) -> u64 {
        let Pair { alarm, .. } = &self.pairs[number];
        let passed = message.gate.pass(alarm.now(), 0, self.gap, news);
        message.waits = passed.is_err();
        match passed {
            Ok(()) => u64::from(self.interrupts.message(self.vector(number, ring))),
            Err(opens) => {
                alarm.lower(opens);
                0
            }
        }
    }

    /// Messages of rings on which the guest sends come first.
    fn vector(&self, number: usize, ring: RingUse) -> u16 {
        let number = if ring == RingUse::Sends { number } else { self.pairs.len() + number };
        u16::try_from(number).unwrap_or(u16::MAX)
    }

    /// Nothing is due any more.
    pub(super) fn reset(&self) {
        for pair in &self.pairs {
            pair.messages.iter().for_each(|message| crate::lock(message).waits = false);
        }
    }

    /// What was let through, and what was not.
    pub(super) fn passed(&self, number: usize, ring: RingUse) -> InterruptCount {
        crate::lock(&self.pairs[number].messages[ring as usize]).gate.passed
    }
}
