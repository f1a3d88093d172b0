//! PCI functions: what every emulated PCI device has in common, whatever transport carries it.
//!
//! Theory of operation. A device model implements [`PciDevice`]: registers behind regions, a
//! [`ConfigSpace`] and [`Interrupts`]. A transport (today `transport::vfio_user`) owns the conversation with
//! the VMM, serves configuration space out of `ConfigSpace`, and calls the model for everything else. The
//! model never sees a message, the transport never sees a register.
//!
//! **Threads.** Every method of `PciDevice` runs on one thread at a time: the conversation thread, or the
//! control plane where the method says so, never an I/O core. The transport holds a lock around each call, so
//! `&mut self` is meant literally. What runs on I/O cores are the queues that the model gives to the
//! [`Scheduler`](crate::graph::Scheduler) and to its [`Port`](crate::port::Port); they share with the model
//! what the model chose to share: usually an `Arc` with atomics, the [`SharedPages`] whose words the guest
//! writes without a trap, and the [`Interrupts`]. To change anything else about a running queue the model
//! takes it back (`core::Lease`), changes it and serves it again: that is the quiescent point that memory
//! going away needs. Calls should take microseconds, not milliseconds: a vCPU stands still while it waits for
//! the answer.
//!
//! **Interrupts** go from an I/O core straight to the guest: [`Interrupts::message`] and
//! [`Interrupts::set_level`] take one mutex that no thread holds for long, and write one eventfd.

mod config;
mod interrupts;
mod persist;

use std::io;
use std::sync::Arc;

pub use config::{Area, Command, ConfigSpace, Identity, MappablePages, MsixPlace, Region, Space, REGIONS};
pub use interrupts::{Index, Interrupts, Mode};
pub use persist::{Format, Image, Persist};

use crate::mem::GuestMap;
#[cfg(doc)]
use crate::mem::SharedPages;
use crate::port::QueueStatus;
use crate::util::fault::Fault;

/// A device model. See the module's words on threads.
pub trait PciDevice: Send {
    /// A VMM comes, which no other process has left to this one. Comes before anything else: memory that it
    /// will map is known to none that came before it, which may have kept a mapping.
    ///
    /// # Errors
    /// The system refuses memory or descriptors: this VMM is not served.
    fn attached(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// BARs 0 to 5, and nothing for the ROM; `None` where there is none. Asked once, before all but
    /// [`attached`](PciDevice::attached).
    fn regions(&self) -> [Option<Region>; REGIONS];

    /// Its configuration space. The transport serves it; the model may look at it and, in its own calls,
    /// change it.
    fn config(&mut self) -> &mut ConfigSpace;

    /// Its interrupts: the same object for the device's whole life.
    fn interrupts(&self) -> &Arc<Interrupts>;

    /// A read of `data.len()` bytes at `offset` of region `region`. `data` is zeroed. The access is 1, 2 or 4
    /// bytes long, aligned to its length and inside the region; what the guest did in other shapes arrives in
    /// pieces, in order. MappablePages areas are read this way, too, when the VMM has no mapping of them.
    fn read(&mut self, region: usize, offset: u64, data: &mut [u8]);

    /// A write, of the same shapes as a read.
    fn write(&mut self, region: usize, offset: u64, data: &[u8]);

    /// The guest changed what the device may do: without [`Command::MASTER`] it must not touch guest memory.
    fn command_changed(&mut self, command: Command);

    /// Guest memory is now what `map` says, and nothing else. When this returns, no queue of the device holds
    /// an earlier map: take the queues back, give them this one, serve them again. A queue whose ring is not
    /// in the new map stops.
    fn dma_changed(&mut self, map: Arc<GuestMap>);

    /// Back to the state after power on: queues taken back and dropped, registers at their reset values,
    /// shared pages zeroed. The map stays. The configuration space and the interrupts have been reset before.
    fn reset(&mut self);

    /// A queue left `fault` in the port: take the queues back. The device may start again when the guest
    /// resets it; the code that starts queues again clears the port's fault first.
    fn faulted(&mut self, fault: Fault);

    /// The VMM is gone: as `reset`, and there is no guest to interrupt. `dma_changed` with an empty map
    /// follows.
    fn detached(&mut self) {
        self.reset();
    }

    /// Puts the carrier up or down. Called from the control plane.
    fn set_link(&mut self, up: bool);

    /// Its queues, for `show`. Called from the control plane.
    fn queues(&self) -> Vec<QueueStatus>;

    /// What the driver has turned on, for `show`. Called from the control plane.
    fn features(&self) -> Vec<String>;

    /// What only devices can do that another process can take over.
    fn persist(&mut self) -> Option<&mut dyn Persist> {
        None
    }
}

/// Reads configuration space for the guest. Bytes beyond its end read as ones, as on a bus where no device
/// answers.
pub fn read_config(device: &mut dyn PciDevice, offset: u64, data: &mut [u8]) {
    data.fill(0xff);
    let level = device.interrupts().level();
    let config = device.config();
    config.set_interrupt_status(level);
    config.read(offset, data);
}

/// Writes configuration space for the guest and lets the device know what came of it.
pub fn write_config(device: &mut dyn PciDevice, offset: u64, data: &[u8]) {
    let config = device.config();
    let before = config.command();
    let function_reset = config.write(offset, data);
    if function_reset {
        reset(device);
        return;
    }
    follow_config(device, before);
}

/// Answers a guest that reads all of the register `word`, or the byte or half of it that is at `offset`.
pub(super) fn answer(word: u32, offset: u64, data: &mut [u8]) {
    let from = word.to_le_bytes();
    data.iter_mut().zip(from.iter().skip((offset & 3) as usize)).for_each(|(to, from)| *to = *from);
}

/// Resets the function: configuration space, interrupts, device.
pub fn reset(device: &mut dyn PciDevice) {
    let config = device.config();
    let before = config.command();
    config.reset();
    device.interrupts().reset();
    device.reset();
    follow_config(device, before);
}

/// Lets a device that was taken over go on: its configuration space says how.
pub fn resume(device: &mut dyn PciDevice) {
    let command = device.config().command();
    follow_config(device, command);
    if let Some(device) = device.persist() {
        device.resume();
    }
}

/// Lets a device that was taken over answer its driver, and do nothing else. False: it cannot.
pub fn stand_still(device: &mut dyn PciDevice) -> bool {
    device.interrupts().silence();
    let command = device.config().command();
    follow_config(device, command);
    device.persist().is_some_and(Persist::stand_still)
}

fn follow_config(device: &mut dyn PciDevice, before: Command) {
    let config = device.config();
    let (command, mode) = (config.command(), config.interrupt_mode());
    device.interrupts().set_mode(mode);
    device.interrupts().set_intx_disabled(command.has(Command::INTX_DISABLE));
    if command != before {
        device.command_changed(command);
    }
}
