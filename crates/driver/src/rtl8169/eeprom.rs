//! Reading the EEPROM, a 93C46, bit by bit.

use super::regs::{BAR, CR9346, EECS, EEDI, EEDO, EESK, PROGRAM};
use crate::error::{Error, Result};
use crate::vfio::Client;

/// A start bit, "read", and six bits of address.
const READ: u16 = 0b110 << 6;
/// Where the station's address stands, and what the first word says if there is anything.
const ADDRESS: u16 = 7;
const IDENTIFICATION: u16 = 0x8129;

/// The station's address.
pub(super) fn read_mac(client: &mut Client) -> Result<[u8; 6]> {
    if word(client, 0)? != IDENTIFICATION {
        return Err(Error::Device("the EEPROM is blank".to_owned()));
    }
    let mut mac = [0; 6];
    for (pair, at) in mac.chunks_exact_mut(2).zip(ADDRESS..) {
        pair.copy_from_slice(&word(client, at)?.to_le_bytes());
    }
    Ok(mac)
}

fn word(client: &mut Client, address: u16) -> Result<u16> {
    for bit in (0..9).rev() {
        let level = PROGRAM | EECS | if (READ | address) >> bit & 1 != 0 { EEDI } else { 0 };
        lines(client, level)?;
        lines(client, level | EESK)?;
        lines(client, level)?;
    }
    let mut word = 0;
    for _ in 0..16 {
        lines(client, PROGRAM | EECS | EESK)?;
        let mut byte = [0];
        client.read(BAR, CR9346, &mut byte)?;
        word = word << 1 | u16::from(byte[0] & EEDO);
        lines(client, PROGRAM | EECS)?;
    }
    lines(client, 0)?;
    Ok(word)
}

fn lines(client: &mut Client, level: u8) -> Result<()> {
    client.write(BAR, CR9346, &[level])
}
