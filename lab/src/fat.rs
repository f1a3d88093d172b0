//! A small FAT16 file system with the one file that UEFI firmware looks for on a disk:
//! `\EFI\BOOT\BOOTX64.EFI`.
//!
//! The layout is that of Microsoft's "FAT: General Overview of On-Disk Format", as UEFI wants it (UEFI 2.10
//! §13.3): the first sector says where everything is, then come reserved sectors, one table, the root's
//! entries, and clusters of a sector.

/// Bytes of a sector, which is also a cluster.
const SECTOR: usize = 512;
/// Clusters. FAT16 has 4,085 at least; these hold 4 MiB.
const CLUSTERS: usize = 8192;
/// Sectors of the table: two bytes for each cluster, and for two that do not exist.
const TABLE: usize = ((CLUSTERS + 2) * 2).div_ceil(SECTOR);
/// Sectors of the root, and its entries of 32 bytes.
const ROOT: usize = 32;
const ENTRIES: usize = ROOT * SECTOR / ENTRY;
const ENTRY: usize = 32;
/// The end of a file in the table.
const LAST: usize = 0xffff;
const FOLDER: u8 = 0x10;
/// The first cluster, and what lies in the folders' and the file's.
const EFI: usize = 2;
const BOOT: usize = 3;
const FILE: usize = 4;

/// What is described by the first sector, from byte 3 on.
pub(crate) const DESCRIPTION: std::ops::Range<usize> = 3..62;

/// Sectors of the file system without those that are reserved.
pub(crate) const SECTORS: usize = TABLE + ROOT + CLUSTERS;

/// The lower two bytes of a number, the lowest first.
fn word(n: usize) -> [u8; 2] {
    let [a, b, ..] = n.to_le_bytes();
    [a, b]
}

/// What the first sector says where `reserved` sectors stand before the table.
pub(crate) fn description(reserved: u16) -> [u8; DESCRIPTION.end - DESCRIPTION.start] {
    let mut bytes = [0; DESCRIPTION.end - DESCRIPTION.start];
    let mut put =
        |at: usize, what: &[u8]| bytes[at - DESCRIPTION.start..][..what.len()].copy_from_slice(what);
    put(3, b"SIDECORE");
    put(11, &word(SECTOR));
    put(13, &[1]);
    put(14, &reserved.to_le_bytes());
    put(16, &[1]);
    put(17, &word(ENTRIES));
    put(19, &word(usize::from(reserved) + SECTORS));
    // A fixed disk.
    put(21, &[0xf8]);
    put(22, &word(TABLE));
    put(24, &word(63));
    put(26, &word(255));
    put(36, &[0x80, 0, 0x29]);
    put(43, b"LAB        FAT16   ");
    bytes
}

/// Everything behind the reserved sectors. `None`: the program is too long.
pub(crate) fn tree(program: &[u8]) -> Option<Vec<u8>> {
    let count = program.len().div_ceil(SECTOR);
    let end = FILE + count;
    if end > CLUSTERS + 2 {
        return None;
    }
    let mut bytes = vec![0; SECTORS * SECTOR];
    let next = |cluster: usize| match cluster {
        0 => 0xfff8,
        1..FILE => LAST,
        _ if cluster + 1 == end => LAST,
        _ => cluster + 1,
    };
    for (cluster, place) in (0..end).zip(bytes.chunks_exact_mut(2)) {
        place.copy_from_slice(&word(next(cluster)));
    }
    let root = TABLE * SECTOR;
    let data = root + ROOT * SECTOR;
    let cluster = |number: usize| data + (number - EFI) * SECTOR;
    let mut put = |at: usize, what: &[u8]| bytes[at..at + what.len()].copy_from_slice(what);
    put(root, &entry(b"EFI        ", FOLDER, EFI, 0));
    for (folder, above, name, kind, first, len) in
        [(EFI, 0, b"BOOT       ", FOLDER, BOOT, 0), (BOOT, EFI, b"BOOTX64 EFI", 0, FILE, program.len())]
    {
        put(cluster(folder), &entry(b".          ", FOLDER, folder, 0));
        put(cluster(folder) + ENTRY, &entry(b"..         ", FOLDER, above, 0));
        put(cluster(folder) + 2 * ENTRY, &entry(name, kind, first, len));
    }
    put(cluster(FILE), program);
    Some(bytes)
}

/// An entry of a folder, without times.
fn entry(name: &[u8; 11], kind: u8, first: usize, len: usize) -> [u8; ENTRY] {
    let mut bytes = [0; ENTRY];
    bytes[..11].copy_from_slice(name);
    bytes[11] = kind;
    bytes[26..28].copy_from_slice(&word(first));
    bytes[28..30].copy_from_slice(&word(len));
    bytes[30..].copy_from_slice(&word(len >> 16));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(bytes: &[u8], at: usize) -> usize {
        usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
    }

    /// Follows the chain as a reader does, from the first sector on.
    #[test]
    fn the_program_is_found_by_its_path() {
        let program: Vec<u8> = (0..100_000u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let mut first = [0; SECTOR];
        first[DESCRIPTION].copy_from_slice(&description(1024));
        let tree = tree(&program).unwrap();
        assert_eq!((at(&first, 11), at(&first, 14), at(&first, 19)), (512, 1024, 1024 + SECTORS));
        assert_eq!(tree.len(), SECTORS * SECTOR);
        let data = at(&first, 22) * SECTOR + at(&first, 17) * ENTRY;
        let file = |mut cluster: usize| {
            let mut bytes = Vec::new();
            while cluster < 0xfff8 {
                bytes.extend_from_slice(&tree[data + (cluster - 2) * SECTOR..][..SECTOR]);
                cluster = at(&tree, 2 * cluster);
            }
            bytes
        };
        let find = |folder: &[u8], name: &[u8]| {
            let entry = folder.chunks(ENTRY).find(|entry| entry.starts_with(name)).unwrap().to_vec();
            (at(&entry, 26), at(&entry, 28) | at(&entry, 30) << 16)
        };
        let (efi, _) = find(&tree[at(&first, 22) * SECTOR..data], b"EFI ");
        let (boot, _) = find(&file(efi), b"BOOT ");
        let (start, len) = find(&file(boot), b"BOOTX64 EFI");
        assert!(file(start)[..len] == program);
        assert!(super::tree(&vec![0; CLUSTERS * SECTOR]).is_none());
    }
}
