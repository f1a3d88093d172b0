//! What a trapped access does, register by register.
//!
//! Registers have one, two or four bytes, and a driver may reach several at once. So an access is a word and
//! a mask of those bits of it that are meant.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::sync::atomic::Ordering;

use super::function::{phy_access, write_9346cr, IO, MEMORY};
use super::regs::cause::{SWINT, TOK};
use super::regs::{self, INTERRUPTS};
use super::stats::SIZE;
use super::{chip_reset, Realtek, Rtl8169};
use crate::device::nic::Access;
use crate::device::pci::answer;

/// The second halves of words.
const UPPER: u32 = 0xffff_0000;
const LOWER: u32 = 0xffff;

impl Access for Realtek {
    fn read(card: &mut Rtl8169, region: usize, offset: u64, data: &mut [u8]) {
        if !matches!(region, IO | MEMORY) {
            return;
        }
        card.nic.reads.fetch_add(1, Ordering::Relaxed);
        answer(card.read_word(word(offset)), offset, data);
    }

    fn write(card: &mut Rtl8169, region: usize, offset: u64, data: &[u8]) {
        if !matches!(region, IO | MEMORY) {
            return;
        }
        card.nic.writes.fetch_add(1, Ordering::Relaxed);
        let (mut value, mut mask) = ([0; 4], [0; 4]);
        let at = (offset & 3) as usize;
        for ((value, mask), byte) in value.iter_mut().zip(&mut mask).skip(at).zip(data) {
            (*value, *mask) = (*byte, 0xff);
        }
        card.write_word(word(offset), u32::from_le_bytes(value), u32::from_le_bytes(mask));
    }

    /// What the driver has turned on, and what it costs.
    fn features(card: &Rtl8169) -> Vec<String> {
        let has = |register, bits| card.nic.regs.get(register) & bits != 0;
        let count = |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Relaxed);
        let known = [
            ("vlan", has(regs::CPCR, regs::CPCR_RXVLAN)),
            ("rx-checksum", has(regs::CPCR, regs::CPCR_RXCHKSUM)),
            ("promiscuous", has(regs::RCR, regs::RCR_AAP)),
            ("tx-interrupts", card.nic.irq.read() & TOK != 0),
        ];
        let on = known.iter().filter(|(_, on)| *on).map(|(name, _)| (*name).to_owned());
        let counts = [
            format!("trapped-doorbells={}", count(&card.nic.doorbells)),
            format!("trapped-reads={}", count(&card.nic.reads)),
            format!("trapped-writes={}", count(&card.nic.writes)),
        ];
        let mode = if card.nic.regs.get(regs::CSBAL) == 0 {
            "doorbells trap: they share a page with all other registers"
        } else {
            "doorbells trap only while the I/O core sleeps: csb"
        };
        ["intx", mode].into_iter().map(str::to_owned).chain(on).chain(counts).collect()
    }
}

impl Rtl8169 {
    /// Whether the driver sees a link: not while the PHY negotiates, though frames pass.
    fn has_link(&self) -> bool {
        self.carrier && !self.nic.irq.negotiates()
    }

    fn read_word(&mut self, at: u32) -> u32 {
        let regs = &self.nic.regs;
        match at {
            INTERRUPTS => self.nic.irq.look(),
            regs::TCTR => self.nic.irq.ticks(),
            regs::MPC => self.nic.stats.missed(),
            regs::CR9346 => regs.get(at) & !regs::EEDO | if self.eeprom.data() { regs::EEDO } else { 0 },
            regs::PHYSTATUS => regs.get(at) & !0xff | if self.has_link() { regs::PHYSTATUS_UP } else { 0 },
            _ => regs.get(at),
        }
    }

    fn write_word(&mut self, at: u32, value: u32, mask: u32) {
        let unlocked = self.nic.regs.get(regs::CR9346) & regs::EEM == regs::EEM_CONFIG;
        let change = |mask: u32| self.nic.regs.change(at, value, mask);
        match at {
            regs::TPPOLL => self.doorbell(value & mask),
            INTERRUPTS => self.interrupt_word(value, mask),
            regs::IDR | 0x04 | regs::CONFIG3 if unlocked => change(mask),
            regs::IDR | 0x04 | regs::CONFIG3 | regs::PHYSTATUS => {}
            regs::CSBAL | regs::CSBAH if !self.settings.csb => {}
            regs::CR9346 => {
                // 9346CR itself is never locked.
                change(if unlocked { mask } else { mask & 0xff });
                if mask & 0xff != 0 {
                    write_9346cr(&mut self.eeprom, value);
                }
            }
            regs::DTCCR => {
                change(mask);
                if value & mask & regs::DTCCR_DUMP != 0 {
                    self.dump();
                }
            }
            regs::CR => self.command(value & mask, mask),
            regs::TCR => {
                change(mask & regs::TCR_WRITABLE);
                self.follow();
            }
            regs::TCTR => self.nic.irq.set_timer(self.nic.regs.get(regs::TIMER_INT), true),
            regs::TIMER_INT => {
                change(mask);
                self.nic.irq.set_timer(self.nic.regs.get(regs::TIMER_INT), false);
            }
            regs::MPC => self.nic.stats.forgive(),
            regs::PHYAR => {
                // The access begins with its highest byte.
                change(mask);
                if mask >> 24 != 0 {
                    self.phy.set_link(self.has_link());
                    let (done, begins) = phy_access(&mut self.phy, self.nic.regs.get(at));
                    self.nic.regs.set(at, done);
                    if begins {
                        self.nic.irq.negotiate();
                    }
                    self.follow();
                }
            }
            regs::CPCR => {
                change(mask);
                let word = self.nic.regs.get(at);
                self.nic.irq.mitigate(word >> 16, word & regs::CPCR_UNIT);
            }
            _ => {
                change(mask);
                self.ring_moved(at);
            }
        }
    }

    fn doorbell(&mut self, value: u32) {
        self.nic.doorbells.fetch_add(1, Ordering::Relaxed);
        if value & regs::TPPOLL_FSWINT != 0 {
            self.nic.irq.alarm.note(self.nic.irq.raise(SWINT));
        }
        if value & regs::TPPOLL_NPQ != 0 {
            self.nic.irq.alarm.wake_sleeper();
        }
    }

    fn interrupt_word(&mut self, value: u32, mask: u32) {
        if mask & UPPER != 0 {
            self.nic.irq.acknowledge((value & mask) >> 16);
        }
        if mask & LOWER != 0 {
            let old = self.nic.irq.read() & LOWER;
            self.nic.irq.set_mask(old & !mask | value & mask & LOWER);
        }
    }

    /// `CR`, the highest byte of its word.
    fn command(&mut self, value: u32, mask: u32) {
        self.nic.regs.change(regs::CR, value, mask & 0x00ff_ffff);
        if mask >> 24 == 0 {
            return;
        }
        let command = value >> 24;
        if command & regs::CR_RST != 0 {
            return self.begin_anew(chip_reset);
        }
        let before = self.nic.regs.get(regs::CR) >> 24;
        let on = command & (regs::CR_RE | regs::CR_TE);
        let begun = on & !before;
        self.nic.regs.change(regs::CR, on << 24, 0xff << 24);
        // A direction that is turned on begins at the beginning of its ring.
        if begun & regs::CR_TE != 0 {
            self.tx.change(|queue| queue.restart());
        }
        if begun & regs::CR_RE != 0 {
            self.rx.change(|queue| queue.restart());
        }
        self.follow();
    }

    /// A word of the registers that say where the rings are may have been written.
    fn ring_moved(&mut self, at: u32) {
        if at & !7 == regs::TNPDS {
            self.tx.change(|queue| queue.restart());
            self.follow();
        }
        if (regs::RDSAR..regs::RDSAR + 8).contains(&at) {
            self.rx.change(|queue| queue.restart());
            self.follow();
        }
    }

    /// Writes the counters into the guest's memory (`DTCCR`), where it lets us.
    fn dump(&mut self) {
        let to = self.nic.regs.pair(regs::DTCCR) & !0x3f;
        if self.master {
            if let Some(piece) = self.map.translate(to, SIZE, &mut 0) {
                piece.write(&self.nic.stats.dump());
            }
        }
        self.nic.regs.change(regs::DTCCR, 0, regs::DTCCR_DUMP);
    }
}

/// The word that byte `offset` belongs to.
fn word(offset: u64) -> u32 {
    u32::try_from(offset & !3).unwrap_or(!3)
}
