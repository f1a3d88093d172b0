//! What a trapped access does, register by register.

use std::sync::atomic::Ordering;

use super::config::Model;
use super::irq::Delay;
use super::phy::mdic;
use super::shared::{ring_number, RINGS};
use super::{chip_reset, eeprom, regs, Intel, E1000};
use crate::device::nic::{Access, SharedPart};
use crate::device::pci::{answer, Mode};

/// Regions of the two parts.
const REGISTERS: usize = 0;
const IO_82540: usize = 1;
const IO_82574: usize = 2;
const MSIX: usize = 3;
/// Where the pending bits are in the MSI-X region.
const PENDING: u64 = 0x2000;
/// IOADDR and IODATA in the I/O BAR (8254x SDM §13.2.2).
const IO_ADDRESS: u64 = 0;
const IO_DATA: u64 = 4;
/// Unit of the 82574's clock: 25 MHz (82574 §10.2.9).
const CLOCK_NS: u64 = 40;

impl Access for Intel {
    fn read(card: &mut E1000, region: usize, offset: u64, data: &mut [u8]) {
        let value = match (region, card.settings.model) {
            (REGISTERS, _) => card.read_register(register(offset)),
            (IO_82540, Model::E1000) | (IO_82574, Model::E1000e) => match offset & !3 {
                IO_ADDRESS => card.own.io_address,
                IO_DATA => card.read_register(card.own.io_address & !3),
                _ => 0,
            },
            (MSIX, Model::E1000e) if offset & !7 == PENDING => card.nic.irq.interrupts.pending(),
            _ => 0,
        };
        answer(value, offset, data);
    }

    fn write(card: &mut E1000, region: usize, offset: u64, data: &[u8]) {
        // Registers take whole words only (8254x SDM §13.1).
        let Ok(bytes) = <[u8; 4]>::try_from(data) else { return };
        let value = u32::from_le_bytes(bytes);
        match (region, card.settings.model) {
            (REGISTERS, _) => card.write_register(register(offset), value),
            (IO_82540, Model::E1000) | (IO_82574, Model::E1000e) => match offset {
                IO_ADDRESS => card.own.io_address = value,
                IO_DATA => card.write_register(card.own.io_address & !3, value),
                _ => {}
            },
            _ => {}
        }
    }

    /// What the driver has turned on, and what it costs.
    fn features(card: &E1000) -> Vec<String> {
        let has = |register, bits| card.nic.regs.get(register) & bits != 0;
        let interrupts = match card.nic.irq.interrupts.mode() {
            Mode::Intx => "intx",
            Mode::Msi => "msi",
            Mode::Msix => "msix",
        };
        let count = |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Relaxed);
        let known = [
            ("vlan", has(regs::CTRL, regs::CTRL_VME)),
            ("vlan-filter", has(regs::RCTL, regs::RCTL_VFE)),
            ("promiscuous", has(regs::RCTL, regs::RCTL_UPE)),
            ("long-frames", has(regs::RCTL, regs::RCTL_LPE)),
            ("rx-checksum", has(regs::RXCSUM, regs::RXCSUM_TUOFL)),
        ];
        let on = known.iter().filter(|(_, on)| *on).map(|(name, _)| (*name).to_owned());
        let tails = |rings: [u32; regs::QUEUES]| -> u64 {
            rings.iter().map(|at| count(&card.nic.tails[ring_number(*at)])).sum()
        };
        let counts = [
            format!("trapped-tx-tails={}", tails(regs::TX_RINGS)),
            format!("trapped-rx-tails={}", tails(regs::RX_RINGS)),
            format!("trapped-reads={}", count(&card.nic.reads)),
            format!("trapped-writes={}", count(&card.nic.writes)),
            format!("bad-tails={}", count(&card.nic.bad_tails)),
        ];
        let mode = if !card.settings.exitless {
            "doorbells trap: exitless is turned off for this port"
        } else if card.nic.is_trapping() {
            "doorbells trap: the VMM does not map the ring pages (QEMU stops it while INTx is not accelerated; \
             if that lasts, features-off=exitless makes each of them cheaper)"
        } else {
            "exitless"
        };
        [interrupts, mode].into_iter().map(str::to_owned).chain(on).chain(counts).collect()
    }
}

impl E1000 {
    fn read_register(&mut self, offset: u32) -> u32 {
        self.nic.reads.fetch_add(1, Ordering::Relaxed);
        match offset {
            regs::CTRL_DUP => self.nic.regs.get(regs::CTRL),
            regs::EECD => eeprom::read_eecd(&self.eeprom, self.settings.model),
            regs::STATS..regs::STATS_END => self.nic.stats.read(offset),
            regs::SYSTIML | regs::SYSTIMH => self.system_time(offset),
            _ if self.nic.irq.owns(offset) => self.nic.irq.read(offset),
            _ => self.nic.regs.read(offset),
        }
    }

    fn write_register(&mut self, offset: u32, value: u32) {
        self.nic.writes.fetch_add(1, Ordering::Relaxed);
        match offset {
            regs::CTRL | regs::CTRL_DUP => self.write_ctrl(value),
            regs::EECD => eeprom::write_eecd(&mut self.eeprom, value),
            regs::EERD => {
                self.nic.regs.set(offset, eeprom::eerd(&self.eeprom, self.settings.model, value));
            }
            regs::MDIC => {
                let (value, cause) = mdic(&mut self.phy, self.settings.model, value);
                self.nic.regs.set(offset, value);
                self.follow();
                if cause != 0 {
                    self.nic.irq.alarm.note(self.nic.irq.raise(cause, 0, Delay::None));
                }
            }
            regs::RCTL | regs::TCTL => {
                self.nic.regs.set(offset, value);
                self.follow();
            }
            regs::STATS..regs::STATS_END => {}
            _ if self.nic.irq.owns(offset) => self.nic.irq.write(offset, value),
            _ => {
                self.nic.regs.write(offset, value);
                for at in RINGS {
                    if offset == at + regs::ring::TAIL {
                        self.tail_trapped(at, value);
                    }
                }
            }
        }
    }

    /// A doorbell that came by a trap: then at least it can wake the core.
    fn tail_trapped(&self, at: u32, tail: u32) {
        self.nic.tails[ring_number(at)].fetch_add(1, Ordering::Relaxed);
        self.nic.last[ring_number(at)].store((tail & 0xffff) + 1, Ordering::Relaxed);
        if regs::TX_RINGS.contains(&at) {
            self.nic.irq.alarm.wake_sleeper();
        }
    }

    fn write_ctrl(&mut self, value: u32) {
        if value & regs::CTRL_RST != 0 {
            return self.begin_anew(chip_reset);
        }
        if value & regs::CTRL_PHY_RST != 0 {
            self.phy.reset();
        }
        self.nic.regs.set(regs::CTRL, value);
    }

    /// The 82574's clock: a number of units for a number of ticks (82574 §10.2.9, TIMINCA).
    fn system_time(&self, offset: u32) -> u32 {
        let increment = self.nic.regs.get(regs::TIMINCA);
        let ticks = self.nic.irq.alarm.now() / CLOCK_NS / u64::from(increment >> 24).max(1);
        let time = ticks.wrapping_mul(u64::from(increment & 0xff_ffff));
        #[expect(clippy::cast_possible_truncation, reason = "the halves of a clock that wraps")]
        if offset == regs::SYSTIML {
            time as u32
        } else {
            (time >> 32) as u32
        }
    }
}

/// The register that byte `offset` belongs to.
fn register(offset: u64) -> u32 {
    u32::try_from(offset & !3).unwrap_or(!3)
}
