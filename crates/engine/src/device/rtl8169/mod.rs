//! The Realtek RTL8169SB/8110SB: 10ec:8169 on a conventional PCI bus, Linux's `r8169`, FreeBSD's `re`.
//!
//! Theory of operation. A driver sets the device up by registers. From then on it moves frames by descriptors whose
//! highest bit names their owner, and rings one doorbell. The doorbell is a register among all others: 256 bytes of
//! them are less than a page, so no page can be mapped into the guest, and each doorbell traps. But the bits in the
//! descriptors say the same as the doorbell. So an I/O core that serves the ring polls them, and a doorbell only wakes
//! a sleeping core.
//!
//! Files in the order of a frame's way: `regs` has the numbers, `state` what cores and conversation share, `ring` a ring as its
//! descriptors describe it. `tx` and `packet` are the way in; `rx` is the way out. `irq` decides about interrupts.
//! `device::csb` is the status block, for drivers that use it instead of doorbells. `journal` and `persist` write down what the
//! next daemon needs. `access` carries out trapped accesses. `stats` stands beside it. `function` has the operator's
//! options, the PCI function, the EEPROM and the PHY.
//!
//! Ownership. [`Rtl8169`] belongs to the conversation with the VMM; [`NicState`] is what the I/O cores see. A ring
//! belongs to its queue: the device takes the queue back to turn it on or off, to begin it anew, or to give it other
//! memory, and does not answer the guest before it has it. Filters and modes are words that are read where the driver
//! put them.
//!
//! Limits. One ring in each direction: that of high priority is not served. No loopback, no wake-up patterns, no flow control, no
//! TBI. The part has no messages (MSI), and neither has this.

mod access;
mod function;
mod irq;
mod journal;
mod packet;
mod persist;
#[allow(missing_docs, reason = "names and numbers out of a manual")]
pub mod regs;
mod ring;
mod rx;
mod state;
mod stats;
#[cfg(test)]
mod tests;
mod tx;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;

pub use self::function::Rtl8169Config;
use self::function::{config_space, regions, Eeprom, PHY};
use self::irq::Irq;
use self::journal::RingJournal;
use self::rx::RxRing;
use self::state::{NicState, Registers, Traps};
use self::stats::Stats;
use self::tx::TxRing;
use super::mii::Phy;
use super::pci::{Command, ConfigSpace, Interrupts, PciDevice, Persist, Region, REGIONS};
use super::Queue;
use crate::fault::Fault;
use crate::graph::Scheduler;
use crate::mem::GuestMap;
use crate::packet::Offloads;
use crate::port::{Port, QueueStatus};

/// An RTL8169.
pub struct Rtl8169 {
    nic: Arc<NicState>,
    settings: Rtl8169Config,
    config: ConfigSpace,
    eeprom: Eeprom,
    phy: Phy,
    scheduler: Arc<dyn Scheduler>,
    map: Arc<GuestMap>,
    tx: Queue<Box<TxRing>>,
    rx: Queue<Box<RxRing>>,
    carrier: bool,
    /// The guest lets it reach memory.
    master: bool,
    /// A fault stopped it until the next reset.
    faulted: bool,
    /// The transmitter is on.
    transmitting: bool,
    /// The file of the rings' journals.
    journal_file: File,
    /// What an image said, between `adopt` and `resume`.
    mask_before: u32,
}

impl Rtl8169 {
    /// A device behind `port`, whose queues `scheduler` serves.
    ///
    /// # Errors
    /// If the system refuses memory or descriptors.
    pub fn new(
        settings: Rtl8169Config,
        port: Arc<Port>,
        scheduler: Arc<dyn Scheduler>,
    ) -> io::Result<Rtl8169> {
        let mut device = Rtl8169::make(settings, port, scheduler, None)?;
        device.power_on();
        Ok(device)
    }

    /// The same, not yet reset; with the journals of a device that is taken over.
    fn make(
        settings: Rtl8169Config,
        port: Arc<Port>,
        scheduler: Arc<dyn Scheduler>,
        journal_file: Option<OwnedFd>,
    ) -> io::Result<Rtl8169> {
        let (journal_file, [tx_journal, rx_journal]) = RingJournal::open(journal_file)?;
        let interrupts = Interrupts::new(true, 0, 0, &port.overrun);
        let nic = Arc::new(NicState {
            csb: settings.csb,
            port,
            regs: Registers::new(),
            irq: Irq::new(interrupts, settings.moderation)?,
            stats: Stats::default(),
            sizes: [const { AtomicU32::new(0) }; 2],
            received: AtomicBool::new(false),
            traps: Traps::default(),
        });
        nic.port.set_accepts(Offloads::VALID);
        let map = Arc::new(GuestMap::new(&[]).map_err(io::Error::other)?);
        let tx = TxRing::new(Arc::clone(&nic), Arc::clone(&map), tx_journal);
        let rx = RxRing::new(Arc::clone(&nic), Arc::clone(&map), rx_journal);
        Ok(Rtl8169 {
            settings,
            config: config_space(settings.csb),
            eeprom: Eeprom::new(settings.mac.0),
            phy: Phy::new(&PHY, true),
            scheduler,
            tx: Queue::Here(Box::new(tx)),
            rx: Queue::Here(Box::new(rx)),
            map,
            carrier: true,
            master: false,
            faulted: false,
            transmitting: false,
            journal_file,
            mask_before: 0,
            nic,
        })
    }

    /// The port that it stands behind.
    pub fn port(&self) -> &Arc<Port> {
        &self.nic.port
    }

    /// What is sent shall come back, which this device does not do: it is silent.
    fn is_looped(&self) -> bool {
        self.phy.is_looped() || self.nic.regs.get(regs::TCR) & regs::TCR_LOOPBACK != 0
    }

    /// Has a core serve the transmit queue.
    fn serve(&mut self) {
        self.tx.lend(|queue| self.scheduler.serve(&self.nic.port, 0, queue));
    }

    /// Gives the receive queue to the port.
    fn listen(&mut self) {
        self.rx.lend(|queue| self.nic.port.lend(0, queue));
    }

    /// Puts the queues where the registers want them: with cores and port, or here. When this returns, a ring
    /// that is off is not touched any more.
    fn follow(&mut self) {
        let alive = self.master && !self.faulted && !self.is_looped();
        let command = self.nic.regs.get(regs::CR) >> 24;
        let listens = alive && command & regs::CR_RE != 0;
        let rx_on = listens && self.carrier;
        self.nic.port.set_held(listens && !self.carrier);
        let tx_on = alive && command & regs::CR_TE != 0;
        if rx_on {
            self.listen();
        } else {
            self.rx.take_back();
        }
        // The transmit queue watches the interrupts' clock, so it is polled while either ring is on.
        let serve = rx_on || tx_on;
        if serve && self.tx.is_lent() && self.transmitting == tx_on {
            return;
        }
        self.tx.change(|queue| queue.enable(tx_on));
        if serve {
            self.serve();
        }
        self.transmitting = tx_on;
    }

    /// The device is at the beginning of its transmit ring. `follow` has it go on.
    fn restart_transmitter(&mut self) {
        let base = self.nic.regs.pair(regs::TNPDS);
        self.tx.change(|queue| queue.restart(base));
    }

    /// The same of its receive ring.
    fn restart_receiver(&mut self) {
        let base = self.nic.regs.pair(regs::RDSAR);
        self.rx.change(|queue| queue.restart(base));
    }

    /// Rings, interrupts and faults as after a reset of either kind.
    fn forget(&mut self) {
        self.tx.change(|queue| queue.reset());
        self.rx.change(|queue| queue.reset());
        self.nic.irq.reset();
        self.faulted = false;
        // Also a fault that was not reported yet: it would stop the device after its reset.
        self.nic.port.fault.clear();
        self.follow();
    }

    /// The chip's own reset (`CR`): the station's address and what the EEPROM said stay, and so does the PHY.
    fn chip_reset(&mut self) {
        self.nic.regs.soft_reset();
        self.forget();
    }

    /// Everything as after power on.
    fn power_on(&mut self) {
        self.nic.regs.reset(self.settings.mac.0);
        self.eeprom = Eeprom::new(self.settings.mac.0);
        self.phy.reset();
        self.forget();
    }
}

impl PciDevice for Rtl8169 {
    /// All of the device is new.
    fn attached(&mut self) -> io::Result<()> {
        let (port, scheduler) = (Arc::clone(&self.nic.port), Arc::clone(&self.scheduler));
        let mut device = Rtl8169::make(self.settings, port, scheduler, None)?;
        device.carrier = self.carrier;
        device.phy.set_link(self.carrier);
        device.power_on();
        *self = device;
        Ok(())
    }

    fn regions(&self) -> [Option<Region>; REGIONS] {
        regions()
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
        if self.tx.change(|queue| queue.set_map(Arc::clone(&map))) {
            self.serve();
        }
        if self.rx.change(|queue| queue.set_map(map)) {
            self.listen();
        }
    }

    fn reset(&mut self) {
        self.master = false;
        self.power_on();
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
        self.phy.set_link(up);
        self.follow();
        self.nic.irq.link();
    }

    fn queues(&self) -> Vec<QueueStatus> {
        let queue = |direction, enable, ring: usize, on, interrupts| QueueStatus {
            index: 0,
            direction,
            size: self.nic.sizes[ring].load(Ordering::Relaxed),
            kind: if self.nic.block() == 0 { "trapping" } else { "csb" },
            state: if on { "running".to_owned() } else { self.why_off(enable) },
            interrupts,
        };
        let sending = self.transmitting && self.tx.is_lent();
        // Both queues share the pin: it stands with the queue that receives.
        let passed = Some(self.nic.irq.passed());
        vec![
            queue("ingress", regs::CR_TE, 0, sending, None),
            queue("egress", regs::CR_RE, 1, self.rx.is_lent(), passed),
        ]
    }

    fn features(&self) -> Vec<String> {
        self.driver_features()
    }

    fn persist(&mut self) -> Option<&mut dyn Persist> {
        Some(self)
    }
}
