//! A card as its conversation with the VMM has it: what turns its rings on and off, what resets, links and
//! maps do to them, and what another process finds.
//!
//! Ownership. [`Card`] belongs to the conversation with the VMM; [`Nic`] is what the I/O cores see. A ring
//! belongs to its queue: the card takes the queue back to turn it on or off, to begin it anew, or to give it
//! other memory, and does not answer the guest before it has it. Filters and modes are words that are read
//! where the driver put them.
//!
//! What is saved. Journals of the rings, and pages that the guest maps, are files. The image has the
//! configuration space, where the PHY's and the EEPROM's conversations are, and all other registers.
//! Statistics are not saved: they begin at zero. Nor are interrupt causes, which all count as set afterwards.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use super::ring::{Nic, SharedPart};
use super::transmitter::{Transmitter, LOOP};
use super::tx::TxCodec;
use crate::device::eeprom::Chip;
use crate::device::mii::Phy;
use crate::device::pci::{
    Command, ConfigSpace, Format, Image, Interrupts, PciDevice, Persist, Region, REGIONS,
};
use crate::device::Queue;
use crate::graph::Scheduler;
use crate::mem::GuestMap;
use crate::packet::Offloads;
use crate::port::{EgressQueue, Port, QueueStatus};
use crate::util::fault::Fault;

/// Places in an image, in words.
pub struct Layout {
    /// Changes with the meaning of anything in the image or in the journals.
    pub(in crate::device) version: u32,
    pub(in crate::device) config: usize,
    pub(in crate::device) phy: usize,
    pub(in crate::device) eeprom: usize,
    pub(in crate::device) faulted: usize,
    pub(in crate::device) size: usize,
}

/// What a new card is made of.
pub struct Parts<M: Model> {
    pub(in crate::device) nic: Arc<Nic<M::SharedPart>>,
    pub(in crate::device) own: M,
    pub(in crate::device) config: ConfigSpace,
    pub(in crate::device) eeprom: Chip,
    pub(in crate::device) phy: Phy,
    pub(in crate::device) tx: Vec<M::Tx>,
    pub(in crate::device) rx: M::Rx,
    pub(in crate::device) journal_file: File,
}

/// What makes a card of its part: registers, and how descriptors read.
pub trait Model: Sized + Send + 'static {
    /// What an operator can choose.
    type Settings: Copy + Send;
    /// What its I/O cores see beside.
    type SharedPart: SharedPart;
    /// A transmit ring.
    type Tx: TxCodec<SharedPart = Self::SharedPart> + 'static;
    /// Its receive rings.
    type Rx: EgressQueue + RxRings + 'static;

    const LAYOUT: Layout;

    /// A part in memory that is described by no map yet; with the files of one that is taken over, its
    /// journals' last.
    fn make(
        settings: &Self::Settings,
        port: Arc<Port>,
        map: &Arc<GuestMap>,
        files: Vec<OwnedFd>,
    ) -> io::Result<Parts<Self>>;
    /// The name of what it is, with those of its options that its guest was told of.
    fn kind(settings: &Self::Settings) -> String;
    /// The files beside its journals'.
    fn files(_: &Nic<Self::SharedPart>) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
    fn regions(settings: &Self::Settings, nic: &Nic<Self::SharedPart>) -> [Option<Region>; REGIONS];

    /// Registers as after power on, while the rings are here.
    fn power_on(card: &mut Card<Self>);
    /// Whether the driver has receiver and transmitter on.
    fn enabled(card: &Card<Self>) -> [bool; 2];
    /// Whether the driver has what it sends come back.
    fn is_looped(_: &Card<Self>) -> bool {
        false
    }
    /// Shows whether there is a link where the PHY is not asked.
    fn show_link(_: &Card<Self>) {}
    /// Interrupts because the link came or went.
    fn link_changed(nic: &Nic<Self::SharedPart>);
    /// The guest that had it is gone, and may keep what it had mapped.
    fn give_up(_: &Nic<Self::SharedPart>) {}
    fn save(card: &Card<Self>, image: &mut Image);
    fn restore(card: &mut Card<Self>, image: &Image);
    /// Goes on with interrupts as `restore` found them. `link_changed`: the link has come or gone since then.
    fn resume(card: &mut Card<Self>, link_changed: bool);

    fn queues(card: &Card<Self>) -> Vec<QueueStatus>;
}

/// What trapped accesses do, as [`PciDevice`] says, and what the driver has turned on by them.
pub trait Access: Model {
    fn read(card: &mut Card<Self>, region: usize, offset: u64, data: &mut [u8]);
    fn write(card: &mut Card<Self>, region: usize, offset: u64, data: &[u8]);
    fn features(card: &Card<Self>) -> Vec<String>;
}

/// A card's receive rings.
pub trait RxRings {
    /// From now on descriptors and buffers lie in `map`.
    fn set_map(&mut self, map: &Arc<GuestMap>);
    /// The receiver is turned off.
    fn rest(&mut self) {}
    /// The device was reset.
    fn reset(&mut self);
    /// They go on where a former owner has ended, in memory that is known by now.
    fn recover(&mut self);
}

/// A network card.
pub struct Card<M: Model> {
    pub(in crate::device) nic: Arc<Nic<M::SharedPart>>,
    pub(in crate::device) settings: M::Settings,
    /// What the conversation alone has of the part.
    pub(in crate::device) own: M,
    pub(in crate::device) config: ConfigSpace,
    pub(in crate::device) eeprom: Chip,
    pub(in crate::device) phy: Phy,
    scheduler: Arc<dyn Scheduler>,
    pub(in crate::device) map: Arc<GuestMap>,
    pub(in crate::device) tx: Queue<Transmitter<M::Tx>>,
    pub(in crate::device) rx: Queue<M::Rx>,
    pub(in crate::device) carrier: bool,
    /// The guest lets it reach memory.
    pub(in crate::device) master: bool,
    /// A fault stopped it until the next reset.
    pub(in crate::device) faulted: bool,
    /// The transmitter is on.
    transmitting: bool,
    /// The file of the rings' journals.
    pub(in crate::device) journal_file: File,
}

impl<M: Model> Card<M> {
    /// A card behind `port`, whose queues `scheduler` serves.
    ///
    /// # Errors
    /// If the system refuses memory or descriptors.
    pub fn new(settings: M::Settings, port: Arc<Port>, scheduler: Arc<dyn Scheduler>) -> io::Result<Card<M>> {
        let mut card = Card::make(settings, port, scheduler, Vec::new())?;
        card.begin_anew(M::power_on);
        Ok(card)
    }

    /// A card that is not yet reset, with the files of one that is taken over.
    fn make(
        settings: M::Settings,
        port: Arc<Port>,
        scheduler: Arc<dyn Scheduler>,
        files: Vec<OwnedFd>,
    ) -> io::Result<Card<M>> {
        let map = Arc::default();
        let Parts { nic, own, config, eeprom, phy, tx, rx, journal_file } =
            M::make(&settings, port, &map, files)?;
        nic.port.set_accepts(Offloads::VALID);
        Ok(Card {
            tx: Queue::Here(Transmitter::new(&nic, tx)),
            rx: Queue::Here(rx),
            nic,
            settings,
            own,
            config,
            eeprom,
            phy,
            scheduler,
            map,
            carrier: true,
            master: false,
            faulted: false,
            transmitting: false,
            journal_file,
        })
    }

    /// One like it, with these files.
    fn again(&self, files: Vec<OwnedFd>) -> io::Result<Card<M>> {
        Card::make(self.settings, Arc::clone(&self.nic.port), Arc::clone(&self.scheduler), files)
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
    pub(in crate::device) fn follow(&mut self) {
        let alive = self.master && !self.faulted;
        let [listens, tx_on] = M::enabled(self).map(|on| on && alive);
        let looped = M::is_looped(self);
        if self.nic.looped.swap(looped, Ordering::Relaxed) != looped {
            self.rx.take_back();
        }
        let rx_on = listens && (self.carrier || looped);
        self.nic.port.set_held(listens && !self.carrier);
        if rx_on {
            self.listen();
        } else {
            self.rx.change(|queue| queue.rest());
        }
        // The transmit queue watches the interrupts' clock, so it is polled while either ring is on.
        let serve = rx_on || tx_on;
        if serve && self.tx.is_lent() && self.transmitting == tx_on {
            return;
        }
        self.tx.change(|queue| queue.each(|ring| ring.enable(tx_on)));
        if serve {
            self.serve();
        }
        self.transmitting = tx_on;
    }

    /// A reset of some kind: rings and faults as at first, registers as `reset` has them.
    pub(in crate::device) fn begin_anew(&mut self, reset: impl FnOnce(&mut Card<M>)) {
        self.tx.take_back();
        self.rx.take_back();
        reset(self);
        self.tx.change(|queue| queue.each(|ring| ring.reset()));
        self.rx.change(|queue| queue.reset());
        self.faulted = false;
        // Also a fault that was not reported yet: it would stop the device after its reset.
        self.nic.port.fault.clear();
        self.follow();
    }

    fn show_link(&mut self) {
        self.phy.set_link(self.carrier);
        M::show_link(self);
    }

    /// Whether frames are received, and sent.
    pub(in crate::device) fn runs(&self) -> [bool; 2] {
        [self.rx.is_lent(), self.transmitting && self.tx.is_lent()]
    }

    /// Why a direction that the driver has `on` or not does not run. `beside`: what else it may have done to
    /// that.
    pub(in crate::device) fn why_off(&self, on: bool, beside: Option<&'static str>) -> &'static str {
        match beside {
            _ if self.faulted => "stopped by a fault until the driver resets the device",
            _ if !on => "turned off by the driver",
            _ if !self.master => "the guest does not let the device reach memory",
            Some(beside) => beside,
            None => "the link is down",
        }
    }
}

impl<M: Access> PciDevice for Card<M> {
    /// All of the device is new, and so are its pages.
    fn attached(&mut self) -> io::Result<()> {
        let mut card = self.again(Vec::new())?;
        card.carrier = self.carrier;
        card.phy.set_link(self.carrier);
        card.reset();
        M::give_up(&self.nic);
        *self = card;
        Ok(())
    }

    fn regions(&self) -> [Option<Region>; REGIONS] {
        M::regions(&self.settings, &self.nic)
    }

    fn config(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn interrupts(&self) -> &Arc<Interrupts> {
        &self.nic.irq.interrupts
    }

    fn read(&mut self, region: usize, offset: u64, data: &mut [u8]) {
        M::read(self, region, offset, data);
    }

    fn write(&mut self, region: usize, offset: u64, data: &[u8]) {
        M::write(self, region, offset, data);
    }

    fn command_changed(&mut self, command: Command) {
        self.master = command.has(Command::MASTER);
        self.follow();
    }

    fn dma_changed(&mut self, map: Arc<GuestMap>) {
        self.map = Arc::clone(&map);
        if self.tx.change(|queue| queue.set_map(&map)) {
            self.serve();
        }
        if self.rx.change(|queue| queue.set_map(&map)) {
            self.listen();
        }
    }

    fn reset(&mut self) {
        self.master = false;
        self.begin_anew(M::power_on);
    }

    fn faulted(&mut self, _: Fault) {
        self.faulted = true;
        self.follow();
    }

    fn set_link(&mut self, up: bool) {
        if self.carrier != up {
            self.carrier = up;
            self.show_link();
            self.follow();
            M::link_changed(&self.nic);
        }
    }

    fn queues(&self) -> Vec<QueueStatus> {
        M::queues(self)
    }

    fn features(&self) -> Vec<String> {
        M::features(self)
    }

    fn persist(&mut self) -> Option<&mut dyn Persist> {
        Some(self)
    }
}

impl<M: Access> Persist for Card<M> {
    fn format(&self) -> Format {
        let Layout { version, size, .. } = M::LAYOUT;
        Format { kind: M::kind(&self.settings), version, size }
    }

    fn files(&self) -> Vec<BorrowedFd<'_>> {
        let mut files = M::files(&self.nic);
        files.push(self.journal_file.as_fd());
        files
    }

    fn save(&mut self, image: &mut Image) {
        let Layout { config, phy, eeprom, faulted, .. } = M::LAYOUT;
        image.put_bytes(config, &self.config.bytes);
        self.phy.save(image, phy);
        image.put_halves(eeprom, &self.eeprom.wires());
        image.put(faulted, self.faulted.into());
        M::save(self, image);
    }

    fn adopt(&mut self, files: Vec<OwnedFd>, image: &Image) -> Result<(), String> {
        if files.len() != self.files().len() {
            return Err("its files are not all there".to_owned());
        }
        let Layout { config, phy, eeprom, faulted, .. } = M::LAYOUT;
        let mut card = self.again(files).map_err(|e| e.to_string())?;
        card.config.restore(image, config)?;
        card.phy.restore(image, phy);
        card.eeprom.restore(image.get_halves(eeprom));
        card.faulted = image.get(faulted) != 0;
        M::restore(&mut card, image);
        *self = card;
        Ok(())
    }

    fn resume(&mut self) {
        self.tx.change(|queue| queue.each(|ring| ring.recover()));
        self.rx.change(|queue| queue.recover());
        self.master = self.config.command().has(Command::MASTER);
        // The carrier is what this process says it is; the driver hears of it by the causes below.
        let link_changed = self.phy.is_linked() != self.carrier;
        self.show_link();
        self.follow();
        M::resume(self, link_changed);
    }

    /// The rings do not recover: their journals are left to the process that resumes, unless the driver
    /// begins the rings anew.
    fn stand_still(&mut self) -> bool {
        self.master = self.config.command().has(Command::MASTER);
        self.carrier = self.phy.is_linked();
        self.show_link();
        self.follow();
        M::resume(self, false);
        true
    }

    fn suspend(&mut self) {
        self.tx.take_back();
        self.rx.take_back();
        // Dropped, not only taken: what they hold is guest memory.
        (self.tx, self.rx) = (Queue::Lost, Queue::Lost);
    }
}
