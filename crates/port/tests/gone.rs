//! A port of another user's is removed while its client is attached: its memory reads as zeros then, which is
//! no frame.

use std::time::Duration;

use crate::rig::{frame, until, Engine};
use sidecore_port::{Interest, Sees, WaitError};

#[test]
fn a_client_whose_memory_goes_sees_that_its_port_is_gone_and_no_frames() {
    let me = rustix::process::geteuid().as_raw();
    let mut engine = Engine::new(2, Vec::new(), Duration::from_micros(20), |config| {
        config.owner = (Some(me), None);
    });
    let (mut a, mut b) = (engine.attach(0), engine.attach(1));
    let mut monitor = sidecore_port::Port::monitor(&engine.name(1), Sees::Received).unwrap();
    // What they have received leaves their heads away from the first slot.
    for number in 0..5 {
        assert!(a.tx[0].push(&frame(2, 1, number, 60)));
        a.tx[0].sync().unwrap();
        for (who, port) in [("the client", &mut b), ("its monitor", &mut monitor)] {
            until(who, || {
                port.rx[0].sync().unwrap();
                port.rx[0].take().is_some_and(|got| *got.bytes() == *frame(2, 1, number, 60))
            });
            port.rx[0].sync().unwrap();
        }
    }
    // One that it has not looked at.
    assert!(a.tx[0].push(&frame(2, 1, 9, 60)) && b.tx[0].push(&frame(1, 2, 9, 60)));
    a.tx[0].sync().unwrap();
    b.tx[0].sync().unwrap();
    drop(engine.attachments.remove(1));
    for port in [&mut b, &mut monitor] {
        until("it is told", || !port.is_attached());
        for ring in &mut port.rx {
            assert_eq!(ring.sync(), Ok(()), "nobody has reset it");
            assert!(ring.take().is_none() && !ring.arm(), "a frame of zeros");
            ring.disarm();
        }
        for ring in &mut port.tx {
            assert_eq!(ring.sync(), Ok(()));
            assert!(ring.space() == 0 && !ring.arm(), "room in rings that nobody serves");
            ring.disarm();
        }
        let said = port.wait(Interest::RECEIVE, Some(Duration::from_secs(60)));
        assert!(matches!(said, Err(WaitError::Gone)), "{said:?}");
    }
}
