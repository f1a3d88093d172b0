//! The daemon is away for longer than QEMU waits for an answer (5 s, its default): guests with a card of each
//! kind, and a disk, are answered meanwhile and go on when it is back. No VMM ends, no card is lost.

use sidecore_lab::bench::away::{bear, Outage};
use sidecore_lab::Result;

fn nothing_is_lost(pairs: usize, outages: &[Outage]) -> Result<()> {
    let report = bear(pairs, outages)?;
    println!("{:#?}", report.rows);
    assert_eq!((report.cards_lost, report.vms_lost, report.doubled), (0, 0, 0));
    assert_eq!(report.resumed_ms.len(), pairs * outages.len());
    Ok(())
}

#[test]
fn guests_bear_a_daemon_that_is_away_for_eight_seconds() -> Result<()> {
    nothing_is_lost(
        2,
        &[Outage { seconds: 1, crashes: false, tcp: true }, Outage { seconds: 8, crashes: true, tcp: false }],
    )
}

#[test]
fn guests_bear_a_daemon_that_is_away_for_half_a_minute() -> Result<()> {
    nothing_is_lost(
        3,
        &[
            Outage { seconds: 1, crashes: true, tcp: false },
            Outage { seconds: 8, crashes: true, tcp: true },
            Outage { seconds: 30, crashes: false, tcp: true },
            Outage { seconds: 30, crashes: true, tcp: false },
        ],
    )
}
