//! ptnet: a guest drives the rings and buffers of a port of ours directly ("Flexible Virtual Machine
//! Networking Using Netmap Passthrough", Maffione, Rizzo, Lettieri).
//!
//! Theory of operation. A region of netmap's rings (`ring::Region`), one for each guest, is a BAR that the
//! guest maps ([`MemoryDevice`], a function of its own). Slots change hands by blocks in the guest's memory
//! (`sidecore_abi::ptnet`), which the I/O cores poll: no descriptor is translated, and nothing leaves the
//! guest on the data path. What stands in a slot is read once and bounded; frames are copied once, from the
//! sender's buffer to the receiver's (`slots`). Registers set all of this up and carry kicks, which are
//! declined while a core polls.
//!
//! Files in the order of a frame's way: `sender` the way in, `receiver` the way out, `messages` when each
//! side is interrupted; `access` is what a trapped access does to the registers, `function` what an operator
//! chooses, and with `memory` what the guest's bus finds, `bar` the memory that both have, `persist` what
//! another process goes on from, `nic` what the cores and the conversation have in common.
//!
//! Ownership. [`Ptnet`] belongs to the conversation with the VMM. Each ring belongs to its queue. A guest
//! that ends ([`DELETE`](sidecore_abi::ptnet::DELETE), a reset, memory that goes) has all queues taken back
//! before it is answered: from then on no core touches its blocks. Rings go on where they were when it begins
//! again; a reset puts everything in the region back to its start.
//!
//! A port may be an end of a pipe (`slots::pipe`) instead of a port of a switch. Then its rings lead to the
//! other end's in the same memory, and the I/O core that serves a sending ring moves slots and indices, never
//! a frame: each ring is one half of one direction of the pipe.
//!
//! *Host rings* are not connected, but netmap in a guest uses the ring offsets in the interface structure.
//! Its kernel module reads them before it starts the device, and takes a missing offset for the structure
//! itself. Its programs read them later, and take each ring with an offset for one of theirs. So the
//! structure has the offsets until the guest starts, and again when it ends.
//!
//! An impossible head, in any ring, stops the port with a fault until the guest starts again. Impossible
//! slots are dropped as frames, or skipped as buffers, and counted.
//!
//! Limits. One guest a region. Only guests that know of [`LINK`] are shown the link; while it is down, frames
//! are dropped. A region's rings are [`MAX_PAIRS`] pairs at most.

mod access;
mod bar;
mod function;
mod memory;
mod messages;
mod nic;
mod persist;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use rustix::io::Errno;
use sidecore_abi::ptnet::{reg, LINK};

use self::bar::{Bar, Current, PtnetFunction};
use self::function::{nic_config, nic_regions, Registers};
pub use self::function::{PtnetConfig, MAX_PAIRS, VNET_HDR};
pub use self::memory::MemoryDevice;
use self::messages::{Messages, RingUse};
use self::nic::NicState;
use self::receiver::Receiver;
use self::sender::Sender;
use super::pci::{answer, Command, ConfigSpace, Interrupts, PciDevice, Persist, Region as Window, REGIONS};
use super::Queue;
use crate::graph::Scheduler;
use crate::mem::GuestMap;
use crate::port::{Port, QueueStatus};
use crate::ring::{Block, Region, Side};
use crate::util::fault::Fault;

/// A pair of rings.
struct Pair {
    sender: Queue<Sender>,
    receiver: Queue<Receiver>,
}

/// A ptnet device.
pub struct Ptnet {
    nic: Arc<NicState>,
    settings: PtnetConfig,
    config: ConfigSpace,
    /// What its VMM has.
    bar: Arc<Bar>,
    /// What the next one is to have.
    current: Current,
    scheduler: Arc<dyn Scheduler>,
    map: Arc<GuestMap>,
    pairs: Vec<Pair>,
    registers: Registers,
    /// The guest has begun.
    created: bool,
    /// The guest lets it reach memory.
    master: bool,
    /// The blocks are in the guest's memory.
    reached: bool,
    /// Between `adopt` and `resume`: the guest had begun.
    resumes: bool,
    /// It stands in its holder's process, where no core serves rings: no guest can begin.
    still: bool,
}

/// What stands behind the name of a port for the conversation of its memory device.
const MEMORY_NAME: &str = ".mem";
/// The number of the first port's memory: netmap's own has number 1.
const FIRST_MEMORY: u16 = 2;

/// A device behind `port` with memory of its own: the two functions, and for the second one's conversation a
/// port that has its own faults, and is charged for itself.
///
/// # Errors
/// There is no memory, or the system refuses descriptors.
pub fn functions(
    settings: PtnetConfig,
    port: &Arc<Port>,
    scheduler: Arc<dyn Scheduler>,
) -> io::Result<(Ptnet, MemoryDevice, Arc<Port>)> {
    let current = Current::new(settings.source(port), memory_id(port))?;
    let name = format!("{}{MEMORY_NAME}", port.name);
    let beside = Arc::new(Port::new(port.id, &name, port.counters.clone(), port.mtu())?);
    let memory = MemoryDevice::new(&current, &beside, None);
    let nic = Ptnet::new(settings, Arc::clone(port), scheduler, current)?;
    Ok((nic, memory, beside))
}

/// One of the functions behind `port`, alone in its holder's process: the memory device, which is at this end
/// of a pipe if it is at one, or else the NIC. It has what it adopts.
///
/// # Errors
/// As for [`functions`].
pub fn function_alone(
    settings: PtnetConfig,
    port: &Arc<Port>,
    scheduler: Arc<dyn Scheduler>,
    memory: Option<Side>,
) -> io::Result<Box<dyn PciDevice>> {
    let current = Current::alone(settings.source(port), memory_id(port))?;
    Ok(match memory {
        Some(_) => Box::new(MemoryDevice::new(&current, port, memory)),
        None => Box::new(Ptnet::new(settings, Arc::clone(port), scheduler, current)?),
    })
}

/// By which drivers find the memory of a device behind `port`.
fn memory_id(port: &Port) -> u16 {
    port.id.0.saturating_add(FIRST_MEMORY)
}

impl Ptnet {
    /// A device behind `port` whose rings are those of `current`, which are made for its settings;
    /// `scheduler` serves them.
    fn new(
        settings: PtnetConfig,
        port: Arc<Port>,
        scheduler: Arc<dyn Scheduler>,
        current: Current,
    ) -> io::Result<Ptnet> {
        let pairs = settings.pairs;
        let rings = u16::try_from(2 * pairs).unwrap_or(u16::MAX);
        let interrupts = Interrupts::new(false, 0, rings, &port.overrun);
        let messages = Messages::new(interrupts, pairs, settings.moderation)?;
        let mut device = Ptnet {
            nic: Arc::new(NicState::new(port, messages, pairs)),
            config: nic_config(rings),
            settings,
            bar: current.get(),
            current,
            scheduler,
            map: Arc::default(),
            pairs: Vec::new(),
            registers: Registers::default(),
            created: false,
            master: false,
            reached: false,
            resumes: false,
            still: false,
        };
        device.begin_anew();
        Ok(device)
    }

    /// All queues at home, and everything as after power on.
    fn begin_anew(&mut self) {
        self.delete();
        self.registers = Registers::default();
        self.nic.set_header(0, false);
        self.nic.messages.reset();
        // First all queues leave the region.
        self.pairs.clear();
        match &self.settings.pipe {
            Some(end) => end.restart(),
            None => self.bar.region.fill(&self.nic.port.name),
        }
        self.pairs = self.pairs_of(&self.bar.region);
        // Also a fault that was not reported yet: it would stop the device after its reset.
        self.nic.port.fault.clear();
    }

    /// Those of `region`, at their start.
    fn pairs_of(&self, region: &Arc<Region>) -> Vec<Pair> {
        let pipe = self.settings.pipe.as_deref();
        let pair = |number| Pair {
            sender: Queue::Here(Sender::new(Arc::clone(&self.nic), region, pipe, number)),
            receiver: Queue::Here(Receiver::new(Arc::clone(&self.nic), region, pipe, number)),
        };
        (0..self.settings.pairs).map(pair).collect()
    }

    /// The guest begins.
    fn create(&mut self) -> Result<(), Errno> {
        if self.created && self.nic.port.fault.get().is_none() {
            return Ok(());
        }
        // Also after a fault that was not reported yet.
        self.delete();
        if self.still {
            return Err(Errno::AGAIN);
        }
        if self.registers.blocks.contains(&0) {
            return Err(Errno::NXIO);
        }
        if !self.master {
            return Err(Errno::PERM);
        }
        if !self.current.is_joined(&self.bar) {
            tracing::warn!(port = %self.nic.port.name, "its driver cannot begin: no VMM has the memory device with this NIC's memory");
            return Err(Errno::NODEV);
        }
        if !self.set_blocks_of_all(true) {
            return Err(Errno::FAULT);
        }
        self.nic.port.fault.clear();
        self.created = true;
        self.bar.region.place_host_rings(false);
        self.follow();
        Ok(())
    }

    /// The guest ends: when this returns no core touches its blocks.
    fn delete(&mut self) {
        self.created = false;
        self.follow();
        self.forget_blocks();
        self.bar.region.place_host_rings(true);
    }

    /// No ring, all of which are at home, has a block any more.
    fn forget_blocks(&mut self) {
        let none = Arc::default();
        for pair in &mut self.pairs {
            if let (Some(sender), Some(receiver)) = (pair.sender.take_back(), pair.receiver.take_back()) {
                // What the guest has given up or released by now counts when it begins again.
                if self.reached {
                    sender.look();
                    receiver.look();
                }
                sender.set_block(None, &none, false);
                receiver.set_block(None, &none, false);
            }
        }
        self.reached = false;
    }

    /// Has all rings, which are at home, use the blocks that the registers name; fills these in if the guest
    /// begins. False: they are not all in its memory, and none is used.
    fn set_blocks_of_all(&mut self, begins: bool) -> bool {
        let (map, count) = (&self.map, self.pairs.len());
        let find =
            |ring: usize| Block::find(map, self.registers.blocks, u32::try_from(ring).unwrap_or(u32::MAX));
        let blocks: Option<Vec<[Block; 2]>> =
            (0..count).map(|number| Some([find(number)?, find(count + number)?])).collect();
        let Some(blocks) = blocks else { return false };
        for (pair, [sends, receives]) in self.pairs.iter_mut().zip(blocks) {
            if let (Some(sender), Some(receiver)) = (pair.sender.take_back(), pair.receiver.take_back()) {
                sender.set_block(Some(sends), map, begins);
                receiver.set_block(Some(receives), map, begins);
            }
        }
        self.reached = true;
        self.show_link();
        true
    }

    /// Shows the link in the first receiving ring's block, which is at home, to a guest that looks there.
    fn show_link(&mut self) {
        let shown = self.registers.features & LINK != 0 && self.reached;
        let receiver = self.pairs.first_mut().filter(|_| shown).and_then(|pair| pair.receiver.take_back());
        if let Some(receiver) = receiver {
            receiver.set_link(!self.nic.is_down());
        }
    }

    /// Puts the queues where they belong: with cores and port, or here.
    fn follow(&mut self) {
        let runs = self.created && self.master && self.reached;
        for (number, pair) in self.pairs.iter_mut().enumerate() {
            if runs {
                pair.receiver.lend(|mut queue| {
                    queue.show();
                    self.nic.port.lend(number, queue)
                });
                pair.sender.lend(|queue| self.scheduler.serve(&self.nic.port, number, queue));
            } else {
                pair.sender.take_back();
                pair.receiver.take_back();
            }
        }
    }

    /// Why rings do not run.
    fn why_off(&self) -> &'static str {
        if let Some(fault) = self.nic.port.fault.get() {
            return match fault {
                Fault::BadHead => "stopped by a head that makes no sense, until the driver begins again",
                _ => "stopped by a fault until the driver begins again",
            };
        }
        match (self.created, self.master) {
            (false, _) => "the driver has not begun",
            (true, false) => "the guest does not let the device reach memory",
            (true, true) => "its status blocks are not in the memory that the VMM shares",
        }
    }
}

impl PciDevice for Ptnet {
    fn attached(&mut self) -> io::Result<()> {
        self.bar = self.current.join(PtnetFunction::Nic)?;
        // Its queues are those of the former one.
        self.begin_anew();
        Ok(())
    }

    fn regions(&self) -> [Option<Window>; REGIONS] {
        nic_regions()
    }

    fn config(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn interrupts(&self) -> &Arc<Interrupts> {
        &self.nic.messages.interrupts
    }

    fn read(&mut self, region: usize, offset: u64, data: &mut [u8]) {
        let word = match (region, offset & !3) {
            (0, register) => self.register(register),
            (2, pending) if pending == u64::from(reg::PENDING) => self.nic.messages.interrupts.pending(),
            // The VMM has the table.
            _ => return,
        };
        answer(word, offset, data);
    }

    fn write(&mut self, region: usize, offset: u64, data: &[u8]) {
        // Registers have 32 bits, and what writes a part of one is no driver.
        if let (0, Ok(value)) = (region, data.try_into().map(u32::from_le_bytes)) {
            self.set_register(offset, value);
        }
    }

    fn command_changed(&mut self, command: Command) {
        self.master = command.has(Command::MASTER);
        self.follow();
    }

    fn dma_changed(&mut self, map: Arc<GuestMap>) {
        // Back in order: nothing may refer to the old map when this returns.
        let created = std::mem::replace(&mut self.created, false);
        self.follow();
        self.forget_blocks();
        self.map = map;
        self.created = created;
        if created {
            self.set_blocks_of_all(false);
            self.follow();
        }
    }

    fn reset(&mut self) {
        self.master = false;
        self.begin_anew();
    }

    /// The guest has to begin again.
    fn faulted(&mut self, _: Fault) {
        self.delete();
    }

    fn detached(&mut self) {
        self.reset();
        self.current.leave(PtnetFunction::Nic, &self.bar);
    }

    fn set_link(&mut self, up: bool) {
        if self.nic.is_down() != up {
            return;
        }
        self.nic.set_down(!up);
        self.show_link();
        self.follow();
        if self.registers.features & LINK != 0 && self.created {
            // The next delivery counts it.
            self.nic.messages.raise(0, RingUse::Receives);
        }
    }

    fn queues(&self) -> Vec<QueueStatus> {
        let info = self.bar.region.info();
        let queue = |index, direction, size, way, on| QueueStatus {
            index,
            direction,
            size,
            kind: "ptnet",
            state: if on { "running" } else { self.why_off() }.to_owned(),
            interrupts: Some(self.nic.messages.passed(index, way)),
        };
        let pairs = || self.pairs.iter().enumerate();
        let sending = pairs()
            .map(|(n, pair)| queue(n, "ingress", info.tx_slots, RingUse::Sends, pair.sender.is_lent()));
        let receiving = pairs()
            .map(|(n, pair)| queue(n, "egress", info.rx_slots, RingUse::Receives, pair.receiver.is_lent()));
        sending.chain(receiving).collect()
    }

    fn features(&self) -> Vec<String> {
        let header = (self.nic.header().bytes > 0).then(|| VNET_HDR.to_owned());
        let kicks = format!("kicks={}", self.nic.kicks.load(Ordering::Relaxed));
        header.into_iter().chain([kicks]).collect()
    }

    fn persist(&mut self) -> Option<&mut dyn Persist> {
        Some(self)
    }
}
