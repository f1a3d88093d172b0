//! Being taken over by another process: what an image of the device holds.
//!
//! The memory is a file. Where the rings of a guest that has begun are stands in its own blocks, which are
//! written behind each batch: nothing has to be written down for them. So the successor of a killed process
//! may send again the batch that was being sent, and the batch that was being delivered is lost. A guest that
//! has written nonsense there loses its port, as by any other nonsense. Places of rings whose guest has ended
//! are in the image. The positions of a pipe stand in the pipe's memory.
//!
//! An image is believed no more than a guest: what stands in it was checked when the guest wrote it, and is
//! checked again.

use std::os::fd::{BorrowedFd, OwnedFd};

use super::access::may_have_header;
use super::function::Registers;
use super::messages::RingUse;
use super::{Pair, Ptnet, MAX_PAIRS};
use crate::device::pci::{Command, Format, Image, Persist};
use crate::device::Queue;
use crate::mem::halves;
use crate::ring::Side as EndSide;
use crate::util::fault::Fault;

/// Changes with the meaning of anything here.
const VERSION: u32 = 1;

/// Places in the image.
const CONFIG_WORDS: usize = 256 / 8;
pub(super) const REGISTERS: usize = CONFIG_WORDS;
pub(super) const REST: usize = REGISTERS + 4;
pub(super) const PLACES: usize = REST + 4;
/// Words of a pair: its two rings' indices.
const PAIR: usize = 4;
const SIZE: usize = PLACES + PAIR * MAX_PAIRS;

fn pair(first: u32, second: u32) -> u64 {
    u64::from(first) | u64::from(second) << 32
}

impl Persist for Ptnet {
    fn format(&self) -> Format {
        // The geometry, without which the memory would be misread.
        let (settings, header) = (&self.settings, if self.settings.header { "h" } else { "" });
        let pipe = if settings.pipe.is_some() { " pipe" } else { "" };
        let kind = format!("ptnet{header}{pipe} {}x{}x{}", settings.pairs, settings.slots, settings.buf_size);
        Format { kind, version: VERSION, size: SIZE }
    }

    fn files(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.bar.region.file()]
    }

    fn save(&mut self, image: &mut Image) {
        image.put_bytes(0, &self.config.bytes);
        let Registers { features, status, high, blocks } = self.registers;
        let words = [pair(features, status), pair(high[0], high[1]), blocks[0], blocks[1]];
        words.into_iter().enumerate().for_each(|(at, word)| image.put(REGISTERS + at, word));
        image.put(REST, self.created.into());
        image.put(REST + 1, self.nic.header().bytes.into());
        image.put(REST + 2, self.bar.id.into());
        image.put(REST + 3, self.settings.pipe.as_ref().map_or(0, |end| end.side() as u64));
        for (number, pair_of) in self.pairs.iter_mut().enumerate() {
            let Pair { sender: Queue::Here(sender), receiver: Queue::Here(receiver) } = pair_of else {
                continue;
            };
            let at = PLACES + PAIR * number;
            if let (Some(tx), Some(rx)) = (sender.ring(), receiver.ring()) {
                image.put(at, tx.position()[1].into());
                let [_, hwcur, hwtail] = rx.position();
                image.put(at + 1, pair(hwcur, hwtail));
            }
        }
    }

    fn adopt(&mut self, files: Vec<OwnedFd>, image: &Image) -> Result<(), String> {
        let Ok([file]) = <[OwnedFd; 1]>::try_from(files) else {
            return Err("its files are not all there".to_owned());
        };
        let mut config = self.config.clone();
        config.restore(image, 0)?;
        let word = |at| image.get(REGISTERS + at);
        let ((features, status), high) = (halves(word(0)), halves(word(1)));
        if self.accepted(features) != features {
            return Err("its guest has features that this device does not offer".to_owned());
        }
        // The cores add it to lengths, and write so much before each frame.
        let header =
            u32::try_from(image.get(REST + 1)).ok().filter(|bytes| may_have_header(features, *bytes));
        let header = header.ok_or("its frames have a header that no guest can have")?;
        let id = u16::try_from(image.get(REST + 2)).unwrap_or(0);
        let side = if image.get(REST + 3) == 0 { EndSide::First } else { EndSide::Second };
        let source = self.current.source();
        // The last that a pipe can refuse, which then has this end.
        let bar = source.adopt(file, id, side).map_err(|e| e.to_string())?;
        let mut pairs = self.pairs_of(&bar.region);
        let placed = pairs.iter_mut().enumerate().all(|(number, pair)| {
            let at = PLACES + PAIR * number;
            let Pair { sender: Queue::Here(sender), receiver: Queue::Here(receiver) } = pair else {
                return true;
            };
            let ((sent, _), (first, last)) = (halves(image.get(at)), halves(image.get(at + 1)));
            sender.ring().is_none_or(|ring| ring.set_position(sent, sent))
                && receiver.ring().is_none_or(|ring| ring.set_position(first, last))
        });
        if !placed {
            return Err("its rings have other places".to_owned());
        }
        self.current.take_over(&bar);
        (self.config, self.bar, self.pairs) = (config, bar, pairs);
        self.registers = Registers { features, status, high: high.into(), blocks: [word(2), word(3)] };
        self.set_header(header);
        self.resumes = image.get(REST) != 0;
        Ok(())
    }

    fn resume(&mut self) {
        self.master = self.config.command().has(Command::MASTER);
        if !std::mem::take(&mut self.resumes) {
            return;
        }
        self.created = true;
        if !self.set_blocks_of_all(false) {
            return;
        }
        let recovered = self.pairs.iter_mut().all(|pair| match (&mut pair.sender, &mut pair.receiver) {
            (Queue::Here(sender), Queue::Here(receiver)) => sender.recover() && receiver.recover(),
            _ => false,
        });
        if !recovered {
            self.nic.port.fault.set(Fault::BadHead);
            return self.delete();
        }
        self.follow();
        for number in 0..self.pairs.len() {
            // Interrupts for what it may have missed. The next visits of the rings count these.
            self.nic.messages.raise(number, RingUse::Sends);
            self.nic.messages.raise(number, RingUse::Receives);
        }
    }

    /// If the guest ends (`DELETE`) while no daemon is there, the next daemon knows places of rings from the
    /// image alone, which is older than the guest's blocks. So a receiving ring is left empty: the guest
    /// would get frames a second time.
    fn stand_still(&mut self) -> bool {
        (self.still, self.created) = (true, std::mem::take(&mut self.resumes));
        for ring in self.pairs.iter_mut().filter_map(|pair| pair.receiver.take_back()?.ring()) {
            let [_, _, last] = ring.position();
            self.still &= !self.created || ring.set_position(last, last);
        }
        self.still
    }

    fn suspend(&mut self) {
        // Dropped, not only taken: what they hold is guest memory.
        for pair in &mut self.pairs {
            pair.sender.take_back();
            pair.receiver.take_back();
        }
        self.pairs.clear();
    }
}
