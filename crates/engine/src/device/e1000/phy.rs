//! The PHY behind `MDIC` (8254x SDM §13.4.7): a Marvell M88E1011 or, in the 82574, a BM PHY with the same
//! registers on page 0 (82574 §8).

use super::config::Model;
use super::regs::MDAC;
use crate::device::mii::{Part, Phy, CONTROL, LINKED, PARTNER, STATUS};

/// `MDIC`: operations, flags, fields.
const WRITE: u32 = 1 << 26;
const READ: u32 = 1 << 27;
const READY: u32 = 1 << 28;
const INTERRUPT: u32 = 1 << 29;
const ERROR: u32 = 1 << 30;

/// The BM PHY's page select.
const BM_PAGE: usize = 31;

/// Specific status: resolved, link. Partner: acknowledge.
const LINK: [(usize, u16); 3] = [(STATUS, LINKED), (PARTNER, 1 << 14), (17, 1 << 11 | 1 << 10)];

/// Those of registers 0 to 31 that exist.
const EXISTS: u32 = 0b1110_0000_0111_1111_1000_0110_1111_1111 | 1 << 31;
const READ_ONLY: u32 =
    1 << STATUS | 1 << 2 | 1 << 3 | 1 << PARTNER | 1 << 6 | 1 << 10 | 1 << 15 | 1 << 17 | 1 << 19 | 1 << 21;

const fn part(fresh: &'static [(usize, u16)]) -> Part {
    Part { fresh, read_only: READ_ONLY, linked: LINK }
}

#[rustfmt::skip]
static E1000: Part = part(&[
    (CONTROL, 0x1140), (STATUS, 0x7949), (2, 0x0141), (4, 0x0de1), (9, 0x0e00), (10, 0x3c00), (16, 0x0360), (17, 0xa000),
    (20, 0x0d60), (3, 0x0c20), (PARTNER, 0x01e0),
]);

#[rustfmt::skip]
static E1000E: Part = part(&[
    (CONTROL, 0x1140), (STATUS, 0x7949), (2, 0x0141), (4, 0x0de1), (9, 0x0e00), (10, 0x3c00), (16, 0x0360), (17, 0xa000),
    (20, 0x0d60), (3, 0x0cb1), (PARTNER, 0x07e0), (6, 1 << 2), (15, 3 << 12),
]);

/// The PHY of `model`.
pub(super) fn phy(model: Model, link: bool) -> Phy {
    Phy::new(if model == Model::E1000 { &E1000 } else { &E1000E }, link)
}

/// What `MDIC` holds after a write of `value`, and the interrupt cause that comes of it.
pub(super) fn mdic(phy: &mut Phy, model: Model, value: u32) -> (u32, u32) {
    let at = (value >> 16 & 31) as usize;
    let paged = model == Model::E1000e && phy.word(BM_PAGE) != 0 && at < 16 && at > 3;
    let exists = value >> 21 & 31 == 1 && EXISTS >> at & 1 != 0;
    let result = if !exists {
        value | ERROR
    } else if value & WRITE != 0 {
        #[expect(clippy::cast_possible_truncation, reason = "the data field")]
        if !paged {
            // Auto-negotiation is over when it begins. Nothing is lost by that: drivers do not ask the PHY
            // for the speed, but `STATUS`, which has one speed always.
            phy.write(at, value as u16);
        }
        value
    } else if value & READ != 0 {
        // Pages other than the first are blank: nothing on them has an effect here.
        value & 0xffff_0000 | if paged { 0 } else { u32::from(phy.word(at)) }
    } else {
        return (value, 0);
    };
    (result | READY, if value & INTERRUPT != 0 { MDAC } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The PHY of a card, by its `MDIC`.
    struct Card(Model, Phy);

    impl Card {
        fn new(model: Model) -> Card {
            Card(model, phy(model, true))
        }

        fn mdic(&mut self, value: u32) -> (u32, u32) {
            mdic(&mut self.1, self.0, value)
        }
    }

    fn read(card: &mut Card, at: u32) -> u32 {
        card.mdic(READ | 1 << 21 | at << 16).0
    }

    #[test]
    fn identification_and_link() {
        for (model, id) in [(Model::E1000, 0x0c20), (Model::E1000e, 0x0cb1)] {
            let mut phy = Card::new(model);
            assert_eq!(read(&mut phy, 2) & 0xffff, 0x0141);
            assert_eq!(read(&mut phy, 3) & 0xffff, id);
            assert_eq!(read(&mut phy, 1) & 0x24, 0x24);
            phy.1.set_link(false);
            assert_eq!(read(&mut phy, 1) & 0x24, 0);
            // A reset neither brings the link up nor stays.
            phy.mdic(WRITE | 1 << 21 | 0x9200);
            assert_eq!(read(&mut phy, 0) & 0xffff, 0x1140);
            assert_eq!(read(&mut phy, 1) & 0x24, 0);
            phy.1.set_link(true);
            assert_eq!(read(&mut phy, 17) & 0xffff, 0xac00);
            // Auto-negotiation is over when it begins.
            phy.mdic(WRITE | 1 << 21 | 0x1340);
            assert_eq!(read(&mut phy, 0) & 0xffff, 0x1140);
        }
    }

    #[test]
    fn what_does_not_exist_is_an_error_and_never_hangs() {
        let mut phy = Card::new(Model::E1000);
        assert_eq!(phy.mdic(READ | 2 << 21).0 & (READY | ERROR), READY | ERROR);
        assert_eq!(read(&mut phy, 12) & (READY | ERROR), READY | ERROR);
        assert_eq!(phy.mdic(READ | 1 << 21 | INTERRUPT).1, MDAC);
        // Read-only registers stay.
        phy.mdic(WRITE | 1 << 21 | 2 << 16 | 7);
        assert_eq!(read(&mut phy, 2) & 0xffff, 0x0141);
    }
}
