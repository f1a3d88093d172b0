//! A stream of FPM, cut anywhere: no more than a frame of it is kept, and what it says is taken by a router, whose tables then hold what was
//! said last of each prefix.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use sidecore_engine::control::{fpm, say};
use sidecore_engine::router::{Change, Net, Router, Way};

thread_local! {
    static ROUTER: Router = Router::new("r").unwrap();
}

fn said(stream: &mut fpm::Stream, bytes: &[u8], all: &mut Vec<Change>) -> bool {
    let taken = stream.take(bytes, |message| {
        if let Ok(Some((change, _))) = say::said(message) {
            all.push(change);
        }
    });
    assert!(taken.is_err() || stream.waiting() < 1 << 16);
    taken.is_ok()
}

fuzz_target!(|data: &[u8]| {
    let Some((cut, data)) = data.split_first() else { return };
    // A frame's own header is not worth a guess: as it came, and as one frame.
    for bytes in [data.to_vec(), fpm::frame(data)] {
        let (mut whole, mut parts) = (Vec::new(), Vec::new());
        let sound = said(&mut fpm::Stream::default(), &bytes, &mut whole);
        let mut stream = fpm::Stream::default();
        let same = bytes.chunks(usize::from(*cut) + 1).all(|part| said(&mut stream, part, &mut parts));
        assert!(sound == same);
        assert!(!sound || whole == parts, "however it is cut");
        ROUTER.with(|router| {
            router.feed(&whole, 1);
            let mut last: BTreeMap<Net, Option<&Way>> = BTreeMap::new();
            for change in &whole {
                match change {
                    Change::Route(net, way) => drop(last.insert(*net, Some(way))),
                    Change::Gone(net) => drop(last.insert(*net, None)),
                    _ => {}
                }
            }
            for (net, way) in last {
                assert_eq!(router.is_fed(&net), way.is_some());
            }
            router.next_generation();
            let mut behind = None;
            while let (_, Some(next)) = router.sweep(behind, 1) {
                behind = Some(next);
            }
            let fed = router.fed();
            assert_eq!((fed.routes, fed.objects, fed.digest), (0, 0, 0));
        });
    }
});
