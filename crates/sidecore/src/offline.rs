//! The counters file, read without the daemon. The layout is `sidecore_abi::counters`.

use std::path::{Path, PathBuf};

use sidecore_abi::counters::{
    header, slot, Block, DROPS, DROP_PLACES, HEADER_SIZE, MAGIC, MAX_CORES, MAX_NAME, MAX_PORTS, SLOT_HEAD,
    SLOT_SIZE, VERSION,
};
use sidecore_engine::state::status::{PortView, Ports, Sums, VERSION as JSON_VERSION};

/// What a daemon left behind.
pub struct Remains {
    /// Its process id.
    pub pid: u32,
    /// The ports that it had, in the order of their names.
    pub ports: Ports,
}

/// Where a daemon with this control socket keeps its counters unless told otherwise.
pub fn beside(socket: &Path) -> PathBuf {
    socket.with_extension("counters")
}

/// Reads the file at `path`.
pub fn read(path: &Path) -> Result<Remains, String> {
    let bytes =
        std::fs::read(path).map_err(|e| format!("cannot read counters file {}: {e}", path.display()))?;
    parse(&bytes)
        .ok_or_else(|| format!("{} is not a counters file of version {VERSION} of sidecore", path.display()))
}

fn parse(bytes: &[u8]) -> Option<Remains> {
    if u64_at(bytes, header::MAGIC)? != MAGIC || u32_at(bytes, header::VERSION)? != VERSION {
        return None;
    }
    let mut ports = (0..MAX_PORTS).filter_map(|number| port(bytes, number)).collect::<Vec<_>>();
    ports.sort_by(|a, b| a.name.cmp(&b.name));
    let ports = Ports { version: JSON_VERSION, running: false, ports, retired: None };
    Some(Remains { pid: u32_at(bytes, header::PID)?, ports })
}

/// The port in slot `number`, unless that is free.
fn port(bytes: &[u8], number: usize) -> Option<PortView> {
    let at = HEADER_SIZE + number * SLOT_SIZE;
    if u32_at(bytes, at + slot::STATE)? != 1 {
        return None;
    }
    let name = bytes.get(at + slot::NAME..at + slot::NAME + MAX_NAME)?;
    let name = name.split(|&b| b == 0).next().unwrap_or_default();
    let mut words = [0u64; size_of::<Block>() / 8];
    for core in 0..MAX_CORES {
        for (i, sum) in words.iter_mut().enumerate() {
            let word = at + SLOT_HEAD + core * size_of::<Block>() + 8 * i;
            *sum = sum.wrapping_add(u64_at(bytes, word)?);
        }
    }
    let [in_frames, in_bytes, out_frames, out_bytes, made, kicks, interrupts, batches, drops @ ..] = words;
    let _: [u64; DROP_PLACES] = drops;
    let drops = drops.iter().enumerate().filter(|(_, n)| **n > 0);
    let drops = drops.map(|(place, &n)| (reason(place), n)).collect();
    let counters =
        Sums { in_frames, in_bytes, out_frames, out_bytes, made, kicks, interrupts, batches, drops };
    let name = String::from_utf8_lossy(name).into_owned();
    Some(PortView { name, number: u16::try_from(number).ok()?, counters, state: None })
}

/// The name of a reason; a number if the file was written by a daemon that knows more of them.
fn reason(place: usize) -> String {
    DROPS.get(place).map_or_else(|| format!("reason_{place}"), |(_, name, _)| (*name).to_owned())
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidecore_engine::observe::CounterFile;
    use sidecore_engine::port::{DropReason, PortId, Tally};

    #[test]
    fn what_the_engine_writes_is_what_is_read() {
        let path = std::env::temp_dir().join(format!("sidecore-offline-{}", std::process::id()));
        let file = CounterFile::create(&path).unwrap();
        let web = file.open_slot(PortId(7), "web");
        let gone = file.open_slot(PortId(8), "gone");
        let mut tally = Tally { frames: 3, bytes: 180, kicks: 1, ..Tally::default() };
        tally.drops.add(DropReason::TooLong, 2);
        web.block(0).add_tally(&tally);
        web.block(9).add_tally(&tally);
        file.close_slot(&gone);
        let remains = read(&path).unwrap();
        // A new file: the old one is mapped and must not be cut short.
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, [0; 16]).unwrap();
        assert!(read(&path).is_err_and(|e| e.contains("is not a counters file")));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(remains.pid, std::process::id());
        let [port] = remains.ports.ports.as_slice() else { panic!("one port is there") };
        assert_eq!((port.name.as_str(), port.number), ("web", 7));
        assert_eq!(port.counters, Sums::from(&web.totals()));
        assert_eq!(port.counters.drops["too_long"], 4);
    }
}
