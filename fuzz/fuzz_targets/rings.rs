//! Both ring formats with arbitrary contents, as a transmit and as a receive ring: nothing may panic, and
//! every frame lies inside guest memory (reading it would fault otherwise). The memory is rewritten while
//! the ring runs.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use sidecore_abi::virtio::features;
use sidecore_engine::device::virtio_net::{EgressRing, IngressRing};
use sidecore_engine::frame::Batch;
use sidecore_engine::port::{EgressQueue, IngressQueue, Outcome, Port, Tally};
use sidecore_fuzz::{port, Guest, PARTS};

struct World {
    guest: Guest,
    port: Arc<Port>,
    batch: Batch,
}

thread_local! {
    static WORLD: std::cell::RefCell<World> =
        std::cell::RefCell::new(World { guest: Guest::new(), port: port(), batch: Batch::new() });
}

fuzz_target!(|data: &[u8]| {
    let [flags, data @ ..] = data else { return };
    WORLD.with_borrow_mut(|world| run(world, *flags, data));
});

fn run(world: &mut World, flags: u8, data: &[u8]) {
    let World { guest, port, batch } = world;
    let bit = |n: u8, feature: u64| if flags & 1 << n != 0 { feature } else { 0 };
    let packed = flags & 1 != 0;
    let bits = bit(0, features::RING_PACKED)
        | bit(1, features::NET_MRG_RXBUF)
        | bit(2, features::INDIRECT_DESC)
        | bit(3, features::EVENT_IDX)
        | bit(4, features::IN_ORDER)
        | bit(5, features::VERSION_1)
        | bit(6, features::NET_CSUM | features::NET_HOST_TSO4 | features::NET_HOST_USO);
    // The first half is there when the ring starts, the second is written while it runs.
    let (first, second) = data.split_at(data.len() / 2);
    guest.write(0, &[0; 0x1000]);
    guest.write(PARTS[0], first);
    port.fault.clear();
    if flags & 0x80 == 0 {
        let mut ring = IngressRing::new(Arc::clone(port), guest.ring(bits, packed), None, bits);
        for change in second.chunks(16).take(8) {
            batch.clear();
            let mut tally = Tally::default();
            ring.fetch(batch, &mut tally);
            for frame in batch.frames() {
                let body: usize = batch.body(frame).iter().map(|piece| piece.len()).sum();
                assert_eq!(frame.head_len() + body, frame.len as usize);
                batch.body(frame).iter().for_each(|piece| {
                    piece.read(&mut [0; 64]);
                });
            }
            ring.release(&mut tally);
            change_memory(guest, change);
        }
    } else {
        let mut ring = EgressRing::new(Arc::clone(port), guest.ring(bits, packed), bits);
        for change in second.chunks(16).take(8) {
            batch.clear();
            let picks: Vec<u16> = (0..u16::from(change[0] % 32)).collect();
            picks.iter().for_each(|n| assert!(batch.push_short(&[0x5a; 64][..14 + usize::from(*n)])));
            let mut outcome = Outcome::new();
            ring.send(batch, &picks, &mut outcome);
            let drops: u32 = outcome.drops.counts().iter().sum();
            assert_eq!(outcome.frames + u64::from(drops), picks.len() as u64);
            change_memory(guest, change);
        }
    }
}

fn change_memory(guest: &Guest, change: &[u8]) {
    if let [low, high, bytes @ ..] = change {
        guest.write(u64::from(u16::from_le_bytes([*low, *high]) & 0xfff), bytes);
    }
}
