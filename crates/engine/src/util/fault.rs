//! Faults: why a port was stopped. The first thread that notices (an I/O core in the middle of a batch, or
//! the port's conversation) sets the fault; `show` and the log read it. Also: how to show a text that a peer
//! has chosen.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::event::{eventfd, EventfdFlags};

/// Makes of a table of faults the type of all of them: each has a name, a colon, and what it means; and what
/// an operator can do about it at port PORT of kind KIND, where the guest's driver is not all that is at
/// fault.
macro_rules! faults {
    ($($(#[$doc:meta])+ $fault:ident = $text:literal $(=> $mend:literal)?,)+) => {
        /// What a guest or its VMM did that ended its port. Each has a name, so that operators need not
        /// guess.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
        pub enum Fault {
            $($(#[$doc])+ #[error($text)] $fault,)+
        }

        const ALL: &[(Fault, &str)] = &[$((Fault::$fault, concat!("" $(, $mend)?))),+];
    };
}

faults! {
    /// A ring's index runs ahead by more than its size.
    IndexJump = "index_jump: the available index moved by more than the queue size",
    /// A descriptor number beyond the table.
    DescriptorOutOfRange = "descriptor_out_of_range: a descriptor number is not below the queue size",
    /// A chain that is longer than the queue, or loops.
    ChainTooLong = "chain_too_long: a descriptor chain is longer than its table or loops",
    /// A buffer outside guest memory.
    AddressOutOfRange = "address_out_of_range: a buffer is not inside the memory that the VMM shares"
        => "share all of the guest's memory. MEMORY",
    /// An indirect table that is empty, odd, too long or nested.
    BadIndirect = "bad_indirect: an indirect descriptor table is empty, misaligned in length, nested or not negotiated",
    /// A readable buffer where a writable one belongs, or the reverse.
    WrongDirection = "wrong_direction: a buffer is writable where it must be readable, or the reverse",
    /// A chain too short for the network header.
    NoHeader = "no_header: a chain is too short for the network header",
    /// More bytes than a length can tell.
    ChainTooBig = "chain_too_big: the buffers of a descriptor chain have 4 GiB or more in all",
    /// The file behind guest memory was cut short, its pool of huge pages is exhausted, or a page of it has
    /// failed.
    MemoryTruncated = "memory_truncated: a memory file was cut short under us, or has no page left for what it promised"
        => "reserve more huge pages: sysctl vm.nr_hugepages=…",
    /// A message that breaks the protocol; the log has the details.
    BadMessage = "bad_message: the VMM sent a message that breaks the protocol"
        => "sidecore events says which; update the VMM",
    /// The host took the interface away.
    InterfaceGone = "interface_gone: the host's interface is gone or refuses to be read"
        => "sidecore restart PORT, when the interface is there again",
    /// A register or descriptor of an emulated NIC was given an impossible value.
    BadRegister = "bad_register: a device register was given an impossible value",
    /// A thread of ours failed.
    Internal = "internal: the port's conversation failed by a bug in sidecore, and was started again; the log says where",
    /// It had to rest again and again (`mem::overrun`).
    MemoryStalled = "memory_stalled: the port's memory, eventfds or messages held I/O cores up again and again"
        => "have the guest's memory present: QEMU memory-backend-memfd,…,prealloc=on; no swap",
    /// A driver offered a request a second time that it has not got back yet.
    InFlightAlready = "in_flight_already: a request was made available again while the device still holds it",
    /// An index of a ring that leads nowhere.
    BadHead = "bad_head: a ring's owner gave a head that is no slot of the ring, or not its own",
    /// Memory that an I/O core might have to wait for (`mem::foreign`).
    MemoryFile = "memory_file: the VMM shares memory that is a file on a disk, or no memory at all"
        => "MEMORY; or, slower: sidecore set PORT memory-file=any",
    /// Another protocol than the port's.
    WrongClient = "wrong_client: the VMM was given the socket of another kind of device"
        => "this socket is for kind KIND: QEMU -device DEVICE",
}

/// `text`, in which a peer may have a say, as it may stand in `show` and the log: whatever is not printable
/// is escaped (controls, marks that turn the direction of what follows), and what comes behind `longest`
/// characters is left out.
pub fn shown(text: &str, longest: usize) -> String {
    let piece = |c: char| match c {
        '"' | '\'' | '\\' => c.to_string(),
        c => c.escape_debug().to_string(),
    };
    let mut shown: String = text.chars().take(longest).map(piece).collect();
    if text.chars().nth(longest).is_some() {
        shown.push('…');
    }
    shown
}

/// A place for the first fault of a port, with a descriptor that becomes readable when it is set.
pub struct FaultCell {
    code: AtomicU32,
    event: OwnedFd,
}

impl FaultCell {
    /// No fault yet.
    pub fn new() -> std::io::Result<FaultCell> {
        Ok(FaultCell {
            code: AtomicU32::new(0),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Records `fault` of a ring. One whose memory was cut short (`lost`) reads as zeros, in which all kinds
    /// of faults are found: then that is their cause.
    pub fn set_unless(&self, lost: bool, fault: Fault) {
        self.set(if lost { Fault::MemoryTruncated } else { fault });
    }

    /// Records `fault` unless an earlier one stands, and wakes the thread that waits for it.
    pub fn set(&self, fault: Fault) {
        if self.code.compare_exchange(0, fault as u32 + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            // Fails only when the counter is full, and then it is readable already.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// The fault that stands.
    pub fn get(&self) -> Option<Fault> {
        let code = self.code.load(Ordering::Acquire) as usize;
        Some(ALL.get(code.checked_sub(1)?)?.0)
    }

    /// Forgets it: the peer starts anew.
    pub fn clear(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.event, &mut count);
        self.code.store(0, Ordering::Release);
    }

    /// Readable while a fault stands.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl Fault {
    /// How long its cause has to wait before the port serves it again, at least.
    pub fn penalty(self) -> Duration {
        match self {
            // Each time costs the neighbours whole seconds.
            Fault::MemoryStalled => Duration::from_secs(600),
            _ => Duration::ZERO,
        }
    }

    /// What an operator can do about it; empty: nothing that is known.
    pub fn mend(self) -> &'static str {
        ALL[self as usize].1
    }

    /// The name alone, as it stands in `show` and in logs.
    pub fn name(self) -> String {
        let text = self.to_string();
        text.split(':').next().unwrap_or_default().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_shown_without_what_a_terminal_obeys() {
        let harmless = "\"max_msg_fds\" is 'ü', \\ 日本";
        assert_eq!(shown(harmless, 100), harmless);
        let all = "\0\n\u{1b}[2J\u{7f}\u{80}\u{9b}31m\u{9f}\u{202a}\u{202e}\u{2066}\u{2069}\u{200b}\u{2028}\u{feff}";
        let text = shown(all, 100);
        assert!(text.chars().all(|c| c.is_ascii_graphic()), "{text:?}");
        assert!(text.contains("\\u{9b}31m") && text.contains("\\u{202e}"), "{text}");
        assert_eq!(shown(&"\u{202e}".repeat(99), 2), "\\u{202e}\\u{202e}…");
        assert_eq!((shown("ab", 2), shown("abc", 2)), ("ab".to_owned(), "ab…".to_owned()));
    }

    #[test]
    fn every_fault_is_explained() {
        let page = include_str!("../../../../docs/troubleshooting.md");
        for &(fault, _) in ALL {
            assert!(page.contains(&format!("\n| `{}` | ", fault.name())), "{fault}");
        }
    }

    #[test]
    fn the_first_fault_stands() {
        let cell = FaultCell::new().unwrap();
        assert_eq!(cell.get(), None);
        cell.set(Fault::BadIndirect);
        cell.set(Fault::NoHeader);
        assert_eq!(cell.get(), Some(Fault::BadIndirect));
        assert_eq!(Fault::BadIndirect.name(), "bad_indirect");
        cell.clear();
        assert_eq!(cell.get(), None);
        for &(fault, _) in ALL {
            cell.clear();
            cell.set(fault);
            assert_eq!(cell.get(), Some(fault));
        }
    }
}
