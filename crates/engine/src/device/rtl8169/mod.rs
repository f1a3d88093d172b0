//! The Realtek RTL8169SB/8110SB: 10ec:8169 on a conventional PCI bus, Linux's `r8169`, FreeBSD's `re`.
//!
//! Theory of operation. A driver sets the device up by registers. From then on it moves frames by descriptors
//! whose highest bit names their owner, and rings one doorbell. The doorbell is a register among all others:
//! 256 bytes of them are less than a page, so no page can be mapped into the guest, and each doorbell traps.
//! But the bits in the descriptors say the same as the doorbell. So an I/O core that serves the ring polls
//! them, and a doorbell only wakes a sleeping core.
//!
//! Files in the order of a frame's way: `regs` has the numbers, `state` what cores and conversation share,
//! `ring` a ring as its descriptors describe it. `device::nic`, `tx` and `packet` are the way in; `rx` is the
//! way out. `irq` decides about interrupts. `device::csb` is the status block, for drivers that use it
//! instead of doorbells. `journal` writes down what the next daemon needs. `access` carries out trapped
//! accesses. `stats` stands beside it. `function` has the operator's options, the PCI function, the EEPROM
//! and the PHY.
//!
//! Limits. One ring in each direction: that of high priority is not served. No loopback, no wake-up patterns,
//! no flow control, no TBI. The part has no messages (MSI), and neither has this.

mod access;
mod function;
mod irq;
mod journal;
mod packet;
#[allow(missing_docs, reason = "names and numbers out of a manual")]
pub mod regs;
mod ring;
mod rx;
mod state;
mod stats;
#[cfg(test)]
mod tests;
mod tx;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

pub use self::function::Rtl8169Config;
use self::function::{config_space, eeprom, regions, PHY};
use self::irq::Irq;
use self::journal::RingJournal;
use self::rx::RxRing;
use self::state::{NicState, RealtekPart, Registers};
use self::stats::Stats;
use self::tx::TxRing;
use super::mii::{Phy, REGISTERS};
use super::nic::{self, Card, Layout, Nic, Parts};
use super::pci::{Image, Interrupts, Region, REGIONS};
use crate::mem::GuestMap;
use crate::port::{Port, QueueStatus};

/// An RTL8169.
pub type Rtl8169 = Card<Realtek>;

/// What the conversation has of it beside what all cards have.
pub struct Realtek {
    /// What an image said of the interrupts' mask, between `adopt` and `resume`.
    mask_before: u32,
}

/// Places in the image behind the registers.
const CONFIG_AT: usize = state::SAVED;
const PHY_AT: usize = CONFIG_AT + 256 / 8;
const EEPROM_AT: usize = PHY_AT + REGISTERS / 4;
const REST: usize = EEPROM_AT + 4;

/// The chip's own reset (`CR`): the station's address and what the EEPROM said stay, and so does the PHY.
fn chip_reset(card: &mut Rtl8169) {
    card.nic.regs.soft_reset();
    card.nic.irq.reset();
}

impl nic::Model for Realtek {
    type Settings = Rtl8169Config;
    type SharedPart = RealtekPart;
    type Tx = TxRing;
    type Rx = RxRing;

    const LAYOUT: Layout = Layout {
        version: 1,
        config: CONFIG_AT,
        phy: PHY_AT,
        eeprom: EEPROM_AT,
        faulted: REST + 1,
        size: REST + 2,
    };

    fn make(
        settings: &Rtl8169Config,
        port: Arc<Port>,
        map: &Arc<GuestMap>,
        files: Vec<OwnedFd>,
    ) -> io::Result<Parts<Realtek>> {
        let (journal_file, [tx_journal, rx_journal]) = RingJournal::open(files.into_iter().next())?;
        let irq = Irq::new(Interrupts::new(true, 0, 0, &port.overrun), settings.moderation)?;
        let shared = RealtekPart {
            csb: settings.csb,
            regs: Registers::new(),
            stats: Stats::default(),
            sizes: Default::default(),
            doorbells: AtomicU64::new(0),
        };
        let nic = Nic::new(port, irq, shared);
        Ok(Parts {
            own: Realtek { mask_before: 0 },
            config: config_space(settings.csb),
            eeprom: eeprom(settings.mac.0),
            phy: Phy::new(&PHY, true),
            tx: vec![TxRing::new(map, settings.csb, tx_journal)],
            rx: RxRing::new(Arc::clone(&nic), map, rx_journal),
            journal_file,
            nic,
        })
    }

    fn kind(settings: &Rtl8169Config) -> String {
        if settings.csb { "rtl8169,csb" } else { "rtl8169" }.to_owned()
    }

    fn regions(_: &Rtl8169Config, _: &NicState) -> [Option<Region>; REGIONS] {
        regions()
    }

    fn power_on(card: &mut Rtl8169) {
        let mac = card.settings.mac.0;
        card.nic.regs.reset(mac);
        card.nic.irq.reset();
        card.eeprom = eeprom(mac);
        card.phy.reset();
    }

    /// What is sent shall come back, which this device does not do: then it is silent.
    fn enabled(card: &Rtl8169) -> [bool; 2] {
        let command = card.nic.regs.get(regs::CR) >> 24;
        [regs::CR_RE, regs::CR_TE].map(|bit| command & bit != 0 && !card.asks_for_loopback())
    }

    fn link_changed(nic: &NicState) {
        nic.irq.alarm.note(nic.irq.raise(regs::cause::LINK));
    }

    fn save(card: &Rtl8169, image: &mut Image) {
        card.nic.regs.save(image);
        image.put(REST, (card.nic.irq.read() & 0xffff).into());
    }

    fn restore(card: &mut Rtl8169, image: &Image) {
        card.nic.regs.restore(image);
        [card.own.mask_before] = image.get_halves(REST).map(|word| word & 0xffff);
    }

    /// The time of the timer was not saved. The driver is told of its link in any case: it asks the PHY then.
    fn resume(card: &mut Rtl8169, _: bool) {
        let (regs, irq) = (&card.nic.regs, &card.nic.irq);
        let word = regs.get(regs::CPCR);
        irq.mitigate(word >> 16, word & regs::CPCR_UNIT);
        irq.set_timer(regs.get(regs::TIMER_INT), true);
        irq.resume(card.own.mask_before);
    }

    fn queues(card: &Rtl8169) -> Vec<QueueStatus> {
        let looped =
            card.asks_for_loopback().then_some("the driver has the card in loopback, which it does not do");
        let command = card.nic.regs.get(regs::CR) >> 24;
        let queue = |direction, enable, ring: usize, on, interrupts| QueueStatus {
            index: 0,
            direction,
            size: card.nic.sizes[ring].load(Ordering::Relaxed),
            kind: if card.nic.block() == 0 { "trapping" } else { "csb" },
            state: if on { "running" } else { card.why_off(command & enable != 0, looped) }.to_owned(),
            interrupts,
        };
        let [receiving, sending] = card.runs();
        // Both queues share the pin: it stands with the queue that receives.
        let passed = Some(card.nic.irq.passed());
        vec![
            queue("ingress", regs::CR_TE, 0, sending, None),
            queue("egress", regs::CR_RE, 1, receiving, passed),
        ]
    }
}

impl Rtl8169 {
    fn asks_for_loopback(&self) -> bool {
        self.phy.is_looped() || self.nic.regs.get(regs::TCR) & regs::TCR_LOOPBACK != 0
    }
}
