//! A stream of FPM, cut anywhere: no more than a frame of it is kept, and what it says is taken by a router,
//! whose tables then hold what was said last of each prefix. The stream is the input itself, or messages of
//! routes and next hops that the input chooses, which refer to each other, to the router's port and to
//! others; one byte of them may be another.
#![cfg_attr(feature = "libfuzzer", no_main)]

use std::collections::BTreeMap;

use sidecore_engine::host::netlink::{kind, Builder};
use sidecore_engine::router::{Change, Member, Net, Router, Rpf, Way};
use sidecore_fuzz::anonymous_port;
use sidecore_fuzz::fuzz_target;
use sidecore_routing::{fpm, say};

thread_local! {
    static ROUTER: Router = {
        let router = Router::new("r").unwrap();
        let port = anonymous_port();
        let addresses = ["10.0.0.1/24", "2001:db8::1/64"].map(|net| net.parse().unwrap()).into();
        let links = [(1, port.name.clone()), (2, "another".to_owned())];
        let member = Member { port, mac: [2, 0, 0, 0, 0, 1], addresses, control: None, rpf: Rpf::Off };
        router.configure(&[member], &[], 1);
        router.set_links(links.into(), 1);
        router
    };
}

/// A message of a route or a next hop.
fn message([what, len, a, b, link, with, object, more]: [u8; 8]) -> Vec<u8> {
    let six = what & 4 != 0;
    let near = |last: u8| match six {
        false => vec![10, 0, 0, last],
        true => [&[0x20, 1, 0xd, 0xb8][..], &[0; 11], &[last]].concat(),
    };
    let number = |number: u8| u32::from(number).to_ne_bytes();
    let family = if six { 10 } else { 2 };
    let has = |bit: u8| with & 1 << bit != 0;
    if what & 2 != 0 {
        let kind = if what & 1 == 0 { kind::NEWNEXTHOP } else { kind::DELNEXTHOP };
        let member = |it: u8| [number(it & 15), [it >> 4, it & 1, 0, 0]].concat();
        let mut built =
            Builder::new(kind, 0, 0, &[family, 0, 186, 0, 0, 0, 0, 0]).with(1, &number(object & 15));
        for (bit, attribute, value) in [
            (0, 2, [member(a), member(b), member(more)].concat()),
            (1, 4, vec![]),
            (2, 5, number(link & 3).to_vec()),
            (3, 6, near(a)),
            (4, 8, vec![1]),
        ] {
            built = if has(bit) { built.with(attribute, &value) } else { built };
        }
        return built.end();
    }
    let kind = if what & 1 == 0 { kind::NEWROUTE } else { kind::DELROUTE };
    let ways = [1, 1, 1, 6, 7, 8, 1, more][usize::from(what >> 3 & 7)];
    let table = if has(7) { more } else { 254 };
    // A short prefix covers many entries of the first array, one by one: that takes too long.
    let len = if six { len % 130 } else { 9 + len % 25 };
    let net = if six { [&[0x20, a & 3, b][..], &[0; 12], &[more]].concat() } else { vec![a & 7, b, 0, more] };
    let path = |link: u8, last: u8| {
        let near = near(last);
        let size = (12 + near.len()) as u16;
        let gateway = [((4 + near.len()) as u16).to_ne_bytes(), 5u16.to_ne_bytes()].concat();
        [&size.to_ne_bytes()[..], &[0, link >> 4], &number(link & 3), &gateway, &near].concat()
    };
    let via = [&u16::from(family).to_ne_bytes()[..], &near(b)].concat();
    let mut built = Builder::new(kind, 0, 0, &[family, len, 0, 0, table, 186, 0, ways, 0, 0, 0, 0]);
    for (bit, attribute, value) in [
        (0, 1, net),
        (1, 4, number(link & 3).to_vec()),
        (2, 5, near(a)),
        (3, 9, [path(link, a), path(link >> 2, b)].concat()),
        (4, 18, via),
        (5, 22, vec![1]),
        (6, 30, number(object & 15).to_vec()),
    ] {
        built = if has(bit) { built.with(attribute, &value) } else { built };
    }
    built.end()
}

fn said(stream: &mut fpm::Stream, bytes: &[u8], all: &mut Vec<Change>) -> bool {
    let taken = stream.take(bytes, |message| {
        if let Ok(Some((change, _))) = message.and_then(say::said) {
            all.push(change);
        }
    });
    assert!(taken.is_err() || stream.waiting() < 1 << 16);
    taken.is_ok()
}

fuzz_target!(|data: &[u8]| {
    let Some((cut, data)) = data.split_first() else { return };
    // A frame's own header is not worth a guess: as it came, and as one frame. Nor are lengths within
    // lengths.
    let chosen = data.split_last_chunk::<3>().map_or(Vec::new(), |(data, [at, other, byte])| {
        let frames = data.chunks_exact(8).map(|it| fpm::frame(&message(it.try_into().unwrap())));
        let mut all: Vec<u8> = frames.flatten().collect();
        let place = usize::from(u16::from_le_bytes([*at, *other])) % all.len().max(1);
        if let Some(place) = all.get_mut(place).filter(|_| other & 0x80 != 0) {
            *place ^= byte;
        }
        all
    });
    for bytes in [data.to_vec(), fpm::frame(data), chosen] {
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
                assert_eq!(router.found(&[net]).is_empty(), way.is_some());
                let _ = router.explain(net.address, None, 1);
            }
            let _ = router.routes(1);
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
