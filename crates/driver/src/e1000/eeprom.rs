//! Reading the EEPROM: a word at a time on the 82574, bit by bit on the 82540EM.

use super::regs::{BAR, EECD, EERD};
use super::Model;
use crate::error::{Error, Result};
use crate::vfio::Client;

const WORDS: u16 = 64;
/// What all words add up to (8254x SDM §5.6.35).
const SUM: u16 = 0xbaba;

/// `EECD`: clock, select, data in, data out, request, grant.
const SK: u32 = 1;
const CS: u32 = 1 << 1;
const DI: u32 = 1 << 2;
const DO: u32 = 1 << 3;
const REQ: u32 = 1 << 6;
const GNT: u32 = 1 << 7;
/// A start bit, "read", and six bits of address (8254x SDM §5.3.1).
const READ: u16 = 0b110 << 6;

/// The address in words 0 to 2, if all words add up.
pub(super) fn read_mac(client: &mut Client, model: Model) -> Result<[u8; 6]> {
    let mut words = Vec::new();
    match model {
        Model::E1000e => {
            for address in 0..WORDS {
                client.write32(BAR, EERD, u32::from(address) << 2 | 1)?;
                let value = client.read32(BAR, EERD)?;
                if value & 1 << 1 == 0 {
                    return Err(Error::Device("EERD is not done".to_owned()));
                }
                words.push((value >> 16) as u16);
            }
        }
        Model::E1000 => {
            client.write32(BAR, EECD, REQ)?;
            if client.read32(BAR, EECD)? & GNT == 0 {
                return Err(Error::Device("the EEPROM is not granted".to_owned()));
            }
            shift_out(client, READ)?;
            // The part goes on with the next word, and so on to the last.
            for _ in 0..WORDS {
                words.push(shift_in(client)?);
            }
            client.write32(BAR, EECD, 0)?;
        }
    }
    let sum = words.iter().fold(0u16, |sum, word| sum.wrapping_add(*word));
    if sum != SUM {
        return Err(Error::Device(format!("the EEPROM's words add up to {sum:#x}, not {SUM:#x}")));
    }
    let mut mac = [0; 6];
    for (pair, word) in mac.chunks_exact_mut(2).zip(words) {
        pair.copy_from_slice(&word.to_le_bytes());
    }
    Ok(mac)
}

/// Nine bits to the part, the highest first.
fn shift_out(client: &mut Client, command: u16) -> Result<()> {
    for bit in (0..9).rev() {
        let level = REQ | CS | if command >> bit & 1 != 0 { DI } else { 0 };
        client.write32(BAR, EECD, level)?;
        client.write32(BAR, EECD, level | SK)?;
        client.write32(BAR, EECD, level)?;
    }
    Ok(())
}

fn shift_in(client: &mut Client) -> Result<u16> {
    let mut word = 0;
    for _ in 0..16 {
        client.write32(BAR, EECD, REQ | CS | SK)?;
        word = word << 1 | u16::from(client.read32(BAR, EECD)? & DO != 0);
        client.write32(BAR, EECD, REQ | CS)?;
    }
    Ok(word)
}
