//! Rings of requests, whose device stops in the middle of them as one does that is killed: what was in flight
//! is done again.

use std::os::unix::fs::FileExt;

use sidecore_abi::virtio::PACKED_F_AVAIL;

use super::*;
use crate::mem::Pieces;
use crate::virtq::Queue;

/// Holds whatever it picked.
struct Holds {
    port: Arc<Port>,
    running: Option<Queue>,
}

impl VirtioDevice for Holds {
    fn port(&self) -> &Arc<Port> {
        &self.port
    }
    fn features(&self) -> u64 {
        OFFERED
    }
    fn feature_names(&self, _: u64) -> Vec<String> {
        Vec::new()
    }
    fn rings(&self) -> usize {
        1
    }
    fn ring_role(&self, index: usize) -> (usize, &'static str) {
        (index, "requests")
    }
    fn set_features(&mut self, _: u64) {}
    fn completes_in_order(&self) -> bool {
        false
    }
    fn start_ring(
        &mut self,
        _: usize,
        config: RingConfig,
        _: Option<OwnedFd>,
    ) -> Result<(), RingConfigError> {
        self.running = Some(Queue::requests(config)?);
        Ok(())
    }
    fn stop_ring(&mut self, _: usize) -> Option<Position> {
        self.running.take().map(|queue| queue.position())
    }
}

/// A VMM with one ring, in which three requests wait.
struct Vmm {
    memory: File,
    features: u64,
    backend: Backend<Holds>,
}

const STEPS: [Say; 7] =
    [Say::Features, Say::Memory, Say::Size(0), Say::Base(0), Say::Addresses(0), Say::Kick(0), Say::Enable(0)];

fn daemon() -> Backend<Holds> {
    let device = Holds { port: port(), running: None };
    Backend::new(device, RingSlots::anonymous(1, RingSlots::ours(false)).unwrap())
}

/// An in-flight region for one ring of this size, from the back end.
fn region(backend: &mut Backend<Holds>, size: u16) -> (Vec<u8>, File) {
    backend.protocol = protocol::INFLIGHT_SHMFD | protocol::RESET_DEVICE;
    let ask = [&[0; 16][..], &1u16.to_le_bytes(), &size.to_le_bytes(), &[0; 4]].concat();
    let row = Message::find(GET_INFLIGHT_FD).unwrap();
    let (given, file) = backend.handle(row, &ask, Descriptors::default()).unwrap().unwrap();
    (given, file.unwrap().into())
}

fn give(backend: &mut Backend<Holds>, given: &[u8], file: &File) {
    backend.protocol = protocol::INFLIGHT_SHMFD | protocol::RESET_DEVICE;
    let fds = Descriptors(vec![file.try_clone().unwrap().into()]);
    backend.handle(Message::find(SET_INFLIGHT_FD).unwrap(), given, fds).unwrap();
}

impl Vmm {
    fn new(features: u64) -> Vmm {
        let memory = memory(MEMORY);
        for i in 0..3u16 {
            let mut desc = (GPA + 0x8000).to_le_bytes().to_vec();
            desc.extend(64u32.to_le_bytes());
            let words = if features & bit::RING_PACKED == 0 { [0, 0] } else { [i, PACKED_F_AVAIL] };
            desc.extend(words.iter().flat_map(|word| word.to_le_bytes()));
            memory.write_all_at(&desc, 16 * u64::from(i)).unwrap();
        }
        if features & bit::RING_PACKED == 0 {
            let avail = [0u16, 3, 0, 1, 2].map(u16::to_le_bytes).concat();
            memory.write_all_at(&avail, 0x1000).unwrap();
        }
        Vmm { memory, features, backend: daemon() }
    }

    fn connect(&mut self) {
        for what in STEPS {
            say(&mut self.backend, &self.memory, self.features, what);
        }
    }

    fn queue(&mut self) -> &mut Queue {
        self.backend.device.running.as_mut().unwrap()
    }

    /// The device picks two, and finishes the second one if so.
    fn work(&mut self, finish: bool) {
        let (mut pieces, mut out) = (Pieces::new(64), Vec::new());
        assert_eq!(self.queue().pick(2, &mut pieces, &mut out), Ok(2));
        if finish {
            self.queue().finish(out[1].token, 0);
            self.queue().publish();
        }
    }

    fn refused(&mut self) -> String {
        self.connect();
        assert!(self.backend.device.running.is_none());
        self.backend.status(String::new()).queues[0].state.clone()
    }
}

#[test]
fn what_was_in_flight_is_done_again_after_a_disconnection() {
    for features in FORMATS {
        for finish in [false, true] {
            let mut vmm = Vmm::new(features);
            vmm.connect();
            vmm.work(finish);
            vmm.backend.disconnect(false);
            vmm.connect();
            // A split ring of which nothing was published says itself what was in flight.
            let told = finish || features & bit::RING_PACKED != 0;
            let left = if finish { 1 } else { 2 };
            assert_eq!(vmm.queue().owed(), if told { left } else { 0 });
            assert_eq!(vmm.queue().in_flight(), vmm.queue().owed());
            // The one that the ring still has comes behind them.
            let mut out = Vec::new();
            assert_eq!(vmm.queue().pick(9, &mut Pieces::new(64), &mut out), Ok(left + 1));
            // A change under the ring is like a disconnection.
            say(&mut vmm.backend, &vmm.memory, features, Say::Kick(0));
            assert_eq!(vmm.queue().owed(), if told { left + 1 } else { 0 });
            assert_eq!(vmm.queue().pick(9, &mut Pieces::new(64), &mut out), Ok(left + 1));
        }
    }
}

#[test]
fn the_region_of_the_front_end_outlives_the_daemon() {
    for features in FORMATS {
        let mut vmm = Vmm::new(features);
        let (given, file) = region(&mut vmm.backend, SIZE);
        give(&mut vmm.backend, &given, &file);
        vmm.connect();
        vmm.work(true);
        vmm.backend = daemon();
        give(&mut vmm.backend, &given, &file);
        vmm.connect();
        assert_eq!(vmm.queue().owed(), 1);
        vmm.backend = daemon();
        give(&mut vmm.backend, &given, &file);
        // An unknown version.
        file.write_all_at(&[7], 8).unwrap();
        assert!(vmm.refused().contains("its version is 7"), "{}", vmm.refused());
        // The device is set up anew: the region with it.
        tell(&mut vmm.backend, RESET_DEVICE, &[], Vec::new()).unwrap();
        vmm.connect();
        assert_eq!(vmm.queue().in_flight(), 0);
    }
}

#[test]
fn asked_for_its_base_an_idle_ring_is_the_front_ends() {
    for features in FORMATS {
        let mut vmm = Vmm::new(features);
        vmm.connect();
        vmm.work(true);
        // One is in flight, which the base does not say.
        ring(&mut vmm.backend, GET_VRING_BASE, 0, 0).unwrap();
        vmm.connect();
        assert_eq!(vmm.queue().owed(), 1);
        let mut out = Vec::new();
        vmm.queue().pick(9, &mut Pieces::new(64), &mut out).unwrap();
        for request in out {
            vmm.queue().finish(request.token, 0);
        }
        vmm.queue().publish();
        let base = ring(&mut vmm.backend, GET_VRING_BASE, 0, 0).unwrap();
        assert_eq!(base, if features & bit::RING_PACKED == 0 { 3 } else { 0x8003_8003 });
        assert!(vmm.backend.positions.region(0).unwrap().is_idle(SIZE, false));
        vmm.backend.disconnect(false);
        vmm.connect();
        // Nothing is known of it any more: where it starts is said by its used index, or by the front end.
        let at = if features & bit::RING_PACKED == 0 {
            Position::Split(3)
        } else {
            Position::Packed { avail: 0x8000, used: 0x8000 }
        };
        assert_eq!(vmm.queue().position(), at);
    }
}

#[test]
fn a_ring_that_its_region_has_no_room_for_is_refused() {
    let mut vmm = Vmm::new(FORMATS[0]);
    let (given, file) = region(&mut vmm.backend, SIZE / 2);
    give(&mut vmm.backend, &given, &file);
    assert!(
        vmm.refused().contains("64 entries are too many for its in-flight region: 32"),
        "{}",
        vmm.refused()
    );
    vmm.backend.disconnect(false);
    vmm.connect();
    ring(&mut vmm.backend, SET_VRING_NUM, 0, 2048).unwrap();
    assert!(vmm.backend.device.running.is_none());
    let state = &vmm.backend.status(String::new()).queues[0].state;
    assert!(state.contains("2048 entries are too many for its in-flight region: 1024 without"), "{state}");
    ring(&mut vmm.backend, SET_VRING_NUM, 0, SIZE.into()).unwrap();
    assert!(vmm.backend.device.running.is_some());
}

/// What our own file says of an earlier ring is not believed after one whose region was the front end's.
#[test]
fn our_own_region_ends_with_the_first_of_the_front_ends() {
    for features in FORMATS {
        let mut vmm = Vmm::new(features);
        vmm.connect();
        vmm.work(true);
        vmm.backend.disconnect(false);
        let (given, file) = region(&mut vmm.backend, SIZE);
        give(&mut vmm.backend, &given, &file);
        vmm.connect();
        assert_eq!(vmm.queue().owed(), 0);
        vmm.backend.disconnect(false);
        vmm.connect();
        assert_eq!(vmm.queue().owed(), 0, "{features:#x}");
    }
}
