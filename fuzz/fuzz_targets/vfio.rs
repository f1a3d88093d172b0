//! A VMM that says anything to a PCI device: arbitrary vfio-user commands, with memory files and eventfds.
//! Commands may be refused or end the conversation; every answer must be one. The device is one of those that
//! guests get, or one that only remembers. Commands are right in form more often than not: a guess is not
//! worth the time of a header's fields.
//!
//! Half way another process may go on, as the next daemon or as the VMM's holder, by what was kept: a holder
//! or a guest may have changed any word of that, but for what it is of.
#![cfg_attr(feature = "libfuzzer", no_main)]

#[path = "../../crates/engine/tests/scratch/mod.rs"]
mod scratch;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use sidecore_abi::vfio_user::{command, Header};
use sidecore_engine::device::e1000::{E1000Config, Model, E1000};
use sidecore_engine::device::pci::PciDevice;
use sidecore_engine::device::ptnet::{functions, PtnetConfig};
use sidecore_engine::device::rtl8169::{Rtl8169, Rtl8169Config};
use sidecore_engine::graph::Scheduler;
use sidecore_engine::packet::Mac;
use sidecore_engine::sandbox::holder::Store;
use sidecore_engine::transport::vfio_user::Bare;
use sidecore_fuzz::fuzz_target;
use sidecore_fuzz::{anonymous_port, ManualScheduler};

const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
/// Numbers of regions: those of the device's registers, its configuration space, and none.
const REGIONS: [u32; 8] = [0, 0, 1, 2, 3, 7, 8, 9];
/// Where in the guest a range of memory may begin.
const PLACES: [u64; 4] = [0, 0x1000, 0x1_0000, u64::MAX - 0xfff];

fn device(what: u8, scheduler: &Arc<ManualScheduler>) -> Box<dyn PciDevice> {
    let (port, scheduler) = (anonymous_port(), Arc::clone(scheduler) as Arc<dyn Scheduler>);
    port.fault.clear();
    match what % 32 % 6 {
        0 => Box::new(scratch::Scratch::new(&port, scheduler)),
        1 => Box::new(E1000::new(E1000Config::new(Model::E1000, MAC), port, scheduler).unwrap()),
        2 => Box::new(E1000::new(E1000Config::new(Model::E1000e, MAC), port, scheduler).unwrap()),
        3 => Box::new(Rtl8169::new(Rtl8169Config::new(MAC), port, scheduler).unwrap()),
        four_or_five => {
            let config = PtnetConfig { pairs: 1, slots: 16, buf_size: 64, ..PtnetConfig::new(MAC) };
            let (nic, memory, _) = functions(config, &port, scheduler).unwrap();
            if four_or_five == 4 {
                Box::new(nic)
            } else {
                Box::new(memory)
            }
        }
    }
}

/// A command that is right in form: what it is about follows from a few bytes.
fn payload(kind: u16, [a, b, c, d]: [u8; 4], more: &[u8]) -> Vec<u8> {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let region = REGIONS[usize::from(a) % REGIONS.len()];
    let offset = u64::from(u16::from_le_bytes([b, c])) | u64::from(a & 0x80) << 9;
    let count = [1, 2, 4, 8, 3, 4, 4, u32::from(d)][usize::from(d & 7)];
    let access = [&offset.to_le_bytes()[..], &words(&[region, count])].concat();
    match kind {
        command::REGION_READ => access,
        command::REGION_WRITE => {
            let data = more.iter().copied().chain(std::iter::repeat(d)).take(count as usize);
            access.into_iter().chain(data).collect()
        }
        command::DMA_MAP => {
            let (place, size) = (PLACES[usize::from(b & 3)], 0x1000u64 << (c & 3));
            [
                &words(&[32, u32::from(a & 3)])[..],
                &(u64::from(d & 0x1f) << 12).to_le_bytes(),
                &place.to_le_bytes(),
                &size.to_le_bytes(),
            ]
            .concat()
        }
        command::DMA_UNMAP => {
            let (place, size) = (PLACES[usize::from(b & 3)], 0x1000u64 << (c & 3));
            [&words(&[24, u32::from(a & 7)])[..], &place.to_le_bytes(), &size.to_le_bytes()].concat()
        }
        command::DEVICE_GET_REGION_INFO => words(&[32 + u32::from(b & 0x20), 0, region, 0, 0, 0, 0, 0]),
        command::DEVICE_GET_IRQ_INFO => words(&[16, 0, u32::from(a & 7), 0]),
        command::DEVICE_SET_IRQS => {
            let flags = 1 << (b & 3) | 8u32 << (b >> 2 & 3);
            [
                &words(&[20, flags, u32::from(a & 7), u32::from(c & 3), u32::from(d & 3)])[..],
                &more[..more.len().min(3)],
            ]
            .concat()
        }
        _ => more.to_vec(),
    }
}

// A message is four bytes of choice, four of meaning where it is to be right in form, and up to 63 of
// payload. Sizes are right: those that are not end the conversation, and the properties in the engine's tests
// see to them.
/// Changes word `at` of one of the files in `store`: the state, or one of the device's.
fn change(store: &Store, file: u8, at: u16, word: [u8; 8]) {
    /// The first word of the state that may say anything: before it stands what the state is of.
    const FREE: u64 = 8;
    let (key, first) = if file % 4 == 0 { (1, FREE) } else { (15 + u64::from(file % 4), 0) };
    let Some(file) = store.get(key).map(File::from) else { return };
    let words = file.metadata().map_or(0, |it| it.len() / 8);
    if words > first {
        let _ = file.write_all_at(&word, 8 * (first + u64::from(at) % (words - first)));
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((what, mut rest)) = data.split_first() else { return };
    let passed_on = (what & 0x40 != 0).then_some(what & 0x20 != 0);
    let mut changes = Vec::new();
    if let (Some(_), Some((count, more))) = (passed_on, rest.split_first()) {
        rest = more;
        for _ in 0..count % 16 {
            let Some((change, more)) = rest.split_first_chunk::<11>() else { break };
            changes.push(*change);
            rest = more;
        }
    }
    let (mut bytes, mut half) = (Vec::new(), 0);
    while let Some(([kinds, command, flags, size], more)) = rest.split_first_chunk::<4>() {
        rest = more;
        let command = u16::from(command % 20);
        let mut meaning = [0; 4];
        if flags & 0x80 == 0 {
            let Some((its, more)) = rest.split_first_chunk::<4>() else { break };
            (meaning, rest) = (*its, more);
        }
        let (more, behind) = rest.split_at(usize::from(size % 64).min(rest.len()));
        rest = behind;
        let payload = if flags & 0x80 == 0 { payload(command, meaning, more) } else { more.to_vec() };
        if bytes.len() < data.len() / 2 {
            half = bytes.len();
        }
        let header = Header {
            id: bytes.len() as u16,
            command,
            size: (Header::SIZE + payload.len()) as u32,
            flags: u32::from(flags & 0x10),
            error: 0,
        };
        bytes.push(kinds | 0x80);
        bytes.extend(header.bytes());
        bytes.extend(payload);
    }
    let scheduler = Arc::new(ManualScheduler::default());
    let Some(still) = passed_on else {
        scratch::converse(&bytes, device(*what, &scheduler));
        return assert!(scheduler.is_empty(), "a queue stayed behind");
    };
    // The VMM says VERSION once.
    if let Some(first) = bytes.get_mut(half).filter(|_| half > 0) {
        *first &= 0x7f;
    }
    let (before, after) = bytes.split_at(half);
    let mut bare = Bare::new(device(*what, &scheduler));
    // One that only remembers keeps nothing.
    let Ok(store) = bare.keep() else { return };
    scratch::hear_all(&mut bare, before);
    for [file, low, high, word @ ..] in changes {
        change(&store, file, u16::from_le_bytes([low, high]), word);
    }
    if let Ok(mut bare) = bare.go_on(&store, device(*what, &scheduler), still) {
        scratch::hear_all(&mut bare, after);
    }
    assert!(scheduler.is_empty(), "a queue stayed behind");
});
