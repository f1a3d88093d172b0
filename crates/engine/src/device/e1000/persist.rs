//! Being taken over by another process: what an image of the device holds.
//!
//! The pages that the guest maps and the journals of the rings are files. All other registers are in the image, and
//! where the PHY's and the EEPROM's conversations are. Statistics that the driver has not read yet are not: they begin
//! at zero. Nor are interrupt causes, which all count as set afterwards.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::config::Model;
use super::rx::RxRing;
use super::tx::TxRing;
use super::{irq, regs, state, Queue, E1000};
use crate::device::pci::{Command, Format, Image, Persist};

/// Changes with the meaning of anything here or in the journals.
const VERSION: u32 = 2;

/// Places in the image behind the registers.
const CONFIG: usize = state::SAVED;
const CONFIG_WORDS: usize = 4096 / 8;
const PHY: usize = CONFIG + CONFIG_WORDS;
const EEPROM: usize = PHY + 8;
pub(super) const IRQ: usize = EEPROM + 8;
const REST: usize = IRQ + irq::SAVED;
const SIZE: usize = REST + 8;

impl Persist for E1000 {
    fn format(&self) -> Format {
        let model = if self.settings.model == Model::E1000e { "e1000e" } else { "e1000" };
        // What the guest was told of the regions, and of the status block.
        let told = [(self.settings.exitless, ",exitless"), (self.nic.csb, ",csb")];
        let told = told.into_iter().filter_map(|(told, name)| told.then_some(name));
        Format { kind: std::iter::once(model).chain(told).collect(), version: VERSION, size: SIZE }
    }

    fn files(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.nic.regs.pages.file(), self.journal_file.as_fd()]
    }

    fn save(&mut self, image: &mut Image) {
        self.nic.regs.save(image);
        image.put_bytes(CONFIG, self.config.contents());
        self.phy.save(image, PHY);
        for (index, wire) in self.eeprom.chip.wires().into_iter().enumerate() {
            image.put(EEPROM + index, wire.into());
        }
        for (index, word) in self.nic.irq.words().into_iter().enumerate() {
            image.put(IRQ + index, word.into());
        }
        image.put(REST, self.io_address.into());
        image.put(REST + 1, self.faulted.into());
    }

    fn adopt(&mut self, files: Vec<OwnedFd>, image: &Image) -> Result<(), String> {
        let Ok(files) = <[OwnedFd; 2]>::try_from(files) else {
            return Err("its files are not all there".to_owned());
        };
        let (port, scheduler) = (Arc::clone(&self.nic.port), Arc::clone(&self.scheduler));
        let mut device =
            E1000::make(self.settings, port, scheduler, Some(files)).map_err(|e| e.to_string())?;
        device.config.restore(image, CONFIG)?;
        device.nic.regs.restore(image);
        let half = |at| u32::try_from(image.get(at)).unwrap_or(0);
        device.phy.restore(image, PHY);
        device.eeprom.chip.restore(std::array::from_fn(|index| half(EEPROM + index)));
        device.interrupts_before = std::array::from_fn(|index| half(IRQ + index));
        device.io_address = half(REST);
        device.faulted = image.get(REST + 1) != 0;
        *self = device;
        Ok(())
    }

    fn resume(&mut self) {
        self.tx.change(|queue| queue.rings().iter_mut().for_each(TxRing::recover));
        self.rx.change(|queue| queue.rings().iter_mut().for_each(RxRing::recover));
        self.master = self.config.command().has(Command::MASTER);
        // The carrier is what this process says it is; the driver hears of it by the causes below.
        let link = self.carrier;
        let lu = regs::STATUS_LU;
        self.nic.regs.change(regs::STATUS, lu, if link { lu } else { 0 });
        self.phy.set_link(link);
        self.follow();
        self.nic.irq.resume(self.interrupts_before);
    }

    fn suspend(&mut self) {
        self.tx.take_back();
        self.rx.take_back();
        // Dropped, not only taken: what they hold is guest memory.
        (self.tx, self.rx) = (Queue::Lost, Queue::Lost);
    }
}
