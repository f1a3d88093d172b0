//! DEVICE_GET_IRQ_INFO and DEVICE_SET_IRQS (`linux/vfio.h` has the rules).
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::{preadv2, Errno, ReadWriteFlags};
use sidecore_abi::vfio_user::{irq, SetIrqs};

use super::messages::{Handled, Refusal};
use crate::device::pci::{Index, Interrupts};
use crate::mem::{eventfd, Terms};

/// What a kind of interrupts can do.
pub(super) fn info(index: Index) -> u32 {
    match index {
        Index::Intx => irq::EVENTFD | irq::MASKABLE | irq::AUTOMASKED,
        // MSI-X vectors come one by one: no NO_RESIZE, or the VMM would unwire and wire all of them each
        // time.
        Index::Msix => irq::EVENTFD,
        Index::Msi | Index::Error | Index::Request => irq::EVENTFD | irq::NO_RESIZE,
    }
}

/// Does what `set` says. `bools` follow it, `fds` came along.
pub(super) fn set(
    interrupts: &Interrupts,
    set: &SetIrqs,
    bools: &[u8],
    fds: Vec<OwnedFd>,
    terms: &Terms,
) -> Handled {
    const DATA: u32 = irq::DATA_NONE | irq::DATA_BOOL | irq::DATA_EVENTFD;
    const ACTION: u32 = irq::ACTION_MASK | irq::ACTION_UNMASK | irq::ACTION_TRIGGER;
    let SetIrqs { flags, index: number, start, count, .. } = *set;
    let (data, action) = (flags & DATA, flags & ACTION);
    if flags & !(DATA | ACTION) != 0 || !data.is_power_of_two() || !action.is_power_of_two() {
        return Err(Refusal::invalid(format!("flags {flags:#x} are not one kind of data and one action")));
    }
    let index =
        Index::new(number).ok_or_else(|| Refusal::invalid(format!("no interrupts of kind {number}")))?;
    let total = interrupts.count(index);
    let range = (start as usize)..(start as usize).saturating_add(count as usize);
    if range.end > total {
        return Err(Refusal::invalid(format!("{count} from {start} of kind {index:?}, which has {total}")));
    }
    let expected = if data == irq::DATA_BOOL { count as usize } else { 0 };
    if bools.len() != expected {
        return Err(Refusal::invalid(format!("{} bytes of data; {expected} belong to it", bools.len())));
    }
    // No descriptors at all: those that are there are taken away.
    let fds_fit = fds.is_empty() || (data == irq::DATA_EVENTFD && fds.len() == count as usize);
    if !fds_fit {
        return Err(Refusal::invalid(format!("{} descriptors for {count} interrupts", fds.len())));
    }
    if range.is_empty() {
        if data == irq::DATA_NONE && action == irq::ACTION_TRIGGER && start == 0 {
            interrupts.disable(index);
            return Ok(());
        }
        return Err(Refusal::invalid(
            "an empty range means something only with DATA_NONE and ACTION_TRIGGER",
        ));
    }
    let meant = range
        .clone()
        .filter(|at| data == irq::DATA_NONE || bools.get(at - range.start).is_some_and(|yes| *yes != 0));
    match (action, data) {
        (irq::ACTION_TRIGGER, irq::DATA_EVENTFD) => wire(interrupts, index, range, fds, terms),
        (irq::ACTION_TRIGGER, _) => {
            meant.for_each(|at| interrupts.fire(index, at));
            Ok(())
        }
        _ if index != Index::Intx => {
            Err(Refusal::invalid(format!("interrupts of kind {index:?} cannot be masked")))
        }
        (irq::ACTION_UNMASK, irq::DATA_EVENTFD) => {
            let resample = fds.into_iter().next().map(|fd| check(fd, terms)).transpose()?;
            interrupts.set_resample(resample);
            Ok(())
        }
        (irq::ACTION_UNMASK, _) => {
            for _ in meant {
                interrupts.unmask();
            }
            Ok(())
        }
        (irq::ACTION_MASK, irq::DATA_EVENTFD) => {
            // The kernel's VFIO does not have it either.
            Err(Refusal::new(Errno::NOTSUP, "masking by an eventfd is not offered"))
        }
        _ => {
            meant.for_each(|_| interrupts.mask());
            Ok(())
        }
    }
}

/// All of them, or none if one is bad.
fn wire(
    interrupts: &Interrupts,
    index: Index,
    range: std::ops::Range<usize>,
    fds: Vec<OwnedFd>,
    terms: &Terms,
) -> Handled {
    if fds.is_empty() {
        range.for_each(|at| interrupts.set_trigger(index, at, None));
        return Ok(());
    }
    let fds = fds.into_iter().map(|fd| check(fd, terms)).collect::<Result<Vec<_>, _>>()?;
    for (at, fd) in range.zip(fds) {
        interrupts.set_trigger(index, at, Some(fd));
    }
    Ok(())
}

/// The number of ends of interrupts that are heard in a time: more than a guest has, and too few to keep a
/// processor busy. There are eventfds that are readable for ever: a semaphore with a large count, or the one
/// by which the interrupt is raised.
const ENDS: (u32, Duration) = (32, Duration::from_millis(1));

/// Hears the ends of interrupts.
pub(super) struct Ends {
    heard: u32,
    since: Instant,
}

impl Ends {
    pub(super) fn new() -> Ends {
        Ends { heard: 0, since: Instant::now() }
    }

    /// Takes the count out of an eventfd of the VMM's. It may have made it block, and have read it before us:
    /// that we never wait for it is asked for with each read.
    pub(super) fn hear(&mut self, eventfd: &OwnedFd) {
        if self.since.elapsed() >= ENDS.1 {
            *self = Ends::new();
        }
        self.heard += 1;
        // From where it is: it has no places.
        let _ = preadv2(eventfd, &mut [IoSliceMut::new(&mut [0; 8])], u64::MAX, ReadWriteFlags::NOWAIT);
    }

    /// For how long no more are heard.
    pub(super) fn rest(&self) -> Option<Duration> {
        let rest = ENDS.1.saturating_sub(self.since.elapsed());
        (self.heard >= ENDS.0 && !rest.is_zero()).then_some(rest)
    }
}

/// An I/O core will write this: it must be an eventfd, and it must not block.
fn check(fd: OwnedFd, terms: &Terms) -> Result<OwnedFd, Refusal> {
    eventfd(fd, terms).map_err(|e| Refusal::invalid(e.to_string()))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use rustix::event::{eventfd, EventfdFlags};
    use rustix::fs::{fcntl_setfl, OFlags};

    use super::*;

    #[test]
    fn nobody_waits_for_an_eventfd_that_was_read_by_others() {
        let event = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
        let (done, end) = channel();
        let ours = event.try_clone().unwrap();
        // On a thread of its own: one that waits would wait for ever.
        std::thread::spawn(move || {
            let mut ends = Ends::new();
            ends.hear(&ours);
            ends.hear(&ours);
            done.send(()).unwrap();
        });
        end.recv_timeout(Duration::from_secs(20)).expect("it waits for the VMM");
        // The count was taken.
        fcntl_setfl(&event, OFlags::NONBLOCK).unwrap();
        assert_eq!(rustix::io::read(&event, &mut [0; 8]), Err(Errno::AGAIN));
    }

    #[test]
    fn an_eventfd_that_is_readable_for_ever_is_heard_at_intervals() {
        let event = eventfd(1 << 30, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE).unwrap();
        let (mut ends, begun, mut rested) = (Ends::new(), Instant::now(), Duration::ZERO);
        for _ in 0..10 * ENDS.0 {
            if let Some(rest) = ends.rest() {
                rested += rest;
                std::thread::sleep(rest);
            }
            ends.hear(&event);
        }
        assert!(begun.elapsed() >= 9 * ENDS.1 && !rested.is_zero(), "{rested:?} of {:?}", begun.elapsed());
    }
}
