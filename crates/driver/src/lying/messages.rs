//! Lies in the conversation: wrong order, size, number of file descriptors, and kind of them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{eventfd, EventfdFlags};
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};

use super::Format::Split;
use super::{say, Liar, Lie, Outcome, Rig};
use crate::error::{Error, Result};
use crate::raw::request as r;
use crate::raw::{Message, FLAG_NEED_REPLY, FLAG_REPLY};

fn event() -> Result<OwnedFd> {
    eventfd(0, EventfdFlags::NONBLOCK).map_err(|e| Error::io("eventfd", e))
}

fn file(len: u64) -> Result<OwnedFd> {
    let fd = memfd_create("lie", MemfdFlags::CLOEXEC).map_err(|e| Error::io("memfd_create", e))?;
    ftruncate(&fd, len).map_err(|e| Error::io("ftruncate", e))?;
    Ok(fd)
}

fn with(message: Message, fds: &[BorrowedFd<'_>]) -> Result<Message> {
    fds.iter().try_fold(message, |m, fd| m.with_fd(fd)).map_err(|e| Error::io("duplicating a descriptor", e))
}

fn empty(request: u32) -> Message {
    Message::new(request, Vec::new())
}

/// A memory table of `claimed` regions that carries the given ones.
fn memory_table(claimed: u64, regions: &[[u64; 4]]) -> Message {
    let mut words = vec![claimed];
    words.extend(regions.iter().flatten());
    Message::words(r::SET_MEM_TABLE, &words)
}

/// A region of one page.
const PAGE: [u64; 4] = [0x1000, 0x1000, 0x7000_0000, 0];

/// Says one message with descriptors on a fresh connection.
fn tell(liar: &mut Liar, message: Message, fds: &[BorrowedFd<'_>]) -> Result<Outcome> {
    liar.say(&[with(message, fds)?])
}

/// Says messages to a device that is running honestly.
fn interrupt(liar: &mut Liar, messages: fn(&Rig) -> Result<Vec<Message>>) -> Result<Outcome> {
    liar.rings(Split, |rig| {
        let messages = messages(rig)?;
        say(&rig.session.frontend, &messages)?;
        rig.offer(1, &[rig.honest(1)]);
        Ok(())
    })
}

/// Ring addresses for queue 1 with one of them displaced.
fn addresses(rig: &Rig, desc: u64, used: u64, avail: u64) -> Message {
    let ring = rig.parts(1).addresses();
    let or = |lie: u64, honest: u64| if lie == 0 { honest } else { lie };
    let words = [1, or(desc, ring.desc), or(used, ring.used), or(avail, ring.avail), 0];
    Message::words(r::SET_VRING_ADDR, &words)
}

macro_rules! lies {
    ($($name:literal: $what:literal => $run:expr;)*) => {
        /// Every lie in the conversation.
        pub const LIES: &[Lie] = &[$(Lie { name: $name, what: $what, format: None, run: $run },)*];
    };
}

lies! {
    "msg-unknown": "a request number that does not exist" => |liar| tell(liar, empty(9999), &[]);
    "msg-zero": "request number zero" => |liar| tell(liar, empty(0), &[]);
    "msg-half-header": "half a header, then silence" => |liar| liar.say_bytes(&[1, 0, 0, 0, 1, 0], &[]);
    "msg-half-payload": "half a payload, then silence" =>
        |liar| tell(liar, Message::new(r::SET_FEATURES, vec![0; 4]).claiming(8), &[]);
    "msg-hang-up": "half a payload, then the end" => |liar| {
        let frontend = liar.talk()?;
        say(&frontend, &[Message::new(r::SET_FEATURES, vec![0; 4]).claiming(8)])
    };
    "msg-giant": "a header that claims 4 GiB" => |liar| tell(liar, empty(r::SET_FEATURES).claiming(u32::MAX), &[]);
    "msg-large": "a payload one byte longer than any message" =>
        |liar| tell(liar, Message::new(r::SET_FEATURES, vec![0; 4097]), &[]);
    "msg-version": "protocol version 2" => |liar| {
        let mut message = empty(r::GET_FEATURES);
        message.flags = 2;
        tell(liar, message, &[])
    };
    "msg-reply": "an answer to nothing" => |liar| tell(liar, empty(r::GET_FEATURES).flagged(FLAG_REPLY), &[]);
    "msg-flags": "all flags set" => |liar| tell(liar, empty(r::GET_FEATURES).flagged(u32::MAX), &[]);
    "msg-ack-unasked": "an acknowledgement wanted that was not negotiated" =>
        |liar| tell(liar, Message::words(r::SET_FEATURES, &[0]).flagged(FLAG_NEED_REPLY), &[]);
    "msg-garbage": "4 KiB of ones" => |liar| liar.say_bytes(&[0xff; 4096], &[]);
    "msg-short": "SET_FEATURES with half a word" => |liar| tell(liar, Message::new(r::SET_FEATURES, vec![0; 4]), &[]);
    "msg-long": "SET_FEATURES with two words" => |liar| tell(liar, Message::words(r::SET_FEATURES, &[0, 0]), &[]);
    "features-all": "accepts features that were never offered" =>
        |liar| tell(liar, Message::words(r::SET_FEATURES, &[u64::MAX]), &[]);
    "protocol-all": "accepts protocol features that were never offered" =>
        |liar| tell(liar, Message::words(r::SET_PROTOCOL_FEATURES, &[u64::MAX]), &[]);
    "fds-surplus": "GET_FEATURES with eight files" => |liar| {
        let fd = event()?;
        tell(liar, empty(r::GET_FEATURES), &[fd.as_fd(); 8])
    };
    "fds-many": "a header with 32 files" => |liar| {
        let fd = event()?;
        tell(liar, empty(r::GET_FEATURES), &[fd.as_fd(); 32])
    };
    "mem-no-fd": "a memory table without its file" => |liar| tell(liar, memory_table(1, &[PAGE]), &[]);
    "mem-surplus-fd": "a memory table of one region with three files" => |liar| {
        let fd = file(4096)?;
        tell(liar, memory_table(1, &[PAGE]), &[fd.as_fd(); 3])
    };
    "mem-missing-fd": "a memory table of two regions with one file" => |liar| {
        let fd = file(4096)?;
        tell(liar, memory_table(2, &[PAGE, [0x10_0000, 0x1000, 0x7100_0000, 0]]), &[fd.as_fd()])
    };
    "mem-nine": "a memory table of nine regions" => |liar| {
        let fd = file(4096)?;
        tell(liar, memory_table(9, &[PAGE; 9]), &[fd.as_fd(); 9])
    };
    "mem-count": "a memory table that claims 2³² regions" => |liar| {
        let fd = file(4096)?;
        tell(liar, memory_table(1 << 32, &[PAGE]), &[fd.as_fd()])
    };
    "mem-fewer": "a memory table that claims eight regions and brings one" => |liar| {
        let fd = file(4096)?;
        tell(liar, memory_table(8, &[PAGE]), &[fd.as_fd()])
    };
    "mem-empty": "a region of no bytes" => |liar| {
        let fd = file(4096)?;
        tell(liar, memory_table(1, &[[0x1000, 0, 0x7000_0000, 0]]), &[fd.as_fd()])
    };
    "mem-overlap": "two regions at the same address" => |liar| {
        let fd = file(4096)?;
        tell(liar, memory_table(2, &[PAGE, PAGE]), &[fd.as_fd(); 2])
    };
    "mem-wrap": "a region whose end wraps around" => |liar| {
        let fd = file(8192)?;
        tell(liar, memory_table(1, &[[u64::MAX - 0xfff, 0x2000, u64::MAX - 0xfff, 0]]), &[fd.as_fd()])
    };
    "mem-giant": "a region of 2⁶³ bytes" => |liar| {
        let fd = file(4096)?;
        tell(liar, memory_table(1, &[[0, 1 << 63, 0x7000_0000, 0]]), &[fd.as_fd()])
    };
    "mem-short-file": "a region longer than its file" => |liar| {
        let fd = file(4096)?;
        tell(liar, memory_table(1, &[[0x1000, 1 << 20, 0x7000_0000, 0]]), &[fd.as_fd()])
    };
    "mem-offset": "a region that starts beyond the end of its file" => |liar| {
        let fd = file(4096)?;
        tell(liar, memory_table(1, &[[0x1000, 0x1000, 0x7000_0000, 1 << 40]]), &[fd.as_fd()])
    };
    "mem-offset-odd": "a region at an offset that is no page" => |liar| {
        let fd = file(8192)?;
        tell(liar, memory_table(1, &[[0x1000, 0x1000, 0x7000_0000, 17]]), &[fd.as_fd()])
    };
    "mem-eventfd": "a region whose file is an eventfd" => |liar| {
        let fd = event()?;
        tell(liar, memory_table(1, &[PAGE]), &[fd.as_fd()])
    };
    "ring-before-memory": "rings before any memory" => |liar| {
        let fd = event()?;
        liar.say(&[
            empty(r::SET_OWNER),
            Message::words(r::SET_FEATURES, &[1 << 32]),
            Message::state(r::SET_VRING_NUM, 0, 256),
            Message::words(r::SET_VRING_ADDR, &[0, 0x7000_0000, 0x7000_2000, 0x7000_1000, 0]),
            with(Message::words(r::SET_VRING_KICK, &[0]), &[fd.as_fd()])?,
        ])
    };
    "enable-first": "a ring is enabled before anything" =>
        |liar| liar.say(&[Message::state(r::SET_VRING_ENABLE, 0, 1), empty(r::GET_FEATURES)]);
    "base-first": "the base of a ring that never ran" =>
        |liar| liar.say(&[Message::state(r::GET_VRING_BASE, 0, 0), empty(r::GET_FEATURES)]);
    "num-zero": "a running ring gets 0 entries" =>
        |liar| interrupt(liar, |_| Ok(vec![Message::state(r::SET_VRING_NUM, 1, 0)]));
    "num-odd": "a split ring of 3 entries" =>
        |liar| interrupt(liar, |_| Ok(vec![Message::state(r::SET_VRING_NUM, 1, 3)]));
    "num-giant": "a ring of 2³¹ entries" =>
        |liar| interrupt(liar, |_| Ok(vec![Message::state(r::SET_VRING_NUM, 1, 1 << 31)]));
    "queue-255": "a ring that does not exist" =>
        |liar| interrupt(liar, |_| Ok(vec![Message::state(r::SET_VRING_NUM, 255, 256)]));
    "queue-giant": "ring number 2³²-1" =>
        |liar| interrupt(liar, |_| Ok(vec![Message::state(r::SET_VRING_ENABLE, u32::MAX, 1)]));
    "enable-seven": "a ring is enabled with 7" =>
        |liar| interrupt(liar, |_| Ok(vec![Message::state(r::SET_VRING_ENABLE, 1, 7)]));
    "base-giant": "a base of 2³²-1" =>
        |liar| interrupt(liar, |_| Ok(vec![Message::state(r::SET_VRING_BASE, 1, u32::MAX)]));
    "addr-desc": "descriptors outside the memory" => |liar| interrupt(liar, |rig| Ok(vec![addresses(rig, 64, 0, 0)]));
    "addr-used": "a used ring outside the memory" => |liar| interrupt(liar, |rig| Ok(vec![addresses(rig, 0, 64, 0)]));
    "addr-avail-end": "an available ring that ends outside the memory" => |liar| interrupt(liar, |rig| {
        let end = rig.memory().user(rig.memory().size() - 16);
        Ok(vec![addresses(rig, 0, 0, end)])
    });
    "addr-odd": "a used ring at an odd address" => |liar| interrupt(liar, |rig| {
        Ok(vec![addresses(rig, 0, rig.parts(1).addresses().used + 1, 0)])
    });
    "addr-wrap": "descriptors at the very end of the address space" =>
        |liar| interrupt(liar, |rig| Ok(vec![addresses(rig, u64::MAX - 15, 0, 0)]));
    "addr-gpa": "guest physical instead of user addresses" => |liar| interrupt(liar, |rig| {
        Ok(vec![addresses(rig, rig.memory().gpa(rig.parts(1).desc.offset()), 0, 0)])
    });
    "kick-file": "a kick that is a regular file" => |liar| interrupt(liar, |_| {
        Ok(vec![with(Message::words(r::SET_VRING_KICK, &[1]), &[file(0)?.as_fd()])?])
    });
    "call-file": "a call that is a memory file" => |liar| interrupt(liar, |_| {
        Ok(vec![with(Message::words(r::SET_VRING_CALL, &[1]), &[file(0)?.as_fd()])?])
    });
    "call-full": "a call eventfd that would block forever" => |liar| interrupt(liar, |_| {
        let full = eventfd(0, EventfdFlags::empty()).map_err(|e| Error::io("eventfd", e))?;
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).map_err(|e| Error::io("filling", e))?;
        Ok(vec![with(Message::words(r::SET_VRING_CALL, &[1]), &[full.as_fd()])?])
    });
    "kick-no-fd": "a kick without its file" =>
        |liar| interrupt(liar, |_| Ok(vec![Message::words(r::SET_VRING_KICK, &[1])]));
    "kick-two": "a kick with two files" => |liar| interrupt(liar, |_| {
        Ok(vec![with(Message::words(r::SET_VRING_KICK, &[1]), &[event()?.as_fd(), event()?.as_fd()])?])
    });
    "mem-taken": "the memory table becomes empty under running rings" =>
        |liar| interrupt(liar, |_| Ok(vec![memory_table(0, &[])]));
    "mem-replaced": "other memory at other addresses under running rings" => |liar| interrupt(liar, |_| {
        Ok(vec![with(memory_table(1, &[PAGE]), &[file(4096)?.as_fd()])?])
    });
    "mem-removed": "the rings' region is removed" => |liar| interrupt(liar, |rig| {
        let region = rig.session.region();
        Ok(vec![Message::words(r::REM_MEM_REG, &[0, region.gpa, region.size, region.user, 0])])
    });
    "mem-removed-other": "a region is removed that was never added" => |liar| interrupt(liar, |_| {
        Ok(vec![Message::words(r::REM_MEM_REG, &[0, 1 << 50, 4096, 1 << 50, 0])])
    });
    "mem-added-twice": "the same region is added again" => |liar| interrupt(liar, |rig| {
        let region = rig.session.region();
        let words = [0, region.gpa, region.size, region.user, 0];
        Ok(vec![with(Message::words(r::ADD_MEM_REG, &words), &[rig.memory().fd()])?])
    });
    "inflight-no-fd": "an inflight record without its file" =>
        |liar| interrupt(liar, |_| Ok(vec![Message::words(r::SET_INFLIGHT_FD, &[4096, 0, 0x0040_0002])]));
    "inflight-short": "an inflight record in a file of no bytes" => |liar| interrupt(liar, |_| {
        Ok(vec![with(Message::words(r::SET_INFLIGHT_FD, &[4096, 0, 0x0040_0002]), &[file(0)?.as_fd()])?])
    });
    "inflight-giant": "an inflight record for 65535 queues of 65535" =>
        |liar| interrupt(liar, |_| Ok(vec![Message::words(r::GET_INFLIGHT_FD, &[0, 0, 0xffff_ffff])]));
    "log-short": "a dirty log in a file of no bytes" => |liar| interrupt(liar, |_| {
        Ok(vec![with(Message::words(r::SET_LOG_BASE, &[1 << 20, 0]), &[file(0)?.as_fd()])?])
    });
    "log-small": "a dirty log too small for the memory, then logging on" => |liar| interrupt(liar, |rig| {
        let log = with(Message::words(r::SET_LOG_BASE, &[1, 0]), &[file(4096)?.as_fd()])?;
        Ok(vec![log, Message::words(r::SET_FEATURES, &[rig.session.features | 1 << 26])])
    });
    "owner-twice": "the owner is set again" => |liar| interrupt(liar, |_| Ok(vec![empty(r::SET_OWNER)]));
    "features-running": "the ring format changes while rings run" => |liar| interrupt(liar, |rig| {
        Ok(vec![Message::words(r::SET_FEATURES, &[rig.session.features ^ 1 << 34])])
    });
}
