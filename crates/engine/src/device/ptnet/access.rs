//! What a trapped access to the registers does.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::sync::atomic::Ordering;

use rustix::io::Errno;
use sidecore_abi::ptnet::{reg, CREATE, DELETE, GUEST_USO, HOST_USO, LINK, VNET_HDR, VNET_HDR_LEN};

use super::Ptnet;

impl Ptnet {
    /// Register `offset`; zero where there is none.
    pub(super) fn register(&self, offset: u64) -> u32 {
        let [a, b, c, d, e, f] = self.settings.mac.0;
        let info = self.bar.region.info();
        let pairs = u32::try_from(self.settings.pairs).unwrap_or(u32::MAX);
        match offset {
            reg::PTFEAT => self.registers.features,
            reg::PTCTL => self.registers.status,
            reg::MAC_LO => u32::from_be_bytes([c, d, e, f]),
            reg::MAC_HI => u32::from_be_bytes([0, 0, a, b]),
            // The interface is at the region's beginning.
            reg::NIFP_OFS => u32::try_from(info.interface).unwrap_or(0),
            reg::NUM_TX_RINGS | reg::NUM_RX_RINGS => pairs,
            reg::NUM_TX_SLOTS => info.tx_slots,
            reg::NUM_RX_SLOTS => info.rx_slots,
            reg::VNET_HDR_LEN => self.nic.header().bytes,
            reg::HOSTMEMID => self.bar.id.into(),
            reg::MTU => self.nic.port.mtu(),
            _ => 0,
        }
    }

    /// The guest writes `value` to register `offset`.
    pub(super) fn set_register(&mut self, offset: u64, value: u32) {
        match offset {
            reg::PTFEAT => {
                self.registers.features = self.accepted(value);
                // Without the feature there is no header.
                let bytes = self.nic.header().bytes;
                self.set_header(if may_have_header(self.registers.features, bytes) { bytes } else { 0 });
            }
            reg::PTCTL => {
                let done = match value {
                    CREATE => self.create(),
                    DELETE => {
                        self.delete();
                        Ok(())
                    }
                    _ => Err(Errno::INVAL),
                };
                self.registers.status = done.err().map_or(0, |e| e.raw_os_error().unsigned_abs());
            }
            // What is refused leaves it as it was, and the guest reads that.
            reg::VNET_HDR_LEN if may_have_header(self.registers.features, value) => self.set_header(value),
            reg::CSB_GH_BAH => self.registers.high[0] = value,
            reg::CSB_GH_BAL => self.set_blocks(0, value),
            reg::CSB_HG_BAH => self.registers.high[1] = value,
            reg::CSB_HG_BAL => self.set_blocks(1, value),
            reg::KICKS.. => self.kick((offset - reg::KICKS) / 4),
            _ => {}
        }
    }

    /// What a guest gets of the features `asked`.
    pub(super) fn accepted(&self, asked: u32) -> u32 {
        let header = self.settings.header && self.settings.pipe.is_none() && asked & VNET_HDR != 0;
        asked & if header { VNET_HDR | HOST_USO | GUEST_USO | LINK } else { LINK }
    }

    /// Frames have a header of this length.
    pub(super) fn set_header(&self, bytes: u32) {
        self.nic.set_header(bytes, self.registers.features & GUEST_USO != 0);
    }

    /// Where blocks begin, the guest's or ours: whatever went on by the former ones ends.
    fn set_blocks(&mut self, which: usize, low: u32) {
        self.delete();
        let registers = &mut self.registers;
        if let (Some(block), Some(high)) = (registers.blocks.get_mut(which), registers.high.get(which)) {
            *block = u64::from(*high) << 32 | u64::from(low);
        }
    }

    /// Ring `ring` was kicked. The core that serves it is woken if it sleeps, and the guest goes on at once.
    fn kick(&self, ring: u64) {
        let pairs = self.settings.pairs;
        let number = usize::try_from(ring).ok().filter(|ring| *ring < 2 * pairs);
        if let Some(number) = number {
            self.nic.kicks.fetch_add(1, Ordering::Relaxed);
            self.nic.messages.alarm(number % pairs).wake_sleeper();
        }
    }
}

/// Whether a guest with `features` may have a header of `bytes` bytes before each frame.
pub(super) fn may_have_header(features: u32, bytes: u32) -> bool {
    bytes == 0 || bytes == VNET_HDR_LEN && features & VNET_HDR != 0
}
