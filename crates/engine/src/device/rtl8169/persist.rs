//! Being taken over by another process: what an image of the device holds.
//!
//! The journals of the rings are a file. All registers are in the image, and where the PHY's and the EEPROM's conversations are.
//! Counters are not: they begin at zero. Nor are interrupt causes, which all count as set afterwards, nor the time of the timer.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::{regs, state, Queue, Rtl8169};
use crate::device::mii::REGISTERS;
use crate::device::pci::{Command, Format, Image, Persist};

/// Changes with the meaning of anything here or in the journals.
const VERSION: u32 = 1;

/// Places in the image behind the registers.
const CONFIG: usize = state::SAVED;
const CONFIG_WORDS: usize = 256 / 8;
const PHY: usize = CONFIG + CONFIG_WORDS;
const EEPROM: usize = PHY + REGISTERS / 4;
pub(super) const REST: usize = EEPROM + 4;
const SIZE: usize = REST + 2;

impl Persist for Rtl8169 {
    fn format(&self) -> Format {
        let kind = if self.settings.csb { "rtl8169,csb" } else { "rtl8169" };
        Format { kind: kind.to_owned(), version: VERSION, size: SIZE }
    }

    fn files(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.journal_file.as_fd()]
    }

    fn save(&mut self, image: &mut Image) {
        self.nic.regs.save(image);
        image.put_bytes(CONFIG, self.config.contents());
        self.phy.save(image, PHY);
        for (index, wire) in self.eeprom.chip.wires().into_iter().enumerate() {
            image.put(EEPROM + index, wire.into());
        }
        image.put(REST, (self.nic.irq.read() & 0xffff).into());
        image.put(REST + 1, self.faulted.into());
    }

    fn adopt(&mut self, files: Vec<OwnedFd>, image: &Image) -> Result<(), String> {
        let Ok([journal_file]) = <[OwnedFd; 1]>::try_from(files) else {
            return Err("its files are not all there".to_owned());
        };
        let (port, scheduler) = (Arc::clone(&self.nic.port), Arc::clone(&self.scheduler));
        let mut device =
            Rtl8169::make(self.settings, port, scheduler, Some(journal_file)).map_err(|e| e.to_string())?;
        device.config.restore(image, CONFIG)?;
        device.nic.regs.restore(image);
        let half = |at| u32::try_from(image.get(at)).unwrap_or(0);
        device.phy.restore(image, PHY);
        device.eeprom.chip.restore(std::array::from_fn(|index| half(EEPROM + index)));
        device.mask_before = half(REST) & 0xffff;
        device.faulted = image.get(REST + 1) != 0;
        *self = device;
        Ok(())
    }

    fn resume(&mut self) {
        let (tnpds, rdsar) = (self.nic.regs.pair(regs::TNPDS), self.nic.regs.pair(regs::RDSAR));
        self.tx.change(|queue| queue.recover(tnpds));
        self.rx.change(|queue| queue.recover(rdsar));
        self.master = self.config.command().has(Command::MASTER);
        // The carrier is what this process says it is; the driver hears of it by the causes below.
        self.phy.set_link(self.carrier);
        let word = self.nic.regs.get(regs::CPCR);
        self.nic.irq.mitigate(word >> 16, word & regs::CPCR_UNIT);
        self.nic.irq.set_timer(self.nic.regs.get(regs::TIMER_INT), true);
        self.follow();
        self.nic.irq.resume(self.mask_before);
    }

    fn suspend(&mut self) {
        self.tx.take_back();
        self.rx.take_back();
        // Dropped, not only taken: what they hold is guest memory.
        (self.tx, self.rx) = (Queue::Lost, Queue::Lost);
    }
}
