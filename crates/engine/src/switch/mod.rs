//! The learning switch (IEEE 802.1Q §8.8 in spirit, VALE in method).
//!
//! Theory of operation. A batch comes from one port. Pass 1 walks its frames: the MTU is checked, the
//! source address is learned, the destination looked up, and each frame is noted on the list of its
//! destination ([`Verdicts`]). Pass 2, in `core`, visits each destination once with its list. Lists keep
//! the order of the batch, and frames for everybody are merged in where they belong, so no flow is
//! reordered.
//!
//! Another lookup function can take the place of learning ([`Lookup`]): a hash of the flow, or a program of the
//! operator's. The rest stays as it is.
//!
//! Every group address is flooded: LACP, LLDP, STP and the other reserved addresses of 802.1Q table 8-1
//! included. The switch takes part in none of these protocols, and labs need them to pass.
//!
//! Limits: `table-size` addresses; `mac-limit` addresses per port, beyond which frames from new source
//! addresses are dropped with a name; entries age after `ageing` seconds.

mod lookup;
pub mod program;
mod table;
mod verdict;

use std::sync::atomic::{AtomicU32, Ordering};

pub use lookup::{Lookup, Members};
pub use table::{Entry, Learned, MacTable};
pub use verdict::{Verdicts, FLOOD};

use crate::frame::{is_group, Batch};
use crate::port::{DropReason, MacCount, Port, PortId};

/// What can be chosen about a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchOptions {
    /// Addresses that it can learn.
    pub table_size: usize,
    /// Seconds after which an address that was not seen is forgotten.
    pub ageing: u32,
}

impl Default for SwitchOptions {
    fn default() -> Self {
        // 802.1Q table 8-6 recommends 300 s.
        SwitchOptions { table_size: 8192, ageing: 300 }
    }
}

/// Where an address is.
#[derive(Clone, Copy)]
enum Way {
    To(PortId),
    Flood,
    /// At the port that asks.
    Back,
}

/// A learning switch.
pub struct Switch {
    /// Its name.
    pub name: String,
    /// Its MAC table.
    pub table: MacTable,
    /// How it finds destinations.
    pub lookup: Lookup,
    ageing: AtomicU32,
}

impl Switch {
    /// A learning switch that knows nobody yet.
    pub fn new(name: &str, options: SwitchOptions) -> Switch {
        Switch::with_lookup(name, options, Lookup::Learning)
    }

    /// A switch with that lookup function.
    pub fn with_lookup(name: &str, options: SwitchOptions, lookup: Lookup) -> Switch {
        Switch {
            name: name.to_owned(),
            lookup,
            table: MacTable::new(options.table_size),
            ageing: AtomicU32::new(options.ageing),
        }
    }

    /// Seconds after which an address that was not seen is forgotten.
    pub fn ageing(&self) -> u32 {
        self.ageing.load(Ordering::Relaxed)
    }

    /// Changes the ageing time.
    pub fn set_ageing(&self, seconds: u32) {
        self.ageing.store(seconds, Ordering::Relaxed);
    }

    /// Pass 1: a verdict for each frame of a batch from `from`, at time `now` in seconds, by the switch's lookup
    /// function. `macs` tells the counts of the port with a given number, for moves.
    #[inline]
    pub fn classify<'a>(
        &self,
        batch: &Batch,
        from: &Port,
        now: u32,
        members: &Members<'_, impl Fn(PortId) -> bool>,
        macs: impl Fn(PortId) -> Option<&'a MacCount>,
        verdicts: &mut Verdicts,
    ) {
        match &self.lookup {
            Lookup::Learning => self.learned(batch, from, now, macs, verdicts),
            Lookup::PortHash => lookup::port_hash(batch, from, members, verdicts),
            Lookup::Program(program) => lookup::ask(program, batch, from, members, verdicts),
        }
    }

    #[inline]
    fn learned<'a>(
        &self,
        batch: &Batch,
        from: &Port,
        now: u32,
        macs: impl Fn(PortId) -> Option<&'a MacCount>,
        verdicts: &mut Verdicts,
    ) {
        let mut last = u64::MAX;
        for frame in batch.frames() {
            if frame.dst() != last {
                last = frame.dst();
                self.table.prefetch(last);
            }
        }
        // Frames of one flow come in a row: what was decided on one goes for those behind it.
        let mut last_src = 0;
        let mut last_dst = (u64::MAX, Way::Flood);
        for (i, frame) in batch.frames().iter().enumerate() {
            let (src, dst) = (frame.src(), frame.dst());
            if from.is_too_long(frame) {
                verdicts.drop(i, DropReason::TooLong);
                continue;
            }
            if src != last_src && !is_group(src) {
                if !self.learn(src, from, now, &macs) {
                    verdicts.drop(i, DropReason::MacLimit);
                    continue;
                }
                last_src = src;
            }
            if dst != last_dst.0 {
                last_dst = (dst, self.way(dst, from.id));
            }
            match last_dst.1 {
                Way::To(port) => verdicts.send(i, port),
                Way::Flood => verdicts.flood(i),
                Way::Back => verdicts.drop(i, DropReason::Hairpin),
            }
        }
    }

    #[inline]
    fn way(&self, dst: u64, from: PortId) -> Way {
        if is_group(dst) {
            return Way::Flood;
        }
        match self.table.lookup(dst) {
            Some(port) if port == from => Way::Back,
            Some(port) => Way::To(port),
            None => Way::Flood,
        }
    }

    #[inline]
    fn learn<'a>(
        &self,
        src: u64,
        from: &Port,
        now: u32,
        macs: &impl Fn(PortId) -> Option<&'a MacCount>,
    ) -> bool {
        let count = &from.macs;
        if count.is_full() && self.table.lookup(src) != Some(from.id) {
            return false;
        }
        match self.table.learn(src, from.id, now, self.ageing()) {
            Learned::Known | Learned::Full => {}
            Learned::New => count.add(),
            Learned::Moved(old) => {
                count.add();
                if let Some(old) = macs(old) {
                    old.sub();
                }
            }
        }
        true
    }

    /// Forgets addresses that have aged, telling the ports that they lived behind. For the control plane,
    /// every few seconds.
    pub fn age<'a>(&self, now: u32, macs: impl Fn(PortId) -> Option<&'a MacCount>) {
        let ageing = self.ageing();
        self.table.sweep(|entry| {
            let stale = now.wrapping_sub(entry.seen) >= ageing;
            if stale {
                if let Some(count) = macs(entry.port) {
                    count.sub();
                }
            }
            stale
        });
    }

    /// Forgets everything behind `port`: it is gone, or its link went down.
    pub fn forget(&self, port: PortId) {
        self.table.sweep(|entry| entry.port == port);
    }
}
