//! Lies in a ring of requests: chains of both directions, requests that are offered again while they are in
//! flight, tables that change, and the in-flight region, which is the front end's to write.

use std::sync::atomic::Ordering;

use rustix::fs::ftruncate;
use sidecore_abi::virtio::{DESC_F_INDIRECT as INDIRECT, DESC_F_NEXT as NEXT, DESC_F_WRITE as WRITE};

use super::Format::{Packed, Split};
use super::{Format, Liar, Lie, Outcome, Raw, Rig};
use crate::error::{Error, Result};

/// The only queue.
const ASK: u16 = 0;
/// Bytes of the header, of the data, and of the status of a request.
const LENS: [u32; 3] = [16, 512, 1];

/// A request that reads the first sector: what stands in the honest space is zeros, which are its header.
fn read(rig: &Rig, first: u16) -> [Raw; 3] {
    let piece = |i: u16| {
        let next = if rig.format == Split { first + i + 1 } else { first };
        let flags = [NEXT, NEXT | WRITE, WRITE][usize::from(i)];
        Raw { addr: rig.gpa() + 1024 * u64::from(i), len: LENS[usize::from(i)], flags, next }
    };
    [piece(0), piece(1), piece(2)]
}

fn ask(liar: &mut Liar, format: Format, lie: impl FnOnce(&mut Rig) -> Result<()>) -> Result<Outcome> {
    let rig = liar.disk(format)?;
    liar.lie_in(rig, lie)
}

/// Offers a request that was honest before `change`.
fn changed(liar: &mut Liar, format: Format, change: fn(&mut [Raw; 3])) -> Result<Outcome> {
    ask(liar, format, |rig| {
        let mut chain = read(rig, 0);
        change(&mut chain);
        rig.offer(ASK, &chain);
        Ok(())
    })
}

/// Where the table of [`in_table`] is, behind what [`read`] uses.
const TABLE: usize = 4096;

/// Writes a request into a table of its own, and offers that.
fn in_table(rig: &mut Rig, chain: &[Raw]) {
    for (index, raw) in chain.iter().enumerate() {
        rig.table(rig.space + TABLE, index, *raw);
    }
    let len = 16 * u32::try_from(chain.len()).unwrap_or(0);
    rig.offer(ASK, &[Raw { addr: rig.gpa() + TABLE as u64, len, flags: INDIRECT, next: 0 }]);
}

/// Changes the table of requests in flight as fast as possible, in both directions and to nonsense.
fn flicker(liar: &mut Liar, format: Format) -> Result<Outcome> {
    ask(liar, format, |rig| {
        let honest = read(rig, 0);
        let [header, data, status] = honest;
        let end = rig.memory().gpa(0) + rig.memory().size() as u64;
        let lies = [
            [data, header, status],
            [Raw { len: u32::MAX, ..header }, data, status],
            [header, Raw { addr: end - 8, ..data }, status],
            [header, Raw { flags: NEXT, ..data }, Raw { flags: 0, ..status }],
            [header, data, Raw { flags: INDIRECT | WRITE, ..status }],
            [header, data, Raw { flags: NEXT | WRITE, next: 0, ..status }],
            honest,
        ];
        for round in 0..20_000 {
            if round % 64 == 0 {
                in_table(rig, &honest);
            }
            for lie in lies {
                for (index, raw) in lie.into_iter().enumerate() {
                    rig.table(rig.space + TABLE, index, raw);
                }
            }
        }
        Ok(())
    })
}

/// Writes into the region behind a device that runs, which then is stopped and started: `bytes` over and
/// over, or its file is cut.
fn region(liar: &mut Liar, format: Format, bytes: Option<&[u8]>) -> Result<Outcome> {
    ask(liar, format, |rig| {
        let chain = read(rig, 0);
        rig.offer(ASK, &chain);
        // An honest one, which is over soon.
        rig.outcome()?;
        let Some((file, len)) = rig.session.inflight() else {
            return Err(Error::Config("the backend has no in-flight region".into()));
        };
        match bytes {
            Some(bytes) => {
                let all: Vec<u8> = bytes.iter().copied().cycle().take(len).collect();
                rustix::io::pwrite(file, &all, 0).map_err(|e| Error::io("writing the region", e))?;
            }
            None => ftruncate(file, 0).map_err(|e| Error::io("ftruncate", e))?,
        }
        // A ring that is enabled anew asks its region.
        rig.session.enable(ASK, false)?;
        rig.session.enable(ASK, true)?;
        rig.offer(ASK, &chain);
        Ok(())
    })
}

macro_rules! lies {
    ($($format:ident $name:literal: $what:literal => $run:expr;)*) => {
        /// Every lie in a ring of requests.
        pub const LIES: &[Lie] = &[$(Lie { name: $name, what: $what, format: Some($format), run: $run },)*];
    };
}

lies! {
    Split "split-request-mixed": "what the device reads stands behind what it writes" =>
        |liar| changed(liar, Split, |[header, data, _]| { header.flags = NEXT | WRITE; data.flags = NEXT; });
    Packed "packed-request-mixed": "what the device reads stands behind what it writes" =>
        |liar| changed(liar, Packed, |[header, data, _]| { header.flags = NEXT | WRITE; data.flags = NEXT; });
    Split "split-request-mixed-end": "the last buffer is for reading again" =>
        |liar| changed(liar, Split, |[.., status]| status.flags = 0);
    Packed "packed-request-mixed-end": "the last buffer is for reading again" =>
        |liar| changed(liar, Packed, |[.., status]| status.flags = 0);
    Split "split-request-mixed-table": "the directions are mixed in a table" => |liar| ask(liar, Split, |rig| {
        let [header, data, status] = read(rig, 0);
        in_table(rig, &[Raw { next: 1, ..data }, Raw { next: 2, ..header }, status]);
        Ok(())
    });
    Packed "packed-request-mixed-table": "the directions are mixed in a table" => |liar| ask(liar, Packed, |rig| {
        let [header, data, status] = read(rig, 0);
        in_table(rig, &[data, header, status]);
        Ok(())
    });
    Split "split-request-again": "one head is offered 64 times at once" => |liar| ask(liar, Split, |rig| {
        let (desc, avail) = (rig.parts(ASK).desc.offset(), rig.parts(ASK).avail.clone());
        read(rig, 0).into_iter().enumerate().for_each(|(index, raw)| rig.table(desc, index, raw));
        (0..64).for_each(|slot| avail.store16(2 + slot, 0, Ordering::Relaxed));
        rig.index(ASK, 64);
        rig.kick(ASK);
        Ok(())
    });
    Packed "packed-request-again": "all requests have one buffer id" => |liar| ask(liar, Packed, |rig| {
        let chains: Vec<Raw> = (0..21).flat_map(|_| read(rig, 7)).collect();
        rig.offer(ASK, &chains);
        Ok(())
    });
    Split "split-request-jump": "the available index jumps by more than the queue size" =>
        |liar| ask(liar, Split, |rig| { rig.index(ASK, 65); rig.kick(ASK); Ok(()) });
    Split "split-request-loop": "a request of empty buffers never ends" =>
        |liar| changed(liar, Split, |chain| {
            chain.iter_mut().for_each(|raw| { raw.len = 0; raw.flags = NEXT; });
            chain[2].next = 0;
        });
    Packed "packed-request-endless": "a request continues through the whole ring" => |liar| ask(liar, Packed, |rig| {
        let [header, ..] = read(rig, 0);
        rig.offer(ASK, &[header; 64]);
        Ok(())
    });
    Split "split-request-empty": "a request of no bytes" =>
        |liar| changed(liar, Split, |chain| chain.iter_mut().for_each(|raw| raw.len = 0));
    Packed "packed-request-empty": "a request of no bytes" =>
        |liar| changed(liar, Packed, |chain| chain.iter_mut().for_each(|raw| raw.len = 0));
    Split "split-request-long": "a request of twice 4 GiB" =>
        |liar| changed(liar, Split, |[_, data, status]| (data.len, status.len) = (u32::MAX, u32::MAX));
    Packed "packed-request-far": "a status beyond the memory" =>
        |liar| changed(liar, Packed, |[.., status]| status.addr = 1 << 60);
    Split "split-request-flicker": "the table changes while its requests are in flight" => |liar| flicker(liar, Split);
    Packed "packed-request-flicker": "the table changes while its requests are in flight" =>
        |liar| flicker(liar, Packed);
    Split "split-region-ones": "the in-flight region is filled with ones" => |liar| region(liar, Split, Some(&[1]));
    Packed "packed-region-ones": "the in-flight region is filled with ones" => |liar| region(liar, Packed, Some(&[1]));
    Split "split-region-ff": "the in-flight region is filled with 255" => |liar| region(liar, Split, Some(&[255]));
    Packed "packed-region-ff": "the in-flight region is filled with 255" => |liar| region(liar, Packed, Some(&[255]));
    Split "split-region-flying": "all entries of the in-flight region are in flight" =>
        |liar| region(liar, Split, Some(&[1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 64, 0, 0, 0, 0, 0]));
    Packed "packed-region-flying": "all entries of the in-flight region are in flight" =>
        |liar| region(liar, Packed, Some(&[1, 0, 0, 0, 0, 0, 1, 0, 1, 0, 64, 0, 64, 0, 64, 0]));
    Split "split-region-cut": "the file of the in-flight region is cut" => |liar| region(liar, Split, None);
    Packed "packed-region-cut": "the file of the in-flight region is cut" => |liar| region(liar, Packed, None);
}
