//! Drivers and front ends that lie to a disk: the daemon goes on, each lie that ends a port has its name, and
//! the disk beside it never notices.

use std::time::Duration;

use crate::rig::Testbed;
use rustix::process::Signal;
use sidecore_driver::lying::{requests, Liar, Outcome};
use sidecore_driver::{Disk, DiskOptions, Frontend, Request, Status};

const WAIT: Duration = Duration::from_secs(20);

/// What the lies must be called that a device cannot be excused from seeing.
const FAULTS: [(&str, &str); 10] = [
    ("request-mixed", "wrong_direction"),
    ("request-mixed-end", "wrong_direction"),
    ("request-mixed-table", "wrong_direction"),
    ("split-request-again", "in_flight_already"),
    ("packed-request-again", "in_flight_already"),
    ("request-jump", "index_jump"),
    ("request-loop", "chain_too_long"),
    ("request-endless", "chain_too_long"),
    ("request-long", "chain_too_big"),
    ("request-far", "address_out_of_range"),
];

#[test]
fn a_lying_driver_loses_its_own_disk_only() {
    let bed = Testbed::new();
    let daemon = bed.daemon(&["--port", &format!("d=blk:{},file=ram:1M", bed.at("d"))]);
    let mut honest = Disk::connect(bed.path("d"), DiskOptions::default()).unwrap();
    let mut called = 0;
    for (number, lie) in requests::LIES.iter().enumerate() {
        let name = format!("l{number}");
        bed.ok(&["add", &format!("{name}=blk:{},file=ram:1M", bed.at(&name))]);
        let path = bed.path(&name);
        let mut liar = Liar::new(move || Frontend::connect(&path, WAIT));
        let outcome = (lie.run)(&mut liar).unwrap_or_else(|e| panic!("{}: {e}", lie.name));
        let fault = FAULTS.iter().find(|(end, _)| lie.name.ends_with(end)).map(|(_, fault)| *fault);
        let port = bed.port(&name).to_string();
        println!("{}: {outcome:?}", lie.name);
        if let Some(fault) = fault {
            assert!(
                matches!(outcome, Outcome::Closed | Outcome::Signalled),
                "{}: {outcome:?}, {port}",
                lie.name
            );
            assert!(port.contains(fault), "{}: {port}", lie.name);
            called += 1;
        }
        if lie.name.ends_with("region-ff") {
            let queues = bed.show("queues").to_string();
            assert!(queues.contains("the in-flight region is not about this ring"), "{}: {queues}", lie.name);
        }
        let data = vec![u8::try_from(number).unwrap(); 4096];
        assert_eq!(honest.ask(Request::Write { sector: 8, data: &data }, WAIT).unwrap().0, Status::Ok);
        assert_eq!(
            honest.ask(Request::Read { sector: 8, len: 4096 }, WAIT).unwrap(),
            (Status::Ok, data),
            "{}",
            lie.name
        );
        liar.release();
        bed.ok(&["del", &name]);
    }
    assert!(called >= FAULTS.len());
    drop(honest);
    assert!(daemon.end(Signal::TERM).success());
}
