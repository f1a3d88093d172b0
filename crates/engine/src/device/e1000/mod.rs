//! The Intel e1000 family: a register core with two personalities, the 82540EM that every guest knows and the
//! 82574L, which has messages (MSI-X) instead of a shared interrupt pin.
//!
//! Theory of operation. A driver sets the device up by registers, and from then on moves frames by writing
//! descriptors and one register a batch, the tail. The trick of this model: the tails, and all else that
//! describes a ring, lie on two pages of BAR 0 (0x2000–0x3fff) on which no read has a side effect. Those two
//! pages are plain memory that the guest maps; the I/O core that serves the transmit queue polls the tail
//! there, and a frame leaves the guest without a VM exit. Everything that must be obeyed at once, the enable
//! bits, reset and interrupts, is on other pages and traps.
//!
//! Files in the order of a frame's way: `regs` has the numbers, `state` the register file, `ring` a ring as
//! its registers describe it. `device::nic`, `tx` and `packet` are the way in; `receiver`, `rss`, `filter`
//! and `rx` are the way out. `irq` decides about interrupts. `device::csb` is the status block, for drivers
//! that use it instead of registers. `journal` writes down what the next daemon needs. `access` carries out
//! trapped accesses. `eeprom`, `phy` and `stats` stand beside it. `config` has the operator's options,
//! `function` the PCI function.
//!
//! The 82574 has two rings in each direction. Both transmit rings are one queue to the I/O cores, and both
//! receive rings one to the port, so a card of which the driver uses the first ones only costs nothing more.
//!
//! Limits. No wake-up patterns, no flow control, no IEEE 1588, no packet split by header (the buffers are
//! filled one after the other). A guest's `ethtool -t` finds that the shared pages keep bits that silicon
//! drops.

mod access;
mod config;
mod eeprom;
mod function;
mod irq;
mod journal;
mod packet;
mod phy;
mod receiver;
pub mod regs;
mod ring;
mod rss;
mod rx;
mod shared;
mod state;
mod stats;
#[cfg(test)]
mod tests;
mod tx;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use sidecore_abi::csb::{CSBAH, CSBAL};

pub use self::config::{usual_mac, E1000Config, Model, EXITLESS, MSIX, PCIX};
use self::irq::{Delay, Irq};
use self::journal::RingJournal;
use self::receiver::Receiver;
use self::regs::QUEUES;
use self::ring::Ring;
use self::rx::RxRing;
use self::shared::{IntelPart, NicState};
use self::state::Registers;
use self::stats::Stats;
use self::tx::TxRing;
use super::nic::{self, Card, Layout, Nic, Parts};
use super::pci::{Image, Interrupts, Region, REGIONS};
use crate::mem::{halves, GuestMap};
use crate::port::{Port, QueueStatus};

/// An e1000 or e1000e.
pub type E1000 = Card<Intel>;

/// What the conversation has of it beside what all cards have.
pub struct Intel {
    /// The register that the I/O BAR points to.
    io_address: u32,
    /// What an image said, between `adopt` and `resume`.
    interrupts_before: [u32; irq::SAVED],
    /// The driver was told that the link came or went, and had not looked.
    link_before: bool,
}

/// Places in the image behind the registers.
const CONFIG: usize = state::SAVED;
const PHY: usize = CONFIG + 4096 / 8;
const EEPROM: usize = PHY + 8;
const IRQ: usize = EEPROM + 8;
const REST: usize = IRQ + irq::SAVED;

/// Registers and PHY as after power on (8254x SDM §14.2).
fn chip_reset(card: &mut E1000) {
    let Card { nic, settings, carrier, .. } = card;
    let pcix = settings.pcix && settings.model == Model::E1000;
    nic.regs.reset(settings.model, settings.mac.0, *carrier, pcix, nic.csb);
    nic.irq.reset();
    nic.stats.reset();
    nic.last.iter().for_each(|last| last.store(0, Ordering::Relaxed));
    card.phy.reset();
}

impl nic::Model for Intel {
    type Settings = E1000Config;
    type SharedPart = IntelPart;
    type Tx = TxRing;
    type Rx = Receiver;

    const LAYOUT: Layout =
        Layout { version: 2, config: CONFIG, phy: PHY, eeprom: EEPROM, faulted: REST + 1, size: REST + 8 };

    fn make(
        settings: &E1000Config,
        port: Arc<Port>,
        map: &Arc<GuestMap>,
        files: Vec<OwnedFd>,
    ) -> io::Result<Parts<Intel>> {
        let mut files = files.into_iter();
        let (pages, model) = (files.next(), settings.model);
        let (journal_file, [tx_journal, rx_journal, tx_journal_1, rx_journal_1]) =
            RingJournal::open(files.next())?;
        let messages = if model == Model::E1000e { (1, 5) } else { (0, 0) };
        let interrupts = Interrupts::new(true, messages.0, messages.1, &port.overrun);
        let irq = Irq::new(model, interrupts, settings.moderation, settings.receive_share)?;
        let csb = settings.csb && model == Model::E1000;
        let shared = IntelPart {
            model,
            exitless: settings.exitless,
            csb,
            regs: Registers::new(pages)?,
            stats: Stats::new(),
            bad_tails: AtomicU64::new(0),
            tails: Default::default(),
            last: Default::default(),
        };
        let subsystem = match model {
            Model::E1000 if csb => (0x1af4, sidecore_abi::csb::SUBSYSTEM),
            Model::E1000 => (0x8086, 0x001e),
            Model::E1000e => (0x8086, 0xa01f),
        };
        let nic = Nic::new(port, irq, shared);
        let rx = |queue, journal| RxRing::new(Arc::clone(&nic), queue, map, journal);
        Ok(Parts {
            own: Intel { io_address: 0, interrupts_before: [0; irq::SAVED], link_before: false },
            config: function::config_space(settings, subsystem, &function::regions(settings, &nic.regs)),
            eeprom: eeprom::eeprom(model, settings.mac.0, subsystem),
            phy: phy::phy(model, true),
            tx: vec![TxRing::new(0, map, csb, tx_journal), TxRing::new(1, map, csb, tx_journal_1)],
            rx: Receiver::new(Arc::clone(&nic), [rx(0, rx_journal), rx(1, rx_journal_1)]),
            journal_file,
            nic,
        })
    }

    fn kind(settings: &E1000Config) -> String {
        let model = if settings.model == Model::E1000e { "e1000e" } else { "e1000" };
        let csb = settings.csb && settings.model == Model::E1000;
        let told = [(settings.exitless, ",exitless"), (csb, ",csb"), (!settings.msix, ",msi")];
        let told = told.into_iter().filter_map(|(told, name)| told.then_some(name));
        std::iter::once(model).chain(told).collect()
    }

    fn files(nic: &NicState) -> Vec<BorrowedFd<'_>> {
        vec![nic.regs.pages.file()]
    }

    fn regions(settings: &E1000Config, nic: &NicState) -> [Option<Region>; REGIONS] {
        function::regions(settings, &nic.regs)
    }

    fn power_on(card: &mut E1000) {
        card.own.io_address = 0;
        [CSBAL, CSBAH].into_iter().for_each(|register| card.nic.regs.set(register, 0));
        chip_reset(card);
    }

    fn enabled(card: &E1000) -> [bool; 2] {
        let has = |register, bits| card.nic.regs.get(register) & bits != 0;
        [has(regs::RCTL, regs::RCTL_EN), has(regs::TCTL, regs::TCTL_EN)]
    }

    fn is_looped(card: &E1000) -> bool {
        card.nic.regs.get(regs::RCTL) & regs::RCTL_LBM != 0 || card.phy.is_looped()
    }

    fn show_link(card: &E1000) {
        let lu = regs::STATUS_LU;
        card.nic.regs.change(regs::STATUS, lu, if card.carrier { lu } else { 0 });
    }

    fn link_changed(nic: &NicState) {
        nic.irq.alarm.note(nic.irq.raise(regs::LSC, 0, Delay::None));
    }

    fn give_up(nic: &NicState) {
        nic.regs.pages.give_up();
    }

    fn save(card: &E1000, image: &mut Image) {
        card.nic.regs.save(image);
        image.put_halves(IRQ, &card.nic.irq.words());
        image.put(REST, u64::from(card.own.io_address) | u64::from(card.nic.irq.has_link_news()) << 32);
    }

    fn restore(card: &mut E1000, image: &Image) {
        card.nic.regs.restore(image);
        card.own.interrupts_before = image.get_halves(IRQ);
        let (io_address, link) = halves(image.get(REST));
        (card.own.io_address, card.own.link_before) = (io_address, link != 0);
    }

    fn resume(card: &mut E1000, link_changed: bool) {
        card.nic.irq.resume(card.own.interrupts_before, link_changed || card.own.link_before);
    }

    fn queues(card: &E1000) -> Vec<QueueStatus> {
        let (nic, irq) = (&card.nic, &card.nic.irq);
        // All queues share the pin: it stands with the first queue that receives.
        let interrupts = |number: usize, receives: bool| match (irq.by_queue(), receives) {
            (true, true) => Some(irq.passed(regs::RXQ0 << number)),
            (true, false) => Some(irq.passed(regs::TXQ0 << number)),
            (false, _) => (number == 0 && receives).then(|| irq.passed(regs::RXQ0)),
        };
        let doorbells = |at| {
            if nic.csb && nic.regs.get(CSBAL) != 0 {
                "csb"
            } else if !nic.exitless || nic.tail_trapped(at) {
                "trapping"
            } else {
                "exitless"
            }
        };
        let ([receives, sends], [receiving, sending]) = (Self::enabled(card), card.runs());
        let directions =
            [("ingress", regs::TX_RINGS, sends, sending), ("egress", regs::RX_RINGS, receives, receiving)];
        let of = |(direction, rings, on, runs): (_, [u32; QUEUES], _, _)| {
            // A second ring that the driver has not set up is not there.
            let rings = rings.into_iter().take(nic.used(&rings)).enumerate();
            rings.map(move |(index, at)| QueueStatus {
                index,
                direction,
                size: Ring::length(&nic.regs, at),
                kind: doorbells(at),
                state: if runs { "running" } else { card.why_off(on, None) }.to_owned(),
                interrupts: interrupts(index, direction == "egress"),
            })
        };
        directions.into_iter().flat_map(of).collect()
    }
}
