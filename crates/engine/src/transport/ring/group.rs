//! Ring ports that share a memory: `memory=NAME`.
//!
//! Off by default, so that no client sees a neighbour's frames. The ports of one NAME have one region, of
//! which each has a part (`ring::SharedMemory`); their clients may exchange buffers between them, as those of
//! netmap's ports with equal memory numbers do. The memory is there while any of the ports has a client or an
//! open pipe.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, Weak};

use sidecore_abi::ring::Info;

use super::super::Unable;
use crate::ring::{Geometry, Region, SharedMemory};

/// The first number of a shared memory: far from those of ports and of monitors.
const FIRST_MEMORY: u32 = 1 << 14;

/// Memories by their names, and how many there have been.
static GROUPS: Mutex<(BTreeMap<String, Weak<Group>>, u32)> = Mutex::new((BTreeMap::new(), 0));

/// Ports that share a memory.
struct Group {
    geometry: Geometry,
    mem_id: u32,
    state: Mutex<GroupState>,
}

#[derive(Default)]
struct GroupState {
    /// Parts that ports have, a bit each.
    taken: u32,
    memory: Weak<SharedMemory>,
}

/// A port's part of a shared memory.
pub(super) struct Member {
    group: Arc<Group>,
    number: u32,
}

impl Member {
    /// A part of the memory `name` for a port with these rings.
    pub(super) fn join(name: &str, geometry: &Geometry) -> Result<Member, Unable> {
        let mut groups = crate::lock(&GROUPS);
        let there = groups.0.get(name).and_then(Weak::upgrade);
        let group = match there {
            Some(group) if group.geometry != *geometry => {
                return Err(format!("memory {name:?} is shared by ports of other rings: queues, slots, buf-size, extra-bufs and pipes have to be the same").into())
            }
            Some(group) => group,
            None => {
                // Numbers are used anew after as many memories as fit below the monitors'.
                let mem_id = FIRST_MEMORY + groups.1 % 0x2000;
                groups.1 += 1;
                let group = Arc::new(Group { geometry: *geometry, mem_id, state: Mutex::default() });
                groups.0.insert(name.to_owned(), Arc::downgrade(&group));
                group
            }
        };
        let mut state = crate::lock(&group.state);
        let number = state.taken.trailing_ones();
        if number >= SharedMemory::MEMBERS {
            let most = SharedMemory::MEMBERS;
            return Err(format!(
                "memory {name:?} is shared by {most} ports already, and there may be no more"
            )
            .into());
        }
        state.taken |= 1 << number;
        drop(state);
        Ok(Member { group, number })
    }

    /// Where the port's part is.
    pub(super) fn info(&self) -> Result<Info, Unable> {
        let info = SharedMemory::layout(&self.group.geometry, self.number)?;
        Ok(Info { mem_id: self.group.mem_id, ..info })
    }

    pub(super) fn mem_id(&self) -> u32 {
        self.group.mem_id
    }

    /// The port's part, what keeps the memory, and whether a client had the part before.
    pub(super) fn region(&self, name: &str) -> io::Result<(Region, Arc<SharedMemory>, bool)> {
        let mut state = crate::lock(&self.group.state);
        let memory = match state.memory.upgrade() {
            Some(memory) => memory,
            None => {
                let memory = Arc::new(SharedMemory::new(&self.group.geometry)?);
                state.memory = Arc::downgrade(&memory);
                memory
            }
        };
        let (region, used) = memory.member(self.number, name)?;
        Ok((region, memory, used))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        crate::lock(&self.group.state).taken &= !(1 << self.number);
    }
}
