//! DPDK's virtio driver as the guest, a few combinations for a bounded number of frames: every one comes
//! back. `sidecore bench virtio-user` does all of them.

use crate::rig::Testbed;

#[test]
fn every_frame_comes_back_from_dpdk() {
    const FRAMES: u64 = 100_000;
    let bed = Testbed::new();
    // Both roles, both ring formats, mergeable or not, one queue or more, short frames and long.
    for combination in ["client split on 1 64", "server packed on 2 1514", "client packed off 4 64"] {
        let mut words = combination.split(' ');
        let mut args = vec!["bench", "virtio-user", "--json", "--seconds", "0.5", "--frames", "100000"];
        for flag in ["--role", "--ring", "--mergeable", "--queues", "--size"] {
            args.extend([flag, words.next().unwrap()]);
        }
        let output = bed.run(&args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{combination}: {errors}");
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let row = &answer["rows"][0];
        let half = &row["half"];
        assert_eq!((&half["sent"], &half["received"]), (&FRAMES.into(), &FRAMES.into()), "{answer}");
        assert_eq!((&half["lost"], &half["wrong"]), (&0.into(), &0.into()), "{answer}");
        assert_eq!(row["dropped"], serde_json::json!([]), "{answer}");
    }
}
