//! Which frames the receiver takes (`RCR`, `MAR`, `RMS`). The words are read where the driver's writes put them: a driver that
//! changes one while frames arrive gets a decision by the old or the new word, as on silicon.

use super::regs;
use super::state::Registers;
use crate::frame::{is_group, Frame};

const BROADCAST: u64 = 0xffff_ffff_ffff;

/// Whether the driver asked for frames with the address of this one.
#[inline]
pub(super) fn admits(registers: &Registers, rcr: u32, frame: &Frame) -> bool {
    let dst = frame.dst();
    if is_group(dst) {
        return if dst == BROADCAST {
            rcr & regs::RCR_AB != 0
        } else {
            rcr & regs::RCR_AM != 0 && registers.pair(regs::MAR) >> hash(dst) & 1 != 0
        };
    }
    let own = registers.pair(regs::IDR) & BROADCAST;
    rcr & regs::RCR_AAP != 0 || rcr & regs::RCR_APM != 0 && dst == own
}

/// The place of a group address in the hash table: the six highest bits of its CRC (802.3 §3.2.9), as it is before it is
/// complemented.
fn hash(address: u64) -> u32 {
    /// The polynomial, its highest power in the lowest bit; of each value of four bits what they leave.
    const TABLE: [u32; 16] = {
        let mut table = [0u32; 16];
        let mut value = 0u32;
        while value < 16 {
            let mut crc = value;
            let mut bit = 0;
            while bit < 4 {
                crc = if crc & 1 != 0 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
                bit += 1;
            }
            table[value as usize] = crc;
            value += 1;
        }
        table
    };
    let step = |crc: u32, nibble: u32| crc >> 4 ^ TABLE[((crc ^ nibble) & 0xf) as usize];
    let crc = (0..12).fold(u32::MAX, |crc, at| step(crc, (address >> (4 * at) & 0xf) as u32));
    crc.reverse_bits() >> 26
}

#[cfg(test)]
mod tests {
    use super::hash;

    /// Of 01:00:5e:00:00:01 (all hosts) and 33:33:00:00:00:01 (all nodes), as drivers work it out bit by bit.
    #[test]
    fn the_hash_is_that_of_a_crc_bit_by_bit() {
        for address in [[1, 0, 0x5e, 0, 0, 1], [0x33, 0x33, 0, 0, 0, 1], [0xff; 6], [1, 0x80, 0xc2, 0, 0, 0]]
        {
            let mut crc = u32::MAX;
            for byte in address {
                for bit in 0..8 {
                    let carry = crc >> 31 ^ u32::from(byte >> bit & 1u8);
                    crc = crc << 1 ^ if carry & 1 != 0 { 0x04c1_1db7 } else { 0 };
                }
            }
            let mut word = [0; 8];
            word[..6].copy_from_slice(&address);
            assert_eq!(hash(u64::from_le_bytes(word)), crc >> 26, "{address:x?}");
        }
    }
}
