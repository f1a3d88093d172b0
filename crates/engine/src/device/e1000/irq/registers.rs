//! What the driver does to interrupts: the registers, each read and write an event (8254x SDM
//! §13.4.17–13.4.21; 82574 §10.2.4). And what happens to all of them at once: reset, and being saved and
//! taken over.

use super::super::regs::INT_ASSERTED;
use super::state::{IrqRegisters, IrqState};
use super::{
    regs, routed, Causes, Irq, Mode, Model, CTRL_EXT_IAME, OTHER, OTHER_CAUSES, QUEUES, RXQ0, RXQ1, RXT0,
    TXDW, TXQ0, TXQ1, VECTORS,
};

/// Words that are saved.
pub(in super::super) const SAVED: usize = 6 + VECTORS;

impl Irq {
    /// Whether `offset` is one of the registers kept here.
    pub(in super::super) fn owns(&self, offset: u32) -> bool {
        match offset {
            regs::ICR | regs::ITR | regs::ICS | regs::IMS | regs::IMC | regs::CTRL_EXT => true,
            regs::EIAC | regs::IAM | regs::IVAR => self.beside.model == Model::E1000e,
            _ => self.vector(offset).is_some(),
        }
    }

    fn vector(&self, offset: u32) -> Option<usize> {
        let index = (offset.checked_sub(regs::EITR0)? / 4) as usize;
        (self.beside.model == Model::E1000e && index < VECTORS).then_some(index)
    }

    /// The driver reads one of these registers.
    pub(in super::super) fn read(&self, offset: u32) -> u32 {
        let mut state = crate::lock(&self.state);
        let registers = &mut state.registers;
        match offset {
            regs::ICR => {
                let asserted = registers.icr & registers.ims != 0;
                let value = registers.icr | if asserted { INT_ASSERTED } else { 0 };
                if asserted && registers.ext & CTRL_EXT_IAME != 0 && self.beside.model == Model::E1000e {
                    registers.ims &= !registers.iam;
                }
                // With messages of their own, causes are cleared by reading only under these two conditions
                // (82574 §10.2.4.1). Linux relies on the first one without IAME: it never clears LSC
                // otherwise, and would look at its link whenever anything else happens.
                if !self.by_queue() || asserted || registers.ims == 0 {
                    registers.icr = 0;
                    state.unsent = 0;
                }
                self.changed(&mut state);
                value
            }
            regs::ICS => registers.icr,
            regs::IMS => registers.ims,
            regs::ITR => registers.itr,
            regs::EIAC => registers.eiac,
            regs::IAM => registers.iam,
            regs::IVAR => registers.ivar,
            regs::CTRL_EXT => registers.ext,
            _ => self.vector(offset).map_or(0, |vector| registers.eitr[vector]),
        }
    }

    /// The driver writes one of these registers.
    pub(in super::super) fn write(&self, offset: u32, value: u32) {
        let mut state = crate::lock(&self.state);
        let receive = if self.by_queue() { [RXQ0, RXQ1] } else { [RXT0, 0] };
        for queue in (0..QUEUES).filter(|queue| value & receive[*queue] != 0) {
            match offset {
                regs::IMS => self.end(&mut state, queue, self.alarm.now()),
                regs::IMC => self.begin(&mut state, queue, self.alarm.now()),
                _ => {}
            }
        }
        if offset == regs::IMS && self.floor != 0 {
            let causes = if self.by_queue() { [TXQ0, TXQ1] } else { [TXDW, TXDW] };
            for (queue, cause) in causes.into_iter().enumerate() {
                if value & cause != 0 {
                    self.answer(&mut state, queue, cause, self.alarm.now());
                }
            }
        }
        let registers = &mut state.registers;
        match offset {
            regs::ICR => {
                if self.beside.model == Model::E1000e
                    && registers.icr & registers.ims != 0
                    && registers.ext & CTRL_EXT_IAME != 0
                {
                    registers.ims &= !registers.iam;
                }
                // Windows clears everything that OTHER stands for by clearing OTHER.
                let others = if value & OTHER != 0 { OTHER_CAUSES } else { 0 };
                registers.icr &= !(value | others);
            }
            regs::ICS => state.set(value & !INT_ASSERTED),
            regs::IMS => {
                // A cause that was set while it was masked interrupts now.
                let unmasked = value & !registers.ims;
                registers.ims |= value & !INT_ASSERTED;
                state.wanted |= value;
                state.unsent |= unmasked & state.registers.icr;
                state.held &= !value;
            }
            regs::IMC => registers.ims &= !value,
            regs::ITR => registers.itr = value,
            regs::EIAC => registers.eiac = value,
            regs::IAM => registers.iam = value,
            regs::IVAR => registers.ivar = value,
            regs::CTRL_EXT => registers.ext = value & !regs::CTRL_EXT_EE_RST,
            _ => {
                if let Some(vector) = self.vector(offset) {
                    registers.eitr[vector] = value;
                }
            }
        }
        self.changed(&mut state);
    }

    /// The registers, to be saved. Causes are not among them: see [`resume`](Irq::resume).
    pub(in super::super) fn words(&self) -> [u32; SAVED] {
        let IrqRegisters { ims, iam, eiac, ivar, ext, itr, eitr, .. } = &crate::lock(&self.state).registers;
        let mut words = [0; SAVED];
        words[..6].copy_from_slice(&[*ims, *iam, *eiac, *ivar, *ext, *itr]);
        words[6..].copy_from_slice(eitr);
        words
    }

    /// Whether the driver was told that the link came or went, and has not looked.
    pub(in super::super) fn has_link_news(&self) -> bool {
        crate::lock(&self.state).registers.icr & regs::LSC != 0
    }

    /// Goes on for a device of another process, whose registers were `words`. Which causes were set then, and
    /// which interrupts were sent, is unknown: so all are set that frames have, and every message is sent. An
    /// interrupt for nothing is harmless, one that is missed is not. The link's is sent only for `news` of
    /// it: Linux's e1000e takes a link for down if it is told of it while it looks, and then resets the card.
    pub(in super::super) fn resume(&self, words: [u32; SAVED], news: bool) {
        let mut state = crate::lock(&self.state);
        let eitr = std::array::from_fn(|vector| words[6 + vector]);
        let [ims, iam, eiac, ivar, ext, itr, ..] = words;
        state.registers = IrqRegisters { icr: 0, ims, iam, eiac, ivar, ext, itr, eitr };
        // Whether it waits for reports of sent frames, too.
        state.wanted = ims | TXDW | TXQ0 | TXQ1;
        let by_queue = self.beside.model == Model::E1000e;
        let queues = if by_queue { RXQ0 | RXQ1 | TXQ0 | TXQ1 } else { 0 };
        let other = if by_queue && news { OTHER } else { 0 };
        state.set(TXDW | RXT0 | queues | other | if news { regs::LSC } else { 0 });
        match self.interrupts.mode() {
            Mode::Msix if by_queue => {
                for vector in (0..VECTORS).filter(|vector| routed(ivar, *vector) & (queues | other) != 0) {
                    #[expect(clippy::cast_possible_truncation, reason = "below VECTORS")]
                    self.interrupts.message(vector as u16);
                }
            }
            Mode::Msix | Mode::Msi => drop(self.interrupts.message(0)),
            Mode::Intx => {}
        }
        self.alarm.note(state.settle(self, self.alarm.now(), true));
    }

    /// Reset values. Gates stay: a driver that resets in a loop is not let through faster.
    pub(in super::super) fn reset(&self) {
        let mut state = crate::lock(&self.state);
        let mut gates = state.gates;
        gates[0].level = false;
        (0..QUEUES).for_each(|queue| self.end(&mut state, queue, self.alarm.now()));
        *state = IrqState { gates, ..IrqState::default() };
        self.interrupts.set_level(false);
        state.settle(self, self.alarm.now(), false);
    }
}
