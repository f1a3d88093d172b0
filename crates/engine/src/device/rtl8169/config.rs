//! What can be chosen about a device.

use std::time::Duration;

use crate::wire::Mac;

/// Smallest gap between two interrupts, if the operator does not say otherwise.
const FLOOR: Duration = Duration::from_micros(8);

/// What can be chosen about a device.
#[derive(Clone, Copy, Debug)]
pub struct Rtl8169Config {
    /// The station's address, in the EEPROM.
    pub mac: Mac,
    /// Smallest gap between two interrupts, whatever the driver programs; zero: what it programs alone.
    pub moderation: Duration,
    /// It has a communication status block (`sidecore_abi::csb`).
    pub csb: bool,
}

impl Rtl8169Config {
    /// One with address `mac`.
    pub fn new(mac: Mac) -> Rtl8169Config {
        Rtl8169Config { mac, moderation: FLOOR, csb: false }
    }
}
