//! Interrupts of virtio queues some time apart: fewer are sent, and none that a guest waits for is lost.

use std::time::Instant;

use crate::rig::{Testbed, LIMIT};
use serde_json::Value;
use sidecore_abi::virtio::features::{EVENT_IDX, RING_PACKED};
use sidecore_driver::net::NetDriver;
use sidecore_driver::session::{Config, Want};
use sidecore_driver::Frontend;

/// Frames, each of which the guest sleeps for.
const FRAMES: u64 = 200;

/// What is told of the interrupts for received frames of port `name`.
fn interrupts(bed: &Testbed, name: &str) -> [u64; 3] {
    let queues = bed.show("queues");
    let is = |queue: &&Value| queue["port"] == name && queue["direction"] == "egress" && queue["index"] == 0;
    let queue = queues["queues"].as_array().unwrap().iter().find(is).unwrap();
    ["raised", "held_back", "saved"].map(|key| queue["interrupts"][key].as_u64().unwrap())
}

#[test]
fn interrupts_are_apart_and_each_frame_that_is_waited_for_is_told() {
    let bed = Testbed::new();
    let port = |name: &str, options: &str| {
        format!("{name}=vhost-user:{},wire=w{options}", bed.at(&format!("{name}.sock")))
    };
    let _daemon = bed.daemon(&["--port", &port("a", ""), "--port", &port("b", ",moderation=1000")]);
    let mut before = [0; 3];
    for features in [0, EVENT_IDX, RING_PACKED | EVENT_IDX] {
        let start = |name: &str| {
            let frontend = Frontend::connect(bed.path(&format!("{name}.sock")), LIMIT).unwrap();
            NetDriver::start(frontend, Config { want: Want::default().and(features), ..Config::default() })
                .unwrap()
        };
        let (mut a, mut b) = (start("a"), start("b"));
        let mut slept = 0;
        for n in 0..FRAMES {
            assert_eq!(a.send(0, &[&[2; 60]]).unwrap(), 1);
            while b.receive(0, |_, _| {}).unwrap() == 0 {
                let (taken, asleep) = (b.stats().interrupts, Instant::now());
                // It may be woken for nothing, but not left asleep.
                b.wait(LIMIT).unwrap();
                assert!(asleep.elapsed() < LIMIT, "no interrupt came for frame {n}");
                slept += b.stats().interrupts - taken;
            }
        }
        let count = interrupts(&bed, "b");
        let [raised, held_back, saved] = [0, 1, 2].map(|i| count[i] - before[i]);
        before = count;
        assert!(slept > 0, "no frame was slept for");
        // A ring that starts is signalled once for nothing.
        assert!(slept <= raised + 1 && raised + saved == FRAMES, "{slept} of {raised}, {saved} saved");
        // Four may pass at once, and then one in a millisecond. A machine that does other things is as slow
        // itself.
        assert!(held_back > 0, "none of {slept} had to wait");
    }
}
