//! The figures that a comparison of builds needs.

use super::full;
use super::model::{self, UNMODIFIED, WITH_CSB};
use crate::prelude::*;

/// Those of these rows, for the shortest frames; null: it was not measured.
pub fn of(rows: &[model::Row], full: &[full::Row]) -> impl Serialize {
    let speed = |model: &str, csb: bool| {
        let is_it =
            |row: &&full::Row| (row.model, row.csb, row.size, row.both_ways) == (model, csb, 64, false);
        full.iter().find(is_it).map(|row| row.figures.mpps)
    };
    let least = rows.iter().map(|row| row.trap_ns).min();
    let priced = |name: &str| {
        rows.iter().find(|row| {
            (row.model, row.row, row.path, row.size) == ("rtl8169", name, "GG", 64)
                && Some(row.trap_ns) == least
        })
    };
    let (without, with) = (priced(UNMODIFIED), priced(WITH_CSB));
    let rate = |row: Option<&model::Row>| row.map(|row| row.kpps);
    let traps = |row: Option<&model::Row>| row.map(|row| row.traps[0]);
    fields! {
        /// One way at full speed, in million frames a second.
        e1000_64_mpps: speed("e1000", false),
        e1000e_64_mpps: speed("e1000e", false),
        rtl8169_64_mpps: speed("rtl8169", false),
        rtl8169_csb_64_mpps: speed("rtl8169", true),
        /// From guest to guest at the lowest price of a trap: thousand frames a second, without and with a
        /// status block.
        rtl8169_kpps: rate(without),
        rtl8169_csb_kpps: rate(with),
        /// Traps of the sending guest for each frame.
        rtl8169_traps_per_frame: traps(without),
        rtl8169_csb_traps_per_frame: traps(with),
        /// How many times as many frames a status block lets through.
        rtl8169_csb_gain: rate(with).zip(rate(without)).map(|(with, without)| with / without),
    }
}
