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
//! Files in the order of a frame's way: `regs` has the numbers, `state` the register file, `ring` a ring as its
//! registers describe it. `transmitter`, `tx` and `packet` are the way in; `receiver`, `rss`, `filter` and `rx` are the
//! way out. `irq` decides about interrupts. `device::csb` is the status block, for drivers that use it instead of
//! registers. `journal` and `persist` write down what the next daemon needs. `access` carries out trapped accesses.
//! `eeprom`, `phy` and `stats` stand beside it. `config` has the operator's options, `function` the PCI function.
//!
//! Ownership. [`E1000`] belongs to the conversation with the VMM; [`NicState`] is what the I/O cores see. A ring
//! belongs to its queue: the device takes the queue back to turn it on or off, to reset it, or to give it other memory,
//! and does not answer the guest before it has it. Filters and modes are words that are read where the driver put them.
//!
//! The 82574 has two rings in each direction. Both transmit rings are one queue to the I/O cores, and both receive rings
//! one to the port, so a card of which the driver uses the first ones only costs nothing more.
//!
//! Limits. No wake-up patterns, no flow control, no IEEE 1588, no packet split by header (the buffers are filled one after the other).
//! A guest's `ethtool -t` finds that the shared pages keep bits that silicon drops.

mod access;
mod config;
mod eeprom;
mod filter;
mod function;
mod irq;
mod journal;
mod nic;
mod packet;
mod persist;
mod phy;
mod receiver;
pub mod regs;
mod ring;
mod rss;
mod rx;
mod state;
mod stats;
#[cfg(test)]
mod tests;
mod transmitter;
mod tx;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

pub use self::config::{usual_mac, E1000Config, Model, EXITLESS, PCIX};
use self::eeprom::Eeprom;
use self::function::{config_space, regions};
use self::irq::Irq;
use self::journal::RingJournal;
use self::nic::{NicState, Traps};
use self::phy::phy;
use self::receiver::Receiver;
use self::regs::QUEUES;
use self::ring::Ring;
use self::rx::RxRing;
use self::state::Registers;
use self::stats::Stats;
use self::transmitter::{Transmitter, LOOP};
use self::tx::TxRing;
use super::mii::Phy;
use super::pci::{Command, ConfigSpace, Interrupts, PciDevice, Persist, Region, REGIONS};
use super::Queue;
use crate::fault::Fault;
use crate::graph::Scheduler;
use crate::mem::GuestMap;
use crate::packet::Offloads;
use crate::port::{Port, QueueStatus};

/// An e1000 or e1000e.
pub struct E1000 {
    nic: Arc<NicState>,
    settings: E1000Config,
    config: ConfigSpace,
    eeprom: Eeprom,
    phy: Phy,
    scheduler: Arc<dyn Scheduler>,
    map: Arc<GuestMap>,
    tx: Queue<Box<Transmitter>>,
    rx: Queue<Box<Receiver>>,
    carrier: bool,
    /// The guest lets it reach memory.
    master: bool,
    /// A fault stopped it until the next reset.
    faulted: bool,
    /// The transmitter is on.
    transmitting: bool,
    /// The register that the I/O BAR points to.
    io_address: u32,
    /// The file of the rings' journals.
    journal_file: File,
    /// What an image said, between `adopt` and `resume`.
    interrupts_before: [u32; irq::SAVED],
}

impl E1000 {
    /// A device behind `port`, whose queues `scheduler` serves.
    ///
    /// # Errors
    /// If the system refuses memory or descriptors.
    pub fn new(settings: E1000Config, port: Arc<Port>, scheduler: Arc<dyn Scheduler>) -> io::Result<E1000> {
        let mut device = E1000::make(settings, port, scheduler, None)?;
        device.chip_reset();
        Ok(device)
    }

    /// The same, not yet reset; with the files of a device that is taken over: its pages and its journals.
    fn make(
        settings: E1000Config,
        port: Arc<Port>,
        scheduler: Arc<dyn Scheduler>,
        files: Option<[OwnedFd; 2]>,
    ) -> io::Result<E1000> {
        let model = settings.model;
        let (pages, journal_file) = files.map_or((None, None), |[pages, file]| (Some(pages), Some(file)));
        let (journal_file, [tx_journal, rx_journal, tx_journal_1, rx_journal_1]) =
            RingJournal::open(journal_file)?;
        let messages = if model == Model::E1000e { (1, 5) } else { (0, 0) };
        let interrupts = Interrupts::new(true, messages.0, messages.1, &port.overrun);
        let csb = settings.csb && model == Model::E1000;
        let nic = Arc::new(NicState {
            model,
            exitless: settings.exitless,
            csb,
            port,
            regs: Registers::new(pages)?,
            irq: Irq::new(model, interrupts, settings.moderation)?.limit(settings.receive_share),
            stats: Stats::new(),
            bad_tails: AtomicU64::new(0),
            received: AtomicBool::new(false),
            looped: AtomicBool::new(false),
            traps: Traps::default(),
        });
        nic.port.set_accepts(Offloads::VALID);
        let map = Arc::new(GuestMap::new(&[]).map_err(io::Error::other)?);
        let parts = || (Arc::clone(&nic), Arc::clone(&map));
        let tx = |queue, journal| TxRing::new(parts().0, queue, parts().1, journal);
        let rx = |queue, journal| RxRing::new(parts().0, queue, parts().1, journal);
        let transmitter = Transmitter::new(parts().0, [tx(0, tx_journal), tx(1, tx_journal_1)]);
        let receiver = Receiver::new(parts().0, [rx(0, rx_journal), rx(1, rx_journal_1)]);
        let subsystem = match model {
            Model::E1000 if csb => (0x1af4, sidecore_abi::csb::SUBSYSTEM),
            Model::E1000 => (0x8086, 0x001e),
            Model::E1000e => (0x8086, 0xa01f),
        };
        Ok(E1000 {
            settings,
            config: config_space(&settings, subsystem, &regions(&settings, &nic.regs)),
            eeprom: Eeprom::new(model, settings.mac.0, subsystem),
            phy: phy(model, true),
            scheduler,
            tx: Queue::Here(Box::new(transmitter)),
            rx: Queue::Here(Box::new(receiver)),
            map,
            carrier: true,
            master: false,
            faulted: false,
            transmitting: false,
            io_address: 0,
            journal_file,
            interrupts_before: [0; irq::SAVED],
            nic,
        })
    }

    /// The port that it stands behind.
    pub fn port(&self) -> &Arc<Port> {
        &self.nic.port
    }

    /// Has a core serve the transmit queue.
    fn serve(&mut self) {
        self.tx.lend(|queue| self.scheduler.serve(&self.nic.port, 0, queue));
    }

    /// Gives the receive queue to the port; in loopback at a place where only the transmitter finds it.
    fn listen(&mut self) {
        let place = if self.nic.looped.load(Ordering::Relaxed) { LOOP } else { 0 };
        self.rx.lend(|queue| self.nic.port.lend(place, queue));
    }

    /// Puts the queues where the registers want them: with cores and port, or here. When this returns, a ring
    /// that is off is not touched any more.
    fn follow(&mut self) {
        let alive = self.master && !self.faulted;
        let rctl = self.nic.regs.get(regs::RCTL);
        let listens = alive && rctl & regs::RCTL_EN != 0;
        let looped = rctl & regs::RCTL_LBM != 0 || self.phy.is_looped();
        if self.nic.looped.swap(looped, Ordering::Relaxed) != looped {
            self.rx.take_back();
        }
        let rx_on = listens && (self.carrier || looped);
        self.nic.port.set_held(listens && !self.carrier);
        let tx_on = alive && self.nic.regs.get(regs::TCTL) & regs::TCTL_EN != 0;
        if rx_on {
            self.listen();
        } else if let Some(queue) = self.rx.take_back() {
            queue.rings().iter_mut().for_each(RxRing::rest);
        }
        // The transmit queue watches the interrupts' clock, so it is polled while either ring is on.
        let serve = rx_on || tx_on;
        if serve && self.tx.is_lent() && self.transmitting == tx_on {
            return;
        }
        self.tx.change(|queue| queue.rings().iter_mut().for_each(|ring| ring.enable(tx_on)));
        if serve {
            self.serve();
        }
        self.transmitting = tx_on;
    }

    /// Registers, PHY and queues as after power on (8254x SDM §14.2).
    fn chip_reset(&mut self) {
        self.tx.change(|queue| queue.rings().iter_mut().for_each(TxRing::reset));
        self.rx.change(|queue| queue.rings().iter_mut().for_each(RxRing::reset));
        let (model, mac) = (self.settings.model, self.settings.mac.0);
        self.nic.regs.reset(
            model,
            mac,
            self.carrier,
            self.settings.pcix && model == Model::E1000,
            self.nic.csb,
        );
        self.nic.irq.reset();
        self.nic.stats.reset();
        self.phy.reset();
        self.faulted = false;
        // Also a fault that was not reported yet: it would stop the device after its reset.
        self.nic.port.fault.clear();
        for last in &self.nic.traps.last {
            last.store(0, Ordering::Relaxed);
        }
        self.follow();
    }

    /// How the doorbells of the ring at `at` come.
    fn doorbells(&self, at: u32) -> &'static str {
        if self.nic.csb && self.nic.regs.get(sidecore_abi::csb::CSBAL) != 0 {
            "csb"
        } else if !self.settings.exitless || self.nic.is_trapping(at) {
            "trapping"
        } else {
            "exitless"
        }
    }
}

impl PciDevice for E1000 {
    /// All of the device is new, and so are its pages.
    fn attached(&mut self) -> io::Result<()> {
        let (port, scheduler) = (Arc::clone(&self.nic.port), Arc::clone(&self.scheduler));
        let mut device = E1000::make(self.settings, port, scheduler, None)?;
        device.carrier = self.carrier;
        device.phy.set_link(self.carrier);
        device.chip_reset();
        self.nic.regs.pages.give_up();
        *self = device;
        Ok(())
    }

    fn regions(&self) -> [Option<Region>; REGIONS] {
        regions(&self.settings, &self.nic.regs)
    }

    fn config(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn interrupts(&self) -> &Arc<Interrupts> {
        &self.nic.irq.interrupts
    }

    fn read(&mut self, region: usize, offset: u64, data: &mut [u8]) {
        self.read_region(region, offset, data);
    }

    fn write(&mut self, region: usize, offset: u64, data: &[u8]) {
        self.write_region(region, offset, data);
    }

    fn command_changed(&mut self, command: Command) {
        self.master = command.has(Command::MASTER);
        self.follow();
    }

    fn dma_changed(&mut self, map: Arc<GuestMap>) {
        self.map = Arc::clone(&map);
        if self.tx.change(|queue| queue.rings().iter_mut().for_each(|ring| ring.set_map(Arc::clone(&map)))) {
            self.serve();
        }
        if self.rx.change(|queue| queue.rings().iter_mut().for_each(|ring| ring.set_map(Arc::clone(&map)))) {
            self.listen();
        }
    }

    fn reset(&mut self) {
        self.master = false;
        self.io_address = 0;
        for register in [sidecore_abi::csb::CSBAL, sidecore_abi::csb::CSBAH] {
            self.nic.regs.set(register, 0);
        }
        self.chip_reset();
    }

    fn faulted(&mut self, _: Fault) {
        self.faulted = true;
        self.follow();
    }

    fn set_link(&mut self, up: bool) {
        if self.carrier == up {
            return;
        }
        self.carrier = up;
        let lu = regs::STATUS_LU;
        self.nic.regs.change(regs::STATUS, lu, if up { lu } else { 0 });
        self.phy.set_link(up);
        self.follow();
        self.nic.irq.alarm.note(self.nic.irq.raise(regs::LSC, 0, irq::Delay::None));
    }

    fn queues(&self) -> Vec<QueueStatus> {
        let irq = &self.nic.irq;
        // All queues share the pin: it stands with the first queue that receives.
        let interrupts = |number: usize, receives: bool| match (irq.by_queue(), receives) {
            (true, true) => Some(irq.passed(regs::RXQ0 << number)),
            (true, false) => Some(irq.passed(regs::TXQ0 << number)),
            (false, _) => (number == 0 && receives).then(|| irq.passed(regs::RXQ0)),
        };
        let queue = |number, at, direction, on| QueueStatus {
            index: number,
            direction,
            size: Ring::length(&self.nic.regs, at),
            kind: self.doorbells(at),
            state: if on { "running".to_owned() } else { self.why_off(at) },
            interrupts: interrupts(number, direction == "egress"),
        };
        let sending = self.transmitting && self.tx.is_lent();
        let receiving = self.rx.is_lent();
        let directions = [("ingress", regs::TX_RINGS, sending), ("egress", regs::RX_RINGS, receiving)];
        let mut queues = Vec::new();
        for (direction, rings, on) in directions {
            // A second ring that the driver has not set up is not there.
            let count = if self.nic.has_second(&rings) { QUEUES } else { 1 };
            queues.extend(rings.iter().take(count).enumerate().map(|(n, at)| queue(n, *at, direction, on)));
        }
        queues
    }

    fn features(&self) -> Vec<String> {
        self.driver_features()
    }

    fn persist(&mut self) -> Option<&mut dyn Persist> {
        Some(self)
    }
}
