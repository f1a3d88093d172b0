//! Lies in shared memory: descriptors, indices, tables, notification fields, and the memory itself.

use std::sync::atomic::Ordering;

use sidecore_abi::virtio::{DESC_F_INDIRECT as INDIRECT, DESC_F_NEXT as NEXT, DESC_F_WRITE as WRITE};

use super::Format::{Packed, Split};
use super::{Format, Liar, Lie, Outcome, Raw, Rig};
use crate::error::{Error, Result};

/// The receive and the transmit queue.
const RX: u16 = 0;
const TX: u16 = 1;

/// Offers one descriptor on the transmit queue, made from an honest one.
fn tx(liar: &mut Liar, format: Format, change: fn(&Rig, &mut Raw)) -> Result<Outcome> {
    one(liar, format, TX, change)
}

fn one(liar: &mut Liar, format: Format, queue: u16, change: fn(&Rig, &mut Raw)) -> Result<Outcome> {
    liar.rings(format, |rig| {
        let mut raw = rig.honest(queue);
        change(rig, &mut raw);
        rig.offer(queue, &[raw]);
        Ok(())
    })
}

/// Offers an indirect table at the start of the honest space, filled by `fill`, with `bytes` claimed.
fn table(liar: &mut Liar, format: Format, bytes: u32, fill: fn(&Rig, usize)) -> Result<Outcome> {
    liar.rings(format, |rig| {
        fill(rig, rig.space);
        rig.offer(TX, &[Raw { addr: rig.gpa(), len: bytes, flags: INDIRECT, next: 0 }]);
        Ok(())
    })
}

/// Changes a descriptor as fast as possible while it is offered again and again.
fn flicker(liar: &mut Liar, format: Format) -> Result<Outcome> {
    liar.rings(format, |rig| {
        let honest = rig.honest(TX);
        let end = rig.memory().gpa(0) + rig.memory().size() as u64;
        let lies = [
            honest,
            Raw { addr: end - 8, ..honest },
            Raw { len: u32::MAX, ..honest },
            Raw { flags: NEXT, next: 0, ..honest },
            Raw { flags: WRITE, ..honest },
            Raw { flags: INDIRECT, len: 16, ..honest },
        ];
        let desc = rig.parts(TX).desc.offset();
        for round in 0..20_000 {
            if round % 16 == 0 {
                rig.offer(TX, &[honest]);
            }
            for lie in lies {
                let raw = Raw { flags: lie.flags | if rig.format == Packed { 1 << 7 } else { 0 }, ..lie };
                rig.table(desc, 0, raw);
            }
        }
        Ok(())
    })
}

/// Cuts the memory's file to `keep` bytes while the rings run, then offers something.
fn cut(liar: &mut Liar, format: Format, keep: fn(&Rig) -> u64) -> Result<Outcome> {
    // A thread that touches a lost page gets SIGBUS, and so would we: what is offered is written before, or
    // lies in pages that are kept.
    liar.rings(format, |rig| {
        let keep = keep(rig);
        let lost = Raw { addr: rig.memory().gpa(rig.memory().size() - 4096), ..rig.honest(TX) };
        if keep == 0 {
            rig.blind = true;
        }
        let cut =
            |rig: &Rig| rustix::fs::ftruncate(rig.memory().fd(), keep).map_err(|e| Error::io("ftruncate", e));
        if keep > 0 {
            cut(rig)?;
            rig.offer(TX, &[lost]);
        } else {
            rig.offer(TX, &[lost]);
            cut(rig)?;
            rig.kick(TX);
        }
        Ok(())
    })
}

macro_rules! lies {
    ($($format:ident $name:literal: $what:literal => $run:expr;)*) => {
        /// Every lie in shared memory.
        pub const LIES: &[Lie] = &[$(Lie { name: $name, what: $what, format: Some($format), run: $run },)*];
    };
}

lies! {
    Split "split-head": "an available entry names a descriptor beyond the table" =>
        |liar| liar.rings(Split, |rig| { rig.head(TX, 64); rig.kick(TX); Ok(()) });
    Split "split-head-max": "an available entry names descriptor 65535, on the receive queue" =>
        |liar| liar.rings(Split, |rig| { rig.head(RX, u16::MAX); rig.kick(RX); Ok(()) });
    Split "split-index-jump": "the available index jumps by more than the queue size" =>
        |liar| liar.rings(Split, |rig| { rig.index(TX, 65); rig.kick(TX); Ok(()) });
    Split "split-index-back": "the available index goes back by one" =>
        |liar| liar.rings(Split, |rig| { rig.index(TX, u16::MAX); rig.kick(TX); Ok(()) });
    Split "split-index-jump-rx": "the receive queue's available index jumps by 32768" =>
        |liar| liar.rings(Split, |rig| { rig.index(RX, 0x8000); rig.kick(RX); Ok(()) });
    Split "split-self": "a descriptor continues with itself" =>
        |liar| tx(liar, Split, |_, raw| { raw.flags = NEXT; raw.next = 0 });
    Split "split-loop": "two descriptors continue with each other" => |liar| liar.rings(Split, |rig| {
        let raw = rig.honest(TX);
        rig.offer(TX, &[Raw { flags: NEXT, next: 1, ..raw }, Raw { flags: NEXT, next: 0, ..raw }]);
        Ok(())
    });
    Split "split-loop-empty": "descriptors of length zero continue with each other, on the receive queue" =>
        |liar| liar.rings(Split, |rig| {
            let raw = Raw { flags: NEXT | WRITE, len: 0, ..rig.honest(RX) };
            rig.offer(RX, &[Raw { next: 1, ..raw }, Raw { next: 0, ..raw }]);
            Ok(())
        });
    Split "split-next": "a chain continues beyond the table" =>
        |liar| tx(liar, Split, |_, raw| { raw.flags = NEXT; raw.next = 9999 });
    Split "split-twice": "the same descriptor is offered 64 times at once" => |liar| liar.rings(Split, |rig| {
        let raw = rig.honest(TX);
        rig.offer(TX, &[raw]);
        (0..63).for_each(|_| rig.head(TX, 0));
        Ok(())
    });
    Split "split-outside": "a descriptor points below the memory" => |liar| tx(liar, Split, |_, raw| raw.addr = 0);
    Split "split-outside-rx": "a receive buffer lies above the memory" =>
        |liar| one(liar, Split, RX, |_, raw| raw.addr = 1 << 60);
    Split "split-straddle": "a buffer begins inside and ends outside the memory" =>
        |liar| tx(liar, Split, |rig, raw| raw.addr = rig.memory().gpa(rig.memory().size() - 8));
    Split "split-wrap": "address plus length wraps around" =>
        |liar| tx(liar, Split, |_, raw| { raw.addr = u64::MAX - 15; raw.len = 72 });
    Split "split-length": "a descriptor is 4 GiB long" => |liar| tx(liar, Split, |_, raw| raw.len = u32::MAX);
    Split "split-write-in-tx": "a frame to send lies in a buffer for writing" =>
        |liar| tx(liar, Split, |_, raw| raw.flags = WRITE);
    Split "split-read-in-rx": "a receive buffer may only be read" =>
        |liar| one(liar, Split, RX, |_, raw| raw.flags = 0);
    Split "split-read-after-write": "readable follows writable in a chain" => |liar| liar.rings(Split, |rig| {
        let raw = rig.honest(TX);
        rig.offer(TX, &[Raw { flags: NEXT | WRITE, next: 1, ..raw }, raw]);
        Ok(())
    });
    Split "split-zero": "a frame of no bytes, without even a header" => |liar| tx(liar, Split, |_, raw| raw.len = 0);
    Split "split-zero-rx": "a receive buffer of no bytes" => |liar| one(liar, Split, RX, |_, raw| raw.len = 0);
    Split "split-short": "a frame shorter than the network header" => |liar| tx(liar, Split, |_, raw| raw.len = 4);
    Split "split-runt": "a header with a frame of one byte" => |liar| tx(liar, Split, |_, raw| raw.len = 13);
    Split "split-giant": "a chain of 64 pieces adds up to a megabyte" => |liar| liar.rings(Split, |rig| {
        let raw = Raw { len: 16 << 10, ..rig.honest(TX) };
        let last = 63;
        let chain: Vec<_> = (0..=last).map(|i| {
            if i == last { raw } else { Raw { flags: NEXT, next: i + 1, ..raw } }
        }).collect();
        rig.offer(TX, &chain);
        Ok(())
    });
    Split "split-offload": "an offload header that contradicts its frame" => |liar| liar.rings(Split, |rig| {
        rig.memory().write(rig.space, &[0xff, 0x01, 0xff, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 9, 9]);
        rig.offer(TX, &[rig.honest(TX)]);
        Ok(())
    });
    Split "split-nested": "an indirect table inside an indirect table" => |liar| table(liar, Split, 16, |rig, at| {
        rig.table(at, 0, Raw { addr: rig.gpa(), len: 16, flags: INDIRECT, next: 0 });
    });
    Split "split-table-loop": "an indirect table that never ends" => |liar| table(liar, Split, 32, |rig, at| {
        let raw = Raw { addr: rig.gpa() + 4096, len: 8, flags: NEXT, next: 1 };
        rig.table(at, 0, raw);
        rig.table(at, 1, Raw { next: 0, ..raw });
    });
    Split "split-table-next": "an indirect table continues beyond its own end" =>
        |liar| table(liar, Split, 16, |rig, at| {
            rig.table(at, 0, Raw { addr: rig.gpa() + 4096, len: 72, flags: NEXT, next: 500 });
        });
    Split "split-table-odd": "an indirect table of 24 bytes" => |liar| table(liar, Split, 24, |_, _| {});
    Split "split-table-empty": "an indirect table of no bytes" => |liar| table(liar, Split, 0, |_, _| {});
    Split "split-table-giant": "an indirect table of 4 GiB" => |liar| table(liar, Split, 0xffff_fff0, |rig, at| {
        for i in 0..1024 {
            rig.table(at, usize::from(i), Raw { addr: rig.gpa(), len: 1, flags: NEXT, next: i + 1 });
        }
    });
    Split "split-table-outside": "an indirect table outside the memory" =>
        |liar| tx(liar, Split, |_, raw| { raw.addr = 64; raw.len = 16; raw.flags = INDIRECT });
    Split "split-table-next-flag": "an indirect descriptor that also continues" => |liar| liar.rings(Split, |rig| {
        let raw = rig.honest(TX);
        rig.table(rig.space, 0, Raw { addr: rig.gpa() + 4096, ..raw });
        rig.offer(TX, &[Raw { len: 16, flags: INDIRECT | NEXT, next: 1, ..raw }, raw]);
        Ok(())
    });
    Split "split-event": "the notification fields hold every value" => |liar| liar.rings(Split, |rig| {
        let avail = rig.parts(TX).avail.clone();
        for value in 0..=u16::MAX {
            avail.store16(2 + 64, value, Ordering::Relaxed);
            avail.store16(0, value, Ordering::Relaxed);
        }
        rig.offer(TX, &[rig.honest(TX)]);
        Ok(())
    });
    Split "split-used-overwritten": "the used ring is filled with garbage behind the device" =>
        |liar| liar.rings(Split, |rig| {
            rig.offer(TX, &[rig.honest(TX)]);
            let used = rig.parts(TX).used.clone();
            (0..used.size() / 2).for_each(|i| used.store16(i, 0xdead, Ordering::Relaxed));
            rig.head(TX, 0);
            Ok(())
        });
    Split "split-flicker": "a descriptor changes while it is read" => |liar| flicker(liar, Split);
    Split "split-cut": "the memory's file is cut to nothing" => |liar| cut(liar, Split, |_| 0);
    Split "split-cut-buffers": "the memory's file is cut behind the rings" =>
        |liar| cut(liar, Split, |rig| (rig.space as u64 + 4096).next_multiple_of(4096));

    Packed "packed-outside": "a descriptor points below the memory" =>
        |liar| tx(liar, Packed, |_, raw| raw.addr = 0);
    Packed "packed-straddle": "a buffer begins inside and ends outside the memory" =>
        |liar| tx(liar, Packed, |rig, raw| raw.addr = rig.memory().gpa(rig.memory().size() - 8));
    Packed "packed-wrap": "address plus length wraps around" =>
        |liar| tx(liar, Packed, |_, raw| { raw.addr = u64::MAX - 15; raw.len = 72 });
    Packed "packed-length": "a descriptor is 4 GiB long" => |liar| tx(liar, Packed, |_, raw| raw.len = u32::MAX);
    Packed "packed-id": "a name beyond the ring" => |liar| tx(liar, Packed, |_, raw| raw.next = u16::MAX);
    Packed "packed-id-twice": "the same name for every chain" => |liar| liar.rings(Packed, |rig| {
        (0..64).for_each(|_| rig.offer(TX, &[rig.honest(TX)]));
        Ok(())
    });
    Packed "packed-endless": "every descriptor of the ring continues" => |liar| liar.rings(Packed, |rig| {
        let raw = Raw { flags: NEXT, ..rig.honest(TX) };
        rig.offer(TX, &[raw; 64]);
        Ok(())
    });
    Packed "packed-two-laps": "a chain that is longer than the ring" => |liar| liar.rings(Packed, |rig| {
        let raw = Raw { flags: NEXT, len: 1, ..rig.honest(RX) };
        rig.offer(RX, &[raw; 130]);
        Ok(())
    });
    Packed "packed-unfinished": "a chain whose second descriptor is not available" => |liar| liar.rings(Packed, |rig| {
        rig.offer(TX, &[Raw { flags: NEXT, ..rig.honest(TX) }]);
        Ok(())
    });
    Packed "packed-write-in-tx": "a frame to send lies in a buffer for writing" =>
        |liar| tx(liar, Packed, |_, raw| raw.flags = WRITE);
    Packed "packed-read-in-rx": "a receive buffer may only be read" =>
        |liar| one(liar, Packed, RX, |_, raw| raw.flags = 0);
    Packed "packed-zero": "a frame of no bytes" => |liar| tx(liar, Packed, |_, raw| raw.len = 0);
    Packed "packed-zero-rx": "a receive buffer of no bytes" => |liar| one(liar, Packed, RX, |_, raw| raw.len = 0);
    Packed "packed-short": "a frame shorter than the network header" =>
        |liar| tx(liar, Packed, |_, raw| raw.len = 4);
    Packed "packed-nested": "an indirect table inside an indirect table" => |liar| table(liar, Packed, 16, |rig, at| {
        rig.table(at, 0, Raw { addr: rig.gpa(), len: 16, flags: INDIRECT, next: 0 });
    });
    Packed "packed-table-odd": "an indirect table of 24 bytes" => |liar| table(liar, Packed, 24, |_, _| {});
    Packed "packed-table-empty": "an indirect table of no bytes" => |liar| table(liar, Packed, 0, |_, _| {});
    Packed "packed-table-giant": "an indirect table of 4 GiB" =>
        |liar| table(liar, Packed, 0xffff_fff0, |_, _| {});
    Packed "packed-table-outside": "an indirect table outside the memory" =>
        |liar| tx(liar, Packed, |_, raw| { raw.addr = 64; raw.len = 16; raw.flags = INDIRECT });
    Packed "packed-event": "the event suppression structure holds every value" => |liar| liar.rings(Packed, |rig| {
        let driver = rig.parts(TX).avail.clone();
        for value in 0..=u16::MAX {
            driver.store16(0, value, Ordering::Relaxed);
            driver.store16(1, value, Ordering::Relaxed);
        }
        rig.offer(TX, &[rig.honest(TX)]);
        Ok(())
    });
    Packed "packed-flicker": "a descriptor changes while it is read" => |liar| flicker(liar, Packed);
    Packed "packed-cut": "the memory's file is cut to nothing" => |liar| cut(liar, Packed, |_| 0);
    Packed "packed-cut-buffers": "the memory's file is cut behind the rings" =>
        |liar| cut(liar, Packed, |rig| (rig.space as u64 + 4096).next_multiple_of(4096));
}
