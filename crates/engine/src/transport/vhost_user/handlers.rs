//! The messages, each with what it changes. How a change is made under rings that run is `backend`'s affair.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use sidecore_abi::virtio::features as bit;

use super::backend::{Backend, TRANSPORT_FEATURES};
use super::channel::Descriptors;
use super::journal::RingSlots;
use super::log::DirtyLog;
use super::messages::*;
use super::ring::{Addresses, Base, Kick, Vring};
use crate::device::VirtioDevice;
use crate::mem::{eventfd, is_stream, GuestMap, SharedFile, MAX_REGIONS};
use crate::virtq::WriteLog;

/// SET_STATUS 0 resets the device (virtio 1.2 §2.4).
const STATUS_RESET: u64 = 0;
/// Flag of a message with an eventfd: there is none, the ring is to be polled.
const NO_EVENT: u64 = 1 << 8;
/// Flag of SET_VRING_ADDR: the used ring is logged.
const LOGGED: u32 = 1;

/// An answer of its own: its payload, and a descriptor that goes with it.
pub(super) type Answer = (Vec<u8>, Option<OwnedFd>);
type Done = Result<(), String>;

fn number(value: u64) -> Answer {
    (value.to_le_bytes().to_vec(), None)
}

impl<D: VirtioDevice> Backend<D> {
    /// Carries a message out; the answer of those that have one of their own.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub(super) fn handle(
        &mut self,
        message: &Message,
        payload: &[u8],
        fds: Descriptors,
    ) -> Result<Option<Answer>, String> {
        message.check(self.protocol, fds.0.len())?;
        // One that came before the header was whole, when any could have been meant.
        if !message.takes_socket(&self.terms) && fds.has_sockets() {
            self.terms.refused();
            return Err("a socket is attached, but none belongs to it".to_owned());
        }
        let mut its = Payload(payload);
        Ok(Some(match message.code {
            GET_FEATURES => number(self.device.features() | TRANSPORT_FEATURES),
            GET_PROTOCOL_FEATURES => number(self.protocol_features()),
            GET_QUEUE_NUM => number(self.queues()),
            GET_MAX_MEM_SLOTS => number(MAX_REGIONS as u64),
            GET_STATUS => number(self.status),
            GET_VRING_BASE => {
                let index = its.u32();
                number(u64::from(self.vring_base(index)?) << 32 | u64::from(index))
            }
            GET_CONFIG => (self.config(its)?, None),
            GET_INFLIGHT_FD => self.make_inflight(its)?,
            SET_LOG_BASE => {
                self.set_log_base(its, fds)?;
                (payload.to_vec(), None)
            }
            code => return self.change(code, its, fds).map(|()| None),
        }))
    }

    fn change(&mut self, code: u32, mut its: Payload, fds: Descriptors) -> Done {
        match code {
            SET_FEATURES => self.set_features(its.u64()),
            SET_PROTOCOL_FEATURES => self.set_protocol_features(its.u64()),
            RESET_OWNER | RESET_DEVICE | SET_STATUS => {
                // A reset of the owner leaves the status.
                if code != RESET_OWNER {
                    self.status = its.u64();
                }
                if code != SET_STATUS || self.status == STATUS_RESET {
                    self.reset();
                }
                Ok(())
            }
            SET_MEM_TABLE => self.set_mem_table(its, fds),
            ADD_MEM_REG => self.add_mem_region(its, fds),
            REM_MEM_REG => self.remove_mem_region(its),
            SET_VRING_NUM => {
                let (index, num) = (its.u32(), its.u32());
                let size =
                    u16::try_from(num).map_err(|_| format!("ring {index} cannot have {num} entries"))?;
                self.set_ring(index, |ring| &mut ring.size, Some(size))
            }
            SET_VRING_ADDR => self.set_vring_addr(its),
            SET_VRING_BASE => self.set_vring_base(its.u32(), its.u32()),
            SET_VRING_ENABLE => match (its.u32(), its.u32()) {
                (index, enable @ (0 | 1)) => {
                    self.set_ring(index, |ring| &mut ring.enabled, Some(enable == 1))
                }
                (_, other) => Err(format!("{other} is neither 0 nor 1")),
            },
            SET_VRING_KICK | SET_VRING_CALL | SET_VRING_ERR => self.set_event(code, its.u64(), fds),
            SEND_RARP => {
                let mac = its.u64().to_le_bytes();
                let network = self.device.network().ok_or("this is no network device")?;
                if let Err(why) = network.announce(std::array::from_fn(|at| mac[at])) {
                    tracing::warn!(port = %self.device.port().name, "RARP not sent: {why}");
                }
                Ok(())
            }
            NET_SET_MTU => self.device.network().ok_or("this is no network device")?.set_mtu(its.u64()),
            SET_BACKEND_REQ_FD => {
                let socket = fds.only()?;
                // Memory and eventfds pass the descriptor helper with any message. Taken for a channel, they
                // would be left to a helper, which ends with them.
                if !is_stream(&socket) {
                    return Err("the descriptor is no connected stream socket".to_owned());
                }
                self.channel.set(Some(socket));
                Ok(())
            }
            SET_CONFIG => {
                let (offset, size) = config_part(&mut its)?;
                let came = its.0.len();
                let bytes = its.0.get(..size).ok_or_else(|| format!("{came} of {size} bytes came"))?;
                self.device.write_config(offset, bytes);
                Ok(())
            }
            SET_INFLIGHT_FD => self.set_inflight(its, fds),
            // The latter is for error reports of a kernel back end, which has no better way.
            SET_OWNER | SET_LOG_FD => Ok(()),
            _ => Err("it is not handled".to_owned()),
        }
    }

    fn set_features(&mut self, features: u64) -> Done {
        let unknown = features & !(self.device.features() | TRANSPORT_FEATURES);
        if unknown != 0 {
            return Err(format!("features {unknown:#x} were not offered"));
        }
        // QEMU says the same for each queue pair: rings that run need not notice.
        if Some(features) != self.acked {
            self.stopped(self.all(), |backend| {
                if (features ^ backend.features()) & bit::RING_PACKED != 0 {
                    backend.rings.iter_mut().for_each(Vring::forget_place);
                }
                backend.acked = Some(features);
                backend.device.set_features(features & !TRANSPORT_FEATURES);
            });
        }
        Ok(())
    }

    fn set_protocol_features(&mut self, features: u64) -> Done {
        let unknown = features & !self.protocol_features();
        if unknown != 0 {
            return Err(format!("protocol features {unknown:#x} were not offered"));
        }
        self.protocol = features;
        Ok(())
    }

    fn set_mem_table(&mut self, mut its: Payload, mut fds: Descriptors) -> Done {
        let (count, _, files) = (its.u32() as usize, its.u32(), std::mem::take(&mut fds.0));
        if its.0.len() < 32 * count || files.len() != count {
            let (bytes, files) = (its.0.len(), files.len());
            return Err(format!("{count} regions came with {bytes} bytes and {files} descriptors"));
        }
        let regions: Vec<_> = files.into_iter().map(|file| its.region(file.into())).collect();
        let map = GuestMap::on(&self.terms, &regions).map_err(|e| e.to_string())?;
        let others = map.len() + self.map.as_deref().map_or(0, GuestMap::len);
        self.set_memory(map, others);
        Ok(())
    }

    /// Makes a change to one ring, which stops for it, if it is one.
    fn set_ring<T: PartialEq>(&mut self, index: u32, part: fn(&mut Vring) -> &mut T, value: T) -> Done {
        let at = self.index(index)?;
        if *part(&mut self.rings[at]) != value {
            self.stopped(at..at + 1, |backend| *part(&mut backend.rings[at]) = value);
        }
        Ok(())
    }

    fn set_vring_addr(&mut self, mut its: Payload) -> Done {
        let (index, flags) = (its.u32(), its.u32());
        let [desc, device, driver, log] = std::array::from_fn(|_| its.u64());
        if flags & !LOGGED != 0 || desc % 16 != 0 || driver % 2 != 0 || device % 4 != 0 {
            return Err(format!(
                "flags {flags:#x}, or an address ({desc:#x}, {driver:#x}, {device:#x}), cannot be"
            ));
        }
        let addresses = Addresses { desc, driver, device, log: (flags == LOGGED).then_some(log) };
        self.set_ring(index, |ring| &mut ring.addresses, Some(addresses))
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Done {
        let at = self.index(index)?;
        if self.rings[at].running {
            return Err(format!("ring {index} runs; its start index can only be set while it is stopped"));
        }
        // The position that we gave ourselves is better than its echo.
        if self.rings[at].base.to_wire() != base || self.rings[at].base == Base::Unknown {
            self.rings[at].base = Base::Sent(base);
        }
        self.start(at);
        Ok(())
    }

    fn vring_base(&mut self, index: u32) -> Result<u32, String> {
        let at = self.index(index)?;
        self.stop(at);
        self.rings[at].kick = Kick::Unknown;
        self.hand_over(at);
        Ok(self.rings[at].base.to_wire())
    }

    /// A ring has another eventfd, or none. Of interrupts it may be a socket, where the port takes one.
    fn set_event(&mut self, code: u32, value: u64, mut fds: Descriptors) -> Done {
        let (at, none) = (self.index((value & 0xff) as u32)?, value & NO_EVENT != 0);
        if fds.0.len() != usize::from(!none) {
            return Err(format!("{} descriptors came along with the value {value:#x}", fds.0.len()));
        }
        let socket = fds.0.iter().any(is_stream);
        if !socket {
            fds.0.iter().try_for_each(|fd| eventfd(fd, &self.terms).map(drop)).map_err(|e| e.to_string())?;
        }
        let event = fds.0.pop();
        match code {
            SET_VRING_KICK => {
                let kick = event.map_or(Kick::Polled, |event| Kick::Event(event.into()));
                self.stopped(at..at + 1, |backend| backend.rings[at].kick = kick);
            }
            SET_VRING_CALL => {
                // A ring of io_uring is made for it, and one is ended.
                self.changes(2);
                self.rings[at].interrupt_by(event, socket);
                // An interrupt that went to the old descriptor a moment ago may have been lost with it.
                if self.rings[at].running {
                    self.rings[at].notifier.raise();
                }
            }
            _ => self.rings[at].error.set(event),
        }
        Ok(())
    }

    fn queues(&mut self) -> u64 {
        // QEMU and DPDK compare this with queue pairs for network devices; cloud-hypervisor compares it
        // with rings, of which even the smallest device has two.
        let rings = self.rings.len() as u64;
        if self.device.network().is_some() {
            (rings / 2).max(2)
        } else {
            rings
        }
    }

    /// The part of the configuration space that is asked for, behind its head: as long as the question, as
    /// from other back ends.
    fn config(&mut self, mut its: Payload) -> Result<Vec<u8>, String> {
        let asked = its.0.len();
        let head = its.0.get(..12).unwrap_or_default().to_vec();
        let (offset, size) = config_part(&mut its)?;
        let space = self.device.config_space().ok_or("there is no configuration space here")?;
        // Bytes behind the end read as zero: front ends ask for all that a device could ever have.
        let bytes = space.into_iter().chain(std::iter::repeat(0)).skip(offset).take(size);
        let mut answer: Vec<u8> = head.into_iter().chain(bytes).collect();
        answer.resize(answer.len().max(asked), 0);
        Ok(answer)
    }

    fn make_inflight(&mut self, mut its: Payload) -> Result<Answer, String> {
        let (_, _, queues, size) = (its.u64(), its.u64(), its.u16(), its.u16());
        if usize::from(queues) > self.rings.len() || queues == 0 || size == 0 {
            return Err(format!(
                "{queues} rings of {size} entries are not possible, there are {}",
                self.rings.len()
            ));
        }
        self.changes(2);
        let made = RingSlots::create(queues, size);
        let (file, bytes) = made.map_err(|e| format!("no memory for the inflight region: {e}"))?;
        let [a, b] = [queues, size].map(u16::to_le_bytes);
        let answer = [&bytes.to_le_bytes()[..], &[0; 8], &a, &b, &[0; 4]].concat();
        Ok((answer, Some(file.into())))
    }

    fn set_inflight(&mut self, mut its: Payload, fds: Descriptors) -> Done {
        let (bytes, offset, queues, size) = (its.u64(), its.u64(), its.u16(), its.u16());
        if queues == 0 || size == 0 {
            return Err(format!("{queues} rings of {size} entries are not possible"));
        }
        self.changes(2);
        let slots = RingSlots::adopt(&fds.only()?.into(), offset, bytes, queues, size, &self.terms);
        let slots = slots.map_err(|e| format!("the inflight region is unusable: {e}"))?;
        self.stopped(self.all(), |backend| backend.inflight = Some(slots));
        Ok(())
    }

    fn add_mem_region(&mut self, mut its: Payload, fds: Descriptors) -> Done {
        let (_, file) = (its.u64(), fds.only()?);
        let spec = its.region(file.into());
        let map = match self.map.as_deref() {
            Some(before) => before.with(&spec),
            None => GuestMap::on(&self.terms, &[spec]),
        };
        self.set_memory(map.map_err(|e| e.to_string())?, 1);
        Ok(())
    }

    fn remove_mem_region(&mut self, mut its: Payload) -> Done {
        let [_, gpa, size, user, _] = std::array::from_fn(|_| its.u64());
        let map = self.map.as_deref().filter(|map| map.has(gpa, size, user));
        let map = map.ok_or_else(|| format!("there is no memory region at {gpa:#x} of {size:#x} bytes"))?;
        self.set_memory(map.without(gpa), 1);
        Ok(())
    }

    fn set_log_base(&mut self, mut its: Payload, fds: Descriptors) -> Done {
        let (size, offset) = (its.u64(), its.u64());
        let bits = SharedFile::lent(&fds.only()?.into(), offset, size, &self.terms);
        let bits = bits.map_err(|e| format!("the dirty log is unusable: {e}"))?;
        self.changes(2);
        let log: Arc<dyn WriteLog> = Arc::new(DirtyLog(bits));
        if self.features() & bit::VHOST_LOG_ALL == 0 {
            self.log = Some(log);
        } else {
            self.stopped(self.all(), |backend| backend.log = Some(log));
        }
        Ok(())
    }
}

/// The offset and the size of a part of the configuration space.
fn config_part(its: &mut Payload) -> Result<(usize, usize), String> {
    let (offset, size, flags) = (its.u32(), its.u32(), its.u32());
    let inside = offset.checked_add(size).is_some_and(|end| end <= CONFIG_SPACE);
    if !inside || size == 0 || flags > 3 {
        return Err(format!("{size} bytes at {offset} (flags {flags:#x}) cannot be"));
    }
    Ok((offset as usize, size as usize))
}
